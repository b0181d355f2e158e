//! nhfsstone (P3): Moran's mix of operations, offered at a fixed rate.
//!
//! Calls fall due at random times of the rate (exponentially distributed gaps). They wait in one
//! queue for a free connection. The time of a call starts when it falls due, so the figures show
//! whether the server falls behind. The mean of the worst ten seconds shows stalls that the mean of
//! a long run hides. NFS version 2 had only stable writes, so the mix has only stable writes.

use super::client::{BenchExport, Conn, entry};
use super::{Times, Work, hook};
use crate::bench::args::NhfsstoneArgs;
use bytes::Bytes;
use futures_util::future::try_join_all;
use hither_proto::nfs3::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, sleep_until};

/// Operations and their shares in percent (P3, figure 1).
const MIX: [(Op, u32); 10] = [
    (Op::Getattr, 13),
    (Op::Setattr, 1),
    (Op::Lookup, 34),
    (Op::Readlink, 8),
    (Op::Read, 22),
    (Op::Write, 15),
    (Op::Create, 2),
    (Op::Remove, 1),
    (Op::Readdir, 3),
    (Op::Fsstat, 1),
];
/// Number of directories, and of files and links in each.
const DIRS: usize = 10;
const FILES: usize = 40;
const LINKS: usize = 8;
/// Length of a file, and of a READ or WRITE, in bytes.
const FILE_BYTES: u64 = 64 << 10;
const IO_BYTES: u32 = 8192;
/// The acceptable mean response time (P3, "Nhfsstone Results").
const ACCEPTABLE_MS: f64 = 40.0;
/// Most calls that wait for a connection. Above this number the server cannot keep up.
const WAITING_MAX: usize = 100_000;
/// Length of a window in seconds. Each window has its own mean.
const WINDOW_SECS: u64 = 10;
/// Time for late calls after the end of a rate.
const FAREWELL: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy)]
enum Op {
    Getattr,
    Setattr,
    Lookup,
    Readlink,
    Read,
    Write,
    Create,
    Remove,
    Readdir,
    Fsstat,
}

impl Op {
    fn modifies(self) -> bool {
        matches!(self, Op::Setattr | Op::Write | Op::Create | Op::Remove)
    }
}

/// Response times by the window in which the calls fell due.
#[derive(Default)]
struct Windows(Vec<Times>);

impl Windows {
    /// Adds a call that fell due at `due` after the beginning.
    fn add(&mut self, due: Duration, time: Duration) {
        let window = (due.as_secs() / WINDOW_SECS) as usize;
        if self.0.len() <= window {
            self.0.resize_with(window + 1, Times::default);
        }
        self.0[window].add(time);
    }

    /// The greatest mean of a window in milliseconds.
    fn worst_mean(&self) -> f64 {
        self.0.iter().map(Times::mean).fold(0.0, f64::max)
    }

    fn merge(all: Vec<Self>) -> Self {
        let windows = all.iter().map(|own| own.0.len()).max().unwrap_or_default();
        let mut merged: Vec<Vec<Times>> = std::iter::repeat_with(Vec::new).take(windows).collect();
        for (to, times) in all.into_iter().flat_map(|own| own.0.into_iter().enumerate()) {
            merged[to].push(times);
        }
        Self(merged.into_iter().map(Times::merge).collect())
    }
}

/// The files on which the calls operate.
struct Tree {
    dirs: Vec<Dir>,
    data: Bytes,
    next_made: AtomicU64,
    /// Numbers of the created names, which REMOVE calls may remove.
    to_remove: parking_lot::Mutex<Vec<u64>>,
    made: Fh3,
}

struct Dir {
    fh: Fh3,
    files: Vec<Fh3>,
    links: Vec<Fh3>,
}

impl Tree {
    /// Makes the files over several connections, because a server may make each call durable.
    async fn make(conns: &mut [Conn], top: &Fh3) -> io::Result<Self> {
        let data = Bytes::from(vec![0x5a; IO_BYTES as usize]);
        let mut dirs = Vec::new();
        for d in 0..DIRS {
            let fh = conns[0].mkdir(top, &format!("d{d}")).await?;
            dirs.push(Dir { fh, files: Vec::new(), links: Vec::new() });
        }
        let made = conns[0].mkdir(top, "made").await?;
        let share = (DIRS * FILES).div_ceil(conns.len());
        let shares = conns.iter_mut().enumerate().map(|(n, conn)| {
            let own = n * share..(DIRS * FILES).min((n + 1) * share);
            Self::files(conn, &dirs, own)
        });
        let all = try_join_all(shares).await?.concat();
        for (at, (file, link)) in all.into_iter().enumerate() {
            dirs[at / FILES].files.push(file);
            dirs[at / FILES].links.extend(link);
        }
        Ok(Self { dirs, data, next_made: AtomicU64::new(0), to_remove: parking_lot::Mutex::default(), made })
    }

    /// Makes a share of the files, with a link next to each of a directory's first files.
    async fn files(
        conn: &mut Conn,
        dirs: &[Dir],
        share: std::ops::Range<usize>,
    ) -> io::Result<Vec<(Fh3, Option<Fh3>)>> {
        let whole = Bytes::from(vec![0xa5; FILE_BYTES as usize]);
        let mut all = Vec::new();
        for at in share {
            let (dir, n) = (&dirs[at / FILES].fh, at % FILES);
            let file = conn.create(dir, &format!("file{n}")).await?;
            conn.write(&file, 0, &whole, StableHow::UNSTABLE).await?;
            conn.commit(&file).await?;
            let link = if n < LINKS {
                Some(conn.symlink(dir, &format!("link{n}"), &format!("file{n}")).await?)
            } else {
                None
            };
            all.push((file, link));
        }
        Ok(all)
    }

    /// Makes one call. An error means that the server failed it.
    async fn call(&self, conn: &mut Conn, op: Op, dice: &mut StdRng) -> io::Result<()> {
        let dir = &self.dirs[dice.random_range(0..DIRS)];
        let n = dice.random_range(0..FILES);
        let file = &dir.files[n];
        let offset = dice.random_range(0..FILE_BYTES / u64::from(IO_BYTES)) * u64::from(IO_BYTES);
        let status = match op {
            Op::Getattr => conn.call(&GetattrArgs { object: file.clone() }).await?.status(),
            Op::Setattr => {
                let new_attributes = Sattr3 { mode: Some(0o600 | (n as u32 & 0o77)), ..Sattr3::default() };
                let args = SetattrArgs { object: file.clone(), new_attributes, guard: None };
                conn.call(&args).await?.status()
            }
            Op::Lookup => {
                conn.call(&LookupArgs { what: entry(&dir.fh, &format!("file{n}")) }).await?.status()
            }
            Op::Readlink => {
                conn.call(&ReadlinkArgs { symlink: dir.links[n % LINKS].clone() }).await?.status()
            }
            Op::Read => conn.call(&ReadArgs { file: file.clone(), offset, count: IO_BYTES }).await?.status(),
            Op::Write => return conn.write(file, offset, &self.data, StableHow::FILE_SYNC).await,
            Op::Create => {
                let name = self.next_made.fetch_add(1, Ordering::Relaxed);
                conn.create(&self.made, &format!("m{name}")).await?;
                self.to_remove.lock().push(name);
                return Ok(());
            }
            Op::Remove => {
                let name = self.to_remove.lock().pop().map_or_else(|| "none".into(), |n| format!("m{n}"));
                match conn.call(&RemoveArgs { object: entry(&self.made, &name) }).await?.status() {
                    // The mix removes fewer names than it creates, but a removal may come first.
                    Nfsstat3::NOENT => Nfsstat3::OK,
                    other => other,
                }
            }
            Op::Readdir => {
                let args =
                    ReaddirArgs { dir: dir.fh.clone(), cookie: 0, cookieverf: [0; 8], count: IO_BYTES };
                conn.call(&args).await?.status()
            }
            Op::Fsstat => conn.call(&FsstatArgs { fsroot: dir.fh.clone() }).await?.status(),
        };
        if status == Nfsstat3::OK { Ok(()) } else { Err(io::Error::other(format!("{op:?}: {status:?}"))) }
    }
}

/// Picks an operation of the mix. `modifying` percent of the operations modify. The proportions
/// among the modifying operations, and among the others, stay those of the mix.
fn pick(dice: &mut StdRng, modifying: u32) -> Op {
    let modifies = dice.random_range(0..100) < modifying;
    let among = || MIX.iter().filter(|(op, _)| op.modifies() == modifies);
    let mut n = dice.random_range(0..among().map(|(_, part)| part).sum());
    for &(op, part) in among() {
        if n < part {
            return op;
        }
        n -= part;
    }
    Op::Getattr
}

/// Measures each rate in turn. Stops when the server falls far behind.
pub async fn run(place: &BenchExport, args: &NhfsstoneArgs) -> io::Result<()> {
    let (work, _) = Work::begin(place).await?;
    let done = rates(place, args, &work).await;
    let ended = work.end(place, &args.target).await;
    done.and(ended)
}

async fn rates(place: &BenchExport, args: &NhfsstoneArgs, work: &Work) -> io::Result<()> {
    let mut conns = Conn::open_many(place.nfs, args.clients as usize).await?;
    let tree = Arc::new(Tree::make(&mut conns, &work.dir).await?);
    drop(conns);
    hook(args.target.prepared.as_deref())?;
    if !args.json {
        println!("offered/s answered/s  mean ms worst 10s   p50 ms   p99 ms   max ms");
    }
    let mut means = Vec::new();
    for &rate in &args.rates {
        let (answered, windows) = one_rate(place, args, &tree, rate).await?;
        let worst = windows.worst_mean();
        let times = Times::merge(windows.0);
        let (mean, p50, p99, max) =
            (times.mean(), times.quantile(0.5), times.quantile(0.99), times.quantile(1.0));
        means.push((rate, mean));
        if args.json {
            let line = serde_json::json!({
                "bench": "nhfsstone", "label": args.target.label, "clients": args.clients, "modifying": args.modifying, "offered": rate,
                "answered": answered, "calls": times.0.len(), "mean_ms": mean, "worst_10s_mean_ms": worst, "p50_ms": p50, "p99_ms": p99, "max_ms": max,
            });
            println!("{line}");
        } else {
            println!("{rate:9} {answered:10.1} {mean:8.2} {worst:9.2} {p50:8.2} {p99:8.2} {max:8.2}");
        }
        if answered < f64::from(rate) * 0.8 {
            break;
        }
    }
    let (capacity, reached) = capacity(&means);
    if args.json {
        let line = serde_json::json!({
            "bench": "nhfsstone", "label": args.target.label, "modifying": args.modifying, "capacity": capacity, "reached": reached,
            "limit_ms": ACCEPTABLE_MS,
        });
        println!("{line}");
    } else {
        let more = if reached { "" } else { " or more" };
        println!("calls a second with a mean of {ACCEPTABLE_MS} ms: {capacity:.0}{more}");
    }
    Ok(())
}

/// The rate at which the mean response time reaches [`ACCEPTABLE_MS`], and whether it was reached.
/// The rate is interpolated between the last rate below the limit and the first above it. Rates
/// (calls a second) ascend; means are in milliseconds.
fn capacity(means: &[(u32, f64)]) -> (f64, bool) {
    let mut last = (0.0, 0.0);
    for &(rate, mean) in means {
        let here = (f64::from(rate), mean);
        if mean > ACCEPTABLE_MS {
            let part = (ACCEPTABLE_MS - last.1) / (mean - last.1);
            return (last.0 + (here.0 - last.0) * part, true);
        }
        last = here;
    }
    (last.0, false)
}

/// Measures one rate. Returns the answers a second within the time, and the response times of all
/// calls.
async fn one_rate(
    place: &BenchExport,
    args: &NhfsstoneArgs,
    tree: &Arc<Tree>,
    rate: u32,
) -> io::Result<(f64, Windows)> {
    let (due, waiting) = mpsc::channel::<(Instant, Op)>(WAITING_MAX);
    let waiting = Arc::new(Mutex::new(waiting));
    let over = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let end = began + Duration::from_secs(args.seconds);
    let mut clients = Vec::new();
    for n in 0..args.clients {
        let (mut conn, tree) = (Conn::open(place.nfs).await?, tree.clone());
        let (waiting, over) = (waiting.clone(), over.clone());
        let mut dice = StdRng::seed_from_u64(u64::from(n) << 32 | u64::from(rate));
        clients.push(tokio::spawn(async move {
            let (mut times, mut in_time) = (Windows::default(), 0_u64);
            loop {
                let next = waiting.lock().await.recv().await;
                let Some((at, op)) = next.filter(|_| !over.load(Ordering::Relaxed)) else { break };
                tree.call(&mut conn, op, &mut dice).await?;
                let now = Instant::now();
                times.add(at - began, now - at);
                in_time += u64::from(now <= end);
            }
            io::Result::Ok((times, in_time))
        }));
    }
    let mut dice = StdRng::seed_from_u64(u64::from(rate));
    let mut next = began;
    while next < end {
        sleep_until(next).await;
        // Queues all calls that fell due while the timer slept.
        let now = Instant::now();
        while next <= now && next < end {
            if due.try_send((next, pick(&mut dice, args.modifying))).is_err() {
                next = end;
                break;
            }
            let gap = -f64::ln(1.0 - dice.random::<f64>()) / f64::from(rate);
            next += Duration::from_secs_f64(gap);
        }
    }
    drop(due);
    let late = tokio::spawn(async move {
        tokio::time::sleep(FAREWELL).await;
        over.store(true, Ordering::Relaxed);
    });
    let (mut all, mut answered) = (Vec::new(), 0);
    for client in clients {
        let (times, in_time) = client.await.map_err(io::Error::other)??;
        all.push(times);
        answered += in_time;
    }
    late.abort();
    Ok((answered as f64 / args.seconds as f64, Windows::merge(all)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_interpolates_between_rates() {
        assert_eq!(capacity(&[(10, 11.0), (40, 39.0), (50, 44.0)]), (42.0, true));
        assert_eq!(capacity(&[(10, 80.0)]), (5.0, true));
        assert_eq!(capacity(&[(10, 1.0), (20, 40.0)]), (20.0, false));
        assert_eq!(capacity(&[]), (0.0, false));
    }

    /// A stall of a few seconds shows in the worst window, on whichever connection it was.
    #[test]
    fn worst_window_shows_stall() {
        let ms = Duration::from_millis;
        let mut clients = [Windows::default(), Windows::default()];
        for second in 0..40 {
            let time = if (12..15).contains(&second) { ms(1000) } else { ms(10) };
            clients[second as usize % 2].add(Duration::from_secs(second), time);
        }
        let all = Windows::merge(clients.into());
        assert_eq!(all.0.iter().map(|window| window.0.len()).collect::<Vec<_>>(), [10; 4]);
        assert_eq!(all.worst_mean(), (3.0 * 1000.0 + 7.0 * 10.0) / 10.0);
        assert_eq!(Times::merge(all.0).quantile(0.5), 10.0);
        assert_eq!(Windows::merge(Vec::new()).worst_mean(), 0.0);
    }

    #[test]
    fn mix_keeps_modifying_share() {
        for modifying in [0, 5, 19, 100] {
            let mut dice = StdRng::seed_from_u64(7);
            let count = (0..20_000).filter(|_| pick(&mut dice, modifying).modifies()).count();
            assert!(count.abs_diff(modifying as usize * 200) < 300, "{modifying}: {count}");
        }
        // The share of modifying operations in the paper's mix.
        let modifying: u32 = MIX.iter().filter(|(op, _)| op.modifies()).map(|(_, part)| part).sum();
        assert_eq!(modifying, 19);
        assert_eq!(MIX.iter().map(|(_, part)| part).sum::<u32>(), 100);
    }
}
