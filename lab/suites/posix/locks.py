"""flock and fcntl locks between two processes on one client."""
import errno, fcntl, os, struct, time
from kit import check, equal
from util import children, fails, fork, put


def setlk(fd, kind, start, length, wait=False):
    fcntl.lockf(fd, kind if wait else kind | (0 if kind == fcntl.LOCK_UN else fcntl.LOCK_NB), length, start)


def getlk(fd, kind, start, length):
    """Who holds a conflicting lock: (type, start, length), or None."""
    ask = struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)
    t, _, at, n, _ = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, ask))
    return None if t == fcntl.F_UNLCK else (t, at, n)


def cases(s):
    @s.case("fcntl-exclusive-and-ranges")
    def _():
        def other(fd):
            fails(lambda: setlk(fd, fcntl.LOCK_EX, 10, 10), errno.EAGAIN, errno.EACCES)
            fails(lambda: setlk(fd, fcntl.LOCK_SH, 19, 1), errno.EAGAIN, errno.EACCES)
            setlk(fd, fcntl.LOCK_EX, 20, 10)
            setlk(fd, fcntl.LOCK_EX, 0, 10)

        def mine(fd, turn):
            setlk(fd, fcntl.LOCK_EX, 10, 10)
            turn()
        two(s.p("l1"), mine, other)

    @s.case("fcntl-shared")
    def _():
        def other(fd):
            setlk(fd, fcntl.LOCK_SH, 0, 0)
            fails(lambda: setlk(fd, fcntl.LOCK_EX, 0, 0), errno.EAGAIN, errno.EACCES)

        def mine(fd, turn):
            setlk(fd, fcntl.LOCK_SH, 0, 0)
            turn()
        two(s.p("l2"), mine, other)

    @s.case("fcntl-getlk")
    def _():
        def other(fd):
            equal(getlk(fd, fcntl.F_WRLCK, 0, 0), (fcntl.F_WRLCK, 100, 50), "the conflicting lock")
            equal(getlk(fd, fcntl.F_WRLCK, 0, 50), None, "a range that is free")

        def mine(fd, turn):
            setlk(fd, fcntl.LOCK_EX, 100, 50)
            turn()
        two(s.p("l3"), mine, other)

    @s.case("fcntl-split-and-unlock")
    def _():
        def other(fd):
            setlk(fd, fcntl.LOCK_EX, 40, 20)
            fails(lambda: setlk(fd, fcntl.LOCK_EX, 0, 40), errno.EAGAIN, errno.EACCES)
            fails(lambda: setlk(fd, fcntl.LOCK_EX, 60, 40), errno.EAGAIN, errno.EACCES)

        def mine(fd, turn):
            setlk(fd, fcntl.LOCK_EX, 0, 100)
            setlk(fd, fcntl.LOCK_UN, 40, 20)
            turn()
        two(s.p("l4"), mine, other)

    @s.case("fcntl-close-releases")
    def _():
        put(s.p("l5"))
        a, again = os.open(s.p("l5"), os.O_RDWR), os.open(s.p("l5"), os.O_RDWR)
        setlk(a, fcntl.LOCK_EX, 0, 0)
        os.close(again)             # POSIX: closing ANY descriptor drops the process's locks

        def other():
            fd = os.open(s.p("l5"), os.O_RDWR)
            setlk(fd, fcntl.LOCK_EX, 0, 0)
        children([other])
        os.close(a)

    @s.case("fcntl-waits-until-released")
    def _():
        waits(s.p("l6"), lambda fd, wait: setlk(fd, fcntl.LOCK_EX, 0, 0, wait), lambda fd: setlk(fd, fcntl.LOCK_UN, 0, 0))

    @s.case("fcntl-released-by-exit")
    def _():
        put(s.p("l7"))
        children([lambda: setlk(os.open(s.p("l7"), os.O_RDWR), fcntl.LOCK_EX, 0, 0)])
        fd = os.open(s.p("l7"), os.O_RDWR)
        setlk(fd, fcntl.LOCK_EX, 0, 0)
        os.close(fd)

    @s.case("ofd-locks")
    def _():
        put(s.p("l8"))
        a, b = os.open(s.p("l8"), os.O_RDWR), os.open(s.p("l8"), os.O_RDWR)
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(a, 37, lock)    # F_OFD_SETLK
        fails(lambda: fcntl.fcntl(b, 37, lock), errno.EAGAIN, errno.EACCES)
        os.close(a)
        fcntl.fcntl(b, 37, lock)
        os.close(b)

    @s.case("flock-exclusive")
    def _():
        def other(fd):
            fails(lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB), errno.EAGAIN)
            fails(lambda: fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB), errno.EAGAIN)

        def mine(fd, turn):
            fcntl.flock(fd, fcntl.LOCK_EX)
            turn()
        two(s.p("l9"), mine, other)

    @s.case("flock-shared-upgrade-downgrade")
    def _():
        def other(fd):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fails(lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB), errno.EAGAIN)

        def mine(fd, turn):
            fcntl.flock(fd, fcntl.LOCK_EX)
            fcntl.flock(fd, fcntl.LOCK_SH)
            turn()
        two(s.p("l10"), mine, other)

    @s.case("flock-waits-until-released")
    def _():
        waits(s.p("l11"), lambda fd, wait: fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)),
              lambda fd: fcntl.flock(fd, fcntl.LOCK_UN))

    @s.case("lock-count-under-contention")
    def _():
        # Four processes add to one number in a file, each addition under a lock.
        n = s.pick(20, 100)
        put(s.p("l12"), b"0")

        def one():
            for _ in range(n):
                fd = os.open(s.p("l12"), os.O_RDWR)
                setlk(fd, fcntl.LOCK_EX, 0, 0, wait=True)
                v = int(os.pread(fd, 20, 0))
                os.pwrite(fd, b"%d" % (v + 1), 0)
                os.close(fd)
        children([one] * 4)
        equal(open(s.p("l12")).read(), str(4 * n), "sum")


def two(path, mine, other):
    """mine(fd, turn) takes its locks and calls turn(), in which other(fd) runs in another process."""
    put(path, b"lock me")
    fd = os.open(path, os.O_RDWR)
    try:
        mine(fd, lambda: children([lambda: other(os.open(path, os.O_RDWR))]))
    finally:
        os.close(fd)


def waits(path, lock, unlock):
    """A blocked locker gets the lock soon after it is released, and not before."""
    put(path)
    fd, done = os.open(path, os.O_RDWR), os.pipe()
    lock(fd, False)

    def other():
        mine = os.open(path, os.O_RDWR)
        lock(mine, True)
        os.write(done[1], b"x")
    pid = fork(other)
    os.set_blocking(done[0], False)
    time.sleep(0.5)
    try:
        check(os.read(done[0], 1) == b"", "the lock was granted twice")
    except BlockingIOError:
        pass
    unlock(fd)
    end = time.monotonic() + 40
    got = b""
    while not got and time.monotonic() < end:
        try:
            got = os.read(done[0], 1)
        except BlockingIOError:
            time.sleep(0.05)
    if not got:
        os.kill(pid, 9)
    os.waitpid(pid, 0), os.close(fd), os.close(done[0]), os.close(done[1])
    check(got, "a waiting locker was not woken for 40 s")
