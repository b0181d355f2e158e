//! After the session, the client or its state at the server was lost.
//!
//! It knows nothing of the calls that found out: they wait until it is over. One task at a time
//! goes through what is needed (RFC 8881 section 8.4): a new session for the same clientid; when
//! the server does not know the clientid any more, a new one of these too; then every open and lock
//! is claimed again, as `CLAIM_PREVIOUS` and `reclaim` while the server's grace period lasts, else
//! by opening and locking anew; RECLAIM_COMPLETE ends it. Whatever fails for lack of an answer or a
//! good one is tried again, later and later.
//!
//! A lock that could not be reclaimed in the grace period is taken anew only when the file's change
//! attribute proves that nobody touched the file meanwhile; otherwise it is lost, and I/O on the
//! file fails with `EIO`, as in the Linux client. A state that is lost alone (revoked by an
//! administrator, for example) is opened again without disturbing other files.

use super::attrs::NODE_ATTRS;
use super::call::{Answer, Backoff, Compound};
use super::core::{Core, Phase};
use super::fail::{Answered, Fail, is_state_lost};
use super::lock::{LockState, length};
use super::place::Place;
use super::session::Session;
use super::state::{FileState, OpenState, wire_fh};
use hither_proto::nfs4::{
    DelegationType, ExistLockOwner, LockArgs, LockType, Locker, Nfsstat4, Op, OpenArgs, OpenClaim,
    OpenToLockOwner, StateOwner, Stateid, open,
};
use hither_vfs::{Cx, Error, FileRange, LockKind};
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// States that are claimed at the same time.
const CLAIMS_AT_ONCE: usize = 16;
/// Stateids of one TEST_STATEID.
const TESTS_AT_ONCE: usize = 64;

/// How state is claimed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reclaim {
    /// The server restarted: in its grace period.
    Restart,
    /// The lease was lost: by opening and locking anew.
    Late,
}

/// What has to be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    /// The session.
    pub session: bool,
    /// The clientid, and with it everything else.
    pub client: bool,
    /// Opens and locks.
    pub reclaim: Option<Reclaim>,
    /// RECLAIM_COMPLETE.
    complete: bool,
}

impl Need {
    /// A session, for the same client if the server still knows it.
    pub const SESSION: Self = Self { session: true, client: false, reclaim: None, complete: false };

    /// The state, in the session that there is.
    pub fn reclaim(how: Reclaim) -> Self {
        Self { session: false, client: false, reclaim: Some(how), complete: how == Reclaim::Restart }
    }

    fn add(&mut self, more: Self) {
        self.session |= more.session;
        self.client |= more.client;
        self.reclaim = self.reclaim.or(more.reclaim);
        self.complete |= more.complete;
    }
}

/// Where a claim is sent: in the session under recovery, or as an ordinary call.
#[derive(Clone)]
pub(super) enum Via {
    Session(Arc<Session>),
    Ordinary,
}

impl Core {
    /// Recovers until there is a session with all state that can be had. `session` is the one that
    /// was lost.
    pub async fn recover(self: Arc<Self>, mut need: Need, mut session: Arc<Session>) {
        let mut backoff = Backoff::RECOVERY;
        tracing::info!(?need, "recovering");
        loop {
            let outcome = tokio::select! {
                outcome = self.recover_step(&mut need, &mut session) => outcome,
                () = self.stop.cancelled() => return,
            };
            match outcome {
                Ok(false) => {}
                Ok(true) => break,
                Err(why) => {
                    tracing::warn!("recovery of the mount of {}: {why}; trying again", self.opts.server);
                    tokio::select! {
                        () = tokio::time::sleep(backoff.step()) => {}
                        () = self.stop.cancelled() => return,
                    }
                }
            }
        }
        self.lease.lock().recovered = Instant::now();
        tracing::info!("recovered");
        self.phase.send_if_modified(|phase| {
            let stopped = matches!(phase, Phase::Stopped);
            if !stopped {
                *phase = Phase::Ready(session.clone());
            }
            !stopped
        });
    }

    /// One step; `true` when nothing is left to do.
    async fn recover_step(
        self: &Arc<Self>,
        need: &mut Need,
        session: &mut Arc<Session>,
    ) -> Result<bool, Error> {
        if need.client {
            let known = self.exchange_id(None).await.map_err(|f| Error::from(f.into_fail()))?;
            need.client = false;
            need.session = true;
            if !known {
                need.reclaim = Some(Reclaim::Restart);
                need.complete = true;
            }
        } else if need.session {
            match self.create_session(None).await {
                Ok(new) => {
                    *session = new;
                    need.session = false;
                }
                Err(f) => match f.status() {
                    Some(Nfsstat4::STALE_CLIENTID | Nfsstat4::SEQ_MISORDERED) => need.client = true,
                    _ => return Err(f.into_fail().into()),
                },
            }
        } else if let Some(how) = need.reclaim {
            match self.reclaim_all(session, how).await {
                Ok(()) => need.reclaim = None,
                Err(more) => need.add(more),
            }
        } else if need.complete {
            match self.reclaim_complete(session).await {
                Ok(done) => {
                    done?;
                    need.complete = false;
                }
                Err(more) => need.add(more),
            }
        } else {
            return Ok(true);
        }
        Ok(false)
    }

    /// Tells the server that nothing more will be reclaimed (RFC 8881 section 18.51).
    pub async fn reclaim_complete(self: &Arc<Self>, session: &Arc<Session>) -> Result<Answered<()>, Need> {
        let c = Compound::new("RECLAIM_COMPLETE", [Op::ReclaimComplete(false)]);
        let answer = match self.compound_in(session, &self.root_credential(), c).await? {
            Ok(answer) => answer,
            Err(f) => return Ok(Err(f)),
        };
        let mut results = answer.results;
        Ok(match results.reclaim_complete() {
            Ok(()) => Ok(()),
            Err(e) if e.status() == Some(Nfsstat4::COMPLETE_ALREADY) => Ok(()),
            Err(e) => Err(e.into()),
        })
    }

    async fn reclaim_all(self: &Arc<Self>, session: &Arc<Session>, how: Reclaim) -> Result<(), Need> {
        match how {
            Reclaim::Restart => self.delegations_lost(),
            Reclaim::Late => {
                self.delegations.doubt_all();
                let core = self.clone();
                tokio::spawn(async move { core.drop_dead_delegations().await });
            }
        }
        let mut claims = JoinSet::new();
        for file in self.files.all() {
            while claims.len() >= CLAIMS_AT_ONCE {
                joined(claims.join_next().await)?;
            }
            let (core, via) = (self.clone(), Via::Session(session.clone()));
            claims.spawn(async move { core.claim_file(&via, &file, how).await });
        }
        while !claims.is_empty() {
            joined(claims.join_next().await)?;
        }
        for file in self.files.all() {
            file.arrived(Place::Claiming);
        }
        Ok(())
    }

    /// A state was refused although the session is fine: claims it alone. `used` is the stateid
    /// that the server does not want any more. `Ok` means: try again with what the state says now.
    pub async fn state_lost(self: &Arc<Self>, state: &Arc<OpenState>, used: &Stateid) {
        let _alone = state.recovering.lock().await;
        if !state.is_current(used) || state.inner.lock().lost.is_some() {
            return;
        }
        tracing::info!(fh = ?state.file.fh, "the server lost an open; opening the file again");
        // Free what the server keeps of a revoked state; it may know nothing of it.
        let free = Compound::new("FREE_STATEID", [Op::FreeStateid(used.any_seqid())]);
        let _ = self.compound(&self.own_cx(), free).await;
        // An ordinary call deals with lost sessions itself.
        let _ = self.claim(&Via::Ordinary, state, Reclaim::Late).await;
    }

    /// Opens again what is in use here and was closed at the server.
    pub async fn open_again(self: &Arc<Self>, state: &Arc<OpenState>) {
        let _alone = state.recovering.lock().await;
        if state.is_bare() {
            let _ = self.claim(&Via::Ordinary, state, Reclaim::Late).await;
        }
    }

    /// Asks the server which stateids it still honours, and recovers those that it does not.
    pub async fn test_states(self: &Arc<Self>) {
        let mut all: Vec<(Arc<OpenState>, Stateid)> = Vec::new();
        for file in self.files.all() {
            for state in file.inner.lock().states.values() {
                let inner = state.inner.lock();
                all.extend(inner.stateid.map(|s| (state.clone(), s)));
                let locks = inner.locks.values().filter_map(|l| l.inner.lock().stateid);
                all.extend(locks.map(|s| (state.clone(), s)));
            }
        }
        for some in all.chunks(TESTS_AT_ONCE) {
            let stateids: Vec<_> = some.iter().map(|(_, s)| s.any_seqid()).collect();
            let c = Compound::new("TEST_STATEID", [Op::TestStateid(stateids.into())]);
            let Ok(mut answer) = self.compound(&self.own_cx(), c).await else { return };
            let Ok(verdicts) = answer.results.test_stateid() else { return };
            for ((state, stateid), verdict) in some.iter().zip(verdicts.iter()) {
                if is_state_lost(*verdict) {
                    self.state_lost(state, stateid).await;
                }
            }
        }
        self.drop_dead_delegations().await;
    }

    /// Forgets the delegations that the server has revoked.
    async fn drop_dead_delegations(self: &Arc<Self>) {
        for some in self.delegations.all().chunks(TESTS_AT_ONCE) {
            let stateids: Vec<_> = some.iter().map(|(_, s)| s.any_seqid()).collect();
            let c = Compound::new("TEST_STATEID", [Op::TestStateid(stateids.into())]);
            let Ok(mut answer) = self.compound(&self.own_cx(), c).await else { return };
            let Ok(verdicts) = answer.results.test_stateid() else { return };
            for ((fh, stateid), verdict) in some.iter().zip(verdicts.iter()) {
                if !is_state_lost(*verdict) {
                    continue;
                }
                // Before it is taken: no lock begins under it, and none is handed over.
                if let Some(file) = self.files.file(fh).filter(|_| self.delegations.is_held(stateid)) {
                    file.lose_locks("the delegation that covered it was revoked");
                }
                if self.delegations.take_stateid(stateid).is_some() {
                    self.delegations.withdraw_all();
                    let free = Compound::new("FREE_STATEID", [Op::FreeStateid(stateid.any_seqid())]);
                    let _ = self.compound(&self.own_cx(), free).await;
                }
            }
        }
    }

    /// Opens and locks a file again, by all who have it open. What cannot be had is marked lost.
    async fn claim_file(
        self: &Arc<Self>,
        via: &Via,
        file: &Arc<FileState>,
        how: Reclaim,
    ) -> Result<(), Need> {
        let states: Vec<_> = file.inner.lock().states.values().cloned().collect();
        let mut opened = Vec::with_capacity(states.len());
        for state in states {
            let claimed = self.claim_open(via, &state, how).await?;
            opened.push((state, claimed));
        }
        // One that a late open brings is a new one: others may have had the file in between.
        let in_time = opened.iter().all(|(_, claimed)| !matches!(claimed, Some((Reclaim::Late, _))));
        let stays = in_time && self.delegations.for_locks(&file.fh).is_some();
        if !stays {
            file.claiming();
        }
        for (state, claimed) in opened {
            match claimed {
                Some((how, unchanged)) => self.claim_locks(via, &state, how, unchanged, stays).await?,
                None if !stays => file.lose_locks_of(&state),
                None => {}
            }
        }
        Ok(())
    }

    /// Opens and locks again what `state` stands for. Locks that are here are none of its business.
    async fn claim(self: &Arc<Self>, via: &Via, state: &Arc<OpenState>, how: Reclaim) -> Result<(), Need> {
        match self.claim_open(via, state, how).await? {
            Some((how, unchanged)) => self.claim_locks(via, state, how, unchanged, true).await,
            None => Ok(()),
        }
    }

    /// Opens again what `state` stands for: how that went, and whether the file is as it was.
    /// `None`: it is not open.
    async fn claim_open(
        self: &Arc<Self>,
        via: &Via,
        state: &Arc<OpenState>,
        how: Reclaim,
    ) -> Result<Option<(Reclaim, bool)>, Need> {
        let had = state.file.inner.lock().change;
        let access = {
            let mut inner = state.inner.lock();
            let needed = inner.needed();
            if needed == 0 {
                // Being closed or opened: whoever does it finds out.
                inner.stateid = None;
                return Ok(None);
            }
            needed
        };
        let (mut how, mut grace) = (how, Backoff::GRACE);
        loop {
            let answer = self
                .via(via, state, reopen(state, access, how, self.delegations.was_for_writing(&state.file.fh)))
                .await?;
            match answer.and_then(|a| self.reopened(access, state, a)) {
                Ok(change) => {
                    let unchanged = had != 0 && change == Some(had);
                    return Ok(Some((how, unchanged)));
                }
                // Too late, or never ours: open anew.
                Err(f) if how == Reclaim::Restart && is_too_late(f.status()) => how = Reclaim::Late,
                Err(Fail::Nfs(Nfsstat4::GRACE)) => tokio::time::sleep(grace.step()).await,
                Err(f) => {
                    let why = Error::from(f);
                    tracing::warn!(fh = ?state.file.fh, "an open file could not be opened again: {why}");
                    let mut inner = state.inner.lock();
                    inner.stateid = None;
                    inner.lost = Some(Error::because(libc::EIO, "the server lost this open file"));
                    return Ok(None);
                }
            }
        }
    }

    /// `stay`: locks that are here stay there.
    async fn claim_locks(
        self: &Arc<Self>,
        via: &Via,
        state: &Arc<OpenState>,
        how: Reclaim,
        unchanged: bool,
        stay: bool,
    ) -> Result<(), Need> {
        let locks: Vec<_> = state.inner.lock().locks.values().cloned().collect();
        for lock in locks {
            let ranges: Vec<_> = {
                let mut inner = lock.inner.lock();
                inner.stateid = None;
                if inner.here && stay {
                    continue;
                }
                inner.ranges.iter().collect()
            };
            let mut kept = Ok(());
            for (range, kind) in ranges {
                if how == Reclaim::Late && !unchanged {
                    kept = Err(Fail::Nfs(Nfsstat4::RECLAIM_CONFLICT));
                    break;
                }
                kept = self.claim_lock(via, state, &lock, range, kind, how).await?;
                if kept.is_err() {
                    break;
                }
            }
            match kept {
                Ok(()) => lock.inner.lock().here = false,
                Err(f) => lock.lose(&state.file.fh, &Error::from(f).to_string()),
            }
        }
        Ok(())
    }

    /// LOCK of one range of `lock`, as it was.
    pub(super) async fn claim_lock(
        self: &Arc<Self>,
        via: &Via,
        state: &Arc<OpenState>,
        lock: &Arc<LockState>,
        range: FileRange,
        kind: LockKind,
        how: Reclaim,
    ) -> Result<Answered<()>, Need> {
        let Some(open_stateid) = state.inner.lock().stateid else { return Ok(Ok(())) };
        let locker = match lock.inner.lock().stateid {
            Some(lock_stateid) => Locker::Existing(ExistLockOwner { lock_stateid, lock_seqid: 0 }),
            None => Locker::New(OpenToLockOwner {
                open_seqid: 0,
                open_stateid: open_stateid.any_seqid(),
                lock_seqid: 0,
                lock_owner: self.files.lock_owner(lock.owner),
            }),
        };
        let args = LockArgs {
            locktype: if kind == LockKind::Read { LockType::READ } else { LockType::WRITE },
            reclaim: how == Reclaim::Restart,
            offset: range.start_bytes,
            length: length(range),
            locker,
        };
        let c = Compound::new("LOCK", [Op::Putfh(wire_fh(&state.file.fh)), Op::Lock(args)]);
        Ok(self.via(via, state, c).await?.and_then(|mut answer| {
            answer.results.putfh()?;
            let stateid = answer.results.lock()?;
            lock.inner.lock().stateid = Some(stateid);
            Ok(())
        }))
    }

    async fn via(
        self: &Arc<Self>,
        via: &Via,
        state: &Arc<OpenState>,
        c: Compound,
    ) -> Result<Answered<Answer>, Need> {
        match via {
            Via::Session(session) => self.compound_in(session, &self.credential(&state.cred), c).await,
            Via::Ordinary => Ok(self.compound(&Cx::new(state.cred.clone()), c).await),
        }
    }
}

fn joined(done: Option<Result<Result<(), Need>, tokio::task::JoinError>>) -> Result<(), Need> {
    match done {
        Some(Ok(outcome)) => outcome,
        // A claim that panicked has left its state as it was; operations on it find out.
        Some(Err(_)) | None => Ok(()),
    }
}

fn is_too_late(status: Option<Nfsstat4>) -> bool {
    matches!(
        status,
        Some(
            Nfsstat4::NO_GRACE
                | Nfsstat4::RECLAIM_BAD
                | Nfsstat4::RECLAIM_CONFLICT
                | Nfsstat4::EXPIRED
                | Nfsstat4::NOTSUPP
        )
    )
}

/// `delayed`: what was written may have waited at the server's restart. Nobody is to see the file
/// before it has come, so the delegation is claimed too; the server wants it back then.
fn reopen(state: &OpenState, access: u32, how: Reclaim, delayed: bool) -> Compound {
    let delayed = delayed && access & open::SHARE_ACCESS_WRITE != 0;
    let (claim, want) = match how {
        Reclaim::Restart if delayed => (OpenClaim::Previous(DelegationType::WRITE), 0),
        Reclaim::Restart => (OpenClaim::Previous(DelegationType::NONE), open::WANT_NO_DELEG),
        Reclaim::Late => (OpenClaim::Fh, open::WANT_NO_DELEG),
    };
    let args = OpenArgs {
        seqid: 0,
        share_access: access | want,
        share_deny: open::SHARE_DENY_NONE,
        owner: StateOwner { clientid: 0, owner: state.owner.clone().into() },
        how: None,
        claim,
    };
    let ops = [Op::Putfh(wire_fh(&state.file.fh)), Op::Open(args), Op::Getattr(NODE_ATTRS)];
    Compound::new("OPEN", ops)
}

impl Core {
    /// Takes over the new stateid; returns the file's change attribute.
    fn reopened(self: &Arc<Self>, access: u32, state: &OpenState, answer: Answer) -> Answered<Option<u64>> {
        let mut results = answer.results;
        results.putfh()?;
        let ok = results.open()?;
        state.inner.lock().reopened(ok.stateid, access);
        if let Some(stateid) = self.note_delegation(&state.file.fh, &ok) {
            self.delegations.confirm(&state.file.fh, &stateid, answer.asked);
        }
        let attrs = results.getattr().ok();
        if let Some((change, size)) = attrs.as_ref().and_then(|a| a.change.zip(a.size)) {
            self.delegations.note(&state.file.fh, change, size);
        }
        Ok(attrs.and_then(|a| a.change))
    }
}
