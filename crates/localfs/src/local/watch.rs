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
//! One thread for each served directory receives both. The signal is sent to that thread alone,
//! which blocks it, so no other thread or program gets it. When the queue of either overflows,
//! every watched object counts as changed.

mod notes;

use self::notes::{Mark, Note, Notes, Of};
use super::descriptors::Counted;
use super::object::Object;
use super::pool::Worker;
use super::{Inner, Local, sys};
use hither_vfs::{BoxFuture, ChangeListener, Cred, Error, Fh, Result, Watch, Watched, WatchedAlone};
use parking_lot::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak, mpsc};

/// How often the thread checks whether the watcher is still in use.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The watcher, set at the first call of `tell`.
pub(super) type Slot = OnceLock<Arc<Watcher>>;

/// All watched files and directories of a served directory.
pub(super) struct Watcher {
    told: RwLock<Arc<ChangeListener>>,
    notes: Notes,
    /// The thread that receives the signals.
    thread: libc::pid_t,
    by_descriptor: Mutex<HashMap<i32, Fh>>,
}

/// A watched file or directory.
struct WatchedObject {
    watcher: Arc<Watcher>,
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
            let watcher = inner.watcher.get()?.clone();
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
            let (fd, how) = inner.pool.run(Arc::new(Cred::root()), job).await.ok()??;
            Some(Box::new(watcher.hold(fd, how, &fh)?) as Watched)
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
            let found = inner.pool.run(Arc::new(Cred::root()), move |worker| of.resolve(worker, &handle));
            match found.await {
                // The lease is taken on this thread, as above, and at once: no program waits
                // between the two leases.
                Ok(object) => inner.hold_alone(&object, held),
                Err(_) => Err(Some(held)),
            }
        })
    }

    fn tell(&self, told: Arc<ChangeListener>) {
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
        let watcher = held.watcher.clone();
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
        match watcher.hold(fd, How::Alone(only), &object.fh) {
            Some(alone) if change() == before => Ok(Box::new(alone)),
            _ => Err(None),
        }
    }
}

impl Watcher {
    /// Starts the thread, which ends when the last reference to the result is dropped.
    fn start(of: &Inner, told: Arc<ChangeListener>) -> Result<Arc<Self>> {
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

    /// Watches the object of a descriptor. `None` when another program has it open in conflict, or
    /// the file system has no leases or notifications.
    fn hold(self: &Arc<Self>, fd: Arc<Counted>, how: How, fh: &Fh) -> Option<WatchedObject> {
        let of = match how {
            How::Read(_) => Of::Bytes,
            // A client that watches alone may write, and no other program can.
            How::Alone(_) => Of::Attributes,
            How::Directory => Of::Names,
        };
        // Inserted before the lease is taken: the lease may be broken at once.
        self.by_descriptor.lock().insert(fd.as_raw_fd(), fh.clone());
        let (only, in_use) = match how {
            How::Alone(only) => (Some(only), None),
            How::Read(in_use) => (None, Some(in_use)),
            How::Directory => (None, None),
        };
        let (leased, alone) = (of != Of::Names, only.is_some());
        let mut held = WatchedObject { watcher: self.clone(), fd, mark: None, leased, only, _use: in_use };
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

    /// Takes all waiting notifications.
    fn take_notes(&self) {
        self.notes.take(|note| match note {
            Note::File(fh) => self.tell([fh]),
            Note::Any => self.tell_all(),
        });
    }
}

impl Drop for WatchedObject {
    fn drop(&mut self) {
        self.watcher.by_descriptor.lock().remove(&self.fd.as_raw_fd());
        if let Some(mark) = &self.mark {
            self.watcher.notes.remove(self.fd.as_fd(), mark);
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
                let file = watcher.by_descriptor.lock().get(&fd).cloned();
                watcher.tell(file);
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
