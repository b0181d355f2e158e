//! A server in memory, and a client that sends exactly the messages of a test.

mod counts;
pub(crate) mod crossings;
pub(crate) mod fading;
mod hostile;
mod transports;

use crate::access::{Asker, Rights, Squash};
use crate::table::{ExportSpec, Others, Table};
use crate::{Options, Server};
use bytes::Bytes;
use hither_proto::nfs3;
use hither_proto::nfs4::*;
use hither_proto::record;
use hither_proto::rpc::{
    AuthStat, AuthSys, CallHeader, DeniedReply, Message, OpaqueAuth, Procedure, ReplyBody, ReplyHeader, call,
};
use hither_proto::xdr::{Dec, Enc};
use hither_rpc::server::{Acceptor, ServerLimits, Transport};
use hither_vfs::model::Model;
use hither_vfs::{Env, Extra, Vfs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

pub fn env(seed: u64) -> Env {
    let next = AtomicU64::new(seed);
    Env {
        random: Arc::new(move || next.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)),
        wall: Arc::new(|| SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
    }
}

pub fn model() -> Arc<Model> {
    Arc::new(Model::new(env(1), Duration::ZERO, 1 << 30))
}

/// A server of `model` at `path`. Each `seed` is another run of the server.
pub struct Lab {
    pub server: Arc<Server>,
    pub acceptor: Acceptor,
}

impl Lab {
    pub fn new(model: &Arc<Model>, path: &str, seed: u64, state_dir: Option<PathBuf>) -> Self {
        Self::beside(model, path, seed, state_dir, Others::Nobody)
    }

    /// A server whose files local programs may change.
    pub fn beside(
        model: &Arc<Model>,
        path: &str,
        seed: u64,
        state_dir: Option<PathBuf>,
        others: Others,
    ) -> Self {
        Self::with(model, path, Options { state_dir, ..Options::new(env(seed)) }, others)
    }

    /// A server with these options.
    pub fn with(model: &Arc<Model>, path: &str, options: Options, others: Others) -> Self {
        Self::of(model.clone(), path, options, others)
    }

    /// The same for any file system.
    pub fn of<V: Vfs + Extra>(vfs: Arc<V>, path: &str, options: Options, others: Others) -> Self {
        let rights = Rights { read_only: false, squash: Squash::None, secure: false, ..Rights::default() };
        let admit = Arc::new(move |_: &Asker<'_>| Some(rights.clone()));
        let spec = ExportSpec {
            path: path.into(),
            aliases: vec![],
            vfs: vfs.clone(),
            extra: Some(vfs),
            admit,
            epoch: None,
            others,
            covers: None,
        };
        let server = Server::new(options, Table::new(vec![spec]).unwrap()).unwrap();
        let acceptor = Acceptor::new(server.clone(), ServerLimits::default());
        Self { server, acceptor }
    }

    pub fn connect(&self) -> Wire {
        self.connect_over(Transport::Plain)
    }

    /// A connection with this protection.
    pub fn connect_over(&self, transport: Transport) -> Wire {
        let (near, far) = tokio::io::duplex(64 << 10);
        let (reader, writer) = tokio::io::split(far);
        let addr = "192.0.2.1:700".parse().unwrap();
        self.acceptor.serve_protected(reader, writer, addr, addr, transport);
        let cred =
            AuthSys { stamp: 0, machinename: Default::default(), uid: 0, gid: 0, gids: Vec::new().into() };
        let records = record::Reader::new(Default::default());
        let cred = OpaqueAuth::sys(&cred);
        Wire {
            stream: near,
            records,
            xid: 1,
            cred,
            called: Vec::new(),
            deaf: false,
            loses: false,
            slot: None,
            refuses: Vec::new(),
            numbers: Vec::new(),
            tells: Vec::new(),
            tells_times: Attrs::default(),
        }
    }

    pub async fn client(&self, name: &'static str) -> Client {
        Client::new(self.connect(), name, 1).await
    }
}

/// A connection of a client.
pub struct Wire {
    stream: DuplexStream,
    records: record::Reader,
    pub xid: u32,
    cred: OpaqueAuth,
    /// Callbacks of the server, without CB_SEQUENCE.
    pub called: Vec<CbOp>,
    /// The client does not answer callbacks.
    pub deaf: bool,
    /// The client executes callbacks, and their replies are lost.
    pub loses: bool,
    /// The last number and call of a client that checks the numbers of callbacks.
    pub slot: Option<(u32, Option<CbCompound>)>,
    /// Statuses of CB_SEQUENCE for the next callbacks. Such a client checks no numbers.
    pub refuses: Vec<Nfsstat4>,
    /// The sequence numbers of callbacks.
    pub numbers: Vec<u32>,
    /// `change` and size in answers to CB_GETATTR, in order. The last one is repeated.
    pub tells: Vec<(u64, u64)>,
    /// Other attributes in these answers, without those that the server did not ask for.
    pub tells_times: Attrs,
}

impl Wire {
    /// Later calls come from this user.
    pub fn become_user(&mut self, uid: u32) {
        self.become_member(uid, uid, Vec::new());
    }

    /// Later calls come from this user with these groups.
    pub fn become_member(&mut self, uid: u32, gid: u32, gids: Vec<u32>) {
        let machinename = Default::default();
        self.cred = OpaqueAuth::sys(&AuthSys { stamp: 0, machinename, uid, gid, gids: gids.into() });
    }

    pub async fn send(&mut self, prog: u32, vers: u32, proc: u32, args: Enc) {
        let message = call(self.xid, prog, vers, proc, &self.cred, args);
        self.stream.write_all(&record::frame(message).concat()).await.unwrap();
    }

    pub async fn receive(&mut self) -> Bytes {
        self.verdict().await.unwrap()
    }

    /// The results of the next reply, or the reason of its refusal.
    pub async fn verdict(&mut self) -> Result<Bytes, AuthStat> {
        loop {
            if let Some(record) = self.records.next_record().unwrap() {
                match Message::decode(&record).unwrap() {
                    Message::Reply(
                        ReplyHeader { body: ReplyBody::Denied(DeniedReply::AuthError(stat)), .. },
                        _,
                    ) => return Err(stat),
                    Message::Reply(header, body) => {
                        assert!(header.is_success(), "{header:?}");
                        return Ok(body);
                    }
                    Message::Call(header, body) => self.called_back(&header, &body).await,
                    Message::UnknownVersion { .. } => panic!("no RPC"),
                }
                continue;
            }
            assert_ne!(self.stream.read_buf(&mut self.records.space()).await.unwrap(), 0, "disconnected");
        }
    }

    /// The status with which CB_SEQUENCE refuses a call (RFC 8881 section 20.9). The client caches
    /// no reply.
    fn refusal(&mut self, call: &CbCompound) -> Option<Nfsstat4> {
        let Some(CbOp::Sequence(a)) = call.ops.first() else { panic!("no CB_SEQUENCE") };
        self.numbers.push(a.sequenceid);
        if !self.refuses.is_empty() {
            return Some(self.refuses.remove(0));
        }
        let (number, last) = self.slot.as_mut()?;
        if a.sequenceid == *number + 1 {
            (*number, *last) = (a.sequenceid, Some(call.clone()));
            return None;
        }
        Some(match last {
            _ if a.sequenceid != *number => Nfsstat4::SEQ_MISORDERED,
            Some(last) if last == call => Nfsstat4::RETRY_UNCACHED_REP,
            _ => Nfsstat4::SEQ_FALSE_RETRY,
        })
    }

    async fn answer(&mut self, xid: u32, reply: CbCompoundReply) {
        let mut out = Enc::of(&ReplyHeader::success(xid));
        out.append(Enc::of(&reply));
        self.stream.write_all(&record::frame(out).concat()).await.unwrap();
    }

    /// Answers a callback with success, unless its number is wrong.
    async fn called_back(&mut self, header: &CallHeader, body: &Bytes) {
        if self.deaf {
            return;
        }
        let call: CbCompound = Dec::all(body).unwrap();
        if let Some(status) = self.refusal(&call) {
            let results = vec![CbRes::Sequence(Err(status))].into();
            return self.answer(header.xid, CbCompoundReply { status, tag: call.tag, results }).await;
        }
        let mut result = |op: &CbOp| match op {
            CbOp::Sequence(a) => CbRes::Sequence(Ok(CbSequenceOk {
                sessionid: a.sessionid,
                sequenceid: a.sequenceid,
                slotid: a.slotid,
                highest_slotid: 0,
                target_highest_slotid: 0,
            })),
            CbOp::Recall(_) => CbRes::Recall(Ok(())),
            CbOp::Getattr(a) if !self.tells.is_empty() => {
                let (change, size) = match self.tells.len() {
                    1 => self.tells[0],
                    _ => self.tells.remove(0),
                };
                let mut attrs = Attrs { change: Some(change), size: Some(size), ..self.tells_times.clone() };
                attrs.retain(a.attr_request);
                CbRes::Getattr(Ok(attrs))
            }
            other => CbRes::failed(other.number(), Nfsstat4::NOTSUPP),
        };
        let results: Vec<CbRes> = call.ops.iter().map(&mut result).collect();
        self.called.extend(call.ops.into_iter().skip(1));
        if !self.loses {
            let status = Nfsstat4::OK;
            self.answer(header.xid, CbCompoundReply { status, tag: call.tag, results: results.into() }).await;
        }
    }

    /// Answers callbacks until another message arrives.
    pub async fn listen(&mut self) {
        loop {
            while let Some(record) = self.records.next_record().unwrap() {
                let Ok(Message::Call(header, body)) = Message::decode(&record) else { panic!("no call") };
                self.called_back(&header, &body).await;
            }
            assert_ne!(self.stream.read_buf(&mut self.records.space()).await.unwrap(), 0, "disconnected");
        }
    }

    /// Waits for a reply of any kind. False when the connection ends.
    pub async fn answered(&mut self) -> bool {
        loop {
            if self.records.next_record().unwrap().is_some() {
                return true;
            }
            if self.stream.read_buf(&mut self.records.space()).await.unwrap_or(0) == 0 {
                return false;
            }
        }
    }

    pub async fn call<P: Procedure>(&mut self, args: &P) -> P::Reply {
        self.xid += 1;
        self.send(P::PROG, P::VERS, P::PROC, Enc::of(args)).await;
        Dec::all(&self.receive().await).unwrap()
    }

    pub async fn root3(&mut self, path: &str) -> nfs3::Fh3 {
        use hither_proto::mount::MntArgs;
        let args = MntArgs { dirpath: path.as_bytes().into() };
        self.call(&args).await.into_result().unwrap().fhandle
    }
}

/// A client of NFSv4.2 with a session.
pub struct Client {
    pub wire: Wire,
    pub id: u64,
    pub session: Sessionid,
    pub seq: u32,
}

impl Client {
    pub async fn new(wire: Wire, name: &'static str, verifier: u8) -> Self {
        Self::with(wire, name, verifier, 0).await
    }

    /// A client whose session has these flags.
    pub async fn with(mut wire: Wire, name: &'static str, verifier: u8, flags: u32) -> Self {
        let args = ExchangeIdArgs {
            clientowner: ClientOwner { verifier: [verifier; 8], ownerid: name.as_bytes().into() },
            flags: 0,
            state_protect: StateProtectArgs::None,
            impl_id: None,
        };
        let reply = wire.call(&Compound::new(2, vec![Op::ExchangeId(args)])).await;
        let who = reply.results().exchange_id().unwrap();
        let channel = ChannelAttrs {
            maxrequestsize: 1 << 20,
            maxresponsesize: 1 << 20,
            maxresponsesize_cached: 4096,
            maxoperations: 200,
            maxrequests: 8,
            ..ChannelAttrs::default()
        };
        let args = CreateSessionArgs {
            clientid: who.clientid,
            sequence: who.sequenceid,
            flags,
            fore_chan_attrs: channel,
            back_chan_attrs: channel,
            cb_program: 1,
            sec_parms: Vec::new().into(),
        };
        let reply = wire.call(&Compound::new(2, vec![Op::CreateSession(args)])).await;
        let session = reply.results().create_session().unwrap();
        assert!(session.fore_chan_attrs.maxoperations >= 128);
        Self { wire, id: who.clientid, session: session.sessionid, seq: 0 }
    }

    pub fn sequence(&self, cachethis: bool) -> Op {
        Op::Sequence(SequenceArgs {
            sessionid: self.session,
            sequenceid: self.seq,
            slotid: 0,
            highest_slotid: 0,
            cachethis,
        })
    }

    /// Sends operations after a SEQUENCE, and checks and removes the result of SEQUENCE.
    pub async fn run(&mut self, ops: Vec<Op>) -> Results<OpRes> {
        self.seq += 1;
        let mut all = vec![self.sequence(true)];
        all.extend(ops);
        let mut results = self.wire.call(&Compound::new(2, all)).await.results();
        results.sequence().unwrap();
        results
    }

    pub async fn reclaim_complete(&mut self) {
        self.run(vec![Op::ReclaimComplete(false)]).await.reclaim_complete().unwrap();
    }

    pub async fn open(
        &mut self,
        name: &str,
        owner: &str,
        access: u32,
        deny: u32,
    ) -> Result<(Stateid, Fh), Nfsstat4> {
        let open = open_args(owner, access, deny, OpenClaim::Null(name.as_bytes().into()), true);
        let mut r = self.run(vec![Op::Putrootfh, Op::Open(open), Op::Getfh]).await;
        r.putrootfh().unwrap();
        let opened = r.open().map_err(|e| e.status().unwrap())?;
        Ok((opened.stateid, r.getfh().unwrap()))
    }

    pub async fn lock(
        &mut self,
        fh: &Fh,
        open: Stateid,
        owner: &str,
        range: (u64, u64),
    ) -> Result<Stateid, LockFail> {
        let locker = Locker::New(OpenToLockOwner {
            open_seqid: 0,
            open_stateid: open,
            lock_seqid: 0,
            lock_owner: StateOwner { clientid: 0, owner: owner.as_bytes().into() },
        });
        let (offset, length) = range;
        let args = LockArgs { locktype: LockType::WRITE, reclaim: false, offset, length, locker };
        let mut r = self.run(vec![Op::putfh(fh), Op::Lock(args)]).await;
        r.putfh().unwrap();
        r.outcome::<op::Lock>().unwrap()
    }
}

pub fn open_args(owner: &str, access: u32, deny: u32, claim: OpenClaim, create: bool) -> OpenArgs {
    OpenArgs {
        seqid: 0,
        share_access: access,
        share_deny: deny,
        owner: StateOwner { clientid: 0, owner: owner.as_bytes().into() },
        how: create.then(|| CreateHow::Unchecked(Attrs { mode: Some(0o644), ..Attrs::default() })),
        claim,
    }
}
