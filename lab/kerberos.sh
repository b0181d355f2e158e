#!/bin/bash
# Kerberos with the Linux kernel's peers: the kernel's client on `hither serve`, and hither on the
# kernel's server, with every flavor. `kerberos.sh` makes a laboratory of its own. Other arguments
# are parts of the script, which run inside of it and in its guests.
set -uo pipefail
cd "$(dirname "$0")/.."
self=$PWD/lab/kerberos.sh name=kerberos run=$PWD/lab/run/kerberos dir=$PWD/lab/run/kerberos/realm
hither=$PWD/target/release/hither
lab="target/release/hither-lab --name $name"
export KRB5_CONFIG=$dir/krb5.conf KRB5_KDC_PROFILE=$dir/kdc.conf

# The kernel's modules for Kerberos, which a guest does not find by itself.
modules() {
  local module
  for module in auth_rpcgss rpcsec_gss_krb5 cts cbc ecb aes_generic hmac sha1_generic sha256_generic; do
    modprobe -d "$run/mods" $module || echo "no module $module"
  done
  mountpoint -q /var/lib/nfs/rpc_pipefs || mount -t rpc_pipefs rpc_pipefs /var/lib/nfs/rpc_pipefs
  mount --bind "$dir/hosts" /etc/hosts
  mount --bind "$dir/idmapd.conf" /etc/idmapd.conf
  mount -t tmpfs -o mode=1777 tmpfs /tmp
}

# The realm, its users and its key distribution center.
center() {
  local principal
  mkdir -p "$dir"/{db,export/d}
  cat > "$KRB5_CONFIG" <<END
[libdefaults]
 default_realm = LAB.HITHER
 dns_lookup_kdc = false
 dns_lookup_realm = false
 rdns = false
 dns_canonicalize_hostname = false
[realms]
 LAB.HITHER = {
  kdc = 10.98.0.1
 }
END
  cat > "$KRB5_KDC_PROFILE" <<END
[kdcdefaults]
 kdc_listen = 10.98.0.1:88
 kdc_tcp_listen = 10.98.0.1:88
[realms]
 LAB.HITHER = {
  database_name = $dir/db/principal
  key_stash_file = $dir/db/stash
  acl_file = $dir/db/acl
 }
[logging]
 kdc = FILE:$dir/kdc.log
END
  printf '[General]\nDomain = lab.hither\nLocal-Realms = LAB.HITHER\n' > "$dir/idmapd.conf"
  printf '10.98.0.1 server.lab\n10.98.0.3 knfsd.lab\n127.0.0.1 localhost\n' > "$dir/hosts"
  kdb5_util create -s -P master > /dev/null 2>&1 || return 1
  for principal in nfs/server.lab nfs/knfsd.lab host/guest.lab host/client.lab; do
    kadmin.local -q "addprinc -randkey $principal" > /dev/null 2>&1
    kadmin.local -q "ktadd -k $dir/${principal#*/}.keytab $principal" > /dev/null 2>&1
  done
  # A user of every Debian system.
  kadmin.local -q "addprinc -pw secret daemon" > /dev/null 2>&1
  chown daemon "$dir/export/d"
  chmod a+rX "$dir" "$dir/export"
  chmod a+r "$KRB5_CONFIG"
  setsid krb5kdc -n > /dev/null 2>&1 &
  echo $! > "$dir/pids"
  setsid "$hither" serve "$dir/export" -o rw,sec=krb5:krb5i:krb5p -l 10.98.0.1:2150 --rpcbind off \
    --state-dir "$dir/state" --keytab "$dir/server.lab.keytab" > "$dir/serve.log" 2>&1 &
  echo $! >> "$dir/pids"
  for _ in $(seq 100); do (exec 3<> /dev/tcp/10.98.0.1/2150) 2> /dev/null && return; sleep 0.1; done
  cat "$dir/serve.log"
  return 1
}

# checked MOUNTPOINT LABEL MOUNT-COMMAND UNMOUNT-COMMAND: a user with a ticket writes, reads, and
# finds the bytes with another mount. A user without one may read nothing.
checked() {
  local at=$1 label=$2 ok=1 written found
  rm -f /tmp/krb5cc_1
  timeout 60 $3 || { echo "FAILED $label: no mount"; return; }
  written=$(timeout 90 setpriv --reuid 1 --regid 1 --clear-groups sh -ec "
    cd /; echo secret | kinit daemon > /dev/null; sleep 1.2; cd $at/d; rm -rf *
    echo hello > f; test \$(cat f) = hello; mv f g; mkdir dir; ls -l > /dev/null
    dd if=/dev/urandom of=big bs=1M count=8 2> /dev/null
    for i in 1 2 3 4 5 6 7 8; do cp big c\$i & done; wait
    for i in 1 2 3 4 5 6 7 8; do cmp big c\$i; done; rm c?
    md5sum < big") || ok=
  timeout 60 $4 || ok=
  timeout 60 $3 || ok=
  found=$(timeout 60 setpriv --reuid 1 --regid 1 --clear-groups sh -c "md5sum < $at/d/big; ls -ln $at/d/big | cut -d' ' -f3")
  [ "$found" = "$written"$'\n'1 ] || ok=
  timeout 60 setpriv --reuid 2 --regid 2 --clear-groups sh -c "cat $at/d/big || ls $at/d" > /dev/null 2>&1 && ok=
  timeout 60 $4 || ok=
  [ -n "$ok" ] && echo "ok $label" || echo "FAILED $label: wrote '$written', found '$found'"
}

# In the guest with the kernel's client.
client() {
  local vers flavor opts
  modules
  rpc.gssd -p /var/lib/nfs/rpc_pipefs -k "$dir/guest.lab.keytab"
  sleep 1
  for vers in 4.2 4.1 3; do for flavor in krb5 krb5i krb5p; do
    opts=vers=$vers
    [ $vers != 3 ] || opts=vers=3,mountport=2150,mountproto=tcp,nolock
    checked /mnt/nfs "kernel client, hither serve, vers=$vers, sec=$flavor" \
      "mount -t nfs -o $opts,sec=$flavor,port=2150,proto=tcp server.lab:/ /mnt/nfs" "umount /mnt/nfs"
  done; done
}

# In the guest with the kernel's server.
server() {
  modules
  KRB5_KTNAME=$dir/knfsd.lab.keytab rpc.svcgssd -n
  exportfs -i -o rw,sec=krb5:krb5i:krb5p,no_root_squash,no_subtree_check,fsid=0,insecure '*:/srv'
  mkdir -p /srv/d
  chown 1:1 /srv/d
}

# In the laboratory: hither on the kernel's server.
mounts() {
  local vers flavor path
  export KRB5_KTNAME=$dir/client.lab.keytab
  mount --bind "$dir/hosts" /etc/hosts
  mkdir -p /mnt/krb
  for vers in 4.2 4.1 3; do for flavor in krb5 krb5i krb5p; do
    path=/
    [ $vers != 3 ] || path=/srv
    checked /mnt/krb "hither, knfsd, vers=$vers, sec=$flavor" \
      "$hither mount -o retry=0,vers=$vers,sec=$flavor,mountport=20048 knfsd.lab:$path /mnt/krb" \
      "$hither umount /mnt/krb"
  done; done
}

if [ $# -gt 0 ]; then
  "$@"
  exit
fi
rm -rf "$dir"
trap '$lab down > /dev/null 2>&1; kill $(cat "$dir/pids"); rm -rf "$dir"' EXIT
$lab up && $lab exec -- "$self" center || { echo "0 passed, 1 failed"; exit 1; }
said=$(
  $lab server start knfsd && $lab exec -- python3 -c '
import json, socket, sys
agent = socket.create_connection(("10.98.0.3", 7000))
agent.sendall((json.dumps({"script": sys.argv[1], "limit_s": 60}) + "\n").encode())
for frame in map(json.loads, agent.makefile()):
    if "line" in frame: print(frame["line"])
    if "code" in frame: sys.exit(frame["code"])' "bash $self server" && $lab exec -- "$self" mounts
  $lab guest start && $lab guest exec -- bash "$self" client
)
echo "$said"
passed=$(grep -c '^ok ' <<< "$said") failed=$(grep -c '^FAILED ' <<< "$said")
# All eighteen must have run.
[ $((passed + failed)) = 18 ] || failed=$((18 - passed))
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
