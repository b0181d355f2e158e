//! Services of a machine's file system for a server, beyond [`Vfs`](crate::Vfs).

use crate::{Attrs, Cx, Fh, File, PosixAcls, Result};
use async_trait::async_trait;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;

/// Bytes of a file that wait in a pipe.
pub trait Pipe: Debug + Send + Sync {
    /// The end to read from; never blocks.
    fn fd(&self) -> BorrowedFd<'_>;

    /// How many bytes there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The read bytes, in a pipe.
#[derive(Debug)]
pub struct ReadPiped {
    /// The bytes, at least one.
    pub data: Box<dyn Pipe>,
    /// They reach the end of the file.
    pub eof: bool,
}

/// Calls that servers need and mounts do not. It belongs to a [`Vfs`](crate::Vfs) and takes that
/// one's handles and opens; there are no default methods, as there.
#[async_trait]
pub trait Extra: Send + Sync + 'static {
    /// The alignment of offsets and lengths of [`Extra::clone_range`], in bytes; `None`: this file
    /// system shares no blocks.
    fn clone_block_bytes(&self) -> Option<u32>;

    /// Makes a range of a file share the blocks of another one's, or of another range of the same
    /// (FICLONERANGE): all of it or nothing, and durable when answered. A length of 0 is to the end
    /// of the source.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the file system shares no blocks; `EXDEV`: these two files have not the same
    /// one; `EINVAL`: not at block boundaries (only the end of the source may be anywhere, to
    /// become the end of the target), beyond the source's end, or overlapping.
    async fn clone_range(
        &self,
        cx: &Cx,
        from: File<'_>,
        from_offset_bytes: u64,
        to: File<'_>,
        to_offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<()>;

    /// The result of [`Vfs::read`](crate::Vfs::read), without a copy. `None`: it would have to
    /// wait, or it is not worth while; then the bytes are to be read. Writes meanwhile may show in
    /// them until they are taken out of the pipe.
    fn read_piped(&self, cx: &Cx, file: File<'_>, offset_bytes: u64, len_bytes: u32) -> Option<ReadPiped>;

    /// Whether objects can have ACLs.
    fn has_acls(&self) -> bool;

    /// The ACLs of an object, for every caller with the right to its attributes.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: such objects have none (symbolic links).
    async fn acls(&self, cx: &Cx, fh: &Fh) -> Result<PosixAcls>;

    /// Sets the ACL of an object, and the mode with it, and the default ACL for new objects in a
    /// directory (`None` removes it). Durable when answered. Returns the attributes then.
    ///
    /// # Errors
    /// `EPERM`: the caller is not the owner; `EOPNOTSUPP`: such objects have none; `EINVAL`: it is
    /// none; those of the disk.
    async fn set_acls(&self, cx: &Cx, fh: &Fh, acls: &PosixAcls) -> Result<Attrs>;
}
