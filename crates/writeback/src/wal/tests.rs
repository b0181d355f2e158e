//! Tests of the journal of delayed writes: a crash at any byte, damage, and release of disk space.
//! The disk is simulated.

use super::log::Log;
use super::record::{Base, Event, Record, Write};
use super::scan::{Left, scan};
use super::storage::{Segment, SegmentStore};
use bytes::Bytes;
use hither_vfs::{Cred, Data, Fh, Time};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A directory in memory. It can be full and knows the synced length of each segment.
#[derive(Clone, Default)]
pub(crate) struct Memory {
    segments: Arc<Mutex<BTreeMap<u64, Arc<InMemory>>>>,
    pub full: Arc<AtomicBool>,
    /// The mark of a failed journal.
    pub failed: Arc<AtomicBool>,
    /// While set, appends wait.
    pub stalled: Arc<AtomicBool>,
}

#[derive(Default)]
pub(crate) struct InMemory {
    stalled: Arc<AtomicBool>,
    bytes: Mutex<Vec<u8>>,
    synced: AtomicU64,
    full: Arc<AtomicBool>,
}

impl Memory {
    pub fn copy(&self) -> BTreeMap<u64, Vec<u8>> {
        self.killed().0
    }

    /// The segments after a kill and the mark of a failure, both of one moment.
    pub fn killed(&self) -> (BTreeMap<u64, Vec<u8>>, bool) {
        let segments = self.segments.lock();
        let copy = segments.iter().map(|(n, s)| (*n, s.bytes.lock().clone())).collect();
        (copy, self.failed.load(Ordering::Relaxed))
    }

    /// The part of the segments that a power cut leaves for certain.
    pub fn synced(&self) -> BTreeMap<u64, Vec<u8>> {
        let upto = |s: &InMemory| s.bytes.lock()[..s.synced.load(Ordering::Relaxed) as usize].to_vec();
        self.segments.lock().iter().map(|(n, s)| (*n, upto(s))).collect()
    }

    fn check(full: &AtomicBool) -> io::Result<()> {
        if full.load(Ordering::Relaxed) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl SegmentStore for Memory {
    fn create(&self, number: u64) -> io::Result<Arc<dyn Segment>> {
        Self::check(&self.full)?;
        let segment = Arc::new(InMemory {
            full: self.full.clone(),
            stalled: self.stalled.clone(),
            ..InMemory::default()
        });
        assert!(self.segments.lock().insert(number, segment.clone()).is_none());
        Ok(segment)
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        self.segments.lock().remove(&number);
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_failed(&self, failed: bool) -> io::Result<()> {
        let _segments = self.segments.lock();
        self.failed.store(failed, Ordering::Relaxed);
        Ok(())
    }
}

impl Segment for InMemory {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        while self.stalled.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        Memory::check(&self.full)?;
        self.bytes.lock().extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Memory::check(&self.full)?;
        self.synced.store(self.bytes.lock().len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

fn fh(n: u8) -> Fh {
    Fh(Bytes::copy_from_slice(&[n; 9]))
}

fn base(n: u64) -> Base {
    Base { change: n, size_bytes: n, mtime: Time { secs: n as i64, nanos: 7 } }
}

fn data(file: u8, offset_bytes: u64, bytes: &[u8]) -> Record {
    let cred = Arc::new(Cred { uid: 5, gid: 6, groups: [7, 8].into_iter().collect() });
    let path = b"some/where".to_vec();
    let write = Write { fileid: 77, path, cred, offset_bytes, base: Some(base(3)), wall_s: 1000 };
    Record { fh: fh(file), event: Event::Data(write), data: Data::from(Bytes::copy_from_slice(bytes)) }
}

/// The content of a journal.
pub(crate) fn left_of(copy: &BTreeMap<u64, Vec<u8>>) -> Left {
    let numbers: Vec<u64> = copy.keys().copied().collect();
    scan(&numbers, |n| Ok(copy[&n].clone())).unwrap()
}

/// The bytes of a journal, by file, in the order of writing.
fn held(copy: &BTreeMap<u64, Vec<u8>>, left: &Left) -> BTreeMap<Fh, Vec<(u64, Vec<u8>)>> {
    let bytes = |p: &super::scan::Piece| copy[&p.segment][p.at as usize..][..p.len_bytes as usize].to_vec();
    let all = |f: &super::FileLeft| f.pieces.iter().map(|p| (p.start_bytes, bytes(p))).collect();
    left.files.iter().map(|(fh, file)| (fh.clone(), all(file))).collect()
}

/// Waits, in real time, for a thread of the journal.
async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("timed out: {what}");
}

/// Twenty records of two files in several segments. Only the first half is synced.
async fn journal() -> (Memory, Vec<(u8, u64, Vec<u8>)>) {
    // An attempt that takes a second is repeated, because the journal syncs after a second.
    for _ in 0..100 {
        let memory = Memory::default();
        let log = Log::start_with(Box::new(memory.clone()), 42, 0, &[], 900).unwrap();
        let (mut written, mut half) = (Vec::new(), 0);
        for n in 0..20_u64 {
            let (file, bytes) = ((n % 2) as u8, vec![n as u8 + 1; 1 + (n * 13 % 70) as usize]);
            let ticket = log.append(data(file, n * 100, &bytes));
            written.push((file, n * 100, bytes));
            match n {
                10 => {
                    log.durable(ticket.seq).await.unwrap();
                    half = ticket.seq;
                }
                _ => log.written(ticket.seq).await.unwrap(),
            }
        }
        let is_half = log.durable_upto() == half;
        // A kill closes nothing.
        std::mem::forget(log);
        if is_half {
            return (memory, written);
        }
    }
    panic!("every attempt was synced early");
}

fn expect(written: &[(u8, u64, Vec<u8>)]) -> BTreeMap<Fh, Vec<(u64, Vec<u8>)>> {
    let mut all: BTreeMap<Fh, Vec<_>> = BTreeMap::new();
    for (file, at, bytes) in written {
        all.entry(fh(*file)).or_default().push((*at, bytes.clone()));
    }
    all
}

/// A journal that is cut at any byte still has its first records, whole. The scan never fails and
/// never returns a byte that was not written.
/// Promise: 6c
#[tokio::test]
async fn torn_journal_keeps_first_records() {
    let (memory, written) = journal().await;
    let whole = memory.copy();
    assert!(whole.len() > 3, "several segments: {}", whole.len());
    assert_eq!(held(&whole, &left_of(&whole)), expect(&written));
    let mut counts = std::collections::BTreeSet::new();
    for (&segment, bytes) in &whole {
        for cut in 0..bytes.len() {
            let mut copy: BTreeMap<_, _> = whole.range(..segment).map(|(n, b)| (*n, b.clone())).collect();
            copy.insert(segment, bytes[..cut].to_vec());
            let left = left_of(&copy);
            assert_eq!(left.damage, None, "segment {segment}, byte {cut}");
            let count = left.files.values().map(|f| f.pieces.len()).sum::<usize>();
            assert_eq!(held(&copy, &left), expect(&written[..count]), "segment {segment}, byte {cut}");
            assert_eq!(left.last_seq, count as u64);
            counts.insert(count);
        }
    }
    assert_eq!(counts.len(), 21, "each number of records was left by some cut: {counts:?}");
}

/// A changed byte on the disk affects no other record. Damage of durable records is reported, and
/// all returned bytes were written.
/// Promise: 6d
#[tokio::test]
async fn a_flipped_byte_is_noticed() {
    let (memory, written) = journal().await;
    let whole = memory.copy();
    let all = expect(&written);
    let (mut damaged, mut torn) = (0, 0);
    for (&segment, bytes) in &whole {
        for at in 0..bytes.len() {
            let mut copy = whole.clone();
            copy.get_mut(&segment).unwrap()[at] ^= 0x40;
            let numbers: Vec<u64> = copy.keys().copied().collect();
            // A head of another version is an error.
            let Ok(left) = scan(&numbers, |n| Ok(copy[&n].clone())) else { continue };
            for (fh, pieces) in held(&copy, &left) {
                pieces
                    .iter()
                    .for_each(|piece| assert!(all[&fh].contains(piece), "segment {segment}, byte {at}"));
            }
            let count = left.files.values().map(|f| f.pieces.len()).sum::<usize>();
            match left.damage {
                Some(_) => damaged += 1,
                None => {
                    // A change in the padding has no effect. Any other change leaves the first
                    // records.
                    assert_eq!(held(&copy, &left), expect(&written[..count]));
                    assert!(
                        count >= 11,
                        "durable records are not lost without a report: {count}, segment {segment}, byte {at}"
                    );
                    torn += usize::from(count < 20);
                }
            }
        }
    }
    assert!(damaged > 100 && torn > 100, "{damaged} {torn}");
}

/// Written bytes that imitate a record are not read as a record, even after damage.
/// Promise: 6d
#[tokio::test]
async fn forged_record_in_data_is_ignored() {
    let forged = data(9, 0, b"forged").encode(2, 100, 0);
    let memory = Memory::default();
    let log = Log::start(Box::new(memory.clone()), 42, 0, &[]).unwrap();
    let mut bytes = vec![0; 64];
    (0..8).for_each(|shift| {
        bytes.extend_from_slice(&vec![0; shift]);
        bytes.extend_from_slice(&forged);
    });
    log.append(data(1, 0, &bytes));
    let last = log.append(data(1, 0, b"last"));
    log.durable(last.seq).await.unwrap();
    std::mem::forget(log);
    let mut copy = memory.copy();
    copy.get_mut(&1).unwrap()[60] ^= 1;
    let left = left_of(&copy);
    assert!(!left.files.contains_key(&fh(9)), "{left:?}");
}

/// Retired, truncated and replaced bytes are not left.
#[tokio::test]
async fn scan_skips_retired_and_void_bytes() {
    let memory = Memory::default();
    let log = Log::start(Box::new(memory.clone()), 42, 0, &[]).unwrap();
    let first = log.append(data(1, 0, &[1; 100]));
    log.append(data(2, 0, &[2; 100]));
    log.append(data(1, 50, &[3; 100]));
    log.append(Record::of(&fh(1), Event::Retire(first.seq)));
    log.append(Record::of(&fh(2), Event::Void { start_bytes: 30, end_bytes: 60 }));
    log.append(Record::of(&fh(3), Event::Touched));
    let end = log.append(data(2, 40, &[4; 5]));
    log.written(end.seq).await.unwrap();
    std::mem::forget(log);
    let copy = memory.copy();
    let left = left_of(&copy);
    let held = held(&copy, &left);
    assert_eq!(held[&fh(1)], [(50, vec![3; 100])]);
    assert_eq!(held[&fh(2)], [(0, vec![2; 30]), (60, vec![2; 40]), (40, vec![4; 5])]);
    assert_eq!(held.len(), 2);
    let image = left.files[&fh(2)].image();
    let ranges: Vec<_> = image.iter().map(|(s, e, p)| (*s, *e, p.seq)).collect();
    assert_eq!(ranges, [(0, 30, 2), (40, 45, end.seq), (60, 100, 2)]);
}

/// Segments without live records are removed from the oldest on. After a failure, a journal without
/// live records restarts.
/// Promise: 6f
#[tokio::test]
async fn segments_are_removed_in_order() {
    let memory = Memory::default();
    let log = Log::start_with(Box::new(memory.clone()), 42, 0, &[], 500).unwrap();
    let tickets: Vec<_> = (0..10).map(|n| log.append(data(1, n * 200, &[1; 200]))).collect();
    log.durable(tickets[9].seq).await.unwrap();
    let segments = memory.copy().len();
    assert!(segments >= 5);
    tickets[1..].iter().for_each(|t| log.dead(t.segment, 1));
    assert_eq!(memory.copy().len(), segments, "the first record lives");
    log.dead(tickets[0].segment, 1);
    until("one segment is left", || memory.copy().len() == 1).await;
    memory.full.store(true, Ordering::Relaxed);
    let lost = log.append(data(1, 0, b"lost"));
    assert!(log.written(lost.seq).await.is_err() && !log.works() && log.trouble().is_some());
    assert!(!log.restart(), "a record lives");
    log.dead(lost.segment, 1);
    memory.full.store(false, Ordering::Relaxed);
    assert!(log.restart() && log.works());
    assert!(log.durable(lost.seq).await.is_err(), "the lost record stays lost");
    let again = log.append(data(1, 0, b"again"));
    log.durable(again.seq).await.unwrap();
    log.dead(again.segment, 1);
    log.close();
    assert!(memory.copy().is_empty(), "without live records no segment stays");
}

/// A replaced record stays until its successor is durable. A power cut before that would lose both.
/// Promise: 6c
#[tokio::test]
async fn replaced_record_waits_for_successor() {
    let memory = Memory::default();
    let log = Log::start_with(Box::new(memory.clone()), 42, 0, &[], 500).unwrap();
    let old = log.append(data(1, 0, &[1; 400]));
    log.durable(old.seq).await.unwrap();
    memory.stalled.store(true, Ordering::Relaxed);
    let new = log.append(data(1, 0, &[2; 400]));
    assert_ne!(old.segment, new.segment);
    log.dead(old.segment, 1);
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(memory.copy().contains_key(&old.segment), "the only bytes that would survive a power cut");
    memory.stalled.store(false, Ordering::Relaxed);
    until("the old segment is gone", || !memory.copy().contains_key(&old.segment)).await;
    let left: Vec<u64> = memory.copy().into_keys().collect();
    assert_eq!(left, [new.segment]);
}

/// A caller that waits for the disk is always woken, at any order of the two threads.
#[tokio::test]
async fn durability_waiters_are_always_woken() {
    let log = Log::start(Box::new(Memory::default()), 42, 0, &[]).unwrap();
    for n in 0..20_000 {
        let ticket = log.append(data(1, 0, b"x"));
        let durable = tokio::time::timeout(std::time::Duration::from_secs(60), log.durable(ticket.seq));
        durable.await.unwrap_or_else(|_| panic!("record {n} is never durable")).unwrap();
    }
}

/// A failed journal restarts only after the old records were removed. The next mount would replay
/// them. The mark of the failure precedes its report.
/// Promise: 6f
#[tokio::test]
async fn failed_journal_is_emptied_before_restart() {
    let memory = Memory::default();
    let log = Log::start(Box::new(memory.clone()), 42, 0, &[]).unwrap();
    let old = log.append(data(1, 0, b"old"));
    log.durable(old.seq).await.unwrap();
    memory.full.store(true, Ordering::Relaxed);
    let lost = log.append(data(1, 0, b"lost"));
    assert!(log.written(lost.seq).await.is_err());
    assert!(memory.failed.load(Ordering::Relaxed), "the mark precedes the report of the failure");
    log.dead(old.segment, 2);
    memory.full.store(false, Ordering::Relaxed);
    assert!(log.restart());
    assert!(memory.copy().is_empty(), "the old records are removed before new ones");
    assert!(!memory.failed.load(Ordering::Relaxed));
}

/// A directory that other users may access, or a link, is refused as a journal.
#[test]
fn shared_journal_directory_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let at = std::env::temp_dir().join(format!("hither-wal-place-{}", std::process::id()));
    let (open, link) = (at.join("open"), at.join("link"));
    std::fs::create_dir_all(&open).unwrap();
    let set = |mode| std::fs::set_permissions(&open, std::fs::Permissions::from_mode(mode)).unwrap();
    set(0o750);
    assert!(super::storage::Dir::open(&open).unwrap_err().to_string().contains("chmod 700"));
    set(0o700);
    std::os::unix::fs::symlink(&open, &link).unwrap();
    assert!(super::storage::Dir::open(&link).unwrap_err().to_string().contains("not a directory"));
    assert!(super::storage::Dir::open(&open).is_ok());
    std::fs::remove_dir_all(&at).unwrap();
}
