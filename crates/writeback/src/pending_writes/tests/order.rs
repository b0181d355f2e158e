//! Tests of order, attributes and room.

use super::gate::Verdict;
use super::*;
use hither_vfs::{Access, BatchOps, FileRange, LockKind, LockOwner, LockWait, OpenAccess, WalkRequest};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

const OWNER: LockOwner = LockOwner { id: 1, flock: false };
const ALL: FileRange = FileRange { start_bytes: 0, end_bytes: u64::MAX };

fn at<'a>((fh, open): &'a (Fh, OpenId)) -> At<'a> {
    At { fh, open: Some(*open) }
}

async fn attrs(s: &Stack, f: &(Fh, OpenId)) -> Attrs {
    s.dirty.getattr(&cx(), at(f)).await.unwrap()
}

fn no_stat_flush() -> WriteBackOptions {
    WriteBackOptions { stat_flush_bytes: 0, ..Default::default() }
}

/// Two versions of a byte are never in flight together. Reads return the newest version.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn overlapping_writes_are_sent_in_order() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    s.gate.shut("write");
    s.write(&f, 0, pattern(1, MIB)).await.unwrap();
    settle().await;
    s.write(&f, 1000, pattern(2, MIB)).await.unwrap();
    s.write(&f, 0, pattern(3, 10)).await.unwrap();
    settle().await;
    assert_eq!(s.gate.waiting("write"), 1, "overlapping bytes wait");
    assert_eq!(s.read(&f, 0, 10).await, pattern(3, 10));
    assert_eq!(s.read(&f, 10, 10).await, pattern(1, 20)[10..]);
    assert_eq!(s.read(&f, 1000, 10).await, pattern(2, 10));
    s.gate.open_all();
    s.commit(&f).await.unwrap();
    let all = s.below(&f.0).await;
    assert_eq!(all[..10], pattern(3, 10)[..]);
    assert_eq!(all[10..1000], pattern(1, 1000)[10..]);
    assert_eq!(all[1000..], pattern(2, MIB)[..]);
}

/// A truncation waits for bytes in flight and drops dirty bytes beyond the new end. The range reads
/// as zeros when the file grows again.
#[tokio::test(start_paused = true)]
async fn truncation_voids_bytes_beyond() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    s.gate.shut("write");
    s.write(&f, 0, pattern(1, 2 * MIB)).await.unwrap();
    s.write(&f, 2 * MIB, pattern(2, 100)).await.unwrap();
    settle().await;
    let (dirty, f2) = (s.dirty.clone(), f.clone());
    let cut = tokio::spawn(async move {
        let set = SetAttr { size_bytes: Some(500), ..Default::default() };
        dirty.setattr(&cx(), At { fh: &f2.0, open: Some(f2.1) }, &set).await
    });
    settle().await;
    assert_eq!(s.gate.calls("setattr"), 0, "the truncation waits for bytes in flight");
    s.gate.open_all();
    assert_eq!(cut.await.unwrap().unwrap().attr.size_bytes, 500);
    assert_eq!(s.size(&f).await, 500);
    assert_eq!(s.read(&f, 0, 4096).await, pattern(1, 500));
    s.write(&f, 600, pattern(3, 10)).await.unwrap();
    s.commit(&f).await.unwrap();
    let all = s.below(&f.0).await;
    assert_eq!((all.len(), &all[..500], &all[500..600]), (610, &pattern(1, 500)[..], &[0; 100][..]));
}

/// A truncation that the server refuses drops no local bytes.
#[tokio::test(start_paused = true)]
async fn refused_truncation_keeps_bytes() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    s.write(&f, 0, pattern(1, 1000)).await.unwrap();
    s.gate.fail("setattr", libc::EPERM);
    assert_eq!(s.resize(&f, 10).await.unwrap_err().errno, libc::EPERM);
    assert_eq!(s.size(&f).await, 1000);
    s.commit(&f).await.unwrap();
    assert_eq!(s.below(&f.0).await, pattern(1, 1000));
}

/// An open with truncation drops the dirty bytes written before it, by name or by filehandle.
#[tokio::test(start_paused = true)]
async fn truncating_open_voids_earlier_bytes() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    s.gate.shut("write");
    s.write(&f, 0, pattern(1, MIB + 10)).await.unwrap();
    settle().await;
    for by_name in [false, true] {
        let (dirty, root, fh) = (s.dirty.clone(), s.root.clone(), f.0.clone());
        let open = tokio::spawn(async move {
            let file = name("f");
            let at = if by_name { PathRef::name(&root, &file) } else { PathRef::fh(&fh) };
            let create = Create::No;
            dirty.open(&cx(), at, &OpenHow { create, ..how(true) }).await.unwrap()
        });
        settle().await;
        s.gate.open_all();
        let opened = open.await.unwrap();
        assert_eq!(opened.node.attrs.attr.size_bytes, 0);
        assert_eq!(s.read(&f, 0, 100).await, [0_u8; 0]);
        s.commit(&f).await.unwrap();
        assert_eq!(s.below(&f.0).await, [0_u8; 0]);
        s.gate.shut("write");
        s.write(&f, 0, pattern(2, MIB)).await.unwrap();
        settle().await;
        s.gate.shut("nothing");
    }
    s.gate.open_all();
}

/// A write before does not change times that a program sets.
#[tokio::test(start_paused = true)]
async fn times_that_were_set_stay() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    s.write(&f, 0, pattern(1, 1000)).await.unwrap();
    let then = Time { secs: 77, nanos: 7 };
    let set = SetAttr { mtime: Some(SetTime::To(then)), ..Default::default() };
    assert_eq!(s.dirty.setattr(&cx(), at(&f), &set).await.unwrap().attr.mtime, then);
    s.close(&f).await.unwrap();
    let after = s.dirty.getattr(&cx(), At { fh: &f.0, open: None }).await.unwrap();
    assert_eq!((after.attr.mtime, after.attr.size_bytes), (then, 1000));
    assert_eq!(s.gate.calls("write"), 1);
}

/// A program that writes a file and reads its times before the close gets the final times.
#[tokio::test(start_paused = true)]
async fn times_that_were_seen_stay() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    s.write(&f, 0, pattern(1, 1000)).await.unwrap();
    let seen = attrs(&s, &f).await.attr;
    s.close(&f).await.unwrap();
    let after = s.dirty.getattr(&cx(), At { fh: &f.0, open: None }).await.unwrap().attr;
    assert_eq!((seen.mtime, seen.ctime, seen.size_bytes), (after.mtime, after.ctime, 1000));
    assert_eq!(s.gate.calls("write"), 1);

    // The bytes are not sent for each request.
    let f = s.open("g").await;
    for i in 0..100 {
        s.write(&f, i * 10, pattern(1, 10)).await.unwrap();
        assert_eq!(attrs(&s, &f).await.attr.size_bytes, (i + 1) * 10);
    }
    assert_eq!(s.gate.calls("write"), 2);
}

/// A program that reads its own writes does not see times. The length is enough, and no bytes are
/// sent for it.
#[tokio::test(start_paused = true)]
async fn unseen_times_send_no_bytes() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    let unseen = RequestContext { times_unseen: true, ..cx() };
    for i in 0..10 {
        s.write(&f, 768 + i * 10, pattern(1, 10)).await.unwrap();
        assert_eq!(s.dirty.getattr(&unseen, at(&f)).await.unwrap().attr.size_bytes, 778 + i * 10);
        assert_eq!(s.read(&f, 0, 8192).await[768..778], pattern(1, 10)[..]);
    }
    assert_eq!((s.gate.calls("write"), s.gate.calls("read")), (0, 0));
    s.close(&f).await.unwrap();
    assert_eq!((s.gate.calls("write"), s.below(&f.0).await.len()), (1, 868));
}

/// The visible times are the server's, also before the close, whichever clock is ahead.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn visible_times_match_server() {
    for (ahead_s, len) in [(-1000, 1000), (0, 1000), (1000, 1000), (1000, 3 * MIB), (-1000, 3 * MIB)] {
        let s = Stack::with_clock(WriteBackOptions::default(), u64::MAX, ahead_s).await;
        let f = s.open("f").await;
        s.write(&f, 0, pattern(1, len)).await.unwrap();
        // WRITEs take time, so that requests before and after their end are distinguished.
        s.gate.decide(Box::new(|_, _| Verdict::Pass(Duration::from_millis(1))));
        s.write(&f, 0, pattern(2, len)).await.unwrap();
        let early = attrs(&s, &f).await.attr;
        tokio::time::sleep(Duration::from_secs(6)).await;
        s.write(&f, 0, pattern(3, 10)).await.unwrap();
        let seen = attrs(&s, &f).await.attr;
        s.close(&f).await.unwrap();
        let after = s.gate.below().getattr(&cx(), At { fh: &f.0, open: None }).await.unwrap().attr;
        assert!(early.mtime < after.mtime || ahead_s > 0);
        assert_eq!((seen.mtime, seen.ctime, seen.size_bytes), (after.mtime, after.ctime, len));
    }
}

/// Attributes known below are requested again after bytes were sent for them.
#[tokio::test(start_paused = true)]
async fn old_times_are_asked_for_again() {
    let s = Stack::with_clock(WriteBackOptions::default(), u64::MAX, 1000).await;
    let f = s.open("f").await;
    let old = attrs(&s, &f).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    s.write(&f, 0, pattern(1, 3 * MIB)).await.unwrap();
    s.gate.answer_with(Some(old.clone()));
    let asked = s.gate.calls("getattr");
    // A single WRITE returns the final attributes. Of several WRITEs, the last one is not known.
    s.gate.decide(Box::new(|_, _| Verdict::Pass(Duration::from_millis(1))));
    attrs(&s, &f).await;
    assert!(s.gate.writes().len() > 1);
    assert_eq!(s.gate.calls("getattr") - asked, 2);

    s.gate.answer_with(None);
    let f = s.open("g").await;
    let old = attrs(&s, &f).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    s.write(&f, 0, pattern(1, 1000)).await.unwrap();
    s.gate.answer_with(Some(old));
    let asked = s.gate.calls("getattr");
    let seen = attrs(&s, &f).await.attr;
    assert_eq!(s.gate.calls("getattr") - asked, 1);
    let theirs = s.theirs(&f.0).await;
    assert_eq!((seen.mtime, seen.ctime, seen.size_bytes), (theirs.mtime, theirs.ctime, 1000));
}

/// An answer that was in flight while bytes were sent lacks them.
#[tokio::test(start_paused = true)]
async fn old_reply_does_not_shorten_file() {
    let s = Stack::new(no_stat_flush()).await;
    let f = s.open("f").await;
    let old = attrs(&s, &f).await;
    assert_eq!(old.attr.size_bytes, 0);
    tokio::time::sleep(Duration::from_millis(1)).await;
    s.write(&f, 0, pattern(1, 3 * MIB)).await.unwrap();
    let written = attrs(&s, &f).await.attr;
    s.commit(&f).await.unwrap();
    s.gate.answer_with(Some(old.clone()));
    let seen = attrs(&s, &f).await;
    assert_eq!((seen.attr.size_bytes, seen.attr.change), (3 * MIB, written.change));
    assert!(seen.attr.mtime >= written.mtime);
    assert_eq!(s.read(&f, 3 * MIB - 10, 100).await.len(), 10);
    // The answer to a later request shows a change by another client.
    tokio::time::sleep(Duration::from_millis(1)).await;
    s.gate.answer_with(Some(Attrs { asked: tokio::time::Instant::now(), ..old }));
    assert_eq!(attrs(&s, &f).await.attr.size_bytes, 0);
}

/// An answer from before bytes were sent may arrive after a newer one. Its attributes and bytes are
/// not shown.
#[tokio::test(start_paused = true)]
async fn newest_reply_wins() {
    let s = Stack::new(no_stat_flush()).await;
    let f = s.open("f").await;
    s.write(&f, 0, pattern(1, 100)).await.unwrap();
    s.commit(&f).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    s.gate.shut("walk answer");
    let (dirty, root) = (s.dirty.clone(), s.root.clone());
    let late = tokio::spawn(async move {
        let want = WalkRequest { listing_bytes: 0, read_bytes: 4096, access: Access::READ, target: false };
        dirty.walk(&cx(), PathRef::name(&root, &name("f")), want).await.unwrap()
    });
    settle().await;
    assert!(!late.is_finished());
    s.write(&f, 0, pattern(2, 200)).await.unwrap();
    s.commit(&f).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let newer = attrs(&s, &f).await.attr;
    assert_eq!(newer.size_bytes, 200);
    s.gate.open_all();
    let late = late.await.unwrap();
    let shown = &late.steps[0].attrs.attr;
    assert_eq!((shown.size_bytes, shown.change, shown.mtime), (200, newer.change, newer.mtime));
    assert!(late.along.first.is_none(), "the first bytes are outdated");
    assert_eq!(attrs(&s, &f).await.attr, newer);
}

/// Every call that returns attributes shows the local size and times of a file with dirty bytes.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn all_calls_show_local_size() {
    let s = Stack::new(no_stat_flush()).await;
    let f = s.open("f").await;
    let before = attrs(&s, &f).await.attr;
    tokio::time::sleep(Duration::from_millis(1)).await;
    s.write(&f, 0, pattern(1, 1000)).await.unwrap();
    let check = |a: &Attrs| {
        assert_eq!(a.attr.size_bytes, 1000);
        assert!(a.attr.mtime > before.mtime && a.attr.ctime == a.attr.mtime);
        assert!(a.attr.change != before.change);
        assert_eq!(a.valid, hither_vfs::Validity::Once);
    };
    check(&attrs(&s, &f).await);
    let want = WalkRequest { listing_bytes: 4096, read_bytes: 100, access: Access::READ, target: false };
    let trail = s.dirty.walk(&cx(), PathRef::name(&s.root, &name("f")), want).await.unwrap();
    check(&trail.steps[0].attrs);
    check(&trail.along.listing.unwrap().entries[0].node.as_ref().unwrap().attrs);
    assert!(trail.along.first.is_none(), "the server's bytes are not the file's");
    let page = s.dirty.readdir(&cx(), &s.root, 0, [0; 8], 4096, true).await.unwrap();
    check(&page.entries[0].node.as_ref().unwrap().attrs);
    let many = s.dirty.getattr_many(&cx(), std::slice::from_ref(&f.0)).await;
    check(many[0].as_ref().unwrap());
    let lists = s.dirty.list_many(&cx(), std::slice::from_ref(&s.root), 4096).await;
    check(&lists[0].as_ref().unwrap().1.entries[0].node.as_ref().unwrap().attrs);
    let opened = s.dirty.open(&cx(), PathRef::fh(&f.0), &OpenHow { create: Create::No, ..how(false) }).await;
    check(&opened.unwrap().node.attrs);
    tokio::time::sleep(Duration::from_millis(1)).await;
    let many = s.dirty.read_many(&cx(), std::slice::from_ref(&f.0), None, 4096).await.files;
    let error = many[0].as_ref().unwrap_err().errno;
    assert_eq!(error, libc::EAGAIN, "bytes from about the time of the flush are not trusted");
    tokio::time::sleep(Duration::from_millis(1)).await;
    let many = s.dirty.read_many(&cx(), std::slice::from_ref(&f.0), None, 4096).await.files;
    assert_eq!(many[0].as_ref().unwrap().read.data.len(), 1000);
}

/// Own bytes in flight do not change the visible attributes. A change by another client is visible.
#[tokio::test(start_paused = true)]
async fn the_change_value_moves_with_contents() {
    let s = Stack::new(no_stat_flush()).await;
    let f = s.open("f").await;
    let change = async || {
        tokio::time::sleep(Duration::from_millis(1)).await;
        attrs(&s, &f).await.attr.change
    };
    let clean = change().await;
    s.write(&f, 0, pattern(1, 1000)).await.unwrap();
    let first = change().await;
    s.write(&f, 0, pattern(2, 1000)).await.unwrap();
    let second = change().await;
    assert!(clean != first && first != second && clean != second);
    assert_eq!(change().await, second);
    s.commit(&f).await.unwrap();
    assert_eq!(change().await, second, "the bytes are sent, not changed");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(change().await, second);

    // An open must not trust earlier pages, because another client may have written between two own
    // WRITEs.
    let opened = s.dirty.open(&cx(), PathRef::fh(&f.0), &OpenHow { create: Create::No, ..how(false) }).await;
    let opened = opened.unwrap();
    assert!(opened.node.attrs.attr.change != second);
    assert_eq!(change().await, opened.node.attrs.attr.change);
    s.dirty.close(&cx(), &f.0, opened.open).await.unwrap();
    let again = s.dirty.open(&cx(), PathRef::fh(&f.0), &OpenHow { create: Create::No, ..how(false) }).await;
    assert_eq!(
        again.unwrap().node.attrs.attr.change,
        opened.node.attrs.attr.change,
        "no bytes were sent since"
    );

    // Another client writes: while the file is clean, and while it is dirty.
    let theirs = async |byte| {
        let data = Data::from(pattern(byte, 5));
        s.gate.below().write(&cx(), At { fh: &f.0, open: None }, 0, data, Stability::Stable).await.unwrap();
    };
    let before = change().await;
    theirs(8).await;
    assert!(change().await != before);
    s.write(&f, 500, pattern(3, 1)).await.unwrap();
    let before = change().await;
    theirs(9).await;
    assert!(change().await != before);
}

/// A lock protects the bytes written under it. The server has them before an unlock, and before a
/// lock.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn locks_send_first() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    s.write(&f, 0, pattern(1, 10)).await.unwrap();
    s.dirty.lock(&cx(), at(&f), OWNER, LockKind::Write, ALL, LockWait::No).await.unwrap();
    s.write(&f, 0, pattern(2, 10)).await.unwrap();
    s.dirty.unlock(&cx(), at(&f), OWNER, ALL).await.unwrap();
    let log: Vec<_> = s.gate.log().into_iter().filter(|c| c != "root" && c != "open").collect();
    assert_eq!(log, ["write", "lock", "write", "unlock"]);
    assert_eq!(s.below(&f.0).await, pattern(2, 10));
}

/// COPY, DEALLOCATE, ALLOCATE and SEEK send the dirty bytes of their files first.
#[tokio::test(start_paused = true)]
async fn copy_and_seek_send_bytes_first() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let (f, g) = (s.open("f").await, s.open("g").await);
    s.write(&f, 0, pattern(1, 100)).await.unwrap();
    s.write(&g, 200, pattern(2, 100)).await.unwrap();
    assert_eq!(s.dirty.copy(&cx(), at(&f), 0, at(&g), 250, 100).await.unwrap(), 100);
    let mut all = s.read(&g, 200, 1000).await;
    assert_eq!((&all[..50], &all[50..]), (&pattern(2, 50)[..], &pattern(1, 100)[..]));
    s.write(&g, 0, pattern(3, 100)).await.unwrap();
    let hole = FileRange { start_bytes: 50, end_bytes: 150 };
    s.dirty.deallocate(&cx(), at(&g), hole).await.unwrap();
    all = s.read(&g, 0, 200).await;
    assert_eq!((&all[..50], &all[50..]), (&pattern(3, 50)[..], &[0; 150][..]));
    s.dirty.allocate(&cx(), at(&g), FileRange { start_bytes: 0, end_bytes: 9000 }).await.unwrap();
    assert_eq!(s.size(&g).await, 9000);
    let (h, end) = (s.open("h").await, 1 << 20);
    s.write(&h, end, pattern(4, 10)).await.unwrap();
    assert!(s.dirty.seek(&cx(), at(&h), 0, hither_vfs::Seek::Data).await.unwrap() > 0);
}

/// Promise: 4
#[tokio::test(start_paused = true)]
async fn synchronous_writes_come_after_delayed_ones() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    s.write(&f, 0, pattern(1, 100)).await.unwrap();
    let data = Data::from(pattern(2, 10));
    s.dirty.write(&cx(), at(&f), 50, data, Stability::Stable).await.unwrap();
    assert_eq!(s.gate.writes(), [(0, 100), (50, 10)]);
    assert_eq!(s.read(&f, 50, 10).await, pattern(2, 10));
    assert_eq!(s.size(&f).await, 100);
}

#[tokio::test(start_paused = true)]
async fn credentials_stay_with_their_bytes() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    for uid in [0, 7, 7, 0] {
        let who = RequestContext::new(Arc::new(Cred { uid, ..Cred::root() }));
        let end = s.size(&f).await;
        s.dirty.write(&who, at(&f), end, pattern(1, 10).into(), Stability::Unstable).await.unwrap();
    }
    s.commit(&f).await.unwrap();
    // The first request for the length sent the first ten bytes.
    assert_eq!(s.gate.writes(), [(0, 10), (10, 20), (30, 10)]);
    assert_eq!(s.gate.creds().iter().map(|c| c.uid).collect::<Vec<_>>(), [0, 7, 0]);
}

/// A delegation may be returned when the layers above have withdrawn and the server has all bytes.
#[tokio::test(start_paused = true)]
async fn a_recall_sends_and_commits() {
    struct Above(Mutex<Vec<Fh>>, Weak<WriteBack>, OpenId);
    impl Upcalls for Above {
        fn revoke(&self, fh: &Fh) -> BoxFuture<()> {
            self.0.lock().push(fh.clone());
            // The kernel had a dirty page.
            let (layer, fh, open) = (self.1.upgrade().unwrap(), fh.clone(), self.2);
            Box::pin(async move {
                let at = At { fh: &fh, open: Some(open) };
                layer.write(&cx(), at, 5, pattern(9, 5).into(), Stability::Unstable).await.unwrap();
            })
        }

        fn revoke_all(&self) -> BoxFuture<()> {
            Box::pin(std::future::ready(()))
        }
    }
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    let above = Arc::new(Above(Mutex::default(), Arc::downgrade(&s.dirty), f.1));
    s.dirty.subscribe(above.clone());
    s.write(&f, 0, pattern(1, 10)).await.unwrap();
    s.gate.upcalls().revoke(&f.0).await;
    assert_eq!(*above.0.lock(), std::slice::from_ref(&f.0));
    assert_eq!(s.below(&f.0).await, [&pattern(1, 5)[..], &pattern(9, 5)[..]].concat());
    assert_eq!(s.gate.calls("commit"), 1);
    s.write(&f, 0, pattern(2, 10)).await.unwrap();
    drop(s.gate.upcalls().revoke_all());
    settle().await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(s.below(&f.0).await, pattern(2, 10), "the bytes are sent without a waiting caller");
}

/// A file without completed writes fills its own share only. Other files are not delayed.
/// Promise: 25
#[tokio::test(start_paused = true)]
async fn a_slow_file_stops_no_other() {
    let options =
        WriteBackOptions { dirty_max_bytes: 8 * MIB, file_max_bytes: 64 * MIB, ..Default::default() };
    let s = Stack::new(options).await;
    let (slow, quick) = (s.open("slow").await, s.open("quick").await);
    s.gate.shut_file(&slow.0);
    let (dirty, f) = (s.dirty.clone(), slow.clone());
    let written = Arc::new(Counter::new(0));
    let count = written.clone();
    let writer = tokio::spawn(async move {
        for i in 0..16 {
            let at = At { fh: &f.0, open: Some(f.1) };
            let data = pattern(i as u8, MIB).into();
            dirty.write(&cx(), at, i * MIB, data, Stability::Unstable).await.unwrap();
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    settle().await;
    assert_eq!(written.load(Ordering::Relaxed), 4, "half of all");
    for i in 0..64 {
        s.write(&quick, i * MIB, pattern(i as u8, MIB)).await.unwrap();
    }
    s.close(&quick).await.unwrap();
    assert_eq!(written.load(Ordering::Relaxed), 4);
    // Files without any room are written through.
    let many: Vec<_> = (0..20).map(|i| format!("m{i}")).collect();
    for file in &many {
        let f = s.open(file).await;
        s.gate.shut_file(&f.0);
        let at = At { fh: &f.0, open: Some(f.1) };
        let cx = cx();
        let write = s.dirty.write(&cx, at, 0, pattern(1, MIB).into(), Stability::Unstable);
        let _ = tokio::time::timeout(Duration::from_millis(1), write).await;
    }
    let stats = s.dirty.stats();
    assert!(stats.dirty_bytes <= 8 * MIB && stats.dirty_bytes_peak <= 8 * MIB);
    assert!(stats.writes_through > 0 && stats.pushbacks > 0);
    s.gate.open_all();
    writer.await.unwrap();
    s.commit(&slow).await.unwrap();
    assert_eq!(s.below(&slow.0).await.len() as u64, 16 * MIB);
}

/// A writer continues when one WRITE of its file has ended, not when all have.
#[tokio::test(start_paused = true)]
async fn push_back_is_smooth() {
    let options = WriteBackOptions { dirty_max_bytes: 8 * MIB, ..Default::default() };
    let s = Stack::new(options).await;
    let f = s.open("f").await;
    // Each WRITE takes a second, and four run at a time.
    s.gate.decide(Box::new(|_, _| Verdict::Pass(Duration::from_secs(1))));
    let mut longest = Duration::ZERO;
    let started = tokio::time::Instant::now();
    for i in 0..40 {
        let before = tokio::time::Instant::now();
        s.write(&f, i * MIB, pattern(1, MIB)).await.unwrap();
        longest = longest.max(before.elapsed());
    }
    assert!(longest <= Duration::from_secs(1), "{longest:?}");
    assert!(started.elapsed() >= Duration::from_secs(8));
    s.commit(&f).await.unwrap();
}

/// A sequential writer that waits for room still sends whole chunks.
#[tokio::test(start_paused = true)]
async fn push_back_sends_whole_chunks() {
    let options = WriteBackOptions { dirty_max_bytes: 8 * MIB, ..Default::default() };
    let s = Stack::new(options).await;
    let f = s.open("f").await;
    s.gate.decide(Box::new(|_, _| Verdict::Pass(Duration::from_millis(100))));
    for i in 0..320 {
        s.write(&f, i * 100_000, pattern(1, 100_000)).await.unwrap();
    }
    s.commit(&f).await.unwrap();
    assert!(s.dirty.stats().pushbacks > 10);
    assert_eq!(s.gate.calls("write") as u64, 32_000_000_u64.div_ceil(MIB));
}

/// Many files with few bytes each make room before their age.
#[tokio::test(start_paused = true)]
async fn many_small_files_make_room() {
    let options = WriteBackOptions { dirty_max_bytes: MIB, ..Default::default() };
    let s = Stack::new(options).await;
    for i in 0..500 {
        let f = s.open(&format!("f{i}")).await;
        s.write(&f, 0, pattern(i as u8, 10_000)).await.unwrap();
        settle().await;
    }
    let stats = s.dirty.stats();
    assert_eq!((stats.writes_through, stats.pushbacks), (0, 0));
    assert!(stats.dirty_bytes_peak < 600 << 10 && stats.flushes_pressure > 400);
}

#[tokio::test(start_paused = true)]
async fn waiting_can_be_interrupted() {
    let options = WriteBackOptions { dirty_max_bytes: 4 * MIB, ..Default::default() };
    let s = Stack::new(options).await;
    let f = s.open("f").await;
    s.gate.shut("write");
    s.write(&f, 0, pattern(1, MIB)).await.unwrap();
    s.write(&f, MIB, pattern(1, MIB)).await.unwrap();
    let cancel = CancellationToken::new();
    let mine = RequestContext { cancel: cancel.clone(), ..cx() };
    let (c, later) = (cancel.clone(), tokio::time::sleep(Duration::from_secs(1)));
    tokio::spawn(async move {
        later.await;
        c.cancel();
    });
    let write = s.dirty.write(&mine, at(&f), 2 * MIB, pattern(1, MIB).into(), Stability::Unstable).await;
    assert_eq!(write.unwrap_err().errno, libc::EINTR);
    assert_eq!(s.dirty.commit(&mine, at(&f)).await.unwrap_err().errno, libc::EINTR);
    let close = s.dirty.close(&mine, &f.0, f.1).await;
    assert_eq!(close.unwrap_err().errno, libc::EINTR);
    assert_eq!(s.gate.calls("close"), 0);
    s.gate.open_all();
    tokio::time::sleep(Duration::from_millis(1)).await;
    settle().await;
    assert_eq!(s.gate.calls("close"), 1, "the close continues");
    assert_eq!(s.below(&f.0).await.len() as u64, 2 * MIB);
}

#[tokio::test(start_paused = true)]
async fn a_descriptor_for_reading_cannot_write() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    let how = OpenHow { access: OpenAccess::READ, create: Create::No, ..how(false) };
    let reader = s.dirty.open(&cx(), PathRef::fh(&f.0), &how).await.unwrap();
    let reader = (f.0.clone(), reader.open);
    assert_eq!(s.write(&reader, 0, pattern(1, 1)).await.unwrap_err().errno, libc::EBADF);
    s.write(&f, 0, pattern(1, 10)).await.unwrap();
    assert_eq!(s.read(&reader, 0, 100).await, pattern(1, 10));
    s.commit(&reader).await.unwrap();
    assert_eq!(s.below(&f.0).await.len(), 10);
}

/// The caller makes small copies itself, without a call, even for unsent bytes. The server makes
/// larger copies.
#[tokio::test(start_paused = true)]
async fn small_copy_is_left_to_caller() {
    let s = Stack::new(WriteBackOptions { small_copy_bytes: 1000, ..Default::default() }).await;
    let (f, g) = (s.open("f").await, s.open("g").await);
    s.write(&f, 0, pattern(1, 1000)).await.unwrap();
    let at = |f: &(Fh, OpenId)| (f.0.clone(), f.1);
    let (from, to) = (at(&f), at(&g));
    let (from, to) = (At { fh: &from.0, open: Some(from.1) }, At { fh: &to.0, open: Some(to.1) });
    let copied = s.dirty.copy(&cx(), from, 0, to, 0, 1 << 30).await;
    assert_eq!(copied.unwrap_err().errno, libc::EOPNOTSUPP);
    assert_eq!((s.gate.calls("write"), s.gate.calls("copy")), (0, 0));
    s.write(&f, 1000, pattern(2, 10)).await.unwrap();
    assert_eq!(s.dirty.copy(&cx(), from, 0, to, 0, 1 << 30).await.unwrap(), 1010);
    assert_eq!(s.below(&g.0).await, s.below(&f.0).await);
    assert_eq!(s.dirty.copy(&cx(), from, 10, to, 0, 1 << 30).await.unwrap_err().errno, libc::EOPNOTSUPP);
    assert_eq!(s.dirty.copy(&cx(), from, 0, to, 0, 10).await.unwrap_err().errno, libc::EOPNOTSUPP);
    // At the end of the source a copy has no bytes and needs no call.
    assert_eq!(s.dirty.copy(&cx(), from, 1010, to, 0, 10).await.unwrap(), 0);
}
