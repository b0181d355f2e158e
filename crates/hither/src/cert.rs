//! `hither cert`: a certificate authority in a directory, for sites that have none.
//!
//! The directory has the authority's certificate (`ca.pem`) and key (`ca.key`), a pair of files for
//! each server and client, and the list of revoked certificates (`crl.pem`). A renewed certificate
//! keeps its key. Files are replaced atomically, so running programs can read them again.

use crate::cli::CertCommand;
use crate::exit::Failure;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

/// Days until the authority's certificate and its list of revoked certificates expire.
const AUTHORITY_DAYS: u64 = 3650;
/// Certificates are valid from this time before now, for machines with clocks that are behind.
const CLOCK_SLACK: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

type Authority = Issuer<'static, KeyPair>;

/// Runs the command.
///
/// # Errors
/// A name is not valid in a certificate, or a file of the directory is damaged or cannot be
/// written.
pub fn run(command: &CertCommand) -> Result<(), Failure> {
    match command {
        CertCommand::Server { dir, names, days } => {
            let made = issue(dir, names, ExtendedKeyUsagePurpose::ServerAuth, *days)?;
            println!("{} is valid for {days} days, for {}", made.certificate.display(), names.join(", "));
            println!("Serve with --tls-cert {} --tls-key {}", made.certificate.display(), made.key.display());
            println!(
                "Copy {} to the clients, and mount with -o xprtsec=tls,tls-ca=FILE",
                dir.join("ca.pem").display()
            );
        }
        CertCommand::Client { dir, name, days } => {
            let names = std::slice::from_ref(name);
            let made = issue(dir, names, ExtendedKeyUsagePurpose::ClientAuth, *days)?;
            println!("{} is valid for {days} days", made.certificate.display());
            println!("Serve with --tls-client-ca {}", dir.join("ca.pem").display());
            println!(
                "Copy it with {} and ca.pem to the client, and mount with -o \
                 xprtsec=mtls,tls-ca=FILE,tls-cert=FILE,tls-key=FILE",
                made.key.display()
            );
        }
        CertCommand::Revoke { dir, certificate } => {
            let list = revoke(dir, certificate)?;
            println!("{} revokes {}", list.display(), certificate.display());
            println!("Serve with --tls-crl {}, and send SIGHUP to a running server", list.display());
        }
    }
    Ok(())
}

/// The files of a new certificate.
struct Made {
    certificate: PathBuf,
    key: PathBuf,
}

/// Makes or renews the certificate of the first name.
fn issue(dir: &Path, names: &[String], usage: ExtendedKeyUsagePurpose, days: u64) -> Result<Made, Failure> {
    let name = names.first().ok_or_else(|| Failure::usage("a certificate needs a name"))?;
    if name.is_empty() || name.starts_with('.') || name.contains('/') || name == "ca" || name == "crl" {
        return Err(Failure::usage(format!("'{name}' cannot name the files of a certificate")));
    }
    let file = name.replace('*', "_");
    let made = Made { certificate: dir.join(format!("{file}.pem")), key: dir.join(format!("{file}.key")) };
    let mut params = CertificateParams::new(names)
        .map_err(|e| Failure::usage(format!("{}: not valid in a certificate: {e}", names.join(", "))))?;
    params.distinguished_name.push(DnType::CommonName, name.as_str());
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, days);
    let authority = authority(dir)?;
    let key = key(&made.key)?;
    let certificate = params.signed_by(&key, &authority).map_err(|e| failed(&made.certificate, &e))?;
    write(&made.certificate, &certificate.pem(), 0o644)?;
    Ok(made)
}

fn set_validity(params: &mut CertificateParams, days: u64) {
    let now = now();
    params.not_before = (now - CLOCK_SLACK).into();
    params.not_after = (now + DAY * days as u32).into();
    params.serial_number = Some(serial());
}

fn now() -> SystemTime {
    #[expect(clippy::disallowed_methods, reason = "a command that dates certificates, not logic")]
    SystemTime::now()
}

/// A new serial number: positive, as RFC 5280 section 4.1.2.2 demands.
fn serial() -> SerialNumber {
    let mut bytes: [u8; 16] = rand::random();
    bytes[0] = bytes[0] & 0x7f | 0x40;
    SerialNumber::from_slice(&bytes)
}

/// The authority of the directory, made if there is none.
fn authority(dir: &Path) -> Result<Authority, Failure> {
    let (certificate, key_file) = (dir.join("ca.pem"), dir.join("ca.key"));
    if certificate.exists() {
        return existing_authority(dir);
    }
    fs::create_dir_all(dir).map_err(|e| failed(dir, &e))?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, format!("hither authority of {host}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, AUTHORITY_DAYS);
    let key = key(&key_file)?;
    let made = params.self_signed(&key).map_err(|e| failed(&certificate, &e))?;
    write(&certificate, &made.pem(), 0o644)?;
    println!("{} is a new authority; {} stays secret", certificate.display(), key_file.display());
    Ok(Issuer::new(params, key))
}

fn existing_authority(dir: &Path) -> Result<Authority, Failure> {
    let (certificate, key_file) = (dir.join("ca.pem"), dir.join("ca.key"));
    let pem = fs::read_to_string(&certificate).map_err(|e| failed(&certificate, &e))?;
    if !key_file.exists() {
        let line = format!("{}: the authority's key is not in this directory", key_file.display());
        return Err(Failure::usage(line));
    }
    Issuer::from_ca_cert_pem(&pem, key(&key_file)?).map_err(|e| failed(&certificate, &e))
}

/// The key of a file, made if there is no file.
fn key(path: &Path) -> Result<KeyPair, Failure> {
    match fs::read_to_string(path) {
        Ok(pem) => KeyPair::from_pem(&pem).map_err(|e| failed(path, &e)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let key = KeyPair::generate().map_err(|e| failed(path, &e))?;
            write(path, &key.serialize_pem(), 0o600)?;
            Ok(key)
        }
        Err(e) => Err(failed(path, &e)),
    }
}

/// Adds a certificate to the list of revoked certificates. Returns the list's path.
fn revoke(dir: &Path, certificate: &Path) -> Result<PathBuf, Failure> {
    let authority = existing_authority(dir)?;
    let pem = hither_rpc::tls::read_certificates(certificate).map_err(|e| Failure::usage(e.to_string()))?;
    let parsed = X509Certificate::from_der(&pem[0]).map_err(|e| failed(certificate, &e))?.1;
    let ca = hither_rpc::tls::read_certificates(&dir.join("ca.pem"));
    let ca = ca.map_err(|e| Failure::system(e.to_string()))?;
    let ca = X509Certificate::from_der(&ca[0]).map_err(|e| failed(dir, &e))?.1;
    if parsed.verify_signature(Some(ca.public_key())).is_err() {
        let line = format!("{}: not issued by the authority of {}", certificate.display(), dir.display());
        return Err(Failure::usage(line));
    }
    let list = dir.join("crl.pem");
    let now = now();
    let revoked = |serial: &[u8]| RevokedCertParams {
        serial_number: SerialNumber::from_slice(serial),
        revocation_time: now.into(),
        reason_code: None,
        invalidity_date: None,
    };
    let mut revoked_certs = vec![revoked(parsed.raw_serial())];
    if list.exists() {
        let old = hither_rpc::tls::read_revocations(&list).map_err(|e| Failure::system(e.to_string()))?;
        let old = CertificateRevocationList::from_der(&old[0]).map_err(|e| failed(&list, &e))?.1;
        let others = old.iter_revoked_certificates().map(|entry| entry.raw_serial());
        revoked_certs.extend(others.filter(|serial| *serial != parsed.raw_serial()).map(revoked));
    }
    let number = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |t| t.as_secs());
    let params = CertificateRevocationListParams {
        this_update: (now - CLOCK_SLACK).into(),
        next_update: (now + DAY * AUTHORITY_DAYS as u32).into(),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs,
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let pem = params.signed_by(&authority).and_then(|made| made.pem()).map_err(|e| failed(&list, &e))?;
    write(&list, &pem, 0o644)?;
    Ok(list)
}

/// Replaces a file atomically.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let new = path.with_extension("new");
    let written = (|| {
        let _ = fs::remove_file(&new);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    })();
    written.map_err(|e: io::Error| failed(path, &e))
}

fn failed(path: &Path, e: &dyn std::fmt::Display) -> Failure {
    Failure::system(format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests;
