//! Changes by another frontend of the same stack, and the invalidation of kernel caches.
//!
//! A change by another frontend counts as a modification by the mount. Replies to requests from
//! before or during the change are not evidence of a foreign change ([`crate::inode`]). Then the
//! kernel caches of the objects are invalidated. The kernel asks again at once, and the stack with
//! the change answers. Replies during the change may be older than the change, so the objects are
//! looked up again after it.
//!
//! If a program has stored to a page through a map, the kernel writes the whole page back before it
//! drops the page. After the change, such a write-back would overwrite the new bytes around the
//! store with old ones. So pages are also dropped before the change, and earlier stores are written
//! before it. Stores during the change still write their whole page.

use crate::inode::Inode;
use crate::session::Session;
use async_trait::async_trait;
use hither_vfs::{Fh, Invalidator, Touched, Work};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The kernel caches of a mount.
pub(crate) struct KernelInvalidator(pub Arc<Session>);

impl KernelInvalidator {
    fn find(&self, fh: &Fh) -> Option<Arc<Inode>> {
        self.0.inodes.by_fh(fh)
    }

    /// The objects that the kernel knows: those with changed contents, and the others.
    fn known(&self, touched: &[Touched]) -> (Vec<Arc<Inode>>, Vec<Arc<Inode>>) {
        let (mut contents, mut others) = (Vec::new(), Vec::new());
        for one in touched {
            match one {
                Touched::Contents(fh) => contents.extend(self.find(fh)),
                Touched::Name(dir, name, object) => {
                    let dir = self.find(dir);
                    let child = dir.as_ref().and_then(|dir| self.0.inodes.child(dir.id, name));
                    others.extend(
                        [dir, child, object.as_ref().and_then(|fh| self.find(fh))].into_iter().flatten(),
                    );
                }
            }
        }
        (contents, others)
    }
}

#[async_trait]
impl Invalidator for KernelInvalidator {
    async fn around<'a>(&self, touched: &[Touched], work: Work<'a>) {
        let (session, clock) = (&self.0, &self.0.inodes.clock);
        let (contents, others) = self.known(touched);
        if touched.iter().any(|one| matches!(one, Touched::Contents(_))) {
            session.written_beside.store(true, Ordering::Relaxed);
        }
        for inode in &contents {
            inode.attrs_dropped();
            session.drop_pages(inode).await;
        }
        let modifying: Vec<_> = contents.iter().map(|inode| inode.modify(clock)).collect();
        let changing: Vec<_> = others.iter().map(|inode| inode.changing(clock)).collect();
        work.await;
        drop((modifying, changing));
        for inode in contents.iter().chain(&self.known(touched).0) {
            // A program of the mount that calls fsync must also find these bytes on stable storage.
            inode.wrote(0, false);
            drop(inode.modify(clock));
            inode.attrs_dropped();
            session.drop_pages(inode).await;
        }
        for one in touched {
            let Touched::Name(dir, name, _) = one else { continue };
            if let Some(dir) = self.find(dir) {
                session.inodes.unbind(dir.id, name);
                session.drop_name(dir.id, name).await;
            }
        }
        for inode in others.iter().chain(&self.known(touched).1) {
            inode.touch(clock);
            inode.attrs_dropped();
            inode.entries_hold(None);
            session.drop_pages(inode).await;
        }
    }
}
