"""Directories that a program of the server's machine moves while clients use them."""
import errno, os, time

import handles
from kit import check, equal, sh
from coming import soon
from mounts import refused


def cases(s, server):
    case, p = s.case, s.p

    @case("moved-inside")
    def moved_inside():
        server.here("mkdir -p from/d/e to; echo f >from/d/e/f")
        os.chdir(p("from/d/e"))
        try:
            server.here("mv from/d to/")
            handles.forget()
            equal(open("f").read(), "f\n")
            open("g", "w").close()
            equal(server.here("ls to/d/e"), "f\ng")
            check("e" in os.listdir(".."))
            soon(lambda: equal(open(p("to/d/e/f")).read(), "f\n"))
            os.chdir(p("to/d/e"))
            equal(os.getcwd(), p("to/d/e"))
        finally:
            os.chdir("/")
            server.here("rm -r from to")

    if s.server != "hither":
        return                  # the whole file system is exported

    @case("moved-out")
    def moved_out():
        server.here("mkdir -p d/e; echo f >d/e/f; echo g >d/e/g")
        cwd, f = os.open(p("d/e"), os.O_RDONLY), os.open(p("d/e/f"), os.O_RDWR)
        equal(os.pread(f, 10, 0), b"f\n")
        server.run("rm -rf ../outside; mkdir ../outside")
        server.run(f"mv {server.base}/d ../outside/")
        handles.forget()
        time.sleep(1)
        refused(lambda: os.open("g", os.O_RDONLY, dir_fd=cwd), errno.ESTALE)
        refused(lambda: os.close(os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=cwd)), errno.ESTALE)
        refused(lambda: os.mkdir("newdir", dir_fd=cwd), errno.ESTALE)
        refused(lambda: os.unlink("g", dir_fd=cwd), errno.ESTALE)
        refused(lambda: os.listdir(cwd), errno.ESTALE)
        refused(lambda: open(p("d/e/g")), errno.ENOENT, errno.ESTALE)
        # An open file goes on.
        os.pwrite(f, b"F", 0)
        os.fsync(f)
        equal(server.run("cat ../outside/d/e/f"), "F")
        equal(server.run("ls ../outside/d/e"), "f\ng")
        os.close(f)
        server.run(f"mv ../outside/d {server.base}/")
        equal(soon(lambda: open(p("d/e/f")).read()), "F\n")
        os.close(cwd)
