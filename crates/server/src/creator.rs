//! The owner and group that the creator of an object may set.
//!
//! Only the superuser may give a file to another user. A creation by another user that names an
//! owner succeeds, and the object belongs to its creator. The Linux server does the same. The
//! creator may name a group that the creator is a member of.

use hither_vfs::{Cred, SetAttr};

/// The attributes with which `cred` may create an object.
pub(crate) fn allowed(set: SetAttr, cred: &Cred) -> SetAttr {
    if cred.uid == 0 {
        return set;
    }
    let is_member = |gid: &u32| *gid == cred.gid || cred.groups.contains(gid);
    SetAttr { uid: None, gid: set.gid.filter(is_member), ..set }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_names_owners() {
        let user = Cred { uid: 1000, gid: 100, groups: [7].into_iter().collect() };
        for (gid, kept) in [(100, Some(100)), (7, Some(7)), (8, None)] {
            let set = SetAttr { uid: Some(5), gid: Some(gid), ..SetAttr::default() };
            assert_eq!(allowed(set.clone(), &Cred::root()), set);
            assert_eq!(allowed(set, &user), SetAttr { gid: kept, ..SetAttr::default() });
        }
    }
}
