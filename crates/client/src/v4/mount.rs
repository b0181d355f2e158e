//! Mounts an export: EXCHANGE_ID, CREATE_SESSION, RECLAIM_COMPLETE, and one compound that walks
//! from the server's root to the exported path.
//!
//! Recovery uses the first two again. Every failure becomes the line that mount(8) prints.

use super::attrs::NODE_ATTRS;
use super::call::{Compound, OVERHEAD_BYTES};
use super::core::{Core, Facts, Phase};
use super::fail::Fail;
use super::recover::Need;
use super::session::{Limits, Session};
use super::state::own_fh;
use crate::connect::SessionLimits;
use crate::error::{self, MountError, Service};
use hither_proto::nfs4::{
    Attrs, Bitmap4, CallbackSec, ChannelAttrs, ClientOwner, CreateSessionArgs, ExchangeIdArgs, ExchangeIdOk,
    Ftype, HITHER_DOMAIN, ImplId, Nfsstat4, Op, OpError, Secinfo, SecinfoStyle, StateProtectArgs, Time, attr,
    create_session, exchgid, open,
};
use hither_proto::rpc::{AuthFlavor, AuthSys};
use hither_rpc::{CallError, Flavor};
use hither_vfs::{Error, Fh};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// Program number of callbacks, from the range of transient numbers (RFC 5531 section 8.6.1).
pub(crate) const CB_PROGRAM: u32 = 0x4000_0000;
/// Slots that the server may use for callbacks.
pub(crate) const CB_SLOTS: u32 = 16;
/// Largest READ and WRITE payload.
const IO_MAX_BYTES: u32 = 1 << 20;
/// Requested slots: the calls in flight. The Linux client requests 64. A FUSE mount has many
/// threads.
const SLOTS: u32 = 128;
/// Requested operations of a compound: a path of 30 names with three operations each. nfs-ganesha
/// grants more than the 100 that it accepts.
const OPS: u32 = 96;
/// End of the server scope of nfs-ganesha. It is followed by a NUL.
const GANESHA_SCOPE: &[u8] = b"_NFS-Ganesha";
/// Longest time for each step of mounting.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Reason for a failed setup of the client or a session.
#[derive(Debug)]
pub(crate) enum SetupFail {
    /// No reply.
    Call(CallError),
    /// The server refused, or its reply is malformed.
    Op(OpError),
}

impl SetupFail {
    /// The server's status, when there is one.
    pub fn status(&self) -> Option<Nfsstat4> {
        match self {
            SetupFail::Call(_) => None,
            SetupFail::Op(e) => e.status(),
        }
    }

    /// Converts to a [`Fail`].
    pub fn into_fail(self) -> Fail {
        match self {
            SetupFail::Call(e) => Fail::Final(error::call(&e)),
            SetupFail::Op(e) => e.into(),
        }
    }
}

impl super::V4 {
    /// The negotiated limits, while there is a session.
    pub fn session_limits(&self) -> Option<SessionLimits> {
        let core = &self.core;
        let Phase::Ready(session) = &*core.phase.borrow() else { return None };
        let limits = session.limits;
        Some(SessionLimits {
            slots: limits.max_slots,
            operations: limits.max_ops,
            request_bytes: limits.max_request_bytes,
            response_bytes: limits.max_response_bytes,
            lease: core.lease.lock().time,
        })
    }
}

/// Whether the server is known to return the data of READ and READDIR right at every place of a
/// compound.
///
/// Linux 6.1 corrupts a reply with several READDIRs, and the connection is then unusable. Linux
/// 6.12 returns stale memory for a READ that follows another READ, a READDIR, or small results of
/// more than a page in its compound. No status warns of either. So the server must be one that is
/// tested: nfs-ganesha or hither. The answer chooses the shape of compounds only; every server
/// understands both shapes.
pub(crate) fn data_anywhere(server: &ExchangeIdOk) -> bool {
    let scope: &[u8] = &server.server_scope;
    let is_ganesha = scope.strip_suffix(b"\0").unwrap_or(scope).ends_with(GANESHA_SCOPE);
    is_ganesha || server.impl_id.as_ref().is_some_and(|id| id.domain[..] == *HITHER_DOMAIN)
}

impl Core {
    /// Sends EXCHANGE_ID. `true` when the server still knows the client with all its state.
    pub async fn exchange_id(&self, deadline: Option<Instant>) -> Result<bool, SetupFail> {
        let (clientowner, before) = {
            let lease = self.lease.lock();
            let ownerid = lease.owner.as_slice().into();
            (ClientOwner { verifier: lease.verifier, ownerid }, lease.clientid)
        };
        let op = Op::ExchangeId(ExchangeIdArgs {
            clientowner,
            flags: exchgid::USE_NON_PNFS,
            state_protect: StateProtectArgs::None,
            impl_id: Some(ImplId {
                domain: HITHER_DOMAIN.into(),
                name: concat!("hither ", env!("CARGO_PKG_VERSION")).as_bytes().into(),
                date: Time::default(),
            }),
        });
        let mut results = self.bare("EXCHANGE_ID", op, None, deadline).await.map_err(SetupFail::Call)?;
        let ok = results.exchange_id().map_err(SetupFail::Op)?;
        self.data_anywhere.store(data_anywhere(&ok), Ordering::Relaxed);
        let confirmed = ok.flags & exchgid::CONFIRMED_R != 0;
        let is_own = ok.impl_id.as_ref().is_some_and(|id| id.domain[..] == *HITHER_DOMAIN);
        self.own_server.store(is_own, Ordering::Relaxed);
        let mut lease = self.lease.lock();
        lease.clientid = Some(ok.clientid);
        if !(confirmed && before == Some(ok.clientid)) {
            lease.sequence = ok.sequenceid;
        }
        Ok(confirmed && before == Some(ok.clientid))
    }

    /// Creates a session for the client. The connection of the call also becomes a backchannel.
    pub async fn create_session(
        self: &Arc<Self>,
        deadline: Option<Instant>,
    ) -> Result<Arc<Session>, SetupFail> {
        let (clientid, sequence) = {
            let lease = self.lease.lock();
            (lease.clientid.unwrap_or_default(), lease.sequence)
        };
        let op = Op::CreateSession(CreateSessionArgs {
            clientid,
            sequence,
            flags: create_session::CONN_BACK_CHAN,
            fore_chan_attrs: ChannelAttrs {
                headerpadsize: 0,
                maxrequestsize: IO_MAX_BYTES + OVERHEAD_BYTES,
                maxresponsesize: IO_MAX_BYTES + OVERHEAD_BYTES,
                // The longest useful reply: that of many creations.
                maxresponsesize_cached: 32 << 10,
                maxoperations: OPS,
                maxrequests: SLOTS,
                rdma_ird: None,
            },
            back_chan_attrs: ChannelAttrs {
                headerpadsize: 0,
                maxrequestsize: 16 << 10,
                maxresponsesize: 16 << 10,
                maxresponsesize_cached: 4096,
                maxoperations: 16,
                maxrequests: CB_SLOTS,
                rdma_ird: None,
            },
            cb_program: CB_PROGRAM,
            sec_parms: vec![CallbackSec::Sys(AuthSys {
                stamp: 0,
                machinename: b"hither".as_slice().into(),
                uid: 0,
                gid: 0,
                gids: Vec::new().into(),
            })]
            .into(),
        });
        let mut results = self.bare("CREATE_SESSION", op, None, deadline).await.map_err(SetupFail::Call)?;
        let ok = results.create_session().map_err(SetupFail::Op)?;
        let fore = ok.fore_chan_attrs;
        // The server may be another one, or may have the missing resources again.
        self.ops_limit.store(usize::MAX, Ordering::Relaxed);
        self.refusals.store(0, Ordering::Relaxed);
        let mut lease = self.lease.lock();
        lease.sequence = lease.sequence.wrapping_add(1);
        lease.epoch += 1;
        lease.renewed = Instant::now();
        let limits = Limits {
            max_request_bytes: fore.maxrequestsize,
            max_response_bytes: fore.maxresponsesize,
            max_cached_bytes: fore.maxresponsesize_cached,
            max_ops: fore.maxoperations,
            max_slots: fore.maxrequests.min(SLOTS),
        };
        tracing::debug!(?limits, epoch = lease.epoch, "session created");
        Ok(Session::new(ok.sessionid, lease.epoch, limits))
    }

    /// Runs all steps from the first call to the root of the export. `addr` is for messages.
    pub async fn mount(self: &Arc<Self>, addr: SocketAddr) -> Result<(), MountError> {
        let deadline = || Some(Instant::now() + STEP_TIMEOUT);
        self.exchange_id(deadline()).await.map_err(|f| self.setup_error(addr, f))?;
        let session = self.create_session(deadline()).await.map_err(|f| self.setup_error(addr, f))?;
        self.phase.send_replace(Phase::Ready(session.clone()));
        let rest = async {
            match self.reclaim_complete(&session).await {
                Ok(Ok(())) => {}
                Ok(Err(f)) => return Err(self.mount_error(f)),
                Err(Need { .. }) => return Err(self.protocol("the server lost the new session at once")),
            }
            self.find_root(&session).await
        };
        match tokio::time::timeout(2 * STEP_TIMEOUT, rest).await {
            Ok(done) => done?,
            Err(_) => {
                let server = self.opts.server.clone();
                return Err(MountError::TimedOut { server, service: Service::Nfs, addr });
            }
        }
        self.keep_lease();
        Ok(())
    }

    /// Looks up the root of the export, and stores its facts.
    async fn find_root(self: &Arc<Self>, session: &Arc<Session>) -> Result<(), MountError> {
        const ASK: Bitmap4 = NODE_ATTRS
            .with(attr::LEASE_TIME)
            .with(attr::MAXREAD)
            .with(attr::MAXWRITE)
            .with(attr::SUPPATTR_EXCLCREAT)
            .with(attr::ACLSUPPORT)
            .with(attr::CASE_INSENSITIVE)
            .with(attr::XATTR_SUPPORT)
            .with(attr::SUPPORTED_ATTRS)
            .with(attr::OPEN_ARGUMENTS);
        let names: Vec<&[u8]> =
            self.opts.path.as_bytes().split(|&b| b == b'/').filter(|n| !n.is_empty()).collect();
        let mut ops = vec![Op::Putrootfh];
        ops.extend(names.iter().map(|n| Op::lookup(n)));
        ops.extend([Op::Getfh, Op::Getattr(ASK)]);
        let needed = ops.len();
        // After all needed operations: many servers do not support it.
        let _asking = self.asking();
        ops.extend(self.may_hold_directories().then(super::directory::ask_op));
        let mut answer = self
            .compound(&self.own_cx(), Compound::new("LOOKUP_ROOT", ops).wishes_from(needed))
            .await
            .map_err(|f| self.mount_error(f))?;
        let walked = answer.results.remaining();
        let results = &mut answer.results;
        let found = (|| {
            results.putrootfh()?;
            for _ in &names {
                results.lookup()?;
            }
            Ok((results.getfh()?, results.getattr()?))
        })();
        let (fh, attrs) = match found {
            Ok(found) => found,
            Err(e @ OpError::Status { status: Nfsstat4::WRONGSEC, .. }) => {
                return Err(self.wrong_security(&names, walked, e).await);
            }
            Err(e) => return Err(self.mount_error(e.into())),
        };
        if attrs.ftype != Some(Ftype::DIR) {
            let (server, path) = (self.opts.server.clone(), self.opts.path.clone());
            return Err(MountError::NotDirectory { server, path });
        }
        if let Some(&secs) = attrs.lease_time() {
            self.lease.lock().time = Duration::from_secs(u64::from(secs.clamp(1, 3600)));
        }
        if attrs.case_insensitive().copied().unwrap_or(false) {
            self.valid.ignore_case();
        }
        let facts = self.facts_of(own_fh(&fh), &attrs, &session.limits);
        if self.may_hold_directories() {
            self.directories_offered(&facts.root, &mut answer);
        }
        tracing::debug!(?facts, "mounted");
        let _ = self.facts.set(facts);
        Ok(())
    }

    /// The facts that the attributes of the root and the session's limits give.
    fn facts_of(&self, root: Fh, attrs: &Attrs, limits: &Limits) -> Facts {
        let room = |bytes: u32| bytes.saturating_sub(OVERHEAD_BYTES).max(4096);
        let size = |asked: Option<u32>, server: Option<&u64>, room: u32| {
            let server = server.map_or(IO_MAX_BYTES, |&s| s.clamp(1, u64::from(IO_MAX_BYTES)) as u32);
            asked.unwrap_or(IO_MAX_BYTES).min(server).min(room).max(1)
        };
        Facts {
            root,
            rsize: size(self.opts.rsize_bytes, attrs.maxread(), room(limits.max_response_bytes)),
            wsize: size(self.opts.wsize_bytes, attrs.maxwrite(), room(limits.max_request_bytes)),
            exclusive_attrs: attrs.suppattr_exclcreat().copied().unwrap_or_default(),
            xattrs: attrs.xattr_support().copied().unwrap_or(false),
            acls: attrs.aclsupport().is_some_and(|&a| a != 0),
            umask: attrs.supported_attrs().is_some_and(|all| all.has(attr::MODE_UMASK)),
            delegated_times: self.minor >= 2
                && self.own_server.load(Ordering::Relaxed)
                && offers_delegated_times(attrs),
        }
    }

    /// The error for a name on the path that requires another security flavor. SECINFO returns the
    /// flavors.
    async fn wrong_security(self: &Arc<Self>, names: &[&[u8]], walked: usize, e: OpError) -> MountError {
        // The results are PUTROOTFH and the LOOKUPs, up to the failed one. After the last name the
        // object itself is refused.
        let at = walked.saturating_sub(2);
        if at > names.len() {
            return self.mount_error(e.into());
        }
        let mut ops = vec![Op::Putrootfh];
        ops.extend(names[..at].iter().map(|n| Op::lookup(n)));
        ops.push(match names.get(at).filter(|_| walked >= 2) {
            Some(name) => Op::Secinfo((*name).into()),
            None => Op::SecinfoNoName(SecinfoStyle::CURRENT_FH),
        });
        let by_name = matches!(ops.last(), Some(Op::Secinfo(_)));
        let offered = match self.compound(&self.own_cx(), Compound::new("SECINFO", ops)).await {
            Ok(mut answer) => (|| {
                answer.results.putrootfh().ok()?;
                names[..at].iter().try_for_each(|_| answer.results.lookup()).ok()?;
                let results = &mut answer.results;
                if by_name { results.secinfo().ok() } else { results.secinfo_no_name().ok() }
            })(),
            Err(_) => None,
        };
        self.refuses_flavor(&offered.map(|list| list.iter().cloned().collect::<Vec<_>>()).unwrap_or_default())
    }

    fn refuses_flavor(&self, offered: &[Secinfo]) -> MountError {
        let names = offered.iter().map(flavor_name).collect::<Vec<_>>().join(":");
        MountError::WrongSecurity {
            server: self.opts.server.clone(),
            path: self.opts.path.clone(),
            wanted: self.opts.security.flavor,
            offered: if names.is_empty() { "another flavor".to_owned() } else { names },
            flavors: offered.iter().filter_map(flavor).collect(),
        }
    }

    fn setup_error(&self, addr: SocketAddr, f: SetupFail) -> MountError {
        let what = format!("NFS version 4.{}", self.minor);
        let server = self.opts.server.clone();
        match f {
            SetupFail::Call(e) => {
                MountError::from_call(&server, &self.opts.path, Service::Nfs, addr, &what, e)
            }
            SetupFail::Op(e) => match e.status() {
                Some(Nfsstat4::MINOR_VERS_MISMATCH | Nfsstat4::OP_ILLEGAL | Nfsstat4::NOTSUPP) => {
                    MountError::VersionNotSupported { server, what, offered: None }
                }
                _ => self.mount_error(e.into()),
            },
        }
    }

    fn mount_error(&self, f: Fail) -> MountError {
        let (server, path) = (self.opts.server.clone(), self.opts.path.clone());
        match f {
            Fail::Nfs(Nfsstat4::NOENT) => MountError::NoSuchExport { server, path, exports: None },
            Fail::Nfs(Nfsstat4::NOTDIR | Nfsstat4::SYMLINK) => MountError::NotDirectory { server, path },
            Fail::Nfs(Nfsstat4::ACCESS | Nfsstat4::PERM) => MountError::AccessDenied {
                server,
                path,
                hint: "check that the export allows this host, and whether it needs a privileged port (resvport)"
                    .into(),
            },
            Fail::Nfs(Nfsstat4::WRONGSEC) => self.refuses_flavor(&[]),
            f => MountError::Failed { server, path, cause: Error::from(f).to_string() },
        }
    }

    fn protocol(&self, cause: &str) -> MountError {
        let (server, cause) = (self.opts.server.clone(), cause.to_owned());
        MountError::Protocol { server, service: Service::Nfs, cause }
    }
}

/// Whether the holder of a write delegation may maintain the times of its file (RFC 9754 sections 3
/// and 5). The mount asks for that at `hither serve` only. The Linux server (6.18) stops the times
/// of such a file until its holder sets them, and this client sets only times that somebody saw.
fn offers_delegated_times(attrs: &Attrs) -> bool {
    let has = |n| attrs.supported_attrs().is_some_and(|all| all.has(n));
    let wants = attrs.open_arguments().map(|args| args.share_access_want);
    let offered = wants.is_some_and(|wants| wants.has(open::ARGS_WANT_DELEG_TIMESTAMPS));
    offered && has(attr::TIME_DELEG_ACCESS) && has(attr::TIME_DELEG_MODIFY)
}

fn flavor(s: &Secinfo) -> Option<Flavor> {
    match s {
        Secinfo::Gss(gss) => Some(Flavor::of_service(gss.service)),
        Secinfo::Flavor(number) => Flavor::of(AuthFlavor(*number)),
    }
}

fn flavor_name(s: &Secinfo) -> String {
    match (flavor(s), s) {
        (Some(flavor), _) => flavor.to_string(),
        (None, Secinfo::Flavor(0)) => "none".into(),
        (None, Secinfo::Flavor(n)) => format!("flavor {n}"),
        (None, Secinfo::Gss(_)) => "another mechanism".into(),
    }
}
