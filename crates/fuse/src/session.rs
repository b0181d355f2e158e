//! A running mount: the threads that read requests, and their shared state.
//!
//! Each thread reads one descriptor of `/dev/fuse`. The future of a request is polled once on that
//! thread. It moves to the runtime only when it has to wait. So threads always return to reading,
//! and an unresponsive server does not delay interrupts and forgets. An answer from the cache of
//! the layer below costs no thread switch.

mod capabilities;
mod names;

use crate::abi::{Header, InitIn, InitOut, MAJOR, MINOR, MINOR_OLDEST, Op, init_flags, notify, opcode};
use crate::call::{Answer, Body, Calls, Undo, errno};
use crate::cred::Creds;
use crate::device::{Buffer, BufferPool, Delivery, Device};
use crate::handles::{Handles, OpenDir, OpenFile, Unread};
use crate::hint::{self, Hints};
use crate::in_use::Removed;
use crate::inode::{Ident, Inode, Inodes};
use crate::kept_open::KeptOpens;
use crate::lease::Leases;
use crate::local::{self, LocalReads};
use crate::lock_waits::LockWaits;
use crate::mount::{Config, Layers};
use crate::ops::{Call, KnownSettings};
use crate::passthrough::Passthrough;
use crate::path_retry::PathRetries;
use crate::recent::Recent;
use crate::stale_retry::{RenameRetries, StaleRetries};
use crate::stats::Stats;
use crate::trace::{Answered, Tracer};
use crate::unprocessed::Unprocessed;
use crate::watch::{self, Watch};
use bytes::Bytes;
use hither_vfs::{
    Asks, Attr, Attrs, ConsistencyDomain, Cred, Error, Fh, File, FileKind, FsStat, LeaseAuthority,
    RequestContext, Result, Vfs,
};
use parking_lot::Mutex;
use std::future::Future;
use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, watch as channel};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// WRITE requests larger than this keep their read buffer. Smaller requests are copied out of it.
const OWN_BUFFER_BYTES: usize = 32 << 10;
/// Maximum number of unused request buffers.
const SPARE_BUFFERS: usize = 16;
/// Interval of checks of interrupted calls.
const SWEEP: Duration = Duration::from_millis(200);
/// Number of sweeps without calls after which sweeping stops until the next call.
const IDLE_SWEEPS: u32 = 25;

/// Maximum wait of the end of a mount for running requests with data, and again for the close of
/// files.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// Polling interval of that wait.
const END_POLL: Duration = Duration::from_millis(5);
/// Most calls at a time that make the kernel drop pages. Each occupies a thread for blocking work
/// and waits for READs and WRITEs of the pages, whose answers may need another such thread.
const PAGE_DROPS_MAX: usize = 64;
/// The same for names. Each waits for calls in its directory, and these wait for page drops.
const NAME_DROPS_MAX: usize = 16;
/// Most threads for blocking work that one mount occupies at a time. A runtime needs more of them:
/// otherwise requests can wait for each other for ever.
pub const BLOCKING_THREADS_MAX: usize =
    PAGE_DROPS_MAX + NAME_DROPS_MAX + local::THREADS_MAX + hint::READERS_MAX;
/// Maximum bytes of unread first bytes of open files.
const UNREAD_MAX_BYTES: usize = 64 << 20;

/// The state of all threads and calls of a mount.
pub(crate) struct Session {
    pub vfs: Arc<dyn Vfs>,
    /// Which data may be cached.
    pub authority: Arc<dyn LeaseAuthority>,
    pub config: Config,
    pub inodes: Inodes,
    pub files: Handles<OpenFile>,
    pub dirs: Handles<OpenDir>,
    pub calls: Calls,
    pub stats: Stats,
    /// Calls with requests to the server.
    pub recent: Recent,
    /// The recorder of opened files.
    pub tracer: Tracer,
    pub creds: Creds,
    pub hints: Hints,
    /// Threads whose open got ESTALE because its name leads to another object.
    pub stale_retries: StaleRetries,
    /// Threads whose open got ESTALE because the kernel has another length.
    pub kept_opens: KeptOpens,
    pub unprocessed: Unprocessed,
    /// Calls that wait for fcntl(2) locks.
    pub lock_waits: LockWaits,
    /// Running closes of opens that the kernel does not know.
    pub closes: TaskTracker,
    /// Renames to a name whose object was seen under another name.
    pub rename_retries: RenameRetries,
    /// Threads that got ESTALE for another call by path.
    pub path_retries: PathRetries,
    pub leases: Leases,
    /// Open files, and the times of their revalidation.
    pub watch: Watch,
    unread: Unread,
    page_drops: Arc<Semaphore>,
    pub(super) name_drops: Arc<Semaphore>,
    pub passthrough: Arc<Passthrough>,
    pub local_reads: LocalReads,
    /// Another frontend has changed the contents of a file.
    pub written_beside: AtomicBool,
    /// Files that were removed while they were open.
    pub removed: Removed,
    /// Number of reads of files that other clients use at the same time.
    pub shared_reads: AtomicU32,
    /// The server has no file capabilities. Known after the first request.
    pub no_capabilities: AtomicBool,
    /// The last attributes of the mount point and of its file system.
    pub last_root: Mutex<Option<Attrs>>,
    pub last_statfs: Mutex<Option<FsStat>>,
    /// The machine's protection settings for sticky directories.
    pub settings: KnownSettings,
    /// Device number of the mount, when known.
    pub number: OnceLock<(u32, u32)>,
    /// Other mounts were found inside this mount.
    mounts_inside: AtomicBool,
    rt: Handle,
    device: Arc<Device>,
    devices: Mutex<Vec<Arc<Device>>>,
    pool: BufferPool,
    minor: AtomicU32,
    flags: AtomicU64,
    readers: AtomicUsize,
    dozing: AtomicBool,
    wake: Notify,
    phase: channel::Sender<Phase>,
}

/// The reason why a thread stops reading requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    /// The mount is gone.
    Ended,
    /// Another thread has replaced it.
    WrittenOff,
}

/// The phase of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before the kernel's INIT request.
    Starting,
    /// Running.
    Running,
    /// The kernel's version is not supported.
    Refused(String),
    /// Unmounted or aborted, and all files are closed.
    Ended,
}

impl Session {
    /// A session over the device that mount(2) has used, with the root and the mount point.
    pub fn new(
        device: Device,
        config: Config,
        layers: Layers,
        (root, at): (&hither_vfs::Node, &Path),
        rt: Handle,
    ) -> Arc<Self> {
        let device = Arc::new(device);
        let last_root = Mutex::new(Some(root.attrs.clone()));
        Arc::new(Self {
            inodes: Inodes::new(root, layers.domains),
            vfs: layers.vfs,
            authority: layers.leases,
            files: Handles::default(),
            dirs: Handles::default(),
            calls: Calls::new(config.interrupt_patience),
            stats: Stats::default(),
            recent: Recent::default(),
            tracer: Tracer::default(),
            creds: Creds::default(),
            leases: Leases::default(),
            watch: Watch::default(),
            unread: Unread::default(),
            page_drops: Arc::new(Semaphore::new(PAGE_DROPS_MAX)),
            name_drops: Arc::new(Semaphore::new(NAME_DROPS_MAX)),
            passthrough: Passthrough::new(device.clone()),
            local_reads: LocalReads::new(config.threads),
            stale_retries: StaleRetries::default(),
            kept_opens: KeptOpens::default(),
            unprocessed: Unprocessed::default(),
            lock_waits: LockWaits::default(),
            closes: TaskTracker::new(),
            rename_retries: RenameRetries::default(),
            path_retries: PathRetries::default(),
            // At any time at least one thread inspects no caller.
            hints: Hints::new(config.hints, (config.threads.max(2) - 1).min(hint::READERS_MAX), at),
            written_beside: AtomicBool::new(false),
            removed: Removed::default(),
            shared_reads: AtomicU32::new(0),
            no_capabilities: AtomicBool::new(false),
            last_root,
            last_statfs: Mutex::new(None),
            settings: Mutex::new(None),
            number: OnceLock::new(),
            mounts_inside: AtomicBool::new(false),
            rt,
            devices: Mutex::new(vec![device.clone()]),
            device,
            pool: BufferPool::new(config.max_io_bytes as usize, SPARE_BUFFERS),
            minor: AtomicU32::new(0),
            flags: AtomicU64::new(0),
            readers: AtomicUsize::new(0),
            dozing: AtomicBool::new(true),
            wake: Notify::new(),
            phase: channel::Sender::new(Phase::Starting),
            config,
        })
    }

    /// The phase of the mount.
    pub fn phase(&self) -> channel::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Starts the first reader, which negotiates with the kernel.
    pub fn start(self: &Arc<Self>) -> std::io::Result<()> {
        self.read_on(self.device.clone())?;
        let session = self.clone();
        self.rt.spawn(async move { session.sweep().await });
        let session = self.clone();
        self.rt.spawn(watch::run(session));
        Ok(())
    }

    /// Starts the other readers, after the negotiation.
    pub fn widen(self: &Arc<Self>) -> std::io::Result<()> {
        for _ in 1..self.config.threads.max(1) {
            let device = Arc::new(self.device.duplicate()?);
            self.devices.lock().push(device.clone());
            self.read_on(device)?;
        }
        Ok(())
    }

    fn read_on(self: &Arc<Self>, device: Arc<Device>) -> std::io::Result<()> {
        let session = self.clone();
        let number = self.readers.fetch_add(1, Ordering::AcqRel);
        let thread = std::thread::Builder::new().name(format!("fuse-{number}"));
        thread
            .spawn(move || {
                let rt = session.rt.clone();
                let _entered = rt.enter();
                hint::reads_requests();
                if session.read_requests(&device) == Leaving::WrittenOff {
                    return;
                }
                if session.readers.fetch_sub(1, Ordering::AcqRel) == 1 {
                    rt.spawn(async move { session.end().await });
                }
            })
            .map(drop)
            .inspect_err(|_| {
                self.readers.fetch_sub(1, Ordering::AcqRel);
            })
    }

    fn read_requests(self: &Arc<Self>, device: &Arc<Device>) -> Leaving {
        let mut spare = None;
        loop {
            let mut buffer = spare.take().unwrap_or_else(|| self.pool.take());
            let len = match device.read(&mut buffer) {
                Ok(len) => len,
                Err(e) => match e.raw_os_error() {
                    // The request was interrupted while it was read, or a signal arrived.
                    Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {
                        spare = Some(buffer);
                        continue;
                    }
                    Some(libc::ENODEV | libc::ECONNABORTED) => return Leaving::Ended,
                    _ => {
                        tracing::error!(error = %e, "cannot read requests from /dev/fuse");
                        return Leaving::Ended;
                    }
                },
            };
            let request;
            (request, spare) = take_request(buffer, len);
            self.dispatch(device, request);
            if hint::written_off() {
                self.devices.lock().retain(|d| !Arc::ptr_eq(d, device));
                return Leaving::WrittenOff;
            }
        }
    }

    /// Replaces readers that are blocked in the read of a program's memory. Requests must be read,
    /// and the end of the mount must not wait for blocked readers.
    fn replace_stuck_readers(self: &Arc<Self>) {
        for _ in 0..self.hints.write_off() {
            tracing::warn!("the memory of a program cannot be read: path hints of it are not used");
            let begun = self.device.duplicate().and_then(|device| {
                let device = Arc::new(device);
                self.devices.lock().push(device.clone());
                self.read_on(device)
            });
            if let Err(error) = begun {
                tracing::error!(%error, "cannot start a thread that reads requests");
            }
            self.readers.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn dispatch(self: &Arc<Self>, device: &Arc<Device>, request: Bytes) {
        let (head, body) = match Header::parse(&request) {
            Ok(parts) => parts,
            Err(_) => {
                tracing::error!(bytes = request.len(), "a malformed request from the kernel");
                return;
            }
        };
        self.stats.began(head.opcode);
        let ext = self.flags.load(Ordering::Relaxed) & init_flags::SETXATTR_EXT != 0;
        let op = match Op::parse(head.opcode, body, ext) {
            Ok(op) => op,
            Err(errno) => {
                if !matches!(head.opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT) {
                    let _ = device.reply(head.unique, errno, &[]);
                }
                return;
            }
        };
        match op {
            Op::Forget { count } => self.forget(head.nodeid, count),
            Op::BatchForget { list } => list.iter().for_each(|&(id, count)| self.forget(id, count)),
            Op::Interrupt { unique } => self.interrupt(head.unique, unique),
            Op::Init(offer) => self.greet(device, head.unique, offer),
            op => self.begin(device, head, op),
        }
    }

    /// Handles an interrupt. One that overtakes its request is answered with EAGAIN, and the kernel
    /// repeats it until the request is known. The descriptor of the request is not known either.
    /// Other descriptors ignore the answer.
    fn interrupt(&self, own: u64, target: u64) {
        if !self.calls.interrupted(target) {
            for device in self.devices.lock().iter() {
                let _ = device.reply(own, libc::EAGAIN, &[]);
            }
        }
    }

    fn begin(self: &Arc<Self>, device: &Arc<Device>, head: Header, op: Op) {
        let pending = self.calls.begin(&head, device);
        self.unprocessed.next_request(head.tid);
        if self.dozing.load(Ordering::Relaxed) && self.dozing.swap(false, Ordering::AcqRel) {
            self.wake.notify_one();
        }
        let call = Call::new(self.clone(), head, pending, &op);
        let mut work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            let result = call.serve(op).await;
            call.session.clone().finish(&call, result).await;
        });
        // The first poll. The runtime polls a pending future again at once, so the no-op waker
        // loses no wake-up.
        let polled =
            catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut Context::from_waker(Waker::noop()))));
        if let Ok(Poll::Pending) = polled {
            self.rt.spawn(work);
        }
    }

    fn trace(&self, call: &Call, result: &Result<Answer>) {
        let (from, len) = call.range;
        let done = match result {
            Ok(Answer { body: Body::Data(data), .. }) => len.min(data.len() as u64),
            Ok(_) => len,
            Err(_) => 0,
        };
        let answered = Answered {
            tid: call.head.tid,
            started: call.pending.started,
            op: opcode::name(call.head.opcode),
            object: call.head.nodeid,
            range: (from, done),
            account: call.account(),
        };
        let path = || self.inodes.path_of(&self.inodes.find(call.head.nodeid)?.fh());
        self.tracer.answered(&answered, path);
    }

    fn note_failure(&self, head: &Header, error: &Error) {
        self.stats.failed(head.opcode);
        if error.errno == libc::ESTALE
            && let Some(inode) = self.inodes.find(head.nodeid)
        {
            // The kernel looks its name up again, and must not get the same answer.
            inode.attrs_dropped();
        }
        let op = opcode::name(head.opcode);
        match error.why {
            Some(_) => tracing::warn!(op, node = head.nodeid, %error, "request failed"),
            None => tracing::trace!(op, tid = head.tid, node = head.nodeid, %error, "request failed"),
        }
    }

    async fn finish(&self, call: &Call, result: Result<Answer>) {
        if let Some(account) = call.account() {
            let failed = result.as_ref().err().map_or(0, errno);
            self.recent.note(call, account, failed, self.inodes.find(call.head.nodeid).map(|i| i.fh()));
        }
        if self.tracer.notes_calls() {
            self.trace(call, &result);
        }
        let failed = result.as_ref().err().map(errno);
        let (delivery, undo) = match result {
            Ok(answer) => (call.answer(Ok(&answer.body)), answer.undo),
            Err(error) => {
                self.note_failure(&call.head, &error);
                (call.answer(Err(errno(&error))), Undo::Nothing)
            }
        };
        let interrupted = delivery == Delivery::Unwanted && call.pending.cancel.is_cancelled();
        if failed.is_some() || interrupted {
            call.failed_late(failed.filter(|_| !interrupted));
        }
        if delivery == Delivery::Unwanted {
            self.undo(undo).await;
        }
    }

    /// Undoes an answer that no caller takes.
    pub async fn undo(&self, undo: Undo) {
        match undo {
            Undo::Nothing => {}
            Undo::Forget(ids) => ids.iter().for_each(|&id| self.forget(id, 1)),
            Undo::Close { file, forget } => {
                if let Some(file) = self.take_file(file) {
                    self.close(&file).await;
                }
                if let Some(id) = forget {
                    self.forget(id, 1);
                }
            }
            Undo::CloseDir { dir } => {
                // The kernel has neither accepted the answer nor dropped its cached listing.
                if let Some(dir) = self.take_dir(dir).filter(|dir| dir.cached) {
                    self.drop_pages(&dir.inode).await;
                }
            }
            Undo::Unlock { locking, range } => {
                let file = &locking.file;
                let fh = file.inode.fh();
                let at = File { fh: &fh, open: Some(file.open) };
                let cx = RequestContext::new(file.cred.clone());
                file.inode.lockers.released(locking.owner, range);
                let _ = self.vfs.unlock(&cx, at, locking.owner, range).await;
            }
        }
    }

    /// Closes an open that the kernel does not know. No call waits for it, because layers below may
    /// delay a CLOSE to send several together.
    pub fn close_aside(self: &Arc<Self>, id: u64) {
        let Some(file) = self.take_file(id) else { return };
        drop(file.noted.lock().take());
        let session = self.clone();
        self.closes.spawn_on(async move { session.close(&file).await }, &self.rt);
    }

    /// Runs work in the background.
    pub fn aside(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.rt.spawn(task);
    }

    /// Removes an open file.
    pub fn take_file(&self, id: u64) -> Option<Arc<OpenFile>> {
        let file = self.files.remove(id)?;
        self.watch.remove(&file.inode, id);
        Some(file)
    }

    /// Removes an open directory.
    pub fn take_dir(&self, id: u64) -> Option<Arc<OpenDir>> {
        let dir = self.dirs.remove(id)?;
        self.watch.remove(&dir.inode, id);
        Some(dir)
    }

    /// Records that an open keeps its first bytes. When too many opens do, the oldest drops them.
    pub fn keep_first(&self, id: u64) {
        let most = UNREAD_MAX_BYTES / (self.config.first_bytes as usize).max(1);
        if let Some(oldest) = self.unread.add(id, most).and_then(|oldest| self.files.find(oldest)) {
            *oldest.first.lock() = None;
        }
    }

    /// Subtracts lookups from an inode.
    pub fn forget(&self, id: u64, count: u64) {
        if self.inodes.forget(id, count) {
            self.leases.forget(id);
        }
    }

    async fn close(&self, file: &OpenFile) {
        if let Err(error) = self.close_below(&RequestContext::new(file.cred.clone()), file).await {
            tracing::warn!(%error, "closing a file in the background");
        }
    }

    /// Ends the session after the last reader has ended: the mount is gone. Files without a RELEASE
    /// are closed.
    async fn end(self: Arc<Self>) {
        let patience = Instant::now() + END_PATIENCE;
        while self.calls.abandon(false) > 0 && Instant::now() < patience {
            tokio::time::sleep(END_POLL).await;
        }
        self.calls.abandon(true);
        let files = self.files.drain();
        let close_all = async {
            for file in &files {
                self.close(file).await;
            }
            self.closes.close();
            self.closes.wait().await;
        };
        if tokio::time::timeout(END_PATIENCE, close_all).await.is_err() {
            tracing::warn!("the server did not answer; some files were not closed on the server");
        }
        self.dirs.drain();
        self.phase.send_modify(|p| {
            if !matches!(p, Phase::Refused(_)) {
                *p = Phase::Ended;
            }
        });
        self.wake.notify_one();
    }

    async fn sweep(self: Arc<Self>) {
        let mut idle = 0;
        loop {
            if matches!(*self.phase.borrow(), Phase::Ended | Phase::Refused(_)) {
                return;
            }
            if idle >= IDLE_SWEEPS {
                self.dozing.store(true, Ordering::Release);
                if self.calls.len() == 0 {
                    self.wake.notified().await;
                }
                self.dozing.store(false, Ordering::Release);
                idle = 0;
            }
            tokio::time::sleep(SWEEP).await;
            idle = if self.calls.sweep() == 0 { idle + 1 } else { 0 };
            self.hints.expire();
            self.unprocessed.expire();
            self.replace_stuck_readers();
        }
    }

    /// Invalidates the answers about an object. Returns when the kernel has dropped them.
    pub async fn revoke(&self, fh: &Fh) {
        let take_back = || {
            let inode = self.inodes.by_fh(fh)?;
            self.leases.forget(inode.id);
            if inode.note_revoked() {
                self.watch.hasten(&inode);
            }
            Some(inode)
        };
        let taken = self.leases.revoke(&self.inodes.clock, take_back).await;
        let Some(inode) = taken else { return };
        if inode.kind == FileKind::Directory {
            self.revoke_names(std::slice::from_ref(&inode)).await;
        }
        self.drop_pages(&inode).await;
    }

    /// Lets the kernel request the attributes of these objects again. Its pages stay, because the
    /// next attributes show whether the pages are of that version.
    pub async fn expire(&self, files: &[Fh]) {
        let take_back = || {
            let inodes = files.iter().filter_map(|fh| self.inodes.by_fh(fh));
            let expired: Vec<_> = inodes.collect();
            for inode in &expired {
                self.leases.forget(inode.id);
                if inode.note_expired() {
                    self.watch.hasten(inode);
                }
            }
            expired
        };
        for inode in self.leases.revoke(&self.inodes.clock, take_back).await {
            self.drop_attrs(&inode);
        }
    }

    /// Invalidates all answers under leases.
    pub async fn revoke_all(&self) {
        let take_back = || {
            let ids = self.leases.take_all();
            let all: Vec<_> = ids.iter().filter_map(|&id| self.inodes.find(id)).collect();
            for inode in &all {
                if inode.note_revoked() {
                    self.watch.hasten(inode);
                }
            }
            all
        };
        let all = self.leases.revoke(&self.inodes.clock, take_back).await;
        let dirs: Vec<_> = all.iter().filter(|i| i.kind == FileKind::Directory).cloned().collect();
        self.revoke_all_names(&dirs).await;
        let device = self.device.clone();
        let drop_all = move || {
            for inode in all {
                let _ignores = inode.invalidating();
                inval_inode(&device, inode.id, 0, 0);
            }
        };
        waiting_for_kernel(&self.page_drops, drop_all).await;
    }

    fn greet(&self, device: &Device, unique: u64, offer: InitIn) {
        if offer.major != MAJOR || offer.minor < MINOR_OLDEST {
            let _ = device.reply(unique, libc::EPROTO, &[]);
            let why = format!(
                "the kernel has FUSE {}.{}: use Linux 5.15 or later (FUSE 7.34)",
                offer.major, offer.minor
            );
            self.phase.send_replace(Phase::Refused(why));
            return;
        }
        let flags = capabilities::wanted(&self.config) & offer.flags;
        let out = InitOut {
            max_readahead: offer.max_readahead.max(self.config.max_io_bytes),
            flags,
            max_background: self.config.max_background,
            max_write_bytes: self.config.max_io_bytes,
        };
        self.minor.store(offer.minor.min(MINOR), Ordering::Release);
        self.flags.store(flags, Ordering::Release);
        if flags & init_flags::PASSTHROUGH != 0 {
            self.passthrough.start();
        }
        tracing::debug!(minor = offer.minor, offered = offer.flags, flags, "negotiated with the kernel");
        match device.reply(unique, 0, &[IoSlice::new(&out.encode())]) {
            Ok(_) => self.phase.send_replace(Phase::Running),
            Err(e) => {
                self.phase.send_replace(Phase::Refused(format!("the kernel refused the negotiation: {e}")))
            }
        };
    }

    /// Protocol version and capabilities in use.
    pub fn negotiated(&self) -> (u32, u64) {
        (self.minor.load(Ordering::Acquire), self.flags.load(Ordering::Acquire))
    }

    /// Whether each call on an object sends a request to the server.
    pub fn is_strict(&self, inode: &Inode) -> bool {
        inode.asks.map_or(self.config.strict, |asks| asks == Asks::Always)
    }

    /// Whether an open of a file checks for changes.
    pub fn opens_ask(&self, inode: &Inode) -> bool {
        inode.asks.map_or(self.config.close_to_open, |asks| asks == Asks::AtOpens)
    }

    /// Number for `st_ino`.
    pub fn ino(&self, attr: &Attr) -> u64 {
        self.ino_of(Ident::of(attr, ConsistencyDomain::default()))
    }

    /// Number for `st_ino` of an identity.
    pub fn ino_of(&self, ident: Ident) -> u64 {
        ident.ino(self.inodes.root_ident())
    }

    /// Makes the kernel drop an inode's pages and attributes, and waits for it. Pages that are
    /// being read or written back delay it. So it never runs on a thread that reads requests.
    /// Returns false when it failed.
    pub async fn drop_pages(&self, inode: &Inode) -> bool {
        let _ignores = inode.invalidating();
        let (device, id) = (self.device.clone(), inode.id);
        let drop_all = move || inval_inode(&device, id, 0, 0);
        waiting_for_kernel(&self.page_drops, drop_all).await.unwrap_or(false)
    }

    /// As [`Session::drop_pages`] for the pages of a range.
    pub async fn drop_range(&self, inode: &Inode, start: u64, len: u64) {
        let _ignores = inode.invalidating();
        let (device, id) = (self.device.clone(), inode.id);
        let start = start.min(i64::MAX as u64) as i64;
        let len = len.min((i64::MAX - start) as u64) as i64;
        waiting_for_kernel(&self.page_drops, move || inval_inode(&device, id, start, len)).await;
    }

    /// Makes the kernel drop an inode's attributes, without waiting.
    pub fn drop_attrs(&self, inode: &Inode) {
        let _ignores = inode.invalidating();
        inval_inode(&self.device, inode.id, -1, 0);
    }

    /// The runtime that serves the mount.
    pub fn runtime(&self) -> &Handle {
        &self.rt
    }

    /// The present numbers of objects and requests.
    pub fn counts(&self) -> crate::MountCounts {
        crate::MountCounts {
            open_files: self.files.len(),
            open_directories: self.dirs.len(),
            requests: self.calls.len(),
            inodes: self.inodes.len(),
        }
    }

    /// The context of the daemon's own calls.
    pub fn own_cx() -> RequestContext {
        RequestContext::new(Arc::new(Cred::root()))
    }
}

/// Runs `work`, which waits for the kernel, on a thread of its own. The permit covers the thread
/// even when the caller goes away. `None` when the runtime ends.
pub(super) async fn waiting_for_kernel<T: Send + 'static>(
    permits: &Arc<Semaphore>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let permit = permits.clone().acquire_owned().await.ok()?;
    let done = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        work()
    });
    done.await.ok()
}

/// Drops attributes, and with `offset` 0 or more the pages of `len` bytes from there. `len` 0 means
/// up to the end.
fn inval_inode(device: &Device, inode: u64, offset: i64, len: i64) -> bool {
    let mut body = crate::abi::Out::with_capacity(24);
    body.u64(inode).u64(offset as u64).u64(len as u64);
    match device.notify(notify::INVAL_INODE, &[IoSlice::new(&body.into_vec())]) {
        Ok(()) => true,
        // The kernel has forgotten the inode with all its caches.
        Err(e) => e.raw_os_error() == Some(libc::ENOENT),
    }
}

/// Takes a request out of its buffer. A large write keeps the buffer. Other requests are copied,
/// and the buffer is returned for reuse.
fn take_request(buffer: Buffer, len: usize) -> (Bytes, Option<Buffer>) {
    if len > OWN_BUFFER_BYTES {
        (buffer.into_bytes(len), None)
    } else {
        (Bytes::copy_from_slice(buffer.filled(len)), Some(buffer))
    }
}
