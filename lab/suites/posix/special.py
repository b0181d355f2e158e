"""Special files, odd opens, and what must be refused."""
import errno, os, socket, stat
from kit import check, equal
from util import children, fails, put

O_TMPFILE = getattr(os, "O_TMPFILE", 0o20200000)


def cases(s):
    @s.case("o_tmpfile-is-refused")
    def _():
        # NFS has no file without a name; programs fall back when they are told so.
        fails(lambda: os.open(s.dir, O_TMPFILE | os.O_RDWR, 0o600), errno.EOPNOTSUPP)
        import tempfile
        with tempfile.TemporaryFile(dir=s.dir) as f:
            f.write(b"fallback")
            f.seek(0)
            equal(f.read(), b"fallback")

    @s.case("fifo")
    def _():
        os.mkfifo(s.p("fifo"))
        check(stat.S_ISFIFO(os.stat(s.p("fifo")).st_mode), "type")

        def write():
            with open(s.p("fifo"), "wb") as f:
                f.write(b"through a pipe")

        def read():
            with open(s.p("fifo"), "rb") as f:
                equal(f.read(), b"through a pipe")
        children([write, read])

    @s.case("unix-socket")
    def _():
        # sun_path is short, so go there.
        here = os.open(".", os.O_RDONLY)
        os.chdir(s.dir)
        try:
            srv = socket.socket(socket.AF_UNIX)
            srv.bind("sock")
            srv.listen()
            c = socket.socket(socket.AF_UNIX)
            c.connect("sock")
            c.sendall(b"hello")
            equal(srv.accept()[0].recv(9), b"hello")
        finally:
            os.fchdir(here)
            os.close(here)

    @s.case("devices")
    def _():
        os.mknod(s.p("null"), 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        st = os.stat(s.p("null"))
        check(stat.S_ISCHR(st.st_mode), "type")
        equal(st.st_rdev, os.makedev(1, 3))

    @s.case("open-flags")
    def _():
        fails(lambda: os.open(s.p("of"), os.O_RDONLY), errno.ENOENT)
        os.close(os.open(s.p("of"), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o444))
        fails(lambda: os.open(s.p("of"), os.O_CREAT | os.O_EXCL | os.O_RDWR), errno.EEXIST)
        fails(lambda: os.open(s.p("of"), os.O_RDONLY | os.O_DIRECTORY), errno.ENOTDIR)
        fails(lambda: os.open(s.dir, os.O_WRONLY), errno.EISDIR)
        fails(lambda: os.open(s.p("of/x"), os.O_RDONLY), errno.ENOTDIR)
        fd = os.open(s.p("of"), os.O_WRONLY)
        fails(lambda: os.read(fd, 1), errno.EBADF)
        os.close(fd)

    @s.case("create-read-only-and-write-through-it")
    def _():
        fd = os.open(s.p("ro"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o400)
        equal(os.write(fd, b"written"), 7)
        os.close(fd)
        equal(open(s.p("ro"), "rb").read(), b"written")

    @s.case("o_path-and-at-calls")
    def _():
        put(s.p("op"), b"p")
        d = os.open(s.dir, os.O_PATH | os.O_DIRECTORY)
        equal(os.stat("op", dir_fd=d).st_size, 1)
        os.rename("op", "op2", src_dir_fd=d, dst_dir_fd=d)
        fd = os.open("op2", os.O_RDONLY, dir_fd=d)
        equal(os.read(fd, 2), b"p")
        os.unlink("op2", dir_fd=d)
        os.close(fd), os.close(d)

    @s.case("many-open-files")
    def _():
        n = s.pick(100, 800)
        fds = [os.open(s.p(f"many{i}"), os.O_RDWR | os.O_CREAT) for i in range(n)]
        for i, fd in enumerate(fds):
            os.write(fd, b"%d" % i)
        for i, fd in enumerate(fds):
            equal(os.pread(fd, 9, 0), b"%d" % i)
            os.close(fd)
        for i in range(n):
            os.unlink(s.p(f"many{i}"))

    @s.case("exec-script")
    def _():
        import subprocess
        put(s.p("script"), b"#!/bin/sh\necho ran $1\n")
        os.chmod(s.p("script"), 0o755)
        equal(subprocess.run([s.p("script"), "here"], stdout=subprocess.PIPE).stdout, b"ran here\n")

    @s.case("remove-non-empty-and-wrong-kind")
    def _():
        os.makedirs(s.p("rd/sub"))
        fails(lambda: os.rmdir(s.p("rd")), errno.ENOTEMPTY, errno.EEXIST)
        fails(lambda: os.unlink(s.p("rd")), errno.EISDIR, errno.EPERM)
        put(s.p("rf"))
        fails(lambda: os.rmdir(s.p("rf")), errno.ENOTDIR)
        fails(lambda: os.mkdir(s.p("rf")), errno.EEXIST)
