//! `hither doctor SERVER[:/PATH]` or `hither doctor DIR`: measures a server, the network path to it
//! and this machine, and names faults and remedies.
//!
//! Measuring ([`ping`], [`probe`], [`tcp`], [`local`]), judging ([`verdict`], rules over the
//! numbers in [`measured`]) and printing are separate. For a mount the doctor uses the daemon's
//! figures. It contacts the mount's server over connections of its own.

mod args;
mod local;
mod measured;
mod ping;
mod probe;
mod tcp;
#[cfg(test)]
mod tests;
mod verdict;

use crate::exit::{self, Failure, print};
use crate::report::Report;
use crate::source::Source;
use crate::units::{bytes, duration};
use crate::{ClientRequest, ClientSettings, Host};
pub use args::DoctorArgs;
use measured::{Limits, Measured, Mix, Spread, Throughput};
use probe::Probe;
use serde_json::json;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tcp::Tcp;
use verdict::{Finding, Level};

/// Version of the field names of `--json`.
const VERSION: u32 = 1;
/// The usual directory of a disk cache.
const CACHE_DIR: &str = "/var/cache/hither";

/// Measures, judges and prints.
///
/// # Errors
/// Nothing could be measured, or there is something to change ([`exit::FOUND`]).
pub fn run(host: &'static dyn Host, args: &DoctorArgs) -> Result<(), Failure> {
    let runtime = host.runtime()?;
    let result = runtime.block_on(examine(host, args));
    runtime.shutdown_timeout(Duration::from_secs(1));
    let measured = result?;
    let findings = verdict::judge(&measured);
    if args.json {
        let all = json!({ "version": VERSION, "measured": measured, "findings": findings });
        print(&format!("{all}\n"))?;
    } else {
        print(&text(&measured, &findings))?;
    }
    match findings.iter().filter(|f| f.level == Level::Problem).count() {
        0 => Ok(()),
        1 => Err(Failure { code: exit::FOUND, line: "1 problem found".into() }),
        n => Err(Failure { code: exit::FOUND, line: format!("{n} problems found") }),
    }
}

/// The server to measure, and the facts known before.
struct Patient {
    client: ClientSettings,
    /// True if the target contains an export path.
    path: bool,
    report: Option<Report>,
    cache: Option<PathBuf>,
}

async fn examine(host: &'static dyn Host, args: &DoctorArgs) -> Result<Measured, Failure> {
    let target = args.clone();
    let patient = tokio::task::spawn_blocking(move || patient(host, &target)).await;
    let patient = patient.map_err(|e| Failure::system(e.to_string()))??;
    let mut m = Measured { target: args.target.display().to_string(), ..Measured::default() };
    let server = patient.client.server;
    m.server = server.to_string();
    match ping::ping(server, patient.client.options.tls.clone()).await {
        Ok(pings) => {
            m.connect_us = Some(pings.connect.as_micros() as u64);
            m.rtt_us = Spread::of(pings.rtts);
            if !pings.v3 && !pings.v4 {
                return Err(Failure::mount(format!("{server} answers, but speaks neither NFSv3 nor NFSv4")));
            }
        }
        Err(e) => return Err(Failure::mount(format!("{server}: {e}; is the server up, and the port open?"))),
    }
    if patient.path {
        match probe::versions(host, &patient.client, &mut m).await {
            Some(connected) => {
                let most_bytes = u64::from(args.size) << 20;
                Probe { host, connected: &connected, most_bytes }.measure(args.write, &mut m).await;
                probe::leave(&connected).await;
            }
            None => {
                let whys: Vec<String> = m.versions.iter().filter_map(|v| v.why.clone()).collect();
                let why = whys.last().cloned().unwrap_or_default();
                return Err(Failure::mount(why));
            }
        }
    } else {
        m.skipped.push("everything behind the round trip: give a path, SERVER:/PATH".into());
    }
    machine(patient, &mut m).await;
    Ok(m)
}

fn patient(host: &dyn Host, args: &DoctorArgs) -> Result<Patient, Failure> {
    let text = args.target.to_string_lossy();
    if args.target.is_absolute()
        || args.target.starts_with(".")
        || !text.contains(':') && args.target.is_dir()
    {
        return of_mount(host, args);
    }
    let path = text.contains(":/");
    let source = if path { text.to_string() } else { format!("{}:/", bracketed(&text)) };
    let source = Source::parse(&source).map_err(Failure::usage)?;
    let options = args.options.clone();
    let client = host.client(ClientRequest { source, dir: "/".into(), options, server: None })?;
    let cache = args.cache_dir.clone().or_else(|| Some(CACHE_DIR.into())).filter(|dir| dir.is_dir());
    Ok(Patient { client, path, report: None, cache })
}

/// Puts an IPv6 address in brackets, as needed before a path.
fn bracketed(host: &str) -> String {
    if host.parse::<std::net::Ipv6Addr>().is_ok() { format!("[{host}]") } else { host.to_string() }
}

/// The server of a mount, at the address and port that the mount uses.
fn of_mount(host: &dyn Host, args: &DoctorArgs) -> Result<Patient, Failure> {
    let daemon = host.daemon(&args.target)?;
    let report = daemon.report()?;
    let dir = daemon.dir();
    let odd = |what: &str| Failure::system(format!("the daemon of {dir} reports no {what}"));
    let source = Source::parse(&report.mount.source).map_err(|_| odd("source"))?;
    let server: SocketAddr = report.mount.server.parse().map_err(|_| odd("address"))?;
    let mut options = args.options.clone();
    options.push(format!("port={}", server.port()));
    // Each connection of the doctor uses TLS like those of the mount.
    let is_tls = |word: &&str| word.starts_with("xprtsec=") || word.starts_with("tls-");
    options.extend(report.mount.options.split(',').filter(is_tls).map(String::from));
    let client = host.client(ClientRequest { source, dir: dir.into(), options, server: Some(server) })?;
    let cache = args.cache_dir.clone().or_else(|| report.mount.cache.clone().map(PathBuf::from));
    Ok(Patient { client, path: true, report: Some(report), cache })
}

/// Measurements of this machine.
async fn machine(patient: Patient, m: &mut Measured) {
    let fuse_minor = patient.report.as_ref().and_then(|report| report.mount.fuse_minor);
    m.kernel = local::kernel(fuse_minor);
    if let Some(dir) = patient.cache {
        let measured = tokio::task::spawn_blocking(move || local::disk(&dir)).await;
        match measured {
            Ok(Ok(disk)) => m.disk = Some(disk),
            Ok(Err(e)) => m.skipped.push(format!("the disk of the cache: {e}")),
            Err(e) => m.skipped.push(format!("the disk of the cache: {e}")),
        }
    }
    m.mount = patient.report.as_ref().map(mix);
}

/// The figures of a mount that the verdict uses.
fn mix(report: &Report) -> Mix {
    let sum = |of: fn(&crate::report::Operation) -> u64| report.operations.iter().map(of).sum();
    let mut most: Vec<(String, u64, u64)> =
        report.operations.iter().map(|op| (op.name.clone(), op.calls, op.execute_ms)).collect();
    most.sort_by_key(|(_, _, ms)| std::cmp::Reverse(*ms));
    most.truncate(5);
    let ports: Vec<u16> = report.connections.iter().map(|c| c.local_port).collect();
    let server = report.mount.server.parse();
    Mix {
        dir: report.mount.dir.clone(),
        calls: sum(|op| op.calls),
        resent: sum(|op| op.retransmissions),
        timeouts: sum(|op| op.timeouts),
        drops: report.connections.iter().map(|c| c.drops).sum(),
        queue_ms: sum(|op| op.queue_ms),
        rtt_ms: sum(|op| op.rtt_ms),
        execute_ms: sum(|op| op.execute_ms),
        bytes: sum(|op| op.bytes_sent + op.bytes_received),
        pushbacks: report.count("dirty", "pushbacks"),
        most,
        tcp: server.ok().and_then(|server| tcp::connections(server, &ports).ok()).unwrap_or_default(),
    }
}

/// The measurements and findings as text.
fn text(m: &Measured, findings: &[Finding]) -> String {
    let mut out = format!("{}: server {}\n", m.target, m.server);
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(out, "{name:<15} {value}");
        }
    };
    line("connecting", m.connect_us.map(duration));
    line("round trip", m.rtt_us.map(spread));
    line("GETATTR", m.getattr_us.map(spread));
    for offered in &m.versions {
        let why = offered.why.as_ref().map_or_else(|| "works".into(), |why| format!("no: {why}"));
        line(&format!("NFS {}", offered.version), Some(why));
    }
    line("limits", m.limits.as_ref().map(limits));
    line("reading", m.read.map(speed));
    line("writing", m.write.map(speed));
    line("write 4 KiB", m.unstable_write_us.map(spread));
    line("... stable", m.stable_write_us.map(spread));
    line("TCP", m.tcp.as_ref().map(connection));
    for skipped in &m.skipped {
        line("not measured", Some(skipped.clone()));
    }
    out.push('\n');
    for finding in findings {
        let level = match finding.level {
            Level::Fine => "ok",
            Level::Note => "note",
            Level::Problem => "PROBLEM",
        };
        let part = format!("{:?}", finding.part).to_lowercase();
        let _ = writeln!(out, "{level:<8} {part:<8} {}", finding.what);
        if let Some(change) = &finding.change {
            let _ = writeln!(out, "{:17} -> {change}", "");
        }
    }
    out
}

fn spread(s: Spread) -> String {
    format!(
        "{} (min {}, max {}, {} samples)",
        duration(s.median),
        duration(s.min),
        duration(s.max),
        s.samples
    )
}

fn limits(l: &Limits) -> String {
    let session = match (l.slots, l.operations, l.request_bytes, l.response_bytes, l.lease_s) {
        (Some(slots), Some(operations), Some(request), Some(response), Some(lease)) => format!(
            ", {slots} slots, {operations} operations, requests {}, replies {}, lease {lease} s",
            bytes(request.into()),
            bytes(response.into())
        ),
        _ => String::new(),
    };
    format!("READ {}, WRITE {}{session}", bytes(l.rsize_bytes.into()), bytes(l.wsize_bytes.into()))
}

fn speed(t: Throughput) -> String {
    format!("{}/s ({} in {})", bytes(t.per_second()), bytes(t.bytes), duration(t.took_us))
}

fn connection(t: &Tcp) -> String {
    format!(
        "rtt {} (min {}), segments of {} bytes, packets of {}, {} of {} sent again, {} of {} out of order, delivery {}/s",
        duration(t.rtt_us.into()),
        duration(t.rtt_min_us.into()),
        t.mss_bytes,
        t.path_mtu_bytes,
        t.segments_resent,
        t.segments_sent,
        t.segments_out_of_order,
        t.segments_received,
        bytes(t.delivery_bytes_per_s)
    )
}
