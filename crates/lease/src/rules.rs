//! The rules of the protocol as switches, so that tests can show that each of them is needed: with
//! any one off, the model checker or the simulation must find a wrong history. Outside tests all
//! are on and cannot be changed.

/// Rules of the [`Table`](crate::Table).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// A lease ends only when the clock skew has passed, too (condition 1).
    pub skew: bool,
    /// A write lease ends only when no call waits for service (condition 2).
    pub idle: bool,
    /// A write lease ends only when no write came for the write slack (condition 3).
    pub slack: bool,
    /// After a restart nothing but writes under leases is served until all leases are over.
    pub grace: bool,
    /// After a restart recovery also waits for the write slack.
    pub grace_slack: bool,
    /// A conflicting operation waits for the evicted to answer or to expire.
    pub await_vacated: bool,
    /// Write sharing makes a file non-caching.
    pub noncaching: bool,
    /// A file becomes cachable again when write sharing ends.
    pub sharing_ends: bool,
    /// Each change gets a modify revision.
    pub revision_grows: bool,
    /// Modify revisions are reserved durably before they are given out.
    pub revision_durable: bool,
    /// No client gets a lease while another's write is being executed.
    pub in_flight: bool,
    /// A lease that is being evicted is not renewed, and a file that an operation waits for is not
    /// leased.
    pub no_renewal_when_wanted: bool,
    /// A write that claims a lease which is gone is refused.
    pub expired: bool,
    /// After a restart, delayed writes are refused if their lease is not of the lifetime before.
    pub claim: bool,
    /// After a restart, delayed writes are refused if their lease had ended before.
    pub fence: bool,
    /// An eviction that is not answered is sent again.
    pub evict_retry: bool,
    /// A revoked delegation ends only when its client must have noticed.
    pub revoke_waits: bool,
    /// A returned lease is distinguished from one granted later.
    pub seq: bool,
}

impl Rules {
    /// All rules in force.
    pub const ALL: Self = Self {
        skew: true,
        idle: true,
        slack: true,
        grace: true,
        grace_slack: true,
        await_vacated: true,
        noncaching: true,
        sharing_ends: true,
        revision_grows: true,
        revision_durable: true,
        in_flight: true,
        no_renewal_when_wanted: true,
        expired: true,
        claim: true,
        fence: true,
        evict_retry: true,
        revoke_waits: true,
        seq: true,
    };
}

/// Rules of the [`Holder`](crate::Holder).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HolderRules {
    /// The term counts from when the request was sent, not from when the answer came.
    pub from_sending: bool,
    /// Nothing is served from the cache after expiry.
    pub stop_at_expiry: bool,
    /// Delayed writes are pushed before the lease is given up.
    pub push_before_vacating: bool,
    /// A grant that was asked for before an eviction arrived is void.
    pub void_when_evicted: bool,
    /// Delayed writes that outlived their lease are pushed before another lease is asked for.
    pub push_before_asking: bool,
    /// Cached data is dropped when the modify revision differs.
    pub revision: bool,
}

impl HolderRules {
    /// All rules in force.
    pub const ALL: Self = Self {
        from_sending: true,
        stop_at_expiry: true,
        push_before_vacating: true,
        void_when_evicted: true,
        push_before_asking: true,
        revision: true,
    };
}
