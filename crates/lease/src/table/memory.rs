//! The memory of the table.

use super::record::{ClientRec, FileRec, LeaseRec, Waiter};
use super::{Action, Table};

/// Bytes of each record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Of a lease.
    pub lease: usize,
    /// Of a file.
    pub file: usize,
    /// Of a client.
    pub client: usize,
    /// Of an operation that waits.
    pub waiter: usize,
}

/// The memory in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Leases, caching or not.
    pub leases: usize,
    /// Files, also those of which only the modify revision is remembered.
    pub files: usize,
    /// Clients.
    pub clients: usize,
    /// Operations that wait.
    pub waiters: usize,
    /// Bytes taken from the allocator.
    pub heap_bytes: usize,
}

impl Table {
    /// Bytes of each record.
    pub const SIZES: Sizes = Sizes {
        lease: size_of::<LeaseRec>(),
        file: size_of::<FileRec>(),
        client: size_of::<ClientRec>(),
        waiter: size_of::<Waiter>(),
    };

    /// The memory in use. The bytes are computed from capacities; the example `memory` counts
    /// allocations instead.
    pub fn usage(&self) -> Usage {
        Usage {
            leases: self.leases.len(),
            files: self.files.len(),
            clients: self.clients.len(),
            waiters: self.waiters.len(),
            heap_bytes: self.leases.heap_bytes()
                + self.files.heap_bytes()
                + self.clients.heap_bytes()
                + self.waiters.heap_bytes()
                + self.timers.heap_bytes()
                + [&self.by_owner, &self.by_key, &self.by_client]
                    .map(|h| h.allocation_size())
                    .iter()
                    .sum::<usize>()
                + self.actions.capacity() * size_of::<Action>(),
        }
    }
}
