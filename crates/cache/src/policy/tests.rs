//! Each policy compared with its definition, written plainly with lists that are searched end to
//! end.

use super::*;
use proptest::prelude::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Thing(u32);

impl Item for Thing {
    fn mark(&self) -> u32 {
        self.0
    }
}

#[derive(Debug, Clone, Copy)]
enum Act {
    /// The thing is used, or inserted.
    Use(u32, u64),
    Resize(u32, u64),
    Remove(u32),
    Aside(u32, bool),
    Evict,
    /// The order is written and read back.
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    let (thing, bytes) = (0..40u32, 1..3_000_000u64);
    prop_oneof![
        8 => (thing.clone(), bytes.clone()).prop_map(|(t, b)| Act::Use(t, b)),
        1 => (thing.clone(), bytes).prop_map(|(t, b)| Act::Resize(t, b)),
        1 => thing.clone().prop_map(Act::Remove),
        1 => (thing, any::<bool>()).prop_map(|(t, aside)| Act::Aside(t, aside)),
        4 => Just(Act::Evict),
        1 => Just(Act::Restart),
    ]
}

/// A thing in the definitions.
#[derive(Debug, Clone, Copy)]
struct ModelItem {
    thing: u32,
    bytes: u64,
    uses: u8,
    base: f64,
    aside: bool,
    main: bool,
}

/// All things, the oldest of each queue first.
#[derive(Debug, Default)]
struct Plain {
    all: Vec<ModelItem>,
    age: f64,
    marks: Vec<u32>,
}

impl Plain {
    fn find(&mut self, thing: u32) -> Option<usize> {
        self.all.iter().position(|k| k.thing == thing)
    }

    fn make_newest(&mut self, i: usize) {
        let known = self.all.remove(i);
        self.all.push(known);
    }

    fn use_(&mut self, policy: Policy, thing: u32, bytes: u64) {
        let age = self.age;
        match self.find(thing) {
            None => {
                let main = policy == Policy::S3Fifo && self.marks.contains(&thing);
                self.marks.retain(|m| !main || *m != thing);
                let uses = u8::from(policy == Policy::Gdsf);
                self.all.push(ModelItem { thing, bytes, uses, base: age, aside: false, main });
            }
            Some(i) => {
                let known = &mut self.all[i];
                known.uses = known.uses.saturating_add(1);
                if !known.aside {
                    known.base = age;
                    if policy == Policy::Lru {
                        self.make_newest(i);
                    }
                }
            }
        }
    }

    fn aside(&mut self, thing: u32, aside: bool) {
        let age = self.age;
        let Some(i) = self.find(thing).filter(|i| self.all[*i].aside != aside) else { return };
        let known = &mut self.all[i];
        (known.aside, known.main) = (aside, false);
        if !aside {
            known.base = age;
            self.make_newest(i);
        }
    }

    fn worth(known: &ModelItem) -> f64 {
        let calls = known.bytes.div_ceil(1 << 20) as f64;
        known.base + f64::from(known.uses) * calls / known.bytes as f64
    }

    fn evict(&mut self, policy: Policy) -> Option<u32> {
        let may = |k: &&ModelItem| !k.aside;
        match policy {
            Policy::Lru => {
                let i = self.all.iter().position(|k| !k.aside)?;
                Some(self.all.remove(i).thing)
            }
            Policy::Gdsf => {
                let worth = |k: &&ModelItem| Self::worth(k);
                let least = self.all.iter().filter(may).map(|k| worth(&k)).min_by(f64::total_cmp)?;
                // Things of equal worth may be evicted in any order: the caller compares the worth.
                self.age = self.age.max(least);
                None
            }
            Policy::S3Fifo => loop {
                let bytes = |main: bool| -> u64 {
                    self.all.iter().filter(may).filter(|k| k.main == main).map(|k| k.bytes).sum()
                };
                let oldest = |main: bool| self.all.iter().position(|k| !k.aside && k.main == main);
                let (new, main) = (oldest(false), oldest(true));
                let all = bytes(false) + bytes(true);
                let from_new = new.filter(|_| main.is_none() || bytes(false) > all / 10);
                match (from_new, main) {
                    (Some(i), _) if self.all[i].uses > 1 => {
                        (self.all[i].main, self.all[i].uses) = (true, 0);
                        self.make_newest(i);
                    }
                    (Some(i), _) => {
                        let thing = self.all.remove(i).thing;
                        self.marks.retain(|m| *m != thing);
                        self.marks.push(thing);
                        return Some(thing);
                    }
                    (None, Some(i)) if self.all[i].uses > 0 => {
                        self.all[i].uses = self.all[i].uses.min(3) - 1;
                        self.make_newest(i);
                    }
                    (None, Some(i)) => return Some(self.all.remove(i).thing),
                    (None, None) => return None,
                }
            },
        }
    }
}

fn place(order: &Order<Thing>, thing: u32) -> Option<ItemId> {
    order.iter().find(|(_, t, _)| t.0 == thing).map(|(place, ..)| place)
}

fn restarted(order: &Order<Thing>, plain: &mut Plain) -> Order<Thing> {
    let mut again = Order::new(order.policy());
    let mut aside = Vec::new();
    for (from, thing, kept) in order.iter() {
        let to = again.restore(*thing, order.bytes(from), Some(kept));
        if plain.all.iter().any(|k| k.thing == thing.0 && k.aside) {
            aside.push(to);
        }
    }
    aside.into_iter().for_each(|to| again.set_aside(to, true));
    // A restart loses the marks of evicted things. Ages begin at zero again.
    plain.marks.clear();
    let age = std::mem::take(&mut plain.age);
    plain.all.iter_mut().for_each(|k| k.base = (k.base - age).max(0.0));
    again
}

fn same(order: &mut Order<Thing>, plain: &mut Plain, policy: Policy) -> Result<(), TestCaseError> {
    let gone = order.evict(|_| false);
    if policy != Policy::Gdsf {
        prop_assert_eq!(gone.map(|(_, t, _)| t.0), plain.evict(policy));
        return Ok(());
    }
    let before = plain.all.clone();
    plain.evict(policy);
    let least = before.iter().filter(|k| !k.aside).map(Plain::worth).min_by(f64::total_cmp);
    prop_assert_eq!(gone.is_some(), least.is_some());
    if let Some((_, thing, _)) = gone {
        let i = plain.find(thing.0).unwrap();
        let its = Plain::worth(&plain.all.remove(i));
        prop_assert!(its <= least.unwrap() * (1.0 + 1e-9), "{its} is not the least of {before:?}");
    }
    Ok(())
}

proptest! {
    /// After random operations each policy evicts the same things as a plain model of its
    /// definition.
    #[test]
    fn policies_match_their_definitions(which in 0..3usize, acts in proptest::collection::vec(act(), 0..300)) {
        let policy = Policy::ALL[which];
        let (mut order, mut plain) = (Order::new(policy), Plain::default());
        for act in acts {
            match act {
                Act::Use(thing, bytes) => {
                    match place(&order, thing) {
                        Some(place) => order.used(place),
                        None => _ = order.insert(Thing(thing), bytes),
                    }
                    plain.use_(policy, thing, bytes);
                }
                Act::Resize(thing, bytes) => {
                    if let (Some(place), Some(i)) = (place(&order, thing), plain.find(thing)) {
                        order.resize(place, bytes);
                        plain.all[i].bytes = bytes;
                    }
                }
                Act::Remove(thing) => {
                    if let (Some(place), Some(i)) = (place(&order, thing), plain.find(thing)) {
                        prop_assert_eq!(order.remove(place), Thing(thing));
                        plain.all.remove(i);
                    }
                }
                Act::Aside(thing, aside) => {
                    if let Some(place) = place(&order, thing) {
                        order.set_aside(place, aside);
                    }
                    plain.aside(thing, aside);
                }
                Act::Evict => same(&mut order, &mut plain, policy)?,
                Act::Restart => order = restarted(&order, &mut plain),
            }
            prop_assert_eq!(order.len(), plain.all.len());
            prop_assert_eq!(order.iter().count(), plain.all.len());
        }
        // A thing set aside is never evicted; all others are.
        let aside = plain.all.iter().filter(|k| k.aside).count();
        while order.evict(|_| false).is_some() {}
        prop_assert_eq!(order.len(), aside);
    }
}

/// Busy things are evicted after all others. One eviction looks at a bounded number of things.
#[test]
fn busy_things_are_evicted_last() {
    for policy in Policy::ALL {
        let mut order = Order::new(policy);
        (0..10).for_each(|i| _ = order.insert(Thing(i), 100));
        let busy = |t: &Thing| t.0 < 5;
        let gone: Vec<u32> = std::iter::from_fn(|| order.evict(busy)).map(|(_, t, _)| t.0).take(5).collect();
        assert_eq!(gone, [5, 6, 7, 8, 9], "{policy:?}");
        let mut looks = 0;
        (10..5000).for_each(|i| _ = order.insert(Thing(i), 100));
        let busy = |_: &Thing| {
            looks += 1;
            true
        };
        assert!(order.evict(busy).is_some(), "when all are busy, one goes all the same");
        assert!(looks <= STEPS, "{policy:?}: {looks}");
    }
}

/// One eviction moves a bounded number of things, even if all things were used before.
#[test]
fn eviction_after_full_use_is_bounded() {
    let mut order = Order::new(Policy::S3Fifo);
    let places: Vec<_> = (0..5000).map(|i| order.insert(Thing(i), 100)).collect();
    (0..9).for_each(|_| places.iter().for_each(|p| order.used(*p)));
    assert!(order.evict(|_| false).is_some());
    let moved = order.iter().filter(|(.., kept)| kept.main).count();
    assert!(moved <= STEPS, "{moved}");
}

/// The number of marks of evicted things is bounded. A marked thing that returns enters the main
/// queue.
#[test]
fn returning_thing_enters_main_queue() {
    let mut order = Order::new(Policy::S3Fifo);
    for i in 0..10_000 {
        order.insert(Thing(i), 100);
        if i >= 10 {
            order.evict(|_| false);
        }
    }
    assert!(order.marks.len() <= MARKS_MIN && order.marked.len() <= MARKS_MIN);
    let back = order.insert(Thing(9_900), 100);
    assert!(order.iter().any(|(place, _, kept)| place == back && kept.main));
}

/// A scan of things used once. `s3-fifo` keeps the used things. `gdsf` keeps them until the cache
/// was turned over as often as they were used. `lru` evicts them.
#[test]
fn scan_resistance_differs_by_policy() {
    for (policy, scan, survives) in [
        (Policy::Lru, 100, false),
        (Policy::S3Fifo, 900, true),
        (Policy::Gdsf, 150, true),
        (Policy::Gdsf, 900, false),
    ] {
        let mut order = Order::new(policy);
        let used: Vec<_> = (0..50).map(|i| order.insert(Thing(i), 100)).collect();
        (0..3).for_each(|_| used.iter().for_each(|p| order.used(*p)));
        for i in 100..100 + scan {
            order.insert(Thing(i), 100);
            if order.len() > 100 {
                order.evict(|_| false);
            }
        }
        let left = order.iter().filter(|(_, t, _)| t.0 < 50).count();
        assert_eq!(left == 50, survives, "{policy:?}: {left}");
    }
}

/// `gdsf` evicts large things before small ones.
#[test]
fn gdsf_evicts_large_things_first() {
    let mut order = Order::new(Policy::Gdsf);
    for i in 0..20 {
        order.insert(Thing(i), if i % 2 == 0 { 4096 } else { 900_000 });
    }
    assert!((0..10).all(|_| order.evict(|_| false).is_some_and(|(_, t, _)| t.0 % 2 == 1)));
}

/// The goal of an eviction follows from the used space, its limit and the missing free space.
#[test]
fn eviction_goals_follow_limits() {
    for policy in Policy::ALL {
        assert_eq!(policy.goal(900, 1000, 0), None);
        assert_eq!(policy.goal(0, 0, 7), None);
        assert_eq!(policy.goal(1000, 1000, 700), Some(300), "what is missing in the file system");
        assert_eq!(policy.goal(10_000, 5_000, 0), Some(5_000), "what is too much");
        assert_eq!(Policy::of(policy.name()), Some(policy));
    }
    assert_eq!(Policy::Lru.goal(1001, 1000, 0), Some(901), "P0: a tenth");
    assert_eq!(Policy::S3Fifo.goal(1001, 1000, 0), Some(991));
    assert_eq!(Policy::of("fifo"), None);
}

/// The size of a slot bounds the memory of a million items.
#[test]
fn node_size_is_bounded() {
    assert!(size_of::<Node<Thing>>() <= 40);
}
