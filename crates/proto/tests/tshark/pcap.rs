//! Writes RPC messages as a packet capture: one TCP connection, one segment per message.

use bytes::Bytes;
use hither_proto::record;
use hither_proto::xdr::Enc;

/// Link type of IP packets without a link layer.
const LINKTYPE_RAW: u32 = 101;
const CLIENT: (u32, u16) = (0x0a00_0001, 40_000);
const SERVER: (u32, u16) = (0x0a00_0002, 2049);

/// An unfinished capture.
pub struct Pcap {
    out: Vec<u8>,
    packets: u32,
    sent: [u32; 2],
}

impl Pcap {
    /// An empty capture.
    pub fn new() -> Self {
        let mut out = Vec::new();
        out.extend(0xa1b2_c3d4u32.to_be_bytes());
        out.extend([0, 2, 0, 4]);
        for word in [0, 0, 0x4_0000, LINKTYPE_RAW] {
            out.extend(u32::to_be_bytes(word));
        }
        Self { out, packets: 0, sent: [1, 1] }
    }

    /// Appends a message as one record in one segment. It must fit into an IP packet.
    pub fn message(&mut self, from_server: bool, message: &Bytes) {
        let mut enc = Enc::new();
        enc.raw(message);
        let payload = record::frame(enc).concat();
        let len = u16::try_from(40 + payload.len()).expect("a message fits into an IP packet");
        self.packets += 1;
        for word in [self.packets, 0, u32::from(len), u32::from(len)] {
            self.out.extend(word.to_be_bytes());
        }
        let (from, to) = if from_server { (SERVER, CLIENT) } else { (CLIENT, SERVER) };
        self.out.extend([0x45, 0]);
        self.out.extend(len.to_be_bytes());
        self.out.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        self.out.extend(from.0.to_be_bytes());
        self.out.extend(to.0.to_be_bytes());
        self.out.extend(from.1.to_be_bytes());
        self.out.extend(to.1.to_be_bytes());
        let (mine, other) = (usize::from(from_server), usize::from(!from_server));
        self.out.extend(self.sent[mine].to_be_bytes());
        self.out.extend(self.sent[other].to_be_bytes());
        self.out.extend([0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
        self.out.extend(&payload);
        self.sent[mine] += payload.len() as u32;
    }

    /// Returns the capture file.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }
}
