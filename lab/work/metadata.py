"""Workloads that only read, on trees that are there: names, attributes, listings, small files.

As in workloads.py, prep(root) writes the files once on the server's own disk, and run(ctx) mounts. Each command has a
tree of its own, so that one mount serves them all and none finds what another left in the cache. Phases:

  cold     the first time on a fresh mount
  again    at once
  expired  after every attribute timeout (65 s)
"""
import os, random, subprocess, sys, time
from measure import sh
from workloads import text, write

GIT_ENV = dict(GIT_AUTHOR_NAME="a", GIT_AUTHOR_EMAIL="a@b", GIT_COMMITTER_NAME="a", GIT_COMMITTER_EMAIL="a@b",
               GIT_AUTHOR_DATE="1700000000 +0000", GIT_COMMITTER_DATE="1700000000 +0000",
               GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_SYSTEM="/dev/null", GIT_OPTIONAL_LOCKS="1")
EXPIRY_S = 65


def git(where, *words):
    return sh(["git", "-c", "safe.directory=*", "-C", where, *words], env=dict(os.environ, **GIT_ENV))


def plain_tree(top, nfiles, levels, sizes):
    """`nfiles` files over 10^levels leaf directories: 10 + 100 (+ 1000) directories below `top`."""
    rng = random.Random(11)
    for i in range(nfiles):
        n, d = i, top
        for level in range(levels):
            d += f"/{'deg'[level]}{n % 10}"
            n //= 10
        os.makedirs(d, exist_ok=True)
        write(f"{d}/f{i:05d}", text(rng, rng.choice(sizes)))


def commit(top):
    """Makes it a repository with everything committed. The index is written well after the files: git reads the
    contents of files that are as young as its index, which would not be a question of metadata."""
    sh(f"cd {top} && git init -q -b main . && git add -A && git commit -qm x && git repack -adq", env=dict(os.environ, **GIT_ENV))
    time.sleep(2.1)
    os.unlink(f"{top}/.git/index")
    git(top, "reset", "-q")
    assert git(top, "status", "-s") == ""


def run_phases(ctx, sub, commands):
    """Measures each of `commands` (name -> function without arguments): cold and at once again, one after the other,
    then, after one wait for all, expired."""
    tags = ctx.params.get("tags", ["cold", "again"] if ctx.params.get("short") else ["cold", "again", "expired"])
    ctx.mount(sub)
    for name, command in commands.items():
        for tag in ("cold", "again"):
            if tag in tags:
                with ctx.phase(f"{name}.{tag}"):
                    command()
    if "expired" in tags:
        ctx.sleep(EXPIRY_S)
        for name, command in commands.items():
            with ctx.phase(f"{name}.expired"):
                command()
    ctx.umount()


# ------------------------------------------------------------ ls, grep, find, du, git status of 1000 files
class Tree:
    """1,000 files in 111 directories (the tree of `meta`, 200 bytes to 16 KB per file), read only."""
    name = "tree"
    FILES, LEVELS = 1000, 2
    SIZES = [200, 1000, 2000, 4000, 8000, 16000]
    TREES = ("ls", "grep", "find", "du", "git")

    def prep(self, root):
        for t in self.TREES:
            plain_tree(f"{root}/{t}", self.FILES, self.LEVELS, self.SIZES)
        commit(f"{root}/git")

    def commands(self, ctx):
        def run(*words):
            return lambda: sh(words)

        def grep():
            assert sh(["grep", "-r", "no-such-string-anywhere", ctx.p("grep")], check=False) == ""

        def status():
            assert git(ctx.p("git"), "status", "-s") == ""
        return {"ls-lR": run("ls", "-lR", ctx.p("ls")), "grep-r": grep, "find": run("find", ctx.p("find"), "-size", "+9M"),
                "du": run("du", "-s", ctx.p("du")), "git-status": status}

    def run(self, ctx):
        only = ctx.params.get("commands")
        run_phases(ctx, SUBDIR[self.name], {k: c for k, c in self.commands(ctx).items() if not only or k in only})


class BigTree(Tree):
    """10,000 files in 1,111 directories: find, du and git status."""
    name = "bigtree"
    FILES, LEVELS, SIZES = 10_000, 3, [100]
    TREES = ("find", "du", "git")

    def commands(self, ctx):
        return {k: c for k, c in super().commands(ctx).items() if k in ("find", "du", "git-status")}


# ------------------------------------------------------------ the start of a program with many small files
class Python:
    """Python starts and imports 100 modules in 10 packages from the mount, compiled beforehand. Its own library is local.
    Two directories that come first in the search path have none of them, as with include paths."""
    name = "python"

    def prep(self, root):
        rng = random.Random(13)
        for d in ("first", "second"):
            os.makedirs(f"{root}/{d}", exist_ok=True)
        for p in range(10):
            d = f"{root}/lib/pack{p}"
            os.makedirs(d, exist_ok=True)
            for m in ["__init__"] + [f"mod{m}" for m in range(10)]:
                body = "".join(f"def f{i}(x):\n    return x * {rng.randint(2, 99)} + {i}\n\n\n" for i in range(rng.randint(3, 40)))
                write(f"{d}/{m}.py", body.encode())
        sh([sys.executable, "-m", "compileall", "-q", f"{root}/lib"], env=dict(os.environ, PYTHONDONTWRITEBYTECODE=""))

    def run(self, ctx):
        imports = "".join(f"import pack{p}.mod{m}\n" for p in range(10) for m in range(10))
        program = f"import sys\nsys.path[:0] = {[ctx.p(d) for d in ('first', 'second', 'lib')]!r}\n{imports}"

        def start():
            subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"))
        run_phases(ctx, SUBDIR[self.name], {"start": start})


# ------------------------------------------------------------ one very big directory
class BigDir:
    """`ls -l` and `ls` of a directory with 100,000 entries (`entries`)."""
    name = "bigdir"
    ENTRIES = 100_000

    def prep(self, root):
        os.makedirs(f"{root}/d", exist_ok=True)
        for i in range(self.ENTRIES):
            os.close(os.open(f"{root}/d/entry-{i:06d}", os.O_WRONLY | os.O_CREAT, 0o644))

    def run(self, ctx):
        def listing():
            with open(os.devnull, "w") as null:
                subprocess.run(["ls", "-l", ctx.p("d")], check=True, stdout=null)
        run_phases(ctx, SUBDIR[self.name], {"ls-l": listing})


SUBDIR = {"tree": "tree", "bigtree": "bigtree", "python": "python", "bigdir": "bigdir"}
ALL = {w.name: w() for w in (Tree, BigTree, Python, BigDir)}
