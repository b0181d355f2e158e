//! Directory delegations: requested in other compounds, for stable directories, from servers that
//! support them.

use super::*;
use hither_proto::nfs4::{Bitmap4, DirDelegation, GetDirDelegationOk, Time};

/// The answer of a server that grants a delegation.
pub fn granted(stateid: Stateid) -> GetDirDelegationOk {
    GetDirDelegationOk::Granted(DirDelegation {
        cookieverf: [0; 8],
        stateid,
        notification: Bitmap4::EMPTY,
        child_attributes: Bitmap4::EMPTY,
        dir_attributes: Bitmap4::EMPTY,
    })
}

/// A mount of a server with the directories `d` and `e` and the file `f`. `directories`: whether
/// the server grants directory delegations; `None`: the operation is not supported.
async fn at_server(directories: Option<bool>) -> (Test, Arc<UpcallLog>) {
    let t = tree(|s| s.directories = directories, &["d", "e"], &["f"]).await;
    let told = Arc::new(UpcallLog { server: t.server.clone(), ..UpcallLog::default() });
    t.v4.subscribe(told.clone());
    (t, told)
}

/// Longer than the validity of new attributes of a directory.
async fn a_while() {
    tokio::time::sleep(Duration::from_secs(31)).await;
}

impl Test {
    fn asked_for(&self) -> usize {
        let mut s = self.server.lock();
        let ops = s.compounds.drain(..).flatten();
        ops.filter(|op| *op == NfsOpnum4::GET_DIR_DELEGATION).count()
    }
}

/// The revalidation of a stable directory also returns a delegation in the same compound. The
/// attributes are then valid until its recall. A changed directory, or one requested early, gets
/// none.
/// Promise: 8f
#[tokio::test(start_paused = true)]
async fn stable_directory_gets_delegation() {
    let (t, told) = at_server(Some(true)).await;
    assert!(matches!(t.validity("d").await, Validity::Until(_)));
    assert!(matches!(t.validity("d").await, Validity::Until(_)));
    assert_eq!(t.sent(), [2, 2]);
    a_while().await;
    t.sent();
    assert_eq!(t.validity("d").await, Validity::Lease);
    assert_eq!(t.validity("d").await, Validity::Lease);
    assert_eq!(t.sent(), [3, 2]);
    t.server.recall(delegation("d"), "d");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(*told.revoked.lock(), [(fh("d"), 0)]);
    assert_eq!(t.server.count("DELEGRETURN"), 1);
    t.server.lock().files.get_mut("d").unwrap().change += 1;
    assert!(matches!(t.validity("d").await, Validity::Until(_)), "it has changed");
    t.sent();
    assert!(matches!(t.validity("d").await, Validity::Until(_)));
    assert_eq!(t.sent(), [2]);
    t.check();
}

/// Requests about many objects, and listings, also return delegations of the directories among
/// them.
/// Promise: 8f
#[tokio::test(start_paused = true)]
async fn batch_requests_directory_delegations() {
    let (t, _told) = at_server(Some(true)).await;
    let all = [fh("d"), fh("f"), fh("e")];
    t.v4.getattr_many(&cx(), &all).await;
    a_while().await;
    t.sent();
    let answers = t.v4.getattr_many(&cx(), &all).await;
    let leases: Vec<bool> = answers.into_iter().map(|a| a.unwrap().valid == Validity::Lease).collect();
    assert_eq!(leases, [true, false, true]);
    assert_eq!(t.sent(), [2 * 3 + 2]);
    let (t, _told) = at_server(Some(true)).await;
    t.validity("d").await;
    a_while().await;
    t.sent();
    let listed = t.v4.list_many(&cx(), &[fh("d")], 8192).await.pop().unwrap().unwrap();
    assert_eq!(listed.0.valid, Validity::Lease);
    assert_eq!(t.sent(), [4]);
    t.check();
}

/// A directory whose change time is old gets a delegation with the first request after an answer
/// has shown it. The client does so while it has room for further delegations.
/// Promise: 8f
#[tokio::test(start_paused = true)]
async fn old_directory_gets_delegation_at_once() {
    for (age, room, asks) in [(60, true, true), (60, false, false), (10, true, false)] {
        let (t, _told) = at_server(Some(true)).await;
        for name in ["d", "e"] {
            let mut s = t.server.lock();
            s.files.get_mut(name).unwrap().ctime = Time { seconds: -age, nseconds: 0 };
        }
        t.v4.core.delegations.most.store(if room { 10 } else { 0 }, Ordering::Relaxed);
        t.v4.getattr_many(&cx(), &[fh("d"), fh("e")]).await;
        t.asked_for();
        let listed = t.v4.list_many(&cx(), &[fh("d"), fh("e")], 8192).await;
        let leases: Vec<bool> = listed.into_iter().map(|l| l.unwrap().0.valid == Validity::Lease).collect();
        assert_eq!(leases, [asks; 2], "age {age} s, room {room}");
        assert_eq!(t.asked_for(), if asks { 2 } else { 0 });
        t.check();
    }
}

/// A server without GET_DIR_DELEGATION says so at mount time, and gets no further request.
/// Promise: 8f
#[tokio::test(start_paused = true)]
async fn unsupported_delegations_are_not_requested() {
    let (t, _told) = at_server(None).await;
    t.validity("d").await;
    a_while().await;
    assert!(matches!(t.validity("d").await, Validity::Until(_)));
    assert!(t.v4.getattr_many(&cx(), &[fh("d"), fh("e")]).await.iter().all(|a| a.is_ok()));
    assert_eq!(t.asked_for(), 0);
    t.check();
}

/// A refusal inside a compound costs only a second compound, once, and no result is lost. The
/// client requests no further delegation.
/// Promise: 8f
#[tokio::test(start_paused = true)]
async fn refused_directory_delegation_stops_requests() {
    for alone in [true, false] {
        let (t, _told) = at_server(Some(true)).await;
        let all = [fh("d"), fh("f"), fh("e")];
        t.v4.getattr_many(&cx(), &all).await;
        a_while().await;
        t.sent();
        t.server.lock().fail = vec![(NfsOpnum4::GET_DIR_DELEGATION, Nfsstat4::NOTSUPP)];
        if alone {
            assert!(matches!(t.validity("d").await, Validity::Until(_)));
        } else {
            assert!(t.v4.getattr_many(&cx(), &all).await.iter().all(|a| a.is_ok()));
        }
        assert_eq!(t.sent().len(), 2);
        a_while().await;
        t.v4.getattr_many(&cx(), &all).await;
        assert_eq!(t.asked_for(), 0);
        t.check();
    }
}

/// A server that supports delegations and grants none gets a number of requests, and then rare
/// ones.
/// Promise: 8f
#[tokio::test(start_paused = true)]
async fn ungranted_delegations_are_requested_rarely() {
    let (t, _told) = at_server(Some(false)).await;
    let mut asked = 0;
    t.validity("d").await;
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert!(matches!(t.validity("d").await, Validity::Until(_)));
        asked += t.asked_for();
    }
    assert!((64..64 + 140 / 4).contains(&asked), "{asked}");
    t.server.lock().directories = Some(true);
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_secs(61)).await;
        t.validity("d").await;
    }
    assert_eq!(t.validity("d").await, Validity::Lease);
    t.check();
}

/// A recall overtakes the reply that grants the delegation. The delegation is returned, and no
/// attribute is valid under it.
/// Promise: 8f
#[tokio::test(start_paused = true)]
async fn early_recall_voids_directory_delegation() {
    let (t, _told) = at_server(Some(true)).await;
    t.validity("d").await;
    a_while().await;
    t.server.lock().hold = Some(NfsOpnum4::GET_DIR_DELEGATION);
    let v4 = t.v4.clone();
    let asks = tokio::spawn(async move { v4.getattr(&cx(), File { fh: &fh("d"), open: None }).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    t.server.recall(delegation("d"), "d");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(t.server.count("DELEGRETURN"), 1);
    t.server.lock().hold = None;
    t.net.cut(Cut::Reset);
    assert!(matches!(asks.await.unwrap().unwrap().valid, Validity::Until(_)));
    assert!(matches!(t.validity("d").await, Validity::Until(_)));
    t.check();
}
