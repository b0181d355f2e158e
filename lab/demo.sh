#!/bin/bash
# A visible session: a real NFS server on this machine, mounted by hither. Everything is in a namespace of its own
# and gone afterwards, also after a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
lab="target/release/hither-lab --name demo"
hither=$PWD/target/release/hither
mnt=$(mktemp -d /tmp/hither-demo.XXXXXX)
end() {
  $lab exec -- "$hither" umount "$mnt" >/dev/null 2>&1 || true
  $lab down >/dev/null 2>&1 || true
  rmdir "$mnt" 2>/dev/null || true
}
trap end EXIT
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
say "1. An NFS server (nfs-ganesha) in a network namespace"
$lab up
$lab server start ganesha
say "2. hither mounts it"
session=$(mktemp)
cat > "$session" <<S
set -euo pipefail
run() { printf '\n\$ %s\n' "\$*"; "\$@"; }
run "$hither" mount 10.98.0.1:/export "$mnt"
run findmnt "$mnt"
printf '\n\033[1m3. Files are written, read back and compared\033[0m\n'
cd "$mnt"; rm -rf demo; mkdir demo; cd demo
head -c 8M /dev/urandom > /tmp/hither-demo.body
run cp /tmp/hither-demo.body big
run cmp /tmp/hither-demo.body big
rm -f /tmp/hither-demo.body
run mkdir -p a/b/c
run bash -c 'for i in 1 2 3; do echo "line \$i" >> a/b/c/log; sync a/b/c/log; done; cat a/b/c/log'
run ln -s a/b/c/log latest
run ls -lR
run tar cf /dev/null .
cd /
printf '\n\033[1m4. What it cost\033[0m\n'
run "$hither" stat "$mnt"
rm -rf "$mnt/demo"
run "$hither" umount "$mnt"
S
$lab exec -- bash "$session"
rm -f "$session"
say "Done: everything was read back as it was written."
