//! Walk: a whole path in one compound, with further requested data of its last object.
//!
//! Each name needs LOOKUP and GETATTR, whose attributes include the filehandle (attribute 19), so
//! no GETFH is needed. With a server that omits the attribute, GETFH is used from then on. The
//! operations for further data follow, except the listing. READDIR precedes the last LOOKUP. It
//! keeps the current filehandle, and is therefore executed even when the last name is absent.
//!
//! ```text
//! PUTFH GETATTR (LOOKUP GETATTR)... READDIR LOOKUP GETATTR ACCESS OPEN GETATTR READ CLOSE
//! PUTFH GETATTR (LOOKUP GETATTR)... READDIR LOOKUP GETATTR READLINK
//! ```
//!
//! A server ends a compound at its first error. An error of LOOKUP ends the walk. An error of
//! READDIR costs a second compound without it. An error after the last name only loses the further
//! data. A path that is too long for one compound is sent in several, with the optional operations
//! in the last. The limits are those of the session and of earlier refusals
//! ([`Core::found_too_long`]).

use super::attrs::NODE_ATTRS;
use super::bring::{BRING_OPS, Turn, bring_ops};
use super::call::{Answer, Compound};
use super::core::Core;
use super::fail::{Answered, Fail, is_too_long};
use super::list::first_page_op;
use super::session::Limits;
use super::state::{wire_fh, wire_name};
use bytes::Bytes;
use hither_proto::nfs4::{Attrs as WireAttrs, Nfsstat4, Op, attr};
use hither_vfs::{
    Access, Along, Error, Fh, FileKind, Name, Node, RequestContext, Stop, WalkRequest, WalkResult,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::Instant;

/// Most names before a READ in one compound at a server that is not known to return its bytes
/// right ([`data_anywhere`](super::mount::data_anywhere)). Linux 6.12 needs the results before the
/// READ to fit into the first page of 4,096 bytes. A name takes at most about 350.
const NAMES_BEFORE_READ_MAX: usize = 5;

/// How often compounds are halved when the server finds them too long.
const HALVINGS: u32 = 8;
/// SEQUENCE, PUTFH and GETATTR of the base.
const FIXED_OPS: usize = 3;
/// Most bytes of the reply for one name: filehandle, attributes, owner names.
const NAME_REPLY_BYTES: u32 = 1024;
/// Most bytes of the request for one name.
const NAME_REQUEST_BYTES: u32 = 320;
/// Shortest compound, in operations, to which the limit is reduced.
const OPS_MIN: usize = 5;
/// Consecutive walks that fail as a chain and succeed name by name. At this number no chains are
/// sent in this session.
const REFUSALS: usize = 3;

/// A walk in progress.
struct Walk<'a> {
    cx: &'a RequestContext,
    base: &'a Fh,
    path: &'a [Name],
    want: WalkRequest,
    steps: Vec<Node>,
    along: Along,
    /// Name by name, without optional operations, because the server refused more.
    plain: bool,
}

impl Walk<'_> {
    fn here(&self) -> &Fh {
        self.steps.last().map_or(self.base, |n| &n.fh)
    }

    fn end(self, stop: Stop) -> WalkResult {
        WalkResult { steps: self.steps, stop, along: self.along }
    }
}

/// One compound of a walk.
struct Leg {
    from: Fh,
    /// Starts at the base, and requests its attributes.
    first: bool,
    names: Vec<Name>,
    /// Longest READDIR reply.
    listing_bytes: Option<u32>,
    access: Access,
    /// Reads the target of the last object.
    target: bool,
    /// The owner of the open, and the number of first bytes.
    bring: Option<(Arc<Turn>, u32)>,
    /// The server does not return the filehandle as an attribute.
    getfh: bool,
}

impl Leg {
    /// The operations, and the number of the needed ones.
    fn ops(&self) -> (Vec<Op>, usize) {
        let mut ops = vec![Op::Putfh(wire_fh(&self.from))];
        let get = if self.getfh {
            vec![Op::Getfh, Op::Getattr(NODE_ATTRS)]
        } else {
            vec![Op::Getattr(NODE_ATTRS.with(attr::FILEHANDLE))]
        };
        if self.first {
            ops.push(Op::Getattr(NODE_ATTRS));
        }
        for (i, name) in self.names.iter().enumerate() {
            if let (true, Some(bytes)) = (i + 1 == self.names.len(), self.listing_bytes) {
                ops.push(first_page_op(bytes));
            }
            ops.push(Op::Lookup(wire_name(name)));
            ops.extend(get.iter().cloned());
        }
        let needed = ops.len();
        if !self.access.is_empty() {
            ops.push(Op::Access(self.access.bits()));
        }
        if let Some((turn, bytes)) = &self.bring {
            ops.extend(bring_ops(turn, *bytes));
        }
        if self.target {
            ops.push(Op::Readlink);
        }
        (ops, needed)
    }
}

impl Core {
    /// Walks `path` with as few compounds as the server's limits allow.
    pub async fn walk(
        self: &Arc<Self>,
        cx: &RequestContext,
        base: &Fh,
        path: &[Name],
        want: WalkRequest,
    ) -> Answered<WalkResult> {
        let mut want = if self.opts.chains { want } else { WalkRequest::default() };
        if !self.opts.readdirplus {
            want.listing_bytes = 0;
        }
        let (steps, along) = (Vec::with_capacity(path.len().max(1)), Along::default());
        let mut walk = Walk { cx, base, path, want, steps, along, plain: false };
        let mut halvings = 0;
        loop {
            let leg = self.next_leg(&walk).await?;
            let wishes =
                leg.listing_bytes.is_some() || leg.bring.is_some() || leg.target || !leg.access.is_empty();
            let sent = leg.ops().0.len();
            let chain = wishes || leg.names.len() > 1;
            match self.walk_leg(&mut walk, leg).await {
                Ok(None) if walk.steps.len() < path.len().max(1) => {}
                Ok(stop) => {
                    self.chain_ended(&walk, chain);
                    return Ok(walk.end(stop.unwrap_or(Stop::Complete)));
                }
                // knfsd (Linux 6.1) corrupts the reply when a READDIR fails after many names.
                Err(f) if wishes && (is_too_long(f.status()) || matches!(f, Fail::Garbled)) => {
                    walk.want = WalkRequest::default();
                }
                Err(f) if is_too_long(f.status()) && halvings < HALVINGS => {
                    self.found_too_long(sent);
                    halvings += 1;
                }
                Err(f) if chain && !walk.plain && is_refusal(&f) => {
                    (walk.plain, walk.want) = (true, WalkRequest::default());
                }
                Err(f) if walk.steps.is_empty() => return Err(f),
                Err(f) => return Ok(walk.end(Stop::Failed(f.into()))),
            }
        }
    }

    /// Records that the server refused a compound of `ops` operations as too long, or stopped after
    /// as many.
    pub fn found_too_long(&self, ops: usize) {
        self.ops_limit.fetch_min((ops / 2).max(OPS_MIN), Ordering::Relaxed);
    }

    /// Records the success of a walk. After [`REFUSALS`] walks that succeed only name by name, the
    /// client sends no more chains.
    fn chain_ended(&self, walk: &Walk<'_>, chain: bool) {
        if chain {
            self.refusals.store(0, Ordering::Relaxed);
        } else if walk.plain && self.refusals.fetch_add(1, Ordering::Relaxed) + 1 == REFUSALS {
            tracing::info!(
                "the server refuses to look up several names in one compound: each is looked up alone"
            );
            self.ops_limit.fetch_min(OPS_MIN, Ordering::Relaxed);
        }
    }

    /// The next compound: as many of the remaining names as fit. The last compound has the optional
    /// operations, unless they alone would need another compound.
    async fn next_leg(&self, walk: &Walk<'_>) -> Answered<Leg> {
        let limits = self.ready().await?.limits;
        let left = &walk.path[walk.steps.len().min(walk.path.len())..];
        let getfh = self.needs_getfh.load(Ordering::Relaxed);
        let want = walk.want;
        let extra = usize::from(want.listing_bytes > 0)
            + usize::from(!want.access.is_empty())
            + usize::from(want.target)
            + if want.read_bytes > 0 { BRING_OPS } else { 0 };
        let most = if walk.plain { 1 } else { self.names_at_once(limits, getfh, 0) };
        let mut leg = Leg {
            from: walk.here().clone(),
            first: walk.steps.is_empty(),
            names: left[..left.len().min(most)].to_vec(),
            listing_bytes: None,
            access: Access::empty(),
            target: false,
            bring: None,
            getfh,
        };
        if walk.plain || left.len() > self.names_at_once(limits, getfh, extra) && !left.is_empty() {
            return Ok(leg);
        }
        (leg.access, leg.target) = (want.access, want.target);
        let mut others = 2048 + NAME_REPLY_BYTES * (left.len() as u32 + 2);
        let listing = (!left.is_empty() && want.listing_bytes > 0).then_some(want.listing_bytes);
        // Some servers return wrong bytes for a READ behind a listing or behind many results.
        let anywhere = self.data_anywhere.load(Ordering::Relaxed);
        let may_bring = anywhere || listing.is_none() && left.len() <= NAMES_BEFORE_READ_MAX;
        let bytes = want
            .read_bytes
            .min(self.facts.get().map_or(0, |f| f.rsize))
            .min(limits.max_response_bytes.saturating_sub(others));
        if bytes > 0 && !want.target && may_bring {
            others += bytes;
            leg.bring = Some((self.turn(), bytes));
        }
        if let Some(most) = listing.filter(|_| anywhere || !want.target) {
            leg.listing_bytes = self.listing_room(limits.max_response_bytes, others, most);
        }
        Ok(leg)
    }

    /// Most names of one compound beside `extra` operations.
    fn names_at_once(&self, limits: Limits, getfh: bool, extra: usize) -> usize {
        let ops = (limits.max_ops as usize).min(self.ops_limit.load(Ordering::Relaxed));
        let by_ops = ops.saturating_sub(FIXED_OPS + extra) / if getfh { 3 } else { 2 };
        let by_request = limits.max_request_bytes.saturating_sub(1024) / NAME_REQUEST_BYTES;
        let by_reply = limits.max_response_bytes.saturating_sub(1024) / NAME_REPLY_BYTES;
        let asked = if self.opts.chains { self.opts.chain_max.unwrap_or(u32::MAX) } else { 1 };
        by_ops.min(by_request.min(by_reply).min(asked) as usize).max(usize::from(extra == 0))
    }

    /// Sends one compound of a walk. `Some` when the walk ends. `None` when it continues with the
    /// remaining names.
    async fn walk_leg(self: &Arc<Self>, walk: &mut Walk<'_>, leg: Leg) -> Answered<Option<Stop>> {
        let (ops, needed) = leg.ops();
        let label = if leg.names.is_empty() { "GETATTR" } else { "LOOKUP" };
        let sent = ops.len();
        let c = Compound::new(label, ops).wishes_from(needed).uncached();
        let mut answer = self.compound(walk.cx, c).await?;
        let executed = answer.results.remaining();
        if executed < sent && executed > 1 && is_too_many(answer.results.status()) {
            self.found_too_long(2 * executed);
        }
        answer.results.putfh()?;
        if leg.first {
            let wire = answer.results.getattr()?;
            let attrs = self.attrs(&leg.from, &wire, answer.asked).await?;
            if leg.names.is_empty() {
                walk.steps.push(Node { fh: leg.from.clone(), attrs });
            } else {
                walk.along.base = Some(attrs);
            }
        }
        for i in 0..leg.names.len() {
            if i + 1 == leg.names.len() && leg.listing_bytes.is_some() {
                match answer.results.readdir() {
                    Ok(page) => walk.along.listing = self.first_page(page, answer.asked).await.ok(),
                    Err(e) => return Ok(no_listing(walk, &e.into())),
                }
            }
            match self.walk_one(&leg, &mut answer).await {
                Ok(Some(node)) => walk.steps.push(node),
                Ok(None) => return Ok(None),
                Err(f) => return self.why_stopped(f, i, &leg.from, &walk.steps, answer.asked),
            }
        }
        self.take_wishes(walk, &leg, &mut answer).await;
        Ok(None)
    }

    /// The next node; `None` when the server omitted its filehandle.
    async fn walk_one(self: &Arc<Self>, leg: &Leg, answer: &mut Answer) -> Answered<Option<Node>> {
        answer.results.lookup()?;
        let fh = if leg.getfh { Some(answer.results.getfh()?) } else { None };
        let wire: WireAttrs = answer.results.getattr()?;
        let Some(fh) = fh.or_else(|| wire.filehandle.clone()) else {
            self.needs_getfh.store(true, Ordering::Relaxed);
            return Ok(None);
        };
        self.node(&fh, &wire, answer.asked).await.map(Some)
    }

    /// Reads the results after the last name.
    async fn take_wishes(self: &Arc<Self>, walk: &mut Walk<'_>, leg: &Leg, answer: &mut Answer) {
        let Some(node) = walk.steps.last_mut() else { return };
        if !leg.access.is_empty() {
            let Ok(ok) = answer.results.access() else { return };
            walk.along.access = Some(Access::from_bits_truncate(ok.access) & leg.access);
        }
        if leg.target {
            // Without a target when the object is no symbolic link.
            walk.along.target = answer.results.readlink().ok().map(|target| Bytes::copy_from_slice(&target));
        }
        let Some((turn, bytes)) = &leg.bring else { return };
        // Without first bytes when the object is not a regular file, not readable for the caller,
        // or busy.
        if let Ok(fetched) = self.brought(&node.fh, turn, *bytes, answer).await {
            node.attrs = fetched.attrs;
            walk.along.first = Some(fetched.read);
        }
    }

    fn why_stopped(
        &self,
        f: Fail,
        walked: usize,
        from: &Fh,
        steps: &[Node],
        asked: Instant,
    ) -> Answered<Option<Stop>> {
        let here = if walked == 0 { from } else { steps.last().map_or(from, |n| &n.fh) };
        match f.status() {
            Some(Nfsstat4::NOENT) => Ok(Some(Stop::Missing(self.valid.missing(here, asked)))),
            Some(Nfsstat4::SYMLINK | Nfsstat4::NOTDIR) if !steps.is_empty() => {
                Ok(Some(not_a_directory(steps, f.status() == Some(Nfsstat4::SYMLINK))))
            }
            // A part was executed: continue after it.
            Some(s) if walked > 0 && (is_too_long(Some(s)) || s == Nfsstat4::DELAY) => Ok(None),
            _ => Err(f),
        }
    }
}

/// Continues the walk without a failed listing. Ends the walk when the object is not a directory.
fn no_listing(walk: &mut Walk<'_>, f: &Fail) -> Option<Stop> {
    walk.want.listing_bytes = 0;
    let status = f.status();
    let is_no_directory = matches!(status, Some(Nfsstat4::NOTDIR | Nfsstat4::SYMLINK));
    (is_no_directory && !walk.steps.is_empty())
        .then(|| not_a_directory(&walk.steps, status == Some(Nfsstat4::SYMLINK)))
}

fn not_a_directory(steps: &[Node], says_symlink: bool) -> Stop {
    match steps.last().map(|n| n.attrs.attr.kind) {
        Some(FileKind::Symlink) => Stop::Symlink,
        Some(FileKind::Directory) => Stop::Failed(Error::new(libc::ENOTDIR)),
        _ if says_symlink => Stop::Symlink,
        _ => Stop::NotDirectory,
    }
}

/// Whether the server refuses the compound for a reason outside the path.
fn is_refusal(f: &Fail) -> bool {
    let refuses =
        [Nfsstat4::SERVERFAULT, Nfsstat4::NOTSUPP, Nfsstat4::INVAL, Nfsstat4::BADXDR, Nfsstat4::OP_ILLEGAL];
    matches!(f, Fail::Garbled) || f.status().is_some_and(|s| refuses.contains(&s))
}

/// Whether the server refuses the number of operations.
fn is_too_many(status: Nfsstat4) -> bool {
    matches!(status, Nfsstat4::RESOURCE | Nfsstat4::TOO_MANY_OPS)
}
