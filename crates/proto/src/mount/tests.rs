//! Tests of MOUNT messages against the bytes of RFC 1813 appendix I.

use super::*;
use crate::rpc::Procedure;
use crate::sample::{Sample, Source, check};
use crate::xdr::{Dec, Enc, Xdr, XdrError};
use bytes::Bytes;

fn words(w: &[u32]) -> Vec<u8> {
    w.iter().flat_map(|v| v.to_be_bytes()).collect()
}

fn both_ways<T: Xdr + PartialEq + std::fmt::Debug>(value: &T, expected: &[u8]) {
    let expected = Bytes::copy_from_slice(expected);
    assert_eq!(Enc::of(value).to_bytes(), expected);
    assert_eq!(&Dec::all::<T>(&expected).unwrap(), value);
}

/// Every MOUNT call and reply equals its decoded encoding.
#[test]
fn mount_messages_survive_encoding() {
    check(&|bytes| {
        let mut s = Source::new(bytes);
        let (call, reply) = (MountCall::sample(&mut s), MountReply::sample(&mut s));
        let (mut c, mut r) = (Enc::new(), Enc::new());
        call.encode(&mut c);
        reply.encode(&mut r);
        let back = (
            MountCall::decode(call.procedure(), &c.to_bytes()),
            MountReply::decode(reply.procedure(), &r.to_bytes()),
        );
        match back {
            (Ok(Some(c)), Ok(Some(r))) if c == call && r == reply => Ok(()),
            other => Err(format!("{call:?} and {reply:?} came back as {other:?}")),
        }
    });
}

/// MNT's arguments and results have the bytes of RFC 1813 appendix I.
#[test]
fn mnt_matches_rfc_bytes() {
    both_ways(&MntArgs { dirpath: Opaque::copy(b"/srv/x") }, b"\0\0\0\x06/srv/x\0\0");
    assert_eq!((MntArgs::PROG, MntArgs::VERS, MntArgs::PROC), (100_005, 3, 1));
    let ok = MntOk {
        fhandle: Opaque::copy(&[1, 2, 3, 4, 5]),
        auth_flavors: vec![AuthFlavor::SYS, AuthFlavor::KRB5].into(),
    };
    both_ways(&MntRes::Granted(ok), &words(&[0, 5, 0x0102_0304, 0x0500_0000, 2, 1, 390_003]));
    both_ways(&MntRes::Refused(13), &words(&[13]));
    assert_eq!(MntRes::Refused(13).into_result(), Err(Mountstat3::ACCES));
}

/// The lists of EXPORT and DUMP have the bytes of RFC 1813 appendix I.
#[test]
fn export_and_dump_match_rfc_bytes() {
    let exports: Chain<Exportnode, LIST_MAX> = Chain(vec![
        Exportnode {
            dir: Opaque::copy(b"/abc"),
            groups: Chain(vec![Opaque::copy(b"10.0"), Opaque::copy(b"h")]),
        },
        Exportnode { dir: Opaque::copy(b"/d"), groups: Chain::default() },
    ]);
    let expected = [
        words(&[1, 4]),
        b"/abc".to_vec(),
        words(&[1, 4]),
        b"10.0".to_vec(),
        words(&[1, 1, 0x6800_0000, 0, 1, 2, 0x2f64_0000, 0, 0]),
    ];
    both_ways(&exports, &expected.concat());
    let mounts: Chain<Mountbody, LIST_MAX> =
        Chain(vec![Mountbody { hostname: Opaque::copy(b"h"), directory: Opaque::copy(b"/d") }]);
    both_ways(&mounts, &words(&[1, 1, 0x6800_0000, 2, 0x2f64_0000, 0]));
}

/// A handle longer than 64 bytes and a path longer than 1024 bytes are refused.
#[test]
fn mount_refuses_long_handles_and_paths() {
    let reply = Bytes::from([words(&[0, 65]), vec![0; 72]].concat());
    assert_eq!(Dec::all::<MntRes>(&reply), Err(XdrError::TooLong { len: 65, max: 64 }));
    let call = Bytes::from([words(&[1025]), vec![0; 1028]].concat());
    assert_eq!(Dec::all::<MntArgs>(&call), Err(XdrError::TooLong { len: 1025, max: 1024 }));
}

#[test]
fn procedures_have_their_numbers() {
    assert_eq!(MountProc::VALUES.iter().map(|p| p.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    let numbers = [MntArgs::PROC, DumpArgs::PROC, UmntArgs::PROC, UmntallArgs::PROC, ExportArgs::PROC];
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
}
