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
    print("Seconds from the start of the server until mounts had synchronised all they had, and until another mount had read all of it; most answers within 0.12 s and 1.2 s. A mount that had nothing left to send when the server died was done before (below 0).\n")
    columns = ["", "clients", "files", "MiB that waited", "rate", "first, s", "half, s", "all, s", "read, s", "calls", "most in 0.12 s", "most in 1.2 s", "wrong files"]
    table(columns, [[who(v), str(v["clients"]), str(v["files"]), f"{v['waiting_bytes'] / 2**20:.0f}", str(v["rate"] or "none"),
                     f"{v['first']:.2f}", f"{v['median']:.2f}", f"{v['secs']:.2f}", f"{v['readable']:.0f}", str(v["rpc"]["total"]),
                     str(v["most_100ms"]), str(v["most_1s"]), str(v["wrong"])] for v in runs])
