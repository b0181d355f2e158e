//! WRITEs that are right only as long as a lease for writing keeps others from the file
//! ([`hither_vfs::Cx::only_held`]).
//!
//! A server refuses them when the lease has ended (NQNFS_EXPIRED), because it remembers whom it has
//! shut out. One that has begun anew does not: what was sent to the old one must not be sent again
//! to the new one, where it could come after others have used the file. So such WRITEs end before
//! anything is sent on a connection to the new one, and there are none while leases of the old one
//! may last.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::{RwLock, RwLockReadGuard};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Longest term of a lease.
const TERM_MAX: Duration = Duration::from_secs(60);

/// Those of a mount.
#[derive(Default)]
pub(super) struct Held {
    /// Each holds it shared.
    gate: RwLock<()>,
    life: Mutex<Life>,
}

/// What is known of the server's present life.
#[derive(Default)]
struct Life {
    ends: CancellationToken,
    /// When it was noticed that it is not the first.
    since: Option<Instant>,
}

/// One WRITE; over when dropped.
pub(super) struct Going<'a> {
    _gate: RwLockReadGuard<'a, ()>,
    /// Cancelled when the server has begun anew: then it has to end.
    pub ends: CancellationToken,
}

impl Held {
    /// Begins one; `None` when the server would not refuse it when it has to.
    pub async fn begin(&self) -> Option<Going<'_>> {
        let gate = self.gate.read().await;
        let life = self.life.lock();
        let known = life.since.is_none_or(|since| since.elapsed() >= TERM_MAX);
        known.then(|| Going { _gate: gate, ends: life.ends.clone() })
    }

    /// The server has begun anew: ends all, and returns when they have ended.
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
