//! Eviction policies: `lru`, `s3-fifo`, `gdsf`.
//!
//! This module knows nothing of files and disks. An [`Order`] holds items with a size, records
//! their uses, and selects the next item to evict. It is a state machine without clock, randomness
//! or locks. A simulation and the disk cache therefore run the same code. All items are in one
//! slab, addressed by their [`ItemId`]. No call examines more than a few items, except
//! [`Order::iter`].
//!
//! - `lru`: a list in the order of the last use (P0's cleaner, P4's cache).
//! - `s3-fifo` (Yang and others, SOSP 2023): a new item enters a small queue, a tenth of the bytes.
//!   If it was used again before it reaches the end of that queue, it moves to the main queue.
//!   Otherwise it is evicted, and a mark of four bytes remembers it for a while. An item with a
//!   mark enters the main queue at once. In the main queue each use is worth another round, three
//!   at most.
//! - `gdsf` (Cherkasova, HPL-98-69): the item with the least worth is evicted first. The worth is
//!   age + uses × calls / bytes: the cost to fetch the item again for the space it takes. The age
//!   is the worth of the last evicted item. The policy weighs sizes, which P4 asks for.
//!
//! Admission is the same for all policies. A file that is read once, or cannot fit, displaces
//! others only up to a tenth of the soft limit ([`Order::may_displace`]). Without that rule, one
//! sequential read of a file larger than the cache removes everything.

pub mod model;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashSet, VecDeque};

/// How the next item to evict is selected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Policy {
    /// The least recently used item.
    #[default]
    Lru,
    /// The oldest item that was not used again soon after its insertion, then one not used since
    /// its last round.
    S3Fifo,
    /// The item with the least worth for its size.
    Gdsf,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::Lru, Self::S3Fifo, Self::Gdsf];

    /// Name of the policy as an option value.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::S3Fifo => "s3-fifo",
            Self::Gdsf => "gdsf",
        }
    }

    /// The policy of this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// Bytes to keep, when `bytes` exceed `soft_bytes` or the file system lacks `short_bytes`.
    /// `None` when no eviction is needed. `lru` removes a tenth at a time, as P0's cleaner did. The
    /// other policies judge each item anew, and remove a hundredth.
    pub fn goal(self, bytes: u64, soft_bytes: u64, short_bytes: u64) -> Option<u64> {
        let most = bytes.saturating_sub(soft_bytes).max(short_bytes);
        let part = if self == Self::Lru { 10 } else { 100 };
        (most > 0 && bytes > 0).then(|| bytes.saturating_sub(most.max(bytes / part)))
    }
}

/// An item of an order.
pub trait Item {
    /// A mark that recognises an item when it returns. Two items may have the same mark.
    fn mark(&self) -> u32;
}

/// Position of an item in the slab, until it is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ItemId(u32);

/// The recorded use of an item, to restore it after a restart.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SavedUse {
    /// Number of uses, or of remaining rounds.
    pub uses: u8,
    /// The item is in the main queue (`s3-fifo`).
    pub main: bool,
    /// By how much its base exceeds the present age (`gdsf`).
    pub younger: f64,
}

/// No place.
const NONE: u32 = u32::MAX;
/// Most items that are skipped or moved for one eviction.
const STEPS: usize = 64;
/// The small queue's part of the bytes: one in so many.
const SMALL_PART: u64 = 10;
/// Most uses that count in the main queue.
const ROUNDS: u8 = 3;
/// Least number of marks kept.
const MARKS_MIN: usize = 1024;
/// Bytes that one call fetches.
const CALL_BYTES: u64 = 1 << 20;

/// Part of the soft limit that a file may displace at its first pass: one in so many.
const SHARE_PART: u64 = 10;
/// The least such share, in bytes: two calls.
const SHARE_MIN: u64 = 2 * CALL_BYTES;
/// Default ratio of the largest cached file to the cache.
const LARGEST: u64 = 16;

/// Length of the largest file that a cache of `cache_bytes` keeps a part of, by default. Of a
/// longer file that has the whole cache to itself, reads would find less than a sixteenth.
pub const fn max_file_bytes(cache_bytes: u64) -> u64 {
    cache_bytes.saturating_mul(LARGEST)
}

/// Lists of an order. Only the first two are linked lists.
const NEW: u8 = 0;
const MAIN: u8 = 1;
/// Sorted by worth.
const RANKED: u8 = 2;
/// Not evicted.
const ASIDE: u8 = 3;

#[derive(Debug)]
struct Node<T> {
    item: Option<T>,
    bytes: u64,
    /// The age at the last use (`gdsf`).
    base: f64,
    older: u32,
    newer: u32,
    queue: u8,
    uses: u8,
}

#[derive(Debug, Clone, Copy)]
struct List {
    oldest: u32,
    newest: u32,
    bytes: u64,
}

const EMPTY: List = List { oldest: NONE, newest: NONE, bytes: 0 };

/// Items in the order of their eviction.
#[derive(Debug)]
pub struct Order<T> {
    policy: Policy,
    nodes: Vec<Node<T>>,
    free: Vec<u32>,
    len: usize,
    lists: [List; 2],
    ranks: BTreeSet<(u64, u32)>,
    age: f64,
    marks: VecDeque<u32>,
    marked: HashSet<u32>,
}

impl<T: Item> Order<T> {
    /// An empty order.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            nodes: Vec::new(),
            free: Vec::new(),
            len: 0,
            lists: [EMPTY; 2],
            ranks: BTreeSet::new(),
            age: 0.0,
            marks: VecDeque::new(),
            marked: HashSet::new(),
        }
    }

    /// Reserves space for so many more items.
    pub fn reserve(&mut self, items: usize) {
        self.nodes.reserve_exact(items);
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The policy.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The item at a place.
    ///
    /// # Panics
    /// If the item was removed.
    pub fn at(&self, place: ItemId) -> &T {
        self.nodes[place.0 as usize].item.as_ref().expect("a place is valid until its item is removed")
    }

    /// The item at a place, for changes. Its mark must stay the same.
    ///
    /// # Panics
    /// If the item was removed.
    pub fn at_mut(&mut self, place: ItemId) -> &mut T {
        self.nodes[place.0 as usize].item.as_mut().expect("a place is valid until its item is removed")
    }

    /// Number of uses of an item, as far as the policy counts them.
    pub fn uses(&self, place: ItemId) -> u8 {
        self.nodes[place.0 as usize].uses
    }

    /// Size of an item, in bytes.
    pub fn bytes(&self, place: ItemId) -> u64 {
        self.nodes[place.0 as usize].bytes
    }

    /// Adds a new item.
    pub fn insert(&mut self, item: T, bytes: u64) -> ItemId {
        let main = self.policy == Policy::S3Fifo && self.marked.remove(&item.mark());
        let uses = u8::from(self.policy == Policy::Gdsf);
        self.put(item, bytes, SavedUse { uses, main, younger: 0.0 })
    }

    /// Adds an item from before a restart, in the order of [`Order::iter`]. Without `kept`, in the
    /// order of the last use, oldest first.
    pub fn restore(&mut self, item: T, bytes: u64, kept: Option<SavedUse>) -> ItemId {
        let first = SavedUse { uses: u8::from(self.policy == Policy::Gdsf), ..SavedUse::default() };
        let younger = |kept: SavedUse| if kept.younger.is_finite() { kept.younger.max(0.0) } else { 0.0 };
        self.put(item, bytes, kept.map_or(first, |kept| SavedUse { younger: younger(kept), ..kept }))
    }

    fn put(&mut self, item: T, bytes: u64, kept: SavedUse) -> ItemId {
        let queue = match self.policy {
            Policy::Gdsf => RANKED,
            Policy::S3Fifo if kept.main => MAIN,
            _ => NEW,
        };
        let node = Node {
            item: Some(item),
            bytes,
            base: self.age + kept.younger,
            older: NONE,
            newer: NONE,
            queue: ASIDE,
            uses: kept.uses,
        };
        let i = match self.free.pop() {
            Some(i) => {
                self.nodes[i as usize] = node;
                i
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        self.len += 1;
        self.link(i, queue);
        ItemId(i)
    }

    /// Records a use of an item.
    pub fn used(&mut self, place: ItemId) {
        let (i, queue) = (place.0, self.nodes[place.0 as usize].queue);
        let age = self.age;
        let again = |node: &mut Node<T>| node.uses = node.uses.saturating_add(1);
        match (self.policy, queue) {
            (Policy::Gdsf, RANKED) => {
                self.unlink(i);
                let node = &mut self.nodes[i as usize];
                again(node);
                node.base = age;
                self.link(i, RANKED);
            }
            (Policy::Lru, NEW) => {
                self.unlink(i);
                again(&mut self.nodes[i as usize]);
                self.link(i, NEW);
            }
            _ => again(&mut self.nodes[i as usize]),
        }
    }

    /// Changes the size of an item.
    pub fn resize(&mut self, place: ItemId, bytes: u64) {
        let (i, queue) = (place.0, self.nodes[place.0 as usize].queue);
        match queue {
            RANKED => {
                self.unlink(i);
                self.nodes[i as usize].bytes = bytes;
                self.link(i, RANKED);
            }
            NEW | MAIN => {
                let list = &mut self.lists[usize::from(queue)];
                list.bytes = list.bytes - self.nodes[i as usize].bytes + bytes;
                self.nodes[i as usize].bytes = bytes;
            }
            _ => self.nodes[i as usize].bytes = bytes,
        }
    }

    /// Whether an item may take `more` bytes by evicting others. `whole_bytes` is its complete
    /// size. Every item may take its share. Beyond its share, an item must fit below the limit and
    /// must have been used again since its insertion. With `gdsf`, it must not be the next item to
    /// evict. An item that is set aside always may.
    ///
    /// # Panics
    /// If the item was removed.
    pub fn may_displace(&self, place: ItemId, more: u64, whole_bytes: u64, soft_bytes: u64) -> bool {
        let node = &self.nodes[place.0 as usize];
        if node.queue == ASIDE || node.bytes.saturating_add(more) <= (soft_bytes / SHARE_PART).max(SHARE_MIN)
        {
            return true;
        }
        let again = match self.policy {
            Policy::Lru => node.uses > 0,
            Policy::S3Fifo => node.uses > 0 || node.queue == MAIN,
            Policy::Gdsf => node.uses > 1 && self.ranks.first().is_none_or(|(_, first)| *first != place.0),
        };
        again && whole_bytes <= soft_bytes
    }

    /// Excludes an item from eviction, or includes it again.
    pub fn set_aside(&mut self, place: ItemId, aside: bool) {
        let (i, queue) = (place.0, self.nodes[place.0 as usize].queue);
        if aside && queue != ASIDE {
            self.unlink(i);
        } else if !aside && queue == ASIDE {
            self.nodes[i as usize].base = self.age;
            self.link(i, if self.policy == Policy::Gdsf { RANKED } else { NEW });
        }
    }

    /// Removes an item.
    ///
    /// # Panics
    /// If the item was removed before.
    pub fn remove(&mut self, place: ItemId) -> T {
        self.unlink(place.0);
        self.len -= 1;
        self.free.push(place.0);
        self.nodes[place.0 as usize].item.take().expect("a place is valid until its item is removed")
    }

    /// Evicts the next item. Items for which `is_busy` is true are skipped as if used now, but only
    /// a limited number in a row. Returns the former place, the item, and its size.
    pub fn evict(&mut self, mut is_busy: impl FnMut(&T) -> bool) -> Option<(ItemId, T, u64)> {
        let mut place = self.next()?;
        for _ in 0..STEPS {
            if !is_busy(self.at(place)) {
                break;
            }
            self.pass_over(place);
            place = self.next()?;
        }
        let node = &self.nodes[place.0 as usize];
        if self.policy == Policy::Gdsf {
            self.age = self.age.max(rank(node));
        }
        let (forgotten, bytes) = (self.policy == Policy::S3Fifo && node.queue == NEW, node.bytes);
        let item = self.remove(place);
        if forgotten {
            self.mark(item.mark());
        }
        Some((place, item, bytes))
    }

    fn pass_over(&mut self, place: ItemId) {
        let i = place.0;
        let queue = self.nodes[i as usize].queue;
        self.unlink(i);
        if queue == RANKED {
            // As young as a new item.
            let age = self.age.max(rank(&self.nodes[i as usize]));
            self.nodes[i as usize].base = age;
        }
        self.link(i, queue);
    }

    /// The next item to evict, after items before it were moved.
    fn next(&mut self) -> Option<ItemId> {
        match self.policy {
            Policy::Lru => Some(self.lists[0].oldest).filter(|i| *i != NONE).map(ItemId),
            Policy::Gdsf => self.ranks.first().map(|(_, i)| ItemId(*i)),
            Policy::S3Fifo => self.next_of_two(),
        }
    }

    fn next_of_two(&mut self) -> Option<ItemId> {
        for _ in 0..STEPS {
            let [new, main] = &self.lists;
            let all = new.bytes + main.bytes;
            let is_new = new.oldest != NONE && (main.oldest == NONE || new.bytes > all / SMALL_PART);
            let i = if is_new { new.oldest } else { main.oldest };
            let node = self.nodes.get_mut(i as usize)?;
            match (is_new, node.uses) {
                (true, 0 | 1) | (false, 0) => return Some(ItemId(i)),
                (true, _) => node.uses = 0,
                (false, uses) => node.uses = uses.min(ROUNDS) - 1,
            }
            self.unlink(i);
            self.link(i, MAIN);
        }
        let [new, main] = &self.lists;
        Some(if main.oldest == NONE { new.oldest } else { main.oldest }).filter(|i| *i != NONE).map(ItemId)
    }

    fn mark(&mut self, mark: u32) {
        if self.marked.insert(mark) {
            self.marks.push_back(mark);
        }
        while self.marks.len() > self.len.max(MARKS_MIN) {
            if let Some(old) = self.marks.pop_front() {
                self.marked.remove(&old);
            }
        }
    }

    fn link(&mut self, i: u32, queue: u8) {
        let node = &mut self.nodes[i as usize];
        node.queue = queue;
        match queue {
            RANKED => {
                let rank = rank(node).to_bits();
                self.ranks.insert((rank, i));
            }
            ASIDE => {}
            _ => {
                let list = &mut self.lists[usize::from(queue)];
                list.bytes += node.bytes;
                (node.older, node.newer) = (list.newest, NONE);
                let before = std::mem::replace(&mut list.newest, i);
                match self.nodes.get_mut(before as usize) {
                    Some(before) => before.newer = i,
                    None => list.oldest = i,
                }
            }
        }
    }

    fn unlink(&mut self, i: u32) {
        let node = &mut self.nodes[i as usize];
        let (queue, older, newer) = (node.queue, node.older, node.newer);
        node.queue = ASIDE;
        match queue {
            RANKED => {
                let rank = rank(node).to_bits();
                self.ranks.remove(&(rank, i));
            }
            ASIDE => {}
            _ => {
                let list = &mut self.lists[usize::from(queue)];
                list.bytes -= node.bytes;
                match self.nodes.get_mut(older as usize) {
                    Some(older) => older.newer = newer,
                    None => list.oldest = newer,
                }
                match self.nodes.get_mut(newer as usize) {
                    Some(newer) => newer.older = older,
                    None => list.newest = older,
                }
            }
        }
    }

    /// All items with their places, in the order that [`Order::restore`] needs.
    pub fn iter(&self) -> impl Iterator<Item = (ItemId, &T, SavedUse)> {
        let aside = self.nodes.iter().zip(0..).filter(|(n, _)| n.queue == ASIDE && n.item.is_some());
        let listed = self.lists.iter().flat_map(|list| self.along(*list));
        let ranked = self.ranks.iter().map(|(_, i)| *i);
        let all = aside.map(|(_, i)| i).chain(listed).chain(ranked);
        all.filter_map(|i| {
            let node = &self.nodes[i as usize];
            let younger = (node.base - self.age).max(0.0);
            Some((
                ItemId(i),
                node.item.as_ref()?,
                SavedUse { uses: node.uses, main: node.queue == MAIN, younger },
            ))
        })
    }

    fn along(&self, list: List) -> impl Iterator<Item = u32> {
        let some = |i: u32| (i != NONE).then_some(i);
        std::iter::successors(some(list.oldest), move |i| some(self.nodes[*i as usize].newer))
    }
}

/// The worth of a node (`gdsf`). It is never negative, so its bits have the same order.
fn rank<T>(node: &Node<T>) -> f64 {
    let bytes = node.bytes.max(1);
    node.base + f64::from(node.uses) * bytes.div_ceil(CALL_BYTES) as f64 / bytes as f64
}
