"""The server's machine, as the suite sees it: the laboratory's agent there runs shell scripts in the
exported directory, and exports it with other options. The mount under DIR says where that is.
"""
import json, socket

import kit

PORT = 7000


def mount_of(directory):
    """Source, mount point, type and options of the mount that a directory is on."""
    mounts = (line.split()[:4] for line in open("/proc/mounts"))
    return max((m for m in mounts if (directory + "/").startswith(m[1].rstrip("/") + "/")), key=lambda m: len(m[1]))


class Machine:
    def __init__(self, kind, directory):
        self.kind = kind
        self.source, point, _, options = mount_of(directory)
        self.host = self.source.split(":")[0]
        # Directory of the suite, below the exported one.
        self.base = directory[len(point) + 1:]
        words = [o for o in options.split(",") if o.split("=")[0] in ("vers", "port", "mountport", "proto", "nolock")]
        if "vers=3" in words:
            words = [w for w in words if w != "nolock"] + ["nolock", "mountproto=tcp"]
        self.options = ",".join(words)

    def run(self, script):
        """Runs a script in the exported directory; its output."""
        script = ("" if self.kind == "hither" else "cd /srv; ") + "set -e; export PATH=$PATH:/sbin:/usr/sbin; " + script
        with socket.create_connection((self.host, PORT)) as s:
            s.sendall(json.dumps({"script": script, "limit_s": 60}).encode() + b"\n")
            frames = [json.loads(line) for line in s.makefile()]
        out = "\n".join(f["line"] for f in frames if "line" in f)
        code = [f["code"] for f in frames if "code" in f]
        kit.check(code == [0], f"at the server: {script}: code {code}: {out}")
        return out

    def here(self, script):
        """The same in the suite's directory."""
        return self.run(f"cd {self.base}; {script}")

    def ext4(self, at):
        """Mounts a new small ext4 at a directory of the suite."""
        self.mounted("[ -b /dev/loop0 ] || modprobe -d $RUN/mods loop; f=$(mktemp -p /run); truncate -s 8M $f; "
                     f"mkfs.ext4 -q -F $f; mkdir -p {at}; mount -o loop $f {at}; rm $f; rmdir {at}/lost+found")

    def tmpfs(self, at):
        self.mounted(f"mkdir {at}; mount -t tmpfs tmpfs {at}")

    def umount(self, at, how=""):
        # knfsd keeps what it has exported; without its caches it lets go.
        flush = "exportfs -f; " if self.kind == "knfsd" else ""
        self.mounted(f"{flush}umount {how} {at}")

    def mounted(self, script):
        """Runs a script in the suite's directory that mounts or unmounts."""
        self.until_told("mounts below exports have changed", f"cd {self.base}; {script}")

    def until_told(self, said, script):
        """Runs a script that makes hither say something, and waits until it has."""
        if self.kind == "knfsd":
            return self.run(script)
        return self.run(f"console=$PWD/../console; n() {{ grep -c '{said}' $console || true; }}; before=$(n); {script}; "
                        f"for i in $(seq 200); do [ $(n) -gt $before ] && exit; sleep 0.05; done; tail -n 3 $console; exit 1")

    def exports(self, top, inside=()):
        """Exports the directory with options, and directories of the suite below it: (path, options)."""
        if self.kind == "knfsd":
            lines = [("/srv", f"fsid=0,{top}")] + [(f"/srv/{self.base}/{path}", options) for path, options in inside]
            common = "sync,no_root_squash,no_subtree_check,insecure"
            lines = [f"exportfs -i -o {common},{options} '*:{path}'" for path, options in lines]
            self.run("exportfs -au; " + "; ".join(lines) + "; exportfs -f")
            return
        lines = [("$PWD", f"fsid=0,{top}")] + [(f"$PWD/{self.base}/{path}", options) for path, options in inside]
        lines = [f'echo "{path} *(no_root_squash,{options})"' for path, options in lines]
        self.until_told("exports read again", f"{{ {'; '.join(lines)}; }} >../exports; kill -HUP $(cut -d' ' -f1 ../hither.pid)")

    def clear(self):
        """Unmounts all that is below the suite's directory, and exports as at the start."""
        self.run(f"for m in $(cut -d' ' -f2 /proc/mounts | grep \"$PWD/{self.base}/\" | tac); do umount -l $m; done")
        self.exports("rw")
