//! Threads whose open was sent back: they look their path up again and come once more.
//!
//! The kernel opens the file that it has cached under a name. When the name turns out to belong to
//! another file by now, the open fails with ESTALE. The kernel walks the same path once more with
//! fresh lookups and opens the files that they find (`do_filp_open` with `LOOKUP_REVAL`). A second
//! ESTALE would reach the program. So the next lookups must not be answered from older state, and
//! the open after them is believed. The file that the last of them found counts as open until that
//! open has come: removed or replaced in between, it would be stale a second time. This module
//! knows nothing of names.
//!
//! Renames are another such case. The kernel answers rename(2) by itself when it takes both names
//! for one object. It looks the old name up first, and that cached answer may be older than the
//! lookup of the new name. Such a lookup fails with ESTALE, and the kernel begins again with both.

use hither_vfs::{Cred, Name};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Threads remembered.
const THREADS_MAX: usize = 1024;
/// The kernel comes back at once, and goes on at once when a look-up is answered.
const AWAY_MAX: Duration = Duration::from_secs(10);
/// Longest wait for other calls that change the directory, and for the server. A later thread gets
/// no belief, but is not sent back again.
const LATE_MAX: Duration = Duration::from_secs(600);

/// How a thread comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Back {
    /// Its look-ups were as new as this.
    Since(Instant),
    /// Perhaps it has not come back, but begins something else.
    Late,
}

/// Threads that were sent back.
#[derive(Debug, Default)]
pub(crate) struct SentBack {
    threads: Mutex<HashMap<u32, Away>>,
    /// Their number, for a check without a lock.
    count: AtomicUsize,
    /// A thread has come back.
    back: Notify,
}

#[derive(Debug)]
struct Away {
    /// Since when the answers to the thread must be fresh.
    since: Instant,
    /// When it was sent back.
    sent: Instant,
    /// The file that its last look-up found, and the thread's identity.
    found: Option<(u64, Arc<Cred>)>,
    /// The name that its last look-up did not find. The kernel looks such a name up a second time
    /// when it has known it before.
    missing: Option<(u64, Name)>,
}

impl Away {
    fn is_expected(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.sent) < AWAY_MAX
    }
}

impl SentBack {
    /// Thread `tid` is about to be sent back; its answers from now on must be as new as `since`.
    /// False when there is no room: then it must not be sent.
    pub fn send(&self, tid: u32, since: Instant, now: Instant) -> bool {
        let mut threads = self.threads.lock();
        if threads.len() >= THREADS_MAX {
            threads.retain(|_, away| away.is_expected(now));
        }
        let room = threads.len() < THREADS_MAX;
        if room {
            threads.insert(tid, Away { since, sent: now, found: None, missing: None });
        }
        self.count.store(threads.len(), Ordering::Relaxed);
        room
    }

    /// How new the answer to a look-up must be, when its thread was sent back.
    pub fn since(&self, tid: u32, at: (u64, &Name), now: Instant) -> Option<Instant> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut threads = self.threads.lock();
        let away = threads.get_mut(&tid).filter(|away| away.is_expected(now))?;
        if let Some((dir, name)) = &away.missing {
            if (*dir, name) != at {
                return None;
            }
            // It may be another call.
            away.since = now;
        }
        Some(away.since)
    }

    /// A look-up of the thread that came at `began` has been answered: however long that took, it
    /// goes on from there.
    pub fn looked_up(&self, tid: u32, began: Instant, now: Instant) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(away) = self.threads.lock().get_mut(&tid)
            && away.is_expected(began)
            && away.missing.is_none()
        {
            away.sent = now;
        }
    }

    /// The thread, whose identity is `cred`, is about to get this file as an answer, or something
    /// else.
    pub fn found(&self, tid: u32, file: Option<u64>, cred: &Arc<Cred>) {
        if let Some(away) = self.threads.lock().get_mut(&tid) {
            away.found = file.map(|file| (file, cred.clone()));
            away.missing = None;
        }
        self.back.notify_waiters();
    }

    /// The thread is about to be told that there is no such name, or that the look-up failed.
    pub fn missed(&self, tid: u32, at: (u64, &Name)) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(away) = self.threads.lock().get_mut(&tid) {
            (away.found, away.missing) = (None, Some((at.0, at.1.clone())));
        }
        self.back.notify_waiters();
    }

    /// The identity of a thread that got this file as an answer and is expected to open it.
    pub fn expects(&self, file: u64, now: Instant) -> Option<Arc<Cred>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let threads = self.threads.lock();
        let mut found =
            threads.values().filter(|away| away.is_expected(now)).filter_map(|a| a.found.as_ref());
        found.find(|(id, _)| *id == file).map(|(_, cred)| cred.clone())
    }

    /// Waits until no thread is expected to open the file.
    pub async fn expected(&self, file: u64) {
        let until = Instant::now() + AWAY_MAX;
        loop {
            let back = self.back.notified();
            tokio::pin!(back);
            back.as_mut().enable();
            if self.expects(file, Instant::now()).is_none() || timeout_at(until, back).await.is_err() {
                return;
            }
        }
    }

    /// The thread came back at `now`, or will not come.
    pub fn over(&self, tid: u32, now: Instant) -> Option<Back> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut threads = self.threads.lock();
        let away = threads.remove(&tid)?;
        self.count.store(threads.len(), Ordering::Relaxed);
        drop(threads);
        self.back.notify_waiters();
        match now.saturating_duration_since(away.sent) {
            _ if away.missing.is_some() => None,
            time if time < AWAY_MAX => Some(Back::Since(away.since)),
            time if time < LATE_MAX => Some(Back::Late),
            _ => None,
        }
    }
}

/// Threads whose rename was sent back.
#[derive(Debug, Default)]
pub(crate) struct Doubtful {
    threads: Mutex<HashMap<u32, Doubt>>,
    count: AtomicUsize,
}

#[derive(Debug)]
struct Doubt {
    /// The name whose look-up failed, and its directory.
    at: (u64, Name),
    since: Instant,
    /// Another name has been looked up since.
    again: bool,
}

impl Doubt {
    fn is_at(&self, (dir, name): (u64, &Name)) -> bool {
        self.at.0 == dir && self.at.1 == *name
    }
}

impl Doubtful {
    /// Thread `tid` looks up this name: how new the answer must be, when the thread was sent back.
    pub fn looks_up(&self, tid: u32, at: (u64, &Name), now: Instant) -> Option<Instant> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut threads = self.threads.lock();
        let doubt = threads.get_mut(&tid).filter(|d| now.saturating_duration_since(d.since) < AWAY_MAX)?;
        doubt.again |= !doubt.is_at(at);
        Some(doubt.since)
    }

    /// Whether a look-up of this name by thread `tid`, which came at `since`, is to fail. That it
    /// is `doubtful` counts unless the thread has begun again or there is no room for it. (The
    /// kernel asks a second time before it believes that a name that it has known fails.)
    pub fn send(&self, tid: u32, at: (u64, &Name), since: Instant, doubtful: impl FnOnce() -> bool) -> bool {
        let known = match self.count.load(Ordering::Relaxed) {
            0 => None,
            _ => {
                let threads = self.threads.lock();
                let sent = |d: &&Doubt| since.saturating_duration_since(d.since) < AWAY_MAX;
                threads.get(&tid).filter(sent).map(|d| (d.is_at(at), d.again))
            }
        };
        match known {
            Some((true, false)) => return true,
            Some((true, true)) => {
                self.over(tid);
                return false;
            }
            // On its way to that name.
            Some((false, _)) => return false,
            None if !doubtful() => return false,
            None => {}
        }
        let mut threads = self.threads.lock();
        threads.retain(|_, d| since.saturating_duration_since(d.since) < LATE_MAX);
        let room = threads.len() < THREADS_MAX;
        if room {
            threads.insert(tid, Doubt { at: (at.0, at.1.clone()), since, again: false });
        }
        self.count.store(threads.len(), Ordering::Relaxed);
        room
    }

    /// The thread's rename has come.
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

    fn looks_up(back: &SentBack, tid: u32, now: Instant) -> Option<Instant> {
        back.since(tid, (1, &Name::of_path("f").unwrap()[0]), now)
    }

    #[tokio::test(start_paused = true)]
    async fn a_rename_is_sent_back_until_it_begins_again() {
        let names = Name::of_path("old/new").unwrap();
        let (doubtful, now, old, new) = (Doubtful::default(), Instant::now(), (1, &names[0]), (1, &names[1]));
        assert_eq!(doubtful.looks_up(1, old, now), None);
        assert!(!doubtful.send(1, new, now, || false));
        assert!(doubtful.send(1, new, now, || true));
        assert_eq!(doubtful.looks_up(1, new, now), Some(now), "the kernel doubts the known name first");
        assert!(doubtful.send(1, new, now, || false));
        assert_eq!(doubtful.looks_up(1, old, now), Some(now));
        assert!(!doubtful.send(1, old, now, || true), "on its way");
        assert_eq!(doubtful.looks_up(1, new, now), Some(now));
        assert!(!doubtful.send(1, new, now, || true), "both are as new as that");
        assert_eq!(doubtful.looks_up(1, old, now), None);
        assert!(doubtful.send(1, new, now, || true));
        doubtful.over(1);
        assert!(doubtful.send(1, old, now, || true), "the next rename");
        tokio::time::advance(AWAY_MAX).await;
        assert_eq!(doubtful.looks_up(1, old, Instant::now()), None, "it has not come");
        assert!(doubtful.send(1, new, Instant::now(), || true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_thread_comes_back_once_and_in_time() {
        let (back, since) = (SentBack::default(), Instant::now());
        assert_eq!(looks_up(&back, 1, since), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(back.send(1, since, Instant::now()));
        assert_eq!(looks_up(&back, 1, Instant::now()), Some(since));
        assert_eq!(looks_up(&back, 2, Instant::now()), None);
        assert_eq!(back.over(1, Instant::now()), Some(Back::Since(since)));
        assert_eq!(back.over(1, Instant::now()), None);
        for tid in 0..THREADS_MAX as u32 {
            assert!(back.send(tid, since, Instant::now()));
        }
        assert!(!back.send(u32::MAX, since, Instant::now()), "no room");
        tokio::time::advance(AWAY_MAX).await;
        assert_eq!(looks_up(&back, 3, Instant::now()), None, "too late");
        assert!(back.send(u32::MAX, since, Instant::now()));
        assert_eq!(back.threads.lock().len(), 1, "those who never came are forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn found_file_is_expected() {
        let (back, cred) = (SentBack::default(), Arc::new(Cred::root()));
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
            back.over(2, Instant::now());
        };
        let began = Instant::now();
        tokio::join!(back.expected(7), came);
        assert_eq!(began.elapsed(), Duration::from_millis(1));
        back.expected(8).await;
        assert_eq!(began.elapsed(), AWAY_MAX + Duration::from_millis(1), "the thread does not come");
        assert!(!expects(8));
    }

    /// Look-ups that wait for a server behind a link that is cut do not make a thread one that has
    /// not been sent.
    #[tokio::test(start_paused = true)]
    async fn a_thread_may_look_up_for_long() {
        let (back, since) = (SentBack::default(), Instant::now());
        assert!(back.send(1, since, since) && back.send(2, since, since) && back.send(3, since, since));
        for _ in 0..3 {
            let began = Instant::now();
            tokio::time::advance(AWAY_MAX * 5).await;
            back.looked_up(1, began, Instant::now());
            assert_eq!(looks_up(&back, 1, Instant::now()), Some(since), "the next one is to be as new");
        }
        assert_eq!(back.over(1, Instant::now()), Some(Back::Since(since)));
        assert_eq!(back.over(2, Instant::now()), Some(Back::Late), "not sent again");
        assert_eq!(back.over(2, Instant::now()), None, "but once");
        tokio::time::advance(LATE_MAX).await;
        back.looked_up(3, Instant::now(), Instant::now());
        assert_eq!(back.over(3, Instant::now()), None, "too late for anything");
    }

    /// The kernel looks a name up again that it has known and that is missing.
    #[tokio::test(start_paused = true)]
    async fn missing_name_is_looked_up_twice() {
        let names = Name::of_path("f/g").unwrap();
        let (back, cred, began) = (SentBack::default(), Arc::new(Cred::root()), Instant::now());
        let (f, g) = ((1, &names[0]), (1, &names[1]));
        for tid in 1..=3 {
            assert!(back.send(tid, began, began));
            back.missed(tid, f);
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        let now = Instant::now();
        assert_eq!(back.since(1, f, now), Some(now), "perhaps it is the next call");
        back.found(1, Some(7), &cred);
        assert_eq!(back.over(1, now), Some(Back::Since(now)));
        assert_eq!(back.since(2, g, now), None, "it is the next call");
        assert_eq!(back.over(2, now), None);
        assert_eq!(back.over(3, now), None, "nothing was found that it could open");
    }
}
