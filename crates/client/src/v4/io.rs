//! Data and attributes of files: READ, WRITE, COMMIT, GETATTR, SETATTR, SEEK, ALLOCATE, DEALLOCATE,
//! COPY.
//!
//! Transfers longer than one READ or WRITE are split and sent concurrently. The open determines the
//! stateid of an operation. When the server no longer knows the stateid, the state is recovered and
//! the operation repeated.

use super::attrs::{FS_ATTRS, NODE_ATTRS, to_fsstat};
use super::call::{Answer, Compound};
use super::core::Core;
use super::fail::{Answered, Fail, is_state_lost};
use super::state::{OpenState, wire_fh};
use crate::writes::{self, Failure, Origin, Verifier, WriteReply};
use async_trait::async_trait;
use hither_proto::nfs4::{DataContent, Nfsstat4, Op, StableHow, Stateid, op};
use hither_vfs::{
    Attrs, Data, Error, Fh, File, FileRange, Finished, FsStat, OpenId, Read, RequestContext, Seek, SetAttr,
    Wrote,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use tokio::task::JoinSet;

/// Tries before a repeatedly lost state is given up.
const STATE_TRIES: u32 = 5;

impl Core {
    /// Sends the compound of `build` with the open's stateid. Repeats it after the server has lost
    /// the state.
    pub async fn with_stateid(
        self: &Arc<Self>,
        cx: &RequestContext,
        open: Option<OpenId>,
        build: impl Fn(Stateid) -> Compound,
    ) -> Answered<Answer> {
        self.with_stateid_in(cx, open, usize::MAX, build).await
    }

    /// As [`Core::with_stateid`], for a compound of which only the first `first` operations use the
    /// open's stateid. An error of a later operation says nothing about the state.
    async fn with_stateid_in(
        self: &Arc<Self>,
        cx: &RequestContext,
        open: Option<OpenId>,
        first: usize,
        build: impl Fn(Stateid) -> Compound,
    ) -> Answered<Answer> {
        let mut tries = 0;
        loop {
            let (state, stateid) = self.io_stateid(open)?;
            let answer = self.compound(cx, build(stateid)).await?;
            let status = answer.results.status();
            match state.filter(|_| answer.results.remaining() <= first) {
                Some(state) if is_state_lost(status) && tries < STATE_TRIES => {
                    tries += 1;
                    self.state_lost(&state, &stateid).await;
                }
                Some(_) if status == Nfsstat4::OLD_STATEID && tries < STATE_TRIES => tries += 1,
                _ => return Ok(answer),
            }
        }
    }

    /// Sends the compound of `build` under the file's present write delegation. The server refuses
    /// it when the delegation has ended, also after a restart: see [`RequestContext::only_held`].
    async fn under_delegation(
        self: &Arc<Self>,
        cx: &RequestContext,
        fh: &Fh,
        build: impl Fn(Stateid) -> Compound,
    ) -> Answered<Answer> {
        let ended = || Error::new(libc::EAGAIN).into();
        let stateid = self.delegations.for_writing(fh).ok_or_else(ended)?;
        let answer = self.compound(cx, build(stateid)).await?;
        match answer.results.status() {
            status if is_state_lost(status) || status == Nfsstat4::OLD_STATEID => Err(ended()),
            _ => Ok(answer),
        }
    }

    fn io_stateid(&self, open: Option<OpenId>) -> Answered<(Option<Arc<OpenState>>, Stateid)> {
        let Some(id) = open else { return Ok((None, Stateid::ANONYMOUS)) };
        let state = self.files.entry(id)?.state.clone();
        let stateid = state.io_stateid()?;
        Ok((Some(state), stateid))
    }

    /// Attributes from the server.
    pub async fn getattr(self: &Arc<Self>, cx: &RequestContext, fh: &Fh) -> Answered<Attrs> {
        if self.wants_directory(fh)
            && let Some(attrs) = self.getattr_held(cx, fh).await?
        {
            return Ok(attrs);
        }
        let ops = [Op::Putfh(wire_fh(fh)), Op::Getattr(NODE_ATTRS)];
        let mut answer = self.compound(cx, Compound::new("GETATTR", ops)).await?;
        answer.results.putfh()?;
        let wire = answer.results.getattr()?;
        self.attrs(fh, &wire, answer.asked).await
    }

    /// Changes attributes.
    pub async fn setattr(
        self: &Arc<Self>,
        cx: &RequestContext,
        file: File<'_>,
        set: &SetAttr,
    ) -> Answered<Attrs> {
        // Writes beyond the new end must not arrive after the change.
        let Some(size) = set.size_bytes else { return self.send_setattr(cx, file, set).await };
        let cut = self.writes().truncating(file.fh, size).await;
        let attrs = self.send_setattr(cx, file, set).await?;
        cut.done();
        Ok(attrs)
    }

    /// Sends SETATTR. A caller that changes the length must hold back writes.
    pub async fn send_setattr(
        self: &Arc<Self>,
        cx: &RequestContext,
        file: File<'_>,
        set: &SetAttr,
    ) -> Answered<Attrs> {
        let mut times = self.times_stateid(cx, file.fh);
        loop {
            let args = self.set_with(set, Stateid::ANONYMOUS, times).await;
            let open = set.size_bytes.and(file.open);
            let build = |stateid| {
                let stateid = times.unwrap_or(stateid);
                let ops = [
                    Op::Putfh(wire_fh(file.fh)),
                    Op::setattr(stateid, args.attrs.clone()),
                    Op::Getattr(NODE_ATTRS),
                ];
                Compound::new("SETATTR", ops)
            };
            let mut answer = self.with_stateid(cx, open, build).await?;
            answer.results.putfh()?;
            match answer.results.setattr() {
                Ok(_) => {}
                // The delegation has ended, or the server does not take the time under it.
                Err(_) if times.take().is_some() => continue,
                Err(e) if e.status() == Some(Nfsstat4::BADOWNER) && self.ids.bad_owner() => continue,
                Err(e) => return Err(e.into()),
            }
            return match answer.results.getattr() {
                Ok(wire) => self.attrs(file.fh, &wire, answer.asked).await,
                Err(_) => self.getattr(cx, file.fh).await,
            };
        }
    }

    /// The stateid of the delegation under which the client sets the modification time of a write.
    fn times_stateid(&self, cx: &RequestContext, fh: &Fh) -> Option<Stateid> {
        if cx.sets_write_time { self.delegations.for_times(fh) } else { None }
    }

    /// Ends the writing of a file in one compound: `piece` to stable storage, then `set`. `None`
    /// when one compound does not suffice. Then no data is known to be stable.
    pub async fn finish(
        self: &Arc<Self>,
        cx: &RequestContext,
        fh: &Fh,
        open: Option<OpenId>,
        piece: Option<(u64, Data)>,
        set: &SetAttr,
    ) -> Answered<Option<Finished>> {
        // One WRITE per compound, directly after its PUTFH. The Linux 6.1 server writes wrong bytes
        // for a second WRITE when its data does not begin at a page of the receive buffer.
        let Some((at, data)) = piece else { return Ok(None) };
        let bytes = data.len();
        if bytes > self.facts().wsize as usize || set.size_bytes.is_some() {
            return Ok(None);
        }
        let data = data.into_bytes();
        let end = at + data.len() as u64;
        let finishing = self.writes().finishing(fh, at, end).await;
        let sets = *set != SetAttr::default();
        let args = self.set_with(set, Stateid::ANONYMOUS, self.times_stateid(cx, fh)).await;
        let build = |stateid| {
            let write = Op::write(stateid, at, StableHow::FILE_SYNC, data.clone());
            let set = sets.then(|| Op::Setattr(args.clone()));
            let rest = [write].into_iter().chain(set).chain([Op::Getattr(NODE_ATTRS)]);
            Compound::new("WRITE", [Op::Putfh(wire_fh(fh))].into_iter().chain(rest))
        };
        let open = open.filter(|&id| self.files.entry(id).is_ok());
        // PUTFH and WRITE use it. SETATTR may use the stateid of a delegation.
        let mut answer = self.with_stateid_in(cx, open, 2, build).await?;
        answer.results.putfh()?;
        let ok = answer.results.write()?;
        if ok.committed == StableHow::UNSTABLE || u64::from(ok.count) != data.len() as u64 {
            return Ok(None);
        }
        finishing.done([(at, end)].into_iter());
        drop(finishing);
        let set = if sets {
            match answer.results.setattr() {
                Ok(_) => Ok(()),
                // SETATTR may only need a retry, or another form of the owner.
                Err(_) => self.send_setattr(cx, File { fh, open }, set).await.map(drop).map_err(Error::from),
            }
        } else {
            Ok(())
        };
        let attrs = match answer.results.getattr() {
            Ok(wire) => self.attrs(fh, &wire, answer.asked).await.ok(),
            Err(_) => None,
        };
        Ok(Some(Finished { wrote: Wrote { bytes: bytes as u64, attrs }, set }))
    }

    /// Space and limits.
    pub async fn statfs(self: &Arc<Self>, cx: &RequestContext, fh: &Fh) -> Answered<FsStat> {
        let ops = [Op::Putfh(wire_fh(fh)), Op::Getattr(FS_ATTRS)];
        let mut answer = self.compound(cx, Compound::new("STATFS", ops)).await?;
        answer.results.putfh()?;
        Ok(to_fsstat(&answer.results.getattr()?))
    }

    /// Reads up to `len` bytes. A shorter result means the end of the file.
    pub async fn read(
        self: &Arc<Self>,
        cx: &RequestContext,
        fh: &Fh,
        open: Option<OpenId>,
        offset: u64,
        len: u32,
    ) -> Answered<Read> {
        let rsize = self.facts().rsize;
        if len <= rsize {
            return self.clone().read_piece(cx.clone(), fh.clone(), open, offset, len).await;
        }
        let mut pieces = JoinSet::new();
        for start in (0..len).step_by(rsize as usize) {
            let (core, cx, fh) = (self.clone(), cx.clone(), fh.clone());
            let (at, want) = (offset + u64::from(start), rsize.min(len - start));
            pieces.spawn(async move { (start, core.read_piece(cx, fh, open, at, want).await, want) });
        }
        let mut done = Vec::new();
        while let Some(piece) = pieces.join_next().await {
            done.push(piece.map_err(|e| Error::because(libc::EIO, e.to_string()))?);
        }
        done.sort_by_key(|(start, ..)| *start);
        let mut all = Read { data: Data::default(), eof: false };
        for (_, piece, want) in done {
            let piece = piece?;
            let full = piece.data.len() == want as usize;
            piece.data.parts().iter().for_each(|b| all.data.push(b.clone()));
            all.eof = piece.eof;
            if !full {
                break;
            }
        }
        Ok(all)
    }

    /// Reads at most `rsize` bytes. After a short reply before the end of the file the rest is
    /// requested.
    async fn read_piece(
        self: Arc<Self>,
        cx: RequestContext,
        fh: Fh,
        open: Option<OpenId>,
        offset: u64,
        len: u32,
    ) -> Answered<Read> {
        let mut all = Read { data: Data::default(), eof: false };
        while (all.data.len() as u32) < len || len == 0 {
            let (at, left) = (offset + all.data.len() as u64, len - all.data.len() as u32);
            let build =
                |stateid| Compound::new("READ", [Op::Putfh(wire_fh(&fh)), Op::read(stateid, at, left)]);
            let mut answer = self.with_stateid(&cx, open, build).await?;
            answer.results.putfh()?;
            let ok = answer.results.read()?;
            if ok.data.len() > left as usize {
                return Err(Error::because(libc::EIO, "the server sends more bytes than requested").into());
            }
            let got = ok.data.len();
            all.data.push(ok.data.0);
            all.eof = ok.eof || got == 0;
            if all.eof || len == 0 {
                break;
            }
        }
        Ok(all)
    }

    /// Next data or hole.
    pub async fn seek(
        self: &Arc<Self>,
        cx: &RequestContext,
        fh: &Fh,
        open: Option<OpenId>,
        offset: u64,
        what: Seek,
    ) -> Answered<u64> {
        self.needs_42()?;
        let content = match what {
            Seek::Data => DataContent::DATA,
            Seek::Hole => DataContent::HOLE,
        };
        let build =
            |stateid| Compound::new("SEEK", [Op::Putfh(wire_fh(fh)), Op::seek(stateid, offset, content)]);
        let mut answer = self.with_stateid(cx, open, build).await?;
        answer.results.putfh()?;
        let ok = answer.results.seek()?;
        match (what, ok.eof) {
            // lseek(2) reports "no more data" as ENXIO. The hole at the end is found by its offset.
            (Seek::Data, true) => Err(Error::new(libc::ENXIO).into()),
            _ => Ok(ok.offset),
        }
    }

    /// ALLOCATE or DEALLOCATE of a range.
    pub async fn reserve(
        self: &Arc<Self>,
        cx: &RequestContext,
        fh: &Fh,
        open: Option<OpenId>,
        range: FileRange,
        punch: bool,
    ) -> Answered<()> {
        self.needs_42()?;
        let (at, len) = (range.start_bytes, range.end_bytes.saturating_sub(range.start_bytes));
        let build = |stateid| {
            let (label, op) = if punch {
                ("DEALLOCATE", Op::deallocate(stateid, at, len))
            } else {
                ("ALLOCATE", Op::allocate(stateid, at, len))
            };
            Compound::new(label, [Op::Putfh(wire_fh(fh)), op])
        };
        let mut answer = self.with_stateid(cx, open, build).await?;
        answer.results.putfh()?;
        if punch {
            answer.results.deallocate()?;
        } else {
            answer.results.allocate()?;
        }
        Ok(())
    }

    /// The error of a failed COPY. When the server refuses the operation or its range, the caller
    /// copies by READ and WRITE. A server refuses a range beyond the source, and a copy within a
    /// file (RFC 7862 section 15.2.3).
    fn copy_refused(&self, status: Nfsstat4) -> Fail {
        match status {
            Nfsstat4::NOTSUPP => {
                self.no_copy.store(true, Ordering::Relaxed);
                return Error::new(libc::ENOSYS).into();
            }
            Nfsstat4::OFFLOAD_NO_REQS | Nfsstat4::OFFLOAD_DENIED | Nfsstat4::INVAL => {}
            status => return Fail::Nfs(status),
        }
        Error::new(libc::EOPNOTSUPP).into()
    }

    /// Copies on the server, synchronously. The copied data is committed at once, because this
    /// client could not send it again after a loss.
    pub async fn copy(
        self: &Arc<Self>,
        cx: &RequestContext,
        from: (&Fh, Option<OpenId>, u64),
        to: (&Fh, Option<OpenId>, u64),
        len: u64,
    ) -> Answered<u64> {
        use hither_proto::nfs4::CopyArgs;
        self.needs_42()?;
        if self.no_copy.load(Ordering::Relaxed) {
            return Err(Error::new(libc::ENOSYS).into());
        }
        if len == 0 {
            // A COPY of 0 bytes would mean "to the end".
            return Ok(0);
        }
        let (source, src_stateid) = self.io_stateid(from.1)?;
        let build = |dst_stateid| {
            let args = CopyArgs {
                src_stateid,
                dst_stateid,
                src_offset: from.2,
                dst_offset: to.2,
                count: len,
                consecutive: true,
                synchronous: true,
                source_server: Vec::new().into(),
            };
            let ops = [
                Op::Putfh(wire_fh(from.0)),
                Op::Savefh,
                Op::Putfh(wire_fh(to.0)),
                Op::Copy(args),
                Op::commit(0, 0),
            ];
            Compound::new("COPY", ops)
        };
        let mut answer = self.with_stateid(cx, to.1, build).await?;
        let results = &mut answer.results;
        results.putfh()?;
        results.savefh()?;
        results.putfh()?;
        let ok = match results.outcome::<op::Copy>()? {
            Ok(ok) => ok,
            Err(f) => {
                let status = hither_proto::nfs4::Fail::status(&f);
                if let (Some(source), true) = (source, is_state_lost(status)) {
                    self.state_lost(&source, &src_stateid).await;
                    return Err(Error::new(libc::EOPNOTSUPP).into());
                }
                return Err(self.copy_refused(status));
            }
        };
        if ok.response.callback_id.is_some() {
            // The copy is asynchronous against the request. READ and WRITE by the caller write the
            // same bytes.
            return Err(Error::new(libc::EOPNOTSUPP).into());
        }
        let stable = ok.response.committed != StableHow::UNSTABLE
            || results.commit().is_ok_and(|verifier| verifier == ok.response.writeverf);
        if stable { Ok(ok.response.count) } else { Err(Error::new(libc::EOPNOTSUPP).into()) }
    }

    /// # Errors
    /// `EOPNOTSUPP` before NFSv4.2.
    pub fn needs_42(&self) -> Answered<()> {
        match self.minor {
            0 | 1 => Err(Error::new(libc::EOPNOTSUPP).into()),
            _ => Ok(()),
        }
    }
}

/// Sends WRITE and COMMIT for the uncommitted writes.
pub(crate) struct Wire {
    core: Weak<Core>,
}

impl Wire {
    /// The sender for the writes of `core`, which owns it.
    pub fn new(core: &Arc<Core>) -> Self {
        Self { core: Arc::downgrade(core) }
    }

    fn core(&self) -> Result<Arc<Core>, Failure> {
        self.core.upgrade().ok_or_else(|| Failure::Unanswered(super::core::going_away()))
    }
}

fn failure(f: Fail) -> Failure {
    match f {
        Fail::Nfs(_) => Failure::Refused(f.into()),
        Fail::Final(e) if e.is_lost => Failure::Refused(e),
        f @ (Fail::Garbled | Fail::Final(_)) => Failure::Unanswered(f.into()),
    }
}

#[async_trait]
impl writes::Wire for Wire {
    fn wsize_bytes(&self) -> u32 {
        self.core.upgrade().map_or(4096, |core| core.facts().wsize)
    }

    async fn write(
        &self,
        origin: &Origin,
        fh: &Fh,
        offset_bytes: u64,
        data: Data,
        stable: bool,
    ) -> Result<WriteReply, Failure> {
        let core = self.core()?;
        let (origin, fh, data) = (origin.clone(), fh.clone(), data.into_bytes());
        // Data that is correct only under a delegation must not be kept and sent again without it.
        let stable = stable || origin.only_held;
        let how = if stable { StableHow::FILE_SYNC } else { StableHow::UNSTABLE };
        let waiting = core.clone();
        let send = async move {
            let build = |stateid| {
                let write = Op::write(stateid, offset_bytes, how, data.clone());
                Compound::new("WRITE", [Op::Putfh(wire_fh(&fh)), write, Op::Getattr(NODE_ATTRS)])
            };
            let cx = RequestContext::new(origin.cred.clone());
            let mut answer = if origin.only_held {
                core.under_delegation(&cx, &fh, build).await?
            } else {
                core.with_stateid(&cx, core.open_for(&origin), build).await?
            };
            answer.results.putfh()?;
            let ok = answer.results.write()?;
            let attr = match answer.results.getattr() {
                Ok(wire) => core.attr(&fh, &wire).await.ok(),
                Err(_) => None,
            };
            Ok(WriteReply {
                bytes: u64::from(ok.count).min(data.len() as u64),
                stable: ok.committed != StableHow::UNSTABLE,
                verifier: ok.writeverf,
                attr,
            })
        };
        waiting.patiently(send).await
    }

    async fn commit(&self, origin: &Origin, fh: &Fh) -> Result<Verifier, Failure> {
        let core = self.core()?;
        let (cx, fh) = (RequestContext::new(origin.cred.clone()), fh.clone());
        let waiting = core.clone();
        let send = async move {
            let ops = [Op::Putfh(wire_fh(&fh)), Op::commit(0, 0)];
            let mut answer = core.compound(&cx, Compound::new("COMMIT", ops)).await?;
            answer.results.putfh()?;
            Ok(answer.results.commit()?)
        };
        waiting.patiently(send).await
    }

    fn path(&self, fh: &Fh) -> Option<String> {
        self.core.upgrade()?.delegations.path(fh)
    }

    fn epoch(&self) -> u64 {
        self.core.upgrade().map_or(0, |core| core.rpc.generations().borrow().iter().sum())
    }
}

impl Core {
    /// The open of the written bytes, if it still exists.
    fn open_for(&self, origin: &Origin) -> Option<OpenId> {
        origin.open.filter(|&id| self.files.entry(id).is_ok())
    }

    /// Waits as long as the mount's policy. A call whose caller stops waiting continues, so its
    /// slot is not lost.
    async fn patiently<T: Send + 'static>(
        &self,
        send: impl Future<Output = Answered<T>> + Send + 'static,
    ) -> Result<T, Failure> {
        match self.patience(&self.own_cx()) {
            (Some(deadline), late) => match tokio::time::timeout_at(deadline, tokio::spawn(send)).await {
                Ok(Ok(done)) => done.map_err(failure),
                Ok(Err(e)) => Err(Failure::Unanswered(Error::because(libc::EIO, e.to_string()))),
                Err(_) => Err(Failure::Unanswered(late)),
            },
            (None, _) => send.await.map_err(failure),
        }
    }
}
