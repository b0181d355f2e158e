#!/usr/bin/env python3
"""A cache policy of one's own, in the manner of P0's nccd: when a disk cache holds more than --high bytes, the files that
took the most space for the fewest uses go until --low bytes are left. What is pinned, or open, stays.

    cache-policy.py /mnt --high 8G --low 7G [--every SECONDS]

Keep --high below nine tenths of cache-size=, where the daemon's own cleaner begins (`room` of `hither cache status --json`).
"""
import argparse
import json
import subprocess
import time


def size(text):
    unit = "KMGT".find(text[-1].upper()) + 1
    return int(float(text[:-1] if unit else text) * 1024**unit)


def hither(args, *words, given=None):
    done = subprocess.run([args.hither, "cache", *words], input=given, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def clean(args):
    """One look; how many files went."""
    kept = hither(args, "status", "--json", args.mount)["room"]["entry_bytes"]
    if kept <= args.high:
        return 0
    slots = hither(args, "ls", "--index", "--json", args.mount)
    slots = [s for s in slots if not s["pinned"] and not s["open"]]
    slots.sort(key=lambda s: s["disk_bytes"] / (1 + s["uses"]), reverse=True)
    keys = []
    for slot in slots:
        if kept <= args.low:
            break
        keys.append(slot["key"])
        kept -= slot["disk_bytes"]
    return hither(args, "evict", "--keys", "--json", args.mount, given="\n".join(keys))["evicted"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mount", help="a directory of the mount")
    parser.add_argument("--high", type=size, required=True, help="begin above so many bytes")
    parser.add_argument("--low", type=size, required=True, help="end below so many")
    parser.add_argument("--every", type=float, help="look again every so many seconds; once unless given")
    parser.add_argument("--hither", default="hither", help="the program")
    args = parser.parse_args()
    while True:
        print(clean(args), "files went", flush=True)
        if args.every is None:
            return
        time.sleep(args.every)


if __name__ == "__main__":
    main()
