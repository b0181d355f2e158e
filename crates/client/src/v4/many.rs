//! The same request about many objects, in few compounds.
//!
//! [`Parts`] defines the operations of each object and the reading of its results. Objects are
//! distributed over compounds as the limits of operations and reply size allow. The compounds are
//! in flight concurrently. A server stops a compound at its first error, which is the answer for
//! one object. The objects after it are sent in another compound. A busy object (DELAY, GRACE)
//! among many gives `EAGAIN`, so that the others do not wait. A request about a single object
//! waits, as single calls do.

use super::attrs::NODE_ATTRS;
use super::bring::{BRING_OPS, OPEN_OPS, Turn, bring_ops, open_ops};
use super::call::{Answer, Backoff, Compound, interruptible};
use super::core::{Core, Phase};
use super::directory::{UnderWay, ask_op};
use super::fail::{Answered, Fail, is_too_long};
use super::state::wire_fh;
use hither_proto::nfs4::{Nfsstat4, Op};
use hither_vfs::{Access, Attrs, Error, Fetched, Fh, RequestContext, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::task::JoinSet;

/// Most compounds of one request in flight.
const COMPOUNDS_AT_ONCE: usize = 8;
/// How often a compound without any answer is sent again with fewer objects.
const HALVINGS: u32 = 8;

/// A request about each of many objects.
pub(crate) trait Parts: Send + Sync + 'static {
    /// The answer for one object.
    type Out: Send + 'static;
    /// Label in the statistics.
    const LABEL: &'static str;
    /// Operations for one object.
    const OPS: usize;
    /// The attributes directly follow PUTFH. For a directory a request for a delegation may go
    /// between the two.
    const DIRECTORIES: bool = false;

    /// Most bytes of the reply for one object.
    fn reply_bytes(&self) -> u32;

    /// Most objects in one compound.
    fn max_objects(&self) -> usize {
        usize::MAX
    }

    /// Appends the operations for one object, PUTFH first.
    fn ops(&self, fh: &Fh, ops: &mut Vec<Op>);

    /// Reads the results of one object.
    fn take(
        &self,
        core: &Arc<Core>,
        fh: &Fh,
        answer: &mut Answer,
    ) -> impl Future<Output = Answered<Self::Out>> + Send;
}

impl Core {
    /// Sends the request for all of `objects`. Returns the answers in their order.
    pub async fn many<P: Parts>(
        self: &Arc<Self>,
        cx: &RequestContext,
        objects: Vec<Fh>,
        parts: impl Fn() -> P + Send + Sync,
    ) -> Answered<Vec<Result<P::Out>>> {
        Ok(self.many_and(cx, objects, None, parts).await?.0)
    }

    /// As [`Core::many`], and then for the attributes of `last`, if one compound has room for all.
    /// These attributes are newer than all other answers.
    pub async fn many_and<P: Parts>(
        self: &Arc<Self>,
        cx: &RequestContext,
        objects: Vec<Fh>,
        last: Option<&Fh>,
        parts: impl Fn() -> P + Send + Sync,
    ) -> Answered<(Vec<Result<P::Out>>, Option<Attrs>)> {
        let wanted = P::DIRECTORIES && objects.iter().any(|fh| self.wants_directory(fh));
        let at_once = self.objects_at_once(&parts(), 0, usize::from(wanted)).await?;
        if last.is_some() && objects.len() <= self.objects_at_once(&parts(), Stats::OPS, 0).await? {
            return Ok(self.some(cx, &objects, &parts(), at_once, last).await);
        }
        let mut out: Vec<Option<Result<P::Out>>> = objects.iter().map(|_| None).collect();
        let mut running = JoinSet::new();
        let mut start = 0;
        while start < objects.len() || !running.is_empty() {
            while start < objects.len() && running.len() < COMPOUNDS_AT_ONCE {
                let end = objects.len().min(start + at_once);
                let (core, cx, some, parts) =
                    (self.clone(), cx.clone(), objects[start..end].to_vec(), parts());
                running.spawn(async move { (start, core.some(&cx, &some, &parts, at_once, None).await.0) });
                start = end;
            }
            let Some(Ok((at, answers))) = running.join_next().await else { continue };
            for (slot, answer) in out[at..].iter_mut().zip(answers) {
                *slot = Some(answer);
            }
        }
        let lost = || Err(Error::because(libc::EIO, "a task of the client ended early"));
        Ok((out.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect(), None))
    }

    /// Most objects of one compound beside `others` operations, with `more` additional operations
    /// for each.
    async fn objects_at_once<P: Parts>(&self, parts: &P, others: usize, more: usize) -> Answered<usize> {
        let limits = self.ready().await?.limits;
        if !self.opts.chains {
            return Ok(1);
        }
        let ops = (limits.max_ops as usize).min(self.ops_limit.load(Ordering::Relaxed));
        let by_ops = ops.saturating_sub(1 + others) / (P::OPS + more);
        let by_reply = limits.max_response_bytes.saturating_sub(2048) / parts.reply_bytes().max(1);
        let by_request = limits.max_request_bytes.saturating_sub(1024) / (256 * P::OPS as u32);
        Ok(by_ops.min(by_reply as usize).min(by_request as usize).min(parts.max_objects()).max(1))
    }

    /// Sends one compound after the other until each of `objects` has an answer. The last compound
    /// also requests the attributes of `last`.
    async fn some<P: Parts>(
        self: &Arc<Self>,
        cx: &RequestContext,
        objects: &[Fh],
        parts: &P,
        at_once: usize,
        last: Option<&Fh>,
    ) -> (Vec<Result<P::Out>>, Option<Attrs>) {
        let mut got = Answers {
            out: Vec::with_capacity(objects.len()),
            at_once,
            alone: objects.len() == 1,
            busy: Backoff::DELAY,
        };
        let (mut halvings, mut last_attrs) = (0, None);
        while got.out.len() < objects.len() {
            let done = got.out.len();
            let these = &objects[done..objects.len().min(done + got.at_once)];
            let mut ops = Vec::with_capacity(these.len() * P::OPS);
            let asking = self.ask_for(these, parts, &mut ops);
            let last = last.filter(|_| done + these.len() == objects.len());
            if let Some(last) = last {
                Stats.ops(last, &mut ops);
            }
            let sent = ops.len();
            // An optional operation must not wait for one busy object.
            let c = Compound::new(P::LABEL, ops).wishes_from(0).uncached();
            let answer = self.compound(cx, c).await;
            let mut answer = match answer {
                Ok(answer) => answer,
                Err(f) if is_too_long(f.status()) && got.at_once > 1 && halvings < HALVINGS => {
                    self.found_too_long(sent);
                    got.at_once = got.at_once.div_ceil(2);
                    halvings += 1;
                    continue;
                }
                // knfsd (Linux 6.1) corrupts a long reply with a failed READDIR. The objects are
                // then sent one by one.
                Err(Fail::Garbled) if got.at_once > 1 => {
                    got.at_once = 1;
                    continue;
                }
                Err(f) => {
                    let e = Error::from(f);
                    got.out.resize_with(objects.len(), || Err(e.clone()));
                    break;
                }
            };
            let too_long = is_too_long(Some(answer.results.status()));
            self.take_answers(cx, these, parts, &mut answer, &mut got).await;
            if let Some(last) = last.filter(|_| got.out.len() == objects.len()) {
                last_attrs = Stats.take(self, last, &mut answer).await.ok();
            }
            drop(asking);
            if too_long && got.out.len() == done {
                self.found_too_long(sent);
                got.at_once = got.at_once.div_ceil(2);
            }
        }
        (got.out, last_attrs)
    }

    /// Reads the answers of a compound for `these` objects, up to the first error. Waits when the
    /// only object is busy.
    async fn take_answers<P: Parts>(
        self: &Arc<Self>,
        cx: &RequestContext,
        these: &[Fh],
        parts: &P,
        answer: &mut Answer,
        got: &mut Answers<P::Out>,
    ) {
        let done = got.out.len();
        for fh in these {
            match parts.take(self, fh, answer).await {
                Ok(one) => got.out.push(Ok(one)),
                Err(_) if answer.unasked => break,
                // Sent again after the objects that have an answer.
                Err(f) if is_too_long(f.status()) && (got.out.len() > done || got.at_once > 1) => break,
                Err(f) if got.alone && matches!(f.status(), Some(Nfsstat4::DELAY | Nfsstat4::GRACE)) => {
                    let pause = tokio::time::sleep(got.busy.step());
                    let waited = interruptible(Some(&cx.cancel), pause).await;
                    got.out.extend(waited.err().map(|f| Err(f.into())));
                    break;
                }
                Err(f) => {
                    got.out.push(Err(f.into()));
                    break;
                }
            }
        }
    }
}

/// The answers so far to a request about many objects.
struct Answers<Out> {
    /// In the order of the objects.
    out: Vec<Result<Out>>,
    /// Most objects in one compound.
    at_once: usize,
    /// Whether the request is about a single object.
    alone: bool,
    /// The pauses before a busy object is requested again.
    busy: Backoff,
}

impl Core {
    /// The operations for `objects`. Requests for directory delegations are added as far as they
    /// fit.
    fn ask_for<P: Parts>(self: &Arc<Self>, objects: &[Fh], parts: &P, ops: &mut Vec<Op>) -> Option<UnderWay> {
        let mut asking = None;
        let most = match &*self.phase.borrow() {
            Phase::Ready(session) => {
                (session.limits.max_ops as usize).min(self.ops_limit.load(Ordering::Relaxed))
            }
            _ => 0,
        };
        let mut room = most.saturating_sub(1 + objects.len() * P::OPS + Stats::OPS);
        for fh in objects {
            let start = ops.len();
            parts.ops(fh, ops);
            if P::DIRECTORIES && room > 0 && self.wants_directory(fh) {
                room -= 1;
                ops.insert(start + 1, ask_op());
                asking.get_or_insert_with(|| self.asking());
            }
        }
        asking
    }
}

/// Attributes of each object.
pub(crate) struct Stats;

impl Parts for Stats {
    type Out = Attrs;
    const LABEL: &'static str = "GETATTR";
    const OPS: usize = 2;
    const DIRECTORIES: bool = true;

    fn reply_bytes(&self) -> u32 {
        512
    }

    fn ops(&self, fh: &Fh, ops: &mut Vec<Op>) {
        ops.extend([Op::Putfh(wire_fh(fh)), Op::Getattr(NODE_ATTRS)]);
    }

    async fn take(&self, core: &Arc<Core>, fh: &Fh, answer: &mut Answer) -> Answered<Attrs> {
        answer.results.putfh()?;
        let granted = core.take_directory(fh, answer)?;
        let wire = answer.results.getattr()?;
        Ok(core.leased_by(fh, core.attrs(fh, &wire, answer.asked).await?, granted))
    }
}

/// Attributes of each object, and the caller's rights.
pub(crate) struct Proofs {
    /// The requested rights.
    pub want: Access,
}

impl Parts for Proofs {
    type Out = (Attrs, Access);
    const LABEL: &'static str = "ACCESS";
    const OPS: usize = 3;
    const DIRECTORIES: bool = true;

    fn reply_bytes(&self) -> u32 {
        512 + 16
    }

    fn ops(&self, fh: &Fh, ops: &mut Vec<Op>) {
        // Rights are never older than the attributes with which they are cached.
        ops.extend([Op::Putfh(wire_fh(fh)), Op::Getattr(NODE_ATTRS), Op::Access(self.want.bits())]);
    }

    async fn take(&self, core: &Arc<Core>, fh: &Fh, answer: &mut Answer) -> Answered<(Attrs, Access)> {
        answer.results.putfh()?;
        let granted = core.take_directory(fh, answer)?;
        let wire = answer.results.getattr()?;
        let have = Access::from_bits_truncate(answer.results.access()?.access) & self.want;
        Ok((core.leased_by(fh, core.attrs(fh, &wire, answer.asked).await?, granted), have))
    }
}

/// Attributes of each file, with proof that the caller may open it, and a delegation when the
/// server grants one.
pub(crate) struct Opens {
    /// The owner of the opens.
    pub turn: Arc<Turn>,
}

impl Parts for Opens {
    type Out = Fetched;
    const LABEL: &'static str = "OPEN";
    const OPS: usize = 1 + OPEN_OPS;

    fn reply_bytes(&self) -> u32 {
        1024
    }

    fn ops(&self, fh: &Fh, ops: &mut Vec<Op>) {
        ops.push(Op::Putfh(wire_fh(fh)));
        ops.extend(open_ops(&self.turn));
    }

    async fn take(&self, core: &Arc<Core>, fh: &Fh, answer: &mut Answer) -> Answered<Fetched> {
        answer.results.putfh()?;
        core.brought(fh, &self.turn, 0, answer).await
    }
}

/// The first bytes of each file.
pub(crate) struct Reads {
    /// Most bytes of each file.
    pub max_bytes: u32,
    /// Whether the server takes several READs in one compound
    /// ([`data_anywhere`](super::mount::data_anywhere)).
    pub several: bool,
    /// The owner of the opens.
    pub turn: Arc<Turn>,
}

impl Parts for Reads {
    type Out = Fetched;
    const LABEL: &'static str = "READ";
    const OPS: usize = BRING_OPS + 1;

    fn reply_bytes(&self) -> u32 {
        self.max_bytes + 1024
    }

    fn max_objects(&self) -> usize {
        if self.several { usize::MAX } else { 1 }
    }

    fn ops(&self, fh: &Fh, ops: &mut Vec<Op>) {
        ops.push(Op::Putfh(wire_fh(fh)));
        ops.extend(bring_ops(&self.turn, self.max_bytes));
    }

    async fn take(&self, core: &Arc<Core>, fh: &Fh, answer: &mut Answer) -> Answered<Fetched> {
        answer.results.putfh()?;
        core.brought(fh, &self.turn, self.max_bytes, answer).await
    }
}
