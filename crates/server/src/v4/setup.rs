//! Operations that create and end clients and sessions: EXCHANGE_ID, CREATE_SESSION,
//! BIND_CONN_TO_SESSION and their opposites.

use super::Nfs4;
use super::clients::{Client, Introduction, Principal, owner_via};
use super::exec::Exec;
use super::session::{Back, Session};
use hither_proto::nfs4::{
    BackchannelCtlArgs, BindConnToSessionArgs, BindConnToSessionOk, CallbackSec, ChannelAttrs,
    ChannelDirFromClient, ChannelDirFromServer, CreateSessionArgs, CreateSessionOk, ExchangeIdArgs,
    ExchangeIdOk, HITHER_DOMAIN, ImplId, Nfsstat4, Op, ServerOwner, Sessionid, StateProtectArgs,
    StateProtectOk, Time, create_session, exchgid,
};
use hither_proto::rpc::OpaqueAuth;
use hither_rpc::server::{Caller, Transport};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of a call or reply besides the data of the largest READ or WRITE.
pub(super) const OVERHEAD_BYTES: u32 = 64 << 10;
/// Bytes of the header of a reply: transaction id, direction, acceptance, an empty verifier,
/// success.
pub(super) const REPLY_HEADER_BYTES: usize = 24;
/// Bytes of the header of a call whose credential is empty.
const CALL_HEADER_BYTES: usize = 40;
/// Smallest call: the compound's own 12 bytes, SEQUENCE (36 bytes) and one operation.
const REQUEST_MIN_BYTES: u32 = CALL_HEADER_BYTES as u32 + 12 + 36 + 4;
/// Smallest reply. SEQUENCE takes 44 bytes in it.
const RESPONSE_MIN_BYTES: u32 = REPLY_HEADER_BYTES as u32 + 12 + 44 + 8;
/// A call with CB_SEQUENCE and a CB_RECALL of the longest filehandle.
const CALLBACK_MIN_BYTES: u32 = CALL_HEADER_BYTES as u32 + 16 + 44 + 156;
/// The reply to such a call.
const CALLBACK_RESPONSE_MIN_BYTES: u32 = REPLY_HEADER_BYTES as u32 + 12 + 44 + 8;
/// Most operations of a compound.
const OPS_MAX: u32 = 512;
/// Most slots of a session.
const SLOTS_MAX: u32 = 64;
/// Most bytes of a cached reply. With all slots full, a session takes four megabytes.
const CACHED_MAX_BYTES: u32 = 64 << 10;

const FLAGS: u32 = exchgid::SUPP_MOVED_REFER
    | exchgid::SUPP_MOVED_MIGR
    | exchgid::SUPP_FENCE_OPS
    | exchgid::BIND_PRINC_STATEID
    | exchgid::MASK_PNFS
    | exchgid::UPD_CONFIRMED_REC_A;

impl Exec<'_> {
    fn principal(&self) -> Principal {
        match &self.r.caller {
            Caller::Nobody => Principal::Nobody,
            Caller::Sys(sys) => Principal::Uid(sys.uid),
            Caller::Gss(gss) => Principal::Kerberos(gss.principal.clone()),
        }
    }

    /// Fails when an authenticated client began with another principal. Its session id is visible
    /// where calls are not encrypted, and gives no right to the session.
    fn need_principal_of(&self, client: &Client) -> Result<(), Nfsstat4> {
        let is_free = !matches!(client.principal, Principal::Kerberos(_));
        if is_free || client.principal == self.principal() { Ok(()) } else { Err(Nfsstat4::WRONG_CRED) }
    }

    /// The same for the client of a session.
    fn need_principal_of_session(&self, session: &Session) -> Result<(), Nfsstat4> {
        session.client.upgrade().map_or(Ok(()), |client| self.need_principal_of(&client))
    }

    pub(super) async fn exchange_id(&mut self, a: &ExchangeIdArgs) -> Result<ExchangeIdOk, Nfsstat4> {
        if a.flags & !FLAGS != 0 {
            return Err(Nfsstat4::INVAL);
        }
        match a.state_protect {
            StateProtectArgs::None => {}
            // Both need RPCSEC_GSS.
            StateProtectArgs::MachCred(_) => return Err(Nfsstat4::INVAL),
            StateProtectArgs::Ssv(_) => return Err(Nfsstat4::ENCR_ALG_UNSUPP),
        }
        let transport = self.r.peer.transport.clone();
        let principal = self.principal();
        let owner = owner_via(&a.clientowner.ownerid, &transport, &principal);
        let who = Introduction {
            may_reclaim: self.nfs.reclaimers.lock().contains(&owner),
            owner,
            transport,
            host: self.r.peer.addr.ip(),
            verifier: a.clientowner.verifier,
            principal,
            update: a.flags & exchgid::UPD_CONFIRMED_REC_A != 0,
        };
        self.nfs.clients.make_room(&who, self.nfs.clients_max, self.nfs.lease)?;
        if let Some(former) = self.nfs.clients.collision(&who, self.nfs.lease)? {
            self.nfs.expire(&former).await;
        }
        let client = self.nfs.clients.introduce(who)?;
        let confirmed = client.confirmed.load(Relaxed);
        // A concurrent CREATE_SESSION advances the number. A client does not send both at a time.
        let sequence = client.creation.try_lock().map_or(0, |c| c.sequence);
        Ok(ExchangeIdOk {
            clientid: client.id,
            sequenceid: sequence.wrapping_add(1),
            flags: exchgid::USE_NON_PNFS | if confirmed { exchgid::CONFIRMED_R } else { 0 },
            state_protect: StateProtectOk::None,
            server_owner: ServerOwner { minor_id: 0, major_id: self.nfs.name.clone().into() },
            server_scope: self.nfs.name.clone().into(),
            // Clients of hither send this domain several READs and READDIRs in one compound.
            impl_id: Some(ImplId {
                domain: HITHER_DOMAIN.into(),
                name: concat!("hither ", env!("CARGO_PKG_VERSION")).as_bytes().into(),
                date: Time::default(),
            }),
        })
    }

    pub(super) async fn create_session(
        &mut self,
        a: &CreateSessionArgs,
    ) -> Result<CreateSessionOk, Nfsstat4> {
        let client = self.nfs.clients.by_id(a.clientid).ok_or(Nfsstat4::STALE_CLIENTID)?;
        let mut creation = client.creation.lock().await;
        if client.confirmed.load(Relaxed) {
            self.need_principal_of(&client)?;
        }
        if a.sequence == creation.sequence
            && let Some(answer) = creation.answer
        {
            self.call_back_here(&answer);
            return answer;
        }
        if a.sequence != creation.sequence.wrapping_add(1) {
            return Err(Nfsstat4::SEQ_MISORDERED);
        }
        if !client.confirmed.load(Relaxed) && client.principal != self.principal() {
            return Err(Nfsstat4::CLID_INUSE);
        }
        let answer = self.make_session(a, &client).await;
        creation.sequence = a.sequence;
        creation.answer = Some(answer);
        answer
    }

    /// Uses the connection of a repeated CREATE_SESSION for callbacks. The client repeats it
    /// because it lost the first connection.
    fn call_back_here(&self, answer: &Result<CreateSessionOk, Nfsstat4>) {
        let wanted = |ok: &&CreateSessionOk| ok.flags & create_session::CONN_BACK_CHAN != 0;
        let Some(ok) = answer.as_ref().ok().filter(wanted) else { return };
        let Some(session) = self.nfs.clients.session(&ok.sessionid) else { return };
        let mut back = session.back.lock();
        if back.peer.as_ref().is_none_or(|peer| peer.is_closed()) {
            back.peer = Some(self.r.peer.clone());
        }
    }

    async fn make_session(
        &self,
        a: &CreateSessionArgs,
        client: &Arc<Client>,
    ) -> Result<CreateSessionOk, Nfsstat4> {
        let known = create_session::PERSIST | create_session::CONN_BACK_CHAN | create_session::CONN_RDMA;
        if a.flags & !known != 0 {
            return Err(Nfsstat4::INVAL);
        }
        let fore = self.fore(&a.fore_chan_attrs)?;
        let back_attrs = ChannelAttrs { headerpadsize: 0, rdma_ird: None, ..a.back_chan_attrs };
        let wanted = a.flags & create_session::CONN_BACK_CHAN != 0;
        if wanted && !carries_recalls(&back_attrs) {
            return Err(Nfsstat4::TOOSMALL);
        }
        let back = Back {
            prog: a.cb_program,
            cred: callback_cred(&a.sec_parms)?,
            wanted,
            peer: wanted.then(|| self.r.peer.clone()),
            proven: None,
        };
        if let Some(former) = self.nfs.clients.confirm(client) {
            self.nfs.end_former(&former).await;
        }
        client.heard(self.nfs.clients.now());
        let random = (self.r.server.options.env.random)() as u32;
        let session: Arc<Session> = self.nfs.clients.add_session(client, fore, back, random)?;
        Ok(CreateSessionOk {
            sessionid: session.id,
            sequence: a.sequence,
            flags: if wanted { create_session::CONN_BACK_CHAN } else { 0 },
            fore_chan_attrs: fore,
            back_chan_attrs: back_attrs,
        })
    }

    /// The granted limits of a channel.
    fn fore(&self, wish: &ChannelAttrs) -> Result<ChannelAttrs, Nfsstat4> {
        let most = self.r.server.options.io_max_bytes + OVERHEAD_BYTES;
        let fore = ChannelAttrs {
            headerpadsize: 0,
            maxrequestsize: wish.maxrequestsize.min(most),
            maxresponsesize: wish.maxresponsesize.min(most),
            maxresponsesize_cached: wish
                .maxresponsesize_cached
                .min(wish.maxresponsesize)
                .min(CACHED_MAX_BYTES),
            maxoperations: wish.maxoperations.min(OPS_MAX),
            maxrequests: wish.maxrequests.clamp(1, SLOTS_MAX),
            rdma_ird: None,
        };
        let too_small = fore.maxrequestsize < REQUEST_MIN_BYTES
            || fore.maxresponsesize < RESPONSE_MIN_BYTES
            || fore.maxoperations == 0;
        if too_small { Err(Nfsstat4::TOOSMALL) } else { Ok(fore) }
    }

    /// DESTROY_SESSION. The end of the compound's own session is the last operation (RFC 8881
    /// section 18.37.3): behind it the slot and its cached reply no longer exist.
    pub(super) fn destroy_session(&mut self, id: &Sessionid, rest: &[Op]) -> Result<(), Nfsstat4> {
        if !rest.is_empty() && self.session.as_ref().is_some_and(|own| own.id == *id) {
            return Err(Nfsstat4::NOT_ONLY_OP);
        }
        let session = self.nfs.clients.session(id).ok_or(Nfsstat4::BADSESSION)?;
        self.need_principal_of_session(&session)?;
        self.nfs.clients.remove_session(id).map(drop).ok_or(Nfsstat4::BADSESSION)
    }

    pub(super) fn bind_conn_to_session(
        &mut self,
        a: &BindConnToSessionArgs,
    ) -> Result<BindConnToSessionOk, Nfsstat4> {
        // The operation is alone in its compound, without a SEQUENCE (RFC 8881 section 18.34.3).
        if self.session.is_some() {
            return Err(Nfsstat4::NOT_ONLY_OP);
        }
        let session = self.nfs.clients.session(&a.sessionid).ok_or(Nfsstat4::BADSESSION)?;
        self.need_principal_of_session(&session)?;
        let dir = match a.dir {
            ChannelDirFromClient::FORE => ChannelDirFromServer::FORE,
            ChannelDirFromClient::BACK => ChannelDirFromServer::BACK,
            ChannelDirFromClient::FORE_OR_BOTH | ChannelDirFromClient::BACK_OR_BOTH => {
                ChannelDirFromServer::BOTH
            }
            _ => return Err(Nfsstat4::INVAL),
        };
        if dir != ChannelDirFromServer::FORE {
            let mut back = session.back.lock();
            back.wanted = true;
            back.peer = Some(self.r.peer.clone());
        }
        Ok(BindConnToSessionOk { sessionid: a.sessionid, dir, use_conn_in_rdma_mode: false })
    }

    pub(super) async fn destroy_clientid(&mut self, id: u64) -> Result<(), Nfsstat4> {
        let client = self.nfs.clients.by_id(id).ok_or(Nfsstat4::STALE_CLIENTID)?;
        self.need_principal_of(&client)?;
        if !client.sessions().is_empty() || client.holds_anything() {
            return Err(Nfsstat4::CLIENTID_BUSY);
        }
        self.nfs.expire(&client).await;
        Ok(())
    }

    pub(super) async fn reclaim_complete(&mut self, one_fs: bool) -> Result<(), Nfsstat4> {
        let client = self.client()?;
        if one_fs {
            // A reclaim of one file system is only needed after a migration.
            return self.here().map(drop);
        }
        if client.reclaim_done.load(Relaxed) {
            return Err(Nfsstat4::COMPLETE_ALREADY);
        }
        let _order = self.nfs.records.lock().await;
        if client.gone.load(Relaxed) {
            return Err(Nfsstat4::BADSESSION);
        }
        // The record is on stable storage before the client may get new state.
        if let Err(e) = self.nfs.stable.remember(client.owner.clone()).await {
            tracing::error!("the record of a client cannot be written, so the client gets no state: {e}");
            return Err(Nfsstat4::DELAY);
        }
        client.reclaim_done.store(true, Relaxed);
        self.nfs.reclaimers.lock().remove(&client.owner);
        self.nfs.outstanding.lock().remove(&client.owner);
        if let Some(session) = self.session.as_ref().filter(|s| s.back_is_up()) {
            session.prove_back(self.minor);
        }
        Ok(())
    }

    pub(super) fn backchannel_ctl(&mut self, a: &BackchannelCtlArgs) -> Result<(), Nfsstat4> {
        let session = self.session.as_ref().ok_or(Nfsstat4::OP_NOT_IN_SESSION)?;
        self.need_principal_of_session(session)?;
        let cred = callback_cred(&a.sec_parms)?;
        let mut back = session.back.lock();
        (back.prog, back.cred) = (a.cb_program, cred);
        Ok(())
    }
}

/// Whether operations use a session or a client id that began on a connection with another
/// transport. Session ids are visible on plain connections, and an attacker there must not take
/// over what began in TLS. A client is bound to its transport, and so are its sessions.
pub(super) fn is_of_other_transport(nfs: &Nfs4, ops: &[Op], transport: &Transport) -> bool {
    let of_session = |id: &Sessionid| nfs.clients.session(id).and_then(|session| session.client.upgrade());
    let is_foreign = |op: &Op| {
        let client = match op {
            Op::Sequence(a) => of_session(&a.sessionid),
            Op::BindConnToSession(a) => of_session(&a.sessionid),
            Op::DestroySession(id) => of_session(id),
            Op::CreateSession(a) => nfs.clients.by_id(a.clientid),
            Op::DestroyClientid(id) => nfs.clients.by_id(*id),
            _ => None,
        };
        client.is_some_and(|client| !client.transport.is_same_party(transport))
    };
    ops.iter().any(is_foreign)
}

/// Whether the limits of a backchannel allow a recall, which is the longest callback.
fn carries_recalls(back: &ChannelAttrs) -> bool {
    back.maxrequestsize >= CALLBACK_MIN_BYTES
        && back.maxresponsesize >= CALLBACK_RESPONSE_MIN_BYTES
        && back.maxoperations >= 2
        && back.maxrequests > 0
}

/// Bytes of the header of a call, which count against a session's `maxrequestsize`.
pub(super) fn header_bytes(caller: &Caller) -> usize {
    CALL_HEADER_BYTES
        + match caller {
            Caller::Nobody => 0,
            // The handle of a context has eight bytes. Checksums do not count.
            Caller::Gss(_) => 28,
            Caller::Sys(sys) => 20 + sys.machinename.len().next_multiple_of(4) + 4 * sys.gids.len(),
        }
}

/// The server's credential in callbacks: the first offered flavor that the server supports.
fn callback_cred(wishes: &[CallbackSec]) -> Result<OpaqueAuth, Nfsstat4> {
    if wishes.is_empty() {
        return Ok(OpaqueAuth::none());
    }
    let known = wishes.iter().find_map(|w| match w {
        CallbackSec::None => Some(OpaqueAuth::none()),
        CallbackSec::Sys(sys) => Some(OpaqueAuth::sys(sys)),
        CallbackSec::Gss(_) => None,
    });
    known.ok_or(Nfsstat4::INVAL)
}
