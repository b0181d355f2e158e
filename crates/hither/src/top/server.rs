//! `hither top --server`: the present calls of a server by operation, and its busiest clients.

use super::Frame;
use crate::exit::Failure;
use crate::serve::report::{ConnectionPart, ServerOperation, ServerReport};
use crate::stat::server::{report, summary};
use hither_tools::units::{bytes, duration};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The figures of a server at the last round.
pub struct ServerWatch {
    socket: PathBuf,
    before: ServerReport,
}

/// The traffic of an address.
#[derive(Default)]
struct Traffic {
    protocols: Vec<String>,
    connections: u64,
    calls: u64,
    received_bytes: u64,
    sent_bytes: u64,
}

impl ServerWatch {
    /// Begins with the present figures.
    ///
    /// # Errors
    /// Those of [`report`].
    pub fn new(socket: PathBuf) -> Result<Self, Failure> {
        let before = report(&socket)?;
        Ok(Self { socket, before })
    }

    /// The next round.
    ///
    /// # Errors
    /// Those of [`report`].
    pub fn frame(&mut self, every: Duration) -> Result<Frame, Failure> {
        let now = report(&self.socket)?;
        let frame = frame(&self.before, &now, every);
        self.before = now;
        Ok(frame)
    }
}

fn frame(before: &ServerReport, now: &ServerReport, every: Duration) -> Frame {
    let seconds = every.as_secs_f64().max(0.001);
    let rate = |n: u64| n as f64 / seconds;
    let total = |of: fn(&ServerReport) -> u64| rate(of(now).saturating_sub(of(before)));
    let mut head = summary(now);
    head.push(format!(
        "calls       {:.0}/s, received {}/s, sent {}/s",
        total(|r| r.connections.calls),
        bytes(total(|r| r.connections.received_bytes) as u64),
        bytes(total(|r| r.connections.sent_bytes) as u64)
    ));
    Frame {
        head,
        operations: operations(before, now, seconds),
        processes: addresses(before, now, seconds),
        files: Vec::new(),
    }
}

fn operations(before: &ServerReport, now: &ServerReport, seconds: f64) -> Vec<String> {
    let earlier = |op: &ServerOperation| {
        before.operations.iter().find(|old| (&old.protocol, &old.name) == (&op.protocol, &op.name))
    };
    let mut rows: Vec<(u64, String)> = Vec::new();
    for op in &now.operations {
        let old = earlier(op);
        let since = |of: fn(&ServerOperation) -> u64| of(op).saturating_sub(old.map_or(0, of));
        let calls = since(|op| op.calls);
        if calls == 0 {
            continue;
        }
        let mean = |sum_us: u64| duration(sum_us / calls);
        let line = format!(
            "{:<8} {:<20} {:>9.1} {:>9} {:>9} {:>9} {:>9} {:>12} {:>12}",
            op.protocol,
            op.name,
            calls as f64 / seconds,
            mean(since(|op| op.total.sum_us)),
            mean(since(|op| op.queue.sum_us)),
            mean(since(|op| op.store.sum_us)),
            mean(since(|op| op.journal.sum_us)),
            bytes((since(|op| op.received_bytes) as f64 / seconds) as u64),
            bytes((since(|op| op.sent_bytes) as f64 / seconds) as u64)
        );
        rows.push((calls, line));
    }
    rows.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut lines = vec![format!(
        "{:<8} {:<20} {:>9} {:>9} {:>9} {:>9} {:>9} {:>12} {:>12}",
        "PROTOCOL", "OPERATION", "calls/s", "each", "queue", "store", "journal", "received/s", "sent/s"
    )];
    lines.extend(rows.into_iter().map(|(_, line)| line));
    lines
}

/// The traffic of each address with a connection, most bytes first.
fn addresses(before: &ServerReport, now: &ServerReport, seconds: f64) -> Vec<String> {
    let earlier: BTreeMap<&str, &ConnectionPart> =
        before.connections.list.iter().map(|c| (c.address.as_str(), c)).collect();
    let mut all: BTreeMap<&str, Traffic> = BTreeMap::new();
    for c in &now.connections.list {
        let host = c.address.rsplit_once(':').map_or(c.address.as_str(), |(host, _)| host);
        // A younger connection may have the port of an ended one.
        let old = earlier.get(c.address.as_str()).filter(|old| old.calls <= c.calls && old.age_s <= c.age_s);
        let since = |of: fn(&ConnectionPart) -> u64| of(c).saturating_sub(old.map_or(0, |old| of(old)));
        let traffic = all.entry(host).or_default();
        traffic.connections += 1;
        traffic.calls += since(|c| c.calls);
        traffic.received_bytes += since(|c| c.received_bytes);
        traffic.sent_bytes += since(|c| c.sent_bytes);
        if let Some(protocol) = c.protocol.as_ref().filter(|p| !traffic.protocols.contains(p)) {
            traffic.protocols.push(protocol.clone());
        }
    }
    let mut rows: Vec<(&str, Traffic)> = all.into_iter().collect();
    rows.sort_by(|a, b| {
        let bytes = |t: &Traffic| t.received_bytes + t.sent_bytes;
        bytes(&b.1).cmp(&bytes(&a.1)).then(a.0.cmp(b.0))
    });
    let per_second = |n: u64| (n as f64 / seconds) as u64;
    let mut lines = vec![format!(
        "{:>11} {:>9} {:>12} {:>12}  ADDRESS",
        "connections", "calls/s", "received/s", "sent/s"
    )];
    lines.extend(rows.iter().map(|(host, traffic)| {
        format!(
            "{:>11} {:>9.1} {:>12} {:>12}  {host} {}",
            traffic.connections,
            traffic.calls as f64 / seconds,
            bytes(per_second(traffic.received_bytes)),
            bytes(per_second(traffic.sent_bytes)),
            traffic.protocols.join(",")
        )
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::server::tests::report as sample;

    /// A round shows what happened since the round before, by operation and by address.
    #[test]
    fn server_round_shows_rates() {
        let (before, mut now) = (sample(), sample());
        let read = &mut now.operations[0];
        read.calls += 10;
        read.store.sum_us += 5000;
        now.connections.calls += 10;
        now.connections.list[0].calls += 10;
        now.connections.list[0].sent_bytes += 4096;
        let lines = frame(&before, &now, Duration::from_secs(2)).lines(200, 50);
        let squeezed: Vec<String> =
            lines.iter().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert!(
            squeezed.contains(&"nfs3 READ 5.0 0 µs 0 µs 500 µs 0 µs 0 B 0 B".to_string()),
            "{squeezed:#?}"
        );
        assert!(squeezed.contains(&"1 5.0 0 B 2.0 KiB 192.0.2.1 nfs3".to_string()), "{squeezed:#?}");
        assert!(!lines.iter().any(|l| l.contains("COMPOUND")), "an idle operation is not shown");
    }
}
