//! Tests of portmap and rpcbind messages (RFC 1833) and universal addresses (RFC 5665).

use super::*;
use crate::rpc::Procedure;
use crate::sample::{Sample, Source, check};
use crate::xdr::{Dec, Enc, Xdr};
use bytes::Bytes;
use proptest::prelude::*;

fn words(w: &[u32]) -> Bytes {
    w.iter().flat_map(|v| v.to_be_bytes()).collect()
}

fn both_ways<T: Xdr + PartialEq + std::fmt::Debug>(value: &T, expected: &[u8]) {
    let expected = Bytes::copy_from_slice(expected);
    assert_eq!(Enc::of(value).to_bytes(), expected);
    assert_eq!(&Dec::all::<T>(&expected).unwrap(), value);
}

/// Every portmap and rpcbind call and reply equals its decoded encoding.
#[test]
fn portmap_messages_survive_encoding() {
    macro_rules! round {
        ($any:ident, $s:expr) => {{
            let value = $any::sample($s);
            let mut e = Enc::new();
            value.encode(&mut e);
            match $any::decode(value.procedure(), &e.to_bytes()) {
                Ok(Some(back)) if back == value => {}
                other => return Err(format!("{value:?} came back as {other:?}")),
            }
        }};
    }
    check(&|bytes| {
        let mut s = Source::new(bytes);
        round!(PortmapCall, &mut s);
        round!(PortmapReply, &mut s);
        round!(RpcbindCall, &mut s);
        round!(RpcbindReply, &mut s);
        Ok(())
    });
}

/// GETPORT's arguments and the list of DUMP have the bytes of RFC 1833.
#[test]
fn getport_matches_rfc_bytes() {
    let mapping = Mapping { prog: 100_003, vers: 3, prot: IPPROTO_TCP, port: 0 };
    both_ways(&PortmapGetport { mapping }, &words(&[100_003, 3, 6, 0]));
    assert_eq!((PortmapGetport::PROG, PortmapGetport::VERS, PortmapGetport::PROC), (100_000, 2, 3));
    let list: Chain<Mapping, REGISTRATIONS_MAX> = Chain(vec![mapping, Mapping { port: 2049, ..mapping }]);
    both_ways(&list, &words(&[1, 100_003, 3, 6, 0, 1, 100_003, 3, 6, 2049, 0]));
}

/// GETADDR's arguments have the bytes of RFC 1833.
#[test]
fn getaddr_matches_rfc_bytes() {
    let query = RpcbindGetaddr { rpcb: Rpcb::query(100_005, 3, "tcp6") };
    both_ways(&query, &[&words(&[100_005, 3, 4])[..], b"tcp6", &[0; 8]].concat());
    assert_eq!((RpcbindGetaddr::PROG, RpcbindGetaddr::VERS, RpcbindGetaddr::PROC), (100_000, 4, 3));
}

#[test]
fn universal_addresses_of_the_rfc() {
    for (text, addr) in [
        ("192.0.2.1.8.1", "192.0.2.1:2049"),
        ("0.0.0.0.0.111", "0.0.0.0:111"),
        ("2001:db8::1.8.1", "[2001:db8::1]:2049"),
        ("::.0.111", "[::]:111"),
        ("::ffff:192.0.2.1.255.255", "[::ffff:192.0.2.1]:65535"),
    ] {
        let addr: SocketAddr = addr.parse().unwrap();
        assert_eq!(parse_universal(text.as_bytes()), Some(addr));
        assert_eq!(format_universal(&addr), text);
    }
}

/// `parse_universal` refuses texts that are not universal addresses.
#[test]
fn invalid_universal_addresses_are_refused() {
    let long = "1.".repeat(100);
    for text in [
        "",
        ".",
        "1.1",
        "192.0.2.1",
        "192.0.2.1.8",
        "192.0.2.1.8.256",
        "192.0.2.1.8.+1",
        "192.0.2.1.08.1",
        "192.0.2.1.8.1.1",
        "192.0.2.1.8.",
        "/run/rpcbind.sock",
        "host.8.1",
        "fe80::1%eth0.8.1",
        &long,
    ] {
        assert_eq!(parse_universal(text.as_bytes()), None, "{text}");
    }
    assert_eq!(parse_universal(b"192.0.2.1.8.\xff"), None);
}

proptest! {
    #[test]
    fn universal_addresses_come_back(v4: [u8; 4], v6: [u8; 16], port: u16) {
        for ip in [IpAddr::from(v4), IpAddr::from(v6)] {
            let addr = SocketAddr::new(ip, port);
            prop_assert_eq!(parse_universal(format_universal(&addr).as_bytes()), Some(addr));
        }
    }

    #[test]
    fn no_text_panics(text: Vec<u8>) {
        let _ = parse_universal(&text);
    }
}

#[test]
fn procedures_have_their_numbers() {
    assert_eq!(PortmapProc::VALUES.iter().map(|p| p.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(RpcbindProc::VALUES.iter().map(|p| p.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 6, 9]);
}
