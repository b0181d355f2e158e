//! What NFSv3 messages promise: the bytes of RFC 1813, and that failures keep what they carry.

use super::*;
use crate::rpc::Procedure;
use crate::sample::{Sample, Source, check};
use bytes::Bytes;

/// Big-endian words, with byte strings in between.
fn wire(parts: &[&[u8]]) -> Bytes {
    parts.concat().into()
}

fn words<const N: usize>(w: [u32; N]) -> Vec<u8> {
    w.iter().flat_map(|v| v.to_be_bytes()).collect()
}

fn both_ways<T: Xdr + PartialEq + std::fmt::Debug>(value: &T, expected: &Bytes) {
    assert_eq!(Enc::of(value).to_bytes(), expected, "{value:?}");
    assert_eq!(&Dec::all::<T>(expected).unwrap(), value);
}

#[test]
fn every_call_and_reply_survives_the_wire() {
    check(&|bytes| {
        let mut s = Source::new(bytes);
        let call = Call3::sample(&mut s);
        let mut e = Enc::new();
        call.encode(&mut e);
        match Call3::decode(call.procedure(), &e.to_bytes()) {
            Ok(Some(back)) if back == call => {}
            other => return Err(format!("{call:?} came back as {other:?}")),
        }
        let reply = Reply3::sample(&mut s);
        let mut e = Enc::new();
        reply.encode(&mut e);
        match Reply3::decode(reply.procedure(), &e.to_bytes()) {
            Ok(Some(back)) if back == reply => Ok(()),
            other => Err(format!("{reply:?} came back as {other:?}")),
        }
    });
}

#[test]
fn procedures_have_their_numbers_and_names() {
    assert_eq!((ReadArgs::PROG, ReadArgs::VERS, ReadArgs::PROC, ReadArgs::NAME), (100_003, 3, 6, "READ"));
    assert_eq!(Proc3::VALUES.len(), 22);
    assert_eq!(Proc3::VALUES.iter().map(|p| p.0).collect::<Vec<_>>(), (0..22).collect::<Vec<_>>());
    assert_eq!(Call3::decode(Proc3(22), &Bytes::new()), Ok(None));
}
