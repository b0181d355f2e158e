//! The parameters of the protocol, with the paper's values as defaults.

use crate::Ms;

/// Settings of a [`Table`](crate::Table).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Term of a lease when the client requests none. The paper measured 30 s as about optimal on a
    /// local network.
    pub term_ms: u32,
    /// Maximum term of a lease. The paper's is twice the default.
    pub term_max_ms: u32,
    /// Maximum drift between the clocks of client and server during the longest term.
    pub skew_ms: u32,
    /// Time without writes after which a write lease counts as ended. Several times the interval at
    /// which clients retransmit.
    pub write_slack_ms: u32,
    /// Time after which the first unanswered eviction is sent again. The interval doubles up to
    /// eight times this value.
    pub evict_retry_ms: u32,
    /// Time after which a recalled lease without expiry is revoked when it was not returned.
    pub recall_timeout_ms: u32,
    /// Maximum time until a write lease that is being evicted ends, even when its holder still
    /// writes.
    pub flush_max_ms: u32,
    /// Time for which no client gets a lease on a file after an eviction. It doubles with each
    /// further eviction, up to `quiet_max_ms`. It does not apply to a first eviction.
    pub quiet_ms: u32,
    /// Maximum time for which no client gets a lease on a file.
    pub quiet_max_ms: u32,
    /// Time for which a file is kept free for a client that had to try later.
    pub retry_hold_ms: u32,
    /// Time of a "try later" reply without a better estimate.
    pub try_later_ms: u32,
    /// Maximum number of lease records.
    pub leases_max: u32,
    /// Maximum number of file records (files with leases, waiting operations or a modify revision).
    pub files_max: u32,
    /// Maximum number of waiting operations.
    pub waiters_max: u32,
    /// Number of operations per second that are admitted for `settle_ms` after the recovery from a
    /// restart. The others have to try later. Writes under a lease are always admitted. 0: no
    /// limit.
    pub recovery_rate_per_s: u32,
    /// Time after recovery for which that limit holds.
    pub settle_ms: u32,
    /// Step in which modify revisions are reserved, a power of two.
    pub revision_step: u64,
    /// Seed of the hash tables.
    pub hash_seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            term_ms: 30_000,
            term_max_ms: 60_000,
            skew_ms: 3_000,
            write_slack_ms: 5_000,
            evict_retry_ms: 1_000,
            recall_timeout_ms: 90_000,
            flush_max_ms: 300_000,
            quiet_ms: 1_000,
            quiet_max_ms: 60_000,
            retry_hold_ms: 10_000,
            try_later_ms: 1_000,
            leases_max: 1 << 20,
            files_max: 1 << 20,
            waiters_max: 1 << 16,
            recovery_rate_per_s: 0,
            settle_ms: 10_000,
            revision_step: 1 << 32,
            hash_seed: 0x9e37_79b9_7f4a_7c15,
        }
    }
}

/// The stored state of a server at its start. Leases are never stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boot {
    /// The last [`Action::Reserve`](crate::Action::Reserve) that became durable; 0 at the first
    /// start.
    pub reserved_end: u64,
    /// The epoch of that action; 0 at the first start.
    pub epoch: u32,
    /// Time for which leases of the previous lifetime may still be held. 0 when nothing was
    /// exported before or the table was empty at shutdown. Otherwise [`Config::term_max_ms`] or the
    /// longest term ever granted. For leases without expiry it is the longest term of their
    /// clients.
    pub outstanding_ms: u32,
}

impl Boot {
    /// The very first start.
    pub const FIRST: Self = Self { reserved_end: 0, epoch: 0, outstanding_ms: 0 };
}

/// Settings of a [`Holder`](crate::Holder).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderConfig {
    /// Requested term.
    pub term_ms: u32,
    /// A lease in use is renewed when less than this time is left.
    pub renew_before_ms: u32,
    /// Delayed writes are pushed when less than this time is left and the lease was not renewed.
    /// From then on no write is delayed.
    pub push_before_ms: u32,
    /// Time after which an unanswered renewal is sent again.
    pub renew_retry_ms: Ms,
}

impl Default for HolderConfig {
    fn default() -> Self {
        Self { term_ms: 30_000, renew_before_ms: 10_000, push_before_ms: 3_000, renew_retry_ms: 2_000 }
    }
}
