#!/usr/bin/python3
"""Markdown of what clients.py measured: clients_table.py FILE.jsonl"""
import json, sys

lines = [json.loads(line) for line in open(sys.argv[1])]


def who(v):
    return f"{v['vers']}{' ' + v['opts'] if v['opts'] else ''}{', delegations' if v['server'] == 'hither-deleg' else ''}"


def table(head, rows):
    print("| " + " | ".join(head) + " |\n|---|" + "---:|" * (len(head) - 1))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def order(values):
    return list(dict.fromkeys(values))


def mab(title, chosen, key, unit):
    if not chosen:
        return
    print(f"## {title}\n\nSeconds (median, least to most of the clients) and messages of one client.\n")
    phases = order(v["phase"] for v in chosen)
    rows = []
    for name in order(map(who, chosen)):
        for at in order(v[key] for v in chosen):
            of = [v for v in chosen if who(v) == name and v[key] == at]
            if len(of) < len(phases):
                continue
            cells = [f"{v['secs']:.2f} ({v['least']:.2f}-{v['most']:.2f}) / {v['rpc']['total'] / v['clients']:.0f}" for v in of]
            all = f"{sum(v['secs'] for v in of):.1f} / {sum(v['rpc']['total'] for v in of) / of[0]['clients']:.0f}"
            rows.append([name, f"{at:g}{unit}"] + cells + [all])
    table(["", key] + phases + ["all"], rows)


runs = [v for v in lines if v["workload"] == "mab-clients"]
mab("MAB on many mounts of one server at a time", [v for v in runs if v["rtt"] == 0], "clients", "")
mab("MAB behind a round trip, three mounts at a time", [v for v in runs if v["rtt"] > 0], "rtt", " ms")

runs = [v for v in lines if v["workload"] == "recall"]
if runs:
    print("## What a conflicting open waits for\n\nMilliseconds: median / 99th percentile.\n")
    columns = order((who(v), v["rtt"]) for v in runs)
    cell = {(v["phase"], who(v), v["rtt"]): f"{v['secs'] * 1e3:.1f} / {v['p99'] * 1e3:.1f}" for v in runs}
    table(["second client's"] + [f"{name}, {rtt:g} ms" for name, rtt in columns],
          [[phase] + [cell.get((phase, *c), "-") for c in columns] for phase in order(v["phase"] for v in runs)])

runs = [v for v in lines if v["workload"] == "restart"]
if runs:
    print("## A server that is killed and started under delayed writes\n")
    table(["", "clients", "files", "MiB that waited", "first synced, s", "half, s", "all, s", "calls", "most calls/s", "wrong files"],
          [[who(v), str(v["clients"]), str(v["files"]), f"{v['waiting_bytes'] / 2**20:.0f}", f"{v['first']:.1f}", f"{v['median']:.1f}", f"{v['secs']:.1f}",
            str(v["rpc"]["total"]), f"{v['most_calls_s']:.0f}", str(v["wrong"])] for v in runs])
