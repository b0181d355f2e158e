#!/usr/bin/python3
"""Reads through a mount with a cache, and changes files through it and through another mount of the same server.

  power.py work CACHED OTHER N      until it is killed; makes the files first if there are none. N is the seed
  power.py verify CACHED OTHER N    reads everything through both, which must be the same
"""
import os, random, sys

FILES = 40


def path(where, n):
    return f"{where}/d{n % 4}/f{n}"


def contents(rng):
    return rng.randbytes(rng.choice([100, 5_000, 70_000, 400_000, 1_500_000]) - rng.randrange(100))


def make(where, rng):
    for d in range(4):
        os.makedirs(f"{where}/d{d}", exist_ok=True)
    for n in range(FILES):
        with open(path(where, n), "wb") as f:
            f.write(contents(rng))
    open(f"{where}/made", "w").close()


def read(where, n, at=0, most=-1):
    with open(path(where, n), "rb", buffering=0) as f:
        if most < 0:
            return f.read()
        return os.pread(f.fileno(), most, at)


def same(n, got, want, what):
    if got != want:
        first = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        sys.exit(f"WRONG f{n} {what}: {len(got)} bytes, want {len(want)}, first difference at {first}")


def work(cached, other, seed):
    rng = random.Random(seed)
    if not os.path.exists(f"{other}/made"):
        make(other, rng)
    truth = [read(other, n) for n in range(FILES)]
    print("working", flush=True)
    while True:
        n, what = rng.randrange(FILES), rng.randrange(12)
        if what < 2 and n % 3:
            # What changes all the time is never kept for long enough to be found after a cut.
            continue
        if what == 0:
            truth[n] = contents(rng)
            with open(path(rng.choice([cached, other]), n), "wb") as f:
                f.write(truth[n])
        elif what == 1 and truth[n]:
            at, data = rng.randrange(len(truth[n])), rng.randbytes(rng.choice([10, 5000]))
            with open(path(rng.choice([cached, other]), n), "r+b", buffering=0) as f:
                os.pwrite(f.fileno(), data, at)
            old = truth[n]
            truth[n] = old[:at] + data + old[at + len(data):]
        elif what < 8:
            same(n, read(cached, n), truth[n], "whole")
        else:
            at = rng.randrange(len(truth[n]) + 1)
            same(n, read(cached, n, at, 50_000), truth[n][at:at + 50_000], f"at {at}")


def verify(cached, other):
    total = 0
    for n in range(FILES):
        want = read(other, n)
        same(n, read(cached, n), want, "after the cut")
        total += len(want)
    print(f"{FILES} files, {total} bytes are the same")


if sys.argv[1] == "work":
    work(sys.argv[2], sys.argv[3], int(sys.argv[4]))
else:
    verify(sys.argv[2], sys.argv[3])
