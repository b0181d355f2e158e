//! Parsing of the kernel's messages: accepted and refused messages, without panics.

use super::*;
use bytes::Bytes;
use proptest::prelude::*;

fn request(opcode: u32, body: &[u8], ext: &[u8]) -> Bytes {
    let mut o = Out::default();
    o.u32((IN_HEADER_BYTES + body.len() + ext.len()) as u32).u32(opcode).u64(77).u64(5);
    o.u32(1000).u32(100).u32(4242).u16((ext.len() / 8) as u16).u16(0);
    o.bytes(body).bytes(ext);
    o.into_vec().into()
}

fn parse(buf: &Bytes) -> Result<(Header, Op), i32> {
    let (head, body) = Header::parse(buf)?;
    let op = Op::parse(head.opcode, body, true)?;
    Ok((head, op))
}

/// A LOOKUP request has a header and a name.
#[test]
fn lookup_is_parsed() {
    let (head, op) = parse(&request(opcode::LOOKUP, b"caf\xe9\0", b"")).unwrap();
    assert_eq!((head.unique, head.nodeid, head.uid, head.gid, head.tid), (77, 5, 1000, 100, 4242));
    assert!(matches!(op, Op::Lookup { name } if name.as_bytes() == b"caf\xe9"));
}

/// The payload of a WRITE is a slice of the request, without a copy.
#[test]
fn write_payload_is_not_copied() {
    let mut body = Out::default();
    body.u64(9).u64(4096).u32(5).u32(1).u64(0).u32(0).u32(0).bytes(b"hello");
    let buf = request(opcode::WRITE, &body.into_vec(), b"");
    let (_, op) = parse(&buf).unwrap();
    let Op::Write { fh: 9, offset: 4096, write_flags: 1, data, .. } = op else { panic!("{op:?}") };
    assert_eq!(&data[..], b"hello");
    assert_eq!(data.as_ptr(), buf[WRITE_HEAD_BYTES..].as_ptr());
}

/// The supplementary group is read from its extension, and other extensions are skipped.
#[test]
fn supplementary_group_is_parsed() {
    let mut ext = Out::default();
    ext.u32(16).u32(3).u64(0);
    ext.u32(16).u32(EXT_GROUPS).u32(1).u32(555);
    let mut body = Out::default();
    body.u32(0o644).u32(0o22).bytes(b"d\0");
    let (head, op) = parse(&request(opcode::MKDIR, &body.into_vec(), &ext.into_vec())).unwrap();
    assert_eq!(head.groups[..], [555]);
    let mode = NewMode { mode: 0o644, umask: 0o22 };
    assert!(matches!(op, Op::Mkdir { mode: m, name } if m == mode && name.as_bytes() == b"d"));
}

/// A request with a wrong length is refused.
#[test]
fn wrong_lengths_are_refused() {
    let whole = request(opcode::LOOKUP, b"abc\0", b"");
    assert_eq!(parse(&whole.slice(..whole.len() - 1)).unwrap_err(), libc::EINVAL);
    assert_eq!(parse(&request(opcode::LOOKUP, b"abc", b"")).unwrap_err(), libc::EINVAL);
    assert_eq!(parse(&request(opcode::LOOKUP, b"a/b\0", b"")).unwrap_err(), libc::EINVAL);
    let long = [b"x".repeat(256), vec![0]].concat();
    assert_eq!(parse(&request(opcode::LOOKUP, &long, b"")).unwrap_err(), libc::ENAMETOOLONG);
    let mut body = Out::default();
    body.u32(u32::MAX).u32(0).u64(1).u64(1);
    assert_eq!(parse(&request(opcode::BATCH_FORGET, &body.into_vec(), b"")).unwrap_err(), libc::EINVAL);
    let mut body = Out::default();
    body.u64(9).u64(0).u32(u32::MAX).u32(0).u64(0).u32(0).u32(0).bytes(b"hello");
    assert_eq!(parse(&request(opcode::WRITE, &body.into_vec(), b"")).unwrap_err(), libc::EINVAL);
}

/// Reply bodies have the sizes of the kernel's layouts.
#[test]
fn reply_sizes_match_kernel() {
    let attr = hither_vfs::Attr {
        kind: hither_vfs::FileKind::Directory,
        mode: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: (0, 0),
        size_bytes: 0,
        used_bytes: 0,
        fsid: (0, 0),
        fileid: 1,
        atime: Default::default(),
        mtime: Default::default(),
        ctime: Default::default(),
        change: 0,
    };
    assert_eq!(attr_out(1, &attr, Default::default()).len(), 104);
    let mut o = Out::default();
    let e = EntryReply {
        nodeid: 1,
        ino: 1,
        entry_valid: Default::default(),
        attr_valid: Default::default(),
        attr: Some(&attr),
    };
    entry_out(&mut o, &e);
    assert_eq!(o.len(), 128);
    let out = InitOut { max_readahead: 0, flags: 0, max_background: 4, max_write_bytes: 1 << 20 };
    assert_eq!(out.encode().len(), 64);
}

proptest! {
    /// Parsing ends without a panic for all bytes.
    #[test]
    fn parser_survives_any_body(code in 0u32..64, body in prop::collection::vec(any::<u8>(), 0..200), ext: bool) {
        let ext_bytes = if ext { body.len() / 8 * 8 } else { 0 };
        let (body, tail) = body.split_at(body.len() - ext_bytes);
        let _ = parse(&request(code, body, tail));
    }

    /// Parsing raw bytes without a valid header ends without a panic.
    #[test]
    fn parser_survives_raw_bytes(raw in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&raw.into());
    }
}
