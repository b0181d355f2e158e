//! COPY, CLONE, OFFLOAD_STATUS and OFFLOAD_CANCEL (RFC 7862 sections 15.2, 15.8, 15.9, 15.13).
//!
//! All of them are optional.

use super::bench::{Bench, Checked, is_one_of};
use super::files::{NOBODYS, UNKNOWN};
use super::newer::OPTIONAL;
use super::state::lock;
use super::{Case, case};
use hither_proto::nfs4::open::{SHARE_ACCESS_BOTH, SHARE_ACCESS_READ, SHARE_ACCESS_WRITE};
use hither_proto::nfs4::{Nfsstat4 as S, *};

const ANYONE: Stateid = Stateid::ANONYMOUS;
const BOTH: [u32; 2] = [SHARE_ACCESS_BOTH; 2];
const INVAL: [S; 2] = [S::INVAL, S::NOTSUPP];
const OPENMODE: [S; 2] = [S::OPENMODE, S::NOTSUPP];
const LOCKED: [S; 2] = [S::LOCKED, S::NOTSUPP];
const OLD: [S; 2] = [S::OLD_STATEID, S::NOTSUPP];
const NO_HANDLE: [S; 2] = [S::NOFILEHANDLE, S::NOTSUPP];
/// The allowed statuses for an unknown stateid.
const NO_STATE: [S; 4] = [UNKNOWN[0], UNKNOWN[1], UNKNOWN[2], S::NOTSUPP];

/// Makes COPY or CLONE of a range from stateids.
type Make = fn(Stateid, Stateid) -> Op;

/// COPY of five bytes from the start of the source.
pub fn copy_args(src_stateid: Stateid, dst_stateid: Stateid) -> CopyArgs {
    CopyArgs {
        src_stateid,
        dst_stateid,
        src_offset: 0,
        dst_offset: 3,
        count: 5,
        consecutive: true,
        synchronous: true,
        source_server: Vec::new().into(),
    }
}

fn copy(src: Stateid, dst: Stateid) -> Op {
    Op::Copy(copy_args(src, dst))
}

/// CLONE of the whole source.
fn clone_args(src_stateid: Stateid, dst_stateid: Stateid) -> CloneArgs {
    CloneArgs { src_stateid, dst_stateid, src_offset: 0, dst_offset: 0, count: 0 }
}

fn clone(src: Stateid, dst: Stateid) -> Op {
    Op::Clone(clone_args(src, dst))
}

/// Two open files: `f`, of ten bytes, and a new one.
struct Pair {
    from: Fh,
    to: Fh,
    src: Stateid,
    dst: Stateid,
}

impl Pair {
    fn open(b: &mut Bench, access: [u32; 2]) -> Result<Self, String> {
        let dir = b.dir.clone();
        let (src, from) = b.client.open(&dir, b"f", access[0], 0)?;
        let (dst, to) = b.client.open(&dir, b"n", access[1], 0)?;
        Ok(Self { from, to, src, dst })
    }

    /// The compound up to the operation.
    fn ops(&self, op: Op) -> Vec<Op> {
        vec![Op::putfh(&self.from), Op::Savefh, Op::putfh(&self.to), op]
    }
}

/// Sends an operation on both files, which are open with the given access.
fn on_pair(b: &mut Bench, access: [u32; 2], op: impl Fn(&Pair) -> Op, expected: &[S]) -> Checked {
    let pair = Pair::open(b, access)?;
    b.client.ends(pair.ops(op(&pair)), expected)
}

/// As [`on_pair`], a COPY with other arguments.
fn copied(b: &mut Bench, access: [u32; 2], args: impl Fn(CopyArgs) -> CopyArgs, expected: &[S]) -> Checked {
    on_pair(b, access, |pair| Op::Copy(args(copy_args(pair.src, pair.dst))), expected)
}

/// As [`on_pair`], a CLONE with other arguments.
fn cloned(b: &mut Bench, args: impl Fn(CloneArgs) -> CloneArgs, expected: &[S]) -> Checked {
    on_pair(b, BOTH, |pair| Op::Clone(args(clone_args(pair.src, pair.dst))), expected)
}

/// Sends an operation with these objects as source and destination.
fn between(b: &mut Bench, from: &Fh, to: &Fh, op: Op, expected: &[S]) -> Checked {
    b.at(from, vec![Op::Savefh, Op::putfh(to), op], expected)
}

/// Sends COPY and compares the bytes of the destination afterwards.
fn becomes(b: &mut Bench, args: impl Fn(CopyArgs) -> CopyArgs, expected: &[u8]) -> Checked {
    let pair = Pair::open(b, BOTH)?;
    let results = b.client.run(pair.ops(Op::Copy(args(copy_args(pair.src, pair.dst)))))?;
    if results.status() == S::NOTSUPP {
        return Ok(());
    }
    is_one_of(results.status(), &[S::OK])?;
    let mut r = b.client.ok(vec![Op::putfh(&pair.to), Op::read(pair.dst, 0, 100)])?;
    r.putfh().map_err(|e| e.to_string())?;
    let read = r.read().map_err(|e| e.to_string())?.data;
    let read: &[u8] = &read;
    if read == expected { Ok(()) } else { Err(format!("the destination has {}", read.escape_ascii())) }
}

/// Sends an operation while another client has one of the files open and denies this access.
fn denied(b: &mut Bench, name: &[u8], deny: u32, make: Make) -> Checked {
    let pair = Pair::open(b, [SHARE_ACCESS_READ; 2])?;
    let closing = [(&pair.from, pair.src), (&pair.to, pair.dst)];
    let closing = closing.map(|(fh, id)| [Op::putfh(fh), Op::close(id)]);
    b.client.ok(closing.concat())?;
    let mut other = b.another()?;
    other.open(&b.dir, name, SHARE_ACCESS_READ, deny)?;
    b.client.ends(pair.ops(make(ANYONE, ANYONE)), &LOCKED)
}

pub fn cases() -> Vec<Case> {
    let mut all = copies();
    all.extend(copy_ranges());
    all.extend(copy_objects());
    all.extend(copy_stateids());
    all.extend(clones());
    all.extend(clone_state());
    all.extend(offloads());
    all
}

/// Sends COPY from another server, which does not exist.
fn from_server(b: &mut Bench, server: Netloc) -> Checked {
    let from = |args| CopyArgs { source_server: vec![server.clone()].into(), ..args };
    let refused = [S::OFFLOAD_DENIED, S::PARTNER_NOTSUPP, S::PARTNER_NO_AUTH, S::NOTSUPP];
    copied(b, BOTH, from, &refused)
}

fn copies() -> Vec<Case> {
    vec![
        case("COPY OK", |b| copied(b, BOTH, |args| args, &OPTIONAL)),
        case("COPY OK to the end", |b| copied(b, BOTH, |args| CopyArgs { count: 0, ..args }, &OPTIONAL)),
        case("COPY OK at the end", |b| {
            copied(b, BOTH, |args| CopyArgs { src_offset: 10, count: 0, ..args }, &OPTIONAL)
        }),
        case("COPY OK bytes", |b| becomes(b, |args| args, b"\0\0\x0001234")),
        case("COPY OK bytes of whole file", |b| {
            becomes(b, |args| CopyArgs { dst_offset: 0, count: 0, ..args }, b"0123456789")
        }),
        case("COPY OK bytes of the rest", |b| {
            becomes(b, |args| CopyArgs { src_offset: 6, dst_offset: 0, count: 0, ..args }, b"6789")
        }),
        case("COPY OK over a lock", |b| {
            // Locks of ranges are advisory, or mandatory.
            let mut other = b.another()?;
            let (id, fh) = other.open(&b.dir, b"n", SHARE_ACCESS_BOTH, 0)?;
            other.ok(vec![Op::putfh(&fh), lock(id, b"o", (0, 100), false)])?;
            copied(b, BOTH, |args| args, &[S::OK, S::LOCKED, S::NOTSUPP])
        }),
        case("COPY asynchronous", |b| {
            let pair = Pair::open(b, BOTH)?;
            let args = CopyArgs { synchronous: false, ..copy_args(pair.src, pair.dst) };
            let mut r = b.client.run(pair.ops(Op::Copy(args)))?;
            if r.status() != S::OK {
                return is_one_of(r.status(), &[S::NOTSUPP, S::OFFLOAD_NO_REQS, S::OFFLOAD_DENIED]);
            }
            (0..3).for_each(|_| drop(r.take_any()));
            let copied = r.copy().map_err(|e| e.to_string())?.response;
            let Some(id) = copied.callback_id else { return Ok(()) };
            // The copy may have ended meanwhile.
            let known = [S::OK, S::BAD_STATEID];
            b.at(&pair.to, vec![Op::OffloadStatus(id)], &known)
        }),
        case("COPY from another server", |b| {
            let (netid, addr) = (b"tcp"[..].into(), b"192.0.2.1.8.1"[..].into());
            from_server(b, Netloc::Addr(Netaddr { netid, addr }))
        }),
        case("COPY from another server by name", |b| {
            from_server(b, Netloc::Name(b"nowhere.example"[..].into()))
        }),
    ]
}

fn copy_ranges() -> Vec<Case> {
    vec![
        case("COPY INVAL behind the end", |b| {
            copied(b, BOTH, |args| CopyArgs { src_offset: 11, ..args }, &INVAL)
        }),
        case("COPY INVAL behind the end of the rest", |b| {
            copied(b, BOTH, |args| CopyArgs { src_offset: 11, count: 0, ..args }, &INVAL)
        }),
        case("COPY INVAL across the end", |b| {
            copied(b, BOTH, |args| CopyArgs { src_offset: 8, ..args }, &INVAL)
        }),
        case("COPY INVAL of endless range", |b| {
            copied(b, BOTH, |args| CopyArgs { src_offset: 5, count: u64::MAX, ..args }, &INVAL)
        }),
        case("COPY FBIG", |b| {
            let far = |args| CopyArgs { dst_offset: u64::MAX - 2, ..args };
            copied(b, BOTH, far, &[S::FBIG, S::INVAL, S::NOTSUPP])
        }),
        case("COPY FBIG of signed offset", |b| {
            let far = |args| CopyArgs { dst_offset: i64::MAX as u64, ..args };
            copied(b, BOTH, far, &[S::FBIG, S::INVAL, S::NOTSUPP])
        }),
        case("COPY INVAL within a file", |b| {
            let (id, fh) = b.client.open(&b.dir.clone(), b"f", SHARE_ACCESS_BOTH, 0)?;
            between(b, &fh, &fh, copy(id, id), &INVAL)
        }),
        case("COPY INVAL within a file apart", |b| {
            let (id, fh) = b.client.open(&b.dir.clone(), b"f", SHARE_ACCESS_BOTH, 0)?;
            let args = CopyArgs { dst_offset: 100, ..copy_args(id, id) };
            between(b, &fh, &fh, Op::Copy(args), &INVAL)
        }),
    ]
}

/// A case of a source or a destination that is no regular file. `further` is allowed as well.
fn wrong(name: &'static str, make: Make, pick: fn(&Bench) -> [&Fh; 2], further: S) -> Case {
    case(name, move |b| {
        let [from, to] = pick(b).map(Fh::clone);
        between(b, &from, &to, make(ANYONE, ANYONE), &[S::WRONG_TYPE, S::NOTSUPP, further])
    })
}

fn copy_objects() -> Vec<Case> {
    vec![
        case("COPY NOFILEHANDLE of both", |b| b.client.ends(vec![copy(ANYONE, ANYONE)], &NO_HANDLE)),
        case("COPY NOFILEHANDLE", |b| b.at(&b.file.clone(), vec![copy(ANYONE, ANYONE)], &NO_HANDLE)),
        // A server may keep the file while the compound has its handle.
        case("COPY of a removed source", |b| {
            let dir = b.dir.clone();
            let (id, gone) = b.client.open(&dir, b"n", SHARE_ACCESS_BOTH, 0)?;
            b.at(&gone, vec![Op::close(id)], &[S::OK])?;
            let file = b.file.clone();
            let remove = [Op::Savefh, Op::putfh(&dir), Op::remove(b"n"), Op::putfh(&file)];
            let ops = remove.into_iter().chain([copy(ANYONE, ANYONE)]).collect();
            b.at(&gone, ops, &[S::STALE, S::OK, S::NOTSUPP])
        }),
        wrong("COPY WRONG_TYPE of source directory", copy, |b| [&b.sub, &b.file], S::ISDIR),
        wrong("COPY WRONG_TYPE of destination directory", copy, |b| [&b.file, &b.sub], S::ISDIR),
        wrong("COPY WRONG_TYPE of source link", copy, |b| [&b.link, &b.file], S::SYMLINK),
        wrong("COPY WRONG_TYPE of destination link", copy, |b| [&b.file, &b.link], S::SYMLINK),
        wrong("COPY WRONG_TYPE of source fifo", copy, |b| [&b.fifo, &b.file], S::WRONG_TYPE),
        wrong("COPY WRONG_TYPE of destination fifo", copy, |b| [&b.file, &b.fifo], S::WRONG_TYPE),
    ]
}

/// Opens the file `name` of a pair once more, so that its first stateid is old.
fn reopened(b: &mut Bench, name: &[u8], make: Make) -> Checked {
    let pair = Pair::open(b, [SHARE_ACCESS_READ, SHARE_ACCESS_WRITE])?;
    b.client.open(&b.dir.clone(), name, SHARE_ACCESS_BOTH, 0)?;
    b.client.ends(pair.ops(make(pair.src, pair.dst)), &OLD)
}

fn copy_stateids() -> Vec<Case> {
    vec![
        case("COPY OPENMODE of destination", |b| copied(b, [SHARE_ACCESS_READ; 2], |args| args, &OPENMODE)),
        // As with READ, the caller's own right to read may suffice.
        case("COPY of a source open for writing", |b| {
            copied(b, [SHARE_ACCESS_WRITE; 2], |args| args, &[S::OPENMODE, S::OK, S::NOTSUPP])
        }),
        case("COPY OK without opens", |b| on_pair(b, BOTH, |_| copy(ANYONE, ANYONE), &OPTIONAL)),
        case("COPY BAD_STATEID", |b| on_pair(b, BOTH, |pair| copy(pair.src, NOBODYS), &NO_STATE)),
        case("COPY BAD_STATEID of source", |b| on_pair(b, BOTH, |pair| copy(NOBODYS, pair.dst), &NO_STATE)),
        case("COPY BAD_STATEID of exchanged files", |b| {
            on_pair(b, BOTH, |pair| copy(pair.dst, pair.src), &NO_STATE)
        }),
        case("COPY OLD_STATEID", |b| reopened(b, b"n", copy)),
        case("COPY OLD_STATEID of source", |b| reopened(b, b"f", copy)),
        case("COPY LOCKED", |b| denied(b, b"n", open::SHARE_DENY_WRITE, copy)),
        case("COPY LOCKED source", |b| denied(b, b"f", open::SHARE_DENY_READ, copy)),
    ]
}

fn clones() -> Vec<Case> {
    vec![
        case("CLONE OK", |b| cloned(b, |args| args, &OPTIONAL)),
        case("CLONE INVAL unaligned", |b| {
            cloned(b, |args| CloneArgs { src_offset: 1, dst_offset: 4096, count: 2, ..args }, &INVAL)
        }),
        case("CLONE INVAL unaligned destination", |b| {
            cloned(b, |args| CloneArgs { dst_offset: 1, ..args }, &INVAL)
        }),
        case("CLONE INVAL behind the end", |b| {
            cloned(b, |args| CloneArgs { src_offset: 1 << 20, count: 4096, ..args }, &INVAL)
        }),
        case("CLONE INVAL across the end", |b| cloned(b, |args| CloneArgs { count: 4096, ..args }, &INVAL)),
        case("CLONE INVAL of endless range", |b| {
            cloned(b, |args| CloneArgs { src_offset: 4096, count: u64::MAX, ..args }, &INVAL)
        }),
        case("CLONE FBIG", |b| {
            let far = |args| CloneArgs { dst_offset: !0xfff, ..args };
            cloned(b, far, &[S::FBIG, S::INVAL, S::NOTSUPP])
        }),
        case("CLONE INVAL within a file", |b| {
            let (id, fh) = b.client.open(&b.dir.clone(), b"f", SHARE_ACCESS_BOTH, 0)?;
            between(b, &fh, &fh, clone(id, id), &INVAL)
        }),
        case("CLONE OK within a file apart", |b| {
            let (id, fh) = b.client.open(&b.dir.clone(), b"f", SHARE_ACCESS_BOTH, 0)?;
            let args = CloneArgs { dst_offset: 1 << 20, ..clone_args(id, id) };
            between(b, &fh, &fh, Op::Clone(args), &OPTIONAL)
        }),
    ]
}

fn clone_state() -> Vec<Case> {
    vec![
        case("CLONE NOFILEHANDLE of both", |b| b.client.ends(vec![clone(ANYONE, ANYONE)], &NO_HANDLE)),
        case("CLONE NOFILEHANDLE", |b| b.at(&b.file.clone(), vec![clone(ANYONE, ANYONE)], &NO_HANDLE)),
        wrong("CLONE WRONG_TYPE of source directory", clone, |b| [&b.sub, &b.file], S::ISDIR),
        wrong("CLONE WRONG_TYPE of destination directory", clone, |b| [&b.file, &b.sub], S::ISDIR),
        wrong("CLONE WRONG_TYPE of source link", clone, |b| [&b.link, &b.file], S::SYMLINK),
        wrong("CLONE WRONG_TYPE of destination link", clone, |b| [&b.file, &b.link], S::SYMLINK),
        wrong("CLONE WRONG_TYPE of source fifo", clone, |b| [&b.fifo, &b.file], S::WRONG_TYPE),
        wrong("CLONE WRONG_TYPE of destination fifo", clone, |b| [&b.file, &b.fifo], S::WRONG_TYPE),
        case("CLONE OPENMODE of destination", |b| {
            on_pair(b, [SHARE_ACCESS_READ; 2], |pair| clone(pair.src, pair.dst), &OPENMODE)
        }),
        // As with READ, the caller's own right to read may suffice.
        case("CLONE of a source open for writing", |b| {
            let expected = [S::OPENMODE, S::OK, S::NOTSUPP];
            on_pair(b, [SHARE_ACCESS_WRITE; 2], |pair| clone(pair.src, pair.dst), &expected)
        }),
        case("CLONE BAD_STATEID", |b| on_pair(b, BOTH, |pair| clone(pair.src, NOBODYS), &NO_STATE)),
        case("CLONE BAD_STATEID of source", |b| on_pair(b, BOTH, |pair| clone(NOBODYS, pair.dst), &NO_STATE)),
        case("CLONE BAD_STATEID of exchanged files", |b| {
            on_pair(b, BOTH, |pair| clone(pair.dst, pair.src), &NO_STATE)
        }),
        case("CLONE OLD_STATEID", |b| reopened(b, b"n", clone)),
        case("CLONE OLD_STATEID of source", |b| reopened(b, b"f", clone)),
        case("CLONE LOCKED", |b| denied(b, b"n", open::SHARE_DENY_WRITE, clone)),
        case("CLONE LOCKED source", |b| denied(b, b"f", open::SHARE_DENY_READ, clone)),
    ]
}

fn offloads() -> Vec<Case> {
    /// Sends an operation with the stateid of an open, which is no copy.
    fn of_open(b: &mut Bench, op: fn(Stateid) -> Op) -> Checked {
        let (id, fh) = b.client.open(&b.dir.clone(), b"f", SHARE_ACCESS_BOTH, 0)?;
        b.at(&fh, vec![op(id)], &[S::BAD_STATEID, S::NOTSUPP])
    }
    /// Sends an operation without a filehandle. RFC 7862 does not list NFS4ERR_NOFILEHANDLE.
    fn nowhere(b: &mut Bench, op: Op) -> Checked {
        b.client.ends(vec![op], &[S::NOFILEHANDLE, S::BAD_STATEID, S::STALE_STATEID, S::NOTSUPP])
    }
    vec![
        case("OFFLOAD_STATUS", |b| b.at(&b.file.clone(), vec![Op::OffloadStatus(NOBODYS)], &NO_STATE)),
        case("OFFLOAD_STATUS of open", |b| of_open(b, Op::OffloadStatus)),
        case("OFFLOAD_STATUS of special", |b| {
            b.at(&b.file.clone(), vec![Op::OffloadStatus(ANYONE)], &[S::BAD_STATEID, S::NOTSUPP])
        }),
        case("OFFLOAD_STATUS without filehandle", |b| nowhere(b, Op::OffloadStatus(NOBODYS))),
        case("OFFLOAD_CANCEL", |b| b.at(&b.file.clone(), vec![Op::OffloadCancel(NOBODYS)], &NO_STATE)),
        case("OFFLOAD_CANCEL of open", |b| of_open(b, Op::OffloadCancel)),
        case("OFFLOAD_CANCEL of special", |b| {
            b.at(&b.file.clone(), vec![Op::OffloadCancel(ANYONE)], &[S::BAD_STATEID, S::NOTSUPP])
        }),
        case("OFFLOAD_CANCEL without filehandle", |b| nowhere(b, Op::OffloadCancel(NOBODYS))),
    ]
}
