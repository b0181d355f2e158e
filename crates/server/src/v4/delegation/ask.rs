//! Asking the holder of a write delegation for the attributes of its file: CB_GETATTR (RFC 8881
//! sections 10.4.3 and 20.1).
//!
//! The module knows nothing of operations or of the client that wants attributes. An operation that
//! wants only attributes does not recall the delegation ([`Leases::look`]). The holder reports
//! `change` and size. It compares with the first `change` that the holder got under the delegation.
//! An equal `change` means that the server has all data, so the file's own attributes are correct.
//! A greater `change` means that the holder has more data. The server then shows the holder's size,
//! with a time and a `change` of the server's own. After any other answer, or none within
//! [`ANSWER_WITHIN`], the file is recalled. A holder that maintains the times also reports them
//! ([`HolderTimes`]). The server then shows the holder's modification time. The ctime stays the
//! server's own, because clients compare it to find changes.
//!
//! Each such time and `change` is used once, and each is greater than those before. The `change` is
//! from a range that no file system uses (`CHANGE_OF_SERVER`). The time, on which NFSv3 clients
//! rely alone, is later than the file's own. Neither value can therefore validate a client's cache
//! later. RFC 8881 proposes the file's `change` plus one instead. The file could reach that value
//! by itself later, with other data. The time is that of the question, less the possible lag of the
//! file system's clock. The time that the file gets with the data is therefore not earlier, unless
//! the data was already on its way.
//!
//! An answer may be older than a write that the holder accepts while the answer travels. Operations
//! that arrive while a question is out therefore share the next question, never that one.

use super::{Delegation, HolderTimes, Leases, id, key};
use crate::handle;
use crate::v4::attrs::OF_HOLDER;
use crate::v4::clients::Client;
use hither_proto::nfs4::{Bitmap4, CbGetattrArgs, CbOp, CbRes, Nfsstat4, attr};
use hither_vfs::{Attr, CHANGE_OF_SERVER, Env, Fh, Time};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Semaphore;

/// For how long an operation waits for the holder's answer: a few round trips. If a recall follows,
/// the operation waits for that as well.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Most questions in progress. A question to a client that does not answer stays in progress until
/// the callback times out.
const MAX: usize = 64;
/// The possible lag of a file system's clock, in nanoseconds: two timer ticks at 100 Hz.
const BEHIND_NS: i128 = 20_000_000;
/// Longest file, in bytes.
const FILE_MAX_BYTES: u64 = i64::MAX as u64;

/// The attributes to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// The file's own attributes.
    Own,
    /// The file's own attributes, read again: a client may have had delayed writes at the first
    /// read.
    Anew,
    /// The file's own attributes, read again, with the holder's answer ([`Leases::tell`]).
    Told(HolderAnswer),
}

/// The answer of a holder that has more data than the server, or maintains the times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HolderAnswer {
    /// The size in bytes, when the holder has more data.
    size_bytes: Option<u64>,
    times: HolderTimes,
}

/// CB_GETATTR calls to the holder of a delegation.
#[derive(Default)]
pub(super) struct Asking {
    /// The first `change` that the holder got under the delegation.
    granted: OnceLock<u64>,
    /// Number of questions sent.
    sent: AtomicU64,
    /// Number of the last answered question, and its result. The lock is held while a question is
    /// in progress.
    last: tokio::sync::Mutex<Option<(u64, Look)>>,
    /// The holder did not answer: the file is recalled instead.
    in_vain: AtomicBool,
}

/// The state that all questions share.
pub(super) struct Questions {
    /// Permits to send questions.
    room: Arc<Semaphore>,
    /// Number of questions sent.
    sent: AtomicU64,
    env: Env,
    /// The next `change`, without the bit that marks the server's own range.
    next_change: AtomicU64,
    /// The last time that was shown, in nanoseconds.
    last_ns: Mutex<i128>,
}

impl Questions {
    pub fn new(env: &Env) -> Self {
        let wall = wall_ns(env);
        Self {
            room: Arc::new(Semaphore::new(MAX)),
            sent: AtomicU64::new(0),
            env: env.clone(),
            // Starts at the wall clock in nanoseconds, above all numbers of earlier runs. Those
            // started at an earlier time and grew by less than one each nanosecond.
            next_change: AtomicU64::new(wall as u64),
            last_ns: Mutex::new(i128::MIN),
        }
    }
}

impl Questions {
    /// The server's present time.
    pub fn now(&self) -> Time {
        time(wall_ns(&self.env))
    }
}

impl Leases {
    /// The attributes to show to an operation that wants only attributes. Waits for the holder's
    /// answer, or else until no client has delayed writes to the file ([`Leases::read`]).
    ///
    /// # Errors
    /// As [`Leases::read`].
    pub async fn look(
        self: &Arc<Self>,
        client: Option<&Arc<Client>>,
        fh: &Fh,
        patience: Duration,
    ) -> Result<Look, Nfsstat4> {
        if !self.may_be_delayed() {
            return Ok(Look::Own);
        }
        if let Some(d) = self.to_ask(client, fh)
            && let Some(look) = self.ask(&d).await
        {
            return Ok(look);
        }
        let anew = self.read(client, fh, patience).await?;
        Ok(if anew { Look::Anew } else { Look::Own })
    }

    /// Another client's write delegation whose holder can be asked about a file.
    fn to_ask(self: &Arc<Self>, client: Option<&Arc<Client>>, fh: &Fh) -> Option<Arc<Delegation>> {
        let client = client.map(|c| id(c));
        self.act(|inner, now| {
            // A delegation that has expired by now must not be asked.
            inner.table.handle_timeout(now);
            let d = inner.writing.get(&key(fh)).filter(|d| client != Some(d.holder()))?;
            (!inner.table.is_recovering() && d.may_be_asked()).then(|| d.clone())
        })
    }

    /// The holder's answer to a question sent from now on. `None`: no useful answer.
    async fn ask(&self, d: &Arc<Delegation>) -> Option<Look> {
        let arrived = d.asking.sent.load(SeqCst);
        let asked = tokio::time::timeout(ANSWER_WITHIN, async {
            let mut last = d.asking.last.lock().await;
            if let Some((_, look)) = last.filter(|(number, _)| *number > arrived) {
                return Some(look);
            }
            if !d.may_be_asked() {
                return None;
            }
            let number = d.asking.sent.fetch_add(1, SeqCst) + 1;
            let look = self.question(d).await?;
            *last = Some((number, look));
            Some(look)
        });
        let look = asked.await.ok().flatten();
        if look.is_none() {
            d.asking.in_vain.store(true, SeqCst);
        }
        look
    }

    async fn question(&self, d: &Arc<Delegation>) -> Option<Look> {
        let room = self.questions.room.clone().try_acquire_owned().ok()?;
        let session = d.client.sessions().into_iter().find(|s| s.back_is_up())?;
        let original = d.original_times();
        let data = Bitmap4::of(&[attr::CHANGE, attr::SIZE]);
        let attr_request = if original.is_some() { data.union(OF_HOLDER) } else { data };
        let fh = handle::object(d.file.0, &d.file.1).into();
        let op = CbOp::Getattr(CbGetattrArgs { fh, attr_request });
        let minor = d.minor;
        self.questions.sent.fetch_add(1, SeqCst);
        // The callback runs in a task of its own, so that it completes even if the operation stops
        // waiting.
        let call = tokio::spawn(async move {
            let answer = session.call_back(minor, op).await;
            drop(room);
            answer
        });
        let Ok(Ok(CbRes::Getattr(Ok(told)))) = call.await else { return None };
        let (change, size_bytes) = told.change.zip(told.size)?;
        let granted = *d.asking.granted.get()?;
        let mut times = HolderTimes::default();
        if let (Some(original), Ok(presented)) = (original, HolderTimes::of(&told)) {
            times = self.accepted_times(original, presented);
            // The original time says nothing about new data.
            times.modify = times.modify.filter(|modify| *modify != original.modify);
        }
        match change.cmp(&granted) {
            std::cmp::Ordering::Equal if times.is_none() => Some(Look::Anew),
            std::cmp::Ordering::Equal => Some(Look::Told(HolderAnswer { size_bytes: None, times })),
            std::cmp::Ordering::Greater if size_bytes <= FILE_MAX_BYTES => {
                Some(Look::Told(HolderAnswer { size_bytes: Some(size_bytes), times }))
            }
            _ => None,
        }
    }

    /// Merges a holder's answer into the file's own attributes, which must have been read after the
    /// answer.
    pub fn tell(&self, told: HolderAnswer, attr: &mut Attr) {
        let HolderTimes { access, modify } = told.times;
        attr.atime = access.map_or(attr.atime, |access| access.max(attr.atime));
        let Some(size_bytes) = told.size_bytes else {
            attr.mtime = modify.map_or(attr.mtime, |modify| modify.max(attr.mtime));
            return;
        };
        let number = self.questions.next_change.fetch_add(1, SeqCst);
        attr.change = CHANGE_OF_SERVER | number & !CHANGE_OF_SERVER;
        attr.size_bytes = size_bytes;
        let time = {
            let mut last = self.questions.last_ns.lock();
            let now = wall_ns(&self.questions.env) - BEHIND_NS;
            let least = modify.map_or(i128::MIN, Time::as_nanos);
            *last = now.max(attr.ctime.as_nanos() + 1).max(*last + 1).max(least);
            time(*last)
        };
        attr.ctime = time;
        attr.mtime = modify.unwrap_or(time);
    }

    /// Records a `change` that a client gets in a reply. If the client holds the file, its data is
    /// at least that recent.
    pub fn told_holder(&self, client: &Client, fh: &Fh, change: u64) {
        if self.writers.load(SeqCst) == 0 {
            return;
        }
        if let Some(d) = self.inner.lock().writing.get(&key(fh)).filter(|d| d.holder() == id(client)) {
            d.asking.granted.get_or_init(|| change);
        }
    }

    /// The present numbers of NQNFS leases and of waiting operations.
    pub fn lease_counts(&self) -> LeaseCounts {
        let inner = self.inner.lock();
        let (leases, write_leases) = inner.short.counts();
        LeaseCounts { leases, write_leases, waiters: inner.waiting.len() }
    }

    pub fn counts(&self) -> DelegationCounts {
        let [all, writing, directories] =
            [&self.count, &self.writers, &self.directories].map(|n| n.load(SeqCst));
        DelegationCounts {
            reading: all.saturating_sub(writing + directories),
            writing,
            directories,
            recalls: self.recalls.load(SeqCst),
            getattrs: self.questions.sent.load(SeqCst),
        }
    }
}

impl Asking {
    /// From now on the file is recalled instead of asking the holder.
    pub fn ask_never(&self) {
        self.in_vain.store(true, SeqCst);
    }
}

impl Delegation {
    fn may_be_asked(&self) -> bool {
        let asking = &self.asking;
        let of_use = asking.granted.get().is_some() && !asking.in_vain.load(SeqCst);
        of_use && !self.is_recalled() && !self.is_revoked()
    }
}

/// Numbers of the NQNFS leases and of the waiting operations.
#[derive(Debug, Clone, Copy, Default)]
pub struct LeaseCounts {
    pub leases: usize,
    /// The write leases among them.
    pub write_leases: usize,
    /// Operations that wait for clients.
    pub waiters: usize,
}

/// Numbers of current delegations, and of calls to clients about them since the server began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DelegationCounts {
    /// Files delegated for reading.
    pub reading: usize,
    /// Files delegated for writing.
    pub writing: usize,
    /// Delegated directories.
    pub directories: usize,
    /// CB_RECALLs sent.
    pub recalls: u64,
    /// CB_GETATTRs sent.
    pub getattrs: u64,
}

fn wall_ns(env: &Env) -> i128 {
    (env.wall)().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos() as i128
}

fn time(ns: i128) -> Time {
    Time { secs: ns.div_euclid(1_000_000_000) as i64, nanos: ns.rem_euclid(1_000_000_000) as u32 }
}
