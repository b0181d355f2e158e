//! Reads that the kernel answers itself, from a local file with all the bytes of a remote one.
//!
//! The kernel has rules: all opens of an inode at a time use the same local file or none does, and
//! the local file cannot be taken away while one of them lives. Elsewhere an open file shows other
//! clients' writes when its attributes expire or its lease is withdrawn, and this machine's writes
//! at once. A local file that cannot be taken away would go on showing the old bytes, and an open
//! of the new version beside it fails, or maps the old bytes. So passthrough is for mounts on which
//! nothing changes, read-only ones whose contents are taken to be frozen
//! ([`Config::passthrough`](crate::Config)). There each open is noted here, and a call that would
//! change a lent file (after `mount -o remount,rw`: an open for writing, a cut) is refused with
//! `ETXTBSY` before anything is done.
//!
//! It knows nothing of where local files come from. A kernel or file system that cannot do it is
//! found out by trying, once.

use crate::device::Device;
use hither_vfs::{Backing, Error, OpenAccess, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How the opens of each inode are served.
#[derive(Debug)]
pub(crate) struct Passthrough {
    device: Arc<Device>,
    on: AtomicBool,
    modes: Mutex<HashMap<u64, Mode>>,
    opens: AtomicU64,
}

#[derive(Debug)]
enum Mode {
    /// So many opens come here with their reads.
    Cached(usize),
    /// So many opens read from the local file with this number.
    Lent { id: u32, opens: usize, _file: Backing },
}

/// An open that is noted; ends when dropped.
#[derive(Debug)]
pub(crate) struct Noted {
    all: Arc<Passthrough>,
    inode: u64,
    /// Number of the local file, when reads go there.
    pub backing_id: Option<u32>,
}

impl Passthrough {
    /// Nothing is lent until [`Passthrough::start`].
    pub fn new(device: Arc<Device>) -> Arc<Self> {
        Arc::new(Self { device, on: false.into(), modes: Mutex::default(), opens: 0.into() })
    }

    /// The kernel knows how.
    pub fn start(&self) {
        self.on.store(true, Ordering::Release);
    }

    /// Opens so far that read without coming here.
    pub fn opens(&self) -> u64 {
        self.opens.load(Ordering::Relaxed)
    }

    /// Notes an open, or for as long as it lasts a change of the length; `None` when nothing is
    /// ever lent in this mount.
    ///
    /// # Errors
    /// `ETXTBSY` for an open for writing while the file is lent.
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
                // If one file cannot be lent, no file of the same disk can.
                tracing::info!("the kernel refuses to read from the local disk by itself: {e}");
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
            tracing::debug!("a file lent to the kernel could not be taken back: {e}");
        }
    }
}
