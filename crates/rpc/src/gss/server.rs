//! The contexts that a server has accepted, and the calls under them.
//!
//! This module sends nothing. It creates and destroys contexts, checks that a call is genuine and
//! new, and seals replies. The order of the checks is that of RFC 2203 section 5.3.3.

use super::{Accepted, Context, GssService, Mechanism, open, seal};
use bytes::Bytes;
use hither_proto::rpc::gss::{GssCred, GssProc, HANDLE_MAX_BYTES, InitArgs, InitRes, SEQUENCE_MAX, major};
use hither_proto::rpc::{
    AcceptStat, AcceptedReply, AuthFlavor, AuthStat, CallHeader, OpaqueAuth, ReplyBody, ReplyHeader,
};
use hither_proto::xdr::{Dec, Enc, Opaque};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Sequence numbers below the highest that are accepted, each once.
const WINDOW: u32 = 512;
/// Bits of a word of [`Window::seen`].
const WORD: u32 = u64::BITS;
/// Most contexts. Beyond that, the least recently used ones end; their clients make new ones.
const CONTEXTS_MAX: usize = 16_384;
/// Contexts that end together when there are too many: a sixteenth.
const EVICTED_PART: usize = 16;

/// Most tokens of new contexts that are processed at once.
const ACCEPTING_MAX: usize = 4;

/// The numbers of a principal on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GssIds {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub gids: Vec<u32>,
}

/// The caller that a context authenticates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GssCaller {
    /// The principal, for example `alice@EXAMPLE.ORG`.
    pub principal: Arc<str>,
    /// Its numbers; `None`: it has no account here.
    pub ids: Option<Arc<GssIds>>,
    /// The protection of the call.
    pub service: GssService,
}

/// Finds the numbers of a principal, from its name and the local user that the mechanism names for
/// it. It may block.
pub type IdsOf = dyn Fn(&str, Option<&str>) -> Option<GssIds> + Send + Sync;

/// Accepts contexts.
pub struct GssAcceptor {
    mechanism: Arc<dyn Mechanism>,
    ids_of: Box<IdsOf>,
    contexts: Mutex<HashMap<u64, Arc<ServerContext>>>,
    /// Orders the uses of contexts.
    uses: AtomicU64,
    /// Tokens that are processed now: anybody may send them, and each takes a thread.
    accepting: Semaphore,
}

impl std::fmt::Debug for GssAcceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GssAcceptor").field("mechanism", &self.mechanism).finish_non_exhaustive()
    }
}

struct ServerContext {
    context: Arc<dyn Context>,
    id: u64,
    principal: Arc<str>,
    ids: Option<Arc<GssIds>>,
    window: Mutex<Window>,
    used: AtomicU64,
}

/// The sequence numbers that were received (RFC 2203 section 5.3.3.1).
struct Window {
    highest: u32,
    /// One bit for each of the last numbers, at its remainder.
    seen: [u64; (WINDOW / WORD) as usize],
}

impl Window {
    fn new() -> Self {
        Self { highest: 0, seen: [0; _] }
    }

    fn bit(&mut self, sequence: u32) -> (&mut u64, u64) {
        let at = sequence % WINDOW;
        (&mut self.seen[(at / WORD) as usize], 1 << (at % WORD))
    }

    /// Records a number. False: it is too old, or was received before.
    fn take(&mut self, sequence: u32) -> bool {
        if sequence > self.highest {
            for skipped in self.highest.max(sequence.saturating_sub(WINDOW)) + 1..=sequence {
                let (word, bit) = self.bit(skipped);
                *word &= !bit;
            }
            self.highest = sequence;
        } else if self.highest - sequence >= WINDOW {
            return false;
        }
        let (word, bit) = self.bit(sequence);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

/// A call under a context, for its reply.
pub(crate) struct GssCall {
    context: Arc<ServerContext>,
    service: GssService,
    sequence: u32,
}

/// A received call.
pub(crate) enum Received {
    /// A token of a new context.
    Init(InitArgs),
    /// A call of the program, with its arguments.
    Call(GssCall, GssCaller, Bytes),
    /// The same, with arguments that fail the checks.
    Garbage(GssCall),
    /// The context ends after the reply.
    Destroy(GssCall),
    /// The call was received before, or is too old. No reply is sent.
    Old,
    /// The credential is refused.
    Refused(AuthStat),
}

impl GssAcceptor {
    /// An acceptor with the keys of `mechanism`.
    pub fn new(mechanism: Arc<dyn Mechanism>, ids_of: Box<IdsOf>) -> Arc<Self> {
        Arc::new(Self {
            mechanism,
            ids_of,
            contexts: Mutex::default(),
            uses: AtomicU64::new(0),
            accepting: Semaphore::new(ACCEPTING_MAX),
        })
    }

    /// Ends all contexts, whose users and groups may have changed. Clients make new ones without an
    /// error to programs.
    pub fn forget_all(&self) {
        self.contexts.lock().clear();
    }

    /// Checks a call. `signed`: its message up to the end of the credential.
    pub(crate) fn receive(&self, header: &CallHeader, signed: &[u8], args: Bytes) -> Received {
        let Ok(Some(cred)) = header.cred.as_gss() else { return Received::Refused(AuthStat::BADCRED) };
        match cred.proc {
            GssProc::INIT if header.proc == 0 && cred.handle.0.is_empty() => {
                Dec::all(&args).map_or(Received::Refused(AuthStat::BADCRED), Received::Init)
            }
            // Kerberos contexts are complete after one token.
            GssProc::CONTINUE_INIT => Received::Refused(AuthStat::RPCSEC_GSS_CREDPROBLEM),
            GssProc::DATA | GssProc::DESTROY => self.call(header, &cred, signed, args),
            _ => Received::Refused(AuthStat::BADCRED),
        }
    }

    fn call(&self, header: &CallHeader, cred: &GssCred, signed: &[u8], args: Bytes) -> Received {
        if !(GssService::NONE.0..=GssService::PRIVACY.0).contains(&cred.service.0) {
            return Received::Refused(AuthStat::BADCRED);
        }
        if cred.sequence >= SEQUENCE_MAX {
            return Received::Refused(AuthStat::RPCSEC_GSS_CTXPROBLEM);
        }
        let Some(context) = self.find(&cred.handle) else {
            return Received::Refused(AuthStat::RPCSEC_GSS_CREDPROBLEM);
        };
        let is_signed = header.verf.flavor == AuthFlavor::GSS
            && context.context.verify(signed, &header.verf.body.0).is_ok();
        if !is_signed {
            return Received::Refused(AuthStat::RPCSEC_GSS_CREDPROBLEM);
        }
        if !context.window.lock().take(cred.sequence) {
            return Received::Old;
        }
        context.used.store(self.uses.fetch_add(1, Relaxed), Relaxed);
        let caller = GssCaller {
            principal: context.principal.clone(),
            ids: context.ids.clone(),
            service: cred.service,
        };
        let opened = open(&*context.context, cred.service, &[cred.sequence], args);
        let call = GssCall { context, service: cred.service, sequence: cred.sequence };
        match opened {
            Some(_) if cred.proc == GssProc::DESTROY => Received::Destroy(call),
            Some(args) => Received::Call(call, caller, args),
            None => Received::Garbage(call),
        }
    }

    fn find(&self, handle: &Opaque<HANDLE_MAX_BYTES>) -> Option<Arc<ServerContext>> {
        let id = u64::from_be_bytes((*handle.0).try_into().ok()?);
        let mut contexts = self.contexts.lock();
        let context = contexts.get(&id)?.clone();
        if context.context.expires().is_some_and(|end| end <= Instant::now()) {
            contexts.remove(&id);
            return None;
        }
        Some(context)
    }

    /// Makes a context, and the message that answers its call.
    pub(crate) async fn init(self: Arc<Self>, xid: u32, args: InitArgs) -> Enc {
        let me = self.clone();
        let accept = move || {
            let accepted = me.mechanism.accept(&args.token.0)?;
            let ids = (me.ids_of)(&accepted.principal, accepted.local.as_deref()).map(Arc::new);
            Ok::<_, super::GssError>((accepted, ids))
        };
        let refused = |why: &str| {
            tracing::warn!("a Kerberos ticket is refused: {why}");
            let res = InitRes {
                handle: Opaque::default(),
                major: major::FAILURE,
                minor: 0,
                window: 0,
                token: Opaque::default(),
            };
            let mut e = Enc::of(&ReplyHeader::success(xid));
            e.append(Enc::of(&res));
            e
        };
        // Never closed.
        let _turn = self.accepting.acquire().await;
        match tokio::task::spawn_blocking(accept).await {
            Ok(Ok((accepted, ids))) => match self.add(xid, accepted, ids) {
                Ok(message) => message,
                Err(e) => refused(&e.to_string()),
            },
            Ok(Err(e)) => refused(&e.to_string()),
            Err(_) => refused("the mechanism failed"),
        }
    }

    fn add(&self, xid: u32, accepted: Accepted, ids: Option<Arc<GssIds>>) -> Result<Enc, super::GssError> {
        let Accepted { context, token, principal, .. } = accepted;
        let verifier = context.mic(&WINDOW.to_be_bytes())?;
        let used = AtomicU64::new(self.uses.fetch_add(1, Relaxed));
        let mut contexts = self.contexts.lock();
        if contexts.len() >= CONTEXTS_MAX {
            evict(&mut contexts);
        }
        // Handles are random: a handle from before a restart is unknown.
        let id =
            std::iter::repeat_with(rand::random).find(|id| !contexts.contains_key(id)).unwrap_or_default();
        tracing::debug!(%principal, ?ids, "Kerberos context accepted");
        let window = Mutex::new(Window::new());
        contexts.insert(id, Arc::new(ServerContext { context, id, principal, ids, window, used }));
        drop(contexts);
        let handle = Opaque(Bytes::copy_from_slice(&id.to_be_bytes()));
        let res = InitRes { handle, major: major::COMPLETE, minor: 0, window: WINDOW, token: Opaque(token) };
        let mut message = Enc::of(&accepted_reply(xid, verifier, AcceptStat::Success));
        message.append(Enc::of(&res));
        Ok(message)
    }

    /// The message that answers a call to end a context.
    pub(crate) fn destroy(&self, xid: u32, call: &GssCall) -> Enc {
        let message = call.success(xid, Enc::new());
        self.contexts.lock().remove(&call.context.id);
        message
    }
}

fn evict(contexts: &mut HashMap<u64, Arc<ServerContext>>) {
    let mut uses: Vec<u64> = contexts.values().map(|c| c.used.load(Relaxed)).collect();
    let part = uses.len() / EVICTED_PART;
    let limit = *uses.select_nth_unstable(part).1;
    contexts.retain(|_, c| c.used.load(Relaxed) > limit);
}

fn accepted_reply(xid: u32, mic: Bytes, stat: AcceptStat) -> ReplyHeader {
    let verf = OpaqueAuth { flavor: AuthFlavor::GSS, body: Opaque(mic) };
    ReplyHeader { xid, body: ReplyBody::Accepted(AcceptedReply { verf, stat }) }
}

impl GssCall {
    /// Whether the results must be in memory, to be sealed.
    pub fn seals_results(&self) -> bool {
        self.service != GssService::NONE
    }

    /// The header of an accepted call. `None`: the context has ended.
    pub fn accepted(&self, xid: u32, stat: AcceptStat) -> Enc {
        match self.context.context.mic(&self.sequence.to_be_bytes()) {
            Ok(mic) => Enc::of(&accepted_reply(xid, mic, stat)),
            Err(_) => ended(xid),
        }
    }

    /// The message of an executed call.
    pub fn success(&self, xid: u32, results: Enc) -> Enc {
        let header = self.context.context.mic(&self.sequence.to_be_bytes());
        let body = seal(&*self.context.context, self.service, self.sequence, results.finish());
        let (Ok(mic), Ok(body)) = (header, body) else { return ended(xid) };
        let mut message = Enc::of(&accepted_reply(xid, mic, AcceptStat::Success));
        body.into_iter().for_each(|segment| message.push_segment(segment));
        message
    }
}

/// The answer to a call whose context expired before the reply. The call was executed. The client
/// sends it again under another context, and a reply cache answers it.
fn ended(xid: u32) -> Enc {
    use hither_proto::rpc::DeniedReply;
    Enc::of(&ReplyHeader::denied(xid, DeniedReply::AuthError(AuthStat::RPCSEC_GSS_CTXPROBLEM)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each number is accepted once, in any order within the window, as a set of all accepted
    /// numbers says.
    #[test]
    fn window_accepts_numbers_once() {
        let mut random = 7_u64;
        let mut draw = |below: u32| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as u32 % below
        };
        for _ in 0..200 {
            let (mut window, mut accepted) = (Window::new(), std::collections::HashSet::new());
            let (mut highest, step) = (0_u32, 1 + draw(3 * WINDOW));
            for _ in 0..2_000 {
                let sequence = 1 + (highest + draw(step)).saturating_sub(draw(2 * WINDOW));
                let is_recent = sequence > highest || highest - sequence < WINDOW;
                let want = is_recent && !accepted.contains(&sequence);
                assert_eq!(window.take(sequence), want, "{sequence} {highest}");
                if want {
                    accepted.insert(sequence);
                    highest = highest.max(sequence);
                }
            }
        }
    }
}
