//! Calls to clients (RFC 8881 section 20). They use the clients' own connections, one call at a
//! time for each session.
//!
//! The module knows nothing of the reasons for calls. After a timeout the client is not called
//! again until it binds a connection to the session. SEQUENCE tells the client so.

use super::session::Session;
use bytes::Bytes;
use hither_proto::nfs4::{
    CB_PROC_COMPOUND, CB_VERSION, CbCompound, CbCompoundReply, CbOp, CbRes, CbSequenceArgs, Nfsstat4,
};
use hither_proto::xdr::{Dec, Enc, Xdr};
use hither_rpc::CallError;
use hither_rpc::server::CallBack;
use std::sync::Arc;
use std::time::Duration;

/// Timeout of a call to a client.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

impl Session {
    /// Calls the client and returns the result of `op`.
    ///
    /// # Errors
    /// There is no backchannel, or the client's reply is missing or invalid.
    pub async fn call_back(&self, minor: u32, op: CbOp) -> Result<CbRes, CallError> {
        let result = self.call_with(minor, Some(op)).await?;
        result.ok_or(CallError::PeerMisbehaved("did not answer a callback"))
    }

    /// Tests the backchannel with an empty call, unless a call is in progress.
    pub fn prove_back(self: &Arc<Self>, minor: u32) {
        let session = self.clone();
        tokio::spawn(async move {
            // A call in progress tests the backchannel as well.
            let free = session.back_turn.try_lock().is_ok();
            if free && let Err(e) = session.call_with(minor, None).await {
                tracing::debug!("a client cannot be called: {e}");
            }
        });
    }

    async fn call_with(&self, minor: u32, op: Option<CbOp>) -> Result<Option<CbRes>, CallError> {
        let mut sequenceid = self.back_turn.lock().await;
        let (peer, prog, cred) = {
            let back = self.back.lock();
            (back.peer.clone().ok_or(CallError::Shutdown)?, back.prog, back.cred.clone())
        };
        let sequence = CbSequenceArgs {
            sessionid: self.id,
            sequenceid: *sequenceid,
            slotid: 0,
            highest_slotid: 0,
            cachethis: false,
            referring_call_lists: Vec::new().into(),
        };
        let compound = CbCompound {
            tag: Bytes::new().into(),
            minorversion: minor,
            callback_ident: 0,
            ops: std::iter::once(CbOp::Sequence(sequence)).chain(op).collect(),
        };
        let mut args = Enc::new();
        compound.enc(&mut args);
        let call = CallBack { prog, vers: CB_VERSION, proc: CB_PROC_COMPOUND, cred, args };
        let answer = match peer.call(call, ANSWER_WITHIN).await {
            Ok(body) => Dec::all::<CbCompoundReply>(&body)
                .map_err(|_| CallError::PeerMisbehaved("answered a callback with an invalid reply")),
            Err(e) => Err(e),
        };
        let reply = match answer {
            Ok(reply) => reply,
            Err(e) => {
                tracing::debug!(?peer, "a callback failed: {e}");
                let mut back = self.back.lock();
                if back.peer.as_ref().is_some_and(|p| p.id == peer.id) {
                    back.peer = None;
                }
                return Err(e);
            }
        };
        let mut results = reply.results.0.into_iter();
        match results.next() {
            Some(CbRes::Sequence(Ok(_))) => {
                *sequenceid = sequenceid.wrapping_add(1);
                self.back.lock().proven = Some(peer.id);
            }
            // The client executed an earlier call that had timed out.
            Some(CbRes::Sequence(Err(Nfsstat4::SEQ_MISORDERED | Nfsstat4::RETRY_UNCACHED_REP))) => {
                *sequenceid = sequenceid.wrapping_add(1);
            }
            _ => {}
        }
        Ok(results.next())
    }
}
