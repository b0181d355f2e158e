#!/bin/bash
# The suites and scenarios that `make test` leaves out. They include the Linux kernel's server and
# client, every version and every fault. `full.sh all` runs each suite at full length on every
# server and version, which takes hours.
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
# `hither serve` with the kernel's client and with hither, faults and histories, and other servers
# with hither. The guest's kernel lacks newer features of FUSE. Its clock ticks a hundred times a
# second, and NFSv3 distinguishes versions of a file by its times. The guest's server therefore has
# no histories with NFSv3.
#
# Kerberos has a laboratory of its own.
kerberos=$(mktemp)
trap 'rm -f "$kerberos"' EXIT
lab/kerberos.sh > "$kerberos" 2>&1 &
rc=0
lab/lanes.sh full 3 <<'END' || rc=1
suite --quick --server hither --vers 4.2 --client kernel sqlite posix git fsx pjdfstest
suite --quick --server hither --vers 3 --client kernel sqlite posix git fsx pjdfstest
suite --quick --server knfsd --vers 4.2 --client hither posix git sqlite fsx make pjdfstest postgres tree
suite --quick --server knfsd --vers 3 --client hither posix git sqlite fsx make pjdfstest postgres tree
scenario --quick --server ganesha --vers 4.2 freeze cut cut-long locks
scenario --quick --server ganesha --vers 4.2 isolation soft power
suite --server hither --vers 4.2,3 --client kernel nested
scenario --server knfsd --vers 4.2 histories
scenario --server hither --vers 4.2 histories
suite --quick --server gateway --vers 4.2,3 --client hither fsx git sqlite tree
suite --quick --server gateway --vers 4.2 --client hither posix pjdfstest
suite --quick --server gateway --vers 4.2,3 --client kernel posix
suite --quick --server gateway --vers 3 --client kernel fsx git
scenario --server hither --vers 3 histories
scenario --server ganesha --vers 3 histories
scenario --server ganesha --vers 4.2 histories
suite --quick --server ganesha --vers 4.2 --client hither tree make
suite --quick --server ganesha --vers 4.2 --client hither-guest posix git
nfs41 --server knfsd
suite --server ganesha --vers 4.2,4.1,3 --client hither pjdfstest
suite --quick --server hither --vers 4.1 --client kernel sqlite
suite --quick --server hither --vers 4.2,3 --client hither git sqlite make
suite --server hither --vers 4.2 --client hither pjdfstest
END
wait %1 || rc=1
cat "$kerberos"
exit $rc
