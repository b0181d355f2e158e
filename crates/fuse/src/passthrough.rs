//! Passthrough: the kernel reads from a local file with all bytes of a remote file.
//!
//! The kernel requires that all concurrent opens of an inode use the same local file, or none. It
//! cannot give up the local file while one of these opens exists. Without passthrough, an open file
//! shows other clients' writes when its attributes expire or its lease is withdrawn. It shows this
//! machine's writes at once. With a local file it would continue to show the old bytes. An open of
//! the new version beside it would fail or map the old bytes.
//!
//! So passthrough is for mounts without changes: read-only mounts with contents declared as frozen
//! ([`Config::passthrough`](crate::Config)). On such a mount each open is recorded. A call that
//! would change a lent file (after `mount -o remount,rw`: an open for writing, a truncation) fails
//! with `ETXTBSY` before any change.
//!
//! docs/design/cached-reads.md has the reasons.
//!
//! Whether the kernel and the local file system support passthrough is found out with the first
//! file.

use crate::device::Device;
use hither_vfs::{Backing, Error, OpenAccess, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The read path of the opens of each inode.
#[derive(Debug)]
pub(crate) struct Passthrough {
    device: Arc<Device>,
    on: AtomicBool,
    modes: Mutex<HashMap<u64, Mode>>,
    opens: AtomicU64,
}

#[derive(Debug)]
enum Mode {
    /// The number of opens that read through the daemon.
    Cached(usize),
    /// The number of opens that read from the local file with this number.
    Lent { id: u32, opens: usize, _file: Backing },
}

/// A recorded open, which ends when dropped.
#[derive(Debug)]
pub(crate) struct Noted {
    all: Arc<Passthrough>,
    inode: u64,
    /// Number of the local file for reads by the kernel.
    pub backing_id: Option<u32>,
}

impl Passthrough {
    /// Passthrough is off until [`Passthrough::start`].
    pub fn new(device: Arc<Device>) -> Arc<Self> {
        Arc::new(Self { device, on: false.into(), modes: Mutex::default(), opens: 0.into() })
    }

    /// Starts passthrough, which the kernel supports.
    pub fn start(&self) {
        self.on.store(true, Ordering::Release);
    }

    /// Number of opens until now with reads by the kernel.
    pub fn opens(&self) -> u64 {
        self.opens.load(Ordering::Relaxed)
    }

    /// Records an open, or a change of the length while it runs. `None` while passthrough is off.
    ///
    /// # Errors
    /// `ETXTBSY` for an open for writing while the kernel reads the local file.
    pub fn open(
        self: &Arc<Self>,
        inode: u64,
        access: OpenAccess,
        backing: Option<Backing>,
    ) -> Result<Option<Noted>> {
        if !self.on.load(Ordering::Acquire) {
            return Ok(None);
        }
        let mut modes = self.modes.lock();
        let backing_id = match modes.get_mut(&inode) {
            Some(Mode::Lent { .. }) if access.contains(OpenAccess::WRITE) => {
                return Err(Error::new(libc::ETXTBSY));
            }
            Some(Mode::Lent { id, opens, .. }) => {
                *opens += 1;
                Some(*id)
            }
            Some(Mode::Cached(opens)) => {
                *opens += 1;
                None
            }
            None => {
                let lent = backing.filter(|_| access == OpenAccess::READ).and_then(|file| self.lend(file));
                let id = lent.as_ref().map(|(id, _)| *id);
                let mode =
                    lent.map_or(Mode::Cached(1), |(id, file)| Mode::Lent { id, opens: 1, _file: file });
                modes.insert(inode, mode);
                id
            }
        };
        self.opens.fetch_add(u64::from(backing_id.is_some()), Ordering::Relaxed);
        Ok(Some(Noted { all: self.clone(), inode, backing_id }))
    }

    fn lend(&self, file: Backing) -> Option<(u32, Backing)> {
        match self.device.lend(&file.0) {
            Ok(id) => Some((id, file)),
            Err(e) => {
                // When one file is refused, all files of the same disk are.
                tracing::info!("the kernel refuses passthrough to the local disk: {e}");
                self.on.store(false, Ordering::Release);
                None
            }
        }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let mut modes = self.all.modes.lock();
        let Some(mode) = modes.get_mut(&self.inode) else { return };
        let (Mode::Cached(opens) | Mode::Lent { opens, .. }) = mode;
        *opens -= 1;
        if *opens > 0 {
            return;
        }
        if let Some(Mode::Lent { id, .. }) = modes.remove(&self.inode)
            && let Err(e) = self.all.device.take_back(id)
        {
            tracing::debug!("cannot end passthrough of a file: {e}");
        }
    }
}
