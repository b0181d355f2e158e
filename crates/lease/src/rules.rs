//! The rules of the protocol as switches, for tests that show that each rule is needed. With any
//! rule off, the model checker or the simulation must find a wrong history. Outside of tests all
//! rules are on.

/// Rules of the [`Table`](crate::Table).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// A lease ends only after its term and the clock skew (condition 1).
    pub skew: bool,
    /// A write lease ends only when no call waits for service (condition 2).
    pub idle: bool,
    /// A write lease ends only when no write came within the write slack (condition 3).
    pub slack: bool,
    /// After a restart only writes under leases are served until all old leases have ended.
    pub grace: bool,
    /// After a restart recovery also waits for the write slack.
    pub grace_slack: bool,
    /// A conflicting operation waits until evicted holders reply or expire.
    pub await_vacated: bool,
    /// Write sharing makes a file non-caching.
    pub noncaching: bool,
    /// A file becomes cachable again when write sharing ends.
    pub sharing_ends: bool,
    /// Each change gets a modify revision.
    pub revision_grows: bool,
    /// Modify revisions are reserved durably before they are given out.
    pub revision_durable: bool,
    /// No client gets a lease while another client's write is being executed.
    pub in_flight: bool,
    /// A lease that is being evicted is not renewed. No client gets a lease on a file with waiting
    /// operations.
    pub no_renewal_when_wanted: bool,
    /// A write that claims an ended lease is refused.
    pub expired: bool,
    /// After a restart, delayed writes are refused when their lease is not of the previous
    /// lifetime.
    pub claim: bool,
    /// After a restart, delayed writes are refused when their lease had ended before.
    pub fence: bool,
    /// An unanswered eviction is sent again.
    pub evict_retry: bool,
    /// A revoked delegation ends only after its client must have noticed the revocation.
    pub revoke_waits: bool,
    /// A returned lease is distinguished from a later one.
    pub seq: bool,
}

impl Rules {
    /// All rules on.
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
    /// The term starts when the request was sent, not when the reply arrived.
    pub from_sending: bool,
    /// No data is served from the cache after expiry.
    pub stop_at_expiry: bool,
    /// Delayed writes are pushed before the lease is returned.
    pub push_before_vacating: bool,
    /// A grant that was requested before an eviction arrived is void.
    pub void_when_evicted: bool,
    /// Delayed writes that outlived their lease are pushed before another lease is requested.
    pub push_before_asking: bool,
    /// Cached data is dropped when the modify revision differs.
    pub revision: bool,
}

impl HolderRules {
    /// All rules on.
    pub const ALL: Self = Self {
        from_sending: true,
        stop_at_expiry: true,
        push_before_vacating: true,
        void_when_evicted: true,
        push_before_asking: true,
        revision: true,
    };
}
