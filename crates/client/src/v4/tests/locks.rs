//! Locks of files with a write delegation: decided in the client, and taken at the server before
//! the delegation is returned.

use super::chains::{UpcallLog, leased};
use super::*;
use hither_proto::nfs4::access;
use server::delegation;

const OTHER: LockOwner = LockOwner { id: 2, flock: false };
const FLOCK: LockOwner = LockOwner { id: 1, flock: true };

/// A mount of a server that grants write delegations to openers for writing.
async fn delegated() -> (Test, Arc<UpcallLog>) {
    let (t, told) = leased(&["f", "g"], Duration::ZERO).await;
    t.server.lock().delegate_writers = true;
    (t, told)
}

fn range(start_bytes: u64, end_bytes: u64) -> FileRange {
    FileRange { start_bytes, end_bytes }
}

impl Test {
    async fn take(&self, o: &Opened, owner: LockOwner, kind: LockKind, at: FileRange) -> i32 {
        errno(self.v4.lock(&cx(), file(o), owner, kind, at, LockWait::No).await)
    }

    async fn release(&self, o: &Opened, owner: LockOwner) {
        self.v4.unlock(&cx(), file(o), owner, ALL).await.unwrap();
    }

    /// Waits for a lock of the whole file. Returns the time of the grant.
    fn wait_for_lock(&self, o: &Opened, owner: LockOwner) -> tokio::task::JoinHandle<Instant> {
        let (v4, o) = (self.v4.clone(), o.clone());
        tokio::spawn(async move {
            v4.lock(&cx(), file(&o), owner, LockKind::Write, ALL, LockWait::Yes).await.unwrap();
            Instant::now()
        })
    }

    /// Number of LOCK, LOCKT, LOCKU and FREE_STATEID calls at the server.
    fn lock_calls(&self) -> usize {
        ["LOCK", "LOCKT", "LOCKU", "FREE_STATEID"].iter().map(|op| self.server.count(op)).sum()
    }

    /// Operations at the server since the last `what`.
    fn log_since(&self, what: &str) -> Vec<String> {
        let log = self.server.lock().log.clone();
        log[log.iter().rposition(|l| l == what).unwrap()..].to_vec()
    }

    fn held_there(&self) -> usize {
        self.server.lock().locks.values().filter(|l| !l.ranges.is_empty()).count()
    }

    async fn recall(&self, file: &str) {
        self.server.recall(delegation(file), file);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// A thousand locks and unlocks need no call under a write delegation, and two thousand without
/// one.
/// Promise: 16a
#[tokio::test(start_paused = true)]
async fn delegated_file_locks_without_calls() {
    for (writers, messages) in [(true, 0), (false, 2000)] {
        let (t, _told) = delegated().await;
        t.server.lock().delegate_writers = writers;
        let f = t.create("f").await;
        let before = t.server.lock().compounds.len();
        for i in 0..1000 {
            assert_eq!(t.take(&f, ME, LockKind::Write, range(i, i + 10)).await, 0);
            t.v4.unlock(&cx(), file(&f), ME, range(i, i + 10)).await.unwrap();
        }
        assert_eq!((t.lock_calls(), t.server.lock().compounds.len() - before), (messages, messages));
        // The last close has no lock to release.
        t.close(&f).await;
        assert_eq!(t.lock_calls(), messages);
        assert!(t.server.lock().opens.is_empty());
        t.check();
    }
}

/// Owners on this machine exclude each other as at the server, for any open, user, and kind of
/// lock.
/// Promise: 16a
#[tokio::test(start_paused = true)]
async fn local_lock_owners_conflict() {
    use LockKind::{Read, Write};
    let (t, _told) = delegated().await;
    let f = t.create("f").await;
    let user = RequestContext::new(Arc::new(Cred { uid: 7, ..Cred::root() }));
    let theirs = t.v4.open(&user, PathRef::fh(&f.node.fh), &how(Create::No)).await.unwrap();
    assert_eq!(t.take(&f, ME, Write, range(10, 20)).await, 0);
    for o in [&f, &theirs] {
        assert_eq!(t.take(o, OTHER, Read, range(0, 11)).await, libc::EAGAIN);
        assert_eq!(t.take(o, FLOCK, Write, ALL).await, libc::EAGAIN);
        assert_eq!(t.take(o, OTHER, Write, range(20, 30)).await, 0);
        assert_eq!(t.take(o, ME, Write, range(29, 40)).await, libc::EAGAIN);
        t.release(o, OTHER).await;
    }
    let found = t.v4.test_lock(&cx(), file(&theirs), OTHER, Read, ALL).await.unwrap().unwrap();
    assert_eq!((found.kind, found.range), (Write, range(10, 20)));
    assert_eq!(t.v4.test_lock(&cx(), file(&theirs), ME, Write, ALL).await.unwrap(), None);
    // A lock replaces one of the same owner by another open.
    assert_eq!(t.take(&theirs, ME, Read, range(10, 20)).await, 0);
    assert_eq!(t.take(&f, OTHER, Read, range(0, 30)).await, 0);
    assert_eq!(t.take(&f, OTHER, Write, range(10, 11)).await, libc::EAGAIN);
    t.release(&f, ME).await;
    assert_eq!(t.take(&f, OTHER, Write, range(10, 11)).await, 0);
    // An open without write access gets no write lock.
    let reader = OpenHow { access: OpenAccess::READ, ..how(Create::No) };
    let reader = t.v4.open(&cx(), PathRef::fh(&f.node.fh), &reader).await.unwrap();
    assert_eq!(t.take(&reader, ME, Write, range(50, 60)).await, libc::EBADF);
    // Locks of another file are independent.
    let g = t.create("g").await;
    assert_eq!(t.take(&g, ME, Write, ALL).await, 0);
    // A close releases the remaining locks of its program.
    t.close(&g).await;
    let g = t.create("g").await;
    assert_eq!(t.take(&g, OTHER, Write, ALL).await, 0);
    // Bytes are written with the open's stateid.
    t.write(&g, 0, "locked").await.unwrap();
    assert_eq!(t.read(&g).await.unwrap(), "lockedf g");
    assert_eq!(t.lock_calls(), 0);
    t.check();
}

/// A waiter gets the lock at once when it is released in the client, one after the other.
/// Promise: 16a
#[tokio::test(start_paused = true)]
async fn unlock_wakes_lock_waiter() {
    let (t, _told) = delegated().await;
    let f = t.create("f").await;
    assert_eq!(t.take(&f, ME, LockKind::Write, ALL).await, 0);
    let waiters = [OTHER, FLOCK].map(|owner| (owner, t.wait_for_lock(&f, owner)));
    tokio::time::sleep(Duration::from_millis(3333)).await;
    assert!(waiters.iter().all(|(_, w)| !w.is_finished()));
    let released = Instant::now();
    t.release(&f, ME).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    let (first, second): (Vec<_>, Vec<_>) = waiters.into_iter().partition(|(_, w)| w.is_finished());
    assert_eq!((first.len(), second.len()), (1, 1));
    for (owner, waiter) in first {
        assert!(waiter.await.unwrap() - released < Duration::from_millis(1));
        t.release(&f, owner).await;
    }
    for (_, waiter) in second {
        waiter.await.unwrap();
    }
    // An interrupted waiter gets no lock.
    let interrupted = RequestContext { cancel: CancellationToken::new(), ..cx() };
    let stop = interrupted.cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.cancel();
    });
    let waits = t.v4.lock(&interrupted, file(&f), ME, LockKind::Write, ALL, LockWait::Yes).await;
    assert_eq!(errno(waits), libc::EINTR);
    for owner in [OTHER, FLOCK] {
        t.release(&f, owner).await;
    }
    assert_eq!(t.take(&f, LockOwner { id: 5, flock: false }, LockKind::Write, ALL).await, 0);
    assert_eq!(t.lock_calls(), 0);
}

/// A call for a lock that outlives its caller ends no later lock of the owner, whether the caller
/// was interrupted or had a deadline.
/// Promise: 16
#[tokio::test(start_paused = true)]
async fn late_call_ends_no_later_lock() {
    let (lock, unlock) = (NfsOpnum4::LOCK, NfsOpnum4::LOCKU);
    for (late, interrupted) in [(lock, true), (lock, false), (unlock, true), (unlock, false)] {
        let t = Test::new().await;
        let f = t.create("f").await;
        if late == unlock {
            t.lock(&f).await;
        }
        t.server.lock().hold = Some(late);
        let mut caller = RequestContext { cancel: CancellationToken::new(), ..cx() };
        if interrupted {
            let stop = caller.cancel.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                stop.cancel();
            });
        } else {
            caller.deadline = Some(Instant::now() + Duration::from_millis(10));
        }
        let ended = if late == lock {
            errno(t.v4.lock(&caller, file(&f), ME, LockKind::Write, ALL, LockWait::Yes).await)
        } else {
            errno(t.v4.unlock(&caller, file(&f), ME, ALL).await)
        };
        assert_eq!(ended, if interrupted { libc::EINTR } else { libc::ETIMEDOUT });
        // Another call that waits in vain is late, too, and blocks nothing.
        caller.deadline = Some(Instant::now() + Duration::from_millis(10));
        assert_ne!(errno(t.v4.lock(&caller, file(&f), ME, LockKind::Write, ALL, LockWait::Yes).await), 0);
        let later = t.wait_for_lock(&f, ME);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!later.is_finished());
        t.server.lock().hold = None;
        later.await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(t.held_there(), 1, "{late:?}, interrupted: {interrupted}");
        t.check();
    }
}

/// A caller that does not wait any more for a taken lock blocks no later call of its owner.
#[tokio::test(start_paused = true)]
async fn given_up_wait_blocks_no_later_lock() {
    let t = Test::new().await;
    let f = t.create("f").await;
    assert_eq!(t.take(&f, OTHER, LockKind::Write, range(0, 10)).await, 0);
    let caller = RequestContext { deadline: Some(Instant::now() + Duration::from_secs(5)), ..cx() };
    let waits = t.v4.lock(&caller, file(&f), ME, LockKind::Write, range(0, 10), LockWait::Yes).await;
    assert_eq!(errno(waits), libc::ETIMEDOUT);
    let began = Instant::now();
    assert_eq!(t.take(&f, ME, LockKind::Write, range(20, 30)).await, 0);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    t.release(&f, OTHER).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(t.take(&f, OTHER, LockKind::Write, range(0, 10)).await, 0);
}

/// All locks are at the server before a recalled delegation is returned. Waiters, and later
/// callers, wait at the server.
/// Promise: 16a
#[tokio::test(start_paused = true)]
async fn recall_hands_locks_to_server() {
    use LockKind::{Read, Write};
    let (t, _told) = delegated().await;
    let f = t.create("f").await;
    t.write(&f, 0, "bytes").await.unwrap();
    for (owner, at) in [(ME, range(0, 10)), (ME, range(20, 30)), (OTHER, range(50, 60))] {
        assert_eq!(t.take(&f, owner, Write, at).await, 0);
    }
    let waiter = t.wait_for_lock(&f, FLOCK);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(t.lock_calls(), 0);
    // While the locks are moved, no caller gets one.
    t.server.lock().hold = Some(NfsOpnum4::LOCK);
    t.recall("f").await;
    assert_eq!(t.server.count("DELEGRETURN"), 0);
    let late = t.wait_for_lock(&f, LockOwner { id: 9, flock: false });
    let unlocks = {
        let (v4, f) = (t.v4.clone(), f.clone());
        tokio::spawn(async move { v4.unlock(&cx(), file(&f), OTHER, ALL).await })
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!late.is_finished() && !unlocks.is_finished());
    t.server.lock().hold = None;
    tokio::time::sleep(Duration::from_secs(1)).await;
    unlocks.await.unwrap().unwrap();
    let log = t.log_since("OPEN null");
    let at = |what: &str| log.iter().position(|l| l == what).unwrap_or_else(|| panic!("{what}: {log:?}"));
    let last_lock = log.iter().take(at("DELEGRETURN")).filter(|l| *l == "LOCK").count();
    assert!(last_lock >= 3 && at("LOCK") < at("DELEGRETURN") && at("COMMIT") < at("DELEGRETURN"), "{log:?}");
    assert_eq!(t.server.count("LOCKU"), 1);
    assert_eq!(t.take(&f, FLOCK, Read, ALL).await, libc::EAGAIN);
    assert!(!waiter.is_finished() && !late.is_finished());
    assert_eq!(t.read(&f).await.unwrap()[..5], *b"bytes");
    t.release(&f, ME).await;
    assert_eq!(t.held_there(), 0);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(t.held_there(), 1);
    for owner in [FLOCK, LockOwner { id: 9, flock: false }] {
        t.release(&f, owner).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    assert!(waiter.is_finished() && late.is_finished());
    t.release(&f, FLOCK).await;
    t.release(&f, LockOwner { id: 9, flock: false }).await;
    assert_eq!(t.held_there(), 0);
    // With a new delegation, and after the release, the client decides again.
    let again = t.v4.open(&cx(), PathRef::fh(&f.node.fh), &how(Create::No)).await.unwrap();
    let before = t.lock_calls();
    assert_eq!(t.take(&again, ME, Write, ALL).await, 0);
    assert_eq!(t.take(&f, OTHER, Write, ALL).await, libc::EAGAIN);
    // The same for a delegation that is returned without a recall, and with the owner's earlier
    // name.
    t.v4.core.give_back(t.v4.core.delegations.take_all_but(0));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((t.lock_calls(), t.held_there()), (before + 1, 1));
    t.check();
}

/// A lock that the server refuses at the end of the delegation is lost. I/O fails until its owner
/// unlocks. Other locks are kept.
/// Promise: 16a
#[tokio::test(start_paused = true)]
async fn refused_lock_handover_loses_lock() {
    for denied in [true, false] {
        let (t, _told) = delegated().await;
        let (f, g) = (t.create("f").await, t.create("g").await);
        for o in [&f, &g] {
            assert_eq!(t.take(o, ME, LockKind::Write, range(0, 10)).await, 0);
        }
        if denied {
            t.server.lock_by_another("f");
        } else {
            t.server.lock().fail = vec![(NfsOpnum4::LOCK, Nfsstat4::SERVERFAULT)];
        }
        t.recall("f").await;
        assert_eq!(t.server.count("DELEGRETURN"), 1, "the delegation goes back all the same");
        assert_eq!(errno(t.read(&f).await), libc::EIO);
        assert_eq!(t.read(&g).await.unwrap(), "data of g");
        t.release(&f, ME).await;
        assert_eq!(t.read(&f).await.unwrap(), "data of f");
        t.recall("g").await;
        assert_eq!(t.read(&g).await.unwrap(), "data of g");
        assert_eq!(t.take(&g, OTHER, LockKind::Write, ALL).await, libc::EAGAIN);
        t.check();
    }
}

/// An open that the server has lost is made again before its locks are handed over.
/// Promise: 16a
#[tokio::test(start_paused = true)]
async fn lock_handover_reopens_lost_open() {
    let (t, _told) = delegated().await;
    let f = t.create("f").await;
    for at in [range(0, 10), range(20, 30)] {
        assert_eq!(t.take(&f, ME, LockKind::Write, at).await, 0);
    }
    t.server.lock().opens.clear();
    t.recall("f").await;
    assert_eq!((t.server.count("DELEGRETURN"), t.held_there()), (1, 1));
    let log = t.log_since("OPEN fh");
    let at = |what: &str| log.iter().position(|l| l == what).unwrap_or_else(|| panic!("{what}: {log:?}"));
    assert!(at("LOCK") < at("DELEGRETURN"));
    assert_eq!(t.read(&f).await.unwrap(), "data of f");
    t.check();
}

/// Locks from before the delegation stay at the server until their release, also when the
/// delegation is granted during a LOCK.
/// Promise: 16a
#[tokio::test(start_paused = true)]
async fn earlier_locks_stay_at_server() {
    let (t, _told) = delegated().await;
    t.server.lock().delegate_writers = false;
    let f = t.create("f").await;
    t.lock(&f).await;
    let again = async || t.v4.open(&cx(), PathRef::fh(&f.node.fh), &how(Create::No)).await.unwrap();
    t.server.lock().delegate_writers = true;
    again().await;
    assert_eq!(t.take(&f, OTHER, LockKind::Write, ALL).await, libc::EAGAIN);
    assert!(
        t.v4.test_lock(&cx(), file(&f), ME, LockKind::Read, ALL).await.is_err(),
        "LOCKT is unknown there"
    );
    assert_eq!(t.server.count("LOCK"), 2);
    t.release(&f, ME).await;
    assert_eq!(t.take(&f, OTHER, LockKind::Write, ALL).await, 0);
    assert_eq!((t.server.count("LOCK"), t.held_there()), (2, 0));
    t.release(&f, OTHER).await;
    t.recall("f").await;

    t.server.lock().hold = Some(NfsOpnum4::LOCK);
    let first = t.wait_for_lock(&f, ME);
    tokio::time::sleep(Duration::from_millis(50)).await;
    again().await;
    let second = t.wait_for_lock(&f, OTHER);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!second.is_finished(), "decided without the one that is under way");
    t.server.lock().hold = None;
    first.await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!second.is_finished() && t.held_there() == 1);
    t.release(&f, ME).await;
    second.await.unwrap();
    t.check();
}

/// After a restart of the server locks stay with the client if the delegation does. Otherwise they
/// are reclaimed at the server in the grace period.
/// Promise: 16a
#[tokio::test(start_paused = true)]
async fn a_restart_leaves_no_lock_behind() {
    for stays in [true, false] {
        let (t, _told) = delegated().await;
        t.server.lock().claims_stay = stays;
        let (f, g) = (t.create("f").await, t.create("g").await);
        for o in [&f, &g] {
            assert_eq!(t.take(o, ME, LockKind::Write, range(0, 10)).await, 0);
        }
        let waiter = t.wait_for_lock(&f, OTHER);
        t.restart();
        t.write(&f, 0, "after").await.unwrap();
        tokio::time::sleep(Duration::from_secs(30)).await;
        let log = t.log_since("RESTART");
        let at = |what: &str| log.iter().position(|l| l == what);
        let claimed = log.iter().filter(|l| *l == "LOCK reclaim").count();
        assert!(at("OPEN previous write") < at("RECLAIM_COMPLETE"), "{log:?}");
        if stays {
            assert_eq!((claimed, t.lock_calls(), t.held_there()), (0, 0, 0), "{log:?}");
        } else {
            assert_eq!((claimed, t.held_there()), (2, 2), "{log:?}");
            assert!(at("LOCK reclaim") < at("RECLAIM_COMPLETE") && at("LOCK reclaim") < at("DELEGRETURN"));
        }
        assert_eq!(t.take(&f, FLOCK, LockKind::Read, ALL).await, libc::EAGAIN);
        assert!(!waiter.is_finished());
        t.release(&f, ME).await;
        waiter.await.unwrap();
        t.check();
    }
}

/// The locks of a revoked delegation are lost. No lock is decided while the revocation is being
/// checked.
/// Promise: 16a
#[tokio::test(start_paused = true)]
async fn revoked_delegation_loses_locks() {
    let (t, _told) = delegated().await;
    let f = t.create("f").await;
    assert_eq!(t.take(&f, ME, LockKind::Write, range(0, 10)).await, 0);
    tokio::time::sleep(Duration::from_secs(2)).await;
    {
        let mut s = t.server.lock();
        s.delegations_end = true;
        s.status_flags = seq4_status::RECALLABLE_STATE_REVOKED;
        s.hold = Some(NfsOpnum4::TEST_STATEID);
    }
    t.v4.getattr(&cx(), file(&f)).await.unwrap();
    let late = t.wait_for_lock(&f, OTHER);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!late.is_finished());
    {
        let mut s = t.server.lock();
        s.status_flags = 0;
        s.hold = None;
    }
    late.await.unwrap();
    assert_eq!(t.held_there(), 1);
    assert_eq!(errno(t.read(&f).await), libc::EIO);
    t.release(&f, ME).await;
    assert_eq!(t.read(&f).await.unwrap(), "data of f");
    t.check();
}

/// The server reports revoked state several times within seconds. The client looks once for each
/// report, however long the server repeats it.
#[tokio::test(start_paused = true)]
async fn each_report_of_revoked_state_counts() {
    let (t, _told) = delegated().await;
    let f = t.create("f").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let looks = || {
        let s = t.server.lock();
        s.compounds.iter().filter(|ops| ops.contains(&NfsOpnum4::TEST_STATEID)).count()
    };
    for round in 1..=3 {
        for flags in [seq4_status::RECALLABLE_STATE_REVOKED, 0] {
            t.server.lock().status_flags = flags;
            for _ in 0..3 {
                t.v4.getattr(&cx(), file(&f)).await.unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        // One for opens and locks, one for delegations.
        assert_eq!(looks(), 2 * round);
    }
}

/// A client whose lease may have expired decides no locks. It keeps its locks if the server
/// confirms them, or takes them anew if the file is unchanged.
/// Promise: 16a
#[tokio::test(start_paused = true)]
async fn expired_lease_decides_no_locks() {
    for (expired, touched) in [(false, false), (true, false), (true, true)] {
        let (t, _told) = delegated().await;
        let f = t.create("f").await;
        t.v4.getattr(&cx(), file(&f)).await.unwrap();
        assert_eq!(t.take(&f, ME, LockKind::Write, range(0, 10)).await, 0);
        t.net.cut(Cut::BlackHole);
        tokio::time::sleep(Duration::from_secs(200)).await;
        let late = {
            let (v4, f) = (t.v4.clone(), f.clone());
            tokio::spawn(async move {
                v4.lock(&cx(), file(&f), OTHER, LockKind::Write, range(20, 30), LockWait::No).await
            })
        };
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(!late.is_finished());
        if expired {
            t.server.expire();
        }
        if touched {
            t.server.lock().files.get_mut("f").unwrap().change += 1;
        }
        t.net.heal();
        t.net.cut(Cut::Reset);
        late.await.unwrap().ok();
        if touched {
            assert_eq!(errno(t.read(&f).await), libc::EIO);
        } else {
            assert_eq!(t.read(&f).await.unwrap(), "data of f");
        }
        let there = expired && !touched;
        assert_eq!((t.server.count("LOCK") > 0, t.held_there() > 0), (there, there));
        t.check();
    }
}

/// Many owners with exclusive locks, and a delegation that is granted and recalled repeatedly. No
/// two owners ever hold the lock together, and no lock remains.
/// Promise: 16a
#[tokio::test(start_paused = true)]
async fn concurrent_owners_never_share_lock() {
    let (t, _told) = delegated().await;
    let f = t.create("f").await;
    let inside = Arc::new(AtomicU64::new(0));
    let mut owners = tokio::task::JoinSet::new();
    for id in 0..8u64 {
        let (v4, o, inside) = (t.v4.clone(), f.clone(), inside.clone());
        owners.spawn(async move {
            let owner = LockOwner { id, flock: id % 2 == 0 };
            for round in 0..60u64 {
                v4.lock(&cx(), file(&o), owner, LockKind::Write, ALL, LockWait::Yes).await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                tokio::time::sleep(Duration::from_millis((id * 7 + round * 13) % 11)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                v4.unlock(&cx(), file(&o), owner, ALL).await.unwrap();
                tokio::time::sleep(Duration::from_millis((id * 31 + round * 17) % 151)).await;
            }
        });
    }
    let mut handed = 0;
    for round in 0..60 {
        tokio::time::sleep(Duration::from_millis(40 + round % 23)).await;
        t.server.recall(delegation("f"), "f");
        tokio::time::sleep(Duration::from_millis(round % 29)).await;
        handed += t.held_there();
        let again = t.v4.open(&cx(), PathRef::fh(&f.node.fh), &how(Create::No)).await.unwrap();
        t.v4.close(&cx(), &f.node.fh, again.open).await.unwrap();
    }
    while let Some(done) = owners.join_next().await {
        done.unwrap();
    }
    assert!(handed > 0, "no lock was ever handed over");
    assert!((1..480).contains(&t.server.count("LOCKU")), "all were decided here, or none");
    assert_eq!(t.held_there(), 0);
    t.check();
}

/// flock(2) allows either kind of lock on every descriptor. The server requires an open for writing
/// or for reading. The file is opened again, once. The lock survives the end of another open, of a
/// delegation and of the server. It ends with its descriptor, and so does the further open.
/// fcntl(2) has no such locks.
/// Promise: 16
#[tokio::test(start_paused = true)]
async fn flock_opens_with_the_missing_access() {
    use LockKind::{Read, Write};
    let pairs = [(OpenAccess::READ, Write), (OpenAccess::WRITE, Read)];
    for ((access, kind), writers) in pairs.into_iter().flat_map(|p| [(p, true), (p, false)]) {
        let case = format!("{access:?} {kind:?} {writers}");
        let (t, _told) = delegated().await;
        t.server.lock().delegate_writers = writers;
        // The write delegation stays after the close.
        let f = t.create("f").await;
        t.close(&f).await;
        let open = async |access| {
            t.v4.open(&cx(), PathRef::fh(&f.node.fh), &OpenHow::existing(access)).await.unwrap()
        };
        let f = open(access).await;
        assert_eq!(t.take(&f, ME, kind, ALL).await, libc::EBADF, "{case}");
        let before = t.server.count("OPEN");
        for _ in 0..3 {
            assert_eq!(t.take(&f, FLOCK, kind, ALL).await, 0, "{case}");
            t.release(&f, FLOCK).await;
        }
        assert_eq!(t.take(&f, FLOCK, kind, ALL).await, 0, "{case}");
        assert_eq!(t.server.count("OPEN"), before + 1, "{case}");
        // Another descriptor with the access is opened and closed.
        let both = open(RW).await;
        t.close(&both).await;
        t.recall("f").await;
        assert_eq!(t.held_there(), 1, "{case}");
        t.restart();
        tokio::time::sleep(Duration::from_secs(30)).await;
        let log = t.log_since("RESTART");
        assert!(log.contains(&"LOCK reclaim".into()) && t.held_there() == 1, "{case}: {log:?}");
        let other = open(RW).await;
        assert_eq!(t.take(&other, OTHER, Write, ALL).await, libc::EAGAIN, "{case}");
        t.close(&other).await;
        t.close(&f).await;
        assert_eq!((t.held_there(), t.server.lock().opens.len()), (0, 0), "{case}");
        assert_eq!(t.v4.core.files.open_ids(), [], "{case}");
        t.check();
    }
}

/// A lock whose opener lacks the right to the needed access fails as in flock(2). A later attempt
/// checks again.
/// Promise: 16
#[tokio::test(start_paused = true)]
async fn flock_without_the_right_is_ebadf() {
    let (t, _told) = delegated().await;
    let how = OpenHow::existing(OpenAccess::READ);
    let f = t.v4.open(&cx(), PathRef::name(&t.root, &name("f")), &how).await.unwrap();
    for refused in [Nfsstat4::ACCESS, Nfsstat4::PERM, Nfsstat4::ROFS] {
        t.server.lock().fail = vec![(NfsOpnum4::OPEN, refused)];
        assert_eq!(t.take(&f, FLOCK, LockKind::Write, ALL).await, libc::EBADF, "{refused:?}");
    }
    // A server that grants the open without the right.
    t.server.lock().no_right = access::MODIFY;
    assert_eq!(t.take(&f, FLOCK, LockKind::Write, ALL).await, libc::EBADF);
    t.server.lock().no_right = 0;
    assert_eq!(t.take(&f, FLOCK, LockKind::Write, ALL).await, 0);
    t.close(&f).await;
    assert_eq!(t.server.lock().opens.len(), 0);
    t.check();
}
