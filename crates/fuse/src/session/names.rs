//! Names that the kernel has to look up again, without harm to mounts on them.
//!
//! Since Linux 6.16 one notification makes all names of the mount doubtful, at once and without
//! waiting for a lock. It detaches the mounts inside on their way, so it is used only where there
//! are none. Otherwise names expire one by one: that keeps mounts, and it waits for the lock of the
//! directory, which calls that are under way hold.

use super::Session;
use crate::abi::{Out, init_flags, notify};
use crate::device::Device;
use crate::inode::Inode;
use crate::mounts::Inside;
use hither_vfs::{Fh, Name};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long the end of a lease waits for names to expire.
const EXPIRY_PATIENCE: Duration = Duration::from_secs(1);

impl Session {
    /// Makes the kernel look up again all names that it has cached in a directory that not all
    /// users may search any more. Where names expire one by one, that comes after the answer: for
    /// that moment cached names still work.
    pub async fn distrust_names(&self, dir: &Inode) {
        if !self.distrust_all_names().await {
            self.expire(dir, self.inodes.children(dir.id));
        }
    }

    /// The same for names that the kernel got under a lease, absent ones included; waits for it.
    pub(super) async fn withdraw_names(&self, dirs: &[Arc<Inode>]) {
        let names = |dir: &Arc<Inode>| [dir.take_absent(), self.inodes.children(dir.id)].concat();
        let all: Vec<_> = dirs.iter().map(|dir| (dir, names(dir))).collect();
        if self.distrust_all_names().await {
            return;
        }
        let expiries: Vec<_> = all.into_iter().map(|(dir, names)| self.expire(dir, names)).collect();
        if self.knows_epochs() {
            let done = async {
                for expiry in expiries {
                    let _ = expiry.await;
                }
            };
            let _ = tokio::time::timeout(EXPIRY_PATIENCE, done).await;
        }
    }

    /// The same when all leases end: names that hold for a time of their own are looked up again as
    /// well, where that does no harm.
    pub(super) async fn withdraw_all_names(&self, dirs: &[Arc<Inode>]) {
        if dirs.is_empty() {
            self.distrust_all_names().await;
        } else {
            self.withdraw_names(dirs).await;
        }
    }

    /// Makes the kernel look up a name again, and waits for it: a look-up of it that is under way
    /// holds it up, so this never runs on a thread that reads requests.
    pub async fn drop_name(&self, dir: u64, name: &Name) {
        if let Some(dir) = self.inodes.find(dir) {
            let _ = self.expire(&dir, vec![name.clone()]).await;
        }
    }

    /// Makes the kernel look up a name again that a call is about, which may hold its directory's
    /// lock: where names expire one by one that comes after the answer.
    pub async fn doubt_name(&self, dir: u64, name: &Name) {
        if !self.distrust_all_names().await
            && let Some(dir) = self.inodes.find(dir)
        {
            self.expire(&dir, vec![name.clone()]);
        }
    }

    /// Whether the kernel can be made to look up again all names that it has cached, at once and
    /// without harm, as far as is known.
    pub fn can_distrust_names(&self) -> bool {
        self.knows_epochs() && !self.mounts_inside.load(Ordering::Relaxed)
    }

    /// Whether something is mounted on a name, or below it.
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

    /// Makes the kernel look up again all names that it has cached; false when it cannot do that
    /// without harm.
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

    /// Has names of a directory expire. A kernel that can only invalidate them (before 6.2) is not
    /// told of those with mounts on them or below them.
    fn expire(&self, dir: &Inode, names: Vec<Name>) -> tokio::task::JoinHandle<()> {
        let (_, flags) = self.negotiated();
        let expires = flags & init_flags::HAS_EXPIRE_ONLY != 0;
        let (device, id, number, fh) = (self.device.clone(), dir.id, self.number.get().copied(), dir.fh());
        let paths: Vec<_> = match expires {
            true => Vec::new(),
            false => names.iter().map(|name| self.path(&fh, name)).collect(),
        };
        tokio::task::spawn_blocking(move || {
            let inside = number.filter(|_| !expires).map(Inside::of).unwrap_or_default();
            for (i, name) in names.iter().enumerate() {
                let path = paths.get(i).and_then(Option::as_deref);
                if path.is_none_or(|path| !inside.is_at_or_below(path)) {
                    expire_name(&device, id, name, if expires { notify::EXPIRE_ONLY } else { 0 });
                }
            }
        })
    }
}

fn expire_name(device: &Device, dir: u64, name: &Name, expire: u32) {
    let mut head = Out::with_capacity(16);
    head.u64(dir).u32(name.as_bytes().len() as u32).u32(expire);
    let parts = [&head.into_vec()[..], name.as_bytes(), b"\0"].map(|p| p.to_vec());
    let _ = device.notify(notify::INVAL_ENTRY, &parts.each_ref().map(|p| IoSlice::new(p)));
}
