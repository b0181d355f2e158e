//! The reply cache of NFSv3: a call that is sent again is answered again, not executed again.
//!
//! It knows nothing of procedures. A call is recognised by its client's address, its transaction
//! id, its program and a checksum of its arguments, so that a transaction id that is used anew is
//! no repetition. A client of NQNFS that has said who it is is told from others at its address. A
//! repetition of a call that is still being executed waits for its reply. Entries go when there are
//! too many, oldest first; those being executed stay. Layers below that keep changes in a journal
//! keep the call's key with them, from which the cache is filled after a restart.

use bytes::Bytes;
use hither_proto::xdr::{Dec, Enc};
use hither_rpc::server::{Incoming, Outcome};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use tokio::sync::watch;
use twox_hash::XxHash3_64;

/// Most replies that are remembered. At a hundred bytes each they are few megabytes; a client that
/// sends a call again does so within a minute or two, in which a busy server executes about this
/// many.
const ENTRIES_MAX: usize = 65_536;
/// Bytes of the arguments that the checksum covers: names and the first bytes of what is written.
const SUM_BYTES: usize = 4096;

/// What makes two calls the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    client: IpAddr,
    /// Which of those at this address, when that is known.
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
            which: None,
            xid: call.xid,
            prog: call.prog,
            vers: call.vers,
            proc: call.proc,
            len: call.args.len(),
            sum: XxHash3_64::oneshot(&call.args[..call.args.len().min(SUM_BYTES)]),
        }
    }

    /// What tells this call from others after a restart.
    pub fn to_bytes(self) -> Bytes {
        let mut out = Enc::new();
        let (family, client) = match self.client {
            IpAddr::V4(addr) => (4, addr.to_ipv6_mapped()),
            IpAddr::V6(addr) => (6, addr),
        };
        out.u32(family);
        out.raw(&client.octets());
        for n in [self.xid, self.prog, self.vers, self.proc] {
            out.u32(n);
        }
        out.u64(self.len as u64);
        out.u64(self.sum);
        out.to_bytes()
    }

    /// The key of a call, as [`Key::to_bytes`] told it; `None` for what is none.
    pub fn parse(raw: &Bytes) -> Option<Self> {
        let mut raw = Dec::new(raw);
        let family = raw.u32().ok()?;
        let client = Ipv6Addr::from(raw.fixed::<16>().ok()?);
        let client = match family {
            4 => IpAddr::V4(client.to_ipv4_mapped()?),
            6 => IpAddr::V6(client),
            _ => return None,
        };
        let mut word = || raw.u32().ok();
        let (xid, prog, vers, proc) = (word()?, word()?, word()?, word()?);
        let (len, sum) = (raw.u64().ok()? as usize, raw.u64().ok()?);
        (raw.remaining() == 0).then_some(Self { client, which: None, xid, prog, vers, proc, len, sum })
    }

    /// Program, version and procedure.
    pub fn procedure(&self) -> (u32, u32, u32) {
        (self.prog, self.vers, self.proc)
    }

    /// The same of a client that is told from others at its address.
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
    /// Finished ones, oldest first.
    order: VecDeque<Key>,
}

impl Inner {
    fn remember(&mut self, key: Key, reply: Bytes) {
        self.entries.insert(key, Entry::Done(reply));
        self.order.push_back(key);
        while self.order.len() > ENTRIES_MAX {
            if let Some(old) = self.order.pop_front() {
                self.entries.remove(&old);
            }
        }
    }
}

/// The cache.
#[derive(Default)]
pub(crate) struct ReplyCache {
    inner: Mutex<Inner>,
}

/// Whether a call is new.
enum Seen {
    /// It is: execute it and say so.
    New(Turn),
    /// It was executed: this was its reply.
    Before(Bytes),
    /// It was seen, but its execution failed before there was a reply.
    Lost,
}

/// The execution of a call.
struct Turn {
    key: Key,
    done: watch::Sender<Option<Bytes>>,
}

impl ReplyCache {
    /// Executes a call that has not been executed; one without a key every time.
    pub async fn once(&self, key: Option<Key>, run: impl Future<Output = Enc>) -> Outcome {
        let Some(key) = key else { return Outcome::Done(run.await) };
        let reply = match self.look_up(key).await {
            Seen::New(turn) => {
                let reply = run.await.to_bytes();
                self.finish(turn, reply.clone());
                reply
            }
            Seen::Before(reply) => reply,
            Seen::Lost => return Outcome::SystemErr,
        };
        let mut out = Enc::new();
        out.raw(&reply);
        Outcome::Done(out)
    }

    /// Looks a call up; waits when it is being executed.
    async fn look_up(&self, key: Key) -> Seen {
        let mut running = {
            let mut inner = self.inner.lock();
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
                self.inner.lock().entries.remove(&key);
                Seen::Lost
            }
        }
    }

    /// Remembers the reply of a call that was executed in a life before.
    pub fn fill(&self, key: Key, reply: Bytes) {
        let mut inner = self.inner.lock();
        if !inner.entries.contains_key(&key) {
            inner.remember(key, reply);
        }
    }

    /// Remembers the reply of an executed call.
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
    }

    #[tokio::test]
    async fn what_a_journal_tells_is_answered_and_not_executed() {
        let cache = ReplyCache::default();
        for (client, xid) in [("192.0.2.1", 1), ("2001:db8::1", 2), ("::ffff:192.0.2.1", 3)] {
            let key = Key { client: client.parse().unwrap(), ..key(xid) };
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
