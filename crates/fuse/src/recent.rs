//! The last calls that had to ask the server: their callers, their objects, and their cost.
//!
//! Calls that were answered here leave no trace and cost nothing. One that asked took a round trip
//! at least; noting it takes a lock for one store, and once a second for each thread a look at its
//! name in /proc. The ring is bounded; no call waits for it.

use crate::abi::opcode;
use crate::cred;
use crate::ops::Call;
use bytes::Bytes;
use hither_vfs::{Account, Fh, Name, Question};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Calls that are kept: about half a megabyte.
const CALLS_MAX: usize = 2048;
/// How long a thread is taken to be of the same program.
const REMEMBER: Duration = Duration::from_secs(1);
/// Threads remembered.
const THREADS_MAX: usize = 256;

/// A call that asked the server.
#[derive(Debug, Clone)]
pub struct RecentCall {
    /// How long ago it ended.
    pub ago: Duration,
    /// The kernel's request, as its header spells it (`LOOKUP`).
    pub op: &'static str,
    /// The name that it was about, when it was about a name in a directory.
    pub name: Option<Name>,
    /// Process, 0 when it cannot be seen from here, and its program.
    pub process: (u32, Arc<str>),
    /// User.
    pub uid: u32,
    /// From the kernel's request to the answer.
    pub took: Duration,
    /// The error it ended with, or 0.
    pub errno: i32,
    /// The questions, and the number of further ones.
    pub questions: SmallVec<[Question; 2]>,
    /// See `questions`.
    pub more: u32,
}

/// Calls that asked the server, from a number on.
#[derive(Debug, Clone)]
pub struct RecentCalls {
    /// The number to go on with.
    pub next: u64,
    /// How many in between are forgotten.
    pub lost: u64,
    /// The calls in order, with the path of each object below the mount point, as far as that is
    /// known.
    pub calls: Vec<(Option<Vec<Name>>, RecentCall)>,
}

/// A call with the handle of its object.
type OfObject = (Option<Fh>, RecentCall);

/// The ring.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    calls: Mutex<Ring>,
    threads: Mutex<HashMap<u32, (Instant, Process)>>,
}

/// The calls, and how many there were before the first of them.
#[derive(Debug, Default)]
struct Ring {
    calls: VecDeque<Noted>,
    gone: u64,
}

type Process = (u32, Arc<str>);

#[derive(Debug)]
struct Noted {
    at: Instant,
    fh: Option<Fh>,
    call: RecentCall,
}

impl Recent {
    /// Notes a call that is about to be answered. `fh` is the object that it names.
    pub fn note(&self, call: &Call, account: &Account, errno: i32, fh: Option<Fh>) {
        let (head, at) = (&call.head, Instant::now());
        let (questions, more) = account.questions();
        // A copy: the name is a slice of the request's buffer.
        let own = |name: &Name| Name::new(Bytes::copy_from_slice(name.as_bytes())).ok();
        let noted = RecentCall {
            ago: Duration::ZERO,
            op: opcode::name(head.opcode),
            name: call.name.as_ref().and_then(own),
            process: self.process(head.tid, at),
            uid: head.uid,
            took: at.duration_since(call.pending.started),
            errno,
            questions,
            more,
        };
        self.push(Noted { at, fh, call: noted });
    }

    fn push(&self, noted: Noted) {
        let mut ring = self.calls.lock();
        let oldest = if ring.calls.len() >= CALLS_MAX { ring.calls.pop_front() } else { None };
        ring.gone += u64::from(oldest.is_some());
        ring.calls.push_back(noted);
        drop(ring);
        drop(oldest);
    }

    fn process(&self, tid: u32, now: Instant) -> Process {
        let fresh = |at: &Instant| now.duration_since(*at) < REMEMBER;
        if let Some((at, process)) = self.threads.lock().get(&tid)
            && fresh(at)
        {
            return process.clone();
        }
        let process = cred::process(tid).map_or_else(|| (0, "?".into()), |(pid, name)| (pid, name.into()));
        let mut threads = self.threads.lock();
        if threads.len() >= THREADS_MAX {
            threads.retain(|_, (at, _)| fresh(at));
        }
        if threads.len() < THREADS_MAX {
            threads.insert(tid, (now, process.clone()));
        }
        process
    }

    /// The calls, newest first, about an object or about one of some names in directories.
    pub fn about(&self, object: Option<&Fh>, names: &[(Fh, Name)]) -> Vec<RecentCall> {
        let now = Instant::now();
        let ring = self.calls.lock();
        let about = |noted: &&Noted| match &noted.call.name {
            Some(name) => names.iter().any(|(dir, n)| noted.fh.as_ref() == Some(dir) && n == name),
            None => object.is_some() && noted.fh.as_ref() == object,
        };
        let found = ring.calls.iter().rev().filter(about);
        found.map(|noted| RecentCall { ago: now.duration_since(noted.at), ..noted.call.clone() }).collect()
    }
}

impl Recent {
    /// The calls from number `from` on, with their objects; before them the number of the next, and
    /// how many are forgotten.
    pub fn since(&self, from: u64) -> (u64, u64, Vec<OfObject>) {
        let now = Instant::now();
        let ring = self.calls.lock();
        let next = ring.gone + ring.calls.len() as u64;
        let from = from.min(next);
        let skip = from.saturating_sub(ring.gone) as usize;
        let told = |noted: &Noted| {
            (noted.fh.clone(), RecentCall { ago: now.duration_since(noted.at), ..noted.call.clone() })
        };
        (next, ring.gone.saturating_sub(from), ring.calls.iter().skip(skip).map(told).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fh(n: usize) -> Fh {
        Fh(Bytes::copy_from_slice(&n.to_be_bytes()))
    }

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes().to_vec()).unwrap()
    }

    fn noted(n: usize, name: Option<Name>) -> Noted {
        let call = RecentCall {
            ago: Duration::ZERO,
            op: "LOOKUP",
            name,
            process: (1, "x".into()),
            uid: n as u32,
            took: Duration::ZERO,
            errno: 0,
            questions: SmallVec::new(),
            more: 0,
        };
        Noted { at: Instant::now(), fh: Some(fh(n)), call }
    }

    #[test]
    fn the_newest_calls_are_found_by_object_and_by_name() {
        let recent = Recent::default();
        recent.push(noted(1, None));
        recent.push(noted(2, Some(name("a"))));
        recent.push(noted(2, Some(name("b"))));
        recent.push(noted(2, None));
        assert_eq!(recent.about(Some(&fh(2)), &[]).len(), 1, "names in a directory are not the directory");
        assert_eq!(recent.about(Some(&fh(1)), &[(fh(2), name("a"))]).len(), 2);
        assert_eq!(recent.about(None, &[(fh(2), name("c"))]).len(), 0);
        assert_eq!(recent.about(None, &[]).len(), 0);
        for n in 0..CALLS_MAX {
            recent.push(noted(10 + n % 2, None));
        }
        assert_eq!(recent.about(Some(&fh(1)), &[]).len(), 0, "the oldest went");
        assert_eq!(recent.about(Some(&fh(10)), &[]).len(), CALLS_MAX / 2);
        let (next, lost, calls) = recent.since(1);
        assert_eq!((next, lost, calls.len()), (CALLS_MAX as u64 + 4, 3, CALLS_MAX));
        let (_, lost, calls) = recent.since(next - 2);
        assert_eq!((lost, calls.len(), calls[1].0.clone()), (0, 2, Some(fh(11))));
        assert_eq!(recent.since(u64::MAX).2.len(), 0);
    }

    #[test]
    fn processes_are_named_once_in_a_while() {
        let recent = Recent::default();
        let own = std::process::id();
        let (pid, program) = recent.process(own, Instant::now());
        assert_eq!(pid, own);
        assert!(!program.is_empty() && &*program != "?");
        assert_eq!(recent.process(0, Instant::now()), (0, "?".into()));
        for tid in 4_000_000..4_000_500 {
            recent.process(tid, Instant::now());
        }
        assert!(recent.threads.lock().len() <= THREADS_MAX);
    }
}
