//! ACLs, compared with setfacl(1) and getfacl(1).

use super::clones::Disk;
use super::*;
use hither_vfs::{AclWho, Extra, PosixAcl, PosixAcls};
use std::process::Command;

fn sh(command: &str, path: &Path) -> String {
    let mut words = command.split(' ');
    let out = Command::new(words.next().unwrap()).args(words).arg(path).output().expect("package acl");
    assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap().trim().replace('\n', " ")
}

/// The server returns the ACLs of the file system and stores those that a client sets. Only the
/// owner may set them.
/// Promise: S8e
#[tokio::test]
async fn acls_match_file_system() {
    let (dir, cx) = (Dir::new(), root());
    let l = local(&dir);
    assert!(l.has_acls());
    let base = top(&l).await;
    let f = create(&l, &cx, &base, "f", 0o640).await.unwrap().node.fh;
    let d = l.mkdir(&cx, &base, &name("d"), &mode(0o750)).await.unwrap().node.fh;
    assert_eq!(l.acls(&cx, &f).await.unwrap(), PosixAcls::default(), "the mode says all");
    sh("setfacl -m u:1001:rw,g:1002:x,m::rwx", &dir.path("f"));
    sh("setfacl -d -m u:1001:r", &dir.path("d"));
    let access = l.acls(&cx, &f).await.unwrap().access.unwrap();
    let expected = [
        (AclWho::Owner, 6),
        (AclWho::User(1001), 6),
        (AclWho::OwnerGroup, 4),
        (AclWho::Group(1002), 1),
        (AclWho::Mask, 7),
        (AclWho::Other, 0),
    ];
    assert_eq!(access.entries, expected);
    let of_dir = l.acls(&cx, &d).await.unwrap();
    assert!(of_dir.access.is_none());
    assert_eq!(of_dir.default.as_ref().unwrap().of(AclWho::User(1001)), Some(4));
    // A set ACL is stored, and changes the mode. Without a default ACL in the call, the old one is
    // removed.
    let change = l.getattr(&cx, File { fh: &d, open: None }).await.unwrap().attr.change;
    let set = PosixAcls { access: Some(access), default: None };
    let attrs = l.set_acls(&cx, &d, &set).await.unwrap();
    assert_eq!(attrs.attr.mode & 0o7777, 0o670);
    assert_ne!(attrs.attr.change, change);
    let text = sh("getfacl -cEpn", &dir.path("d"));
    assert_eq!(text, "user::rw- user:1001:rw- group::r-- group:1002:--x mask::rwx other::---");
    // Only the owner may set an ACL. Other callers see the permissions that the ACL gives them.
    let other = cx_of(1001);
    assert_eq!(errno(l.set_acls(&other, &f, &set).await), libc::EPERM);
    let bad = || Some(PosixAcl { entries: vec![(AclWho::User(1), 7)] });
    let no_access = PosixAcls { access: bad(), default: None };
    assert_eq!(errno(l.set_acls(&cx, &f, &no_access).await), libc::EINVAL);
    // A directory gets both ACLs or none.
    sh("setfacl -d -m u:1003:x", &dir.path("d"));
    let before = l.acls(&cx, &d).await.unwrap();
    let good = || Some(PosixAcl::of_mode(0o700));
    for (access, default) in [(bad(), good()), (bad(), None), (good(), bad())] {
        let half = PosixAcls { access, default };
        assert_eq!(errno(l.set_acls(&cx, &d, &half).await), libc::EINVAL);
        assert_eq!(l.acls(&cx, &d).await.unwrap(), before, "{half:?}");
    }
    assert_eq!(l.acls(&other, &f).await.unwrap().access.unwrap().entries, expected);
    let link =
        l.symlink(&cx, &base, &name("l"), &Bytes::from_static(b"f"), &SetAttr::default()).await.unwrap();
    assert_eq!(errno(l.acls(&cx, &link.node.fh).await), libc::EOPNOTSUPP);
    assert_eq!(errno(l.set_acls(&cx, &link.node.fh, &set).await), libc::EOPNOTSUPP);
}

/// Modes have records in the journal, ACLs have none: neither undoes the other after a power cut.
/// Promise: S8e
#[tokio::test]
async fn power_cut_keeps_acls() {
    let Some(mut disk) = Disk::new("ext4", &["-q", "-b", "4096"]) else { return };
    for round in 0..4 {
        let (l, cx) = (disk.serve(), root());
        assert!(l.inner.journal.as_ref().unwrap().names().is_some());
        let file = format!("f{round}");
        let f = create(&l, &cx, &top(&l).await, &file, 0o644).await.unwrap().node.fh;
        let chmod = async |bits| l.setattr(&cx, File { fh: &f, open: None }, &mode(bits)).await.unwrap();
        chmod(0o600).await;
        let entries = vec![
            (AclWho::Owner, 6),
            (AclWho::User(1001), 7),
            (AclWho::OwnerGroup, 4),
            (AclWho::Mask, 7),
            (AclWho::Other, 1),
        ];
        let acls = PosixAcls { access: Some(PosixAcl { entries }), default: None };
        l.set_acls(&cx, &f, &acls).await.unwrap();
        let (bits, mask) = if round % 2 == 0 { (0o671, "rwx") } else { (0o641, "r--") };
        if round % 2 == 1 {
            chmod(0o641).await;
        }
        disk.cut();
        drop(l);
        drop(disk.serve());
        let path = disk.path("export").join(&file);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, bits, "round {round}");
        let text = sh("getfacl -cEpn", &path);
        let expected = format!("user::rw- user:1001:rwx group::r-- mask::{mask} other::--x");
        assert_eq!(text, expected, "round {round}");
    }
}

fn cx_of(uid: u32) -> RequestContext {
    cx(uid, uid, &[])
}
