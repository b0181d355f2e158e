//! Threads with an ESTALE answer to an open, which walk their path again.
//!
//! The kernel opens the file that it has cached under a name. When the name belongs to another file
//! by now, the open fails with ESTALE. The kernel walks the same path once more with fresh lookups
//! and opens the files that they find (`do_filp_open` with `LOOKUP_REVAL`). The program would see a
//! second ESTALE. So the next lookups must not be answered from older state, and the open after
//! them is accepted without a check. The file of the last lookup counts as open until that open
//! arrives. If it were removed or replaced in between, the open would fail again. An open(2) can
//! also get ESTALE for a lookup, or for a question about rights.
//!
//! Renames are a second case. The kernel answers rename(2) by itself when both names are one object
//! to it. It looks up the old name first, and that cached answer may be older than the lookup of
//! the new name. Such a lookup fails with ESTALE, and the kernel looks up both names again.

use hither_vfs::{Cred, Name};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Maximum number of tracked threads.
const THREADS_MAX: usize = 1024;
/// Maximum time until the next request of a thread after an ESTALE or a lookup. The kernel sends it
/// at once.
const RETRYING_MAX: Duration = Duration::from_secs(10);
/// Maximum wait for other calls that change the directory, and for the server. The open of a later
/// thread is checked, but does not get a second ESTALE.
const LATE_MAX: Duration = Duration::from_secs(600);

/// The next open of a thread after its ESTALE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// It follows the ESTALE. The lookups before it were as new as this time.
    Since(Instant),
    /// It may follow the ESTALE, or belong to another system call.
    Late,
}

/// Threads that got ESTALE.
#[derive(Debug, Default)]
pub(crate) struct StaleRetries {
    threads: Mutex<HashMap<u32, Retrying>>,
    /// Their number, for a check without a lock.
    count: AtomicUsize,
    /// Notified when a thread sends its open.
    back: Notify,
}

#[derive(Debug)]
struct Retrying {
    /// Earliest time of requests whose replies the thread accepts.
    since: Instant,
    /// Time of the ESTALE, or of the last answered lookup.
    sent: Instant,
    /// The file of the last lookup, and the thread's identity.
    found: Option<(u64, Arc<Cred>)>,
    last: LastLookup,
    /// The name that the last lookup did not find. The kernel looks such a name up again when it
    /// had cached it.
    missing: Option<(u64, Name)>,
}

/// The answer to the last lookup of a thread since its ESTALE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastLookup {
    /// There was none. A path in /proc/self/fd needs none.
    None,
    File(u64),
    /// Another object. The thread opens no file that it has looked up.
    Other,
}

impl Retrying {
    fn is_expected(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.sent) < RETRYING_MAX
    }
}

impl StaleRetries {
    /// Thread `tid` is about to get ESTALE. Its answers from now on must be as new as `since`.
    /// Returns false without a free entry; then the thread must not get ESTALE.
    pub fn send(&self, tid: u32, since: Instant, now: Instant) -> bool {
        let mut threads = self.threads.lock();
        if threads.len() >= THREADS_MAX {
            threads.retain(|_, retrying| retrying.is_expected(now));
        }
        let room = threads.len() < THREADS_MAX;
        if room {
            threads.insert(
                tid,
                Retrying { since, sent: now, found: None, last: LastLookup::None, missing: None },
            );
        }
        self.count.store(threads.len(), Ordering::Relaxed);
        room
    }

    /// The required freshness of the answer to a lookup, when its thread got ESTALE.
    pub fn since(&self, tid: u32, at: (u64, &Name), now: Instant) -> Option<Instant> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut threads = self.threads.lock();
        let retrying = threads.get_mut(&tid).filter(|retrying| retrying.is_expected(now))?;
        if let Some((dir, name)) = &retrying.missing {
            if (*dir, name) != at {
                return None;
            }
            // The lookup may belong to another system call.
            retrying.since = now;
        }
        Some(retrying.since)
    }

    /// A lookup of the thread from time `began` was answered. The timeout restarts, also after a
    /// slow answer.
    pub fn looked_up(&self, tid: u32, began: Instant, now: Instant) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(retrying) = self.threads.lock().get_mut(&tid)
            && retrying.is_expected(began)
            && retrying.missing.is_none()
        {
            retrying.sent = now;
        }
    }

    /// The thread is about to get this file, or another object, as its answer. `cred` is its
    /// identity.
    pub fn found(&self, tid: u32, file: Option<u64>, cred: &Arc<Cred>) {
        if let Some(retrying) = self.threads.lock().get_mut(&tid) {
            retrying.found = file.map(|file| (file, cred.clone()));
            retrying.last = file.map_or(LastLookup::Other, LastLookup::File);
            retrying.missing = None;
        }
        self.back.notify_waiters();
    }

    /// The thread is about to get the answer that the name does not exist, or an error.
    pub fn missed(&self, tid: u32, at: (u64, &Name)) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(retrying) = self.threads.lock().get_mut(&tid) {
            (retrying.found, retrying.missing) = (None, Some((at.0, at.1.clone())));
        }
        self.back.notify_waiters();
    }

    /// The identity of a thread that found this file and is expected to open it.
    pub fn expects(&self, file: u64, now: Instant) -> Option<Arc<Cred>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let threads = self.threads.lock();
        let mut found =
            threads.values().filter(|retrying| retrying.is_expected(now)).filter_map(|a| a.found.as_ref());
        found.find(|(id, _)| *id == file).map(|(_, cred)| cred.clone())
    }

    /// No thread is expected to open the file any longer.
    pub fn give_up(&self, file: u64) {
        for retrying in self.threads.lock().values_mut() {
            retrying.found.take_if(|(id, _)| *id == file);
        }
        self.back.notify_waiters();
    }

    /// Waits until no thread is expected to open the file.
    pub async fn expected(&self, file: u64) {
        let until = Instant::now() + RETRYING_MAX;
        loop {
            let back = self.back.notified();
            tokio::pin!(back);
            back.as_mut().enable();
            if self.expects(file, Instant::now()).is_none() || timeout_at(until, back).await.is_err() {
                return;
            }
        }
    }

    /// The thread sent a request that ends its tracking.
    pub fn over(&self, tid: u32) {
        drop(self.take(tid));
    }

    /// The thread sent an open of `file` at `now`. An open of another file than the last lookup
    /// found belongs to another system call: the walk ended without an open.
    pub fn opens(&self, tid: u32, file: u64, now: Instant) -> Option<Retry> {
        let retrying = self.take(tid)?;
        let is_retry = match retrying.last {
            LastLookup::None => true,
            LastLookup::File(found) => found == file,
            LastLookup::Other => false,
        };
        match now.saturating_duration_since(retrying.sent) {
            _ if retrying.missing.is_some() || !is_retry => None,
            time if time < RETRYING_MAX => Some(Retry::Since(retrying.since)),
            time if time < LATE_MAX => Some(Retry::Late),
            _ => None,
        }
    }

    fn take(&self, tid: u32) -> Option<Retrying> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut threads = self.threads.lock();
        let retrying = threads.remove(&tid)?;
        self.count.store(threads.len(), Ordering::Relaxed);
        drop(threads);
        self.back.notify_waiters();
        Some(retrying)
    }
}

/// Threads that got ESTALE for a lookup of a rename.
#[derive(Debug, Default)]
pub(crate) struct RenameRetries {
    threads: Mutex<HashMap<u32, RenameRetry>>,
    count: AtomicUsize,
}

#[derive(Debug)]
struct RenameRetry {
    /// The name with the failed lookup, and its directory.
    at: (u64, Name),
    since: Instant,
    /// Another name was looked up since.
    again: bool,
}

impl RenameRetry {
    fn is_at(&self, (dir, name): (u64, &Name)) -> bool {
        self.at.0 == dir && self.at.1 == *name
    }
}

impl RenameRetries {
    /// Thread `tid` looks up this name. Returns whether the thread got ESTALE, and so needs a new
    /// answer.
    pub fn looks_up(&self, tid: u32, at: (u64, &Name), now: Instant) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut threads = self.threads.lock();
        let is_tracked = |retry: &&mut RenameRetry| now.saturating_duration_since(retry.since) < RETRYING_MAX;
        let Some(retry) = threads.get_mut(&tid).filter(is_tracked) else { return false };
        retry.again |= !retry.is_at(at);
        true
    }

    /// Whether a lookup of this name by thread `tid`, which arrived at `since`, must fail with
    /// ESTALE. `doubtful` decides it for a new thread. The kernel looks a cached name up twice
    /// before it accepts the failure, so the second lookup fails too. After a lookup of another
    /// name the thread is answered. Without a free entry the lookup is answered, too.
    pub fn send(&self, tid: u32, at: (u64, &Name), since: Instant, doubtful: impl FnOnce() -> bool) -> bool {
        let known = match self.count.load(Ordering::Relaxed) {
            0 => None,
            _ => {
                let threads = self.threads.lock();
                let sent = |d: &&RenameRetry| since.saturating_duration_since(d.since) < RETRYING_MAX;
                threads.get(&tid).filter(sent).map(|d| (d.is_at(at), d.again))
            }
        };
        match known {
            Some((true, false)) => return true,
            Some((true, true)) => {
                self.over(tid);
                return false;
            }
            // The lookup of the other name.
            Some((false, _)) => return false,
            None if !doubtful() => return false,
            None => {}
        }
        let mut threads = self.threads.lock();
        threads.retain(|_, d| since.saturating_duration_since(d.since) < LATE_MAX);
        let room = threads.len() < THREADS_MAX;
        if room {
            threads.insert(tid, RenameRetry { at: (at.0, at.1.clone()), since, again: false });
        }
        self.count.store(threads.len(), Ordering::Relaxed);
        room
    }

    /// Whether the thread is looking up the names of a rename again.
    pub fn tracks(&self, tid: u32) -> bool {
        let is_tracked = |retry: &RenameRetry| retry.since.elapsed() < RETRYING_MAX;
        self.count.load(Ordering::Relaxed) > 0 && self.threads.lock().get(&tid).is_some_and(is_tracked)
    }

    /// The thread's rename has arrived.
    pub fn over(&self, tid: u32) {
        if self.count.load(Ordering::Relaxed) > 0 {
            let mut threads = self.threads.lock();
            threads.remove(&tid);
            self.count.store(threads.len(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks_up(back: &StaleRetries, tid: u32, now: Instant) -> Option<Instant> {
        back.since(tid, (1, &Name::of_path("f").unwrap()[0]), now)
    }

    /// A lookup of a rename fails with ESTALE until the kernel has looked up the other name again.
    #[tokio::test(start_paused = true)]
    async fn rename_gets_estale_until_retry() {
        let names = Name::of_path("old/new").unwrap();
        let (doubtful, now, old, new) =
            (RenameRetries::default(), Instant::now(), (1, &names[0]), (1, &names[1]));
        assert!(!doubtful.looks_up(1, old, now));
        assert!(!doubtful.send(1, new, now, || false));
        assert!(doubtful.send(1, new, now, || true));
        assert!(doubtful.looks_up(1, new, now), "the kernel asks twice about a known name");
        assert!(doubtful.send(1, new, now, || false));
        assert!(doubtful.looks_up(1, old, now));
        assert!(!doubtful.send(1, old, now, || true), "on its way");
        assert!(doubtful.looks_up(1, new, now));
        assert!(!doubtful.send(1, new, now, || true), "both are as new as that");
        assert!(!doubtful.looks_up(1, old, now));
        assert!(doubtful.send(1, new, now, || true));
        doubtful.over(1);
        assert!(doubtful.send(1, old, now, || true), "the next rename");
        tokio::time::advance(RETRYING_MAX).await;
        assert!(!doubtful.looks_up(1, old, Instant::now()), "the rename did not arrive");
        assert!(doubtful.send(1, new, Instant::now(), || true));
    }

    /// A thread gets one ESTALE, and its next open is expected within the timeout.
    #[tokio::test(start_paused = true)]
    async fn estale_retry_is_expected_once() {
        let (back, since) = (StaleRetries::default(), Instant::now());
        assert_eq!(looks_up(&back, 1, since), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(back.send(1, since, Instant::now()));
        assert_eq!(looks_up(&back, 1, Instant::now()), Some(since));
        assert_eq!(looks_up(&back, 2, Instant::now()), None);
        assert_eq!(back.opens(1, 7, Instant::now()), Some(Retry::Since(since)));
        assert_eq!(back.opens(1, 7, Instant::now()), None);
        for tid in 0..THREADS_MAX as u32 {
            assert!(back.send(tid, since, Instant::now()));
        }
        assert!(!back.send(u32::MAX, since, Instant::now()), "no room");
        tokio::time::advance(RETRYING_MAX).await;
        assert_eq!(looks_up(&back, 3, Instant::now()), None, "too late");
        assert!(back.send(u32::MAX, since, Instant::now()));
        assert_eq!(back.threads.lock().len(), 1, "expired threads are removed");
    }

    /// The open of the found file is expected from each thread that got ESTALE.
    #[tokio::test(start_paused = true)]
    async fn open_of_found_file_is_expected() {
        let (back, cred) = (StaleRetries::default(), Arc::new(Cred::root()));
        let expects = |file| back.expects(file, Instant::now()).is_some();
        back.found(1, Some(7), &cred);
        assert!(!expects(7), "the thread was not sent back");
        assert!(back.send(1, Instant::now(), Instant::now()) && back.send(2, Instant::now(), Instant::now()));
        back.found(1, Some(7), &cred);
        back.found(2, Some(7), &cred);
        assert!(expects(7) && !expects(8));
        back.found(1, Some(8), &cred);
        assert!(expects(7) && expects(8));
        let came = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            back.over(2);
        };
        let began = Instant::now();
        tokio::join!(back.expected(7), came);
        assert_eq!(began.elapsed(), Duration::from_millis(1));
        back.expected(8).await;
        assert_eq!(began.elapsed(), RETRYING_MAX + Duration::from_millis(1), "the open does not arrive");
        assert!(!expects(8));
    }

    /// A walk may end without an open of a file: at a directory, or at an error. The next open is
    /// another system call, and its name is checked.
    #[tokio::test(start_paused = true)]
    async fn next_open_is_no_retry() {
        let (back, cred, now) = (StaleRetries::default(), Arc::new(Cred::root()), Instant::now());
        for file in [None, Some(8)] {
            assert!(back.send(1, now, now));
            back.found(1, file, &cred);
            assert_eq!(back.opens(1, 7, now), None, "{file:?}");
        }
        assert!(back.send(1, now, now));
        back.found(1, Some(7), &cred);
        back.give_up(7);
        assert_eq!(back.opens(1, 7, now), Some(Retry::Since(now)));
    }

    /// A file is not expected to be opened after it was given up.
    #[tokio::test(start_paused = true)]
    async fn given_up_file_is_not_expected() {
        let (back, cred) = (StaleRetries::default(), Arc::new(Cred::root()));
        for (tid, file) in [(1, 7), (2, 7), (3, 8)] {
            assert!(back.send(tid, Instant::now(), Instant::now()));
            back.found(tid, Some(file), &cred);
        }
        let began = Instant::now();
        tokio::join!(back.expected(7), async { back.give_up(7) });
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(back.expects(8, Instant::now()).is_some());
        assert_eq!(back.opens(1, 7, Instant::now()), Some(Retry::Since(began)), "its open is not checked");
    }

    /// A slow lookup restarts the timeout of its thread, for example when the link to the server is
    /// cut.
    #[tokio::test(start_paused = true)]
    async fn slow_lookup_restarts_timeout() {
        let (back, since) = (StaleRetries::default(), Instant::now());
        assert!(back.send(1, since, since) && back.send(2, since, since) && back.send(3, since, since));
        for _ in 0..3 {
            let began = Instant::now();
            tokio::time::advance(RETRYING_MAX * 5).await;
            back.looked_up(1, began, Instant::now());
            assert_eq!(looks_up(&back, 1, Instant::now()), Some(since), "the next lookup must be as new");
        }
        assert_eq!(back.opens(1, 7, Instant::now()), Some(Retry::Since(since)));
        assert_eq!(back.opens(2, 7, Instant::now()), Some(Retry::Late), "not sent again");
        assert_eq!(back.opens(2, 7, Instant::now()), None, "but once");
        tokio::time::advance(LATE_MAX).await;
        back.looked_up(3, Instant::now(), Instant::now());
        assert_eq!(back.opens(3, 7, Instant::now()), None, "after the maximum wait");
    }

    /// The kernel looks up a cached name again that is missing.
    #[tokio::test(start_paused = true)]
    async fn missing_name_is_looked_up_twice() {
        let names = Name::of_path("f/g").unwrap();
        let (back, cred, began) = (StaleRetries::default(), Arc::new(Cred::root()), Instant::now());
        let (f, g) = ((1, &names[0]), (1, &names[1]));
        for tid in 1..=3 {
            assert!(back.send(tid, began, began));
            back.missed(tid, f);
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        let now = Instant::now();
        assert_eq!(back.since(1, f, now), Some(now), "it may be the next call");
        back.found(1, Some(7), &cred);
        assert_eq!(back.opens(1, 7, now), Some(Retry::Since(now)));
        assert_eq!(back.since(2, g, now), None, "it is the next call");
        assert_eq!(back.opens(2, 7, now), None);
        assert_eq!(back.opens(3, 7, now), None, "no file was found");
    }
}
