//! Byte-range locks: LOCK, LOCKT and LOCKU.
//!
//! A lock belongs to an [`OpenState`] and a `LockOwner`. Its ranges are remembered to reclaim them.
//! flock(2) locks are locks on the whole file under separate owners. `lock_authority` decides
//! whether the server is asked at all. A waiting caller retries with growing intervals. A local
//! unlock and the server's CB_NOTIFY_LOCK wake the waiting callers.

use super::attrs::NODE_ATTRS;
use super::call::{Answer, Backoff, Compound};
use super::core::Core;
use super::fail::{Answered, Fail, is_state_lost};
use super::lock_authority::Decided;
use super::state::{FileInner, Further, OpenEntry, OpenState, wire_fh};
use hither_proto::nfs4::{
    ExistLockOwner, LockArgs, LockDenied, LockFail, LockType, Locker, LocktArgs, Nfsstat4, Op,
    OpenToLockOwner, Stateid, op,
};
use hither_vfs::{
    Access, Attrs, Error, Fh, FileRange, LockConflict, LockKind, LockOwner, LockRanges, LockWait, OpenAccess,
    OpenHow, OpenId, RequestContext,
};
use parking_lot::Mutex;
use std::sync::Arc;

/// Tries before a repeatedly lost state is given up.
const STATE_TRIES: u32 = 5;
/// Owners without locks that an open keeps at the server. When there are more, the client frees
/// them.
const IDLE_OWNERS: usize = 64;

/// The locks of one owner on one open.
pub(crate) struct LockState {
    /// The owner of the locks.
    pub owner: LockOwner,
    pub inner: Mutex<LockInner>,
    /// One LOCK or LOCKU at a time, so that the remembered ranges equal the server's.
    serial: tokio::sync::Mutex<()>,
}

/// The mutable part of a [`LockState`].
#[derive(Default)]
pub(crate) struct LockInner {
    /// `None` before the first lock.
    pub stateid: Option<Stateid>,
    /// The ranges that are held.
    pub ranges: LockRanges,
    /// The locks are decided in the client. The server does not know them.
    pub here: bool,
    /// The ranges that could not be recovered. Until the owner unlocks them, I/O fails.
    pub lost: LockRanges,
}

impl LockInner {
    /// Marks all ranges as lost.
    pub fn lose(&mut self) {
        self.here = false;
        for (range, kind) in std::mem::take(&mut self.ranges).iter() {
            self.lost.lock(range, kind);
        }
    }
}

impl LockState {
    /// The state of `owner` without locks.
    pub fn new(owner: LockOwner) -> Arc<Self> {
        Arc::new(Self { owner, inner: Mutex::default(), serial: tokio::sync::Mutex::default() })
    }

    /// Records a lock that the server granted.
    fn granted(&self, stateid: Stateid, range: FileRange, kind: LockKind) {
        let mut inner = self.inner.lock();
        inner.stateid = Some(stateid);
        inner.ranges.lock(range, kind);
    }
}

/// Outcome of one attempt to lock.
enum Attempt {
    /// With the file's attributes under the lock, when the server returned them.
    Granted(Option<Attrs>),
    Taken,
}

impl Core {
    /// Takes or changes a lock. Returns the attributes of the file under the lock, unless the lock
    /// was decided here.
    pub async fn lock(
        self: &Arc<Self>,
        cx: &RequestContext,
        open: Option<OpenId>,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
        wait: LockWait,
    ) -> Answered<Option<Attrs>> {
        let entry = self.files.entry(open.ok_or_else(|| Error::new(libc::EBADF))?)?;
        let needed = match kind {
            LockKind::Read => OpenAccess::READ,
            LockKind::Write => OpenAccess::WRITE,
        };
        if !entry.access.contains(needed) {
            if !owner.flock {
                return Err(Error::new(libc::EBADF).into());
            }
            self.open_for_flock(&entry, needed).await?;
        }
        let mut backoff = Backoff::LOCK;
        loop {
            // The caller subscribes before the attempt, so that no wake-up between the two is
            // missed.
            let woken = self.files.lock_freed.notified();
            let released = entry.state.file.lock_freed.notified();
            match self.try_lock(cx, &entry.state, owner, kind, range, wait).await? {
                Attempt::Granted(attrs) => return Ok(attrs),
                Attempt::Taken if wait == LockWait::No => return Err(Error::new(libc::EAGAIN).into()),
                Attempt::Taken => {}
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.step()) => {}
                () = woken => {}
                () = released => {}
                () = cx.cancel.cancelled() => return Err(Error::new(libc::EINTR).into()),
            }
        }
    }

    /// Adds `needed` to the access of an open, once. flock(2) allows either kind of lock on every
    /// descriptor. LOCK needs a stateid opened for writing, or for reading (RFC 8881 section
    /// 18.10.3). The further open lasts as long as `entry`, so recovery opens the file again with
    /// both.
    ///
    /// # Errors
    /// `EBADF`, as in flock(2) for NFS, when the opener has no right to that access.
    async fn open_for_flock(self: &Arc<Self>, entry: &OpenEntry, needed: OpenAccess) -> Answered<()> {
        let mut further = entry.further.lock().await;
        match *further {
            Further::Open(_) => return Ok(()),
            Further::Closed => return Err(Error::new(libc::EBADF).into()),
            Further::None => {}
        }
        let cx = RequestContext::new(entry.state.cred.clone());
        let refused =
            || Error::because(libc::EBADF, "the file cannot be opened with the access that this lock needs");
        // A server may not check rights when an open of the same owner gets more access
        // (nfs-ganesha).
        let right = Access::MODIFY;
        if needed == OpenAccess::WRITE
            && !self.access(&cx, &entry.state.file.fh, right).await?.contains(right)
        {
            return Err(refused().into());
        }
        match self.open_by_handle(&cx, &entry.state.file.fh, &OpenHow::existing(needed)).await {
            Ok(opened) => {
                *further = Further::Open(opened.open);
                Ok(())
            }
            Err(Fail::Nfs(Nfsstat4::ACCESS | Nfsstat4::PERM | Nfsstat4::ROFS)) => Err(refused().into()),
            Err(f) => Err(f),
        }
    }

    async fn try_lock(
        self: &Arc<Self>,
        cx: &RequestContext,
        state: &Arc<OpenState>,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
        wait: LockWait,
    ) -> Answered<Attempt> {
        for _ in 0..STATE_TRIES {
            // A CLOSE, overtaken by an open by name of this client, ended the state.
            if state.is_bare() {
                self.open_again(state).await;
            }
            let decide = |file: &FileInner| file.take_lock(state, owner, kind, range);
            let _asking = match self.decide_lock(&state.file, false, decide).await? {
                Decided::Here(taken) => {
                    return Ok(if taken? { Attempt::Granted(None) } else { Attempt::Taken });
                }
                Decided::Server(asking) => asking,
            };
            // Looked up for each try: the owner's lock state ends with the open that it was for.
            let lock = lock_state(state, owner);
            let _one = lock.serial.lock().await;
            let (locker, used) = self.locker(state, &lock)?;
            let args = LockArgs {
                locktype: lock_type(kind, wait),
                reclaim: false,
                offset: range.start_bytes,
                length: length(range),
                locker,
            };
            let fh = &state.file.fh;
            let ops = [Op::Putfh(wire_fh(fh)), Op::Lock(args), Op::Getattr(NODE_ATTRS)];
            let c = Compound::new("LOCK", ops).wishes_from(2);
            let mut answer = self.compound(cx, c).await?;
            answer.results.putfh()?;
            match answer.results.outcome::<op::Lock>()? {
                Ok(stateid) => {
                    lock.granted(stateid, range, kind);
                    state.inner.lock().locks.entry(owner).or_insert_with(|| lock.clone());
                    let Ok(wire) = answer.results.getattr() else { return Ok(Attempt::Granted(None)) };
                    return Ok(Attempt::Granted(self.attrs(fh, &wire, answer.asked).await.ok()));
                }
                Err(LockFail::Denied(_)) => return Ok(Attempt::Taken),
                Err(LockFail::Status(s)) if is_state_lost(s) => self.state_lost(state, &used).await,
                Err(LockFail::Status(Nfsstat4::OLD_STATEID)) => {}
                Err(LockFail::Status(s)) => return Err(Fail::Nfs(s)),
            }
        }
        Err(Error::because(libc::EIO, "the server repeatedly loses the open of a lock").into())
    }

    fn locker(&self, state: &OpenState, lock: &LockState) -> Answered<(Locker, Stateid)> {
        if let Some(stateid) = lock.inner.lock().stateid {
            let lock_stateid = stateid.any_seqid();
            return Ok((Locker::Existing(ExistLockOwner { lock_stateid, lock_seqid: 0 }), stateid));
        }
        let inner = state.inner.lock();
        if let Some(lost) = &inner.lost {
            return Err(lost.clone().into());
        }
        let stateid = inner.stateid.ok_or_else(|| Error::new(libc::EBADF))?;
        let locker = Locker::New(OpenToLockOwner {
            open_seqid: 0,
            open_stateid: stateid.any_seqid(),
            lock_seqid: 0,
            lock_owner: self.files.lock_owner(lock.owner),
        });
        Ok((locker, stateid))
    }

    /// Releases the locks of `owner` in `range` on the file, for every open.
    pub async fn unlock(self: &Arc<Self>, fh: &Fh, owner: LockOwner, range: FileRange) -> Answered<()> {
        let Some(file) = self.files.file(fh) else { return Ok(()) };
        let _asking = match self.decide_lock(&file, true, |file| file.release_lock(owner, range)).await? {
            Decided::Here(()) => {
                file.lock_freed.notify_waiters();
                return Ok(());
            }
            Decided::Server(asking) => asking,
        };
        let states: Vec<_> = file.inner.lock().states.values().cloned().collect();
        for state in states {
            let lock = state.inner.lock().locks.get(&owner).cloned();
            if let Some(lock) = lock {
                self.unlock_state(&state, &lock, range).await?;
                self.free_idle(&state).await;
            }
        }
        Ok(())
    }

    /// Releases all locks on an open that is about to be closed.
    pub async fn drop_locks(self: &Arc<Self>, state: &Arc<OpenState>) {
        // Locks decided in the client ended with the last open.
        let Ok(Decided::Server(_asking)) = self.decide_lock(&state.file, true, |_| ()).await else { return };
        let locks: Vec<_> = state.inner.lock().locks.values().cloned().collect();
        for lock in locks {
            let all = FileRange { start_bytes: 0, end_bytes: u64::MAX };
            if let Err(f) = self.unlock_state(state, &lock, all).await {
                tracing::debug!("unlocking before CLOSE: {}", Error::from(f));
            }
        }
    }

    async fn unlock_state(
        self: &Arc<Self>,
        state: &Arc<OpenState>,
        lock: &Arc<LockState>,
        range: FileRange,
    ) -> Answered<()> {
        let _one = lock.serial.lock().await;
        loop {
            let stateid = {
                let mut inner = lock.inner.lock();
                // The server may have a part of the locks that count as lost.
                let is_locked = !inner.ranges.is_free(range) || !inner.lost.is_free(range);
                inner.lost.unlock(range);
                match inner.stateid {
                    Some(stateid) if is_locked => stateid,
                    _ => {
                        inner.ranges.unlock(range);
                        return Ok(());
                    }
                }
            };
            let op = Op::locku(stateid.any_seqid(), LockType::WRITE, range.start_bytes, length(range));
            let c = Compound::new("LOCKU", [Op::Putfh(wire_fh(&state.file.fh)), op]);
            let done =
                self.compound(&RequestContext::new(state.cred.clone()), c).await.and_then(|mut answer| {
                    answer.results.putfh()?;
                    Ok(answer.results.locku()?)
                });
            let mut inner = lock.inner.lock();
            match done {
                Ok(new) => {
                    inner.stateid = Some(new);
                    inner.ranges.unlock(range);
                    state.file.lock_freed.notify_waiters();
                    return Ok(());
                }
                Err(f) if f.status() == Some(Nfsstat4::OLD_STATEID) => {}
                // The lock was recovered under another stateid: unlock that one.
                Err(f) if is_lost(&f) && inner.stateid.is_some_and(|s| s.other != stateid.other) => {}
                // The server no longer has the lock, as requested.
                Err(f) if is_lost(&f) => {
                    inner.ranges.unlock(range);
                    return Ok(());
                }
                Err(f) => return Err(f),
            }
        }
    }

    /// Frees lock owners without locks at the server, when there are many.
    async fn free_idle(self: &Arc<Self>, state: &Arc<OpenState>) {
        let freed: Vec<Stateid> = {
            let mut inner = state.inner.lock();
            if inner.locks.len() <= IDLE_OWNERS {
                return;
            }
            let mut freed = Vec::new();
            inner.locks.retain(|_, lock| {
                // A concurrent LOCK holds a clone.
                let lock_inner = lock.inner.lock();
                let idle = lock_inner.ranges.is_empty()
                    && lock_inner.lost.is_empty()
                    && Arc::strong_count(lock) == 1;
                if idle {
                    freed.extend(lock_inner.stateid);
                }
                !idle
            });
            freed
        };
        for stateid in freed {
            self.free_stateid(&stateid).await;
        }
    }

    /// A conflicting lock of another owner.
    pub async fn test_lock(
        self: &Arc<Self>,
        cx: &RequestContext,
        fh: &Fh,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
    ) -> Answered<Option<LockConflict>> {
        if let Some(file) = self.files.file(fh)
            && let Decided::Here(found) =
                self.decide_lock(&file, false, |file| file.conflict(owner, kind, range)).await?
        {
            return Ok(found);
        }
        let args = LocktArgs {
            locktype: lock_type(kind, LockWait::No),
            offset: range.start_bytes,
            length: length(range),
            owner: self.files.lock_owner(owner),
        };
        let c = Compound::new("LOCKT", [Op::Putfh(wire_fh(fh)), Op::Lockt(args)]);
        let mut answer: Answer = self.compound(cx, c).await?;
        answer.results.putfh()?;
        match answer.results.outcome::<op::Lockt>()? {
            Ok(()) => Ok(None),
            Err(LockFail::Denied(denied)) => Ok(Some(conflict(&denied))),
            Err(LockFail::Status(s)) => Err(Fail::Nfs(s)),
        }
    }
}

fn is_lost(f: &Fail) -> bool {
    f.status().is_some_and(is_state_lost)
}

fn lock_state(state: &OpenState, owner: LockOwner) -> Arc<LockState> {
    state.inner.lock().locks.entry(owner).or_insert_with(|| LockState::new(owner)).clone()
}

fn lock_type(kind: LockKind, wait: LockWait) -> LockType {
    match (kind, wait) {
        (LockKind::Read, LockWait::No) => LockType::READ,
        (LockKind::Write, LockWait::No) => LockType::WRITE,
        (LockKind::Read, LockWait::Yes) => LockType::READW,
        (LockKind::Write, LockWait::Yes) => LockType::WRITEW,
    }
}

/// Length on the wire: all ones means "to the end". A range to the greatest offset of a program has
/// the same length.
pub(crate) fn length(range: FileRange) -> u64 {
    match range.end_bytes {
        end if end > i64::MAX as u64 => u64::MAX,
        end => end.saturating_sub(range.start_bytes),
    }
}

fn conflict(denied: &LockDenied) -> LockConflict {
    let kind = match denied.locktype {
        LockType::READ | LockType::READW => LockKind::Read,
        _ => LockKind::Write,
    };
    // The holder's process id is not part of the protocol, even for locks of this machine.
    LockConflict { kind, range: held_range(denied.offset, denied.length), pid: 0 }
}

/// The range of a lock in the server's reply. The length of a lock to the end of the file is all
/// ones. nfs-ganesha sends 0, as fcntl(2) does. A range never ends before its first byte, with any
/// reply.
fn held_range(offset: u64, length: u64) -> FileRange {
    let start_bytes = offset.min(u64::MAX - 1);
    let end_bytes = if length == 0 { u64::MAX } else { start_bytes.saturating_add(length) };
    FileRange { start_bytes, end_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of numbers from a server gives at least one byte. Common pairs give the right
    /// bytes.
    #[test]
    fn denied_ranges_are_never_empty() {
        let edges = [0, 1, 4096, i64::MAX as u64 - 1, i64::MAX as u64, 1 << 63, u64::MAX - 1, u64::MAX];
        for (offset, len) in edges.iter().flat_map(|o| edges.map(|l| (*o, l))) {
            let denied = LockDenied {
                offset,
                length: len,
                locktype: LockType::WRITE,
                owner: hither_proto::nfs4::StateOwner { clientid: 0, owner: bytes::Bytes::new().into() },
            };
            let FileRange { start_bytes, end_bytes } = conflict(&denied).range;
            assert!(start_bytes < end_bytes, "{offset} {len}");
            let to_the_end = len == 0 || offset.checked_add(len).is_none();
            assert_eq!(end_bytes == u64::MAX, to_the_end || offset + len == u64::MAX, "{offset} {len}");
        }
        assert_eq!(held_range(10, 20), FileRange { start_bytes: 10, end_bytes: 30 });
        assert_eq!(held_range(10, 0), FileRange { start_bytes: 10, end_bytes: u64::MAX });
    }
}
