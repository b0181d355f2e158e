//! The whole `Vfs` interface against a real NFSv3 server, without FUSE.
//!
//! The tests need a server that exports a directory read-write without root squash. Without a
//! server they do nothing:
//! `HITHER_TEST_SERVER=host:/path cargo test -p hither-nfs --test ganesha_v3`. The crash test needs
//! `HITHER_TEST_CRASH='command'`, which must kill the server without warning and let it be
//! restarted. All files are in a fresh directory of the export.

#![allow(clippy::unwrap_used)] // a failure is a failed test

use bytes::Bytes;
use hither_nfs::v3::connect_v3;
use hither_nfs::{AttrCache, LookupCache, MountError, Options, Recovery};
use hither_rpc::Stats;
use hither_vfs::*;
use std::collections::BTreeSet;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn options() -> Option<Options> {
    let server = std::env::var("HITHER_TEST_SERVER").ok()?;
    let (host, path) = server.split_once(":/").expect("HITHER_TEST_SERVER is host:/path");
    Some(Options {
        server: host.into(),
        addrs: (host, 0).to_socket_addrs().expect("the host resolves").collect(),
        path: format!("/{path}"),
        version: None,
        port: None,
        mount_port: None,
        recovery: Recovery::Hard,
        timeo: Duration::from_secs(5),
        retrans: 2,
        nconnect: 2,
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
    })
}

fn env() -> Env {
    let next = AtomicU64::new(std::process::id().into());
    // The tests need distinct numbers and no real randomness.
    let random = move || next.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed).rotate_left(17);
    Env { random: Arc::new(random), wall: Arc::new(|| std::time::UNIX_EPOCH) }
}

struct Lab {
    fs: Arc<dyn Vfs>,
    cx: RequestContext,
    dir: Fh,
    name: Name,
    stats: Arc<Stats>,
}

fn name(s: &str) -> Name {
    Name::new(s.to_owned()).unwrap()
}

fn user(uid: u32) -> RequestContext {
    RequestContext::new(Arc::new(Cred { uid, gid: uid, groups: Default::default() }))
}

fn how(access: OpenAccess, create: Create) -> OpenHow {
    OpenHow { access, create, truncate: false, execute: false, first_bytes: 0, known: None }
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn errno<T: std::fmt::Debug>(r: Result<T>) -> i32 {
    r.expect_err("this must fail").errno
}

/// A fresh directory, or `None` without a server.
async fn lab(test: &str) -> Option<Lab> {
    lab_with(test, options()?).await
}

async fn lab_with(test: &str, opts: Options) -> Option<Lab> {
    let stats = Arc::new(Stats::new());
    let fs = connect_v3(&opts, &env(), stats.clone()).await.expect("the server can be mounted").vfs;
    let cx = RequestContext::new(Arc::new(Cred::root()));
    let root = fs.root(&cx).await.unwrap();
    let dir = name(&format!("v3-{test}-{}", std::process::id()));
    let made = fs.mkdir(&cx, &root.fh, &dir, &mode(0o777)).await.unwrap();
    // The frontend applies the process's umask, but a server may have its own.
    fs.setattr(&cx, File { fh: &made.node.fh, open: None }, &mode(0o777)).await.unwrap();
    Some(Lab { fs, cx, dir: made.node.fh, name: dir, stats })
}

macro_rules! lab {
    ($test:literal) => {
        match lab($test).await {
            Some(lab) => lab,
            None => return eprintln!("skipped: HITHER_TEST_SERVER is not set"),
        }
    };
}

impl Lab {
    async fn create(&self, file: &str) -> Opened {
        let how = how(OpenAccess::all(), Create::IfMissing(mode(0o644)));
        self.fs.open(&self.cx, PathRef::name(&self.dir, &name(file)), &how).await.unwrap()
    }

    async fn write(&self, o: &Opened, at: u64, data: impl Into<Bytes>) -> Wrote {
        let data: Bytes = data.into();
        self.fs.write(&self.cx, file(o), at, data.into(), Stability::Unstable).await.unwrap()
    }

    async fn read(&self, o: &Opened, at: u64, len: u32) -> (Vec<u8>, bool) {
        let read = self.fs.read(&self.cx, file(o), at, len).await.unwrap();
        (read.data.into_bytes().to_vec(), read.eof)
    }

    async fn close(&self, o: &Opened) {
        self.fs.close(&self.cx, &o.node.fh, o.open).await.unwrap();
    }

    async fn find(&self, file: &str) -> Option<Node> {
        let n = name(file);
        let mut trail =
            self.fs.walk(&self.cx, PathRef::name(&self.dir, &n), WalkRequest::default()).await.unwrap();
        trail.steps.pop()
    }

    async fn names(&self, nodes: bool) -> BTreeSet<String> {
        let (mut cookie, mut verifier, mut all) = (0, [0; 8], BTreeSet::new());
        loop {
            let page = self.fs.readdir(&self.cx, &self.dir, cookie, verifier, 32 << 10, nodes).await.unwrap();
            for e in &page.entries {
                let n = String::from_utf8_lossy(e.name.as_bytes()).into_owned();
                assert!(all.insert(n.clone()), "{n} is listed twice");
                if nodes {
                    assert!(e.node.is_some(), "{n} comes without a handle");
                }
            }
            if page.eof {
                return all;
            }
            cookie = page.entries.last().expect("a page that is not the last has entries").cookie;
            verifier = page.verifier;
        }
    }

    /// Number of NFS calls so far.
    fn calls(&self) -> u64 {
        self.stats.snapshot().ops.iter().map(|op| op.ops).sum()
    }

    async fn done(self) {
        for n in self.names(false).await {
            let n = name(&n);
            if self.fs.unlink(&self.cx, &self.dir, &n, None).await.is_err() {
                self.fs.rmdir(&self.cx, &self.dir, &n).await.unwrap();
            }
        }
        let root = self.fs.root(&self.cx).await.unwrap();
        self.fs.rmdir(&self.cx, &root.fh, &self.name).await.unwrap();
        self.fs.shutdown(&self.cx).await.unwrap();
    }
}

fn file(o: &Opened) -> File<'_> {
    File { fh: &o.node.fh, open: Some(o.open) }
}

/// A file is created, written, read, truncated, closed and opened again.
#[tokio::test(flavor = "multi_thread")]
async fn files_are_written_and_truncated() {
    let lab = lab!("io");
    let o = lab.create("a").await;
    assert!(o.created);
    assert_eq!(o.node.attrs.attr.mode, 0o644);
    assert!(o.dir.is_some());
    // More than wsize and rsize, at an odd offset, so that the client splits the data.
    let data: Vec<u8> = (0..3_500_000_u32).map(|i| (i * 7 % 251) as u8).collect();
    let wrote = lab.write(&o, 4097, data.clone()).await;
    assert_eq!(wrote.bytes, data.len() as u64);
    let (got, eof) = lab.read(&o, 4097, 4_000_000).await;
    assert!(got == data && eof);
    let (hole, eof) = lab.read(&o, 0, 4097).await;
    assert!(hole == vec![0; 4097] && !eof);
    lab.fs.commit(&lab.cx, file(&o)).await.unwrap();
    assert_eq!(lab.read(&o, 10_000_000, 10).await, (vec![], true));
    let cut = SetAttr { size_bytes: Some(5000), ..SetAttr::default() };
    assert_eq!(lab.fs.setattr(&lab.cx, file(&o), &cut).await.unwrap().attr.size_bytes, 5000);
    let (got, eof) = lab.read(&o, 4097, 4096).await;
    assert!(got == data[..903] && eof);
    let stable = Data::from(Bytes::from_static(b"stable"));
    lab.fs.write(&lab.cx, file(&o), 0, stable, Stability::Stable).await.unwrap();
    lab.close(&o).await;
    assert_eq!(errno(lab.fs.close(&lab.cx, &o.node.fh, o.open).await), libc::EBADF);
    let again = lab.create("a").await;
    assert!(!again.created);
    assert_eq!(lab.read(&again, 0, 6).await.0, b"stable");
    lab.close(&again).await;
    lab.done().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opens_obey_existence_and_permission() {
    let lab = lab!("open");
    let (fs, cx) = (&lab.fs, &lab.cx);
    let n = name("x");
    let at = PathRef::name(&lab.dir, &n);
    let read = |create| how(OpenAccess::READ, create);
    assert_eq!(errno(fs.open(cx, at, &read(Create::No)).await), libc::ENOENT);
    let o = fs.open(cx, at, &read(Create::Exclusive(mode(0o600)))).await.unwrap();
    assert!(o.created);
    let a = &o.node.attrs.attr;
    assert_eq!((a.mode, a.size_bytes, a.kind), (0o600, 0, FileKind::Regular));
    assert!(a.mtime.secs > 1_500_000_000, "the verifier is no time: {:?}", a.mtime);
    assert_eq!(errno(fs.open(cx, at, &read(Create::Exclusive(mode(0o600)))).await), libc::EEXIST);
    let other = user(1234);
    assert_eq!(errno(fs.open(&other, at, &read(Create::No)).await), libc::EACCES);
    assert_eq!(fs.access(&other, &o.node.fh, Access::READ | Access::MODIFY).await.unwrap(), Access::empty());
    lab.close(&o).await;
    // A file may be created for writing with a read-only mode. The creator can write through this
    // open.
    let n = name("readonly");
    let write = how(OpenAccess::all(), Create::IfMissing(mode(0o444)));
    let o = fs.open(&other, PathRef::name(&lab.dir, &n), &write).await.unwrap();
    assert_eq!(o.node.attrs.attr.uid, 1234);
    fs.write(&other, file(&o), 0, Bytes::from_static(b"mine").into(), Stability::Unstable).await.unwrap();
    fs.close(&other, &o.node.fh, o.open).await.unwrap();
    assert_eq!(errno(fs.open(&other, PathRef::name(&lab.dir, &n), &write).await), libc::EACCES);
    // Directories and symbolic links cannot be opened.
    let d = fs.mkdir(cx, &lab.dir, &name("d"), &mode(0o755)).await.unwrap();
    assert_eq!(errno(fs.open(cx, PathRef::fh(&d.node.fh), &read(Create::No)).await), libc::EISDIR);
    let l = fs.symlink(cx, &lab.dir, &name("l"), &Bytes::from_static(b"x"), &mode(0o777)).await.unwrap();
    assert_eq!(errno(fs.open(cx, PathRef::fh(&l.node.fh), &read(Create::No)).await), libc::ELOOP);
    // Open with O_TRUNC.
    let trunc = OpenHow { truncate: true, ..how(OpenAccess::WRITE, Create::No) };
    let n = name("readonly");
    let o = fs.open(cx, PathRef::name(&lab.dir, &n), &trunc).await.unwrap();
    assert_eq!(o.node.attrs.attr.size_bytes, 0);
    lab.close(&o).await;
    lab.done().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_made_moved_and_removed() {
    let lab = lab!("names");
    let (fs, cx, dir) = (&lab.fs, &lab.cx, &lab.dir);
    let d = fs.mkdir(cx, dir, &name("d"), &mode(0o750)).await.unwrap();
    assert_eq!((d.node.attrs.attr.kind, d.node.attrs.attr.mode), (FileKind::Directory, 0o750));
    assert_eq!(errno(fs.mkdir(cx, dir, &name("d"), &mode(0o750)).await), libc::EEXIST);
    let f = fs.mknod(cx, dir, &name("f"), &Special::Regular, &mode(0o640)).await.unwrap();
    let p = fs.mknod(cx, dir, &name("p"), &Special::Fifo, &mode(0o600)).await.unwrap();
    assert_eq!(p.node.attrs.attr.kind, FileKind::Fifo);
    let s = fs.mknod(cx, dir, &name("s"), &Special::Socket, &mode(0o600)).await.unwrap();
    assert_eq!(s.node.attrs.attr.kind, FileKind::Socket);
    let c = fs.mknod(cx, dir, &name("c"), &Special::CharDevice(1, 3), &mode(0o600)).await.unwrap();
    assert_eq!((c.node.attrs.attr.kind, c.node.attrs.attr.rdev), (FileKind::CharDevice, (1, 3)));
    let target = Bytes::from_static(b"some/where \xff");
    let l = fs.symlink(cx, dir, &name("l"), &target, &mode(0o777)).await.unwrap();
    assert_eq!(fs.readlink(cx, &l.node.fh).await.unwrap(), target);
    let h = fs.link(cx, &f.node.fh, &d.node.fh, &name("hard")).await.unwrap();
    assert_eq!((h.node.attrs.attr.nlink, h.node.attrs.attr.fileid), (2, f.node.attrs.attr.fileid));
    assert_eq!(errno(fs.rmdir(cx, dir, &name("d")).await), libc::ENOTEMPTY);
    assert_eq!(errno(fs.unlink(cx, dir, &name("gone"), None).await), libc::ENOENT);
    let (f_name, g_name) = (name("f"), name("g"));
    fs.rename(cx, (dir, &f_name), (&d.node.fh, &g_name), None, RenameFlags::empty()).await.unwrap();
    assert!(lab.find("f").await.is_none());
    let flags = RenameFlags::NOREPLACE;
    assert_eq!(errno(fs.rename(cx, (dir, &f_name), (dir, &g_name), None, flags).await), libc::EINVAL);
    // A name is up to 255 arbitrary bytes.
    let odd = Name::new(vec![0xfe; 255]).unwrap();
    fs.mknod(cx, &d.node.fh, &odd, &Special::Regular, &mode(0o600)).await.unwrap();
    for n in [&odd, &g_name, &name("hard")] {
        let change = fs.unlink(cx, &d.node.fh, n, None).await.unwrap();
        assert_ne!(change.after, 0);
    }
    fs.rmdir(cx, dir, &name("d")).await.unwrap();
    lab.done().await;
}

/// A walk reports its last step and the reason of its end.
#[tokio::test(flavor = "multi_thread")]
async fn walks_report_stop_and_reason() {
    let lab = lab!("walk");
    let (fs, cx, dir) = (&lab.fs, &lab.cx, &lab.dir);
    let mut at = dir.clone();
    for n in ["a", "b", "c"] {
        at = fs.mkdir(cx, &at, &name(n), &mode(0o755)).await.unwrap().node.fh;
    }
    fs.mknod(cx, &at, &name("f"), &Special::Regular, &mode(0o644)).await.unwrap();
    fs.symlink(cx, &at, &name("l"), &Bytes::from_static(b"f"), &mode(0o777)).await.unwrap();
    let walk = async |path: &str| {
        let path: Vec<Name> = path.split('/').map(name).collect();
        let trail = fs.walk(cx, PathRef { base: dir, path: &path }, WalkRequest::default()).await.unwrap();
        (trail.steps.len(), format!("{:?}", trail.stop))
    };
    assert_eq!(walk("a/b/c/f").await, (4, "Complete".into()));
    assert_eq!(walk("a/b/c/f/g").await, (4, "NotDirectory".into()));
    assert_eq!(walk("a/b/c/l/g").await, (4, "Symlink".into()));
    let (steps, stop) = walk("a/b/x/f").await;
    assert!(steps == 2 && stop.starts_with("Missing(Until"), "{stop}");
    let path: Vec<Name> = "a/b/c/new".split('/').map(name).collect();
    let create = how(OpenAccess::WRITE, Create::IfMissing(mode(0o644)));
    let o = fs.open(cx, PathRef { base: dir, path: &path }, &create).await.unwrap();
    lab.close(&o).await;
    for n in ["f", "l", "new"] {
        fs.unlink(cx, &at, &name(n), None).await.unwrap();
    }
    for path in [&["a", "b"][..], &["a"], &[]] {
        let path: Vec<Name> = path.iter().map(|n| name(n)).collect();
        let trail = fs.walk(cx, PathRef { base: dir, path: &path }, WalkRequest::default()).await.unwrap();
        let parent = trail.steps.last().map_or(dir, |n| &n.fh);
        fs.rmdir(cx, parent, &name(["a", "b", "c"][path.len()])).await.unwrap();
    }
    lab.done().await;
}

/// Requested extras arrive with walks and opens, belong together, and save calls.
#[tokio::test(flavor = "multi_thread")]
async fn walks_and_opens_fetch_extras() {
    let lab = lab!("wish");
    let (fs, cx, dir) = (&lab.fs, &lab.cx, &lab.dir);
    let d = fs.mkdir(cx, dir, &name("d"), &mode(0o755)).await.unwrap();
    check_dir_attrs(&lab, dir, &d.dir).await;
    for i in 0..5 {
        let made = how(OpenAccess::all(), Create::IfMissing(mode(0o644)));
        let n = name(&format!("f{i}"));
        let o = fs.open(cx, PathRef::name(&d.node.fh, &n), &made).await.unwrap();
        check_dir_attrs(&lab, &d.node.fh, o.dir.as_ref().unwrap()).await;
        lab.write(&o, 0, format!("content {i}")).await;
        lab.close(&o).await;
    }
    let want = WalkRequest {
        listing_bytes: 64 << 10,
        read_bytes: 4096,
        access: Access::READ | Access::MODIFY,
        target: false,
    };
    let path = [name("d"), name("f3")];
    let at = PathRef { base: dir, path: &path };
    let calls = lab.calls();
    let trail = fs.walk(cx, at, want).await.unwrap();
    assert!(matches!(trail.stop, Stop::Complete), "{:?}", trail.stop);
    assert_eq!(lab.calls() - calls, 4, "LOOKUP, READDIRPLUS for the last name, ACCESS, READ");
    assert_eq!(trail.along.access, Some(want.access));
    let listing = trail.along.listing.unwrap();
    assert!(listing.eof && listing.entries.len() == 5);
    let first = trail.along.first.unwrap();
    assert_eq!((first.data.into_bytes(), first.eof), (Bytes::from_static(b"content 3"), true));
    assert_eq!(trail.steps[1].attrs.attr.size_bytes, 9);
    // A separate LOOKUP finds the same node.
    let alone = fs.walk(cx, at, WalkRequest::default()).await.unwrap();
    assert_eq!(alone.steps[1].fh, trail.steps[1].fh);
    assert_eq!(alone.steps[1].attrs.attr.fileid, trail.steps[1].attrs.attr.fileid);
    assert_eq!(alone.steps[1].attrs.attr.change, trail.steps[1].attrs.attr.change);
    // A name that is missing in a complete listing is absent and needs no request.
    let path = [name("d"), name("no")];
    let calls = lab.calls();
    let trail = fs.walk(cx, PathRef { base: dir, path: &path }, want).await.unwrap();
    assert!(matches!(trail.stop, Stop::Missing(_)) && trail.along.listing.is_some());
    assert_eq!(lab.calls() - calls, 2);
    // Opens the file with its first bytes.
    let open = OpenHow { first_bytes: 7, ..how(OpenAccess::READ, Create::No) };
    let calls = lab.calls();
    let o = fs.open(cx, PathRef::fh(&alone.steps[1].fh), &open).await.unwrap();
    assert_eq!(lab.calls() - calls, 2, "ACCESS and READ");
    let first = o.first.as_ref().unwrap();
    assert_eq!((first.data.clone().into_bytes(), first.eof), (Bytes::from_static(b"content"), false));
    lab.close(&o).await;
    check_many(&lab, &d.node.fh).await;
    for i in 0..5 {
        let change = fs.unlink(cx, &d.node.fh, &name(&format!("f{i}")), None).await.unwrap();
        check_dir_attrs(&lab, &d.node.fh, &change).await;
    }
    check_dir_attrs(&lab, dir, &fs.rmdir(cx, dir, &name("d")).await.unwrap()).await;
    lab.done().await;
}

/// The attributes returned with a change are those of the directory.
async fn check_dir_attrs(lab: &Lab, dir: &Fh, change: &ChangeInfo) {
    let now = lab.fs.getattr(&lab.cx, File { fh: dir, open: None }).await.unwrap().attr;
    let came = &change.attrs.as_ref().expect("the server sends attributes of the directory").attr;
    assert_eq!((came.change, change.after, came.nlink), (now.change, now.change, now.nlink));
}

/// Compares calls about many objects with calls about single ones.
async fn check_many(lab: &Lab, dir: &Fh) {
    let (fs, cx) = (&lab.fs, &lab.cx);
    let calls = lab.calls();
    let dirs = [lab.dir.clone(), dir.clone()];
    let listings = fs.list_many(cx, &dirs, 64 << 10).await;
    assert_eq!(lab.calls() - calls, 2);
    let (attrs, page) = listings[1].as_ref().unwrap();
    let now = fs.getattr(cx, File { fh: dir, open: None }).await.unwrap().attr;
    assert_eq!((attrs.attr.change, attrs.attr.fileid), (now.change, now.fileid), "no client changed it");
    let files: Vec<Fh> = page.entries.iter().map(|e| e.node.as_ref().unwrap().fh.clone()).collect();
    let calls = lab.calls();
    let attrs = fs.getattr_many(cx, &files).await;
    assert_eq!(lab.calls() - calls, 5);
    let calls = lab.calls();
    let starts = fs.read_many(cx, &files, None, 4096).await.files;
    assert_eq!(lab.calls() - calls, 5, "attributes come with the bytes");
    for ((entry, attrs), start) in page.entries.iter().zip(attrs).zip(starts) {
        let number = &entry.name.as_bytes()[1..];
        let start = start.unwrap();
        assert_eq!(start.attrs.attr.change, attrs.unwrap().attr.change);
        assert_eq!(start.read.data.into_bytes(), [b"content ", number].concat());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_are_set() {
    let lab = lab!("attr");
    let (fs, cx) = (&lab.fs, &lab.cx);
    let o = lab.create("a").await;
    let t = |secs| SetTime::To(Time { secs, nanos: 123_456_789 });
    let set = SetAttr {
        mode: Some(0o4751),
        unmasked: None,
        uid: Some(1234),
        gid: Some(4321),
        size_bytes: None,
        atime: Some(t(1_000_000_000)),
        mtime: Some(t(1_100_000_000)),
    };
    let a = fs.setattr(cx, file(&o), &set).await.unwrap().attr;
    assert_eq!((a.uid, a.gid), (1234, 4321));
    assert_eq!(a.mode & 0o777, 0o751);
    assert_eq!((a.atime.secs, a.mtime.secs, a.mtime.nanos), (1_000_000_000, 1_100_000_000, 123_456_789));
    let before = fs.getattr(cx, file(&o)).await.unwrap();
    assert_eq!(before.attr.mtime, a.mtime);
    assert!(matches!(before.valid, Validity::Until(_)));
    assert_eq!(errno(fs.setattr(&user(7), file(&o), &mode(0o777)).await), libc::EPERM);
    // `change` is derived from ctime, which advances with the ticks of the server's clock.
    tokio::time::sleep(Duration::from_millis(50)).await;
    lab.write(&o, 0, &b"x"[..]).await;
    let after = fs.getattr(cx, file(&o)).await.unwrap().attr;
    assert!(after.change > before.attr.change, "a write changes `change`");
    let st = fs.statfs(cx, &o.node.fh).await.unwrap();
    assert!(st.total_bytes > st.avail_bytes && st.avail_bytes > 0 && st.name_max_bytes == 255);
    lab.close(&o).await;
    lab.done().await;
}

/// Both kinds of listing return every name once, over many pages.
#[tokio::test(flavor = "multi_thread")]
async fn large_directories_are_listed_completely() {
    let lab = lab!("list");
    let wanted: BTreeSet<String> = (0..3000).map(|i| format!("file-{i:05}")).collect();
    for n in &wanted {
        lab.fs.mknod(&lab.cx, &lab.dir, &name(n), &Special::Regular, &mode(0o600)).await.unwrap();
    }
    assert!(lab.names(true).await == wanted);
    assert!(lab.names(false).await == wanted);
    lab.done().await;
}

/// A file that is removed or replaced while open lives until its last close, under a hidden name.
#[tokio::test(flavor = "multi_thread")]
async fn removed_files_live_until_close() {
    let lab = lab!("silly");
    let (fs, cx, dir) = (&lab.fs, &lab.cx, &lab.dir);
    let a = lab.create("a").await;
    let second = lab.create("a").await;
    lab.write(&a, 0, &b"alive"[..]).await;
    fs.unlink(cx, dir, &name("a"), Some(&a.node.fh)).await.unwrap();
    assert!(lab.find("a").await.is_none());
    let hidden = lab.names(false).await;
    let hidden = hidden.first().unwrap();
    assert!(hidden.starts_with(".nfs"), "{hidden}");
    assert_eq!(errno(fs.unlink(cx, dir, &name(hidden), None).await), libc::EBUSY);
    lab.close(&a).await;
    assert_eq!(lab.read(&second, 0, 10).await.0, b"alive");
    lab.close(&second).await;
    assert!(lab.names(false).await.is_empty(), "nothing stays behind");

    let (from, to) = (name("new"), name("old"));
    let old = lab.create("old").await;
    lab.write(&old, 0, &b"old"[..]).await;
    let new = lab.create("new").await;
    lab.write(&new, 0, &b"new"[..]).await;
    lab.close(&new).await;
    let none = RenameFlags::empty();
    fs.rename(cx, (dir, &from), (dir, &to), Some(&old.node.fh), none).await.unwrap();
    assert_eq!(lab.read(&old, 0, 10).await.0, b"old");
    assert_eq!(lab.names(false).await.len(), 2);
    // A failed rename leaves the open target unchanged.
    lab.close(&old).await;
    let target = lab.create("target").await;
    let e = fs.rename(cx, (dir, &name("missing")), (dir, &name("target")), Some(&target.node.fh), none).await;
    assert_eq!(errno(e), libc::ENOENT);
    assert!(lab.find("target").await.is_some());
    // A rename between two names of one file changes nothing and hides no file.
    fs.link(cx, &target.node.fh, dir, &name("second")).await.unwrap();
    let (from, to) = (name("second"), name("target"));
    fs.rename(cx, (dir, &from), (dir, &to), Some(&target.node.fh), none).await.unwrap();
    assert!(lab.names(false).await.iter().all(|n| !n.starts_with(".nfs")));
    lab.close(&target).await;
    lab.done().await;
}

/// After a close on one client, an open on another client sees the written data.
#[tokio::test(flavor = "multi_thread")]
async fn close_to_open() {
    let lab = lab!("cto");
    let other = connect_v3(&options().unwrap(), &env(), Arc::new(Stats::new())).await.unwrap().vfs;
    for round in 0..20_u8 {
        let o = lab.create("shared").await;
        lab.write(&o, 0, vec![round; 10_000]).await;
        lab.close(&o).await;
        let n = name("shared");
        let seen = other
            .open(&lab.cx, PathRef::name(&lab.dir, &n), &how(OpenAccess::READ, Create::No))
            .await
            .unwrap();
        let read = other.read(&lab.cx, file(&seen), 0, 20_000).await.unwrap();
        assert!(read.data.into_bytes()[..] == [round; 10_000]);
        other.close(&lab.cx, &seen.node.fh, seen.open).await.unwrap();
    }
    // A file that another client removed is stale.
    let o = lab.create("gone").await;
    other.unlink(&lab.cx, &lab.dir, &name("gone"), None).await.unwrap();
    assert_eq!(errno(lab.fs.getattr(&lab.cx, file(&o)).await), libc::ESTALE);
    lab.write_after_removal(&o).await;
    other.shutdown(&lab.cx).await.unwrap();
    lab.done().await;
}

impl Lab {
    /// A write to a stale file fails with ESTALE only.
    async fn write_after_removal(&self, o: &Opened) {
        let data = Data::from(Bytes::from_static(b"x"));
        assert_eq!(errno(self.fs.write(&self.cx, file(o), 0, data, Stability::Unstable).await), libc::ESTALE);
        self.close(o).await;
    }
}

/// A walk enters a file system mounted below the export on the server (`nohide`, `crossmnt`).
/// Objects there have another fsid. `HITHER_TEST_CROSSING` names such a directory of the export.
#[tokio::test(flavor = "multi_thread")]
async fn server_side_mounts_are_crossed() {
    let Ok(below) = std::env::var("HITHER_TEST_CROSSING") else {
        return eprintln!("skipped: HITHER_TEST_CROSSING is not set");
    };
    let lab = lab!("cross");
    let (fs, cx) = (&lab.fs, &lab.cx);
    let root = fs.root(cx).await.unwrap();
    let (below, inside) = (name(&below), name(&format!("inside-{}", std::process::id())));
    let trail = fs.walk(cx, PathRef::name(&root.fh, &below), WalkRequest::default()).await.unwrap();
    let dir = trail.steps.last().expect("the directory is there");
    assert_ne!(dir.attrs.attr.fsid, root.attrs.attr.fsid);
    let made = fs.mkdir(cx, &dir.fh, &inside, &mode(0o755)).await.unwrap();
    assert_eq!(made.node.attrs.attr.fsid, dir.attrs.attr.fsid);
    let none = RenameFlags::empty();
    let e = fs.rename(cx, (&dir.fh, &inside), (&lab.dir, &inside), None, none).await;
    assert_eq!(errno(e), libc::EXDEV);
    fs.rmdir(cx, &dir.fh, &inside).await.unwrap();
    lab.done().await;
}

/// Operations that NFSv3 lacks fail with a clear error.
#[tokio::test(flavor = "multi_thread")]
async fn missing_features_are_reported() {
    let lab = lab!("lacks");
    let (fs, cx) = (&lab.fs, &lab.cx);
    let o = lab.create("a").await;
    let (f, range) = (file(&o), FileRange { start_bytes: 0, end_bytes: 10 });
    assert_eq!(errno(fs.seek(cx, f, 0, Seek::Data).await), libc::EOPNOTSUPP);
    assert_eq!(errno(fs.allocate(cx, f, range).await), libc::EOPNOTSUPP);
    assert_eq!(errno(fs.getxattr(cx, f.fh, b"user.a").await), libc::EOPNOTSUPP);
    assert_eq!(errno(fs.copy(cx, f, 0, f, 10, 10).await), libc::EOPNOTSUPP);
    let owner = LockOwner { id: 1, flock: false };
    assert_eq!(errno(fs.lock(cx, f, owner, LockKind::Read, range, LockWait::No).await), libc::EOPNOTSUPP);
    lab.close(&o).await;
    lab.done().await;
}

/// Each failed mount reports the fault, its place and the remedy.
#[tokio::test(flavor = "multi_thread")]
async fn failed_mounts_have_clear_lines() {
    let Some(opts) = options() else { return eprintln!("skipped: HITHER_TEST_SERVER is not set") };
    let fail = async |opts: Options| -> MountError {
        match connect_v3(&opts, &env(), Arc::new(Stats::new())).await {
            Ok(_) => panic!("this mount must fail"),
            Err(e) => e,
        }
    };
    let e = fail(Options { path: "/no/such/export".into(), ..opts.clone() }).await;
    assert!(matches!(e, MountError::NoSuchExport { .. }), "{e:?}");
    assert!(e.to_string().contains("/no/such/export") && e.to_string().contains(&opts.path), "{e}");
    // A path below an export. Ganesha does not tell a missing path from a forbidden one, so the
    // message does not either.
    let below = format!("{}/no/such", opts.path.trim_end_matches('/'));
    let e = fail(Options { path: below, ..opts.clone() }).await;
    assert!(matches!(e, MountError::AccessDenied { .. } | MountError::NoSuchExport { .. }), "{e:?}");
    assert!(e.to_string().contains("no such"), "{e}");
    // An export that refuses this client, where the server has one.
    if let Ok(path) = std::env::var("HITHER_TEST_DENIED") {
        let e = fail(Options { path, ..opts.clone() }).await;
        assert!(matches!(e, MountError::AccessDenied { .. } | MountError::NoSuchExport { .. }), "{e:?}");
    }
    let e = fail(Options { mount_port: Some(9), ..opts.clone() }).await;
    assert!(matches!(e, MountError::Refused { .. }) && e.to_string().contains("mountport="), "{e}");
    let e = fail(Options { port: Some(9), ..opts.clone() }).await;
    assert!(matches!(e, MountError::Refused { .. }) && e.to_string().contains("port="), "{e}");
    // mountd does not speak NFS.
    let e = fail(Options { port: Some(111), ..opts.clone() }).await;
    assert!(matches!(e, MountError::VersionNotSupported { .. }), "{e:?}");
    let e = fail(Options { addrs: vec![], ..opts.clone() }).await;
    assert!(matches!(e, MountError::NoSuchHost { .. }), "{e:?}");
}

/// The server is killed again and again while files are written. No data acknowledged by COMMIT is
/// lost. Reads meanwhile see the latest write, and no call hangs.
#[tokio::test(flavor = "multi_thread")]
async fn server_crash_loses_no_commits() {
    let Ok(crash) = std::env::var("HITHER_TEST_CRASH") else {
        return eprintln!("skipped: HITHER_TEST_CRASH is not set");
    };
    let lab = lab!("crash");
    let crasher = tokio::spawn(async move {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(3)).await;
            let done = tokio::process::Command::new("sh").arg("-c").arg(&crash).status().await.unwrap();
            assert!(done.success(), "{crash} failed");
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });
    let o = lab.create("victim").await;
    let mut expected = vec![0_u8; 4 << 20];
    let (mut round, mut commits) = (0_u32, 0);
    while !crasher.is_finished() {
        for i in 0..32_u32 {
            round += 1;
            let at = (round.wrapping_mul(2_654_435_761) % (expected.len() as u32 - 70_000)) as usize;
            let len = 1 + (round as usize * 7919) % 65_000;
            let data = vec![(round % 250) as u8 + 1; len];
            expected[at..at + len].copy_from_slice(&data);
            lab.write(&o, at as u64, data).await;
            if i % 8 == 0 {
                let (got, _) = lab.read(&o, at as u64, len as u32).await;
                assert!(got[..] == expected[at..at + len], "a read in round {round} shows older bytes");
            }
        }
        lab.fs.commit(&lab.cx, file(&o)).await.unwrap();
        commits += 1;
    }
    crasher.await.unwrap();
    lab.close(&o).await;
    let sent = lab.stats.snapshot().op("WRITE").unwrap().ops;
    eprintln!("{round} writes, {commits} commits, {sent} WRITE calls");
    assert!(sent > u64::from(round), "no restart of the server cost anything: the test proves nothing");
    let fresh = connect_v3(&options().unwrap(), &env(), Arc::new(Stats::new())).await.unwrap().vfs;
    let read =
        fresh.read(&lab.cx, File { fh: &o.node.fh, open: None }, 0, expected.len() as u32).await.unwrap();
    let got = read.data.into_bytes();
    let bad = got.iter().zip(&expected).filter(|(a, b)| a != b).count();
    assert_eq!(bad, 0, "{bad} bytes of {} differ", got.len());
    fresh.shutdown(&lab.cx).await.unwrap();
    lab.done().await;
}
