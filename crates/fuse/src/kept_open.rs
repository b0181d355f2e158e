//! Opens of threads with an ESTALE answer, which get the length of their file first.
//!
//! The kernel ends reads and begins appends at its cached length, and an open returns no length.
//! When another client has changed the length, the open fails with ESTALE. The kernel walks the
//! path again (`do_filp_open` with `LOOKUP_REVAL`), gets the length with the file's attributes, and
//! sends the open once more. The first open is kept meanwhile, so that the second one costs
//! nothing. The kept open holds the file like any other.
//!
//! [`crate::stale_retry`] has the opens whose name may belong to another file.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of kept opens.
const THREADS_MAX: usize = 1024;
/// Maximum time until the second open. The kernel sends the lookups and the open at once.
pub(crate) const KEPT_MAX: Duration = Duration::from_secs(10);

/// An open whose thread walks its path again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeptOpen {
    /// The kernel's number of the file.
    pub inode: u64,
    /// Number of the registered open file.
    pub file: u64,
    /// Flags of open(2).
    pub flags: u32,
    /// Length of the file.
    pub size_bytes: u64,
    /// Time of the ESTALE. The kernel sends all later requests of the thread after it.
    pub sent: Instant,
}

/// Kept opens by thread.
#[derive(Debug, Default)]
pub(crate) struct KeptOpens {
    threads: Mutex<HashMap<u32, KeptOpen>>,
    /// Their number, for a check without a lock.
    count: AtomicUsize,
}

impl KeptOpens {
    /// Keeps the open of a thread that is about to get ESTALE. Returns false without a free entry,
    /// and for thread 0, which stands for all threads outside this PID namespace.
    pub fn keep(&self, tid: u32, open: KeptOpen) -> bool {
        let mut threads = self.threads.lock();
        let room = tid != 0 && threads.len() < THREADS_MAX && !threads.contains_key(&tid);
        if room {
            threads.insert(tid, open);
        }
        self.count.store(threads.len(), Ordering::Relaxed);
        room
    }

    /// The kept open of a thread.
    pub fn of(&self, tid: u32) -> Option<KeptOpen> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.threads.lock().get(&tid).copied()
    }

    /// Removes and returns the kept open of a thread.
    pub fn take(&self, tid: u32) -> Option<KeptOpen> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut threads = self.threads.lock();
        let open = threads.remove(&tid);
        self.count.store(threads.len(), Ordering::Relaxed);
        open
    }

    /// Removes this open of a thread. Returns false when the thread has taken it.
    pub fn expire(&self, tid: u32, open: KeptOpen) -> bool {
        let mut threads = self.threads.lock();
        let is_kept = threads.get(&tid) == Some(&open);
        if is_kept {
            threads.remove(&tid);
        }
        self.count.store(threads.len(), Ordering::Relaxed);
        is_kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread gets its own open once. An expired open is not returned.
    #[tokio::test(start_paused = true)]
    async fn thread_gets_its_open_once() {
        let (kept, sent) = (KeptOpens::default(), Instant::now());
        let open = |file| KeptOpen { inode: 7, file, flags: 0, size_bytes: 0, sent };
        assert!(kept.keep(1, open(10)) && kept.keep(2, open(20)));
        assert!(!kept.keep(1, open(11)), "one open per thread");
        assert!(!kept.keep(0, open(12)), "any thread");
        assert_eq!((kept.of(1), kept.of(3)), (Some(open(10)), None));
        assert_eq!((kept.take(1), kept.take(1)), (Some(open(10)), None));
        assert!(kept.keep(1, open(13)));
        assert!(!kept.expire(1, open(10)), "taken before");
        assert!(kept.expire(2, open(20)));
        assert_eq!((kept.take(2), kept.take(1)), (None, Some(open(13))));
        for tid in 1..=THREADS_MAX as u32 {
            assert!(kept.keep(tid, open(30)));
        }
        assert!(!kept.keep(u32::MAX, open(31)), "no room");
    }
}
