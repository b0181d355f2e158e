//! Types that many NFSv4 operations share: handles, names, times, state identifiers, owners.
//!
//! It knows nothing of operations. Names are those of RFC 8881 section 3 without the `4`.
//! Identifiers are `Copy` values or slices of the received message: code that keeps a name, handle
//! or owner for long should copy it, or it keeps the whole message alive.

use crate::xdr::{List, Opaque};
use crate::{xdr_enum, xdr_struct, xdr_union};

/// Most bytes of a filehandle (`NFS4_FHSIZE`).
pub const FH_MAX_BYTES: usize = 128;
/// Most bytes of owners and identifiers (`NFS4_OPAQUE_LIMIT`).
pub const OPAQUE_MAX_BYTES: usize = 1024;
/// Most bytes of a user's or a group's name that we take.
pub const OWNER_MAX_BYTES: usize = 1 << 16;
/// Most bytes of a compound's tag that we take.
pub const TAG_MAX_BYTES: usize = 1 << 16;
/// Most bytes of one name that we take. The protocol has no limit and file systems stop at 255, but
/// a server has to read a longer name to answer `NFS4ERR_NAMETOOLONG`.
pub const NAME_MAX_BYTES: usize = 1 << 20;
/// Most bytes of a symbolic link's text that we take (`PATH_MAX` of the systems we know).
pub const LINKTEXT_MAX_BYTES: usize = 4096;
/// Most components of a pathname inside `fs_locations`.
pub const PATH_MAX_COMPONENTS: usize = 256;
/// Most bytes of one READ or WRITE payload that we take.
pub const IO_MAX_BYTES: usize = 64 << 20;
/// Most bytes of opaque bodies whose structure is another specification's (layouts, devices).
pub const BODY_MAX_BYTES: usize = 1 << 20;

/// `nfs_fh4`: an object as the server knows it.
pub type Fh = Opaque<FH_MAX_BYTES>;
/// `component4`: one name, bytes without an encoding.
pub type Component = Opaque<NAME_MAX_BYTES>;
/// `linktext4`: the target of a symbolic link.
pub type Linktext = Opaque<LINKTEXT_MAX_BYTES>;
/// The text of a symbolic link to be made, which may be longer than any link.
pub type NewLinktext = Opaque<NAME_MAX_BYTES>;
/// `pathname4`: names from a root downwards.
pub type Pathname = List<Component, PATH_MAX_COMPONENTS>;
/// `utf8str_mixed` of users and groups: `name@domain` or a decimal number. The protocol has no
/// limit; a longer one is `NFS4ERR_BADOWNER`.
pub type OwnerName = Opaque<OWNER_MAX_BYTES>;
/// Other strings (domains, server names).
pub type Text = Opaque<OPAQUE_MAX_BYTES>;
/// Tag of a compound. The protocol has no limit, and a server returns the tag in its reply.
pub type Tag = Opaque<TAG_MAX_BYTES>;
/// Payload of READ and WRITE.
pub type Data = Opaque<IO_MAX_BYTES>;
/// Opaque body of a layout, device address or hint.
pub type Body = Opaque<BODY_MAX_BYTES>;
/// `sec_oid4`: a security mechanism's object identifier (DER).
pub type SecOid = Opaque<OPAQUE_MAX_BYTES>;
/// `verifier4`.
pub type Verifier = [u8; 8];
/// `clientid4`: the server's short name for a client.
pub type Clientid = u64;
/// `sessionid4`.
pub type Sessionid = [u8; 16];
/// `deviceid4`.
pub type Deviceid = [u8; 16];

xdr_enum! {
    /// `nfs_ftype4`.
    pub enum Ftype {
        REG = 1, DIR = 2, BLK = 3, CHR = 4, LNK = 5, SOCK = 6, FIFO = 7, ATTRDIR = 8, NAMEDATTR = 9,
    }
    /// `stable_how4`: how durable a WRITE is.
    pub enum StableHow { UNSTABLE = 0, DATA_SYNC = 1, FILE_SYNC = 2 }
    /// `nfs_lock_type4`; the `W` forms ask to wait.
    pub enum LockType { READ = 1, WRITE = 2, READW = 3, WRITEW = 4 }
    /// `open_delegation_type4`; the last two are RFC 9754.
    pub enum DelegationType { NONE = 0, READ = 1, WRITE = 2, NONE_EXT = 3, READ_ATTRS = 4, WRITE_ATTRS = 5 }
    /// `layouttype4` (IANA pNFS layout types).
    pub enum LayoutType {
        NFSV4_1_FILES = 1, OSD2_OBJECTS = 2, BLOCK_VOLUME = 3, FLEX_FILES = 4, SCSI = 5,
    }
    /// `layoutiomode4`.
    pub enum LayoutIomode { READ = 1, RW = 2, ANY = 3 }
    /// `data_content4`: the content that SEEK looks for and READ_PLUS returns.
    pub enum DataContent { DATA = 0, HOLE = 1 }
    /// `change_attr_type4`: the promise of the change attribute.
    pub enum ChangeAttrType {
        MONOTONIC_INCR = 0, VERSION_COUNTER = 1, VERSION_COUNTER_NOPNFS = 2, TIME_METADATA = 3,
        UNDEFINED = 4,
    }
}

xdr_struct! {
    /// `nfstime4`: since 1970 in UTC; `nseconds` below 10^9.
    #[derive(Copy, Hash, Default, PartialOrd, Ord)]
    pub struct Time {
        /// Seconds, negative before 1970.
        pub seconds: i64,
        /// Nanoseconds on top of that.
        pub nseconds: u32,
    }
    /// `fsid4`.
    #[derive(Copy, Hash, Default, PartialOrd, Ord)]
    pub struct Fsid {
        /// First half.
        pub major: u64,
        /// Second half.
        pub minor: u64,
    }
    /// `specdata4`: device numbers of block and character devices.
    #[derive(Copy, Hash, Default)]
    pub struct Specdata {
        /// Major number.
        pub major: u32,
        /// Minor number.
        pub minor: u32,
    }
    /// `stateid4` (RFC 8881 section 8.2).
    #[derive(Copy, Hash)]
    pub struct Stateid {
        /// Grows with each change of the state; 0 means "the current one" in NFSv4.1.
        pub seqid: u32,
        /// Which state.
        pub other: [u8; 12],
    }
    /// `change_info4`: the directory's change attribute around an operation.
    #[derive(Copy, Hash, Default)]
    pub struct ChangeInfo {
        /// True when no other client changed the directory between the two.
        pub atomic: bool,
        /// Before the operation.
        pub before: u64,
        /// After it.
        pub after: u64,
    }
    /// `netaddr4`: network identifier and universal address (RFC 5665).
    pub struct Netaddr {
        /// `tcp`, `tcp6`, `rdma`, …
        pub netid: Text,
        /// `h1.h2.h3.h4.p1.p2` for IPv4.
        pub addr: Text,
    }
    /// `state_owner4`: the holder of an open or a lock.
    #[derive(Hash)]
    pub struct StateOwner {
        /// The client; 0 in NFSv4.1, where the session says it.
        pub clientid: Clientid,
        /// Opaque to the server.
        pub owner: Opaque<OPAQUE_MAX_BYTES>,
    }
    /// `nfs_client_id4` and `client_owner4`: a client's own name for itself.
    pub struct ClientOwner {
        /// Changes when the client has lost its state.
        pub verifier: Verifier,
        /// The same after a restart.
        pub ownerid: Opaque<OPAQUE_MAX_BYTES>,
    }
    /// `server_owner4`.
    pub struct ServerOwner {
        /// Tells apart network addresses that share no session.
        pub minor_id: u64,
        /// The server.
        pub major_id: Opaque<OPAQUE_MAX_BYTES>,
    }
    /// `nfs_impl_id4`: for people and logs, never for decisions.
    pub struct ImplId {
        /// DNS name of the implementer.
        pub domain: Text,
        /// Product and build.
        pub name: Text,
        /// Date of the build.
        pub date: Time,
    }
    /// `nfsace4`: one entry of an access control list.
    pub struct Ace {
        /// `ACE4_ACCESS_ALLOWED_ACE_TYPE` and the like.
        pub ace_type: u32,
        /// Inheritance and audit flags.
        pub flag: u32,
        /// The rights.
        pub access_mask: u32,
        /// The user or group.
        pub who: OwnerName,
    }
}

xdr_union! {
    /// `settime4`.
    pub enum SetTime {
        /// The server's clock.
        Server = 0,
        /// This time.
        Client(Time) = 1,
    }
    /// `netloc4`: where a server-to-server copy goes or comes from.
    pub enum Netloc {
        /// A name.
        Name(Text) = 1,
        /// A URL.
        Url(Text) = 2,
        /// An address.
        Addr(Netaddr) = 3,
    }
}

impl Stateid {
    /// All zeros: I/O without an open (RFC 8881 section 8.2.3).
    pub const ANONYMOUS: Self = Self { seqid: 0, other: [0; 12] };
    /// All ones: READ that ignores locks; elsewhere the same as anonymous.
    pub const READ_BYPASS: Self = Self { seqid: u32::MAX, other: [0xff; 12] };
    /// The stateid that the compound's last operation returned (NFSv4.1).
    pub const CURRENT: Self = Self { seqid: 1, other: [0; 12] };
    /// Never valid (NFSv4.1).
    pub const INVALID: Self = Self { seqid: u32::MAX, other: [0; 12] };

    /// True for the values with a meaning of their own.
    pub fn is_special(&self) -> bool {
        self.other == [0; 12] || self.other == [0xff; 12]
    }

    /// The same state, with any seqid (NFSv4.1: "the current one").
    #[must_use]
    pub fn any_seqid(self) -> Self {
        Self { seqid: 0, ..self }
    }
}

/// Bits of ACCESS (RFC 8881 section 18.1, RFC 8276 section 8.4).
#[allow(missing_docs)]
pub mod access {
    pub const READ: u32 = 0x01;
    pub const LOOKUP: u32 = 0x02;
    pub const MODIFY: u32 = 0x04;
    pub const EXTEND: u32 = 0x08;
    pub const DELETE: u32 = 0x10;
    pub const EXECUTE: u32 = 0x20;
    pub const XAREAD: u32 = 0x40;
    pub const XAWRITE: u32 = 0x80;
    pub const XALIST: u32 = 0x100;
}

/// Fields of [`Ace`] and of the `aclsupport` attribute (RFC 8881 section 6.2.1).
#[allow(missing_docs)]
pub mod ace {
    pub const TYPE_ALLOW: u32 = 0;
    pub const TYPE_DENY: u32 = 1;
    pub const TYPE_AUDIT: u32 = 2;
    pub const TYPE_ALARM: u32 = 3;

    pub const FLAG_FILE_INHERIT: u32 = 0x01;
    pub const FLAG_DIRECTORY_INHERIT: u32 = 0x02;
    pub const FLAG_NO_PROPAGATE_INHERIT: u32 = 0x04;
    pub const FLAG_INHERIT_ONLY: u32 = 0x08;
    pub const FLAG_SUCCESSFUL_ACCESS: u32 = 0x10;
    pub const FLAG_FAILED_ACCESS: u32 = 0x20;
    pub const FLAG_IDENTIFIER_GROUP: u32 = 0x40;
    pub const FLAG_INHERITED: u32 = 0x80;

    pub const MASK_READ_DATA: u32 = 0x01;
    pub const MASK_WRITE_DATA: u32 = 0x02;
    pub const MASK_APPEND_DATA: u32 = 0x04;
    pub const MASK_READ_NAMED_ATTRS: u32 = 0x08;
    pub const MASK_WRITE_NAMED_ATTRS: u32 = 0x10;
    pub const MASK_EXECUTE: u32 = 0x20;
    pub const MASK_DELETE_CHILD: u32 = 0x40;
    pub const MASK_READ_ATTRIBUTES: u32 = 0x80;
    pub const MASK_WRITE_ATTRIBUTES: u32 = 0x100;
    pub const MASK_WRITE_RETENTION: u32 = 0x200;
    pub const MASK_WRITE_RETENTION_HOLD: u32 = 0x400;
    pub const MASK_DELETE: u32 = 0x1_0000;
    pub const MASK_READ_ACL: u32 = 0x2_0000;
    pub const MASK_WRITE_ACL: u32 = 0x4_0000;
    pub const MASK_WRITE_OWNER: u32 = 0x8_0000;
    pub const MASK_SYNCHRONIZE: u32 = 0x10_0000;

    pub const SUPPORT_ALLOW: u32 = 1;
    pub const SUPPORT_DENY: u32 = 2;
    pub const SUPPORT_AUDIT: u32 = 4;
    pub const SUPPORT_ALARM: u32 = 8;

    pub const ACL_AUTO_INHERIT: u32 = 1;
    pub const ACL_PROTECTED: u32 = 2;
    pub const ACL_DEFAULTED: u32 = 4;
}
