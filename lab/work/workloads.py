"""The workloads of the side-by-side measurements.

Each has prep(root), which writes its files once per server, and run(ctx), which mounts what it
needs itself, so that it controls what is cold and what is warm. A phase is what is measured.
"""
import os, random, shutil, subprocess, time
from measure import sh

MISS = (FileNotFoundError, NotADirectoryError)


def write(path, data):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(fd, data)
    os.close(fd)


def read_all(path, bs=65536):
    fd = os.open(path, os.O_RDONLY)
    n = 0
    while True:
        b = os.read(fd, bs)
        if not b:
            break
        n += len(b)
    os.close(fd)
    return n


def blob(rng, n):
    return rng.randbytes(n)


def text(rng, n):
    words = "the file system cache lease token server client lookup read write open close of and in to".split()
    out, size = [], 0
    while size < n:
        w = rng.choice(words)
        out.append(w)
        size += len(w) + 1
    return (" ".join(out) + "\n").encode()[:n]


# ------------------------------------------------------------ open by depth (Irtegov et al., 2017)
DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)
COPIES = 3


class OpenDepth:
    """open+close, stat, open+read 1 KB+close of a file at depth d (components below the mount).
    Every file has its own chain of directories, so nothing is shared but the root."""
    name = "opendepth"

    def chain(self, op, d, c):
        return "/".join([f"{op}{d:02d}x{c}l{i:02d}" for i in range(1, d)] + [f"{op}{d:02d}x{c}.f"])

    def prep(self, root):
        for op in ("o", "s", "r"):
            for d in DEPTHS:
                for c in range(COPIES):
                    p = os.path.join(root, self.chain(op, d, c))
                    os.makedirs(os.path.dirname(p), exist_ok=True)
                    write(p, b"x" * 1024)
        write(os.path.join(root, "rootfile"), b"y" * 1024)

    def one(self, ctx, op, d, tag):
        paths = [ctx.p(self.chain(op, d, c)) for c in range(COPIES)]
        with ctx.phase(f"{ {'o': 'open', 's': 'stat', 'r': 'read1k'}[op]}.{tag}", n=COPIES, depth=d):
            if op == "o":
                for p in paths:
                    os.close(os.open(p, os.O_RDONLY))
            elif op == "s":
                for p in paths:
                    os.stat(p)
            else:
                for p in paths:
                    fd = os.open(p, os.O_RDONLY)
                    os.read(fd, 1024)
                    os.close(fd)

    def run(self, ctx):
        depths = ctx.params.get("depths", DEPTHS)
        tags = [("cold", 0), ("warm4s", 4), ("warm65s", 65)]
        if ctx.params.get("short"):
            tags = tags[:1]
        tags = [t for t in tags if t[0] in ctx.params.get("tags", dict(tags))]
        ctx.mount("od")
        with ctx.phase("open.first", n=1, depth=1):      # nothing cached, not even the root's access
            os.close(os.open(ctx.p("rootfile"), os.O_RDONLY))
        for tag, wait in tags:
            if wait:
                ctx.sleep(wait)
            for op in "osr":
                for d in depths:
                    self.one(ctx, op, d, tag)
                    if tag == "cold":
                        self.one(ctx, op, d, "warm0")    # at once, before any timeout
        ctx.umount()


# ------------------------------------------------------------ page open (the Joomla! case of Irtegov et al.)
class PageOpen:
    """200 small files in 40 directories, 600 failed lookups: 200 opens of .htaccess (40 different
    directories) and 400 include-path misses (all different names). stat+open+read+close per hit."""
    name = "pageopen"

    def layout(self):
        rng = random.Random(1)
        dirs = [f"t{a}/s{b}" for a in range(8) for b in range(5)]
        files = [(dirs[i % 40], f"inc{i:03d}.php", rng.choice([512, 900, 1500, 3000, 6000, 12000, 20000])) for i in range(200)]
        order = files[:]
        rng.shuffle(order)
        seq = []
        for d, f, size in order:
            seq.append(("miss_open", f"{d}/.htaccess"))
            for o in rng.sample([x for x in dirs if x != d], 2):
                seq.append(("miss_stat", f"{o}/{f}"))
            seq.append(("hit", f"{d}/{f}"))
        return dirs, files, seq

    def prep(self, root):
        dirs, files, _ = self.layout()
        rng = random.Random(2)
        for d in dirs:
            os.makedirs(os.path.join(root, d), exist_ok=True)
        for d, f, size in files:
            write(os.path.join(root, d, f), text(rng, size))

    def page(self, ctx, seq):
        hits = misses = nbytes = 0
        for kind, rel in seq:
            p = ctx.p(rel)
            if kind == "miss_open":
                try:
                    os.close(os.open(p, os.O_RDONLY))
                except MISS:
                    misses += 1
            elif kind == "miss_stat":
                try:
                    os.stat(p)
                except MISS:
                    misses += 1
            else:
                os.stat(p)
                nbytes += read_all(p)
                hits += 1
        assert hits == 200 and misses == 600, (hits, misses)
        return nbytes

    def run(self, ctx):
        _, _, seq = self.layout()
        ctx.mount("page")
        ctx.remount()
        tags = [("cold", 0), ("warm0", 0), ("warm4s", 4), ("warm65s", 65)]
        if ctx.params.get("short"):
            tags = tags[:3]
        tags = [t for t in tags if t[0] in ctx.params.get("tags", dict(tags))]
        for tag, wait in tags:
            if wait:
                ctx.sleep(wait)
            with ctx.phase(tag):
                self.page(ctx, seq)
        ctx.remount()                       # what a persistent cache keeps over a remount
        with ctx.phase("remount"):
            self.page(ctx, seq)
        ctx.umount()


# ------------------------------------------------------------ source trees
def c_source(rng, i, headers):
    inc = "".join(f'#include "{h}"\n' for h in ["common.h"] + rng.sample(headers, 3))
    body = [f"/* unit {i} */\n#include <stdio.h>\n#include <string.h>\n{inc}"]
    for j in range(rng.randint(3, 10)):
        body.append(
            f"int u{i}_f{j}(int a, const char *s)\n{{\n    int r = a * {rng.randint(2, 99)} + COMMON_BASE;\n"
            f"    for (int k = 0; s && s[k]; k++)\n        r = r * 31 + s[k] + {rng.randint(1, 999)};\n"
            f"    if (r < 0)\n        printf(\"negative %d in u{i}_f{j}\\n\", r);\n    return r;\n}}\n\n")
    return "".join(body).encode()


def source_tree(root, ndirs, nc, nh, nmisc, seed):
    """nc C files, nh headers (one is common.h), nmisc documents over ndirs directories."""
    rng = random.Random(seed)
    dirs = [f"dir{i:02d}" for i in range(ndirs)]
    for d in dirs:
        os.makedirs(os.path.join(root, d), exist_ok=True)
    heads = [f"h{i:02d}.h" for i in range(nh - 1)]
    for i, h in enumerate(heads):
        write(os.path.join(root, dirs[0], h), f"#ifndef H{i}\n#define H{i}\nint h{i}(int);\n/* {'x' * rng.randint(200, 2500)} */\n#endif\n".encode())
    write(os.path.join(root, dirs[0], "common.h"), b"#ifndef COMMON\n#define COMMON\n#define COMMON_BASE 17\n#endif\n")
    for i in range(nc):
        write(os.path.join(root, dirs[1 + i % (ndirs - 1)] if ndirs > 1 else dirs[0], f"u{i:02d}.c"), c_source(rng, i, heads))
    for i in range(nmisc):
        write(os.path.join(root, dirs[i % ndirs], f"doc{i:02d}.txt"), text(rng, rng.randint(1000, 9000)))
    return dirs


def build(work, dirs, out):
    """Compile every C file to an object next to it, then archive. gcc's temporaries stay local."""
    inc = os.path.join(work, dirs[0])
    objs = []
    env = dict(os.environ, TMPDIR=os.environ.get("LAB_TMP", "/tmp"))
    for d in dirs:
        for f in sorted(os.listdir(os.path.join(work, d))):
            if f.endswith(".c"):
                o = os.path.join(work, d, f[:-2] + ".o")
                subprocess.run(["gcc", "-O", "-I", inc, "-c", os.path.join(work, d, f), "-o", o], check=True, env=env)
                objs.append(o)
    subprocess.run(["ar", "rcs", os.path.join(work, out)] + objs, check=True, env=env)


# ------------------------------------------------------------ Modified Andrew Benchmark (Macklem, 1994)
class MAB:
    """Phases 1-5 over a 70-file tree; source tree and working directory on the server, tools local."""
    name = "mab"

    def prep(self, root):
        source_tree(os.path.join(root, "src"), 5, 40, 20, 10, 3)

    def run(self, ctx):
        ctx.mount("mab")
        w = f"work{ctx.meta['rep']}"
        shutil.rmtree(ctx.p(w), ignore_errors=True)
        ctx.remount()
        work, dirs = ctx.p(w), [f"dir{i:02d}" for i in range(5)]
        with ctx.phase("1.mkdir"):
            os.mkdir(work)
            for d in dirs:
                os.mkdir(os.path.join(work, d))
        with ctx.phase("2.copy"):
            for d in dirs:
                subprocess.run(f"cp {ctx.p('src', d)}/* {work}/{d}/", shell=True, check=True)
        with ctx.phase("3.stat"):
            sh(["ls", "-lR", work])
        with ctx.phase("4.grep"):
            sh(["grep", "-r", "no-such-string-anywhere", work], check=False)
        if not ctx.params.get("reading"):
            with ctx.phase("5.compile"):
                build(work, dirs, "libmab.a")
        shutil.rmtree(work)
        ctx.umount()


# ------------------------------------------------------------ Badros's 13 tests (1999, Table 1)
class Badros:
    """Thirteen tests, once alone, then four at a time in separate directories. The page cache is
    emptied between tests (the paper read 8 MB of other files), except before test 9a."""
    name = "badros"
    BIG = 6_100_000
    RAND = 4_300_000

    def prep(self, root):
        rng = random.Random(5)
        source_tree(os.path.join(root, "asrc"), 5, 12, 16, 43, 6)     # 71 files
        data, data2, rnd = blob(rng, self.BIG), blob(rng, self.BIG), blob(rng, self.RAND)
        for k in range(5):
            d = os.path.join(root, f"b{k}")
            os.makedirs(d, exist_ok=True)
            write(f"{d}/big1", data)
            write(f"{d}/big2", data2)
            write(f"{d}/rand", rnd)
            for i in range(20):                                       # 500 files for the ls test
                os.makedirs(f"{d}/ls/d{i:02d}", exist_ok=True)
                for j in range(25):
                    write(f"{d}/ls/d{i:02d}/f{j:02d}", b"")

    @staticmethod
    def tarball(path):
        """4.3 MB, about 400 files and directories."""
        if os.path.exists(path):
            return
        rng = random.Random(7)
        top = path + ".d/pkg"
        for i in range(20):
            os.makedirs(f"{top}/d{i:02d}")
            for j in range(19):
                write(f"{top}/d{i:02d}/f{j:02d}", blob(rng, rng.randint(2000, 20600)))
        sh(["tar", "cf", path, "-C", path + ".d", "pkg"])
        shutil.rmtree(path + ".d")

    # the tests; `d` is the private directory
    def t01_mkdirs(self, d):
        for i in range(21):
            os.mkdir(f"{d}/w" if i == 0 else f"{d}/w/dir{i - 1:02d}")

    def t02_copy(self, d):
        src = os.path.join(os.path.dirname(d), "asrc")
        for i in range(5):
            subprocess.run(f"cp {src}/dir{i:02d}/* {d}/w/dir{i:02d}/", shell=True, check=True)

    def t03_stat(self, d):
        for _ in range(2):
            sh(["ls", "-lR", f"{d}/w"])

    def t04_grep(self, d):
        for _ in range(2):
            sh(["grep", "-r", "no-such-string-anywhere", f"{d}/w"], check=False)

    def t05_build(self, d):
        build(f"{d}/w", [f"dir{i:02d}" for i in range(5)], "lib.a")

    def t06_untar(self, d):
        sh(["tar", "xf", self.tar, "-C", d])

    def t07_ls(self, d):
        for _ in range(4):
            sh(["ls", "-lR", f"{d}/ls"])

    def t08_read_big(self, d):
        assert read_all(f"{d}/big1") == self.BIG

    def t09a_read_big_again(self, d):
        read_all(f"{d}/big1")

    def t09b_read_big_again_nopagecache(self, d):
        read_all(f"{d}/big1")

    def t10_copy_big(self, d):
        sh(["cp", f"{d}/big2", f"{d}/big3"])

    def t11_random_reads(self, d):
        rng = random.Random(d[-1])
        fd = os.open(f"{d}/rand", os.O_RDONLY)
        for _ in range(1000):
            n = rng.randint(1, 2663)
            os.pread(fd, n, rng.randrange(self.RAND - n))
        os.close(fd)

    def t12_small_writes(self, d):
        fd = os.open(f"{d}/small", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for i in range(1, 2001):
            os.write(fd, str(i).encode())
        os.close(fd)

    def t13_small_rw(self, d):
        fd = os.open(f"{d}/smallrw", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        for i in range(1, 1001):
            os.lseek(fd, 0, os.SEEK_END)
            os.write(fd, str(i).encode())
            os.lseek(fd, 0, os.SEEK_SET)
            while os.read(fd, 4096):
                pass
        os.close(fd)

    TESTS = ["t01_mkdirs", "t02_copy", "t03_stat", "t04_grep", "t05_build", "t06_untar", "t07_ls", "t08_read_big",
             "t09a_read_big_again", "t09b_read_big_again_nopagecache", "t10_copy_big", "t11_random_reads",
             "t12_small_writes", "t13_small_rw"]

    # Those that judge how names, attributes and small files are read, and what they need.
    READING = ["t01_mkdirs", "t02_copy", "t03_stat", "t04_grep", "t07_ls"]
    # Those that judge how files are made and written.
    WRITING = ["t01_mkdirs", "t02_copy", "t05_build", "t06_untar", "t10_copy_big", "t12_small_writes", "t13_small_rw"]

    def chosen(self, params):
        return self.READING if params.get("reading") else self.WRITING if params.get("writing") else self.TESTS

    def clean(self, d):
        for x in ("w", "pkg"):
            shutil.rmtree(f"{d}/{x}", ignore_errors=True)
        for x in ("big3", "small", "smallrw"):
            if os.path.exists(f"{d}/{x}"):
                os.unlink(f"{d}/{x}")

    def run(self, ctx):
        self.tar = os.environ.get("LAB_TMP", "/tmp") + "/badros.tar"
        self.tarball(self.tar)
        ctx.mount("badros")
        for k in range(5):
            self.clean(ctx.p(f"b{k}"))
        ctx.remount()
        for par in (False, True):
            if par and ctx.params.get("single_only"):
                break
            ds = [ctx.p(f"b{k}") for k in ((1, 2, 3, 4) if par else (0,))]
            for t in self.chosen(ctx.params):
                if t != "t09a_read_big_again":
                    ctx.drop(1)
                with ctx.phase(t + ("x4" if par else "")):
                    if par:
                        pids = []
                        for d in ds:
                            pid = os.fork()
                            if pid == 0:
                                rc = 1
                                try:
                                    getattr(self, t)(d)
                                    rc = 0
                                finally:
                                    os._exit(rc)
                            pids.append(pid)
                        for pid in pids:
                            assert os.waitpid(pid, 0)[1] == 0, t
                    else:
                        getattr(self, t)(ds[0])
        for k in range(5):
            self.clean(ctx.p(f"b{k}"))
        ctx.umount()


# ------------------------------------------------------------ Badros's tests that only read, in every state of a cache
class Rereads(Badros):
    """stat, grep, ls, a big file, random reads: cold, warm, without the kernel's pages, after a remount and after a crash."""
    name = "rereads"

    def t03_stat(self, d):
        sh(["ls", "-lR", os.path.join(os.path.dirname(d), "asrc")])

    def t04_grep(self, d):
        sh(["grep", "-r", "no-such-string-anywhere", os.path.join(os.path.dirname(d), "asrc")], check=False)

    def t07_ls(self, d):
        sh(["ls", "-lR", f"{d}/ls"])

    READS = {"stat": "t03_stat", "grep": "t04_grep", "ls": "t07_ls", "big": "t08_read_big", "random": "t11_random_reads"}

    def run(self, ctx):
        ctx.mount("badros")
        ctx.remount()
        for tag in ("cold", "warm0", "nopagecache", "remount", "restart"):
            {"nopagecache": lambda: ctx.drop(1), "remount": ctx.remount, "restart": ctx.crash}.get(tag, lambda: None)()
            for name, test in self.READS.items():
                with ctx.phase(f"{name}.{tag}"):
                    getattr(self, test)(ctx.p("b0"))
        ctx.umount()


# ------------------------------------------------------------ postmark
class Postmark:
    name = "postmark"

    def prep(self, root):
        os.makedirs(root, exist_ok=True)

    def run(self, ctx):
        ctx.mount("pm")
        ctx.remount()
        n, tr = ctx.params.get("number", 2000), ctx.params.get("transactions", 20000)
        d = ctx.p(f"pm{ctx.meta['rep']}")
        shutil.rmtree(d, ignore_errors=True)
        os.mkdir(d)
        cfg = (f"set location {d}\nset number {n}\nset transactions {tr}\nset size 1000 25000\nset seed 42\n"
               "set read 10240\nset write 10240\nset bias read 9\nset bias create -1\nset buffering false\nset report verbose\nrun\nquit\n")
        # A bound is known of the full one.
        with ctx.phase("postmark" if (n, tr) == (2000, 20000) else f"postmark.{n}", n=tr, number=n):
            subprocess.run(["postmark"], input=cfg.encode(), stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, check=True)
        shutil.rmtree(d, ignore_errors=True)
        ctx.umount()


# ------------------------------------------------------------ read profiles (Effectiveness of an NFS cache)
class Profiles:
    """ten 16 KB files ten times; 1 MB + 440 KB + 188 KB ten times; both interspersed four times."""
    name = "profiles"

    def prep(self, root):
        rng = random.Random(9)
        for prof in "abc":
            for i in range(10):
                write(f"{root}/{prof}_s{i}", blob(rng, 16384))
            for n, size in (("l", 1 << 20), ("m", 440 << 10), ("k", 188 << 10)):
                write(f"{root}/{prof}_{n}", blob(rng, size))

    def prof(self, ctx, k):
        small = [ctx.p(f"{k}_s{i}") for i in range(10)]
        large = [ctx.p(f"{k}_{n}") for n in "lmk"]
        if k == "a":
            seq = small * 10
        elif k == "b":
            seq = large * 10
        else:
            seq = (small + large) * 4
        for p in seq:
            read_all(p, 8192)

    NAMES = {"a": "small", "b": "large", "c": "interspersed"}

    def run(self, ctx):
        ctx.mount("prof")
        ctx.remount()
        for tag in ("cold", "warm0"):
            for k in "abc":
                with ctx.phase(f"{self.NAMES[k]}.{tag}"):
                    self.prof(ctx, k)
        ctx.drop(1)
        for k in "abc":
            with ctx.phase(f"{self.NAMES[k]}.nopagecache"):
                self.prof(ctx, k)
        ctx.remount()
        for k in "abc":
            with ctx.phase(f"{self.NAMES[k]}.remount"):
                self.prof(ctx, k)
        if ctx.params.get("crash"):
            ctx.crash()
            for k in "abc":
                with ctx.phase(f"{self.NAMES[k]}.restart"):
                    self.prof(ctx, k)
        ctx.umount()


# ------------------------------------------------------------ metadata mix
class Meta:
    """untar ~1,000 files, ls -lR, find, git clone, git status, rm -rf."""
    name = "meta"

    def prep(self, root):
        os.makedirs(root, exist_ok=True)

    @staticmethod
    def local_inputs(tmp, nfiles):
        tar, repo = f"{tmp}/meta{nfiles}.tar", f"{tmp}/repo{nfiles}"
        if not os.path.exists(tar):
            rng = random.Random(11)
            top = f"{tmp}/mk/tree"
            for i in range(nfiles):
                d = f"{top}/d{i % 10}/e{i // 10 % 10}"
                os.makedirs(d, exist_ok=True)
                write(f"{d}/f{i:04d}", text(rng, rng.choice([200, 1000, 2000, 4000, 8000, 16000])))
            sh(["tar", "cf", tar, "-C", f"{tmp}/mk", "tree"])
            env = dict(os.environ, GIT_AUTHOR_NAME="a", GIT_AUTHOR_EMAIL="a@b", GIT_COMMITTER_NAME="a",
                       GIT_COMMITTER_EMAIL="a@b", GIT_AUTHOR_DATE="1700000000 +0000", GIT_COMMITTER_DATE="1700000000 +0000",
                       GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_SYSTEM="/dev/null")
            sh(f"cd {top} && git init -q -b main . && git add -A && git commit -qm x && git repack -adq && git clone -q --bare . {repo}", env=env)
            shutil.rmtree(f"{tmp}/mk")
        return tar, repo

    def run(self, ctx):
        tmp = os.environ.get("LAB_TMP", "/tmp")
        nf = ctx.params.get("files", 1000)
        tar, repo = self.local_inputs(tmp, nf)
        env = dict(os.environ, GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_SYSTEM="/dev/null", GIT_OPTIONAL_LOCKS="1")
        ctx.mount("meta")
        base = ctx.p(f"m{ctx.meta['rep']}")
        shutil.rmtree(base, ignore_errors=True)
        os.mkdir(base)
        ctx.remount()
        with ctx.phase("untar", n=nf):
            sh(["tar", "xf", tar, "-C", base])
        if ctx.params.get("writing"):
            sh(["rm", "-rf", base])
            return ctx.umount()
        with ctx.phase("ls-lR.warm", n=nf):
            sh(["ls", "-lR", base])
        ctx.remount()
        with ctx.phase("ls-lR.cold", n=nf):
            sh(["ls", "-lR", base])
        with ctx.phase("ls-lR.again", n=nf):
            sh(["ls", "-lR", base])
        ctx.remount()
        with ctx.phase("grep-r.cold", n=nf):
            sh(["grep", "-r", "no-such-string-anywhere", base], check=False)
        with ctx.phase("grep-r.again", n=nf):
            sh(["grep", "-r", "no-such-string-anywhere", base], check=False)
        ctx.remount()
        with ctx.phase("git-clone", n=nf):
            sh(["git", "-c", "safe.directory=*", "clone", "-q", "--no-hardlinks", repo, f"{base}/clone"], env=env)
        with ctx.phase("git-status.warm", n=nf):
            sh(["git", "-c", "safe.directory=*", "-C", f"{base}/clone", "status", "-s"], env=env)
        ctx.remount()
        with ctx.phase("git-status.cold", n=nf):
            sh(["git", "-c", "safe.directory=*", "-C", f"{base}/clone", "status", "-s"], env=env)
        with ctx.phase("git-status.again", n=nf):
            sh(["git", "-c", "safe.directory=*", "-C", f"{base}/clone", "status", "-s"], env=env)
        with ctx.phase("rm-rf", n=2 * nf):
            sh(["rm", "-rf", base])
        ctx.umount()


# ------------------------------------------------------------ sequential read and write of a big file
class Stream:
    """One file, 1 MiB at a time: written and fsync'd, read by a fresh mount, read again, overwritten."""
    name = "stream"

    def prep(self, root):
        os.makedirs(root, exist_ok=True)

    def write(self, path, size, flags):
        block = random.Random(12).randbytes(1 << 20)
        fd = os.open(path, os.O_WRONLY | flags, 0o644)
        for _ in range(size >> 20):
            assert os.write(fd, block) == len(block)
        os.fsync(fd)
        os.close(fd)

    def read(self, path, size):
        assert read_all(path, 1 << 20) == size

    def run(self, ctx):
        size = ctx.params.get("mib", 1024) << 20
        ctx.mount("stream")
        path = ctx.p(f"big{ctx.meta['rep']}")
        if os.path.exists(path):
            os.unlink(path)
        with ctx.phase("write", bytes=size):
            self.write(path, size, os.O_CREAT | os.O_EXCL)
        if ctx.params.get("writing"):
            os.unlink(path)
            return ctx.umount()
        ctx.remount()
        with ctx.phase("read.cold", bytes=size):
            self.read(path, size)
        with ctx.phase("read.again", bytes=size):
            self.read(path, size)
        with ctx.phase("overwrite", bytes=size):
            self.write(path, size, 0)
        os.unlink(path)
        ctx.umount()


ALL = {w.name: w() for w in (OpenDepth, PageOpen, Profiles, MAB, Badros, Rereads, Postmark, Meta, Stream)}
SUBDIR = {"opendepth": "od", "pageopen": "page", "mab": "mab", "badros": "badros", "rereads": "badros", "postmark": "pm", "profiles": "prof",
          "meta": "meta", "stream": "stream"}
