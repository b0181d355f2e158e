//! Tests of NFSv3 messages: the bytes of RFC 1813, and the data of failures.

use super::*;
use crate::rpc::Procedure;
use crate::sample::{Sample, Source, check};
use crate::xdr::Chain;
use bytes::Bytes;

/// Concatenates big-endian words and byte strings.
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

/// Every NFSv3 call and reply equals its decoded encoding.
#[test]
fn nfs3_messages_survive_encoding() {
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

fn attributes() -> Fattr3 {
    Fattr3 {
        ftype: Ftype3::REG,
        mode: 0o644,
        nlink: 1,
        uid: 1000,
        gid: 100,
        size: 0x1_0000_0002,
        used: 4096,
        rdev: Specdata3 { specdata1: 8, specdata2: 1 },
        fsid: 0xabcd,
        fileid: 77,
        atime: Nfstime3 { seconds: 1, nseconds: 2 },
        mtime: Nfstime3 { seconds: 3, nseconds: 4 },
        ctime: Nfstime3 { seconds: 5, nseconds: 6 },
    }
}

/// The wire form of [`attributes`]: 84 bytes (RFC 1813 section 2.6).
const ATTRIBUTES: [u32; 21] =
    [1, 0o644, 1, 1000, 100, 1, 2, 0, 4096, 8, 1, 0, 0xabcd, 0, 77, 1, 2, 3, 4, 5, 6];

fn wcc() -> WccData {
    let a = attributes();
    WccData { before: Some(WccAttr { size: 9, mtime: a.mtime, ctime: a.ctime }), after: Some(a) }
}

/// The wire form of [`wcc`]: a flag and 24 bytes before, a flag and 84 bytes after.
fn wcc_words() -> Vec<u8> {
    wire(&[&words([1, 0, 9, 3, 4, 5, 6, 1]), &words(ATTRIBUTES)]).to_vec()
}

fn fh() -> Fh3 {
    Opaque::copy(&[0xaa; 5])
}

/// The wire form of [`fh`]: a length, and the handle with its padding.
const FH: [u32; 3] = [5, 0xaaaa_aaaa, 0xaa00_0000];

/// Attributes and weak cache consistency data have the bytes of RFC 1813.
#[test]
fn nfs3_attributes_match_rfc_bytes() {
    both_ways(&attributes(), &words(ATTRIBUTES).into());
    both_ways(&wcc(), &wcc_words().into());
    both_ways(&WccData::default(), &words([0, 0]).into());
}

/// Settable attributes (`sattr3`) and the guard of SETATTR have the bytes of RFC 1813.
#[test]
fn nfs3_sattr_matches_rfc_bytes() {
    both_ways(&Sattr3::default(), &words([0; 6]).into());
    let all = Sattr3 {
        mode: Some(0o600),
        uid: Some(1),
        gid: Some(2),
        size: Some(1 << 32),
        atime: SetTime::ToServerTime,
        mtime: SetTime::ToClientTime(Nfstime3 { seconds: 7, nseconds: 8 }),
    };
    let expected = words([1, 0o600, 1, 1, 1, 2, 1, 1, 0, 1, 2, 7, 8]);
    both_ways(&all, &expected.clone().into());
    let guarded =
        SetattrArgs { object: fh(), new_attributes: all, guard: Some(Nfstime3 { seconds: 5, nseconds: 6 }) };
    both_ways(&guarded, &wire(&[&words(FH), &expected, &words([1, 5, 6])]));
}

/// The arguments of the procedures have the bytes of RFC 1813.
#[test]
fn nfs3_calls_match_rfc_bytes() {
    let what = Diropargs3 { dir: fh(), name: Opaque::copy(b"file") };
    let what_words = wire(&[&words(FH), &words([4]), b"file"]);
    both_ways(&LookupArgs { what: what.clone() }, &what_words);
    both_ways(
        &ReadArgs { file: fh(), offset: 1 << 33, count: 512 },
        &wire(&[&words(FH), &words([2, 0, 512])]),
    );
    let write = WriteArgs {
        file: fh(),
        offset: 3,
        count: 5,
        stable: StableHow::FILE_SYNC,
        data: Opaque::copy(b"hello"),
    };
    both_ways(&write, &wire(&[&words(FH), &words([0, 3, 5, 2, 5]), b"hello\0\0\0"]));
    for (how, expected) in [
        (Createhow3::Unchecked(Sattr3::default()), words([0; 7]).to_vec()),
        (Createhow3::Guarded(Sattr3::default()), words([1, 0, 0, 0, 0, 0, 0])),
        (Createhow3::Exclusive(*b"verifier"), wire(&[&words([2]), b"verifier"]).to_vec()),
    ] {
        both_ways(&CreateArgs { r#where: what.clone(), how }, &wire(&[&what_words, &expected]));
    }
    let spec = Specdata3 { specdata1: 4, specdata2: 64 };
    let device = Devicedata3 { dev_attributes: Sattr3::default(), spec };
    for (node, expected) in [
        (Mknoddata3::Chr(device), words([4, 0, 0, 0, 0, 0, 0, 4, 64])),
        (Mknoddata3::Blk(device), words([3, 0, 0, 0, 0, 0, 0, 4, 64])),
        (Mknoddata3::Sock(Sattr3::default()), words([6, 0, 0, 0, 0, 0, 0])),
        (Mknoddata3::Fifo(Sattr3::default()), words([7, 0, 0, 0, 0, 0, 0])),
        (Mknoddata3::Other(Ftype3::REG.0), words([1])),
    ] {
        both_ways(&MknodArgs { r#where: what.clone(), what: node }, &wire(&[&what_words, &expected]));
    }
    let link = SymlinkArgs {
        r#where: what.clone(),
        symlink_attributes: Sattr3::default(),
        symlink_data: Opaque::copy(b"/to"),
    };
    both_ways(&link, &wire(&[&what_words, &words([0, 0, 0, 0, 0, 0, 3]), b"/to\0"]));
    let plus =
        ReaddirplusArgs { dir: fh(), cookie: 6, cookieverf: *b"12345678", dircount: 512, maxcount: 4096 };
    both_ways(&plus, &wire(&[&words(FH), &words([0, 6]), b"12345678", &words([512, 4096])]));
}

/// The results of the procedures have the bytes of RFC 1813.
#[test]
fn nfs3_replies_match_rfc_bytes() {
    let a = attributes();
    let looked = LookupOk { object: fh(), obj_attributes: Some(a), dir_attributes: None };
    both_ways(
        &LookupRes::Ok(looked),
        &wire(&[&words([0]), &words(FH), &words([1]), &words(ATTRIBUTES), &words([0])]),
    );
    let read = ReadOk { file_attributes: None, count: 5, eof: true, data: Opaque::copy(b"hello") };
    both_ways(&ReadRes::Ok(read), &wire(&[&words([0, 0, 5, 1, 5]), b"hello\0\0\0"]));
    let written = WriteOk { file_wcc: wcc(), count: 5, committed: StableHow::UNSTABLE, verf: *b"bootboot" };
    both_ways(&WriteRes::Ok(written), &wire(&[&words([0]), &wcc_words(), &words([5, 0]), b"bootboot"]));
    let created = CreateOk { obj: Some(fh()), obj_attributes: None, dir_wcc: WccData::default() };
    both_ways(&CreateRes::Ok(created), &wire(&[&words([0, 1]), &words(FH), &words([0, 0, 0])]));
    both_ways(
        &CommitRes::Ok(CommitOk { file_wcc: WccData::default(), verf: *b"bootboot" }),
        &wire(&[&words([0, 0, 0]), b"bootboot"]),
    );
}

/// READDIR and READDIRPLUS results have the bytes of RFC 1813.
#[test]
fn nfs3_directories_match_rfc_bytes() {
    let entry = |id: u64, name: &[u8]| Entry3 { fileid: id, name: Opaque::copy(name), cookie: id + 1 };
    let list = ReaddirOk {
        dir_attributes: None,
        cookieverf: *b"cookieve",
        entries: Chain(vec![entry(2, b"."), entry(77, b"longer")]),
        eof: true,
    };
    let expected = wire(&[
        &words([0, 0]),
        b"cookieve",
        &words([1, 0, 2, 1, 0x2e00_0000, 0, 3]),
        &words([1, 0, 77, 6]),
        b"longer\0\0",
        &words([0, 78, 0, 1]),
    ]);
    both_ways(&ReaddirRes::Ok(list), &expected);
    let plus = ReaddirplusOk {
        dir_attributes: None,
        cookieverf: *b"cookieve",
        entries: Chain(vec![Entryplus3 {
            fileid: 77,
            name: Opaque::copy(b"f"),
            cookie: 78,
            name_attributes: Some(attributes()),
            name_handle: Some(fh()),
        }]),
        eof: false,
    };
    let expected = wire(&[
        &words([0, 0]),
        b"cookieve",
        &words([1, 0, 77, 1, 0x6600_0000, 0, 78, 1]),
        &words(ATTRIBUTES),
        &words([1]),
        &words(FH),
        &words([0, 0]),
    ]);
    both_ways(&ReaddirplusRes::Ok(plus), &expected);
}

/// A failure keeps the attributes that the RFC gives it.
#[test]
fn nfs3_failures_keep_attributes() {
    both_ways(&GetattrRes::Err(Nfsstat3::STALE, ()), &words([70]).into());
    both_ways(&SetattrRes::Err(Nfsstat3::NOT_SYNC, wcc()), &wire(&[&words([10002]), &wcc_words()]));
    both_ways(
        &LookupRes::Err(Nfsstat3::NOENT, Some(attributes())),
        &wire(&[&words([2, 1]), &words(ATTRIBUTES)]),
    );
    both_ways(
        &RenameRes::Err(Nfsstat3::XDEV, RenameWcc { fromdir_wcc: wcc(), todir_wcc: WccData::default() }),
        &wire(&[&words([18]), &wcc_words(), &words([0, 0])]),
    );
    both_ways(&RemoveRes::Err(Nfsstat3(12345), WccData::default()), &words([12345, 0, 0]).into());
    let lost: ReadRes = Res::Err(Nfsstat3::IO, None);
    assert_eq!((lost.status(), lost.into_result()), (Nfsstat3::IO, Err((Nfsstat3::IO, None))));
}

#[test]
fn payloads_are_slices_of_the_message() {
    let data = vec![3u8; 1 << 20];
    let reply =
        ReadRes::Ok(ReadOk { file_attributes: None, count: 1 << 20, eof: false, data: Opaque::copy(&data) });
    let message = Enc::of(&reply).to_bytes();
    let ReadRes::Ok(got) = Dec::all::<ReadRes>(&message).unwrap() else { panic!("not read") };
    assert_eq!(got.data.as_ptr(), message[20..].as_ptr());
}

/// The decoder refuses values over their limits and lengths beyond the received bytes. A small
/// message therefore cannot make it allocate much memory.
#[test]
fn nfs3_decoder_bounds_memory() {
    use crate::xdr::XdrError;
    let too_long = wire(&[&words([65]), &[0; 68]]);
    assert_eq!(Dec::all::<GetattrArgs>(&too_long), Err(XdrError::TooLong { len: 65, max: 64 }));
    let max = NAME_MAX_BYTES as u64;
    let name = wire(&[&words(FH), &words([max as u32 + 1]), &vec![0; NAME_MAX_BYTES + 4]]);
    assert_eq!(Dec::all::<LookupArgs>(&name), Err(XdrError::TooLong { len: max + 1, max }));
    let claim = wire(&[&words([0, 0, 5, 1, 0x3fff_ffff]), b"hello\0\0\0"]);
    assert_eq!(Dec::all::<ReadRes>(&claim), Err(XdrError::Short));
    let entry = words([1, 0, 0, 0, 0, 0]);
    let endless = wire(&[&words([0, 0, 0, 0]), &entry.repeat(ENTRIES_MAX + 1), &words([0, 0])]);
    let max = ENTRIES_MAX as u64;
    assert_eq!(Dec::all::<ReaddirRes>(&endless), Err(XdrError::TooLong { len: max + 1, max }));
}
