"""A control group for clients of a measurement: a part of a processor, a limit of memory, and what they use of processors.

Works with either version of control groups, and without any when nothing is limited (then nothing is known of what is used). Whoever starts a
program or a mount from within is in it with them. """
import os

V1 = {c: f"/sys/fs/cgroup/{c}" for c in ("cpu", "cpuacct", "memory")}
V2 = "/sys/fs/cgroup"


def put(path, value):
    with open(path, "w") as f:
        f.write(str(value))


class Group:
    """This process and its children, in a group of their own until `leave`.

    `cpu`: percent of one processor, `memory`: MiB, page cache included; 0: no limit. """

    def __init__(self, cpu=0, memory=0):
        name = f"hither-clients-{os.getpid()}"
        self.v2 = os.path.exists(f"{V2}/cgroup.controllers")
        roots = {"all": V2} if self.v2 else {c: p for c, p in V1.items() if os.path.isdir(p)}
        self.at = {c: f"{p}/{name}" for c, p in roots.items()}
        try:
            if self.v2:
                put(f"{V2}/cgroup.subtree_control", "+cpu +memory")
            for p in self.at.values():
                os.makedirs(p, exist_ok=True)
            if cpu:
                self._limit("cpu", "cpu.max" if self.v2 else "cpu.cfs_quota_us", f"{cpu * 1000} 100000" if self.v2 else cpu * 1000)
            if memory:
                self._limit("memory", "memory.max" if self.v2 else "memory.limit_in_bytes", memory << 20)
            for p in self.at.values():
                put(f"{p}/cgroup.procs", os.getpid())
        except (OSError, KeyError) as e:
            self.leave()
            self.at = {}
            if cpu or memory:
                raise SystemExit(f"no control groups for --cpu and --memory here: {e}")

    def _limit(self, controller, file, value):
        put(f"{self.at['all' if self.v2 else controller]}/{file}", value)

    def used(self):
        """Seconds of processor time of all that are or were in it; None where that is not known."""
        try:
            if self.v2:
                with open(f"{self.at['all']}/cpu.stat") as f:
                    return int(dict(line.split() for line in f)["usage_usec"]) / 1e6
            with open(f"{self.at['cpuacct']}/cpuacct.usage") as f:
                return int(f.read()) / 1e9
        except (OSError, KeyError):
            return None

    def leave(self):
        """Back to where everybody is. A group in which somebody still is stays."""
        for p in self.at.values():
            try:
                put(f"{os.path.dirname(p)}/cgroup.procs", os.getpid())
                os.rmdir(p)
            except OSError:
                pass
