//! Opens that ask for a lease where a question would do.
//!
//! A known file is opened by asking whether it is still as it was ([`opens`](super::opens)), which
//! brings no lease: servers grant them with opens. One that was refused, because somebody still had
//! the file open for writing or it had just been taken from somebody, would be refused for good. So
//! of the questions that find a file unchanged, some are asked by opening it below, which takes as
//! many round trips and a close that nobody waits for. They become rarer, up to a point (`hither
//! serve` gives no delegation of a file that its journal has not settled yet, which takes 20 s),
//! and end for a server that has granted nothing.

use super::Meta;
use hither_vfs::Fh;
use std::sync::atomic::Ordering;

/// The first question in a row that is asked by an open; then when there were twice as many, and at
/// last one of so many.
const FIRST: u32 = 4;
const EVERY: u32 = 64;
/// So many such opens are sent to a server that has not granted a lease: nfs-ganesha, and `hither
/// serve` unless told otherwise, never do.
const TRIES: u32 = 64;

impl Meta {
    /// Whether the question that is due before a file is opened is to be asked by opening it.
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
