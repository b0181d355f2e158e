//! LOCK, LOCKT and LOCKU, and operations on stateids.
//!
//! The server's own table decides conflicts, because the reply names the owner of the conflicting
//! lock. The server also takes each lock in the layer below, where that has locks. The origin of a
//! gateway has, and its other clients respect them. A local directory has none. A client that wants
//! to wait repeats its LOCK. CB_NOTIFY_LOCK tells the client when the lock may be free.

use super::exec::{Exec, Object};
use super::ranges::RangeLock;
use super::state::{FileState, Locks, Open, State, Waiter};
use crate::error::stat4;
use crate::scarcity;
use bytes::Bytes;
use hither_proto::nfs4::{
    CbNotifyLockArgs, CbOp, LockArgs, LockDenied, LockFail, LockType, Locker, LocktArgs, LockuArgs, Nfsstat4,
    StateOwner, Stateid, TestStateidArgs, TestStateidOk, open,
};
use hither_vfs::{FileKind, FileRange, LockConflict, LockKind, LockOwner, LockWait, OpenAccess};
use parking_lot::Mutex;
use std::sync::Arc;

/// Owner of a lock that this server did not grant.
const STRANGER: &[u8] = b"another program";
/// Most waiting lock-owners of a file that get CB_NOTIFY_LOCK. The others repeat their LOCK without
/// it.
const WAITERS_MAX: usize = 256;

impl Exec<'_> {
    pub(super) async fn lock(&mut self, a: &LockArgs) -> Result<Stateid, LockFail> {
        let locked = self.lock_or_reclaim(a).await;
        locked.map_err(|fail| match fail {
            LockFail::Denied(_) if a.reclaim => Nfsstat4::RECLAIM_CONFLICT.into(),
            fail => fail,
        })
    }

    async fn lock_or_reclaim(&mut self, a: &LockArgs) -> Result<Stateid, LockFail> {
        let o = self.object(Nfsstat4::ISDIR)?;
        let wanted = (kind(a.locktype)?, range(a.offset, a.length)?);
        self.check_grace(a.reclaim)?;
        let before = scarcity::times();
        loop {
            match self.try_lock(&o, a, wanted).await {
                Ok(Tried::Taken(stateid)) => {
                    self.stateid = Some(stateid);
                    return Ok(stateid);
                }
                Ok(Tried::InTheWay(held, holder)) => self.give_way(held, &holder).await?,
                Err(LockFail::Status(status)) => {
                    return Err(self.relieved(status, before).await.into());
                }
                Err(denied) => return Err(denied),
            }
        }
    }

    /// Takes a lock unless it conflicts.
    async fn try_lock(
        &self,
        o: &Object,
        a: &LockArgs,
        wanted: (LockKind, FileRange),
    ) -> Result<Tried, LockFail> {
        let client = self.client()?;
        let id = match &a.locker {
            Locker::Existing(e) => e.lock_stateid,
            Locker::New(n) => n.open_stateid,
        };
        let state = self.nfs.registry.find(&client, &self.actual(&id)?)?;
        let file = &state.file().ok_or(Nfsstat4::BAD_STATEID)?;
        let _order = file.order.lock().await;
        let (locks, open) = self.locks_of(o, &a.locker, wanted.0)?;
        let waiter = Waiter { client, owner: locks.owner.clone(), minor: self.minor };
        let waits = matches!(a.locktype, LockType::READW | LockType::WRITEW);
        // The owner is added before the attempt, so that no release is missed.
        let waits = waits && add_waiter(file, &waiter);
        let tried = self.take(o, (&locks, &open), wanted).await;
        let denied = matches!(tried, Ok(Tried::InTheWay(..)) | Err(LockFail::Denied(_)));
        if waits && !denied {
            remove_waiter(file, &waiter);
        }
        // An owner that never held a lock is removed.
        if *locks.seqid.lock() == 0 {
            self.nfs.registry.release_locks(&locks);
        }
        tried
    }

    /// The owner's locks on the file, created with the first lock, and the open through which the
    /// owner takes the lock. The caller holds the file's `order`.
    fn locks_of(
        &self,
        o: &Object,
        locker: &Locker,
        kind: LockKind,
    ) -> Result<(Arc<Locks>, Arc<Open>), Nfsstat4> {
        let client = self.client()?;
        let registry = &self.nfs.registry;
        let need = match kind {
            LockKind::Read => open::SHARE_ACCESS_READ,
            LockKind::Write => open::SHARE_ACCESS_WRITE,
        };
        let (locks, open) = match locker {
            Locker::Existing(e) => match registry.find(&client, &self.actual(&e.lock_stateid)?)? {
                State::Locks(l) => (Some(l.clone()), l.open_for(need)),
                State::Open(_) | State::Delegation(_) => return Err(Nfsstat4::BAD_STATEID),
            },
            Locker::New(n) => match registry.find(&client, &self.actual(&n.open_stateid)?)? {
                State::Open(open) => (registry.locks_of(&client, &open.file, &n.lock_owner.owner), open),
                State::Locks(_) | State::Delegation(_) => return Err(Nfsstat4::BAD_STATEID),
            },
        };
        if open.file.key != o.key() {
            return Err(Nfsstat4::BAD_STATEID);
        }
        if open.inner.lock().access & need == 0 {
            return Err(Nfsstat4::OPENMODE);
        }
        let locks = match (locks, locker) {
            (Some(locks), _) => locks,
            (None, Locker::New(n)) => self.new_locks(&open, &n.lock_owner.owner)?,
            (None, Locker::Existing(_)) => return Err(Nfsstat4::BAD_STATEID),
        };
        Ok((locks, open))
    }

    fn new_locks(&self, open: &Arc<Open>, owner: &Bytes) -> Result<Arc<Locks>, Nfsstat4> {
        let registry = &self.nfs.registry;
        self.check_room()?;
        let locks = Arc::new(Locks {
            other: registry.other(),
            client: open.client.clone(),
            owner: Bytes::copy_from_slice(owner),
            number: registry.number(),
            opens: Mutex::new(smallvec::smallvec![open.clone()]),
            seqid: Mutex::new(0),
        });
        registry.add(State::Locks(locks.clone()))?;
        open.file.lockers.lock().push(locks.clone());
        Ok(locks)
    }

    /// Takes a lock in the server's table and in the layer below. The caller holds the file's
    /// `order`.
    async fn take(
        &self,
        o: &Object,
        (locks, open): (&Arc<Locks>, &Arc<Open>),
        (kind, range): (LockKind, FileRange),
    ) -> Result<Tried, LockFail> {
        let file = &open.file;
        if let Some((held, holder)) = in_the_way(file, locks.number, kind, range)? {
            return Ok(Tried::InTheWay(held, holder));
        }
        if !file.ranges.lock().has_room() {
            // NFSv4.1 has no status for too many locks, and trying again does not help.
            return Err(Nfsstat4::SERVERFAULT.into());
        }
        self.take_below(o, (locks, open), kind, range).await?;
        locks.bind(open);
        file.ranges.lock().take(locks.number, kind, range);
        Ok(Tried::Taken(locks.changed()))
    }

    /// Ends the state of a conflicting client when its lease has expired. Otherwise denies the
    /// lock.
    async fn give_way(&self, held: RangeLock, holder: &Locks) -> Result<(), LockFail> {
        if self.nfs.end_courtesy(&holder.client).await {
            return Ok(());
        }
        let owner = StateOwner { clientid: holder.client.id, owner: holder.owner.clone().into() };
        Err(LockFail::Denied(denied(held.kind, held.range, owner)))
    }

    async fn take_below(
        &self,
        o: &Object,
        (locks, open): (&Locks, &Open),
        kind: LockKind,
        range: FileRange,
    ) -> Result<(), LockFail> {
        let vfs = &o.export.vfs;
        let needed = match kind {
            LockKind::Read => OpenAccess::READ,
            LockKind::Write => OpenAccess::WRITE,
        };
        let file = o.file(open.below(needed).map(|b| b.id));
        let owner = LockOwner { id: locks.number, flock: false };
        match vfs.lock(&o.cx, file, owner, kind, range, LockWait::No).await {
            Ok(_) => Ok(()),
            // The layer below has no locks, so no other program can take one.
            Err(e) if matches!(e.errno, libc::EOPNOTSUPP | libc::ENOSYS) => Ok(()),
            Err(e) if matches!(e.errno, libc::EAGAIN | libc::EACCES) => {
                let found = vfs.test_lock(&o.cx, file, owner, kind, range).await.ok().flatten();
                let LockConflict { kind, range, .. } = found.unwrap_or(LockConflict { kind, range, pid: 0 });
                let owner = StateOwner { clientid: 0, owner: Bytes::from_static(STRANGER).into() };
                Err(LockFail::Denied(denied(kind, range, owner)))
            }
            Err(e) => Err(stat4(&e).into()),
        }
    }

    pub(super) async fn lockt(&mut self, a: &LocktArgs) -> Result<(), LockFail> {
        let o = self.object(Nfsstat4::ISDIR)?;
        let (kind, range) = (kind(a.locktype)?, range(a.offset, a.length)?);
        if self.nfs.in_grace() {
            return Err(Nfsstat4::GRACE.into());
        }
        let client = self.client()?;
        let registry = &self.nfs.registry;
        let file = registry.file(&o.key());
        if file.is_none() {
            // No client has the file open, so the object may be of any kind.
            match self.attrs(&o).await?.attr.kind {
                FileKind::Regular => {}
                FileKind::Directory => return Err(Nfsstat4::ISDIR.into()),
                FileKind::Symlink => return Err(Nfsstat4::SYMLINK.into()),
                _ => return Err(Nfsstat4::WRONG_TYPE.into()),
            }
        }
        let own = file.as_ref().and_then(|f| registry.locks_of(&client, f, &a.owner.owner));
        let number = own.as_ref().map_or(0, |l| l.number);
        if let Some(file) = &file {
            loop {
                let found = {
                    let _order = file.order.lock().await;
                    in_the_way(file, number, kind, range)?
                };
                let Some((held, holder)) = found else { break };
                self.give_way(held, &holder).await?;
            }
        }
        let owner = LockOwner { id: number, flock: false };
        match o.export.vfs.test_lock(&o.cx, o.file(None), owner, kind, range).await {
            Ok(Some(found)) => {
                let owner = StateOwner { clientid: 0, owner: Bytes::from_static(STRANGER).into() };
                Err(LockFail::Denied(denied(found.kind, found.range, owner)))
            }
            Ok(None) => Ok(()),
            Err(e) if matches!(e.errno, libc::EOPNOTSUPP | libc::ENOSYS) => Ok(()),
            Err(e) => Err(stat4(&e).into()),
        }
    }

    pub(super) async fn locku(&mut self, a: &LockuArgs) -> Result<Stateid, Nfsstat4> {
        let o = self.object(Nfsstat4::ISDIR)?;
        let range = range(a.offset, a.length)?;
        let client = self.client()?;
        let id = self.actual(&a.lock_stateid)?;
        let state = self.nfs.registry.find(&client, &id)?;
        let file = &state.file().ok_or(Nfsstat4::BAD_STATEID)?;
        let stateid = {
            let _order = file.order.lock().await;
            let State::Locks(locks) = self.nfs.registry.find(&client, &id)? else {
                return Err(Nfsstat4::BAD_STATEID);
            };
            if file.key != o.key() {
                return Err(Nfsstat4::BAD_STATEID);
            }
            let owner = LockOwner { id: locks.number, flock: false };
            let below = locks.open_for(0).inner.lock().below.first().cloned();
            let of = o.file(below.as_ref().map(|b| b.id));
            match o.export.vfs.unlock(&o.cx, of, owner, range).await {
                Ok(()) => {}
                Err(e) if matches!(e.errno, libc::EOPNOTSUPP | libc::ENOSYS) => {}
                Err(e) => return Err(stat4(&e)),
            }
            file.ranges.lock().release(locks.number, range);
            locks.changed()
        };
        tell_waiters(file);
        self.stateid = Some(stateid);
        Ok(stateid)
    }

    pub(super) fn test_stateid(&self, ids: &TestStateidArgs) -> Result<TestStateidOk, Nfsstat4> {
        let client = self.client()?;
        let test = |id: &Stateid| {
            if id.is_special() {
                Nfsstat4::BAD_STATEID
            } else {
                match self.nfs.registry.find(&client, id) {
                    Ok(State::Delegation(d)) if d.is_revoked() => Nfsstat4::DELEG_REVOKED,
                    Ok(_) => Nfsstat4::OK,
                    Err(status) => status,
                }
            }
        };
        Ok(ids.iter().map(test).collect::<Vec<_>>().into())
    }

    pub(super) async fn free_stateid(&mut self, id: &Stateid) -> Result<(), Nfsstat4> {
        let client = self.client()?;
        let registry = &self.nfs.registry;
        let id = self.actual(id)?;
        let locks = match registry.find(&client, &id)? {
            State::Open(_) => return Err(Nfsstat4::LOCKS_HELD),
            State::Delegation(d) if !d.is_revoked() => return Err(Nfsstat4::LOCKS_HELD),
            State::Delegation(d) => {
                self.nfs.leases.end(registry, &d);
                return Ok(());
            }
            State::Locks(locks) => locks,
        };
        let file = locks.file();
        let _order = file.order.lock().await;
        // The owner may have locked again under the same stateid. A Linux client frees a stateid
        // while the next process with the same owner takes a lock.
        registry.find(&client, &id)?;
        if file.ranges.lock().holds(locks.number) {
            return Err(Nfsstat4::LOCKS_HELD);
        }
        registry.release_locks(&locks);
        Ok(())
    }
}

/// The result of an attempt to lock.
enum Tried {
    Taken(Stateid),
    /// A conflicting lock of another owner.
    InTheWay(RangeLock, Arc<Locks>),
}

/// A conflicting lock of another owner, and that owner. The caller holds the file's `order`.
fn in_the_way(
    file: &FileState,
    owner: u64,
    kind: LockKind,
    range: FileRange,
) -> Result<Option<(RangeLock, Arc<Locks>)>, Nfsstat4> {
    let Some(held) = file.ranges.lock().conflict(owner, kind, range) else { return Ok(None) };
    let holder = file.lockers.lock().iter().find(|l| l.number == held.owner).cloned();
    // Ranges are removed before their owner, and both under `order`, so every range has an owner.
    holder.map(|holder| Some((held, holder))).ok_or(Nfsstat4::SERVERFAULT)
}

fn is_it(a: &Waiter, b: &Waiter) -> bool {
    a.client.id == b.client.id && a.owner == b.owner
}

fn add_waiter(file: &FileState, waiter: &Waiter) -> bool {
    let mut waiters = file.waiters.lock();
    if waiters.len() >= WAITERS_MAX {
        return false;
    }
    if !waiters.iter().any(|w| is_it(w, waiter)) {
        waiters.push(waiter.clone());
    }
    true
}

fn remove_waiter(file: &FileState, waiter: &Waiter) {
    file.waiters.lock().retain(|w| !is_it(w, waiter));
}

/// Sends one CB_NOTIFY_LOCK to each waiting owner after a release.
pub(super) fn tell_waiters(file: &FileState) {
    for waiter in std::mem::take(&mut *file.waiters.lock()) {
        let Some(session) = waiter.client.sessions().into_iter().find(|s| s.back_is_up()) else { continue };
        let fh = crate::handle::object(file.key.0, &file.key.1).into();
        let lock_owner = StateOwner { clientid: waiter.client.id, owner: waiter.owner.into() };
        let op = CbOp::NotifyLock(CbNotifyLockArgs { fh, lock_owner });
        tokio::spawn(async move { session.call_back(waiter.minor, op).await.map(drop) });
    }
}

fn denied(kind: LockKind, range: FileRange, owner: StateOwner) -> LockDenied {
    LockDenied {
        offset: range.start_bytes,
        length: match range.end_bytes {
            u64::MAX => u64::MAX,
            end => end - range.start_bytes,
        },
        locktype: match kind {
            LockKind::Read => LockType::READ,
            LockKind::Write => LockType::WRITE,
        },
        owner,
    }
}

fn kind(t: LockType) -> Result<LockKind, Nfsstat4> {
    match t {
        LockType::READ | LockType::READW => Ok(LockKind::Read),
        LockType::WRITE | LockType::WRITEW => Ok(LockKind::Write),
        _ => Err(Nfsstat4::INVAL),
    }
}

fn range(offset: u64, length: u64) -> Result<FileRange, Nfsstat4> {
    match length {
        0 => Err(Nfsstat4::INVAL),
        u64::MAX => Ok(FileRange { start_bytes: offset, end_bytes: u64::MAX }),
        _ => {
            let end_bytes = offset.checked_add(length).ok_or(Nfsstat4::INVAL)?;
            Ok(FileRange { start_bytes: offset, end_bytes })
        }
    }
}
