#!/bin/bash
# Side by side with the kernel's client: JSON lines and a table go to bench/. Takes about an hour; `bench.sh quick` minutes.
set -uo pipefail
cd "$(dirname "$0")/.."
lab="target/release/hither-lab --name bench"
trap '$lab down >/dev/null 2>&1' EXIT
$lab up || exit 1
if [ "${1:-}" = quick ]; then
  $lab bench --quick --out bench/quick.jsonl --table bench/quick.md pageopen profiles stream
  exit
fi
rc=0
$lab bench --rtt 0 --out bench/rtt0.jsonl --table bench/rtt0.md opendepth pageopen profiles mab badros postmark meta stream || rc=1
# With a delay, times follow from the counts; a few show it. `short` leaves out the waits for attribute timeouts.
$lab bench --rtt 10 --vers 4.2 --server ganesha --params '{"short": 1, "files": 300}' --out bench/rtt10.jsonl --table bench/rtt10.md \
  opendepth pageopen profiles meta || rc=1
exit $rc
