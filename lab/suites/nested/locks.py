"""Locks over NFSv3 without `nolock`, which hither denies at once."""
import errno, fcntl, os, time

from kit import check, sh
from mounts import refused

# The laboratories share processes and /run, but neither ports nor mounts. A server of another suite
# may have left its rpcbind at the port, where this server could not register.
RPCBIND = """
at_port() { ss -Hltnp 'sport = :111' | grep -o 'pid=[0-9]*' | cut -d= -f2 | sort -u; }
for pid in $(at_port); do kill $pid; done
for i in $(seq 200); do [ "$(at_port)" ] || break; sleep 0.05; done
mount -t tmpfs tmpfs /run
rpcbind -w -f >/dev/null 2>&1 & pid=$!
for i in $(seq 200); do [ -S /run/rpcbind.sock ] && break; sleep 0.05; done
[ "$(at_port)" = $pid ] || { kill $pid; umount -l /run; exit 1; }
echo $pid
"""
OPTIONS = "vers=3,proto=tcp,mountproto=tcp,lock,soft,timeo=100"


def cases(s, server):
    case, p = s.case, s.p
    if server.kind != "hither" or "vers=3" not in server.options.split(","):
        return

    @case("locks-are-denied-at-once")
    def denied():
        rpcbind = server.run(RPCBIND)
        try:
            server.exports("rw")
            sh("pidof rpcbind >/dev/null || rpcbind -w; pidof rpc.statd >/dev/null || rpc.statd --no-notify")
            ports = ",".join(o for o in server.options.split(",") if o.split("=")[0] in ("port", "mountport"))
            sh(f"mkdir -p /run/locked; mount.nfs {server.source} /run/locked -o {OPTIONS},{ports}")
            with open(f"/run/locked/{server.base}/locked", "w") as f:
                begun = time.monotonic()
                for _ in range(3):
                    refused(lambda: fcntl.flock(f, fcntl.LOCK_EX), errno.ENOLCK)
                    refused(lambda: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB), errno.ENOLCK)
                check(time.monotonic() - begun < 5, "a lock waits")
                f.write("written")
            check(open(p("locked")).read() == "written")
        finally:
            sh("umount -l /run/locked || true")
            server.run(f"kill {rpcbind}; umount -l /run")
