#!/usr/bin/python3
"""fsx (crates.io): 100,000 random reads, writes, mappings and truncations of one file, each read verified."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from kit import *

s = Suite()
# Name, operations, seed, weights, and other settings.
PLAIN = {"close_open": 1, "read": 10, "write": 10, "mapread": 10, "mapwrite": 10, "invalidate": 1, "truncate": 5,
         "fsync": 1, "fdatasync": 1, "sendfile": 3, "posix_fadvise": 1, "copy_file_range": 3}
RUNS = [
    ("mmap", s.pick(8_000, 100_000), 1, PLAIN, "flen = 262144"),
    # 4 MiB: ranges larger than one READ or WRITE.
    ("large", s.pick(300, 1_000), 2, PLAIN, "flen = 4194304\n[opsize]\nmax = 2097152"),
    ("no-mmap", s.pick(2_000, 5_000), 3, PLAIN | {"mapread": 0, "mapwrite": 0, "close_open": 5}, "flen = 262144"),
    ("aligned", s.pick(1_000, 5_000), 4, PLAIN, "flen = 262144\n[opsize]\nalign = 4096"),
    ("holes", s.pick(2_000, 5_000), 5, PLAIN | {"punch_hole": 5, "posix_fallocate": 2}, "flen = 262144"),
]

for name, ops, seed, weights, settings in RUNS:
    @s.case(name)
    def _():
        conf = f"{s.tmp}/fsx-{name}.toml"
        with open(conf, "w") as f:
            f.write(settings + "\n[weights]\n" + "".join(f"{k} = {v}\n" for k, v in weights.items()))
        out = sh([f"{s.tools}/bin/fsx", "-f", conf, "-N", str(ops), "-S", str(seed), "-P", s.tmp, s.p(name)])
        check("All operations completed A-OK!" in out, out[-300:])
