"""Attributes: times, modes, owners, groups, extended attributes, statfs."""
import errno, os, stat, time
from kit import check, equal
from util import as_user, fails, put

USER, GROUP, OTHER = 1001, 2001, 2002


def cases(s):
    @s.case("utimens")
    def _():
        p = s.p("ut")
        put(p)
        for a, m in ((0, 1), (10**9, 2 * 10**9), (1_500_000_000_123_456_789, 1_600_000_000_987_654_321)):
            os.utime(p, ns=(a, m))
            st = os.stat(p)
            equal((st.st_atime_ns, st.st_mtime_ns), (a, m))
        os.utime(p)
        check(abs(os.stat(p).st_mtime - time.time()) < 60, "now is", os.stat(p).st_mtime)

    @s.case("utimens-symlink")
    def _():
        put(s.p("ut2"))
        os.utime(s.p("ut2"), ns=(1, 10**9))
        os.symlink("ut2", s.p("utl"))
        os.utime(s.p("utl"), ns=(5 * 10**9, 6 * 10**9), follow_symlinks=False)
        equal(os.stat(s.p("ut2")).st_mtime_ns, 10**9, "the link's target")
        equal(os.lstat(s.p("utl")).st_mtime_ns, 6 * 10**9, "the link")

    @s.case("utimens-omit-and-now")
    def _():
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        put(s.p("uo"))
        os.utime(s.p("uo"), ns=(10**9, 2 * 10**9))
        now, omit = 0x3fffffff, 0x3ffffffe
        times = (ctypes.c_long * 4)(0, omit, 3, 500)
        equal(libc.utimensat(-100, s.p("uo").encode(), times, 0), 0)
        st = os.stat(s.p("uo"))
        equal((st.st_atime_ns, st.st_mtime_ns), (10**9, 3 * 10**9 + 500), "UTIME_OMIT")
        times = (ctypes.c_long * 4)(0, now, 0, omit)
        equal(libc.utimensat(-100, s.p("uo").encode(), times, 0), 0)
        check(os.stat(s.p("uo")).st_atime > 10**9, "UTIME_NOW")

    @s.case("mtime-and-ctime-move")
    def _():
        p = s.p("mc")
        put(p, b"1")
        os.utime(p, ns=(10**9, 10**9))
        a = os.stat(p)
        time.sleep(0.05)
        with open(p, "ab") as f:
            f.write(b"2")
        b = os.stat(p)
        check(b.st_mtime_ns > a.st_mtime_ns and b.st_ctime_ns > a.st_ctime_ns, "write moves mtime and ctime")
        time.sleep(0.05)
        os.chmod(p, 0o600)
        c = os.stat(p)
        check(c.st_ctime_ns > b.st_ctime_ns, "chmod moves ctime")
        equal(c.st_mtime_ns, b.st_mtime_ns, "chmod leaves mtime")
        d = os.stat(s.dir).st_mtime_ns
        time.sleep(0.05)
        put(s.p("mc2"))
        check(os.stat(s.dir).st_mtime_ns > d, "create moves the directory's mtime")

    @s.case("fstat-size-while-writing")
    def _():
        fd = os.open(s.p("grow"), os.O_RDWR | os.O_CREAT)
        for i in range(1, 30):
            os.write(fd, b"x" * 1000)
            equal(os.fstat(fd).st_size, i * 1000)
            equal(os.stat(s.p("grow")).st_size, i * 1000)
        os.close(fd)

    @s.case("modes-and-umask")
    def _():
        old = os.umask(0o027)
        try:
            os.close(os.open(s.p("um"), os.O_CREAT | os.O_WRONLY, 0o666))
            os.mkdir(s.p("umd"), 0o777)
        finally:
            os.umask(old)
        equal(stat.S_IMODE(os.stat(s.p("um")).st_mode), 0o640)
        equal(stat.S_IMODE(os.stat(s.p("umd")).st_mode), 0o750)
        os.chmod(s.p("um"), 0o4755)
        equal(stat.S_IMODE(os.stat(s.p("um")).st_mode), 0o4755)

    @s.case("setuid-is-cleared-by-a-writer")
    def _():
        p = s.p("suid")
        put(p, b"x")
        os.chown(p, USER, GROUP)
        os.chmod(p, 0o6777)

        def write():
            fd = os.open(p, os.O_WRONLY)
            os.write(fd, b"y")
            os.close(fd)
        as_user(USER + 1, OTHER, [], write)
        equal(stat.S_IMODE(os.stat(p).st_mode), 0o777)

    @s.case("chown-and-owners")
    def _():
        p = s.p("own")
        put(p)
        os.chown(p, USER, GROUP)
        st = os.stat(p)
        equal((st.st_uid, st.st_gid), (USER, GROUP))
        os.chown(p, -1, OTHER)
        st = os.stat(p)
        equal((st.st_uid, st.st_gid), (USER, OTHER))

    @s.case("created-by-another-user")
    def _():
        os.mkdir(s.p("pub"))
        os.chmod(s.p("pub"), 0o777)
        as_user(USER, GROUP, [], lambda: put(s.p("pub/mine"), b"m"))
        st = os.stat(s.p("pub/mine"))
        equal((st.st_uid, st.st_gid), (USER, GROUP))

    @s.case("permission-by-the-server")
    def _():
        put(s.p("secret"), b"s")
        os.chmod(s.p("secret"), 0o600)
        as_user(USER, GROUP, [], lambda: fails(lambda: open(s.p("secret")), errno.EACCES))
        equal(open(s.p("secret"), "rb").read(), b"s", "root")
        # Cached by root, still refused to others.
        as_user(USER, GROUP, [], lambda: fails(lambda: open(s.p("secret")), errno.EACCES))
        os.mkdir(s.p("closed"))
        put(s.p("closed/f"))
        os.chmod(s.p("closed"), 0o700)
        as_user(USER, GROUP, [], lambda: fails(lambda: os.stat(s.p("closed/f")), errno.EACCES))
        as_user(USER, GROUP, [], lambda: fails(lambda: os.listdir(s.p("closed")), errno.EACCES))
        as_user(USER, GROUP, [], lambda: fails(lambda: os.chmod(s.p("secret"), 0o666), errno.EPERM))
        as_user(USER, GROUP, [], lambda: fails(lambda: os.unlink(s.p("secret")), errno.EACCES))

    @s.case("supplementary-groups")
    def _():
        put(s.p("grp"), b"g")
        os.chown(s.p("grp"), 0, OTHER)
        os.chmod(s.p("grp"), 0o640)
        as_user(USER, GROUP, [], lambda: fails(lambda: open(s.p("grp")), errno.EACCES))
        as_user(USER, GROUP, [3, OTHER, 5], lambda: equal(open(s.p("grp"), "rb").read(), b"g"))
        as_user(USER, GROUP, [], lambda: fails(lambda: open(s.p("grp")), errno.EACCES))

    @s.case("access-of-effective-user")
    def _():
        put(s.p("acc"))
        os.chown(s.p("acc"), USER, GROUP)
        os.chmod(s.p("acc"), 0o500)

        def body():
            check(os.access(s.p("acc"), os.R_OK | os.X_OK), "owner may read and execute")
            check(not os.access(s.p("acc"), os.W_OK), "owner may not write")
        as_user(USER, GROUP, [], body)

    @s.case("setgid-directory")
    def _():
        d = s.p("sgid")
        os.mkdir(d)
        os.chown(d, 0, OTHER)
        os.chmod(d, 0o2777)
        put(f"{d}/f")
        os.mkdir(f"{d}/sub")
        equal(os.stat(f"{d}/f").st_gid, OTHER, "group of a new file")
        equal(os.stat(f"{d}/sub").st_gid, OTHER, "group of a new directory")
        check(os.stat(f"{d}/sub").st_mode & stat.S_ISGID, "setgid is inherited")

    @s.case("sticky-directory")
    def _():
        d = s.p("sticky")
        os.mkdir(d)
        os.chmod(d, 0o1777)
        put(f"{d}/roots")
        as_user(USER, GROUP, [], lambda: fails(lambda: os.unlink(f"{d}/roots"), errno.EPERM, errno.EACCES))

    @s.case("xattr-user")
    def _():
        p = s.p("xa")
        put(p)
        os.setxattr(p, "user.one", b"1")
        os.setxattr(p, "user.big", b"b" * 2000)
        os.setxattr(p, "user.empty", b"")
        equal(os.getxattr(p, "user.big"), b"b" * 2000)
        equal(os.getxattr(p, "user.empty"), b"")
        names = [n for n in os.listxattr(p) if n.startswith("user.")]
        equal(sorted(names), ["user.big", "user.empty", "user.one"])
        os.setxattr(p, "user.one", b"2", os.XATTR_REPLACE)
        equal(os.getxattr(p, "user.one"), b"2")
        fails(lambda: os.setxattr(p, "user.one", b"3", os.XATTR_CREATE), errno.EEXIST)
        fails(lambda: os.setxattr(p, "user.no", b"3", os.XATTR_REPLACE), errno.ENODATA)
        os.removexattr(p, "user.one")
        fails(lambda: os.getxattr(p, "user.one"), errno.ENODATA)
        fails(lambda: os.removexattr(p, "user.one"), errno.ENODATA)

    @s.case("xattr-absent-or-unsupported-say-so")
    def _():
        put(s.p("xn"))
        fails(lambda: os.getxattr(s.p("xn"), "user.none"), errno.ENODATA, errno.EOPNOTSUPP)
        fails(lambda: os.getxattr(s.p("xn"), "nonsense.none"), errno.EOPNOTSUPP, errno.ENODATA)

    @s.case("nfs4-acl-passes-through")
    def _():
        put(s.p("acl"))
        acl = os.getxattr(s.p("acl"), "system.nfs4_acl")
        count = int.from_bytes(acl[:4], "big")
        check(1 <= count <= 100 and len(acl) >= 4 + 16 * count, "entries", count, "bytes", len(acl))
        os.setxattr(s.p("acl"), "system.nfs4_acl", acl)
        equal(os.getxattr(s.p("acl"), "system.nfs4_acl"), acl)

    @s.case("statfs")
    def _():
        v = os.statvfs(s.dir)
        check(v.f_blocks > 0 and 0 < v.f_bavail <= v.f_bfree <= v.f_blocks, v)
        equal(v.f_namemax, 255)
        check(v.f_files > 0 and v.f_bsize >= 512, v)

    @s.case("stat-is-stable")
    def _():
        put(s.p("st"), b"123")
        a, b = os.stat(s.p("st")), os.stat(s.p("st"))
        equal(a, b)
        fd = os.open(s.p("st"), os.O_RDONLY)
        f = os.fstat(fd)
        equal((f.st_ino, f.st_dev, f.st_size, f.st_nlink), (a.st_ino, a.st_dev, 3, 1))
        os.close(fd)
        check(a.st_blksize >= 4096, "blksize", a.st_blksize)
        with os.scandir(s.dir) as it:
            for e in it:
                equal(e.inode(), os.lstat(e.path).st_ino, f"inode number of {e.name} in the directory and by lstat")
