//! One NFSv3 procedure: credential, call, retry at a busy server, errno.
//!
//! WRITE and COMMIT also serve the uncommitted writes. A call is retransmitted with the same xid
//! after each timeout and on each new connection. Servers recognise the xid in their reply cache. A
//! server without a reply cache may answer a second REMOVE or MKDIR with ENOENT or EEXIST. The
//! program sees that error, as with the Linux client. Only an exclusive CREATE is recognised by its
//! verifier.

use super::convert;
use crate::detach::account;
use crate::error;
use crate::nqnfs::{Nqnfs, ONLY_HELD};
use crate::security::Credentials;
use crate::validity::ValidityRules;
use crate::writes::{Failure, Origin, Verifier, Wire, WriteReply};
use async_trait::async_trait;
use hither_proto::nfs3::{self, CommitArgs, Nfsstat3, PostOpAttr, Res, StableHow, WriteArgs};
use hither_proto::rpc::Procedure;
use hither_proto::xdr::{Dec, Enc, Opaque, Xdr};
use hither_rpc::{Call, CallError, Client, Retransmit, Stats};
use hither_vfs::{Account, Attr, Cred, Data, Env, Error, Fh, RequestContext, Result, Upcalls};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// First wait after JUKEBOX ("try again later"). It doubles up to [`JUKEBOX_MAX`].
pub(crate) const JUKEBOX_LEAST: Duration = Duration::from_millis(100);
/// Longest wait after JUKEBOX. The Linux client always waits this long.
pub(crate) const JUKEBOX_MAX: Duration = Duration::from_secs(5);

/// Sizes that the server announced at mount time, within the limits of the options.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub rsize_bytes: u32,
    pub wsize_bytes: u32,
    pub name_max_bytes: u32,
    /// Longest file.
    pub file_max_bytes: u64,
}

/// How long the caller of a procedure waits for its result.
#[derive(Debug, Clone, Default)]
pub(crate) struct Patience {
    cancel: Option<CancellationToken>,
    deadline: Option<Instant>,
    /// Account to which the call is charged.
    account: Option<Arc<Account>>,
}

impl Patience {
    /// As long as the caller of the `Vfs` call.
    pub fn of(cx: &RequestContext) -> Self {
        Self { cancel: Some(cx.cancel.clone()), deadline: cx.deadline, account: cx.account.clone() }
    }

    /// As long as the mount's retry policy, for calls that must run to their end.
    pub fn policy() -> Self {
        Self { account: account(), ..Self::default() }
    }

    /// Ends with `cancel` instead of the caller's cancellation.
    pub fn ended_by(&self, cancel: CancellationToken) -> Self {
        Self { cancel: Some(cancel), ..self.clone() }
    }

    /// Until `deadline`.
    pub fn until(deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..Self::default() }
    }
}

/// The shared parts of all procedures.
pub(crate) struct Caller {
    pub client: Client,
    pub stats: Arc<Stats>,
    pub env: Env,
    pub rules: ValidityRules,
    pub sizes: Sizes,
    /// The NQNFS layer that sends the calls, when present.
    pub nqnfs: Option<Nqnfs>,
    credentials: Credentials,
    /// Knows the paths of files, for messages.
    pub above: OnceLock<Arc<dyn Upcalls>>,
}

/// Outcome of a procedure: the results, or the failing status with its attributes.
pub(crate) type Outcome<T, F> = std::result::Result<T, (Nfsstat3, F)>;

impl Caller {
    pub fn new(
        client: Client,
        stats: Arc<Stats>,
        env: Env,
        rules: ValidityRules,
        credentials: Credentials,
    ) -> Self {
        let sizes =
            Sizes { rsize_bytes: 4096, wsize_bytes: 4096, name_max_bytes: 255, file_max_bytes: u64::MAX };
        Self { client, stats, env, rules, sizes, nqnfs: None, credentials, above: OnceLock::new() }
    }

    /// Calls a procedure. Repeats the call after JUKEBOX.
    pub async fn ask<P, T, F>(
        &self,
        cred: &Cred,
        patience: &Patience,
        args: &P,
    ) -> std::result::Result<Outcome<T, F>, CallError>
    where
        P: Procedure<Reply = Res<T, F>>,
        T: Xdr,
        F: Xdr,
    {
        let mut wait = JUKEBOX_LEAST;
        loop {
            let outcome: Outcome<T, F> = self.call(cred, patience, args).await?.into_result();
            match outcome {
                Err((Nfsstat3::JUKEBOX, _)) => {
                    self.failed::<P>();
                    self.pause(patience, wait).await?;
                    wait = (wait * 2).min(JUKEBOX_MAX);
                }
                Err(failed) => {
                    self.failed::<P>();
                    return Ok(Err(failed));
                }
                done => return Ok(done),
            }
        }
    }

    /// As [`Caller::ask`], for callers that treat every failed status as an error.
    pub async fn expect<P, T, F>(&self, cred: &Cred, patience: &Patience, args: &P) -> Result<T>
    where
        P: Procedure<Reply = Res<T, F>>,
        T: Xdr,
        F: Xdr,
    {
        let outcome = self.ask(cred, patience, args).await.map_err(|e| error::call(&e))?;
        outcome.map_err(|(status, _)| error::nfs3(status))
    }

    /// Counts a failure. The NQNFS layer counts failures of its own calls.
    fn failed<P: Procedure>(&self) {
        if self.nqnfs.is_none() {
            self.stats.error(P::NAME);
        }
    }

    async fn call<P: Procedure>(
        &self,
        cred: &Cred,
        patience: &Patience,
        args: &P,
    ) -> std::result::Result<P::Reply, CallError> {
        match &self.nqnfs {
            None => self.send(cred, patience, args).await,
            Some(nqnfs) => nqnfs.call(self, cred, patience, args).await,
        }
    }

    /// Sends one call, without retries after JUKEBOX.
    pub async fn send<P: Procedure>(
        &self,
        cred: &Cred,
        patience: &Patience,
        args: &P,
    ) -> std::result::Result<P::Reply, CallError> {
        let call = Call {
            prog: P::PROG,
            vers: P::VERS,
            proc: P::PROC,
            op: P::NAME,
            cred: self.credentials.of(cred),
            args: Enc::of(args),
            connection: None,
            retransmit: Retransmit::OnReconnectAndTimeout,
            deadline: patience.deadline,
            cancel: patience.cancel.clone(),
        };
        let began = Instant::now();
        let reply = self.client.call(call).await;
        if let Some(account) = &patience.account {
            account.asked(P::NAME, began.elapsed());
        }
        let reply = reply?;
        Dec::all(&reply.body).map_err(|e| {
            tracing::warn!(server = self.client.server(), op = P::NAME, error = %e, "malformed reply");
            CallError::PeerMisbehaved("a reply cannot be decoded")
        })
    }

    /// Waits before a call is repeated.
    pub async fn pause(&self, patience: &Patience, wait: Duration) -> std::result::Result<(), CallError> {
        let over = Instant::now() + wait;
        let end = patience.deadline.map_or(over, |d| d.min(over));
        let cancelled = async {
            match &patience.cancel {
                Some(token) => token.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep_until(end) => {
                if end < over { Err(CallError::DeadlinePassed) } else { Ok(()) }
            }
            () = cancelled => Err(CallError::Cancelled),
        }
    }

    /// Fresh attributes.
    pub async fn getattr(&self, cred: &Cred, patience: &Patience, fh: &Fh) -> Result<Attr> {
        let args = nfs3::GetattrArgs { object: convert::fh3(fh)? };
        let found = self.expect(cred, patience, &args).await?;
        convert::attr(&found).ok_or_else(unknown_type)
    }

    /// The attributes of a reply, or those of a GETATTR when the reply has none.
    pub async fn attr_or_ask(
        &self,
        cred: &Cred,
        patience: &Patience,
        fh: &Fh,
        came: PostOpAttr,
    ) -> Result<Attr> {
        match came {
            Some(f) => convert::attr(&f).ok_or_else(unknown_type),
            None => self.getattr(cred, patience, fh).await,
        }
    }
}

fn unknown_type() -> Error {
    Error::because(libc::EIO, "the server gives an unknown file type")
}

fn failure(e: CallError) -> Failure {
    match e {
        CallError::TimedOut(_) | CallError::DeadlinePassed | CallError::Shutdown | CallError::Connect(_) => {
            Failure::Unanswered(error::call(&e))
        }
        e => Failure::Refused(error::call(&e)),
    }
}

#[async_trait]
impl Wire for Caller {
    fn path(&self, fh: &Fh) -> Option<String> {
        self.above.get()?.path(fh)
    }

    fn wsize_bytes(&self) -> u32 {
        self.sizes.wsize_bytes
    }

    async fn write(
        &self,
        origin: &Origin,
        fh: &Fh,
        offset_bytes: u64,
        data: Data,
        stable: bool,
    ) -> std::result::Result<WriteReply, Failure> {
        let data = data.into_bytes();
        let args = WriteArgs {
            file: convert::fh3(fh).map_err(Failure::Refused)?,
            offset: offset_bytes,
            count: data.len() as u32,
            stable: if origin.only_held {
                ONLY_HELD
            } else if stable {
                StableHow::FILE_SYNC
            } else {
                StableHow::UNSTABLE
            },
            data: Opaque(data),
        };
        match self.ask(&origin.cred, &Patience::policy(), &args).await.map_err(failure)? {
            Ok(ok) => Ok(WriteReply {
                bytes: u64::from(ok.count),
                stable: ok.committed != StableHow::UNSTABLE,
                verifier: ok.verf,
                attr: ok.file_wcc.after.as_ref().and_then(convert::attr),
            }),
            Err((Nfsstat3::NOT_SYNC, _)) if origin.only_held => {
                Err(Failure::Refused(Error::new(libc::EAGAIN)))
            }
            Err((status, _)) => Err(Failure::Refused(error::nfs3(status))),
        }
    }

    async fn commit(&self, origin: &Origin, fh: &Fh) -> std::result::Result<Verifier, Failure> {
        let args = CommitArgs { file: convert::fh3(fh).map_err(Failure::Refused)?, offset: 0, count: 0 };
        match self.ask(&origin.cred, &Patience::policy(), &args).await.map_err(failure)? {
            Ok(ok) => Ok(ok.verf),
            Err((status, _)) => Err(Failure::Refused(error::nfs3(status))),
        }
    }

    fn epoch(&self) -> u64 {
        self.client.generations().borrow().iter().sum()
    }
}
