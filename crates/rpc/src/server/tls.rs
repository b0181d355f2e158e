//! TLS of a server's connections (RFC 9289): its files, the handshake, and the transport that
//! services see.
//!
//! The module knows no records and no calls. A connection asks for TLS with an AUTH_TLS call, which
//! `connection` recognises. [`Tls`] keeps the keys in use. [`Tls::reload`] reads the files again
//! and affects later handshakes. Sessions of earlier keys cannot be resumed with later ones.
//!
//! Only TLS 1.3 is offered, without early data. A client that offers ALPN names must offer that of
//! RPC. The Linux client offers none (tlshd of ktls-utils 1.0). A client certificate is requested
//! when authorities for clients are configured. A presented certificate must be valid.
//! Exports decide whether a client without a certificate may use them.

use crate::tls::{ALPN, Identity, provider, read_authorities, read_revocations};
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{HandshakeKind, ServerConfig, ServerConnection};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_parser::extensions::GeneralName;

/// Longest time from an AUTH_TLS call to the end of its handshake.
pub(super) const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Memory of a handshake. A ClientHello and a client's certificates have at most 64 KiB each, and
/// only one of them is in memory.
pub(super) const HANDSHAKE_BYTES: usize = 64 << 10;
/// Most bytes of replies that are encrypted and not yet sent: one TLS record.
pub(super) const UNSENT_BYTES: usize = 16 << 10;
/// Most names of a client certificate.
const NAMES_MAX: usize = 32;
/// Longest name of a client certificate, in bytes. Longer names are not used.
const NAME_MAX_BYTES: usize = 255;

/// The protection of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Transport {
    /// No TLS.
    #[default]
    Plain,
    /// TLS without a client certificate.
    Tls,
    /// TLS with a verified client certificate.
    MutualTls {
        /// The common name, then the alternative names (DNS, e-mail, URI). May be empty.
        names: Arc<[String]>,
    },
}

impl Transport {
    /// The first name of the client certificate.
    pub fn subject(&self) -> Option<&str> {
        self.names().first().map(String::as_str)
    }

    /// All names of the client certificate.
    pub fn names(&self) -> &[String] {
        match self {
            Self::MutualTls { names } => names,
            Self::Plain | Self::Tls => &[],
        }
    }

    /// Whether two connections have the same protection, with the same first name in the client
    /// certificate.
    pub fn is_same_party(&self, other: &Self) -> bool {
        self.word() == other.word() && self.subject() == other.subject()
    }

    /// `none`, `tls` or `mtls`, as in `xprtsec` of exports(5).
    pub fn word(&self) -> &'static str {
        match self {
            Self::Plain => "none",
            Self::Tls => "tls",
            Self::MutualTls { .. } => "mtls",
        }
    }
}

/// The word, and the subject of the client certificate.
impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        self.subject().map_or(Ok(()), |subject| write!(f, " {subject}"))
    }
}

/// The PEM files of a server's TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate and the certificates of its issuers.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// Authorities of client certificates. `None`: no client certificate is requested.
    pub client_authorities: Option<PathBuf>,
    /// Revocation lists of these authorities.
    pub revocations: Option<PathBuf>,
}

/// The TLS keys of a server.
pub struct Tls {
    files: TlsFiles,
    keys: Mutex<Keys>,
}

/// The content of the files.
#[derive(Clone)]
struct Keys {
    config: Arc<ServerConfig>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be used. The error names it.
    pub fn new(files: TlsFiles) -> io::Result<Arc<Self>> {
        let keys = Mutex::new(Keys::read(&files)?);
        Ok(Arc::new(Self { files, keys }))
    }

    /// Reads the files again, for later handshakes.
    ///
    /// # Errors
    /// Those of [`Tls::new`]. The earlier keys stay in use.
    pub fn reload(&self) -> io::Result<()> {
        let keys = Keys::read(&self.files)?;
        *self.keys.lock() = keys;
        Ok(())
    }

    /// Checks the certificates of a client against the present authorities and revocation lists.
    pub(super) fn check(&self, chain: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        let keys = self.keys.lock().clone();
        keys.check(chain)
    }
}

impl Keys {
    fn read(files: &TlsFiles) -> io::Result<Self> {
        let identity = Identity::read(&files.certificate, &files.key)?;
        let clients = match &files.client_authorities {
            Some(path) => Some(client_verifier(path, files)?),
            None => None,
        };
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?;
        let builder = match &clients {
            Some(clients) => builder.with_client_cert_verifier(clients.clone()),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(identity.chain, identity.key).map_err(|e| {
            let (certificate, key) = (files.certificate.display(), files.key.display());
            invalid(format!("{certificate} and {key}: not a certificate and its private key ({e})"))
        })?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Tickets carry the whole session, so clients that return cost no memory.
        config.ticketer = rustls::crypto::ring::Ticketer::new().map_err(io::Error::other)?;
        Ok(Self { config: Arc::new(config), clients })
    }

    fn check(&self, chain: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        match (&self.clients, chain) {
            (Some(clients), [first, issuers @ ..]) => {
                clients.verify_client_cert(first, issuers, UnixTime::now()).map(|_| ())
            }
            _ => Ok(()),
        }
    }
}

/// The verifier of client certificates.
fn client_verifier(authorities: &PathBuf, files: &TlsFiles) -> io::Result<Arc<dyn ClientCertVerifier>> {
    let roots = read_authorities(Some(authorities))?;
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    if let Some(path) = &files.revocations {
        builder = builder.with_crls(read_revocations(path)?);
    }
    builder.allow_unauthenticated().build().map_err(|e| {
        let lists = files.revocations.as_ref().unwrap_or(authorities).display();
        invalid(format!("{lists}: client certificates cannot be verified with it ({e})"))
    })
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// A TLS session of a connection.
pub(super) struct Session {
    pub transport: Transport,
    /// The client's certificates.
    pub chain: Vec<CertificateDer<'static>>,
}

/// Performs the server's part of a handshake. The caller limits its time.
///
/// # Errors
/// The reason, for the log.
pub(super) async fn accept<S>(tls: &Tls, stream: S) -> Result<(TlsStream<S>, Session), String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let keys = tls.keys.lock().clone();
    let accepted = TlsAcceptor::from(keys.config.clone()).accept(stream).await;
    let mut stream = accepted.map_err(|e| e.to_string())?;
    let connection = stream.get_mut().1;
    connection.set_buffer_limit(Some(UNSENT_BYTES));
    let session = session(connection);
    // A resumed session has the certificate of an earlier handshake.
    if connection.handshake_kind() == Some(HandshakeKind::Resumed) {
        keys.check(&session.chain).map_err(|e| e.to_string())?;
    }
    Ok((stream, session))
}

fn session(connection: &ServerConnection) -> Session {
    let chain: Vec<_> = connection.peer_certificates().unwrap_or(&[]).to_vec();
    let transport = match chain.first() {
        Some(certificate) => Transport::MutualTls { names: names(certificate).into() },
        None => Transport::Tls,
    };
    Session { transport, chain }
}

/// The names in a client certificate, the common name first.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else { return Vec::new() };
    let common = parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let others = parsed.subject_alternative_name().ok().flatten();
    let others = others.iter().flat_map(|names| &names.value.general_names);
    let others = others.filter_map(|name| match name {
        GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => Some(*name),
        _ => None,
    });
    let mut names: Vec<String> = Vec::new();
    for name in common.chain(others) {
        let is_usable = (1..=NAME_MAX_BYTES).contains(&name.len()) && !name.contains(char::is_control);
        if is_usable && names.len() < NAMES_MAX && names.iter().all(|known| known != name) {
            names.push(name.into());
        }
    }
    names
}
