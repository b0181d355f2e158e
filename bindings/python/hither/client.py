"""Calls. One thread of the package reads replies, and each caller waits for its own reply. Another
thread closes dropped files. The garbage collector drops files in any thread, between any two
instructions, also in the reading thread. That thread must never wait. So only single operations
change the state that calls share.

A partly sent frame ends the connection. The daemon would take later bytes for the rest of that
frame, for example for file data. A child process inherits the socket and none of the threads, so
its connection has ended."""

import errno
import io
import itertools
import os
import queue
import socket
import stat as _stat
import struct
import threading
import weakref

from . import wire
from .wire import U32, U64, string, take

_KINDS = {1: _stat.S_IFREG, 2: _stat.S_IFDIR, 3: _stat.S_IFLNK, 4: _stat.S_IFBLK, 5: _stat.S_IFCHR, 6: _stat.S_IFSOCK,
          7: _stat.S_IFIFO}
_WINDOW = 8
# Most paths in one request, and most bytes of them.
_BATCH, _BATCH_BYTES = 512, 1 << 20


class Attr:
    """Attributes, with the names of os.stat_result."""

    __slots__ = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_rdev", "st_size", "st_blocks", "fsid", "st_ino", "st_atime_ns",
                 "st_mtime_ns", "st_ctime_ns", "change")

    def __init__(self, body, at=0):
        (kind, mode, self.st_nlink, self.st_uid, self.st_gid, major, minor, self.st_size, used, fs0, fs1, self.st_ino, a, an, m, mn,
         c, cn, self.change) = wire.ATTR.unpack_from(body, at)
        self.st_mode = _KINDS[kind] | mode
        # The encoding of the C library. os.makedev refuses numbers above INT_MAX, which servers
        # send for files that are not devices.
        self.st_rdev = (major & 0xfff) << 8 | (major & ~0xfff) << 32 | minor & 0xff | (minor & ~0xff) << 12
        self.st_blocks = (used + 511) // 512
        self.fsid = (fs0, fs1)
        self.st_atime_ns, self.st_mtime_ns, self.st_ctime_ns = (s * 10**9 + n for s, n in ((a, an), (m, mn), (c, cn)))

    @property
    def st_mtime(self):
        return self.st_mtime_ns / 1e9

    def is_dir(self):
        return _stat.S_ISDIR(self.st_mode)

    def is_file(self):
        return _stat.S_ISREG(self.st_mode)

    def is_symlink(self):
        return _stat.S_ISLNK(self.st_mode)

    def __repr__(self):
        return f"Attr(mode={self.st_mode:o}, size={self.st_size}, ino={self.st_ino})"


def _error(number, path=None):
    return OSError(number, os.strerror(number), path)


def _find(path):
    info = os.stat(path)
    if _stat.S_ISSOCK(info.st_mode):
        return path
    found = f"/run/hither/{os.major(info.st_dev)}:{os.minor(info.st_dev)}.programs"
    if not os.path.lexists(found):
        raise FileNotFoundError(errno.ENOENT, "not in a mount of hither that has a socket", os.fspath(path))
    return found


def connect(path):
    """Connects to the mount that contains `path`, or to `path` itself when it is a socket."""
    return Share(path)


class _Call:
    """A request under way."""

    def __init__(self, share, number):
        self.share, self.number, self.over, self.taken = share, number, False, 0
        self.replies = queue.SimpleQueue()

    def frame(self, timeout=None):
        """Flags, body and descriptor of the next frame. None at the end."""
        if self.over:
            return None
        try:
            got = self.replies.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(errno.ETIMEDOUT, "nothing came in time") from None
        if got is None:
            self.over = True
            raise ConnectionAbortedError(errno.ECONNABORTED, "the mount's daemon ended the connection")
        flags, body, fd = got
        if flags & wire.ERROR:
            self.over = True
            raise _error(U32.unpack_from(body)[0])
        if not flags & wire.MORE:
            self.over = True
            return (flags, body, fd)
        self.taken += 1
        if self.taken >= wire.FRAMES_AHEAD // 2:
            self.share._send(self.number, wire.ALLOW, U32.pack(self.number) + U32.pack(self.taken))
            self.taken = 0
        return (flags, body, fd)

    def one(self):
        return self.frame()[1]

    def bodies(self, timeout=None):
        while (got := self.frame(timeout)) is not None:
            if got[1]:
                yield got[1]

    def cancel(self):
        if not self.over:
            self.over = True
            self.share._later.put((wire.CANCEL, self.number))


class Share:
    """A connection to a mount."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Held only to send. A thread may take the lock twice, but not while it is sending a frame.
        self._sending, self._midway = threading.RLock(), None
        self._calls, self._numbers, self._lost = {}, itertools.count(1), False
        # A semaphore: each item is a place for a request.
        self._room = queue.SimpleQueue()
        for _ in range(192):
            self._room.put(None)
        self._later, self._reader = queue.SimpleQueue(), None
        try:
            self._socket.connect(_find(path))
            self._send(0, wire.HELLO, wire.MAGIC + struct.pack("<H", wire.VERSION))
            flags, _, body, _ = self._receive()
        except BaseException:
            self._socket.close()
            raise
        if flags & wire.ERROR:
            raise _error(U32.unpack_from(body)[0])
        version, self.read_only = struct.unpack_from("<HB", body)
        if version != wire.VERSION:
            raise OSError(errno.EPROTONOSUPPORT, f"the daemon speaks version {version}")
        self.dir, at = take(body, 3)
        self.source = take(body, at)[0].decode(errors="surrogateescape")
        self.read_only = bool(self.read_only)
        self._reader = threading.Thread(target=self._read, name="hither", daemon=True)
        self._reader.start()
        threading.Thread(target=self._end_later, name="hither-end", daemon=True).start()
        _SHARES.add(self)

    def close(self):
        """Ends the connection. The daemon closes its open files."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    @property
    def ended(self):
        """Whether the connection has ended, so that calls on the share fail."""
        return self._lost

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # The connection.

    def _send(self, number, op, body):
        frame = wire.HEADER.pack(len(body), number, op, 0) + body
        with self._sending:
            if self._is_midway():
                raise _error(errno.EDEADLK)
            try:
                self._midway = threading.get_ident()
                self._socket.sendall(frame)
            except BaseException:
                # A part of the frame may have been sent, for example after an interrupt.
                self.close()
                raise
            finally:
                self._midway = None

    def _is_midway(self):
        """Whether this thread is already sending a frame, as in a signal handler or the garbage
        collector."""
        return self._midway == threading.get_ident()

    def _exactly(self, n, fds):
        parts = bytearray()
        while len(parts) < n:
            data, got, _, _ = socket.recv_fds(self._socket, n - len(parts), 1)
            for fd in got:
                # Programs that this one executes do not inherit the descriptor.
                os.set_inheritable(fd, False)
                fds.append(fd)
            if not data:
                raise ConnectionAbortedError(errno.ECONNABORTED, "the mount's daemon ended the connection")
            parts += data
        return parts

    def _receive(self):
        fds = []
        n, number, _, flags = wire.HEADER.unpack(self._exactly(wire.HEADER.size, fds))
        if n > wire.BODY_MAX:
            raise ConnectionAbortedError(errno.EPROTO, "a reply that is too long")
        return flags, number, self._exactly(n, fds), fds[0] if fds else None

    def _read(self):
        try:
            while True:
                flags, number, body, fd = self._receive()
                last = not flags & wire.MORE
                call = self._calls.pop(number, None) if last else self._calls.get(number)
                if last and call is not None:
                    self._room.put(None)
                if call is not None and not (call.over and fd is None):
                    call.replies.put((flags, body, fd))
                elif fd is not None:
                    os.close(fd)
        except (OSError, ValueError):
            pass
        self._over()

    def _over(self):
        self._lost = True
        while self._calls:
            try:
                _, call = self._calls.popitem()
            except KeyError:
                break
            self._room.put(None)
            call.replies.put(None)
        self._later.put(None)
        self._socket.close()

    def _forked(self):
        # The thread that holds the lock is in the parent.
        self._sending, self._midway = threading.RLock(), None
        self._over()

    def _end_later(self):
        """Cancels abandoned requests and closes dropped files."""
        while (what := self._later.get()) is not None:
            op, number = what
            try:
                if op == wire.CANCEL:
                    self._send(number, op, U32.pack(number))
                else:
                    self._begin(op, number)
            except OSError:
                # No caller waits for the error.
                pass

    def _begin(self, op, body):
        if len(body) > wire.BODY_MAX:
            # The daemon would refuse a longer body.
            raise _error(errno.E2BIG)
        self._room.get()
        number = next(self._numbers) & 0xffffffff
        call = self._calls[number] = _Call(self, number)
        # The end of the reader answers each request that was added before, once.
        if self._lost and self._calls.pop(number, None) is not None:
            self._room.put(None)
            raise ConnectionAbortedError(errno.ECONNABORTED, "the mount's daemon ended the connection")
        try:
            self._send(number, op, body)
        except BaseException:
            # The request gets no answer, unless the end of the reader has answered it.
            if self._calls.pop(number, None) is not None:
                self._room.put(None)
            raise
        return call

    def _path(self, path):
        path = os.fsencode(path)
        if not path.startswith(b"/"):
            return self._sendable(path)
        if path != self.dir and not path.startswith(self.dir + b"/"):
            raise ValueError(f"{os.fsdecode(path)} is not below {os.fsdecode(self.dir)}")
        return self._sendable(path[len(self.dir):].lstrip(b"/"))

    @staticmethod
    def _sendable(path):
        if len(path) > wire.PATH_MAX:
            raise _error(errno.ENAMETOOLONG, path)
        return path

    def _simple(self, op, path, *rest):
        try:
            return self._begin(op, string(self._path(path)) + b"".join(rest)).one()
        except OSError as e:
            raise _error(e.errno, path) if e.errno and e.filename is None else e

    # Files.

    def open(self, path, mode="r", permissions=0o644):
        """Opens a file: r, r+, w, x, a (with + also for reading). Data is bytes, and nothing is
        buffered (see io.BufferedReader)."""
        flags = {"r": wire.O_READ, "w": wire.O_WRITE | wire.O_CREATE | wire.O_TRUNCATE,
                 "x": wire.O_WRITE | wire.O_CREATE | wire.O_EXCLUSIVE,
                 "a": wire.O_WRITE | wire.O_CREATE}.get(mode.replace("b", "").replace("+", ""))
        if flags is None:
            raise ValueError(f"mode {mode!r}: r, w, x or a, and + if need be")
        if "+" in mode:
            flags |= wire.O_READ | wire.O_WRITE
        body = self._simple(wire.OPEN, path, U32.pack(flags), U32.pack(permissions))
        file = File(self, path, U64.unpack_from(body)[0], flags)
        if "a" in mode:
            file._appends, file._at = True, Attr(body, 8).st_size
        return file

    def read(self, path):
        """All bytes of a file."""
        data = self.read_many([path])[0]
        if isinstance(data, OSError):
            raise data
        return data

    def write(self, path, data):
        """Writes a file with these bytes. They are on stable storage when this returns."""
        with self.open(path, "w") as f:
            f.write_all_at(data, 0)

    def read_many(self, paths):
        """All bytes of many files, in the order of the paths. An unreadable file has an OSError
        instead."""
        paths = list(paths)
        out, longer = [None] * len(paths), []
        for index, size, data in self._pieces([(p, 0, wire.IO_MAX) for p in paths]):
            out[index] = data
            if size is not None and size > len(data):
                longer.append(index)
        for index in longer:
            try:
                with self.open(paths[index]) as f:
                    out[index] = f.readall()
            except OSError as e:
                out[index] = e
        return out

    def read_parts(self, parts):
        """Parts of many files as (index, bytes or OSError), in any order. A part is (path, offset,
        length up to 1 MiB)."""
        for index, _, data in self._pieces(list(parts)):
            yield index, data

    def _pieces(self, parts):
        def frames(call, of):
            for frame in call.bodies():
                at = 0
                while at < len(frame):
                    index, number, size = struct.unpack_from("<IIQ", frame, at)
                    data, at = take(frame, at + 16)
                    yield (of[index], None, number) if number else (of[index], size, data)

        rest = [U64.pack(offset) + U32.pack(min(length, wire.IO_MAX)) for _, offset, length in parts]
        for index, size, data in self._many(wire.READ_MANY, b"", [p for p, _, _ in parts], rest, frames):
            yield index, size, _error(data, parts[index][0]) if isinstance(data, int) else data

    def _many(self, op, head, paths, rest, frames):
        """Asks about paths in as many requests as needed. Yields the results of `frames` in any
        order, and (index, None, errno)."""
        items = []
        for index, path in enumerate(paths):
            try:
                items.append((index, string(self._path(path)) + rest[index]))
            except OSError as e:
                yield index, None, e.errno
        for some in _batches(items):
            call = self._begin(op, head + U32.pack(len(some)) + b"".join(item for _, item in some))
            try:
                yield from frames(call, [index for index, _ in some])
            finally:
                call.cancel()

    def stat(self, path, follow_symlinks=True):
        """Attributes of a path."""
        attr = self.stat_many([path], follow_symlinks)[0]
        if isinstance(attr, OSError):
            raise attr
        return attr

    def stat_many(self, paths, follow_symlinks=True):
        """Attributes of many paths, in their order. A path without attributes has an OSError
        instead."""
        paths = list(paths)
        out = [None] * len(paths)

        def frames(call, of):
            for index, attr in _stated(call.bodies()):
                yield of[index], None, attr

        flags = U32.pack(0 if follow_symlinks else wire.NO_FOLLOW)
        for index, _, attr in self._many(wire.STAT_MANY, flags, paths, [b""] * len(paths), frames):
            out[index] = _error(attr, paths[index]) if isinstance(attr, int) else attr
        return out

    def list(self, path=""):
        """A directory's entries: name, and attributes or OSError."""
        return list(self._entries(self._begin(wire.LIST, string(self._path(path)))))

    def walk(self, path="", depth=0xffffffff):
        """All objects below a directory, as they arrive: path below the directory, and attributes
        or OSError."""
        return self._entries(self._begin(wire.WALK, string(self._path(path)) + U32.pack(depth)))

    def _entries(self, call):
        try:
            for body in call.bodies():
                at = 0
                while at < len(body):
                    name, at = take(body, at)
                    (number,) = U32.unpack_from(body, at)
                    at += 4
                    attr = _error(number, os.fsdecode(name)) if number else Attr(body, at)
                    at += 0 if number else wire.ATTR.size
                    yield os.fsdecode(name), attr
        finally:
            call.cancel()

    def watch(self, paths, timeout=None):
        """The state of paths, and each new state, as (index, attributes or OSError). TimeoutError
        after `timeout` seconds without a change. E2BIG for more than 1024 paths, or a megabyte of
        them."""
        paths = list(paths)
        call = self._begin(wire.WATCH, U32.pack(len(paths)) + b"".join(string(self._path(p)) for p in paths))
        try:
            for index, attr in _stated(call.bodies(timeout)):
                yield index, _error(attr, paths[index]) if isinstance(attr, int) else attr
        finally:
            call.cancel()

    # Names.

    def readlink(self, path):
        """Target of a symbolic link."""
        return os.fsdecode(bytes(self._simple(wire.READ_LINK, path)))

    def mkdir(self, path, mode=0o755):
        """Makes a directory."""
        self._simple(wire.MKDIR, path, U32.pack(mode))

    def unlink(self, path):
        """Removes a name that is not a directory."""
        self._simple(wire.REMOVE, path, U32.pack(0))

    def rmdir(self, path):
        """Removes an empty directory."""
        self._simple(wire.REMOVE, path, U32.pack(1))

    def rename(self, old, new):
        """Renames an object. An object with the new name is replaced."""
        self._simple(wire.RENAME, old, string(self._path(new)), U32.pack(0))

    def symlink(self, target, path):
        """Makes a symbolic link."""
        self._begin(wire.SYMLINK, string(self._sendable(os.fsencode(target))) + string(self._path(path))).one()


def _batches(items):
    """Divides items into requests."""
    some, size = [], 0
    for item in items:
        if some and (len(some) == _BATCH or size + len(item[1]) > _BATCH_BYTES):
            yield some
            some, size = [], 0
        some.append(item)
        size += len(item[1])
    if some:
        yield some


_SHARES = weakref.WeakSet()


def _in_child():
    for share in list(_SHARES):
        share._forked()


os.register_at_fork(after_in_child=_in_child)


def _stated(bodies):
    for body in bodies:
        at = 0
        while at < len(body):
            index, number = struct.unpack_from("<II", body, at)
            at += 8
            yield index, number if number else Attr(body, at)
            at += 0 if number else wire.ATTR.size


class File(io.RawIOBase):
    """An open file. A dropped file is closed a moment later, and its errors are lost."""

    def __init__(self, share, path, number, flags):
        super().__init__()
        self._share, self.name, self._number, self._flags, self._at = share, path, U64.pack(number), flags, 0
        self._appends = False

    def readable(self):
        return bool(self._flags & wire.O_READ)

    def writable(self):
        return bool(self._flags & wire.O_WRITE)

    def seekable(self):
        return True

    def _call(self, op, *body):
        return self._share._begin(op, self._number + b"".join(body))

    def stat(self):
        """Attributes of the file."""
        return Attr(self._call(wire.STAT_FILE).one())

    def read_at(self, n, offset):
        """At most n bytes at an offset. Fewer only at the end of the file."""
        calls, out, asked = [], bytearray(), 0
        while True:
            while asked < n and len(calls) < _WINDOW:
                size = min(wire.IO_MAX, n - asked)
                calls.append((size, self._call(wire.READ, U64.pack(offset + asked), U32.pack(size))))
                asked += size
            if not calls:
                return bytes(out)
            size, call = calls.pop(0)
            data = call.one()[1:]
            out += data
            if len(data) < size:
                for _, call in calls:
                    call.one()
                return bytes(out)

    def write_all_at(self, data, offset):
        """Writes all bytes at an offset."""
        data, calls = memoryview(data).cast("B"), []
        for at in range(0, len(data), wire.IO_MAX):
            part = data[at:at + wire.IO_MAX]
            head = U64.pack(offset + at) + U32.pack(0) + U32.pack(len(part))
            calls.append((len(part), self._call(wire.WRITE, head, part)))
            if len(calls) >= _WINDOW:
                self._wrote(*calls.pop(0))
        for call in calls:
            self._wrote(*call)

    def append(self, data):
        """Writes all bytes at the end of the file, each MiB in one piece. Returns the offset behind
        them. Appends through the same daemon do not overwrite each other. Between clients of a server
        there is no such promise, as with O_APPEND."""
        data, end = memoryview(data).cast("B"), None
        for at in range(0, len(data), wire.IO_MAX):
            part = data[at:at + wire.IO_MAX]
            head = U64.pack(wire.APPEND_AT) + U32.pack(wire.WRITE_APPEND) + U32.pack(len(part))
            body = self._call(wire.WRITE, head, part).one()
            end = U64.unpack_from(body, 4)[0] + len(part)
            if U32.unpack_from(body)[0] < len(part):
                self.sync()
                raise _error(errno.EIO)
        return self.stat().st_size if end is None else end

    def _wrote(self, size, call):
        if U32.unpack_from(call.one())[0] < size:
            # The next request for the file returns the reason, unless another request has returned
            # it.
            self.sync()
            raise _error(errno.EIO)

    def readinto(self, buffer):
        data = self.read_at(len(buffer), self._at)
        buffer[:len(data)] = data
        self._at += len(data)
        return len(data)

    def readall(self):
        parts = []
        while data := self.read_at(_WINDOW * wire.IO_MAX, self._at):
            self._at += len(data)
            parts.append(data)
        return b"".join(parts)

    def write(self, data):
        n = memoryview(data).nbytes
        if self._appends:
            self._at = self.append(data)
            return n
        self.write_all_at(data, self._at)
        self._at += n
        return n

    def seek(self, offset, whence=io.SEEK_SET):
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence)
        at = (self.stat().st_size if base is None else base) + offset
        if at < 0:
            raise _error(errno.EINVAL)
        self._at = at
        return at

    def tell(self):
        return self._at

    def truncate(self, size=None):
        size = self._at if size is None else size
        self._call(wire.SET_LEN, U64.pack(size)).one()
        return size

    def sync(self):
        """Returns when all written data is on stable storage."""
        self._call(wire.SYNC).one()

    def lend(self):
        """A descriptor for reading all bytes of the file. The caller closes it. OSError
        (EOPNOTSUPP) unless the mount has `ro,consistency=frozen,cache` and the whole file is on the local disk."""
        _, _, fd = self._call(wire.LEND).frame()
        return fd

    def close(self):
        """Closes the file. On success its writes are on stable storage."""
        if self.closed:
            return
        super().close()
        if threading.current_thread() is self._share._reader or self._share._is_midway():
            # The garbage collector has dropped a buffer around this file.
            self._share._later.put((wire.CLOSE, self._number))
        else:
            self._call(wire.CLOSE).one()

    def __del__(self):
        # This must not wait, because it may run in any thread with any lock held.
        if hasattr(self, "_number") and not self.closed:
            super().close()
            self._share._later.put((wire.CLOSE, self._number))
