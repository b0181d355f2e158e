//! Tests of NFSv4 messages: the bytes of the RFCs, unknown values, misbehaving peers, and bounded
//! memory.

use super::*;
use crate::sample::{Sample, Source, check, round_trip};
use crate::xdr::{Dec, Enc, Xdr, XdrError};
use bytes::Bytes;

mod captured;
mod golden;
mod replies;

/// Appends wire data: numbers, strings with their length (`&str`) and raw bytes (arrays).
trait Put {
    fn put(&self, out: &mut Vec<u8>);
}
impl Put for u32 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.to_be_bytes());
    }
}
impl Put for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.to_be_bytes());
    }
}
impl Put for &str {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend(self.as_bytes());
        out.resize(out.len().next_multiple_of(4), 0);
    }
}
impl<const N: usize> Put for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self);
    }
}

/// Builds wire data from its items.
macro_rules! wire {
    ($($item:expr),* $(,)?) => {{
        let mut out: Vec<u8> = Vec::new();
        $(Put::put(&$item, &mut out);)*
        Bytes::from(out)
    }};
}
use wire;

fn both_ways<T: Xdr + PartialEq + std::fmt::Debug>(value: &T, expected: &Bytes) {
    assert_eq!(Enc::of(value).to_bytes(), expected, "{value:?}");
    assert_eq!(&Dec::all::<T>(expected).unwrap(), value);
}

#[test]
fn compounds_survive_the_wire() {
    round_trip::<Compound>();
    round_trip::<CompoundReply>();
    round_trip::<CbCompound>();
    round_trip::<CbCompoundReply>();
    round_trip::<Attrs>();
    round_trip::<Bitmap4>();
}

/// Each attribute equals its decoded encoding. `retain` drops it.
#[test]
fn each_attribute_survives_encoding() {
    for n in 0..attr::COUNT {
        assert!(attr::name(n).is_some(), "attribute {n} is missing in the table");
        check(&|bytes| {
            let mut attrs = Attrs::default();
            attrs.sample_attr(n, &mut Source::new(bytes));
            let wire = Enc::of(&attrs).to_bytes();
            let back = Dec::all::<Attrs>(&wire).map_err(|e| e.to_string())?;
            if attrs.mask() != Bitmap4::of(&[n]) || back != attrs {
                return Err(format!("attribute {n}: {attrs:?} came back as {back:?}"));
            }
            let mut none = attrs;
            none.retain(Bitmap4::EMPTY);
            (none == Attrs::default()).then_some(()).ok_or_else(|| format!("attribute {n} was not dropped"))
        });
    }
    assert_eq!(attr::name(attr::COUNT), None);
}

/// A set of all attributes equals its decoded encoding.
#[test]
fn attribute_sets_survive_encoding() {
    check(&|bytes| {
        let mut s = Source::new(bytes);
        let mut attrs = Attrs::default();
        (0..attr::COUNT).for_each(|n| attrs.sample_attr(n, &mut s));
        match Dec::all::<Attrs>(&Enc::of(&attrs).to_bytes()) {
            Ok(back) if back == attrs && back.mask().len() == attr::COUNT as usize => Ok(()),
            other => Err(format!("{attrs:?} came back as {other:?}")),
        }
    });
}

#[test]
fn unknown_attributes_survive() {
    // Attribute 90 (word 2, bit 26) follows the size. Its 8-byte value is unknown to the decoder.
    let bytes = wire![3u32, 0x10u32, 0u32, 1u32 << 26, 16u32, 7u64, 0xdead_beef_0000_0001u64];
    let attrs: Attrs = Dec::all(&bytes).unwrap();
    assert_eq!(attrs.size, Some(7));
    assert_eq!(attrs.mask(), Bitmap4::of(&[attr::SIZE, 90]));
    assert_eq!(attrs.unknown.as_ref().unwrap().vals.len(), 8);
    both_ways(&attrs, &bytes);
}

/// The values must fill an attribute list exactly: longer and shorter lists are refused.
#[test]
fn attribute_values_fill_list_exactly() {
    let long = wire![1u32, 0x10u32, 12u32, 7u64, 0u32];
    assert_eq!(Dec::all::<Attrs>(&long), Err(XdrError::Trailing(4)));
    let short = wire![1u32, 0x10u32, 4u32, 7u32];
    assert_eq!(Dec::all::<Attrs>(&short), Err(XdrError::Short));
    // A value must not extend beyond the list.
    let beyond = wire![1u32, 0x10u32, 4u32, 7u32, 8u32];
    assert_eq!(Attrs::dec(&mut Dec::new(&beyond)), Err(XdrError::Short));
}

/// Zero words at the end of a bitmap are ignored when received and never sent. A bitmap of more
/// than 256 words is refused.
#[test]
fn bitmaps_ignore_trailing_zero_words() {
    let padded = wire![4u32, 1u32, 0u32, 0u32, 0u32];
    assert_eq!(Dec::all::<Bitmap4>(&padded), Ok(Bitmap4::of(&[0])));
    assert_eq!(Enc::of(&Bitmap4::of(&[0])).to_bytes(), wire![1u32, 1u32]);
    assert_eq!(Enc::of(&Bitmap4::EMPTY).to_bytes(), wire![0u32]);
    let long = Err(XdrError::TooLong { len: 257, max: 256 });
    assert_eq!(Dec::all::<Bitmap4>(&wire![257u32, [0u8; 4 * 257]]), long);
}

/// RFC 8881 does not limit bitmaps. Numbers above the bitmap's range count as unknown attributes,
/// and their values are kept.
/// Promise: S13
#[test]
fn numbers_beyond_a_bitmap_are_unknown() {
    let far = wire![9u32, 0x10u32, [0u8; 28], 5u32];
    assert_eq!(Dec::all::<Bitmap4>(&far), Ok(Bitmap4::of(&[attr::SIZE, Bitmap4::BEYOND])));
    let values = wire![9u32, 0x10u32, [0u8; 28], 5u32, 12u32, 7u64, 9u32];
    let attrs: Attrs = Dec::all(&values).unwrap();
    assert_eq!(attrs.size, Some(7));
    assert_eq!(attrs.unknown.as_ref().unwrap().vals.len(), 4);
}

/// RFC 8881 does not limit tags. A tag up to [`TAG_MAX_BYTES`] is received, a longer one is
/// refused.
/// Promise: S13
#[test]
fn long_tags_are_received() {
    let tag = |len: usize| Compound { tag: Tag::copy(&vec![b't'; len]), ..Compound::new(2, vec![]) };
    let decoded = |len: usize| Dec::all::<Compound>(&Enc::of(&tag(len)).to_bytes());
    assert_eq!(decoded(TAG_MAX_BYTES), Ok(tag(TAG_MAX_BYTES)));
    let max = TAG_MAX_BYTES as u64;
    let long = wire![TAG_MAX_BYTES as u32 + 1, [b't'; TAG_MAX_BYTES + 4], 2u32, 0u32];
    assert_eq!(Dec::all::<Compound>(&long), Err(XdrError::TooLong { len: max + 1, max }));
}

#[test]
fn bitmaps_are_sets() {
    let a: Bitmap4 = [1, 33, 255].into_iter().collect();
    let b = Bitmap4::of(&[33, 64]);
    assert_eq!(a.iter().collect::<Vec<_>>(), [1, 33, 255]);
    assert_eq!((a.len(), a.has(33), a.has(34), a.has(256)), (3, true, false, false));
    assert_eq!(a.union(b), Bitmap4::of(&[1, 33, 64, 255]));
    assert_eq!(a.intersection(b), Bitmap4::of(&[33]));
    assert_eq!(a.difference(b), Bitmap4::of(&[1, 255]));
    assert!(a.intersection(b).is_subset(a) && !a.is_subset(b));
    assert_eq!(a.without(1).with(2), Bitmap4::of(&[2, 33, 255]));
}

/// An unknown operation number is the last decoded operation of a compound.
#[test]
fn an_unknown_operation_ends_the_compound() {
    let bytes = wire!["t", 2u32, 3u32, 24u32, 4711u32, 1u32, 2u32, 3u32];
    let compound: Compound = Dec::all(&bytes).unwrap();
    assert_eq!(compound.ops, [Op::Putrootfh, Op::Illegal(4711)]);
    let bytes = wire!["", 1u32, 0u32, 2u32, 2u32, 0u32];
    let callback: CbCompound = Dec::all(&bytes).unwrap();
    assert_eq!(callback.ops, [CbOp::Illegal(2)]);
}

/// A reply with an unknown operation number is refused.
#[test]
fn unknown_operation_in_reply_is_refused() {
    let bytes = wire![0u32, "", 1u32, 76u32, 0u32];
    assert_eq!(Dec::all::<CompoundReply>(&bytes), Err(XdrError::Invalid(76)));
}

/// The decoder reads [`OPS_MAX`] operations of an overlong compound, enough for the server to
/// refuse it.
#[test]
fn operations_are_bounded() {
    let n = OPS_MAX as u32 + 100;
    let mut bytes = wire!["", 1u32, n].to_vec();
    (0..n).for_each(|_| 24u32.put(&mut bytes));
    assert_eq!(Dec::all::<Compound>(&bytes.into()).unwrap().ops.len(), OPS_MAX);
    let lies = wire!["", 1u32, u32::MAX, 24u32];
    assert!(Dec::all::<Compound>(&lies).is_err());
}

/// Operation numbers, status values and their names are those of the RFCs.
#[test]
fn nfs4_numbers_and_names_match_rfcs() {
    assert_eq!(NfsOpnum4::VALUES.len(), 74);
    let numbers: Vec<u32> = NfsOpnum4::VALUES.iter().map(|n| n.0).collect();
    assert_eq!(numbers[..73], (3..=75).collect::<Vec<_>>());
    assert_eq!(numbers[73], 10044);
    let named = |n| NfsOpnum4(n).name();
    assert_eq!(
        [18, 42, 53, 71, 75].map(named),
        [Some("OPEN"), Some("EXCHANGE_ID"), Some("SEQUENCE"), Some("CLONE"), Some("REMOVEXATTR")]
    );
    assert_eq!(NfsCbOpnum4::VALUES.len(), 14);
    assert_eq!(NfsCbOpnum4(4).name(), Some("CB_RECALL"));
    assert_eq!(Nfsstat4::NOENT.to_string(), "NFS4ERR_NOENT");
    let unused: Vec<u32> = (10001..=10097).filter(|&n| Nfsstat4(n).name().is_none()).collect();
    assert_eq!(unused, [10002, 10073, 10097]);
    assert_eq!(Nfsstat4(4711).to_string(), "nfsstat4 4711");
    assert_eq!((Nfsstat4::OK.to_string(), Nfsstat4::VALUES.len()), ("NFS4_OK".into(), 19 + 94));
    assert_eq!(
        [attr::name(1), attr::name(36), attr::name(82)],
        [Some("type"), Some("owner"), Some("xattr_support")]
    );
    assert_eq!(attr::COUNT, 87);
}

#[test]
fn payloads_are_not_copied() {
    let data = Bytes::from(vec![7; 1 << 20]);
    let write = Op::write(Stateid::CURRENT, 4096, StableHow::UNSTABLE, data.clone());
    let segments = Enc::of(&Compound::new(1, vec![write])).finish();
    assert!(segments.iter().any(|s| s.as_ptr() == data.as_ptr()));

    let reply = CompoundReply {
        status: Nfsstat4::OK,
        tag: Tag::default(),
        results: vec![OpRes::Read(Ok(ReadOk { eof: true, data: data.into() }))].into(),
    };
    let wire = Enc::of(&reply).to_bytes();
    let read = Dec::all::<CompoundReply>(&wire).unwrap().results().read().unwrap();
    assert!(wire.as_ptr_range().contains(&read.data.as_ptr()));
}

/// A decoded message needs at most its length times a small factor in memory. Only lists grow with
/// a peer's counts, and each element has a minimum length on the wire.
#[test]
fn memory_is_bounded_by_the_message() {
    fn factor<T>(wire_bytes: usize) -> usize {
        size_of::<T>().div_ceil(wire_bytes)
    }
    assert!(size_of::<Op>() * OPS_MAX <= 1 << 20, "an Op takes {} bytes", size_of::<Op>());
    assert!(size_of::<OpRes>() * OPS_MAX <= 1 << 20, "an OpRes takes {} bytes", size_of::<OpRes>());
    assert!(factor::<Entry>(24) <= 32, "an Entry takes {} bytes", size_of::<Entry>());
    // The worst case is a directory entry with one rare attribute.
    let worst = (size_of::<Entry>() + size_of::<RareAttrs>()).div_ceil(24 + 4 + 4);
    assert!(worst <= 64, "an entry with rare attributes takes {worst} times its bytes");
    assert!(factor::<Ace>(16) <= 4);
    assert!(factor::<ReadPlusContent>(4) <= 16);
    assert!(factor::<Netaddr>(8) <= 16);
    assert!(factor::<FsLocation>(8) <= 16);
    assert!(factor::<Notify>(8) <= 16);
    assert!(factor::<ReferringCallList>(20) <= 16);
}

mod garbage {
    use super::*;
    use proptest::prelude::*;

    /// A message that can be decoded is encoded again with the same content.
    fn stable<T: Xdr + PartialEq + std::fmt::Debug>(bytes: &Bytes) {
        if let Ok(value) = Dec::all::<T>(bytes) {
            let again = Enc::of(&value).to_bytes();
            assert_eq!(Dec::all::<T>(&again).as_ref(), Ok(&value));
        }
    }

    fn all_types(bytes: Vec<u8>) {
        let bytes = Bytes::from(bytes);
        stable::<Compound>(&bytes);
        stable::<CompoundReply>(&bytes);
        stable::<CbCompound>(&bytes);
        stable::<CbCompoundReply>(&bytes);
        stable::<Attrs>(&bytes);
    }

    /// A valid message with some changed bytes. Its decoding proceeds further than that of noise.
    fn damage<T: Xdr + Sample>(seed: &[u8], changes: &[(u16, u8)]) -> Vec<u8> {
        let mut bytes = Enc::of(&T::sample(&mut Source::new(seed))).to_bytes().to_vec();
        for &(at, value) in changes {
            let len = bytes.len().max(1);
            if let Some(b) = bytes.get_mut(usize::from(at) % len) {
                *b = value;
            }
        }
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn noise_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            all_types(bytes);
        }

        #[test]
        fn small_numbers_are_survived(words in prop::collection::vec(prop_oneof![0u32..80, any::<u32>()], 0..100)) {
            let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
            all_types(bytes.clone());
            // The words become operations of a compound without a tag.
            bytes.splice(0..0, [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 9]);
            all_types(bytes);
        }

        #[test]
        fn damaged_messages_are_survived(
            seed in prop::collection::vec(any::<u8>(), 0..600),
            changes in prop::collection::vec((any::<u16>(), prop_oneof![0u8..8, any::<u8>()]), 1..4),
        ) {
            all_types(damage::<Compound>(&seed, &changes));
            all_types(damage::<CompoundReply>(&seed, &changes));
            all_types(damage::<CbCompound>(&seed, &changes));
            all_types(damage::<CbCompoundReply>(&seed, &changes));
            all_types(damage::<Attrs>(&seed, &changes));
        }
    }
}
