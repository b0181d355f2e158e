//! Data: READ, WRITE and COMMIT (RFC 8881 sections 18.3, 18.22, 18.32).

use super::bench::{Bench, Checked};
use super::{Case, case};
use bytes::Bytes;
use hither_proto::nfs4::open::{SHARE_ACCESS_BOTH, SHARE_ACCESS_READ, SHARE_ACCESS_WRITE};
use hither_proto::nfs4::{Nfsstat4 as S, *};

/// A stateid that no server has issued.
pub const NOBODYS: Stateid = Stateid { seqid: 1, other: [9; 12] };
/// The allowed statuses for an unknown stateid.
pub const UNKNOWN: [S; 3] = [S::BAD_STATEID, S::STALE_STATEID, S::EXPIRED];
/// The allowed statuses for an object that cannot be read or written.
const WRONG: [S; 3] = [S::WRONG_TYPE, S::INVAL, S::SYMLINK];

fn write(id: Stateid, offset: u64) -> Op {
    Op::write(id, offset, StableHow::FILE_SYNC, Bytes::from_static(b"bytes"))
}

/// Opens the file and sends an operation with its stateid.
fn opened(b: &mut Bench, access: u32, op: impl Fn(Stateid) -> Op, expected: &[S]) -> Checked {
    let (id, fh) = b.client.open(&b.dir.clone(), b"f", access, 0)?;
    b.at(&fh, vec![op(id)], expected)
}

/// Sends an operation while another client has the file open and denies this access.
fn denied(b: &mut Bench, deny: u32, op: Op, expected: &[S]) -> Checked {
    let mut other = b.another()?;
    let (id, fh) = other.open(&b.dir, b"f", SHARE_ACCESS_READ, deny)?;
    b.at(&fh, vec![op], expected)?;
    other.ok(vec![Op::putfh(&fh), Op::close(id)]).map(drop)
}

pub fn cases() -> Vec<Case> {
    let mut all = reads();
    all.extend(writes());
    all
}

fn reads() -> Vec<Case> {
    vec![
        case("READ OK", |b| opened(b, SHARE_ACCESS_READ, |id| Op::read(id, 0, 100), &[S::OK])),
        case("READ OK of nothing", |b| opened(b, SHARE_ACCESS_READ, |id| Op::read(id, 0, 0), &[S::OK])),
        case("READ OK beyond the end", |b| {
            let (id, fh) = b.client.open(&b.dir.clone(), b"f", SHARE_ACCESS_READ, 0)?;
            let mut r = b.client.ok(vec![Op::putfh(&fh), Op::read(id, 1 << 40, 10)])?;
            r.putfh().map_err(|e| e.to_string())?;
            let read = r.read().map_err(|e| e.to_string())?;
            if read.eof && read.data.is_empty() { Ok(()) } else { Err(format!("{read:?}")) }
        }),
        case("READ OK without open", |b| {
            b.at(&b.file.clone(), vec![Op::read(Stateid::ANONYMOUS, 0, 10)], &[S::OK])
        }),
        case("READ OK with the current stateid", |b| {
            let args = super::bench::open_args(b"o", SHARE_ACCESS_READ, OpenClaim::Null(b"f"[..].into()));
            b.here(
                vec![Op::Open(args), Op::read(Stateid::CURRENT, 0, 10), Op::close(Stateid::CURRENT)],
                &[S::OK],
            )
        }),
        case("READ OK with any sequence number", |b| {
            opened(b, SHARE_ACCESS_READ, |id| Op::read(id.any_seqid(), 0, 10), &[S::OK])
        }),
        case("READ BAD_STATEID", |b| b.at(&b.file.clone(), vec![Op::read(NOBODYS, 0, 10)], &UNKNOWN)),
        case("READ BAD_STATEID of the future", |b| {
            let later = |id: Stateid| Op::read(Stateid { seqid: id.seqid + 5, ..id }, 0, 10);
            opened(b, SHARE_ACCESS_READ, later, &[S::BAD_STATEID])
        }),
        case("READ OLD_STATEID", |b| {
            let dir = b.dir.clone();
            let (old, fh) = b.client.open(&dir, b"f", SHARE_ACCESS_READ, 0)?;
            b.client.open(&dir, b"f", SHARE_ACCESS_BOTH, 0)?;
            b.at(&fh, vec![Op::read(old, 0, 10)], &[S::OLD_STATEID])
        }),
        case("READ BAD_STATEID of another client", |b| {
            let mut other = b.another()?;
            let (id, fh) = other.open(&b.dir, b"f", SHARE_ACCESS_READ, 0)?;
            b.at(&fh, vec![Op::read(id, 0, 10)], &UNKNOWN)
        }),
        case("READ BAD_STATEID of another file", |b| {
            let dir = b.dir.clone();
            let (id, _) = b.client.open(&dir, b"n", SHARE_ACCESS_BOTH, 0)?;
            b.at(&b.file.clone(), vec![Op::read(id, 0, 10)], &[S::BAD_STATEID])
        }),
        case("READ BAD_STATEID without current", |b| {
            b.at(&b.file.clone(), vec![Op::read(Stateid::CURRENT, 0, 10)], &[S::BAD_STATEID])
        }),
        case("READ OPENMODE", |b| {
            // A server may allow the reads that clients need to complete pages.
            opened(b, SHARE_ACCESS_WRITE, |id| Op::read(id, 0, 10), &[S::OPENMODE, S::OK])
        }),
        case("READ LOCKED", |b| {
            denied(b, open::SHARE_DENY_READ, Op::read(Stateid::ANONYMOUS, 0, 10), &[S::LOCKED])
        }),
        case("READ ISDIR", |b| b.here(vec![Op::read(Stateid::ANONYMOUS, 0, 10)], &[S::ISDIR])),
        case("READ of link", |b| b.at(&b.link.clone(), vec![Op::read(Stateid::ANONYMOUS, 0, 10)], &WRONG)),
        case("READ of fifo", |b| b.at(&b.fifo.clone(), vec![Op::read(Stateid::ANONYMOUS, 0, 10)], &WRONG)),
        case("READ NOFILEHANDLE", |b| b.nowhere(Op::read(Stateid::ANONYMOUS, 0, 10))),
    ]
}

fn writes() -> Vec<Case> {
    vec![
        case("WRITE OK", |b| opened(b, SHARE_ACCESS_WRITE, |id| write(id, 3), &[S::OK])),
        case("WRITE OK of nothing", |b| {
            let nothing = |id| Op::write(id, 0, StableHow::UNSTABLE, Bytes::new());
            opened(b, SHARE_ACCESS_WRITE, nothing, &[S::OK])
        }),
        case("WRITE INVAL", |b| {
            let how = |id| Op::write(id, 0, StableHow(7), Bytes::from_static(b"x"));
            let checked = opened(b, SHARE_ACCESS_WRITE, how, &[S::INVAL, S::BADXDR]);
            // The server may refuse the whole call before it executes an operation.
            checked.or_else(|why| if why.contains("GarbageArgs") { Ok(()) } else { Err(why) })
        }),
        case("WRITE FBIG", |b| {
            opened(b, SHARE_ACCESS_WRITE, |id| write(id, u64::MAX - 2), &[S::FBIG, S::INVAL])
        }),
        case("WRITE OPENMODE", |b| opened(b, SHARE_ACCESS_READ, |id| write(id, 0), &[S::OPENMODE])),
        case("WRITE BAD_STATEID", |b| b.at(&b.file.clone(), vec![write(NOBODYS, 0)], &UNKNOWN)),
        case("WRITE LOCKED", |b| {
            denied(b, open::SHARE_DENY_WRITE, write(Stateid::ANONYMOUS, 0), &[S::LOCKED])
        }),
        case("WRITE ISDIR", |b| b.here(vec![write(Stateid::ANONYMOUS, 0)], &[S::ISDIR])),
        case("WRITE of link", |b| b.at(&b.link.clone(), vec![write(Stateid::ANONYMOUS, 0)], &WRONG)),
        case("WRITE NOFILEHANDLE", |b| b.nowhere(write(Stateid::ANONYMOUS, 0))),
        case("COMMIT OK", |b| b.at(&b.file.clone(), vec![Op::commit(0, 0)], &[S::OK])),
        case("COMMIT ISDIR", |b| b.here(vec![Op::commit(0, 0)], &[S::ISDIR])),
        case("COMMIT of link", |b| b.at(&b.link.clone(), vec![Op::commit(0, 0)], &WRONG)),
        case("COMMIT NOFILEHANDLE", |b| b.nowhere(Op::commit(0, 0))),
    ]
}
