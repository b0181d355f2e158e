//! Model checker: visits every state that a small configuration can reach.
//!
//! A few clients do a few operations on one or two files. The possible next events are tried in
//! every order, breadth first:
//! - an operation begins;
//! - a message arrives;
//! - an operation is executed;
//! - the clock ticks, and any of the clients' clocks may stand still;
//! - an eviction is lost;
//! - the server crashes.
//!
//! States that differ only in absolute times and numbers are equal. Messages take at most one tick.
//! In every state:
//! - a read returns the latest completed write, from a cache or from the server;
//! - no acknowledged write is reported as lost;
//! - without further faults every operation ends, and a file that only one client writes is cached
//!   by that client.

use super::random::Random;
use crate::table::Canonical;
use crate::{
    Access, Action, Boot, ClientId, Config, Decision, FileKey, Go, Grant, Holder, HolderAction, HolderConfig,
    HolderRules, Kind, Ms, Op, Request, Rules, Table, Ticket, Want,
};
use std::collections::{HashSet, VecDeque};

/// Time differences of more than this are equal.
const WINDOW: Ms = 14;

/// The bounds of the exploration.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Number of clients.
    pub clients: usize,
    /// Number of files.
    pub files: u64,
    /// Total number of operations.
    pub operations: u8,
    /// Maximum total lag of the clients' clocks in ticks.
    pub lag: u64,
    /// Number of evictions that may be lost.
    pub losses: u8,
    /// Number of crashes of the server.
    pub crashes: u8,
    /// Maximum number of states to visit.
    pub states_max: usize,
    /// Rules of the table.
    pub rules: Rules,
    /// Rules of the clients.
    pub holder_rules: HolderRules,
}

impl Setup {
    /// A setup with these clients, files and operations, and without faults.
    pub fn new(clients: usize, files: u64, operations: u8) -> Self {
        Self {
            clients,
            files,
            operations,
            lag: 0,
            losses: 0,
            crashes: 0,
            states_max: usize::MAX,
            rules: Rules::ALL,
            holder_rules: HolderRules::ALL,
        }
    }
}

/// The extent of the exploration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explored {
    /// Number of states.
    pub states: usize,
    /// Number of steps between states.
    pub steps: usize,
    /// Whether all reachable states were visited.
    pub all: bool,
}

fn config() -> Config {
    Config {
        term_ms: 4,
        term_max_ms: 4,
        skew_ms: 1,
        write_slack_ms: 4,
        evict_retry_ms: 2,
        flush_max_ms: 1_000,
        quiet_ms: 1,
        quiet_max_ms: 2,
        try_later_ms: 1,
        leases_max: 8,
        files_max: 8,
        revision_step: 1 << 40,
        ..Config::default()
    }
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    Done(Option<Grant>, u64, u64),
    Refused,
    Expired,
    Heard,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Program,
    Push,
    Renewal,
    Vacate,
}

#[derive(Debug, Clone, Copy)]
struct Call {
    client: usize,
    xid: u64,
    purpose: Purpose,
    /// `None` for Vacated.
    access: Option<Access>,
    value: u64,
    file: FileKey,
    seq: u64,
    request: Option<Request>,
}

#[derive(Debug, Clone, Copy)]
enum Message {
    Call(Call),
    Reply(Call, Answer),
    Evict(usize, FileKey, u64),
}

#[derive(Debug, Clone)]
struct Client {
    holder: Holder,
    lag: u64,
    cached: Vec<u64>,
    dirty: Vec<Option<u64>>,
    operation: Option<(FileKey, Option<u64>)>,
    calls: Vec<Call>,
}

#[derive(Debug, Clone)]
struct State {
    now: Ms,
    table: Table,
    clients: Vec<Client>,
    /// The messages, with their latest time of arrival.
    net: Vec<(Message, Ms)>,
    running: Vec<(Call, Go, u64, Ms)>,
    waiting: Vec<(Ticket, Call)>,
    /// Replies of executed calls that the client still waits for.
    done: Vec<(Call, Answer)>,
    stored: Vec<u64>,
    truth: Vec<u64>,
    next_value: u64,
    next_xid: u64,
    left: u8,
    losses: u8,
    crashes: u8,
    durable: (u64, u32),
    wrong: Option<String>,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Begin(usize, u64, bool),
    Deliver(usize),
    Lose(usize),
    Execute(usize),
    /// A tick in which the clocks of the clients in this set stand still.
    Tick(u32),
    Crash,
}

/// Visits all states of `setup`.
///
/// # Errors
/// A wrong state: its description, and the steps that lead to it.
pub fn explore(setup: &Setup) -> Result<Explored, String> {
    let mut seen = HashSet::new();
    let mut queue = VecDeque::new();
    // The predecessor of each state, for the report.
    let mut trail: Vec<(u32, Step)> = Vec::new();
    let first = State::new(setup);
    seen.insert(first.digest());
    trail.push((0, Step::Tick(0)));
    queue.push_back((first, 0));
    let mut explored = Explored { states: 1, steps: 0, all: true };
    let way = |trail: &Vec<(u32, Step)>, mut i: u32| {
        let mut steps = Vec::new();
        while i != 0 {
            let (from, step) = trail[i as usize];
            steps.push(format!("{step:?}"));
            i = from;
        }
        steps.reverse();
        steps.join(", ")
    };
    while let Some((state, number)) = queue.pop_front() {
        if number % 8 == 0 {
            state.ends_well(setup).map_err(|e| format!("{e}, after {}", way(&trail, number)))?;
        }
        for step in state.steps(setup) {
            explored.steps += 1;
            let mut next = state.clone();
            next.take(setup, step);
            if let Some(wrong) = &next.wrong {
                return Err(format!("{wrong}, after {}, {step:?}", way(&trail, number)));
            }
            if seen.insert(next.digest()) {
                if explored.states >= setup.states_max {
                    explored.all = false;
                    return Ok(explored);
                }
                explored.states += 1;
                trail.push((number, step));
                queue.push_back((next, trail.len() as u32 - 1));
            }
        }
    }
    Ok(explored)
}

impl State {
    fn new(setup: &Setup) -> Self {
        let holder = HolderConfig { term_ms: 4, renew_before_ms: 2, push_before_ms: 1, renew_retry_ms: 2 };
        let client = Client {
            holder: Holder::with_rules(holder, setup.holder_rules),
            lag: 0,
            cached: vec![0; setup.files as usize],
            dirty: vec![None; setup.files as usize],
            operation: None,
            calls: Vec::new(),
        };
        let mut s = Self {
            now: 100,
            table: Table::with_rules(config(), setup.rules, Boot::FIRST, 100),
            clients: vec![client; setup.clients],
            net: Vec::new(),
            running: Vec::new(),
            waiting: Vec::new(),
            done: Vec::new(),
            stored: vec![0; setup.files as usize],
            truth: vec![0; setup.files as usize],
            next_value: 0,
            next_xid: 0,
            left: setup.operations,
            losses: setup.losses,
            crashes: setup.crashes,
            durable: (0, 0),
            wrong: None,
        };
        s.drain();
        s
    }

    fn local(&self, c: usize) -> Ms {
        self.now - self.clients[c].lag
    }

    /// The possible next events.
    fn steps(&self, setup: &Setup) -> Vec<Step> {
        let mut steps = Vec::new();
        for c in 0..self.clients.len() {
            if self.left > 0 && self.clients[c].operation.is_none() {
                for f in 0..setup.files {
                    steps.extend([Step::Begin(c, f, false), Step::Begin(c, f, true)]);
                }
            }
        }
        for (i, (message, _)) in self.net.iter().enumerate() {
            steps.push(Step::Deliver(i));
            if self.losses > 0 && matches!(message, Message::Evict(..)) {
                steps.push(Step::Lose(i));
            }
        }
        steps.extend((0..self.running.len()).map(Step::Execute));
        let overdue =
            self.net.iter().any(|&(_, t)| t <= self.now) || self.running.iter().any(|r| r.3 <= self.now);
        if !overdue {
            for late in 0..1u32 << self.clients.len() {
                let allowed = |c: usize| late & 1 << c == 0 || self.clients[c].lag < setup.lag;
                if (0..self.clients.len()).all(allowed) {
                    steps.push(Step::Tick(late));
                }
            }
        }
        if self.crashes > 0 {
            steps.push(Step::Crash);
        }
        steps
    }

    fn take(&mut self, setup: &Setup, step: Step) {
        match step {
            Step::Begin(c, f, write) => {
                self.left -= 1;
                self.next_value += u64::from(write);
                let value = write.then_some(self.next_value);
                let file = FileKey([0, f]);
                self.clients[c].operation = Some((file, value));
                let local = self.local(c);
                self.clients[c].holder.set_in_use(local, file, true);
                self.operate(c);
            }
            Step::Deliver(i) => {
                let (message, _) = self.net.remove(i);
                self.deliver(message);
            }
            Step::Lose(i) => {
                self.losses -= 1;
                self.net.remove(i);
            }
            Step::Execute(i) => self.execute(i),
            Step::Tick(late) => self.tick(late),
            Step::Crash => self.crash(setup),
        }
    }

    fn tick(&mut self, late: u32) {
        self.now += 1;
        self.table.handle_timeout(self.now);
        self.drain();
        for c in 0..self.clients.len() {
            self.clients[c].lag += u64::from(late & 1 << c != 0);
            let local = self.local(c);
            self.clients[c].holder.handle_timeout(local);
            self.follow(c);
            let asked = |p| self.clients[c].calls.iter().any(|k: &Call| k.purpose == p);
            let (program, push) = (asked(Purpose::Program), asked(Purpose::Push));
            if self.clients[c].operation.is_some() && !program {
                self.operate(c);
            }
            for f in 0..self.stored.len() {
                // A push that the server answered with "try later".
                let file = FileKey([0, f as u64]);
                if !push && self.clients[c].dirty[f].is_some() && self.clients[c].holder.is_pushing(file) {
                    self.push(c, file);
                }
            }
        }
    }

    fn crash(&mut self, setup: &Setup) {
        self.crashes -= 1;
        let (reserved_end, epoch) = self.durable;
        let boot = Boot { reserved_end, epoch, outstanding_ms: config().term_max_ms };
        self.table = Table::with_rules(config(), setup.rules, boot, self.now);
        self.running.clear();
        self.waiting.clear();
        self.drain();
        // Clients repeat unanswered calls.
        let calls: Vec<Call> = self.clients.iter().flat_map(|c| c.calls.clone()).collect();
        for call in calls {
            let on_the_way = self.net.iter().any(|(m, _)| match m {
                Message::Call(k) | Message::Reply(k, _) => k.xid == call.xid,
                Message::Evict(..) => false,
            });
            if !on_the_way {
                self.net.push((Message::Call(call), self.now + 1));
            }
        }
    }

    fn operate(&mut self, c: usize) {
        let Some((file, write)) = self.clients[c].operation else { return };
        let (f, local) = (file.0[1] as usize, self.local(c));
        let client = &mut self.clients[c];
        match write {
            Some(value) if client.holder.can_cache_writes(local, file) => {
                client.holder.delayed(local, file);
                (client.cached[f], client.dirty[f], client.operation) = (value, Some(value), None);
                self.truth[f] = value;
            }
            None if client.holder.may_read(local, file) => {
                client.operation = None;
                if client.cached[f] != self.truth[f] {
                    self.wrong = Some(format!("client {c} reads a stale cache of file {f}"));
                }
            }
            _ if client.holder.is_dirty(file) => {
                client.holder.push(local, file);
                self.follow(c);
            }
            _ => {
                let (op, kind) =
                    if write.is_some() { (Op::Write, Kind::Write) } else { (Op::Read, Kind::Read) };
                self.call(c, file, kind, op, write.unwrap_or(0), Purpose::Program);
            }
        }
    }

    fn call(&mut self, c: usize, file: FileKey, kind: Kind, op: Op, value: u64, purpose: Purpose) {
        let local = self.local(c);
        let request = self.clients[c].holder.request(local, file, kind, op, false);
        if purpose == Purpose::Renewal && request.want.is_none() {
            return;
        }
        let access = request.access(ClientId(c as u32 + 1), op);
        self.send(c, purpose, file, Some(access), value, 0, Some(request));
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of a call")]
    fn send(
        &mut self,
        client: usize,
        purpose: Purpose,
        file: FileKey,
        access: Option<Access>,
        value: u64,
        seq: u64,
        request: Option<Request>,
    ) {
        self.next_xid += 1;
        let call = Call { client, xid: self.next_xid, purpose, access, value, file, seq, request };
        self.clients[client].calls.push(call);
        self.net.push((Message::Call(call), self.now + 1));
    }

    fn push(&mut self, c: usize, file: FileKey) {
        if let Some(value) = self.clients[c].dirty[file.0[1] as usize] {
            self.call(c, file, Kind::Write, Op::Push, value, Purpose::Push);
        }
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Call(call) => self.serve(call),
            Message::Evict(c, file, seq) => {
                let local = self.local(c);
                self.clients[c].holder.evicted(local, file, seq);
                self.follow(c);
            }
            Message::Reply(call, answer) => {
                let calls = &mut self.clients[call.client].calls;
                let known = calls.iter().position(|k| k.xid == call.xid);
                if let Some(at) = known {
                    calls.remove(at);
                    self.done.retain(|(k, _)| k.xid != call.xid);
                    self.answered(call, answer);
                    self.follow(call.client);
                }
            }
        }
    }

    fn serve(&mut self, call: Call) {
        if let Some(&(_, answer)) = self.done.iter().find(|(k, _)| k.xid == call.xid) {
            return self.reply(call, answer);
        }
        match call.access {
            None => {
                let client = ClientId(call.client as u32 + 1);
                self.table.vacated(self.now, client, call.file, Some(call.seq), true);
                self.reply(call, Answer::Heard);
            }
            Some(access) => {
                let decision = self.table.begin(self.now, access);
                self.decided(call, decision);
            }
        }
        self.drain();
    }

    fn decided(&mut self, call: Call, decision: Decision) {
        let f = call.file.0[1] as usize;
        match decision {
            Decision::Wait(ticket) => self.waiting.push((ticket, call)),
            Decision::Go(go) => {
                let read = call.access.is_some_and(|a| a.op == Op::Read);
                if read && self.stored[f] != self.truth[f] {
                    self.wrong = Some(format!("client {} reads a stale file {f} at the server", call.client));
                }
                self.running.push((call, go, self.stored[f], self.now + 1));
            }
            Decision::TryLater { .. } => self.refuse(call, Answer::Refused),
            Decision::Expired => self.refuse(call, Answer::Expired),
        }
    }

    fn refuse(&mut self, call: Call, answer: Answer) {
        self.done.push((call, answer));
        self.reply(call, answer);
    }

    fn reply(&mut self, call: Call, answer: Answer) {
        self.net.push((Message::Reply(call, answer), self.now + 1));
    }

    fn execute(&mut self, i: usize) {
        let (call, go, value, _) = self.running.remove(i);
        let f = call.file.0[1] as usize;
        let mut revision = go.revision;
        if let Some(permit) = go.permit {
            self.stored[f] = call.value;
            if call.purpose == Purpose::Program {
                self.truth[f] = call.value;
            }
            revision = self.table.finish(self.now, permit, true);
        }
        let answer = Answer::Done(go.grant, revision, value);
        self.done.push((call, answer));
        self.reply(call, answer);
        self.drain();
    }

    fn answered(&mut self, call: Call, answer: Answer) {
        let (c, file, f) = (call.client, call.file, call.file.0[1] as usize);
        let local = self.local(c);
        let client = &mut self.clients[c];
        let writes = call.access.is_some_and(|a| matches!(a.op, Op::Write | Op::Push));
        if let (Some(r), true) = (call.request, writes) {
            client.holder.wrote(r);
        }
        match (call.purpose, answer) {
            (Purpose::Vacate, _) => client.holder.vacated(local, file),
            (Purpose::Push, Answer::Done(grant, revision, _)) => {
                let more = client.dirty[f] != Some(call.value);
                if !more {
                    client.dirty[f] = None;
                }
                client.holder.pushed(local, file, revision, more);
                if let Some(r) = call.request {
                    client.holder.answered(local, r, grant, revision, !more);
                }
            }
            (_, Answer::Expired) => client.holder.expired(local, file),
            (Purpose::Program, Answer::Done(grant, revision, value)) => {
                let value = if writes { call.value } else { value };
                client.operation = None;
                if let Some(r) = call.request
                    && client.holder.answered(local, r, grant, revision, true)
                {
                    client.cached[f] = value;
                }
            }
            (Purpose::Renewal, Answer::Done(grant, revision, _)) => {
                if let Some(r) = call.request {
                    client.holder.answered(local, r, grant, revision, false);
                }
            }
            _ => {}
        }
    }

    fn follow(&mut self, c: usize) {
        while let Some(action) = self.clients[c].holder.poll_action() {
            match action {
                HolderAction::Renew { file, kind } => {
                    self.call(c, file, kind, Op::Lease, 0, Purpose::Renewal)
                }
                HolderAction::Push { file } => self.push(c, file),
                HolderAction::Vacate { file, seq } => self.send(c, Purpose::Vacate, file, None, 0, seq, None),
                HolderAction::Invalidate { .. } | HolderAction::Ended { .. } => {}
                HolderAction::Lost { file } => {
                    self.wrong = Some(format!("client {c} lost its delayed writes to {file:?}"));
                }
            }
        }
    }

    fn drain(&mut self) {
        while let Some(action) = self.table.poll_action() {
            match action {
                Action::Evict { client, file, seq, .. } => {
                    self.net.push((Message::Evict(client.0 as usize - 1, file, seq), self.now + 1));
                }
                Action::Ready { ticket, decision } => {
                    let at = self.waiting.iter().position(|&(t, _)| t == ticket);
                    let (_, call) = self.waiting.remove(at.expect("only waiting calls become ready"));
                    self.decided(call, decision);
                }
                Action::Reserve { end, epoch } => {
                    self.durable = (end, epoch);
                    self.table.reserved(end, epoch);
                }
                Action::Revoked { .. } | Action::Ended { .. } => {}
            }
        }
    }

    /// Checks that without further faults every operation ends.
    fn ends_well(&self, setup: &Setup) -> Result<(), String> {
        let mut s = self.clone();
        (s.left, s.losses, s.crashes) = (0, 0, 0);
        let mut order = Random::new(self.next_xid);
        let mut alone = 0;
        for _ in 0..2_000 {
            if let Some(wrong) = &s.wrong {
                return Err(wrong.clone());
            }
            if !s.net.is_empty() {
                let i = order.below(s.net.len() as u64) as usize;
                s.take(setup, Step::Deliver(i));
            } else if !s.running.is_empty() {
                s.take(setup, Step::Execute(0));
            } else if s.clients.iter().any(|c| c.operation.is_some()) {
                s.take(setup, Step::Tick(0));
            } else {
                // Everything has ended. Now only the first client writes.
                let file = FileKey([0, 0]);
                if s.clients[0].holder.can_cache_writes(s.local(0), file) {
                    return Ok(());
                }
                alone += 1;
                if alone > 100 {
                    return Err("a file that only one client writes stays non-caching".into());
                }
                s.left = 1;
                s.take(setup, Step::Tick(0));
                if s.clients[0].operation.is_none() {
                    s.take(setup, Step::Begin(0, 0, true));
                }
            }
        }
        Err("an operation does not end".into())
    }

    /// Digest of the state. It is equal for states that differ only in absolute times and numbers.
    fn digest(&self) -> u128 {
        let mut c = Canonical::default();
        let mut values = self.stored.clone();
        values.extend(&self.truth);
        self.table.canonical(self.now, WINDOW, &mut c);
        c.plain.extend([u64::from(self.left), u64::from(self.losses), u64::from(self.crashes)]);
        for (i, client) in self.clients.iter().enumerate() {
            client.holder.canonical(self.local(i), WINDOW, &mut c);
            c.plain.extend([u64::MAX - 1, client.lag, client.calls.len() as u64]);
            values.extend(&client.cached);
            values.extend(client.dirty.iter().map(|d| d.map_or(u64::MAX, |v| v)));
            let (file, write) = client.operation.map_or((9, None), |(f, w)| (f.0[1], w));
            c.plain.extend([file, u64::from(write.is_some())]);
            client.calls.iter().for_each(|k| self.canonical_call(k, &mut c, &mut values));
        }
        // The messages under way, in the order of their clients and kinds.
        let mut net: Vec<_> = self.net.iter().collect();
        net.sort_by_key(|(m, t)| match m {
            Message::Call(k) => (0, k.client as u64, k.xid, *t),
            Message::Reply(k, _) => (1, k.client as u64, k.xid, *t),
            Message::Evict(c, f, seq) => (2, *c as u64, f.0[1] << 32 | *seq, *t),
        });
        for (m, t) in net {
            c.time(self.now, *t, WINDOW);
            match m {
                Message::Call(k) => self.canonical_known(0, k, &mut c),
                Message::Reply(k, a) => {
                    self.canonical_known(1, k, &mut c);
                    canonical_answer(a, &mut c, &mut values);
                }
                Message::Evict(client, f, seq) => {
                    c.plain.extend([2, *client as u64, f.0[1]]);
                    c.seqs.push(*seq);
                }
            }
        }
        for (k, go, value, t) in &self.running {
            self.canonical_known(3, k, &mut c);
            canonical_answer(&Answer::Done(go.grant, go.revision, *value), &mut c, &mut values);
            c.time(self.now, *t, WINDOW);
        }
        self.waiting.iter().for_each(|(_, k)| self.canonical_known(4, k, &mut c));
        for (k, a) in &self.done {
            self.canonical_known(5, k, &mut c);
            canonical_answer(a, &mut c, &mut values);
        }
        hash(&[c.plain, ranks(&c.revisions), ranks(&c.seqs), ranks(&values)])
    }

    /// A call that its client waits for, by its index among the calls of the client.
    fn canonical_known(&self, kind: u64, k: &Call, c: &mut Canonical) {
        let at = self.clients[k.client].calls.iter().position(|x| x.xid == k.xid);
        c.plain.extend([kind, k.client as u64, at.map_or(99, |at| at as u64)]);
    }

    fn canonical_call(&self, k: &Call, c: &mut Canonical, values: &mut Vec<u64>) {
        let want = |w: Want| 1 + w.kind as u64;
        let access = k.access.map_or([0, 0], |a| [1 + a.op as u64, a.lease.map_or(0, want)]);
        c.plain.extend([k.purpose as u64, access[0], access[1], k.file.0[1]]);
        c.seqs.extend([k.seq, k.access.and_then(|a| a.claim).unwrap_or(0)]);
        values.push(k.value);
        if let Some(r) = &k.request {
            c.time(self.local(k.client), r.sent_ms(), WINDOW);
            c.plain.extend(self.clients[k.client].holder.standing(r));
        }
    }
}

fn canonical_answer(a: &Answer, c: &mut Canonical, values: &mut Vec<u64>) {
    match a {
        Answer::Done(grant, revision, value) => {
            let g =
                grant.map_or([0; 3], |g| [1 + g.kind as u64, u64::from(g.cachable), u64::from(g.term_ms)]);
            c.plain.extend(g);
            c.seqs.push(grant.map_or(0, |g| g.seq));
            c.revisions.push(*revision);
            values.push(*value);
        }
        Answer::Refused => c.plain.push(11),
        Answer::Expired => c.plain.push(12),
        Answer::Heard => c.plain.push(13),
    }
}

/// The rank of each number, for numbers of which only the order counts.
fn ranks(numbers: &[u64]) -> Vec<u64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    numbers.iter().map(|n| sorted.partition_point(|x| x < n) as u64).collect()
}

fn hash(parts: &[Vec<u64>]) -> u128 {
    let (mut a, mut b) = (0x243f_6a88_85a3_08d3u64, 0x1319_8a2e_0370_7344u64);
    for part in parts {
        for &w in part.iter().chain([&0xdead_beef]) {
            a = (a ^ w).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            a ^= a >> 32;
            b = (b.rotate_left(23) ^ w).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
            b ^= b >> 29;
        }
    }
    u128::from(a) << 64 | u128::from(b)
}
