//! The shared part of a v4 mount: connection, current session, credentials, and the execution of
//! work in separate tasks.
//!
//! A [`Phase`] shows whether a session is ready. Callers without a session wait for the recovery in
//! progress. There is at most one recovery at a time.

use super::bring::Owners;
use super::call::interruptible;
use super::delegation::Delegations;
use super::fail::{Answered, Fail};
use super::io::Wire;
use super::lease::Lease;
use super::recover::Need;
use super::session::Session;
use super::state::Files;
use crate::idmap::{self, IdMap};
use crate::security::Credentials;
use crate::validity::ValidityRules;
use crate::writes::{Limits, Uncommitted};
use crate::{Options, Recovery};
use hither_proto::nfs4::Bitmap4;
use hither_rpc::{Client, Credential, Stats};
use hither_vfs::{Cred, Env, Error, Fh, RequestContext, Result};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Whether a session is ready.
#[derive(Debug, Clone)]
pub(crate) enum Phase {
    /// The session is ready.
    Ready(Arc<Session>),
    /// A session is being created, or state is being recovered.
    Recovering,
    /// The mount is ending.
    Stopped,
}

/// Properties of the mounted file system, read once at mount time.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// Root directory.
    pub root: Fh,
    /// Largest READ in bytes.
    pub rsize: u32,
    /// Largest WRITE in bytes.
    pub wsize: u32,
    /// Attributes that an exclusive create may set.
    pub exclusive_attrs: Bitmap4,
    /// Extended attributes (RFC 8276).
    pub xattrs: bool,
    /// ACLs.
    pub acls: bool,
    /// A creation may carry the caller's umask (RFC 8275).
    pub umask: bool,
    /// The holder of a write delegation may maintain the times of its file (RFC 9754).
    pub delegated_times: bool,
}

/// The shared part of a mount.
pub(crate) struct Core {
    /// Mount options.
    pub opts: Options,
    /// Randomness and wall clock.
    pub env: Env,
    /// Connections to the server.
    pub rpc: Client,
    /// Counters.
    pub stats: Arc<Stats>,
    /// 1 or 2.
    pub minor: u32,
    /// Validity of attributes.
    pub valid: ValidityRules,
    /// Mapping of owners between names and numbers.
    pub ids: IdMap,
    /// Open files.
    pub files: Files,
    /// Writes that are not on stable storage yet.
    writes: OnceLock<Arc<Uncommitted>>,
    /// Clientid and lease.
    pub lease: Mutex<Lease>,
    /// Set at the end of mounting.
    pub facts: OnceLock<Facts>,
    /// Cancelled at the end of the mount: background tasks end.
    pub stop: CancellationToken,
    /// Most operations of one compound that the server was found to accept, when fewer than its
    /// limits.
    pub ops_limit: AtomicUsize,
    /// The epoch of the session of the test, and whether the server writes the right bytes of
    /// several WRITEs in a compound.
    pub several_writes: tokio::sync::Mutex<Option<(u64, bool)>>,
    /// The server returns data right at every place of a compound
    /// ([`data_anywhere`](super::mount::data_anywhere)).
    pub data_anywhere: AtomicBool,
    /// Consecutive walks that succeeded only name by name.
    pub refusals: AtomicUsize,
    /// The server has no COPY.
    pub no_copy: std::sync::atomic::AtomicBool,
    /// The server is `hither serve`.
    pub own_server: AtomicBool,
    /// The server does not return the filehandle as an attribute.
    pub needs_getfh: AtomicBool,
    /// Recognises exclusive creations.
    pub stamps: crate::stamp::Stamps,
    /// Files that wait for their CLOSE.
    pub closer: super::closer::Closer,
    /// Delegations of the mount.
    pub delegations: Delegations,
    /// Whether the server grants directory delegations.
    pub directories: super::directory::Directories,
    /// Owners of opens that last for one compound.
    pub owners: Arc<Owners>,
    pub(super) phase: watch::Sender<Phase>,
    credentials: Credentials,
}

impl Core {
    /// A mount without a session yet.
    pub fn new(opts: Options, env: Env, rpc: Client, stats: Arc<Stats>, minor: u32) -> Arc<Self> {
        let machine = host_name();
        let credentials = Credentials::new(&opts.security, &opts.server, machine.clone().into());
        Arc::new(Self {
            valid: ValidityRules::new(&opts, &env),
            ids: IdMap::new(opts.idmap_domain.clone().unwrap_or_else(idmap::local_domain)),
            files: Files::new((env.random)()),
            writes: OnceLock::new(),
            lease: Mutex::new(Lease::new(&env, &machine, opts.client_name.as_deref())),
            facts: OnceLock::new(),
            stop: CancellationToken::new(),
            ops_limit: AtomicUsize::new(usize::MAX),
            several_writes: Default::default(),
            data_anywhere: AtomicBool::new(false),
            refusals: AtomicUsize::new(0),
            no_copy: Default::default(),
            own_server: AtomicBool::new(false),
            needs_getfh: AtomicBool::new(false),
            stamps: Default::default(),
            closer: Default::default(),
            delegations: Delegations::default(),
            directories: Default::default(),
            owners: Arc::default(),
            phase: watch::channel(Phase::Recovering).0,
            credentials,
            opts,
            env,
            rpc,
            stats,
            minor,
        })
    }

    /// Properties of the file system, known from mount time.
    pub fn facts(&self) -> &Facts {
        self.facts.get().expect("operations begin after mounting")
    }

    /// Writes that are not on stable storage yet.
    pub fn writes(self: &Arc<Self>) -> &Arc<Uncommitted> {
        self.writes.get_or_init(|| Uncommitted::new(Arc::new(Wire::new(self)), Limits::default()))
    }

    /// The current session. Waits for a recovery in progress.
    pub async fn ready(&self) -> Answered<Arc<Session>> {
        let mut phase = self.phase.subscribe();
        loop {
            match &*phase.borrow_and_update() {
                Phase::Ready(session) => return Ok(session.clone()),
                Phase::Stopped => return Err(Fail::Final(going_away())),
                Phase::Recovering => {}
            }
            if phase.changed().await.is_err() {
                return Err(Fail::Final(going_away()));
            }
        }
    }

    /// Starts a recovery of `need` after an error of session `epoch`. Does nothing when that
    /// session has been or is being replaced.
    pub fn session_lost(self: &Arc<Self>, epoch: u64, need: Need) {
        let mut lost = None;
        self.phase.send_if_modified(|phase| match phase {
            Phase::Ready(s) if s.epoch == epoch => {
                lost = Some(s.clone());
                *phase = Phase::Recovering;
                true
            }
            _ => false,
        });
        if let Some(session) = lost {
            // A recall may have been lost with the session.
            self.delegations.revoke_all();
            if need.session || need.client {
                session.close();
            }
            let core = self.clone();
            tokio::spawn(async move { core.recover(need, session).await });
        }
    }

    /// The RPC credential of a caller.
    pub fn credential(&self, cred: &Cred) -> Credential {
        self.credentials.of(cred)
    }

    /// The credential for the mount's own state.
    pub fn root_credential(&self) -> Credential {
        self.credential(&Cred::root())
    }

    /// A context for the mount's own work.
    pub fn own_cx(&self) -> RequestContext {
        RequestContext::new(Arc::new(Cred::root()))
    }

    /// Runs `work` in its own task. Waits for it as long as the caller and the mount's policy
    /// allow. No slot and no open is lost when the caller stops waiting.
    pub async fn detached<T: Send + 'static>(
        &self,
        cx: &RequestContext,
        work: impl Future<Output = Answered<T>> + Send + 'static,
    ) -> Result<T> {
        self.detached_or(cx, work, |_| {}).await
    }

    /// As [`Core::detached`]. `undo` gets a result whose caller no longer waits.
    pub async fn detached_or<T: Send + 'static>(
        &self,
        cx: &RequestContext,
        work: impl Future<Output = Answered<T>> + Send + 'static,
        undo: impl FnOnce(T) + Send + 'static,
    ) -> Result<T> {
        let (tx, rx) = oneshot::channel();
        tokio::spawn(async move {
            let result = work.await.map_err(Error::from);
            let _ = tx.send(result.map(|value| Delivery(Some((value, undo)))));
        });
        match self.wait_for(cx, rx).await? {
            Ok(result) => result.map(Delivery::take),
            Err(_) => Err(Error::because(libc::EIO, "a task of the client ended early")),
        }
    }

    /// Waits as long as the caller and the mount's policy allow.
    pub async fn wait_for<T>(&self, cx: &RequestContext, wait: impl Future<Output = T>) -> Result<T> {
        let (deadline, late) = self.patience(cx);
        let wait = async {
            match deadline {
                Some(at) => tokio::time::timeout_at(at, wait).await.map_err(|_| late),
                None => Ok(wait.await),
            }
        };
        interruptible(Some(&cx.cancel), wait).await?
    }

    /// The time until which a caller waits, and the error afterwards. The time is the caller's
    /// deadline, or the major timeout of a soft mount (`timeo` times `retrans` + 1).
    pub fn patience(&self, cx: &RequestContext) -> (Option<Instant>, Error) {
        let soft = match self.opts.recovery {
            Recovery::Hard => None,
            Recovery::Soft => Some(libc::EIO),
            Recovery::Softerr => Some(libc::ETIMEDOUT),
        };
        let major = Instant::now() + self.opts.timeo * (self.opts.retrans + 1);
        match (soft, cx.deadline) {
            (Some(errno), deadline) if deadline.is_none_or(|d| major < d) => {
                (Some(major), Error::because(errno, format!("{} does not answer", self.opts.server)))
            }
            (_, deadline) => (deadline, Error::new(libc::ETIMEDOUT)),
        }
    }

    /// The lease time; a guess before the server has returned it.
    pub fn lease_time(&self) -> Duration {
        self.lease.lock().time
    }
}

/// A result for its caller. Drop undoes a result that was not taken.
struct Delivery<T, U: FnOnce(T)>(Option<(T, U)>);

impl<T, U: FnOnce(T)> Delivery<T, U> {
    fn take(mut self) -> T {
        self.0.take().expect("taken once").0
    }
}

impl<T, U: FnOnce(T)> Drop for Delivery<T, U> {
    fn drop(&mut self) {
        if let Some((value, undo)) = self.0.take() {
            undo(value);
        }
    }
}

pub(crate) fn going_away() -> Error {
    Error::because(libc::EIO, "the mount is going away")
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.chars().take(255).collect(),
    }
}
