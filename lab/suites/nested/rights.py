"""Mounts without `crossmnt`, and exports inside the exported directory."""
import errno, os

import handles
from kit import check, equal, sh
from coming import soon
from mounts import refused


def leave(p):
    """Leaves what the client has crossed into."""
    sh(f"umount -l {p('m')} 2>/dev/null || true")
    handles.forget()


def cases(s, server):
    case, p = s.case, s.p

    @case("not-crossed")
    def not_crossed():
        server.exports("rw")
        leave(p)
        try:
            equal(soon(lambda: os.listdir(p("m"))), [])
            refused(lambda: open(p("m/below")), errno.ENOENT)
            refused(lambda: open(p("m/new"), "w"), errno.EROFS)
            refused(lambda: os.mkdir(p("m/new")), errno.EROFS)
            refused(lambda: os.symlink("x", p("m/new")), errno.EROFS)
            refused(lambda: os.rename(p("plain/f"), p("m/f")), errno.EROFS)
            refused(lambda: os.rmdir(p("m")), errno.EBUSY, errno.EACCES)
        finally:
            server.exports("rw,crossmnt")
            leave(p)
        equal(soon(lambda: open(p("m/inside")).read()), "inside\n")

    @case("export-inside")
    def export_inside():
        server.ext4("sub")
        server.here("echo inside >sub/inside; mkdir sub/d")
        server.exports("rw", [("sub", "ro,nohide")])
        try:
            leave(p)
            equal(soon(lambda: open(p("sub/inside")).read()), "inside\n")
            refused(lambda: open(p("sub/new"), "w"), errno.EROFS)
            refused(lambda: os.rmdir(p("sub/d")), errno.EROFS)
            open(p("plain/new"), "w").close()
            handle, mount = handles.handle_of(p("sub/d")), os.open(p("sub"), os.O_RDONLY)
            handles.forget()
            fd = handles.open_handle(mount, handle)
            equal(os.readlink(f"/proc/self/fd/{fd}"), p("sub/d"))
            os.close(fd)
            os.close(mount)
        finally:
            server.exports("rw,crossmnt")
            leave(p)
            sh(f"umount -l {p('sub')} 2>/dev/null || true")
