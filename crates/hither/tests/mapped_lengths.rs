//! Lengths that stat(2) shows while other threads extend a file. A mapping of the shown length has
//! all its pages.
//!
//! The test needs root and nfs-ganesha. `HITHER_SECONDS` makes each case longer.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::{Ganesha, HITHER, map, run};
use rustix::fs::{FallocateFlags, fallocate};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const WRITERS: u64 = 2;
const READERS: u64 = 4;
const STEP_BYTES: u64 = 4096;
const STEPS: u64 = 64;

/// Makes a file one step longer by write(2), ftruncate(2) or fallocate(2).
fn extend(file: &File, step: u64) -> io::Result<()> {
    let end = (step + 1) * STEP_BYTES;
    match step % 3 {
        0 => file.write_all_at(&[b'x'; STEP_BYTES as usize], step * STEP_BYTES),
        1 => file.set_len(end),
        // Servers without ALLOCATE refuse fallocate(2).
        _ => fallocate(file, FallocateFlags::empty(), 0, end).or_else(|_| file.set_len(end)),
    }
}

/// The end of a run: after a time, and not before a length was mapped.
struct Progress {
    until: Instant,
    mapped: AtomicU64,
}

impl Progress {
    const LATEST: Duration = Duration::from_secs(60);

    fn is_over(&self) -> bool {
        let now = Instant::now();
        now >= self.until && (self.mapped.load(Relaxed) > 0 || now >= self.until + Self::LATEST)
    }
}

/// Makes a file again and again.
fn write(name: &Path, progress: &Progress) -> io::Result<()> {
    while !progress.is_over() {
        let _ = fs::remove_file(name);
        let file = File::create(name)?;
        (0..STEPS).try_for_each(|step| extend(&file, step))?;
    }
    Ok(())
}

/// Maps each length that fstat(2) shows. Notes the lengths that could not be read.
fn read(name: &Path, progress: &Progress, failed: &Mutex<BTreeMap<u64, io::Error>>) -> io::Result<()> {
    while !progress.is_over() {
        let Ok(file) = File::open(name) else { continue };
        let mut last = 0;
        while last < STEPS * STEP_BYTES && !progress.is_over() {
            let found = file.metadata()?;
            if found.nlink() == 0 {
                break;
            }
            if found.len() > last {
                last = found.len();
                if let Err(error) = map(&file, last as usize) {
                    failed.lock().unwrap().insert(last, error);
                }
                progress.mapped.fetch_add(1, Relaxed);
            }
        }
    }
    Ok(())
}

/// A mount that ends before its server, also when a test fails.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = Command::new("umount").arg("-l").arg(self.0).status();
        } else {
            run(Command::new(HITHER).arg("umount").arg(self.0)).ok();
        }
    }
}

#[track_caller]
fn check(mount: &str, mnt: &Path, time: Duration) {
    let dir = mnt.join("extended");
    fs::create_dir(&dir).unwrap();
    let (progress, failed) = (Progress { until: Instant::now() + time, mapped: 0.into() }, Mutex::default());
    let name = |writer: u64| dir.join(format!("f{writer}"));
    std::thread::scope(|s| {
        let (name, failed, progress) = (&name, &failed, &progress);
        let writers: Vec<_> = (0..WRITERS).map(|w| s.spawn(move || write(&name(w), progress))).collect();
        let readers: Vec<_> =
            (0..READERS).map(|r| s.spawn(move || read(&name(r % WRITERS), progress, failed))).collect();
        writers.into_iter().chain(readers).for_each(|thread| thread.join().unwrap().unwrap());
    });
    let mapped = progress.mapped.into_inner();
    println!("{mount}: {mapped} mapped");
    assert!(failed.lock().unwrap().is_empty(), "{mount}: {failed:?}");
    assert!(mapped > 0, "{mount}");
    fs::remove_dir_all(&dir).unwrap();
}

/// Two threads extend files, while four others map each length that fstat(2) shows them.
/// Promise: 13
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn shown_length_can_be_mapped() {
    let seconds = std::env::var("HITHER_SECONDS").ok().map(|s| Duration::from_secs(s.parse().unwrap()));
    let time = seconds.unwrap_or(Duration::from_millis(250));
    let ganesha = Ganesha::start();
    let mut serve = Serve::of_directory().with(&["--nqnfs", "--max-delegations", "1000"]);
    serve.serve();
    let (there, here) = (ganesha.dir.path().join("mapped"), serve.mnt("mnt"));
    fs::create_dir(&there).unwrap();
    for version in ["3", "4.2", "nqnfs"] {
        for mode in ["", ",noac", ",consistency=strict", ",close=lazy"] {
            let options = format!("vers={version}{mode}");
            serve.mount(&options, &here).ok();
            let mounted = Mounted(&here);
            check(&format!("hither serve, {options}"), &here, time);
            drop(mounted);
            if version != "nqnfs" {
                ganesha.mount(&options, &there).ok();
                let _mounted = Mounted(&there);
                check(&format!("nfs-ganesha, {options}"), &there, time);
            }
        }
    }
}
