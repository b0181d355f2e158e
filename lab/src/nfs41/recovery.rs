//! Reclaims after a restart of the server: RFC 8881 sections 8.4.2.1, 18.10, 18.16, 18.51.
//!
//! Clients get opens and locks, and the server is killed and started. The steps after that follow
//! one another: a lock is reclaimed after its open, for example. One restart serves all versions,
//! because each grace period takes some seconds.

use super::bench::{Bench, Checked, Client, Target, channel, create_session, is_one_of, open_args};
use super::state::{lock, test};
use crate::clock;
use bytes::Bytes;
use hither_proto::nfs4::open::{SHARE_ACCESS_BOTH, SHARE_ACCESS_READ, SHARE_DENY_WRITE};
use hither_proto::nfs4::{Nfsstat4 as S, *};
use std::time::Duration;

/// Longest wait for the end of a grace period.
const GRACE_MAX: Duration = Duration::from_secs(40);
/// The allowed statuses for state from before the restart. RFC 8881 section 15.1 has
/// NFS4ERR_STALE_STATEID for NFSv4.0 only, but servers return it.
const STALE: [S; 2] = [S::STALE_STATEID, S::BAD_STATEID];
/// The allowed statuses of a reclaim that conflicts with another one.
const CONFLICT: [S; 2] = [S::RECLAIM_CONFLICT, S::RECLAIM_BAD];
/// The bytes that the keeper has locked.
const LOCKED: (u64, u64) = (0, 10);

/// The state of a client from before the restart.
struct Old {
    id: Clientid,
    next: u32,
    session: Sessionid,
    seq: u32,
    open: Stateid,
    lock: Stateid,
}

/// Clients whose server restarts.
pub struct Recovery {
    /// The fixture. Its client, the keeper, has the file open and locked.
    b: Bench,
    old: Old,
    /// The keeper's state after its reclaim.
    open: Stateid,
    lock: Stateid,
    /// A client that reclaims an open, and would reclaim too much.
    rival: Client,
    /// A client that reclaims only after RECLAIM_COMPLETE.
    late: Client,
    /// A client that does not come back in the grace period.
    silent: Client,
    /// A client that the server has not known before the restart.
    stranger: Option<Client>,
}

/// A check with its name, as with [`super::Case`]. It may need the effects of the steps before it.
pub type Step = (&'static str, fn(&mut Recovery) -> Checked);

/// Makes a step.
fn step(name: &'static str, check: fn(&mut Recovery) -> Checked) -> Step {
    (name, check)
}

/// Reclaims an open of the current filehandle.
fn previous(access: u32, deny: u32) -> Op {
    let args = open_args(b"owner", access, OpenClaim::Previous(DelegationType::NONE));
    Op::Open(OpenArgs { share_deny: deny, ..args })
}

/// OPEN of the file in the directory.
fn anew(access: u32, deny: u32) -> Op {
    let args = open_args(b"owner", access, OpenClaim::Null(b"f"[..].into()));
    Op::Open(OpenArgs { share_deny: deny, ..args })
}

fn write(id: Stateid) -> Op {
    Op::write(id, 0, StableHow::FILE_SYNC, Bytes::from_static(b"bytes"))
}

/// Sends operations of a client on a file. Checks that the last one ends with one of these
/// statuses.
fn at(client: &mut Client, fh: &Fh, ops: Vec<Op>, expected: &[S]) -> Checked {
    client.ends(std::iter::once(Op::putfh(fh)).chain(ops).collect(), expected)
}

/// Opens or locks a file with the last operation. Returns the new stateid.
fn get(client: &mut Client, fh: &Fh, op: Op) -> Result<Stateid, String> {
    let is_open = matches!(op, Op::Open(_));
    let mut r = client.ok(vec![Op::putfh(fh), op])?;
    r.putfh().map_err(|e| e.to_string())?;
    let id = if is_open { r.open().map(|opened| opened.stateid) } else { r.lock() };
    id.map_err(|e| e.to_string())
}

impl Recovery {
    /// Makes the clients and their state.
    pub fn prepare(target: &Target, minor: u32) -> Result<Self, String> {
        let mut b = Bench::new(target, minor)?;
        let (open, fh) = b.client.open(&b.dir.clone(), b"f", SHARE_ACCESS_BOTH, 0)?;
        let locked = get(&mut b.client, &fh, lock(open, b"holder", LOCKED, false))?;
        let (other, to) = b.client.open(&b.dir.clone(), b"n", SHARE_ACCESS_BOTH, 0)?;
        b.client.ok(vec![Op::putfh(&to), Op::close(other)])?;
        let another = || -> Result<Client, String> {
            let mut client = b.another()?;
            client.open(&b.dir, b"f", SHARE_ACCESS_BOTH, 0)?;
            Ok(client)
        };
        let (rival, late, silent) = (another()?, another()?, another()?);
        let Client { id, next, session, seq, .. } = b.client;
        let old = Old { id, next, session, seq, open, lock: locked };
        Ok(Self { b, old, open, lock: locked, rival, late, silent, stranger: None })
    }

    /// Waits until the server grants new opens again.
    pub fn wait_for_grace(&mut self) -> Checked {
        let (dir, end) = (self.b.dir.clone(), clock::now() + GRACE_MAX);
        loop {
            let opened = self.b.client.run(vec![Op::putfh(&dir), anew(SHARE_ACCESS_READ, 0)])?.status();
            if opened != S::GRACE || clock::now() > end {
                return is_one_of(opened, &[S::OK]);
            }
            clock::pause(Duration::from_millis(250));
        }
    }

    /// Sends an operation outside of sessions.
    fn alone(&mut self, op: Op, expected: &[S]) -> Checked {
        is_one_of(self.b.client.alone(op)?.status, expected)
    }

    /// Sends an operation of the keeper on the file.
    fn keeper(&mut self, op: Op, expected: &[S]) -> Checked {
        self.b.at(&self.b.file.clone(), vec![op], expected)
    }

    /// As [`Self::keeper`], of the rival.
    fn rival(&mut self, op: Op, expected: &[S]) -> Checked {
        at(&mut self.rival, &self.b.file, vec![op], expected)
    }

    /// As [`Self::keeper`], of the stranger, on the file or the directory.
    fn stranger(&mut self, on_dir: bool, ops: Vec<Op>, expected: &[S]) -> Checked {
        let client = self.stranger.as_mut().ok_or("the stranger has no session")?;
        at(client, if on_dir { &self.b.dir } else { &self.b.file }, ops, expected)
    }

    /// The status that TEST_STATEID returns for a stateid of the keeper.
    fn tested(&mut self, id: Stateid, expected: &[S]) -> Checked {
        let mut r = self.b.client.ok(vec![Op::TestStateid(vec![id].into())])?;
        let said = r.test_stateid().map_err(|e| e.to_string())?;
        is_one_of(said.first().copied().unwrap_or(S::SERVERFAULT), expected)
    }
}

/// The steps in the grace period, in their order.
pub fn in_grace(minor: u32) -> Vec<Step> {
    let mut all = old_clients();
    all.extend(old_stateids());
    all.extend(reclaims());
    all.extend(conflicts());
    all.extend(strangers());
    if minor >= 2 {
        all.extend(newer());
    }
    all.extend(completes());
    all
}

fn old_clients() -> Vec<Step> {
    vec![
        step("SEQUENCE BADSESSION after restart", |r| {
            r.b.client.wire = r.b.wire()?;
            let (sessionid, sequenceid) = (r.old.session, r.old.seq + 1);
            let args = SequenceArgs { sessionid, sequenceid, slotid: 0, highest_slotid: 0, cachethis: false };
            r.alone(Op::Sequence(args), &[S::BADSESSION])
        }),
        step("BIND_CONN_TO_SESSION BADSESSION after restart", |r| {
            let (sessionid, dir) = (r.old.session, ChannelDirFromClient::FORE);
            let args = BindConnToSessionArgs { sessionid, dir, use_conn_in_rdma_mode: false };
            r.alone(Op::BindConnToSession(args), &[S::BADSESSION])
        }),
        step("DESTROY_SESSION BADSESSION after restart", |r| {
            r.alone(Op::DestroySession(r.old.session), &[S::BADSESSION])
        }),
        step("CREATE_SESSION STALE_CLIENTID after restart", |r| {
            let args = create_session(r.old.id, r.old.next, channel());
            r.alone(Op::CreateSession(args), &[S::STALE_CLIENTID])
        }),
        step("DESTROY_CLIENTID STALE_CLIENTID after restart", |r| {
            r.alone(Op::DestroyClientid(r.old.id), &[S::STALE_CLIENTID])
        }),
        step("EXCHANGE_ID OK after restart", |r| {
            r.b.client.introduce(channel())?;
            if r.b.client.id == r.old.id { Err("the client's number is the old one".into()) } else { Ok(()) }
        }),
    ]
}

fn old_stateids() -> Vec<Step> {
    vec![
        step("READ STALE_STATEID after restart", |r| r.keeper(Op::read(r.old.open, 0, 10), &STALE)),
        step("WRITE STALE_STATEID after restart", |r| r.keeper(write(r.old.lock), &STALE)),
        step("CLOSE STALE_STATEID after restart", |r| r.keeper(Op::close(r.old.open), &STALE)),
        step("OPEN_DOWNGRADE STALE_STATEID after restart", |r| {
            r.keeper(Op::open_downgrade(r.old.open, SHARE_ACCESS_READ, 0), &STALE)
        }),
        step("LOCK STALE_STATEID after restart", |r| {
            r.keeper(lock(r.old.open, b"holder", LOCKED, true), &STALE)
        }),
        step("LOCKU STALE_STATEID after restart", |r| {
            r.keeper(Op::locku(r.old.lock, LockType::WRITE, 0, 10), &STALE)
        }),
        step("TEST_STATEID STALE_STATEID after restart", |r| r.tested(r.old.open, &STALE)),
        step("FREE_STATEID STALE_STATEID after restart", |r| {
            r.b.client.ends(vec![Op::FreeStateid(r.old.lock)], &STALE)
        }),
    ]
}

fn reclaims() -> Vec<Step> {
    vec![
        step("OPEN GRACE before reclaim", |r| r.b.here(vec![anew(SHARE_ACCESS_READ, 0)], &[S::GRACE])),
        step("OPEN INVAL reclaim with creation", |r| {
            let args = open_args(b"owner", SHARE_ACCESS_BOTH, OpenClaim::Previous(DelegationType::NONE));
            let how = Some(CreateHow::Unchecked(Attrs::default()));
            r.keeper(Op::Open(OpenArgs { how, ..args }), &[S::INVAL])
        }),
        step("OPEN reclaim of directory", |r| {
            r.b.here(vec![previous(SHARE_ACCESS_BOTH, 0)], &[S::ISDIR, S::WRONG_TYPE, S::RECLAIM_BAD])
        }),
        step("OPEN OK reclaim", |r| {
            r.open = get(&mut r.b.client, &r.b.file, previous(SHARE_ACCESS_BOTH, 0))?;
            Ok(())
        }),
        step("OPEN OK reclaim repeated", |r| {
            r.open = get(&mut r.b.client, &r.b.file, previous(SHARE_ACCESS_BOTH, 0))?;
            Ok(())
        }),
        step("TEST_STATEID OK of reclaimed open", |r| r.tested(r.open, &[S::OK])),
        // A server may defer reads and writes until it knows all locks.
        step("READ of reclaimed open", |r| r.keeper(Op::read(r.open, 0, 10), &[S::OK, S::GRACE])),
        step("WRITE of reclaimed open", |r| r.keeper(write(r.open), &[S::OK, S::GRACE])),
        step("LOCK GRACE of reclaimed open", |r| {
            r.keeper(lock(r.open, b"holder", (20, 10), false), &[S::GRACE])
        }),
        step("LOCKT GRACE", |r| r.keeper(test((20, 10)), &[S::GRACE])),
        step("LOCK OK reclaim", |r| {
            r.lock = get(&mut r.b.client, &r.b.file, lock(r.open, b"holder", LOCKED, true))?;
            Ok(())
        }),
        step("LOCKU OK of reclaimed lock", |r| {
            let unlock = Op::locku(r.lock, LockType::WRITE, 5, 5);
            let mut results = r.b.client.ok(vec![Op::putfh(&r.b.file), unlock])?;
            results.putfh().map_err(|e| e.to_string())?;
            r.lock = results.locku().map_err(|e| e.to_string())?;
            Ok(())
        }),
    ]
}

fn conflicts() -> Vec<Step> {
    vec![
        step("EXCHANGE_ID OK of second client after restart", |r| {
            r.rival.wire = r.b.wire()?;
            r.rival.introduce(channel())
        }),
        step("OPEN RECLAIM_CONFLICT of deny", |r| {
            r.rival(previous(SHARE_ACCESS_BOTH, SHARE_DENY_WRITE), &CONFLICT)
        }),
        step("OPEN OK reclaim beside", |r| r.rival(previous(SHARE_ACCESS_BOTH, 0), &[S::OK])),
        step("LOCK RECLAIM_CONFLICT", |r| {
            let id = get(&mut r.rival, &r.b.file, previous(SHARE_ACCESS_BOTH, 0))?;
            r.rival(lock(id, b"rival", (0, 5), true), &CONFLICT)
        }),
        step("LOCK OK reclaim beside", |r| {
            let id = get(&mut r.rival, &r.b.file, previous(SHARE_ACCESS_BOTH, 0))?;
            r.rival(lock(id, b"rival", (100, 5), true), &[S::OK])
        }),
    ]
}

fn strangers() -> Vec<Step> {
    vec![
        step("EXCHANGE_ID OK of new client in grace", |r| {
            r.stranger = Some(Client::early(r.b.wire()?, r.b.client.minor, channel())?);
            Ok(())
        }),
        step("OPEN reclaim of new client", |r| {
            r.stranger(false, vec![previous(SHARE_ACCESS_READ, 0)], &[S::NO_GRACE, S::RECLAIM_BAD])
        }),
        step("RECLAIM_COMPLETE OK of new client in grace", |r| {
            r.stranger(false, vec![Op::ReclaimComplete(false)], &[S::OK])
        }),
        step("OPEN GRACE of new client", |r| r.stranger(true, vec![anew(SHARE_ACCESS_READ, 0)], &[S::GRACE])),
        step("OPEN GRACE of creation", |r| {
            let args = open_args(b"owner", SHARE_ACCESS_BOTH, OpenClaim::Null(b"new"[..].into()));
            let how = Some(CreateHow::Unchecked(Attrs::default()));
            r.stranger(true, vec![Op::Open(OpenArgs { how, ..args })], &[S::GRACE])
        }),
        step("OPEN GRACE by handle", |r| {
            let open = Op::Open(open_args(b"owner", SHARE_ACCESS_READ, OpenClaim::Fh));
            r.stranger(false, vec![open], &[S::GRACE])
        }),
        step("READ GRACE without open", |r| {
            r.stranger(false, vec![Op::read(Stateid::ANONYMOUS, 0, 10)], &[S::GRACE])
        }),
        step("WRITE GRACE without open", |r| r.stranger(false, vec![write(Stateid::ANONYMOUS)], &[S::GRACE])),
        step("SETATTR GRACE of size", |r| {
            let attrs = Attrs { size: Some(5), ..Attrs::default() };
            r.stranger(false, vec![Op::setattr(Stateid::ANONYMOUS, attrs)], &[S::GRACE])
        }),
        step("LOCKT GRACE of new client", |r| r.stranger(false, vec![test((20, 10))], &[S::GRACE])),
        step("LOOKUP OK in grace", |r| r.stranger(true, vec![Op::lookup(b"f")], &[S::OK])),
        step("GETATTR OK in grace", |r| {
            r.stranger(false, vec![Op::getattr(&Bitmap4::of(&[attr::SIZE]))], &[S::OK])
        }),
    ]
}

fn newer() -> Vec<Step> {
    const GRACE: [S; 2] = [S::GRACE, S::NOTSUPP];
    vec![
        step("ALLOCATE GRACE", |r| r.stranger(false, vec![Op::allocate(Stateid::ANONYMOUS, 0, 100)], &GRACE)),
        step("DEALLOCATE GRACE", |r| {
            r.stranger(false, vec![Op::deallocate(Stateid::ANONYMOUS, 0, 5)], &GRACE)
        }),
        step("COPY GRACE", |r| {
            let args = super::copies::copy_args(Stateid::ANONYMOUS, Stateid::ANONYMOUS);
            let onto = [Op::Savefh, Op::putfh(&r.b.dir), Op::lookup(b"n"), Op::Copy(args)];
            r.stranger(false, onto.to_vec(), &GRACE)
        }),
    ]
}

fn completes() -> Vec<Step> {
    vec![
        step("RECLAIM_COMPLETE OK after restart", |r| r.keeper(Op::ReclaimComplete(false), &[S::OK])),
        step("RECLAIM_COMPLETE COMPLETE_ALREADY after restart", |r| {
            r.keeper(Op::ReclaimComplete(false), &[S::COMPLETE_ALREADY])
        }),
        step("OPEN NO_GRACE after RECLAIM_COMPLETE", |r| {
            r.keeper(previous(SHARE_ACCESS_BOTH, 0), &[S::NO_GRACE])
        }),
        step("LOCK NO_GRACE after RECLAIM_COMPLETE", |r| {
            r.keeper(lock(r.open, b"second", (200, 5), true), &[S::NO_GRACE])
        }),
        step("OPEN GRACE after RECLAIM_COMPLETE", |r| {
            r.b.here(vec![anew(SHARE_ACCESS_READ, 0)], &[S::GRACE])
        }),
        step("RECLAIM_COMPLETE OK of second client", |r| r.rival(Op::ReclaimComplete(false), &[S::OK])),
        step("OPEN NO_GRACE of late client", |r| {
            r.late.wire = r.b.wire()?;
            r.late.introduce(channel())?;
            r.late.ok(vec![Op::ReclaimComplete(false)])?;
            at(&mut r.late, &r.b.file, vec![previous(SHARE_ACCESS_BOTH, 0)], &[S::NO_GRACE])
        }),
    ]
}

/// The steps after the grace period.
pub fn after_grace() -> Vec<Step> {
    vec![
        step("OPEN OK after grace", Recovery::wait_for_grace),
        step("OPEN NO_GRACE after grace", |r| {
            r.silent.wire = r.b.wire()?;
            r.silent.introduce(channel())?;
            let refused = [S::NO_GRACE, S::RECLAIM_BAD];
            at(&mut r.silent, &r.b.file, vec![previous(SHARE_ACCESS_BOTH, 0)], &refused)
        }),
        step("WRITE OK of reclaimed open after grace", |r| r.keeper(write(r.open.any_seqid()), &[S::OK])),
        step("LOCK DENIED by reclaimed lock", |r| {
            let client = r.stranger.as_mut().ok_or("the stranger has no session")?;
            let (id, fh) = client.open(&r.b.dir, b"f", SHARE_ACCESS_BOTH, 0)?;
            at(client, &fh, vec![lock(id, b"o", (0, 1), false)], &[S::DENIED])
        }),
        step("LOCK OK beside reclaimed lock", |r| {
            let client = r.stranger.as_mut().ok_or("the stranger has no session")?;
            let (id, fh) = client.open(&r.b.dir, b"f", SHARE_ACCESS_BOTH, 0)?;
            at(client, &fh, vec![lock(id, b"o", (5, 5), false)], &[S::OK])
        }),
        step("OPEN SHARE_DENIED by reclaimed open", |r| {
            r.stranger(true, vec![anew(SHARE_ACCESS_READ, SHARE_DENY_WRITE)], &[S::SHARE_DENIED])
        }),
        step("LOCKU OK of reclaimed lock after grace", |r| {
            r.keeper(Op::locku(r.lock, LockType::WRITE, 0, 5), &[S::OK])
        }),
        step("CLOSE of reclaimed open", |r| r.keeper(Op::close(r.open.any_seqid()), &[S::OK, S::LOCKS_HELD])),
    ]
}
