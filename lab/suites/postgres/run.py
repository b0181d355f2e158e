#!/usr/bin/python3
"""PostgreSQL: initdb, pgbench, a crash in the middle, recovery, checksums of every page."""
import contextlib, ctypes, glob, os, signal, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from kit import *

s = Suite()
# Orphans come to this process: a killed server that nobody reaps would still count as running.
ctypes.CDLL(None).prctl(36, 1)      # PR_SET_CHILD_SUBREAPER
BIN = max(glob.glob("/usr/lib/postgresql/*/bin"), default="")
DATA, SOCKETS = s.p("data"), f"{s.tmp}/pg"
SCALE, CLIENTS, TRANSACTIONS = s.pick((1, 2, 100), (5, 4, 500))


def pg(tool, *words, **kw):
    """One of PostgreSQL's programs, as its user (it refuses root)."""
    return sh(["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups", f"{BIN}/{tool}", *words],
              cwd=SOCKETS, **kw)


def sql(text):
    return pg("psql", "-h", SOCKETS, "-d", "postgres", "-Atc", text).strip()


def start():
    pg("pg_ctl", "-D", DATA, "-w", "-t", "600", "-l", f"{SOCKETS}/log", "-o",
       f"-c listen_addresses='' -c unix_socket_directories='{SOCKETS}' -c shared_buffers=16MB -c max_connections=20", "start")


def consistent():
    """pgbench adds the same delta to three tables and a history, in one transaction."""
    sums = {t: sql(f"select coalesce(sum({c}), 0) from pgbench_{t}")
            for t, c in (("accounts", "abalance"), ("tellers", "tbalance"), ("branches", "bbalance"), ("history", "delta"))}
    equal(len(set(sums.values())), 1, f"sums {sums}: different values")
    return int(sql("select count(*) from pgbench_history"))


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


def children(pid):
    return open(f"/proc/{pid}/task/{pid}/children").read().split()


os.makedirs(SOCKETS)
sh(["chown", "postgres:", SOCKETS]), os.chmod(s.tmp, 0o755)


@s.case("initdb")
def _():
    check(BIN, "PostgreSQL is not installed")
    os.mkdir(DATA, 0o700)
    sh(["chown", "postgres:", DATA])
    pg("initdb", "-D", DATA, "-k", "-A", "trust", "--locale=C.UTF-8", "-E", "UTF8")


@s.case("start")
def _():
    start()
    equal(sql("select 6 * 7"), "42")


@s.case("pgbench-init")
def _():
    pg("pgbench", "-h", SOCKETS, "-i", "-q", "-s", str(SCALE), "postgres")
    equal(sql("select count(*) from pgbench_accounts"), str(SCALE * 100_000))


@s.case("pgbench")
def _():
    out = pg("pgbench", "-h", SOCKETS, "-c", str(CLIENTS), "-j", "2", "-t", str(TRANSACTIONS), "postgres")
    check("number of failed transactions: 0" in out, out[-400:])
    equal(consistent(), CLIENTS * TRANSACTIONS, "transactions in the history")
    print("#", next((x for x in out.splitlines() if x.startswith("tps")), ""), flush=True)


@s.case("crash-and-recovery")
def _():
    before = consistent()
    load = subprocess.Popen(["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups", f"{BIN}/pgbench", "-h",
                             SOCKETS, "-n", "-c", "2", "-T", "600", "postgres"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while int(sql("select count(*) from pgbench_history")) < before + 30 and time.monotonic() < end:
        time.sleep(0.2)
    seen = int(sql("select count(*) from pgbench_history"))
    master = int(open(f"{DATA}/postmaster.pid").readline())
    backends = children(master)
    os.kill(master, signal.SIGKILL)
    os.waitpid(master, 0)
    load.wait(300)
    # The children end by themselves when their parent is gone; a new server refuses to start before.
    for _ in range(3000):
        if not any(map(alive, backends)):
            break
        time.sleep(0.1)
    start()
    after = consistent()
    check(after >= seen > before, "history before", before, "seen before the crash", seen, "after", after)


@s.case("vacuum-and-amcheck")
def _():
    sql("vacuum full analyze")
    pg("pg_amcheck", "-h", SOCKETS, "--install-missing", "--heapallindexed", "postgres")


@s.case("stop-and-checksums")
def _():
    pg("pg_ctl", "-D", DATA, "-w", "-m", "fast", "stop")
    out = pg("pg_checksums", "--check", "-D", DATA)
    check("Bad checksums:  0" in out, out)


if os.path.exists(f"{DATA}/postmaster.pid"):      # a failed case must not leave a server behind
    with contextlib.suppress(Exception):
        pg("pg_ctl", "-D", DATA, "-m", "immediate", "stop")
