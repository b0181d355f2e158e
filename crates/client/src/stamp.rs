//! Stamps: recognise a repeated exclusive creation without an additional call.
//!
//! The protocols use a verifier for this. Servers store the verifier in the times of the file, so
//! the client needs a SETATTR after each creation. A stamp is an access time: the present second
//! with random nanoseconds. The client creates the file GUARDED with the stamp. When the reply was
//! lost and the repeated creation finds the name taken, the client compares the access time. An
//! equal access time proves that this client created the file. Only a read of the file in between
//! could change the access time. Not every server keeps access times to the nanosecond. The first
//! creation of a mount finds this out: the client creates with a verifier and sets a stamp
//! afterwards.

use hither_vfs::{Env, SetAttr, SetTime, Time, VERIFIER_NANOS};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::SystemTime;

// 0: not known yet.
const KEPT: u8 = 1;
const LOST: u8 = 2;

/// Whether the server of a mount keeps stamps.
#[derive(Debug, Default)]
pub(crate) struct Stamps(AtomicU8);

/// The stamp of one creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Access time to give the file.
    pub time: Time,
    /// Modification time that belongs to the stamp: the second half of a verifier. The first half
    /// alone can be equal for two clients.
    pub mtime: Option<Time>,
    /// The server is known to keep the access time to the nanosecond.
    pub trusted: bool,
}

impl Stamp {
    /// Whether a file with these times was created with the stamp.
    pub fn is_of(&self, atime: Time, mtime: Option<Time>) -> bool {
        self.time == atime && (self.mtime.is_none() || self.mtime == mtime)
    }
}

impl Stamps {
    /// A stamp of the present moment. `None` when the server does not keep stamps.
    ///
    /// Given times are the stamp itself, if they have nanoseconds: a gateway gets the stamp of its
    /// client as `atime`, or the verifier as both times. With other given times there is no stamp.
    pub fn make(&self, env: &Env, set: &SetAttr) -> Option<Stamp> {
        let known = self.0.load(Ordering::Relaxed);
        let trusted = known == KEPT;
        let is_fine = |time: &Time| known != LOST && !time.nanos.is_multiple_of(1_000);
        match (set.atime, set.mtime) {
            (None, _) => {}
            (Some(SetTime::To(time)), None) if is_fine(&time) => {
                return Some(Stamp { time, mtime: None, trusted });
            }
            (Some(SetTime::To(time)), Some(SetTime::To(mtime)))
                if known != LOST && [time.nanos, mtime.nanos] == [VERIFIER_NANOS; 2] =>
            {
                return Some(Stamp { time, mtime: Some(mtime), trusted });
            }
            _ => return None,
        }
        let since = (env.wall)().duration_since(SystemTime::UNIX_EPOCH).ok()?;
        // A wrong clock gives times that some file systems cannot store.
        let secs = i64::try_from(since.as_secs()).ok().filter(|s| *s < 1 << 31)?;
        let nanos = ((env.random)() % 1_000_000_000) as u32;
        (known != LOST).then_some(Stamp { time: Time { secs, nanos }, mtime: None, trusted })
    }

    /// Records the access time of a file that was created with `stamp`.
    pub fn seen(&self, stamp: &Stamp, atime: Time) {
        let seen = if atime == stamp.time { KEPT } else { LOST };
        if seen == LOST || !stamp.trusted {
            self.0.store(seen, Ordering::Relaxed);
        }
    }

    /// Records that the server refuses stamps.
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

    /// A stamp is trusted once the server has kept an earlier one. No stamp is made after the
    /// server has cut off the nanoseconds.
    #[test]
    fn kept_stamp_is_trusted() {
        let stamps = Stamps::default();
        let first = stamps.make(&env(), &SetAttr::default()).unwrap();
        assert_eq!((first.time, first.trusted), (Time { secs: 1_000, nanos: 5 }, false));
        stamps.seen(&first, first.time);
        let second = stamps.make(&env(), &SetAttr::default()).unwrap();
        assert!(second.trusted);
        // The server later cuts off the nanoseconds.
        stamps.seen(&second, Time { secs: 1_000, nanos: 0 });
        assert_eq!(stamps.make(&env(), &SetAttr::default()), None);
    }

    /// A server that cuts off the nanoseconds of the first stamp gets no further stamp.
    #[test]
    fn truncating_server_gets_no_stamp() {
        let stamps = Stamps::default();
        let first = stamps.make(&env(), &SetAttr::default()).unwrap();
        stamps.seen(&first, Time { secs: 1_000, nanos: 0 });
        assert_eq!(stamps.make(&env(), &SetAttr::default()), None);
    }
}
