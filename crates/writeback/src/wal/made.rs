//! Creates pending objects at the server, during a mount and after a crash.
//!
//! The module does not know how pending objects are kept during a mount. After EEXIST it checks
//! whether an earlier attempt of this client created the existing object. An attempt is recognised
//! by its owner, and by a directory with no more permissions, a link with the same target, or a
//! file that contains only our bytes and zeros.

use super::log::Ticket;
use super::record::{Attributes, Event, Record, What};
use super::replay::{Fate, One, Refusal};
use super::scan::{FileLeft, Left, MadeLeft, SetLeft};
use bytes::Bytes;
use futures_util::future::join_all;
use hither_vfs::{
    Creation, Cred, Data, Error, Fh, File as At, FileKind, Name, NewKind, Node, PathRef, RequestContext,
    Result, SetAttr, SetTime, Stability, Stop, Time, Vfs, WalkRequest,
};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use tokio::time::Instant;

/// Bytes compared at a time.
const STEP_BYTES: usize = 1 << 20;
/// The set-group-ID bit. Pending objects only have it by inheritance.
const SETGID: u32 = 0o2000;
/// The permissions with which an owner opens a file for reading and writing.
const OWNER_BITS: u32 = 0o600;
/// Objects created at a time.
const AT_ONCE: usize = 16;

/// A pending object.
#[derive(Debug, Clone)]
pub(crate) struct New {
    /// The kind of the object.
    pub what: What,
    /// The credentials of its creator.
    pub cred: Arc<Cred>,
    /// Permission bits (07777).
    pub mode: u32,
    /// Access and modification time. The server chooses a missing one.
    pub times: (Option<Time>, Option<Time>),
    /// All bytes of a file.
    pub data: Bytes,
}

impl New {
    fn set(&self) -> SetAttr {
        let to = |time: Option<Time>| time.map(SetTime::To);
        SetAttr {
            mode: Some(self.mode),
            unmasked: None,
            atime: to(self.times.0),
            mtime: to(self.times.1),
            ..SetAttr::default()
        }
    }

    /// The request to the server. The times of a directory are set later, when its content is
    /// there.
    fn creation(&self, name: &Name) -> Creation {
        let (kind, set) = match &self.what {
            What::File => (NewKind::File(Data::from(self.data.clone())), self.set()),
            // The new directory inherits the set-group-ID bit at the server. The server would clear
            // a bit that a caller outside of the group sets.
            What::Directory => {
                (NewKind::Directory, SetAttr { mode: Some(self.mode & !SETGID), ..SetAttr::default() })
            }
            What::Link(target) => {
                (NewKind::Link(Bytes::copy_from_slice(target)), SetAttr { mode: None, ..self.set() })
            }
        };
        Creation { name: name.clone(), kind, set }
    }
}

/// Creates objects of one creator in a directory at the server. The results have the order of
/// `new`. Errors are those of the server. `EEXIST` means that a different object has the name.
pub(crate) async fn put(below: &dyn Vfs, dir: &Fh, new: &[(Name, New)]) -> Vec<Result<Node>> {
    let Some((_, first)) = new.first() else { return Vec::new() };
    let cx = RequestContext::new(first.cred.clone());
    let all: Vec<_> = new.iter().map(|(name, one)| one.creation(name)).collect();
    let made = below.create_many(&cx, dir, &all).await;
    let settled = new.iter().zip(made).map(async |((name, one), made)| match made {
        Ok(made) => Ok(made.node),
        Err(e) if e.errno == libc::EEXIST => adopt(below, &cx, (dir, name), one).await.unwrap_or(Err(e)),
        Err(e) => Err(e),
    });
    join_all(settled).await
}

async fn set_times(below: &dyn Vfs, cx: &RequestContext, node: Node, new: &New) -> Result<Node> {
    if new.times == (None, None) {
        return Ok(node);
    }
    let set = SetAttr { mode: None, ..new.set() };
    let attrs = below.setattr(cx, At { fh: &node.fh, open: None }, &set).await?;
    Ok(Node { attrs, ..node })
}

/// Adopts the existing object as the result of an earlier attempt. `None` when it cannot be one.
async fn adopt(
    below: &dyn Vfs,
    cx: &RequestContext,
    (dir, name): (&Fh, &Name),
    new: &New,
) -> Option<Result<Node>> {
    let fresh = cx.fresh(Instant::now());
    let trail = match below.walk(&fresh, PathRef::name(dir, name), WalkRequest::default()).await {
        Ok(trail) => trail,
        Err(e) => return Some(Err(e)),
    };
    if let Stop::Failed(e) = trail.stop {
        return Some(Err(e));
    }
    let node = trail.steps.into_iter().next()?;
    // Only users whose new objects have their own number as owner have pending objects.
    if node.attrs.attr.uid != cx.cred.uid {
        return None;
    }
    // A default ACL or the server may have taken permissions away.
    let no_more = node.attrs.attr.mode & !new.mode & 0o777 == 0;
    match (&new.what, node.attrs.attr.kind) {
        (What::Directory, FileKind::Directory) => no_more.then_some(Ok(node)),
        (What::Link(target), FileKind::Symlink) => match below.readlink(cx, &node.fh).await {
            Ok(there) if there[..] == target[..] => Some(set_times(below, cx, node, new).await),
            Ok(_) => None,
            Err(e) => Some(Err(e)),
        },
        (What::File, FileKind::Regular) if node.attrs.attr.size_bytes <= new.data.len() as u64 => {
            fill(below, cx, node, new).await.transpose()
        }
        _ => None,
    }
}

/// Rewrites a file of an earlier attempt. `None` when the file contains other bytes.
async fn fill(below: &dyn Vfs, cx: &RequestContext, node: Node, new: &New) -> Result<Option<Node>> {
    let opened = match super::open_as(below, cx.cred.clone(), &node.fh).await {
        Err(e) if matches!(e.errno, libc::EACCES | libc::EPERM) => {
            // A file that its owner may not open. Its mode is set again at the end.
            let mode = Some(new.mode & 0o777 | OWNER_BITS);
            let set = SetAttr { mode, ..SetAttr::default() };
            below.setattr(cx, At { fh: &node.fh, open: None }, &set).await?;
            super::open_as(below, cx.cred.clone(), &node.fh).await
        }
        opened => opened,
    };
    let (cx, open) = opened?;
    let at = At { fh: &node.fh, open: Some(open) };
    let done = async {
        let mut there = 0;
        loop {
            let read = below.read(&cx, at, there as u64, STEP_BYTES as u32).await?;
            for part in read.data.parts() {
                let Some(ours) = new.data.get(there..there + part.len()) else { return Ok(false) };
                if part.iter().zip(ours).any(|(theirs, ours)| theirs != ours && *theirs != 0) {
                    return Ok(false);
                }
                there += part.len();
            }
            if read.eof || read.data.is_empty() {
                break;
            }
        }
        let mut at_byte = 0;
        while at_byte < new.data.len() {
            let rest = new.data.slice(at_byte..);
            let wrote = below.write(&cx, at, at_byte as u64, Data::from(rest), Stability::Stable).await?;
            if wrote.bytes == 0 {
                return Err(Error::because(libc::EIO, "the server writes no bytes"));
            }
            at_byte += wrote.bytes as usize;
        }
        below.setattr(&cx, At { fh: &node.fh, open: None }, &new.set()).await?;
        Ok(true)
    };
    let done = done.await;
    let closed = below.close(&cx, &node.fh, open).await;
    if !done? {
        return Ok(None);
    }
    closed?;
    let attrs = below.getattr(&cx.fresh(Instant::now()), At { fh: &node.fh, open: None }).await?;
    Ok(Some(Node { attrs, ..node }))
}

/// Sets the times of a directory, after its content was created.
pub(crate) async fn set_directory(below: &dyn Vfs, dir: &Fh, set: &Attributes) -> Result<()> {
    let cx = RequestContext::new(set.cred.clone());
    let to = |time: Option<Time>| time.map(SetTime::To);
    let set = SetAttr { atime: to(set.atime), mtime: to(set.mtime), ..SetAttr::default() };
    below.setattr(&cx, At { fh: dir, open: None }, &set).await.map(drop)
}

/// The result for the objects that a crash left.
#[derive(Debug, Default)]
pub(super) struct Remade {
    pub files: u64,
    pub bytes: u64,
    pub kept: Vec<(String, String, String)>,
}

/// The creation of the objects that a crash left.
struct Remaking<'a> {
    out: Remade,
    /// From the local handles of created objects to the server's.
    there: Arc<HashMap<Fh, Fh>>,
    /// The paths of directories, by their local handle.
    paths: HashMap<Fh, String>,
    ended: Vec<Ended>,
    /// The damage of the journal. A damaged journal creates no object.
    damage: Option<&'a String>,
}

/// An object that was created or kept as a conflict.
struct Ended {
    fh: Fh,
    made: MadeLeft,
    /// `None`: the server refuses the object.
    node: Option<Node>,
}

impl One {
    /// Creates the pending objects: first directories, parents before children, then the other
    /// objects, then the times of directories. An object that the server refuses for good is kept
    /// as a conflict.
    ///
    /// # Errors
    /// Local input and output, and errors of the server that may pass. All objects then stay in the
    /// journal. The next replay adopts those that were created.
    pub(super) async fn make_all(
        self: &Arc<Self>,
        left: &mut Left,
        damage: Option<&String>,
    ) -> io::Result<Remade> {
        let mut remaking = Remaking {
            out: Remade::default(),
            there: Arc::new(std::mem::take(&mut left.there)),
            paths: HashMap::new(),
            ended: Vec::new(),
            damage,
        };
        let mut made: Vec<(Fh, MadeLeft)> = left.made.drain().collect();
        made.sort_by_key(|(_, made)| made.place);
        let files = made.iter().filter_map(|(fh, _)| Some((fh.clone(), left.files.remove(fh)?)));
        let bodies: HashMap<Fh, FileLeft> = files.collect();
        let pieces = bodies.values().flat_map(|file| &file.pieces);
        let mut records: HashSet<(u64, u64)> = pieces.map(|piece| (piece.segment, piece.seq)).collect();
        let (dirs, others): (Vec<_>, Vec<_>) =
            made.into_iter().partition(|(_, made)| made.new.what == What::Directory);
        self.make_directories(dirs, &mut remaking).await?;
        self.make_others(others, bodies, &mut remaking).await?;
        let sets: Vec<(Fh, SetLeft)> = left.set.drain().collect();
        self.set_all_times(&remaking, &sets).await?;
        let Remaking { out, ended, .. } = remaking;
        records.extend(ended.iter().map(|ended| (ended.made.place.1, ended.made.place.0)));
        records.extend(sets.iter().map(|(_, set)| (set.place.1, set.place.0)));
        self.retire(ended, sets, records).await;
        Ok(out)
    }

    /// Creates directories, parents before children.
    async fn make_directories(
        self: &Arc<Self>,
        dirs: Vec<(Fh, MadeLeft)>,
        remaking: &mut Remaking<'_>,
    ) -> io::Result<()> {
        // A moved directory may be in a directory that was created after it.
        let mut waiting = dirs;
        while !waiting.is_empty() {
            let here: Vec<Fh> = waiting.iter().map(|(fh, _)| fh.clone()).collect();
            let (later, now): (Vec<_>, Vec<_>) =
                waiting.into_iter().partition(|(_, made)| here.contains(&made.new.dir));
            if now.is_empty() {
                // A cycle. No sequence of operations creates one.
                for (fh, made) in later {
                    let why = Refusal::Final("its directory cannot be found".into());
                    self.keep_made(&fh, &made, None, why, remaking).await?;
                    remaking.ended.push(Ended { fh, made, node: None });
                }
                break;
            }
            for (fh, made) in now {
                let node = match self.make_one(&made, None, &remaking.there, remaking.damage).await {
                    Ok(node) => Some(node),
                    Err(refusal) => {
                        self.keep_made(&fh, &made, None, refusal, remaking).await?;
                        None
                    }
                };
                let path = self.path_of(&made, &remaking.paths);
                remaking.paths.insert(fh.clone(), path);
                if let Some(node) = &node {
                    Arc::make_mut(&mut remaking.there).insert(fh.clone(), node.fh.clone());
                }
                remaking.ended.push(Ended { fh, made, node });
            }
            waiting = later;
        }
        Ok(())
    }

    /// Creates files and links, several at a time. `bodies`: the journaled bytes of files.
    async fn make_others(
        self: &Arc<Self>,
        others: Vec<(Fh, MadeLeft)>,
        mut bodies: HashMap<Fh, FileLeft>,
        remaking: &mut Remaking<'_>,
    ) -> io::Result<()> {
        let (mut running, mut others) = (tokio::task::JoinSet::new(), others.into_iter());
        loop {
            while running.len() < AT_ONCE
                && let Some((fh, made)) = others.next()
            {
                let body = bodies.remove(&fh);
                let (this, there) = (self.clone(), remaking.there.clone());
                let damage = remaking.damage.cloned();
                running.spawn(async move {
                    let outcome = this.make_one(&made, body.as_ref(), &there, damage.as_ref()).await;
                    (fh, made, body, outcome)
                });
            }
            let Some(one) = running.join_next().await else { return Ok(()) };
            let (fh, made, body, outcome) = one.map_err(io::Error::other)?;
            let node = match outcome {
                Ok(node) => {
                    remaking.out.files += 1;
                    remaking.out.bytes += made.size_bytes;
                    Some(node)
                }
                Err(refusal) => {
                    self.keep_made(&fh, &made, body, refusal, remaking).await?;
                    None
                }
            };
            remaking.ended.push(Ended { fh, made, node });
        }
    }

    /// Sets the times of directories: of created ones, and those of `sets`. The times are set after
    /// the content, because each creation changes them.
    async fn set_all_times(&self, remaking: &Remaking<'_>, sets: &[(Fh, SetLeft)]) -> io::Result<()> {
        for Ended { made, node, .. } in &remaking.ended {
            if let (What::Directory, Some(node)) = (&made.new.what, node) {
                let (atime, mtime) = made.times;
                let cred = made.new.cred.clone();
                let set = Attributes { cred, mode: None, size_bytes: None, atime, mtime };
                self.set_times(&node.fh, &set).await?;
            }
        }
        if remaking.damage.is_none() {
            for (dir, set) in sets {
                self.set_times(remaking.there.get(dir).unwrap_or(dir), &set.set).await?;
            }
        }
        Ok(())
    }

    async fn set_times(&self, dir: &Fh, set: &Attributes) -> io::Result<()> {
        if (set.atime, set.mtime) == (None, None) {
            return Ok(());
        }
        if let Err(e) = set_directory(&*self.r.below, dir, set).await {
            let what = "the times of a directory from before a crash cannot be set";
            Refusal::of(what, &e).for_good("a directory")?;
            tracing::warn!(error = %e, what);
        }
        Ok(())
    }

    /// Journals the results and waits until they are durable. Then the records of the objects are
    /// released.
    async fn retire(&self, ended: Vec<Ended>, sets: Vec<(Fh, SetLeft)>, records: HashSet<(u64, u64)>) {
        let mut last = None;
        let mut note = |fh: &Fh, event| last = Some(self.r.log.append(Record::of(fh, event)));
        for Ended { fh, node, .. } in &ended {
            note(fh, node.as_ref().map_or(Event::Gone, |node| Event::There(node.fh.clone())));
        }
        sets.iter().for_each(|(fh, _)| note(fh, Event::Gone));
        let Some(Ticket { seq, .. }) = last else { return };
        if self.r.log.durable(seq).await.is_err() {
            // The segments stay. The next start finds the objects at the server and adopts them.
            return;
        }
        records.into_iter().for_each(|(segment, _)| self.r.log.dead(segment, 1));
    }

    async fn make_one(
        &self,
        made: &MadeLeft,
        body: Option<&FileLeft>,
        there: &HashMap<Fh, Fh>,
        damage: Option<&String>,
    ) -> std::result::Result<Node, Refusal> {
        if let Some(damage) = damage {
            return Err(Refusal::Final(format!("the journal was damaged: {damage}")));
        }
        let data = self.body(made, body).await.map_err(|e| Refusal::of("the journal cannot be read", &e))?;
        let dir = there.get(&made.new.dir).unwrap_or(&made.new.dir);
        let mtime = made.times.1.or((made.new.what == What::File).then_some(made.written));
        let new = New {
            what: made.new.what.clone(),
            cred: made.new.cred.clone(),
            mode: made.new.mode,
            times: (made.times.0, mtime),
            data,
        };
        let put = put(&*self.r.below, dir, &[(made.name.clone(), new)]).await.pop();
        put.unwrap_or_else(|| Err(Error::new(libc::EIO))).map_err(|e| match e.errno {
            libc::EEXIST => Refusal::Final("another object has its name".into()),
            libc::ENOENT | libc::ESTALE => Refusal::Final(format!("its directory was removed ({e})")),
            _ => Refusal::of("it cannot be created", &e),
        })
    }

    /// All bytes of a file.
    async fn body(&self, made: &MadeLeft, body: Option<&FileLeft>) -> Result<Bytes> {
        let mut out = vec![0; usize::try_from(made.size_bytes).unwrap_or(0)];
        let Some(body) = body else { return Ok(out.into()) };
        for (start, end, piece) in body.image() {
            let end = end.min(made.size_bytes);
            if start < end {
                let bytes = self.bytes(piece, start, end).await?;
                out[start as usize..end as usize].copy_from_slice(&bytes);
            }
        }
        Ok(out.into())
    }

    fn path_of(&self, made: &MadeLeft, paths: &HashMap<Fh, String>) -> String {
        let name = String::from_utf8_lossy(made.name.as_bytes()).into_owned();
        match paths.get(&made.new.dir) {
            Some(dir) => format!("{dir}/{name}"),
            None => name,
        }
    }

    async fn keep_made(
        self: &Arc<Self>,
        fh: &Fh,
        made: &MadeLeft,
        body: Option<FileLeft>,
        refusal: Refusal,
        remaking: &mut Remaking<'_>,
    ) -> io::Result<()> {
        let path = self.path_of(made, &remaking.paths);
        let why = refusal.for_good(&path)?;
        let (why, size_bytes) = match &made.new.what {
            What::File => (why, Some(made.size_bytes)),
            What::Directory => (format!("a directory: {why}"), None),
            What::Link(target) => {
                (format!("a symbolic link to {}: {why}", String::from_utf8_lossy(target)), None)
            }
        };
        tracing::error!(%path, %why, "an object created before a crash cannot be created at the server");
        let mut file = body.unwrap_or_default();
        if file.path.is_empty() {
            file.path = path.into_bytes();
        }
        if file.wall_s == (0, 0) {
            file.wall_s = (made.new.time.secs, made.written.secs);
        }
        let (this, fh) = (self.clone(), fh.clone());
        let kept = tokio::task::spawn_blocking(move || this.keep(&fh, &file, size_bytes, why)).await;
        if let Fate::Kept(name, path, why) = kept.map_err(io::Error::other)?? {
            remaking.out.kept.push((name, path, why));
        }
        Ok(())
    }
}
