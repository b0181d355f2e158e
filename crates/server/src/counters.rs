//! Counters of the answered calls: by procedure of NFSv3, NFSv4, NQNFS, MOUNT and NLM, and by
//! operation of NFSv4.
//!
//! A call counts once, at its end. The counters are atomics in shards. A thread always counts in
//! the same shard, and no call takes a lock. A row has the number of calls, errors by
//! [`ErrorClass`], bytes, and four times: the whole call, its queue, the store and the journal.
//! Each time has a sum and a histogram with two buckets for each power of two of microseconds.
//!
//! The queue is the wait for permits, memory, the rate limit and the turn of the address. The store
//! is the wait for the files below, and the journal is the wait for a durable record
//! ([`hither_vfs::Spent`]). The rest of a call is work of the server itself, and waits for clients
//! that hold delegations or leases.

use hither_proto::mount::MountProc;
use hither_proto::nfs3::Proc3;
use hither_proto::nfs4::{NfsOpnum4, Nfsstat4, Proc4};
use hither_proto::nqnfs::NqProc;
use hither_proto::{mount, nfs3, nfs4, nlm, nqnfs};
use hither_rpc::server::{Incoming, Outcome, Room};
use hither_vfs::Spent;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// Most shards. More threads share them.
const SHARDS_MAX: usize = 16;
/// Buckets of a histogram: up to 134 seconds.
const BUCKETS: usize = 56;
/// Bytes of the header of an accepted reply (RFC 5531 section 9), with an empty verifier.
const ACCEPTED_BYTES: usize = 24;
/// Bytes of a reply that refuses the credential.
const DENIED_BYTES: usize = 20;

/// Rows of each protocol, with a margin beyond its last procedure.
const NFS3_ROWS: usize = 22;
const NFS4_ROWS: usize = 2;
const NQNFS_ROWS: usize = 32;
const MOUNT_ROWS: usize = 6;
const NLM_ROWS: usize = 24;
const OPERATION_ROWS: usize = 80;
/// The row of HELLO among those of NQNFS. The number of this procedure is beyond all tables.
const HELLO_ROW: usize = NQNFS_ROWS - 1;
/// First row of each protocol.
const NFS4_AT: usize = NFS3_ROWS;
const NQNFS_AT: usize = NFS4_AT + NFS4_ROWS;
const MOUNT_AT: usize = NQNFS_AT + NQNFS_ROWS;
const NLM_AT: usize = MOUNT_AT + MOUNT_ROWS;
const OPERATIONS_AT: usize = NLM_AT + NLM_ROWS;
/// Operation 0 does not exist. Its row counts unknown operations.
const FIRST_OPERATION_AT: usize = OPERATIONS_AT + 1;
/// The row of unknown procedures.
const OTHER_AT: usize = OPERATIONS_AT + OPERATION_ROWS;
const ROWS: usize = OTHER_AT + 1;
const HELLO_AT: usize = NQNFS_AT + HELLO_ROW;

/// The kinds of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The object does not exist (`NOENT`).
    Absent,
    /// The caller lacks the right.
    Denied,
    /// The filehandle, stateid, session or client is not valid (any more).
    Stale,
    /// The client should try again later (`JUKEBOX`, `DELAY`, `GRACE`, `TRYLATER`).
    Retry,
    /// The file system or the quota is full.
    Space,
    /// The disk or the server failed.
    Fault,
    /// The call failed in RPC: its arguments, procedure or credential.
    Rpc,
    /// Another error, such as `EXIST` or `NOTDIR`.
    Other,
}

impl ErrorClass {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Absent,
        Self::Denied,
        Self::Stale,
        Self::Retry,
        Self::Space,
        Self::Fault,
        Self::Rpc,
        Self::Other,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Denied => "denied",
            Self::Stale => "stale",
            Self::Retry => "retry",
            Self::Space => "space",
            Self::Fault => "fault",
            Self::Rpc => "rpc",
            Self::Other => "other",
        }
    }

    /// The kind of a status. The protocols have the same numbers for the same errors. `None`: no
    /// error.
    fn of(status: u32) -> Option<Self> {
        const TRYLATER: u32 = nqnfs::Stat::TRYLATER.0;
        const EXPIRED: u32 = nqnfs::Stat::EXPIRED.0;
        const AUTHERR: u32 = nqnfs::Stat::AUTHERR.0;
        type S = Nfsstat4;
        match status {
            0 => return None,
            TRYLATER => return Some(Self::Retry),
            EXPIRED => return Some(Self::Stale),
            AUTHERR => return Some(Self::Denied),
            _ => {}
        }
        Some(match Nfsstat4(status) {
            S::NOENT => Self::Absent,
            S::PERM | S::ACCESS | S::ROFS | S::WRONGSEC | S::WRONG_CRED | S::OPENMODE => Self::Denied,
            S::STALE
            | S::BADHANDLE
            | S::FHEXPIRED
            | S::STALE_CLIENTID
            | S::STALE_STATEID
            | S::OLD_STATEID
            | S::BAD_STATEID
            | S::EXPIRED
            | S::ADMIN_REVOKED
            | S::DELEG_REVOKED
            | S::BADSESSION
            | S::DEADSESSION => Self::Stale,
            S::DELAY | S::GRACE => Self::Retry,
            S::NOSPC | S::DQUOT | S::FBIG => Self::Space,
            S::IO | S::SERVERFAULT | S::RESOURCE => Self::Fault,
            _ => Self::Other,
        })
    }
}

/// The counters of a server.
pub(crate) struct Counters {
    shards: Vec<Box<[Row]>>,
}

/// The counters of a procedure or an operation in one shard. Two rows share no cache line.
#[derive(Default)]
#[repr(align(128))]
struct Row {
    calls: AtomicU64,
    errors: [AtomicU64; ErrorClass::ALL.len()],
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    times: [TimeRow; 4],
}

struct TimeRow {
    sum_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for TimeRow {
    fn default() -> Self {
        Self { sum_ns: AtomicU64::new(0), buckets: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

/// The end of a call or of an operation.
struct Ended {
    error: Option<ErrorClass>,
    received_bytes: usize,
    sent_bytes: usize,
    /// Total, queue, store, journal.
    times: [Duration; 4],
}

impl Default for Counters {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let shards = threads.next_power_of_two().min(SHARDS_MAX);
        let shard = |_| (0..ROWS).map(|_| Row::default()).collect();
        Self { shards: (0..shards).map(shard).collect() }
    }
}

impl Counters {
    /// Begins to count a call.
    pub fn begin(&self, call: &Incoming) -> Begun<'_> {
        let at = row_of(call.prog, call.vers, call.proc);
        let (began, received_bytes) = (Instant::now(), call.record_bytes);
        Begun {
            counters: self,
            at,
            has_status: has_status(at),
            began,
            received_bytes,
            room: call.room.clone(),
        }
    }

    /// Counts an operation of a compound that began at `began`. `before` has the store and journal
    /// times of the call before the operation, `spent` those after it.
    pub fn operation(
        &self,
        (number, status): (NfsOpnum4, Nfsstat4),
        (received_bytes, sent_bytes): (usize, usize),
        began: Instant,
        (before, spent): ((Duration, Duration), &Spent),
    ) {
        let (store, journal) =
            (spent.store().saturating_sub(before.0), spent.journal().saturating_sub(before.1));
        let times = [began.elapsed(), Duration::ZERO, store, journal];
        let ended = Ended { error: ErrorClass::of(status.0), received_bytes, sent_bytes, times };
        let row = usize::try_from(number.0).ok().filter(|n| *n < OPERATION_ROWS).unwrap_or(0);
        self.count(OPERATIONS_AT + row, &ended);
    }

    fn count(&self, at: usize, ended: &Ended) {
        let row = &self.shards[shard_of_thread() & (self.shards.len() - 1)][at];
        row.calls.fetch_add(1, Relaxed);
        if let Some(class) = ended.error {
            row.errors[class as usize].fetch_add(1, Relaxed);
        }
        row.received_bytes.fetch_add(ended.received_bytes as u64, Relaxed);
        row.sent_bytes.fetch_add(ended.sent_bytes as u64, Relaxed);
        for (to, took) in row.times.iter().zip(ended.times) {
            to.sum_ns.fetch_add(took.as_nanos() as u64, Relaxed);
            to.buckets[bucket_of(took)].fetch_add(1, Relaxed);
        }
    }

    /// A copy of all rows with calls, in the order of the protocols.
    pub fn snapshot(&self) -> Vec<OperationCounts> {
        let rows = (0..ROWS).map(|at| {
            let (protocol, name) = name_of(at);
            let mut sum = OperationCounts::new(protocol, name);
            self.shards.iter().for_each(|shard| sum.add(&shard[at]));
            sum
        });
        rows.filter(|row| row.calls > 0).collect()
    }
}

/// The shard of the calling thread. Threads get shards in turn.
fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: Cell<Option<usize>> = const { Cell::new(None) };
    }
    SHARD.get().unwrap_or_else(|| {
        let shard = NEXT.fetch_add(1, Relaxed);
        SHARD.set(Some(shard));
        shard
    })
}

/// A call that is being answered.
pub(crate) struct Begun<'a> {
    counters: &'a Counters,
    at: usize,
    has_status: bool,
    began: Instant,
    received_bytes: usize,
    room: Room,
}

impl Begun<'_> {
    /// Counts the call with its outcome.
    pub fn end(self, outcome: &Outcome, spent: &Spent) {
        let status = |results: &hither_proto::xdr::Enc| {
            results.first_u32().filter(|_| self.has_status).and_then(ErrorClass::of)
        };
        let error = match outcome {
            Outcome::Done(results) | Outcome::Piped(results, ..) => status(results),
            _ => Some(ErrorClass::Rpc),
        };
        let sent_bytes = reply_bytes(outcome);
        let (before, waited) = (self.room.waited_before(), self.room.waited());
        let times = [before + self.began.elapsed(), waited, spent.store(), spent.journal()];
        let received_bytes = self.received_bytes;
        self.counters.count(self.at, &Ended { error, received_bytes, sent_bytes, times });
    }
}

/// Bytes of the reply without its record mark; 0 when no reply is sent.
pub(crate) fn reply_bytes(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Done(results) => ACCEPTED_BYTES + results.len(),
        Outcome::Piped(before, payload, after) => ACCEPTED_BYTES + before.len() + payload.len() + after.len(),
        Outcome::ProcUnavail | Outcome::GarbageArgs | Outcome::SystemErr => ACCEPTED_BYTES,
        Outcome::Refused(_) => DENIED_BYTES,
        Outcome::Silence => 0,
    }
}

/// The row of a procedure.
fn row_of(prog: u32, vers: u32, proc: u32) -> usize {
    let (first, rows) = match (prog, vers) {
        (nfs3::PROGRAM, nfs3::VERSION) => (0, NFS3_ROWS),
        (nfs4::PROGRAM, nfs4::VERSION) => (NFS4_AT, NFS4_ROWS),
        (nqnfs::PROGRAM, _) if proc == NqProc::HELLO.0 => return NQNFS_AT + HELLO_ROW,
        (nqnfs::PROGRAM, _) => (NQNFS_AT, HELLO_ROW),
        (mount::PROGRAM, _) => (MOUNT_AT, MOUNT_ROWS),
        (nlm::PROGRAM, _) => (NLM_AT, NLM_ROWS),
        _ => return OTHER_AT,
    };
    usize::try_from(proc).ok().filter(|proc| *proc < rows).map_or(OTHER_AT, |proc| first + proc)
}

/// Whether the results of a procedure begin with a status: those of NFS, and of MNT.
fn has_status(at: usize) -> bool {
    at < MOUNT_AT || at == MOUNT_AT + 1
}

/// Protocol and name of a row.
fn name_of(at: usize) -> (&'static str, String) {
    let (protocol, number, name) = match at {
        ..NFS4_AT => ("nfs3", at, Proc3(at as u32).name()),
        NFS4_AT..NQNFS_AT => ("nfs4", at - NFS4_AT, Proc4((at - NFS4_AT) as u32).name()),
        NQNFS_AT..HELLO_AT => ("nqnfs", at - NQNFS_AT, NqProc((at - NQNFS_AT) as u32).name()),
        HELLO_AT => ("nqnfs", 0, NqProc::HELLO.name()),
        MOUNT_AT..NLM_AT => ("mount", at - MOUNT_AT, MountProc((at - MOUNT_AT) as u32).name()),
        NLM_AT..OPERATIONS_AT => ("nlm", at - NLM_AT, None),
        OPERATIONS_AT => ("nfs4op", 0, Some("ILLEGAL")),
        FIRST_OPERATION_AT..OTHER_AT => {
            ("nfs4op", at - OPERATIONS_AT, NfsOpnum4((at - OPERATIONS_AT) as u32).name())
        }
        _ => ("other", 0, Some("OTHER")),
    };
    (protocol, name.map_or_else(|| number.to_string(), String::from))
}

/// The bucket of a duration: two for each power of two of microseconds.
fn bucket_of(took: Duration) -> usize {
    let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    let Some(power) = us.checked_ilog2() else { return 0 };
    let upper_half = power.checked_sub(1).map_or(0, |below| us >> below & 1);
    (1 + 2 * power as usize + upper_half as usize).min(BUCKETS - 1)
}

/// The end of a bucket in microseconds.
fn bucket_end_us(bucket: usize) -> u64 {
    match bucket.checked_sub(1) {
        None => 1,
        Some(0) => 2,
        Some(n) if n % 2 == 0 => 3 << (n / 2 - 1),
        Some(n) => 2 << (n / 2),
    }
}

/// The figures of a procedure or of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationCounts {
    /// `nfs3`, `nfs4`, `nqnfs`, `mount`, `nlm`, or `nfs4op` for an operation of NFSv4.
    pub protocol: &'static str,
    /// Name of the procedure or operation in its protocol. A number when it has none.
    pub name: String,
    /// Answered calls, or executed operations.
    pub calls: u64,
    /// Calls with an error, in the order of [`ErrorClass::ALL`].
    pub errors: [u64; ErrorClass::ALL.len()],
    /// Bytes of the calls with their RPC header, without record marks; of an operation, its
    /// arguments.
    pub received_bytes: u64,
    /// Bytes of the replies, likewise.
    pub sent_bytes: u64,
    /// From the arrival of the call to its result.
    pub total: Times,
    /// Waits for permits, memory, the rate limit and the turn of the address. Zero for operations.
    pub queue: Times,
    /// Waits for the files.
    pub store: Times,
    /// Waits for the journal.
    pub journal: Times,
}

/// Durations: their sum and their distribution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Times {
    /// The sum.
    pub sum: Duration,
    buckets: [u64; BUCKETS],
}

impl Default for Times {
    fn default() -> Self {
        Self { sum: Duration::ZERO, buckets: [0; BUCKETS] }
    }
}

impl Times {
    fn add(&mut self, row: &TimeRow) {
        self.sum += Duration::from_nanos(row.sum_ns.load(Relaxed));
        for (sum, n) in self.buckets.iter_mut().zip(&row.buckets) {
            *sum += n.load(Relaxed);
        }
    }

    /// An upper bound of the durations of this part of the calls (0.0 to 1.0), in microseconds. It
    /// is at most half above the true value, and 0 without calls.
    pub fn quantile_us(&self, part: f64) -> u64 {
        let all: u64 = self.buckets.iter().sum();
        let wanted = ((all as f64 * part).ceil() as u64).clamp(1, all.max(1));
        let mut below = 0;
        for (bucket, n) in self.buckets.iter().enumerate() {
            below += n;
            if below >= wanted {
                return bucket_end_us(bucket);
            }
        }
        0
    }

    /// Number of durations below 4^`power` microseconds.
    pub fn below_power_of_four(&self, power: usize) -> u64 {
        self.buckets.iter().take(4 * power + 1).sum()
    }
}

impl OperationCounts {
    fn new(protocol: &'static str, name: String) -> Self {
        Self {
            protocol,
            name,
            calls: 0,
            errors: Default::default(),
            received_bytes: 0,
            sent_bytes: 0,
            total: Times::default(),
            queue: Times::default(),
            store: Times::default(),
            journal: Times::default(),
        }
    }

    fn add(&mut self, row: &Row) {
        self.calls += row.calls.load(Relaxed);
        for (sum, n) in self.errors.iter_mut().zip(&row.errors) {
            *sum += n.load(Relaxed);
        }
        self.received_bytes += row.received_bytes.load(Relaxed);
        self.sent_bytes += row.sent_bytes.load(Relaxed);
        let times = [&mut self.total, &mut self.queue, &mut self.store, &mut self.journal];
        times.into_iter().zip(&row.times).for_each(|(sum, row)| sum.add(row));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each duration lies below the end of its bucket and at or above the end of the bucket before.
    #[test]
    fn buckets_hold_their_durations() {
        for us in (0..5000).chain([1 << 20, (1 << 20) + 1, 3 << 19, 100_000_000]) {
            let bucket = bucket_of(Duration::from_micros(us));
            assert!(us < bucket_end_us(bucket), "{us} in {bucket}");
            // The second bucket of the first power of two is empty.
            let before = (0..bucket).rev().find(|n| *n != 2).map_or(0, bucket_end_us);
            assert!(us >= before, "{us} in {bucket}");
        }
        for power in 0..13 {
            let mut times = Times::default();
            let edge = 4_u64.pow(power);
            for us in [edge - 1, edge] {
                times.buckets[bucket_of(Duration::from_micros(us))] += 1;
            }
            assert_eq!(times.below_power_of_four(power as usize), 1, "{edge}");
        }
        assert_eq!(bucket_of(Duration::MAX), BUCKETS - 1);
    }

    /// Counts of many threads add up, and rows have the names of their protocols.
    #[test]
    fn shards_add_up() {
        let counters = Counters::default();
        let at = row_of(nfs3::PROGRAM, nfs3::VERSION, Proc3::WRITE.0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for i in 0..1000 {
                        let error = ErrorClass::of(if i % 10 == 0 { 28 } else { 0 });
                        let times =
                            [Duration::from_micros(i), Duration::ZERO, Duration::ZERO, Duration::ZERO];
                        counters.count(at, &Ended { error, received_bytes: 3, sent_bytes: 2, times });
                    }
                });
            }
        });
        let rows = counters.snapshot();
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((row.protocol, row.name.as_str(), row.calls), ("nfs3", "WRITE", 8000));
        assert_eq!(row.errors[ErrorClass::Space as usize], 800);
        assert_eq!(row.errors.iter().sum::<u64>(), 800);
        assert_eq!((row.received_bytes, row.sent_bytes), (24_000, 16_000));
        assert_eq!(row.total.sum, Duration::from_micros(8 * 999 * 500));
        assert_eq!(row.total.quantile_us(0.5), 512);
        assert_eq!(row.total.quantile_us(1.0), 1024);
    }

    /// Numbers beyond the tables have a row of their own. Every other row has one name.
    #[test]
    fn each_row_has_one_name() {
        assert_eq!(row_of(nfs3::PROGRAM, nfs3::VERSION, 22), OTHER_AT);
        assert_eq!(row_of(nfs3::PROGRAM, nfs3::VERSION, u32::MAX), OTHER_AT);
        assert_eq!(row_of(7, 1, 0), OTHER_AT);
        let names: std::collections::HashSet<_> = (0..ROWS).map(name_of).collect();
        assert_eq!(names.len(), ROWS);
        assert!(
            NfsOpnum4::VALUES
                .iter()
                .filter(|n| **n != NfsOpnum4::ILLEGAL)
                .all(|n| n.0 < OPERATION_ROWS as u32)
        );
        for n in NqProc::VALUES {
            let at = row_of(nqnfs::PROGRAM, nqnfs::VERSION, n.0);
            assert_eq!(name_of(at), ("nqnfs", n.name().unwrap_or_default().to_string()));
        }
        assert!(MountProc::VALUES.iter().all(|n| n.0 < MOUNT_ROWS as u32));
    }

    /// The same error has the same kind in all protocols.
    #[test]
    fn statuses_have_one_kind() {
        for (status, class) in [
            (0, None),
            (2, Some(ErrorClass::Absent)),
            (13, Some(ErrorClass::Denied)),
            (17, Some(ErrorClass::Other)),
            (70, Some(ErrorClass::Stale)),
            (501, Some(ErrorClass::Retry)),
            (nfs3::Nfsstat3::JUKEBOX.0, Some(ErrorClass::Retry)),
            (nfs3::Nfsstat3::SERVERFAULT.0, Some(ErrorClass::Fault)),
            (nfs3::Nfsstat3::BADHANDLE.0, Some(ErrorClass::Stale)),
            (12_345, Some(ErrorClass::Other)),
        ] {
            assert_eq!(ErrorClass::of(status), class, "{status}");
        }
        assert!(ErrorClass::ALL.iter().enumerate().all(|(i, class)| *class as usize == i));
    }
}
