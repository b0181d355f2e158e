//! Calls that extend the kernel's length of a file.
//!
//! The thread of such a call extends the kernel's length after the answer, when the kernel
//! schedules it ([`crate::unprocessed`]). Until then the kernel ignores the length in answers to
//! GETATTR, but stat(2) shows it. A mapping of that length would fail with SIGBUS. So stat(2) of
//! another thread shows the earlier length until the answer, and then waits for the thread.

use super::Inode;
use crate::hint::Missed;
use crate::hint::caller::SystemCall;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum time that stat(2) waits for a thread with an answer. A thread that computes after its
/// call looks like a thread that has not processed the answer.
pub(crate) const PROCESSING_MAX: Duration = Duration::from_millis(50);
/// Interval of checks of such a thread.
pub(crate) const CHECK: Duration = Duration::from_millis(1);

/// A running call that may extend a file.
#[derive(Debug, Clone, Copy)]
struct Change {
    /// Thread of the call.
    tid: u32,
    /// The kernel's length without the call; `None` when unknown.
    before: Option<u64>,
    progress: Progress,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// No answer.
    Running,
    /// The answer is being written.
    Answering,
    /// The answer was written at this time, and has woken the thread.
    Answered(Instant),
}

/// The running calls that may extend a file.
#[derive(Debug, Default)]
pub(super) struct Extending(Vec<Change>);

impl Extending {
    /// The kernel's length without the running calls, if it is `known` with them.
    fn before(&self, known: Option<u64>) -> Option<u64> {
        self.0.iter().fold(known, |least, change| Some(least?.min(change.before?)))
    }

    /// Records that the mount has set the length to `size`.
    pub fn set(&mut self, size: u64) {
        for change in &mut self.0 {
            change.before = change.before.map(|before| before.min(size));
        }
    }
}

/// A call that may extend a file, until the kernel has processed its answer.
#[derive(Debug)]
pub(crate) struct Extends {
    inode: Arc<Inode>,
    tid: u32,
    end: u64,
}

impl Extends {
    /// Starts a call of thread `tid` that may extend the file to `end`. `None` when the kernel has
    /// that length, or when the thread is outside this PID namespace.
    pub fn begin(inode: &Arc<Inode>, tid: u32, end: u64) -> Option<Self> {
        let mut s = inode.state.lock();
        let before = s.length.extending.before(s.length.known());
        let extends = tid != 0 && before.is_none_or(|size| end > size);
        extends.then(|| {
            s.length.extending.0.push(Change { tid, before, progress: Progress::Running });
            Self { inode: inode.clone(), tid, end }
        })
    }

    /// Records that the answer is about to be written.
    pub fn answering(&self) {
        self.advance(Progress::Running, Progress::Answering);
    }

    /// Records that the answer was written.
    pub fn answered(&self) {
        self.advance(Progress::Answering, Progress::Answered(Instant::now()));
    }

    fn advance(&self, from: Progress, to: Progress) {
        let mut s = self.inode.state.lock();
        let mut changes = s.length.extending.0.iter_mut();
        if let Some(change) = changes.find(|change| change.tid == self.tid && change.progress == from) {
            change.progress = to;
        }
    }
}

impl Drop for Extends {
    fn drop(&mut self) {
        let mut s = self.inode.state.lock();
        let changes = &mut s.length.extending.0;
        if let Some(at) = changes.iter().position(|change| change.tid == self.tid) {
            changes.swap_remove(at);
        }
        for change in changes {
            change.before = change.before.map(|before| before.max(self.end));
        }
    }
}

impl Inode {
    /// Whether a call of another thread than `tid` has extended the file, and the kernel may not
    /// have extended its length yet.
    pub fn has_unprocessed_length(&self, tid: u32) -> bool {
        let others: Vec<Change> = {
            let s = self.state.lock();
            s.length.extending.0.iter().filter(|change| change.tid != tid).copied().collect()
        };
        others.iter().any(|change| match change.progress {
            // Without a known length, stat(2) shows the new one.
            Progress::Running => change.before.is_none(),
            Progress::Answering => true,
            // A thread that sleeps again has processed the answer.
            Progress::Answered(at) => {
                at.elapsed() < PROCESSING_MAX && SystemCall::of(change.tid) == Err(Missed::Running)
            }
        })
    }

    /// The length that stat(2) of thread `tid` shows of a file with `size`. Calls of other threads
    /// without an answer do not count.
    pub fn shown_length(&self, tid: u32, size: u64) -> u64 {
        let s = self.state.lock();
        let mut running =
            s.length.extending.0.iter().filter(|c| c.tid != tid && c.progress == Progress::Running);
        running.try_fold(size, |least, change| Some(least.min(change.before?))).unwrap_or(size)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Inodes;
    use super::super::tests::{inodes, node};
    use super::*;
    use hither_vfs::FileKind;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// No thread has this number, so no thread of that number runs.
    const GONE: u32 = u32::MAX;

    fn file() -> (Inodes, Arc<Inode>) {
        let inodes = inodes();
        let file = inodes.remember(None, &node("f", 5, FileKind::Regular)).unwrap();
        file.has_length(10);
        (inodes, file)
    }

    /// stat(2) of other threads shows a longer file after the answer only.
    #[test]
    fn length_is_shown_after_answer() {
        let (_inodes, i) = file();
        assert!(Extends::begin(&i, GONE, 10).is_none(), "the kernel has the length");
        assert!(Extends::begin(&i, 0, 20).is_none(), "an unknown thread");
        let one = Extends::begin(&i, GONE, 20).unwrap();
        assert_eq!((i.shown_length(1, 20), i.shown_length(GONE, 20)), (10, 20));
        i.wrote(20, false);
        assert_eq!(i.shown_length(1, 20), 10, "without an answer");
        let other = Extends::begin(&i, GONE - 1, 30).unwrap();
        assert_eq!(i.shown_length(1, 30), 10);
        one.answering();
        one.answered();
        drop(one);
        assert_eq!(i.shown_length(1, 30), 20, "the kernel has processed the first answer");
        i.has_length(5);
        assert_eq!(i.shown_length(1, 30), 5, "shortened");
        other.answering();
        assert_eq!(i.shown_length(1, 30), 30);
    }

    /// stat(2) waits for threads with an answer until they sleep, for a short time.
    #[tokio::test(start_paused = true)]
    async fn length_waits_for_running_threads() {
        let (_inodes, i) = file();
        let over = Arc::new(AtomicBool::new(false));
        let (tell, told) = std::sync::mpsc::channel();
        let runs = over.clone();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            while !runs.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let running = told.recv().unwrap();
        for (tid, sleeps) in [(GONE, true), (running, false)] {
            let extends = Extends::begin(&i, tid, 20).unwrap();
            assert!(!i.has_unprocessed_length(1), "{tid}: no answer");
            extends.answering();
            assert!(i.has_unprocessed_length(1) && !i.has_unprocessed_length(tid));
            extends.answered();
            assert_eq!(i.has_unprocessed_length(1), !sleeps, "{tid}");
            tokio::time::advance(PROCESSING_MAX).await;
            assert!(!i.has_unprocessed_length(1));
        }
        over.store(true, Ordering::Relaxed);
        thread.join().unwrap();
    }
}
