//! A report as tables.

use crate::report::{Counters, Latency, Operation, Report};
use hither_tools::units::{bytes, duration};
use std::fmt::Write;

/// The figures since the mount.
pub fn whole(report: &Report) -> String {
    let m = &report.mount;
    let mut out = format!("{} on {}: NFS {}, server {}\n", m.source, m.dir, m.nfs_version, m.server);
    let _ = writeln!(out, "options     {}", m.options);
    if let Some(transport) = &m.transport {
        let _ = writeln!(out, "transport   {transport}");
    }
    if let Some(dir) = &m.cache {
        let trouble = m.cache_trouble.as_ref().map_or_else(String::new, |why| format!("; off: {why}"));
        let _ = writeln!(out, "disk cache  {dir}{trouble}");
    }
    if let Some(dir) = &m.journal {
        let trouble = m.journal_trouble.as_ref().map_or_else(String::new, |why| format!("; off: {why}"));
        let _ = writeln!(out, "journal     {dir}{trouble}");
    }
    let _ = writeln!(out, "age         {}, daemon {}", age(m.age_s), m.pid);
    for c in &report.connections {
        let state = if c.connected { "connected" } else { "not connected" };
        let lost = c.connects.saturating_sub(1);
        let _ = writeln!(
            out,
            "connection  port {}, {state}, idle {} s, lost {lost} times, failed {} times; sent {}, received {}",
            c.local_port,
            c.idle_s,
            c.connect_failures,
            bytes(c.bytes_sent),
            bytes(c.bytes_received)
        );
    }
    if !report.fuse.is_empty() {
        let requests: Vec<String> =
            report.fuse.iter().filter(|(_, n)| **n > 0).map(|(name, n)| format!("{name} {n}")).collect();
        let _ = writeln!(out, "requests    {}", requests.join(", "));
    }
    for (layer, counters) in &report.layers {
        let mut parts = Vec::new();
        counts(&mut parts, "", counters);
        if !parts.is_empty() {
            let _ = writeln!(out, "{layer:<11} {}", parts.join(", "));
        }
    }
    let answered = answered(report);
    if !answered.is_empty() {
        let _ = writeln!(out, "answered    {}", answered.join(", "));
    }
    out.push('\n');
    table(&mut out, &report.operations);
    out
}

/// The share of requests that the caches answered, by layer.
pub fn answered(report: &Report) -> Vec<String> {
    let mut parts = Vec::new();
    for Questions { what, here, asked } in questions(report) {
        if let Some(percent) = (here * 100).checked_div(here + asked) {
            parts.push(format!("{percent} % of {} {what}", here + asked));
        }
    }
    let brought = report.count("meta", "prefetched_bytes");
    if let Some(percent) = (report.count("meta", "prefetch_used_bytes") * 100).checked_div(brought) {
        parts.push(format!("{percent} % of {} prefetched bytes were used", bytes(brought)));
    }
    parts
}

/// The requests of one kind.
#[derive(Debug, Clone, Copy)]
pub struct Questions {
    /// The kind, such as `names`.
    pub what: &'static str,
    /// Number of requests that the caches answered.
    pub here: u64,
    /// Number of requests to the server.
    pub asked: u64,
}

/// The requests of each kind.
pub fn questions(report: &Report) -> Vec<Questions> {
    let count = |layer: &str, names: &[&str]| names.iter().map(|name| report.count(layer, name)).sum::<u64>();
    [
        ("names", "meta", &["name_hits", "negative_hits"][..], &["name_misses"][..]),
        ("attributes", "meta", &["attr_hits"], &["attr_misses"]),
        ("listings", "meta", &["listing_hits"], &["listing_misses"]),
        ("rights", "meta", &["access_hits"], &["access_misses"]),
        ("opens", "meta", &["virtual_opens"], &["real_opens"]),
        ("reads from the disk cache", "disk", &["hits"], &["misses"]),
    ]
    .map(|(what, layer, here, asked)| Questions {
        what,
        here: count(layer, here),
        asked: count(layer, asked),
    })
    .to_vec()
}

/// `name count` of each nonzero counter.
fn counts(parts: &mut Vec<String>, name: &str, counters: &Counters) {
    match counters {
        Counters::Count(0) => {}
        Counters::Count(n) if name.ends_with("_bytes") => {
            parts.push(format!("{} {}", name.trim_end_matches("_bytes"), bytes(*n)));
        }
        Counters::Count(n) => parts.push(format!("{name} {n}")),
        Counters::Group(group) => {
            for (inner, counters) in group {
                let name = if name.is_empty() { inner.clone() } else { format!("{name}:{inner}") };
                counts(parts, &name, counters);
            }
        }
    }
}

/// Mean round-trip time of the calls since `old`, from sums of whole milliseconds.
fn mean_rtt_us(op: &Operation, old: Option<&Operation>) -> f64 {
    let calls = op.calls.saturating_sub(old.map_or(0, |o| o.calls));
    let rtt_ms = op.rtt_ms.saturating_sub(old.map_or(0, |o| o.rtt_ms));
    if calls == 0 { 0.0 } else { rtt_ms as f64 * 1e3 / calls as f64 }
}

/// The increase within `every_s` seconds, as a table.
pub fn change(before: &Report, now: &Report, every_s: u64) -> String {
    let mut out = format!("\nafter {} (+{every_s} s)\n", age(now.mount.age_s));
    table(&mut out, &added(before, now));
    out
}

/// The calls between two reports, with their mean round-trip times. Percentiles are those since the
/// mount.
pub fn added(before: &Report, now: &Report) -> Vec<Operation> {
    now.operations
        .iter()
        .filter_map(|op| {
            let old = before.operations.iter().find(|o| o.name == op.name);
            let minus = |new: u64, old: Option<u64>| new.saturating_sub(old.unwrap_or(0));
            let op = Operation {
                calls: minus(op.calls, old.map(|o| o.calls)),
                retransmissions: minus(op.retransmissions, old.map(|o| o.retransmissions)),
                timeouts: minus(op.timeouts, old.map(|o| o.timeouts)),
                errors: minus(op.errors, old.map(|o| o.errors)),
                bytes_sent: minus(op.bytes_sent, old.map(|o| o.bytes_sent)),
                bytes_received: minus(op.bytes_received, old.map(|o| o.bytes_received)),
                rtt_us: Latency { mean: mean_rtt_us(op, old), ..op.rtt_us.clone() },
                ..op.clone()
            };
            (op.calls + op.retransmissions + op.timeouts + op.errors > 0).then_some(op)
        })
        .collect()
}

fn table(out: &mut String, operations: &[Operation]) {
    if operations.is_empty() {
        out.push_str("no calls\n");
        return;
    }
    let mut rows: Vec<&Operation> = operations.iter().collect();
    rows.sort_by(|a, b| b.calls.cmp(&a.calls).then(a.name.cmp(&b.name)));
    let width = rows.iter().map(|op| op.name.len()).max().unwrap_or(0).max(9);
    let _ = writeln!(
        out,
        "{:<width$} {:>9} {:>6} {:>8} {:>7} {:>10} {:>10} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "operation",
        "calls",
        "resent",
        "timeouts",
        "errors",
        "sent",
        "received",
        "rtt",
        "p50",
        "p90",
        "p99",
        "max"
    );
    let mut line = |name: &str, op: &Operation, latency: bool| {
        let time = |us: u64| if latency { duration(us) } else { String::new() };
        let l = &op.latency_us;
        let row = format!(
            "{name:<width$} {:>9} {:>6} {:>8} {:>7} {:>10} {:>10} {:>8} {:>8} {:>8} {:>8} {:>8}",
            op.calls,
            op.retransmissions,
            op.timeouts,
            op.errors,
            bytes(op.bytes_sent),
            bytes(op.bytes_received),
            time(op.rtt_us.mean as u64),
            time(l.p50),
            time(l.p90),
            time(l.p99),
            time(l.max)
        );
        let _ = writeln!(out, "{}", row.trim_end());
    };
    for op in &rows {
        line(&op.name, op, true);
    }
    if let Some(first) = rows.first() {
        let sum = |of: fn(&Operation) -> u64| rows.iter().map(|op| of(op)).sum();
        let total = Operation {
            calls: sum(|op| op.calls),
            retransmissions: sum(|op| op.retransmissions),
            timeouts: sum(|op| op.timeouts),
            errors: sum(|op| op.errors),
            bytes_sent: sum(|op| op.bytes_sent),
            bytes_received: sum(|op| op.bytes_received),
            ..(*first).clone()
        };
        line("all", &total, false);
    }
}

/// `3 d 04:05:06`.
pub fn age(s: u64) -> String {
    let (days, rest) = (s / 86_400, s % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    if days > 0 { format!("{days} d {clock}") } else { clock }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_tools::report::sample::{op, report};

    #[test]
    fn tables_show_every_figure() {
        let text = whole(&report(vec![op("READ", 1), op("LOOKUP", 10)]));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "s:/x on /mnt: NFS 4.2, server 10.0.0.1:2049");
        assert_eq!(lines[2], "disk cache  /c; off: it is full");
        assert_eq!(lines[3], "age         1 d 01:01:01, daemon 7");
        assert!(lines[4].starts_with("connection  port 800, connected, idle 1 s, lost 1 times"));
        assert_eq!(lines[5], "requests    LOOKUP 5");
        assert_eq!(lines[6], "meta        hits 3, memory 2.0 KiB, name_hits 3, name_misses 1");
        assert_eq!(lines[7], "answered    75 % of 4 names");
        let fields = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>().join(" ");
        assert_eq!(fields(lines[10]), "LOOKUP 10 1 0 2 2.0 KiB 3.0 MiB 140 µs 150 µs 1.5 ms 2.5 s 3.0 s");
        assert_eq!(fields(lines[12]), "all 11 2 0 4 4.0 KiB 6.0 MiB");
    }

    /// `--watch` shows the increase since the last report.
    #[test]
    fn watch_shows_increase() {
        let before = report(vec![op("READ", 1)]);
        let mut now = report(vec![op("READ", 5), op("NULL", 0)]);
        (now.operations[0].rtt_ms, now.operations[0].rtt_us.mean) = (8, 140.0);
        now.operations[1] = Operation { retransmissions: 0, errors: 0, ..now.operations[1].clone() };
        let text = change(&before, &now, 2);
        assert!(text.contains("READ              4      0"), "{text}");
        assert!(text.contains(" 2.0 ms "), "eight milliseconds of four calls: {text}");
        assert!(!text.contains("NULL"));
        assert!(change(&before, &before, 2).ends_with("no calls\n"));
    }
}
