//! Threads with an ESTALE answer to a call by path, which walk their path again.
//!
//! An object can be removed between the lookup of its name and the call. After ESTALE the kernel
//! walks the path once more with fresh lookups (`LOOKUP_REVAL`), and repeats the call. When the
//! second object is removed meanwhile too, the program would see ESTALE. A local file system never
//! answers so: its call takes place before the removal. So the last object that the thread has
//! found is remembered here, with its attributes, and the call is answered from them.
//!
//! Opens have rules of their own (`stale_retry`).

use bytes::Bytes;
use hither_vfs::{Attr, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of tracked threads.
const THREADS_MAX: usize = 1024;
/// Maximum time between the requests of a thread. The kernel sends the next one at once.
const RETRYING_MAX: Duration = Duration::from_secs(10);

/// An object that a repeated walk has found.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// The kernel's number of the object.
    pub id: u64,
    /// Its attributes at the lookup.
    pub attr: Attr,
    /// The outcome of the read of a symbolic link's target, or else of `reads`.
    pub read: Option<Result<Bytes>>,
    pub reads: Reads,
}

impl Found {
    /// Whether the bytes that a call reads were read. A thread that does not look up the object of
    /// its next call has the object of the last call.
    pub fn has(&self, reads: &Reads) -> bool {
        *reads == Reads::Nothing || self.reads == *reads
    }
}

/// Bytes that the failed call of a thread reads, besides attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reads {
    Nothing,
    /// Names of all extended attributes, each with a NUL.
    XattrNames,
    /// The value of this extended attribute.
    Xattr(Bytes),
}

/// Threads that got ESTALE for a call by path.
#[derive(Debug, Default)]
pub(crate) struct PathRetries {
    threads: Mutex<HashMap<u32, PathRetry>>,
    /// Their number, for a check without a lock.
    count: AtomicUsize,
}

#[derive(Debug)]
struct PathRetry {
    /// Time of the ESTALE. Lookups of the thread must be as new.
    since: Instant,
    /// Time of the ESTALE, or of the last answered lookup.
    sent: Instant,
    reads: Reads,
    found: Option<Found>,
    /// The call has arrived. The next lookup belongs to another call.
    arrived: bool,
}

impl PathRetry {
    fn is_expected(&self, now: Instant) -> bool {
        !self.arrived && now.saturating_duration_since(self.sent) < RETRYING_MAX
    }
}

impl PathRetries {
    /// Thread `tid` is about to get ESTALE. Without a free entry its next call is not expected.
    pub fn send(&self, tid: u32, reads: Reads, now: Instant) {
        let mut threads = self.threads.lock();
        if threads.len() >= THREADS_MAX {
            threads.retain(|_, retry| retry.is_expected(now));
        }
        if threads.len() < THREADS_MAX {
            threads.insert(tid, PathRetry { since: now, sent: now, reads, found: None, arrived: false });
        }
        self.count.store(threads.len(), Ordering::Relaxed);
    }

    /// The required freshness of the answer to a lookup at time `now`, when its thread got ESTALE.
    pub fn since(&self, tid: u32, now: Instant) -> Option<Instant> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut threads = self.threads.lock();
        let retry = threads.get(&tid)?;
        if retry.is_expected(now) {
            return Some(retry.since);
        }
        threads.remove(&tid);
        self.count.store(threads.len(), Ordering::Relaxed);
        None
    }

    /// The thread is about to get this object as the answer to its lookup.
    pub fn found(&self, tid: u32, id: u64, attr: &Attr, now: Instant) {
        if self.count.load(Ordering::Relaxed) > 0
            && let Some(retry) = self.threads.lock().get_mut(&tid)
        {
            let (attr, reads) = (attr.clone(), retry.reads.clone());
            (retry.found, retry.sent) = (Some(Found { id, attr, read: None, reads }), now);
        }
    }

    /// The bytes that the thread's call may read from a symbolic link or another object.
    pub fn reads(&self, tid: u32) -> Reads {
        self.threads.lock().get(&tid).map_or(Reads::Nothing, |retry| retry.reads.clone())
    }

    /// The bytes of the object that the thread is about to get, or the error of their read.
    pub fn found_bytes(&self, tid: u32, read: Result<Bytes>) {
        if let Some(found) = self.threads.lock().get_mut(&tid).and_then(|retry| retry.found.as_mut()) {
            found.read = Some(read);
        }
    }

    /// Whether the thread looks up a name in a directory that it has just found.
    pub fn walks(&self, tid: u32, dir: u64) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let threads = self.threads.lock();
        threads.get(&tid).and_then(|retry| retry.found.as_ref()).is_some_and(|found| found.id == dir)
    }

    /// The thread's call has arrived. Returns its object when the walk before the call found it.
    pub fn arrived(&self, tid: u32, object: u64) -> Option<Found> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut threads = self.threads.lock();
        let retry = threads.get_mut(&tid)?;
        retry.arrived = true;
        retry.found.clone().filter(|found| found.id == object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::tests::node;
    use hither_vfs::FileKind;

    fn attr() -> Attr {
        node("o", 7, FileKind::Regular).attrs.attr
    }

    /// A thread that got ESTALE is answered for the object of its last lookup, in one call.
    #[tokio::test(start_paused = true)]
    async fn repeated_walk_is_remembered_for_one_call() {
        let (retries, began) = (PathRetries::default(), Instant::now());
        retries.found(1, 7, &attr(), began);
        assert!(retries.since(1, began).is_none() && retries.arrived(1, 7).is_none());
        retries.send(1, Reads::XattrNames, began);
        assert_eq!(retries.since(1, began), Some(began));
        assert!(retries.since(2, began).is_none() && !retries.walks(1, 6));
        retries.found(1, 6, &attr(), began);
        assert!(retries.walks(1, 6) && !retries.walks(2, 6));
        retries.found(1, 7, &attr(), began);
        assert_eq!(retries.reads(1), Reads::XattrNames);
        retries.found_bytes(1, Ok("to".into()));
        assert!(retries.arrived(1, 6).is_none());
        let found = retries.arrived(1, 7).expect("chown(2) asks for the attributes first");
        assert_eq!((found.id, found.read), (7, Some(Ok("to".into()))));
        assert!(retries.since(1, began).is_none(), "the next call");
        assert!(retries.arrived(1, 7).is_none());
    }

    /// A thread that does not repeat its call is forgotten, and the number of threads is bounded.
    #[tokio::test(start_paused = true)]
    async fn tracked_threads_are_bounded() {
        let (retries, began) = (PathRetries::default(), Instant::now());
        let send = |tid, now| retries.send(tid, Reads::Nothing, now);
        (0..=THREADS_MAX as u32).for_each(|tid| send(tid, began));
        assert_eq!(retries.threads.lock().len(), THREADS_MAX);
        assert!(retries.since(THREADS_MAX as u32, began).is_none(), "no entry was free");
        tokio::time::advance(RETRYING_MAX).await;
        send(u32::MAX, Instant::now());
        assert_eq!(retries.threads.lock().len(), 1, "expired threads are removed");
    }
}
