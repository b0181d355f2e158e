//! A lock for creating a socket file. A daemon checks whether the owner of a file is dead, removes
//! the file, and makes its own. Without the lock, two daemons that start at the same time could
//! remove each other's new socket.
//!
//! The lock is on the directory (flock(2)), so no file remains.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

/// Number of attempts, and the pause between them. The holder of the lock only creates a socket,
/// which is fast.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// The right to create a file at a path, until dropped.
pub struct Turn(Option<File>);

impl Turn {
    /// Waits for the right. If the directory cannot be locked, or another process holds it for
    /// seconds, the caller continues without the lock.
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
