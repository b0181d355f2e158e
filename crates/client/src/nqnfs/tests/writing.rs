//! Write leases: when writes may be delayed, and the delayed data at the end of the lease.

use super::leases::{Test, granting, leasing, seconds};
use super::*;
use hither_vfs::{LeaseAuthority, Validity};

impl Test {
    async fn request_write_caching(&self) -> bool {
        self.fs.request_write_caching(&cx(), &fh(handle(1))).await
    }

    fn can_cache_writes(&self) -> bool {
        self.fs.can_cache_writes(&fh(handle(1)))
    }

    fn is_noncacheable(&self) -> bool {
        self.fs.is_noncacheable(&fh(handle(1)))
    }

    async fn write(&self) -> Validity {
        let (file, data) = (fh(handle(1)), Data::from(Bytes::from_static(b"x")));
        let at = File { fh: &file, open: None };
        self.fs.write(&cx(), at, 0, data, Stability::Stable).await.unwrap().attrs.unwrap().valid
    }

    /// Leases that WRITEs and GETLEASEs requested since the last call of this function.
    fn written(&self) -> Vec<LeaseRequest> {
        let calls = std::mem::take(&mut *self.server.calls.lock());
        let asked = |c: &NqCall| match c {
            NqCall::Write(a) => Some(a.lease),
            NqCall::Getlease(a) if a.args.rw == Cachetype::WRITE => {
                Some(LeaseRequest::Write(a.args.duration))
            }
            NqCall::Getlease(a) => Some(LeaseRequest::Read(a.args.duration)),
            _ => None,
        };
        calls.iter().filter_map(asked).collect()
    }
}

fn refusing(call: &NqCall) -> NqReply {
    match call {
        NqCall::Getlease(_) => NqReply::Getlease(Res::Err(Stat::TRYLATER)),
        other => granting(other),
    }
}

/// Writes are delayed only under a write lease, not under a read lease. A delayed WRITE requests no
/// lease. The attributes after it are valid as long as the lease.
/// Promise: 8a''
#[tokio::test(start_paused = true)]
async fn write_lease_allows_delayed_writes() {
    let t = leasing(Duration::ZERO).await;
    assert!(!t.can_cache_writes());
    assert_eq!(t.validity().await, Validity::Lease);
    assert!(!t.can_cache_writes(), "a lease for reading");
    assert!(matches!(t.write().await, Validity::Until(_)));
    assert_eq!(t.written(), [LeaseRequest::Write(0)]);
    assert!(t.request_write_caching().await && t.can_cache_writes());
    assert_eq!(t.fs.delegated_bytes(&fh(handle(1))), Some(u64::MAX));
    assert_eq!(t.write().await, Validity::Lease);
    assert_eq!(t.written(), [LeaseRequest::Write(30), LeaseRequest::None]);
    // A read does not reduce the write lease to a read lease.
    tokio::time::sleep(seconds(25)).await;
    t.validity().await;
    assert!(t.can_cache_writes());
}

/// The creation of a file grants a write lease.
#[tokio::test(start_paused = true)]
async fn create_grants_write_lease() {
    let t = leasing(Duration::ZERO).await;
    t.server.script(|call| match call {
        NqCall::Create(a) => {
            let NqReply::Create(Res::Ok(_, ok)) = created(a, a.args.attributes.atime) else { unreachable!() };
            let LeaseRequest::Write(duration) = a.lease else { panic!("{:?}", a.lease) };
            let lease = LeaseReply::Write(Lease { cachable: true, duration, rev: 1 });
            Some(NqReply::Create(Res::Ok(lease, ok)))
        }
        other => Some(granting(other)),
    });
    let how = creating(Create::Exclusive(SetAttr::default()));
    let opened = t.fs.open(&cx(), PathRef::name(&root(), &name("new")), &how).await.unwrap();
    assert!(t.fs.can_cache_writes(&opened.node.fh));
    assert_eq!(t.written(), []);
}

/// On an eviction delayed data is sent before VACATED. From then on no write is delayed and no data
/// of the file is cached, until the next lease.
/// Promise: 8a''
#[tokio::test(start_paused = true)]
async fn eviction_sends_data_before_vacated() {
    let t = leasing(seconds(20)).await;
    assert!(t.request_write_caching().await);
    t.server.evict(handle(1));
    tokio::time::sleep(seconds(1)).await;
    assert_eq!(*t.told.flushed.lock(), [(fh(handle(1)), 0)]);
    assert!(t.told.revoked.lock().is_empty() && !t.can_cache_writes() && t.is_noncacheable());
    t.written();
    assert!(!t.request_write_caching().await);
    t.write().await;
    assert_eq!(t.written(), [LeaseRequest::None], "it is still the holder's");
    // The client waits longer than for a read lease.
    tokio::time::sleep(seconds(30)).await;
    assert_eq!((t.told.revoked.lock().len(), t.server.vacated()), (1, 0));
    t.until_vacated(1).await;
    assert!(t.is_noncacheable());
    assert!(t.request_write_caching().await && !t.is_noncacheable());
}

/// A delayed WRITE that arrives after the end of its lease gets EXPIRED. The client sends the data
/// once more as a new write, and no data is lost.
/// Promise: 8a''
#[tokio::test(start_paused = true)]
async fn expired_write_is_resent() {
    let t = leasing(Duration::ZERO).await;
    assert!(t.request_write_caching().await);
    t.server.script(|call| match call {
        NqCall::Write(a) if a.lease == LeaseRequest::None => Some(NqReply::Write(Res::Err(Stat::EXPIRED))),
        other => Some(granting(other)),
    });
    t.write().await;
    assert_eq!(t.written(), [LeaseRequest::None, LeaseRequest::Write(0)]);
}

/// Under a non-caching lease other clients may write the file too, so every write is sent to the
/// server. The client does not request a lease again before its end.
/// Promise: 8a''
#[tokio::test(start_paused = true)]
async fn noncaching_lease_writes_through() {
    let t = leasing(Duration::ZERO).await;
    t.server.script(|call| match call {
        NqCall::Getlease(a) => {
            let ok = GetleaseOk { cachable: false, duration: a.args.duration, rev: 1, attr: file() };
            Some(NqReply::Getlease(Res::Ok(LeaseReply::None, ok)))
        }
        other => Some(granting(other)),
    });
    for _ in 0..3 {
        assert!(!t.request_write_caching().await && t.is_noncacheable());
        tokio::time::sleep(seconds(9)).await;
    }
    assert_eq!(t.written(), [LeaseRequest::Write(30)]);
    t.server.script(|call| Some(granting(call)));
    tokio::time::sleep(seconds(9)).await;
    assert!(t.request_write_caching().await && !t.is_noncacheable(), "until it has ended");
}

/// A lease is renewed while there are writes. Before the end of a lease that cannot be renewed, the
/// client requests the delayed data from the layer above. No write is delayed afterwards.
/// Promise: 8a''
#[tokio::test(start_paused = true)]
async fn expiring_lease_flushes_delayed_writes() {
    let t = leasing(Duration::ZERO).await;
    let (file, how) = (fh(handle(1)), OpenHow::existing(OpenAccess::WRITE));
    t.fs.open(&cx(), PathRef::fh(&file), &how).await.unwrap();
    assert!(t.request_write_caching().await);
    for _ in 0..9 {
        tokio::time::sleep(seconds(10)).await;
        assert!(t.can_cache_writes(), "it is renewed");
    }
    assert!(t.told.flushed.lock().is_empty());
    t.server.script(|call| Some(refusing(call)));
    let began = tokio::time::Instant::now();
    while t.told.flushed.lock().is_empty() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(began.elapsed() < seconds(30) && t.told.expired.lock().is_empty(), "before the lease ends");
    assert!(!t.can_cache_writes());
    t.write().await;
    assert_eq!(t.written().last(), Some(&LeaseRequest::None), "the server still waits for it");
    tokio::time::sleep(seconds(10)).await;
    assert_eq!(t.told.expired.lock().len(), 1);
    assert!(!t.request_write_caching().await, "the server has refused");
}

/// An open file without writes excludes other clients and local programs for at most the term.
/// Promise: 8a''
#[tokio::test(start_paused = true)]
async fn idle_writer_loses_write_lease() {
    let t = leasing(Duration::ZERO).await;
    let (file, how) = (fh(handle(1)), OpenHow::existing(OpenAccess::all()));
    t.fs.open(&cx(), PathRef::fh(&file), &how).await.unwrap();
    assert!(t.request_write_caching().await);
    tokio::time::sleep(seconds(61)).await;
    assert!(!t.can_cache_writes());
    assert_eq!(t.told.expired.lock().len(), 1);
    assert!(t.told.flushed.lock().len() == 1 && t.server.vacated() == 0);
    assert_eq!(t.validity().await, Validity::Lease);
    assert!(!t.can_cache_writes(), "a lease for reading");
}

/// A write that is correct only under the lease is not sent without a lease. It is not repeated
/// when the server reports the end of the lease. It is not sent to a restarted server that does not
/// know the lease.
#[tokio::test(start_paused = true)]
async fn only_held_write_needs_lease() {
    let t = leasing(Duration::ZERO).await;
    let write = async || {
        let (file, data) = (fh(handle(1)), Data::from(Bytes::from_static(b"x\0x")));
        let cx = RequestContext { only_held: true, ..cx() };
        t.fs.write(&cx, File { fh: &file, open: None }, 0, data, Stability::Unstable)
            .await
            .map_err(|e| e.errno)
    };
    assert_eq!(write().await.err(), Some(libc::EAGAIN));
    assert_eq!(t.written(), []);
    assert!(t.request_write_caching().await);
    assert_eq!(write().await.map(|w| w.bytes), Ok(3));
    assert_eq!(t.written(), [LeaseRequest::Write(30), LeaseRequest::None]);
    t.server.script(|call| match call {
        NqCall::Write(_) => Some(NqReply::Write(Res::Err(Stat::EXPIRED))),
        other => Some(granting(other)),
    });
    assert_eq!(write().await.err(), Some(libc::EAGAIN));
    assert_eq!(t.written(), [LeaseRequest::None], "and not again as a new one");
    let (server, mut ends) = (t.server.clone(), true);
    t.server.script(move |call| match call {
        NqCall::Write(_) if std::mem::take(&mut ends) => {
            *server.hello.lock() = Some(Res::Ok(LeaseReply::None, HelloOk { server: 2, ..HELLO }));
            server.net.cut(sim::Cut::Reset);
            None
        }
        other => Some(granting(other)),
    });
    assert!(write().await.is_err());
    assert!(t.can_cache_writes(), "the new server honours the lease, and would not know when it is over");
    assert_eq!(write().await.err(), Some(libc::EAGAIN));
    assert_eq!(t.written(), [LeaseRequest::None], "not sent again");
    tokio::time::sleep(seconds(61)).await;
    assert!(t.request_write_caching().await);
    assert_eq!(write().await.map(|w| w.bytes), Ok(3));
}
