//! Renewal of the lease, and binding of connections to the session.
//!
//! Every successful SEQUENCE renews the lease. After half the lease time without one, a SEQUENCE is
//! sent alone. A new connection is bound to the session, so that it can carry callbacks. The status
//! flags of SEQUENCE replies start the matching action, each at most once per
//! [`COMPLAINT_INTERVAL`]. Servers repeat the flags until the cause is removed. Flags after a reply
//! without any have a new cause.

use super::call::Compound;
use super::core::{Core, Phase};
use super::recover::{Need, Reclaim};
use super::session::Session;
use hither_proto::nfs4::{
    BindConnToSessionArgs, ChannelDirFromClient, Clientid, Nfsstat4, Op, Verifier, seq4_status as flag,
};
use hither_rpc::CallError;
use hither_vfs::Env;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Lease time before the server has returned it.
const LEASE_GUESS: Duration = Duration::from_secs(30);
/// Shortest interval between two actions for the same status flags.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);

/// The client in the server's view.
#[derive(Debug)]
pub(crate) struct Lease {
    /// `co_ownerid`: unique for each mount, so that mounts are independent. With a kept name it is
    /// that of the previous instance.
    pub owner: Vec<u8>,
    /// `co_verifier`: differs for each instance of the client.
    pub verifier: Verifier,
    /// The server's clientid; `None` before the first EXCHANGE_ID.
    pub clientid: Option<Clientid>,
    /// `csa_sequence` of the next CREATE_SESSION.
    pub sequence: u32,
    /// Number of sessions so far.
    pub epoch: u64,
    /// Lease time.
    pub time: Duration,
    /// When the last request that renewed the lease was sent.
    pub renewed: Instant,
    /// When the last recovery ended. Earlier status flags no longer count.
    pub recovered: Instant,
    complained: Option<(u32, Instant)>,
}

impl Lease {
    /// The state of a client that has not met the server. `name`: see `Options::client_name`.
    pub fn new(env: &Env, machine: &str, name: Option<&str>) -> Self {
        let name = name.map_or_else(|| format!("{:016x}", (env.random)()), str::to_string);
        Self {
            owner: format!("hither/{machine}/{name}").into_bytes(),
            verifier: (env.random)().to_be_bytes(),
            clientid: None,
            sequence: 0,
            epoch: 0,
            time: LEASE_GUESS,
            renewed: Instant::now(),
            recovered: Instant::now(),
            complained: None,
        }
    }
}

impl Core {
    /// Records that a request sent at `asked` renewed the lease. `sound`: without status flags, so
    /// that the next flags are new.
    pub fn renewed(&self, asked: Instant, sound: bool) {
        let mut lease = self.lease.lock();
        lease.renewed = lease.renewed.max(asked);
        if sound {
            lease.complained = None;
        }
    }

    /// Starts the tasks that renew the lease and bind connections. They end with `stop`.
    pub fn keep_lease(self: &Arc<Self>) {
        let core = self.clone();
        tokio::spawn(async move {
            let stop = core.stop.clone();
            tokio::select! { () = core.renew_forever() => {}, () = stop.cancelled() => {} }
        });
        let core = self.clone();
        tokio::spawn(async move {
            let stop = core.stop.clone();
            tokio::select! { () = core.watch_lease() => {}, () = stop.cancelled() => {} }
        });
        let core = self.clone();
        tokio::spawn(async move {
            let stop = core.stop.clone();
            tokio::select! { () = core.bind_forever() => {}, () = stop.cancelled() => {} }
        });
    }

    async fn renew_forever(self: &Arc<Self>) {
        loop {
            let due = {
                let lease = self.lease.lock();
                lease.renewed + lease.time / 2
            };
            if Instant::now() < due {
                tokio::time::sleep_until(due).await;
                continue;
            }
            let cx = self.own_cx();
            if let Err(e) = self.compound(&cx, Compound::new("SEQUENCE", [])).await {
                tracing::warn!("the lease could not be renewed: {}", hither_vfs::Error::from(e));
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    async fn bind_forever(self: &Arc<Self>) {
        let mut generations = self.rpc.generations();
        let mut known = generations.borrow_and_update().clone();
        while generations.changed().await.is_ok() {
            let now = generations.borrow_and_update().clone();
            let fresh: Vec<usize> = (0..now.len()).filter(|&i| known.get(i) != Some(&now[i])).collect();
            known = now;
            let Ok(session) = self.ready().await else { return };
            for connection in fresh {
                if let Err(need) = self.bind(&session, connection).await {
                    self.session_lost(session.epoch, need);
                    break;
                }
            }
        }
    }

    /// Binds `connection` to the session, for calls and callbacks. `Err` when the session is lost.
    pub async fn bind(&self, session: &Arc<Session>, connection: usize) -> Result<(), Need> {
        let op = Op::BindConnToSession(BindConnToSessionArgs {
            sessionid: session.id,
            dir: ChannelDirFromClient::FORE_OR_BOTH,
            use_conn_in_rdma_mode: false,
        });
        let deadline = Instant::now() + self.lease_time();
        let status = match self.bare("BIND_CONN_TO_SESSION", op, Some(connection), Some(deadline)).await {
            Ok(mut results) => match results.bind_conn_to_session() {
                Ok(_) => return Ok(()),
                Err(e) => e.status(),
            },
            // The connection broke again. The next connection is bound again.
            Err(CallError::DeadlinePassed | CallError::Shutdown) => return Ok(()),
            Err(e) => {
                tracing::warn!("a connection could not be bound to the session: {e}");
                return Ok(());
            }
        };
        match status {
            Some(Nfsstat4::BADSESSION | Nfsstat4::DEADSESSION) => Err(Need::SESSION),
            status => {
                tracing::warn!(?status, "the server does not bind a connection to the session");
                Ok(())
            }
        }
    }

    /// Acts on `sr_status_flags`.
    pub fn status_flags(self: &Arc<Self>, session: &Arc<Session>, flags: u32) {
        let known = flag::RESTART_RECLAIM_NEEDED
            | flag::EXPIRED_ALL_STATE_REVOKED
            | flag::EXPIRED_SOME_STATE_REVOKED
            | flag::ADMIN_STATE_REVOKED
            | flag::RECALLABLE_STATE_REVOKED
            | flag::CB_PATH_DOWN
            | flag::CB_PATH_DOWN_SESSION
            | flag::BACKCHANNEL_FAULT
            | flag::LEASE_MOVED;
        let flags = flags & known;
        if flags == 0 || !matches!(*self.phase.borrow(), Phase::Ready(_)) || !self.complaint(flags) {
            return;
        }
        tracing::info!(flags = format_args!("{flags:#x}"), "the server reports lost or revoked state");
        if flags & flag::RESTART_RECLAIM_NEEDED != 0 {
            return self.session_lost(session.epoch, Need::reclaim(Reclaim::Restart));
        }
        if flags & flag::EXPIRED_ALL_STATE_REVOKED != 0 {
            return self.session_lost(session.epoch, Need::reclaim(Reclaim::Late));
        }
        if flags & flag::BACKCHANNEL_FAULT != 0 {
            return self.session_lost(session.epoch, Need::SESSION);
        }
        if flags & flag::LEASE_MOVED != 0 {
            tracing::warn!("the server has moved a file system elsewhere; hither does not follow it");
        }
        let revoked =
            flag::EXPIRED_SOME_STATE_REVOKED | flag::ADMIN_STATE_REVOKED | flag::RECALLABLE_STATE_REVOKED;
        if flags & revoked != 0 {
            self.delegations.suspend(true);
            self.delegations.revoke_all();
        }
        let core = self.clone();
        let session = session.clone();
        tokio::spawn(async move {
            if flags & (flag::CB_PATH_DOWN | flag::CB_PATH_DOWN_SESSION) != 0 {
                for connection in 0..core.rpc.nconnect() {
                    if let Err(need) = core.bind(&session, connection).await {
                        // The next session finds the revoked state.
                        core.session_lost(session.epoch, need);
                        break;
                    }
                }
            }
            if flags & revoked != 0 {
                core.test_states().await;
                core.delegations.suspend(false);
            }
        });
    }

    /// Whether to act on these flags now.
    fn complaint(&self, flags: u32) -> bool {
        let now = Instant::now();
        let mut lease = self.lease.lock();
        let fresh = match lease.complained {
            Some((before, at)) => flags & !before != 0 || now >= at + COMPLAINT_INTERVAL,
            None => true,
        };
        // The reply may have been in flight during the recovery.
        let settled = now < lease.recovered + Duration::from_secs(1);
        if fresh && !settled {
            lease.complained = Some((flags, now));
        }
        fresh && !settled
    }
}
