//! Wire messages: XDR, ONC RPC, MOUNT, NFSv3, NFSv4 and NQNFS.
//!
//! This crate contains types only: no sockets, no runtime, no policy. Client and server share the
//! types, so every message can be encoded and decoded. Peers are not trusted. Decoders allocate no
//! more than the received bytes justify, enumerations keep unknown values, and names are bytes.
//!
//! Architecture Invariant: this crate knows neither the `Vfs` interface nor an async runtime.

#![forbid(unsafe_code)]

pub mod mount;
pub mod nfs3;
pub mod nfs4;
pub mod nlm;
pub mod nqnfs;
pub mod portmap;
pub mod record;
pub mod rpc;
#[cfg(any(test, feature = "sample"))]
pub mod sample;
pub mod xdr;

/// Expands to nothing. Sample values exist only in tests and with the `sample` feature.
#[cfg(not(any(test, feature = "sample")))]
#[doc(hidden)]
#[macro_export]
macro_rules! xdr_sample {
    ($($t:tt)*) => {};
}
