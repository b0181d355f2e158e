//! End of a mount: flushes all files and returns all state.
//!
//! Callers that wait for the server get an error. State that the server does not take back in time
//! expires with the lease.

use super::core::{Core, Phase};
use hither_proto::nfs4::Op;
use hither_vfs::{RequestContext, Result};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Longest time for the return of session and clientid.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Opens that are closed concurrently.
const CLOSES_AT_ONCE: usize = 32;

impl Core {
    /// Flushes and closes all files within `cx.deadline`, then leaves.
    pub async fn shutdown(self: &Arc<Self>, cx: &RequestContext) -> Result<()> {
        let core = self.clone();
        let flushed = self
            .detached(cx, async move {
                let flushed = core.writes().flush_all().await;
                let mut closes = tokio::task::JoinSet::new();
                for id in core.files.open_ids() {
                    if closes.len() >= CLOSES_AT_ONCE {
                        closes.join_next().await;
                    }
                    let core = core.clone();
                    closes.spawn(async move { core.close(&core.own_cx(), id).await });
                }
                while closes.join_next().await.is_some() {}
                core.close_all_waiting().await;
                core.delegreturn(core.delegations.take_all_but(0)).await;
                Ok(flushed?)
            })
            .await;
        let left = cx.deadline.map_or(LEAVE_TIMEOUT, |d| d.saturating_duration_since(Instant::now()));
        self.leave(left.min(LEAVE_TIMEOUT)).await;
        flushed
    }

    /// Returns session and clientid, as far as the server answers. Ends all tasks and connections.
    pub async fn leave(self: &Arc<Self>, within: Duration) {
        let session = match &*self.phase.borrow() {
            Phase::Ready(session) => Some(session.clone()),
            _ => None,
        };
        self.stop.cancel();
        self.phase.send_replace(Phase::Stopped);
        let clientid = self.lease.lock().clientid;
        let deadline = Some(Instant::now() + within);
        if let Some(session) = session {
            session.close();
            let destroy = Op::DestroySession(session.id);
            let destroyed = self.bare("DESTROY_SESSION", destroy, None, deadline).await.is_ok();
            if let (true, Some(clientid)) = (destroyed, clientid) {
                let _ = self.bare("DESTROY_CLIENTID", Op::DestroyClientid(clientid), None, deadline).await;
            }
        }
        self.rpc.shutdown();
    }

    /// Ends all tasks and connections at once.
    pub fn stop(&self) {
        self.stop.cancel();
        self.phase.send_replace(Phase::Stopped);
        self.rpc.shutdown();
    }
}
