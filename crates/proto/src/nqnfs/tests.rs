//! Tests of NQNFS messages against the bytes of the paper's appendix.

use super::*;
use crate::rpc::Procedure;
use crate::sample::{Sample, Source, check};
use crate::xdr::{Chain, XdrError};
use bytes::Bytes;
use std::sync::LazyLock;

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

const FH_WIRE: [u8; FH_BYTES] = [0xaa; FH_BYTES];
static FH: LazyLock<Fh> = LazyLock::new(|| Fh::from_bytes(&FH_WIRE).unwrap());

fn attributes() -> Fattr {
    Fattr {
        ftype: Ftype::REG,
        mode: 0o100_644,
        nlink: 1,
        uid: 1000,
        gid: 100,
        size: 0x1_0000_0002,
        blocksize: 8192,
        rdev: 0,
        bytes: 0x1_0000_1000,
        fsid: 7,
        fid: 77,
        atime: Time { seconds: 1, nano_seconds: 2 },
        mtime: Time { seconds: 3, nano_seconds: 4 },
        ctime: Time { seconds: 5, nano_seconds: 6 },
        flags: 8,
        gen_number: 9,
        rev: 0x2_0000_0003,
    }
}

/// The wire form of [`attributes`]: 92 bytes.
const ATTRIBUTES: [u32; 23] =
    [1, 0o100_644, 1, 1000, 100, 1, 2, 8192, 0, 1, 4096, 7, 77, 1, 2, 3, 4, 5, 6, 8, 9, 2, 3];

/// Every NQNFS call and reply equals its decoded encoding.
#[test]
fn nqnfs_messages_survive_encoding() {
    check(&|bytes| {
        let mut s = Source::new(bytes);
        let call = NqCall::sample(&mut s);
        let mut e = Enc::new();
        call.encode(&mut e);
        match NqCall::decode(call.procedure(), &e.to_bytes()) {
            Ok(Some(back)) if back == call => {}
            other => return Err(format!("{call:?} came back as {other:?}")),
        }
        let reply = NqReply::sample(&mut s);
        let mut e = Enc::new();
        reply.encode(&mut e);
        match NqReply::decode(reply.procedure(), &e.to_bytes()) {
            Ok(Some(back)) if back == reply => Ok(()),
            other => Err(format!("{reply:?} came back as {other:?}")),
        }
    });
}

#[test]
fn procedures_have_their_numbers() {
    const HELLO: u32 = u32::from_be_bytes(*b"hith");
    type Read = Asking<ReadArgs>;
    assert_eq!((Read::PROG, Read::VERS, Read::PROC, Read::NAME), (300_105, 1, 6, "READ"));
    assert_eq!(
        NqProc::VALUES.iter().map(|p| p.0).collect::<Vec<_>>(),
        (0..23).chain([HELLO]).collect::<Vec<_>>()
    );
    let new = [NqProc::READDIRLOOK, NqProc::GETLEASE, NqProc::VACATED, NqProc::EVICTED, NqProc::ACCESS];
    assert_eq!(new.map(|p| p.0), [18, 19, 20, 21, 22]);
    assert_eq!(NqCall::decode(NqProc(23), &Bytes::new()), Ok(None));
    assert_eq!([Stat::EXPIRED.0, Stat::TRYLATER.0, Stat::AUTHERR.0], [500, 501, 502]);
}

/// Attributes have the bytes of the paper's appendix.
#[test]
fn nqnfs_attributes_match_paper_bytes() {
    both_ways(&attributes(), &words(ATTRIBUTES).into());
    let set = Sattr { size: 1 << 32, mode: 0o600, ..Sattr::NOTHING };
    let no = DONT_SET;
    both_ways(&set, &words([0o600, no, no, 1, 0, no, no, no, no, no, no]).into());
}

/// Calls begin with their lease request and then have the bytes of the paper's appendix.
#[test]
fn nqnfs_calls_begin_with_lease_request() {
    let args = ReadArgs { file: *FH, offset: 1 << 33, count: 512 };
    let rest = wire(&[&FH_WIRE, &words([2, 0, 512])]);
    both_ways(&Asking::nothing(args), &wire(&[&words([0]), &rest]));
    both_ways(&Asking { lease: LeaseRequest::Read(30), args }, &wire(&[&words([1, 30]), &rest]));
    let write = WriteArgs { file: *FH, offset: 3, append: true, data: Opaque::copy(b"hello") };
    both_ways(
        &Asking { lease: LeaseRequest::Write(60), args: write },
        &wire(&[&words([2, 60]), &FH_WIRE, &words([0, 3, 1, 5]), b"hello\0\0\0"]),
    );
    let lookup = LookupArgs { duration: 30, dir: *FH, name: Opaque::copy(b"file") };
    both_ways(&Asking::nothing(lookup), &wire(&[&words([0, 30]), &FH_WIRE, &words([4]), b"file"]));
    let lease = GetleaseArgs { file: *FH, rw: Cachetype::WRITE, duration: 30 };
    both_ways(&Asking::nothing(lease), &wire(&[&words([0]), &FH_WIRE, &words([2, 30])]));
    let look = ReaddirlookArgs { file: *FH, cookie: 5, cnt: 4096, duration: 30 };
    both_ways(&Asking::nothing(look), &wire(&[&words([0]), &FH_WIRE, &words([5, 4096, 30])]));
    let access = AccessArgs { file: *FH, read: true, write: false, exec: true };
    both_ways(&Asking::nothing(access), &wire(&[&words([0]), &FH_WIRE, &words([1, 0, 1])]));
    both_ways(&Asking::nothing(VacatedArgs { file: *FH }), &wire(&[&words([0]), &FH_WIRE]));
    // EVICTED has no lease request.
    both_ways(&EvictedArgs { file: *FH }, &wire(&[&FH_WIRE]));
    both_ways(&NullArgs {}, &Bytes::new());
}

/// Successful replies have the lease answer after the status.
#[test]
fn nqnfs_replies_place_lease_after_status() {
    let a = words(ATTRIBUTES);
    let lease = Lease { cachable: true, duration: 30, rev: 1 << 32 };
    both_ways(&Res::Ok(LeaseReply::None, attributes()), &wire(&[&words([0, 0]), &a]));
    both_ways(&Res::Ok(LeaseReply::Write(lease), attributes()), &wire(&[&words([0, 2, 1, 30, 1, 0]), &a]));
    let read = ReadOk { attributes: attributes(), data: Opaque::copy(b"hello") };
    both_ways(
        &Res::Ok(LeaseReply::Read(lease), read),
        &wire(&[&words([0, 1, 1, 30, 1, 0]), &a, &words([5]), b"hello\0\0\0"]),
    );
    let found = LookupOk { lookup_lease: LeaseReply::Read(lease), file: *FH, attr: attributes() };
    both_ways(&Res::Ok(LeaseReply::None, found), &wire(&[&words([0, 0, 1, 1, 30, 1, 0]), &FH_WIRE, &a]));
    let got = GetleaseOk { cachable: false, duration: 30, rev: 5, attr: attributes() };
    both_ways(&Res::Ok(LeaseReply::None, got), &wire(&[&words([0, 0, 0, 30, 0, 5]), &a]));
    both_ways(&Res::<()>::Ok(LeaseReply::None, ()), &words([0, 0]).into());
    let full = StatfsOk { tsize: 8192, bsize: 512, blocks: 1, bfree: 2, bavail: 3, files: 4, files_free: 5 };
    both_ways(&Res::Ok(LeaseReply::None, full), &words([0, 0, 8192, 512, 1, 2, 3, 4, 5]).into());
}

/// READDIR and READDIRLOOK results have the bytes of the paper's appendix.
#[test]
fn nqnfs_directories_match_paper_bytes() {
    let entry = EntryLook {
        cachable: 1,
        duration: 30,
        rev: 6,
        entry_fh: *FH,
        entry_attrib: attributes(),
        fid: 77,
        name: Opaque::copy(b"f"),
        cookie: 78,
    };
    let list = ReaddirlookOk { entries: Chain(vec![entry.clone(), entry]), eof: true };
    let one =
        wire(&[&words([1, 1, 30, 0, 6]), &FH_WIRE, &words(ATTRIBUTES), &words([77, 1, 0x6600_0000, 78])]);
    both_ways(&Res::Ok(LeaseReply::None, list), &wire(&[&words([0, 0]), &one, &one, &words([0, 1])]));
    let plain = Entry { fileid: 77, name: Opaque::copy(b"f"), cookie: 78 };
    let list = ReaddirOk { entries: Chain(vec![plain]), eof: false };
    both_ways(&Res::Ok(LeaseReply::None, list), &words([0, 0, 1, 77, 1, 0x6600_0000, 78, 0, 0]).into());
}

/// A failure consists of its status only.
#[test]
fn nqnfs_failures_are_status_only() {
    both_ways(&Res::<Fattr>::Err(Stat::TRYLATER), &words([501]).into());
    both_ways(&Res::<ReadOk>::Err(Stat::EXPIRED), &words([500]).into());
    both_ways(&Res::<()>::Err(Stat(12345)), &words([12345]).into());
    assert_eq!(Res::<()>::Err(Stat::AUTHERR).into_result(), Err(Stat::AUTHERR));
    assert_eq!(
        Dec::all::<Res<Fattr>>(&words([501, 0]).into()),
        Err(XdrError::Trailing(4)),
        "a lease only when it succeeded"
    );
}

/// The decoder refuses values over their limits and lengths beyond the received bytes. A small
/// message therefore cannot make it allocate much memory.
#[test]
fn nqnfs_decoder_bounds_memory() {
    let name = wire(&[&words([0, 0]), &FH_WIRE, &words([256]), &[0; 256]]);
    assert_eq!(Dec::all::<Asking<LookupArgs>>(&name), Err(XdrError::TooLong { len: 256, max: 255 }));
    let claim = wire(&[&words([0]), &FH_WIRE, &words([0, 0, 0, 0x3fff_ffff]), b"hello\0\0\0"]);
    assert_eq!(Dec::all::<Asking<WriteArgs>>(&claim), Err(XdrError::Short));
    let endless = wire(&[&words([0, 0]), &words([1, 7, 0, 0]).repeat(ENTRIES_MAX + 1), &words([0, 0])]);
    let max = ENTRIES_MAX as u64;
    assert_eq!(Dec::all::<Res<ReaddirOk>>(&endless), Err(XdrError::TooLong { len: max + 1, max }));
}

#[test]
fn payloads_are_slices_of_the_message() {
    let read = ReadOk { attributes: attributes(), data: Opaque::copy(&vec![3; 1 << 20]) };
    let message = Enc::of(&Res::Ok(LeaseReply::None, read)).to_bytes();
    let Res::Ok(_, got) = Dec::all::<Res<ReadOk>>(&message).unwrap() else { panic!("not read") };
    assert_eq!(got.data.as_ptr(), message[104..].as_ptr());
}
