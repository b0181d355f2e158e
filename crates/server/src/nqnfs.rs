//! NQNFS (R. Macklem, "Not Quite NFS", 1994) over a `Vfs`: arguments in, results out, a function
//! for each procedure.
//!
//! It knows nothing of connections. Every call is bracketed in the lease table (`At::begin`): it
//! waits until nobody caches what it contradicts, and the lease that was asked for along with it is
//! granted in the same step. Whoever waits too long is told to try later. Everything is stable
//! before it is answered: the protocol has no COMMIT.
//!
//! Leases are granted on regular files. Directories are never leased: local programs could change
//! them unseen. See docs/NQNFS.md for what the paper leaves open and what goes beyond it.

mod change;
pub(crate) mod clients;
mod convert;
pub(crate) mod leases;
mod list;
mod read;
#[cfg(test)]
mod tests;

use crate::access::Rights;
use crate::drc::Key;
use crate::handle::{self, Handle};
use crate::server::{Request, Server};
use crate::table::{Export, Others};
use crate::v4::delegation::{Changing, Going, Leases, PATIENCE_V3, Refusal, key};
use convert::stat;
use hither_lease::{Access, ClientId, FileKey, Grant, Kind, Op, Term, Want};
use hither_proto::mount::MntRes;
use hither_proto::nqnfs::mount1::{Fhstatus, Mnt1Args};
use hither_proto::nqnfs::{
    Asking, Cachetype, Diropargs, FH_BYTES, Fattr, Fh as WireFh, Filename, HelloArgs, HelloOk, Lease,
    LeaseReply, LeaseRequest, NqCall, NqProc, NqReply, Res, Stat,
};
use hither_proto::xdr::{Dec, Enc};
use hither_rpc::server::{Incoming, Outcome};
use hither_vfs::{Attr, Cx, Fh, File, FileKind, Name, Watch};
use leases::Since;
use std::sync::Arc;
use std::time::Duration;

/// How NQNFS is offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NqnfsOptions {
    /// Term of a lease when the client names none; the longest is twice this.
    pub term: Duration,
    /// By how much clocks may drift apart during the longest term.
    pub skew: Duration,
    /// For how long no write may have come before a write lease counts as ended.
    pub write_slack: Duration,
    /// Most leases.
    pub leases_max: u32,
}

impl Default for NqnfsOptions {
    fn default() -> Self {
        Self {
            term: Duration::from_secs(30),
            skew: Duration::from_secs(3),
            write_slack: Duration::from_secs(5),
            leases_max: 1 << 16,
        }
    }
}

/// Locks of files that are written.
const WRITE_LOCKS: usize = 64;

/// What calls of NQNFS share beside the lease table.
pub(crate) struct Shared {
    /// Writes to one file come one after the other, so that what is appended is appended.
    writes: [tokio::sync::Mutex<()>; WRITE_LOCKS],
    cookies: list::Cookies,
}

impl Default for Shared {
    fn default() -> Self {
        Self { writes: std::array::from_fn(|_| Default::default()), cookies: Default::default() }
    }
}

/// Answers a call.
pub(crate) async fn answer(server: &Arc<Server>, call: Incoming) -> Outcome {
    let args = match NqCall::decode(NqProc(call.proc), &call.args) {
        // EVICTED goes the other way.
        Ok(Some(NqCall::Evicted(_)) | None) => return Outcome::ProcUnavail,
        Ok(Some(args)) => args,
        Err(_) => return Outcome::GarbageArgs,
    };
    let Some(short) = &server.v4.leases.short else { return Outcome::ProcUnavail };
    call.room.expect(reply_bytes(&args, server.options.io_max_bytes)).await;
    let key = changes_something(&args).then(|| Key::of(&call));
    let request = Request::new(server, call.peer, call.caller);
    let client = match args {
        NqCall::Hello(_) => None,
        _ => short.clients.of(&request.peer),
    };
    let key = key.map(|key| key.by(client.filter(|c| c.named).map(|c| c.id.0)));
    let caller = Caller { r: &request, client: client.map(|c| c.id), long: client.is_some_and(|c| c.long) };
    let run = async {
        let mut out = Enc::new();
        execute(&caller, args).await.encode(&mut out);
        out
    };
    server.replies.once(key, run).await
}

/// Most bytes of a reply, as far as it may be large.
fn reply_bytes(call: &NqCall, io_max_bytes: u32) -> usize {
    let payload = match call {
        NqCall::Read(a) => a.args.count,
        NqCall::Readdir(a) => a.args.count,
        NqCall::Readdirlook(a) => a.args.cnt,
        _ => 0,
    };
    payload.min(io_max_bytes) as usize
}

/// Executed twice, these could do harm.
fn changes_something(call: &NqCall) -> bool {
    matches!(
        call,
        NqCall::Setattr(_)
            | NqCall::Write(_)
            | NqCall::Create(_)
            | NqCall::Remove(_)
            | NqCall::Rename(_)
            | NqCall::Link(_)
            | NqCall::Symlink(_)
            | NqCall::Mkdir(_)
            | NqCall::Rmdir(_)
            | NqCall::Vacated(_)
    )
}

async fn execute(c: &Caller<'_>, call: NqCall) -> NqReply {
    match call {
        NqCall::Null(_) => NqReply::Null(()),
        NqCall::Root(_) => NqReply::Root(()),
        NqCall::Writecache(_) => NqReply::Writecache(()),
        NqCall::Getattr(a) => NqReply::Getattr(res(read::getattr(c, &a).await)),
        NqCall::Setattr(a) => NqReply::Setattr(res(change::setattr(c, &a).await)),
        NqCall::Lookup(a) => NqReply::Lookup(res(read::lookup(c, &a).await)),
        NqCall::Readlink(a) => NqReply::Readlink(res(read::readlink(c, &a).await)),
        NqCall::Read(a) => NqReply::Read(res(read::read(c, &a).await)),
        NqCall::Write(a) => NqReply::Write(res(change::write(c, a).await)),
        NqCall::Create(a) => NqReply::Create(res(change::create(c, &a).await)),
        NqCall::Remove(a) => NqReply::Remove(res(change::remove(c, &a.args.what, false).await)),
        NqCall::Rename(a) => NqReply::Rename(res(change::rename(c, &a).await)),
        NqCall::Link(a) => NqReply::Link(res(change::link(c, &a).await)),
        NqCall::Symlink(a) => NqReply::Symlink(res(change::symlink(c, &a).await)),
        NqCall::Mkdir(a) => NqReply::Mkdir(res(change::mkdir(c, &a).await)),
        NqCall::Rmdir(a) => NqReply::Rmdir(res(change::remove(c, &a.args.what, true).await)),
        NqCall::Readdir(a) => NqReply::Readdir(res(list::readdir(c, &a).await)),
        NqCall::Statfs(a) => NqReply::Statfs(res(read::statfs(c, &a).await)),
        NqCall::Readdirlook(a) => NqReply::Readdirlook(res(list::readdirlook(c, &a).await)),
        NqCall::Getlease(a) => NqReply::Getlease(res(read::getlease(c, &a).await)),
        NqCall::Vacated(a) => {
            c.vacated(&a.args.file);
            NqReply::Vacated(())
        }
        NqCall::Evicted(_) => NqReply::Evicted(()),
        NqCall::Access(a) => NqReply::Access(res(read::access(c, &a).await)),
        NqCall::Hello(a) => NqReply::Hello(res(c.hello(&a))),
    }
}

/// What a procedure comes to: its lease and results, or a status.
type Done<T> = Result<(LeaseReply, T), Stat>;

fn res<T>(done: Done<T>) -> Res<T> {
    match done {
        Ok((lease, value)) => Res::Ok(lease, value),
        Err(status) => Res::Err(status),
    }
}

/// MNT of MOUNT version 1.
pub(crate) async fn mount(server: &Arc<Server>, call: Incoming) -> Outcome {
    let Ok(args) = Dec::all::<Mnt1Args>(&call.args) else { return Outcome::GarbageArgs };
    let request = Request::new(server, call.peer, call.caller);
    let args = hither_proto::mount::MntArgs { dirpath: args.dirpath };
    let status = match crate::mountd::mnt(&request, &args).await {
        // Whether the client takes a long handle is not known here, and may be said on another
        // connection.
        MntRes::Granted(ok) => {
            WireFh::pack(&ok.fhandle).map_or(Fhstatus::Refused(Stat::IO.0), Fhstatus::Granted)
        }
        MntRes::Refused(status) => Fhstatus::Refused(status),
    };
    Outcome::Done(Enc::of(&status))
}

/// Who calls.
struct Caller<'a> {
    r: &'a Request,
    /// `None` when there are too many: then without leases.
    client: Option<ClientId>,
    /// It takes long handles.
    long: bool,
}

impl Caller<'_> {
    fn leases(&self) -> &Arc<Leases> {
        &self.r.server.v4.leases
    }

    fn hello(&self, a: &Asking<HelloArgs>) -> Done<HelloOk> {
        let Some(short) = &self.leases().short else { return Err(Stat::IO) };
        let long = a.args.fh_max >= 2 * FH_BYTES as u32;
        if !short.clients.hello(&self.r.peer, &a.args, long) {
            return Err(Stat::PERM);
        }
        let ok = HelloOk {
            server: self.r.server.life(),
            fh_max: FH_BYTES as u32 * if long { 2 } else { 1 },
            transfer_max: self.r.server.options.io_max_bytes,
            term_max: u32::try_from(short.term_max().as_secs()).unwrap_or(u32::MAX),
        };
        Ok((LeaseReply::None, ok))
    }

    /// A lease is given up.
    fn vacated(&self, fh: &WireFh) {
        let (Some(client), Some(Handle::Object(_, fh))) =
            (self.client, fh.unpack().and_then(|own| Handle::read(&own)))
        else {
            return;
        };
        let key = key(&fh);
        // First: those who wait for the lease would wait for us.
        drop(self.leases().act(|inner, _| inner.short.unwatch(client, key)));
        self.leases().act(|inner, now| {
            // It goes on using the file, for all that is known.
            inner.table.vacated(now, client, key, None, true);
            inner.short.settle(client, key, inner.table.held(client, key))
        });
    }

    /// The object of a handle.
    async fn at(&self, fh: &WireFh) -> Result<At<'_>, Stat> {
        let own = fh.unpack().ok_or(Stat::STALE)?;
        let Some(Handle::Object(number, fh)) = Handle::read(&own) else { return Err(Stat::STALE) };
        let export = self.r.table.export(number).ok_or(Stat::STALE)?.clone();
        let (cx, rights) = self.r.enter(&export).await.map_err(|denied| match denied {
            crate::server::Denied::Client => Stat::ACCES,
            crate::server::Denied::Port => Stat::AUTHERR,
        })?;
        Ok(At { c: self, export, fh, cx, rights })
    }

    /// The same to change it.
    async fn at_to_change(&self, fh: &WireFh) -> Result<At<'_>, Stat> {
        let at = self.at(fh).await?;
        if at.rights.read_only { Err(Stat::ROFS) } else { Ok(at) }
    }

    /// Directory and name of an entry to change.
    async fn entry(&self, what: &Diropargs) -> Result<(At<'_>, Name), Stat> {
        let dir = self.at_to_change(&what.dir).await?;
        Ok((dir, name(&what.name)?))
    }
}

/// A name that an entry may have.
fn name(n: &Filename) -> Result<Name, Stat> {
    match &n[..] {
        b"." | b".." => Err(Stat::EXIST),
        [] => Err(Stat::ACCES),
        _ => Name::new(bytes::Bytes::copy_from_slice(n)).map_err(|e| stat(&e)),
    }
}

/// An object that a call is about, and as whom.
struct At<'a> {
    c: &'a Caller<'a>,
    export: Arc<Export>,
    fh: Fh,
    cx: Cx,
    rights: Rights,
}

/// An operation that is about to begin.
struct Plan {
    op: Op,
    /// The lease to ask the table for.
    want: Option<Want>,
    /// A write that is done under a lease that the client has, if it has one: possibly a delayed
    /// one.
    delayed: bool,
}

/// A call asks for a lease: what comes of it is noted, even if nobody waits for the answer any
/// more.
struct Asked<'a> {
    leases: &'a Arc<Leases>,
    client: ClientId,
    key: FileKey,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let (client, key) = (self.client, self.key);
        drop(self.leases.act(|inner, _| {
            inner.short.answered(client, key);
            inner.short.settle(client, key, inner.table.held(client, key))
        }));
    }
}

/// An operation that may go on.
struct Begun {
    changing: Changing,
    grant: Option<Grant>,
    revision: u64,
}

impl Begun {
    /// What the client is told of the lease. `revision` is the file's as the client sees it.
    fn lease(&self, revision: u64) -> LeaseReply {
        let Some(grant) = &self.grant else { return LeaseReply::None };
        let lease = Lease { cachable: grant.cachable, duration: grant.term_ms / 1000, rev: revision };
        match grant.kind {
            Kind::Read => LeaseReply::Read(lease),
            Kind::Write => LeaseReply::Write(lease),
        }
    }

    /// The change is done, and the file has this change attribute: its new revision.
    fn done(&mut self, at: &At<'_>, change: u64) -> u64 {
        let Some(revision) = self.changing.done() else { return self.revision };
        self.revision = revision;
        let key = key(&at.fh);
        at.c.leases().act(|inner, _| inner.short.changed(key, revision, change));
        revision
    }
}

impl<'a> At<'a> {
    /// Another object of the same export.
    fn with(&self, fh: Fh) -> At<'a> {
        At { c: self.c, export: self.export.clone(), fh, cx: self.cx.clone(), rights: self.rights.clone() }
    }

    fn file(&self) -> File<'_> {
        File { fh: &self.fh, open: None }
    }

    async fn attr(&self) -> Result<Attr, Stat> {
        self.export.vfs.getattr(&self.cx, self.file()).await.map(|a| a.attr).map_err(|e| stat(&e))
    }

    fn wire(&self, attr: &Attr, revision: u64) -> Fattr {
        convert::fattr(attr, &self.export, revision)
    }

    /// The handle on the wire; an error when it is longer than the client takes.
    fn handle(&self, fh: &Fh) -> Result<WireFh, Stat> {
        let wire = WireFh::pack(&handle::object(self.export.number, fh));
        wire.filter(|wire| self.c.long || !wire.is_long()).ok_or(Stat::STALE)
    }

    /// Begins an operation on this object: waits until nobody caches what it contradicts, and gets
    /// the lease that is asked for.
    async fn begin(&self, op: Op, lease: LeaseRequest) -> Result<(Attr, Begun), Stat> {
        self.begin_any(op, lease, false).await
    }

    async fn begin_any(&self, op: Op, lease: LeaseRequest, delayed: bool) -> Result<(Attr, Begun), Stat> {
        let since = self.since();
        let attr = self.attr().await?;
        let want = match lease {
            LeaseRequest::Read(seconds) => self.want(&attr, Kind::Read, seconds).await,
            LeaseRequest::Write(seconds) => self.want(&attr, Kind::Write, seconds).await,
            LeaseRequest::None | LeaseRequest::Other(_) => None,
        };
        let begun = self.begin_with((attr.change, since), Plan { op, want, delayed }).await?;
        // Whoever waited saw attributes of before.
        let attr = self.attr().await?;
        Ok((attr, begun))
    }

    /// The lease to ask the table for; `None` when this object is not leased to this caller.
    async fn want(&self, attr: &Attr, kind: Kind, seconds: u32) -> Option<Want> {
        use hither_vfs::Access as May;
        self.c.client?;
        if attr.kind != FileKind::Regular || matches!(self.export.others, Others::Unseen) {
            return None;
        }
        let need = match kind {
            Kind::Read => May::READ,
            Kind::Write => May::MODIFY,
        };
        // Others wait for whoever holds a lease: it is for those who may use the file.
        let may = self.export.vfs.access(&self.cx, &self.fh, need).await.ok()?;
        if !may.contains(need) || (kind == Kind::Write && self.rights.read_only) {
            return None;
        }
        // Zero would be the table's default; clients mean no lease by it.
        let ms = seconds.saturating_mul(1000);
        (ms > 0).then_some(Want { kind, term: Term::For(ms), optional: false })
    }

    /// Attributes are about to be read.
    fn since(&self) -> Since {
        self.c.leases().act(|inner, _| Since::now(&inner.table))
    }

    /// `seen`: the file's change attribute, and since when.
    async fn begin_with(&self, seen: (u64, Since), plan: Plan) -> Result<Begun, Stat> {
        let (leases, key, client) = (self.c.leases(), key(&self.fh), self.c.client);
        let Plan { op, want, delayed } = plan;
        let writes = matches!(op, Op::Write | Op::Push);
        let place = (self.export.number, self.fh.clone());
        let term_ms = leases
            .short
            .as_ref()
            .zip(want.as_ref())
            .map_or(0, |(short, want)| short.outstanding_ms(want.term));
        let asking = client.filter(|_| want.is_some());
        let (ready, unwatched) = leases.act(|inner, now| {
            inner.short.seen(&mut inner.table, now, key, seen.0, seen.1);
            let Some(client) = client else { return (true, None) };
            let mut ready = true;
            if asking.is_some() {
                ready = inner.numbers.as_mut().is_none_or(|n| n.out(term_ms));
                inner.short.asked(client, key, place);
            }
            // What this client changes must not look like somebody else's doing.
            (ready, if writes { inner.short.unwatch(client, key) } else { None })
        });
        let asked = asking.map(|client| Asked { leases, client, key });
        drop(unwatched);
        if !ready {
            return Err(Stat::TRYLATER);
        }
        let going = leases.begin_with(PATIENCE_V3, |inner| {
            let late = |client| inner.short.is_late(client, key, inner.table.held(client, key));
            if delayed && client.is_some_and(late) {
                return Err(Refusal::Expired);
            }
            let op = if delayed && inner.table.is_recovering() { Op::Push } else { op };
            // A file for whose lease there is no room is used without one: to wait for room takes a
            // term.
            let has_room = client.is_none_or(|client| inner.table.has_room(client, key));
            Ok(Access { client, file: key, op, lease: want.filter(|_| has_room), claim: None })
        });
        let going = going.await;
        drop(asked);
        let Going { changing, grant, revision } = going.map_err(|refusal| match refusal {
            Refusal::Later => Stat::TRYLATER,
            Refusal::Expired => Stat::EXPIRED,
        })?;
        let grant = match grant {
            Some(grant) => self.told(key, grant, revision, writes).await,
            None => None,
        };
        Ok(Begun { changing, grant, revision })
    }

    /// What the client is told of a lease that the table has granted at this revision.
    async fn told(&self, key: FileKey, grant: Grant, revision: u64, writes: bool) -> Option<Grant> {
        let Some(client) = self.c.client else { return Some(grant) };
        let watch = match &self.export.others {
            Others::Watched(watch) if grant.cachable && grant.kind == Kind::Read && !writes => Some(watch),
            _ => None,
        };
        let watched = self.c.leases().act(|inner, _| {
            inner.short.renewed(client, key);
            let watched = watch.is_none() || inner.short.is_watched(client, key);
            if watched && grant.cachable {
                inner.short.tell(client, key);
            }
            watched
        });
        match watch.filter(|_| !watched) {
            Some(watch) => self.watched(&**watch, client, key, grant, revision).await,
            None => Some(grant),
        }
    }

    /// A lease for reading, if local programs cannot change the file unseen.
    async fn watched(
        &self,
        watch: &dyn Watch,
        client: ClientId,
        key: FileKey,
        grant: Grant,
        revision: u64,
    ) -> Option<Grant> {
        let watched = watch.watch(&self.fh, false).await;
        // Somebody may have changed it since it was looked at, and before it was watched.
        let since = self.since();
        let attr = self.attr().await;
        let (given, unwatched) = self.c.leases().act(|inner, now| {
            // Nor is one watched that this client is just changing: it would wait for itself.
            let still = !inner.table.is_changing(key);
            let same = attr.is_ok_and(|attr| {
                still && inner.short.seen(&mut inner.table, now, key, attr.change, since) == revision
            });
            let mut unwatched = Vec::new();
            match watched {
                Some(watched) if same => unwatched.extend(inner.short.watch(client, key, watched)),
                watched => unwatched.extend(watched),
            }
            if same && inner.short.is_watched(client, key) {
                inner.short.tell(client, key);
                return (Some(grant), unwatched);
            }
            if inner.short.is_told(client, key) {
                // It holds the lease from before, and keeps what it read until it hears of this.
                inner.table.recall(now, client, key);
                return (Some(Grant { cachable: false, term_ms: 0, ..grant }), unwatched);
            }
            inner.table.vacated(now, client, key, Some(grant.seq), false);
            unwatched.extend(inner.short.settle(client, key, inner.table.held(client, key)));
            (None, unwatched)
        });
        drop(unwatched);
        given
    }
}

/// The kind of a lease on the wire.
fn request(kind: Cachetype, seconds: u32) -> LeaseRequest {
    match kind {
        Cachetype::READ => LeaseRequest::Read(seconds),
        Cachetype::WRITE => LeaseRequest::Write(seconds),
        _ => LeaseRequest::None,
    }
}
