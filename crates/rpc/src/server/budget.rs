//! The memory of calls and replies: acquired before it is used, and given back when the reply is
//! written.
//!
//! Three limits hold at a time. A connection that has other calls under way gets a part of the
//! memory that is free, so that its part shrinks as memory does. Large calls of one address leave a
//! quarter to other addresses. The last eighth is left to small calls of connections that have no
//! other call under way. A call that is over a limit waits; others go past it.
//!
//! Memory that a client holds because it does not read is not waited for: while calls wait,
//! connections end that make no progress (`Global::relieve`), the largest first.

use super::turns::Turn;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::sleep;

/// A call with a reply of so many bytes is small, and has them when it is taken.
pub(super) const SMALL_BYTES: usize = 4 << 10;
/// Calls beyond that are large.
const LARGE_BYTES: usize = 64 << 10;
/// Part of the memory for small calls of connections without others.
const RESERVE_PART: usize = 8;
/// A connection with other calls under way gets this part of the free memory, at least this many
/// bytes.
const SHARE_PART: usize = 8;
const SHARE_MIN_BYTES: usize = 256 << 10;
/// How often a call that waits has stalled connections looked for.
pub(super) const RELIEF_EVERY: Duration = Duration::from_millis(100);

/// Memory that all connections share.
pub(super) struct Budget {
    total: usize,
    connection_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: usize,
    hosts: HashMap<IpAddr, usize>,
    waiting: VecDeque<Waiter>,
}

struct Waiter {
    account: Arc<Account>,
    wish: Wish,
    granted: oneshot::Sender<Grant>,
}

/// The request of a call.
#[derive(Clone, Copy)]
struct Wish {
    bytes: usize,
    /// The memory that the call has already.
    own: usize,
}

/// The memory that one connection uses.
pub(super) struct Account {
    host: IpAddr,
    used: AtomicUsize,
    /// One call of a connection waits at a time.
    turn: tokio::sync::Mutex<()>,
}

impl Account {
    pub fn new(host: IpAddr) -> Arc<Self> {
        Arc::new(Self { host, used: AtomicUsize::new(0), turn: tokio::sync::Mutex::default() })
    }

    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }
}

/// Memory of one call, given back when it is dropped.
pub(super) struct Grant {
    budget: Arc<Budget>,
    account: Arc<Account>,
    bytes: usize,
}

impl std::fmt::Debug for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Grant({})", self.bytes)
    }
}

impl Grant {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives unneeded memory back.
    pub fn shrink_to(&mut self, bytes: usize) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.bytes -= surplus;
        self.budget.release(&self.account, surplus);
    }

    fn absorb(&mut self, mut more: Self) {
        self.bytes += std::mem::take(&mut more.bytes);
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.budget.release(&self.account, self.bytes);
    }
}

impl Budget {
    pub fn new(total: usize, connection_max: usize) -> Arc<Self> {
        Arc::new(Self { total: total.max(1 << 20), connection_max, state: Mutex::default() })
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.state.lock().used
    }

    pub fn total(&self) -> usize {
        self.total
    }

    /// Whether no grant of any connection is left.
    #[cfg(test)]
    pub fn is_clear(&self) -> bool {
        let state = self.state.lock();
        state.used == 0 && state.hosts.is_empty() && state.waiting.is_empty()
    }

    fn wish(&self, bytes: usize, own: usize) -> Wish {
        // More is never to be had.
        Wish { bytes: bytes.min(self.total / 4), own }
    }

    /// Memory that is there now, for a call that has `own` already.
    fn take_now(self: &Arc<Self>, account: &Arc<Account>, wish: Wish) -> Option<Grant> {
        let mut state = self.state.lock();
        self.fits(&state, account, wish).then(|| self.add(&mut state, account, wish))
    }

    /// Memory, when there is some. `relieve` is called now and then while it waits.
    pub async fn take(
        self: &Arc<Self>,
        account: &Arc<Account>,
        (bytes, own): (usize, usize),
        relieve: impl Fn(usize),
    ) -> Grant {
        let wish = self.wish(bytes, own);
        let _turn = account.turn.lock().await;
        let mut granted = {
            let mut state = self.state.lock();
            if self.fits(&state, account, wish) {
                return self.add(&mut state, account, wish);
            }
            let (tx, rx) = oneshot::channel();
            // Those that went away.
            state.waiting.retain(|waiter| !waiter.granted.is_closed());
            state.waiting.push_back(Waiter { account: account.clone(), wish, granted: tx });
            rx
        };
        loop {
            tokio::select! {
                grant = &mut granted => match grant {
                    Ok(grant) => return grant,
                    Err(_) => return Grant { budget: self.clone(), account: account.clone(), bytes: 0 },
                },
                () = sleep(RELIEF_EVERY) => relieve(bytes),
            }
        }
    }

    fn fits(&self, state: &State, account: &Account, Wish { bytes, own }: Wish) -> bool {
        let free = self.total.saturating_sub(state.used);
        let others = account.used().saturating_sub(own);
        let is_large = bytes > LARGE_BYTES;
        let takes_last = !is_large && others == 0;
        let free = if takes_last { free } else { free.saturating_sub(self.total / RESERVE_PART) };
        let share = self.connection_max.min((free / SHARE_PART).max(SHARE_MIN_BYTES));
        let hosts = state.hosts.get(&account.host).copied().unwrap_or(0);
        bytes <= free
            && (others == 0 || others + own + bytes <= share)
            && (!is_large || hosts + bytes <= self.total / 4 * 3)
    }

    fn add(self: &Arc<Self>, state: &mut State, account: &Arc<Account>, wish: Wish) -> Grant {
        state.used += wish.bytes;
        *state.hosts.entry(account.host).or_default() += wish.bytes;
        account.used.fetch_add(wish.bytes, Relaxed);
        Grant { budget: self.clone(), account: account.clone(), bytes: wish.bytes }
    }

    fn release(self: &Arc<Self>, account: &Account, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let mut ready = Vec::new();
        {
            let state = &mut *self.state.lock();
            state.used -= bytes;
            account.used.fetch_sub(bytes, Relaxed);
            if let Some(used) = state.hosts.get_mut(&account.host) {
                *used -= bytes;
                if *used == 0 {
                    state.hosts.remove(&account.host);
                }
            }
            for waiter in std::mem::take(&mut state.waiting) {
                match self.fits(state, &waiter.account, waiter.wish) {
                    true => ready.push((self.add(state, &waiter.account, waiter.wish), waiter.granted)),
                    false => state.waiting.push_back(waiter),
                }
            }
        }
        // Without the lock: a grant without a taker is released at once.
        for (grant, granted) in ready {
            let _ = granted.send(grant);
        }
    }
}

/// The resources of a call, beyond the connection's: memory for its reply, and its address's turn.
#[derive(Clone)]
pub struct Room(Arc<Mutex<Held>>, Arc<super::Global>);

struct Held {
    grant: Option<Grant>,
    turn: Option<Turn>,
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Room({:?})", self.0.lock().grant)
    }
}

impl Room {
    pub(super) fn new(global: &Arc<super::Global>, grant: Grant, turn: Turn) -> Self {
        Self(Arc::new(Mutex::new(Held { grant: Some(grant), turn: Some(turn) })), global.clone())
    }

    /// Waits until there is memory for a reply of so many bytes. To be called once, before the call
    /// is executed.
    pub async fn expect(&self, bytes: usize) {
        let Some(bytes) = bytes.checked_sub(SMALL_BYTES).filter(|&bytes| bytes > 0) else { return };
        let (own, account) = {
            let held = self.0.lock();
            let Some(grant) = &held.grant else { return };
            (grant.bytes(), grant.account.clone())
        };
        let budget = &self.1.budget;
        let more = match budget.take_now(&account, budget.wish(bytes, own)) {
            Some(more) => more,
            None => {
                // Others of the address need not wait with this one.
                drop(self.0.lock().turn.take());
                budget.take(&account, (bytes, own), |bytes| self.1.relieve(bytes)).await
            }
        };
        if let Some(grant) = &mut self.0.lock().grant {
            grant.absorb(more);
        }
    }

    /// The address's turn is over.
    pub(super) fn end_turn(&self) {
        drop(self.0.lock().turn.take());
    }

    /// The call was executed: its reply gets its memory.
    pub(super) fn finish(&self, reply_bytes: usize) -> Option<Grant> {
        self.end_turn();
        let mut grant = self.0.lock().grant.take();
        if let Some(grant) = &mut grant {
            grant.shrink_to(reply_bytes);
        }
        grant
    }
}
