//! Attributes of files under a write delegation: the server asks the holder (CB_GETATTR), and the
//! holder keeps the delegation.

use super::*;
use hither_vfs::CHANGE_OF_SERVER;

const SHOWN: Bitmap4 = Bitmap4::of(&[attr::CHANGE, attr::SIZE, attr::TIME_MODIFY, attr::TIME_METADATA]);

fn look(fh: &Fh) -> Vec<Op> {
    vec![Op::putfh(fh), Op::Getattr(SHOWN)]
}

fn write(id: Stateid, bytes: &'static [u8]) -> Op {
    Op::write(id, 0, StableHow::FILE_SYNC, Bytes::from_static(bytes))
}

impl Client {
    /// Opens for writing and reads the attributes. Returns the delegation and `change`.
    async fn hold(&mut self, name: &str) -> (Stateid, u64) {
        let open = Op::Open(open_args("o", RW, 0, OpenClaim::Null(name.as_bytes().into()), false));
        let mut r = self.run(vec![Op::Putrootfh, open, Op::Getattr(SHOWN)]).await;
        r.putrootfh().unwrap();
        let OpenDelegation::Write(d) = r.open().unwrap().delegation else { panic!("no delegation") };
        (d.stateid, r.getattr().unwrap().change.unwrap())
    }

    async fn shown(&mut self, fh: &Fh) -> Attrs {
        let mut r = self.run(look(fh)).await;
        r.putfh().unwrap();
        r.getattr().unwrap()
    }

    /// Numbers of CB_GETATTRs and of recalled delegations since the last call.
    fn asked(&mut self) -> (usize, usize) {
        let asked = self.wire.called.iter().filter(|op| matches!(op, CbOp::Getattr(_))).count();
        let recalled: std::collections::HashSet<_> =
            self.wire.recalls().into_iter().map(|id| id.other).collect();
        (asked, recalled.len())
    }
}

/// The result of `asks`, while the holder answers callbacks.
pub(super) async fn beside<T>(holder: &mut Client, asks: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        out = asks => out,
        () = holder.wire.listen() => panic!("it listens forever"),
    }
}

async fn two() -> (Lab, Fh, Client, Client) {
    let (lab, fh) = lab().await;
    let holder = callable(&lab, "holder").await;
    let mut other = lab.client("other").await;
    other.reclaim_complete().await;
    (lab, fh, holder, other)
}

/// Attributes of a file that the holder has not modified are the file's own.
/// Promise: S10c
#[tokio::test(start_paused = true)]
async fn unmodified_file_shows_own_attributes() {
    let (lab, fh, mut holder, mut other) = two().await;
    let before = other.shown(&fh).await;
    let (id, change) = holder.hold("f").await;
    // The holder's size does not count in that case.
    holder.wire.tells = vec![(change, 99)];
    assert_eq!(beside(&mut holder, other.shown(&fh)).await, before);
    assert_eq!(before.size, Some(8));
    assert_eq!(holder.asked(), (1, 0));
    // A holder is not asked about its own GETATTR.
    assert_eq!(holder.shown(&fh).await, before);
    holder.wire.listening(Duration::from_secs(2)).await;
    assert_eq!(holder.asked(), (0, 0));
    // Data that the holder has written to the server shows in the file's own attributes.
    holder.run(vec![Op::putfh(&fh), write(id, b"longer than before")]).await;
    let after = beside(&mut holder, other.shown(&fh)).await;
    assert_eq!((after.size, after.change != before.change), (Some(18), true));
    assert_eq!(after, holder.shown(&fh).await);
    let counts = lab.server.delegations();
    assert_eq!((counts.writing, counts.reading, counts.getattrs, counts.recalls), (1, 0, 2, 0));
}

/// A file that the holder has modified is shown with the holder's size, and with a `change` and
/// times that only grow and never repeat.
/// Promise: S10c
#[tokio::test(start_paused = true)]
async fn modified_file_shows_unique_change() {
    let (lab, fh, mut holder, mut other) = two().await;
    let before = other.shown(&fh).await;
    let (id, change) = holder.hold("f").await;
    let mut all = vec![before.clone()];
    let listed = Op::Readdir(ReaddirArgs {
        cookie: 0,
        cookieverf: [0; 8],
        dircount: 1000,
        maxcount: 4000,
        attr_request: SHOWN,
    });
    for (i, how) in ["getattr", "look-up", "list", "again"].iter().enumerate() {
        let size = 100 + i as u64;
        holder.wire.tells = vec![(change + 1 + i as u64 % 2, size)];
        let ops = match *how {
            "look-up" => vec![Op::Putrootfh, Op::lookup(b"f"), Op::Getattr(SHOWN)],
            "list" => vec![Op::Putrootfh, listed.clone()],
            _ => look(&fh),
        };
        let mut r = beside(&mut holder, other.run(ops)).await;
        let shown = match *how {
            "list" => {
                r.putrootfh().unwrap();
                let list = r.readdir().unwrap().entries.0;
                list.into_iter().find(|e| &e.name[..] == b"f").unwrap().attrs
            }
            "look-up" => {
                r.putrootfh().unwrap();
                r.lookup().unwrap();
                r.getattr().unwrap()
            }
            _ => {
                r.putfh().unwrap();
                r.getattr().unwrap()
            }
        };
        assert_eq!((shown.size, holder.asked()), (Some(size), (1, 0)), "{how}");
        assert_eq!(shown.change.unwrap() & CHANGE_OF_SERVER, CHANGE_OF_SERVER, "{how}");
        let last = all.last().unwrap();
        assert!(shown.change > last.change, "{how}");
        let times = |a: &Attrs| [a.time_modify, a.time_metadata].map(|t| t.map(|t| (t.seconds, t.nseconds)));
        assert!(times(&shown) > times(last), "{how}: {shown:?} after {last:?}");
        all.push(shown);
    }
    // The GETATTR asks the holder. The READ after it recalls the delegation.
    let read = vec![Op::putfh(&fh), Op::Getattr(SHOWN), Op::read(Stateid::ANONYMOUS, 0, 9)];
    assert_eq!(beside(&mut holder, other.status(read.clone())).await, Nfsstat4::DELAY);
    holder.wire.listening(Duration::from_secs(1)).await;
    assert_eq!(holder.asked(), (1, 1), "a read recalls");
    assert_eq!(holder.status(vec![Op::putfh(&fh), write(id, b"delayed!")]).await, Nfsstat4::OK);
    holder.give_back(&fh, id).await.unwrap();
    assert_eq!(other.status(read).await, Nfsstat4::OK);
    let after = other.shown(&fh).await;
    assert_eq!(after.size, Some(8));
    assert!(all.iter().all(|a| a.change != after.change), "{after:?} {all:?}");
    assert_eq!(other.shown(&fh).await, after);
    assert_eq!(lab.server.delegations().writing, 0);
}

/// A holder without a useful answer, or without one in time, is recalled.
/// Promise: S10c
#[tokio::test(start_paused = true)]
async fn missing_answer_recalls_delegation() {
    for (what, asked) in [("slow", 1), ("refuses", 1), ("older", 1), ("endless", 1), ("not told", 0)] {
        let (_lab, fh, mut holder, mut other) = two().await;
        let (id, change) = match what {
            "not told" => (holder.open_as("f", RW, None).await.unwrap().delegation.stateid().unwrap(), 7),
            _ => holder.hold("f").await,
        };
        holder.wire.tells = match what {
            "refuses" => vec![],
            "older" => vec![(change - 1, 100)],
            "endless" => vec![(change + 1, u64::MAX)],
            _ => vec![(change + 1, 100)],
        };
        let begun = Instant::now();
        let status = match what {
            "slow" => other.status(look(&fh)).await,
            _ => beside(&mut holder, other.status(look(&fh))).await,
        };
        assert_eq!(status, Nfsstat4::DELAY, "{what}");
        let took = begun.elapsed();
        let most = if what == "slow" { 1_500 } else { 500 };
        assert!(took < Duration::from_millis(most), "{what}: {took:?}");
        holder.wire.listening(Duration::from_secs(2)).await;
        assert_eq!(holder.asked(), (asked, 1), "{what}");
        // The holder is not asked again.
        assert_eq!(beside(&mut holder, other.status(look(&fh))).await, Nfsstat4::DELAY, "{what}");
        assert_eq!(holder.asked().0, 0, "{what}");
        holder.give_back(&fh, id).await.unwrap();
        assert_eq!(other.shown(&fh).await.size, Some(8), "{what}");
    }
}

/// An answer serves only the operations that arrived before its question was sent. Later operations
/// share the next question.
/// Promise: S10c
#[tokio::test(start_paused = true)]
async fn answer_serves_only_earlier_requests() {
    let (lab, fh, mut holder, mut first) = two().await;
    let mut others = Vec::new();
    for name in ["second", "third", "fourth"] {
        let mut c = lab.client(name).await;
        c.reclaim_complete().await;
        others.push(c);
    }
    let (_, change) = holder.hold("f").await;
    holder.wire.tells = vec![(change + 1, 10), (change + 1, 20)];
    let to = fh.clone();
    let first = tokio::spawn(async move { first.shown(&to).await.size });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let later: Vec<_> = others
        .into_iter()
        .map(|mut c| {
            let fh = fh.clone();
            tokio::spawn(async move { c.shown(&fh).await.size })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(beside(&mut holder, first).await.unwrap(), Some(10));
    for one in later {
        assert_eq!(beside(&mut holder, one).await.unwrap(), Some(20));
    }
    assert_eq!(holder.asked(), (2, 0));
}

/// NFSv3 clients see the holder's size, with a time that they have seen with no other state of the
/// file.
/// Promise: S10c
#[tokio::test(start_paused = true)]
async fn nfsv3_getattr_asks_holder() {
    let (lab, fh, mut holder, _other) = two().await;
    let mut wire = lab.connect();
    let file = || nfs3::Fh3::from(&fh[..]);
    let get = || nfs3::GetattrArgs { object: file() };
    let time = |t: nfs3::Nfstime3| (t.seconds, t.nseconds);
    let mut last = wire.call(&get()).await.into_result().unwrap();
    let (id, change) = holder.hold("f").await;
    holder.wire.tells = vec![(change, 8)];
    assert_eq!(beside(&mut holder, wire.call(&get())).await.into_result().unwrap(), last);
    for size in [100, 100, 7] {
        holder.wire.tells = vec![(change + 1, size)];
        let shown = beside(&mut holder, wire.call(&get())).await.into_result().unwrap();
        assert_eq!(shown.size, size);
        assert!(time(shown.mtime) > time(last.mtime) && time(shown.ctime) > time(last.ctime), "{shown:?}");
        last = shown;
    }
    assert_eq!(holder.asked(), (4, 0));
    // Operations that need more than attributes recall the delegation.
    let access = nfs3::AccessArgs { object: file(), access: 1 };
    assert_eq!(beside(&mut holder, wire.call(&access)).await.status(), nfs3::Nfsstat3::JUKEBOX);
    assert_eq!(holder.asked(), (0, 1));
    holder.give_back(&fh, id).await.unwrap();
    assert_eq!(wire.call(&get()).await.into_result().unwrap().size, 8);
}

/// For a listing with few delegated files, the holders are asked. For many files, all delegations
/// are recalled together.
/// Promise: S10c
#[tokio::test(start_paused = true)]
async fn listing_recalls_many_delegations() {
    let (_lab, _fh, mut holder, mut other) = two().await;
    let list = || {
        Op::Readdir(ReaddirArgs {
            cookie: 0,
            cookieverf: [0; 8],
            dircount: 1000,
            maxcount: 8000,
            attr_request: SHOWN,
        })
    };
    let names: Vec<String> = (0..9).map(|i| format!("n{i}")).collect();
    for name in &names {
        let (id, fh) = other.open(name, "m", RW, 0).await.unwrap();
        other.run(vec![Op::putfh(&fh), Op::Close(CloseArgs { seqid: 0, stateid: id })]).await;
    }
    tokio::time::sleep(Duration::from_secs(100)).await;
    for c in [&mut holder, &mut other] {
        c.run(vec![]).await;
    }
    let mut most = 0;
    for name in &names[..8] {
        most = most.max(holder.hold(name).await.1);
    }
    holder.wire.tells = vec![(most + 1, 1234)];
    let mut r = beside(&mut holder, other.run(vec![Op::Putrootfh, list()])).await;
    r.putrootfh().unwrap();
    let entries = r.readdir().unwrap().entries.0;
    let sizes = |size| entries.iter().filter(|e| e.attrs.size == Some(size)).count();
    assert_eq!((sizes(1234), holder.asked()), (8, (8, 0)), "{entries:?}");
    holder.hold(&names[8]).await;
    let listed = beside(&mut holder, other.status(vec![Op::Putrootfh, list()])).await;
    holder.wire.listening(Duration::from_secs(1)).await;
    assert_eq!((listed, holder.asked()), (Nfsstat4::DELAY, (0, 9)));
}
