//! nhfsstone (P3): Moran's mix of operations, offered at a fixed rate.
//!
//! Calls fall due at random moments of the rate (exponentially distributed gaps) and wait in one queue for a connection that is free;
//! their time begins when they fall due, so that a server that falls behind is seen to. Stable writes are what NFS version 2
//! had, and so has the mix.

use super::client::{Conn, Place, entry};
use super::{Times, Work};
use crate::cli::NhfsstoneArgs;
use bytes::Bytes;
use hither_proto::nfs3::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, sleep_until};

/// Operations in percent (P3, figure 1).
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
/// Directories, and files and links in each.
const DIRS: usize = 10;
const FILES: usize = 40;
const LINKS: usize = 8;
/// Length of a file and of a READ or WRITE, in bytes.
const FILE_BYTES: u64 = 64 << 10;
const IO_BYTES: u32 = 8192;
/// Calls that wait for a connection; with more, the server is hopelessly late.
const WAITING_MAX: usize = 100_000;
/// How long calls that are late are waited for at the end of a rate.
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

/// The files that the calls are about.
struct Tree {
    dirs: Vec<Dir>,
    data: Bytes,
    /// Names that were made, in order, to be removed.
    next_made: AtomicU64,
    next_removed: AtomicU64,
    made: Fh3,
}

struct Dir {
    fh: Fh3,
    files: Vec<Fh3>,
    links: Vec<Fh3>,
}

impl Tree {
    async fn make(conn: &mut Conn, top: &Fh3) -> io::Result<Self> {
        let data = Bytes::from(vec![0x5a; IO_BYTES as usize]);
        let whole = Bytes::from(vec![0xa5; FILE_BYTES as usize]);
        let mut dirs = Vec::new();
        for d in 0..DIRS {
            let fh = conn.mkdir(top, &format!("d{d}")).await?;
            let mut dir = Dir { fh, files: Vec::new(), links: Vec::new() };
            for f in 0..FILES {
                let file = conn.create(&dir.fh, &format!("file{f}")).await?;
                conn.write(&file, 0, &whole, StableHow::UNSTABLE).await?;
                conn.commit(&file).await?;
                dir.files.push(file);
            }
            for l in 0..LINKS {
                dir.links.push(conn.symlink(&dir.fh, &format!("link{l}"), &format!("file{l}")).await?);
            }
            dirs.push(dir);
        }
        let made = conn.mkdir(top, "made").await?;
        Ok(Self { dirs, data, next_made: AtomicU64::new(0), next_removed: AtomicU64::new(0), made })
    }

    /// Does one call; an error is one of the server.
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
                return conn.create(&self.made, &format!("m{name}")).await.map(drop);
            }
            Op::Remove => {
                let name = self.next_removed.fetch_add(1, Ordering::Relaxed);
                let args = RemoveArgs { object: entry(&self.made, &format!("m{name}")) };
                match conn.call(&args).await?.status() {
                    // As often removed as made; some come too soon.
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

fn pick(dice: &mut StdRng) -> Op {
    let mut n = dice.random_range(0..100);
    for (op, percent) in MIX {
        if n < percent {
            return op;
        }
        n -= percent;
    }
    Op::Getattr
}

/// Measures each rate in turn, and ends when the server is far behind.
pub async fn run(place: &Place, args: &NhfsstoneArgs) -> io::Result<()> {
    let (work, mut conn) = Work::begin(place).await?;
    let done = rates(place, args, &work, &mut conn).await;
    let ended = work.end(&mut conn).await;
    done.and(ended)
}

async fn rates(place: &Place, args: &NhfsstoneArgs, work: &Work, conn: &mut Conn) -> io::Result<()> {
    let tree = Arc::new(Tree::make(conn, &work.dir).await?);
    if !args.json {
        println!("offered/s answered/s  mean ms   p50 ms   p99 ms   max ms");
    }
    for &rate in &args.rates {
        let (answered, times) = one_rate(place, args, &tree, rate).await?;
        let (mean, p50, p99, max) =
            (times.mean(), times.quantile(0.5), times.quantile(0.99), times.quantile(1.0));
        if args.json {
            let line = serde_json::json!({
                "bench": "nhfsstone", "label": args.target.label, "clients": args.clients, "offered": rate,
                "answered": answered, "calls": times.0.len(), "mean_ms": mean, "p50_ms": p50, "p99_ms": p99, "max_ms": max,
            });
            println!("{line}");
        } else {
            println!("{rate:9} {answered:10.1} {mean:8.2} {p50:8.2} {p99:8.2} {max:8.2}");
        }
        if answered < f64::from(rate) * 0.8 {
            break;
        }
    }
    Ok(())
}

/// Answers a second within the time, and how long all took.
async fn one_rate(
    place: &Place,
    args: &NhfsstoneArgs,
    tree: &Arc<Tree>,
    rate: u32,
) -> io::Result<(f64, Times)> {
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
            let (mut times, mut in_time) = (Times::default(), 0_u64);
            loop {
                let next = waiting.lock().await.recv().await;
                let Some((at, op)) = next.filter(|_| !over.load(Ordering::Relaxed)) else { break };
                tree.call(&mut conn, op, &mut dice).await?;
                let now = Instant::now();
                times.add(now - at);
                in_time += u64::from(now <= end);
            }
            io::Result::Ok((times, in_time))
        }));
    }
    let mut dice = StdRng::seed_from_u64(u64::from(rate));
    let mut next = began;
    while next < end {
        sleep_until(next).await;
        // All that fell due while the timer slept.
        let now = Instant::now();
        while next <= now && next < end {
            if due.try_send((now, pick(&mut dice))).is_err() {
                next = end;
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
    Ok((answered as f64 / args.seconds as f64, Times::merge(all)))
}
