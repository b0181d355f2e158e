//! Why a TLS session with a server did not begin. Each reason is one line that names the cure.

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, PeerIncompatible};
use std::io;

/// The reason why a client has no TLS session with a server. It travels inside an [`io::Error`];
/// [`TlsError::of`] finds it there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// The server did not answer the AUTH_TLS probe with STARTTLS (RFC 9289 section 4.1).
    #[error(
        "the server offers no TLS ({0}), and hither does not go on in clear text: set up TLS at the server, use \
         xprtsec=direct if it expects TLS from the first byte, or give up encryption with xprtsec=none"
    )]
    NotOffered(String),
    /// The server answered the probe that it lacks the program or the version.
    #[error("the server does not offer this version of the program")]
    NoSuchVersion {
        /// Lowest and highest version of the server; `None`: it lacks the program.
        offered: Option<(u32, u32)>,
    },
    /// No trusted authority signed the certificate.
    #[error(
        "no trusted authority signed the server's certificate: give the certificate of its authority with \
         tls-ca=FILE"
    )]
    UnknownAuthority,
    /// The certificate has other names.
    #[error(
        "the server's certificate is for {presented} and not for {expected}: mount by a name of the certificate, or \
         give one with tls-server-name=NAME"
    )]
    WrongName {
        /// The name that the client expects.
        expected: String,
        /// The names of the certificate.
        presented: String,
    },
    /// The validity of the certificate has ended.
    #[error("the server's certificate has expired: renew it, or correct the clock of this machine")]
    Expired,
    /// The validity of the certificate has not begun.
    #[error("the server's certificate is not valid yet: correct the clock of this machine or of its issuer")]
    NotYetValid,
    /// A revocation list names the certificate.
    #[error("the server's certificate is revoked (tls-crl): give the server a new certificate")]
    Revoked,
    /// No revocation list covers the issuer.
    #[error(
        "tls-crl has no revocation list of the issuer of the server's certificate: add that list to the file"
    )]
    RevocationUnknown,
    /// The revocation list is too old.
    #[error("the revocation list in tls-crl has expired: fetch the issuer's current list")]
    RevocationListExpired,
    /// Another fault of the certificate.
    #[error("the server's certificate is not usable ({0}): issue a server certificate with a subjectAltName")]
    BadCertificate(String),
    /// The server requires a client certificate, and the mount has none.
    #[error(
        "the server requires a client certificate: give tls-cert=FILE and tls-key=FILE, with xprtsec=mtls or direct"
    )]
    CertificateRequired,
    /// The server does not accept the client certificate.
    #[error(
        "the server refuses the client certificate of tls-cert ({0}): check its validity, and that the server trusts \
         its authority"
    )]
    CertificateRefused(String),
    /// The bytes of the server are not TLS.
    #[error(
        "the server's answer is not TLS: check port=, and choose xprtsec=tls for RPC-with-TLS (RFC 9289) or \
         xprtsec=direct for TLS from the first byte"
    )]
    NotTls,
    /// The server ended the connection before the session began.
    #[error(
        "the server closed the connection {0}: check port= and the server's log, and choose xprtsec=tls for \
         RPC-with-TLS (RFC 9289) or xprtsec=direct for TLS from the first byte"
    )]
    Closed(&'static str),
    /// The server was silent for [`super::HANDSHAKE_TIMEOUT`].
    #[error(
        "the server does not answer in TLS: check port= and the server's load, and choose xprtsec=tls for RPC-with-TLS \
         (RFC 9289) or xprtsec=direct for TLS from the first byte"
    )]
    Silent,
    /// The server has no common version of TLS.
    #[error("the server does not support TLS 1.3, which RPC-with-TLS requires: update or reconfigure it")]
    OldVersion,
    /// The server refuses [`super::ALPN`].
    #[error(
        "the server refuses the protocol \"sunrpc\" (ALPN, RFC 9289): use xprtsec=direct if it is a TLS proxy in \
         front of an NFS server"
    )]
    NoAlpn,
    /// The server sent bytes between its STARTTLS and the handshake.
    #[error("the server sent data in clear text after it agreed to TLS: the connection may be tampered with")]
    Injected,
    /// Another failure.
    #[error("TLS with the server failed ({0}): see the server's log")]
    Failed(String),
}

impl TlsError {
    /// The reason inside an error of a connection attempt, if TLS is the reason.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// Whether a later attempt may succeed without a change of configuration.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Silent)
    }

    /// Translates an error of the TLS stream. `has_certificate`: the client offered a certificate.
    /// `during` names the phase for [`TlsError::Closed`].
    pub(super) fn from_stream(error: &io::Error, has_certificate: bool, during: &'static str) -> Self {
        if let Some(known) = Self::of(error) {
            return known.clone();
        }
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(error) => Self::from_rustls(error, has_certificate),
            None if is_closed(error) => Self::Closed(during),
            None => Self::Failed(error.to_string()),
        }
    }

    fn from_rustls(error: &rustls::Error, has_certificate: bool) -> Self {
        match error {
            rustls::Error::InvalidCertificate(fault) => Self::from_certificate(fault),
            rustls::Error::AlertReceived(alert) => Self::from_alert(*alert, has_certificate),
            rustls::Error::InvalidCertRevocationList(_) => Self::RevocationUnknown,
            rustls::Error::InvalidMessage(_) => Self::NotTls,
            rustls::Error::PeerIncompatible(
                PeerIncompatible::ServerDoesNotSupportTls12Or13
                | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig,
            ) => Self::OldVersion,
            other => Self::Failed(other.to_string()),
        }
    }

    fn from_certificate(fault: &CertificateError) -> Self {
        match fault {
            // BadSignature: an authority of the same name with another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownAuthority,
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYetValid,
            CertificateError::Revoked => Self::Revoked,
            CertificateError::UnknownRevocationStatus => Self::RevocationUnknown,
            CertificateError::ExpiredRevocationList
            | CertificateError::ExpiredRevocationListContext { .. } => Self::RevocationListExpired,
            CertificateError::NotValidForNameContext { expected, presented } => {
                Self::WrongName { expected: shown(expected), presented: names(presented) }
            }
            other => Self::BadCertificate(other.to_string()),
        }
    }

    fn from_alert(alert: AlertDescription, has_certificate: bool) -> Self {
        use AlertDescription as A;
        match alert {
            A::CertificateRequired => Self::CertificateRequired,
            A::BadCertificate
            | A::UnsupportedCertificate
            | A::CertificateRevoked
            | A::CertificateExpired
            | A::CertificateUnknown
            | A::UnknownCA
            | A::DecryptError
            | A::AccessDenied
                if has_certificate =>
            {
                Self::CertificateRefused(format!("{alert:?}"))
            }
            A::ProtocolVersion => Self::OldVersion,
            A::NoApplicationProtocol => Self::NoAlpn,
            other => Self::Failed(format!("alert {other:?}")),
        }
    }
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> Self {
        let kind = match error {
            TlsError::Silent => io::ErrorKind::TimedOut,
            _ => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, error)
    }
}

/// Whether the peer ended the connection.
pub(super) fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof, WriteZero};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe | WriteZero)
}

fn shown(name: &ServerName<'_>) -> String {
    name.to_str().into_owned()
}

/// The names of a certificate for a message: at most four, escaped.
fn names(presented: &[String]) -> String {
    const NAMES_MAX: usize = 4;
    let mut shown: Vec<String> = presented
        .iter()
        .take(NAMES_MAX)
        .map(|name| {
            // rustls describes a name as `DnsName("server")` or `IpAddress(192.0.2.1)`.
            let inner = name.split_once('(').map_or(name.as_str(), |(_, rest)| rest.trim_end_matches(')'));
            inner.trim_matches('"').chars().take(64).flat_map(char::escape_default).collect()
        })
        .collect();
    if presented.len() > NAMES_MAX {
        shown.push("...".into());
    }
    if shown.is_empty() { "no name".into() } else { shown.join(", ") }
}
