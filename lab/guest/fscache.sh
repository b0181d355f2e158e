#!/bin/bash
# FS-Cache for the kernel's client in the guest. `start` makes an empty cache on the guest's second
# disk and starts cachefilesd. Mounts use the cache with the option `fsc`. `stop` ends it. Without
# cachefilesd the script reports that and fails.
{ # one block: bash parses it whole, so editing this file does not hit a running guest
set -e
dir=/run/fscache conf=/run/cachefilesd.conf pid=/run/cachefilesd.pid
stop() {
  if [ -e $pid ]; then
    kill "$(cat $pid)" 2>/dev/null || true
    for _ in $(seq 100); do [ -e /proc/"$(cat $pid 2>/dev/null || echo none)" ] || break; sleep 0.1; done
    rm -f $pid
  fi
  for _ in $(seq 30); do mountpoint -q $dir || break; umount $dir 2>/dev/null && break; sleep 0.3; done
}
case $1 in
  start)
    daemon=$(command -v cachefilesd) || { echo "no cachefilesd; install it for FS-Cache"; exit 1; }
    [ -b /dev/ubda ] || { echo "the guest has no disk for FS-Cache; stop it and start it again"; exit 1; }
    stop
    mkdir -p $dir
    mkfs.ext4 -q -F -E lazy_itable_init=1,nodiscard /dev/ubda
    mount -t ext4 /dev/ubda $dir
    printf '%s\n' "dir $dir" "tag lab" "brun 10%" "bcull 7%" "bstop 3%" "frun 10%" "fcull 7%" "fstop 3%" >$conf
    "$daemon" -n -f $conf -p $pid >/run/cachefilesd.log 2>&1 &
    sleep 1
    [ -e $pid ] || echo $! >$pid
    kill -0 "$(cat $pid)" || { echo "cachefilesd ended: $(tail -n 3 /run/cachefilesd.log)"; exit 1; } ;;
  stop) stop ;;
  *) echo "fscache.sh start|stop"; exit 2 ;;
esac
exit
}
