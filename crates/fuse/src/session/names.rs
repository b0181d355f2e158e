//! Invalidation of names in the kernel, which keeps mounts on them.
//!
//! Since Linux 6.16 one notification invalidates all names of the mount, at once and without
//! waiting for a lock. It would detach the mounts inside, so it is used only when there are none.
//! Otherwise names expire one by one. That keeps mounts, but waits for the lock of the directory,
//! which running calls hold.

use super::{Session, waiting_for_kernel};
use crate::abi::{Out, init_flags, notify};
use crate::device::Device;
use crate::inode::Inode;
use crate::mounts::Inside;
use hither_vfs::{Fh, Name};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Maximum wait of a lease withdrawal for names to expire.
const EXPIRY_PATIENCE: Duration = Duration::from_secs(1);

impl Session {
    /// Makes the kernel look up again all cached names of a directory, because not all users may
    /// use them any more. When names expire one by one, they expire after the answer. Until then
    /// cached names still work.
    pub async fn distrust_names(&self, dir: &Inode) {
        if !self.distrust_all_names().await {
            self.expire_names(dir, self.inodes.children(dir.id));
        }
    }

    /// Invalidates names that the kernel got under a lease, including absent names, and waits for
    /// it.
    pub(super) async fn revoke_names(&self, dirs: &[Arc<Inode>]) {
        let names = |dir: &Arc<Inode>| [dir.take_absent(), self.inodes.children(dir.id)].concat();
        let all: Vec<_> = dirs.iter().map(|dir| (dir, names(dir))).collect();
        if self.distrust_all_names().await {
            return;
        }
        let expiries: Vec<_> = all.into_iter().map(|(dir, names)| self.expire_names(dir, names)).collect();
        if self.knows_epochs() {
            let done = async {
                for expiry in expiries {
                    let _ = expiry.await;
                }
            };
            let _ = tokio::time::timeout(EXPIRY_PATIENCE, done).await;
        }
    }

    /// Invalidates names when all leases end. Where it does no harm, names without a lease are
    /// looked up again as well.
    pub(super) async fn revoke_all_names(&self, dirs: &[Arc<Inode>]) {
        if dirs.is_empty() {
            self.distrust_all_names().await;
        } else {
            self.revoke_names(dirs).await;
        }
    }

    /// Makes the kernel look up a name again, and waits for it. A running lookup of the name delays
    /// it. So it never runs on a thread that reads requests.
    pub async fn drop_name(&self, dir: u64, name: &Name) {
        if let Some(dir) = self.inodes.find(dir) {
            let _ = self.expire_names(&dir, vec![name.clone()]).await;
        }
    }

    /// Makes the kernel look up a name of a running call again. The call may hold the lock of the
    /// directory. So names that expire one by one expire after the answer.
    pub async fn doubt_name(&self, dir: u64, name: &Name) {
        if !self.distrust_all_names().await
            && let Some(dir) = self.inodes.find(dir)
        {
            self.expire_names(&dir, vec![name.clone()]);
        }
    }

    /// Whether the kernel can invalidate all cached names at once without detaching a mount, as far
    /// as known.
    pub fn can_distrust_names(&self) -> bool {
        self.knows_epochs() && !self.mounts_inside.load(Ordering::Relaxed)
    }

    /// Whether a mount is on a name, or below it.
    pub async fn is_mounted_on(&self, dir: &Fh, name: &Name) -> bool {
        let (Some(&number), Some(path)) = (self.number.get(), self.path(dir, name)) else { return false };
        let look = tokio::task::spawn_blocking(move || Inside::of(number).is_at_or_below(&path));
        look.await.unwrap_or(false)
    }

    fn path(&self, dir: &Fh, name: &Name) -> Option<Vec<u8>> {
        let mut path = Vec::new();
        for name in self.inodes.path_of(dir)?.iter().chain([name]) {
            path.push(b'/');
            path.extend_from_slice(name.as_bytes());
        }
        Some(path)
    }

    fn knows_epochs(&self) -> bool {
        const EPOCH_SINCE_MINOR: u32 = 44;
        self.negotiated().0 >= EPOCH_SINCE_MINOR
    }

    /// Makes the kernel look up all cached names again. Returns false when that would detach a
    /// mount, or is not supported.
    async fn distrust_all_names(&self) -> bool {
        let Some(number) = self.number.get().copied().filter(|_| self.knows_epochs()) else { return false };
        let device = self.device.clone();
        let act = move || {
            let none = Inside::of(number).is_none();
            (none, none && device.notify(notify::INC_EPOCH, &[]).is_ok())
        };
        let (none, done) = tokio::task::spawn_blocking(act).await.unwrap_or((false, false));
        self.mounts_inside.store(!none, Ordering::Relaxed);
        done
    }

    /// Lets names of a directory expire. A kernel that can only invalidate names (before 6.2) does
    /// not get names with mounts on them or below them.
    fn expire_names(&self, dir: &Inode, names: Vec<Name>) -> tokio::task::JoinHandle<()> {
        let (_, flags) = self.negotiated();
        let expires = flags & init_flags::HAS_EXPIRE_ONLY != 0;
        let (device, id, number, fh) = (self.device.clone(), dir.id, self.number.get().copied(), dir.fh());
        let paths: Vec<_> =
            if expires { Vec::new() } else { names.iter().map(|name| self.path(&fh, name)).collect() };
        let work = move || {
            let inside = number.filter(|_| !expires).map(Inside::of).unwrap_or_default();
            for (i, name) in names.iter().enumerate() {
                let path = paths.get(i).and_then(Option::as_deref);
                if path.is_none_or(|path| !inside.is_at_or_below(path)) {
                    expire_name(&device, id, name, if expires { notify::EXPIRE_ONLY } else { 0 });
                }
            }
        };
        let permits = self.name_drops.clone();
        self.rt.spawn(async move {
            waiting_for_kernel(&permits, work).await;
        })
    }
}

fn expire_name(device: &Device, dir: u64, name: &Name, expire: u32) {
    let mut head = Out::with_capacity(16);
    head.u64(dir).u32(name.as_bytes().len() as u32).u32(expire);
    let parts = [&head.into_vec()[..], name.as_bytes(), b"\0"].map(|p| p.to_vec());
    let _ = device.notify(notify::INVAL_ENTRY, &parts.each_ref().map(|p| IoSlice::new(p)));
}
