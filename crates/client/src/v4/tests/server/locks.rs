//! Byte-range locks of the server.

use super::*;

impl State {
    pub(super) fn reclaim_complete(&mut self, cur: &Cur) -> Result<(), Nfsstat4> {
        let client = self.clients.get_mut(&cur.client).ok_or(Nfsstat4::STALE_CLIENTID)?;
        client.complete = true;
        Ok(())
    }

    /// Checks the time of an open or lock. RECLAIM_COMPLETE divides reclaims from other calls (RFC
    /// 8881 section 18.51).
    pub(super) fn in_time(&self, reclaim: bool, cur: &Cur) -> Result<(), Nfsstat4> {
        let complete = self.clients.get(&cur.client).is_some_and(|client| client.complete);
        match (reclaim, self.grace) {
            (true, false) => Err(Nfsstat4::NO_GRACE),
            (false, true) => Err(Nfsstat4::GRACE),
            (false, false) if !complete => Err(Nfsstat4::GRACE),
            _ => Ok(()),
        }
    }

    pub(super) fn take_lock(&mut self, a: &LockArgs, cur: &Cur) -> Result<Stateid, LockFail> {
        self.in_time(a.reclaim, cur)?;
        if let Some(last) = self.log.last_mut() {
            *last = if a.reclaim { "LOCK reclaim".into() } else { "LOCK".into() };
        }
        let other = match &a.locker {
            Locker::Existing(l) => l.lock_stateid.other,
            Locker::New(l) => {
                self.stateid(&l.open_stateid)?;
                let file = Self::name(cur)?;
                let owner = Bytes::copy_from_slice(&l.lock_owner.owner);
                let other = self.other();
                self.locks.insert(other, Lock { client: cur.client, owner, file, ranges: vec![] });
                other
            }
        };
        let Some(lock) = self.locks.get(&other).cloned() else { return Err(Nfsstat4::BAD_STATEID.into()) };
        let needed = match a.locktype {
            LockType::READ | LockType::READW => open::SHARE_ACCESS_READ,
            _ => open::SHARE_ACCESS_WRITE,
        };
        let opened = |o: &Open| o.client == cur.client && o.file == lock.file && o.access & needed != 0;
        if !self.opens.values().any(opened) {
            self.violations.push(format!("LOCK of {} without an open for it", lock.file));
            return Err(Nfsstat4::OPENMODE.into());
        }
        let overlaps = |&(at, len): &(u64, u64)| {
            at < a.offset.saturating_add(a.length) && a.offset < at.saturating_add(len)
        };
        let others = |l: &&Lock| l.file == lock.file && (l.client, &l.owner) != (lock.client, &lock.owner);
        let taken = self.locks.values().filter(others).find(|l| l.ranges.iter().any(overlaps));
        if let Some(taken) = taken {
            return Err(LockFail::Denied(LockDenied {
                offset: taken.ranges[0].0,
                length: taken.ranges[0].1,
                locktype: LockType::WRITE,
                owner: StateOwner { clientid: taken.client, owner: taken.owner.clone().into() },
            }));
        }
        if let Some(lock) = self.locks.get_mut(&other) {
            lock.ranges.push((a.offset, a.length));
        }
        Ok(Stateid { seqid: 1, other })
    }
}
