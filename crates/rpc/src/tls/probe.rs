//! The AUTH_TLS probe (RFC 9289 section 4.1): one NULL call and its bounded reply.
//!
//! The same NULL call with AUTH_NONE confirms a session: its reply shows that the server accepted
//! the client certificate.

use super::STARTTLS;
use super::error::TlsError;
use bytes::Bytes;
use hither_proto::record;
use hither_proto::rpc::{
    self, AcceptStat, AcceptedReply, AuthFlavor, DeniedReply, Message, OpaqueAuth, ReplyBody, VersionRange,
};
use hither_proto::xdr::{Enc, Opaque};

/// Longest reply to a NULL call in bytes: a header with a verifier of 400 bytes.
pub(super) const REPLY_MAX_BYTES: usize = 512;

/// Procedure 0 of every program (RFC 5531 section 12.1).
const NULL: u32 = 0;

/// The program that the connection will use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// Program number.
    pub number: u32,
    /// Version of the program.
    pub version: u32,
}

impl Program {
    /// The framed probe.
    pub(super) fn probe(self, xid: u32) -> Vec<u8> {
        self.null(xid, &OpaqueAuth { flavor: AuthFlavor::TLS, body: Opaque::default() })
    }

    /// The framed NULL call that confirms a session.
    pub(super) fn confirmation(self, xid: u32) -> Vec<u8> {
        self.null(xid, &OpaqueAuth::none())
    }

    fn null(self, xid: u32, credential: &OpaqueAuth) -> Vec<u8> {
        record::frame(rpc::call(xid, self.number, self.version, NULL, credential, Enc::new())).concat()
    }
}

/// Judges the reply to the probe: `Ok` if the server offers TLS.
pub(super) fn judge(reply: &Bytes, xid: u32) -> Result<(), TlsError> {
    let not_offered = |why: &str| Err(TlsError::NotOffered(why.to_owned()));
    let (header, results) = match Message::decode(reply) {
        Ok(Message::Reply(header, results)) if header.xid == xid => (header, results),
        Ok(_) => return not_offered("its first message is no reply to the AUTH_TLS probe"),
        Err(_) => return not_offered("its answer to the AUTH_TLS probe is not RPC"),
    };
    match header.body {
        ReplyBody::Accepted(AcceptedReply { stat: AcceptStat::ProgUnavail, .. }) => {
            Err(TlsError::NoSuchVersion { offered: None })
        }
        ReplyBody::Accepted(AcceptedReply {
            stat: AcceptStat::ProgMismatch(VersionRange { low, high }),
            ..
        }) => Err(TlsError::NoSuchVersion { offered: Some((low, high)) }),
        ReplyBody::Accepted(AcceptedReply { verf, stat: AcceptStat::Success }) => {
            if verf.flavor == AuthFlavor::NONE && verf.body.0[..] == STARTTLS[..] && results.is_empty() {
                Ok(())
            } else {
                not_offered("its answer to the AUTH_TLS probe lacks STARTTLS")
            }
        }
        ReplyBody::Accepted(AcceptedReply { stat, .. }) => {
            not_offered(&format!("it answers the AUTH_TLS probe with {stat:?}"))
        }
        ReplyBody::Denied(DeniedReply::AuthError(stat)) => {
            not_offered(&format!("it refuses the AUTH_TLS probe: {stat:?}"))
        }
        ReplyBody::Denied(DeniedReply::RpcMismatch(_)) => not_offered("it does not speak RPC version 2"),
    }
}
