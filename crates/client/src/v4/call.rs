//! One compound, executed exactly once.
//!
//! It knows nothing of what operations mean. [`Core::compound`] takes a slot, puts SEQUENCE before
//! the operations, and keeps at it until the server executed them: the connection layer repeats a
//! request whose connection broke in the same slot under the same sequence number, so that the
//! server's reply cache answers it; here a lost session is replaced (see `recover`), and DELAY and
//! GRACE are waited out. Only then does the caller see results. It must run in a task of its own
//! when it changes something ([`Core::detached`]): its slot may not be reused before the reply.
//!
//! A compound is repeated as a whole only when the operation that failed is its first that changes
//! something, or comes before it; what fails after that is the caller's to judge. Nor is it
//! repeated for a mere wish ([`Compound::wishes_from`]).

use super::core::Core;
use super::fail::{Answered, Fail};
use super::recover::Need;
use super::session::{Session, SlotGuard};
use crate::error;
use bytes::Bytes;
use hither_proto::nfs4::{
    Compound as Message, CompoundReply, Nfsstat4, Op, OpRes, PROGRAM, Proc4, Results, SequenceArgs,
    SequenceOk, Text, VERSION,
};
use hither_proto::xdr::{Dec, Enc, Xdr};
use hither_rpc::{Call, CallError, Credential, Retransmit};
use hither_vfs::{Cx, Error};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Bytes around the operations of a compound: RPC header with an AUTH_SYS credential, record mark,
/// COMPOUND, SEQUENCE, PUTFH, and the small operations that go with a READ or WRITE.
pub(crate) const OVERHEAD_BYTES: u32 = 2048;

/// What to send.
#[derive(Debug, Clone)]
pub(crate) struct Compound {
    /// Label in the statistics.
    pub label: &'static str,
    ops: Vec<Op>,
    /// Index of the first operation that changes something; `usize::MAX` when none does.
    pivot: usize,
    /// Operations up to this index may wait for DELAY and GRACE: nothing was changed before them,
    /// and they are no wishes.
    patient: usize,
    /// Ask the server to keep the reply.
    cache: bool,
}

impl Compound {
    /// `ops` without SEQUENCE.
    pub fn new(label: &'static str, ops: impl IntoIterator<Item = Op>) -> Self {
        // The place of SEQUENCE, filled in for each attempt.
        let mut all = vec![Op::Illegal(0)];
        all.extend(ops);
        let pivot = all.iter().skip(1).position(|op| !op.is_idempotent()).map_or(usize::MAX, |i| i + 1);
        // Repeating these does no harm, and their replies may be too long to keep.
        let harmless = |op: &Op| {
            op.is_idempotent()
                || matches!(op, Op::Write(_) | Op::Commit(_) | Op::Allocate(_) | Op::Deallocate(_))
                || matches!(op, Op::TestStateid(_))
        };
        let cache = !all.iter().skip(1).all(harmless);
        Self { label, ops: all, pivot, patient: pivot, cache }
    }

    /// Whether the operation with which `answer` ends is the first that changes something, or
    /// before it.
    pub fn changed_nothing(&self, answer: &Answer) -> bool {
        answer.results.remaining() <= self.pivot
    }

    /// What stands behind the first `needed` operations are wishes: not worth waiting for.
    pub fn wishes_from(mut self, needed: usize) -> Self {
        self.patient = self.patient.min(needed);
        self
    }

    /// Executing it twice does no harm, and its reply may be long: the server need not keep it.
    pub fn uncached(mut self) -> Self {
        self.cache = false;
        self
    }
}

/// Results of an executed compound, SEQUENCE's taken off.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The results.
    pub results: Results<OpRes>,
    /// When the question was sent for the last time.
    pub asked: Instant,
    /// It was sent in more than one session: whether an earlier one executed it is unknown.
    pub repeated: bool,
    /// It ended at an operation that nobody needs, which is not sent again.
    pub unasked: bool,
}

/// How one request in a slot ended.
pub(crate) enum Outcome {
    /// The server executed it.
    Executed(Answer),
    /// Not executed, or at least not known to be, and the session is gone.
    Lost(Need),
    /// Not executed; take another slot.
    Again,
    /// Refused by SEQUENCE, for good.
    Refused(Nfsstat4),
    /// Perhaps executed; the reply cannot be decoded.
    Garbled,
    /// No reply that means anything.
    Failed(Error),
}

/// Waiting times that grow: never spinning, never longer than `most`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    next: Duration,
    most: Duration,
}

impl Backoff {
    /// NFS4ERR_DELAY: mostly a delegation being recalled, which takes a round trip or two.
    pub const DELAY: Self = Self { next: Duration::from_millis(20), most: Duration::from_secs(5) };
    /// NFS4ERR_GRACE: lasts as long as a lease, and everybody waits for its end.
    pub const GRACE: Self = Self { next: Duration::from_millis(250), most: Duration::from_secs(2) };
    /// A lock held by somebody else.
    pub const LOCK: Self = Self { next: Duration::from_millis(50), most: Duration::from_secs(2) };
    /// Recovery that does not succeed.
    pub const RECOVERY: Self = Self { next: Duration::from_millis(200), most: Duration::from_secs(15) };

    /// How long to wait now.
    pub fn step(&mut self) -> Duration {
        let now = self.next;
        self.next = (self.next * 2).min(self.most);
        now
    }
}

impl Core {
    /// Executes `c` for `cx.cred`. Interruptible as long as the server cannot have executed it.
    pub async fn compound(self: &Arc<Self>, cx: &Cx, mut c: Compound) -> Answered<Answer> {
        let cred = self.credential(&cx.cred);
        let (mut delay, mut grace) = (Backoff::DELAY, Backoff::GRACE);
        let mut repeated = false;
        loop {
            // What may have been executed must be seen through.
            let cancel = (!repeated || c.pivot == usize::MAX).then_some(&cx.cancel);
            let session = interruptible(cancel, self.ready()).await??;
            let Ok(guard) = interruptible(cancel, session.acquire()).await? else { continue };
            let began = Instant::now();
            let outcome = self.in_slot(&session, guard, &mut c, &cred).await;
            cx.asked(c.label, began.elapsed());
            match outcome {
                Outcome::Executed(answer) => {
                    let wait = match (answer.results.status(), answer.results.remaining() <= c.patient) {
                        (Nfsstat4::DELAY, true) => delay.step(),
                        (Nfsstat4::GRACE, true) => grace.step(),
                        _ => return Ok(Answer { repeated, ..answer }),
                    };
                    drop(answer);
                    interruptible(Some(&cx.cancel), tokio::time::sleep(wait)).await?;
                }
                Outcome::Lost(need) => {
                    repeated = true;
                    self.session_lost(session.epoch, need);
                }
                Outcome::Again => {}
                Outcome::Refused(status) => return Err(Fail::Nfs(status)),
                Outcome::Garbled => return Err(Fail::Garbled),
                Outcome::Failed(e) => return Err(Fail::Final(e)),
            }
        }
    }

    /// Executes `c` in a session that is being set up or recovered. `Err` when that session is lost
    /// too.
    pub async fn compound_in(
        self: &Arc<Self>,
        session: &Arc<Session>,
        cred: &Credential,
        mut c: Compound,
    ) -> Result<Answered<Answer>, Need> {
        let mut delay = Backoff::DELAY;
        loop {
            let guard = session.acquire().await.map_err(|_| Need::SESSION)?;
            match self.in_slot(session, guard, &mut c, cred).await {
                Outcome::Executed(a) if a.results.status() == Nfsstat4::DELAY => {
                    tokio::time::sleep(delay.step()).await;
                }
                Outcome::Executed(answer) => return Ok(Ok(answer)),
                Outcome::Lost(need) => return Err(need),
                Outcome::Again => {}
                Outcome::Refused(status) => return Ok(Err(Fail::Nfs(status))),
                Outcome::Garbled => return Ok(Err(Fail::Garbled)),
                Outcome::Failed(e) => return Ok(Err(Fail::Final(e))),
            }
        }
    }

    /// One request in its slot, until the server executed or refused it.
    async fn in_slot(
        self: &Arc<Self>,
        session: &Arc<Session>,
        mut guard: SlotGuard,
        c: &mut Compound,
        cred: &Credential,
    ) -> Outcome {
        let mut delay = Backoff::DELAY;
        loop {
            c.ops[0] = Op::Sequence(SequenceArgs {
                sessionid: session.id,
                sequenceid: guard.seqid(),
                slotid: guard.slot(),
                highest_slotid: guard.highest(),
                cachethis: c.cache,
            });
            let message = Message::new(self.minor, std::mem::take(&mut c.ops));
            let args = Enc::of(&message);
            c.ops = message.ops;
            guard.sent();
            let asked = Instant::now();
            let reply = self.rpc.call(self.rpc_call(c.label, cred.clone(), args, None)).await;
            let (reply, connection) = match reply {
                Ok(r) => (Dec::all::<CompoundReply>(&r.body).map_err(|_| r.body), r.connection),
                Err(e) => return self.no_reply(guard, e),
            };
            let reply = match reply {
                Ok(reply) => reply,
                Err(body) if sequence_succeeded(&body) => {
                    guard.replied(true);
                    return Outcome::Garbled;
                }
                // The sequence number's fate is unknown: the slot stays taken.
                Err(_) => return Outcome::Garbled,
            };
            if reply.status != Nfsstat4::OK {
                self.stats.error(c.label);
            }
            let mut results = reply.results();
            let refused = match results.sequence() {
                Ok(ok) => {
                    guard.replied(true);
                    self.sequenced(session, &ok, asked);
                    // Some servers (ganesha) say so in the operation that follows (RFC 8881 section
                    // 18.46.3).
                    if results.status() == Nfsstat4::RETRY_UNCACHED_REP && !c.cache {
                        return Outcome::Again;
                    }
                    return Outcome::Executed(Answer { results, asked, repeated: false, unasked: false });
                }
                Err(e) => e.status().unwrap_or(Nfsstat4::SERVERFAULT),
            };
            match refused {
                Nfsstat4::DELAY => tokio::time::sleep(delay.step()).await,
                Nfsstat4::CONN_NOT_BOUND_TO_SESSION => {
                    tokio::time::sleep(delay.step()).await;
                    if let Err(need) = self.bind(session, connection).await {
                        return Outcome::Lost(need);
                    }
                }
                refused => return refuse(session, guard, refused),
            }
        }
    }

    fn no_reply(&self, guard: SlotGuard, e: CallError) -> Outcome {
        match e {
            // Rejected before the compound was looked at: the slot is as it was.
            CallError::Denied(_)
            | CallError::ProgUnavail
            | CallError::ProgMismatch { .. }
            | CallError::ProcUnavail
            | CallError::GarbageArgs
            | CallError::TooLarge { .. }
            | CallError::RpcMismatch { .. } => guard.replied(false),
            _ => drop(guard),
        }
        Outcome::Failed(error::call(&e))
    }

    /// A compound outside of sessions (EXCHANGE_ID and its kin), perhaps on one particular
    /// connection.
    pub async fn bare(
        &self,
        label: &'static str,
        op: Op,
        connection: Option<usize>,
        deadline: Option<Instant>,
    ) -> Result<Results<OpRes>, CallError> {
        let args = Enc::of(&Message::new(self.minor, vec![op]));
        let mut call = self.rpc_call(label, self.root_credential(), args, connection);
        call.deadline = deadline;
        let reply = self.rpc.call(call).await?;
        let reply = Dec::all::<CompoundReply>(&reply.body)
            .map_err(|_| CallError::PeerMisbehaved("its reply to COMPOUND cannot be decoded"))?;
        if reply.status != Nfsstat4::OK {
            self.stats.error(label);
        }
        Ok(reply.results())
    }

    fn rpc_call(&self, op: &'static str, cred: Credential, args: Enc, connection: Option<usize>) -> Call {
        Call {
            prog: PROGRAM,
            vers: VERSION,
            proc: Proc4::COMPOUND.0,
            op,
            cred,
            args,
            connection,
            retransmit: Retransmit::OnReconnect,
            deadline: None,
            cancel: None,
        }
    }

    /// What each successful SEQUENCE says.
    fn sequenced(self: &Arc<Self>, session: &Arc<Session>, ok: &SequenceOk, asked: Instant) {
        session.adapt(ok.target_highest_slotid, ok.highest_slotid);
        self.renewed(asked);
        if ok.status_flags != 0 {
            self.status_flags(session, ok.status_flags);
        }
    }
}

/// Whether a reply that cannot be decoded at least begins with a successful SEQUENCE: its slot can
/// be used again.
fn sequence_succeeded(body: &Bytes) -> bool {
    let mut d = Dec::new(body);
    let mut first = || -> hither_proto::xdr::Result<OpRes> {
        let (_status, _tag) = (Nfsstat4::dec(&mut d)?, Text::dec(&mut d)?);
        d.u32()?;
        OpRes::dec(&mut d)
    };
    matches!(first(), Ok(OpRes::Sequence(Ok(_))))
}

/// What a refusal by SEQUENCE means (RFC 8881 section 18.46.3); the sequence number has not moved.
fn refuse(session: &Arc<Session>, guard: SlotGuard, status: Nfsstat4) -> Outcome {
    match status {
        Nfsstat4::RETRY_UNCACHED_REP => {
            // It was executed and its reply not kept, as we said: it does no harm to send it again.
            guard.replied(true);
            Outcome::Again
        }
        Nfsstat4::BADSLOT | Nfsstat4::BAD_HIGH_SLOT => {
            session.refused_slot(guard.slot());
            guard.replied(false);
            Outcome::Again
        }
        Nfsstat4::BADSESSION
        | Nfsstat4::DEADSESSION
        | Nfsstat4::SEQ_MISORDERED
        | Nfsstat4::SEQ_FALSE_RETRY
        | Nfsstat4::SERVERFAULT => {
            tracing::info!(%status, "the session is lost");
            Outcome::Lost(Need::SESSION)
        }
        status => {
            guard.replied(false);
            Outcome::Refused(status)
        }
    }
}

/// Waits for `f`, or for the caller to be interrupted.
pub(crate) async fn interruptible<T>(
    cancel: Option<&CancellationToken>,
    f: impl Future<Output = T>,
) -> Answered<T> {
    match cancel {
        None => Ok(f.await),
        Some(cancel) => tokio::select! {
            biased;
            v = f => Ok(v),
            () = cancel.cancelled() => Err(Fail::Final(Error::new(libc::EINTR))),
        },
    }
}
