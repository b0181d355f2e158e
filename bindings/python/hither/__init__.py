"""The files of a hither mount, without the kernel in between.

    import hither
    share = hither.connect("/mnt/share")            # the mount point or the socket
    for data in share.read_many(["a", "b"]):        # many files, few round trips
        ...
    with share.open("new", "w") as f:
        f.write(b"bytes")

Paths are relative to the mount's root, or absolute below the mount point. Errors are OSError with
the errno of the corresponding system call. Many threads may use a share, but signal handlers may
not. A signal handler that raises while a request is partly sent ends the connection. A child
process (fork) must connect again. Its calls on the parent's share and files fail with ECONNABORTED.
docs/SOCKET.md describes the protocol. The package needs only the standard library. `hither.fs` has
an fsspec filesystem for "hither://".
"""

from .client import Attr, File, Share, connect

__all__ = ["Attr", "File", "Share", "connect"]
