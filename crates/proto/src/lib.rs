//! The messages on the wire: XDR, ONC RPC, MOUNT, NFSv3, NFSv4 and NQNFS.
//!
//! Types only: no sockets, no runtime, no policy. Client and server use the same types, so every
//! message can be encoded and decoded. Peers are not trusted: decoders are bounded by the bytes
//! that really arrived, enumerations keep values they do not know, names are bytes.
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

/// Nothing: sample values exist in tests and with the `sample` feature.
#[cfg(not(any(test, feature = "sample")))]
#[doc(hidden)]
#[macro_export]
macro_rules! xdr_sample {
    ($($t:tt)*) => {};
}
