//! A running server under invalid calls: sampled compounds and procedures with real handles,
//! stateids and sessions, so that they get far, and with changed bytes. Each call is answered, or
//! its connection ends. Afterwards the server still serves, and it holds no state of clients that
//! have gone. `HITHER_HOSTILE_CALLS` sets the number of calls.

use super::{Client, Lab, Wire, model};
use hither_proto::nfs3;
use hither_proto::nfs4::*;
use hither_proto::sample::{Sample, Source};
use hither_proto::xdr::Enc;
use std::time::Duration;
use tokio::time::timeout;

/// Number of calls in one run.
fn calls() -> usize {
    std::env::var("HITHER_HOSTILE_CALLS").ok().and_then(|n| n.parse().ok()).unwrap_or(3000)
}

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| (self.next() >> 24) as u8).collect()
    }
}

/// Usually replaces sampled handles and stateids by real ones.
fn plausible(op: Op, dice: &mut Dice, handles: &[Fh], stateids: &[Stateid]) -> Op {
    let id = |old: Stateid, dice: &mut Dice| match dice.below(4) {
        0 => old,
        _ => stateids[dice.below(stateids.len())],
    };
    match op {
        // The next call needs the session.
        Op::DestroySession(_) | Op::DestroyClientid(_) | Op::Sequence(_) => Op::Putrootfh,
        Op::Putfh(old) => {
            Op::Putfh(if dice.below(5) == 0 { old } else { handles[dice.below(handles.len())].clone() })
        }
        Op::Read(a) => Op::Read(ReadArgs { stateid: id(a.stateid, dice), offset: a.offset, count: a.count }),
        Op::Write(a) => {
            Op::Write(WriteArgs { stateid: id(a.stateid, dice), offset: a.offset % (1 << 20), ..a })
        }
        Op::Setattr(mut a) => {
            a.stateid = id(a.stateid, dice);
            a.attrs.size = a.attrs.size.map(|s| s % (1 << 24));
            Op::Setattr(a)
        }
        Op::Close(a) => Op::Close(CloseArgs { stateid: id(a.stateid, dice), ..a }),
        Op::OpenDowngrade(a) => Op::OpenDowngrade(OpenDowngradeArgs { stateid: id(a.stateid, dice), ..a }),
        Op::Locku(a) => Op::Locku(LockuArgs { lock_stateid: id(a.lock_stateid, dice), ..a }),
        Op::FreeStateid(old) => Op::FreeStateid(id(old, dice)),
        Op::Allocate(a) => Op::Allocate(RangeArgs { stateid: id(a.stateid, dice), ..a }),
        Op::Deallocate(a) => Op::Deallocate(RangeArgs { stateid: id(a.stateid, dice), ..a }),
        Op::Seek(a) => Op::Seek(SeekArgs { stateid: id(a.stateid, dice), ..a }),
        other => other,
    }
}

fn change(body: Enc, dice: &mut Dice) -> Enc {
    let mut bytes = body.to_bytes().to_vec();
    for _ in 0..=dice.below(4) {
        let at = dice.below(bytes.len().max(1));
        if let Some(b) = bytes.get_mut(at) {
            *b = dice.next() as u8;
        }
    }
    if dice.below(4) == 0 {
        bytes.truncate(dice.below(bytes.len() + 1));
    }
    let mut out = Enc::new();
    out.raw(&bytes);
    out
}

/// Accepts any reply or the end of the connection. Silence fails the test.
async fn any_answer(wire: &mut Wire, prog: u32, vers: u32, proc: u32, args: Enc) -> bool {
    wire.xid += 1;
    wire.send(prog, vers, proc, args).await;
    timeout(Duration::from_secs(120), wire.answered()).await.expect("the server is silent")
}

/// Random and damaged calls neither stop the server nor leave state behind. A later client is
/// served as usual.
#[tokio::test]
async fn hostile_calls_leave_server_usable() {
    let model = model();
    let lab = Lab::new(&model, "/", 2, None);
    let mut dice = Dice(0x1234_5678_9abc_def1);
    let mut c = lab.client("hostile").await;
    c.reclaim_complete().await;
    let (stateid, fh) = c.open("file", "x", 3, 0).await.unwrap();
    let mut r = c.run(vec![Op::Putrootfh, Op::Getfh]).await;
    r.putrootfh().unwrap();
    let handles = [fh, r.getfh().unwrap()];
    let stateids = [stateid, Stateid::ANONYMOUS, Stateid::CURRENT, stateid.any_seqid()];
    for _ in 0..calls() {
        let decisions = dice.bytes(600);
        let mut source = match dice.below(2) {
            0 => Source::new(&decisions),
            _ => Source::plain(&decisions),
        };
        let alive = if dice.below(3) == 0 {
            let call = nfs3::Call3::sample(&mut source);
            let mut body = Enc::new();
            call.encode(&mut body);
            let body = if dice.below(3) == 0 { change(body, &mut dice) } else { body };
            any_answer(&mut c.wire, nfs3::PROGRAM, 3, call.procedure().0, body).await
        } else {
            let mut ops: Vec<Op> = vec![];
            for _ in 0..1 + dice.below(8) {
                let op = Op::sample(&mut source);
                ops.push(plausible(op, &mut dice, &handles, &stateids));
            }
            c.seq += 1;
            let mut all = vec![c.sequence(dice.below(2) == 0), Op::putfh(&handles[dice.below(2)])];
            all.extend(ops);
            let body = Enc::of(&Compound::new(2, all));
            let changed = dice.below(4) == 0;
            let body = if changed { change(body, &mut dice) } else { body };
            any_answer(&mut c.wire, PROGRAM, VERSION, 1, body).await
        };
        // The changed call may have used up the slot, or ended the session or the connection.
        let next = Compound::new(
            2,
            vec![Op::Sequence(SequenceArgs {
                sessionid: c.session,
                sequenceid: c.seq + 1,
                slotid: 0,
                highest_slotid: 0,
                cachethis: false,
            })],
        );
        let mut usable = alive;
        if alive {
            let status = c.wire.call(&next).await.status;
            usable = status == Nfsstat4::OK;
            c.seq += 1;
        }
        if !usable {
            c = Client::new(lab.connect(), "hostile", dice.next() as u8).await;
            c.run(vec![Op::ReclaimComplete(false)]).await;
        }
    }
    let mut sane = lab.client("sane").await;
    sane.reclaim_complete().await;
    let (id, fh) = sane.open("another", "x", 3, 0).await.unwrap();
    let close = Op::Close(CloseArgs { seqid: 0, stateid: id });
    let mut r = sane.run(vec![Op::putfh(&fh), close]).await;
    r.putfh().unwrap();
    r.close().unwrap();
    for client in lab.server.v4.clients.all() {
        lab.server.v4.expire(&client).await;
    }
    assert_eq!((lab.server.v4.clients.count(), lab.server.v4.registry.count()), (0, 0));
    timeout(Duration::from_secs(120), async {
        while model.open_count() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("opens of the layer below end with those of clients");
}
