//! READDIR of entries that vanish or fail (RFC 8881 section 18.23.3), and SETATTR that fails after
//! a part of its changes (RFC 8881 section 18.30.3).

use super::*;
use crate::tests::fading::Fading;

/// A server of such a file system with these files, and a client.
async fn lab(files: &[&str]) -> (Lab, Client) {
    let lab = Lab::of(Fading::new(model()), "/", Options::new(env(2)), Others::Nobody);
    let mut c = lab.client("a").await;
    c.reclaim_complete().await;
    for file in files {
        c.open(file, "o", RW, 0).await.unwrap();
    }
    (lab, c)
}

/// The names of all entries with their `rdattr_error`. A reply without entries ends the directory.
async fn listed(
    c: &mut Client,
    wanted: &[u32],
    maxcount: u32,
) -> Result<Vec<(String, Option<Nfsstat4>)>, Nfsstat4> {
    let (mut cookie, mut cookieverf, mut all) = (0, [0; 8], Vec::new());
    loop {
        let attr_request = Bitmap4::of(wanted);
        let args = ReaddirArgs { cookie, cookieverf, dircount: 1000, maxcount, attr_request };
        let mut r = c.run(vec![Op::Putrootfh, Op::Readdir(args)]).await;
        r.putrootfh().unwrap();
        let page = r.readdir().map_err(|e| e.status().unwrap())?;
        all.extend(
            page.entries.iter().map(|e| (String::from_utf8_lossy(&e.name).into(), e.attrs.rdattr_error)),
        );
        if page.eof {
            return Ok(all);
        }
        cookie = page.entries.last().expect("a part of the directory is missing").cookie;
        cookieverf = page.cookieverf;
    }
}

/// A listing leaves out entries that vanish meanwhile, whichever attributes it has. It looks up
/// entries that come without attributes.
/// Promise: S13
#[tokio::test]
async fn vanished_entries_are_left_out() {
    let (_lab, mut c) = lab(&["bare", "file", "gone", "left"]).await;
    let names =
        |all: Vec<(String, Option<Nfsstat4>)>| all.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    for error in [vec![], vec![attr::RDATTR_ERROR]] {
        for wanted in [attr::ACL, attr::SPACE_AVAIL] {
            let wanted = [&error[..], &[attr::FILEID, wanted]].concat();
            let all = listed(&mut c, &wanted, 4000).await;
            assert_eq!(all.map(names), Ok(vec!["bare".into(), "file".into()]), "{wanted:?}");
        }
        let wanted = [&error[..], &[attr::TYPE]].concat();
        let all = listed(&mut c, &wanted, 4000).await;
        assert_eq!(all.map(names), Ok(vec!["bare".into(), "file".into(), "left".into()]));
    }
}

/// The failure of an entry is in its `rdattr_error`. Without this attribute the listing fails.
/// Promise: S13
#[tokio::test]
async fn failed_entry_tells_error() {
    for (bad, status) in [("broken", Nfsstat4::IO), ("hidden", Nfsstat4::ACCESS)] {
        let (_lab, mut c) = lab(&["a", bad, "z"]).await;
        let all = listed(&mut c, &[attr::RDATTR_ERROR, attr::ACL], 4000).await.unwrap();
        let ok = Some(Nfsstat4::OK);
        assert_eq!(all, [("a".into(), ok), (bad.into(), Some(status)), ("z".into(), ok)]);
        assert_eq!(listed(&mut c, &[attr::ACL], 4000).await, Err(status));
        assert_eq!(listed(&mut c, &[attr::FILEID], 4000).await.unwrap().len(), 3, "needs no lookup");
    }
}

/// A reply has an entry or ends the directory, even when all entries of a part have vanished.
/// Promise: S13
#[tokio::test]
async fn vanished_part_is_no_end() {
    let files: Vec<String> = (0..60).map(|n| format!("gone{n:02}")).chain(["z".into()]).collect();
    let (_lab, mut c) = lab(&files.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let all = listed(&mut c, &[attr::TYPE, attr::RDATTR_ERROR], 800).await.unwrap();
    assert_eq!(all, [("z".into(), Some(Nfsstat4::OK))]);
}

/// A SETATTR with an ACL by a user that is not the owner changes nothing. If the ACL fails after
/// other attributes, the result names them.
/// Promise: S8e
#[tokio::test]
async fn failed_acl_names_what_was_set() {
    let (_lab, mut c) = lab(&[]).await;
    let (id, fh) = c.open("f", "o", RW, 0).await.unwrap();
    let write = Op::write(id, 0, StableHow::FILE_SYNC, Bytes::from_static(b"0123456789"));
    let open_to_all = Op::setattr(id, Attrs { mode: Some(0o666), ..Attrs::default() });
    let mut r = c.run(vec![Op::putfh(&fh), write, open_to_all]).await;
    r.putfh().unwrap();
    r.write().unwrap();
    r.setattr().unwrap();
    let entry = Ace { ace_type: ace::TYPE_ALLOW, flag: 0, access_mask: 1, who: b"EVERYONE@"[..].into() };
    let mut attrs = Attrs { size: Some(4), mode: Some(0o640), ..Attrs::default() };
    attrs.rare_mut().acl = Some(vec![entry].into());
    let times = Attrs { mode: None, time_modify_set: Some(SetTime::Server), ..attrs.clone() };
    let none = Bitmap4::EMPTY;
    let (all, some) =
        (Bitmap4::of(&[attr::SIZE, attr::MODE]), Bitmap4::of(&[attr::SIZE, attr::TIME_MODIFY_SET]));
    for (uid, attrs, status, set) in [
        (1000, &attrs, Nfsstat4::PERM, none),
        (1000, &times, Nfsstat4::PERM, none),
        (0, &attrs, Nfsstat4::NOSPC, all),
        (0, &times, Nfsstat4::NOSPC, some),
    ] {
        c.wire.become_user(uid);
        let op = Op::setattr(Stateid::ANONYMOUS, attrs.clone());
        let mut r = c.run(vec![Op::putfh(&fh), op]).await;
        r.putfh().unwrap();
        let fail = r.outcome::<op::Setattr>().unwrap().unwrap_err();
        assert_eq!(fail, SetattrFail { status, attrsset: set });
        let mut r = c.run(vec![Op::putfh(&fh), Op::Getattr(Bitmap4::of(&[attr::SIZE, attr::MODE]))]).await;
        r.putfh().unwrap();
        let now = r.getattr().unwrap();
        let expected = if set == none { (10, 0o666) } else { (4, 0o640) };
        assert_eq!((now.size.unwrap(), now.mode.unwrap()), expected, "{uid}");
    }
}
