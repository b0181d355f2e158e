//! Writes a packet capture with samples of every NFSv4 operation, result and callback, for other
//! implementations to read:
//!
//! ```text
//! cargo run -p hither-proto --features sample --example nfs4_pcap -- all.pcap
//! tshark -r all.pcap -V
//! ```
//!
//! This program opens no sockets. Each message is one TCP segment of a synthetic connection. Calls
//! and replies contain one operation each, so that a disagreement identifies the operation.

use hither_proto::nfs4::*;
use hither_proto::record;
use hither_proto::rpc::{self, OpaqueAuth};
use hither_proto::sample::{Sample, Source};
use hither_proto::xdr::{Enc, Xdr};
use std::io::Write;

/// Number of samples of each operation.
const SAMPLES: usize = 24;
/// Longest message. An IP packet has at most 65535 bytes.
const MESSAGE_MAX_BYTES: usize = 60_000;

/// Pseudo-random bytes that determine the samples. They are the same in each run.
struct Seeds(u64);

impl Seeds {
    fn next(&mut self) -> Vec<u8> {
        (0..600)
            .map(|_| {
                self.0 =
                    self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (self.0 >> 56) as u8
            })
            .collect()
    }

    /// A sample that satisfies `pick` and fits into a packet.
    fn sample<T: Sample + Xdr>(&mut self, pick: impl Fn(&T) -> bool) -> T {
        loop {
            let value = T::sample(&mut Source::new(&self.next()));
            if pick(&value) && Enc::of(&value).len() < MESSAGE_MAX_BYTES {
                return value;
            }
        }
    }
}

/// One TCP connection in a capture file.
struct Capture<W> {
    out: W,
    seq: [u32; 2],
}

impl<W: Write> Capture<W> {
    fn new(mut out: W) -> std::io::Result<Self> {
        // Magic, version 2.4, two zero words, longest packet, Ethernet.
        for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 1 << 18, 1] {
            out.write_all(&word.to_le_bytes())?;
        }
        Ok(Self { out, seq: [1, 1] })
    }

    fn send(&mut self, from_server: bool, message: Enc) -> std::io::Result<()> {
        let payload = record::frame(message).concat();
        let (from, to) = (usize::from(from_server), usize::from(!from_server));
        let port = |end: usize| if end == 1 { 2049u16 } else { 999 };
        let mut p = Vec::with_capacity(payload.len() + 54);
        p.extend([2, 0, 0, 0, 0, to as u8, 2, 0, 0, 0, 0, from as u8, 8, 0]);
        p.extend([0x45, 0]);
        p.extend((payload.len() as u16 + 40).to_be_bytes());
        p.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, from as u8 + 1, 10, 0, 0, to as u8 + 1]);
        p.extend(port(from).to_be_bytes());
        p.extend(port(to).to_be_bytes());
        p.extend(self.seq[from].to_be_bytes());
        p.extend(self.seq[to].to_be_bytes());
        p.extend([0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
        p.extend(&payload);
        self.seq[from] = self.seq[from].wrapping_add(payload.len() as u32);
        for word in [self.seq[0], 0, p.len() as u32, p.len() as u32] {
            self.out.write_all(&word.to_le_bytes())?;
        }
        self.out.write_all(&p)
    }
}

fn main() -> std::io::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "nfs4.pcap".into());
    let mut capture = Capture::new(std::io::BufWriter::new(std::fs::File::create(path)?))?;
    let (mut seeds, mut xid) = (Seeds(1), 0);
    for &number in NfsOpnum4::VALUES {
        for _ in 0..SAMPLES {
            xid += 1;
            let op = seeds.sample(|op: &Op| op.number() == number);
            let res = seeds.sample(|res: &OpRes| res.number() == number);
            let call = Enc::of(&Compound::new(2, vec![op]));
            let status = res.status();
            let reply = CompoundReply { status, tag: Tag::default(), results: vec![res].into() };
            let none = OpaqueAuth::none();
            capture.send(false, rpc::call(xid, PROGRAM, VERSION, Proc4::COMPOUND.0, &none, call))?;
            capture.send(true, rpc::reply(xid, Enc::of(&reply)))?;
        }
    }
    for number in 0..attr::COUNT {
        for _ in 0..SAMPLES {
            xid += 1;
            let attrs = seeds.sample(|a: &Attrs| a.mask() == Bitmap4::of(&[number]));
            let op = Op::Verify(attrs);
            let call = Enc::of(&Compound::new(2, vec![op]));
            capture.send(
                false,
                rpc::call(xid, PROGRAM, VERSION, Proc4::COMPOUND.0, &OpaqueAuth::none(), call),
            )?;
        }
    }
    for &number in NfsCbOpnum4::VALUES {
        for _ in 0..SAMPLES {
            xid += 1;
            let op = seeds.sample(|op: &CbOp| op.number() == number);
            let res = seeds.sample(|res: &CbRes| res.number() == number);
            let tag = Tag::default();
            let call = CbCompound { tag: tag.clone(), minorversion: 2, callback_ident: 0, ops: vec![op] };
            let reply = CbCompoundReply { status: res.status(), tag, results: vec![res].into() };
            let none = OpaqueAuth::none();
            let call = rpc::call(xid, 0x4000_0000, CB_VERSION, CB_PROC_COMPOUND, &none, Enc::of(&call));
            capture.send(true, call)?;
            capture.send(false, rpc::reply(xid, Enc::of(&reply)))?;
        }
    }
    capture.out.flush()
}
