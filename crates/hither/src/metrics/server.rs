//! The metrics of a server, for `hither serve --metrics` and `hither stat --server`.
//!
//! docs/METRICS.md lists the names.

use super::{Page, VERSION_LABEL, escape};
use crate::serve::report::{ConnectionPart, JournalPart, POWERS, Phase, ServerOperation, ServerReport};

/// A metric without labels of its own: name, type, description, value.
type Single<T> = (&'static str, &'static str, &'static str, fn(&T) -> f64);

const SINGLES: &[Single<ServerReport>] = &[
    ("hither_server_age_seconds", "gauge", "Seconds since the start.", |r| r.age_s as f64),
    ("hither_server_ready", "gauge", "1 when /readyz has no complaint.", |r| {
        f64::from(u8::from(r.troubles().is_empty()))
    }),
    ("hither_server_exports", "gauge", "Exports.", |r| r.exports.len() as f64),
    ("hither_server_grace", "gauge", "1 in the grace period.", |r| f64::from(u8::from(r.grace.is_some()))),
    ("hither_server_reclaimers", "gauge", "Clients that may still reclaim their state.", |r| {
        r.grace.as_ref().map_or(0, |grace| grace.reclaimers) as f64
    }),
    ("hither_server_connections", "gauge", "Connections.", |r| r.connections.list.len() as f64),
    ("hither_server_connections_max", "gauge", "Most connections.", |r| r.connections.max as f64),
    ("hither_server_connections_total", "counter", "Connections accepted.", |r| {
        r.connections.accepted as f64
    }),
    (
        "hither_server_connections_dropped_total",
        "counter",
        "Connections ended because of their client.",
        |r| r.connections.dropped as f64,
    ),
    ("hither_server_calls_total", "counter", "Calls of all connections.", |r| r.connections.calls as f64),
    ("hither_server_network_received_bytes_total", "counter", "Bytes read from connections.", |r| {
        r.connections.received_bytes as f64
    }),
    ("hither_server_network_sent_bytes_total", "counter", "Bytes written to connections.", |r| {
        r.connections.sent_bytes as f64
    }),
    ("hither_server_memory_bytes", "gauge", "Memory of calls and replies.", |r| r.limits.memory_bytes as f64),
    ("hither_server_memory_max_bytes", "gauge", "Most memory of calls and replies.", |r| {
        r.limits.memory_max_bytes as f64
    }),
    ("hither_server_clients", "gauge", "Clients of NFSv4.", |r| r.clients.len() as f64),
    ("hither_server_clients_max", "gauge", "Most clients of NFSv4.", |r| r.limits.clients_max as f64),
    ("hither_server_states", "gauge", "Opens, locks and delegations of NFSv4.", |r| r.limits.states as f64),
    ("hither_server_states_max", "gauge", "Most opens and locks.", |r| r.limits.states_max as f64),
    ("hither_server_reply_cache_entries", "gauge", "Stored replies of NFSv3 and NQNFS.", |r| {
        r.reply_cache.entries as f64
    }),
    ("hither_server_reply_cache_hits_total", "counter", "Repeated calls that got a stored reply.", |r| {
        r.reply_cache.hits as f64
    }),
    ("hither_server_delegations_max", "gauge", "Most delegations.", |r| r.delegations.max as f64),
    ("hither_server_waiters", "gauge", "Operations that wait for holders of delegations or leases.", |r| {
        r.delegations.waiters as f64
    }),
];

const JOURNAL: &[Single<JournalPart>] = &[
    ("hither_server_disk_failing", "gauge", "1 while the disk below the journal fails.", |j| {
        f64::from(u8::from(j.disk_fails))
    }),
    ("hither_server_journal_failed", "gauge", "1 when the journal is out of use.", |j| {
        f64::from(u8::from(j.has_failed))
    }),
    ("hither_server_journal_reads_total", "counter", "Reads answered from the journal.", |j| j.reads as f64),
    ("hither_server_journal_rewritten_bytes_total", "counter", "Bytes written again.", |j| {
        j.rewritten_bytes as f64
    }),
    ("hither_server_journal_records_total", "counter", "Durable records.", |j| j.records as f64),
    ("hither_server_journal_batches_total", "counter", "Writes of records.", |j| j.batches as f64),
    (
        "hither_server_journal_oldest_seconds",
        "gauge",
        "Age of the oldest record without a checkpoint.",
        |j| j.oldest_ms.unwrap_or(0) as f64 / 1e3,
    ),
    ("hither_server_journal_checkpoints_total", "counter", "Checkpoints.", |j| j.checkpoints as f64),
    ("hither_server_journal_checkpoint_failures_total", "counter", "Checkpoints that failed.", |j| {
        j.checkpoint_failures as f64
    }),
    ("hither_server_journal_checkpoint_seconds", "gauge", "Duration of the last checkpoint.", |j| {
        j.last_checkpoint_ms as f64 / 1e3
    }),
];

/// The metrics of a server.
pub fn render(report: &ServerReport) -> String {
    let mut page = Page::default();
    page.one("hither_server_info", "gauge", "The server; always 1.", VERSION_LABEL, 1.0);
    for (name, kind, help, value) in SINGLES {
        page.one(name, kind, help, VERSION_LABEL, value(report));
    }
    page.server_operations(&report.operations);
    let name = "hither_server_transport_connections";
    page.family(name, "gauge", "Connections by their protection.");
    for transport in ["none", "tls", "mtls"] {
        let is = |c: &&ConnectionPart| c.transport.split(' ').next() == Some(transport);
        let count = report.connections.list.iter().filter(is).count();
        page.sample(name, &format!("transport=\"{transport}\""), count as f64);
    }
    let delegations = &report.delegations;
    let held =
        [("read", delegations.read), ("write", delegations.write), ("directory", delegations.directory)];
    page.kinds("hither_server_delegations", "gauge", "Files and directories that are delegated.", &held);
    let name = "hither_server_callbacks_total";
    page.family(name, "counter", "Calls to clients about delegations.");
    for (call, n) in [("recall", delegations.recalls), ("getattr", delegations.getattrs)] {
        page.sample(name, &format!("call=\"{call}\""), n as f64);
    }
    if let Some(nqnfs) = &report.nqnfs {
        let leases = [("all", nqnfs.leases), ("write", nqnfs.write_leases)];
        page.kinds("hither_server_nqnfs_leases", "gauge", "Leases of NQNFS.", &leases);
        let clients = [("all", nqnfs.clients), ("connected", nqnfs.connected)];
        page.kinds("hither_server_nqnfs_clients", "gauge", "Clients of NQNFS.", &clients);
    }
    if let Some(journal) = &report.journal {
        let name = "hither_server_journal_bytes";
        page.family(name, "gauge", "Bytes of records in the journal, and room for them.");
        for (kind, n) in [("used", journal.used_bytes), ("room", journal.room_bytes)] {
            page.sample(name, &format!("kind=\"{kind}\""), n as f64);
        }
        for (name, kind, help, value) in JOURNAL {
            page.one(name, kind, help, VERSION_LABEL, value(journal));
        }
    }
    page.0
}

/// A sum of one operation: name, description, value.
type OfOperation = (&'static str, &'static str, fn(&ServerOperation) -> u64);

const OPERATIONS: &[OfOperation] = &[
    ("hither_server_requests_total", "Answered calls and executed operations.", |op| op.calls),
    ("hither_server_received_bytes_total", "Bytes of calls.", |op| op.received_bytes),
    ("hither_server_sent_bytes_total", "Bytes of replies.", |op| op.sent_bytes),
];

fn labels(op: &ServerOperation) -> String {
    format!("protocol=\"{}\",operation=\"{}\"", escape(&op.protocol), escape(&op.name))
}

impl Page {
    fn kinds(&mut self, name: &str, kind: &str, help: &str, values: &[(&str, usize)]) {
        self.family(name, kind, help);
        for (kind, n) in values {
            self.sample(name, &format!("kind=\"{kind}\""), *n as f64);
        }
    }

    fn server_operations(&mut self, operations: &[ServerOperation]) {
        for (name, help, value) in OPERATIONS {
            self.family(name, "counter", help);
            for op in operations {
                self.sample(name, &labels(op), value(op) as f64);
            }
        }
        let name = "hither_server_errors_total";
        self.family(name, "counter", "Calls and operations with an error, by its kind.");
        for op in operations {
            for (class, n) in &op.errors {
                self.sample(name, &format!("{},class=\"{class}\"", labels(op)), *n as f64);
            }
        }
        let name = "hither_server_operation_seconds";
        self.family(name, "histogram", "Time from the arrival of a call to its result.");
        for op in operations {
            // A call that ends meanwhile may be in the buckets only.
            let calls = op.calls.max(op.total.below_us.last().copied().unwrap_or(0));
            for (power, n) in op.total.below_us.iter().enumerate().take(POWERS) {
                let end = 4_f64.powi(power as i32) / 1e6;
                self.sample(&format!("{name}_bucket"), &format!("{},le=\"{end}\"", labels(op)), *n as f64);
            }
            let all = format!("{},le=\"+Inf\"", labels(op));
            self.sample(&format!("{name}_bucket"), &all, calls as f64);
            self.sample(&format!("{name}_sum"), &labels(op), op.total.sum_us as f64 / 1e6);
            self.sample(&format!("{name}_count"), &labels(op), calls as f64);
        }
        let name = "hither_server_phase_seconds_total";
        self.family(name, "counter", "Waits of calls: in the queue, for files, for the journal.");
        type Part = fn(&ServerOperation) -> &Phase;
        let phases: [(&str, Part); 3] =
            [("queue", |op| &op.queue), ("store", |op| &op.store), ("journal", |op| &op.journal)];
        for op in operations {
            for (phase, of) in phases {
                let labels = format!("{},phase=\"{phase}\"", labels(op));
                self.sample(name, &labels, of(op).sum_us as f64 / 1e6);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::serve::report::{
        ClientPart, ConnectionPart, ConnectionsPart, DelegationsPart, GracePart, JournalPart, LimitsPart,
        NqnfsPart, POWERS, Phase, ReplyCachePart, ServerOperation, ServerReport, VERSION,
    };

    /// Calls of an operation.
    pub(crate) fn op(protocol: &str, name: &str, calls: u64) -> ServerOperation {
        let phase = |us: u64| Phase {
            sum_us: us * calls,
            p50_us: us,
            p90_us: us,
            p99_us: us,
            below_us: vec![calls; POWERS],
        };
        ServerOperation {
            protocol: protocol.into(),
            name: name.into(),
            calls,
            errors: [("absent".to_string(), 1)].into(),
            received_bytes: 100 * calls,
            sent_bytes: 50 * calls,
            total: phase(900),
            queue: phase(100),
            store: phase(500),
            journal: phase(200),
        }
    }

    fn connection() -> ConnectionPart {
        ConnectionPart {
            transport: "mtls build-farm".into(),
            address: "192.0.2.1:700".into(),
            local: "192.0.2.9:2049".into(),
            protocol: Some("nfs3".into()),
            uid: Some(5),
            age_s: 60,
            idle_ms: 1500,
            calls: 12,
            received_bytes: 4000,
            sent_bytes: 5000,
            queued_bytes: 0,
            memory_bytes: 0,
        }
    }

    fn client() -> ClientPart {
        ClientPart {
            transport: "mtls build-farm".into(),
            id: "0000000100000001".into(),
            name: "Linux NFSv4.2 host".into(),
            address: "192.0.2.2".into(),
            nfs_version: "4.2".into(),
            uid: Some(0),
            opens: 2,
            locks: 1,
            delegations: 3,
            silent_ms: 2500,
            calls: 40,
            received_bytes: 9000,
            sent_bytes: 8000,
        }
    }

    /// A report with a value in every part.
    pub(crate) fn report() -> ServerReport {
        ServerReport {
            version: VERSION,
            program_version: "0".into(),
            pid: 7,
            listen: vec!["192.0.2.9:2049".into()],
            age_s: 3600,
            exports: vec!["/srv".into()],
            grace: Some(GracePart { left_ms: 6500, reclaimers: 2 }),
            operations: vec![op("nfs3", "READ", 8), op("nfs4", "COMPOUND", 4), op("nfs4op", "WRITE", 4)],
            connections: ConnectionsPart {
                max: 4096,
                accepted: 3,
                dropped: 1,
                calls: 12,
                received_bytes: 4000,
                sent_bytes: 5000,
                list: vec![connection()],
            },
            clients: vec![client()],
            limits: LimitsPart {
                memory_bytes: 1 << 20,
                memory_max_bytes: 1 << 29,
                clients_max: 16_384,
                states: 6,
                states_max: 1 << 20,
            },
            reply_cache: ReplyCachePart { entries: 5, entries_max: 65_536, hits: 2 },
            delegations: DelegationsPart {
                read: 1,
                write: 2,
                directory: 0,
                max: 100,
                recalls: 4,
                getattrs: 3,
                waiters: 1,
            },
            nqnfs: Some(NqnfsPart { clients: 2, connected: 1, leases: 9, write_leases: 3 }),
            journal: Some(JournalPart {
                used_bytes: 1 << 20,
                room_bytes: 1 << 29,
                oldest_ms: Some(4000),
                records: 80,
                batches: 10,
                checkpoints: 3,
                checkpoint_failures: 0,
                last_checkpoint_ms: 35,
                ..JournalPart::default()
            }),
        }
    }
}
