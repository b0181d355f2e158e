//! Filehandles, names and attributes: RFC 8881 sections 18.1, 18.4, 18.7 to 18.9, 18.13 to 18.15,
//! 18.19 to 18.31, 18.45.

use super::bench::{Bench, Checked, mode};
use super::{Case, case};
use hither_proto::nfs4::{Nfsstat4 as S, *};

/// A name that is too long for any file system.
const LONG: [u8; 2000] = [b'n'; 2000];
/// The allowed statuses for `.` and `..` as names.
const DOT: [S; 4] = [S::BADNAME, S::INVAL, S::NOENT, S::EXIST];

fn dir(name: &[u8]) -> Op {
    Op::create(CreateType::Dir, name, mode(0o755))
}

fn readdir(cookie: u64, cookieverf: Verifier, maxcount: u32, attrs: &[u32]) -> Op {
    let attr_request = Bitmap4::of(attrs);
    Op::Readdir(ReaddirArgs { cookie, cookieverf, dircount: maxcount, maxcount, attr_request })
}

/// SETATTR of attributes that need no stateid.
fn set(attrs: Attrs) -> Vec<Op> {
    vec![Op::setattr(Stateid::ANONYMOUS, attrs)]
}

fn rare(change: impl FnOnce(&mut RareAttrs)) -> Attrs {
    let mut attrs = Attrs::default();
    change(attrs.rare_mut());
    attrs
}

/// A rename within the directory.
fn rename(b: &mut Bench, old: &[u8], new: &[u8], expected: &[S]) -> Checked {
    b.here(vec![Op::Savefh, Op::rename(old, new)], expected)
}

fn link(from: &Fh, to: &Fh, b: &mut Bench, name: &[u8], expected: &[S]) -> Checked {
    b.at(from, vec![Op::Savefh, Op::putfh(to), Op::link(name)], expected)
}

pub fn cases() -> Vec<Case> {
    let mut all = handles();
    all.extend(lookups());
    all.extend(attributes());
    all.extend(creations());
    all.extend(removals());
    all
}

fn handles() -> Vec<Case> {
    vec![
        case("PUTFH BADHANDLE", |b| {
            b.client.ends(vec![Op::Putfh(b"\x01\x02\x03"[..].into())], &[S::BADHANDLE, S::STALE])
        }),
        case("PUTFH STALE", |b| {
            let fh = b.client.make(&b.dir.clone(), CreateType::Dir, b"n")?;
            b.here(vec![Op::remove(b"n")], &[S::OK])?;
            // The server may refuse the handle, or the operation on it.
            let results = b.client.run(vec![Op::putfh(&fh), Op::getattr(&Bitmap4::of(&[attr::SIZE]))])?;
            super::bench::is_one_of(results.status(), &[S::STALE, S::BADHANDLE])
        }),
        case("PUTPUBFH OK", |b| b.client.ends(vec![Op::Putpubfh, Op::Getfh], &[S::OK])),
        case("GETFH NOFILEHANDLE", |b| b.nowhere(Op::Getfh)),
        case("SAVEFH NOFILEHANDLE", |b| b.nowhere(Op::Savefh)),
        case("RESTOREFH NOFILEHANDLE", |b| b.here(vec![Op::Restorefh], &[S::NOFILEHANDLE])),
        case("RESTOREFH OK", |b| {
            let file = b.file.clone();
            b.here(vec![Op::Savefh, Op::putfh(&file), Op::Restorefh, Op::lookup(b"f")], &[S::OK])
        }),
        case("SECINFO NOENT", |b| b.here(vec![Op::Secinfo(b"none"[..].into())], &[S::NOENT])),
        case("SECINFO NOTDIR", |b| b.at(&b.file.clone(), vec![Op::Secinfo(b"n"[..].into())], &[S::NOTDIR])),
        case("SECINFO consumes", |b| {
            b.here(vec![Op::Secinfo(b"f"[..].into()), Op::Getfh], &[S::NOFILEHANDLE])
        }),
        case("SECINFO_NO_NAME consumes", |b| {
            b.here(vec![Op::SecinfoNoName(SecinfoStyle::CURRENT_FH), Op::Getfh], &[S::NOFILEHANDLE])
        }),
        case("SECINFO_NO_NAME parent consumes", |b| {
            b.here(vec![Op::SecinfoNoName(SecinfoStyle::PARENT), Op::Getfh], &[S::NOFILEHANDLE])
        }),
        case("SECINFO_NO_NAME NOENT", |b| {
            b.client.ends(vec![Op::Putrootfh, Op::SecinfoNoName(SecinfoStyle::PARENT)], &[S::NOENT])
        }),
        case("SECINFO_NO_NAME NOFILEHANDLE", |b| b.nowhere(Op::SecinfoNoName(SecinfoStyle::CURRENT_FH))),
    ]
}

fn lookups() -> Vec<Case> {
    vec![
        case("LOOKUP NOENT", |b| b.here(vec![Op::lookup(b"none")], &[S::NOENT])),
        case("LOOKUP NOTDIR", |b| b.at(&b.file.clone(), vec![Op::lookup(b"n")], &[S::NOTDIR])),
        case("LOOKUP SYMLINK", |b| b.at(&b.link.clone(), vec![Op::lookup(b"n")], &[S::SYMLINK])),
        case("LOOKUP NOTDIR of fifo", |b| b.at(&b.fifo.clone(), vec![Op::lookup(b"n")], &[S::NOTDIR])),
        case("LOOKUP INVAL", |b| b.here(vec![Op::lookup(b"")], &[S::INVAL])),
        case("LOOKUP NAMETOOLONG", |b| b.here(vec![Op::lookup(&LONG)], &[S::NAMETOOLONG])),
        case("LOOKUP dot", |b| b.here(vec![Op::lookup(b".")], &DOT)),
        case("LOOKUP dotdot", |b| b.here(vec![Op::lookup(b"..")], &DOT)),
        case("LOOKUP slash", |b| b.here(vec![Op::lookup(b"d/in")], &[S::BADCHAR, S::BADNAME, S::INVAL])),
        case("LOOKUP NOFILEHANDLE", |b| b.nowhere(Op::lookup(b"n"))),
        case("LOOKUPP OK", |b| b.at(&b.sub.clone(), vec![Op::Lookupp, Op::lookup(b"f")], &[S::OK])),
        case("LOOKUPP NOENT", |b| b.client.ends(vec![Op::Putrootfh, Op::Lookupp], &[S::NOENT])),
        case("LOOKUPP NOTDIR", |b| b.at(&b.file.clone(), vec![Op::Lookupp], &[S::NOTDIR])),
        case("LOOKUPP NOFILEHANDLE", |b| b.nowhere(Op::Lookupp)),
        case("READDIR OK", |b| b.here(vec![readdir(0, [0; 8], 4096, &[attr::SIZE])], &[S::OK])),
        case("READDIR NOTDIR", |b| b.at(&b.file.clone(), vec![readdir(0, [0; 8], 4096, &[])], &[S::NOTDIR])),
        case("READDIR BAD_COOKIE 1", |b| b.here(vec![readdir(1, [0; 8], 4096, &[])], &[S::BAD_COOKIE])),
        case("READDIR BAD_COOKIE 2", |b| b.here(vec![readdir(2, [0; 8], 4096, &[])], &[S::BAD_COOKIE])),
        case("READDIR TOOSMALL", |b| b.here(vec![readdir(0, [0; 8], 16, &[])], &[S::TOOSMALL])),
        case("READDIR INVAL", |b| {
            b.here(vec![readdir(0, [0; 8], 4096, &[attr::TIME_MODIFY_SET])], &[S::INVAL])
        }),
        case("READDIR NOFILEHANDLE", |b| b.nowhere(readdir(0, [0; 8], 4096, &[]))),
        case("READLINK OK", |b| b.at(&b.link.clone(), vec![Op::Readlink], &[S::OK])),
        case("READLINK of file", |b| b.at(&b.file.clone(), vec![Op::Readlink], &[S::WRONG_TYPE, S::INVAL])),
        case("READLINK of directory", |b| b.here(vec![Op::Readlink], &[S::WRONG_TYPE, S::INVAL, S::ISDIR])),
        case("READLINK NOFILEHANDLE", |b| b.nowhere(Op::Readlink)),
    ]
}

fn attributes() -> Vec<Case> {
    let size = Bitmap4::of(&[attr::SIZE]);
    vec![
        case("GETATTR NOFILEHANDLE", move |b| b.nowhere(Op::getattr(&size))),
        case("GETATTR INVAL", |b| {
            b.here(vec![Op::getattr(&Bitmap4::of(&[attr::TIME_ACCESS_SET]))], &[S::INVAL])
        }),
        case("GETATTR of unknown", |b| b.here(vec![Op::getattr(&Bitmap4::of(&[attr::SIZE, 95]))], &[S::OK])),
        case("ACCESS OK", |b| b.here(vec![Op::Access(0x3f)], &[S::OK])),
        case("ACCESS NOFILEHANDLE", |b| b.nowhere(Op::Access(1))),
        case("SETATTR OK", |b| b.at(&b.file.clone(), set(mode(0o600)), &[S::OK])),
        case("SETATTR NOFILEHANDLE", |b| b.nowhere(Op::setattr(Stateid::ANONYMOUS, mode(0o600)))),
        case("SETATTR INVAL of fileid", |b| {
            b.at(&b.file.clone(), set(Attrs { fileid: Some(7), ..Attrs::default() }), &[S::INVAL])
        }),
        case("SETATTR ATTRNOTSUPP", |b| {
            let attrs = rare(|rare| rare.hidden = Some(true));
            b.at(&b.file.clone(), set(attrs), &[S::ATTRNOTSUPP])
        }),
        case("SETATTR INVAL of time", |b| {
            let time = SetTime::Client(Time { seconds: 1, nseconds: 2_000_000_000 });
            let attrs = Attrs { time_modify_set: Some(time), ..Attrs::default() };
            b.at(&b.file.clone(), set(attrs), &[S::INVAL])
        }),
        case("SETATTR BADOWNER", |b| {
            let attrs = Attrs { owner: Some(b"no such user@nowhere"[..].into()), ..Attrs::default() };
            b.at(&b.file.clone(), set(attrs), &[S::BADOWNER])
        }),
        case("SETATTR size of directory", |b| {
            let attrs = Attrs { size: Some(0), ..Attrs::default() };
            b.here(set(attrs), &[S::ISDIR, S::INVAL, S::WRONG_TYPE, S::BAD_STATEID])
        }),
        case("SETATTR BAD_STATEID", |b| {
            let attrs = Attrs { size: Some(0), ..Attrs::default() };
            let id = Stateid { seqid: 1, other: [9; 12] };
            b.at(&b.file.clone(), vec![Op::setattr(id, attrs)], &[S::BAD_STATEID, S::STALE_STATEID])
        }),
        case("VERIFY OK", |b| {
            b.at(&b.file.clone(), vec![Op::Verify(Attrs { size: Some(10), ..Attrs::default() })], &[S::OK])
        }),
        case("VERIFY NOT_SAME", |b| {
            let verify = Op::Verify(Attrs { size: Some(11), ..Attrs::default() });
            b.at(&b.file.clone(), vec![verify], &[S::NOT_SAME])
        }),
        case("VERIFY ATTRNOTSUPP", |b| {
            b.here(vec![Op::Verify(rare(|rare| rare.hidden = Some(true)))], &[S::ATTRNOTSUPP])
        }),
        case("VERIFY INVAL", |b| {
            let attrs = Attrs { rdattr_error: Some(S::OK), ..Attrs::default() };
            b.here(vec![Op::Verify(attrs)], &[S::INVAL])
        }),
        case("VERIFY NOFILEHANDLE", |b| b.nowhere(Op::Verify(mode(0)))),
        case("NVERIFY SAME", |b| {
            b.at(&b.file.clone(), vec![Op::Nverify(Attrs { size: Some(10), ..Attrs::default() })], &[S::SAME])
        }),
        case("NVERIFY OK", |b| {
            b.at(&b.file.clone(), vec![Op::Nverify(Attrs { size: Some(11), ..Attrs::default() })], &[S::OK])
        }),
        case("NVERIFY NOFILEHANDLE", |b| b.nowhere(Op::Nverify(mode(0)))),
    ]
}

fn creations() -> Vec<Case> {
    vec![
        case("CREATE EXIST", |b| b.here(vec![dir(b"f")], &[S::EXIST])),
        case("CREATE NOTDIR", |b| b.at(&b.file.clone(), vec![dir(b"n")], &[S::NOTDIR])),
        case("CREATE INVAL", |b| b.here(vec![dir(b"")], &[S::INVAL])),
        case("CREATE NAMETOOLONG", |b| b.here(vec![dir(&LONG)], &[S::NAMETOOLONG])),
        case("CREATE dot", |b| b.here(vec![dir(b".")], &DOT)),
        case("CREATE BADTYPE", |b| {
            b.here(vec![Op::create(CreateType::Other(1), b"n", mode(0o644))], &[S::BADTYPE])
        }),
        case("CREATE INVAL of empty link", |b| {
            b.here(vec![Op::create(CreateType::Link(b""[..].into()), b"n", mode(0o644))], &[S::INVAL])
        }),
        case("CREATE NAMETOOLONG of link", |b| {
            let text = vec![b'l'; 5000];
            let make = Op::create(CreateType::Link(text[..].into()), b"n", mode(0o644));
            b.here(vec![make], &[S::NAMETOOLONG])
        }),
        case("CREATE ATTRNOTSUPP", |b| {
            let attrs = rare(|rare| rare.hidden = Some(true));
            b.here(vec![Op::create(CreateType::Dir, b"n", attrs)], &[S::ATTRNOTSUPP])
        }),
        case("CREATE INVAL of fileid", |b| {
            let attrs = Attrs { fileid: Some(7), ..Attrs::default() };
            b.here(vec![Op::create(CreateType::Dir, b"n", attrs)], &[S::INVAL])
        }),
        case("CREATE BADOWNER", |b| {
            let attrs = Attrs { owner: Some(b"no such user@nowhere"[..].into()), ..Attrs::default() };
            b.here(vec![Op::create(CreateType::Dir, b"n", attrs)], &[S::BADOWNER])
        }),
        case("CREATE NOFILEHANDLE", |b| b.nowhere(dir(b"n"))),
        case("LINK OK", |b| link(&b.file.clone(), &b.dir.clone(), b, b"n", &[S::OK])),
        case("LINK EXIST", |b| link(&b.file.clone(), &b.dir.clone(), b, b"l", &[S::EXIST])),
        case("LINK NOTDIR", |b| link(&b.file.clone(), &b.file.clone(), b, b"n", &[S::NOTDIR])),
        case("LINK ISDIR", |b| {
            link(&b.sub.clone(), &b.dir.clone(), b, b"n", &[S::ISDIR, S::PERM, S::WRONG_TYPE])
        }),
        case("LINK INVAL", |b| link(&b.file.clone(), &b.dir.clone(), b, b"", &[S::INVAL])),
        case("LINK NAMETOOLONG", |b| link(&b.file.clone(), &b.dir.clone(), b, &LONG, &[S::NAMETOOLONG])),
        case("LINK dot", |b| link(&b.file.clone(), &b.dir.clone(), b, b".", &DOT)),
        case("LINK NOFILEHANDLE", |b| b.here(vec![Op::link(b"n")], &[S::NOFILEHANDLE])),
    ]
}

fn removals() -> Vec<Case> {
    vec![
        case("REMOVE OK", |b| b.here(vec![Op::remove(b"p")], &[S::OK])),
        case("REMOVE NOENT", |b| b.here(vec![Op::remove(b"none")], &[S::NOENT])),
        case("REMOVE NOTEMPTY", |b| b.here(vec![Op::remove(b"d")], &[S::NOTEMPTY])),
        case("REMOVE NOTDIR", |b| b.at(&b.file.clone(), vec![Op::remove(b"n")], &[S::NOTDIR])),
        case("REMOVE INVAL", |b| b.here(vec![Op::remove(b"")], &[S::INVAL])),
        case("REMOVE NAMETOOLONG", |b| b.here(vec![Op::remove(&LONG)], &[S::NAMETOOLONG])),
        case("REMOVE dot", |b| b.here(vec![Op::remove(b".")], &DOT)),
        case("REMOVE NOFILEHANDLE", |b| b.nowhere(Op::remove(b"n"))),
        case("RENAME OK", |b| rename(b, b"f", b"n", &[S::OK])),
        case("RENAME of itself", |b| rename(b, b"f", b"f", &[S::OK])),
        case("RENAME over file", |b| rename(b, b"l", b"f", &[S::OK])),
        case("RENAME NOENT", |b| rename(b, b"none", b"n", &[S::NOENT])),
        case("RENAME file over directory", |b| rename(b, b"f", b"d", &[S::EXIST, S::ISDIR])),
        case("RENAME directory over file", |b| rename(b, b"d", b"f", &[S::EXIST, S::NOTDIR])),
        case("RENAME over full directory", |b| {
            let dir = b.dir.clone();
            let empty = b.client.make(&dir, CreateType::Dir, b"n")?;
            b.at(&empty, vec![Op::getattr(&Bitmap4::EMPTY)], &[S::OK])?;
            rename(b, b"n", b"d", &[S::EXIST, S::NOTEMPTY])
        }),
        case("RENAME INVAL into itself", |b| {
            let sub = b.sub.clone();
            b.here(vec![Op::Savefh, Op::putfh(&sub), Op::rename(b"d", b"n")], &[S::INVAL])
        }),
        case("RENAME INVAL", |b| rename(b, b"", b"n", &[S::INVAL])),
        case("RENAME INVAL of new", |b| rename(b, b"f", b"", &[S::INVAL])),
        case("RENAME NAMETOOLONG", |b| rename(b, b"f", &LONG, &[S::NAMETOOLONG])),
        case("RENAME NAMETOOLONG of old", |b| rename(b, &LONG, b"n", &[S::NAMETOOLONG])),
        case("RENAME NOTDIR", |b| {
            let dir = b.dir.clone();
            b.at(&b.file.clone(), vec![Op::Savefh, Op::putfh(&dir), Op::rename(b"f", b"n")], &[S::NOTDIR])
        }),
        case("RENAME NOTDIR of target", |b| {
            let file = b.file.clone();
            b.here(vec![Op::Savefh, Op::putfh(&file), Op::rename(b"f", b"n")], &[S::NOTDIR])
        }),
        case("RENAME NOFILEHANDLE", |b| b.here(vec![Op::rename(b"f", b"n")], &[S::NOFILEHANDLE])),
    ]
}
