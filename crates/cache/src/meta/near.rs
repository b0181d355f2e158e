//! What a layer below has of files' contents without asking anybody: then they are not asked for,
//! and opens go down to where the bytes are.

use super::Meta;
use hither_vfs::{Fh, OpenHow, Opened};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Opens that try whether the server grants leases.
const PROBES: u32 = 3;

/// A keeper of contents below. Calls return at once; answers are guesses that cost nothing but a
/// question when wrong.
pub trait Near: Send + Sync + 'static {
    /// Whether there is something of a file, of whatever version.
    fn has(&self, fh: &Fh) -> bool;
    /// Whether all of a file of this length is there.
    fn has_all(&self, fh: &Fh, size_bytes: u64) -> bool;
}

impl Meta {
    /// Names the keeper of contents below. Once, before the first call.
    pub fn keeper(&self, near: Arc<dyn Near>) {
        // Once, as it says; a second one would be a mistake of who builds the stack.
        let _ = self.near.set(near);
    }

    /// Whether the layers below have something of a file's contents.
    pub(super) fn is_near(&self, fh: &Fh) -> bool {
        self.near.get().is_some_and(|near| near.has(fh))
    }

    /// Whether they have all of a file of this length.
    pub(super) fn is_near_whole(&self, fh: &Fh, size_bytes: u64) -> bool {
        self.near.get().is_some_and(|near| near.has_all(fh, size_bytes))
    }

    /// Whether opens may bring leases.
    pub(super) fn hopes_for_leases(&self) -> bool {
        let granted = self.leased.load(Ordering::Relaxed) != 0;
        granted || self.probes.fetch_add(1, Ordering::Relaxed) < PROBES
    }

    /// The same, without trying.
    pub(super) fn may_be_leased(&self) -> bool {
        self.leased.load(Ordering::Relaxed) != 0 || self.probes.load(Ordering::Relaxed) < PROBES
    }

    /// The same, where that spares questions: an open below may bring a lease, which spares more
    /// than the bytes cost. A server that grants none at the first few opens is taken to grant
    /// none.
    pub(super) fn is_near_enough(&self, fh: &Fh, fresh: bool) -> bool {
        if !self.is_near(fh) {
            return false;
        }
        !fresh || self.options.stateless_opens || !self.hopes_for_leases()
    }

    /// An open that needs nothing from below is handed down all the same if the bytes are there: it
    /// comes back with them.
    pub(super) async fn brought_near(&self, mut opened: Opened, how: &OpenHow) -> Opened {
        let (fh, size) = (&opened.node.fh, opened.node.attrs.attr.size_bytes);
        if !self.is_near_whole(fh, size) {
            return opened;
        }
        let first_bytes = if opened.first.is_none() { how.first_bytes } else { 0 };
        // What does not work now is tried again by the first read.
        if let Ok(real) = self.make_real(opened.open, first_bytes).await {
            let fits = real.change == Some(opened.node.attrs.attr.change);
            opened.first = opened.first.or(real.first.filter(|_| fits));
            opened.backing = real.backing.filter(|_| fits);
        }
        opened
    }
}
