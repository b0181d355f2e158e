"""name_to_handle_at(2) and open_by_handle_at(2), and a kernel without cached names."""
import ctypes, os

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_char * 128)]


def failed():
    e = ctypes.get_errno()
    raise OSError(e, os.strerror(e))


def handle_of(path):
    handle, mount = Handle(bytes=128), ctypes.c_int()
    if libc.name_to_handle_at(AT_FDCWD, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount), 0) < 0:
        failed()
    return handle


def open_handle(mount_fd, handle, flags=os.O_RDONLY):
    fd = libc.open_by_handle_at(mount_fd, ctypes.byref(handle), flags)
    if fd < 0:
        failed()
    return fd


def forget():
    """Has the kernel drop its names, inodes and clean pages."""
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3")


def asked(point, operations):
    """How often the client has sent operations for a mount (/proc/self/mountstats)."""
    here, count = False, 0
    for line in open("/proc/self/mountstats"):
        words = line.split()
        if words[:1] == ["device"]:
            here = words[4] == point
        elif here and words and words[0].rstrip(":") in operations:
            count += int(words[1])
    return count
