//! Local programs that change files which a client caches are noticed.
//!
//! A watched file has a descriptor for reading with a lease of the kernel on it (fcntl(2),
//! F_SETLEASE): whoever wants to open the file for writing, or to cut it, waits until the lease is
//! given up, for at most /proc/sys/fs/lease-break-time seconds, and we get a signal. That is exact:
//! while a lease is held nobody has the file open for writing, mapped files included. The lease
//! does not cover what changes no bytes (permissions, times, names, links); the kernel tells of
//! that right after it has happened (`notes`).
//!
//! Who watches alone has a lease for writing: nobody else has the file open, and whoever opens it
//! waits. It is on the descriptor that the directory itself reads and writes with, the only one
//! there is: another would break the lease. So the object keeps it as long as the file is watched,
//! and no other is opened.
//!
//! Directories have no such lease: of their names and attributes the kernel tells after the fact,
//! and nobody is held up.
//!
//! Nothing more is watched while descriptors are scarce.
//!
//! One thread for each directory takes both. The signal is sent to that thread alone, which has it
//! blocked, so no other thread or program ever meets it. When the queue of either overflows
//! everything that is watched counts as changed.

mod notes;

use self::notes::{Mark, Note, Notes, Of};
use super::descriptors::Counted;
use super::object::Object;
use super::pool::Worker;
use super::{Inner, Local, sys};
use hither_vfs::{BoxFuture, Cred, Error, Fh, Result, Told, Watch, Watched, WatchedAlone};
use parking_lot::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak, mpsc};

/// How often the thread looks whether anybody still needs it.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Where the watcher is, once somebody wants to be told.
pub(super) type Slot = OnceLock<Arc<Watcher>>;

/// All files and directories of a served directory that are watched.
pub(super) struct Watcher {
    told: RwLock<Arc<Told>>,
    notes: Notes,
    /// The thread that gets the signals.
    thread: libc::pid_t,
    by_descriptor: Mutex<HashMap<i32, Fh>>,
}

/// A file or directory that is watched.
struct Held {
    watcher: Arc<Watcher>,
    fd: Arc<Counted>,
    mark: Option<Mark>,
    leased: bool,
    /// When it is watched alone.
    only: Option<Only>,
}

/// How something is watched.
enum How {
    /// A file that nobody writes.
    Read,
    /// A file that nobody else uses.
    Alone(Only),
    /// A directory.
    Directory,
}

/// The one descriptor of an object stays as long as this is not dropped.
struct Only {
    inner: Arc<Inner>,
    object: Arc<Object>,
}

impl Drop for Only {
    fn drop(&mut self) {
        self.object.alone.store(false, Ordering::SeqCst);
        self.inner.objects.close(&self.object.fh);
    }
}

impl Watch for Local {
    fn watch(&self, fh: &Fh, alone: bool) -> BoxFuture<Option<Watched>> {
        let (inner, fh) = (self.inner.clone(), fh.clone());
        Box::pin(async move {
            let watcher = inner.watcher.get()?.clone();
            if inner.objects.are_scarce() {
                return None;
            }
            let (of, handle) = (inner.clone(), fh.clone());
            let job = move |worker: &mut Worker| match alone {
                true => of.only_descriptor(worker, &handle),
                false => of.descriptor_to_watch(worker, &handle),
            };
            // Taken on this thread: those of the pool have no right to leases.
            let (fd, how) = inner.pool.run(Arc::new(Cred::root()), job).await.ok()??;
            Some(Box::new(watcher.hold(fd, how, &fh)?) as Watched)
        })
    }

    fn watch_alone(&self, fh: &Fh, watched: Watched) -> BoxFuture<WatchedAlone> {
        let (inner, fh) = (self.inner.clone(), fh.clone());
        Box::pin(async move {
            let held = match watched.downcast::<Held>() {
                Ok(held) if held.only.is_none() => held,
                Ok(held) => return WatchedAlone::Ok(held),
                Err(other) => return WatchedAlone::Err(Some(other)),
            };
            let (of, handle) = (inner.clone(), fh.clone());
            let found = inner.pool.run(Arc::new(Cred::root()), move |worker| of.resolve(worker, &handle));
            match found.await {
                // On this thread, as above, and at once: nobody is held up from one lease to the
                // other.
                Ok(object) => inner.hold_alone(&object, held),
                Err(_) => Err(Some(held)),
            }
        })
    }

    fn tell(&self, told: Arc<Told>) {
        match self.inner.watcher.get() {
            Some(watcher) => *watcher.told.write() = told,
            None => match Watcher::start(&self.inner, told) {
                Ok(watcher) => drop(self.inner.watcher.set(watcher)),
                Err(e) => tracing::warn!("local changes cannot be watched, so no file is delegated: {e}"),
            },
        }
    }
}

impl Inner {
    /// A descriptor for reading of a directory, or of a file that nobody writes through us at the
    /// moment.
    fn descriptor_to_watch(&self, worker: &mut Worker, fh: &Fh) -> Result<Option<(Arc<Counted>, How)>> {
        let object = self.resolve(worker, fh)?;
        let how = match object.need_dir() {
            Ok(()) => How::Directory,
            Err(_) => {
                object.need_regular()?;
                if !self.objects.is_settled(&object) || !object.stop_writing() {
                    return Ok(None);
                }
                How::Read
            }
        };
        let fd = worker.root(|| object.reopen(self.proc_fd.as_fd(), OFlags::RDONLY))?;
        Ok(Some((Arc::new(self.objects.counted(fd)), how)))
    }

    /// The descriptor that is used for reading and writing, when there is no other.
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

    fn only(self: &Arc<Self>, object: &Arc<Object>) -> Only {
        let only = Only { inner: self.clone(), object: self.objects.open(object) };
        only.object.alone.store(true, Ordering::SeqCst);
        only
    }

    /// Takes a lease for writing in place of one for reading. In between, a local program can open
    /// the file: then there is no lease, or `change` is another one.
    fn hold_alone(self: &Arc<Self>, object: &Arc<Object>, held: Box<Held>) -> WatchedAlone {
        let watcher = held.watcher.clone();
        let change = || self.attrs(object).ok().map(|attrs| attrs.attr.change);
        let before = change();
        // A time of change of just now does not tell changes apart.
        if before.is_none() || before != change() {
            return Err(Some(held));
        }
        let only = self.only(object);
        // The lease for reading becomes one for writing only when nobody else has the file open.
        if !object.close_io() || sys::take_lease(held.fd.as_fd(), watcher.thread, true).is_err() {
            return Err(Some(held));
        }
        drop(held);
        let Ok(fd) = object.io(self.proc_fd.as_fd(), true) else { return Err(None) };
        match watcher.hold(fd, How::Alone(only), &object.fh) {
            Some(alone) if change() == before => Ok(Box::new(alone)),
            _ => Err(None),
        }
    }
}

impl Watcher {
    /// Starts the thread, which ends with the last use of what is returned.
    fn start(of: &Inner, told: Arc<Told>) -> Result<Arc<Self>> {
        let notes = Notes::new(of.top.as_fd(), of.pool.threads())?;
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
        let watcher =
            Arc::new(Self { told: RwLock::new(told), notes, thread, by_descriptor: Mutex::default() });
        let _ = give.send(Arc::downgrade(&watcher));
        Ok(watcher)
    }

    /// Watches what a descriptor for reading is open on; `None` when somebody has it open for
    /// writing or the file system cannot.
    fn hold(self: &Arc<Self>, fd: Arc<Counted>, how: How, fh: &Fh) -> Option<Held> {
        let of = match how {
            How::Read => Of::Bytes,
            // Whoever watches alone writes, and nobody else can.
            How::Alone(_) => Of::Attributes,
            How::Directory => Of::Names,
        };
        // Before the lease: it may be broken as soon as it is there.
        self.by_descriptor.lock().insert(fd.as_raw_fd(), fh.clone());
        let only = if let How::Alone(only) = how { Some(only) } else { None };
        let (leased, alone) = (of != Of::Names, only.is_some());
        let mut held = Held { watcher: self.clone(), fd, mark: None, leased, only };
        if leased {
            sys::take_lease(held.fd.as_fd(), self.thread, alone).ok()?;
        }
        held.mark = Some(self.notes.add(held.fd.as_fd(), fh, of)?);
        Some(held)
    }

    fn tell(&self, files: impl IntoIterator<Item = Fh>) {
        let told = self.told.read().clone();
        files.into_iter().for_each(|fh| told(&fh));
    }

    fn tell_all(&self) {
        let files: Vec<Fh> = self.by_descriptor.lock().values().cloned().collect();
        self.tell(files);
    }

    /// Takes all notes there are.
    fn take_notes(&self) {
        self.notes.take(|note| match note {
            Note::File(fh) => self.tell([fh]),
            Note::Any => self.tell_all(),
        });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.watcher.by_descriptor.lock().remove(&self.fd.as_raw_fd());
        if let Some(mark) = &self.mark {
            self.watcher.notes.remove(self.fd.as_fd(), mark);
        }
        if self.leased {
            // The descriptor may stay.
            sys::give_up_lease(self.fd.as_fd());
        }
    }
}

/// The thread: until nobody has the watcher any more.
fn run(watcher: &Weak<Watcher>, signals: BorrowedFd<'_>) {
    while let Some(watcher) = watcher.upgrade() {
        let mut fds =
            [PollFd::from_borrowed_fd(signals, PollFlags::IN), PollFd::new(&watcher.notes, PollFlags::IN)];
        if rustix::event::poll(&mut fds, Some(&LOOK_EVERY)).is_err() {
            continue;
        }
        while let Some((signal, fd)) = next_signal(signals) {
            if signal == libc::SIGIO {
                // The queue was full: the kernel says only that there was something.
                watcher.tell_all();
            } else {
                let file = watcher.by_descriptor.lock().get(&fd).cloned();
                watcher.tell(file);
            }
        }
        watcher.take_notes();
    }
}

/// The next signal that waits for this thread, and the descriptor whose lease it is about.
fn next_signal(signals: BorrowedFd<'_>) -> Option<(libc::c_int, i32)> {
    let mut raw = [0; size_of::<libc::signalfd_siginfo>()];
    let read = rustix::io::read(signals, &mut raw).ok()?;
    // struct signalfd_siginfo: 32-bit numbers, of which the first is the signal and the sixth the
    // descriptor.
    let word = |at: usize| raw.get(at..at + 4).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes);
    if read < raw.len() { None } else { Some((word(0)?, word(20)?)) }
}
