//! Threads whose open was sent back: they look their path up again and come once more.
//!
//! The kernel opens the file that it has in mind under a name. When the name turns out to belong to another file by now, the
//! open fails with ESTALE, and the kernel walks the same path once more with fresh look-ups and opens what they find
//! (`do_filp_open` with `LOOKUP_REVAL`). A second ESTALE would reach the program: so the look-ups that come next must not be
//! answered from before, and the open after them is believed. It knows nothing of names and files.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Threads remembered.
const THREADS_MAX: usize = 1024;
/// The kernel comes back at once; for so long its look-ups may take.
const AWAY_MAX: Duration = Duration::from_secs(10);

/// Since when the answers to each thread must be fresh, and when it was sent back.
#[derive(Debug, Default)]
pub(crate) struct SentBack {
    threads: Mutex<HashMap<u32, (Instant, Instant)>>,
    /// Their number, for those who need not look.
    count: AtomicUsize,
}

impl SentBack {
    /// Thread `tid` is about to be sent back; what it is answered from now on must be as new as `since`. False when there
    /// is no room: then it must not be sent.
    pub fn send(&self, tid: u32, since: Instant, now: Instant) -> bool {
        let mut threads = self.threads.lock();
        if threads.len() >= THREADS_MAX {
            threads.retain(|_, (_, sent)| now.saturating_duration_since(*sent) < AWAY_MAX);
        }
        let room = threads.len() < THREADS_MAX;
        if room {
            threads.insert(tid, (since, now));
        }
        self.count.store(threads.len(), Ordering::Relaxed);
        room
    }

    /// How new answers to a thread must be, when it was sent back.
    pub fn since(&self, tid: u32, now: Instant) -> Option<Instant> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let threads = self.threads.lock();
        let away = |sent: Instant| now.saturating_duration_since(sent) < AWAY_MAX;
        threads.get(&tid).filter(|(_, sent)| away(*sent)).map(|(since, _)| *since)
    }

    /// The thread came back, or will not come: what [`SentBack::since`] says, for the last time.
    pub fn over(&self, tid: u32, now: Instant) -> Option<Instant> {
        let since = self.since(tid, now);
        if self.count.load(Ordering::Relaxed) > 0 {
            let mut threads = self.threads.lock();
            threads.remove(&tid);
            self.count.store(threads.len(), Ordering::Relaxed);
        }
        since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_thread_comes_back_once_and_in_time() {
        let (back, since) = (SentBack::default(), Instant::now());
        assert_eq!(back.since(1, since), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(back.send(1, since, Instant::now()));
        assert_eq!(back.since(1, Instant::now()), Some(since));
        assert_eq!(back.since(2, Instant::now()), None);
        assert_eq!(back.over(1, Instant::now()), Some(since));
        assert_eq!(back.over(1, Instant::now()), None);
        for tid in 0..THREADS_MAX as u32 {
            assert!(back.send(tid, since, Instant::now()));
        }
        assert!(!back.send(u32::MAX, since, Instant::now()), "no room");
        tokio::time::advance(AWAY_MAX).await;
        assert_eq!(back.since(3, Instant::now()), None, "too late");
        assert!(back.send(u32::MAX, since, Instant::now()));
        assert_eq!(back.threads.lock().len(), 1, "those who never came are forgotten");
    }
}
