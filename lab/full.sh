#!/bin/bash
# All suites and scenarios: nfs-ganesha and the Linux kernel's server, NFSv4.2, 4.1 and 3.
set -uo pipefail
cd "$(dirname "$0")/.."
lab="target/release/hither-lab --name full"
trap '$lab down >/dev/null 2>&1' EXIT
$lab up || exit 1
rc=0
$lab suite --server ganesha,knfsd --vers 4.2,4.1,3 --client hither all || rc=1
$lab scenario --server ganesha,knfsd --vers 4.2,3 all || rc=1
exit $rc
