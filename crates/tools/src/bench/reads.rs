//! Calls that change nothing, each client as fast as the server answers, and their cost in
//! processor time of the server.
//!
//! The measured data was just written, so the server has it in memory. Processor time is the user
//! and system time of the server's process, from `/proc/PID/stat`. It is available for a server
//! that is a process on this machine, and includes all of its threads.

use super::client::{BenchExport, Conn, entry};
use super::{Times, Work, hook};
use crate::bench::args::{ReadKind, ReadsArgs};
use bytes::Bytes;
use clap::ValueEnum;
use hither_proto::nfs3::*;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Number of files in the directory.
const FILES: usize = 100;
/// Length of the file to read, in bytes.
const FILE_BYTES: u32 = 16 << 20;
/// Bytes of each WRITE that creates the file.
const WRITE_BYTES: u32 = 256 << 10;

/// Units of `/proc/PID/stat`: USER_HZ, which Linux keeps at 100 for every timer frequency.
const TICKS_PER_SECOND: f64 = 100.0;

struct Tree {
    dir: Fh3,
    files: Vec<Fh3>,
    large: Fh3,
}

/// Measures each kind in turn.
pub async fn run(place: &BenchExport, args: &ReadsArgs) -> io::Result<()> {
    let (work, mut conn) = Work::begin(place).await?;
    let done = all(place, args, &work, &mut conn).await;
    let ended = work.end(place, &args.target).await;
    done.and(ended)
}

async fn all(place: &BenchExport, args: &ReadsArgs, work: &Work, conn: &mut Conn) -> io::Result<()> {
    let tree = Arc::new(make(conn, &work.dir).await?);
    hook(args.target.prepared.as_deref())?;
    if !args.json {
        println!("kind          bytes clients      ops/s  ops/cpu s   p50 ms   p99 ms");
    }
    for &kind in &args.kinds {
        let sizes = if kind == ReadKind::Read { args.sizes.as_slice() } else { &[0] };
        for &size in sizes {
            one(place, args, kind, size, &tree).await?;
        }
    }
    Ok(())
}

async fn make(conn: &mut Conn, top: &Fh3) -> io::Result<Tree> {
    let dir = conn.mkdir(top, "names").await?;
    let mut files = Vec::new();
    for n in 0..FILES {
        files.push(conn.create(&dir, &format!("file{n}")).await?);
    }
    let large = conn.create(top, "large").await?;
    let data = Bytes::from(vec![0x77; WRITE_BYTES as usize]);
    for offset in (0..FILE_BYTES).step_by(WRITE_BYTES as usize) {
        conn.write(&large, offset.into(), &data, StableHow::UNSTABLE).await?;
    }
    conn.commit(&large).await?;
    Ok(Tree { dir, files, large })
}

async fn one(
    place: &BenchExport,
    args: &ReadsArgs,
    kind: ReadKind,
    size: u32,
    tree: &Arc<Tree>,
) -> io::Result<()> {
    let conns = Conn::open_many(place.nfs, args.clients as usize).await?;
    let cpu_before = args.pid.map(cpu_seconds).transpose()?;
    let began = Instant::now();
    let end = began + Duration::from_secs(args.seconds);
    let mut clients = Vec::new();
    for (n, mut conn) in conns.into_iter().enumerate() {
        let tree = tree.clone();
        clients.push(tokio::spawn(async move {
            let mut times = Times::default();
            for i in n.. {
                let from = Instant::now();
                if from >= end {
                    break;
                }
                call(&mut conn, kind, size, &tree, i).await?;
                times.add(from.elapsed());
            }
            io::Result::Ok(times)
        }));
    }
    let mut times = Vec::new();
    for client in clients {
        times.push(client.await.map_err(io::Error::other)??);
    }
    let (took, times) = (began.elapsed().as_secs_f64(), Times::merge(times));
    let cpu = match (args.pid, cpu_before) {
        (Some(pid), Some(before)) => Some(cpu_seconds(pid)? - before),
        _ => None,
    };
    let calls = times.0.len() as f64;
    let (rate, per_cpu) = (calls / took, cpu.map(|cpu| calls / cpu.max(0.01)));
    let (p50, p99) = (times.quantile(0.5), times.quantile(0.99));
    let kind = kind.to_possible_value().map_or_else(String::new, |value| value.get_name().into());
    if args.json {
        let line = serde_json::json!({
            "bench": "reads", "label": args.target.label, "kind": kind, "size_bytes": size, "clients": args.clients, "ops_s": rate,
            "cpu_s": cpu, "ops_cpu_s": per_cpu, "p50_ms": p50, "p99_ms": p99,
        });
        println!("{line}");
    } else {
        let per_cpu = per_cpu.map_or_else(|| "-".into(), |n| format!("{n:.0}"));
        println!("{kind:12} {size:6} {:7} {rate:10.0} {per_cpu:>10} {p50:8.2} {p99:8.2}", args.clients);
    }
    Ok(())
}

async fn call(conn: &mut Conn, kind: ReadKind, size: u32, tree: &Tree, i: usize) -> io::Result<()> {
    let n = i % FILES;
    let status = match kind {
        ReadKind::Getattr => conn.call(&GetattrArgs { object: tree.files[n].clone() }).await?.status(),
        ReadKind::Lookup => {
            conn.call(&LookupArgs { what: entry(&tree.dir, &format!("file{n}")) }).await?.status()
        }
        ReadKind::Readdirplus => {
            let args = ReaddirplusArgs {
                dir: tree.dir.clone(),
                cookie: 0,
                cookieverf: [0; 8],
                dircount: 32 << 10,
                maxcount: 128 << 10,
            };
            conn.call(&args).await?.status()
        }
        ReadKind::Read => {
            let offset = i as u64 % u64::from((FILE_BYTES / size).max(1)) * u64::from(size);
            let read = conn.call(&ReadArgs { file: tree.large.clone(), offset, count: size }).await?;
            let short = || io::Error::other("a READ within the file was short");
            let ok =
                read.into_result().map_err(|(status, _)| io::Error::other(format!("READ: {status:?}")))?;
            return if ok.count == size { Ok(()) } else { Err(short()) };
        }
    };
    if status == Nfsstat3::OK { Ok(()) } else { Err(io::Error::other(format!("{kind:?}: {status:?}"))) }
}

/// Processor time of a process so far, in seconds: user and system time of all threads.
fn cpu_seconds(pid: u32) -> io::Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let ticks = cpu_ticks(&text).ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat: {text}")))?;
    Ok(ticks as f64 / TICKS_PER_SECOND)
}

/// `utime` and `stime` of `/proc/PID/stat` (proc(5)): fields 14 and 15.
fn cpu_ticks(stat: &str) -> Option<u64> {
    // The second field is in parentheses and may contain any characters.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields are found after process names with blanks and parentheses.
    #[test]
    fn cpu_ticks_follow_any_name() {
        let stat = "7 (a) b 9 9) S 1 7 7 0 -1 4194560 500 0 0 0 120 30 0 0 20 0 9 0 100 1 1";
        assert_eq!(cpu_ticks(stat), Some(150));
        assert_eq!(cpu_ticks("7 (a) S 1"), None);
        assert!(cpu_seconds(std::process::id()).unwrap() >= 0.0);
    }
}
