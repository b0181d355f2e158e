//! The whole `Vfs` against a real server, without FUSE.
//!
//! The tests are ignored by default. They need a server: `HITHER_TEST_SERVER=10.91.0.1:/export
//! cargo test -p hither-nfs --test ganesha -- --ignored --test-threads 1`. The export must be
//! writable by root (`no_root_squash`). `HITHER_TEST_VERS` forces a version (`4.1`, `4.2`, `3`).
//! Tests of restarts need `HITHER_TEST_RESTART`, a command that kills the server without warning
//! and starts it again.

#![allow(clippy::unwrap_used, reason = "helpers of tests are no tests to clippy")]

#[path = "ganesha/chains.rs"]
mod chains;

use bytes::Bytes;
use hither_nfs::{AttrCache, Connected, LookupCache, Options, Recovery, Version};
use hither_vfs::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

fn options() -> Options {
    let server = std::env::var("HITHER_TEST_SERVER").expect("HITHER_TEST_SERVER=address:/path");
    let (addr, path) = server.split_once(":/").expect("address:/path");
    Options {
        server: addr.to_owned(),
        addrs: vec![format!("{addr}:0").parse().expect("an IPv4 address")],
        path: format!("/{path}"),
        version: match std::env::var("HITHER_TEST_VERS").as_deref() {
            Ok("3") => Some(Version::V3),
            Ok("4.1") => Some(Version::V41),
            Ok("4.2") => Some(Version::V42),
            _ => None,
        },
        port: None,
        mount_port: None,
        recovery: Recovery::Hard,
        timeo: Duration::from_secs(60),
        retrans: 2,
        nconnect: std::env::var("HITHER_TEST_NCONNECT").map_or(1, |n| n.parse().unwrap()),
        resvport: true,
        tls: None,
        security: Default::default(),
        rsize_bytes: None,
        wsize_bytes: None,
        attr_cache: AttrCache::default(),
        lookup_cache: LookupCache::All,
        delegations: true,
        withdraw_max: std::time::Duration::from_secs(2),
        close_to_open: true,
        sync: false,
        readdirplus: true,
        chains: true,
        chain_max: None,
        acl: true,
        idmap_domain: None,
        client_name: None,
        retry: Duration::ZERO,
    }
}

#[allow(clippy::disallowed_methods, reason = "the tests' clock comes from here")]
fn env() -> Env {
    use std::hash::{BuildHasher, RandomState};
    Env { random: Arc::new(|| RandomState::new().hash_one(0)), wall: Arc::new(std::time::SystemTime::now) }
}

/// A mount with its own directory.
struct Mount {
    vfs: Arc<dyn Vfs>,
    connected: Connected,
    cx: RequestContext,
    root: Fh,
    dir: Fh,
    dir_name: Name,
}

impl Mount {
    async fn new() -> Self {
        let connected = hither_nfs::connect(&options(), env()).await.expect("mount");
        eprintln!("{connected:?}");
        let vfs = connected.vfs.clone();
        let cx = RequestContext::new(Arc::new(Cred::root()));
        let root = vfs.root(&cx).await.unwrap().fh;
        let dir_name = name(&format!("t{:016x}", (env().random)()));
        let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        let made = vfs.mkdir(&cx, &root, &dir_name, &set).await.unwrap();
        Mount { vfs, connected, cx, root, dir: made.node.fh, dir_name }
    }

    async fn create(&self, file: &str) -> Opened {
        let how = how(OpenAccess::READ | OpenAccess::WRITE, Create::Exclusive(mode(0o644)));
        self.vfs.open(&self.cx, PathRef::name(&self.dir, &name(file)), &how).await.unwrap()
    }

    async fn write(&self, o: &Opened, at: u64, data: impl Into<Bytes>) {
        let data: Bytes = data.into();
        let file = File { fh: &o.node.fh, open: Some(o.open) };
        let len = data.len() as u64;
        let wrote = self.vfs.write(&self.cx, file, at, data.into(), Stability::Unstable).await.unwrap();
        assert_eq!(wrote.bytes, len);
    }

    async fn read(&self, o: &Opened, at: u64, len: u32) -> Bytes {
        let file = File { fh: &o.node.fh, open: Some(o.open) };
        self.vfs.read(&self.cx, file, at, len).await.unwrap().data.into_bytes()
    }

    async fn close(&self, o: &Opened) {
        self.vfs.close(&self.cx, &o.node.fh, o.open).await.unwrap();
    }

    async fn names(&self, dir: &Fh, nodes: bool) -> Vec<DirEntry> {
        let (mut all, mut cookie, mut verifier) = (Vec::new(), 0, [0; 8]);
        loop {
            let page = self.vfs.readdir(&self.cx, dir, cookie, verifier, 4096, nodes).await.unwrap();
            assert!(page.eof || !page.entries.is_empty());
            (verifier, cookie) = (page.verifier, page.entries.last().map_or(cookie, |e| e.cookie));
            all.extend(page.entries);
            if page.eof {
                return all;
            }
        }
    }

    /// Removes the test's directory and shuts the client down.
    async fn end(self) {
        for e in self.names(&self.dir, true).await {
            match e.kind {
                Some(FileKind::Directory) => self.vfs.rmdir(&self.cx, &self.dir, &e.name).await.map(drop),
                _ => self.vfs.unlink(&self.cx, &self.dir, &e.name, None).await.map(drop),
            }
            .unwrap();
        }
        self.vfs.rmdir(&self.cx, &self.root, &self.dir_name).await.unwrap();
        for op in self.connected.stats.snapshot().ops {
            eprintln!("  {:20} {:6} calls {:4} errors", op.name, op.ops, op.errors);
        }
        self.vfs.shutdown(&self.cx).await.unwrap();
    }
}

fn name(s: &str) -> Name {
    Name::new(s.to_owned()).unwrap()
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn how(access: OpenAccess, create: Create) -> OpenHow {
    OpenHow { access, create, truncate: false, execute: false, first_bytes: 0, known: None }
}

fn errno<T>(r: Result<T>) -> i32 {
    r.err().map_or(0, |e| e.errno)
}

fn is_v4(m: &Mount) -> bool {
    m.connected.version != Version::V3
}

/// Written data is read back by the same open and by name, and the attributes agree.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs HITHER_TEST_SERVER"]
async fn write_and_read() {
    let m = Mount::new().await;
    let o = m.create("file").await;
    assert!(o.created);
    assert_eq!(o.node.attrs.attr.mode, 0o644);
    m.write(&o, 0, "hello, ").await;
    m.write(&o, 7, "world").await;
    assert_eq!(m.read(&o, 0, 100).await, "hello, world");
    let file = File { fh: &o.node.fh, open: Some(o.open) };
    m.vfs.commit(&m.cx, file).await.unwrap();
    assert_eq!(m.vfs.getattr(&m.cx, file).await.unwrap().attr.size_bytes, 12);
    m.close(&o).await;
    assert_eq!(errno(m.vfs.read(&m.cx, file, 0, 1).await), libc::EBADF);

    let trail = m
        .vfs
        .walk(
            &m.cx,
            PathRef { base: &m.root, path: &[m.dir_name.clone(), name("file")] },
            WalkRequest::default(),
        )
        .await
        .unwrap();
    assert!(matches!(trail.stop, Stop::Complete));
    assert_eq!(trail.steps[1].fh, o.node.fh);
    let again = m.vfs.open(&m.cx, PathRef::fh(&o.node.fh), &how(OpenAccess::READ, Create::No)).await.unwrap();
    assert_eq!(m.read(&again, 7, 100).await, "world");
    m.close(&again).await;
    m.end().await;
}

/// Large transfers are split and reassembled. Reads beyond the end are short.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs HITHER_TEST_SERVER"]
async fn large_transfers() {
    let m = Mount::new().await;
    let o = m.create("big").await;
    let data: Vec<u8> = (0..5_000_011u32).map(|i| (i * 7 + i / 251) as u8).collect();
    let data = Bytes::from(data);
    m.write(&o, 0, data.clone()).await;
    assert_eq!(m.read(&o, 0, 6_000_000).await, data);
    assert_eq!(m.read(&o, 1_234_567, 3_000_000).await, data.slice(1_234_567..4_234_567));
    m.close(&o).await;
    let o = m
        .vfs
        .open(&m.cx, PathRef::name(&m.dir, &name("big")), &how(OpenAccess::READ, Create::No))
        .await
        .unwrap();
    assert_eq!(o.node.attrs.attr.size_bytes, data.len() as u64);
    assert_eq!(m.read(&o, 0, 6_000_000).await, data);
    m.close(&o).await;
    m.end().await;
}

/// A walk reports its last step and the reason of its end.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs HITHER_TEST_SERVER"]
async fn walks() {
    let m = Mount::new().await;
    let (mut dir, mut path) = (m.dir.clone(), vec![]);
    for i in 0..60 {
        let n = name(&format!("d{i}"));
        dir = m.vfs.mkdir(&m.cx, &dir, &n, &mode(0o755)).await.unwrap().node.fh;
        path.push(n);
    }
    let trail =
        m.vfs.walk(&m.cx, PathRef { base: &m.dir, path: &path }, WalkRequest::default()).await.unwrap();
    assert!(matches!(trail.stop, Stop::Complete), "{:?}", trail.stop);
    assert_eq!(trail.steps.len(), 60);
    assert_eq!(trail.steps[59].fh, dir);
    let want = WalkRequest { listing_bytes: 100_000, access: Access::READ, ..WalkRequest::default() };
    for depth in [10, 15, 16, 17, 18, 19, 20, 21, 22] {
        let at = PathRef { base: &m.dir, path: &path[..depth] };
        let short = m.vfs.walk(&m.cx, at, want).await.unwrap();
        assert!(matches!(short.stop, Stop::Complete));
        assert_eq!(short.steps[depth - 1].fh, trail.steps[depth - 1].fh);
        if let Some(listing) = &short.along.listing {
            assert_eq!(listing.entries[0].name, path[depth - 1]);
        }
        assert!(short.along.listing.is_some() || depth > 18);
    }
    m.close(&m.create("file").await).await;
    m.vfs.symlink(&m.cx, &m.dir, &name("link"), &Bytes::from("d0"), &mode(0o777)).await.unwrap();
    let stop = async |names: &[&str]| {
        let path: Vec<_> = names.iter().map(|n| name(n)).collect();
        let t =
            m.vfs.walk(&m.cx, PathRef { base: &m.dir, path: &path }, WalkRequest::default()).await.unwrap();
        (t.steps.len(), t.stop)
    };
    assert!(matches!(stop(&["d0", "none", "x"]).await, (1, Stop::Missing(_))));
    assert!(matches!(stop(&["none"]).await, (0, Stop::Missing(_))));
    assert!(matches!(stop(&["file", "x"]).await, (1, Stop::NotDirectory)));
    assert!(matches!(stop(&["link", "d1"]).await, (1, Stop::Symlink)));
    assert!(matches!(stop(&["link"]).await, (1, Stop::Complete)));
    for i in (0..60).rev() {
        let parent = if i == 0 { &m.dir } else { &trail.steps[i - 1].fh };
        m.vfs.rmdir(&m.cx, parent, &path[i]).await.unwrap();
    }
    m.end().await;
}

/// Every kind of object is created with the requested attributes, and every entry is listed once.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs HITHER_TEST_SERVER"]
async fn objects_and_listing() {
    let m = Mount::new().await;
    let (v, cx, dir) = (&m.vfs, &m.cx, &m.dir);
    let set = SetAttr { mode: Some(0o640), uid: Some(1234), gid: Some(567), ..SetAttr::default() };
    let made = v.mkdir(cx, dir, &name("dir"), &set).await.unwrap();
    let a = made.node.attrs.attr;
    assert_eq!((a.kind, a.mode), (FileKind::Directory, 0o640));
    assert!(made.dir.before != made.dir.after || !made.dir.atomic);
    let target = Bytes::from("some/where");
    let link = v.symlink(cx, dir, &name("link"), &target, &mode(0o777)).await.unwrap();
    assert_eq!(v.readlink(cx, &link.node.fh).await.unwrap(), target);
    for (i, what) in [
        Special::Fifo,
        Special::Socket,
        Special::CharDevice(5, 7),
        Special::BlockDevice(8, 1),
        Special::Regular,
    ]
    .iter()
    .enumerate()
    {
        let made = v.mknod(cx, dir, &name(&format!("special{i}")), what, &mode(0o600)).await.unwrap();
        let a = made.node.attrs.attr;
        assert_eq!(a.mode, 0o600, "{what:?}");
        match what {
            Special::CharDevice(x, y) => assert_eq!((a.kind, a.rdev), (FileKind::CharDevice, (*x, *y))),
            Special::BlockDevice(x, y) => assert_eq!((a.kind, a.rdev), (FileKind::BlockDevice, (*x, *y))),
            _ => {}
        }
    }
    assert_eq!(errno(v.mkdir(cx, dir, &name("dir"), &mode(0o755)).await), libc::EEXIST);
    let file = m.create("file").await;
    let linked = v.link(cx, &file.node.fh, dir, &name("hard")).await.unwrap();
    assert_eq!((linked.node.attrs.attr.nlink, &linked.node.fh), (2, &file.node.fh));
    m.close(&file).await;

    for i in 0..300 {
        v.mknod(cx, dir, &name(&format!("many{i:04}")), &Special::Fifo, &mode(0o600)).await.unwrap();
    }
    for nodes in [false, true] {
        let entries = m.names(dir, nodes).await;
        let mut names: Vec<_> = entries.iter().map(|e| e.name.clone()).collect();
        names.sort();
        names.dedup();
        assert_eq!((names.len(), entries.len()), (309, 309));
        if nodes {
            let e = entries.iter().find(|e| e.name == name("hard")).unwrap();
            let node = e.node.as_ref().expect("attributes");
            assert_eq!((node.attrs.attr.nlink, e.fileid), (2, node.attrs.attr.fileid));
        }
    }
    m.end().await;
}

/// Attributes are set and read back, times to the nanosecond.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs HITHER_TEST_SERVER"]
async fn attributes() {
    let m = Mount::new().await;
    let o = m.create("file").await;
    let file = File { fh: &o.node.fh, open: Some(o.open) };
    m.write(&o, 0, vec![1; 5000]).await;
    let time = Time { secs: 1_234_567_890, nanos: 123_456_789 };
    let set = SetAttr {
        mode: Some(0o4751),
        unmasked: None,
        uid: Some(1000),
        gid: Some(2000),
        size_bytes: Some(100),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::To(time)),
    };
    let a = m.vfs.setattr(&m.cx, file, &set).await.unwrap().attr;
    assert_eq!((a.uid, a.gid, a.size_bytes), (1000, 2000, 100));
    assert_eq!(a.mtime, time);
    let a = m.vfs.setattr(&m.cx, file, &mode(0o4751)).await.unwrap().attr;
    assert_eq!(a.mode, 0o4751);
    assert_eq!(m.read(&o, 0, 5000).await, vec![1; 100]);
    let s = m.vfs.statfs(&m.cx, &m.dir).await.unwrap();
    assert!(s.total_bytes > s.avail_bytes && s.total_files > 0 && s.name_max_bytes == 255, "{s:?}");
    m.close(&o).await;
    // A file without an open is truncated by its handle.
    let set = SetAttr { size_bytes: Some(7), ..SetAttr::default() };
    let a = m.vfs.setattr(&m.cx, File { fh: &o.node.fh, open: None }, &set).await.unwrap();
    assert_eq!(a.attr.size_bytes, 7);
    let mut h = how(OpenAccess::WRITE, Create::No);
    h.truncate = true;
    let o = m.vfs.open(&m.cx, PathRef::name(&m.dir, &name("file")), &h).await.unwrap();
    assert_eq!(o.node.attrs.attr.size_bytes, 0);
    m.close(&o).await;
    m.end().await;
}

/// Opens: create, exclusive create, existing files, and permissions of the caller.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs HITHER_TEST_SERVER"]
async fn opens() {
    let m = Mount::new().await;
    let open = async |n: &str, h: &OpenHow, cx: &RequestContext| {
        m.vfs.open(cx, PathRef::name(&m.dir, &name(n)), h).await
    };
    let rw = OpenAccess::READ | OpenAccess::WRITE;
    let one = open("a", &how(rw, Create::IfMissing(mode(0o600))), &m.cx).await.unwrap();
    assert!(one.created);
    m.write(&one, 0, "data").await;
    let two = open("a", &how(rw, Create::IfMissing(mode(0o644))), &m.cx).await.unwrap();
    assert!(!two.created);
    assert_eq!(two.node.attrs.attr.mode, 0o600);
    assert_eq!(errno(open("a", &how(rw, Create::Exclusive(mode(0o600))), &m.cx).await), libc::EEXIST);
    assert_eq!(errno(open("b", &how(rw, Create::No), &m.cx).await), libc::ENOENT);
    // The close of one of two opens keeps the other open.
    m.close(&one).await;
    m.write(&two, 4, "!").await;
    assert_eq!(m.read(&two, 0, 10).await, "data!");
    let reader = open("a", &how(OpenAccess::READ, Create::No), &m.cx).await.unwrap();
    m.close(&two).await;
    assert_eq!(m.read(&reader, 0, 10).await, "data!");
    m.close(&reader).await;
    let mut cut = how(rw, Create::IfMissing(mode(0o600)));
    cut.truncate = true;
    let three = open("a", &cut, &m.cx).await.unwrap();
    assert_eq!(three.node.attrs.attr.size_bytes, 0);
    m.close(&three).await;

    let user =
        RequestContext::new(Arc::new(Cred { uid: 4711, gid: 4711, groups: [815].into_iter().collect() }));
    assert_eq!(errno(open("a", &how(OpenAccess::READ, Create::No), &user).await), libc::EACCES);
    let mine = open("mine", &how(rw, Create::Exclusive(mode(0o600))), &user).await.unwrap();
    assert_eq!((mine.node.attrs.attr.uid, mine.node.attrs.attr.gid), (4711, 4711));
    m.close(&mine).await;
    let all = Access::READ | Access::MODIFY | Access::EXECUTE;
    assert_eq!(m.vfs.access(&user, &one.node.fh, all).await.unwrap(), Access::empty());
    assert_eq!(m.vfs.access(&user, &mine.node.fh, all).await.unwrap() & Access::READ, Access::READ);
    // An open for execution needs the execute permission and no read permission.
    let exec = OpenHow {
        access: OpenAccess::READ,
        create: Create::No,
        truncate: false,
        execute: true,
        first_bytes: 0,
        known: None,
    };
    assert_eq!(errno(open("mine", &exec, &user).await), libc::EACCES);
    m.vfs.setattr(&m.cx, File { fh: &mine.node.fh, open: None }, &mode(0o711)).await.unwrap();
    let o = open("mine", &exec, &user).await.unwrap();
    m.close(&o).await;
    m.end().await;
}

/// Many concurrent opens and closes of one file succeed in any order.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs HITHER_TEST_SERVER"]
async fn opens_race_with_closes() {
    let m = Arc::new(Mount::new().await);
    m.close(&m.create("file").await).await;
    let mut tasks = tokio::task::JoinSet::new();
    for t in 0..16u64 {
        let m = m.clone();
        tasks.spawn(async move {
            let n = name("file");
            for i in 0..40u64 {
                let access = [OpenAccess::READ, OpenAccess::WRITE, OpenAccess::READ | OpenAccess::WRITE];
                let access = access[((t + i) % 3) as usize];
                let h = how(access, if i % 2 == 0 { Create::No } else { Create::IfMissing(mode(0o600)) });
                let o = m.vfs.open(&m.cx, PathRef::name(&m.dir, &n), &h).await.unwrap();
                if access.contains(OpenAccess::WRITE) {
                    m.write(&o, t * 100, vec![t as u8; 100]).await;
                }
                if access.contains(OpenAccess::READ) {
                    m.read(&o, t * 100, 100).await;
                }
                m.close(&o).await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    Arc::into_inner(m).unwrap().end().await;
}

/// Renames, and the life of files that were removed or replaced while open.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs HITHER_TEST_SERVER"]
async fn rename_and_unlink_open_files() {
    let m = Mount::new().await;
    let (v, cx, dir) = (&m.vfs, &m.cx, &m.dir);
    let a = m.create("a").await;
    m.write(&a, 0, "kept").await;
    v.unlink(cx, dir, &name("a"), Some(&a.node.fh)).await.unwrap();
    assert_eq!(
        errno(v.open(cx, PathRef::name(dir, &name("a")), &how(OpenAccess::READ, Create::No)).await),
        libc::ENOENT
    );
    assert_eq!(m.read(&a, 0, 10).await, "kept");
    m.write(&a, 4, "!").await;
    let file = File { fh: &a.node.fh, open: Some(a.open) };
    // The NFSv3 client counts the link of the hidden name, as the Linux client does.
    assert_eq!(v.getattr(cx, file).await.unwrap().attr.nlink, u32::from(!is_v4(&m)));
    m.close(&a).await;

    let (b, c) = (m.create("b").await, m.create("c").await);
    m.write(&b, 0, "b").await;
    m.write(&c, 0, "c").await;
    v.rename(cx, (dir, &name("b")), (dir, &name("c")), Some(&c.node.fh), RenameFlags::empty()).await.unwrap();
    assert_eq!(m.read(&c, 0, 10).await, "c");
    assert_eq!(m.read(&b, 0, 10).await, "b");
    let t = v.walk(cx, PathRef::name(dir, &name("c")), WalkRequest::default()).await.unwrap();
    assert_eq!(t.steps[0].fh, b.node.fh);
    assert_eq!(t.steps[0].attrs.attr.nlink, 1);
    m.close(&b).await;
    m.close(&c).await;
    let left: Vec<_> = m.names(dir, false).await.into_iter().map(|e| e.name).collect();
    assert_eq!(left, [name("c")], "nothing stays behind");
    let noreplace = v.rename(cx, (dir, &name("c")), (dir, &name("d")), None, RenameFlags::EXCHANGE).await;
    assert_eq!(errno(noreplace), libc::EINVAL);
    v.mkdir(cx, dir, &name("sub"), &mode(0o755)).await.unwrap();
    assert_eq!(errno(v.rmdir(cx, dir, &name("none")).await), libc::ENOENT);
    m.end().await;
}

/// Locks exclude each other between owners and mounts, block, split, and can be tested.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs HITHER_TEST_SERVER"]
async fn locks() {
    let m = Mount::new().await;
    if !is_v4(&m) {
        return m.end().await;
    }
    let o = m.create("file").await;
    let other = hither_nfs::connect(&options(), env()).await.unwrap().vfs;
    let theirs = other
        .open(&m.cx, PathRef::fh(&o.node.fh), &how(OpenAccess::READ | OpenAccess::WRITE, Create::No))
        .await
        .unwrap();
    let file = File { fh: &o.node.fh, open: Some(o.open) };
    let their_file = File { fh: &o.node.fh, open: Some(theirs.open) };
    let me = LockOwner { id: 1, flock: false };
    let them = LockOwner { id: 1, flock: false };
    let range = |a, b| FileRange { start_bytes: a, end_bytes: b };
    let (r, w, no) = (LockKind::Read, LockKind::Write, LockWait::No);
    m.vfs.lock(&m.cx, file, me, w, range(0, 100), no).await.unwrap();
    assert_eq!(errno(other.lock(&m.cx, their_file, them, r, range(50, 60), no).await), libc::EAGAIN);
    other.lock(&m.cx, their_file, them, w, range(100, 200), no).await.unwrap();
    let found = other.test_lock(&m.cx, their_file, them, r, range(0, u64::MAX)).await.unwrap().unwrap();
    assert_eq!((found.kind, found.range), (w, range(0, 100)));
    m.vfs.unlock(&m.cx, file, me, range(40, 60)).await.unwrap();
    other.lock(&m.cx, their_file, them, r, range(40, 60), no).await.unwrap();
    // A waiting owner gets the lock when it is free.
    let waiting = tokio::spawn({
        let (other, cx, fh) = (other.clone(), m.cx.clone(), o.node.fh.clone());
        async move {
            let file = File { fh: &fh, open: Some(theirs.open) };
            other.lock(&cx, file, them, w, range(0, u64::MAX), LockWait::Yes).await
        }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    m.vfs.unlock(&m.cx, file, me, range(0, u64::MAX)).await.unwrap();
    waiting.await.unwrap().unwrap();
    // An interrupted wait leaves no lock behind.
    let mut cx = m.cx.clone();
    cx.cancel = Default::default();
    let cancel = cx.cancel.clone();
    let waiting = m.vfs.lock(&cx, file, me, w, range(0, 10), LockWait::Yes);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        cancel.cancel();
    });
    assert_eq!(errno(waiting.await), libc::EINTR);
    other.unlock(&m.cx, their_file, them, range(0, u64::MAX)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    other.lock(&m.cx, their_file, them, w, range(0, 10), no).await.unwrap();
    let flock = LockOwner { id: 9, flock: true };
    assert_eq!(errno(m.vfs.lock(&m.cx, file, flock, w, range(0, u64::MAX), no).await), libc::EAGAIN);
    other.close(&m.cx, &theirs.node.fh, theirs.open).await.unwrap();
    m.vfs.lock(&m.cx, file, flock, w, range(0, u64::MAX), no).await.unwrap();
    let reader =
        m.vfs.open(&m.cx, PathRef::fh(&o.node.fh), &how(OpenAccess::READ, Create::No)).await.unwrap();
    let read_only = File { fh: &o.node.fh, open: Some(reader.open) };
    assert_eq!(errno(m.vfs.lock(&m.cx, read_only, me, w, range(0, 1), no).await), libc::EBADF);
    m.close(&reader).await;
    m.close(&o).await;
    other.shutdown(&m.cx).await.unwrap();
    m.end().await;
}

/// The operations of NFSv4.2. A server that lacks one reports that. The results of the others are
/// right.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs HITHER_TEST_SERVER"]
async fn sparse_copy_xattr_acl() {
    let m = Mount::new().await;
    let (v, cx) = (&m.vfs, &m.cx);
    let o = m.create("file").await;
    let file = File { fh: &o.node.fh, open: Some(o.open) };
    let unsupported = |e: i32| matches!(e, libc::EOPNOTSUPP | libc::ENOSYS);
    m.write(&o, 1 << 20, vec![7; 4096]).await;
    v.commit(cx, file).await.unwrap();
    match v.seek(cx, file, 0, Seek::Data).await {
        Ok(at) => {
            assert!(at == 1 << 20 || at == 0, "{at}");
            assert_eq!(v.seek(cx, file, 1 << 20, Seek::Hole).await.unwrap(), (1 << 20) + 4096);
            assert_eq!(errno(v.seek(cx, file, 1 << 21, Seek::Data).await), libc::ENXIO);
        }
        Err(e) => assert!(unsupported(e.errno), "{e}"),
    }
    let range = FileRange { start_bytes: 0, end_bytes: 2 << 20 };
    match v.allocate(cx, file, range).await {
        Ok(()) => assert_eq!(v.getattr(cx, file).await.unwrap().attr.size_bytes, 2 << 20),
        Err(e) => assert!(unsupported(e.errno), "{e}"),
    }
    let hole = FileRange { start_bytes: 1 << 20, end_bytes: (1 << 20) + 4096 };
    match v.deallocate(cx, file, hole).await {
        Ok(()) => assert_eq!(m.read(&o, 1 << 20, 4096).await, vec![0; 4096]),
        Err(e) => assert!(unsupported(e.errno), "{e}"),
    }
    let copy = m.create("copy").await;
    m.write(&o, 0, "0123456789").await;
    match v.copy(cx, file, 2, File { fh: &copy.node.fh, open: Some(copy.open) }, 1, 5).await {
        Ok(n) => assert_eq!(m.read(&copy, 0, 10).await, [b"\0", &b"23456"[..n as usize]].concat()),
        Err(e) => assert!(unsupported(e.errno), "{e}"),
    }
    let (key, value) = (b"user.hither".as_slice(), Bytes::from("value"));
    match v.setxattr(cx, &o.node.fh, key, &value, XattrMode::Create).await {
        Ok(()) => {
            assert_eq!(v.getxattr(cx, &o.node.fh, key).await.unwrap(), value);
            assert_eq!(errno(v.setxattr(cx, &o.node.fh, key, &value, XattrMode::Create).await), libc::EEXIST);
            assert!(v.listxattr(cx, &o.node.fh).await.unwrap().contains(&Bytes::from_static(b"user.hither")));
            v.removexattr(cx, &o.node.fh, key).await.unwrap();
            assert_eq!(errno(v.getxattr(cx, &o.node.fh, key).await), libc::ENODATA);
            assert_eq!(errno(v.removexattr(cx, &o.node.fh, key).await), libc::ENODATA);
        }
        Err(e) => assert!(unsupported(e.errno), "{e}"),
    }
    assert!(unsupported(errno(v.getxattr(cx, &o.node.fh, b"security.selinux").await)));
    match v.getxattr(cx, &o.node.fh, b"system.nfs4_acl").await {
        Ok(acl) => v.setxattr(cx, &o.node.fh, b"system.nfs4_acl", &acl, XattrMode::Either).await.unwrap(),
        Err(e) => assert!(unsupported(e.errno), "{e}"),
    }
    m.close(&o).await;
    m.close(&copy).await;
    m.end().await;
}

/// The server is killed and started again during writes, with a lock held. No data acknowledged by
/// COMMIT is lost, the client still holds the lock, and calls go on.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs HITHER_TEST_SERVER and HITHER_TEST_RESTART"]
async fn server_restart() {
    let Ok(restart) = std::env::var("HITHER_TEST_RESTART") else { panic!("HITHER_TEST_RESTART is not set") };
    let m = Mount::new().await;
    let o = m.create("file").await;
    let file = File { fh: &o.node.fh, open: Some(o.open) };
    let (me, all) = (LockOwner { id: 5, flock: false }, FileRange { start_bytes: 0, end_bytes: u64::MAX });
    if is_v4(&m) {
        m.vfs.lock(&m.cx, file, me, LockKind::Write, all, LockWait::No).await.unwrap();
    }
    m.write(&o, 0, vec![9; 100_000]).await;
    let restarting = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let done = tokio::process::Command::new("sh").arg("-c").arg(restart).status().await.unwrap();
        assert!(done.success());
    });
    let began = Instant::now();
    let mut block = 0u64;
    while !restarting.is_finished() || block < 200 {
        m.write(&o, 100_000 + block * 1000, vec![block as u8; 1000]).await;
        if block % 50 == 49 {
            m.vfs.commit(&m.cx, file).await.unwrap();
        }
        let n = name(&format!("n{block}"));
        if block.is_multiple_of(10) {
            m.vfs.mkdir(&m.cx, &m.dir, &n, &mode(0o755)).await.map(drop).or_else(exists).unwrap();
        }
        block += 1;
    }
    restarting.await.unwrap();
    m.vfs.commit(&m.cx, file).await.unwrap();
    eprintln!("{block} blocks in {:?}", began.elapsed());
    // Another mount sees the data and the lock.
    let other = hither_nfs::connect(&options(), env()).await.unwrap().vfs;
    let theirs = other
        .open(&m.cx, PathRef::fh(&o.node.fh), &how(OpenAccess::READ | OpenAccess::WRITE, Create::No))
        .await
        .unwrap();
    let their_file = File { fh: &o.node.fh, open: Some(theirs.open) };
    assert_eq!(other.read(&m.cx, their_file, 0, 100_000).await.unwrap().data.into_bytes(), vec![9; 100_000]);
    for i in 0..block {
        let got = other.read(&m.cx, their_file, 100_000 + i * 1000, 1000).await.unwrap().data.into_bytes();
        assert_eq!(got, vec![i as u8; 1000], "block {i}");
    }
    if is_v4(&m) {
        let taken = other.lock(&m.cx, their_file, me, LockKind::Read, all, LockWait::No).await;
        assert_eq!(errno(taken), libc::EAGAIN, "the lock was reclaimed");
        m.vfs.unlock(&m.cx, file, me, all).await.unwrap();
        other.lock(&m.cx, their_file, me, LockKind::Read, all, LockWait::No).await.unwrap();
    }
    other.close(&m.cx, &theirs.node.fh, theirs.open).await.unwrap();
    other.shutdown(&m.cx).await.unwrap();
    m.close(&o).await;
    m.end().await;
}

/// Accepts EEXIST for a repeated MKDIR that was executed before the restart.
fn exists(e: Error) -> Result<()> {
    if e.errno == libc::EEXIST { Ok(()) } else { Err(e) }
}

/// Messages for mounts of missing exports and servers.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs HITHER_TEST_SERVER"]
async fn refusals() {
    let mut o = options();
    o.path = "/no/such/export".into();
    let e = hither_nfs::connect(&o, env()).await.unwrap_err();
    eprintln!("{e}");
    assert!(e.to_string().contains("no such export"), "{e}");
    let mut o = options();
    o.port = Some(1);
    let e = hither_nfs::connect(&o, env()).await.unwrap_err();
    eprintln!("{e}");
    assert!(e.to_string().contains("refuses connections"), "{e}");
}
