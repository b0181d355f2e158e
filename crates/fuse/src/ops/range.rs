//! FALLOCATE, LSEEK and COPY_FILE_RANGE.

use super::Call;
use crate::abi::Out;
use crate::call::Answer;
use crate::handles::OpenFile;
use hither_vfs::{Error, File, FileRange, Result, Seek};

/// Maximum length of a COPY_FILE_RANGE answer with 32 bits, in whole pages.
const NARROW_COPY_MAX_BYTES: u64 = 0xffff_f000;

impl Call {
    pub(super) async fn fallocate(&self, fh: u64, offset: u64, length: u64, mode: u32) -> Result<Answer> {
        let file = self.file(fh)?;
        let end_bytes = offset.checked_add(length).filter(|&end| end <= i64::MAX as u64);
        let end_bytes = end_bytes.ok_or_else(|| Error::new(libc::EFBIG))?;
        let range = FileRange { start_bytes: offset, end_bytes };
        let handle = file.inode.fh();
        let at = File { fh: &handle, open: Some(file.open) };
        let cx = self.cx_of(file.cred.clone());
        let vfs = &self.session.vfs;
        let _modifying = file.inode.modify(&self.session.inodes.clock);
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        const ZERO_KEEP: i32 = ZERO | KEEP;
        let mode = mode as i32;
        if mode == KEEP || mode == ZERO_KEEP {
            // ALLOCATE of the protocol always extends the file. So keeping the length works only
            // inside the file.
            let size = vfs.getattr(&cx, at).await?.attr.size_bytes;
            if end_bytes > size {
                return Err(Error::new(libc::EOPNOTSUPP));
            }
        }
        if mode & KEEP == 0 {
            self.extends(&file.inode, end_bytes);
        }
        match mode {
            0 | KEEP => vfs.allocate(&cx, at, range).await?,
            PUNCH => vfs.deallocate(&cx, at, range).await?,
            ZERO | ZERO_KEEP => {
                vfs.deallocate(&cx, at, range).await?;
                if let Err(e) = vfs.allocate(&cx, at, range).await {
                    // The kernel drops no pages after a failed call.
                    self.drop_filled(&file.inode, offset, length).await;
                    return Err(e);
                }
            }
            _ => return Err(Error::new(libc::EOPNOTSUPP)),
        }
        self.drop_set_id(&file.inode);
        // The kernel extends its length, as after a write.
        file.inode.wrote(if mode & KEEP == 0 { end_bytes } else { 0 }, false);
        Ok(Answer::empty())
    }

    pub(super) async fn lseek(&self, fh: u64, offset: u64, whence: u32) -> Result<Answer> {
        let file = self.file(fh)?;
        let what = match whence as i32 {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Error::new(libc::EINVAL)),
        };
        if file.inode.is_filled() && file.inode.in_use.may_be_mapped() {
            // The kernel writes no pages back before LSEEK, as it does before a copy.
            self.session.drop_pages(&file.inode).await;
        }
        let found = match self.seek(&file, offset, what).await {
            Err(e) if e.errno == libc::EOPNOTSUPP => self.seek_without_holes(&file, offset, what).await?,
            found => found?,
        };
        let mut out = Out::with_capacity(8);
        out.u64(found);
        Ok(Answer::bytes(out.into_vec()))
    }

    async fn seek(&self, file: &OpenFile, offset: u64, what: Seek) -> Result<u64> {
        let handle = file.inode.fh();
        let at = File { fh: &handle, open: Some(file.open) };
        self.session.vfs.seek(&self.cx_of(file.cred.clone()), at, offset, what).await
    }

    /// For a server without holes: all bytes up to the end are data (lseek(2) allows that).
    async fn seek_without_holes(&self, file: &OpenFile, offset: u64, what: Seek) -> Result<u64> {
        let handle = file.inode.fh();
        let at = File { fh: &handle, open: Some(file.open) };
        let size = self.session.vfs.getattr(&self.cx_of(file.cred.clone()), at).await?.attr.size_bytes;
        match what {
            _ if offset >= size => Err(Error::new(libc::ENXIO)),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) async fn copy_range(
        &self,
        fh: u64,
        from: u64,
        to_node: u64,
        to_fh: u64,
        to: u64,
        length: u64,
        wide: bool,
    ) -> Result<Answer> {
        let (source, target) = (self.file(fh)?, self.file(to_fh)?);
        if target.inode.id != to_node {
            return Err(Error::new(libc::EBADF));
        }
        let length = if wide { length } else { length.min(NARROW_COPY_MAX_BYTES) };
        let (from_fh, target_fh) = (source.inode.fh(), target.inode.fh());
        let from_file = File { fh: &from_fh, open: Some(source.open) };
        let to_file = File { fh: &target_fh, open: Some(target.open) };
        let _modifying = target.inode.modify(&self.session.inodes.clock);
        let cx = self.cx_of(target.cred.clone());
        // The server copies the bytes that it has, so the source is committed first.
        self.commit(&source).await?;
        self.extends(&target.inode, to.saturating_add(length));
        let copied = self.session.vfs.copy(&cx, from_file, from, to_file, to, length).await?;
        target.inode.wrote(to.saturating_add(copied), false);
        self.drop_set_id(&target.inode);
        let mut out = Out::with_capacity(8);
        if wide {
            out.u64(copied);
        } else {
            out.u32(copied as u32).u32(0);
        }
        Ok(Answer::bytes(out.into_vec()))
    }
}
