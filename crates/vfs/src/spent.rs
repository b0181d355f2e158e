//! The time that a call spends below a frontend.
//!
//! A frontend that measures its calls puts a [`Spent`] into its
//! [`RequestContext`](crate::RequestContext). The layer that waits adds its waits. Calls without a
//! [`Spent`] read no clock. Concurrent waits of one call are added up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The waits of one call until now.
#[derive(Debug, Default)]
pub struct Spent {
    store_ns: AtomicU64,
    journal_ns: AtomicU64,
}

impl Spent {
    /// Adds a call of a store that took `took`. For `journal` of this time the call waited for a
    /// journal.
    pub fn add(&self, took: Duration, journal: Duration) {
        let journal = journal.min(took);
        self.store_ns.fetch_add((took - journal).as_nanos() as u64, Relaxed);
        self.journal_ns.fetch_add(journal.as_nanos() as u64, Relaxed);
    }

    /// The time in the store: its queue, its threads and its disk. Waits for a journal are not
    /// included.
    pub fn store(&self) -> Duration {
        Duration::from_nanos(self.store_ns.load(Relaxed))
    }

    /// The time until records in a journal were durable.
    pub fn journal(&self) -> Duration {
        Duration::from_nanos(self.journal_ns.load(Relaxed))
    }
}
