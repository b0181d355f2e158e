//! Tests of the last load of a file: bytes with delayed attributes in one call.

use super::gate::Verdict;
use super::*;
use hither_vfs::{Access, Attrs, Time};

pub const LONG_AGO: Time = Time { secs: 1_000, nanos: 7 };

impl Stack {
    pub async fn create(&self, file: &str, mode: u32) -> (Fh, OpenId) {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        let how = OpenHow { create: Create::Exclusive(set), ..how(false) };
        let opened = self.dirty.open(&cx(), PathRef::name(&self.root, &name(file)), &how).await.unwrap();
        assert!(opened.created);
        (opened.node.fh, opened.open)
    }

    pub async fn set(&self, (fh, open): &(Fh, OpenId), set: &SetAttr) -> Attrs {
        self.dirty.setattr(&cx(), At { fh, open: Some(*open) }, set).await.unwrap()
    }

    /// The attributes that another client sees.
    pub async fn theirs(&self, fh: &Fh) -> hither_vfs::Attr {
        self.gate.below().getattr(&cx(), At { fh, open: None }).await.unwrap().attr
    }

    pub async fn shown(&self, fh: &Fh) -> hither_vfs::Attr {
        self.dirty.getattr(&cx(), At { fh, open: None }).await.unwrap().attr
    }
}

pub fn times() -> SetAttr {
    let then = Some(SetTime::To(LONG_AGO));
    SetAttr { atime: then, mtime: then, ..SetAttr::default() }
}

pub fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

/// The calls of tar(1) on a file cost one call beside the creation. After fsync the server has all
/// bytes and attributes.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn attributes_are_sent_with_bytes() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o600).await;
    s.write(&f, 0, vec![1; 3000]).await.unwrap();
    let own = SetAttr { uid: Some(0), ..SetAttr::default() };
    for set in [times(), own, mode(0o644)] {
        s.set(&f, &set).await;
    }
    let shown = s.shown(&f.0).await;
    assert_eq!((shown.mode, shown.mtime, shown.atime, shown.size_bytes), (0o644, LONG_AGO, LONG_AGO, 3000));
    assert_eq!((s.gate.calls("setattr"), s.gate.calls("write")), (0, 0));
    assert_eq!((s.theirs(&f.0).await.mode, s.theirs(&f.0).await.size_bytes), (0o600, 0));
    s.commit(&f).await.unwrap();
    assert_eq!(s.gate.finishes(), 1);
    assert_eq!(s.gate.calls("commit"), 1, "for bytes that the layer below may have");
    let theirs = s.theirs(&f.0).await;
    assert_eq!((theirs.mode, theirs.mtime, theirs.size_bytes), (0o644, LONG_AGO, 3000));
    assert_eq!(s.shown(&f.0).await.mtime, LONG_AGO);
    s.dirty.close(&cx(), &f.0, f.1).await.unwrap();
    assert_eq!((s.gate.finishes(), s.gate.calls("setattr")), (1, 1));
}

/// Scattered pages (a database) are sent in parallel and committed by one COMMIT. This takes two
/// round trips for any number of pages, and a third one with delayed attributes.
#[tokio::test(start_paused = true)]
async fn scattered_pages_are_sent_in_parallel() {
    for has_deferred in [false, true] {
        let s = Stack::new(WriteBackOptions::default()).await;
        let f = s.create("f", 0o600).await;
        s.gate.shut("write");
        let pages = 20;
        for page in 0..pages {
            s.write(&f, 16384 * page, vec![page as u8; 8192]).await.unwrap();
        }
        if has_deferred {
            s.set(&f, &times()).await;
        }
        let (this, file) = (s.dirty.clone(), f.clone());
        let commit =
            tokio::spawn(async move { this.commit(&cx(), At { fh: &file.0, open: Some(file.1) }).await });
        settle().await;
        assert_eq!(s.gate.waiting("write") as u64, pages, "all are in flight at once");
        s.gate.open_all();
        commit.await.unwrap().unwrap();
        assert_eq!((s.gate.calls("write") as u64, s.gate.stable_writes()), (pages, 0));
        // With attributes, the bytes are committed before, and the second commit finds no unstable
        // bytes.
        assert_eq!(s.gate.log().iter().filter(|op| *op == "commit").count(), 1 + usize::from(has_deferred));
        assert_eq!(
            (s.gate.finishes(), s.gate.calls("setattr")),
            (usize::from(has_deferred), usize::from(has_deferred))
        );
        let all = s.below(&f.0).await;
        assert!((0..pages as usize).all(|p| all[16384 * p..][..8192] == vec![p as u8; 8192]));
    }
}

/// Large WRITEs of one file do not use all of the mount's slots.
#[tokio::test(start_paused = true)]
async fn whole_chunks_leave_room_for_others() {
    let s = Stack::new(WriteBackOptions { wsize_bytes: 16384, ..WriteBackOptions::default() }).await;
    let f = s.open("f").await;
    s.gate.shut("write");
    for i in 0..40 {
        s.write(&f, i * 16384, vec![i as u8; 16384]).await.unwrap();
    }
    settle().await;
    assert_eq!(s.gate.waiting("write"), WriteBackOptions::default().flights_per_file);
    s.gate.open_all();
    s.commit(&f).await.unwrap();
}

/// A few files without answers of the server leave slots for the next file.
#[tokio::test(start_paused = true)]
async fn stuck_files_leave_room_for_others() {
    let s = Stack::new(WriteBackOptions::default()).await;
    for i in 0..5 {
        let f = s.create(&format!("f{i}"), 0o600).await;
        s.gate.shut_file(&f.0);
        for page in 0..40u64 {
            s.write(&f, 16384 * page, vec![1; 4096]).await.unwrap();
        }
        let file = s.dirty.known(&f.0).unwrap();
        s.dirty.flush_in_background(&file, Reason::Age);
        settle().await;
    }
    let f = s.create("next", 0o600).await;
    s.write(&f, 0, "bytes").await.unwrap();
    tokio::time::timeout(Duration::from_secs(1), s.commit(&f)).await.unwrap().unwrap();
    // Files with few slots get their share when there are more.
    s.gate.open_all();
    s.dirty.sync().await.unwrap();
    assert_eq!(s.dirty.stats().dirty_bytes, 0);
}

/// A write supersedes a modification time that was set before.
#[tokio::test(start_paused = true)]
async fn bytes_written_later_are_newer() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o600).await;
    s.set(&f, &times()).await;
    s.write(&f, 0, "bytes").await.unwrap();
    assert_ne!(s.shown(&f.0).await.mtime, LONG_AGO);
    s.commit(&f).await.unwrap();
    let theirs = s.theirs(&f.0).await;
    assert_ne!(theirs.mtime, LONG_AGO);
    assert_eq!(theirs.atime, LONG_AGO);
    s.set(&f, &times()).await;
    let cut = SetAttr { size_bytes: Some(2), ..SetAttr::default() };
    s.set(&f, &cut).await;
    s.commit(&f).await.unwrap();
    assert_ne!(s.theirs(&f.0).await.mtime, LONG_AGO);
}

/// Three kinds of changes are not delayed: changes that remove rights, changes by another user, and
/// changes to a file that existed before.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn risky_attributes_are_not_delayed() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o644).await;
    s.set(&f, &mode(0o600)).await;
    assert_eq!(s.theirs(&f.0).await.mode, 0o600);
    s.set(&f, &SetAttr { uid: Some(77), ..SetAttr::default() }).await;
    assert_eq!(s.theirs(&f.0).await.uid, 77);
    let old = s.open("old").await;
    s.commit(&old).await.unwrap();
    s.dirty.close(&cx(), &old.0, old.1).await.unwrap();
    let old = s.open("old").await;
    s.set(&old, &times()).await;
    assert_eq!(s.theirs(&old.0).await.mtime, LONG_AGO);
    // After the close of the creating open no change is delayed.
    let f = s.create("g", 0o600).await;
    s.dirty.close(&cx(), &f.0, f.1).await.unwrap();
    s.dirty.setattr(&cx(), At { fh: &f.0, open: None }, &times()).await.unwrap();
    assert_eq!(s.theirs(&f.0).await.mtime, LONG_AGO);
    assert_eq!(s.dirty.stats().attributes_merged, 0);
}

/// Delayed permissions are at the server when a call depends on them.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn dependent_calls_send_permissions() {
    let s = Stack::new(WriteBackOptions::default()).await;
    for ask in 0..3 {
        let file = format!("f{ask}");
        let f = s.create(&file, 0o600).await;
        s.set(&f, &mode(0o644)).await;
        assert_eq!(s.theirs(&f.0).await.mode, 0o600);
        let (other, at) = (RequestContext::new(Arc::new(Cred { uid: 1000, ..Cred::root() })), name(&file));
        let read = OpenHow { access: OpenAccess::READ, create: Create::No, ..how(false) };
        match ask {
            0 => drop(s.dirty.access(&other, &f.0, Access::READ).await.unwrap()),
            1 => drop(s.dirty.open(&other, PathRef::fh(&f.0), &read).await.unwrap()),
            _ => drop(s.dirty.open(&other, PathRef::name(&s.root, &at), &read).await.unwrap()),
        }
        assert_eq!(s.theirs(&f.0).await.mode, 0o644, "{ask}");
    }
}

/// Attributes without bytes are sent by age, and by close at the latest.
#[tokio::test(start_paused = true)]
async fn attributes_alone_are_sent() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o600).await;
    s.set(&f, &times()).await;
    tokio::time::sleep(2 * WriteBackOptions::default().dirty_age).await;
    assert_eq!(s.theirs(&f.0).await.mtime, LONG_AGO);
    s.set(&f, &mode(0o640)).await;
    s.dirty.close(&cx(), &f.0, f.1).await.unwrap();
    assert_eq!(s.theirs(&f.0).await.mode, 0o640);
    assert_eq!(s.gate.finishes(), 2);
}

/// The attributes of a large file are sent after its bytes are committed.
#[tokio::test(start_paused = true)]
async fn attributes_of_large_files_come_last() {
    let s = Stack::new(WriteBackOptions { wsize_bytes: 16 << 10, ..WriteBackOptions::default() }).await;
    let f = s.create("f", 0o600).await;
    for i in 0..40u64 {
        s.write(&f, i * 4096, vec![7; 4096]).await.unwrap();
    }
    s.set(&f, &times()).await;
    s.commit(&f).await.unwrap();
    let theirs = s.theirs(&f.0).await;
    assert_eq!((theirs.mtime, theirs.size_bytes), (LONG_AGO, 40 * 4096));
    let log = s.gate.log();
    let last = |op: &str| log.iter().rposition(|o| o == op).unwrap();
    assert!(last("write") < last("setattr"), "{log:?}");
    assert!(log[last("write")..last("setattr")].contains(&"commit".to_owned()), "{log:?}");
}

/// An fsync reports refused attributes once. Attributes without an answer are sent again.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn refused_attributes_are_reported() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o600).await;
    s.write(&f, 0, "bytes").await.unwrap();
    s.set(&f, &times()).await;
    s.gate.fail("setattr", libc::EPERM);
    assert_eq!(s.commit(&f).await.unwrap_err().errno, libc::EPERM);
    s.commit(&f).await.unwrap();
    assert_eq!(s.theirs(&f.0).await.size_bytes, 5);
    let f = s.create("g", 0o600).await;
    s.set(&f, &times()).await;
    s.gate.fail("setattr", libc::EIO);
    assert_eq!(s.commit(&f).await.unwrap_err().errno, libc::EIO);
    s.gate.fail("setattr", 0);
    s.commit(&f).await.unwrap();
    assert_eq!(s.theirs(&f.0).await.mtime, LONG_AGO);
}

/// A partially written last load continues at the end of the written part.
#[tokio::test(start_paused = true)]
async fn partial_last_write_continues() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o600).await;
    s.write(&f, 200, vec![2; 100]).await.unwrap();
    s.set(&f, &times()).await;
    s.gate.decide(Box::new(|at, len| match (at, len) {
        (200, 100) => Verdict::Short(Duration::ZERO, 30),
        _ => Verdict::Pass(Duration::ZERO),
    }));
    s.commit(&f).await.unwrap();
    assert_eq!(s.gate.writes(), [(200, 100), (230, 70)]);
    let read = s.below(&f.0).await;
    assert!(read[..200] == [0; 200] && read[200..] == [2; 100], "{read:?}");
    assert_eq!(s.theirs(&f.0).await.mtime, LONG_AGO);
}

/// The attributes of a file without names are not sent.
#[tokio::test(start_paused = true)]
async fn removed_file_sends_no_attributes() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o600).await;
    s.write(&f, 0, "never sent").await.unwrap();
    s.set(&f, &times()).await;
    s.dirty.unlink(&cx(), &s.root, &name("f"), Some(&f.0)).await.unwrap();
    s.dirty.close(&cx(), &f.0, f.1).await.unwrap();
    assert_eq!((s.gate.calls("write"), s.gate.finishes()), (0, 0));
    assert_eq!(s.dirty.stats().dirty_files, 0);
}

/// Attributes that are set directly are newer than delayed ones that could not be sent.
#[tokio::test(start_paused = true)]
async fn direct_attributes_supersede_delayed() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o600).await;
    s.write(&f, 0, "bytes").await.unwrap();
    s.set(&f, &mode(0o666)).await;
    s.set(&f, &times()).await;
    s.gate.fail("write", libc::ENOSPC);
    s.set(&f, &mode(0o640)).await;
    assert_eq!(s.theirs(&f.0).await.mode, 0o640);
    s.gate.fail("write", 0);
    s.commit(&f).await.ok();
    s.commit(&f).await.unwrap();
    let theirs = s.theirs(&f.0).await;
    assert_eq!((theirs.mode, theirs.mtime), (0o640, LONG_AGO));
}

/// An answer from before the attributes and the close of a file is corrected when it arrives later.
#[tokio::test(start_paused = true)]
async fn late_replies_show_set_attributes() {
    for closed in [false, true] {
        let s = Stack::new(WriteBackOptions::default()).await;
        let f = s.create("f", 0o600).await;
        s.write(&f, 0, "bytes").await.unwrap();
        s.set(&f, &times()).await;
        s.set(&f, &mode(0o644)).await;
        s.gate.shut("walk answer");
        let (dirty, root) = (s.dirty.clone(), s.root.clone());
        let late = tokio::spawn(async move {
            let trail = dirty.walk(&cx(), PathRef::name(&root, &name("f")), Default::default()).await;
            trail.unwrap().steps.remove(0).attrs
        });
        settle().await;
        if closed {
            s.close(&f).await.unwrap();
        } else {
            s.commit(&f).await.unwrap();
        }
        settle().await;
        s.gate.open_all();
        let late = late.await.unwrap();
        let shown = (late.attr.mode, late.attr.mtime, late.attr.size_bytes);
        assert_eq!(shown, (0o644, LONG_AGO, 5), "{closed}");
        assert_eq!(late.valid, hither_vfs::Validity::Once);
        // The file is dropped with the last request that may be older.
        assert_eq!(s.dirty.holds_no_file(), closed);
    }
}

/// After an fsync or a close(2), attributes are set at the server at once, even while the open
/// lasts.
#[tokio::test(start_paused = true)]
async fn after_fsync_nothing_waits() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o600).await;
    s.commit(&f).await.unwrap();
    s.set(&f, &mode(0o644)).await;
    assert_eq!(s.theirs(&f.0).await.mode, 0o644);
}

/// Attributes that are set while older ones are about to be sent come after bytes written in
/// between.
#[tokio::test(start_paused = true)]
async fn bytes_written_before_are_sent_before() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o600).await;
    s.set(&f, &mode(0o644)).await;
    s.write(&f, 0, "one").await.unwrap();
    s.write(&f, 100, "two").await.unwrap();
    s.gate.shut("write");
    let (dirty, g) = (s.dirty.clone(), f.clone());
    let commit =
        tokio::spawn(async move { dirty.flush(&dirty.known(&g.0).unwrap(), Reason::Age, false).await });
    settle().await;
    s.write(&f, 50, "three").await.unwrap();
    s.set(&f, &times()).await;
    s.gate.open_all();
    commit.await.unwrap().unwrap();
    tokio::time::sleep(4 * WriteBackOptions::default().dirty_age).await;
    assert_eq!((s.theirs(&f.0).await.mtime, s.theirs(&f.0).await.mode), (LONG_AGO, 0o644));
    assert_eq!(s.below(&f.0).await[50..55], *b"three");
}

/// Bytes are not sent together with attributes that were set before them.
#[tokio::test(start_paused = true)]
async fn attributes_in_flight_delay_newer_bytes() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o600).await;
    s.set(&f, &times()).await;
    s.gate.shut("setattr");
    let (dirty, g) = (s.dirty.clone(), f.clone());
    let pay = tokio::spawn(async move { dirty.flush(&dirty.known(&g.0).unwrap(), Reason::Age, false).await });
    settle().await;
    s.write(&f, 0, "newer").await.unwrap();
    let shown = s.dirty.known(&f.0).unwrap().state.lock().shown().unwrap();
    assert_ne!(shown.attr.mtime, LONG_AGO);
    let (dirty, g) = (s.dirty.clone(), f.clone());
    let commit = tokio::spawn(async move { dirty.commit(&cx(), At { fh: &g.0, open: Some(g.1) }).await });
    settle().await;
    assert_eq!(s.gate.calls("write"), 0);
    s.gate.open_all();
    pay.await.unwrap().unwrap();
    commit.await.unwrap().unwrap();
    assert_ne!(s.theirs(&f.0).await.mtime, LONG_AGO);
}

/// Attributes that were withdrawn for a failed call are sent even after the close of their open.
#[tokio::test(start_paused = true)]
async fn withdrawn_attributes_outlive_their_open() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o600).await;
    s.gate.fail("write", libc::ENOSPC);
    s.write(&f, 0, "bytes").await.unwrap();
    s.set(&f, &mode(0o666)).await;
    s.gate.shut("setattr");
    let (dirty, g) = (s.dirty.clone(), f.clone());
    let direct =
        tokio::spawn(async move { dirty.setattr(&cx(), At { fh: &g.0, open: None }, &mode(0o640)).await });
    settle().await;
    s.gate.fail("write", 0);
    let other = s.open("f").await;
    s.close(&f).await.ok();
    s.gate.fail("setattr", libc::EIO);
    s.gate.open_all();
    direct.await.unwrap().unwrap_err();
    s.gate.fail("setattr", 0);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(s.theirs(&f.0).await.mode, 0o666);
    s.close(&other).await.ok();
}
