//! Repeated calls in sessions of an earlier process.

use super::*;
use crate::v4::replay::{CallId, checksum};
use hither_proto::rpc::AuthSys;
use hither_rpc::server::{Caller, Transport};
use hither_vfs::{Answered, PathRef, Vfs};

fn mkdir(name: &str) -> Op {
    Op::create(CreateType::Dir, name.as_bytes(), Attrs { mode: Some(0o755), ..Attrs::default() })
}

fn superuser() -> Caller {
    Caller::Sys(AuthSys {
        stamp: 0,
        machinename: Default::default(),
        uid: 0,
        gid: 0,
        gids: Vec::new().into(),
    })
}

/// The journal's record of the operation at this index of a call.
fn did(call: &Compound, at: usize, fh: &hither_vfs::Fh) -> Answered {
    let Op::Sequence(args) = &call.ops[0] else { panic!("no session") };
    let sum = checksum(&Enc::of(call).to_bytes(), &superuser(), &Transport::Plain);
    Answered { call: CallId::of(args, sum).op(at), fh: fh.clone(), bytes: 0 }
}

async fn handle(model: &hither_vfs::model::Model, name: &str) -> hither_vfs::Fh {
    let cx = RequestContext::new(Arc::new(Cred::root()));
    let root = model.root(&cx).await.unwrap().fh;
    let name = hither_vfs::Name::new(Bytes::copy_from_slice(name.as_bytes())).unwrap();
    let trail = model.walk(&cx, PathRef::name(&root, &name), Default::default()).await.unwrap();
    trail.steps[0].fh.clone()
}

/// A compound in a session that the server does not know.
fn compound(seq: u32, ops: Vec<Op>) -> Compound {
    let sequence =
        SequenceArgs { sessionid: [7; 16], sequenceid: seq, slotid: 3, highest_slotid: 3, cachethis: true };
    Compound::new(2, [vec![Op::Sequence(sequence), Op::Putrootfh], ops].concat())
}

/// A repeated call from before a restart reports the stored effects of its operations. Its other
/// operations are executed once.
/// Promise: S8c
#[tokio::test]
async fn replay_executes_only_missing_operations() {
    let model = model();
    let lab = Lab::new(&model, "/", 2, None);
    let mut c = lab.client("one").await;
    c.reclaim_complete().await;
    c.run(vec![Op::Putrootfh, mkdir("a"), Op::Putrootfh, mkdir("gone")]).await;
    let call = compound(5, vec![mkdir("a"), Op::Getfh, Op::Putrootfh, mkdir("b"), Op::Getfh]);
    assert_eq!(c.wire.call(&call).await.status, Nfsstat4::BADSESSION, "the server does not know the call");
    let a = handle(&model, "a").await;
    lab.server.made_before("/", &[did(&call, 2, &a)]);
    let (mut one, mut two) = (lab.connect(), lab.connect());
    let objects = model.object_count();
    let (first, second) = tokio::join!(one.call(&call), two.call(&call));
    assert_eq!((first.status, &first), (Nfsstat4::OK, &second), "one execution for both");
    assert_eq!(model.object_count(), objects + 1);
    assert_eq!(one.call(&call).await, first);
    let mut r = first.results();
    r.sequence().unwrap();
    r.putrootfh().unwrap();
    assert!(!r.create().unwrap().cinfo.atomic, "the directory has changed");
    assert!(r.getfh().unwrap().ends_with(&a.0));
    // The same call of another user is another call.
    let other = checksum(&Enc::of(&call).to_bytes(), &Caller::Nobody, &Transport::Plain);
    assert_ne!(other, checksum(&Enc::of(&call).to_bytes(), &superuser(), &Transport::Plain));
}

/// A replayed OPEN returns a stateid that names no open. Operations that need the open get GRACE
/// until the client reclaims it.
/// Promise: S8c
#[tokio::test]
async fn replayed_open_needs_reclaim() {
    let model = model();
    let lab = Lab::new(&model, "/", 2, None);
    let mut c = lab.client("one").await;
    c.reclaim_complete().await;
    let (_, fh) = c.open("f", "owner", RW, 0).await.unwrap();
    let f = handle(&model, "f").await;
    let create = |name: &str| {
        let mut args = open_args("owner", RW, 0, OpenClaim::Null(name.as_bytes().into()), true);
        args.how = Some(CreateHow::Guarded(Attrs { mode: Some(0o600), ..Attrs::default() }));
        Op::Open(args)
    };
    let write = Op::Write(WriteArgs {
        stateid: Stateid::CURRENT,
        offset: 0,
        stable: StableHow::FILE_SYNC,
        data: Bytes::from_static(b"bytes").into(),
    });
    let close = || Op::Close(CloseArgs { seqid: 0, stateid: Stateid::CURRENT });
    // The file was created and closed, so all operations have succeeded before.
    let call = compound(1, vec![create("f"), Op::Getfh, close()]);
    lab.server.made_before("/", &[did(&call, 2, &f)]);
    let mut r = c.wire.call(&call).await.results();
    r.sequence().unwrap();
    r.putrootfh().unwrap();
    let stateid = r.open().unwrap().stateid;
    assert_eq!(r.getfh().unwrap(), fh);
    r.close().unwrap();
    // The stateid names no open in any session.
    let mut r = c.run(vec![Op::putfh(&fh), Op::Close(CloseArgs { seqid: 0, stateid })]).await;
    r.putfh().unwrap();
    assert_eq!(r.close().unwrap_err().status(), Some(Nfsstat4::BAD_STATEID));
    // Operations before the last change: a comparison of attributes, and the return of a
    // delegation.
    let looks = vec![
        Op::putfh(&fh),
        Op::Verify(Attrs { size: Some(7), ..Attrs::default() }),
        Op::Delegreturn(stateid),
        Op::Putrootfh,
        Op::remove(b"gone"),
    ];
    let call = compound(2, looks);
    lab.server.made_before("/", &[did(&call, 6, &f)]);
    let reply = c.wire.call(&call).await;
    assert_eq!((reply.status, reply.results.len()), (Nfsstat4::OK, 7), "{reply:?}");
    // Operations that need an open, or would create one, wait until the client has reclaimed its
    // state.
    for (seq, ops) in [(3, vec![create("f"), write]), (4, vec![create("f"), Op::Putrootfh, create("g")])] {
        let call = compound(seq, ops);
        lab.server.made_before("/", &[did(&call, 2, &f)]);
        let reply = c.wire.call(&call).await;
        assert_eq!(reply.status, Nfsstat4::GRACE, "{reply:?}");
        assert!(matches!(reply.results[2], OpRes::Open(Ok(_))), "{reply:?}");
    }
}

/// The server knows only the last recorded call of each slot, in any order of the records.
/// Truncated records are ignored.
/// Promise: S8c
#[tokio::test]
async fn slot_remembers_last_call() {
    let model = model();
    let lab = Lab::new(&model, "/", 2, None);
    let mut c = lab.client("one").await;
    c.reclaim_complete().await;
    c.run(vec![Op::Putrootfh, mkdir("a")]).await;
    let a = handle(&model, "a").await;
    let (old, new) = (compound(u32::MAX, vec![mkdir("a")]), compound(0, vec![mkdir("a"), Op::Getfh]));
    // The order of the records does not matter.
    lab.server.made_before("/", &[did(&new, 2, &a), did(&old, 2, &a)]);
    assert_eq!(c.wire.call(&old).await.status, Nfsstat4::BADSESSION);
    assert_eq!(c.wire.call(&new).await.status, Nfsstat4::OK);
    // Incomplete names are not names of calls.
    let raw = did(&new, 2, &a);
    let damaged = |call: Bytes| Answered { call, ..raw.clone() };
    let all: Vec<_> = (0..raw.call.len()).map(|at| damaged(raw.call.slice(..at))).collect();
    lab.server.made_before("/", &all);
    assert!(raw.call.len() <= hither_vfs::CALL_MAX_BYTES);
    assert_eq!(c.wire.call(&new).await.status, Nfsstat4::OK);
}
