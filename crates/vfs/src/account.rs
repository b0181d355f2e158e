//! The cost of a call: the requests that were sent to the server for it, and their reasons.
//!
//! A frontend that measures the cost of a call puts an [`Account`] into its [`RequestContext`]. The
//! layer that decides to send a request gives the reason ([`RequestContext::because`]). The layer
//! that sends it reports the request ([`RequestContext::asked`]). No call waits for an account and
//! no decision depends on it. A call without an account has no extra cost. The lock of the account
//! is held for a few stores.

use crate::RequestContext;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::time::Duration;

/// Maximum number of requests per call that are kept. Further requests are only counted.
const QUESTIONS_MAX: usize = 8;

/// Why a request was sent to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Why {
    /// No reason was given. The purpose is that of the request (bytes, a change, an open).
    #[default]
    Unsaid,
    /// No answer was cached.
    Unknown,
    /// The validity of the cached answer was over. The age of the answer.
    Expired(Duration),
    /// The cached answer was valid, but the call needs an answer as new as the call
    /// (close-to-open). The age of the answer.
    Fresh(Duration),
    /// A change by this client invalidated the cached answer.
    Changed,
    /// The rights of this caller were not cached.
    Rights,
    /// The bytes were not cached.
    Contents,
    /// Read-ahead: data that the program is likely to need next.
    Ahead,
}

/// One request to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Operation, as in the labels of the statistics.
    pub op: &'static str,
    /// Reason of the request.
    pub why: Why,
    /// Time from sending to the reply, including the wait for a slot.
    pub took: Duration,
}

/// The cost of one call until now.
#[derive(Debug, Default)]
pub struct Account(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    next: Why,
    questions: SmallVec<[Question; 2]>,
    more: u32,
}

impl Account {
    /// The requests in the order of their replies, and the number of further requests.
    pub fn questions(&self) -> (SmallVec<[Question; 2]>, u32) {
        let entries = self.0.lock();
        (entries.questions.clone(), entries.more)
    }

    /// Whether there were no requests.
    pub fn is_empty(&self) -> bool {
        self.0.lock().questions.is_empty()
    }
}

impl RequestContext {
    /// Sets the reason of the next request.
    pub fn because(&self, why: impl FnOnce() -> Why) {
        if let Some(account) = &self.account {
            let why = why();
            account.0.lock().next = why;
        }
    }

    /// Reports a request to the server.
    pub fn asked(&self, op: &'static str, took: Duration) {
        if let Some(account) = &self.account {
            account.asked(op, took);
        }
    }
}

impl Account {
    /// See [`RequestContext::asked`].
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

    /// `because` sets the reason of the next request only, and questions beyond the limit are
    /// counted.
    #[test]
    fn reason_belongs_to_next_question() {
        let account = Arc::new(Account::default());
        let mut cx = RequestContext::new(Arc::new(Cred::root()));
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
