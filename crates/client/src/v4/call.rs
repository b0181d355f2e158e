//! One compound, executed exactly once.
//!
//! [`Core::compound`] takes a slot, puts SEQUENCE before the operations, and retries until the
//! server has executed them. After a broken connection the RPC layer repeats the request in the
//! same slot under the same sequence number. The server answers it from its reply cache. This
//! module replaces a lost session (see `recover`) and waits during DELAY and GRACE. Only then does
//! the caller get results. A compound that changes something must run in its own task
//! ([`Core::detached`]), because its slot may not be reused before the reply.
//!
//! A compound is repeated as a whole only in one case: the failed operation is the first that
//! changes something, or an earlier one. Callers handle later failures. A compound is not repeated
//! for optional operations ([`Compound::wishes_from`]).

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
use hither_vfs::{Error, RequestContext};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Bytes around the operations of a compound. They are the RPC header with an AUTH_SYS credential,
/// the record mark, COMPOUND, SEQUENCE and PUTFH. The small operations that go with a READ or WRITE
/// are included.
pub(crate) const OVERHEAD_BYTES: u32 = 2048;

/// A compound to send.
#[derive(Debug, Clone)]
pub(crate) struct Compound {
    /// Label in the statistics.
    pub label: &'static str,
    ops: Vec<Op>,
    /// Index of the first operation that changes something; `usize::MAX` when none does.
    pivot: usize,
    /// Operations before this index may wait during DELAY and GRACE: they are needed, and no
    /// earlier operation changed anything.
    patient: usize,
    /// Ask the server to keep the reply.
    cache: bool,
}

impl Compound {
    /// `ops` without SEQUENCE.
    pub fn new(label: &'static str, ops: impl IntoIterator<Item = Op>) -> Self {
        // A placeholder for SEQUENCE, replaced at each attempt.
        let mut all = vec![Op::Illegal(0)];
        all.extend(ops);
        let pivot = all.iter().skip(1).position(|op| !op.is_idempotent()).map_or(usize::MAX, |i| i + 1);
        // A repetition of these does no harm, and their replies may be too long to keep.
        let harmless = |op: &Op| {
            op.is_idempotent()
                || matches!(op, Op::Write(_) | Op::Commit(_) | Op::Allocate(_) | Op::Deallocate(_))
                || matches!(op, Op::TestStateid(_))
        };
        let cache = !all.iter().skip(1).all(harmless);
        Self { label, ops: all, pivot, patient: pivot, cache }
    }

    /// Whether `answer` ends at or before the first operation that changes something.
    pub fn changed_nothing(&self, answer: &Answer) -> bool {
        answer.results.remaining() <= self.pivot
    }

    /// Marks the operations after the first `needed` as optional. The compound does not wait for
    /// them.
    pub fn wishes_from(mut self, needed: usize) -> Self {
        self.patient = self.patient.min(needed);
        self
    }

    /// The server need not keep the reply, which may be long. A second execution does no harm.
    pub fn uncached(mut self) -> Self {
        self.cache = false;
        self
    }
}

/// Results of an executed compound, without that of SEQUENCE.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The results.
    pub results: Results<OpRes>,
    /// When the request was last sent.
    pub asked: Instant,
    /// The compound was sent in more than one session. Whether an earlier session executed it is
    /// unknown.
    pub repeated: bool,
    /// The compound ended at an optional operation, which is not sent again.
    pub unasked: bool,
}

/// Outcome of one request in a slot.
pub(crate) enum Outcome {
    /// The server executed it.
    Executed(Answer),
    /// The session is lost. The request is not known to be executed.
    Lost(Need),
    /// Not executed. The request needs another slot.
    Again,
    /// SEQUENCE refused the request permanently.
    Refused(Nfsstat4),
    /// Perhaps executed; the reply cannot be decoded.
    Garbled,
    /// No usable reply.
    Failed(Error),
}

/// Growing waiting times, at most `most`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    next: Duration,
    most: Duration,
}

impl Backoff {
    /// NFS4ERR_DELAY: usually a delegation recall, which takes one or two round trips.
    pub const DELAY: Self = Self { next: Duration::from_millis(20), most: Duration::from_secs(5) };
    /// NFS4ERR_GRACE: lasts as long as a lease, and all clients wait for its end.
    pub const GRACE: Self = Self { next: Duration::from_millis(250), most: Duration::from_secs(2) };
    /// A lock held by another owner.
    pub const LOCK: Self = Self { next: Duration::from_millis(50), most: Duration::from_secs(2) };
    /// A failed recovery.
    pub const RECOVERY: Self = Self { next: Duration::from_millis(200), most: Duration::from_secs(15) };

    /// The next waiting time.
    pub fn step(&mut self) -> Duration {
        let now = self.next;
        self.next = (self.next * 2).min(self.most);
        now
    }
}

impl Core {
    /// Executes `c` for `cx.cred`. Can be interrupted while the server cannot have executed it.
    pub async fn compound(self: &Arc<Self>, cx: &RequestContext, mut c: Compound) -> Answered<Answer> {
        let cred = self.credential(&cx.cred);
        let (mut delay, mut grace) = (Backoff::DELAY, Backoff::GRACE);
        let mut repeated = false;
        loop {
            // A compound that may have been executed must be completed.
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

    /// Executes `c` in a session that is being set up or recovered. `Err` when that session is
    /// lost, too.
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

    /// Sends one request in its slot, until the server has executed or refused it.
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
                // The state of the sequence number is unknown: the slot stays taken.
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
                    // Some servers (ganesha) return this status in the next operation (RFC 8881
                    // section 18.46.3).
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
            // Refused before the compound was decoded: the slot is unchanged.
            CallError::Denied(_)
            | CallError::Gss(_)
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

    /// Sends a compound without a session, for example EXCHANGE_ID, optionally on one particular
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

    /// Handles the result of a successful SEQUENCE.
    fn sequenced(self: &Arc<Self>, session: &Arc<Session>, ok: &SequenceOk, asked: Instant) {
        session.adapt(ok.target_highest_slotid, ok.highest_slotid);
        self.renewed(asked, ok.status_flags == 0);
        if ok.status_flags != 0 {
            self.status_flags(session, ok.status_flags);
        }
    }
}

/// Whether a reply that cannot be decoded begins with a successful SEQUENCE. Then its slot can be
/// used again.
fn sequence_succeeded(body: &Bytes) -> bool {
    let mut d = Dec::new(body);
    let mut first = || -> hither_proto::xdr::Result<OpRes> {
        let (_status, _tag) = (Nfsstat4::dec(&mut d)?, Text::dec(&mut d)?);
        d.u32()?;
        OpRes::dec(&mut d)
    };
    matches!(first(), Ok(OpRes::Sequence(Ok(_))))
}

/// Handles a refusal by SEQUENCE (RFC 8881 section 18.46.3). The sequence number has not changed.
fn refuse(session: &Arc<Session>, guard: SlotGuard, status: Nfsstat4) -> Outcome {
    match status {
        Nfsstat4::RETRY_UNCACHED_REP => {
            // The compound was executed and its reply not kept, as requested. A repetition does no
            // harm.
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

/// Waits for `f`, or for an interrupt of the caller.
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
