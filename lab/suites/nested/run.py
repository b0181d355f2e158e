#!/usr/bin/python3
"""What lies inside an export: mounts of the server's machine, made before and while clients use it,
exports of their own, directories that move out, and names that a kernel finds by handle alone.
The last group locks over NFSv3, which needs rpcbind on the server's machine, too.

DIR is on an NFS mount of the Linux kernel's client; `machine.py` reaches the server's machine.
"""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import kit
import machine

s = kit.Suite()
if s.server == "ganesha" or machine.mount_of(s.dir)[2] not in ("nfs", "nfs4"):
    @s.case("not-offered")
    def not_offered():
        """FSAL_VFS shows no file system below the exported one; other clients share this machine's kernel."""
    sys.exit()
server = machine.Machine(s.server, s.dir)
try:
    for group in ("mounts", "found", "reexport", "coming", "rights", "moved", "locks"):
        __import__(group).cases(s, server)
finally:
    server.clear()
