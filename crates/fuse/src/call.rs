//! A request on its way: from the kernel to an answer, or to the moment when nobody wants one any more.
//!
//! The kernel sends an interrupt for any signal to a waiting caller, also for timers that the program handles. Disturbing calls
//! for those would make programs fail that work on a local disk, so an interrupted call is answered `EINTR` only
//! when its caller is about to die, when it waits for a lock, or when somebody asked the program to stop
//! (SIGINT, SIGTERM, SIGQUIT, SIGHUP with a handler) and the call has been waiting for seconds. The
//! kernel tells of the first signal only, so [`Calls::sweep`] looks again later. The work below
//! goes on to its end; what it brings is undone when nobody takes it ([`Undo`]).

use crate::abi::{Header, opcode};
use crate::cred;
use crate::device::{Delivery, Device};
use crate::handles::OpenFile;
use hither_vfs::{Data, Error, FileRange, LockOwner};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::OwnedRwLockReadGuard;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const SHARDS: usize = 16;
/// A call waiting longer than this is looked at by the sweep even without an interrupt, when its caller
/// may be on its way out.
const EXITING_CHECK: Duration = Duration::from_secs(1);
/// Most buffers passed to one writev(2), below `IOV_MAX`.
const PARTS_MAX: usize = 1000;

/// What a call brings.
#[derive(Debug)]
pub(crate) enum Body {
    /// Success without contents.
    Empty,
    /// A few bytes.
    Bytes(Vec<u8>),
    /// Contents of a file.
    Data(Data),
}

/// What to take back when nobody takes the answer.
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

/// Answer of a call with what to do if it is not wanted.
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
}

impl Calls {
    /// `patience`: how long a call waits when its program was asked to stop but handles that itself.
    pub fn new(patience: Duration) -> Self {
        Self { shards: Default::default(), patience }
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

    /// The kernel says that the caller of `unique` got a signal. False when there is no such call here (yet).
    pub fn interrupted(&self, unique: u64) -> bool {
        let Some(pending) = self.shard(unique).lock().get(&unique).cloned() else { return false };
        pending.interrupted.store(true, Ordering::Release);
        pending.judge(Instant::now(), self.patience);
        true
    }

    /// Looks again at calls whose callers got signals, and at closes that wait long: a dying process closes its files
    /// without being interruptible. Returns the number of calls under way.
    pub fn sweep(&self) -> usize {
        let now = Instant::now();
        let mut under_way = 0;
        for shard in &self.shards {
            let suspects: Vec<Arc<Pending>> = {
                let shard = shard.lock();
                under_way += shard.len();
                shard.values().filter(|p| p.is_suspect(now)).cloned().collect()
            };
            for pending in suspects {
                pending.judge(now, self.patience);
            }
        }
        under_way
    }

    /// The mount is gone, and with it everybody who waits. Calls that keep a promise about data, or give something back,
    /// go on unless `all`; returns how many are left of those.
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

    fn is_suspect(&self, now: Instant) -> bool {
        let closing = self.opcode == opcode::FLUSH && now.duration_since(self.started) > EXITING_CHECK;
        !self.is_answered() && (self.interrupted.load(Ordering::Acquire) || closing)
    }
}

/// The errno of a failure as the kernel may see it.
pub(crate) fn errno(error: &Error) -> i32 {
    // The kernel accepts 1 to 511; ERESTARTSYS and its kin are its own affair.
    if (1..512).contains(&error.errno) { error.errno } else { libc::EIO }
}
