//! Which files were opened, in the order in which that first happened: of all programs, or of one and its children.
//!
//! It is off unless somebody records. Each open is looked at while its caller still waits, so the caller and those above it are there in
//! /proc. A recorder that is killed is replaced by the next. Everything is bounded; what does not fit is counted.

use crate::cred;
use hither_vfs::Name;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Files that are noted.
const FILES_MAX: usize = 1 << 20;
/// Bytes of their names.
const BYTES_MAX: usize = 128 << 20;
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

/// What was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traced {
    /// In the order in which they were first opened.
    pub files: Vec<TracedFile>,
    /// Files of which no name is known, and those that came when there was no room any more.
    pub lost: u64,
}

/// The recorder of a mount.
#[derive(Debug, Default)]
pub(crate) struct Tracer {
    on: AtomicBool,
    recording: Mutex<Option<Recording>>,
}

#[derive(Debug)]
struct Recording {
    by: u32,
    below: Option<u32>,
    began: Instant,
    seen: HashSet<u64>,
    bytes: usize,
    traced: Traced,
    processes: HashMap<u32, (Instant, bool)>,
}

impl Tracer {
    /// Begins for process `by`, noting what `below` and its children open, or everybody. `false`: another process records.
    pub fn start(&self, by: u32, below: Option<u32>) -> bool {
        let mut recording = self.recording.lock();
        if recording.as_ref().is_some_and(|r| r.by != by && cred::process(r.by).is_some()) {
            return false;
        }
        *recording = Some(Recording {
            by,
            below,
            began: Instant::now(),
            seen: HashSet::new(),
            bytes: 0,
            traced: Traced::default(),
            processes: HashMap::new(),
        });
        self.on.store(true, Ordering::Release);
        true
    }

    /// Ends what process `by` began; what was recorded.
    pub fn stop(&self, by: u32) -> Option<Traced> {
        let mut recording = self.recording.lock();
        let ended = recording.take_if(|r| r.by == by);
        self.on.store(recording.is_some(), Ordering::Release);
        ended.map(|r| r.traced)
    }

    /// A thread opened an object.
    pub fn opened(&self, tid: u32, object: u64, path: impl FnOnce() -> Option<Vec<Name>>) {
        if !self.on.load(Ordering::Acquire) {
            return;
        }
        let now = Instant::now();
        let (below, known) = match &*self.recording.lock() {
            Some(r) if !r.seen.contains(&object) => {
                let fresh = |(at, _): &&(Instant, bool)| now.duration_since(*at) < REMEMBER;
                (r.below, r.processes.get(&tid).filter(fresh).map(|(_, is)| *is))
            }
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
    fn note(&mut self, tid: u32, process: (Instant, bool), object: u64, path: Option<Vec<Name>>) {
        if self.processes.len() >= PROCESSES_MAX {
            self.processes.clear();
        }
        self.processes.insert(tid, process);
        if !process.1 || self.seen.contains(&object) {
            return;
        }
        let bytes =
            path.iter().flatten().map(|name| name.as_bytes().len() + size_of::<Name>()).sum::<usize>();
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

/// Whether a thread's process is `above` or a child of it, at whatever distance.
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
        assert!(tracer.start(own, None));
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
        assert!(tracer.start(own, Some(child.id())));
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
    async fn one_records_at_a_time_unless_it_has_gone() {
        let tracer = Tracer::default();
        let own = std::process::id();
        assert!(tracer.start(own, None));
        assert!(!tracer.start(1, None), "the first one lives");
        assert_eq!(tracer.stop(1), None);
        assert!(tracer.start(own, None), "the same one begins anew");
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        assert!(tracer.stop(own).is_some());
        assert!(tracer.start(gone.id(), None) && tracer.start(1, None));
    }
}
