#!/usr/bin/python3
"""tar and rsync of a large tree, byte for byte against the local disk.

Times of symlinks are left out here (rsync -J); the suite `posix` has a case for them."""
import os, random, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from kit import *

s = Suite()
NFILES = s.pick(1000, 10000)
local, tar = f"{s.tmp}/tree", f"{s.tmp}/tree.tar"


def generate():
    rng = random.Random(6)
    os.makedirs(local)
    made = []
    pool = rng.randbytes(1 << 21)
    for i in range(NFILES):
        d = f"{local}/d{i % 37}/e{i // 37 % 11}"
        os.makedirs(d, exist_ok=True)
        p = f"{d}/f{i}"
        if i % 211 == 0:
            p = f"{d}/" + "long" * 60 + str(i)
        elif i % 97 == 0:
            p = f"{d}/näme mit\tTab\nund Zeile {i}"
        if i % 50 == 1:
            os.symlink(f"../e0/f{rng.randrange(NFILES)}" if i % 100 == 1 else "/does/not/exist", p)
            continue
        if i % 60 == 2:
            os.link(rng.choice(made), p)
            continue
        size = rng.choice([0, 1, 100, 1000, 4096, 5000, 9000, 20000]) if i % 1000 else 1 << 20
        at = rng.randrange(len(pool) - size)
        with open(p, "wb") as f:
            f.write(pool[at:at + size])
            if i % 333 == 3:
                f.truncate(size + 100000)        # a hole at the end
        os.chmod(p, rng.choice([0o644, 0o600, 0o755, 0o444, 0o640]))
        # Whole microseconds: finer ones do not survive every archive format.
        os.utime(p, ns=(10**18, rng.randrange(10**9, 17 * 10**8) * 10**9 + rng.randrange(10**6) * 1000))
        made.append(p)
    for i in range(20):
        os.makedirs(f"{local}/empty{i}/" + "/".join("deep" for _ in range(i)))


generate()
want = snapshot(local, times=True, links=True)
sh(["tar", "--format=posix", "-cf", tar, "-C", local, "."])


@s.case("untar")
def _():
    os.makedirs(s.p("tar"))
    sh(["tar", "-xpf", tar, "-C", s.p("tar")])
    same_tree(snapshot(s.p("tar"), times=True, links=True), want)


@s.case("tar-compare")
def _():
    # Its only complaint may be about the times of symlinks, which it cannot leave out.
    import subprocess
    r = subprocess.run(["tar", "-df", tar, "-C", s.p("tar")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = [x for x in r.stdout.decode(errors="replace").splitlines() if "Mod time differs" not in x]
    equal(lines, [], "differences")


@s.case("tar-back")
def _():
    sh(f"tar --format=posix -cf - -C {s.p('tar')} . | (mkdir -p {s.tmp}/back && tar -xpf - -C {s.tmp}/back)")
    same_tree(snapshot(f"{s.tmp}/back", times=True, links=True), want)


@s.case("rsync")
def _():
    sh(["rsync", "-aHJ", f"{local}/", s.p("rsync") + "/"])
    same_tree(snapshot(s.p("rsync"), times=True, links=True), want)


@s.case("rsync-again")
def _():
    out = sh(["rsync", "-aHJi", "--delete", f"{local}/", s.p("rsync") + "/"])
    equal(out, "", "a second run finds differences")


@s.case("rsync-checksums")
def _():
    equal(sh(["rsync", "-aHJic", "--delete", s.p("rsync") + "/", f"{local}/"]), "", "differences in contents")


@s.case("rsync-changes")
def _():
    for i in (5, 6, 7):
        with open(f"{local}/d{i}/e0/f{i}", "ab") as f:
            f.write(b"changed")
    sh(f"rm -rf {local}/d9 && mkdir {local}/d9 && mv {local}/d10 {local}/renamed")
    sh(["rsync", "-aHJ", "--delete", "--inplace", f"{local}/", s.p("rsync") + "/"])
    same_tree(snapshot(s.p("rsync"), times=True, links=True), snapshot(local, times=True, links=True))


@s.case("cp-and-diff")
def _():
    sh(["cp", "-a", s.p("tar"), s.p("copy")])
    sh(["diff", "-r", "--no-dereference", s.p("tar"), s.p("copy")])


@s.case("find-and-remove")
def _():
    names = sh(["find", s.p("tar"), "-print0"]).count("\0")
    equal(names, len(want) + 1, "names that find sees")
    sh(["rm", "-rf", s.p("tar"), s.p("rsync"), s.p("copy")])
    equal(os.listdir(s.dir), [], "what is left")
