//! Measures two clients that share a file: their rate, their calls, and stale reads.
//!
//! Both clients are directories of this machine that show the same files: two mounts of one export,
//! by any client. The bytes of a read identify the write that produced them. Both sides are threads
//! of this process, so each knows every returned write at once. A read is stale exactly if it shows
//! fewer writes than had returned before it began.

use super::Times;
use crate::bench::args::{SharingArgs, SharingKind};
use crate::exit::Failure;
use crate::{Host, mountinfo};
use clap::ValueEnum;
use parking_lot::Mutex;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tokio::time::Instant;

/// Longest time until the other client sees a name. Clients cache directories for up to a minute by
/// default.
const APPEARS: Duration = Duration::from_secs(120);

/// Results of one client.
#[derive(Default)]
struct Part {
    reads: Times,
    writes: Times,
    stale: u64,
    /// Greatest age of stale data, counted from the return of the write that replaced the data.
    oldest: Duration,
}

/// When each write of a file returned, by its number from 0.
#[derive(Default)]
struct Returned(Mutex<Vec<Instant>>);

impl Returned {
    fn note(&self) {
        self.0.lock().push(Instant::now());
    }

    /// Number of returned writes.
    fn count(&self) -> u64 {
        self.0.lock().len() as u64
    }

    /// When the given write returned.
    fn at(&self, number: u64) -> Option<Instant> {
        self.0.lock().get(usize::try_from(number).ok()?).copied()
    }
}

impl Part {
    /// Records a read. `returned` writes had returned before the read began, and the read shows the
    /// state after `shown` writes.
    fn shown(&mut self, writes: &Returned, returned: u64, shown: u64, began: Instant) {
        self.reads.add(began.elapsed());
        if shown < returned {
            self.stale += 1;
            let since = writes.at(shown).map_or(Duration::ZERO, |at| began.saturating_duration_since(at));
            self.oldest = self.oldest.max(since);
        }
    }
}

/// Content of a file after `number` writes.
fn body(number: u64, size: usize) -> Vec<u8> {
    number.to_le_bytes().iter().copied().cycle().take(size).collect()
}

/// Number of writes that produced the given content.
///
/// # Errors
/// No number of writes produces the content: it mixes several writes, or has another length.
fn number(bytes: &[u8], size: usize) -> io::Result<u64> {
    let first = bytes.get(..8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    first.filter(|n| bytes == body(*n, size)).ok_or_else(|| {
        io::Error::other(format!("a read returned {} of {size} bytes, which no write produced", bytes.len()))
    })
}

/// Measures each kind in turn.
///
/// # Errors
/// The directories do not show the same files, a read or write fails, or a read returns bytes that
/// were never written.
pub fn run(host: &dyn Host, args: &SharingArgs) -> Result<(), Failure> {
    for dir in [&args.a, &args.b] {
        if !dir.is_dir() {
            return Err(Failure::usage(format!("{}: no such directory", dir.display())));
        }
    }
    let name = format!("hither-bench.{}", std::process::id());
    let dirs = [args.a.join(&name), args.b.join(&name)];
    let failed = |e: io::Error| Failure::system(format!("{}: {e}", args.a.display()));
    fs::create_dir(&dirs[0]).map_err(failed)?;
    let measured = all(host, args, &dirs).map_err(failed);
    fs::remove_dir_all(&dirs[0]).map_err(failed).and(measured)
}

fn all(host: &dyn Host, args: &SharingArgs, dirs: &[PathBuf; 2]) -> io::Result<()> {
    // The files exist before the other client looks, because that client may cache their absence.
    for &kind in &args.kinds {
        for name in names(kind) {
            fs::write(dirs[0].join(name), body(0, args.size as usize))?;
        }
    }
    if !appears(&dirs[1]) {
        let e = format!("{} does not show the same files", args.b.display());
        return Err(io::Error::other(e));
    }
    if !args.json {
        println!(
            "kind          bytes      ops/s    calls/op      stale  oldest ms  read p50, p99 ms  write p50, p99 ms"
        );
    }
    for &kind in &args.kinds {
        one(host, args, kind, dirs)?;
    }
    Ok(())
}

/// Waits for a name. Returns whether it appeared.
fn appears(path: &Path) -> bool {
    let began = Instant::now();
    while !path.exists() {
        if began.elapsed() > APPEARS {
            return false;
        }
        pause();
    }
    true
}

#[expect(clippy::disallowed_methods, reason = "what is measured takes real time, and blocks")]
fn pause() {
    std::thread::sleep(Duration::from_millis(5));
}

fn word(kind: SharingKind) -> String {
    kind.to_possible_value().map_or_else(String::new, |value| value.get_name().into())
}

/// The files of a kind. In tight sharing each client writes one file, which the other client reads.
fn names(kind: SharingKind) -> [String; 2] {
    [0, 1].map(|n| format!("{}.{n}", word(kind)))
}

fn one(host: &dyn Host, args: &SharingArgs, kind: SharingKind, dirs: &[PathBuf; 2]) -> io::Result<()> {
    let (word, size, names) = (word(kind), args.size as usize, names(kind));
    for name in &names {
        if !appears(&dirs[1].join(name)) {
            return Err(io::Error::other(format!("{name} does not appear")));
        }
    }
    let asked = || dirs.iter().map(|dir| calls(host, dir)).sum::<Option<u64>>();
    let (before, began) = (asked(), Instant::now());
    let end = began + Duration::from_secs(args.seconds);
    let returned = [Returned::default(), Returned::default()];
    let (turn, over) = (Mutex::new(0), AtomicBool::new(false));
    let parts = std::thread::scope(|scope| {
        let sides = [0, 1].map(|me| {
            let (names, returned, turn, over) = (&names, &returned, &turn, &over);
            scope.spawn(move || {
                let work = match kind {
                    SharingKind::Reads => reads(&dirs[me].join(&names[0]), size, end, &returned[0]),
                    SharingKind::Sequential => {
                        sequential(&dirs[me].join(&names[0]), size, end, &returned[0], (turn, me, over))
                    }
                    SharingKind::Tight => {
                        let (own, other) = (dirs[me].join(&names[me]), dirs[me].join(&names[1 - me]));
                        tight((&own, &returned[me]), (&other, &returned[1 - me]), size, end)
                    }
                };
                over.store(true, SeqCst);
                work
            })
        });
        sides.map(|side| side.join().unwrap_or_else(|_| Err(io::Error::other("a client panicked"))))
    });
    let took = began.elapsed().as_secs_f64();
    let [a, b] = parts;
    let (a, b) = (a?, b?);
    let asked = before.zip(asked()).map(|(before, after)| after.saturating_sub(before));
    let (stale, oldest) = (a.stale + b.stale, a.oldest.max(b.oldest).as_secs_f64() * 1000.0);
    let (reads, writes) = (Times::merge(vec![a.reads, b.reads]), Times::merge(vec![a.writes, b.writes]));
    let done = reads.0.len() + writes.0.len();
    let (rate, calls_op) = (done as f64 / took, asked.map(|n| n as f64 / done.max(1) as f64));
    let of = |times: &Times| [times.quantile(0.5), times.quantile(0.99)];
    let ([read_p50, read_p99], [write_p50, write_p99]) = (of(&reads), of(&writes));
    if args.json {
        let line = serde_json::json!({
            "bench": "sharing", "label": args.label, "kind": word, "size_bytes": size, "ops_s": rate, "reads": reads.0.len(),
            "writes": writes.0.len(), "calls_op": calls_op, "stale": stale, "oldest_ms": oldest,
            "read_p50_ms": read_p50, "read_p99_ms": read_p99, "write_p50_ms": write_p50, "write_p99_ms": write_p99,
        });
        println!("{line}");
    } else {
        let calls_op = calls_op.map_or_else(|| "-".into(), |n| format!("{n:.2}"));
        println!(
            "{word:11} {size:7} {rate:10.0} {calls_op:>11} {stale:10} {oldest:10.1} {read_p50:8.2} {read_p99:8.2} {write_p50:9.2} {write_p99:8.2}"
        );
    }
    Ok(())
}

/// Opens and reads the whole file. Returns its number of writes.
fn look(path: &Path, size: usize) -> io::Result<u64> {
    number(&fs::read(path)?, size)
}

/// Opens, writes and closes the whole file.
fn change(path: &Path, to: u64, size: usize) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(&body(to, size), 0)?;
    // A close may report an error of an earlier write.
    Ok(nix::unistd::close(file)?)
}

/// The clients open and read a file that is not written.
fn reads(path: &Path, size: usize, end: Instant, writes: &Returned) -> io::Result<Part> {
    let mut part = Part::default();
    loop {
        let began = Instant::now();
        if began >= end {
            return Ok(part);
        }
        part.shown(writes, 0, look(path, size)?, began);
    }
}

/// The clients take turns. In its turn a client opens and reads the file that the other has closed,
/// and then writes it.
fn sequential(
    path: &Path,
    size: usize,
    end: Instant,
    writes: &Returned,
    (turn, me, over): (&Mutex<usize>, usize, &AtomicBool),
) -> io::Result<Part> {
    let mut part = Part::default();
    loop {
        let mut turn = turn.lock();
        if over.load(SeqCst) || Instant::now() >= end {
            return Ok(part);
        }
        if *turn != me {
            drop(turn);
            std::thread::yield_now();
            continue;
        }
        let (returned, began) = (writes.count(), Instant::now());
        part.shown(writes, returned, look(path, size)?, began);
        let began = Instant::now();
        change(path, returned + 1, size)?;
        writes.note();
        part.writes.add(began.elapsed());
        *turn = 1 - me;
    }
}

/// Both clients keep both files open. Each writes its own file and reads the other one repeatedly.
fn tight(
    (own, mine): (&Path, &Returned),
    (other, theirs): (&Path, &Returned),
    size: usize,
    end: Instant,
) -> io::Result<Part> {
    let own = OpenOptions::new().write(true).open(own)?;
    let other = File::open(other)?;
    let mut part = Part::default();
    let mut bytes = vec![0; size];
    for n in 1.. {
        let began = Instant::now();
        if began >= end {
            break;
        }
        own.write_all_at(&body(n, size), 0)?;
        mine.note();
        part.writes.add(began.elapsed());
        let (returned, began) = (theirs.count(), Instant::now());
        other.read_exact_at(&mut bytes, 0)?;
        // A read may see part of a write of several pages. The oldest part counts.
        let words = bytes.chunks_exact(8).filter_map(|w| w.try_into().ok().map(u64::from_le_bytes));
        part.shown(theirs, returned, words.min().unwrap_or(0), began);
    }
    Ok(part)
}

/// Calls that the mount of a directory has sent to its server; `None` for a file system without
/// counters.
fn calls(host: &dyn Host, dir: &Path) -> Option<u64> {
    if let Ok(daemon) = host.daemon(dir) {
        return Some(daemon.report().ok()?.operations.iter().map(|op| op.calls).sum());
    }
    let mounts = mountinfo::read().ok()?;
    let path = mountinfo::resolve(&mounts, dir).ok()?;
    let told = fs::read_to_string("/proc/self/mountstats").ok()?;
    kernel_calls(&told, &path)
}

/// The same number for a mount of the kernel's client (`/proc/self/mountstats`).
fn kernel_calls(told: &str, path: &Path) -> Option<u64> {
    let mut mounts = told.split("\ndevice ").filter_map(|mount| {
        let (head, rest) = mount.split_once('\n')?;
        let point = head.split(" mounted on ").nth(1)?.split(" with fstype nfs").next()?;
        path.starts_with(point).then_some((point.len(), rest))
    });
    // Takes the innermost mount, and at one mount point the last one.
    let mut found = mounts.next()?;
    for mount in mounts {
        if mount.0 >= found.0 {
            found = mount;
        }
    }
    let (_, operations) = found.1.split_once("per-op statistics\n")?;
    let calls = operations.lines().map_while(|line| {
        let (_, numbers) = line.trim().split_once(':')?;
        numbers.split_whitespace().next()?.parse::<u64>().ok()
    });
    Some(calls.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `number` recovers the write from the content, and refuses mixed or short content.
    #[test]
    fn content_identifies_its_write() {
        for (n, size) in [(0, 8), (7, 24), (1 << 40, 4096)] {
            assert_eq!(number(&body(n, size), size).unwrap(), n);
        }
        let mut torn = body(7, 24);
        torn[16] = 6;
        for wrong in [&torn[..], &body(7, 16), &[]] {
            number(wrong, 24).unwrap_err();
        }
    }

    /// A read is stale if it shows fewer writes than had returned. A write that has not returned
    /// may be visible.
    #[test]
    fn older_content_counts_as_stale() {
        let (mut part, writes) = (Part::default(), Returned::default());
        writes.note();
        let began = Instant::now();
        part.shown(&writes, writes.count(), 1, began);
        assert_eq!((part.stale, part.oldest), (0, Duration::ZERO));
        // A read may show a write that has not returned.
        part.shown(&writes, writes.count(), 2, began);
        assert_eq!(part.stale, 0);
        pause();
        writes.note();
        part.shown(&writes, writes.count(), 0, Instant::now());
        assert!(part.stale == 1 && part.oldest >= Duration::from_millis(5), "{:?}", part.oldest);
        assert_eq!(part.reads.0.len(), 3);
    }

    /// Calls of the kernel's client are counted for the innermost mount only.
    #[test]
    fn kernel_calls_count_innermost_mount() {
        let mount = |point: &str, read: u32| {
            format!(
                "device s:/e mounted on {point} with fstype nfs4 statvers=1.1\n\topts:\trw\n\tper-op statistics\n\t        NULL: 1 1 0 44 24 0 0 0 0\n\t        READ: {read} 9 0 1 1 1 1 1 0\n\n"
            )
        };
        let told =
            format!("device rootfs mounted on / with fstype ext4\n{}{}", mount("/a", 3), mount("/a/b", 5));
        let of = |path: &str| kernel_calls(&told, Path::new(path));
        assert_eq!((of("/a/x"), of("/a/b/c"), of("/ab")), (Some(4), Some(6), None));
    }
}
