//! Counters: reassembles the messages of one connection, matches calls with replies, and adds them
//! up.

use super::decode::{self, Call, Seen};
use super::lock;
use crate::clock;
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Instant;

/// Most bytes of one message that are kept for decoding. The other bytes are only counted.
const KEEP_MAX_BYTES: usize = 4 << 20;
/// Most calls without a reply that the relay remembers per connection.
const PENDING_MAX: usize = 4096;
/// Most different compounds that are counted separately.
const SHAPES_MAX: usize = 4096;

/// The counters of a relay.
#[derive(Default)]
pub struct Stats {
    /// Connections accepted.
    pub connections: u64,
    calls: BTreeMap<String, Count>,
    ops: BTreeMap<String, u64>,
    shapes: BTreeMap<String, u64>,
    delegations: BTreeMap<&'static str, u64>,
    status4: BTreeMap<u32, u64>,
    max_inflight: usize,
    /// Records that are not RPC messages.
    rubbish: u64,
}

/// Counters of one procedure: calls, answered calls, bytes of calls and replies, and the total time
/// from call to reply.
#[derive(Default)]
struct Count {
    n: u64,
    answered: u64,
    req: u64,
    rep: u64,
    us: u64,
}

impl Stats {
    /// All counters:
    /// - `calls` by procedure (`n`, `answered`, bytes `req` and `rep`, `us` waited)
    /// - `ops` by NFSv4 operation
    /// - `sigs` by the list of operations in a compound
    /// - `deleg` by granted type
    /// - `status4` by compound status
    /// - `rubbish` for records that are not RPC messages
    pub fn json(&self) -> Value {
        let calls: serde_json::Map<String, Value> = self
            .calls
            .iter()
            .map(|(k, c)| {
                let count = json!({"n": c.n, "answered": c.answered, "req": c.req, "rep": c.rep, "us": c.us});
                (k.clone(), count)
            })
            .collect();
        json!({
            "connections": self.connections, "max_inflight": self.max_inflight, "calls": calls,
            "ops": self.ops, "sigs": self.shapes, "deleg": self.delegations, "status4": self.status4,
            "rubbish": self.rubbish,
        })
    }

    fn call(&mut self, call: &Call, bytes: u64) {
        let c = self.calls.entry(call.name.clone()).or_default();
        c.n += 1;
        c.req += bytes;
        if call.ops.is_empty() {
            return;
        }
        for op in &call.ops {
            *self.ops.entry(op.to_string()).or_default() += 1;
        }
        let shape = call.ops.join(",");
        if self.shapes.len() < SHAPES_MAX || self.shapes.contains_key(&shape) {
            *self.shapes.entry(shape).or_default() += 1;
        }
    }

    fn compound_reply(&mut self, outcome: Option<(u32, Option<&'static str>)>) {
        let Some((status, delegation)) = outcome else { return };
        *self.status4.entry(status).or_default() += 1;
        if let Some(kind) = delegation {
            *self.delegations.entry(kind).or_default() += 1;
        }
    }

    fn reply(&mut self, name: &str, bytes: u64, us: u64) {
        let c = self.calls.entry(name.to_string()).or_default();
        c.answered += 1;
        c.rep += bytes;
        c.us += us;
    }
}

/// Reassembles record-marked messages (RFC 5531 section 11).
#[derive(Default)]
struct Reassembler {
    header: Vec<u8>,
    left: usize,
    last: bool,
    message: Vec<u8>,
    /// All bytes of this message, including those not kept.
    total: usize,
}

impl Reassembler {
    fn feed(&mut self, mut b: &[u8], mut message: impl FnMut(&Bytes, u64)) {
        while !b.is_empty() {
            if self.left == 0 {
                let n = (4 - self.header.len()).min(b.len());
                self.header.extend_from_slice(&b[..n]);
                b = &b[n..];
                let Ok(word) = <[u8; 4]>::try_from(self.header.as_slice()) else { return };
                let word = u32::from_be_bytes(word);
                self.header.clear();
                self.last = word & 0x8000_0000 != 0;
                self.left = (word & 0x7fff_ffff) as usize;
                self.total += 4;
            } else {
                let n = self.left.min(b.len());
                let keep = n.min(KEEP_MAX_BYTES.saturating_sub(self.message.len()));
                self.message.extend_from_slice(&b[..keep]);
                self.total += n;
                self.left -= n;
                b = &b[n..];
            }
            if self.left == 0 && self.last && self.header.is_empty() {
                message(&Bytes::from(std::mem::take(&mut self.message)), self.total as u64);
                self.total = 0;
                self.last = false;
            }
        }
    }
}

struct Pending {
    name: String,
    since: Instant,
    has_open: bool,
}

/// Both directions of one connection.
#[derive(Default)]
pub struct Conversation {
    from_client: Reassembler,
    from_server: Reassembler,
    /// Calls of the client and callbacks of the server that have no reply yet.
    calls: HashMap<u32, Pending>,
    callbacks: HashMap<u32, Pending>,
}

impl Conversation {
    /// Takes the next bytes of one direction.
    pub fn feed(&mut self, bytes: &[u8], from_client: bool, stats: &Mutex<Stats>) {
        let Self { from_client: up, from_server: down, calls, callbacks } = self;
        let assembler = if from_client { up } else { down };
        assembler.feed(bytes, |message, total| {
            let seen = decode::message(message, from_client);
            let mut stats = lock(stats);
            // Calls travel in one direction and their replies in the other. Callbacks travel the
            // opposite way.
            match seen {
                Seen::Call(xid, call) => {
                    let pending = if from_client { &mut *calls } else { &mut *callbacks };
                    stats.call(&call, total);
                    let has_open = call.ops.contains(&"OPEN");
                    if pending.len() < PENDING_MAX {
                        pending.insert(xid, Pending { name: call.name, since: clock::now(), has_open });
                    }
                    if from_client {
                        stats.max_inflight = stats.max_inflight.max(pending.len());
                    }
                }
                Seen::Reply(xid, reply) => {
                    let pending = if from_client { &mut *callbacks } else { &mut *calls };
                    let Some(p) = pending.remove(&xid) else { return };
                    stats.reply(&p.name, total, p.since.elapsed().as_micros() as u64);
                    if p.name == "v4.COMPOUND" {
                        stats.compound_reply(decode::compound_reply(&reply, p.has_open));
                    }
                }
                Seen::Rubbish => stats.rubbish += 1,
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message in two fragments.
    fn record(message: &[u8]) -> Vec<u8> {
        let (a, b) = message.split_at(message.len() / 2);
        let mut all = (a.len() as u32).to_be_bytes().to_vec();
        all.extend(a);
        all.extend((b.len() as u32 | 0x8000_0000).to_be_bytes());
        all.extend(b);
        all
    }

    fn words(w: &[u32]) -> Vec<u8> {
        w.iter().flat_map(|v| v.to_be_bytes()).collect()
    }

    /// Calls and replies are counted for any division into fragments and reads.
    #[test]
    fn fragmented_messages_are_counted() {
        let stats = Mutex::new(Stats::default());
        let mut talk = Conversation::default();
        // NFSv3 GETATTR, xid 7, AUTH_NONE twice, then a reply without results.
        let call = record(&words(&[7, 0, 2, 100_003, 3, 1, 0, 0, 0, 0]));
        for byte in &call {
            talk.feed(&[*byte], true, &stats);
        }
        let reply = record(&words(&[7, 1, 0, 0, 0, 0, 0]));
        talk.feed(&reply, false, &stats);
        let all = lock(&stats).json();
        assert_eq!(all["calls"]["v3.GETATTR"]["n"], 1);
        assert_eq!(all["calls"]["v3.GETATTR"]["req"], call.len());
        assert_eq!(all["calls"]["v3.GETATTR"]["rep"], reply.len());
        assert_eq!(all["calls"]["v3.GETATTR"]["answered"], 1);
        assert_eq!(all["max_inflight"], 1);
    }

    /// A compound is counted by its operations, its status and the granted delegation.
    #[test]
    fn compound_operations_are_counted() {
        let stats = Mutex::new(Stats::default());
        let mut talk = Conversation::default();
        let head =
            [9, 0, 2, 100_003, 4, 1, 0, 0, 0, 0, /* tag */ 0, /* minor */ 0, /* ops */ 2];
        let open = [18, 0, 1, 0, 0, 0, /* owner */ 0, /* no create */ 0, /* CLAIM_FH */ 4];
        talk.feed(&record(&words(&[&head[..], &[24], &open].concat())), true, &stats);
        let head = [9, 1, 0, 0, 0, 0, /* status */ 0, /* tag */ 0, /* results */ 2, 24, 0];
        let open = [
            18, 0, 1, 2, 3, 4, /* change */ 0, 0, 0, 0, 0, /* rflags */ 0, /* attrs */ 0,
            /* no delegation */ 0,
        ];
        talk.feed(&record(&words(&[&head[..], &open].concat())), false, &stats);
        let all = lock(&stats).json();
        assert_eq!(all["sigs"]["PUTROOTFH,OPEN"], 1);
        assert_eq!(all["ops"]["OPEN"], 1);
        assert_eq!(all["status4"]["0"], 1);
        assert_eq!(all["deleg"]["none"], 1);
    }

    /// The relay stores only the first bytes of an endless message, and counts records that are not
    /// RPC.
    #[test]
    fn endless_messages_stay_within_memory() {
        let stats = Mutex::new(Stats::default());
        let mut talk = Conversation::default();
        talk.feed(&0x7fff_ffffu32.to_be_bytes(), true, &stats);
        for _ in 0..20 {
            talk.feed(&vec![0x5a; 1 << 20], true, &stats);
        }
        assert!(talk.from_client.message.len() <= KEEP_MAX_BYTES);
        // A separate record that is not an RPC message.
        Conversation::default().feed(&record(&words(&[1, 99, 2, 3])), true, &stats);
        assert_eq!(lock(&stats).json()["rubbish"], 1);
    }
}
