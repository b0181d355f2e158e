//! Which questions are under way, so that a file is remembered for as long as an older answer may come.
//!
//! It knows nothing of what is asked. Questions are numbered; a file that is done with while some are open is kept until those have
//! ended. (An answer that was given before a file got its last bytes and attributes, and that comes after, is put right by
//! what the file remembers.)

use super::Dirty;
use super::file::File;
use parking_lot::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Files that are kept at most for questions that do not end.
const KEPT: usize = 16 << 10;

/// Open questions.
#[derive(Debug, Default)]
pub(super) struct Questions {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: BTreeSet<u64>,
    /// Files and the first question that they are not kept for.
    kept: VecDeque<(u64, Arc<File>)>,
}

/// A question under way; ends when dropped.
pub(super) struct Question<'a> {
    layer: &'a Dirty,
    number: u64,
}

impl Questions {
    /// Keeps a file while there are open questions; false when there are none.
    pub fn keep(&self, file: &Arc<File>) -> bool {
        let mut s = self.state.lock();
        let keep = !s.open.is_empty() && s.kept.len() < KEPT;
        if keep {
            let next = s.next;
            s.kept.push_back((next, file.clone()));
        }
        keep
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
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        let mut done = Vec::new();
        {
            let mut s = self.layer.questions.state.lock();
            s.open.remove(&self.number);
            let first = s.open.first().copied().unwrap_or(s.next);
            while s.kept.front().is_some_and(|(until, _)| *until <= first) {
                done.extend(s.kept.pop_front().map(|(_, file)| file));
            }
        }
        for file in done {
            file.state.lock().lingers = false;
            self.layer.tidy(&file);
        }
    }
}
