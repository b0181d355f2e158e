"""An fsspec filesystem: fsspec.open("hither:///mnt/share/a/b"), or HitherFileSystem("/mnt/share")
with paths below the mount point."""

import errno
import io
import os

from fsspec import AbstractFileSystem

from .client import connect


class HitherFileSystem(AbstractFileSystem):
    """The files of a mount. Without `mount`, paths are absolute, and each path selects its
    mount."""

    protocol = "hither"
    cachable = True
    root_marker = "/"

    def __init__(self, mount=None, **kwargs):
        super().__init__(mount=mount, **kwargs)
        self._mount, self._shares = mount, {}

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        path = os.fspath(path)
        return "/" + path.removeprefix("hither://").strip("/")

    def _at(self, path):
        """The share of a path, the path in the share, and the prefix before it."""
        path = self._strip_protocol(path)
        # A share may have ended with its mount, or belong to the parent process. Then connect
        # again.
        for top, share in list(self._shares.items()):
            if share.ended:
                self._shares.pop(top, None)
        if self._mount is not None:
            if None not in self._shares:
                self._shares[None] = connect(self._mount)
            return self._shares[None], path.strip("/"), ""
        for top, share in list(self._shares.items()):
            if path == top or path.startswith(top + "/"):
                return share, path[len(top):].strip("/"), top
        # The nearest existing directory selects the mount.
        near = path
        while not os.path.lexists(near) and near != "/":
            near = os.path.dirname(near)
        share = connect(near)
        top = os.fsdecode(share.dir)
        self._shares[top] = share
        return share, path[len(top):].strip("/"), top

    @staticmethod
    def _told(name, attr):
        if isinstance(attr, OSError):
            return {"name": name, "size": None, "type": "other"}
        kind = "directory" if attr.is_dir() else "file" if attr.is_file() else "link" if attr.is_symlink() else "other"
        return {"name": name, "size": attr.st_size, "type": kind, "mode": attr.st_mode, "uid": attr.st_uid, "gid": attr.st_gid,
                "mtime": attr.st_mtime, "ino": attr.st_ino}

    def info(self, path, **kwargs):
        share, below, _ = self._at(path)
        return self._told(self._strip_protocol(path), share.stat(below))

    def ls(self, path, detail=True, **kwargs):
        share, below, _ = self._at(path)
        stem = self._strip_protocol(path).rstrip("/")
        try:
            found = [self._told(f"{stem}/{name}", attr) for name, attr in share.list(below)]
        except NotADirectoryError:
            found = [self.info(path)]
        found.sort(key=lambda one: one["name"])
        return found if detail else [one["name"] for one in found]

    def cat(self, path, recursive=False, on_error="raise", **kwargs):
        paths = self.expand_path(path, recursive=recursive)
        shares = {}
        for one in paths:
            share, below, _ = self._at(one)
            shares.setdefault(share, []).append((one, below))
        out = {}
        for share, some in shares.items():
            for (one, _), data in zip(some, share.read_many([below for _, below in some])):
                if isinstance(data, OSError) and on_error == "raise":
                    raise data
                if not (isinstance(data, OSError) and on_error == "omit"):
                    out[one] = data
        single = isinstance(path, str) and len(paths) == 1 and paths[0] == self._strip_protocol(path)
        return out[paths[0]] if single else out

    def cat_file(self, path, start=None, end=None, **kwargs):
        share, below, _ = self._at(path)
        data = share.read(below)
        return data[start:end]

    def pipe_file(self, path, value, **kwargs):
        share, below, _ = self._at(path)
        share.write(below, value)

    def _open(self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, **kwargs):
        share, below, _ = self._at(path)
        if mode not in ("rb", "wb", "xb", "ab", "r+b"):
            raise NotImplementedError(f"mode {mode}")
        raw = share.open(below, mode)
        if mode == "rb":
            return io.BufferedReader(raw, block_size or 1 << 20)
        return io.BufferedRandom(raw) if mode == "r+b" else io.BufferedWriter(raw, 1 << 20)

    def mkdir(self, path, create_parents=True, **kwargs):
        if create_parents:
            self.makedirs(os.path.dirname(self._strip_protocol(path)), exist_ok=True)
        share, below, _ = self._at(path)
        share.mkdir(below)

    def makedirs(self, path, exist_ok=False):
        share, below, _ = self._at(path)
        parts = [part for part in below.split("/") if part]
        for n in range(1, len(parts) + 1):
            try:
                share.mkdir("/".join(parts[:n]))
            except FileExistsError:
                if n == len(parts) and not exist_ok:
                    raise

    def rmdir(self, path):
        share, below, _ = self._at(path)
        share.rmdir(below)

    def _rm(self, path):
        share, below, _ = self._at(path)
        try:
            share.unlink(below)
        except IsADirectoryError:
            share.rmdir(below)

    rm_file = _rm

    def mv(self, path1, path2, **kwargs):
        (one, a, _), (two, b, _) = self._at(path1), self._at(path2)
        if one is not two:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path1)
        one.rename(a, b)

    def created(self, path):
        raise NotImplementedError("NFS keeps no time of creation that all servers have")

    def modified(self, path):
        import datetime
        return datetime.datetime.fromtimestamp(self.info(path)["mtime"], tz=datetime.timezone.utc)
