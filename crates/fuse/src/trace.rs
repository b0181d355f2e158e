//! Recording of opened files in the order of their first open, or of each request. The recorded
//! programs are all, or one process and its children.
//!
//! Recording is off until a process starts it. Each request is recorded while its caller still
//! waits, so the caller and its parents exist in /proc. Requests by the kernel itself (read-ahead,
//! write-back, RELEASE) have no caller. They are recorded only with all processes. When a recording
//! process is killed, the next one replaces it. All records are bounded, and requests beyond the
//! bounds are counted.

use crate::cred;
use hither_vfs::{Account, Name};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of recorded files.
const FILES_MAX: usize = 1 << 20;
/// Maximum bytes of their names.
const BYTES_MAX: usize = 128 << 20;
/// Maximum number of recorded requests: 64 MiB of them.
const CALLS_MAX: usize = 1 << 20;
/// Maximum number of parents of a process that are checked.
const ABOVE_MAX: usize = 64;
/// Maximum number of parents that end during one search.
const RESTARTS_MAX: u32 = 8;
/// Time for which the membership of a process in the recording is cached.
const REMEMBER: Duration = Duration::from_secs(1);
/// Maximum number of cached processes.
const PROCESSES_MAX: usize = 1024;

/// An opened file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedFile {
    /// Time since the start of the recording.
    pub after: Duration,
    /// Path below the mount point.
    pub path: Vec<Name>,
}

/// An answered request of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedCall {
    /// Time from the start of the recording to the request.
    pub after: Duration,
    /// Time from the request to the answer.
    pub took: Duration,
    /// Name of the request in the kernel's header (`READ`).
    pub op: &'static str,
    /// The object of the request: an index in [`Traced::objects`].
    pub object: u32,
    /// Offset and number of bytes of a read or write.
    pub range: (u64, u64),
    /// Number of requests to the server that the call waited for.
    pub asked: u32,
    /// Total time of these requests.
    pub asked_for: Duration,
}

/// The recorded files or calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traced {
    /// Files in the order of their first open.
    pub files: Vec<TracedFile>,
    /// Calls in the order of their answers, when calls are recorded.
    pub calls: Vec<TracedCall>,
    /// The paths of these objects below the mount point, when known.
    pub objects: Vec<Option<Vec<Name>>>,
    /// Number of files without a known name, and of files and calls beyond the bounds.
    pub lost: u64,
}

/// The kind of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// Opened files.
    Opens,
    /// All requests.
    Calls,
}

/// A request to record.
pub(crate) struct Answered<'a> {
    pub tid: u32,
    pub started: Instant,
    pub op: &'static str,
    /// The inode number.
    pub object: u64,
    pub range: (u64, u64),
    pub account: Option<&'a Account>,
}

/// The recorder of a mount.
#[derive(Debug, Default)]
pub(crate) struct Tracer {
    on: AtomicBool,
    calls: AtomicBool,
    recording: Mutex<Option<Recording>>,
}

#[derive(Debug)]
struct Recording {
    by: u32,
    below: Option<u32>,
    began: Instant,
    record: Record,
    seen: HashSet<u64>,
    numbers: HashMap<u64, u32>,
    bytes: usize,
    traced: Traced,
    processes: HashMap<u32, (Instant, bool)>,
}

impl Tracer {
    /// Starts a recording for process `by`: the calls of `below` and its children, or of all
    /// processes. Returns `false` when another process is recording.
    pub fn start(&self, by: u32, below: Option<u32>, record: Record) -> bool {
        let mut recording = self.recording.lock();
        if recording.as_ref().is_some_and(|r| r.by != by && cred::process(r.by).is_some()) {
            return false;
        }
        *recording = Some(Recording {
            by,
            below,
            began: Instant::now(),
            record,
            seen: HashSet::new(),
            numbers: HashMap::new(),
            bytes: 0,
            traced: Traced::default(),
            processes: HashMap::new(),
        });
        self.on.store(record == Record::Opens, Ordering::Release);
        self.calls.store(record == Record::Calls, Ordering::Release);
        true
    }

    /// Ends the recording of process `by`, and returns the record.
    pub fn stop(&self, by: u32) -> Option<Traced> {
        let mut recording = self.recording.lock();
        let ended = recording.take_if(|r| r.by == by);
        let still = |record| recording.as_ref().is_some_and(|r| r.record == record);
        self.on.store(still(Record::Opens), Ordering::Release);
        self.calls.store(still(Record::Calls), Ordering::Release);
        ended.map(|r| r.traced)
    }

    /// Whether calls are being recorded.
    pub fn notes_calls(&self) -> bool {
        self.calls.load(Ordering::Acquire)
    }

    /// Records a request that is about to be answered.
    pub fn answered(&self, call: &Answered<'_>, path: impl FnOnce() -> Option<Vec<Name>>) {
        let now = Instant::now();
        let (below, known, is_new) = match &*self.recording.lock() {
            Some(r) if r.record == Record::Calls && r.began <= call.started => {
                (r.below, r.known(call.tid, now), !r.numbers.contains_key(&call.object))
            }
            _ => return,
        };
        let is_below = known.unwrap_or_else(|| below.is_none_or(|above| is_below(call.tid, above)));
        let path = if is_below && is_new { path() } else { None };
        if let Some(r) = &mut *self.recording.lock()
            && r.record == Record::Calls
        {
            r.note_call(call, (now, is_below), path);
        }
    }

    /// Records an open by a thread.
    pub fn opened(&self, tid: u32, object: u64, path: impl FnOnce() -> Option<Vec<Name>>) {
        if !self.on.load(Ordering::Acquire) {
            return;
        }
        let now = Instant::now();
        let (below, known) = match &*self.recording.lock() {
            Some(r) if !r.seen.contains(&object) => (r.below, r.known(tid, now)),
            _ => return,
        };
        // /proc and the table of inodes are not read under the lock.
        let is_below = known.unwrap_or_else(|| below.is_none_or(|above| is_below(tid, above)));
        let path = if is_below { path() } else { None };
        if let Some(r) = &mut *self.recording.lock() {
            r.note(tid, (now, is_below), object, path);
        }
    }
}

impl Recording {
    /// Whether a thread is recorded, when that is cached.
    fn known(&self, tid: u32, now: Instant) -> Option<bool> {
        let fresh = |(at, _): &&(Instant, bool)| now.duration_since(*at) < REMEMBER;
        self.processes.get(&tid).filter(fresh).map(|(_, is)| *is)
    }

    fn remember(&mut self, tid: u32, process: (Instant, bool)) {
        if self.processes.len() >= PROCESSES_MAX {
            self.processes.clear();
        }
        self.processes.insert(tid, process);
    }

    fn note_call(&mut self, call: &Answered<'_>, process: (Instant, bool), path: Option<Vec<Name>>) {
        self.remember(call.tid, process);
        if !process.1 {
            return;
        }
        let known = self.numbers.get(&call.object).copied();
        let bytes = if known.is_none() { bytes_of(&path) } else { 0 };
        if self.traced.calls.len() >= CALLS_MAX || self.bytes + bytes > BYTES_MAX {
            self.traced.lost += 1;
            return;
        }
        let object = known.unwrap_or_else(|| {
            let number = self.traced.objects.len() as u32;
            self.traced.objects.push(path);
            self.numbers.insert(call.object, number);
            self.bytes += bytes;
            number
        });
        let (questions, more) = call.account.map(Account::questions).unwrap_or_default();
        self.traced.calls.push(TracedCall {
            after: call.started.duration_since(self.began),
            took: process.0.duration_since(call.started),
            op: call.op,
            object,
            range: call.range,
            asked: questions.len() as u32 + more,
            asked_for: questions.iter().map(|question| question.took).sum(),
        });
    }

    fn note(&mut self, tid: u32, process: (Instant, bool), object: u64, path: Option<Vec<Name>>) {
        self.remember(tid, process);
        if !process.1 || self.seen.contains(&object) {
            return;
        }
        let bytes = bytes_of(&path);
        let room = self.seen.len() < FILES_MAX && self.bytes + bytes <= BYTES_MAX;
        match path.filter(|_| room) {
            Some(path) => {
                let after = process.0.duration_since(self.began.min(process.0));
                self.traced.files.push(TracedFile { after, path });
                self.bytes += bytes;
                self.seen.insert(object);
            }
            None => self.traced.lost += 1,
        }
    }
}

/// The bytes of the names of a path.
fn bytes_of(path: &Option<Vec<Name>>) -> usize {
    path.iter().flatten().map(|name| name.as_bytes().len() + size_of::<Name>()).sum()
}

/// Whether a thread's process is `above` or a descendant of it.
fn is_below(tid: u32, above: u32) -> bool {
    let Some((pid, _)) = cred::process(tid) else { return false };
    descends(pid, above, cred::parent)
}

/// Whether a process is `above` or a descendant of it. A parent that ends during the search leaves
/// its children to another process, so the search begins again.
fn descends(pid: u32, above: u32, parent_of: impl Fn(u32) -> Option<u32>) -> bool {
    let (mut here, mut restarts) = (pid, 0);
    for _ in 0..ABOVE_MAX {
        if here == above {
            return true;
        }
        match parent_of(here) {
            Some(parent) if parent > 1 => here = parent,
            Some(parent) => return parent == above,
            None if here == pid || restarts == RESTARTS_MAX => return false,
            None => {
                restarts += 1;
                here = pid;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process whose parent ends during the search is found below its next parent.
    #[test]
    fn ended_parent_restarts_search() {
        let asked = std::cell::Cell::new(0);
        // Process 30 is a child of 20, which ends. Then it is a child of 10.
        let parent_of = |pid| {
            asked.set(asked.get() + 1);
            match (pid, asked.get()) {
                (30, 1) => Some(20),
                (30, _) => Some(10),
                (10, _) => Some(1),
                _ => None,
            }
        };
        assert!(descends(30, 10, parent_of));
        assert!(!descends(30, 11, |pid| (pid == 30).then_some(1)));
        assert!(!descends(30, 11, |pid| (pid == 30).then_some(20)), "an end at each search");
    }

    fn name(text: &str) -> Option<Vec<Name>> {
        Some(vec![Name::new(text.as_bytes().to_vec()).unwrap()])
    }

    fn names(traced: &Traced) -> Vec<String> {
        traced.files.iter().map(|f| String::from_utf8_lossy(f.path[0].as_bytes()).into_owned()).collect()
    }

    /// Files are recorded once, in the order of their first open, and only while a recording runs.
    #[tokio::test]
    async fn trace_records_files_once() {
        let tracer = Tracer::default();
        let own = std::process::id();
        tracer.opened(own, 1, || panic!("no recording"));
        assert!(tracer.start(own, None, Record::Opens));
        for (object, text) in [(3, "c"), (1, "a"), (3, "again"), (2, "b")] {
            tracer.opened(own, object, || name(text));
        }
        tracer.opened(own, 4, || None);
        let traced = tracer.stop(own).unwrap();
        assert_eq!((names(&traced).concat().as_str(), traced.lost), ("cab", 1));
        assert_eq!(tracer.stop(own), None);
        tracer.opened(own, 9, || panic!("no recording"));
    }

    /// A recording of one process contains its children, and no other processes.
    #[tokio::test]
    async fn trace_includes_child_processes() {
        let tracer = Tracer::default();
        let own = std::process::id();
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().unwrap();
        let grandchild = || {
            let list = format!("/proc/{0}/task/{0}/children", child.id());
            std::fs::read_to_string(list).unwrap().trim().parse::<u32>().ok()
        };
        let grandchild = std::iter::repeat_with(grandchild).find_map(|pid| pid).unwrap();
        assert!(tracer.start(own, Some(child.id()), Record::Opens));
        tracer.opened(own, 1, || name("above"));
        tracer.opened(grandchild, 2, || name("below"));
        tracer.opened(child.id(), 3, || name("itself"));
        tracer.opened(0, 4, || name("nobody"));
        assert_eq!(names(&tracer.stop(own).unwrap()), ["below", "itself"]);
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_raw(grandchild as i32).unwrap(),
            rustix::process::Signal::KILL,
        );
        child.wait().unwrap();
    }

    /// A recorded call has its requests to the server and their time.
    #[tokio::test]
    async fn trace_records_cost_of_calls() {
        let tracer = Tracer::default();
        let own = std::process::id();
        let account = Account::default();
        account.asked("READ", Duration::from_millis(3));
        let call = |op, object, started, account| Answered {
            tid: own,
            started,
            op,
            object,
            range: (4096, 10),
            account,
        };
        assert!(!tracer.notes_calls());
        let before = Instant::now();
        assert!(tracer.start(own, None, Record::Calls) && tracer.notes_calls());
        tracer.answered(&call("READ", 7, before, None), || panic!("the call began before"));
        let now = Instant::now();
        tracer.answered(&call("READ", 7, now, Some(&account)), || name("a"));
        tracer.answered(&call("WRITE", 7, now, None), || panic!("its name is known"));
        tracer.answered(&call("STATFS", 1, now, None), || None);
        tracer.opened(own, 9, || panic!("calls are recorded, not opens"));
        let traced = tracer.stop(own).unwrap();
        assert!(!tracer.notes_calls());
        let found: Vec<_> =
            traced.calls.iter().map(|c| (c.op, c.object, c.asked, c.asked_for.as_millis())).collect();
        assert_eq!(found, [("READ", 0, 1, 3), ("WRITE", 0, 0, 0), ("STATFS", 1, 0, 0)]);
        assert_eq!((traced.objects, traced.calls[0].range), (vec![name("a"), None], (4096, 10)));
    }

    /// Only one process records at a time. A recording of a process that has ended is replaced.
    #[tokio::test]
    async fn ended_recorder_is_replaced() {
        let tracer = Tracer::default();
        let own = std::process::id();
        assert!(tracer.start(own, None, Record::Opens));
        assert!(!tracer.start(1, None, Record::Opens), "the first one lives");
        assert_eq!(tracer.stop(1), None);
        assert!(tracer.start(own, None, Record::Opens), "the same one begins anew");
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        assert!(tracer.stop(own).is_some());
        assert!(tracer.start(gone.id(), None, Record::Opens) && tracer.start(1, None, Record::Opens));
    }
}
