#!/bin/bash
# Many mounts of one hither serve (lab/work/clients.py). Prints JSON lines. Needs root.
#   bench-clients.sh recall     the waiting time of a conflicting open
#   bench-clients.sh restart    a kill and restart of the server under 50 mounts with delayed writes
# `restart` runs without a rate and with RATES (100), and takes about 15 minutes.
# HITHER and HITHER_LAB name other binaries than those in target/release. CLIENTS is another number
# of mounts. LABS is another name of the laboratory.
set -uo pipefail
cd "$(dirname "$0")/.."
export HITHER=$(realpath "${HITHER:-target/release/hither}")
lab=$(realpath "${HITHER_LAB:-target/release/hither-lab}")
work=$(realpath lab/work/clients.py)
name=${LABS:-clients}
trap '$lab --name $name down >/dev/null 2>&1' EXIT
rc=0

# measured LAB SERVER VERS OPTIONS VERB ARGUMENT...: SERVER is a name of `hither-lab bench`. Further
# arguments go to clients.py.
measured() {
  local name=$1 server=$2 vers=$3 opts=$4 verb=$5 deleg=none ports=port=6049 label
  shift 5
  [ "$server" = hither ] || deleg=all
  [ "$vers" != nqnfs ] || ports=port=6049,mountport=6048
  label="{\"client\": \"hither\", \"vers\": \"$vers\", \"opts\": \"$opts\", \"server\": \"$server\"}"
  echo "$verb $server $vers $opts $*" >&2
  $lab --name "$name" up >/dev/null && $lab --name "$name" server start hither --deleg $deleg >/dev/null || return 1
  $lab --name "$name" exec -- python3 "$work" "$verb" "$HITHER" "vers=$vers,$ports${opts:+,$opts}" 10.98.0.1:/ --label "$label" \
    --kill "$lab --name $name server kill9 hither" --start "$lab --name $name server start hither --deleg $deleg --no-wait" "$@"
  local rc=$?
  $lab --name "$name" server stop hither >/dev/null
  return $rc
}

# each COMMAND...: runs the command with every set of leases or delegations
each() {
  while read -r set; do
    # shellcheck disable=SC2086
    "$@" "$name" $set || rc=1
  done <<END
hither nqnfs
hither 4.2
hither-deleg 4.2
hither-deleg 4.2 close=delegated
END
}

recall() {
  for rtt in 0 10; do measured "$1" "$2" "$3" "${4:-}" recall --files 100 --rtt "$rtt" || return 1; done
}
restart() {
  for n in ${CLIENTS:-50}; do
    for rate in 0 ${RATES-100}; do
      HITHER_RECOVERY_RATE=$rate measured "$1" "$2" "$3" "${4:-}" restart --clients "$n" --rate "$rate" || return 1
    done
  done
}

case ${1:-} in
  recall | restart) each "$1" ;;
  *) sed -n '2,5p' "$0" >&2; exit 2 ;;
esac
exit $rc
