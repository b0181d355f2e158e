//! A client around a [`Holder`]: one program that reads and writes whole files, a cache, and
//! retransmission of unanswered calls.

use super::net::{Answer, Body, Call, ToClient};
use crate::{
    Access, ClientId, FileKey, Holder, HolderAction, HolderConfig, HolderRules, Kind, Ms, Op, Request,
};
use std::collections::HashMap;

/// Retransmission interval of unanswered calls.
pub const RETRANSMIT_MS: Ms = 100;

/// The client's requests to the simulation.
#[derive(Debug)]
pub enum Wish {
    Send(Call),
    /// The program's operation has ended, with the value that it read or wrote.
    Finished(u64),
    /// Repeat the program's operation after this time.
    Again(Ms),
    /// Push again after this time.
    PushAgain(FileKey, Ms),
    /// These values were reported as lost.
    Lost(Vec<u64>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Program,
    /// A revalidation before the program's operation.
    Question,
    Push,
    Renewal,
    Vacate,
    Heartbeat,
}

#[derive(Debug)]
struct Outstanding {
    call: Call,
    purpose: Purpose,
    request: Option<Request>,
    sent_ms: Ms,
}

/// An operation of the program.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    pub file: FileKey,
    /// The value to write; `None` for a read.
    pub write: Option<u64>,
    /// Revalidates cached data first.
    pub asks: bool,
}

/// One incarnation of a client. All times are of its own clock.
#[derive(Debug)]
pub struct Side {
    pub id: ClientId,
    pub slot: usize,
    pub holder: Holder,
    /// The client requests no leases.
    leaseless: bool,
    /// The term of a renewal for delegations.
    heard_ms: u32,
    boot: u32,
    cached: HashMap<FileKey, u64>,
    /// Delayed writes that are not yet on the server, in order.
    unpushed: HashMap<FileKey, Vec<u64>>,
    calls: HashMap<u64, Outstanding>,
    next_xid: u64,
    pub operation: Option<Operation>,
    pub wishes: Vec<Wish>,
    pub cache_reads: u64,
    pub cache_writes: u64,
}

impl Side {
    pub fn new(
        id: ClientId,
        slot: usize,
        config: HolderConfig,
        rules: HolderRules,
        leaseless: bool,
        heard_ms: u32,
    ) -> Self {
        Self {
            id,
            slot,
            holder: Holder::with_rules(config, rules),
            leaseless,
            heard_ms,
            boot: 0,
            cached: HashMap::new(),
            unpushed: HashMap::new(),
            calls: HashMap::new(),
            next_xid: 0,
            operation: None,
            wishes: Vec::new(),
            cache_reads: 0,
            cache_writes: 0,
        }
    }

    /// All values that a crash loses.
    pub fn unpushed(&self) -> Vec<u64> {
        self.unpushed.values().flatten().copied().collect()
    }

    /// The program begins or repeats its operation.
    pub fn operate(&mut self, now: Ms) {
        let Some(Operation { file, write, asks }) = self.operation else { return };
        if let Some(value) = write {
            if !self.leaseless && self.holder.can_cache_writes(now, file) {
                self.holder.delayed(now, file);
                self.cached.insert(file, value);
                self.unpushed.entry(file).or_default().push(value);
                self.cache_writes += 1;
                return self.finished(value);
            }
        } else if !self.leaseless && self.holder.may_read(now, file) {
            self.cache_reads += 1;
            let value = self.cached.get(&file).copied().expect("the holder knows the cached data");
            return self.finished(value);
        }
        // Delayed data is sent first, because it must not overtake a write through.
        if self.holder.is_dirty(file) {
            self.holder.push(now, file);
            self.follow(now);
            return self.wishes.push(Wish::Again(20));
        }
        if let (Some(operation), true) = (&mut self.operation, asks) {
            operation.asks = false;
            if write.is_none() && !self.leaseless && self.cached.contains_key(&file) {
                return self.call(now, file, Kind::Read, Op::Lease, 0, Purpose::Question);
            }
        }
        let (op, kind) = match write {
            Some(_) => (Op::Write, Kind::Write),
            None => (Op::Read, Kind::Read),
        };
        if self.leaseless {
            let access = Access { client: None, file, op, lease: None, claim: None };
            let body = Body::Access { access, value: write.unwrap_or(0) };
            return self.send(now, body, Purpose::Program, None);
        }
        self.call(now, file, kind, op, write.unwrap_or(0), Purpose::Program);
    }

    fn finished(&mut self, value: u64) {
        self.operation = None;
        self.wishes.push(Wish::Finished(value));
    }

    fn call(&mut self, now: Ms, file: FileKey, kind: Kind, op: Op, value: u64, purpose: Purpose) {
        let request = self.holder.request(now, file, kind, op, self.heard_ms > 0);
        if purpose == Purpose::Renewal && request.want.is_none() {
            return;
        }
        let body = Body::Access { access: request.access(self.id, op), value };
        self.send(now, body, purpose, Some(request));
    }

    fn send(&mut self, now: Ms, body: Body, purpose: Purpose, request: Option<Request>) {
        self.next_xid += 1;
        let call = Call { slot: self.slot, from: self.id, xid: self.next_xid, body, boot: self.boot };
        self.calls.insert(call.xid, Outstanding { call, purpose, request, sent_ms: now });
        self.wishes.push(Wish::Send(call));
    }

    /// The call, when it has no reply yet.
    pub fn outstanding(&self, xid: u64) -> Option<Call> {
        self.calls.get(&xid).map(|o| o.call)
    }

    pub fn heartbeat(&mut self, now: Ms) {
        if self.heard_ms > 0 && !self.calls.values().any(|o| o.purpose == Purpose::Heartbeat) {
            self.send(now, Body::Heartbeat, Purpose::Heartbeat, None);
        }
    }

    pub fn push(&mut self, now: Ms, file: FileKey) {
        if let Some(value) = self.unpushed.get(&file).and_then(|v| v.last()).copied() {
            self.call(now, file, Kind::Write, Op::Push, value, Purpose::Push);
        }
    }

    /// Pushes all delayed data.
    pub fn push_all(&mut self, now: Ms) {
        let files: Vec<FileKey> = self.unpushed.keys().copied().collect();
        files.into_iter().for_each(|f| self.holder.push(now, f));
        self.follow(now);
    }

    pub fn timeout(&mut self, now: Ms) {
        self.holder.handle_timeout(now);
        self.follow(now);
    }

    pub fn receive(&mut self, now: Ms, message: ToClient) {
        match message {
            ToClient::Evict { file, seq } => self.holder.evicted(now, file, seq),
            ToClient::Reply { xid, answer, heard, revoked } => {
                // Revocations first: neither the renewal nor a late grant may make a revoked lease
                // valid again.
                revoked.into_iter().for_each(|(file, seq)| self.holder.evicted(now, file, seq));
                if let Some(o) = self.calls.remove(&xid) {
                    self.answered(now, o, answer, heard);
                }
            }
        }
        self.follow(now);
    }

    fn answered(&mut self, now: Ms, o: Outstanding, answer: Answer, heard: bool) {
        if let Answer::Restarted(boot) = answer {
            return self.restarted(now, o, boot);
        }
        if self.heard_ms > 0 && heard {
            self.holder.renewed(o.sent_ms, self.heard_ms);
        }
        match (o.purpose, o.call.body) {
            (Purpose::Vacate, Body::Vacated { file, .. }) => self.holder.vacated(now, file),
            (Purpose::Push, Body::Access { access, value }) => {
                self.pushed(now, o.request, access.file, value, answer)
            }
            (Purpose::Program, Body::Access { access, value }) => {
                self.program_answered(now, o.request, access, value, answer);
            }
            (Purpose::Renewal | Purpose::Question, _) => {
                if let (Some(r), Answer::Done { grant, revision, .. }) = (o.request, answer) {
                    self.holder.answered(now, r, grant, revision, false);
                }
                if o.purpose == Purpose::Question {
                    self.wishes.push(Wish::Again(0));
                }
            }
            _ => {}
        }
    }

    fn pushed(&mut self, now: Ms, r: Option<Request>, file: FileKey, value: u64, answer: Answer) {
        let Some(r) = r else { return };
        self.holder.wrote(r);
        match answer {
            Answer::Done { grant, revision, .. } => {
                let left = self.unpushed.entry(file).or_default();
                if let Some(at) = left.iter().position(|&v| v == value) {
                    left.drain(..=at);
                }
                let more = !left.is_empty();
                self.holder.pushed(now, file, revision, more);
                self.holder.answered(now, r, grant, revision, !more);
            }
            Answer::Expired => self.holder.expired(now, file),
            _ => self.wishes.push(Wish::PushAgain(file, 50)),
        }
    }

    fn program_answered(&mut self, now: Ms, r: Option<Request>, access: Access, sent: u64, answer: Answer) {
        let writes = matches!(access.op, Op::Write | Op::Push);
        if let (Some(r), true) = (r, writes) {
            self.holder.wrote(r);
        }
        match answer {
            Answer::Done { grant, revision, value } => {
                let value = if writes { sent } else { value };
                if let Some(r) = r {
                    let keep = self.holder.answered(now, r, grant, revision, true);
                    if keep {
                        self.cached.insert(access.file, value);
                    }
                }
                self.finished(value);
            }
            Answer::TryLater(ms) => self.wishes.push(Wish::Again(u64::from(ms.clamp(5, 500)))),
            Answer::Expired => {
                self.holder.expired(now, access.file);
                self.wishes.push(Wish::Again(5));
            }
            _ => self.wishes.push(Wish::Again(5)),
        }
    }

    /// The server has restarted: delegations are gone, and the call was not executed.
    fn restarted(&mut self, now: Ms, o: Outstanding, boot: u32) {
        if self.boot != boot {
            self.boot = boot;
            self.holder.server_restarted(now);
        }
        match (o.purpose, o.call.body) {
            (Purpose::Program | Purpose::Question, Body::Access { access, .. }) => {
                if let (Some(r), Op::Write | Op::Push) = (o.request, access.op) {
                    self.holder.wrote(r);
                }
                self.wishes.push(Wish::Again(5));
            }
            (Purpose::Vacate, Body::Vacated { file, .. }) => self.holder.vacated(now, file),
            _ => {}
        }
    }

    /// Carries out the holder's actions.
    fn follow(&mut self, now: Ms) {
        while let Some(action) = self.holder.poll_action() {
            match action {
                HolderAction::Renew { file, kind } => {
                    self.call(now, file, kind, Op::Lease, 0, Purpose::Renewal);
                }
                HolderAction::Push { file } => self.push(now, file),
                HolderAction::Vacate { file, seq } => {
                    self.send(now, Body::Vacated { file, seq }, Purpose::Vacate, None);
                }
                HolderAction::Ended { .. } => {}
                HolderAction::Invalidate { file } => {
                    self.cached.remove(&file);
                }
                HolderAction::Lost { file } => {
                    let lost = self.unpushed.remove(&file).unwrap_or_default();
                    self.wishes.push(Wish::Lost(lost));
                }
            }
        }
    }
}
