//! TLS clients against a server of rustls, over TCP on loopback.

use super::*;
use crate::tls::{ALPN, IdentityFiles, STARTTLS, TlsReport, TlsSettings};
use crate::{Call, CallError, Client, ClientConfig, Credential, Endpoint, Retransmit, Stats, TcpConnect};
use hither_proto::record::frame;
use hither_proto::rpc::{self as wire, AcceptedReply, AuthFlavor, AuthStat, DeniedReply, Message};
use hither_proto::rpc::{AcceptStat, OpaqueAuth, ReplyBody, ReplyHeader, VersionRange};
use hither_proto::xdr::{Enc, Opaque};
use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncReadExt, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

const PROGRAM: Program = Program { number: 100_003, version: 4 };
const SERIAL: u64 = 77;

/// An authority, its certificate in a file, and a directory for more files.
struct Authority {
    dir: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key in PEM format.
struct Issued {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        Self::named("authority")
    }

    fn named(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir, issuer: Issuer::new(params, key) }
    }

    fn issue(&self, names: &[&str]) -> Issued {
        self.issue_with(names, |_| {})
    }

    fn issue_with(&self, names: &[&str], edit: impl FnOnce(&mut CertificateParams)) -> Issued {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.serial_number = Some(SerialNumber::from(SERIAL));
        edit(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Issued { certificate, key: key.serialize_pem() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// Writes a revocation list that ends in `until_year`.
    fn revoke(&self, serials: &[u64], until_year: i32) -> PathBuf {
        let then = date_time_ymd(2020, 1, 1);
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: then,
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: then,
            next_update: date_time_ymd(until_year, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        self.write("crl.pem", &list.signed_by(&self.issuer).unwrap().pem().unwrap())
    }

    fn settings(&self, server_name: &str) -> TlsSettings {
        TlsSettings {
            start: TlsStart::Probe,
            server_name: server_name.to_owned(),
            authorities: Some(self.path("ca.pem")),
            identity: None,
            revocations: None,
        }
    }
}

impl Issued {
    fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()]
    }

    fn server(&self, clients: Option<&Authority>) -> ServerConfig {
        let builder = ServerConfig::builder_with_provider(crate::tls::provider());
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let roots = crate::tls::read_authorities(Some(&authority.path("ca.pem"))).unwrap();
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots.into(), crate::tls::provider());
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        let mut config = builder.with_single_cert(self.chain(), key).unwrap();
        config.alpn_protocols = vec![ALPN.to_vec()];
        config
    }

    fn files(&self, authority: &Authority) -> IdentityFiles {
        IdentityFiles {
            certificate: authority.write("client.pem", &self.certificate),
            key: authority.write("client.key", &self.key),
        }
    }
}

/// Answers every connection, until it is dropped.
struct Server {
    addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn new<F: Future<Output = ()> + Send + 'static>(
        host: &str,
        serve: impl Fn(TcpStream) -> F + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind((host, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
        Self { addr, task }
    }

    /// A server with TLS after the probe.
    async fn tls(host: &str, config: ServerConfig) -> Self {
        let config = Arc::new(config);
        Self::new(host, move |stream| {
            let config = config.clone();
            async move {
                let mut stream = stream;
                let xid = expect_probe(&mut stream).await;
                stream.write_all(&starttls(xid)).await.unwrap();
                echo(stream, config).await;
            }
        })
        .await
    }

    /// A server that answers the probe with these bytes and closes.
    async fn answering(answer: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let answer = Arc::new(answer);
        Self::new("127.0.0.1", move |mut stream| {
            let answer = answer.clone();
            async move {
                let xid = expect_probe(&mut stream).await;
                stream.write_all(&answer(xid)).await.unwrap();
                // The client ends the connection.
                while stream.read(&mut [0; 4096]).await.is_ok_and(|n| n > 0) {}
            }
        })
        .await
    }

    fn connector(&self, tls: &Arc<ClientTls>) -> Arc<TlsConnect> {
        let endpoint = Endpoint {
            addr: self.addr,
            resvport: false,
            keepalive: false,
            connect_timeout: Duration::from_secs(10),
        };
        Arc::new(TlsConnect::new(Arc::new(TcpConnect::new(endpoint)), tls.clone(), PROGRAM))
    }

    async fn refusal(&self, settings: TlsSettings) -> TlsError {
        let tls = Arc::new(ClientTls::new(settings).unwrap());
        refusal(self.connector(&tls).connect(None).await)
    }
}

#[track_caller]
fn refusal(result: io::Result<Link>) -> TlsError {
    let error = result.expect_err("a connection without a reason");
    TlsError::of(&error).unwrap_or_else(|| panic!("{error}")).clone()
}

async fn expect_probe(stream: &mut TcpStream) -> u32 {
    let record = read_record(stream, 4096).await.unwrap();
    let Ok(Message::Call(call, body)) = Message::decode(&record) else { panic!("no call") };
    assert_eq!((call.prog, call.vers, call.proc), (100_003, 4, 0));
    assert_eq!((call.cred.flavor, call.cred.body.0.len()), (AuthFlavor::TLS, 0));
    assert_eq!((call.verf, body.len()), (OpaqueAuth::none(), 0));
    call.xid
}

fn answer(xid: u32, stat: AcceptStat, verifier: &[u8]) -> Vec<u8> {
    let verf = OpaqueAuth { flavor: AuthFlavor::NONE, body: Opaque::copy(verifier) };
    let header = ReplyHeader { xid, body: ReplyBody::Accepted(AcceptedReply { verf, stat }) };
    frame(Enc::of(&header)).concat()
}

fn starttls(xid: u32) -> Vec<u8> {
    answer(xid, AcceptStat::Success, STARTTLS)
}

/// Answers each call inside TLS with its own arguments.
async fn echo(stream: TcpStream, config: Arc<ServerConfig>) {
    let Ok(mut stream) = TlsAcceptor::from(config).accept(stream).await else { return };
    while let Ok(record) = read_record(&mut stream, 8 << 20).await {
        let Ok(Message::Call(call, body)) = Message::decode(&record) else { return };
        let mut results = Enc::new();
        results.raw(&body);
        stream.write_all(&frame(wire::reply(call.xid, results)).concat()).await.unwrap();
        stream.flush().await.unwrap();
    }
}

fn call(args: &[u8]) -> Call {
    let mut body = Enc::new();
    body.opaque(&bytes::Bytes::copy_from_slice(args));
    Call {
        prog: 100_003,
        vers: 4,
        proc: 1,
        op: "ECHO",
        cred: Credential::None,
        args: body,
        connection: None,
        retransmit: Retransmit::OnReconnect,
        deadline: None,
        cancel: None,
    }
}

/// Calls over a TLS connection and returns the sessions so far.
async fn use_connection(server: &Server, tls: &Arc<ClientTls>) -> TlsReport {
    let client = Client::new(server.connector(tls), ClientConfig::default(), Arc::new(Stats::new()));
    client.connect_now().await.unwrap();
    for len in [0, 5, 100_000, 3 << 20] {
        let reply = client.call(call(&vec![7; len])).await.unwrap();
        assert!(reply.body.len() >= len && reply.body[4..4 + len].iter().all(|b| *b == 7));
    }
    tls.report().unwrap()
}

#[tokio::test]
async fn names_and_addresses_are_accepted() {
    let authority = Authority::new();
    let names = ["server.test", "127.0.0.1", "::1"];
    let issued = authority.issue(&names);
    for (host, name) in [("127.0.0.1", "server.test"), ("127.0.0.1", "127.0.0.1"), ("::1", "::1")] {
        let server = Server::tls(host, issued.server(None)).await;
        let tls = Arc::new(ClientTls::new(authority.settings(name)).unwrap());
        assert_eq!(tls.report(), None);
        let report = use_connection(&server, &tls).await;
        assert_eq!((report.full, report.resumed, report.server_name.as_str()), (1, 0, name));
        assert_eq!(report.cipher, "AES-256-GCM");
    }
}

/// A reconnect resumes the session, after another probe.
#[tokio::test]
async fn reconnect_resumes_session() {
    let authority = Authority::new();
    let server = Server::tls("127.0.0.1", authority.issue(&["server.test"]).server(None)).await;
    let tls = Arc::new(ClientTls::new(authority.settings("server.test")).unwrap());
    use_connection(&server, &tls).await;
    let report = use_connection(&server, &tls).await;
    assert_eq!((report.full, report.resumed), (1, 1));
}

/// A certificate for other names does not identify the server.
/// Promise: 21b
#[tokio::test]
async fn wrong_name_is_refused() {
    let authority = Authority::new();
    let names = ["a.test", "192.0.2.7", "b.test", "c.test", "d.test"];
    let server = Server::tls("127.0.0.1", authority.issue(&names).server(None)).await;
    for name in ["server.test", "127.0.0.1"] {
        let refused = server.refusal(authority.settings(name)).await;
        let (expected, presented) = (name.to_owned(), "a.test, 192.0.2.7, b.test, c.test, ...".to_owned());
        assert_eq!(refused, TlsError::WrongName { expected, presented });
    }
}

/// A certificate of an unknown authority does not identify the server.
/// Promise: 21b
#[tokio::test]
async fn unknown_authority_is_refused() {
    let authority = Authority::new();
    let server = Server::tls("127.0.0.1", authority.issue(&["server.test"]).server(None)).await;
    // An authority may be made anew with the same name.
    for name in ["authority", "other"] {
        let other = Authority::named(name);
        assert_eq!(server.refusal(other.settings("server.test")).await, TlsError::UnknownAuthority);
    }
}

/// The validity of the certificate counts.
/// Promise: 21b
#[tokio::test]
async fn validity_is_checked() {
    let authority = Authority::new();
    let expired = authority.issue_with(&["server.test"], |p| p.not_after = date_time_ymd(2021, 1, 1));
    let server = Server::tls("127.0.0.1", expired.server(None)).await;
    assert_eq!(server.refusal(authority.settings("server.test")).await, TlsError::Expired);
    let early = authority.issue_with(&["server.test"], |p| p.not_before = date_time_ymd(2121, 1, 1));
    let server = Server::tls("127.0.0.1", early.server(None)).await;
    assert_eq!(server.refusal(authority.settings("server.test")).await, TlsError::NotYetValid);
}

/// A list without the certificate admits it. An expired list and a list of another issuer do not.
/// Promise: 21b
#[tokio::test]
async fn revoked_certificate_is_refused() {
    let authority = Authority::new();
    let server = Server::tls("127.0.0.1", authority.issue(&["server.test"]).server(None)).await;
    let with = |list: PathBuf| TlsSettings { revocations: Some(list), ..authority.settings("server.test") };
    let revoked = server.refusal(with(authority.revoke(&[SERIAL], 2121))).await;
    assert_eq!(revoked, TlsError::Revoked);
    let expired = server.refusal(with(authority.revoke(&[1], 2021))).await;
    assert_eq!(expired, TlsError::RevocationListExpired);
    for name in ["authority", "other"] {
        let other = Authority::named(name);
        let foreign = server.refusal(with(other.revoke(&[1], 2121))).await;
        assert_eq!(foreign, TlsError::RevocationUnknown);
    }
    let tls = Arc::new(ClientTls::new(with(authority.revoke(&[1], 2121))).unwrap());
    use_connection(&server, &tls).await;
}

/// A server without TLS gets no byte in clear text after the probe. Neither does a man in the
/// middle that strips STARTTLS from the reply.
/// Promise: 21b
#[tokio::test]
async fn stripped_probe_is_refused() {
    let authority = Authority::new();
    let denied =
        |why: DeniedReply| move |xid| frame(Enc::of(&ReplyHeader::denied(xid, why.clone()))).concat();
    let servers = [
        Server::answering(|xid| answer(xid, AcceptStat::Success, b"")).await,
        Server::answering(|xid| answer(xid, AcceptStat::Success, b"STARTTL_")).await,
        Server::answering(|xid| answer(xid, AcceptStat::Success, b"STARTTLSS")).await,
        Server::answering(|xid| starttls(xid.wrapping_add(1))).await,
        Server::answering(|xid| answer(xid, AcceptStat::SystemErr, STARTTLS)).await,
        Server::answering(denied(DeniedReply::AuthError(AuthStat::REJECTEDCRED))).await,
        Server::answering(denied(DeniedReply::RpcMismatch(VersionRange { low: 3, high: 3 }))).await,
        Server::answering(|_| b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()).await,
        // A record of 2 GiB.
        Server::answering(|_| vec![0xff; 64]).await,
    ];
    for (i, server) in servers.iter().enumerate() {
        let refused = server.refusal(authority.settings("server.test")).await;
        assert!(matches!(refused, TlsError::NotOffered(_)), "{i}: {refused:?}");
    }
}

/// Negotiation of the version goes on, so that the older version can begin its own TLS.
#[tokio::test]
async fn missing_version_is_named() {
    let authority = Authority::new();
    let range = VersionRange { low: 3, high: 3 };
    let server = Server::answering(move |xid| answer(xid, AcceptStat::ProgMismatch(range), STARTTLS)).await;
    let refused = server.refusal(authority.settings("server.test")).await;
    assert_eq!(refused, TlsError::NoSuchVersion { offered: Some((3, 3)) });
}

/// Clear text behind STARTTLS is no part of the TLS session.
/// Promise: 21b
#[tokio::test]
async fn injected_bytes_are_refused() {
    let authority = Authority::new();
    let injecting = |xid| [starttls(xid), starttls(xid)].concat();
    let server = Server::answering(injecting).await;
    assert_eq!(server.refusal(authority.settings("server.test")).await, TlsError::Injected);
}

/// A server of another protocol is refused. A server that selects no ALPN name is used, because the
/// Linux server selects none.
#[tokio::test]
async fn server_of_another_protocol_is_refused() {
    let authority = Authority::new();
    let mut config = authority.issue(&["server.test"]).server(None);
    config.alpn_protocols = Vec::new();
    let server = Server::tls("127.0.0.1", config).await;
    let tls = Arc::new(ClientTls::new(authority.settings("server.test")).unwrap());
    use_connection(&server, &tls).await;
    let mut config = authority.issue(&["server.test"]).server(None);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let server = Server::tls("127.0.0.1", config).await;
    assert_eq!(server.refusal(authority.settings("server.test")).await, TlsError::NoAlpn);
}

/// The server's verdict on the client certificate is an error of the attempt to connect.
#[tokio::test]
async fn client_certificate_is_judged() {
    let authority = Authority::new();
    let server = authority.issue(&["server.test"]).server(Some(&authority));
    let server = Server::tls("127.0.0.1", server).await;
    let missing = server.refusal(authority.settings("server.test")).await;
    assert_eq!(missing, TlsError::CertificateRequired);
    let with = |identity| TlsSettings { identity: Some(identity), ..authority.settings("server.test") };
    for name in ["authority", "other"] {
        let foreign = Authority::named(name).issue(&["client.test"]).files(&authority);
        let refused = server.refusal(with(foreign)).await;
        assert!(matches!(refused, TlsError::CertificateRefused(_)), "{refused:?}");
    }
    let tls = Arc::new(ClientTls::new(with(authority.issue(&["client.test"]).files(&authority))).unwrap());
    assert!(use_connection(&server, &tls).await.has_certificate);
    // The resumed session needs no second verdict.
    assert_eq!(use_connection(&server, &tls).await.resumed, 1);
}

/// Without a probe the session begins with the first byte, and needs no ALPN.
#[tokio::test]
async fn direct_tls_needs_no_probe() {
    let authority = Authority::new();
    let direct = TlsSettings { start: TlsStart::Direct, ..authority.settings("server.test") };
    for names in [vec![], vec![b"h2".to_vec()]] {
        let mut config = authority.issue(&["server.test"]).server(None);
        config.alpn_protocols = names;
        let config = Arc::new(config);
        let server = Server::new("127.0.0.1", move |stream| echo(stream, config.clone())).await;
        let tls = Arc::new(ClientTls::new(direct.clone()).unwrap());
        assert_eq!(use_connection(&server, &tls).await.full, 1);
    }
    let plain = Server::new("127.0.0.1", |mut stream| async move {
        let _ = stream.read(&mut [0; 64]).await;
        let _ = stream.write_all(&starttls(1)).await;
        let _ = stream.read(&mut [0; 64]).await;
    });
    assert_eq!(plain.await.refusal(direct.clone()).await, TlsError::NotTls);
    let closing = Server::new("127.0.0.1", |mut stream| async move {
        let _ = stream.read(&mut [0; 4096]).await;
    });
    assert!(matches!(closing.await.refusal(direct).await, TlsError::Closed(_)));
}

/// The time limit covers a server that accepts the probe and then says nothing.
#[tokio::test(start_paused = true)]
async fn silent_server_ends_attempt() {
    let authority = Authority::new();
    let server = Server::answering(starttls).await;
    let refused = server.refusal(authority.settings("server.test")).await;
    assert_eq!(refused, TlsError::Silent);
    assert!(refused.is_transient());
}

/// A renewed certificate serves the next connection. An unusable file changes nothing.
#[tokio::test]
async fn changed_files_are_read_again() {
    let authority = Authority::new();
    let server = authority.issue(&["server.test"]).server(Some(&authority));
    let server = Server::tls("127.0.0.1", server).await;
    let foreign = Authority::new().issue(&["client.test"]).files(&authority);
    let settings = TlsSettings { identity: Some(foreign), ..authority.settings("server.test") };
    let tls = Arc::new(ClientTls::new(settings).unwrap());
    refusal(server.connector(&tls).connect(None).await);
    authority.issue(&["client.test"]).files(&authority);
    server.connector(&tls).connect(None).await.unwrap();
    authority.write("client.pem", "no certificate");
    server.connector(&tls).connect(None).await.unwrap();
    std::fs::remove_file(authority.path("ca.pem")).unwrap();
    server.connector(&tls).connect(None).await.unwrap();
}

#[test]
fn unusable_settings_are_named() {
    let authority = Authority::new();
    let error = |settings| ClientTls::new(settings).unwrap_err().to_string();
    assert!(error(authority.settings("no name")).contains("tls-server-name"));
    let missing = TlsSettings { authorities: Some("/no/ca.pem".into()), ..authority.settings("a") };
    assert!(error(missing).contains("/no/ca.pem"));
    let mut identity = authority.issue(&["a"]).files(&authority);
    identity.key = authority.write("other.key", &authority.issue(&["a"]).key);
    let mixed = error(TlsSettings { identity: Some(identity), ..authority.settings("a") });
    assert!(mixed.contains("other.key is not the private key of"), "{mixed}");
}

/// The reason reaches callers of a client.
#[tokio::test]
async fn client_reports_reason() {
    let authority = Authority::new();
    let server = Server::tls("127.0.0.1", authority.issue(&["server.test"]).server(None)).await;
    let tls = Arc::new(ClientTls::new(Authority::new().settings("server.test")).unwrap());
    let cfg = ClientConfig { fail_when_unreachable: true, ..ClientConfig::default() };
    let client = Client::new(server.connector(&tls), cfg, Arc::new(Stats::new()));
    for error in [client.connect_now().await.unwrap_err(), client.call(call(b"")).await.unwrap_err()] {
        let CallError::Connect(error) = error else { panic!("{error}") };
        assert_eq!(TlsError::of(&error), Some(&TlsError::UnknownAuthority));
    }
}

/// An inner connection over memory, with little room.
struct Memory(Mutex<Option<DuplexStream>>);

impl Connect for Memory {
    fn connect(&self, _previous: Option<SocketAddr>) -> BoxFuture<'_, io::Result<Link>> {
        let stream = self.0.lock().take().unwrap();
        let (reader, writer) = split(stream);
        let link = Link { reader: Box::new(reader), writer: Box::new(writer), local: None };
        Box::pin(std::future::ready(Ok(link)))
    }

    fn server(&self) -> String {
        "memory".into()
    }
}

/// A peer that reads nothing blocks the writer, and not the reader.
#[tokio::test]
async fn blocked_writer_blocks_no_reader() {
    let authority = Authority::new();
    let config = Arc::new(authority.issue(&["server.test"]).server(None));
    let (near, far) = duplex(8 << 10);
    let settings = TlsSettings { start: TlsStart::Direct, ..authority.settings("server.test") };
    let tls = Arc::new(ClientTls::new(settings).unwrap());
    let connect = TlsConnect::new(Arc::new(Memory(Mutex::new(Some(near)))), tls, PROGRAM);
    let accepting = TlsAcceptor::from(config).accept(far);
    let (link, accepted) = tokio::join!(connect.connect(None), accepting);
    let (Link { mut reader, mut writer, .. }, accepted) = (link.unwrap(), accepted.unwrap());
    let (mut far_reader, mut far_writer) = split(accepted);
    let writing = tokio::spawn(async move {
        writer.write_all(&vec![1; 1 << 20]).await.unwrap();
        writer.flush().await.unwrap();
        writer
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!writing.is_finished());
    far_writer.write_all(b"reply").await.unwrap();
    far_writer.flush().await.unwrap();
    let mut reply = [0; 5];
    timeout(Duration::from_secs(10), reader.read_exact(&mut reply)).await.unwrap().unwrap();
    assert_eq!((&reply, writing.is_finished()), (b"reply", false));
    let mut all = vec![0; 1 << 20];
    far_reader.read_exact(&mut all).await.unwrap();
    // The end of the writer is an orderly end of TLS: no error at the peer.
    drop(writing.await.unwrap());
    let end = timeout(Duration::from_secs(10), far_reader.read(&mut all)).await.unwrap();
    assert_eq!(end.unwrap(), 0);
}

proptest! {
    /// No reply to the probe panics, takes memory for its announced length, or counts as STARTTLS.
    #[test]
    fn any_reply_is_judged(bytes in proptest::collection::vec(any::<u8>(), 0..96), xid in any::<u32>(), cut in 0..40_usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let read = |bytes: Vec<u8>| runtime.block_on(async move {
            read_record(&mut &bytes[..], REPLY_MAX_BYTES).await
        });
        if let Ok(record) = read(bytes.clone()) {
            prop_assert!(record.len() <= bytes.len());
            prop_assert!(probe::judge(&record, xid).is_err());
        }
        let right = starttls(xid);
        let whole = read(right.clone()).unwrap();
        prop_assert_eq!(probe::judge(&whole, xid), Ok(()));
        let cut = cut.min(whole.len() - 1);
        prop_assert!(probe::judge(&whole.slice(..cut), xid).is_err());
        prop_assert!(read(right[..cut].to_vec()).is_err());
    }
}
