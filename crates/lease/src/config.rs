//! The numbers of the protocol, with the paper's values as defaults.

use crate::Ms;

/// Settings of a [`Table`](crate::Table).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Term of a lease when the client names none. The paper measured 30 s as about optimal on a
    /// local network.
    pub term_ms: u32,
    /// Longest term that is granted; the paper's is twice the default.
    pub term_max_ms: u32,
    /// By how much clocks of client and server may drift apart during the longest term.
    pub skew_ms: u32,
    /// For how long no write may have come before a write lease counts as ended. Several times the
    /// interval at which clients repeat their calls.
    pub write_slack_ms: u32,
    /// After this a first unanswered eviction is sent again; the interval doubles, to eight times
    /// at most.
    pub evict_retry_ms: u32,
    /// After this a lease without an end of its own is revoked if it was recalled and did not come
    /// back.
    pub recall_timeout_ms: u32,
    /// A write lease that is being evicted ends after this at the latest, whatever its holder still
    /// sends.
    pub flush_max_ms: u32,
    /// For how long a file whose lease was just taken away is leased to no client; doubles with
    /// each further eviction, to `quiet_max_ms`. Not applied to a first eviction.
    pub quiet_ms: u32,
    /// Longest time for which a file is leased to no client.
    pub quiet_max_ms: u32,
    /// For how long a file is kept free for a client that had to try later.
    pub retry_hold_ms: u32,
    /// The time that "try later" names when nothing better is known.
    pub try_later_ms: u32,
    /// Most lease records.
    pub leases_max: u32,
    /// Most file records (leased, waited for, or with a remembered modify revision).
    pub files_max: u32,
    /// Most operations that wait.
    pub waiters_max: u32,
    /// Operations other than writes under a lease that are let in each second while the server
    /// recovers from a restart and for `settle_ms` after; the others have to try later. 0: no
    /// limit.
    pub recovery_rate_per_s: u32,
    /// For how long after recovery that limit holds.
    pub settle_ms: u32,
    /// Modify revisions are reserved in steps of this many, a power of two.
    pub revision_step: u64,
    /// Scatters keys in hash tables.
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

/// A server's knowledge of its past when it starts. No lease is ever stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boot {
    /// The last [`Action::Reserve`](crate::Action::Reserve) that became durable; 0 the first time.
    pub reserved_end: u64,
    /// The epoch that came with it; 0 the first time.
    pub epoch: u32,
    /// For how long leases that were granted before may still be held: 0 when nothing was exported
    /// before or the table was empty at shutdown, [`Config::term_max_ms`] (or the longest term ever
    /// granted) otherwise, and for leases without an end of their own the longest time for which
    /// their clients were trusted.
    pub outstanding_ms: u32,
}

impl Boot {
    /// The very first start.
    pub const FIRST: Self = Self { reserved_end: 0, epoch: 0, outstanding_ms: 0 };
}

/// Settings of a [`Holder`](crate::Holder).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderConfig {
    /// Term to ask for.
    pub term_ms: u32,
    /// A lease in use is renewed when less than this is left.
    pub renew_before_ms: u32,
    /// Delayed writes are pushed when less than this is left and the lease was not renewed; nothing
    /// is delayed any more from then on.
    pub push_before_ms: u32,
    /// An unanswered renewal is repeated after this.
    pub renew_retry_ms: Ms,
}

impl Default for HolderConfig {
    fn default() -> Self {
        Self { term_ms: 30_000, renew_before_ms: 10_000, push_before_ms: 3_000, renew_retry_ms: 2_000 }
    }
}
