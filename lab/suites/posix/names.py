"""Names and directories: length, encodings, large directories, rename, links, unlinked files."""
import ctypes, errno, os
from kit import check, equal
from util import children, fails, put

LIBC = ctypes.CDLL(None, use_errno=True)
NOREPLACE, EXCHANGE = 1, 2


def renameat2(a, b, flags):
    if LIBC.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), flags):
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))


def cases(s):
    @s.case("names-of-255-bytes")
    def _():
        for name in (b"x" * 255, "ü".encode() * 127 + b"e", "日".encode() * 85):
            p = os.path.join(os.fsencode(s.dir), name)
            put(p, b"long")
            check(name in os.listdir(os.fsencode(s.dir)), "not listed")
            equal(open(p, "rb").read(), b"long")
            os.rename(p, p[:-1])
            os.unlink(p[:-1])
        fails(lambda: put(s.p("y" * 256)), errno.ENAMETOOLONG)
        fails(lambda: os.mkdir(s.p("y" * 256)), errno.ENAMETOOLONG)
        fails(lambda: os.stat(s.p("y" * 256)), errno.ENAMETOOLONG)

    @s.case("names-in-any-encoding")
    def _():
        names = [b"latin-\xe9\xe8", b"\xff\xfe\xfd", b"\x80", b"a\nb", b"tab\there", b" leading and trailing ", b"-rf",
                 b"*", b"\\", b"new\x01\x7f", "nfc-é".encode(), "nfd-é".encode()]
        d = os.path.join(os.fsencode(s.dir), b"enc")
        os.mkdir(d)
        for n in names:
            put(os.path.join(d, n), n)
        equal(sorted(os.listdir(d)), sorted(names))
        for n in names:
            equal(open(os.path.join(d, n), "rb").read(), n)
            os.unlink(os.path.join(d, n))
        os.rmdir(d)

    @s.case("large-directory")
    def _():
        # What takes the time is the server making the files, so it makes all of them only once.
        n, crew = s.pick(5_000, 100_000 if (s.server, s.vers) in (("ganesha", "4.2"), ("", "")) else 10_000), 8
        d = s.p("large")
        os.mkdir(d)

        def make(k):
            for i in range(k, n, crew):
                os.close(os.open(f"{d}/entry-{i:06d}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))

        def remove(k):
            for i in range(k, n, crew):
                os.unlink(f"{d}/entry-{i:06d}")
        children([lambda k=k: make(k) for k in range(crew)])
        names = os.listdir(d)
        equal(len(names), n, "names")
        equal(len(set(names)), n, "different names")
        with os.scandir(d) as it:
            equal(sum(e.is_file() for e in it), n, "files by type")
        equal(os.stat(f"{d}/entry-{n // 2:06d}").st_size, 0)
        fails(lambda: os.stat(f"{d}/entry-{n:06d}"), errno.ENOENT)
        fails(lambda: os.rmdir(d), errno.ENOTEMPTY, errno.EEXIST)
        children([lambda k=k: remove(k) for k in range(crew)])
        equal(os.listdir(d), [], "left over")
        os.rmdir(d)

    @s.case("remove-while-reading-directory")
    def _():
        n, d = s.pick(1_000, 4_000), s.p("reading")
        os.mkdir(d)
        for i in range(n):
            put(f"{d}/entry-{i:06d}")
        seen = 0
        with os.scandir(d) as it:
            for e in it:
                os.unlink(e.path)
                seen += 1
        equal((seen, os.listdir(d)), (n, []), "removed while reading, left over")
        os.rmdir(d)

    @s.case("readdir-seekdir")
    def _():
        class Dirent(ctypes.Structure):
            _fields_ = [("ino", ctypes.c_ulong), ("off", ctypes.c_long), ("len", ctypes.c_ushort),
                        ("type", ctypes.c_ubyte), ("name", ctypes.c_char * 256)]
        LIBC.opendir.restype, LIBC.readdir.restype = ctypes.c_void_p, ctypes.POINTER(Dirent)
        LIBC.telldir.restype = ctypes.c_long
        for f in ("telldir", "readdir", "closedir", "rewinddir"):
            getattr(LIBC, f).argtypes = [ctypes.c_void_p]
        LIBC.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
        d = s.p("seek")
        os.mkdir(d)
        for i in range(500):
            put(f"{d}/{i}")
        h = LIBC.opendir(d.encode())
        seq, pos = [], []
        while True:
            pos.append(LIBC.telldir(h))
            e = LIBC.readdir(h)
            if not e:
                break
            seq.append(e.contents.name)
        equal(len(seq), 502)
        for k in (0, 1, 250, 499, 37):
            LIBC.seekdir(h, pos[k])
            equal(LIBC.readdir(h).contents.name, seq[k], f"name at the position of entry {k}")
        LIBC.rewinddir(h)
        put(f"{d}/later")
        LIBC.rewinddir(h)
        again = set()
        while e := LIBC.readdir(h):
            again.add(e.contents.name)
        LIBC.closedir(h)
        check(b"later" in again, "rewinddir does not show a new name")

    @s.case("rename-noreplace")
    def _():
        put(s.p("r1"), b"1"), put(s.p("r2"), b"2")
        fails(lambda: renameat2(s.p("r1"), s.p("r2"), NOREPLACE), errno.EEXIST)
        equal(open(s.p("r2"), "rb").read(), b"2")
        renameat2(s.p("r1"), s.p("r3"), NOREPLACE)
        equal(open(s.p("r3"), "rb").read(), b"1")

    @s.case("rename-exchange")
    def _():
        put(s.p("x1"), b"1"), put(s.p("x2"), b"2")
        renameat2(s.p("x1"), s.p("x2"), EXCHANGE)
        equal((open(s.p("x1"), "rb").read(), open(s.p("x2"), "rb").read()), (b"2", b"1"))

    @s.case("rename-flags-refused-change-nothing")
    def _():
        # Where a flag is not supported, EINVAL and nothing moved.
        put(s.p("n1"), b"1"), put(s.p("n2"), b"2")
        try:
            renameat2(s.p("n1"), s.p("n2"), EXCHANGE)
        except OSError as e:
            equal(e.errno, errno.EINVAL)
            equal((open(s.p("n1"), "rb").read(), open(s.p("n2"), "rb").read()), (b"1", b"2"))

    @s.case("rename-directories")
    def _():
        os.makedirs(s.p("d1/sub")), os.makedirs(s.p("d2"))
        put(s.p("d1/sub/f"), b"f")
        os.rename(s.p("d1/sub"), s.p("d2/moved"))
        equal(open(s.p("d2/moved/f"), "rb").read(), b"f")
        equal(os.listdir(s.p("d1")), [])
        os.rename(s.p("d2"), s.p("d1"))          # onto an empty directory
        equal(os.listdir(s.p("d1")), ["moved"])
        fails(lambda: os.rename(s.p("d1"), s.p("d1/moved/inside")), errno.EINVAL)
        os.mkdir(s.p("d3"))
        fails(lambda: os.rename(s.p("d3"), s.p("d1")), errno.ENOTEMPTY, errno.EEXIST)
        fails(lambda: os.rename(s.p("d1/moved/f"), s.p("d3")), errno.EISDIR)

    @s.case("hard-links")
    def _():
        put(s.p("h1"), b"shared")
        os.link(s.p("h1"), s.p("h2"))
        a, b = os.stat(s.p("h1")), os.stat(s.p("h2"))
        equal((a.st_nlink, a.st_ino), (2, b.st_ino))
        with open(s.p("h2"), "ab") as f:
            f.write(b" more")
        equal(open(s.p("h1"), "rb").read(), b"shared more")
        os.unlink(s.p("h1"))
        equal(os.stat(s.p("h2")).st_nlink, 1)
        fails(lambda: os.link(s.dir, s.p("h3")), errno.EPERM)

    @s.case("link-to-open-unlinked-fails-or-works")
    def _():
        put(s.p("lu"), b"x")
        fd = os.open(s.p("lu"), os.O_RDONLY)
        os.unlink(s.p("lu"))
        equal(os.pread(fd, 5, 0), b"x")
        os.close(fd)

    @s.case("symlinks")
    def _():
        put(s.p("target"), b"t")
        os.symlink("target", s.p("sl"))
        equal(open(s.p("sl"), "rb").read(), b"t")
        equal(os.lstat(s.p("sl")).st_size, 6)
        long = "l" * 1000 + "/" + "m" * 3000
        os.symlink(long, s.p("sl2"))
        equal(os.readlink(s.p("sl2")), long)
        fails(lambda: os.open(s.p("sl"), os.O_RDONLY | os.O_NOFOLLOW), errno.ELOOP)
        os.symlink("loop", s.p("loop"))
        fails(lambda: open(s.p("loop")), errno.ELOOP)

    @s.case("unlinked-open-file")
    def _():
        d = s.p("silly")
        os.mkdir(d)
        fd = os.open(f"{d}/f", os.O_RDWR | os.O_CREAT)
        os.write(fd, b"still here")
        os.unlink(f"{d}/f")
        fails(lambda: os.stat(f"{d}/f"), errno.ENOENT)
        equal(os.pread(fd, 99, 0), b"still here")
        os.pwrite(fd, b"S", 0)
        os.fsync(fd)
        equal(os.fstat(fd).st_size, 10)
        os.ftruncate(fd, 5)
        os.fchmod(fd, 0o600)
        equal(os.pread(fd, 99, 0), b"Still")
        put(f"{d}/f", b"another")
        equal(os.pread(fd, 99, 0), b"Still", "a new file of the same name is another file")
        os.close(fd)
        os.unlink(f"{d}/f")
        equal(os.listdir(d), [], "left behind after close")
        os.rmdir(d)

    @s.case("removed-working-directory")
    def _():
        os.mkdir(s.p("cwd"))
        here = os.open(".", os.O_RDONLY)
        os.chdir(s.p("cwd"))
        os.rmdir(s.p("cwd"))
        try:
            fails(lambda: put("x"), errno.ENOENT, errno.ESTALE)
        finally:
            os.fchdir(here)
            os.close(here)

    @s.case("negative-lookup-then-create")
    def _():
        for i in range(20):
            p = s.p(f"neg{i}")
            fails(lambda: os.stat(p), errno.ENOENT)
            put(p, b"%d" % i)
            equal(open(p, "rb").read(), b"%d" % i)
            os.unlink(p)
            fails(lambda: os.stat(p), errno.ENOENT)

    @s.case("create-exclusive-race")
    def _():
        from util import fork
        wins = 0
        for i in range(s.pick(10, 50)):
            def one():
                try:
                    os.close(os.open(s.p(f"excl{i}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                except FileExistsError:
                    os._exit(7)
            pids = [fork(one) for _ in range(4)]
            codes = sorted(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids)
            equal(codes, [0, 7, 7, 7], "exactly one creator may win")
            wins += 1
