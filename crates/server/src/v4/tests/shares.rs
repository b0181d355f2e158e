//! Share reservations: which opens and I/O they exclude, and how they end.

use super::*;

const READ: u32 = bits::SHARE_ACCESS_READ;
const WRITE: u32 = bits::SHARE_ACCESS_WRITE;

/// Two clients after RECLAIM_COMPLETE.
async fn two_clients(lab: &Lab) -> (Client, Client) {
    let (mut a, mut b) = (lab.client("a").await, lab.client("b").await);
    a.reclaim_complete().await;
    b.reclaim_complete().await;
    (a, b)
}

impl Client {
    async fn status_of(&mut self, fh: &Fh, op: Op) -> Nfsstat4 {
        self.run(vec![Op::putfh(fh), op]).await.status()
    }

    /// OPEN of an existing file that sets its size to zero.
    async fn open_and_cut(&mut self, name: &str, access: u32, deny: u32) -> Nfsstat4 {
        let cut = Attrs { size: Some(0), ..Attrs::default() };
        let how = Some(CreateHow::Unchecked(cut));
        let args = open_args("x", access, deny, OpenClaim::Null(name.as_bytes().into()), false);
        self.run(vec![Op::Putrootfh, Op::Open(OpenArgs { how, ..args })]).await.status()
    }
}

fn write(id: Stateid) -> Op {
    Op::write(id, 0, StableHow::FILE_SYNC, Bytes::from_static(b"data"))
}

/// A reservation excludes each use of the file by others that it names: opens that cut the file,
/// reads through an open for writing, and I/O without an open.
/// Promise: S11
#[tokio::test]
async fn reservation_excludes_every_use() {
    let lab = Lab::new(&model(), "/", 2, None);
    let (mut a, mut b) = two_clients(&lab).await;
    let (of_a, fh) = a.open("f", "x", RW, bits::SHARE_DENY_WRITE).await.unwrap();
    assert_eq!(a.status_of(&fh, write(of_a)).await, Nfsstat4::OK);
    assert_eq!(b.open_and_cut("f", READ, 0).await, Nfsstat4::SHARE_DENIED);
    assert_eq!(b.status_of(&fh, write(Stateid::ANONYMOUS)).await, Nfsstat4::LOCKED);
    let mut r = a.run(vec![Op::putfh(&fh), Op::read(of_a, 0, 10)]).await;
    r.putfh().unwrap();
    assert_eq!(&r.read().unwrap().data[..], b"data", "nothing was cut");
    assert_eq!(a.open_and_cut("f", RW, 0).await, Nfsstat4::OK, "the owner may");

    let (of_b, other) = b.open("g", "x", WRITE, 0).await.unwrap();
    assert_eq!(b.status_of(&other, Op::read(of_b, 0, 10)).await, Nfsstat4::OK);
    a.open("g", "x", WRITE, bits::SHARE_DENY_READ).await.unwrap();
    assert_eq!(b.status_of(&other, Op::read(of_b, 0, 10)).await, Nfsstat4::LOCKED);
    assert_eq!(b.status_of(&other, write(of_b)).await, Nfsstat4::OK);
}

/// A refused OPEN leaves nothing: no reservation, no later sequence number.
/// Promise: S11
#[tokio::test]
async fn refused_open_leaves_nothing() {
    let lab = Lab::new(&model(), "/", 2, None);
    let (mut a, mut b) = two_clients(&lab).await;
    a.open("f", "x", RW, 0).await.unwrap();
    let (id, fh) = a.open("f", "x", RW, 0).await.unwrap();
    let read_only = Attrs { mode: Some(0o444), ..Attrs::default() };
    assert_eq!(a.status_of(&fh, Op::setattr(Stateid::ANONYMOUS, read_only)).await, Nfsstat4::OK);
    assert_eq!(a.status_of(&fh, Op::Close(CloseArgs { seqid: 0, stateid: id })).await, Nfsstat4::OK);
    a.wire.become_user(1000);
    let refused = a.open_and_cut("f", READ, bits::SHARE_DENY_BOTH).await;
    assert_eq!(refused, Nfsstat4::ACCESS, "as a first OPEN");
    assert_eq!(lab.server.v4.registry.count(), 0);
    let (held, _) = a.open("f", "x", READ, 0).await.unwrap();
    let refused = a.open_and_cut("f", READ, bits::SHARE_DENY_BOTH).await;
    assert_eq!(refused, Nfsstat4::ACCESS, "as a second OPEN");
    let (of_b, _) = b.open("f", "x", READ, 0).await.unwrap();
    assert_eq!(b.status_of(&fh, Op::read(of_b, 0, 10)).await, Nfsstat4::OK);
    assert_eq!(a.status_of(&fh, Op::read(held, 0, 10)).await, Nfsstat4::OK, "it is not old");
    assert_eq!(a.status_of(&fh, Op::Close(CloseArgs { seqid: 0, stateid: held })).await, Nfsstat4::OK);
}

/// The locks of an owner that uses two opens of a file end with the second CLOSE, whichever that
/// is. Their stateid permits what one of the opens permits.
/// Promise: S11
#[tokio::test]
async fn locks_of_two_opens_end_with_last() {
    for first_closed in [0, 1] {
        let lab = Lab::new(&model(), "/", 2, None);
        let (mut a, mut b) = two_clients(&lab).await;
        let (of_b, fh) = b.open("f", "x", RW, 0).await.unwrap();
        let (one, _) = a.open("f", "one", READ, 0).await.unwrap();
        let (other, _) = a.open("f", "other", RW, 0).await.unwrap();
        let opens = [one, other];
        let lock_owner = || StateOwner { clientid: 0, owner: b"p"[..].into() };
        let lock = |open_stateid, locktype, offset| {
            let lock_owner = lock_owner();
            let new = OpenToLockOwner { open_seqid: 0, open_stateid, lock_seqid: 0, lock_owner };
            Op::Lock(LockArgs { locktype, reclaim: false, offset, length: 5, locker: Locker::New(new) })
        };
        assert_eq!(a.status_of(&fh, lock(one, LockType::READ, 0)).await, Nfsstat4::OK);
        let mut r = a.run(vec![Op::putfh(&fh), lock(other, LockType::WRITE, 10)]).await;
        r.putfh().unwrap();
        let locks = r.lock().unwrap();
        assert_eq!(a.status_of(&fh, write(locks)).await, Nfsstat4::OK, "through the second open");
        let close = |open: usize| Op::Close(CloseArgs { seqid: 0, stateid: opens[open] });
        assert_eq!(a.status_of(&fh, close(first_closed)).await, Nfsstat4::OK);
        for range in [(0, 5), (10, 5)] {
            let tried = b.lock(&fh, of_b, "q", range).await;
            assert!(matches!(tried, Err(LockFail::Denied(_))), "after close {first_closed}: {range:?}");
        }
        assert_eq!(a.status_of(&fh, close(1 - first_closed)).await, Nfsstat4::OK);
        b.lock(&fh, of_b, "q", (0, 20)).await.unwrap();
    }
}

/// A reservation of a client with an expired lease does not hold up I/O without an open.
/// Promise: S11
#[tokio::test(start_paused = true)]
async fn expired_reservation_gives_way() {
    let lab = Lab::new(&model(), "/", 2, None);
    let (mut a, mut b) = two_clients(&lab).await;
    let (_, fh) = a.open("f", "x", RW, bits::SHARE_DENY_BOTH).await.unwrap();
    assert_eq!(b.status_of(&fh, write(Stateid::ANONYMOUS)).await, Nfsstat4::LOCKED);
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        b.run(vec![]).await;
    }
    assert_eq!(b.status_of(&fh, write(Stateid::ANONYMOUS)).await, Nfsstat4::OK);
    assert_eq!(b.status_of(&fh, Op::read(Stateid::ANONYMOUS, 0, 10)).await, Nfsstat4::OK);
}
