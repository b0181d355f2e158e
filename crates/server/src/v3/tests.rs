//! Conversations of NFSv3.

use crate::tests::{Lab, model};
use hither_proto::nfs3::*;
use hither_proto::xdr::{Dec, Enc};

fn at(dir: &Fh3, name: &str) -> Diropargs3 {
    Diropargs3 { dir: dir.clone(), name: name.as_bytes().into() }
}

fn create(dir: &Fh3, name: &str, how: Createhow3) -> CreateArgs {
    CreateArgs { r#where: at(dir, name), how }
}

/// A call that is sent again with the same xid gets its first reply and is not executed. With
/// another xid the call is executed.
#[tokio::test]
async fn retransmitted_call_gets_cached_reply() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut wire = lab.connect();
    let root = wire.root3("/").await;
    wire.call(&create(&root, "f", Createhow3::Guarded(Sattr3::default()))).await.into_result().unwrap();
    let remove = RemoveArgs { object: at(&root, "f") };
    wire.call(&remove).await.into_result().unwrap();
    wire.send(PROGRAM, VERSION, Proc3::REMOVE.0, Enc::of(&remove)).await;
    let again: RemoveRes = Dec::all(&wire.receive().await).unwrap();
    assert_eq!(again.status(), Nfsstat3::OK);
    assert_eq!(wire.call(&remove).await.status(), Nfsstat3::NOENT, "another call");
}

#[tokio::test]
async fn an_exclusive_creation_is_recognised() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut wire = lab.connect();
    let root = wire.root3("/").await;
    let first = wire.call(&create(&root, "f", Createhow3::Exclusive([1; 8]))).await.into_result().unwrap();
    let again = wire.call(&create(&root, "f", Createhow3::Exclusive([1; 8]))).await.into_result().unwrap();
    assert_eq!(first.obj, again.obj);
    let other = wire.call(&create(&root, "f", Createhow3::Exclusive([2; 8]))).await;
    assert_eq!(other.status(), Nfsstat3::EXIST);
}

/// READDIR and READDIRPLUS split a large directory into replies within the requested count. Each
/// entry is listed once.
#[tokio::test]
async fn readdir_pages_respect_count() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut wire = lab.connect();
    let root = wire.root3("/").await;
    for i in 0..300 {
        let made =
            wire.call(&create(&root, &format!("file-{i}"), Createhow3::Guarded(Sattr3::default()))).await;
        made.into_result().unwrap();
    }
    for plus in [false, true] {
        let (mut names, mut cookie, mut cookieverf) = (Vec::new(), 0, [0; 8]);
        loop {
            let dir = root.clone();
            let (count, dircount) = (2000, 1000);
            let (page, eof): (Vec<(Name3, u64)>, bool) = if plus {
                let args = ReaddirplusArgs { dir, cookie, cookieverf, dircount, maxcount: count };
                let res = wire.call(&args).await;
                assert!(Enc::of(&res).len() <= count as usize);
                let ok = res.into_result().unwrap();
                cookieverf = ok.cookieverf;
                (ok.entries.0.into_iter().map(|e| (e.name, e.cookie)).collect(), ok.eof)
            } else {
                let res = wire.call(&ReaddirArgs { dir, cookie, cookieverf, count }).await;
                assert!(Enc::of(&res).len() <= count as usize);
                let ok = res.into_result().unwrap();
                cookieverf = ok.cookieverf;
                (ok.entries.0.into_iter().map(|e| (e.name, e.cookie)).collect(), ok.eof)
            };
            cookie = page.last().map_or(cookie, |e| e.1);
            names.extend(page.into_iter().map(|e| e.0));
            if eof {
                break;
            }
        }
        assert_eq!((&names[0][..], &names[1][..], names.len()), (&b"."[..], &b".."[..], 302));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 302);
    }
    let tiny = ReaddirArgs { dir: root, cookie: 0, cookieverf: [0; 8], count: 100 };
    assert_eq!(wire.call(&tiny).await.status(), Nfsstat3::TOOSMALL);
}

#[tokio::test]
async fn forged_and_foreign_handles_are_refused() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut wire = lab.connect();
    let root = wire.root3("/").await;
    let mut getattr = async |fh: Vec<u8>| wire.call(&GetattrArgs { object: fh[..].into() }).await.status();
    assert_eq!(getattr(root.to_vec()).await, Nfsstat3::OK);
    assert_eq!(getattr(vec![]).await, Nfsstat3::BADHANDLE);
    assert_eq!(getattr(vec![0; 64]).await, Nfsstat3::BADHANDLE);
    for i in 1..4 {
        let mut other = root.to_vec();
        other[i] ^= 1;
        assert_eq!(getattr(other).await, Nfsstat3::STALE, "another export");
    }
    let mut other = root.to_vec();
    other[10] ^= 1;
    assert_eq!(getattr(other).await, Nfsstat3::STALE);
}

#[tokio::test]
async fn directories_change_visibly() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut wire = lab.connect();
    let root = wire.root3("/").await;
    let made =
        wire.call(&create(&root, "f", Createhow3::Unchecked(Sattr3::default()))).await.into_result().unwrap();
    let before = made.dir_wcc.before.expect("the model is atomic");
    let after = made.dir_wcc.after.unwrap();
    assert_eq!((before.size, after.ftype), (after.size, Ftype3::DIR));
    let link = LinkArgs { file: made.obj.clone().unwrap(), link: at(&root, "g") };
    let linked = wire.call(&link).await.into_result().unwrap();
    assert_eq!(linked.file_attributes.unwrap().nlink, 2);
    let rename = RenameArgs { from: at(&root, "g"), to: at(&root, "f") };
    assert_eq!(wire.call(&rename).await.status(), Nfsstat3::OK);
    let write = WriteArgs {
        file: made.obj.unwrap(),
        offset: 0,
        count: 3,
        stable: StableHow::UNSTABLE,
        data: b"abc"[..].into(),
    };
    let wrote = wire.call(&write).await.into_result().unwrap();
    let commit =
        wire.call(&CommitArgs { file: write.file, offset: 0, count: 0 }).await.into_result().unwrap();
    assert_eq!((wrote.count, wrote.committed, wrote.verf), (3, StableHow::UNSTABLE, commit.verf));
}

/// `..` in a listing has the number of the directory that LOOKUP of `..` returns. The root of an
/// export is its own parent.
/// Promise: S2
#[tokio::test]
async fn dot_dot_is_the_directory_above() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut wire = lab.connect();
    let mut dirs = vec![wire.root3("/").await];
    for _ in 0..3 {
        let args = MkdirArgs { r#where: at(&dirs[dirs.len() - 1], "d"), attributes: Sattr3::default() };
        dirs.push(wire.call(&args).await.into_result().unwrap().obj.unwrap());
    }
    for (i, dir) in dirs.iter().enumerate() {
        let above = &dirs[i.saturating_sub(1)];
        let found = wire.call(&LookupArgs { what: at(dir, "..") }).await.into_result().unwrap();
        assert_eq!(found.object, *above);
        let itself = wire.call(&LookupArgs { what: at(dir, ".") }).await.into_result().unwrap();
        assert_eq!(itself.object, *dir);
        let number = wire.call(&GetattrArgs { object: above.clone() }).await.into_result().unwrap().fileid;
        assert_eq!(found.obj_attributes.unwrap().fileid, number);
        for cookie in [0, 1] {
            let args = ReaddirArgs { dir: dir.clone(), cookie, cookieverf: [0; 8], count: 4096 };
            let entries = wire.call(&args).await.into_result().unwrap().entries.0;
            let dots = entries.iter().find(|e| &e.name[..] == b"..").unwrap();
            assert_eq!((dots.fileid, dots.cookie), (number, 2));
            let (dircount, maxcount) = (4096, 8192);
            let args = ReaddirplusArgs { dir: dir.clone(), cookie, cookieverf: [0; 8], dircount, maxcount };
            let entries = wire.call(&args).await.into_result().unwrap().entries.0;
            assert_eq!(entries.iter().find(|e| &e.name[..] == b"..").unwrap().fileid, number);
        }
    }
    let file = wire.call(&create(&dirs[0], "f", Createhow3::Guarded(Sattr3::default()))).await;
    let file = file.into_result().unwrap().obj.unwrap();
    assert_eq!(wire.call(&LookupArgs { what: at(&file, "..") }).await.status(), Nfsstat3::NOTDIR);
}
