#!/usr/bin/python3
"""Runs one workload with one client, or prepares its files.

  bench.py prep WORKLOAD DIR
  bench.py run WORKLOAD --mount CMD --umount CMD --mp DIR --relay ADDR --tmp DIR --meta JSON --params JSON

`{work}` in the mount command is the workload's directory below the export. Prints one JSON object
per phase, after the word DATA.
"""
import argparse, json, os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bounds, measure, metadata, workloads

ALL = {**workloads.ALL, **metadata.ALL}
SUBDIR = {**workloads.SUBDIR, **metadata.SUBDIR}

if sys.argv[1] == "prep":
    name, where = sys.argv[2:4]
    root = os.path.join(where, SUBDIR[name])
    if not os.path.exists(root + "/.prepared"):
        os.makedirs(root, exist_ok=True)
        ALL[name].prep(root)
        workloads.write(root + "/.prepared", b"")
    sys.exit()

a = argparse.ArgumentParser()
a.add_argument("verb")
a.add_argument("workload")
for k in ("mount", "umount", "mp", "relay", "tmp", "meta", "params"):
    a.add_argument("--" + k, required=True)
o = a.parse_args()
os.environ["LAB_TMP"] = os.environ["TMPDIR"] = o.tmp
meta = json.loads(o.meta)


def emit(result):
    bound = bounds.of(o.workload, result["phase"], meta.get("opts", ""))
    print("DATA", json.dumps({**result, **bound}), flush=True)


ctx = measure.Ctx(o.mount, o.umount, o.mp, measure.Relay(o.relay), meta, emit, json.loads(o.params), 0.15 + 4 * meta["rtt"] / 1e3)
ALL[o.workload].run(ctx)
