//! Calls under contexts, over networks that cut, change and repeat messages. The mechanism of these
//! tests has no strong cryptography: its checksums find changes that do not know the key.

use super::*;
use crate::call::{Call, Credential, Retransmit};
use crate::client::{Client, ClientConfig};
use crate::error::CallError;
use crate::server::{
    Acceptor, Caller, Incoming, Outcome, Pace, Peer, Program, Security, ServerLimits, Service,
};
use crate::stats::Stats;
use crate::transport::{BoxFuture, Connect, Link};
use bytes::Bytes;
use hither_proto::rpc::gss::{GssCred, GssProc};
use hither_proto::rpc::{AuthFlavor, AuthStat, CallHeader, OpaqueAuth};
use hither_proto::xdr::Xdr;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

const PROG: u32 = 400_001;

/// A key from a counter, which travels in the token.
#[derive(Debug, Default)]
struct Toy {
    made: AtomicU64,
    /// Contexts end after this time.
    lifetime: Option<Duration>,
}

struct ToyContext {
    key: u64,
    expires: Option<Instant>,
}

struct ToyInitiator {
    key: u64,
    lifetime: Option<Duration>,
}

fn context(key: u64, lifetime: Option<Duration>) -> Arc<dyn Context> {
    Arc::new(ToyContext { key, expires: lifetime.map(|time| Instant::now() + time) })
}

impl Mechanism for Toy {
    fn initiate(&self, owner: &GssOwner, _: &str) -> Result<Box<dyn Initiator>, GssError> {
        if *owner == GssOwner::User(13) {
            return Err(GssError::NoCredentials("none".into()));
        }
        let key = self.made.fetch_add(1, Relaxed) + 1;
        Ok(Box::new(ToyInitiator { key, lifetime: self.lifetime }))
    }

    fn accept(&self, token: &[u8]) -> Result<Accepted, GssError> {
        let key = token.try_into().map(u64::from_be_bytes).map_err(|_| GssError::Failed("odd".into()))?;
        let (principal, token) = ("toy@TEST".into(), Bytes::copy_from_slice(token));
        Ok(Accepted { context: context(key, self.lifetime), token, principal, local: Some("toy".into()) })
    }
}

impl Initiator for ToyInitiator {
    fn step(&mut self, token: Option<&[u8]>) -> Result<Step, GssError> {
        Ok(match token {
            None => Step::Continue(Bytes::copy_from_slice(&self.key.to_be_bytes())),
            Some(_) => Step::Done(context(self.key, self.lifetime)),
        })
    }
}

fn mixed(key: u64, message: &[u8]) -> u64 {
    message.iter().fold(key ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        let hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        hash ^ (hash >> 29)
    })
}

impl Context for ToyContext {
    fn mic(&self, message: &[u8]) -> Result<Bytes, GssError> {
        if self.expires.is_some_and(|end| end <= Instant::now()) {
            return Err(GssError::NoCredentials("expired".into()));
        }
        Ok(Bytes::copy_from_slice(&mixed(self.key, message).to_be_bytes()))
    }

    fn verify(&self, message: &[u8], mic: &[u8]) -> Result<(), GssError> {
        if self.mic(message)? == mic { Ok(()) } else { Err(GssError::Failed("changed".into())) }
    }

    fn wrap(&self, message: &[u8]) -> Result<Bytes, GssError> {
        let mut out = self.mic(message)?.to_vec();
        out.extend(message.iter().zip(0..).map(|(byte, at)| byte ^ mixed(self.key, &[at as u8]) as u8));
        Ok(out.into())
    }

    fn unwrap(&self, message: &[u8]) -> Result<Bytes, GssError> {
        let (mic, sealed) = message.split_at_checked(8).ok_or(GssError::Failed("short".into()))?;
        let plain: Vec<u8> =
            sealed.iter().zip(0..).map(|(byte, at)| byte ^ mixed(self.key, &[at as u8]) as u8).collect();
        self.verify(&plain, mic).map(|()| plain.into())
    }

    fn expires(&self) -> Option<Instant> {
        self.expires
    }
}

/// Returns its arguments, and records them with their callers.
#[derive(Default)]
struct Echo {
    executed: Mutex<Vec<(Bytes, Caller)>>,
}

impl Service for Echo {
    fn programs(&self) -> &[Program] {
        &[Program { number: PROG, low: 1, high: 1 }]
    }

    fn pace(&self) -> Option<&Pace> {
        None
    }

    fn call(self: Arc<Self>, call: Incoming) -> BoxFuture<'static, Outcome> {
        Box::pin(async move {
            if call.proc == 2 {
                return Outcome::GarbageArgs;
            }
            self.executed.lock().push((call.args.clone(), call.caller));
            tokio::time::sleep(Duration::from_millis(u64::from(call.args.len() as u32 % 7))).await;
            let mut out = Enc::new();
            out.push_segment(call.args);
            Outcome::Done(out)
        })
    }

    fn closed(&self, _: &Peer) {}
}

/// An attacker between client and server.
struct Between {
    acceptor: Acceptor,
    state: Mutex<Attack>,
}

#[derive(Default)]
struct Attack {
    random: u64,
    /// One chunk in so many is changed; 0: none.
    change_one_in: u64,
    /// One chunk in so many ends the connection; 0: none.
    cut_one_in: u64,
    /// All chunks of the client.
    heard: Vec<Bytes>,
}

impl Attack {
    fn one_in(&mut self, n: u64) -> bool {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        n > 0 && (self.random >> 33).is_multiple_of(n)
    }
}

impl Between {
    /// Passes chunks on. `keeps`: records them.
    async fn pass(
        self: Arc<Self>,
        mut from: impl tokio::io::AsyncRead + Unpin,
        mut to: impl tokio::io::AsyncWrite + Unpin,
        keeps: bool,
    ) {
        loop {
            let mut chunk = Vec::with_capacity(64 << 10);
            if !matches!(from.read_buf(&mut chunk).await, Ok(1..)) {
                return;
            }
            let cut = {
                let mut state = self.state.lock();
                let (change_one_in, cut_one_in) = (state.change_one_in, state.cut_one_in);
                if state.one_in(change_one_in) {
                    // Not in the record mark, which TCP's own peers could send as well.
                    let at = 4 + (state.random >> 20) as usize % (chunk.len() - 4).max(1);
                    if let Some(byte) = chunk.get_mut(at) {
                        *byte ^= 1 << (state.random >> 50 & 7);
                    }
                }
                if keeps {
                    state.heard.push(Bytes::copy_from_slice(&chunk));
                }
                state.one_in(cut_one_in)
            };
            if to.write_all(&chunk).await.is_err() || cut {
                return;
            }
        }
    }

    fn server_side(&self) -> DuplexStream {
        let (near, far) = tokio::io::duplex(1 << 20);
        let (reader, writer) = tokio::io::split(far);
        let addr = SocketAddr::from(([192, 0, 2, 1], 700));
        self.acceptor.serve(reader, writer, addr, addr);
        near
    }
}

struct Wires(Arc<Between>);

impl Connect for Wires {
    fn connect(&self, _: Option<SocketAddr>) -> BoxFuture<'_, std::io::Result<Link>> {
        let between = self.0.clone();
        Box::pin(async move {
            let (client, attacker) = tokio::io::duplex(1 << 20);
            let (from_client, to_client) = tokio::io::split(attacker);
            let (from_server, to_server) = tokio::io::split(between.server_side());
            tokio::spawn(async move {
                tokio::select! {
                    () = between.clone().pass(from_client, to_server, true) => {}
                    () = between.clone().pass(from_server, to_client, false) => {}
                }
            });
            let (reader, writer) = tokio::io::split(client);
            Ok(Link { reader: Box::new(reader), writer: Box::new(writer), local: None })
        })
    }

    fn server(&self) -> String {
        "between".into()
    }
}

struct Lab {
    between: Arc<Between>,
    echo: Arc<Echo>,
    gss: Arc<GssAcceptor>,
    mechanism: Arc<Toy>,
    client: Client,
}

impl Lab {
    fn new(attack: Attack, lifetime: Option<Duration>) -> Self {
        let (mechanism, echo) = (Arc::new(Toy { lifetime, ..Toy::default() }), Arc::new(Echo::default()));
        let ids_of = |_: &str, local: Option<&str>| local.map(|_| GssIds { uid: 7, gid: 8, gids: vec![9] });
        let gss = GssAcceptor::new(mechanism.clone(), Box::new(ids_of));
        let security = Security { gss: Some(gss.clone()), tls: None };
        let acceptor = Acceptor::secure(echo.clone(), ServerLimits::default(), security);
        let between = Arc::new(Between { acceptor, state: Mutex::new(attack) });
        let client = Client::new(
            Arc::new(Wires(between.clone())),
            ClientConfig { seed: 5, ..ClientConfig::default() },
            Arc::new(Stats::new()),
        );
        Self { between, echo, gss, mechanism, client }
    }

    fn user(&self, uid: u32, service: GssService) -> Arc<GssUser> {
        GssUser::new(self.mechanism.clone(), GssOwner::User(uid), "server".into(), service)
    }

    async fn call(&self, user: &Arc<GssUser>, proc: u32, args: &[u8]) -> Result<Bytes, CallError> {
        let mut e = Enc::new();
        e.raw(args);
        let call = Call {
            prog: PROG,
            vers: 1,
            proc,
            op: "TEST",
            cred: Credential::Gss(user.clone()),
            args: e,
            connection: None,
            retransmit: Retransmit::OnReconnectAndTimeout,
            deadline: Some(Instant::now() + Duration::from_secs(300)),
            cancel: None,
        };
        self.client.call(call).await.map(|reply| reply.body)
    }
}

const SERVICES: [GssService; 3] = [GssService::NONE, GssService::INTEGRITY, GssService::PRIVACY];

fn args(n: u64) -> Vec<u8> {
    (0..4 * (1 + n % 900)).map(|i| (n.wrapping_mul(31).wrapping_add(i * 7)) as u8).collect()
}

/// Calls return their results over cut connections, lost contexts and expired contexts.
#[tokio::test(start_paused = true)]
async fn calls_survive_cuts_and_lost_contexts() {
    for (seed, service) in (0..30).zip(SERVICES.into_iter().cycle()) {
        let attack = Attack { random: seed * 77, cut_one_in: 9 + seed % 5, ..Attack::default() };
        let lifetime = (seed % 3 == 0).then_some(Duration::from_secs(20));
        let lab = Arc::new(Lab::new(attack, lifetime));
        let user = lab.user(1, service);
        let mut callers = tokio::task::JoinSet::new();
        for caller in 0..8_u64 {
            let (lab, user) = (lab.clone(), user.clone());
            callers.spawn(async move {
                for n in 0..12 {
                    let args = args(seed * 1000 + caller * 100 + n);
                    let results = lab.call(&user, 1, &args).await.unwrap();
                    assert_eq!(results, args, "seed {seed}");
                    if caller == 0 && n % 5 == 2 {
                        lab.gss.forget_all();
                    }
                }
            });
        }
        while let Some(done) = callers.join_next().await {
            done.unwrap();
        }
        let executed = lab.echo.executed.lock();
        let is_user = |caller: &Caller| {
            let Caller::Gss(gss) = caller else { return false };
            gss.ids.as_ref().is_some_and(|ids| ids.uid == 7) && gss.service == service
        };
        assert!(executed.iter().all(|(_, caller)| is_user(caller)), "seed {seed}");
    }
}

/// With checksums or encryption the server executes only calls that were made, and the client
/// believes only results of the server, whatever an attacker changes.
/// Promise: 21c, S17b
#[tokio::test(start_paused = true)]
async fn changed_messages_are_never_believed() {
    let mut failures = 0;
    for (seed, service) in (0..60).zip([GssService::INTEGRITY, GssService::PRIVACY].into_iter().cycle()) {
        let attack = Attack { random: seed * 1313 + 1, change_one_in: 4, ..Attack::default() };
        let lab = Lab::new(attack, None);
        let user = lab.user(1, service);
        for n in 0..20 {
            let args = args(seed * 1000 + n);
            match lab.call(&user, 1, &args).await {
                Ok(results) => assert_eq!(results, args, "seed {seed}"),
                Err(_) => failures += 1,
            }
            let mut executed = lab.echo.executed.lock();
            assert!(executed.drain(..).all(|(done, _)| done == args), "seed {seed}: changed arguments");
        }
    }
    assert!(failures > 0, "nothing was changed");
}

/// Recorded messages of a client do nothing when they are sent again, on any connection.
/// Promise: S17b
#[tokio::test(start_paused = true)]
async fn replayed_calls_are_not_executed() {
    for service in SERVICES {
        let lab = Lab::new(Attack::default(), None);
        let user = lab.user(1, service);
        for n in 0..30 {
            lab.call(&user, 1, &args(n)).await.unwrap();
        }
        let before = lab.echo.executed.lock().len();
        let heard = std::mem::take(&mut lab.between.state.lock().heard);
        let mut again = lab.between.server_side();
        for chunk in heard {
            again.write_all(&chunk).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!((before, lab.echo.executed.lock().len()), (30, 30), "{service:?}");
        lab.call(&user, 1, &args(99)).await.unwrap();
    }
}

/// A user without credentials gets an error at once, and other users are served. Errors of the
/// program pass through a context.
#[tokio::test(start_paused = true)]
async fn errors_reach_their_user_only() {
    let lab = Lab::new(Attack::default(), None);
    for service in SERVICES {
        let (poor, rich) = (lab.user(13, service), lab.user(1, service));
        let error = lab.call(&poor, 1, &args(1)).await.unwrap_err();
        assert!(matches!(error, CallError::Gss(GssError::NoCredentials(_))), "{error}");
        assert_eq!(lab.call(&rich, 1, &args(2)).await.unwrap(), args(2));
        assert!(matches!(lab.call(&rich, 2, &args(3)).await, Err(CallError::GarbageArgs)));
    }
}

/// Calls without a genuine verifier are refused: no context, another key, another header. Random
/// bytes do no harm.
#[tokio::test(start_paused = true)]
async fn forged_calls_are_refused() {
    let lab = Lab::new(Attack::default(), None);
    let user = lab.user(1, GssService::INTEGRITY);
    lab.call(&user, 1, &args(1)).await.unwrap();
    let mut random = Attack { random: 99, ..Attack::default() };
    for n in 0..20_000_u64 {
        let mut bytes = || {
            random.one_in(2);
            random.random.to_be_bytes()
        };
        let proc = [GssProc::DATA, GssProc::INIT, GssProc::CONTINUE_INIT, GssProc::DESTROY, GssProc(9)]
            [n as usize % 5];
        let handle = if n % 2 == 0 { Bytes::copy_from_slice(&bytes()) } else { Bytes::new() };
        let cred =
            GssCred { proc, sequence: n as u32, service: GssService(n as u32 % 5), handle: Opaque(handle) };
        let cred = match n % 3 {
            0 => OpaqueAuth { flavor: AuthFlavor::GSS, body: bytes()[..].into() },
            _ => OpaqueAuth::gss(&cred),
        };
        let verf = OpaqueAuth { flavor: AuthFlavor::GSS, body: bytes()[..].into() };
        let header = CallHeader { xid: 1, prog: PROG, vers: 1, proc: 1, cred, verf };
        let signed = Enc::of(&header).to_bytes();
        let received = lab.gss.receive(&header, &signed, Bytes::copy_from_slice(&bytes()));
        let is_refused = matches!(
            received,
            server::Received::Refused(
                AuthStat::BADCRED | AuthStat::RPCSEC_GSS_CREDPROBLEM | AuthStat::RPCSEC_GSS_CTXPROBLEM
            )
        );
        assert!(is_refused, "{n}");
    }
    // Bodies of any bytes.
    let toy = context(5, None);
    for service in SERVICES {
        let sealed = seal(&*toy, service, 3, vec![args(8).into()]).unwrap();
        let sealed: Bytes = sealed.concat().into();
        assert_eq!(open(&*toy, service, &[3], sealed.clone()).unwrap(), args(8));
        if service == GssService::NONE {
            continue;
        }
        assert!(open(&*toy, service, &[4], sealed.clone()).is_none(), "another request");
        for at in 0..sealed.len() {
            let mut changed = sealed.to_vec();
            changed[at] ^= 1;
            let opened = open(&*toy, service, &[3], changed.into());
            // Padding is not protected.
            assert!(opened.is_none_or(|args_| args_ == args(8)), "{service:?} {at}");
            assert!(open(&*toy, service, &[3], sealed.slice(..at)).is_none());
        }
    }
}

/// A client without RPCSEC_GSS at the server gets an error that names Kerberos.
#[tokio::test(start_paused = true)]
async fn servers_without_contexts_refuse() {
    let mut lab = Lab::new(Attack::default(), None);
    let acceptor = Acceptor::new(lab.echo.clone(), ServerLimits::default());
    let between = Arc::new(Between { acceptor, state: Mutex::default() });
    lab.client = Client::new(Arc::new(Wires(between)), ClientConfig::default(), Arc::new(Stats::new()));
    let error = lab.call(&lab.user(1, GssService::NONE), 1, &args(1)).await.unwrap_err();
    assert!(error.to_string().contains("accepts no Kerberos context"), "{error}");
}

/// The encoded credential of a call has its fields in the order of RFC 2203 section 5.3.1.
#[test]
fn credential_has_layout_of_rfc() {
    let cred = GssCred {
        proc: GssProc::DATA,
        sequence: 0x0102_0304,
        service: GssService::PRIVACY,
        handle: Opaque(Bytes::from_static(b"hand")),
    };
    let auth = Enc::of(&OpaqueAuth::gss(&cred)).to_bytes();
    let words: Vec<u32> = auth.chunks(4).map(|w| u32::from_be_bytes(w.try_into().unwrap())).collect();
    assert_eq!(words, [6, 24, 1, 0, 0x0102_0304, 3, 4, u32::from_be_bytes(*b"hand")]);
    assert_eq!(GssCred::dec(&mut Dec::new(&auth.slice(8..))).unwrap(), cred);
}
