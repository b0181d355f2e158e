//! A connected or connecting origin, and its exports as file systems.
//!
//! This module knows no NFS version and no rights. An [`Origin`] is one client with the layers of a
//! mount. It connects in the background, for as long as that takes. All exports that one line of
//! the configuration names share it. A [`Branch`] is one of them: the same files with another root.

use super::Guard;
use super::absence;
use super::found::{self, Found};
use super::relayed::Relayed;
use crate::daemon::{self, Missed};
use crate::exit::Failure;
use crate::mount::Job;
use crate::source::Source;
use crate::stack::Client;
use async_trait::async_trait;
use bytes::Bytes;
use hither_nfs::Recovery;
use hither_vfs::{
    Access, Attrs, BatchOps, ChangeInfo, Creation, Data, DirPage, Error, Fh, File, FileRange, Finished,
    FsStat, LockConflict, LockKind, LockOwner, LockWait, Made, Moved, Name, Node, OpenHow, OpenId, Opened,
    PathRef, Read, ReadManyResult, Removal, RenameFlags, RequestContext, Result, Seek, SetAttr, Special,
    Stability, Stop, Upcalls, Vfs, WalkRequest, WalkResult, Wrote, XattrMode, losses,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Longest pause between attempts to connect. Clients get their answers soon after the origin
/// returns.
const PAUSE_MAX: Duration = Duration::from_secs(4);
/// Pause after the first failed attempt.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// Interval between two searches for exports.
const SEARCH_EVERY: Duration = Duration::from_secs(30);
/// Longest wait for the root of an export. A listing of the exports must not wait for one origin.
const ROOT_WITHIN: Duration = Duration::from_secs(2);
/// Most calls that wait for one origin to connect. Calls beyond get NFS4ERR_DELAY, so that the
/// memory for calls stays free for other origins.
const WAITING_MAX: usize = 256;

/// The number of the next origin.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// A connected origin.
pub struct Live {
    pub client: Client,
    /// Its files, with checked rights.
    pub files: Arc<dyn Vfs>,
    /// The layers of its mount.
    pub layers: Arc<dyn Vfs>,
}

impl Live {
    fn start(settings: &Settings, relayed: &Arc<Relayed>, client: Client) -> Arc<Self> {
        let (shown, wanted) = (settings.job.source.shown(), &settings.job.wanted);
        tracing::info!("origin {shown} ({})", client.summary());
        let layers = client.layers().vfs;
        layers.subscribe(relayed.clone());
        let away = watch::Sender::new(false);
        let files = Arc::new(Guard::new(layers.clone(), wanted, away.subscribe()));
        let live = Arc::new(Self { client, files, layers });
        if let Some(stale_ok) = settings.stale_ok {
            tokio::spawn(absence::watch_origin(Arc::downgrade(&live), shown, stale_ok, away));
        }
        live
    }
}

/// The mount of an origin.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The job of a mount, without a mount point.
    pub job: Job,
    /// How long cached answers hold beyond their time while the origin is away.
    pub stale_ok: Option<Duration>,
}

/// An origin of a gateway.
pub struct Origin {
    pub job: Job,
    /// Differs between all origins of this process.
    number: u64,
    stale_ok: Option<Duration>,
    live: watch::Sender<Option<Arc<Live>>>,
    /// The delegations that clients have of its files.
    pub(super) relayed: Arc<Relayed>,
    /// The exports that were found last, if the line has a pattern.
    found: watch::Sender<Option<Vec<Found>>>,
    /// Begins the next search now.
    pub again: Arc<Notify>,
    waiting: Semaphore,
    /// The time at which the last wait for a root was given up.
    root_missed: Mutex<Option<Instant>>,
    task: Mutex<Option<AbortHandle>>,
}

impl Origin {
    fn new(settings: Settings) -> Arc<Self> {
        let Settings { job, stale_ok } = settings;
        let (live, waiting) = (watch::Sender::new(None), Semaphore::new(WAITING_MAX));
        let (found, root_missed, task) = (watch::Sender::new(None), Mutex::default(), Mutex::default());
        let (number, again) = (NEXT_NUMBER.fetch_add(1, Ordering::Relaxed), Arc::default());
        let relayed = Arc::default();
        Arc::new(Self { job, number, stale_ok, live, relayed, found, again, waiting, root_missed, task })
    }

    /// A number that changes when unstable bytes of clients may have been lost. It differs from
    /// that of another origin, also of the same server before its line was changed.
    pub fn write_epoch(&self) -> u64 {
        self.number << 32 | losses()
    }

    /// Connects, and tries again for as long as the option `retry` says.
    ///
    /// # Errors
    /// The reason why the origin is not available.
    pub async fn connect(settings: Settings) -> std::result::Result<Arc<Self>, Failure> {
        let client = daemon::connect(&settings.job, &mut daemon::Voice::Terminal, || Ok(())).await?;
        let origin = Self::new(settings);
        origin.set_live(client);
        Ok(origin)
    }

    /// Starts to connect, and tries again until it succeeds. `changed` is told then.
    pub fn start(settings: Settings, changed: Arc<Notify>) -> Arc<Self> {
        let origin = Self::new(settings.clone());
        let (live, relayed) = (origin.live.clone(), origin.relayed.clone());
        let task = tokio::spawn(async move {
            let client = keep_trying(&settings.job).await;
            live.send_replace(Some(Live::start(&settings, &relayed, client)));
            changed.notify_one();
        });
        *origin.task.lock() = Some(task.abort_handle());
        origin
    }

    /// Starts to look for the exports of the origin that `includes` selects, and looks again while
    /// the origin is served. `changed` is told of differences.
    pub fn search(
        settings: Settings,
        includes: impl Fn(&str) -> bool + Send + Sync + 'static,
        changed: Arc<Notify>,
    ) -> Arc<Self> {
        let origin = Self::new(settings);
        let (searched, again) = (Arc::downgrade(&origin), origin.again.clone());
        let task = tokio::spawn(async move {
            let (mut pause, mut said) = (PAUSE_MIN, String::new());
            while let Some(origin) = searched.upgrade() {
                let looked = found::exports(&origin, &includes).await;
                let wait = match looked {
                    Ok(found) => {
                        let count = found.len();
                        let found = Some(found);
                        if origin.found.send_if_modified(|before| replace(before, found)) {
                            tracing::info!("origin {}: {count} exports", origin.job.source.shown());
                            changed.notify_one();
                        }
                        (pause, said) = (PAUSE_MIN, String::new());
                        SEARCH_EVERY
                    }
                    Err(line) => {
                        if line != said {
                            tracing::warn!("origin {}: {line}; trying again", origin.job.source.shown());
                            said = line;
                        }
                        pause = (pause * 2).min(PAUSE_MAX);
                        pause
                    }
                };
                drop(origin);
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = again.notified() => {}
                }
            }
        });
        *origin.task.lock() = Some(task.abort_handle());
        origin
    }

    /// The exports that were found last.
    pub fn found(&self) -> Vec<Found> {
        self.found.borrow().clone().unwrap_or_default()
    }

    /// Returns when the origin is connected, and its exports are found.
    pub async fn settled(&self, is_pattern: bool) {
        self.connected().await;
        if is_pattern {
            // The sender lives as long as this value.
            let _ = self.found.subscribe().wait_for(Option::is_some).await;
        }
    }

    /// Records the connection of a search.
    pub(super) fn set_live(&self, client: Client) -> Arc<Live> {
        let settings = Settings { job: self.job.clone(), stale_ok: self.stale_ok };
        let live = Live::start(&settings, &self.relayed, client);
        self.live.send_replace(Some(live.clone()));
        live
    }

    /// Whether the origin was reached.
    pub fn live(&self) -> Option<Arc<Live>> {
        self.live.borrow().clone()
    }

    /// Returns when the origin is connected.
    pub async fn connected(&self) -> Arc<Live> {
        let mut live = self.live.subscribe();
        // The sender lives as long as this value.
        let found = live.wait_for(Option::is_some).await.ok().and_then(|live| live.clone());
        match found {
            Some(live) => live,
            None => std::future::pending().await,
        }
    }

    /// The files, as soon as the origin is connected. `soft` and `softerr` limit the wait.
    ///
    /// # Errors
    /// `EAGAIN`: too many calls wait. `EIO` and `ETIMEDOUT` as on a mount.
    async fn ready(&self) -> Result<Arc<dyn Vfs>> {
        if let Some(live) = self.live() {
            return Ok(live.files.clone());
        }
        let Ok(_waiting) = self.waiting.try_acquire() else { return Err(Error::new(libc::EAGAIN)) };
        let wanted = &self.job.wanted;
        let errno = match wanted.recovery {
            Recovery::Hard => return Ok(self.connected().await.files.clone()),
            Recovery::Soft => libc::EIO,
            Recovery::Softerr => libc::ETIMEDOUT,
        };
        let within = wanted.timeo * (wanted.retrans + 1);
        let live = tokio::time::timeout(within, self.connected()).await;
        live.map(|live| live.files.clone()).map_err(|_| Error::new(errno))
    }

    /// Waits for the root of an export, not long. Soon after a vain wait it does not wait again, so
    /// that a listing of many exports waits once.
    async fn root_in_time(&self, root: impl Future<Output = Result<Node>>) -> Result<Node> {
        let missed = *self.root_missed.lock();
        let within = match missed {
            Some(at) if at.elapsed() < ROOT_WITHIN => Duration::ZERO,
            _ => ROOT_WITHIN,
        };
        match tokio::time::timeout(within, root).await {
            Ok(found) => {
                *self.root_missed.lock() = None;
                found
            }
            Err(_) => {
                if !within.is_zero() {
                    *self.root_missed.lock() = Some(Instant::now());
                }
                Err(Error::new(libc::EAGAIN))
            }
        }
    }

    /// Sends unstable bytes to the origin, as far as it takes them now.
    pub async fn flush(&self, within: Duration) {
        if let Some(live) = self.live() {
            live.client.flush(within).await;
        }
    }

    /// Recalls the delegations of the gateway's clients. Their files may change as soon as the
    /// origin has its state back.
    pub async fn recall(&self, within: Duration) {
        if tokio::time::timeout(within, self.relayed.close()).await.is_err() {
            tracing::warn!("{}: clients have not returned delegations in time", self.job.source.shown());
        }
    }

    /// Flushes all data and releases all state at the origin.
    pub async fn end(&self, within: Duration) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
        if let Some(live) = self.live() {
            // The failure is logged.
            let _ = daemon::farewell(&live.client, within).await;
        }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

/// Replaces a value by another one. True if they differ.
fn replace<T: PartialEq>(before: &mut T, now: T) -> bool {
    let differs = *before != now;
    *before = now;
    differs
}

/// Attempts to connect until one attempt succeeds. The log has each new reason once.
async fn keep_trying(job: &Job) -> Client {
    let (mut pause, mut said) = (PAUSE_MIN, String::new());
    loop {
        let failure = match daemon::attempt(job).await {
            Ok(client) => return client,
            Err(Missed::Never(failure) | Missed::Now(failure)) => failure,
        };
        if failure.line != said {
            tracing::warn!("origin {}: {}; trying again", job.source.shown(), failure.line);
            said = failure.line;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// The place of an export's root among the files of an origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootAt {
    /// The mounted path.
    Mounted,
    /// Names below the mounted path, which is the root of an NFSv4 server.
    Names(Vec<Name>),
    /// A path that an NFSv3 server exports.
    Exported(String),
}

/// An export of an origin.
pub struct Branch {
    pub origin: Arc<Origin>,
    pub at: RootAt,
    /// The root filehandle of an NFSv3 export, once mountd has given it.
    root: Mutex<Option<Fh>>,
}

impl Branch {
    /// An export of an origin.
    pub fn new(origin: Arc<Origin>, at: RootAt) -> Self {
        Self { origin, at, root: Mutex::default() }
    }

    /// The export as `SERVER:/PATH`.
    pub fn shown(&self) -> String {
        let source = &self.origin.job.source;
        let path = match &self.at {
            RootAt::Mounted => return source.shown(),
            RootAt::Exported(path) => path.clone(),
            RootAt::Names(names) => {
                let names = names.iter().map(|name| name.as_bytes().escape_ascii().to_string());
                format!("/{}", names.collect::<Vec<_>>().join("/"))
            }
        };
        Source { host: source.host.clone(), path }.shown()
    }

    async fn find_root(&self, cx: &RequestContext) -> Result<Node> {
        let files = self.origin.ready().await?;
        let path = match &self.at {
            RootAt::Mounted => return files.root(cx).await,
            RootAt::Exported(path) => return self.exported_root(cx, &*files, path).await,
            RootAt::Names(path) => path,
        };
        let root = files.root(cx).await?;
        let at = PathRef { base: &root.fh, path };
        let found = files.walk(cx, at, WalkRequest::default()).await?;
        match (found.stop, found.steps.into_iter().last()) {
            (Stop::Complete, Some(node)) => Ok(node),
            (Stop::Failed(e), _) => Err(e),
            _ => Err(Error::new(libc::ENOENT)),
        }
    }
}

impl Branch {
    /// The root of an NFSv3 export. mountd is asked once, and again if the handle is stale.
    async fn exported_root(&self, cx: &RequestContext, files: &dyn Vfs, path: &str) -> Result<Node> {
        let known = self.root.lock().clone();
        if let Some(fh) = known {
            match files.getattr(cx, File { fh: &fh, open: None }).await {
                Err(e) if e.errno == libc::ESTALE => {}
                attrs => return Ok(Node { attrs: attrs?, fh }),
            }
        }
        let fh = found::mounted_root(&self.origin.job, path).await?;
        *self.root.lock() = Some(fh.clone());
        let attrs = files.getattr(cx, File { fh: &fh, open: None }).await?;
        Ok(Node { fh, attrs })
    }
}

/// Implements the calls that wait until the origin is connected.
macro_rules! wait_and_pass_on {
    ($($op:ident($($arg:ident: $ty:ty),*) -> $out:ty;)+) => {
        #[async_trait]
        impl Vfs for Branch {
            async fn root(&self, cx: &RequestContext) -> Result<Node> {
                self.origin.root_in_time(self.find_root(cx)).await
            }

            fn peek(&self, cx: &RequestContext, at: PathRef<'_>) -> Option<WalkResult> {
                self.origin.live()?.files.peek(cx, at)
            }

            // The layers of an origin have one subscriber.
            fn subscribe(&self, _upcalls: Arc<dyn Upcalls>) {}

            // Other exports may share the origin.
            async fn shutdown(&self, _cx: &RequestContext) -> Result<()> {
                Ok(())
            }

            $(
                async fn $op(&self, cx: &RequestContext, $($arg: $ty),*) -> Result<$out> {
                    self.origin.ready().await?.$op(cx, $($arg),*).await
                }
            )+
        }
    };
}

wait_and_pass_on! {
    walk(at: PathRef<'_>, want: WalkRequest) -> WalkResult;
    parent(dir: &Fh) -> Node;
    getattr(file: File<'_>) -> Attrs;
    setattr(file: File<'_>, set: &SetAttr) -> Attrs;
    access(fh: &Fh, want: Access) -> Access;
    readlink(fh: &Fh) -> Bytes;
    open(at: PathRef<'_>, how: &OpenHow) -> Opened;
    close(fh: &Fh, open: OpenId) -> ();
    read(file: File<'_>, offset_bytes: u64, len_bytes: u32) -> Read;
    write(file: File<'_>, offset_bytes: u64, data: Data, stability: Stability) -> Wrote;
    finish(file: File<'_>, piece: Option<(u64, Data)>, set: &SetAttr) -> Finished;
    commit(file: File<'_>) -> ();
    create_whole(dir: &Fh, name: &Name, set: &SetAttr, data: Data) -> Made;
    mkdir(dir: &Fh, name: &Name, set: &SetAttr) -> Made;
    mknod(dir: &Fh, name: &Name, what: &Special, set: &SetAttr) -> Made;
    symlink(dir: &Fh, name: &Name, target: &Bytes, set: &SetAttr) -> Made;
    link(fh: &Fh, dir: &Fh, name: &Name) -> Made;
    unlink(dir: &Fh, name: &Name, target: Option<&Fh>) -> ChangeInfo;
    rmdir(dir: &Fh, name: &Name) -> ChangeInfo;
    rename(from: (&Fh, &Name), to: (&Fh, &Name), replaced: Option<&Fh>, flags: RenameFlags) -> Moved;
    readdir(dir: &Fh, cookie: u64, verifier: [u8; 8], max_bytes: u32, nodes: bool) -> DirPage;
    statfs(fh: &Fh) -> FsStat;
    getxattr(fh: &Fh, name: &[u8]) -> Bytes;
    setxattr(fh: &Fh, name: &[u8], value: &Bytes, mode: XattrMode) -> ();
    listxattr(fh: &Fh) -> Vec<Bytes>;
    removexattr(fh: &Fh, name: &[u8]) -> ();
    lock(file: File<'_>, owner: LockOwner, kind: LockKind, range: FileRange, wait: LockWait) -> Option<Attrs>;
    unlock(file: File<'_>, owner: LockOwner, range: FileRange) -> ();
    test_lock(file: File<'_>, owner: LockOwner, kind: LockKind, range: FileRange) -> Option<LockConflict>;
    seek(file: File<'_>, offset_bytes: u64, what: Seek) -> u64;
    allocate(file: File<'_>, range: FileRange) -> ();
    deallocate(file: File<'_>, range: FileRange) -> ();
    copy(from: File<'_>, from_bytes: u64, to: File<'_>, to_bytes: u64, len_bytes: u64) -> u64;
}

/// The same failure for each object of a batch.
fn all_failed<T>(count: usize, e: &Error) -> Vec<Result<T>> {
    (0..count).map(|_| Err(e.clone())).collect()
}

#[async_trait]
impl BatchOps for Branch {
    async fn getattr_many(&self, cx: &RequestContext, objects: &[Fh]) -> Vec<Result<Attrs>> {
        match self.origin.ready().await {
            Ok(files) => files.getattr_many(cx, objects).await,
            Err(e) => all_failed(objects.len(), &e),
        }
    }

    async fn revalidate_many(
        &self,
        cx: &RequestContext,
        objects: &[Fh],
        want: Access,
    ) -> Vec<Result<(Attrs, Access)>> {
        match self.origin.ready().await {
            Ok(files) => files.revalidate_many(cx, objects, want).await,
            Err(e) => all_failed(objects.len(), &e),
        }
    }

    async fn read_many(
        &self,
        cx: &RequestContext,
        files: &[Fh],
        holder: Option<&Fh>,
        max_bytes: u32,
    ) -> ReadManyResult {
        match self.origin.ready().await {
            Ok(origin) => origin.read_many(cx, files, holder, max_bytes).await,
            Err(e) => ReadManyResult { files: all_failed(files.len(), &e), holder: None },
        }
    }

    async fn list_many(
        &self,
        cx: &RequestContext,
        dirs: &[Fh],
        max_bytes: u32,
    ) -> Vec<Result<(Attrs, DirPage)>> {
        match self.origin.ready().await {
            Ok(files) => files.list_many(cx, dirs, max_bytes).await,
            Err(e) => all_failed(dirs.len(), &e),
        }
    }

    async fn create_many(&self, cx: &RequestContext, dir: &Fh, new: &[Creation]) -> Vec<Result<Made>> {
        match self.origin.ready().await {
            Ok(files) => files.create_many(cx, dir, new).await,
            Err(e) => all_failed(new.len(), &e),
        }
    }

    async fn remove_many(&self, cx: &RequestContext, dir: &Fh, gone: &[Removal]) -> Vec<Result<ChangeInfo>> {
        match self.origin.ready().await {
            Ok(files) => files.remove_many(cx, dir, gone).await,
            Err(e) => all_failed(gone.len(), &e),
        }
    }
}
