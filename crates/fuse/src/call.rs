//! A request on its way: from the kernel to an answer, or to the moment when its caller has gone.
//!
//! The kernel sends an interrupt for any signal to a waiting caller, also for timers that the
//! program handles. Disturbing calls for those would make programs fail that work on a local disk.
//! So an interrupted call is answered `EINTR` in three cases only: its caller is about to die; it
//! waits for a lock; or the program was asked to stop (SIGINT, SIGTERM, SIGQUIT, SIGHUP with a
//! handler) and the call has been waiting for seconds. The kernel reports the first signal only, so
//! [`Calls::sweep`] looks again later. The work below goes on to its end; a result without a taker
//! is undone ([`Undo`]).

use crate::abi::{Header, opcode};
use crate::cred;
use crate::device::{Delivery, Device};
use crate::handles::OpenFile;
use hither_vfs::{Data, Error, FileRange, LockOwner};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::OwnedRwLockReadGuard;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const SHARDS: usize = 16;
/// The sweep looks at a call that waits longer than this even without an interrupt. A dying process
/// closes its files without being interruptible, and no program may hang because word of its signal
/// did not come.
const EXITING_CHECK: Duration = Duration::from_secs(1);
/// Most buffers passed to one writev(2), below `IOV_MAX`.
const PARTS_MAX: usize = 1000;

/// The result of a call.
#[derive(Debug)]
pub(crate) enum Body {
    /// Success without contents.
    Empty,
    /// A few bytes.
    Bytes(Vec<u8>),
    /// Contents of a file.
    Data(Data),
}

/// The action that undoes an answer without a taker.
#[derive(Debug)]
pub(crate) enum Undo {
    /// Nothing.
    Nothing,
    /// Look-ups that the kernel will not count.
    Forget(Vec<u64>),
    /// An open file that the kernel will not release, and perhaps a look-up.
    Close { file: u64, forget: Option<u64> },
    /// An open directory.
    CloseDir { dir: u64 },
    /// A lock that was granted too late.
    Unlock { file: Arc<OpenFile>, owner: LockOwner, range: FileRange, held: OwnedRwLockReadGuard<()> },
}

/// Answer of a call with its undo action.
#[derive(Debug)]
pub(crate) struct Answer {
    pub body: Body,
    pub undo: Undo,
}

impl Answer {
    /// Success without contents.
    pub fn empty() -> Self {
        Self { body: Body::Empty, undo: Undo::Nothing }
    }

    /// These bytes.
    pub fn bytes(bytes: Vec<u8>) -> Self {
        Self { body: Body::Bytes(bytes), undo: Undo::Nothing }
    }

    /// The same answer with something to undo.
    pub fn or(self, undo: Undo) -> Self {
        Self { undo, ..self }
    }
}

/// A request that was read and not answered yet.
#[derive(Debug)]
pub(crate) struct Pending {
    pub unique: u64,
    pub opcode: u32,
    tid: u32,
    device: Arc<Device>,
    /// When it was read.
    pub started: Instant,
    /// Passed to the layer below.
    pub cancel: CancellationToken,
    answered: AtomicBool,
    interrupted: AtomicBool,
    /// Comes from the page cache, where `EINTR` would become an error of its own (SIGBUS, EIO).
    patient: AtomicBool,
}

impl Pending {
    /// Answers, once; later attempts are unwanted.
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

    /// Says that `EINTR` would do harm; only a dying caller ends the call.
    pub fn be_patient(&self) {
        self.patient.store(true, Ordering::Relaxed);
    }

    fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Acquire)
    }

    fn interrupt(&self) {
        self.cancel.cancel();
        self.answer(Err(libc::EINTR));
    }

    /// Decides about an interrupted call.
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
            // Its waiting thread is somewhere: it cannot be seen from here.
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

/// Requests under way.
#[derive(Debug)]
pub(crate) struct Calls {
    shards: [Mutex<HashMap<u64, Arc<Pending>>>; SHARDS],
    patience: Duration,
    /// Whose turn it is to have all its waiting calls looked at.
    turn: AtomicUsize,
}

impl Calls {
    /// `patience`: how long a call waits when its program was asked to stop but handles that
    /// itself.
    pub fn new(patience: Duration) -> Self {
        Self { shards: Default::default(), patience, turn: AtomicUsize::new(0) }
    }

    fn shard(&self, unique: u64) -> &Mutex<HashMap<u64, Arc<Pending>>> {
        // The lowest bit marks interrupts.
        &self.shards[(unique >> 1) as usize % SHARDS]
    }

    /// A request begins.
    pub fn begin(&self, head: &Header, device: &Arc<Device>) -> Arc<Pending> {
        let pending = Arc::new(Pending {
            unique: head.unique,
            opcode: head.opcode,
            tid: head.tid,
            device: device.clone(),
            started: Instant::now(),
            cancel: CancellationToken::new(),
            answered: AtomicBool::new(false),
            interrupted: AtomicBool::new(false),
            patient: AtomicBool::new(false),
        });
        self.shard(head.unique).lock().insert(head.unique, pending.clone());
        pending
    }

    /// A request ended.
    pub fn end(&self, unique: u64) {
        self.shard(unique).lock().remove(&unique);
    }

    /// The kernel says that the caller of `unique` got a signal. False when there is no such call
    /// here (yet).
    pub fn interrupted(&self, unique: u64) -> bool {
        let Some(pending) = self.shard(unique).lock().get(&unique).cloned() else { return false };
        pending.interrupted.store(true, Ordering::Release);
        pending.judge(Instant::now(), self.patience);
        true
    }

    /// Looks again at calls whose callers got signals, and at closes that wait long; at others that
    /// wait long a part at a time, since a dead server may have thousands of them. Returns the
    /// number of calls under way.
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

    /// The mount is gone, and with it all waiting callers. Calls that keep a promise about data, or
    /// give something back, go on unless `all`; returns the number of those that are left.
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

    /// Number of calls under way.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().len()).sum()
    }
}

impl Pending {
    fn keeps_promise(&self) -> bool {
        matches!(self.opcode, opcode::RELEASE | opcode::FLUSH | opcode::FSYNC | opcode::WRITE)
    }

    /// Whether the very thread that the kernel names waits for the answer, and no other. Pages are
    /// read and written for many.
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

/// The errno of a failure as the kernel may see it.
pub(crate) fn errno(error: &Error) -> i32 {
    // The kernel accepts 1 to 511; ERESTARTSYS and its kin are its own affair.
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

    /// A process that was killed and is not buried.
    fn doomed() -> Child {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        child.kill().unwrap();
        let dying = || crate::cred::signals(child.id()).fatal;
        while !dying() {
            std::thread::yield_now();
        }
        child
    }

    /// Word of a signal can get lost: callers that wait for seconds are checked in any case. A
    /// request of the page cache does not belong to one caller, and the state of invisible
    /// processes is unknown.
    #[tokio::test(start_paused = true)]
    async fn a_killed_caller_without_an_interrupt_is_found() {
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
