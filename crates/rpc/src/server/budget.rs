//! The memory of calls and replies. It is acquired before use and released when the reply is
//! written.
//!
//! Three limits hold at the same time:
//!
//! - A connection with other calls in progress may use a part of the free memory. Its part shrinks
//!   as the free memory shrinks.
//! - Large calls of one address leave a quarter of the memory to other addresses.
//! - The last eighth is reserved for small calls of connections without other calls in progress.
//!
//! A call above a limit waits, and later calls may overtake it. A client that does not read its
//! replies can hold memory. While calls wait, `Global::relieve` ends connections without progress,
//! the largest first.

use super::LARGE_TURN;
use super::turns::Turn;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{Instant, sleep};

/// A reply up to this size is small. Each accepted call gets this much memory for its future while
/// it waits, and then for its reply.
pub const SMALL_BYTES: usize = 4 << 10;
/// A call above this size is large.
const LARGE_BYTES: usize = 64 << 10;
/// This part of the memory is reserved for small calls of connections without other calls (an
/// eighth).
const RESERVE_PART: usize = 8;
/// A connection with other calls in progress may use this part of the free memory, but at least
/// `SHARE_MIN_BYTES`.
const SHARE_PART: usize = 8;
const SHARE_MIN_BYTES: usize = 256 << 10;
/// How often a waiting call triggers a search for stalled connections.
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

/// The memory that a call requests.
#[derive(Clone, Copy)]
struct Wish {
    bytes: usize,
    /// Bytes that the call holds already.
    own: usize,
}

/// The memory that one connection uses.
pub(super) struct Account {
    host: IpAddr,
    used: AtomicUsize,
    /// Held by the waiting call: at most one call of a connection waits.
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

/// Memory of one call, released when the grant is dropped.
pub(super) struct Grant {
    budget: Arc<Budget>,
    account: Arc<Account>,
    bytes: usize,
    /// The time for which the call waited for this memory.
    pub waited: Duration,
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

    /// Releases the memory above `bytes`.
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

    /// Whether no connection holds memory and no call waits.
    #[cfg(test)]
    pub fn is_clear(&self) -> bool {
        let state = self.state.lock();
        state.used == 0 && state.hosts.is_empty() && state.waiting.is_empty()
    }

    fn wish(&self, bytes: usize, own: usize) -> Wish {
        // A larger request could wait for ever.
        Wish { bytes: bytes.min(self.total / 4), own }
    }

    /// Acquires memory if enough is free now.
    fn take_now(self: &Arc<Self>, account: &Arc<Account>, wish: Wish) -> Option<Grant> {
        let mut state = self.state.lock();
        self.fits(&state, account, wish).then(|| self.add(&mut state, account, wish))
    }

    /// Waits for memory and acquires it. `relieve` runs every [`RELIEF_EVERY`] during the wait. The
    /// request is (bytes, bytes that the call holds already).
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
            // Removes waiters whose call was dropped.
            state.waiting.retain(|waiter| !waiter.granted.is_closed());
            state.waiting.push_back(Waiter { account: account.clone(), wish, granted: tx });
            rx
        };
        loop {
            tokio::select! {
                grant = &mut granted => match grant {
                    Ok(grant) => return grant,
                    Err(_) => return self.grant(account, 0),
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
        self.grant(account, wish.bytes)
    }

    fn grant(self: &Arc<Self>, account: &Arc<Account>, bytes: usize) -> Grant {
        Grant { budget: self.clone(), account: account.clone(), bytes, waited: Duration::ZERO }
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
                if self.fits(state, &waiter.account, waiter.wish) {
                    ready.push((self.add(state, &waiter.account, waiter.wish), waiter.granted))
                } else {
                    state.waiting.push_back(waiter)
                }
            }
        }
        // Runs without the lock: a grant whose receiver was dropped is released at once, under the
        // lock.
        for (grant, granted) in ready {
            let _ = granted.send(grant);
        }
    }
}

/// The resources of a call besides the connection: memory for its reply, and a turn of its address.
#[derive(Clone)]
pub struct Room(Arc<Mutex<CallResources>>, Arc<super::Global>);

struct CallResources {
    grant: Option<Grant>,
    turn: Option<Turn>,
    /// The permit of a call with a large reply.
    large: Option<OwnedSemaphorePermit>,
    /// The time for which the call waited before it was handed to the service.
    waited_before: Duration,
    /// The time for which it waited since, for the memory of its reply.
    waited_since: Duration,
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Room({:?})", self.0.lock().grant)
    }
}

impl Room {
    pub(super) fn new(global: &Arc<super::Global>, grant: Grant, turn: Turn, waited: Duration) -> Self {
        let resources = CallResources {
            grant: Some(grant),
            turn: Some(turn),
            large: None,
            waited_before: waited,
            waited_since: Duration::ZERO,
        };
        Self(Arc::new(Mutex::new(resources)), global.clone())
    }

    /// The time for which the call waited before it was handed to the service: for permits, the
    /// limit of the rate, memory, and its turn.
    pub fn waited_before(&self) -> Duration {
        self.0.lock().waited_before
    }

    /// The time for which the call has waited until now. That is [`Room::waited_before`], and the
    /// wait for the memory of its reply.
    pub fn waited(&self) -> Duration {
        let resources = self.0.lock();
        resources.waited_before + resources.waited_since
    }

    /// Waits until there is memory for a reply of `bytes`, and until few other calls with large
    /// replies execute. The service calls it once, before it executes the call.
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
                // Releases the turn, so that other calls of the address need not wait for this
                // memory.
                drop(self.0.lock().turn.take());
                let began = Instant::now();
                let more = budget.take(&account, (bytes, own), |bytes| self.1.relieve(bytes)).await;
                self.0.lock().waited_since += began.elapsed();
                more
            }
        };
        if let Some(grant) = &mut self.0.lock().grant {
            grant.absorb(more);
        }
        if bytes > LARGE_BYTES {
            self.wait_for_large().await;
        }
    }

    /// Waits for a permit for a call with a large reply. The permit ends with the call, and after
    /// [`LARGE_TURN`].
    async fn wait_for_large(&self) {
        let large = self.1.large.clone();
        let permit = match large.clone().try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => {
                // As for memory: other calls of the address need not wait for this permit.
                self.end_turn();
                let began = Instant::now();
                let permit = large.acquire_owned().await.ok();
                self.0.lock().waited_since += began.elapsed();
                permit
            }
        };
        self.0.lock().large = permit;
        let room = self.clone();
        tokio::spawn(async move {
            sleep(LARGE_TURN).await;
            drop(room.0.lock().large.take());
        });
    }

    /// Releases the turn of the address.
    pub(super) fn end_turn(&self) {
        drop(self.0.lock().turn.take());
    }

    /// Runs after the call was executed. Returns the memory of the reply and releases the rest.
    pub(super) fn finish(&self, reply_bytes: usize) -> Option<Grant> {
        let mut grant = {
            let mut resources = self.0.lock();
            drop((resources.turn.take(), resources.large.take()));
            resources.grant.take()
        };
        if let Some(grant) = &mut grant {
            grant.shrink_to(reply_bytes);
        }
        grant
    }
}
