#!/usr/bin/python3
"""Many mounts of one server at a time.

  clients.py mab     HITHER OPTIONS SOURCE --clients N [--rtt MS] --label JSON     the Modified Andrew Benchmark on each;
                     with --cpu PERCENT of one processor, --memory MIB, for all that is on the clients' side, their mounts included;
                     --delays FILE: of an emulated disk, which is slow only in the phases
  clients.py recall  HITHER OPTIONS SOURCE [--rtt MS] --label JSON                 what a conflicting open waits for
  clients.py restart HITHER OPTIONS SOURCE --clients N --kill CMD --start CMD [--rate N] --label JSON     the server dies under delayed writes

HITHER is the program, or `kernel`: then the kernel's client mounts. Run inside the laboratory (`hither-lab exec`), or in its guest. Prints JSON lines.
Of `mab` one for each phase: clients begin a phase together; `secs` is the median of the times that clients took, `least` and `most` beside it and `sd`
their standard deviation, `cpu` the seconds of processor time that the programs and mounts of all took, and `rpc` what passed the relay. `restart` tells how
far it is on standard error. """
import argparse, hashlib, json, multiprocessing as mp, os, random, shutil, statistics, subprocess, sys, threading, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import limits, measure, workloads

a = argparse.ArgumentParser()
a.add_argument("verb", choices=["mab", "recall", "restart"])
for k in ("hither", "options", "source"):
    a.add_argument(k)
a.add_argument("--clients", type=int, default=1)
a.add_argument("--rtt", type=float, default=0)
a.add_argument("--cpu", type=int, default=0), a.add_argument("--memory", type=int, default=0), a.add_argument("--delays")
a.add_argument("--files", type=int, default=8)
a.add_argument("--bytes", type=int, default=256 << 10)
a.add_argument("--kill"), a.add_argument("--start"), a.add_argument("--rate", type=int, default=0)
a.add_argument("--relay", default="10.98.0.1:7777")
a.add_argument("--label", type=json.loads, default={})
o = a.parse_args()
relay = measure.Relay(o.relay)
# Several measurements may run beside each other.
TMP = f"/tmp/hither-clients.{os.getpid()}"
places = [f"/mnt/c{k}" for k in range(o.clients)]


def mounted(point, options=o.options):
    os.makedirs(point, exist_ok=True)
    program = ["mount", "-t", "nfs"] if o.hither == "kernel" else [o.hither, "mount"]
    measure.sh([*program, "-o", options, o.source, point], timeout=120)


def unmounted(point):
    for _ in range(50):
        measure.sh(["umount", point] if o.hither == "kernel" else [o.hither, "umount", point], check=False, timeout=300)
        if not os.path.ismount(point):
            return
        time.sleep(0.1)
    sys.exit(f"{point} stays mounted")


def emit(**what):
    print(json.dumps({**o.label, "clients": o.clients, "rtt": o.rtt, **what}), flush=True)


# ---------------------------------------------------------------- the Modified Andrew Benchmark
PHASES = ["1.mkdir", "2.copy", "3.stat", "4.grep", "5.compile"]


def phases(point, k):
    src, work, dirs = f"{point}/src", f"{point}/work{k}", [f"dir{i:02d}" for i in range(5)]

    def mkdir():
        os.mkdir(work)
        for d in dirs:
            os.mkdir(f"{work}/{d}")

    def copy():
        for d in dirs:
            subprocess.run(f"cp {src}/{d}/* {work}/{d}/", shell=True, check=True)

    yield from (mkdir, copy, lambda: workloads.sh(["ls", "-lR", work]),
                lambda: workloads.sh(["grep", "-r", "no-such-string-anywhere", work], check=False),
                lambda: workloads.build(work, dirs, "libmab.a"))


def client(k, gate, times):
    os.environ["LAB_TMP"] = os.environ["TMPDIR"] = f"{TMP}.{k}"
    os.makedirs(os.environ["TMPDIR"], exist_ok=True)
    for n, phase in enumerate(phases(places[k], k)):
        gate.wait(900)
        t = time.monotonic()
        phase()
        times[k * len(PHASES) + n] = time.monotonic() - t
        gate.wait(900)


def head(state):
    if o.delays:
        limits.put(o.delays, state)


def mab():
    mounted(places[0])
    relay.cmd("rtt 0")
    for k in range(o.clients):
        shutil.rmtree(f"{places[0]}/work{k}", ignore_errors=True)
    if not os.path.exists(f"{places[0]}/src"):
        workloads.source_tree(f"{places[0]}/src", 5, 40, 20, 10, 3)
    unmounted(places[0])
    relay.cmd(f"rtt {o.rtt}")
    group = limits.Group(o.cpu, o.memory)
    for p in places:
        mounted(p)
    gate, times = mp.Barrier(o.clients + 1), mp.Array("d", o.clients * len(PHASES))
    work = [mp.Process(target=client, args=(k, gate, times)) for k in range(o.clients)]
    for w in work:
        w.start()
    head("on")
    for n, phase in enumerate(PHASES):
        before, used = relay.snap(), group.used()
        gate.wait(900)
        gate.wait(900)
        cpu = None if used is None else group.used() - used
        time.sleep(0.3 + 4 * o.rtt / 1e3)
        took = [times[k * len(PHASES) + n] for k in range(o.clients)]
        emit(workload="mab-clients", phase=phase, secs=statistics.median(took), least=min(took), most=max(took), sd=statistics.pstdev(took),
             cpu=cpu, share=o.cpu, memory=o.memory, rpc=measure.delta(before, relay.snap()))
    head("off")
    for w in work:
        w.join()
        if w.exitcode:
            sys.exit(f"a client failed: {w.exitcode}")
    relay.cmd("rtt 0")
    for k, p in enumerate(places):
        shutil.rmtree(f"{p}/work{k}")
        unmounted(p)
        shutil.rmtree(f"{TMP}.{k}", ignore_errors=True)
    group.leave()


# ---------------------------------------------------------------- recalls
def recall():
    a, b = "/mnt/a", "/mnt/b"
    files = [f"f{n}" for n in range(o.files)]
    relay.cmd("rtt 0")
    mounted(a)
    shutil.rmtree(f"{a}/recall", ignore_errors=True)
    for kind in ("nobody", "reader", "writer"):
        os.makedirs(f"{a}/recall/{kind}")
        for f in files:
            workloads.write(f"{a}/recall/{kind}/{f}", b"x" * 4096)
    # Nobody holds anything of what was written.
    unmounted(a)
    relay.cmd(f"rtt {o.rtt}")
    mounted(a), mounted(b)
    for p in (a, b):
        for kind in ("nobody", "reader", "writer"):
            os.listdir(f"{p}/recall/{kind}")
    # The first opens of a mount show that it can be called.
    for p in (a, b):
        workloads.write(f"{p}/recall/first", b"x")
        time.sleep(0.3)

    def timed(call):
        t = time.monotonic()
        result = call()
        return time.monotonic() - t, result

    def change(path):
        opened, fd = timed(lambda: os.open(path, os.O_WRONLY))
        rest, _ = timed(lambda: (os.pwrite(fd, b"y" * 4096, 0), os.close(fd)))
        return opened, opened + rest

    def look(path):
        with open(path, "rb", buffering=0) as f:
            return f.read()

    def result(phase, times, before):
        times = sorted(times)
        emit(workload="recall", phase=phase, n=len(times), secs=statistics.median(times), p99=times[min(len(times) - 1, len(times) * 99 // 100)],
             most=times[-1], rpc=measure.delta(before, relay.snap()))

    for kind, phase in (("nobody", "that nobody holds"), ("reader", "that another client has read")):
        before, all = relay.snap(), []
        for f in files:
            if kind == "reader":
                look(f"{a}/recall/{kind}/{f}")
            all.append(change(f"{b}/recall/{kind}/{f}"))
        result(f"open for writing, {phase}", [t for t, _ in all], before)
        result(f"open, write 4 KiB and close, {phase}", [t for _, t in all], before)
    for kind, phase in (("reader", "that nobody else holds"), ("writer", "that another client has just written and closed")):
        before, all, old = relay.snap(), [], 0
        for f in files:
            if kind == "writer":
                workloads.write(f"{a}/recall/{kind}/{f}", b"z" * 4096)
            t, text = timed(lambda: look(f"{b}/recall/{kind}/{f}"))
            all.append(t)
            old += text != (b"z" if kind == "writer" else b"y") * 4096
        result(f"open and read, {phase}", all, before)
        if old:
            sys.exit(f"{old} files are old")
    relay.cmd("rtt 0")
    shutil.rmtree(f"{a}/recall")
    unmounted(a), unmounted(b)


# ---------------------------------------------------------------- a server that dies under delayed writes
def body(k, n):
    return random.Random(k << 16 | n).randbytes(o.bytes)


def aside():
    """Runs commands in a process that has none of the files open: whatever closes a copy of a descriptor, an exec too, makes the mount send."""
    orders, answers = mp.Queue(), mp.Queue()

    def work():
        for order in iter(orders.get, None):
            try:
                answers.put(measure.sh(order))
            except Exception as e:
                answers.put(e)

    mp.Process(target=work, daemon=True).start()

    def run(order):
        orders.put(order)
        answer = answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    return run


def say(what):
    print(f"{time.strftime('%T')} {what}", file=sys.stderr, flush=True)


class Answers:
    """How many calls were answered, and when; the relay takes calls that the server leaves unread."""

    def __init__(self):
        self.seen = [(time.monotonic(), self.now())]

    @staticmethod
    def now():
        return sum(v["answered"] for k, v in relay.snap()["calls"].items() if not k.startswith("cb."))

    def look(self):
        self.seen.append((time.monotonic(), self.now()))

    def most(self, secs):
        """Most answers within so long, which two looks may be apart by a little more."""
        return max((n - m for i, (t, m) in enumerate(self.seen) for u, n in self.seen[i:] if u - t <= secs * 1.2), default=0)


def dirty():
    """A directory of each mount, with files of which one half was sent and the other waits."""
    opened = []
    for k, p in enumerate(places):
        os.mkdir(f"{p}/restart/{k}")
        opened.append([os.open(f"{p}/restart/{k}/{n}", os.O_CREAT | os.O_RDWR) for n in range(o.files)])
    # `dirty-age` is over for these when the server dies (with delegations as well), and not for those that follow.
    for k, fds in enumerate(opened):
        for n, fd in enumerate(fds):
            os.pwrite(fd, body(k, n)[: o.bytes // 2], 0)
    time.sleep(AGE_S + 2)
    for k, fds in enumerate(opened):
        for n, fd in enumerate(fds):
            os.pwrite(fd, body(k, n)[o.bytes // 2 :], o.bytes // 2)
    return opened


# Seconds after which writes go by themselves: longer than writing takes, so that the server dies before.
AGE_S = 20


def restart():
    run, starter = aside(), aside()
    say("waits for what an earlier server may have left")
    mounted(places[0])
    shutil.rmtree(f"{places[0]}/restart", ignore_errors=True)
    os.mkdir(f"{places[0]}/restart")
    unmounted(places[0])
    say(f"{o.clients} mounts write")
    for p in places:
        mounted(p, f"{o.options},dirty-age={AGE_S}")
    opened = dirty()
    waiting = sum(json.loads(run([o.hither, "stat", "--json", p]))["layers"]["dirty"]["dirty_bytes"] for p in places)
    say(f"{waiting >> 20} MiB wait; the server is killed")
    run(o.kill)
    done, failed = [0.0] * o.clients, []

    def sync(k):
        try:
            for fd in opened[k]:
                os.fsync(fd)
        except OSError as e:
            failed.append(f"{k}: {e}")
        done[k] = time.monotonic()

    threads = [threading.Thread(target=sync, args=(k,)) for k in range(o.clients)]
    for t in threads:
        t.start()
    time.sleep(1)
    before, answers, began = relay.snap(), Answers(), time.monotonic()
    starting = threading.Thread(target=starter, args=(o.start,))
    starting.start()
    while any(t.is_alive() for t in threads) and time.monotonic() - began < 300:
        time.sleep(0.02)
        answers.look()
    starting.join()
    if any(t.is_alive() for t in threads):
        sys.exit("after five minutes not everybody is served")
    after = relay.snap()
    served = sorted(t - began for t in done)
    say(f"all synced after {served[-1]:.2f} s; now everything is read, when the server lets others read")
    for fds in opened:
        for fd in fds:
            os.close(fd)
    for p in places:
        unmounted(p)
    mounted(places[0])
    wrong = 0
    for k in range(o.clients):
        for n in range(o.files):
            with open(f"{places[0]}/restart/{k}/{n}", "rb") as f:
                wrong += f.read() != body(k, n)
    readable = time.monotonic() - began
    shutil.rmtree(f"{places[0]}/restart")
    unmounted(places[0])
    emit(workload="restart", phase="all clients synced", rate=o.rate, secs=served[-1], median=statistics.median(served), first=served[0],
         readable=readable, waiting_bytes=waiting, files=o.files * o.clients, wrong=wrong, failed=failed,
         most_100ms=answers.most(0.1), most_1s=answers.most(1), rpc=measure.delta(before, after))
    if wrong or failed:
        sys.exit(f"{wrong} files are wrong; {failed}")


{"mab": mab, "recall": recall, "restart": restart}[o.verb]()
