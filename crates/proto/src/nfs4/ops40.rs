//! Arguments and results of the operations that NFSv4.0 has (RFC 7530 section 16).
//!
//! It knows nothing of compounds. An operation with one argument or one result uses that type
//! itself and has nothing here. NFSv4.1 and 4.2 extend some unions; all arms are here.

use super::types::{
    Ace, ChangeInfo, ClientOwner, Clientid, Component, Data, DelegationType, LockType, Netaddr, NewLinktext,
    SecOid, Specdata, StableHow, StateOwner, Stateid, Verifier,
};
use super::{Attrs, Bitmap4, Fail, Nfsstat4, fail_arm};
use crate::xdr::{self, Chain, Dec, Enc, List, Xdr};
use crate::{xdr_enum, xdr_struct, xdr_union};

/// Most entries of a READDIR reply that we take; 24 bytes is the least that an entry needs.
pub const READDIR_MAX_ENTRIES: usize = 1 << 16;
/// Most mechanisms of a SECINFO reply that we take.
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

    pub const RESULT_CONFIRM: u32 = 0x02;
    pub const RESULT_LOCKTYPE_POSIX: u32 = 0x04;
    pub const RESULT_PRESERVE_UNLINKED: u32 = 0x08;
    pub const RESULT_NO_OPEN_STATEID: u32 = 0x10;
    pub const RESULT_MAY_NOTIFY_LOCK: u32 = 0x20;
}

xdr_enum! {
    /// `rpc_gss_svc_t` (RFC 2203).
    pub enum GssService { NONE = 1, INTEGRITY = 2, PRIVACY = 3 }
}

xdr_struct! {
    /// Result of ACCESS.
    #[derive(Copy)]
    pub struct AccessOk {
        /// Bits that the server could check.
        pub supported: u32,
        /// Bits that are allowed.
        pub access: u32,
    }
    /// Arguments of CLOSE.
    #[derive(Copy)]
    pub struct CloseArgs {
        /// 0 in NFSv4.1.
        pub seqid: u32,
        /// The open.
        pub stateid: Stateid,
    }
    /// Arguments of COMMIT. Current filehandle: the file.
    #[derive(Copy)]
    pub struct CommitArgs {
        /// First byte.
        pub offset: u64,
        /// Bytes; 0 is to the end.
        pub count: u32,
    }
    /// Arguments of CREATE (everything but regular files). Current filehandle: the directory.
    pub struct CreateArgs {
        /// The object to create.
        pub objtype: CreateType,
        /// Its name.
        pub objname: Component,
        /// Its first attributes.
        pub createattrs: Attrs,
    }
    /// Result of CREATE. Current filehandle: the new object.
    #[derive(Copy)]
    pub struct CreateOk {
        /// The directory.
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
        /// Bytes; all ones is to the end.
        pub length: u64,
        /// The owner of the lock.
        pub locker: Locker,
    }
    /// `open_to_lock_owner4`: the first lock of this owner on this open.
    pub struct OpenToLockOwner {
        /// 0 in NFSv4.1.
        pub open_seqid: u32,
        /// The open.
        pub open_stateid: Stateid,
        /// 0 in NFSv4.1.
        pub lock_seqid: u32,
        /// The owner.
        pub lock_owner: StateOwner,
    }
    /// `exist_lock_owner4`: another lock of this owner.
    #[derive(Copy)]
    pub struct ExistLockOwner {
        /// The owner's locks on the file.
        pub lock_stateid: Stateid,
        /// 0 in NFSv4.1.
        pub lock_seqid: u32,
    }
    /// `LOCK4denied`: the lock in the way.
    pub struct LockDenied {
        /// First byte.
        pub offset: u64,
        /// Bytes; all ones is to the end.
        pub length: u64,
        /// Shared or exclusive.
        pub locktype: LockType,
        /// Whose.
        pub owner: StateOwner,
    }
    /// Arguments of LOCKT: which lock would be in conflict?
    pub struct LocktArgs {
        /// Shared or exclusive.
        pub locktype: LockType,
        /// First byte.
        pub offset: u64,
        /// Bytes; all ones is to the end.
        pub length: u64,
        /// The owner of the lock.
        pub owner: StateOwner,
    }
    /// Arguments of LOCKU.
    #[derive(Copy)]
    pub struct LockuArgs {
        /// Of the lock.
        pub locktype: LockType,
        /// 0 in NFSv4.1.
        pub seqid: u32,
        /// The owner's locks on the file.
        pub lock_stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Bytes; all ones is to the end.
        pub length: u64,
    }
    /// Arguments of OPEN. Current filehandle: the directory, or the file for claims by handle.
    pub struct OpenArgs {
        /// 0 in NFSv4.1.
        pub seqid: u32,
        /// `open::SHARE_ACCESS_*` and wishes.
        pub share_access: u32,
        /// `open::SHARE_DENY_*`.
        pub share_deny: u32,
        /// The open-owner.
        pub owner: StateOwner,
        /// Whether and how to create (`openflag4`).
        pub how: Option<CreateHow>,
        /// The claim that gives the right.
        pub claim: OpenClaim,
    }
    /// `creatverfattr`.
    pub struct CreateVerfAttr {
        /// Recognizes a repeated request.
        pub verf: Verifier,
        /// First attributes.
        pub attrs: Attrs,
    }
    /// `open_claim_delegate_cur4`.
    pub struct ClaimDelegateCur {
        /// The delegation.
        pub delegate_stateid: Stateid,
        /// Name in the current directory.
        pub file: Component,
    }
    /// Result of OPEN. Current filehandle: the file.
    pub struct OpenOk {
        /// The open.
        pub stateid: Stateid,
        /// The directory.
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
        /// The delegation.
        pub stateid: Stateid,
        /// It is being recalled already.
        pub recall: bool,
        /// The users that need no ACCESS to open.
        pub permissions: Ace,
    }
    /// `open_write_delegation4`.
    pub struct WriteDelegation {
        /// The delegation.
        pub stateid: Stateid,
        /// It is being recalled already.
        pub recall: bool,
        /// How much may stay unflushed at close.
        pub space_limit: SpaceLimit,
        /// The users that need no ACCESS to open.
        pub permissions: Ace,
    }
    /// `nfs_modified_limit4`.
    #[derive(Copy)]
    pub struct ModifiedLimit {
        /// How many blocks.
        pub num_blocks: u32,
        /// Of how many bytes.
        pub bytes_per_block: u32,
    }
    /// Arguments of OPEN_CONFIRM (NFSv4.0 only).
    #[derive(Copy)]
    pub struct OpenConfirmArgs {
        /// The open.
        pub stateid: Stateid,
        /// The owner's sequence number.
        pub seqid: u32,
    }
    /// Arguments of OPEN_DOWNGRADE.
    #[derive(Copy)]
    pub struct OpenDowngradeArgs {
        /// The open.
        pub stateid: Stateid,
        /// 0 in NFSv4.1.
        pub seqid: u32,
        /// The remaining access.
        pub share_access: u32,
        /// The remaining denial.
        pub share_deny: u32,
    }
    /// Arguments of READ and READ_PLUS. Current filehandle: the file.
    #[derive(Copy)]
    pub struct ReadArgs {
        /// Open, lock, delegation or special.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Bytes.
        pub count: u32,
    }
    /// Result of READ. The data are a slice of the received message.
    pub struct ReadOk {
        /// The end of the file has been reached.
        pub eof: bool,
        /// The bytes of the file.
        pub data: Data,
    }
    /// Arguments of READDIR. Current filehandle: the directory.
    #[derive(Copy)]
    pub struct ReaddirArgs {
        /// 0, or the cookie of the last entry seen.
        pub cookie: u64,
        /// 0, or the verifier of the first reply.
        pub cookieverf: Verifier,
        /// Bytes of names and cookies; a hint.
        pub dircount: u32,
        /// Bytes of the whole reply.
        pub maxcount: u32,
        /// Attributes of entries.
        pub attr_request: Bitmap4,
    }
    /// `entry4` of READDIR.
    pub struct Entry {
        /// Where to go on after it.
        pub cookie: u64,
        /// The name.
        pub name: Component,
        /// The requested attributes.
        pub attrs: Attrs,
    }
    /// Result of READDIR.
    pub struct ReaddirOk {
        /// To send back with the next cookie.
        pub cookieverf: Verifier,
        /// The entries.
        pub entries: Chain<Entry, READDIR_MAX_ENTRIES>,
        /// No entries follow.
        pub eof: bool,
    }
    /// Arguments of RENAME. Saved filehandle: source directory; current: target directory.
    pub struct RenameArgs {
        /// In the source directory.
        pub oldname: Component,
        /// In the target directory.
        pub newname: Component,
    }
    /// Result of RENAME.
    #[derive(Copy)]
    pub struct RenameOk {
        /// The source directory.
        pub source_cinfo: ChangeInfo,
        /// The target directory.
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
        /// For size changes: open, lock, delegation or special.
        pub stateid: Stateid,
        /// New values.
        pub attrs: Attrs,
    }
    /// Arguments of SETCLIENTID (NFSv4.0 only).
    pub struct SetclientidArgs {
        /// The client's own name.
        pub client: ClientOwner,
        /// Program number of callbacks.
        pub cb_program: u32,
        /// Where callbacks go.
        pub cb_location: Netaddr,
        /// Comes back in each CB_COMPOUND.
        pub callback_ident: u32,
    }
    /// Result of SETCLIENTID, arguments of SETCLIENTID_CONFIRM.
    #[derive(Copy)]
    pub struct SetclientidOk {
        /// The short name.
        pub clientid: Clientid,
        /// Proves that the reply arrived.
        pub confirm: Verifier,
    }
    /// Arguments of WRITE. The data are taken by reference.
    pub struct WriteArgs {
        /// Open, lock, delegation or special.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// How durable.
        pub stable: StableHow,
        /// The bytes to write.
        pub data: Data,
    }
    /// Result of WRITE.
    #[derive(Copy)]
    pub struct WriteOk {
        /// Bytes written.
        pub count: u32,
        /// How durable they are.
        pub committed: StableHow,
        /// Changes when unstable data may be lost.
        pub writeverf: Verifier,
    }
}

xdr_union! {
    /// `createtype4`.
    pub enum CreateType else Other {
        /// A symbolic link and its text.
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
        /// The owner holds locks already.
        Existing(ExistLockOwner) = 0,
        /// The owner's first lock.
        New(OpenToLockOwner) = 1,
    }
    /// `createhow4`.
    pub enum CreateHow {
        /// Open it if it exists.
        Unchecked(Attrs) = 0,
        /// Fail if it exists.
        Guarded(Attrs) = 1,
        /// Fail if another request has created it.
        Exclusive(Verifier) = 2,
        /// The same, with attributes (NFSv4.1).
        Exclusive41(CreateVerfAttr) = 3,
    }
    /// `open_claim4`.
    pub enum OpenClaim {
        /// An ordinary open by name.
        Null(Component) = 0,
        /// Reclaim after a server restart; current filehandle: the file.
        Previous(DelegationType) = 1,
        /// Under a delegation, by name.
        DelegateCur(ClaimDelegateCur) = 2,
        /// Under a delegation to this client's former life, by name.
        DelegatePrev(Component) = 3,
        /// An ordinary open of the current filehandle (NFSv4.1).
        Fh = 4,
        /// Under a delegation, of the current filehandle (NFSv4.1).
        DelegCurFh(Stateid) = 5,
        /// Under a delegation to this client's former life, of the current filehandle (NFSv4.1).
        DelegPrevFh = 6,
    }
    /// `nfs_space_limit4`.
    pub enum SpaceLimit {
        /// Size of the file.
        Size(u64) = 1,
        /// Changed blocks.
        Blocks(ModifiedLimit) = 2,
    }
    /// `open_none_delegation4` (NFSv4.1): why there is no delegation.
    pub enum WhyNoDelegation else Other {
        /// Not asked for.
        NotWanted = 0,
        /// Others use the file; true: the server will push one later.
        Contention(bool) = 1,
        /// The server has no room; true: it will signal when it has.
        Resource(bool) = 2,
        /// Not for files of this type.
        NotSuppFtype = 3,
        /// No write delegation for files of this type.
        WriteDelegNotSuppFtype = 4,
        /// No upgrade.
        NotSuppUpgrade = 5,
        /// No downgrade.
        NotSuppDowngrade = 6,
        /// The wish was cancelled.
        Cancelled = 7,
        /// It is a directory.
        IsDir = 8,
    }
    /// `open_delegation4`.
    pub enum OpenDelegation {
        /// None.
        None = 0,
        /// Others do not write.
        Read(ReadDelegation) = 1,
        /// Others do not use the file.
        Write(WriteDelegation) = 2,
        /// None, and why (NFSv4.1).
        NoneExt(WhyNoDelegation) = 3,
        /// Read, and the client knows the access time (RFC 9754).
        ReadAttrs(ReadDelegation) = 4,
        /// Write, and the client knows the times (RFC 9754).
        WriteAttrs(WriteDelegation) = 5,
    }
    /// `secinfo4`: an RPC authentication flavor.
    pub enum Secinfo else Flavor {
        /// RPCSEC_GSS with this mechanism and service.
        Gss(GssInfo) = 6,
    }
}

/// Result of SECINFO and SECINFO_NO_NAME: the flavors that the client may use, best first.
pub type SecinfoOk = List<Secinfo, SECINFO_MAX>;

fail_arm! {
    /// Failure of LOCK and LOCKT.
    pub enum LockFail {
        /// `NFS4ERR_DENIED`: the lock in the way.
        Denied(LockDenied) = DENIED
    }
}
fail_arm! {
    /// Failure of SETCLIENTID.
    pub enum SetclientidFail {
        /// `NFS4ERR_CLID_INUSE`: the user of the name.
        InUse(Netaddr) = CLID_INUSE
    }
}

/// Failure of SETATTR: some attributes may have been set nevertheless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetattrFail {
    /// Why.
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
    /// The delegation's stateid, when there is one.
    pub fn stateid(&self) -> Option<Stateid> {
        match self {
            Self::Read(d) | Self::ReadAttrs(d) => Some(d.stateid),
            Self::Write(d) | Self::WriteAttrs(d) => Some(d.stateid),
            Self::None | Self::NoneExt(_) => None,
        }
    }
}
