//! A server around a [`Table`]: a queue of calls, a store of values, and a reply cache.
//!
//! Executed operations and cached replies are durable, so a retransmitted call is executed once.
//! Leases are not durable.

use super::net::{Answer, Body, Call};
use crate::{
    Access, Action, Boot, ClientId, Config, Decision, FileKey, Go, Kind, Ms, Op, Permit, Rules, Table, Ticket,
};
use std::collections::{HashMap, VecDeque};

/// The server's requests to the simulation.
#[derive(Debug)]
pub enum Effect {
    Reply(Call, Answer),
    Evict {
        client: ClientId,
        file: FileKey,
        seq: u64,
    },
    /// Call [`Server::execute`] with this number after a while.
    Execute(u64),
    /// Call [`Server::reserved`] after a while.
    Reserve(u64, u32),
}

#[derive(Debug)]
struct Running {
    call: Call,
    go: Go,
    value_before: u64,
}

/// The server. A crash loses the fields from `table` to `queue`.
#[derive(Debug)]
pub struct Server {
    config: Config,
    rules: Rules,
    outstanding_ms: u32,
    heard_ms: u32,
    bare_wire: bool,
    pub table: Option<Table>,
    running: HashMap<u64, Running>,
    waiting: HashMap<Ticket, Call>,
    in_progress: HashMap<(ClientId, u64), ()>,
    revoked: HashMap<ClientId, Vec<(FileKey, u64)>>,
    pub queue: VecDeque<Call>,
    pub boot: u32,
    next: u64,
    values: HashMap<FileKey, u64>,
    replies: HashMap<(ClientId, u64), (u32, Answer)>,
    reserved_end: u64,
    epoch: u32,
    fenced: HashMap<(ClientId, FileKey), u64>,
    pub effects: Vec<Effect>,
    pub evictions: u64,
    pub peak_leases: usize,
}

impl Server {
    pub fn new(config: Config, rules: Rules, heard_ms: u32, bare_wire: bool, now: Ms) -> Self {
        let outstanding_ms = config.term_max_ms.max(heard_ms);
        let mut s = Self {
            config,
            rules,
            outstanding_ms,
            heard_ms,
            bare_wire,
            table: None,
            running: HashMap::new(),
            waiting: HashMap::new(),
            in_progress: HashMap::new(),
            revoked: HashMap::new(),
            queue: VecDeque::new(),
            boot: 0,
            next: 0,
            values: HashMap::new(),
            replies: HashMap::new(),
            reserved_end: 0,
            epoch: 0,
            fenced: HashMap::new(),
            effects: Vec::new(),
            evictions: 0,
            peak_leases: 0,
        };
        s.start(now, 0);
        s
    }

    fn start(&mut self, now: Ms, outstanding_ms: u32) {
        self.boot += 1;
        let boot = Boot { reserved_end: self.reserved_end, epoch: self.epoch, outstanding_ms };
        let mut table = Table::with_rules(self.config.clone(), self.rules, boot, now);
        self.fenced.iter().for_each(|(&(client, file), &seq)| table.fence(client, file, seq));
        self.table = Some(table);
        self.drain(now);
    }

    pub fn restart(&mut self, now: Ms) {
        self.start(now, self.outstanding_ms);
    }

    pub fn crash(&mut self) {
        self.table = None;
        self.running.clear();
        self.waiting.clear();
        self.in_progress.clear();
        self.revoked.clear();
        self.queue.clear();
    }

    /// A call arrives and is queued.
    pub fn arrive(&mut self, call: Call) {
        if let Some(table) = &mut self.table {
            table.set_idle(false);
            self.queue.push_back(call);
        }
    }

    /// Serves the next call.
    pub fn serve(&mut self, now: Ms) {
        let Some(call) = self.queue.pop_front() else { return };
        self.handle(now, call);
        let idle = self.queue.is_empty();
        if let Some(table) = &mut self.table {
            table.set_idle(idle);
            self.peak_leases = self.peak_leases.max(table.usage().leases);
        }
        self.drain(now);
    }

    fn handle(&mut self, now: Ms, call: Call) {
        let key = (call.from, call.xid);
        // A Vacated with the number of its lease may arrive twice.
        let repeatable = match call.body {
            Body::Vacated { .. } => !self.bare_wire,
            Body::Heartbeat => true,
            Body::Access { .. } => false,
        };
        if let Some(&(boot, answer)) = self.replies.get(&key).filter(|_| !repeatable) {
            return self.effects.push(Effect::Reply(call, without_old_grant(answer, boot == self.boot)));
        }
        let held = self.heard_ms > 0;
        if held && call.boot != self.boot {
            let push = matches!(call.body, Body::Access { access: Access { op: Op::Push, .. }, .. });
            if !push {
                return self.effects.push(Effect::Reply(call, Answer::Restarted(self.boot)));
            }
        } else if held {
            let table = self.table.as_mut().expect("calls are served only while it is up");
            table.renew(now, call.from, self.heard_ms);
        }
        let table = self.table.as_mut().expect("calls are served only while it is up");
        match call.body {
            Body::Heartbeat => self.effects.push(Effect::Reply(call, Answer::Heard)),
            Body::Vacated { file, seq } => {
                table.vacated(now, call.from, file, (!self.bare_wire).then_some(seq), true);
                self.replies.insert(key, (self.boot, Answer::Heard));
                if let Some(revoked) = self.revoked.get_mut(&call.from) {
                    revoked.retain(|&r| r != (file, seq));
                }
                self.effects.push(Effect::Reply(call, Answer::Heard));
            }
            Body::Access { mut access, .. } => {
                if self.bare_wire {
                    access.claim = None;
                }
                if self.in_progress.insert(key, ()).is_some() {
                    return;
                }
                let decision = table.begin(now, access);
                self.decided(call, decision);
            }
        }
    }

    fn decided(&mut self, call: Call, decision: Decision) {
        match decision {
            Decision::Wait(ticket) => {
                self.waiting.insert(ticket, call);
            }
            Decision::Go(go) => {
                let Body::Access { access, .. } = call.body else { return };
                let value_before = self.value(access.file);
                self.next += 1;
                self.running.insert(self.next, Running { call, go, value_before });
                self.effects.push(Effect::Execute(self.next));
            }
            Decision::TryLater { after_ms } => self.refuse(call, Answer::TryLater(after_ms)),
            Decision::Expired => self.refuse(call, Answer::Expired),
        }
    }

    fn refuse(&mut self, call: Call, answer: Answer) {
        self.in_progress.remove(&(call.from, call.xid));
        // The reply is cached. Otherwise a refused write could be executed later, when a
        // retransmission arrives late.
        self.replies.insert((call.from, call.xid), (self.boot, answer));
        self.effects.push(Effect::Reply(call, answer));
        if let (Answer::Expired, Body::Access { access, .. }) = (answer, call.body) {
            self.fenced.remove(&(call.from, access.file));
        }
    }

    /// Executes an operation that may go ahead, and caches the reply in the same step.
    pub fn execute(&mut self, now: Ms, number: u64) {
        let Some(Running { call, go, value_before }) = self.running.remove(&number) else { return };
        let Body::Access { access, value } = call.body else { return };
        let mut revision = go.revision;
        let writes = matches!(access.op, Op::Write | Op::Push);
        if let (Some(permit), Some(table)) = (go.permit, &mut self.table) {
            let permit: Permit = permit;
            self.values.insert(access.file, value);
            revision = table.finish(now, permit, true);
        }
        let value = if writes { value } else { value_before };
        if go.grant.is_some_and(|g| g.cachable) {
            self.fenced.remove(&(call.from, access.file));
        }
        let answer = Answer::Done { grant: go.grant, revision, value };
        self.in_progress.remove(&(call.from, call.xid));
        self.replies.insert((call.from, call.xid), (self.boot, answer));
        self.effects.push(Effect::Reply(call, answer));
        self.drain(now);
    }

    pub fn reserved(&mut self, end: u64, epoch: u32) {
        self.reserved_end = self.reserved_end.max(end);
        self.epoch = self.epoch.max(epoch);
        if let Some(table) = &mut self.table {
            table.reserved(end, epoch);
        }
    }

    pub fn timeout(&mut self, now: Ms) {
        if let Some(table) = &mut self.table {
            table.handle_timeout(now);
        }
        self.drain(now);
    }

    /// The revocations that a client gets with every reply.
    pub fn revoked(&self, client: ClientId) -> Vec<(FileKey, u64)> {
        self.revoked.get(&client).cloned().unwrap_or_default()
    }

    pub fn value(&self, file: FileKey) -> u64 {
        self.values.get(&file).copied().unwrap_or(0)
    }

    fn drain(&mut self, _now: Ms) {
        while let Some(action) = self.table.as_mut().and_then(Table::poll_action) {
            match action {
                Action::Evict { client, file, seq, .. } => {
                    self.evictions += 1;
                    self.effects.push(Effect::Evict { client, file, seq });
                }
                Action::Ready { ticket, decision } => {
                    let call = self.waiting.remove(&ticket).expect("only waiting calls become ready");
                    self.decided(call, decision);
                }
                Action::Revoked { client, file, seq } => {
                    self.revoked.entry(client).or_default().push((file, seq));
                }
                Action::Ended { client, file, kind, seq, .. } => {
                    if kind == Kind::Write {
                        self.fenced.insert((client, file), seq);
                    }
                }
                Action::Reserve { end, epoch } => self.effects.push(Effect::Reserve(end, epoch)),
            }
        }
    }
}

/// Removes a grant of an earlier incarnation of the server. A lease with expiry stays, because its
/// holder counts the term from the call.
fn without_old_grant(answer: Answer, same: bool) -> Answer {
    match answer {
        Answer::Done { grant: Some(g), revision, value } if !same && g.term_ms == 0 => {
            Answer::Done { grant: None, revision, value }
        }
        other => other,
    }
}
