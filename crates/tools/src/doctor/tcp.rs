//! The kernel's figures of a TCP connection of any process: sock_diag(7) and TCP_INFO.
//!
//! A mount's connections belong to its daemon. The kernel also reports them to other processes of
//! the same network name space, which select them by port. The layouts are those of the kernel's
//! `linux/inet_diag.h` and `linux/tcp.h`. An older kernel's structures are shorter and lack the
//! last fields.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use serde::Serialize;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST_DUMP: u16 = 1 | 0x300;
const NLMSG_DONE: u16 = 3;
const NLMSG_ERROR: u16 = 2;
const INET_DIAG_INFO: u16 = 2;
const NLMSG_HEADER: usize = 16;
const DIAG_MSG: usize = 72;
const TCP_ESTABLISHED: u32 = 1;

/// The figures of one connection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Tcp {
    /// Local port.
    pub local_port: u16,
    /// Smoothed round-trip time, its variation, and its minimum.
    pub rtt_us: u32,
    /// See `rtt_us`.
    pub rtt_variation_us: u32,
    /// See `rtt_us`.
    pub rtt_min_us: u32,
    /// Retransmission timeout.
    pub rto_us: u32,
    /// Bytes of a sent segment.
    pub mss_bytes: u32,
    /// Bytes of a packet on the path.
    pub path_mtu_bytes: u32,
    /// Sent segments with data, and retransmissions of them.
    pub segments_sent: u32,
    /// See `segments_sent`.
    pub segments_resent: u32,
    /// Received segments with data, and those that arrived out of order. Losses on the path from
    /// the server appear in the second number.
    pub segments_received: u32,
    /// See `segments_received`.
    pub segments_out_of_order: u32,
    /// Delivery rate of the latest segments in bytes a second.
    pub delivery_bytes_per_s: u64,
    /// Time with data to send, and its parts spent waiting for the receiver's window and for room
    /// in the send buffer.
    pub busy_us: u64,
    /// See `busy_us`.
    pub window_limited_us: u64,
    /// See `busy_us`.
    pub buffer_limited_us: u64,
}

/// The established connections to `server` from these ports.
///
/// # Errors
/// The kernel refuses the query.
pub fn connections(server: SocketAddr, ports: &[u16]) -> io::Result<Vec<Tcp>> {
    let fd = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    let mut found = Vec::new();
    // An IPv4 server may be the peer of a socket of either family.
    let families: &[u8] = if server.is_ipv4() { &[2, 10] } else { &[10] };
    for &family in families {
        send(&fd, &request(family, server.port()), SendFlags::empty())?;
        let mut buf = vec![0_u8; 64 << 10];
        'dump: loop {
            let (len, _) = recv(&fd, &mut buf[..], RecvFlags::empty())?;
            for (kind, body) in messages(&buf[..len]) {
                match kind {
                    SOCK_DIAG_BY_FAMILY => {
                        found.extend(
                            connection(body)
                                .filter(|(peer, tcp)| *peer == server && ports.contains(&tcp.local_port)),
                        );
                    }
                    NLMSG_DONE | NLMSG_ERROR => break 'dump,
                    _ => {}
                }
            }
            if len == 0 {
                break;
            }
        }
    }
    Ok(found.into_iter().map(|(_, tcp)| tcp).collect())
}

fn request(family: u8, server_port: u16) -> Vec<u8> {
    let mut out = Vec::with_capacity(72);
    out.extend(72_u32.to_ne_bytes());
    out.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    out.extend(NLM_F_REQUEST_DUMP.to_ne_bytes());
    out.extend([0; 8]);
    // Family, protocol, requested extensions, padding, states.
    out.extend([family, 6, 1 << (INET_DIAG_INFO - 1), 0]);
    out.extend((1_u32 << TCP_ESTABLISHED).to_ne_bytes());
    // Source and destination port. Addresses, interface and cookie stay empty.
    out.extend([0, 0]);
    out.extend(server_port.to_be_bytes());
    out.resize(72, 0);
    out
}

/// The netlink messages in a datagram: type and body.
fn messages(mut rest: &[u8]) -> Vec<(u16, &[u8])> {
    let mut out = Vec::new();
    while let Some(head) = rest.get(..NLMSG_HEADER) {
        let len = u32_at(head, 0).unwrap_or(0) as usize;
        let Some(body) = rest.get(NLMSG_HEADER..len) else { break };
        out.push((u16::from_ne_bytes([head[4], head[5]]), body));
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    out
}

/// The peer and the figures in one `inet_diag_msg`.
fn connection(body: &[u8]) -> Option<(SocketAddr, Tcp)> {
    let family = *body.first()?;
    let port = |at: usize| Some(u16::from_be_bytes(body.get(at..at + 2)?.try_into().ok()?));
    let dst: [u8; 16] = body.get(24..40)?.try_into().ok()?;
    let ip = match family {
        2 => IpAddr::V4(Ipv4Addr::new(dst[0], dst[1], dst[2], dst[3])),
        _ => Ipv6Addr::from(dst).to_canonical(),
    };
    let mut attributes = body.get(DIAG_MSG..)?;
    let mut info: &[u8] = &[];
    while let Some(head) = attributes.get(..4) {
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let Some(value) = attributes.get(4..len) else { break };
        if u16::from_ne_bytes([head[2], head[3]]) == INET_DIAG_INFO {
            info = value;
        }
        attributes = attributes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    let tcp = Tcp { local_port: port(4)?, ..figures(info) };
    Some((SocketAddr::new(ip, port(6)?), tcp))
}

/// `struct tcp_info`, by offset.
fn figures(info: &[u8]) -> Tcp {
    let word = |at| u32_at(info, at).unwrap_or(0);
    let long = |at: usize| {
        let bytes = info.get(at..at + 8).and_then(|b| b.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    };
    Tcp {
        local_port: 0,
        rto_us: word(8),
        mss_bytes: word(16),
        path_mtu_bytes: word(60),
        rtt_us: word(68),
        rtt_variation_us: word(72),
        segments_resent: word(100),
        rtt_min_us: word(148),
        segments_received: word(152),
        segments_sent: word(156),
        delivery_bytes_per_s: long(160),
        busy_us: long(168),
        window_limited_us: long(176),
        buffer_limited_us: long(184),
        segments_out_of_order: word(224),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// A connection is found by its ports, with its figures.
    #[test]
    fn connections_are_found_by_their_ports() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let mut ours = TcpStream::connect(server).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        ours.write_all(&[1; 10_000]).unwrap();
        theirs.read_exact(&mut [0; 10_000]).unwrap();
        theirs.write_all(&[1; 10]).unwrap();
        ours.read_exact(&mut [0; 10]).unwrap();
        let port = ours.local_addr().unwrap().port();
        let found = connections(server, &[port]).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        let tcp = &found[0];
        assert_eq!(tcp.local_port, port);
        assert!(tcp.rtt_us > 0 && tcp.mss_bytes > 500 && tcp.path_mtu_bytes > tcp.mss_bytes, "{tcp:?}");
        assert!(tcp.segments_sent >= 1 && tcp.segments_received >= 1, "{tcp:?}");
        assert!(connections(server, &[port ^ 1]).unwrap().is_empty());
        // A machine may lack IPv6.
        let Ok(listener) = TcpListener::bind("[::1]:0") else { return };
        let server = listener.local_addr().unwrap();
        let ours = TcpStream::connect(server).unwrap();
        let port = ours.local_addr().unwrap().port();
        assert_eq!(connections(server, &[port]).unwrap().len(), 1);
    }

    /// Truncated netlink messages and structures give no connection. Absent figures are 0.
    #[test]
    fn truncated_netlink_gives_no_connection() {
        assert!(messages(&[0; 10]).is_empty());
        assert!(messages(&[255; 40]).is_empty());
        assert_eq!(messages(&[0; 16]).len(), 0);
        assert!(connection(&[2; 40]).is_none());
        let (_, tcp) = connection(&[2; 72]).unwrap();
        assert_eq!(tcp.rtt_us, 0);
    }
}
