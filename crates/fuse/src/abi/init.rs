//! INIT: the capabilities of kernel and daemon.

use super::parse::Dec;
use super::reply::Out;

/// Capability bits of INIT. The upper half is in `flags2`.
pub(crate) mod init_flags {
    #![allow(missing_docs)]
    pub const ASYNC_READ: u64 = 1;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const PASSTHROUGH: u64 = 1 << 37;
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
}

/// The kernel's INIT request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InitIn {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Maximum read-ahead in bytes.
    pub max_readahead: u32,
    /// Capabilities, both halves.
    pub flags: u64,
}

impl InitIn {
    pub(super) fn parse(d: &mut Dec) -> Result<Self, i32> {
        let (major, minor, max_readahead, low) = (d.u32()?, d.u32()?, d.u32()?, d.u32()?);
        let mut flags = u64::from(low);
        if flags & init_flags::INIT_EXT != 0 {
            flags |= u64::from(d.u32()?) << 32;
        }
        Ok(Self { major, minor, max_readahead, flags })
    }
}

/// The INIT reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InitOut {
    /// Maximum read-ahead in bytes.
    pub max_readahead: u32,
    /// Capabilities in use.
    pub flags: u64,
    /// Maximum number of asynchronous requests.
    pub max_background: u16,
    /// Maximum WRITE payload in bytes.
    pub max_write_bytes: u32,
}

impl InitOut {
    /// Body of the reply (64 bytes).
    pub fn encode(&self) -> Vec<u8> {
        let mut o = Out::with_capacity(64);
        o.u32(super::MAJOR).u32(super::MINOR).u32(self.max_readahead).u32(self.flags as u32);
        o.u16(self.max_background).u16(self.max_background / 4 * 3);
        o.u32(self.max_write_bytes);
        // Granularity of timestamps: 1 ns.
        o.u32(1);
        o.u16((self.max_write_bytes / 4096) as u16).u16(0);
        o.u32((self.flags >> 32) as u32);
        // With passthrough: the maximum stacking depth. Local files are not on a stacked file
        // system.
        o.u32(u32::from(self.flags & init_flags::PASSTHROUGH != 0));
        o.zeros(24);
        o.into_vec()
    }
}
