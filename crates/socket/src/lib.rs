//! A socket through which programs use a Vfs: the server of docs/SOCKET.md.
//!
//! The crate depends on the [`Vfs`](hither_vfs::Vfs) interface and the library's wire format, and
//! not on mounts or NFS. Its modules, from the bottom:
//! - `sys` identifies the peer.
//! - `conn` is one connection with its limits.
//! - `frames` sends its replies.
//! - `path` resolves whole paths.
//! - `file` has the open files.
//! - `many` serves requests about many files.
//! - `tree` serves listings and walks.
//! - `watch` reports changes of watched paths.
//! - `names` serves calls that change names.
//!
//! Each request is a task with the program's identity from the kernel. A program that does not read
//! its replies, or sends too many requests, delays only itself.

#![deny(unsafe_code)]

mod conn;
mod file;
mod frames;
mod many;
mod names;
mod path;
mod stats;
#[allow(unsafe_code)]
mod sys;
#[cfg(test)]
mod tests;
mod tree;
mod watch;

pub use stats::SocketStats;

use file::Appending;
use hither_vfs::{Cred, Fh, Invalidator, RequestContext, Touched, Vfs};
use parking_lot::Mutex;
use stats::Stats;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::{OnceCell, watch as channel};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Maximum number of connections, of all users and per user.
const CONNECTIONS_MAX: usize = 256;
const CONNECTIONS_EACH: usize = 64;

/// The settings of the socket.
#[derive(Debug, Clone)]
pub struct Options {
    /// Mount point of the same stack. Absolute symbolic links are followed below it.
    pub dir: PathBuf,
    /// The mounted export: `server:/path`.
    pub source: String,
    /// All changes are refused.
    pub read_only: bool,
    /// An open shows data that other clients closed before it, even when cached state is still
    /// valid.
    pub close_to_open: bool,
    /// Maximum size of a read and a write of the stack in bytes.
    pub max_io_bytes: u32,
    /// Descriptors of files that are completely on the local disk are passed to programs. Only for
    /// exports that never change.
    pub lends: bool,
}

/// The state of all connections.
struct Shared {
    vfs: Arc<dyn Vfs>,
    invalidator: Option<Arc<dyn Invalidator>>,
    options: Options,
    /// The root directory. The first request fetches it, because the start of a mount must not wait
    /// for the server.
    root: OnceCell<Fh>,
    appending: Appending,
    stats: Stats,
    /// Number of connections per user.
    users: Mutex<HashMap<u32, usize>>,
    ending: CancellationToken,
    tasks: TaskTracker,
}

impl Shared {
    /// The root directory.
    async fn root(&self, cx: &RequestContext) -> hither_vfs::Result<Fh> {
        let cx = RequestContext { cancel: cx.cancel.clone(), ..RequestContext::new(Arc::new(Cred::root())) };
        let root = async || self.vfs.root(&cx).await.map(|node| node.fh);
        self.root.get_or_try_init(root).await.cloned()
    }

    /// Runs a change, and invalidates the caches of the other frontend.
    async fn change<T: Send>(&self, touched: &[Touched], call: impl Future<Output = T> + Send) -> T {
        let Some(invalidator) = &self.invalidator else { return call.await };
        let mut out = None;
        let work = Box::pin(async {
            out = Some(call.await);
        });
        invalidator.around(touched, work).await;
        match out {
            Some(out) => out,
            None => unreachable!("`around` runs its work"),
        }
    }
}

/// The running socket server.
pub struct Programs {
    shared: Arc<Shared>,
    alive: channel::Sender<()>,
}

impl Programs {
    /// Serves `vfs` to connecting programs, without a call of `vfs` before the first request.
    /// `invalidator` gets the changes of the programs. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// None at present.
    pub async fn start(
        listener: UnixListener,
        vfs: Arc<dyn Vfs>,
        invalidator: Option<Arc<dyn Invalidator>>,
        options: Options,
    ) -> hither_vfs::Result<Self> {
        let shared = Arc::new(Shared {
            vfs,
            invalidator,
            options,
            root: OnceCell::new(),
            appending: Appending::default(),
            stats: Stats::default(),
            users: Mutex::default(),
            ending: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        let accepting = shared.clone();
        shared.tasks.spawn(async move { accept(&accepting, listener).await });
        Ok(Self { shared, alive: channel::Sender::new(()) })
    }

    /// The counters.
    pub fn stats(&self) -> SocketStats {
        self.shared.stats.snapshot()
    }

    /// Ends all connections and closes their open files within this time.
    pub async fn end(&self, within: Duration) {
        self.shared.ending.cancel();
        self.shared.tasks.close();
        if tokio::time::timeout(within, self.shared.tasks.wait()).await.is_err() {
            tracing::warn!("could not close all files of socket connections in time");
        }
        self.alive.send_replace(());
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        self.shared.ending.cancel();
    }
}

async fn accept(shared: &Arc<Shared>, listener: UnixListener) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shared.ending.cancelled() => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "socket for programs");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let Ok(cred) = sys::peer(&stream) else { continue };
        let Some(seat) = Seat::take(shared, cred.uid) else {
            // Closed without a reply, because no task reads the socket yet.
            tracing::debug!(cred.uid, "too many connections");
            continue;
        };
        let served = shared.clone();
        shared.tasks.spawn(async move {
            conn::serve(served, stream, Arc::new(cred)).await;
            drop(seat);
        });
    }
}

/// A counted connection.
struct Seat {
    shared: Arc<Shared>,
    uid: u32,
}

impl Seat {
    fn take(shared: &Arc<Shared>, uid: u32) -> Option<Self> {
        let mut users = shared.users.lock();
        let all: usize = users.values().sum();
        let own = users.entry(uid).or_default();
        if all >= CONNECTIONS_MAX || *own >= CONNECTIONS_EACH {
            if *own == 0 {
                users.remove(&uid);
            }
            shared.stats.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        *own += 1;
        shared.stats.connections.fetch_add(1, Ordering::Relaxed);
        shared.stats.connected.fetch_add(1, Ordering::Relaxed);
        Some(Self { shared: shared.clone(), uid })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.stats.connected.fetch_sub(1, Ordering::Relaxed);
        let mut users = self.shared.users.lock();
        if let Some(own) = users.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                users.remove(&self.uid);
            }
        }
    }
}
