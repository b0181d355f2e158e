//! The additions of NFSv4.2 (RFC 7862 section 15, RFC 8276 section 8.4).

use super::bench::{Bench, Checked};
use super::files::{NOBODYS, UNKNOWN};
use super::{Case, case};
use bytes::Bytes;
use hither_proto::nfs4::open::{SHARE_ACCESS_BOTH, SHARE_ACCESS_READ};
use hither_proto::nfs4::{Nfsstat4 as S, *};

/// Sends an operation on the file, which is open for reading and writing.
fn opened(b: &mut Bench, op: impl Fn(Stateid) -> Op, expected: &[S]) -> Checked {
    let (id, fh) = b.client.open(&b.dir.clone(), b"f", SHARE_ACCESS_BOTH, 0)?;
    b.at(&fh, vec![op(id)], expected)
}

pub fn value() -> Bytes {
    Bytes::from_static(b"value")
}

/// The allowed statuses of an optional operation.
pub const OPTIONAL: [S; 2] = [S::OK, S::NOTSUPP];

pub fn cases() -> Vec<Case> {
    let mut all = ranges();
    all.extend(umasks());
    all.extend(xattrs());
    all
}

fn ranges() -> Vec<Case> {
    vec![
        case("SEEK OK", |b| opened(b, |id| Op::seek(id, 0, DataContent::DATA), &[S::OK])),
        case("SEEK NXIO", |b| opened(b, |id| Op::seek(id, 100, DataContent::HOLE), &[S::NXIO])),
        case("SEEK BAD_STATEID", |b| {
            b.at(&b.file.clone(), vec![Op::seek(NOBODYS, 0, DataContent::DATA)], &UNKNOWN)
        }),
        case("SEEK NOFILEHANDLE", |b| b.nowhere(Op::seek(NOBODYS, 0, DataContent::DATA))),
        case("ALLOCATE OK", |b| opened(b, |id| Op::allocate(id, 0, 100), &OPTIONAL)),
        case("ALLOCATE INVAL", |b| opened(b, |id| Op::allocate(id, 0, 0), &[S::INVAL, S::NOTSUPP])),
        case("ALLOCATE beyond the end", |b| {
            opened(b, |id| Op::allocate(id, u64::MAX - 1, 5), &[S::INVAL, S::FBIG, S::NOTSUPP])
        }),
        case("ALLOCATE OPENMODE", |b| {
            let (id, fh) = b.client.open(&b.dir.clone(), b"f", SHARE_ACCESS_READ, 0)?;
            b.at(&fh, vec![Op::allocate(id, 0, 5)], &[S::OPENMODE, S::NOTSUPP])
        }),
        case("ALLOCATE WRONG_TYPE", |b| {
            let wrong = [S::WRONG_TYPE, S::ISDIR, S::BAD_STATEID, S::NOTSUPP];
            b.here(vec![Op::allocate(Stateid::ANONYMOUS, 0, 5)], &wrong)
        }),
        case("ALLOCATE NOFILEHANDLE", |b| b.nowhere(Op::allocate(NOBODYS, 0, 5))),
        case("DEALLOCATE OK", |b| opened(b, |id| Op::deallocate(id, 0, 5), &OPTIONAL)),
        case("DEALLOCATE BAD_STATEID", |b| {
            b.at(&b.file.clone(), vec![Op::deallocate(NOBODYS, 0, 5)], &[UNKNOWN[0], UNKNOWN[1], S::NOTSUPP])
        }),
        case("IO_ADVISE", |b| {
            let advise =
                |id| Op::IoAdvise(IoAdviseArgs { stateid: id, offset: 0, count: 10, hints: Bitmap4::EMPTY });
            opened(b, advise, &OPTIONAL)
        }),
        case("READ_PLUS", |b| opened(b, |id| Op::read_plus(id, 0, 10), &OPTIONAL)),
    ]
}

/// The mode with a umask (RFC 8275), where the server has it.
fn umasks() -> Vec<Case> {
    fn with(mode: u32, umask: u32) -> Attrs {
        Attrs { mode_umask: Some(ModeUmask { mode, umask }), ..Attrs::default() }
    }
    fn make(attrs: Attrs) -> Op {
        Op::create(CreateType::Dir, b"umask", attrs)
    }
    vec![
        case("CREATE OK with umask", |b| b.here(vec![make(with(0o777, 0o22))], &[S::OK, S::ATTRNOTSUPP])),
        case("CREATE INVAL with mode and umask", |b| {
            let both = Attrs { mode: Some(0o700), ..with(0o777, 0o22) };
            b.here(vec![make(both)], &[S::INVAL, S::ATTRNOTSUPP])
        }),
        case("SETATTR INVAL of umask", |b| {
            let set = Op::setattr(Stateid::ANONYMOUS, with(0o600, 0));
            b.at(&b.file.clone(), vec![set], &[S::INVAL, S::ATTRNOTSUPP])
        }),
        case("GETATTR INVAL of umask", |b| {
            // A server without the attribute leaves it out.
            b.here(vec![Op::getattr(&Bitmap4::of(&[attr::MODE_UMASK]))], &[S::INVAL, S::OK])
        }),
    ]
}

/// Checks operations on extended attributes of the file. A server refuses them where it says that
/// the file system has none, and nowhere else (RFC 8276 section 8.2).
fn on_xattrs(b: &mut Bench, ops: Vec<Op>, expected: &[S]) -> Checked {
    on_xattrs_of(&b.file.clone(), b, ops, expected)
}

/// As [`on_xattrs`], of another file.
pub fn on_xattrs_of(file: &Fh, b: &mut Bench, mut ops: Vec<Op>, expected: &[S]) -> Checked {
    let asked = Bitmap4::of(&[attr::XATTR_SUPPORT]);
    let mut results = b.client.ok(vec![Op::putfh(file), Op::getattr(&asked)])?;
    drop(results.take_any());
    let attrs = results.getattr().map_err(|e| e.to_string())?;
    let has = attrs.xattr_support().copied().unwrap_or(false);
    if has {
        return b.at(file, ops, expected);
    }
    ops.truncate(1);
    let errors = expected.iter().filter(|status| **status != S::OK);
    b.at(file, ops, &errors.copied().chain([S::NOTSUPP]).collect::<Vec<_>>())
}

fn xattrs() -> Vec<Case> {
    let none = [S::NOXATTR];
    let at = on_xattrs;
    let set = |option, key: &[u8]| Op::setxattr(option, key, value());
    vec![
        case("SETXATTR OK", move |b| at(b, vec![set(SetxattrOption::EITHER, b"a")], &[S::OK])),
        case("SETXATTR EXIST", move |b| {
            let twice = vec![set(SetxattrOption::EITHER, b"a"), set(SetxattrOption::CREATE, b"a")];
            at(b, twice, &[S::EXIST])
        }),
        case("SETXATTR NOXATTR", move |b| at(b, vec![set(SetxattrOption::REPLACE, b"none")], &none)),
        case("SETXATTR INVAL", move |b| at(b, vec![set(SetxattrOption::EITHER, b"")], &[S::INVAL])),
        case("SETXATTR NAMETOOLONG", move |b| {
            let long = [b'x'; 2000];
            at(b, vec![set(SetxattrOption::EITHER, &long)], &[S::NAMETOOLONG])
        }),
        case("SETXATTR NOFILEHANDLE", move |b| b.nowhere(set(SetxattrOption::EITHER, b"a"))),
        case("GETXATTR OK", move |b| {
            at(b, vec![set(SetxattrOption::EITHER, b"a"), Op::getxattr(b"a")], &[S::OK])
        }),
        case("GETXATTR NOXATTR", move |b| at(b, vec![Op::getxattr(b"none")], &none)),
        case("GETXATTR NOFILEHANDLE", |b| b.nowhere(Op::getxattr(b"a"))),
        case("LISTXATTRS OK", move |b| {
            at(b, vec![set(SetxattrOption::EITHER, b"a"), Op::listxattrs(0, 1000)], &[S::OK])
        }),
        case("LISTXATTRS TOOSMALL", move |b| {
            at(b, vec![set(SetxattrOption::EITHER, b"name"), Op::listxattrs(0, 4)], &[S::TOOSMALL])
        }),
        case("REMOVEXATTR OK", move |b| {
            at(b, vec![set(SetxattrOption::EITHER, b"a"), Op::removexattr(b"a")], &[S::OK])
        }),
        case("REMOVEXATTR NOXATTR", move |b| at(b, vec![Op::removexattr(b"none")], &none)),
        case("REMOVEXATTR NOFILEHANDLE", |b| b.nowhere(Op::removexattr(b"a"))),
    ]
}
