//! Modification times that the client maintains under a write delegation (RFC 9754 section 5).

use super::chains::leased_with;
use super::server::delegation;
use super::*;
use hither_proto::nfs4::{self, Bitmap4, OpenArguments, open};
use hither_vfs::{SetTime, Time, Unsent};

/// The arguments of OPEN that the server supports: the wish for delegated times.
pub(super) fn open_arguments() -> OpenArguments {
    OpenArguments {
        share_access: Bitmap4::EMPTY,
        share_deny: Bitmap4::EMPTY,
        share_access_want: Bitmap4::of(&[open::ARGS_WANT_DELEG_TIMESTAMPS]),
        open_claim: Bitmap4::EMPTY,
        create_mode: Bitmap4::EMPTY,
    }
}

const SEEN: SetAttr = SetAttr {
    mode: None,
    unmasked: None,
    uid: None,
    gid: None,
    size_bytes: None,
    atime: None,
    mtime: Some(SetTime::To(Time { secs: 1000, nanos: 7 })),
};

async fn holder(offered: bool) -> Test {
    let (t, _) = leased_with(&["f"], Duration::from_secs(100), |s| s.delegates_times = offered).await;
    t.server.lock().delegate_writers = true;
    t
}

/// The time of a write is set under the delegation, alone and with the last bytes, also while the
/// delegation is being returned. Other times are not. After DELEGRETURN, and for a server that
/// refuses it, the time is set like any other.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn write_time_is_set_under_delegation() {
    for offered in [true, false] {
        let t = holder(offered).await;
        let f = t.create("f").await;
        assert_eq!(t.v4.delegates_times(&f.node.fh), offered);
        let at = File { fh: &f.node.fh, open: Some(f.open) };
        let seen = RequestContext { sets_write_time: true, ..cx() };
        let times = || std::mem::take(&mut t.server.lock().times_under_delegation);
        let bytes = || Some((0, Data::from(Bytes::from_static(b"last"))));
        let finish = async || t.v4.finish(&seen, at, bytes(), &SEEN).await.unwrap().set.unwrap();
        finish().await;
        t.v4.setattr(&seen, at, &SEEN).await.unwrap();
        t.v4.setattr(&cx(), at, &SEEN).await.unwrap();
        assert_eq!(times(), [offered, offered, false]);
        t.server.lock().refuses_times = true;
        finish().await;
        assert_eq!(times(), [false], "after a refusal");
        t.server.lock().refuses_times = false;
        t.server.recall(delegation("f"), "f");
        tokio::time::sleep(Duration::from_secs(50)).await;
        assert!(!t.v4.delegates_times(&f.node.fh) && t.server.count("DELEGRETURN") == 0);
        finish().await;
        assert_eq!(times(), [offered], "during the recall");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(t.server.count("DELEGRETURN"), 1);
        finish().await;
        assert_eq!(times(), [false], "after the return");
    }
}

/// A restarted server gives the delegation back with the times.
/// Promise: S10c
#[tokio::test(start_paused = true)]
async fn times_are_reclaimed() {
    let t = holder(true).await;
    let f = t.create("f").await;
    t.server.lock().claims_stay = true;
    t.restart();
    t.read(&f).await.unwrap();
    assert!(t.server.lock().log.iter().any(|l| l == "OPEN previous write"));
    assert!(t.v4.delegates_times(&f.node.fh));
}

/// The holder presents the modification time of unsent bytes only. Of a file without unsent bytes
/// the server knows the time, and the holder's copy may be from before a SETATTR.
/// Promise: S10c
#[tokio::test(start_paused = true)]
async fn holder_presents_time_of_unsent_bytes() {
    for offered in [true, false] {
        let prepare = |s: &mut server::State| s.delegates_times = offered;
        let (t, layer) = leased_with(&["f"], Duration::from_secs(100), prepare).await;
        t.server.lock().delegate_writers = true;
        let f = t.create("f").await;
        t.write(&f, 0, "the reply has the time of the write").await.unwrap();
        let time = Time { secs: 1000, nanos: 7 };
        for unsent in [
            Unsent::Nothing,
            Unsent::Bytes { size_bytes: 500, mtime: None },
            Unsent::Bytes { size_bytes: 500, mtime: Some(time) },
        ] {
            layer.hold(unsent);
            t.server.ask_holder("f");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let presented = nfs4::Time { seconds: time.secs, nseconds: time.nanos };
        let times = [None, None, Some(presented).filter(|_| offered)].map(|modify| [None, modify]);
        assert_eq!(t.server.lock().told_times, times, "offered: {offered}");
    }
}
