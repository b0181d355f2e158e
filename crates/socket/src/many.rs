//! Requests about many files: names are listed by directory, contents are read in full messages.
//!
//! Paths are grouped by directory. Cached state is used when it is new enough. When more than a few
//! names of a directory are not cached, the directory is listed once. Names that the listing does
//! not show are looked up singly. Then small files are read, many in one message. All other files
//! (large files, symbolic links, files being written, errors) are opened, read and closed singly.
//! That also finds the error of a file.

use crate::conn::{Connection, told};
use crate::file::read_on;
use crate::frames::{Collected, Reply, Turn, gone};
use crate::path::{fits, split};
use crate::stats::add;
use bytes::Bytes;
use hither_client::wire::{NO_FOLLOW, Part, Piece, Stated};
use hither_vfs::{
    Access, Error, Fh, File, FileKind, Name, Node, OpenAccess, OpenHow, PathRef, RequestContext, Result,
    Stop, WalkRequest, bytes_prove_reading,
};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::task::JoinSet;

/// Maximum number of concurrent tasks for one request.
const AT_ONCE: usize = 16;
/// Minimum number of uncached names in one directory for a listing.
const WORTH_LISTING: usize = 4;
/// Size of one page of such a listing in bytes.
const PAGE_BYTES: u32 = 256 << 10;
/// Maximum number of listed entries per requested name, and the minimum of that limit.
const ENTRIES_EACH: usize = 64;
const ENTRIES_MIN: usize = 2048;
/// Size classes in bytes, and the maximum number of files per message in each class.
const CLASSES: [(u32, usize); 3] = [(4 << 10, 512), (16 << 10, 256), (64 << 10, 64)];
/// Maximum bytes of one group, which fit into one frame.
const TOGETHER_BYTES: usize = 1 << 20;
/// Maximum number of concurrent requests for groups.
const TOGETHER_AT_ONCE: usize = 4;

/// A requested range of a file.
struct Wanted {
    index: u32,
    path: Bytes,
    offset: u64,
    len: u32,
}

/// A small file that is read together with other files.
struct Small {
    wanted: Wanted,
    fh: Fh,
    /// Expected number of bytes.
    bytes: usize,
}

/// Groups small files. Returns the maximum bytes per file, the bytes of the group, and its files.
fn batches(classes: [Vec<Small>; CLASSES.len()]) -> Vec<(u32, usize, Vec<Small>)> {
    let mut out: Vec<(u32, usize, Vec<Small>)> = Vec::new();
    for (class, (most, at_once)) in classes.into_iter().zip(CLASSES) {
        for small in class {
            let bytes = small.bytes + Piece::BYTES;
            match out.last_mut() {
                Some((of, all, files))
                    if *of == most && files.len() < at_once && *all + bytes <= TOGETHER_BYTES =>
                {
                    *all += bytes;
                    files.push(small);
                }
                _ => out.push((most, bytes, vec![small])),
            }
        }
    }
    out
}

/// Runs futures, some concurrently, and collects their results. After an error no further future is
/// started. Running futures end normally, so that every opened file is closed.
async fn all<F, T>(at_once: usize, mut tasks: impl Iterator<Item = F>) -> Result<Vec<T>>
where
    F: Future<Output = Result<Vec<T>>> + Send + 'static,
    T: Send + 'static,
{
    let (mut running, mut out) = (JoinSet::new(), Ok(Vec::new()));
    loop {
        while out.is_ok()
            && running.len() < at_once
            && let Some(task) = tasks.next()
        {
            running.spawn(task);
        }
        let some = match running.join_next().await {
            None => return out,
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => Err(Error::because(libc::EIO, "a task ended early")),
        };
        match (&mut out, some) {
            (Ok(out), Ok(some)) => out.extend(some),
            (Ok(_), Err(e)) => out = Err(e),
            (Err(_), _) => {}
        }
    }
}

/// Names with their items, by the path of their directory.
type Groups<'a, T> = BTreeMap<&'a [u8], Vec<(Name, T)>>;

/// Groups paths by directory. Paths that end in no name, and invalid paths, are returned
/// separately.
fn by_directory<'a, T>(items: impl Iterator<Item = (&'a [u8], T)>) -> (Groups<'a, T>, Vec<T>) {
    let (mut groups, mut alone) = (Groups::new(), Vec::new());
    for (path, item) in items {
        let (dir, name) = split(path);
        match fits(path).and_then(|()| Name::new(Bytes::copy_from_slice(name))) {
            Ok(name) => groups.entry(dir).or_default().push((name, item)),
            Err(_) => alone.push(item),
        }
    }
    (groups, alone)
}

impl Connection {
    /// Returns the attributes of many paths.
    pub async fn stat_many(
        self: &Arc<Self>,
        cx: &RequestContext,
        reply: &Reply,
        flags: u32,
        paths: &[&[u8]],
    ) -> Result<()> {
        let follow = flags & NO_FOLLOW == 0;
        let (groups, mut alone) = by_directory(paths.iter().copied().zip(0_u32..));
        let groups: Vec<_> =
            groups.into_iter().map(|(dir, names)| (Bytes::copy_from_slice(dir), names)).collect();
        let found = groups.into_iter().map(|(dir, names)| {
            let (conn, cx) = (self.clone(), cx.clone());
            async move {
                let nodes = conn.nodes(&cx, &dir, names).await;
                Ok(nodes.into_iter().map(|(index, node, _)| (index, node)).collect::<Vec<_>>())
            }
        });
        let mut out = Collected::new(reply);
        for (index, node) in all(AT_ONCE, found).await? {
            match node {
                Ok(node) if follow && node.attrs.attr.kind == FileKind::Symlink => alone.push(index),
                node => {
                    let attr = node.map(|n| told(&n.attrs.attr)).map_err(|e| e.errno);
                    out.add(|body| Stated { index, attr }.encode(body)).await?;
                }
            }
        }
        let singly = alone.into_iter().map(|index| {
            let path = Bytes::copy_from_slice(paths[index as usize]);
            let (conn, cx) = (self.clone(), cx.clone());
            async move {
                let found = conn.shared.find(&cx, &path, follow, WalkRequest::default()).await;
                Ok(vec![(index, found.and_then(|found| found.node()))])
            }
        });
        for (index, node) in all(AT_ONCE, singly).await? {
            let attr = node.map(|n| told(&n.attrs.attr)).map_err(|e| e.errno);
            out.add(|body| Stated { index, attr }.encode(body)).await?;
        }
        out.flush().await
    }

    /// The objects of names in a directory, and the directory. Symbolic links are not followed.
    async fn nodes<T>(
        &self,
        cx: &RequestContext,
        dir: &[u8],
        names: Vec<(Name, T)>,
    ) -> Vec<(T, Result<Node>, Option<Fh>)> {
        let plain = RequestContext { fresh_since: None, ..cx.clone() };
        let found = self.shared.find(&plain, dir, true, WalkRequest::default()).await;
        let dir = match found.and_then(|found| found.node()) {
            Ok(node) => node.fh,
            Err(e) => return names.into_iter().map(|(_, t)| (t, Err(e.clone()), None)).collect(),
        };
        // A caller may have the right to list a directory and not the right to look up names. The
        // cache answers only callers with known rights.
        let searched = match self.searches(cx, &dir).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::new(libc::EACCES)),
            Err(e) => Err(e),
        };
        if let Err(e) = searched {
            return names.into_iter().map(|(_, t)| (t, Err(e.clone()), None)).collect();
        }
        let mut out = Vec::with_capacity(names.len());
        let mut unknown = Vec::new();
        for (name, t) in names {
            match self.shared.vfs.peek(cx, PathRef::name(&dir, &name)) {
                Some(trail) => out.push((t, first(trail), Some(dir.clone()))),
                None => unknown.push((name, t)),
            }
        }
        if unknown.len() >= WORTH_LISTING {
            unknown = self.listed(cx, &dir, unknown, &mut out).await;
        }
        for (name, t) in unknown {
            let trail = self.shared.vfs.walk(cx, PathRef::name(&dir, &name), WalkRequest::default()).await;
            out.push((t, trail.and_then(first), Some(dir.clone())));
        }
        out
    }

    /// Looks for names in a listing. Returns the names that the listing does not show.
    async fn listed<T>(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        unknown: Vec<(Name, T)>,
        out: &mut Vec<(T, Result<Node>, Option<Fh>)>,
    ) -> Vec<(Name, T)> {
        let most = ENTRIES_MIN.max(unknown.len() * ENTRIES_EACH);
        let mut wanted = HashMap::<Name, SmallVec<[T; 1]>>::new();
        for (name, t) in unknown {
            wanted.entry(name).or_default().push(t);
        }
        let (mut cookie, mut verifier, mut seen) = (0, [0; 8], 0);
        while !wanted.is_empty() && seen < most {
            let page = self.shared.vfs.readdir(cx, dir, cookie, verifier, PAGE_BYTES, true).await;
            // A caller without the right to list the directory may still look up names.
            let Ok(page) = page else { break };
            seen += page.entries.len();
            for entry in page.entries {
                cookie = entry.cookie;
                let Some(node) = entry.node else { continue };
                for t in wanted.remove(&entry.name).unwrap_or_default() {
                    out.push((t, Ok(node.clone()), Some(dir.clone())));
                }
            }
            verifier = page.verifier;
            if page.eof {
                break;
            }
        }
        // Names that are not in the listing are looked up, because a listing is no proof of absence
        // for all names.
        wanted.into_iter().flat_map(|(name, ts)| ts.into_iter().map(move |t| (name.clone(), t))).collect()
    }

    /// Reads ranges of many files.
    pub async fn read_many(
        self: &Arc<Self>,
        cx: &RequestContext,
        reply: &Reply,
        parts: &[Part<'_>],
    ) -> Result<()> {
        let cx = self.opening(cx);
        add(&self.shared.stats.pieces, parts.len() as u64);
        let wanted = parts.iter().zip(0_u32..).map(|(part, index)| {
            let path = Bytes::copy_from_slice(part.path);
            (part.path, Wanted { index, path, offset: part.offset, len: part.len })
        });
        let (groups, mut alone) = by_directory(wanted);
        let groups: Vec<_> =
            groups.into_iter().map(|(dir, names)| (Bytes::copy_from_slice(dir), names)).collect();
        let found = groups.into_iter().map(|(dir, names)| {
            let (conn, cx) = (self.clone(), cx.clone());
            async move { Ok(conn.nodes(&cx, &dir, names).await) }
        });
        let mut classes: [Vec<Small>; CLASSES.len()] = Default::default();
        for (wanted, node, dir) in all(AT_ONCE, found).await? {
            let (Ok(node), Some(dir)) = (node, dir) else {
                alone.push(wanted);
                continue;
            };
            if let Some((piece, size)) = self.held(&cx, &dir, &wanted, &node).await {
                add(&self.shared.stats.pieces_held, 1);
                let turn = reply.turn(piece.len() + Piece::BYTES).await?;
                send(self, reply, turn, wanted.index, Ok((size, vec![piece]))).await;
                continue;
            }
            let attr = &node.attrs.attr;
            let end = wanted.offset.saturating_add(u64::from(wanted.len)).min(attr.size_bytes);
            let class = CLASSES.iter().position(|(most, _)| end <= u64::from(*most));
            match class.filter(|_| attr.kind == FileKind::Regular) {
                Some(class) => {
                    let bytes = attr.size_bytes.min(u64::from(CLASSES[class].0)) as usize;
                    classes[class].push(Small { wanted, fh: node.fh, bytes });
                }
                None => alone.push(wanted),
            }
        }
        let together = batches(classes).into_iter().map(|(most, bytes, files)| {
            let (conn, cx, reply) = (self.clone(), cx.clone(), reply.clone());
            async move { conn.read_together(&cx, &reply, most, bytes, files).await }
        });
        alone.extend(all(TOGETHER_AT_ONCE, together).await?);
        let singly = alone.into_iter().map(|wanted| {
            let (conn, cx, reply) = (self.clone(), cx.clone(), reply.clone());
            async move { conn.read_alone(&cx, &reply, &wanted).await.map(|()| Vec::<()>::new()) }
        });
        all(AT_ONCE, singly).await.map(drop)
    }

    /// A range of a cached small file, when the cached bytes are new enough and the caller's right
    /// to read is cached.
    async fn held(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        wanted: &Wanted,
        node: &Node,
    ) -> Option<(Bytes, u64)> {
        let (_, name) = split(&wanted.path);
        let name = Name::new(Bytes::copy_from_slice(name)).ok()?;
        let at = PathRef::name(dir, &name);
        let known = self.shared.vfs.peek(cx, at)?;
        if known.steps.first()?.fh != node.fh {
            return None;
        }
        let (most, _) = CLASSES[CLASSES.len() - 1];
        let want = WalkRequest { read_bytes: most, access: Access::READ, ..WalkRequest::default() };
        let trail = self.shared.vfs.walk(cx, at, want).await.ok()?;
        let size = trail.steps.first().filter(|n| n.fh == node.fh)?.attrs.attr.size_bytes;
        let first = trail.along.first?;
        if trail.along.access != Some(Access::READ) || !first.eof || first.data.len() as u64 != size {
            return None;
        }
        Some((cut(first.data.into_bytes(), wanted), size))
    }

    /// Reads small files together. Returns the files that must be read singly.
    async fn read_together(
        &self,
        cx: &RequestContext,
        reply: &Reply,
        most: u32,
        bytes: usize,
        files: Vec<Small>,
    ) -> Result<Vec<Wanted>> {
        let turn = reply.turn(bytes).await?;
        let handles: Vec<Fh> = files.iter().map(|small| small.fh.clone()).collect();
        let starts = self.shared.vfs.read_many(cx, &handles, None, most).await;
        let mut alone = Vec::new();
        let (mut head, mut parts, mut sent) = (Vec::new(), Vec::new(), 0);
        let mut answers = starts.files.into_iter();
        for Small { wanted, bytes, .. } in files {
            let Some(Ok(fetched)) = answers.next() else {
                alone.push(wanted);
                continue;
            };
            if !bytes_prove_reading(fetched.attrs.attr.mode) {
                // An open checks the right to read.
                alone.push(wanted);
                continue;
            }
            let (size, eof) = (fetched.attrs.attr.size_bytes, fetched.read.eof);
            let data = fetched.read.data.into_bytes();
            let end = wanted.offset.saturating_add(u64::from(wanted.len));
            // The file has grown.
            if data.len() > bytes || !eof && (data.len() as u64) < end {
                alone.push(wanted);
                continue;
            }
            let data = cut(data, &wanted);
            head.clear();
            Piece::encode_head(wanted.index, Ok((size, data.len() as u32)), &mut head);
            sent += head.len() + data.len();
            parts.extend([Bytes::copy_from_slice(&head), data]);
            add(&self.shared.stats.pieces_together, 1);
        }
        if !parts.is_empty() {
            add(&self.shared.stats.read_bytes, sent as u64);
            reply.part(turn, parts).await;
        }
        Ok(alone)
    }

    /// Opens one file, reads the range and closes the file.
    async fn read_alone(&self, cx: &RequestContext, reply: &Reply, wanted: &Wanted) -> Result<()> {
        let turn = reply.turn(wanted.len as usize + Piece::BYTES).await?;
        let read = self.read_path(cx, wanted).await.map_err(|e| e.errno);
        if reply.over.is_cancelled() {
            return Err(gone());
        }
        send(self, reply, turn, wanted.index, read).await;
        Ok(())
    }

    async fn read_path(&self, cx: &RequestContext, wanted: &Wanted) -> Result<(u64, Vec<Bytes>)> {
        let plain = RequestContext { fresh_since: None, ..cx.clone() };
        let found = self.shared.find(&plain, &wanted.path, true, WalkRequest::default()).await?;
        let crate::path::Found::Object { node, at, .. } = found else {
            return Err(Error::new(libc::ENOENT));
        };
        let (dir, name) = match (node.attrs.attr.kind, at) {
            (FileKind::Regular, Some(at)) => at,
            (FileKind::Directory, _) => return Err(Error::new(libc::EISDIR)),
            _ => return Err(Error::new(libc::EOPNOTSUPP)),
        };
        let first_bytes = crate::file::FIRST_BYTES;
        let how = OpenHow { first_bytes, ..OpenHow::existing(OpenAccess::READ) };
        let opened = self.shared.vfs.open(cx, PathRef::name(&dir, &name), &how).await?;
        let file = File { fh: &opened.node.fh, open: Some(opened.open) };
        let read = read_on(self, cx, file, wanted.offset, wanted.len).await;
        self.close_aside(cx, &opened.node.fh, opened.open).await;
        let (data, eof) = read?;
        let end = wanted.offset + data.len() as u64;
        let size = opened.node.attrs.attr.size_bytes;
        let size =
            if eof && !data.is_empty() { end } else { size.max(if data.is_empty() { 0 } else { end }) };
        Ok((size, data.parts().to_vec()))
    }
}

/// Sends the range of one file.
async fn send(
    conn: &Connection,
    reply: &Reply,
    turn: Turn,
    index: u32,
    read: std::result::Result<(u64, Vec<Bytes>), i32>,
) {
    let mut head = Vec::with_capacity(Piece::BYTES);
    let (sizes, data) = match read {
        Ok((size, data)) => (Ok((size, data.iter().map(Bytes::len).sum::<usize>() as u32)), data),
        Err(errno) => (Err(errno), Vec::new()),
    };
    Piece::encode_head(index, sizes, &mut head);
    let mut parts = vec![Bytes::from(head)];
    parts.extend(data);
    add(&conn.shared.stats.read_bytes, parts.iter().map(Bytes::len).sum::<usize>() as u64);
    reply.part(turn, parts).await;
}

/// The requested range of the first bytes of a file.
fn cut(data: Bytes, wanted: &Wanted) -> Bytes {
    let start = usize::try_from(wanted.offset).unwrap_or(usize::MAX).min(data.len());
    let end = start.saturating_add(wanted.len as usize).min(data.len());
    data.slice(start..end)
}

/// The step of a walk of one name.
fn first(trail: hither_vfs::WalkResult) -> Result<Node> {
    match (trail.stop, trail.steps.into_iter().next()) {
        (_, Some(node)) => Ok(node),
        (Stop::Failed(e), None) => Err(e),
        (Stop::NotDirectory | Stop::Symlink, None) => Err(Error::new(libc::ENOTDIR)),
        (_, None) => Err(Error::new(libc::ENOENT)),
    }
}
