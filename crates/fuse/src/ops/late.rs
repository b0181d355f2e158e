//! Invalidation of kernel caches that a call has outdated and that the kernel keeps.
//!
//! The kernel drops pages before a direct write. It drops them after the write only when the caller
//! waited for it. A page that a buffered read fills meanwhile has the old bytes. The kernel also
//! drops no caches after a failed call. But an interrupted call is answered early and runs to its
//! end, and an error can arrive after the server has changed the file.

use super::Call;
use crate::inode::Inode;
use crate::session::Session;
use hither_vfs::{Cred, File, RequestContext};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum wait for the attributes of a file after a failed call.
const PATIENCE: Duration = Duration::from_secs(5);

/// Errors that prove that the server has changed nothing.
const REFUSALS: [i32; 14] = [
    libc::EACCES,
    libc::EBADF,
    libc::EDQUOT,
    libc::EFBIG,
    libc::EINVAL,
    libc::ENODEV,
    libc::ENOSPC,
    libc::ENOSYS,
    libc::ENXIO,
    libc::EOPNOTSUPP,
    libc::EPERM,
    libc::EROFS,
    libc::ESTALE,
    libc::ETXTBSY,
];

impl Call {
    /// Drops the pages of a changed range. Pages that are being read wait for the answer of that
    /// read, which never waits for this call.
    pub(super) async fn drop_filled(&self, inode: &Inode, start: u64, len: u64) {
        if len > 0 && inode.is_filled() {
            self.session.drop_range(inode, start, len).await;
        }
    }

    /// Drops the caches of objects that a failed or interrupted call may have changed. `errno` is
    /// its error; `None` for an interrupted call.
    pub fn failed_late(&self, errno: Option<i32>) {
        let session = &self.session;
        if errno.is_none_or(|errno| !REFUSALS.contains(&errno))
            && let Some((node, _, _)) = self.contents
            && let Some(inode) = session.inodes.find(node)
        {
            // The kernel does not extend its length for a write without an answer.
            inode.forget_length();
            let (cred, session) = (self.cred(), session.clone());
            self.session.aside(async move { doubt(&session, cred, &inode).await });
        }
        if errno.is_none() && !self.names.is_empty() {
            let (names, session) = (self.names.clone(), session.clone());
            self.session.aside(async move {
                for (dir, name) in names {
                    session.doubt_name(dir, &name).await;
                    if let Some(dir) = session.inodes.find(dir) {
                        session.drop_pages(&dir).await;
                    }
                }
            });
        }
    }
}

/// Drops the caches of a file that a call may still be changing. The change attribute is read
/// before the pages are dropped. A later value then shows that pages were filled too early.
async fn doubt(session: &Session, cred: Arc<Cred>, inode: &Inode) {
    let (now, asked, fh) = (Instant::now(), session.inodes.clock.now(), inode.fh());
    let cx = RequestContext { deadline: Some(now + PATIENCE), ..RequestContext::new(cred).fresh(now) };
    let look = session.vfs.getattr(&cx, File { fh: &fh, open: None });
    let found = tokio::time::timeout(PATIENCE, look).await;
    inode.attrs_dropped();
    if session.drop_pages(inode).await
        && let Ok(Ok(attrs)) = found
    {
        inode.pages_dropped(&attrs.attr, asked);
    }
}
