//! Attributes are registers: every request sees the value set last, however calls overlap on the
//! way to the server and back.
//!
//! Programs create files as tar(1) and rsync(1) do, over three layers: this layer, the cache below,
//! and a wire with a random delay in both directions. The server's clock is coarse, so that several
//! changes have one time. Other tasks send requests of all kinds at any moment. An answer may be
//! any value that was the last one at some moment of the request.

use super::*;
use hither_cache::metadata::{MetadataCache, MetadataCacheOptions};
use hither_vfs::model::wire::Wire;
use hither_vfs::{Attr, BatchOps, NoLeases, Stop, Validity, WalkRequest};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;

const TICK_MS: u64 = 4;
const MODES: [u32; 4] = [0o600, 0o644, 0o755, 0o640];

/// Random numbers that a seed repeats.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % most
    }
}

/// The successive values of an attribute. A value is set during a range of moments.
#[derive(Debug, Clone)]
struct Register<T>(Vec<(Range<u64>, T)>);

impl<T: PartialEq + std::fmt::Debug + Clone> Register<T> {
    fn begin(&mut self, at: u64, value: T) {
        self.0.push((at..u64::MAX, value));
    }

    fn end(&mut self, at: u64) {
        self.0.last_mut().unwrap().0.end = at;
    }

    /// The values that a request during these moments may find.
    fn seen(&self, asked: &Range<u64>) -> Vec<T> {
        let last = self.0.iter().rposition(|(set, _)| set.end < asked.start).unwrap_or(0);
        let begun = |(set, _): &&(Range<u64>, T)| set.start <= asked.end;
        self.0[last..].iter().filter(begun).map(|(_, value)| value.clone()).collect()
    }
}

#[derive(Debug, Clone)]
struct Story {
    mode: Register<u32>,
    /// `None`: any time that a write left.
    mtime: Register<Option<Time>>,
    size: Register<u64>,
}

struct World {
    dirty: Arc<WriteBack>,
    model: Arc<Model>,
    root: Fh,
    now: Counter,
    files: Mutex<BTreeMap<String, (Fh, Story)>>,
    wrong: Mutex<Vec<String>>,
    over: std::sync::atomic::AtomicBool,
}

impl World {
    async fn new(seed: u64, plain: bool) -> Arc<Self> {
        let began = tokio::time::Instant::now();
        let random = Counter::new(seed);
        let wall = move || {
            let ticks = began.elapsed().as_millis() as u64 / TICK_MS;
            SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000) + Duration::from_millis(ticks * TICK_MS)
        };
        let random = move || random.fetch_add(0x9e37_79b9, Ordering::Relaxed);
        let env = Env { random: Arc::new(random), wall: Arc::new(wall) };
        let model = Arc::new(Model::new(env.clone(), Duration::from_secs(3), u64::MAX));
        let wire = Wire::slow(model.clone(), Some(seed | 1), Duration::from_millis(6));
        *wire.plain.lock() = plain;
        let options = MetadataCacheOptions { coarse_change: plain, ..Default::default() };
        let meta = MetadataCache::new(wire, options, env.clone());
        let dirty = WriteBack::new(meta, Arc::new(NoLeases), env, WriteBackOptions::default());
        let root = dirty.root(&cx()).await.unwrap().fh;
        Arc::new(Self {
            dirty,
            model,
            root,
            now: Counter::new(1),
            files: Mutex::default(),
            wrong: Mutex::default(),
            over: Default::default(),
        })
    }

    fn tick(&self) -> u64 {
        self.now.fetch_add(1, Ordering::SeqCst)
    }

    fn story<R>(&self, file: &str, tell: impl FnOnce(&mut Story) -> R) -> R {
        tell(&mut self.files.lock().get_mut(file).unwrap().1)
    }

    async fn set(&self, file: &str, fh: &Fh, open: Option<OpenId>, set: SetAttr) {
        let at = self.tick();
        let mtime = match set.mtime {
            Some(SetTime::To(time)) => Some(time),
            _ => None,
        };
        self.story(file, |s| {
            set.mode.into_iter().for_each(|mode| s.mode.begin(at, mode));
            mtime.iter().for_each(|time| s.mtime.begin(at, Some(*time)));
        });
        self.dirty.setattr(&cx(), At { fh, open }, &set).await.unwrap();
        let at = self.tick();
        self.story(file, |s| {
            set.mode.iter().for_each(|_| s.mode.end(at));
            mtime.iter().for_each(|_| s.mtime.end(at));
        });
    }

    async fn write(&self, file: &str, fh: &Fh, open: OpenId, at: u64, len: u64) {
        let began = self.tick();
        self.story(file, |s| {
            s.mtime.begin(began, None);
            s.size.begin(began, at + len);
        });
        let bytes = Data::from(pattern(7, len));
        self.dirty.write(&cx(), At { fh, open: Some(open) }, at, bytes, Stability::Unstable).await.unwrap();
        let ended = self.tick();
        self.story(file, |s| {
            s.mtime.end(ended);
            s.size.end(ended);
        });
    }

    /// Creates a file, changes it in random ways, closes it some time after close(2), and continues
    /// by name.
    async fn program(self: &Arc<Self>, file: &str, rng: &mut Dice) {
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let how = OpenHow { create: Create::Exclusive(set), ..how(false) };
        let opened = self.dirty.open(&cx(), PathRef::name(&self.root, &name(file)), &how).await.unwrap();
        let (fh, open) = (opened.node.fh, opened.open);
        let story = Story {
            mode: Register(vec![(0..0, 0o600)]),
            mtime: Register(vec![(0..0, None)]),
            size: Register(vec![(0..0, 0)]),
        };
        self.files.lock().insert(file.to_owned(), (fh.clone(), story));
        let mut len = 0;
        for _ in 0..1 + rng.below(5) {
            let by = (rng.below(10) < 5).then_some(open);
            match rng.below(7) {
                0 | 1 => {
                    let more = 1 + rng.below(5000);
                    self.write(file, &fh, open, len, more).await;
                    len += more;
                }
                2 | 3 => self.set(file, &fh, by, mode(MODES[rng.below(4) as usize])).await,
                4 => self.set(file, &fh, by, times(1 + rng.below(999))).await,
                5 => self.dirty.commit(&cx(), At { fh: &fh, open: Some(open) }).await.unwrap(),
                _ => tokio::time::sleep(Duration::from_micros(rng.below(20_000))).await,
            }
        }
        if rng.below(10) < 7 {
            self.dirty.commit(&cx(), At { fh: &fh, open: Some(open) }).await.unwrap();
        }
        let pause = Duration::from_micros(rng.below(4_000));
        let (this, closed) = (self.clone(), fh.clone());
        let close = tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            this.dirty.close(&cx(), &closed, open).await
        });
        for _ in 0..rng.below(3) {
            match rng.below(3) {
                0 => self.set(file, &fh, None, times(1 + rng.below(999))).await,
                1 => self.set(file, &fh, None, mode(MODES[rng.below(4) as usize])).await,
                _ => tokio::time::sleep(Duration::from_micros(rng.below(20_000))).await,
            }
        }
        close.await.unwrap().unwrap();
        let theirs = self.model.getattr(&cx(), At { fh: &fh, open: None }).await.unwrap().attr;
        self.check(file, &theirs, self.tick()..self.tick(), "at the server");
    }

    fn check(&self, file: &str, attr: &Attr, asked: Range<u64>, how: &str) {
        let story = self.story(file, |s| s.clone());
        let (modes, times) = (story.mode.seen(&asked), story.mtime.seen(&asked));
        let sizes = story.size.seen(&asked);
        let right = modes.contains(&attr.mode)
            && times.iter().any(|t| t.is_none_or(|t| t == attr.mtime))
            && sizes.contains(&attr.size_bytes);
        if !right {
            let shown = (attr.mode, attr.mtime, attr.size_bytes);
            self.wrong
                .lock()
                .push(format!("{file} {how} {asked:?}: {shown:?}, not {modes:?} {times:?} {sizes:?}"));
        }
    }

    /// Sends a request of a random kind.
    async fn ask(&self, rng: &mut Dice) {
        let known: Vec<_> = self.files.lock().iter().map(|(n, (fh, _))| (n.clone(), fh.clone())).collect();
        if known.is_empty() {
            return tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (file, fh) = &known[rng.below(known.len() as u64) as usize];
        let cx = if rng.below(10) < 3 { cx().fresh(tokio::time::Instant::now()) } else { cx() };
        let (n, began) = (name(file), self.tick());
        let at = PathRef::name(&self.root, &n);
        let (how, found): (&str, Vec<(Fh, Attr)>) = match rng.below(6) {
            0 | 1 => {
                let trail = self.dirty.walk(&cx, at, WalkRequest::default()).await.unwrap();
                assert!(matches!(trail.stop, Stop::Complete));
                ("walk", trail.steps.into_iter().map(|n| (n.fh, n.attrs.attr)).collect())
            }
            2 => {
                let attrs = self.dirty.getattr(&cx, At { fh, open: None }).await.unwrap();
                ("getattr", vec![(fh.clone(), attrs.attr)])
            }
            3 => {
                let all: Vec<_> = known.iter().map(|(_, fh)| fh.clone()).collect();
                let attrs = self.dirty.getattr_many(&cx, &all).await.into_iter().map(|a| a.unwrap().attr);
                ("getattr_many", all.into_iter().zip(attrs).collect())
            }
            4 => match self.dirty.peek(&cx, at) {
                Some(trail) => ("peek", trail.steps.into_iter().map(|n| (n.fh, n.attrs.attr)).collect()),
                None => return,
            },
            _ => {
                let page = self.dirty.readdir(&cx, &self.root, 0, [0; 8], 1 << 20, true).await.unwrap();
                let nodes = page.entries.into_iter().filter_map(|e| e.node);
                let held = nodes.filter(|n| n.attrs.valid != Validity::Once);
                ("readdir", held.map(|n| (n.fh, n.attrs.attr)).collect())
            }
        };
        let ended = self.tick();
        for (fh, attr) in found {
            if let Some((file, _)) = known.iter().find(|(_, known)| *known == fh) {
                self.check(file, &attr, began..ended, how);
            }
        }
    }
}

fn times(secs: u64) -> SetAttr {
    let then = Some(SetTime::To(Time { secs: secs as i64, nanos: 0 }));
    SetAttr { atime: then, mtime: then, ..SetAttr::default() }
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

async fn play(seed: u64) -> Vec<String> {
    let world = World::new(seed, seed.is_multiple_of(2)).await;
    let (mut programs, mut others) = (tokio::task::JoinSet::new(), tokio::task::JoinSet::new());
    for i in 0..3u64 {
        let world = world.clone();
        programs.spawn(async move {
            let mut rng = Dice::new(seed * 8 + i);
            for round in 0..4 {
                world.program(&format!("f{i}-{round}"), &mut rng).await;
            }
        });
    }
    for i in 3..7u64 {
        let world = world.clone();
        others.spawn(async move {
            let mut rng = Dice::new(seed * 8 + i);
            while !world.over.load(Ordering::Relaxed) {
                world.ask(&mut rng).await;
                tokio::time::sleep(Duration::from_micros(rng.below(3_000))).await;
            }
        });
    }
    programs.join_all().await;
    world.over.store(true, Ordering::Relaxed);
    others.join_all().await;
    // All state is dropped with the last request.
    settle().await;
    assert!(world.dirty.holds_no_file(), "{:?}", world.dirty.files.read());
    std::mem::take(&mut *world.wrong.lock())
}

/// In random histories every request sees a value that was set last at some moment of the request.
#[test]
fn requests_see_latest_attributes() {
    for seed in 0..150 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let wrong = runtime.unwrap().block_on(play(seed));
        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
    }
}
