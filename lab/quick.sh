#!/bin/bash
# The quick suites and faults of `make test`: nfs-ganesha, NFSv4.2 and NFSv3.
set -uo pipefail
cd "$(dirname "$0")/.."
lab="target/release/hither-lab --name quick"
trap '$lab down >/dev/null 2>&1' EXIT
$lab up || exit 1
rc=0
$lab suite --quick --server ganesha --vers 4.2,3 --client hither posix git sqlite fsx pjdfstest || rc=1
$lab nfs41 --server hither,ganesha || rc=1
$lab scenario --quick --server ganesha --vers 4.2 restart break interrupt umount-dead || rc=1
exit $rc
