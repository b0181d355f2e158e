//! A session and its slots (RFC 8881 section 2.10.6).
//!
//! The holder of a [`SlotGuard`] may have one request in flight under the slot's sequence number.
//! Afterwards it reports whether the server executed the request. A slot stays taken from the
//! sending of its request to the reply, even when the caller stops waiting. An earlier reuse would
//! be a false retry. The number of usable slots follows the server's `sr_target_highest_slotid`.
//! Requests without a slot wait in order of arrival.

use hither_proto::nfs4::Sessionid;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Limits negotiated in CREATE_SESSION.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Longest request in bytes, RPC header included.
    pub max_request_bytes: u32,
    /// Longest reply in bytes, RPC header included.
    pub max_response_bytes: u32,
    /// Longest reply that the server keeps, in bytes, RPC header included.
    pub max_cached_bytes: u32,
    /// Most operations of a compound, SEQUENCE included.
    pub max_ops: u32,
    /// Number of slots.
    pub max_slots: u32,
}

/// A session at the server.
#[derive(Debug)]
pub(crate) struct Session {
    /// The session id.
    pub id: Sessionid,
    /// Number of the session in this mount. An error of an older session needs no recovery.
    pub epoch: u64,
    /// The fore channel's limits.
    pub limits: Limits,
    slots: Mutex<Slots>,
}

#[derive(Debug)]
struct Slots {
    slots: Vec<Slot>,
    /// Slots with a lower number may be used.
    limit: u32,
    waiting: VecDeque<oneshot::Sender<SlotGuard>>,
    closed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    seqid: u32,
    busy: bool,
}

/// The session has ended. The caller waits for recovery and takes a slot of the next session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionClosed;

impl Session {
    /// A new session: all slots free, sequence numbers start at 1.
    pub fn new(id: Sessionid, epoch: u64, limits: Limits) -> Arc<Self> {
        let slots = Slots {
            slots: Vec::new(),
            limit: limits.max_slots.max(1),
            waiting: VecDeque::new(),
            closed: false,
        };
        Arc::new(Self { id, epoch, limits, slots: Mutex::new(slots) })
    }

    /// Waits for a slot. A drop of the future, or of the guard before [`SlotGuard::sent`], returns
    /// the slot unused.
    pub async fn acquire(self: &Arc<Self>) -> Result<SlotGuard, SessionClosed> {
        let wait = {
            let mut slots = self.slots.lock();
            if slots.closed {
                return Err(SessionClosed);
            }
            match slots.take_free() {
                Some((slot, seqid)) => return Ok(self.guard(slot, seqid)),
                None => {
                    let (tx, rx) = oneshot::channel();
                    slots.waiting.push_back(tx);
                    rx
                }
            }
        };
        wait.await.map_err(|_| SessionClosed)
    }

    /// Follows the SEQUENCE reply: the highest slot that the server wants in use, and the highest
    /// that it accepts.
    pub fn adapt(self: &Arc<Self>, target_highest: u32, highest: u32) {
        let mut slots = self.slots.lock();
        slots.limit = target_highest.min(highest).saturating_add(1).clamp(1, self.limits.max_slots.max(1));
        self.hand_out(slots);
    }

    /// Limits the slots to those below `slot`, which the server refused.
    pub fn refused_slot(&self, slot: u32) {
        let mut slots = self.slots.lock();
        slots.limit = slots.limit.min(slot.max(1));
    }

    /// Ends the session: present and later waiters get [`SessionClosed`].
    pub fn close(&self) {
        let mut slots = self.slots.lock();
        slots.closed = true;
        slots.waiting.clear();
    }

    /// Number of requests in flight.
    #[cfg(test)]
    pub fn in_flight(&self) -> usize {
        self.slots.lock().slots.iter().filter(|s| s.busy).count()
    }

    fn guard(self: &Arc<Self>, slot: u32, seqid: u32) -> SlotGuard {
        SlotGuard { session: self.clone(), slot, seqid, in_flight: false }
    }

    fn release(self: &Arc<Self>, slot: u32, seqid: u32) {
        let mut slots = self.slots.lock();
        slots.slots[slot as usize] = Slot { seqid, busy: false };
        self.hand_out(slots);
    }

    /// Gives free slots to waiters. A guard without a receiver returns its slot on drop, so it is
    /// dropped without the mutex.
    fn hand_out(self: &Arc<Self>, mut slots: parking_lot::MutexGuard<'_, Slots>) {
        let mut unwanted = Vec::new();
        while !slots.waiting.is_empty() {
            let Some((slot, seqid)) = slots.take_free() else { break };
            let Some(waiter) = slots.waiting.pop_front() else { break };
            if let Err(guard) = waiter.send(self.guard(slot, seqid)) {
                unwanted.push(guard);
            }
        }
        drop(slots);
        drop(unwanted);
    }
}

impl Slots {
    fn take_free(&mut self) -> Option<(u32, u32)> {
        let free = self.slots.iter().take(self.limit as usize).position(|s| !s.busy);
        let slot = match free {
            Some(slot) => slot,
            None if (self.slots.len() as u32) < self.limit => {
                self.slots.push(Slot { seqid: 1, busy: false });
                self.slots.len() - 1
            }
            None => return None,
        };
        self.slots[slot].busy = true;
        Some((slot as u32, self.slots[slot].seqid))
    }
}

/// The right to have one request in flight.
#[derive(Debug)]
pub(crate) struct SlotGuard {
    session: Arc<Session>,
    slot: u32,
    seqid: u32,
    in_flight: bool,
}

impl SlotGuard {
    /// `sa_slotid`.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// `sa_sequenceid`.
    pub fn seqid(&self) -> u32 {
        self.seqid
    }

    /// `sa_highest_slotid`: the highest slot in use now.
    pub fn highest(&self) -> u32 {
        let slots = self.session.slots.lock();
        slots.slots.iter().rposition(|s| s.busy).unwrap_or(0) as u32
    }

    /// Marks the request as sent: from now on only a reply frees the slot.
    pub fn sent(&mut self) {
        self.in_flight = true;
    }

    /// Records the reply. `executed` is true when SEQUENCE succeeded, which increments the sequence
    /// number.
    pub fn replied(mut self, executed: bool) {
        self.in_flight = false;
        if executed {
            self.seqid = self.seqid.wrapping_add(1);
        }
        // Dropping frees the slot.
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        if !self.in_flight {
            self.session.release(self.slot, self.seqid);
        }
    }
}

#[cfg(test)]
mod tests;
