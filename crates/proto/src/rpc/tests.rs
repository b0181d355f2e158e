//! Tests of RPC headers against the bytes of RFC 5531.

use super::*;

fn words(w: &[u32]) -> Bytes {
    w.iter().flat_map(|v| v.to_be_bytes()).collect()
}

/// A call has the bytes of RFC 5531, and its decoded body is a slice of the message.
#[test]
fn rpc_call_matches_rfc_bytes() {
    let sys =
        AuthSys { stamp: 7, machinename: Opaque::copy(b"ab"), uid: 1000, gid: 100, gids: vec![4, 24].into() };
    let mut body = Enc::new();
    body.u32(0xdead_beef);
    let wire = call(0x1122_3344, 100_003, 3, 1, &OpaqueAuth::sys(&sys), body).to_bytes();
    let expected = words(&[
        0x1122_3344,
        0,
        2,
        100_003,
        3,
        1, // xid, CALL, rpcvers, prog, vers, proc
        1,
        32,
        7,
        2,
        0x6162_0000,
        1000,
        100,
        2,
        4,
        24, // AUTH_SYS
        0,
        0, // AUTH_NONE
        0xdead_beef,
    ]);
    assert_eq!(wire, expected);
    let Message::Call(h, args) = decode_message(&wire).unwrap() else { panic!("not a call") };
    assert_eq!((h.xid, h.prog, h.vers, h.proc), (0x1122_3344, 100_003, 3, 1));
    assert_eq!(h.cred.as_sys().unwrap(), Some(sys));
    assert_eq!(h.verf.as_sys().unwrap(), None);
    assert_eq!(args, words(&[0xdead_beef]));
    assert_eq!(args.as_ptr(), wire[wire.len() - 4..].as_ptr(), "the body is a slice, not a copy");
    assert_eq!(h.begin().to_bytes(), wire.slice(..wire.len() - 4));
}

/// Reply headers have the bytes of RFC 5531.
#[test]
fn rpc_replies_match_rfc_bytes() {
    let range = VersionRange { low: 2, high: 4 };
    let cases = [
        (ReplyHeader::success(9), vec![9, 1, 0, 0, 0, 0]),
        (ReplyHeader::accepted(9, AcceptStat::ProgUnavail), vec![9, 1, 0, 0, 0, 1]),
        (ReplyHeader::accepted(9, AcceptStat::ProgMismatch(range)), vec![9, 1, 0, 0, 0, 2, 2, 4]),
        (ReplyHeader::accepted(9, AcceptStat::ProcUnavail), vec![9, 1, 0, 0, 0, 3]),
        (ReplyHeader::accepted(9, AcceptStat::GarbageArgs), vec![9, 1, 0, 0, 0, 4]),
        (ReplyHeader::accepted(9, AcceptStat::SystemErr), vec![9, 1, 0, 0, 0, 5]),
        (ReplyHeader::accepted(9, AcceptStat::Other(77)), vec![9, 1, 0, 0, 0, 77]),
        (ReplyHeader::denied(9, DeniedReply::RpcMismatch(range)), vec![9, 1, 1, 0, 2, 4]),
        (ReplyHeader::denied(9, DeniedReply::AuthError(AuthStat::TOOWEAK)), vec![9, 1, 1, 1, 5]),
        (ReplyHeader::denied(9, DeniedReply::AuthError(AuthStat(99))), vec![9, 1, 1, 1, 99]),
    ];
    for (header, expected) in cases {
        let wire = Enc::of(&header).to_bytes();
        assert_eq!(wire, words(&expected), "{header:?}");
        assert_eq!(header.is_success(), expected == [9, 1, 0, 0, 0, 0]);
        assert_eq!(decode_message(&wire), Ok(Message::Reply(header, Bytes::new())));
    }
}

/// A call in another RPC version is decoded with its xid, so that the server can answer it.
#[test]
fn unknown_rpc_version_keeps_xid() {
    assert_eq!(decode_message(&words(&[5, 0, 3])), Ok(Message::UnknownVersion { xid: 5, version: 3 }));
}

/// A message with a wrong type, a short message and an overlong credential are refused.
#[test]
fn non_rpc_messages_are_refused() {
    assert_eq!(decode_message(&words(&[5, 2, 2])), Err(XdrError::Invalid(2)));
    assert_eq!(decode_message(&words(&[5])), Err(XdrError::Short));
    let long = words(&[5, 0, 2, 1, 1, 1, 1, 404]);
    assert_eq!(decode_message(&long), Err(XdrError::TooLong { len: 404, max: 400 }));
}

/// A malformed AUTH_SYS body is an error and does not count as another flavor.
#[test]
fn malformed_auth_sys_is_refused() {
    let bad = OpaqueAuth { flavor: AuthFlavor::SYS, body: Opaque(words(&[1, 0, 1, 1, 17])) };
    assert_eq!(bad.as_sys(), Err(XdrError::TooLong { len: 17, max: 16 }));
}

#[test]
fn the_largest_auth_sys_fits() {
    let sys = AuthSys {
        stamp: u32::MAX,
        machinename: Opaque::copy(&[b'x'; 255]),
        uid: u32::MAX,
        gid: u32::MAX,
        gids: vec![u32::MAX; 16].into(),
    };
    let cred = OpaqueAuth::sys(&sys);
    assert!(cred.body.len() <= AUTH_MAX_BYTES);
    assert_eq!(Dec::all::<OpaqueAuth>(&Enc::of(&cred).to_bytes()).unwrap().as_sys(), Ok(Some(sys)));
}

#[test]
fn a_large_payload_stays_by_reference() {
    let payload = Bytes::from(vec![1u8; 1 << 20]);
    let mut body = Enc::new();
    body.opaque(&payload);
    let segments = reply(1, body).finish();
    assert!(segments.iter().any(|s| s.as_ptr() == payload.as_ptr()));
}
