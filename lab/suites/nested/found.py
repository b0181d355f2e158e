"""Objects that the kernel finds by handle alone, and the directories above them."""
import os

import handles
from kit import check, equal

PLACES = ("own", "m", "m/deep")
# NFSv3 has no LOOKUPP but LOOKUP of "..".
UP = ("LOOKUPP", "LOOKUP")


def cases(s, server):
    case, p = s.case, s.p

    def name_all(paths):
        """Handles of paths, and descriptors of the mounts that they are in."""
        named = [(path, handles.handle_of(p(path)), os.open(p(mount), os.O_RDONLY)) for mount, path in paths]
        handles.forget()
        return named

    @case("directories-by-handle")
    def directories_by_handle():
        server.here("mkdir -p own/a/b/c; echo a/b/c 1 >own/a/b/c/1; echo inside >own/inside")
        for path, handle, mount in name_all([(m, f"{m}/a/b/c") for m in PLACES]):
            before = handles.asked(p("m"), UP)
            fd = handles.open_handle(mount, handle, os.O_RDONLY | os.O_DIRECTORY)
            equal(os.readlink(f"/proc/self/fd/{fd}"), p(path))
            up = os.open("../..", os.O_RDONLY, dir_fd=fd)
            equal(os.readlink(f"/proc/self/fd/{up}"), os.path.dirname(os.path.dirname(p(path))))
            equal("1" in os.listdir(fd), True)
            check(not path.startswith("m/a") or handles.asked(p("m"), UP) > before, "no directory above was asked for")
            os.fchdir(fd)
            equal(os.getcwd(), p(path))
            os.chdir("/")
            for f in (fd, up, mount):
                os.close(f)

    @case("files-by-handle")
    def files_by_handle():
        for path, handle, mount in name_all([(m, f"{m}/a/b/c/1") for m in PLACES]):
            fd = handles.open_handle(mount, handle)
            equal(os.read(fd, 100), b"a/b/c 1\n", path)
            os.close(fd)
            fd = handles.open_handle(mount, handle, os.O_WRONLY)
            os.pwrite(fd, b"A", 0)
            os.fsync(fd)
            equal(server.here(f"cat {path}"), "A/b/c 1")
            os.pwrite(fd, b"a", 0)
            os.close(fd)
            os.close(mount)

    @case("roots-by-handle")
    def roots_by_handle():
        for path, handle, mount in name_all([("m", "m"), ("m/deep", "m/deep")]):
            fd = handles.open_handle(mount, handle, os.O_RDONLY | os.O_DIRECTORY)
            check("inside" in os.listdir(fd))
            up = os.open("..", os.O_RDONLY, dir_fd=fd)
            equal(os.stat(up).st_dev, os.stat(os.path.dirname(p(path))).st_dev)
            for f in (fd, up, mount):
                os.close(f)

    @case("removed-by-handle")
    def removed_by_handle():
        server.here("mkdir m/gone; echo x >m/gone/f; mkdir m/gone/d")
        named = name_all([("m", "m/gone/f"), ("m", "m/gone/d")])
        server.here("rm -r m/gone")
        for path, handle, mount in named:
            try:
                os.close(handles.open_handle(mount, handle))
                check(False, f"{path} was opened")
            except OSError as e:
                equal(os.strerror(e.errno), "Stale file handle")
            os.close(mount)

    @case("moved-by-handle")
    def moved_by_handle():
        server.here("mkdir -p m/one/d/e m/two; echo x >m/one/d/e/f")
        [(_, handle, mount)] = name_all([("m", "m/one/d/e")])
        server.here("mv m/one/d m/two/")
        fd = handles.open_handle(mount, handle, os.O_RDONLY | os.O_DIRECTORY)
        equal(os.readlink(f"/proc/self/fd/{fd}"), p("m/two/d/e"))
        equal(os.listdir(fd), ["f"])
        os.close(fd)
        os.close(mount)
        server.here("rm -r m/one m/two own")
