//! The recent calls with requests to the server: their callers, their objects, and their cost.
//!
//! Calls that were answered from the cache are not recorded and cost nothing. A call with a request
//! took at least one round trip. Recording it takes a lock for one store, and once per second and
//! thread a read of the thread's name in /proc. The ring is bounded. No call waits for it.

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

/// Maximum number of recorded calls: about half a megabyte.
const CALLS_MAX: usize = 2048;
/// Time for which the program of a thread is cached.
const REMEMBER: Duration = Duration::from_secs(1);
/// Maximum number of cached threads.
const THREADS_MAX: usize = 256;

/// A call with a request to the server.
#[derive(Debug, Clone)]
pub struct RecentCall {
    /// Time since its end.
    pub ago: Duration,
    /// Name of the kernel's request in the kernel's header (`LOOKUP`).
    pub op: &'static str,
    /// The name in the request, in the directory of the request.
    pub name: Option<Name>,
    /// Process id and program. The process id is 0 when the process is not visible in this
    /// namespace.
    pub process: (u32, Arc<str>),
    /// User id of the caller.
    pub uid: u32,
    /// Time from the kernel's request to the answer.
    pub took: Duration,
    /// The errno of the answer, or 0.
    pub errno: i32,
    /// The requests to the server.
    pub questions: SmallVec<[Question; 2]>,
    /// Number of further requests.
    pub more: u32,
}

/// The recorded calls from a number on.
#[derive(Debug, Clone)]
pub struct RecentCalls {
    /// The number of the next call.
    pub next: u64,
    /// Number of dropped calls in between.
    pub lost: u64,
    /// The calls in order, with the known path of each object below the mount point.
    pub calls: Vec<(Option<Vec<Name>>, RecentCall)>,
}

/// A call with the filehandle of its object.
type OfObject = (Option<Fh>, RecentCall);

/// The ring.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    calls: Mutex<Ring>,
    threads: Mutex<HashMap<u32, (Instant, Process)>>,
}

/// The calls, and the number of dropped calls before them.
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
    /// Records a call that is about to be answered. `fh` is the object of the request.
    pub fn note(&self, call: &Call, account: &Account, errno: i32, fh: Option<Fh>) {
        let (head, at) = (&call.head, Instant::now());
        let (questions, more) = account.questions();
        // A copy, because the name is a slice of the request's buffer.
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

    /// The calls about an object or about names in directories, newest first.
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
    /// The number of the next call, the number of dropped calls, and the calls from number `from`
    /// on with their objects.
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

    /// Recorded calls are found by object or by name, and the ring drops the oldest calls.
    #[test]
    fn recent_calls_are_found_by_object() {
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
        assert_eq!(recent.about(Some(&fh(1)), &[]).len(), 0, "the oldest call was dropped");
        assert_eq!(recent.about(Some(&fh(10)), &[]).len(), CALLS_MAX / 2);
        let (next, lost, calls) = recent.since(1);
        assert_eq!((next, lost, calls.len()), (CALLS_MAX as u64 + 4, 3, CALLS_MAX));
        let (_, lost, calls) = recent.since(next - 2);
        assert_eq!((lost, calls.len(), calls[1].0.clone()), (0, 2, Some(fh(11))));
        assert_eq!(recent.since(u64::MAX).2.len(), 0);
    }

    /// The name of a process is read from /proc and cached, and the cache is bounded.
    #[test]
    fn process_names_are_cached() {
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
