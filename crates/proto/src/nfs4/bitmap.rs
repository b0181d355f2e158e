//! `bitmap4`: a set of small numbers (attributes, operations, notifications).
//!
//! This module gives the numbers no meaning. The set holds numbers below 256 in place, so that a
//! bitmap is `Copy` and can be a constant. Trailing zero words are not sent, and received ones are
//! ignored.
//!
//! RFC 8881 does not limit bitmaps. Received numbers from 255 up become [`Bitmap4::BEYOND`]. No
//! attribute or operation has that number, so it is treated like other unknown numbers.

use crate::xdr::{Dec, Enc, Result, Xdr};
use std::fmt;

const WORDS: usize = 8;
/// Most words of a received bitmap. A longer bitmap is refused.
const WORDS_MAX: usize = 256;

/// A set of numbers below [`Bitmap4::BITS`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Bitmap4([u32; WORDS]);

impl Bitmap4 {
    /// The empty set.
    pub const EMPTY: Self = Self([0; WORDS]);
    /// The set holds numbers below this value.
    pub const BITS: u32 = 32 * WORDS as u32;
    /// Represents all numbers from this value up.
    pub const BEYOND: u32 = Self::BITS - 1;

    /// The set of `numbers`, which are below [`Bitmap4::BITS`].
    pub const fn of(numbers: &[u32]) -> Self {
        let mut out = Self::EMPTY;
        let mut i = 0;
        while i < numbers.len() {
            out = out.with(numbers[i]);
            i += 1;
        }
        out
    }

    /// This set and `n`.
    #[must_use]
    pub const fn with(mut self, n: u32) -> Self {
        self.0[n as usize / 32] |= 1 << (n % 32);
        self
    }

    /// This set without `n`.
    #[must_use]
    pub const fn without(mut self, n: u32) -> Self {
        self.0[n as usize / 32] &= !(1 << (n % 32));
        self
    }

    /// True when `n` is in the set.
    pub const fn has(&self, n: u32) -> bool {
        n < Self::BITS && self.0[n as usize / 32] & (1 << (n % 32)) != 0
    }

    /// Adds `n`.
    pub const fn insert(&mut self, n: u32) {
        *self = self.with(n);
    }

    /// Removes `n`.
    pub const fn remove(&mut self, n: u32) {
        *self = self.without(n);
    }

    /// True when the set is empty.
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// Count of the numbers in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// The union of both sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        let mut out = self;
        let mut i = 0;
        while i < WORDS {
            out.0[i] |= other.0[i];
            i += 1;
        }
        out
    }

    /// The intersection of both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        let mut out = self;
        let mut i = 0;
        while i < WORDS {
            out.0[i] &= other.0[i];
            i += 1;
        }
        out
    }

    /// The members of this set that are not in `other`.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        let mut out = self;
        let mut i = 0;
        while i < WORDS {
            out.0[i] &= !other.0[i];
            i += 1;
        }
        out
    }

    /// True when each number of this set is in `other`.
    pub fn is_subset(self, other: Self) -> bool {
        self.difference(other).is_empty()
    }

    /// The numbers in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        self.0.into_iter().enumerate().flat_map(|(i, mut word)| {
            std::iter::from_fn(move || {
                let bit = word.trailing_zeros();
                word &= word.wrapping_sub(1);
                (bit < 32).then_some(i as u32 * 32 + bit)
            })
        })
    }
}

impl FromIterator<u32> for Bitmap4 {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        numbers.into_iter().fold(Self::EMPTY, Self::with)
    }
}

impl fmt::Debug for Bitmap4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Xdr for Bitmap4 {
    fn enc(&self, e: &mut Enc) {
        let words = WORDS - self.0.iter().rev().take_while(|w| **w == 0).count();
        e.u32(words as u32);
        self.0[..words].iter().for_each(|w| e.u32(*w));
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        let n = d.count(WORDS_MAX, 4)?;
        let mut out = Self::EMPTY;
        for i in 0..n {
            match (d.u32()?, out.0.get_mut(i)) {
                (word, Some(slot)) => *slot = word,
                (0, None) => {}
                (_, None) => out.insert(Self::BEYOND),
            }
        }
        Ok(out)
    }
}
