"""Tests on a mount ($HITHER_MOUNT): answers of the package against those of the mount."""

import errno
import io
import mmap
import os
import pathlib
import sys
import threading
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import hither
import hither.wire

try:
    import fsspec
except ImportError:
    fsspec = None

MOUNT = os.environ.get("HITHER_MOUNT")


@unittest.skipUnless(MOUNT, "HITHER_MOUNT names the mount")
class Case(unittest.TestCase):
    def setUp(self):
        self.share = hither.connect(MOUNT)
        self.addCleanup(self.share.close)
        self.name = f"py-{os.getpid()}-{self._testMethodName}"
        self.top = pathlib.Path(MOUNT, self.name)
        self.top.mkdir()


class Share(Case):
    def test_files(self):
        body = os.urandom(3_000_000)
        with self.share.open(f"{self.name}/f", "x") as f:
            f.write(body)
            f.sync()
            self.assertEqual(f.stat().st_size, len(body))
        self.assertEqual(self.top.joinpath("f").read_bytes(), body)
        self.assertEqual(self.share.read(self.top / "f"), body)
        with self.share.open(f"{self.name}/f", "r+") as f:
            f.seek(-5, os.SEEK_END)
            self.assertEqual(f.read(10), body[-5:])
            f.seek(0)
            f.write(b"start")
            f.truncate(100)
        self.assertEqual(self.top.joinpath("f").read_bytes(), b"start" + body[5:100])
        with self.assertRaises(FileExistsError):
            self.share.open(f"{self.name}/f", "x")

    def test_append(self):
        path = self.top / "log"
        with self.share.open(path, "a") as f, self.share.open(path, "a+") as g:
            f.write(b"one ")
            g.write(b"two ")
            f.write(b"three")
            self.assertEqual(f.tell(), 13)
            g.seek(4)
            self.assertEqual(g.read(3), b"two")
        with self.share.open(path, "a") as f:
            self.assertEqual(f.tell(), 13)
            self.assertEqual(f.append(b"x" * 2_500_000), 2_500_013)
        self.assertEqual(path.read_bytes(), b"one two three" + b"x" * 2_500_000)

    def test_many(self):
        names = [f"{self.name}/{i}" for i in range(700)]
        for i, name in enumerate(names):
            pathlib.Path(MOUNT, name).write_bytes(b"%d" % i * i)
        os.mkdir(self.top / "dir")
        pathlib.Path(self.top, "large").write_bytes(b"x" * 2_500_000)
        for i, data in enumerate(self.share.read_many(names)):
            self.assertEqual(data, b"%d" % i * i)
        self.assertEqual([a.st_size for a in self.share.stat_many(names)], [os.stat(os.path.join(MOUNT, n)).st_size for n in names])
        large, none, directory = self.share.read_many([f"{self.name}/{n}" for n in ("large", "none", "dir")])
        self.assertEqual(large, b"x" * 2_500_000)
        self.assertEqual((none.errno, directory.errno), (errno.ENOENT, errno.EISDIR))
        parts = dict(self.share.read_parts([(names[3], 1, 2), (names[650], 3, 3)]))
        self.assertEqual(parts, {0: b"33", 1: b"650"})

    def test_names(self):
        self.share.mkdir(f"{self.name}/d")
        self.share.write(f"{self.name}/d/f", b"1")
        self.share.symlink("d/f", f"{self.name}/l")
        self.assertEqual(self.share.readlink(f"{self.name}/l"), "d/f")
        self.assertTrue(self.share.stat(f"{self.name}/l").is_file())
        self.assertTrue(self.share.stat(f"{self.name}/l", follow_symlinks=False).is_symlink())
        for path, attr in self.share.walk(self.name):
            there = os.lstat(self.top / path)
            self.assertEqual((attr.st_mode, attr.st_size, attr.st_ino, attr.st_mtime_ns),
                             (there.st_mode, there.st_size, there.st_ino, there.st_mtime_ns), path)
        self.assertEqual(sorted(p for p, _ in self.share.walk(self.name)), ["d", "d/f", "l"])
        self.assertEqual(sorted(n for n, _ in self.share.list(self.name)), ["d", "l"])
        with self.assertRaises(OSError) as caught:
            self.share.rmdir(f"{self.name}/d")
        self.assertEqual(caught.exception.errno, errno.ENOTEMPTY)
        self.share.rename(f"{self.name}/d/f", f"{self.name}/g")
        self.share.rmdir(f"{self.name}/d")
        self.share.unlink(f"{self.name}/l")
        self.assertEqual(os.listdir(self.top), ["g"])

    def test_watch(self):
        self.share.write(f"{self.name}/w", b"1")
        seen = self.share.watch([f"{self.name}/w"], timeout=600)
        self.assertEqual(next(seen)[1].st_size, 1)
        self.top.joinpath("w").write_bytes(b"22")
        sizes = set()
        while 2 not in sizes:
            sizes.add(next(seen)[1].st_size)
        seen.close()
        self.assertEqual(self.share.read(f"{self.name}/w"), b"22")

    def test_threads(self):
        self.share.write(f"{self.name}/t", b"x" * 500_000)
        wrong = []

        def read():
            for _ in range(20):
                if self.share.read(f"{self.name}/t") != b"x" * 500_000:
                    wrong.append(1)

        threads = [threading.Thread(target=read) for _ in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(wrong, [])

    def within(self, seconds, call):
        out = []
        thread = threading.Thread(target=lambda: out.append(call()), daemon=True)
        thread.start()
        thread.join(seconds)
        self.assertTrue(out, "nothing came in time")
        return out[0]

    def test_dropped_files(self):
        self.share.write(f"{self.name}/f", b"x")
        for wrap in (lambda f: f, io.BufferedReader):
            for thread in ("reader", "own"):
                held = [wrap(self.share.open(f"{self.name}/f"))]
                if thread == "own":
                    held.clear()
                else:
                    # The reading thread has the last reference, as when the garbage collector runs
                    # there.
                    class Dropping:
                        over, done = False, threading.Event()

                        def put(self, _):
                            held.clear()
                            self.done.set()

                    dropping = Dropping()
                    dropping.replies = dropping
                    self.share._room.get()
                    self.share._calls[9999999] = dropping
                    self.share._send(9999999, hither.wire.STAT_MANY, hither.wire.U32.pack(0) * 2)
                    # Replies come in any order. The next call must find that the thread has dropped
                    # the file.
                    self.assertTrue(dropping.done.wait(600), "the reading thread waits")
                self.within(600, lambda: self.share.stat(f"{self.name}/f"))
                self.assertEqual(held, [])
        numbers = set()
        for _ in range(1100):
            # More files than may be open at a time. The dropped ones are closed.
            numbers.add(self.share.open(f"{self.name}/f")._number)
            self.share.stat("")
        self.assertEqual(len(numbers), 1100)

    def fails(self, number, call, *args):
        with self.assertRaises(OSError) as caught:
            call(*args)
        self.assertEqual(caught.exception.errno, number)

    def test_oversized_arguments_are_refused(self):
        share, f = self.share, f"{self.name}/f"
        share.write(f, b"x")
        held = share.open(f)
        self.addCleanup(held.close)
        for long in ("x" * 4097, "x" * (2 << 20), os.path.join(MOUNT, "x" * 4097)):
            for call in (share.open, share.read, share.stat, share.list, share.mkdir, share.unlink, share.rmdir, share.readlink,
                         lambda path: list(share.walk(path)), lambda path: next(share.watch([path])),
                         lambda path: share.rename(f, path), lambda path: share.symlink(path, "l")):
                self.fails(errno.ENAMETOOLONG, call, long)
            data, error, again = share.read_many([f, long, f])
            self.assertEqual((data, error.errno, again), (b"x", errno.ENAMETOOLONG, b"x"))
            one, error = share.stat_many([f, long])
            self.assertEqual((one.st_size, error.errno), (1, errno.ENAMETOOLONG))
        # Paths of the greatest length, more of them than fit into one request.
        fits = f"{self.name}/".ljust(4095, "/") + "f"
        self.assertEqual([a.st_size for a in share.stat_many([fits] * 600)], [1] * 600)
        self.assertEqual(share.read_many([fits] * 600), [b"x"] * 600)
        for paths in ([f] * 1025, [fits] * 500):
            self.fails(errno.E2BIG, lambda: next(share.watch(paths)))
        watch = share.watch([f] * 1024)
        self.assertEqual(next(watch)[1].st_size, 1)
        watch.close()
        # Requests that another library may send.
        string, number = hither.wire.string, hither.wire.U32.pack
        for expected, op, body in (
                (errno.ENAMETOOLONG, hither.wire.LIST, string(b"x" * 4097)),
                (errno.ENAMETOOLONG, hither.wire.WATCH, number(1) + string(b"x" * 4097)),
                (errno.EINVAL, hither.wire.LIST, string(b"a\0b")),
                (errno.E2BIG, hither.wire.STAT_MANY, number(0) + number(16385) + string(b"") * 16385)):
            self.fails(expected, lambda: share._begin(op, body).one())
        # The one connection of all these calls still works.
        self.assertEqual(held.read(), b"x")

    def test_unread_replies_block_no_call(self):
        self.share.write(f"{self.name}/f", b"x" * (1 << 20))
        left = []
        for _ in range(4):
            parts = self.share.read_parts([(f"{self.name}/f", 0, 1 << 20)] * 60)
            next(parts)
            left.append(parts)
        with self.share.open(f"{self.name}/f") as f:
            self.assertEqual(len(self.within(600, lambda: f.read_at(1 << 20, 0))), 1 << 20)
        for parts in left:
            parts.close()
        self.assertEqual(self.within(600, lambda: self.share.read(f"{self.name}/f")), b"x" * (1 << 20))

    def test_maps(self):
        path = self.top / "m"
        path.write_bytes(b"." * 8192)
        with open(path, "r+b") as held, mmap.mmap(held.fileno(), 8192) as mapped, self.share.open(f"{self.name}/m", "r+") as f:
            for i in range(20):
                # Stored and not synchronised: the kernel has a newer page than the server.
                mapped[100 + i] = 65 + i
                f.write_all_at(b"%05d" % i, 0)
                self.assertEqual(mapped[:5], b"%05d" % i)
                self.assertEqual(mapped[100:101 + i], bytes(range(65, 66 + i)))
            mapped[100] = mapped[5000] = 66
            f.truncate(200)
            self.assertEqual(os.stat(path).st_size, 200)
            self.assertEqual(mapped[100], 66)
        self.assertEqual(path.read_bytes(), b"00019" + b"." * 95 + b"B" + bytes(range(66, 85)) + b"." * 80)

    def test_the_end(self):
        share = hither.connect(MOUNT)
        f = share.open(f"{self.name}/e", "w")
        f.write(b"left")
        share.close()
        with self.assertRaises(OSError):
            for _ in range(100):
                share.stat("")
        with self.assertRaises(OSError):
            f.close()
        with self.assertRaises(FileNotFoundError):
            hither.connect("/proc")


@unittest.skipUnless(fsspec, "fsspec is not installed")
class Fsspec(Case):
    def test_filesystem(self):
        from hither.fs import HitherFileSystem
        fsspec.register_implementation("hither", HitherFileSystem, clobber=True)
        url = f"hither://{self.top}"
        fs = fsspec.filesystem("hither")
        fs.makedirs(f"{url}/a/b")
        with fsspec.open(f"{url}/a/b/f", "wb") as f:
            f.write(b"bytes" * 1000)
        with fsspec.open(f"{url}/a/b/f") as f:
            f.seek(5)
            self.assertEqual(f.read(5), b"bytes")
        with fsspec.open(f"{url}/a/b/f", "ab") as f:
            f.write(b"more ")
            f.write(b"bytes")
        self.assertEqual(fs.cat(f"{url}/a/b/f")[-15:], b"bytesmore bytes")
        fs.pipe(f"{url}/a/b/f", b"bytes" * 1000)
        fs.pipe(f"{url}/a/g", b"other")
        self.assertEqual(set(fs.find(url)), {f"{self.top}/a/b/f", f"{self.top}/a/g"})
        self.assertEqual(fs.cat([f"{url}/a/b/f", f"{url}/a/g"]),
                         {f"{self.top}/a/b/f": b"bytes" * 1000, f"{self.top}/a/g": b"other"})
        self.assertEqual(fs.cat(f"{url}/a/g"), b"other")
        # A share that has ended, or belongs to the parent process, is connected again.
        ended = fs._at(f"{url}/a/g")[0]
        ended.close()
        ended._reader.join()
        self.assertEqual(fs.cat(f"{url}/a/g"), b"other")
        self.assertEqual(fs.info(f"{url}/a")["type"], "directory")
        self.assertFalse(fs.exists(f"{url}/none"))
        fs.mv(f"{url}/a/g", f"{url}/a/h")
        fs.rm(f"{url}/a", recursive=True)
        self.assertEqual(os.listdir(self.top), [])
        below = fsspec.filesystem("hither", mount=MOUNT)
        below.pipe(f"/{self.name}/x", b"1")
        self.assertEqual(below.ls(f"/{self.name}", detail=False), [f"/{self.name}/x"])


if __name__ == "__main__":
    unittest.main()
