//! Notices local programs that change files which a client caches.
//!
//! A watched file has a descriptor for reading with a lease of the kernel on it (fcntl(2),
//! F_SETLEASE). A program that opens the file for writing, or truncates it, waits until the lease
//! is released, for at most /proc/sys/fs/lease-break-time seconds. The watcher gets a signal. That
//! is exact: while a lease is held no program has the file open for writing, and mapped files count
//! as open. The lease does not cover changes of permissions, times, names and links. The kernel
//! reports these right after they happened (`notes`).
//!
//! A file that is watched alone has a write lease: no other program has the file open, and a
//! program that opens it waits. The lease is on the one descriptor with which this module reads and
//! writes the file. A second descriptor would break the lease. So the object keeps this descriptor
//! while the file is watched, and opens no other.
//!
//! Directories cannot have leases. The kernel reports changes of their names and attributes after
//! the fact, and no program waits.
//!
//! While descriptors are scarce, no further file is watched.
//!
//! One thread receives both for all directories that a process serves: the kernel allows each user
//! about 128 queues of notifications. The signal is sent to that thread alone, which blocks it, so
//! no other thread or program gets it. When the queue of either overflows, every watched object
//! counts as changed.

mod notes;

use self::notes::{Mark, Note, Notes, Of};
use super::descriptors::Counted;
use super::object::Object;
use super::pool::{Threads, Worker};
use super::{Inner, Local, sys};
use hither_vfs::{
    BoxFuture, ChangeListener, Cred, Error, Fh, RequestContext, Result, Watch, Watched, WatchedAlone,
};
use parking_lot::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};

/// How often the thread checks whether the watcher is still in use.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The watchers of a process, which all directories that it serves share. They start when the first
/// directory needs them.
#[derive(Default)]
pub struct Watchers {
    fanotify: Mutex<Weak<Watcher>>,
    inotify: Mutex<Weak<Watcher>>,
    /// The kernel grants no queue.
    #[cfg(test)]
    pub(super) are_refused: AtomicBool,
}

impl std::fmt::Debug for Watchers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watchers")
    }
}

impl Watchers {
    /// The best watcher for files below `top`.
    fn below(&self, top: BorrowedFd<'_>) -> Result<Arc<Watcher>> {
        #[cfg(test)]
        if self.are_refused.load(Ordering::SeqCst) {
            return Err(Error::new(libc::EMFILE));
        }
        let with = |kind: &Mutex<Weak<Watcher>>, queue: fn() -> Result<Notes>| {
            let mut kind = kind.lock();
            let watcher = match kind.upgrade() {
                Some(watcher) => watcher,
                None => Watcher::start(queue()?)?,
            };
            *kind = Arc::downgrade(&watcher);
            watcher.notes.supports(top)?;
            Ok(watcher)
        };
        with(&self.fanotify, Notes::fanotify).or_else(|_| with(&self.inotify, Notes::inotify))
    }
}

/// The watch of a served directory.
#[derive(Default)]
pub(super) struct Slot {
    /// Set at the first call of `tell`.
    listener: OnceLock<Arc<Listener>>,
    /// Set when the kernel has granted a queue.
    watcher: OnceLock<Arc<Watcher>>,
    /// The kernel refused a queue the last time.
    is_refused: AtomicBool,
}

/// The layer above a served directory, which learns of changes.
struct Listener {
    told: RwLock<Arc<ChangeListener>>,
    /// The threads that make the changes of the layer above.
    own: Arc<Threads>,
}

/// A watched object, and the layer that learns of its changes.
#[derive(Clone)]
struct Target {
    listener: Arc<Listener>,
    fh: Fh,
}

impl Target {
    fn tell(&self) {
        let told = self.listener.told.read().clone();
        told(&self.fh);
    }
}

/// The watched files and directories of all served directories.
pub(super) struct Watcher {
    notes: Notes,
    /// The thread that receives the signals.
    thread: libc::pid_t,
    by_descriptor: Mutex<HashMap<i32, Target>>,
}

/// A watched file or directory.
struct WatchedObject {
    watcher: Arc<Watcher>,
    listener: Arc<Listener>,
    fd: Arc<Counted>,
    mark: Option<Mark>,
    leased: bool,
    /// Set when the file is watched alone.
    only: Option<Only>,
    /// Set when the file is watched, but not alone.
    _use: Option<Use>,
}

/// How an object is watched.
enum How {
    /// A file that no program writes.
    Read(Use),
    /// A file that no other program uses.
    Alone(Only),
    /// A directory.
    Directory,
}

/// Counts as an open until this is dropped: the holder of a delegation uses the file after a local
/// program has removed its last name.
struct Use {
    inner: Arc<Inner>,
    fh: Fh,
}

impl Drop for Use {
    fn drop(&mut self) {
        self.inner.objects.close(&self.fh);
    }
}

/// Keeps the one descriptor of an object until this is dropped.
struct Only {
    object: Arc<Object>,
    _use: Use,
}

impl Drop for Only {
    fn drop(&mut self) {
        self.object.alone.store(false, Ordering::SeqCst);
    }
}

impl Watch for Local {
    fn watch(&self, fh: &Fh, alone: bool) -> BoxFuture<Option<Watched>> {
        let (inner, fh) = (self.inner.clone(), fh.clone());
        Box::pin(async move {
            let listener = inner.watch.listener.get()?.clone();
            let watcher = inner.watcher()?;
            if inner.objects.are_scarce() {
                return None;
            }
            let (of, handle) = (inner.clone(), fh.clone());
            let job = move |worker: &mut Worker| {
                if alone {
                    of.only_descriptor(worker, &handle)
                } else {
                    of.descriptor_to_watch(worker, &handle)
                }
            };
            // The lease is taken on this thread: threads of the pool have no right to leases.
            let cx = RequestContext::new(Arc::new(Cred::root()));
            let (fd, how) = inner.pool.run(&cx, job).await.ok()??;
            Some(Box::new(watcher.hold(fd, how, Target { listener, fh })?) as Watched)
        })
    }

    fn watch_alone(&self, fh: &Fh, watched: Watched) -> BoxFuture<WatchedAlone> {
        let (inner, fh) = (self.inner.clone(), fh.clone());
        Box::pin(async move {
            let held = match watched.downcast::<WatchedObject>() {
                Ok(held) if held.only.is_none() => held,
                Ok(held) => return WatchedAlone::Ok(held),
                Err(other) => return WatchedAlone::Err(Some(other)),
            };
            let (of, handle) = (inner.clone(), fh.clone());
            let cx = RequestContext::new(Arc::new(Cred::root()));
            match inner.pool.run(&cx, move |worker| of.resolve(worker, &handle)).await {
                // The lease is taken on this thread, as above, and at once: no program waits
                // between the two leases.
                Ok(object) => inner.hold_alone(&object, held),
                Err(_) => Err(Some(held)),
            }
        })
    }

    fn tell(&self, told: Arc<ChangeListener>) {
        let own = self.inner.pool.threads();
        let listener = self
            .inner
            .watch
            .listener
            .get_or_init(|| Arc::new(Listener { told: RwLock::new(told.clone()), own }));
        *listener.told.write() = told;
        // Logs a refusal now, and not when a client wants the first delegation.
        let _ = self.inner.watcher();
    }
}

impl Inner {
    /// The watcher. While the kernel refuses a queue, each call tries again: other programs of the
    /// same user may have given theirs up.
    pub(super) fn watcher(&self) -> Option<Arc<Watcher>> {
        let Slot { watcher, is_refused, .. } = &self.watch;
        if let Some(watcher) = watcher.get() {
            return Some(watcher.clone());
        }
        match self.options.watchers.below(self.top.as_fd()) {
            Ok(started) => {
                if is_refused.swap(false, Ordering::SeqCst) {
                    tracing::info!("local changes are watched, and files are delegated");
                }
                Some(watcher.get_or_init(|| started).clone())
            }
            Err(e) => {
                if !is_refused.swap(true, Ordering::SeqCst) {
                    let hint = match e.errno {
                        libc::EMFILE => {
                            "; fs.fanotify.max_user_groups and fs.inotify.max_user_instances limit this"
                        }
                        _ => "",
                    };
                    tracing::warn!("local changes cannot be watched, so no file is delegated: {e}{hint}");
                }
                None
            }
        }
    }

    /// A descriptor for reading of a directory, or of a file that no client writes at the moment.
    fn descriptor_to_watch(
        self: &Arc<Self>,
        worker: &mut Worker,
        fh: &Fh,
    ) -> Result<Option<(Arc<Counted>, How)>> {
        let object = self.resolve(worker, fh)?;
        let how = match object.need_dir() {
            Ok(()) => How::Directory,
            Err(_) => {
                object.need_regular()?;
                if !self.objects.is_settled(&object) || !object.stop_writing() {
                    return Ok(None);
                }
                How::Read(self.in_use(&object).1)
            }
        };
        let fd = worker.root(|| object.reopen(self.proc_fd.as_fd(), OFlags::RDONLY))?;
        Ok(Some((Arc::new(self.objects.counted(fd)), how)))
    }

    /// The descriptor for reading and writing, if it is the only one.
    fn only_descriptor(
        self: &Arc<Self>,
        worker: &mut Worker,
        fh: &Fh,
    ) -> Result<Option<(Arc<Counted>, How)>> {
        let object = self.resolve(worker, fh)?;
        object.need_regular()?;
        let only = self.only(&object);
        let fd = worker.root(|| only.object.io(self.proc_fd.as_fd(), true))?;
        Ok(only.object.stop_reading().then_some((fd, How::Alone(only))))
    }

    /// The present object of this filehandle, counted as open.
    fn in_use(self: &Arc<Self>, object: &Arc<Object>) -> (Arc<Object>, Use) {
        (self.objects.open(object), Use { inner: self.clone(), fh: object.fh.clone() })
    }

    fn only(self: &Arc<Self>, object: &Arc<Object>) -> Only {
        let (object, in_use) = self.in_use(object);
        object.alone.store(true, Ordering::SeqCst);
        Only { object, _use: in_use }
    }

    /// Replaces a read lease with a write lease. In between, a local program can open the file.
    /// Then the write lease is refused, or `change` differs.
    fn hold_alone(self: &Arc<Self>, object: &Arc<Object>, held: Box<WatchedObject>) -> WatchedAlone {
        let (watcher, listener) = (held.watcher.clone(), held.listener.clone());
        let change = || self.attrs(object).ok().map(|attrs| attrs.attr.change);
        let before = change();
        // A `change` that is given out only once cannot show that the file is unchanged.
        if before.is_none() || before != change() {
            return Err(Some(held));
        }
        let only = self.only(object);
        // The read lease becomes a write lease only while no other program has the file open.
        if !object.close_io() || sys::take_lease(held.fd.as_fd(), watcher.thread, true).is_err() {
            return Err(Some(held));
        }
        drop(held);
        let Ok(fd) = object.io(self.proc_fd.as_fd(), true) else { return Err(None) };
        match watcher.hold(fd, How::Alone(only), Target { listener, fh: object.fh.clone() }) {
            Some(alone) if change() == before => Ok(Box::new(alone)),
            _ => Err(None),
        }
    }
}

impl Watcher {
    /// Starts the thread, which ends when the last reference to the result is dropped.
    fn start(notes: Notes) -> Result<Arc<Self>> {
        let (tell, number) = mpsc::channel();
        let (give, given) = mpsc::channel::<Weak<Self>>();
        let work = move || match sys::lease_signals() {
            Ok(signals) => {
                let _ = tell.send(Ok(rustix::thread::gettid().as_raw_nonzero().get()));
                if let Ok(watcher) = given.recv() {
                    run(&watcher, signals.as_fd());
                }
            }
            Err(e) => drop(tell.send(Err(e))),
        };
        let failed = |e: std::io::Error| Error::because(libc::EAGAIN, format!("cannot start a thread: {e}"));
        std::thread::Builder::new().name("hither-watch".into()).spawn(work).map_err(failed)?;
        let thread = number.recv().map_err(|_| Error::new(libc::EIO))??;
        let watcher = Arc::new(Self { notes, thread, by_descriptor: Mutex::default() });
        let _ = give.send(Arc::downgrade(&watcher));
        Ok(watcher)
    }

    /// Watches the object of a descriptor. `None` when another program has it open in conflict, or
    /// the file system has no leases or notifications.
    fn hold(self: &Arc<Self>, fd: Arc<Counted>, how: How, target: Target) -> Option<WatchedObject> {
        let of = match how {
            How::Read(_) => Of::Bytes,
            // A client that watches alone may write, and no other program can.
            How::Alone(_) => Of::Attributes,
            How::Directory => Of::Names,
        };
        // Inserted before the lease is taken: the lease may be broken at once.
        self.by_descriptor.lock().insert(fd.as_raw_fd(), target.clone());
        let (only, in_use) = match how {
            How::Alone(only) => (Some(only), None),
            How::Read(in_use) => (None, Some(in_use)),
            How::Directory => (None, None),
        };
        let (leased, alone) = (of != Of::Names, only.is_some());
        let (watcher, listener) = (self.clone(), target.listener.clone());
        let mut held = WatchedObject { watcher, listener, fd, mark: None, leased, only, _use: in_use };
        if leased {
            sys::take_lease(held.fd.as_fd(), self.thread, alone).ok()?;
        }
        held.mark = Some(self.notes.add(held.fd.as_fd(), &target, of)?);
        Some(held)
    }

    fn tell_all(&self) {
        let all: Vec<Target> = self.by_descriptor.lock().values().cloned().collect();
        all.iter().for_each(Target::tell);
    }

    /// Takes all waiting notifications.
    fn take_notes(&self) {
        self.notes.take(|note| match note {
            Note::File(target) => target.tell(),
            Note::Any => self.tell_all(),
        });
    }
}

impl Drop for WatchedObject {
    fn drop(&mut self) {
        self.watcher.by_descriptor.lock().remove(&self.fd.as_raw_fd());
        if let Some(mark) = &self.mark {
            self.watcher.notes.remove(self.fd.as_fd(), &self.listener, mark);
        }
        if self.leased {
            // The descriptor may stay open.
            sys::give_up_lease(self.fd.as_fd());
        }
    }
}

/// The thread: runs until the watcher is dropped.
fn run(watcher: &Weak<Watcher>, signals: BorrowedFd<'_>) {
    while let Some(watcher) = watcher.upgrade() {
        let mut fds =
            [PollFd::from_borrowed_fd(signals, PollFlags::IN), PollFd::new(&watcher.notes, PollFlags::IN)];
        if rustix::event::poll(&mut fds, Some(&LOOK_EVERY)).is_err() {
            continue;
        }
        while let Some((signal, fd)) = next_signal(signals) {
            if signal == libc::SIGIO {
                // The signal queue was full. The kernel does not say which leases were broken.
                watcher.tell_all();
            } else {
                let target = watcher.by_descriptor.lock().get(&fd).cloned();
                target.iter().for_each(Target::tell);
            }
        }
        watcher.take_notes();
    }
}

/// The next pending signal of this thread, and the descriptor of its lease.
fn next_signal(signals: BorrowedFd<'_>) -> Option<(libc::c_int, i32)> {
    let mut raw = [0; size_of::<libc::signalfd_siginfo>()];
    let read = rustix::io::read(signals, &mut raw).ok()?;
    // struct signalfd_siginfo: 32-bit numbers. The first is the signal, the sixth the descriptor.
    let word = |at: usize| raw.get(at..at + 4).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes);
    if read < raw.len() { None } else { Some((word(0)?, word(20)?)) }
}
