//! Messages and network faults.

use super::random::Random;
use crate::{Access, ClientId, FileKey, Grant, Ms};

/// The faults of a simulation. All bounds are in milliseconds of the server's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// Lost messages per thousand. Never more than three copies of a call in a row are lost.
    pub loss: u32,
    /// Messages per thousand that are delivered twice.
    pub duplicates: u32,
    /// Maximum delay. Delays differ, so messages overtake each other.
    pub delay_max_ms: Ms,
    /// Maximum delay of a late copy.
    pub late_max_ms: Ms,
    /// Late copies per thousand.
    pub late: u32,
    /// Maximum duration of a partition of one client; 0: no partitions.
    pub partition_max_ms: Ms,
    /// All evictions are lost.
    pub callbacks_lost: bool,
    /// Clocks drift apart as far as the clock skew allows.
    pub drift: bool,
    /// Clients crash.
    pub client_crashes: bool,
    /// Maximum downtime of the server after a crash; 0: no crashes.
    pub server_down_max_ms: Ms,
    /// Maximum time for which the server receives calls and serves none; 0: no stalls.
    pub stall_max_ms: Ms,
    /// Mean time between faults of one kind.
    pub every_ms: Ms,
}

impl Faults {
    /// A network with delays only.
    pub const NONE: Self = Self {
        loss: 0,
        duplicates: 0,
        delay_max_ms: 20,
        late_max_ms: 0,
        late: 0,
        partition_max_ms: 0,
        callbacks_lost: false,
        drift: false,
        client_crashes: false,
        server_down_max_ms: 0,
        stall_max_ms: 0,
        every_ms: 20_000,
    };

    /// All faults within the bounds of the protocol. Only data of a crashed client may be lost.
    pub const BOUNDED: Self = Self {
        loss: 80,
        duplicates: 80,
        delay_max_ms: 40,
        late_max_ms: 4_000,
        late: 30,
        partition_max_ms: 300,
        callbacks_lost: false,
        drift: true,
        client_crashes: true,
        server_down_max_ms: 3_000,
        stall_max_ms: 3_000,
        every_ms: 20_000,
    };

    /// As [`Faults::BOUNDED`], with partitions longer than any lease. Data that a client could not
    /// send in time is reported as lost. No other error may occur.
    pub const UNBOUNDED: Self = Self { partition_max_ms: 15_000, ..Self::BOUNDED };
}

/// A call's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// An operation; `value` is the value of a write.
    Access { access: Access, value: u64 },
    /// The return of a lease.
    Vacated { file: FileKey, seq: u64 },
    /// A renewal of the client.
    Heartbeat,
}

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub slot: usize,
    /// The client's incarnation.
    pub from: ClientId,
    pub xid: u64,
    pub body: Body,
    /// The incarnation of the server that the client knows (a session).
    pub boot: u32,
}

/// The result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Done {
        grant: Option<Grant>,
        revision: u64,
        value: u64,
    },
    TryLater(u32),
    Expired,
    Heard,
    /// The server has another incarnation, with this number.
    Restarted(u32),
}

/// The messages to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToClient {
    /// A reply. Each reply lists the revoked delegations until their client has returned them. It
    /// renews the client only if the client knows this incarnation of the server.
    Reply {
        xid: u64,
        answer: Answer,
        heard: bool,
        revoked: Vec<(FileKey, u64)>,
    },
    Evict {
        file: FileKey,
        seq: u64,
    },
}

/// The arrival times of the copies of a message: none, one or two.
pub fn arrivals(random: &mut Random, faults: &Faults, now: Ms, deliver: bool) -> [Option<Ms>; 2] {
    let mut delay = || {
        let late = faults.late > 0 && random.one_in_thousand(faults.late);
        1 + random.below(if late { faults.late_max_ms } else { faults.delay_max_ms }.max(1))
    };
    let (first, second) = (now + delay(), now + delay());
    let lost = random.one_in_thousand(faults.loss);
    let twice = random.one_in_thousand(faults.duplicates);
    [(deliver && !lost).then_some(first), (deliver && twice).then_some(second)]
}
