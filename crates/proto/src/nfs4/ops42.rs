//! Arguments and results of the operations that NFSv4.2 adds (RFC 7862 section 15) and of extended
//! attributes (RFC 8276).
//!
//! This module has no compounds. An operation with a single argument or result uses that value's
//! type directly.

use super::types::{
    BODY_MAX_BYTES, ChangeInfo, Component, Data, DataContent, Fh, Netloc, StableHow, Stateid, Time, Verifier,
};
use super::{Bitmap4, Fail, Nfsstat4, fail_arm};
use crate::xdr::{self, Dec, Enc, List, Opaque, Xdr};
use crate::{xdr_enum, xdr_struct, xdr_union};

/// Most servers in a list of a copy that are decoded.
pub const NETLOCS_MAX: usize = 64;
/// Most pieces of a READ_PLUS reply that are decoded.
pub const READ_PLUS_MAX: usize = 1 << 16;
/// Most names of a LISTXATTRS reply that are decoded.
pub const XATTRS_MAX: usize = 1 << 16;

/// Value of an extended attribute. Linux allows 64 KiB.
pub type XattrValue = Opaque<BODY_MAX_BYTES>;

xdr_enum! {
    /// `IO_ADVISE_type4`, as bit numbers.
    pub enum IoAdvise {
        NORMAL = 0, SEQUENTIAL = 1, SEQUENTIAL_BACKWARDS = 2, RANDOM = 3, WILLNEED = 4,
        WILLNEED_OPPORTUNISTIC = 5, DONTNEED = 6, NOREUSE = 7, READ = 8, WRITE = 9,
        INIT_PROXIMITY = 10,
    }
    /// `setxattr_option4`.
    pub enum SetxattrOption { EITHER = 0, CREATE = 1, REPLACE = 2 }
}

xdr_struct! {
    /// Arguments of ALLOCATE and DEALLOCATE. Current filehandle: the file.
    #[derive(Copy)]
    pub struct RangeArgs {
        /// Stateid: open, lock, delegation or special.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Number of bytes.
        pub length: u64,
    }
    /// Arguments of COPY. Saved filehandle: source; current: destination.
    pub struct CopyArgs {
        /// Stateid of the source.
        pub src_stateid: Stateid,
        /// Stateid of the destination.
        pub dst_stateid: Stateid,
        /// First byte in the source.
        pub src_offset: u64,
        /// First byte in the destination.
        pub dst_offset: u64,
        /// Number of bytes; 0 means to the end of the file.
        pub count: u64,
        /// The bytes are copied in the order of their offsets.
        pub consecutive: bool,
        /// The copy ends before the reply.
        pub synchronous: bool,
        /// Locations of the source; empty for this server.
        pub source_server: List<Netloc, NETLOCS_MAX>,
    }
    /// `write_response4`.
    #[derive(Copy)]
    pub struct WriteResponse {
        /// Stateid of the copy, if it continues after the reply.
        pub callback_id: Option<Stateid>,
        /// Number of bytes copied so far.
        pub count: u64,
        /// Stability of the copied bytes.
        pub committed: StableHow,
        /// Changes when unstable data may be lost.
        pub writeverf: Verifier,
    }
    /// `copy_requirements4`.
    #[derive(Copy)]
    pub struct CopyRequirements {
        /// The bytes are copied in the order of their offsets.
        pub consecutive: bool,
        /// The copy ends before the reply.
        pub synchronous: bool,
    }
    /// Result of COPY.
    #[derive(Copy)]
    pub struct CopyOk {
        /// Progress of the copy.
        pub response: WriteResponse,
        /// Method of the copy.
        pub requirements: CopyRequirements,
    }
    /// Arguments of COPY_NOTIFY. Current filehandle: the source.
    pub struct CopyNotifyArgs {
        /// Stateid of the source.
        pub src_stateid: Stateid,
        /// The server that will read the source.
        pub destination_server: Netloc,
    }
    /// Result of COPY_NOTIFY.
    pub struct CopyNotifyOk {
        /// Longest duration of the copy.
        pub lease_time: Time,
        /// Stateid for the destination server's READs.
        pub stateid: Stateid,
        /// Addresses for those READs.
        pub source_server: List<Netloc, NETLOCS_MAX>,
    }
    /// Arguments of IO_ADVISE.
    #[derive(Copy)]
    pub struct IoAdviseArgs {
        /// Stateid: open, lock, delegation or special.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Number of bytes.
        pub count: u64,
        /// [`IoAdvise`] bits.
        pub hints: Bitmap4,
    }
    /// Result of OFFLOAD_STATUS.
    #[derive(Copy)]
    pub struct OffloadStatusOk {
        /// Number of bytes copied so far.
        pub count: u64,
        /// Status of the copy, if it has ended.
        pub complete: Option<Nfsstat4>,
    }
    /// `data4`: a range with data.
    pub struct DataPiece {
        /// First byte.
        pub offset: u64,
        /// The data, a slice of the received message.
        pub data: Data,
    }
    /// `data_info4`: a range without data.
    #[derive(Copy)]
    pub struct HolePiece {
        /// First byte.
        pub offset: u64,
        /// Number of bytes.
        pub length: u64,
    }
    /// Result of READ_PLUS.
    pub struct ReadPlusOk {
        /// The read reached the end of the file.
        pub eof: bool,
        /// Data and holes in order.
        pub contents: List<ReadPlusContent, READ_PLUS_MAX>,
    }
    /// Arguments of SEEK.
    #[derive(Copy)]
    pub struct SeekArgs {
        /// Stateid: open, lock, delegation or special.
        pub stateid: Stateid,
        /// Where the search starts.
        pub offset: u64,
        /// The content to find.
        pub what: DataContent,
    }
    /// Result of SEEK.
    #[derive(Copy)]
    pub struct SeekOk {
        /// The file has no such content up to its end.
        pub eof: bool,
        /// Where the content begins.
        pub offset: u64,
    }
    /// `app_data_block4`.
    pub struct AppDataBlock {
        /// First byte.
        pub offset: u64,
        /// Bytes of a block.
        pub block_size: u64,
        /// Number of blocks.
        pub block_count: u64,
        /// Offset of the block number in a block.
        pub reloff_blocknum: u64,
        /// Number of the first block.
        pub block_num: u32,
        /// Offset of the pattern in a block.
        pub reloff_pattern: u64,
        /// The pattern.
        pub pattern: Data,
    }
    /// Arguments of WRITE_SAME.
    pub struct WriteSameArgs {
        /// Stateid: open, lock, delegation or special.
        pub stateid: Stateid,
        /// Requested stability.
        pub stable: StableHow,
        /// The blocks to write.
        pub adb: AppDataBlock,
    }
    /// Arguments of CLONE. Saved filehandle: source; current: destination.
    #[derive(Copy)]
    pub struct CloneArgs {
        /// Stateid of the source.
        pub src_stateid: Stateid,
        /// Stateid of the destination.
        pub dst_stateid: Stateid,
        /// First byte in the source.
        pub src_offset: u64,
        /// First byte in the destination.
        pub dst_offset: u64,
        /// Number of bytes; 0 means to the end of the file.
        pub count: u64,
    }
    /// Arguments of SETXATTR. Current filehandle: the object.
    pub struct SetxattrArgs {
        /// Whether the attribute may or must exist.
        pub option: SetxattrOption,
        /// Name of the attribute, without `user.`.
        pub key: Component,
        /// Value of the attribute.
        pub value: XattrValue,
    }
    /// Arguments of LISTXATTRS.
    #[derive(Copy)]
    pub struct ListxattrsArgs {
        /// 0, or the cookie of the earlier result.
        pub cookie: u64,
        /// Most bytes of the result.
        pub maxcount: u32,
    }
    /// Result of LISTXATTRS.
    pub struct ListxattrsOk {
        /// Cookie for the next call.
        pub cookie: u64,
        /// Names, without `user.`.
        pub names: List<Component, XATTRS_MAX>,
        /// No names follow.
        pub eof: bool,
    }
    /// Arguments of CB_OFFLOAD.
    pub struct CbOffloadArgs {
        /// Destination of the copy.
        pub fh: Fh,
        /// The copy.
        pub stateid: Stateid,
        /// Result of the copy.
        pub offload_info: Result<WriteResponse, OffloadFail>,
    }
}

xdr_union! {
    /// `read_plus_content`.
    pub enum ReadPlusContent else Other {
        /// Data.
        Data(DataPiece) = 0,
        /// A hole.
        Hole(HolePiece) = 1,
    }
}

fail_arm! {
    /// Failure of COPY.
    pub enum CopyFail {
        /// `NFS4ERR_OFFLOAD_NO_REQS`: the requirements that the server can meet.
        NoReqs(CopyRequirements) = OFFLOAD_NO_REQS
    }
}

/// Failure of a copy (`offload_info4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffloadFail {
    /// Status of the copy.
    pub status: Nfsstat4,
    /// Number of bytes copied before the failure.
    pub bytes_copied: u64,
}

impl Fail for OffloadFail {
    fn status(&self) -> Nfsstat4 {
        self.status
    }
    fn enc_arm(&self, e: &mut Enc) {
        e.u64(self.bytes_copied);
    }
    fn dec_arm(status: Nfsstat4, d: &mut Dec<'_>) -> xdr::Result<Self> {
        Ok(Self { status, bytes_copied: u64::dec(d)? })
    }
}

#[cfg(any(test, feature = "sample"))]
impl super::sample::FailSample for OffloadFail {
    fn sample(status: Nfsstat4, s: &mut crate::sample::Source<'_>) -> Self {
        Self { status, bytes_copied: s.int() }
    }
}

/// Result of SETXATTR and REMOVEXATTR: the change of the object.
pub type XattrOk = ChangeInfo;
