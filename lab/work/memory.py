"""What hither serve keeps in memory for connections, clients, opens, delegations, and a large tree: its resident memory before and after, as JSON lines.

memory.py HITHER PID PORT DIR TMP DIVISOR PART: the server's process and port on this machine, the directory that it serves, by what the numbers are divided, and
which of connections, opens, leases and tree, each for a server that has done nothing else.
Connections and clients speak NFSv4.1 by hand; opens are those of a program on a mount.
"""
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import time

HITHER, PID, PORT, DIR, TMP = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
DIVISOR = int(sys.argv[6])
# The server keeps up to two descriptors for each open, one where they are scarce, and has others; where it may have no more it puts opens off.
DESCRIPTORS = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
CONNECTIONS, FILES, ENTRIES = 1000 // DIVISOR, min(100_000, DESCRIPTORS // 2 - 1000) // DIVISOR, int(os.environ.get("ENTRIES", 1_000_000)) // DIVISOR
# Names of one directory; also the most links of a file that file systems have in common.
EACH = 1000
MOUNT = f"{TMP}/memory-mount"


def resident():
    """Bytes, when they have not grown for a second."""
    last = 0
    while True:
        with open(f"/proc/{PID}/status") as f:
            now = next(int(line.split()[1]) << 10 for line in f if line.startswith("VmRSS"))
        if now <= last:
            return now
        last = now
        time.sleep(1)


def tell(kind, count, before, after):
    print(json.dumps({"bench": "memory", "label": "hither", "kind": kind, "count": count, "before_bytes": before, "after_bytes": after}), flush=True)


def opaque(data):
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def call(conn, xid, proc, body):
    """An RPC with AUTH_SYS; its results."""
    sys_cred = opaque(struct.pack(">I", 0) + opaque(b"memory") + struct.pack(">III", 0, 0, 0))
    message = struct.pack(">IIIIII", xid, 0, 2, 100003, 4, proc) + struct.pack(">I", 1) + sys_cred + struct.pack(">II", 0, 0) + body
    conn.sendall(struct.pack(">I", 0x80000000 | len(message)) + message)
    want = struct.unpack(">I", receive(conn, 4))[0] & 0x7FFFFFFF
    reply = receive(conn, want)
    assert struct.unpack(">III", reply[:12]) == (xid, 1, 0), reply[:12]
    return reply[24:]


def receive(conn, want):
    data = b""
    while len(data) < want:
        more = conn.recv(want - len(data))
        assert more, "the server hung up"
        data += more
    return data


def compound(conn, xid, *ops):
    """A COMPOUND of NFSv4.1; the results behind its status, tag and count."""
    results = call(conn, xid, 1, opaque(b"") + struct.pack(">II", 1, len(ops)) + b"".join(ops))
    status, taglen, count = struct.unpack(">III", results[:12])
    assert (status, taglen, count) == (0, 0, len(ops)), (status, taglen, count)
    return results[12:]


def session(conn, n):
    """EXCHANGE_ID and CREATE_SESSION, as RFC 8881, 18.35 and 18.36 have them."""
    owner = struct.pack(">Q", n) + opaque(b"memory.py %d" % n)
    exchanged = compound(conn, 2, struct.pack(">I", 42) + owner + struct.pack(">III", 0, 0, 0))
    clientid, sequence = exchanged[8:16], exchanged[16:20]
    channel = struct.pack(">IIIIIII", 0, 1 << 20, 1 << 20, 4096, 16, 16, 0)
    security = struct.pack(">II", 1, 0)
    compound(conn, 3, struct.pack(">I", 43) + clientid + sequence + struct.pack(">I", 0) + channel + channel + struct.pack(">I", 0x40000000) + security)


def connections():
    before = resident()
    conns = [socket.create_connection(("127.0.0.1", PORT)) for _ in range(CONNECTIONS)]
    for conn in conns:
        call(conn, 1, 0, b"")
    connected = resident()
    tell("connection (TCP, after a NULL)", CONNECTIONS, before, connected)
    for n, conn in enumerate(conns):
        session(conn, n)
    tell("client of NFSv4.1 with a session of 16 slots", CONNECTIONS, connected, resident())
    for conn in conns:
        conn.close()


def mounted(*options):
    os.makedirs(MOUNT, exist_ok=True)
    words = ",".join((f"port={PORT}", *options))
    subprocess.run([HITHER, "mount", "-o", words, "127.0.0.1:/", MOUNT], check=True, stdout=sys.stderr)


def unmounted():
    subprocess.run(["umount", MOUNT], check=True)


def files():
    os.makedirs(f"{DIR}/opens", exist_ok=True)
    for n in range(FILES):
        open(f"{DIR}/opens/{n}", "a").close()


def opens():
    """Open for writing, which is not delegated for reading."""
    files()
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    mounted("vers=4.2")
    os.listdir(f"{MOUNT}/opens")
    before = resident()
    held = [os.open(f"{MOUNT}/opens/{n}", os.O_RDWR) for n in range(FILES)]
    tell("open for reading and writing of NFSv4.2, by one client", FILES, before, resident())
    for fd in held:
        os.close(fd)
    unmounted()


def leases():
    """Read and closed, which is delegated."""
    files()
    mounted("vers=4.2")
    os.listdir(f"{MOUNT}/opens")
    before = resident()
    for n in range(FILES):
        with open(f"{MOUNT}/opens/{n}") as f:
            f.read()
    tell("lease (a file read and closed: a delegation for reading, where one was given)", FILES, before, resident())
    unmounted()


def tree():
    """Names without files of their own: links."""
    for d in range(max(ENTRIES // EACH, 1)):
        os.makedirs(f"{DIR}/tree/{d}")
        open(f"{DIR}/tree/{d}/0", "w").close()
        for n in range(1, EACH):
            os.link(f"{DIR}/tree/{d}/0", f"{DIR}/tree/{d}/{n}")
    mounted("vers=3", f"mountport={PORT}")
    before = resident()
    found = sum(len(files) for _, _, files in os.walk(f"{MOUNT}/tree"))
    tell("name of a tree that was listed, with NFSv3", found, before, resident())
    unmounted()


{"connections": connections, "opens": opens, "leases": leases, "tree": tree}[sys.argv[7]]()
