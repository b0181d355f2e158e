#!/usr/bin/python3
"""POSIX odds and ends on a mounted directory: posix.py DIR [--version 3|4.1|4.2] [--only NAME,...] [--entries N]

Each test is a function; it works in a directory of its own and raises when the file system differs from what a local
disk does. Where the protocol itself has no way (locks across machines on v3, holes before v4.2), the test says what is
expected instead, by `need()`. Run as root: some tests change user in a child process. Prints a line per failure
and `N passed, N failed`.
"""
import argparse, ctypes, errno, fcntl, mmap, os, signal, socket, stat, struct, subprocess, sys, time, traceback

libc = ctypes.CDLL(None, use_errno=True)
TESTS = []
VERSION = "4.2"


def test(f):
    TESTS.append(f)
    return f


class Unsupported(Exception):
    pass


def need(*versions):
    """Only these protocol versions can do it; elsewhere the test body is replaced by nothing."""
    return VERSION in versions


def fails(err, f, *a, **k):
    try:
        f(*a, **k)
    except OSError as e:
        want = err if isinstance(err, tuple) else (err,)
        assert e.errno in want, f"errno {errno.errorcode.get(e.errno)} instead of {[errno.errorcode[w] for w in want]}"
        return
    raise AssertionError(f"succeeded instead of {errno.errorcode[err if isinstance(err, int) else err[0]]}")


def put(p, b, mode=0o644):
    fd = os.open(p, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        assert os.write(fd, b) == len(b)
    finally:
        os.close(fd)


def get(p):
    with open(p, "rb") as f:
        return f.read()


def child(f, *a):
    """Runs f in another process; its exception is ours."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            f(*a)
            os._exit(0)
        except BaseException:
            os.write(w, traceback.format_exc()[-2000:].encode())
            os._exit(1)
    os.close(w)
    out = b""
    while b := os.read(r, 4096):
        out += b
    os.close(r)
    _, st = os.waitpid(pid, 0)
    assert st == 0, f"child failed: {out.decode(errors='replace')}"


def as_user(uid, gid, groups, f, *a):
    def run():
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        f(*a)
    child(run)


def renameat2(a, b, flags):
    if libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), flags) != 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))


def fallocate(fd, mode, off, n):
    if libc.fallocate(fd, mode, ctypes.c_long(off), ctypes.c_long(n)) != 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))


@test
def create_write_read(d):
    put("f", b"hello")
    assert get("f") == b"hello"
    st = os.stat("f")
    assert st.st_size == 5 and st.st_nlink == 1 and stat.S_IMODE(st.st_mode) == 0o644
    fails(errno.EEXIST, os.open, "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    fails(errno.ENOENT, os.open, "nothing", os.O_RDONLY)
    fails(errno.ENOTDIR, os.stat, "f/x")


@test
def open_modes(d):
    put("f", b"0123456789")
    r = os.open("f", os.O_RDONLY)
    fails(errno.EBADF, os.write, r, b"x")
    w = os.open("f", os.O_WRONLY)
    fails(errno.EBADF, os.read, w, 1)
    os.pwrite(w, b"AB", 3)
    assert os.pread(r, 10, 0) == b"012AB56789", "a reader sees what another descriptor wrote"
    rw = os.open("f", os.O_RDWR)
    os.close(w)
    os.pwrite(rw, b"Z", 0)
    assert os.pread(rw, 1, 0) == b"Z"
    os.close(r)
    os.close(rw)
    t = os.open("f", os.O_WRONLY | os.O_TRUNC)
    assert os.fstat(t).st_size == 0
    os.close(t)


@test
def mode_at_creation(d):
    old = os.umask(0o027)
    try:
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, 0o666))
        os.mkdir("d", 0o777)
        os.close(os.open("x", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o4755))
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat("f").st_mode) == 0o640
    assert stat.S_IMODE(os.stat("d").st_mode) == 0o750
    assert stat.S_IMODE(os.stat("x").st_mode) & 0o777 == 0o750
    fd = os.open("ro", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0)
    os.write(fd, b"written though the mode is 0")
    os.close(fd)
    assert os.stat("ro").st_size == 28


@test
def append_from_two_processes(d):
    fd = os.open("log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    pid = os.fork()
    who = b"c" if pid == 0 else b"p"
    for i in range(200):
        os.write(fd, who * 9 + b"\n")
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(fd)
    lines = get("log").splitlines()
    assert len(lines) == 400 and all(l in (b"c" * 9, b"p" * 9) for l in lines), "appends of two processes overlap"


@test
def append_follows_truncation(d):
    fd = os.open("f", os.O_CREAT | os.O_RDWR | os.O_APPEND)
    os.write(fd, b"x" * 1000)
    os.ftruncate(fd, 10)
    os.write(fd, b"yz")
    assert os.fstat(fd).st_size == 12 and os.pread(fd, 20, 0) == b"x" * 10 + b"yz"
    os.close(fd)


@test
def truncate_and_holes(d):
    put("f", b"a" * 10000)
    os.truncate("f", 5000)
    os.truncate("f", 9000)
    assert get("f") == b"a" * 5000 + bytes(4000)
    fd = os.open("f", os.O_RDWR)
    os.pwrite(fd, b"end", 1 << 20)
    assert os.fstat(fd).st_size == (1 << 20) + 3
    assert os.pread(fd, 10, 500000) == bytes(10)
    os.close(fd)


@test
def terabyte_sparse_file(d):
    fd = os.open("big", os.O_CREAT | os.O_RDWR)
    os.ftruncate(fd, 1 << 40)
    os.pwrite(fd, b"tail", (1 << 40) - 4)
    os.fsync(fd)
    assert os.fstat(fd).st_size == 1 << 40
    assert os.pread(fd, 8, (1 << 40) - 8) == bytes(4) + b"tail"
    assert os.pread(fd, 4096, 1 << 39) == bytes(4096)
    assert os.fstat(fd).st_blocks * 512 < 1 << 30
    os.close(fd)


@test
def seek_holes(d):
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, b"d" * 65536, 0)
    os.pwrite(fd, b"d" * 65536, 8 << 20)
    os.fsync(fd)
    size = os.fstat(fd).st_size
    hole = os.lseek(fd, 0, os.SEEK_HOLE)
    data = os.lseek(fd, 1 << 20, os.SEEK_DATA)
    if need("4.2"):
        assert 65536 <= hole <= 8 << 20, hole
        assert 1 << 20 < data <= 8 << 20, data
    else:
        assert hole == size and data == 1 << 20, "without the protocol's help a file is all data"
    fails(errno.ENXIO, os.lseek, fd, size + 10, os.SEEK_DATA)
    os.close(fd)


@test
def allocate_and_punch(d):
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    os.write(fd, b"x" * (1 << 20))
    if need("4.2"):
        fallocate(fd, 0, 0, 4 << 20)
        assert os.fstat(fd).st_size == 4 << 20
        fallocate(fd, 3, 65536, 65536)  # PUNCH_HOLE | KEEP_SIZE
        assert os.pread(fd, 10, 65536 + 5) == bytes(10) and os.pread(fd, 1, 65535) == b"x"
        assert os.fstat(fd).st_size == 4 << 20
    else:
        fails((errno.EOPNOTSUPP, errno.ENOSYS), fallocate, fd, 3, 0, 4096)
        os.posix_fallocate(fd, 0, 2 << 20)   # the C library writes instead
        assert os.fstat(fd).st_size == 2 << 20
    os.close(fd)


@test
def copy_range(d):
    body = os.urandom(3 << 20)
    put("a", body)
    a, b = os.open("a", os.O_RDONLY), os.open("b", os.O_CREAT | os.O_RDWR)
    n = 0
    while n < len(body):
        r = os.copy_file_range(a, b, len(body) - n, n, n)
        assert r > 0
        n += r
    os.close(a)
    os.close(b)
    assert get("b") == body


@test
def mmap_shared(d):
    put("f", bytes(20000))
    fd = os.open("f", os.O_RDWR)
    m = mmap.mmap(fd, 20000)
    m[5000:5005] = b"mmap!"
    m.flush()
    assert os.pread(fd, 5, 5000) == b"mmap!"
    os.pwrite(fd, b"write", 6000)
    assert m[6000:6005] == b"write", "a shared map sees writes"
    m[0:3] = b"dty"
    m.close()
    os.close(fd)
    assert get("f")[0:3] == b"dty" and get("f")[5000:5005] == b"mmap!"


@test
def mmap_private(d):
    put("f", b"a" * 8192)
    fd = os.open("f", os.O_RDONLY)
    m = mmap.mmap(fd, 8192, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    m[0:3] = b"own"
    assert os.pread(fd, 3, 0) == b"aaa"
    m.close()
    os.close(fd)


@test
def mmap_between_processes(d):
    put("f", bytes(4096))
    fd = os.open("f", os.O_RDWR)
    m = mmap.mmap(fd, 4096)

    def write():
        f2 = os.open("f", os.O_RDWR)
        m2 = mmap.mmap(f2, 4096)
        m2[100:105] = b"child"
    child(write)
    assert m[100:105] == b"child"
    m.close()
    os.close(fd)


@test
def direct_io(d):
    fd = os.open("f", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
    m = mmap.mmap(-1, 1 << 20)
    m.write(os.urandom(1 << 20))
    assert os.pwritev(fd, [m], 4096) == 1 << 20
    back = mmap.mmap(-1, 1 << 20)
    assert os.preadv(fd, [back], 4096) == 1 << 20
    assert m[:] == back[:]
    n = os.open("f", os.O_RDONLY)
    assert os.pread(n, 1 << 20, 4096) == m[:], "buffered readers see direct writes"
    os.close(n)
    os.close(fd)


@test
def sync_writes(d):
    for flag in (os.O_SYNC, os.O_DSYNC):
        fd = os.open("f", os.O_CREAT | os.O_WRONLY | flag)
        assert os.write(fd, b"durable") == 7
        os.close(fd)
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)
    assert get("f") == b"durable"


@test
def names(d):
    for n in (b"x" * 255, b"\xff\xfe not utf-8 \x80", "gr\u00fc\u00df\u4e16\u754c".encode(), b" ", b"new\nline", b"-", b"back\\slash", b"..."):
        put(n, b"1")
        assert n in os.listdir(b"."), n
        assert os.stat(n).st_size == 1
        os.unlink(n)
    fails(errno.ENAMETOOLONG, put, b"x" * 256, b"")
    assert os.listdir(".") == []


@test
def links(d):
    put("f", b"1")
    os.link("f", "g")
    a, b = os.stat("f"), os.stat("g")
    assert (a.st_ino, a.st_nlink) == (b.st_ino, 2)
    fails(errno.EEXIST, os.link, "f", "g")
    os.unlink("f")
    assert os.stat("g").st_nlink == 1 and get("g") == b"1"
    os.mkdir("d")
    fails(errno.EPERM, os.link, "d", "e")


@test
def symlinks(d):
    put("t", b"target")
    os.symlink("t", "l")
    assert os.readlink("l") == "t" and get("l") == b"target" and stat.S_ISLNK(os.lstat("l").st_mode)
    long = "x/" * 1000 + "y"
    os.symlink(long, "long")
    assert os.readlink("long") == long and os.lstat("long").st_size == len(long)
    os.symlink("loop", "loop")
    fails(errno.ELOOP, os.stat, "loop")
    fails(errno.ELOOP, os.open, "l", os.O_RDONLY | os.O_NOFOLLOW)
    os.mkdir("d")
    os.symlink("../t", "d/up")
    assert get("d/up") == b"target"


@test
def special_files(d):
    os.mkfifo("p", 0o600)
    assert stat.S_ISFIFO(os.stat("p").st_mode)
    os.mknod("c", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    st = os.stat("c")
    assert stat.S_ISCHR(st.st_mode) and st.st_rdev == os.makedev(1, 3)
    s = socket.socket(socket.AF_UNIX)
    s.bind("s")
    assert stat.S_ISSOCK(os.stat("s").st_mode)
    s.close()
    pid = os.fork()
    if pid == 0:
        fd = os.open("p", os.O_WRONLY)
        os.write(fd, b"through the pipe")
        os._exit(0)
    assert get("p") == b"through the pipe"
    os.waitpid(pid, 0)


@test
def rename(d):
    put("a", b"a")
    put("b", b"b")
    os.rename("a", "b")
    assert get("b") == b"a" and not os.path.exists("a")
    os.mkdir("d1")
    os.mkdir("d2")
    put("d2/x", b"")
    fails((errno.ENOTEMPTY, errno.EEXIST), os.rename, "d1", "d2")
    fails(errno.EISDIR, os.rename, "b", "d1")
    fails(errno.ENOTDIR, os.rename, "d1", "b")
    fails(errno.EINVAL, os.rename, "d1", "d1/sub")
    os.rename("d2", "d1")
    assert os.listdir("d1") == ["x"]
    os.mkdir("e")
    os.rename("d1", "e/d1")
    assert os.path.exists("e/d1/x") and os.stat("e/d1/..").st_ino == os.stat("e").st_ino


@test
def rename_flags(d):
    put("a", b"a")
    put("b", b"b")
    fails((errno.EEXIST, errno.EINVAL), renameat2, "a", "b", 1)
    assert get("a") == b"a" and get("b") == b"b"
    try:
        renameat2("a", "b", 2)
        assert get("a") == b"b" and get("b") == b"a"
    except OSError as e:       # NFS has no exchange
        assert e.errno in (errno.EINVAL, errno.EOPNOTSUPP), e
        assert get("a") == b"a" and get("b") == b"b"


@test
def rename_keeps_open_files(d):
    put("a", b"old")
    put("n", b"new")
    fd = os.open("a", os.O_RDWR)
    os.rename("n", "a")
    assert os.pread(fd, 3, 0) == b"old" and get("a") == b"new"
    os.pwrite(fd, b"OLD", 0)
    os.fsync(fd)
    assert os.pread(fd, 3, 0) == b"OLD" and get("a") == b"new"
    os.close(fd)
    assert os.listdir(".") == ["a"], os.listdir(".")


@test
def unlinked_open_file(d):
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    os.write(fd, b"still here")
    os.unlink("f")
    assert not os.path.exists("f")
    assert os.pread(fd, 10, 0) == b"still here"
    os.pwrite(fd, b"STILL", 0)
    os.ftruncate(fd, 5)
    os.fsync(fd)
    assert os.fstat(fd).st_size == 5 and os.pread(fd, 10, 0) == b"STILL"
    put("f", b"another")
    assert os.pread(fd, 10, 0) == b"STILL" and get("f") == b"another"
    os.close(fd)
    time.sleep(0.3)
    assert os.listdir(".") == ["f"], os.listdir(".")


@test
def remove_errors(d):
    os.mkdir("d")
    put("d/f", b"")
    fails((errno.ENOTEMPTY, errno.EEXIST), os.rmdir, "d")
    fails((errno.EISDIR, errno.EPERM), os.unlink, "d")
    fails(errno.ENOTDIR, os.rmdir, "d/f")
    fails(errno.ENOENT, os.unlink, "nothing")
    os.unlink("d/f")
    os.rmdir("d")


@test
def times(d):
    put("f", b"1")
    os.utime("f", ns=(1_000_000_000_123_456_789, 1_100_000_000_987_654_321))
    st = os.stat("f")
    assert st.st_atime_ns == 1_000_000_000_123_456_789 and st.st_mtime_ns == 1_100_000_000_987_654_321
    before = os.stat("f").st_mtime_ns
    with open("f", "ab") as f:
        f.write(b"2")
    assert os.stat("f").st_mtime_ns > before
    os.utime("f")
    assert abs(os.stat("f").st_mtime - time.time()) < 30
    dm = os.stat(".").st_mtime_ns
    time.sleep(0.02)
    put("g", b"")
    assert os.stat(".").st_mtime_ns > dm, "creating an entry changes the directory's mtime"


@test
def chmod_chown(d):
    put("f", b"x")
    os.chmod("f", 0o4711)
    assert stat.S_IMODE(os.stat("f").st_mode) == 0o4711
    os.chown("f", 1234, 2345)
    st = os.stat("f")
    assert (st.st_uid, st.st_gid) == (1234, 2345)
    as_user(1234, 2345, [], lambda: os.chmod("f", 0o600))
    as_user(1235, 2345, [], lambda: fails(errno.EPERM, os.chmod, "f", 0o777))
    assert stat.S_IMODE(os.stat("f").st_mode) == 0o600


@test
def permissions(d):
    os.chmod(".", 0o755)
    put("mine", b"secret", 0o600)
    os.mkdir("closed", 0o700)
    put("closed/f", b"x", 0o644)
    assert get("closed/f") == b"x"        # now in the kernel's name cache

    def other():
        fails(errno.EACCES, os.open, "mine", os.O_RDONLY)
        fails(errno.EACCES, os.stat, "closed/f")
        fails(errno.EACCES, os.open, "closed/f", os.O_RDONLY)
        fails(errno.EACCES, os.listdir, "closed")
        fails(errno.EACCES, os.chdir, "closed")
        fails(errno.EACCES, put, "new", b"")
        fails(errno.EACCES, os.unlink, "mine")
        assert not os.access("mine", os.R_OK) and os.access(".", os.X_OK)
    as_user(4000, 4000, [], other)


@test
def permission_taken_away(d):
    os.chmod(".", 0o755)
    os.mkdir("d", 0o755)
    put("d/f", b"x", 0o644)
    as_user(4000, 4000, [], lambda: get("d/f"))
    os.chmod("d", 0o700)
    as_user(4000, 4000, [], lambda: fails(errno.EACCES, os.stat, "d/f"))
    as_user(4000, 4000, [], lambda: fails(errno.EACCES, os.open, "d/f", os.O_RDONLY))
    os.chmod("d", 0o755)
    as_user(4000, 4000, [], lambda: get("d/f"))


@test
def supplementary_groups(d):
    os.chmod(".", 0o755)
    put("f", b"for the group", 0o640)
    os.chown("f", 0, 5005)
    os.chmod("f", 0o640)
    as_user(4000, 4000, [5005], lambda: get("f"))
    as_user(4000, 4000, [5006], lambda: fails(errno.EACCES, get, "f"))
    as_user(4000, 5005, [], lambda: get("f"))


@test
def setgid_directory(d):
    os.mkdir("d")
    os.chown("d", 0, 5005)
    os.chmod("d", 0o2777)
    as_user(4000, 4000, [5005], lambda: (put("d/f", b""), os.mkdir("d/s")))
    assert os.stat("d/f").st_gid == 5005 and os.stat("d/f").st_uid == 4000
    s = os.stat("d/s")
    assert s.st_gid == 5005 and s.st_mode & stat.S_ISGID


@test
def sticky_directory(d):
    os.mkdir("t")
    os.chmod("t", 0o1777)
    as_user(4000, 4000, [], put, "t/f", b"")
    as_user(4001, 4001, [], lambda: fails((errno.EPERM, errno.EACCES), os.unlink, "t/f"))
    as_user(4000, 4000, [], lambda: os.unlink("t/f"))


@test
def setuid_cleared_by_write(d):
    put("f", b"x")
    os.chown("f", 4000, 4000)
    os.chmod("f", 0o4777)
    as_user(4001, 4001, [], lambda: put("f", b"yy"))
    assert not os.stat("f").st_mode & stat.S_ISUID, "a foreign write takes the set-user-id bit away"


@test
def execute(d):
    put("prog", b"#!/bin/sh\necho ran\n", 0o755)
    assert subprocess.run(["./prog"], stdout=subprocess.PIPE).stdout == b"ran\n"
    subprocess.run(["cp", "/bin/true", "true"], check=True)
    subprocess.run(["./true"], check=True)
    os.chmod("true", 0o644)
    try:
        subprocess.run(["./true"])
        raise AssertionError("a file without x was executed")
    except PermissionError:
        pass
    put("xonly", open("/bin/true", "rb").read(), 0o711)
    as_user(4000, 4000, [], lambda: os.execv("./xonly", ["xonly"]))


@test
def xattrs(d):
    put("f", b"")
    if need("4.2"):
        try:
            os.setxattr("f", "user.one", b"1")
        except OSError as e:
            if e.errno == errno.EOPNOTSUPP:
                print("note: this server has no extended attributes", flush=True)
                return
            raise
        os.setxattr("f", "user.two", b"\0" * 1000)
        assert sorted(n for n in os.listxattr("f") if n.startswith("user.")) == ["user.one", "user.two"]
        assert os.getxattr("f", "user.two") == b"\0" * 1000
        fails(errno.EEXIST, os.setxattr, "f", "user.one", b"", os.XATTR_CREATE)
        fails(errno.ENODATA, os.setxattr, "f", "user.three", b"", os.XATTR_REPLACE)
        os.removexattr("f", "user.one")
        fails(errno.ENODATA, os.getxattr, "f", "user.one")
    else:
        fails((errno.EOPNOTSUPP, errno.ENODATA), os.getxattr, "f", "user.one")
        fails(errno.EOPNOTSUPP, os.setxattr, "f", "user.one", b"1")


def try_lock(path, kind, flock=False, start=0, n=0):
    def run():
        fd = os.open(path, os.O_RDWR)
        if flock:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        else:
            fcntl.lockf(fd, kind | fcntl.LOCK_NB, n, start)
    child(run)


def locked(path, kind, **k):
    try:
        try_lock(path, kind, **k)
        return False
    except AssertionError as e:
        assert "BlockingIOError" in str(e) or "PermissionError" in str(e), e
        return True


@test
def posix_locks(d):
    put("f", bytes(100))
    fd = os.open("f", os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX, 10, 0)
    assert locked("f", fcntl.LOCK_EX, start=5, n=1) and locked("f", fcntl.LOCK_SH, start=0, n=100)
    assert not locked("f", fcntl.LOCK_EX, start=10, n=5)
    fcntl.lockf(fd, fcntl.LOCK_SH, 10, 0)
    assert not locked("f", fcntl.LOCK_SH, start=0, n=100) and locked("f", fcntl.LOCK_EX, start=0, n=100)
    fcntl.lockf(fd, fcntl.LOCK_UN, 5, 0)
    assert not locked("f", fcntl.LOCK_EX, start=0, n=5) and locked("f", fcntl.LOCK_EX, start=5, n=5)

    def holder():
        f2 = os.open("f", os.O_RDWR)
        buf = fcntl.fcntl(f2, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
        kind, _, start, n, _pid = struct.unpack("hhqqi4x", buf)
        assert kind == fcntl.F_RDLCK and start == 5 and n == 5, (kind, start, n)
    child(holder)
    os.close(os.open("f", os.O_RDONLY))     # closing any descriptor drops the process's locks
    assert not locked("f", fcntl.LOCK_EX, start=0, n=100)
    os.close(fd)


@test
def lock_waits(d):
    put("f", b"")
    fd = os.open("f", os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        f2 = os.open("f", os.O_RDWR)
        os.write(w, b"s")
        fcntl.lockf(f2, fcntl.LOCK_EX)
        os.write(w, b"L")
        os._exit(0)
    os.read(r, 1)
    time.sleep(0.5)
    os.set_blocking(r, False)
    fails(errno.EAGAIN, os.read, r, 1)
    fcntl.lockf(fd, fcntl.LOCK_UN)
    os.set_blocking(r, True)
    signal.alarm(60)
    assert os.read(r, 1) == b"L"
    signal.alarm(0)
    os.waitpid(pid, 0)
    os.close(fd)


@test
def lock_wait_is_interrupted(d):
    put("f", b"")
    fd = os.open("f", os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX)

    def waiter():
        class Rang(Exception):
            pass

        def ring(*_):
            raise Rang()
        signal.signal(signal.SIGALRM, ring)
        signal.alarm(1)
        f2 = os.open("f", os.O_RDWR)
        t = time.monotonic()
        try:
            fcntl.lockf(f2, fcntl.LOCK_EX)
            raise AssertionError("got a lock that is held")
        except Rang:
            assert time.monotonic() - t < 8
    child(waiter)
    os.close(fd)


@test
def flock_locks(d):
    put("f", b"")
    fd = os.open("f", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert locked("f", fcntl.LOCK_EX, flock=True) and locked("f", fcntl.LOCK_SH, flock=True)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert not locked("f", fcntl.LOCK_SH, flock=True) and locked("f", fcntl.LOCK_EX, flock=True)
    os.close(fd)
    assert not locked("f", fcntl.LOCK_EX, flock=True)


@test
def locks_end_with_the_process(d):
    put("f", b"")
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        fd = os.open("f", os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        os.write(w, b"L")
        time.sleep(60)
        os._exit(0)
    os.read(r, 1)
    assert locked("f", fcntl.LOCK_EX)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for _ in range(50):
        if not locked("f", fcntl.LOCK_EX):
            return
        time.sleep(0.1)
    raise AssertionError("the lock of a killed process stays")


@test
def statfs(d):
    s = os.statvfs(".")
    assert s.f_blocks > 0 and s.f_bfree <= s.f_blocks and s.f_namemax == 255 and s.f_bsize >= 512


@test
def tmpfile(d):
    try:
        os.close(os.open(".", os.O_TMPFILE | os.O_RDWR))
    except OSError as e:
        assert e.errno in (errno.EOPNOTSUPP, errno.EISDIR), e


@test
def directory_reading(d):
    names = {f"file-{i:05d}-{'n' * (i % 40)}" for i in range(3000)}
    for n in names:
        os.close(os.open(n, os.O_CREAT | os.O_WRONLY))
    assert set(os.listdir(".")) == names
    inodes = {e.name: e.inode() for e in os.scandir(".")}
    assert all(os.stat(n).st_ino == inodes[n] for n in list(names)[:200])
    seen = set()
    for e in os.scandir("."):                 # removal while reading loses and repeats nothing
        assert e.name not in seen
        seen.add(e.name)
        os.unlink(e.name)
    assert seen == names and os.listdir(".") == []
    assert set(subprocess.check_output(["ls", "-a"]).decode().split()) == {".", ".."}


@test
def seekdir(d):
    for i in range(500):
        os.close(os.open(f"n{i}", os.O_CREAT | os.O_WRONLY))
    libc.opendir.restype = ctypes.c_void_p
    libc.readdir.restype = ctypes.c_void_p
    libc.telldir.restype = ctypes.c_long

    def name(p):
        return ctypes.string_at(p + 19)
    dp = ctypes.c_void_p(libc.opendir(b"."))
    order, cookies = [], []
    while True:
        c = libc.telldir(dp)
        p = libc.readdir(dp)
        if not p:
            break
        order.append(name(p))
        cookies.append(ctypes.c_long(c))
    assert len(set(order)) == 502, len(set(order))
    for i in (0, 1, 2, 3, 250, 501, 17):
        libc.seekdir(dp, cookies[i])
        assert name(libc.readdir(dp)) == order[i], i
    libc.rewinddir(dp)
    assert name(libc.readdir(dp)) == order[0]
    libc.closedir(dp)


@test
def large_directory(d):
    n = ENTRIES
    os.mkdir("many")
    t = time.monotonic()
    for i in range(n):
        os.mknod(f"many/{i}", 0o600)
    t1 = time.monotonic()
    got = os.listdir("many")
    assert len(got) == n and len(set(got)) == n, (len(got), len(set(got)))
    t2 = time.monotonic()
    assert sum(1 for e in os.scandir("many") if e.stat(follow_symlinks=False).st_size == 0) == n
    print(f"note: {n} entries: created in {t1 - t:.1f} s, listed in {t2 - t1:.2f} s, with attributes in {time.monotonic() - t2:.2f} s", flush=True)
    subprocess.run(["rm", "-rf", "many"], check=True)


@test
def many_threads(d):
    import threading
    errors = []

    def work(k):
        try:
            for i in range(30):
                p = f"t{k}-{i}"
                body = os.urandom(1000 + i * 997)
                put(p, body)
                assert get(p) == body
                os.rename(p, p + "r")
                os.unlink(p + "r")
        except Exception as e:
            errors.append(e)
    ts = [threading.Thread(target=work, args=(k,)) for k in range(16)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    assert not errors, errors
    assert os.listdir(".") == []


@test
def timers_do_not_disturb(d):
    """Programs with interval timers (git's progress) never see EINTR from a file."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.siginterrupt(signal.SIGALRM, True)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        rd, wr = libc.read, libc.write
        buf = ctypes.create_string_buffer(200000)
        for i in range(50):
            fd = libc.open(f"f{i}".encode(), os.O_CREAT | os.O_RDWR, 0o600)
            assert fd >= 0, os.strerror(ctypes.get_errno())
            assert wr(fd, buf, 200000) == 200000, os.strerror(ctypes.get_errno())
            libc.lseek(fd, 0, 0)
            assert rd(fd, buf, 200000) == 200000
            assert libc.fsync(fd) == 0 and libc.close(fd) == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@test
def root_and_dots(d):
    assert os.stat(".").st_ino == os.stat("../" + os.path.basename(d)).st_ino
    os.makedirs("a/b/c")
    assert os.stat("a/b/c/../../..").st_ino == os.stat(".").st_ino
    fails(errno.EINVAL, os.rmdir, "a/.")
    fails((errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY), os.rmdir, "a/b/..")


def main():
    global VERSION, ENTRIES
    a = argparse.ArgumentParser()
    a.add_argument("dir")
    a.add_argument("--version", default="4.2")
    a.add_argument("--only", default="")
    a.add_argument("--entries", type=int, default=100_000)
    a.add_argument("--limit", type=int, default=180, help="seconds a test may take")
    o = a.parse_args()
    VERSION, ENTRIES = o.version, o.entries
    base = os.path.join(os.path.abspath(o.dir), f"posix-{os.getpid()}")
    os.mkdir(base, 0o755)
    os.chmod(base, 0o755)
    os.umask(0o022)
    good = bad = 0
    for f in TESTS:
        if o.only and f.__name__ not in o.only.split(","):
            continue
        d = os.path.join(base, f.__name__)
        pid = os.fork()
        if pid == 0:
            try:
                os.mkdir(d)
                os.chdir(d)
                f(d)
                os._exit(0)
            except BaseException:
                print(f"FAILED {f.__name__}: {traceback.format_exc(limit=-3)}", flush=True)
                os._exit(1)
        end = time.monotonic() + (o.limit * 5 if f is large_directory else o.limit)
        while True:
            done, st = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
                print(f"FAILED {f.__name__}: hung", flush=True)
                _, st = os.waitpid(pid, 0)
                break
            time.sleep(0.01)
        good, bad = good + (st == 0), bad + (st != 0)
    subprocess.run(["rm", "-rf", base])
    print(f"{good} passed, {bad} failed")
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
