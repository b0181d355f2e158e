//! `hither serve` and `hither gateway` with TLS (RFC 9289), and a client that sends exactly the
//! bytes of a test.
//!
//! The tests need root. The servers listen on a loopback address of a private network.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::{HITHER, hither, pause, run, wait_for};
use hither_proto::mount::{MntArgs, MntRes};
use hither_proto::nfs3::{
    Diropargs3, Fh3, GetattrArgs, LookupArgs, NullArgs, ReadArgs, StableHow, WriteArgs,
};
use hither_proto::record;
use hither_proto::rpc::{
    AuthFlavor, AuthStat, AuthSys, DeniedReply, Message, OpaqueAuth, Procedure, ReplyBody, call,
};
use hither_proto::xdr::{Dec, Enc};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// An authority whose files are in a directory.
struct Authority {
    dir: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A client certificate and its key.
struct Card {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Authority {
    fn new(dir: &Path) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, dir.to_string_lossy().as_ref());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let this = Self { dir: dir.to_path_buf(), issuer };
        this.write("ca.pem", &this.issuer.pem());
        this.serve(1);
        this.revoke(&[]);
        this
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.join(name), text).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn issue(&self, name: &str, serial: u64) -> (rcgen::Certificate, KeyPair) {
        let mut params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(SerialNumber::from(serial));
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    fn card(&self, name: &str, serial: u64) -> Card {
        let (certificate, key) = self.issue(name, serial);
        Card { certificate: certificate.der().clone(), key: key.serialize_der() }
    }

    /// Writes the server's certificate and key.
    fn serve(&self, serial: u64) {
        let (certificate, key) = self.issue("server", serial);
        self.write("cert.pem", &certificate.pem());
        self.write("key.pem", &key.serialize_pem());
    }

    /// Writes the revocation list.
    fn revoke(&self, serials: &[u64]) {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(4000, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        self.write("crl.pem", &list.signed_by(&self.issuer).unwrap().pem().unwrap());
    }

    /// A server with TLS and client certificates.
    fn protect(&self, server: Serve) -> Serve {
        server.with(&[
            "--tls-cert",
            &self.path("cert.pem"),
            "--tls-key",
            &self.path("key.pem"),
            "--tls-client-ca",
            &self.path("ca.pem"),
            "--tls-crl",
            &self.path("crl.pem"),
        ])
    }

    fn client(&self, card: Option<&Card>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match card {
            Some(card) => {
                let key = PrivateKeyDer::try_from(card.key.clone()).unwrap();
                builder.with_client_auth_cert(vec![card.certificate.clone()], key).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"sunrpc".to_vec()];
        Arc::new(config)
    }
}

/// A stream that keeps all bytes of both directions.
struct Tap {
    stream: TcpStream,
    seen: Rc<RefCell<Vec<u8>>>,
}

impl Read for Tap {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.stream.read(buf)?;
        self.seen.borrow_mut().extend_from_slice(&buf[..n]);
        Ok(n)
    }
}

impl Write for Tap {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.stream.write(buf)?;
        self.seen.borrow_mut().extend_from_slice(&buf[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// A connection, with or without TLS.
struct Wire<S> {
    stream: S,
    xid: u32,
}

type Secure = Wire<StreamOwned<ClientConnection, Tap>>;

/// The answer to a call.
type Answer<T> = io::Result<Result<T, AuthStat>>;

fn connect(port: u16) -> Wire<Tap> {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    Wire { stream: Tap { stream, seen: Rc::default() }, xid: 100 }
}

impl<S: Read + Write> Wire<S> {
    fn message(&mut self, message: Enc) -> io::Result<Message> {
        self.stream.write_all(&record::frame(message).concat())?;
        self.stream.flush()?;
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark)?;
        let mut body = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
        self.stream.read_exact(&mut body)?;
        Ok(Message::decode(&body.into()).unwrap())
    }

    fn try_call<P: Procedure>(&mut self, args: &P) -> Answer<P::Reply> {
        self.xid += 1;
        let (stamp, machinename) = (0, Default::default());
        let cred = OpaqueAuth::sys(&AuthSys { stamp, machinename, uid: 0, gid: 0, gids: Vec::new().into() });
        let message = call(self.xid, P::PROG, P::VERS, P::PROC, &cred, Enc::of(args));
        match self.message(message)? {
            Message::Reply(header, body) if header.is_success() => Ok(Ok(Dec::all(&body).unwrap())),
            Message::Reply(header, _) => match header.body {
                ReplyBody::Denied(DeniedReply::AuthError(stat)) => Ok(Err(stat)),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn call<P: Procedure>(&mut self, args: &P) -> P::Reply {
        self.try_call(args).unwrap().unwrap()
    }

    fn mnt(&mut self, path: &str) -> Result<Fh3, u32> {
        match self.call(&MntArgs { dirpath: path.as_bytes().into() }) {
            MntRes::Granted(ok) => Ok(ok.fhandle),
            MntRes::Refused(status) => Err(status),
        }
    }
}

impl Wire<Tap> {
    /// Asks for TLS. False: the server does not offer it.
    fn offers_tls(&mut self) -> bool {
        let cred = OpaqueAuth { flavor: AuthFlavor::TLS, body: Default::default() };
        let message = call(1, NullArgs::PROG, NullArgs::VERS, 0, &cred, Enc::new());
        match self.message(message).unwrap() {
            Message::Reply(header, _) => match header.body {
                ReplyBody::Accepted(accepted) => &accepted.verf.body[..] == b"STARTTLS",
                ReplyBody::Denied(_) => false,
            },
            other => panic!("{other:?}"),
        }
    }

    /// Continues with TLS. The server's verdict on a client certificate comes with the first reply.
    fn encrypt(mut self, config: &Arc<ClientConfig>) -> Secure {
        assert!(self.offers_tls());
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let connection = ClientConnection::new(config.clone(), name).unwrap();
        Wire { stream: StreamOwned::new(connection, self.stream), xid: self.xid }
    }
}

impl Secure {
    /// Whether bytes went over the wire without encryption.
    fn has_shown(&self, bytes: &[u8]) -> bool {
        self.stream.sock.seen.borrow().windows(bytes.len()).any(|seen| seen == bytes)
    }

    /// The serial number of the server's certificate.
    fn serial(&mut self) -> Vec<u8> {
        self.call(&NullArgs {});
        let certificate = &self.stream.conn.peer_certificates().unwrap()[0];
        // The serial number is the first INTEGER behind the version: 30 82 .. 30 82 .. a0 03 02 01
        // 02, then 02 LENGTH.
        let at = certificate.windows(5).position(|w| w == [0xa0, 3, 2, 1, 2]).unwrap() + 5;
        certificate[at + 2..at + 2 + usize::from(certificate[at + 1])].to_vec()
    }

    fn is_served(&mut self) -> bool {
        matches!(self.try_call(&NullArgs {}), Ok(Ok(())))
    }
}

fn lookup(dir: &Fh3, name: &str) -> LookupArgs {
    LookupArgs { what: Diropargs3 { dir: dir.clone(), name: name.as_bytes().into() } }
}

/// Writes and reads a file of 700,000 bytes through TLS. The bytes are right, and none of them is
/// readable on the way.
#[track_caller]
fn exchange(port: u16, config: &Arc<ClientConfig>, file: &Path) {
    let secret = b"the secret of the test ".repeat(30_000);
    let mut wire = connect(port).encrypt(config);
    let root = wire.mnt("/").unwrap();
    let found = wire.call(&lookup(&root, file.file_name().unwrap().to_str().unwrap()));
    let object = found.into_result().unwrap().object;
    for (offset, data) in [(0, &secret[..400_000]), (400_000, &secret[400_000..])] {
        let args = WriteArgs {
            file: object.clone(),
            offset,
            count: data.len() as u32,
            stable: StableHow::FILE_SYNC,
            data: data.into(),
        };
        wire.call(&args).into_result().unwrap();
    }
    assert_eq!(std::fs::read(file).unwrap(), secret);
    let mut read = Vec::new();
    while read.len() < secret.len() {
        let args = ReadArgs { file: object.clone(), offset: read.len() as u64, count: 500_000 };
        read.extend_from_slice(&wire.call(&args).into_result().unwrap().data);
    }
    assert_eq!(read, secret);
    assert!(!wire.has_shown(b"the secret"));
    assert!(!wire.has_shown(&root));
}

/// A client asks for TLS, and then mounts, writes and reads. A gateway offers the same. A server
/// without certificates offers no TLS.
/// Promise: S17
#[test]
#[ignore = "needs root"]
fn starttls_encrypts_nfs3() {
    let mut plain = Serve::of_directory().with(&["-o", "insecure"]);
    let authority = Authority::new(plain.dir.path());
    let mut gateway =
        authority.protect(Serve::gateway(&plain, "vers=3,noresvport")).with(&["-o", "insecure"]);
    plain.serve();
    assert!(!connect(plain.port).offers_tls());
    std::fs::write(plain.export("file"), "").unwrap();
    gateway.serve();
    exchange(gateway.port, &authority.client(None), &plain.export("file"));
    assert_eq!(plain.stop(), 0);
    drop((gateway, plain));
    let mut server = Serve::of_directory().with(&["-o", "insecure"]);
    let authority = Authority::new(server.dir.path());
    server = authority.protect(server);
    server.serve();
    std::fs::write(server.export("file"), "").unwrap();
    exchange(server.port, &authority.client(None), &server.export("file"));
    assert!(server.said().contains("xprtsec=mtls"), "{}", server.said());
}

/// A server of three directories: for all connections, for TLS, and for client certificates. The
/// last one is writable for one name only.
fn three_exports() -> (Serve, Authority) {
    let server = Serve::prepare();
    let authority = Authority::new(server.dir.path());
    let mut words = Vec::new();
    for (name, clients) in [
        ("any", "*(insecure)"),
        ("tls", "*(insecure,xprtsec=tls:mtls)"),
        ("mtls", "*(insecure,xprtsec=mtls) subject:build-farm(rw,insecure,no_root_squash)"),
    ] {
        std::fs::create_dir(server.export(name)).unwrap();
        std::fs::write(server.export(name).join("f"), name).unwrap();
        words.extend(["--export".to_string(), format!("{} {clients}", server.export(name).display())]);
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut server = authority.protect(server.with(&words));
    server.serve();
    (server, authority)
}

/// Exports refuse connections that they do not list: MNT with MNT3ERR_ACCES, other calls with
/// AUTH_TOOWEAK. The subject of a certificate has its own rights.
/// Promise: S18
#[test]
#[ignore = "needs root"]
fn xprtsec_refuses_unlisted_connections() {
    const ACCES: u32 = 13;
    let (server, authority) = three_exports();
    let path = |name: &str| server.export(name).display().to_string();
    let farm = authority.card("build-farm", 7);
    let mut mutual = connect(server.port).encrypt(&authority.client(Some(&farm)));
    let handles = ["any", "tls", "mtls"].map(|name| mutual.mnt(&path(name)).unwrap());
    let mut tls = connect(server.port).encrypt(&authority.client(None));
    let mut plain = connect(server.port);
    for (name, by_plain, by_tls) in [("any", true, true), ("tls", false, true), ("mtls", false, false)] {
        assert_eq!(plain.mnt(&path(name)).map(|_| ()), if by_plain { Ok(()) } else { Err(ACCES) });
        assert_eq!(tls.mnt(&path(name)).map(|_| ()), if by_tls { Ok(()) } else { Err(ACCES) });
    }
    let answers = |wire: &mut dyn FnMut(&Fh3) -> Answer<()>| {
        handles
            .clone()
            .map(|object| wire(&object).unwrap().map_err(|stat| assert_eq!(stat, AuthStat::TOOWEAK)).is_ok())
    };
    let getattr = |object: &Fh3| GetattrArgs { object: object.clone() };
    assert_eq!(answers(&mut |fh| plain.try_call(&getattr(fh)).map(|r| r.map(|_| ()))), [true, false, false]);
    assert_eq!(answers(&mut |fh| tls.try_call(&getattr(fh)).map(|r| r.map(|_| ()))), [true, true, false]);
    assert_eq!(answers(&mut |fh| mutual.try_call(&getattr(fh)).map(|r| r.map(|_| ()))), [true; 3]);
    // The rights of the subject, and those of other clients.
    let other = authority.card("guest", 8);
    let mut guest = connect(server.port).encrypt(&authority.client(Some(&other)));
    for (wire, writable) in [(&mut mutual, true), (&mut guest, false)] {
        let object = wire.call(&lookup(&handles[2], "f")).into_result().unwrap().object;
        let data = b"new"[..].into();
        let args = WriteArgs { file: object, offset: 0, count: 3, stable: StableHow::FILE_SYNC, data };
        assert_eq!(wire.call(&args).into_result().is_ok(), writable);
    }
    shown(&server);
}

/// The report has the protection of each connection.
fn shown(server: &Serve) {
    let state = server.dir.path().join("state");
    let said = hither(&["stat", "--server", state.to_str().unwrap(), "--json"]).ok();
    let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let list = report["connections"]["list"].as_array().unwrap();
    let mut transports: Vec<&str> = list.iter().map(|c| c["transport"].as_str().unwrap()).collect();
    transports.sort_unstable();
    assert_eq!(transports, ["mtls build-farm", "mtls guest", "none", "tls"]);
    let said = hither(&["stat", "--server", state.to_str().unwrap()]).ok();
    assert!(said.out.contains("mtls build-farm"), "{}", said.out);
}

/// A connection that presents an unknown certificate ends, and the log has the reason.
/// Promise: S17
#[test]
#[ignore = "needs root"]
fn unknown_client_certificate_is_refused() {
    let (server, authority) = three_exports();
    let elsewhere = tempfile::tempdir().unwrap();
    let foreign = Authority::new(elsewhere.path()).card("build-farm", 7);
    let mut wire = connect(server.port).encrypt(&authority.client(Some(&foreign)));
    assert!(!wire.is_served());
    wait_for("a line in the log", 10, || {
        server.complaints().contains("handshake: invalid peer certificate: UnknownIssuer")
    });
    assert!(connect(server.port).encrypt(&authority.client(None)).is_served());
}

/// SIGHUP replaces certificates without an interruption and revokes clients. Files that cannot be
/// used change nothing.
/// Promise: S17a
#[test]
#[ignore = "needs root"]
fn sighup_renews_and_revokes() {
    let (server, authority) = three_exports();
    let card = authority.card("build-farm", 7);
    let config = authority.client(Some(&card));
    let new = || connect(server.port).encrypt(&authority.client(None));
    let mut old = new();
    let mut mutual = connect(server.port).encrypt(&config);
    assert_eq!((old.serial(), mutual.serial()), (vec![1], vec![1]));
    authority.write("cert.pem", "nothing");
    server.signal(libc::SIGHUP);
    wait_for("a complaint", 20, || server.complaints().contains("the TLS keys stay as they are"));
    assert!(server.complaints().contains("cert.pem"), "{}", server.complaints());
    assert_eq!(new().serial(), [1]);
    authority.serve(2);
    server.signal(libc::SIGHUP);
    wait_for("the new certificate", 20, || new().serial() == [2]);
    assert!(old.is_served() && mutual.is_served());
    authority.revoke(&[7]);
    server.signal(libc::SIGHUP);
    wait_for("the end of a revoked client", 20, || {
        pause(50);
        !mutual.is_served()
    });
    assert!(!connect(server.port).encrypt(&config).is_served());
    assert!(old.is_served());
}

/// Options that make no sense are refused by name.
#[test]
fn useless_tls_options_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path());
    let serve = |words: &[&str]| {
        let mut command = Command::new(HITHER);
        command.args(["serve", "--memory", "--listen", "127.0.0.1:1", "--state-dir"]);
        let said = run(command.arg(dir.path().join("state")).args(words));
        assert_ne!(said.code, 0, "{said:?}");
        said.err
    };
    let (cert, key) = (authority.path("cert.pem"), authority.path("key.pem"));
    let tls = ["--tls-cert", cert.as_str(), "--tls-key", key.as_str()];
    let missing = serve(&["--tls-cert", &cert]);
    assert!(missing.contains("--tls-key"), "{missing}");
    let missing = serve(&["-o", "xprtsec=tls"]);
    assert!(missing.contains("xprtsec=tls needs --tls-cert"), "{missing}");
    let missing = serve(&[&tls[..], &["-o", "xprtsec=mtls"]].concat());
    assert!(missing.contains("--tls-client-ca"), "{missing}");
    let swapped = serve(&["--tls-cert", &cert, "--tls-key", &cert]);
    assert!(swapped.contains("cert.pem: no usable private key"), "{swapped}");
}
