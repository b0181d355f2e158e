//! All acknowledged records survive any power cut, and no others appear.

use super::log::BLOCK_BYTES;
use super::*;
use parking_lot::Mutex;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A disk in memory whose power fails in the middle of a write: some blocks of the write are
/// stored, others are not.
struct Cut {
    blocks: Mutex<Vec<u8>>,
    /// Number of writes until the power fails.
    left: AtomicU64,
    seed: u64,
    /// Delays of header writes.
    delays: Delays,
}

impl Cut {
    fn new(size: usize, left: u64, seed: u64) -> Self {
        let blocks = Mutex::new(vec![0xee; size]);
        Self { blocks, left: AtomicU64::new(left), seed, delays: Delays::none() }
    }

    /// The disk after the power came back.
    fn again(&self) -> Arc<Self> {
        let blocks = Mutex::new(self.blocks.lock().clone());
        Arc::new(Self { blocks, left: AtomicU64::new(u64::MAX), seed: 0, delays: Delays::none() })
    }
}

/// Delays of checkpoints. Meanwhile batches end and the ring fills, as on a busy machine.
struct Delays {
    /// Longest delay, in microseconds.
    most: u64,
    seed: u64,
    count: AtomicU64,
}

impl Delays {
    fn none() -> Self {
        Self { most: 0, seed: 0, count: AtomicU64::new(0) }
    }

    /// Delays in two of three worlds.
    fn of(seed: u64, most: u64) -> Self {
        Self { most: if seed.is_multiple_of(3) { 0 } else { most }, seed, ..Self::none() }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a thread of the journal's own is held up, as by a slow disk"
    )]
    fn wait(&self) {
        if self.most > 0 {
            let n = mix(self.seed ^ (self.count.fetch_add(1, Ordering::SeqCst) << 32));
            std::thread::sleep(std::time::Duration::from_micros(n % self.most));
        }
    }
}

fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

impl Device for Cut {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        let blocks = self.blocks.lock();
        let from = blocks.get(at as usize..at as usize + buf.len());
        buf.copy_from_slice(from.ok_or_else(|| io::Error::from(ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn write_at(&self, data: &[u8], at: u64) -> io::Result<()> {
        assert!(at.is_multiple_of(BLOCK_BYTES as u64) && data.len().is_multiple_of(BLOCK_BYTES));
        if at < 2 * BLOCK_BYTES as u64 {
            self.delays.wait();
        }
        let mut blocks = self.blocks.lock();
        if at as usize + data.len() > blocks.len() {
            return Err(io::Error::other("behind the end"));
        }
        let left = self.left.load(Ordering::SeqCst);
        if left == 0 {
            return Err(io::Error::other("no power"));
        }
        self.left.store(left - 1, Ordering::SeqCst);
        for (i, block) in data.chunks(BLOCK_BYTES).enumerate() {
            // The last write is torn, block by block.
            if left > 1 || mix(self.seed ^ i as u64).is_multiple_of(2) {
                let to = at as usize + i * BLOCK_BYTES;
                blocks[to..to + BLOCK_BYTES].copy_from_slice(block);
            }
        }
        if left == 1 { Err(io::Error::other("the power fails")) } else { Ok(()) }
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.blocks.lock().len() as u64)
    }
}

/// A disk whose batches or headers wait, or whose headers fail.
struct BlockingDisk {
    disk: Cut,
    is_held: AtomicBool,
    /// Number of batch writes that began.
    begun: AtomicU64,
    heads_fail: AtomicBool,
    heads_held: AtomicBool,
    /// Number of header writes that began.
    heads_begun: AtomicU64,
}

impl BlockingDisk {
    fn new() -> Arc<Self> {
        let disk = Cut::new(1 << 20, u64::MAX, 0);
        let (is_held, heads_fail, heads_held) = Default::default();
        let (begun, heads_begun) = Default::default();
        Arc::new(Self { disk, is_held, begun, heads_fail, heads_held, heads_begun })
    }
}

impl Device for BlockingDisk {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.disk.read_at(buf, at)
    }

    fn write_at(&self, data: &[u8], at: u64) -> io::Result<()> {
        if at < 2 * BLOCK_BYTES as u64 {
            if self.heads_fail.load(Ordering::SeqCst) {
                return Err(io::Error::other("a bad block"));
            }
            self.heads_begun.fetch_add(1, Ordering::SeqCst);
            while self.heads_held.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        } else {
            self.begun.fetch_add(1, Ordering::SeqCst);
            while self.is_held.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        self.disk.write_at(data, at)
    }

    fn size(&self) -> io::Result<u64> {
        self.disk.size()
    }
}

/// Numbers of the records that a start would apply.
fn left_on(disk: &Cut) -> Vec<u64> {
    let mut left = Vec::new();
    let found = Found::open(disk.again(), Some(OWNER)).unwrap();
    found
        .read(|seq, _| {
            left.push(seq);
            Ok(())
        })
        .unwrap();
    left
}

/// A checkpoint may settle a record that is still being written. A replay never applies a settled
/// record.
/// Promise: S8
#[tokio::test]
async fn settled_records_are_not_replayed() {
    let device = BlockingDisk::new();
    let log = Found::format(device.clone(), OWNER, 1)
        .unwrap()
        .start(|_, _| Ok(()), Arc::new(|goal: Goal| Ok(goal.upto)))
        .unwrap();
    device.is_held.store(true, Ordering::SeqCst);
    let first = log.append(&[b"one"]);
    while device.begun.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    // The first record is being written, the second waits. Both were applied, so the checkpoint
    // settles them.
    let second = log.append(&[b"two"]);
    log.checkpoint().unwrap();
    let settled = log.settled().load(Ordering::SeqCst);
    device.is_held.store(false, Ordering::SeqCst);
    assert!(log.durable(second).await);
    let third = log.append(&[b"three"]);
    assert!(log.durable(third).await);
    let left = left_on(&device.disk);
    assert_eq!(settled, second);
    assert_eq!(
        left,
        [third],
        "{first} and {second} would be applied over what came after they counted as settled"
    );
    // Record numbers continue after all of them.
    drop(log);
    let mut seen = Vec::new();
    let again = Found::open(device.disk.again(), Some(OWNER)).unwrap();
    let each = |seq: u64, _: &[u8]| {
        seen.push(seq);
        Ok(())
    };
    let log = again.start(each, Arc::new(|goal: Goal| Ok(goal.upto))).unwrap();
    assert_eq!(log.append(&[b"four"]), third + 1);
    assert_eq!(seen, [third]);
}

/// Appends never overwrite the beginning of the journal that the durable header names.
/// Promise: S8
#[test]
fn journal_beginning_is_not_overwritten() {
    let device = BlockingDisk::new();
    let fails = Arc::new(AtomicBool::new(false));
    let settle: Arc<Settle> = {
        let fails = fails.clone();
        Arc::new(move |goal| {
            let broken = || io::Error::other("the disk below fails");
            if fails.load(Ordering::SeqCst) { Err(broken()) } else { Ok(goal.upto) }
        })
    };
    let log = Found::format(device.clone(), OWNER, 1).unwrap().start(|_, _| Ok(()), settle).unwrap();
    let heads = device.heads_begun.load(Ordering::SeqCst);
    device.is_held.store(true, Ordering::SeqCst);
    device.heads_held.store(true, Ordering::SeqCst);
    // A batch of more than one block: the ring is never filled to its last block.
    let first = log.append(&[&[7; 3 * BLOCK_BYTES]]);
    while device.begun.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    // The checkpoint settles the batch while it is being written, and names it as the beginning of
    // the journal. The batch is durable before that header is.
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| log.checkpoint());
        while device.heads_begun.load(Ordering::SeqCst) == heads {
            std::thread::yield_now();
        }
        device.is_held.store(false, Ordering::SeqCst);
        assert!(log.wait_durable(first));
        device.heads_held.store(false, Ordering::SeqCst);
        checkpoint.join().unwrap().unwrap();
    });
    // No other checkpoint succeeds, so the ring fills up.
    fails.store(true, Ordering::SeqCst);
    let acked = (first + 1..).take_while(|_| log.wait_durable(log.append(&[b"more"]))).last().unwrap();
    drop(log);
    assert_eq!(left_on(&device.disk), (first + 1..=acked).collect::<Vec<_>>());
}

/// A batch appended while the full journal waits for a checkpoint gets room of its own. All
/// acknowledged records are found again.
/// Promise: S8
#[test]
fn full_journal_keeps_appended_records() {
    let device = Arc::new(Cut::new(1 << 20, u64::MAX, 0));
    let (calls, is_held) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(true)));
    // The first checkpoint waits, and the second one fails.
    let settle: Arc<Settle> = {
        let (calls, is_held) = (calls.clone(), is_held.clone());
        Arc::new(move |goal| {
            if calls.fetch_add(1, Ordering::SeqCst) > 0 {
                return Err(io::Error::other("the disk below fails"));
            }
            while is_held.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            Ok(goal.upto)
        })
    };
    let log = Found::format(device.clone(), OWNER, 1).unwrap().start(|_, _| Ok(()), settle).unwrap();
    // Appends batches of one block, until another one would fill the ring.
    let is_full = || log.used().0 + BLOCK_BYTES as u64 >= log.used().1;
    while !is_full() {
        assert!(log.wait_durable(log.append(&[b"one block"])));
        while log.used().0 > log.used().1 / 2 && calls.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
    }
    log.append(&[b"a block that there is not"]);
    while !log.waits_for_room() {
        std::thread::yield_now();
    }
    log.append(&[&[7; 3 * BLOCK_BYTES]]);
    is_held.store(false, Ordering::SeqCst);
    let acked = log.append(&[b"and what comes after it"]);
    assert!(log.wait_durable(acked));
    let acked = log.append(&[b"and after that"]);
    assert!(log.wait_durable(acked));
    let settled = log.settled().load(Ordering::SeqCst);
    drop(log);
    assert!(settled > 0);
    assert_eq!(left_on(&device), (settled + 1..=acked).collect::<Vec<_>>());
}

/// A failed write of the header fails the journal, because no room would be freed. Earlier records
/// stay.
/// Promise: S9
#[tokio::test]
async fn failed_header_write_fails_journal() {
    let device = BlockingDisk::new();
    let log = Found::format(device.clone(), OWNER, 1)
        .unwrap()
        .start(|_, _| Ok(()), Arc::new(|goal: Goal| Ok(goal.upto)))
        .unwrap();
    let seq = log.append(&[b"one"]);
    assert!(log.durable(seq).await);
    device.heads_fail.store(true, Ordering::SeqCst);
    assert!(log.checkpoint().is_err());
    assert!(log.failed(), "there would be no room, and nobody told of it");
    assert!(!log.wait_durable(log.append(&[b"two"])));
    drop(log);
    assert_eq!(left_on(&device.disk), [seq]);
}

const OWNER: Owner = Owner { host: [1; 16], fs: [2; 16] };

/// The bytes of record `seq` in a world.
fn record(seed: u64, seq: u64) -> Vec<u8> {
    let len = match mix(seed.wrapping_add(seq)) % 8 {
        0 => mix(seq) % 60_000,
        1..3 => mix(seq) % 9_000,
        _ => mix(seq) % 200,
    };
    (0..len).map(|i| mix(seq ^ seed.rotate_left(7)).wrapping_add(i) as u8).collect()
}

/// Runs a world until the power fails or it ends, and checks the records that are left. Returns the
/// number of records that were read back, and whether the journal failed.
async fn world(seed: u64, cut_after: u64) -> (u64, bool) {
    let what = format!("seed {seed}, cut {cut_after}");
    let delays = Delays::of(seed, 1_000);
    let device = Arc::new(Cut { delays, ..Cut::new(1 << 20, u64::MAX, seed) });
    let found = Found::format(device.clone(), OWNER, seed).unwrap();
    device.left.store(cut_after, Ordering::SeqCst);
    let (applied, settled) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let settle: Arc<Settle> = {
        let (applied, settled) = (applied.clone(), settled.clone());
        let delays = Delays::of(seed, 20_000);
        let dice = AtomicU64::new(seed);
        Arc::new(move |goal| {
            // Changes applied during a checkpoint are not settled by it. Some checkpoints settle
            // only a part.
            let so_far = applied.load(Ordering::SeqCst).min(goal.upto);
            let before = settled.load(Ordering::SeqCst);
            delays.wait();
            let dice = mix(dice.fetch_add(1, Ordering::SeqCst));
            let part = before.max(goal.due.min(before + dice % (so_far - before + 1)));
            let now = if dice.is_multiple_of(2) { part } else { so_far };
            settled.store(now, Ordering::SeqCst);
            Ok(now)
        })
    };
    let log = found.start(|_, _| panic!("it is empty"), settle).unwrap();
    let mut acked = 0;
    for seq in 1..=400 {
        applied.store(seq, Ordering::SeqCst);
        assert_eq!(log.append(&[&record(seed, seq)]), seq);
        if mix(seed ^ (seq << 20)).is_multiple_of(3) {
            if !log.durable(seq).await {
                break;
            }
            acked = seq;
        }
    }
    let failed = log.failed();
    drop(log);
    let again = Found::open(device.again(), Some(OWNER)).unwrap();
    assert_eq!(again.check().unwrap(), None, "a torn journal counts as damaged ({what})");
    let settle: Arc<Settle> = Arc::new(|goal| Ok(goal.upto));
    let (mut next, mut count) = (None, 0);
    let check = |seq: u64, bytes: &[u8]| {
        assert_eq!(*next.get_or_insert(seq), seq, "the order of records ({what})");
        assert_eq!(bytes, record(seed, seq), "record {seq} ({what})");
        next = Some(seq + 1);
        count += 1;
        Ok(())
    };
    let log = again.start(check, settle).unwrap();
    let settled = settled.load(Ordering::SeqCst);
    let end = next.unwrap_or(settled + 1);
    assert!(end > acked, "{acked} was acknowledged, {end} would be the next ({what})");
    assert!(
        next.is_none_or(|next| next - count <= settled + 1),
        "records were lost before they were settled ({what})"
    );
    // The journal continues at its end.
    let seq = log.append(&[b"more"]);
    assert!(seq >= end.min(seq));
    assert!(log.durable(seq).await);
    (count, failed)
}

async fn worlds(seeds: std::ops::Range<u64>) -> (u64, u64) {
    let (mut records, mut cuts) = (0, 0);
    for seed in seeds {
        for cut in 1..=30 {
            let (count, failed) = world(seed * 1000 + cut, cut * (1 + seed % 5)).await;
            records += count;
            cuts += u64::from(failed);
        }
    }
    (records, cuts)
}

/// A power cut at any moment loses no acknowledged record.
/// Promise: S8
#[tokio::test]
async fn power_cut_keeps_acknowledged_records() {
    let (records, cuts) = worlds(0..5).await;
    assert!(cuts > 100 && records > 1_000, "{cuts} cuts, {records} records: not much of a test");
}

/// More than 1,000 power cuts lose no acknowledged record.
#[tokio::test]
#[ignore = "minutes"]
async fn thousand_power_cuts_keep_records() {
    let (records, cuts) = worlds(5..45).await;
    assert!(cuts > 1_000 && records > 10_000, "{cuts} cuts, {records} records: not much of a test");
}

/// The journal of another machine, file system or version of hither is refused and not changed.
#[tokio::test]
async fn a_foreign_journal_is_not_touched() {
    let device = Arc::new(Cut::new(1 << 20, u64::MAX, 0));
    assert!(matches!(Found::open(device.clone(), Some(OWNER)), Err(OpenError::None)));
    Found::format(device.clone(), OWNER, 1).unwrap();
    let before = device.blocks.lock().clone();
    for other in [Owner { host: [9; 16], ..OWNER }, Owner { fs: [9; 16], ..OWNER }] {
        assert!(matches!(Found::open(device.clone(), Some(other)), Err(OpenError::Foreign)));
    }
    assert!(*device.blocks.lock() == before);
    let mut block = [0; BLOCK_BYTES];
    device.read_at(&mut block, 0).unwrap();
    block[..8].copy_from_slice(b"hithjrn2");
    device.write_at(&block, 0).unwrap();
    assert!(matches!(Found::open(device.clone(), Some(OWNER)), Err(OpenError::Version)));
    assert!(Found::format(Arc::new(Cut::new(4096, 9, 0)), OWNER, 1).is_err());
}

/// A failed checkpoint keeps all records. When the journal is then full, it reports a failure.
#[tokio::test]
async fn failed_checkpoint_keeps_records() {
    let device = Arc::new(Cut::new(1 << 20, u64::MAX, 0));
    let settle: Arc<Settle> = Arc::new(|_| Err(io::Error::other("the disk below fails")));
    let log = Found::format(device.clone(), OWNER, 7).unwrap().start(|_, _| Ok(()), settle).unwrap();
    let mut acked = 0;
    for seq in 1..10_000 {
        log.append(&[&record(7, seq)]);
        if !log.durable(seq).await {
            break;
        }
        acked = seq;
    }
    assert!(log.failed() && acked > 10, "{acked}");
    let (used, all) = log.used();
    assert!(used > all / 2 && log.close(true).is_err());
    drop(log);
    let mut seen = 0;
    let again = Found::open(device.again(), Some(OWNER)).unwrap();
    let count = |_: u64, _: &[u8]| {
        seen += 1;
        Ok(())
    };
    drop(again.start(count, Arc::new(|goal: Goal| Ok(goal.upto))).unwrap());
    assert!(seen >= acked, "{seen} of {acked}");
}

/// After an orderly close no record is replayed. The numbers of records continue.
#[tokio::test]
async fn orderly_close_leaves_no_records() {
    let device = Arc::new(Cut::new(1 << 20, u64::MAX, 0));
    let log = Found::format(device.clone(), OWNER, 7)
        .unwrap()
        .start(|_, _| Ok(()), Arc::new(|goal: Goal| Ok(goal.upto)))
        .unwrap();
    for seq in 1..50 {
        log.append(&[&record(7, seq)]);
    }
    log.close(true).unwrap();
    drop(log);
    let again = Found::open(device.again(), Some(OWNER)).unwrap();
    let log = again.start(|seq, _| panic!("{seq} again"), Arc::new(|goal: Goal| Ok(goal.upto))).unwrap();
    assert_eq!(log.append(&[b"x"]), 50, "numbers go on");
}

/// A journal in a real file keeps all records that concurrent callers append.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_file_keeps_concurrent_appends() {
    let dir = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tests"));
    std::fs::create_dir_all(dir).unwrap();
    let path = dir.join(format!("journal-{}", std::process::id()));
    let open = || Arc::new(RealDevice::open(&path, Some(4 << 20)).unwrap());
    let settle: Arc<Settle> = Arc::new(|goal| Ok(goal.upto));
    let log = Found::format(open(), OWNER, 3).unwrap().start(|_, _| Ok(()), settle.clone()).unwrap();
    let log = Arc::new(log);
    let callers: Vec<_> = (0..8_u8)
        .map(|who| {
            let log = log.clone();
            tokio::spawn(async move {
                for i in 0..40_u8 {
                    let seq = log.append(&[&[who], &[i]]);
                    assert!(log.durable(seq).await);
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    drop(log);
    let mut seen = std::collections::BTreeSet::new();
    let each = |_: u64, bytes: &[u8]| {
        seen.insert(bytes.to_vec());
        Ok(())
    };
    drop(Found::open(open(), Some(OWNER)).unwrap().start(each, settle).unwrap());
    std::fs::remove_file(&path).unwrap();
    assert_eq!(seen.len(), 320);
}

/// The records on a disk with byte `at` changed by `flip`; `None` when the journal is refused.
fn records_with_flip(disk: &Cut, at: usize, flip: u8) -> Option<Vec<(u64, Vec<u8>)>> {
    disk.blocks.lock()[at] ^= flip;
    let before = disk.blocks.lock().clone();
    let mut records = Vec::new();
    let mut read = || {
        let found = Found::open(disk.again(), Some(OWNER)).ok()?;
        let is_whole = found.check().is_ok_and(|damage| damage.is_none());
        let each = |seq: u64, bytes: &[u8]| {
            records.push((seq, bytes.to_vec()));
            Ok(())
        };
        (is_whole && found.read(each).is_ok()).then_some(())
    };
    let found = read().map(|()| records);
    assert!(*disk.blocks.lock() == before, "a refused journal is not changed");
    disk.blocks.lock()[at] ^= flip;
    found
}

/// Records with their numbers.
type Records = Vec<(u64, Vec<u8>)>;

/// The records that a survey finds on a disk with byte `at` changed by `flip`, and whether it
/// reports damage; `None` when the disk holds no journal.
fn survey_with_flip(disk: &Cut, at: usize, flip: u8) -> Option<(Records, bool)> {
    disk.blocks.lock()[at] ^= flip;
    let before = disk.blocks.lock().clone();
    let mut records = Vec::new();
    let found = Found::open(disk.again(), None).ok().map(|found| {
        let survey = found.survey(|seq, bytes| {
            records.push((seq, bytes.to_vec()));
            Ok(())
        });
        !survey.unwrap().damage.is_empty()
    });
    assert!(*disk.blocks.lock() == before, "a survey changes nothing");
    disk.blocks.lock()[at] ^= flip;
    found.map(|is_damaged| (records, is_damaged))
}

/// A changed byte anywhere in a journal loses no acknowledged record in silence, except in the last
/// batch, which then looks torn. Bytes outside of batches and headers change nothing.
/// Promise: S8
#[test]
fn flipped_byte_loses_nothing_silently() {
    let disk = Arc::new(Cut::new(1 << 20, u64::MAX, 0));
    let log = Found::format(disk.clone(), OWNER, 5).unwrap();
    let log = log.start(|_, _| Ok(()), Arc::new(|goal: Goal| Ok(goal.upto))).unwrap();
    let contents = |seq: u64| vec![seq as u8; if seq.is_multiple_of(3) { 9_000 } else { 40 }];
    // The ring wraps around: batches of an earlier turn remain in it.
    let mut seq = 0;
    while seq < 140 {
        seq += 1;
        assert_eq!(log.append(&[&contents(seq)]), seq);
        assert!(log.wait_durable(seq));
        if seq % 40 == 0 {
            log.checkpoint().unwrap();
        }
    }
    let last = log.append(&[b"last"]);
    assert!(log.wait_durable(last));
    let end = log.used().0;
    drop(log);
    let sound = records_with_flip(&disk, 0, 0).unwrap();
    assert!(sound.len() >= 20 && end > 0, "{} records: not much of a test", sound.len());
    let (mut refused, mut without_last) = (0, 0);
    let size = disk.blocks.lock().len();
    // Each byte of the fields, and some of the contents and the padding.
    let blocks = (0..size).step_by(BLOCK_BYTES);
    let places =
        blocks.flat_map(|block| (0..48).step_by(3).chain([51, 96, 103, 600, 4095]).map(move |n| block + n));
    for at in places {
        let flip = 1 << (mix(at as u64) % 8);
        // A survey finds only records that were written. It reports each loss but the last batch.
        if let Some((records, is_damaged)) = survey_with_flip(&disk, at, flip) {
            let written = |(seq, bytes): &(u64, Vec<u8>)| *seq == last || bytes[..] == contents(*seq);
            assert!(records.iter().all(written), "byte {at}");
            let whole = records == sound || records == sound[..sound.len() - 1];
            assert!(whole || is_damaged, "byte {at} lost records without a report");
        }
        match records_with_flip(&disk, at, flip) {
            None => refused += 1,
            Some(records) if records == sound => {}
            Some(records) => {
                assert!(records == sound[..sound.len() - 1], "byte {at} lost acknowledged records");
                without_last += 1;
            }
        }
    }
    assert!(refused > 500, "{refused}");
    assert!((1..=21).contains(&without_last), "{without_last}");
}

/// Checkpoints take turns: an older one must not move the tail back over freed space.
#[test]
fn checkpoints_take_turns() {
    let (inside, overlaps) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (within, seen) = (inside.clone(), overlaps.clone());
    let settle = move |goal: Goal| {
        seen.fetch_add(within.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
        // Long enough for the other thread to enter.
        (0..1000).for_each(|_| std::thread::yield_now());
        within.fetch_sub(1, Ordering::SeqCst);
        Ok(goal.upto)
    };
    let disk = Arc::new(Cut::new(1 << 20, u64::MAX, 0));
    let log = Found::format(disk, OWNER, 5).unwrap().start(|_, _| Ok(()), Arc::new(settle)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..50).for_each(|_| log.checkpoint().unwrap()));
        }
    });
    assert_eq!(overlaps.load(Ordering::SeqCst), 0);
}
