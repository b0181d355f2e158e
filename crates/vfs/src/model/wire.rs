//! A layer for tests that counts the calls to the layer below. It can delay each call and each
//! reply, like a network.

use crate::*;
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The simulated network between a layer and the server.
pub struct Wire {
    below: Arc<dyn Vfs>,
    calls: Mutex<BTreeMap<&'static str, usize>>,
    /// File data in replies to opens and reads, in bytes.
    pub data_bytes: AtomicU64,
    /// State of the random numbers for delays; `None`: no delays.
    random: Mutex<Option<u64>>,
    most: Duration,
    /// The time since which files are under a lease. Answers to earlier requests are not under a
    /// lease.
    lease: Mutex<Option<tokio::time::Instant>>,
    /// Whether directories are also under a lease.
    pub directories: Mutex<bool>,
    /// Only requests for the object itself grant a lease. Replies to a create and listings do not.
    pub itself: Mutex<bool>,
    /// Number of opens without a lease before one is granted.
    refused: Mutex<Option<usize>>,
    /// The listings that replies to walks brought.
    pub listings: Mutex<usize>,
    /// The upcalls of the layer above.
    pub upcalls: OnceLock<Arc<dyn Upcalls>>,
    /// Called after the layer below has answered, before the reply is delayed.
    pub answered: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Whether changes of directories are reported as not atomic.
    pub vague: Mutex<bool>,
    /// As with NQNFS: no reply has the directory's attributes after a change.
    pub silent: Mutex<bool>,
    /// Maximum of `change` of directories, as if later changes had the same clock tick.
    pub tick: Mutex<u64>,
    /// As with NFSv3: no reply names the object that a rename moved.
    pub blind: Mutex<bool>,
    /// As with NFSv3: `change` of files is made of ctime, and [`Vfs::finish`] takes a call for each
    /// step.
    pub plain: Mutex<bool>,
    /// Whether requests about many objects find each of them busy.
    pub busy: Mutex<bool>,
}

impl Wire {
    /// A wire without delays.
    pub fn new(below: Arc<dyn Vfs>) -> Arc<Self> {
        Self::slow(below, None, Duration::ZERO)
    }

    /// Calls and replies are delayed by up to `most` each.
    pub fn slow(below: Arc<dyn Vfs>, seed: Option<u64>, most: Duration) -> Arc<Self> {
        Arc::new(Self {
            below,
            calls: Mutex::default(),
            data_bytes: AtomicU64::new(0),
            random: Mutex::new(seed),
            most,
            lease: Mutex::new(None),
            directories: Mutex::new(false),
            itself: Mutex::new(false),
            refused: Mutex::new(None),
            listings: Mutex::new(0),
            upcalls: OnceLock::new(),
            answered: OnceLock::new(),
            vague: Mutex::new(false),
            silent: Mutex::new(false),
            tick: Mutex::new(u64::MAX),
            blind: Mutex::new(false),
            plain: Mutex::new(false),
            busy: Mutex::new(false),
        })
    }

    /// The calls since the previous `take`, by kind: `walk 1, getattr 2`.
    pub fn take(&self) -> String {
        let calls = std::mem::take(&mut *self.calls.lock());
        let all: Vec<_> = calls.iter().map(|(op, n)| format!("{op} {n}")).collect();
        all.join(", ")
    }

    /// Number of calls since the previous `take`.
    pub fn total(&self) -> usize {
        std::mem::take(&mut *self.calls.lock()).values().sum()
    }

    /// Sets whether attributes of files are under a lease from now on, as with delegations.
    pub fn lease(&self, on: bool) {
        *self.lease.lock() = on.then(tokio::time::Instant::now);
    }

    /// Opens grant leases, after this number of opens without one.
    pub fn refuse_leases(&self, opens: usize) {
        *self.refused.lock() = Some(opens);
    }

    fn brought(&self, read: &Read) {
        self.data_bytes.fetch_add(read.data.len() as u64, Ordering::Relaxed);
    }

    fn opened(&self, asked: tokio::time::Instant) {
        match &mut *self.refused.lock() {
            Some(0) => *self.lease.lock() = Some(asked),
            Some(opens) => *opens -= 1,
            None => {}
        }
    }

    fn leased(&self, attrs: &mut Attrs) {
        let may = match attrs.attr.kind {
            FileKind::Regular => true,
            FileKind::Directory => *self.directories.lock(),
            _ => false,
        };
        if may && self.lease.lock().is_some_and(|since| attrs.asked >= since) {
            attrs.valid = Validity::Lease;
        }
    }

    fn stamp_by_the_way(&self) -> fn(&Wire, &mut Attrs, tokio::time::Instant) {
        if *self.itself.lock() { stamp_without_lease } else { stamp }
    }

    async fn pass(&self, op: &'static str) {
        *self.calls.lock().entry(op).or_default() += 1;
        self.travel().await;
    }

    async fn travel(&self) {
        let nanos = {
            let mut random = self.random.lock();
            let Some(x) = random.as_mut() else { return };
            *x ^= *x << 13;
            *x ^= *x >> 7;
            *x ^= *x << 17;
            *x % (self.most.as_nanos() as u64 + 1)
        };
        tokio::time::sleep(Duration::from_nanos(nanos)).await;
    }

    fn dir(&self, change: &mut ChangeInfo) {
        if *self.vague.lock() {
            change.atomic = false;
        }
        if let Some(attrs) = &mut change.attrs {
            self.leased(attrs);
        }
        if *self.silent.lock() {
            *change = ChangeInfo::default();
        }
        change.after = change.after.min(*self.tick.lock());
        change.before = change.before.min(*self.tick.lock());
    }
}

macro_rules! pass_on {
    ($face:ident { $($rest:tt)* } $(fn $op:ident($($arg:ident: $ty:ty),*) -> $out:ty $(, $fix:expr)?;)*) => {
        #[async_trait]
        impl $face for Wire {
            $(async fn $op(&self, cx: &RequestContext, $($arg: $ty),*) -> $out {
                let asked = tokio::time::Instant::now();
                self.pass(stringify!($op)).await;
                #[allow(unused_mut)]
                let mut out = self.below.$op(cx, $($arg),*).await;
                $(
                    let fix: fn(&Wire, &mut $out, tokio::time::Instant) = $fix;
                    fix(self, &mut out, asked);
                )?
                let _ = asked;
                if let Some(answered) = self.answered.get() {
                    answered();
                }
                self.travel().await;
                out
            })*

            $($rest)*
        }
    };
}

/// Sets `asked` of attributes to the time of the request. Their validity starts at that time.
fn stamp(w: &Wire, attrs: &mut Attrs, asked: tokio::time::Instant) {
    stamp_without_lease(w, attrs, asked);
    w.leased(attrs);
}

fn stamp_without_lease(w: &Wire, attrs: &mut Attrs, asked: tokio::time::Instant) {
    if let Validity::Until(end) = attrs.valid {
        attrs.valid = Validity::Until(asked + end.saturating_duration_since(attrs.asked));
    }
    attrs.asked = asked;
    if *w.plain.lock() && attrs.attr.kind == FileKind::Regular {
        let Time { secs, nanos } = attrs.attr.ctime;
        attrs.attr.change = secs as u64 * 1_000_000_000 + u64::from(nanos);
    }
    if attrs.attr.kind == FileKind::Directory {
        attrs.attr.change = attrs.attr.change.min(*w.tick.lock());
    }
}

fn page(w: &Wire, page: &mut DirPage, asked: tokio::time::Instant) {
    let stamp = w.stamp_by_the_way();
    page.entries.iter_mut().filter_map(|e| e.node.as_mut()).for_each(|n| stamp(w, &mut n.attrs, asked));
}

fn made(w: &Wire, out: &mut Result<Made>, asked: tokio::time::Instant) {
    if let Ok(made) = out {
        w.stamp_by_the_way()(w, &mut made.node.attrs, asked);
        w.dir(&mut made.dir);
    }
}

fn trail(w: &Wire, out: &mut Result<WalkResult>, asked: tokio::time::Instant) {
    let Ok(trail) = out else { return };
    trail.steps.iter_mut().for_each(|n| stamp(w, &mut n.attrs, asked));
    if let Some(listing) = &mut trail.along.listing {
        *w.listings.lock() += 1;
        page(w, listing, asked);
    }
    if let Some(base) = &mut trail.along.base {
        stamp(w, base, asked);
    }
    if let Stop::Missing(Validity::Until(end)) = &mut trail.stop {
        let held = end.saturating_duration_since(tokio::time::Instant::now());
        *end = asked + held;
    }
}

pass_on! {
    Vfs {
        async fn finish(
            &self, cx: &RequestContext, file: File<'_>, piece: Option<(u64, Data)>, set: &SetAttr,
        ) -> Result<Finished> {
            if *self.plain.lock() {
                return finish_in_steps(self, cx, file, piece, set).await;
            }
            let asked = tokio::time::Instant::now();
            self.pass("finish").await;
            let mut out = self.below.finish(cx, file, piece, set).await;
            if let Ok(Finished { wrote: Wrote { attrs: Some(a), .. }, .. }) = &mut out {
                stamp(self, a, asked);
            }
            if let Some(answered) = self.answered.get() {
                answered();
            }
            self.travel().await;
            out
        }

        crate::delegate!(self.below; peek);

        fn subscribe(&self, upcalls: Arc<dyn Upcalls>) {
            let _ = self.upcalls.set(upcalls);
        }
    }
    fn root() -> Result<Node>, |w, out, at| if let Ok(n) = out { stamp(w, &mut n.attrs, at) };
    fn walk(at: PathRef<'_>, want: WalkRequest) -> Result<WalkResult>, trail;
    fn getattr(file: File<'_>) -> Result<Attrs>, |w, out, at| if let Ok(a) = out { stamp(w, a, at) };
    fn setattr(file: File<'_>, set: &SetAttr) -> Result<Attrs>,
        |w, out, at| if let Ok(a) = out { stamp(w, a, at) };
    fn access(fh: &Fh, want: Access) -> Result<Access>;
    fn parent(dir: &Fh) -> Result<Node>,
        |w, out, at| if let Ok(n) = out { stamp(w, &mut n.attrs, at) };
    fn readlink(fh: &Fh) -> Result<Bytes>;
    fn open(at: PathRef<'_>, how: &OpenHow) -> Result<Opened>, |w, out, at| if let Ok(o) = out {
        w.opened(at);
        stamp(w, &mut o.node.attrs, at);
        if let Some(dir) = &mut o.dir {
            w.dir(dir);
        }
        o.first.iter().for_each(|first| w.brought(first));
    };
    fn close(fh: &Fh, open: OpenId) -> Result<()>;
    fn read(file: File<'_>, at: u64, len: u32) -> Result<Read>,
        |w, out, _| if let Ok(read) = out { w.brought(read) };
    fn write(file: File<'_>, at: u64, data: Data, stability: Stability) -> Result<Wrote>,
        |w, out, at| if let Ok(Wrote { attrs: Some(a), .. }) = out { stamp(w, a, at) };
    fn commit(file: File<'_>) -> Result<()>;
    fn create_whole(dir: &Fh, name: &Name, set: &SetAttr, data: Data) -> Result<Made>, made;
    fn mkdir(dir: &Fh, name: &Name, set: &SetAttr) -> Result<Made>, made;
    fn mknod(dir: &Fh, name: &Name, what: &Special, set: &SetAttr) -> Result<Made>, made;
    fn symlink(dir: &Fh, name: &Name, target: &Bytes, set: &SetAttr) -> Result<Made>, made;
    fn link(fh: &Fh, dir: &Fh, name: &Name) -> Result<Made>, made;
    fn unlink(dir: &Fh, name: &Name, target: Option<&Fh>) -> Result<ChangeInfo>,
        |w, out, _| if let Ok(c) = out { w.dir(c) };
    fn rmdir(dir: &Fh, name: &Name) -> Result<ChangeInfo>, |w, out, _| if let Ok(c) = out { w.dir(c) };
    fn rename(from: (&Fh, &Name), to: (&Fh, &Name), replaced: Option<&Fh>, flags: RenameFlags)
        -> Result<Moved>, |w, out, at| if let Ok(m) = out { moved(w, m, at) };
    fn readdir(dir: &Fh, cookie: u64, verifier: [u8; 8], max: u32, nodes: bool) -> Result<DirPage>,
        |w, out, at| if let Ok(p) = out { page(w, p, at) };
    fn statfs(fh: &Fh) -> Result<FsStat>;
    fn getxattr(fh: &Fh, name: &[u8]) -> Result<Bytes>;
    fn setxattr(fh: &Fh, name: &[u8], value: &Bytes, mode: XattrMode) -> Result<()>;
    fn listxattr(fh: &Fh) -> Result<Vec<Bytes>>;
    fn removexattr(fh: &Fh, name: &[u8]) -> Result<()>;
    fn lock(file: File<'_>, owner: LockOwner, kind: LockKind, range: FileRange, wait: LockWait)
        -> Result<Option<Attrs>>, |w, out, at| if let Ok(Some(a)) = out { stamp(w, a, at) };
    fn unlock(file: File<'_>, owner: LockOwner, range: FileRange) -> Result<()>;
    fn test_lock(file: File<'_>, owner: LockOwner, kind: LockKind, range: FileRange)
        -> Result<Option<LockConflict>>;
    fn seek(file: File<'_>, at: u64, what: Seek) -> Result<u64>;
    fn allocate(file: File<'_>, range: FileRange) -> Result<()>;
    fn deallocate(file: File<'_>, range: FileRange) -> Result<()>;
    fn copy(from: File<'_>, from_at: u64, to: File<'_>, to_at: u64, len: u64) -> Result<u64>;
    fn shutdown() -> Result<()>;
}

pass_on! {
    BatchOps {}
    fn getattr_many(objects: &[Fh]) -> Vec<Result<Attrs>>,
        |w, out, at| {
            let busy = *w.busy.lock();
            out.iter_mut().filter(|_| busy).for_each(|one| *one = Err(Error::new(libc::EAGAIN)));
            out.iter_mut().flatten().for_each(|a| stamp(w, a, at));
        };
    fn revalidate_many(objects: &[Fh], want: Access) -> Vec<Result<(Attrs, Access)>>,
        |w, out, at| out.iter_mut().flatten().for_each(|(a, _)| stamp(w, a, at));
    fn read_many(files: &[Fh], holder: Option<&Fh>, max: u32) -> ReadManyResult, |w, out, at| {
        out.files.iter_mut().flatten().for_each(|f| stamp(w, &mut f.attrs, at));
        out.holder.iter_mut().for_each(|a| stamp(w, a, at));
    };
    fn list_many(dirs: &[Fh], max: u32) -> Vec<Result<(Attrs, DirPage)>>,
        |w, out, at| out.iter_mut().flatten().for_each(|(a, p)| { stamp(w, a, at); page(w, p, at) });
    fn create_many(dir: &Fh, new: &[Creation]) -> Vec<Result<Made>>,
        |w, out, at| out.iter_mut().for_each(|one| made(w, one, at));
    fn remove_many(dir: &Fh, gone: &[Removal]) -> Vec<Result<ChangeInfo>>,
        |w, out, _| out.iter_mut().flatten().for_each(|c| w.dir(c));
}

fn moved(w: &Wire, moved: &mut Moved, asked: tokio::time::Instant) {
    if *w.blind.lock() && moved.from.after == moved.to.before {
        // In one directory: one change, reported twice.
        moved.from.after = moved.to.after;
        moved.to.before = moved.from.before;
    }
    w.dir(&mut moved.from);
    w.dir(&mut moved.to);
    match &mut moved.attrs {
        _ if *w.blind.lock() => (moved.object, moved.attrs) = (None, None),
        Some(attrs) => stamp(w, attrs, asked),
        None => {}
    }
}
