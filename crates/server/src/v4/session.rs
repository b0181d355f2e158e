//! Sessions: slots that execute each call exactly once (RFC 8881 section 2.10.6), and the
//! backchannel.
//!
//! The module knows nothing of operations. A slot stores the sequence number, the checksum and the
//! reply of its last call. A call with the next number is new. A call with the same number is a
//! repetition. The reply of a call with `cachethis` is kept up to the session's limit. Other small
//! replies are kept too: that costs little, and the client then learns the outcome of a repeated
//! call.

use super::clients::Client;
use bytes::Bytes;
use hither_proto::nfs4::{CbCompound, ChannelAttrs, Nfsstat4, SequenceArgs, Sessionid};
use hither_proto::rpc::OpaqueAuth;
use hither_rpc::server::Peer;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use tokio::sync::Notify;

/// Replies up to this length are kept even without `cachethis`.
const KEPT_ANYHOW_BYTES: usize = 1024;

/// A session.
pub(crate) struct Session {
    pub id: Sessionid,
    pub client: Weak<Client>,
    pub fore: ChannelAttrs,
    slots: Vec<Mutex<Slot>>,
    finished: Notify,
    pub back: Mutex<Back>,
    /// The client's first slot. The lock serialises callbacks.
    pub back_turn: tokio::sync::Mutex<BackSlot>,
}

/// The client's slot for callbacks, as far as the server knows it.
pub(crate) struct BackSlot {
    /// Sequence number of the next call.
    pub sequenceid: u32,
    /// The last call, when its reply is missing.
    pub unanswered: Option<CbCompound>,
}

impl Default for BackSlot {
    fn default() -> Self {
        Self { sequenceid: 1, unanswered: None }
    }
}

/// The backchannel of a session.
pub(crate) struct Back {
    /// The client's program number.
    pub prog: u32,
    /// The server's credential.
    pub cred: OpaqueAuth,
    /// The client wants callbacks.
    pub wanted: bool,
    /// The connection for callbacks.
    pub peer: Option<Arc<Peer>>,
    /// The connection on which the client has answered a callback.
    pub proven: Option<u64>,
}

#[derive(Default)]
struct Slot {
    seqid: u32,
    sum: u64,
    running: bool,
    reply: Option<Vec<Bytes>>,
}

/// The result of SEQUENCE for its compound.
pub(crate) enum Slotted {
    /// A new call: execute it, then call [`Session::finish`].
    New,
    /// A repetition, with the stored reply.
    Again(Vec<Bytes>),
}

impl Session {
    pub fn new(id: Sessionid, client: &Arc<Client>, fore: ChannelAttrs, back: Back) -> Self {
        let slots = (0..fore.maxrequests.max(1)).map(|_| Mutex::default()).collect();
        Self {
            id,
            client: Arc::downgrade(client),
            fore,
            slots,
            finished: Notify::new(),
            back: Mutex::new(back),
            back_turn: tokio::sync::Mutex::default(),
        }
    }

    /// Number of the highest slot.
    pub fn highest_slot(&self) -> u32 {
        self.slots.len() as u32 - 1
    }

    /// Takes a slot for a call with the checksum `sum`.
    ///
    /// # Errors
    /// Those of SEQUENCE. The slot is unchanged then.
    pub async fn begin(&self, args: &SequenceArgs, sum: u64) -> Result<Slotted, Nfsstat4> {
        let slot = self.slots.get(args.slotid as usize).ok_or(Nfsstat4::BADSLOT)?;
        if args.highest_slotid < args.slotid {
            return Err(Nfsstat4::BAD_HIGH_SLOT);
        }
        loop {
            let finished = self.finished.notified();
            {
                let mut slot = slot.lock();
                if args.sequenceid == slot.seqid.wrapping_add(1) && !slot.running {
                    *slot = Slot { seqid: args.sequenceid, sum, running: true, reply: None };
                    return Ok(Slotted::New);
                }
                if args.sequenceid != slot.seqid || slot.sum == 0 && slot.reply.is_none() && !slot.running {
                    return Err(Nfsstat4::SEQ_MISORDERED);
                }
                if slot.sum != sum {
                    return Err(Nfsstat4::SEQ_FALSE_RETRY);
                }
                if !slot.running {
                    return slot.reply.clone().map(Slotted::Again).ok_or(Nfsstat4::RETRY_UNCACHED_REP);
                }
            }
            // The same call is in progress on another connection. Its reply will serve both.
            finished.await;
        }
    }

    /// Ends the call in a slot with this reply.
    pub fn finish(&self, args: &SequenceArgs, reply: &[Bytes]) {
        let Some(slot) = self.slots.get(args.slotid as usize) else { return };
        let len: usize = reply.iter().map(Bytes::len).sum();
        let most = if args.cachethis { self.fore.maxresponsesize_cached as usize } else { KEPT_ANYHOW_BYTES };
        let mut slot = slot.lock();
        slot.running = false;
        // Small replies are copied, because a slice would keep a larger buffer alive.
        slot.reply = match len {
            0..=KEPT_ANYHOW_BYTES => Some(vec![reply.concat().into()]),
            len if len <= most => Some(reply.to_vec()),
            _ => None,
        };
        drop(slot);
        self.finished.notify_waiters();
    }

    /// Ends the call in a slot with a reply that cannot be kept.
    pub fn finish_unkept(&self, args: &SequenceArgs) {
        let Some(slot) = self.slots.get(args.slotid as usize) else { return };
        let mut slot = slot.lock();
        slot.running = false;
        slot.reply = None;
        drop(slot);
        self.finished.notify_waiters();
    }

    /// Ends the call in a slot without a reply.
    pub fn abandon(&self, args: &SequenceArgs) {
        let Some(slot) = self.slots.get(args.slotid as usize) else { return };
        let mut slot = slot.lock();
        if slot.running && slot.seqid == args.sequenceid {
            slot.running = false;
        }
        drop(slot);
        self.finished.notify_waiters();
    }

    /// Whether callbacks are possible.
    pub fn back_is_up(&self) -> bool {
        self.back.lock().peer.as_ref().is_some_and(|p| !p.is_closed())
    }

    /// Whether the client has answered a callback on the current connection for callbacks.
    pub fn back_is_proven(&self) -> bool {
        let back = self.back.lock();
        back.peer.as_ref().is_some_and(|p| !p.is_closed() && back.proven == Some(p.id))
    }

    /// Whether the client wants callbacks and they are impossible.
    pub fn back_is_down(&self) -> bool {
        let back = self.back.lock();
        back.wanted && back.peer.as_ref().is_none_or(|p| p.is_closed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        let fore = ChannelAttrs { maxrequests: 2, maxresponsesize_cached: 4096, ..ChannelAttrs::default() };
        Session {
            id: [0; 16],
            client: Weak::new(),
            fore,
            slots: (0..2).map(|_| Mutex::default()).collect(),
            finished: Notify::new(),
            back: Mutex::new(Back {
                prog: 0,
                cred: OpaqueAuth::none(),
                wanted: false,
                peer: None,
                proven: None,
            }),
            back_turn: tokio::sync::Mutex::default(),
        }
    }

    fn seq(slotid: u32, sequenceid: u32, cachethis: bool) -> SequenceArgs {
        SequenceArgs { sessionid: [0; 16], sequenceid, slotid, highest_slotid: slotid, cachethis }
    }

    #[tokio::test]
    async fn a_call_is_executed_once() {
        let s = session();
        assert!(matches!(s.begin(&seq(0, 1, true), 5).await, Ok(Slotted::New)));
        s.finish(&seq(0, 1, true), &[Bytes::from_static(b"reply")]);
        let Ok(Slotted::Again(reply)) = s.begin(&seq(0, 1, true), 5).await else {
            panic!("it is a repetition")
        };
        assert_eq!(reply.concat(), b"reply");
        assert_eq!(s.begin(&seq(0, 1, true), 6).await.err(), Some(Nfsstat4::SEQ_FALSE_RETRY));
        assert_eq!(s.begin(&seq(0, 3, true), 5).await.err(), Some(Nfsstat4::SEQ_MISORDERED));
        assert_eq!(s.begin(&seq(2, 1, true), 5).await.err(), Some(Nfsstat4::BADSLOT));
        assert_eq!(s.begin(&seq(1, 0, true), 5).await.err(), Some(Nfsstat4::SEQ_MISORDERED));
    }

    /// A large reply is kept for a repetition when the request has `cachethis`. Otherwise the
    /// repetition gets RETRY_UNCACHED_REP.
    #[tokio::test]
    async fn cachethis_keeps_large_reply() {
        let s = session();
        let big = [Bytes::from(vec![1; 3000])];
        assert!(s.begin(&seq(0, 1, true), 5).await.is_ok());
        s.finish(&seq(0, 1, true), &big);
        assert!(matches!(s.begin(&seq(0, 1, true), 5).await, Ok(Slotted::Again(_))));
        assert!(s.begin(&seq(0, 2, false), 5).await.is_ok());
        s.finish(&seq(0, 2, false), &big);
        assert_eq!(s.begin(&seq(0, 2, false), 5).await.err(), Some(Nfsstat4::RETRY_UNCACHED_REP));
    }

    #[tokio::test]
    async fn a_repetition_waits_for_the_first() {
        let s = Arc::new(session());
        assert!(s.begin(&seq(0, 1, true), 5).await.is_ok());
        let again = tokio::spawn({
            let s = s.clone();
            async move { s.begin(&seq(0, 1, true), 5).await.map(|_| ()) }
        });
        tokio::task::yield_now().await;
        assert!(!again.is_finished());
        s.finish(&seq(0, 1, true), &[Bytes::from_static(b"x")]);
        assert_eq!(again.await.unwrap(), Ok(()));
    }
}
