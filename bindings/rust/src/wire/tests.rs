//! Each side reads the messages of the other side and refuses all other bytes.

use super::*;

fn requests() -> Vec<Request<'static>> {
    vec![
        Request::Hello(VERSION),
        Request::Open(b"a/b", OPEN_READ | OPEN_CREATE, 0o640),
        Request::Close(7),
        Request::Read(7, 1 << 40, IO_MAX_BYTES),
        Request::Write(7, 3, WRITE_STABLE, b"bytes"),
        Request::Sync(7),
        Request::SetLen(7, 1 << 33),
        Request::StatFile(7),
        Request::StatMany(NO_FOLLOW, vec![b"", b"a", b"b/c"]),
        Request::ReadMany(vec![
            Part { path: b"a", offset: 1, len: 2 },
            Part { path: b"b", offset: 0, len: 9 },
        ]),
        Request::ReadLink(b"l"),
        Request::List(b"/"),
        Request::Walk(b"d", 3),
        Request::Watch(vec![b"w"]),
        Request::Mkdir(b"d", 0o755),
        Request::Remove(b"d", 1),
        Request::Rename(b"a", b"b", RENAME_NOREPLACE),
        Request::Symlink(b"to", b"l"),
        Request::Lend(7),
        Request::More(3, 16),
        Request::Cancel(3),
    ]
}

/// An encoded request decodes to the same request. A shorter or longer body is refused.
#[test]
fn requests_survive_the_wire() {
    for request in requests() {
        let mut out = Vec::new();
        request.encode(5, &mut out);
        let head: [u8; HEADER_BYTES] = out[..HEADER_BYTES].try_into().unwrap();
        let header = Header::decode(&head).unwrap();
        let body = &out[HEADER_BYTES..];
        assert_eq!((header.id, header.op, header.len as usize), (5, request.op(), body.len()));
        assert_eq!(Request::decode(header.op, body).as_ref(), Ok(&request));
        for end in 0..body.len() {
            assert!(Request::decode(header.op, &body[..end]).is_err(), "{request:?} cut to {end}");
        }
        let mut longer = body.to_vec();
        longer.push(0);
        assert!(Request::decode(header.op, &longer).is_err(), "{request:?} with a byte more");
    }
}

/// Lengths and counts beyond their bounds are refused before memory is allocated.
#[test]
fn excessive_lengths_are_refused() {
    let header = Header { len: BODY_MAX_BYTES as u32 + 1, id: 0, op: op::READ, flags: 0 };
    assert!(Header::decode(&header.encode()).is_err());
    let many = u32::MAX.to_le_bytes();
    assert!(Request::decode(op::READ_MANY, &many).is_err());
    assert!(Request::decode(op::WATCH, &many).is_err());
    let mut out = Vec::new();
    Request::Read(1, 0, IO_MAX_BYTES + 1).encode(0, &mut out);
    assert!(Request::decode(op::READ, &out[HEADER_BYTES..]).is_err());
    assert!(Request::decode(99, b"").is_err());
    assert!(Request::decode(op::HELLO, b"http/1").is_err());
}

/// Each part of a reply decodes to the encoded value.
#[test]
fn replies_survive_the_wire() {
    let attr = Attr {
        kind: Kind::Fifo,
        mode: 0o4755,
        nlink: 2,
        uid: 3,
        gid: 4,
        rdev: (5, 6),
        size: 7,
        used: 8,
        fsid: (9, 10),
        fileid: 11,
        atime: (-12, 13),
        mtime: (14, 15),
        ctime: (16, 17),
        change: 18,
    };
    let mut out = Vec::new();
    attr.encode(&mut out);
    assert_eq!(out.len(), Attr::BYTES);
    assert_eq!(Attr::decode(&mut Reader(&out)), Ok(attr));
    out.clear();
    let (one, two) = (Stated { index: 1, attr: Ok(attr) }, Stated { index: 2, attr: Err(2) });
    one.encode(&mut out);
    two.encode(&mut out);
    let mut r = Reader(&out);
    assert_eq!((Stated::decode(&mut r), Stated::decode(&mut r)), (Ok(one), Ok(two)));
    assert!(r.is_empty());
    out.clear();
    Piece::encode_head(3, Ok((10, 2)), &mut out);
    assert_eq!(out.len(), Piece::BYTES);
    out.extend(b"xy");
    let piece = Piece { index: 3, read: Ok((10, &b"xy"[..])) };
    assert_eq!(Piece::decode(&mut Reader(&out)), Ok(piece));
    out.clear();
    let entry = Entry { name: b"n", attr: Ok(attr) };
    entry.encode(&mut out);
    assert_eq!(Entry::decode(&mut Reader(&out)), Ok(entry));
    out.clear();
    encode_error(13, "why", &mut out);
    assert_eq!(decode_error(&out), Ok((13, "why".into())));
    let hello = Hello { version: 1, read_only: true, dir: b"/m".to_vec(), source: b"s:/x".to_vec() };
    out.clear();
    hello.encode(&mut out);
    assert_eq!(Hello::decode(&out), Ok(hello));
}
