//! Compounds, clients and sessions: RFC 8881 sections 2.10, 16.2, 18.33 to 18.37, 18.46, 18.50,
//! 18.51.

use super::bench::{Bench, Checked, channel, create_session, exchange, is_one_of, mode, new_owner};
use super::{Case, case};
use hither_proto::nfs4::{Nfsstat4 as S, *};

/// Sends one operation without a session.
fn alone(op: Op, b: &mut Bench, expected: &[S]) -> Checked {
    is_one_of(b.client.alone(op)?.status, expected)
}

/// Sends the operation behind a first operation that must be the only one.
fn not_alone(op: Op, b: &mut Bench) -> Checked {
    let both = vec![op, Op::Putrootfh];
    is_one_of(b.client.wire.call(&Compound::new(b.client.minor, both))?.status, &[S::NOT_ONLY_OP])
}

fn text(e: impl ToString) -> String {
    e.to_string()
}

pub fn cases() -> Vec<Case> {
    let mut all = compounds();
    all.extend(introductions());
    all.extend(principals());
    all.extend(making());
    all.extend(sequences());
    all.extend(limits());
    all.extend(ends());
    all
}

fn compounds() -> Vec<Case> {
    let call = |minor, b: &mut Bench, ops, expected: &[S]| {
        is_one_of(b.client.wire.call(&Compound::new(minor, ops))?.status, expected)
    };
    vec![
        case("COMPOUND OK empty", move |b| call(b.client.minor, b, vec![], &[S::OK])),
        case("COMPOUND MINOR_VERS_MISMATCH", move |b| call(9, b, vec![], &[S::MINOR_VERS_MISMATCH])),
        case("COMPOUND OP_NOT_IN_SESSION", move |b| {
            call(b.client.minor, b, vec![Op::Putrootfh], &[S::OP_NOT_IN_SESSION])
        }),
        case("COMPOUND OP_ILLEGAL", |b| b.client.ends(vec![Op::Illegal(200)], &[S::OP_ILLEGAL])),
        case("COMPOUND OP_ILLEGAL without session", move |b| {
            call(b.client.minor, b, vec![Op::Illegal(200)], &[S::OP_ILLEGAL, S::OP_NOT_IN_SESSION])
        }),
        case("COMPOUND of NFSv4.2 in NFSv4.1", |b| {
            let seek = Op::seek(Stateid::ANONYMOUS, 0, DataContent::DATA);
            let allowed: &[S] =
                if b.client.minor == 1 { &[S::OP_ILLEGAL, S::NOTSUPP] } else { &[S::NOFILEHANDLE] };
            b.client.ends(vec![seek], allowed)
        }),
        case("RENEW NOTSUPP", |b| b.client.ends(vec![Op::Renew(0)], &[S::NOTSUPP])),
        case("SETCLIENTID_CONFIRM NOTSUPP", |b| {
            let args = SetclientidOk { clientid: 0, confirm: [0; 8] };
            b.client.ends(vec![Op::SetclientidConfirm(args)], &[S::NOTSUPP])
        }),
        case("RELEASE_LOCKOWNER NOTSUPP", |b| {
            let owner = StateOwner { clientid: 0, owner: b"o"[..].into() };
            b.client.ends(vec![Op::ReleaseLockowner(owner)], &[S::NOTSUPP])
        }),
        case("OPEN_CONFIRM NOTSUPP", |b| {
            let args = OpenConfirmArgs { stateid: Stateid::ANONYMOUS, seqid: 0 };
            b.client.ends(vec![Op::Putrootfh, Op::OpenConfirm(args)], &[S::NOTSUPP])
        }),
    ]
}

fn introductions() -> Vec<Case> {
    let update = exchgid::UPD_CONFIRMED_REC_A;
    vec![
        case("EXCHANGE_ID OK again", |b| {
            let op = exchange(&b.client.owner, 0);
            let who = b.client.alone(op)?.results().exchange_id().map_err(text)?;
            match (who.clientid == b.client.id, who.flags & exchgid::CONFIRMED_R != 0) {
                (true, true) => Ok(()),
                found => Err(format!("same number, confirmed: {found:?}")),
            }
        }),
        case("EXCHANGE_ID OK unconfirmed again", |b| {
            let op = exchange(&new_owner(), 0);
            let first = b.client.alone(op.clone())?.results().exchange_id().map_err(text)?;
            let second = b.client.alone(op)?.results().exchange_id().map_err(text)?;
            let late = Op::CreateSession(create_session(first.clientid, first.sequenceid, channel()));
            match second.flags & exchgid::CONFIRMED_R {
                0 if first.clientid != second.clientid => alone(late, b, &[S::STALE_CLIENTID]),
                0 => Ok(()),
                _ => Err("it is confirmed".into()),
            }
        }),
        case("EXCHANGE_ID INVAL of flags", |b| alone(exchange(&new_owner(), 0x400), b, &[S::INVAL])),
        case("EXCHANGE_ID INVAL confirmed", |b| {
            alone(exchange(&new_owner(), exchgid::CONFIRMED_R), b, &[S::INVAL])
        }),
        case("EXCHANGE_ID NOT_ONLY_OP", |b| not_alone(exchange(&new_owner(), 0), b)),
        case("EXCHANGE_ID NOENT", move |b| alone(exchange(&new_owner(), update), b, &[S::NOENT])),
        case("EXCHANGE_ID NOENT unconfirmed", move |b| {
            let owner = new_owner();
            alone(exchange(&owner, 0), b, &[S::OK])?;
            alone(exchange(&owner, update), b, &[S::NOENT])
        }),
        case("EXCHANGE_ID OK update", move |b| {
            let op = exchange(&b.client.owner, update);
            let who = b.client.alone(op)?.results().exchange_id().map_err(text)?;
            match (who.clientid == b.client.id, who.flags & exchgid::CONFIRMED_R != 0) {
                (true, true) => Ok(()),
                found => Err(format!("same number, confirmed: {found:?}")),
            }
        }),
        case("EXCHANGE_ID NOT_SAME", move |b| {
            let other = ClientOwner { verifier: [2; 8], ..b.client.owner.clone() };
            alone(exchange(&other, update), b, &[S::NOT_SAME])
        }),
        case("EXCHANGE_ID restart", |b| {
            // The former instance of the client lasts until the new one has a session.
            let restarted = ClientOwner { verifier: [2; 8], ..b.client.owner.clone() };
            let who = b.client.alone(exchange(&restarted, 0))?.results().exchange_id().map_err(text)?;
            b.client.ends(vec![Op::Putrootfh], &[S::OK])?;
            let args = create_session(who.clientid, who.sequenceid, channel());
            let made = b.client.alone(Op::CreateSession(args))?.results().create_session().map_err(text)?;
            b.client.seq += 1;
            let late = Op::Sequence(b.client.sequence(false));
            is_one_of(b.client.alone(late)?.status, &[S::BADSESSION, S::DEADSESSION])?;
            (b.client.id, b.client.session, b.client.seq) = (who.clientid, made.sessionid, 0);
            b.client.ok(vec![Op::ReclaimComplete(false)]).map(drop)
        }),
        case("EXCHANGE_ID of protection", |b| {
            let none = StateProtectOps { must_enforce: Bitmap4::EMPTY, must_allow: Bitmap4::EMPTY };
            let ssv = StateProtectArgs::Ssv(SsvParms {
                ops: none,
                hash_algs: vec![b"no hash"[..].into()].into(),
                encr_algs: vec![b"no cipher"[..].into()].into(),
                window: 1,
                num_gss_handles: 1,
            });
            let args =
                ExchangeIdArgs { clientowner: new_owner(), flags: 0, state_protect: ssv, impl_id: None };
            let allowed = [S::HASH_ALG_UNSUPP, S::ENCR_ALG_UNSUPP, S::INVAL];
            alone(Op::ExchangeId(args), b, &allowed)
        }),
    ]
}

/// Two users with one client owner (RFC 8881 section 18.35.4, items 3 and 9).
fn principals() -> Vec<Case> {
    vec![
        case("EXCHANGE_ID PERM", |b| {
            let mut other = b.wire()?;
            other.become_user(9);
            let ops = vec![exchange(&b.client.owner, exchgid::UPD_CONFIRMED_REC_A)];
            is_one_of(other.call(&Compound::new(b.client.minor, ops))?.status, &[S::PERM])
        }),
        case("EXCHANGE_ID CLID_INUSE", |b| {
            let mut other = b.wire()?;
            other.become_user(9);
            let ops = vec![exchange(&b.client.owner, 0)];
            b.client.open(&b.dir.clone(), b"f", open::SHARE_ACCESS_READ, 0)?;
            is_one_of(other.call(&Compound::new(b.client.minor, ops))?.status, &[S::CLID_INUSE])
        }),
        case("CREATE_SESSION CLID_INUSE", |b| {
            let op = exchange(&new_owner(), 0);
            let who = b.client.alone(op)?.results().exchange_id().map_err(text)?;
            let mut other = b.wire()?;
            other.become_user(9);
            let args = create_session(who.clientid, who.sequenceid, channel());
            let ops = vec![Op::CreateSession(args)];
            is_one_of(other.call(&Compound::new(b.client.minor, ops))?.status, &[S::CLID_INUSE])
        }),
    ]
}

fn making() -> Vec<Case> {
    let make =
        |b: &Bench, sequence: u32, fore| Op::CreateSession(create_session(b.client.id, sequence, fore));
    vec![
        case("CREATE_SESSION OK", |b| b.client.make_session(channel()).map(drop)),
        case("CREATE_SESSION STALE_CLIENTID", |b| {
            alone(Op::CreateSession(create_session(7, 1, channel())), b, &[S::STALE_CLIENTID])
        }),
        case("CREATE_SESSION SEQ_MISORDERED", move |b| {
            alone(make(b, b.client.next + 1, channel()), b, &[S::SEQ_MISORDERED])
        }),
        case("CREATE_SESSION repeated", move |b| {
            let op = make(b, b.client.next, channel());
            let first = b.client.alone(op.clone())?;
            if b.client.alone(op)? == first && first.status == S::OK {
                Ok(())
            } else {
                Err(format!("the first answer is {first:?}"))
            }
        }),
        case("CREATE_SESSION NOT_ONLY_OP", move |b| not_alone(make(b, b.client.next, channel()), b)),
        case("CREATE_SESSION INVAL", move |b| {
            let args = create_session(b.client.id, b.client.next, channel());
            alone(Op::CreateSession(CreateSessionArgs { flags: 0x100, ..args }), b, &[S::INVAL])
        }),
        case("CREATE_SESSION TOOSMALL request", move |b| {
            let fore = ChannelAttrs { maxrequestsize: 20, ..channel() };
            alone(make(b, b.client.next, fore), b, &[S::TOOSMALL])
        }),
        case("CREATE_SESSION TOOSMALL response", move |b| {
            let fore = ChannelAttrs { maxresponsesize: 20, ..channel() };
            alone(make(b, b.client.next, fore), b, &[S::TOOSMALL])
        }),
        case("CREATE_SESSION OK small", |b| {
            let fore = ChannelAttrs { maxrequestsize: 500, maxresponsesize: 500, ..channel() };
            let made = b.client.make_session(fore)?;
            b.client.ends(vec![Op::Putrootfh], &[S::OK])?;
            let granted = made.fore_chan_attrs;
            if granted.maxrequestsize <= 500 && granted.maxresponsesize <= 500 {
                Ok(())
            } else {
                Err(format!("{granted:?}"))
            }
        }),
    ]
}

/// Sends a SEQUENCE that differs from the next valid one.
fn sequence(b: &mut Bench, change: impl FnOnce(&mut SequenceArgs), expected: &[S]) -> Checked {
    b.client.seq += 1;
    let mut args = b.client.sequence(false);
    change(&mut args);
    let status = b.client.alone(Op::Sequence(args))?.status;
    // A failed SEQUENCE does not change the slot.
    b.client.seq -= u32::from(status != S::OK);
    is_one_of(status, expected)
}

fn sequences() -> Vec<Case> {
    vec![
        case("SEQUENCE BADSESSION", |b| sequence(b, |a| a.sessionid = [7; 16], &[S::BADSESSION])),
        case("SEQUENCE BADSLOT", |b| {
            sequence(b, |a| (a.slotid, a.highest_slotid) = (5000, 5000), &[S::BADSLOT])
        }),
        case("SEQUENCE BAD_HIGH_SLOT", |b| {
            sequence(b, |a| (a.slotid, a.highest_slotid) = (1, 0), &[S::BAD_HIGH_SLOT, S::SEQ_MISORDERED])
        }),
        case("SEQUENCE SEQ_MISORDERED", |b| sequence(b, |a| a.sequenceid += 1, &[S::SEQ_MISORDERED])),
        case("SEQUENCE SEQ_MISORDERED past", |b| {
            b.client.ok(vec![Op::Putrootfh])?;
            b.client.ok(vec![Op::Putrootfh])?;
            sequence(b, |a| a.sequenceid -= 2, &[S::SEQ_MISORDERED])
        }),
        case("SEQUENCE SEQUENCE_POS", |b| {
            let again = Op::Sequence(b.client.sequence(false));
            b.client.ends(vec![Op::Putrootfh, again], &[S::SEQUENCE_POS])
        }),
        case("SEQUENCE repeated", |b| {
            b.client.seq += 1;
            let make = Op::create(CreateType::Dir, b"n", mode(0o755));
            let ops = vec![Op::Sequence(b.client.sequence(true)), Op::putfh(&b.dir), make];
            let compound = Compound::new(b.client.minor, ops);
            let first = b.client.wire.call(&compound)?;
            // The call is repeated on another connection, as after the loss of the first. The flags
            // of SEQUENCE may differ.
            let second = b.wire()?.call(&compound)?;
            let is_same = second.results.get(1..) == first.results.get(1..);
            if is_same && first.status == S::OK && second.status == S::OK {
                Ok(())
            } else {
                Err(format!("{first:?}, then {second:?}"))
            }
        }),
        case("SEQUENCE SEQ_FALSE_RETRY", |b| {
            b.client.seq += 1;
            let of = |b: &Bench, ops: Vec<Op>| {
                let all = std::iter::once(Op::Sequence(b.client.sequence(true))).chain(ops).collect();
                Compound::new(b.client.minor, all)
            };
            let first = of(b, vec![Op::Putrootfh, Op::Getfh]);
            is_one_of(b.client.wire.call(&first)?.status, &[S::OK])?;
            let other = of(b, vec![Op::putfh(&b.dir), Op::remove(b"none"), Op::Getfh]);
            // A server that does not compare calls returns the first answer.
            is_one_of(b.client.wire.call(&other)?.status, &[S::SEQ_FALSE_RETRY, S::OK])
        }),
    ]
}

/// Sends operations in a session with these limits. `cached` asks the server to keep the reply.
fn limited(fore: ChannelAttrs, ops: Vec<Op>, cached: bool, b: &mut Bench, expected: &[S]) -> Checked {
    b.client.make_session(fore)?;
    b.client.seq += 1;
    let all = std::iter::once(Op::Sequence(b.client.sequence(cached))).chain(ops).collect();
    let status = b.client.wire.call(&Compound::new(b.client.minor, all))?.status;
    if !matches!(status, S::TOO_MANY_OPS | S::REQ_TOO_BIG) {
        return is_one_of(status, expected);
    }
    b.client.seq -= 1;
    is_one_of(status, expected)
}

fn limits() -> Vec<Case> {
    let read = |b: &Bench| vec![Op::putfh(&b.file), Op::read(Stateid::ANONYMOUS, 0, 4096)];
    let fill = |b: &mut Bench| -> Checked {
        let (id, fh) = b.client.open(&b.dir.clone(), b"f", open::SHARE_ACCESS_WRITE, 0)?;
        let write = Op::write(id, 0, StableHow::FILE_SYNC, vec![7; 4096].into());
        b.client.ok(vec![Op::putfh(&fh), write, Op::close(id)]).map(drop)
    };
    vec![
        case("SEQUENCE TOO_MANY_OPS", |b| {
            let fore = ChannelAttrs { maxoperations: 4, ..channel() };
            limited(fore, vec![Op::Putrootfh; 8], false, b, &[S::TOO_MANY_OPS])
        }),
        case("SEQUENCE REQ_TOO_BIG", |b| {
            let fore = ChannelAttrs { maxrequestsize: 1100, ..channel() };
            let ops = vec![Op::putfh(&b.dir), Op::lookup(&[b'x'; 2000])];
            limited(fore, ops, false, b, &[S::REQ_TOO_BIG])
        }),
        case("SEQUENCE REP_TOO_BIG", move |b| {
            fill(b)?;
            let fore = ChannelAttrs { maxresponsesize: 600, maxresponsesize_cached: 600, ..channel() };
            // The server may answer with a short READ instead.
            limited(fore, read(b), false, b, &[S::REP_TOO_BIG, S::OK])
        }),
        case("SEQUENCE REP_TOO_BIG_TO_CACHE", move |b| {
            fill(b)?;
            let fore = ChannelAttrs { maxresponsesize_cached: 400, ..channel() };
            limited(fore, read(b), true, b, &[S::REP_TOO_BIG_TO_CACHE])
        }),
        case("SEQUENCE REP_TOO_BIG is not executed", |b| {
            let fore = ChannelAttrs { maxresponsesize: 120, maxresponsesize_cached: 120, ..channel() };
            if b.client.make_session(fore).is_err() {
                // The server does not make sessions as small as that.
                return b.client.make_session(channel()).map(drop).or(Ok(()));
            }
            let make = Op::create(CreateType::Dir, b"n", mode(0o755));
            let refused = b.client.run(vec![Op::putfh(&b.dir), make])?.status();
            let dir = b.dir.clone();
            let mut other = b.another()?;
            let found = other.run(vec![Op::putfh(&dir), Op::lookup(b"n")])?.status();
            match (refused, found) {
                (S::OK, S::OK) | (S::REP_TOO_BIG, S::NOENT) => Ok(()),
                both => Err(format!("CREATE and a LOOKUP afterwards: {both:?}")),
            }
        }),
    ]
}

fn ends() -> Vec<Case> {
    let bind = |sessionid| {
        let dir = ChannelDirFromClient::FORE;
        Op::BindConnToSession(BindConnToSessionArgs { sessionid, dir, use_conn_in_rdma_mode: false })
    };
    vec![
        case("DESTROY_SESSION BADSESSION", |b| alone(Op::DestroySession([7; 16]), b, &[S::BADSESSION])),
        case("DESTROY_SESSION NOT_ONLY_OP", |b| not_alone(Op::DestroySession(b.client.session), b)),
        case("DESTROY_SESSION OK", |b| {
            let old = b.client.session;
            b.client.make_session(channel())?;
            alone(Op::DestroySession(old), b, &[S::OK])?;
            alone(Op::DestroySession(old), b, &[S::BADSESSION])
        }),
        case("BIND_CONN_TO_SESSION OK", move |b| {
            let op = bind(b.client.session);
            is_one_of(b.wire()?.call(&Compound::new(b.client.minor, vec![op]))?.status, &[S::OK])
        }),
        case("BIND_CONN_TO_SESSION BADSESSION", move |b| alone(bind([7; 16]), b, &[S::BADSESSION])),
        case("BIND_CONN_TO_SESSION NOT_ONLY_OP", move |b| not_alone(bind(b.client.session), b)),
        case("DESTROY_CLIENTID STALE_CLIENTID", |b| alone(Op::DestroyClientid(7), b, &[S::STALE_CLIENTID])),
        case("DESTROY_CLIENTID CLIENTID_BUSY", |b| {
            alone(Op::DestroyClientid(b.client.id), b, &[S::CLIENTID_BUSY])
        }),
        case("DESTROY_CLIENTID NOT_ONLY_OP", |b| not_alone(Op::DestroyClientid(b.client.id), b)),
        case("DESTROY_CLIENTID OK", |b| {
            let mut other = b.another()?;
            is_one_of(other.alone(Op::DestroySession(other.session))?.status, &[S::OK])?;
            is_one_of(other.alone(Op::DestroyClientid(other.id))?.status, &[S::OK])?;
            is_one_of(other.alone(Op::DestroyClientid(other.id))?.status, &[S::STALE_CLIENTID])
        }),
        case("RECLAIM_COMPLETE COMPLETE_ALREADY", |b| {
            b.client.ends(vec![Op::ReclaimComplete(false)], &[S::COMPLETE_ALREADY])
        }),
        case("RECLAIM_COMPLETE NOFILEHANDLE", |b| b.nowhere(Op::ReclaimComplete(true))),
        case("RECLAIM_COMPLETE OP_NOT_IN_SESSION", |b| {
            alone(Op::ReclaimComplete(false), b, &[S::OP_NOT_IN_SESSION])
        }),
        case("BACKCHANNEL_CTL OK", |b| {
            let sec_parms = vec![CallbackSec::None].into();
            let args = BackchannelCtlArgs { cb_program: 1 << 30, sec_parms };
            b.client.ends(vec![Op::BackchannelCtl(args)], &[S::OK])
        }),
        case("GET_DIR_DELEGATION", |b| {
            let time = Time::default();
            let args = GetDirDelegationArgs {
                signal_deleg_avail: false,
                notification_types: Bitmap4::EMPTY,
                child_attr_delay: time,
                dir_attr_delay: time,
                child_attributes: Bitmap4::EMPTY,
                dir_attributes: Bitmap4::EMPTY,
            };
            b.here(vec![Op::GetDirDelegation(args)], &[S::OK, S::NOTSUPP, S::DIRDELEG_UNAVAIL])
        }),
        case("FREE_STATEID OP_NOT_IN_SESSION", |b| {
            alone(Op::FreeStateid(Stateid::ANONYMOUS), b, &[S::OP_NOT_IN_SESSION])
        }),
        case("SEQUENCE OK of another connection", |b| {
            let mut wire = b.wire()?;
            std::mem::swap(&mut b.client.wire, &mut wire);
            b.client.ends(vec![Op::Putrootfh], &[S::OK])
        }),
    ]
}
