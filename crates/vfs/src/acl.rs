//! POSIX access control lists of Linux (acl(5)), and their encoding as extended attributes.

use bytes::Bytes;

/// Version of the encoding.
const VERSION: u32 = 2;
/// Size of an entry in bytes: tag, permissions, number.
const ENTRY_BYTES: usize = 8;
/// Number in entries that name no user or group.
const NO_ID: u32 = u32::MAX;

/// The subject of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AclWho {
    /// The owner.
    Owner,
    /// A user by number.
    User(u32),
    /// The owner's group.
    OwnerGroup,
    /// A group by number.
    Group(u32),
    /// The maximum rights of the owner's group and of users and groups by number.
    Mask,
    /// All other users.
    Other,
}

/// A POSIX ACL: permissions (4 read, 2 write, 1 execute) in the order of [`AclWho`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PosixAcl {
    /// The rights of users and groups.
    pub entries: Vec<(AclWho, u8)>,
}

/// The ACLs of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PosixAcls {
    /// The ACL of the object; `None`: the mode contains all rights.
    pub access: Option<PosixAcl>,
    /// The initial ACL of new objects in a directory.
    pub default: Option<PosixAcl>,
}

impl PosixAcl {
    /// The ACL that is equivalent to a mode.
    pub fn of_mode(mode: u32) -> Self {
        let bits = |shift: u32| (mode >> shift & 7) as u8;
        let entries = vec![(AclWho::Owner, bits(6)), (AclWho::OwnerGroup, bits(3)), (AclWho::Other, bits(0))];
        Self { entries }
    }

    /// The permissions of one entry.
    pub fn of(&self, who: AclWho) -> Option<u8> {
        self.entries.iter().find(|(w, _)| *w == who).map(|(_, bits)| *bits)
    }

    /// Decodes the value of `system.posix_acl_access` or `_default`. `None` when the value is no
    /// valid ACL.
    pub fn parse(raw: &[u8]) -> Option<Self> {
        let (version, mut rest) = raw.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*version) != VERSION {
            return None;
        }
        let mut entries = Vec::with_capacity(rest.len() / ENTRY_BYTES);
        while let Some((entry, after)) = rest.split_first_chunk::<ENTRY_BYTES>() {
            rest = after;
            let [t0, t1, p0, p1, id @ ..] = *entry;
            let (tag, bits, id) =
                (u16::from_le_bytes([t0, t1]), u16::from_le_bytes([p0, p1]), u32::from_le_bytes(id));
            let who = match tag {
                0x01 => AclWho::Owner,
                0x02 => AclWho::User(id),
                0x04 => AclWho::OwnerGroup,
                0x08 => AclWho::Group(id),
                0x10 => AclWho::Mask,
                0x20 => AclWho::Other,
                _ => return None,
            };
            entries.push((who, (bits & 7) as u8));
        }
        rest.is_empty().then_some(Self { entries })
    }

    /// The value of the extended attribute.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = VERSION.to_le_bytes().to_vec();
        for (who, bits) in &self.entries {
            let (tag, id): (u16, u32) = match *who {
                AclWho::Owner => (0x01, NO_ID),
                AclWho::User(id) => (0x02, id),
                AclWho::OwnerGroup => (0x04, NO_ID),
                AclWho::Group(id) => (0x08, id),
                AclWho::Mask => (0x10, NO_ID),
                AclWho::Other => (0x20, NO_ID),
            };
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&u16::from(*bits).to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        }
        out.into()
    }
}
