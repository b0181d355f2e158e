//! WRITEs that are correct only while a write lease excludes other clients from the file
//! ([`hither_vfs::RequestContext::only_held`]).
//!
//! A server refuses such a WRITE after the end of the lease (NQNFS_EXPIRED), because it remembers
//! the lease. A restarted server does not remember. It could accept a repeated WRITE after other
//! clients have used the file. Such WRITEs therefore end before any data is sent on a connection to
//! the restarted server. No such WRITE starts while leases of the server's previous run may last.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::{RwLock, RwLockReadGuard};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Longest term of a lease.
const TERM_MAX: Duration = Duration::from_secs(60);

/// The WRITEs under a lease of a mount.
#[derive(Default)]
pub(super) struct LeasedWrites {
    /// Each WRITE holds the gate shared.
    gate: RwLock<()>,
    life: Mutex<Life>,
}

/// The present run of the server.
#[derive(Default)]
struct Life {
    ends: CancellationToken,
    /// When the client noticed a restart of the server.
    since: Option<Instant>,
}

/// One WRITE; drop ends it.
pub(super) struct Going<'a> {
    _gate: RwLockReadGuard<'a, ()>,
    /// Cancelled when the server has restarted. The WRITE must then end.
    pub ends: CancellationToken,
}

impl LeasedWrites {
    /// Begins a WRITE. `None` while the server might accept a WRITE that it must refuse.
    pub async fn begin(&self) -> Option<Going<'_>> {
        let gate = self.gate.read().await;
        let life = self.life.lock();
        let known = life.since.is_none_or(|since| since.elapsed() >= TERM_MAX);
        known.then(|| Going { _gate: gate, ends: life.ends.clone() })
    }

    /// Records a restart of the server: ends all WRITEs, and returns after their end.
    pub async fn begun_anew(&self) {
        let old = {
            let mut life = self.life.lock();
            life.since = Some(Instant::now());
            std::mem::take(&mut life.ends)
        };
        old.cancel();
        drop(self.gate.write().await);
    }
}
