//! Exports over directories of other exports: clients cross into them and back.

use super::*;
use crate::table::Covers;
use hither_proto::nfs3::{
    Diropargs3, GetattrArgs, LookupArgs, Nfsstat3, ReaddirArgs as Readdir3, ReaddirplusArgs,
};
use hither_vfs::{Cred, Fh, Name, Node, RequestContext, SetAttr, Vfs};

fn cx() -> RequestContext {
    RequestContext::new(Arc::new(Cred::root()))
}

/// Creates the directory `path` in a model. Returns its node.
async fn with_directory(model: &Model, path: &[&str]) -> Node {
    let mut at = model.root(&cx()).await.unwrap();
    for name in path {
        let name = Name::new((*name).to_owned()).unwrap();
        let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        at = model.mkdir(&cx(), &at.fh, &name, &set).await.unwrap().node;
    }
    at
}

fn spec(path: &str, model: &Arc<Model>, admitted: bool, covers: Option<Covers>) -> ExportSpec {
    let rights = Rights { read_only: false, squash: Squash::None, secure: false, ..Rights::default() };
    ExportSpec {
        path: path.into(),
        aliases: vec![],
        vfs: model.clone(),
        extra: None,
        admit: Arc::new(move |_: &crate::access::Asker<'_>| admitted.then(|| rights.clone())),
        epoch: None,
        others: Others::Nobody,
        covers,
    }
}

/// The export `around`, and the export `inside` over its directory `dir`.
pub(crate) fn table(around: (&str, &Arc<Model>), dir: &Fh, inside: (&str, &Arc<Model>)) -> Table {
    let covers = Covers { export: around.0.into(), dir: dir.clone(), fileid: 7, hidden: false };
    let (around, inside) =
        (spec(around.0, around.1, true, None), spec(inside.0, inside.1, true, Some(covers)));
    Table::new(vec![around, inside]).unwrap()
}

/// The export `/srv`, and over its directory `a/m` the export `/srv/a/m` with a directory `in`.
struct Two {
    lab: Lab,
    covered: Node,
    root: Node,
}

impl Two {
    async fn new(outer: bool, inner: bool, hidden: bool) -> Self {
        let (around, inside) = (model(), model());
        let covered = with_directory(&around, &["a", "m"]).await;
        with_directory(&inside, &["in"]).await;
        let covers = Covers {
            export: "/srv".into(),
            dir: covered.fh.clone(),
            fileid: covered.attrs.attr.fileid,
            hidden,
        };
        let specs = vec![spec("/srv", &around, outer, None), spec("/srv/a/m", &inside, inner, Some(covers))];
        let server = Server::new(Options::new(env(2)), Table::new(specs).unwrap()).unwrap();
        let acceptor = Acceptor::new(server.clone(), ServerLimits::default());
        let root = inside.root(&cx()).await.unwrap();
        Self { lab: Lab { server, acceptor }, covered, root }
    }
}

const WANTED: Bitmap4 = Bitmap4::of(&[attr::FSID, attr::FILEID, attr::MOUNTED_ON_FILEID, attr::FILEHANDLE]);

/// Promise: S2a
#[tokio::test]
async fn lookups_cross_and_come_back() {
    let two = Two::new(true, true, false).await;
    let mut c = two.lab.client("one").await;
    let mut ops = vec![Op::Putrootfh];
    for name in ["srv", "a", "m", "in"] {
        ops.extend([Op::lookup(name.as_bytes()), Op::Getattr(WANTED)]);
    }
    for _ in 0..3 {
        ops.extend([Op::Lookupp, Op::Getattr(WANTED)]);
    }
    let mut r = c.run(ops).await;
    r.putrootfh().unwrap();
    let mut down = Vec::new();
    for _ in 0..4 {
        r.lookup().unwrap();
        down.push(r.getattr().unwrap());
    }
    let [srv, a, m, inside] = &down[..] else { panic!() };
    assert_eq!(srv.fsid, a.fsid);
    assert_ne!(a.fsid, m.fsid, "the inner export is another file system");
    assert_eq!(m.fsid, inside.fsid);
    assert_eq!(m.fileid, Some(two.root.attrs.attr.fileid));
    assert_eq!(m.mounted_on_fileid, Some(two.covered.attrs.attr.fileid));
    for wanted in [m, a, srv] {
        r.lookupp().unwrap();
        assert_eq!(r.getattr().unwrap(), *wanted);
    }
}

/// A listing shows the root of the inner export instead of the covered directory, as LOOKUP does.
/// Promise: S2a
#[tokio::test]
async fn readdir_shows_inner_export_root() {
    let two = Two::new(true, true, false).await;
    let mut c = two.lab.client("one").await;
    for wanted in [WANTED, Bitmap4::of(&[attr::FILEID, attr::MOUNTED_ON_FILEID])] {
        let list = Op::Readdir(ReaddirArgs {
            cookie: 0,
            cookieverf: [0; 8],
            dircount: 1000,
            maxcount: 4000,
            attr_request: wanted,
        });
        let down = ["srv", "a"].map(|name| Op::lookup(name.as_bytes()));
        let [srv, a] = down.clone();
        let ops = vec![Op::Putrootfh, srv, a, list, Op::lookup(b"m"), Op::Getattr(wanted)];
        let mut r = c.run(ops).await;
        r.putrootfh().unwrap();
        r.lookup().unwrap();
        r.lookup().unwrap();
        let entries = r.readdir().unwrap().entries.0;
        r.lookup().unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].attrs, r.getattr().unwrap());
        assert_eq!(entries[0].attrs.mounted_on_fileid, Some(two.covered.attrs.attr.fileid));
    }
}

/// A client that only the inner export admits reaches it through directories that exist in no file
/// system. A client that only the outer export admits sees the covered directory.
/// Promise: S2a
#[tokio::test]
async fn rights_select_visible_export() {
    for (outer, inner) in [(true, false), (false, true)] {
        let two = Two::new(outer, inner, false).await;
        let mut c = two.lab.client("one").await;
        let mut ops = vec![Op::Putrootfh];
        ops.extend(["srv", "a", "m"].map(|name| Op::lookup(name.as_bytes())));
        ops.push(Op::Getattr(WANTED));
        let mut r = c.run(ops).await;
        r.putrootfh().unwrap();
        for _ in 0..3 {
            r.lookup().unwrap();
        }
        let seen = if inner { &two.root } else { &two.covered };
        assert_eq!(r.getattr().unwrap().fileid, Some(seen.attrs.attr.fileid));
    }
}

/// Promise: S2a
#[tokio::test]
async fn nfsv3_crosses_unless_hidden() {
    for hidden in [false, true] {
        let two = Two::new(true, true, hidden).await;
        let mut wire = two.lab.connect();
        let dir = wire.root3("/srv/a").await;
        let what = Diropargs3 { dir: dir.clone(), name: b"m"[..].into() };
        let found = wire.call(&LookupArgs { what }).await.into_result().unwrap();
        let attr = wire.call(&GetattrArgs { object: found.object.clone() }).await.into_result().unwrap();
        assert_eq!(found.obj_attributes, Some(attr));
        let around = wire.call(&GetattrArgs { object: dir.clone() }).await.into_result().unwrap();
        assert_eq!(attr.fsid == around.fsid, hidden);
        let seen = if hidden { &two.covered } else { &two.root };
        assert_eq!(attr.fileid, seen.attrs.attr.fileid);
        let what = Diropargs3 { dir: found.object, name: b"in"[..].into() };
        let inside = wire.call(&LookupArgs { what }).await;
        assert_eq!(inside.status(), if hidden { Nfsstat3::NOENT } else { Nfsstat3::OK });
        let list = Readdir3 { dir: dir.clone(), cookie: 0, cookieverf: [0; 8], count: 4096 };
        let entries = wire.call(&list).await.into_result().unwrap().entries.0;
        let m = entries.iter().find(|e| &e.name[..] == b"m").unwrap();
        assert_eq!(m.fileid, two.covered.attrs.attr.fileid, "the number of the covered directory");
        let list = ReaddirplusArgs { dir, cookie: 0, cookieverf: [0; 8], dircount: 4096, maxcount: 8192 };
        let entries = wire.call(&list).await.into_result().unwrap().entries.0;
        let m = entries.iter().find(|e| &e.name[..] == b"m").unwrap();
        assert_eq!(m.name_handle.is_some(), hidden, "only a LOOKUP crosses");
        // MOUNT finds the inner export by its path.
        let root = wire.root3("/srv/a/m").await;
        let attr = wire.call(&GetattrArgs { object: root }).await.into_result().unwrap();
        assert_eq!(attr.fileid, two.root.attrs.attr.fileid);
    }
}

/// A client with a handle from before the directory was covered gets STALE and repeats the LOOKUP.
/// A client that cannot cross still uses the directory.
/// Promise: S2a
#[tokio::test]
async fn covered_directory_handle_is_stale() {
    for (inner, hidden) in [(true, false), (true, true), (false, false)] {
        let two = Two::new(true, inner, hidden).await;
        let number = two.lab.server.table().exports()[0].number;
        let m: hither_proto::nfs4::Fh = crate::handle::object(number, &two.covered.fh).into();
        let mut wire = two.lab.connect();
        let seen = wire.call(&GetattrArgs { object: m[..].into() }).await.status();
        let crosses = inner && !hidden;
        assert_eq!(seen, if crosses { Nfsstat3::STALE } else { Nfsstat3::OK });
        let mut c = two.lab.client("one").await;
        let mut r = c.run(vec![Op::putfh(&m), Op::Getattr(WANTED)]).await;
        // NFSv4 clients always cross.
        assert_eq!(r.putfh().is_err(), inner);
    }
}

/// When an export is removed, opens and locks in it end, and no reference to its files remains.
/// Promise: S2a
#[tokio::test(start_paused = true)]
async fn unserved_export_is_let_go() {
    let (around, inside) = (model(), model());
    let dir = with_directory(&around, &["m"]).await.fh;
    let server = Server::new(Options::new(env(2)), table(("/", &around), &dir, ("/m", &inside))).unwrap();
    let lab = Lab { acceptor: Acceptor::new(server.clone(), ServerLimits::default()), server };
    let files = Arc::downgrade(&inside);
    drop(inside);
    let mut c = lab.client("one").await;
    c.reclaim_complete().await;
    let args = open_args("o", open::SHARE_ACCESS_BOTH, 0, OpenClaim::Null(b"f"[..].into()), true);
    let mut r = c.run(vec![Op::Putrootfh, Op::lookup(b"m"), Op::Open(args)]).await;
    r.putrootfh().unwrap();
    r.lookup().unwrap();
    let opened = r.open().unwrap().stateid;
    lab.server.replace(Table::new(vec![spec("/", &around, true, None)]).unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(files.upgrade().is_none(), "a reference to the files remains");
    let mut r = c.run(vec![Op::TestStateid(vec![opened].into())]).await;
    assert_eq!(r.test_stateid().unwrap()[0], Nfsstat4::BAD_STATEID);
}

/// An export inside another export must name the directory that it covers. Otherwise the table is
/// refused.
#[tokio::test]
async fn inner_export_needs_covered_directory() {
    let specs = vec![spec("/srv", &model(), true, None), spec("/srv/a", &model(), true, None)];
    let said = Table::new(specs).unwrap_err().to_string();
    assert!(said.contains("/srv and /srv/a inside it are both exported"), "{said}");
}
