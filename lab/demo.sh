#!/bin/bash
# A visible session: hither serves a directory of this machine and mounts it. Processes and mounts
# are in private namespaces and disappear at the end, also after a failure. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
top=$PWD
hither=$(realpath "${HITHER:-target/release/hither}")
if [ "${1:-}" != inside ]; then
  [ "$(id -u)" = 0 ] || { echo "mounting needs root: sudo make demo" >&2; exit 1; }
  [ -e /dev/fuse ] || modprobe fuse || { echo "this kernel has no FUSE (/dev/fuse)" >&2; exit 1; }
  work=$(mktemp -d /tmp/hither-demo.XXXXXX)
  trap 'rm -rf "$work"' EXIT
  # When the first process of the namespaces ends, all others end.
  HITHER=$hither WORK=$work unshare --mount --pid --fork --kill-child --mount-proc "$0" inside
  exit
fi
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '\n$ %s\n' "$*"; "$@"; }
port=20490
in_use() { (exec 3<>/dev/tcp/127.0.0.1/"$1") 2>/dev/null; }
while in_use $port || in_use $((port + 1)) || in_use $((port + 2)); do port=$((port + 1)); done
srv=$WORK/srv mnt=$WORK/mnt
mkdir "$srv" "$mnt"

say "1. hither serves a directory to NFS clients"
# Waits until process $2 listens on port $1.
listening() {
  for _ in $(seq 100); do
    kill -0 "$2" 2>/dev/null || exit 1
    (exec 3<>/dev/tcp/127.0.0.1/"$1") 2>/dev/null && return
    sleep 0.1
  done
  echo "the server does not listen" >&2
  exit 1
}
serve() {
  printf '\n$ hither serve %s\n' "$*"
  # The server must not have a file of the mount open, not even as its working directory.
  # The delayed connections of step 6 come from ordinary ports.
  (cd / && exec "$hither" serve "$@" -o rw,no_root_squash,insecure \
    --state-dir "$WORK/state" --grace 1) 4>&- &
  server=$!
  listening $port $server
}
serve "$srv" --listen 127.0.0.1:$port

say "2. hither mounts it"
run "$hither" mount -o port=$port 127.0.0.1:/ "$mnt"
run findmnt "$mnt"

say "3. Files are written, read back and compared"
mkdir "$mnt/demo"
cd "$mnt/demo"
head -c 8M /dev/urandom > "$WORK/body"
run cp "$WORK/body" big
run cmp "$WORK/body" big
run cmp "$WORK/body" "$srv/demo/big"
run mkdir -p a/b/c
run bash -c 'for i in 1 2 3; do echo "line $i" >> a/b/c/log; sync a/b/c/log; done; cat a/b/c/log'
run ln -s a/b/c/log latest
run ls -lR
run tar cf /dev/null .

say "4. The server is killed while a file is open, and started again"
exec 4> open
echo "before" >&4
run kill -9 $server
wait $server 2>/dev/null || true
serve "$srv" --listen 127.0.0.1:$port
echo "after" >&4
exec 4>&-
run cat open "$srv/demo/open"
[ "$(cat "$srv/demo/open")" = "before
after" ]

say "5. What it cost"
cd /
run "$hither" stat "$mnt"
rm -rf "$mnt/demo"
run "$hither" umount "$mnt"

say "6. A gateway brings a server at 50 ms near"
mkdir -p "$WORK/near" "$WORK/far" "$srv"/site/{1..10}
for dir in "$srv"/site/*; do
  for file in {1..20}; do echo "$dir, file $file" > "$dir/$file"; done
done
rustc -O --edition 2024 -o "$WORK/delay" "$top/lab/delay.rs"
"$WORK/delay" 127.0.0.1:$((port + 1)) 127.0.0.1:$port 50 &
delay=$!
# No client of the gateway gets data that is older than a minute.
set -- 127.0.0.1:/ --mount port=$((port + 1)),consistency=bounded=60 --listen 127.0.0.1:$((port + 2))
printf '\n$ hither gateway %s\n' "$*"
"$hither" gateway "$@" --state-dir "$WORK/gateway" --grace 1 &
gateway=$!
listening $((port + 2)) $gateway
# Reads the 200 files of the tree through a new mount: the first client, or the next one.
visit() {
  printf '\n%s\n' "$1"
  run "$hither" mount -o port="$2" 127.0.0.1:/ "$WORK/$3"
  local begun=${EPOCHREALTIME/./}
  grep -rc . "$WORK/$3/site" | sort > "$WORK/$3.read"
  printf '$ grep -rc . site: %d ms\n' $(((${EPOCHREALTIME/./} - begun) / 1000))
  [ "$(wc -l < "$WORK/$3.read")" = 200 ]
  "$hither" umount "$WORK/$3"
}
visit "A client at 50 ms from the server:" $((port + 1)) far
visit "The first client of the gateway:" $((port + 2)) near
visit "The second client of the gateway:" $((port + 2)) near
run kill $gateway
wait $gateway
kill $delay
rm -rf "$srv/site"
run kill $server
wait $server
say "Done: everything was read back as it was written."
