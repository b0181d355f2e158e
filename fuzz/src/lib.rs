//! The promise of every decoder for arbitrary bytes. The decoder returns and does not panic. An
//! accepted value survives being encoded and decoded again.
//!
//! There is one function per fuzz target. The table [`TARGETS`] makes seeds for each target from
//! sample values of the types. XDR has one encoding per value. For types without lenient forms, the
//! encoded bytes must also equal the bytes that were read.

use bytes::Bytes;
use hither_client::wire;
use hither_proto::record::{self, Limits, Reader, RecordError};
use hither_proto::rpc::gss::{GssCred, InitArgs, InitRes};
use hither_proto::rpc::{Message, OpaqueAuth};
use hither_proto::sample::{Sample, Source};
use hither_proto::xdr::{Dec, Enc, Xdr};
use hither_proto::{mount as mnt, nfs3, nfs4, nqnfs, portmap as pmap};
use std::fmt::Debug;

/// Makes one input of a target from the decisions of a byte string.
pub type Seed = fn(&mut Source<'_>) -> Vec<u8>;

/// Every target: its name, its check and its seeds.
pub const TARGETS: &[(&str, fn(&[u8]), Seed)] = &[
    ("record", record, record_seed),
    ("rpc_message", rpc_message, rpc_message_seed),
    ("portmap", portmap, portmap_seed),
    ("mount", mount, mount_seed),
    ("nfs3_call", nfs3_call, nfs3_call_seed),
    ("nfs3_reply", nfs3_reply, nfs3_reply_seed),
    ("nqnfs_call", nqnfs_call, nqnfs_call_seed),
    ("nqnfs_reply", nqnfs_reply, nqnfs_reply_seed),
    ("nfs4_compound_call", nfs4_compound_call, |s| encoded(&nfs4::Compound::sample(s))),
    ("nfs4_compound_reply", nfs4_compound_reply, |s| encoded(&nfs4::CompoundReply::sample(s))),
    ("nfs4_attrs", nfs4_attrs, |s| encoded(&nfs4::Attrs::sample(s))),
    ("nfs4_callback", nfs4_callback, nfs4_callback_seed),
    ("socket_request", socket_request, socket_request_seed),
    ("socket_reply", socket_reply, socket_reply_seed),
];

/// A request on the socket for programs. The first byte is its operation.
pub fn socket_request(data: &[u8]) {
    let Some((op, body)) = data.split_first() else { return };
    // The daemon does not read a longer body.
    if body.len() > wire::BODY_MAX_BYTES {
        return;
    }
    let Ok(request) = wire::Request::decode(u16::from(*op), body) else { return };
    let mut out = Vec::new();
    request.encode(7, &mut out);
    let (head, again) = out.split_first_chunk::<{ wire::HEADER_BYTES }>().expect("a header");
    let header = wire::Header::decode(head).expect("a body that is not too long");
    assert_eq!((header.op, header.id, header.len as usize), (u16::from(*op), 7, body.len()));
    assert_eq!(again, body);
}

fn socket_request_seed(s: &mut Source<'_>) -> Vec<u8> {
    let path = bytes_of(s, 20);
    let path: Vec<u8> = path.into_iter().filter(|b| *b != 0).collect();
    let number = u64::sample(s);
    let request = match u32::sample(s) % 8 {
        0 => wire::Request::Hello(1),
        1 => wire::Request::Open(&path, number as u32, 0o644),
        2 => wire::Request::Read(number, 0, 4096),
        3 => wire::Request::Write(number, 1, 0, &path),
        4 => wire::Request::StatMany(0, vec![&path, b"a"]),
        5 => wire::Request::ReadMany(vec![wire::Part { path: &path, offset: number, len: 9 }]),
        6 => wire::Request::Rename(&path, b"b", 0),
        _ => wire::Request::Watch(vec![&path]),
    };
    let mut out = Vec::new();
    request.encode(7, &mut out);
    out.drain(..wire::HEADER_BYTES);
    out.insert(0, request.op() as u8);
    out
}

/// Replies on the socket as a program reads them: each kind of item until the bytes end.
pub fn socket_reply(data: &[u8]) {
    let _ = (wire::Hello::decode(data), wire::Opened::decode(data), wire::decode_error(data));
    let mut r = wire::Reader(data);
    while !r.is_empty() && wire::Stated::decode(&mut r).is_ok() {}
    let mut r = wire::Reader(data);
    while !r.is_empty() && wire::Piece::decode(&mut r).is_ok() {}
    let mut r = wire::Reader(data);
    while !r.is_empty() {
        let Ok(entry) = wire::Entry::decode(&mut r) else { break };
        let mut out = Vec::new();
        entry.encode(&mut out);
        assert_eq!(wire::Entry::decode(&mut wire::Reader(&out)).as_ref(), Ok(&entry));
    }
}

fn socket_reply_seed(s: &mut Source<'_>) -> Vec<u8> {
    let (name, number) = (bytes_of(s, 20), u32::sample(s));
    let errno = (number % 200) as i32 + 1;
    let mut out = Vec::new();
    match u32::sample(s) % 5 {
        0 => wire::Hello { version: 1, read_only: true, dir: name, source: b"s:/".into() }.encode(&mut out),
        1 => wire::encode_error(errno, "why", &mut out),
        2 => wire::Stated { index: number, attr: Err(errno) }.encode(&mut out),
        3 => wire::Entry { name: &name, attr: Err(errno) }.encode(&mut out),
        _ => {
            out.push(number as u8);
            out.extend(bytes_of(s, 200));
        }
    }
    out
}

fn bytes_of(s: &mut Source<'_>, most: u8) -> Vec<u8> {
    (0..(u32::sample(s) as u8).min(most)).map(|_| u32::sample(s) as u8).collect()
}

/// Record marking. The first three bytes choose limits and the points where the stream is split.
/// Splitting must not change the result, and limits must hold. The records must survive being
/// framed again.
pub fn record(data: &[u8]) {
    let Some((&[limit, fragments, cut], stream)) = data.split_first_chunk::<3>() else { return };
    let limits = Limits { record_max_bytes: usize::from(limit) * 64, fragments_max: usize::from(fragments) };
    let whole = read(limits, stream, stream.len().max(1));
    assert_eq!(whole, read(limits, stream, 1 + usize::from(cut)));
    let (records, _) = whole;
    assert!(records.iter().map(Bytes::len).sum::<usize>() <= stream.len());
    assert!(records.iter().all(|r| r.len() <= limits.record_max_bytes));
    for one in &records {
        let mut message = Enc::new();
        message.raw(one);
        let framed = record::frame_in(message, 1 + usize::from(cut)).concat();
        let limits = Limits { record_max_bytes: one.len(), fragments_max: 1 + one.len() };
        assert_eq!(read(limits, &framed, 7), (vec![one.clone()], None));
    }
}

fn read(limits: Limits, stream: &[u8], chunk: usize) -> (Vec<Bytes>, Option<RecordError>) {
    let mut reader = Reader::new(limits);
    let mut records = Vec::new();
    for mut part in stream.chunks(chunk) {
        loop {
            match reader.feed(&mut part) {
                Ok(Some(record)) => records.push(record),
                Ok(None) => break,
                Err(e) => return (records, Some(e)),
            }
        }
    }
    (records, None)
}

fn record_seed(s: &mut Source<'_>) -> Vec<u8> {
    let mut out = vec![255, 20, s.byte()];
    for _ in 0..=s.below(3) {
        let mut message = Enc::new();
        message.raw(&s.bytes(400));
        out.extend(record::frame_in(message, 1 + s.below(600)).concat());
    }
    out
}

/// RPC headers and the AUTH_SYS credential in them.
pub fn rpc_message(data: &[u8]) {
    let message = Bytes::copy_from_slice(data);
    let (mut again, body) = match Message::decode(&message) {
        Ok(Message::Call(header, body)) => {
            auth_sys(&header.cred);
            gss(&header.cred, &body);
            (Enc::of(&header), body)
        }
        Ok(Message::Reply(header, body)) => (Enc::of(&header), body),
        Ok(Message::UnknownVersion { .. }) | Err(_) => return,
    };
    again.raw(&body);
    assert_eq!(again.to_bytes(), message);
}

fn auth_sys(cred: &OpaqueAuth) {
    if let Ok(Some(sys)) = cred.as_sys() {
        assert_eq!(&OpaqueAuth::sys(&sys), cred);
    }
}

/// The credential of RPCSEC_GSS, and bodies of its calls for contexts. Padding is not compared.
fn gss(cred: &OpaqueAuth, body: &Bytes) {
    if let Ok(Some(gss)) = cred.as_gss() {
        assert_eq!(OpaqueAuth::gss(&gss).as_gss(), Ok(Some(gss)));
    }
    if let Ok(args) = Dec::all::<InitArgs>(body) {
        assert_eq!(Dec::all(&Enc::of(&args).to_bytes()), Ok(args));
    }
    if let Ok(res) = Dec::all::<InitRes>(body) {
        assert_eq!(Dec::all(&Enc::of(&res).to_bytes()), Ok(res));
    }
}

fn rpc_message_seed(s: &mut Source<'_>) -> Vec<u8> {
    use hither_proto::rpc::{AuthSys, CallHeader, ReplyHeader};
    match s.below(4) {
        0 => encoded(&ReplyHeader::sample(s)),
        1 => encoded(&CallHeader::sample(s)),
        2 => {
            let cred = OpaqueAuth::gss(&GssCred::sample(s));
            let mut call = encoded(&CallHeader { cred, ..CallHeader::sample(s) });
            call.extend(encoded(&InitArgs::sample(s)));
            call
        }
        _ => {
            let cred = OpaqueAuth::sys(&AuthSys::sample(s));
            encoded(&CallHeader { cred, ..CallHeader::sample(s) })
        }
    }
}

/// Checks a call or reply whose procedure number is `$n`.
macro_rules! procedure {
    ($any:ty, $proc:path, $n:expr, $body:expr) => {
        if let Ok(Some(value)) = <$any>::decode($proc($n), $body) {
            let mut e = Enc::new();
            value.encode(&mut e);
            // Padding bytes are ignored by the reader, and the writer sets them to zero.
            let again = e.to_bytes();
            assert_eq!(again.len(), $body.len(), "{value:?}");
            assert_eq!(<$any>::decode($proc($n), &again), Ok(Some(value)));
        }
    };
}

/// A seed for [`procedure!`]: `$first` chooses the kind, then the procedure number, then the body.
macro_rules! procedure_seed {
    ($first:expr, $any:ty, $s:expr) => {{
        let value = <$any>::sample($s);
        let mut e = Enc::new();
        value.encode(&mut e);
        [&[$first, value.procedure().0 as u8], &e.to_bytes()[..]].concat()
    }};
}

/// Portmap and rpcbind, calls and replies, and universal addresses.
pub fn portmap(data: &[u8]) {
    let Some((&[kind, n], body)) = data.split_first_chunk::<2>() else { return };
    let body = &Bytes::copy_from_slice(body);
    match kind % 5 {
        0 => procedure!(pmap::PortmapCall, pmap::PortmapProc, u32::from(n), body),
        1 => procedure!(pmap::PortmapReply, pmap::PortmapProc, u32::from(n), body),
        2 => procedure!(pmap::RpcbindCall, pmap::RpcbindProc, u32::from(n), body),
        3 => procedure!(pmap::RpcbindReply, pmap::RpcbindProc, u32::from(n), body),
        _ => {
            if let Some(addr) = pmap::parse_universal(body) {
                assert_eq!(pmap::parse_universal(pmap::format_universal(&addr).as_bytes()), Some(addr));
            }
        }
    }
}

fn portmap_seed(s: &mut Source<'_>) -> Vec<u8> {
    match s.below(5) {
        0 => procedure_seed!(0, pmap::PortmapCall, s),
        1 => procedure_seed!(1, pmap::PortmapReply, s),
        2 => procedure_seed!(2, pmap::RpcbindCall, s),
        3 => procedure_seed!(3, pmap::RpcbindReply, s),
        _ => [&b"\x04\x00"[..], b"192.0.2.1.8.1"].concat(),
    }
}

/// MOUNT, calls and replies.
pub fn mount(data: &[u8]) {
    let Some((&[kind, n], body)) = data.split_first_chunk::<2>() else { return };
    let body = &Bytes::copy_from_slice(body);
    match kind % 2 {
        0 => procedure!(mnt::MountCall, mnt::MountProc, u32::from(n), body),
        _ => procedure!(mnt::MountReply, mnt::MountProc, u32::from(n), body),
    }
}

fn mount_seed(s: &mut Source<'_>) -> Vec<u8> {
    match s.below(2) {
        0 => procedure_seed!(0, mnt::MountCall, s),
        _ => procedure_seed!(1, mnt::MountReply, s),
    }
}

/// Arguments of the procedures of NFSv3.
pub fn nfs3_call(data: &[u8]) {
    let Some((&[_, n], body)) = data.split_first_chunk::<2>() else { return };
    procedure!(nfs3::Call3, nfs3::Proc3, u32::from(n), &Bytes::copy_from_slice(body));
}

fn nfs3_call_seed(s: &mut Source<'_>) -> Vec<u8> {
    procedure_seed!(0, nfs3::Call3, s)
}

/// Results of the procedures of NFSv3.
pub fn nfs3_reply(data: &[u8]) {
    let Some((&[_, n], body)) = data.split_first_chunk::<2>() else { return };
    procedure!(nfs3::Reply3, nfs3::Proc3, u32::from(n), &Bytes::copy_from_slice(body));
}

fn nfs3_reply_seed(s: &mut Source<'_>) -> Vec<u8> {
    procedure_seed!(0, nfs3::Reply3, s)
}

/// HELLO's number has more than eight bits. Its lowest eight bits are unique.
fn nqnfs_proc(n: u8) -> u32 {
    if u32::from(n) == nqnfs::NqProc::HELLO.0 & 0xff { nqnfs::NqProc::HELLO.0 } else { u32::from(n) }
}

/// Arguments of the procedures of NQNFS, including EVICTED. Accepted handles of the server survive,
/// too.
pub fn nqnfs_call(data: &[u8]) {
    let Some((&[_, n], body)) = data.split_first_chunk::<2>() else { return };
    procedure!(nqnfs::NqCall, nqnfs::NqProc, nqnfs_proc(n), &Bytes::copy_from_slice(body));
    if let Some(fh) = nqnfs::Fh::from_bytes(body)
        && let Some(own) = fh.unpack()
    {
        assert_eq!(nqnfs::Fh::pack(&own), Some(fh));
    }
}

fn nqnfs_call_seed(s: &mut Source<'_>) -> Vec<u8> {
    procedure_seed!(0, nqnfs::NqCall, s)
}

/// Results of the procedures of NQNFS.
pub fn nqnfs_reply(data: &[u8]) {
    let Some((&[_, n], body)) = data.split_first_chunk::<2>() else { return };
    procedure!(nqnfs::NqReply, nqnfs::NqProc, nqnfs_proc(n), &Bytes::copy_from_slice(body));
}

fn nqnfs_reply_seed(s: &mut Source<'_>) -> Vec<u8> {
    procedure_seed!(0, nqnfs::NqReply, s)
}

/// NFSv4 COMPOUND arguments.
pub fn nfs4_compound_call(data: &[u8]) {
    again::<nfs4::Compound>(data);
}

/// NFSv4 COMPOUND results.
pub fn nfs4_compound_reply(data: &[u8]) {
    again::<nfs4::CompoundReply>(data);
}

/// NFSv4 attributes.
pub fn nfs4_attrs(data: &[u8]) {
    again::<nfs4::Attrs>(data);
}

/// NFSv4 callbacks: the first byte chooses between arguments and results.
pub fn nfs4_callback(data: &[u8]) {
    match data.split_first() {
        Some((0, body)) => again::<nfs4::CbCompound>(body),
        Some((_, body)) => again::<nfs4::CbCompoundReply>(body),
        None => {}
    }
}

fn nfs4_callback_seed(s: &mut Source<'_>) -> Vec<u8> {
    match s.below(2) {
        0 => [&[0], &encoded(&nfs4::CbCompound::sample(s))[..]].concat(),
        _ => [&[1], &encoded(&nfs4::CbCompoundReply::sample(s))[..]].concat(),
    }
}

/// An accepted value survives encoding and decoding. Bytes may differ: bitmaps may have superfluous
/// zero words, and operations after an unknown one are dropped.
fn again<T: Xdr + PartialEq + Debug>(data: &[u8]) {
    let body = Bytes::copy_from_slice(data);
    if let Ok(value) = Dec::all::<T>(&body) {
        assert_eq!(Dec::all::<T>(&Enc::of(&value).to_bytes()).as_ref(), Ok(&value));
    }
}

fn encoded<T: Xdr>(value: &T) -> Vec<u8> {
    Enc::of(value).to_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_accepted_by_their_targets() {
        for (name, check, seed) in TARGETS {
            for n in 0..200u32 {
                let bytes: Vec<u8> =
                    (0..500u32).map(|i| ((i + 7 * n).wrapping_mul(2_654_435_761) >> 13) as u8).collect();
                let input = seed(&mut Source::new(&bytes));
                check(&input);
                assert!(!input.is_empty(), "{name}");
            }
        }
    }
}
