#!/usr/bin/python3
"""Writes until the server's disk is full, waits until there is space again, and goes on.

  full.py fill DIR LOG GO      prints "waiting" when the disk is full, and goes on when the file GO exists; LOG (on a local
                               disk) gets a line for everything that the file system acknowledged as stable
  full.py verify DIR LOG       everything acknowledged must be there

Each way of writing must say ENOSPC, and nothing but that: fsync after write, close after write, O_DSYNC write. What was
acknowledged before stays readable while the disk is full. Afterwards the same descriptors work again.
"""
import errno, hashlib, os, random, sys, time

CHUNK = 256 << 10
MOST = 128 << 20        # far more than the scenario leaves free


def chunk(which, number):
    return random.Random(which << 32 | number).randbytes(CHUNK)


def write_all(fd, data):
    """As a program does that knows of short writes."""
    while data:
        data = data[os.write(fd, data):]


def until_full(steps):
    """Runs steps until one says ENOSPC; its name. Another error is a failure, and so is none at all."""
    for name, step in steps:
        try:
            step()
        except OSError as e:
            if e.errno != errno.ENOSPC:
                sys.exit(f"{name} fails with {errno.errorcode.get(e.errno, e.errno)}, not with ENOSPC")
            return name
    sys.exit("no call says that the disk is full")


class Synced:
    """A file of chunks, each followed by fsync."""

    def __init__(self, where, log):
        self.fd = os.open(f"{where}/synced", os.O_RDWR | os.O_CREAT, 0o644)
        self.log, self.done = log, 0

    def write(self):
        os.lseek(self.fd, self.done * CHUNK, os.SEEK_SET)
        write_all(self.fd, chunk(0, self.done))

    def sync(self):
        os.fsync(self.fd)
        self.done += 1
        self.log.write(f"synced {self.done}\n")

    def intact(self):
        for i in range(self.done):
            if os.pread(self.fd, CHUNK, i * CHUNK) != chunk(0, i):
                sys.exit(f"chunk {i} of {self.done} was acknowledged and is not there while the disk is full")


def unsynced(where, name, log, bytes_most):
    """A file written without fsync: close has the last word, and it is told once."""
    fd = os.open(f"{where}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    digest, left = hashlib.sha256(), bytes_most
    try:
        while left > 0:
            data = chunk(1, left)
            write_all(fd, data)
            digest.update(data)
            left -= CHUNK
    except OSError:
        # The error was told; what close says now is another matter.
        try:
            os.close(fd)
        except OSError:
            pass
        raise
    os.close(fd)
    log.write(f"closed {name} {digest.hexdigest()}\n")


def direct(where, name, log, bytes_most):
    """Each write is stable when it returns."""
    fd = os.open(f"{where}/{name}", os.O_WRONLY | os.O_CREAT | os.O_DSYNC, 0o644)
    try:
        digest = hashlib.sha256()
        for i in range(bytes_most // CHUNK):
            write_all(fd, chunk(2, i))
            digest.update(chunk(2, i))
        log.write(f"closed {name} {digest.hexdigest()}\n")
    finally:
        os.close(fd)


def fill(where, log_name, go):
    log = open(log_name, "a", buffering=1)
    s = Synced(where, log)
    every = [step for _ in range(MOST // CHUNK) for step in (("write", s.write), ("fsync", s.sync))]
    print(f"full: {until_full(every)} after {s.done} chunks", flush=True)
    s.intact()
    full = ("write or close", lambda: unsynced(where, "unsynced", log, 16 << 20))
    print(f"full: {until_full([full])} of a file that was not synced", flush=True)
    print(f"full: {until_full([('O_DSYNC write', lambda: direct(where, 'direct', log, 16 << 20))])}", flush=True)
    s.intact()
    print("waiting", flush=True)
    while not os.path.exists(go):
        time.sleep(0.2)
    # The first fsync may still tell of what the descriptor lost before; it was written again or cut off since.
    os.ftruncate(s.fd, s.done * CHUNK)
    for _ in range(4):
        s.write()
        s.sync()
    try:
        unsynced(where, "unsynced", log, 1 << 20)
    except OSError as e:
        # The error of a file that nobody has open any more, which write has told already.
        print(f"again: {e}", flush=True)
        unsynced(where, "unsynced", log, 1 << 20)
    os.unlink(f"{where}/direct")
    direct(where, "direct", log, 1 << 20)
    os.mkdir(f"{where}/directory")
    s.intact()
    os.close(s.fd)
    print(f"done {s.done} chunks", flush=True)


def verify(where, log_name):
    last = {}
    for line in open(log_name):
        w = line.split()
        last[w[1] if w[0] == "closed" else "synced"] = w[-1]
    bad = []
    with open(f"{where}/synced", "rb") as f:
        for i in range(int(last.pop("synced", 0))):
            if f.read(CHUNK) != chunk(0, i):
                bad.append(f"chunk {i}")
    for name, digest in last.items():
        if hashlib.sha256(open(f"{where}/{name}", "rb").read()).hexdigest() != digest:
            bad.append(name)
    for b in bad[:20]:
        print("LOST", b)
    print(f"verified: {len(bad)} lost")
    sys.exit(1 if bad or len(last) != 2 else 0)


if sys.argv[1] == "fill":
    fill(*sys.argv[2:5])
else:
    verify(*sys.argv[2:4])
