"""What every suite here shares.

A suite is a program `SUITE/run.py DIR [--tmp LOCAL] [--quick]`: DIR is an empty directory on the
file system under test, LOCAL one on a local disk. It prints two lines per case,

    begin NAME
    ok NAME (or: not ok NAME: why)

and leaves with 0 when it ran to its end, whatever the cases said: `hither-lab suite` compares
them with the suite's list of expected failures. It knows nothing of NFS or of who mounted DIR.
"""
import argparse, faulthandler, hashlib, os, subprocess, sys, traceback


# Longest time of a case, in seconds.
CASE_S = 900
HERE = os.path.dirname(os.path.abspath(__file__)) + "/"


class Suite:
    def __init__(self):
        a = argparse.ArgumentParser()
        a.add_argument("dir")
        a.add_argument("--tmp", default="/tmp")
        a.add_argument("--tools", default="", help="directory of programs that the laboratory installed")
        a.add_argument("--server", default="", help="what kind of server it is, where that matters")
        a.add_argument("--vers", default="")
        a.add_argument("--quick", action="store_true")
        a.add_argument("--only", default="", help="cases whose name contains this")
        o = a.parse_args()
        self.dir, self.tmp, self.quick, self.only, self.tools = o.dir, o.tmp, o.quick, o.only, o.tools
        self.server, self.vers = o.server, o.vers
        os.environ["TMPDIR"] = self.tmp
        # What a session of the user has set must not change a result.
        for k in [k for k in os.environ if k.startswith(("GIT_", "PG", "LD_"))]:
            del os.environ[k]
        os.environ.update(LC_ALL="C.UTF-8", GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_SYSTEM="/dev/null",
                          PYTHONDONTWRITEBYTECODE="1")
        os.umask(0o022)

    def pick(self, quick, full):
        return quick if self.quick else full

    def p(self, *parts):
        return os.path.join(self.dir, *parts)

    def case(self, name):
        """Decorator: runs the function at once as a case. An exception is its failure; the next case goes on."""
        def run(body):
            if self.only and self.only not in name:
                return
            # A case that hangs ends the suite, and the last lines show where.
            print(f"begin {name}", flush=True)
            faulthandler.dump_traceback_later(CASE_S, exit=True, file=sys.stdout)
            try:
                body()
                print(f"ok {name}", flush=True)
            except Exception as e:
                # The deepest line of the suite itself says more than one inside a library.
                own = [f for f in traceback.extract_tb(e.__traceback__) if os.path.abspath(f.filename).startswith(HERE) and not f.filename.endswith("kit.py")]
                at = f"{os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else "kit.py"
                why = " ".join((str(e) or type(e).__name__).split())
                print(f"not ok {name}: {why[:600]} ({at})", flush=True)
            finally:
                faulthandler.cancel_dump_traceback_later()
        return run


def check(truth, *why):
    """Like assert, but with values in the message and never optimised away."""
    if not truth:
        raise AssertionError(" ".join(map(str, why)) or "not as it should be")


def equal(got, want, what=""):
    if got != want:
        raise AssertionError(f"{what}: got {short(got)}, want {short(want)}")


def short(v):
    s = repr(v)
    return s if len(s) < 200 else s[:200] + "..."


def sh(cmd, **kw):
    """Runs a shell line or a list of words; its output, or an exception that shows it."""
    kw.setdefault("timeout", 1200)
    r = subprocess.run(cmd, shell=isinstance(cmd, str), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, **kw)
    out = r.stdout.decode(errors="replace")
    if r.returncode:
        raise AssertionError(f"{cmd if isinstance(cmd, str) else ' '.join(cmd)}: code {r.returncode}: {out[-400:]}")
    return out


def digest(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while b := f.read(1 << 20):
            h.update(b)
    return h.hexdigest()


def snapshot(root, times=False, links=False):
    """A tree as a dictionary: name -> (type, mode, contents or target...)."""
    root = os.fsencode(root)
    tree, inodes = {}, {}
    for top, dirs, files in os.walk(root):
        dirs.sort()
        for n in sorted(dirs + files):
            p = os.path.join(top, n)
            rel, st = os.path.relpath(p, root), os.lstat(p)
            kind = {0o120000: "link", 0o040000: "dir", 0o100000: "file"}.get(st.st_mode & 0o170000, "other")
            entry = [kind, st.st_mode & 0o7777 if kind != "link" else 0]
            if kind == "file":
                entry += [st.st_size, digest(p)]
                if links and st.st_nlink > 1:
                    entry.append(("same as", inodes.setdefault((st.st_dev, st.st_ino), rel)))
            elif kind == "link":
                entry.append(os.readlink(p))
            if times and kind == "file":      # not every server can set the times of a symlink
                entry.append(st.st_mtime_ns)
            tree[rel] = tuple(entry)
    return tree


def same_tree(a, b, what="trees differ"):
    for k in sorted(set(a) | set(b)):
        if a.get(k) != b.get(k):
            raise AssertionError(f"{what} at {k!r}: {a.get(k)} and {b.get(k)}")
