//! Opens, locks and stateids: RFC 8881 sections 18.2, 18.5, 18.6, 18.10 to 18.12, 18.16 to 18.18,
//! 18.38, 18.48.

use super::bench::{Bench, Checked, Client, channel, is_one_of, mode, open_args};
use super::files::{NOBODYS, UNKNOWN};
use super::{Case, case};
use hither_proto::nfs4::open::{SHARE_ACCESS_BOTH, SHARE_ACCESS_READ, SHARE_ACCESS_WRITE};
use hither_proto::nfs4::{Nfsstat4 as S, *};

const LONG: [u8; 2000] = [b'n'; 2000];

/// OPEN of a name for reading.
fn named(name: &[u8]) -> OpenArgs {
    open_args(b"owner", SHARE_ACCESS_READ, OpenClaim::Null(name.into()))
}

/// OPEN that creates a file.
fn making(name: &[u8], how: CreateHow) -> Op {
    let args = open_args(b"owner", SHARE_ACCESS_BOTH, OpenClaim::Null(name.into()));
    Op::Open(OpenArgs { how: Some(how), ..args })
}

fn exclusive(verf: u8, attrs: Attrs) -> CreateHow {
    CreateHow::Exclusive41(CreateVerfAttr { verf: [verf; 8], attrs })
}

/// The first lock of an owner, for writing.
pub fn lock(id: Stateid, owner: &[u8], range: (u64, u64), reclaim: bool) -> Op {
    let lock_owner = StateOwner { clientid: 0, owner: owner.into() };
    let new = OpenToLockOwner { open_seqid: 0, open_stateid: id, lock_seqid: 0, lock_owner };
    let (offset, length) = range;
    Op::Lock(LockArgs { locktype: LockType::WRITE, reclaim, offset, length, locker: Locker::New(new) })
}

/// LOCKT of an owner without locks.
pub fn test(range: (u64, u64)) -> Op {
    let owner = StateOwner { clientid: 0, owner: b"tester"[..].into() };
    Op::Lockt(LocktArgs { locktype: LockType::WRITE, offset: range.0, length: range.1, owner })
}

/// Opens the file for reading and writing.
fn opened(b: &mut Bench) -> Result<(Stateid, Fh), String> {
    b.client.open(&b.dir.clone(), b"f", SHARE_ACCESS_BOTH, 0)
}

/// As [`opened`], with bytes 0 to 10 locked by `holder`.
fn locked(b: &mut Bench) -> Result<(Stateid, Stateid, Fh), String> {
    let (id, fh) = opened(b)?;
    let mut r = b.client.ok(vec![Op::putfh(&fh), lock(id, b"holder", (0, 10), false)])?;
    r.putfh().map_err(|e| e.to_string())?;
    Ok((id, r.lock().map_err(|e| e.to_string())?, fh))
}

/// Sends an operation with the stateid of an open.
fn with_open(b: &mut Bench, op: impl Fn(Stateid) -> Op, expected: &[S]) -> Checked {
    let (id, fh) = opened(b)?;
    b.at(&fh, vec![op(id)], expected)
}

pub fn cases() -> Vec<Case> {
    let mut all = opens();
    all.extend(creating());
    all.extend(claims());
    all.extend(closes());
    all.extend(locks());
    all.extend(stateids());
    all
}

fn opens() -> Vec<Case> {
    let at = |b: &mut Bench, args: OpenArgs, expected: &[S]| b.here(vec![Op::Open(args)], expected);
    vec![
        case("OPEN OK", move |b| at(b, named(b"f"), &[S::OK])),
        case("OPEN NOENT", move |b| at(b, named(b"none"), &[S::NOENT])),
        case("OPEN ISDIR", move |b| at(b, named(b"d"), &[S::ISDIR, S::WRONG_TYPE])),
        case("OPEN SYMLINK", move |b| at(b, named(b"l"), &[S::SYMLINK, S::WRONG_TYPE])),
        case("OPEN WRONG_TYPE", move |b| at(b, named(b"p"), &[S::WRONG_TYPE, S::SYMLINK, S::INVAL])),
        case("OPEN INVAL of name", move |b| at(b, named(b""), &[S::INVAL])),
        case("OPEN NAMETOOLONG", move |b| at(b, named(&LONG), &[S::NAMETOOLONG])),
        case("OPEN INVAL of access", move |b| {
            at(b, OpenArgs { share_access: 0, ..named(b"f") }, &[S::INVAL])
        }),
        case("OPEN INVAL of deny", move |b| at(b, OpenArgs { share_deny: 4, ..named(b"f") }, &[S::INVAL])),
        case("OPEN NOTDIR", |b| b.at(&b.file.clone(), vec![Op::Open(named(b"n"))], &[S::NOTDIR])),
        case("OPEN NOFILEHANDLE", |b| b.nowhere(Op::Open(named(b"f")))),
        case("OPEN SHARE_DENIED", move |b| {
            let mut other = b.another()?;
            other.open(&b.dir, b"f", SHARE_ACCESS_BOTH, open::SHARE_DENY_READ)?;
            at(b, named(b"f"), &[S::SHARE_DENIED])
        }),
        case("OPEN SHARE_DENIED by access", move |b| {
            let mut other = b.another()?;
            other.open(&b.dir, b"f", SHARE_ACCESS_WRITE, 0)?;
            at(b, OpenArgs { share_deny: open::SHARE_DENY_WRITE, ..named(b"f") }, &[S::SHARE_DENIED])
        }),
        case("OPEN GRACE", |b| {
            // A client must first send RECLAIM_COMPLETE.
            let mut early = Client::early(b.wire()?, b.client.minor, channel())?;
            early.ends(vec![Op::putfh(&b.dir), Op::Open(named(b"f"))], &[S::GRACE])
        }),
        case("OPEN upgrades", |b| {
            let (first, fh) = b.client.open(&b.dir.clone(), b"f", SHARE_ACCESS_READ, 0)?;
            let (second, _) = b.client.open(&b.dir.clone(), b"f", SHARE_ACCESS_WRITE, 0)?;
            b.at(&fh, vec![Op::close(second)], &[S::OK])?;
            match (first.other == second.other, second.seqid) {
                (true, 2) => Ok(()),
                _ => Err(format!("{first:?}, then {second:?}")),
            }
        }),
    ]
}

fn creating() -> Vec<Case> {
    vec![
        case("OPEN EXIST guarded", |b| {
            b.here(vec![making(b"f", CreateHow::Guarded(mode(0o644)))], &[S::EXIST])
        }),
        case("OPEN OK unchecked", |b| {
            b.here(vec![making(b"f", CreateHow::Unchecked(mode(0o644)))], &[S::OK])
        }),
        case("OPEN OK cuts", |b| {
            let cut = Attrs { size: Some(0), ..Attrs::default() };
            let empty = Op::Verify(cut.clone());
            b.here(vec![making(b"f", CreateHow::Unchecked(cut)), empty], &[S::OK])
        }),
        case("OPEN OK exclusive repeated", |b| {
            let make = || vec![making(b"n", exclusive(7, mode(0o644)))];
            b.here(make(), &[S::OK])?;
            b.here(make(), &[S::OK])
        }),
        case("OPEN EXIST exclusive", |b| {
            b.here(vec![making(b"n", exclusive(7, mode(0o644)))], &[S::OK])?;
            b.here(vec![making(b"n", exclusive(8, mode(0o644)))], &[S::EXIST])
        }),
        case("OPEN INVAL exclusive with times", |b| {
            let time = Some(SetTime::Client(Time { seconds: 5, nseconds: 0 }));
            let attrs = Attrs { time_access_set: time.clone(), time_modify_set: time, ..mode(0o644) };
            b.here(vec![making(b"n", exclusive(7, attrs))], &[S::INVAL, S::ATTRNOTSUPP])
        }),
        case("OPEN ATTRNOTSUPP", |b| {
            let mut attrs = Attrs::default();
            attrs.rare_mut().hidden = Some(true);
            b.here(vec![making(b"n", CreateHow::Guarded(attrs))], &[S::ATTRNOTSUPP])
        }),
        case("OPEN INVAL of fileid", |b| {
            let attrs = Attrs { fileid: Some(7), ..Attrs::default() };
            b.here(vec![making(b"n", CreateHow::Guarded(attrs))], &[S::INVAL])
        }),
    ]
}

fn claims() -> Vec<Case> {
    let claim = |claim| Op::Open(open_args(b"owner", SHARE_ACCESS_READ, claim));
    vec![
        case("OPEN OK by handle", move |b| b.at(&b.file.clone(), vec![claim(OpenClaim::Fh)], &[S::OK])),
        case("OPEN by handle of directory", move |b| {
            b.here(vec![claim(OpenClaim::Fh)], &[S::ISDIR, S::WRONG_TYPE])
        }),
        case("OPEN NO_GRACE", move |b| {
            b.at(&b.file.clone(), vec![claim(OpenClaim::Previous(DelegationType::NONE))], &[S::NO_GRACE])
        }),
        case("OPEN BAD_STATEID of delegation", move |b| {
            let file = b"f"[..].into();
            let cur = ClaimDelegateCur { delegate_stateid: NOBODYS, file };
            b.here(vec![claim(OpenClaim::DelegateCur(cur))], &UNKNOWN)
        }),
        case("OPEN BAD_STATEID of delegation by handle", move |b| {
            b.at(&b.file.clone(), vec![claim(OpenClaim::DelegCurFh(NOBODYS))], &UNKNOWN)
        }),
        case("DELEGRETURN BAD_STATEID", |b| b.at(&b.file.clone(), vec![Op::Delegreturn(NOBODYS)], &UNKNOWN)),
        case("DELEGRETURN NOFILEHANDLE", |b| {
            b.client.ends(vec![Op::Delegreturn(NOBODYS)], &[S::NOFILEHANDLE, S::BAD_STATEID])
        }),
        case("DELEGPURGE NOTSUPP", |b| b.client.ends(vec![Op::Delegpurge(0)], &[S::NOTSUPP, S::OK])),
        case("WANT_DELEGATION", |b| {
            let args = WantDelegationArgs { want: open::WANT_READ_DELEG, claim: DelegClaim::Fh };
            let allowed = [S::NOTSUPP, S::OK, S::DELEG_ALREADY_WANTED];
            b.at(&b.file.clone(), vec![Op::WantDelegation(args)], &allowed)
        }),
        case("OPENATTR", |b| {
            b.at(&b.file.clone(), vec![Op::Openattr(false)], &[S::NOTSUPP, S::NOENT, S::OK])
        }),
    ]
}

fn closes() -> Vec<Case> {
    let down = |id, access, deny| Op::open_downgrade(id, access, deny);
    vec![
        case("CLOSE OK", |b| with_open(b, Op::close, &[S::OK])),
        case("CLOSE BAD_STATEID", |b| b.at(&b.file.clone(), vec![Op::close(NOBODYS)], &UNKNOWN)),
        case("CLOSE BAD_STATEID of special", |b| {
            b.at(&b.file.clone(), vec![Op::close(Stateid::ANONYMOUS)], &[S::BAD_STATEID])
        }),
        case("CLOSE BAD_STATEID twice", |b| {
            let (id, fh) = opened(b)?;
            b.at(&fh, vec![Op::close(id)], &[S::OK])?;
            b.at(&fh, vec![Op::close(id)], &[S::BAD_STATEID, S::OLD_STATEID])
        }),
        case("CLOSE OLD_STATEID", |b| {
            let (id, fh) = opened(b)?;
            opened(b)?;
            b.at(&fh, vec![Op::close(id)], &[S::OLD_STATEID])
        }),
        case("CLOSE with locks", |b| {
            let (id, _, fh) = locked(b)?;
            b.at(&fh, vec![Op::close(id)], &[S::OK, S::LOCKS_HELD])
        }),
        case("CLOSE NOFILEHANDLE", |b| b.client.ends(vec![Op::close(NOBODYS)], &[S::NOFILEHANDLE])),
        case("OPEN_DOWNGRADE OK", move |b| {
            let dir = b.dir.clone();
            b.client.open(&dir, b"f", SHARE_ACCESS_READ, 0)?;
            with_open(b, move |id| down(id, SHARE_ACCESS_READ, 0), &[S::OK])
        }),
        case("OPEN_DOWNGRADE INVAL of access", move |b| {
            let (id, fh) = b.client.open(&b.dir.clone(), b"f", SHARE_ACCESS_READ, 0)?;
            b.at(&fh, vec![down(id, SHARE_ACCESS_BOTH, 0)], &[S::INVAL])
        }),
        case("OPEN_DOWNGRADE INVAL of deny", move |b| {
            with_open(b, move |id| down(id, SHARE_ACCESS_BOTH, open::SHARE_DENY_READ), &[S::INVAL])
        }),
        case("OPEN_DOWNGRADE INVAL of nothing", move |b| with_open(b, move |id| down(id, 0, 0), &[S::INVAL])),
        case("OPEN_DOWNGRADE BAD_STATEID", move |b| {
            b.at(&b.file.clone(), vec![down(NOBODYS, SHARE_ACCESS_READ, 0)], &UNKNOWN)
        }),
        case("OPEN_DOWNGRADE NOFILEHANDLE", move |b| b.nowhere(down(NOBODYS, SHARE_ACCESS_READ, 0))),
    ]
}

fn locks() -> Vec<Case> {
    vec![
        case("LOCK OK", |b| with_open(b, |id| lock(id, b"o", (0, u64::MAX), false), &[S::OK])),
        case("LOCK DENIED", |b| {
            let (id, _, fh) = locked(b)?;
            b.at(&fh, vec![lock(id, b"other", (5, 1), false)], &[S::DENIED])
        }),
        case("LOCK OK beside", |b| {
            let (id, _, fh) = locked(b)?;
            b.at(&fh, vec![lock(id, b"other", (10, 1), false)], &[S::OK])
        }),
        case("LOCK INVAL of nothing", |b| with_open(b, |id| lock(id, b"o", (5, 0), false), &[S::INVAL])),
        case("LOCK INVAL beyond the end", |b| {
            with_open(b, |id| lock(id, b"o", (u64::MAX - 1, 5), false), &[S::INVAL, S::BAD_RANGE])
        }),
        case("LOCK OPENMODE", |b| {
            let (id, fh) = b.client.open(&b.dir.clone(), b"f", SHARE_ACCESS_READ, 0)?;
            b.at(&fh, vec![lock(id, b"o", (0, 1), false)], &[S::OPENMODE])
        }),
        case("LOCK NO_GRACE", |b| with_open(b, |id| lock(id, b"o", (0, 1), true), &[S::NO_GRACE])),
        case("LOCK BAD_STATEID", |b| {
            b.at(&b.file.clone(), vec![lock(NOBODYS, b"o", (0, 1), false)], &UNKNOWN)
        }),
        case("LOCK ISDIR", |b| {
            let (id, _) = opened(b)?;
            b.here(vec![lock(id, b"o", (0, 1), false)], &[S::ISDIR, S::BAD_STATEID])
        }),
        case("LOCK NOFILEHANDLE", |b| b.nowhere(lock(NOBODYS, b"o", (0, 1), false))),
        case("LOCKT OK", |b| b.at(&b.file.clone(), vec![test((0, 1))], &[S::OK])),
        case("LOCKT DENIED", |b| {
            let (_, _, fh) = locked(b)?;
            b.at(&fh, vec![test((0, 1))], &[S::DENIED])
        }),
        case("LOCKT OK beside", |b| {
            let (_, _, fh) = locked(b)?;
            b.at(&fh, vec![test((10, 1))], &[S::OK])
        }),
        case("LOCKT INVAL", |b| b.at(&b.file.clone(), vec![test((0, 0))], &[S::INVAL])),
        case("LOCKT ISDIR", |b| b.here(vec![test((0, 1))], &[S::ISDIR])),
        case("LOCKT NOFILEHANDLE", |b| b.nowhere(test((0, 1)))),
        case("LOCKU OK", |b| {
            let (_, id, fh) = locked(b)?;
            b.at(&fh, vec![Op::locku(id, LockType::WRITE, 0, 5), test((0, 5))], &[S::OK])
        }),
        case("LOCKU OLD_STATEID", |b| {
            let (_, id, fh) = locked(b)?;
            b.at(&fh, vec![Op::locku(id, LockType::WRITE, 0, 5)], &[S::OK])?;
            b.at(&fh, vec![Op::locku(id, LockType::WRITE, 0, 5)], &[S::OLD_STATEID])
        }),
        case("LOCKU INVAL", |b| {
            let (_, id, fh) = locked(b)?;
            b.at(&fh, vec![Op::locku(id, LockType::WRITE, 0, 0)], &[S::INVAL])
        }),
        case("LOCKU BAD_STATEID", |b| {
            b.at(&b.file.clone(), vec![Op::locku(NOBODYS, LockType::WRITE, 0, 1)], &UNKNOWN)
        }),
        case("LOCKU BAD_STATEID of open", |b| {
            with_open(b, |id| Op::locku(id, LockType::WRITE, 0, 1), &[S::BAD_STATEID])
        }),
        case("LOCKU NOFILEHANDLE", |b| b.nowhere(Op::locku(NOBODYS, LockType::WRITE, 0, 1))),
    ]
}

fn stateids() -> Vec<Case> {
    /// Checks the status that TEST_STATEID returns for one stateid.
    fn tested(b: &mut Bench, id: Stateid, expected: &[S]) -> Checked {
        let mut r = b.client.ok(vec![Op::TestStateid(vec![id].into())])?;
        let said = r.test_stateid().map_err(|e| e.to_string())?;
        is_one_of(said.first().copied().unwrap_or(S::SERVERFAULT), expected)
    }
    vec![
        case("TEST_STATEID OK", |b| {
            let (id, _) = opened(b)?;
            tested(b, id, &[S::OK])
        }),
        case("TEST_STATEID OLD_STATEID", |b| {
            let (id, _) = opened(b)?;
            opened(b)?;
            tested(b, id, &[S::OLD_STATEID])
        }),
        case("TEST_STATEID BAD_STATEID", |b| tested(b, NOBODYS, &UNKNOWN)),
        case("TEST_STATEID BAD_STATEID of special", |b| tested(b, Stateid::ANONYMOUS, &[S::BAD_STATEID])),
        case("FREE_STATEID BAD_STATEID", |b| b.client.ends(vec![Op::FreeStateid(NOBODYS)], &UNKNOWN)),
        case("FREE_STATEID LOCKS_HELD by open", |b| {
            let (id, _) = opened(b)?;
            b.client.ends(vec![Op::FreeStateid(id)], &[S::LOCKS_HELD])
        }),
        case("FREE_STATEID LOCKS_HELD", |b| {
            let (_, id, _) = locked(b)?;
            b.client.ends(vec![Op::FreeStateid(id)], &[S::LOCKS_HELD])
        }),
        case("FREE_STATEID OK", |b| {
            let (_, id, fh) = locked(b)?;
            let mut r = b.client.ok(vec![Op::putfh(&fh), Op::locku(id, LockType::WRITE, 0, 10)])?;
            r.putfh().map_err(|e| e.to_string())?;
            let id = r.locku().map_err(|e| e.to_string())?;
            b.client.ends(vec![Op::FreeStateid(id)], &[S::OK])?;
            tested(b, id, &[S::BAD_STATEID])
        }),
    ]
}
