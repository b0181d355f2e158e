//! LOCK, LOCKT and LOCKU, and what clients ask about stateids.
//!
//! The server's own table says who is in whose way, because the answer names the owner. The layer below is told as well, so that
//! whoever else uses the files (local programs, another server) respects the locks. Clients that want to wait ask again; they are
//! told when that is worth it (CB_NOTIFY_LOCK).

use super::exec::{Exec, Object};
use super::ranges::Held;
use super::state::{FileState, Locks, Open, State, Waiter};
use super::unlock_below;
use crate::error::stat4;
use bytes::Bytes;
use hither_proto::nfs4::{
    CbNotifyLockArgs, CbOp, LockArgs, LockDenied, LockFail, LockType, Locker, LocktArgs, LockuArgs, Nfsstat4,
    StateOwner, Stateid, TestStateidArgs, TestStateidOk, open,
};
use hither_vfs::{FileRange, LockConflict, LockKind, LockOwner, LockWait};
use parking_lot::Mutex;
use std::sync::Arc;

/// Whoever holds a lock that this server did not give.
const STRANGER: &[u8] = b"another program";
/// Most lock-owners of a file that are told; the others ask again by themselves.
const WAITERS_MAX: usize = 256;

impl Exec<'_> {
    pub(super) async fn lock(&mut self, a: &LockArgs) -> Result<Stateid, LockFail> {
        let o = self.object(Nfsstat4::ISDIR)?;
        let (kind, range) = (kind(a.locktype)?, range(a.offset, a.length)?);
        self.check_grace(a.reclaim)?;
        let locks = self.locks_of(&o, &a.locker, kind)?;
        let waiter = Waiter { client: locks.client.clone(), owner: locks.owner.clone(), minor: self.minor };
        let waits = matches!(a.locktype, LockType::READW | LockType::WRITEW);
        // Before the attempt, so that no release is missed.
        let waits = waits && add_waiter(&locks.open.file, &waiter);
        let result = self.take(&o, &locks, kind, range).await;
        if waits && !matches!(result, Err(LockFail::Denied(_))) {
            remove_waiter(&locks.open.file, &waiter);
        }
        match result {
            Ok(()) => {
                let stateid = locks.changed();
                self.stateid = Some(stateid);
                Ok(stateid)
            }
            Err(fail) => {
                // An owner that got nothing was not there.
                if *locks.seqid.lock() == 0 {
                    self.nfs.registry.release_locks(&locks);
                }
                Err(fail)
            }
        }
    }

    /// The owner's locks on the file, made when these are the first.
    fn locks_of(&self, o: &Object, locker: &Locker, kind: LockKind) -> Result<Arc<Locks>, Nfsstat4> {
        let client = self.client()?;
        let registry = &self.nfs.registry;
        let (locks, open) = match locker {
            Locker::Existing(e) => match registry.find(&client, &self.actual(&e.lock_stateid)?)? {
                State::Locks(l) => (Some(l.clone()), l.open.clone()),
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
        let need = match kind {
            LockKind::Read => open::SHARE_ACCESS_READ,
            LockKind::Write => open::SHARE_ACCESS_WRITE,
        };
        if open.inner.lock().access & need == 0 {
            return Err(Nfsstat4::OPENMODE);
        }
        match (locks, locker) {
            (Some(locks), _) => Ok(locks),
            (None, Locker::New(n)) => self.new_locks(&open, &n.lock_owner.owner),
            (None, Locker::Existing(_)) => Err(Nfsstat4::BAD_STATEID),
        }
    }

    fn new_locks(&self, open: &Arc<Open>, owner: &Bytes) -> Result<Arc<Locks>, Nfsstat4> {
        let registry = &self.nfs.registry;
        if registry.is_full() {
            return Err(Nfsstat4::DELAY);
        }
        let locks = Arc::new(Locks {
            other: registry.other(),
            client: open.client.clone(),
            owner: Bytes::copy_from_slice(owner),
            number: registry.number(),
            open: open.clone(),
            seqid: Mutex::new(0),
        });
        open.file.lockers.lock().push(locks.clone());
        registry.add(State::Locks(locks.clone()))?;
        Ok(locks)
    }

    async fn take(
        &self,
        o: &Object,
        locks: &Arc<Locks>,
        kind: LockKind,
        range: FileRange,
    ) -> Result<(), LockFail> {
        let file = &locks.open.file;
        loop {
            let order = file.order.lock().await;
            if locks.open.inner.lock().closed {
                return Err(Nfsstat4::BAD_STATEID.into());
            }
            let (conflict, room) = {
                let ranges = file.ranges.lock();
                (ranges.conflict(locks.number, kind, range), ranges.has_room())
            };
            if let Some(held) = conflict {
                drop(order);
                self.give_way(file, held).await?;
                continue;
            }
            if !room {
                return Err(Nfsstat4::DELAY.into());
            }
            self.take_below(o, locks, kind, range).await?;
            file.ranges.lock().take(locks.number, kind, range);
            return Ok(());
        }
    }

    /// A lock in the way goes when its client is silent for too long.
    async fn give_way(&self, file: &Arc<FileState>, held: Held) -> Result<(), LockFail> {
        let holder = file.lockers.lock().iter().find(|l| l.number == held.owner).cloned();
        let Some(holder) = holder else { return Err(Nfsstat4::DELAY.into()) };
        if self.nfs.is_courtesy(&holder.client) {
            self.nfs.expire(&holder.client).await;
            return Ok(());
        }
        let owner = StateOwner { clientid: holder.client.id, owner: holder.owner.clone().into() };
        Err(LockFail::Denied(denied(held.kind, held.range, owner)))
    }

    async fn take_below(
        &self,
        o: &Object,
        locks: &Locks,
        kind: LockKind,
        range: FileRange,
    ) -> Result<(), LockFail> {
        let vfs = &o.export.vfs;
        let below = locks.open.inner.lock().below.first().cloned();
        let file = o.file(below.as_ref().map(|b| b.id));
        let owner = LockOwner { id: locks.number, flock: false };
        match vfs.lock(&o.cx, file, owner, kind, range, LockWait::No).await {
            Ok(()) => Ok(()),
            // Nobody else can lock there.
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
        let own = file.as_ref().and_then(|f| registry.locks_of(&client, f, &a.owner.owner));
        let number = own.as_ref().map_or(0, |l| l.number);
        if let Some(file) = &file {
            loop {
                let conflict = file.ranges.lock().conflict(number, kind, range);
                let Some(held) = conflict else { break };
                self.give_way(file, held).await?;
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
        let State::Locks(locks) = self.nfs.registry.find(&client, &self.actual(&a.lock_stateid)?)? else {
            return Err(Nfsstat4::BAD_STATEID);
        };
        let file = &locks.open.file;
        if file.key != o.key() {
            return Err(Nfsstat4::BAD_STATEID);
        }
        {
            let _order = file.order.lock().await;
            let owner = LockOwner { id: locks.number, flock: false };
            let below = locks.open.inner.lock().below.first().cloned();
            let of = o.file(below.as_ref().map(|b| b.id));
            match o.export.vfs.unlock(&o.cx, of, owner, range).await {
                Ok(()) => {}
                Err(e) if matches!(e.errno, libc::EOPNOTSUPP | libc::ENOSYS) => {}
                Err(e) => return Err(stat4(&e)),
            }
            file.ranges.lock().release(locks.number, range);
        }
        tell_waiters(file);
        let stateid = locks.changed();
        self.stateid = Some(stateid);
        Ok(stateid)
    }

    pub(super) fn test_stateid(&self, ids: &TestStateidArgs) -> Result<TestStateidOk, Nfsstat4> {
        let client = self.client()?;
        let test = |id: &Stateid| match id.is_special() {
            true => Nfsstat4::BAD_STATEID,
            false => match self.nfs.registry.find(&client, id) {
                Ok(State::Delegation(d)) if d.is_revoked() => Nfsstat4::DELEG_REVOKED,
                Ok(_) => Nfsstat4::OK,
                Err(status) => status,
            },
        };
        Ok(ids.iter().map(test).collect::<Vec<_>>().into())
    }

    pub(super) fn free_stateid(&mut self, id: &Stateid) -> Result<(), Nfsstat4> {
        let client = self.client()?;
        match self.nfs.registry.find(&client, &self.actual(id)?)? {
            State::Open(_) => Err(Nfsstat4::LOCKS_HELD),
            State::Delegation(d) if !d.is_revoked() => Err(Nfsstat4::LOCKS_HELD),
            State::Delegation(d) => {
                self.nfs.leases.end(&self.nfs.registry, &d);
                Ok(())
            }
            State::Locks(l) if l.open.file.ranges.lock().holds(l.number) => Err(Nfsstat4::LOCKS_HELD),
            State::Locks(l) => {
                self.nfs.registry.release_locks(&l);
                tokio::spawn(async move { unlock_below(&[l]).await });
                Ok(())
            }
        }
    }
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

/// Something was released: tells everybody who waits, once.
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
