//! Waiting operations: one ring per file, in the order of arrival.

use super::record::{NONE, Waiter};
use super::{Access, Action, Attempt, Decision, Op, Table, Ticket};
use crate::Ms;

impl Table {
    /// Adds an operation to the ring of its file, or to the queue for a lease record. A file with
    /// waiting operations has leases.
    pub(super) fn enqueue(&mut self, access: &Access) -> Decision {
        self.next_ticket = self.next_ticket.wrapping_add(1);
        let file = self.file(access.file).filter(|&f| !self.files[f].idle).unwrap_or(NONE);
        let waiter =
            Waiter { access: *access, number: self.next_ticket, live: true, file, next: NONE, prev: NONE };
        let Some(slot) = self.waiters.add(waiter) else { return self.try_later() };
        if file != NONE {
            self.link(file, slot);
        }
        Decision::Wait(self.ticket(slot))
    }

    fn link(&mut self, f: u32, slot: u32) {
        let last = self.files[f].waiters;
        let (prev, next) = match last {
            NONE => (slot, slot),
            last => (last, self.waiters[last].next),
        };
        (self.waiters[slot].prev, self.waiters[slot].next) = (prev, next);
        self.waiters[prev].next = slot;
        self.waiters[next].prev = slot;
        self.files[f].waiters = slot;
    }

    /// Removes an operation from its ring.
    fn unlink(&mut self, slot: u32) {
        let Waiter { file, prev, next, .. } = self.waiters[slot];
        self.waiters[slot].live = false;
        if file != NONE {
            (self.waiters[prev].next, self.waiters[next].prev) = (next, prev);
            if self.files[file].waiters == slot {
                self.files[file].waiters = if prev == slot { NONE } else { prev };
            }
        }
        self.waiters.remove(slot);
    }

    /// Ends the wait of an operation: its client has to try later, or is gone. The file is kept
    /// free for a while, so that the client finds no lease when it repeats the operation.
    pub fn cancel(&mut self, now: Ms, ticket: Ticket) {
        let Some(waiter) = self.waiter(ticket) else { return };
        let file = waiter.file;
        self.unlink(ticket.slot);
        if file != NONE {
            let until = now + u64::from(self.config.retry_hold_ms);
            self.keep_free(file, until);
            self.wake(now, file);
            self.rest(file);
        }
    }

    fn waiter(&self, ticket: Ticket) -> Option<&Waiter> {
        self.waiters.get(ticket.slot).filter(|w| w.live && w.number == ticket.number)
    }

    /// Lets operations without conflicts go ahead.
    pub(super) fn wake(&mut self, now: Ms, f: u32) {
        let last = self.files[f].waiters;
        if last == NONE {
            return;
        }
        // With several readers no waiting operation can go ahead, because each conflicts with at
        // least one.
        let file = &self.files[f];
        if file.readers > 1 {
            return;
        }
        let mut slot = self.waiters[last].next;
        loop {
            let next = self.waiters[slot].next;
            let done = slot == self.files[f].waiters;
            let access = self.waiters[slot].access;
            if !self.conflicts(&access) {
                let ticket = self.ticket(slot);
                self.unlink(slot);
                self.retry(now, ticket, access);
            }
            if done || self.files[f].waiters == NONE {
                return;
            }
            slot = next;
        }
    }

    /// Attempts an operation again after its removal from the queue.
    fn retry(&mut self, now: Ms, ticket: Ticket, access: Access) {
        let writes = matches!(access.op, Op::Write | Op::Push);
        let decision = if writes && !self.revisions.has(u64::from(self.writes_in_flight) + 1) {
            self.try_later()
        } else {
            match self.attempt(now, &access) {
                Attempt::Done(decision) => decision,
                Attempt::Blocked | Attempt::NoRoom => self.try_later(),
            }
        };
        self.actions.push_back(Action::Ready { ticket, decision });
    }

    /// Gives a free lease record to the first operation that waits for one.
    pub(super) fn wake_for_room(&mut self, now: Ms) {
        while let Some(ticket) = self.no_room.pop_front() {
            let Some(waiter) = self.waiter(ticket) else { continue };
            let access = waiter.access;
            self.unlink(ticket.slot);
            self.retry(now, ticket, access);
            return;
        }
    }
}
