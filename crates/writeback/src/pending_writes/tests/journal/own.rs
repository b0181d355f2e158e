//! Tests of own changes other than writes, which must not be taken for changes by another client.

use super::super::finish::{mode, times};
use super::*;

/// A change of a file with an empty journal.
#[derive(Debug, Clone, Copy)]
enum Did {
    Rename,
    Link,
    UnlinkOther,
    SetXattr,
    Allocate,
    Deallocate,
    Copy,
    SetMode,
    DeferredMode,
    DeferredTimes,
}

impl Did {
    const ALL: [Did; 10] = [
        Did::Rename,
        Did::Link,
        Did::UnlinkOther,
        Did::SetXattr,
        Did::Allocate,
        Did::Deallocate,
        Did::Copy,
        Did::SetMode,
        Did::DeferredMode,
        Did::DeferredTimes,
    ];

    async fn run(self, j: &Journaled, f: &(Fh, OpenId)) {
        let (dirty, root, at) = (&j.s.dirty, &j.s.root, At { fh: &f.0, open: Some(f.1) });
        let range = FileRange { start_bytes: 100, end_bytes: 1200 };
        match self {
            Did::Rename => {
                let (from, to) = (name("f"), name("g"));
                dirty.rename(&cx(), (root, &from), (root, &to), None, RenameFlags::empty()).await.map(|_| ())
            }
            Did::Link => dirty.link(&cx(), &f.0, root, &name("g")).await.map(|_| ()),
            Did::UnlinkOther => {
                j.s.gate.below().link(&cx(), &f.0, root, &name("g")).await.unwrap();
                dirty.getattr(&cx().fresh(Instant::now()), at).await.unwrap();
                dirty.unlink(&cx(), root, &name("g"), Some(&f.0)).await.map(|_| ())
            }
            Did::SetXattr => {
                let (n, value) = (b"user.n", Bytes::from_static(b"value"));
                dirty.setxattr(&cx(), &f.0, n, &value, XattrMode::Either).await.unwrap();
                dirty.removexattr(&cx(), &f.0, n).await
            }
            Did::Allocate => dirty.allocate(&cx(), at, range).await,
            Did::Deallocate => dirty.deallocate(&cx(), at, range).await,
            Did::Copy => {
                let from = j.s.open("source").await;
                j.s.write(&from, 0, pattern(50, 4000)).await.unwrap();
                dirty.sync().await.unwrap();
                let source = At { fh: &from.0, open: Some(from.1) };
                dirty.copy(&cx(), source, 0, at, 500, 4000).await.map(|_| ())
            }
            Did::SetMode => dirty.setattr(&cx(), at, &mode(0o600)).await.map(|_| ()),
            Did::DeferredMode | Did::DeferredTimes => {
                let set = if matches!(self, Did::DeferredMode) { mode(0o666) } else { times() };
                dirty.setattr(&cx(), at, &set).await.unwrap();
                dirty.sync().await
            }
        }
        .unwrap_or_else(|e| panic!("{self:?}: {e}"));
    }
}

/// Only this client changed the file. Bytes that were written afterwards and not sent reach the
/// server.
/// Promise: 6d
#[tokio::test]
async fn own_change_causes_no_conflict() {
    for (did, exclusive) in Did::ALL.into_iter().flat_map(|did| [(did, false), (did, true)]) {
        let small_copy_bytes = 0;
        let options = WriteBackOptions { delay_attributes: true, small_copy_bytes, ..options(exclusive) };
        let j = Journaled::new(options).await;
        let f = j.s.create("f", 0o644).await;
        j.s.write(&f, 0, pattern(7, 1000)).await.unwrap();
        j.s.dirty.sync().await.unwrap();
        did.run(&j, &f).await;
        assert_eq!(j.bytes(), 0, "{did:?}: no bytes wait");
        let mut want = j.s.below(&f.0).await;
        j.s.gate.shut("write");
        j.s.write(&f, 10, pattern(1, 300)).await.unwrap();
        want[10..310].copy_from_slice(&pattern(1, 300));
        let (outcome, _) = j.crash(exclusive, async |_| ()).await;
        assert_eq!(outcome.kept, [], "{did:?}, {exclusive}");
        assert_eq!(j.s.below(&f.0).await, want, "{did:?}, {exclusive}");
    }
}

/// A change of names or attributes in flight during the first write is an own change, too.
/// Promise: 6d
#[tokio::test]
async fn change_in_flight_causes_no_conflict() {
    for op in ["rename answer", "link answer", "setxattr answer", "setattr answer"] {
        let j = Journaled::new(WriteBackOptions { delay_attributes: true, ..options(true) }).await;
        let f = j.s.create("f", 0o644).await;
        j.s.write(&f, 0, pattern(7, 1000)).await.unwrap();
        j.s.dirty.sync().await.unwrap();
        j.s.gate.shut(op);
        let before = j.s.theirs(&f.0).await.change;
        let (dirty, g, root) = (j.s.dirty.clone(), f.clone(), j.s.root.clone());
        let doing = tokio::spawn(async move {
            match op {
                "rename answer" => {
                    let (from, to) = (name("f"), name("g"));
                    let done =
                        dirty.rename(&cx(), (&root, &from), (&root, &to), None, RenameFlags::empty()).await;
                    done.map(|_| ())
                }
                "link answer" => dirty.link(&cx(), &g.0, &root, &name("g")).await.map(|_| ()),
                "setxattr answer" => {
                    let value = Bytes::from_static(b"value");
                    dirty.setxattr(&cx(), &g.0, b"user.n", &value, XattrMode::Either).await
                }
                _ => {
                    let at = At { fh: &g.0, open: Some(g.1) };
                    dirty.setattr(&cx(), at, &mode(0o666)).await.unwrap();
                    dirty.sync().await
                }
            }
        });
        until("the change is at the server", async || j.s.theirs(&f.0).await.change != before).await;
        j.s.gate.shut("write");
        j.s.write(&f, 10, pattern(1, 300)).await.unwrap();
        let (outcome, _) = j.crash(true, async |_| ()).await;
        assert_eq!(outcome.kept, [], "{op}");
        assert_eq!(j.s.below(&f.0).await[10..310], pattern(1, 300), "{op}");
        doing.abort();
    }
}

/// A write by another client after an own change is a conflict.
/// Promise: 6d
#[tokio::test]
async fn foreign_write_becomes_conflict() {
    for exclusive in [false, true] {
        let j = Journaled::new(options(exclusive)).await;
        let f = j.s.open("f").await;
        j.s.write(&f, 0, pattern(7, 1000)).await.unwrap();
        j.s.dirty.sync().await.unwrap();
        Did::Rename.run(&j, &f).await;
        j.s.gate.shut("write");
        j.s.write(&f, 10, pattern(1, 300)).await.unwrap();
        let theirs = async |s: &Stack| {
            let at = At { fh: &f.0, open: None };
            s.gate.below().write(&cx(), at, 20, pattern(200, 10).into(), Stability::Stable).await.unwrap();
        };
        let (outcome, _) = j.crash(exclusive, theirs).await;
        assert_eq!(outcome.kept.len(), 1, "{exclusive}: {outcome:?}");
        assert_eq!(j.s.below(&f.0).await[20..30], pattern(200, 10));
    }
}

/// An interrupted replay is explained by its journaled WRITEs, for any amount of data.
/// Promise: 6d
#[tokio::test]
async fn interrupted_replay_continues() {
    for arrived in [0_u64, 1, 2, 3] {
        let j = Journaled::new(options(true)).await;
        let f = j.s.open("f").await;
        j.s.write(&f, 0, pattern(7, 4 * 4096)).await.unwrap();
        j.s.dirty.sync().await.unwrap();
        j.s.gate.shut("write");
        j.s.write(&f, 0, pattern(1, 4 * 4096)).await.unwrap();
        let dir = Temporary::of(&j.memory.copy());
        // The daemon is killed after the first WRITEs.
        let gate = Gate::new(j.s.gate.server());
        gate.decide(Box::new(move |at, _| {
            if at < arrived * 4096 {
                Verdict::Pass(Duration::ZERO)
            } else {
                Verdict::Pass(Duration::from_secs(3600))
            }
        }));
        let (wal, left) = Wal::open(&dir.0, ("here", "there"), 1 << 30, &env()).await.unwrap();
        let (first, through) = (wal.clone(), gate.clone());
        let replay = tokio::spawn(async move { first.recover(through, left, "here", true, 4096).await });
        until("the next WRITE", async || gate.writes().len() as u64 == arrived + 1).await;
        replay.abort();
        assert!(replay.await.is_err_and(|e| e.is_cancelled()));
        wal.close();
        drop(wal);
        let (wal, left) = Wal::open(&dir.0, ("here", "there"), 1 << 30, &env()).await.unwrap();
        let below = j.s.gate.server();
        let outcome = wal.recover(below, left, "here", true, 4096).await.unwrap();
        assert_eq!(outcome.kept, [], "{arrived}");
        assert_eq!(j.s.below(&f.0).await, pattern(1, 4 * 4096));
        wal.close();
    }
}
