//! Stamps: how the repetition of an exclusive creation is recognised without a call more.
//!
//! The protocols' own way, a verifier, costs a SETATTR each time: servers keep it where the file's
//! times belong. A stamp is an access time of this moment whose nanoseconds are random: the file is
//! created GUARDED with it, and when a creation whose answer was lost finds the name taken, the
//! file's access time tells whether it is ours. Only reading the file would change it meanwhile.
//! Whether a server keeps access times to the nanosecond is found out with the first creation of a
//! mount, which is made with a verifier and given a stamp afterwards.

use hither_vfs::{Env, Time};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::SystemTime;

// 0: not known yet.
const KEPT: u8 = 1;
const LOST: u8 = 2;

/// What a mount knows about stamps.
#[derive(Debug, Default)]
pub(crate) struct Stamps(AtomicU8);

/// The stamp of one creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Access time to give the file.
    pub time: Time,
    /// The server is known to keep it.
    pub trusted: bool,
}

impl Stamps {
    /// A stamp of this moment; `None` where they are of no use.
    pub fn make(&self, env: &Env) -> Option<Stamp> {
        let known = self.0.load(Ordering::Relaxed);
        let since = (env.wall)().duration_since(SystemTime::UNIX_EPOCH).ok()?;
        // A clock that went astray gives times that not every file system has.
        let secs = i64::try_from(since.as_secs()).ok().filter(|s| *s < 1 << 31)?;
        let nanos = ((env.random)() % 1_000_000_000) as u32;
        (known != LOST).then_some(Stamp { time: Time { secs, nanos }, trusted: known == KEPT })
    }

    /// A file created with `stamp` has this access time.
    pub fn seen(&self, stamp: &Stamp, atime: Time) {
        let seen = if atime == stamp.time { KEPT } else { LOST };
        if seen == LOST || !stamp.trusted {
            self.0.store(seen, Ordering::Relaxed);
        }
    }

    /// The server does not take them.
    pub fn refused(&self) {
        self.0.store(LOST, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn env() -> Env {
        let wall = || SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000);
        Env { random: Arc::new(|| 7_000_000_005), wall: Arc::new(wall) }
    }

    #[test]
    fn a_stamp_is_trusted_once_it_was_kept() {
        let stamps = Stamps::default();
        let first = stamps.make(&env()).unwrap();
        assert_eq!((first.time, first.trusted), (Time { secs: 1_000, nanos: 5 }, false));
        stamps.seen(&first, first.time);
        let second = stamps.make(&env()).unwrap();
        assert!(second.trusted);
        // A server that behaves differently after all.
        stamps.seen(&second, Time { secs: 1_000, nanos: 0 });
        assert_eq!(stamps.make(&env()), None);
    }

    #[test]
    fn a_server_that_cuts_times_off_gets_none() {
        let stamps = Stamps::default();
        let first = stamps.make(&env()).unwrap();
        stamps.seen(&first, Time { secs: 1_000, nanos: 0 });
        assert_eq!(stamps.make(&env()), None);
    }
}
