//! The context of a call: caller, deadline and cancellation.

use crate::{Account, Fh, Spent};
use bytes::Bytes;
use smallvec::SmallVec;
use std::net::IpAddr;
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
    /// The superuser without supplementary groups, for the daemon's own calls.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: SmallVec::new() }
    }
}

/// Context of one call, passed explicitly to every layer.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// The caller.
    pub cred: Arc<Cred>,
    /// The host that sent the call. Hosts share the threads of a local directory. `None`: this
    /// process.
    pub host: Option<IpAddr>,
    /// The latest time for the answer. `None`: the call waits as long as the mount options say.
    pub deadline: Option<Instant>,
    /// Cancelled when the caller was interrupted. A call that changes the file system runs to its
    /// end nevertheless. A wait for a lock or for an unreachable server ends with `EINTR`.
    pub cancel: CancellationToken,
    /// Close-to-open: the request must have been sent at or after this moment, or the answer must
    /// be under a lease. `None`: cached state may be used while it is valid.
    pub fresh_since: Option<Instant>,
    /// The account that records the cost of the call.
    pub account: Option<Arc<Account>>,
    /// The waits of the call, when its frontend measures them.
    pub spent: Option<Arc<Spent>>,
    /// An identifier that distinguishes the call from all other calls, also after a restart: at
    /// most [`CALL_MAX_BYTES`]. A layer with a journal stores it with the change ([`Answered`]). A
    /// client's call passes it to one change only: its last one.
    pub call: Option<Bytes>,
    /// The caller does not show the times in the answer, for example when the kernel needs the
    /// length before a read. Times of this machine are sufficient.
    pub times_unseen: bool,
    /// The write clears set-id bits. Only the server clears them, so no layer delays the write.
    pub clears_set_id: bool,
    /// The write is allowed only while other clients are kept from the file
    /// (`Vfs::can_cache_writes`). Otherwise it fails with `EAGAIN` and writes no data. A layer sets
    /// it only when the layer below supports it.
    pub only_held: bool,
    /// The call creates the last name of its path, and the server checks whether the name exists.
    /// For the lookup before it, a cached absence is sufficient even when it was not confirmed
    /// recently.
    pub makes_last: bool,
    /// No program has the object open whose name is removed or replaced. Opens of it at this layer
    /// belong to layers above. The object need not stay readable for them.
    pub target_unused: bool,
    /// A read may return a [`Slice`](crate::Slice) of a local file. A layer that looks at the bytes
    /// of a read clears this for the layers below.
    pub takes_slice: bool,
    /// The modification time that the call sets is that of a write, and was seen before the bytes
    /// were sent. The holder of the file's delegation may set it without owning the file
    /// (`LeaseAuthority::delegates_times`).
    pub sets_write_time: bool,
}

/// Maximum length of [`RequestContext::call`] in bytes.
pub const CALL_MAX_BYTES: usize = 64;

/// A durable call. When the client repeats the call after a restart, the server replies from this
/// record and does not execute it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// [`RequestContext::call`].
    pub call: Bytes,
    /// The object that was created, changed, renamed or removed.
    pub fh: Fh,
    /// Bytes written; 0 for other calls.
    pub bytes: u32,
}

impl RequestContext {
    /// A context of `cred` without deadline.
    pub fn new(cred: Arc<Cred>) -> Self {
        let cancel = CancellationToken::new();
        Self {
            cred,
            host: None,
            deadline: None,
            cancel,
            fresh_since: None,
            account: None,
            spent: None,
            call: None,
            times_unseen: false,
            clears_set_id: false,
            only_held: false,
            makes_last: false,
            target_unused: false,
            takes_slice: false,
            sets_write_time: false,
        }
    }

    /// The same context, which accepts only answers to requests sent at or after `since`.
    pub fn fresh(&self, since: Instant) -> Self {
        Self { fresh_since: Some(since), ..self.clone() }
    }
}

/// The inputs that the logic does not take from the machine: randomness and the wall clock.
/// Monotonic time is tokio's clock, which tests pause.
#[derive(Clone)]
pub struct Env {
    /// Random 64-bit numbers, for verifiers, xids and owners.
    pub random: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Wall-clock time.
    pub wall: Arc<dyn Fn() -> SystemTime + Send + Sync>,
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Env")
    }
}
