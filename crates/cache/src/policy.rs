//! Which of the things that are kept goes first: `lru`, `s3-fifo`, `gdsf`.
//!
//! It knows nothing of files and disks: an [`Order`] holds items with a size, hears when one is
//! used, and names the next one to go. It is a state machine without clock, randomness or locks, so
//! that a simulation and the disk cache run the very same code. All items stand in one slab and are
//! addressed by their [`Place`]; no call looks at more than a few of them, but for [`Order::iter`].
//!
//! - `lru`: a list in the order of the last use (P0's cleaner, P4's cache).
//! - `s3-fifo` (Yang and others, SOSP 2023): what is new enters a small queue, a tenth of the
//!   bytes; what was used again on its way through it moves to the main queue, the rest goes, and
//!   is remembered for a while by a mark of four bytes: when it comes back it enters the main queue
//!   at once. In the main queue each use is worth another round, three at most.
//! - `gdsf` (Cherkasova, HPL-98-69): what costs least to fetch again for the room it takes goes
//!   first: its worth is age + uses × calls / bytes, where the age is the worth of what went last.
//!   It weighs sizes, which P4 asks for.
//!
//! Admission is the same for all: a file that is read once, or cannot fit, displaces others up to a
//! tenth of the soft limit ([`Order::may_displace`]). Without that rule one sequential read of a
//! file larger than the cache removes everything.

pub mod model;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashSet, VecDeque};

/// How the next one to go is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Policy {
    /// What was not used for longest.
    #[default]
    Lru,
    /// What was not used again soon after it came, then what was not used since its last round.
    S3Fifo,
    /// What is least worth its room.
    Gdsf,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Lru, Self::S3Fifo, Self::Gdsf];

    /// As an option spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::S3Fifo => "s3-fifo",
            Self::Gdsf => "gdsf",
        }
    }

    /// The one of this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// How many bytes are to be left when `bytes` are kept, more than `soft_bytes`, or when
    /// `short_bytes` are missing in the file system; `None` when nothing needs to go. `lru` removes
    /// a tenth at a time, as P0's cleaner did; the others, which judge each item anew, a hundredth.
    pub fn goal(self, bytes: u64, soft_bytes: u64, short_bytes: u64) -> Option<u64> {
        let most = bytes.saturating_sub(soft_bytes).max(short_bytes);
        let part = if self == Self::Lru { 10 } else { 100 };
        (most > 0 && bytes > 0).then(|| bytes.saturating_sub(most.max(bytes / part)))
    }
}

/// What can be kept in an order.
pub trait Item {
    /// A mark by which it is known when it comes back; nothing bad happens when two things have the
    /// same.
    fn mark(&self) -> u32;
}

/// Where an item stands, until it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place(u32);

/// What is known of an item's use, to find it again after a restart.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Kept {
    /// How often it was used, or is still worth a round.
    pub uses: u8,
    /// It is in the main queue (`s3-fifo`).
    pub main: bool,
    /// How much younger it is than what goes next (`gdsf`).
    pub younger: f64,
}

/// No place.
const NONE: u32 = u32::MAX;
/// Items that are passed over, or moved on, for one that goes.
const STEPS: usize = 64;
/// The small queue's part of the bytes.
const SMALL_PART: u64 = 10;
/// Uses that count in the main queue.
const ROUNDS: u8 = 3;
/// So many marks are kept at least.
const MARKS_MIN: usize = 1024;
/// Bytes that one call fetches.
const CALL_BYTES: u64 = 1 << 20;

/// A file may take this part of the soft limit from others at its first pass.
const SHARE_PART: u64 = 10;
/// Its share in a small cache, in bytes: two calls.
const SHARE_MIN: u64 = 2 * CALL_BYTES;
/// Of a file so many times as large as the cache nothing is kept, if nothing else is said.
const LARGEST: u64 = 16;

/// Length of the largest file that a cache of `cache_bytes` keeps a part of, unless it is told
/// another one. Even of a file that has the whole cache to itself less than a sixteenth would be
/// found beyond that.
pub const fn max_file_bytes(cache_bytes: u64) -> u64 {
    cache_bytes.saturating_mul(LARGEST)
}

/// Lists of an order. Only the first two are linked.
const NEW: u8 = 0;
const MAIN: u8 = 1;
/// By worth.
const RANKED: u8 = 2;
/// Does not go.
const ASIDE: u8 = 3;

#[derive(Debug)]
struct Node<T> {
    item: Option<T>,
    bytes: u64,
    /// The age when it was last used (`gdsf`).
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

/// Items, and which of them goes next.
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
    /// An empty one.
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

    /// Room for so many items more.
    pub fn reserve(&mut self, items: usize) {
        self.nodes.reserve_exact(items);
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
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
    /// It has left.
    pub fn at(&self, place: Place) -> &T {
        self.nodes[place.0 as usize].item.as_ref().expect("places are given up with their items")
    }

    /// The same, to change it. Its mark must stay.
    ///
    /// # Panics
    /// It has left.
    pub fn at_mut(&mut self, place: Place) -> &mut T {
        self.nodes[place.0 as usize].item.as_mut().expect("places are given up with their items")
    }

    /// How often an item was used, as far as that counts.
    pub fn uses(&self, place: Place) -> u8 {
        self.nodes[place.0 as usize].uses
    }

    /// Size of an item.
    pub fn bytes(&self, place: Place) -> u64 {
        self.nodes[place.0 as usize].bytes
    }

    /// Takes in something new.
    pub fn insert(&mut self, item: T, bytes: u64) -> Place {
        let main = self.policy == Policy::S3Fifo && self.marked.remove(&item.mark());
        let uses = u8::from(self.policy == Policy::Gdsf);
        self.put(item, bytes, Kept { uses, main, younger: 0.0 })
    }

    /// Takes back what was here before a restart, in the order of [`Order::iter`]; without `kept`
    /// in the order of their last use, oldest first.
    pub fn restore(&mut self, item: T, bytes: u64, kept: Option<Kept>) -> Place {
        let first = Kept { uses: u8::from(self.policy == Policy::Gdsf), ..Kept::default() };
        let younger = |kept: Kept| if kept.younger.is_finite() { kept.younger.max(0.0) } else { 0.0 };
        self.put(item, bytes, kept.map_or(first, |kept| Kept { younger: younger(kept), ..kept }))
    }

    fn put(&mut self, item: T, bytes: u64, kept: Kept) -> Place {
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
        Place(i)
    }

    /// An item was used.
    pub fn used(&mut self, place: Place) {
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

    /// An item has another size.
    pub fn resize(&mut self, place: Place, bytes: u64) {
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

    /// Whether an item may take `more` bytes where others have to go for them. `whole_bytes` is its
    /// size when all of it is here. Up to its share every item may. Beyond its share it may when it
    /// fits below the limit, was used again since it came, and is not the next to go itself
    /// (`gdsf`). What does not go by itself always may.
    ///
    /// # Panics
    /// It has left.
    pub fn may_displace(&self, place: Place, more: u64, whole_bytes: u64, soft_bytes: u64) -> bool {
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

    /// From now on an item does not go by itself, or does again.
    pub fn set_aside(&mut self, place: Place, aside: bool) {
        let (i, queue) = (place.0, self.nodes[place.0 as usize].queue);
        if aside && queue != ASIDE {
            self.unlink(i);
        } else if !aside && queue == ASIDE {
            self.nodes[i as usize].base = self.age;
            self.link(i, if self.policy == Policy::Gdsf { RANKED } else { NEW });
        }
    }

    /// An item leaves for a reason of its own.
    ///
    /// # Panics
    /// It has left before.
    pub fn remove(&mut self, place: Place) -> T {
        self.unlink(place.0);
        self.len -= 1;
        self.free.push(place.0);
        self.nodes[place.0 as usize].item.take().expect("places are given up with their items")
    }

    /// The next one goes. Those of which `is_busy` says so are passed over, as if they had been
    /// used now, unless there are many in a row. The place that it had, itself, and its size.
    pub fn evict(&mut self, mut is_busy: impl FnMut(&T) -> bool) -> Option<(Place, T, u64)> {
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

    fn pass_over(&mut self, place: Place) {
        let i = place.0;
        let queue = self.nodes[i as usize].queue;
        self.unlink(i);
        if queue == RANKED {
            // As young as if it had come now.
            let age = self.age.max(rank(&self.nodes[i as usize]));
            self.nodes[i as usize].base = age;
        }
        self.link(i, queue);
    }

    /// The next one to go, after those before it were moved on.
    fn next(&mut self) -> Option<Place> {
        match self.policy {
            Policy::Lru => Some(self.lists[0].oldest).filter(|i| *i != NONE).map(Place),
            Policy::Gdsf => self.ranks.first().map(|(_, i)| Place(*i)),
            Policy::S3Fifo => self.next_of_two(),
        }
    }

    fn next_of_two(&mut self) -> Option<Place> {
        for _ in 0..STEPS {
            let [new, main] = &self.lists;
            let all = new.bytes + main.bytes;
            let is_new = new.oldest != NONE && (main.oldest == NONE || new.bytes > all / SMALL_PART);
            let i = if is_new { new.oldest } else { main.oldest };
            let node = self.nodes.get_mut(i as usize)?;
            match (is_new, node.uses) {
                (true, 0 | 1) | (false, 0) => return Some(Place(i)),
                (true, _) => node.uses = 0,
                (false, uses) => node.uses = uses.min(ROUNDS) - 1,
            }
            self.unlink(i);
            self.link(i, MAIN);
        }
        let [new, main] = &self.lists;
        Some(if main.oldest == NONE { new.oldest } else { main.oldest }).filter(|i| *i != NONE).map(Place)
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

    /// All items with their places, in the order in which [`Order::restore`] wants them.
    pub fn iter(&self) -> impl Iterator<Item = (Place, &T, Kept)> {
        let aside = self.nodes.iter().zip(0..).filter(|(n, _)| n.queue == ASIDE && n.item.is_some());
        let listed = self.lists.iter().flat_map(|list| self.along(*list));
        let ranked = self.ranks.iter().map(|(_, i)| *i);
        let all = aside.map(|(_, i)| i).chain(listed).chain(ranked);
        all.filter_map(|i| {
            let node = &self.nodes[i as usize];
            let younger = (node.base - self.age).max(0.0);
            Some((Place(i), node.item.as_ref()?, Kept { uses: node.uses, main: node.queue == MAIN, younger }))
        })
    }

    fn along(&self, list: List) -> impl Iterator<Item = u32> {
        let some = |i: u32| (i != NONE).then_some(i);
        std::iter::successors(some(list.oldest), move |i| some(self.nodes[*i as usize].newer))
    }
}

/// What a node is worth (`gdsf`). Never negative: its bits stand in the same order.
fn rank<T>(node: &Node<T>) -> f64 {
    let bytes = node.bytes.max(1);
    node.base + f64::from(node.uses) * bytes.div_ceil(CALL_BYTES) as f64 / bytes as f64
}
