//! Concurrent calls of one client on one file's state. Each call needs the stateid that the other
//! leaves.

use super::*;
use crate::tests::Wire;

/// Another slot of a client's session, on a connection of its own.
struct Slot {
    wire: Wire,
    session: Sessionid,
    slotid: u32,
    seq: u32,
}

impl Slot {
    fn new(lab: &Lab, c: &Client, slotid: u32) -> Self {
        Self { wire: lab.connect(), session: c.session, slotid, seq: 0 }
    }

    /// The result of the last operation. All others must succeed.
    async fn run(&mut self, mut ops: Vec<Op>) -> OpRes {
        self.seq += 1;
        let (sequenceid, slotid) = (self.seq, self.slotid);
        let args =
            SequenceArgs { sessionid: self.session, sequenceid, slotid, highest_slotid: 7, cachethis: true };
        ops.insert(0, Op::Sequence(args));
        let count = ops.len();
        let reply = self.wire.call(&Compound::new(2, ops)).await;
        assert_eq!(reply.results.len(), count, "{reply:?}");
        reply.results.iter().last().unwrap().clone()
    }

    async fn open(&mut self, owner: &str, share: u32) -> Stateid {
        let claim = OpenClaim::Null(b"f"[..].into());
        match self.run(vec![Op::Putrootfh, Op::Open(open_args(owner, share, 0, claim, false))]).await {
            OpRes::Open(Ok(opened)) => opened.stateid,
            other => panic!("{other:?}"),
        }
    }

    async fn close(&mut self, fh: &Fh, stateid: Stateid) -> Nfsstat4 {
        self.run(vec![Op::putfh(fh), Op::Close(CloseArgs { seqid: 0, stateid })]).await.status()
    }

    async fn unlock(&mut self, fh: &Fh, id: Stateid) -> Result<Stateid, Nfsstat4> {
        match self.run(vec![Op::putfh(fh), Op::locku(id, LockType::WRITE, 0, u64::MAX)]).await {
            OpRes::Locku(Ok(stateid)) => Ok(stateid),
            other => Err(other.status()),
        }
    }

    async fn free(&mut self, id: Stateid) -> Nfsstat4 {
        self.run(vec![Op::FreeStateid(id)]).await.status()
    }
}

/// A client with `f` open, and its lock-owner "p", which has locked and unlocked.
async fn with_an_idle_locker(lab: &Lab) -> (Client, Fh, Stateid, Stateid) {
    let mut c = lab.client("a").await;
    c.reclaim_complete().await;
    let (open, fh) = c.open("f", "x", RW, 0).await.unwrap();
    c.lock(&fh, open, "p", (0, 10)).await.unwrap();
    let mut slot = Slot::new(lab, &c, 1);
    let held = Stateid { seqid: 1, other: only_locks(lab).other };
    let idle = slot.unlock(&fh, held).await.unwrap();
    assert_eq!(idle.seqid, 2);
    (c, fh, open, idle)
}

pub(super) fn file(lab: &Lab) -> Arc<super::super::state::FileState> {
    let opens = lab.server.v4.clients.all().iter().flat_map(|c| lab.server.v4.registry.opens_of(c)).next();
    opens.unwrap().file.clone()
}

fn only_locks(lab: &Lab) -> Arc<Locks> {
    file(lab).lockers.lock()[0].clone()
}

/// Lets all tasks run that can.
pub(super) async fn settle() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

/// Whether another client gets the lock.
async fn is_free(lab: &Lab, fh: &Fh, somebody: &'static str) -> bool {
    let mut b = lab.client(somebody).await;
    b.reclaim_complete().await;
    let (open, _) = b.open("f", "y", RW, 0).await.unwrap();
    b.lock(fh, open, "q", (0, 10)).await.is_ok()
}

/// Linux sends FREE_STATEID of a lock-owner together with a LOCK of a new owner with the same name.
/// That happens when one process closes the file and the next one opens it. A FREE_STATEID behind
/// the LOCK gets OLD_STATEID and frees nothing.
/// Promise: S11
#[tokio::test]
async fn free_stateid_spares_new_lock() {
    let lab = Lab::new(&model(), "/", 2, None);
    let (mut c, fh, open, idle) = with_an_idle_locker(&lab).await;
    let (mut other, file) = (Slot::new(&lab, &c, 2), file(&lab));
    let busy = file.order.lock().await;
    let lock_fh = fh.clone();
    let locking = tokio::spawn(async move { (c.lock(&lock_fh, open, "p", (0, 10)).await.unwrap(), c) });
    settle().await;
    let freeing = tokio::spawn(async move { (other.free(idle).await, other) });
    settle().await;
    drop(busy);
    let ((held, _c), (freed, mut other)) = (locking.await.unwrap(), freeing.await.unwrap());
    assert_eq!((held.other, held.seqid, freed), (idle.other, 3, Nfsstat4::OLD_STATEID));
    assert!(!is_free(&lab, &fh, "b").await, "it is held");
    assert_eq!(other.free(held).await, Nfsstat4::LOCKS_HELD);
    let idle = other.unlock(&fh, held).await.unwrap();
    assert!(is_free(&lab, &fh, "c").await, "nothing of it is left");
    assert_eq!(other.free(idle).await, Nfsstat4::OK);
}

/// A LOCK behind the FREE_STATEID of its lock-owner gets a new stateid.
/// Promise: S11
#[tokio::test]
async fn lock_after_free_is_new() {
    let lab = Lab::new(&model(), "/", 2, None);
    let (mut c, fh, open, idle) = with_an_idle_locker(&lab).await;
    let (mut other, file) = (Slot::new(&lab, &c, 2), file(&lab));
    let busy = file.order.lock().await;
    let freeing = tokio::spawn(async move { (other.free(idle).await, other) });
    settle().await;
    let lock_fh = fh.clone();
    let locking = tokio::spawn(async move { (c.lock(&lock_fh, open, "p", (0, 10)).await.unwrap(), c) });
    settle().await;
    drop(busy);
    let ((held, _c), (freed, mut other)) = (locking.await.unwrap(), freeing.await.unwrap());
    assert_eq!((freed, held.seqid), (Nfsstat4::OK, 1));
    assert_ne!(held.other, idle.other);
    assert!(!is_free(&lab, &fh, "b").await, "it is held");
    other.unlock(&fh, held).await.unwrap();
    assert!(is_free(&lab, &fh, "c").await, "nothing of it is left");
}

/// A LOCKU that waits behind a CLOSE must not unlock for a later owner. The CLOSE has ended its
/// stateid.
/// Promise: S11
#[tokio::test]
async fn unlock_after_close_is_refused() {
    let lab = Lab::new(&model(), "/", 2, None);
    let (c, fh, open, idle) = with_an_idle_locker(&lab).await;
    let (mut one, mut two, file) = (Slot::new(&lab, &c, 2), Slot::new(&lab, &c, 3), file(&lab));
    let busy = file.order.lock().await;
    let close_fh = fh.clone();
    let closing = tokio::spawn(async move { one.close(&close_fh, open).await });
    settle().await;
    let unlocking = tokio::spawn(async move { two.unlock(&fh, idle).await });
    settle().await;
    drop(busy);
    assert_eq!(closing.await.unwrap(), Nfsstat4::OK);
    assert_eq!(unlocking.await.unwrap(), Err(Nfsstat4::BAD_STATEID));
}

/// A CLOSE that an OPEN overtook closes nothing. The client repeats the CLOSE after it has received
/// that OPEN's reply.
/// Promise: S11
#[tokio::test]
async fn overtaken_close_is_refused() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut c = lab.client("a").await;
    c.reclaim_complete().await;
    let (id, fh) = c.open("f", "x", RW, 0).await.unwrap();
    let (mut one, mut two, file) = (Slot::new(&lab, &c, 2), Slot::new(&lab, &c, 3), file(&lab));
    let busy = file.order.lock().await;
    let opening = tokio::spawn(async move { one.open("x", RW).await });
    settle().await;
    let close_fh = fh.clone();
    let closing = tokio::spawn(async move { (two.close(&close_fh, id).await, two) });
    settle().await;
    drop(busy);
    let (opened, (closed, mut two)) = (opening.await.unwrap(), closing.await.unwrap());
    assert_eq!((opened.other, opened.seqid, closed), (id.other, 2, Nfsstat4::OLD_STATEID));
    let read = two.run(vec![Op::putfh(&fh), Op::read(opened, 0, 1)]).await;
    assert_eq!(read.status(), Nfsstat4::OK);
    assert_eq!(two.close(&fh, opened).await, Nfsstat4::OK);
}

/// An OPEN that waits for the file's last close is visible to the next client that opens the file.
/// Promise: S11
#[tokio::test]
async fn waiting_open_excludes_other_clients() {
    let lab = Lab::new(&model(), "/", 2, None);
    let (mut c, mut d) = (lab.client("a").await, lab.client("b").await);
    c.reclaim_complete().await;
    d.reclaim_complete().await;
    let (id, fh) = c.open("f", "x", RW, 0).await.unwrap();
    let (mut one, file) = (Slot::new(&lab, &c, 2), file(&lab));
    let busy = file.order.lock().await;
    let closing = tokio::spawn(async move { one.close(&fh, id).await });
    settle().await;
    let opening = tokio::spawn(async move { c.open("f", "x", RW, bits::SHARE_DENY_BOTH).await });
    settle().await;
    drop(busy);
    // Only these two calls refer to the file's state.
    drop(file);
    assert_eq!(closing.await.unwrap(), Nfsstat4::OK);
    assert!(opening.await.unwrap().is_ok());
    assert_eq!(d.open("f", "y", RW, 0).await.unwrap_err(), Nfsstat4::SHARE_DENIED);
}

/// Each OPEN of an owner returns a sequence number of its own, without gaps. Linux waits for
/// seconds for a missing one.
/// Promise: S11
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_opens_get_consecutive_seqids() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut c = lab.client("a").await;
    c.reclaim_complete().await;
    let (mut id, fh) = c.open("f", "x", RW, 0).await.unwrap();
    let (mut one, mut two) = (Slot::new(&lab, &c, 2), Slot::new(&lab, &c, 3));
    for round in 0..200 {
        let (a, b) = tokio::join!(one.open("x", RW), two.open("x", bits::SHARE_ACCESS_READ));
        let mut seqids = [a.seqid, b.seqid];
        seqids.sort_unstable();
        assert_eq!((a.other, b.other), (id.other, id.other), "round {round}");
        assert_eq!(seqids, [id.seqid + 1, id.seqid + 2], "round {round}");
        id.seqid += 2;
        let (closed, opened) = tokio::join!(one.close(&fh, id), two.open("x", RW));
        match closed {
            Nfsstat4::OK => assert_eq!((opened.seqid, opened.other == id.other), (1, false), "round {round}"),
            status => assert_eq!((status, opened.seqid), (Nfsstat4::OLD_STATEID, id.seqid + 1)),
        }
        id = opened;
        let read = one.run(vec![Op::putfh(&fh), Op::read(id, 0, 1)]).await;
        assert_eq!(read.status(), Nfsstat4::OK, "round {round}");
    }
    assert_eq!(one.close(&fh, id).await, Nfsstat4::OK);
    assert_eq!(lab.server.v4.registry.count(), 0);
}

/// A call of a client hangs for longer than the lease, for example at a slow disk. Its locks stay,
/// because the call may still write. They give way when the client is silent afterwards.
/// Promise: S11
#[tokio::test(start_paused = true)]
async fn hanging_call_keeps_locks() {
    const LONG: Duration = Duration::from_secs(100);
    let lab = Lab::new(&model(), "/", 2, None);
    let mut a = lab.client("a").await;
    a.reclaim_complete().await;
    a.open("g", "x", RW, 0).await.unwrap();
    let slow = file(&lab);
    let (open, fh) = a.open("f", "x", RW, 0).await.unwrap();
    a.lock(&fh, open, "p", (0, 10)).await.unwrap();
    let busy = slow.order.lock().await;
    let hanging = tokio::spawn(async move { a.open("g", "y", RW, 0).await.map(|_| a) });
    settle().await;
    tokio::time::advance(LONG).await;
    let refused = tokio::time::timeout(Duration::from_secs(5), is_free(&lab, &fh, "b")).await;
    assert_eq!(refused, Ok(false), "at once, and not after the end of the state");
    drop(busy);
    let _a = hanging.await.unwrap().unwrap();
    tokio::time::advance(LONG).await;
    assert!(is_free(&lab, &fh, "c").await);
}
