//! ONC RPC version 2 (RFC 5531): the headers of calls and replies.
//!
//! This module has no programs and no transports, and it does not match replies to calls. It splits
//! a message into header and body. The body is a slice of the received buffer, so the caller
//! decodes it without a copy. The module supports the authentication flavors AUTH_NONE and
//! AUTH_SYS, and in [`gss`] RPCSEC_GSS. Bodies of other flavors stay opaque bytes.

pub mod gss;
mod program;

pub use program::Procedure;

use crate::xdr::{Dec, Enc, List, Opaque, Result, Xdr, XdrError};
use crate::{xdr_enum, xdr_struct, xdr_union};
use bytes::Bytes;

/// The only version of RPC.
pub const RPC_VERSION: u32 = 2;

/// Longest body of a credential or verifier (RFC 5531 section 8.2).
pub const AUTH_MAX_BYTES: usize = 400;

/// Most supplementary groups that AUTH_SYS can carry (RFC 5531 appendix A).
pub const AUTH_SYS_MAX_GIDS: usize = 16;

const CALL: u32 = 0;
const REPLY: u32 = 1;

xdr_enum! {
    /// Authentication flavor (`auth_flavor`, RFC 5531 section 8.2 and the IANA registry).
    pub enum AuthFlavor {
        /// No identity.
        NONE = 0,
        /// User and group numbers, which the server trusts.
        SYS = 1,
        /// A short form of an earlier credential.
        SHORT = 2,
        /// Diffie-Hellman (obsolete).
        DH = 3,
        /// RPCSEC_GSS (RFC 2203).
        GSS = 6,
        /// Requests TLS on this connection (RFC 9289).
        TLS = 7,
        /// Pseudo flavor in MNT results: Kerberos 5 with integrity of the header only (RFC 2623).
        KRB5 = 390003,
        /// Pseudo flavor: Kerberos 5 with integrity.
        KRB5I = 390004,
        /// Pseudo flavor: Kerberos 5 with privacy.
        KRB5P = 390005,
    }

    /// Reason for the refusal of a credential (`auth_stat`, RFC 5531 section 9).
    pub enum AuthStat {
        /// Success.
        OK = 0,
        /// Bad credential.
        BADCRED = 1,
        /// The client must begin a new session.
        REJECTEDCRED = 2,
        /// Bad verifier.
        BADVERF = 3,
        /// The verifier expired or was replayed.
        REJECTEDVERF = 4,
        /// Refused for security reasons: a stronger flavor is needed.
        TOOWEAK = 5,
        /// The server's verifier is bad.
        INVALIDRESP = 6,
        /// Unknown reason.
        FAILED = 7,
        /// Kerberos: unspecified error.
        KERB_GENERIC = 8,
        /// Kerberos: the credential expired.
        TIMEEXPIRE = 9,
        /// Kerberos: problem with the ticket file.
        TKT_FILE = 10,
        /// Kerberos: cannot decode the authenticator.
        DECODE = 11,
        /// Kerberos: wrong network address in the ticket.
        NET_ADDR = 12,
        /// RPCSEC_GSS: no credentials for the user.
        RPCSEC_GSS_CREDPROBLEM = 13,
        /// RPCSEC_GSS: problem with the context.
        RPCSEC_GSS_CTXPROBLEM = 14,
    }
}

xdr_struct! {
    /// A credential or verifier: a flavor and its data (`opaque_auth`).
    pub struct OpaqueAuth {
        /// Flavor, which defines the body.
        pub flavor: AuthFlavor,
        /// Data of the flavor.
        pub body: Opaque<AUTH_MAX_BYTES>,
    }

    /// Body of an AUTH_SYS credential (`authsys_parms`, RFC 5531 appendix A).
    pub struct AuthSys {
        /// An arbitrary number of the caller.
        pub stamp: u32,
        /// Name of the caller's machine.
        pub machinename: Opaque<255>,
        /// Effective user.
        pub uid: u32,
        /// Effective group.
        pub gid: u32,
        /// Supplementary groups.
        pub gids: List<u32, AUTH_SYS_MAX_GIDS>,
    }

    /// The versions that a peer supports. The peer sends them instead of the requested version.
    #[derive(Copy)]
    pub struct VersionRange {
        /// Lowest version.
        pub low: u32,
        /// Highest version.
        pub high: u32,
    }

    /// The reply of a server that accepted the credential (`accepted_reply`).
    pub struct AcceptedReply {
        /// The server's proof of its identity.
        pub verf: OpaqueAuth,
        /// The status of the call.
        pub stat: AcceptStat,
    }
}

xdr_union! {
    /// The status of a call (`accept_stat` with its data). After `Success` the results follow.
    pub enum AcceptStat else Other {
        /// The call was executed.
        Success = 0,
        /// The server does not offer the program.
        ProgUnavail = 1,
        /// The server offers other versions of the program.
        ProgMismatch(VersionRange) = 2,
        /// The procedure does not exist.
        ProcUnavail = 3,
        /// The arguments could not be decoded.
        GarbageArgs = 4,
        /// The server failed, for example to allocate memory.
        SystemErr = 5,
    }

    /// The reason why a call was denied (`rejected_reply`).
    pub enum DeniedReply {
        /// The server does not support RPC version 2.
        RpcMismatch(VersionRange) = 0,
        /// The server refused the credential.
        AuthError(AuthStat) = 1,
    }

    /// Accepted or denied (`reply_body`).
    pub enum ReplyBody {
        /// The server accepted the credential.
        Accepted(AcceptedReply) = 0,
        /// The server denied the call.
        Denied(DeniedReply) = 1,
    }
}

impl OpaqueAuth {
    /// AUTH_NONE.
    pub fn none() -> Self {
        Self { flavor: AuthFlavor::NONE, body: Opaque::default() }
    }

    /// AUTH_SYS. The encoded credential fits: 255 bytes of name and 16 groups are 340 bytes.
    pub fn sys(sys: &AuthSys) -> Self {
        Self { flavor: AuthFlavor::SYS, body: Opaque(Enc::of(sys).to_bytes()) }
    }

    /// The AUTH_SYS credential, or `None` for another flavor.
    ///
    /// # Errors
    /// The body is not a well-formed `authsys_parms`. A server answers AUTH_BADCRED.
    pub fn as_sys(&self) -> Result<Option<AuthSys>> {
        match self.flavor {
            AuthFlavor::SYS => Dec::all(&self.body.0).map(Some),
            _ => Ok(None),
        }
    }

    /// RPCSEC_GSS. The encoded credential fits: its handle has [`gss::HANDLE_MAX_BYTES`] at most.
    pub fn gss(cred: &gss::GssCred) -> Self {
        Self { flavor: AuthFlavor::GSS, body: Opaque(Enc::of(cred).to_bytes()) }
    }

    /// The RPCSEC_GSS credential, or `None` for another flavor.
    ///
    /// # Errors
    /// The body is not a well-formed credential of version 1. A server answers AUTH_BADCRED.
    pub fn as_gss(&self) -> Result<Option<gss::GssCred>> {
        match self.flavor {
            AuthFlavor::GSS => Dec::all(&self.body.0).map(Some),
            _ => Ok(None),
        }
    }
}

/// The header of a call (`call_body`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallHeader {
    /// Transaction id. The reply has the same xid, and so has a retransmission.
    pub xid: u32,
    /// Program number.
    pub prog: u32,
    /// Version of the program.
    pub vers: u32,
    /// Procedure number.
    pub proc: u32,
    /// Credential of the caller.
    pub cred: OpaqueAuth,
    /// Verifier of the credential.
    pub verf: OpaqueAuth,
}

/// The header of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyHeader {
    /// Transaction id of the call.
    pub xid: u32,
    /// The status of the call.
    pub body: ReplyBody,
}

/// One RPC message. The body is a slice of the received buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A call and its arguments.
    Call(CallHeader, Bytes),
    /// A reply and its results, which are empty unless the call was executed.
    Reply(ReplyHeader, Bytes),
    /// A call in an unknown version of RPC. Its layout is unknown, so only the xid was read. A
    /// server answers [`DeniedReply::RpcMismatch`].
    UnknownVersion {
        /// Transaction id of the call.
        xid: u32,
        /// RPC version of the call.
        version: u32,
    },
}

impl CallHeader {
    /// Encodes the header. The caller appends the arguments.
    pub fn begin(&self) -> Enc {
        Enc::of(self)
    }
}

impl ReplyHeader {
    /// The header of a successful reply. The results follow.
    pub fn success(xid: u32) -> Self {
        Self::accepted(xid, AcceptStat::Success)
    }

    /// The header of an accepted call with `stat`. The verifier is AUTH_NONE.
    pub fn accepted(xid: u32, stat: AcceptStat) -> Self {
        Self { xid, body: ReplyBody::Accepted(AcceptedReply { verf: OpaqueAuth::none(), stat }) }
    }

    /// The header of a denied call.
    pub fn denied(xid: u32, why: DeniedReply) -> Self {
        Self { xid, body: ReplyBody::Denied(why) }
    }

    /// True when results follow.
    pub fn is_success(&self) -> bool {
        matches!(&self.body, ReplyBody::Accepted(AcceptedReply { stat: AcceptStat::Success, .. }))
    }
}

impl Message {
    /// Splits one received message (a whole record) into header and body.
    ///
    /// # Errors
    /// The bytes are not an RPC message. The caller must close the connection.
    pub fn decode(message: &Bytes) -> Result<Self> {
        let mut ahead = Dec::new(message);
        let xid = ahead.u32()?;
        let mut d = Dec::new(message);
        match ahead.u32()? {
            CALL => match ahead.u32()? {
                RPC_VERSION => Ok(Self::Call(CallHeader::dec(&mut d)?, d.rest())),
                version => Ok(Self::UnknownVersion { xid, version }),
            },
            REPLY => Ok(Self::Reply(ReplyHeader::dec(&mut d)?, d.rest())),
            other => Err(XdrError::Invalid(other)),
        }
    }

    /// The transaction id of the message.
    pub fn xid(&self) -> u32 {
        match self {
            Self::Call(h, _) => h.xid,
            Self::Reply(h, _) => h.xid,
            Self::UnknownVersion { xid, .. } => *xid,
        }
    }
}

/// Splits one received message into header and body: [`Message::decode`].
///
/// # Errors
/// Those of [`Message::decode`].
pub fn decode_message(message: &Bytes) -> Result<Message> {
    Message::decode(message)
}

/// A call with its arguments. The verifier is AUTH_NONE. Payloads in `body` stay by reference.
pub fn call(xid: u32, prog: u32, vers: u32, proc: u32, cred: &OpaqueAuth, body: Enc) -> Enc {
    let mut e = Enc::new();
    words(&mut e, &[xid, CALL, RPC_VERSION, prog, vers, proc]);
    cred.enc(&mut e);
    OpaqueAuth::none().enc(&mut e);
    e.append(body);
    e
}

/// A reply to an executed call with its results. The verifier is AUTH_NONE.
pub fn reply(xid: u32, body: Enc) -> Enc {
    let mut e = Enc::of(&ReplyHeader::success(xid));
    e.append(body);
    e
}

impl Xdr for CallHeader {
    fn enc(&self, e: &mut Enc) {
        words(e, &[self.xid, CALL, RPC_VERSION, self.prog, self.vers, self.proc]);
        self.cred.enc(e);
        self.verf.enc(e);
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        let xid = d.u32()?;
        expect(d, CALL)?;
        expect(d, RPC_VERSION)?;
        Ok(Self {
            xid,
            prog: d.u32()?,
            vers: d.u32()?,
            proc: d.u32()?,
            cred: OpaqueAuth::dec(d)?,
            verf: OpaqueAuth::dec(d)?,
        })
    }
}

impl Xdr for ReplyHeader {
    fn enc(&self, e: &mut Enc) {
        words(e, &[self.xid, REPLY]);
        self.body.enc(e);
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        let xid = d.u32()?;
        expect(d, REPLY)?;
        Ok(Self { xid, body: ReplyBody::dec(d)? })
    }
}

fn words(e: &mut Enc, values: &[u32]) {
    values.iter().for_each(|&v| e.u32(v));
}

fn expect(d: &mut Dec<'_>, value: u32) -> Result<()> {
    match d.u32()? {
        v if v == value => Ok(()),
        v => Err(XdrError::Invalid(v)),
    }
}

crate::xdr_sample!(
    struct CallHeader {
        xid: u32,
        prog: u32,
        vers: u32,
        proc: u32,
        cred: OpaqueAuth,
        verf: OpaqueAuth,
    }
);
crate::xdr_sample!(
    struct ReplyHeader {
        xid: u32,
        body: ReplyBody,
    }
);

#[cfg(test)]
mod tests;
