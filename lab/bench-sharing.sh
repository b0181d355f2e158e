#!/bin/bash
# Two mounts that share files (`hither bench sharing`), behind a round trip of RTT ms (10). Prints
# JSON lines. Needs root. HITHER and HITHER_LAB name other binaries than those in target/release.
# SECONDS_EACH is the time of each kind of sharing. The kernel's client is measured with NFSv3 only.
# Two NFSv4 mounts of one machine would be one client with one set of delegations.
set -euo pipefail
cd "$(dirname "$0")/.."
hither=$(realpath "${HITHER:-target/release/hither}")
lab="$(realpath "${HITHER_LAB:-target/release/hither-lab}") --name sharing"
export HITHER=$hither
trap '$lab down >/dev/null 2>&1' EXIT
$lab up >&2

# measured LABEL WHERE MOUNT OPTIONS SOURCE: two mounts by the command MOUNT, in the laboratory
# (exec) or in its guest (guest exec)
measured() {
  local label=$1 where=$2 mount=$3 options=$4 source=$5 script
  echo "$label" >&2
  script="set -e; mkdir -p /mnt/a /mnt/b; $mount -o $options $source /mnt/a >&2; $mount -o $options $source /mnt/b >&2; rc=0
    $hither bench sharing --json --seconds ${SECONDS_EACH:-20} --label '$label' /mnt/a /mnt/b || rc=1; umount /mnt/a /mnt/b; exit \$rc"
  # shellcheck disable=SC2086
  $lab $where -- bash -c "$script"
}
served() { $lab server stop "$1" >&2 || true; $lab server start "$@" >&2; $lab ctl rtt "${RTT:-10}" >&2; }

rc=0
served hither --deleg none
for options in '' ,consistency=strict; do
  measured "hither 4.2$options" exec "$hither mount" "vers=4.2,port=6049$options" 10.98.0.1:/ || rc=1
done
for options in '' ,close=delegated ,consistency=strict; do
  measured "hither nqnfs$options" exec "$hither mount" "vers=nqnfs,port=6049,mountport=6048$options" 10.98.0.1:/ || rc=1
done
served hither --deleg all
for options in '' ,close=delegated ,consistency=strict; do
  measured "hither 4.2$options, delegations" exec "$hither mount" "vers=4.2,port=6049$options" 10.98.0.1:/ || rc=1
done
$lab server stop hither >&2
served knfsd
measured "hither 4.2, knfsd" exec "$hither mount" vers=4.2,port=4049 10.98.0.1:/ || rc=1
$lab guest start >&2
measured "kernel 3, knfsd" "guest exec" "mount -t nfs" vers=3,nosharecache,nolock,port=4049,mountport=4048,proto=tcp,mountproto=tcp 10.98.0.1:/srv || rc=1
exit $rc
