#!/bin/bash
# Init of the guest with the kernel's NFS client: network, modules, then the agent without end.
{ # one block: bash parses it whole, so editing this file does not hit a running guest
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/run LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
mount -t proc proc /proc; mount -t sysfs sys /sys
# The root is the host's. File systems in memory take all writes.
mkdir -p /dev/shm       # on the guest's own devtmpfs
for d in /run /mnt /var/lib/nfs /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $d; done
mkdir -p /run/tmp /run/lock /mnt/{nfs,nfs2} /var/lib/nfs/{sm,rpc_pipefs}; export TMPDIR=/run/tmp
hostname guest
ip link set lo up; ip addr add $MYIP/24 dev vec0; ip link set vec0 up
for m in nfsv3 nfsv4 fuse cachefiles; do modprobe -d $RUN/mods $m || echo "no module $m"; done
cd /
/usr/bin/python3 $LAB/guest/agent.py $MYIP &
while :; do wait; sleep 1; done  # init reaps orphaned processes
}
