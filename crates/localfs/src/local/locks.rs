//! Byte-range locks: a table in memory, per file, and in each file per owner.
//!
//! Local programs do not see these locks. The locks end with the process, and clients of a server
//! reclaim them.

use hither_vfs::{Error, Fh, FileRange, LockConflict, LockKind, LockOwner, LockWait, RequestContext, Result};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::sync::Notify;

/// Locks of all files.
#[derive(Default)]
pub(super) struct LockTable {
    files: Mutex<HashMap<Fh, Arc<FileLocks>>>,
}

#[derive(Default)]
struct FileLocks {
    held: Mutex<OwnerRanges>,
    released: Notify,
}

/// Disjoint ranges of each owner: end and kind by start.
#[derive(Default)]
struct OwnerRanges {
    owners: HashMap<LockOwner, BTreeMap<u64, (u64, LockKind)>>,
}

impl LockTable {
    fn file(&self, fh: &Fh) -> Arc<FileLocks> {
        self.files.lock().entry(fh.clone()).or_default().clone()
    }

    /// Drops the entry of a file without locks and waiters.
    fn let_go(&self, fh: &Fh, file: Arc<FileLocks>) {
        let mut files = self.files.lock();
        // Two references: the table's and this one.
        if Arc::strong_count(&file) == 2 && file.held.lock().owners.is_empty() {
            files.remove(fh);
        }
    }

    /// Takes or changes a lock.
    pub async fn lock(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
        wait: LockWait,
    ) -> Result<()> {
        if range.start_bytes >= range.end_bytes {
            return Err(Error::new(libc::EINVAL));
        }
        let file = self.file(fh);
        let taken = file.take(cx, owner, kind, range, wait).await;
        self.let_go(fh, file);
        taken
    }

    /// Releases the locks of an owner in a range.
    pub fn unlock(&self, fh: &Fh, owner: LockOwner, range: FileRange) {
        let Some(file) = self.files.lock().get(fh).cloned() else { return };
        if file.held.lock().release(owner, range) {
            file.released.notify_waiters();
        }
        self.let_go(fh, file);
    }

    /// A lock of another owner that conflicts.
    pub fn test(&self, fh: &Fh, owner: LockOwner, kind: LockKind, range: FileRange) -> Option<LockConflict> {
        let file = self.files.lock().get(fh).cloned()?;
        let conflict = file.held.lock().conflict(owner, kind, range);
        self.let_go(fh, file);
        conflict
    }
}

impl FileLocks {
    async fn take(
        &self,
        cx: &RequestContext,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
        wait: LockWait,
    ) -> Result<()> {
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            {
                let mut held = self.held.lock();
                if held.conflict(owner, kind, range).is_none() {
                    // A change to a read lock may let a waiter go on.
                    if held.release(owner, range) && kind == LockKind::Read {
                        self.released.notify_waiters();
                    }
                    held.add(owner, kind, range);
                    return Ok(());
                }
            }
            if wait == LockWait::No {
                return Err(Error::new(libc::EAGAIN));
            }
            let deadline = async {
                match cx.deadline {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = released => {}
                () = cx.cancel.cancelled() => return Err(Error::new(libc::EINTR)),
                () = deadline => return Err(Error::new(libc::EAGAIN)),
            }
        }
    }
}

impl OwnerRanges {
    fn conflict(&self, owner: LockOwner, kind: LockKind, range: FileRange) -> Option<LockConflict> {
        let others = self.owners.iter().filter(|(o, _)| **o != owner);
        for (_, ranges) in others {
            // Starts at the last range that begins before the end of `range`, and goes backwards.
            // The ranges are disjoint, so their ends descend as well.
            for (&start, &(end, held)) in ranges.range(..range.end_bytes).rev() {
                if end <= range.start_bytes {
                    break;
                }
                if held == LockKind::Write || kind == LockKind::Write {
                    let range = FileRange { start_bytes: start, end_bytes: end };
                    return Some(LockConflict { kind: held, range, pid: 0 });
                }
            }
        }
        None
    }

    /// Adds a range in which the owner holds no lock. Joins it with neighbours of its kind.
    fn add(&mut self, owner: LockOwner, kind: LockKind, range: FileRange) {
        let ranges = self.owners.entry(owner).or_default();
        let (mut start, mut end) = (range.start_bytes, range.end_bytes);
        if let Some((&before, &(its_end, its_kind))) = ranges.range(..start).next_back()
            && its_end == start
            && its_kind == kind
        {
            ranges.remove(&before);
            start = before;
        }
        if let Some(&(its_end, its_kind)) = ranges.get(&end)
            && its_kind == kind
        {
            ranges.remove(&end);
            end = its_end;
        }
        ranges.insert(start, (end, kind));
    }

    /// Releases the locks of `owner` in `range`, and splits locks at its edges. Returns whether
    /// there were any.
    fn release(&mut self, owner: LockOwner, range: FileRange) -> bool {
        let Some(ranges) = self.owners.get_mut(&owner) else { return false };
        let touched: Vec<(u64, (u64, LockKind))> = ranges
            .range(..range.end_bytes)
            .rev()
            .take_while(|(_, (end, _))| *end > range.start_bytes)
            .map(|(&start, &held)| (start, held))
            .collect();
        for &(start, (end, kind)) in &touched {
            ranges.remove(&start);
            if start < range.start_bytes {
                ranges.insert(start, (range.start_bytes, kind));
            }
            if end > range.end_bytes {
                ranges.insert(range.end_bytes, (end, kind));
            }
        }
        if ranges.is_empty() {
            self.owners.remove(&owner);
        }
        !touched.is_empty()
    }
}
