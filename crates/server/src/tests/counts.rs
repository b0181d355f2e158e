//! The counters of a server after known sequences of calls.

use super::*;
use crate::{ErrorClass, OperationCounts};
use hither_proto::nfs3::{Createhow3, Diropargs3, GetattrArgs, LookupArgs, Sattr3, StableHow};

fn row<'a>(rows: &'a [OperationCounts], protocol: &str, name: &str) -> &'a OperationCounts {
    let found = rows.iter().find(|row| row.protocol == protocol && row.name == name);
    found.unwrap_or_else(|| panic!("{protocol} {name} in {rows:?}"))
}

/// Each NFSv3 call counts once, with its bytes and the kind of its error. A call that cannot be
/// decoded is an error of RPC.
#[tokio::test]
async fn nfs3_calls_count_exactly() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut wire = lab.connect();
    let root = wire.root3("/").await;
    let at = |name: &str| Diropargs3 { dir: root.clone(), name: name.as_bytes().into() };
    let how = Createhow3::Guarded(Sattr3::default());
    let made = wire.call(&nfs3::CreateArgs { r#where: at("f"), how }).await.into_result().unwrap();
    let data = Bytes::from(vec![7; 1000]);
    for offset in [0, 1000, 2000] {
        let (file, data) = (made.obj.clone().unwrap(), data.clone().into());
        let args = nfs3::WriteArgs { file, offset, count: 1000, stable: StableHow::FILE_SYNC, data };
        wire.call(&args).await.into_result().unwrap();
    }
    for _ in 0..2 {
        assert!(wire.call(&LookupArgs { what: at("absent") }).await.into_result().is_err());
    }
    wire.call(&LookupArgs { what: at("f") }).await.into_result().unwrap();
    let stale = GetattrArgs { object: Bytes::from_static(b"none").into() };
    assert!(wire.call(&stale).await.into_result().is_err());
    wire.xid += 1;
    wire.send(nfs3::PROGRAM, nfs3::VERSION, nfs3::Proc3::ACCESS.0, Enc::new()).await;
    assert!(wire.answered().await);

    let rows = lab.server.operations();
    let counts: Vec<_> = rows
        .iter()
        .map(|row| (row.protocol, row.name.as_str(), row.calls, row.errors.iter().sum()))
        .collect();
    let expected: Vec<(_, _, _, u64)> = vec![
        ("nfs3", "GETATTR", 1, 1),
        ("nfs3", "LOOKUP", 3, 2),
        ("nfs3", "ACCESS", 1, 1),
        ("nfs3", "WRITE", 3, 0),
        ("nfs3", "CREATE", 1, 0),
        ("mount", "MNT", 1, 0),
    ];
    assert_eq!(counts, expected);
    assert_eq!(row(&rows, "nfs3", "LOOKUP").errors[ErrorClass::Absent as usize], 2);
    assert_eq!(row(&rows, "nfs3", "GETATTR").errors[ErrorClass::Stale as usize], 1);
    assert_eq!(row(&rows, "nfs3", "ACCESS").errors[ErrorClass::Rpc as usize], 1);
    let write = row(&rows, "nfs3", "WRITE");
    assert!(write.received_bytes > 3 * 1000 && write.received_bytes < 3 * 1200, "{write:?}");
    assert_eq!(write.total.quantile_us(1.0) > 0, write.total.sum > Duration::ZERO);
}

/// The operations of a compound count one by one. The lengths of their arguments add up to the
/// length of the call without its headers, and those of their results to that of the reply. The
/// operations after a failure are not counted.
#[tokio::test]
async fn nfs4_operations_add_up() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut c = lab.client("one").await;
    c.reclaim_complete().await;
    let sum = |rows: &[OperationCounts]| {
        let all = rows.iter().filter(|row| row.protocol == "nfs4op");
        all.fold((0, 0), |(received, sent), row| (received + row.received_bytes, sent + row.sent_bytes))
    };
    let before = lab.server.operations();
    let whole = |rows: &[OperationCounts]| {
        let row = row(rows, "nfs4", "COMPOUND");
        (row.calls, row.received_bytes, row.sent_bytes)
    };
    let ops = vec![Op::Putrootfh, Op::Getfh, Op::lookup(b"absent"), Op::Getfh, Op::Getfh];
    c.seq += 1;
    let all: Vec<Op> = std::iter::once(c.sequence(true)).chain(ops).collect();
    let sent = Enc::of(&Compound::new(2, all.clone())).len() as u64;
    let reply = c.wire.call(&Compound::new(2, all)).await;
    assert_eq!(reply.status, Nfsstat4::NOENT);
    assert_eq!(reply.results.len(), 4);
    let after = lab.server.operations();
    let ((ops_before, ops_after), (before_all, after_all)) =
        ((sum(&before), sum(&after)), (whole(&before), whole(&after)));
    assert_eq!(after_all.0 - before_all.0, 1);
    // Tag, minor version and number of operations precede the operations. Two of them were skipped,
    // of 4 bytes each.
    assert_eq!(ops_after.0 - ops_before.0, sent - 12 - 8);
    let results = Enc::of(&reply).len() as u64;
    assert_eq!(ops_after.1 - ops_before.1, results - 12);
    assert_eq!(after_all.2 - before_all.2, results + 24);
    let calls = |rows: &[OperationCounts], name: &str| {
        rows.iter()
            .filter(|row| row.protocol == "nfs4op" && row.name == name)
            .map(|row| row.calls)
            .sum::<u64>()
    };
    for (name, n) in [("SEQUENCE", 1), ("PUTROOTFH", 1), ("GETFH", 1), ("LOOKUP", 1)] {
        assert_eq!(calls(&after, name) - calls(&before, name), n, "{name}");
    }
    assert_eq!(row(&after, "nfs4op", "LOOKUP").errors[ErrorClass::Absent as usize], 1);
}

/// A compound that is refused at its SEQUENCE, and a repeated compound, count as calls. The
/// operations of the repeated one were executed once and count once.
#[tokio::test]
async fn repeated_compound_counts_one_execution() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut c = lab.client("one").await;
    c.seq += 1;
    let compound = Compound::new(2, vec![c.sequence(true), Op::ReclaimComplete(false)]);
    for _ in 0..3 {
        assert_eq!(c.wire.call(&compound).await.status, Nfsstat4::OK);
    }
    c.session[0] ^= 1;
    assert_eq!(c.wire.call(&Compound::new(2, vec![c.sequence(true)])).await.status, Nfsstat4::BADSESSION);
    let rows = lab.server.operations();
    assert_eq!(row(&rows, "nfs4op", "RECLAIM_COMPLETE").calls, 1);
    let sequence = row(&rows, "nfs4op", "SEQUENCE");
    assert_eq!((sequence.calls, sequence.errors[ErrorClass::Stale as usize]), (2, 1));
    // EXCHANGE_ID and CREATE_SESSION, the three repetitions, and the refused call.
    assert_eq!(row(&rows, "nfs4", "COMPOUND").calls, 6);
}
