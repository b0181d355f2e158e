//! Arguments and results of the operations that NFSv4.2 adds (RFC 7862 section 15) and of extended
//! attributes (RFC 8276).
//!
//! It knows nothing of compounds. An operation with one argument or one result uses that type
//! itself and has nothing here.

use super::types::{
    BODY_MAX_BYTES, ChangeInfo, Component, Data, DataContent, Fh, Netloc, StableHow, Stateid, Time, Verifier,
};
use super::{Bitmap4, Fail, Nfsstat4, fail_arm};
use crate::xdr::{self, Dec, Enc, List, Opaque, Xdr};
use crate::{xdr_enum, xdr_struct, xdr_union};

/// Most servers in a list of a copy that we take.
pub const NETLOCS_MAX: usize = 64;
/// Most pieces of a READ_PLUS reply that we take.
pub const READ_PLUS_MAX: usize = 1 << 16;
/// Most names of a LISTXATTRS reply that we take.
pub const XATTRS_MAX: usize = 1 << 16;

/// Value of an extended attribute; Linux stops at 64 KiB.
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
        /// Open, lock, delegation or special.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Bytes.
        pub length: u64,
    }
    /// Arguments of COPY. Saved filehandle: source; current: destination.
    pub struct CopyArgs {
        /// Of the source.
        pub src_stateid: Stateid,
        /// Of the destination.
        pub dst_stateid: Stateid,
        /// First byte in the source.
        pub src_offset: u64,
        /// First byte in the destination.
        pub dst_offset: u64,
        /// Bytes; 0 is to the end.
        pub count: u64,
        /// In order of offsets.
        pub consecutive: bool,
        /// Before the reply.
        pub synchronous: bool,
        /// Where the source is; empty for this server.
        pub source_server: List<Netloc, NETLOCS_MAX>,
    }
    /// `write_response4`.
    #[derive(Copy)]
    pub struct WriteResponse {
        /// The copy goes on and is known by this.
        pub callback_id: Option<Stateid>,
        /// Bytes so far.
        pub count: u64,
        /// How durable they are.
        pub committed: StableHow,
        /// Changes when unstable data may be lost.
        pub writeverf: Verifier,
    }
    /// `copy_requirements4`.
    #[derive(Copy)]
    pub struct CopyRequirements {
        /// In order of offsets.
        pub consecutive: bool,
        /// Before the reply.
        pub synchronous: bool,
    }
    /// Result of COPY.
    #[derive(Copy)]
    pub struct CopyOk {
        /// How far it is.
        pub response: WriteResponse,
        /// How it was done.
        pub requirements: CopyRequirements,
    }
    /// Arguments of COPY_NOTIFY. Current filehandle: the source.
    pub struct CopyNotifyArgs {
        /// Of the source.
        pub src_stateid: Stateid,
        /// The server that will read it.
        pub destination_server: Netloc,
    }
    /// Result of COPY_NOTIFY.
    pub struct CopyNotifyOk {
        /// How long it may take.
        pub lease_time: Time,
        /// For the destination's READs.
        pub stateid: Stateid,
        /// Where to read.
        pub source_server: List<Netloc, NETLOCS_MAX>,
    }
    /// Arguments of IO_ADVISE.
    #[derive(Copy)]
    pub struct IoAdviseArgs {
        /// Open, lock, delegation or special.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Bytes.
        pub count: u64,
        /// [`IoAdvise`] bits.
        pub hints: Bitmap4,
    }
    /// Result of OFFLOAD_STATUS.
    #[derive(Copy)]
    pub struct OffloadStatusOk {
        /// Bytes so far.
        pub count: u64,
        /// How it ended, when it has.
        pub complete: Option<Nfsstat4>,
    }
    /// `data4`: a piece with data.
    pub struct DataPiece {
        /// First byte.
        pub offset: u64,
        /// A slice of the received message.
        pub data: Data,
    }
    /// `data_info4`: a hole.
    #[derive(Copy)]
    pub struct HolePiece {
        /// First byte.
        pub offset: u64,
        /// Bytes.
        pub length: u64,
    }
    /// Result of READ_PLUS.
    pub struct ReadPlusOk {
        /// The end of the file has been reached.
        pub eof: bool,
        /// Pieces.
        pub contents: List<ReadPlusContent, READ_PLUS_MAX>,
    }
    /// Arguments of SEEK.
    #[derive(Copy)]
    pub struct SeekArgs {
        /// Open, lock, delegation or special.
        pub stateid: Stateid,
        /// Where to begin.
        pub offset: u64,
        /// The content to look for.
        pub what: DataContent,
    }
    /// Result of SEEK.
    #[derive(Copy)]
    pub struct SeekOk {
        /// Nothing of the kind until the end.
        pub eof: bool,
        /// Where it begins.
        pub offset: u64,
    }
    /// `app_data_block4`.
    pub struct AppDataBlock {
        /// First byte.
        pub offset: u64,
        /// Bytes of a block.
        pub block_size: u64,
        /// Blocks.
        pub block_count: u64,
        /// Where in a block its number goes.
        pub reloff_blocknum: u64,
        /// First number.
        pub block_num: u32,
        /// Where in a block the pattern goes.
        pub reloff_pattern: u64,
        /// The pattern.
        pub pattern: Data,
    }
    /// Arguments of WRITE_SAME.
    pub struct WriteSameArgs {
        /// Open, lock, delegation or special.
        pub stateid: Stateid,
        /// How durable.
        pub stable: StableHow,
        /// The block.
        pub adb: AppDataBlock,
    }
    /// Arguments of CLONE. Saved filehandle: source; current: destination.
    #[derive(Copy)]
    pub struct CloneArgs {
        /// Of the source.
        pub src_stateid: Stateid,
        /// Of the destination.
        pub dst_stateid: Stateid,
        /// First byte in the source.
        pub src_offset: u64,
        /// First byte in the destination.
        pub dst_offset: u64,
        /// Bytes; 0 is to the end.
        pub count: u64,
    }
    /// Arguments of SETXATTR. Current filehandle: the object.
    pub struct SetxattrArgs {
        /// Whether it may or must exist.
        pub option: SetxattrOption,
        /// Its name, without `user.`.
        pub key: Component,
        /// Its value.
        pub value: XattrValue,
    }
    /// Arguments of LISTXATTRS.
    #[derive(Copy)]
    pub struct ListxattrsArgs {
        /// 0, or where to go on.
        pub cookie: u64,
        /// Bytes of the result.
        pub maxcount: u32,
    }
    /// Result of LISTXATTRS.
    pub struct ListxattrsOk {
        /// Where to go on.
        pub cookie: u64,
        /// Names, without `user.`.
        pub names: List<Component, XATTRS_MAX>,
        /// None follow.
        pub eof: bool,
    }
    /// Arguments of CB_OFFLOAD.
    pub struct CbOffloadArgs {
        /// The destination.
        pub fh: Fh,
        /// The copy.
        pub stateid: Stateid,
        /// How it ended.
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
        /// `NFS4ERR_OFFLOAD_NO_REQS`: the requirements that the server could meet.
        NoReqs(CopyRequirements) = OFFLOAD_NO_REQS
    }
}

/// A copy that failed (`offload_info4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffloadFail {
    /// Why.
    pub status: Nfsstat4,
    /// How far it was.
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

/// Result of SETXATTR and REMOVEXATTR: the object's change attribute.
pub type XattrOk = ChangeInfo;
