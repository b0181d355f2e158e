//! NQNFS (R. Macklem, "Not Quite NFS", 1994) over a `Vfs`: a function for each procedure, from
//! arguments to results.
//!
//! The module knows nothing of connections. Every call begins in the lease table (`At::begin`).
//! There it waits until no client caches the file in conflict with the call. The lease that the
//! call asks for is granted in the same step. A call that waits too long gets "try later". Every
//! change is stable before the reply, because the protocol has no COMMIT.
//!
//! Leases are granted on regular files. Directories are never leased, because local programs could
//! change them unnoticed. docs/NQNFS.md lists the questions that the paper leaves open and the
//! extensions to the paper.

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
use crate::server::{Options, Request, Server};
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
use hither_vfs::{Attr, Fh, File, FileKind, Name, RequestContext, Spent, Watch};
use leases::Since;
use std::sync::Arc;
use std::time::Duration;

/// Settings of NQNFS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NqnfsOptions {
    /// Term of a lease when the client names none. The longest term is twice this.
    pub term: Duration,
    /// The most that clocks may drift apart during the longest term.
    pub skew: Duration,
    /// Write slack: a write lease ends only after this time without a write.
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

/// Number of locks that order the writes to files.
const WRITE_LOCKS: usize = 64;

/// The state that calls of NQNFS share beside the lease table.
pub(crate) struct Shared {
    /// Locks that order the writes to one file, so that appended data does not overwrite other
    /// appended data.
    writes: [tokio::sync::Mutex<()>; WRITE_LOCKS],
    cookies: list::Cookies,
}

impl Default for Shared {
    fn default() -> Self {
        Self { writes: std::array::from_fn(|_| Default::default()), cookies: Default::default() }
    }
}

/// Answers a call.
pub(crate) async fn answer(server: &Arc<Server>, call: Incoming, spent: &Arc<Spent>) -> Outcome {
    let args = match NqCall::decode(NqProc(call.proc), &call.args) {
        // EVICTED is a call from the server to the client.
        Ok(Some(NqCall::Evicted(_)) | None) => return Outcome::ProcUnavail,
        Ok(Some(args)) => args,
        Err(_) => return Outcome::GarbageArgs,
    };
    let Some(short) = &server.v4.leases.short else { return Outcome::ProcUnavail };
    call.room.expect(reply_bytes(&args, &server.options)).await;
    let key = changes_something(&args).then(|| Key::of(&call));
    let request = Request::new(server, (call.peer, call.caller), spent);
    let client = match args {
        NqCall::Hello(_) => None,
        _ => short.clients.of(&request.peer),
    };
    let key = key.map(|key| key.by(client.filter(|c| c.named).map(|c| c.id.0)));
    let caller = Caller { r: &request, client: client.map(|c| c.id), long: client.is_some_and(|c| c.long) };
    // Boxed, so that a call that waits for memory takes little of it.
    let run = Box::pin(async {
        let mut out = Enc::new();
        execute(&caller, args).await.encode(&mut out);
        Ok(out)
    });
    server.replies.once(key, run).await
}

/// The most bytes of memory that the payload of a reply may take. 0 for small replies.
fn reply_bytes(call: &NqCall, options: &Options) -> usize {
    match call {
        NqCall::Read(a) => a.args.count.min(options.io_max_bytes) as usize,
        NqCall::Readdir(a) => options.listing_bytes(a.args.count, false),
        NqCall::Readdirlook(a) => options.listing_bytes(a.args.cnt, true),
        _ => 0,
    }
}

/// Whether a call changes state, so that a second execution could do harm.
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

/// Result of a procedure: its lease and results, or a status.
type Done<T> = Result<(LeaseReply, T), Stat>;

fn res<T>(done: Done<T>) -> Res<T> {
    match done {
        Ok((lease, value)) => Res::Ok(lease, value),
        Err(status) => Res::Err(status),
    }
}

/// MNT of MOUNT version 1.
pub(crate) async fn mount(server: &Arc<Server>, call: Incoming, spent: &Arc<Spent>) -> Outcome {
    let Ok(args) = Dec::all::<Mnt1Args>(&call.args) else { return Outcome::GarbageArgs };
    let request = Request::new(server, (call.peer, call.caller), spent);
    let args = hither_proto::mount::MntArgs { dirpath: args.dirpath };
    let status = match crate::mountd::mnt(&request, &args).await {
        // The server cannot tell whether the client takes long handles. The client may announce
        // that later, on another connection.
        MntRes::Granted(ok) => {
            WireFh::pack(&ok.fhandle).map_or(Fhstatus::Refused(Stat::IO.0), Fhstatus::Granted)
        }
        MntRes::Refused(status) => Fhstatus::Refused(status),
    };
    Outcome::Done(Enc::of(&status))
}

/// The client that makes a call.
struct Caller<'a> {
    r: &'a Request,
    /// `None` when there are too many clients. The client then gets no leases.
    client: Option<ClientId>,
    /// The client takes long handles.
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

    /// Ends a lease that the client gives up.
    fn vacated(&self, fh: &WireFh) {
        let (Some(client), Some(Handle::Object(_, fh))) =
            (self.client, fh.unpack().and_then(|own| Handle::read(&own)))
        else {
            return;
        };
        let key = key(&fh);
        // Drop the watch first. An operation that waits for this lease would otherwise wait for the
        // watch as well.
        drop(self.leases().act(|inner, _| inner.short.unwatch(client, key)));
        self.leases().act(|inner, now| {
            // The server must assume that the client still uses the file.
            inner.table.vacated(now, client, key, None, true);
            inner.short.settle(client, key, inner.table.held(client, key))
        });
    }

    /// The object of a handle, with the identity of the caller.
    async fn at(&self, fh: &WireFh) -> Result<At<'_>, Stat> {
        let own = fh.unpack().ok_or(Stat::STALE)?;
        let Some(Handle::Object(number, fh)) = Handle::read(&own) else { return Err(Stat::STALE) };
        let export = self.r.table.export(number).ok_or(Stat::STALE)?.clone();
        let (cx, rights) = self.r.enter(&export).await.map_err(|denied| match denied {
            crate::server::Denied::Client | crate::server::Denied::Principal => Stat::ACCES,
            crate::server::Denied::Port | crate::server::Denied::Transport => Stat::AUTHERR,
        })?;
        Ok(At { c: self, export, fh, cx, rights })
    }

    /// As [`Caller::at`], for a change. Fails with `ROFS` when the caller's export is read-only.
    async fn at_to_change(&self, fh: &WireFh) -> Result<At<'_>, Stat> {
        let at = self.at(fh).await?;
        if at.rights.read_only { Err(Stat::ROFS) } else { Ok(at) }
    }

    /// Directory and name of an entry that a call changes.
    async fn entry(&self, what: &Diropargs) -> Result<(At<'_>, Name), Stat> {
        let dir = self.at_to_change(&what.dir).await?;
        Ok((dir, name(&what.name)?))
    }
}

/// Checks the name of an entry.
fn name(n: &Filename) -> Result<Name, Stat> {
    match &n[..] {
        b"." | b".." => Err(Stat::EXIST),
        [] => Err(Stat::ACCES),
        _ => Name::new(bytes::Bytes::copy_from_slice(n)).map_err(|e| stat(&e)),
    }
}

/// The object of a call, with the identity of the caller.
struct At<'a> {
    c: &'a Caller<'a>,
    export: Arc<Export>,
    fh: Fh,
    cx: RequestContext,
    rights: Rights,
}

/// An operation before its start.
struct Plan {
    op: Op,
    /// The lease to request from the table.
    want: Option<Want>,
    /// The operation is a write under the client's lease, if the client has one. The write may be a
    /// delayed write.
    delayed: bool,
}

/// A call's request for a lease. Its end is recorded even when the call is cancelled.
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

/// An operation that may proceed.
struct Begun {
    changing: Changing,
    grant: Option<Grant>,
    revision: u64,
}

impl Begun {
    /// The lease in the reply. `revision` is the file's revision in the same reply.
    fn lease(&self, revision: u64) -> LeaseReply {
        let Some(grant) = &self.grant else { return LeaseReply::None };
        let lease = Lease { cachable: grant.cachable, duration: grant.term_ms / 1000, rev: revision };
        match grant.kind {
            Kind::Read => LeaseReply::Read(lease),
            Kind::Write => LeaseReply::Write(lease),
        }
    }

    /// Ends the change. `change` is the file's change attribute after it. Returns the file's new
    /// revision.
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

    /// The handle on the wire. Fails when the handle is longer than the client accepts.
    fn handle(&self, fh: &Fh) -> Result<WireFh, Stat> {
        let wire = WireFh::pack(&handle::object(self.export.number, fh));
        wire.filter(|wire| self.c.long || !wire.is_long()).ok_or(Stat::STALE)
    }

    /// Begins an operation on this object. Waits until no client caches the file in conflict with
    /// the operation, and takes the requested lease.
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
        // The attributes from before the wait may be out of date.
        let attr = self.attr().await?;
        Ok((attr, begun))
    }

    /// The lease to request from the table. `None` when this object is not leased to this caller.
    async fn want(&self, attr: &Attr, kind: Kind, seconds: u32) -> Option<Want> {
        use hither_vfs::Access as May;
        self.c.client?;
        if attr.kind != FileKind::Regular || !self.export.others.are_seen() {
            return None;
        }
        let need = match kind {
            Kind::Read => May::READ,
            Kind::Write => May::MODIFY,
        };
        // A lease makes other clients wait, so only callers that may use the file get one.
        let may = self.export.vfs.access(&self.cx, &self.fh, need).await.ok()?;
        if !may.contains(need) || (kind == Kind::Write && self.rights.read_only) {
            return None;
        }
        // Zero means the default in the table, and no lease on the wire.
        let ms = seconds.saturating_mul(1000);
        (ms > 0).then_some(Want { kind, term: Term::For(ms), optional: false })
    }

    /// To be called before attributes are read.
    fn since(&self) -> Since {
        self.c.leases().act(|inner, _| Since::now(&inner.table))
    }

    /// `seen` is the file's change attribute, and the [`Since`] from before it was read.
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
            // Drop the watch: this client's change must not look like a change by a local program.
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
            // Without room for the lease, the file is used without a lease. Room comes only after a
            // term, which is too long to wait.
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

    /// The lease for the reply, from a grant of the table at this revision. `None` when the grant
    /// is withdrawn.
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

    /// Starts the watch of the file for a read lease. Returns the lease if no local program can
    /// change the file unnoticed.
    async fn watched(
        &self,
        watch: &dyn Watch,
        client: ClientId,
        key: FileKey,
        grant: Grant,
        revision: u64,
    ) -> Option<Grant> {
        let watched = watch.watch(&self.fh, false).await;
        // A local program may have changed the file after the first look and before the watch.
        let since = self.since();
        let attr = self.attr().await;
        let (given, unwatched) = self.c.leases().act(|inner, now| {
            // No watch is kept while the file is being changed. The change may be this client's
            // own, and would wait for the watch.
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
                // The client holds the lease from an earlier reply and uses its cache until the
                // eviction arrives.
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

/// The wire kind of a lease as a lease request.
fn request(kind: Cachetype, seconds: u32) -> LeaseRequest {
    match kind {
        Cachetype::READ => LeaseRequest::Read(seconds),
        Cachetype::WRITE => LeaseRequest::Write(seconds),
        _ => LeaseRequest::None,
    }
}
