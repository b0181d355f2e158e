//! How often the layer below is asked, and that nothing is answered that does not hold.

mod histories;
mod wire;

use super::*;
use hither_vfs::model::Model;
use hither_vfs::*;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;
use wire::Wire;

const VALID: Duration = Duration::from_secs(30);
const SIZE: usize = 1 << 30;

fn env() -> Env {
    let ticks = AtomicU64::new(1);
    Env {
        random: Arc::new(|| 4),
        wall: Arc::new(move || {
            let tick = ticks.fetch_add(1, Ordering::Relaxed);
            SystemTime::UNIX_EPOCH + Duration::from_millis(tick)
        }),
    }
}

fn name(n: &str) -> Name {
    Name::new(n.as_bytes().to_vec()).unwrap()
}

fn names(path: &str) -> Vec<Name> {
    path.split('/').map(name).collect()
}

fn root_cx() -> Cx {
    Cx::new(Arc::new(Cred::root()))
}

fn user(uid: u32) -> Cx {
    Cx::new(Arc::new(Cred { uid, gid: uid, groups: Default::default() }))
}

fn options() -> MetaOptions {
    MetaOptions { coarse_change: false, prefetch: Prefetch::Off, ..Default::default() }
}

const READ: OpenHow = OpenHow {
    access: OpenAccess::READ,
    create: Create::No,
    truncate: false,
    execute: false,
    first_bytes: 65536,
    known: None,
};

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..Default::default() }
}

fn creating(bits: u32) -> OpenHow {
    let access = OpenAccess::READ | OpenAccess::WRITE;
    OpenHow { access, create: Create::IfMissing(mode(bits)), first_bytes: 0, ..READ }
}

/// A server, the wire to it, and the cache.
struct Lab {
    model: Arc<Model>,
    wire: Arc<Wire>,
    meta: Arc<Meta>,
    top: Fh,
    cx: Cx,
}

async fn lab_with(options: MetaOptions, valid: Duration) -> Lab {
    let model = Arc::new(Model::new(env(), valid, 1 << 40));
    let wire = Wire::new(model.clone());
    let meta = Meta::new(wire.clone(), options, env());
    let cx = root_cx();
    let top = meta.root(&cx).await.unwrap().fh;
    wire.take();
    Lab { model, wire, meta, top, cx }
}

async fn lab() -> Lab {
    lab_with(options(), VALID).await
}

/// As another client: straight at the server.
async fn make_dir(v: &dyn Vfs, cx: &Cx, dir: &Fh, n: &str) -> Fh {
    v.mkdir(cx, dir, &name(n), &mode(0o755)).await.unwrap().node.fh
}

async fn make_file(v: &dyn Vfs, cx: &Cx, dir: &Fh, n: &str, text: &str) -> Fh {
    let opened = v.open(cx, Where::name(dir, &name(n)), &creating(0o644)).await.unwrap();
    let file = File { fh: &opened.node.fh, open: Some(opened.open) };
    let data = Bytes::copy_from_slice(text.as_bytes()).into();
    v.write(cx, file, 0, data, Stability::Unstable).await.unwrap();
    v.close(cx, &opened.node.fh, opened.open).await.unwrap();
    opened.node.fh
}

async fn walk(v: &dyn Vfs, cx: &Cx, from: &Fh, path: &str) -> Trail {
    v.walk(cx, Where { base: from, path: &names(path) }, Want::default()).await.unwrap()
}

fn peek(l: &Lab, cx: &Cx, path: &str) -> Option<Trail> {
    l.meta.peek(cx, Where { base: &l.top, path: &names(path) })
}

async fn read_all(v: &dyn Vfs, cx: &Cx, fh: &Fh) -> Result<String> {
    let opened = v.open(cx, Where::fh(fh), &READ).await?;
    let text = match opened.first {
        Some(first) if first.eof => first.data.into_bytes(),
        _ => {
            let file = File { fh, open: Some(opened.open) };
            v.read(cx, file, 0, 1 << 20).await?.data.into_bytes()
        }
    };
    v.close(cx, fh, opened.open).await?;
    Ok(String::from_utf8(text.to_vec()).unwrap())
}

/// A tree a/b/c with files f and g.
async fn tree(l: &Lab) {
    let a = make_dir(&*l.model, &l.cx, &l.top, "a").await;
    let b = make_dir(&*l.model, &l.cx, &a, "b").await;
    let c = make_dir(&*l.model, &l.cx, &b, "c").await;
    make_file(&*l.model, &l.cx, &c, "f", "one").await;
    make_file(&*l.model, &l.cx, &c, "g", "two").await;
    tokio::time::advance(Duration::from_secs(100)).await;
}

#[tokio::test(start_paused = true)]
async fn a_path_costs_one_walk_and_then_nothing() {
    let l = lab().await;
    tree(&l).await;
    assert!(peek(&l, &l.cx, "a/b/c/f").is_none());
    let trail = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
    assert_eq!(trail.steps.len(), 4);
    assert_eq!(l.wire.take(), "walk 1");
    let again = peek(&l, &l.cx, "a/b/c/f").unwrap();
    assert_eq!(again.steps.last(), trail.steps.last());
    // The listing came along: siblings and absent names are known.
    assert!(peek(&l, &l.cx, "a/b/c/g").is_some());
    assert!(matches!(peek(&l, &l.cx, "a/b/c/nothing").unwrap().stop, Stop::Missing(_)));
    assert!(matches!(peek(&l, &l.cx, "a/b/c/f/below").unwrap().stop, Stop::NotDirectory));
    assert_eq!(l.wire.take(), "");
}

#[tokio::test(start_paused = true)]
async fn after_its_time_a_path_is_asked_for_once_more_and_names_stay() {
    let l = lab().await;
    tree(&l).await;
    walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
    tokio::time::advance(VALID).await;
    assert!(peek(&l, &l.cx, "a/b/c/f").is_none());
    l.wire.take();
    walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
    assert_eq!(l.wire.take(), "getattr_many 1");
    assert!(peek(&l, &l.cx, "a/b/c/f").is_some());
    assert!(matches!(peek(&l, &l.cx, "a/b/c/nothing").unwrap().stop, Stop::Missing(_)));
}

#[tokio::test(start_paused = true)]
async fn a_changed_directory_loses_its_names() {
    let l = lab().await;
    tree(&l).await;
    let c = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps[2].fh.clone();
    make_file(&*l.model, &l.cx, &c, "new", "").await;
    assert!(matches!(peek(&l, &l.cx, "a/b/c/new").unwrap().stop, Stop::Missing(_)), "still within its time");
    tokio::time::advance(VALID).await;
    let trail = walk(&*l.meta, &l.cx, &l.top, "a/b/c/new").await;
    assert!(matches!(trail.stop, Stop::Complete));
}
