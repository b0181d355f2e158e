//! OPEN, CREATE, READ, WRITE, FLUSH, FSYNC and RELEASE.

use super::Call;
use super::name::permissions;
use crate::abi::{
    NewMode, OPEN_FOR_EXEC, Out, READ_LOCKOWNER, WRITE_CACHE, WRITE_KILL_PRIV, WRITE_LOCKOWNER, fopen,
    open_out,
};
use crate::appends::{Append, Appends};
use crate::call::{Answer, Body, Undo};
use crate::handles::{First, OpenFile};
use crate::inode::{Inode, Moment, Named, OnExec, OnOpen};
use crate::kept_open::{KEPT_MAX, KeptOpen};
use crate::lockers::Ending;
use crate::mount::CloseWaits;
use crate::stale_retry::Retry;
use bytes::Bytes;
use hither_vfs::{
    Attrs, Create, Error, File, FileKind, FileRange, LockOwner, Name, OpenAccess, OpenHow, Opened, PathRef,
    RequestContext, Result, Stability, Validity,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;

const O_ACCMODE: u32 = libc::O_ACCMODE as u32;
const O_APPEND: u32 = libc::O_APPEND as u32;
const O_DIRECT: u32 = libc::O_DIRECT as u32;
const O_DSYNC: u32 = libc::O_DSYNC as u32;
const O_EXCL: u32 = libc::O_EXCL as u32;
const O_TRUNC: u32 = libc::O_TRUNC as u32;

impl Call {
    pub(super) async fn open(&self, flags: u32) -> Result<Answer> {
        let inode = self.inode()?;
        if let Some(answer) = self.open_again(&inode, flags) {
            return Ok(answer);
        }
        // Held until the handle is registered. A name of the file is removed before this open, or
        // after it.
        let _opening = inode.in_use.opening().await;
        let (how, cx, brought) = self.prepare_open(&inode, flags);
        let changes = how.truncate || how.access.contains(OpenAccess::WRITE);
        // Before any truncation: a file with passthrough is not opened for writing.
        let not_lent =
            if changes { self.session.passthrough.open(inode.id, OpenAccess::WRITE, None)? } else { None };
        let modifying = how.truncate.then(|| inode.modify(&self.session.inodes.clock));
        let asked = self.asked();
        let (opened, looked_up) = self.open_named(&inode, &cx, &how).await?;
        if how.truncate {
            inode.resized(0);
        }
        drop(modifying);
        let on_open = self.on_open(&inode, &opened.node.attrs, asked);
        let (id, backing_id) = match self.add_open((inode.clone(), asked), &opened, flags, brought) {
            Ok(added) => added,
            Err(e) => {
                let _ = self.session.vfs.close(&cx, &opened.node.fh, opened.open).await;
                return Err(e);
            }
        };
        drop(not_lent);
        if !on_open.keep {
            inode.drops_by(id, opened.node.attrs.attr.change, asked);
        }
        let came_back = how.execute && (inode.came_back(self.head.tid, Instant::now()) || looked_up);
        if how.execute {
            self.check_exec(&inode, &opened, came_back).inspect_err(|_| self.session.close_aside(id))?;
        }
        let wants_length = backing_id.is_none() && self.wants_length(&inode, flags, on_open);
        if wants_length && !came_back && !looked_up {
            // The kernel gets the new length before the second open. Its pages have zeros behind
            // the old end.
            if inode.is_filled() && self.session.drop_pages(&inode).await {
                inode.pages_dropped(&opened.node.attrs.attr, asked);
            }
            if self.keep_open(&inode, id, flags, &opened) {
                return Err(Error::new(libc::ESTALE));
            }
        }
        if how.access.contains(OpenAccess::READ) && !how.truncate {
            let path = || self.session.inodes.path_of(&inode.fh());
            self.session.tracer.opened(self.head.tid, inode.id, path);
        }
        if on_open.attrs_stale {
            self.session.drop_attrs(&inode);
            inode.attrs_dropped();
        }
        if opened.node.attrs.valid == Validity::Lease {
            self.attr_valid(&inode, &opened.node.attrs, asked);
        }
        let how = self.open_flags(flags, &inode, on_open.keep, backing_id);
        let exact = if wants_length { fopen::DIRECT_IO } else { 0 };
        Ok(opened_answer(id, how | exact, backing_id))
    }

    /// Whether the kernel would read or append by a length that another client has changed. An open
    /// for reading during changes by the mount does not count, because the kernel follows them.
    fn wants_length(&self, inode: &Inode, flags: u32, on_open: OnOpen) -> bool {
        let appends = flags & (O_APPEND | O_TRUNC) == O_APPEND;
        let reads = access(flags).contains(OpenAccess::READ) && flags & O_TRUNC == 0;
        let in_pages = !self.session.is_strict(inode) && flags & O_DIRECT == 0;
        inode.kind == FileKind::Regular
            && on_open.length_differs
            && (appends || reads && in_pages && !on_open.ours)
    }

    /// Keeps a registered open while its thread gets the length. Returns false without room.
    fn keep_open(&self, inode: &Inode, file: u64, flags: u32, opened: &Opened) -> bool {
        let (session, tid) = (&self.session, self.head.tid);
        inode.forget_length();
        inode.attrs_dropped();
        let size_bytes = opened.node.attrs.attr.size_bytes;
        let kept = KeptOpen { inode: inode.id, file, flags, size_bytes, sent: Instant::now() };
        let keeps = session.kept_opens.keep(tid, kept);
        if keeps {
            let until_expired = session.clone();
            session.aside(async move {
                tokio::time::sleep(KEPT_MAX).await;
                if until_expired.kept_opens.expire(tid, kept) {
                    until_expired.close_aside(file);
                }
            });
        }
        keeps
    }

    /// The second open of a thread, which uses its kept open. Reads go past the kernel's pages when
    /// it may have another length.
    fn open_again(&self, inode: &Inode, flags: u32) -> Option<Answer> {
        let kept = self.session.kept_opens.take(self.head.tid)?;
        if (kept.inode, kept.flags) != (inode.id, flags) {
            self.session.close_aside(kept.file);
            return None;
        }
        let exact = if inode.is_length(kept.size_bytes) { 0 } else { fopen::DIRECT_IO };
        let how = self.open_flags(flags, inode, inode.pages().is_some(), None);
        Some(opened_answer(kept.file, how | exact, None))
    }

    /// Fails an exec with ESTALE when the set-id bits or the owner have changed, so that the kernel
    /// looks up the file again. After this open the kernel uses its own attributes without asking.
    fn check_exec(&self, inode: &Inode, opened: &Opened, came_back: bool) -> Result<()> {
        let on_exec = inode.on_exec(&opened.node.attrs.attr);
        let (tid, now) = (self.head.tid, Instant::now());
        let again = match on_exec {
            OnExec::Same => false,
            OnExec::Less => !came_back && inode.send_back(tid, now),
            // A file that changes repeatedly is not run.
            OnExec::More => true,
        };
        if !again {
            return Ok(());
        }
        if on_exec == OnExec::More && !came_back {
            inode.send_back(tid, now);
        }
        self.session.stale_retries.send(tid, self.pending.started, now);
        inode.attrs_dropped();
        self.session.drop_attrs(inode);
        Err(Error::new(libc::ESTALE))
    }

    /// Opens the file by the name in the kernel, under close-to-open. Another client may have given
    /// the name to another file meanwhile, which must be opened instead. Then the kernel has to
    /// walk the path again. It also has to when one of several names may be meant. Returns true
    /// when the kernel has just walked the path again.
    async fn open_named(&self, inode: &Inode, cx: &RequestContext, how: &OpenHow) -> Result<(Opened, bool)> {
        let (session, tid, fh) = (&self.session, self.head.tid, inode.fh());
        let by_handle = async |cx: &RequestContext| session.vfs.open(cx, PathRef::fh(&fh), how).await;
        let back = session.stale_retries.opens(tid, inode.id, self.pending.started);
        if let Some(Retry::Since(since)) = back {
            let since = cx.fresh_since.map(|_| since);
            return Ok((by_handle(&RequestContext { fresh_since: since, ..cx.clone() }).await?, true));
        }
        // After a second ESTALE the kernel would not walk the path again.
        let late = back == Some(Retry::Late);
        let believed = async || {
            let opened = by_handle(cx).await.map_err(|e| {
                // The file was replaced or removed after the lookup of its name.
                let again = may_be_gone(&e) && !late;
                if again && session.stale_retries.send(tid, Instant::now(), Instant::now()) {
                    Error::new(libc::ESTALE)
                } else {
                    e
                }
            });
            Ok((opened?, late))
        };
        let Some(since) = cx.fresh_since else { return believed().await };
        match &session.inodes.named(inode.id, || session.hints.last_parts(tid).into_iter().next()) {
            Named::No => return believed().await,
            Named::By(dir, name) => match session.vfs.open(cx, PathRef::name(dir, name), how).await {
                Ok(opened) if inode.knows(&opened.node.fh) => return Ok((opened, late)),
                Ok(other) => {
                    let (vfs, cx) = (session.vfs.clone(), RequestContext::new(cx.cred.clone()));
                    let close = async move {
                        let _ = vfs.close(&cx, &other.node.fh, other.open).await;
                    };
                    session.closes.spawn_on(close, session.runtime());
                }
                Err(e) if !may_be_another(&e) => return Err(e),
                Err(_) => {}
            },
            Named::ByOneOf => {}
        }
        if !late && session.stale_retries.send(tid, since, Instant::now()) {
            Err(Error::new(libc::ESTALE))
        } else {
            Ok((by_handle(cx).await?, late))
        }
    }

    /// The parameters of an open, and the data from the call's lookups: first bytes, and the time
    /// of the first lookup.
    fn prepare_open(&self, inode: &Inode, flags: u32) -> (OpenHow, RequestContext, Option<First>) {
        let (mut how, mut cx, config) = (how(flags, Create::No), self.cx(), &self.session.config);
        let (strict, opens_ask) = (self.session.is_strict(inode), self.session.opens_ask(inode));
        let opening = self.session.hints.opening(self.head.tid, inode, &cx.cred);
        // An open for writing sends a request in any case.
        let opening = opening.filter(|_| how.access == OpenAccess::READ && !how.truncate && !strict);
        if opens_ask {
            cx.fresh_since = Some(opening.as_ref().map_or(self.pending.started, |o| o.began));
        }
        let brought = opening.and_then(|o| o.first);
        let wants_bytes = how.access == OpenAccess::READ && !how.truncate && flags & O_DIRECT == 0;
        if wants_bytes && brought.is_none() && !inode.has_pages() && !strict {
            how.first_bytes = config.first_bytes;
        }
        (how, cx, brought)
    }

    pub(super) async fn create(&self, name: Name, flags: u32, mode: NewMode) -> Result<Answer> {
        let dir = self.inode()?;
        self.session.stale_retries.over(self.head.tid);
        let set = permissions(mode);
        let create = if flags & O_EXCL != 0 { Create::Exclusive(set) } else { Create::IfMissing(set) };
        let how = how(flags, create);
        let clock = &self.session.inodes.clock;
        let _changing = dir.changing(clock);
        let asked = self.asked();
        let dir_fh = dir.fh();
        let opened = self.session.vfs.open(&self.cx(), PathRef::name(&dir_fh, &name), &how).await?;
        if opened.created {
            self.session.inodes.note_new(&opened.node);
        } else {
            self.doubt_others(&dir, &name, &opened.node).await;
            if let Err(e) = self.may_create_over(&dir, &opened.node.attrs.attr) {
                let _ = self.session.vfs.close(&self.cx(), &opened.node.fh, opened.open).await;
                return Err(e);
            }
        }
        let named = self.now_named();
        let inode = match self.remember(Some((dir.id, &name, named)), &opened.node).await {
            Ok(inode) => inode,
            Err(e) => {
                let _ = self.session.vfs.close(&self.cx(), &opened.node.fh, opened.open).await;
                return Err(e);
            }
        };
        if how.truncate && !opened.created {
            drop(inode.modify(clock));
            inode.resized(opened.node.attrs.attr.size_bytes);
        }
        self.saw(&inode, &opened.node.attrs, asked).await;
        let on_open = self.on_open(&inode, &opened.node.attrs, asked);
        let (id, backing_id) = match self.add_open((inode.clone(), asked), &opened, flags, None) {
            Ok(added) => added,
            Err(e) => {
                let _ = self.session.vfs.close(&self.cx(), &opened.node.fh, opened.open).await;
                self.session.forget(inode.id, 1);
                return Err(e);
            }
        };
        if !on_open.keep {
            inode.drops_by(id, opened.node.attrs.attr.change, asked);
        }
        let mut out = Out::with_capacity(144);
        self.entry(&mut out, (&dir, &name), &inode, &opened.node.attrs, asked);
        let how = self.open_flags(flags, &inode, on_open.keep, backing_id);
        let wants_length = backing_id.is_none() && self.wants_length(&inode, flags, on_open);
        let exact = if wants_length { fopen::DIRECT_IO } else { 0 };
        open_out(&mut out, id, how | exact, backing_id.unwrap_or(0));
        Ok(Answer::bytes(out.into_vec()).or(Undo::Close { file: id, forget: Some(inode.id) }))
    }

    fn add_open(
        &self,
        (inode, asked): (Arc<Inode>, Moment),
        opened: &Opened,
        flags: u32,
        brought: Option<First>,
    ) -> Result<(u64, Option<u32>)> {
        let access = access(flags);
        let noted = self.session.passthrough.open(inode.id, access, opened.backing.clone())?;
        let backing_id = noted.as_ref().and_then(|noted| noted.backing_id);
        let change = opened.node.attrs.attr.change;
        let first = opened.first.clone().map(|read| First { change, asked, read });
        let first = Mutex::new(first.or(brought.filter(|first| first.change == change)));
        let (open, cred) = (opened.open, self.cred());
        let committed = AtomicU64::new(inode.writes().1);
        if self.session.authority.is_noncacheable(&opened.node.fh) || flags & O_DIRECT != 0 {
            *first.lock() = None;
        }
        let brings_bytes = first.lock().is_some();
        let (watched, noted) = (inode.clone(), Mutex::new(noted));
        let quiet = inode.in_use.opened(access, self.is_flushed(flags));
        let appends = Appends::default();
        let file = OpenFile { inode, open, access, quiet, cred, first, committed, appends, noted };
        let id = self.session.files.add(file);
        self.session.watch.add(&watched, id);
        if brings_bytes {
            self.session.keep_first(id);
        }
        Ok((id, backing_id))
    }

    fn on_open(&self, inode: &Inode, attrs: &Attrs, asked: Moment) -> OnOpen {
        if self.session.is_strict(inode) {
            inode.opened_past_pages(attrs, asked)
        } else {
            inode.opened(attrs, asked)
        }
    }

    fn open_flags(&self, flags: u32, inode: &Inode, keep: bool, backing_id: Option<u32>) -> u32 {
        let mut out = 0;
        if backing_id.is_some() {
            // All opens of the file use passthrough, independent of their flags.
            return fopen::PASSTHROUGH;
        }
        if self.session.is_strict(inode) || self.session.authority.is_noncacheable(&inode.fh()) {
            // Pages of a mapping are no older than the open.
            out |= fopen::DIRECT_IO;
        } else if keep {
            out |= fopen::KEEP_CACHE;
        }
        if flags & O_DIRECT != 0 {
            out |= fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
        }
        if flags & O_APPEND != 0 {
            // The kernel writes to its pages before it knows the place of the bytes.
            out |= fopen::DIRECT_IO;
        }
        if !self.is_flushed(flags) {
            out |= fopen::NOFLUSH;
        }
        out
    }

    /// Whether a close may have data to write, or locks of the server to release.
    fn is_flushed(&self, flags: u32) -> bool {
        access(flags) != OpenAccess::READ || self.session.config.server_locks
    }

    pub(super) async fn read(&self, fh: u64, offset: u64, size: u32, read_flags: u32) -> Result<Answer> {
        let file = self.file(fh)?;
        // A read past the pages contains its lock owner. A mapping of a file that was opened with
        // O_DIRECT fills pages.
        let past_pages = read_flags & READ_LOCKOWNER != 0;
        if !past_pages {
            self.pending.be_patient();
            file.inode.paged();
            file.inode.fills();
        }
        let _no_truncation = if past_pages { None } else { file.inode.resizing.read().await };
        let handle = file.inode.fh();
        let at = File { fh: &handle, open: Some(file.open) };
        let mut cx = RequestContext { takes_slice: true, ..self.cx_of(file.cred.clone()) };
        file.inode.read_by(fh);
        let (mut data, mut end) = file.take_first(offset, size as usize);
        // The kernel takes a short answer for the end of the file, so reads continue until the end.
        while data.len() < size as usize && !end {
            let done = data.len() as u64;
            let read = self.session.vfs.read(&cx, at, offset + done, size - done as u32).await?;
            if let Some(slice) = read.data.slice() {
                match self.session.local_reads.read(slice, self.pending.is_on_reader()).await {
                    Some(bytes) => data.push(bytes),
                    // The layer below finds the damage, and reads from the server.
                    None => {
                        cx.takes_slice = false;
                        continue;
                    }
                }
            }
            for part in read.data.parts() {
                data.push(part.clone());
            }
            end = read.eof || read.data.is_empty();
        }
        if data.len() > size as usize {
            return Err(Error::because(libc::EIO, "more bytes than requested"));
        }
        let is_short = !past_pages && data.len() < size as usize;
        let end = offset.saturating_add(data.len() as u64);
        let body = Body::Data(data);
        if is_short && let Some(_until_answered) = file.inode.shortening(end) {
            self.answer(Ok(&body));
        }
        Ok(Answer { body, undo: Undo::Nothing })
    }

    pub(super) async fn write(
        &self,
        fh: u64,
        offset: u64,
        write_flags: u32,
        flags: u32,
        data: Bytes,
    ) -> Result<Answer> {
        let file = self.file(fh)?;
        if write_flags & WRITE_CACHE != 0 {
            self.pending.be_patient();
        }
        // The server clears set-id bits at the WRITE, so the WRITE is not delayed.
        let kills = write_flags & WRITE_KILL_PRIV != 0 && file.inode.is_set_id();
        let is_stable = flags & (O_DSYNC | O_DIRECT) != 0 || kills;
        let stability = if is_stable { Stability::Stable } else { Stability::Unstable };
        let handle = file.inode.fh();
        let at = File { fh: &handle, open: Some(file.open) };
        let mut modifying = file.inode.modify(&self.session.inodes.clock);
        let cx = RequestContext { clears_set_id: kills, ..self.cx_of(file.cred.clone()) };
        let kernel_offset = offset;
        let appends = flags & O_APPEND != 0 && write_flags & WRITE_CACHE == 0;
        let append = if appends { Some(self.append(&file, &cx, offset).await?) } else { None };
        let offset = append.as_ref().map_or(offset, |append| append.offset);
        let past_pages =
            write_flags & WRITE_CACHE == 0 && (write_flags & WRITE_LOCKOWNER != 0 || flags & O_DIRECT != 0);
        if !past_pages {
            file.inode.fills();
        }
        let len = data.len() as u64;
        if flags & O_DIRECT == 0 {
            self.extends(&file.inode, kernel_offset.saturating_add(len));
        }
        let wrote = self.session.vfs.write(&cx, at, offset, data.into(), stability).await;
        if wrote.as_ref().map_or(0, |wrote| wrote.bytes) < len {
            file.inode.forget_length();
        }
        let wrote = wrote?;
        if past_pages {
            // During the modification, so that attributes that the kernel ignores for this
            // invalidation are not recorded as known to the kernel.
            let (from, len) = if offset == kernel_offset { (offset, len) } else { (0, u64::MAX) };
            self.drop_filled(&file.inode, from, len).await;
        }
        if kills {
            file.inode.attrs_dropped();
            self.session.drop_attrs(&file.inode);
        }
        let stable = stability == Stability::Stable;
        // The kernel extends its length from its own place.
        let writes = file.inode.wrote(kernel_offset.saturating_add(wrote.bytes), stable);
        if stable {
            let _ = file.committed.compare_exchange(writes - 1, writes, Ordering::Relaxed, Ordering::Relaxed);
        }
        if let Some(attrs) = wrote.attrs {
            modifying.brought(attrs);
        }
        drop((modifying, append));
        let mut out = Out::with_capacity(8);
        out.u32(wrote.bytes as u32).u32(0);
        let body = Body::Bytes(out.into_vec());
        if offset != kernel_offset {
            file.inode.attrs_dropped();
            if !past_pages {
                // The kernel has the bytes at another place of its pages.
                self.answer(Ok(&body));
                self.session.drop_pages(&file.inode).await;
            }
        }
        self.answer_and_drop_shared(&file.inode, &body).await;
        Ok(Answer { body, undo: Undo::Nothing })
    }

    /// Begins a write with O_APPEND that the kernel would make at `offset`.
    async fn append<'a>(&self, file: &'a OpenFile, cx: &RequestContext, offset: u64) -> Result<Append<'a>> {
        let strict = self.session.is_strict(&file.inode);
        let end = async {
            let handle = file.inode.fh();
            let at = File { fh: &handle, open: Some(file.open) };
            let cx = if strict { cx.fresh(self.pending.started) } else { cx.clone() };
            let cx = RequestContext { times_unseen: true, ..cx };
            Ok(self.session.vfs.getattr(&cx, at).await?.attr.size_bytes)
        };
        file.appends.begin(offset, || file.inode.known_length(), end).await
    }

    /// Answers a write to a file that must not be cached, and then drops the kernel's pages of the
    /// file. The kernel ignores an invalidation during the write ([`Call::getattr`]).
    async fn answer_and_drop_shared(&self, inode: &Inode, body: &Body) {
        if self.session.config.may_be_shared && self.session.authority.is_noncacheable(&inode.fh()) {
            self.answer(Ok(body));
            self.session.drop_pages(inode).await;
        }
    }

    pub(super) async fn flush(&self, fh: u64, lock_owner: u64) -> Result<Answer> {
        let file = self.file(fh)?;
        file.inode.in_use.flushed(&file.quiet);
        let writes = file.access.contains(OpenAccess::WRITE);
        let waits = match self.session.config.close_waits {
            CloseWaits::Always => true,
            CloseWaits::UnlessDelegated => self.session.authority.delegated_bytes(&file.inode.fh()).is_none(),
            CloseWaits::Never => false,
        };
        let result = if !writes {
            Ok(())
        } else if waits {
            self.commit(&file).await
        } else {
            file.inode.take_error().map_or(Ok(()), Err)
        };
        let owner = LockOwner { id: lock_owner, flock: false };
        if let Some(ending) = file.inode.lockers.end(owner) {
            self.unlock_all(&file, ending).await?;
        }
        result.map(|()| Answer::empty())
    }

    pub(super) async fn fsync(&self, fh: u64) -> Result<Answer> {
        let file = self.file(fh)?;
        self.commit(&file).await.map(|()| Answer::empty())
    }

    /// Makes written data stable, when data was written since the last time.
    pub(super) async fn commit(&self, file: &OpenFile) -> Result<()> {
        if let Some(error) = file.inode.take_error() {
            return Err(error);
        }
        let (writes, _) = file.inode.writes();
        // The count of writes is incomplete in three cases:
        // - Closes do not wait, and the kernel has forgotten the file, and the count with it,
        //   before all data was sent.
        // - fsync waits only for the local disk, and the server has refused the data since.
        // - Another frontend wrote before the kernel knew the file.
        let counted =
            self.session.config.commits_last && !self.session.written_beside.load(Ordering::Relaxed);
        if counted && file.committed.load(Ordering::Relaxed) >= writes {
            return Ok(());
        }
        let handle = file.inode.fh();
        let at = File { fh: &handle, open: Some(file.open) };
        let result = self.session.vfs.commit(&self.cx_of(file.cred.clone()), at).await;
        // After an error the next call asks the layer below again, which knows the remaining work.
        if result.is_ok() {
            file.inode.committed(writes);
            file.committed.fetch_max(writes, Ordering::Relaxed);
        }
        result
    }

    async fn unlock_all(&self, file: &OpenFile, ending: Ending<'_>) -> Result<()> {
        let handle = file.inode.fh();
        let at = File { fh: &handle, open: Some(file.open) };
        let all = FileRange { start_bytes: 0, end_bytes: u64::MAX };
        self.session.vfs.unlock(&self.cx_of(file.cred.clone()), at, ending.owner, all).await
    }

    pub(super) async fn release(&self, fh: u64) -> Result<Answer> {
        let Some(file) = self.session.take_file(fh) else { return Err(Error::new(libc::EBADF)) };
        // Before the close below, which may take some time. The next open of the file may use
        // passthrough.
        drop(file.noted.lock().take());
        // The kernel does not wait for the answer, but keeps the inode until the answer. For a
        // removed file, `mount -o remount,ro` is busy until then.
        self.answer(Ok(&Body::Empty));
        for ending in file.inode.lockers.end_with(fh).await {
            let _ = self.unlock_all(&file, ending).await;
        }
        let cx = self.cx_of(file.cred.clone());
        self.session.close_below(&cx, &file).await.map(|()| Answer::empty())
    }

    pub(super) async fn syncfs(&self) -> Result<Answer> {
        for file in self.session.files.all() {
            self.commit(&file).await?;
        }
        Ok(Answer::empty())
    }
}

/// The answer to an open.
fn opened_answer(file: u64, flags: u32, backing_id: Option<u32>) -> Answer {
    let mut out = Out::with_capacity(16);
    open_out(&mut out, file, flags, backing_id.unwrap_or(0));
    Answer::bytes(out.into_vec()).or(Undo::Close { file, forget: None })
}

/// Whether an open by name may fail with this error although an open of the file by filehandle does
/// not.
fn may_be_another(e: &Error) -> bool {
    let another = [libc::ENOENT, libc::ENOTDIR, libc::EISDIR, libc::ELOOP, libc::ENXIO, libc::EINVAL];
    // The caller may have no right to search the directory any more. That matters for a path, and
    // not for a name in /proc/self/fd.
    another.contains(&e.errno) || e.errno == libc::EACCES || may_be_gone(e)
}

/// Whether an open may fail with this error because its file is gone. nfs-ganesha 4.3 answers
/// NFS4ERR_SERVERFAULT when the file is removed during the call. The kernel truncates a file after
/// its open.
pub(super) fn may_be_gone(e: &Error) -> bool {
    matches!(e.errno, libc::ESTALE | libc::EREMOTEIO)
}

/// The access in the flags of open(2).
fn access(flags: u32) -> OpenAccess {
    match (flags & O_ACCMODE) as i32 {
        libc::O_RDONLY => OpenAccess::READ,
        libc::O_WRONLY => OpenAccess::WRITE,
        _ => OpenAccess::READ | OpenAccess::WRITE,
    }
}

/// The parameters of an open with these flags of open(2).
fn how(flags: u32, create: Create) -> OpenHow {
    OpenHow {
        access: access(flags),
        create,
        truncate: flags & O_TRUNC != 0,
        execute: flags & OPEN_FOR_EXEC != 0,
        first_bytes: 0,
        known: None,
    }
}
