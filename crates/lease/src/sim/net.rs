//! Messages, and their fates.

use super::random::Random;
use crate::{Access, ClientId, FileKey, Grant, Ms};

/// The possible faults. All bounds are in milliseconds of the server's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// Messages lost, of a thousand; never more than three copies of a call in a row.
    pub loss: u32,
    /// Messages delivered twice, of a thousand.
    pub duplicates: u32,
    /// Longest delay; delays differ, so messages overtake each other.
    pub delay_max_ms: Ms,
    /// A copy that is late is at most so late.
    pub late_max_ms: Ms,
    /// Copies that are late, of a thousand.
    pub late: u32,
    /// Longest partition of one client; 0: none.
    pub partition_max_ms: Ms,
    /// No eviction arrives.
    pub callbacks_lost: bool,
    /// Clocks drift apart as much as is allowed.
    pub drift: bool,
    /// Clients crash.
    pub client_crashes: bool,
    /// The server crashes and is down for at most so long; 0: it does not.
    pub server_down_max_ms: Ms,
    /// The server serves no client for at most so long while calls arrive; 0: it does not.
    pub stall_max_ms: Ms,
    /// Mean time between faults of one kind.
    pub every_ms: Ms,
}

impl Faults {
    /// A network that only delays.
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

    /// Everything within the bounds that the protocol is made for: nothing may be lost but the data
    /// of a client that dies.
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

    /// Partitions longer than any lease, too: data that a client could not send in time is reported
    /// as lost, and nothing else may go wrong.
    pub const UNBOUNDED: Self = Self { partition_max_ms: 15_000, ..Self::BOUNDED };
}

/// A call's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// An operation; `value` is the value of a write.
    Access { access: Access, value: u64 },
    /// A lease is given up.
    Vacated { file: FileKey, seq: u64 },
    /// The client is there.
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
    /// Another incarnation of the server, and its number.
    Restarted(u32),
}

/// The messages to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToClient {
    /// Every reply says which delegations are revoked, until their client has given them up. It
    /// says that the client was heard of only if the client knows this incarnation of the server.
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

/// When the copies of a message arrive, if they do: at most two.
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
