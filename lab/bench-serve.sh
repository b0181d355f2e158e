#!/bin/bash
# NFSv3 servers side by side on this disk, in one run: nfs-ganesha, hither serve, hither serve --journal. Root.
# bench-serve.sh [sync|nhfsstone [options of hither bench]]...   JSON lines to standard output; the log of what runs to standard error
set -euo pipefail
cd "$(dirname "$0")/.."
hither=$(realpath "${HITHER:-target/release/hither}")
if [ "${1:-}" != inside ]; then
  work=$(mktemp -d "${WORK_DIR:-/var/tmp}/hither-bench.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  HITHER=$hither WORK=$work unshare --mount --net --pid --fork --kill-child --mount-proc "$0" inside "$@"
  exit
fi
shift
ip link set lo up
mkdir -p "$WORK"/{ganesha,plain,journal}
# What ganesha keeps belongs to this run.
for dir in /run /var/lib/nfs; do mount -t tmpfs tmpfs $dir; done
mkdir -p /run/ganesha /var/lib/nfs/ganesha
cat > "$WORK/ganesha.conf" <<C
NFS_CORE_PARAM { mount_path_pseudo = true; Protocols = 3,4; NFS_Port = 2049; MNT_Port = 20048; Enable_NLM = false; Enable_RQUOTA = false; }
NFSV4 { Graceless = true; }
EXPORT_DEFAULTS { Squash = No_Root_Squash; SecType = sys; Transports = TCP; Access_Type = RW; }
EXPORT { Export_Id = 1; Path = $WORK/ganesha; Pseudo = /export; FSAL { Name = VFS; } }
LOG { Default_Log_Level = WARN; }
C
rpcbind -w
ganesha.nfsd -F -f "$WORK/ganesha.conf" -L "$WORK/ganesha.log" -p /run/ganesha/pid &
"$hither" serve "$WORK/plain" -l 127.0.0.1:5001 --state-dir "$WORK/state1" >&2 &
"$hither" serve "$WORK/journal" -l 127.0.0.1:5002 --state-dir "$WORK/state2" \
  --journal "$WORK/the-journal" --journal-size "${JOURNAL_MIB:-1024}" >&2 &
for port in 2049 20048 5001 5002; do
  for i in $(seq 600); do
    (exec 3<>/dev/tcp/127.0.0.1/$port) 2>/dev/null && break
    [ "$i" != 600 ] || { echo "no server on port $port" >&2; exit 1; }
    sleep 0.1
  done
done
for server in ganesha plain journal; do
  case $server in
    ganesha) at=(--port 2049 --mountport 20048 127.0.0.1:/export) ;;
    plain) at=(--port 5001 127.0.0.1:/) ;;
    journal) at=(--port 5002 127.0.0.1:/) ;;
  esac
  echo "load $(cut -d' ' -f1-3 /proc/loadavg), now $server" >&2
  "$hither" bench "${@:-sync}" --json --label $server "${at[@]}"
done
