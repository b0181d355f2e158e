//! The bytes of a READ beside other results of its compound (RFC 8881 section 18.22).
//!
//! A server encodes the results of a compound one after another. The bytes of each READ are those
//! of the file, wherever they begin in the reply.

use super::bench::{Bench, Checked};
use super::{Case, case};
use bytes::Bytes;
use hither_proto::nfs4::*;

/// Length of the file in bytes: several pages, and no multiple of a page.
const LEN: usize = 20_010;

/// The byte at an offset. No two pages are equal.
fn byte(offset: usize) -> u8 {
    (offset % 251) as u8 ^ (offset >> 12) as u8
}

/// Writes the file of the fixture.
fn fill(b: &mut Bench) -> Result<Fh, String> {
    let data: Bytes = (0..LEN).map(byte).collect();
    let (id, fh) = b.client.open(&b.dir.clone(), b"f", open::SHARE_ACCESS_WRITE, 0)?;
    let write = Op::write(id, 0, StableHow::FILE_SYNC, data);
    b.client.ok(vec![Op::putfh(&fh), write, Op::close(id)])?;
    Ok(fh)
}

/// Sends `before`, then reads of these offsets and lengths, then GETATTR. Compares the bytes.
fn read_after(b: &mut Bench, before: Vec<Op>, reads: &[(usize, usize)]) -> Checked {
    let fh = fill(b)?;
    let skipped = before.len() + 1;
    let read = |&(offset, len): &(usize, usize)| Op::read(Stateid::ANONYMOUS, offset as u64, len as u32);
    let mut ops = before;
    ops.push(Op::putfh(&fh));
    ops.extend(reads.iter().map(read));
    ops.push(Op::getattr(&Bitmap4::of(&[attr::SIZE])));
    let mut results = b.client.ok(ops)?;
    (0..skipped).for_each(|_| drop(results.take_any()));
    for (offset, len) in reads {
        let data = results.read().map_err(|e| e.to_string())?.data;
        let expected: Vec<u8> = (*offset..LEN.min(offset + len)).map(byte).collect();
        if data.len() != expected.len() {
            return Err(format!("READ at {offset}: {} bytes instead of {}", data.len(), expected.len()));
        }
        if let Some(at) = data.iter().zip(&expected).position(|(have, want)| have != want) {
            return Err(format!("READ at {offset}: byte {at} of {} is not that of the file", data.len()));
        }
    }
    Ok(())
}

/// READDIR of a directory with more names than fit in a page of the reply.
fn long_readdir(b: &mut Bench) -> Result<Vec<Op>, String> {
    for n in 0..60 {
        let name = format!("a-name-of-some-length-that-fills-replies-{n:04}");
        let at = [
            Op::putfh(&b.sub),
            Op::create(CreateType::Link(b"f"[..].into()), name.as_bytes(), Attrs::default()),
        ];
        b.client.ok(at.to_vec())?;
    }
    let (attr_request, maxcount) = (Bitmap4::of(&[attr::SIZE, attr::FILEID]), 16 << 10);
    let list = ReaddirArgs { cookie: 0, cookieverf: [0; 8], dircount: maxcount, maxcount, attr_request };
    Ok(vec![Op::putfh(&b.sub), Op::Readdir(list)])
}

pub fn cases() -> Vec<Case> {
    vec![
        case("READ bytes alone", |b| read_after(b, vec![], &[(0, LEN)])),
        case("READ bytes in two parts", |b| read_after(b, vec![], &[(0, 8192), (8192, 8192)])),
        case("READ bytes in two odd parts", |b| read_after(b, vec![], &[(0, 5000), (5000, 9000)])),
        case("READ bytes in small parts", |b| {
            read_after(b, vec![], &[(0, 10), (10, 10), (20, 10), (30, 10)])
        }),
        case("READ bytes after READLINK", |b| {
            let link = vec![Op::putfh(&b.link), Op::Readlink];
            read_after(b, link, &[(0, LEN)])
        }),
        case("READ bytes after many GETATTR", |b| {
            // A server takes no request for the times that SETATTR sets.
            let set_only = [attr::TIME_ACCESS_SET, attr::TIME_MODIFY_SET];
            let all: Vec<u32> = (0..56).filter(|number| !set_only.contains(number)).collect();
            let mut ops = vec![Op::putfh(&b.dir)];
            ops.extend((0..11).map(|_| Op::getattr(&Bitmap4::of(&all))));
            read_after(b, ops, &[(0, LEN)])
        }),
        case("READ bytes after short READDIR", |b| {
            let attr_request = Bitmap4::of(&[attr::SIZE]);
            let list =
                ReaddirArgs { cookie: 0, cookieverf: [0; 8], dircount: 8192, maxcount: 8192, attr_request };
            read_after(b, vec![Op::putfh(&b.dir), Op::Readdir(list)], &[(0, LEN)])
        }),
        case("READ bytes after long READDIR", |b| {
            let list = long_readdir(b)?;
            read_after(b, list, &[(0, LEN)])
        }),
    ]
}
