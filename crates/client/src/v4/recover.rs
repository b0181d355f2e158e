//! Recovery of a lost session, client or state at the server.
//!
//! Calls that find the loss wait for the end of the recovery. One task performs the needed steps
//! (RFC 8881 section 8.4). It creates a session for the same clientid. When the server no longer
//! knows the clientid, the task gets a new one. Then it reclaims every open and lock. In the
//! server's grace period it uses `CLAIM_PREVIOUS` and `reclaim`. RECLAIM_COMPLETE ends the reclaim.
//! Servers refuse ordinary opens before it. So files that the server does not let the client
//! reclaim are opened anew after it. A step without a usable answer is retried with growing
//! intervals.
//!
//! A user without a usable ticket reclaims nothing. The opens keep their old stateids. The next
//! call with a usable ticket finds the loss, and opens the file anew.
//!
//! A lock that could not be reclaimed in the grace period is taken anew under one condition. The
//! file's change attribute must prove that the file is unchanged. Otherwise the lock is lost, and
//! I/O on the file fails with `EIO`, as in the Linux client. A state that is lost alone (for
//! example revoked by an administrator) is opened again without effect on other files.

use super::attrs::NODE_ATTRS;
use super::call::{Answer, Backoff, Compound};
use super::core::{Core, Phase};
use super::delegation::{LostWrite, Noted};
use super::fail::{Answered, Fail, is_state_lost};
use super::lock::{LockState, length};
use super::lock_authority::LockAuthority;
use super::session::Session;
use super::state::{FileState, OpenState, wire_fh};
use hither_proto::nfs4::{
    DelegationType, ExistLockOwner, LockArgs, LockType, Locker, Nfsstat4, Op, OpenArgs, OpenClaim,
    OpenToLockOwner, StateOwner, Stateid, open,
};
use hither_vfs::{Error, FileRange, LockKind, RequestContext};
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// States that are reclaimed concurrently.
const CLAIMS_AT_ONCE: usize = 16;
/// Stateids of one TEST_STATEID.
const TESTS_AT_ONCE: usize = 64;

/// How state is reclaimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reclaim {
    /// After a restart of the server: in its grace period.
    Restart,
    /// After a loss of the lease: by opening and locking anew.
    Late,
}

/// The parts that need recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    /// The session.
    pub session: bool,
    /// The clientid, and with it all other parts.
    pub client: bool,
    /// Opens and locks.
    pub reclaim: Option<Reclaim>,
    /// RECLAIM_COMPLETE.
    complete: bool,
}

impl Need {
    /// A session, for the same client if the server still knows the client.
    pub const SESSION: Self = Self { session: true, client: false, reclaim: None, complete: false };

    /// Opens and locks, in the present session.
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

/// Path of a claim: the session under recovery, or an ordinary call.
#[derive(Clone)]
pub(super) enum Via {
    Session(Arc<Session>),
    Ordinary,
}

/// The outcome of a reclaim of an open.
enum Claimed {
    /// `unchanged`: the change attribute proves that the file is the same.
    Open { unchanged: bool },
    /// The server does not let the client reclaim it. It is opened anew after RECLAIM_COMPLETE.
    TooLate,
    /// The file is not open.
    NotOpen,
}

impl Core {
    /// Recovers until there is a session with all recoverable state. `session` is the lost one.
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

    /// Performs one step. `true` when all steps are done.
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
            match self.claim_files(session, self.files.too_late(), Reclaim::Late).await {
                Ok(()) => return Ok(true),
                Err(more) => need.add(more),
            }
        }
        Ok(false)
    }

    /// Sends RECLAIM_COMPLETE (RFC 8881 section 18.51).
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
        let all = self.files.all();
        for file in &all {
            file.inner.lock().states.values().for_each(|state| state.inner.lock().too_late = false);
        }
        self.claim_files(session, all, how).await
    }

    async fn claim_files(
        self: &Arc<Self>,
        session: &Arc<Session>,
        files: Vec<Arc<FileState>>,
        how: Reclaim,
    ) -> Result<(), Need> {
        let mut claims = JoinSet::new();
        for file in &files {
            while claims.len() >= CLAIMS_AT_ONCE {
                joined(claims.join_next().await)?;
            }
            let (core, via, file) = (self.clone(), Via::Session(session.clone()), file.clone());
            claims.spawn(async move { core.claim_file(&via, &file, how).await });
        }
        while !claims.is_empty() {
            joined(claims.join_next().await)?;
        }
        for file in files.iter().filter(|file| !file.is_too_late()) {
            file.arrived(LockAuthority::Claiming);
        }
        Ok(())
    }

    /// Recovers a single state that the server refused in a valid session. `used` is the refused
    /// stateid. Afterwards the caller tries again with the present stateid.
    pub async fn state_lost(self: &Arc<Self>, state: &Arc<OpenState>, used: &Stateid) {
        let _alone = state.recovering.lock().await;
        if !state.is_current(used) || state.inner.lock().lost.is_some() {
            return;
        }
        tracing::info!(fh = ?state.file.fh, "the server lost an open; opening the file again");
        // Frees the server's record of a revoked state, if it has one.
        self.free_stateid(used).await;
        // An ordinary call handles lost sessions itself.
        let _ = self.claim(&Via::Ordinary, state, Reclaim::Late).await;
    }

    /// Has the server free its record of a state (RFC 8881 section 18.38). The record harms nothing
    /// when this fails.
    pub async fn free_stateid(self: &Arc<Self>, stateid: &Stateid) {
        let c = Compound::new("FREE_STATEID", [Op::FreeStateid(stateid.any_seqid())]);
        if let Err(f) = self.compound(&self.own_cx(), c).await {
            tracing::debug!("FREE_STATEID: {}", Error::from(f));
        }
    }

    /// Opens a file again that has local opens and was closed at the server.
    pub async fn open_again(self: &Arc<Self>, state: &Arc<OpenState>) {
        let _alone = state.recovering.lock().await;
        if state.is_bare() {
            let _ = self.claim(&Via::Ordinary, state, Reclaim::Late).await;
        }
    }

    /// Sends TEST_STATEID for all stateids, and recovers the invalid ones.
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

    /// Drops the delegations that the server has revoked.
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
                // Before the delegation is taken: no lock begins under it, and none is handed over.
                if let Some(file) = self.files.file(fh).filter(|_| self.delegations.is_held(stateid)) {
                    file.lose_locks("the delegation that covered it was revoked");
                }
                if self.delegations.take_stateid(stateid).is_some() {
                    self.delegations.revoke_all();
                    self.free_stateid(stateid).await;
                }
            }
        }
    }

    /// Reclaims the opens and locks of a file: those of the states that were too late for the grace
    /// period, if there are any, else those of all states. State that cannot be reclaimed is marked
    /// lost.
    async fn claim_file(
        self: &Arc<Self>,
        via: &Via,
        file: &Arc<FileState>,
        how: Reclaim,
    ) -> Result<(), Need> {
        let mut states: Vec<_> = file.inner.lock().states.values().cloned().collect();
        if file.is_too_late() {
            states.retain(|state| state.inner.lock().too_late);
        }
        let mut claims = Vec::with_capacity(states.len());
        for state in states {
            let claimed = self.claim_open(via, &state, how).await?;
            claims.push((state, claimed));
        }
        // A late open brings a new delegation: other clients may have used the file in between.
        let is_late = |claimed: &Claimed| match claimed {
            Claimed::TooLate => true,
            Claimed::Open { .. } => how == Reclaim::Late,
            Claimed::NotOpen => false,
        };
        let in_time = !claims.iter().any(|(_, claimed)| is_late(claimed));
        let stays = in_time && self.delegations.for_locks(&file.fh).is_some();
        if !stays {
            file.claiming();
        }
        for (state, claimed) in claims {
            match claimed {
                Claimed::Open { unchanged } => {
                    self.claim_locks(via, &state, how, unchanged, stays).await?;
                }
                Claimed::NotOpen if !stays => file.lose_locks_of(&state),
                Claimed::NotOpen | Claimed::TooLate => {}
            }
        }
        self.tell_lost_locks(file);
        Ok(())
    }

    /// Has the layers above drop the bytes of a file with a lost lock, unsent ones included: reads
    /// and writes get the error from now on.
    fn tell_lost_locks(&self, file: &FileState) {
        if file.inner.lock().has_lost_locks() {
            self.delegations.changed_here(&file.fh);
        }
    }

    /// Reclaims the open and the locks of `state`. Locks under the client's authority stay as they
    /// are.
    async fn claim(self: &Arc<Self>, via: &Via, state: &Arc<OpenState>, how: Reclaim) -> Result<(), Need> {
        match self.claim_open(via, state, how).await? {
            Claimed::Open { unchanged } => {
                self.claim_locks(via, state, how, unchanged, true).await?;
                self.tell_lost_locks(&state.file);
                Ok(())
            }
            Claimed::TooLate | Claimed::NotOpen => Ok(()),
        }
    }

    /// Reclaims the open of `state`.
    async fn claim_open(
        self: &Arc<Self>,
        via: &Via,
        state: &Arc<OpenState>,
        how: Reclaim,
    ) -> Result<Claimed, Need> {
        let had = state.file.inner.lock().change;
        let access = {
            let mut inner = state.inner.lock();
            let needed = inner.needed();
            if needed == 0 {
                // The state is being closed or opened. That operation finds the loss.
                (inner.stateid, inner.too_late) = (None, false);
                return Ok(Claimed::NotOpen);
            }
            needed
        };
        let mut grace = Backoff::GRACE;
        loop {
            let answer = self
                .via(via, state, reopen(state, access, how, self.delegations.was_for_writing(&state.file.fh)))
                .await?;
            let failed = match answer.and_then(|a| self.reopened(access, state, a)) {
                Ok(change) => {
                    return Ok(Claimed::Open { unchanged: had != 0 && change == Some(had) });
                }
                Err(f) => f,
            };
            match failed {
                // The grace period has ended, or the server never had the open.
                f if how == Reclaim::Restart && is_too_late(f.status()) => {
                    state.inner.lock().too_late = true;
                    return Ok(Claimed::TooLate);
                }
                Fail::Nfs(Nfsstat4::GRACE) => tokio::time::sleep(grace.step()).await,
                f => {
                    let why = Error::from(f);
                    tracing::warn!(fh = ?state.file.fh, "an open file could not be opened again: {why}");
                    let mut inner = state.inner.lock();
                    inner.too_late = false;
                    // With the old stateid, the next call of this user tries again.
                    if !why.is_unproven {
                        inner.stateid = None;
                        inner.lost = Some(Error::because(libc::EIO, "the server lost this open file"));
                    }
                    return Ok(Claimed::NotOpen);
                }
            }
        }
    }

    /// Reclaims the locks of `state`. With `stay`, locks under the client's authority stay there.
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

    /// Sends LOCK for one range of `lock`.
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
            Via::Ordinary => Ok(self.compound(&RequestContext::new(state.cred.clone()), c).await),
        }
    }
}

fn joined(done: Option<Result<Result<(), Need>, tokio::task::JoinError>>) -> Result<(), Need> {
    match done {
        Some(Ok(outcome)) => outcome,
        // A claim that panicked left its state unchanged. Operations on the state find the loss.
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

/// The OPEN that reclaims `state`. `delayed`: writes may have been delayed at the restart of the
/// server, under this write delegation. No other client may see the file before they arrive, so the
/// delegation is reclaimed too. The server then recalls it.
fn reopen(state: &OpenState, access: u32, how: Reclaim, delayed: Option<LostWrite>) -> Compound {
    let delayed = delayed.filter(|_| access & open::SHARE_ACCESS_WRITE != 0);
    let (claim, want) = match (how, delayed) {
        (Reclaim::Restart, Some(LostWrite { times: true })) => {
            (OpenClaim::Previous(DelegationType::WRITE_ATTRS), open::WANT_DELEG_TIMESTAMPS)
        }
        (Reclaim::Restart, Some(_)) => (OpenClaim::Previous(DelegationType::WRITE), 0),
        (Reclaim::Restart, None) => (OpenClaim::Previous(DelegationType::NONE), open::WANT_NO_DELEG),
        (Reclaim::Late, _) => (OpenClaim::Fh, open::WANT_NO_DELEG),
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
    /// Records the new stateid. Returns the file's change attribute.
    fn reopened(self: &Arc<Self>, access: u32, state: &OpenState, answer: Answer) -> Answered<Option<u64>> {
        let mut results = answer.results;
        results.putfh()?;
        let ok = results.open()?;
        state.inner.lock().reopened(ok.stateid, access);
        if let Some(stateid) = self.note_delegation(&state.file.fh, &ok) {
            self.delegations.confirm(&state.file.fh, &stateid, answer.asked);
        }
        let attrs = results.getattr().ok();
        if let Some(noted) = attrs.as_ref().and_then(Noted::of_wire) {
            self.delegations.note(&state.file.fh, noted);
        }
        Ok(attrs.and_then(|a| a.change))
    }
}
