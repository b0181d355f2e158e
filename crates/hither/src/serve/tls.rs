//! The options of TLS: the files of the server's certificate and of the authorities for clients.
//!
//! The module knows no protocol. `hither_rpc` reads the files and performs the handshakes. An
//! export that only TLS clients may use needs these options. Without them no client could use it.

use crate::exit::Failure;
use clap::Args;
use hither_rpc::server::{Tls, TlsFiles};
use hither_server::exports::{Client, Exports, Who};
use std::path::PathBuf;
use std::sync::Arc;

/// The options.
#[derive(Debug, Args, Clone, Default)]
pub struct TlsArgs {
    /// Offer TLS (RFC 9289) with this certificate: a PEM file with the server's certificate, then
    /// those of its issuers; read again on SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert, in PEM format; read again on SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Request certificates of clients and verify them with the authorities of this PEM file;
    /// exports with `xprtsec=mtls` need it; read again on SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Refuse the client certificates that the revocation lists of this PEM file name; needs a list
    /// of each authority; read again on SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_client_ca")]
    pub tls_crl: Option<PathBuf>,
}

impl TlsArgs {
    /// Reads the files. `None`: TLS is not offered.
    ///
    /// # Errors
    /// A line that names the file.
    pub fn open(&self) -> Result<Option<Arc<Tls>>, Failure> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        let files = TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_authorities: self.tls_client_ca.clone(),
            revocations: self.tls_crl.clone(),
        };
        Tls::new(files).map(Some).map_err(|e| Failure::usage(format!("TLS: {e}")))
    }

    /// Checks that some client can use each entry of the exports.
    ///
    /// # Errors
    /// A line that names the first useless entry and the missing option.
    pub fn check(&self, exports: &Exports) -> Result<(), Failure> {
        let clients = exports.entries.iter().flat_map(|entry| &entry.clients);
        for client in clients {
            if let Some(what) = self.lack(client) {
                return Err(Failure::usage(format!("{}: {what}", client.at)));
            }
        }
        Ok(())
    }

    /// The reason why no client can match an entry, and its remedy.
    fn lack(&self, client: &Client) -> Option<String> {
        let accepted = client.rights.transports;
        let offers_tls = self.tls_cert.is_some();
        let verifies = self.tls_client_ca.is_some();
        match &client.who {
            Who::Subject(name) if !verifies => {
                Some(format!("'subject:{name}' needs --tls-client-ca, which verifies client certificates"))
            }
            Who::Subject(name) if !accepted.mtls => Some(format!(
                "'subject:{name}' has a certificate, and xprtsec={accepted} refuses it: add mtls"
            )),
            _ if accepted.none || (accepted.tls && offers_tls) || (accepted.mtls && verifies) => None,
            _ if accepted.tls => Some(format!("xprtsec={accepted} needs --tls-cert and --tls-key")),
            _ => Some(format!("xprtsec={accepted} needs --tls-client-ca, --tls-cert and --tls-key")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lack(args: &TlsArgs, line: &str) -> Option<String> {
        let mut exports = Exports::default();
        exports.add("exports", line.as_bytes()).unwrap();
        args.check(&exports).err().map(|failure| failure.line)
    }

    /// An export that no client could use is refused, with the missing option.
    #[test]
    fn xprtsec_needs_tls_options() {
        let none = TlsArgs::default();
        let tls = TlsArgs { tls_cert: Some("/c".into()), tls_key: Some("/k".into()), ..none.clone() };
        let mutual = TlsArgs { tls_client_ca: Some("/ca".into()), ..tls.clone() };
        for (args, line, missing) in [
            (&none, "/a *(xprtsec=tls)", Some("--tls-cert")),
            (&none, "/a *(xprtsec=tls:none)", None),
            (&tls, "/a *(xprtsec=tls)", None),
            (&tls, "/a *(xprtsec=mtls)", Some("--tls-client-ca")),
            (&tls, "/a *(xprtsec=mtls:tls)", None),
            (&mutual, "/a *(xprtsec=mtls)", None),
            (&tls, "/a subject:farm(rw)", Some("--tls-client-ca")),
            (&mutual, "/a subject:farm(rw)", None),
            (&mutual, "/a subject:farm(xprtsec=tls)", Some("add mtls")),
        ] {
            let found = lack(args, line);
            assert_eq!(found.is_some(), missing.is_some(), "{line}: {found:?}");
            if let (Some(found), Some(missing)) = (found, missing) {
                assert!(found.starts_with("exports:1: ") && found.contains(missing), "{found}");
            }
        }
    }
}
