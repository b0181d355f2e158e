//! Reads through the cache return the server's bytes, even if the cache, the disk or the power
//! fails.

mod belated;
mod crash;
mod damage;
mod fillin;
mod histories;
mod large;
mod memo;
mod own;
mod scale;
mod sim;

use super::*;
use bytes::Bytes;
use hither_vfs::model::Model;
use hither_vfs::model::wire::Wire;
use hither_vfs::*;
use sim::Sim;
use std::time::SystemTime;
use tokio::time::Instant;

const VALID: Duration = Duration::from_secs(3);
const MIB: u64 = 1 << 20;

/// A clock that begins `s` seconds after 1970, and advances a further millisecond at each read.
pub(super) fn env_at(s: u64) -> Env {
    let (ticks, began) = (AtomicU64::new(s * 1000), Instant::now());
    // Successive daemons must not draw the same numbers.
    static RANDOM: AtomicU64 = AtomicU64::new(99);
    Env {
        random: Arc::new(|| RANDOM.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)),
        wall: Arc::new(move || {
            let tick = Duration::from_millis(ticks.fetch_add(1, Ordering::Relaxed));
            SystemTime::UNIX_EPOCH + began.elapsed() + tick
        }),
    }
}

fn name(n: &str) -> Name {
    Name::new(n.as_bytes().to_vec()).unwrap()
}

fn root_cx() -> RequestContext {
    RequestContext::new(Arc::new(Cred::root()))
}

const READ: OpenHow = OpenHow {
    access: OpenAccess::READ,
    create: Create::No,
    truncate: false,
    execute: false,
    first_bytes: 0,
    known: None,
};

fn writing() -> OpenHow {
    let set = SetAttr { mode: Some(0o644), ..Default::default() };
    OpenHow { access: OpenAccess::READ | OpenAccess::WRITE, create: Create::IfMissing(set), ..READ }
}

fn pattern(seed: u64, len: u64) -> Bytes {
    (0..len)
        .map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed.wrapping_mul(131)) as u8)
        .collect::<Vec<_>>()
        .into()
}

/// A server, the wire to it, and the cache.
struct Lab {
    model: Arc<Model>,
    wire: Arc<Wire>,
    disk: Arc<DataCache>,
    io: Arc<Sim>,
    top: Fh,
    cx: RequestContext,
}

fn options() -> DataCacheOptions {
    DataCacheOptions { min_free_bytes: 0, ..DataCacheOptions::default() }
}

impl Lab {
    async fn new(options: DataCacheOptions) -> Self {
        Self::slow(options, Duration::ZERO).await
    }

    async fn slow(options: DataCacheOptions, most: Duration) -> Self {
        let model = Arc::new(Model::new(env_at(1), VALID, 1 << 40));
        let io = Sim::new(5);
        let (wire, disk) = Self::stack(&model, &io, options, most);
        let cx = root_cx();
        let top = disk.root(&cx).await.unwrap().fh;
        wire.take();
        Self { model, wire, disk, io, top, cx }
    }

    fn stack(
        model: &Arc<Model>,
        io: &Arc<Sim>,
        options: DataCacheOptions,
        most: Duration,
    ) -> (Arc<Wire>, Arc<DataCache>) {
        let wire = Wire::slow(model.clone(), Some(12345), most);
        let disk = DataCache::new(wire.clone(), Some(io.clone()), options, env_at(100_000));
        (wire, disk)
    }

    /// Starts another daemon later, on the same disk.
    async fn restart(&mut self, options: DataCacheOptions) {
        self.disk.drain(Duration::from_secs(60)).await;
        self.io = self.io.after_kill();
        (self.wire, self.disk) = Self::stack(&self.model, &self.io, options, Duration::ZERO);
    }

    /// Another client makes a file.
    async fn file(&self, n: &str, data: &Bytes) -> Fh {
        let opened = self.model.open(&self.cx, PathRef::name(&self.top, &name(n)), &writing()).await.unwrap();
        let file = File { fh: &opened.node.fh, open: Some(opened.open) };
        self.model.write(&self.cx, file, 0, data.clone().into(), Stability::Stable).await.unwrap();
        self.model.close(&self.cx, &opened.node.fh, opened.open).await.unwrap();
        opened.node.fh
    }

    async fn open(&self, fh: &Fh) -> Opened {
        self.disk.open(&self.cx, PathRef::fh(fh), &READ).await.unwrap()
    }

    async fn read(&self, o: &Opened, at: u64, len: u32) -> Bytes {
        let file = File { fh: &o.node.fh, open: Some(o.open) };
        self.disk.read(&self.cx, file, at, len).await.unwrap().data.into_bytes()
    }

    async fn close(&self, o: Opened) {
        self.disk.close(&self.cx, &o.node.fh, o.open).await.unwrap();
    }

    /// Opens a file, reads it in pieces, and closes it.
    async fn cat(&self, fh: &Fh, piece: u32) -> Bytes {
        let o = self.open(fh).await;
        let file = File { fh, open: Some(o.open) };
        let (mut all, mut at) = (Vec::new(), 0);
        loop {
            let read = self.disk.read(&self.cx, file, at, piece).await.unwrap();
            at += read.data.len() as u64;
            all.extend_from_slice(&read.data.into_bytes());
            if read.eof {
                break;
            }
        }
        self.close(o).await;
        all.into()
    }

    async fn settle(&self) {
        self.disk.drain(Duration::from_secs(60)).await;
    }
}

/// Cached bytes are not read from the server again, neither at once nor after a restart.
#[tokio::test(start_paused = true)]
async fn cached_reads_survive_restart() {
    let mut l = Lab::new(options()).await;
    let data = pattern(1, 3 * MIB + 4567);
    let fh = l.file("f", &data).await;
    assert_eq!(l.cat(&fh, 131_072).await, data);
    l.settle().await;
    l.wire.take();
    assert_eq!(l.cat(&fh, 131_072).await, data);
    assert_eq!(l.wire.take(), "close 1, open 1");
    l.restart(options()).await;
    assert_eq!(l.cat(&fh, 100_000).await, data);
    assert_eq!(l.wire.take(), "close 1, open 1");
    let s = l.disk.stats();
    assert_eq!((s.misses, s.hit_bytes, s.entries, s.errors), (0, data.len() as u64, 1, 0));
    assert_eq!(l.disk.opens.len(), 0);
    assert!(l.disk.lives.lock().is_empty());
}

/// The read part of a file survives a restart. Only other parts are read from the server.
#[tokio::test(start_paused = true)]
async fn partly_read_file_survives_restart() {
    let mut l = Lab::new(options()).await;
    let data = pattern(2, MIB);
    let fh = l.file("f", &data).await;
    let o = l.open(&fh).await;
    assert_eq!(l.read(&o, 300_000, 4096).await, data[300_000..304_096]);
    l.close(o).await;
    l.restart(options()).await;
    let o = l.open(&fh).await;
    l.wire.take();
    assert_eq!(l.read(&o, 290_000, 10_000).await, data[290_000..300_000]);
    assert_eq!(l.wire.take(), "");
    assert_eq!(l.read(&o, 200_000, 400_000).await, data[200_000..600_000]);
    assert_eq!(l.wire.take(), "read 2");
    l.close(o).await;
}

/// A file with a new version is read from the server again, also after a restart.
#[tokio::test(start_paused = true)]
async fn changed_file_is_read_again() {
    let mut l = Lab::new(options()).await;
    let (old, new) = (pattern(1, 300_000), pattern(2, 300_000));
    let fh = l.file("f", &old).await;
    assert_eq!(l.cat(&fh, 65536).await, old);
    l.settle().await;
    l.file("f", &new).await;
    assert_eq!(l.cat(&fh, 65536).await, new);
    l.settle().await;
    l.file("f", &old).await;
    l.restart(options()).await;
    assert_eq!(l.cat(&fh, 65536).await, old);
    assert_eq!(l.disk.stats().dropped_by_change, 1);
}

/// Cached bytes are used while the attributes are valid. After expiry a GETATTR decides.
#[tokio::test(start_paused = true)]
async fn expired_attributes_revalidate_cached_bytes() {
    let l = Lab::new(options()).await;
    let (old, new) = (pattern(1, 200_000), pattern(2, 200_000));
    let fh = l.file("f", &old).await;
    let o = l.open(&fh).await;
    assert_eq!(l.read(&o, 0, 200_000).await, old);
    l.settle().await;
    l.wire.take();
    assert_eq!(l.read(&o, 0, 200_000).await, old);
    assert_eq!(l.wire.take(), "");
    tokio::time::sleep(VALID + Duration::from_millis(1)).await;
    assert_eq!(l.read(&o, 0, 1000).await, old[..1000]);
    assert_eq!(l.wire.take(), "getattr 1");
    l.file("f", &new).await;
    tokio::time::sleep(VALID + Duration::from_millis(1)).await;
    assert_eq!(l.read(&o, 5, 1000).await, new[5..1005]);
    l.close(o).await;
}

/// Under a lease cached bytes need no request. After the withdrawal the new bytes are read.
#[tokio::test(start_paused = true)]
async fn lease_keeps_bytes_until_withdrawn() {
    let l = Lab::new(options()).await;
    let data = pattern(1, 200_000);
    let fh = l.file("f", &data).await;
    l.wire.lease(true);
    let o = l.open(&fh).await;
    assert_eq!(l.read(&o, 0, 200_000).await, data);
    l.settle().await;
    tokio::time::sleep(Duration::from_secs(1000)).await;
    l.wire.take();
    assert_eq!(l.read(&o, 0, 200_000).await, data);
    assert_eq!(l.wire.take(), "");
    l.wire.upcalls.get().unwrap().revoke(&fh).await;
    l.file("f", &pattern(2, 200_000)).await;
    assert_eq!(l.read(&o, 0, 200_000).await, pattern(2, 200_000));
    l.close(o).await;
}

#[tokio::test(start_paused = true)]
async fn own_writes_are_read_at_once() {
    let l = Lab::new(options()).await;
    let data = pattern(1, 200_000);
    let fh = l.file("f", &data).await;
    let w = l.disk.open(&l.cx, PathRef::fh(&fh), &OpenHow { create: Create::No, ..writing() }).await.unwrap();
    let o = l.open(&fh).await;
    assert_eq!(l.read(&o, 0, 200_000).await, data);
    l.settle().await;
    let file = File { fh: &fh, open: Some(w.open) };
    l.disk.write(&l.cx, file, 70_000, Bytes::from_static(b"hello").into(), Stability::Stable).await.unwrap();
    assert_eq!(l.read(&o, 70_000, 5).await, "hello");
    assert_eq!(l.read(&w, 69_999, 7).await[1..6], b"hello"[..]);
    let cut = SetAttr { size_bytes: Some(70_002), ..Default::default() };
    l.disk.setattr(&l.cx, file, &cut).await.unwrap();
    assert_eq!(l.read(&o, 70_000, 50).await, "he");
    l.close(o).await;
    l.close(w).await;
    assert_eq!(l.disk.stats().dropped_by_write, 1);
    assert!(l.disk.lives.lock().is_empty());
}

/// A gateway opens and closes a file for each read of an NFSv3 client. Whatever the order, each
/// byte is requested once: with an open, by a read, or neither while it is on its way to the disk.
#[tokio::test(start_paused = true)]
async fn opens_for_each_read_share_bytes() {
    const PIECE: usize = format::BLOCK as usize;
    let data = pattern(3, 5 * format::BLOCK + 7);
    for (seed, most_ms, disk_works) in (0..60).map(|n| (n, n % 4 * 40, n % 3 > 0)) {
        let l = Arc::new(Lab::slow(options(), Duration::from_millis(most_ms)).await);
        let fh = l.file("f", &data).await;
        let attrs = l.disk.getattr(&l.cx, File { fh: &fh, open: None }).await.unwrap();
        l.wire.data_bytes.store(0, Ordering::Relaxed);
        // The disk is busy: fetched bytes wait in memory.
        let busy = if disk_works { 0 } else { DISK_CALLS_MAX as u32 };
        let turn = l.disk.pool.acquire_many(busy).await.unwrap();
        let mut clients = tokio::task::JoinSet::new();
        for client in 0..20 {
            let (l, fh, data, attrs) = (l.clone(), fh.clone(), data.clone(), attrs.clone());
            clients.spawn(async move {
                let after = (client * 7919 + seed * 31) % (most_ms + 1);
                tokio::time::sleep(Duration::from_millis(after)).await;
                for at in (0..data.len()).step_by(PIECE) {
                    let first_bytes = if at == 0 { PIECE as u32 } else { 0 };
                    let how = OpenHow { first_bytes, known: Some(attrs.clone()), ..READ };
                    let o = l.disk.open(&l.cx, PathRef::fh(&fh), &how).await.unwrap();
                    let piece = &data[at..data.len().min(at + PIECE)];
                    if let Some(first) = &o.first {
                        assert_eq!(first.data.clone().into_bytes(), *piece);
                    }
                    assert_eq!(l.read(&o, at as u64, PIECE as u32).await, *piece);
                    l.close(o).await;
                }
            });
        }
        clients.join_all().await;
        let bytes = l.wire.data_bytes.load(Ordering::Relaxed);
        assert_eq!(bytes, data.len() as u64, "seed {seed}, {:?}", l.disk.stats());
        drop(turn);
        l.settle().await;
        assert!(l.disk.lives.lock().is_empty());
    }
}

/// Thirty concurrent reads of one range cause one READ.
#[tokio::test(start_paused = true)]
async fn concurrent_readers_share_one_read() {
    let options = DataCacheOptions { ahead_max_bytes: 0, ..options() };
    let l = Arc::new(Lab::slow(options, Duration::from_millis(50)).await);
    let data = pattern(3, 900_000);
    let fh = l.file("f", &data).await;
    let opens = [l.open(&fh).await, l.open(&fh).await, l.open(&fh).await];
    l.wire.take();
    let mut readers = tokio::task::JoinSet::new();
    for i in 0..30 {
        let (l, o, data) = (l.clone(), opens[i % 3].clone(), data.clone());
        readers.spawn(async move {
            let at = (i * 7919 % 20_000) as u64;
            assert_eq!(l.read(&o, at, 700_000).await, data[at as usize..at as usize + 700_000]);
        });
    }
    readers.join_all().await;
    let s = l.disk.stats();
    assert_eq!(l.wire.take(), "read 1", "{s:?}");
    assert_eq!((s.misses, s.shared_fetches, s.fetches), (1, 29, 1));
}

/// Read-ahead fetches bytes before a sequential reader needs them, and each byte once.
#[tokio::test(start_paused = true)]
async fn readahead_serves_sequential_reader() {
    let l = Lab::slow(options(), Duration::from_millis(20)).await;
    let data = pattern(3, 24 * MIB);
    let fh = l.file("f", &data).await;
    assert_eq!(l.cat(&fh, 131_072).await, data);
    let s = l.disk.stats();
    assert_eq!(s.fetched_bytes, data.len() as u64, "nothing twice, nothing beyond the end");
    assert!(s.ahead_fetches > 20 && s.misses < 5, "{s:?}");
    // 24 MiB in 128 KiB pieces without read-ahead would wait 192 times.
    assert!(s.shared_fetches < 60, "{s:?}");
}

/// Random reads fetch only the blocks that they touch.
#[tokio::test(start_paused = true)]
async fn random_reads_start_no_readahead() {
    let l = Lab::new(options()).await;
    let data = pattern(3, 16 * MIB);
    let fh = l.file("f", &data).await;
    let o = l.open(&fh).await;
    for i in [9u64, 2, 14, 5, 12, 0, 7] {
        let at = i * MIB;
        assert_eq!(l.read(&o, at, 4096).await, data[at as usize..at as usize + 4096]);
    }
    l.close(o).await;
    let s = l.disk.stats();
    assert_eq!((s.ahead_fetches, s.fetched_bytes), (0, 7 * 65536));
}

/// An open of a cached file with valid attributes sends no request. A call that needs an open below
/// makes it. Blocks of another version cause an open at the server.
#[tokio::test(start_paused = true)]
async fn cached_file_opens_without_request() {
    let mut l = Lab::new(options()).await;
    let data = pattern(1, 500_000);
    let fh = l.file("f", &data).await;
    assert_eq!(l.cat(&fh, 100_000).await, data);
    l.restart(options()).await;
    let known = l.disk.getattr(&l.cx, File { fh: &fh, open: None }).await.unwrap();
    l.wire.take();
    let how = OpenHow { known: Some(known.clone()), first_bytes: 1000, ..READ };
    let o = l.disk.open(&l.cx, PathRef::fh(&fh), &how).await.unwrap();
    assert_eq!(o.first.clone().unwrap().data.into_bytes(), data[..1000]);
    assert_eq!(l.read(&o, 0, 500_000).await, data);
    assert_eq!(l.wire.take(), "");
    // A call that needs an open below makes it.
    let file = File { fh: &fh, open: Some(o.open) };
    assert_eq!(l.disk.seek(&l.cx, file, 0, Seek::Hole).await.unwrap(), 500_000);
    assert_eq!(l.wire.take(), "open 1, seek 1");
    l.close(o).await;
    assert_eq!(l.wire.take(), "close 1");
    // Blocks of another version are not cached: the server is asked.
    let other = Attrs { attr: Attr { change: known.attr.change + 1, ..known.attr.clone() }, ..known };
    let how = OpenHow { known: Some(other), ..READ };
    let o = l.disk.open(&l.cx, PathRef::fh(&fh), &how).await.unwrap();
    assert_eq!(l.wire.take(), "open 1");
    assert_eq!(l.read(&o, 0, 500_000).await, data);
    l.close(o).await;
}

/// A layer above with attributes under a lease processes the withdrawal after this layer. This
/// layer does not believe these attributes after the withdrawal.
/// Promise: 11a
#[tokio::test(start_paused = true)]
async fn withdrawn_lease_voids_known_attributes() {
    for all in [false, true] {
        let l = Lab::new(options()).await;
        l.wire.lease(true);
        let (old, new) = (pattern(1, 200_000), pattern(2, 200_000));
        let fh = l.file("f", &old).await;
        assert_eq!(l.cat(&fh, 131_072).await, old);
        l.settle().await;
        let known = l.disk.getattr(&l.cx, File { fh: &fh, open: None }).await.unwrap();
        assert_eq!(known.valid, Validity::Lease);
        let how = OpenHow { known: Some(known), ..READ };
        tokio::time::sleep(Duration::from_millis(1)).await;
        l.wire.take();
        let o = l.disk.open(&l.cx, PathRef::fh(&fh), &how).await.unwrap();
        assert_eq!((l.read(&o, 0, 200_000).await, l.wire.take().as_str()), (old, ""));
        l.close(o).await;
        l.wire.lease(false);
        let upcalls = l.wire.upcalls.get().unwrap();
        if all {
            upcalls.revoke_all().await
        } else {
            upcalls.revoke(&fh).await
        }
        l.file("f", &new).await;
        let o = l.disk.open(&l.cx, PathRef::fh(&fh), &how).await.unwrap();
        assert_eq!(l.read(&o, 0, 200_000).await, new);
        l.close(o).await;
    }
}

/// The cache keeps contents of small files that arrive with walks and multi-file reads. They
/// survive a restart.
#[tokio::test(start_paused = true)]
async fn bundled_small_files_are_cached() {
    let mut l = Lab::new(options()).await;
    let data = pattern(1, 5000);
    let (a, b) = (l.file("a", &data).await, l.file("b", &data).await);
    let want = WalkRequest { read_bytes: 65536, access: Access::READ, ..Default::default() };
    l.disk.walk(&l.cx, PathRef::name(&l.top, &name("a")), want).await.unwrap();
    l.disk.read_many(&l.cx, std::slice::from_ref(&b), None, 65536).await;
    l.restart(options()).await;
    for fh in [&a, &b] {
        let trail = l.disk.walk(&l.cx, PathRef::fh(fh), want).await.unwrap();
        assert_eq!(trail.along.first.unwrap().data.into_bytes(), data);
        assert_eq!(l.cat(fh, 65536).await, data);
    }
    assert_eq!(l.wire.take(), "close 2, open 2, walk 2");
    assert_eq!(l.disk.stats().fetches, 0);
}

/// A file below the minimum size, above the maximum size or changed recently bypasses the cache.
#[tokio::test(start_paused = true)]
async fn young_small_large_files_bypass_cache() {
    let options = DataCacheOptions { cache_min_file: 1000, cache_max_file: 200_000, ..options() };
    let l = Lab::new(options.clone()).await;
    let (small, large) = (l.file("s", &pattern(1, 999)).await, l.file("l", &pattern(1, 200_001)).await);
    assert_eq!(l.cat(&small, 4096).await.len(), 999);
    assert_eq!(l.cat(&large, 65536).await.len(), 200_001);
    // The server's clock is ten seconds behind the local clock.
    let model = Arc::new(Model::new(env_at(99_990), VALID, 1 << 40));
    let (wire, disk) = Lab::stack(&model, &l.io, options, Duration::ZERO);
    let top = disk.root(&l.cx).await.unwrap().fh;
    let young = Lab { model, wire, disk, io: l.io.clone(), top, cx: root_cx() };
    let fh = young.file("y", &pattern(4, 5000)).await;
    assert_eq!(young.cat(&fh, 65536).await, pattern(4, 5000));
    for l in [&l, &young] {
        l.settle().await;
        let s = l.disk.stats();
        assert_eq!((s.entries, s.stored_bytes, s.fetches), (0, 0, 0), "{s:?}");
        assert!(s.passed_reads > 0);
    }
}

/// The cleaner keeps the cache below its limits. It evicts unused files and spares used and open
/// files.
#[tokio::test(start_paused = true)]
async fn cleaner_evicts_unused_files() {
    let options = DataCacheOptions { soft_bytes: 2 * MIB, hard_bytes: 3 * MIB, ..options() };
    let l = Lab::new(options).await;
    let favourite = l.file("favourite", &pattern(0, 100_000)).await;
    let held = l.open(&favourite).await;
    let often = l.file("often", &pattern(7, 100_000)).await;
    for i in 0..60u64 {
        let fh = l.file(&format!("f{i}"), &pattern(i, 100_000)).await;
        assert_eq!(l.cat(&fh, 50_000).await, pattern(i, 100_000));
        l.cat(&often, 100_000).await;
        l.settle().await;
        assert!(l.disk.stats().entry_bytes <= 3 * MIB);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let s = l.disk.stats();
    l.cat(&often, 100_000).await;
    assert_eq!(l.disk.stats().fetches, s.fetches, "it was used all the time");
    assert!(s.evictions > 30 && s.entry_bytes <= 2 * MIB && s.entry_bytes > MIB, "{s:?}");
    assert_eq!(l.read(&held, 0, 100_000).await, pattern(0, 100_000));
    l.close(held).await;
}

/// Without free space in the file system the cache adds no entries. When space is free again, it
/// adds entries.
#[tokio::test(start_paused = true)]
async fn full_file_system_stops_insertion() {
    let options = DataCacheOptions { min_free_bytes: MIB, ..options() };
    let l = Lab::new(options).await;
    l.io.set_capacity(MIB / 2);
    let (a, b) = (l.file("a", &pattern(1, 300_000)).await, l.file("b", &pattern(2, 300_000)).await);
    l.cat(&a, 300_000).await;
    l.settle().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(l.cat(&b, 300_000).await, pattern(2, 300_000));
    l.settle().await;
    assert_eq!(l.disk.stats().entry_bytes, 0);
    l.io.set_capacity(10 * MIB);
    tokio::time::sleep(Duration::from_secs(3)).await;
    l.cat(&b, 300_000).await;
    l.settle().await;
    assert_eq!(l.disk.stats().entries, 1);
}

/// After a disk error the cache adds no entries for a while and still serves cached bytes. Then it
/// tries the disk again.
/// Promise: 11a
#[tokio::test(start_paused = true)]
async fn failing_disk_is_retried_later() {
    for errno in [libc::ENOSPC, libc::EIO, libc::EROFS] {
        let l = Lab::new(options()).await;
        let (a, b) = (l.file("a", &pattern(1, 300_000)).await, l.file("b", &pattern(2, 300_000)).await);
        l.cat(&a, 300_000).await;
        l.settle().await;
        l.io.fail(Some(errno));
        for _ in 0..3 {
            assert_eq!(l.cat(&b, 65536).await, pattern(2, 300_000));
            l.settle().await;
        }
        l.wire.take();
        assert_eq!(l.cat(&a, 65536).await, pattern(1, 300_000), "what is there is used");
        assert_eq!(l.wire.take(), "close 1, open 1");
        let s = l.disk.stats();
        assert!(s.errors > 0 && s.off == 1, "{s:?}");
        l.io.fail(None);
        tokio::time::sleep(Duration::from_secs(31)).await;
        l.cat(&b, 65536).await;
        l.settle().await;
        let s = l.disk.stats();
        assert_eq!((s.off, s.entries), (0, 2), "{s:?}");
    }
}

/// A read-only cache serves cached bytes, adds no entries and removes no files.
#[tokio::test(start_paused = true)]
async fn read_only_cache_adds_nothing() {
    let mut l = Lab::new(options()).await;
    let (a, b) = (l.file("a", &pattern(1, 300_000)).await, l.file("b", &pattern(2, 300_000)).await);
    l.cat(&a, 300_000).await;
    l.restart(DataCacheOptions { read_only: true, ..options() }).await;
    assert_eq!(l.cat(&a, 300_000).await, pattern(1, 300_000));
    assert_eq!(l.wire.take(), "close 1, open 1");
    assert_eq!(l.cat(&b, 300_000).await, pattern(2, 300_000));
    l.settle().await;
    let s = l.disk.stats();
    assert_eq!((s.entries, s.stored_bytes), (1, 0));
    // Even outdated files stay: another process may manage the directory.
    let files = || io::Io::list(&*l.io).unwrap().len();
    assert_eq!(files(), 2);
    l.file("a", &pattern(3, 300_000)).await;
    assert_eq!(l.cat(&a, 300_000).await, pattern(3, 300_000));
    l.settle().await;
    assert_eq!((l.disk.stats().entries, files()), (0, 2));
}

/// A reply to a request from before a local write proves nothing after the write.
#[tokio::test(start_paused = true)]
async fn late_reply_after_write_is_ignored() {
    let l = Lab::new(options()).await;
    let fh = l.file("f", &pattern(1, 100_000)).await;
    let o = l.open(&fh).await;
    assert_eq!(l.read(&o, 0, 100_000).await.len(), 100_000);
    // The request was sent before the write; the reply is slow.
    let late = l.disk.ticket();
    let old = l.model.getattr(&l.cx, File { fh: &fh, open: None }).await.unwrap();
    let w = l.disk.open(&l.cx, PathRef::fh(&fh), &OpenHow { create: Create::No, ..writing() }).await.unwrap();
    let file = File { fh: &fh, open: Some(w.open) };
    l.disk.write(&l.cx, file, 100_000, Bytes::from_static(b"more").into(), Stability::Stable).await.unwrap();
    assert!(l.disk.learn(&fh, &old, late).is_none());
    assert_eq!(l.read(&o, 100_000, 10).await, "more");
    // The answer is also ignored after all opens were closed, and if a layer above still uses it.
    l.close(o).await;
    l.close(w).await;
    let using = l.disk.using(&fh);
    assert!(l.disk.learn(&fh, &old, late).is_none());
    drop(using);
    let how = OpenHow { known: Some(old), ..READ };
    let o = l.disk.open(&l.cx, PathRef::fh(&fh), &how).await.unwrap();
    assert_eq!(l.read(&o, 99_999, 10).await.len(), 5);
    l.close(o).await;
    assert_eq!(l.disk.stats().virtual_opens, 0);
}

/// After a write call that was dropped before its end, the file is not cached for a minute.
#[tokio::test(start_paused = true)]
async fn interrupted_write_suspends_caching() {
    let l = Lab::slow(options(), Duration::from_secs(2)).await;
    let fh = l.file("f", &pattern(1, 100_000)).await;
    let w = l.disk.open(&l.cx, PathRef::fh(&fh), &OpenHow { create: Create::No, ..writing() }).await.unwrap();
    {
        let file = File { fh: &fh, open: Some(w.open) };
        let call = l.disk.write(&l.cx, file, 0, Bytes::from_static(b"x").into(), Stability::Stable);
        assert!(tokio::time::timeout(Duration::from_millis(1), call).await.is_err());
    }
    l.cat(&fh, 65536).await;
    l.settle().await;
    assert_eq!((l.disk.stats().fetches, l.disk.stats().entries), (0, 0));
    tokio::time::sleep(Duration::from_secs(61)).await;
    l.cat(&fh, 65536).await;
    l.settle().await;
    assert_eq!(l.disk.stats().entries, 1);
    l.close(w).await;
}

/// A close does not wait for read-ahead in flight.
#[tokio::test(start_paused = true)]
async fn close_ignores_pending_readahead() {
    let l = Lab::slow(options(), Duration::from_millis(400)).await;
    let fh = l.file("f", &pattern(1, 8 * MIB)).await;
    let o = l.open(&fh).await;
    for i in 0..3 {
        l.read(&o, i * 131_072, 131_072).await;
    }
    tokio::time::sleep(Duration::from_micros(1)).await;
    assert!(l.disk.stats().ahead_fetches > 1);
    l.wire.take();
    let began = Instant::now();
    l.close(o).await;
    assert!(began.elapsed() < Duration::from_millis(1), "{:?}", began.elapsed());
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!((l.wire.take().as_str(), l.model.open_count()), ("close 1", 0));
}

/// Under the metadata cache each byte is fetched once, also over restarts. A changed file is read
/// again.
#[tokio::test(start_paused = true)]
async fn metadata_cache_reads_bytes_once() {
    use crate::metadata::{MetadataCache, MetadataCacheOptions};
    let mut l = Lab::new(options()).await;
    let (small, large) = (pattern(1, 20_000), pattern(2, 3 * MIB));
    let handles = [l.file("small", &small).await, l.file("large", &large).await];
    for life in 0..3 {
        let meta = MetadataCache::new(l.disk.clone(), MetadataCacheOptions::default(), env_at(100_000));
        for (fh, data) in handles.iter().zip([&small, &large]) {
            let fresh = l.cx.fresh(Instant::now());
            let o = meta.open(&fresh, PathRef::fh(fh), &READ).await.unwrap();
            let file = File { fh, open: Some(o.open) };
            for (i, piece) in data.chunks(131_072).enumerate() {
                let read = meta.read(&l.cx, file, i as u64 * 131_072, 131_072).await.unwrap();
                assert_eq!(read.data.into_bytes(), piece);
            }
            meta.close(&l.cx, fh, o.open).await.unwrap();
        }
        let fetched = l.disk.stats().fetched_bytes;
        assert!(life == 0 || !l.wire.take().contains("read"));
        assert_eq!(
            fetched,
            if life == 0 { large.len() as u64 + small.len() as u64 } else { 0 },
            "life {life}"
        );
        l.restart(options()).await;
    }
    let meta = MetadataCache::new(l.disk.clone(), MetadataCacheOptions::default(), env_at(100_000));
    l.file("large", &pattern(9, 3 * MIB)).await;
    let o = meta.open(&l.cx.fresh(Instant::now()), PathRef::fh(&handles[1]), &READ).await.unwrap();
    let file = File { fh: &handles[1], open: Some(o.open) };
    let read = meta.read(&l.cx, file, 1000, 4096).await.unwrap();
    assert_eq!(read.data.into_bytes(), pattern(9, 3 * MIB)[1000..5096]);
    meta.close(&l.cx, &handles[1], o.open).await.unwrap();
}
