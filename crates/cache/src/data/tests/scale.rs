//! A million cached files on a real disk: the time and memory of a start, the time of the cleaner,
//! and its effect on readers.
//!
//! `HITHER_ENTRIES=1000000 HITHER_SCALE_DIR=/var/tmp cargo test --release -p hither-cache --lib
//! a_million -- --ignored --nocapture` prints a line of JSON. It takes about 8 KiB of disk per
//! file, and minutes to create the files.

use crate::data::format::Version;
use crate::data::io::{Io, IoFile, Listed, RealIo};
use crate::data::shelf::{Limits, Shelf};
use crate::data::stats::Counters;
use crate::policy::Policy;
use bytes::Bytes;
use hither_vfs::Fh;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// A directory that is never synced: only the number of files matters.
struct Hasty(RealIo);

struct HastyFile(Arc<dyn IoFile>);

impl Io for Hasty {
    fn create(&self, name: &str) -> io::Result<Arc<dyn IoFile>> {
        Ok(Arc::new(HastyFile(self.0.create(name)?)))
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn IoFile>> {
        Ok(Arc::new(HastyFile(self.0.open(name)?)))
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn sync_names(&self, _: &str) -> io::Result<()> {
        Ok(())
    }
    fn list(&self) -> io::Result<Vec<Listed>> {
        self.0.list()
    }
    fn list_in(&self, dir: &str) -> io::Result<Vec<String>> {
        self.0.list_in(dir)
    }
    fn touch(&self, name: &str, at_s: u64) -> io::Result<()> {
        self.0.touch(name, at_s)
    }
    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

impl IoFile for HastyFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.0.read_at(buf, at)
    }
    fn read_at_now(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.0.read_at_now(buf, at)
    }
    fn write_at(&self, data: &[u8], at: u64) -> io::Result<()> {
        self.0.write_at(data, at)
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
    fn write_soon(&self) {}

    fn backing(&self) -> Option<Arc<std::fs::File>> {
        self.0.backing()
    }
}

const SIZE: u64 = 1000;

fn handle(i: u64) -> Fh {
    Fh(Bytes::from(format!("a handle of usual length, {i:020}")))
}

fn shelf(io: &Arc<Hasty>, soft_bytes: u64, policy: Policy) -> Shelf {
    static ID: AtomicU64 = AtomicU64::new(1);
    let limits = Limits { soft_bytes, hard_bytes: u64::MAX, min_free_bytes: 0, policy, read_only: false };
    let random = Arc::new(|| ID.fetch_add(0x1234_5678_9abc_def1, Ordering::Relaxed));
    Shelf::open(io.clone(), limits, Arc::new(Counters::default()), random).unwrap()
}

/// A number from /proc/self/status, in bytes.
fn memory(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// Opens and reads random cached files until `until` is true; returns the sorted durations.
fn reads(shelf: &Shelf, count: u64, until: impl Fn(u64) -> bool) -> Vec<Duration> {
    let (mut took, mut random) = (Vec::new(), 0x9e37_79b9_7f4a_7c15_u64);
    while !until(took.len() as u64) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let fh = handle((random >> 33) % count);
        let began = Instant::now();
        if let Some(entry) = shelf.find(&fh, Version { change: 1, size: SIZE }, 10) {
            assert_eq!(entry.read_verified(0).unwrap().len() as u64, SIZE);
            took.push(began.elapsed());
        }
        // A reader that shares the disk with others.
        std::thread::yield_now();
    }
    took.sort_unstable();
    took
}

fn quantile(sorted: &[Duration], part: f64) -> u128 {
    sorted[((sorted.len() - 1) as f64 * part) as usize].as_micros()
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
#[ignore = "makes two million files"]
fn a_million_files() {
    let count = number("HITHER_ENTRIES", 1_000_000);
    let at = std::env::var("HITHER_SCALE_DIR").map_or_else(|_| std::env::temp_dir(), Into::into);
    let dir = at.join(format!("hither-scale-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let io = Arc::new(Hasty(RealIo { dir: dir.clone() }));
    {
        let shelf = shelf(&io, u64::MAX, Policy::Lru);
        let data = vec![7; SIZE as usize];
        for i in 0..count {
            let entry = shelf.create(&handle(i), Version { change: 1, size: SIZE }, i).unwrap();
            assert!(shelf.put(&entry, 0, &data).unwrap());
            entry.sync().unwrap();
        }
    }
    let before = memory("VmRSS:");
    // After a crash, all files are scanned.
    let began = Instant::now();
    let looked = shelf(&io, u64::MAX, Policy::Lru);
    let scan = began.elapsed();
    assert_eq!(looked.size().0, count);
    let began = Instant::now();
    looked.save();
    let save = began.elapsed();
    drop(looked);
    let mut lines = Vec::new();
    for policy in Policy::ALL {
        // After an orderly shutdown, the index is read.
        let began = Instant::now();
        let all = shelf(&io, u64::MAX, policy);
        let (start, rss) = (began.elapsed(), memory("VmRSS:"));
        let (entries, bytes) = all.size();
        assert!(entries > 0);
        all.save();
        drop(all);
        // A tenth is evicted while a reader is running.
        let cleaned = shelf(&io, bytes - bytes / 10, policy);
        cleaned.clean(200);
        let quiet = reads(&cleaned, count, |n| n >= 20_000);
        let over = AtomicBool::new(false);
        let (busy, gone, pass) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| reads(&cleaned, count, |n| over.load(Ordering::Acquire) && n > 100));
            let began = Instant::now();
            let gone = cleaned.clean(u64::MAX);
            let pass = began.elapsed();
            over.store(true, Ordering::Release);
            (reader.join().unwrap(), gone, pass)
        });
        cleaned.save();
        lines.push(format!(
            r#"{{"policy":"{}","entries":{entries},"start_after_an_end_ms":{},"resident_bytes_per_entry":{},"cleaned_entries":{gone},"cleaner_pass_ms":{},"reads_beside_it":{},"read_p50_ratio":{:.2},"read_p99_ratio":{:.2}}}"#,
            policy.name(),
            start.as_millis(),
            rss.saturating_sub(before) / entries,
            pass.as_millis(),
            busy.len(),
            quantile(&busy, 0.5) as f64 / quantile(&quiet, 0.5).max(1) as f64,
            quantile(&busy, 0.99) as f64 / quantile(&quiet, 0.99).max(1) as f64,
        ));
    }
    println!(
        r#"{{"entries":{count},"start_after_a_crash_ms":{},"index_written_ms":{},"most_resident_bytes":{}}}"#,
        scan.as_millis(),
        save.as_millis(),
        memory("VmHWM:")
    );
    lines.iter().for_each(|line| println!("{line}"));
    assert_eq!(shelf(&io, u64::MAX, Policy::Lru).strays(), Vec::<String>::new());
    std::fs::remove_dir_all(dir).unwrap();
}
