//! `hither cache warm`: the daemon fetches small files, many in one message. Other files are read
//! through their mount, several at a time.

use super::batch::{Batch, Batches};
use crate::cli::CacheWarm;
use crate::exit::Failure;
use hither_tools::units::bytes;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, UNIX_EPOCH};

/// Bytes of one read.
const CHUNK: usize = 1 << 20;
/// Most found files that wait to be read.
const WAITING: usize = 65_536;

/// A unit of work for a reader.
enum Todo {
    File(PathBuf),
    Batch(Batch),
}

/// Collects found files and passes them to the readers.
struct Found<'a> {
    todo: &'a mpsc::SyncSender<Todo>,
    batches: Batches,
    /// Present time in seconds since 1970.
    now_s: i64,
}

impl Found<'_> {
    fn file(&mut self, path: PathBuf, meta: &std::fs::Metadata) {
        let todo = match self.batches.add(path, meta, self.now_s) {
            Ok(None) => return,
            Ok(Some(batch)) => Todo::Batch(batch),
            Err(path) => Todo::File(path),
        };
        // The readers outlive this sender.
        let _ = self.todo.send(todo);
    }
}

#[derive(Default)]
struct Progress {
    found: AtomicU64,
    found_bytes: AtomicU64,
    all_found: AtomicBool,
    read: AtomicU64,
    read_bytes: AtomicU64,
    failed: AtomicU64,
}

/// Warms a cache.
///
/// # Errors
/// The list or some files cannot be read.
pub fn run(args: &CacheWarm) -> Result<(), Failure> {
    warm(args.jobs, args.quiet, |found, progress| {
        for file in &args.files {
            if file.as_os_str() == "-" {
                lines(io::stdin().lock(), None, found, progress).map_err(|e| bad("standard input", &e))?
            } else {
                walk(file, found, progress)
            }
        }
        Ok(())
    })
}

/// Warms a cache from a trace. A trace is a list of paths in which `/./` marks the mount point.
/// `root` replaces that mount point if given.
///
/// # Errors
/// The list or some files cannot be read.
pub fn replay(trace: &Path, root: Option<&Path>, jobs: u8, quiet: bool) -> Result<(), Failure> {
    let list = File::open(trace).map_err(|e| bad(&trace.display().to_string(), &e))?;
    warm(jobs, quiet, |found, progress| {
        let list = io::BufReader::new(list);
        lines(list, root, found, progress).map_err(|e| bad(&trace.display().to_string(), &e))
    })
}

fn bad(what: &str, e: &io::Error) -> Failure {
    Failure::system(format!("{what}: {e}"))
}

fn warm(
    jobs: u8,
    quiet: bool,
    list: impl FnOnce(&mut Found<'_>, &Progress) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let progress = Progress::default();
    let (todo, files) = mpsc::sync_channel::<Todo>(WAITING);
    let files = parking_lot::Mutex::new(files);
    let over = AtomicBool::new(false);
    let now = (crate::stack::env().wall)().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let mut unkept = BTreeMap::new();
    let listed = std::thread::scope(|scope| {
        let shown = !quiet && io::stderr().is_terminal();
        if shown {
            scope.spawn(|| show(&progress, &over));
        }
        let readers: Vec<_> = (0..jobs).map(|_| scope.spawn(|| read_all(&files, &progress))).collect();
        let mut found = Found { todo: &todo, batches: Batches::default(), now_s };
        let listed = list(&mut found, &progress);
        let (left, why) = found.batches.rest();
        left.into_iter().for_each(|batch| drop(todo.send(Todo::Batch(batch))));
        unkept = why;
        progress.all_found.store(true, Ordering::Relaxed);
        drop(todo);
        let ended = readers.into_iter().map(|reader| reader.join()).all(|joined| joined.is_ok());
        over.store(true, Ordering::Relaxed);
        listed.and_then(|()| if ended { Ok(()) } else { Err(Failure::system("a reader task failed")) })
    });
    listed?;
    if !quiet {
        let (read, all) =
            (progress.read.load(Ordering::Relaxed), progress.read_bytes.load(Ordering::Relaxed));
        crate::stat::print(&format!("{read} files read, {}\n", bytes(all)))?;
        for (why, files) in unkept {
            let _ = writeln!(io::stderr(), "hither: {files} of them are not kept on disk: {why}");
        }
    }
    match progress.failed.load(Ordering::Relaxed) {
        0 => Ok(()),
        n => Err(Failure::system(format!("{n} files could not be read"))),
    }
}

/// Reads paths, one a line.
fn lines(
    list: impl BufRead,
    root: Option<&Path>,
    found: &mut Found<'_>,
    progress: &Progress,
) -> io::Result<()> {
    for line in list.split(b'\n') {
        let line = line?;
        let below = line.windows(3).position(|at| at == b"/./").and_then(|at| line.get(at + 3..));
        let name = |bytes| Path::new(<OsStr as OsStrExt>::from_bytes(bytes));
        match (root, below) {
            _ if line.is_empty() => {}
            (Some(root), Some(below)) => walk(&root.join(name(below)), found, progress),
            _ => walk(name(&line), found, progress),
        }
    }
    Ok(())
}

/// Finds a file, or all files below a directory. Symbolic links are not followed.
fn walk(path: &Path, found: &mut Found<'_>, progress: &Progress) {
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
            found.file(path, &meta);
        }
    }
}

fn read_all(files: &parking_lot::Mutex<mpsc::Receiver<Todo>>, progress: &Progress) {
    let mut buf = vec![0; CHUNK];
    loop {
        let next = files.lock().recv();
        let Ok(todo) = next else { return };
        let left = match todo {
            Todo::File(path) => vec![path],
            Todo::Batch(batch) => {
                let (came, left) = batch.bring();
                progress.read.fetch_add(came.len() as u64, Ordering::Relaxed);
                progress.read_bytes.fetch_add(came.iter().sum(), Ordering::Relaxed);
                left
            }
        };
        for path in left {
            match read(&path, &mut buf, progress) {
                Ok(()) => drop(progress.read.fetch_add(1, Ordering::Relaxed)),
                Err(e) => failed(&path, &e, progress),
            }
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

/// Prints a line of progress four times a second.
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
        let eta = if progress.all_found.load(Ordering::Relaxed) && rate > 1.0 {
            format!("{:.0} s left", left / rate)
        } else {
            "still looking".into()
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
