//! TLS: stunnel stands before the server, so the checks use `xprtsec=direct`.

use crate::Bench;
use crate::common::stunnel::{Authority, PORT, Stunnel};
use std::process::Command;

/// An authority, and stunnel with a certificate for 127.0.0.1 before the server.
fn secured(b: &Bench<'_>, more: &str) -> (Authority, Stunnel) {
    let authority = Authority::new();
    authority.issue("server", &["127.0.0.1"]);
    let ports = (b.server.port, b.server.port);
    let stunnel = Stunnel::start(&authority, ports, more, |program| Command::new(program));
    (authority, stunnel)
}

pub fn xprtsec(b: &Bench<'_>) {
    drop(b.mount("xprtsec=none"));
    let (authority, _stunnel) = secured(b, "");
    let direct = format!("port={PORT},{}", authority.options("direct", None));
    let m = b.mount(&direct);
    assert_eq!(m.report()["mount"]["transport"]["protocol"], "TLS 1.3");
    drop(m);
    b.refuses(&authority.options("tls", None), "offers no TLS");
    b.refuses("xprtsec=mtls", "tls-cert=FILE");
}

pub fn tls_ca(b: &Bench<'_>) {
    let (authority, _stunnel) = secured(b, "");
    drop(b.mount(&format!("port={PORT},{}", authority.options("direct", None))));
    b.refuses(&format!("port={PORT},xprtsec=direct"), "no trusted authority");
    b.refuses("xprtsec=direct,tls-ca=/none.pem", "/none.pem");
}

pub fn tls_cert(b: &Bench<'_>) {
    let authority = Authority::new();
    authority.issue("server", &["127.0.0.1"]);
    authority.issue("client", &["client.test"]);
    let more =
        format!("CAfile = {}\nverifyChain = yes\nrequireCert = yes", authority.path("ca.pem").display());
    let ports = (b.server.port, b.server.port);
    let _stunnel = Stunnel::start(&authority, ports, &more, |program| Command::new(program));
    let m = b.mount(&format!("port={PORT},{}", authority.options("direct", Some("client"))));
    assert_eq!(m.report()["mount"]["transport"]["client_certificate"], true);
    drop(m);
    b.refuses(&format!("port={PORT},{}", authority.options("direct", None)), "requires a client certificate");
    // The key of another certificate.
    authority.issue("other", &["client.test"]);
    std::fs::copy(authority.path("other.key"), authority.path("client.key")).unwrap();
    b.refuses(&authority.options("direct", Some("client")), "is not the private key of");
}

pub fn tls_server_name(b: &Bench<'_>) {
    let authority = Authority::new();
    authority.issue("server", &["files.test"]);
    let ports = (b.server.port, b.server.port);
    let _stunnel = Stunnel::start(&authority, ports, "", |program| Command::new(program));
    let direct = format!("port={PORT},{}", authority.options("direct", None));
    b.refuses(&direct, "is for files.test and not for 127.0.0.1");
    drop(b.mount(&format!("{direct},tls-server-name=files.test")));
}

pub fn tls_crl(b: &Bench<'_>) {
    let (authority, _stunnel) = secured(b, "");
    let list = authority.path("crl.pem");
    let direct = format!("port={PORT},{},tls-crl={}", authority.options("direct", None), list.display());
    authority.revoke(false);
    drop(b.mount(&direct));
    authority.revoke(true);
    b.refuses(&direct, "is revoked");
}
