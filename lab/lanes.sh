#!/bin/bash
# Runs commands of the laboratory side by side: lanes.sh NAME LANES. Standard input has one command
# per line.
#
# Laboratories of different names share nothing, and most suites wait for a server or a timeout.
# Each lane has its own laboratory NAME1, NAME2 and so on. A free lane takes the next command, so
# the longest commands come first. The output of a command is shown when the command ends.
set -uo pipefail
name=$1 lanes=$2
lab=target/release/hither-lab
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat > "$work/commands"
touch "$work/lock"
echo 0 > "$work/taken"

# The next command that no lane has taken yet. Fails when none is left.
next() {
  exec 9>"$work/lock"; flock 9
  local n; n=$(($(cat "$work/taken") + 1)); echo "$n" > "$work/taken"
  flock -u 9
  sed -n "${n}p" "$work/commands" | grep .
}

lane() {
  local mine="$lab --name $name$1" rc=0 command out="$work/out$1" begin
  trap '$mine down >/dev/null 2>&1' EXIT
  $mine up || exit 1
  while command=$(next); do
    begin=$SECONDS
    # shellcheck disable=SC2086 # A command is a list of words.
    $mine $command > "$out" 2>&1 || { rc=1; echo "failed: $command" >> "$out"; }
    { flock 8; echo "$command ($((SECONDS - begin)) s)"; cat "$out"; } 8>"$work/shown"
  done
  exit $rc
}

rc=0
for n in $(seq "$lanes"); do lane "$n" & done
for _ in $(seq "$lanes"); do wait -n || rc=1; done
exit $rc
