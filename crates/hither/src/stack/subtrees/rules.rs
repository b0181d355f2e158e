//! Assigns directories to stacks by path.
//!
//! A place is the part of an object's path that decides the places of objects below it. Most places
//! are *plain*: they belong to a stack, and no rule applies further below. The other places are
//! directories on the way to a rule.

use hither_vfs::Name;
use std::collections::BTreeMap;

/// Most places, because a handle has one byte for the place.
const PLACES_MAX: usize = 256;

/// The way in which an object was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SubtreeId(u8);

impl SubtreeId {
    pub const ROOT: Self = Self(0);

    pub fn number(self) -> u8 {
        self.0
    }
}

/// The rules for all directories.
#[derive(Debug)]
pub struct Rules {
    /// The root, the plain place of each stack, and the directories above rules.
    places: Vec<RuleNode>,
}

#[derive(Debug, Default)]
struct RuleNode {
    stack: usize,
    names: BTreeMap<Name, SubtreeId>,
}

/// A directory that a rule names, or that is above such a directory.
#[derive(Debug, Default)]
struct Branching {
    stack: Option<usize>,
    names: BTreeMap<Name, Branching>,
}

impl Rules {
    /// Builds the rules. Stack 0 of `stacks` has the root. Each of `rules` assigns a directory and
    /// its content to a stack; a longer rule takes precedence. `None` if there are too many
    /// directories above rules.
    pub fn new(stacks: usize, rules: &[(Vec<Name>, usize)]) -> Option<Self> {
        let mut root = Branching::default();
        for (path, stack) in rules {
            let at = path.iter().fold(&mut root, |at, name| at.names.entry(name.clone()).or_default());
            at.stack = Some(*stack);
        }
        let plain = (0..stacks).map(|stack| RuleNode { stack, ..RuleNode::default() });
        let mut out = Self { places: std::iter::once(RuleNode::default()).chain(plain).collect() };
        let names = out.add(0, &root)?;
        out.places.first_mut()?.names = names;
        (out.places.len() <= PLACES_MAX).then_some(out)
    }

    fn add(&mut self, stack: usize, above: &Branching) -> Option<BTreeMap<Name, SubtreeId>> {
        let mut names = BTreeMap::new();
        for (name, below) in &above.names {
            let stack = below.stack.unwrap_or(stack);
            let place = if below.names.is_empty() {
                Self::plain_of(stack)?
            } else {
                let place = u8::try_from(self.places.len()).ok()?;
                self.places.push(RuleNode { stack, ..RuleNode::default() });
                let names = self.add(stack, below)?;
                self.places.get_mut(usize::from(place))?.names = names;
                SubtreeId(place)
            };
            names.insert(name.clone(), place);
        }
        Some(names)
    }

    fn plain_of(stack: usize) -> Option<SubtreeId> {
        u8::try_from(stack + 1).ok().map(SubtreeId)
    }

    fn known(&self, place: SubtreeId) -> &RuleNode {
        &self.places[usize::from(place.0)]
    }

    /// The place with this number.
    pub(super) fn place(&self, number: u8) -> Option<SubtreeId> {
        (usize::from(number) < self.places.len()).then_some(SubtreeId(number))
    }

    pub(super) fn stack(&self, place: SubtreeId) -> usize {
        self.known(place).stack
    }

    /// The place of the directory `name` in a directory at `place`.
    pub(super) fn child(&self, place: SubtreeId, name: &Name) -> SubtreeId {
        self.known(place).names.get(name).copied().unwrap_or_else(|| self.plain(place))
    }

    /// The place of an object without a rule in a directory at `place`.
    pub(super) fn plain(&self, place: SubtreeId) -> SubtreeId {
        Self::plain_of(self.stack(place)).unwrap_or(place)
    }

    /// Paths of the directories above rules that may contain a directory at `place`.
    pub(super) fn holders(&self, place: SubtreeId) -> Vec<Vec<Name>> {
        let (mut found, mut open) = (Vec::new(), vec![(SubtreeId::ROOT, Vec::new())]);
        while let Some((above, path)) = open.pop() {
            let names = &self.known(above).names;
            for (name, child) in names {
                if !self.known(*child).names.is_empty() {
                    open.push((*child, [path.clone(), vec![name.clone()]].concat()));
                }
            }
            if self.plain(above) == place || names.values().any(|child| *child == place) {
                found.push(path);
            }
        }
        found
    }

    /// All places of a stack.
    pub(super) fn places(&self, stack: usize) -> impl Iterator<Item = SubtreeId> {
        let all = (0..=u8::MAX).zip(&self.places);
        all.filter(move |(_, known)| known.stack == stack).map(|(number, _)| SubtreeId(number))
    }
}
