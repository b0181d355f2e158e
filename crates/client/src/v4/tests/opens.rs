//! Refused opens, and opens close to a refusal.

use super::*;
use hither_proto::nfs4::access;

const READ: OpenAccess = OpenAccess::READ;
const WRITE: OpenAccess = OpenAccess::WRITE;

impl Test {
    /// A closed file with the content `data`.
    async fn closed(&self, name: &str, data: &'static str) -> Fh {
        let o = self.create(name).await;
        self.write(&o, 0, data).await.unwrap();
        self.close(&o).await;
        o.node.fh
    }

    fn stored(&self, name: &str) -> Vec<u8> {
        self.server.lock().files[name].data.clone()
    }
}

/// All ways to open and cut an existing file, by name or by filehandle.
fn cutting() -> Vec<(bool, OpenHow)> {
    let mut all = Vec::new();
    for access in [READ, WRITE, RW] {
        for (by_name, create) in
            [(false, Create::No), (true, Create::No), (true, Create::IfMissing(SetAttr::default()))]
        {
            all.push((by_name, OpenHow { access, truncate: true, ..how(create) }));
        }
    }
    all
}

/// A refused open cuts nothing, for each access and each way to name the file. A granted open cuts
/// the file.
/// Promise: 19
#[tokio::test(start_paused = true)]
async fn a_refused_open_cuts_nothing() {
    let t = Test::new().await;
    let (fh, n) = (t.closed("a", "data").await, name("a"));
    for (by_name, how) in cutting() {
        let at = if by_name { PathRef::name(&t.root, &n) } else { PathRef::fh(&fh) };
        let missing = if how.access == READ { access::MODIFY } else { access::READ };
        t.server.lock().no_right = missing;
        let before = t.server.count("SETATTR");
        let refused = t.v4.open(&cx(), at, &how).await;
        // OPEN for writing itself checks the right to write.
        let expected = if how.access == WRITE { 0 } else { libc::EACCES };
        assert_eq!(errno(refused.as_ref().map(drop).map_err(Clone::clone)), expected, "{by_name} {how:?}");
        if let Ok(opened) = refused {
            t.close(&opened).await;
        } else {
            assert_eq!(t.stored("a"), b"data", "{by_name} {how:?}");
            assert_eq!(t.server.count("SETATTR"), before);
            assert!(t.server.lock().opens.is_empty());
        }
        t.server.lock().no_right = 0;
        let opened = t.v4.open(&cx(), at, &how).await.unwrap();
        assert!(!opened.created);
        assert_eq!(opened.node.attrs.attr.size_bytes, 0);
        assert_eq!(t.stored("a"), b"", "{by_name} {how:?}");
        t.close(&opened).await;
        t.closed("a", "data").await;
    }
    t.check();
}

/// A refused truncation leaves the uncommitted bytes. They are sent again when the server restarts.
#[tokio::test(start_paused = true)]
async fn refused_truncation_keeps_uncommitted_bytes() {
    let t = Test::new().await;
    let (o, n) = (t.create("a").await, name("a"));
    t.write(&o, 0, "data").await.unwrap();
    for (by_name, access) in [(false, WRITE), (true, WRITE), (false, RW), (true, RW)] {
        let at = if by_name { PathRef::name(&t.root, &n) } else { PathRef::fh(&o.node.fh) };
        t.server.lock().fail = vec![(NfsOpnum4::SETATTR, Nfsstat4::NOSPC); 2];
        let how = OpenHow { access, truncate: true, ..how(Create::No) };
        assert_eq!(errno(t.v4.open(&cx(), at, &how).await), libc::ENOSPC);
        t.server.lock().fail.clear();
    }
    t.server.restart();
    t.server.lock().grace = false;
    t.net.cut(Cut::Reset);
    t.v4.commit(&cx(), file(&o)).await.unwrap();
    assert_eq!(t.server.lock().files["a"].stable, b"data");
    t.check();
}

/// Files that the server does not let the client reclaim are opened anew, after RECLAIM_COMPLETE.
/// The others are reclaimed.
#[tokio::test(start_paused = true)]
async fn refused_reclaims_open_anew() {
    use Nfsstat4 as S;
    for refusal in [S::NO_GRACE, S::RECLAIM_BAD, S::RECLAIM_CONFLICT, S::EXPIRED, S::NOTSUPP] {
        let t = Test::new().await;
        let (a, b) = (t.create("a").await, t.create("b").await);
        t.lock(&a).await;
        t.lock(&b).await;
        t.write(&a, 0, "data of a").await.unwrap();
        t.write(&b, 0, "data of b").await.unwrap();
        t.server.restart();
        t.server.lock().fail = vec![(NfsOpnum4::OPEN, refusal)];
        t.net.cut(Cut::Reset);
        let server = t.server.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(2)).await;
            server.lock().grace = false;
        });
        let recovered = tokio::time::timeout(Duration::from_secs(60), async {
            t.v4.commit(&cx(), file(&a)).await.unwrap();
            t.v4.commit(&cx(), file(&b)).await.unwrap();
        });
        recovered.await.expect("the recovery ends");
        assert_eq!(t.server.lock().files["a"].stable, b"data of a", "{refusal}");
        assert_eq!(t.server.lock().files["b"].stable, b"data of b", "{refusal}");
        assert_eq!(t.server.lock().locks.len(), 2, "{refusal}");
        assert_eq!(t.server.count("RECLAIM_COMPLETE"), 2, "{refusal}");
        t.check();
    }
}

/// A file that the server created is not cut. A file is cut when the server wrongly reports its
/// creation.
#[tokio::test(start_paused = true)]
async fn a_new_file_needs_no_cut() {
    let t = Test::new().await;
    let cut = OpenHow { truncate: true, ..how(Create::IfMissing(SetAttr::default())) };
    let opened = t.v4.open(&cx(), PathRef::name(&t.root, &name("new")), &cut).await.unwrap();
    assert!(opened.created);
    assert_eq!(t.server.count("SETATTR"), 0);
    t.closed("old", "data").await;
    t.server.lock().changes_always = true;
    let opened = t.v4.open(&cx(), PathRef::name(&t.root, &name("old")), &cut).await.unwrap();
    assert_eq!((opened.node.attrs.attr.size_bytes, t.stored("old")), (0, vec![]));
    t.check();
}

/// An ACCESS that must wait (during a recall) is retried, and does not refuse the open.
#[tokio::test(start_paused = true)]
async fn an_open_waits_for_its_right() {
    let t = Test::new().await;
    let (fh, n) = (t.closed("a", "data").await, name("a"));
    let create = Create::IfMissing(SetAttr::default());
    for (by_name, create) in [(false, Create::No), (true, Create::No), (true, create)] {
        let at = if by_name { PathRef::name(&t.root, &n) } else { PathRef::fh(&fh) };
        for refused in [false, true] {
            t.server.lock().fail = vec![(NfsOpnum4::ACCESS, Nfsstat4::DELAY); 3];
            t.server.lock().no_right = if refused { access::READ } else { 0 };
            let began = Instant::now();
            let opened = t.v4.open(&cx(), at, &how(create.clone())).await;
            assert!(t.server.lock().fail.is_empty());
            // 20 ms and 40 ms after the ACCESS in the compound of the OPEN.
            assert!(began.elapsed() >= Duration::from_millis(60), "{:?}", began.elapsed());
            match opened {
                Ok(o) => {
                    assert!(!refused);
                    assert_eq!(o.node.attrs.attr.size_bytes, 4);
                    assert_eq!(t.read(&o).await.unwrap(), "data");
                    t.close(&o).await;
                }
                Err(e) => assert_eq!((e.errno, refused), (libc::EACCES, true)),
            }
            assert!(t.server.lock().opens.is_empty());
        }
    }
    t.check();
}

/// A CLOSE of a refused open that gets OLD_STATEID is sent again for the current state. When the
/// server repeats the status, the client gives up.
#[tokio::test(start_paused = true)]
async fn refused_open_retries_close() {
    let t = Test::new().await;
    let (fh, n) = (t.closed("a", "data").await, name("a"));
    for at in [PathRef::fh(&fh), PathRef::name(&t.root, &n)] {
        t.server.lock().no_right = access::READ;
        for (times, left) in [(1, 0), (1000, 1)] {
            t.server.lock().fail = vec![(NfsOpnum4::CLOSE, Nfsstat4::OLD_STATEID); times];
            let began = Instant::now();
            assert_eq!(errno(t.v4.open(&cx(), at, &how(Create::No)).await), libc::EACCES);
            assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
            assert_eq!(t.server.lock().opens.len(), left);
            t.server.lock().fail.clear();
        }
        // The next open of the file removes the remaining state.
        t.server.lock().no_right = 0;
        let o = t.v4.open(&cx(), at, &how(Create::No)).await.unwrap();
        t.close(&o).await;
        assert!(t.server.lock().opens.is_empty());
    }
    t.check();
}
