"""The fate of a connection. The tests have their own daemon and need no mount."""

import errno
import os
import signal
import socket
import struct
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import hither
from hither import wire
from hither.client import Attr, File


def exactly(conn, n):
    got = b""
    while len(got) < n and (data := conn.recv(n - len(got))):
        got += data
    return got


def request(conn):
    """Number, operation and body of the next request. None at the end."""
    header = exactly(conn, wire.HEADER.size)
    if len(header) < wire.HEADER.size:
        return None
    n, number, op, _ = wire.HEADER.unpack(header)
    return number, op, exactly(conn, n)


def reply(conn, number, op, body=b"", flags=0):
    conn.sendall(wire.HEADER.pack(len(body), number, op, flags) + body)


class Signal(Exception):
    pass


class Connection(unittest.TestCase):
    def connected(self, daemon):
        """A share whose daemon runs `daemon` after the greeting, and the thread of that daemon."""
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        path = os.path.join(place.name, "socket")
        listener.bind(path)
        listener.listen()

        def serve():
            conn, _ = listener.accept()
            with conn:
                number, op, _ = request(conn)
                reply(conn, number, op, struct.pack("<HB", 1, 0) + wire.string(b"/mnt") + wire.string(b"s:/"))
                daemon(conn)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        share = hither.connect(path)
        self.addCleanup(thread.join)
        self.addCleanup(share.close)
        return share, thread

    def signalled(self, handler):
        before = signal.signal(signal.SIGUSR1, handler)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)

    def half_sent(self, handled, rest):
        """A share that receives signals during its first frame, until `handled`. Then the daemon
        runs `rest`."""
        main = threading.main_thread().ident

        def daemon(conn):
            header = exactly(conn, wire.HEADER.size)
            while not handled.wait(0.01):
                signal.pthread_kill(main, signal.SIGUSR1)
            rest(conn, header)

        share, thread = self.connected(daemon)
        # A small buffer, which a frame exceeds.
        share._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return share, thread

    def test_partial_frame_ends_connection(self):
        handled, received = threading.Event(), bytearray()

        def handler(*_):
            if not handled.is_set():
                handled.set()
                raise Signal

        def rest(conn, _):
            while data := conn.recv(1 << 20):
                received.extend(data)

        self.signalled(handler)
        share, thread = self.half_sent(handled, rest)
        f = File(share, "f", 7, wire.O_WRITE)
        with self.assertRaises(Signal):
            f.write_all_at(b"x" * (1 << 20), 0)
        # The daemon would take this request for file data.
        with self.assertRaises(OSError):
            f._call(wire.SYNC)
        thread.join()
        self.assertLess(len(received), 1 << 20)
        self.assertEqual(received[24:], b"x" * len(received[24:]))
        share._reader.join()
        self.assertTrue(share.ended)

    def test_signal_handlers_keep_frames_whole(self):
        handled, said, received = threading.Event(), [], []

        def handler(*_):
            if handled.is_set():
                return
            for send in (lambda: share._send(77, wire.CANCEL, wire.U32.pack(1)), lambda: share._begin(wire.SYNC, b"12345678")):
                try:
                    send()
                except OSError as e:
                    said.append((e.errno, share._room.qsize()))
            # The garbage collector may run at this place, too.
            File(share, "g", 8, wire.O_READ).close()
            handled.set()

        def rest(conn, header):
            n, number, op, _ = wire.HEADER.unpack(header)
            received.append((op, exactly(conn, n)[24:]))
            reply(conn, number, op, wire.U32.pack(1 << 20))
            for _ in range(2):
                one = request(conn)
                reply(conn, *one[:2])
                received.append(one[1:])

        self.signalled(handler)
        share, thread = self.half_sent(handled, rest)
        f = File(share, "f", 7, wire.O_WRITE)
        body = os.urandom(1 << 20)
        f.write_all_at(body, 0)
        # Each refused request freed its place. The frame that is being sent holds one.
        self.assertEqual(said, [(errno.EDEADLK, 191)] * 2)
        f.close()
        # The dropped file is closed a moment later.
        thread.join()
        self.assertEqual(received[0], (wire.WRITE, body))
        self.assertEqual({body for _, body in received[1:]}, {wire.U64.pack(7), wire.U64.pack(8)})

    def test_a_child_process_has_no_connection(self):
        received = []

        def daemon(conn):
            while (one := request(conn)) is not None:
                received.append(one[1])
                if one[1] != wire.WALK:
                    reply(conn, *one[:2])

        share, _ = self.connected(daemon)
        f = File(share, "f", 7, wire.O_WRITE)
        walk = share._begin(wire.WALK, wire.string(b"") + wire.U32.pack(1))
        f.sync()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            failed = 0
            # The fork may have happened while another thread was sending.
            for call in (f.sync, walk.frame, lambda: share.stat(""), f.close):
                try:
                    call()
                except ConnectionAbortedError:
                    failed += 1
            share.close()
            os._exit(0 if failed == 4 and share.ended else 1)
        _, status = os.waitpid(child, 0)
        self.assertEqual(status, 0)
        # The parent's connection goes on.
        f.sync()
        f.close()
        self.assertEqual(received, [wire.WALK, wire.SYNC, wire.SYNC, wire.CLOSE])
        self.assertFalse(share.ended)

    def test_lent_descriptor_is_not_inherited(self):
        def daemon(conn):
            number, op, _ = request(conn)
            with open("/dev/null") as null:
                socket.send_fds(conn, [wire.HEADER.pack(0, number, op, wire.FD)], [null.fileno()])
            exactly(conn, 1 << 20)

        share, _ = self.connected(daemon)
        fd = File(share, "f", 7, wire.O_READ).lend()
        self.addCleanup(os.close, fd)
        self.assertFalse(os.get_inheritable(fd))

    def test_numbers_of_devices(self):
        for major, minor in ((0, 0), (8, 1), (259, 70000), (0x7fffffff, 0x7fffffff), (0xffffffff, 0xffffffff)):
            attr = Attr(wire.ATTR.pack(1, 0o644, 1, 0, 0, major, minor, *[0] * 5, *[0] * 6, 0))
            self.assertEqual((attr.st_rdev >> 44 << 12 | attr.st_rdev >> 8 & 0xfff, os.minor(attr.st_rdev)), (major, minor))
            if major < 1 << 31:
                self.assertEqual(attr.st_rdev, os.makedev(major, minor))


if __name__ == "__main__":
    unittest.main()
