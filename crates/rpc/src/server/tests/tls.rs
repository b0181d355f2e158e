//! Clients that ask for TLS (RFC 9289), and clients that try to get around it.

use super::super::tls::{HANDSHAKE_BYTES, HANDSHAKE_MAX};
use super::*;
use crate::tls::{ALPN, STARTTLS, provider};
use hither_proto::rpc::AcceptedReply;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, ClientConfig, Error as TlsError, RootCertStore};
use std::path::{Path, PathBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// An authority with its directory of files.
struct Authority {
    dir: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key.
struct Card {
    certificate: CertificateDer<'static>,
    key: KeyPair,
    pem: String,
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Authority {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("hither-rpc-tls-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, dir.to_string_lossy().as_ref());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let this = Self { dir, issuer };
        this.write("ca.pem", &this.issuer.pem());
        this.serve("server.test", 1);
        this.revoke(&[]);
        this
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.join(name), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn issue(&self, name: &str, serial: u64, year: i32) -> Card {
        self.issue_with(name, serial, |params| params.not_after = date_time_ymd(year, 1, 1))
    }

    fn issue_with(&self, name: &str, serial: u64, change: impl FnOnce(&mut CertificateParams)) -> Card {
        let mut params = CertificateParams::new(vec!["server.test".into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(SerialNumber::from(serial));
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Card { certificate: certificate.der().clone(), key, pem: certificate.pem() }
    }

    /// Writes the server's certificate and key.
    fn serve(&self, name: &str, serial: u64) {
        let card = self.issue(name, serial, 4000);
        self.write("cert.pem", &card.pem);
        self.write("key.pem", &card.key.serialize_pem());
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

    fn files(&self, mutual: bool) -> TlsFiles {
        TlsFiles {
            certificate: self.path("cert.pem"),
            key: self.path("key.pem"),
            client_authorities: mutual.then(|| self.path("ca.pem")),
            revocations: mutual.then(|| self.path("crl.pem")),
        }
    }

    fn client(&self, card: Option<&Card>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match card {
            Some(card) => {
                let key = PrivateKeyDer::try_from(card.key.serialize_der()).unwrap();
                builder.with_client_auth_cert(vec![card.certificate.clone()], key).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        config
    }
}

fn secure(authority: &Authority, mutual: bool, limits: ServerLimits) -> (Acceptor, Arc<Echo>) {
    let service = Arc::new(Echo::default());
    let tls = Tls::new(authority.files(mutual)).unwrap();
    (Acceptor::secure(service.clone(), limits, Security { tls: Some(tls), gss: None }), service)
}

fn tls_request(xid: u32, proc: u32, body: &[u8]) -> Enc {
    let cred = OpaqueAuth { flavor: AuthFlavor::TLS, body: body.into() };
    call(xid, PROG, 3, proc, &cred, Enc::new())
}

async fn verifier<S: AsyncRead + AsyncWrite + Unpin>(wire: &mut Wire<S>) -> Vec<u8> {
    match wire.next().await {
        Some(Message::Reply(
            ReplyHeader {
                body: ReplyBody::Accepted(AcceptedReply { verf, stat: AcceptStat::Success }), ..
            },
            _,
        )) => {
            assert_eq!(verf.flavor, AuthFlavor::NONE);
            verf.body.to_vec()
        }
        other => panic!("{other:?}"),
    }
}

async fn denied<S: AsyncRead + AsyncWrite + Unpin>(wire: &mut Wire<S>) -> AuthStat {
    match wire.next().await {
        Some(Message::Reply(
            ReplyHeader { body: ReplyBody::Denied(DeniedReply::AuthError(stat)), .. },
            _,
        )) => stat,
        other => panic!("{other:?}"),
    }
}

/// Asks for TLS and performs the client's part of the handshake.
async fn encrypt(
    mut wire: Wire,
    config: &Arc<ClientConfig>,
) -> std::io::Result<Wire<TlsStream<DuplexStream>>> {
    wire.send(tls_request(77, 0, b"")).await;
    assert_eq!(verifier(&mut wire).await, STARTTLS);
    let name = ServerName::try_from("server.test").unwrap();
    let stream = TlsConnector::from(config.clone()).connect(name, wire.stream).await?;
    Ok(Wire::over(stream))
}

async fn until(mut done: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if done() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it does not happen");
}

/// A connection continues with TLS. Payloads in memory and in pipes arrive at their place, and no
/// memory stays in use.
/// Promise: S17
#[tokio::test]
async fn tls_connection_is_served() {
    let authority = Authority::new();
    let (acceptor, service) = secure(&authority, false, ServerLimits::default());
    let mut wire = Wire::new(&acceptor);
    wire.ask(1, 3, 0, &[]).await;
    assert_eq!(wire.stat().await, AcceptStat::Success);
    assert_eq!(acceptor.figures().connections[0].transport, Transport::Plain);
    let mut wire = encrypt(wire, &authority.client(None).into()).await.unwrap();
    wire.ask(2, 3, 0, &[]).await;
    assert_eq!(wire.stat().await, AcceptStat::Success);
    assert_eq!(acceptor.figures().connections[0].transport, Transport::Tls);
    assert_eq!(service.closed.load(Relaxed), 1, "for the service, the plain connection has ended");
    payloads(wire.stream).await;
    until(|| acceptor.connections() == 0).await;
    assert_eq!(service.closed.load(Relaxed), 2);
    assert!(acceptor.global.budget.is_clear());
    assert_eq!(acceptor.figures().dropped, 0);
}

/// At the end of a connection the server sends close_notify, so that the client knows that nothing
/// is missing.
#[tokio::test]
async fn server_sends_close_notify() {
    let authority = Authority::new();
    let (acceptor, _) = secure(&authority, false, ServerLimits::default());
    let mut wire = encrypt(Wire::new(&acceptor), &authority.client(None).into()).await.unwrap();
    wire.ask(1, 3, 0, &[]).await;
    assert_eq!(wire.stat().await, AcceptStat::Success);
    acceptor.shutdown();
    let mut rest = Vec::new();
    assert_eq!(wire.stream.read_to_end(&mut rest).await.unwrap(), 0);
}

/// A call of the server from the plain phase gets no answer from TLS.
#[tokio::test]
async fn plain_callback_ends_with_plain_phase() {
    let authority = Authority::new();
    let (acceptor, service) = secure(&authority, false, ServerLimits::default());
    let mut wire = Wire::new(&acceptor);
    wire.ask(1, 3, 8, &[]).await;
    let Some(Message::Call(header, _)) = wire.next().await else { panic!("no call") };
    assert_eq!(wire.stat().await, AcceptStat::Success);
    let mut wire = encrypt(wire, &authority.client(None).into()).await.unwrap();
    wire.send(hither_proto::rpc::reply(header.xid, Enc::new())).await;
    wire.ask(2, 3, 0, &[]).await;
    assert_eq!(wire.stat().await, AcceptStat::Success);
    until(|| service.unanswered.load(Relaxed) == 1).await;
}

/// The server calls the client through TLS.
#[tokio::test]
async fn callback_is_encrypted() {
    let authority = Authority::new();
    let (acceptor, _) = secure(&authority, false, ServerLimits::default());
    let mut wire = encrypt(Wire::new(&acceptor), &authority.client(None).into()).await.unwrap();
    wire.ask(1, 3, 5, &[]).await;
    let Some(Message::Call(header, _)) = wire.next().await else { panic!("no call") };
    wire.send(hither_proto::rpc::reply(header.xid, Enc::new())).await;
    assert_eq!(wire.stat().await, AcceptStat::Success);
}

/// A server without keys answers the request for TLS like a NULL call, without the verifier.
#[tokio::test]
async fn request_without_keys_gets_plain_answer() {
    let (acceptor, _) = acceptor(ServerLimits::default());
    let mut wire = Wire::new(&acceptor);
    wire.send(tls_request(1, 0, b"")).await;
    assert_eq!(verifier(&mut wire).await, b"");
    wire.send(tls_request(2, 1, b"")).await;
    assert_eq!(denied(&mut wire).await, AuthStat::BADCRED);
}

/// A request for TLS with a procedure, with a body, or inside of TLS gets AUTH_BADCRED. The
/// connection continues.
#[tokio::test]
async fn wrong_tls_requests_are_denied() {
    let authority = Authority::new();
    let (acceptor, service) = secure(&authority, false, ServerLimits::default());
    let mut wire = Wire::new(&acceptor);
    for (xid, proc, body) in [(1, 1, &b""[..]), (2, 0, b"body"), (3, 99, b"")] {
        wire.send(tls_request(xid, proc, body)).await;
        assert_eq!(denied(&mut wire).await, AuthStat::BADCRED);
    }
    let mut wire = encrypt(wire, &authority.client(None).into()).await.unwrap();
    wire.send(tls_request(4, 0, b"")).await;
    assert_eq!(denied(&mut wire).await, AuthStat::BADCRED);
    assert_eq!(service.running.load(Relaxed), 0);
    wire.ask(5, 3, 0, &[]).await;
    assert_eq!(wire.stat().await, AcceptStat::Success);
}

/// Calls behind the request for TLS, in the same bytes or later, are never executed.
/// Promise: S17
#[tokio::test]
async fn plain_calls_behind_tls_request_are_refused() {
    let authority = Authority::new();
    let (acceptor, service) = secure(&authority, false, ServerLimits::default());
    let request = record::frame(tls_request(1, 0, b"")).concat();
    let injected = record::frame(call(2, PROG, 3, 0, &OpaqueAuth::none(), Enc::new())).concat();
    let mut wire = Wire::new(&acceptor);
    wire.stream.write_all(&[&request[..], &injected[..]].concat()).await.unwrap();
    assert!(wire.next().await.is_none());
    let mut wire = Wire::new(&acceptor);
    wire.stream.write_all(&[&request[..], &injected[..2]].concat()).await.unwrap();
    assert!(wire.next().await.is_none());
    let mut wire = Wire::new(&acceptor);
    wire.stream.write_all(&request).await.unwrap();
    assert_eq!(verifier(&mut wire).await, STARTTLS);
    wire.stream.write_all(&injected).await.unwrap();
    let mut rest = Vec::new();
    let _ = wire.stream.read_to_end(&mut rest).await;
    assert!(rest.len() <= 7, "{} bytes: at most an alert", rest.len());
    until(|| service.closed.load(Relaxed) == 3).await;
    assert_eq!(service.running.load(Relaxed), 0);
    assert_eq!(acceptor.figures().dropped, 3);
}

/// Calls in progress are answered before the reply to the request for TLS.
#[tokio::test]
async fn calls_end_before_tls_begins() {
    let authority = Authority::new();
    let (acceptor, service) = secure(&authority, false, ServerLimits::default());
    let mut wire = Wire::new(&acceptor);
    wire.ask(1, 3, 1, &[]).await;
    wire.send(tls_request(2, 0, b"")).await;
    until(|| service.running.load(Relaxed) == 1).await;
    let mut other = Wire::new(&acceptor);
    other.ask(1, 3, 2, &[]).await;
    assert_eq!(other.stat().await, AcceptStat::Success);
    let xids = [wire.next().await.unwrap().xid(), wire.next().await.unwrap().xid()];
    assert_eq!(xids, [1, 2]);
}

/// A call that does not end in time ends the connection that asks for TLS behind it.
#[tokio::test(start_paused = true)]
async fn endless_call_ends_tls_request() {
    let authority = Authority::new();
    let (acceptor, _) = secure(&authority, false, ServerLimits::default());
    let mut wire = Wire::new(&acceptor);
    wire.ask(1, 3, 1, &[]).await;
    wire.send(tls_request(2, 0, b"")).await;
    let begun = Instant::now();
    assert!(wire.next().await.is_none());
    assert_eq!(begun.elapsed().as_secs(), 10);
    assert_eq!(acceptor.figures().dropped, 1);
}

/// A client of another protocol gets the alert for it. A client without ALPN is served, because the
/// Linux client has none.
#[tokio::test]
async fn client_of_another_protocol_is_refused() {
    let authority = Authority::new();
    let (acceptor, _) = secure(&authority, false, ServerLimits::default());
    let mut config = authority.client(None);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let error = encrypt(Wire::new(&acceptor), &config.into()).await.map(|_| ()).unwrap_err();
    let error = error.into_inner().unwrap().downcast::<TlsError>().unwrap();
    assert_eq!(*error, TlsError::AlertReceived(AlertDescription::NoApplicationProtocol));
    let mut config = authority.client(None);
    config.alpn_protocols = Vec::new();
    drop(encrypt(Wire::new(&acceptor), &config.into()).await.unwrap());
    until(|| acceptor.connections() == 0).await;
}

/// The ClientHello of a client that has only TLS 1.2.
fn old_hello() -> Vec<u8> {
    let alpn = [&[0, 16, 0, 9, 0, 7, 6][..], ALPN].concat();
    let groups = [0, 10, 0, 4, 0, 2, 0, 29];
    let signatures = [0, 13, 0, 4, 0, 2, 4, 3];
    let extensions = [&alpn[..], &groups, &signatures].concat();
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]);
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let mut message = vec![1, 0];
    message.extend((body.len() as u16).to_be_bytes());
    message.extend(body);
    let mut out = vec![22, 3, 1];
    out.extend((message.len() as u16).to_be_bytes());
    out.extend(message);
    out
}

/// A client that has only TLS 1.2 gets the alert for it. Bytes that are no ClientHello end the
/// connection.
#[tokio::test]
async fn old_versions_and_garbage_end_the_handshake() {
    let authority = Authority::new();
    let (acceptor, service) = secure(&authority, false, ServerLimits::default());
    let garbage = b"GET / HTTP/1.1\r\n\r\n".to_vec();
    let long = [22, 3, 1, 0xff, 0xff].to_vec();
    for (i, (bytes, alert)) in
        [(old_hello(), Some(70)), (garbage, None), (long, None)].into_iter().enumerate()
    {
        let mut wire = Wire::new(&acceptor);
        wire.send(tls_request(1, 0, b"")).await;
        assert_eq!(verifier(&mut wire).await, STARTTLS);
        wire.stream.write_all(&bytes).await.unwrap();
        let mut rest = Vec::new();
        let _ = wire.stream.read_to_end(&mut rest).await;
        if let Some(alert) = alert {
            assert_eq!(rest.last(), Some(&alert), "{rest:?}");
        }
        until(|| service.closed.load(Relaxed) == i as u32 + 1).await;
    }
    assert!(acceptor.global.budget.is_clear());
}

/// A handshake that stalls ends after ten seconds. Until then it counts as idle: it gives way to
/// new connections.
#[tokio::test(start_paused = true)]
async fn stalled_handshake_ends() {
    let authority = Authority::new();
    let limits = ServerLimits { connections_max: 8, ..ServerLimits::default() };
    let (acceptor, _) = secure(&authority, false, limits);
    let mut stalled = Vec::new();
    for _ in 0..4 {
        let mut wire = Wire::new(&acceptor);
        wire.send(tls_request(1, 0, b"")).await;
        assert_eq!(verifier(&mut wire).await, STARTTLS);
        wire.stream.write_all(&old_hello()[..20]).await.unwrap();
        stalled.push(wire);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(acceptor.memory_bytes() >= 4 * HANDSHAKE_BYTES);
    assert!(acceptor.global.make_room("192.0.2.1".parse().unwrap()));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(acceptor.connections(), 3);
    tokio::time::sleep(HANDSHAKE_MAX - Duration::from_secs(2)).await;
    assert_eq!(acceptor.connections(), 3);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(acceptor.connections(), 0);
    assert!(acceptor.global.budget.is_clear());
}

/// A client of TLS that does not read its replies holds no more memory than the limit. Its further
/// calls are read while the write waits. The connection ends.
/// Promise: S7
#[tokio::test(start_paused = true)]
async fn nonreading_tls_client_is_bounded() {
    const LIMIT: usize = 64 << 20;
    let authority = Authority::new();
    let limits = ServerLimits { memory_max_bytes: LIMIT, ..ServerLimits::default() };
    let (acceptor, service) = secure(&authority, false, limits);
    let mut wire = encrypt(Wire::new(&acceptor), &authority.client(None).into()).await.unwrap();
    wire.ask(0, 3, 4, &(1u32 << 20).to_be_bytes()).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    wire.ask(1, 3, 0, &[]).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(service.running.load(Relaxed), 2, "a call is read while a write waits");
    for xid in 2..34 {
        wire.ask(xid, 3, 7, &(1u32 << 20).to_be_bytes()).await;
        assert!(acceptor.memory_bytes() <= LIMIT);
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    let held = acceptor.memory_bytes();
    assert!((3 << 20..=LIMIT).contains(&held), "{held} bytes: payloads in pipes count");
    tokio::time::sleep(ServerLimits::default().stall * 2).await;
    assert_eq!((acceptor.connections(), acceptor.memory_bytes()), (0, 0));
    assert_eq!(acceptor.figures().dropped, 1);
}

/// Calls over TLS and returns whether it was answered.
async fn is_served(acceptor: &Acceptor, config: ClientConfig) -> bool {
    let Ok(mut wire) = encrypt(Wire::new(acceptor), &config.into()).await else { return false };
    let message = call(1, PROG, 3, 0, &OpaqueAuth::none(), Enc::new());
    let sent = wire.stream.write_all(&record::frame(message).concat()).await;
    sent.is_ok() && wire.stream.flush().await.is_ok() && wire.next().await.is_some()
}

/// A valid client certificate gives the connection its names. A client without a certificate is
/// served as TLS. Certificates of another authority, expired and revoked ones end the handshake.
/// Promise: S17
#[tokio::test]
async fn client_certificates_are_verified() {
    let authority = Authority::new();
    authority.revoke(&[66]);
    let (acceptor, _) = secure(&authority, true, ServerLimits::default());
    let good = authority.issue("build-farm", 5, 4000);
    let mut wire = encrypt(Wire::new(&acceptor), &authority.client(Some(&good)).into()).await.unwrap();
    wire.ask(1, 3, 0, &[]).await;
    assert_eq!(wire.stat().await, AcceptStat::Success);
    let transport = acceptor.figures().connections[0].transport.clone();
    assert_eq!(transport.names(), ["build-farm", "server.test"]);
    assert_eq!(transport.to_string(), "mtls build-farm");
    assert!(is_served(&acceptor, authority.client(None)).await);
    let other = Authority::new();
    let foreign = other.issue("build-farm", 5, 4000);
    assert!(!is_served(&acceptor, authority.client(Some(&foreign))).await, "another authority");
    let expired = authority.issue("build-farm", 6, 2020);
    assert!(!is_served(&acceptor, authority.client(Some(&expired))).await, "expired");
    let revoked = authority.issue("build-farm", 66, 4000);
    assert!(!is_served(&acceptor, authority.client(Some(&revoked))).await, "revoked");
    assert_eq!(acceptor.figures().dropped, 3);
}

/// A session with a client certificate is not resumed once the certificate has expired.
#[tokio::test]
async fn expired_certificate_ends_resumption() {
    let authority = Authority::new();
    let (acceptor, _) = secure(&authority, true, ServerLimits::default());
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let end = date_time_ymd(1970, 1, 1) + now + Duration::from_secs(2);
    let card = authority.issue_with("build-farm", 5, |params| params.not_after = end);
    let config = Arc::new(authority.client(Some(&card)));
    assert!(is_served(&acceptor, (*config).clone()).await);
    let mut again = encrypt(Wire::new(&acceptor), &config).await.unwrap();
    assert_eq!(again.stream.get_ref().1.handshake_kind(), Some(rustls::HandshakeKind::Resumed));
    again.ask(1, 3, 0, &[]).await;
    assert_eq!(again.stat().await, AcceptStat::Success);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!is_served(&acceptor, (*config).clone()).await);
    until(|| acceptor.figures().dropped == 1).await;
}

/// The serial number of the server's certificate.
async fn serial(acceptor: &Acceptor, authority: &Authority) -> Option<Vec<u8>> {
    let wire = encrypt(Wire::new(acceptor), &authority.client(None).into()).await.unwrap();
    let (_, connection) = wire.stream.get_ref();
    let chain = connection.peer_certificates()?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&chain[0]).unwrap();
    Some(parsed.raw_serial().to_vec())
}

/// New files hold for later handshakes after a reload. Files that cannot be used change nothing.
/// A client whose certificate is revoked loses its connection, and cannot resume its session.
/// Promise: S17a
#[tokio::test]
async fn reload_replaces_keys_and_revokes_clients() {
    let authority = Authority::new();
    let (acceptor, _) = secure(&authority, true, ServerLimits::default());
    let card = authority.issue("build-farm", 5, 4000);
    let config = Arc::new(authority.client(Some(&card)));
    let mut wire = encrypt(Wire::new(&acceptor), &config).await.unwrap();
    wire.ask(1, 3, 0, &[]).await;
    assert_eq!(wire.stat().await, AcceptStat::Success);
    let mut again = encrypt(Wire::new(&acceptor), &config).await.unwrap();
    again.ask(1, 3, 0, &[]).await;
    assert_eq!(again.stat().await, AcceptStat::Success);
    let kind = again.stream.get_ref().1.handshake_kind();
    assert_eq!(kind, Some(rustls::HandshakeKind::Resumed));
    assert_eq!(serial(&acceptor, &authority).await, Some(vec![1]));
    authority.write("cert.pem", "no certificate");
    let error = acceptor.reload_tls().unwrap_err().to_string();
    assert!(error.contains("cert.pem"), "{error}");
    assert_eq!(serial(&acceptor, &authority).await, Some(vec![1]));
    authority.serve("server.test", 2);
    acceptor.reload_tls().unwrap();
    assert_eq!(serial(&acceptor, &authority).await, Some(vec![2]));
    wire.ask(2, 3, 0, &[]).await;
    assert_eq!(wire.stat().await, AcceptStat::Success, "a valid client keeps its connection");
    authority.revoke(&[5]);
    acceptor.reload_tls().unwrap();
    for wire in [&mut wire, &mut again] {
        let ended = tokio::time::timeout(Duration::from_secs(10), wire.next()).await;
        assert_eq!(ended, Ok(None), "a revoked client");
    }
    assert!(!is_served(&acceptor, (*config).clone()).await);
}

/// Files that do not fit are refused by name.
#[test]
fn mismatched_tls_files_are_named() {
    let authority = Authority::new();
    let other = authority.issue("other", 9, 4000);
    authority.write("key.pem", &other.key.serialize_pem());
    let text = Tls::new(authority.files(false)).unwrap_err().to_string();
    assert!(text.contains("cert.pem") && text.contains("key.pem"), "{text}");
    authority.serve("server.test", 1);
    let files = TlsFiles { revocations: Some(Path::new("/no/crl.pem").into()), ..authority.files(true) };
    let text = Tls::new(files).unwrap_err().to_string();
    assert!(text.contains("/no/crl.pem"), "{text}");
}

/// Arbitrary bytes around a request for TLS, in arbitrary pieces, execute no call. Damaged requests
/// end without a panic.
#[test]
fn arbitrary_bytes_around_tls_request_execute_nothing() {
    use rand::{Rng, SeedableRng};
    let authority = Authority::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async {
        let (intact, service) = secure(&authority, false, ServerLimits::default());
        let (damaged, _) = secure(&authority, false, ServerLimits::default());
        let request = record::frame(tls_request(1, 0, b"")).concat();
        let valid = record::frame(call(2, PROG, 3, 0, &OpaqueAuth::none(), Enc::new())).concat();
        for seed in 0..500 {
            let mut random = rand::rngs::SmallRng::seed_from_u64(seed);
            let mut noise = |most: usize| -> Vec<u8> {
                let len = random.random_range(0..=most);
                (0..len).map(|_| random.random()).collect()
            };
            let before = if seed % 2 == 0 { Vec::new() } else { noise(40) };
            let after = match seed % 3 {
                0 => noise(300),
                1 => [&valid[..], &noise(30)[..]].concat(),
                _ => [&[22, 3, 1, 0, 200][..], &noise(300)[..], &valid[..]].concat(),
            };
            let mut bytes = [before, request.clone(), after].concat();
            let is_damaged = seed % 7 == 0;
            if is_damaged {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
            let mut wire = Wire::new(if is_damaged { &damaged } else { &intact });
            while !bytes.is_empty() {
                let piece = random.random_range(1..=bytes.len());
                if wire.stream.write_all(&bytes[..piece]).await.is_err() {
                    break;
                }
                bytes.drain(..piece);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            drop(wire);
        }
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(service.running.load(Relaxed), 0);
        for acceptor in [intact, damaged] {
            assert_eq!(acceptor.connections(), 0);
            assert!(acceptor.global.budget.is_clear());
        }
    });
}
