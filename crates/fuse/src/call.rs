//! A request from its arrival until its answer, or until its caller is gone.
//!
//! The kernel sends an interrupt for any signal to a waiting caller, also for timers that the
//! program handles. If such an interrupt ended the call, programs would fail that work on a local
//! disk. So an interrupted call is answered with `EINTR` in three cases only:
//! - its caller is about to die;
//! - the call waits for a lock;
//! - the program got SIGINT, SIGTERM, SIGQUIT or SIGHUP, has a handler for it, and the call has
//!   waited for seconds.
//!
//! The kernel reports only the first signal, so [`Calls::sweep`] checks again later. The call of
//! the layer below continues to its end. A result that no caller takes is undone ([`Undo`]).

use crate::abi::{Header, opcode};
use crate::cred;
use crate::device::{Delivery, Device};
use crate::lockers::Locking;
use hither_vfs::{Data, Error, FileRange};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::ThreadId;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const SHARDS: usize = 16;
/// Time after which the sweep also checks a call without an interrupt. A dying process closes its
/// files without being interruptible. No program may hang because an interrupt was lost.
const EXITING_CHECK: Duration = Duration::from_secs(1);
/// Maximum number of buffers per writev(2), below `IOV_MAX`.
const PARTS_MAX: usize = 1000;

/// The result of a call.
#[derive(Debug)]
pub(crate) enum Body {
    /// Success without a body.
    Empty,
    /// A small body.
    Bytes(Vec<u8>),
    /// Contents of a file.
    Data(Data),
}

/// The action that undoes an answer that no caller takes.
#[derive(Debug)]
pub(crate) enum Undo {
    /// Nothing.
    Nothing,
    /// Lookups that the kernel does not count.
    Forget(Vec<u64>),
    /// An open file that the kernel does not release, and possibly a lookup.
    Close { file: u64, forget: Option<u64> },
    /// An open directory.
    CloseDir { dir: u64 },
    /// A lock that was granted too late.
    Unlock { locking: Locking, range: FileRange },
}

/// Answer of a call, with its undo action.
#[derive(Debug)]
pub(crate) struct Answer {
    pub body: Body,
    pub undo: Undo,
}

impl Answer {
    /// Success without a body.
    pub fn empty() -> Self {
        Self { body: Body::Empty, undo: Undo::Nothing }
    }

    /// An answer with these bytes.
    pub fn bytes(bytes: Vec<u8>) -> Self {
        Self { body: Body::Bytes(bytes), undo: Undo::Nothing }
    }

    /// The same answer with an undo action.
    pub fn or(self, undo: Undo) -> Self {
        Self { undo, ..self }
    }
}

/// A request without an answer.
#[derive(Debug)]
pub(crate) struct Pending {
    pub unique: u64,
    pub opcode: u32,
    tid: u32,
    device: Arc<Device>,
    /// The thread that read the request.
    reader: ThreadId,
    /// Time of the arrival.
    pub started: Instant,
    /// Cancellation of the calls of the layer below.
    pub cancel: CancellationToken,
    answered: AtomicBool,
    interrupted: AtomicBool,
    /// The request comes from the page cache, where `EINTR` would become another error (SIGBUS,
    /// EIO).
    patient: AtomicBool,
}

impl Pending {
    /// Answers once. Later answers are dropped.
    pub fn answer(&self, result: Result<&Body, i32>) -> Delivery {
        if self.answered.swap(true, Ordering::AcqRel) {
            return Delivery::Unwanted;
        }
        let sent = match result {
            Err(errno) => self.device.reply(self.unique, errno, &[]),
            Ok(Body::Empty) => self.device.reply(self.unique, 0, &[]),
            Ok(Body::Bytes(b)) => self.device.reply(self.unique, 0, &[IoSlice::new(b)]),
            Ok(Body::Data(d)) if d.parts().len() > PARTS_MAX => {
                let whole = d.clone().into_bytes();
                self.device.reply(self.unique, 0, &[IoSlice::new(&whole)])
            }
            Ok(Body::Data(d)) => {
                let parts: smallvec::SmallVec<[IoSlice<'_>; 8]> =
                    d.parts().iter().map(|p| IoSlice::new(p)).collect();
                self.device.reply(self.unique, 0, &parts)
            }
        };
        match sent {
            Ok(delivery) => delivery,
            Err(error) => {
                tracing::error!(op = opcode::name(self.opcode), %error, "the kernel refused a reply");
                let _ = self.device.reply(self.unique, libc::EIO, &[]);
                Delivery::Unwanted
            }
        }
    }

    /// Excludes `EINTR` answers. Only a dying caller ends the call.
    pub fn be_patient(&self) {
        self.patient.store(true, Ordering::Relaxed);
    }

    /// Whether the calling thread is the one that read the request, and reads the next one.
    pub fn is_on_reader(&self) -> bool {
        std::thread::current().id() == self.reader
    }

    fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Acquire)
    }

    fn interrupt(&self) {
        self.cancel.cancel();
        self.answer(Err(libc::EINTR));
    }

    /// Checks whether an interrupted call ends.
    fn judge(&self, now: Instant, patience: Duration) {
        if self.is_answered() {
            return;
        }
        let interrupted = self.interrupted.load(Ordering::Acquire);
        if interrupted && self.opcode == opcode::SETLKW {
            return self.interrupt();
        }
        let signals = cred::signals(self.tid);
        if signals.gone && !interrupted && self.opcode != opcode::FLUSH {
            // The waiting thread is not visible in this process namespace.
            return;
        }
        let waited = now.duration_since(self.started);
        let stop = interrupted
            && signals.asked_to_stop
            && waited >= patience
            && !self.patient.load(Ordering::Relaxed);
        if signals.fatal || stop {
            self.interrupt();
        }
    }
}

/// Running requests.
#[derive(Debug)]
pub(crate) struct Calls {
    shards: [Mutex<HashMap<u64, Arc<Pending>>>; SHARDS],
    patience: Duration,
    /// The shard whose long calls are checked next.
    turn: AtomicUsize,
}

impl Calls {
    /// `patience`: how long a call waits after its program got a signal to stop and handles the
    /// signal.
    pub fn new(patience: Duration) -> Self {
        Self { shards: Default::default(), patience, turn: AtomicUsize::new(0) }
    }

    fn shard(&self, unique: u64) -> &Mutex<HashMap<u64, Arc<Pending>>> {
        // The lowest bit marks interrupts.
        &self.shards[(unique >> 1) as usize % SHARDS]
    }

    /// Registers a request.
    pub fn begin(&self, head: &Header, device: &Arc<Device>) -> Arc<Pending> {
        let pending = Arc::new(Pending {
            unique: head.unique,
            opcode: head.opcode,
            tid: head.tid,
            device: device.clone(),
            reader: std::thread::current().id(),
            started: Instant::now(),
            cancel: CancellationToken::new(),
            answered: AtomicBool::new(false),
            interrupted: AtomicBool::new(false),
            patient: AtomicBool::new(false),
        });
        self.shard(head.unique).lock().insert(head.unique, pending.clone());
        pending
    }

    /// Removes a request.
    pub fn end(&self, unique: u64) {
        self.shard(unique).lock().remove(&unique);
    }

    /// Handles the kernel's report that the caller of `unique` got a signal. Returns false when the
    /// call is not registered (yet).
    pub fn interrupted(&self, unique: u64) -> bool {
        let Some(pending) = self.shard(unique).lock().get(&unique).cloned() else { return false };
        pending.interrupted.store(true, Ordering::Release);
        pending.judge(Instant::now(), self.patience);
        true
    }

    /// Checks calls whose callers got signals, and long closes. Other long calls are checked one
    /// shard at a time, because an unreachable server may have thousands of them. Returns the
    /// number of running calls.
    pub fn sweep(&self) -> usize {
        let now = Instant::now();
        let mut under_way = 0;
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % SHARDS;
        for (i, shard) in self.shards.iter().enumerate() {
            let suspects: Vec<Arc<Pending>> = {
                let shard = shard.lock();
                under_way += shard.len();
                shard.values().filter(|p| p.is_suspect(now, i == turn)).cloned().collect()
            };
            for pending in suspects {
                pending.judge(now, self.patience);
            }
        }
        under_way
    }

    /// Cancels calls after the end of the mount, when all callers are gone. Without `all`, calls
    /// that store data or release an open continue. Returns the number of remaining calls.
    pub fn abandon(&self, all: bool) -> usize {
        let mut left = 0;
        for shard in &self.shards {
            for pending in shard.lock().values() {
                if all || !pending.keeps_promise() {
                    pending.cancel.cancel();
                } else {
                    left += 1;
                }
            }
        }
        left
    }

    /// Number of running calls.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().len()).sum()
    }
}

impl Pending {
    fn keeps_promise(&self) -> bool {
        matches!(self.opcode, opcode::RELEASE | opcode::FLUSH | opcode::FSYNC | opcode::WRITE)
    }

    /// Whether only the thread of the request waits for the answer. Reads and writes of pages are
    /// for several callers.
    fn is_its_callers(&self) -> bool {
        matches!(
            self.opcode,
            opcode::LOOKUP
                | opcode::GETATTR
                | opcode::ACCESS
                | opcode::READLINK
                | opcode::OPEN
                | opcode::OPENDIR
                | opcode::READDIR
                | opcode::READDIRPLUS
                | opcode::STATFS
        )
    }

    fn is_suspect(&self, now: Instant, any: bool) -> bool {
        let long = now.duration_since(self.started) > EXITING_CHECK;
        let waits = long && (any && self.is_its_callers() || self.opcode == opcode::FLUSH);
        !self.is_answered() && (self.interrupted.load(Ordering::Acquire) || waits)
    }
}

/// The errno of a failure for the kernel.
pub(crate) fn errno(error: &Error) -> i32 {
    // The kernel accepts 1 to 511. ERESTARTSYS and similar values are internal to the kernel.
    if (1..512).contains(&error.errno) { error.errno } else { libc::EIO }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn head(unique: u64, opcode: u32, tid: u32) -> Header {
        Header { opcode, unique, tid, nodeid: 1, uid: 0, gid: 0, groups: Default::default() }
    }

    /// A killed process without wait(2).
    fn doomed() -> Child {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        child.kill().unwrap();
        let dying = || crate::cred::signals(child.id()).fatal;
        while !dying() {
            std::thread::yield_now();
        }
        child
    }

    /// An interrupt can get lost, so callers that wait for seconds are checked in any case. A
    /// request of the page cache does not belong to one caller. The state of invisible processes is
    /// unknown.
    #[tokio::test(start_paused = true)]
    async fn sweep_finds_killed_caller() {
        let mut child = doomed();
        let device = Arc::new(Device::open().unwrap());
        let calls = Calls::new(Duration::from_secs(5));
        let fate = |unique, opcode, tid| calls.begin(&head(unique, opcode, tid), &device);
        let dying = fate(2, opcode::LOOKUP, child.id());
        let page = fate(4, opcode::READ, child.id());
        let write = fate(6, opcode::WRITE, child.id());
        let unseen = fate(8, opcode::LOOKUP, u32::MAX / 2);
        let alive = fate(10, opcode::LOOKUP, std::process::id());
        let sweeps = || (0..SHARDS).for_each(|_| assert_eq!(calls.sweep(), 5));
        sweeps();
        assert!(!dying.is_answered(), "too early");
        tokio::time::advance(EXITING_CHECK * 2).await;
        sweeps();
        let answered = [&dying, &page, &write, &unseen, &alive].map(|p| p.is_answered());
        child.wait().unwrap();
        assert_eq!(answered, [true, false, false, false, false]);
    }
}
