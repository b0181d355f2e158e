//! LOOKUPP (RFC 8881 section 18.14).

use super::*;

/// Operations that create `d/d/...` in the current directory and end in the deepest one.
fn deep(levels: usize) -> Vec<Op> {
    let mode = Attrs { mode: Some(0o755), ..Attrs::default() };
    (0..levels).map(|_| Op::create(CreateType::Dir, b"d", mode.clone())).collect()
}

/// From any depth of any export, LOOKUPP leads back along the looked-up names. It passes the root
/// of the export and ends at the root of the server.
/// Promise: S2
#[tokio::test]
async fn lookupp_leads_back_to_the_root() {
    const LEVELS: usize = 3;
    for (path, above) in [("/", vec![]), ("/data", vec!["data"]), ("/srv/data", vec!["srv", "data"])] {
        let lab = Lab::new(&model(), path, 2, None);
        let mut c = lab.client("one").await;
        c.reclaim_complete().await;
        let fileid = || Op::Getattr(Bitmap4::of(&[attr::FILEID, attr::FSID, attr::FILEHANDLE]));
        let mut down = vec![Op::Putrootfh];
        down.extend(above.iter().map(|name| Op::lookup(name.as_bytes())));
        c.run([down.clone(), deep(LEVELS)].concat()).await;
        down.extend((0..LEVELS).map(|_| Op::lookup(b"d")));
        let mut ops = Vec::new();
        for op in down {
            ops.extend([op, fileid()]);
        }
        for _ in 1..ops.len() / 2 {
            ops.extend([Op::Lookupp, fileid()]);
        }
        ops.push(Op::Lookupp);
        let (mut r, mut found, mut back) = (c.run(ops).await, Vec::new(), Vec::new());
        r.putrootfh().unwrap();
        found.push(r.getattr().unwrap());
        for _ in 0..above.len() + LEVELS {
            r.lookup().unwrap();
            found.push(r.getattr().unwrap());
        }
        for _ in 0..above.len() + LEVELS {
            r.lookupp().unwrap();
            back.push(r.getattr().unwrap());
        }
        assert_eq!(r.lookupp().unwrap_err().status(), Some(Nfsstat4::NOENT), "{path}");
        found.pop();
        found.reverse();
        assert_eq!(back, found, "{path}");
    }
}

#[tokio::test]
async fn lookupp_wants_a_directory() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut c = lab.client("one").await;
    c.reclaim_complete().await;
    let (_, file) = c.open("f", "me", RW, 0).await.unwrap();
    let mut r = c.run(vec![Op::Putfh(file), Op::Lookupp]).await;
    r.putfh().unwrap();
    assert_eq!(r.lookupp().unwrap_err().status(), Some(Nfsstat4::NOTDIR));
    let mut r = c.run(vec![Op::Lookupp]).await;
    assert_eq!(r.lookupp().unwrap_err().status(), Some(Nfsstat4::NOFILEHANDLE));
}

/// The server recognises an export's root even when it has not looked the root up.
#[tokio::test]
async fn lookupp_of_a_root_by_handle() {
    let model = model();
    let lab = Lab::new(&model, "/srv/data", 2, None);
    let mut c = lab.client("one").await;
    let mut r = c.run(vec![Op::Putrootfh, Op::lookup(b"srv"), Op::lookup(b"data"), Op::Getfh]).await;
    r.putrootfh().unwrap();
    r.lookup().unwrap();
    r.lookup().unwrap();
    let root = r.getfh().unwrap();
    let lab = Lab::new(&model, "/srv/data", 3, None);
    let mut c = lab.client("one").await;
    let mut r = c.run(vec![Op::Putfh(root), Op::Lookupp, Op::Lookupp, Op::Lookupp]).await;
    r.putfh().unwrap();
    r.lookupp().unwrap();
    r.lookupp().unwrap();
    assert_eq!(r.lookupp().unwrap_err().status(), Some(Nfsstat4::NOENT));
}
