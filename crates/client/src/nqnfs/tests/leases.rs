//! Leases of a mount: the calls that they save, their end, and answers that grant none.

use super::*;
use hither_proto::rpc::{OpaqueAuth, call};
use hither_vfs::{BoxFuture, Node, Upcalls, Validity};
use tokio::time::Instant;

/// Requested term in seconds.
const TERM: u32 = 30;

/// Upcalls to the layer above, with their times.
pub(super) struct UpcallLog {
    server: Arc<Server>,
    /// With the number of VACATED that the server had seen.
    pub revoked: Mutex<Vec<(hither_vfs::Fh, usize)>>,
    pub expired: Mutex<Vec<(hither_vfs::Fh, Instant)>>,
    pub flushed: Mutex<Vec<(hither_vfs::Fh, usize)>>,
    slowly: Duration,
}

impl Upcalls for UpcallLog {
    fn revoke(&self, fh: &hither_vfs::Fh) -> BoxFuture<()> {
        self.revoked.lock().push((fh.clone(), self.server.vacated()));
        let slowly = self.slowly;
        Box::pin(async move { tokio::time::sleep(slowly).await })
    }

    fn expire(&self, files: &[hither_vfs::Fh]) -> BoxFuture<()> {
        self.expired.lock().extend(files.iter().map(|fh| (fh.clone(), Instant::now())));
        Box::pin(async {})
    }

    fn flush(&self, fh: &hither_vfs::Fh) -> BoxFuture<()> {
        self.flushed.lock().push((fh.clone(), self.server.vacated()));
        let slowly = self.slowly;
        Box::pin(async move { tokio::time::sleep(slowly).await })
    }

    fn revoke_all(&self) -> BoxFuture<()> {
        Box::pin(async {})
    }
}

impl Server {
    pub(super) fn vacated(&self) -> usize {
        self.calls.lock().iter().filter(|c| matches!(c, NqCall::Vacated(_))).count()
    }

    pub(super) fn evict(&self, file: Fh) {
        let args = Enc::of(&EvictedArgs { file });
        self.call_back(NqProc::EVICTED, args);
    }

    fn call_back(&self, proc: NqProc, args: Enc) {
        let message = call(7, PROGRAM, VERSION, proc.0, &OpaqueAuth::none(), args);
        self.peers.lock().last().unwrap().send(message);
    }

    /// Sends the replies that were held back.
    fn release(&self) {
        *self.hold.lock() = None;
        let held = std::mem::take(&mut *self.held.lock());
        held.into_iter().for_each(|reply| self.peers.lock().last().unwrap().send(reply));
    }
}

fn granted(request: LeaseRequest, cachable: bool) -> LeaseReply {
    match request {
        LeaseRequest::Read(duration) if duration > 0 => {
            LeaseReply::Read(Lease { cachable, duration, rev: 1 })
        }
        LeaseRequest::Write(duration) if duration > 0 => {
            LeaseReply::Write(Lease { cachable, duration, rev: 1 })
        }
        _ => LeaseReply::None,
    }
}

/// Replies of a server that grants each requested lease.
pub(super) fn granting(call: &NqCall) -> NqReply {
    match call {
        NqCall::Getattr(a) if a.args.file == handle(0) => usual(call),
        NqCall::Getattr(a) => NqReply::Getattr(Res::Ok(granted(a.lease, true), file())),
        NqCall::Access(a) => NqReply::Access(Res::Ok(granted(a.lease, true), ())),
        NqCall::Read(a) => {
            let data = Bytes::from_static(b"sixsix").into();
            NqReply::Read(Res::Ok(granted(a.lease, true), ReadOk { attributes: file(), data }))
        }
        NqCall::Lookup(a) => {
            let lookup_lease = granted(LeaseRequest::Read(a.args.duration), true);
            let ok = LookupOk { lookup_lease, file: handle(1), attr: file() };
            NqReply::Lookup(Res::Ok(LeaseReply::None, ok))
        }
        NqCall::Getlease(a) => {
            let ok = GetleaseOk { cachable: true, duration: a.args.duration, rev: 1, attr: file() };
            NqReply::Getlease(Res::Ok(LeaseReply::None, ok))
        }
        NqCall::Readdirlook(a) => {
            let entry = |n: u8, cachable| EntryLook {
                cachable,
                duration: a.args.duration * cachable,
                rev: 1,
                entry_fh: handle(n),
                entry_attrib: Fattr { fid: n.into(), ..file() },
                fid: n.into(),
                name: Bytes::from(format!("n{n}")).into(),
                cookie: n.into(),
            };
            let entries = Chain(vec![entry(5, 1), entry(6, 0)]);
            NqReply::Readdirlook(Res::Ok(LeaseReply::None, ReaddirlookOk { entries, eof: true }))
        }
        NqCall::Vacated(_) => NqReply::Vacated(()),
        other => usual(other),
    }
}

pub(super) struct Test {
    pub server: Arc<Server>,
    pub fs: V3,
    pub told: Arc<UpcallLog>,
}

pub(super) async fn leasing(slowly: Duration) -> Test {
    let server = Server::new();
    let fs = server.mount().await;
    server.script(|call| Some(granting(call)));
    let (revoked, expired, flushed) = Default::default();
    let told = Arc::new(UpcallLog { server: server.clone(), revoked, expired, flushed, slowly });
    fs.subscribe(told.clone());
    Test { server, fs, told }
}

impl Test {
    async fn validity_of(&self, n: u8) -> Validity {
        self.fs.getattr(&cx(), File { fh: &fh(handle(n)), open: None }).await.unwrap().valid
    }

    pub async fn validity(&self) -> Validity {
        self.validity_of(1).await
    }

    async fn found(&self) -> Node {
        let trail =
            self.fs.walk(&cx(), PathRef::name(&root(), &name("f")), WalkRequest::default()).await.unwrap();
        trail.steps.into_iter().next().unwrap()
    }

    /// Leases that GETATTR calls requested since the last call of this function.
    fn asked(&self) -> Vec<LeaseRequest> {
        let calls = std::mem::take(&mut *self.server.calls.lock());
        let asked = |c: &NqCall| match c {
            NqCall::Getattr(a) => Some(a.lease),
            _ => None,
        };
        calls.iter().filter_map(asked).collect()
    }

    /// Starts a call and returns when its reply is held back.
    async fn held<T: Send + 'static>(
        &self,
        proc: NqProc,
        work: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        *self.server.hold.lock() = Some(proc);
        let task = tokio::spawn(work);
        while self.server.held.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        task
    }

    pub async fn until_vacated(&self, times: usize) {
        while self.server.vacated() < times {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Validity of the file's attributes in the reply of a procedure.
async fn validity_by(fs: V3, proc: NqProc) -> Validity {
    match proc {
        NqProc::LOOKUP => {
            let trail =
                fs.walk(&cx(), PathRef::name(&root(), &name("f")), WalkRequest::default()).await.unwrap();
            trail.steps[0].attrs.valid
        }
        _ => fs.getattr(&cx(), File { fh: &fh(handle(1)), open: None }).await.unwrap().valid,
    }
}

pub(super) fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A reply with attributes also grants a lease. Attributes with a lease are valid until the lease
/// ends. The client requests a held lease again only in the last third of its term. Without a
/// subscriber for its end there is no lease.
#[tokio::test(start_paused = true)]
async fn reply_lease_covers_later_attributes() {
    let server = Server::new();
    let fs = server.mount().await;
    server.script(|call| Some(granting(call)));
    let attrs = fs.getattr(&cx(), File { fh: &fh(handle(1)), open: None }).await.unwrap();
    assert!(matches!(attrs.valid, Validity::Until(_)));
    let [NqCall::Getattr(a)] = &server.called()[..] else { panic!("{:?}", server.called()) };
    assert_eq!(a.lease, LeaseRequest::None);

    let t = leasing(Duration::ZERO).await;
    assert_eq!((t.validity().await, t.validity().await), (Validity::Lease, Validity::Lease));
    assert_eq!(t.asked(), [LeaseRequest::Read(TERM), LeaseRequest::None]);
    tokio::time::sleep(seconds(21)).await;
    assert_eq!(t.validity().await, Validity::Lease);
    assert_eq!(t.asked(), [LeaseRequest::Read(TERM)], "it is about to end");
    assert!(matches!(t.validity_of(0).await, Validity::Until(_)), "directories are not leased");
    assert!(t.told.expired.lock().is_empty());
}

/// A lease ends without a call of the server. The term counts from the time of sending, not of the
/// answer. The client does not renew the lease of a file that is not open.
/// Promise: 8a'
#[tokio::test(start_paused = true)]
async fn lease_term_counts_from_sending() {
    for proc in [NqProc::GETATTR, NqProc::LOOKUP] {
        let t = leasing(Duration::ZERO).await;
        let sent = Instant::now();
        let late = t.held(proc, validity_by(t.fs.clone(), proc)).await;
        tokio::time::sleep(seconds(9)).await;
        t.server.release();
        assert_eq!(late.await.unwrap(), Validity::Lease);
        tokio::time::sleep_until(sent + seconds(45)).await;
        let expired = t.told.expired.lock().clone();
        let [(file, at)] = &expired[..] else { panic!("{expired:?}") };
        assert_eq!(file, &fh(handle(1)));
        let after = *at - sent;
        assert!(
            (seconds(29)..=seconds(30) + Duration::from_millis(5)).contains(&after),
            "{proc:?}: {after:?}"
        );
        assert!(t.told.revoked.lock().is_empty() && t.server.vacated() == 0);
        assert!(!t.server.called().iter().any(|c| matches!(c, NqCall::Getlease(_))));
    }
}

/// A call sent before the grant of a lease and answered after it is not under the lease.
#[tokio::test(start_paused = true)]
async fn lease_excludes_earlier_calls() {
    let t = leasing(Duration::ZERO).await;
    let mut first = true;
    t.server.script(move |call| match call {
        NqCall::Getattr(_) if std::mem::take(&mut first) => {
            Some(NqReply::Getattr(Res::Ok(LeaseReply::None, Fattr { size: 5, ..file() })))
        }
        other => Some(granting(other)),
    });
    let late = t.held(NqProc::GETATTR, validity_by(t.fs.clone(), NqProc::GETATTR)).await;
    *t.server.hold.lock() = None;
    assert_eq!(t.validity().await, Validity::Lease);
    t.server.release();
    assert!(matches!(late.await.unwrap(), Validity::Until(_)));
    assert_eq!(t.validity().await, Validity::Lease);
}

/// An answer that arrives after the term of its lease is not under the lease.
#[tokio::test(start_paused = true)]
async fn late_answer_has_no_lease() {
    let t = leasing(Duration::ZERO).await;
    let late = t.held(NqProc::GETATTR, validity_by(t.fs.clone(), NqProc::GETATTR)).await;
    tokio::time::sleep(seconds(u64::from(TERM) + 1)).await;
    t.server.release();
    assert!(matches!(late.await.unwrap(), Validity::Until(_)));
}

/// The lease of an open file is renewed, by GETLEASE when there are no other calls.
/// Promise: 8a'
#[tokio::test(start_paused = true)]
async fn open_file_renews_lease() {
    let t = leasing(Duration::ZERO).await;
    let file = fh(handle(1));
    let opened = t.fs.open(&cx(), PathRef::fh(&file), &OpenHow::existing(OpenAccess::READ)).await.unwrap();
    assert_eq!(opened.node.attrs.valid, Validity::Lease);
    t.asked();
    tokio::time::sleep(seconds(100)).await;
    let leases = t.server.called().iter().filter(|c| matches!(c, NqCall::Getlease(_))).count();
    assert!((4..=6).contains(&leases), "{leases}");
    assert!(t.told.expired.lock().is_empty());
    t.fs.close(&cx(), &file, opened.open).await.unwrap();
    tokio::time::sleep(seconds(40)).await;
    assert_eq!(t.told.expired.lock().len(), 1);
}

/// On an eviction the layer above first drops its data, for a bounded time, and then the client
/// sends VACATED. During this time the client requests no lease, and no answer is under a lease.
/// Afterwards leases are granted again.
/// Promise: 8a'
#[tokio::test(start_paused = true)]
async fn eviction_drops_cache_before_vacated() {
    for slowly in [Duration::from_millis(500), seconds(100)] {
        let t = leasing(slowly).await;
        assert_eq!(t.validity().await, Validity::Lease);
        t.asked();
        t.server.evict(handle(1));
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(*t.told.revoked.lock(), [(fh(handle(1)), 0)]);
        assert_eq!(t.validity().await, Validity::Once, "others use it");
        assert_eq!((t.asked(), t.server.vacated()), (vec![LeaseRequest::None], 0));
        // A repeated eviction changes nothing.
        t.server.evict(handle(1));
        t.until_vacated(1).await;
        assert_eq!(t.validity().await, Validity::Lease);
        assert_eq!(t.asked(), [LeaseRequest::Read(TERM)]);
        assert_eq!(t.told.revoked.lock().len(), 1);
    }
}

/// An eviction can overtake the answer that grants the lease, for a known file and for an unknown
/// one. The answer to VACATED can also overtake it. None of these leases is taken.
/// Promise: 8a'
#[tokio::test(start_paused = true)]
async fn overtaken_grant_is_void() {
    for (proc, late) in
        [(NqProc::GETATTR, false), (NqProc::LOOKUP, false), (NqProc::GETATTR, true), (NqProc::LOOKUP, true)]
    {
        let t = leasing(Duration::from_millis(100)).await;
        if late {
            t.server.evict(handle(1));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let answer = t.held(proc, validity_by(t.fs.clone(), proc)).await;
        if !late {
            t.server.evict(handle(1));
        }
        t.until_vacated(1).await;
        t.server.release();
        assert_eq!(answer.await.unwrap(), Validity::Once, "{proc:?} {late}");
    }
}

/// A non-caching lease grants nothing, and ends a caching lease.
#[tokio::test(start_paused = true)]
async fn noncaching_lease_ends_caching_lease() {
    let t = leasing(Duration::ZERO).await;
    assert_eq!(t.validity().await, Validity::Lease);
    tokio::time::sleep(seconds(25)).await;
    t.server.script(|call| match call {
        NqCall::Getattr(a) if a.args.file == handle(1) => {
            Some(NqReply::Getattr(Res::Ok(granted(a.lease, false), file())))
        }
        other => Some(granting(other)),
    });
    assert_eq!(t.validity().await, Validity::Once, "nothing of it may be kept");
    t.until_vacated(1).await;
    assert_eq!(*t.told.revoked.lock(), [(fh(handle(1)), 0)]);
}

/// After a change by this client the server no longer watches the file. Until the next request
/// attributes are valid as without a lease. That request asks for the lease again.
/// Promise: 8a'
#[tokio::test(start_paused = true)]
async fn own_change_requests_lease_again() {
    let t = leasing(Duration::ZERO).await;
    assert_eq!(t.validity().await, Validity::Lease);
    let file = fh(handle(1));
    let change = |fs: V3, n: u32| async move {
        let file = fh(handle(1));
        let (at, data) = (File { fh: &file, open: None }, Data::from(Bytes::from_static(b"x")));
        let touch = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        match n {
            0 => fs.write(&cx(), at, 0, data, Stability::Stable).await.unwrap().attrs.unwrap().valid,
            _ => fs.setattr(&cx(), at, &touch).await.unwrap().valid,
        }
    };
    for n in 0..2 {
        assert!(matches!(change(t.fs.clone(), n).await, Validity::Until(_)));
        t.asked();
        assert_eq!((t.validity().await, t.asked()), (Validity::Lease, vec![LeaseRequest::Read(TERM)]));
    }
    // A lease that was granted before the change and answered after it.
    let fs = t.fs.clone();
    tokio::time::sleep(seconds(25)).await;
    let getattr = async move { fs.getattr(&cx(), File { fh: &file, open: None }).await.unwrap().valid };
    let late = t.held(NqProc::GETATTR, getattr).await;
    change(t.fs.clone(), 0).await;
    t.server.release();
    assert!(matches!(late.await.unwrap(), Validity::Until(_)));
}

/// LOOKUP and listings grant leases on the files that they find. Directories and files with a
/// refused lease have none.
#[tokio::test(start_paused = true)]
async fn names_bring_leases() {
    let t = leasing(Duration::ZERO).await;
    assert_eq!(t.found().await.attrs.valid, Validity::Lease);
    t.asked();
    assert_eq!((t.validity().await, t.asked()), (Validity::Lease, vec![LeaseRequest::None]));
    let page = t.fs.readdir(&cx(), &root(), 0, [0; 8], 4096, true).await.unwrap();
    let valid: Vec<Validity> = page.entries.iter().map(|e| e.node.as_ref().unwrap().attrs.valid).collect();
    assert!(matches!(valid[..], [Validity::Lease, Validity::Until(_)]), "{valid:?}");
    t.server.evict(handle(5));
    t.until_vacated(1).await;
    assert_eq!(t.told.revoked.lock()[0].0, fh(handle(5)));
}

/// With `noac` nothing is cached and no lease is requested. The same holds when each of several
/// connections is a separate client.
#[tokio::test(start_paused = true)]
async fn useless_lease_is_not_requested() {
    let (noac, two) =
        (Options { delegations: false, ..testing::options() }, Options { nconnect: 2, ..testing::options() });
    for (opts, hello) in [(noac, true), (two, false)] {
        let server = Server::new();
        if !hello {
            *server.hello.lock() = None;
        }
        let fs = server.mount_with(opts).await;
        server.script(|call| Some(granting(call)));
        let (revoked, expired, flushed) = Default::default();
        let (server, slowly) = (server.clone(), Duration::ZERO);
        fs.subscribe(Arc::new(UpcallLog { server: server.clone(), revoked, expired, flushed, slowly }));
        fs.getattr(&cx(), File { fh: &fh(handle(1)), open: None }).await.unwrap();
        let [NqCall::Getattr(a)] = &server.called()[..] else { panic!("{:?}", server.called()) };
        assert_eq!(a.lease, LeaseRequest::None);
    }
}

/// The end of the mount returns its leases, so that other clients do not wait.
/// Promise: 8a'
#[tokio::test(start_paused = true)]
async fn unmount_returns_leases() {
    let t = leasing(Duration::ZERO).await;
    assert_eq!(t.validity().await, Validity::Lease);
    assert_eq!(t.found().await.attrs.valid, Validity::Lease);
    t.fs.shutdown(&cx()).await.unwrap();
    assert_eq!(t.server.vacated(), 1);
}

/// Calls of the server that NQNFS does not have, and evictions of unknown files, have no effect.
#[tokio::test(start_paused = true)]
async fn unknown_callbacks_have_no_effect() {
    let t = leasing(Duration::ZERO).await;
    assert_eq!(t.validity().await, Validity::Lease);
    t.server.call_back(NqProc::EVICTED, Enc::new());
    t.server.call_back(NqProc::WRITE, Enc::new());
    t.server.call_back(NqProc(77), Enc::new());
    t.server.evict(handle(9));
    t.until_vacated(1).await;
    t.asked();
    assert_eq!((t.validity().await, t.asked()), (Validity::Lease, vec![LeaseRequest::None]));
}

/// Events are remembered up to a limit. Older events count as possible for every file.
#[test]
fn forgotten_event_counts_as_possible() {
    use super::super::leases::{RECENT_MAX, Recent};
    use hither_lease::FileKey;
    let (mut recent, key) = (Recent::default(), |n: usize| FileKey([n as u64, 0]));
    assert!(!recent.since(key(1), 0));
    recent.note(key(1));
    assert!(recent.since(key(1), 0) && !recent.since(key(1), 1) && !recent.since(key(2), 0));
    (0..RECENT_MAX).for_each(|n| recent.note(key(10 + n % 2)));
    assert!(recent.since(key(2), 0), "the first is forgotten");
    assert!(!recent.since(key(2), recent.last) && recent.since(key(10), recent.last - 2));
    (0..10 * RECENT_MAX).for_each(|_| recent.note(key(3)));
    assert!(recent.since(key(3), recent.last - 1));
    assert!(!recent.since(key(2), recent.last - 10 * RECENT_MAX as u64), "one file, however often, is one");
}
