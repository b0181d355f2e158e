//! Calls to clients (RFC 8881 section 20). They use the clients' own connections, one call at a
//! time for each session.
//!
//! The module knows nothing of the reasons for calls. After a timeout the client is not called
//! again until it binds a connection to the session. SEQUENCE tells the client so. A call without a
//! reply is then repeated once, before any other call (RFC 8881 section 2.10.6.2).

use super::session::{BackSlot, Session};
use bytes::Bytes;
use hither_proto::nfs4::{
    CB_PROC_COMPOUND, CB_VERSION, CbCompound, CbCompoundReply, CbOp, CbRes, CbSequenceArgs, Nfsstat4,
};
use hither_proto::xdr::{Dec, Enc};
use hither_rpc::CallError;
use hither_rpc::server::{CallBack, Peer};
use std::sync::Arc;
use std::time::Duration;

/// Timeout of a call to a client.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// Most numbers under which a callback is sent, while the client has used these numbers before.
const SENDS_MAX: usize = 3;

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
        let mut slot = self.back_turn.lock().await;
        if self.back.lock().peer.is_none() {
            return Err(CallError::Shutdown);
        }
        if let Some(call) = slot.unanswered.take() {
            // Another call with the same number would be a false retry. The client might answer it
            // with the cached reply of the earlier call.
            let again = self.exchange(&mut slot, &call).await?;
            if again.fate == Fate::Busy {
                slot.unanswered = Some(call);
                return Ok(None);
            }
        }
        for _ in 0..SENDS_MAX {
            let call = self.compound(&slot, minor, op.clone());
            slot.unanswered = Some(call.clone());
            let answer = self.exchange(&mut slot, &call).await?;
            slot.unanswered = None;
            if answer.fate != Fate::Taken {
                return Ok(answer.result);
            }
        }
        Ok(None)
    }

    fn compound(&self, slot: &BackSlot, minor: u32, op: Option<CbOp>) -> CbCompound {
        let sequence = CbSequenceArgs {
            sessionid: self.id,
            sequenceid: slot.sequenceid,
            slotid: 0,
            highest_slotid: 0,
            cachethis: false,
            referring_call_lists: Vec::new().into(),
        };
        CbCompound {
            tag: Bytes::new().into(),
            minorversion: minor,
            callback_ident: 0,
            ops: std::iter::once(CbOp::Sequence(sequence)).chain(op).collect(),
        }
    }

    /// Sends a call and receives its reply.
    async fn exchange(&self, slot: &mut BackSlot, call: &CbCompound) -> Result<Answer, CallError> {
        let (peer, prog, cred) = {
            let back = self.back.lock();
            (back.peer.clone().ok_or(CallError::Shutdown)?, back.prog, back.cred.clone())
        };
        let args = Enc::of(call);
        let message = CallBack { prog, vers: CB_VERSION, proc: CB_PROC_COMPOUND, cred, args };
        let answer = match peer.call(message, ANSWER_WITHIN).await {
            Ok(body) => Dec::all::<CbCompoundReply>(&body).map_err(|_| {
                // The same call would get the same reply again.
                slot.unanswered = None;
                CallError::PeerMisbehaved("answered a callback with an invalid reply")
            }),
            Err(e) => Err(e),
        };
        let reply = match answer {
            Ok(reply) => reply,
            Err(e) => {
                tracing::debug!(?peer, "a callback failed: {e}");
                self.disuse(&peer);
                return Err(e);
            }
        };
        let mut results = reply.results.0.into_iter();
        let fate = Fate::of(results.next().as_ref());
        match fate {
            Fate::Executed => self.back.lock().proven = Some(peer.id),
            Fate::Disconnected => self.disuse(&peer),
            Fate::Taken | Fate::Busy | Fate::Refused => {}
        }
        if matches!(fate, Fate::Executed | Fate::Taken) {
            slot.sequenceid = slot.sequenceid.wrapping_add(1);
        } else {
            tracing::debug!(?peer, "a client refused a callback: {:?}", reply.status);
        }
        Ok(Answer { fate, result: results.next() })
    }

    /// Ends the use of a connection for callbacks. SEQUENCE tells the client so.
    fn disuse(&self, peer: &Peer) {
        let mut back = self.back.lock();
        if back.peer.as_ref().is_some_and(|p| p.id == peer.id) {
            back.peer = None;
        }
    }
}

/// A client's answer.
struct Answer {
    fate: Fate,
    /// The result of the operation after CB_SEQUENCE.
    result: Option<CbRes>,
}

/// The effect of a callback on the client's slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The client has executed the call. The next call has the next number.
    Executed,
    /// The client has executed another call under this number, and its reply was lost.
    Taken,
    /// The client will take the call later. The slot is unchanged.
    Busy,
    /// The client does not know the session on this connection. The slot is unchanged.
    Disconnected,
    /// The client refuses the call. The slot is unchanged (RFC 8881 section 20.9.3).
    Refused,
}

impl Fate {
    /// The effect that the first result tells.
    fn of(first: Option<&CbRes>) -> Self {
        match first {
            Some(CbRes::Sequence(Ok(_))) => Self::Executed,
            Some(CbRes::Sequence(Err(status))) => match *status {
                // A client gives the last status when it is more than one call ahead. It never is
                // behind, because only its own replies advance the number.
                Nfsstat4::RETRY_UNCACHED_REP | Nfsstat4::SEQ_FALSE_RETRY | Nfsstat4::SEQ_MISORDERED => {
                    Self::Taken
                }
                Nfsstat4::DELAY => Self::Busy,
                Nfsstat4::BADSESSION | Nfsstat4::CONN_NOT_BOUND_TO_SESSION => Self::Disconnected,
                // BADSLOT, BAD_HIGH_SLOT, BADXDR, SEQUENCE_POS, and exceeded sizes.
                _ => Self::Refused,
            },
            _ => Self::Refused,
        }
    }
}
