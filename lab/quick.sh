#!/bin/bash
# The quick suites and faults of `make test`, on nfs-ganesha. nfs41 also plays hither servers.
set -uo pipefail
cd "$(dirname "$0")/.."
lab/lanes.sh quick 3 <<'END'
suite --quick --server ganesha --vers 4.2 --client hither posix git sqlite fsx pjdfstest
suite --quick --server ganesha --vers 3 --client hither posix git sqlite fsx pjdfstest
scenario --quick --server ganesha --vers 4.2 restart break interrupt umount-dead
nfs41 --server hither,ganesha,gateway
END
