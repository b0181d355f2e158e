#!/bin/bash
# Init of the guest with the kernel's NFS server: exports the ext4 image on ubda as fsid 0.
{
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/run LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
mount -t proc proc /proc; mount -t sysfs sys /sys
mount -t tmpfs tmpfs /run
# The records for reclaims after a restart must survive a power cut. They are on their own image.
mount -t ext4 -o sync /dev/ubdb /var/lib/nfs || { echo "no state disk"; halt -f; }
mkdir -p /var/lib/nfs/{v4recovery,sm,rpc_pipefs,nfsdcltrack,nfsdcld}; : > /var/lib/nfs/etab; : > /var/lib/nfs/rmtab
# Only the settings in this script apply, not the host's configuration. Debian's configuration makes
# mountd look groups up by user id, which hides the groups that clients send.
mount --bind /dev/null /etc/nfs.conf; [ -d /etc/nfs.conf.d ] && mount -t tmpfs tmpfs /etc/nfs.conf.d
hostname knfsd
mount -t ext4 -o noatime /dev/ubda /srv || { echo "no disk"; halt -f; }
ip link set lo up; ip addr add $MYIP/24 dev vec0; ip link set vec0 up
for m in nfsd nfsv3 nfsv4; do modprobe -d $RUN/mods $m || echo "no module $m"; done
mount -t nfsd nfsd /proc/fs/nfsd
rpcbind -w
# No delegation is granted in the grace period of lockd (50 s by default), so it is shortened too.
echo $GRACE > /proc/sys/fs/nfs/nlm_grace_period
# nfsd's delegations are leases of the local file system.
echo ${DELEG:-1} > /proc/sys/fs/leases-enable
echo 1048576 > /proc/fs/nfsd/max_block_size     # the default shrinks with memory (1 GB: 128 KB)
echo $GRACE > /proc/fs/nfsd/nfsv4gracetime; echo $LEASE > /proc/fs/nfsd/nfsv4leasetime
# fsid=0, because hostfs cannot be exported. The image itself is the NFSv4 root (v4 path "/", v3
# path "/srv").
exportfs -i -o rw,$MODE,no_root_squash,no_subtree_check,fsid=0,insecure '*:/srv'
# Kernels without the older records of clients need a daemon for reclaims after a restart.
case $(uname -r) in 6.1.*) ;; *) mount -t rpc_pipefs rpc_pipefs /var/lib/nfs/rpc_pipefs; nfsdcld ;; esac
rpc.nfsd -V 3 -V 4 -V 4.1 -V 4.2 8
rpc.mountd -p 20048
cat /proc/fs/nfsd/versions; exportfs -v
cd /
/usr/bin/python3 $LAB/guest/agent.py $MYIP &
while :; do wait; sleep 1; done  # init reaps orphaned processes
}
