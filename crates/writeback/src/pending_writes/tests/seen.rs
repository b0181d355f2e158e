//! Tests of times that a program saw before the server had the bytes: nothing is sent for stat(2),
//! and the times stay.

use super::gate::Verdict;
use super::histories::Nobody;
use super::journal::{Journaled, until};
use super::*;
use hither_vfs::{Attr, RenameFlags, Unsent};
use proptest::collection::vec;
use proptest::prelude::*;

/// The reasons for which the mount is the authority for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Delegated,
    Lazy,
    Exclusive,
    Journal,
}

const ALL: [Why; 4] = [Why::Delegated, Why::Lazy, Why::Exclusive, Why::Journal];

impl Why {
    fn options(self) -> WriteBackOptions {
        WriteBackOptions {
            lazy_close: self == Why::Lazy,
            delegated_close: matches!(self, Why::Delegated | Why::Journal),
            exclusive: self == Why::Exclusive,
            delay_attributes: !self.is_journaled(),
            // The time of a journal on threads is not virtual.
            dirty_age: Duration::from_secs(if self.is_journaled() { 3600 } else { 5 }),
            wsize_bytes: 64,
            ..WriteBackOptions::default()
        }
    }

    async fn world(self, env: Env) -> World {
        let model = Arc::new(Model::new(env.clone(), Duration::from_secs(3), u64::MAX));
        self.world_over(Gate::new(model), env).await
    }

    async fn world_over(self, gate: Arc<Gate>, env: Env) -> World {
        gate.delegate(self.is_delegated());
        gate.delegate_times(self.is_delegated());
        let world = match self {
            Why::Exclusive | Why::Journal => {
                World::Journaled(Journaled::over(gate, self.options(), env).await)
            }
            _ => {
                let dirty = WriteBack::new(gate.clone(), gate.clone(), env, self.options());
                let root = dirty.root(&cx()).await.unwrap().fh;
                World::Plain(Stack { dirty, gate, root })
            }
        };
        world.dirty.subscribe(Arc::new(Nobody));
        world
    }

    fn is_delegated(self) -> bool {
        matches!(self, Why::Delegated | Why::Journal)
    }

    fn is_journaled(self) -> bool {
        matches!(self, Why::Exclusive | Why::Journal)
    }

    /// Runs a test under this authority.
    fn run(self, test: impl AsyncFnOnce(World)) {
        self.runtime().block_on(async { test(self.world(env()).await).await });
    }

    fn runtime(self) -> tokio::runtime::Runtime {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(!self.is_journaled()).build().unwrap()
    }
}

/// A stack with or without a journal.
enum World {
    Plain(Stack),
    Journaled(Journaled),
}

impl std::ops::Deref for World {
    type Target = Stack;

    fn deref(&self) -> &Stack {
        match self {
            World::Plain(s) => s,
            World::Journaled(j) => &j.s,
        }
    }
}

impl World {
    async fn wait(&self, ms: u64) {
        let ms = if matches!(self, World::Journaled(_)) { ms.min(2) } else { ms };
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

/// The times and the length.
fn state(attr: &Attr) -> (Time, Time, u64) {
    (attr.mtime, attr.ctime, attr.size_bytes)
}

/// The ways in which bytes reach the server.
async fn send(s: &World, f: &(Fh, OpenId), way: &str) {
    match way {
        "fsync" => s.commit(f).await.unwrap(),
        "close" => s.close(f).await.unwrap(),
        "sync" => s.dirty.sync().await.unwrap(),
        "age" => {}
        _ => s.gate.upcalls().revoke(&f.0).await,
    }
    s.wait(7000).await;
}

/// stat(2) sends nothing, and its times are the server's after every way of sending.
/// Promise: 5
#[test]
fn stat_sends_nothing_and_stays() {
    for why in ALL {
        for way in ["fsync", "close", "sync", "age", "recall"] {
            if why.is_journaled() && matches!(way, "fsync" | "close" | "age") {
                // These ways wait for the journal.
                continue;
            }
            why.run(async |s| {
                let f = s.open("f").await;
                s.write(&f, 0, pattern(1, 50)).await.unwrap();
                let first = s.shown(&f.0).await;
                s.write(&f, 50, pattern(2, 5)).await.unwrap();
                let seen = s.shown(&f.0).await;
                assert!(seen.mtime > first.mtime && seen.ctime > first.ctime, "{why:?}");
                assert_eq!((s.gate.calls("write"), s.gate.calls("setattr")), (0, 0), "{why:?}");
                send(&s, &f, way).await;
                assert_eq!(s.below(&f.0).await.len(), 55, "{why:?} {way}");
                assert_eq!(s.theirs(&f.0).await.mtime, seen.mtime, "{why:?} {way}");
                for _ in 0..2 {
                    assert_eq!(state(&s.shown(&f.0).await), state(&seen), "{why:?} {way}");
                }
                let file = name("f");
                let trail = s.dirty.walk(&cx(), PathRef::name(&s.root, &file), Default::default()).await;
                assert_eq!(state(&trail.unwrap().steps[0].attrs.attr), state(&seen), "{why:?} {way}");
                // A change by another client shows.
                s.wait(1000).await;
                let file = At { fh: &f.0, open: None };
                s.gate.below().setattr(&cx(), file, &super::finish::mode(0o600)).await.unwrap();
                let shown = s.dirty.getattr(&cx().fresh(now()), file).await.unwrap().attr;
                assert_eq!(shown.ctime, s.theirs(&f.0).await.ctime, "{why:?} {way}");
            });
        }
    }
}

fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// Times that no program saw are the server's, and cost no call.
#[test]
fn unseen_times_are_the_servers() {
    for why in ALL {
        why.run(async |s| {
            let f = s.open("f").await;
            s.write(&f, 0, pattern(1, 50)).await.unwrap();
            let unseen = RequestContext { times_unseen: true, ..cx() };
            s.dirty.getattr(&unseen, At { fh: &f.0, open: Some(f.1) }).await.unwrap();
            s.dirty.sync().await.unwrap();
            s.close(&f).await.unwrap();
            s.wait(7000).await;
            assert_eq!((s.gate.calls("write"), s.gate.calls("setattr")), (1, 0), "{why:?}");
            let theirs = s.theirs(&f.0).await;
            assert_eq!(theirs.mtime, theirs.ctime, "{why:?}");
            assert_eq!(state(&s.shown(&f.0).await), state(&theirs), "{why:?}");
        });
    }
}

/// rm(1) looks at a file before it removes it. The file is not sent.
/// Promise: 6a
#[test]
fn looked_at_and_removed_is_not_sent() {
    for why in ALL {
        why.run(async |s| {
            for i in 0..10 {
                let file = format!("t{i}");
                let f = s.open(&file).await;
                s.write(&f, 0, pattern(1, 50)).await.unwrap();
                s.shown(&f.0).await;
                s.close(&f).await.unwrap();
                s.shown(&f.0).await;
                s.dirty.unlink(&cx(), &s.root, &name(&file), Some(&f.0)).await.unwrap();
            }
            s.wait(20_000).await;
            assert_eq!((s.gate.calls("write"), s.gate.calls("setattr")), (0, 0), "{why:?}");
            until("no file is held", async || s.dirty.holds_no_file()).await;
        });
    }
}

/// A file of another owner, and one without any authority, are sent first.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn others_files_are_sent_first() {
    let s = Why::Lazy.world(env()).await;
    let f = s.open("f").await;
    let away = SetAttr { uid: Some(1000), ..SetAttr::default() };
    s.set(&f, &away).await;
    s.write(&f, 0, pattern(1, 50)).await.unwrap();
    let seen = s.shown(&f.0).await;
    assert_eq!((s.gate.calls("write"), state(&seen)), (1, state(&s.theirs(&f.0).await)));

    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    s.write(&f, 0, pattern(1, 50)).await.unwrap();
    let seen = s.shown(&f.0).await;
    assert_eq!((s.gate.calls("write"), state(&seen)), (1, state(&s.theirs(&f.0).await)));
}

/// A server that refuses the time all the same takes the bytes. No program gets an error, and the
/// user's files are sent first from then on.
#[tokio::test(start_paused = true)]
async fn refused_times_lose_nothing() {
    for way in ["fsync", "close", "age"] {
        let s = Why::Lazy.world(env()).await;
        let f = s.open("f").await;
        s.write(&f, 0, pattern(1, 50)).await.unwrap();
        s.shown(&f.0).await;
        s.gate.fail("setattr", libc::EPERM);
        send(&s, &f, way).await;
        assert_eq!(s.below(&f.0).await, pattern(1, 50), "{way}");
        assert_eq!(state(&s.shown(&f.0).await), state(&s.theirs(&f.0).await), "{way}");
        s.dirty.sync().await.unwrap();
        let f = s.open("f").await;
        let writes = s.gate.calls("write");
        s.write(&f, 0, pattern(2, 50)).await.unwrap();
        s.shown(&f.0).await;
        assert_eq!(s.gate.calls("write"), writes + 1, "{way}");
        s.close(&f).await.unwrap();
    }
}

/// Permissions that a program set wait together with a time that it saw. When the server refuses
/// the time, the permissions are sent alone. No program gets an error.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn refused_time_keeps_permissions() {
    for way in ["fsync", "close", "age"] {
        let s = Why::Lazy.world(env()).await;
        let f = s.create("f", 0o600).await;
        s.write(&f, 0, pattern(1, 50)).await.unwrap();
        s.shown(&f.0).await;
        s.set(&f, &SetAttr { mode: Some(0o644), ..SetAttr::default() }).await;
        s.shown(&f.0).await;
        assert_eq!((s.gate.calls("write"), s.gate.finishes()), (0, 0), "{way}");
        s.gate.fail("mtime", libc::EPERM);
        send(&s, &f, way).await;
        s.dirty.sync().await.unwrap();
        let theirs = s.theirs(&f.0).await;
        assert_eq!((theirs.mode, theirs.size_bytes), (0o644, 50), "{way}");
        assert_eq!(state(&s.shown(&f.0).await), state(&theirs), "{way}");
    }
}

/// When the delegation ends while a question is under way, the file is sent before the answer.
#[tokio::test(start_paused = true)]
async fn delegation_ends_during_stat() {
    let s = Why::Delegated.world(env()).await;
    let f = s.open("f").await;
    s.write(&f, 0, pattern(1, 50)).await.unwrap();
    s.gate.shut("getattr");
    let (dirty, fh) = (s.dirty.clone(), f.0.clone());
    let stat =
        tokio::spawn(async move { dirty.getattr(&cx(), At { fh: &fh, open: None }).await.unwrap().attr });
    settle().await;
    s.gate.delegate(false);
    s.gate.open_all();
    let seen = stat.await.unwrap();
    assert_eq!((s.gate.calls("write"), state(&seen)), (1, state(&s.theirs(&f.0).await)));
}

/// CB_GETATTR of another client is answered with the length as long as bytes or a seen time wait.
/// Promise: S10c
#[tokio::test(start_paused = true)]
async fn seen_times_keep_the_delegation() {
    let s = Why::Delegated.world(env()).await;
    let f = s.open("f").await;
    s.write(&f, 0, pattern(1, 50)).await.unwrap();
    let seen = s.shown(&f.0).await;
    let waiting = Unsent::Bytes { size_bytes: 50, mtime: Some(seen.mtime) };
    assert_eq!(s.gate.upcalls().unsent(&f.0), waiting);
    s.gate.shut("setattr");
    let (dirty, file) = (s.dirty.clone(), f.clone());
    let commit =
        tokio::spawn(async move { dirty.commit(&cx(), At { fh: &file.0, open: Some(file.1) }).await });
    settle().await;
    assert_eq!(s.gate.calls("write"), 1);
    assert_eq!(s.gate.upcalls().unsent(&f.0), waiting);
    assert_eq!(state(&s.shown(&f.0).await), state(&seen), "while the time is on its way");
    s.gate.open_all();
    commit.await.unwrap().unwrap();
    assert_eq!(s.gate.upcalls().unsent(&f.0), Unsent::Nothing);
}

/// Where the mount maintains the times, stat(2) also sends no bytes of a writer who does not own
/// the file. Where it does not, those bytes are sent first, and other clients see another time.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn delegated_times_need_no_owner() {
    for delegated in [true, false] {
        let s = Why::Delegated.world(env()).await;
        s.gate.delegate_times(delegated);
        let f = s.open("f").await;
        s.close(&f).await.unwrap();
        let given = SetAttr { uid: Some(77), ..SetAttr::default() };
        s.gate.below().setattr(&cx(), At { fh: &f.0, open: None }, &given).await.unwrap();
        let f = s.open("f").await;
        s.write(&f, 0, pattern(1, 50)).await.unwrap();
        let before = s.gate.upcalls().unsent(&f.0);
        let mtime = match before {
            Unsent::Bytes { size_bytes: 50, mtime } => mtime,
            other => panic!("{other:?}"),
        };
        assert_eq!(mtime.is_some(), delegated);
        let seen = s.shown(&f.0).await;
        assert_eq!(s.gate.calls("write"), usize::from(!delegated));
        assert!(mtime.is_none_or(|mtime| mtime == seen.mtime), "another client's question fixes the time");
        s.commit(&f).await.unwrap();
        assert_eq!(s.shown(&f.0).await.mtime, seen.mtime);
        let times = s.gate.write_times();
        assert_eq!(times, if delegated { vec![seen.mtime] } else { vec![] });
    }
}

#[derive(Debug, Clone)]
enum Op {
    Write(usize, u64, u64),
    Stat,
    /// A question of another client to the holder of the delegation.
    Ask,
    Times(u32),
    Resize(u64),
    Mode(u32),
    Rename,
    Link,
    Commit(usize),
    Reopen(usize),
    Wait(u64),
    Recall,
    Crash,
}

fn op() -> impl Strategy<Value = Op> {
    let open = 0..2usize;
    prop_oneof![
        8 => (open.clone(), 0..300u64, 1..100u64).prop_map(|(open, at, len)| Op::Write(open, at, len)),
        8 => Just(Op::Stat),
        4 => Just(Op::Ask),
        1 => (0..9u32).prop_map(Op::Times),
        1 => (0..300u64).prop_map(Op::Resize),
        1 => (0..4u32).prop_map(|bits| Op::Mode(0o600 | bits)),
        1 => Just(Op::Rename),
        1 => Just(Op::Link),
        2 => open.clone().prop_map(Op::Commit),
        2 => open.prop_map(Op::Reopen),
        3 => prop_oneof![0..20u64, 0..8000u64].prop_map(Op::Wait),
        2 => Just(Op::Recall),
        1 => Just(Op::Crash),
    ]
}

struct Run {
    s: World,
    env: Env,
    why: Why,
    opens: Vec<(Fh, OpenId)>,
    names: u32,
    file: Vec<u8>,
    /// The last state that a program saw, and the parts that a program changed since: data, and
    /// anything.
    seen: Attr,
    modified: bool,
    changed: bool,
    /// The modification time was set by a program and lies in the past.
    set: bool,
    /// The last modification time that another client saw.
    others: Time,
    /// A program wrote over bytes of the file.
    overwrote: bool,
    /// A replay kept the bytes as a conflict.
    is_conflict: bool,
}

impl Run {
    async fn new(why: Why, seed: u64) -> Self {
        let env = env();
        let s = why.world(env.clone()).await;
        let (mut x, most) = (seed | 1, if why.is_journaled() { 1 } else { 1023 });
        s.gate.decide(Box::new(move |_, len| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let after = Duration::from_millis(if x & 1 == 0 { 0 } else { x >> 20 & most });
            match x >> 40 & 7 {
                // A replay does not explain a part of a WRITE.
                0 if !why.is_journaled() => Verdict::Short(after, 1 + (x >> 45) % len),
                _ => Verdict::Pass(after),
            }
        }));
        let opens = vec![s.open("f0").await, s.open("f0").await];
        let seen = s.shown(&opens[0].0).await;
        Self {
            s,
            env,
            why,
            opens,
            names: 0,
            file: Vec::new(),
            seen,
            modified: false,
            changed: false,
            set: false,
            others: Time::default(),
            overwrote: false,
            is_conflict: false,
        }
    }

    fn change(&mut self, modified: bool) {
        self.changed = true;
        self.modified |= modified;
        self.set &= !modified;
    }

    /// stat(2) shows the same times as before, unless a program changed the file.
    async fn stat(&mut self) {
        let flushes = self.s.dirty.stats().flushes_order;
        let now = self.s.shown(&self.opens[0].0).await;
        assert_eq!(now.size_bytes as usize, self.file.len());
        let before = &self.seen;
        assert!(self.modified || now.mtime == before.mtime, "{:?} {:?}", now.mtime, before.mtime);
        assert!(!self.modified || self.set || now.mtime > before.mtime, "{:?} {:?}", now.mtime, before.mtime);
        assert!(self.changed || now.ctime == before.ctime, "{:?} {:?}", now.ctime, before.ctime);
        assert!(now.ctime >= before.ctime, "{:?} {:?}", now.ctime, before.ctime);
        assert_eq!(self.s.dirty.stats().flushes_order, flushes, "stat sends nothing");
        (self.seen, self.modified, self.changed) = (now, false, false);
    }

    /// Other clients see no time that this mount contradicts later, and their times grow.
    async fn ask(&mut self) {
        let fh = self.opens[0].0.clone();
        let told = match self.s.gate.upcalls().unsent(&fh) {
            Unsent::Nothing => self.s.theirs(&fh).await.mtime,
            Unsent::Bytes { size_bytes, mtime: Some(mtime) } => {
                assert_eq!(size_bytes as usize, self.file.len());
                assert!(self.modified || mtime == self.seen.mtime, "{mtime:?} {:?}", self.seen.mtime);
                assert!(!self.modified || self.set || mtime > self.seen.mtime);
                (self.seen.mtime, self.modified) = (mtime, false);
                // The answer does not wait for the journal. A crash before makes the time later.
                if let Some(file) = self.s.dirty.known(&fh) {
                    self.s.dirty.noted(&file).await;
                }
                mtime
            }
            // The file is recalled.
            Unsent::Bytes { mtime: None, .. } | Unsent::More => return,
        };
        assert!(told >= self.others, "{told:?} {:?}", self.others);
        self.others = told;
    }

    /// The server has the bytes, and the modification time that a program saw.
    async fn same_below(&self) {
        let fh = &self.opens[0].0;
        assert_eq!(self.s.below(fh).await, self.file);
        let theirs = self.s.theirs(fh).await;
        if self.modified {
            assert!(self.set || theirs.mtime >= self.seen.mtime)
        } else {
            assert_eq!(theirs.mtime, self.seen.mtime)
        }
    }

    async fn set(&mut self, set: SetAttr) {
        let f = &self.opens[0];
        self.s.dirty.setattr(&cx(), At { fh: &f.0, open: Some(f.1) }, &set).await.unwrap();
    }

    async fn step(&mut self, op: Op) {
        match op {
            Op::Write(open, at, len) => {
                let data = pattern(at as u8, len);
                self.s.write(&self.opens[open], at, data.clone()).await.unwrap();
                let end = (at + len) as usize;
                self.overwrote |= (at as usize) < self.file.len();
                self.file.resize(self.file.len().max(end), 0);
                self.file[at as usize..end].copy_from_slice(&data);
                self.change(true);
            }
            Op::Stat => self.stat().await,
            Op::Ask if self.why.is_delegated() => self.ask().await,
            Op::Ask => {}
            Op::Times(secs) => {
                let mtime = Some(SetTime::To(Time { secs: secs.into(), nanos: 7 }));
                self.set(SetAttr { mtime, ..SetAttr::default() }).await;
                self.change(true);
                self.set = true;
                self.stat().await;
                assert_eq!(self.seen.mtime, Time { secs: secs.into(), nanos: 7 });
                (self.set, self.others) = (false, Time::default());
            }
            Op::Resize(size) => {
                self.set(SetAttr { size_bytes: Some(size), ..SetAttr::default() }).await;
                self.file.resize(size as usize, 0);
                self.change(true);
            }
            Op::Mode(mode) => {
                self.set(super::finish::mode(mode)).await;
                self.change(false);
            }
            Op::Rename => {
                let (from, to) = (format!("f{}", self.names), format!("f{}", self.names + 1));
                let (root, flags) = (&self.s.root, RenameFlags::empty());
                let (from, to) = (name(&from), name(&to));
                self.s.dirty.rename(&cx(), (root, &from), (root, &to), None, flags).await.unwrap();
                self.names += 1;
                self.change(false);
            }
            Op::Link => {
                let (fh, root, other) = (&self.opens[0].0, &self.s.root, name("other"));
                self.s.dirty.link(&cx(), fh, root, &other).await.unwrap();
                self.s.dirty.unlink(&cx(), root, &other, Some(fh)).await.unwrap();
                self.change(false);
            }
            Op::Commit(open) => {
                self.s.commit(&self.opens[open]).await.unwrap();
                if !self.why.is_journaled() {
                    self.same_below().await;
                }
            }
            Op::Reopen(open) => {
                self.s.close(&self.opens[open]).await.unwrap();
                self.opens[open] = self.s.open(&format!("f{}", self.names)).await;
            }
            Op::Wait(ms) => self.s.wait(ms).await,
            Op::Recall => {
                self.s.gate.delegate(false);
                self.s.gate.upcalls().revoke(&self.opens[0].0).await;
                self.same_below().await;
                self.s.gate.delegate(self.why.is_delegated());
            }
            Op::Crash => self.crash().await,
        }
    }

    /// The daemon is killed, and the next one replays the journal.
    async fn crash(&mut self) {
        let World::Journaled(j) = &self.s else { return };
        let left = j.memory.killed().0;
        ["write", "setattr"].into_iter().for_each(|op| j.s.gate.shut(op));
        // WRITEs that are under way arrive.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let server = j.s.gate.server();
        let (outcome, _) = j.crash_with(left, self.why == Why::Exclusive, async |_| {}).await;
        if let [(_, _, reason)] = &outcome.kept[..] {
            // The journal lacks the bytes that an overwrite replaces.
            assert!(self.why == Why::Journal && self.overwrote, "{reason}");
            assert!(reason.contains("do not explain"), "{reason}");
            self.is_conflict = true;
            return;
        }
        self.same_below().await;
        self.s = self.why.world_over(Gate::new(server), self.env.clone()).await;
        // A new file shows that the server gives this user's files to this user.
        let new = self.s.open(&format!("new {}", (self.env.random)())).await;
        self.s.close(&new).await.unwrap();
        let file = format!("f{}", self.names);
        self.opens = vec![self.s.open(&file).await, self.s.open(&file).await];
        // The change time is the server's after a mount.
        self.change(false);
    }

    async fn end(mut self) {
        self.stat().await;
        for f in self.opens.clone() {
            self.s.close(&f).await.unwrap();
        }
        self.s.dirty.sync().await.unwrap();
        self.same_below().await;
        self.stat().await;
        self.s.wait(20_000).await;
        until("no file is held", async || self.s.dirty.holds_no_file()).await;
        self.stat().await;
    }
}

fn play(ops: Vec<Op>, why: usize, seed: u64) {
    ALL[why].runtime().block_on(async {
        let mut run = Run::new(ALL[why], seed).await;
        for op in ops {
            run.step(op).await;
            if run.is_conflict {
                return;
            }
        }
        run.end().await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() })]

    /// Times and length that stat(2) showed stay, whatever sends the bytes, until a program changes
    /// the file.
    /// Promise: 5
    #[test]
    fn seen_times_stay_in_random_histories(ops in vec(op(), 1..40), why in 0..4usize, seed in any::<u64>()) {
        play(ops, why, seed);
    }
}
