//! Calls that change names.

use crate::conn::Connection;
use crate::file::created;
use crate::path::{Found, fits, wants_directory};
use bytes::Bytes;
use hither_client::wire::RENAME_NOREPLACE;
use hither_vfs::{
    Error, Fh, FileKind, Name, Node, PathRef, RenameFlags, RequestContext, Result, SetAttr, Stop, Touched,
    WalkRequest,
};

impl Connection {
    /// Creates a directory.
    pub async fn mkdir(&self, cx: &RequestContext, path: &[u8], mode: u32) -> Result<()> {
        self.writable()?;
        let (dir, name) = self.place(cx, path).await.map_err(exists)?;
        let set = SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() };
        let call = self.shared.vfs.mkdir(cx, &dir, &name, &set);
        self.shared.change(&created(&dir, &name), call).await.map(drop)
    }

    /// Creates a symbolic link.
    pub async fn symlink(&self, cx: &RequestContext, target: &[u8], path: &[u8]) -> Result<()> {
        self.writable()?;
        if target.is_empty() {
            return Err(Error::new(libc::ENOENT));
        }
        fits(target)?;
        let (dir, name) = self.place(cx, path).await.map_err(exists)?;
        if wants_directory(path) {
            let there = self.child(cx, &dir, &name).await?.is_some();
            return Err(Error::new(if there { libc::EEXIST } else { libc::ENOENT }));
        }
        let (set, target) = (SetAttr::default(), Bytes::copy_from_slice(target));
        let call = self.shared.vfs.symlink(cx, &dir, &name, &target, &set);
        self.shared.change(&created(&dir, &name), call).await.map(drop)
    }

    /// Removes a name.
    pub async fn remove(&self, cx: &RequestContext, path: &[u8], directory: bool) -> Result<()> {
        self.writable()?;
        let (dir, name) = self.place(cx, path).await?;
        let node = self.child(cx, &dir, &name).await?;
        let is_dir = node.as_ref().is_some_and(|n| n.attrs.attr.kind == FileKind::Directory);
        if node.is_some() && !is_dir && wants_directory(path) {
            return Err(Error::new(libc::ENOTDIR));
        }
        let fh = node.map(|node| node.fh);
        let touched = [Touched::Name(dir.clone(), name.clone(), fh.clone())];
        if directory {
            self.shared.change(&touched, self.shared.vfs.rmdir(cx, &dir, &name)).await.map(drop)
        } else if is_dir {
            Err(Error::new(libc::EISDIR))
        } else {
            let call = self.shared.vfs.unlink(cx, &dir, &name, fh.as_ref());
            self.shared.change(&touched, call).await.map(drop)
        }
    }

    /// Renames a file or directory.
    pub async fn rename(&self, cx: &RequestContext, from: &[u8], to: &[u8], flags: u32) -> Result<()> {
        self.writable()?;
        if flags & !RENAME_NOREPLACE != 0 {
            return Err(Error::new(libc::EINVAL));
        }
        let directory = wants_directory(from) || wants_directory(to);
        let ((from_dir, from), (to_dir, to)) = (self.place(cx, from).await?, self.place(cx, to).await?);
        let moved = self.child(cx, &from_dir, &from).await?;
        let is_dir = moved.as_ref().is_some_and(|n| n.attrs.attr.kind == FileKind::Directory);
        if moved.is_some() && !is_dir && directory {
            return Err(Error::new(libc::ENOTDIR));
        }
        let moved = moved.map(|n| n.fh);
        let replaced = self.child(cx, &to_dir, &to).await?.map(|n| n.fh);
        let noreplace = flags & RENAME_NOREPLACE != 0;
        let flags = if noreplace { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        let touched = [
            Touched::Name(from_dir.clone(), from.clone(), moved),
            Touched::Name(to_dir.clone(), to.clone(), replaced.clone()),
        ];
        let (source, target) = ((&from_dir, &from), (&to_dir, &to));
        let call = self.shared.vfs.rename(cx, source, target, replaced.as_ref(), flags);
        self.shared.change(&touched, call).await.map(drop)
    }

    /// Target of a symbolic link.
    pub async fn read_link(&self, cx: &RequestContext, path: &[u8]) -> Result<Bytes> {
        match self.shared.find(cx, path, false, WalkRequest::default()).await? {
            Found::Object { node, .. } if node.attrs.attr.kind == FileKind::Symlink => {
                self.shared.vfs.readlink(cx, &node.fh).await
            }
            found => found.node().and(Err(Error::new(libc::EINVAL))),
        }
    }

    async fn place(&self, cx: &RequestContext, path: &[u8]) -> Result<(Fh, Name)> {
        self.shared.place(cx, path).await
    }

    /// The object of a name. Symbolic links are not followed.
    async fn child(&self, cx: &RequestContext, dir: &Fh, name: &Name) -> Result<Option<Node>> {
        let trail = self.shared.vfs.walk(cx, PathRef::name(dir, name), WalkRequest::default()).await?;
        match (trail.stop, trail.steps.into_iter().next()) {
            (_, Some(node)) => Ok(Some(node)),
            (Stop::Failed(e), None) => Err(e),
            _ => Ok(None),
        }
    }
}

/// The error for names that always exist: the root, `.`, `..`.
fn exists(e: Error) -> Error {
    if e.errno == libc::EBUSY { Error::new(libc::EEXIST) } else { e }
}
