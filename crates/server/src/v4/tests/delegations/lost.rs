//! Callbacks whose replies are lost or that CB_SEQUENCE refuses (RFC 8881 sections 2.10.6.2 and
//! 20.9).

use super::*;

/// Binds the connection of a client to its session again, for callbacks.
async fn bind(c: &mut Client) {
    let args = BindConnToSessionArgs {
        sessionid: c.session,
        dir: ChannelDirFromClient::BACK,
        use_conn_in_rdma_mode: false,
    };
    let reply = c.wire.call(&Compound::new(2, vec![Op::BindConnToSession(args)])).await;
    reply.results().bind_conn_to_session().unwrap();
}

/// After one lost reply, the next recall reaches a client that checks the numbers of callbacks. The
/// call with the lost reply is repeated first, under its number.
/// Promise: S10
#[tokio::test(start_paused = true)]
async fn lost_reply_delays_no_other_recall() {
    let (lab, f) = lab().await;
    let mut other = lab.client("other").await;
    other.reclaim_complete().await;
    let (open, g) = other.open("g", "x", RW, 0).await.unwrap();
    let close = Op::Close(CloseArgs { seqid: 0, stateid: open });
    assert_eq!(other.status(vec![Op::putfh(&g), close]).await, Nfsstat4::OK);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut holder = callable(&lab, "holder").await;
    let answered = *holder.wire.numbers.last().unwrap();
    holder.wire.slot = Some((answered, None));
    let (of_f, of_g) = (holder.delegation("f").await.unwrap(), holder.delegation("g").await.unwrap());
    let open = |name: &str| {
        let claim = OpenClaim::Null(name.as_bytes().into());
        vec![Op::Putrootfh, Op::Open(open_args("x", RW, 0, claim, false))]
    };
    holder.wire.loses = true;
    assert_eq!(other.status(open("f")).await, Nfsstat4::DELAY);
    holder.wire.listening(Duration::from_secs(20)).await;
    assert_eq!(holder.wire.recalls(), [of_f]);
    holder.wire.loses = false;
    assert_ne!(holder.flags().await & seq4_status::CB_PATH_DOWN_SESSION, 0);
    bind(&mut holder).await;
    holder.give_back(&f, of_f).await.unwrap();
    assert_eq!(other.status(open("g")).await, Nfsstat4::DELAY);
    holder.wire.listening(Duration::from_secs(3)).await;
    // The server repeats a recall until the return.
    let recalls = holder.wire.recalls();
    assert!(!recalls.is_empty() && recalls.iter().all(|id| *id == of_g), "{recalls:?}");
    assert_eq!(holder.wire.numbers[1..4], [answered + 1, answered + 1, answered + 2]);
    holder.give_back(&g, of_g).await.unwrap();
    assert_eq!(other.status(open("g")).await, Nfsstat4::OK);
}

/// A status that says that the client has used the number leads to the next number, under which the
/// call is sent at once. After any other status the number stays. A client that does not know the
/// session is called no more, and SEQUENCE tells it so.
/// Promise: S10
#[tokio::test(start_paused = true)]
async fn refused_callbacks_keep_their_number() {
    let (lab, fh) = lab().await;
    let mut c = callable(&lab, "holder").await;
    let session = lab.server.v4.clients.session(&c.session).unwrap();
    let op = || {
        let stateid = Stateid { seqid: 1, other: [7; 12] };
        CbOp::Recall(CbRecallArgs { stateid, truncate: false, fh: fh.clone() })
    };
    let taken = [Nfsstat4::RETRY_UNCACHED_REP, Nfsstat4::SEQ_FALSE_RETRY, Nfsstat4::SEQ_MISORDERED];
    let disconnected = [Nfsstat4::BADSESSION, Nfsstat4::CONN_NOT_BOUND_TO_SESSION];
    let others = [
        Nfsstat4::DELAY,
        Nfsstat4::BADSLOT,
        Nfsstat4::BAD_HIGH_SLOT,
        Nfsstat4::BADXDR,
        Nfsstat4::REQ_TOO_BIG,
        Nfsstat4::REP_TOO_BIG,
        Nfsstat4::REP_TOO_BIG_TO_CACHE,
        Nfsstat4::SEQUENCE_POS,
        Nfsstat4::TOO_MANY_OPS,
    ];
    for status in [&taken[..], &disconnected, &others].concat() {
        let next = c.wire.numbers.last().unwrap() + 1;
        c.wire.numbers.clear();
        c.wire.refuses = vec![status];
        let mut answers = Vec::new();
        for _ in 0..2 {
            let (session, op) = (session.clone(), op());
            let call = tokio::spawn(async move { session.call_back(2, op).await });
            c.wire.listening(Duration::from_secs(1)).await;
            answers.push(matches!(call.await.unwrap(), Ok(CbRes::Recall(Ok(())))));
            let down = c.flags().await & seq4_status::CB_PATH_DOWN_SESSION != 0;
            assert_eq!(down, answers.len() == 1 && disconnected.contains(&status), "{status:?}");
            if down {
                bind(&mut c).await;
            }
        }
        let expected = if taken.contains(&status) {
            ([true, true], vec![next, next + 1, next + 2])
        } else {
            ([false, true], vec![next, next])
        };
        assert_eq!((answers, &c.wire.numbers), (expected.0.to_vec(), &expected.1), "{status:?}");
    }
}
