//! Which questions are under way, so that a file is remembered for as long as an older answer may
//! come.
//!
//! It knows nothing of what is asked. Questions are numbered; a file that is done with while some
//! are open is kept until those have ended, and no longer, unless something of ours ended in
//! between. (An answer that was given before a file got its last bytes and attributes, and that
//! comes after, is put right by what the file remembers.) When too many files are kept for
//! questions that do not end, those questions are told to ask again, and the files go.

use super::Dirty;
use super::file::File;
use parking_lot::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use tokio::sync::Notify;

/// Files that are kept at most for questions that do not end.
pub(super) const KEPT: usize = 4 << 10;

/// Open questions.
#[derive(Debug, Default)]
pub(super) struct Questions {
    state: Mutex<State>,
    /// The first of the open questions ended.
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: BTreeSet<u64>,
    /// Files and the first question that they are not kept for.
    kept: VecDeque<(u64, Arc<File>)>,
    /// Answers to questions before this one may be older than what was forgotten.
    spoiled: u64,
}

/// A question under way; ends when dropped.
pub(super) struct Question<'a> {
    layer: &'a Dirty,
    number: u64,
}

/// What becomes of a file that is done with.
pub(super) enum Keep {
    /// Nobody asks.
    No,
    /// It stays until those who ask have their answers.
    Yes,
    /// Those who ask will ask again; neither this file nor these have to stay.
    Spoil(Vec<Arc<File>>),
}

impl Questions {
    /// Keeps a file while there are open questions.
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

    /// The number of the next question.
    pub fn next(&self) -> u64 {
        self.state.lock().next
    }

    /// Whether every question before number `next` has its answer.
    pub fn are_answered(&self, next: u64) -> bool {
        self.state.lock().open.first().is_none_or(|first| *first >= next)
    }

    /// Waits until every question before number `next` has its answer.
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

    /// Files that are kept.
    #[cfg(test)]
    pub fn kept(&self) -> usize {
        self.state.lock().kept.len()
    }
}

impl Question<'_> {
    /// Whether something was forgotten that the answer may be older than: it is to be asked again.
    pub fn is_spoiled(&self) -> bool {
        self.number < self.layer.questions.state.lock().spoiled
    }
}

impl Dirty {
    /// A question begins.
    pub(super) fn asking(&self) -> Question<'_> {
        let mut s = self.questions.state.lock();
        let number = s.next;
        s.next += 1;
        s.open.insert(number);
        Question { layer: self, number }
    }

    /// Files need not be kept any more.
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
            // Those before will ask again.
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

/// How often one asks before the answer is taken as it comes: each time thousands of files were
/// closed in between.
pub(super) const TRIES: u32 = 8;

/// Asks, with `$cx` or one like it that wants newer answers, until the answer can be put right with
/// what is remembered; gives the question, which is to live until that is done, and the answer.
macro_rules! ask {
    ($layer:expr, $cx:ident => $call:expr) => {{
        let mut newer: Option<Cx> = None;
        let mut tries = 0;
        loop {
            let asking = $layer.asking();
            let answer = {
                let $cx = newer.as_ref().unwrap_or($cx);
                $call
            };
            tries += 1;
            if !asking.is_spoiled() || tries == $crate::dirty::questions::TRIES {
                break (asking, answer);
            }
            newer = Some($cx.fresh(Instant::now()));
        }
    }};
}
pub(super) use ask;
