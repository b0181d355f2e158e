//! A read-only export: the operations that list NFS4ERR_ROFS (RFC 8881 section 15.4, RFC 7862
//! section 11.1.2, RFC 8276 section 8.4), and operations that only read.
//!
//! The export has the same directory as the writable one. The fixture makes its objects there.

use super::bench::{Bench, Checked, ReadOnly, mode, open_args};
use super::newer::{OPTIONAL, on_xattrs_of, value};
use super::state::{lock, test};
use super::{Case, case};
use bytes::Bytes;
use hither_proto::nfs4::open::{SHARE_ACCESS_BOTH, SHARE_ACCESS_READ, SHARE_ACCESS_WRITE};
use hither_proto::nfs4::{Nfsstat4 as S, *};

const ROFS: [S; 1] = [S::ROFS];
/// The allowed statuses of a change that is optional.
const OPTIONAL_ROFS: [S; 2] = [S::ROFS, S::NOTSUPP];
const ANYONE: Stateid = Stateid::ANONYMOUS;

/// Sends operations on an object of the read-only export.
fn on(b: &mut Bench, which: fn(&ReadOnly) -> &Fh, ops: Vec<Op>, expected: &[S]) -> Checked {
    let ro = b.read_only()?;
    b.at(which(&ro), ops, expected)
}

fn on_dir(b: &mut Bench, ops: Vec<Op>, expected: &[S]) -> Checked {
    on(b, |ro| &ro.dir, ops, expected)
}

fn on_file(b: &mut Bench, ops: Vec<Op>, expected: &[S]) -> Checked {
    on(b, |ro| &ro.file, ops, expected)
}

/// Opens the file of the read-only export for reading. Sends an operation with the stateid.
fn opened(b: &mut Bench, op: impl Fn(Stateid) -> Op, expected: &[S]) -> Checked {
    let ro = b.read_only()?;
    let open = Op::Open(open_args(b"owner", SHARE_ACCESS_READ, OpenClaim::Fh));
    let mut r = b.client.ok(vec![Op::putfh(&ro.file), open])?;
    r.putfh().map_err(|e| e.to_string())?;
    let id = r.open().map_err(|e| e.to_string())?.stateid;
    b.at(&ro.file, vec![op(id)], expected)
}

/// OPEN of a name, with or without a creation.
fn named(name: &[u8], access: u32, how: Option<CreateHow>) -> Vec<Op> {
    vec![Op::Open(OpenArgs { how, ..open_args(b"owner", access, OpenClaim::Null(name.into())) })]
}

fn sized() -> Attrs {
    Attrs { size: Some(0), ..Attrs::default() }
}

fn exclusive() -> CreateHow {
    CreateHow::Exclusive41(CreateVerfAttr { verf: [7; 8], attrs: mode(0o644) })
}

/// Sends an operation that copies from one file to another of the read-only export.
fn copying(b: &mut Bench, op: Op) -> Checked {
    b.client.open(&b.dir.clone(), b"n", SHARE_ACCESS_BOTH, 0)?;
    let ro = b.read_only()?;
    let ops = vec![Op::Savefh, Op::putfh(&ro.dir), Op::lookup(b"n"), op];
    b.at(&ro.file, ops, &OPTIONAL_ROFS)
}

pub fn cases(minor: u32) -> Vec<Case> {
    let mut all = names();
    all.extend(files());
    all.extend(opens());
    all.extend(reading());
    if minor >= 2 {
        all.extend(newer());
        all.extend(newer_reading());
    }
    all
}

fn names() -> Vec<Case> {
    let make = |kind| vec![Op::create(kind, b"n", mode(0o755))];
    vec![
        case("CREATE ROFS of directory", move |b| on_dir(b, make(CreateType::Dir), &ROFS)),
        case("CREATE ROFS of link", move |b| on_dir(b, make(CreateType::Link(b"f"[..].into())), &ROFS)),
        case("CREATE ROFS of fifo", move |b| on_dir(b, make(CreateType::Fifo), &ROFS)),
        case("CREATE of present name in read-only export", |b| {
            on_dir(b, vec![Op::create(CreateType::Dir, b"d", mode(0o755))], &[S::ROFS, S::EXIST])
        }),
        case("LINK ROFS", |b| {
            let ro = b.read_only()?;
            b.at(&ro.file, vec![Op::Savefh, Op::putfh(&ro.dir), Op::link(b"n")], &ROFS)
        }),
        case("REMOVE ROFS", |b| on_dir(b, vec![Op::remove(b"f")], &ROFS)),
        case("REMOVE ROFS of directory", |b| on(b, |ro| &ro.sub, vec![Op::remove(b"in")], &ROFS)),
        case("REMOVE of missing name in read-only export", |b| {
            on_dir(b, vec![Op::remove(b"none")], &[S::ROFS, S::NOENT])
        }),
        case("RENAME ROFS", |b| on_dir(b, vec![Op::Savefh, Op::rename(b"f", b"n")], &ROFS)),
        case("RENAME ROFS to another directory", |b| {
            let ro = b.read_only()?;
            b.at(&ro.dir, vec![Op::Savefh, Op::putfh(&ro.sub), Op::rename(b"f", b"n")], &ROFS)
        }),
        case("RENAME out of read-only export", |b| {
            let (ro, dir) = (b.read_only()?, b.dir.clone());
            let ops = vec![Op::Savefh, Op::putfh(&dir), Op::rename(b"f", b"n")];
            b.at(&ro.dir, ops, &[S::ROFS, S::XDEV])
        }),
        case("RENAME into read-only export", |b| {
            let (ro, dir) = (b.read_only()?, b.dir.clone());
            let ops = vec![Op::Savefh, Op::putfh(&ro.dir), Op::rename(b"f", b"n")];
            b.at(&dir, ops, &[S::ROFS, S::XDEV])
        }),
        case("LINK into read-only export", |b| {
            let (ro, file) = (b.read_only()?, b.file.clone());
            b.at(&file, vec![Op::Savefh, Op::putfh(&ro.dir), Op::link(b"n")], &[S::ROFS, S::XDEV])
        }),
    ]
}

fn files() -> Vec<Case> {
    let set = |attrs| vec![Op::setattr(ANYONE, attrs)];
    let write = |id| Op::write(id, 0, StableHow::FILE_SYNC, Bytes::from_static(b"bytes"));
    vec![
        case("SETATTR ROFS", move |b| on_file(b, set(mode(0o600)), &ROFS)),
        case("SETATTR ROFS of directory", move |b| on_dir(b, set(mode(0o700)), &ROFS)),
        case("SETATTR ROFS of size", move |b| on_file(b, set(sized()), &ROFS)),
        case("SETATTR ROFS of time", move |b| {
            on_file(b, set(Attrs { time_modify_set: Some(SetTime::Server), ..Attrs::default() }), &ROFS)
        }),
        case("SETATTR ROFS of owner", move |b| {
            on_file(b, set(Attrs { owner: Some(b"0"[..].into()), ..Attrs::default() }), &ROFS)
        }),
        case("WRITE ROFS", move |b| on_file(b, vec![write(ANYONE)], &ROFS)),
        case("WRITE ROFS of open file", move |b| opened(b, write, &[S::ROFS, S::OPENMODE])),
        case("OPENATTR ROFS", |b| on_file(b, vec![Op::Openattr(true)], &OPTIONAL_ROFS)),
    ]
}

fn opens() -> Vec<Case> {
    let unchecked = |attrs| Some(CreateHow::Unchecked(attrs));
    let plain = |access| vec![Op::Open(open_args(b"owner", access, OpenClaim::Fh))];
    vec![
        case("OPEN ROFS of creation", move |b| {
            on_dir(b, named(b"n", SHARE_ACCESS_READ, unchecked(mode(0o644))), &ROFS)
        }),
        case("OPEN ROFS of guarded creation", |b| {
            on_dir(b, named(b"n", SHARE_ACCESS_BOTH, Some(CreateHow::Guarded(mode(0o644)))), &ROFS)
        }),
        case("OPEN ROFS of exclusive creation", |b| {
            on_dir(b, named(b"n", SHARE_ACCESS_BOTH, Some(exclusive())), &ROFS)
        }),
        case("OPEN of guarded creation of present name in read-only export", |b| {
            let how = Some(CreateHow::Guarded(mode(0o644)));
            on_dir(b, named(b"f", SHARE_ACCESS_READ, how), &[S::ROFS, S::EXIST])
        }),
        case("OPEN of unchecked creation of present name in read-only export", move |b| {
            let how = unchecked(Attrs::default());
            on_dir(b, named(b"f", SHARE_ACCESS_READ, how), &[S::OK, S::ROFS])
        }),
        case("OPEN ROFS of cut", move |b| {
            on_dir(b, named(b"f", SHARE_ACCESS_BOTH, unchecked(sized())), &ROFS)
        }),
        // A server may need an open for writing before it cuts a file.
        case("OPEN of cut for reading in read-only export", move |b| {
            on_dir(b, named(b"f", SHARE_ACCESS_READ, unchecked(sized())), &[S::ROFS, S::INVAL])
        }),
        case("OPEN ROFS for writing", |b| on_dir(b, named(b"f", SHARE_ACCESS_WRITE, None), &ROFS)),
        case("OPEN ROFS for both", |b| on_dir(b, named(b"f", SHARE_ACCESS_BOTH, None), &ROFS)),
        case("OPEN ROFS for writing by handle", move |b| on_file(b, plain(SHARE_ACCESS_WRITE), &ROFS)),
        case("OPEN_DOWNGRADE in read-only export", |b| {
            opened(b, |id| Op::open_downgrade(id, SHARE_ACCESS_READ, 0), &[S::OK, S::ROFS])
        }),
        case("LOCK for writing in read-only export", |b| {
            opened(b, |id| lock(id, b"o", (0, 1), false), &[S::OPENMODE, S::ROFS])
        }),
        case("LOCKT in read-only export", |b| on_file(b, vec![test((0, 1))], &[S::OK, S::ROFS])),
    ]
}

fn reading() -> Vec<Case> {
    let list = |attrs: &[u32]| ReaddirArgs {
        cookie: 0,
        cookieverf: [0; 8],
        dircount: 4096,
        maxcount: 4096,
        attr_request: Bitmap4::of(attrs),
    };
    vec![
        case("LOOKUP OK in read-only export", |b| on_dir(b, vec![Op::lookup(b"f")], &[S::OK])),
        case("LOOKUP NOENT in read-only export", |b| on_dir(b, vec![Op::lookup(b"none")], &[S::NOENT])),
        case("LOOKUPP OK in read-only export", |b| {
            on(b, |ro| &ro.sub, vec![Op::Lookupp, Op::lookup(b"f")], &[S::OK])
        }),
        case("GETATTR OK in read-only export", |b| {
            on_file(b, vec![Op::getattr(&Bitmap4::of(&[attr::SIZE, attr::CHANGE, attr::FSID]))], &[S::OK])
        }),
        case("VERIFY OK in read-only export", |b| {
            on_file(b, vec![Op::Verify(Attrs { size: Some(10), ..Attrs::default() })], &[S::OK])
        }),
        case("READDIR OK in read-only export", move |b| {
            on_dir(b, vec![Op::Readdir(list(&[attr::SIZE]))], &[S::OK])
        }),
        case("READLINK OK in read-only export", |b| on(b, |ro| &ro.link, vec![Op::Readlink], &[S::OK])),
        case("SECINFO OK in read-only export", |b| on_dir(b, vec![Op::Secinfo(b"f"[..].into())], &[S::OK])),
        case("ACCESS OK in read-only export", |b| {
            let (ro, change) = (b.read_only()?, access::MODIFY | access::EXTEND);
            let mut r = b.client.ok(vec![Op::putfh(&ro.file), Op::Access(change | access::READ)])?;
            r.putfh().map_err(|e| e.to_string())?;
            match r.access().map_err(|e| e.to_string())?.access {
                access::READ => Ok(()),
                granted => Err(format!("the rights are {granted:#x}")),
            }
        }),
        case("OPEN OK in read-only export", |b| on_dir(b, named(b"f", SHARE_ACCESS_READ, None), &[S::OK])),
        case("READ OK in read-only export", |b| opened(b, |id| Op::read(id, 0, 100), &[S::OK])),
        case("READ OK without open in read-only export", |b| {
            on_file(b, vec![Op::read(ANYONE, 0, 100)], &[S::OK])
        }),
        case("COMMIT OK in read-only export", |b| on_file(b, vec![Op::commit(0, 0)], &[S::OK])),
        case("CLOSE OK in read-only export", |b| opened(b, Op::close, &[S::OK])),
    ]
}

fn newer() -> Vec<Case> {
    vec![
        case("ALLOCATE ROFS", |b| on_file(b, vec![Op::allocate(ANYONE, 0, 100)], &OPTIONAL_ROFS)),
        case("DEALLOCATE ROFS", |b| on_file(b, vec![Op::deallocate(ANYONE, 0, 5)], &OPTIONAL_ROFS)),
        case("COPY ROFS", |b| {
            let args = CopyArgs {
                src_stateid: ANYONE,
                dst_stateid: ANYONE,
                src_offset: 0,
                dst_offset: 0,
                count: 5,
                consecutive: true,
                synchronous: true,
                source_server: Vec::new().into(),
            };
            copying(b, Op::Copy(args))
        }),
        case("CLONE ROFS", |b| {
            let (src_stateid, dst_stateid) = (ANYONE, ANYONE);
            copying(
                b,
                Op::Clone(CloneArgs { src_stateid, dst_stateid, src_offset: 0, dst_offset: 0, count: 0 }),
            )
        }),
        case("SETXATTR ROFS", |b| {
            let ro = b.read_only()?;
            on_xattrs_of(&ro.file, b, vec![Op::setxattr(SetxattrOption::EITHER, b"a", value())], &ROFS)
        }),
        case("REMOVEXATTR ROFS", |b| {
            let (ro, file) = (b.read_only()?, b.file.clone());
            let set = vec![Op::setxattr(SetxattrOption::EITHER, b"a", value())];
            on_xattrs_of(&file, b, set, &[S::OK])?;
            on_xattrs_of(&ro.file, b, vec![Op::removexattr(b"a")], &ROFS)
        }),
    ]
}

fn newer_reading() -> Vec<Case> {
    vec![
        case("SEEK OK in read-only export", |b| opened(b, |id| Op::seek(id, 0, DataContent::DATA), &[S::OK])),
        case("READ_PLUS in read-only export", |b| opened(b, |id| Op::read_plus(id, 0, 10), &OPTIONAL)),
        case("GETXATTR NOXATTR in read-only export", |b| {
            let ro = b.read_only()?;
            on_xattrs_of(&ro.file, b, vec![Op::getxattr(b"none")], &[S::NOXATTR])
        }),
        case("LISTXATTRS OK in read-only export", |b| {
            let ro = b.read_only()?;
            on_xattrs_of(&ro.file, b, vec![Op::listxattrs(0, 1000)], &[S::OK])
        }),
    ]
}
