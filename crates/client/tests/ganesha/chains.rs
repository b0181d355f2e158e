//! Walks of whole paths, calls about many objects, first bytes, attributes of changed directories,
//! and delegations.

use super::*;

/// Number of calls that the connection has made.
fn calls(m: &Mount) -> u64 {
    m.connected.stats.snapshot().ops.iter().map(|op| op.ops).sum()
}

/// One compound brings the whole path, the directory's listing, access rights and the first bytes.
/// It leaves no file open. For an absent name it brings the listing, and for a directory no first
/// bytes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs HITHER_TEST_SERVER"]
async fn chains_with_wishes() {
    let m = Mount::new().await;
    let sub = m.vfs.mkdir(&m.cx, &m.dir, &name("sub"), &mode(0o755)).await.unwrap().node.fh;
    let deep = m.vfs.mkdir(&m.cx, &sub, &name("deep"), &mode(0o755)).await.unwrap().node.fh;
    let how = how(OpenAccess::WRITE, Create::Exclusive(mode(0o644)));
    let o = m.vfs.open(&m.cx, PathRef::name(&deep, &name("file")), &how).await.unwrap();
    m.write(&o, 0, "first bytes").await;
    m.close(&o).await;
    let want = WalkRequest {
        listing_bytes: 16384,
        read_bytes: 4096,
        access: Access::READ | Access::EXECUTE,
        target: false,
    };
    let path = |last| [name("sub"), name("deep"), name(last)];
    let before = calls(&m);
    let trail = m.vfs.walk(&m.cx, PathRef { base: &m.dir, path: &path("file") }, want).await.unwrap();
    let asked = calls(&m) - before;
    assert!(matches!(trail.stop, Stop::Complete), "{:?}", trail.stop);
    assert_eq!((trail.steps.len(), &trail.steps[2].fh), (3, &o.node.fh));
    let first = trail.along.first.expect("first bytes");
    assert_eq!((first.data.into_bytes(), first.eof), (Bytes::from("first bytes"), true));
    let listing = trail.along.listing.expect("a listing");
    assert!(listing.eof && listing.entries.len() == 1);
    assert_eq!(listing.entries[0].node.as_ref().map(|n| &n.fh), Some(&o.node.fh));
    assert_eq!(trail.along.access, Some(Access::READ));
    if is_v4(&m) {
        assert_eq!(asked, 1);
    }
    let before = calls(&m);
    let trail = m.vfs.walk(&m.cx, PathRef { base: &m.dir, path: &path("none") }, want).await.unwrap();
    assert!(matches!(trail.stop, Stop::Missing(_)) && trail.steps.len() == 2);
    assert!(trail.along.listing.is_some_and(|l| l.entries.len() == 1));
    if is_v4(&m) {
        assert_eq!(calls(&m) - before, 1);
    }
    // A listing of several pages of a server's memory, before other operations of the compound.
    for i in 0..200 {
        let n = name(&format!("one of many files {i}"));
        let o = m.vfs.open(&m.cx, PathRef::name(&deep, &n), &how).await.unwrap();
        m.close(&o).await;
    }
    for last in ["file", "none"] {
        let large = WalkRequest { listing_bytes: 200_000, ..want };
        let trail = m.vfs.walk(&m.cx, PathRef { base: &m.dir, path: &path(last) }, large).await.unwrap();
        assert!(trail.along.listing.is_some_and(|l| l.eof && l.entries.len() == 201));
        assert_eq!(
            trail.along.first.is_some_and(|f| &f.data.into_bytes()[..] == b"first bytes"),
            last == "file"
        );
    }
    for i in 0..200 {
        m.vfs.unlink(&m.cx, &deep, &name(&format!("one of many files {i}")), None).await.unwrap();
    }
    let two = [name("sub"), name("deep")];
    let trail = m.vfs.walk(&m.cx, PathRef { base: &m.dir, path: &two }, want).await.unwrap();
    assert!(matches!(trail.stop, Stop::Complete) && trail.along.first.is_none());
    // No open is left, so the file is removed and not hidden.
    m.vfs.unlink(&m.cx, &deep, &name("file"), Some(&o.node.fh)).await.unwrap();
    m.vfs.rmdir(&m.cx, &sub, &name("deep")).await.unwrap();
    m.vfs.rmdir(&m.cx, &m.dir, &name("sub")).await.unwrap();
    m.end().await;
}

/// Calls about many objects need few messages. A failure for one object does not affect the others.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs HITHER_TEST_SERVER"]
async fn many_at_once() {
    let m = Mount::new().await;
    let mut files = vec![];
    for i in 0..30 {
        let o = m.create(&format!("f{i}")).await;
        m.write(&o, 0, format!("bytes of {i}")).await;
        m.close(&o).await;
        files.push(o.node.fh);
    }
    m.vfs.unlink(&m.cx, &m.dir, &name("f7"), None).await.unwrap();
    let link = m.vfs.symlink(&m.cx, &m.dir, &name("link"), &Bytes::from("f0"), &mode(0o777)).await.unwrap();
    files.insert(20, link.node.fh);
    let before = calls(&m);
    let attrs = m.vfs.getattr_many(&m.cx, &files).await;
    let reads = m.vfs.read_many(&m.cx, &files, None, 4096).await.files;
    let lists = m.vfs.list_many(&m.cx, &[m.dir.clone(), m.root.clone(), files[0].clone()], 32768).await;
    if is_v4(&m) {
        let snap = m.connected.stats.snapshot();
        let ops: Vec<_> = snap.ops.iter().map(|o| (o.name, o.ops, o.errors)).collect();
        assert!(calls(&m) - before < 20, "{ops:?}");
    }
    for (i, (attrs, read)) in attrs.iter().zip(&reads).enumerate() {
        match i {
            7 => assert!(attrs.is_err() && read.is_err()),
            20 => assert!(attrs.is_ok() && read.is_err()),
            _ => {
                let text = format!("bytes of {}", if i > 20 { i - 1 } else { i });
                let (attrs, read) = (attrs.as_ref().unwrap(), read.as_ref().unwrap());
                assert_eq!(attrs.attr.size_bytes, text.len() as u64);
                assert_eq!(read.attrs.attr.size_bytes, text.len() as u64);
                assert_eq!((read.read.data.clone().into_bytes(), read.read.eof), (text.into(), true));
            }
        }
    }
    let (attrs, page) = lists[0].as_ref().unwrap();
    assert_eq!((attrs.attr.kind, page.entries.len(), page.eof), (FileKind::Directory, 30, true));
    assert!(page.entries.iter().all(|e| e.node.is_some()));
    assert!(lists[1].is_ok() && lists[2].is_err());
    m.end().await;
}

/// An open brings the first bytes, by name and by handle. A change of a directory brings the
/// directory's attributes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs HITHER_TEST_SERVER"]
async fn first_bytes_and_directories() {
    let m = Mount::new().await;
    let o = m.create("file").await;
    assert!(o.dir.as_ref().is_some_and(|d| d.attrs.is_some()));
    m.write(&o, 0, "first bytes").await;
    m.close(&o).await;
    let n = name("file");
    for at in [PathRef::fh(&o.node.fh), PathRef::name(&m.dir, &n)] {
        for (bytes, expected, eof) in [(5, "first", false), (100, "first bytes", true)] {
            let how = OpenHow { first_bytes: bytes, ..how(OpenAccess::READ, Create::No) };
            let before = calls(&m);
            let opened = m.vfs.open(&m.cx, at, &how).await.unwrap();
            let asked = calls(&m) - before;
            let first = opened.first.clone().expect("first bytes");
            assert_eq!((first.data.into_bytes(), first.eof), (Bytes::from(expected), eof));
            assert_eq!(m.read(&opened, 0, 5).await, "first");
            m.close(&opened).await;
            if is_v4(&m) {
                assert_eq!(asked, 1);
            }
        }
    }
    let sub = m.vfs.mkdir(&m.cx, &m.dir, &name("sub"), &mode(0o755)).await.unwrap();
    let link = m.vfs.link(&m.cx, &o.node.fh, &m.dir, &name("link")).await.unwrap();
    let (a, b) = (name("link"), name("moved"));
    let no = RenameFlags::empty();
    let same = m.vfs.rename(&m.cx, (&m.dir, &a), (&m.dir, &b), None, no).await.unwrap();
    let across = m.vfs.rename(&m.cx, (&m.dir, &b), (&sub.node.fh, &a), None, no).await.unwrap();
    let gone = m.vfs.unlink(&m.cx, &sub.node.fh, &a, None).await.unwrap();
    let removed = m.vfs.rmdir(&m.cx, &m.dir, &name("sub")).await.unwrap();
    for change in [&sub.dir, &link.dir, &same.from, &same.to, &across.from, &across.to, &gone, &removed] {
        let attrs = change.attrs.as_ref().expect("the directory's attributes");
        assert_eq!(attrs.attr.kind, FileKind::Directory);
        assert!(!is_v4(&m) || attrs.attr.change == change.after, "{change:?}");
    }
    m.end().await;
}

/// Handles that the client has withdrawn.
#[derive(Default)]
struct UpcallLog(std::sync::Mutex<Vec<Fh>>);

impl Upcalls for UpcallLog {
    fn revoke(&self, fh: &Fh) -> BoxFuture<()> {
        self.0.lock().unwrap().push(fh.clone());
        Box::pin(async {})
    }

    fn revoke_all(&self) -> BoxFuture<()> {
        Box::pin(async {})
    }
}

/// A delegation outlives its open as a lease on attributes, and ends when another client writes. No
/// client waits for its own delegations when it writes or removes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs HITHER_TEST_SERVER"]
async fn delegations_are_leases() {
    let (m, other) = (Mount::new().await, Mount::new().await);
    let told = Arc::new(UpcallLog::default());
    m.vfs.subscribe(told.clone());
    if !is_v4(&m) {
        return;
    }
    for file in ["a", "b", "c"] {
        let (n, how) = (name(file), how(OpenAccess::WRITE, Create::Exclusive(mode(0o666))));
        let o = other.vfs.open(&other.cx, PathRef::name(&m.dir, &n), &how).await.unwrap();
        other.write(&o, 0, "some bytes").await;
        other.close(&o).await;
    }
    let want = WalkRequest { read_bytes: 4096, ..WalkRequest::default() };
    let mut held = vec![];
    for file in ["a", "b", "c"] {
        let trail = m.vfs.walk(&m.cx, PathRef::name(&m.dir, &name(file)), want).await.unwrap();
        let node = trail.steps[0].clone();
        let again = m.vfs.getattr(&m.cx, File { fh: &node.fh, open: None }).await.unwrap();
        assert_eq!(again.valid == Validity::Lease, node.attrs.valid == Validity::Lease);
        held.push(node);
    }
    if held[0].attrs.valid != Validity::Lease {
        eprintln!("the server grants no delegations");
    } else {
        let began = Instant::now();
        let o = other
            .vfs
            .open(&other.cx, PathRef::fh(&held[0].fh), &how(OpenAccess::WRITE, Create::No))
            .await
            .unwrap();
        other.write(&o, 0, "other").await;
        other.close(&o).await;
        eprintln!("recalled within {:?}", began.elapsed());
        assert_eq!(*told.0.lock().unwrap(), [held[0].fh.clone()]);
        let after = m.vfs.getattr(&m.cx, File { fh: &held[0].fh, open: None }).await.unwrap();
        assert!(after.attr.change != held[0].attrs.attr.change && after.valid != Validity::Lease);
        // A client's changes do not wait for its own delegations.
        let began = Instant::now();
        let o =
            m.vfs.open(&m.cx, PathRef::fh(&held[1].fh), &how(OpenAccess::WRITE, Create::No)).await.unwrap();
        eprintln!("own open for writing within {:?}", began.elapsed());
        m.write(&o, 0, "mine").await;
        m.close(&o).await;
        let began = Instant::now();
        m.vfs.unlink(&m.cx, &m.dir, &name("c"), Some(&held[2].fh)).await.unwrap();
        eprintln!("own unlink within {:?}", began.elapsed());
    }
    other.end().await;
    m.end().await;
}

/// A cache above the client: attributes under a lease, until they are withdrawn. Each `put` names
/// the number of withdrawals of the file at the time of its request.
#[derive(Default)]
struct Cache(std::sync::Mutex<std::collections::HashMap<Fh, (u64, Option<Attr>)>>);

impl Cache {
    fn withdrawals(&self, fh: &Fh) -> u64 {
        self.0.lock().unwrap().get(fh).map_or(0, |e| e.0)
    }

    fn known(&self, fh: &Fh) -> Option<Attr> {
        self.0.lock().unwrap().get(fh).and_then(|e| e.1.clone())
    }

    fn put(&self, fh: &Fh, withdrawals: u64, attrs: &Attrs) {
        let mut all = self.0.lock().unwrap();
        let entry = all.entry(fh.clone()).or_default();
        if entry.0 == withdrawals && attrs.valid == Validity::Lease {
            entry.1 = Some(attrs.attr.clone());
        }
    }
}

impl Upcalls for Cache {
    fn revoke(&self, fh: &Fh) -> BoxFuture<()> {
        let mut all = self.0.lock().unwrap();
        let entry = all.entry(fh.clone()).or_default();
        *entry = (entry.0 + 1, None);
        Box::pin(async {})
    }

    fn revoke_all(&self) -> BoxFuture<()> {
        self.0.lock().unwrap().values_mut().for_each(|e| *e = (e.0 + 1, None));
        Box::pin(async {})
    }
}

/// While one client writes, leased attributes of a second client equal those that a third client
/// reads.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs HITHER_TEST_SERVER"]
async fn leases_are_never_stale() {
    let (m, writer, witness) = (Mount::new().await, Mount::new().await, Mount::new().await);
    let cache = Arc::new(Cache::default());
    m.vfs.subscribe(cache.clone());
    let mut files = vec![];
    for i in 0..6 {
        let o = m.create(&format!("f{i}")).await;
        m.write(&o, 0, "x").await;
        m.close(&o).await;
        files.push(o.node.fh);
    }
    let end = Instant::now() + Duration::from_secs(4);
    let writing = {
        let files = files.clone();
        tokio::spawn(async move {
            let mut size = 1;
            while Instant::now() < end {
                let fh = &files[size as usize % files.len()];
                let how = how(OpenAccess::WRITE, Create::No);
                let o = writer.vfs.open(&writer.cx, PathRef::fh(fh), &how).await.unwrap();
                writer.write(&o, size, "x").await;
                writer.close(&o).await;
                size += 1;
                tokio::time::sleep(Duration::from_millis(size % 7)).await;
            }
            writer.end().await;
            size
        })
    };
    let (mut leased, mut asked) = (0, 0u32);
    while Instant::now() < end {
        asked += 1;
        let before: Vec<u64> = files.iter().map(|fh| cache.withdrawals(fh)).collect();
        if asked.is_multiple_of(3) {
            for ((fh, before), read) in
                files.iter().zip(&before).zip(m.vfs.read_many(&m.cx, &files, None, 100).await.files)
            {
                read.iter().for_each(|read| cache.put(fh, *before, &read.attrs));
            }
        } else {
            for ((fh, before), attrs) in
                files.iter().zip(&before).zip(m.vfs.getattr_many(&m.cx, &files).await)
            {
                attrs.iter().for_each(|attrs| cache.put(fh, *before, attrs));
            }
        }
        for (fh, known) in files.iter().filter_map(|fh| Some((fh, cache.known(fh)?))) {
            let truth = witness.vfs.getattr(&witness.cx, File { fh, open: None }).await.unwrap().attr;
            if cache.known(fh).as_ref() == Some(&known) {
                assert_eq!((known.change, known.size_bytes), (truth.change, truth.size_bytes));
                leased += 1;
            }
        }
    }
    eprintln!("{} writes, {asked} rounds, {leased} leases compared", writing.await.unwrap());
    witness.end().await;
    m.end().await;
}
