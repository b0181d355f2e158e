//! Slots: sequence numbers, waiters, targets.

use super::*;

fn session(slots: u32) -> Arc<Session> {
    let limits = Limits {
        max_request_bytes: 1,
        max_response_bytes: 1,
        max_cached_bytes: 1,
        max_ops: 1,
        max_slots: slots,
    };
    Session::new([7; 16], 1, limits)
}

/// The sequence number changes only when the server executed the request.
#[tokio::test]
async fn sequence_numbers() {
    let s = session(1);
    let mut g = s.acquire().await.unwrap();
    assert_eq!((g.slot(), g.seqid()), (0, 1));
    g.sent();
    g.replied(false);
    let mut g = s.acquire().await.unwrap();
    assert_eq!(g.seqid(), 1);
    g.sent();
    g.replied(true);
    assert_eq!(s.acquire().await.unwrap().seqid(), 2);
}

/// A sent request keeps its slot even when the sender is dropped. An unsent request returns its
/// slot.
#[tokio::test]
async fn abandoned_request_keeps_its_slot() {
    let s = session(2);
    let mut first = s.acquire().await.unwrap();
    first.sent();
    drop(first);
    drop(s.acquire().await.unwrap());
    assert_eq!(s.in_flight(), 1);
    assert_eq!(s.acquire().await.unwrap().slot(), 1);
}

/// Waiters are served in order. A dropped waiter does not keep a slot.
#[tokio::test]
async fn waiters_in_order() {
    let s = session(1);
    let g = s.acquire().await.unwrap();
    let gone = tokio::spawn({
        let s = s.clone();
        async move { s.acquire().await.map(|_| ()) }
    });
    tokio::task::yield_now().await;
    let next = tokio::spawn({
        let s = s.clone();
        async move { s.acquire().await.map(|g| g.slot()) }
    });
    tokio::task::yield_now().await;
    gone.abort();
    tokio::task::yield_now().await;
    drop(g);
    assert_eq!(next.await.unwrap(), Ok(0));
}

/// The server's target shrinks and grows the table. A slot keeps its sequence number.
#[tokio::test]
async fn adapts_to_target() {
    let s = session(8);
    let (a, mut b) = (s.acquire().await.unwrap(), s.acquire().await.unwrap());
    assert_eq!((a.highest(), b.slot()), (1, 1));
    b.sent();
    b.replied(true);
    s.adapt(0, 7);
    let waiting = s.acquire();
    tokio::pin!(waiting);
    assert!(futures_pending(&mut waiting).await);
    s.adapt(7, 7);
    let b = waiting.await.unwrap();
    assert_eq!((b.slot(), b.seqid()), (1, 2));
}

/// A close wakes all waiters.
#[tokio::test]
async fn close_wakes() {
    let s = session(1);
    let _held = s.acquire().await.unwrap();
    let waiting = s.acquire();
    tokio::pin!(waiting);
    assert!(futures_pending(&mut waiting).await);
    s.close();
    assert!(matches!(waiting.await, Err(SessionClosed)));
    assert!(matches!(s.acquire().await, Err(SessionClosed)));
}

async fn futures_pending<F: Future + Unpin>(f: &mut F) -> bool {
    std::future::poll_fn(|cx| std::task::Poll::Ready(std::pin::Pin::new(&mut *f).poll(cx).is_pending())).await
}
