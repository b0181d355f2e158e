//! The open requests, so that a file is remembered as long as an older answer may arrive.
//!
//! The module does not know the content of a request. Requests are numbered. A completed file is
//! kept while older requests are open, and dropped when they have ended. It is kept longer only
//! when an own change ended in between. An answer may precede the file's last bytes and attributes
//! and arrive later. The remembered file corrects such an answer. When too many files are kept for
//! requests that do not end, these requests are repeated, and the files are dropped.

use super::WriteBack;
use super::file::File;
use parking_lot::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use tokio::sync::Notify;

/// The most files that are kept for requests that do not end.
pub(super) const KEPT: usize = 4 << 10;

/// Open requests.
#[derive(Debug, Default)]
pub(super) struct Questions {
    state: Mutex<State>,
    /// Signals the end of the first open request.
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: BTreeSet<u64>,
    /// Kept files, each with the first request that does not need it.
    kept: VecDeque<(u64, Arc<File>)>,
    /// Answers to requests before this number may be older than a dropped file.
    spoiled: u64,
}

/// An open request. Ends when dropped.
pub(super) struct Question<'a> {
    layer: &'a WriteBack,
    number: u64,
}

/// The decision about a completed file.
pub(super) enum Keep {
    /// No request is open.
    No,
    /// The file is kept until the open requests have their answers.
    Yes,
    /// The open requests are repeated. Neither this file nor the returned files need to be kept.
    Spoil(Vec<Arc<File>>),
}

impl Questions {
    /// Keeps a file while requests are open.
    pub fn keep(&self, file: &Arc<File>) -> Keep {
        let mut s = self.state.lock();
        if s.open.iter().next_back().is_none_or(|last| *last < s.spoiled) {
            return Keep::No;
        }
        if s.kept.len() >= KEPT {
            s.spoiled = s.next;
            return Keep::Spoil(s.kept.drain(..).map(|(_, file)| file).collect());
        }
        let next = s.next;
        s.kept.push_back((next, file.clone()));
        Keep::Yes
    }

    /// The number of the next request.
    pub fn next(&self) -> u64 {
        self.state.lock().next
    }

    /// Whether all requests before number `next` have their answers.
    pub fn are_answered(&self, next: u64) -> bool {
        self.state.lock().open.first().is_none_or(|first| *first >= next)
    }

    /// Waits until all requests before number `next` have their answers.
    pub async fn answered(&self, next: u64) {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if self.are_answered(next) {
                return;
            }
            ended.await;
        }
    }

    /// The number of kept files.
    #[cfg(test)]
    pub fn kept(&self) -> usize {
        self.state.lock().kept.len()
    }
}

impl Question<'_> {
    /// Whether the answer may be older than a dropped file, so that the request must be repeated.
    pub fn is_spoiled(&self) -> bool {
        self.number < self.layer.questions.state.lock().spoiled
    }
}

impl WriteBack {
    /// Begins a request.
    pub(super) fn asking(&self) -> Question<'_> {
        let mut s = self.questions.state.lock();
        let number = s.next;
        s.next += 1;
        s.open.insert(number);
        Question { layer: self, number }
    }

    /// Releases kept files.
    pub(super) fn let_go(&self, files: Vec<Arc<File>>) {
        for file in files {
            file.state.lock().lingers = false;
            self.tidy(&file);
        }
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        let mut done = Vec::new();
        let was_first;
        {
            let mut s = self.layer.questions.state.lock();
            was_first = s.open.first() == Some(&self.number);
            s.open.remove(&self.number);
            // Requests before `spoiled` are repeated.
            let first = s.open.range(s.spoiled..).next().copied().unwrap_or(s.next);
            while s.kept.front().is_some_and(|(until, _)| *until <= first) {
                done.extend(s.kept.pop_front().map(|(_, file)| file));
            }
        }
        if was_first {
            self.layer.questions.ended.notify_waiters();
        }
        self.layer.let_go(done);
    }
}

/// The most attempts of a request. The last answer is used as it is. Each attempt fails only if
/// thousands of files were closed during it.
pub(super) const TRIES: u32 = 8;

/// Repeats a request until remembered files can correct the answer. A repetition demands newer
/// answers than `$cx`. Returns the request, which must live until the correction, and the answer.
macro_rules! ask {
    ($layer:expr, $cx:ident => $call:expr) => {{
        let mut newer: Option<RequestContext> = None;
        let mut tries = 0;
        loop {
            let asking = $layer.asking();
            let answer = {
                let $cx = newer.as_ref().unwrap_or($cx);
                $call
            };
            tries += 1;
            if !asking.is_spoiled() || tries == $crate::pending_writes::questions::TRIES {
                break (asking, answer);
            }
            newer = Some($cx.fresh(Instant::now()));
        }
    }};
}
pub(super) use ask;
