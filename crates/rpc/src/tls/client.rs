//! The TLS settings of a client, and the sessions that its connections share.
//!
//! This module knows no sockets. A [`ClientTls`] reads the files of authorities, certificate, key
//! and revocation lists, and makes the configuration of rustls from them. Before each connection it
//! compares the files with those that it read. A changed file is read again, so that a renewed
//! certificate needs no new mount. All connections of a mount share one [`ClientTls`], and with it
//! the tickets by which a reconnect resumes its session (RFC 8446 section 2.2).

use super::{ALPN, Identity, provider, read_authorities, read_revocations};
use parking_lot::Mutex;
use rustls::client::{ResolvesClientCert, Resumption, WebPkiServerVerifier};
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, ClientConfig, HandshakeKind, SignatureScheme};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::timeout;

/// Server names with remembered sessions. rustls keeps up to eight tickets of each.
const SESSIONS_MAX: usize = 8;

/// Longest wait for the files. They may be on a file system whose server is silent.
const FILES_TIMEOUT: Duration = Duration::from_secs(2);

/// Usual files of the system's authorities. A change of them makes the client read all again.
const SYSTEM_AUTHORITIES: [&str; 2] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// How a TLS session begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsStart {
    /// After an AUTH_TLS probe (RFC 9289 section 4.1).
    Probe,
    /// With the first byte of the connection, without ALPN, as TLS proxies expect it.
    Direct,
}

/// The files of a client certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityFiles {
    /// PEM file of the certificate and its issuers.
    pub certificate: PathBuf,
    /// PEM file of the private key.
    pub key: PathBuf,
}

/// The TLS settings of one mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// How a session begins.
    pub start: TlsStart,
    /// DNS name or IP address that the server's certificate must have.
    pub server_name: String,
    /// PEM file of the trusted authorities; `None`: those of this system.
    pub authorities: Option<PathBuf>,
    /// The client certificate, if the client has one.
    pub identity: Option<IdentityFiles>,
    /// PEM file of revocation lists. With it, a list must cover every certificate of the server.
    pub revocations: Option<PathBuf>,
}

/// The sessions of a client so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsReport {
    /// Cipher suite of the latest session, for example `AES-256-GCM`.
    pub cipher: String,
    /// The name that the server's certificate has.
    pub server_name: String,
    /// Whether the client offers a certificate.
    pub has_certificate: bool,
    /// Number of full handshakes.
    pub full: u64,
    /// Number of resumed sessions.
    pub resumed: u64,
}

/// The shared TLS state of a client.
#[derive(Debug)]
pub struct ClientTls {
    settings: TlsSettings,
    server_name: ServerName<'static>,
    loaded: Mutex<Loaded>,
    requests: Arc<AtomicU64>,
    full: AtomicU64,
    resumed: AtomicU64,
    cipher: Mutex<Option<CipherSuite>>,
}

#[derive(Debug)]
struct Loaded {
    config: Arc<ClientConfig>,
    stamps: Vec<Stamp>,
}

/// Identity of a file's contents: device, inode, time of change in nanoseconds, length in bytes.
/// `None`: the file is missing.
type Stamp = Option<(u64, u64, i128, u64)>;

impl ClientTls {
    /// Reads all files. Blocks.
    ///
    /// # Errors
    /// One line that names the unusable file, or the server name that no certificate can have.
    pub fn new(settings: TlsSettings) -> io::Result<Self> {
        let name = settings.server_name.as_str();
        let server_name = ServerName::try_from(name.to_owned()).map_err(|_| {
            let text = format!("'{name}' is neither a DNS name nor an IP address: give tls-server-name=NAME");
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })?;
        let requests = Arc::<AtomicU64>::default();
        let loaded = Mutex::new(Loaded::read(&settings, requests.clone())?);
        Ok(Self {
            settings,
            server_name,
            loaded,
            requests,
            full: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            cipher: Mutex::default(),
        })
    }

    /// The settings.
    pub fn settings(&self) -> &TlsSettings {
        &self.settings
    }

    /// The sessions so far; `None` before the first.
    pub fn report(&self) -> Option<TlsReport> {
        let cipher = (*self.cipher.lock())?;
        Some(TlsReport {
            cipher: cipher_name(cipher),
            server_name: self.settings.server_name.clone(),
            has_certificate: self.has_certificate(),
            full: self.full.load(Relaxed),
            resumed: self.resumed.load(Relaxed),
        })
    }

    pub(super) fn has_certificate(&self) -> bool {
        self.settings.identity.is_some()
    }

    pub(super) fn server_name(&self) -> &ServerName<'static> {
        &self.server_name
    }

    /// Number of certificate requests of servers so far.
    pub(super) fn certificate_requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    pub(super) fn record(&self, kind: Option<HandshakeKind>, cipher: Option<CipherSuite>) {
        match kind {
            Some(HandshakeKind::Resumed) => &self.resumed,
            _ => &self.full,
        }
        .fetch_add(1, Relaxed);
        *self.cipher.lock() = cipher;
    }

    /// The present configuration. Changed files are read again; while they are unusable, the
    /// earlier configuration stays.
    pub(super) async fn config(self: &Arc<Self>) -> Arc<ClientConfig> {
        let this = self.clone();
        let renewal = tokio::task::spawn_blocking(move || this.renew());
        let trouble = match timeout(FILES_TIMEOUT, renewal).await {
            Ok(Ok(Ok(()))) => None,
            Ok(Ok(Err(e))) => Some(e.to_string()),
            Ok(Err(e)) => Some(e.to_string()),
            Err(_) => Some(format!("the files cannot be read within {} s", FILES_TIMEOUT.as_secs())),
        };
        if let Some(trouble) = trouble {
            tracing::warn!("{trouble}; TLS goes on with the keys and certificates that were read before");
        }
        self.loaded.lock().config.clone()
    }

    fn renew(&self) -> io::Result<()> {
        let stamps = stamps(&self.settings);
        if stamps == self.loaded.lock().stamps {
            return Ok(());
        }
        let loaded = Loaded::read(&self.settings, self.requests.clone())?;
        *self.loaded.lock() = loaded;
        tracing::info!("read the changed files of TLS keys and certificates");
        Ok(())
    }
}

impl Loaded {
    fn read(settings: &TlsSettings, requests: Arc<AtomicU64>) -> io::Result<Self> {
        // A file that changes after this line is read again before the next connection.
        let stamps = stamps(settings);
        let config = Arc::new(config(settings, requests)?);
        Ok(Self { config, stamps })
    }
}

fn stamps(settings: &TlsSettings) -> Vec<Stamp> {
    let identity = settings.identity.iter().flat_map(|files| [&files.certificate, &files.key]);
    let mut paths: Vec<&Path> = identity.chain(&settings.revocations).map(PathBuf::as_path).collect();
    match &settings.authorities {
        Some(path) => paths.push(path),
        None => paths.extend(SYSTEM_AUTHORITIES.iter().map(Path::new)),
    }
    paths.into_iter().map(stamp).collect()
}

fn stamp(path: &Path) -> Stamp {
    let meta = std::fs::metadata(path).ok()?;
    let changed_ns = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
    Some((meta.dev(), meta.ino(), changed_ns, meta.len()))
}

fn config(settings: &TlsSettings, requests: Arc<AtomicU64>) -> io::Result<ClientConfig> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let provider = provider();
    let roots = Arc::new(read_authorities(settings.authorities.as_deref())?);
    let mut verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
    if let Some(path) = &settings.revocations {
        verifier = verifier.with_crls(read_revocations(path)?).enforce_revocation_expiration();
    }
    let verifier = verifier.build().map_err(|e| {
        let path = settings.revocations.as_deref().unwrap_or(Path::new("tls-crl"));
        invalid(format!("{}: no usable revocation list ({e})", path.display()))
    })?;
    let key = match &settings.identity {
        None => None,
        Some(files) => {
            let Identity { chain, key } = Identity::read(&files.certificate, &files.key)?;
            let key = CertifiedKey::from_der(chain, key, &provider).map_err(|e| {
                let (certificate, key) = (files.certificate.display(), files.key.display());
                invalid(format!("{key} is not the private key of {certificate} ({e})"))
            })?;
            Some(Arc::new(key))
        }
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| invalid(e.to_string()))?
        .with_webpki_verifier(verifier)
        .with_client_cert_resolver(Arc::new(OwnCertificate { key, requests }));
    config.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
    if settings.start == TlsStart::Probe {
        config.alpn_protocols = vec![ALPN.to_vec()];
    }
    Ok(config)
}

/// The client certificate. It counts the requests of servers, after which a server may still refuse
/// the client ([`super::connect`]).
#[derive(Debug)]
struct OwnCertificate {
    key: Option<Arc<CertifiedKey>>,
    requests: Arc<AtomicU64>,
}

impl ResolvesClientCert for OwnCertificate {
    fn resolve(&self, _authorities: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.requests.fetch_add(1, Relaxed);
        self.key.clone()
    }

    // True also without a certificate: rustls asks no resolver that has none.
    fn has_certs(&self) -> bool {
        true
    }
}

/// The name of a cipher suite without the prefix and hash of its constant.
fn cipher_name(suite: CipherSuite) -> String {
    match suite {
        CipherSuite::TLS13_AES_256_GCM_SHA384 => "AES-256-GCM".into(),
        CipherSuite::TLS13_AES_128_GCM_SHA256 => "AES-128-GCM".into(),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "ChaCha20-Poly1305".into(),
        other => format!("{other:?}"),
    }
}
