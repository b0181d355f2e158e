"""The protocol's bytes (docs/SOCKET.md). Numbers are little-endian. Byte strings carry their length
in front."""

import struct

MAGIC, VERSION = b"hthr", 1
HEADER = struct.Struct("<IIHH")
BODY_MAX = (1 << 20) + (64 << 10)
IO_MAX = 1 << 20
PATH_MAX = 4096
FRAMES_AHEAD = 16
MORE, ERROR, FD = 1, 2, 4
(HELLO, OPEN, CLOSE, READ, WRITE, SYNC, SET_LEN, STAT_FILE, STAT_MANY, READ_MANY, READ_LINK, LIST, WALK, WATCH, MKDIR, REMOVE,
 RENAME, SYMLINK, LEND, ALLOW, CANCEL) = range(1, 22)
WRITE_APPEND, APPEND_AT = 2, (1 << 64) - 1
O_READ, O_WRITE, O_CREATE, O_EXCLUSIVE, O_TRUNCATE, NO_FOLLOW = 1, 2, 4, 8, 16, 32
ATTR = struct.Struct("<B6I5Q" + "qI" * 3 + "Q")
U32, U64 = struct.Struct("<I"), struct.Struct("<Q")


def string(b):
    return U32.pack(len(b)) + b


def take(body, at):
    """The byte string at an offset, and the offset behind it."""
    (n,) = U32.unpack_from(body, at)
    end = at + 4 + n
    if end > len(body):
        raise ValueError("a reply that is cut")
    return bytes(body[at + 4:end]), end
