"""Mounts that come and go while clients use the directories."""
import errno, os, time

import handles
from kit import check, equal, sh
from mounts import refused


def soon(call, seconds=20):
    """Tries until it succeeds."""
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except (OSError, AssertionError):
            if time.monotonic() > end:
                raise
            handles.forget()
            time.sleep(0.2)


def cases(s, server):
    case, p = s.case, s.p

    @case("late-mount")
    def late_mount():
        server.here("mkdir late; echo below >late/below")
        equal(os.listdir(p("late")), ["below"])
        server.ext4("late")
        server.here("echo inside >late/inside")
        equal(soon(lambda: open(p("late/inside")).read()), "inside\n")
        equal(os.listdir(p("late")), ["inside"])
        open(p("late/new"), "w").close()
        equal(server.here("ls late"), "inside\nnew")

    @case("late-mount-goes")
    def late_mount_goes():
        fd = os.open(p("late/inside"), os.O_RDWR)
        equal(os.read(fd, 3), b"ins")
        loop = server.here("findmnt -no SOURCE late").rsplit("/")[-1]
        server.umount("late", "-l")
        handles.forget()
        sh(f"umount -l {p('late')} || true")
        equal(soon(lambda: open(p("late/below")).read()), "below\n")
        equal(os.listdir(p("late")), ["below"])
        open(p("late/new"), "w").close()
        equal(server.here("ls late"), "below\nnew")
        refused(lambda: os.pread(fd, 3, 0), errno.ESTALE)
        try:
            os.close(fd)
        except OSError as e:
            equal(e.errno, errno.ESTALE)
        # The file system is let go of, whatever clients have open.
        soon(lambda: server.run(f"! [ -e /sys/block/{loop}/loop ]"))

    @case("late-mount-in-use")
    def late_mount_in_use():
        """A client that has the names below in memory finds what is mounted when it asks again."""
        server.here("mkdir -p used/sub; echo below >used/sub/f")
        point = "/run/tmp/used"
        sh(f"mkdir -p {point}; mount.nfs {server.source} {point} -o {server.options},actimeo=1,nosharecache")
        try:
            path = f"{point}/{server.base}/used"
            equal(open(f"{path}/sub/f").read(), "below\n")
            server.ext4("used")
            server.here("mkdir used/sub; echo inside >used/sub/f")
            end = time.monotonic() + 5
            while open(f"{path}/sub/f").read() != "inside\n" and time.monotonic() < end:
                time.sleep(0.2)
            equal(open(f"{path}/sub/f").read(), "inside\n")
            open(f"{path}/new", "w").close()
            equal(server.here("ls used"), "new\nsub")
        finally:
            sh(f"umount -l {point}")

    @case("mount-point-held")
    def mount_point_held():
        """A client that has the directory below open does not use it any more; directories inside it go on."""
        server.here("mkdir -p held/sub; echo below >held/below; echo f >held/sub/f")
        held = os.open(p("held"), os.O_RDONLY)
        sub = os.open(p("held/sub"), os.O_RDONLY)
        f = os.open(p("held/sub/f"), os.O_RDWR)
        server.ext4("held")
        server.here("echo inside >held/inside")
        handles.forget()
        equal(soon(lambda: open(p("held/inside")).read()), "inside\n")
        refused(lambda: os.mkdir("new", dir_fd=held), errno.ESTALE)
        refused(lambda: os.close(os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=held)), errno.ESTALE)
        os.mkdir("new", dir_fd=sub)
        os.pwrite(f, b"F", 0)
        os.fsync(f)
        for fd in (held, sub, f):
            os.close(fd)
        server.umount("held", "-l")
        equal(sorted(server.here("find held -printf '%P '; cat held/sub/f").split()), ["F", "below", "sub", "sub/f", "sub/new"])
