#!/bin/bash
# The suites and scenarios that `make test` leaves out: the Linux kernel's server and client as well, every version, every fault.
# `full.sh all` runs each suite at full length on every server and version, which takes hours.
set -uo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = all ]; then
  lab/lanes.sh full 1 <<'END'
suite --server ganesha,knfsd --vers 4.2,4.1,3 --client hither all
suite --server ganesha --vers 4.2,3 --client hither-guest posix git sqlite fsx pjdfstest
scenario --server ganesha,knfsd --vers 4.2,3 all
END
  exit
fi
$lab nfs41 --server hither,ganesha,knfsd || rc=1
$lab suite --server ganesha --vers 4.2,4.1,3 --client hither pjdfstest || rc=1
$lab suite --quick --server ganesha --vers 4.2 --client hither tree make || rc=1
$lab suite --quick --server knfsd --vers 4.2,3 --client hither posix git sqlite fsx make pjdfstest postgres tree || rc=1
# The guest's kernel is older than what FUSE offers at its best.
$lab suite --quick --server ganesha --vers 4.2 --client hither-guest posix git || rc=1
# `hither serve` with a client that is not ours.
$lab suite --quick --server hither --vers 4.2,3 --client kernel sqlite posix git fsx pjdfstest || rc=1
$lab suite --quick --server hither --vers 4.1 --client kernel sqlite || rc=1
$lab suite --quick --server hither --vers 3 --client kernel sqlite || rc=1
$lab suite --server hither --vers 4.2,3 --client kernel nested || rc=1
# `hither serve` with our own client.
$lab suite --quick --server hither --vers 4.2,3 --client hither git sqlite make || rc=1
$lab suite --server hither --vers 4.2 --client hither pjdfstest || rc=1
$lab scenario --quick --server ganesha --vers 4.2 freeze cut cut-long locks isolation soft power || rc=1
$lab scenario --server ganesha,knfsd,hither --vers 4.2 histories || rc=1
# The guest's clock ticks a hundred times a second, and NFSv3 tells versions of a file apart by its times: not on its server.
$lab scenario --server ganesha,hither --vers 3 histories || rc=1
exit $rc
