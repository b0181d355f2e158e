"""Small helpers of the POSIX cases."""
import errno, os, sys, traceback
from kit import check, equal


def put(path, data=b""):
    with open(path, "wb") as f:
        f.write(data)


def fails(call, *errnos):
    """The call must fail, with one of these."""
    try:
        call()
    except OSError as e:
        names = [errno.errorcode[n] for n in errnos]
        check(e.errno in errnos, "failed with", errno.errorcode.get(e.errno, e.errno), "instead of", *names)
        return
    raise AssertionError("succeeded instead of failing with " + " ".join(errno.errorcode[n] for n in errnos))


def children(bodies):
    """Runs each in a process of its own at the same time; all must succeed."""
    pids = [fork(b) for b in bodies]
    codes = [os.waitpid(p, 0)[1] for p in pids]
    equal(codes, [0] * len(codes), "exit of the processes")


def fork(body):
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        body()
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
    os._exit(code)


def as_user(uid, gid, groups, body):
    """Runs it in a process with that identity; its result must not be an exception."""
    def inner():
        os.setgroups(groups)
        os.setgid(gid)
        os.setuid(uid)
        body()
    children([inner])
