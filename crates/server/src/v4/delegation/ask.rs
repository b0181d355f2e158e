//! What the holder of a delegation for writing knows of its file: CB_GETATTR (RFC 8881 sections
//! 10.4.3 and 20.1).
//!
//! It knows nothing of who asks, and of operations. Whoever wants only attributes of such a file
//! does not take it from its holder ([`Leases::look`]): the holder tells `change` and length. A
//! `change` that is the one which he was told first under the delegation says that the server has
//! all there is, so the file's own attributes are true; a greater one, that he has more, and then
//! his length is shown, and a time and a `change` of our own. A holder who says anything else, or
//! nothing for [`ANSWER_WITHIN`], has the file recalled.
//!
//! That time and that `change` are given out once, each greater than those before. The `change` is
//! of a range that no file's own is in (`CHANGE_OF_SERVER`), and the time, which is all that
//! clients of NFSv3 have, is later than the file's own: nothing that a client keeps under the one
//! or the other is ever proved by them. (RFC 8881 would have the file's `change` plus one, which
//! the file could get by itself later, with other bytes.) The time is that of the question, less
//! what the file system's clock may be behind: so what the file gets with the bytes is not before
//! it, but where those were on their way already.
//!
//! An answer is older than a write that its holder acknowledges while it travels. So those who ask
//! while a question is out share the next one, and never that.

use super::{Delegation, Leases, id, key};
use crate::handle;
use crate::v4::clients::Client;
use hither_proto::nfs4::{Bitmap4, CbGetattrArgs, CbOp, CbRes, Nfsstat4, attr};
use hither_vfs::{Attr, CHANGE_OF_SERVER, Env, Fh, Time};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Semaphore;

/// How long whoever wants attributes waits for a holder: some round trips. He waits as long for the
/// recall, if that has to be.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Most questions that are out: one of a client that does not answer is out until the call is given
/// up.
const MOST: usize = 64;
/// What a file system's clock may be behind: two timer ticks at 100 Hz.
const BEHIND_NS: i128 = 20_000_000;
/// Longest file.
const FILE_MAX_BYTES: u64 = i64::MAX as u64;

/// What whoever wants attributes of a file is to be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// The file's own.
    Own,
    /// The same, but not those that were read before: somebody may have delayed something then.
    Anew,
    /// Those, read anew, with what the holder told ([`Leases::tell`]).
    Told(Told),
}

/// The holder of a file has more of it than the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    size_bytes: u64,
}

/// What the holder of a delegation is asked for.
#[derive(Default)]
pub(super) struct Asking {
    /// The first `change` that he was told under it.
    granted: OnceLock<u64>,
    /// Questions that were sent.
    sent: AtomicU64,
    /// The last of them that was answered, and what that means. Held while one is out.
    last: tokio::sync::Mutex<Option<(u64, Look)>>,
    /// He did not answer: the file is recalled.
    in_vain: AtomicBool,
}

/// What all questions have in common.
pub(super) struct Questions {
    /// Those that may be sent.
    room: Arc<Semaphore>,
    /// Those that were.
    sent: AtomicU64,
    env: Env,
    /// The next `change`, less what makes it one of ours.
    next_change: AtomicU64,
    /// The last time that was shown.
    last_ns: Mutex<i128>,
}

impl Questions {
    pub fn new(env: &Env) -> Self {
        let wall = wall_ns(env);
        Self {
            room: Arc::new(Semaphore::new(MOST)),
            sent: AtomicU64::new(0),
            env: env.clone(),
            // Not the numbers of a life before: they were counted from its time, and there were
            // fewer than nanoseconds since.
            next_change: AtomicU64::new(wall as u64),
            last_ns: Mutex::new(i128::MIN),
        }
    }
}

impl Leases {
    /// Whoever calls wants a file's attributes and nothing else: what he is to be shown. Waits for
    /// the holder's word, or else until nobody delays writes to the file ([`Leases::read`]).
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

    /// The delegation of somebody else whose holder may be asked about a file.
    fn to_ask(self: &Arc<Self>, client: Option<&Arc<Client>>, fh: &Fh) -> Option<Arc<Delegation>> {
        let client = client.map(|c| id(c));
        self.act(|inner, now| {
            // A lease that has ended by now is nobody's.
            inner.table.handle_timeout(now);
            let d = inner.writing.get(&key(fh)).filter(|d| client != Some(d.holder()))?;
            (!inner.table.is_recovering() && d.may_be_asked()).then(|| d.clone())
        })
    }

    /// What the holder says from now on; `None`: nothing that is of use.
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
        let op = CbOp::Getattr(CbGetattrArgs {
            fh: handle::object(d.file.0, &d.file.1).into(),
            attr_request: Bitmap4::of(&[attr::CHANGE, attr::SIZE]),
        });
        let minor = d.minor;
        self.questions.sent.fetch_add(1, SeqCst);
        // Whoever stops waiting does not take the session's turn along.
        let call = tokio::spawn(async move {
            let answer = session.call_back(minor, op).await;
            drop(room);
            answer
        });
        let Ok(Ok(CbRes::Getattr(Ok(told)))) = call.await else { return None };
        let (change, size_bytes) = told.change.zip(told.size)?;
        let granted = *d.asking.granted.get()?;
        match change.cmp(&granted) {
            std::cmp::Ordering::Equal => Some(Look::Anew),
            std::cmp::Ordering::Greater if size_bytes <= FILE_MAX_BYTES => {
                Some(Look::Told(Told { size_bytes }))
            }
            _ => None,
        }
    }

    /// Puts what a holder told over the file's own attributes, which were asked for after he did.
    pub fn tell(&self, told: Told, attr: &mut Attr) {
        let number = self.questions.next_change.fetch_add(1, SeqCst);
        attr.change = CHANGE_OF_SERVER | number & !CHANGE_OF_SERVER;
        attr.size_bytes = told.size_bytes;
        let time = {
            let mut last = self.questions.last_ns.lock();
            let now = wall_ns(&self.questions.env) - BEHIND_NS;
            *last = now.max(nanos(attr.ctime) + 1).max(*last + 1);
            time(*last)
        };
        (attr.mtime, attr.ctime) = (time, time);
    }

    /// A client is told a file's `change`: what it has of the file is no older, if the file is
    /// delegated to it.
    pub fn told_holder(&self, client: &Client, fh: &Fh, change: u64) {
        if self.writers.load(SeqCst) == 0 {
            return;
        }
        if let Some(d) = self.inner.lock().writing.get(&key(fh)).filter(|d| d.holder() == id(client)) {
            d.asking.granted.get_or_init(|| change);
        }
    }

    /// What is delegated, and what clients were called for.
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
    /// Whatever the holder would answer, the file is recalled instead.
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

/// Delegations that are held now, and calls to clients about them since the server began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DelegationCounts {
    /// Files delegated for reading.
    pub reading: usize,
    /// Files delegated for writing.
    pub writing: usize,
    /// Directories.
    pub directories: usize,
    /// CB_RECALL.
    pub recalls: u64,
    /// CB_GETATTR.
    pub getattrs: u64,
}

fn wall_ns(env: &Env) -> i128 {
    (env.wall)().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos() as i128
}

fn nanos(t: Time) -> i128 {
    i128::from(t.secs) * 1_000_000_000 + i128::from(t.nanos)
}

fn time(ns: i128) -> Time {
    Time { secs: ns.div_euclid(1_000_000_000) as i64, nanos: ns.rem_euclid(1_000_000_000) as u32 }
}
