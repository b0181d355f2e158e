//! Types that many NFSv4 operations share: handles, names, times, state identifiers, owners.
//!
//! This module has no operations. Names are those of RFC 8881 section 3 without the `4`.
//! Identifiers are `Copy` values or slices of the received message. Code that keeps a name, handle
//! or owner for long must copy it; a slice keeps the whole message in memory.

use crate::xdr::{List, Opaque};
use crate::{xdr_enum, xdr_struct, xdr_union};

/// Most bytes of a filehandle (`NFS4_FHSIZE`).
pub const FH_MAX_BYTES: usize = 128;
/// Most bytes of owners and identifiers (`NFS4_OPAQUE_LIMIT`).
pub const OPAQUE_MAX_BYTES: usize = 1024;
/// Longest name of a user or group that is decoded, in bytes.
pub const OWNER_MAX_BYTES: usize = 1 << 16;
/// Longest tag of a compound that is decoded, in bytes.
pub const TAG_MAX_BYTES: usize = 1 << 16;
/// Longest name that is decoded, in bytes. The protocol has no limit, and file systems stop at 255.
/// A server must decode a longer name to answer `NFS4ERR_NAMETOOLONG`.
pub const NAME_MAX_BYTES: usize = 1 << 20;
/// Longest target of a symbolic link that is decoded, in bytes (`PATH_MAX` of the usual systems).
pub const LINKTEXT_MAX_BYTES: usize = 4096;
/// Most components of a pathname inside `fs_locations`.
pub const PATH_MAX_COMPONENTS: usize = 256;
/// Longest READ or WRITE payload that is decoded, in bytes.
pub const IO_MAX_BYTES: usize = 64 << 20;
/// Longest opaque body that another specification defines (layouts, devices), in bytes.
pub const BODY_MAX_BYTES: usize = 1 << 20;

/// `nfs_fh4`: the server's name of an object.
pub type Fh = Opaque<FH_MAX_BYTES>;
/// `component4`: one name, bytes without an encoding.
pub type Component = Opaque<NAME_MAX_BYTES>;
/// `linktext4`: the target of a symbolic link.
pub type Linktext = Opaque<LINKTEXT_MAX_BYTES>;
/// Target of a new symbolic link. It may exceed [`LINKTEXT_MAX_BYTES`].
pub type NewLinktext = Opaque<NAME_MAX_BYTES>;
/// `pathname4`: the components of a path from its root.
pub type Pathname = List<Component, PATH_MAX_COMPONENTS>;
/// `utf8str_mixed` of users and groups: `name@domain` or a decimal number. The protocol has no
/// limit. A server answers a longer one with `NFS4ERR_BADOWNER`.
pub type OwnerName = Opaque<OWNER_MAX_BYTES>;
/// Other strings (domains, server names).
pub type Text = Opaque<OPAQUE_MAX_BYTES>;
/// Tag of a compound. The protocol has no limit. A server returns the tag in its reply.
pub type Tag = Opaque<TAG_MAX_BYTES>;
/// Payload of READ and WRITE.
pub type Data = Opaque<IO_MAX_BYTES>;
/// Opaque body of a layout, device address or hint.
pub type Body = Opaque<BODY_MAX_BYTES>;
/// `sec_oid4`: a security mechanism's object identifier (DER).
pub type SecOid = Opaque<OPAQUE_MAX_BYTES>;
/// `verifier4`.
pub type Verifier = [u8; 8];
/// `clientid4`: the server's identifier of a client.
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
    /// `stable_how4`: the stability of a WRITE.
    pub enum StableHow { UNSTABLE = 0, DATA_SYNC = 1, FILE_SYNC = 2 }
    /// `nfs_lock_type4`. The `W` forms announce that the client waits for the lock.
    pub enum LockType { READ = 1, WRITE = 2, READW = 3, WRITEW = 4 }
    /// `open_delegation_type4`. The last two values are from RFC 9754.
    pub enum DelegationType { NONE = 0, READ = 1, WRITE = 2, NONE_EXT = 3, READ_ATTRS = 4, WRITE_ATTRS = 5 }
    /// `layouttype4` (IANA pNFS layout types).
    pub enum LayoutType {
        NFSV4_1_FILES = 1, OSD2_OBJECTS = 2, BLOCK_VOLUME = 3, FLEX_FILES = 4, SCSI = 5,
    }
    /// `layoutiomode4`.
    pub enum LayoutIomode { READ = 1, RW = 2, ANY = 3 }
    /// `data_content4`: the content that SEEK finds and READ_PLUS returns.
    pub enum DataContent { DATA = 0, HOLE = 1 }
    /// `change_attr_type4`: how the change attribute changes.
    pub enum ChangeAttrType {
        MONOTONIC_INCR = 0, VERSION_COUNTER = 1, VERSION_COUNTER_NOPNFS = 2, TIME_METADATA = 3,
        UNDEFINED = 4,
    }
}

xdr_struct! {
    /// `nfstime4`: time since 1970 in UTC. `nseconds` is below 10^9.
    #[derive(Copy, Hash, Default, PartialOrd, Ord)]
    pub struct Time {
        /// Seconds, negative before 1970.
        pub seconds: i64,
        /// Nanoseconds after `seconds`.
        pub nseconds: u32,
    }
    /// `fsid4`: identifier of a file system.
    #[derive(Copy, Hash, Default, PartialOrd, Ord)]
    pub struct Fsid {
        /// First half of the identifier.
        pub major: u64,
        /// Second half of the identifier.
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
        /// Increases with each change of the state. In NFSv4.1, 0 means the present seqid.
        pub seqid: u32,
        /// Identifier of the state.
        pub other: [u8; 12],
    }
    /// `change_info4`: a directory's change attribute before and after an operation.
    #[derive(Copy, Hash, Default)]
    pub struct ChangeInfo {
        /// True if no other change occurred between the two values.
        pub atomic: bool,
        /// Before the operation.
        pub before: u64,
        /// After the operation.
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
        /// The client; 0 in NFSv4.1, where the session identifies the client.
        pub clientid: Clientid,
        /// The owner's name, opaque to the server.
        pub owner: Opaque<OPAQUE_MAX_BYTES>,
    }
    /// `nfs_client_id4` and `client_owner4`: the name that a client chose for itself.
    pub struct ClientOwner {
        /// Changes when the client has lost its state.
        pub verifier: Verifier,
        /// Stays the same after a restart of the client.
        pub ownerid: Opaque<OPAQUE_MAX_BYTES>,
    }
    /// `server_owner4`.
    pub struct ServerOwner {
        /// Distinguishes network addresses that share no session.
        pub minor_id: u64,
        /// Identity of the server.
        pub major_id: Opaque<OPAQUE_MAX_BYTES>,
    }
    /// `nfs_impl_id4`: for diagnostics. Interoperation must not depend on it (RFC 8881 section
    /// 18.35.3).
    pub struct ImplId {
        /// DNS name of the implementer. That of this implementation is [`super::HITHER_DOMAIN`].
        pub domain: Text,
        /// Product and build.
        pub name: Text,
        /// Date of the build.
        pub date: Time,
    }
    /// `nfsace4`: one entry of an access control list.
    pub struct Ace {
        /// Type of the entry, for example `ACE4_ACCESS_ALLOWED_ACE_TYPE`.
        pub ace_type: u32,
        /// Inheritance and audit flags.
        pub flag: u32,
        /// Bits of the rights.
        pub access_mask: u32,
        /// The user or group.
        pub who: OwnerName,
    }
}

xdr_union! {
    /// `settime4`.
    pub enum SetTime {
        /// Sets the server's present time.
        Server = 0,
        /// Sets this time.
        Client(Time) = 1,
    }
    /// `netloc4`: the location of a source or destination of a server-to-server copy.
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
    /// All ones: READ ignores locks. In other operations it equals the anonymous stateid.
    pub const READ_BYPASS: Self = Self { seqid: u32::MAX, other: [0xff; 12] };
    /// The stateid from the preceding operation of the compound (NFSv4.1).
    pub const CURRENT: Self = Self { seqid: 1, other: [0; 12] };
    /// The invalid stateid (NFSv4.1).
    pub const INVALID: Self = Self { seqid: u32::MAX, other: [0; 12] };

    /// True for the special stateids.
    pub fn is_special(&self) -> bool {
        self.other == [0; 12] || self.other == [0xff; 12]
    }

    /// The same state with seqid 0, which matches any seqid (NFSv4.1).
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
