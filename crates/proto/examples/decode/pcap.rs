//! TCP segments of a capture in the pcap format, in the order of their sequence numbers.
//!
//! This module does not parse RPC. Link layers: none (raw IP), Ethernet, Linux "cooked", BSD
//! loopback. Retransmissions are dropped. An early segment waits until the missing ones have
//! arrived.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const MAGIC: [u32; 2] = [0xa1b2_c3d4, 0xa1b2_3c4d];
const TCP: u8 = 6;
const SYN: u8 = 2;

/// One direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow(pub (IpAddr, u16), pub (IpAddr, u16));

impl Flow {
    /// The flow with its two ends in a fixed order, and whether they were exchanged. Both
    /// directions give the same flow.
    pub fn sorted(self) -> (Self, bool) {
        if self.0 <= self.1 { (self, false) } else { (Self(self.1, self.0), true) }
    }
}

/// Bytes that follow those of the flow's previous segment.
#[derive(Debug)]
pub struct Segment {
    pub flow: Flow,
    pub bytes: Vec<u8>,
}

/// Reads a capture.
///
/// # Errors
/// The file has another format.
pub fn segments(file: &[u8]) -> Result<impl Iterator<Item = Segment>, String> {
    let head = file.first_chunk::<24>().ok_or("no capture")?;
    let word = |at: usize, big: bool| {
        let b: [u8; 4] = std::array::from_fn(|i| head[at + i]);
        if big { u32::from_be_bytes(b) } else { u32::from_le_bytes(b) }
    };
    let big = MAGIC.contains(&word(0, true));
    if !big && !MAGIC.contains(&word(0, false)) {
        return Err("not a pcap file (tshark -F pcap writes one)".into());
    }
    let link = word(20, big) & 0xffff;
    let (mut rest, mut order, mut ready) = (&file[24..], Order::default(), VecDeque::new());
    while let Some((head, more)) = rest.split_first_chunk::<16>() {
        let len: [u8; 4] = std::array::from_fn(|i| head[8 + i]);
        let len = if big { u32::from_be_bytes(len) } else { u32::from_le_bytes(len) };
        let Some((packet, more)) = more.split_at_checked(len as usize) else { break };
        rest = more;
        if let Some((flow, seq, syn, bytes)) = tcp(link, packet) {
            ready.extend(order.take(flow, seq, syn, bytes).map(|bytes| Segment { flow, bytes }));
        }
    }
    Ok(ready.into_iter())
}

fn tcp(link: u32, packet: &[u8]) -> Option<(Flow, u32, bool, &[u8])> {
    let ip = match link {
        101 => packet,
        1 => packet.get(14..)?,
        0 => packet.get(4..)?,
        113 => packet.get(16..)?,
        276 => packet.get(20..)?,
        _ => return None,
    };
    let (from, to, segment): (IpAddr, IpAddr, &[u8]) = match ip.first()? >> 4 {
        4 if *ip.get(9)? == TCP => {
            let header = usize::from(ip[0] & 15) * 4;
            let addr = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?));
            let len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
            // The length is zero when the network card split the packet (segmentation offload).
            let len = if len == 0 { ip.len() } else { len };
            (addr(12)?.into(), addr(16)?.into(), ip.get(header..len.min(ip.len()))?)
        }
        6 if *ip.get(6)? == TCP => {
            let addr = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?));
            (addr(8)?.into(), addr(24)?.into(), ip.get(40..)?)
        }
        _ => return None,
    };
    let head = segment.first_chunk::<20>()?;
    let port = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let seq = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
    let bytes = segment.get(usize::from(head[12] >> 4) * 4..)?;
    Some((Flow((from, port(0)), (to, port(2))), seq, head[13] & SYN != 0, bytes))
}

/// The next expected segment of a flow.
#[derive(Default)]
struct Order {
    flows: HashMap<Flow, Waiting>,
}

struct Waiting {
    next: u32,
    /// Early segments by their distance from the first byte of the flow.
    early: BTreeMap<u64, Vec<u8>>,
    /// Number of bytes already passed on.
    passed: u64,
}

impl Order {
    fn take(&mut self, flow: Flow, seq: u32, syn: bool, bytes: &[u8]) -> Option<Vec<u8>> {
        let first = seq.wrapping_add(u32::from(syn));
        let fresh = || Waiting { next: first, early: BTreeMap::new(), passed: 0 };
        if syn {
            self.flows.insert(flow, fresh());
        }
        let w = self.flows.entry(flow).or_insert_with(fresh);
        let ahead = first.wrapping_sub(w.next) as i32;
        // Cuts off bytes that an earlier segment contained.
        let known = usize::try_from(-i64::from(ahead)).unwrap_or(0);
        let bytes = bytes.get(known..).filter(|b| !b.is_empty())?;
        let at = w.passed + u64::try_from(ahead).unwrap_or(0);
        w.early.insert(at, bytes.to_vec());
        let mut out = Vec::new();
        while let Some(entry) = w.early.first_entry().filter(|e| *e.key() <= w.passed) {
            let (at, bytes) = entry.remove_entry();
            let bytes = bytes.get((w.passed - at) as usize..).unwrap_or(&[]);
            out.extend_from_slice(bytes);
            w.passed += bytes.len() as u64;
            w.next = w.next.wrapping_add(bytes.len() as u32);
        }
        (!out.is_empty()).then_some(out)
    }
}
