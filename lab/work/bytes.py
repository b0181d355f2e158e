#!/usr/bin/python3
"""A table of RPCs and of the KiB that the server sent, from results of `hither-lab bench`: bytes.py A.jsonl...

A row per server, workload and phase, a column per client with its options; medians over repetitions."""
import json, re, statistics, sys

rows, columns, cells = [], [], {}
for file in sys.argv[1:]:
    for line in open(file):
        r = json.loads(line)
        if r["phase"] == "mount":
            continue
        # Where a cache is says nothing.
        opts = re.sub(r"cache=[^,]*,cache-age=0", "cache", r["opts"])
        row, column = (r["server"], r["workload"], r["phase"]), f"{r['client']} {opts}".strip()
        rows += [] if row in rows else [row]
        columns += [] if column in columns else [column]
        cells.setdefault((row, column), []).append((r["rpc"]["total"], r["rpc"]["recv"] / 1024))
print("| server | workload | phase |", " | ".join(columns), "|")
print("|---" * (3 + len(columns)) + "|")
for row in rows:
    each = (cells.get((row, c)) for c in columns)
    print("|", " | ".join(row), "|", " | ".join(
        "" if not c else f"{statistics.median(n for n, _ in c):.0f} / {statistics.median(b for _, b in c):.0f}" for c in each), "|")
