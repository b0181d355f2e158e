//! Which directory belongs to which stack, by its path.
//!
//! A place is the knowledge of an object that decides where the objects below it belong. Most are
//! *plain*: of a stack, with no rule further below. The others are directories on the way to a
//! rule.

use hither_vfs::Name;
use std::collections::BTreeMap;

/// Places that a byte tells apart.
const PLACES_MAX: usize = 256;

/// How an object was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place(u8);

impl Place {
    pub const ROOT: Self = Self(0);

    pub fn number(self) -> u8 {
        self.0
    }
}

/// The rules.
#[derive(Debug)]
pub struct Rules {
    /// The root, the plain place of each stack, and the directories above rules.
    places: Vec<Known>,
}

#[derive(Debug, Default)]
struct Known {
    stack: usize,
    names: BTreeMap<Name, Place>,
}

/// A directory that rules name, or that is above one.
#[derive(Debug, Default)]
struct Branching {
    stack: Option<usize>,
    names: BTreeMap<Name, Branching>,
}

impl Rules {
    /// Of the stacks 0 to `stacks` - 1 the first is the root's, and each of `rules` gives a
    /// directory to one, with all that no longer rule gives to another. `None` when there are more
    /// directories above rules than can be told apart.
    pub fn new(stacks: usize, rules: &[(Vec<Name>, usize)]) -> Option<Self> {
        let mut root = Branching::default();
        for (path, stack) in rules {
            let at = path.iter().fold(&mut root, |at, name| at.names.entry(name.clone()).or_default());
            at.stack = Some(*stack);
        }
        let plain = (0..stacks).map(|stack| Known { stack, ..Known::default() });
        let mut out = Self { places: std::iter::once(Known::default()).chain(plain).collect() };
        let names = out.add(0, &root)?;
        out.places.first_mut()?.names = names;
        (out.places.len() <= PLACES_MAX).then_some(out)
    }

    fn add(&mut self, stack: usize, above: &Branching) -> Option<BTreeMap<Name, Place>> {
        let mut names = BTreeMap::new();
        for (name, below) in &above.names {
            let stack = below.stack.unwrap_or(stack);
            let place = match below.names.is_empty() {
                true => Self::plain_of(stack)?,
                false => {
                    let place = u8::try_from(self.places.len()).ok()?;
                    self.places.push(Known { stack, ..Known::default() });
                    let names = self.add(stack, below)?;
                    self.places.get_mut(usize::from(place))?.names = names;
                    Place(place)
                }
            };
            names.insert(name.clone(), place);
        }
        Some(names)
    }

    fn plain_of(stack: usize) -> Option<Place> {
        u8::try_from(stack + 1).ok().map(Place)
    }

    fn known(&self, place: Place) -> &Known {
        &self.places[usize::from(place.0)]
    }

    /// The place with that number.
    pub(super) fn place(&self, number: u8) -> Option<Place> {
        (usize::from(number) < self.places.len()).then_some(Place(number))
    }

    pub(super) fn stack(&self, place: Place) -> usize {
        self.known(place).stack
    }

    /// Where a directory `name` in a directory at `place` is.
    pub(super) fn child(&self, place: Place, name: &Name) -> Place {
        self.known(place).names.get(name).copied().unwrap_or_else(|| self.plain(place))
    }

    /// Where what no rule names is in a directory at `place`.
    pub(super) fn plain(&self, place: Place) -> Place {
        Self::plain_of(self.stack(place)).unwrap_or(place)
    }

    /// Paths of the directories with rules below them that may hold a directory at `place`.
    pub(super) fn holders(&self, place: Place) -> Vec<Vec<Name>> {
        let (mut found, mut open) = (Vec::new(), vec![(Place::ROOT, Vec::new())]);
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
    pub(super) fn places(&self, stack: usize) -> impl Iterator<Item = Place> {
        let all = (0..=u8::MAX).zip(&self.places);
        all.filter(move |(_, known)| known.stack == stack).map(|(number, _)| Place(number))
    }
}
