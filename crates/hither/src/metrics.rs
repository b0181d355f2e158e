//! A report in the format of Prometheus, for `hither stat --format prometheus` and `metrics=`. The
//! report of a server is in [`server`].
//!
//! docs/METRICS.md lists the names. Metrics that node_exporter has for the kernel's NFS client have
//! the same names, so that its dashboards show both. The others begin with `hither_`. The text
//! format is 0.0.4.

pub mod endpoint;
pub mod server;
#[cfg(test)]
mod tests;

use crate::report::{Connection, Counters, Latency, Operation, Report};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Counters of layers that are present values and not sums.
const GAUGES: &[&str] = &[
    "memory_bytes",
    "objects",
    "dirty_files",
    "dirty_bytes",
    "dirty_bytes_peak",
    "dirty_max_bytes",
    "entries",
    "entry_bytes",
    "queue_bytes",
    "off",
    "journal_files",
    "journal_bytes",
    "ahead_objects",
    "ahead_bytes",
    "removals_waiting",
    "journal_room_bytes",
    "journal_max_bytes",
    "journal_failed",
    "conflicts",
    "held",
    "delegations_read",
    "delegations_write",
    "delegations_directory",
    "connected",
    "files_open",
];

/// The metrics of a mount.
pub fn render(report: &Report) -> String {
    let m = &report.mount;
    let mount = format!("export=\"{}\",mountpoint=\"{}\"", escape(&m.source), escape(&m.dir));
    let address = m.server.rsplit_once(':').map_or(m.server.as_str(), |(host, _)| host);
    let node = format!("{mount},protocol=\"tcp\",mountaddr=\"{}\"", escape(address));
    let mut page = Page::default();
    let info = format!(
        "{mount},version=\"{}\",nfs_version=\"{}\",server=\"{}\"",
        env!("CARGO_PKG_VERSION"),
        escape(&m.nfs_version),
        escape(&m.server)
    );
    page.one("hither_info", "gauge", "The mount; always 1.", &info, 1.0);
    page.one(
        "node_mountstats_nfs_age_seconds_total",
        "counter",
        "Seconds since the mount.",
        &node,
        m.age_s as f64,
    );
    page.operations(&report.operations, &node, &mount);
    page.connections(&report.connections, &node, &mount);
    for (name, help, counts) in [
        ("hither_fuse_requests_total", "Requests of the kernel.", &report.fuse),
        (
            "hither_fuse_errors_total",
            "Requests of the kernel that were answered with an error.",
            &report.fuse_errors,
        ),
    ] {
        page.family(name, "counter", help);
        for (request, n) in counts {
            page.sample(name, &format!("{mount},request=\"{}\"", request.to_lowercase()), *n as f64);
        }
    }
    page.layers(&report.layers, &mount);
    page.0
}

const VERSION_LABEL: &str = concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"");

/// Escapes a label's value.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A metric of one operation: name, description, value.
type OfOperation = (&'static str, &'static str, fn(&Operation) -> f64);
/// A metric of one connection: name, type, description, value.
type OfConnection = (&'static str, &'static str, &'static str, fn(&Connection) -> f64);

/// A duration of one operation: name, description, percentiles and the sum in milliseconds.
type OfTime = (&'static str, &'static str, fn(&Operation) -> (&Latency, u64));

const OPERATIONS: &[OfOperation] = &[
    ("requests_total", "Calls that ended.", |op| op.calls as f64),
    ("transmissions_total", "Times that calls were sent.", |op| (op.calls + op.retransmissions) as f64),
    ("major_timeouts_total", "Times that timeo and retrans were used up.", |op| op.timeouts as f64),
    ("sent_bytes_total", "Bytes of calls.", |op| op.bytes_sent as f64),
    ("received_bytes_total", "Bytes of replies.", |op| op.bytes_received as f64),
    ("queue_time_seconds_total", "Time before the first transmission.", |op| op.queue_ms as f64 / 1e3),
    ("response_time_seconds_total", "Time from transmission to reply.", |op| op.rtt_ms as f64 / 1e3),
    ("request_time_seconds_total", "Time from start to end.", |op| op.execute_ms as f64 / 1e3),
];

const CONNECTIONS: &[OfConnection] = &[
    ("connect_total", "counter", "Times the connection was established.", |c| c.connects as f64),
    ("idle_time_seconds", "gauge", "Time since the last message.", |c| c.idle_s as f64),
    ("sends_total", "counter", "Calls sent.", |c| c.sends as f64),
    ("receives_total", "counter", "Replies received.", |c| c.receives as f64),
    ("bad_transaction_ids_total", "counter", "Replies to no call in flight.", |c| c.bad_xids as f64),
    ("backlog_queue_total", "counter", "Calls that waited for room, summed over calls sent.", |c| {
        c.backlog_sum as f64
    }),
    ("maximum_rpc_slots", "gauge", "Most calls ever in flight.", |c| c.max_in_flight as f64),
    ("sending_queue_total", "counter", "Calls waiting to be sent, summed over calls sent.", |c| {
        c.sending_sum as f64
    }),
    ("pending_queue_total", "counter", "Calls in flight, summed over calls sent.", |c| c.pending_sum as f64),
];

/// The lines of a page.
#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(self.0, "{name}{{{labels}}} {value}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, labels: &str, value: f64) {
        self.family(name, kind, help);
        self.sample(name, labels, value);
    }

    fn operations(&mut self, operations: &[Operation], node: &str, mount: &str) {
        for (name, help, value) in OPERATIONS {
            let name = format!("node_mountstats_nfs_operations_{name}");
            self.family(&name, "counter", help);
            for op in operations {
                self.sample(&name, &format!("{node},operation=\"{}\"", op.name), value(op));
            }
        }
        let name = "hither_operation_errors_total";
        self.family(name, "counter", "Calls that failed or were answered with an error.");
        for op in operations {
            self.sample(name, &format!("{mount},operation=\"{}\"", op.name), op.errors as f64);
        }
        let time: [OfTime; 2] = [
            ("hither_operation_seconds", "Time from beginning to end of a call.", |op| {
                (&op.latency_us, op.execute_ms)
            }),
            ("hither_operation_rtt_seconds", "Time from the last transmission to the reply.", |op| {
                (&op.rtt_us, op.rtt_ms)
            }),
        ];
        for (name, help, of) in time {
            self.family(name, "summary", help);
            for op in operations {
                let labels = format!("{mount},operation=\"{}\"", op.name);
                let (latency, sum_ms) = of(op);
                for (quantile, us) in [("0.5", latency.p50), ("0.9", latency.p90), ("0.99", latency.p99)] {
                    self.sample(name, &format!("{labels},quantile=\"{quantile}\""), us as f64 / 1e6);
                }
                self.sample(&format!("{name}_sum"), &labels, sum_ms as f64 / 1e3);
                self.sample(&format!("{name}_count"), &labels, op.calls as f64);
            }
        }
    }

    fn connections(&mut self, connections: &[Connection], node: &str, mount: &str) {
        for (name, kind, help, value) in CONNECTIONS {
            let name = format!("node_mountstats_nfs_transport_{name}");
            self.family(&name, kind, help);
            for (i, c) in connections.iter().enumerate() {
                self.sample(&name, &format!("{node},transport=\"{i}\""), value(c));
            }
        }
        let own: [OfConnection; 6] = [
            ("hither_connection_up", "gauge", "1 while the connection is established.", |c| {
                c.connected.into()
            }),
            ("hither_connection_calls_in_flight", "gauge", "Calls without a reply now.", |c| {
                c.in_flight as f64
            }),
            (
                "hither_connection_failures_total",
                "counter",
                "Times the connection could not be established.",
                |c| c.connect_failures as f64,
            ),
            ("hither_connection_drops_total", "counter", "Times the connection was lost.", |c| {
                c.drops as f64
            }),
            ("hither_connection_sent_bytes_total", "counter", "Bytes written.", |c| c.bytes_sent as f64),
            ("hither_connection_received_bytes_total", "counter", "Bytes read.", |c| c.bytes_received as f64),
        ];
        for (name, kind, help, value) in own {
            self.family(name, kind, help);
            for (i, c) in connections.iter().enumerate() {
                self.sample(name, &format!("{mount},transport=\"{i}\""), value(c));
            }
        }
    }

    /// Metrics `hither_LAYER_NAME`, with `_total` for sums. A group of counters is one metric with
    /// a label.
    fn layers(&mut self, layers: &BTreeMap<String, Counters>, mount: &str) {
        for (layer, counters) in layers {
            let Counters::Group(group) = counters else { continue };
            for (counter, value) in group {
                let stem = counter.strip_prefix(&format!("{layer}_")).unwrap_or(counter);
                let gauge = GAUGES.contains(&counter.as_str());
                let (kind, end) = if gauge { ("gauge", "") } else { ("counter", "_total") };
                let name = format!("hither_{layer}_{stem}{end}");
                self.family(&name, kind, &format!("{counter} of layers.{layer} in hither stat --json."));
                match value {
                    Counters::Count(n) => self.sample(&name, mount, *n as f64),
                    Counters::Group(reasons) => {
                        for (reason, n) in reasons {
                            if let Counters::Count(n) = n {
                                let labels = format!("{mount},reason=\"{}\"", escape(reason));
                                self.sample(&name, &labels, *n as f64);
                            }
                        }
                    }
                }
            }
        }
    }
}
