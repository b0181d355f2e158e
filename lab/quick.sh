#!/bin/bash
# The quick suites and faults of `make test`: nfs-ganesha, NFSv4.2 and NFSv3.
set -uo pipefail
cd "$(dirname "$0")/.."
lab/lanes.sh quick 3 <<'END'
suite --quick --server ganesha --vers 4.2 --client hither posix git sqlite fsx pjdfstest
suite --quick --server ganesha --vers 3 --client hither posix git sqlite fsx pjdfstest
scenario --quick --server ganesha --vers 4.2 restart break interrupt umount-dead
nfs41 --server hither,ganesha
END
