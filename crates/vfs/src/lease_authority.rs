//! Which data of a file may be cached on this machine.

use crate::{Fh, RequestContext};
use async_trait::async_trait;

/// Decides which data of a file may be cached, by delegations (RFC 8881 section 10.4) or leases
/// (NQNFS). The client of a server answers. The stack hands the authority to the layers that ask:
/// the delayed writes and the frontend.
#[async_trait]
pub trait LeaseAuthority: Send + Sync + 'static {
    /// The length in bytes up to which a file may be closed with unsent data. No other client sees
    /// the file before [`Upcalls::revoke`](crate::Upcalls::revoke) of it has ended. This is a write
    /// delegation and its limit (RFC 8881 sections 10.4 and 18.16.3). Never waits.
    fn delegated_bytes(&self, fh: &Fh) -> Option<u64>;

    /// Whether writes to a file may be cached. They may when the server keeps other clients from
    /// the file, or when that is not needed. The layer that caches notes the delay and honours
    /// [`Upcalls::flush`](crate::Upcalls::flush) in time. Never waits.
    fn can_cache_writes(&self, fh: &Fh) -> bool;

    /// As [`LeaseAuthority::can_cache_writes`], and requests the right from the server when it is
    /// missing.
    async fn request_write_caching(&self, cx: &RequestContext, fh: &Fh) -> bool;

    /// Whether other clients use the file so that its data must not be cached. Each read and write
    /// of the file must then reach the client. Never waits.
    fn is_noncacheable(&self, fh: &Fh) -> bool;

    /// Whether this mount maintains the modification time of a file. Other clients see the time
    /// that [`Upcalls::unsent`](crate::Upcalls::unsent) reports. The server accepts the time from
    /// any writer ([`RequestContext::sets_write_time`], RFC 9754 section 5). Never waits.
    fn delegates_times(&self, fh: &Fh) -> bool;
}

/// The authority over files that no other client uses, or whose server grants no leases. Writes may
/// be cached, and no file is delegated.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoLeases;

#[async_trait]
impl LeaseAuthority for NoLeases {
    fn delegated_bytes(&self, _fh: &Fh) -> Option<u64> {
        None
    }

    fn can_cache_writes(&self, _fh: &Fh) -> bool {
        true
    }

    async fn request_write_caching(&self, _cx: &RequestContext, _fh: &Fh) -> bool {
        true
    }

    fn is_noncacheable(&self, _fh: &Fh) -> bool {
        false
    }

    fn delegates_times(&self, _fh: &Fh) -> bool {
        false
    }
}
