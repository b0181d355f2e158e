#!/bin/bash
# The experiments of "Not Quite NFS" with many mounts of one hither serve (lab/work/clients.py).
#   bench-nqnfs.sh table2     one client, each way of caching, REPS (2) times
#   bench-nqnfs.sh memory     the memory of the client's machine, as Figure 1
#   bench-nqnfs.sh clients    1 to 10 mounts at a time, as Figures 2 to 5
#   bench-nqnfs.sh speeds     parts of a processor, as Table 3
#   bench-nqnfs.sh delays     round trips of 5 to 200 ms on REPS (3) mounts, as Table 4 and Figure 6
# HITHER and HITHER_LAB name other binaries than those in target/release. CLIENTS, MEMORY, SPEEDS
# and DELAYS are other numbers. Prints JSON lines. Needs root.
#
# The server of all parts but `delays` is on an emulated hard disk (8 ms a seek and a flush), as in
# the paper. On a fast disk no write has to wait.
set -uo pipefail
cd "$(dirname "$0")/.."
export HITHER=$(realpath "${HITHER:-target/release/hither}")
lab=$(realpath "${HITHER_LAB:-target/release/hither-lab}")
work=$(realpath lab/work/clients.py)
if [ "${1:-}" != inside ]; then
  dir=$(mktemp -d "${WORK_DIR:-/var/tmp}/hither-nqnfs.XXXXXX")
  trap 'rm -rf "$dir"' EXIT
  HITHER_LAB=$lab WORK=$dir unshare --mount --propagation private "$0" inside "$@"
  exit
fi
shift
export HITHER_LAB_RUN=$WORK/lab
labs=
trap 'for l in $labs; do $lab --name $l down >/dev/null 2>&1; done; umount "$WORK"/lab/*/hither/export 2>/dev/null; umount "$WORK"/head "$WORK"/bytes 2>/dev/null' EXIT
rc=0

# Mounts an ext4 on an emulated hard disk over the exported directory of laboratory $1.
slow() {
  local export=$WORK/lab/$1/hither/export device
  mkdir -p "$export" "$WORK"/{bytes,head}
  mount -t tmpfs -o size=3g tmpfs "$WORK/bytes"
  truncate -s 2G "$WORK/bytes/disk"
  mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0,nodiscard "$WORK/bytes/disk"
  $lab disk "$WORK/head" --bytes-in "$WORK/bytes/disk" --mib 2048 >&2 &
  for _ in $(seq 100); do [ -e "$WORK/head/disk" ] && break; sleep 0.1; done
  device=$(losetup --find --show --direct-io=on "$WORK/head/disk") || return 1
  echo mq-deadline > "/sys/block/${device#/dev/}/queue/scheduler" || true
  mount -t ext4 -o noatime,nodiscard "$device" "$export" || return 1
  losetup -d "$device"
}

# measured LAB SERVER VERS OPTIONS ARGUMENT...: SERVER is a name of `hither-lab bench`. Further
# arguments go to clients.py.
measured() {
  local name=$1 server=$2 vers=$3 opts=$4 ports=port=6049 label
  shift 4
  [ ! -e "$WORK/head/delays" ] || set -- --delays "$WORK/head/delays" "$@"
  case $vers in nqnfs) ports=port=6049,mountport=6048 ;; 3) ports=port=6049,mountport=6049,nolock ;; esac
  label="{\"client\": \"hither\", \"vers\": \"$vers\", \"opts\": \"$opts\", \"server\": \"$server\", \"series\": \"$series\"}"
  echo "$(date +%T) load $(cut -d' ' -f1 /proc/loadavg): $series $server $vers $opts $*" >&2
  $lab --name "$name" exec -- python3 "$work" mab "$HITHER" "vers=$vers,$ports${opts:+,$opts}" 10.98.0.1:/ --label "$label" "$@"
}

# served SERIES LAB SERVER VERS OPTIONS: runs the series with its own server
served() {
  local deleg=none rc
  [ "$3" = hither ] || deleg=all
  $lab --name "$2" server start hither --deleg $deleg >/dev/null || return 1
  "$@"
  rc=$?
  $lab --name "$2" server stop hither >/dev/null
  return $rc
}

# each SERIES: runs the series for each way of caching of the paper, or its successor
each() {
  local jobs=() n=0 j
  while read -r set; do
    n=$((n + 1))
    # shellcheck disable=SC2086
    if [ -n "$together" ]; then served "$1" nqnfs-$n $set & jobs+=($!); else served "$1" nqnfs-1 $set || rc=1; fi
  done <<< "$sets"
  for j in "${jobs[@]}"; do wait "$j" || rc=1; done
}
sets="hither 3
hither nqnfs close=delegated
hither 4.2
hither-deleg 4.2
hither-deleg 4.2 close=delegated"
together=

table2() { for _ in $(seq "${REPS:-2}"); do measured "$1" "$2" "$3" "${4:-}" || return 1; done; }
memory() { for m in ${MEMORY:-64 96 128 256}; do measured "$1" "$2" "$3" "${4:-}" --memory "$m" || return 1; done; }
clients() { for n in ${CLIENTS:-1 4 10}; do measured "$1" "$2" "$3" "${4:-}" --clients "$n" || return 1; done; }
speeds() { for s in ${SPEEDS:-25 50 100}; do measured "$1" "$2" "$3" "${4:-}" --cpu "$s" || return 1; done; }
delays() { for rtt in ${DELAYS:-5 40 80 120 160 200}; do measured "$1" "$2" "$3" "${4:-}" --clients "${REPS:-3}" --rtt "$rtt" || return 1; done; }

series=${1:-}
case $series in
  table2) sets="hither 3 noac,sync,lookupcache=none
hither nqnfs close=delegated,lookupcache=none
$sets" ;;
  memory | clients | speeds) ;;
  delays) together=1 ;;       # mostly waiting: all sets at once
  *) sed -n '2,10p' "$0" >&2; exit 2 ;;
esac
if [ -n "$together" ]; then labs="nqnfs-1 nqnfs-2 nqnfs-3 nqnfs-4 nqnfs-5"; else labs=nqnfs-1; fi
# The disk comes first, because the laboratory has its own mounts from then on.
[ -n "$together" ] || slow nqnfs-1 || exit 1
for l in $labs; do $lab --name "$l" up >/dev/null || exit 1; done
each "$series"
exit $rc
