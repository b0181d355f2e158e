//! Tests of delayed attributes: conditions, waiting callers, order, and refusals.

use super::finish::{LONG_AGO, mode, times};
use super::gate::Verdict;
use super::questions::KEPT;
use super::*;
use hither_vfs::{Access, BatchOps, Time, XattrMode};
use tokio::time::Instant;

const AGE: Duration = Duration::from_secs(5);

fn other() -> RequestContext {
    RequestContext::new(Arc::new(Cred { uid: 1000, gid: 1000, ..Cred::root() }))
}

fn reading() -> OpenHow {
    OpenHow { access: OpenAccess::READ, create: Create::No, ..how(false) }
}

fn only(access: Time) -> SetAttr {
    SetAttr { atime: Some(SetTime::To(access)), ..SetAttr::default() }
}

/// An endless stream of whole chunks delays neither permissions nor access times longer than the
/// age of bytes.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn endless_writer_delays_no_attributes() {
    for which in 0..3 {
        let s = Stack::new(WriteBackOptions { wsize_bytes: 4096, ..Default::default() }).await;
        let f = s.create("f", 0o600).await;
        s.gate.decide(Box::new(|_, _| Verdict::Pass(Duration::from_millis(100))));
        let mut at = 0;
        let mut more = async |n: u64| {
            for _ in 0..n {
                s.write(&f, at, vec![1; 4096]).await.unwrap();
                at += 4096;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        more(20).await;
        let set =
            [mode(0o644), only(LONG_AGO), SetAttr { mode: Some(0o644), ..only(LONG_AGO) }][which].clone();
        s.set(&f, &set).await;
        let since = Instant::now();
        while since.elapsed() < AGE + Duration::from_millis(300) {
            more(4).await;
        }
        let theirs = s.theirs(&f.0).await;
        assert_eq!(theirs.mode, set.mode.unwrap_or(0o600), "{which}");
        assert!(set.atime.is_none() || theirs.atime == LONG_AGO, "{which}");
        assert!(s.gate.calls("write") > 200, "the stream continues");
        s.close(&f).await.unwrap();
    }
}

/// Delayed permissions reach a full server in time, although it refuses the bytes before them.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn a_full_server_gets_permissions() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o600).await;
    s.write(&f, 0, "bytes").await.unwrap();
    s.set(&f, &mode(0o644)).await;
    s.set(&f, &times()).await;
    s.gate.fail("write", libc::ENOSPC);
    tokio::time::sleep(AGE + Duration::from_secs(2)).await;
    assert_eq!((s.theirs(&f.0).await.mode, s.theirs(&f.0).await.size_bytes), (0o644, 0));
    s.gate.fail("write", 0);
    assert_eq!(s.commit(&f).await.unwrap_err().errno, libc::ENOSPC, "the earlier error is reported");
    s.commit(&f).await.unwrap();
    let theirs = s.theirs(&f.0).await;
    assert_eq!((theirs.mtime, theirs.size_bytes), (LONG_AGO, 5));
}

/// An open waits for the permissions of its file at most. It waits neither for bytes nor for other
/// files.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn open_waits_for_permissions_only() {
    for by_name in [false, true] {
        let s = Stack::new(WriteBackOptions::default()).await;
        let (f, g) = (s.create("f", 0o600).await, s.create("g", 0o600).await);
        s.gate.shut("write");
        for f in [&f, &g] {
            s.write(f, 0, vec![1; 3 * MIB as usize]).await.unwrap();
            s.set(f, &mode(0o644)).await;
            s.set(f, &times()).await;
        }
        let at = name("f");
        let at = if by_name { PathRef::name(&s.root, &at) } else { PathRef::fh(&f.0) };
        s.dirty.open(&other(), at, &reading()).await.unwrap();
        assert_eq!((s.theirs(&f.0).await.mode, s.theirs(&g.0).await.mode), (0o644, 0o600));
        assert_eq!(s.gate.calls("setattr"), 1);
        // A refusal for other reasons causes no call.
        let h = s.create("h", 0o600).await;
        s.dirty.open(&other(), PathRef::fh(&h.0), &reading()).await.unwrap_err();
        s.dirty.open(&other(), PathRef::name(&s.root, &name("h")), &reading()).await.unwrap_err();
        assert_eq!(s.gate.calls("setattr"), 1);
        s.gate.open_all();
        for f in [f, g] {
            s.close(&f).await.unwrap();
            assert_eq!((s.theirs(&f.0).await.mode, s.theirs(&f.0).await.mtime), (0o644, LONG_AGO));
        }
    }
}

/// A call that the server may refuse for lack of delayed permissions, or that must follow them,
/// finds them at the server.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn calls_find_delayed_permissions() {
    for call in 0..11 {
        let s = Stack::new(WriteBackOptions::default()).await;
        let all = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        s.dirty.setattr(&cx(), At { fh: &s.root, open: None }, &all).await.unwrap();
        let f = s.create("f", 0o600).await;
        s.write(&f, 0, "bytes").await.unwrap();
        s.set(&f, &mode(0o666)).await;
        s.gate.shut("write");
        let (file, cx, fh) = (name("f"), other(), &f.0);
        let (cut, by_name) = (OpenHow { create: Create::No, ..how(true) }, PathRef::name(&s.root, &file));
        let size = SetAttr { size_bytes: Some(2), ..SetAttr::default() };
        let away = SetAttr { uid: Some(1000), ..SetAttr::default() };
        let d = &s.dirty;
        match call {
            0 => drop(d.access(&cx, fh, Access::READ).await.unwrap()),
            1 => drop(d.revalidate_many(&cx, std::slice::from_ref(fh), Access::READ).await),
            2 => drop(d.open(&cx, PathRef::fh(fh), &cut).await.unwrap()),
            3 => drop(d.open(&cx, by_name, &cut).await.unwrap()),
            4 => drop(d.setattr(&cx, At { fh, open: None }, &size).await.unwrap()),
            5 => drop(d.getxattr(&cx, fh, b"user.x").await),
            6 => drop(d.setxattr(&cx, fh, b"user.x", &Bytes::from_static(b"1"), XattrMode::Either).await),
            7 => drop(d.listxattr(&cx, fh).await),
            8 => drop(d.removexattr(&cx, fh, b"user.x").await),
            9 => drop(d.link(&cx, fh, &s.root, &name("g")).await),
            _ => {
                // The owner is changed while the bytes cannot be sent.
                s.gate.fail("write", libc::ENOSPC);
                s.gate.open_all();
                s.set(&f, &away).await;
            }
        }
        assert_eq!(s.theirs(fh).await.mode, 0o666, "{call}");
        let log = s.gate.log();
        let calls: Vec<_> = log.iter().filter(|op| *op != "getattr" && *op != "walk").collect();
        if (5..10).contains(&call) {
            assert_eq!(calls[calls.len() - 2..][0], "setattr", "{call}: {log:?}");
        }
        s.gate.fail("write", 0);
        s.gate.open_all();
        s.close(&f).await.ok();
    }
}

/// An access control list is not set while older permissions could arrive after it.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn access_control_lists_come_after() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o600).await;
    s.set(&f, &mode(0o644)).await;
    s.gate.fail("setattr", libc::EIO);
    let value = Bytes::from_static(b"1");
    let set = s.dirty.setxattr(&cx(), &f.0, b"user.x", &value, XattrMode::Either).await;
    assert_eq!(set.unwrap_err().errno, libc::EIO);
    s.dirty.removexattr(&cx(), &f.0, b"user.x").await.unwrap_err();
    assert_eq!((s.gate.calls("setxattr"), s.gate.calls("removexattr")), (0, 0));
}

/// A change that the server may execute differently is sent at once.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn uncertain_attributes_are_sent_at_once() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let before_1970 = Time { secs: -1, nanos: 0 };
    let late = Time { secs: 1 << 31, nanos: 0 };
    let modified = |t| SetAttr { mtime: Some(t), ..SetAttr::default() };
    let sets = [
        mode(0o4644),
        mode(0o2644),
        mode(0o1644),
        modified(SetTime::Now),
        modified(SetTime::To(before_1970)),
        modified(SetTime::To(late)),
        only(before_1970),
    ];
    for (i, set) in sets.iter().enumerate() {
        let f = s.create(&format!("f{i}"), 0o600).await;
        let before = s.gate.calls("setattr");
        s.set(&f, set).await;
        assert_eq!(s.gate.calls("setattr"), before + 1, "{set:?}");
        s.close(&f).await.unwrap();
    }
    // The server may clear special bits that are already set.
    let f = s.create("special", 0o4600).await;
    s.set(&f, &mode(0o4644)).await;
    assert_eq!(s.theirs(&f.0).await.mode, 0o4644);
    s.set(&f, &SetAttr { gid: Some(0), ..SetAttr::default() }).await;
    assert_eq!(s.theirs(&f.0).await.mode & 0o6000, 0, "the cleared bits are visible");
    // The server does not report the caller as the owner: the file was squashed or given away.
    let f = s.create("given", 0o600).await;
    s.set(&f, &SetAttr { uid: Some(77), ..SetAttr::default() }).await;
    let before = s.gate.calls("setattr");
    s.set(&f, &times()).await;
    assert_eq!(s.gate.calls("setattr"), before + 1);
    // A change without effect is sent when no bytes are to be sent.
    let f = s.create("same", 0o600).await;
    let before = s.gate.calls("setattr");
    s.set(&f, &mode(0o600)).await;
    s.set(&f, &SetAttr { uid: Some(0), gid: Some(0), ..SetAttr::default() }).await;
    assert_eq!(s.gate.calls("setattr"), before + 2);
    s.write(&f, 0, "bytes").await.unwrap();
    s.set(&f, &mode(0o600)).await;
    assert_eq!(s.gate.calls("setattr"), before + 2);
    assert_eq!(s.dirty.stats().attributes_merged, 1);
}

/// Permissions that wait again after a failed call are sent for a call that needs them.
#[tokio::test(start_paused = true)]
async fn open_sends_withdrawn_permissions() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o600).await;
    s.gate.fail("write", libc::ENOSPC);
    s.write(&f, 0, "bytes").await.unwrap();
    s.set(&f, &mode(0o666)).await;
    s.gate.fail("setattr", libc::EIO);
    s.dirty.setattr(&cx(), At { fh: &f.0, open: None }, &mode(0o640)).await.unwrap_err();
    s.gate.fail("setattr", 0);
    assert_eq!((s.theirs(&f.0).await.mode, s.shown(&f.0).await.mode), (0o600, 0o666));
    s.dirty.open(&other(), PathRef::name(&s.root, &name("f")), &reading()).await.unwrap();
    assert_eq!(s.theirs(&f.0).await.mode, 0o666);
}

/// The visible times do not change when they are sent, and do not go back at the next write.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn flush_keeps_visible_times() {
    for ahead_s in [-3600, 0, 3600] {
        let s = Stack::with_clock(WriteBackOptions::default(), u64::MAX, ahead_s).await;
        let f = s.create("f", 0o600).await;
        s.write(&f, 0, "bytes").await.unwrap();
        let set = SetAttr { atime: Some(SetTime::Now), ..times() };
        let told = s.set(&f, &set).await.attr;
        assert_eq!(told.mtime, LONG_AGO);
        assert_eq!(s.gate.calls("setattr"), 0);
        let seen = s.shown(&f.0).await;
        s.commit(&f).await.unwrap();
        let (after, theirs) = (s.shown(&f.0).await, s.theirs(&f.0).await);
        for attr in [seen, after, theirs] {
            assert_eq!((attr.mtime, attr.atime), (told.mtime, told.atime), "{ahead_s}");
        }
        // The server's own time is requested from the server.
        s.set(&f, &SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }).await;
        let mut last = s.shown(&f.0).await.mtime;
        assert_eq!(last, s.theirs(&f.0).await.mtime);
        if ahead_s > 0 {
            // With the local clock ahead, the visible time goes back to the server's once, as
            // documented.
            continue;
        }
        for step in 0..3 {
            s.write(&f, 0, "again").await.unwrap();
            if step == 1 {
                s.commit(&f).await.unwrap();
            }
            let now = s.shown(&f.0).await.mtime;
            assert!(now >= last, "{ahead_s}: {now:?} after {last:?}");
            last = now;
        }
    }
}

/// The refusal of attributes that were sent alone is reported. Other waiting attributes are sent
/// all the same.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn refusal_keeps_other_attributes() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o600).await;
    s.write(&f, 0, "bytes").await.unwrap();
    s.set(&f, &mode(0o644)).await;
    s.set(&f, &times()).await;
    s.gate.fail("setattr", libc::EPERM);
    s.dirty.access(&other(), &f.0, Access::READ).await.unwrap();
    s.gate.fail("setattr", 0);
    assert_eq!((s.shown(&f.0).await.mode, s.shown(&f.0).await.mtime), (0o600, LONG_AGO));
    assert_eq!(s.commit(&f).await.unwrap_err().errno, libc::EPERM);
    s.commit(&f).await.unwrap();
    let theirs = s.theirs(&f.0).await;
    assert_eq!((theirs.mode, theirs.mtime, theirs.size_bytes), (0o600, LONG_AGO, 5));
}

/// A file is kept for the requests that were open at its close, and not for later ones.
#[tokio::test(start_paused = true)]
async fn overlapping_requests_keep_no_file() {
    let s = Arc::new(Stack::new(WriteBackOptions::default()).await);
    let f = s.create("f", 0o600).await;
    s.write(&f, 0, "bytes").await.unwrap();
    let ask = || {
        let s = s.clone();
        tokio::spawn(async move {
            s.gate.shut("walk answer");
            let at = name("f");
            let _ = s.dirty.walk(&cx(), PathRef::name(&s.root, &at), Default::default()).await;
        })
    };
    let first = s.dirty.asking();
    s.close(&f).await.unwrap();
    settle().await;
    assert_eq!(s.dirty.questions.kept(), 1);
    let later = ask();
    settle().await;
    drop(first);
    assert_eq!((s.dirty.questions.kept(), s.dirty.files.read().len()), (0, 0));
    // A file without changes is not kept at all.
    let g = s.open("f").await;
    s.close(&g).await.unwrap();
    settle().await;
    assert_eq!((s.dirty.questions.kept(), s.dirty.files.read().len()), (0, 0));
    s.gate.open_all();
    later.await.unwrap();
}

/// Any number of files may be closed during a request: memory is bounded, and the answer is right.
/// The slow request is repeated.
#[tokio::test(start_paused = true)]
async fn slow_request_is_repeated() {
    let s = Arc::new(Stack::new(WriteBackOptions::default()).await);
    let f = s.create("f", 0o600).await;
    s.write(&f, 0, "bytes").await.unwrap();
    s.gate.shut("walk answer");
    let this = s.clone();
    let late = tokio::spawn(async move {
        let at = name("f");
        let trail = this.dirty.walk(&cx(), PathRef::name(&this.root, &at), Default::default()).await;
        trail.unwrap().steps.remove(0).attrs.attr.size_bytes
    });
    settle().await;
    s.close(&f).await.unwrap();
    for i in 0..KEPT + 10 {
        let g = s.create(&format!("g{i}"), 0o600).await;
        s.write(&g, 0, "bytes").await.unwrap();
        s.close(&g).await.unwrap();
        assert!(s.dirty.questions.kept() <= KEPT && s.dirty.files.read().len() <= KEPT + 1);
    }
    assert!(s.dirty.files.read().len() < 20, "{}", s.dirty.files.read().len());
    s.gate.open_all();
    assert_eq!(late.await.unwrap(), 5);
    assert_eq!(s.gate.calls("walk"), 2);
    settle().await;
    assert!(s.dirty.holds_no_file());
}

/// Attributes that cannot be set for now delay neither bytes nor writers. An fsync or close reports
/// their error.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn attributes_that_fail_keep_no_bytes() {
    for errno in [libc::EIO, libc::EDQUOT, libc::ENOSPC] {
        let s = Stack::new(WriteBackOptions { wsize_bytes: 4096, ..Default::default() }).await;
        let f = s.create("f", 0o600).await;
        s.gate.fail("setattr", errno);
        s.write(&f, 0, vec![1; 20_000]).await.unwrap();
        s.set(&f, &mode(0o644)).await;
        s.set(&f, &times()).await;
        tokio::time::sleep(AGE + Duration::from_secs(1)).await;
        assert_eq!(s.below(&f.0).await, vec![1; 20_000], "the bytes are sent by age");
        s.write(&f, 0, "more").await.ok();
        let file = At { fh: &f.0, open: Some(f.1) };
        let data = Data::from(Bytes::from_static(b"synchronous"));
        s.dirty.write(&cx(), file, 100, data, Stability::Stable).await.unwrap();
        s.write(&f, 30_000, vec![2; 10]).await.unwrap();
        assert_eq!(s.close(&f).await.unwrap_err().errno, errno);
        let theirs = s.below(&f.0).await;
        assert_eq!((&theirs[100..111], &theirs[30_000..]), (&b"synchronous"[..], &[2; 10][..]));
        assert_eq!((s.dirty.stats().bytes_dropped, s.dirty.stats().dirty_bytes), (0, 0));
        settle().await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(s.dirty.holds_no_file(), "no state is left");
    }
}

/// Attributes that failed are sent again.
#[tokio::test(start_paused = true)]
async fn attributes_that_fail_are_tried_again() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o600).await;
    s.gate.fail("setattr", libc::EIO);
    s.set(&f, &mode(0o644)).await;
    tokio::time::sleep(AGE + Duration::from_secs(1)).await;
    s.gate.fail("setattr", 0);
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(s.theirs(&f.0).await.mode, 0o644);
    s.commit(&f).await.unwrap_err();
    s.commit(&f).await.unwrap();
}

/// A refused truncation leaves delayed times unchanged. A successful one, by any call, supersedes
/// them.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn successful_truncation_voids_times() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o600).await;
    s.write(&f, 0, "bytes").await.unwrap();
    s.set(&f, &times()).await;
    let size = SetAttr { size_bytes: Some(1), ..SetAttr::default() };
    let refused = s.dirty.setattr(&other(), At { fh: &f.0, open: None }, &size).await;
    assert_eq!(refused.unwrap_err().errno, libc::EACCES);
    assert_eq!(s.shown(&f.0).await.mtime, LONG_AGO);
    s.close(&f).await.unwrap();
    assert_eq!(s.theirs(&f.0).await.mtime, LONG_AGO);
    for (i, by_name) in [false, true].into_iter().enumerate() {
        for empty in [false, true] {
            let file = format!("g{i}{empty}");
            let f = s.create(&file, 0o600).await;
            if !empty {
                s.write(&f, 0, "bytes").await.unwrap();
                s.dirty.flush(&s.dirty.known(&f.0).unwrap(), Reason::Age, false).await.unwrap();
            }
            s.set(&f, &times()).await;
            let (at, cut) = (name(&file), OpenHow { create: Create::No, ..how(true) });
            let at = if by_name { PathRef::name(&s.root, &at) } else { PathRef::fh(&f.0) };
            s.dirty.open(&cx(), at, &cut).await.unwrap();
            s.close(&f).await.unwrap();
            assert_ne!(s.theirs(&f.0).await.mtime, LONG_AGO, "{by_name} {empty}");
        }
    }
}

/// A refusal that was in flight while the permissions arrived is followed by another attempt.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn late_refusals_are_asked_again() {
    let s = Arc::new(Stack::new(WriteBackOptions::default()).await);
    let f = s.create("f", 0o600).await;
    s.set(&f, &mode(0o644)).await;
    s.gate.shut("open answer");
    let (this, fh) = (s.clone(), f.0.clone());
    let late = tokio::spawn(async move { this.dirty.open(&other(), PathRef::fh(&fh), &reading()).await });
    settle().await;
    s.dirty.flush(&s.dirty.known(&f.0).unwrap(), Reason::Age, false).await.unwrap();
    assert_eq!(s.theirs(&f.0).await.mode, 0o644);
    s.gate.open_all();
    late.await.unwrap().unwrap();
}

/// An open returns its own refusal, and not the error of another program's attributes.
#[tokio::test(start_paused = true)]
async fn open_reports_own_refusal() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("f", 0o600).await;
    s.set(&f, &mode(0o644)).await;
    s.gate.fail("setattr", libc::ENOSPC);
    let opened = s.dirty.open(&other(), PathRef::fh(&f.0), &reading()).await;
    assert_eq!(opened.unwrap_err().errno, libc::EACCES);
}

/// A file that lost one of its names is sent by age, like any other.
#[tokio::test(start_paused = true)]
async fn hard_linked_file_is_sent() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.create("a", 0o600).await;
    s.dirty.link(&cx(), &f.0, &s.root, &name("b")).await.unwrap();
    s.write(&f, 0, "bytes").await.unwrap();
    s.set(&f, &times()).await;
    s.dirty.unlink(&cx(), &s.root, &name("a"), Some(&f.0)).await.unwrap();
    tokio::time::sleep(AGE + Duration::from_secs(1)).await;
    assert_eq!(s.below(&f.0).await, b"bytes");
    assert_eq!(s.theirs(&f.0).await.mtime, LONG_AGO);
}
