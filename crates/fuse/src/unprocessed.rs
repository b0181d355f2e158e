//! Answers with attributes that the kernel may not have processed.
//!
//! A write to `/dev/fuse` wakes the thread that sent the request. The thread itself processes the
//! answer, when the kernel schedules it. Its next request comes after that.

use crate::inode::extending::{CHECK, Extends, PROCESSING_MAX};
use crate::inode::{Inode, QUEUED_MAX, Telling};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The effects of one answer in the kernel.
#[derive(Debug, Default)]
pub(crate) struct Answered {
    /// Files whose attributes are in it.
    pub tells: SmallVec<[Telling; 1]>,
    /// The file that it extends.
    pub extends: Option<Extends>,
}

/// Unprocessed answers by thread.
#[derive(Debug, Default)]
pub(crate) struct Unprocessed {
    threads: Mutex<HashMap<u32, (Instant, Answered)>>,
    /// Their number, for a check without a lock.
    count: AtomicUsize,
    /// Signals that a thread has processed its answer.
    processed: Notify,
}

impl Unprocessed {
    /// A thread gets an answer.
    pub fn add(&self, tid: u32, effects: Answered) {
        if effects.tells.is_empty() && effects.extends.is_none() {
            return;
        }
        if let Some(extends) = &effects.extends {
            extends.answering();
        }
        let mut threads = self.threads.lock();
        let before = threads.insert(tid, (Instant::now(), effects));
        self.count.store(threads.len(), Ordering::Relaxed);
        drop(threads);
        drop(before);
    }

    /// The answer to a thread was written.
    pub fn written(&self, tid: u32) {
        let threads = self.threads.lock();
        if let Some(extends) = threads.get(&tid).and_then(|(_, effects)| effects.extends.as_ref()) {
            extends.answered();
        }
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
        if processed.is_some() {
            drop(processed);
            self.processed.notify_waiters();
        }
    }

    /// Waits for at most [`PROCESSING_MAX`] until the kernel has extended its length of a file
    /// after the answers to calls of other threads than `tid`.
    pub async fn length_is_processed(&self, inode: &Inode, tid: u32) {
        let begin = Instant::now();
        while begin.elapsed() < PROCESSING_MAX {
            let next = self.processed.notified();
            if !inode.has_unprocessed_length(tid) {
                return;
            }
            let _ = tokio::time::timeout(CHECK, next).await;
        }
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
