"""The kernel's server in this guest exports the mount again, and the kernel's client mounts that."""
import os

import handles
from kit import check, digest, equal, same_tree, sh, snapshot

# Ports of their own: the guest has no other server, but the same addresses as its mounts.
START = """
mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
mkdir -p /var/lib/nfs/v4recovery /var/lib/nfs/nfsdcltrack /run/again; : >/var/lib/nfs/etab; : >/var/lib/nfs/rmtab
[ -d /run/etc ] || { mkdir /run/etc; touch /run/etc/nfs.conf; mount --bind /run/etc/nfs.conf /etc/nfs.conf; mount -t tmpfs none /etc/nfs.conf.d || true; }
pidof rpcbind >/dev/null || rpcbind -w
echo 1 >/proc/sys/fs/nfs/nlm_grace_period
rpc.nfsd -V 3 -V 4 -V 4.1 -V 4.2 4
echo Y >/proc/fs/nfsd/v4_end_grace
pidof rpc.mountd >/dev/null || rpc.mountd -p 20048
"""


def cases(s, server):
    case, p = s.case, s.p

    def again(version):
        """Exports the suite's directory again, and mounts it."""
        options = "rw,no_root_squash,no_subtree_check,insecure,crossmnt"
        sh(f"exportfs -au; exportfs -i -o {options},fsid=0 '*:{s.dir}'; "
           f"exportfs -i -o {options},fsid=12 '*:{p('m')}'; exportfs -i -o {options},fsid=13 '*:{p('m/deep')}'")
        path, options = (s.dir, "vers=3,mountport=20048,nolock,mountproto=tcp") if version == "3" else ("/", f"vers={version}")
        sh(f"mount.nfs 127.0.0.1:{path} /run/again -o {options},port=2049,actimeo=1")

    @case("re-export-start")
    def start():
        modules = os.environ.get("RUN", "") + "/mods"
        sh(f"set -e; modprobe -d {modules} nfsd; {START}")

    for version in ("4.2", "3"):
        @case(f"re-export-{version}")
        def re_export():
            top = "/run/again"
            # Entered, so that the server of this guest finds mounts there.
            check(os.listdir(p("m")) and os.listdir(p("m/deep")))
            again(version)
            try:
                for at in ("plain", "m/a/b/c", "m/deep/a/b/c"):
                    handles.forget()
                    dir = os.path.join(top, at)
                    held = os.open(dir, os.O_RDONLY)
                    os.makedirs(f"{dir}/n1/n2/n3")
                    f = os.open(f"{dir}/n1/n2/n3/f", os.O_CREAT | os.O_RDWR)
                    os.write(f, b"one")
                    os.fsync(f)
                    handles.forget()
                    os.write(f, b"two")
                    os.fsync(f)
                    equal(os.pread(f, 10, 0), b"onetwo")
                    handles.forget()
                    check("n1" in os.listdir(held))
                    with open(os.open("n1/n2/n3/g", os.O_CREAT | os.O_WRONLY, dir_fd=held), "wb") as g:
                        g.write(os.urandom(3_000_000))
                    handles.forget()
                    os.rename(f"{dir}/n1/n2", f"{dir}/n2")
                    os.lseek(f, 0, os.SEEK_SET)
                    equal(os.read(f, 10), b"onetwo")
                    os.close(f)
                    os.close(held)
                    handles.forget()
                    equal(server.here(f"cat {at}/n2/n3/f"), "onetwo")
                    equal(server.here(f"sha256sum <{at}/n2/n3/g").split()[0], digest(f"{dir}/n2/n3/g"))
                handles.forget()
                same_tree(snapshot(top), snapshot(s.dir))
                for at in ("plain", "m/a/b/c", "m/deep/a/b/c"):
                    sh(f"rm -r {top}/{at}/n1 {top}/{at}/n2")
                equal(server.here("ls plain m/a/b/c").split().count("n2"), 0)
            finally:
                sh(f"umount -l {top}/m/deep {top}/m 2>/dev/null; umount {top} || umount -l {top}; exportfs -au; exportfs -f")

    @case("re-export-end")
    def end():
        sh("rpc.nfsd 0; exportfs -au; kill $(pidof rpc.mountd); umount /proc/fs/nfsd")
