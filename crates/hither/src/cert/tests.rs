//! Tests of the certificates with TLS handshakes in memory.

use super::*;
use hither_rpc::tls::{Identity, read_authorities, read_revocations};
use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

fn make(dir: &Path, kind: &str, names: &[&str]) -> Result<(), Failure> {
    let (dir, days) = (dir.to_owned(), 2);
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    run(&match kind {
        "server" => CertCommand::Server { dir, names, days },
        _ => CertCommand::Client { dir, name: names[0].clone(), days },
    })
}

fn identity(dir: &Path, name: &str) -> Identity {
    Identity::read(&dir.join(format!("{name}.pem")), &dir.join(format!("{name}.key"))).unwrap()
}

/// A TLS handshake in memory of the client `client` with the server `server`, called `name`.
fn handshake(dir: &Path, server: &str, client: &str, name: &str) -> Result<(), rustls::Error> {
    let crypto = || Arc::new(rustls::crypto::ring::default_provider());
    let roots = || Arc::new(read_authorities(Some(&dir.join("ca.pem"))).unwrap());
    let crls = read_revocations(&dir.join("crl.pem")).unwrap_or_default();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(), crypto()).with_crls(crls);
    let identities = (identity(dir, server), identity(dir, client));
    let config = ServerConfig::builder_with_provider(crypto()).with_safe_default_protocol_versions().unwrap();
    let config = config
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(identities.0.chain, identities.0.key)?;
    let mut server = ServerConnection::new(config.into())?;
    let config = ClientConfig::builder_with_provider(crypto()).with_safe_default_protocol_versions().unwrap();
    let config =
        config.with_root_certificates(roots()).with_client_auth_cert(identities.1.chain, identities.1.key)?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(config.into(), name)?;
    while client.is_handshaking() || server.is_handshaking() {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        server.read_tls(&mut &*bytes).unwrap();
        server.process_new_packets()?;
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        client.read_tls(&mut &*bytes).unwrap();
        client.process_new_packets()?;
    }
    Ok(())
}

/// Certificates work for all their names, after a renewal too, and fail for other names, for the
/// other side, and after a revocation.
#[test]
fn certificates_work_until_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let dir = &dir.path().join("tls");
    make(dir, "server", &["nfs.example.org", "192.0.2.1", "2001:db8::1"]).unwrap();
    make(dir, "client", &["farm"]).unwrap();
    make(dir, "client", &["office"]).unwrap();
    for renewal in [false, true] {
        if renewal {
            let before = fs::read(dir.join("farm.pem")).unwrap();
            make(dir, "client", &["farm"]).unwrap();
            assert_ne!(before, fs::read(dir.join("farm.pem")).unwrap());
        }
        for name in ["nfs.example.org", "192.0.2.1", "2001:db8::1"] {
            handshake(dir, "nfs.example.org", "farm", name).unwrap();
        }
    }
    handshake(dir, "nfs.example.org", "farm", "other.example.org").unwrap_err();
    handshake(dir, "farm", "farm", "farm").unwrap_err();
    handshake(dir, "nfs.example.org", "nfs.example.org", "nfs.example.org").unwrap_err();
    for name in ["farm", "office"] {
        handshake(dir, "nfs.example.org", name, "192.0.2.1").unwrap();
        let certificate = dir.join(format!("{name}.pem"));
        for _again in 0..2 {
            run(&CertCommand::Revoke { dir: dir.clone(), certificate: certificate.clone() }).unwrap();
        }
        for revoked in ["farm", name] {
            handshake(dir, "nfs.example.org", revoked, "192.0.2.1").unwrap_err();
        }
    }
    make(dir, "client", &["office"]).unwrap();
    handshake(dir, "nfs.example.org", "office", "192.0.2.1").expect("a new certificate is not revoked");
}

/// Only their owner can read keys.
#[test]
fn keys_are_secret() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), "server", &["*.example.org"]).unwrap();
    for name in ["ca.key", "_.example.org.key"] {
        let mode = fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

/// Damaged files and names that are no names are refused, and nothing is replaced.
#[test]
fn damaged_authority_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for name in ["", ".", "../x", "a/b", "ca", "crl", "ü"] {
        make(dir, "client", &[name]).unwrap_err();
    }
    make(dir, "client", &["a"]).unwrap();
    let other = tempfile::tempdir().unwrap();
    make(other.path(), "client", &["b"]).unwrap();
    let foreign = other.path().join("b.pem");
    run(&CertCommand::Revoke { dir: dir.to_owned(), certificate: foreign }).unwrap_err();
    let before = fs::read(dir.join("a.pem")).unwrap();
    let key = fs::read(dir.join("ca.key")).unwrap();
    fs::write(dir.join("ca.key"), "damaged").unwrap();
    make(dir, "client", &["a"]).unwrap_err();
    fs::remove_file(dir.join("ca.key")).unwrap();
    let lost = make(dir, "client", &["a"]).unwrap_err();
    assert!(lost.line.contains("the authority's key"), "{lost:?}");
    fs::write(dir.join("ca.key"), key).unwrap();
    fs::write(dir.join("ca.pem"), "damaged").unwrap();
    make(dir, "client", &["a"]).unwrap_err();
    assert_eq!(before, fs::read(dir.join("a.pem")).unwrap());
}
