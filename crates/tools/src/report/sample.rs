//! A report with a figure in each part, for tests of the programs that show reports.

use super::{Connection, Counters, Latency, MountPart, Operation, Report};
use std::collections::BTreeMap;

/// Calls of an operation.
pub fn op(name: &str, calls: u64) -> Operation {
    Operation {
        name: name.into(),
        calls,
        retransmissions: 1,
        timeouts: 0,
        errors: 2,
        bytes_sent: 2048,
        bytes_received: 3 << 20,
        queue_ms: 0,
        rtt_ms: 0,
        execute_ms: 0,
        latency_us: Latency { mean: 1.0, p50: 150, p90: 1500, p99: 2_500_000, max: 3_000_000 },
        rtt_us: Latency { mean: 140.0, ..Latency::default() },
    }
}

/// A mount with these operations.
pub fn report(operations: Vec<Operation>) -> Report {
    Report {
        version: 1,
        mount: MountPart {
            source: "s:/x".into(),
            dir: "/mnt".into(),
            nfs_version: "4.2".into(),
            server: "10.0.0.1:2049".into(),
            options: "vers=4.2,hard".into(),
            rsize_bytes: 1 << 20,
            wsize_bytes: 1 << 20,
            age_s: 90_061,
            pid: 7,
            cache: Some("/c".into()),
            cache_trouble: Some("it is full".into()),
            journal: None,
            journal_trouble: None,
            fuse_minor: Some(38),
            transport: None,
        },
        connections: vec![Connection {
            connected: true,
            local_port: 800,
            connects: 2,
            connect_failures: 0,
            sends: 3,
            receives: 3,
            bytes_sent: 10,
            bytes_received: 20,
            idle_s: 1,
            drops: 1,
            bad_xids: 0,
            in_flight: 1,
            max_in_flight: 2,
            backlog_sum: 0,
            sending_sum: 0,
            pending_sum: 3,
        }],
        operations,
        fuse: BTreeMap::from([("LOOKUP".to_string(), 5), ("READ".to_string(), 0)]),
        fuse_errors: BTreeMap::from([("LOOKUP".to_string(), 1)]),
        layers: BTreeMap::from([(
            "meta".to_string(),
            Counters::of(&BTreeMap::from([
                ("hits", 3),
                ("name_hits", 3),
                ("name_misses", 1),
                ("memory_bytes", 2048),
            ])),
        )]),
    }
}
