//! `hither cache warm`: reads files through their mount, several at a time.

use crate::cli::CacheWarm;
use crate::exit::Failure;
use crate::stat::text::bytes;
use std::fs::File;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Bytes of one read.
const CHUNK: usize = 1 << 20;
/// Files found that wait to be read, at most.
const WAITING: usize = 65_536;

#[derive(Default)]
struct Progress {
    found: AtomicU64,
    found_bytes: AtomicU64,
    all_found: AtomicBool,
    read: AtomicU64,
    read_bytes: AtomicU64,
    failed: AtomicU64,
}

/// Warms.
///
/// # Errors
/// The list cannot be read, or files cannot.
pub fn run(args: &CacheWarm) -> Result<(), Failure> {
    let progress = Progress::default();
    let (found, files) = mpsc::sync_channel::<PathBuf>(WAITING);
    let files = parking_lot::Mutex::new(files);
    let over = AtomicBool::new(false);
    let listed = std::thread::scope(|scope| {
        let shown = !args.quiet && io::stderr().is_terminal();
        if shown {
            scope.spawn(|| show(&progress, &over));
        }
        let readers: Vec<_> = (0..args.jobs).map(|_| scope.spawn(|| read_all(&files, &progress))).collect();
        let listed = list(&args.files, &found, &progress);
        progress.all_found.store(true, Ordering::Relaxed);
        drop(found);
        let ended = readers.into_iter().map(|reader| reader.join()).all(|joined| joined.is_ok());
        over.store(true, Ordering::Relaxed);
        listed.and_then(|()| if ended { Ok(()) } else { Err(Failure::system("a reader broke down")) })
    });
    listed?;
    if !args.quiet {
        let (read, all) =
            (progress.read.load(Ordering::Relaxed), progress.read_bytes.load(Ordering::Relaxed));
        crate::stat::print(&format!("{read} files read, {}\n", bytes(all)))?;
    }
    match progress.failed.load(Ordering::Relaxed) {
        0 => Ok(()),
        n => Err(Failure::system(format!("{n} files could not be read"))),
    }
}

fn list(files: &[PathBuf], found: &mpsc::SyncSender<PathBuf>, progress: &Progress) -> Result<(), Failure> {
    for file in files {
        if file.as_os_str() != "-" {
            walk(file, found, progress);
            continue;
        }
        for line in io::stdin().lock().split(b'\n') {
            let line = line.map_err(|e| Failure::system(format!("standard input: {e}")))?;
            if !line.is_empty() {
                let name = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&line);
                walk(Path::new(name), found, progress);
            }
        }
    }
    Ok(())
}

/// A file, or everything below a directory; symbolic links are not followed.
fn walk(path: &Path, found: &mpsc::SyncSender<PathBuf>, progress: &Progress) {
    let mut todo = vec![path.to_path_buf()];
    while let Some(path) = todo.pop() {
        let meta = match std::fs::symlink_metadata(&path) {
            Ok(meta) => meta,
            Err(e) => {
                failed(&path, &e, progress);
                continue;
            }
        };
        if meta.is_dir() {
            match std::fs::read_dir(&path) {
                Ok(entries) => todo.extend(entries.flatten().map(|entry| entry.path())),
                Err(e) => failed(&path, &e, progress),
            }
        } else if meta.is_file() {
            progress.found.fetch_add(1, Ordering::Relaxed);
            progress.found_bytes.fetch_add(meta.size(), Ordering::Relaxed);
            if found.send(path).is_err() {
                return;
            }
        }
    }
}

fn read_all(files: &parking_lot::Mutex<mpsc::Receiver<PathBuf>>, progress: &Progress) {
    let mut buf = vec![0; CHUNK];
    loop {
        let next = files.lock().recv();
        let Ok(path) = next else { return };
        match read(&path, &mut buf, progress) {
            Ok(()) => drop(progress.read.fetch_add(1, Ordering::Relaxed)),
            Err(e) => failed(&path, &e, progress),
        }
    }
}

fn read(path: &Path, buf: &mut [u8], progress: &Progress) -> io::Result<()> {
    let mut file = File::open(path)?;
    loop {
        match file.read(buf)? {
            0 => return Ok(()),
            n => progress.read_bytes.fetch_add(n as u64, Ordering::Relaxed),
        };
    }
}

fn failed(path: &Path, e: &io::Error, progress: &Progress) {
    progress.failed.fetch_add(1, Ordering::Relaxed);
    let _ = writeln!(io::stderr(), "{}: {e}", path.display());
}

/// A line of progress, four times a second.
fn show(progress: &Progress, over: &AtomicBool) {
    let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let (mut rate, mut before, mut ticks) = (0.0_f64, 0, 0_u64);
    while !over.load(Ordering::Relaxed) {
        #[expect(clippy::disallowed_methods, reason = "a command that waits for its terminal, not logic")]
        std::thread::sleep(Duration::from_millis(250));
        let now = of(&progress.read_bytes);
        let latest = now.saturating_sub(before) as f64 * 4.0;
        (before, ticks) = (now, ticks + 1);
        rate = if ticks == 1 { latest } else { rate * 0.8 + latest * 0.2 };
        let all = of(&progress.found_bytes);
        let left = all.saturating_sub(now) as f64;
        let eta = match progress.all_found.load(Ordering::Relaxed) && rate > 1.0 {
            true => format!("{:.0} s left", left / rate),
            false => "still looking".into(),
        };
        let _ = write!(
            io::stderr(),
            "\r\x1b[K{} of {} files, {} of {}, {}/s, {eta}",
            of(&progress.read),
            of(&progress.found),
            bytes(now),
            bytes(all),
            bytes(rate as u64)
        );
    }
    let _ = write!(io::stderr(), "\r\x1b[K");
}
