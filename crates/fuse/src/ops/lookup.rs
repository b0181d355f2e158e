//! LOOKUP and READLINK.

use super::Call;
use crate::abi::{EntryReply, Out, entry_out};
use crate::call::{Answer, Body, Undo};
use crate::hint::record::WalkedObject;
use crate::inode::{Inode, Moment};
use crate::path_retry::Reads;
use bytes::Bytes;
use hither_vfs::{Error, FileKind, Name, Node, PathRef, Result, Stop, Validity, WalkRequest, WalkResult};
use smallvec::SmallVec;
use tokio::time::Instant;

/// Maximum number of lookups of a name, when other clients remove the found object each time.
const LOOK_UPS_MAX: u32 = 8;
/// Maximum length of a target in the kernel: one page with the NUL.
const TARGET_MAX_BYTES: usize = 4095;

/// How a thread looks a name up again after ESTALE.
#[derive(Debug, Clone, Copy)]
struct Again {
    /// The required freshness of the answer.
    since: Instant,
    /// The call opens the file. A found file then counts as open from now on.
    opens: bool,
    /// The call may need bytes of the object after its removal.
    reads: bool,
}

impl Call {
    pub(super) async fn lookup(&self, name: Name) -> Result<Answer> {
        let dir = self.inode()?;
        let (hints, tid) = (&self.session.hints, self.head.tid);
        let began = self.pending.started;
        let mut to_open = self.session.stale_retries.since(tid, (dir.id, &name), began);
        if to_open.is_some() && self.visible_use().await.is_some_and(|used| !used.opens_file()) {
            // The open has failed without a request. This is another system call.
            self.session.stale_retries.over(tid);
            to_open = None;
        }
        let reads = self.session.path_retries.looks_up(tid);
        let mut found = if to_open.is_some() || reads {
            // The thread may be in a later call already, which the kernel starts without a request.
            // So the answer must be as new as this request.
            let how = Again { since: began, opens: to_open.is_some(), reads };
            self.look_up_again(&dir, &name, how).await
        } else {
            self.look_up(&dir, &name, None).await
        };
        if let Some(since) = self.leaves_kept_open(&found) {
            if let Ok((answer, _)) = found {
                self.session.undo(answer.undo).await;
            }
            found = self.look_up_again(&dir, &name, Again { since, opens: true, reads: false }).await;
        }
        if let Err(e) = &found
            && !matches!(e.errno, libc::ENOENT | libc::ENOTDIR)
            && self.session.inodes.child(dir.id, &name).is_some()
            && self.session.is_mounted_on(&dir.fh(), &name).await
        {
            // The kernel detaches the mount after any other error, in any caller's lookup.
            found = Err(Error::new(libc::ENOMEM));
        }
        match &found {
            Ok((_, Some(inode))) => {
                hints.advance(tid, dir.id, &name, *inode);
                if let Some(target) = self.session.inodes.find(*inode).and_then(|i| i.link_target()) {
                    hints.through_link(tid, *inode, &target);
                }
            }
            Ok((_, None)) => hints.missing(tid, dir.id, &name),
            Err(_) => hints.over(tid),
        }
        if !matches!(&found, Ok((_, Some(_)))) {
            self.session.stale_retries.missed(tid, (dir.id, &name));
            self.session.path_retries.missed(tid);
        }
        let is_missing = match &found {
            Ok((_, inode)) => inode.is_none(),
            Err(e) => e.errno != libc::ESTALE,
        };
        if is_missing {
            // A rename without its old name has failed. One without its new name is sent now.
            self.session.rename_retries.over(tid);
        }
        self.session.stale_retries.looked_up(tid, began, Instant::now());
        match found {
            Ok((answer, _)) => Ok(answer),
            Err(e) => Err(self.after_removed_dir(&dir, e).await),
        }
    }

    /// Gives up the kept open of a thread that found another file or nothing under its name.
    /// Another file is opened instead, as after any ESTALE. Returns the required freshness of its
    /// lookup. After an absent name the kernel may look it up again.
    fn leaves_kept_open(&self, found: &Result<(Answer, Option<u64>)>) -> Option<Instant> {
        let (session, tid) = (&self.session, self.head.tid);
        let kept = session.kept_opens.of(tid)?;
        let found = found.as_ref().ok().and_then(|(_, id)| session.inodes.find((*id)?));
        let is_other = match found {
            Some(inode) if inode.kind != FileKind::Regular || inode.id == kept.inode => return None,
            other => other.is_some(),
        };
        session.kept_opens.take(tid);
        session.close_aside(kept.file);
        let sent = session.stale_retries.send(tid, kept.sent, Instant::now());
        (is_other && sent).then_some(kept.sent)
    }

    /// The error of a lookup whose directory may be removed meanwhile. The thread walks its path
    /// again. A directory that was removed after the second walk found it has no names.
    async fn after_removed_dir(&self, dir: &Inode, e: Error) -> Error {
        let tid = self.head.tid;
        if e.errno != libc::ESTALE || self.session.rename_retries.tracks(tid) {
            return e;
        }
        if self.session.path_retries.walks(tid, dir.id) {
            return Error::new(libc::ENOENT);
        }
        self.walks_again(Reads::Nothing).await;
        e
    }

    /// The lookup of a thread after ESTALE. A file to be opened must keep its name. So the lookup
    /// excludes removals of names in the directory, and asks the server after the last one. Bytes
    /// that the call may need are read now. Other clients may remove the object before that, and
    /// the name is looked up again.
    async fn look_up_again(&self, dir: &Inode, name: &Name, how: Again) -> Result<(Answer, Option<u64>)> {
        let Again { mut since, opens, reads } = how;
        let (session, tid, mut names_stay) = (&self.session, self.head.tid, None);
        if opens {
            // No removal waits for the open of a file that an earlier lookup found.
            session.stale_retries.found(tid, None, &self.cred());
        }
        // One walk may answer for the whole path, up to the last name.
        let known = session.inodes.child(dir.id, name);
        let mut is_last = opens && known.is_none_or(|child| child.kind != FileKind::Directory);
        for _ in 0..LOOK_UPS_MAX {
            if is_last && names_stay.is_none() {
                names_stay = Some(dir.in_use.names_stay().await);
                since = Instant::now();
            }
            let (answer, found) = self.look_up(dir, name, Some(since)).await?;
            let Some(inode) = found.and_then(|id| session.inodes.find(id)) else {
                return Ok((answer, found));
            };
            let is_file = inode.kind == FileKind::Regular;
            if opens && is_file && names_stay.is_none() {
                session.undo(answer.undo).await;
                is_last = true;
                continue;
            }
            let read = if reads { self.bytes_to_read(&inode).await } else { Ok(None) };
            if read.as_ref().is_err_and(|e| e.errno == libc::ESTALE) {
                session.undo(answer.undo).await;
                since = Instant::now();
                continue;
            }
            if let Some(read) = read.transpose() {
                session.path_retries.found_bytes(tid, read);
            }
            if opens && is_file {
                session.stale_retries.found(tid, Some(inode.id), &self.cred());
            }
            return Ok((answer, found));
        }
        self.look_up(dir, name, Some(since)).await
    }

    /// The answer, from a request at or after `since`, and the inode.
    async fn look_up(
        &self,
        dir: &Inode,
        name: &Name,
        since: Option<Instant>,
    ) -> Result<(Answer, Option<u64>)> {
        let (vfs, hints, tid) = (&self.session.vfs, &self.session.hints, self.head.tid);
        let (fh, asked, mut cx) = (dir.fh(), self.asked(), self.cx());
        if since.is_some() {
            cx.fresh_since = since;
        }
        if self.session.rename_retries.looks_up(tid, (dir.id, name), self.pending.started) {
            cx.fresh_since = cx.fresh_since.max(Some(self.pending.started));
        }
        let at = PathRef::name(&fh, name);
        if let Some(trail) = vfs.peek(&cx, at) {
            // A call that makes the name fails if the name exists. Another client may have removed
            // it.
            if since.is_some() || trail.steps.is_empty() || !self.makes(name).await {
                return self.found(dir, name, &trail, asked).await;
            }
            cx.fresh_since = cx.fresh_since.max(Some(self.pending.started));
        }
        if self.session.is_strict(dir) {
            // A thread that repeats a call cannot be distinguished from one that is still in the
            // call.
            let trail = vfs.walk(&cx, at, WalkRequest::default()).await?;
            return self.found(dir, name, &trail, asked).await;
        }
        let expected = hints.expected(tid, dir.id, name, &cx.cred);
        if let Some(hint) = &expected {
            // An answer to this call is fresh enough for the call, even with a short validity.
            let began = since.map_or(hint.began, |since| since.max(hint.began));
            if let Some(trail) = vfs.peek(&cx.fresh(began), at) {
                return self.found(dir, name, &trail, asked).await;
            }
            if let Some((known, asked)) = &hint.known
                && since.is_none_or(|since| hint.began >= since)
                && !self.changed_here(dir, known, *asked)
            {
                return match known {
                    WalkedObject::Node(node) => self.found_node(dir, name, node, *asked).await,
                    WalkedObject::Missing(valid) => self.found_nothing(dir, name, *valid, *asked),
                };
            }
        }
        let read = || hints.read(tid, dir.id, name, &self.session.inodes, self.pending.started);
        let Some(hint) = expected.or_else(read) else {
            let trail = vfs.walk(&cx, at, WalkRequest::default()).await?;
            return self.found(dir, name, &trail, asked).await;
        };
        // On a read-only mount no call creates a name.
        cx.makes_last = hint.makes_last() && self.session.config.mount_flags & libc::MS_RDONLY == 0;
        let want = hint.want(self.session.config.first_bytes);
        let trail = vfs.walk(&cx, PathRef { base: &fh, path: &hint.names }, want).await?;
        hints.walked(tid, dir.id, &cx.cred, hint, &trail, asked);
        self.found(dir, name, &trail, asked).await
    }

    /// Whether the mount changed the object or the directory since a walk.
    fn changed_here(&self, dir: &Inode, known: &WalkedObject, asked: Moment) -> bool {
        let inodes = &self.session.inodes;
        let changed = |node: &Node| inodes.changed_since(inodes.ident(&node.fh, &node.attrs.attr), asked);
        dir.changed_since(asked) || matches!(known, WalkedObject::Node(node) if changed(node))
    }

    /// Answers with the first step of a walk.
    async fn found(
        &self,
        dir: &Inode,
        name: &Name,
        trail: &WalkResult,
        asked: Moment,
    ) -> Result<(Answer, Option<u64>)> {
        if let Some(node) = trail.steps.first() {
            return self.found_node(dir, name, node, asked).await;
        }
        match &trail.stop {
            Stop::Missing(valid) => self.found_nothing(dir, name, *valid, asked),
            Stop::Failed(e) => Err(e.clone()),
            Stop::NotDirectory | Stop::Symlink => Err(Error::new(libc::ENOTDIR)),
            Stop::Complete | Stop::Limit => {
                Err(Error::because(libc::EIO, "a walk of one name returned nothing"))
            }
        }
    }

    async fn found_node(
        &self,
        dir: &Inode,
        name: &Name,
        node: &Node,
        asked: Moment,
    ) -> Result<(Answer, Option<u64>)> {
        if self.is_doubtful(dir, name, node).await {
            return Err(Error::new(libc::ESTALE));
        }
        self.may_use(dir, name, node).await?;
        let (answer, inode) = self.entry_answer(dir, (name, asked), node, asked).await?;
        self.session.path_retries.found(self.head.tid, inode, &node.attrs.attr);
        Ok((answer, Some(inode)))
    }

    /// Whether a rename must start again, because the kernel may take both names for one object
    /// although the old name is another object now.
    async fn is_doubtful(&self, dir: &Inode, name: &Name, node: &Node) -> bool {
        let (session, tid) = (&self.session, self.head.tid);
        let others = self.doubt_others(dir, name, node).await;
        // The old name may be a forgotten name.
        let many = session.inodes.by_fh(&node.fh).is_some_and(|inode| inode.has_forgotten_names());
        session.rename_retries.send(tid, (dir.id, name), self.pending.started, || {
            // The kernel looks up the old name first. With equal names in two directories it is not
            // known which one is meant.
            let is_old = |old: &Bytes| many || others.iter().any(|(_, name)| name.bytes() == old);
            let doubtful = |(old, last): (Bytes, Bytes)| old != last && last == name.bytes() && is_old(&old);
            (many || !others.is_empty()) && session.hints.renamed_parts(tid).is_some_and(doubtful)
        })
    }

    /// Other last seen names of the object. When the object has only one link, they are
    /// invalidated.
    pub(super) async fn doubt_others(
        &self,
        dir: &Inode,
        name: &Name,
        node: &Node,
    ) -> SmallVec<[(u64, Name); 1]> {
        let (inodes, attr) = (&self.session.inodes, &node.attrs.attr);
        let others = inodes.other_names(&node.fh, (dir.id, name));
        if attr.nlink == 1 || attr.kind == FileKind::Directory {
            for (dir, name) in &others {
                inodes.unbind_believed(*dir, name);
                self.session.doubt_name(*dir, name).await;
            }
        }
        others
    }

    fn found_nothing(
        &self,
        dir: &Inode,
        name: &Name,
        valid: Validity,
        asked: Moment,
    ) -> Result<(Answer, Option<u64>)> {
        self.session.inodes.unbind_absent(dir.id, name, asked);
        let valid = self.absent_valid((dir, name), valid, asked);
        if valid.is_zero() {
            self.session.hints.missing(self.head.tid, dir.id, name);
            return Err(Error::new(libc::ENOENT));
        }
        let none = EntryReply { nodeid: 0, ino: 0, entry_valid: valid, attr_valid: valid, attr: None };
        let mut out = Out::with_capacity(128);
        entry_out(&mut out, &none);
        Ok((Answer::bytes(out.into_vec()), None))
    }

    pub(super) async fn readlink(&self) -> Result<Answer> {
        let inode = self.inode()?;
        let target = self.session.vfs.readlink(&self.cx(), &inode.fh()).await?;
        if target.len() > TARGET_MAX_BYTES {
            return Err(Error::new(libc::ENAMETOOLONG));
        }
        inode.link_read(&target);
        self.session.hints.through_link(self.head.tid, inode.id, &target);
        Ok(Answer { body: Body::Data(target.into()), undo: Undo::Nothing })
    }
}
