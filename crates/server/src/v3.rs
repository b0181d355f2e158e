//! NFSv3 (RFC 1813) over a `Vfs`: a function for each procedure, from arguments to results.
//!
//! The module knows nothing of connections. Between calls it keeps only the replies of calls that
//! change state (`drc`). After a restart, replies to calls of the earlier process are rebuilt from
//! a journal (`remembered`); they have no attributes. Weak cache consistency data has the
//! attributes before a call only where the `Vfs` knows that no other change came in between.
//! Clients then trust their caches.
//!
//! Locks are not offered. Linux clients mount with `nolock` and lock among their own processes.
//! Other clients learn from `nlm` that there are no locks.

mod change;
mod convert;
mod list;
mod read;
#[cfg(test)]
mod tests;

use crate::access::Rights;
use crate::drc::Key;
use crate::error::stat3;
use crate::handle::{self, Handle};
use crate::server::{Options, Request, Server};
use crate::table::Export;
use crate::v4::delegation::{Changing, Look, Naming, PATIENCE_V3};
use bytes::Bytes;
use convert::fattr;
use hither_proto::nfs3::{
    Call3, CreateOk, Diropargs3, FH_MAX_BYTES, Fattr3, Fh3, LinkWcc, Name3, Nfsstat3, PROGRAM, PostOpAttr,
    Proc3, RenameWcc, Reply3, Res, StableHow, VERSION, WccAttr, WccData, WriteOk,
};
use hither_proto::rpc::AuthStat;
use hither_proto::xdr::Enc;
use hither_rpc::server::{Incoming, Outcome};
use hither_vfs::{Answered, Attr, ChangeInfo, Fh, File, FileKind, Name, Node, RequestContext, Spent};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::time::Instant;

/// Answers a call.
pub(crate) async fn answer(server: &Arc<Server>, call: Incoming, spent: &Arc<Spent>) -> Outcome {
    let args = match Call3::decode(Proc3(call.proc), &call.args) {
        Ok(Some(args)) => args,
        Ok(None) => return Outcome::ProcUnavail,
        Err(_) => return Outcome::GarbageArgs,
    };
    call.room.expect(reply_bytes(&args, &server.options)).await;
    let key = changes_something(&args).then(|| Key::of(&call));
    let name = key.map(Key::to_bytes);
    let request = Request { call: name, ..Request::new(server, (call.peer, call.caller), spent) };
    if let Call3::Read(a) = &args
        && let Some(outcome) = Box::pin(read::read_piped(&request, a)).await
    {
        return outcome;
    }
    // Boxed, so that a call that waits for memory takes little of it.
    let run = Box::pin(async {
        let mut out = Enc::new();
        execute(&request, args).await.encode(&mut out);
        // As for a credential that is too weak: the client cannot succeed on this connection.
        if request.too_weak.load(Relaxed) { Err(AuthStat::TOOWEAK) } else { Ok(out) }
    });
    server.replies.once(key, run).await
}

/// The reply to a call of an earlier process, from the journal of an export. `None` when the call
/// was not an NFSv3 call.
pub(crate) fn remembered(server: &Server, export: &Export, was: &Answered) -> Option<(Key, Bytes)> {
    let key = Key::parse(&was.call)?;
    let (PROGRAM, VERSION, proc) = key.procedure() else { return None };
    let wire = handle::object(export.number, &was.fh);
    let obj = (wire.len() <= FH_MAX_BYTES).then(|| wire.into());
    let made = || Res::Ok(CreateOk { obj: obj.clone(), obj_attributes: None, dir_wcc: UNKNOWN });
    let reply = match Proc3(proc) {
        Proc3::SETATTR => Reply3::Setattr(Res::Ok(UNKNOWN)),
        Proc3::WRITE => Reply3::Write(Res::Ok(WriteOk {
            file_wcc: UNKNOWN,
            count: was.bytes,
            committed: StableHow::FILE_SYNC,
            verf: server.write_verifier(export),
        })),
        Proc3::CREATE => Reply3::Create(made()),
        Proc3::MKDIR => Reply3::Mkdir(made()),
        Proc3::SYMLINK => Reply3::Symlink(made()),
        Proc3::MKNOD => Reply3::Mknod(made()),
        Proc3::REMOVE => Reply3::Remove(Res::Ok(UNKNOWN)),
        Proc3::RMDIR => Reply3::Rmdir(Res::Ok(UNKNOWN)),
        Proc3::RENAME => Reply3::Rename(Res::Ok(RenameWcc { fromdir_wcc: UNKNOWN, todir_wcc: UNKNOWN })),
        Proc3::LINK => Reply3::Link(Res::Ok(LinkWcc { file_attributes: None, linkdir_wcc: UNKNOWN })),
        _ => return None,
    };
    let mut out = Enc::new();
    reply.encode(&mut out);
    Some((key, out.to_bytes()))
}

/// The most bytes of memory that the payload of a reply may take. 0 for small replies.
fn reply_bytes(call: &Call3, options: &Options) -> usize {
    match call {
        Call3::Read(a) => a.count.min(options.io_max_bytes) as usize,
        Call3::Readdir(a) => options.listing_bytes(a.count, false),
        Call3::Readdirplus(a) => options.listing_bytes(a.maxcount, true),
        _ => 0,
    }
}

/// Whether a call changes state, so that a second execution could do harm.
fn changes_something(call: &Call3) -> bool {
    matches!(
        call,
        Call3::Setattr(_)
            | Call3::Write(_)
            | Call3::Create(_)
            | Call3::Mkdir(_)
            | Call3::Symlink(_)
            | Call3::Mknod(_)
            | Call3::Remove(_)
            | Call3::Rmdir(_)
            | Call3::Rename(_)
            | Call3::Link(_)
    )
}

async fn execute(r: &Request, call: Call3) -> Reply3 {
    match call {
        Call3::Null(_) => Reply3::Null(()),
        Call3::Getattr(a) => Reply3::Getattr(read::getattr(r, &a).await),
        Call3::Setattr(a) => Reply3::Setattr(change::setattr(r, &a).await),
        Call3::Lookup(a) => Reply3::Lookup(read::lookup(r, &a).await),
        Call3::Access(a) => Reply3::Access(read::access(r, &a).await),
        Call3::Readlink(a) => Reply3::Readlink(read::readlink(r, &a).await),
        Call3::Read(a) => Reply3::Read(read::read(r, &a).await),
        Call3::Write(a) => Reply3::Write(change::write(r, a).await),
        Call3::Create(a) => Reply3::Create(change::create(r, &a).await),
        Call3::Mkdir(a) => Reply3::Mkdir(change::mkdir(r, &a).await),
        Call3::Symlink(a) => Reply3::Symlink(change::symlink(r, &a).await),
        Call3::Mknod(a) => Reply3::Mknod(change::mknod(r, &a).await),
        Call3::Remove(a) => Reply3::Remove(change::remove(r, &a.object, false).await),
        Call3::Rmdir(a) => Reply3::Rmdir(change::remove(r, &a.object, true).await),
        Call3::Rename(a) => Reply3::Rename(change::rename(r, &a).await),
        Call3::Link(a) => Reply3::Link(change::link(r, &a).await),
        Call3::Readdir(a) => Reply3::Readdir(list::readdir(r, &a).await),
        Call3::Readdirplus(a) => Reply3::Readdirplus(list::readdirplus(r, &a).await),
        Call3::Fsstat(a) => Reply3::Fsstat(read::fsstat(r, &a).await),
        Call3::Fsinfo(a) => Reply3::Fsinfo(read::fsinfo(r, &a).await),
        Call3::Pathconf(a) => Reply3::Pathconf(read::pathconf(r, &a).await),
        Call3::Commit(a) => Reply3::Commit(change::commit(r, &a).await),
    }
}

/// Whether a client may have delayed writes to a file, so that the server's attributes may be
/// wrong.
fn is_delayed(r: &Request, fh: &Fh) -> bool {
    let v4 = &r.server.v4;
    v4.may_be_dirty() || v4.leases.is_delayed(None, fh)
}

/// The object of a call, with the identity of the caller.
struct At {
    export: Arc<Export>,
    fh: Fh,
    cx: RequestContext,
    rights: Rights,
}

impl At {
    /// The object of a filehandle.
    async fn of(r: &Request, fh: &Fh3) -> Result<Self, Nfsstat3> {
        let (number, fh) = match Handle::read(fh) {
            Some(Handle::Object(number, fh)) => (number, fh),
            Some(Handle::Above(_) | Handle::Foreign) => return Err(Nfsstat3::STALE),
            None => return Err(Nfsstat3::BADHANDLE),
        };
        let export = r.table.export(number).ok_or(Nfsstat3::STALE)?.clone();
        let (cx, rights) = r.enter(&export).await.map_err(|_| Nfsstat3::ACCES)?;
        let at = Self { export, fh, cx, rights };
        at.need_on_top(r, &at.fh)?;
        Ok(at)
    }

    /// Fails with `STALE` for a directory that another export covers: a LOOKUP of its name leads to
    /// the other export.
    fn need_on_top(&self, r: &Request, dir: &Fh) -> Result<(), Nfsstat3> {
        self.crossing(r, dir).map_or(Ok(()), |_| Err(Nfsstat3::STALE))
    }

    /// The root of an export.
    async fn root_of(r: &Request, export: &Arc<Export>) -> Result<Self, Nfsstat3> {
        let (cx, rights) = r.enter(export).await.map_err(|_| Nfsstat3::ACCES)?;
        let root = export.root().await.map_err(|e| stat3(&e))?;
        Ok(Self { export: export.clone(), fh: root.fh, cx, rights })
    }

    /// The export over a directory of this one, if this client may cross into it.
    fn crossing<'r>(&self, r: &'r Request, dir: &Fh) -> Option<&'r Arc<Export>> {
        let inside = r.crossing(&self.export, dir)?;
        (!inside.covers.as_ref().is_some_and(|covers| covers.hidden)).then_some(inside)
    }

    /// As [`At::of`], for a change. Fails with `ROFS` when the export is read-only for the client.
    async fn to_change(r: &Request, fh: &Fh3) -> Result<Self, Nfsstat3> {
        let at = Self::of(r, fh).await?;
        if at.rights.read_only { Err(Nfsstat3::ROFS) } else { Ok(at) }
    }

    /// Waits until no client caches a file that is about to change. No client can begin to cache it
    /// until the result is dropped.
    async fn for_change(&self, r: &Request, fh: &Fh) -> Result<Changing, Nfsstat3> {
        let v4 = &r.server.v4;
        if v4.may_be_delegated() {
            return Err(Nfsstat3::JUKEBOX);
        }
        v4.leases.change(None, fh, PATIENCE_V3).await.map_err(|_| Nfsstat3::JUKEBOX)
    }

    /// As [`At::for_change`], for the names in this directory.
    async fn for_entries(&self, r: &Request) -> Result<Changing, Nfsstat3> {
        let v4 = &r.server.v4;
        if v4.may_be_delegated() {
            return Err(Nfsstat3::JUKEBOX);
        }
        let changing = v4.leases.change_entries(None, &self.fh, PATIENCE_V3).await;
        changing.map_err(|_| Nfsstat3::JUKEBOX)
    }

    /// Waits until no client has delayed writes to a file that is about to be read.
    async fn for_reading(&self, r: &Request) -> Result<(), Nfsstat3> {
        let v4 = &r.server.v4;
        if v4.may_be_dirty() && self.attr().await?.kind == FileKind::Regular {
            return Err(Nfsstat3::JUKEBOX);
        }
        let read = v4.leases.read(None, &self.fh, PATIENCE_V3).await;
        read.map(|_| ()).map_err(|_| Nfsstat3::JUKEBOX)
    }

    /// Attributes for a GETATTR. The server asks the holder of a write delegation instead of
    /// recalling the delegation.
    async fn look(&self, r: &Request) -> Result<Attr, Nfsstat3> {
        let v4 = &r.server.v4;
        if v4.may_be_dirty() {
            self.for_reading(r).await?;
        }
        let look = v4.leases.look(None, &self.fh, PATIENCE_V3).await.map_err(|_| Nfsstat3::JUKEBOX)?;
        let mut attr = self.attr_since(r.began).await?;
        if let Look::Told(told) = look {
            v4.leases.tell(told, &mut attr);
        }
        Ok(attr)
    }

    /// As [`At::for_change`], for the file that a name in this directory leads to.
    async fn for_change_of(&self, r: &Request, name: &Name) -> Result<Naming, Nfsstat3> {
        let v4 = &r.server.v4;
        if v4.may_be_delegated() {
            return Err(Nfsstat3::JUKEBOX);
        }
        let at = (&*self.export, &self.cx, &self.fh);
        v4.leases.change_name(None, at, (name, true), PATIENCE_V3).await.map_err(|_| Nfsstat3::JUKEBOX)
    }

    fn file(&self) -> File<'_> {
        File { fh: &self.fh, open: None }
    }

    /// Attributes that are no older than the call. Clients revalidate with them at each open, also
    /// when the `Vfs` has a cache.
    async fn attr_since(&self, began: Instant) -> Result<Attr, Nfsstat3> {
        let attrs = self.export.vfs.getattr(&self.cx.fresh(began), self.file()).await;
        attrs.map(|attrs| attrs.attr).map_err(|e| stat3(&e))
    }

    async fn attr(&self) -> Result<Attr, Nfsstat3> {
        match self.export.vfs.getattr(&self.cx, self.file()).await {
            Ok(attrs) => Ok(attrs.attr),
            Err(e) => Err(stat3(&e)),
        }
    }

    /// The parent directory. `None` for the root of an export, which is its own parent.
    async fn above(&self) -> Result<Option<Node>, Nfsstat3> {
        if self.export.is_root(&self.fh) {
            return Ok(None);
        }
        match self.export.vfs.parent(&self.cx, &self.fh).await {
            Ok(node) => Ok(Some(node)),
            Err(e) if e.errno == libc::ENOENT => Ok(None),
            Err(e) => Err(stat3(&e)),
        }
    }

    fn wire(&self, attr: &Attr) -> Fattr3 {
        fattr(attr, &self.export)
    }

    /// Attributes after a call, when they are available.
    async fn after(&self) -> PostOpAttr {
        self.attr().await.ok().map(|a| self.wire(&a))
    }

    /// The wire handle of another object of the export. `None` when it is too long for NFSv3.
    fn handle(&self, fh: &Fh) -> Option<Fh3> {
        let wire = handle::object(self.export.number, fh);
        (wire.len() <= FH_MAX_BYTES).then(|| wire.into())
    }

    /// The attributes of a directory before and after a change in it.
    async fn wcc(&self, before: Option<&Attr>, change: Option<&ChangeInfo>) -> WccData {
        let known = change.and_then(|c| c.attrs.as_ref()).map(|a| a.attr.clone());
        let after = match known {
            Some(attr) => Some(attr),
            None => self.attr().await.ok(),
        };
        let exact = match (change, before, &after) {
            (Some(c), Some(b), Some(a)) => c.atomic && c.before == b.change && c.after == a.change,
            // The call changed nothing, so the data is exact unless another change shows.
            (None, Some(b), Some(a)) => b.change == a.change,
            _ => false,
        };
        let before = before.filter(|_| exact).map(|b| {
            let b = self.wire(b);
            WccAttr { size: b.size, mtime: b.mtime, ctime: b.ctime }
        });
        WccData { before, after: after.map(|a| self.wire(&a)) }
    }
}

/// Data without attributes before or after.
const UNKNOWN: WccData = WccData { before: None, after: None };

/// Checks the name of an entry.
fn name(n: &Name3) -> Result<Name, Nfsstat3> {
    match &n[..] {
        b"." | b".." => Err(Nfsstat3::EXIST),
        [] => Err(Nfsstat3::ACCES),
        _ => Name::new(Bytes::copy_from_slice(n)).map_err(|e| stat3(&e)),
    }
}

/// Directory and name of an entry that a call changes.
async fn entry(r: &Request, what: &Diropargs3) -> Result<(At, Name), Nfsstat3> {
    let dir = At::to_change(r, &what.dir).await?;
    Ok((dir, name(&what.name)?))
}
