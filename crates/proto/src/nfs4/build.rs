//! Constructors of operations with several arguments.
//!
//! This module has no policy. An operation with at most one argument is written as its variant
//! (`Op::Putrootfh`, `Op::Getattr(mask)`).

use super::*;
use bytes::Bytes;

impl Op {
    /// PUTFH of `fh`.
    pub fn putfh(fh: &Fh) -> Self {
        Self::Putfh(fh.clone())
    }

    /// GETATTR of the attributes in `mask`.
    pub fn getattr(mask: &Bitmap4) -> Self {
        Self::Getattr(*mask)
    }

    /// LOOKUP of `name`, copied.
    pub fn lookup(name: &[u8]) -> Self {
        Self::Lookup(Component::copy(name))
    }

    /// REMOVE of `name`, copied.
    pub fn remove(name: &[u8]) -> Self {
        Self::Remove(Component::copy(name))
    }

    /// LINK of the saved filehandle as `name`, copied.
    pub fn link(name: &[u8]) -> Self {
        Self::Link(Component::copy(name))
    }

    /// RENAME of `oldname` in the saved directory to `newname` in the current directory. Both are
    /// copied.
    pub fn rename(oldname: &[u8], newname: &[u8]) -> Self {
        Self::Rename(RenameArgs { oldname: Component::copy(oldname), newname: Component::copy(newname) })
    }

    /// CREATE of `objname`, copied.
    pub fn create(objtype: CreateType, objname: &[u8], createattrs: Attrs) -> Self {
        Self::Create(CreateArgs { objtype, objname: Component::copy(objname), createattrs })
    }

    /// SETATTR. The server uses `stateid` only for a change of the size.
    pub fn setattr(stateid: Stateid, attrs: Attrs) -> Self {
        Self::Setattr(SetattrArgs { stateid, attrs })
    }

    /// READ of `count` bytes.
    pub fn read(stateid: Stateid, offset: u64, count: u32) -> Self {
        Self::Read(ReadArgs { stateid, offset, count })
    }

    /// READ_PLUS of `count` bytes.
    pub fn read_plus(stateid: Stateid, offset: u64, count: u32) -> Self {
        Self::ReadPlus(ReadArgs { stateid, offset, count })
    }

    /// WRITE of `data`, taken by reference.
    pub fn write(stateid: Stateid, offset: u64, stable: StableHow, data: Bytes) -> Self {
        Self::Write(WriteArgs { stateid, offset, stable, data: data.into() })
    }

    /// COMMIT of `count` bytes; 0 means to the end of the file.
    pub fn commit(offset: u64, count: u32) -> Self {
        Self::Commit(CommitArgs { offset, count })
    }

    /// CLOSE of NFSv4.1, whose sequence number is always 0.
    pub fn close(stateid: Stateid) -> Self {
        Self::Close(CloseArgs { seqid: 0, stateid })
    }

    /// OPEN_DOWNGRADE of NFSv4.1, whose sequence number is always 0.
    pub fn open_downgrade(stateid: Stateid, share_access: u32, share_deny: u32) -> Self {
        Self::OpenDowngrade(OpenDowngradeArgs { stateid, seqid: 0, share_access, share_deny })
    }

    /// LOCKU of NFSv4.1, whose sequence number is always 0.
    pub fn locku(lock_stateid: Stateid, locktype: LockType, offset: u64, length: u64) -> Self {
        Self::Locku(LockuArgs { locktype, seqid: 0, lock_stateid, offset, length })
    }

    /// ALLOCATE.
    pub fn allocate(stateid: Stateid, offset: u64, length: u64) -> Self {
        Self::Allocate(RangeArgs { stateid, offset, length })
    }

    /// DEALLOCATE.
    pub fn deallocate(stateid: Stateid, offset: u64, length: u64) -> Self {
        Self::Deallocate(RangeArgs { stateid, offset, length })
    }

    /// SEEK.
    pub fn seek(stateid: Stateid, offset: u64, what: DataContent) -> Self {
        Self::Seek(SeekArgs { stateid, offset, what })
    }

    /// GETXATTR of `name` without `user.`, copied.
    pub fn getxattr(name: &[u8]) -> Self {
        Self::Getxattr(Component::copy(name))
    }

    /// SETXATTR of `key` without `user.`, copied.
    pub fn setxattr(option: SetxattrOption, key: &[u8], value: Bytes) -> Self {
        Self::Setxattr(SetxattrArgs { option, key: Component::copy(key), value: value.into() })
    }

    /// LISTXATTRS.
    pub fn listxattrs(cookie: u64, maxcount: u32) -> Self {
        Self::Listxattrs(ListxattrsArgs { cookie, maxcount })
    }

    /// REMOVEXATTR of `name` without `user.`, copied.
    pub fn removexattr(name: &[u8]) -> Self {
        Self::Removexattr(Component::copy(name))
    }

    /// True if the operation changes nothing on the server. It may then be sent again without a
    /// session.
    pub fn is_idempotent(&self) -> bool {
        matches!(
            self,
            Self::Access(_)
                | Self::Getattr(_)
                | Self::Getfh
                | Self::Getxattr(_)
                | Self::Listxattrs(_)
                | Self::Lockt(_)
                | Self::Lookup(_)
                | Self::Lookupp
                | Self::Nverify(_)
                | Self::Putfh(_)
                | Self::Putpubfh
                | Self::Putrootfh
                | Self::Read(_)
                | Self::ReadPlus(_)
                | Self::Readdir(_)
                | Self::Readlink
                | Self::Restorefh
                | Self::Savefh
                | Self::Secinfo(_)
                | Self::SecinfoNoName(_)
                | Self::Seek(_)
                | Self::Sequence(_)
                | Self::Verify(_)
        )
    }
}
