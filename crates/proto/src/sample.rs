//! Sample values of wire types, for round-trip tests and fuzzing seeds.
//!
//! This module has no protocol. A [`Source`] turns a byte string into decisions. The macros
//! `xdr_struct!`, `xdr_enum!` and `xdr_union!` derive [`Sample`] and a round-trip test for each
//! declared type, so each type has a test. An exhausted source returns zero, which is always the
//! smallest choice: no bytes, no elements, the first arm. Sampling therefore ends. A shorter byte
//! string gives a simpler value, so a property test that shrinks the bytes also shrinks the value.

use crate::xdr::{Chain, List, Opaque};
use bytes::Bytes;

/// A type with sample values.
pub trait Sample: Sized {
    /// Makes a value from the decisions of `s`.
    fn sample(s: &mut Source<'_>) -> Self;
}

/// Decisions from a byte string.
#[derive(Debug, Clone)]
pub struct Source<'a> {
    rest: &'a [u8],
    plain: bool,
}

impl<'a> Source<'a> {
    /// A source of decisions from `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, plain: false }
    }

    /// A source of values that any reader of the protocol accepts. Enumerations have known values,
    /// texts and handles are a few letters, integers are below 65536.
    pub fn plain(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, plain: true }
    }

    /// True when values must be [plain](Source::plain).
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// The next byte, or 0 at the end.
    pub fn byte(&mut self) -> u8 {
        match self.rest.split_first() {
            Some((&b, rest)) => {
                self.rest = rest;
                b
            }
            None => 0,
        }
    }

    /// A number below `n`, which is at least 1 and at most 65536.
    pub fn below(&mut self, n: usize) -> usize {
        let high = if n > 256 { usize::from(self.byte()) << 8 } else { 0 };
        (high | usize::from(self.byte())) % n
    }

    /// An integer: small, all ones, near a sign boundary, or arbitrary.
    pub fn int(&mut self) -> u64 {
        if self.plain {
            return u64::from(self.byte()) << 8 | u64::from(self.byte());
        }
        match self.byte() % 6 {
            0 | 1 => u64::from(self.byte()),
            2 => u64::MAX,
            3 => 1 << 31,
            4 => 1 << 63,
            _ => (0..8).fold(0, |v, _| v << 8 | u64::from(self.byte())),
        }
    }

    /// At most `max` bytes: usually few, sometimes exactly `max`, sometimes enough for a segment by
    /// reference.
    pub fn bytes(&mut self, max: usize) -> Bytes {
        if self.plain {
            let len = (1 + self.below(20)).min(max);
            return (0..len).map(|_| b'a' + self.byte() % 26).collect();
        }
        let len = match self.byte() {
            255 => max.min(4096),
            254 => max.min(1500 + self.below(8)),
            n => usize::from(n % 23).min(max),
        };
        (0..len).map(|_| self.byte()).collect()
    }

    /// A list of at most `max` elements, usually up to three.
    pub fn list<T: Sample>(&mut self, max: usize) -> Vec<T> {
        let n = self.below(4).min(max);
        (0..n).map(|_| T::sample(self)).collect()
    }
}

macro_rules! sample_int {
    ($($t:ty),*) => {$(impl Sample for $t {
        fn sample(s: &mut Source<'_>) -> Self { s.int() as $t }
    })*};
}
sample_int!(u32, i32, u64, i64);

impl Sample for bool {
    fn sample(s: &mut Source<'_>) -> Self {
        s.byte() & 1 == 1
    }
}

impl Sample for () {
    fn sample(_: &mut Source<'_>) -> Self {}
}

impl<const N: usize> Sample for [u8; N] {
    fn sample(s: &mut Source<'_>) -> Self {
        std::array::from_fn(|_| s.byte())
    }
}

impl<T: Sample> Sample for Option<T> {
    fn sample(s: &mut Source<'_>) -> Self {
        (s.byte() & 1 == 1).then(|| T::sample(s))
    }
}

impl<T: Sample> Sample for Box<T> {
    fn sample(s: &mut Source<'_>) -> Self {
        Box::new(T::sample(s))
    }
}

impl<const MAX: usize> Sample for Opaque<MAX> {
    fn sample(s: &mut Source<'_>) -> Self {
        Self(s.bytes(MAX))
    }
}

impl<T: Sample, const MAX: usize> Sample for List<T, MAX> {
    fn sample(s: &mut Source<'_>) -> Self {
        Self(s.list(MAX))
    }
}

impl<T: Sample, const MAX: usize> Sample for Chain<T, MAX> {
    fn sample(s: &mut Source<'_>) -> Self {
        Self(s.list(MAX))
    }
}

/// Checks that values of `T` survive encoding and decoding. The decoded value must be equal, and
/// all bytes must be used. Each shorter message must be refused without a panic. The length must be
/// a multiple of 4.
#[cfg(test)]
pub(crate) fn round_trip<T: crate::xdr::Xdr + Sample + PartialEq + std::fmt::Debug>() {
    use crate::xdr::{Dec, Enc};
    check(&|bytes| {
        let value = T::sample(&mut Source::new(bytes));
        let wire = Enc::of(&value).to_bytes();
        if !wire.len().is_multiple_of(4) {
            return Err(format!("{value:?} takes {} bytes, not a multiple of 4", wire.len()));
        }
        match Dec::all::<T>(&wire) {
            Ok(back) if back == value => {}
            other => return Err(format!("{value:?} came back as {other:?}")),
        }
        for len in (0..wire.len()).step_by(1 + wire.len() / 64) {
            if Dec::all::<T>(&wire.slice(..len)).is_ok_and(|back| back == value) {
                return Err(format!("{value:?} needs only {len} of its {} bytes", wire.len()));
            }
        }
        Ok(())
    });
}

/// Checks `property` for many byte strings.
#[cfg(test)]
pub(crate) fn check(property: &dyn Fn(&[u8]) -> Result<(), String>) {
    use proptest::test_runner::{Config, TestCaseError, TestRunner};
    let config = Config { cases: 96, failure_persistence: None, ..Config::default() };
    let bytes = proptest::collection::vec(proptest::num::u8::ANY, 0..600);
    TestRunner::new(config)
        .run(&bytes, |b| property(&b).map_err(TestCaseError::fail))
        .unwrap_or_else(|e| panic!("{e}"));
}

/// Derives [`Sample`] and the round-trip test. Outside tests and without the `sample` feature this
/// macro expands to nothing.
#[doc(hidden)]
#[macro_export]
macro_rules! xdr_sample {
    (struct $name:ident { $($f:ident : $t:ty),* $(,)? }) => {
        impl $crate::sample::Sample for $name {
            fn sample(s: &mut $crate::sample::Source<'_>) -> Self {
                let _ = &s;
                Self { $($f: <$t as $crate::sample::Sample>::sample(s)),* }
            }
        }
        $crate::xdr_round_trip!($name);
    };
    (calls $name:ident { $($v:ident),* }) => {
        impl $crate::sample::Sample for $name {
            fn sample(s: &mut $crate::sample::Source<'_>) -> Self {
                let makers: &[fn(&mut $crate::sample::Source<'_>) -> Self] =
                    &[$(|s| Self::$v($crate::sample::Sample::sample(s))),*];
                makers[s.below(makers.len())](s)
            }
        }
    };
    (enum $name:ident) => {
        impl $crate::sample::Sample for $name {
            fn sample(s: &mut $crate::sample::Source<'_>) -> Self {
                match s.below(Self::VALUES.len() + usize::from(!s.is_plain())) {
                    n if n < Self::VALUES.len() => Self::VALUES[n],
                    _ => Self(s.int() as u32),
                }
            }
        }
    };
    (union $name:ident { $($v:ident [$($t:ty)?] $n:expr),* } else { $($other:ident)? }) => {
        impl $crate::sample::Sample for $name {
            fn sample(s: &mut $crate::sample::Source<'_>) -> Self {
                const KNOWN: &[u32] = &[$($n),*];
                let arms = KNOWN.len() $(+ { let _ = stringify!($other); usize::from(!s.is_plain()) })?;
                let arm = s.below(arms);
                $(if Some(&($n)) == KNOWN.get(arm) {
                    return Self::$v $((<$t as $crate::sample::Sample>::sample(s)))?;
                })*
                $(
                    let mut tag = s.int() as u32;
                    while KNOWN.contains(&tag) { tag = tag.wrapping_add(1); }
                    return Self::$other(tag);
                )?
                #[allow(unreachable_code)]
                { unreachable!("every arm has a number") }
            }
        }
        $crate::xdr_round_trip!($name);
    };
}

/// The round-trip test of one type. It has the type's name.
#[cfg(test)]
#[doc(hidden)]
#[macro_export]
macro_rules! xdr_round_trip {
    ($name:ident) => {
        #[test]
        #[allow(non_snake_case)]
        fn $name() {
            $crate::sample::round_trip::<$name>();
        }
    };
}

/// Expands to nothing. The tests exist only in this crate's own test build.
#[cfg(not(test))]
#[doc(hidden)]
#[macro_export]
macro_rules! xdr_round_trip {
    ($name:ident) => {};
}
