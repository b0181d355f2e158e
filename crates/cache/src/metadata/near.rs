//! File contents that a layer below has without a request. The cache then requests no bytes, and
//! sends opens down to the layer that has them.

use super::MetadataCache;
use hither_vfs::{Fh, OpenHow, Opened};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Opens that probe whether the server grants leases.
const PROBES: u32 = 3;

/// A layer below that keeps file contents. Calls return at once. Answers are guesses: a wrong
/// answer costs one request.
pub trait Near: Send + Sync + 'static {
    /// Whether the layer has bytes of a file, of any version.
    fn has(&self, fh: &Fh) -> bool;
    /// Whether the layer has all bytes of a file of this length.
    fn has_all(&self, fh: &Fh, size_bytes: u64) -> bool;
}

impl MetadataCache {
    /// Sets the layer below that keeps file contents. Called once, before the first other call.
    pub fn keeper(&self, near: Arc<dyn Near>) {
        // A second call would be a mistake of the caller; its argument is ignored.
        let _ = self.near.set(near);
    }

    /// Whether a layer below has bytes of the file.
    pub(super) fn is_near(&self, fh: &Fh) -> bool {
        self.near.get().is_some_and(|near| near.has(fh))
    }

    /// Whether a layer below has all bytes of a file of this length.
    pub(super) fn is_near_whole(&self, fh: &Fh, size_bytes: u64) -> bool {
        self.near.get().is_some_and(|near| near.has_all(fh, size_bytes))
    }

    /// Whether opens may bring leases. Counts a probe if no lease was granted yet.
    pub(super) fn hopes_for_leases(&self) -> bool {
        let granted = self.leased.load(Ordering::Relaxed) != 0;
        granted || self.probes.fetch_add(1, Ordering::Relaxed) < PROBES
    }

    /// The same, without counting a probe.
    pub(super) fn may_be_leased(&self) -> bool {
        self.leased.load(Ordering::Relaxed) != 0 || self.probes.load(Ordering::Relaxed) < PROBES
    }

    /// Whether bytes of the file are below, and using them saves requests. An open below may bring
    /// a lease, which saves more than the bytes cost. A server without a lease for the first few
    /// opens is assumed to grant none.
    pub(super) fn is_near_enough(&self, fh: &Fh, fresh: bool) -> bool {
        if !self.is_near(fh) {
            return false;
        }
        !fresh || self.options.stateless_opens || !self.hopes_for_leases()
    }

    /// Sends an open down to the layer that has the bytes, although the open needs no request. The
    /// open returns with these bytes.
    pub(super) async fn brought_near(&self, mut opened: Opened, how: &OpenHow) -> Opened {
        let (fh, size) = (&opened.node.fh, opened.node.attrs.attr.size_bytes);
        if !self.is_near_whole(fh, size) {
            return opened;
        }
        let first_bytes = if opened.first.is_none() { how.first_bytes } else { 0 };
        // The first read tries again after a failed open.
        if let Ok(real) = self.make_real(opened.open, first_bytes).await {
            let fits = real.change == Some(opened.node.attrs.attr.change);
            opened.first = opened.first.or(real.first.filter(|_| fits));
            opened.backing = real.backing.filter(|_| fits);
        }
        opened
    }
}
