//! A small NFSv4.2 server in memory: one directory, strict slots, and faults on request.
//!
//! The server executes each request at most once. It records violations: a sequence number out of
//! order, or a new request in a slot with an unanswered request.

mod back;
mod locks;
mod names;

use super::chains::directories::granted;
use super::times::open_arguments;
use bytes::Bytes;
use hither_proto::nfs4::*;
use hither_proto::rpc::{self, CallHeader, Message, OpaqueAuth};
use hither_proto::xdr::{Dec, Enc};
use hither_rpc::sim::{Net, PeerSender};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Filehandles: the directory is `d`, a file is `f` and its name.
const ROOT: &[u8] = b"d";

#[derive(Clone, Default)]
pub struct Server(Arc<Mutex<State>>);

#[derive(Default)]
pub struct State {
    pub boot: u64,
    next: u64,
    clients: HashMap<Clientid, Client>,
    sessions: HashMap<Sessionid, Session>,
    pub files: BTreeMap<String, File>,
    pub opens: HashMap<[u8; 12], Open>,
    pub locks: HashMap<[u8; 12], Lock>,
    /// Owners of the clients that may reclaim. Other clients get NO_GRACE.
    pub grace: bool,
    /// Every executed operation, except SEQUENCE and PUTFH.
    pub log: Vec<String>,
    pub violations: Vec<String>,
    /// The next execution of each operation ends with this status.
    pub fail: Vec<(NfsOpnum4, Nfsstat4)>,
    /// The next compound with this operation is executed, and its reply is not sent.
    pub lose_reply: Option<NfsOpnum4>,
    /// Replies to compounds with this operation are held back.
    pub hold: Option<NfsOpnum4>,
    /// Rights that ACCESS refuses to all callers.
    pub no_right: u32,
    /// Each OPEN reports a changed directory.
    pub changes_always: bool,
    pub slots: u32,
    pub target: Option<u32>,
    pub status_flags: u32,
    pub delegate: bool,
    /// Opens for writing grant write delegations.
    pub delegate_writers: bool,
    pub claims_stay: bool,
    /// The client may maintain times. For each modification time: whether it was set under the
    /// delegation.
    pub delegates_times: bool,
    pub times_under_delegation: Vec<bool>,
    /// SETATTR of such times is refused.
    pub refuses_times: bool,
    /// The granted delegations have ended.
    pub delegations_end: bool,
    /// Whether directory delegations are granted; `None`: the operation is not supported.
    pub directories: Option<bool>,
    pub senders: Vec<PeerSender>,
    pub callbacks_answered: Vec<Nfsstat4>,
    /// `change` and length in the replies to CB_GETATTR.
    pub told: Vec<(Option<u64>, Option<u64>)>,
    /// The times of access and modification in these answers.
    pub told_times: Vec<[Option<hither_proto::nfs4::Time>; 2]>,
    /// Operations of each executed compound, without SEQUENCE.
    pub compounds: Vec<Vec<NfsOpnum4>>,
    /// Announced maximum of operations. `really_takes` is the unannounced maximum (RESOURCE).
    pub max_ops: u32,
    /// End of the server scope, and the domain of the implementation.
    pub scope: &'static str,
    pub domain: Option<&'static str>,
    pub really_takes: usize,
    /// The server writes wrong bytes for a second WRITE in a compound.
    pub one_write: bool,
    /// Announced longest reply that is kept, if any.
    pub max_cached: Option<u32>,
    /// Verifiers of exclusive creations are stored in the file's times.
    pub verifier_in_times: bool,
    /// The server does not return the filehandle as an attribute.
    pub no_fh_attr: bool,
    /// The next request with this operation is executed. Its session is lost with the reply.
    pub lose_session: Option<NfsOpnum4>,
    /// Names that lead to the filehandle of another name.
    pub leads_to: BTreeMap<String, String>,
    /// The next request with this operation is executed. Its reply is neither sent nor kept.
    pub lose_uncached: Option<NfsOpnum4>,
    cb_seq: u32,
}

#[derive(Clone)]
struct Client {
    owner: Bytes,
    verifier: Verifier,
    confirmed: bool,
    sequence: u32,
    complete: bool,
}

struct Session {
    client: Clientid,
    slots: Vec<Slot>,
}

#[derive(Clone, Default)]
struct Slot {
    seqid: u32,
    busy: bool,
    reply: Option<Bytes>,
}

#[derive(Clone, Default)]
pub struct File {
    pub data: Vec<u8>,
    pub stable: Vec<u8>,
    pub change: u64,
    pub dir: bool,
    pub atime: Time,
    pub ctime: Time,
}

/// The access time that a client sets.
fn given(attrs: &Attrs) -> Option<Time> {
    let Some(SetTime::Client(time)) = attrs.time_access_set else { return None };
    Some(time)
}

#[derive(Clone, Debug)]
pub struct Open {
    client: Clientid,
    owner: Bytes,
    pub file: String,
    seqid: u32,
    pub access: u32,
}

#[derive(Clone, Debug)]
pub struct Lock {
    client: Clientid,
    owner: Bytes,
    pub file: String,
    pub ranges: Vec<(u64, u64)>,
}

impl Server {
    pub fn new(net: &Net) -> Self {
        let server = Self::default();
        {
            let mut s = server.0.lock();
            s.domain = Some("hither-fs.github.io");
            (s.boot, s.slots, s.max_ops, s.really_takes) = (1, 8, 96, 1000);
        }
        let serve = server.clone();
        net.serve(move |mut peer| {
            let server = serve.clone();
            async move {
                let sender = peer.sender();
                server.0.lock().senders.push(sender.clone());
                while let Some(record) = peer.recv().await {
                    match Message::decode(&record) {
                        Ok(Message::Call(header, args)) => {
                            let (server, sender) = (server.clone(), sender.clone());
                            tokio::spawn(async move { server.serve(header, args, sender).await });
                        }
                        Ok(Message::Reply(_, body)) => {
                            if let Ok(reply) = Dec::all::<CbCompoundReply>(&body) {
                                server.was_answered(&reply);
                            }
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
        });
        server
    }

    pub fn lock(&self) -> parking_lot::MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Loses all state in memory and begins the grace period.
    pub fn restart(&self) {
        let mut s = self.0.lock();
        s.boot += 1;
        s.cb_seq = 0;
        s.clients.clear();
        s.forget_state();
        s.grace = true;
        for f in s.files.values_mut() {
            f.data = f.stable.clone();
        }
        s.log.push("RESTART".into());
    }

    /// Ends the lease of all clients.
    pub fn expire(&self) {
        let mut s = self.0.lock();
        s.clients.clear();
        s.forget_state();
        s.log.push("EXPIRE".into());
    }

    /// Loses the sessions and keeps the clients.
    pub fn forget_sessions(&self) {
        self.0.lock().sessions.clear();
    }

    pub fn count(&self, what: &str) -> usize {
        self.0.lock().log.iter().filter(|l| l.split(' ').next() == Some(what)).count()
    }

    async fn serve(&self, header: CallHeader, args: Bytes, sender: PeerSender) {
        let call = Dec::all::<Compound>(&args).expect("a compound");
        let ops: Vec<_> = call.ops.iter().map(Op::number).collect();
        let (reply, slot) = self.0.lock().compound(&call);
        loop {
            let held = self.0.lock().hold.is_some_and(|op| ops.contains(&op));
            if !held {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut s = self.0.lock();
        if let Some((session, slot)) = slot
            && let Some(session) = s.sessions.get_mut(&session)
        {
            session.slots[slot as usize].busy = false;
        }
        if s.lose_session.is_some_and(|op| ops.contains(&op)) {
            s.lose_session = None;
            s.sessions.clear();
            return;
        }
        if s.lose_uncached.is_some_and(|op| ops.contains(&op)) {
            s.lose_uncached = None;
            if let Some((session, slot)) = slot
                && let Some(session) = s.sessions.get_mut(&session)
            {
                session.slots[slot as usize].reply = None;
            }
            return;
        }
        if s.lose_reply.is_some_and(|op| ops.contains(&op)) {
            s.lose_reply = None;
            return;
        }
        let mut e = Enc::new();
        e.raw(&reply);
        sender.send(rpc::reply(header.xid, e));
    }
}

/// The delegation that opens of a file grant.
pub fn delegation(file: &str) -> Stateid {
    let mut other = [0xde; 12];
    for (to, from) in other.iter_mut().skip(1).zip(file.bytes()) {
        *to = from;
    }
    Stateid { seqid: 1, other }
}

pub fn handle(file: &str) -> Fh {
    Fh::copy(format!("f{file}").as_bytes())
}

/// The current and saved filehandle, and the current stateid, of a compound.
#[derive(Default)]
struct Cur {
    fh: Option<Fh>,
    saved: Option<Fh>,
    client: Clientid,
    stateid: Option<Stateid>,
    writes: usize,
}

impl Cur {
    /// Replaces the special value for the current stateid.
    fn resolve(&self, stateid: Stateid) -> Result<Stateid, Nfsstat4> {
        if stateid == Stateid::CURRENT { self.stateid.ok_or(Nfsstat4::BAD_STATEID) } else { Ok(stateid) }
    }
}

impl State {
    fn forget_state(&mut self) {
        self.sessions.clear();
        self.opens.clear();
        self.locks.clear();
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.boot << 32 | self.next
    }

    fn other(&mut self) -> [u8; 12] {
        let mut other = [1; 12];
        other[4..].copy_from_slice(&self.id().to_be_bytes());
        other
    }

    /// The encoded reply, and the slot to free when it is sent.
    fn compound(&mut self, call: &Compound) -> (Bytes, Option<(Sessionid, u32)>) {
        let mut cur = Cur::default();
        let encode = |status, results: Vec<OpRes>| {
            Enc::of(&CompoundReply { status, tag: Tag::default(), results: results.into() }).to_bytes()
        };
        let mut results = Vec::new();
        let mut slot = None;
        if let Some(Op::Sequence(_)) = call.ops.first() {
            self.compounds.push(call.ops.iter().skip(1).map(Op::number).collect());
        }
        for (i, op) in call.ops.iter().enumerate() {
            let res = match op {
                op if i > 0 && i >= self.really_takes => OpRes::failed(op.number(), Nfsstat4::RESOURCE),
                Op::Sequence(seq) if i == 0 => match self.sequence(seq) {
                    Ok(Ok((client, ok))) => {
                        (cur.client, slot) = (client, Some((seq.sessionid, seq.slotid)));
                        OpRes::Sequence(Ok(ok))
                    }
                    Ok(Err(cached)) => return (cached, None),
                    Err(status) => OpRes::Sequence(Err(status)),
                },
                op => self.op(op, &mut cur),
            };
            let status = res.status();
            results.push(res);
            if status != Nfsstat4::OK {
                break;
            }
        }
        let status = results.last().map_or(Nfsstat4::OK, OpRes::status);
        let reply = encode(status, results);
        if let Some((session, slot)) = slot
            && let Some(session) = self.sessions.get_mut(&session)
        {
            session.slots[slot as usize].reply = Some(reply.clone());
        }
        (reply, slot)
    }

    #[allow(clippy::type_complexity)]
    fn sequence(&mut self, seq: &SequenceArgs) -> Result<Result<(Clientid, SequenceOk), Bytes>, Nfsstat4> {
        let (target, status_flags) = (self.target, self.status_flags);
        let session = self.sessions.get_mut(&seq.sessionid).ok_or(Nfsstat4::BADSESSION)?;
        let highest = session.slots.len() as u32 - 1;
        let Some(slot) = session.slots.get_mut(seq.slotid as usize) else { return Err(Nfsstat4::BADSLOT) };
        if seq.sequenceid == slot.seqid {
            return match &slot.reply {
                Some(reply) if !slot.busy => Ok(Err(reply.clone())),
                None if !slot.busy => Err(Nfsstat4::RETRY_UNCACHED_REP),
                _ => Err(Nfsstat4::DELAY),
            };
        }
        if seq.sequenceid != slot.seqid.wrapping_add(1) {
            self.violations.push(format!("slot {}: {} after {}", seq.slotid, seq.sequenceid, slot.seqid));
            return Err(Nfsstat4::SEQ_MISORDERED);
        }
        if slot.busy {
            self.violations.push(format!("slot {} used while busy", seq.slotid));
        }
        *slot = Slot { seqid: seq.sequenceid, busy: true, reply: None };
        let ok = SequenceOk {
            sessionid: seq.sessionid,
            sequenceid: seq.sequenceid,
            slotid: seq.slotid,
            highest_slotid: highest,
            target_highest_slotid: target.unwrap_or(highest),
            status_flags,
        };
        Ok(Ok((session.client, ok)))
    }

    fn op(&mut self, op: &Op, cur: &mut Cur) -> OpRes {
        let number = op.number();
        if let Some(at) = self.fail.iter().position(|(n, _)| *n == number) {
            let (_, status) = self.fail.remove(at);
            self.log.push(format!("{number:?} failed"));
            return OpRes::failed(number, status);
        }
        if !matches!(op, Op::Putfh(_) | Op::Getfh | Op::Getattr(_)) {
            self.log.push(format!("{number:?}"));
        }
        match op {
            Op::ExchangeId(a) => OpRes::ExchangeId(Ok(self.exchange_id(a))),
            Op::CreateSession(a) => OpRes::CreateSession(self.create_session(a)),
            Op::DestroySession(id) => {
                OpRes::DestroySession(self.sessions.remove(id).map(drop).ok_or(Nfsstat4::BADSESSION))
            }
            Op::DestroyClientid(id) => {
                OpRes::DestroyClientid(self.clients.remove(id).map(drop).ok_or(Nfsstat4::STALE_CLIENTID))
            }
            Op::BindConnToSession(a) => OpRes::BindConnToSession(match self.sessions.get(&a.sessionid) {
                Some(_) => Ok(BindConnToSessionOk {
                    sessionid: a.sessionid,
                    dir: ChannelDirFromServer::BOTH,
                    use_conn_in_rdma_mode: false,
                }),
                None => Err(Nfsstat4::BADSESSION),
            }),
            Op::ReclaimComplete(_) => OpRes::ReclaimComplete(self.reclaim_complete(cur)),
            Op::Putrootfh => {
                cur.fh = Some(Fh::copy(ROOT));
                OpRes::Putrootfh(Ok(()))
            }
            Op::Putfh(fh) => {
                cur.fh = Some(fh.clone());
                OpRes::Putfh(Ok(()))
            }
            Op::Getfh => OpRes::Getfh(cur.fh.clone().ok_or(Nfsstat4::NOFILEHANDLE)),
            Op::Getattr(mask) => OpRes::Getattr(self.attrs(cur, *mask)),
            Op::Lookup(name) => OpRes::Lookup(self.lookup(name, cur)),
            Op::Lookupp => OpRes::Lookupp(Self::lookup_parent(cur)),
            Op::Verify(a) => OpRes::Verify(self.verify(a, cur, true)),
            Op::Nverify(a) => OpRes::Nverify(self.verify(a, cur, false)),
            op => self.file_op(op, cur),
        }
    }

    fn file_op(&mut self, op: &Op, cur: &mut Cur) -> OpRes {
        match op {
            Op::Create(a) => OpRes::Create(self.create(&a.objname, cur)),
            Op::Remove(name) => {
                let known = self.files.remove(&text(name)).map(|_| ChangeInfo::default());
                OpRes::Remove(known.ok_or(Nfsstat4::NOENT))
            }
            Op::Savefh => {
                cur.saved.clone_from(&cur.fh);
                OpRes::Savefh(Ok(()))
            }
            Op::Restorefh => {
                cur.fh.clone_from(&cur.saved);
                OpRes::Restorefh(Ok(()))
            }
            Op::Rename(a) => OpRes::Rename(self.rename(&text(&a.oldname), text(&a.newname))),
            Op::Link(name) => OpRes::Link(self.link(text(name), cur)),
            Op::Open(a) => OpRes::Open(self.open(a, cur)),
            Op::Close(a) => OpRes::Close(self.close(a, cur)),
            Op::OpenDowngrade(a) => OpRes::OpenDowngrade(self.downgrade(a)),
            Op::Read(a) => OpRes::Read(self.read(a, cur)),
            Op::Write(a) => OpRes::Write(self.write(a, cur)),
            Op::Commit(_) => {
                let boot = self.boot;
                OpRes::Commit(self.file(cur).map(|f| {
                    f.stable = f.data.clone();
                    boot.to_be_bytes()
                }))
            }
            Op::Setattr(a) if self.refuses_times && a.attrs.time_deleg_modify().is_some() => {
                OpRes::Setattr(Err(Nfsstat4::BAD_STATEID.into()))
            }
            Op::Setattr(a) => {
                let held = a.attrs.time_deleg_modify().is_some();
                if held || a.attrs.time_modify_set.is_some() {
                    self.times_under_delegation.push(held && !a.stateid.is_special());
                }
                let size = a.attrs.size;
                let done = self.stateid(&a.stateid).and_then(|()| self.file(cur)).map(|f| {
                    f.atime = given(&a.attrs).unwrap_or(f.atime);
                    if let Some(size) = size {
                        f.data.resize(size as usize, 0);
                        f.change += 1;
                    }
                    a.attrs.mask()
                });
                OpRes::Setattr(done.map_err(Into::into))
            }
            Op::Lock(a) => OpRes::Lock(self.take_lock(a, cur)),
            Op::Locku(a) => OpRes::Locku(match self.locks.get_mut(&a.lock_stateid.other) {
                Some(l) => {
                    l.ranges.retain(|r| a.length != u64::MAX && *r != (a.offset, a.length));
                    Ok(Stateid { seqid: 2, ..a.lock_stateid })
                }
                None => Err(Nfsstat4::BAD_STATEID),
            }),
            Op::TestStateid(list) => {
                let verdict = |s: &Stateid| match self.stateid(s) {
                    Ok(()) => Nfsstat4::OK,
                    Err(e) => e,
                };
                OpRes::TestStateid(Ok(list.iter().map(verdict).collect::<Vec<_>>().into()))
            }
            Op::FreeStateid(_) => OpRes::FreeStateid(Ok(())),
            Op::Delegreturn(_) => OpRes::Delegreturn(Ok(())),
            Op::GetDirDelegation(_) if self.directories.is_some() => {
                let of = Self::name(cur).ok().filter(|_| self.directories == Some(true));
                OpRes::GetDirDelegation(Ok(
                    of.map_or(GetDirDelegationOk::Unavail(false), |f| granted(delegation(&f)))
                ))
            }
            Op::Access(want) => {
                let access = *want & !access::EXECUTE & !self.no_right;
                OpRes::Access(Ok(AccessOk { supported: *want, access }))
            }
            Op::Readdir(_) => OpRes::Readdir(self.list(cur)),
            other => OpRes::failed(other.number(), Nfsstat4::NOTSUPP),
        }
    }

    fn exchange_id(&mut self, a: &ExchangeIdArgs) -> ExchangeIdOk {
        let owner = Bytes::copy_from_slice(&a.clientowner.ownerid);
        let verifier = a.clientowner.verifier;
        let known = self.clients.iter().find(|(_, c)| c.owner == owner && c.verifier == verifier);
        let known = known.map(|(id, c)| (*id, c.confirmed));
        let (clientid, confirmed) = known.unwrap_or_else(|| (self.id(), false));
        let new = Client { owner, verifier, confirmed: false, sequence: 1, complete: false };
        let sequenceid = self.clients.entry(clientid).or_insert(new).sequence;
        ExchangeIdOk {
            clientid,
            sequenceid,
            flags: exchgid::USE_NON_PNFS | if confirmed { exchgid::CONFIRMED_R } else { 0 },
            state_protect: StateProtectOk::None,
            server_owner: ServerOwner { minor_id: 0, major_id: b"fake".as_slice().into() },
            server_scope: Bytes::from(format!("fake{}", self.scope)).into(),
            impl_id: self.domain.or(self.delegates_times.then_some("hither-fs.github.io")).map(|domain| {
                ImplId {
                    domain: domain.as_bytes().into(),
                    name: b"fake".as_slice().into(),
                    date: Time::default(),
                }
            }),
        }
    }

    fn create_session(&mut self, a: &CreateSessionArgs) -> Result<CreateSessionOk, Nfsstat4> {
        let slots = self.slots;
        let client = self.clients.get_mut(&a.clientid).ok_or(Nfsstat4::STALE_CLIENTID)?;
        if a.sequence != client.sequence {
            return Err(Nfsstat4::SEQ_MISORDERED);
        }
        client.sequence += 1;
        client.confirmed = true;
        let mut sessionid = [0; 16];
        sessionid[8..].copy_from_slice(&self.id().to_be_bytes());
        let slots = vec![Slot::default(); slots as usize];
        let mut fore = a.fore_chan_attrs;
        fore.maxrequests = slots.len() as u32;
        fore.maxoperations = self.max_ops;
        fore.maxresponsesize_cached = self.max_cached.unwrap_or(fore.maxresponsesize_cached);
        self.sessions.insert(sessionid, Session { client: a.clientid, slots });
        Ok(CreateSessionOk {
            sessionid,
            sequence: a.sequence,
            flags: a.flags,
            fore_chan_attrs: fore,
            back_chan_attrs: a.back_chan_attrs,
        })
    }

    fn name(cur: &Cur) -> Result<String, Nfsstat4> {
        let fh = cur.fh.as_ref().ok_or(Nfsstat4::NOFILEHANDLE)?;
        let name = fh.strip_prefix(b"f").ok_or(Nfsstat4::ISDIR)?;
        Ok(String::from_utf8_lossy(name).into_owned())
    }

    fn file(&mut self, cur: &Cur) -> Result<&mut File, Nfsstat4> {
        self.files.get_mut(&Self::name(cur)?).ok_or(Nfsstat4::STALE)
    }

    fn attrs(&mut self, cur: &Cur, mask: Bitmap4) -> Result<Attrs, Nfsstat4> {
        let root = cur.fh.as_ref().is_some_and(|fh| &fh[..] == ROOT);
        let file = if root { File { dir: true, ..File::default() } } else { self.file(cur)?.clone() };
        let mut a = Attrs {
            ftype: Some(if file.dir { Ftype::DIR } else { Ftype::REG }),
            change: Some(file.change),
            size: Some(file.data.len() as u64),
            mode: Some(0o644),
            time_access: Some(file.atime),
            time_metadata: Some(file.ctime),
            numlinks: Some(1),
            ..Attrs::default()
        };
        if !self.no_fh_attr {
            a.filehandle = cur.fh.clone();
        }
        let rare = a.rare_mut();
        rare.lease_time = Some(60);
        rare.suppattr_exclcreat = Some(Bitmap4::of(&[attr::MODE]));
        if self.delegates_times {
            rare.supported_attrs = Some(Bitmap4::of(&[attr::TIME_DELEG_ACCESS, attr::TIME_DELEG_MODIFY]));
            rare.open_arguments = Some(open_arguments());
        }
        a.retain(mask);
        Ok(a)
    }

    fn rename(&mut self, old: &str, new: String) -> Result<RenameOk, Nfsstat4> {
        let file = self.files.remove(old).ok_or(Nfsstat4::NOENT)?;
        self.files.insert(new.clone(), file);
        self.leads_to.insert(new, old.to_owned());
        Ok(RenameOk { source_cinfo: ChangeInfo::default(), target_cinfo: ChangeInfo::default() })
    }

    fn link(&mut self, new: String, cur: &Cur) -> Result<ChangeInfo, Nfsstat4> {
        let old = cur.saved.as_ref().ok_or(Nfsstat4::NOFILEHANDLE)?;
        let old = String::from_utf8_lossy(&old[1..]).into_owned();
        if self.files.contains_key(&new) {
            return Err(Nfsstat4::EXIST);
        }
        let file = self.files.get(&old).cloned().ok_or(Nfsstat4::NOENT)?;
        self.files.insert(new.clone(), file);
        self.leads_to.insert(new, old);
        Ok(ChangeInfo::default())
    }

    /// All names, for any directory.
    fn list(&mut self, cur: &mut Cur) -> Result<ReaddirOk, Nfsstat4> {
        let here = cur.fh.clone();
        let root = here.as_ref().is_some_and(|fh| &fh[..] == ROOT);
        if !root && !self.file(cur)?.dir {
            return Err(Nfsstat4::NOTDIR);
        }
        let names: Vec<_> = self.files.keys().cloned().collect();
        let mut entries = vec![];
        for (i, name) in names.iter().enumerate() {
            cur.fh = Some(handle(name));
            let mask = Bitmap4::of(&[attr::TYPE, attr::CHANGE, attr::SIZE, attr::FILEHANDLE]);
            let (name, attrs) = (Component::copy(name.as_bytes()), self.attrs(cur, mask)?);
            entries.push(Entry { cookie: i as u64 + 3, name, attrs });
        }
        cur.fh = here;
        Ok(ReaddirOk { cookieverf: [0; 8], entries: hither_proto::xdr::Chain(entries), eof: true })
    }

    fn create(&mut self, name: &Component, cur: &mut Cur) -> Result<CreateOk, Nfsstat4> {
        if self.files.contains_key(&text(name)) {
            return Err(Nfsstat4::EXIST);
        }
        self.files.insert(text(name), File { dir: true, change: 1, ..File::default() });
        cur.fh = Some(handle(&text(name)));
        Ok(CreateOk { cinfo: ChangeInfo::default(), attrset: Bitmap4::EMPTY })
    }

    fn open(&mut self, a: &OpenArgs, cur: &mut Cur) -> Result<OpenOk, Nfsstat4> {
        let there = self.files.len();
        let reclaim = matches!(a.claim, OpenClaim::Previous(_));
        self.in_time(reclaim, cur)?;
        if let Some(last) = self.log.last_mut() {
            *last = format!("OPEN {}", ["null", "previous", "", "", "fh"][a.claim.discriminant() as usize]);
        }
        if let OpenClaim::Null(name) = &a.claim {
            let name = text(name);
            match (&a.how, self.files.contains_key(&name)) {
                (None, false) => return Err(Nfsstat4::NOENT),
                (Some(CreateHow::Exclusive41(_) | CreateHow::Guarded(_)), true) => {
                    return Err(Nfsstat4::EXIST);
                }
                (Some(how), false) => {
                    let atime = match how {
                        CreateHow::Guarded(attrs) | CreateHow::Unchecked(attrs) => given(attrs),
                        _ => None,
                    };
                    let atime = atime.unwrap_or(Time { seconds: 77, nseconds: 0 });
                    drop(self.files.insert(name.clone(), File { change: 1, atime, ..File::default() }))
                }
                (Some(CreateHow::Unchecked(attrs)), true) if attrs.size == Some(0) => {
                    if let Some(file) = self.files.get_mut(&name) {
                        file.data.clear();
                        file.change += 1;
                    }
                }
                _ => {}
            }
            cur.fh = Some(handle(&name));
        }
        let file = Self::name(cur)?;
        if self.file(cur)?.dir {
            return Err(Nfsstat4::ISDIR);
        }
        let owner = Bytes::copy_from_slice(&a.owner.owner);
        let mine = |o: &Open| o.client == cur.client && o.owner == owner && o.file == file;
        let other = self.opens.iter().find(|(_, o)| mine(o)).map(|(id, _)| *id);
        let other = other.unwrap_or_else(|| self.other());
        let new = Open { client: cur.client, owner, file, seqid: 0, access: 0 };
        let open = self.opens.entry(other).or_insert(new);
        open.seqid += 1;
        open.access |= a.share_access & 3;
        let stateid = Stateid { seqid: open.seqid, other };
        cur.stateid = Some(stateid);
        if let (OpenClaim::Previous(DelegationType::WRITE | DelegationType::WRITE_ATTRS), Some(last)) =
            (&a.claim, self.log.last_mut())
        {
            last.push_str(" write");
        }
        let claims_none = matches!(a.claim, OpenClaim::Previous(DelegationType::NONE));
        let delegation = if !self.delegate || claims_none {
            OpenDelegation::None
        } else if self.delegate_writers && a.share_access & open::SHARE_ACCESS_WRITE != 0 {
            let write = WriteDelegation {
                stateid: delegation(&Self::name(cur)?),
                recall: reclaim && !self.claims_stay,
                space_limit: SpaceLimit::Size(1000),
                permissions: Ace { ace_type: 0, flag: 0, access_mask: 0, who: OwnerName::default() },
            };
            let times = a.share_access & open::WANT_DELEG_TIMESTAMPS != 0;
            if times { OpenDelegation::WriteAttrs(write) } else { OpenDelegation::Write(write) }
        } else {
            OpenDelegation::Read(ReadDelegation {
                stateid: delegation(&Self::name(cur)?),
                recall: false,
                permissions: Ace { ace_type: 0, flag: 0, access_mask: 0, who: OwnerName::default() },
            })
        };
        let cinfo = ChangeInfo {
            atomic: true,
            before: 1,
            after: 1 + u64::from(self.changes_always || self.files.len() > there),
        };
        let attrset = if self.verifier_in_times {
            Bitmap4::of(&[attr::MODE, attr::TIME_ACCESS, attr::TIME_MODIFY])
        } else {
            Bitmap4::of(&[attr::MODE])
        };
        Ok(OpenOk { stateid, cinfo, rflags: 0, attrset, delegation })
    }

    fn close(&mut self, a: &CloseArgs, cur: &Cur) -> Result<Stateid, Nfsstat4> {
        let a = CloseArgs { stateid: cur.resolve(a.stateid)?, ..*a };
        let open = self.opens.get(&a.stateid.other).ok_or(Nfsstat4::BAD_STATEID)?;
        if a.stateid.seqid != 0 && a.stateid.seqid < open.seqid {
            return Err(Nfsstat4::OLD_STATEID);
        }
        self.opens.remove(&a.stateid.other);
        Ok(Stateid::INVALID)
    }

    fn downgrade(&mut self, a: &OpenDowngradeArgs) -> Result<Stateid, Nfsstat4> {
        let open = self.opens.get_mut(&a.stateid.other).ok_or(Nfsstat4::BAD_STATEID)?;
        open.seqid += 1;
        open.access = a.share_access;
        Ok(Stateid { seqid: open.seqid, other: a.stateid.other })
    }

    fn stateid(&self, s: &Stateid) -> Result<(), Nfsstat4> {
        let delegated = || self.files.keys().any(|name| delegation(name).other == s.other);
        let known = self.opens.contains_key(&s.other) || self.locks.contains_key(&s.other);
        if s.is_special() || known || !self.delegations_end && delegated() {
            Ok(())
        } else {
            Err(Nfsstat4::BAD_STATEID)
        }
    }

    fn read(&mut self, a: &ReadArgs, cur: &Cur) -> Result<ReadOk, Nfsstat4> {
        self.stateid(&cur.resolve(a.stateid)?)?;
        let data = &self.file(cur)?.data;
        let start = data.len().min(a.offset as usize);
        let end = data.len().min(start + a.count as usize);
        Ok(ReadOk { eof: end == data.len(), data: Bytes::copy_from_slice(&data[start..end]).into() })
    }

    fn write(&mut self, a: &WriteArgs, cur: &mut Cur) -> Result<WriteOk, Nfsstat4> {
        self.stateid(&cur.resolve(a.stateid)?)?;
        cur.writes += 1;
        let (boot, wrong) = (self.boot, self.one_write && cur.writes > 1);
        let f = self.file(cur)?;
        let end = a.offset as usize + a.data.len();
        if f.data.len() < end {
            f.data.resize(end, 0);
        }
        f.data[a.offset as usize..end].copy_from_slice(&a.data);
        if wrong {
            f.data[a.offset as usize..end].fill(b'!');
        }
        f.change += 1;
        if a.stable == StableHow::FILE_SYNC {
            f.stable = f.data.clone();
        }
        Ok(WriteOk { count: a.data.len() as u32, committed: a.stable, writeverf: boot.to_be_bytes() })
    }
}

fn text(name: &Component) -> String {
    String::from_utf8_lossy(name).into_owned()
}
