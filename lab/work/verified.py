#!/usr/bin/python3
"""A write workload that can be verified: every record carries its number and a checksum.

  verified.py write DIR LOG STOP [volatile]
                                    until the file STOP exists; LOG gets a line, on a local disk, for
                                    everything that the file system acknowledged as stable
  verified.py verify DIR LOG        everything acknowledged must be there, and nothing torn before it

Three kinds of promises: records appended to a file and then fsync'd; records overwritten in place
through O_DSYNC; small files that were written, fsync'd and renamed to their final name. The writer
never excuses an error: a hard mount may wait, but it may not fail. One thing is the server's: when it is killed
between making a file and giving it its times, which nfs-ganesha does in two steps, nobody can tell afterwards whose
the file is, and an exclusive creation says that it exists (see `create`). With `volatile` another thing is, too: an NFSv3 server
remembers its replies in memory, and one that is killed after a rename and before its reply finds the old name gone when it is
asked again (see `move`).
"""
import hashlib, os, random, struct, sys, time

HEAD = struct.Struct("<8sQQI32s")        # magic, file, number, length, sha256 of the rest
MAGIC = b"VERIFIED"
SLOT = 8192                              # overwritten in place


def body(which, number, length):
    return random.Random(which << 40 | number).randbytes(length)


def record(which, number, length):
    data = body(which, number, length)
    tail = struct.pack("<QQI", which, number, length) + data
    return HEAD.pack(MAGIC, which, number, length, hashlib.sha256(tail).digest()) + data


def parse(buf, at):
    """(file, number, end) of the record there, or None."""
    if len(buf) - at < HEAD.size:
        return None
    magic, which, number, length, digest = HEAD.unpack_from(buf, at)
    data = buf[at + HEAD.size:at + HEAD.size + length]
    if magic != MAGIC or len(data) != length:
        return None
    if hashlib.sha256(struct.pack("<QQI", which, number, length) + data).digest() != digest:
        return None
    return which, number, at + HEAD.size + length


def create(name):
    """A new file. One that is there already is taken only when it is what a server leaves that was killed while it
    made it for us: empty, and with no times but those of its making (what we make gets an access time of its own)."""
    try:
        return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        st = os.stat(name)
        if st.st_size or len({st.st_atime_ns, st.st_mtime_ns, st.st_ctime_ns}) != 1:
            raise
        print(f"half made by a server that was killed: {name}", flush=True)
        return os.open(name, os.O_WRONLY)


def move(old, new, volatile):
    """A rename. With a volatile memory of replies, `no such file` is believed of a rename that was done: the new name leads to
    the very file."""
    before = os.stat(old)
    try:
        os.rename(old, new)
    except FileNotFoundError:
        if not volatile or os.path.exists(old) or os.stat(new).st_ino != before.st_ino:
            raise
        print(f"renamed by a server that was killed: {new}", flush=True)


def write(where, log_name, stop, *words):
    rng, n, count = random.Random(os.getpid()), 0, [0, 0, 0]
    log = open(log_name, "a", buffering=1)
    slowest = 0.0
    files = [os.open(f"{where}/append{i}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) for i in (0, 1)]
    slots = os.open(f"{where}/slots", os.O_RDWR | os.O_CREAT | os.O_DSYNC, 0o644)
    print("writing", flush=True)
    while not os.path.exists(stop):
        n += 1
        begun = time.monotonic()
        for i, fd in enumerate(files):
            for _ in range(rng.randint(1, 4)):
                rec = record(i, count[i] + 1, rng.choice([10, 700, 4096, 20000, 150000]))
                done = os.write(fd, rec)
                assert done == len(rec), ("short write", done, len(rec))
                count[i] += 1
            os.fsync(fd)
            log.write(f"append {i} {count[i]}\n")
        slot = rng.randrange(64)
        rec = record(2, n, 3000).ljust(SLOT, b"\0")
        log.write(f"before {slot} {n}\n")
        assert os.pwrite(slots, rec, slot * SLOT) == SLOT
        log.write(f"slot {slot} {n}\n")
        name = f"{where}/file{n:06d}"
        fd = create(name + ".part")
        os.write(fd, record(3, n, rng.choice([1, 900, 30000])))
        os.fsync(fd)
        os.close(fd)
        move(name + ".part", name, "volatile" in words)
        log.write(f"file {n}\n")
        slowest = max(slowest, time.monotonic() - begun)
        if n % 20 == 0:
            print(f"round {n}", flush=True)
    for fd in files + [slots]:
        os.close(fd)
    print(f"done {n} rounds, slowest {slowest:.1f} s", flush=True)


def verify(where, log_name):
    appended, slot_done, slot_begun, files = {0: 0, 1: 0}, {}, {}, []
    for line in open(log_name):
        w = line.split()
        if w[0] == "append":
            appended[int(w[1])] = int(w[2])
        elif w[0] == "slot":
            slot_done[int(w[1])] = int(w[2])
        elif w[0] == "before":
            slot_begun[int(w[1])] = int(w[2])
        elif w[0] == "file":
            files.append(int(w[1]))
    bad = []
    for i, want in appended.items():
        buf, at, n = open(f"{where}/append{i}", "rb").read(), 0, 0
        while (r := parse(buf, at)) and r[:2] == (i, n + 1):
            n, at = r[1], r[2]
        if n < want:
            bad.append(f"append{i}: {want} records were acknowledged, {n} are intact (byte {at} of {len(buf)})")
    buf = open(f"{where}/slots", "rb").read()
    for slot, n in slot_done.items():
        r = parse(buf, slot * SLOT)
        if not r or r[1] not in (n, slot_begun[slot]):
            bad.append(f"slot {slot}: record {n} was acknowledged, there is {r and r[1]}")
    for n in files:
        try:
            r = parse(open(f"{where}/file{n:06d}", "rb").read(), 0)
        except OSError as e:
            r = e
        if not isinstance(r, tuple) or r[:2] != (3, n):
            bad.append(f"file{n:06d}: acknowledged, but {r}")
    for b in bad[:20]:
        print("LOST", b)
    print(f"verified {sum(appended.values())} records, {len(slot_done)} slots, {len(files)} files: {len(bad)} lost")
    if not files or bad:
        sys.exit(1)


if sys.argv[1] == "write":
    write(*sys.argv[2:6])
else:
    verify(*sys.argv[2:4])
