//! Stable changes of one kind, each client as fast as the server answers.

use super::client::{BenchExport, Conn};
use super::{Times, Work, hook};
use crate::bench::args::{SyncArgs, SyncKind};
use bytes::Bytes;
use clap::ValueEnum;
use futures_util::future::try_join_all;
use hither_proto::nfs3::{Fh3, StableHow};
use std::io;
use std::time::Duration;
use tokio::time::Instant;

/// A client writes its file again from the start after this many bytes.
const FILE_BYTES: u64 = 4 << 20;

/// A client's directory and the file in it.
type Own = (Fh3, Fh3);

/// Measures each number of clients in turn.
pub async fn run(place: &BenchExport, args: &SyncArgs) -> io::Result<()> {
    let (work, _) = Work::begin(place).await?;
    let done = all(place, args, &work.dir).await;
    let ended = work.end(place, &args.target).await;
    done.and(ended)
}

async fn all(place: &BenchExport, args: &SyncArgs, dir: &Fh3) -> io::Result<()> {
    let mut ready = Vec::new();
    for &kind in &args.kinds {
        for &clients in &args.clients {
            ready.push((kind, own(place, kind, clients, dir).await?));
        }
    }
    hook(args.target.prepared.as_deref())?;
    if !args.json {
        println!("kind         clients      ops/s  mean ms   p50 ms   p99 ms   max ms");
    }
    for (kind, own) in ready {
        one(place, args, kind, own).await?;
    }
    Ok(())
}

/// Makes a directory and a file for each client, so that no client waits for another's directory.
async fn own(place: &BenchExport, kind: SyncKind, clients: u32, dir: &Fh3) -> io::Result<Vec<Own>> {
    let conns = Conn::open_many(place.nfs, clients as usize).await?;
    let made = conns.into_iter().enumerate().map(async |(n, mut conn)| {
        let own = conn.mkdir(dir, &format!("{kind:?}-{clients}-{n}")).await?;
        let file = conn.create(&own, "file").await?;
        io::Result::Ok((own, file))
    });
    try_join_all(made).await
}

async fn one(place: &BenchExport, args: &SyncArgs, kind: SyncKind, own: Vec<Own>) -> io::Result<()> {
    let mut all = Vec::new();
    let clients = own.len();
    let conns = Conn::open_many(place.nfs, clients).await?;
    let began = Instant::now();
    let end = began + Duration::from_secs(args.seconds);
    let data = Bytes::from(vec![0x33; args.size as usize]);
    for (mut conn, (own, file)) in conns.into_iter().zip(own) {
        let data = data.clone();
        all.push(tokio::spawn(async move {
            let mut times = Times::default();
            for i in 0_u64.. {
                let from = Instant::now();
                if from >= end {
                    break;
                }
                change(&mut conn, kind, &own, &file, i, &data).await?;
                times.add(from.elapsed());
            }
            io::Result::Ok(times)
        }));
    }
    let mut times = Vec::new();
    for client in all {
        times.push(client.await.map_err(io::Error::other)??);
    }
    let (took, times) = (began.elapsed().as_secs_f64(), Times::merge(times));
    let rate = times.0.len() as f64 / took;
    let (mean, p50, p99, max) =
        (times.mean(), times.quantile(0.5), times.quantile(0.99), times.quantile(1.0));
    let kind = kind.to_possible_value().map_or_else(String::new, |value| value.get_name().into());
    if args.json {
        let line = serde_json::json!({
            "bench": "sync", "label": args.target.label, "kind": kind, "clients": clients,
            "size_bytes": args.size, "ops_s": rate, "mean_ms": mean, "p50_ms": p50, "p99_ms": p99, "max_ms": max,
        });
        println!("{line}");
    } else {
        println!("{kind:12} {clients:7} {rate:10.0} {mean:8.2} {p50:8.2} {p99:8.2} {max:8.2}");
    }
    Ok(())
}

/// Makes one change.
async fn change(
    conn: &mut Conn,
    kind: SyncKind,
    dir: &Fh3,
    file: &Fh3,
    i: u64,
    data: &Bytes,
) -> io::Result<()> {
    let len = data.len() as u64;
    let offset = i % (FILE_BYTES / len).max(1) * len;
    match kind {
        SyncKind::Write => conn.write(file, offset, data, StableHow::FILE_SYNC).await,
        SyncKind::Commit => {
            conn.write(file, offset, data, StableHow::UNSTABLE).await?;
            conn.commit(file).await
        }
        SyncKind::Create => conn.create(dir, &format!("c{i}")).await.map(drop),
        SyncKind::CreateWrite => {
            let file = conn.create(dir, &format!("w{i}")).await?;
            conn.write(&file, 0, data, StableHow::FILE_SYNC).await
        }
        SyncKind::Remove => {
            conn.create(dir, "r").await?;
            conn.remove(dir, "r").await
        }
        SyncKind::Rename if i.is_multiple_of(2) => conn.rename(dir, "file", "moved").await,
        SyncKind::Rename => conn.rename(dir, "moved", "file").await,
        SyncKind::Setattr => conn.chmod(file, 0o600 + i as u32 % 0o100).await,
    }
}
