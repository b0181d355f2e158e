#!/usr/bin/python3
"""git on the file system under test: clone, commit, branch, gc, fsck, push, against a local twin."""
import os, random, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from kit import *

s = Suite()
NFILES, NCOMMITS = s.pick((60, 6), (400, 25))
os.environ.update(GIT_AUTHOR_NAME="a", GIT_AUTHOR_EMAIL="a@example.org", GIT_COMMITTER_NAME="a",
                  GIT_COMMITTER_EMAIL="a@example.org", GIT_AUTHOR_DATE="1700000000 +0000",
                  GIT_COMMITTER_DATE="1700000000 +0000", GIT_CONFIG_COUNT="1",
                  GIT_CONFIG_KEY_0="safe.directory", GIT_CONFIG_VALUE_0="*")
source, twin, work, bare = f"{s.tmp}/source", f"{s.tmp}/twin", s.p("work"), s.p("bare.git")


def generate():
    """A repository with text, binary and executable files, renames, deletions, a symlink and a merge."""
    rng = random.Random(3)
    os.makedirs(source)
    sh("git init -q -b main", cwd=source)
    names = [f"{'abcdef'[i % 6]}/{'xyz'[i % 3]}/f{i:04d}.{'bin' if i % 9 == 0 else 'txt'}" for i in range(NFILES)]
    for k in range(NCOMMITS):
        for n in names if k == 0 else rng.sample(names, max(2, NFILES // 10)):
            p = f"{source}/{n}"
            os.makedirs(os.path.dirname(p), exist_ok=True)
            data = rng.randbytes(rng.randint(0, 30000)) if n.endswith("bin") else \
                "".join(f"line {i} of {n} at {k}: {rng.random()}\n" for i in range(rng.randint(1, 200))).encode()
            with open(p, "wb") as f:
                f.write(data)
            os.chmod(p, 0o755 if rng.random() < 0.1 else 0o644)
        if k == 1:
            os.symlink(names[1], f"{source}/pointer")
        sh(f"git add -A && git commit -qm 'commit {k}'", cwd=source)
        if k == NCOMMITS // 2:
            sh("git checkout -qb side && git mv a moved && git commit -qm moved && git checkout -q main", cwd=source)
    sh("git merge -q -m merged side", cwd=source)


def edit(repo):
    """The same changes in any clone."""
    rng = random.Random(8)
    for top, dirs, files in os.walk(repo):
        dirs.sort()
        if ".git" in dirs:
            dirs.remove(".git")
        for n in sorted(files):
            p = os.path.join(top, n)
            if not os.path.islink(p) and rng.random() < 0.2:
                with open(p, "ab") as f:
                    f.write(b"edited\n")
    sh("git rm -qrf b && mkdir new && echo new > new/file && git add -A && git commit -qm edited", cwd=repo)


def clean(tree):
    return {k: v for k, v in tree.items() if not k.startswith(b".git/") and k != b".git"}


generate()
sh(["git", "clone", "-q", "--no-hardlinks", source, twin])


@s.case("clone")
def _():
    sh(["git", "clone", "-q", "--no-hardlinks", source, work])
    same_tree(clean(snapshot(work)), clean(snapshot(twin)))


@s.case("status-clean")
def _():
    equal(sh("git status --porcelain", cwd=work), "", "status of a fresh clone")


@s.case("commit")
def _():
    edit(work), edit(twin)
    equal(sh("git rev-parse HEAD", cwd=work), sh("git rev-parse HEAD", cwd=twin), "commit id")
    same_tree(clean(snapshot(work)), clean(snapshot(twin)))


@s.case("branches")
def _():
    for repo in (work, twin):
        sh("git checkout -q -b topic HEAD~2 && echo t > topic && git add topic && git commit -qm topic", cwd=repo)
        sh("git checkout -q main && git merge -q -m topic topic && git rebase -q HEAD~1 && git tag v1", cwd=repo)
    equal(sh("git rev-parse HEAD", cwd=work), sh("git rev-parse HEAD", cwd=twin), "commit id")
    equal(sh("git status --porcelain", cwd=work), "", "status")


@s.case("stash-and-reset")
def _():
    sh("echo x > extra && git add extra && git stash -q && git stash pop -q && git reset -q --hard && git clean -qfdx", cwd=work)
    same_tree(clean(snapshot(work)), clean(snapshot(twin)))


@s.case("gc")
def _():
    sh("git gc -q --aggressive --prune=now && git repack -adq", cwd=work)
    packs = [f for f in os.listdir(f"{work}/.git/objects/pack") if f.endswith(".pack")]
    equal(len(packs), 1, "packs")


@s.case("fsck")
def _():
    out = sh("git fsck --full --strict --no-dangling 2>&1", cwd=work)
    check("error" not in out and "missing" not in out, out)


@s.case("push-and-fetch")
def _():
    sh(["git", "init", "-q", "--bare", "-b", "main", bare])
    sh(["git", "push", "-q", bare, "main", "topic", "v1"], cwd=twin)
    sh(["git", "fetch", "-q", bare, "main:fetched"], cwd=work)
    equal(sh("git rev-parse fetched", cwd=work), sh("git rev-parse main", cwd=twin), "what was pushed and fetched")
    sh("git fsck --full --strict", cwd=bare)


@s.case("worktree")
def _():
    sh(["git", "worktree", "add", "-q", s.p("second"), "topic"], cwd=work)
    equal(sh("git status --porcelain", cwd=s.p("second")), "", "status of the second work tree")
    sh(["git", "worktree", "remove", s.p("second")], cwd=work)


@s.case("clone-back")
def _():
    sh(["git", "clone", "-q", "--no-hardlinks", work, f"{s.tmp}/back"])
    same_tree(clean(snapshot(f"{s.tmp}/back")), clean(snapshot(twin)))


@s.case("remove")
def _():
    sh(["rm", "-rf", work, bare])
    equal(os.listdir(s.dir), [], "what is left")
