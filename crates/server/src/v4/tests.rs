//! Conversations of NFSv4: compound in, compound out.

mod delegations;
mod entries;
mod paced;
mod parents;
mod reclaims;
mod replays;
mod rules;
mod shares;
mod side_by_side;

use super::*;
use crate::table::Others;
use crate::tests::{Client, Lab, env, model, open_args};
use hither_proto::nfs4::open as bits;
use hither_proto::nfs4::*;
use hither_proto::xdr::Dec;

const RW: u32 = bits::SHARE_ACCESS_BOTH;

/// One compound looks up a path of 22 names and returns attributes. It stops at the first absent
/// name.
#[tokio::test]
async fn compound_walks_whole_path() {
    let lab = Lab::new(&model(), "/srv/data", 2, None);
    let mut c = lab.client("one").await;
    c.reclaim_complete().await;
    let mode = Attrs { mode: Some(0o755), ..Attrs::default() };
    let mut ops = vec![Op::Putrootfh, Op::lookup(b"srv"), Op::lookup(b"data")];
    for _ in 0..20 {
        ops.push(Op::create(CreateType::Dir, b"d", mode.clone()));
    }
    c.run(ops).await;
    let mut ops = vec![Op::Putrootfh, Op::lookup(b"srv"), Op::lookup(b"data")];
    for _ in 0..20 {
        ops.extend([Op::lookup(b"d"), Op::Getattr(Bitmap4::of(&[attr::FILEID, attr::FILEHANDLE]))]);
    }
    ops.extend([Op::lookup(b"missing"), Op::Getfh]);
    let mut r = c.run(ops).await;
    r.putrootfh().unwrap();
    r.lookup().unwrap();
    r.lookup().unwrap();
    let mut ids = Vec::new();
    for _ in 0..20 {
        r.lookup().unwrap();
        ids.push(r.getattr().unwrap().fileid.unwrap());
    }
    ids.dedup();
    assert_eq!(ids.len(), 20);
    assert_eq!(r.lookup().unwrap_err().status(), Some(Nfsstat4::NOENT));
    assert_eq!(r.remaining(), 0);
}

/// The directories above an export can be listed, and LOOKUPP leads back through them. An export is
/// a file system of its own.
#[tokio::test]
async fn pseudo_directories_list_exports() {
    let lab = Lab::new(&model(), "/srv/data", 2, None);
    let mut c = lab.client("one").await;
    let args = |cookie| {
        Op::Readdir(ReaddirArgs {
            cookie,
            cookieverf: [0; 8],
            dircount: 1000,
            maxcount: 4000,
            attr_request: Bitmap4::of(&[attr::TYPE, attr::FSID, attr::MOUNTED_ON_FILEID]),
        })
    };
    let mut r = c
        .run(vec![Op::Putrootfh, Op::lookup(b"srv"), args(0), Op::Getattr(Bitmap4::of(&[attr::FSID]))])
        .await;
    r.putrootfh().unwrap();
    r.lookup().unwrap();
    let list = r.readdir().unwrap();
    let above = r.getattr().unwrap().fsid;
    assert_eq!(list.entries.len(), 1);
    assert_eq!(&list.entries[0].name[..], b"data");
    assert_ne!(list.entries[0].attrs.fsid, above, "an export is a file system of its own");
    let mut r = c.run(vec![Op::Putrootfh, Op::lookup(b"srv"), args(list.entries[0].cookie)]).await;
    r.putrootfh().unwrap();
    r.lookup().unwrap();
    assert!(r.readdir().unwrap().entries.is_empty());
    let mut r = c
        .run(vec![
            Op::Putrootfh,
            Op::lookup(b"srv"),
            Op::lookup(b"data"),
            Op::Lookupp,
            Op::Lookupp,
            Op::Lookupp,
        ])
        .await;
    r.putrootfh().unwrap();
    r.lookup().unwrap();
    r.lookup().unwrap();
    r.lookupp().unwrap();
    r.lookupp().unwrap();
    assert_eq!(r.lookupp().unwrap_err().status(), Some(Nfsstat4::NOENT));
}

/// A compound that is sent again gets its first reply and is not executed. Another compound with
/// the same sequence number gets SEQ_FALSE_RETRY.
#[tokio::test]
async fn replayed_compound_is_not_executed() {
    let model = model();
    let lab = Lab::new(&model, "/", 2, None);
    let mut c = lab.client("one").await;
    let make = |c: &Client| {
        let mode = Attrs { mode: Some(0o755), ..Attrs::default() };
        let ops = vec![c.sequence(true), Op::Putrootfh, Op::create(CreateType::Dir, b"d", mode)];
        Compound::new(2, ops)
    };
    c.seq += 1;
    let first = make(&c);
    let reply = c.wire.call(&first).await;
    assert_eq!(reply.status, Nfsstat4::OK);
    let objects = model.object_count();
    let mut again = lab.connect();
    assert_eq!(again.call(&first).await, reply);
    assert_eq!(model.object_count(), objects);
    let other = Compound::new(2, vec![c.sequence(true), Op::Putrootfh]);
    assert_eq!(again.call(&other).await.status, Nfsstat4::SEQ_FALSE_RETRY);
}

#[tokio::test]
async fn sessions_come_first_and_limits_hold() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut c = lab.client("one").await;
    let status = async |c: &mut Client, minor, ops| c.wire.call(&Compound::new(minor, ops)).await.status;
    assert_eq!(status(&mut c, 0, vec![Op::Putrootfh]).await, Nfsstat4::MINOR_VERS_MISMATCH);
    assert_eq!(status(&mut c, 2, vec![Op::Putrootfh]).await, Nfsstat4::OP_NOT_IN_SESSION);
    assert_eq!(status(&mut c, 2, vec![]).await, Nfsstat4::OK);
    c.seq += 1;
    let ops = vec![c.sequence(true), c.sequence(true)];
    assert_eq!(status(&mut c, 2, ops).await, Nfsstat4::SEQUENCE_POS);
    let mut ops = vec![Op::Putrootfh; 300];
    c.seq += 1;
    ops[0] = c.sequence(true);
    assert_eq!(status(&mut c, 2, ops).await, Nfsstat4::TOO_MANY_OPS);
    let destroy = vec![Op::DestroySession(c.session), Op::Putrootfh];
    assert_eq!(status(&mut c, 2, destroy).await, Nfsstat4::NOT_ONLY_OP);
    let destroy = vec![Op::DestroyClientid(c.id)];
    assert_eq!(status(&mut c, 2, destroy.clone()).await, Nfsstat4::CLIENTID_BUSY);
    // The end of the compound's own session is its last operation, and nothing is executed behind.
    let own = vec![c.sequence(true), Op::DestroySession(c.session), Op::Putrootfh];
    assert_eq!(status(&mut c, 2, own).await, Nfsstat4::NOT_ONLY_OP);
    c.seq += 1;
    let bind = BindConnToSessionArgs {
        sessionid: c.session,
        dir: ChannelDirFromClient::FORE,
        use_conn_in_rdma_mode: false,
    };
    let bind = vec![c.sequence(true), Op::BindConnToSession(bind)];
    assert_eq!(status(&mut c, 2, bind).await, Nfsstat4::NOT_ONLY_OP);
    let session = vec![Op::DestroySession(c.session)];
    assert_eq!(status(&mut c, 2, session.clone()).await, Nfsstat4::OK);
    assert_eq!(status(&mut c, 2, session).await, Nfsstat4::BADSESSION);
    assert_eq!(status(&mut c, 2, destroy).await, Nfsstat4::OK);
    assert_eq!(lab.server.v4.clients.count(), 0);
}

#[tokio::test]
async fn opens_add_up_and_shares_exclude() {
    let model = model();
    let lab = Lab::new(&model, "/", 2, None);
    let (mut a, mut b) = (lab.client("a").await, lab.client("b").await);
    assert_eq!(a.open("f", "x", RW, 0).await.unwrap_err(), Nfsstat4::GRACE, "before RECLAIM_COMPLETE");
    a.reclaim_complete().await;
    b.reclaim_complete().await;
    let (first, fh) = a.open("f", "x", bits::SHARE_ACCESS_READ, 0).await.unwrap();
    let (second, _) = a.open("f", "x", RW, bits::SHARE_DENY_WRITE).await.unwrap();
    assert_eq!((second.other, second.seqid), (first.other, 2));
    assert_eq!(b.open("f", "x", RW, 0).await.unwrap_err(), Nfsstat4::SHARE_DENIED);
    let (of_b, _) = b.open("f", "x", bits::SHARE_ACCESS_READ, 0).await.unwrap();
    let write = |id| Op::write(id, 0, StableHow::FILE_SYNC, Bytes::from_static(b"data"));
    let mut r = b.run(vec![Op::putfh(&fh), write(of_b)]).await;
    r.putfh().unwrap();
    assert_eq!(r.write().unwrap_err().status(), Some(Nfsstat4::OPENMODE));
    let mut r = b.run(vec![Op::putfh(&fh), write(Stateid::ANONYMOUS)]).await;
    r.putfh().unwrap();
    assert_eq!(r.write().unwrap_err().status(), Some(Nfsstat4::LOCKED));
    let mut r = a.run(vec![Op::putfh(&fh), write(first)]).await;
    r.putfh().unwrap();
    assert_eq!(r.write().unwrap_err().status(), Some(Nfsstat4::OLD_STATEID));
    let close = |id| Op::Close(CloseArgs { seqid: 0, stateid: id });
    let mut r = a
        .run(vec![Op::putfh(&fh), write(second), Op::open_downgrade(second, 1, 0), close(Stateid::CURRENT)])
        .await;
    r.putfh().unwrap();
    r.write().unwrap();
    r.open_downgrade().unwrap();
    r.close().unwrap();
    let mut r = a.run(vec![Op::putfh(&fh), Op::read(second, 0, 10)]).await;
    r.putfh().unwrap();
    assert_eq!(r.read().unwrap_err().status(), Some(Nfsstat4::BAD_STATEID));
    let mut r = b.run(vec![Op::putfh(&fh), Op::read(of_b, 0, 10), close(of_b)]).await;
    r.putfh().unwrap();
    assert_eq!(&r.read().unwrap().data[..], b"data");
    r.close().unwrap();
    while model.open_count() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(lab.server.v4.registry.count(), 0);
}

/// A lock excludes other clients while its client is within its lease. A later conflicting LOCK
/// ends the state of a silent client.
#[tokio::test(start_paused = true)]
async fn silent_client_loses_conflicting_locks() {
    let lab = Lab::new(&model(), "/", 2, None);
    let (mut a, mut b) = (lab.client("a").await, lab.client("b").await);
    a.reclaim_complete().await;
    b.reclaim_complete().await;
    let (open_a, fh) = a.open("f", "x", RW, 0).await.unwrap();
    let (open_b, _) = b.open("f", "x", RW, 0).await.unwrap();
    a.lock(&fh, open_a, "p", (0, 10)).await.unwrap();
    let Err(LockFail::Denied(denied)) = b.lock(&fh, open_b, "q", (5, 10)).await else {
        panic!("it is locked")
    };
    assert_eq!((denied.offset, denied.length, &denied.owner.owner[..]), (0, 10, &b"p"[..]));
    b.lock(&fh, open_b, "q", (10, 10)).await.unwrap();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        b.run(vec![]).await;
    }
    b.lock(&fh, open_b, "q", (5, u64::MAX)).await.unwrap();
    a.seq += 1;
    let late = Compound::new(2, vec![a.sequence(true)]);
    assert_eq!(a.wire.call(&late).await.status, Nfsstat4::BADSESSION);
}

/// After a restart only a client that held state before can reclaim its opens. Other opens get
/// GRACE until all reclaims are complete.
#[tokio::test(start_paused = true)]
async fn grace_period_reclaims_opens() {
    let (model, dir) = (model(), tempfile::tempdir().unwrap());
    let state = Some(dir.path().to_path_buf());
    let lab = Lab::new(&model, "/", 2, state.clone());
    let mut a = lab.client("a").await;
    a.reclaim_complete().await;
    let (old, fh) = a.open("f", "x", RW, 0).await.unwrap();
    drop(lab);
    let lab = Lab::new(&model, "/", 3, state);
    let (mut a, mut b) = (lab.client("a").await, lab.client("b").await);
    let mut r = a.run(vec![Op::putfh(&fh), Op::read(old, 0, 1)]).await;
    r.putfh().unwrap();
    assert_eq!(r.read().unwrap_err().status(), Some(Nfsstat4::STALE_STATEID));
    b.run(vec![Op::ReclaimComplete(false)]).await.reclaim_complete().unwrap();
    assert_eq!(b.open("f", "x", RW, 0).await.unwrap_err(), Nfsstat4::GRACE);
    let reclaim = |owner| Op::Open(open_args(owner, RW, 0, OpenClaim::Previous(DelegationType::NONE), false));
    let mut r = b.run(vec![Op::putfh(&fh), reclaim("x")]).await;
    r.putfh().unwrap();
    assert_eq!(r.open().unwrap_err().status(), Some(Nfsstat4::NO_GRACE));
    let mut r = a.run(vec![Op::putfh(&fh), reclaim("x")]).await;
    r.putfh().unwrap();
    r.open().unwrap();
    a.reclaim_complete().await;
    b.open("f", "x", RW, 0).await.unwrap();
    let again = a.run(vec![Op::ReclaimComplete(false)]).await.reclaim_complete();
    assert_eq!(again.unwrap_err().status(), Some(Nfsstat4::COMPLETE_ALREADY));
}

/// After an orderly end the server waits only for clients that held state then.
/// Promise: S15
#[tokio::test(start_paused = true)]
async fn orderly_end_leaves_no_grace() {
    for holds in [false, true] {
        let (model, dir) = (model(), tempfile::tempdir().unwrap());
        let state = Some(dir.path().to_path_buf());
        let lab = Lab::new(&model, "/", 2, state.clone());
        let mut a = lab.client("a").await;
        a.reclaim_complete().await;
        let (id, fh) = a.open("f", "x", RW, 0).await.unwrap();
        if !holds {
            let close = Op::Close(CloseArgs { seqid: 0, stateid: id });
            let mut r = a.run(vec![Op::putfh(&fh), close]).await;
            r.putfh().unwrap();
            r.close().unwrap();
        }
        lab.acceptor.shutdown();
        lab.server.end();
        drop(lab);
        let lab = Lab::new(&model, "/", 3, state);
        let mut b = lab.client("b").await;
        b.reclaim_complete().await;
        let opened = b.open("f", "x", RW, 0).await.map(|_| ());
        assert_eq!(opened, if holds { Err(Nfsstat4::GRACE) } else { Ok(()) });
    }
}

/// While NQNFS leases from before a restart may be out, opens for writing can be reclaimed, because
/// the grace period does not wait. Writes wait until those leases have ended.
#[tokio::test(start_paused = true)]
async fn reclaim_ignores_outstanding_leases() {
    let (model, dir) = (model(), tempfile::tempdir().unwrap());
    let state = Some(dir.path().to_path_buf());
    let lab = Lab::new(&model, "/", 2, state.clone());
    let mut a = lab.client("a").await;
    a.reclaim_complete().await;
    let (_, fh) = a.open("f", "x", RW, 0).await.unwrap();
    drop(lab);
    std::fs::write(dir.path().join("nqnfs-numbers"), "hither-nqnfs-1 4294967296 1 60000\n").unwrap();
    let nqnfs = Some(crate::NqnfsOptions::default());
    let options = Options { state_dir: state, nqnfs, ..Options::new(env(3)) };
    let lab = Lab::with(&model, "/", options, Others::Nobody);
    tokio::spawn(lab.server.clone().tend());
    let mut a = lab.client("a").await;
    let reclaim = Op::Open(open_args("x", RW, 0, OpenClaim::Previous(DelegationType::NONE), false));
    let mut r = a.run(vec![Op::putfh(&fh), reclaim]).await;
    r.putfh().unwrap();
    let id = r.open().unwrap().stateid;
    a.reclaim_complete().await;
    let (mut waited, step) = (0, 5);
    loop {
        let mut r = a
            .run(vec![Op::putfh(&fh), Op::write(id, 0, StableHow::FILE_SYNC, Bytes::from_static(b"new"))])
            .await;
        r.putfh().unwrap();
        match r.write() {
            Ok(_) => break,
            Err(e) => assert_eq!(e.status(), Some(Nfsstat4::DELAY)),
        }
        tokio::time::sleep(Duration::from_secs(step)).await;
        waited += step;
    }
    assert!((65..80).contains(&waited), "{waited}");
}

/// A client that introduces itself with a new verifier loses its earlier opens.
#[tokio::test]
async fn restarted_client_loses_old_state() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut a = lab.client("a").await;
    a.reclaim_complete().await;
    a.open("f", "x", RW, bits::SHARE_DENY_BOTH).await.unwrap();
    let mut again = Client::new(lab.connect(), "a", 2).await;
    again.reclaim_complete().await;
    again.open("f", "y", RW, 0).await.unwrap();
    assert_eq!(lab.server.v4.registry.count(), 1);
}

#[tokio::test]
async fn an_exclusive_creation_is_recognised() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut c = lab.client("a").await;
    c.reclaim_complete().await;
    let open = |verf: u8| {
        let how = CreateHow::Exclusive41(CreateVerfAttr { verf: [verf; 8], attrs: Attrs::default() });
        let args = open_args("x", RW, 0, OpenClaim::Null(b"f"[..].into()), false);
        vec![Op::Putrootfh, Op::Open(OpenArgs { how: Some(how), ..args })]
    };
    for (verf, status) in [(1, None), (1, None), (2, Some(Nfsstat4::EXIST))] {
        let mut r = c.run(open(verf)).await;
        r.putrootfh().unwrap();
        assert_eq!(r.open().err().and_then(|e| e.status()), status);
    }
}

/// CLONE requires block-aligned ranges within the source, the stateids of both files, and regular
/// files. The last block of the source may be shorter.
/// Promise: S8d
#[tokio::test]
async fn clone_checks_alignment_and_type() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut c = lab.client("a").await;
    c.reclaim_complete().await;
    let (from_id, from) = c.open("from", "x", RW, 0).await.unwrap();
    let (to_id, to) = c.open("to", "y", RW, 0).await.unwrap();
    let ends = [(from_id, &from, &[7_u8; 10_000][..]), (to_id, &to, &[1; 20_000])];
    for (id, fh, bytes) in ends {
        let write = Op::write(id, 0, StableHow::FILE_SYNC, Bytes::copy_from_slice(bytes));
        let mut r = c.run(vec![Op::putfh(fh), write]).await;
        r.putfh().unwrap();
        r.write().unwrap();
    }
    let mut r = c.run(vec![Op::putfh(&to), Op::Getattr(Bitmap4::of(&[attr::CLONE_BLKSIZE]))]).await;
    r.putfh().unwrap();
    let block = *r.getattr().unwrap().clone_blksize().unwrap();
    assert_eq!(block, 4096);
    let args = |src_offset, dst_offset, count| CloneArgs {
        src_stateid: from_id,
        dst_stateid: to_id,
        src_offset,
        dst_offset,
        count,
    };
    let mut clone = async |from: &Fh, to: &Fh, args| {
        let mut r = c.run(vec![Op::putfh(from), Op::Savefh, Op::putfh(to), Op::Clone(args)]).await;
        r.putfh().unwrap();
        r.savefh().unwrap();
        r.putfh().unwrap();
        r.clone_range().err().map(|e| e.status().unwrap())
    };
    for (args, status) in [
        (args(1, 0, 4096), Nfsstat4::INVAL),
        (args(0, 1, 4096), Nfsstat4::INVAL),
        (args(0, 0, 4097), Nfsstat4::INVAL),
        (args(0, 0, 10_001), Nfsstat4::INVAL),
        (args(12288, 0, 0), Nfsstat4::INVAL),
        (args(0, u64::MAX - 4095, 4096), Nfsstat4::INVAL),
        (CloneArgs { src_stateid: to_id, ..args(0, 0, 0) }, Nfsstat4::BAD_STATEID),
    ] {
        assert_eq!(clone(&from, &to, args).await, Some(status), "{args:?}");
    }
    // The source's last, shorter block, to a position beyond the end of the target.
    assert_eq!(clone(&from, &to, args(4096, 16384, 0)).await, None);
    assert_eq!(clone(&from, &to, args(0, 4096, 4096)).await, None);
    let mut read = Vec::new();
    while read.len() < 16384 + 5904 {
        let mut r = c.run(vec![Op::putfh(&to), Op::read(to_id, read.len() as u64, 2048)]).await;
        r.putfh().unwrap();
        let part = r.read().unwrap();
        read.extend_from_slice(&part.data);
        assert_eq!(part.eof, read.len() == 16384 + 5904);
    }
    let expected = [[1; 4096], [7; 4096], [1; 4096], [1; 4096]].concat();
    assert!(read[..16384] == expected[..] && read[16384..].iter().all(|b| *b == 7));
    // A directory.
    let mut r = c.run(vec![Op::putfh(&from), Op::Savefh, Op::Putrootfh, Op::Clone(args(0, 0, 0))]).await;
    r.putfh().unwrap();
    r.savefh().unwrap();
    r.putrootfh().unwrap();
    assert_eq!(r.clone_range().unwrap_err().status(), Some(Nfsstat4::WRONG_TYPE));
}

/// Most opens and locks of [`with_few_states`].
const MAX: usize = 16;

/// A server with room for few opens and locks, its lease, and a client.
async fn with_few_states() -> (Lab, Duration, Client) {
    let options = Options { states_max: MAX, ..Options::new(env(2)) };
    let lease = options.lease;
    let lab = Lab::with(&model(), "/", options, Others::Nobody);
    let mut client = lab.client("dead").await;
    client.reclaim_complete().await;
    (lab, lease, client)
}

/// Opens of dead clients give way when room is needed, as soon as their leases have expired. Until
/// then a client gets "try later". One client alone cannot take all room.
/// Promise: S7a
#[tokio::test(start_paused = true)]
async fn opens_of_dead_clients_give_way() {
    let (lab, lease, mut dead) = with_few_states().await;
    for n in 0..MAX / 8 * 7 {
        dead.open(&format!("f{n}"), "o", RW, 0).await.unwrap();
    }
    assert_eq!(dead.open("one too many", "o", RW, 0).await.unwrap_err(), Nfsstat4::DELAY);
    let mut c = lab.client("alive").await;
    c.reclaim_complete().await;
    for n in 0..MAX / 8 {
        c.open(&format!("g{n}"), "o", RW, 0).await.unwrap();
    }
    // The other clients may be alive.
    assert_eq!(c.open("f0", "o", RW, 0).await.unwrap_err(), Nfsstat4::DELAY);
    let begun = tokio::time::Instant::now();
    while let Err(status) = c.open("f0", "o", RW, 0).await {
        assert_eq!(status, Nfsstat4::DELAY, "after {:?}", begun.elapsed());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(begun.elapsed() <= lease + Duration::from_secs(2), "{:?}", begun.elapsed());
    for n in 1..MAX / 8 * 5 {
        c.open(&format!("f{n}"), "o", RW, 0).await.unwrap();
    }
}

/// As [`opens_of_dead_clients_give_way`], for lock-owners.
#[tokio::test(start_paused = true)]
async fn locks_of_dead_clients_give_way() {
    let (lab, lease, mut dead) = with_few_states().await;
    let (held, fh) = dead.open("held", "o", RW, 0).await.unwrap();
    // The open is one of the states.
    for n in 1..MAX / 8 * 7 {
        dead.lock(&fh, held, &format!("owner {n}"), (n as u64, 1)).await.unwrap();
    }
    let refused = dead.lock(&fh, held, "one too many", (100, 1)).await.unwrap_err();
    assert!(matches!(refused, LockFail::Status(Nfsstat4::DELAY)), "{refused:?}");
    let mut c = lab.client("alive").await;
    c.reclaim_complete().await;
    let (open, fh) = c.open("other", "o", RW, 0).await.unwrap();
    for n in 1..MAX / 8 {
        c.lock(&fh, open, &format!("owner {n}"), (n as u64, 1)).await.unwrap();
    }
    let begun = tokio::time::Instant::now();
    while let Err(refused) = c.lock(&fh, open, "owner", (50, 1)).await {
        assert!(
            matches!(refused, LockFail::Status(Nfsstat4::DELAY)),
            "after {:?}: {refused:?}",
            begun.elapsed()
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(begun.elapsed() >= Duration::from_secs(1) && begun.elapsed() <= lease + Duration::from_secs(2));
}
