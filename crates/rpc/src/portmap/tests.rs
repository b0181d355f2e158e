//! Valid and invalid answers of portmap and rpcbind.

use super::*;
use crate::sim::{Conditions, Net};
use hither_proto::rpc;

const MOUNT: u32 = 100_005;

fn client(net: &Net) -> Client {
    let cfg = ClientConfig { fail_when_unreachable: true, ..ClientConfig::default() };
    Client::new(net.connector(), cfg, Arc::new(Stats::new()))
}

async fn ask_for(net: &Net, host: &str, prog: u32) -> Result<u16, PortmapError> {
    let deadline = Instant::now() + Duration::from_secs(5);
    getport_via(&client(net), host.parse().unwrap(), prog, 3, deadline).await
}

/// An rpcbind with MOUNT version 3 on port 20048 over IPv4 and IPv6. It answers portmap and rpcbind
/// calls.
fn rpcbind() -> Net {
    let net = Net::new(1, Conditions::default());
    net.answer(|_, call, args| async move {
        assert_eq!(call.prog, PROGRAM);
        Some(match call.vers {
            2 => {
                let m: Mapping = Dec::all(&args).unwrap();
                assert_eq!((call.proc, m.prot, m.vers), (3, 6, 3));
                let port = if m.prog == MOUNT { 20048u32 } else { 0 };
                rpc::reply(call.xid, Enc::of(&port))
            }
            _ => {
                let q: Rpcb = Dec::all(&args).unwrap();
                assert_eq!((call.proc, &q.netid[..], q.vers), (3, &b"tcp6"[..], 3));
                let addr = match q.prog {
                    MOUNT => "::.78.80",
                    7 => "nonsense",
                    _ => "",
                };
                rpc::reply(call.xid, Enc::of(&Text::copy(addr.as_bytes())))
            }
        })
    });
    net
}

#[tokio::test(start_paused = true)]
async fn registered_and_not() {
    let net = rpcbind();
    for host in ["192.0.2.1", "2001:db8::1"] {
        assert_eq!(ask_for(&net, host, MOUNT).await.unwrap(), 20048);
        let error = ask_for(&net, host, 100_003).await.unwrap_err();
        let text = "program 100003 version 3 over TCP is not registered with rpcbind on ";
        assert_eq!(error.to_string(), format!("{text}{host}"));
    }
    let error = ask_for(&net, "2001:db8::1", 7).await.unwrap_err();
    assert!(matches!(error, PortmapError::Refused { .. }));
}

#[tokio::test(start_paused = true)]
async fn unreachable() {
    let net = rpcbind();
    net.refuse(true);
    let error = ask_for(&net, "192.0.2.1", MOUNT).await.unwrap_err();
    assert_eq!(error.to_string(), "rpcbind on 192.0.2.1 (port 111) cannot be reached: connection refused");
    net.refuse(false);
    net.cut(crate::sim::Cut::BlackHole);
    let started = Instant::now();
    let error = ask_for(&net, "192.0.2.1", MOUNT).await.unwrap_err();
    assert!(matches!(error, PortmapError::Unreachable { .. }));
    assert_eq!(started.elapsed(), Duration::from_secs(5));
}

/// A query over a real socket, to an address without rpcbind. 127.255.255.254 is a loopback
/// address. Nothing listens on its port 111, unless an rpcbind listens on every address.
#[tokio::test]
async fn real_socket() {
    let host: IpAddr = "127.255.255.254".parse().unwrap();
    match getport(host, MOUNT, 3, Duration::from_secs(60)).await {
        Ok(port) => assert_ne!(port, 0),
        Err(PortmapError::NotRegistered { .. }) => {}
        Err(PortmapError::Unreachable { cause: CallError::Connect(e), .. }) => {
            assert_eq!(e.kind(), std::io::ErrorKind::ConnectionRefused)
        }
        Err(e) => panic!("{e}"),
    }
}
