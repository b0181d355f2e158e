//! Many creations or removals in a directory, in few compounds.
//!
//! `whole` builds the operations of an object. Objects are distributed over compounds as the limits
//! of operations, request and reply allow. The compounds are in flight concurrently. A server stops
//! a compound at its first error, which is the outcome of one object. The objects after it are sent
//! in another compound.
//!
//! **Several WRITEs.** Linux 6.1 servers write the wrong bytes when the data of a WRITE begins at
//! an unexpected position, and report success. Before files with bytes share a compound, the client
//! tests the server. One compound writes two pieces to a test file, reads them back and removes the
//! file, once per session. When the bytes differ, a compound has one file with bytes, as the first
//! object.

use super::attrs::NODE_ATTRS;
use super::call::{Answer, Compound, OVERHEAD_BYTES};
use super::core::Core;
use super::fail::{Answered, Fail, is_too_long};
use super::open::change_info;
use super::session::Limits;
use super::state::{Claim, wire_fh, wire_name};
use super::whole::{AROUND_OPS, CREATION_OPS};
use bytes::Bytes;
use hither_proto::nfs4::{
    CreateHow, Nfsstat4, Op, OpenArgs, OpenClaim, StableHow, StateOwner, Stateid, open,
};
use hither_vfs::{
    ChangeInfo, Creation, Error, Fh, Made, Name, NewKind, Removal, RequestContext, Result, SetAttr,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::task::JoinSet;

/// Compounds of one batch in flight.
const COMPOUNDS_AT_ONCE: usize = 8;
/// Longest request with several objects. The test of several WRITEs covers machines with pages of
/// up to this size.
const REQUEST_BYTES: u32 = 64 << 10;
/// Most bytes of request and reply for one object, beside its filehandle, name and contents.
const ONE_REQUEST_BYTES: u32 = 512;
const FILE_REPLY_BYTES: u32 = 440;
const OTHER_REPLY_BYTES: u32 = 300;
/// Bytes of the reply beside the objects.
const AROUND_REPLY_BYTES: u32 = 450;
/// Most bytes of request and reply for one removal.
const REMOVAL_REQUEST_BYTES: u32 = 272;
const REMOVAL_REPLY_BYTES: u32 = 32;
/// Bytes before the pieces. The pieces begin after the first page of any machine with smaller
/// pages, and not at the start of a page.
const ZEROS_BYTES: usize = 16 << 10 | 4;
/// Bytes of a piece.
const PIECE_BYTES: usize = 256;

/// Limits of one compound.
#[derive(Debug, Clone, Copy)]
struct Room {
    objects: usize,
    request_bytes: u32,
    reply_bytes: u32,
    /// Files with bytes may share a compound.
    several: bool,
}

/// Objects of one compound, by their indices.
#[derive(Debug, Default)]
struct Deal {
    places: Vec<usize>,
    request_bytes: u32,
    reply_bytes: u32,
}

impl Core {
    /// See `BatchOps::create_many`; `None` for an object that does not fit into one WRITE. Runs in
    /// its own task.
    pub async fn create_many(
        self: &Arc<Self>,
        cx: &RequestContext,
        dir: &Fh,
        new: Vec<Creation>,
    ) -> Answered<Vec<Option<Result<Made>>>> {
        let mut out: Vec<Option<Result<Made>>> = new.iter().map(|_| None).collect();
        let places: Vec<usize> = (0..new.len()).filter(|&at| self.fits(&new[at])).collect();
        let filled = places.iter().filter(|&&at| new[at].len_bytes() > 0).count();
        let limits = self.ready().await?.limits;
        let several = filled > 1 && self.opts.chains && self.takes_several_writes(cx, dir).await;
        let mut waiting = self.deal(dir, &new, &places, self.room(limits, several));
        let new = Arc::new(new);
        let mut running = JoinSet::new();
        while !waiting.is_empty() || !running.is_empty() {
            while running.len() < COMPOUNDS_AT_ONCE
                && let Some(places) = waiting.pop()
            {
                let (core, cx, dir, new) = (self.clone(), cx.clone(), dir.clone(), new.clone());
                running.spawn(async move {
                    let these: Vec<Creation> = places.iter().map(|&at| new[at].clone()).collect();
                    (core.create_some(&cx, &dir, &these).await, places)
                });
            }
            let Some(Ok((outcomes, places))) = running.join_next().await else { continue };
            let outcomes = match outcomes {
                Ok(outcomes) => outcomes,
                Err(f) if is_too_long(f.status()) && places.len() > 1 => {
                    self.found_too_long(places.len() * CREATION_OPS);
                    let (a, b) = places.split_at(places.len() / 2);
                    waiting.extend([a.to_vec(), b.to_vec()]);
                    continue;
                }
                Err(f) => {
                    let e = Error::from(f);
                    places.iter().for_each(|&at| out[at] = Some(Err(e.clone())));
                    continue;
                }
            };
            let (done, alone) = (outcomes.len(), places.len() == 1);
            for (n, (&at, outcome)) in places.iter().zip(outcomes).enumerate() {
                if let (1.., Err(Fail::Nfs(Nfsstat4::RESOURCE | Nfsstat4::TOO_MANY_OPS))) = (n, &outcome) {
                    // The server takes fewer operations than it announced.
                    self.found_too_long(2 * (1 + n * CREATION_OPS + AROUND_OPS));
                }
                match outcome {
                    // Alone the object waits until the server is ready, and its reply has enough
                    // room.
                    Err(f) if !alone && is_for_later(&f) => waiting.push(vec![at]),
                    outcome => out[at] = Some(outcome.map_err(Error::from)),
                }
            }
            if done < places.len() {
                waiting.push(places[done..].to_vec());
            }
        }
        let lost = || Err(Error::because(libc::EIO, "a task of the client ended early"));
        for &at in &places {
            out[at].get_or_insert_with(lost);
        }
        Ok(out)
    }

    fn room(&self, limits: Limits, several: bool) -> Room {
        let ops = (limits.max_ops as usize).min(self.ops_limit.load(Ordering::Relaxed));
        // GETFH is one more operation.
        let each = CREATION_OPS - usize::from(!self.needs_getfh.load(Ordering::Relaxed));
        let objects = if self.opts.chains { (ops.saturating_sub(1 + AROUND_OPS) / each).max(1) } else { 1 };
        let reply = limits.max_response_bytes.min(limits.max_cached_bytes);
        Room {
            objects,
            request_bytes: limits.max_request_bytes.min(REQUEST_BYTES).saturating_sub(OVERHEAD_BYTES),
            reply_bytes: reply.saturating_sub(AROUND_REPLY_BYTES),
            several,
        }
    }

    /// Distributes objects over compounds. Files with bytes come first.
    fn deal(&self, dir: &Fh, new: &[Creation], places: &[usize], room: Room) -> Vec<Vec<usize>> {
        let mut order = places.to_vec();
        order.sort_by_key(|&at| new[at].len_bytes() == 0);
        let mut deals: Vec<Deal> = Vec::new();
        for at in order {
            let (len, name) = (new[at].len_bytes(), new[at].name.as_bytes().len());
            let target = if let NewKind::Link(target) = &new[at].kind { target.len() } else { 0 };
            let request_bytes = ONE_REQUEST_BYTES + (dir.0.len() + name + target + len) as u32;
            // The object's filehandle is about as long as that of its directory.
            let file = matches!(new[at].kind, NewKind::File(_));
            let reply_bytes = if file { FILE_REPLY_BYTES } else { OTHER_REPLY_BYTES } + dir.0.len() as u32;
            let fits = |deal: &Deal| {
                deal.places.len() < room.objects
                    && deal.request_bytes + request_bytes <= room.request_bytes
                    && deal.reply_bytes + reply_bytes <= room.reply_bytes
                    && (len == 0 || room.several)
            };
            let deal = match deals.iter().position(fits) {
                Some(place) => &mut deals[place],
                None => {
                    deals.push(Deal::default());
                    deals.last_mut().expect("one was pushed")
                }
            };
            deal.places.push(at);
            deal.request_bytes += request_bytes;
            deal.reply_bytes += reply_bytes;
        }
        deals.into_iter().map(|deal| deal.places).collect()
    }

    /// Whether the server writes the right bytes of several WRITEs in a compound.
    async fn takes_several_writes(self: &Arc<Self>, cx: &RequestContext, dir: &Fh) -> bool {
        // Concurrent callers wait for the first test.
        let mut known = self.several_writes.lock().await;
        let Ok(session) = self.ready().await else { return false };
        if let Some((epoch, takes)) = *known
            && epoch == session.epoch
        {
            return takes;
        }
        match self.try_several_writes(cx, dir).await {
            Ok(takes) => {
                if !takes {
                    tracing::info!(
                        "the server cannot write several files in one compound: each is sent alone"
                    );
                }
                *known = Some((session.epoch, takes));
                takes
            }
            Err(f) => {
                tracing::debug!("testing several files in one compound: {}", Error::from(f));
                false
            }
        }
    }

    /// See `BatchOps::remove_many`. Runs in its own task.
    pub async fn remove_many(
        self: &Arc<Self>,
        cx: &RequestContext,
        dir: &Fh,
        gone: &[Removal],
    ) -> Vec<Result<ChangeInfo>> {
        let mut out = Vec::with_capacity(gone.len());
        let (mut repeated, mut most) = (false, usize::MAX);
        while let Some((first, rest)) = gone.get(out.len()..).and_then(<[_]>::split_first) {
            let room = match self.ready().await {
                Ok(session) => self.names_to_remove(session.limits).min(most),
                Err(_) => 1,
            };
            let with = rest.iter().take(room - 1).take_while(|one| self.is_simple(one)).count();
            if with == 0 || !self.is_simple(first) {
                let removed = if first.is_dir {
                    self.rmdir(cx, dir, &first.name).await
                } else {
                    self.unlink(cx, dir, &first.name, first.target.as_ref()).await
                };
                out.push(unless_gone(removed, repeated).map_err(Error::from));
                most = usize::MAX;
                continue;
            }
            let these = &gone[out.len()..out.len() + 1 + with];
            let targets = these.iter().filter_map(|one| one.target.as_ref());
            let claims = targets.map(|fh| self.files.try_claim(fh));
            let claims: Vec<_> = claims.collect();
            if !claims.iter().all(|claim| matches!(claim, Some(Claim::Alone(_)))) {
                // A file was opened in between: each name is removed alone.
                most = 1;
                continue;
            }
            let mut ops = vec![Op::Putfh(wire_fh(dir))];
            ops.extend(these.iter().map(|one| Op::Remove(wire_name(&one.name))));
            ops.push(Op::Getattr(NODE_ATTRS));
            let ops_sent = ops.len();
            let mut answer = match self.compound(cx, Compound::new("REMOVE", ops)).await {
                Ok(answer) => answer,
                Err(f) if is_too_long(f.status()) => {
                    self.found_too_long(ops_sent);
                    most = these.len() / 2;
                    continue;
                }
                Err(f) => {
                    let e = Error::from(f);
                    out.extend(these.iter().map(|_| Err(e.clone())));
                    continue;
                }
            };
            // After two executions the first may have removed more names.
            repeated |= answer.repeated;
            if let Err(e) = answer.results.putfh() {
                let e = Error::from(Fail::from(e));
                out.extend(these.iter().map(|_| Err(e.clone())));
                continue;
            }
            let removed = self.removed(dir, these, repeated, &mut answer).await;
            // When the first name failed for now, it is removed alone and waits until the server is
            // ready.
            most = if removed.is_empty() { 1 } else { usize::MAX };
            out.extend(removed);
        }
        out
    }

    /// Reads the outcomes of a compound of REMOVEs, up to the first name that is sent again.
    async fn removed(
        self: &Arc<Self>,
        dir: &Fh,
        these: &[Removal],
        repeated: bool,
        answer: &mut Answer,
    ) -> Vec<Result<ChangeInfo>> {
        let mut removed = Vec::with_capacity(these.len());
        for one in these {
            match answer.results.remove() {
                Ok(cinfo) => removed.push(Ok(change_info(&cinfo))),
                Err(e) => {
                    let f = Fail::from(e);
                    let later = is_for_later(&f) || one.is_dir && f.status() == Some(Nfsstat4::NOTEMPTY);
                    if !later {
                        removed.push(unless_gone(Err(f), repeated).map_err(Error::from));
                    }
                    return removed;
                }
            }
        }
        if let Some(Ok(last)) = removed.last_mut() {
            last.attrs = self.dir_attrs(dir, answer).await;
        }
        removed
    }

    /// Whether a removal needs only REMOVE: the object is not open, not waiting for its CLOSE, and
    /// not delegated.
    fn is_simple(&self, one: &Removal) -> bool {
        one.target.as_ref().is_none_or(|fh| self.files.file(fh).is_none() && !self.delegations.holds(fh))
    }

    fn names_to_remove(&self, limits: Limits) -> usize {
        let ops = (limits.max_ops as usize).min(self.ops_limit.load(Ordering::Relaxed));
        let reply = limits.max_response_bytes.min(limits.max_cached_bytes).saturating_sub(AROUND_REPLY_BYTES);
        let request = limits.max_request_bytes.min(REQUEST_BYTES).saturating_sub(OVERHEAD_BYTES);
        let most = (reply / REMOVAL_REPLY_BYTES).min(request / REMOVAL_REQUEST_BYTES) as usize;
        if self.opts.chains { ops.saturating_sub(3).min(most).max(1) } else { 1 }
    }

    async fn try_several_writes(self: &Arc<Self>, cx: &RequestContext, dir: &Fh) -> Answered<bool> {
        let name = self.silly_name();
        let piece =
            |n: u8| Bytes::from((0..PIECE_BYTES).map(|i| (i as u8).wrapping_mul(n) | 1).collect::<Vec<_>>());
        let (first, second) = (piece(7), piece(13));
        let turn = self.turn();
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let open = OpenArgs {
            seqid: 0,
            share_access: open::SHARE_ACCESS_BOTH | open::WANT_NO_DELEG,
            share_deny: open::SHARE_DENY_NONE,
            owner: StateOwner { clientid: 0, owner: turn.owner().clone().into() },
            how: Some(CreateHow::Guarded(self.wire_set(&set).await)),
            claim: OpenClaim::Null(wire_name(&name)),
        };
        let write = |at, bytes| Op::write(Stateid::CURRENT, at, StableHow::UNSTABLE, bytes);
        let ops = [
            Op::Putfh(wire_fh(dir)),
            Op::Open(open),
            Op::Getfh,
            write(0, Bytes::from_static(&[0; ZEROS_BYTES])),
            write(0, first.clone()),
            write(PIECE_BYTES as u64, second.clone()),
            Op::read(Stateid::CURRENT, 0, 2 * PIECE_BYTES as u32),
            Op::close(Stateid::CURRENT),
            Op::Putfh(wire_fh(dir)),
            Op::Remove(wire_name(&name)),
        ];
        let mut answer = self.compound(cx, Compound::new("OPEN", ops)).await?;
        let results = &mut answer.results;
        results.putfh()?;
        let ok = match results.open() {
            Ok(ok) => ok,
            Err(e) => {
                if answer.repeated {
                    // The compound was executed before, perhaps in part.
                    self.remove_probe(cx, dir, &name).await;
                }
                return Err(e.into());
            }
        };
        let fh = super::state::own_fh(&results.getfh()?);
        self.note_delegation(&fh, &ok);
        let tried = (|| -> Answered<bool> {
            let mut written = true;
            for len in [ZEROS_BYTES, PIECE_BYTES, PIECE_BYTES] {
                written &= results.write()?.count as usize == len;
            }
            let read = results.read()?.data;
            Ok(written && read[..] == [&first[..], &second[..]].concat())
        })();
        if tried.is_err() || results.close().is_err() {
            self.close_brought(&fh, ok.stateid, &turn);
        }
        if results.putfh().and_then(|()| results.remove()).is_err() {
            self.remove_probe(cx, dir, &name).await;
        }
        match tried {
            // The server lacks a resource now and may have it later.
            Err(f) if f.status().is_none_or(is_passing) => Err(f),
            Err(_) => Ok(false),
            tried => tried,
        }
    }

    async fn remove_probe(self: &Arc<Self>, cx: &RequestContext, dir: &Fh, name: &Name) {
        if let Err(f) = self.remove(cx, dir, name, None).await {
            tracing::warn!(?name, "a test file remains at the server: {}", Error::from(f));
        }
    }
}

/// Treats NOENT after a repetition as success: the first execution may have removed the name.
fn unless_gone(removed: Answered<ChangeInfo>, repeated: bool) -> Answered<ChangeInfo> {
    match removed {
        Err(Fail::Nfs(Nfsstat4::NOENT)) if repeated => Ok(ChangeInfo::default()),
        removed => removed,
    }
}

/// Whether the server had no room for a part of a compound, or was busy.
fn is_for_later(f: &Fail) -> bool {
    is_too_long(f.status()) || matches!(f.status(), Some(Nfsstat4::DELAY | Nfsstat4::GRACE))
}

fn is_passing(status: Nfsstat4) -> bool {
    matches!(status, Nfsstat4::DELAY | Nfsstat4::GRACE | Nfsstat4::NOSPC | Nfsstat4::DQUOT | Nfsstat4::IO)
}
