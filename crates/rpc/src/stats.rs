//! The counters of a mount, per operation and per connection.
//!
//! This module does not display the counters. Its terms are those of Linux' `/proc/self/mountstats`
//! (statvers=1.1), so that existing tools can read the counters. A call counts once, at its end.
//! The count takes one lock of its operation for a dozen additions and two histogram entries. That
//! costs about 120 ns on a busy machine, measured by the test `cost_of_counting`. Connections count
//! in atomics. A [`Snapshot`] is plain numbers.

use hdrhistogram::Histogram;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// Significant decimal digits of latencies. Percentiles are accurate to 1 %.
const LATENCY_DIGITS: u8 = 2;

/// Counters of one mount, shared by its clients.
#[derive(Debug)]
pub struct Stats {
    started: Instant,
    ops: RwLock<HashMap<&'static str, Arc<OpStats>>>,
    transports: Mutex<Vec<Arc<TransportStats>>>,
}

impl Default for Stats {
    fn default() -> Self {
        Self::new()
    }
}

impl Stats {
    /// Makes counters at zero. Their age starts now.
    pub fn new() -> Self {
        Self { started: Instant::now(), ops: RwLock::default(), transports: Mutex::default() }
    }

    /// Counts a reply with an error status, which the protocol layer decoded. `call` already counts
    /// calls without a reply as errors.
    pub fn error(&self, op: &'static str) {
        self.op(op).0.lock().errors += 1;
    }

    /// A copy of all counters.
    pub fn snapshot(&self) -> Snapshot {
        let mut ops: Vec<_> = self.ops.read().iter().map(|(name, op)| op.snapshot(name)).collect();
        ops.sort_by_key(|op| op.name);
        let now = Instant::now();
        let transports = self.transports.lock().iter().map(|t| t.snapshot(self.started, now)).collect();
        Snapshot { age_s: (now - self.started).as_secs(), ops, transports }
    }

    pub(crate) fn op(&self, name: &'static str) -> Arc<OpStats> {
        if let Some(op) = self.ops.read().get(name) {
            return op.clone();
        }
        self.ops.write().entry(name).or_default().clone()
    }

    pub(crate) fn add_transport(&self) -> Arc<TransportStats> {
        let t = Arc::new(TransportStats::default());
        self.transports.lock().push(t.clone());
        t
    }

    /// Milliseconds since the counters began, for [`TransportStats::last_used_ms`].
    pub(crate) fn age_ms(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_millis() as u64
    }
}

/// Counters of one operation.
#[derive(Debug, Default)]
pub(crate) struct OpStats(Mutex<OpCounters>);

#[derive(Debug)]
struct OpCounters {
    ops: u64,
    transmissions: u64,
    major_timeouts: u64,
    bytes_sent: u64,
    bytes_received: u64,
    queue: Duration,
    rtt: Duration,
    execute: Duration,
    errors: u64,
    latency_us: Histogram<u64>,
    rtt_us: Histogram<u64>,
}

impl Default for OpCounters {
    fn default() -> Self {
        Self {
            ops: 0,
            transmissions: 0,
            major_timeouts: 0,
            bytes_sent: 0,
            bytes_received: 0,
            queue: Duration::ZERO,
            rtt: Duration::ZERO,
            execute: Duration::ZERO,
            errors: 0,
            latency_us: new_histogram(),
            rtt_us: new_histogram(),
        }
    }
}

fn new_histogram() -> Histogram<u64> {
    Histogram::new(LATENCY_DIGITS).expect("the number of digits is valid")
}

/// One finished call.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    pub transmissions: u32,
    pub major_timeouts: u32,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// From the start of the call to its first transmission.
    pub queue: Duration,
    /// From the last transmission to the reply.
    pub rtt: Duration,
    /// From the start of the call to its end.
    pub execute: Duration,
    pub error: bool,
}

impl OpStats {
    pub fn finish(&self, f: &Finished) {
        let latency_us = f.execute.as_micros() as u64;
        let mut c = self.0.lock();
        c.ops += 1;
        c.transmissions += u64::from(f.transmissions);
        c.major_timeouts += u64::from(f.major_timeouts);
        c.bytes_sent += f.bytes_sent;
        c.bytes_received += f.bytes_received;
        c.queue += f.queue;
        c.rtt += f.rtt;
        c.execute += f.execute;
        c.errors += u64::from(f.error);
        c.latency_us += latency_us;
        // A call without a reply has no round trip.
        if f.rtt > Duration::ZERO {
            c.rtt_us += f.rtt.as_micros() as u64;
        }
    }

    fn snapshot(&self, name: &'static str) -> OpSnapshot {
        let c = self.0.lock();
        OpSnapshot {
            name,
            ops: c.ops,
            transmissions: c.transmissions,
            major_timeouts: c.major_timeouts,
            bytes_sent: c.bytes_sent,
            bytes_received: c.bytes_received,
            queue_ms: c.queue.as_millis() as u64,
            rtt_ms: c.rtt.as_millis() as u64,
            execute_ms: c.execute.as_millis() as u64,
            errors: c.errors,
            latency_us: c.latency_us.clone(),
            rtt_us: c.rtt_us.clone(),
        }
    }
}

/// Counters of one connection, including its reconnects.
#[derive(Debug, Default)]
pub(crate) struct TransportStats {
    pub connected: AtomicBool,
    pub local_port: AtomicU64,
    pub binds: AtomicU64,
    pub connects: AtomicU64,
    pub connect_ms: AtomicU64,
    pub connect_failures: AtomicU64,
    pub drops: AtomicU64,
    pub last_used_ms: AtomicU64,
    pub sends: AtomicU64,
    pub recvs: AtomicU64,
    pub bad_xids: AtomicU64,
    pub req_u: AtomicU64,
    pub bklog_u: AtomicU64,
    pub in_flight: AtomicUsize,
    pub max_slots: AtomicU64,
    pub sending_u: AtomicU64,
    pub pending_u: AtomicU64,
    pub bytes_sent: AtomicU64,
    pub bytes_received: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

impl TransportStats {
    fn snapshot(&self, started: Instant, now: Instant) -> TransportSnapshot {
        let connected = self.connected.load(Relaxed);
        let last_used = started + Duration::from_millis(self.last_used_ms.load(Relaxed));
        let idle_s = if connected { now.saturating_duration_since(last_used).as_secs() } else { 0 };
        TransportSnapshot {
            connected,
            local_port: self.local_port.load(Relaxed) as u16,
            binds: self.binds.load(Relaxed),
            connects: self.connects.load(Relaxed),
            connect_ms: self.connect_ms.load(Relaxed),
            connect_failures: self.connect_failures.load(Relaxed),
            drops: self.drops.load(Relaxed),
            idle_s,
            sends: self.sends.load(Relaxed),
            recvs: self.recvs.load(Relaxed),
            bad_xids: self.bad_xids.load(Relaxed),
            req_u: self.req_u.load(Relaxed),
            bklog_u: self.bklog_u.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            max_slots: self.max_slots.load(Relaxed),
            sending_u: self.sending_u.load(Relaxed),
            pending_u: self.pending_u.load(Relaxed),
            bytes_sent: self.bytes_sent.load(Relaxed),
            bytes_received: self.bytes_received.load(Relaxed),
        }
    }
}

/// A mount's counters at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Seconds since the counters began.
    pub age_s: u64,
    /// Counters of each operation that was called or that failed, by name.
    pub ops: Vec<OpSnapshot>,
    /// Counters of each connection, in order of creation.
    pub transports: Vec<TransportSnapshot>,
}

impl Snapshot {
    /// The counters of one operation, or `None` if it was never called.
    pub fn op(&self, name: &str) -> Option<&OpSnapshot> {
        self.ops.iter().find(|op| op.name == name)
    }

    /// The RPC part of a statvers=1.1 record: `xprt:` lines and per-operation statistics. `prog`
    /// names the program as mountstats does, for example `100003/4`.
    pub fn mountstats(&self, prog: &str) -> String {
        let mut out = format!("\tRPC iostats version: 1.1  p/v: {prog} (nfs)\n");
        self.transports.iter().for_each(|t| t.mountstats_line(&mut out));
        out.push_str("\tper-op statistics\n");
        self.ops.iter().for_each(|op| op.mountstats_line(&mut out));
        out
    }
}

/// One operation's counters.
#[derive(Debug, Clone)]
pub struct OpSnapshot {
    /// The label of the operation's calls.
    pub name: &'static str,
    /// Calls that ended, with or without a reply.
    pub ops: u64,
    /// Number of transmissions. Retransmissions make it larger than `ops`.
    pub transmissions: u64,
    /// Major timeouts (nfs(5) `retrans`).
    pub major_timeouts: u64,
    /// Bytes of calls with their headers, counted once per transmission.
    pub bytes_sent: u64,
    /// Bytes of replies with their headers.
    pub bytes_received: u64,
    /// Sum of the times from the start of a call to its first transmission.
    pub queue_ms: u64,
    /// Sum of the times from the last transmission to the reply.
    pub rtt_ms: u64,
    /// Sum of the times from the start of a call to its end.
    pub execute_ms: u64,
    /// Calls that failed, and replies with an error status.
    pub errors: u64,
    /// Times from the start of a call to its end.
    latency_us: Histogram<u64>,
    /// Times from the last transmission to the reply.
    rtt_us: Histogram<u64>,
}

impl OpSnapshot {
    /// The latency in microseconds that `percentile` (0 to 100) percent of the calls did not
    /// exceed.
    pub fn latency_us(&self, percentile: f64) -> u64 {
        self.latency_us.value_at_percentile(percentile)
    }

    /// Mean latency in microseconds.
    pub fn latency_mean_us(&self) -> f64 {
        self.latency_us.mean()
    }

    /// Longest latency in microseconds.
    pub fn latency_max_us(&self) -> u64 {
        self.latency_us.max()
    }

    /// The round-trip time in microseconds that `percentile` (0 to 100) percent of the answered
    /// calls did not exceed.
    pub fn rtt_us(&self, percentile: f64) -> u64 {
        self.rtt_us.value_at_percentile(percentile)
    }

    /// Mean round-trip time of the answered calls in microseconds.
    pub fn rtt_mean_us(&self) -> f64 {
        self.rtt_us.mean()
    }

    /// Longest round-trip time in microseconds.
    pub fn rtt_max_us(&self) -> u64 {
        self.rtt_us.max()
    }

    /// Calls within each factor of two: (upper bound in microseconds, calls). For histograms.
    pub fn latency_buckets(&self) -> Vec<(u64, u64)> {
        let buckets = self.latency_us.iter_log(1, 2.0);
        buckets.map(|b| (b.value_iterated_to(), b.count_since_last_iteration())).collect()
    }

    fn mountstats_line(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "\t{:>12}: {} {} {} {} {} {} {} {} {}",
            self.name,
            self.ops,
            self.transmissions,
            self.major_timeouts,
            self.bytes_sent,
            self.bytes_received,
            self.queue_ms,
            self.rtt_ms,
            self.execute_ms,
            self.errors
        );
    }
}

/// One connection's counters. `*_u` are sums of queue lengths, one sample per call sent. Divided by
/// `sends`, they are mean lengths, as in mountstats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportSnapshot {
    /// Whether the connection is established now.
    pub connected: bool,
    /// Local port of the present or last connection.
    pub local_port: u16,
    /// Number of times a source port was chosen.
    pub binds: u64,
    /// Number of times the connection was established.
    pub connects: u64,
    /// Time spent in connecting.
    pub connect_ms: u64,
    /// Number of failed connection attempts.
    pub connect_failures: u64,
    /// Number of times the connection was lost.
    pub drops: u64,
    /// Seconds since the last message; 0 when not connected.
    pub idle_s: u64,
    /// Calls sent.
    pub sends: u64,
    /// Replies received.
    pub recvs: u64,
    /// Replies that match no call in flight.
    pub bad_xids: u64,
    /// Sum of the number of calls sent and not answered.
    pub req_u: u64,
    /// Sum of the number of callers that waited for room in flight.
    pub bklog_u: u64,
    /// Number of calls without a reply now, sent or waiting to be sent.
    pub in_flight: usize,
    /// Largest number of calls in flight.
    pub max_slots: u64,
    /// Sum of the number of calls queued for sending.
    pub sending_u: u64,
    /// Sum of the number of calls in flight.
    pub pending_u: u64,
    /// Bytes written.
    pub bytes_sent: u64,
    /// Bytes read.
    pub bytes_received: u64,
}

impl TransportSnapshot {
    fn mountstats_line(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "\txprt:\ttcp {} {} {} {} {} {} {} {} {} {} {} {} {}",
            self.local_port,
            self.binds,
            self.connects,
            self.connect_ms / 1000,
            self.idle_s,
            self.sends,
            self.recvs,
            self.bad_xids,
            self.req_u,
            self.bklog_u,
            self.max_slots,
            self.sending_u,
            self.pending_u
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(execute_ms: u64) -> Finished {
        Finished {
            transmissions: 1,
            bytes_sent: 100,
            bytes_received: 200,
            queue: Duration::from_millis(1),
            rtt: Duration::from_millis(execute_ms - 1),
            execute: Duration::from_millis(execute_ms),
            ..Finished::default()
        }
    }

    /// Counts are exact, and percentiles are accurate to 1 %.
    #[test]
    fn counts_and_percentiles() {
        let stats = Stats::new();
        (1..=100).for_each(|ms| stats.op("READ").finish(&call(ms)));
        stats.error("READ");
        let s = stats.snapshot();
        let read = s.op("READ").unwrap();
        assert_eq!((read.ops, read.transmissions, read.errors), (100, 100, 1));
        assert_eq!((read.bytes_sent, read.bytes_received), (10_000, 20_000));
        assert_eq!((read.queue_ms, read.execute_ms), (100, 5050));
        for p in [1.0, 50.0, 90.0, 99.0] {
            let us = read.latency_us(p) as f64;
            assert!((us / (p * 1000.0) - 1.0).abs() < 0.011, "p{p} is {us}");
        }
        // Each call spent one millisecond in the queue. The first call lasted no longer and has no
        // round trip. Round trips of 1 to 99 ms remain.
        assert!((read.rtt_us(50.0) as f64 / 50_000.0 - 1.0).abs() < 0.011, "{}", read.rtt_us(50.0));
        assert!(read.rtt_max_us() <= read.latency_max_us());
        assert_eq!(read.latency_buckets().iter().map(|b| b.1).sum::<u64>(), 100);
        assert!(s.op("WRITE").is_none());
    }

    /// Measures the cost of counting one call. Run `cargo test --release -p hither-rpc counting --
    /// --ignored --nocapture`.
    #[test]
    #[ignore = "a measurement"]
    fn cost_of_counting() {
        const CALLS: u64 = 5_000_000;
        let stats = Stats::new();
        let started = Instant::now();
        for i in 0..CALLS {
            let execute = Duration::from_nanos(50_000 + i % 1_000_000);
            stats.op("GETATTR").finish(&Finished { transmissions: 1, execute, ..Finished::default() });
        }
        println!("{:.0} ns per call", started.elapsed().as_nanos() as f64 / CALLS as f64);
    }

    /// Many short times add up without rounding at each call.
    #[test]
    fn short_times_add_up() {
        let stats = Stats::new();
        let short = Finished { execute: Duration::from_micros(100), ..Finished::default() };
        (0..1000).for_each(|_| stats.op("NULL").finish(&short));
        assert_eq!(stats.snapshot().op("NULL").unwrap().execute_ms, 100);
    }

    /// The text has the fields of statvers=1.1 in their order.
    #[test]
    fn mountstats_text() {
        let stats = Stats::new();
        stats.op("GETATTR").finish(&call(3));
        add(&stats.add_transport().sends, 7);
        let text = stats.snapshot().mountstats("100003/4");
        let expected = concat!(
            "\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)\n",
            "\txprt:\ttcp 0 0 0 0 0 7 0 0 0 0 0 0 0\n",
            "\tper-op statistics\n",
            "\t     GETATTR: 1 1 0 100 200 1 2 3 0\n"
        );
        assert_eq!(text, expected);
    }
}
