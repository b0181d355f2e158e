#!/bin/bash
# Tests the dashboard of a mount of `hither serve` in a real browser. The browser is headless
# Chromium, driven by its own protocol. The network has only loopback. Pictures go to
# target/dashboard. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
hither=$(realpath "${HITHER:-target/release/hither}")
if [ "${1:-}" != inside ]; then
  [ "$(id -u)" = 0 ] || { echo "mounting needs root" >&2; exit 1; }
  for browser in chromium-headless-shell chromium google-chrome chrome; do
    BROWSER=$(command -v $browser) && break
  done
  [ -n "$BROWSER" ] || { echo "no browser: apt-get install chromium-headless-shell (or chromium)" >&2; exit 1; }
  pictures=$PWD/target/dashboard
  mkdir -p "$pictures"
  work=$(mktemp -d /tmp/hither-browser.XXXXXX)
  trap 'rm -rf "$work"' EXIT
  # When the first process of the namespaces ends, all others end.
  HITHER=$hither BROWSER=$BROWSER WORK=$work PICTURES=$pictures unshare --mount --net --pid --fork --kill-child --mount-proc "$0" inside
  exit
fi
ip link set lo up
mkdir "$WORK/srv" "$WORK/mnt"
(cd / && exec "$hither" serve "$WORK/srv" --listen 127.0.0.1:20490 --state-dir "$WORK/state" --grace 1) > "$WORK/serve.log" 2>&1 &
for _ in $(seq 100); do
  (exec 3<>/dev/tcp/127.0.0.1/20490) 2>/dev/null && break
  sleep 0.1
done
url=$("$hither" mount -o port=20490,cache="$WORK/cache" --dashboard 127.0.0.1:/ "$WORK/mnt" 2>&1 | sed -n "s/.*dashboard: //p")
[ -n "$url" ] || { echo "the mount told no address of a dashboard" >&2; exit 1; }
python3 -B lab/work/browser.py "$BROWSER" "$url" "$WORK/mnt" "$HITHER" "$PICTURES"
