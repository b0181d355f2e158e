//! `hither stat --server`: the figures of a server, from its control socket.

use crate::cli::Format;
use crate::control::{self, Ask, locate};
use crate::exit::Failure;
use crate::metrics::server::render;
use crate::serve::report::{ClientPart, ConnectionPart, ServerOperation, ServerReport};
use crate::stat::print;
use crate::stat::text::age;
use hither_tools::units::{bytes, duration};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// Most clients and connections in a text.
const ROWS_MAX: usize = 50;

/// The report of the server with this control socket.
///
/// # Errors
/// Those of [`control::ask_at`].
pub fn report(socket: &Path) -> Result<ServerReport, Failure> {
    let name = format!("the server at {}", socket.display());
    serde_json::from_value(control::ask_at(socket, &name, Ask::Stat)?)
        .map_err(|e| Failure::system(format!("{name} is of another version: {e}")))
}

/// Shows the figures once, or every `watch` seconds.
///
/// # Errors
/// Those of [`locate::server`] and [`report`], and formats that a server does not have.
pub fn run(given: Option<&Path>, format: Format, watch: Option<u64>) -> Result<(), Failure> {
    if matches!(format, Format::Mountstats | Format::Nfsstat) {
        return Err(Failure::usage("--server has the formats text, json and prometheus"));
    }
    let socket = locate::server(given)?;
    loop {
        let report = report(&socket)?;
        match format {
            Format::Json => {
                let json = serde_json::to_string(&report).map_err(|e| Failure::system(e.to_string()))?;
                print(&format!("{json}\n"))?;
            }
            Format::Prometheus => print(&render(&report))?,
            _ => print(&text(&report))?,
        }
        let Some(every_s) = watch else { return Ok(()) };
        #[expect(clippy::disallowed_methods, reason = "a command that waits for its terminal, not logic")]
        std::thread::sleep(Duration::from_secs(every_s));
    }
}

/// The figures as tables.
pub fn text(report: &ServerReport) -> String {
    let mut out = summary(report).join("\n");
    out.push_str("\n\n");
    out.push_str(&operations(report).join("\n"));
    for table in [clients(report), connections(report)].iter().filter(|table| table.len() > 1) {
        out.push_str("\n\n");
        out.push_str(&table.join("\n"));
    }
    out.push('\n');
    out
}

/// The lines above the tables.
pub fn summary(r: &ServerReport) -> Vec<String> {
    let c = &r.connections;
    let l = &r.limits;
    let d = &r.delegations;
    let mut lines = vec![
        format!("server      {}, age {}, process {}", r.listen.join(", "), age(r.age_s), r.pid),
        format!("exports     {}", if r.exports.is_empty() { "none".into() } else { r.exports.join(", ") }),
    ];
    for trouble in r.troubles() {
        lines.push(format!("trouble     {trouble}"));
    }
    if let Some(grace) = &r.grace {
        lines.push(format!(
            "grace       {} s left, {} clients may reclaim",
            grace.left_ms.div_ceil(1000),
            grace.reclaimers
        ));
    }
    lines.extend([
        format!(
            "connections {} of {}, {} since the start, {} dropped; received {}, sent {}",
            c.list.len(),
            c.max,
            c.accepted,
            c.dropped,
            bytes(c.received_bytes),
            bytes(c.sent_bytes)
        ),
        format!(
            "limits      memory {} of {}, clients {} of {}, opens and locks {} of {}",
            bytes(l.memory_bytes as u64),
            bytes(l.memory_max_bytes as u64),
            r.clients.len(),
            l.clients_max,
            l.states,
            l.states_max
        ),
        format!(
            "replies     {} of {} cached, {} repeated calls",
            r.reply_cache.entries, r.reply_cache.entries_max, r.reply_cache.hits
        ),
        format!(
            "delegations read {}, write {}, directory {}, of {}; {} recalls, {} questions, {} operations wait",
            d.read, d.write, d.directory, d.max, d.recalls, d.getattrs, d.waiters
        ),
    ]);
    if let Some(n) = &r.nqnfs {
        lines.push(format!(
            "nqnfs       {} of {} clients connected, leases {}, for writing {}",
            n.connected, n.clients, n.leases, n.write_leases
        ));
    }
    if let Some(j) = &r.journal {
        let oldest = j.oldest_ms.map_or_else(|| "none".into(), |ms| duration(ms * 1000));
        lines.push(format!(
            "journal     {} of {}, oldest record {oldest}; {} records in {} writes; {} checkpoints, {} failed, the last took {}",
            bytes(j.used_bytes),
            bytes(j.room_bytes),
            j.records,
            j.batches,
            j.checkpoints,
            j.checkpoint_failures,
            duration(j.last_checkpoint_ms * 1000)
        ));
    }
    lines
}

/// The table of procedures and operations, most calls first within a protocol.
fn operations(report: &ServerReport) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<8} {:<20} {:>10} {:>8} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "PROTOCOL",
        "OPERATION",
        "calls",
        "errors",
        "received",
        "sent",
        "p50",
        "p99",
        "queue",
        "store",
        "journal"
    )];
    let mut rows: Vec<&ServerOperation> = report.operations.iter().collect();
    rows.sort_by(|a, b| a.protocol.cmp(&b.protocol).then(b.calls.cmp(&a.calls)).then(a.name.cmp(&b.name)));
    let mean = |sum_us: u64, op: &ServerOperation| duration(sum_us / op.calls.max(1));
    lines.extend(rows.into_iter().map(|op| {
        format!(
            "{:<8} {:<20} {:>10} {:>8} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}",
            op.protocol,
            op.name,
            op.calls,
            op.errors.values().sum::<u64>(),
            bytes(op.received_bytes),
            bytes(op.sent_bytes),
            duration(op.total.p50_us),
            duration(op.total.p99_us),
            mean(op.queue.sum_us, op),
            mean(op.store.sum_us, op),
            mean(op.journal.sum_us, op)
        )
    }));
    lines
}

/// The table of NFSv4 clients, most bytes first.
pub fn clients(report: &ServerReport) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<20} {:>4} {:>6} {:>6} {:>6} {:>6} {:>6} {:>9} {:>10} {:>10}  CLIENT",
        "ADDRESS", "vers", "tls", "uid", "opens", "locks", "deleg", "silent", "received", "sent"
    )];
    let mut rows: Vec<&ClientPart> = report.clients.iter().collect();
    rows.sort_by_key(|c| (std::cmp::Reverse(c.received_bytes + c.sent_bytes), c.id.clone()));
    lines.extend(rows.iter().take(ROWS_MAX).map(|c| {
        format!(
            "{:<20} {:>4} {:>6} {:>6} {:>6} {:>6} {:>6} {:>9} {:>10} {:>10}  {}",
            c.address,
            c.nfs_version,
            kind(&c.transport),
            uid(c.uid),
            c.opens,
            c.locks,
            c.delegations,
            duration(c.silent_ms * 1000),
            bytes(c.received_bytes),
            bytes(c.sent_bytes),
            c.name
        )
    }));
    more(&mut lines, rows.len());
    lines
}

/// The table of connections, most bytes first.
fn connections(report: &ServerReport) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<26} {:>6} {:>6} {:>9} {:>10} {:>10} {:>10}  TLS",
        "CONNECTION", "vers", "uid", "idle", "calls", "received", "sent"
    )];
    let mut rows: Vec<&ConnectionPart> = report.connections.list.iter().collect();
    rows.sort_by_key(|c| std::cmp::Reverse(c.received_bytes + c.sent_bytes));
    lines.extend(rows.iter().take(ROWS_MAX).map(|c| {
        format!(
            "{:<26} {:>6} {:>6} {:>9} {:>10} {:>10} {:>10}  {}",
            c.address,
            c.protocol.as_deref().unwrap_or("-"),
            uid(c.uid),
            duration(c.idle_ms * 1000),
            c.calls,
            bytes(c.received_bytes),
            bytes(c.sent_bytes),
            c.transport
        )
    }));
    more(&mut lines, rows.len());
    lines
}

/// The kind of a transport, without the name in the client certificate.
fn kind(transport: &str) -> &str {
    transport.split(' ').next().unwrap_or_default()
}

fn more(lines: &mut Vec<String>, rows: usize) {
    if rows > ROWS_MAX {
        let mut line = String::new();
        let _ = write!(line, "({} more; --json has all)", rows - ROWS_MAX);
        lines.push(line);
    }
}

fn uid(uid: Option<u32>) -> String {
    uid.map_or_else(|| "-".into(), |uid| uid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::server::tests::report;

    /// The text has each part of a report. A report passes unchanged through JSON.
    #[test]
    fn server_text_has_every_part() {
        let report = report();
        let text = text(&report);
        for words in [
            "192.0.2.9:2049, age 01:00:00, process 7",
            "exports     /srv",
            "grace       7 s left, 2 clients may reclaim",
            "connections 1 of 4096, 3 since the start, 1 dropped",
            "clients 1 of 16384",
            "mtls build-farm",
            "5 of 65536 cached, 2 repeated calls",
            "read 1, write 2, directory 0, of 100; 4 recalls, 3 questions, 1 operations wait",
            "1 of 2 clients connected, leases 9, for writing 3",
            "oldest record 4.0 s; 80 records in 10 writes; 3 checkpoints, 0 failed, the last took 35.0 ms",
            "Linux NFSv4.2 host",
            "192.0.2.1:700",
            "COMPOUND",
        ] {
            assert!(text.contains(words), "{words} in {text}");
        }
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<ServerReport>(&json).unwrap(), report);
    }
}
