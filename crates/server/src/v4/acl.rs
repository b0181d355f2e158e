//! Conversion between POSIX ACLs of the file system and ACLs of NFSv4.
//!
//! The module knows nothing of calls. The mapping to clients is that of the Linux server
//! (draft-ietf-nfsv4-acl-mapping-05). NFSv4 entries that allow and deny can express every POSIX
//! ACL, so a client sees the complete ACL. An ACL from a client is reduced to the abilities of
//! POSIX ACLs. Where the result is less exact, it allows less. Users and groups are numbers.

use hither_proto::nfs4::{Ace, Nfsstat4, ace};
use hither_vfs::{AclWho, PosixAcl, PosixAcls};
use std::collections::BTreeMap;

/// Most entries of an ACL that a client may set. File systems accept fewer.
const ENTRIES_MAX: usize = 4096;
/// Permissions that all users have.
const ANYONE: u32 = ace::MASK_READ_ATTRIBUTES | ace::MASK_READ_ACL | ace::MASK_SYNCHRONIZE;
/// Permissions that the owner has.
const OWNER: u32 = ace::MASK_WRITE_ATTRIBUTES | ace::MASK_WRITE_ACL;
const READ: u32 = ace::MASK_READ_DATA;
const WRITE: u32 = ace::MASK_WRITE_DATA | ace::MASK_APPEND_DATA;
const EXECUTE: u32 = ace::MASK_EXECUTE;
/// Flags of an entry that new objects inherit.
const INHERIT: u32 = ace::FLAG_FILE_INHERIT | ace::FLAG_DIRECTORY_INHERIT;
/// Supported flags.
const FLAGS: u32 = INHERIT | ace::FLAG_INHERIT_ONLY | ace::FLAG_IDENTIFIER_GROUP;

/// The NFSv4 mask of POSIX permissions, without the permissions that all users have.
fn mask_of(bits: u8, is_dir: bool) -> u32 {
    let write = if is_dir { WRITE | ace::MASK_DELETE_CHILD } else { WRITE };
    [(4, READ), (2, write), (1, EXECUTE)].iter().filter(|(bit, _)| bits & bit != 0).fold(0, |m, (_, w)| m | w)
}

/// The POSIX permissions of an NFSv4 mask. A permission requires all its NFSv4 bits.
fn bits_of(mask: u32, is_dir: bool) -> u8 {
    [4, 2, 1].into_iter().filter(|&bit| mask & mask_of(bit, is_dir) == mask_of(bit, is_dir)).sum()
}

/// The NFSv4 entries of an object's ACLs.
pub(super) fn to_wire(acls: &PosixAcls, mode: u32, is_dir: bool) -> Vec<Ace> {
    let of_mode = PosixAcl::of_mode(mode);
    let mut out = Vec::new();
    add(&mut out, acls.access.as_ref().unwrap_or(&of_mode), is_dir, 0);
    if let Some(default) = acls.default.as_ref().filter(|_| is_dir) {
        add(&mut out, default, is_dir, INHERIT | ace::FLAG_INHERIT_ONLY);
    }
    out
}

/// Adds the entries of one ACL. In POSIX, the first kind of entry that matches a user decides
/// (owner, user by number, any group, other). Several matching groups are combined. In NFSv4 all
/// entries count in order. Permissions that a later entry would add are therefore denied first.
///
/// Linux does not look at an ACL whose mask is empty (`acl_permission_check`): the mode has no bit
/// for the group then. Users and groups by number have the permissions of all other users.
fn add(out: &mut Vec<Ace>, acl: &PosixAcl, is_dir: bool, flag: u32) {
    let most = acl.of(AclWho::Mask).unwrap_or(7);
    let owner = acl.of(AclWho::Owner).unwrap_or(0);
    let group = acl.of(AclWho::OwnerGroup).unwrap_or(0) & most;
    let other = acl.of(AclWho::Other).unwrap_or(0);
    let skipped = most == 0 && other != 0;
    let named = |pick: fn(AclWho) -> Option<u32>| -> Vec<(u32, u8)> {
        let entries = acl.entries.iter().filter(|_| !skipped);
        entries.filter_map(|&(who, bits)| Some((pick(who)?, bits & most))).collect()
    };
    let users = named(|who| if let AclWho::User(id) = who { Some(id) } else { None });
    let groups = named(|who| if let AclWho::Group(id) = who { Some(id) } else { None });
    let of_groups = groups.iter().fold(group, |all, (_, bits)| all | bits);
    let of_users = users.iter().fold(0, |all, (_, bits)| all | bits);
    let mut push = |kind, flags, who: String, access_mask| {
        let who = bytes::Bytes::from(who).into();
        out.push(Ace { ace_type: kind, flag: flag | flags, access_mask, who });
    };
    let by_number = ace::FLAG_IDENTIFIER_GROUP;
    let denied = !owner & 7 & (of_users | of_groups | other);
    if denied != 0 {
        push(ace::TYPE_DENY, 0, "OWNER@".into(), mask_of(denied, is_dir));
    }
    push(ace::TYPE_ALLOW, 0, "OWNER@".into(), mask_of(owner, is_dir) | ANYONE | OWNER);
    for (id, bits) in &users {
        let denied = !bits & 7 & (of_groups | other);
        if denied != 0 {
            push(ace::TYPE_DENY, 0, id.to_string(), mask_of(denied, is_dir));
        }
        push(ace::TYPE_ALLOW, 0, id.to_string(), mask_of(*bits, is_dir) | ANYONE);
    }
    // A user in several groups has the permissions of all of them. All group entries that allow
    // therefore come before those that deny.
    push(ace::TYPE_ALLOW, by_number, "GROUP@".into(), mask_of(group, is_dir) | ANYONE);
    for (id, bits) in &groups {
        push(ace::TYPE_ALLOW, by_number, id.to_string(), mask_of(*bits, is_dir) | ANYONE);
    }
    if !group & other != 0 {
        push(ace::TYPE_DENY, by_number, "GROUP@".into(), mask_of(!group & other, is_dir));
    }
    for (id, bits) in groups.iter().filter(|(_, bits)| !bits & other != 0) {
        push(ace::TYPE_DENY, by_number, id.to_string(), mask_of(!bits & other, is_dir));
    }
    push(ace::TYPE_ALLOW, 0, "EVERYONE@".into(), mask_of(other, is_dir) | ANYONE);
}

/// Permissions allowed and denied so far.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    allowed: u32,
    denied: u32,
}

impl Sum {
    /// Adds an entry. The first entry that names a permission decides.
    fn say(&mut self, allow: bool, mask: u32) {
        if allow {
            self.allowed |= mask & !self.denied;
        } else {
            self.denied |= mask & !self.allowed;
        }
    }
}

/// The sums of all users and groups in a list of entries.
#[derive(Debug, Default)]
struct Sums {
    any: bool,
    owner: Sum,
    group: Sum,
    other: Sum,
    /// Initial sum of users and groups that no entry has named yet. They may be members of any
    /// group that was denied a permission.
    unnamed: Sum,
    users: BTreeMap<u32, Sum>,
    groups: BTreeMap<u32, Sum>,
}

impl Sums {
    fn say(&mut self, who: AclWho, allow: bool, mask: u32) {
        self.any = true;
        let unnamed = self.unnamed;
        match who {
            AclWho::Owner => self.owner.say(allow, mask),
            AclWho::User(id) => {
                let sum = self.users.entry(id).or_insert(unnamed);
                sum.say(allow, mask);
                let denied = sum.denied;
                if !allow {
                    // The user may be the owner.
                    self.owner.say(false, denied);
                }
            }
            AclWho::OwnerGroup | AclWho::Group(_) => {
                let sum = match who {
                    AclWho::Group(id) => self.groups.entry(id).or_insert(unnamed),
                    _ => &mut self.group,
                };
                sum.say(allow, mask);
                let denied = sum.denied;
                if !allow {
                    // Any named user or group may belong to this group. Users in no named group do
                    // not, and only the entry for others applies to them.
                    self.named(false, denied);
                }
            }
            AclWho::Other | AclWho::Mask => self.all(allow, mask),
        }
    }

    fn all(&mut self, allow: bool, mask: u32) {
        self.other.say(allow, mask);
        self.named(allow, mask);
    }

    /// Adds to all sums except `other`.
    fn named(&mut self, allow: bool, mask: u32) {
        let by_number = self.users.values_mut().chain(self.groups.values_mut());
        let all = [&mut self.owner, &mut self.group, &mut self.unnamed].into_iter().chain(by_number);
        all.for_each(|sum| sum.say(allow, mask));
    }

    fn acl(&self, is_dir: bool) -> PosixAcl {
        let bits = |sum: &Sum| bits_of(sum.allowed, is_dir);
        let mut entries = vec![(AclWho::Owner, bits(&self.owner))];
        entries.extend(self.users.iter().map(|(id, sum)| (AclWho::User(*id), bits(sum))));
        entries.push((AclWho::OwnerGroup, bits(&self.group)));
        entries.extend(self.groups.iter().map(|(id, sum)| (AclWho::Group(*id), bits(sum))));
        if !self.users.is_empty() || !self.groups.is_empty() {
            // The mask is the union of the entries that it limits, so it removes no permission.
            // Linux would skip entries with an empty mask, and let their users have the
            // permissions of others. With any bit in the mask, the entries deny.
            let most = match entries[1..].iter().fold(0, |all, (_, bits)| all | bits) {
                0 => bits(&self.other),
                most => most,
            };
            entries.push((AclWho::Mask, most));
        }
        entries.push((AclWho::Other, bits(&self.other)));
        PosixAcl { entries }
    }
}

/// The POSIX ACLs for entries that a client sets.
///
/// # Errors
/// `FBIG`: too many entries. `ATTRNOTSUPP`: POSIX ACLs cannot express an entry (kind, flags,
/// inheritance of an object that is no directory, or inheritance by files alone). `BADOWNER`: a
/// user is not a number. `INVAL`: no entry gives access, as in an empty list.
pub(super) fn from_wire(aces: &[Ace], is_dir: bool) -> Result<PosixAcls, Nfsstat4> {
    if aces.len() > ENTRIES_MAX {
        return Err(Nfsstat4::FBIG);
    }
    let (mut access, mut default) = (Sums::default(), Sums::default());
    for entry in aces {
        let allow = match entry.ace_type {
            ace::TYPE_ALLOW => true,
            ace::TYPE_DENY => false,
            _ => return Err(Nfsstat4::ATTRNOTSUPP),
        };
        let inherited = entry.flag & (INHERIT | ace::FLAG_INHERIT_ONLY) != 0;
        if entry.flag & !FLAGS != 0 || inherited && (!is_dir || entry.flag & INHERIT != INHERIT) {
            return Err(Nfsstat4::ATTRNOTSUPP);
        }
        let who = who(entry)?;
        if inherited {
            default.say(who, allow, entry.access_mask);
        }
        if entry.flag & ace::FLAG_INHERIT_ONLY == 0 {
            access.say(who, allow, entry.access_mask);
        }
    }
    if !access.any {
        return Err(Nfsstat4::INVAL);
    }
    Ok(PosixAcls { access: Some(access.acl(is_dir)), default: default.any.then(|| default.acl(is_dir)) })
}

fn who(entry: &Ace) -> Result<AclWho, Nfsstat4> {
    match &entry.who[..] {
        b"OWNER@" => Ok(AclWho::Owner),
        b"GROUP@" => Ok(AclWho::OwnerGroup),
        b"EVERYONE@" => Ok(AclWho::Other),
        number => {
            let id = super::attrs::id(number)?;
            let is_group = entry.flag & ace::FLAG_IDENTIFIER_GROUP != 0;
            Ok(if is_group { AclWho::Group(id) } else { AclWho::User(id) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(AclWho, u8)]) -> PosixAcl {
        PosixAcl { entries: entries.to_vec() }
    }

    /// Whether an NFSv4 ACL grants a permission (RFC 8881 section 6.2.1). The first entry with a
    /// bit decides that bit.
    fn granted(aces: &[Ace], me: &dyn Fn(AclWho) -> bool, want: u32) -> bool {
        let mut left = want;
        for entry in aces.iter().filter(|a| a.flag & ace::FLAG_INHERIT_ONLY == 0) {
            if me(who(entry).unwrap()) {
                match entry.ace_type {
                    ace::TYPE_ALLOW => left &= !entry.access_mask,
                    _ if left & entry.access_mask != 0 => return false,
                    _ => {}
                }
            }
        }
        left == 0
    }

    /// Whether Linux grants a permission under a POSIX ACL (acl(5), `acl_permission_check`).
    fn posix(acl: &PosixAcl, is_owner: bool, uid: u32, in_group: bool, gids: &[u32], want: u8) -> bool {
        let most = acl.of(AclWho::Mask).unwrap_or(7);
        if is_owner {
            return acl.of(AclWho::Owner).unwrap() & want == want;
        }
        // The mode without a bit for the group: Linux does not look at the ACL.
        if acl.of(AclWho::Mask).or(acl.of(AclWho::OwnerGroup)) == Some(0) {
            return !in_group && acl.of(AclWho::Other).unwrap() & want == want;
        }
        if let Some(bits) = acl.of(AclWho::User(uid)) {
            return bits & most & want == want;
        }
        let mut groups = gids.iter().filter_map(|gid| acl.of(AclWho::Group(*gid))).collect::<Vec<_>>();
        groups.extend(in_group.then(|| acl.of(AclWho::OwnerGroup).unwrap()));
        if groups.is_empty() {
            acl.of(AclWho::Other).unwrap() & want == want
        } else {
            groups.iter().any(|bits| bits & most & want == want)
        }
    }

    fn mix(n: u64) -> u64 {
        let n = (n ^ (n >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (n ^ (n >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 17
    }

    fn any(seed: u64) -> PosixAcl {
        let bits = |n: u64| (mix(seed ^ n << 40) % 8) as u8;
        let mut entries = vec![(AclWho::Owner, bits(1))];
        entries.extend((0..mix(seed) % 3).map(|n| (AclWho::User(10 + n as u32), bits(2 + n))));
        entries.push((AclWho::OwnerGroup, bits(8)));
        entries.extend((0..mix(seed ^ 7) % 3).map(|n| (AclWho::Group(20 + n as u32), bits(10 + n))));
        if entries.len() > 2 {
            entries.push((AclWho::Mask, bits(20)));
        }
        entries.push((AclWho::Other, bits(21)));
        acl(&entries)
    }

    /// Both kinds of ACLs grant the same single permissions, for random users and ACLs. Setting the
    /// converted ACL gives the original, except for the mask and entries that Linux does not apply.
    /// Promise: S8e
    #[test]
    fn converted_acl_grants_same_permissions() {
        let mut allowed = 0;
        for seed in 0..20_000 {
            let one = any(seed);
            let is_dir = seed % 2 == 0;
            let acls = PosixAcls {
                access: Some(one.clone()),
                default: (is_dir && seed % 3 == 0).then(|| any(!seed)),
            };
            let aces = to_wire(&acls, 0, is_dir);
            let (dice, gids) = (mix(seed ^ 99), [20, 21, 22]);
            let (is_owner, uid, in_group) = (dice % 4 == 0, 9 + (dice >> 4) as u32 % 4, dice >> 8 & 1 == 0);
            let gids = &gids[..(dice >> 10) as usize % 4];
            let me = |who| match who {
                AclWho::Owner => is_owner,
                AclWho::User(id) => id == uid,
                AclWho::OwnerGroup => in_group,
                AclWho::Group(id) => gids.contains(&id),
                AclWho::Other | AclWho::Mask => true,
            };
            for bit in [4, 2, 1] {
                let (here, there) = (
                    posix(&one, is_owner, uid, in_group, gids, bit),
                    granted(&aces, &me, mask_of(bit, is_dir)),
                );
                // Both check the owner's own entry first.
                assert_eq!(
                    here, there,
                    "{seed}: {one:?} {bit} {is_owner} {uid} {in_group} {gids:?} {aces:?}"
                );
                allowed += u32::from(here);
            }
            let again = from_wire(&aces, is_dir).unwrap();
            let twice = from_wire(&to_wire(&again, 0, is_dir), is_dir).unwrap();
            assert_eq!(again, twice, "{seed}");
            let most = one.of(AclWho::Mask).unwrap_or(7);
            let skipped = most == 0 && one.of(AclWho::Other) != Some(0);
            for &(who, bits) in &one.entries {
                let masked = !matches!(who, AclWho::Owner | AclWho::Other | AclWho::Mask);
                let expected = if masked { bits & most } else { bits };
                let shown = !skipped || !matches!(who, AclWho::User(_) | AclWho::Group(_));
                if who != AclWho::Mask && shown {
                    assert_eq!(
                        again.access.as_ref().unwrap().of(who),
                        Some(expected),
                        "{seed}: {who:?} {aces:?}"
                    );
                }
            }
            assert_eq!(again.default.is_some(), acls.default.is_some());
        }
        assert!(allowed > 10_000);
    }

    /// An ACL from a client never grants more than its NFSv4 entries do.
    /// Promise: S8e
    #[test]
    fn set_acl_never_grants_more() {
        let (mut exact, mut less) = (0, 0);
        for seed in 0..20_000_u64 {
            let dice = |n: u64| mix(seed.wrapping_mul(31) ^ n << 33);
            let aces: Vec<Ace> = (0..1 + dice(0) % 6)
                .map(|n| {
                    let (name, flag) = match dice(n * 4 + 1) % 5 {
                        0 => ("OWNER@".to_string(), 0),
                        1 => ("GROUP@".into(), ace::FLAG_IDENTIFIER_GROUP),
                        2 => ("EVERYONE@".into(), 0),
                        3 => ((10 + dice(n * 4 + 2) % 2).to_string(), 0),
                        _ => ((20 + dice(n * 4 + 2) % 2).to_string(), ace::FLAG_IDENTIFIER_GROUP),
                    };
                    let bits = (dice(n * 4 + 3) % 8) as u8;
                    Ace {
                        ace_type: (dice(n * 4 + 4) % 3 == 0).into(),
                        flag,
                        access_mask: mask_of(bits, false),
                        who: bytes::Bytes::from(name).into(),
                    }
                })
                .collect();
            let set = from_wire(&aces, false).unwrap().access.unwrap();
            for who in 0..32_u32 {
                let (is_owner, uid, in_group) = (who & 1 != 0, 9 + (who >> 1 & 3), who & 8 != 0);
                let gids: &[u32] = if who & 16 != 0 { &[20, 21] } else { &[20] };
                let me = |who| match who {
                    AclWho::Owner => is_owner,
                    AclWho::User(id) => id == uid,
                    AclWho::OwnerGroup => in_group,
                    AclWho::Group(id) => gids.contains(&id),
                    AclWho::Other | AclWho::Mask => true,
                };
                for bit in [4, 2, 1] {
                    let there = granted(&aces, &me, mask_of(bit, false));
                    let here = posix(&set, is_owner, uid, in_group, gids, bit);
                    assert!(
                        there || !here,
                        "{seed}: {bit} {is_owner} {uid} {in_group} {gids:?} {aces:?} {set:?}"
                    );
                    exact += u32::from(here == there);
                    less += u32::from(here != there);
                }
            }
        }
        assert!(exact > 5 * less, "{exact} {less}");
    }

    /// An NFSv4 ACL that no POSIX ACL can represent is refused. Unknown names get BADOWNER, and an
    /// ACL without access entries INVAL.
    #[test]
    fn unrepresentable_acl_is_refused() {
        let entry = |kind, flag, who: &'static str| {
            let who = bytes::Bytes::from_static(who.as_bytes()).into();
            vec![Ace { ace_type: kind, flag, access_mask: READ, who }]
        };
        let refused = |aces: &[Ace], is_dir| from_wire(aces, is_dir).err();
        let not = Some(Nfsstat4::ATTRNOTSUPP);
        assert_eq!(refused(&entry(ace::TYPE_AUDIT, 0, "OWNER@"), true), not);
        assert_eq!(refused(&entry(ace::TYPE_ALLOW, ace::FLAG_NO_PROPAGATE_INHERIT, "OWNER@"), true), not);
        assert_eq!(refused(&entry(ace::TYPE_ALLOW, ace::FLAG_FILE_INHERIT, "OWNER@"), true), not);
        assert_eq!(refused(&entry(ace::TYPE_ALLOW, INHERIT, "OWNER@"), false), not);
        for bad in ["", "root@x", "-1", "4294967295", "ADMIN@"] {
            assert_eq!(refused(&entry(ace::TYPE_ALLOW, 0, bad), true), Some(Nfsstat4::BADOWNER));
        }
        assert_eq!(refused(&[], true), Some(Nfsstat4::INVAL));
        let only = entry(ace::TYPE_ALLOW, INHERIT | ace::FLAG_INHERIT_ONLY, "OWNER@");
        assert_eq!(refused(&only, true), Some(Nfsstat4::INVAL));
    }
}
