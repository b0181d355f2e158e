//! `hither bench`: the papers' experiments, and measurements of any NFSv3 server.
//!
//! [`papers`] lists the experiments. [`run`] runs those that need only a directory, with the
//! workloads of the laboratory. [`results`] reads the measurements of both. [`plot`] draws them.
//! [`report`] judges the papers' claims by them.
//!
//! A server measurement uses no mount and no mount client, only the wire. Each client has a
//! connection with one call at a time, so that only the server is measured. `nhfsstone` offers
//! Moran's mix of operations at a fixed rate, even if the server cannot keep up (open loop), and
//! reports response times. In `sync` each client makes one kind of stable change as fast as the
//! server answers (closed loop). Both work in a directory of their own and remove it at the end.
//! [`sharing`] lets two mounts share files and reports stale reads.

mod args;
mod client;
mod mix;
mod papers;
mod plot;
mod reads;
mod report;
mod results;
mod run;
mod sharing;
mod stable;
#[cfg(test)]
mod tests;

use crate::Host;
use crate::exit::Failure;
use crate::exit::print;
use crate::source::Source;
pub use args::BenchArgs;
use args::{BenchCommand, BenchTarget};
use client::{BenchExport, Conn};
use hither_proto::nfs3::Fh3;
use results::Selection;
use std::io;
use std::net::SocketAddr;

/// Runs a measurement, or evaluates earlier ones.
///
/// # Errors
/// The server is unreachable or refuses a call, a file cannot be read or written, or a workload
/// failed.
pub fn run(host: &dyn Host, args: &BenchArgs) -> Result<(), Failure> {
    match &args.what {
        BenchCommand::List(list) => papers::list(list.json),
        BenchCommand::Run(run) => run::run(run),
        BenchCommand::Compare(both) => {
            let (a, b) = (Selection::read(&both.a)?.of_one()?, Selection::read(&both.b)?.of_one()?);
            print(&results::compare(&a, &b)?)
        }
        BenchCommand::Plot(what) => plot::draw(what),
        BenchCommand::Report(what) => report::write(what),
        BenchCommand::Nhfsstone(mix) => {
            on(host, &mix.target, |place| async move { mix::run(&place, mix).await })
        }
        BenchCommand::Sync(stable) => {
            on(host, &stable.target, |place| async move { stable::run(&place, stable).await })
        }
        BenchCommand::Reads(reads) => {
            on(host, &reads.target, |place| async move { reads::run(&place, reads).await })
        }
        BenchCommand::Sharing(args) => sharing::run(host, args),
    }
}

/// Runs a measurement of a server.
fn on<F: Future<Output = io::Result<()>>>(
    host: &dyn Host,
    target: &BenchTarget,
    measure: impl FnOnce(BenchExport) -> F,
) -> Result<(), Failure> {
    host.prepare();
    let runtime = host.runtime()?;
    runtime.block_on(async {
        let measured = measure(place(target)?).await;
        measured.map_err(|e| Failure::mount(format!("{}: {e}", target.source)))
    })
}

fn place(target: &BenchTarget) -> Result<BenchExport, Failure> {
    let source = Source::parse(&target.source).map_err(Failure::usage)?;
    let unknown = || Failure::mount(format!("{}: the server has no address", target.source));
    let addrs = source.resolve(None).map_err(|_| unknown())?;
    let ip = addrs.first().ok_or_else(unknown)?.ip();
    let at = |port| SocketAddr::new(ip, port);
    Ok(BenchExport {
        nfs: at(target.port),
        mount: at(target.mountport.unwrap_or(target.port)),
        path: source.path,
    })
}

/// Number of connections that remove the test files.
const CLEARING: usize = 32;

/// The working directory of a measurement at the server.
struct Work {
    root: Fh3,
    dir: Fh3,
    name: String,
}

impl Work {
    async fn begin(place: &BenchExport) -> io::Result<(Self, Conn)> {
        let root = client::root(place).await?;
        let mut conn = Conn::open(place.nfs).await?;
        let name = format!("hither-bench.{}", std::process::id());
        let dir = conn.mkdir(&root, &name).await?;
        Ok((Self { root, dir, name }, conn))
    }

    async fn end(self, place: &BenchExport, target: &BenchTarget) -> io::Result<()> {
        hook(target.measured.as_deref())?;
        let mut conns = Conn::open_many(place.nfs, CLEARING).await?;
        client::clear(&mut conns, &self.dir).await?;
        conns[0].rmdir(&self.root, &self.name).await
    }
}

/// Runs a shell command if one is given.
fn hook(command: Option<&str>) -> io::Result<()> {
    let Some(command) = command else { return Ok(()) };
    // The output of the command must not mix with the results.
    let ended = std::process::Command::new("sh").args(["-c", command]).stdout(io::stderr()).status()?;
    if ended.success() { Ok(()) } else { Err(io::Error::other(format!("{command}: {ended}"))) }
}

/// Response times, in microseconds.
#[derive(Default)]
struct Times(Vec<u32>);

impl Times {
    fn add(&mut self, time: std::time::Duration) {
        self.0.push(u32::try_from(time.as_micros()).unwrap_or(u32::MAX));
    }

    fn merge(all: Vec<Self>) -> Self {
        let mut all: Vec<u32> = all.into_iter().flat_map(|t| t.0).collect();
        all.sort_unstable();
        Self(all)
    }

    /// A quantile in milliseconds. The times must be sorted.
    fn quantile(&self, part: f64) -> f64 {
        let at = (self.0.len() as f64 * part) as usize;
        self.0.get(at.min(self.0.len().saturating_sub(1))).map_or(0.0, |&us| f64::from(us) / 1000.0)
    }

    /// The mean in milliseconds.
    fn mean(&self) -> f64 {
        let sum: f64 = self.0.iter().map(|&us| f64::from(us)).sum();
        if self.0.is_empty() { 0.0 } else { sum / self.0.len() as f64 / 1000.0 }
    }
}
