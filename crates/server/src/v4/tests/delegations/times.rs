//! Times that the holder of a write delegation maintains (RFC 9754 section 5).

use super::asked::beside;
use super::*;
use hither_proto::nfs4::{SetTime, Time};

/// The wall clock of the tests.
const NOW: i64 = 1_700_000_000;
const TIMES: Bitmap4 = Bitmap4::of(&[attr::CHANGE, attr::SIZE, attr::TIME_ACCESS, attr::TIME_MODIFY]);
const WANTS_TIMES: u32 = RW | bits::WANT_DELEG_TIMESTAMPS;

fn at(seconds: i64) -> Time {
    Time { seconds, nseconds: 0 }
}

/// Attributes with times of a holder.
fn held(access: Option<i64>, modify: Option<i64>) -> Attrs {
    let mut attrs = Attrs::default();
    attrs.rare_mut().time_deleg_access = access.map(at);
    attrs.rare_mut().time_deleg_modify = modify.map(at);
    attrs
}

impl Client {
    /// Opens `f` for writing. Returns the delegation and `change`.
    async fn hold_times(&mut self, access: u32) -> (OpenDelegation, u64) {
        let open = Op::Open(open_args("o", access, 0, OpenClaim::Null(b"f"[..].into()), false));
        let mut r = self.run(vec![Op::Putrootfh, open, Op::Getattr(TIMES)]).await;
        r.putrootfh().unwrap();
        let delegation = r.open().unwrap().delegation;
        (delegation, r.getattr().unwrap().change.unwrap())
    }

    async fn times(&mut self, fh: &Fh) -> (i64, i64, u64) {
        let mut r = self.run(vec![Op::putfh(fh), Op::Getattr(TIMES)]).await;
        r.putfh().unwrap();
        let a = r.getattr().unwrap();
        (a.time_access.unwrap().seconds, a.time_modify.unwrap().seconds, a.size.unwrap())
    }

    async fn set(&mut self, fh: &Fh, id: Stateid, attrs: Attrs) -> Nfsstat4 {
        self.status(vec![Op::putfh(fh), Op::setattr(id, attrs)]).await
    }
}

/// A file of the year 2001, its holder that maintains the times, and another client.
async fn holder() -> (Lab, Fh, Client, Client, Stateid, u64) {
    let (lab, fh) = lab().await;
    let mut other = lab.client("other").await;
    other.reclaim_complete().await;
    let old = Some(SetTime::Client(at(NOW / 2)));
    let set = Attrs { time_access_set: old.clone(), time_modify_set: old, ..Attrs::default() };
    assert_eq!(other.set(&fh, Stateid::ANONYMOUS, set).await, Nfsstat4::OK);
    let mut holder = callable(&lab, "holder").await;
    let (OpenDelegation::WriteAttrs(d), change) = holder.hold_times(WANTS_TIMES).await else {
        panic!("no delegation with times")
    };
    (lab, fh, holder, other, d.stateid, change)
}

/// The server offers delegated times with NFSv4.2, grants them to clients that want them, and reads
/// them by CB_GETATTR alone.
#[tokio::test(start_paused = true)]
async fn delegated_times_are_offered() {
    let (lab, fh) = lab().await;
    let mut c = callable(&lab, "c").await;
    let ask = Bitmap4::of(&[attr::SUPPORTED_ATTRS, attr::OPEN_ARGUMENTS]);
    let mut r = c.run(vec![Op::putfh(&fh), Op::Getattr(ask)]).await;
    r.putfh().unwrap();
    let told = r.getattr().unwrap();
    let all = told.supported_attrs().unwrap();
    assert!([attr::TIME_DELEG_ACCESS, attr::TIME_DELEG_MODIFY].iter().all(|n| all.has(*n)));
    let wants = told.open_arguments().unwrap().share_access_want;
    assert!(wants.has(bits::ARGS_WANT_DELEG_TIMESTAMPS));
    for n in [attr::TIME_DELEG_ACCESS, attr::TIME_DELEG_MODIFY] {
        assert_eq!(c.status(vec![Op::putfh(&fh), Op::Getattr(Bitmap4::of(&[n]))]).await, Nfsstat4::INVAL);
    }
    let (OpenDelegation::Write(d), _) = c.hold_times(RW).await else { panic!("it wants no times") };
    assert_eq!(c.set(&fh, d.stateid, held(None, Some(NOW))).await, Nfsstat4::BAD_STATEID);
}

/// Another client sees the holder's modification time, which lies between the grant and the
/// present. The holder keeps its delegation.
/// Promise: S10c
#[tokio::test(start_paused = true)]
async fn other_clients_see_holder_times() {
    let (lab, fh, mut holder, mut other, _, change) = holder().await;
    let mut shown = async |change, times: Attrs| {
        holder.wire.tells = vec![(change, 20)];
        holder.wire.tells_times = times;
        beside(&mut holder, other.times(&fh)).await
    };
    let (early, late) = (NOW / 2, NOW - 100);
    assert_eq!(shown(change, held(Some(early), Some(early))).await, (early, early, 8));
    assert_eq!(shown(change + 1, held(Some(late), Some(late))).await, (late, late, 20));
    assert_eq!(shown(change + 1, held(None, Some(late + 1))).await, (early, late + 1, 20));
    let (_, future, _) = shown(change + 1, held(None, Some(NOW + 9000))).await;
    assert_eq!(future, NOW, "a time in the future");
    // The times from before the grant, and none, are no times of the new data.
    for useless in [held(None, Some(5)), held(None, Some(early)), held(None, None)] {
        let (_, modify, size) = shown(change + 1, useless).await;
        assert_eq!((modify >= NOW - 1, size), (true, 20));
    }
    let calls = holder.wire.called.iter();
    let asked = calls.filter_map(|op| if let CbOp::Getattr(a) = op { Some(a.attr_request) } else { None });
    let asks = Bitmap4::of(&[attr::CHANGE, attr::SIZE, attr::TIME_DELEG_ACCESS, attr::TIME_DELEG_MODIFY]);
    assert!(asked.into_iter().all(|asked| asked == asks));
    assert_eq!(lab.server.delegations().recalls, 0);
}

/// SETATTR under the delegation sets the holder's time, also by a user who does not own the file. A
/// time before the grant is ignored, one in the future becomes the present, and an access time
/// alone does not change the ctime.
#[tokio::test(start_paused = true)]
async fn holder_sets_times() {
    let (_lab, fh, mut holder, mut other, id, _) = holder().await;
    holder.wire.become_user(4711);
    for (modify, there) in [(NOW - 500, NOW - 500), (7, NOW - 500), (NOW + 500, NOW), (NOW - 50, NOW - 50)] {
        assert_eq!(holder.set(&fh, id, held(Some(modify), Some(modify))).await, Nfsstat4::OK);
        let (_, mtime, size) = holder.times(&fh).await;
        assert_eq!((mtime, size), (there, 8));
    }
    let before = holder.times(&fh).await;
    assert_eq!(holder.set(&fh, id, held(Some(NOW - 3), None)).await, Nfsstat4::OK);
    assert_eq!(holder.times(&fh).await, before);
    let mut both = held(None, Some(NOW));
    both.time_modify_set = Some(SetTime::Server);
    assert_eq!(holder.set(&fh, id, both).await, Nfsstat4::INVAL);
    let mut odd = held(None, Some(NOW));
    odd.rare_mut().time_deleg_modify = Some(Time { seconds: 1, nseconds: u32::MAX });
    assert_eq!(holder.set(&fh, id, odd).await, Nfsstat4::INVAL);
    assert_eq!(holder.set(&fh, Stateid::ANONYMOUS, held(None, Some(NOW))).await, Nfsstat4::BAD_STATEID);
    assert_eq!(other.set(&fh, id, held(None, Some(NOW))).await, Nfsstat4::BAD_STATEID);
    let stranger = Attrs { time_modify_set: Some(SetTime::Client(at(NOW))), ..Attrs::default() };
    assert_eq!(holder.set(&fh, id, stranger).await, Nfsstat4::PERM, "a time without the delegation");
    // An owner may set any time. Later times of the holder are compared with that one.
    holder.wire.become_user(0);
    let back = Attrs { time_modify_set: Some(SetTime::Client(at(1000))), ..Attrs::default() };
    assert_eq!(holder.set(&fh, id, back).await, Nfsstat4::OK);
    assert_eq!(holder.set(&fh, id, held(None, Some(2000))).await, Nfsstat4::OK);
    assert_eq!(holder.times(&fh).await.1, 2000);
    holder.give_back(&fh, id).await.unwrap();
    assert_eq!(holder.set(&fh, id, held(None, Some(NOW))).await, Nfsstat4::BAD_STATEID);
    assert_eq!(other.times(&fh).await.1, 2000);
}
