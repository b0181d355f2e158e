//! The path of a socket is taken under a lock. To check whether its owner is dead, to remove it and
//! to make another one are three steps, and two daemons that begin at the same time would each
//! remove the other's new socket.
//!
//! The lock is on the directory (flock(2)), so nothing is left behind.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

/// Number of attempts, and the pause between: the holder of the lock makes a socket, which takes no
/// time.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// It is ours to take a path until this is dropped.
pub struct Turn(Option<File>);

impl Turn {
    /// Waits for it. Where a directory cannot be locked, or another process holds it for seconds,
    /// the caller goes on without.
    #[expect(clippy::disallowed_methods, reason = "at the start of a daemon, before it serves anything")]
    pub fn at(path: &Path) -> Self {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Ok(dir) = File::open(dir) else { return Self(None) };
        for _ in 0..TRIES {
            match dir.try_lock() {
                Ok(()) => return Self(Some(dir)),
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
                Err(TryLockError::Error(_)) => break,
            }
        }
        Self(None)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(dir) = self.0.take() {
            let _ = dir.unlock();
        }
    }
}
