//! Certificates of a private authority, and stunnel before a server: TLS from the first byte.

use super::wait_for;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rcgen::{CertificateRevocationListParams, KeyIdMethod, RevokedCertParams, SerialNumber};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The NFS port of [`Stunnel`].
pub const PORT: u16 = 3049;
/// The MOUNT port of [`Stunnel`].
pub const MOUNT_PORT: u16 = 3048;

/// The serial number of all certificates of [`Authority`].
const SERIAL: u64 = 77;

/// An authority with its own directory. `ca.pem` is its certificate.
pub struct Authority {
    dir: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new authority.
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "an authority of tests");
        let key = KeyPair::generate().unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir, issuer: Issuer::new(params, key) }
    }

    /// The path of a file of the authority.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Issues `FILE.pem` and `FILE.key` for these names and addresses.
    pub fn issue(&self, file: &str, names: &[&str]) {
        self.issue_until(file, names, 2121);
    }

    /// As [`Authority::issue`]. The validity ends in `year`.
    pub fn issue_until(&self, file: &str, names: &[&str], year: i32) {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.serial_number = Some(SerialNumber::from(SERIAL));
        params.distinguished_name.push(DnType::CommonName, file);
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.path(&format!("{file}.key")), key.serialize_pem()).unwrap();
        std::fs::write(self.path(&format!("{file}.pem")), certificate.pem()).unwrap();
    }

    /// Writes `crl.pem`, a list that revokes all issued certificates or none.
    pub fn revoke(&self, all: bool) {
        let then = date_time_ymd(2020, 1, 1);
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(SERIAL),
            revocation_time: then,
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: then,
            next_update: date_time_ymd(2121, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: if all { vec![revoked] } else { Vec::new() },
            key_identifier_method: KeyIdMethod::Sha256,
        };
        std::fs::write(self.path("crl.pem"), list.signed_by(&self.issuer).unwrap().pem().unwrap()).unwrap();
    }

    /// Mount options with the files `tls-ca=ca.pem`, and `tls-cert` and `tls-key` of `client`.
    pub fn options(&self, xprtsec: &str, client: Option<&str>) -> String {
        let mut options = format!("xprtsec={xprtsec},tls-ca={}", self.path("ca.pem").display());
        if let Some(client) = client {
            let file = |end: &str| self.path(&format!("{client}.{end}")).display().to_string();
            options += &format!(",tls-cert={},tls-key={}", file("pem"), file("key"));
        }
        options
    }
}

/// stunnel on [`PORT`] and [`MOUNT_PORT`], before plain servers on this machine.
pub struct Stunnel {
    child: Option<Child>,
    config: PathBuf,
}

impl Stunnel {
    /// Starts stunnel with `server.pem` of the authority before the ports of NFS and MOUNT.
    /// `run` makes the command, for the right network. `more` are lines for each service. Session
    /// tickets survive a restart.
    pub fn start(
        authority: &Authority,
        ports: (u16, u16),
        more: &str,
        run: impl Fn(&str) -> Command,
    ) -> Self {
        let dir = authority.dir.path();
        let d = dir.display();
        let service = |name: &str, accept: u16, connect: u16| {
            format!(
                "[{name}]\naccept = 127.0.0.1:{accept}\nconnect = 127.0.0.1:{connect}\ncert = {d}/server.pem\n\
                 key = {d}/server.key\nsslVersionMin = TLSv1.3\nticketKeySecret = {}\nticketMacSecret = {}\n{more}\n",
                "17".repeat(16),
                "71".repeat(16),
            )
        };
        let text = format!(
            "foreground = yes\npid =\ndebug = info\noutput = {d}/stunnel.log\n{}{}",
            service("nfs", PORT, ports.0),
            service("mount", MOUNT_PORT, ports.1)
        );
        let config = dir.join("stunnel.conf");
        std::fs::write(&config, text).unwrap();
        let mut stunnel = Self { child: None, config };
        stunnel.restart(run);
        stunnel
    }

    /// Kills stunnel, and with it all connections, and starts it again.
    pub fn restart(&mut self, run: impl Fn(&str) -> Command) {
        self.kill();
        let log = self.config.with_file_name("stunnel.log");
        let _ = std::fs::remove_file(&log);
        let mut command = run("stunnel4");
        command.arg(&self.config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap());
        wait_for(&format!("stunnel, see {}", log.display()), 30, || is_ready(&log));
    }

    /// Kills stunnel.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Stunnel {
    fn drop(&mut self) {
        self.kill();
    }
}

fn is_ready(log: &Path) -> bool {
    let said = std::fs::read_to_string(log).unwrap_or_default();
    said.contains("Configuration successful") && said.matches("bound to").count() >= 2
}
