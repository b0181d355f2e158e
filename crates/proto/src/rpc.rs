//! ONC RPC version 2 (RFC 5531): the headers before the arguments of a call and before the results
//! of a reply.
//!
//! It knows nothing of the programs behind it, of transports, or of matching replies to calls. A
//! message is split into its header and its body. The body is a slice of the received buffer, so
//! code that knows the procedure decodes it without a copy. This module speaks two authentication
//! flavors (AUTH_NONE, AUTH_SYS); others pass through as opaque bytes.

mod program;

pub use program::Procedure;

use crate::xdr::{Dec, Enc, List, Opaque, Result, Xdr, XdrError};
use crate::{xdr_enum, xdr_struct, xdr_union};
use bytes::Bytes;

/// The only version of RPC there is.
pub const RPC_VERSION: u32 = 2;

/// Longest body of a credential or verifier (RFC 5531 section 8.2).
pub const AUTH_MAX_BYTES: usize = 400;

/// Most supplementary groups that AUTH_SYS can carry (RFC 5531 appendix A).
pub const AUTH_SYS_MAX_GIDS: usize = 16;

const CALL: u32 = 0;
const REPLY: u32 = 1;

xdr_enum! {
    /// How a caller authenticates (`auth_flavor`, RFC 5531 section 8.2 and the IANA registry).
    pub enum AuthFlavor {
        /// No identity.
        NONE = 0,
        /// Numeric user and groups, believed.
        SYS = 1,
        /// A short hand for an earlier credential.
        SHORT = 2,
        /// Diffie-Hellman (obsolete).
        DH = 3,
        /// RPCSEC_GSS (RFC 2203).
        GSS = 6,
        /// Asks for TLS on this connection (RFC 9289).
        TLS = 7,
        /// Pseudo flavor: Kerberos 5, integrity of the header only (RFC 2623), as MNT lists it.
        KRB5 = 390003,
        /// Pseudo flavor: Kerberos 5 with integrity.
        KRB5I = 390004,
        /// Pseudo flavor: Kerberos 5 with privacy.
        KRB5P = 390005,
    }

    /// Why a credential was refused (`auth_stat`, RFC 5531 section 9).
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
        /// For an unknown reason.
        FAILED = 7,
        /// Kerberos: some error.
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
        /// How to read the body.
        pub flavor: AuthFlavor,
        /// As the flavor defines it.
        pub body: Opaque<AUTH_MAX_BYTES>,
    }

    /// Body of an AUTH_SYS credential (`authsys_parms`, RFC 5531 appendix A).
    pub struct AuthSys {
        /// Any number of the caller's.
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

    /// The versions that a peer speaks, when it does not speak the one that was asked for.
    #[derive(Copy)]
    pub struct VersionRange {
        /// Lowest.
        pub low: u32,
        /// Highest.
        pub high: u32,
    }

    /// The answer of a server that believed the caller (`accepted_reply`).
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
        /// It was executed.
        Success = 0,
        /// The program is not served here.
        ProgUnavail = 1,
        /// The program is served, in other versions.
        ProgMismatch(VersionRange) = 2,
        /// The procedure does not exist.
        ProcUnavail = 3,
        /// The arguments could not be decoded.
        GarbageArgs = 4,
        /// The server failed, for example to allocate memory.
        SystemErr = 5,
    }

    /// Why a call was not executed at all (`rejected_reply`).
    pub enum DeniedReply {
        /// The server does not speak RPC version 2.
        RpcMismatch(VersionRange) = 0,
        /// The server does not believe the caller.
        AuthError(AuthStat) = 1,
    }

    /// Accepted or denied (`reply_body`).
    pub enum ReplyBody {
        /// The caller was believed.
        Accepted(AcceptedReply) = 0,
        /// The caller was refused.
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

    /// The AUTH_SYS credential, or `None` when the flavor is another one.
    ///
    /// # Errors
    /// The body is not a well-formed `authsys_parms`; a server answers AUTH_BADCRED.
    pub fn as_sys(&self) -> Result<Option<AuthSys>> {
        match self.flavor {
            AuthFlavor::SYS => Dec::all(&self.body.0).map(Some),
            _ => Ok(None),
        }
    }
}

/// All of a call before its arguments (`call_body`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallHeader {
    /// Matches the reply to the call, and a retransmitted call to the first one.
    pub xid: u32,
    /// Program number.
    pub prog: u32,
    /// Version of the program.
    pub vers: u32,
    /// Procedure number.
    pub proc: u32,
    /// The caller.
    pub cred: OpaqueAuth,
    /// Proof of it.
    pub verf: OpaqueAuth,
}

/// All of a reply before its results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The call's.
    pub xid: u32,
    /// The status of the call.
    pub body: ReplyBody,
}

/// One RPC message; the body is a slice of the received buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A call and its arguments.
    Call(CallHeader, Bytes),
    /// A reply and its results (empty unless the call was executed).
    Reply(ReplyHeader, Bytes),
    /// A call in an unknown version of RPC: to be answered with [`DeniedReply::RpcMismatch`]. Its
    /// layout is unknown, so nothing but the xid was read.
    UnknownVersion {
        /// Of the call.
        xid: u32,
        /// The version it claims.
        version: u32,
    },
}

impl CallHeader {
    /// The arguments' bytes follow the returned header.
    pub fn begin(&self) -> Enc {
        Enc::of(self)
    }
}

impl ReplyHeader {
    /// The call was executed: results follow.
    pub fn success(xid: u32) -> Self {
        Self::accepted(xid, AcceptStat::Success)
    }

    /// The call was accepted with `stat`; the verifier is AUTH_NONE.
    pub fn accepted(xid: u32, stat: AcceptStat) -> Self {
        Self { xid, body: ReplyBody::Accepted(AcceptedReply { verf: OpaqueAuth::none(), stat }) }
    }

    /// The call was refused.
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
    /// The peer sent something that is not an RPC message; the connection is of no more use.
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

    /// The transaction id of any message.
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
/// As [`Message::decode`].
pub fn decode_message(message: &Bytes) -> Result<Message> {
    Message::decode(message)
}

/// A call with its arguments; the verifier is AUTH_NONE. Payloads in `body` stay by reference.
pub fn call(xid: u32, prog: u32, vers: u32, proc: u32, cred: &OpaqueAuth, body: Enc) -> Enc {
    let mut e = Enc::new();
    words(&mut e, &[xid, CALL, RPC_VERSION, prog, vers, proc]);
    cred.enc(&mut e);
    OpaqueAuth::none().enc(&mut e);
    e.append(body);
    e
}

/// A reply to an executed call with its results; the verifier is AUTH_NONE.
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
