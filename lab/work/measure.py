"""The measuring core: a client that is mounted by a command, the relay's counters, phases.

Every client is counted by the relay, the kernel's as any other, so all numbers mean the same.
"""
import json, os, shlex, signal, socket, subprocess, time
from contextlib import contextmanager


def sh(cmd, check=True, timeout=None, **kw):
    r = subprocess.run(cmd, shell=isinstance(cmd, str), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, timeout=timeout, **kw)
    out = (r.stdout or b"").decode(errors="replace")
    if check and r.returncode:
        raise RuntimeError(f"{cmd!r}: code {r.returncode}: {out[-400:]}")
    return out


class Relay:
    """Client of the relay's control port."""

    def __init__(self, addr):
        host, port = addr.rsplit(":", 1)
        self.s = socket.create_connection((host, int(port)), timeout=10)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.f = self.s.makefile("rw")

    def cmd(self, line):
        self.f.write(line + "\n")
        self.f.flush()
        return json.loads(self.f.readline())

    def snap(self):
        return self.cmd("snap")


def delta(a, b):
    """What passed the relay between two snapshots; `total` counts calls of the client. None where nothing is counted."""
    if a is None or b is None:
        return None
    d = {"calls": {}, "ops": {}, "deleg": {}, "status4": {}, "sent": 0, "recv": 0}
    for k, v in b["calls"].items():
        o = a["calls"].get(k, {"n": 0, "req": 0, "rep": 0})
        if v["n"] != o["n"]:
            d["calls"][k] = v["n"] - o["n"]
        d["sent"] += v["req"] - o["req"]
        d["recv"] += v["rep"] - o["rep"]
    for part in ("ops", "deleg", "status4"):
        for k, v in b[part].items():
            if v != a[part].get(k, 0):
                d[part][k] = v - a[part].get(k, 0)
    d["total"] = sum(n for k, n in d["calls"].items() if not k.startswith("cb."))
    d["callbacks"] = sum(n for k, n in d["calls"].items() if k.startswith("cb."))
    return d


class Ctx:
    """What a workload gets: a mounted directory, cold and warm states, phases."""

    def __init__(self, mount, umount, mp, relay, meta, emit, params, settle):
        self.mount_cmd, self.umount_cmd, self.mp = mount, umount, mp
        self.relay, self.meta, self.emit, self.params, self.settle = relay, meta, emit, params, settle
        self.sub = ""

    def p(self, *parts):
        return os.path.join(self.mp, *parts)

    def mount(self, sub=None):
        if sub is not None:
            self.sub = sub
        a, t = self.relay.snap(), time.monotonic()
        sh(self.mount_cmd.replace("{work}", self.sub), timeout=120)
        for _ in range(200):
            if os.path.ismount(self.mp):
                break
            time.sleep(0.05)
        else:
            raise RuntimeError("not mounted: " + self.mount_cmd)
        self.emit({**self.meta, "phase": "mount", "secs": time.monotonic() - t, "n": 1, "rpc": delta(a, self.relay.snap())})

    def umount(self):
        os.chdir("/")
        for _ in range(50):
            out = sh(self.umount_cmd, check=False, timeout=120)
            if not os.path.ismount(self.mp):
                return
            time.sleep(0.2)
        raise RuntimeError("umount: " + out)

    def remount(self):
        """The cold state: a fresh mount."""
        self.umount()
        self.mount()

    def crash(self):
        """A fresh mount after the death of what served the old one: the daemon of a mount that has one is killed."""
        if os.path.basename(shlex.split(self.umount_cmd)[0]).startswith("hither"):
            stat = json.loads(sh(shlex.split(self.umount_cmd)[:1] + ["stat", "--json", self.mp]))
            os.chdir("/")
            os.kill(stat["mount"]["pid"], signal.SIGKILL)
            sh(["umount", "-l", self.mp])
            self.mount()
        else:
            self.remount()

    def drop(self, what):
        """Empties the page cache (1)."""
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write(str(what))

    def sleep(self, s):
        time.sleep(s)

    @contextmanager
    def phase(self, name, n=1, **extra):
        """Measures the body: seconds, and RPCs including those that trail within `settle` seconds."""
        a, t = self.relay.snap(), time.monotonic()
        yield
        secs = time.monotonic() - t
        time.sleep(self.settle)
        self.emit({**self.meta, "phase": name, "secs": secs, "n": n, **extra, "rpc": delta(a, self.relay.snap())})
