//! Tests three modes over one server that another client changes: the answers of each mode, and the
//! number of its requests.

use super::*;
use bytes::Bytes;
use hither_cache::metadata::{LookupCache, MetadataCache, MetadataCacheOptions, Prefetch};
use hither_vfs::model::Model;
use hither_vfs::model::wire::Wire;
use hither_vfs::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

const VALID: Duration = Duration::from_secs(30);
const FOR_EVER: Duration = Duration::from_secs(1 << 30);
const RULES: [(&str, usize); 4] =
    [("frozen", 1), ("strict", 2), ("deep/er/strict", 2), ("deep/er/strict/not", 0)];

/// A mount with three modes. The root is close-to-open.
struct Lab {
    model: Arc<Model>,
    wire: Arc<Wire>,
    all: Arc<Subtrees>,
    root: Fh,
}

/// An environment whose wall clock advances by a second at each reading.
fn env() -> Env {
    let (random, wall) = (AtomicU64::new(1 << 40), AtomicU64::new(1_000_000));
    Env {
        random: Arc::new(move || random.fetch_add(1 << 33 | 1, Relaxed)),
        wall: Arc::new(move || SystemTime::UNIX_EPOCH + Duration::from_secs(wall.fetch_add(1, Relaxed))),
    }
}

fn cx() -> RequestContext {
    RequestContext::new(Arc::new(Cred::root()))
}

fn name(name: &str) -> Name {
    Name::new(name.as_bytes().to_vec()).unwrap()
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn names(path: &str) -> Vec<Name> {
    Name::of_path(path).unwrap()
}

fn rules() -> Rules {
    Rules::new(3, &RULES.map(|(path, stack)| (names(path), stack))).unwrap()
}

impl Lab {
    async fn new() -> Self {
        let model = Arc::new(Model::new(env(), VALID, u64::MAX));
        let wire = Wire::new(model.clone());
        let trunk = Trunk::new(wire.clone());
        let stack = |keep, asks| {
            let strict = asks == Asks::Always;
            let options = MetadataCacheOptions {
                coarse_change: false,
                prefetch: Prefetch::Off,
                lookup_cache: if strict { LookupCache::None } else { LookupCache::All },
                names_max: if strict { Duration::ZERO } else { Duration::MAX },
                fresh_opens: asks == Asks::AtOpens,
                strict,
                listing_bytes: 0,
                ..MetadataCacheOptions::default()
            };
            Stack {
                vfs: MetadataCache::new(trunk.branch(keep), options, env()),
                asks,
                leases: Arc::new(NoLeases),
            }
        };
        let stacks = vec![
            stack(Keep::Told, Asks::AtOpens),
            stack(Keep::Frozen { most: FOR_EVER, absent: FOR_EVER }, Asks::WhenOver),
            stack(Keep::Once, Asks::Always),
        ];
        let all = Subtrees::new(rules(), stacks);
        let root = all.root(&cx()).await.unwrap().fh;
        let lab = Self { model, wire, all, root };
        for dir in ["frozen", "strict", "plain", "deep", "deep/er", "deep/er/strict", "deep/er/strict/not"] {
            lab.mkdir(dir).await;
        }
        lab
    }

    /// Looks up a path as another client.
    async fn there(&self, path: &str) -> Option<Node> {
        let root = self.model.root(&cx()).await.unwrap();
        let path = names(path);
        let trail = self
            .model
            .walk(&cx(), PathRef { base: &root.fh, path: &path }, WalkRequest::default())
            .await
            .unwrap();
        if path.is_empty() { Some(root) } else { trail.steps.into_iter().nth(path.len() - 1) }
    }

    async fn dir_there(&self, path: &str) -> (Fh, Name) {
        let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
        (self.there(dir).await.unwrap().fh, name(last))
    }

    async fn mkdir(&self, path: &str) {
        let (dir, last) = self.dir_there(path).await;
        self.model.mkdir(&cx(), &dir, &last, &mode(0o755)).await.unwrap();
    }

    /// Recalls the lease of a file, because another client wants to change it.
    async fn recall(&self, path: &str) {
        if let (Some(node), Some(upcalls)) = (self.there(path).await, self.wire.upcalls.get()) {
            upcalls.revoke(&node.fh).await;
        }
    }

    async fn write_there(&self, path: &str, text: &str) {
        self.recall(path).await;
        let (dir, last) = self.dir_there(path).await;
        write(&*self.model, &dir, &last, text).await;
    }

    async fn rename_there(&self, from: &str, to: &str) -> Result<()> {
        let ((from_dir, from), (to_dir, to)) = (self.dir_there(from).await, self.dir_there(to).await);
        self.model
            .rename(&cx(), (&from_dir, &from), (&to_dir, &to), None, RenameFlags::empty())
            .await
            .map(drop)
    }

    async fn link_there(&self, of: &str, at: &str) -> Result<()> {
        self.recall(of).await;
        let (fh, (dir, last)) = (self.there(of).await.unwrap().fh, self.dir_there(at).await);
        self.model.link(&cx(), &fh, &dir, &last).await.map(drop)
    }

    /// Looks up a path through the mount, with one walk for each stack.
    async fn here(&self, path: &str) -> Option<Node> {
        tokio::time::advance(Duration::from_millis(1)).await;
        let (path, mut done, mut at) = (names(path), 0, self.root.clone());
        loop {
            let walked = PathRef { base: &at, path: &path[done..] };
            let trail = self.all.walk(&cx(), walked, WalkRequest::default()).await.unwrap();
            done += trail.steps.len();
            match (trail.stop, trail.steps.into_iter().last()) {
                (Stop::Complete, Some(node)) if done == path.len() => return Some(node),
                (Stop::Limit, Some(node)) => at = node.fh,
                (Stop::Missing(_), _) => return None,
                (stop, _) => panic!("{stop:?}"),
            }
        }
    }

    /// Opens a file through the mount and returns its length.
    async fn opened(&self, path: &str) -> u64 {
        let node = self.here(path).await.unwrap();
        let fresh = self.all.consistency_domain(&node.fh).asks == Some(Asks::AtOpens);
        let cx = if fresh { cx().fresh(Instant::now()) } else { cx() };
        let how = OpenHow { first_bytes: 4096, ..OpenHow::existing(OpenAccess::READ) };
        let opened = self.all.open(&cx, PathRef::fh(&node.fh), &how).await.unwrap();
        let file = File { fh: &opened.node.fh, open: Some(opened.open) };
        let read = self.all.read(&cx, file, 0, 4096).await.unwrap();
        self.all.close(&cx, &opened.node.fh, opened.open).await.unwrap();
        read.data.len() as u64
    }
}

async fn write(v: &dyn Vfs, dir: &Fh, last: &Name, text: &str) {
    let create = Create::IfMissing(mode(0o644));
    let how = OpenHow { create, truncate: true, ..OpenHow::existing(OpenAccess::READ | OpenAccess::WRITE) };
    let opened = v.open(&cx(), PathRef::name(dir, last), &how).await.unwrap();
    let file = File { fh: &opened.node.fh, open: Some(opened.open) };
    let data = Bytes::copy_from_slice(text.as_bytes()).into();
    v.write(&cx(), file, 0, data, Stability::Stable).await.unwrap();
    v.close(&cx(), &opened.node.fh, opened.open).await.unwrap();
}

/// The longest rule applies. Paths without a rule below share one place in each stack.
#[test]
fn longest_rule_decides_place() {
    let rules = rules();
    let of = |path: &str| names(path).iter().fold(SubtreeId::ROOT, |place, name| rules.child(place, name));
    let stacks = [
        "",
        "x",
        "deep",
        "frozen",
        "frozen/x",
        "strict/a/b",
        "deep/er/x",
        "deep/er/strict/x",
        "deep/er/strict/not/x",
    ];
    assert_eq!(stacks.map(|path| rules.stack(of(path))), [0, 0, 0, 1, 1, 2, 0, 2, 0]);
    // Paths without a rule below share one place in each stack. Other paths have a place of their
    // own.
    assert_eq!((of("x"), of("strict/a"), of("x/strict")), (of("deep/x/y"), of("deep/er/strict/z"), of("x")));
    assert!(of("deep") != of("x") && of("deep") != of("deep/er") && of("deep/er/strict") != of("strict"));
    let many: Vec<_> = (0..300).map(|n| (names(&format!("d{n}/e")), 1)).collect();
    assert!(Rules::new(2, &many).is_none());
}

/// A frozen part sends no request after the first answer. A close-to-open part sends one at an
/// open. A strict part sends one for its directory and one for the name. Each part sees changes as
/// its mode promises.
/// Promise: 8e
#[tokio::test(start_paused = true)]
async fn each_mode_sends_its_requests() {
    let lab = Lab::new().await;
    for dir in ["frozen", "strict", "plain"] {
        lab.write_there(&format!("{dir}/f"), "1").await;
        assert_eq!(lab.opened(&format!("{dir}/f")).await, 1);
    }
    tokio::time::advance(VALID / 2).await;
    lab.wire.take();
    for _ in 0..10 {
        assert_eq!(lab.opened("frozen/f").await, 1);
    }
    assert_eq!(lab.wire.take(), "");
    lab.opened("plain/f").await;
    assert_eq!(lab.wire.total(), 1, "close-to-open asks at the open");
    lab.here("strict/f").await;
    assert_eq!(lab.wire.total(), 2, "a strict part asks for its directory and for the name");
    for dir in ["frozen", "strict", "plain"] {
        lab.write_there(&format!("{dir}/f"), "22").await;
    }
    assert_eq!(
        (lab.opened("frozen/f").await, lab.opened("strict/f").await, lab.opened("plain/f").await),
        (1, 2, 2)
    );
    tokio::time::advance(VALID * 100).await;
    assert_eq!(lab.opened("frozen/f").await, 1);
}

/// The end of a lease, by a recall or by expiry, invalidates nothing in a frozen part.
/// Promise: 8e
#[tokio::test(start_paused = true)]
async fn frozen_parts_outlive_leases() {
    let lab = Lab::new().await;
    lab.wire.lease(true);
    lab.write_there("frozen/f", "1").await;
    let fh = lab.here("frozen/f").await.unwrap().fh;
    let file = lab.there("frozen/f").await.unwrap().fh;
    let upcalls = lab.wire.upcalls.get().unwrap();
    for end in 0..3 {
        assert_eq!(lab.opened("frozen/f").await, 1, "after end {end}");
        lab.write_there("frozen/f", "22").await;
        match end {
            0 => upcalls.revoke(&file).await,
            1 => upcalls.expire(std::slice::from_ref(&file)).await,
            _ => upcalls.revoke_all().await,
        }
        tokio::time::advance(VALID * 100).await;
        let told = lab.all.getattr(&cx(), File { fh: &fh, open: None }).await.unwrap();
        assert_eq!(told.attr.size_bytes, 1, "after end {end}");
    }
    assert_eq!(lab.opened("frozen/f").await, 1);
}

/// The removal of a name through another part sends the delayed data of a frozen part, which keeps
/// its answers.
/// Promise: 8e
#[tokio::test]
async fn removal_flushes_frozen_part() {
    #[derive(Default)]
    struct UpcallLog(parking_lot::Mutex<Vec<&'static str>>);
    impl UpcallLog {
        fn note(&self, call: &'static str) -> BoxFuture<()> {
            self.0.lock().push(call);
            Box::pin(std::future::ready(()))
        }
    }
    impl Upcalls for UpcallLog {
        fn revoke(&self, _: &Fh) -> BoxFuture<()> {
            self.note("revoke")
        }
        fn withdraw_unused(&self, _: &Fh) -> BoxFuture<()> {
            self.note("withdraw_unused")
        }
        fn flush_unused(&self, _: &Fh) -> BoxFuture<()> {
            self.note("flush_unused")
        }
        fn revoke_all(&self) -> BoxFuture<()> {
            self.note("revoke_all")
        }
    }
    let model = Arc::new(Model::new(env(), VALID, u64::MAX));
    let root = model.root(&cx()).await.unwrap().fh;
    let wire = Wire::new(model);
    let trunk = Trunk::new(wire.clone());
    let frozen = Keep::Frozen { most: FOR_EVER, absent: FOR_EVER };
    for (keep, call) in [(frozen, "flush_unused"), (Keep::Told, "withdraw_unused")] {
        let log = Arc::new(UpcallLog::default());
        trunk.branch(keep).subscribe(log.clone());
        wire.upcalls.get().unwrap().withdraw_unused(&root).await;
        assert_eq!(*log.0.lock(), [call]);
    }
}

/// A file has names in three subtrees and is under a lease. A write through one name is visible
/// through the other names.
/// Promise: 8e
#[tokio::test(start_paused = true)]
async fn write_through_alias_invalidates_lease() {
    let lab = Lab::new().await;
    lab.write_there("plain/l", "1").await;
    for other in ["strict/l", "frozen/l"] {
        lab.link_there("plain/l", other).await.unwrap();
    }
    lab.wire.lease(true);
    for (i, by) in ["plain", "strict", "frozen", "plain"].into_iter().enumerate() {
        for dir in ["plain", "strict", "frozen"] {
            assert_eq!(lab.opened(&format!("{dir}/l")).await, 1 + i as u64, "{dir}");
        }
        let dir = lab.here(by).await.unwrap();
        write(&*lab.all, &dir.fh, &name("l"), &"x".repeat(2 + i)).await;
    }
}

/// Renames and hard links between places fail with `EXDEV`. Within one place, and between places of
/// one mode without rules, they succeed.
/// Promise: 8e
#[tokio::test(start_paused = true)]
async fn rename_between_places_fails() {
    let lab = Lab::new().await;
    let [root, plain, strict, deep] = ["", "plain", "strict", "deep/er/strict"].map(|path| path.to_owned());
    let mut dirs = std::collections::BTreeMap::new();
    for path in [&plain, &strict, &deep] {
        dirs.insert(path.clone(), lab.here(path).await.unwrap().fh);
    }
    dirs.insert(root.clone(), lab.root.clone());
    write(&*lab.all, &dirs[&plain], &name("f"), "f").await;
    let rename = async |from: (&String, &str), to: (&String, &str)| {
        let (a, b) = (name(from.1), name(to.1));
        let moved =
            lab.all.rename(&cx(), (&dirs[from.0], &a), (&dirs[to.0], &b), None, RenameFlags::empty()).await;
        moved.map(drop).map_err(|e| e.errno)
    };
    for (from, to) in [
        ((&plain, "f"), (&strict, "f")),
        ((&root, "strict"), (&root, "x")),
        ((&root, "plain"), (&root, "frozen")),
        ((&root, "deep"), (&root, "y")),
    ] {
        assert_eq!(rename(from, to).await, Err(libc::EXDEV), "{from:?}");
    }
    assert_eq!(rename((&plain, "f"), (&root, "f")).await, Ok(()));
    let f = lab.here("f").await.unwrap().fh;
    assert_eq!(lab.all.link(&cx(), &f, &dirs[&strict], &name("l")).await.unwrap_err().errno, libc::EXDEV);
    write(&*lab.all, &dirs[&strict], &name("g"), "g").await;
    assert_eq!(rename((&strict, "g"), (&deep, "not")).await, Err(libc::EXDEV), "a name that a rule gives");
    assert_eq!(rename((&strict, "g"), (&deep, "g")).await, Ok(()), "another directory of the same mode");
    // An invalid handle fails with `ESTALE`.
    for raw in [Fh(Bytes::new()), Fh(Bytes::from_static(b"x\xff"))] {
        assert_eq!(lab.all.access(&cx(), &raw, Access::READ).await.unwrap_err().errno, libc::ESTALE);
    }
}

/// Another client makes random changes, moves directories between subtrees and links files among
/// them. Strict parts are never stale. An open elsewhere is never stale. Frozen parts stay as first
/// seen.
/// Promise: 8e
#[tokio::test(start_paused = true)]
async fn subtree_modes_keep_their_promises() {
    for seed in 1..60_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |n: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % n as u64) as usize
        };
        let lab = Lab::new().await;
        // The server grants leases on files for even seeds, like delegations, and none for odd
        // seeds.
        lab.wire.lease(seed % 2 == 0);
        let dirs = ["frozen", "strict", "plain", "deep/er/strict", "deep/er/strict/not", "deep/er"];
        let (mut frozen, mut held) = (std::collections::BTreeMap::new(), std::collections::BTreeSet::new());
        for step in 0..60 {
            let (dir, other) = (dirs[below(dirs.len())], dirs[below(dirs.len())]);
            let (file, moved) = (format!("{dir}/d/f"), format!("{other}/d"));
            match below(6) {
                0 if lab.there(&moved).await.is_none() => lab.mkdir(&moved).await,
                1 => drop(lab.rename_there(&format!("{dir}/d"), &moved).await),
                2 if lab.there(&file).await.is_some() && lab.there(&moved).await.is_some() => {
                    drop(lab.link_there(&file, &format!("{moved}/f")).await);
                }
                _ if lab.there(&format!("{dir}/d")).await.is_some() => {
                    lab.write_there(&file, &"x".repeat(1 + step)).await;
                }
                _ => {}
            }
            for fh in &held {
                let (_, raw) = lab.all.below(fh).unwrap();
                let truth = lab.model.getattr(&cx(), File { fh: &raw, open: None }).await;
                let told = lab.all.getattr(&cx(), File { fh, open: None }).await;
                let [truth, told] = [truth, told].map(|attrs| attrs.ok().map(|attrs| attrs.attr.size_bytes));
                assert_eq!(told, truth, "seed {seed}, step {step}: a file that was strict when it was found");
            }
            for dir in dirs {
                let path = format!("{dir}/d/f");
                let (truth, told) = (lab.there(&path).await, lab.here(&path).await);
                let size = |node: &Option<Node>| node.as_ref().map(|node| node.attrs.attr.size_bytes);
                match dir {
                    "strict" | "deep/er/strict" => {
                        assert_eq!(size(&told), size(&truth), "seed {seed}, step {step}: {path}");
                        held.extend(told.map(|node| node.fh));
                    }
                    "frozen" => {
                        let first = frozen.entry(path.clone()).or_insert_with(|| size(&told));
                        assert_eq!(size(&told), *first, "seed {seed}, step {step}: {path}");
                    }
                    // Checks an open through a name that still refers to the same file.
                    _ if told.is_some() && size(&truth).is_some() => {
                        let node = told.unwrap();
                        let fresh = lab
                            .all
                            .getattr(&cx().fresh(Instant::now()), File { fh: &node.fh, open: None })
                            .await;
                        let same = truth
                            .as_ref()
                            .is_some_and(|truth| truth.attrs.attr.fileid == node.attrs.attr.fileid);
                        let size_now = fresh.map(|attrs| attrs.attr.size_bytes).ok();
                        assert!(!same || size_now == size(&truth), "seed {seed}, step {step}: {path}");
                    }
                    _ => {}
                }
            }
        }
    }
}

/// The parent of a directory is the directory from a walk, with the same place, at every border
/// between parts.
#[tokio::test(start_paused = true)]
async fn parent_has_place_of_walk() {
    let lab = Lab::new().await;
    for dir in
        ["frozen/in", "strict/in", "deep/er/strict/in", "deep/er/strict/not/in", "deep/er/in", "plain/in"]
    {
        lab.mkdir(dir).await;
    }
    let all = [
        "frozen",
        "frozen/in",
        "strict",
        "strict/in",
        "plain",
        "plain/in",
        "deep",
        "deep/er",
        "deep/er/in",
        "deep/er/strict",
        "deep/er/strict/in",
        "deep/er/strict/not",
        "deep/er/strict/not/in",
    ];
    for path in all {
        let above = path.rsplit_once('/').map(|(above, _)| above);
        let wanted = match above {
            Some(above) => lab.here(above).await.unwrap().fh,
            None => lab.root.clone(),
        };
        let dir = lab.here(path).await.unwrap().fh;
        assert_eq!(lab.all.parent(&cx(), &dir).await.unwrap().fh, wanted, "{path}");
    }
    assert_eq!(lab.all.parent(&cx(), &lab.root).await.map_err(|e| e.errno).unwrap_err(), libc::ENOENT);
}
