//! `xprtsec=` and the options that begin with `tls-`: RPC-with-TLS (RFC 9289) to the server.

use super::Wanted;
use hither_rpc::tls::{IdentityFiles, TlsSettings, TlsStart};
use std::path::PathBuf;

type Done = Result<(), String>;

/// `xprtsec=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// `none`: clear text.
    #[default]
    None,
    /// `tls`: the server has a certificate.
    Tls,
    /// `mtls`: the client has one as well.
    Mtls,
    /// `direct`: TLS from the first byte, with or without a client certificate.
    Direct,
}

/// The options of transport security.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Security {
    policy: Policy,
    authorities: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    server_name: Option<String>,
    revocations: Option<PathBuf>,
    /// The first option that requires TLS.
    said: Option<&'static str>,
}

impl Security {
    /// The settings for a server that the user names `host`; `None`: no TLS.
    pub fn settings(&self, host: &str) -> Option<TlsSettings> {
        let start = match self.policy {
            Policy::None => return None,
            Policy::Tls | Policy::Mtls => TlsStart::Probe,
            Policy::Direct => TlsStart::Direct,
        };
        let identity = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                Some(IdentityFiles { certificate: certificate.clone(), key: key.clone() })
            }
            _ => None,
        };
        // A certificate has the address without the interface (RFC 6874).
        let host = host.split('%').next().unwrap_or(host);
        Some(TlsSettings {
            start,
            server_name: self.server_name.clone().unwrap_or_else(|| host.to_owned()),
            authorities: self.authorities.clone(),
            identity,
            revocations: self.revocations.clone(),
        })
    }

    fn detail(&mut self, name: &'static str) -> Done {
        self.said.get_or_insert(name);
        Ok(())
    }
}

impl Wanted {
    /// Files and names without TLS would give a false sense of security.
    pub(super) fn check_security(&mut self) -> Done {
        let s = &self.security;
        match (s.policy, s.said, &s.certificate, &s.key) {
            (Policy::None, Some(name), ..) => {
                Err(format!("option '{name}' concerns TLS: give 'xprtsec=tls', 'mtls' or 'direct' as well"))
            }
            (Policy::Mtls, _, None, _) | (Policy::Mtls, _, _, None) => {
                Err("option 'xprtsec=mtls' needs a client certificate: give tls-cert=FILE and tls-key=FILE".into())
            }
            (_, _, Some(_), None) => Err("option 'tls-cert' needs its private key: give tls-key=FILE".into()),
            (_, _, None, Some(_)) => Err("option 'tls-key' needs its certificate: give tls-cert=FILE".into()),
            (Policy::Tls, _, Some(_), Some(_)) => Err(
                "options 'xprtsec=tls' and 'tls-cert' contradict each other: xprtsec=mtls uses the certificate"
                    .into(),
            ),
            _ => Ok(()),
        }
    }
}

pub fn xprtsec(w: &mut Wanted, value: &str) -> Done {
    w.security.policy = match value {
        "none" => Policy::None,
        "tls" => Policy::Tls,
        "mtls" => Policy::Mtls,
        "direct" => Policy::Direct,
        _ => return Err("expected none, tls, mtls or direct".into()),
    };
    Ok(())
}

pub fn tls_ca(w: &mut Wanted, value: &str) -> Done {
    w.security.authorities = Some(file(value)?);
    w.security.detail("tls-ca")
}

pub fn tls_cert(w: &mut Wanted, value: &str) -> Done {
    w.security.certificate = Some(file(value)?);
    w.security.detail("tls-cert")
}

pub fn tls_key(w: &mut Wanted, value: &str) -> Done {
    w.security.key = Some(file(value)?);
    w.security.detail("tls-key")
}

pub fn tls_server_name(w: &mut Wanted, value: &str) -> Done {
    w.security.server_name = Some(value.to_owned());
    w.security.detail("tls-server-name")
}

pub fn tls_crl(w: &mut Wanted, value: &str) -> Done {
    w.security.revocations = Some(file(value)?);
    w.security.detail("tls-crl")
}

/// The daemon works in the root directory, so a relative path would name another file.
fn file(value: &str) -> Result<PathBuf, String> {
    if value.starts_with('/') { Ok(value.into()) } else { Err("expected an absolute path".into()) }
}
