//! Threads that wait for the disk in place of the caller, with the identity of the caller.
//!
//! A thread of the pool has only the capabilities that file systems check, and no umask. Work for a
//! caller runs within [`Worker::caller`], with the caller's file-system uid, gid and groups. The
//! kernel disables these capabilities for a file-system uid other than 0, so only the superuser has
//! them. Work that needs the superuser (an open by handle) runs within [`Worker::root`]. The thread
//! changes its identity only when the new one differs. A job that has begun runs to its end, even
//! if its caller was cancelled.

use super::object::os;
use super::queue::{Host, Queue};
use super::sys;
use crate::journal::{Log, Then};
use bytes::Bytes;
use hither_vfs::{Cred, Error, RequestContext, Result};
use parking_lot::{Condvar, Mutex};
use rustix::thread::CapabilitySet;
use std::cell::Cell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A thread without work ends after this time, and sooner when the pools of all directories have
/// many such threads.
const IDLE: Duration = Duration::from_secs(10);
const IDLE_AMONG_MANY: Duration = Duration::from_millis(20);
const IDLE_MAX: usize = 64;
/// The threads without work of all pools.
static IDLE_THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The time for which the answer that this thread sends has waited for the journal.
    static JOURNAL_WAIT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Measures the time until the journal calls `then`. The answer that `then` sends carries this time
/// to the caller of [`Pool::run_then`].
pub(super) fn measured(then: Then) -> Then {
    let began = Instant::now();
    Box::new(move |durable| {
        JOURNAL_WAIT.set(began.elapsed());
        then(durable);
        JOURNAL_WAIT.set(Duration::ZERO);
    })
}

type Job = Box<dyn FnOnce(&mut Worker) + Send>;
/// Sends the answer of a job. When it is dropped without a call, the caller gets an error.
pub(super) type Answer<T> = Box<dyn FnOnce(Result<T>) + Send>;

/// The threads.
pub(super) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    many_identities: bool,
    alive: Arc<Threads>,
    /// The journal. After each job, when the job holds no locks, [`Log::see_to`] has its records
    /// written.
    journal: Weak<Log>,
}

struct State {
    jobs: Queue<Job>,
    threads: usize,
    /// Wakes the threads without work. The last one is woken first: its memory is in the caches,
    /// and the others end.
    idle: Vec<Arc<Condvar>>,
    closed: bool,
}

/// Ids of living threads.
#[derive(Default)]
pub(super) struct Threads(Mutex<HashSet<libc::pid_t>>);

impl Threads {
    /// Whether `thread` is one of them.
    pub fn has(&self, thread: libc::pid_t) -> bool {
        self.0.lock().contains(&thread)
    }

    /// Adds the calling thread until the result is dropped.
    fn enter(&self) -> Alive<'_> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        self.0.lock().insert(thread);
        Alive { threads: self, thread }
    }
}

/// The calling thread is in the set until this is dropped.
struct Alive<'a> {
    threads: &'a Threads,
    thread: libc::pid_t,
}

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        self.threads.0.lock().remove(&self.thread);
    }
}

impl Pool {
    /// A pool of at most `threads_max` threads. Without `many_identities` all jobs run with the
    /// identity of this process.
    pub fn new(threads_max: usize, many_identities: bool, journal: Weak<Log>) -> Self {
        let state =
            State { jobs: Queue::new(threads_max.max(1)), threads: 0, idle: Vec::new(), closed: false };
        let (state, alive) = (Mutex::new(state), Arc::default());
        Self { shared: Arc::new(Shared { state, many_identities, alive, journal }) }
    }

    /// The living threads of this pool. The set is kept up to date.
    pub fn threads(&self) -> Arc<Threads> {
        self.shared.alive.clone()
    }

    /// Runs `job` on a thread for the caller and returns its answer.
    pub async fn run<T: Send + 'static>(
        &self,
        cx: &RequestContext,
        job: impl FnOnce(&mut Worker) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_then(cx, |worker, then| then(job(worker))).await
    }

    /// As [`Pool::run`], for a job whose answer another thread may send later. Adds the time of the
    /// call to `cx.spent`.
    pub async fn run_then<T: Send + 'static>(
        &self,
        cx: &RequestContext,
        job: impl FnOnce(&mut Worker, Answer<T>) + Send + 'static,
    ) -> Result<T> {
        let began = cx.spent.as_ref().map(|spent| (spent, Instant::now()));
        let cred = cx.cred.clone();
        let (answer, answered) = oneshot::channel();
        let then: Answer<T> = Box::new(move |result| {
            // The caller may have been cancelled.
            let _ = answer.send((result, JOURNAL_WAIT.get()));
        });
        self.push(
            cx.host,
            Box::new(move |worker| {
                worker.caller = cred;
                job(worker, then);
            }),
        )?;
        let (result, journal) = answered.await.map_err(|_| closed())?;
        if let Some((spent, began)) = began {
            spent.add(began.elapsed(), journal);
        }
        result
    }

    fn push(&self, host: Host, job: Job) -> Result<()> {
        let mut state = self.shared.state.lock();
        if state.closed {
            return Err(closed());
        }
        state.jobs.push(host, job);
        if let Some(wake) = state.idle.pop() {
            drop(state);
            wake.notify_one();
            return Ok(());
        }
        if state.threads == state.jobs.threads_max() {
            return Ok(());
        }
        let shared = self.shared.clone();
        let spawned = std::thread::Builder::new().name("hither-local".into()).spawn(move || serve(&shared));
        match spawned {
            Ok(_) => state.threads += 1,
            // The existing threads run the job.
            Err(_) if state.threads > 0 => {}
            Err(e) => {
                state.jobs.remove_last(host);
                return Err(Error::because(libc::EAGAIN, format!("cannot start a thread: {e}")));
            }
        }
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        for wake in state.idle.drain(..) {
            wake.notify_one();
        }
    }
}

fn closed() -> Error {
    Error::because(libc::EIO, "the local directory is no longer served")
}

fn serve(shared: &Shared) {
    let _alive = shared.alive.enter();
    let mut worker = Worker::new(shared.many_identities);
    let wake = Arc::new(Condvar::new());
    let mut state = shared.state.lock();
    loop {
        if let Some((host, job)) = state.jobs.pop() {
            let began = Instant::now();
            parking_lot::MutexGuard::unlocked(&mut state, || {
                // A panic of a job is a bug in this program. Its caller gets an error, and other
                // jobs continue.
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(&mut worker))).is_err() {
                    tracing::error!("a call of the local directory panicked");
                }
                worker.caller = worker.nobody.clone();
                if let Some(journal) = shared.journal.upgrade() {
                    // This thread does not write records while jobs wait for it. Otherwise records
                    // would be written one by one.
                    let alone = shared.state.lock().jobs.is_empty();
                    journal.see_to(alone);
                }
                worker.call = None;
            });
            state.jobs.ended(host, began.elapsed());
            continue;
        }
        if state.closed {
            break;
        }
        state.idle.push(wake.clone());
        let are_many = IDLE_THREADS.fetch_add(1, Ordering::Relaxed) >= IDLE_MAX;
        let most = if are_many { IDLE_AMONG_MANY } else { IDLE };
        let timed_out = wake.wait_for(&mut state, most).timed_out();
        IDLE_THREADS.fetch_sub(1, Ordering::Relaxed);
        state.idle.retain(|other| !Arc::ptr_eq(other, &wake));
        if timed_out && state.jobs.is_empty() {
            break;
        }
    }
    state.threads -= 1;
}

/// A thread of the pool, with its present identity.
pub(super) struct Worker {
    /// The caller of the job.
    caller: Arc<Cred>,
    /// The name of the call whose change is being made.
    pub call: Option<Bytes>,
    nobody: Arc<Cred>,
    /// The file-system uid of the thread; gid and groups are those of `whose`. `None`: unknown.
    uid: Option<u32>,
    whose: Option<Arc<Cred>>,
    many_identities: bool,
    /// The reason why the thread cannot act for a caller.
    unfit: Option<Error>,
}

impl Worker {
    fn new(many_identities: bool) -> Self {
        let nobody = Arc::new(Cred { uid: 65534, gid: 65534, groups: Default::default() });
        let unfit =
            if many_identities { sys::own_umask().and_then(|()| drop_capabilities()).err() } else { None };
        Self { caller: nobody.clone(), call: None, nobody, uid: None, whose: None, many_identities, unfit }
    }

    /// The caller of the job.
    pub fn cred(&self) -> &Arc<Cred> {
        &self.caller
    }

    /// Runs `act` as the caller.
    pub fn caller<T>(&mut self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        self.become_caller()?;
        act()
    }

    /// Runs `act` as the superuser.
    pub fn root<T>(&mut self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.many_identities {
            self.set_uid(0)?;
        }
        act()
    }

    fn become_caller(&mut self) -> Result<()> {
        if !self.many_identities {
            return Ok(());
        }
        if let Some(unfit) = &self.unfit {
            return Err(unfit.clone());
        }
        let cred = self.caller.clone();
        let same = self
            .whose
            .as_ref()
            .is_some_and(|w| Arc::ptr_eq(w, &cred) || (w.gid == cred.gid && w.groups == cred.groups));
        if !same {
            // If this fails half-way, the identity counts as unknown.
            self.whose = None;
            sys::set_groups(&cred.groups)?;
            sys::set_fs_gid(cred.gid)?;
            self.whose = Some(cred.clone());
        }
        self.set_uid(cred.uid)
    }

    fn set_uid(&mut self, uid: u32) -> Result<()> {
        if self.uid != Some(uid) {
            self.uid = None;
            sys::set_fs_uid(uid)?;
            self.uid = Some(uid);
        }
        Ok(())
    }
}

/// Keeps the capabilities that file systems check and those to change the identity. Drops all
/// others.
fn drop_capabilities() -> Result<()> {
    let keep = CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID
        | CapabilitySet::MKNOD
        | CapabilitySet::SETUID
        | CapabilitySet::SETGID;
    let mut sets = rustix::thread::capabilities(None).map_err(os)?;
    sets.permitted &= keep;
    sets.effective &= keep;
    sets.inheritable = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, sets).map_err(os)
}
