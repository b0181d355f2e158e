//! The cost of a call: the questions that were sent to the server for it, and their reasons.
//!
//! A frontend that wants the cost of a call gives it an [`Account`] in its [`Cx`]. The layer that
//! decides to ask gives the reason ([`Cx::because`]); the one that asks reports the question
//! ([`Cx::asked`]). No call waits for an account and no decision depends on it; calls without one
//! cost nothing. Its lock is held for a few stores.

use crate::Cx;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::time::Duration;

/// Questions of one call that are kept; more are counted.
const QUESTIONS_MAX: usize = 8;

/// Why the server had to be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Why {
    /// No reason was given: the question's own purpose counts (bytes, a change, an open).
    #[default]
    Unsaid,
    /// Nothing was known.
    Unknown,
    /// It was known, and its time was over; asked so long before.
    Expired(Duration),
    /// It was known and held, but the call needs an answer as new as itself (close-to-open); asked
    /// so long before.
    Fresh(Duration),
    /// A change of this client's own made it unknown.
    Changed,
    /// The rights of this caller were not known.
    Rights,
    /// The bytes were not here.
    Contents,
    /// For data that is likely to be wanted next.
    Ahead,
}

/// One question to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Its operation: the label of the statistics.
    pub op: &'static str,
    /// Why.
    pub why: Why,
    /// From sending it to the answer, waiting for a slot included.
    pub took: Duration,
}

/// The cost of one call so far.
#[derive(Debug, Default)]
pub struct Account(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    next: Why,
    questions: SmallVec<[Question; 2]>,
    more: u32,
}

impl Account {
    /// The questions in the order of their answers, and how many more there were.
    pub fn questions(&self) -> (SmallVec<[Question; 2]>, u32) {
        let entries = self.0.lock();
        (entries.questions.clone(), entries.more)
    }

    /// Whether there was none.
    pub fn is_empty(&self) -> bool {
        self.0.lock().questions.is_empty()
    }
}

impl Cx {
    /// Says why the question that comes next is needed.
    pub fn because(&self, why: impl FnOnce() -> Why) {
        if let Some(account) = &self.account {
            let why = why();
            account.0.lock().next = why;
        }
    }

    /// Says that the server was asked.
    pub fn asked(&self, op: &'static str, took: Duration) {
        if let Some(account) = &self.account {
            account.asked(op, took);
        }
    }
}

impl Account {
    /// See [`Cx::asked`].
    pub fn asked(&self, op: &'static str, took: Duration) {
        let mut entries = self.0.lock();
        let why = std::mem::take(&mut entries.next);
        if entries.questions.len() < QUESTIONS_MAX {
            entries.questions.push(Question { op, why, took });
        } else {
            entries.more += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cred;
    use std::sync::Arc;

    #[test]
    fn a_reason_belongs_to_the_question_that_follows() {
        let account = Arc::new(Account::default());
        let mut cx = Cx::new(Arc::new(Cred::root()));
        cx.because(|| unreachable!("nobody keeps an account"));
        cx.asked("READ", Duration::ZERO);
        cx.account = Some(account.clone());
        assert!(account.is_empty());
        cx.because(|| Why::Unknown);
        cx.fresh(tokio::time::Instant::now()).asked("LOOKUP", Duration::from_millis(2));
        cx.asked("READ", Duration::from_millis(3));
        let (questions, more) = account.questions();
        let told: Vec<_> = questions.iter().map(|q| (q.op, q.why, q.took.as_millis())).collect();
        assert_eq!(told, [("LOOKUP", Why::Unknown, 2), ("READ", Why::Unsaid, 3)]);
        assert_eq!(more, 0);
        (0..20).for_each(|_| cx.asked("READ", Duration::ZERO));
        let (questions, more) = account.questions();
        assert_eq!((questions.len(), more), (QUESTIONS_MAX, 22 - QUESTIONS_MAX as u32));
    }
}
