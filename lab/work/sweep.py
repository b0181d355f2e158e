"""The cache-size sweep: its table, and whether it tells the truth.

    sweep.py table FILE.jsonl               a table of each profile, for bench/cache-sweep.md
    sweep.py check HITHER SWEEP OUT.jsonl   plays a small Zipf profile through a mount with a real disk cache, for each policy and
                                            some sizes, and beside it through the simulation (SWEEP: the example of hither-cache)

`check` needs root. It serves a directory with `hither serve` and mounts it; each read is of a whole file, its pages are dropped from
the kernel's cache after it, and the next waits until the cache has it on disk. Files are larger than those that the mount keeps in memory.
"""
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time

POLICIES = ("lru", "s3-fifo", "gdsf")
FILES, READS = 120, 900


def table(path):
    rows = [json.loads(line) for line in open(path)]
    for profile in dict.fromkeys(r["profile"] for r in rows):
        some = [r for r in rows if r["profile"] == profile]
        names = list(dict.fromkeys(r["policy"] for r in some))
        print(f"\n{profile}, {some[0]['reads']:,} reads: files found / bytes found / calls of 1 MiB\n")
        print("| cache | " + " | ".join(names) + " |")
        print("|---" * (len(names) + 1) + "|")
        for size in dict.fromkeys(r["cache_bytes"] for r in some):
            cells = {r["policy"]: r for r in some if r["cache_bytes"] == size}
            shown = f"{size / 1e9:g} GB" if size >= 1e8 else f"{size / 1e3:,.0f} KB"
            print(f"| {shown} | " + " | ".join(
                f"{cells[n]['hit_ratio']:.1%} / {cells[n]['byte_hit_ratio']:.1%} / {cells[n]['calls']:,}" for n in names) + " |")


def profile(rng):
    """Sizes linear from 80 KB to 400 KB; the file of rank n is read in proportion to n^-0.9."""
    sizes = [80_000 + i * 320_000 // FILES for i in range(FILES)]
    ranks = list(range(FILES))
    rng.shuffle(ranks)
    return sizes, rng.choices(ranks, [(n + 1) ** -0.9 for n in range(FILES)], k=READS)


class Mount:
    def __init__(self, hither, work, policy, size):
        self.hither, self.dir, self.cache = hither, f"{work}/mnt", f"{work}/cache-{policy}-{size}"
        options = f"vers=4.2,port={PORT},nocto,prefetch=off,cache={self.cache},cache-age=0,cache-min-free=0,fill=off," \
                  f"cache-size={size},cache-policy={policy}"
        subprocess.run([hither, "mount", "-o", options, "127.0.0.1:/", self.dir], check=True)

        device = os.stat(self.dir).st_dev
        self.socket = f"/run/hither/{os.major(device)}:{os.minor(device)}.sock"

    def status(self):
        """What `hither stat --json` tells, without the program: it is asked thousands of times."""
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(self.socket)
            s.sendall(b'{"version":1,"ask":"stat"}\n')
            answer = json.loads(s.makefile().readline())["answer"]
            received = sum(c["bytes_received"] for c in answer["connections"])
            return answer["layers"]["disk"] | {"received": received}

    def read(self, name):
        with open(f"{self.dir}/{name}", "rb", buffering=0) as f:
            while f.read(1 << 20):
                pass
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def end(self):
        subprocess.run([self.hither, "umount", self.dir], check=True)
        shutil.rmtree(self.cache)


PORT = 20490
BLOCK = 64 << 10


def measure(hither, work, policy, size, sizes, reads):
    mount = Mount(hither, work, policy, size)
    try:
        hits, fetched = 0, 0
        for number in reads:
            before = mount.status()["received"]
            mount.read(f"f{number}")
            # What came, as the connection counts it. Without a block of the file it was attributes only.
            came = mount.status()["received"] - before
            if came < BLOCK // 8:
                hits += 1
                continue
            fetched += came
            quiet = time.monotonic()
            while mount.status()["queue_bytes"] or time.monotonic() - quiet < 0.02:
                pass
        return {"hits": hits, "fetched_bytes": fetched, "evictions": mount.status()["evictions"]}
    finally:
        mount.end()


def check(hither, sweep, out):
    rng = random.Random(5)
    sizes, reads = profile(rng)
    work = tempfile.mkdtemp(prefix="hither-sweep-")
    for sub in ("export", "mnt"):
        os.mkdir(f"{work}/{sub}")
    for i, size in enumerate(sizes):
        with open(f"{work}/export/f{i}", "wb") as f:
            f.write(rng.randbytes(size))
    with open(f"{work}/trace", "w") as f:
        f.writelines(f"f{n} {sizes[n]}\n" for n in reads)
    server = subprocess.Popen([hither, "serve", "--listen", f"127.0.0.1:{PORT}", "--state-dir", f"{work}/state", f"{work}/export"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(1)
    try:
        with open(out, "w") as results:
            for size in (4 << 20, 8 << 20, 16 << 20):
                for policy in POLICIES:
                    told = json.loads(subprocess.run([sweep, f"{work}/trace", policy, str(size)], check=True,
                                                     capture_output=True).stdout)
                    real = measure(hither, work, policy, size, sizes, reads)
                    line = {"cache_bytes": size, "policy": policy, "reads": READS,
                            "simulated": {k: told[k] for k in ("hits", "fetched_bytes", "evictions")}, "mount": real}
                    print(json.dumps(line), file=results, flush=True)
                    print(json.dumps(line), flush=True)
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(work)


if __name__ == "__main__":
    if sys.argv[1:2] == ["table"]:
        table(sys.argv[2])
    elif sys.argv[1:2] == ["check"]:
        check(*sys.argv[2:5])
    else:
        sys.exit(__doc__)
