//! Arguments and results of the NFSv4.0 operations (RFC 7530 section 16).
//!
//! This module has no compounds. An operation with a single argument or result uses that value's
//! type directly. NFSv4.1 and 4.2 extend some unions; all their arms are in this module.

use super::types::{
    Ace, ChangeInfo, ClientOwner, Clientid, Component, Data, DelegationType, LockType, Netaddr, NewLinktext,
    SecOid, Specdata, StableHow, StateOwner, Stateid, Verifier,
};
use super::{Attrs, Bitmap4, Fail, Nfsstat4, fail_arm};
use crate::rpc::gss::GssService;
use crate::xdr::{self, Chain, Dec, Enc, List, Xdr};
use crate::{xdr_struct, xdr_union};

/// Most entries of a READDIR reply that are decoded. An entry needs at least 24 bytes.
pub const READDIR_MAX_ENTRIES: usize = 1 << 16;
/// Most mechanisms of a SECINFO reply that are decoded.
pub const SECINFO_MAX: usize = 64;

/// Argument bits and result flags of OPEN (RFC 8881 section 18.16, RFC 9754).
#[allow(missing_docs)]
pub mod open {
    pub const SHARE_ACCESS_READ: u32 = 1;
    pub const SHARE_ACCESS_WRITE: u32 = 2;
    pub const SHARE_ACCESS_BOTH: u32 = 3;
    pub const SHARE_DENY_NONE: u32 = 0;
    pub const SHARE_DENY_READ: u32 = 1;
    pub const SHARE_DENY_WRITE: u32 = 2;
    pub const SHARE_DENY_BOTH: u32 = 3;

    pub const WANT_DELEG_MASK: u32 = 0xff00;
    pub const WANT_NO_PREFERENCE: u32 = 0;
    pub const WANT_READ_DELEG: u32 = 0x100;
    pub const WANT_WRITE_DELEG: u32 = 0x200;
    pub const WANT_ANY_DELEG: u32 = 0x300;
    pub const WANT_NO_DELEG: u32 = 0x400;
    pub const WANT_CANCEL: u32 = 0x500;
    pub const WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL: u32 = 0x1_0000;
    pub const WANT_PUSH_DELEG_WHEN_UNCONTENDED: u32 = 0x2_0000;
    pub const WANT_DELEG_TIMESTAMPS: u32 = 0x10_0000;
    pub const WANT_OPEN_XOR_DELEGATION: u32 = 0x20_0000;
    /// The bit of [`WANT_DELEG_TIMESTAMPS`] in [`super::OpenArguments::share_access_want`].
    pub const ARGS_WANT_DELEG_TIMESTAMPS: u32 = 20;

    pub const RESULT_CONFIRM: u32 = 0x02;
    pub const RESULT_LOCKTYPE_POSIX: u32 = 0x04;
    pub const RESULT_PRESERVE_UNLINKED: u32 = 0x08;
    pub const RESULT_NO_OPEN_STATEID: u32 = 0x10;
    pub const RESULT_MAY_NOTIFY_LOCK: u32 = 0x20;
}

xdr_struct! {
    /// Result of ACCESS.
    #[derive(Copy)]
    pub struct AccessOk {
        /// Bits that the server could check.
        pub supported: u32,
        /// Bits of the granted rights.
        pub access: u32,
    }
    /// Arguments of CLOSE.
    #[derive(Copy)]
    pub struct CloseArgs {
        /// 0 in NFSv4.1.
        pub seqid: u32,
        /// Stateid of the open.
        pub stateid: Stateid,
    }
    /// Arguments of COMMIT. Current filehandle: the file.
    #[derive(Copy)]
    pub struct CommitArgs {
        /// First byte.
        pub offset: u64,
        /// Number of bytes; 0 means to the end of the file.
        pub count: u32,
    }
    /// Arguments of CREATE, for all objects except regular files. Current filehandle: the
    /// directory.
    pub struct CreateArgs {
        /// The object to create.
        pub objtype: CreateType,
        /// Name of the object.
        pub objname: Component,
        /// Attributes of the new object.
        pub createattrs: Attrs,
    }
    /// Result of CREATE. Current filehandle: the new object.
    #[derive(Copy)]
    pub struct CreateOk {
        /// Change of the directory.
        pub cinfo: ChangeInfo,
        /// Attributes that were set.
        pub attrset: Bitmap4,
    }
    /// Arguments of LOCK. Current filehandle: the file.
    pub struct LockArgs {
        /// Shared or exclusive.
        pub locktype: LockType,
        /// Reclaims a lock after a server restart.
        pub reclaim: bool,
        /// First byte.
        pub offset: u64,
        /// Number of bytes; all ones means to the end of the file.
        pub length: u64,
        /// The owner of the lock.
        pub locker: Locker,
    }
    /// `open_to_lock_owner4`: the first lock of this owner on this open.
    pub struct OpenToLockOwner {
        /// 0 in NFSv4.1.
        pub open_seqid: u32,
        /// Stateid of the open.
        pub open_stateid: Stateid,
        /// 0 in NFSv4.1.
        pub lock_seqid: u32,
        /// The owner.
        pub lock_owner: StateOwner,
    }
    /// `exist_lock_owner4`: another lock of this owner.
    #[derive(Copy)]
    pub struct ExistLockOwner {
        /// Stateid of the owner's locks on the file.
        pub lock_stateid: Stateid,
        /// 0 in NFSv4.1.
        pub lock_seqid: u32,
    }
    /// `LOCK4denied`: the conflicting lock.
    pub struct LockDenied {
        /// First byte.
        pub offset: u64,
        /// Number of bytes; all ones means to the end of the file.
        pub length: u64,
        /// Shared or exclusive.
        pub locktype: LockType,
        /// The owner of the lock.
        pub owner: StateOwner,
    }
    /// Arguments of LOCKT, which tests for a conflicting lock.
    pub struct LocktArgs {
        /// Shared or exclusive.
        pub locktype: LockType,
        /// First byte.
        pub offset: u64,
        /// Number of bytes; all ones means to the end of the file.
        pub length: u64,
        /// The owner of the lock.
        pub owner: StateOwner,
    }
    /// Arguments of LOCKU.
    #[derive(Copy)]
    pub struct LockuArgs {
        /// Type of the lock.
        pub locktype: LockType,
        /// 0 in NFSv4.1.
        pub seqid: u32,
        /// Stateid of the owner's locks on the file.
        pub lock_stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Number of bytes; all ones means to the end of the file.
        pub length: u64,
    }
    /// Arguments of OPEN. Current filehandle: the directory, or the file if the claim has no name.
    pub struct OpenArgs {
        /// 0 in NFSv4.1.
        pub seqid: u32,
        /// `open::SHARE_ACCESS_*` and wants.
        pub share_access: u32,
        /// `open::SHARE_DENY_*`.
        pub share_deny: u32,
        /// The open-owner.
        pub owner: StateOwner,
        /// How to create the file; `None` does not create it (`openflag4`).
        pub how: Option<CreateHow>,
        /// The basis of the open.
        pub claim: OpenClaim,
    }
    /// `creatverfattr`.
    pub struct CreateVerfAttr {
        /// Recognizes a retransmitted request.
        pub verf: Verifier,
        /// Attributes of the new file.
        pub attrs: Attrs,
    }
    /// `open_claim_delegate_cur4`.
    pub struct ClaimDelegateCur {
        /// Stateid of the delegation.
        pub delegate_stateid: Stateid,
        /// Name in the current directory.
        pub file: Component,
    }
    /// Result of OPEN. Current filehandle: the file.
    pub struct OpenOk {
        /// Stateid of the open.
        pub stateid: Stateid,
        /// Change of the directory.
        pub cinfo: ChangeInfo,
        /// `open::RESULT_*`.
        pub rflags: u32,
        /// Attributes that were set at creation.
        pub attrset: Bitmap4,
        /// A delegation, or none.
        pub delegation: OpenDelegation,
    }
    /// `open_read_delegation4`.
    pub struct ReadDelegation {
        /// Stateid of the delegation.
        pub stateid: Stateid,
        /// The delegation is already being recalled.
        pub recall: bool,
        /// Users that may open the file without an ACCESS check.
        pub permissions: Ace,
    }
    /// `open_write_delegation4`.
    pub struct WriteDelegation {
        /// Stateid of the delegation.
        pub stateid: Stateid,
        /// The delegation is already being recalled.
        pub recall: bool,
        /// Limit of unflushed data at close.
        pub space_limit: SpaceLimit,
        /// Users that may open the file without an ACCESS check.
        pub permissions: Ace,
    }
    /// `nfs_modified_limit4`.
    #[derive(Copy)]
    pub struct ModifiedLimit {
        /// Number of blocks.
        pub num_blocks: u32,
        /// Bytes of a block.
        pub bytes_per_block: u32,
    }
    /// Arguments of OPEN_CONFIRM (NFSv4.0 only).
    #[derive(Copy)]
    pub struct OpenConfirmArgs {
        /// Stateid of the open.
        pub stateid: Stateid,
        /// The owner's sequence number.
        pub seqid: u32,
    }
    /// Arguments of OPEN_DOWNGRADE.
    #[derive(Copy)]
    pub struct OpenDowngradeArgs {
        /// Stateid of the open.
        pub stateid: Stateid,
        /// 0 in NFSv4.1.
        pub seqid: u32,
        /// Access that remains.
        pub share_access: u32,
        /// Deny bits that remain.
        pub share_deny: u32,
    }
    /// Arguments of READ and READ_PLUS. Current filehandle: the file.
    #[derive(Copy)]
    pub struct ReadArgs {
        /// Stateid: open, lock, delegation or special.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Number of bytes.
        pub count: u32,
    }
    /// Result of READ. The data is a slice of the received message.
    pub struct ReadOk {
        /// The read reached the end of the file.
        pub eof: bool,
        /// The bytes of the file.
        pub data: Data,
    }
    /// Arguments of READDIR. Current filehandle: the directory.
    #[derive(Copy)]
    pub struct ReaddirArgs {
        /// 0, or the cookie of the last received entry.
        pub cookie: u64,
        /// 0, or the verifier of the first reply.
        pub cookieverf: Verifier,
        /// Preferred number of bytes of names and cookies.
        pub dircount: u32,
        /// Most bytes of the whole reply.
        pub maxcount: u32,
        /// Requested attributes of the entries.
        pub attr_request: Bitmap4,
    }
    /// `entry4` of READDIR.
    pub struct Entry {
        /// Position after this entry.
        pub cookie: u64,
        /// The name.
        pub name: Component,
        /// The requested attributes.
        pub attrs: Attrs,
    }
    /// Result of READDIR.
    pub struct ReaddirOk {
        /// Verifier for later calls with these cookies.
        pub cookieverf: Verifier,
        /// The entries.
        pub entries: Chain<Entry, READDIR_MAX_ENTRIES>,
        /// No entries follow.
        pub eof: bool,
    }
    /// Arguments of RENAME. Saved filehandle: source directory; current: target directory.
    pub struct RenameArgs {
        /// Name in the source directory.
        pub oldname: Component,
        /// Name in the target directory.
        pub newname: Component,
    }
    /// Result of RENAME.
    #[derive(Copy)]
    pub struct RenameOk {
        /// Change of the source directory.
        pub source_cinfo: ChangeInfo,
        /// Change of the target directory.
        pub target_cinfo: ChangeInfo,
    }
    /// `rpcsec_gss_info`.
    pub struct GssInfo {
        /// The mechanism.
        pub oid: SecOid,
        /// Quality of protection.
        pub qop: u32,
        /// Authentication, integrity or privacy.
        pub service: GssService,
    }
    /// Arguments of SETATTR. Current filehandle: the object.
    pub struct SetattrArgs {
        /// Stateid for a change of the size: open, lock, delegation or special.
        pub stateid: Stateid,
        /// New values.
        pub attrs: Attrs,
    }
    /// Arguments of SETCLIENTID (NFSv4.0 only).
    pub struct SetclientidArgs {
        /// Name that the client chose for itself.
        pub client: ClientOwner,
        /// Program number of callbacks.
        pub cb_program: u32,
        /// Address for callbacks.
        pub cb_location: Netaddr,
        /// Identifier that each CB_COMPOUND contains.
        pub callback_ident: u32,
    }
    /// Result of SETCLIENTID, arguments of SETCLIENTID_CONFIRM.
    #[derive(Copy)]
    pub struct SetclientidOk {
        /// The server's identifier of the client.
        pub clientid: Clientid,
        /// Verifier that proves the receipt of the reply.
        pub confirm: Verifier,
    }
    /// Arguments of WRITE. The data is sent by reference.
    pub struct WriteArgs {
        /// Stateid: open, lock, delegation or special.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Requested stability.
        pub stable: StableHow,
        /// The bytes to write.
        pub data: Data,
    }
    /// Result of WRITE.
    #[derive(Copy)]
    pub struct WriteOk {
        /// Number of bytes written.
        pub count: u32,
        /// Stability of the data.
        pub committed: StableHow,
        /// Changes when unstable data may be lost.
        pub writeverf: Verifier,
    }
}

xdr_union! {
    /// `createtype4`.
    pub enum CreateType else Other {
        /// A symbolic link with this target.
        Link(NewLinktext) = 5,
        /// A block device.
        Block(Specdata) = 3,
        /// A character device.
        Char(Specdata) = 4,
        /// A socket.
        Socket = 6,
        /// A pipe.
        Fifo = 7,
        /// A directory.
        Dir = 2,
    }
    /// `locker4`.
    pub enum Locker {
        /// Another lock of an owner with locks on the file.
        Existing(ExistLockOwner) = 0,
        /// The owner's first lock on the file.
        New(OpenToLockOwner) = 1,
    }
    /// `createhow4`.
    pub enum CreateHow {
        /// Opens the file if it exists.
        Unchecked(Attrs) = 0,
        /// Fails if the file exists.
        Guarded(Attrs) = 1,
        /// Fails if another request created the file.
        Exclusive(Verifier) = 2,
        /// Like `Exclusive`, with attributes (NFSv4.1).
        Exclusive41(CreateVerfAttr) = 3,
    }
    /// `open_claim4`.
    pub enum OpenClaim {
        /// An open by name.
        Null(Component) = 0,
        /// A reclaim after a server restart. Current filehandle: the file.
        Previous(DelegationType) = 1,
        /// An open by name under a delegation.
        DelegateCur(ClaimDelegateCur) = 2,
        /// An open by name under a delegation of this client's earlier instance.
        DelegatePrev(Component) = 3,
        /// An open of the current filehandle (NFSv4.1).
        Fh = 4,
        /// An open of the current filehandle under a delegation (NFSv4.1).
        DelegCurFh(Stateid) = 5,
        /// An open of the current filehandle under a delegation of this client's earlier instance
        /// (NFSv4.1).
        DelegPrevFh = 6,
    }
    /// `nfs_space_limit4`.
    pub enum SpaceLimit {
        /// Limit of the file's size.
        Size(u64) = 1,
        /// Limit of the modified blocks.
        Blocks(ModifiedLimit) = 2,
    }
    /// `open_none_delegation4` (NFSv4.1): the reason why there is no delegation.
    pub enum WhyNoDelegation else Other {
        /// The client did not want a delegation.
        NotWanted = 0,
        /// Other clients use the file; true: the server will push a delegation later.
        Contention(bool) = 1,
        /// The server lacks resources; true: the server will signal when it has them.
        Resource(bool) = 2,
        /// The server grants none for files of this type.
        NotSuppFtype = 3,
        /// The server grants no write delegation for files of this type.
        WriteDelegNotSuppFtype = 4,
        /// The server does not upgrade the delegation.
        NotSuppUpgrade = 5,
        /// The server does not downgrade the delegation.
        NotSuppDowngrade = 6,
        /// The want was cancelled.
        Cancelled = 7,
        /// The file is a directory.
        IsDir = 8,
    }
    /// `open_delegation4`.
    pub enum OpenDelegation {
        /// No delegation.
        None = 0,
        /// A read delegation: no other client writes the file.
        Read(ReadDelegation) = 1,
        /// A write delegation: no other client uses the file.
        Write(WriteDelegation) = 2,
        /// No delegation, with the reason (NFSv4.1).
        NoneExt(WhyNoDelegation) = 3,
        /// A read delegation under which the client maintains the access time (RFC 9754).
        ReadAttrs(ReadDelegation) = 4,
        /// A write delegation under which the client maintains the times (RFC 9754).
        WriteAttrs(WriteDelegation) = 5,
    }
    /// `secinfo4`: an RPC authentication flavor.
    pub enum Secinfo else Flavor {
        /// RPCSEC_GSS with this mechanism and service.
        Gss(GssInfo) = 6,
    }
}

/// Result of SECINFO and SECINFO_NO_NAME: the permitted flavors in the server's order of
/// preference.
pub type SecinfoOk = List<Secinfo, SECINFO_MAX>;

fail_arm! {
    /// Failure of LOCK and LOCKT.
    pub enum LockFail {
        /// `NFS4ERR_DENIED`: the conflicting lock.
        Denied(LockDenied) = DENIED
    }
}
fail_arm! {
    /// Failure of SETCLIENTID.
    pub enum SetclientidFail {
        /// `NFS4ERR_CLID_INUSE`: the address of the client that uses the name.
        InUse(Netaddr) = CLID_INUSE
    }
}

/// Failure of SETATTR. The server may still have set some attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetattrFail {
    /// Status of the operation.
    pub status: Nfsstat4,
    /// Attributes that were set.
    pub attrsset: Bitmap4,
}

impl Fail for SetattrFail {
    fn status(&self) -> Nfsstat4 {
        self.status
    }
    fn enc_arm(&self, e: &mut Enc) {
        self.attrsset.enc(e);
    }
    fn dec_arm(status: Nfsstat4, d: &mut Dec<'_>) -> xdr::Result<Self> {
        Ok(Self { status, attrsset: Bitmap4::dec(d)? })
    }
}

impl From<Nfsstat4> for SetattrFail {
    fn from(status: Nfsstat4) -> Self {
        Self { status, attrsset: Bitmap4::EMPTY }
    }
}

#[cfg(any(test, feature = "sample"))]
impl super::sample::FailSample for SetattrFail {
    fn sample(status: Nfsstat4, s: &mut crate::sample::Source<'_>) -> Self {
        Self { status, attrsset: crate::sample::Sample::sample(s) }
    }
}

impl OpenDelegation {
    /// The delegation's stateid, if there is a delegation.
    pub fn stateid(&self) -> Option<Stateid> {
        match self {
            Self::Read(d) | Self::ReadAttrs(d) => Some(d.stateid),
            Self::Write(d) | Self::WriteAttrs(d) => Some(d.stateid),
            Self::None | Self::NoneExt(_) => None,
        }
    }
}
