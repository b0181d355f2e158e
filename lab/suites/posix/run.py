#!/usr/bin/python3
"""POSIX and Linux odds and ends that the big suites do not reach, one case each."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import kit

s = kit.Suite()
for group in ("data", "mapping", "locks", "names", "attributes", "special"):
    __import__(group).cases(s)
