//! Opens, which NFSv3 does not have: a check, a table entry, and a commit at the end.
//!
//! The removal of a file's last name depends on whether the file is open ([`Opens::claim`]). An
//! open in progress counts as open ([`Opens::begin`]). Opens of the file wait from that decision
//! until the server has removed the name. No open thus succeeds for a file that is about to be
//! deleted. A removal waits for a close in progress, because the program that closed the file has
//! already returned.
//!
//! Locks: one mutex over all tables, held for a look-up, never across a call.

use super::V3;
use super::convert;
use super::lookup::{dirop, empty_handle};
use super::walk::newest;
use super::wire::Patience;
use crate::detach::{detached, patient};
use crate::error;
use crate::silly::Leaving;
use crate::stamp::Stamp;
use crate::writes::OpenMark;
use hither_proto::nfs3::{CreateArgs, CreateOk, Createhow3, Nfsstat3};
use hither_vfs::{
    Access, Attr, ChangeInfo, Create, Cred, Data, Error, Fh, FileKind, Name, Node, OpenAccess, OpenHow,
    OpenId, Opened, PathRef, Read, RequestContext, Result, SetAttr, SetTime,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Rounds of CREATE and LOOKUP before an open gives up on a name that other clients create and
/// remove.
const CREATE_ROUNDS: u32 = 8;
/// Assumed mode before the mode is known.
const READABLE: u32 = 0o644;

/// The open files of one mount.
#[derive(Default)]
pub(super) struct Opens {
    tables: Mutex<Tables>,
    /// Notified at the end of an open or a removal.
    fewer: Notify,
    pub leaving: Leaving,
}

#[derive(Default)]
struct Tables {
    next: u64,
    opens: HashMap<OpenId, Arc<Open>>,
    files: HashMap<Fh, OpenFile>,
    /// Files that were not open when the removal of a name began, with the number of removals in
    /// progress.
    removing: HashMap<Fh, usize>,
    /// Directories with hidden names whose removal is in progress.
    going: Vec<Fh>,
    /// Number of removed hidden names.
    gone: u64,
}

/// One open.
pub(super) struct Open {
    pub fh: Fh,
    pub cred: Arc<Cred>,
    pub mark: OpenMark,
    pub closing: AtomicBool,
}

/// A file with opens.
#[derive(Default)]
struct OpenFile {
    /// Number of opens, including opens in progress.
    opens: u64,
    /// Number of opens with a close in progress.
    closing: u64,
    /// The fileid, known after the first open has succeeded.
    fileid: Option<u64>,
    /// The hidden name after the removal of the file's name.
    silly: Option<Silly>,
    /// The last link count without the hidden name.
    links: Option<u32>,
    /// The last close removes the hidden name. False while the operation that hid the file may
    /// still fail.
    removed: bool,
}

/// The hidden name of a removed file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Silly {
    pub dir: Fh,
    pub name: Name,
    /// Credential of the caller that removed the file. The last close removes the hidden name with
    /// it.
    pub cred: Arc<Cred>,
}

/// State of a file at the removal of one of its names.
pub(super) enum Claim {
    /// The file is open: its fileid, when known, and its hidden name, when it has one.
    Open(Option<u64>, Option<Silly>),
    /// The file is not open. Opens wait until the drop of this value.
    Alone(Removing),
}

/// A removal in progress. Drop ends it.
pub(super) struct Removing {
    opens: Arc<Opens>,
    fh: Fh,
    /// Directory of the hidden name to remove.
    hidden_in: Option<Fh>,
}

/// A hidden name to remove.
type Left = (Silly, Removing);

impl Drop for Removing {
    fn drop(&mut self) {
        let mut t = self.opens.tables.lock();
        if let Some(count) = t.removing.get_mut(&self.fh) {
            *count -= 1;
            if *count == 0 {
                t.removing.remove(&self.fh);
            }
        }
        if let Some(place) = t.going.iter().position(|dir| Some(dir) == self.hidden_in.as_ref()) {
            t.going.swap_remove(place);
            t.gone += 1;
            self.opens.leaving.end(&self.fh);
        }
        drop(t);
        self.opens.fewer.notify_waiters();
    }
}

impl Tables {
    /// Ends an open of a file. After the last one returns the hidden name to remove.
    fn leave(&mut self, fh: &Fh, closing: bool, leaving: &Leaving) -> Option<Silly> {
        let file = self.files.get_mut(fh)?;
        file.opens -= 1;
        file.closing -= u64::from(closing);
        if file.opens > 0 {
            return None;
        }
        let file = self.files.remove(fh).filter(|f| f.removed)?;
        let silly = file.silly?;
        leaving.begin(fh, file.links);
        *self.removing.entry(fh.clone()).or_default() += 1;
        self.going.push(silly.dir.clone());
        Some(silly)
    }
}

impl Opens {
    pub fn find(&self, id: OpenId) -> Option<Arc<Open>> {
        self.tables.lock().opens.get(&id).cloned()
    }

    /// Begins an open of an existing file, after removals of its names have ended.
    /// [`Opens::insert`] or [`Opens::abandon`] ends it.
    pub async fn begin(&self, fh: &Fh) {
        loop {
            let fewer = self.fewer.notified();
            tokio::pin!(fewer);
            fewer.as_mut().enable();
            {
                let mut t = self.tables.lock();
                if !t.removing.contains_key(fh) {
                    t.files.entry(fh.clone()).or_default().opens += 1;
                    return;
                }
            }
            fewer.await;
        }
    }

    /// Ends a failed open. After the last one returns the hidden name to remove.
    fn abandon(self: &Arc<Self>, fh: &Fh) -> Option<Left> {
        let silly = self.tables.lock().leave(fh, false, &self.leaving);
        self.fewer.notify_waiters();
        silly.map(|silly| self.left(silly, fh))
    }

    /// A hidden name to remove. The caller has counted its removal already.
    fn left(self: &Arc<Self>, silly: Silly, fh: &Fh) -> Left {
        let hidden_in = Some(silly.dir.clone());
        (silly, Removing { opens: self.clone(), fh: fh.clone(), hidden_in })
    }

    /// Enters an open that succeeded. `begun` is true after [`Opens::begin`].
    fn insert(&self, open: Open, fileid: u64, begun: bool) -> OpenId {
        let mut t = self.tables.lock();
        t.next += 1;
        let id = OpenId(t.next);
        let file = t.files.entry(open.fh.clone()).or_default();
        file.opens += u64::from(!begun);
        file.fileid = Some(fileid);
        t.opens.insert(id, Arc::new(open));
        id
    }

    /// Marks an open as closing.
    pub fn closing(&self, id: OpenId) {
        let mut t = self.tables.lock();
        if let Some(open) = t.opens.get(&id).cloned()
            && !open.closing.swap(true, Ordering::SeqCst)
            && let Some(file) = t.files.get_mut(&open.fh)
        {
            file.closing += 1;
        }
    }

    /// Removes an open. After the last one also returns the hidden name to remove.
    fn remove(self: &Arc<Self>, id: OpenId) -> Option<(Arc<Open>, Option<Left>)> {
        let mut t = self.tables.lock();
        let open = t.opens.remove(&id)?;
        let silly = t.leave(&open.fh, open.closing.load(Ordering::SeqCst), &self.leaving);
        drop(t);
        self.fewer.notify_waiters();
        let left = silly.map(|silly| self.left(silly, &open.fh));
        Some((open, left))
    }

    /// Prepares the removal of a name of the file. Waits for closes in progress.
    pub async fn claim(self: &Arc<Self>, fh: &Fh) -> Claim {
        loop {
            let fewer = self.fewer.notified();
            tokio::pin!(fewer);
            fewer.as_mut().enable();
            {
                let mut t = self.tables.lock();
                match t.files.get(fh) {
                    Some(file) if file.opens > file.closing => {
                        return Claim::Open(file.fileid, file.silly.clone());
                    }
                    Some(_) => {}
                    None => {
                        *t.removing.entry(fh.clone()).or_default() += 1;
                        let (opens, fh) = (self.clone(), fh.clone());
                        return Claim::Alone(Removing { opens, fh, hidden_in: None });
                    }
                }
            }
            fewer.await;
        }
    }

    /// Whether hidden names in a directory are about to be removed, because the last closes of
    /// their files are in progress.
    fn has_going_names(&self, dir: &Fh) -> bool {
        let t = self.tables.lock();
        let closing = |file: &OpenFile| file.opens == file.closing && file.removed;
        let mut hidden = t.files.values().filter(|file| closing(file)).filter_map(|file| file.silly.as_ref());
        t.going.contains(dir) || hidden.any(|silly| silly.dir == *dir)
    }

    /// Number of hidden names removed so far.
    pub fn hidden_names_gone(&self) -> u64 {
        self.tables.lock().gone
    }

    /// Waits until no hidden name in a directory is about to be removed.
    pub async fn hidden_names_go(&self, dir: &Fh) {
        loop {
            let fewer = self.fewer.notified();
            tokio::pin!(fewer);
            fewer.as_mut().enable();
            if !self.has_going_names(dir) {
                return;
            }
            fewer.await;
        }
    }

    pub fn any(&self) -> bool {
        !self.tables.lock().files.is_empty()
    }

    /// Records the hidden name of a file.
    pub fn hidden(&self, fh: &Fh, silly: &Silly) {
        if let Some(file) = self.tables.lock().files.get_mut(fh).filter(|file| file.silly.is_none()) {
            file.silly = Some(silly.clone());
        }
    }

    /// Records that the file has its name back.
    pub fn shown(&self, fh: &Fh) {
        if let Some(file) = self.tables.lock().files.get_mut(fh) {
            file.silly = None;
        }
    }

    /// Records that the file's name is removed permanently. False when the hidden name is not
    /// needed. Then the last open has ended, or the file has another hidden name.
    pub fn removed(&self, fh: &Fh, hidden: &Silly) -> bool {
        match self.tables.lock().files.get_mut(fh) {
            Some(file) if file.silly.as_ref() == Some(hidden) => {
                if !std::mem::replace(&mut file.removed, true) {
                    file.links = file.links.map(|links| links.saturating_sub(1));
                }
                true
            }
            _ => false,
        }
    }

    /// A file's link count without the hidden name, which programs do not count as a link.
    pub fn links(&self, fh: &Fh, nlink: u32) -> u32 {
        match self.tables.lock().files.get_mut(fh) {
            Some(file) => *file.links.insert(nlink.saturating_sub(u32::from(file.removed))),
            None => nlink,
        }
    }
}

impl V3 {
    pub(super) async fn open_file(
        &self,
        cx: &RequestContext,
        at: PathRef<'_>,
        how: &OpenHow,
    ) -> Result<Opened> {
        let Some(name) = at.path.last() else {
            if how.create != Create::No {
                return Err(Error::new(libc::EINVAL));
            }
            return self.open_known(cx, at.base.clone(), None, how).await;
        };
        let dir = patient(cx, self.parent_of(cx, at)).await?;
        match &how.create {
            Create::No => match self.lookup(&cx.cred, &Patience::of(cx), &dir, name).await? {
                Some(node) => self.open_known(cx, node.fh, Some(node.attrs.attr), how).await,
                None => Err(Error::new(libc::ENOENT)),
            },
            Create::IfMissing(set) => self.open_or_create(cx, &dir, name, how, set).await,
            Create::Exclusive(set) => {
                let (this, dir, name, set) = (self.clone(), dir.clone(), name.clone(), set.clone());
                self.create_detached(cx, async move |cred| {
                    this.create_exclusive(&cred, &dir, &name, &set).await
                })
                .await
            }
        }
    }

    /// Sends CREATE with GUARDED, and LOOKUP when the name exists. Thus `created` is true exactly
    /// when this call created the file. An existing file keeps its attributes. Frontends call this
    /// when they believe the name absent, so CREATE is first. After any failure of CREATE an
    /// existing file may be opened. Examples are a read-only file system and a directory that the
    /// caller may not change.
    async fn open_or_create(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        how: &OpenHow,
        set: &SetAttr,
    ) -> Result<Opened> {
        for _ in 0..CREATE_ROUNDS {
            let (this, dir_, name_, set) = (self.clone(), dir.clone(), name.clone(), set.clone());
            let made = self
                .create_detached(cx, async move |cred| {
                    let how = Createhow3::Guarded(convert::sattr(&set));
                    this.create(&cred, &dir_, &name_, how).await
                })
                .await;
            let refused = match made {
                Err(e) if !matches!(e.errno, libc::EINTR | libc::ETIMEDOUT) => e,
                made => return made,
            };
            if let Some(node) = self.lookup(&cx.cred, &Patience::of(cx), dir, name).await? {
                match self.open_known(cx, node.fh, Some(node.attrs.attr), how).await {
                    Err(e) if e.errno == libc::ESTALE => continue,
                    opened => return opened,
                }
            }
            if refused.errno != libc::EEXIST {
                return Err(refused);
            }
        }
        Err(Error::because(libc::EEXIST, "other clients repeatedly create and remove the name"))
    }

    /// Runs a creation to its end, even when its caller is interrupted. An interrupted caller
    /// leaves no open behind.
    async fn create_detached<F>(
        &self,
        cx: &RequestContext,
        create: impl FnOnce(Arc<Cred>) -> F + Send + 'static,
    ) -> Result<Opened>
    where
        F: Future<Output = Result<(Node, ChangeInfo)>> + Send + 'static,
    {
        let cred = cx.cred.clone();
        let (node, dir) = detached(cx, async move { create(cred).await }).await?;
        Ok(self.opened(cx, node, true, Some(dir)))
    }

    /// Opens an existing file. It counts as open until the server refuses.
    async fn open_known(
        &self,
        cx: &RequestContext,
        fh: Fh,
        known: Option<Attr>,
        how: &OpenHow,
    ) -> Result<Opened> {
        let begin = async {
            self.opens.begin(&fh).await;
            Ok(())
        };
        patient(cx, begin).await?;
        let begun = Begun { this: self, fh: &fh };
        let (node, first) = self.check_open(cx, fh.clone(), known, how).await?;
        std::mem::forget(begun);
        Ok(Opened { first, ..self.opened(cx, node, false, None) })
    }

    fn opened(&self, cx: &RequestContext, node: Node, created: bool, dir: Option<ChangeInfo>) -> Opened {
        let mark = self.writes.opened(&node.fh);
        let open = Open { fh: node.fh.clone(), cred: cx.cred.clone(), mark, closing: AtomicBool::new(false) };
        let open = self.opens.insert(open, node.attrs.attr.fileid, !created);
        if let Some(leases) = self.leases() {
            leases.opened(&node.fh, true);
        }
        Opened { node, open, created, dir, first: None, backing: None }
    }

    /// Checks the caller's right to open a file. READ and ACCESS return the fresh attributes that
    /// close-to-open needs at an open. When first bytes are requested and READ returns them, the
    /// caller has the right to read. ACCESS checks other rights concurrently with READ, or after
    /// READ when READ did not show the right. The bytes count under two conditions. READ has the
    /// attributes of the open, and these equal the attributes `known` before (see [`super::walk`]
    /// for the reason).
    async fn check_open(
        &self,
        cx: &RequestContext,
        fh: Fh,
        known: Option<Attr>,
        how: &OpenHow,
    ) -> Result<(Node, Option<Read>)> {
        let want = rights_for(how);
        let before = known.as_ref().map(|a| a.change).or_else(|| self.caller.rules.known_change(&fh));
        let may_read =
            how.first_bytes > 0 && !how.truncate && want.intersects(Access::READ | Access::EXECUTE);
        let reads =
            may_read && known.as_ref().is_none_or(|a| a.kind == FileKind::Regular && a.size_bytes > 0);
        let (mode, asked) = (known.as_ref().map_or(READABLE, |a| a.mode), Instant::now());
        let most_bytes = if reads { how.first_bytes } else { 0 };
        let (rights, start) = self.rights_and_start(cx, &fh, (want, mode), most_bytes).await;
        let (have, came) = rights.unwrap_or(Ok((want, None)))?;
        let with_bytes = start.as_ref().and_then(|s| s.attr.clone());
        let node = match newest([came.as_ref().and_then(convert::attr), with_bytes.clone()]) {
            Some(attr) => Node { attrs: self.stamp(&fh, attr, asked), fh },
            None => self.node(cx, fh, None).await?,
        };
        let attr = &node.attrs.attr;
        match attr.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::new(libc::EISDIR)),
            FileKind::Symlink => return Err(Error::new(libc::ELOOP)),
            _ => return Err(Error::new(libc::ENXIO)),
        }
        if !have.contains(want) {
            return Err(Error::new(libc::EACCES));
        }
        if !how.truncate {
            let settled = with_bytes.is_some_and(|a| a.change == attr.change) && before == Some(attr.change);
            let first = match start {
                Some(start) => settled.then_some(start.read),
                None => (may_read && attr.size_bytes == 0).then(|| Read { data: Data::default(), eof: true }),
            };
            return Ok((node, first));
        }
        let set = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
        let (this, cred, fh) = (self.clone(), cx.cred.clone(), node.fh.clone());
        let attrs = detached(cx, async move { this.apply(&cred, &fh, &set).await }).await?;
        Ok((Node { fh: node.fh, attrs }, None))
    }

    /// CREATE of a name that must not exist.
    pub(super) async fn create(
        &self,
        cred: &Arc<Cred>,
        dir: &Fh,
        name: &Name,
        how: Createhow3,
    ) -> Result<(Node, ChangeInfo)> {
        let asked = Instant::now();
        let args = CreateArgs { r#where: dirop(dir, name)?, how };
        let ok = self.caller.expect(cred, &Patience::policy(), &args).await?;
        self.made(cred, dir, name, ok, asked).await
    }

    /// Exclusive creation: a CREATE that a retransmission cannot repeat. The server stores the
    /// verifier with the file, usually in its times. Therefore attributes and times are set
    /// afterwards. A server without exclusive CREATE gets GUARDED, as from the Linux client.
    async fn create_exclusive(
        &self,
        cred: &Arc<Cred>,
        dir: &Fh,
        name: &Name,
        set: &SetAttr,
    ) -> Result<(Node, ChangeInfo)> {
        let stamp = self.stamps.make(&self.caller.env, set);
        if let Some(stamp) = stamp.filter(|s| s.trusted) {
            return self.create_stamped(cred, dir, name, set, &stamp).await;
        }
        let asked = Instant::now();
        let verifier = (self.caller.env.random)().to_be_bytes();
        let args = CreateArgs { r#where: dirop(dir, name)?, how: Createhow3::Exclusive(verifier) };
        let policy = Patience::policy();
        let ok = match self.caller.ask(cred, &policy, &args).await.map_err(|e| error::call(&e))? {
            Ok(ok) => ok,
            Err((Nfsstat3::NOTSUPP, _)) => {
                return self.create(cred, dir, name, Createhow3::Guarded(convert::sattr(set))).await;
            }
            Err((status, _)) => return Err(error::nfs3(status)),
        };
        let (mut node, change) = self.made(cred, dir, name, ok, asked).await?;
        let set = SetAttr {
            atime: set.atime.or(stamp.map(|s| SetTime::To(s.time))).or(Some(SetTime::Now)),
            mtime: set.mtime.or(Some(SetTime::Now)),
            ..set.clone()
        };
        match self.apply(cred, &node.fh, &set).await {
            Ok(attrs) => node.attrs = attrs,
            // The file was created, and another client has removed it since.
            Err(e) if e.errno == libc::ESTALE => return Ok((node, change)),
            Err(e) => return Err(e),
        }
        if let Some(stamp) = stamp {
            self.stamps.seen(&stamp, node.attrs.attr.atime);
        }
        Ok((node, change))
    }

    /// Exclusive creation on a server that keeps access times: one CREATE with all attributes. The
    /// stamp recognises a CREATE that was already executed ([`crate::stamp`]).
    async fn create_stamped(
        &self,
        cred: &Arc<Cred>,
        dir: &Fh,
        name: &Name,
        set: &SetAttr,
        stamp: &Stamp,
    ) -> Result<(Node, ChangeInfo)> {
        let set = SetAttr { atime: Some(SetTime::To(stamp.time)), ..set.clone() };
        match self.create(cred, dir, name, Createhow3::Guarded(convert::sattr(&set))).await {
            Err(e) if e.errno == libc::EEXIST => {
                let found = self.lookup(cred, &Patience::policy(), dir, name).await?;
                match found.filter(|node| stamp.is_of(node.attrs.attr.atime, Some(node.attrs.attr.mtime))) {
                    Some(node) => Ok((node, ChangeInfo::default())),
                    None => Err(e),
                }
            }
            created => created,
        }
    }

    /// The new object of a reply. Missing handles and attributes are requested.
    pub(super) async fn made(
        &self,
        cred: &Arc<Cred>,
        dir: &Fh,
        name: &Name,
        ok: CreateOk,
        asked: Instant,
    ) -> Result<(Node, ChangeInfo)> {
        let policy = Patience::policy();
        let change = self.dir_change(dir, &ok.dir_wcc, asked);
        let node = match ok.obj {
            Some(fh) => {
                let fh = convert::fh(&fh).ok_or_else(empty_handle)?;
                let attr = self.caller.attr_or_ask(cred, &policy, &fh, ok.obj_attributes).await?;
                let attrs = self.stamp_named(&fh, attr, asked);
                Node { fh, attrs }
            }
            None => match self.lookup(cred, &policy, dir, name).await? {
                Some(node) => node,
                None => return Err(Error::new(libc::ESTALE)),
            },
        };
        Ok((node, change))
    }

    pub(super) async fn close_file(&self, cx: &RequestContext, fh: &Fh, id: OpenId) -> Result<()> {
        self.opens.closing(id);
        let this = self.clone();
        let fh = fh.clone();
        detached(cx, async move {
            let Some(open) = this.opens.find(id).filter(|o| o.fh == fh) else {
                return Err(Error::new(libc::EBADF));
            };
            // The commit is first: a hidden file must not be removed before its last writes.
            let policy = RequestContext::new(open.cred.clone());
            let written = this.writes.close(&policy, &fh, open.mark.clone()).await;
            let ended = this.opens.remove(id);
            if let Some(leases) = this.leases().filter(|_| ended.is_some()) {
                leases.opened(&fh, false);
            }
            if let Some((_, Some((silly, _alone)))) = ended {
                this.remove_hidden(&silly).await;
            }
            written
        })
        .await
    }
}

/// An open in progress. Drop ends it as failed.
struct Begun<'a> {
    this: &'a V3,
    fh: &'a Fh,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if let Some((silly, alone)) = self.this.opens.abandon(self.fh) {
            let this = self.this.clone();
            tokio::spawn(async move {
                this.remove_hidden(&silly).await;
                drop(alone);
            });
        }
    }
}

/// The rights that an open needs.
fn rights_for(how: &OpenHow) -> Access {
    let mut want = Access::empty();
    if how.execute {
        want |= Access::EXECUTE;
    } else if how.access.contains(OpenAccess::READ) {
        want |= Access::READ;
    }
    if how.access.contains(OpenAccess::WRITE) || how.truncate {
        want |= Access::MODIFY | Access::EXTEND;
    }
    want
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v3::tests::server::{Server, cx, mount, name, root};
    use hither_rpc::Mode;

    /// Two concurrent removals may give one file two hidden names. One is kept, and after the last
    /// close none.
    #[tokio::test(start_paused = true)]
    async fn one_hidden_name_is_kept() {
        let fs = mount(&Server::new(), Mode::Hard, |_| {}).await;
        let fh = Fh(bytes::Bytes::from_static(b"file"));
        let silly = |n| Silly { dir: root(), name: name(n), cred: cx().cred };
        let open = || {
            let (cred, mark) = (cx().cred, fs.writes.opened(&fh));
            Open { fh: fh.clone(), cred, mark, closing: AtomicBool::new(false) }
        };
        let (first, second) = (fs.opens.insert(open(), 7, false), fs.opens.insert(open(), 7, false));
        fs.opens.hidden(&fh, &silly("a"));
        fs.opens.hidden(&fh, &silly("b"));
        assert!(fs.opens.removed(&fh, &silly("a")) && !fs.opens.removed(&fh, &silly("b")));
        assert!(fs.opens.remove(first).is_some_and(|(_, silly)| silly.is_none()));
        let (_, last) = fs.opens.remove(second).unwrap();
        assert_eq!(last.unwrap().0.name, name("a"));
        assert!(!fs.opens.removed(&fh, &silly("c")));
        assert!(fs.opens.remove(second).is_none());
    }
}
