//! TLS of RPC connections (RFC 9289): its constants, and the files of keys and certificates.
//!
//! A client asks a server for TLS with a NULL call whose credential is AUTH_TLS. A server that
//! offers TLS answers with the verifier [`STARTTLS`]. The TLS session then begins on the same
//! connection. Both sides use TLS 1.3, the ALPN name [`ALPN`] and no early data.

mod client;
mod connect;
mod error;
mod probe;

pub use client::{ClientTls, IdentityFiles, TlsReport, TlsSettings, TlsStart};
pub use connect::TlsConnect;
pub use error::TlsError;
pub use probe::Program;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The ALPN name of RPC (RFC 9289 section 5).
pub const ALPN: &[u8] = b"sunrpc";

/// The verifier of the reply to an AUTH_TLS call, if the server offers TLS (RFC 9289 section 4.1).
pub const STARTTLS: &[u8; 8] = b"STARTTLS";

/// Longest time from a new connection to its TLS session.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);

/// Longest file of keys or certificates. The system's list of authorities has about 250 KiB.
const FILE_MAX_BYTES: u64 = 4 << 20;

/// A certificate with the certificates of its issuers, and its private key.
#[derive(Debug)]
pub struct Identity {
    /// The certificate first, then each issuer.
    pub chain: Vec<CertificateDer<'static>>,
    /// The private key of the first certificate.
    pub key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads both PEM files. Errors name the file.
    pub fn read(certificate: &Path, key: &Path) -> io::Result<Self> {
        let chain = read_certificates(certificate)?;
        let pem = read_file(key)?;
        let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|e| unusable(key, "private key", &e))?;
        Ok(Self { chain, key })
    }
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

/// Reads the certificates of a PEM file: at least one. Errors name the file.
pub fn read_certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    read_all(path, "certificate")
}

/// Reads the revocation lists of a PEM file: at least one. Errors name the file.
pub fn read_revocations(path: &Path) -> io::Result<Vec<CertificateRevocationListDer<'static>>> {
    read_all(path, "revocation list")
}

/// Reads the trusted authorities of a PEM file. `None`: those of this system. Errors name the file.
pub fn read_authorities(path: Option<&Path>) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match path {
        Some(path) => {
            for certificate in read_certificates(path)? {
                roots.add(certificate).map_err(|e| unusable(path, "certificate", &e))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let text = "this system has no list of certificate authorities (ca-certificates)";
                return Err(io::Error::new(io::ErrorKind::NotFound, text));
            }
        }
    }
    Ok(roots)
}

/// The cryptography of all TLS sessions of this program.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn read_all<T: PemObject>(path: &Path, kind: &str) -> io::Result<Vec<T>> {
    let pem = read_file(path)?;
    let all: Vec<T> =
        T::pem_slice_iter(&pem).collect::<Result<_, _>>().map_err(|e| unusable(path, kind, &e))?;
    if all.is_empty() {
        return Err(unusable(path, kind, &pem::Error::NoItemsFound));
    }
    Ok(all)
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    let file = std::fs::File::open(path).map_err(named)?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, FILE_MAX_BYTES + 1), &mut bytes).map_err(named)?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        return Err(named(io::Error::new(io::ErrorKind::FileTooLarge, "longer than 4 MiB")));
    }
    Ok(bytes)
}

fn unusable(path: &Path, kind: &str, why: &dyn std::fmt::Display) -> io::Error {
    let text = format!("{}: no usable {kind} in PEM format ({why})", path.display());
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_files_are_named() {
        let dir = std::env::temp_dir().join(format!("hither-tls-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("cert.pem");
        let mut texts = vec![read_certificates(&path).unwrap_err().to_string()];
        let broken = "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n";
        for text in ["", "no PEM", broken] {
            std::fs::write(&path, text).unwrap();
            texts.push(read_certificates(&path).unwrap_err().to_string());
            texts.push(Identity::read(&path, &path).unwrap_err().to_string());
            texts.push(read_revocations(&path).unwrap_err().to_string());
        }
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(texts.iter().all(|t| t.contains("cert.pem")), "{texts:?}");
    }
}
