"""Runs one workload in a directory that is there, whatever is mounted: `hither bench run`.

  place.py WORKLOAD --dir DIR --tmp DIR --meta JSON --params JSON [--fresh CMD] [--drop] [--hither PROGRAM]

Its files are made below DIR, once. Prints one JSON object per phase, after the word DATA. RPCs are what the mount itself has
counted: hither's by `hither stat`, the kernel client's by /proc/self/mountstats; a local disk has none.
"""
import argparse, json, os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bounds, measure, metadata, workloads

ALL = {**workloads.ALL, **metadata.ALL}
SUBDIR = {**workloads.SUBDIR, **metadata.SUBDIR}


class Counters:
    """What the mount of a directory counted, in the words of the relay; None where nobody counts."""

    def __init__(self, where, program):
        self.where, self.program = where, program

    def snap(self):
        mounts = [line.split() for line in open("/proc/self/mounts")]
        # Of several at one place the last.
        best = max((m for m in reversed(mounts) if below(self.where, unescape(m[1]))), key=lambda m: len(m[1]), default=None)
        if best is None:
            return None
        if best[2] == "fuse.hither":
            stat = json.loads(measure.sh([self.program, "stat", "--json", self.where]))
            calls = {o["name"]: {"n": o["calls"], "req": o["bytes_sent"], "rep": o["bytes_received"]} for o in stat["operations"]}
        elif best[2] in ("nfs", "nfs4"):
            calls = kernel_calls(open("/proc/self/mountstats").read(), best[1])
        else:
            return None
        return {"calls": calls, "ops": {}, "deleg": {}, "status4": {}}


def unescape(field):
    return field.encode().decode("unicode_escape").encode("latin-1").decode(errors="surrogateescape")


def below(path, top):
    return top == "/" or path == top or path.startswith(top + "/")


def kernel_calls(text, point):
    """Of the mount at `point` (as /proc writes it): each operation's calls and bytes."""
    calls, ours, per = {}, False, False
    for line in text.splitlines():
        if line.startswith("device "):
            ours, per = f" mounted on {point} with fstype nfs" in line, False
        elif ours and "per-op statistics" in line:
            per = True
        elif ours and per and ":" in line:
            name, numbers = line.split(":", 1)
            n = [int(x) for x in numbers.split()]
            if n and n[0]:
                calls[name.strip()] = {"n": n[0], "req": n[3], "rep": n[4]}
    return calls


class Place(measure.Ctx):
    """The directory. It is as cold as `--fresh` and `--drop` make it."""

    def __init__(self, o, meta, emit):
        # Workloads may ask for paths before they mount.
        mp = os.path.join(o.dir, SUBDIR[o.workload])
        super().__init__(None, None, mp, Counters(o.dir, o.hither), meta, emit, json.loads(o.params), 0.15)
        self.fresh, self.drops = o.fresh, o.drop

    def mount(self, sub=None):
        os.chdir("/")
        if self.fresh:
            measure.sh(self.fresh, timeout=600)
            if not os.path.isdir(self.mp):
                raise RuntimeError(f"{self.mp} is not there after --fresh {self.fresh!r}")

    def umount(self):
        os.chdir("/")

    def crash(self):
        self.remount()

    def drop(self, what):
        if self.drops:
            super().drop(what)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("workload")
    for k in ("dir", "tmp", "meta", "params"):
        a.add_argument("--" + k, required=True)
    a.add_argument("--fresh")
    a.add_argument("--drop", action="store_true")
    a.add_argument("--hither", default="hither")
    o = a.parse_args()
    os.environ["LAB_TMP"] = os.environ["TMPDIR"] = o.tmp
    meta = json.loads(o.meta)
    root = os.path.join(o.dir, SUBDIR[o.workload])
    if not os.path.exists(root + "/.prepared"):
        os.makedirs(root, exist_ok=True)
        ALL[o.workload].prep(root)
        workloads.write(root + "/.prepared", b"")

    def emit(result):
        print("DATA", json.dumps({**result, **bounds.of(o.workload, result["phase"])}), flush=True)

    ALL[o.workload].run(Place(o, meta, emit))


if __name__ == "__main__":
    main()
