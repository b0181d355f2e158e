"""The files of a hither mount, without the kernel in between.

    import hither
    share = hither.connect("/mnt/share")            # the mount point, or the socket
    for data in share.read_many(["a", "b"]):        # many files, few round trips
        ...
    with share.open("new", "w") as f:
        f.write(b"bytes")

Paths are relative to the mount's root, or absolute below the mount point. Errors are OSError with the errno of the system call
that does the same. A share may be used by many threads, but not by signal handlers; a signal whose
handler raises while a request is half sent ends the connection. A child process (fork) connects anew:
calls on its parent's share and files fail with ECONNABORTED. docs/SOCKET.md describes the protocol;
the package needs only the standard library. `hither.fs` has an fsspec filesystem for "hither://".
"""

from .client import Attr, File, Share, connect

__all__ = ["Attr", "File", "Share", "connect"]
