//! Cached blocks survive writes of this mount only if no other client can have written the file.

use super::*;

const BLOCK: u64 = format::BLOCK;

impl Lab {
    /// This mount writes.
    async fn write(&self, fh: &Fh, at: u64, data: &Bytes) {
        let how = OpenHow { create: Create::No, ..writing() };
        let o = self.disk.open(&self.cx, PathRef::fh(fh), &how).await.unwrap();
        let file = File { fh, open: Some(o.open) };
        self.disk.write(&self.cx, file, at, data.clone().into(), Stability::Stable).await.unwrap();
        self.disk.close(&self.cx, fh, o.open).await.unwrap();
    }

    /// The server withdraws a lease, as it does before another client writes.
    async fn revoke(&self, fh: &Fh) {
        self.wire.lease(false);
        self.wire.upcalls.get().unwrap().revoke(fh).await;
    }

    /// Another client writes.
    async fn foreign(&self, fh: &Fh, at: u64, data: &Bytes) {
        let file = File { fh, open: None };
        self.model.write(&self.cx, file, at, data.clone().into(), Stability::Stable).await.unwrap();
    }

    /// A file that is completely cached, under a lease.
    async fn leased(n: &str, data: &Bytes) -> (Self, Fh) {
        let l = Self::new(options()).await;
        l.wire.lease(true);
        let fh = l.file(n, data).await;
        assert_eq!(l.cat(&fh, 131_072).await, data);
        l.settle().await;
        (l, fh)
    }
}

fn changed(old: &Bytes, at: usize, new: &Bytes) -> Bytes {
    let mut all = old.to_vec();
    all.resize(all.len().max(at + new.len()), 0);
    all[at..at + new.len()].copy_from_slice(new);
    all.into()
}

/// Under a lease a local write keeps the cached blocks that it does not touch, also over a restart.
/// Promise: 11a
#[tokio::test(start_paused = true)]
async fn leased_write_keeps_unchanged_blocks() {
    let old = pattern(1, 10 * BLOCK + 500);
    let (mut l, fh) = Lab::leased("f", &old).await;
    let (a, b) = (pattern(2, 100), pattern(3, BLOCK));
    l.write(&fh, 2 * BLOCK + 7, &a).await;
    l.write(&fh, 5 * BLOCK - 1, &b).await;
    let now = changed(&changed(&old, 2 * BLOCK as usize + 7, &a), 5 * BLOCK as usize - 1, &b);
    l.wire.take();
    assert_eq!(l.cat(&fh, 100_000).await, now);
    // Blocks 2, 4 and 5.
    let s = l.disk.stats();
    assert_eq!((s.kept_over_writes, s.fetched_bytes), (2, old.len() as u64 + 3 * BLOCK), "{}", l.wire.take());
    // Blocks from before the writes and from after them survive a restart.
    l.restart(options()).await;
    assert_eq!(l.cat(&fh, 100_000).await, now);
    assert_eq!((l.disk.stats().misses, l.disk.stats().damaged), (0, 0), "{}", l.wire.take());
    assert_eq!(l.disk.shelf().unwrap().strays(), Vec::<String>::new());
}

/// Under a lease an append drops only the last, incomplete block of the cached file.
#[tokio::test(start_paused = true)]
async fn append_keeps_complete_blocks() {
    let old = pattern(1, 4 * BLOCK + 500);
    let (mut l, fh) = Lab::leased("f", &old).await;
    let more = pattern(2, 3000);
    l.write(&fh, old.len() as u64 + 200, &more).await;
    let now = changed(&old, old.len() + 200, &more);
    assert_eq!(l.cat(&fh, 100_000).await, now);
    assert_eq!(l.disk.stats().fetched_bytes, old.len() as u64 + now.len() as u64 - 4 * BLOCK);
    l.restart(options()).await;
    assert_eq!(l.cat(&fh, 100_000).await, now);
    assert_eq!(l.disk.stats().misses, 0);
}

/// First bytes that arrive with an open do not drop the blocks kept over a local write.
#[tokio::test(start_paused = true)]
async fn first_bytes_keep_other_blocks() {
    let old = pattern(1, 10 * BLOCK);
    let (l, fh) = Lab::leased("f", &old).await;
    let new = pattern(2, 100);
    l.write(&fh, 2 * BLOCK, &new).await;
    let how = OpenHow { first_bytes: 2 * BLOCK as u32, ..READ };
    let o = l.disk.open(&l.cx, PathRef::fh(&fh), &how).await.unwrap();
    l.settle().await;
    l.close(o).await;
    assert_eq!(l.cat(&fh, 100_000).await, changed(&old, 2 * BLOCK as usize, &new));
    assert_eq!((l.disk.stats().kept_over_writes, l.disk.stats().fetched_bytes), (1, 11 * BLOCK));
}

/// Concurrent writes of this client under a lease keep the untouched blocks. Reads return the bytes
/// of the server.
#[tokio::test(start_paused = true)]
async fn concurrent_writes_count_as_local() {
    let old = pattern(1, 20 * BLOCK);
    let mut l = Lab::slow(options(), Duration::from_millis(300)).await;
    l.wire.lease(true);
    let fh = l.file("f", &old).await;
    for round in 0..6 {
        l.cat(&fh, 131_072).await;
        l.settle().await;
        let (a, b, c) =
            (pattern(round + 2, 3 * BLOCK), pattern(round + 40, 50_000), pattern(round + 80, BLOCK));
        tokio::join!(
            l.write(&fh, round * BLOCK, &a),
            l.write(&fh, (round + 2) * BLOCK + 99, &b),
            l.write(&fh, (20 - round) * BLOCK, &c),
            l.cat(&fh, 100_000),
        );
        let now = l.model.read(&l.cx, File { fh: &fh, open: None }, 0, 1 << 22).await.unwrap();
        assert_eq!(l.cat(&fh, 100_000).await, now.data.into_bytes());
    }
    assert!(l.disk.stats().kept_over_writes >= 6, "{:?}", l.disk.stats());
    let now = l.model.read(&l.cx, File { fh: &fh, open: None }, 0, 1 << 22).await.unwrap();
    l.restart(options()).await;
    assert_eq!(l.cat(&fh, 100_000).await, now.data.into_bytes());
    assert_eq!(l.disk.stats().damaged, 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_lease_nothing_is_kept() {
    let old = pattern(1, 4 * BLOCK);
    let (l, fh) = Lab::leased("f", &old).await;
    l.revoke(&fh).await;
    assert_eq!(l.cat(&fh, 100_000).await, old);
    let new = pattern(2, 10);
    l.write(&fh, 0, &new).await;
    // The new lease comes too late.
    l.wire.lease(true);
    assert_eq!(l.cat(&fh, 100_000).await, changed(&old, 0, &new));
    assert_eq!((l.disk.stats().kept_over_writes, l.disk.own.len()), (0, 0));
}

/// After the withdrawal of the lease another client writes. The next read returns its bytes, even
/// under a regained lease.
/// Promise: 11a
#[tokio::test(start_paused = true)]
async fn remote_write_after_local_is_seen() {
    let old = pattern(1, 4 * BLOCK);
    for regained in [false, true] {
        let (mut l, fh) = Lab::leased("f", &old).await;
        let (ours, theirs) = (pattern(2, 10), pattern(3, 50_000));
        l.write(&fh, 0, &ours).await;
        assert_eq!(l.disk.own.len(), 1);
        l.revoke(&fh).await;
        l.foreign(&fh, 2 * BLOCK, &theirs).await;
        l.wire.lease(regained);
        let now = changed(&changed(&old, 0, &ours), 2 * BLOCK as usize, &theirs);
        assert_eq!(l.cat(&fh, 100_000).await, now);
        assert_eq!((l.disk.stats().kept_over_writes, l.disk.own.len()), (0, 0));
        l.restart(options()).await;
        assert_eq!(l.cat(&fh, 100_000).await, now);
        assert_eq!(l.disk.shelf().unwrap().strays(), Vec::<String>::new());
    }
}

/// A reply outside the lease does not prove the blocks kept over a local write.
/// Promise: 11a
#[tokio::test(start_paused = true)]
async fn reply_outside_lease_proves_nothing() {
    let old = pattern(1, 4 * BLOCK);
    let (l, fh) = Lab::leased("f", &old).await;
    let (ours, theirs) = (pattern(2, 10), pattern(3, 50_000));
    l.write(&fh, 0, &ours).await;
    // The client no longer trusts its leases, and does not know yet which are lost.
    l.wire.lease(false);
    l.foreign(&fh, 2 * BLOCK, &theirs).await;
    let now = changed(&changed(&old, 0, &ours), 2 * BLOCK as usize, &theirs);
    assert_eq!(l.cat(&fh, 100_000).await, now);
    assert_eq!((l.disk.stats().kept_over_writes, l.disk.own.len()), (0, 0));
}

/// Under a lease a change of the length, or a copy, keeps no blocks of the file.
/// Promise: 11a
#[tokio::test(start_paused = true)]
async fn truncation_and_copy_keep_nothing() {
    let old = pattern(1, 4 * BLOCK);
    for what in ["cut", "grow", "copy"] {
        let (l, fh) = Lab::leased("f", &old).await;
        l.write(&fh, 0, &pattern(2, 10)).await;
        let how = OpenHow { create: Create::No, ..writing() };
        let o = l.disk.open(&l.cx, PathRef::fh(&fh), &how).await.unwrap();
        let file = File { fh: &fh, open: Some(o.open) };
        let size_bytes = match what {
            "cut" => Some(BLOCK + 5),
            "grow" => Some(9 * BLOCK),
            _ => None,
        };
        let done = match size_bytes {
            Some(_) => {
                let set = SetAttr { size_bytes, ..Default::default() };
                l.disk.setattr(&l.cx, file, &set).await.map(drop)
            }
            None => l.disk.copy(&l.cx, file, 0, file, 2 * BLOCK, BLOCK).await.map(drop),
        };
        l.disk.close(&l.cx, &fh, o.open).await.unwrap();
        assert_eq!(l.disk.own.len(), 0, "{what}: {done:?}");
        let now = l.model.read(&l.cx, File { fh: &fh, open: None }, 0, 1 << 20).await.unwrap();
        assert_eq!(l.cat(&fh, 100_000).await, now.data.into_bytes(), "{what}");
    }
}

/// A shutdown drops the blocks that are withheld after a local write.
#[tokio::test(start_paused = true)]
async fn shutdown_drops_withheld_blocks() {
    let (mut l, fh) = Lab::leased("f", &pattern(1, 4 * BLOCK)).await;
    l.write(&fh, 0, &pattern(2, 10)).await;
    l.disk.shutdown(&l.cx).await.unwrap();
    l.restart(options()).await;
    assert_eq!(l.disk.shelf().unwrap().size().0, 0);
    assert_eq!(l.disk.shelf().unwrap().strays(), Vec::<String>::new());
}

/// A block on its way to the disk does not enter an entry that was dropped meanwhile. The call that
/// dropped the entry has already read the blocks that a write touches.
#[test]
fn dropped_entry_refuses_late_block() {
    for given_up in [false, true] {
        let sim = Sim::new(7);
        let io: Arc<dyn io::Io> = sim.clone();
        let fh = Fh(Bytes::from_static(b"f"));
        let version = format::Version { change: 1, size: 2 * BLOCK };
        let entry = Arc::new(entry::Entry::create(&io, 1, &fh, version).unwrap());
        let data = vec![1; BLOCK as usize];
        if given_up {
            let entry = entry.clone();
            sim.meanwhile(move || entry.kill());
        }
        assert_eq!(entry.put(0, &data).unwrap(), !given_up);
        assert_eq!(entry.block_count(), u64::from(!given_up));
    }
}

/// Withheld data count as used space, and are dropped after a time.
#[tokio::test(start_paused = true)]
async fn unread_withheld_blocks_expire() {
    let old = pattern(1, 10 * BLOCK);
    let (l, fh) = Lab::leased("f", &old).await;
    let before = l.disk.stats().entry_bytes;
    l.write(&fh, 0, &pattern(2, 100)).await;
    let s = l.disk.stats();
    assert_eq!((s.entries, l.disk.own.len()), (0, 1));
    assert!(s.entry_bytes >= old.len() as u64 && s.entry_bytes <= before, "{} of {before}", s.entry_bytes);
    tokio::time::sleep(std::time::Duration::from_secs(62)).await;
    l.settle().await;
    assert_eq!((l.disk.stats().entry_bytes, l.disk.own.len()), (0, 0));
    assert_eq!(l.disk.shelf().unwrap().strays(), Vec::<String>::new());
    // The same with a reader: the data are counted once.
    assert_eq!(l.cat(&fh, 100_000).await.len(), old.len());
    l.settle().await;
    l.write(&fh, 0, &pattern(3, 100)).await;
    assert_eq!(l.cat(&fh, 100_000).await.len(), old.len());
    l.settle().await;
    assert_eq!((l.disk.own.len(), l.disk.stats().entry_bytes), (0, before));
}
