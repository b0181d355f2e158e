//! Operations of a local file system for servers, in addition to [`Vfs`](crate::Vfs).

use crate::{Attrs, Fh, File, PosixAcls, RequestContext, Result};
use async_trait::async_trait;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;

/// Bytes of a file in a pipe.
pub trait Pipe: Debug + Send + Sync {
    /// The read end of the pipe. It never blocks.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Number of bytes in the pipe.
    fn len(&self) -> usize;

    /// Whether the pipe has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The bytes of a read, in a pipe.
#[derive(Debug)]
pub struct ReadPiped {
    /// The bytes, at least one.
    pub data: Box<dyn Pipe>,
    /// Whether they reach the end of the file.
    pub eof: bool,
}

/// Operations that servers need and mounts do not. An implementation belongs to a
/// [`Vfs`](crate::Vfs) and takes the filehandles and opens of that `Vfs`. There are no default
/// methods, as in `Vfs`.
#[async_trait]
pub trait Extra: Send + Sync + 'static {
    /// The alignment of offsets and lengths of [`Extra::clone_range`], in bytes; `None`: this file
    /// system cannot share blocks.
    fn clone_block_bytes(&self) -> Option<u32>;

    /// Makes a range of a file share the blocks of another range, of the same or of another file
    /// (FICLONERANGE). The whole range is cloned, or no part of it. The clone is durable when the
    /// call returns. A length of 0 means up to the end of the source.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the file system cannot share blocks.
    /// - `EXDEV`: the two files are in different file systems.
    /// - `EINVAL`: the range is not aligned to blocks, ends beyond the source's end, or overlaps.
    ///   Only the end of the source may be unaligned, when it becomes the end of the target.
    async fn clone_range(
        &self,
        cx: &RequestContext,
        from: File<'_>,
        from_offset_bytes: u64,
        to: File<'_>,
        to_offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<()>;

    /// The result of [`Vfs::read`](crate::Vfs::read), without a copy. `None` when the read would
    /// have to wait or is too small to profit; then the caller uses `read`. The bytes may show
    /// later writes until they are taken out of the pipe.
    fn read_piped(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Option<ReadPiped>;

    /// Whether objects can have ACLs.
    fn has_acls(&self) -> bool;

    /// The ACLs of an object. Every caller with the right to read its attributes may read them.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the object cannot have an ACL (symbolic links).
    async fn acls(&self, cx: &RequestContext, fh: &Fh) -> Result<PosixAcls>;

    /// Sets the ACL of an object together with its mode, and the default ACL for new objects in a
    /// directory (`None` removes it). The change is durable when the call returns. Returns the
    /// attributes after the change.
    ///
    /// # Errors
    /// - `EPERM`: the caller is not the owner.
    /// - `EOPNOTSUPP`: the object cannot have an ACL.
    /// - `EINVAL`: the ACL is not valid.
    /// - Errors of the disk.
    async fn set_acls(&self, cx: &RequestContext, fh: &Fh, acls: &PosixAcls) -> Result<Attrs>;
}
