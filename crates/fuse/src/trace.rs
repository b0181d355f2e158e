//! Which files were opened, in the order in which that first happened, or each request of the
//! kernel: of all programs, or of one and its children.
//!
//! It is off unless a process records. Each request is looked at while its caller still waits, so
//! the caller and its parents are there in /proc. Requests by the kernel itself (read-ahead,
//! writing back, RELEASE) have no caller, and count only when all processes are recorded. A
//! recorder that is killed is replaced by the next. Everything is bounded; requests beyond the
//! bounds are counted.

use crate::cred;
use hither_vfs::{Account, Name};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Files that are noted.
const FILES_MAX: usize = 1 << 20;
/// Bytes of their names.
const BYTES_MAX: usize = 128 << 20;
/// Requests that are noted: 64 MiB of them.
const CALLS_MAX: usize = 1 << 20;
/// How far up a process is followed.
const ABOVE_MAX: usize = 64;
/// How long a process is taken to be below the one that is recorded, or not.
const REMEMBER: Duration = Duration::from_secs(1);
/// Processes remembered.
const PROCESSES_MAX: usize = 1024;

/// A file that was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedFile {
    /// Since recording began.
    pub after: Duration,
    /// Below the mount point.
    pub path: Vec<Name>,
}

/// A request of the kernel that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedCall {
    /// From the beginning of recording to the request.
    pub after: Duration,
    /// From the request to the answer.
    pub took: Duration,
    /// As its header spells it (`READ`).
    pub op: &'static str,
    /// The object that it names: a number in [`Traced::objects`].
    pub object: u32,
    /// Where it read or wrote, and how many bytes.
    pub range: (u64, u64),
    /// Questions to the server that it waited for.
    pub asked: u32,
    /// How long these took.
    pub asked_for: Duration,
}

/// The recorded files or calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traced {
    /// In the order in which they were first opened.
    pub files: Vec<TracedFile>,
    /// In the order of their answers, if calls were asked for.
    pub calls: Vec<TracedCall>,
    /// The paths below the mount point of these objects, as far as they are known.
    pub objects: Vec<Option<Vec<Name>>>,
    /// Files of which no name is known, and files and calls that came when there was no room any
    /// more.
    pub lost: u64,
}

/// The kind of record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// Which files are opened.
    Opens,
    /// Each request.
    Calls,
}

/// A request that is to be noted.
pub(crate) struct Answered<'a> {
    pub tid: u32,
    pub started: Instant,
    pub op: &'static str,
    /// The inode.
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
    /// Begins for process `by`, noting the calls of `below` and its children, or of all processes.
    /// `false`: another process records.
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

    /// Ends the recording of process `by`; returns the record.
    pub fn stop(&self, by: u32) -> Option<Traced> {
        let mut recording = self.recording.lock();
        let ended = recording.take_if(|r| r.by == by);
        let still = |record| recording.as_ref().is_some_and(|r| r.record == record);
        self.on.store(still(Record::Opens), Ordering::Release);
        self.calls.store(still(Record::Calls), Ordering::Release);
        ended.map(|r| r.traced)
    }

    /// Whether calls are noted.
    pub fn notes_calls(&self) -> bool {
        self.calls.load(Ordering::Acquire)
    }

    /// A request is about to be answered.
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

    /// A thread opened an object.
    pub fn opened(&self, tid: u32, object: u64, path: impl FnOnce() -> Option<Vec<Name>>) {
        if !self.on.load(Ordering::Acquire) {
            return;
        }
        let now = Instant::now();
        let (below, known) = match &*self.recording.lock() {
            Some(r) if !r.seen.contains(&object) => (r.below, r.known(tid, now)),
            _ => return,
        };
        // Neither /proc nor the table of inodes is looked at under the lock.
        let is_below = known.unwrap_or_else(|| below.is_none_or(|above| is_below(tid, above)));
        let path = if is_below { path() } else { None };
        if let Some(r) = &mut *self.recording.lock() {
            r.note(tid, (now, is_below), object, path);
        }
    }
}

impl Recording {
    /// Whether a thread counts, if that was found out a moment ago.
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

/// The bytes that the names of a path take.
fn bytes_of(path: &Option<Vec<Name>>) -> usize {
    path.iter().flatten().map(|name| name.as_bytes().len() + size_of::<Name>()).sum()
}

/// Whether a thread's process is `above` or a descendant of it.
fn is_below(tid: u32, above: u32) -> bool {
    let Some((mut pid, _)) = cred::process(tid) else { return false };
    for _ in 0..ABOVE_MAX {
        if pid == above {
            return true;
        }
        match cred::parent(pid) {
            Some(parent) if parent > 1 => pid = parent,
            parent => return parent == Some(above),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Option<Vec<Name>> {
        Some(vec![Name::new(text.as_bytes().to_vec()).unwrap()])
    }

    fn names(traced: &Traced) -> Vec<String> {
        traced.files.iter().map(|f| String::from_utf8_lossy(f.path[0].as_bytes()).into_owned()).collect()
    }

    #[tokio::test]
    async fn files_are_noted_once_in_order_while_somebody_records() {
        let tracer = Tracer::default();
        let own = std::process::id();
        tracer.opened(own, 1, || panic!("nobody records"));
        assert!(tracer.start(own, None, Record::Opens));
        for (object, text) in [(3, "c"), (1, "a"), (3, "again"), (2, "b")] {
            tracer.opened(own, object, || name(text));
        }
        tracer.opened(own, 4, || None);
        let traced = tracer.stop(own).unwrap();
        assert_eq!((names(&traced).concat().as_str(), traced.lost), ("cab", 1));
        assert_eq!(tracer.stop(own), None);
        tracer.opened(own, 9, || panic!("nobody records"));
    }

    #[tokio::test]
    async fn of_a_program_its_children_count_and_nobody_else() {
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

    #[tokio::test]
    async fn calls_are_noted_with_what_they_cost() {
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
        tracer.answered(&call("READ", 7, before, None), || panic!("it began before"));
        let now = Instant::now();
        tracer.answered(&call("READ", 7, now, Some(&account)), || name("a"));
        tracer.answered(&call("WRITE", 7, now, None), || panic!("its name is known"));
        tracer.answered(&call("STATFS", 1, now, None), || None);
        tracer.opened(own, 9, || panic!("not only which files are opened"));
        let traced = tracer.stop(own).unwrap();
        assert!(!tracer.notes_calls());
        let found: Vec<_> =
            traced.calls.iter().map(|c| (c.op, c.object, c.asked, c.asked_for.as_millis())).collect();
        assert_eq!(found, [("READ", 0, 1, 3), ("WRITE", 0, 0, 0), ("STATFS", 1, 0, 0)]);
        assert_eq!((traced.objects, traced.calls[0].range), (vec![name("a"), None], (4096, 10)));
    }

    #[tokio::test]
    async fn one_records_at_a_time_unless_it_has_gone() {
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
