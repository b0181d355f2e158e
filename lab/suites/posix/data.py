"""Reading and writing: append, holes, fallocate, copies, O_DIRECT, big files."""
import ctypes, errno, os, random
from kit import check, digest, equal
from util import children, fails, put

LIBC = ctypes.CDLL(None, use_errno=True)
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16


def fallocate(fd, mode, offset, length):
    if LIBC.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)):
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))


def cases(s):
    @s.case("append-two-processes")
    def _():
        # Close-to-open consistency promises this for one client: both go through the same mount.
        p, n = s.p("append"), s.pick(100, 400)

        def one(who):
            fd = os.open(p, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            for i in range(n):
                rec = f"{who}:{i:06d}:".encode().ljust(99, b"x") + b"\n"
                equal(os.write(fd, rec), 100)
            os.close(fd)
        children([lambda: one("a"), lambda: one("b")])
        lines = open(p).read().splitlines()
        equal(len(lines), 2 * n, "records")
        check(all(len(x) == 99 for x in lines), "torn record")
        for who in "ab":
            equal([int(x[2:8]) for x in lines if x[0] == who], list(range(n)), "order of " + who)

    @s.case("append-after-seek-and-truncate")
    def _():
        fd = os.open(s.p("app2"), os.O_RDWR | os.O_APPEND | os.O_CREAT)
        os.write(fd, b"0123456789")
        os.lseek(fd, 2, os.SEEK_SET)
        os.write(fd, b"ab")
        equal(os.pread(fd, 99, 0), b"0123456789ab")
        os.ftruncate(fd, 4)
        os.write(fd, b"Z")
        equal(os.pread(fd, 99, 0), b"0123Z")
        os.close(fd)
        equal(open(s.p("app2"), "rb").read(), b"0123Z")

    @s.case("random-writes-and-reads")
    def _():
        rng, size = random.Random(1), 300_000
        model, fd = bytearray(size), os.open(s.p("rw"), os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, size)
        for i in range(s.pick(200, 1500)):
            at, n = rng.randrange(size), rng.choice([1, 7, 100, 4096, 5000, 70000])
            n = min(n, size - at)
            if rng.random() < 0.5:
                data = rng.randbytes(n)
                equal(os.pwrite(fd, data, at), n)
                model[at:at + n] = data
            else:
                check(os.pread(fd, n, at) == model[at:at + n], "wrong bytes at", at, n, "after", i)
        os.fsync(fd)
        os.close(fd)
        check(open(s.p("rw"), "rb").read() == model, "wrong bytes after reopening")

    @s.case("overwrite-by-rename-keeps-open-file")
    def _():
        put(s.p("old"), b"old"), put(s.p("new"), b"newer")
        fd = os.open(s.p("old"), os.O_RDONLY)
        os.rename(s.p("new"), s.p("old"))
        equal(open(s.p("old"), "rb").read(), b"newer")
        equal(os.pread(fd, 99, 0), b"old", "the replaced file, still open")
        os.close(fd)
        fails(lambda: os.stat(s.p("new")), errno.ENOENT)

    @s.case("truncate-grow-shrink-zero")
    def _():
        p = s.p("trunc")
        put(p, b"x" * 10000)
        os.truncate(p, 5000)
        os.truncate(p, 9000)
        data = open(p, "rb").read()
        check(data == b"x" * 5000 + bytes(4000), "the end must be zeros after shrinking and growing")
        put(p, b"")
        equal(os.stat(p).st_size, 0)

    @s.case("sparse-1TiB")
    def _():
        p, tib = s.p("sparse"), 1 << 40
        fd = os.open(p, os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, tib)
        os.pwrite(fd, b"end", tib - 3)
        os.pwrite(fd, b"middle", tib // 2)
        os.fsync(fd)
        equal(os.fstat(fd).st_size, tib)
        equal(os.pread(fd, 10, tib - 3), b"end")
        equal(os.pread(fd, 8, tib // 2 - 1), b"\0middle\0")
        equal(os.pread(fd, 4096, 12345678901), bytes(4096))
        check(os.fstat(fd).st_blocks < 1 << 20, "blocks", os.fstat(fd).st_blocks)
        os.close(fd)
        os.unlink(p)

    @s.case("seek-data-is-never-behind-data")
    def _():
        # Without support from the server all of the file counts as data, which is allowed; a hole
        # where there is data is not.
        p = s.p("seek0")
        fd = os.open(p, os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 1 << 20)
        os.pwrite(fd, b"d" * 4096, 512 << 10)
        os.fsync(fd)
        at = os.lseek(fd, 0, os.SEEK_DATA)
        check(0 <= at <= 512 << 10, "SEEK_DATA jumped over data, to", at)
        equal(os.lseek(fd, 512 << 10, os.SEEK_DATA), 512 << 10, "SEEK_DATA inside data")
        hole = os.lseek(fd, 512 << 10, os.SEEK_HOLE)
        check((512 << 10) + 4096 <= hole <= 1 << 20, "SEEK_HOLE", hole)
        fails(lambda: os.lseek(fd, 1 << 20, os.SEEK_DATA), errno.ENXIO)
        fails(lambda: os.lseek(fd, 1 << 21, os.SEEK_HOLE), errno.ENXIO)
        os.close(fd)

    @s.case("seek-hole-real")
    def _():
        fd = os.open(s.p("seek1"), os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 4 << 20)
        os.pwrite(fd, b"d" * 65536, 1 << 20)
        os.fsync(fd)
        equal(os.lseek(fd, 0, os.SEEK_DATA), 1 << 20)
        equal(os.lseek(fd, 1 << 20, os.SEEK_HOLE), (1 << 20) + 65536)
        os.close(fd)

    @s.case("fallocate-reserve")
    def _():
        fd = os.open(s.p("fa"), os.O_RDWR | os.O_CREAT)
        os.write(fd, b"start")
        fallocate(fd, 0, 0, 1 << 20)
        equal(os.fstat(fd).st_size, 1 << 20)
        equal(os.pread(fd, 8, 0), b"start\0\0\0")
        os.close(fd)

    @s.case("posix_fallocate")
    def _():
        # The C library writes zeros itself where the file system cannot.
        fd = os.open(s.p("pfa"), os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(fd, 0, 100_000)
        equal(os.fstat(fd).st_size, 100_000)
        os.close(fd)

    @s.case("punch-hole")
    def _():
        fd = os.open(s.p("punch"), os.O_RDWR | os.O_CREAT)
        os.write(fd, b"p" * (1 << 20))
        fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 4096, 65536)
        equal(os.fstat(fd).st_size, 1 << 20)
        data = os.pread(fd, 80000, 0)
        check(data == b"p" * 4096 + bytes(65536) + b"p" * (80000 - 69632), "wrong bytes around the hole")
        os.close(fd)

    @s.case("fallocate-unsupported-modes-say-so")
    def _():
        fd = os.open(s.p("fz"), os.O_RDWR | os.O_CREAT)
        os.write(fd, b"z" * 8192)
        try:
            fallocate(fd, ZERO_RANGE, 0, 4096)
            equal(os.pread(fd, 8192, 0), bytes(4096) + b"z" * 4096)
        except OSError as e:
            equal(e.errno, errno.EOPNOTSUPP)
            equal(os.pread(fd, 8192, 0), b"z" * 8192)
        os.close(fd)

    @s.case("copy_file_range")
    def _():
        data = random.Random(2).randbytes(3_000_000)
        put(s.p("cfr1"), data)
        src, dst = os.open(s.p("cfr1"), os.O_RDONLY), os.open(s.p("cfr2"), os.O_RDWR | os.O_CREAT)
        done = 0
        while done < len(data):
            n = os.copy_file_range(src, dst, len(data) - done, done, done)
            check(n > 0, "copied nothing at", done)
            done += n
        equal(os.copy_file_range(src, dst, 100, len(data), 0), 0, "copying from the end")
        os.close(src), os.close(dst)
        check(open(s.p("cfr2"), "rb").read() == data, "the copy differs")

    @s.case("copy_file_range-after-unsynced-write")
    def _():
        src, dst = os.open(s.p("cu1"), os.O_RDWR | os.O_CREAT), os.open(s.p("cu2"), os.O_RDWR | os.O_CREAT)
        os.write(src, b"fresh" * 1000)
        os.write(dst, b"." * 6000)
        equal(os.copy_file_range(src, dst, 5000, 0, 500), 5000)
        equal(os.pread(dst, 6000, 0), b"." * 500 + b"fresh" * 1000 + b"." * 500)
        os.close(src), os.close(dst)

    @s.case("sendfile-and-splice")
    def _():
        data = random.Random(3).randbytes(500_000)
        put(s.p("sf1"), data)
        with open(s.p("sf1"), "rb") as a, open(s.p("sf2"), "wb") as b:
            at = 0
            while n := os.sendfile(b.fileno(), a.fileno(), at, 1 << 20):
                at += n
        equal(digest(s.p("sf2")), digest(s.p("sf1")))

    @s.case("o_direct")
    def _():
        import mmap
        fd = os.open(s.p("direct"), os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        buf = mmap.mmap(-1, 1 << 20)
        buf.write(random.Random(4).randbytes(1 << 20))
        equal(os.pwritev(fd, [buf], 0), 1 << 20)
        back = mmap.mmap(-1, 1 << 20)
        equal(os.preadv(fd, [back], 0), 1 << 20)
        check(back[:] == buf[:], "O_DIRECT read differs")
        check(open(s.p("direct"), "rb").read() == buf[:], "buffered read after O_DIRECT write differs")
        with open(s.p("direct"), "r+b") as f:
            f.write(b"buffered")
        equal(os.preadv(fd, [back], 0), 1 << 20)
        equal(back[:8], b"buffered", "O_DIRECT read after a buffered write")
        os.close(fd)

    @s.case("o_sync-and-dsync")
    def _():
        for flag in (os.O_SYNC, os.O_DSYNC):
            fd = os.open(s.p("sync"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flag)
            equal(os.write(fd, b"synced"), 6)
            equal(open(s.p("sync"), "rb").read(), b"synced")
            os.close(fd)

    @s.case("fsync-directory")
    def _():
        fd = os.open(s.dir, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(fd)
        os.close(fd)

    @s.case("write-through-two-descriptors")
    def _():
        a, b = os.open(s.p("two"), os.O_RDWR | os.O_CREAT), os.open(s.p("two"), os.O_RDWR)
        for i in range(50):
            os.pwrite(a, b"%05d" % i, i * 5)
            equal(os.pread(b, 5, i * 5), b"%05d" % i, "read through the other descriptor")
            equal(os.fstat(b).st_size, i * 5 + 5)
        os.close(a), os.close(b)

    @s.case("read-at-and-beyond-the-end")
    def _():
        put(s.p("eof"), b"12345")
        fd = os.open(s.p("eof"), os.O_RDONLY)
        equal(os.pread(fd, 10, 3), b"45")
        equal(os.pread(fd, 10, 5), b"")
        equal(os.pread(fd, 10, 1 << 40), b"")
        os.close(fd)
