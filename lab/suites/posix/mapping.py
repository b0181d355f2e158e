"""mmap, shared and private, alone and beside read and write."""
import mmap, os, random
from kit import check, equal
from util import children, put


def cases(s):
    @s.case("mmap-read")
    def _():
        data = random.Random(1).randbytes(1_000_001)
        put(s.p("mr"), data)
        with open(s.p("mr"), "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
            check(m[:] == data, "mapped bytes differ")

    @s.case("mmap-shared-write-reaches-read")
    def _():
        put(s.p("ms"), bytes(100_000))
        with open(s.p("ms"), "r+b", buffering=0) as f, mmap.mmap(f.fileno(), 0) as m:
            m[50_000:50_005] = b"hello"
            equal(os.pread(f.fileno(), 5, 50_000), b"hello", "read sees the mapping")
            os.pwrite(f.fileno(), b"write", 70_000)
            equal(m[70_000:70_005], b"write", "the mapping sees the write")
            m.flush()
        equal(open(s.p("ms"), "rb").read()[50_000:50_005], b"hello", "after msync and reopening")

    @s.case("mmap-shared-without-msync-is-written-at-close")
    def _():
        put(s.p("mc"), bytes(8192))
        with open(s.p("mc"), "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
            m[4096:4100] = b"late"
        fd = os.open(s.p("mc"), os.O_RDONLY)
        os.fsync(fd)
        equal(os.pread(fd, 4, 4096), b"late")
        os.close(fd)

    @s.case("mmap-private-is-private")
    def _():
        put(s.p("mp"), b"o" * 8192)
        with open(s.p("mp"), "r+b") as f, mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE) as m:
            m[:4] = b"mine"
            equal(m[:5], b"mineo")
        equal(open(s.p("mp"), "rb").read(4), b"oooo")

    @s.case("mmap-after-truncate-up")
    def _():
        put(s.p("mt"), b"a" * 100)
        with open(s.p("mt"), "r+b") as f:
            os.ftruncate(f.fileno(), 10_000)
            with mmap.mmap(f.fileno(), 0) as m:
                equal(m[99:102], b"a\0\0")
                m[9_999] = 0x7a
                m.flush()
        equal(open(s.p("mt"), "rb").read()[9_990:], b"\0" * 9 + b"z")

    @s.case("mmap-shared-between-processes")
    def _():
        n = s.pick(200, 2000)
        put(s.p("m2"), bytes(16 * 4096))

        def one(k):
            with open(s.p("m2"), "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
                for i in range(n):
                    at = (i * 7919 % 8000) * 8 + k * 4
                    m[at:at + 4] = i.to_bytes(4, "little")
                m.flush()
        children([lambda: one(0), lambda: one(1)])
        data = open(s.p("m2"), "rb").read()
        want = bytearray(16 * 4096)
        for k in (0, 1):
            for i in range(n):
                at = (i * 7919 % 8000) * 8 + k * 4
                want[at:at + 4] = i.to_bytes(4, "little")
        check(data == want, "lost stores")

    @s.case("mmap-executable")
    def _():
        import shutil, subprocess
        shutil.copy("/bin/true", s.p("true"))
        os.chmod(s.p("true"), 0o755)
        equal(subprocess.run([s.p("true")]).returncode, 0, "a program on the mount")
