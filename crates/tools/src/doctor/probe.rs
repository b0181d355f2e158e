//! Measurements at a server with an NFS client of their own and no mount, so that no cache answers.
//!
//! Without `--write` nothing changes at the server. With `--write` there is a temporary file named
//! `.hither-doctor-` and a number. It is removed unless the doctor is killed.

use super::measured::{Limits, Measured, Offered, Spread, Throughput};
use super::tcp;
use crate::{ClientSettings, Host};
use bytes::Bytes;
use hither_nfs::Connected;
use hither_vfs::{
    Create, Cred, Data, Env, Fh, File, FileKind, Name, OpenAccess, OpenHow, OpenId, PathRef, RequestContext,
    Result, SetAttr, SetTime, Stability, Validity, Vfs,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Number of calls of a latency measurement.
const CALLS: usize = 30;
/// Bytes of a small write.
const SMALL_BYTES: u64 = 4096;
/// Number of READs and WRITEs in flight.
const DEPTH: usize = 8;
/// Longest time of a transfer in one direction.
const MOVE_WITHIN: Duration = Duration::from_secs(5);
/// Longest time for one call.
const PATIENCE: Duration = Duration::from_secs(30);
/// A smaller file is not suitable for a throughput measurement.
const LARGE_BYTES: u64 = 1 << 20;
/// Number of directories in which a large file is searched.
const DIRECTORIES: usize = 8;
/// Time for the release of state at the server.
const FAREWELL: Duration = Duration::from_secs(5);

/// Tries each version. Returns a connection with the highest version that works.
pub async fn versions(host: &dyn Host, client: &ClientSettings, m: &mut Measured) -> Option<Connected> {
    let mut chosen: Option<Connected> = None;
    for &version in &client.versions {
        let mut options = client.options.clone();
        options.version = Some(version);
        let connected = tokio::time::timeout(PATIENCE, hither_nfs::connect(&options, host.env())).await;
        let why = match connected {
            Ok(Ok(connected)) => {
                match chosen {
                    Some(_) => leave(&connected).await,
                    None => chosen = Some(connected),
                }
                None
            }
            Ok(Err(e)) => Some(e.to_string()),
            Err(_) => Some(format!("no answer within {} s", PATIENCE.as_secs())),
        };
        m.versions.push(Offered { version: version.name(), works: why.is_none(), why });
    }
    if let Some(c) = &chosen {
        m.version = Some(c.version.name().to_string());
        m.limits = Some(Limits {
            rsize_bytes: c.rsize_bytes,
            wsize_bytes: c.wsize_bytes,
            slots: c.session.map(|s| s.slots),
            operations: c.session.map(|s| s.operations),
            request_bytes: c.session.map(|s| s.request_bytes),
            response_bytes: c.session.map(|s| s.response_bytes),
            lease_s: c.session.map(|s| s.lease.as_secs()),
        });
    }
    chosen
}

/// Releases this client's state at the server.
pub async fn leave(connected: &Connected) {
    let cx = cx_within(FAREWELL);
    let _ = tokio::time::timeout(FAREWELL, connected.vfs.shutdown(&cx)).await;
}

fn cx_within(time: Duration) -> RequestContext {
    RequestContext { deadline: Some(Instant::now() + time), ..RequestContext::new(Arc::new(Cred::root())) }
}

/// Measures over one connection.
pub struct Probe<'a> {
    pub host: &'a dyn Host,
    pub connected: &'a Connected,
    /// Most bytes to move in each direction.
    pub most_bytes: u64,
}

impl Probe<'_> {
    fn vfs(&self) -> &Arc<dyn Vfs> {
        &self.connected.vfs
    }

    /// Makes all measurements. Failed ones are recorded.
    pub async fn measure(&self, write: bool, m: &mut Measured) {
        let root = match self.vfs().root(&cx_within(PATIENCE)).await {
            Ok(root) => root.fh,
            Err(e) => return m.skipped.push(format!("everything behind the root directory: {e}")),
        };
        match self.getattrs(&root).await {
            Ok(times) => m.getattr_us = Spread::of(times),
            Err(e) => m.skipped.push(format!("GETATTR: {e}")),
        }
        if write {
            if let Err(e) = self.writes(&root, m).await {
                m.skipped.push(format!("writing, stable storage and the server's clock: {e}"));
            }
        } else {
            m.skipped
                .push("writing, stable storage and the server's clock: --write makes a file for it".into());
            match self.large_file(&root).await {
                Ok(Some((fh, size))) => self.reads(&fh, size, m).await,
                Ok(None) => m.skipped.push(
                    "reading and delegations: no file of 1 MiB or more was found near the root directory"
                        .into(),
                ),
                Err(e) => m.skipped.push(format!("reading: {e}")),
            }
        }
        self.connection(m);
    }

    async fn getattrs(&self, fh: &Fh) -> Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            let began = Instant::now();
            self.vfs().getattr(&cx_within(PATIENCE), File { fh, open: None }).await?;
            times.push(began.elapsed());
        }
        Ok(times)
    }

    /// The largest file in the root directory or in one of its first directories.
    async fn large_file(&self, root: &Fh) -> Result<Option<(Fh, u64)>> {
        let (mut best, mut dirs): (Option<(Fh, u64)>, Vec<Fh>) = (None, vec![root.clone()]);
        let mut looked = 0;
        while let Some(dir) = dirs.pop() {
            looked += 1;
            let page = self.vfs().readdir(&cx_within(PATIENCE), &dir, 0, [0; 8], 64 << 10, true).await;
            for node in page.map(|page| page.entries).unwrap_or_default().into_iter().filter_map(|e| e.node) {
                let attr = &node.attrs.attr;
                match attr.kind {
                    FileKind::Regular if best.as_ref().is_none_or(|(_, size)| attr.size_bytes > *size) => {
                        best = Some((node.fh, attr.size_bytes));
                    }
                    FileKind::Directory if dirs.len() + looked < DIRECTORIES => dirs.push(node.fh),
                    _ => {}
                }
            }
            if best.as_ref().is_some_and(|(_, size)| *size >= self.most_bytes) {
                break;
            }
        }
        Ok(best.filter(|(_, size)| *size >= LARGE_BYTES))
    }

    /// Opens and reads a file. Records whether the open returned a delegation.
    async fn reads(&self, fh: &Fh, size: u64, m: &mut Measured) {
        let cx = cx_within(PATIENCE);
        let how = OpenHow::existing(OpenAccess::READ);
        let opened = match self.vfs().open(&cx, PathRef::fh(fh), &how).await {
            Ok(opened) => opened,
            Err(e) => return m.skipped.push(format!("opening a file: {e}")),
        };
        if !self.connected.version.is_stateless() {
            m.delegation = Some(opened.node.attrs.valid == Validity::Lease);
        }
        match self.moved(fh, Some(opened.open), size.min(self.most_bytes), None).await {
            Ok(moved) => m.read = Some(moved),
            Err(e) => m.skipped.push(format!("reading: {e}")),
        }
        let _ = self.vfs().close(&cx_within(PATIENCE), fh, opened.open).await;
    }

    /// Transfers bytes with several calls at a time: `data` to the file, or from the file without
    /// `data`.
    async fn moved(
        &self,
        fh: &Fh,
        open: Option<OpenId>,
        size: u64,
        data: Option<Bytes>,
    ) -> Result<Throughput> {
        let step =
            u64::from(if data.is_some() { self.connected.wsize_bytes } else { self.connected.rsize_bytes });
        let (next, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let began = Instant::now();
        let mut movers = JoinSet::new();
        for _ in 0..DEPTH {
            let (vfs, fh, data) = (self.vfs().clone(), fh.clone(), data.clone());
            let (next, done) = (next.clone(), done.clone());
            movers.spawn(async move {
                while began.elapsed() < MOVE_WITHIN {
                    let at = next.fetch_add(step, Ordering::Relaxed);
                    if at >= size {
                        break;
                    }
                    let len = step.min(size - at);
                    let (cx, file) = (cx_within(PATIENCE), File { fh: &fh, open });
                    let n = match &data {
                        None => vfs.read(&cx, file, at, len as u32).await?.data.len() as u64,
                        Some(data) => {
                            let piece = Data::from(data.slice(..len as usize));
                            vfs.write(&cx, file, at, piece, Stability::Unstable).await?.bytes
                        }
                    };
                    done.fetch_add(n, Ordering::Relaxed);
                }
                Ok::<_, hither_vfs::Error>(())
            });
        }
        while let Some(ended) = movers.join_next().await {
            ended.unwrap_or_else(|e| Err(hither_vfs::Error::because(libc::EIO, e.to_string())))?;
        }
        if data.is_some() {
            self.vfs().commit(&cx_within(PATIENCE), File { fh, open }).await?;
        }
        Ok(Throughput { bytes: done.load(Ordering::Relaxed), took_us: began.elapsed().as_micros() as u64 })
    }

    /// Creates a file, writes and reads it, and removes it.
    async fn writes(&self, root: &Fh, m: &mut Measured) -> Result<()> {
        let env = self.host.env();
        let name = Name::new(format!(".hither-doctor-{:016x}", (env.random)()))?;
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let how = OpenHow {
            create: Create::Exclusive(set),
            ..OpenHow::existing(OpenAccess::READ | OpenAccess::WRITE)
        };
        let opened = self.vfs().open(&cx_within(PATIENCE), PathRef::name(root, &name), &how).await?;
        let fh = opened.node.fh.clone();
        let outcome = self.with_file(&fh, opened.open, &env, m).await;
        let closed = self.vfs().close(&cx_within(PATIENCE), &fh, opened.open).await;
        if let (Ok(size), Ok(())) = (&outcome, &closed) {
            self.reads(&fh, *size, m).await;
        }
        let removed = self.vfs().unlink(&cx_within(PATIENCE), root, &name, None).await;
        if let Err(e) = removed {
            let name = String::from_utf8_lossy(name.as_bytes()).into_owned();
            m.skipped.push(format!("removing {name}, which is left at the server: {e}"));
        }
        outcome.map(drop).and(closed)
    }

    /// Measures with an open file. Returns the file's length.
    async fn with_file(&self, fh: &Fh, open: OpenId, env: &Env, m: &mut Measured) -> Result<u64> {
        let file = File { fh, open: Some(open) };
        let piece = noise(env, SMALL_BYTES as usize);
        for stability in [Stability::Unstable, Stability::Stable] {
            let mut times = Vec::with_capacity(CALLS);
            for i in 0..CALLS as u64 {
                let began = Instant::now();
                let cx = cx_within(PATIENCE);
                self.vfs().write(&cx, file, i * SMALL_BYTES, piece.clone().into(), stability).await?;
                times.push(began.elapsed());
            }
            if stability == Stability::Unstable {
                self.vfs().commit(&cx_within(PATIENCE), file).await?;
                m.unstable_write_us = Spread::of(times);
            } else {
                m.stable_write_us = Spread::of(times);
            }
        }
        m.clock_ahead_us = self.clock(file, env).await?;
        let data = noise(env, self.connected.wsize_bytes as usize);
        let moved = self.moved(fh, Some(open), self.most_bytes, Some(data)).await?;
        m.write = Some(moved);
        Ok(moved.bytes)
    }

    /// How far the server's clock is ahead. The server timestamps the file between two reads of the
    /// local clock.
    async fn clock(&self, file: File<'_>, env: &Env) -> Result<Option<(i64, u64)>> {
        let now_us = || (env.wall)().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64;
        let mut best: Option<(i64, u64)> = None;
        for _ in 0..5 {
            let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
            let before = now_us();
            let attrs = self.vfs().setattr(&cx_within(PATIENCE), file, &set).await?;
            let after = now_us();
            let stamp = attrs.attr.mtime.secs * 1_000_000 + i64::from(attrs.attr.mtime.nanos / 1000);
            // File systems use a clock that ticks, so a timestamp may be up to 10 ms late.
            let error = after.abs_diff(before) / 2 + 10_000;
            if best.is_none_or(|(_, e)| error < e) {
                best = Some((stamp - i64::midpoint(before, after), error));
            }
        }
        Ok(best)
    }

    /// Records TCP's figures of the connection at the end.
    fn connection(&self, m: &mut Measured) {
        let stats = self.connected.stats.snapshot();
        m.calls = stats.transports.iter().map(|t| t.sends).sum();
        let ports: Vec<u16> = stats.transports.iter().map(|t| t.local_port).collect();
        match tcp::connections(self.connected.server, &ports) {
            Ok(found) => m.tcp = found.into_iter().next(),
            Err(e) => m.skipped.push(format!("the kernel's figures of the connection: {e}")),
        }
    }
}

/// Random bytes, which a server can neither compress nor deduplicate.
fn noise(env: &Env, len: usize) -> Bytes {
    let words = (0..len.div_ceil(8)).flat_map(|_| (env.random)().to_le_bytes());
    words.take(len).collect::<Vec<u8>>().into()
}
