//! Listings with attributes, of one directory or of a whole tree.

use crate::conn::{Connection, told};
use crate::frames::{Collected, Reply};
use hither_client::wire::Entry;
use hither_vfs::{Access, Error, Fh, FileKind, PathRef, RequestContext, Result, Stop, WalkRequest};
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

/// Size of one page of a listing in bytes.
const PAGE_BYTES: u32 = 128 << 10;
/// Maximum number of concurrently listed directories.
const AT_ONCE: usize = 8;
/// Size in bytes of a waiting directory, without its path.
const WAITING_BYTES: usize = 256;

/// A directory that waits for its listing.
struct Waiting {
    path: Vec<u8>,
    fh: Fh,
    _room: OwnedSemaphorePermit,
}

impl Connection {
    /// Lists a directory.
    pub async fn list(&self, cx: &RequestContext, reply: &Reply, path: &[u8]) -> Result<()> {
        let dir = self.directory(cx, path).await?;
        self.entries(cx, reply, &dir, b"", false).await.map(drop)
    }

    /// Lists all objects below a directory. A directory that cannot be listed gets a second entry
    /// with the error.
    pub async fn walk(
        self: &Arc<Self>,
        cx: &RequestContext,
        reply: &Reply,
        path: &[u8],
        depth: u32,
    ) -> Result<()> {
        let root = self.directory(cx, path).await?;
        let mut waiting = vec![(self.waiting(Vec::new(), root)?, 1)];
        let mut running = JoinSet::new();
        loop {
            while running.len() < AT_ONCE
                && let Some((dir, level)) = waiting.pop()
            {
                let (conn, cx, reply) = (self.clone(), cx.clone(), reply.clone());
                running.spawn(async move {
                    let found = conn.entries(&cx, &reply, &dir.fh, &dir.path, level < depth).await;
                    (dir.path, level, found)
                });
            }
            let Some(done) = running.join_next().await else { return Ok(()) };
            let (path, level, found) = done.map_err(|_| Error::because(libc::EIO, "a task ended early"))?;
            match found {
                Ok(dirs) => waiting.extend(dirs.into_iter().map(|dir| (dir, level + 1))),
                Err(e) if reply.over.is_cancelled() || e.errno == libc::E2BIG || path.is_empty() => {
                    return Err(e);
                }
                Err(e) => {
                    let mut out = Collected::new(reply);
                    out.add(|body| Entry { name: &path, attr: Err(e.errno) }.encode(body)).await?;
                    out.flush().await?;
                }
            }
        }
    }

    /// Reserves bytes for a waiting directory. `E2BIG` when all walks of the connection have too
    /// many.
    fn waiting(&self, path: Vec<u8>, fh: Fh) -> Result<Waiting> {
        let bytes = (path.len() + WAITING_BYTES) as u32;
        let room = self.waiting.clone().try_acquire_many_owned(bytes);
        let room = room.map_err(|_| Error::because(libc::E2BIG, "too many directories wait to be listed"))?;
        Ok(Waiting { path, fh, _room: room })
    }

    /// Whether the caller may look names up in a directory.
    pub async fn searches(&self, cx: &RequestContext, dir: &Fh) -> Result<bool> {
        Ok(self.shared.vfs.access(cx, dir, Access::LOOKUP).await?.contains(Access::LOOKUP))
    }

    async fn directory(&self, cx: &RequestContext, path: &[u8]) -> Result<Fh> {
        let node = self.shared.find(cx, path, true, WalkRequest::default()).await?.node()?;
        match node.attrs.attr.kind {
            FileKind::Directory => Ok(node.fh),
            _ => Err(Error::new(libc::ENOTDIR)),
        }
    }

    /// Sends the entries of one directory. Returns the subdirectories if `deeper` is set.
    async fn entries(
        &self,
        cx: &RequestContext,
        reply: &Reply,
        dir: &Fh,
        above: &[u8],
        deeper: bool,
    ) -> Result<Vec<Waiting>> {
        let mut out = Collected::new(reply);
        let mut dirs = Vec::new();
        // A caller with the right to list the directory may have no right to look up names.
        let searches = self.searches(cx, dir).await?;
        let (mut cookie, mut verifier) = (0, [0; 8]);
        loop {
            let page = self.shared.vfs.readdir(cx, dir, cookie, verifier, PAGE_BYTES, true).await?;
            let empty = page.entries.is_empty();
            for entry in page.entries {
                cookie = entry.cookie;
                let mut path = above.to_vec();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend(entry.name.as_bytes());
                let node = match entry.node {
                    _ if !searches => Err(Error::new(libc::EACCES)),
                    Some(node) => Ok(node),
                    None => {
                        let trail = self
                            .shared
                            .vfs
                            .walk(cx, PathRef::name(dir, &entry.name), WalkRequest::default())
                            .await;
                        match trail.map(|t| (t.steps.into_iter().next(), t.stop)) {
                            Ok((Some(node), _)) => Ok(node),
                            // The entry was removed meanwhile.
                            Ok((None, Stop::Missing(_))) => continue,
                            Ok((None, Stop::Failed(e))) | Err(e) => Err(e),
                            Ok((None, _)) => Err(Error::new(libc::EIO)),
                        }
                    }
                };
                let attr = node.as_ref().map(|n| told(&n.attrs.attr)).map_err(|e| e.errno);
                out.add(|body| Entry { name: &path, attr }.encode(body)).await?;
                if let Ok(node) = node
                    && deeper
                    && node.attrs.attr.kind == FileKind::Directory
                {
                    dirs.push(self.waiting(path, node.fh)?);
                }
            }
            verifier = page.verifier;
            if page.eof || empty {
                out.flush().await?;
                return Ok(dirs);
            }
        }
    }
}
