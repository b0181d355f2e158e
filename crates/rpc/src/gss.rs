//! RPCSEC_GSS version 1 (RFC 2203): calls that a security context authenticates, and protects
//! against changes (`krb5i`) or readers (`krb5p`).
//!
//! This module has no mechanism. A [`Mechanism`] makes contexts from tokens, for example Kerberos 5
//! through the GSSAPI library of the system. `client` makes the contexts of users and seals their
//! calls. `server` accepts contexts and opens calls.

mod client;
pub(crate) mod server;
#[cfg(test)]
mod tests;

use bytes::Bytes;
pub use client::GssUser;
pub(crate) use client::{SEQUENCES_KEPT, Sealer, Transmission};
pub use hither_proto::rpc::gss::GssService;
use hither_proto::xdr::{Dec, Enc, Opaque, Xdr};
pub use server::{GssAcceptor, GssCaller, GssIds, IdsOf};
use std::sync::Arc;
use tokio::time::Instant;

/// Longest record that is unwrapped, in bytes.
const BODY_MAX_BYTES: usize = hither_proto::record::FRAGMENT_MAX_BYTES;

/// The owner of a context on the client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GssOwner {
    /// The machine, with the keys of its keytab.
    Machine,
    /// A user, with the tickets in the user's credential cache.
    User(u32),
}

/// Makes security contexts (RFC 2743). The methods block, possibly until a key distribution center
/// answers.
pub trait Mechanism: Send + Sync + std::fmt::Debug {
    /// Begins a context of `owner` with the service at `host`.
    ///
    /// # Errors
    /// The owner has no credentials.
    fn initiate(&self, owner: &GssOwner, host: &str) -> Result<Box<dyn Initiator>, GssError>;

    /// Accepts the only token of an initiator.
    ///
    /// # Errors
    /// The token is refused, or the server has no keys.
    fn accept(&self, token: &[u8]) -> Result<Accepted, GssError>;
}

/// The client's side of a context that is being made.
pub trait Initiator: Send {
    /// Processes the server's token; none at the first step.
    ///
    /// # Errors
    /// The key distribution center or the client refuses.
    fn step(&mut self, token: Option<&[u8]>) -> Result<Step, GssError>;
}

/// The outcome of a step.
pub enum Step {
    /// A token for the server, whose answer is processed next.
    Continue(Bytes),
    /// The context is complete.
    Done(Arc<dyn Context>),
}

/// A context that the server has accepted.
pub struct Accepted {
    /// The context.
    pub context: Arc<dyn Context>,
    /// The token for the initiator.
    pub token: Bytes,
    /// The initiator, for example `alice@EXAMPLE.ORG`.
    pub principal: Arc<str>,
    /// The local user that the mechanism's configuration names for the initiator.
    pub local: Option<String>,
}

/// An established context. Each method may be called by several threads at once.
pub trait Context: Send + Sync {
    /// The checksum of a message (RFC 2743 section 2.3.1).
    ///
    /// # Errors
    /// The context has expired.
    fn mic(&self, message: &[u8]) -> Result<Bytes, GssError>;

    /// Compares a message with its checksum (RFC 2743 section 2.3.2).
    ///
    /// # Errors
    /// They do not match, or the context has expired.
    fn verify(&self, message: &[u8], mic: &[u8]) -> Result<(), GssError>;

    /// Encrypts a message (RFC 2743 section 2.3.3).
    ///
    /// # Errors
    /// The context has expired.
    fn wrap(&self, message: &[u8]) -> Result<Bytes, GssError>;

    /// Decrypts a message (RFC 2743 section 2.3.4). A message that is not encrypted is an error.
    ///
    /// # Errors
    /// The message was changed, or the context has expired.
    fn unwrap(&self, message: &[u8]) -> Result<Bytes, GssError>;

    /// The end of the context; `None`: never.
    fn expires(&self) -> Option<Instant>;
}

/// The reason why there is no context.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GssError {
    /// The owner has no credentials.
    #[error("no Kerberos ticket: {0}")]
    NoCredentials(Arc<str>),
    /// The owner's credentials have expired.
    #[error("the Kerberos ticket has expired: {0}")]
    Expired(Arc<str>),
    /// The server accepts no context.
    #[error("Kerberos: the server refuses the ticket ({0}): see the log of the server")]
    Refused(Arc<str>),
    /// The server denies the call that makes a context, for example because the token is too old.
    #[error("Kerberos: {0}")]
    Denied(Arc<str>),
    /// Another failure, in the words of the mechanism.
    #[error("Kerberos: {0}")]
    Failed(Arc<str>),
}

/// Protects arguments or results (RFC 2203 section 5.3.2).
fn seal(
    context: &dyn Context,
    service: GssService,
    sequence: u32,
    body: Vec<Bytes>,
) -> Result<Vec<Bytes>, GssError> {
    if service == GssService::NONE {
        return Ok(body);
    }
    let bytes: usize = body.iter().map(Bytes::len).sum();
    let mut numbered = Vec::with_capacity(4 + bytes);
    numbered.extend_from_slice(&sequence.to_be_bytes());
    body.iter().for_each(|part| numbered.extend_from_slice(part));
    let mut e = Enc::new();
    if service == GssService::PRIVACY {
        Opaque::<BODY_MAX_BYTES>(context.wrap(&numbered)?).enc(&mut e);
    } else {
        let mic = context.mic(&numbered)?;
        Opaque::<BODY_MAX_BYTES>(numbered.into()).enc(&mut e);
        Opaque::<BODY_MAX_BYTES>(mic).enc(&mut e);
    }
    Ok(e.finish())
}

/// Checks and unprotects arguments or results. `None`: they are malformed, changed, or belong to
/// another request.
fn open(context: &dyn Context, service: GssService, sequences: &[u32], body: Bytes) -> Option<Bytes> {
    let numbered = match service {
        GssService::NONE => return Some(body),
        GssService::INTEGRITY => {
            let mut d = Dec::new(&body);
            let numbered = Opaque::<BODY_MAX_BYTES>::dec(&mut d).ok()?.0;
            let mic = Opaque::<BODY_MAX_BYTES>::dec(&mut d).ok()?.0;
            d.finish().ok()?;
            context.verify(&numbered, &mic).ok()?;
            numbered
        }
        GssService::PRIVACY => {
            let Opaque(wrapped) = Dec::all::<Opaque<BODY_MAX_BYTES>>(&body).ok()?;
            context.unwrap(&wrapped).ok()?
        }
        _ => return None,
    };
    let sequence = u32::from_be_bytes(*numbered.first_chunk()?);
    sequences.contains(&sequence).then(|| numbered.slice(4..))
}
