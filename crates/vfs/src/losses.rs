//! Counts losses of bytes that were acknowledged as unstable.
//!
//! The layers that delay writes report an error of them once to each open. A server above them has
//! clients without opens. It therefore shows the count in its write verifier (RFC 8881 section
//! 18.3): a new count makes each client send its uncommitted bytes again.

use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Counts a loss. To be called before the error can be reported.
pub fn note_loss() {
    COUNT.fetch_add(1, Ordering::SeqCst);
}

/// Number of losses in this process.
pub fn losses() -> u64 {
    COUNT.load(Ordering::SeqCst)
}
