//! Tests of the codec: round trips, bounds before allocation, payloads without copies.

use super::*;
use proptest::prelude::*;

fn round<T: Xdr + PartialEq + fmt::Debug>(v: T) {
    let b = Enc::of(&v).to_bytes();
    assert_eq!(b.len() % 4, 0);
    assert_eq!(Dec::all::<T>(&b).unwrap(), v);
}

proptest! {
    #[test]
    fn values_survive_the_wire(a: u32, b: u64, c: i32, d: i64, e: bool, bytes: Vec<u8>, list: Vec<u32>) {
        round(a);
        round(b);
        round(c);
        round(d);
        round(e);
        round(Opaque::<4096>::copy(&bytes));
        round(Some(List::<u32, 4096>(list.clone())));
        round(Chain::<u32, 4096>(list));
    }
}

#[test]
fn a_claimed_gigabyte_allocates_nothing() {
    let b = Bytes::from_static(&[0x40, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(Dec::new(&b).opaque(usize::MAX), Err(XdrError::Short));
    assert_eq!(List::<u32, { usize::MAX }>::dec(&mut Dec::new(&b)), Err(XdrError::Short));
    assert_eq!(Dec::new(&b).opaque(16), Err(XdrError::TooLong { len: 1 << 30, max: 16 }));
}

#[test]
fn payloads_are_not_copied_either_way() {
    let payload = Bytes::from(vec![7u8; 1 << 20]);
    let mut e = Enc::new();
    e.u32(1);
    e.opaque(&payload);
    e.u32(2);
    let segments = e.finish();
    assert_eq!(segments.len(), 3);
    assert_eq!(segments[1].as_ptr(), payload.as_ptr());
    let whole = Bytes::from(segments.concat());
    let mut d = Dec::new(&whole);
    assert_eq!(d.u32(), Ok(1));
    let got = d.opaque(1 << 20).unwrap();
    assert_eq!(got.as_ptr(), whole[8..].as_ptr());
    assert_eq!(got, payload);
    assert_eq!(d.u32(), Ok(2));
}

#[test]
fn odd_values_are_refused() {
    assert_eq!(Dec::new(&Bytes::from_static(&[0, 0, 0, 2])).bool(), Err(XdrError::Invalid(2)));
    assert_eq!(Dec::new(&Bytes::from_static(&[0, 0, 0, 1, 9, 0, 0])).opaque(9), Err(XdrError::Short));
    assert_eq!(Dec::all::<u32>(&Bytes::from_static(&[0; 8])), Err(XdrError::Trailing(4)));
    assert_eq!(
        Chain::<u32, 1>::dec(&mut Dec::new(&Bytes::from_static(&[
            0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 9
        ])))
        .unwrap_err(),
        XdrError::TooLong { len: 2, max: 1 }
    );
}

/// The decoder ignores padding, because some servers leave old bytes in it.
#[test]
fn padding_is_ignored() {
    let message = Bytes::from_static(&[0, 0, 0, 1, 9, 7, 7, 1, 5, 6, 7, 8, 0, 0, 0, 2]);
    let mut d = Dec::new(&message);
    assert_eq!(d.opaque(9), Ok(Bytes::from_static(&[9])));
    assert_eq!(d.fixed(), Ok([5, 6, 7, 8]));
    assert_eq!(d.u32(), Ok(2));
}

mod union {
    use crate::xdr::{Dec, Enc, XdrError};

    crate::xdr_enum! {
        /// Kinds.
        pub enum Kind { /// One.
            ONE = 1, /// Two.
            TWO = 2 }
    }
    crate::xdr_struct! {
        /// Two fields.
        pub struct Pair { /// First.
            pub a: Kind, /// Second.
            pub b: u64 }
    }
    crate::xdr_union! {
        /// A union with a default arm.
        pub enum Open else Other { /// A pair.
            Pair(Pair) = Kind::ONE.0, /// Nothing.
            Nothing = Kind::TWO.0 }
        /// A union without a default arm.
        pub enum Closed { /// A flag.
            Flag(bool) = 0, /// Boxed.
            Boxed(Box<Pair>) = 1 }
    }

    /// An unknown discriminant becomes the default arm, or an error if there is none.
    #[test]
    fn unknown_union_arms_survive_or_fail() {
        let wire = Enc::of(&7u32).to_bytes();
        assert_eq!(Dec::all::<Open>(&wire), Ok(Open::Other(7)));
        assert_eq!(Dec::all::<Closed>(&wire), Err(XdrError::Invalid(7)));
    }
}
