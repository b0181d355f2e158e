//! Sends the requests of the NFSv3 client as NQNFS calls.
//!
//! Each request becomes one call, with these exceptions:
//!
//! - ACCESS: NQNFS answers all rights together with yes or no. After a no the client sends one call
//!   for each right.
//! - CREATE: see the next section.
//! - FSINFO: sends STATFS.
//! - PATHCONF and COMMIT: send nothing.
//!
//! **CREATE** of NQNFS opens an existing file. The creations of the NFSv3 client must fail on an
//! existing file. Each creation therefore carries a stamp, similar to [`crate::stamp`]: a random
//! access time within the last second. Only the created file returns with this access time, even
//! when the call is executed twice. An existing file is not changed, because the client sends no
//! length.
//!
//! **WRITE** of data that was delayed under a lease requests no lease. Any other WRITE requests a
//! lease with a term of zero. A delayed WRITE refused because its lease has ended is sent again in
//! this way. The term of zero marks a new write: after a restart the server accepts delayed writes
//! first. A write that is correct only under the lease ([`ONLY_HELD`]) is never marked as new. It
//! is not sent to a server that does not know the lease.

use super::convert::{self, Now};
use super::greeting::Greeting;
use super::leases::{Asking as Wish, Changing, Leases};
use crate::v3::wire::{Caller, JUKEBOX_LEAST, JUKEBOX_MAX, Patience};
use hither_lease::Kind;
use hither_proto::nfs3::{self, Call3, Createhow3, Mknoddata3, Nfsstat3, Proc3, Reply3, SetTime, access};
use hither_proto::nqnfs::{self as nq, Asking, DATA_SAFE_BYTES, LeaseRequest, Sattr, Stat};
use hither_proto::rpc::Procedure;
use hither_proto::xdr::{Chain, Dec, Enc, Xdr};
use hither_rpc::CallError;
use hither_vfs::{Cred, Upcalls};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Stability of a WRITE that is correct only under the write lease under which it was delayed
/// ([`hither_vfs::RequestContext::only_held`]). NQNFS has no such flag, and all its writes are
/// stable. The request therefore uses this otherwise unused value.
pub(crate) const ONLY_HELD: nfs3::StableHow = nfs3::StableHow::DATA_SYNC;

/// The NQNFS part of a [`Caller`].
pub(crate) struct Nqnfs {
    greeting: Arc<Greeting>,
    leases: OnceLock<Arc<Leases>>,
}

/// Outcome of one procedure with an NFSv3 status.
type Outcome<T> = Result<T, Nfsstat3>;

/// The NFSv3 reply of an outcome. Failures have no attributes.
fn res<T, F>(outcome: Outcome<T>, nothing: F) -> nfs3::Res<T, F> {
    match outcome {
        Ok(ok) => nfs3::Res::Ok(ok),
        Err(status) => nfs3::Res::Err(status, nothing),
    }
}

/// Returns the status of a failed conversion as the outcome.
macro_rules! convert {
    ($e:expr) => {
        match $e {
            Ok(converted) => converted,
            Err(status) => return Ok(Err(status)),
        }
    };
}

/// One request.
struct Turn<'a> {
    nqnfs: &'a Nqnfs,
    caller: &'a Caller,
    cred: Arc<Cred>,
    patience: &'a Patience,
}

impl Nqnfs {
    pub(super) fn new(greeting: Arc<Greeting>) -> Self {
        Self { greeting, leases: OnceLock::new() }
    }

    /// Calls a procedure of NFSv3.
    ///
    /// # Errors
    /// There was no usable answer.
    pub async fn call<P: Procedure>(
        &self,
        caller: &Caller,
        cred: &Cred,
        patience: &Patience,
        args: &P,
    ) -> Result<P::Reply, CallError> {
        let question = Call3::decode(Proc3(P::PROC), &Enc::of(args).to_bytes());
        let Ok(Some(question)) = question else { return Err(CallError::GarbageArgs) };
        let turn = Turn { nqnfs: self, caller, cred: Arc::new(cred.clone()), patience };
        let reply = Box::pin(turn.answer(question)).await?;
        let mut e = Enc::new();
        reply.encode(&mut e);
        Dec::all(&e.to_bytes()).map_err(|_| CallError::PeerMisbehaved("a reply cannot be used"))
    }

    /// Starts to request leases, and reports their end to the layer above. Does nothing when the
    /// server treats each connection as a client and there are several connections. One connection
    /// could not return the lease of another.
    pub fn subscribe(&self, caller: &Arc<Caller>, upcalls: Arc<dyn Upcalls>) {
        let said = self.greeting.said();
        if said.is_some() || caller.client.nconnect() == 1 {
            self.leases.get_or_init(|| Leases::begin(caller, upcalls, said.map(|said| said.term_max)));
        }
    }

    /// The leases, after a subscriber for their end exists.
    pub fn leases(&self) -> Option<&Arc<Leases>> {
        self.leases.get()
    }

    /// Largest READ and WRITE.
    fn transfer_max(&self) -> u32 {
        match self.greeting.said().map(|said| said.transfer_max) {
            None | Some(0) => DATA_SAFE_BYTES,
            Some(most) => most,
        }
    }
}

impl Turn<'_> {
    async fn answer(&self, question: Call3) -> Result<Reply3, CallError> {
        Ok(match question {
            Call3::Null(_) => Reply3::Null(()),
            Call3::Getattr(a) => Reply3::Getattr(res(self.getattr(&a).await?, ())),
            Call3::Setattr(a) => Reply3::Setattr(res(self.setattr(&a).await?, Default::default())),
            Call3::Lookup(a) => Reply3::Lookup(res(self.lookup(&a).await?, None)),
            Call3::Access(a) => Reply3::Access(res(self.access(&a).await?, None)),
            Call3::Readlink(a) => Reply3::Readlink(res(self.readlink(&a).await?, None)),
            Call3::Read(a) => Reply3::Read(res(self.read(&a).await?, None)),
            Call3::Write(a) => Reply3::Write(res(self.write(a).await?, Default::default())),
            Call3::Create(a) => Reply3::Create(res(self.create(&a).await?, Default::default())),
            Call3::Mkdir(a) => Reply3::Mkdir(res(self.mkdir(&a).await?, Default::default())),
            Call3::Symlink(a) => Reply3::Symlink(res(self.symlink(&a).await?, Default::default())),
            Call3::Mknod(a) => Reply3::Mknod(res(self.mknod(&a).await?, Default::default())),
            Call3::Remove(a) => Reply3::Remove(res(self.remove(&a).await?, Default::default())),
            Call3::Rmdir(a) => Reply3::Rmdir(res(self.rmdir(&a).await?, Default::default())),
            Call3::Rename(a) => Reply3::Rename(res(self.rename(&a).await?, no_wcc())),
            Call3::Link(a) => Reply3::Link(res(self.link(&a).await?, no_link_wcc())),
            Call3::Readdir(a) => Reply3::Readdir(res(self.readdir(&a).await?, None)),
            Call3::Readdirplus(a) => Reply3::Readdirplus(res(self.readdirplus(&a).await?, None)),
            Call3::Fsstat(a) => Reply3::Fsstat(res(self.fsstat(&a).await?, None)),
            Call3::Fsinfo(a) => Reply3::Fsinfo(res(self.fsinfo(&a).await?, None)),
            Call3::Pathconf(_) => Reply3::Pathconf(nfs3::Res::Err(Nfsstat3::NOTSUPP, None)),
            // All answered writes are stable.
            Call3::Commit(_) => {
                let ok = nfs3::CommitOk { file_wcc: Default::default(), verf: Default::default() };
                Reply3::Commit(nfs3::Res::Ok(ok))
            }
        })
    }

    async fn ask<P, T>(&self, args: P) -> Result<Outcome<T>, CallError>
    where
        Asking<P>: Procedure<Reply = nq::Res<T>>,
        T: Xdr,
    {
        self.ask_for(LeaseRequest::None, args).await
    }

    async fn ask_for<P, T>(&self, lease: LeaseRequest, args: P) -> Result<Outcome<T>, CallError>
    where
        Asking<P>: Procedure<Reply = nq::Res<T>>,
        T: Xdr,
    {
        Ok(self.send(lease, args).await?.map(|(_, results)| results).map_err(convert::status))
    }

    async fn send<P, T>(
        &self,
        lease: LeaseRequest,
        args: P,
    ) -> Result<Result<(nq::LeaseReply, T), Stat>, CallError>
    where
        Asking<P>: Procedure<Reply = nq::Res<T>>,
        T: Xdr,
    {
        let asking = Asking { lease, args };
        let answer = self.caller.send(&self.cred, self.patience, &asking).await?.into_result();
        if answer.is_err() {
            self.caller.stats.error(<Asking<P> as Procedure>::NAME);
        }
        Ok(answer)
    }

    /// A call that reads `file`, with a request for a lease on it where the lease is useful.
    async fn ask_reading<P, T>(
        &self,
        file: &nq::Fh,
        args: P,
        attr: impl Fn(&T) -> Option<nq::Fattr>,
    ) -> Result<Outcome<T>, CallError>
    where
        Asking<P>: Procedure<Reply = nq::Res<T>>,
        T: Xdr,
    {
        let Some(wish) = self.nqnfs.leases().map(|leases| leases.ask(file)) else {
            return self.ask(args).await;
        };
        let answer = self.send(wish.lease, args).await?;
        if let Ok((reply, results)) = &answer {
            wish.answered(&self.cred, file, reply, attr(results).as_ref());
        }
        Ok(answer.map(|(_, results)| results).map_err(convert::status))
    }

    /// A request for leases on files that a lookup or listing will find.
    fn wish(&self) -> Option<Wish> {
        self.nqnfs.leases().map(|leases| leases.ask_unknown(Kind::Read))
    }

    /// Marks the file as being changed by this client, until the drop of the result.
    fn changing(&self, file: &nq::Fh) -> Option<Changing> {
        self.nqnfs.leases().map(|leases| leases.changing(file))
    }

    fn now(&self) -> Now {
        match self.nqnfs.greeting.said() {
            Some(_) => Now::Server,
            None => Now::Client((self.caller.env.wall)()),
        }
    }

    async fn getattr(&self, a: &nfs3::GetattrArgs) -> Result<Outcome<nfs3::Fattr3>, CallError> {
        let file = convert!(convert::fh(&a.object));
        let attr = self.ask_reading(&file, nq::GetattrArgs { file }, |f| Some(*f)).await?;
        Ok(attr.map(|f| convert::attr(&f, &file)))
    }

    async fn setattr(&self, a: &nfs3::SetattrArgs) -> Result<Outcome<nfs3::WccData>, CallError> {
        let file = convert!(convert::fh(&a.object));
        let attributes = convert::sattr(&a.new_attributes, &self.now());
        let changing = self.changing(&file);
        let attr = self.ask(nq::SetattrArgs { file, attributes }).await?;
        if let (Some(changing), Ok(f)) = (&changing, &attr) {
            changing.done(f);
        }
        Ok(attr.map(|f| nfs3::WccData { before: None, after: convert::came(&f, &file) }))
    }

    async fn lookup(&self, a: &nfs3::LookupArgs) -> Result<Outcome<nfs3::LookupOk>, CallError> {
        let nq::Diropargs { dir, name } = convert!(convert::dirop(&a.what));
        let wish = self.wish();
        let duration = wish.as_ref().map_or(0, Wish::duration);
        let found = self.ask(nq::LookupArgs { duration, dir, name }).await?;
        if let (Some(wish), Ok(ok)) = (&wish, &found) {
            wish.answered(&self.cred, &ok.file, &ok.lookup_lease, Some(&ok.attr));
        }
        Ok(found.map(|ok| nfs3::LookupOk {
            object: convert::fh3(&ok.file),
            obj_attributes: convert::came(&ok.attr, &ok.file),
            dir_attributes: None,
        }))
    }

    /// Asks for all rights together, and after a no for each right.
    async fn access(&self, a: &nfs3::AccessArgs) -> Result<Outcome<nfs3::AccessOk>, CallError> {
        const KINDS: [u32; 3] = [
            access::READ,
            access::MODIFY | access::EXTEND | access::DELETE,
            access::LOOKUP | access::EXECUTE,
        ];
        let file = convert!(convert::fh(&a.object));
        let may = |bits: u32| async move {
            let [read, write, exec] = KINDS.map(|kind| bits & kind != 0);
            let answer =
                self.ask_reading(&file, nq::AccessArgs { file, read, write, exec }, |()| None).await?;
            Ok::<_, CallError>(match answer {
                Ok(()) => Ok(bits),
                Err(Nfsstat3::ACCES | Nfsstat3::PERM | Nfsstat3::ROFS) => Ok(0),
                Err(status) => Err(status),
            })
        };
        let mut granted = convert!(may(a.access).await?);
        let kinds = KINDS.map(|kind| a.access & kind);
        if granted == 0 && kinds.iter().filter(|bits| **bits != 0).count() > 1 {
            for bits in kinds.into_iter().filter(|bits| *bits != 0) {
                granted |= convert!(may(bits).await?);
            }
        }
        Ok(Ok(nfs3::AccessOk { obj_attributes: None, access: granted }))
    }

    async fn readlink(&self, a: &nfs3::ReadlinkArgs) -> Result<Outcome<nfs3::ReadlinkOk>, CallError> {
        let file = convert!(convert::fh(&a.symlink));
        let text = self.ask(nq::ReadlinkArgs { file }).await?;
        Ok(text.map(|text| nfs3::ReadlinkOk { symlink_attributes: None, data: text.0.into() }))
    }

    async fn read(&self, a: &nfs3::ReadArgs) -> Result<Outcome<nfs3::ReadOk>, CallError> {
        let file = convert!(convert::fh(&a.file));
        let args = nq::ReadArgs { file, offset: a.offset, count: a.count };
        let read = self.ask_reading(&file, args, |ok: &nq::ReadOk| Some(ok.attributes)).await?;
        Ok(read.map(|ok| {
            let end = a.offset.saturating_add(ok.data.len() as u64);
            nfs3::ReadOk {
                file_attributes: convert::came(&ok.attributes, &file),
                count: ok.data.len() as u32,
                eof: end >= ok.attributes.size,
                data: ok.data.0.into(),
            }
        }))
    }

    async fn write(&self, a: nfs3::WriteArgs) -> Result<Outcome<nfs3::WriteOk>, CallError> {
        let file = convert!(convert::fh(&a.file));
        let count = a.data.len() as u32;
        let args = nq::WriteArgs { file, offset: a.offset, append: false, data: a.data.0.into() };
        if a.stable == ONLY_HELD {
            return self.write_held(file, args).await;
        }
        let changing = self.changing(&file);
        let delayed = changing.as_ref().is_some_and(|c| c.delayed);
        let mut attr =
            if delayed { self.send(LeaseRequest::None, args.clone()).await? } else { Err(Stat::EXPIRED) };
        if let Err(Stat::EXPIRED) = attr {
            // Sends a new write. Other clients may have used the file after the delayed write, but
            // its data is not dropped.
            attr = self.send(LeaseRequest::Write(0), args).await?;
        }
        Ok(self.wrote(changing, &file, count, attr))
    }

    /// Sends a WRITE under the lease under which it was delayed. Without the lease the WRITE is not
    /// sent.
    async fn write_held(
        &self,
        file: nq::Fh,
        args: nq::WriteArgs,
    ) -> Result<Outcome<nfs3::WriteOk>, CallError> {
        let refused = Ok(Err(Nfsstat3::NOT_SYNC));
        let Some(leases) = self.nqnfs.leases().filter(|_| self.nqnfs.greeting.said().is_some()) else {
            return refused;
        };
        let Some(going) = self.nqnfs.greeting.held.begin().await else { return refused };
        let (changing, count) = (self.changing(&file), args.data.len() as u32);
        if !leases.keeps_others_out(&file) {
            return refused;
        }
        let patience = self.patience.ended_by(going.ends.clone());
        let turn = Turn { patience: &patience, cred: self.cred.clone(), ..*self };
        match turn.send(LeaseRequest::None, args).await? {
            Err(Stat::EXPIRED) => refused,
            wrote => Ok(self.wrote(changing, &file, count, wrote)),
        }
    }

    fn wrote(
        &self,
        changing: Option<Changing>,
        file: &nq::Fh,
        count: u32,
        wrote: Result<(nq::LeaseReply, nq::Fattr), Stat>,
    ) -> Outcome<nfs3::WriteOk> {
        let attr = wrote.map(|(_, f)| f).map_err(convert::status);
        if let (Some(changing), Ok(f)) = (&changing, &attr) {
            changing.done(f);
        }
        attr.map(|f| nfs3::WriteOk {
            file_wcc: nfs3::WccData { before: None, after: convert::came(&f, file) },
            count,
            committed: nfs3::StableHow::FILE_SYNC,
            verf: Default::default(),
        })
    }

    async fn create(&self, a: &nfs3::CreateArgs) -> Result<Outcome<nfs3::CreateOk>, CallError> {
        let set = match &a.how {
            Createhow3::Unchecked(set) | Createhow3::Guarded(set) => *set,
            // NQNFS has no verifier. The client repeats the creation with GUARDED, and the stamp
            // replaces the verifier.
            Createhow3::Exclusive(_) => return Ok(Err(Nfsstat3::NOTSUPP)),
        };
        if set.size.is_some_and(|size| size > 0) {
            return Ok(Err(Nfsstat3::INVAL));
        }
        let stamp = match set.atime {
            SetTime::ToClientTime(atime) => convert::time(atime),
            // A time within the last second. Later accesses to the file set a later time.
            _ => {
                let before = Duration::from_nanos((self.caller.env.random)() % 1_000_000_000);
                let now = (self.caller.env.wall)();
                convert::wall(now.checked_sub(before).unwrap_or(now))
            }
        };
        let set = nfs3::Sattr3 { size: None, mtime: not_now(set.mtime), ..set };
        let mode = set.mode.map_or(0o600, |mode| mode & 0o7777) | convert::REG_BITS;
        let attributes = Sattr { mode, atime: stamp, ..convert::sattr(&set, &self.now()) };
        let r#where = convert!(convert::dirop(&a.r#where));
        let mut wait = JUKEBOX_LEAST;
        let ok = loop {
            // The creator of a file usually writes it.
            let wish = self.nqnfs.leases().map(|leases| leases.ask_unknown(Kind::Write));
            let lease = wish.as_ref().map_or(LeaseRequest::None, |wish| wish.lease);
            // The stamp stays the same. The server may have created the file before it answered
            // TRYLATER.
            let made = self.send(lease, nq::CreateArgs { r#where: r#where.clone(), attributes }).await?;
            match made {
                Err(Stat::TRYLATER) => self.caller.pause(self.patience, wait).await?,
                Err(status) => return Ok(Err(convert::status(status))),
                Ok((reply, ok)) => {
                    if let Some(wish) = wish {
                        wish.answered(&self.cred, &ok.file, &reply, Some(&ok.attributes));
                    }
                    break ok;
                }
            }
            wait = (wait * 2).min(JUKEBOX_MAX);
        };
        if ok.attributes.atime == stamp { Ok(Ok(made(&ok))) } else { Ok(Err(Nfsstat3::EXIST)) }
    }

    async fn mkdir(&self, a: &nfs3::MkdirArgs) -> Result<Outcome<nfs3::CreateOk>, CallError> {
        let r#where = convert!(convert::dirop(&a.r#where));
        let attributes = convert::sattr(&nfs3::Sattr3 { size: None, ..a.attributes }, &self.now());
        Ok(self.ask(nq::MkdirArgs { r#where, attributes }).await?.map(|ok| made(&ok)))
    }

    async fn symlink(&self, a: &nfs3::SymlinkArgs) -> Result<Outcome<nfs3::CreateOk>, CallError> {
        if a.symlink_data.len() > nq::PATH_MAX_BYTES {
            return Ok(Err(Nfsstat3::NAMETOOLONG));
        }
        let from = convert!(convert::dirop(&a.r#where));
        let attributes = convert::sattr(&a.symlink_attributes, &self.now());
        let to = a.symlink_data.0.clone().into();
        let done = self.ask(nq::SymlinkArgs { from, to, attributes }).await?;
        Ok(done.map(|()| nfs3::CreateOk { obj: None, obj_attributes: None, dir_wcc: Default::default() }))
    }

    /// CREATE with the type in the mode and the device number in the size, as in 4.2BSD and its
    /// descendants.
    async fn mknod(&self, a: &nfs3::MknodArgs) -> Result<Outcome<nfs3::CreateOk>, CallError> {
        let device = |bits, d: &nfs3::Devicedata3| {
            let number = convert::device_number(&d.spec).ok_or(Nfsstat3::INVAL)?;
            Ok((bits, d.dev_attributes, u64::from(number)))
        };
        let (bits, set, size) = match &a.what {
            Mknoddata3::Fifo(set) => (convert::FIFO_BITS, *set, u64::MAX),
            Mknoddata3::Sock(set) => (convert::SOCK_BITS, *set, u64::MAX),
            Mknoddata3::Chr(d) => convert!(device(convert::CHR_BITS, d)),
            Mknoddata3::Blk(d) => convert!(device(convert::BLK_BITS, d)),
            _ => return Ok(Err(Nfsstat3::BADTYPE)),
        };
        let mode = set.mode.map_or(0o600, |mode| mode & 0o7777) | bits;
        let attributes = Sattr { mode, size, ..convert::sattr(&set, &self.now()) };
        let r#where = convert!(convert::dirop(&a.r#where));
        Ok(self.ask(nq::CreateArgs { r#where, attributes }).await?.map(|ok| made(&ok)))
    }

    async fn remove(&self, a: &nfs3::RemoveArgs) -> Result<Outcome<nfs3::WccData>, CallError> {
        let what = convert!(convert::dirop(&a.object));
        Ok(self.ask(nq::RemoveArgs { what }).await?.map(|()| Default::default()))
    }

    async fn rmdir(&self, a: &nfs3::RmdirArgs) -> Result<Outcome<nfs3::WccData>, CallError> {
        let what = convert!(convert::dirop(&a.object));
        Ok(self.ask(nq::RmdirArgs { what }).await?.map(|()| Default::default()))
    }

    async fn rename(&self, a: &nfs3::RenameArgs) -> Result<Outcome<nfs3::RenameWcc>, CallError> {
        let (from, to) = (convert!(convert::dirop(&a.from)), convert!(convert::dirop(&a.to)));
        Ok(self.ask(nq::RenameArgs { from, to }).await?.map(|()| no_wcc()))
    }

    async fn link(&self, a: &nfs3::LinkArgs) -> Result<Outcome<nfs3::LinkWcc>, CallError> {
        let (from, to) = (convert!(convert::fh(&a.file)), convert!(convert::dirop(&a.link)));
        let _changing = self.changing(&from);
        Ok(self.ask(nq::LinkArgs { from, to }).await?.map(|()| no_link_wcc()))
    }

    /// Lists a directory with filehandles. The fileids are made from them.
    async fn list(
        &self,
        dir: &nfs3::Fh3,
        cookie: u64,
        cnt: u32,
        leased: bool,
    ) -> Result<Outcome<nq::ReaddirlookOk>, CallError> {
        let file = convert!(convert::fh(dir));
        let cookie = convert::cookie(cookie);
        let wish = self.wish().filter(|_| leased);
        let duration = wish.as_ref().map_or(0, Wish::duration);
        let listed = self.ask(nq::ReaddirlookArgs { file, cookie, cnt, duration }).await?;
        if let (Some(wish), Ok(listed)) = (&wish, &listed) {
            for e in listed.entries.0.iter().filter(|e| e.duration > 0) {
                let lease = nq::Lease { cachable: e.cachable != 0, duration: e.duration, rev: e.rev };
                let (reply, attr) = (nq::LeaseReply::Read(lease), Some(&e.entry_attrib));
                wish.answered(&self.cred, &e.entry_fh, &reply, attr);
            }
        }
        if cookie > 0 && matches!(listed, Err(Nfsstat3::STALE)) {
            // Find out whether the directory or only the entry of the cookie is gone.
            let there = self.ask(nq::GetattrArgs { file }).await?;
            return Ok(Err(if there.is_ok() { Nfsstat3::BAD_COOKIE } else { Nfsstat3::STALE }));
        }
        Ok(listed)
    }

    /// As [`Turn::list`]. A caller without the right to search the directory gets names without
    /// filehandles, and the fileids of the wire. Also returns whether the directory ends here.
    async fn list_any(
        &self,
        dir: &nfs3::Fh3,
        cookie: u64,
        count: u32,
        leased: bool,
    ) -> Result<Outcome<(Vec<nfs3::Entryplus3>, bool)>, CallError> {
        let full = |e: nq::EntryLook| nfs3::Entryplus3 {
            fileid: convert::fileid(e.fid, &e.entry_fh),
            cookie: convert::cookie3(e.cookie, &e.name),
            name: e.name.0.into(),
            name_attributes: convert::came(&e.entry_attrib, &e.entry_fh),
            name_handle: Some(convert::fh3(&e.entry_fh)),
        };
        let bare = |e: nq::Entry| nfs3::Entryplus3 {
            fileid: e.fileid.into(),
            cookie: convert::cookie3(e.cookie, &e.name),
            name: e.name.0.into(),
            name_attributes: None,
            name_handle: None,
        };
        let listed = self.list(dir, cookie, count, leased).await?;
        if !matches!(listed, Err(Nfsstat3::ACCES)) {
            return Ok(listed.map(|l| (l.entries.0.into_iter().map(full).collect(), l.eof)));
        }
        let (dir, cookie) = (convert!(convert::fh(dir)), convert::cookie(cookie));
        let listed = self.ask(nq::ReaddirArgs { dir, cookie, count }).await?;
        Ok(listed.map(|l| (l.entries.0.into_iter().map(bare).collect(), l.eof)))
    }

    async fn readdir(&self, a: &nfs3::ReaddirArgs) -> Result<Outcome<nfs3::ReaddirOk>, CallError> {
        let entry = |e: nfs3::Entryplus3| nfs3::Entry3 { fileid: e.fileid, cookie: e.cookie, name: e.name };
        let listed = self.list_any(&a.dir, a.cookie, a.count, false).await?;
        Ok(listed.map(|(entries, eof)| nfs3::ReaddirOk {
            dir_attributes: None,
            cookieverf: Default::default(),
            entries: Chain(entries.into_iter().map(entry).collect()),
            eof,
        }))
    }

    async fn readdirplus(
        &self,
        a: &nfs3::ReaddirplusArgs,
    ) -> Result<Outcome<nfs3::ReaddirplusOk>, CallError> {
        let listed = self.list_any(&a.dir, a.cookie, a.maxcount, true).await?;
        Ok(listed.map(|(entries, eof)| nfs3::ReaddirplusOk {
            dir_attributes: None,
            cookieverf: Default::default(),
            entries: Chain(entries),
            eof,
        }))
    }

    async fn fsstat(&self, a: &nfs3::FsstatArgs) -> Result<Outcome<nfs3::FsstatOk>, CallError> {
        let file = convert!(convert::fh(&a.fsroot));
        let stat = self.ask(nq::StatfsArgs { file }).await?;
        Ok(stat.map(|s| {
            let bytes = |blocks: u32| u64::from(blocks) * u64::from(s.bsize);
            nfs3::FsstatOk {
                obj_attributes: None,
                tbytes: bytes(s.blocks),
                fbytes: bytes(s.bfree),
                abytes: bytes(s.bavail),
                tfiles: s.files.into(),
                ffiles: s.files_free.into(),
                afiles: s.files_free.into(),
                invarsec: 0,
            }
        }))
    }

    /// Sends STATFS, which shows that the server speaks NQNFS. The transfer sizes are those of
    /// HELLO.
    async fn fsinfo(&self, a: &nfs3::FsinfoArgs) -> Result<Outcome<nfs3::FsinfoOk>, CallError> {
        let file = convert!(convert::fh(&a.fsroot));
        let stat = self.ask(nq::StatfsArgs { file }).await?;
        // Read after the call, which may have made the connection and sent HELLO.
        let most = self.nqnfs.transfer_max();
        Ok(stat.map(|_| nfs3::FsinfoOk {
            obj_attributes: None,
            rtmax: most,
            rtpref: most,
            rtmult: 1,
            wtmax: most,
            wtpref: most,
            wtmult: 1,
            dtpref: most,
            maxfilesize: i64::MAX as u64,
            time_delta: nfs3::Nfstime3 { seconds: 0, nseconds: 1 },
            properties: nfs3::fsf::LINK | nfs3::fsf::SYMLINK | nfs3::fsf::CANSETTIME,
        }))
    }
}

/// A new file has the server's time without a request.
fn not_now(t: SetTime) -> SetTime {
    if t == SetTime::ToServerTime { SetTime::DontChange } else { t }
}

fn made(ok: &nq::DiropOk) -> nfs3::CreateOk {
    nfs3::CreateOk {
        obj: Some(convert::fh3(&ok.file)),
        obj_attributes: convert::came(&ok.attributes, &ok.file),
        dir_wcc: Default::default(),
    }
}

fn no_wcc() -> nfs3::RenameWcc {
    nfs3::RenameWcc { fromdir_wcc: Default::default(), todir_wcc: Default::default() }
}

fn no_link_wcc() -> nfs3::LinkWcc {
    nfs3::LinkWcc { file_attributes: None, linkdir_wcc: Default::default() }
}
