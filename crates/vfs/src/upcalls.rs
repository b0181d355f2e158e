//! The calls of a layer to the layer above.

use crate::{Fh, Time};

/// The delayed data of a file in the layers above ([`Upcalls::unsent`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsent {
    /// No change that a program counts as done.
    Nothing,
    /// Delayed bytes.
    Bytes {
        /// Length of the file in bytes as programs on this machine see it, with the delayed bytes.
        size_bytes: u64,
        /// The modification time that programs on this machine see. The server gets it with the
        /// last bytes, unless a program changes the file again. `None`: the server will set another
        /// time, or no layer knows it.
        mtime: Option<Time>,
    },
    /// Other delayed changes, or an unknown state.
    More,
}

impl Unsent {
    /// The combination of the delayed data in two layers.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, one) | (one, Self::Nothing) => one,
            (Self::Bytes { size_bytes: a, mtime: time_a }, Self::Bytes { size_bytes: b, mtime: time_b }) => {
                let mtime = time_a.zip(time_b).map(|(a, b)| a.max(b));
                Self::Bytes { size_bytes: a.max(b), mtime }
            }
            (Self::More, _) | (_, Self::More) => Self::More,
        }
    }
}

/// The calls of a layer to the layer above. Calls return at once and wait for nothing.
pub trait Upcalls: Send + Sync + 'static {
    /// Earlier answers about an object's attributes and contents are no longer valid. The returned
    /// future ends when all layers above have dropped them. The future may be dropped.
    fn revoke(&self, fh: &Fh) -> BoxFuture<()>;

    /// As [`Upcalls::revoke`], in a call that removes a name of an object that no program uses
    /// ([`RequestContext::target_unused`]). Its delayed data is not wanted. If the call fails, the
    /// layer that made it sends the data.
    fn withdraw_unused(&self, fh: &Fh) -> BoxFuture<()> {
        self.revoke(fh)
    }

    /// Leases on these objects have expired. Answers about the objects hold no longer than answers
    /// without a lease. No change of the objects is known. Contents of the version that the next
    /// attributes show may still be used.
    fn expire(&self, files: &[Fh]) -> BoxFuture<()> {
        let revoked: Vec<_> = files.iter().map(|fh| self.revoke(fh)).collect();
        Box::pin(async move {
            for one in revoked {
                one.await;
            }
        })
    }

    /// The layer below needs the delayed data of an object ([`Vfs::can_cache_writes`](crate::Vfs)).
    /// The returned future ends when the data was written or the write failed.
    fn flush(&self, _fh: &Fh) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }

    /// As [`Upcalls::flush`], in a call that removes a name of an object that no program uses. Data
    /// of the layer that made the call is not wanted.
    fn flush_unused(&self, fh: &Fh) -> BoxFuture<()> {
        self.flush(fh)
    }

    /// The path of an object below the root, for messages to people. `None` when it is not known.
    fn path(&self, _fh: &Fh) -> Option<String> {
        None
    }

    /// The delayed data of a file in the layers above at this moment. Never waits.
    fn unsent(&self, _fh: &Fh) -> Unsent {
        Unsent::More
    }

    /// As [`Upcalls::revoke`], for all answers under [`Validity::Lease`](crate::Validity): all
    /// leases are lost.
    fn revoke_all(&self) -> BoxFuture<()>;
}

/// A boxed future.
pub type BoxFuture<T> = std::pin::Pin<Box<dyn Future<Output = T> + Send>>;
