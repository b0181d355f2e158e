//! The grant, recall, return, revocation and reclaim of delegations.

mod asked;
mod directories;
mod lost;
mod times;
mod writing;

use super::*;
use crate::table::Others;
use crate::tests::env;
use hither_proto::nfs3;
use hither_vfs::model::Model;
use hither_vfs::{BoxFuture, ChangeListener, Fh as VfsFh, Watch, Watched, WatchedAlone};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const READ: u32 = bits::SHARE_ACCESS_READ;
const LEASE: Duration = Duration::from_secs(90);

/// A client that has answered a callback.
async fn callable(lab: &Lab, name: &'static str) -> Client {
    let mut c = Client::with(lab.connect(), name, 1, create_session::CONN_BACK_CHAN).await;
    c.reclaim_complete().await;
    // Answers the callback that tests the connection.
    c.wire.listening(Duration::from_millis(50)).await;
    c
}

impl crate::tests::Wire {
    /// Answers callbacks for a time.
    async fn listening(&mut self, time: Duration) {
        let _ = tokio::time::timeout(time, self.listen()).await;
    }

    fn recalls(&mut self) -> Vec<Stateid> {
        let calls = std::mem::take(&mut self.called);
        calls.iter().filter_map(|op| if let CbOp::Recall(a) = op { Some(a.stateid) } else { None }).collect()
    }
}

impl Client {
    async fn open_as(
        &mut self,
        name: &str,
        access: u32,
        claim: Option<OpenClaim>,
    ) -> Result<OpenOk, Nfsstat4> {
        let claim = claim.unwrap_or(OpenClaim::Null(name.as_bytes().into()));
        let mut r = self.run(vec![Op::Putrootfh, Op::Open(open_args("o", access, 0, claim, false))]).await;
        r.putrootfh().unwrap();
        r.open().map_err(|e| e.status().unwrap())
    }

    /// Opens for reading. Returns the delegation, when there is one.
    async fn delegation(&mut self, name: &str) -> Option<Stateid> {
        self.open_as(name, READ, None).await.unwrap().delegation.stateid()
    }

    async fn give_back(&mut self, fh: &Fh, id: Stateid) -> Result<(), Nfsstat4> {
        let mut r = self.run(vec![Op::putfh(fh), Op::Delegreturn(id)]).await;
        r.putfh().unwrap();
        r.delegreturn().map_err(|e| e.status().unwrap())
    }

    async fn flags(&mut self) -> u32 {
        self.seq += 1;
        let reply = self.wire.call(&Compound::new(2, vec![self.sequence(true)])).await;
        reply.results().sequence().unwrap().status_flags
    }

    async fn status(&mut self, ops: Vec<Op>) -> Nfsstat4 {
        self.seq += 1;
        let all = std::iter::once(self.sequence(true)).chain(ops).collect();
        self.wire.call(&Compound::new(2, all)).await.status
    }

    async fn test(&mut self, id: Stateid) -> Nfsstat4 {
        let mut r = self.run(vec![Op::TestStateid(vec![id].into())]).await;
        r.test_stateid().unwrap()[0]
    }
}

/// A server with running timers and a file `f` of eight bytes, and the handle of `f`.
async fn lab() -> (Lab, Fh) {
    let lab = Lab::new(&model(), "/", 2, None);
    let fh = begin(&lab).await;
    (lab, fh)
}

async fn begin(lab: &Lab) -> Fh {
    tokio::spawn(lab.server.clone().tend());
    let mut maker = lab.client("maker").await;
    maker.reclaim_complete().await;
    let (id, fh) = maker.open("f", "m", RW, 0).await.unwrap();
    let write = Op::write(id, 0, StableHow::FILE_SYNC, Bytes::from_static(b"original"));
    let close = Op::Close(CloseArgs { seqid: 0, stateid: Stateid::CURRENT });
    let mut r = maker.run(vec![Op::putfh(&fh), write, Op::open_downgrade(id, 1, 0), close]).await;
    r.putfh().unwrap();
    r.write().unwrap();
    r.open_downgrade().unwrap();
    r.close().unwrap();
    // A file that was just recalled is not delegated for a while.
    tokio::time::sleep(Duration::from_secs(5)).await;
    fh
}

/// A client with a working backchannel gets a read delegation, unless it declines or a client has
/// the file open for writing. Several clients may hold one.
#[tokio::test(start_paused = true)]
async fn server_grants_read_delegations() {
    let (lab, fh) = lab().await;
    let mut deaf = lab.client("deaf").await;
    deaf.reclaim_complete().await;
    assert_eq!(deaf.delegation("f").await, None, "it cannot be called");
    let mut a = callable(&lab, "a").await;
    for access in [READ | bits::WANT_NO_DELEG, RW | bits::WANT_NO_DELEG, READ | bits::WANT_CANCEL] {
        let why = a.open_as("f", access, None).await.unwrap().delegation;
        assert_eq!(why, OpenDelegation::NoneExt(WhyNoDelegation::NotWanted));
    }
    let why = a.open_as("f", RW | bits::WANT_READ_DELEG, None).await.unwrap().delegation;
    assert_eq!(why.stateid(), None, "an open for writing gets no read delegation");
    assert_eq!(a.delegation("f").await, None, "it is open for writing");
    let mut b = callable(&lab, "b").await;
    assert_eq!(b.delegation("f").await, None, "another client has it open for writing");
    let open = a.open_as("f", READ, None).await.unwrap().stateid;
    let close = Op::Close(CloseArgs { seqid: 0, stateid: open });
    a.run(vec![Op::putfh(&fh), close]).await;
    let (of_a, of_b) = (a.delegation("f").await.unwrap(), b.delegation("f").await.unwrap());
    assert_ne!(of_a, of_b, "several clients may have a read delegation");
    assert_eq!(a.delegation("f").await, None, "it has one");
    let mut r = a.run(vec![Op::putfh(&fh), Op::read(of_a, 0, 100)]).await;
    r.putfh().unwrap();
    assert_eq!(&r.read().unwrap().data[..], b"original");
    let write = Op::write(of_a, 0, StableHow::FILE_SYNC, Bytes::from_static(b"x"));
    assert_eq!(a.status(vec![Op::putfh(&fh), write]).await, Nfsstat4::OPENMODE);
    assert_eq!(a.test(of_a).await, Nfsstat4::OK);
    assert_eq!(a.test(of_b).await, Nfsstat4::BAD_STATEID);
    assert_eq!(a.status(vec![Op::FreeStateid(of_a)]).await, Nfsstat4::LOCKS_HELD);
    assert_eq!(b.give_back(&fh, of_a).await, Err(Nfsstat4::BAD_STATEID));
    assert_eq!(a.give_back(&fh, of_a).await, Ok(()));
    assert_eq!(a.give_back(&fh, of_a).await, Err(Nfsstat4::BAD_STATEID));
}

/// Each operation that changes a file, its attributes or its names recalls other clients'
/// delegations. It gets "try later" and succeeds after the return.
/// Promise: S10
#[tokio::test(start_paused = true)]
async fn changes_recall() {
    let (lab, fh) = lab().await;
    let mut holder = callable(&lab, "holder").await;
    let mut other = lab.client("other").await;
    other.reclaim_complete().await;
    other.open("g", "x", READ, 0).await.unwrap();
    let set =
        |attrs: Attrs| vec![Op::putfh(&fh), Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attrs })];
    let open = |claim, access| vec![Op::Putrootfh, Op::Open(open_args("x", access, 0, claim, false))];
    let name = |n: &str| n.as_bytes().into();
    let rename = |from: &str, to: &str| {
        vec![Op::Putrootfh, Op::Savefh, Op::Rename(RenameArgs { oldname: name(from), newname: name(to) })]
    };
    let range = RangeArgs { stateid: Stateid::ANONYMOUS, offset: 0, length: 4 };
    let data = Bytes::from_static(b"data");
    let changes: Vec<(&str, Vec<Op>)> = vec![
        ("chmod", set(Attrs { mode: Some(0o600), ..Attrs::default() })),
        ("cut", set(Attrs { size: Some(4), ..Attrs::default() })),
        ("write", vec![Op::putfh(&fh), Op::write(Stateid::ANONYMOUS, 0, StableHow::FILE_SYNC, data)]),
        ("deallocate", vec![Op::putfh(&fh), Op::Deallocate(range)]),
        ("link", vec![Op::putfh(&fh), Op::Savefh, Op::Putrootfh, Op::Link(name("f2"))]),
        ("unlink", vec![Op::Putrootfh, Op::Remove(name("f2"))]),
        ("rename", rename("f", "h")),
        ("rename back", rename("h", "f")),
        ("open to write", open(OpenClaim::Null(name("f")), RW)),
    ];
    for (what, ops) in changes {
        // The time without delegations grows with each recall.
        tokio::time::sleep(Duration::from_secs(100)).await;
        for c in [&mut holder, &mut other] {
            c.run(vec![]).await;
        }
        let file = if what == "rename back" { "h" } else { "f" };
        let id = holder.delegation(file).await.unwrap_or_else(|| panic!("{what}: no delegation"));
        let turn = tokio::time::timeout(Duration::from_secs(60), other.status(ops.clone()));
        assert_eq!(turn.await.unwrap(), Nfsstat4::DELAY, "{what}");
        holder.wire.listening(Duration::from_secs(2)).await;
        assert!(holder.wire.recalls().contains(&id), "{what}");
        assert_eq!(other.status(ops.clone()).await, Nfsstat4::DELAY, "{what}");
        holder.give_back(&fh, id).await.unwrap();
        assert_eq!(other.status(ops).await, Nfsstat4::OK, "{what}");
    }
}

/// A reservation against reading recalls read delegations: their holders read without a call.
/// Promise: S10
#[tokio::test(start_paused = true)]
async fn reservation_against_reading_recalls() {
    let (lab, fh) = lab().await;
    let mut holder = callable(&lab, "holder").await;
    let mut other = lab.client("other").await;
    other.reclaim_complete().await;
    let opened = holder.open_as("f", READ, None).await.unwrap();
    let id = opened.delegation.stateid().unwrap();
    let close = Op::Close(CloseArgs { seqid: 0, stateid: opened.stateid });
    assert_eq!(holder.run(vec![Op::putfh(&fh), close]).await.status(), Nfsstat4::OK);
    let deny = bits::SHARE_DENY_READ;
    assert_eq!(other.open("f", "x", READ, deny).await.unwrap_err(), Nfsstat4::DELAY);
    holder.wire.listening(Duration::from_millis(50)).await;
    assert_eq!(holder.wire.recalls(), [id]);
    holder.give_back(&fh, id).await.unwrap();
    other.open("f", "x", READ, deny).await.unwrap();
}

/// Another client renames a file over the name of an OPEN, after the OPEN found its file. The
/// replaced file is not delegated, because the holder would keep its old name.
/// Promise: S10
#[tokio::test(start_paused = true)]
async fn replaced_file_is_not_delegated() {
    let (lab, _) = lab().await;
    let (mut b, mut other) = (callable(&lab, "b").await, lab.client("other").await);
    other.reclaim_complete().await;
    other.open("f", "reader", READ, 0).await.unwrap();
    let replacing = [b"g", b"f"].map(|name| Component::from(&name[..]));
    let [oldname, newname] = replacing;
    let file = side_by_side::file(&lab);
    other.open("g", "writer", RW, 0).await.unwrap();
    let busy = file.order.lock().await;
    let opening = tokio::spawn(async move { b.delegation("f").await });
    side_by_side::settle().await;
    let rename = Op::Rename(RenameArgs { oldname, newname });
    assert_eq!(other.status(vec![Op::Putrootfh, Op::Savefh, rename]).await, Nfsstat4::OK);
    drop(busy);
    assert_eq!(opening.await.unwrap(), None);
}

/// The same for NFSv3, where calls wait longer before "try later". A file that a rename replaces is
/// recalled too.
/// Promise: S10
#[tokio::test(start_paused = true)]
async fn changes_by_nfsv3_recall() {
    let (lab, fh) = lab().await;
    let mut holder = callable(&lab, "holder").await;
    let mut wire = lab.connect();
    let root = wire.root3("/").await;
    let at = |name: &str| nfs3::Diropargs3 { dir: root.clone(), name: name.as_bytes().into() };
    let how = nfs3::Createhow3::Guarded(nfs3::Sattr3::default());
    wire.call(&nfs3::CreateArgs { r#where: at("new"), how }).await.into_result().unwrap();
    let file: nfs3::Fh3 = fh[..].into();
    let write = nfs3::WriteArgs {
        file,
        offset: 0,
        count: 4,
        stable: nfs3::StableHow::FILE_SYNC,
        data: Bytes::from_static(b"data").into(),
    };
    let id = holder.delegation("f").await.unwrap();
    assert_eq!(wire.call(&write).await.status(), nfs3::Nfsstat3::JUKEBOX);
    holder.give_back(&fh, id).await.unwrap();
    assert_eq!(wire.call(&write).await.status(), nfs3::Nfsstat3::OK);
    tokio::time::sleep(Duration::from_secs(200)).await;
    holder.run(vec![]).await;
    let id = holder.delegation("f").await.unwrap();
    holder.wire.recalls();
    // The delegation is returned while the call waits, so the call succeeds at once.
    let replace = nfs3::RenameArgs { from: at("new"), to: at("f") };
    let back = async {
        holder.wire.listening(Duration::from_secs(1)).await;
        assert_eq!(holder.wire.recalls(), [id]);
        holder.give_back(&fh, id).await
    };
    let (renamed, back) = tokio::join!(wire.call(&replace), back);
    back.unwrap();
    assert_eq!(renamed.status(), nfs3::Nfsstat3::OK);
}

/// The holder opens the file under its delegation. A REMOVE by the holder recalls the delegation.
/// After the return, no open is possible under it.
#[tokio::test(start_paused = true)]
async fn holder_opens_under_own_delegation() {
    let (lab, fh) = lab().await;
    let mut a = callable(&lab, "a").await;
    let id = a.delegation("f").await.unwrap();
    let under = a
        .open_as(
            "f",
            READ,
            Some(OpenClaim::DelegateCur(ClaimDelegateCur { delegate_stateid: id, file: b"f"[..].into() })),
        )
        .await;
    assert_eq!(under.unwrap().delegation, OpenDelegation::None);
    let claim = Op::Open(open_args("o2", READ, 0, OpenClaim::DelegCurFh(id), false));
    a.run(vec![Op::putfh(&fh), claim.clone()]).await.putfh().unwrap();
    assert_eq!(a.status(vec![Op::Putrootfh, Op::remove(b"f")]).await, Nfsstat4::DELAY);
    assert_eq!(a.wire.recalls(), [id]);
    a.give_back(&fh, id).await.unwrap();
    a.open_as("f", RW, None).await.unwrap();
    assert_eq!(a.status(vec![Op::putfh(&fh), claim]).await, Nfsstat4::BAD_STATEID);
}

/// An OPEN under a delegation that the client does not hold is refused, and leaves no file open.
#[tokio::test(start_paused = true)]
async fn refused_open_leaves_no_file_open() {
    let model = model();
    let lab = Lab::new(&model, "/", 2, None);
    begin(&lab).await;
    let mut a = callable(&lab, "a").await;
    let before = model.open_count();
    let claim =
        ClaimDelegateCur { delegate_stateid: Stateid { seqid: 1, other: [9; 12] }, file: b"f"[..].into() };
    for _ in 0..3 {
        let refused = a.open_as("f", READ, Some(OpenClaim::DelegateCur(claim.clone()))).await;
        assert_eq!(refused.unwrap_err(), Nfsstat4::STALE_STATEID);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(model.open_count(), before);
}

/// A client opens and writes a file under its own read delegation. Nothing is recalled and no call
/// waits, even while other clients read the file. A write by another client recalls the delegation.
/// Promise: S10
#[tokio::test(start_paused = true)]
async fn own_delegation_for_reading_is_kept() {
    let (lab, fh) = lab().await;
    let mut a = callable(&lab, "a").await;
    let mut b = callable(&lab, "b").await;
    let (id, other) = (a.delegation("f").await.unwrap(), b.delegation("f").await.unwrap());
    // The delegation of `b` conflicts.
    assert_eq!(a.open_as("f", RW, None).await.unwrap_err(), Nfsstat4::DELAY);
    b.wire.listening(Duration::from_millis(50)).await;
    assert_eq!(b.wire.recalls(), [other]);
    b.give_back(&fh, other).await.unwrap();
    let begun = tokio::time::Instant::now();
    let opened = a.open_as("f", RW, None).await.unwrap();
    assert_eq!(opened.delegation, OpenDelegation::None, "b reads");
    let write = Op::write(opened.stateid, 0, StableHow::FILE_SYNC, Bytes::from_static(b"new"));
    a.run(vec![Op::putfh(&fh), write]).await.putfh().unwrap();
    let cut = Attrs { size: Some(2), ..Attrs::default() };
    assert_eq!(a.status(vec![Op::putfh(&fh), Op::setattr(opened.stateid, cut)]).await, Nfsstat4::OK);
    assert_eq!(begun.elapsed(), Duration::ZERO, "no call waits");
    assert_eq!(a.test(id).await, Nfsstat4::OK);
    assert_eq!(a.wire.recalls(), []);
    // No other client gets a delegation in the meantime.
    assert_eq!(b.delegation("f").await, None);
    assert_eq!(b.open_as("f", RW, None).await.unwrap_err(), Nfsstat4::DELAY);
    a.wire.listening(Duration::from_millis(50)).await;
    assert_eq!(a.wire.recalls(), [id]);
}

/// A read delegation becomes a write delegation when its holder opens the file for writing and no
/// other client uses it.
/// Promise: S10
#[tokio::test(start_paused = true)]
async fn read_delegation_becomes_write_delegation() {
    let (lab, fh) = lab().await;
    let mut a = callable(&lab, "a").await;
    let mut b = callable(&lab, "b").await;
    let id = a.delegation("f").await.unwrap();
    let opened = a.open_as("f", RW, None).await.unwrap();
    let OpenDelegation::Write(now) = opened.delegation else { panic!("{:?}", opened.delegation) };
    assert_eq!(now.stateid, Stateid { seqid: id.seqid + 1, other: id.other });
    assert_eq!(a.wire.recalls(), []);
    assert_eq!(a.test(id).await, Nfsstat4::OLD_STATEID);
    // Other clients' reads must wait. The first `change` that the holder got is older than its
    // possible writes.
    assert_eq!(b.open_as("f", READ, None).await.unwrap_err(), Nfsstat4::DELAY);
    a.wire.listening(Duration::from_millis(50)).await;
    assert_eq!(a.wire.recalls(), [now.stateid]);
    a.give_back(&fh, now.stateid).await.unwrap();
    b.open_as("f", READ, None).await.unwrap();
}

/// A holder that changes its file keeps the delegation while the file is watched. A file that a
/// local program has open cannot stay watched meanwhile, so its delegation is recalled first.
/// Promise: S10a
#[tokio::test(start_paused = true)]
async fn watched_file_keeps_own_delegation() {
    for alone in [false, true] {
        let watcher = Arc::new(Watcher { told: Mutex::default(), can: true, alone, watched: Arc::default() });
        let lab = Lab::beside(&model(), "/", 2, None, Others::Watched(watcher.clone()));
        let fh = begin(&lab).await;
        let mut a = callable(&lab, "a").await;
        let id = a.delegation("f").await.unwrap();
        let opened = a.open_as("f", bits::SHARE_ACCESS_WRITE, None).await;
        assert_eq!(opened.map(drop), if alone { Ok(()) } else { Err(Nfsstat4::DELAY) });
        assert_eq!(a.wire.recalls(), if alone { vec![] } else { vec![id] });
        assert_eq!(watcher.watched.load(SeqCst), 1);
        a.give_back(&fh, Stateid { seqid: 0, ..id }).await.unwrap();
        assert_eq!(watcher.watched.load(SeqCst), 0);
    }
}

/// A silent client loses its delegations when its lease has certainly expired, and not before. A
/// client that calls but returns nothing loses them too. Both get a status flag until they free the
/// stateid.
/// Promise: S10
#[tokio::test(start_paused = true)]
async fn unreturned_delegation_is_revoked() {
    for silent in [true, false] {
        let (lab, fh) = lab().await;
        let mut holder = callable(&lab, "holder").await;
        let mut other = lab.client("other").await;
        other.reclaim_complete().await;
        let id = holder.delegation("f").await.unwrap();
        holder.wire.deaf = silent;
        let begun = Instant::now();
        let ops =
            vec![Op::Putrootfh, Op::Open(open_args("x", RW, 0, OpenClaim::Null(b"f"[..].into()), false))];
        loop {
            match other.status(ops.clone()).await {
                Nfsstat4::OK => break,
                status => assert_eq!(status, Nfsstat4::DELAY),
            }
            if !silent {
                holder.run(vec![]).await;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let took = begun.elapsed();
        assert!(took >= LEASE, "{silent}: {took:?}");
        assert!(took < 2 * LEASE + Duration::from_secs(15), "{silent}: {took:?}");
        assert_ne!(holder.flags().await & seq4_status::RECALLABLE_STATE_REVOKED, 0);
        assert_eq!(holder.test(id).await, Nfsstat4::DELEG_REVOKED);
        assert_eq!(holder.status(vec![Op::putfh(&fh), Op::read(id, 0, 1)]).await, Nfsstat4::DELEG_REVOKED);
        assert_eq!(holder.give_back(&fh, id).await, Err(Nfsstat4::DELEG_REVOKED));
        assert_eq!(holder.status(vec![Op::FreeStateid(id)]).await, Nfsstat4::OK);
        assert_eq!(holder.flags().await & seq4_status::RECALLABLE_STATE_REVOKED, 0);
        assert_eq!(holder.test(id).await, Nfsstat4::BAD_STATEID);
    }
}

/// A restart of the holder ends its delegations, so that they delay no other client.
#[tokio::test(start_paused = true)]
async fn holder_restart_ends_delegations() {
    let (lab, _) = lab().await;
    let mut holder = callable(&lab, "holder").await;
    holder.delegation("f").await.unwrap();
    let mut again = Client::new(lab.connect(), "holder", 2).await;
    again.reclaim_complete().await;
    again.open_as("f", RW, None).await.unwrap();
    assert!(!lab.server.v4.leases.any());
}

/// After a restart no client changes files before the holders of delegations have reclaimed them,
/// or can no longer rely on them.
/// Promise: S10
#[tokio::test(start_paused = true)]
async fn a_restart_gives_delegations_back() {
    let (model, dir) = (model(), tempfile::tempdir().unwrap());
    let state = Some(dir.path().to_path_buf());
    let lab = Lab::new(&model, "/", 2, state.clone());
    let fh = begin(&lab).await;
    let mut holder = callable(&lab, "holder").await;
    holder.delegation("f").await.unwrap();
    drop(lab);
    for comes_back in [true, false] {
        let lab = Lab::new(&model, "/", 3, state.clone());
        tokio::spawn(lab.server.clone().tend());
        let mut wire = lab.connect();
        let remove = nfs3::RemoveArgs {
            object: nfs3::Diropargs3 { dir: wire.root3("/").await, name: b"none"[..].into() },
        };
        let mut other = lab.client("other").await;
        other.run(vec![Op::ReclaimComplete(false)]).await.reclaim_complete().unwrap();
        let gone = Op::Remove(b"none"[..].into());
        assert_eq!(wire.call(&remove).await.status(), nfs3::Nfsstat3::JUKEBOX);
        assert_eq!(other.status(vec![Op::Putrootfh, gone.clone()]).await, Nfsstat4::GRACE);
        if !comes_back {
            tokio::time::sleep(LEASE + Duration::from_secs(5)).await;
            assert_eq!(wire.call(&remove).await.status(), nfs3::Nfsstat3::NOENT);
            continue;
        }
        let mut holder = Client::with(lab.connect(), "holder", 1, create_session::CONN_BACK_CHAN).await;
        let claim = OpenClaim::Previous(DelegationType::READ);
        let mut r = holder.run(vec![Op::putfh(&fh), Op::Open(open_args("o", READ, 0, claim, false))]).await;
        r.putfh().unwrap();
        assert!(r.open().unwrap().delegation.stateid().is_some());
        assert_eq!(wire.call(&remove).await.status(), nfs3::Nfsstat3::JUKEBOX);
        holder.reclaim_complete().await;
        let mut maker = lab.client("maker").await;
        maker.reclaim_complete().await;
        assert_eq!(wire.call(&remove).await.status(), nfs3::Nfsstat3::NOENT);
    }
}

/// Files that local programs may change.
struct Watcher {
    told: Mutex<Option<Arc<ChangeListener>>>,
    can: bool,
    /// Whether no local program uses the files.
    alone: bool,
    watched: Arc<AtomicUsize>,
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Watch for Watcher {
    fn watch(&self, _: &VfsFh, _: bool) -> BoxFuture<Option<Watched>> {
        let watched = self.can.then(|| {
            self.watched.fetch_add(1, SeqCst);
            Box::new(Counted(self.watched.clone())) as Watched
        });
        Box::pin(async move { watched })
    }

    fn watch_alone(&self, _: &VfsFh, watched: Watched) -> BoxFuture<WatchedAlone> {
        let turned = if self.alone { Ok(watched) } else { Err(Some(watched)) };
        Box::pin(async move { turned })
    }

    fn tell(&self, told: Arc<ChangeListener>) {
        *self.told.lock() = Some(told);
    }
}

/// A local program's change recalls the delegation. The program waits until the watch ends.
/// Promise: S10a
#[tokio::test(start_paused = true)]
async fn local_programs_recall() {
    for can in [false, true] {
        let model = model();
        let watcher = Arc::new(Watcher { told: Mutex::default(), can, alone: true, watched: Arc::default() });
        let lab = Lab::beside(&model, "/", 2, None, Others::Watched(watcher.clone()));
        let fh = begin(&lab).await;
        let mut holder = callable(&lab, "holder").await;
        let id = holder.delegation("f").await;
        assert_eq!(id.is_some(), can);
        let Some(id) = id else { continue };
        assert_eq!(watcher.watched.load(SeqCst), 1);
        let told = watcher.told.lock().clone().unwrap();
        let export = lab.server.table().exports()[0].number;
        let Some(crate::handle::Handle::Object(number, file)) = crate::handle::Handle::read(&fh) else {
            panic!("an object")
        };
        assert_eq!(number, export);
        told(&file);
        holder.wire.listening(Duration::from_secs(1)).await;
        assert_eq!(holder.wire.recalls(), [id]);
        assert_eq!(watcher.watched.load(SeqCst), 1, "as long as it is held");
        holder.give_back(&fh, id).await.unwrap();
        assert_eq!(watcher.watched.load(SeqCst), 0);
    }
    let lab = Lab::beside(&model(), "/", 2, None, Others::Unseen);
    begin(&lab).await;
    assert_eq!(callable(&lab, "holder").await.delegation("f").await, None);
}

/// Several clients read from memory as long as they hold a delegation. No read is older than the
/// last write that was acknowledged before it.
/// Promise: S10
#[tokio::test(start_paused = true)]
async fn nothing_stale_is_ever_read() {
    let random = env(77).random;
    let mut from_memory = 0;
    for _ in 0..20 {
        let model: Arc<Model> = model();
        let lab = Lab::new(&model, "/", (random)(), None);
        let fh = begin(&lab).await;
        let mut readers = [callable(&lab, "a").await, callable(&lab, "b").await, callable(&lab, "c").await];
        let mut kept: Vec<Option<(Stateid, Bytes)>> = vec![None; readers.len()];
        let mut writer = lab.client("writer").await;
        writer.reclaim_complete().await;
        let mut acknowledged = Bytes::from_static(b"original");
        for step in 0..300_u64 {
            let i = (random)() as usize % readers.len();
            tokio::time::sleep(Duration::from_millis((random)() % 400)).await;
            if (random)().is_multiple_of(12) {
                let value = Bytes::from(format!("{step:08}"));
                let write = Op::write(Stateid::ANONYMOUS, 0, StableHow::FILE_SYNC, value.clone());
                loop {
                    // Readers return their delegations one at a time, and not at once.
                    match writer.status(vec![Op::putfh(&fh), write.clone()]).await {
                        Nfsstat4::OK => break,
                        status => assert_eq!(status, Nfsstat4::DELAY),
                    }
                    let i = (random)() as usize % readers.len();
                    readers[i].wire.listening(Duration::from_millis(1)).await;
                    recalled(&mut readers[i], &mut kept[i], &fh).await;
                    for (c, kept) in readers.iter_mut().zip(&kept) {
                        if let Some((_, bytes)) = kept {
                            assert_eq!(*bytes, acknowledged, "as long as it is held");
                            from_memory += 1;
                        }
                        c.run(vec![]).await;
                    }
                }
                acknowledged = value;
                continue;
            }
            let reader = &mut readers[i];
            reader.wire.listening(Duration::from_millis(1)).await;
            recalled(reader, &mut kept[i], &fh).await;
            if let Some((_, bytes)) = &kept[i] {
                assert_eq!(*bytes, acknowledged);
                from_memory += 1;
                continue;
            }
            let open = Op::Open(open_args("o", READ, 0, OpenClaim::Null(b"f"[..].into()), false));
            let mut r = reader.run(vec![Op::Putrootfh, open, Op::read(Stateid::CURRENT, 0, 100)]).await;
            r.putrootfh().unwrap();
            let opened = r.open().unwrap();
            let bytes = Bytes::copy_from_slice(&r.read().unwrap().data);
            assert_eq!(bytes, acknowledged);
            kept[i] = opened.delegation.stateid().map(|id| (id, bytes));
        }
    }
    assert!(from_memory > 500, "{from_memory} reads from memory prove nothing");
}

async fn recalled(c: &mut Client, kept: &mut Option<(Stateid, Bytes)>, fh: &Fh) {
    for id in c.wire.recalls() {
        if kept.as_ref().is_some_and(|(held, _)| *held == id) {
            *kept = None;
            c.give_back(fh, id).await.unwrap();
        }
    }
}
