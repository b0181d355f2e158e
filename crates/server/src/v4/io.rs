//! READ, WRITE, COMMIT, SEEK, ALLOCATE, DEALLOCATE, COPY and CLONE.

use super::clients::Client;
use super::exec::{Exec, Object};
use super::state::{Open, State, VfsOpen};
use crate::error::stat4;
use hither_lease::Kind;
use hither_proto::nfs4::{
    CloneArgs, CommitArgs, CopyArgs, CopyOk, CopyRequirements, DataContent, Nfsstat4, RangeArgs, ReadArgs,
    ReadOk, SeekArgs, SeekOk, StableHow, Stateid, Verifier, WriteArgs, WriteOk, WriteResponse, open,
};
use hither_vfs::{Data, Error, FileKind, FileRange, OpenAccess, Seek, Stability};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Longest time of one COPY. The client sends another COPY for the rest.
const COPY_MAX: Duration = Duration::from_secs(2);

impl Exec<'_> {
    /// The open of the `Vfs` with which a stateid permits the use of a file. `None`: no open, and
    /// the caller's own rights decide.
    pub(super) async fn open_for(
        &self,
        o: &Object,
        id: &Stateid,
        need: OpenAccess,
    ) -> Result<Option<Arc<VfsOpen>>, Nfsstat4> {
        let id = self.actual(id)?;
        if id == Stateid::ANONYMOUS || id == Stateid::READ_BYPASS {
            return self.without_open(o, id == Stateid::READ_BYPASS, need).await.map(|()| None);
        }
        if id.is_special() {
            return Err(Nfsstat4::BAD_STATEID);
        }
        let client = self.client()?;
        let state = self.nfs.registry.find(&client, &id)?;
        let open = match &state {
            State::Delegation(d) if d.is_revoked() => return Err(Nfsstat4::DELEG_REVOKED),
            State::Delegation(d) if d.file != o.key() => return Err(Nfsstat4::BAD_STATEID),
            State::Delegation(d) if need.contains(OpenAccess::WRITE) && d.kind() == Kind::Read => {
                return Err(Nfsstat4::OPENMODE);
            }
            // The client has checked its user's rights to the file. It uses the file through any of
            // its opens.
            State::Delegation(_) => return Ok(self.any_open(o, &client, need)),
            _ => state.open_for(share_of(need)).ok_or(Nfsstat4::BAD_STATEID)?,
        };
        if open.file.key != o.key() {
            return Err(Nfsstat4::BAD_STATEID);
        }
        if need.contains(OpenAccess::WRITE) && open.inner.lock().access & open::SHARE_ACCESS_WRITE == 0 {
            return Err(Nfsstat4::OPENMODE);
        }
        let below = open.below(need);
        if below.is_none() {
            // Clients read parts of a file that they opened only for writing, in order to complete
            // pages. Then the caller's own rights decide, and the deny bits of others (RFC 8881
            // section 9.1.2).
            self.check_denied(o, need, Some(&open)).await?;
        }
        Ok(below)
    }

    /// An open of a client that permits a use of a file.
    fn any_open(&self, o: &Object, client: &Client, need: OpenAccess) -> Option<Arc<VfsOpen>> {
        let file = self.nfs.registry.file(&o.key())?;
        let opens = file.opens.lock();
        opens.iter().filter(|open| open.client.id == client.id).find_map(|open| open.below(need))
    }

    /// Whether a stateid is the client's own, for this file. No other client can then have held a
    /// delegation of it since before a restart.
    pub(super) fn is_held(&self, o: &Object, id: &Stateid) -> bool {
        let found = |id: Stateid| self.nfs.registry.find(&*self.client().ok()?, &id).ok();
        match self.actual(id).ok().filter(|id| !id.is_special()).and_then(found) {
            Some(State::Delegation(d)) => d.file == o.key(),
            Some(state) => state.file().is_some_and(|f| f.key == o.key()),
            None => false,
        }
    }

    /// Checks I/O without an open against the deny bits of opens.
    async fn without_open(&self, o: &Object, bypass: bool, need: OpenAccess) -> Result<(), Nfsstat4> {
        if self.nfs.in_grace() {
            return Err(Nfsstat4::GRACE);
        }
        let need = if bypass { need - OpenAccess::READ } else { need };
        self.check_denied(o, need, None).await
    }

    /// Checks I/O against the deny bits of opens other than `own`. A client with an expired lease
    /// denies nothing: its state ends.
    async fn check_denied(
        &self,
        o: &Object,
        need: OpenAccess,
        own: Option<&Arc<Open>>,
    ) -> Result<(), Nfsstat4> {
        loop {
            let Some(file) = self.nfs.registry.file(&o.key()) else { return Ok(()) };
            let denying = {
                let opens = file.opens.lock();
                let others = opens.iter().filter(|open| own.is_none_or(|own| !Arc::ptr_eq(own, open)));
                let mut denying = others.filter(|open| open.inner.lock().claims().1 & share_of(need) != 0);
                denying.next().map(|open| open.client.clone())
            };
            let Some(client) = denying else { return Ok(()) };
            if !self.nfs.end_courtesy(&client).await {
                return Err(Nfsstat4::LOCKED);
            }
        }
    }

    pub(super) async fn read(&mut self, a: &ReadArgs) -> Result<ReadOk, Nfsstat4> {
        let o = self.object(Nfsstat4::ISDIR)?;
        let open = self.open_for(&o, &a.stateid, OpenAccess::READ).await?;
        let most = (self.room_bytes.min(self.r.server.options.io_max_bytes as usize)) as u32;
        if most == 0 && a.count > 0 {
            return Err(Nfsstat4::REP_TOO_BIG);
        }
        let file = o.file(open.as_ref().map(|b| b.id));
        if self.may_pipe
            && let Some(extra) = &o.export.extra
            && let Some(read) = extra.read_piped(&o.cx, file, a.offset, a.count.min(most))
        {
            self.piped = Some(read.data);
            return Ok(ReadOk { eof: read.eof, data: Default::default() });
        }
        let read = o.export.vfs.read(&o.cx, file, a.offset, a.count.min(most)).await;
        let read = read.map_err(|e| io_stat(&e))?;
        Ok(ReadOk { eof: read.eof, data: read.data.into_bytes().into() })
    }

    pub(super) async fn write(&mut self, a: &WriteArgs) -> Result<WriteOk, Nfsstat4> {
        let o = self.object(Nfsstat4::ISDIR)?.writable()?;
        let open = self.open_for(&o, &a.stateid, OpenAccess::WRITE).await?;
        let (stability, committed) = match a.stable {
            StableHow::UNSTABLE => (Stability::Unstable, StableHow::UNSTABLE),
            StableHow::DATA_SYNC | StableHow::FILE_SYNC => (Stability::Stable, StableHow::FILE_SYNC),
            _ => return Err(Nfsstat4::INVAL),
        };
        let _changing = self.for_change(&o, self.is_held(&o, &a.stateid)).await?;
        self.changed();
        // Read before the write: a verifier that changes during the write must not cover this data.
        let writeverf = self.r.server.write_verifier(&o.export);
        let file = o.file(open.as_ref().map(|b| b.id));
        let data = Data::from(a.data.0.clone());
        let wrote = o.export.vfs.write(&self.named(&o.cx), file, a.offset, data, stability).await;
        let wrote = wrote.map_err(|e| io_stat(&e))?;
        Ok(WriteOk { count: wrote.bytes as u32, committed, writeverf })
    }

    pub(super) async fn commit(&mut self, _: &CommitArgs) -> Result<Verifier, Nfsstat4> {
        let o = self.object(Nfsstat4::ISDIR)?.writable()?;
        match o.export.vfs.commit(&o.cx, o.file(None)).await {
            // Read after the commit. An error that another COMMIT got has changed it before.
            Ok(()) => Ok(self.r.server.write_verifier(&o.export)),
            Err(e) => {
                self.r.server.commit_failed(&e);
                Err(io_stat(&e))
            }
        }
    }

    pub(super) async fn seek(&mut self, a: &SeekArgs) -> Result<SeekOk, Nfsstat4> {
        let o = self.object(Nfsstat4::ISDIR)?;
        let open = self.open_for(&o, &a.stateid, OpenAccess::READ).await?;
        let file = o.file(open.as_ref().map(|b| b.id));
        let what = match a.what {
            DataContent::DATA => Seek::Data,
            DataContent::HOLE => Seek::Hole,
            _ => return Err(Nfsstat4::UNION_NOTSUPP),
        };
        let size = o.export.vfs.getattr(&o.cx, file).await.map_err(|e| stat4(&e))?.attr.size_bytes;
        match o.export.vfs.seek(&o.cx, file, a.offset, what).await {
            Ok(offset) => Ok(SeekOk { eof: offset >= size, offset }),
            // Only a hole follows, up to the end of the file.
            Err(e) if e.errno == libc::ENXIO && a.offset < size => Ok(SeekOk { eof: true, offset: size }),
            Err(e) => Err(io_stat(&e)),
        }
    }

    pub(super) async fn allocate(&mut self, a: &RangeArgs, reserve: bool) -> Result<(), Nfsstat4> {
        let o = self.object(Nfsstat4::WRONG_TYPE)?.writable()?;
        let open = self.open_for(&o, &a.stateid, OpenAccess::WRITE).await?;
        let end_bytes = a.offset.checked_add(a.length).filter(|_| a.length > 0).ok_or(Nfsstat4::INVAL)?;
        let range = FileRange { start_bytes: a.offset, end_bytes };
        let _changing = self.for_change(&o, self.is_held(&o, &a.stateid)).await?;
        self.changed();
        let file = o.file(open.as_ref().map(|b| b.id));
        let result = if reserve {
            o.export.vfs.allocate(&o.cx, file, range).await
        } else {
            o.export.vfs.deallocate(&o.cx, file, range).await
        };
        result.map_err(|e| io_stat(&e))
    }

    pub(super) async fn copy(&mut self, a: &CopyArgs) -> Result<CopyOk, Nfsstat4> {
        let to = self.object(Nfsstat4::WRONG_TYPE)?.writable()?;
        let from = self.saved_object()?;
        if !a.source_server.is_empty() || from.export.number != to.export.number {
            return Err(Nfsstat4::NOTSUPP);
        }
        self.are_regular([&from, &to]).await?;
        if from.key() == to.key() {
            return Err(Nfsstat4::INVAL);
        }
        let source = self.open_for(&from, &a.src_stateid, OpenAccess::READ).await?;
        let target = self.open_for(&to, &a.dst_stateid, OpenAccess::WRITE).await?;
        let _changing = self.for_change(&to, self.is_held(&to, &a.dst_stateid)).await?;
        self.changed();
        let (source, target) =
            (from.file(source.as_ref().map(|b| b.id)), to.file(target.as_ref().map(|b| b.id)));
        let vfs = &to.export.vfs;
        let size = vfs.getattr(&from.cx, source).await.map_err(|e| stat4(&e))?.attr.size_bytes;
        let left = size.checked_sub(a.src_offset).ok_or(Nfsstat4::INVAL)?;
        a.src_offset.checked_add(a.count).ok_or(Nfsstat4::INVAL)?;
        // The RFC asks for INVAL when the range ends beyond the source. A client that does not know
        // yet that another one has cut the source gets the bytes that exist, as from Linux.
        let wanted = if a.count == 0 { left } else { a.count.min(left) };
        let end = a.dst_offset.checked_add(wanted).filter(|end| i64::try_from(*end).is_ok());
        end.ok_or(Nfsstat4::FBIG)?;
        let writeverf = self.r.server.write_verifier(&to.export);
        let (begun, mut done) = (Instant::now(), 0);
        while done < wanted {
            let (at, to_at) = (a.src_offset + done, a.dst_offset.saturating_add(done));
            match vfs.copy(&to.cx, source, at, target, to_at, wanted - done).await {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if done == 0 => return Err(io_stat(&e)),
                Err(_) => break,
            }
            if begun.elapsed() > COPY_MAX {
                break;
            }
        }
        let response =
            WriteResponse { callback_id: None, count: done, committed: StableHow::UNSTABLE, writeverf };
        let requirements = CopyRequirements { consecutive: true, synchronous: true };
        Ok(CopyOk { response, requirements })
    }

    /// # Errors
    /// `WRONG_TYPE` unless all objects are regular files.
    async fn are_regular(&self, objects: [&Object; 2]) -> Result<(), Nfsstat4> {
        for o in objects {
            if self.attrs(o).await?.attr.kind != FileKind::Regular {
                return Err(Nfsstat4::WRONG_TYPE);
            }
        }
        Ok(())
    }

    /// CLONE (RFC 7862 section 15.13): the whole range or nothing. The clone is durable with the
    /// reply, which has no verifier.
    pub(super) async fn clone_range(&mut self, a: &CloneArgs) -> Result<(), Nfsstat4> {
        let to = self.object(Nfsstat4::WRONG_TYPE)?.writable()?;
        let from = self.saved_object()?;
        if from.export.number != to.export.number {
            return Err(Nfsstat4::XDEV);
        }
        let extra = to.export.extra.clone().ok_or(Nfsstat4::NOTSUPP)?;
        self.are_regular([&from, &to]).await?;
        let source = self.open_for(&from, &a.src_stateid, OpenAccess::READ).await?;
        let target = self.open_for(&to, &a.dst_stateid, OpenAccess::WRITE).await?;
        let _changing = self.for_change(&to, self.is_held(&to, &a.dst_stateid)).await?;
        self.changed();
        let (source, target) =
            (from.file(source.as_ref().map(|b| b.id)), to.file(target.as_ref().map(|b| b.id)));
        let done = extra.clone_range(&to.cx, source, a.src_offset, target, a.dst_offset, a.count).await;
        done.map_err(|e| io_stat(&e))
    }
}

/// The `SHARE_ACCESS_*` bits of an access. `SHARE_DENY_*` has the same numbers.
fn share_of(need: OpenAccess) -> u32 {
    let bit = |access, bit| if need.contains(access) { bit } else { 0 };
    bit(OpenAccess::READ, open::SHARE_ACCESS_READ) | bit(OpenAccess::WRITE, open::SHARE_ACCESS_WRITE)
}

/// The status of failed I/O.
fn io_stat(e: &Error) -> Nfsstat4 {
    match e.errno {
        libc::EBADF => Nfsstat4::OPENMODE,
        _ => stat4(e),
    }
}
