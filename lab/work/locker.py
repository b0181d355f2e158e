#!/usr/bin/python3
"""Locks for the scenario `locks`.

  locker.py hold FILE    takes an exclusive lock of bytes 100 to 199, says "held", writes under it
                         once a second, and releases it when the file `release` appears beside FILE
  locker.py check FILE   the lock is held by somebody on this client
  locker.py steal FILE   must not get it: 0 when refused, 7 when it did get it
  locker.py take FILE    waits until it gets it
"""
import errno, fcntl, os, struct, sys, time

verb, path = sys.argv[1:3]


def lock(fd, kind):
    fcntl.lockf(fd, kind, 100, 100)


if verb == "hold":
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    os.write(fd, b"x" * 300)
    lock(fd, fcntl.LOCK_EX)
    print("held", flush=True)
    n = 0
    while not os.path.exists(os.path.join(os.path.dirname(path), "release")):
        n += 1
        os.pwrite(fd, b"%08d" % n, 120)
        os.fsync(fd)
        time.sleep(1)
    assert os.pread(fd, 8, 120) == b"%08d" % n, "somebody wrote into the locked range"
    lock(fd, fcntl.LOCK_UN)
    print("released after", n, "writes")
elif verb == "check":
    fd = os.open(path, os.O_RDWR)
    ask = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 150, 1, 0)
    kind = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, ask))[0]
    assert kind == fcntl.F_WRLCK, f"nobody holds the lock any more ({kind})"
    print("the lock is still held")
elif verb == "steal":
    fd = os.open(path, os.O_RDWR)
    try:
        lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        print("refused:", errno.errorcode.get(e.errno, e.errno))
        sys.exit(0 if e.errno in (errno.EAGAIN, errno.EACCES) else 1)
    print("stolen")
    sys.exit(7)
elif verb == "take":
    fd = os.open(path, os.O_RDWR)
    lock(fd, fcntl.LOCK_EX)
    print("taken")
else:
    sys.exit(__doc__)
