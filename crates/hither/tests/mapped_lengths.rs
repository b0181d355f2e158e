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

/// Makes a file again and again, until `until`.
fn write(name: &Path, until: Instant) -> io::Result<()> {
    while Instant::now() < until {
        let _ = fs::remove_file(name);
        let file = File::create(name)?;
        (0..STEPS).try_for_each(|step| extend(&file, step))?;
    }
    Ok(())
}

/// Maps each length that fstat(2) shows, until `until`. Returns the number of mappings, and notes
/// the lengths that could not be read.
fn read(name: &Path, until: Instant, failed: &Mutex<BTreeMap<u64, io::Error>>) -> io::Result<u64> {
    let mut mapped = 0;
    while Instant::now() < until {
        let Ok(file) = File::open(name) else { continue };
        let mut last = 0;
        while last < STEPS * STEP_BYTES && Instant::now() < until {
            let found = file.metadata()?;
            if found.nlink() == 0 {
                break;
            }
            if found.len() > last {
                last = found.len();
                mapped += 1;
                if let Err(error) = map(&file, last as usize) {
                    failed.lock().unwrap().insert(last, error);
                }
            }
        }
    }
    Ok(mapped)
}

#[track_caller]
fn check(mount: &str, mnt: &Path, time: Duration) {
    let dir = mnt.join("extended");
    fs::create_dir(&dir).unwrap();
    let (until, failed) = (Instant::now() + time, Mutex::default());
    let name = |writer: u64| dir.join(format!("f{writer}"));
    let mapped: u64 = std::thread::scope(|s| {
        let (name, failed) = (&name, &failed);
        let writers: Vec<_> = (0..WRITERS).map(|w| s.spawn(move || write(&name(w), until))).collect();
        let readers: Vec<_> =
            (0..READERS).map(|r| s.spawn(move || read(&name(r % WRITERS), until, failed))).collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap().unwrap());
        readers.into_iter().map(|reader| reader.join().unwrap().unwrap()).sum()
    });
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
            let umount = |mnt: &Path| drop(run(Command::new(HITHER).arg("umount").arg(mnt)).ok());
            serve.mount(&options, &here).ok();
            check(&format!("hither serve, {options}"), &here, time);
            umount(&here);
            if version != "nqnfs" {
                ganesha.mount(&options, &there).ok();
                check(&format!("nfs-ganesha, {options}"), &there, time);
                umount(&there);
            }
        }
    }
}
