#!/bin/bash
# NFS servers side by side on an emulated hard disk (8 ms a seek and a flush) and on this machine's
# disk. The servers are nfs-ganesha, the kernel's server, and hither serve: without a journal, with
# a journal on a fast disk, and with a journal on the same disk. One server runs at a time. Needs
# root and an otherwise idle machine.
#
# bench-serve.sh [PART]... prints JSON lines to standard output and progress to standard error.
# Without a PART it runs all parts:
#   nhfsstone   response times of Moran's mix against offered load
#   sustained   the same for ten minutes at each rate, with checkpoints of the journal
#   mixes       the capacity for mixes with other shares of modifying calls
#   sync        stable changes of each kind, 1, 8 and 64 clients
#   reads       reads from memory by the server's processor time
#   stream      sequential reading beside TCP
#   memory      of hither serve: connections, clients, opens, delegations, a large tree
# QUICK=1 takes a tenth of the time, for a trial. JOURNAL_MIB is the journal's size. ENTRIES is the
# number of names in the large tree (1000000). HITHER and HITHER_LAB name other binaries than those
# in target/release. HITHER_BENCH names another binary that measures. WORK_DIR is a directory on
# this machine's disk. RATES and SECONDS_EACH replace those of `sustained`. SERVERS lists other
# servers than the default: ganesha, knfsd, hither, hither-journal, hither-journal-same,
# hither-synced. The directory of hither-synced syncs new names itself, without the journal.
set -euo pipefail
cd "$(dirname "$0")/.."
hither=$(realpath "${HITHER:-target/release/hither}")
lab=$(realpath "${HITHER_LAB:-target/release/hither-lab}")
measures=$(realpath "${HITHER_BENCH:-$hither}")
if [ "${1:-}" != inside ]; then
  work=$(mktemp -d "${WORK_DIR:-/var/tmp}/hither-bench.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  HITHER=$hither HITHER_LAB=$lab HITHER_BENCH=$measures WORK=$work unshare --mount --propagation private --net --pid --fork --kill-child --mount-proc "$0" inside "$@"
  exit
fi
shift
parts=("$@")
[ $# -gt 0 ] || parts=(nhfsstone sustained mixes sync reads stream memory)
# The argument for a full run, or the one for a quick run.
full_or() { if [ -z "${QUICK:-}" ]; then echo "$1"; else echo "$2"; fi; }
export HITHER_LAB_RUN=$WORK/lab
lab="$lab --name serve"
ip link set lo up
# State of ganesha belongs to this run.
for dir in /run /var/lib/nfs; do mount -t tmpfs tmpfs $dir; done
mkdir -p /run/ganesha /var/lib/nfs/ganesha
rpcbind -w

say() { echo "$(date +%T) load $(cut -d' ' -f1-3 /proc/loadavg): $*" >&2; }
# Adds the disk to each line.
on() { sed -u "s/^{/{\"disk\":\"$1\",/"; }
until_it() { for _ in $(seq 600); do "$@" 2>/dev/null && return; sleep 0.1; done; echo "never: $*" >&2; exit 1; }
answers() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

# The last line of a command's output. After a failure, the whole output.
last() { local all; all=$("$@") || { echo "$all" >&2; return 1; }; tail -1 <<< "$all"; }

# The emulated disk: bytes in memory, and a head that takes 8 ms during measurements.
slow_disk() {
  mkdir -p "$WORK"/{bytes,head-"$1"}
  mountpoint -q "$WORK/bytes" || mount -t tmpfs -o size=8g tmpfs "$WORK/bytes"
  truncate -s 3G "$WORK/bytes/$1"
  mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0,nodiscard "$WORK/bytes/$1"
  $lab disk "$WORK/head-$1" --bytes-in "$WORK/bytes/$1" --mib 3072 "${@:2}" >&2 &
  until_it test -e "$WORK/head-$1/disk"
}
# An ext4 with a log, on a block device, on a file.
mount_on() {
  local device
  mkdir -p "$2"
  device=$(losetup --find --show --direct-io=on "$1")
  # The default scheduler of hard disks.
  [ "$2" = "$WORK/fast" ] || echo mq-deadline > "/sys/block/${device#/dev/}/queue/scheduler" || true
  mount -t ext4 -o noatime,nodiscard "$device" "$2"
  losetup -d "$device"  # freed when the file system is unmounted
}
slow_disk a
mount_on "$WORK/head-a/disk" "$WORK/slow"
fallocate -l 8G "$WORK/image"
mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0,nodiscard "$WORK/image"
mount_on "$WORK/image" "$WORK/fast"
# The guest's disk is of the same kind. The guest's driver drops flushes, hence --flush-by-record.
slow_disk b --flush-by-record
pid=
finish() {
  stop || true
  $lab down >&2 || true
  umount "$WORK/slow" "$WORK/fast" || true
  return 0
}
trap finish EXIT

# start SERVER DISK: sets $pid to the server's process (empty for a guest), "${at[@]}" to its
# address for `hither bench`, and $via to the command that enters the client's network
start() {
  local server=$1 dir=$WORK/$2 journal=()
  via=
  say "$server on the $2 disk"
  mkdir -p "$dir/$server"
  case $server in
    ganesha)
      cat > "$WORK/ganesha.conf" <<C
NFS_CORE_PARAM { mount_path_pseudo = true; Protocols = 3,4; NFS_Port = 2049; MNT_Port = 20048; Enable_NLM = false; Enable_RQUOTA = false; }
NFSV4 { Graceless = true; }
EXPORT_DEFAULTS { Squash = No_Root_Squash; SecType = sys; Transports = TCP; Access_Type = RW; }
EXPORT { Export_Id = 1; Path = $dir/ganesha; Pseudo = /export; FSAL { Name = VFS; } }
LOG { Default_Log_Level = WARN; }
C
      ganesha.nfsd -F -f "$WORK/ganesha.conf" -L "$WORK/ganesha.log" -p /run/ganesha/pid >&2 &
      pid=$! at=(--port 2049 --mountport 20048 127.0.0.1:/export)
      until_it answers 127.0.0.1 2049; until_it answers 127.0.0.1 20048 ;;
    knfsd)
      pid= via="$lab exec --" at=(--port 2049 --mountport 20048 10.98.0.3:/srv)
      $lab server start knfsd --disk "$WORK/head-b/disk" --no-wait >&2 ;;
    *)
      case $server in
        hither-journal) journal=(--journal "$WORK/fast/journal-of-$2") ;;
        hither-journal-same) journal=(--journal "$dir/journal-of-$server") ;;
        # The set-group-ID directory makes the server sync new names.
        hither-synced) journal=(--journal "$WORK/fast/journal-of-synced-$2"); chmod g+s "$dir/$server" ;;
      esac
      [ ${#journal[@]} = 0 ] || journal+=(--journal-size "${JOURNAL_MIB:-256}")
      "$hither" serve "$dir/$server" -l 127.0.0.1:5001 --state-dir "$dir/state-of-$server" ${journal[@]+"${journal[@]}"} >&2 &
      pid=$! at=(--port 5001 127.0.0.1:/)
      until_it answers 127.0.0.1 5001 ;;
  esac
}
stop() {
  [ -n "$pid" ] || { [ -z "$via" ] || $lab server stop knfsd >&2; via=; return 0; }
  kill $pid; wait $pid || true
  pid=
}
via=
delays="$WORK/head-a/delays $WORK/head-b/delays"
tell_delays() { echo "$1" | tee $delays > /dev/null; }
bench() {
  local hooks=()
  [ $disk != slow ] || hooks=(--prepared "sync; echo on | tee $delays" --measured "echo off | tee $delays")
  $via "$measures" bench "$@" --json --label "$server" ${hooks[@]+"${hooks[@]}"} "${at[@]}"
}
failed=0
each() {
  for server in ${SERVERS:-$servers}; do
    start "$server" $disk
    "$@" | on $disk || { say "FAILED: $* on $server"; failed=1; tell_delays off; }
    stop
  done
}

slow_servers="ganesha knfsd hither hither-journal-same hither-journal"
fast_servers="ganesha hither hither-journal"
nhfsstone() {
  local disk=slow servers=$slow_servers
  each bench nhfsstone --rates "$(full_or 20,40,70,100,200,400,800,1600,3200 40,400)" --seconds "$(full_or 6 1)"
  disk=fast servers=$fast_servers
  each bench nhfsstone --rates "$(full_or 500,1000,2000,4000,8000,16000 1000)" --seconds "$(full_or 4 1)"
}
sustained() {
  local disk=slow servers="hither hither-journal-same hither-journal"
  each bench nhfsstone --rates "${RATES:-$(full_or 200,400,800,1600,3200 400)}" --seconds "${SECONDS_EACH:-$(full_or 600 20)}"
}
some_mixes() {
  for percent in $(full_or "5 10" 5); do
    bench nhfsstone --modifying $percent --rates "$(full_or 30,60,120,240,480,960,1920,3840 30)" --seconds "$(full_or 5 1)"
  done
}
mixes() {
  local disk=slow servers="hither hither-journal"
  each some_mixes
}
changes() {
  local clients; clients=$(full_or 1,8,64 4)
  bench sync --kinds write,commit,create,create-write,remove,rename --clients $clients --seconds "$(full_or 2 1)"
  bench sync --kinds write --size 512 --clients $clients --seconds "$(full_or 2 1)"
}
sync_() {
  local disk=slow servers=$slow_servers
  each changes
  disk=fast servers=$fast_servers
  each changes
}
costs() { bench reads --pid $pid --seconds "$(full_or 4 1)"; }
reads() {
  local disk=fast servers="ganesha hither"
  each costs
}

# The rate of a reader, beside the rate of a TCP connection at the same time.
beside() {
  python3 -c 'import json, sys; print(json.dumps({"bench": "stream", "disk": "fast", "label": sys.argv[1], "bytes_s": float(sys.argv[2]), "tcp_bytes_s": json.loads(sys.argv[3])["bytes_s"]}))' "$@"
}
stream() {
  local mib vers rate tcp; mib=$(full_or 1024 128)
  mkdir -p "$WORK/fast/stream" "$WORK/mnt"
  head -c ${mib}M /dev/urandom > "$WORK/fast/stream/file"
  local reader='import os,sys,time
f=os.open(sys.argv[1],os.O_RDONLY); b=bytearray(1<<20); t=time.monotonic(); n=0
while (r:=os.readv(f,[b])): n+=r
print(n/(time.monotonic()-t))'
  $lab up >&2
  $lab exec -- "$hither" serve "$WORK/fast/stream" -l 10.98.0.1:5002 -o rw,no_root_squash,insecure --state-dir "$WORK/state-stream" >&2 &
  until_it $lab exec -- bash -c 'exec 3<>/dev/tcp/10.98.0.1/5002'
  cat > "$WORK/here" <<C
set -e
mkdir -p /mnt/s; $hither mount -o port=5002,mountport=5002,vers=\$1 10.98.0.1:/ /mnt/s >&2
python3 -c '$reader' /mnt/s/file; umount /mnt/s
C
  cat > "$WORK/there" <<C
set -e
mkdir -p /mnt/s; mount -t nfs -o port=5002,proto=tcp,\$2vers=\$1 10.98.0.1:/ /mnt/s
python3 -c '$reader' /mnt/s/file; umount /mnt/s
C
  cat "$WORK/fast/stream/file" > /dev/null
  for _ in $(full_or "1 2 3" 1); do
    for vers in 3 4.2; do
      tcp=$($lab exec -- $lab tcp)
      rate=$(last $lab exec -- bash "$WORK/here" $vers)
      beside "hither mount, v$vers" "$rate" "$tcp"
    done
  done
  say "the kernel's client"
  $lab exec -- $lab tcp --listen 10.98.0.1:5003 >&2 &
  for vers in 3 4.2; do
    tcp=$(last $lab guest exec -- $lab tcp --from 10.98.0.1:5003)
    if rate=$(last $lab guest exec -- bash "$WORK/there" $vers "$([ $vers != 3 ] || echo nolock,mountport=5002,mountproto=tcp,)"); then
      beside "kernel's client in a guest, v$vers" "$rate" "$tcp"
    else
      say "FAILED: the kernel's client, v$vers"; failed=1
    fi
  done
  $lab guest stop >&2
}

memory() {
  local dir=$WORK/fast/memory part
  say "memory"
  mkdir -p "$dir"
  # Each open file takes a descriptor in the client and one in the server.
  ulimit -n 400000 || say "few descriptors: $(ulimit -n)"
  for part in connections opens leases tree; do
    "$hither" serve "$dir" -l 127.0.0.1:5001 --max-delegations 1000000 --state-dir "$WORK/state-$part" >&2 &
    pid=$!
    until_it answers 127.0.0.1 5001
    python3 -B lab/work/memory.py "$hither" $pid 5001 "$dir" "$WORK" "$(full_or 1 100)" $part | on fast
    kill $pid; wait $pid || true
    pid=
  done
}

for part in "${parts[@]}"; do
  case $part in
    nhfsstone|sustained|mixes|reads|stream|memory) $part ;;
    sync) sync_ ;;
    *) echo "no part $part" >&2; exit 2 ;;
  esac
done
say "done"
exit $failed
