//! The caller, its deadline, and the end of its interest in the answer.

use crate::{Account, Fh};
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A caller's identity on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cred {
    /// Effective (file-system) user id.
    pub uid: u32,
    /// Effective (file-system) group id.
    pub gid: u32,
    /// Supplementary groups, as the kernel lists them.
    pub groups: SmallVec<[u32; 8]>,
}

impl Cred {
    /// The superuser without further groups: the daemon's own calls.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: SmallVec::new() }
    }
}

/// Context of one call, passed explicitly to every layer.
#[derive(Debug, Clone)]
pub struct Cx {
    /// On whose behalf.
    pub cred: Arc<Cred>,
    /// When the answer is no longer wanted; `None` waits as the mount's policy says.
    pub deadline: Option<Instant>,
    /// Cancelled when the caller was interrupted. A call that changes something runs to its end
    /// all the same; waiting (for locks, for a dead server) ends with `EINTR`.
    pub cancel: CancellationToken,
    /// Close-to-open: the answer must have been asked of the server at or after this moment, or
    /// hold under a lease. `None`: cached state will do as long as its validity lasts.
    pub fresh_since: Option<Instant>,
    /// The cost of the call is noted here.
    pub account: Option<Arc<Account>>,
    /// Distinguishes the call from all others, also after a restart: at most [`CALL_MAX_BYTES`]. A
    /// layer with a journal keeps it with the call's change ([`Answered`]). To be given to one
    /// change only: the last one that a client's call makes.
    pub call: Option<Bytes>,
    /// The times in the answer are not shown, as when the kernel asks for a length before it reads:
    /// times of this machine will do.
    pub times_unseen: bool,
    /// A write that is right only while other clients are kept from the file (`Vfs::may_delay`):
    /// otherwise it fails with `EAGAIN`, and writes nothing. Only where the layer below says that
    /// it heeds it.
    pub only_held: bool,
    /// The call makes the last name of its path, and the server decides whether it can. An absence
    /// that was not confirmed lately is good enough for the look-up before it.
    pub makes_last: bool,
    /// No program has the object open whose name is removed or replaced: opens of it at the layer
    /// that is asked are of layers above, and it need not stay readable for them.
    pub target_unused: bool,
}

/// Longest [`Cx::call`].
pub const CALL_MAX_BYTES: usize = 64;

/// A call that was made, and is durable: one that is repeated after a restart is answered by this
/// and not made again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// [`Cx::call`].
    pub call: Bytes,
    /// The object that was made, changed, moved or removed.
    pub fh: Fh,
    /// Bytes written; 0 for other calls.
    pub bytes: u32,
}

impl Cx {
    /// A call for `cred` without deadline.
    pub fn new(cred: Arc<Cred>) -> Self {
        let cancel = CancellationToken::new();
        Self {
            cred,
            deadline: None,
            cancel,
            fresh_since: None,
            account: None,
            call: None,
            times_unseen: false,
            only_held: false,
            makes_last: false,
            target_unused: false,
        }
    }

    /// The same call, satisfied only by answers from `since` on.
    pub fn fresh(&self, since: Instant) -> Self {
        Self { fresh_since: Some(since), ..self.clone() }
    }
}

/// The inputs that logic may not ask the machine for: randomness and the wall clock. (Monotonic
/// time is tokio's clock, which tests pause.)
#[derive(Clone)]
pub struct Env {
    /// Random 64-bit numbers: verifiers, xids, owners.
    pub random: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Wall-clock time.
    pub wall: Arc<dyn Fn() -> SystemTime + Send + Sync>,
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Env")
    }
}
