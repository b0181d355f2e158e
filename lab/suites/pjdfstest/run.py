#!/usr/bin/python3
"""pjdfstest (crates.io): POSIX semantics of the name space, permissions and times. One case per test."""
import os, re, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from kit import *

s = Suite()
# Its longest-path tests subtract one too many when what is left of PATH_MAX is a multiple of 127;
# below DIR they use a directory whose name has 21 characters.
pad = next(n for n in range(1, 9) if 9 < (4095 - len(s.dir) - 1 - n - 22) % 127)
s.dir = s.p("p" * pad)
os.mkdir(s.dir)


def mount_point(path):
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path


conf, second = f"{s.tmp}/pjdfstest.toml", f"{s.tmp}/second"
os.makedirs(second)
os.chmod(s.dir, 0o777)      # the tests' own users create things in it
with open(conf, "w") as f:
    f.write(f"""[features]
posix_fallocate = {{}}
rename_ctime = {{}}
utime_now = {{}}
utimensat = {{}}
secondary_fs = "{second}"
[settings]
# Times of some servers come from a clock that moves only 100 times a second.
naptime = 0.025
# The tests of read-only file systems remount the one that DIR is on.
allow_remount = {"false" if mount_point(s.dir) == "/" else "true"}
[dummy_auth]
entries = [ ["nobody", "nogroup"], ["daemon", "daemon"] ]
""")


def run(*patterns):
    """Runs the tests that match; what the program printed, the verdicts and their explanations."""
    r = subprocess.run([f"{s.tools}/bin/pjdfstest", "-c", conf, "-p", s.dir, *patterns], stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1800)
    text, name = r.stdout.decode(errors="replace"), None
    verdicts, why = {}, {}
    for line in text.splitlines():
        # A verdict ends the line; whatever follows it, up to the next, is its explanation.
        m = re.match(r"(\w+(?:::\w+)+)\s+(ok|FAILED|skipped|expected failure)?\s*$", line)
        if m:
            name = m[1]
            verdicts[name] = m[2] or "?"
        elif name:
            if verdicts[name] == "?" and (w := re.search(r"(ok|FAILED|skipped)\s*$", line)):
                verdicts[name] = w[1]
            why.setdefault(name, []).append(line.strip())
    return text, verdicts, why


# First the tests that remount: other tests leave removed files in use for a while, and as long as there is one no
# file system (the kernel's NFS client neither) can be made read-only. Their verdicts in the long run do not count.
_, first, why_first = run("erofs")
# --quick: the groups that differ most between clients.
text, verdicts, why = run(*(["rename", "unlink", "link", "open", "utimensat"] if s.quick else []))
for name in first.keys() & verdicts.keys():
    verdicts[name] = first[name]
    why[name] = why_first.get(name, [])
for name, v in sorted(verdicts.items()):
    if v == "ok":
        print(f"ok {name}")
    else:
        print(f"not ok {name}: {v}: {' '.join(why.get(name, []))[:300]}")
m = re.search(r"Summary: (\d+) failed, (\d+) skipped, (\d+) passed", text)
if not m or len(verdicts) != sum(map(int, m.groups())):
    print(text[-3000:])
    sys.exit(f"pjdfstest: {len(verdicts)} verdicts, but the summary says {m and m[0]}")
