//! Portmap version 2 and rpcbind versions 3 and 4 (RFC 1833), which return the address of a
//! program.
//!
//! This module opens no sockets. Portmap returns port numbers for TCP and UDP over IPv4. Rpcbind
//! returns universal addresses, which this module reads and writes for IPv4 and IPv6 (RFC 5665).
//! Rpcbind versions 3 and 4 have the same procedures and arguments in this module. A call to
//! version 3 differs from a call to version 4 only in the version number of its header.

use crate::xdr::{Chain, Opaque};
use crate::{rpc_program, xdr_struct};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Program number of portmap and rpcbind.
pub const PROGRAM: u32 = 100_000;
/// Version of portmap.
pub const PORTMAP_VERSION: u32 = 2;
/// Versions of rpcbind.
pub const RPCBIND_VERSIONS: [u32; 2] = [4, 3];
/// The well-known port, TCP and UDP.
pub const PORT: u16 = 111;

/// [`Mapping::prot`] for TCP.
pub const IPPROTO_TCP: u32 = 6;
/// [`Mapping::prot`] for UDP.
pub const IPPROTO_UDP: u32 = 17;

/// Longest string. The RFC sets no bound. The longest strings in use are addresses of UNIX sockets,
/// with 108 bytes.
pub const STRING_MAX_BYTES: usize = 256;
/// Most registrations of a host that are decoded. A busy host has a few dozen.
pub const REGISTRATIONS_MAX: usize = 16384;

/// A network identifier, universal address or owner.
pub type Text = Opaque<STRING_MAX_BYTES>;

rpc_program! {
    /// Portmap version 2 (RFC 1833 section 3).
    program 100000 version 2, PortmapProc, PortmapCall, PortmapReply {
        /// Does nothing.
        NULL = 0, Null(PortmapNull) -> ();
        /// Registers a program; false if a registration exists.
        SET = 1, Set(PortmapSet) -> bool;
        /// Ends the registrations of a program version, for every protocol and port.
        UNSET = 2, Unset(PortmapUnset) -> bool;
        /// Port of a program version and protocol (the port argument is ignored); 0 if there is
        /// none.
        GETPORT = 3, Getport(PortmapGetport) -> u32;
        /// All registrations.
        DUMP = 4, Dump(PortmapDump) -> Chain<Mapping, REGISTRATIONS_MAX>;
    }
}

rpc_program! {
    /// Rpcbind version 4, and the same part of version 3 (RFC 1833 section 2).
    program 100000 version 4, RpcbindProc, RpcbindCall, RpcbindReply {
        /// Does nothing.
        NULL = 0, Null(RpcbindNull) -> ();
        /// Registers a program; false if a registration exists.
        SET = 1, Set(RpcbindSet) -> bool;
        /// Ends registrations.
        UNSET = 2, Unset(RpcbindUnset) -> bool;
        /// Universal address of a program; empty if there is none. It may be that of another
        /// version.
        GETADDR = 3, Getaddr(RpcbindGetaddr) -> Text;
        /// All registrations.
        DUMP = 4, Dump(RpcbindDump) -> Chain<Rpcb, REGISTRATIONS_MAX>;
        /// Time of the server in seconds since 1970.
        GETTIME = 6, Gettime(RpcbindGettime) -> u32;
        /// Universal address of the given version (version 4 only).
        GETVERSADDR = 9, Getversaddr(RpcbindGetversaddr) -> Text;
    }
}

xdr_struct! {
    /// A registration with portmap (`mapping`).
    #[derive(Copy, Hash)]
    pub struct Mapping {
        /// Program number.
        pub prog: u32,
        /// Program version.
        pub vers: u32,
        /// [`IPPROTO_TCP`] or [`IPPROTO_UDP`].
        pub prot: u32,
        /// Port.
        pub port: u32,
    }

    /// A registration with rpcbind (`rpcb`).
    #[derive(Hash)]
    pub struct Rpcb {
        /// Program number.
        pub prog: u32,
        /// Program version.
        pub vers: u32,
        /// Network identifier: `tcp`, `udp`, `tcp6`, `udp6`, `local`.
        pub netid: Text,
        /// Universal address.
        pub addr: Text,
        /// The owner of the registration.
        pub owner: Text,
    }

    /// NULL takes nothing.
    pub struct PortmapNull {}
    /// SET.
    pub struct PortmapSet { /// The registration.
        pub mapping: Mapping }
    /// UNSET.
    pub struct PortmapUnset { /// Program and version.
        pub mapping: Mapping }
    /// GETPORT.
    pub struct PortmapGetport { /// Program, version and protocol.
        pub mapping: Mapping }
    /// DUMP takes nothing.
    pub struct PortmapDump {}
    /// NULL takes nothing.
    pub struct RpcbindNull {}
    /// SET.
    pub struct RpcbindSet { /// The registration.
        pub rpcb: Rpcb }
    /// UNSET.
    pub struct RpcbindUnset { /// Program, version and network.
        pub rpcb: Rpcb }
    /// GETADDR.
    pub struct RpcbindGetaddr { /// Program, version and network.
        pub rpcb: Rpcb }
    /// DUMP takes nothing.
    pub struct RpcbindDump {}
    /// GETTIME takes nothing.
    pub struct RpcbindGettime {}
    /// GETVERSADDR.
    pub struct RpcbindGetversaddr { /// Program, version and network.
        pub rpcb: Rpcb }
}

impl Rpcb {
    /// A query for `prog` over `netid`. Address and owner are empty.
    pub fn query(prog: u32, vers: u32, netid: &str) -> Self {
        let text = |s: &str| Text::copy(s.as_bytes());
        Self { prog, vers, netid: text(netid), addr: text(""), owner: text("") }
    }
}

/// The network identifier of TCP for this address family.
pub fn tcp_netid(addr: &IpAddr) -> &'static str {
    match addr {
        IpAddr::V4(_) => "tcp",
        IpAddr::V6(_) => "tcp6",
    }
}

/// Formats a universal address (RFC 5665 section 5.2.3). Port 2049 gives `192.0.2.1.8.1` or
/// `2001:db8::1.8.1`.
pub fn format_universal(addr: &SocketAddr) -> String {
    let [high, low] = addr.port().to_be_bytes();
    format!("{}.{high}.{low}", addr.ip())
}

/// Parses a universal address of IPv4 or IPv6. `None` for other texts.
pub fn parse_universal(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let (rest, low) = text.rsplit_once('.')?;
    let (host, high) = rest.rsplit_once('.')?;
    let port = u16::from_be_bytes([octet(high)?, octet(low)?]);
    let ip = match host.parse::<Ipv4Addr>() {
        Ok(v4) => IpAddr::V4(v4),
        Err(_) => IpAddr::V6(host.parse::<Ipv6Addr>().ok()?),
    };
    Some(SocketAddr::new(ip, port))
}

/// A decimal octet without a sign or leading zeros.
fn octet(text: &str) -> Option<u8> {
    let canonical = text == "0" || text.starts_with(|c: char| matches!(c, '1'..='9'));
    if canonical { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests;
