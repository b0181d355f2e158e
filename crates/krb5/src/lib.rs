//! Kerberos 5 contexts (RFC 4121), through MIT's GSSAPI library.
//!
//! This module knows no RPC. [`Kerberos`] finds the tickets of users and the keys of the machine
//! where the tools of the system keep them. A user's tickets are read with the user's identity,
//! which a thread takes for the time of the call.

mod identity;
mod tickets;

use bytes::Bytes;
use hither_rpc::gss::{Accepted, Context, GssError, GssOwner, Initiator, Mechanism, Step};
use identity::Identity;
use libgssapi::context::{ClientCtx, CtxFlags, SecurityContext, ServerCtx};
use libgssapi::error::{Error, MajorFlags};
use libgssapi::name::Name;
use libgssapi::oid::{GSS_MECH_KRB5, GSS_NT_HOSTBASED_SERVICE};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The service of NFS servers in principals, for example `nfs/server.example.org@EXAMPLE.ORG`.
const SERVICE: &str = "nfs";
/// Lifetime of contexts without an end (RFC 2744 section 3.5), in seconds.
const INDEFINITE_S: u64 = u32::MAX as u64;

/// Kerberos 5.
#[derive(Debug, Clone)]
pub struct Kerberos {
    keytab: PathBuf,
}

impl Kerberos {
    /// Kerberos with the keys of the machine in `keytab`.
    pub fn new(keytab: &Path) -> Self {
        Self { keytab: keytab.to_path_buf() }
    }

    /// The keytab of the system: `KRB5_KTNAME`, or `/etc/krb5.keytab`.
    pub fn system() -> Self {
        let named = std::env::var_os("KRB5_KTNAME").and_then(|name| name.into_string().ok());
        let keytab = named.as_deref().map_or("/etc/krb5.keytab", |name| name.trim_start_matches("FILE:"));
        Self::new(Path::new(keytab))
    }

    /// Checks that the keytab has keys to accept contexts. Blocks.
    ///
    /// # Errors
    /// The file is missing, unreadable or empty.
    pub fn check_keys(&self) -> Result<(), GssError> {
        tickets::acceptor(&self.keytab).map(drop).map_err(|e| self.keytab_error(&e))
    }

    fn keytab_error(&self, e: &Error) -> GssError {
        GssError::Failed(format!("keytab {}: {}", self.keytab.display(), said(e)).into())
    }
}

impl Mechanism for Kerberos {
    fn initiate(&self, owner: &GssOwner, host: &str) -> Result<Box<dyn Initiator>, GssError> {
        let name = format!("{SERVICE}@{host}");
        let target = Name::new(name.as_bytes(), Some(GSS_NT_HOSTBASED_SERVICE)).map_err(|e| failed(&e))?;
        let identity = Identity::of(owner);
        let cred = {
            let _as_owner = identity.take()?;
            match owner {
                GssOwner::Machine => tickets::machine(&self.keytab).map_err(|e| self.keytab_error(&e))?,
                GssOwner::User(uid) => tickets::user(*uid).map_err(|e| no_ticket(&e))?,
            }
        };
        let context = ClientCtx::new(Some(cred), target, CtxFlags::GSS_C_MUTUAL_FLAG, Some(GSS_MECH_KRB5));
        Ok(Box::new(Client { context: Some(context), identity }))
    }

    fn accept(&self, token: &[u8]) -> Result<Accepted, GssError> {
        let cred = tickets::acceptor(&self.keytab).map_err(|e| self.keytab_error(&e))?;
        let mut context = ServerCtx::new(Some(cred));
        let token = context.step(token, None).map_err(|e| failed(&e))?;
        if !context.is_complete() {
            return Err(GssError::Failed("the initiator needs more than one token".into()));
        }
        let name = context.source_name().map_err(|e| failed(&e))?;
        // `auth_to_local` of krb5.conf.
        let local = name.local_name(Some(GSS_MECH_KRB5)).ok();
        let local = local.and_then(|local| String::from_utf8(local.to_vec()).ok());
        let shown = name.display_name().map_err(|e| failed(&e))?;
        let principal = String::from_utf8_lossy(&shown).into();
        let token = token.map(|token| Bytes::copy_from_slice(&token)).unwrap_or_default();
        Ok(Accepted { context: established(context)?, token, principal, local })
    }
}

/// The initiator's side of a context that is being made.
struct Client {
    context: Option<ClientCtx>,
    identity: Identity,
}

impl Initiator for Client {
    fn step(&mut self, token: Option<&[u8]>) -> Result<Step, GssError> {
        let Some(mut context) = self.context.take() else {
            return Err(GssError::Failed("the context is complete".into()));
        };
        let sent = {
            let _as_owner = self.identity.take()?;
            context.step(token, None).map_err(|e| step_error(&e))?
        };
        if context.is_complete() && sent.is_none() {
            return Ok(Step::Done(established(context)?));
        }
        self.context = Some(context);
        match sent {
            Some(token) => Ok(Step::Continue(Bytes::copy_from_slice(&token))),
            None => Err(GssError::Failed("the server's token is incomplete".into())),
        }
    }
}

/// An established context. One thread at a time may use it.
struct Established<C> {
    context: Mutex<C>,
    expires: Option<Instant>,
}

fn established<C: SecurityContext + Send + 'static>(context: C) -> Result<Arc<dyn Context>, GssError> {
    // A ticket in its last second has no time left.
    let left =
        context.lifetime().or_else(|e| if is_expired(&e) { Ok(Duration::ZERO) } else { Err(failed(&e)) })?;
    let expires = (left.as_secs() < INDEFINITE_S).then(|| Instant::now() + left.max(Duration::from_secs(1)));
    Ok(Arc::new(Established { context: Mutex::new(context), expires }))
}

impl<C: SecurityContext + Send> Context for Established<C> {
    fn mic(&self, message: &[u8]) -> Result<Bytes, GssError> {
        copied(self.context.lock().get_mic(message))
    }

    fn verify(&self, message: &[u8], mic: &[u8]) -> Result<(), GssError> {
        self.context.lock().verify_mic(message, mic).map_err(|e| failed(&e))
    }

    fn wrap(&self, message: &[u8]) -> Result<Bytes, GssError> {
        copied(self.context.lock().wrap(true, message))
    }

    fn unwrap(&self, message: &[u8]) -> Result<Bytes, GssError> {
        if !is_encrypted(message) {
            return Err(GssError::Failed("the peer does not encrypt".into()));
        }
        copied(self.context.lock().unwrap(message))
    }

    fn expires(&self) -> Option<Instant> {
        self.expires
    }
}

/// Whether a Wrap token has confidentiality (RFC 4121 section 4.2.6.2). The tokens of RFC 1964,
/// with the obsolete ciphers DES and RC4, count as not encrypted.
fn is_encrypted(token: &[u8]) -> bool {
    const TOKEN_ID: [u8; 2] = [5, 4];
    const SEALED: u8 = 2;
    token.strip_prefix(&TOKEN_ID).and_then(|rest| rest.first()).is_some_and(|flags| flags & SEALED != 0)
}

fn copied(made: Result<libgssapi::util::Buf, Error>) -> Result<Bytes, GssError> {
    made.map(|buf| Bytes::copy_from_slice(&buf)).map_err(|e| failed(&e))
}

fn failed(e: &Error) -> GssError {
    if is_expired(e) { GssError::Expired(said(e).into()) } else { GssError::Failed(said(e).into()) }
}

fn is_expired(e: &Error) -> bool {
    let ended = [MajorFlags::GSS_S_CREDENTIALS_EXPIRED, MajorFlags::GSS_S_CONTEXT_EXPIRED];
    ended.into_iter().any(|routine| is(e, routine))
}

/// Routine errors are numbers and not single bits (RFC 2744 section 3.9.1).
fn is(e: &Error, routine: MajorFlags) -> bool {
    e.major.bits() & 0xff_0000 == routine.bits() & 0xff_0000
}

fn no_ticket(e: &Error) -> GssError {
    if is_expired(e) { failed(e) } else { GssError::NoCredentials(said(e).into()) }
}

fn step_error(e: &Error) -> GssError {
    if is(e, MajorFlags::GSS_S_NO_CRED) { no_ticket(e) } else { failed(e) }
}

/// The words of the library in one line.
fn said(e: &Error) -> String {
    e.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only Wrap tokens of RFC 4121 with the flag Sealed are encrypted. MIC tokens, tokens of RFC
    /// 1964 and short ones are not.
    #[test]
    fn tokens_without_confidentiality_are_found() {
        for (token, want) in [
            (&[5, 4, 2, 0xff][..], true),
            (&[5, 4, 7, 0xff], true),
            (&[5, 4, 5, 0xff], false),
            (&[4, 4, 2, 0xff], false),
            (&[0x60, 0x2b, 6, 9], false),
            (&[5, 4], false),
            (&[], false),
        ] {
            assert_eq!(is_encrypted(token), want, "{token:?}");
        }
    }
}
