//! Answers with attributes that the kernel may not have processed.
//!
//! A write to `/dev/fuse` wakes the thread that sent the request. The thread itself processes the
//! answer, when the kernel schedules it. Its next request comes after that.

use crate::inode::{QUEUED_MAX, Telling};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::time::Instant;

/// The files of one answer.
pub(crate) type Answered = SmallVec<[Telling; 1]>;

/// Unprocessed answers by thread.
#[derive(Debug, Default)]
pub(crate) struct Unprocessed {
    threads: Mutex<HashMap<u32, (Instant, Answered)>>,
    /// Their number, for a check without a lock.
    count: AtomicUsize,
}

impl Unprocessed {
    /// A thread gets an answer.
    pub fn add(&self, tid: u32, files: Answered) {
        if files.is_empty() {
            return;
        }
        let mut threads = self.threads.lock();
        let before = threads.insert(tid, (Instant::now(), files));
        self.count.store(threads.len(), Ordering::Relaxed);
        drop(threads);
        drop(before);
    }

    /// A thread sends its next request. Thread 0 stands for all threads outside this PID namespace.
    pub fn next_request(&self, tid: u32) {
        if self.count.load(Ordering::Relaxed) == 0 || tid == 0 {
            return;
        }
        let mut threads = self.threads.lock();
        let processed = threads.remove(&tid);
        self.count.store(threads.len(), Ordering::Relaxed);
        drop(threads);
        drop(processed);
    }

    /// Removes old answers. The kernel has scheduled their threads.
    pub fn expire(&self) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let (mut threads, now) = (self.threads.lock(), Instant::now());
        let is_old = |at: Instant| now.saturating_duration_since(at) > QUEUED_MAX;
        let old: Vec<_> = threads.extract_if(|_, (at, _)| is_old(*at)).collect();
        self.count.store(threads.len(), Ordering::Relaxed);
        drop(threads);
        drop(old);
    }
}
