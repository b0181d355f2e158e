//! The reply cache of NFSv3: a repeated call gets its stored reply and is not executed again.
//!
//! The cache knows nothing of procedures. A key is the client's address and transport, the
//! transaction id, the program and a checksum of the caller and the arguments. A transaction id of
//! another user, or with other arguments, is therefore no repetition. An NQNFS client that has
//! named itself is distinguished from other clients at its address. A repetition of a running call
//! waits for the reply of that call. When the cache is full, the oldest finished entry is evicted;
//! running entries stay. Layers below that journal changes keep the call's key in the journal.
//! After a restart the cache is filled from that journal.

use crate::access::{caller_number, transport_number};
use crate::figures::ReplyCacheFigures;
use bytes::Bytes;
use hither_proto::rpc::AuthStat;
use hither_proto::xdr::{Dec, Enc};
use hither_rpc::server::{Incoming, Outcome};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use twox_hash::XxHash3_64;

/// Most replies in the cache. At a hundred bytes each they take a few megabytes. A client repeats a
/// call within a minute or two, and a busy server executes about this many calls in that time.
const ENTRIES_MAX: usize = 65_536;
/// Bytes of the arguments that the checksum covers: names, and the first bytes of written data.
const SUM_BYTES: usize = 4096;

/// A reply is kept for this time. A client that starts again may use the same transaction ids for
/// other calls.
const AGE_MAX: Duration = Duration::from_secs(600);

/// The first word of a key in a journal: the address family, and the transport above these bits.
const TRANSPORT_SHIFT: u32 = 8;
const TRANSPORT_MAX: u32 = u32::MAX >> TRANSPORT_SHIFT;

/// The identity of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    client: IpAddr,
    /// [`transport_number`].
    transport: u32,
    /// The client among those at this address, when the client has named itself.
    which: Option<u32>,
    xid: u32,
    prog: u32,
    vers: u32,
    proc: u32,
    len: usize,
    sum: u64,
}

impl Key {
    /// The key of a call.
    pub fn of(call: &Incoming) -> Self {
        Self {
            client: call.peer.addr.ip(),
            transport: transport_number(&call.peer.transport) & TRANSPORT_MAX,
            which: None,
            xid: call.xid,
            prog: call.prog,
            vers: call.vers,
            proc: call.proc,
            len: call.args.len(),
            sum: XxHash3_64::oneshot_with_seed(
                caller_number(&call.caller),
                &call.args[..call.args.len().min(SUM_BYTES)],
            ),
        }
    }

    /// The key as bytes, for a journal. They identify the call after a restart.
    pub fn to_bytes(self) -> Bytes {
        let mut out = Enc::new();
        let (family, client) = match self.client {
            IpAddr::V4(addr) => (4, addr.to_ipv6_mapped()),
            IpAddr::V6(addr) => (6, addr),
        };
        out.u32(family | self.transport << TRANSPORT_SHIFT);
        out.raw(&client.octets());
        for n in [self.xid, self.prog, self.vers, self.proc] {
            out.u32(n);
        }
        out.u64(self.len as u64);
        out.u64(self.sum);
        out.to_bytes()
    }

    /// The key that [`Key::to_bytes`] encoded. `None` for other bytes.
    pub fn parse(raw: &Bytes) -> Option<Self> {
        let mut raw = Dec::new(raw);
        let first = raw.u32().ok()?;
        let family = first & ((1 << TRANSPORT_SHIFT) - 1);
        let transport = first >> TRANSPORT_SHIFT;
        let client = Ipv6Addr::from(raw.fixed::<16>().ok()?);
        let client = match family {
            4 => IpAddr::V4(client.to_ipv4_mapped()?),
            6 => IpAddr::V6(client),
            _ => return None,
        };
        let mut word = || raw.u32().ok();
        let (xid, prog, vers, proc) = (word()?, word()?, word()?, word()?);
        let (len, sum) = (raw.u64().ok()? as usize, raw.u64().ok()?);
        let key = Self { client, transport, which: None, xid, prog, vers, proc, len, sum };
        (raw.remaining() == 0).then_some(key)
    }

    /// Program, version and procedure.
    pub fn procedure(&self) -> (u32, u32, u32) {
        (self.prog, self.vers, self.proc)
    }

    /// The key with a client id that distinguishes clients at one address.
    pub fn by(self, which: Option<u32>) -> Self {
        Self { which, ..self }
    }
}

enum Entry {
    Running(watch::Receiver<Option<Bytes>>),
    Done(Bytes),
}

#[derive(Default)]
struct Inner {
    entries: HashMap<Key, Entry>,
    /// Finished calls, oldest first.
    order: VecDeque<(Instant, Key)>,
}

impl Inner {
    fn remember(&mut self, key: Key, reply: Bytes) {
        self.entries.insert(key, Entry::Done(reply));
        self.order.push_back((Instant::now(), key));
        self.forget_old();
    }

    /// Removes old replies, and the oldest ones when there are too many.
    fn forget_old(&mut self) {
        let now = Instant::now();
        while let Some(&(at, key)) = self.order.front()
            && (self.order.len() > ENTRIES_MAX || now - at > AGE_MAX)
        {
            self.order.pop_front();
            self.entries.remove(&key);
        }
    }
}

/// The cache.
#[derive(Default)]
pub(crate) struct ReplyCache {
    inner: Mutex<Inner>,
    /// Repeated calls that got a stored reply.
    hits: AtomicU64,
}

/// The state of a call in the cache.
enum Seen {
    /// The call is new: execute it and then call [`ReplyCache::finish`].
    New(Turn),
    /// The call was executed before, with this reply.
    Before(Bytes),
    /// The call was seen before, but its execution ended without a reply.
    Lost,
}

/// The execution of a call.
struct Turn {
    key: Key,
    done: watch::Sender<Option<Bytes>>,
}

impl ReplyCache {
    /// Executes a call unless it was executed before. A call without a key is always executed. A
    /// refused call is not stored.
    pub async fn once(&self, key: Option<Key>, run: impl Future<Output = Result<Enc, AuthStat>>) -> Outcome {
        let Some(key) = key else { return run.await.map_or_else(Outcome::Refused, Outcome::Done) };
        let reply = match self.look_up(key).await {
            Seen::New(turn) => match run.await {
                Ok(reply) => {
                    let reply = reply.to_bytes();
                    self.finish(turn, reply.clone());
                    reply
                }
                Err(stat) => {
                    self.inner.lock().entries.remove(&key);
                    return Outcome::Refused(stat);
                }
            },
            Seen::Before(reply) => {
                self.hits.fetch_add(1, Relaxed);
                reply
            }
            Seen::Lost => return Outcome::SystemErr,
        };
        let mut out = Enc::new();
        out.raw(&reply);
        Outcome::Done(out)
    }

    /// The size and use of the cache.
    pub fn figures(&self) -> ReplyCacheFigures {
        let entries = self.inner.lock().entries.len();
        ReplyCacheFigures { entries, entries_max: ENTRIES_MAX, hits: self.hits.load(Relaxed) }
    }

    /// Looks a call up. Waits while the call is being executed.
    async fn look_up(&self, key: Key) -> Seen {
        let mut running = {
            let mut inner = self.inner.lock();
            inner.forget_old();
            match inner.entries.get(&key) {
                Some(Entry::Done(reply)) => return Seen::Before(reply.clone()),
                Some(Entry::Running(running)) => running.clone(),
                None => {
                    let (done, running) = watch::channel(None);
                    inner.entries.insert(key, Entry::Running(running));
                    return Seen::New(Turn { key, done });
                }
            }
        };
        match running.wait_for(Option::is_some).await {
            Ok(reply) => reply.clone().map_or(Seen::Lost, Seen::Before),
            Err(_) => {
                let mut inner = self.inner.lock();
                // A repetition may have been executed meanwhile.
                if matches!(inner.entries.get(&key), Some(Entry::Running(end)) if end.has_changed().is_err())
                {
                    inner.entries.remove(&key);
                }
                Seen::Lost
            }
        }
    }

    /// Stores the reply of a call that an earlier process executed.
    pub fn fill(&self, key: Key, reply: Bytes) {
        let mut inner = self.inner.lock();
        if !inner.entries.contains_key(&key) {
            inner.remember(key, reply);
        }
    }

    /// Stores the reply of an executed call.
    fn finish(&self, turn: Turn, reply: Bytes) {
        self.inner.lock().remember(turn.key, reply.clone());
        turn.done.send_replace(Some(reply));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn key(xid: u32) -> Key {
        Key {
            client: IpAddr::from([1, 2, 3, 4]),
            transport: 0,
            which: None,
            xid,
            prog: 1,
            vers: 3,
            proc: 9,
            len: 4,
            sum: 5,
        }
    }

    #[tokio::test]
    async fn a_repetition_gets_the_first_reply() {
        let cache = Arc::new(ReplyCache::default());
        let Seen::New(turn) = cache.look_up(key(1)).await else { panic!("it is new") };
        let waits = tokio::spawn({
            let cache = cache.clone();
            async move { cache.look_up(key(1)).await }
        });
        tokio::task::yield_now().await;
        cache.finish(turn, Bytes::from_static(b"reply"));
        assert!(matches!(waits.await.unwrap(), Seen::Before(r) if &r[..] == b"reply"));
        assert!(matches!(cache.look_up(key(1)).await, Seen::Before(_)));
        assert!(matches!(cache.look_up(key(2)).await, Seen::New(_)));
        assert!(matches!(cache.look_up(key(1).by(Some(7))).await, Seen::New(_)));
        assert!(matches!(cache.look_up(Key { transport: 1, ..key(1) }).await, Seen::New(_)));
    }

    /// A call whose reply comes from the journal is answered and not executed again. A truncated
    /// key is refused.
    #[tokio::test]
    async fn journaled_reply_answers_repetition() {
        let cache = ReplyCache::default();
        for (client, xid) in [("192.0.2.1", 1), ("2001:db8::1", 2), ("::ffff:192.0.2.1", 3)] {
            let transport = if xid == 2 { TRANSPORT_MAX } else { xid };
            let key = Key { client: client.parse().unwrap(), transport, ..key(xid) };
            let raw = key.to_bytes();
            assert!(raw.len() <= hither_vfs::CALL_MAX_BYTES);
            assert_eq!(Key::parse(&raw), Some(key));
            for at in 0..raw.len() {
                assert_eq!(Key::parse(&raw.slice(..at)), None);
            }
            cache.fill(key, Bytes::from_static(b"reply"));
            cache.fill(key, Bytes::from_static(b"another"));
            assert!(matches!(cache.look_up(key).await, Seen::Before(r) if &r[..] == b"reply"));
        }
        assert_eq!(Key::parse(&Bytes::from_static(&[0; 52])), None);
    }

    #[tokio::test]
    async fn the_oldest_replies_go() {
        let cache = ReplyCache::default();
        for xid in 0..=ENTRIES_MAX as u32 {
            let Seen::New(turn) = cache.look_up(key(xid)).await else { panic!("it is new") };
            cache.finish(turn, Bytes::new());
        }
        assert!(matches!(cache.look_up(key(0)).await, Seen::New(_)));
        assert!(matches!(cache.look_up(key(2)).await, Seen::Before(_)));
        assert_eq!(cache.inner.lock().order.len(), ENTRIES_MAX);
    }
}
