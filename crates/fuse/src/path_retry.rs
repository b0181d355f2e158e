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
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of tracked threads.
const THREADS_MAX: usize = 1024;
/// Maximum time between the requests of a thread. The kernel sends the next one at once.
const RETRYING_MAX: Duration = Duration::from_secs(10);
/// Most lookups of a repeated walk. The kernel sends no request for a call that it answers from the
/// last lookup, such as stat(2). The lookups of later calls look like the same walk then.
const LOOKUPS_MAX: u32 = 64;

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
#[derive(Debug)]
pub(crate) struct PathRetries {
    threads: Mutex<HashMap<u32, PathRetry>>,
    began: Instant,
    /// Milliseconds from `began` until no thread is expected any more; 0: no thread is expected.
    /// For a check without a lock.
    until_ms: AtomicU64,
}

#[derive(Debug)]
struct PathRetry {
    /// Time of the ESTALE, or of the last answered lookup.
    sent: Instant,
    reads: Reads,
    found: Option<Found>,
    /// Number of lookups since the ESTALE.
    lookups: u32,
    /// The call has arrived, or a name was not found. The next lookup belongs to another call.
    over: bool,
}

impl Default for PathRetries {
    fn default() -> Self {
        Self { threads: Mutex::default(), began: Instant::now(), until_ms: AtomicU64::new(0) }
    }
}

impl PathRetries {
    /// Thread `tid` is about to get ESTALE. Without a free entry its next call is not expected.
    pub fn send(&self, tid: u32, reads: Reads) {
        let (mut threads, now) = (self.threads.lock(), Instant::now());
        if threads.len() >= THREADS_MAX {
            threads.retain(|_, retry| !retry.over && now < retry.sent + RETRYING_MAX);
        }
        if threads.len() < THREADS_MAX {
            threads.insert(tid, PathRetry { sent: now, reads, found: None, lookups: 0, over: false });
            self.expect_until(now + RETRYING_MAX);
        }
    }

    /// Whether a lookup belongs to the repeated walk of its thread. Another call follows the end of
    /// the walk, so the thread is forgotten.
    pub fn looks_up(&self, tid: u32) -> bool {
        let walks = self.with(tid, |retry| {
            retry.lookups += 1;
            Some(!retry.over && retry.lookups <= LOOKUPS_MAX)
        });
        if walks == Some(false) {
            self.threads.lock().remove(&tid);
        }
        walks == Some(true)
    }

    /// The thread is about to get the answer that a name does not exist, or an error. Its call ends
    /// so, or makes the name.
    pub fn missed(&self, tid: u32) {
        self.with(tid, |retry| {
            retry.over = true;
            Some(())
        });
    }

    /// The thread is about to get this object as the answer to its lookup.
    pub fn found(&self, tid: u32, id: u64, attr: &Attr) {
        self.with(tid, |retry| {
            let (attr, reads, now) = (attr.clone(), retry.reads.clone(), Instant::now());
            (retry.found, retry.sent) = (Some(Found { id, attr, read: None, reads }), now);
            self.expect_until(now + RETRYING_MAX);
            Some(())
        });
    }

    /// The bytes that the thread's call may read from an object that is no symbolic link.
    pub fn reads(&self, tid: u32) -> Reads {
        self.with(tid, |retry| Some(retry.reads.clone())).unwrap_or(Reads::Nothing)
    }

    /// The bytes of the object that the thread is about to get, or the error of their read.
    pub fn found_bytes(&self, tid: u32, read: Result<Bytes>) {
        self.with(tid, |retry| {
            retry.found.as_mut()?.read = Some(read);
            Some(())
        });
    }

    /// Whether the thread looks up a name in a directory that it has just found.
    pub fn walks(&self, tid: u32, dir: u64) -> bool {
        self.with(tid, |retry| retry.found.as_ref().filter(|found| found.id == dir).map(drop)).is_some()
    }

    /// A call of the thread has arrived. Returns its object when the walk before the call found it.
    /// Several requests may belong to the call: chown(2) asks for the attributes first. A change
    /// (`changes`) is the last one.
    pub fn arrived(&self, tid: u32, object: u64, changes: bool) -> Option<Found> {
        let found = self.with(tid, |retry| {
            retry.over = true;
            Some(retry.found.clone().filter(|found| found.id == object))
        })?;
        if changes {
            self.threads.lock().remove(&tid);
        }
        found
    }

    fn expect_until(&self, until: Instant) {
        let ms = until.duration_since(self.began).as_millis() as u64;
        self.until_ms.store(ms, Ordering::Relaxed);
    }

    /// The result of `f` for an expected thread. Threads that are late are forgotten, so an object
    /// that they found long ago answers nothing.
    fn with<T>(&self, tid: u32, f: impl FnOnce(&mut PathRetry) -> Option<T>) -> Option<T> {
        if self.until_ms.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let (mut threads, now) = (self.threads.lock(), Instant::now());
        if now.duration_since(self.began).as_millis() as u64 >= self.until_ms.load(Ordering::Relaxed) {
            threads.clear();
            self.until_ms.store(0, Ordering::Relaxed);
            return None;
        }
        let retry = threads.get_mut(&tid)?;
        if now < retry.sent + RETRYING_MAX {
            return f(retry);
        }
        threads.remove(&tid);
        None
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
        let retries = PathRetries::default();
        retries.found(1, 7, &attr());
        assert!(!retries.looks_up(1) && retries.arrived(1, 7, false).is_none());
        retries.send(1, Reads::XattrNames);
        assert!(retries.looks_up(1) && !retries.looks_up(2) && !retries.walks(1, 6));
        retries.found(1, 6, &attr());
        assert!(retries.walks(1, 6) && !retries.walks(2, 6));
        retries.found(1, 7, &attr());
        assert_eq!(retries.reads(1), Reads::XattrNames);
        retries.found_bytes(1, Ok("to".into()));
        assert!(retries.arrived(1, 6, false).is_none());
        let found = retries.arrived(1, 7, false).expect("chown(2) asks for the attributes first");
        assert_eq!((found.id, found.read), (7, Some(Ok("to".into()))));
        assert!(retries.arrived(1, 7, true).is_some());
        assert!(retries.arrived(1, 7, true).is_none(), "the next call, without a lookup");
        assert!(!retries.looks_up(1), "the next call");
        retries.found(1, 8, &attr());
        assert!(retries.arrived(1, 8, false).is_none(), "no walk was repeated for the next call");
        assert_eq!(retries.threads.lock().len(), 0);
    }

    /// An object that a thread found answers no later call, although the thread has not looked up
    /// another one since. Another client may have removed the object.
    #[tokio::test(start_paused = true)]
    async fn found_object_expires() {
        let retries = PathRetries::default();
        retries.send(1, Reads::Nothing);
        retries.found(1, 7, &attr());
        tokio::time::advance(RETRYING_MAX / 2).await;
        retries.send(2, Reads::Nothing);
        assert!(retries.arrived(1, 7, false).is_some());
        tokio::time::advance(RETRYING_MAX / 2).await;
        assert!(retries.arrived(1, 7, false).is_none(), "another thread is still expected");
        assert!(retries.looks_up(2));
        tokio::time::advance(RETRYING_MAX).await;
        assert!(!retries.looks_up(2));
        assert_eq!((retries.threads.lock().len(), retries.until_ms.load(Ordering::Relaxed)), (0, 0));
    }

    /// A walk ends with a name that does not exist, and after many lookups. The call may make the
    /// name in a directory that the walk has found.
    #[tokio::test(start_paused = true)]
    async fn repeated_walk_ends() {
        let retries = PathRetries::default();
        retries.send(1, Reads::Nothing);
        assert!(retries.looks_up(1));
        retries.found(1, 7, &attr());
        assert!(retries.looks_up(1));
        retries.missed(1);
        assert!(retries.arrived(1, 7, false).is_some(), "a call that makes the name");
        assert!(!retries.looks_up(1), "the next call");
        retries.send(1, Reads::Nothing);
        assert_eq!((0..2 * LOOKUPS_MAX).filter(|_| retries.looks_up(1)).count(), LOOKUPS_MAX as usize);
    }

    /// The number of threads is bounded.
    #[tokio::test(start_paused = true)]
    async fn tracked_threads_are_bounded() {
        let retries = PathRetries::default();
        (0..=THREADS_MAX as u32).for_each(|tid| retries.send(tid, Reads::Nothing));
        assert_eq!(retries.threads.lock().len(), THREADS_MAX);
        assert!(!retries.looks_up(THREADS_MAX as u32), "no entry was free");
        tokio::time::advance(RETRYING_MAX).await;
        retries.send(u32::MAX, Reads::Nothing);
        assert_eq!(retries.threads.lock().len(), 1, "expired threads are removed");
    }
}
