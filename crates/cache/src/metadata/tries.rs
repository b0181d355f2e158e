//! Opens that ask for a lease where a revalidation would do.
//!
//! A known file is opened by revalidating its attributes ([`opens`](super::opens)). That brings no
//! lease: servers grant leases with opens. The server may have refused a lease for a temporary
//! reason: another client had the file open for writing, or had just lost its lease. Without a new
//! open, the file would never get a lease. So some revalidations of an unchanged file are replaced
//! by an open below. Such an open takes as many round trips, and a close that nothing waits for.
//!
//! These opens become rarer, up to a point: `hither serve` gives no delegation of a file until its
//! journal has settled the file, which takes 20 s. The opens end for a server that has granted
//! nothing.

use super::MetadataCache;
use hither_vfs::Fh;
use std::sync::atomic::Ordering;

/// The number of the consecutive revalidation that first becomes an open. The distance then
/// doubles, up to one open in `EVERY` revalidations.
const FIRST: u32 = 4;
const EVERY: u32 = 64;
/// Most such opens to a server that has not granted a lease. nfs-ganesha never grants one, and
/// `hither serve` does so only when configured.
const TRIES: u32 = 64;

impl MetadataCache {
    /// Whether the revalidation before an open of the file is replaced by an open below.
    pub(super) fn asks_for_lease(&self, fh: &Fh) -> bool {
        let (granted, tries) = (&self.leased, &self.tries);
        let hopeless = granted.load(Ordering::Relaxed) == 0 && tries.load(Ordering::Relaxed) >= TRIES;
        if self.options.stateless_opens || hopeless {
            return false;
        }
        let row = self.table.with(fh, |_, o| {
            let change = o.attr.change;
            let row = &mut o.extra().questions;
            row.count = if row.change == change { row.count.saturating_add(1) } else { 1 };
            row.change = change;
            row.count
        });
        let due = row.is_some_and(|n| n.is_multiple_of(EVERY) || n >= FIRST && n.is_power_of_two());
        if due {
            tries.fetch_add(1, Ordering::Relaxed);
        }
        due
    }
}
