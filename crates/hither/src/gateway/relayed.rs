//! Delegations of an origin that a gateway passes on to its clients.
//!
//! While the origin delegates a file or directory to the gateway, the layers of the mount return
//! its attributes with [`Validity::Lease`]. Only then may the server of the gateway delegate it to
//! a client. When the lease ends, the server recalls the client's delegation, and the gateway
//! answers the origin after the client has returned it. The server ends the delegation of a client
//! that does not answer.
//!
//! A delegation for writing is not passed on: the origin's does not exclude the gateway's other
//! callers.

use super::origin::Origin;
use hither_vfs::{
    BoxFuture, ChangeListener, Cred, Fh, File, RequestContext, Unsent, Upcalls, Validity, Watch, Watched,
    WatchedAlone,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

/// The delegations of clients that rest on delegations of one origin. It is the layer above the
/// layers of the mount. It caches nothing itself, and delays nothing.
#[derive(Default)]
pub struct Relayed {
    files: Mutex<HashMap<Fh, Resting>>,
    listener: Mutex<Option<Arc<ChangeListener>>>,
    /// No further delegation begins.
    closed: AtomicBool,
}

/// The delegations of one file.
struct Resting {
    /// Their number.
    count: usize,
    /// The lease of the gateway has ended.
    recalled: bool,
    /// Closed with the last of them.
    alive: watch::Sender<()>,
}

/// One delegation. Drop ends it.
struct Held {
    of: Arc<Relayed>,
    fh: Fh,
}

impl Relayed {
    /// Recalls all delegations, for the end of the gateway. The future ends when all have ended.
    pub fn close(&self) -> BoxFuture<()> {
        self.closed.store(true, Ordering::SeqCst);
        self.revoke_all()
    }

    /// Begins a delegation. `None` while the file is being recalled, and at the end of the gateway.
    fn begin(self: &Arc<Self>, fh: &Fh) -> Option<Held> {
        let mut files = self.files.lock();
        if self.closed.load(Ordering::SeqCst) {
            return None;
        }
        let resting = files.entry(fh.clone()).or_insert_with(|| Resting {
            count: 0,
            recalled: false,
            alive: watch::Sender::new(()),
        });
        if resting.recalled {
            return None;
        }
        resting.count += 1;
        Some(Held { of: self.clone(), fh: fh.clone() })
    }

    fn is_recalled(&self, fh: &Fh) -> bool {
        self.files.lock().get(fh).is_none_or(|resting| resting.recalled)
    }

    /// Recalls the delegations of a file. The future ends when all have ended.
    fn recall(&self, fh: &Fh) -> BoxFuture<()> {
        let mut ended = {
            let mut files = self.files.lock();
            let Some(resting) = files.get_mut(fh) else { return Box::pin(std::future::ready(())) };
            resting.recalled = true;
            resting.alive.subscribe()
        };
        let listener = self.listener.lock().clone();
        if let Some(listener) = listener {
            listener(fh);
        }
        // The sender sends nothing and goes with the last delegation.
        Box::pin(async move { while ended.changed().await.is_ok() {} })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut files = self.of.files.lock();
        if let Some(resting) = files.get_mut(&self.fh) {
            resting.count -= 1;
            if resting.count == 0 {
                files.remove(&self.fh);
            }
        }
    }
}

impl Upcalls for Relayed {
    fn revoke(&self, fh: &Fh) -> BoxFuture<()> {
        self.recall(fh)
    }

    fn unsent(&self, _fh: &Fh) -> Unsent {
        Unsent::Nothing
    }

    fn revoke_all(&self) -> BoxFuture<()> {
        let files: Vec<Fh> = self.files.lock().keys().cloned().collect();
        let recalls: Vec<_> = files.iter().map(|fh| self.recall(fh)).collect();
        Box::pin(async move {
            for recall in recalls {
                recall.await;
            }
        })
    }
}

impl Watch for Origin {
    fn watch(&self, fh: &Fh, alone: bool) -> BoxFuture<Option<Watched>> {
        let live = self.live().filter(|live| !alone && live.client.has_delegations());
        let (relayed, fh) = (self.relayed.clone(), fh.clone());
        Box::pin(async move {
            let live = live?;
            // Begun before the look: a recall after the look finds the delegation.
            let held = relayed.begin(&fh)?;
            let cx = RequestContext::new(Arc::new(Cred::root()));
            let attrs = live.layers.getattr(&cx, File { fh: &fh, open: None }).await.ok()?;
            let is_leased = attrs.valid == Validity::Lease && !relayed.is_recalled(&fh);
            is_leased.then(|| Box::new(held) as Watched)
        })
    }

    fn watch_alone(&self, _fh: &Fh, watched: Watched) -> BoxFuture<WatchedAlone> {
        Box::pin(std::future::ready(Err(Some(watched))))
    }

    fn tell(&self, told: Arc<ChangeListener>) {
        *self.relayed.listener.lock() = Some(told);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    /// A recall ends when the last delegation of the file has ended. Meanwhile no new one begins.
    #[tokio::test(start_paused = true)]
    async fn recall_waits_for_all_delegations() {
        let (relayed, recalls) = (Arc::new(Relayed::default()), Arc::new(AtomicUsize::new(0)));
        let counted = recalls.clone();
        *relayed.listener.lock() = Some(Arc::new(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        }));
        let [fh, other] = [b"f", b"g"].map(|name| Fh(bytes::Bytes::from_static(name)));
        let waits =
            async |recall: BoxFuture<()>| tokio::time::timeout(Duration::from_secs(1), recall).await.is_err();
        assert!(!waits(relayed.revoke(&fh)).await, "there is none");
        let (one, two) = (relayed.begin(&fh).unwrap(), relayed.begin(&fh).unwrap());
        let _other = relayed.begin(&other).unwrap();
        assert!(waits(relayed.revoke(&fh)).await);
        assert!(relayed.begin(&fh).is_none() && relayed.begin(&other).is_some());
        drop(one);
        assert!(waits(relayed.revoke(&fh)).await);
        let recall = relayed.revoke(&fh);
        drop(two);
        assert!(!waits(recall).await);
        assert!(relayed.begin(&fh).is_some(), "the next lease");
        assert_eq!(recalls.load(Ordering::SeqCst), 3);
        assert!(waits(relayed.close()).await, "the other one");
        assert!(relayed.begin(&fh).is_none(), "after the end");
    }
}
