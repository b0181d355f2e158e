//! The memory of the table.

use super::record::{ClientRec, FileRec, LeaseRec, Waiter};
use super::{Action, Table};

/// Size of each record in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Size of a lease record.
    pub lease: usize,
    /// Size of a file record.
    pub file: usize,
    /// Size of a client record.
    pub client: usize,
    /// Size of a waiting operation.
    pub waiter: usize,
}

/// The memory in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Number of leases, caching or not.
    pub leases: usize,
    /// Number of files, including those of which only the modify revision is stored.
    pub files: usize,
    /// Number of clients.
    pub clients: usize,
    /// Number of waiting operations.
    pub waiters: usize,
    /// Allocated bytes.
    pub heap_bytes: usize,
}

impl Table {
    /// Size of each record in bytes.
    pub const SIZES: Sizes = Sizes {
        lease: size_of::<LeaseRec>(),
        file: size_of::<FileRec>(),
        client: size_of::<ClientRec>(),
        waiter: size_of::<Waiter>(),
    };

    /// The memory in use. The bytes are computed from capacities. The example `memory` counts
    /// allocations.
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
