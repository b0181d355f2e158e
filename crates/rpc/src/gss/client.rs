//! The contexts of users, and calls under them.
//!
//! This module sends only the calls that make contexts. A [`GssUser`] has at most one context with
//! the server. It makes one before its first call, and again when the server or the time has ended
//! it. A [`Sealer`] encodes a call anew for each transmission, because each has its own sequence
//! number (RFC 2203 section 5.3.3.1).
//!
//! A server drops a call in silence whose number is further below the highest than its window.
//! Servers check calls in the order of their threads. So a call waits while an unanswered call has
//! a number that would leave the window.

use super::{Context, GssError, GssOwner, GssService, Mechanism, Step, open, seal};
use crate::call::{Call, Credential, Reply, Retransmit};
use crate::client::Client;
use crate::error::CallError;
use bytes::Bytes;
use hither_proto::rpc::gss::{GssCred, GssProc, InitArgs, InitRes, SEQUENCE_MAX, major};
use hither_proto::rpc::{AuthFlavor, AuthStat, OpaqueAuth, RPC_VERSION};
use hither_proto::xdr::{Dec, Enc, Opaque, Xdr};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A failure to make a context is repeated to callers for this long. A process that tries again and
/// again does not load the key distribution center.
const FAILURE_HOLDS: Duration = Duration::from_secs(1);
/// A context is replaced so long before its end: the clocks of client and server may differ.
const SPARE: Duration = Duration::from_secs(5);
/// Most calls of mechanisms at once.
const MAKING_MAX: usize = 16;
/// Most steps of a context. Kerberos needs two.
const STEPS_MAX: u32 = 8;
/// Attempts of a call, each with another context.
const CALL_ATTEMPTS: u32 = 3;
/// Bytes that RPCSEC_GSS adds to a call at most, beside the handle: credential, verifier, checksums
/// and the padding of the cipher.
const ADDED_BYTES: usize = 512;
/// Transmissions of a call whose replies are recognised.
pub(crate) const SEQUENCES_KEPT: usize = 8;

/// A user of a server under RPCSEC_GSS.
pub struct GssUser {
    mechanism: Arc<dyn Mechanism>,
    owner: GssOwner,
    host: Arc<str>,
    service: GssService,
    /// Held while a context is made: other calls of the user wait for it.
    state: tokio::sync::Mutex<State>,
}

#[derive(Default)]
struct State {
    session: Option<Arc<Session>>,
    failed: Option<(Instant, GssError)>,
}

/// A context that server and client know.
pub(crate) struct Session {
    context: Arc<dyn Context>,
    handle: Opaque<{ hither_proto::rpc::gss::HANDLE_MAX_BYTES }>,
    service: GssService,
    /// Numbers below the highest that the server accepts.
    window: u32,
    numbers: Mutex<Numbers>,
    /// Notified when a number is given back.
    freed: Notify,
}

/// The sequence numbers of a context.
#[derive(Default)]
struct Numbers {
    last: u32,
    /// Numbers of calls without a reply.
    pending: BTreeSet<u32>,
}

/// The number of a call's first transmission, until the end of the call.
struct Reserved {
    session: Arc<Session>,
    sequence: u32,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.session.numbers.lock().pending.remove(&self.sequence);
        self.session.freed.notify_waiters();
    }
}

impl Session {
    fn new(context: Arc<dyn Context>, res: InitRes, service: GssService) -> Arc<Self> {
        Arc::new(Self {
            context,
            handle: res.handle,
            service,
            window: res.window.max(1),
            numbers: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// A number for a call, as soon as the window permits.
    async fn reserve(self: &Arc<Self>) -> Reserved {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            {
                let mut numbers = self.numbers.lock();
                let oldest = numbers.pending.first();
                if oldest.is_none_or(|oldest| numbers.last + 1 - oldest < self.window) {
                    numbers.last += 1;
                    let sequence = numbers.last;
                    numbers.pending.insert(sequence);
                    return Reserved { session: self.clone(), sequence };
                }
            }
            freed.await;
        }
    }

    /// A number for a retransmission.
    fn another(&self) -> u32 {
        let mut numbers = self.numbers.lock();
        numbers.last = numbers.last.saturating_add(1);
        numbers.last
    }

    fn is_usable(&self) -> bool {
        // Calls in flight may take some more numbers.
        let numbers = self.numbers.lock().last < SEQUENCE_MAX / 2;
        numbers && self.context.expires().is_none_or(|end| end > Instant::now() + SPARE)
    }
}

impl std::fmt::Debug for GssUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GssUser")
            .field("owner", &self.owner)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

impl PartialEq for GssUser {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for GssUser {}

impl GssUser {
    /// A user of the NFS service at `host`. Contexts are made when calls need them.
    pub fn new(
        mechanism: Arc<dyn Mechanism>,
        owner: GssOwner,
        host: Arc<str>,
        service: GssService,
    ) -> Arc<Self> {
        Arc::new(Self { mechanism, owner, host, service, state: tokio::sync::Mutex::default() })
    }

    /// Makes a call. It is repeated with another context if the server refused the context, which
    /// executes nothing.
    pub(crate) async fn call(&self, client: &Client, call: Call) -> Result<Reply, CallError> {
        let args = call.args.finish();
        let mut refused = None;
        for n in 1.. {
            let attempt =
                Call { args: Enc::new(), cred: Credential::None, cancel: call.cancel.clone(), ..call };
            let session = self.session(client, &attempt, refused.as_ref()).await?;
            let reserved = unless_cancelled(&attempt.cancel, session.reserve()).await?;
            let words = [call.prog, call.vers, call.proc];
            let first = AtomicU32::new(reserved.sequence);
            let sealer = Arc::new(Sealer { session: session.clone(), first, words, args: args.clone() });
            match client.call_once(attempt, Some(sealer)).await {
                Err(CallError::Denied(
                    AuthStat::RPCSEC_GSS_CREDPROBLEM | AuthStat::RPCSEC_GSS_CTXPROBLEM,
                )) if n < CALL_ATTEMPTS => refused = Some(session),
                result => return result,
            }
        }
        unreachable!("the last attempt returns")
    }

    /// The user's context with the server; not `refused`.
    async fn session(
        &self,
        client: &Client,
        call: &Call,
        refused: Option<&Arc<Session>>,
    ) -> Result<Arc<Session>, CallError> {
        unless_cancelled(&call.cancel, self.session_now(client, call, refused)).await?
    }

    async fn session_now(
        &self,
        client: &Client,
        call: &Call,
        refused: Option<&Arc<Session>>,
    ) -> Result<Arc<Session>, CallError> {
        let mut state = self.state.lock().await;
        let is_refused = |s: &Arc<Session>| refused.is_some_and(|refused| Arc::ptr_eq(s, refused));
        if let Some(session) = state.session.as_ref().filter(|s| !is_refused(s) && s.is_usable()) {
            return Ok(session.clone());
        }
        if let Some((at, error)) = &state.failed
            && at.elapsed() < FAILURE_HOLDS
        {
            return Err(CallError::Gss(error.clone()));
        }
        state.session = None;
        let mut made = self.make(client, call).await;
        if matches!(made, Err(CallError::Gss(GssError::Refused(_) | GssError::Denied(_)))) {
            // A token that was sent again after a lost reply may count as a replay. A token that
            // waited for the server may be too old.
            made = self.make(client, call).await;
        }
        match &made {
            Ok(session) => (state.session, state.failed) = (Some(session.clone()), None),
            Err(CallError::Gss(e)) => {
                tracing::debug!(owner = ?self.owner, host = &*self.host, "no context: {e}");
                state.failed = Some((Instant::now(), e.clone()));
            }
            Err(_) => {}
        }
        made
    }

    /// Makes a context (RFC 2203 section 5.2).
    async fn make(&self, client: &Client, call: &Call) -> Result<Arc<Session>, CallError> {
        let (mechanism, owner, host) = (self.mechanism.clone(), self.owner.clone(), self.host.clone());
        let (mut initiator, mut step) = blocking(move || {
            let mut initiator = mechanism.initiate(&owner, &host)?;
            let step = initiator.step(None)?;
            Ok((initiator, step))
        })
        .await?;
        let mut answer: Option<(InitRes, Bytes)> = None;
        for _ in 0..STEPS_MAX {
            let token = match step {
                Step::Continue(token) => token,
                Step::Done(context) => return self.complete(context, answer),
            };
            let told = self.tell(client, call, answer.as_ref().map(|(res, _)| res), token).await?;
            let token = told.0.token.0.clone();
            answer = Some(told);
            (initiator, step) = blocking(move || {
                let step = initiator.step(Some(&token))?;
                Ok((initiator, step))
            })
            .await?;
        }
        Err(failed("the server asks for too many tokens"))
    }

    /// Sends a token. Returns the server's answer and its verifier.
    async fn tell(
        &self,
        client: &Client,
        call: &Call,
        before: Option<&InitRes>,
        token: Bytes,
    ) -> Result<(InitRes, Bytes), CallError> {
        let (proc, handle) = match before {
            None => (GssProc::INIT, Opaque::default()),
            Some(before) => (GssProc::CONTINUE_INIT, before.handle.clone()),
        };
        let cred = GssCred { proc, sequence: 0, service: self.service, handle };
        let call = Call {
            proc: 0,
            op: "GSS_INIT",
            cred: Credential::Encoded(Enc::of(&OpaqueAuth::gss(&cred)).to_bytes()),
            args: Enc::of(&InitArgs { token: Opaque(token) }),
            retransmit: Retransmit::OnReconnect,
            cancel: None,
            ..*call
        };
        let reply = client.call_once(call, None).await.map_err(|e| match e {
            CallError::Denied(stat) => {
                let why = format!("the server accepts no Kerberos context ({stat:?})");
                CallError::Gss(GssError::Denied(why.into()))
            }
            other => other,
        })?;
        let res: InitRes = Dec::all(&reply.body)
            .map_err(|_| CallError::PeerMisbehaved("its answer to a Kerberos token cannot be decoded"))?;
        match res.major {
            major::COMPLETE | major::CONTINUE_NEEDED => Ok((res, reply.verifier.body.0)),
            status => {
                let why = format!("status {status:#x}, {}", res.minor);
                Err(CallError::Gss(GssError::Refused(why.into())))
            }
        }
    }

    fn complete(
        &self,
        context: Arc<dyn Context>,
        answer: Option<(InitRes, Bytes)>,
    ) -> Result<Arc<Session>, CallError> {
        let Some((res, verifier)) = answer.filter(|(res, _)| res.major == major::COMPLETE) else {
            return Err(failed("the server did not complete the context"));
        };
        context
            .verify(&res.window.to_be_bytes(), &verifier)
            .map_err(|e| failed(&format!("the server does not prove its identity: {e}")))?;
        tracing::debug!(owner = ?self.owner, host = &*self.host, window = res.window, "Kerberos context");
        Ok(Session::new(context, res, self.service))
    }
}

/// The result of `work`, or [`CallError::Cancelled`].
async fn unless_cancelled<T>(
    cancel: &Option<CancellationToken>,
    work: impl Future<Output = T>,
) -> Result<T, CallError> {
    let cancelled = async {
        match cancel {
            Some(token) => token.cancelled().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        result = work => Ok(result),
        () = cancelled => Err(CallError::Cancelled),
    }
}

fn failed(why: &str) -> CallError {
    CallError::Gss(GssError::Failed(why.into()))
}

/// Runs calls of the mechanism, which may wait for a key distribution center. The threads for such
/// work are shared with the caches, so contexts of many users are not made at once.
async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> Result<T, GssError> + Send + 'static,
) -> Result<T, CallError> {
    static MAKING: Semaphore = Semaphore::const_new(MAKING_MAX);
    // Never closed.
    let _turn = MAKING.acquire().await;
    match tokio::task::spawn_blocking(f).await {
        Ok(result) => result.map_err(CallError::Gss),
        Err(_) => Err(failed("the mechanism failed")),
    }
}

/// A call under a context.
pub(crate) struct Sealer {
    session: Arc<Session>,
    /// Number of the first transmission; then 0.
    first: AtomicU32,
    /// Program, version and procedure.
    words: [u32; 3],
    args: Vec<Bytes>,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("words", &self.words).finish_non_exhaustive()
    }
}

/// An encoded transmission.
pub(crate) struct Transmission {
    pub sequence: u32,
    /// The whole record with its mark.
    pub segments: Vec<Bytes>,
    pub bytes: usize,
}

impl Sealer {
    /// Length of the message at most, without the record mark.
    pub fn message_max_bytes(&self) -> usize {
        let args: usize = self.args.iter().map(Bytes::len).sum();
        args + self.session.handle.0.len() + ADDED_BYTES
    }

    /// Encodes the call for one transmission.
    ///
    /// # Errors
    /// The context has expired.
    pub fn transmission(&self, xid: u32) -> Result<Transmission, GssError> {
        const LAST_FRAGMENT: u32 = 1 << 31;
        const CALL: u32 = 0;
        let Session { context, handle, service, .. } = &*self.session;
        let sequence = match self.first.swap(0, Relaxed) {
            0 => self.session.another(),
            first => first,
        };
        if sequence >= SEQUENCE_MAX {
            return Err(GssError::Failed("the context has no sequence numbers left".into()));
        }
        let cred = GssCred { proc: GssProc::DATA, sequence, service: *service, handle: handle.clone() };
        let mut header = Enc::new();
        let [prog, vers, proc] = self.words;
        [xid, CALL, RPC_VERSION, prog, vers, proc].into_iter().for_each(|word| header.u32(word));
        OpaqueAuth::gss(&cred).enc(&mut header);
        let header = header.to_bytes();
        let verifier = OpaqueAuth { flavor: AuthFlavor::GSS, body: Opaque(context.mic(&header)?) };
        let body = seal(&**context, *service, sequence, self.args.clone())?;
        let verifier = Enc::of(&verifier).to_bytes();
        let bytes = header.len() + verifier.len() + body.iter().map(Bytes::len).sum::<usize>();
        let mut start = Enc::new();
        start.u32(LAST_FRAGMENT | bytes as u32);
        start.raw(&header);
        start.raw(&verifier);
        let mut segments = start.finish();
        segments.extend(body);
        Ok(Transmission { sequence, segments, bytes: bytes + 4 })
    }

    /// Whether a reply is from the server, and answers one of the transmissions.
    pub fn is_genuine(&self, sequences: &[u32], verifier: &OpaqueAuth) -> bool {
        let proves = |s: &u32| self.session.context.verify(&s.to_be_bytes(), &verifier.body.0).is_ok();
        verifier.flavor == AuthFlavor::GSS && sequences.iter().rev().any(proves)
    }

    /// The results of a call. `None`: they were changed.
    pub fn results(&self, sequences: &[u32], body: Bytes) -> Option<Bytes> {
        open(&*self.session.context, self.session.service, sequences, body)
    }
}
