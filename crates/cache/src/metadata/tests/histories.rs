//! Random histories. Two clients with a cache each run two programs each. A third client has no
//! cache. All use one server behind slow wires. Every answer is compared with the true states over
//! time.
//!
//! The checks for each answered name and attribute:
//! - The answer was true at some moment within the longest validity. For an open under
//!   close-to-open, the moment lies after the start of the open.
//! - The answer is not older than the last change of it by this client that ended before the call.
//! - The absence of a name that no program of this client has requested yet was true within the
//!   last second.

use super::*;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const VALID: Duration = Duration::from_secs(3);
const DELAY: Duration = Duration::from_millis(700);
const DIRS: [&str; 5] = ["", "d", "d/e", "c", "d/b"];
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

#[derive(Debug, Clone)]
enum Op {
    Wait(u16),
    Stat(usize, usize),
    StatAsUser(usize, usize),
    Getattr(usize, usize),
    List(usize),
    /// Lists all directories.
    Traverse,
    Read {
        dir: usize,
        name: usize,
        fresh: bool,
        named: bool,
        pause_ms: u16,
    },
    Write(usize, usize, u8),
    WriteNamed(usize, usize, u8),
    Create(usize, usize),
    Exclusive(usize, usize),
    Mkdir(usize, usize),
    Unlink(usize, usize),
    Rmdir(usize, usize),
    Rename((usize, usize), (usize, usize)),
    Link((usize, usize), (usize, usize)),
    Chmod(usize, usize, bool),
    ChmodDir(usize, bool),
    /// Writes the metadata at any moment, also during other calls.
    Remember,
    /// The client's daemon ends while no call is running. A new daemon begins with the metadata
    /// that was written last.
    Restart,
}

#[derive(Debug, Clone)]
struct History {
    seed: u64,
    memory: usize,
    vague: bool,
    silent: bool,
    prefetch: bool,
    stateless: bool,
    /// The layer below claims to have all bytes.
    near: bool,
    steps: Vec<(usize, Op)>,
}

/// The compared attributes of an object.
type ComparedAttrs = (u64, u64, u32, u32);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Truth {
    names: BTreeMap<Fh, BTreeMap<Name, Fh>>,
    attrs: BTreeMap<Fh, ComparedAttrs>,
    bytes: BTreeMap<Fh, Bytes>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Key {
    Name(Fh, Name),
    Object(Fh),
}

/// All true states, each with its start.
#[derive(Default)]
struct Chronicle {
    truths: Vec<(Instant, Truth)>,
}

tokio::task_local! {
    /// The states that the present call created.
    static MINE: RefCell<Vec<usize>>;
}

fn now<T>(f: impl Future<Output = T>) -> T {
    match pin!(f).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(out) => out,
        Poll::Pending => panic!("the model does not wait"),
    }
}

fn told(attr: &Attr) -> ComparedAttrs {
    (attr.change, attr.size_bytes, attr.mode, attr.nlink)
}

/// The present true state; `before` names files that may still exist without a name.
fn look(model: &Model, top: &Fh, before: Option<&Truth>) -> Truth {
    let (cx, mut truth) = (root_cx(), Truth::default());
    let mut todo: Vec<_> = before.iter().flat_map(|t| t.bytes.keys().cloned()).collect();
    todo.push(top.clone());
    while let Some(fh) = todo.pop() {
        let Ok(attrs) = now(model.getattr(&cx, File { fh: &fh, open: None })) else { continue };
        truth.attrs.insert(fh.clone(), told(&attrs.attr));
        if attrs.attr.kind == FileKind::Directory {
            let page = now(model.readdir(&cx, &fh, 0, [0; 8], 1 << 20, true)).unwrap();
            let names: BTreeMap<_, _> =
                page.entries.into_iter().map(|e| (e.name, e.node.unwrap().fh)).collect();
            todo.extend(names.values().cloned());
            truth.names.insert(fh, names);
        } else if let Ok(read) = now(model.read(&cx, File { fh: &fh, open: None }, 0, 1 << 20)) {
            truth.bytes.insert(fh, read.data.into_bytes());
        }
    }
    truth
}

impl Chronicle {
    fn note(&mut self, truth: Truth) -> Option<usize> {
        if self.truths.last().is_some_and(|(_, last)| *last == truth) {
            return None;
        }
        self.truths.push((Instant::now(), truth));
        Some(self.truths.len() - 1)
    }

    /// The keys that a change affected.
    fn changed(&self, at: usize) -> Vec<Key> {
        let (old, new) = (&self.truths[at - 1].1, &self.truths[at].1);
        let mut keys = Vec::new();
        for fh in old.attrs.keys().chain(new.attrs.keys()) {
            // The end of a removed file with its last close is no change of it.
            let removed = old.attrs.get(fh).is_some_and(|a| a.3 == 0) && !new.attrs.contains_key(fh);
            if old.attrs.get(fh) != new.attrs.get(fh) && !removed {
                keys.push(Key::Object(fh.clone()));
            }
        }
        for fh in old.names.keys().chain(new.names.keys()) {
            let none = BTreeMap::new();
            let (a, b) = (old.names.get(fh).unwrap_or(&none), new.names.get(fh).unwrap_or(&none));
            let differs = a.keys().chain(b.keys()).filter(|n| a.get(*n) != b.get(*n));
            keys.extend(differs.map(|n| Key::Name(fh.clone(), n.clone())));
        }
        keys
    }
}

/// The start of a call, and the oldest state that it may return.
struct Call {
    began: Instant,
    client: usize,
    floors: BTreeMap<Key, usize>,
}

impl Call {
    /// Oldest moment at which the absence of a never requested name must have been true.
    fn unasked(&self) -> Instant {
        self.began.checked_sub(INFERRED_MAX).unwrap_or(self.began)
    }
}

struct World {
    chronicle: Arc<Mutex<Chronicle>>,
    /// Per client: the oldest state of each fact that it may return.
    floors: Mutex<[BTreeMap<Key, usize>; 3]>,
    /// Per client: names that its programs requested, made or removed.
    asked: Mutex<[BTreeSet<(Fh, Name)>; 3]>,
    top: Fh,
}

impl World {
    fn begin(&self, client: usize) -> Call {
        Call { began: Instant::now(), client, floors: self.floors.lock()[client].clone() }
    }

    /// A program requested or changed a name. Returns whether it is the first time.
    fn ask(&self, client: usize, dir: &Fh, name: &Name) -> bool {
        self.asked.lock()[client].insert((dir.clone(), name.clone()))
    }

    fn end(&self, client: usize, mine: &[usize]) {
        let chronicle = self.chronicle.lock();
        let mut floors = self.floors.lock();
        for &at in mine.iter().filter(|at| **at > 0) {
            for key in chronicle.changed(at) {
                let floor = floors[client].entry(key).or_default();
                *floor = (*floor).max(at);
            }
        }
    }

    /// Fails unless `is` was true at a moment from `since` on, in a state that the caller may
    /// return.
    fn check(&self, call: &Call, since: Instant, key: &Key, what: &str, is: impl Fn(&Truth) -> bool) {
        let chronicle = self.chronicle.lock();
        let floor = call.floors.get(key).copied().unwrap_or(0);
        let ends = |i: usize| chronicle.truths.get(i + 1).map_or(Instant::now(), |next| next.0);
        let ok = (floor..chronicle.truths.len()).any(|i| ends(i) >= since && is(&chronicle.truths[i].1));
        if !ok {
            let seen: Vec<_> = chronicle
                .truths
                .iter()
                .enumerate()
                .filter(|(_, t)| is(&t.1))
                .map(|(i, t)| (i, t.0, ends(i)))
                .collect();
            panic!(
                "{what}: {key:?}: not true since {since:?} (floor {floor}, now {:?}); it was true at {seen:?}",
                Instant::now()
            );
        }
    }

    fn check_attrs(&self, call: &Call, since: Instant, fh: &Fh, attr: &Attr, what: &str) {
        let told = told(attr);
        let key = Key::Object(fh.clone());
        self.check(call, since, &key, &format!("{what}: {told:?}"), |t| t.attrs.get(fh) == Some(&told));
    }

    fn check_name(&self, call: &Call, since: Instant, dir: &Fh, name: &Name, is: Option<&Fh>, what: &str) {
        let key = Key::Name(dir.clone(), name.clone());
        let what = format!("{what}: {is:?}");
        let same = |t: &Truth| t.names.get(dir).and_then(|names| names.get(name)) == is;
        self.check(call, since, &key, &what, same);
    }

    fn check_trail(&self, call: &Call, since: Instant, path: &[Name], trail: &WalkResult, what: &str) {
        let mut dir = &self.top;
        for (node, name) in trail.steps.iter().zip(path) {
            self.check_name(call, since, dir, name, Some(&node.fh), what);
            self.check_attrs(call, since, &node.fh, &node.attrs.attr, what);
            self.ask(call.client, dir, name);
            dir = &node.fh;
        }
        if let (Stop::Missing(_), Some(name)) = (&trail.stop, path.get(trail.steps.len())) {
            let first = self.ask(call.client, dir, name);
            let since = if first { since.max(call.unasked()) } else { since };
            self.check_name(call, since, dir, name, None, what);
        }
    }
}

/// A client's daemon, and its metadata that would survive the daemon.
struct Machine {
    meta: tokio::sync::RwLock<Option<Arc<MetadataCache>>>,
    saved: Mutex<Vec<Vec<u8>>>,
    wire: Arc<Wire>,
    make: Box<dyn Fn() -> Arc<MetadataCache>>,
}

impl Machine {
    async fn restart(&self) {
        let mut meta = self.meta.write().await;
        if meta.is_some() {
            let new = (self.make)();
            new.restore_snapshot(&self.saved.lock());
            *meta = Some(new);
        }
    }
}

/// A layer that claims to have all bytes.
struct Everything;

impl Near for Everything {
    fn has(&self, _: &Fh) -> bool {
        true
    }

    fn has_all(&self, _: &Fh, _: u64) -> bool {
        true
    }
}

/// A program of a client.
struct Program {
    world: Arc<World>,
    client: usize,
    machine: std::rc::Rc<Machine>,
    vfs: Arc<dyn Vfs>,
}

fn path_of(dir: usize, n: usize) -> Vec<Name> {
    let dirs = DIRS[dir].split('/').filter(|n| !n.is_empty()).map(name);
    dirs.chain([name(NAMES[n])]).collect()
}

impl Program {
    fn oldest(&self, call: &Call) -> Instant {
        call.began.checked_sub(VALID).unwrap_or(call.began)
    }

    /// Looks a path up like the frontend: from memory if possible.
    async fn find(
        &self,
        cx: &RequestContext,
        call: &Call,
        path: &[Name],
        since: Instant,
    ) -> Option<WalkResult> {
        let at = PathRef { base: &self.world.top, path };
        let known = self.vfs.peek(cx, at);
        let what = if known.is_some() { "peek" } else { "walk" };
        let trail = match known {
            Some(trail) => trail,
            None => self.vfs.walk(cx, at, WalkRequest::default()).await.ok()?,
        };
        self.world.check_trail(call, since, path, &trail, what);
        Some(trail)
    }

    async fn node(&self, cx: &RequestContext, call: &Call, dir: usize, n: usize) -> Option<Node> {
        let path = path_of(dir, n);
        let mut trail = self.find(cx, call, &path, self.oldest(call)).await?;
        trail.steps.pop().filter(|_| trail.steps.len() + 1 == path.len())
    }

    async fn dir(&self, cx: &RequestContext, call: &Call, dir: usize) -> Option<Fh> {
        let path: Vec<_> = DIRS[dir].split('/').filter(|n| !n.is_empty()).map(name).collect();
        if path.is_empty() {
            return Some(self.world.top.clone());
        }
        let trail = self.find(cx, call, &path, self.oldest(call)).await?;
        let node = trail.steps.last().filter(|_| trail.steps.len() == path.len())?;
        (node.attrs.attr.kind == FileKind::Directory).then(|| node.fh.clone())
    }

    async fn run(&self, op: &Op) -> Option<()> {
        let (cx, call, v) = (root_cx(), self.world.begin(self.client), &self.vfs);
        match *op {
            Op::Remember => {
                let meta = self.machine.meta.try_read().ok()?.clone()?;
                *self.machine.saved.lock() = meta.take_snapshot(1 << 20);
            }
            Op::Restart => self.machine.restart().await,
            Op::Wait(ms) => tokio::time::sleep(Duration::from_millis(ms.into())).await,
            Op::Stat(d, n) => drop(self.node(&cx, &call, d, n).await?),
            Op::StatAsUser(d, n) => {
                let path = path_of(d, n);
                let trail = self.find(&user(7), &call, &path, self.oldest(&call)).await?;
                self.check_searched(&call, &trail);
            }
            Op::Getattr(d, n) => {
                let node = self.node(&cx, &call, d, n).await?;
                let call = self.world.begin(self.client);
                let attrs = v.getattr(&cx, File { fh: &node.fh, open: None }).await.ok()?;
                self.world.check_attrs(&call, self.oldest(&call), &node.fh, &attrs.attr, "getattr");
            }
            Op::List(d) => self.list(d).await?,
            Op::Traverse => {
                for d in 0..DIRS.len() {
                    self.list(d).await;
                }
            }
            Op::Read { dir, name, fresh, named, pause_ms } => {
                self.read((dir, name), fresh, named, pause_ms).await?
            }
            Op::Write(d, n, byte) => {
                let node = self.node(&cx, &call, d, n).await?;
                let how = OpenHow { access: OpenAccess::WRITE, truncate: byte % 3 == 0, ..READ };
                let opened = v.open(&cx, PathRef::fh(&node.fh), &how).await.ok()?;
                let file = File { fh: &node.fh, open: Some(opened.open) };
                let data = Bytes::from(vec![byte; 1 + usize::from(byte % 7)]);
                let _ = v.write(&cx, file, 0, data.into(), Stability::Unstable).await;
                let _ = v.close(&cx, &node.fh, opened.open).await;
            }
            Op::WriteNamed(d, n, byte) => self.write_named(d, n, byte).await?,
            Op::Create(d, n) | Op::Exclusive(d, n) => {
                let dir = self.dir(&cx, &call, d).await?;
                self.world.ask(self.client, &dir, &name(NAMES[n]));
                let mut how = creating(0o644);
                if matches!(op, Op::Exclusive(..)) {
                    how.create = Create::Exclusive(mode(0o644));
                }
                let opened = v.open(&cx, PathRef::name(&dir, &name(NAMES[n])), &how).await.ok()?;
                let _ = v.close(&cx, &opened.node.fh, opened.open).await;
            }
            Op::Mkdir(d, n) => {
                let dir = self.dir(&cx, &call, d).await?;
                self.world.ask(self.client, &dir, &name(NAMES[n]));
                let _ = v.mkdir(&cx, &dir, &name(NAMES[n]), &mode(0o755)).await;
            }
            Op::Unlink(d, n) => {
                let dir = self.dir(&cx, &call, d).await?;
                self.world.ask(self.client, &dir, &name(NAMES[n]));
                let _ = v.unlink(&cx, &dir, &name(NAMES[n]), None).await;
            }
            Op::Rmdir(d, n) => {
                let dir = self.dir(&cx, &call, d).await?;
                self.world.ask(self.client, &dir, &name(NAMES[n]));
                let _ = v.rmdir(&cx, &dir, &name(NAMES[n])).await;
            }
            Op::Rename(from, to) => {
                let a = self.dir(&cx, &call, from.0).await?;
                let b = self.dir(&cx, &call, to.0).await?;
                let (m, n) = (name(NAMES[from.1]), name(NAMES[to.1]));
                self.world.ask(self.client, &a, &m);
                self.world.ask(self.client, &b, &n);
                let flags =
                    if (from.1 + to.1) % 4 == 3 { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
                let _ = v.rename(&cx, (&a, &m), (&b, &n), None, flags).await;
            }
            Op::Link(from, to) => {
                let node = self.node(&cx, &call, from.0, from.1).await?;
                let dir = self.dir(&cx, &call, to.0).await?;
                self.world.ask(self.client, &dir, &name(NAMES[to.1]));
                let _ = v.link(&cx, &node.fh, &dir, &name(NAMES[to.1])).await;
            }
            Op::Chmod(d, n, open) => {
                let node = self.node(&cx, &call, d, n).await?;
                let set = mode(if open { 0o755 } else { 0o600 });
                let _ = v.setattr(&cx, File { fh: &node.fh, open: None }, &set).await;
            }
            Op::ChmodDir(d, open) => {
                let dir = self.dir(&cx, &call, d).await?;
                let set = mode(if open { 0o755 } else { 0o700 });
                let _ = v.setattr(&cx, File { fh: &dir, open: None }, &set).await;
            }
        }
        Some(())
    }

    /// Only a caller that could search the directory may get a name in it.
    fn check_searched(&self, call: &Call, trail: &WalkResult) {
        let found = trail.steps.len() + usize::from(matches!(trail.stop, Stop::Missing(_)));
        let dirs = std::iter::once(&self.world.top).chain(trail.steps.iter().map(|n| &n.fh));
        for dir in dirs.take(found) {
            let may = |t: &Truth| t.attrs.get(dir).is_some_and(|a| a.2 & 1 != 0);
            self.world.check(call, self.oldest(call), &Key::Object(dir.clone()), "searched", may);
        }
    }

    /// The directory that holds the last name of a path.
    fn parent(&self, trail: &WalkResult, path: &[Name]) -> Fh {
        let above = path.len().checked_sub(2).and_then(|i| trail.steps.get(i));
        above.map_or(&self.world.top, |node| &node.fh).clone()
    }

    /// Opens for writing by a cached name. The opened file must be bound to the name now.
    async fn write_named(&self, d: usize, n: usize, byte: u8) -> Option<()> {
        let (cx, call) = (root_cx(), self.world.begin(self.client));
        let path = path_of(d, n);
        let trail = self.find(&cx, &call, &path, self.oldest(&call)).await?;
        let (parent, last) = (self.parent(&trail, &path), &path[path.len() - 1]);
        tokio::time::sleep(Duration::from_millis(u64::from(byte) * 10)).await;
        let call = self.world.begin(self.client);
        let how = OpenHow { access: OpenAccess::WRITE, truncate: byte.is_multiple_of(3), ..READ };
        let fresh = cx.fresh(call.began);
        let opened = self.vfs.open(&fresh, PathRef::name(&parent, last), &how).await.ok()?;
        let fh = &opened.node.fh;
        self.world.check_name(&call, call.began, &parent, last, Some(fh), "open by name for writing");
        let file = File { fh, open: Some(opened.open) };
        let data = Bytes::from(vec![byte; 1 + usize::from(byte % 7)]);
        let _ = self.vfs.write(&cx, file, 0, data.into(), Stability::Unstable).await;
        let _ = self.vfs.close(&cx, fh, opened.open).await;
        Some(())
    }

    async fn list(&self, d: usize) -> Option<()> {
        let (cx, call) = (root_cx(), self.world.begin(self.client));
        let dir = self.dir(&cx, &call, d).await?;
        let call = self.world.begin(self.client);
        let (mut found, mut cookie, mut verifier) = (BTreeMap::new(), 0, [0; 8]);
        loop {
            let page = self.vfs.readdir(&cx, &dir, cookie, verifier, 400, true).await.ok()?;
            cookie = page.entries.last().map_or(cookie, |e| e.cookie);
            verifier = page.verifier;
            // A name that is removed and made again between two pages can be in both.
            let mut names = BTreeSet::new();
            for entry in page.entries {
                let node = entry.node.unwrap();
                self.world.check_attrs(&call, self.oldest(&call), &node.fh, &node.attrs.attr, "entry");
                assert!(names.insert(entry.name.clone()), "{:?} came twice in a page", entry.name);
                found.insert(entry.name, node.fh);
            }
            if page.eof {
                break;
            }
        }
        // A listing of several pages may show each name as it was at any moment of the listing.
        for n in NAMES.map(name) {
            self.world.check_name(&call, self.oldest(&call), &dir, &n, found.get(&n), "listing");
        }
        Some(())
    }

    async fn read(&self, (dir, n): (usize, usize), fresh: bool, named: bool, pause_ms: u16) -> Option<()> {
        let (mut cx, call) = (root_cx(), self.world.begin(self.client));
        let mut since = self.oldest(&call);
        if fresh {
            cx = cx.fresh(call.began);
            since = call.began;
        }
        let path = path_of(dir, n);
        let trail = self.find(&cx, &call, &path, since).await?;
        let mut fh = trail.steps.get(path.len() - 1)?.fh.clone();
        let opened = if named {
            // As with a name in the kernel's cache: the open has no look-up before it.
            let (parent, last) = (self.parent(&trail, &path), &path[path.len() - 1]);
            let opened = self.vfs.open(&cx, PathRef::name(&parent, last), &READ).await.ok()?;
            fh = opened.node.fh.clone();
            self.world.check_name(&call, since, &parent, last, Some(&fh), "open by name");
            opened
        } else {
            self.vfs.open(&cx, PathRef::fh(&fh), &READ).await.ok()?
        };
        self.world.check_attrs(&call, since, &fh, &opened.node.attrs.attr, "open");
        let key = Key::Object(fh.clone());
        if let Some(first) = &opened.first {
            let bytes = first.data.clone().into_bytes();
            let so = |t: &Truth| t.bytes.get(&fh).is_some_and(|b| b.starts_with(&bytes));
            self.world.check(&call, since, &key, &format!("first bytes {bytes:?}"), so);
        }
        tokio::time::sleep(Duration::from_millis(pause_ms.into())).await;
        let again = self.world.begin(self.client);
        let file = File { fh: &fh, open: Some(opened.open) };
        if let Ok(read) = self.vfs.read(&root_cx(), file, 0, 100).await {
            let bytes = read.data.into_bytes();
            let since = since.max(self.oldest(&again));
            let so = |t: &Truth| t.bytes.get(&fh) == Some(&bytes);
            self.world.check(&again, since, &key, &format!("read {bytes:?}"), so);
        }
        let _ = self.vfs.close(&root_cx(), &fh, opened.open).await;
        Some(())
    }
}

async fn play(history: History) {
    let model = Arc::new(Model::new(env(), VALID, 1 << 30));
    let top = model.root(&root_cx()).await.unwrap().fh;
    let d = make_dir(&*model, &root_cx(), &top, "d").await;
    for (dir, name) in [(&d, "e"), (&top, "c"), (&d, "b")] {
        make_dir(&*model, &root_cx(), dir, name).await;
    }
    let chronicle: Arc<Mutex<Chronicle>> = Arc::default();
    chronicle.lock().note(look(&model, &top, None));
    tokio::time::advance(VALID * 2).await;
    let world = Arc::new(World {
        chronicle: chronicle.clone(),
        floors: Mutex::default(),
        asked: Mutex::default(),
        top: top.clone(),
    });
    let mut clients: Vec<std::rc::Rc<Machine>> = Vec::new();
    for client in 0..3 {
        let seed = Some(history.seed.wrapping_add(client).max(1));
        let wire = Wire::slow(model.clone(), seed, DELAY);
        *wire.vague.lock() = history.vague;
        *wire.silent.lock() = history.silent;
        *wire.blind.lock() = history.stateless;
        let (model, top, chronicle) = (model.clone(), top.clone(), chronicle.clone());
        let _ = wire.answered.set(Box::new(move || {
            let mut chronicle = chronicle.lock();
            let truth = look(&model, &top, chronicle.truths.last().map(|(_, t)| t));
            if let Some(at) = chronicle.note(truth) {
                let _ = MINE.try_with(|mine| mine.borrow_mut().push(at));
            }
        }));
        let prefetch = if history.prefetch { Prefetch::Small } else { Prefetch::Off };
        let options = MetadataCacheOptions {
            memory_bytes: history.memory,
            prefetch,
            stateless_opens: history.stateless,
            fresh_opens: !history.near,
            ..options()
        };
        let (near, below) = (history.near, wire.clone());
        let make = Box::new(move || {
            let meta = MetadataCache::new(below.clone(), options.clone(), env());
            if near {
                meta.keeper(Arc::new(Everything));
            }
            meta
        });
        let meta = tokio::sync::RwLock::new((client < 2).then(&make));
        clients.push(std::rc::Rc::new(Machine { meta, saved: Mutex::default(), wire, make }));
    }
    let programs = (0..5).map(|program| {
        let client = [0, 0, 1, 1, 2][program];
        let (world, machine) = (world.clone(), clients[client].clone());
        let ops: Vec<_> =
            history.steps.iter().filter(|(who, _)| *who == program).map(|(_, op)| op.clone()).collect();
        async move {
            for op in ops {
                let daemon = machine.meta.read().await;
                let known = daemon.clone().map(|meta| meta as Arc<dyn Vfs>);
                let vfs = known.unwrap_or_else(|| machine.wire.clone());
                let me = Program { world: world.clone(), client, machine: machine.clone(), vfs };
                // No call reaches a daemon that ends.
                let _daemon = (!matches!(op, Op::Restart)).then_some(daemon);
                MINE.scope(RefCell::default(), async {
                    me.run(&op).await;
                    MINE.with(|mine| me.world.end(me.client, &mine.borrow()));
                })
                .await;
            }
        }
    });
    let mut running = tokio::task::JoinSet::new();
    programs.for_each(|program| drop(running.spawn_local(program)));
    while let Some(done) = running.join_next().await {
        if let Err(e) = done {
            std::panic::resume_unwind(e.into_panic());
        }
    }
    assert_eq!(model.open_count(), 0, "every open was closed");
}

fn op() -> impl Strategy<Value = Op> {
    let (d, n) = (0..DIRS.len(), 0..NAMES.len());
    let at = (d.clone(), n.clone());
    prop_oneof![
        7 => (0..4000u16).prop_map(Op::Wait),
        6 => at.clone().prop_map(|(d, n)| Op::Stat(d, n)),
        2 => at.clone().prop_map(|(d, n)| Op::StatAsUser(d, n)),
        2 => at.clone().prop_map(|(d, n)| Op::Getattr(d, n)),
        3 => d.clone().prop_map(Op::List),
        3 => Just(Op::Traverse),
        5 => (d.clone(), n.clone(), any::<bool>(), any::<bool>(), prop_oneof![Just(0), 0..4000u16])
            .prop_map(|(dir, name, fresh, named, pause_ms)| Op::Read { dir, name, fresh, named, pause_ms }),
        3 => (d.clone(), n.clone(), any::<u8>()).prop_map(|(d, n, b)| Op::WriteNamed(d, n, b)),
        3 => (d.clone(), n.clone(), any::<u8>()).prop_map(|(d, n, b)| Op::Write(d, n, b)),
        3 => at.clone().prop_map(|(d, n)| Op::Create(d, n)),
        1 => at.clone().prop_map(|(d, n)| Op::Exclusive(d, n)),
        2 => at.clone().prop_map(|(d, n)| Op::Mkdir(d, n)),
        2 => at.clone().prop_map(|(d, n)| Op::Unlink(d, n)),
        1 => at.clone().prop_map(|(d, n)| Op::Rmdir(d, n)),
        2 => (at.clone(), at.clone()).prop_map(|(a, b)| Op::Rename(a, b)),
        1 => (at.clone(), at.clone()).prop_map(|(a, b)| Op::Link(a, b)),
        1 => (d.clone(), n.clone(), any::<bool>()).prop_map(|(d, n, o)| Op::Chmod(d, n, o)),
        1 => (d, any::<bool>()).prop_map(|(d, o)| Op::ChmodDir(d, o)),
        2 => Just(Op::Remember),
        2 => Just(Op::Restart),
    ]
}

fn history() -> impl Strategy<Value = History> {
    let memory = prop_oneof![4 => Just(1usize << 20), 1 => Just(1500usize)];
    let flags = any::<(bool, bool, bool, bool, bool)>();
    (any::<u64>(), memory, flags, prop::collection::vec((0..5usize, op()), 5..60)).prop_map(
        |(seed, memory, (vague, silent, prefetch, stateless, near), steps)| History {
            seed,
            memory,
            vague,
            silent,
            prefetch,
            stateless,
            near,
            steps,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("HITHER_HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(2000),
        max_shrink_iters: 3000,
        failure_persistence: None,
        ..Default::default()
    })]

    /// Every answer in a random history of several clients was true at a moment that its validity
    /// allows.
    /// Promise: 7, 7', 11b
    #[test]
    fn random_histories_give_true_answers(history in history()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, play(history));
    }
}
