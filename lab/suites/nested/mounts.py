"""Mounts below an exported directory, with `crossmnt`: a client sees file systems of their own."""
import errno, os

import handles
from kit import check, equal, same_tree, sh, snapshot

TREE = "for d in a/b/c a/d; do mkdir -p $d; for i in 1 2 3; do echo $d $i >$d/$i; done; done; ln -s a/b l; ln a/d/1 hard"


def refused(call, *want):
    try:
        call()
    except OSError as e:
        check(e.errno in want, f"{errno.errorcode[e.errno]}, not one of {[errno.errorcode[w] for w in want]}")
        return
    check(False, "it was done")


def cases(s, server):
    case, p = s.case, s.p

    @case("set-up")
    def set_up():
        server.here("mkdir m plain; echo below >m/below; echo f >plain/f")
        server.exports("rw,crossmnt")
        server.ext4("m")
        server.here(f"cd m; {TREE}; echo inside >inside")
        server.ext4("m/deep")
        server.here(f"cd m/deep; {TREE}; echo inside >inside")

    @case("crossed")
    def crossed():
        equal(sorted(os.listdir(p("m"))), ["a", "deep", "hard", "inside", "l"])
        equal(open(p("m/inside")).read(), "inside\n")
        equal(open(p("m/deep/inside")).read(), "inside\n")
        equal(open(p("m/l/c/1")).read(), "a/b/c 1\n")
        equal(os.listdir(p("plain")), ["f"])

    @case("file-systems-differ")
    def file_systems_differ():
        devices = [os.stat(p(d)).st_dev for d in ("plain", "m", "m/a/b", "m/deep")]
        check(devices[1] == devices[2] and len(set(devices)) == 3, devices)
        for at in ("m", "m/deep"):
            blocks = server.here(f"stat -f -c '%b %S' {at}").split()
            seen = os.statvfs(p(at))
            # The client counts in blocks of a transfer.
            equal(seen.f_blocks, -(-int(blocks[0]) * int(blocks[1]) // seen.f_frsize), at)
        check(os.statvfs(s.dir).f_blocks != os.statvfs(p("m")).f_blocks)
        table = sh(["df", "--output=target", s.dir, p("m/a"), p("m/deep/a")]).split()
        equal(table[-2:], [p("m"), p("m/deep")])

    @case("numbers-of-entries")
    def numbers_of_entries():
        for at, inner in ((".", "m"), ("m", "deep")):
            listed = {e.name: e.inode() for e in os.scandir(p(at))}
            # The directory below, as with a local mount.
            below = int(server.here(f"cd {at}; mkdir -p /run/below && mount --bind . /run/below && stat -c %i /run/below/{inner}; umount /run/below"))
            equal(listed[inner], below, "listed")
        equal(os.stat(p("m")).st_ino, 2, "the root of an ext4")

    @case("tmpfs")
    def tmpfs():
        server.tmpfs("t")
        with open(p("t/f"), "w") as f:
            f.write("f")
        equal(server.here("cat t/f"), "f")
        check(os.stat(p("t")).st_dev != os.stat(s.dir).st_dev)
        sh(f"umount {p('t')}")
        server.umount("t")

    @case("bound")
    def bound():
        server.mounted("mkdir bound; mount --bind plain bound")
        equal(open(p("bound/f")).read(), "f\n")
        with open(p("bound/g"), "w") as f:
            f.write("g")
        equal(server.here("cat plain/g"), "g")
        os.unlink(p("plain/g"))
        sh(f"umount {p('bound')} 2>/dev/null || true")
        server.umount("bound", "-l")
        server.here("rmdir t bound")

    @case("find-xdev")
    def find_xdev():
        handles.forget()
        near = sh(["find", s.dir, "-xdev", "-printf", "%P\n"]).split()
        equal(sorted(near), ["m", "plain", "plain/f"])
        every = sh(["find", s.dir, "-printf", "%P\n"]).split()
        check("m/deep/a/b/c/3" in every and "m/a/b/c/3" in every, every)
        local = server.here("find . -printf '%P\\n' | grep -v 'lost+found'").split()
        equal(sorted(every), sorted(local))

    @case("writes-go-there")
    def writes_go_there():
        for at in ("m", "m/deep"):
            with open(p(at, "new"), "w") as f:
                f.write("new")
            os.makedirs(p(at, "x/y"))
            os.rename(p(at, "new"), p(at, "x/y/new"))
            equal(server.here(f"cat {at}/x/y/new"), "new")
            os.unlink(p(at, "x/y/new"))
            os.removedirs(p(at, "x/y"))
        equal(server.here("ls m"), "a\ndeep\nhard\ninside\nl")

    @case("borders-hold")
    def borders_hold():
        refused(lambda: os.rename(p("plain/f"), p("m/f")), errno.EXDEV)
        refused(lambda: os.link(p("plain/f"), p("m/f")), errno.EXDEV)
        refused(lambda: os.rename(p("m/inside"), p("m/deep/f")), errno.EXDEV)
        refused(lambda: os.rmdir(p("m")), errno.EBUSY)
        refused(lambda: os.rename(p("m"), p("n")), errno.EBUSY)

    @case("borders-hold-for-strangers")
    def borders_hold_for_strangers():
        # A client that has not crossed knows the directory below only.
        sh(f"umount {p('m/deep')} {p('m')} || umount -l {p('m')}")
        handles.forget()
        refused(lambda: os.rename(p("m"), p("n")), errno.EBUSY, errno.EACCES)
        equal(open(p("m/deep/inside")).read(), "inside\n")

    @case("trees-copied")
    def trees_copied():
        sh(f"cp -a {p('m/a')} {p('m/deep/copy')}; cp -a {p('m/deep')} {p('plain/all')}")
        handles.forget()
        same_tree(snapshot(p("m/a")), snapshot(p("m/deep/copy")))
        same_tree(snapshot(p("m/deep"), links=True), snapshot(p("plain/all"), links=True))
        sh(f"rm -r {p('m/deep/copy')} {p('plain/all')}")

    @case("getcwd")
    def getcwd():
        pid_cwd = "cd {0}; echo 3 >/proc/sys/vm/drop_caches; pwd -P; cd ../..; pwd -P; cd ..; pwd -P; /bin/pwd"
        equal(sh(["bash", "-c", pid_cwd.format(p("m/deep/a/b"))]).split(), [p("m/deep/a/b"), p("m/deep"), p("m"), p("m")])
