#!/usr/bin/python3
"""SQLite in every journal mode: two writers at a time, one of them killed, integrity_check, a local twin."""
import os, random, signal, sqlite3, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from kit import *

s = Suite()
ROWS, COMMITS = s.pick((300, 8), (3000, 25))


def connect(path, mode):
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    got = db.execute(f"pragma journal_mode={mode}").fetchone()[0]
    equal(got, mode, "journal mode")
    db.execute("pragma synchronous=full")
    return db


def fill(path, mode):
    """The same contents wherever it runs."""
    rng = random.Random(5)
    db = connect(path, mode)
    db.execute("create table t (id integer primary key, k text, v blob)")
    db.execute("create index ik on t (k)")
    for part in range(10):
        db.execute("begin")
        for i in range(ROWS // 10):
            db.execute("insert into t (k, v) values (?, ?)", (f"k{rng.randrange(10**9)}", rng.randbytes(rng.randint(0, 900))))
        db.execute("delete from t where id % 17 = ?", (part,))
        db.execute("update t set v = cast(v || x'00ff' as blob) where id % 13 = ?", (part,))
        db.execute("commit")
    db.execute("vacuum")
    return db


def dump(db):
    return db.execute("select id, k, v from t order by id").fetchall()


def integrity(db):
    equal(db.execute("pragma integrity_check").fetchall(), [("ok",)], "integrity_check")


def writer(path, mode, who, log, for_ever=False):
    """A process that commits numbered rows and notes each commit outside; its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        db = connect(path, mode)
        n = 0
        with open(log, "a") as f:
            while for_ever or n < COMMITS:
                db.execute("begin immediate")
                db.execute("insert into w values (?, ?)", (who, n))
                db.execute("update total set n = n + 1")
                db.execute("commit")
                f.write(f"{n}\n")
                f.flush()
                n += 1
        code = 0
    except BaseException as e:
        print(f"# writer {who}: {e!r}", flush=True)
    os._exit(code)


def committed(log):
    return len(open(log).read().split())


for mode in ("delete", "truncate", "persist", "wal"):
    path, twin = s.p(f"{mode}.db"), f"{s.tmp}/{mode}.db"

    @s.case(f"{mode}.fill")
    def _():
        here, there = fill(path, mode), fill(twin, mode)
        integrity(here)
        equal(dump(here) == dump(there), True, "contents agree with the local twin")
        here.close(), there.close()

    @s.case(f"{mode}.reopen")
    def _():
        db = connect(path, mode)
        integrity(db)
        equal(db.execute("select count(*), sum(length(v)) from t").fetchone(),
              sqlite3.connect(twin).execute("select count(*), sum(length(v)) from t").fetchone(), "rows, bytes")
        db.execute("create table w (who, n)"), db.execute("create table total (n)")
        db.execute("insert into total values (0)")
        db.close()

    @s.case(f"{mode}.two-writers")
    def _():
        logs = [f"{s.tmp}/{mode}.{w}" for w in (1, 2)]
        pids = [writer(path, mode, w, logs[w - 1]) for w in (1, 2)]
        equal([os.waitpid(p, 0)[1] for p in pids], [0, 0], "exit of the writers")
        db = connect(path, mode)
        integrity(db)
        equal(db.execute("select n from total").fetchone()[0], 2 * COMMITS, "updates of one row by two writers")
        equal(db.execute("select count(distinct who || ' ' || n) from w").fetchone()[0], 2 * COMMITS, "rows")

    @s.case(f"{mode}.killed-writer")
    def _():
        log = f"{s.tmp}/{mode}.3"
        open(log, "w").close()
        pid = writer(path, mode, 3, log, for_ever=True)
        end = time.monotonic() + 60
        while committed(log) < 5 and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        n = committed(log)
        check(n >= 5, "the writer got nowhere:", n, "commits")
        db = connect(path, mode)
        integrity(db)
        rows = [r[0] for r in db.execute("select n from w where who = 3 order by n")]
        check(len(rows) in (n, n + 1), n, "commits were acknowledged,", len(rows), "are there")
        equal(rows, list(range(len(rows))), "a commit is missing")
        db.execute("delete from w where who = 3")
        db.close()
