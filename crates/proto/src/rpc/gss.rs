//! RPCSEC_GSS version 1 (RFC 2203): its credential, and the arguments and results of context
//! creation.
//!
//! This module has no cryptography. Tokens, checksums and wrapped bodies are opaque bytes.

use crate::xdr::{Dec, Enc, Opaque, Result, Xdr, XdrError};
use crate::{xdr_enum, xdr_struct};

/// The only version of the protocol.
const VERSION: u32 = 1;
/// Longest context handle that is accepted, in bytes. The credential has room for more, but servers
/// use 4 to 40 bytes.
pub const HANDLE_MAX_BYTES: usize = 128;
/// Longest token that is accepted, in bytes. A ticket with many group memberships takes some tens
/// of kilobytes.
pub const TOKEN_MAX_BYTES: usize = 128 << 10;
/// Sequence numbers reach this value at most (`MAXSEQ`, RFC 2203 section 5.3.3.1). Then the context
/// is replaced.
pub const SEQUENCE_MAX: u32 = 0x8000_0000;

/// Major statuses in the results of context creation (RFC 2744 section 3.9.1).
pub mod major {
    /// The context is complete.
    pub const COMPLETE: u32 = 0;
    /// The initiator sends another token.
    pub const CONTINUE_NEEDED: u32 = 1;
    /// The token is refused.
    pub const FAILURE: u32 = 13 << 16;
}

xdr_enum! {
    /// The purpose of a call (`rpc_gss_proc_t`).
    pub enum GssProc {
        /// A call of the program.
        DATA = 0,
        /// Creates a context.
        INIT = 1,
        /// Continues the creation of a context.
        CONTINUE_INIT = 2,
        /// Destroys a context.
        DESTROY = 3,
    }

    /// The protection of arguments and results (`rpc_gss_service_t`).
    pub enum GssService {
        /// Only the header is protected: flavor `krb5`.
        NONE = 1,
        /// Checksums: flavor `krb5i`.
        INTEGRITY = 2,
        /// Encryption: flavor `krb5p`.
        PRIVACY = 3,
    }
}

/// The credential of a call (`rpc_gss_cred_vers_1_t`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GssCred {
    /// The purpose of the call.
    pub proc: GssProc,
    /// Number of the request in its context. Each transmission has its own.
    pub sequence: u32,
    /// The protection of arguments and results.
    pub service: GssService,
    /// The server's handle of the context.
    pub handle: Opaque<HANDLE_MAX_BYTES>,
}

impl Xdr for GssCred {
    fn enc(&self, e: &mut Enc) {
        e.u32(VERSION);
        self.proc.enc(e);
        e.u32(self.sequence);
        self.service.enc(e);
        self.handle.enc(e);
    }

    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        match d.u32()? {
            VERSION => {}
            other => return Err(XdrError::Invalid(other)),
        }
        Ok(Self { proc: Xdr::dec(d)?, sequence: d.u32()?, service: Xdr::dec(d)?, handle: Xdr::dec(d)? })
    }
}

crate::xdr_sample!(
    struct GssCred {
        proc: GssProc,
        sequence: u32,
        service: GssService,
        handle: Opaque<HANDLE_MAX_BYTES>,
    }
);

xdr_struct! {
    /// The arguments of context creation (RFC 2203 section 5.2.2).
    pub struct InitArgs {
        /// The initiator's token.
        pub token: Opaque<TOKEN_MAX_BYTES>,
    }

    /// The results of context creation (`rpc_gss_init_res`).
    pub struct InitRes {
        /// The server's handle of the context.
        pub handle: Opaque<HANDLE_MAX_BYTES>,
        /// GSS major status: 0, 1 (continue), or an error.
        pub major: u32,
        /// GSS minor status, of the mechanism.
        pub minor: u32,
        /// Number of sequence numbers below the highest that the server accepts.
        pub window: u32,
        /// The acceptor's token.
        pub token: Opaque<TOKEN_MAX_BYTES>,
    }
}
