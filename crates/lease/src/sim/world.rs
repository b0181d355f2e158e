//! Long random histories on virtual time.
//!
//! Programs on several clients read and write whole files under the faults of the network, the
//! clocks and the machines ([`Faults`]). Every operation is recorded. At the end the faults stop,
//! and every operation must end. The history of each file must be linearizable. The same seed gives
//! the same world.

use super::history::{self, Event};
pub use super::net::Faults;
use super::net::{Call, ToClient, arrivals};
use super::random::Random;
use super::server::{Effect, Server};
use super::side::{Operation, RETRANSMIT_MS, Side, Wish};
use crate::{ClientId, Config, FileKey, HolderConfig, HolderRules, Ms, Rules};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

/// The parameters of a world.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Number of events until the faults stop.
    pub steps: u64,
    /// Number of clients that hold leases.
    pub clients: usize,
    /// Number of clients without leases.
    pub leaseless: usize,
    /// Number of files.
    pub files: u64,
    /// Writes per thousand operations.
    pub writes: u32,
    /// Operations per thousand on a file that no other client prefers at the time.
    pub locality: u32,
    /// Maximum pause of a program between operations.
    pub think_max_ms: Ms,
    /// Leases without expiry, for clients that renew themselves within this time; 0: leases with
    /// expiry.
    pub heard_ms: u32,
    /// The protocol of 1994, which has no numbers for leases in evictions, their replies and
    /// delayed writes.
    pub bare_wire: bool,
    /// The table's settings.
    pub table: Config,
    /// The clients' settings.
    pub holder: HolderConfig,
    /// The faults.
    pub faults: Faults,
    /// Rules of the table.
    pub rules: Rules,
    /// Rules of the clients.
    pub holder_rules: HolderRules,
    /// Maximum duration of an operation, when it is checked.
    pub latency_max_ms: Option<Ms>,
}

impl Setup {
    /// Three clients with leases and one without, on four files, with short terms.
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self {
            seed,
            steps: 100_000,
            clients: 3,
            leaseless: 1,
            files: 4,
            writes: 400,
            locality: 700,
            think_max_ms: 300,
            heard_ms: 0,
            bare_wire: false,
            table: Config {
                term_ms: 3_000,
                term_max_ms: 3_000,
                skew_ms: 300,
                write_slack_ms: 2_500,
                evict_retry_ms: 200,
                recall_timeout_ms: 4_000,
                flush_max_ms: 120_000,
                quiet_ms: 50,
                quiet_max_ms: 2_000,
                retry_hold_ms: 500,
                try_later_ms: 100,
                leases_max: 64,
                files_max: 64,
                revision_step: 64,
                ..Config::default()
            },
            holder: HolderConfig {
                term_ms: 3_000,
                renew_before_ms: 1_000,
                push_before_ms: 500,
                renew_retry_ms: 300,
            },
            faults,
            rules: Rules::ALL,
            holder_rules: HolderRules::ALL,
            latency_max_ms: None,
        }
    }
}

/// The report of a world.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Number of events.
    pub steps: u64,
    /// Virtual time.
    pub elapsed_ms: Ms,
    /// Number of completed operations.
    pub operations: u64,
    /// Number of reads and writes without a call.
    pub cached: u64,
    /// Number of evictions.
    pub evictions: u64,
    /// Number of crashes and partitions.
    pub faults: u64,
    /// Number of values that a crashed client lost.
    pub died: u64,
    /// Number of values that a client reported as lost.
    pub lost: u64,
    /// Duration of the longest operation.
    pub slowest_ms: Ms,
    /// Maximum number of concurrent lease records.
    pub peak_leases: usize,
}

#[derive(Debug)]
enum What {
    ToServer(Call),
    ToClient(usize, ClientId, ToClient),
    Serve,
    Execute(u32, u64),
    Reserved(u32, u64, u32),
    TableTimer,
    ClientTimer(usize),
    Retransmit(usize, ClientId, u64, u8),
    Operate(usize, ClientId),
    Begin(usize, ClientId),
    PushAgain(usize, ClientId, FileKey),
    Heartbeat(usize, ClientId),
    Crash,
    Boot,
    ClientCrash(usize),
    Partition(usize),
    Stall,
}

struct Slot {
    side: Side,
    rate_ppm: u64,
    offset: Ms,
    cut_until: Ms,
    timer: Option<Ms>,
    /// Index of the operation's event in its file's history.
    open: Option<(FileKey, usize, Ms)>,
}

/// A world. See [`run`].
struct World {
    setup: Setup,
    random: Random,
    now: Ms,
    sequence: u64,
    agenda: BinaryHeap<Reverse<(Ms, u64)>>,
    events: HashMap<u64, What>,
    server: Server,
    serving: bool,
    stalled_until: Ms,
    table_timer: Option<Ms>,
    slots: Vec<Slot>,
    histories: HashMap<FileKey, Vec<Event>>,
    lost: HashSet<u64>,
    next_client: u32,
    next_value: u64,
    quiet: bool,
    report: Report,
    wrong: Option<String>,
}

/// Plays a world to its end.
///
/// # Errors
/// The description of a forbidden event.
pub fn run(setup: &Setup) -> Result<Report, String> {
    let mut w = World::new(setup.clone());
    w.play();
    w.settle()?;
    w.judge()?;
    w.returns_to_caching()?;
    w.report.peak_leases = w.server.peak_leases;
    w.report.evictions = w.server.evictions;
    Ok(w.report)
}

impl World {
    fn new(setup: Setup) -> Self {
        let random = Random::new(setup.seed);
        let server = Server::new(setup.table.clone(), setup.rules, setup.heard_ms, setup.bare_wire, 0);
        let mut w = Self {
            random,
            now: 0,
            sequence: 0,
            agenda: BinaryHeap::new(),
            events: HashMap::new(),
            server,
            serving: false,
            stalled_until: 0,
            table_timer: None,
            slots: Vec::new(),
            histories: HashMap::new(),
            lost: HashSet::new(),
            next_client: 0,
            next_value: 0,
            quiet: false,
            report: Report::default(),
            wrong: None,
            setup,
        };
        for slot in 0..w.setup.clients + w.setup.leaseless {
            let side = w.new_side(slot);
            let (rate_ppm, offset) = w.clock(slot);
            w.slots.push(Slot { side, rate_ppm, offset, cut_until: 0, timer: None, open: None });
            w.begin_later(slot);
            w.fault_later(|f| f.client_crashes, What::ClientCrash(slot));
            w.fault_later(|f| f.partition_max_ms > 0, What::Partition(slot));
        }
        w.fault_later(|f| f.server_down_max_ms > 0, What::Crash);
        w.fault_later(|f| f.stall_max_ms > 0, What::Stall);
        w.effects();
        w
    }

    fn new_side(&mut self, slot: usize) -> Side {
        self.next_client += 1;
        let id = ClientId(self.next_client);
        let leaseless = slot >= self.setup.clients;
        let heard = if leaseless { 0 } else { self.setup.heard_ms };
        if heard > 0 {
            self.at(self.now + 1, What::Heartbeat(slot, id));
        }
        Side::new(id, slot, self.setup.holder.clone(), self.setup.holder_rules, leaseless, heard)
    }

    /// A clock as slow or as fast as the clock skew allows, in turn.
    fn clock(&mut self, slot: usize) -> (u64, Ms) {
        let term = u64::from(self.setup.table.term_max_ms);
        let skew = u64::from(self.setup.table.skew_ms);
        let offset = self.random.below(1_000_000);
        let rate = match (self.setup.faults.drift, slot % 3) {
            (false, _) | (_, 2) => 1_000_000,
            (_, 0) => 1_000_000 * term / (term + skew) + 1,
            _ => 1_000_000 * (term + skew) / term,
        };
        (rate, offset)
    }

    fn at(&mut self, time: Ms, what: What) {
        self.sequence += 1;
        self.agenda.push(Reverse((time.max(self.now), self.sequence)));
        self.events.insert(self.sequence, what);
    }

    fn fault_later(&mut self, wanted: impl Fn(&Faults) -> bool, what: What) {
        if wanted(&self.setup.faults) && !self.quiet {
            let wait = 1 + self.random.below(2 * self.setup.faults.every_ms);
            self.at(self.now + wait, what);
        }
    }

    fn local(&self, slot: usize) -> Ms {
        let s = &self.slots[slot];
        (u128::from(self.now) * u128::from(s.rate_ppm) / 1_000_000) as u64 + s.offset
    }

    /// The first time at which a client's clock shows `local`.
    fn global(&self, slot: usize, local: Ms) -> Ms {
        let s = &self.slots[slot];
        (u128::from(local.saturating_sub(s.offset)) * 1_000_000).div_ceil(u128::from(s.rate_ppm)) as u64
    }

    fn play(&mut self) {
        while self.report.steps < self.setup.steps && self.wrong.is_none() && self.step() {}
        self.quiet = true;
        self.setup.faults = Faults { delay_max_ms: self.setup.faults.delay_max_ms, ..Faults::NONE };
        if self.server.table.is_none() {
            self.at(self.now, What::Boot);
        }
    }

    fn step(&mut self) -> bool {
        let Some(Reverse((time, number))) = self.agenda.pop() else { return false };
        let what = self.events.remove(&number).expect("every entry of the agenda has its event");
        self.now = time;
        self.report.steps += 1;
        self.happen(what);
        true
    }

    fn happen(&mut self, what: What) {
        match what {
            What::ToServer(call) => {
                if !self.is_cut(call.slot) || self.random.below(2) == 0 {
                    self.server.arrive(call);
                    self.serve_later();
                }
            }
            What::ToClient(slot, id, message) => {
                if self.slots[slot].side.id == id && !self.is_cut(slot) {
                    let local = self.local(slot);
                    self.slots[slot].side.receive(local, message);
                    self.wishes(slot);
                }
            }
            What::Serve => {
                self.serving = false;
                if self.now < self.stalled_until {
                    return self.serve_later();
                }
                self.server.serve(self.now);
                self.effects();
                self.serve_later();
            }
            What::Execute(boot, number) => {
                if self.server.table.is_some() && self.server.boot == boot {
                    self.server.execute(self.now, number);
                    self.effects();
                }
            }
            What::Reserved(boot, end, epoch) => {
                if self.server.boot == boot {
                    self.server.reserved(end, epoch);
                }
            }
            What::TableTimer => {
                self.table_timer = None;
                self.server.timeout(self.now);
                self.effects();
            }
            What::ClientTimer(slot) => {
                self.slots[slot].timer = None;
                let local = self.local(slot);
                self.slots[slot].side.timeout(local);
                self.wishes(slot);
            }
            What::Retransmit(slot, id, xid, lost) => self.retransmit(slot, id, xid, lost),
            What::Operate(slot, id) => self.operate(slot, id),
            What::Begin(slot, id) => self.begin(slot, id),
            What::PushAgain(slot, id, file) => {
                if self.slots[slot].side.id == id {
                    let local = self.local(slot);
                    self.slots[slot].side.push(local, file);
                    self.wishes(slot);
                }
            }
            What::Heartbeat(slot, id) => {
                if self.slots[slot].side.id == id {
                    let local = self.local(slot);
                    self.slots[slot].side.heartbeat(local);
                    self.wishes(slot);
                    self.at(self.now + u64::from(self.setup.heard_ms) / 4, What::Heartbeat(slot, id));
                }
            }
            What::Crash | What::Boot | What::ClientCrash(_) | What::Partition(_) | What::Stall => {
                self.fault(what)
            }
        }
    }

    fn fault(&mut self, what: What) {
        match what {
            What::Boot => {
                if self.server.table.is_none() {
                    self.server.restart(self.now);
                    self.effects();
                }
                return;
            }
            _ if self.quiet => return,
            What::Crash => {
                self.server.crash();
                let down = 1 + self.random.below(self.setup.faults.server_down_max_ms);
                self.at(self.now + down, What::Boot);
                self.fault_later(|_| true, What::Crash);
            }
            What::ClientCrash(slot) => {
                self.report.died += self.slots[slot].side.unpushed().len() as u64;
                self.lost.extend(self.slots[slot].side.unpushed());
                self.slots[slot].open = None;
                let side = self.new_side(slot);
                self.slots[slot].side = side;
                self.begin_later(slot);
                self.fault_later(|_| true, What::ClientCrash(slot));
            }
            What::Partition(slot) => {
                let long = 1 + self.random.below(self.setup.faults.partition_max_ms);
                self.slots[slot].cut_until = self.now + long;
                self.fault_later(|_| true, What::Partition(slot));
            }
            _ => {
                self.stalled_until = self.now + self.random.below(self.setup.faults.stall_max_ms);
                self.fault_later(|_| true, What::Stall);
            }
        }
        self.report.faults += 1;
    }

    fn is_cut(&self, slot: usize) -> bool {
        self.now < self.slots[slot].cut_until
    }

    fn serve_later(&mut self) {
        if !self.serving && !self.server.queue.is_empty() {
            self.serving = true;
            let service = 1 + self.random.below(3);
            self.at((self.now + service).max(self.stalled_until), What::Serve);
        }
    }

    /// Carries out the server's requests.
    fn effects(&mut self) {
        for effect in std::mem::take(&mut self.server.effects) {
            match effect {
                Effect::Reply(call, answer) => {
                    let (heard, revoked) = (call.boot == self.server.boot, self.server.revoked(call.from));
                    let message = ToClient::Reply { xid: call.xid, answer, heard, revoked };
                    self.answer_client(call.slot, call.from, message, true);
                }
                Effect::Evict { client, file, seq } => {
                    let slot = self.slots.iter().position(|s| s.side.id == client);
                    let deliver = !self.setup.faults.callbacks_lost;
                    let seq = if self.setup.bare_wire { 0 } else { seq };
                    if let Some(slot) = slot {
                        self.answer_client(slot, client, ToClient::Evict { file, seq }, deliver);
                    }
                }
                Effect::Execute(number) => {
                    let takes = 1 + self.random.below(20);
                    self.at(self.now + takes, What::Execute(self.server.boot, number));
                }
                Effect::Reserve(end, epoch) => {
                    let takes = 1 + self.random.below(50);
                    self.at(self.now + takes, What::Reserved(self.server.boot, end, epoch));
                }
            }
        }
        let next = self.server.table.as_ref().and_then(|t| t.poll_timeout()).map(|t| t.max(self.now + 1));
        if let Some(t) = next.filter(|&t| self.table_timer.is_none_or(|armed| t < armed)) {
            self.table_timer = Some(t);
            self.at(t, What::TableTimer);
        }
    }

    fn answer_client(&mut self, slot: usize, id: ClientId, message: ToClient, deliver: bool) {
        for time in arrivals(&mut self.random, &self.setup.faults, self.now, deliver).into_iter().flatten() {
            self.at(time, What::ToClient(slot, id, message.clone()));
        }
    }

    fn send(&mut self, call: Call, lost_before: u8) {
        let mut faults = self.setup.faults;
        if lost_before >= 3 {
            faults.loss = 0;
            faults.late = 0;
        }
        let deliver = !self.is_cut(call.slot);
        let copies = arrivals(&mut self.random, &faults, self.now, deliver);
        let lost = if copies[0].is_none() { lost_before.saturating_add(1) } else { 0 };
        for time in copies.into_iter().flatten() {
            self.at(time, What::ToServer(call));
        }
        self.at(self.now + RETRANSMIT_MS, What::Retransmit(call.slot, call.from, call.xid, lost));
    }

    fn retransmit(&mut self, slot: usize, id: ClientId, xid: u64, lost: u8) {
        if self.slots[slot].side.id == id
            && let Some(call) = self.slots[slot].side.outstanding(xid)
        {
            self.send(call, lost);
        }
    }

    /// Carries out a client's requests.
    fn wishes(&mut self, slot: usize) {
        let id = self.slots[slot].side.id;
        for wish in std::mem::take(&mut self.slots[slot].side.wishes) {
            match wish {
                Wish::Send(call) => self.send(call, 0),
                Wish::Finished(value) => self.finished(slot, value),
                Wish::Again(ms) => self.at(self.now + ms, What::Operate(slot, id)),
                Wish::PushAgain(file, ms) => self.at(self.now + ms, What::PushAgain(slot, id, file)),
                Wish::Lost(values) => {
                    self.report.lost += values.len() as u64;
                    self.lost.extend(values);
                }
            }
        }
        if let Some(t) = self.slots[slot].side.holder.poll_timeout() {
            let t = self.global(slot, t).max(self.now);
            if self.slots[slot].timer.is_none_or(|armed| t < armed) {
                self.slots[slot].timer = Some(t);
                self.at(t, What::ClientTimer(slot));
            }
        }
    }

    fn finished(&mut self, slot: usize, value: u64) {
        let Some((file, at, since)) = self.slots[slot].open.take() else { return };
        self.sequence += 1;
        let event = &mut self.histories.entry(file).or_default()[at];
        (event.end, event.value) = (Some(self.sequence), value);
        self.report.operations += 1;
        let took = self.now - since;
        self.report.slowest_ms = self.report.slowest_ms.max(took);
        if self.setup.latency_max_ms.is_some_and(|max| took > max) {
            self.wrong.get_or_insert(format!("an operation on {file:?} took {took} ms"));
        }
        self.begin_later(slot);
    }

    fn begin_later(&mut self, slot: usize) {
        if !self.quiet {
            let id = self.slots.get(slot).map_or(ClientId(self.next_client), |s| s.side.id);
            // Some pauses are so long that leases expire.
            let long = if self.random.below(50) == 0 { 40 } else { 1 };
            let wait = self.random.below(long * self.setup.think_max_ms + 1);
            self.at(self.now + wait, What::Begin(slot, id));
        }
    }

    fn begin(&mut self, slot: usize, id: ClientId) {
        if self.slots[slot].side.id != id || self.slots[slot].open.is_some() || self.quiet {
            return;
        }
        // Mostly a file of its own for some seconds, otherwise any file.
        let own = self.now / 8_192 + slot as u64;
        let any = self.random.below(self.setup.files);
        let file = FileKey([
            7,
            if self.random.one_in_thousand(self.setup.locality) { own % self.setup.files } else { any },
        ]);
        let write = self.random.one_in_thousand(self.setup.writes);
        let in_use = self.random.below(3) > 0;
        let local = self.local(slot);
        self.slots[slot].side.holder.set_in_use(local, file, in_use);
        self.open(slot, file, write);
    }

    fn open(&mut self, slot: usize, file: FileKey, write: bool) {
        self.next_value += u64::from(write);
        let value = if write { self.next_value } else { 0 };
        self.sequence += 1;
        let asks = self.random.below(2) == 0;
        let side = &mut self.slots[slot].side;
        let event = Event { client: side.id.0, write, value, start: self.sequence, end: None };
        let history = self.histories.entry(file).or_default();
        history.push(event);
        side.operation = Some(Operation { file, write: write.then_some(value), asks });
        self.slots[slot].open = Some((file, history.len() - 1, self.now));
        let id = self.slots[slot].side.id;
        self.operate(slot, id);
    }

    fn operate(&mut self, slot: usize, id: ClientId) {
        if self.slots[slot].side.id == id {
            let local = self.local(slot);
            let before = (self.slots[slot].side.cache_reads, self.slots[slot].side.cache_writes);
            self.slots[slot].side.operate(local);
            let after = (self.slots[slot].side.cache_reads, self.slots[slot].side.cache_writes);
            self.report.cached += after.0 + after.1 - before.0 - before.1;
            self.wishes(slot);
        }
    }

    /// Continues without faults until no operation is open, and at least for a while.
    fn rest(&mut self, bound_ms: Ms) -> Result<(), String> {
        let end = self.now + bound_ms;
        for slot in 0..self.slots.len() {
            let local = self.local(slot);
            self.slots[slot].side.push_all(local);
            self.wishes(slot);
        }
        while self.slots.iter().any(|s| s.open.is_some() || !s.side.unpushed().is_empty()) {
            if let Some(wrong) = &self.wrong {
                return Err(wrong.clone());
            }
            if self.now > end || !self.step() {
                let open = self.slots.iter().filter_map(|s| s.open);
                return Err(format!(
                    "after {bound_ms} ms without faults {:?} are open",
                    open.collect::<Vec<_>>()
                ));
            }
        }
        Ok(())
    }

    /// Ends all operations, and lets all clients read all files.
    fn settle(&mut self) -> Result<(), String> {
        let c = &self.setup.table;
        let longest = u64::from(c.term_max_ms + c.skew_ms + c.write_slack_ms + c.recall_timeout_ms);
        let bound = 10 * longest + u64::from(c.quiet_max_ms);
        self.rest(bound)?;
        for round in 0..2 * self.setup.files {
            for slot in 0..self.slots.len() {
                self.open(slot, FileKey([7, round % self.setup.files]), false);
                self.rest(bound)?;
            }
        }
        self.report.elapsed_ms = self.now;
        Ok(())
    }

    fn judge(&self) -> Result<(), String> {
        for (file, events) in &self.histories {
            history::check(&history::without_lost(events, &self.lost))
                .map_err(|e| format!("seed {}: {file:?}: {e}", self.setup.seed))?;
        }
        Ok(())
    }

    /// Checks that a file with only one client is soon cached by that client again.
    fn returns_to_caching(&mut self) -> Result<(), String> {
        let file = FileKey([7, 0]);
        let c = &self.setup.table;
        let bound = 3 * u64::from(c.term_max_ms + c.skew_ms + c.write_slack_ms) + u64::from(c.quiet_max_ms);
        let end = self.now + bound;
        while self.now < end {
            self.open(0, file, true);
            self.rest(bound)?;
            if self.slots[0].side.holder.can_cache_writes(self.local(0), file) {
                return Ok(());
            }
            let next = self.now + 100;
            self.at(next, What::ClientTimer(0));
            while self.now < next && self.step() {}
        }
        Err("a file that only one client writes stays non-caching".into())
    }
}
