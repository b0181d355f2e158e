//! Registers NFSv3 and MOUNT with rpcbind(8). NFSv3 clients without configured ports query it, and
//! showmount(8) always does.
//!
//! NFS 3 (and 4) and MOUNT 3 are registered for TCP. The lock manager (NLM), which refuses locks,
//! is also registered for UDP. Without rpcbind the server still works, and clients configure the
//! port. Registrations of other servers stay.

use crate::cli::{ServeArgs, WithRpcbind};
use hither_proto::nlm::VERSIONS;
use hither_rpc::{RPCBIND_SOCKET, Registered, Registration, Rpcbind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

/// Longest wait for rpcbind before the server serves its clients.
const PATIENCE: Duration = Duration::from_secs(3);
const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
const NLM: u32 = hither_proto::nlm::PROGRAM;

/// The registered programs.
#[derive(Default)]
pub struct Registrations {
    wanted: Vec<Registration>,
    done: Vec<Registration>,
}

impl Registrations {
    /// The programs to register.
    pub fn of(args: &ServeArgs) -> Self {
        let wanted = match args.rpcbind {
            _ if !args.versions.contains('3') => Vec::new(),
            WithRpcbind::Off => Vec::new(),
            WithRpcbind::Auto => {
                wanted(&args.listen, args.versions.contains('4'), |addr| !addr.ip().is_loopback())
            }
            WithRpcbind::On => wanted(&args.listen, args.versions.contains('4'), |_| true),
        };
        Self { wanted, done: Vec::new() }
    }

    /// Registers programs that are not registered, or that a restarted rpcbind has lost. Returns a
    /// message if the state changed.
    pub async fn register(&mut self) -> Option<String> {
        if self.wanted.is_empty() {
            return None;
        }
        let rpcbind = Rpcbind::local(Path::new(RPCBIND_SOCKET), PATIENCE);
        self.done.clear();
        for what in &self.wanted {
            let name = match what.prog {
                NFS => "NFS",
                NLM => "NLM",
                _ => "MOUNT",
            };
            let found = match rpcbind.register(what).await {
                Ok(Registered::Done) => {
                    self.done.push(*what);
                    continue;
                }
                Ok(Registered::Taken(port)) => format!(
                    "has {name} {} of another server, on port {port} (rpcinfo -d {} {} removes it)",
                    what.vers, what.prog, what.vers
                ),
                Ok(Registered::Refused) => format!("refuses {name} {}", what.vers),
                Err(e) => format!("cannot be queried ({e})"),
            };
            if what.prog == NLM {
                // The registration is the kernel's if this machine is an NFS client. The kernel
                // also answers locks of files that it does not know.
                tracing::info!("rpcbind {found}: NFSv3 clients must mount with nolock");
                continue;
            }
            return Some(format!("rpcbind {found}: NFSv3 clients need port= and mountport="));
        }
        Some("rpcbind gives NFSv3 clients the port".to_string())
    }

    /// Ends this server's registrations.
    pub async fn end(&mut self) {
        if self.done.is_empty() {
            return;
        }
        let rpcbind = Rpcbind::local(Path::new(RPCBIND_SOCKET), PATIENCE);
        for what in self.done.drain(..) {
            if let Err(e) = rpcbind.unregister(&what).await {
                return tracing::warn!("rpcbind keeps the registration of the port: {e}");
            }
        }
    }
}

/// The registrations for the listening addresses. rpcbind has one address of a program for each
/// address family. For several addresses with one port it gets the unspecified address.
fn wanted(listen: &[SocketAddr], v4: bool, may: impl Fn(&SocketAddr) -> bool) -> Vec<Registration> {
    let mut out = Vec::new();
    let listen: Vec<SocketAddr> = listen.iter().copied().filter(|addr| may(addr)).collect();
    // A socket on `::` also accepts IPv4.
    let dual = listen.iter().find(|addr| addr.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    let dual = dual.map(|addr| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), addr.port()));
    for is_v4 in [true, false] {
        let of_kind: Vec<SocketAddr> =
            listen.iter().copied().chain(dual).filter(|addr| addr.is_ipv4() == is_v4).collect();
        let Some(first) = of_kind.first() else { continue };
        let any: IpAddr = if is_v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let several = of_kind.iter().filter(|addr| addr.port() == first.port()).count() > 1;
        let addr = if several { SocketAddr::new(any, first.port()) } else { *first };
        let programs = [(NFS, 3), (NFS, 4), (MOUNT, 3)];
        let offered = programs.into_iter().filter(|&program| v4 || program != (NFS, 4));
        out.extend(offered.map(|(prog, vers)| Registration { prog, vers, addr, udp: false }));
        for udp in [false, true] {
            out.extend(VERSIONS.map(|vers| Registration { prog: NLM, vers, addr, udp }));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each address family has one registration. Loopback addresses are not registered.
    #[test]
    fn address_family_has_one_registration() {
        let told = |listen: &[&str]| {
            let listen: Vec<SocketAddr> = listen.iter().map(|a| a.parse().unwrap()).collect();
            let all = wanted(&listen, false, |addr| !addr.ip().is_loopback());
            let nfs = all.iter().filter(|r| r.prog == NFS).map(|r| r.addr.to_string());
            // NFS, MOUNT, and NLM in three versions for TCP and UDP.
            assert_eq!(all.len() % 8, 0);
            nfs.collect::<Vec<_>>()
        };
        assert!(told(&["127.0.0.1:2049", "[::1]:2049"]).is_empty());
        assert_eq!(told(&["127.0.0.1:2049", "192.0.2.1:2050"]), ["192.0.2.1:2050"]);
        assert_eq!(told(&["192.0.2.1:2049", "192.0.2.2:2049"]), ["0.0.0.0:2049"]);
        assert_eq!(told(&["0.0.0.0:2049"]), ["0.0.0.0:2049"]);
        assert_eq!(told(&["[::]:2049"]), ["0.0.0.0:2049", "[::]:2049"]);
        assert_eq!(told(&["[2001:db8::1]:2049"]), ["[2001:db8::1]:2049"]);
    }
}
