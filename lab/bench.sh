#!/bin/bash
# Comparisons with the kernel's client. JSON lines, tables and pictures go to bench/.
#   bench.sh              all workloads except the metadata, about an hour
#   bench.sh quick        minutes
#   bench.sh meta         names, attributes and small files: about an hour, mostly timeouts
#   bench.sh meta quick   the same with nfs-ganesha and NFSv4.2 only: a quarter of an hour
#   bench.sh write        creating and writing files, with and without a delay
#   bench.sh write-more   the same at round trips of 1 and 50 ms, four at a time,
#                         and a file of 4 GiB
#   bench.sh creates      new trees with a journal, with and without new files waiting on the client
#   bench.sh delegated    new trees on hither serve, whose delegations let closes return at once
#   bench.sh leases       MAB by type of message, as Table 1 of "Not Quite NFS": with leases, with
#                         delegations, with neither, and the kernel's client
#   bench.sh nqnfs        Tables 2 to 4 and Figures 1 to 6 of "Not Quite NFS" (bench-nqnfs.sh),
#                         three quarters of an hour; `nqnfs PART...` runs some parts
#   bench.sh sharing      two clients that share files (bench-sharing.sh), a quarter of an hour
#   bench.sh serve        NFS servers side by side (bench-serve.sh), a quarter of an hour;
#                         `serve PART...` runs some parts and replaces their former results
#   bench.sh draw         tables and pictures of the metadata, from earlier results
# BENCH_OUT is another directory than bench/. HITHER and HITHER_LAB name other binaries than those
# in target/release.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=${HITHER_LAB:-target/release/hither-lab}
# An absolute path, because the laboratory may work in another directory.
out=$(realpath -m "${BENCH_OUT:-bench}")
labs="bench bench-ganesha bench-knfsd"
trap 'for l in $labs; do $bin --name $l down >/dev/null 2>&1; done' EXIT
rc=0

# measured SERVER RTT PARAMS WORKLOAD...: appends to bench/meta-SERVER.jsonl. $opts are the sets of
# options.
measured() {
  local server=$1 rtt=$2 params=$3; shift 3
  $bin --name "bench-$server" bench --server "$server" --rtt "$rtt" --vers "$vers" --params "$params" \
    --limit 600 --opts "$opts" --append --out "$out/meta-$server.jsonl" --table /dev/null "$@"
}

# With a delay, the numbers are round trips. The waits for timeouts (70 s per client) are included
# only where they matter most.
meta() {
  local server=$1 rc=0 opts='default;hither:nocto' depths='"depths": [1, 2, 4, 8, 16]'
  rm -f "$out/meta-$server.jsonl"
  $bin --name "bench-$server" up >/dev/null || return 1
  measured "$server" 10 "{$depths}" opendepth || rc=1
  measured "$server" 0 '{}' pageopen tree python || rc=1
  # The value of prefetching: the same runs without it.
  opts='hither:prefetch=off' measured "$server" 0 '{"short": 1}' pageopen tree python || rc=1
  measured "$server" 0 '{"short": 1, "reading": 1, "single_only": 1}' mab badros bigtree bigdir || rc=1
  if [ -z "$quick" ]; then
    measured "$server" 1,50 "{$depths, \"short\": 1}" opendepth || rc=1
    measured "$server" 10 '{"short": 1}' pageopen tree python || rc=1
  fi
  return $rc
}

draw() {
  local from="$out/meta-$1.jsonl"
  [ -s "$from" ] || return 0
  $bin bench --from "$from" --table "$out/meta-$1.md" || return 1
  $bin bench --from "$from" --server "$1" --what depth --plot "$out/depth-$1.svg" || return 1
  $bin bench --from "$from" --server "$1" --what rpcs --plot "$out/rpcs-$1.svg"
}

case ${1:-} in
  quick)
    $bin --name bench bench --quick --out $out/quick.jsonl --table $out/quick.md pageopen profiles stream
    exit ;;
  meta)
    quick=${2:-} vers=4.2,3 servers="ganesha knfsd"
    [ -z "$quick" ] || vers=4.2 servers=ganesha
    # Two laboratories at once, because they mostly wait and the results are RPCs.
    jobs=()
    for s in $servers; do meta "$s" & jobs+=($!); done
    for j in "${jobs[@]}"; do wait "$j" || rc=1; done
    for s in $servers; do draw "$s" || rc=1; done
    $bin --name bench bench overhead --out $out/overhead.jsonl --table $out/overhead.md ${quick:+--server ganesha} || rc=1
    exit $rc ;;
  write)
    # postmark with a delay is shortened. A full run takes the kernel's client ten minutes.
    for s in ganesha knfsd; do
      rm -f "$out/write-$s.jsonl"
      $bin --name "bench-$s" up >/dev/null || { rc=1; continue; }
      for p in '0 {"short": 1, "writing": 1, "single_only": 1}' \
        '10 {"short": 1, "writing": 1, "single_only": 1, "number": 200, "transactions": 1000}'; do
        $bin --name "bench-$s" bench --server "$s" --vers 4.2 --rtt "${p%% *}" --params "${p#* }" --limit 1200 \
          --opts 'default;hither:close=lazy' --append --out "$out/write-$s.jsonl" --table /dev/null meta badros mab postmark || rc=1
      done
      $bin bench --from "$out/write-$s.jsonl" --table "$out/write-$s.md" || rc=1
    done
    exit $rc ;;
  write-more)
    # Long workloads are shortened with a delay. Counts of Badros and MAB stay comparable with those
    # of `write`.
    for s in ganesha knfsd; do
      rm -f "$out/write-more-$s.jsonl"
      $bin --name "bench-$s" up >/dev/null || { rc=1; continue; }
      while read -r rtt workload p; do
        $bin --name "bench-$s" bench --server "$s" --vers 4.2 --rtt "$rtt" --params "$p" --limit 1800 --append \
          --out "$out/write-more-$s.jsonl" --table /dev/null $workload || rc=1
      done <<END
0 stream {"mib": 4096, "writing": 1}
0 badros {"writing": 1}
1,50 badros {"short": 1, "writing": 1, "single_only": 1}
1,50 postmark {"number": 50, "transactions": 250}
1,50 meta {"short": 1, "writing": 1, "files": 100}
10 stream {"mib": 256, "writing": 1}
END
      $bin bench --from "$out/write-more-$s.jsonl" --table "$out/write-more-$s.md" || rc=1
    done
    exit $rc ;;
  creates)
    # Shortened, because the kernel's client takes two minutes for the full untar.
    rm -f $out/creates-here.jsonl
    for s in ganesha knfsd; do
      $bin --name bench bench --server $s --vers 4.2 --rtt 10 --params '{"short": 1, "files": 300, "single_only": 1}' --limit 600 \
        --opts 'default;hither:writeback=journal,exclusive;hither:writeback=journal,exclusive,creates=here' \
        --append --out $out/creates-here.jsonl --table /dev/null meta || rc=1
    done
    $bin bench --from $out/creates-here.jsonl --table $out/creates-here.md || rc=1
    exit $rc ;;
  delegated)
    rm -f $out/delegated.jsonl
    $bin --name bench bench --server hither-deleg --vers 4.2 --rtt 10 --params '{"short": 1, "files": 300, "single_only": 1}' --limit 600 \
      --opts 'default;hither:close=delegated;hither:writeback=journal;hither:close=delegated,writeback=journal' \
      --append --out $out/delegated.jsonl --table /dev/null meta || rc=1
    $bin bench --from $out/delegated.jsonl --table $out/delegated.md || rc=1
    exit $rc ;;
  leases)
    rm -f $out/leases.jsonl
    mab() { $bin --name bench bench --append --out $out/leases.jsonl --table /dev/null --limit 1800 "$@" mab || rc=1; }
    mab --server hither --vers nqnfs,4.2 --client hither
    # These options say that no other client uses the export.
    alone=writeback=journal,exclusive,creates=here
    mab --server hither --vers 4.2 --client hither --opts "$alone;$alone,nocto"
    mab --server hither-deleg --vers 4.2 --client hither --opts "default;close=delegated;close=delegated,$alone,nocto"
    mab --server knfsd --vers 4.2,3 --client kernel,hither
    $bin bench --from $out/leases.jsonl --by-type 'knfsd: kernel 4.2' --table $out/leases.md || rc=1
    exit $rc ;;
  nqnfs)
    shift
    parts=("$@")
    [ $# -gt 0 ] || parts=(table2 memory clients speeds delays)
    for part in "${parts[@]}"; do
      lab/bench-nqnfs.sh "$part" > $out/nqnfs.new || rc=1
      # Results of parts that did not run stay.
      { grep -v "\"series\": \"$part\"" $out/nqnfs.jsonl 2>/dev/null; cat $out/nqnfs.new; } > $out/nqnfs.old
      mv $out/nqnfs.old $out/nqnfs.jsonl
      rm $out/nqnfs.new
    done
    python3 lab/work/clients_table.py $out/nqnfs.jsonl > $out/nqnfs.md || rc=1
    $bin bench --from $out/nqnfs.jsonl --what nqnfs --plot $out/nqnfs.svg || rc=1
    exit $rc ;;
  sharing)
    lab/bench-sharing.sh > $out/sharing.jsonl || rc=1
    $bin bench --from $out/sharing.jsonl --what sharing --table $out/sharing.md || rc=1
    exit $rc ;;
  serve)
    shift
    parts=("$@")
    [ $# -gt 0 ] || parts=(nhfsstone mixes sync reads stream memory)
    lab/bench-serve.sh "${parts[@]}" > $out/serve.new || rc=1
    # Results of parts that did not run stay.
    python3 - $out/serve.jsonl "${parts[@]}" <<'END' > $out/serve.old || exit 1
import json, os, sys
for line in open(sys.argv[1]) if os.path.exists(sys.argv[1]) else ():
    of = json.loads(line)
    part = "mixes" if of["bench"] == "nhfsstone" and of["modifying"] != 19 else of["bench"]
    if part not in sys.argv[2:]:
        print(line, end="")
END
    cat $out/serve.old $out/serve.new > $out/serve.jsonl
    rm $out/serve.old $out/serve.new
    $bin bench --from $out/serve.jsonl --what serve --table $out/serve.md || rc=1
    $bin bench --from $out/serve.jsonl --what serve --plot $out/serve.svg || rc=1
    exit $rc ;;
  sweep)
    sim=target/release/examples/sweep
    $sim > $out/cache-sweep.jsonl && $bin bench --what sweep --from $out/cache-sweep.jsonl --plot $out/cache-sweep.svg || exit 1
    python3 lab/work/sweep.py table $out/cache-sweep.jsonl
    exec python3 lab/work/sweep.py check target/release/hither $sim $out/cache-sweep-check.jsonl ;;
  draw)
    for s in ganesha knfsd; do draw $s || rc=1; done
    exit $rc ;;
esac
lab="$bin --name bench"
$lab bench --rtt 0 --out $out/rtt0.jsonl --table $out/rtt0.md opendepth pageopen profiles mab badros postmark meta stream || rc=1
# With a delay, times follow from the counts, so a few workloads suffice. `short` leaves out the
# waits for attribute timeouts.
$lab bench --rtt 10 --params '{"short": 1, "files": 300, "single_only": 1}' --out $out/rtt10.jsonl --table $out/rtt10.md \
  opendepth pageopen profiles meta mab || rc=1
exit $rc
