//! Deadlocks between programs that wait for locks of each other.
//!
//! fcntl(2) fails with EDEADLK when a wait for a lock would never end. The kernel leaves this to
//! the daemon, and a server does not see which programs of one client wait. The daemon knows the
//! owners that hold locks through the mount ([`crate::lockers`]), and the locks that they want. A
//! cycle through other clients stays unknown, as with the Linux client.

use crate::hint::Missed;
use crate::hint::caller::SystemCall;
use crate::inode::Inode;
use hither_vfs::{FileRange, LockKind, LockOwner};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Time after which a call counts as waiting.
const QUICK: Duration = Duration::from_millis(5);
/// Interval of further checks of a wait.
const CHECK: Duration = Duration::from_secs(1);

/// A lock for which an owner waits.
#[derive(Debug, Clone)]
struct Wanted {
    inode: Arc<Inode>,
    kind: LockKind,
    range: FileRange,
}

/// The waits of all owners.
#[derive(Debug, Default)]
pub(crate) struct LockWaits(Mutex<HashMap<LockOwner, Vec<Wanted>>>);

/// A registered wait.
struct Waiting<'a> {
    waits: &'a LockWaits,
    owner: LockOwner,
    wanted: Wanted,
}

impl LockWaits {
    /// Returns when the wait of thread `tid` for a lock can never end. Must be dropped when the
    /// wait ends.
    pub async fn deadlock(
        &self,
        tid: u32,
        owner: LockOwner,
        inode: &Arc<Inode>,
        kind: LockKind,
        range: FileRange,
    ) {
        tokio::time::sleep(QUICK).await;
        if owner.flock || !waits_as_process(tid).await {
            // A thread waits for an open file, whose locks another thread can release.
            return std::future::pending().await;
        }
        let wanted = Wanted { inode: inode.clone(), kind, range };
        let waiting = Waiting { waits: self, owner, wanted };
        self.0.lock().entry(owner).or_default().push(waiting.wanted.clone());
        while !self.is_cycle(&waiting) {
            tokio::time::sleep(CHECK).await;
        }
    }

    /// Whether an owner waits for itself.
    fn is_cycle(&self, waiting: &Waiting<'_>) -> bool {
        let waits = self.0.lock();
        let (mut seen, mut next) = (HashSet::new(), vec![(waiting.owner, waiting.wanted.clone())]);
        while let Some((owner, wanted)) = next.pop() {
            for holder in wanted.inode.lockers.holders(owner, wanted.kind, wanted.range) {
                if holder.owner == waiting.owner {
                    return true;
                }
                if seen.insert(holder.owner) {
                    let theirs = waits.get(&holder.owner).into_iter().flatten();
                    next.extend(theirs.map(|wanted| (holder.owner, wanted.clone())));
                }
            }
        }
        false
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waits = self.waits.0.lock();
        let Some(all) = waits.get_mut(&self.owner) else { return };
        let is_this = |w: &Wanted| {
            let Wanted { inode, kind, range } = &self.wanted;
            Arc::ptr_eq(&w.inode, inode) && w.kind == *kind && w.range == *range
        };
        if let Some(at) = all.iter().position(is_this) {
            all.swap_remove(at);
        }
        if all.is_empty() {
            waits.remove(&self.owner);
        }
    }
}

/// Whether a thread waits in fcntl(2) with F_SETLKW. F_OFD_SETLKW looks like it in a request.
async fn waits_as_process(tid: u32) -> bool {
    for _ in 0..10 {
        match SystemCall::of(tid) {
            Ok(call) => {
                let fcntl = if cfg!(target_arch = "x86_64") { 72 } else { 25 };
                return !call.is_narrow() && call.number == fcntl && call.args[1] == libc::F_SETLKW as u64;
            }
            // It has not gone to sleep yet.
            Err(Missed::Running) => tokio::time::sleep(QUICK).await,
            Err(_) => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::tests::{inodes, node};
    use hither_vfs::FileKind;

    fn owner(id: u64) -> LockOwner {
        LockOwner { id, flock: false }
    }

    fn byte(at: u64) -> FileRange {
        FileRange { start_bytes: at, end_bytes: at + 1 }
    }

    /// A cycle is found over several owners and files, and only while all of them wait.
    #[test]
    fn cycles_are_found() {
        let table = inodes();
        let file = |id| table.remember(None, &node(&format!("f{id}"), id, FileKind::Regular)).unwrap();
        let files = [file(5), file(6)];
        let holds = |id, file: usize, at| {
            files[file].lockers.note_holder(owner(id), LockKind::Write, byte(at));
        };
        let waits = LockWaits::default();
        let wait = |id, file: usize, kind, at| {
            let wanted = Wanted { inode: files[file].clone(), kind, range: byte(at) };
            waits.0.lock().entry(owner(id)).or_default().push(wanted.clone());
            Waiting { waits: &waits, owner: owner(id), wanted }
        };
        holds(1, 0, 1);
        holds(2, 0, 2);
        holds(3, 1, 3);
        let one = wait(1, 0, LockKind::Write, 2);
        assert!(!waits.is_cycle(&one), "the holder waits for nothing");
        let two = wait(2, 1, LockKind::Read, 3);
        assert!(!waits.is_cycle(&two));
        let three = wait(3, 0, LockKind::Read, 1);
        assert!(waits.is_cycle(&three) && waits.is_cycle(&one));
        drop(two);
        assert!(!waits.is_cycle(&three), "the second owner waits no more");
        let _two = wait(2, 1, LockKind::Read, 3);
        files[0].lockers.released(owner(1), byte(1));
        assert!(!waits.is_cycle(&three), "the lock is free");
        drop((one, three));
        assert_eq!(waits.0.lock().len(), 1);
    }
}
