#!/usr/bin/python3
"""Markdown of what clients.py measured: clients_table.py FILE.jsonl"""
import json, statistics, sys

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


def mab(title, chosen, key, unit, series, cells):
    if not chosen:
        return
    print(f"## {title}\n\n{cells[0].upper()}{cells[1:]}.\n")
    phases = order(v["phase"] for v in chosen)
    rows = []
    for name in order(map(who, chosen)):
        for at in order(v[key] for v in chosen):
            row, whole, messages = [name, f"{at:g}{unit}"], 0, 0
            for phase in phases:
                of = [v for v in chosen if who(v) == name and v[key] == at and v["phase"] == phase]
                if not of:
                    break
                secs, rpcs = statistics.median(v["secs"] for v in of), statistics.median(v["rpc"]["total"] / v["clients"] for v in of)
                least, most = min(v["least"] for v in of), max(v["most"] for v in of)
                row.append(f"{secs:.2f}{f' ({least:.2f}-{most:.2f})' if most > least else ''} / {rpcs:.0f}")
                whole, messages = whole + secs, messages + rpcs
            else:
                rows.append(row + [f"{whole:.1f} / {messages:.0f}"])
                if series == "speeds":
                    rows[-1].append(f"{of[0]['cpu'] / of[0]['secs'] * 1e4 / at:.0f} %, {of[0]['cpu']:.1f} s")
                if series == "delays":
                    rows[-1].append(f"{secs:.1f}, {of[0]['sd']:.2f}")
    table(["", key] + phases + ["all"] + {"speeds": ["processor"], "delays": ["5.compile, deviation"]}.get(series, []), rows)


SERIES = {
    "table2": ("Table 2: one client, ways of caching", "clients", "", "seconds (median of all runs, least to most) and messages"),
    "memory": ("Figure 1: memory of the client's machine", "memory", " MiB", "seconds and messages"),
    "clients": ("Figures 2 to 5: many clients at a time", "clients", "", "seconds (median, least to most of the clients) and messages of one client"),
    "speeds": ("Table 3: parts of a processor", "share", " %", "seconds and messages; at the end, of the time of compiling, the part in which the processor was used, and its seconds"),
    "delays": ("Table 4, Figure 6: behind a round trip", "rtt", " ms", "seconds (median, least to most of the clients) and messages of one client; at the end median and standard deviation of compiling"),
}
for series, (title, key, unit, cells) in SERIES.items():
    mab(title, [v for v in lines if v["workload"] == "mab-clients" and v.get("series") == series], key, unit, series, cells)

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
