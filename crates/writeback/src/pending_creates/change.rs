//! Calls on pending objects.
//!
//! A call returns `None` when the server must execute it. The object is then sent first. Calls of
//! users other than the creator and rare calls are such cases. After a failed attempt the server
//! may have a part of the object. The object then stays unchanged in this mount until it was sent
//! or removed at the server.

use super::PendingCreates;
use super::table::{Body, Change, Deferred, Object, Open, Status, Table};
use crate::pending_writes::patient;
use crate::wal::{Attributes, Event, Record, Write};
use bytes::Bytes;
use hither_vfs::{
    Access, Attrs, ChangeInfo, Cred, Data, Error, Fh, File, FileKind, Moved, Name, Node, OpenAccess, OpenHow,
    OpenId, Opened, Read, RenameFlags, RequestContext, Result, SetAttr, SetTime, Stability, Time, Wrote,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The result of a call on a pending object, and the record that the journal must have before the
/// caller gets it.
type Done<T> = Option<(T, u64)>;

impl Object {
    /// Whether the caller has the creator's uid. The server decides about the rights of other
    /// users.
    pub fn is_of(&self, cred: &Cred) -> bool {
        self.cred.uid == cred.uid
    }

    /// Whether an attempt failed, so that the server may have a part of the object.
    pub fn was_tried(&self) -> bool {
        self.retry.is_some()
    }

    /// The access rights of the owner.
    pub fn rights(&self) -> Access {
        let bits = if self.cred.uid == 0 { 0o600 | self.attr.mode & 0o111 } else { self.attr.mode & 0o700 };
        let mut have = Access::empty();
        let directory = matches!(self.body, Body::Directory);
        if bits & 0o400 != 0 {
            have |= Access::READ;
        }
        if bits & 0o200 != 0 {
            have |= Access::MODIFY | Access::EXTEND;
            if directory {
                have |= Access::DELETE;
            }
        }
        if bits & 0o111 != 0 || directory && self.cred.uid == 0 {
            have |= if directory { Access::LOOKUP } else { Access::EXECUTE };
        }
        have
    }

    fn may(&self, access: OpenAccess) -> bool {
        let mut need = Access::empty();
        if access.contains(OpenAccess::READ) {
            need |= Access::READ;
        }
        if access.contains(OpenAccess::WRITE) {
            need |= Access::MODIFY;
        }
        self.rights().contains(need)
    }
}

impl PendingCreates {
    /// Acts on a pending object for its creator. `None`: the server must execute the call, after it
    /// has the object.
    fn on_here<T>(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        act: impl FnOnce(&mut Table) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut t = self.table();
        let mine = match t.status(fh) {
            Status::Here(object) => object.is_of(&cx.cred) && !object.was_tried(),
            Status::Refused(errno) => return Err(Error::new(errno)),
            Status::Sending(_) | Status::There(_) => false,
        };
        Ok(if mine { act(&mut t) } else { None })
    }

    /// Waits until the journal has the record. When the journal fails, waits until the server has
    /// the object.
    async fn noted(&self, fh: &Fh, seq: u64) -> Result<()> {
        match self.wal.log().written(seq).await {
            Ok(()) => Ok(()),
            Err(_) => self.send(fh).await.map(drop),
        }
    }

    /// Waits until all records of an object are durable. Returns true when the server must commit
    /// the object.
    pub(super) async fn durable(&self, fh: &Fh) -> Result<bool> {
        let last = match self.table().status(fh) {
            Status::Here(object) => {
                if let Some(e) = object.error.take() {
                    return Err(e);
                }
                object.last
            }
            Status::Sending(_) | Status::There(_) => return Ok(true),
            Status::Refused(errno) => return Err(Error::new(errno)),
        };
        if self.wal.log().durable(last).await.is_ok() {
            return Ok(false);
        }
        self.send(fh).await.map(|_| true)
    }

    pub(super) fn open_here(&self, cx: &RequestContext, fh: &Fh, how: &OpenHow) -> Result<Done<Opened>> {
        if how.execute {
            return Ok(None);
        }
        let mut t = self.table();
        let mine = match t.status(fh) {
            Status::Here(object) => object.is_of(&cx.cred) && !(how.truncate && object.was_tried()),
            Status::Refused(errno) => return Err(Error::new(errno)),
            Status::Sending(_) | Status::There(_) => false,
        };
        let open = |t: &mut Table| {
            let object = t.here.get_mut(fh)?;
            if !matches!(object.body, Body::File(_)) || !object.may(how.access) {
                return None;
            }
            if how.truncate && !object.may(OpenAccess::WRITE) {
                return None;
            }
            if how.truncate {
                self.resize(t, fh, &cx.cred, 0)?;
            }
            let object = t.here.get_mut(fh)?;
            object.opens += 1;
            let (attrs, last) = (object.attrs(), object.last);
            let open = Open { fh: fh.clone(), access: how.access, cred: cx.cred.clone(), below: None };
            let open = t.next_open(open);
            let node = Node { fh: fh.clone(), attrs };
            Some((Opened { node, open, created: false, dir: None, first: None, backing: None }, last))
        };
        Ok(if mine { open(&mut t) } else { None })
    }

    /// Closes an open of a pending object.
    pub(super) async fn close_here(&self, fh: &Fh, open: OpenId) -> Result<Option<()>> {
        {
            let mut t = self.table();
            let Status::Here(object) = t.status(fh) else { return Ok(None) };
            object.opens = object.opens.saturating_sub(1);
            t.opens.remove(&open);
        }
        self.durable(fh).await.map(|_| Some(()))
    }

    pub(super) fn read_here(&self, fh: &Fh, open: Option<OpenId>, at: u64, len: u32) -> Result<Option<Read>> {
        let t = self.table();
        let Some(object) = t.here.get(fh) else { return Ok(None) };
        let Some(open) = open.and_then(|id| t.opens.get(&id)) else { return Ok(None) };
        let Body::File(data) = &object.body else { return Err(Error::new(libc::EISDIR)) };
        if !open.access.contains(OpenAccess::READ) {
            return Err(Error::new(libc::EBADF));
        }
        let from = usize::try_from(at).unwrap_or(usize::MAX).min(data.len());
        let to = from.saturating_add(len as usize).min(data.len());
        let bytes = Bytes::copy_from_slice(&data[from..to]);
        Ok(Some(Read { data: bytes.into(), eof: to == data.len() }))
    }

    pub(super) async fn write_here(
        &self,
        cx: &RequestContext,
        (fh, open): (&Fh, Option<OpenId>),
        at: u64,
        data: &Data,
        stability: Stability,
    ) -> Result<Option<Wrote>> {
        let len = data.len() as u64;
        let end = at.saturating_add(len);
        let most = self.options.file_max_bytes as u64;
        let wrote = {
            let mut t = self.table();
            let Status::Here(object) = t.status(fh) else { return Ok(None) };
            if let Some(e) = object.error.take() {
                return Err(e);
            }
            let (old, tried) = (object.len_bytes(), object.was_tried());
            let writes =
                open.and_then(|id| t.opens.get(&id)).is_some_and(|o| o.access.contains(OpenAccess::WRITE));
            if !writes || tried || len == 0 || end > most || !self.wal.takes(len) {
                return Ok(None);
            }
            if t.bytes + end.saturating_sub(old) > self.options.max_bytes {
                return Ok(None);
            }
            let (now, change) = (self.clock.now(), t.next_change());
            let path = self.wal.path(fh);
            let Some(object) = t.here.get_mut(fh) else { return Ok(None) };
            let fileid = object.attr.fileid;
            let Body::File(bytes) = &mut object.body else { return Err(Error::new(libc::EISDIR)) };
            let (start, stop) = (at as usize, end as usize);
            if bytes.len() < stop {
                bytes.resize(stop, 0);
            }
            let mut place = start;
            for part in data.parts() {
                bytes[place..place + part.len()].copy_from_slice(part);
                place += part.len();
            }
            let size = bytes.len() as u64;
            let write =
                Write { fileid, path, cred: cx.cred.clone(), offset_bytes: at, base: None, wall_s: now.secs };
            let record = Record { fh: fh.clone(), event: Event::Data(write), data: data.clone() };
            object.noted(self.wal.log().append(record), true);
            // The record of a write has its time in seconds.
            let seen = Record::of(fh, Event::Seen(cx.cred.clone(), now));
            object.noted(self.wal.log().append(seen), false);
            object.times.1 = None;
            let a = &mut object.attr;
            (a.size_bytes, a.mtime, a.ctime, a.change) = (size, now, now, change);
            a.used_bytes = size.next_multiple_of(4096);
            let out = (Wrote { bytes: len, attrs: Some(object.attrs()) }, object.last);
            t.bytes += size - old;
            out
        };
        let (wrote, seq) = wrote;
        self.noted(fh, seq).await?;
        if stability == Stability::Stable {
            self.durable(fh).await?;
        }
        Ok(Some(wrote))
    }

    /// Truncates or extends a file, and appends the record.
    fn resize(&self, t: &mut Table, fh: &Fh, cred: &Arc<Cred>, size: u64) -> Option<()> {
        if size > self.options.file_max_bytes as u64 {
            return None;
        }
        let (now, change) = (self.clock.now(), t.next_change());
        let object = t.here.get_mut(fh)?;
        let Body::File(bytes) = &mut object.body else { return None };
        let old = bytes.len() as u64;
        bytes.resize(size as usize, 0);
        let void = Event::Void { start_bytes: size, end_bytes: u64::MAX };
        object.noted(self.wal.log().append(Record::of(fh, void)), false);
        let (size_bytes, mtime) = (Some(size), Some(now));
        let set = Attributes { cred: cred.clone(), mode: None, size_bytes, atime: None, mtime };
        object.noted(self.wal.log().append(Record::of(fh, Event::Set(set))), false);
        object.times.1 = None;
        let a = &mut object.attr;
        (a.size_bytes, a.mtime, a.ctime, a.change) = (size, now, now, change);
        a.used_bytes = size.next_multiple_of(4096);
        t.bytes = t.bytes + size - old;
        Some(())
    }

    pub(super) async fn set_here(
        &self,
        cx: &RequestContext,
        (fh, open): (&Fh, Option<OpenId>),
        set: &SetAttr,
    ) -> Result<Option<Attrs>> {
        let done = self.on_here(cx, fh, |t| {
            let now = self.clock.now();
            let to = |time: Option<SetTime>| {
                time.map(|time| match time {
                    SetTime::Now => now,
                    SetTime::To(time) => time,
                })
            };
            let writes =
                open.and_then(|id| t.opens.get(&id)).is_some_and(|o| o.access.contains(OpenAccess::WRITE));
            let object = t.here.get_mut(fh)?;
            let a = &object.attr;
            let same_owner = set.uid.is_none_or(|uid| uid == a.uid) && set.gid.is_none_or(|gid| gid == a.gid);
            let plain = set.mode.is_none_or(|mode| mode & 0o7000 == a.mode & 0o7000);
            if !same_owner || !plain || (set.mode.is_some() && matches!(object.body, Body::Link(_))) {
                return None;
            }
            if let Some(size) = set.size_bytes {
                if !writes && !object.may(OpenAccess::WRITE) {
                    return None;
                }
                self.resize(t, fh, &cx.cred, size)?;
            }
            let change = t.next_change();
            let object = t.here.get_mut(fh)?;
            let (atime, mtime) = (to(set.atime), to(set.mtime));
            let noted = Attributes { cred: cx.cred.clone(), mode: set.mode, size_bytes: None, atime, mtime };
            object.noted(self.wal.log().append(Record::of(fh, Event::Set(noted))), false);
            object.times = (atime.or(object.times.0), mtime.or(object.times.1));
            let a = &mut object.attr;
            (a.mode, a.atime, a.mtime) =
                (set.mode.unwrap_or(a.mode), atime.unwrap_or(a.atime), mtime.unwrap_or(a.mtime));
            (a.ctime, a.change) = (now, change);
            Some((object.attrs(), object.last))
        })?;
        let Some((mut attrs, seq)) = done else { return Ok(None) };
        self.noted(fh, seq).await?;
        self.table().show(fh, &mut attrs);
        Ok(Some(attrs))
    }

    /// Delays times of a directory at the server while it has pending objects.
    pub(super) async fn defer_times(&self, cx: &RequestContext, dir: &Fh, set: &SetAttr) -> Result<bool> {
        let times = SetAttr { atime: set.atime, mtime: set.mtime, ..SetAttr::default() };
        if times != *set || times == SetAttr::default() {
            return Ok(false);
        }
        if !self.may_set_times(cx, dir).await? {
            // The server decides.
            return Ok(false);
        }
        let seq = {
            let mut t = self.table();
            let now = self.clock.now();
            let to = |time: Option<SetTime>| -> Option<Time> {
                time.map(|time| match time {
                    SetTime::Now => now,
                    SetTime::To(time) => time,
                })
            };
            if !t.has_names(dir) || !matches!(t.status(dir), Status::There(_)) || !self.wal.takes(0) {
                return Ok(false);
            }
            let set = Attributes {
                cred: cx.cred.clone(),
                mode: None,
                size_bytes: None,
                atime: to(set.atime),
                mtime: to(set.mtime),
            };
            t.changed_there(dir, Change::Attributes, now);
            self.defer(&mut t, dir, set)
        };
        Ok(self.wal.log().written(seq).await.is_ok())
    }

    /// Whether the caller is known to have the right to set times of a directory at the server.
    async fn may_set_times(&self, cx: &RequestContext, dir: &Fh) -> Result<bool> {
        let real = {
            let mut t = self.table();
            if !t.has_names(dir) {
                return Ok(false);
            }
            let Status::There(real) = t.status(dir) else { return Ok(false) };
            real
        };
        let owner = self.below.getattr(cx, File { fh: &real, open: None }).await?.attr.uid;
        let is_trusted = self.table().trusted.contains(&(cx.cred.uid, cx.cred.gid));
        Ok(is_trusted && (cx.cred.uid == 0 || cx.cred.uid == owner))
    }

    /// Journals delayed times of a directory. Returns the number of the record.
    pub(super) fn defer(&self, t: &mut Table, dir: &Fh, set: Attributes) -> u64 {
        let before = t.deferred.remove(dir);
        let set = match &before {
            Some(Deferred { set: old, .. }) => {
                Attributes { atime: set.atime.or(old.atime), mtime: set.mtime.or(old.mtime), ..set }
            }
            None => set,
        };
        let event = Event::Set(set.clone());
        // The data makes the record a live one.
        let data = Data::from(Bytes::from_static(b"times"));
        let ticket = self.wal.log().append(Record { fh: t.as_recorded(dir), event, data });
        if let Some(Deferred { ticket, .. }) = before {
            self.wal.log().dead(ticket.segment, 1);
        }
        t.deferred.insert(dir.clone(), Deferred { set, ticket });
        ticket.seq
    }

    /// Drops the delayed times of a directory, because a later creation, move or removal in the
    /// directory supersedes them.
    pub(super) fn drop_deferred(&self, t: &mut Table, dir: &Fh) {
        if let Some(Deferred { ticket, .. }) = t.deferred.remove(dir) {
            self.wal.log().append(Record::of(&t.as_recorded(dir), Event::Gone));
            self.wal.log().dead(ticket.segment, 1);
        }
    }

    /// Removes a pending object that is not open. `None`: the server must remove the name.
    pub(super) async fn remove_here(
        &self,
        cx: &RequestContext,
        (dir, name): (&Fh, &Name),
        directory: bool,
    ) -> Result<Option<ChangeInfo>> {
        let Some(fh) = self.table().child(dir, name).cloned() else { return Ok(None) };
        if !self.may_change(cx, dir).await? {
            return Ok(None);
        }
        let done = self.on_here(cx, &fh, |t| {
            let object = t.here.get(&fh)?;
            if object.opens > 0 || (&object.dir, &object.name) != (dir, name) {
                return None;
            }
            match (directory, object.attr.kind == FileKind::Directory) {
                (true, false) => return Some(Err(Error::new(libc::ENOTDIR))),
                (false, true) => return Some(Err(Error::new(libc::EISDIR))),
                _ => {}
            }
            if t.has_names(&fh) {
                return Some(Err(Error::new(libc::ENOTEMPTY)));
            }
            Some(Ok(self.drop_here(t, &fh)))
        })?;
        let Some(done) = done else { return Ok(None) };
        let (info, seq) = done?;
        // A failure of the journal is ignored, since no part of the object is sent any more.
        let _ = self.wal.log().written(seq).await;
        self.room.notify_waiters();
        Ok(Some(info))
    }

    /// Removes an object after a failed attempt, with its possible part at the server. `None` when
    /// no attempt failed.
    pub(super) async fn remove_tried(
        &self,
        cx: &RequestContext,
        (dir, name): (&Fh, &Name),
        directory: bool,
    ) -> Result<Option<ChangeInfo>> {
        let Some(fh) = self.table().child(dir, name).cloned() else { return Ok(None) };
        let is_tried = |t: &mut Table| match t.status(&fh) {
            Status::Here(object) => object.was_tried() && object.is_of(&cx.cred) && object.opens == 0,
            _ => false,
        };
        let real = {
            let mut t = self.table();
            if !is_tried(&mut t) || t.has_names(&fh) {
                return Ok(None);
            }
            let is_dir = t.here.get(&fh).map(|o| o.attr.kind == FileKind::Directory);
            match t.status(dir) {
                Status::There(real) if is_dir == Some(directory) => real,
                _ => return Ok(None),
            }
        };
        // The mark keeps the object from being sent meanwhile.
        if let Some(object) = self.table().here.get_mut(&fh) {
            object.sending = true;
        }
        let removed = if directory {
            self.below.rmdir(cx, &real, name).await
        } else {
            self.below.unlink(cx, &real, name, None).await
        };
        let (info, seq) = {
            let mut t = self.table();
            if let Some(object) = t.here.get_mut(&fh) {
                object.sending = false;
                object.ended.send_modify(|n| *n += 1);
            }
            match removed {
                Err(e) if e.errno != libc::ENOENT => return Err(e),
                _ => {}
            }
            self.drop_here(&mut t, &fh)
        };
        // The record keeps a restarted daemon from creating the object again.
        let _ = self.wal.log().written(seq).await;
        self.room.notify_waiters();
        Ok(Some(info))
    }

    /// Drops a pending object and journals that.
    fn drop_here(&self, t: &mut Table, fh: &Fh) -> (ChangeInfo, u64) {
        let ticket = self.wal.log().append(Record::of(fh, Event::Gone));
        let now = self.clock.now();
        let info = ChangeInfo { atomic: false, before: t.next_change(), after: t.next_change(), attrs: None };
        if let Some(object) = t.here.remove(fh) {
            t.bytes -= object.len_bytes();
            t.stuck -= usize::from(object.retry.is_some());
            t.touch(&object.dir, now);
            t.unbind(&object.dir, &object.name);
            self.drop_deferred(t, &object.dir);
            self.drop_deferred(t, fh);
            object.held.iter().for_each(|(segment, records)| self.wal.log().dead(*segment, *records));
            self.counters.dropped.fetch_add(1, Relaxed);
        }
        (info, ticket.seq)
    }

    /// Whether the caller is known to have the right to change names in a directory.
    async fn may_change(&self, cx: &RequestContext, dir: &Fh) -> Result<bool> {
        let real = match self.table().status(dir) {
            Status::Here(o) => {
                return Ok(o.is_of(&cx.cred) && o.rights().contains(Access::MODIFY | Access::LOOKUP));
            }
            Status::There(real) => real,
            Status::Sending(_) => return Ok(false),
            Status::Refused(errno) => return Err(Error::new(errno)),
        };
        let need = Access::MODIFY | Access::EXTEND | Access::LOOKUP;
        Ok(self.below.access(cx, &real, need).await? == need)
    }

    /// Renames a pending object. `None`: the server must execute the rename.
    pub(super) async fn move_here(
        &self,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        flags: RenameFlags,
    ) -> Result<Option<Moved>> {
        let (moved, target) = {
            let t = self.table();
            (t.child(from.0, from.1).cloned(), t.child(to.0, to.1).cloned())
        };
        let Some(moved) = moved else { return Ok(None) };
        if flags.contains(RenameFlags::EXCHANGE)
            || !self.may_change(cx, from.0).await?
            || !self.may_change(cx, to.0).await?
        {
            return Ok(None);
        }
        if target.is_none() && self.exists(cx, to.0, to.1).await? != Some(false) {
            return Ok(None);
        }
        let done = self.on_here(cx, &moved, |t| {
            if t.child(from.0, from.1) != Some(&moved) || t.child(to.0, to.1) != target.as_ref() {
                return None;
            }
            if let Some(target) = &target {
                if flags.contains(RenameFlags::NOREPLACE) {
                    return Some(Err(Error::new(libc::EEXIST)));
                }
                if target == &moved || !may_replace(t, &cx.cred, &moved, target) {
                    return None;
                }
            }
            // A directory must not move into itself.
            if is_in(t, to.0, &moved) {
                return Some(Err(Error::new(libc::EINVAL)));
            }
            self.rebind(t, &moved, from, to, target.as_ref()).map(Ok)
        })?;
        let Some(done) = done else { return Ok(None) };
        let ((from, to), seq) = done?;
        self.noted(&moved, seq).await?;
        self.room.notify_waiters();
        Ok(Some(Moved { from, to, object: Some(moved), attrs: None }))
    }

    /// Gives a pending object another name, in the place of `target`. Journals that.
    fn rebind(
        &self,
        t: &mut Table,
        moved: &Fh,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        target: Option<&Fh>,
    ) -> Option<((ChangeInfo, ChangeInfo), u64)> {
        let now = self.clock.now();
        let event = Event::Moved(t.as_recorded(to.0));
        let record = Record { fh: moved.clone(), event, data: Data::from(to.1.bytes().clone()) };
        let ticket = self.wal.log().append(record);
        let seq = target.map_or(ticket.seq, |target| self.drop_here(t, target).1);
        let change = t.next_change();
        let object = t.here.get_mut(moved)?;
        object.noted(ticket, true);
        (object.dir, object.name) = (to.0.clone(), to.1.clone());
        (object.attr.ctime, object.attr.change) = (now, change);
        t.touch(from.0, now);
        t.unbind(from.0, from.1);
        t.bind(to.0, to.1, moved);
        t.touch(to.0, now);
        self.drop_deferred(t, from.0);
        self.drop_deferred(t, to.0);
        self.wal.named(moved, to.0, to.1);
        let mut info =
            || ChangeInfo { atomic: false, before: t.next_change(), after: t.next_change(), attrs: None };
        Some(((info(), info()), seq))
    }

    /// Whether a directory has pending names. Such a directory is not empty, even if the server has
    /// no names in it.
    pub(super) fn is_filled(&self, dir: &Fh) -> bool {
        self.table().has_names(dir)
    }

    /// Handle and open of an object at the server. A pending object is sent first.
    pub(super) async fn down(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        open: Option<OpenId>,
    ) -> Result<(Fh, Option<OpenId>)> {
        let real = self.at_server(cx, fh).await?;
        let open = match open {
            Some(id) if Table::is_own(id) => match self.table().opens.get(&id).and_then(|o| o.below) {
                Some(Ok(below)) => Some(below),
                Some(Err(errno)) => return Err(Error::new(errno)),
                None => return Err(Error::new(libc::EBADF)),
            },
            open => open,
        };
        Ok((real, open))
    }

    /// Sends a directory and all pending objects in it.
    pub(super) async fn send_all_in(&self, cx: &RequestContext, dir: &Fh) -> Result<Fh> {
        let real = self.at_server(cx, dir).await?;
        let inside: Vec<Fh> =
            self.table().names.get(dir).map(|names| names.values().cloned().collect()).unwrap_or_default();
        let mut sent = tokio::task::JoinSet::new();
        for (fh, ended) in self.start(&inside) {
            let this = self.this();
            sent.spawn(async move { this.follow(fh, Some(ended)).await });
        }
        // Errors of these objects are reported to the programs that created them.
        patient(cx, async { Ok(sent.join_all().await) }).await?;
        Ok(real)
    }

    pub(super) fn attrs_here(&self, fh: &Fh) -> Option<Attrs> {
        let t = self.table();
        let mut attrs = t.here.get(fh)?.attrs();
        t.show(fh, &mut attrs);
        Some(attrs)
    }
}

/// Whether a caller may replace one pending object by another.
fn may_replace(t: &Table, cred: &Cred, moved: &Fh, target: &Fh) -> bool {
    let plain = |o: &Object| matches!(o.body, Body::File(_) | Body::Link(_));
    let is_replaceable =
        |o: &Object| plain(o) && o.opens == 0 && !o.sending && !o.was_tried() && o.is_of(cred);
    t.here.get(target).is_some_and(is_replaceable) && t.here.get(moved).is_some_and(plain)
}

/// Whether `dir` is the pending object `top` or lies below it.
fn is_in(t: &Table, dir: &Fh, top: &Fh) -> bool {
    let mut above = dir;
    while let Some(object) = t.here.get(above) {
        if above == top {
            return true;
        }
        above = &object.dir;
    }
    false
}
