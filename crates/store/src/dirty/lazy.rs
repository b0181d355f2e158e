//! Closes that do not wait, and waiting for everything.
//!
//! It knows nothing of how bytes are sent. A file that is closed lazily keeps its open below until all of it is sent: because of its
//! age, by [`Dirty::sync`], by the fsync of another open or at the end of the mount. Nobody is there to be told of
//! errors: they are logged, counted, and told to the next open of the file. What a full or silent server does not take is kept and tried
//! again until it does. A file that loses its last name meanwhile is not sent any more.

use super::Dirty;
use super::file::{File, Names};
use super::stats::{Counters, Reason};
use hither_vfs::{Cx, File as At, OpenId, Result};
use std::sync::Arc;
use tokio::task::JoinSet;

/// What a file that was closed lazily waits for.
enum Turn {
    Sent,
    /// It may have no name any more, and nobody uses it.
    Removed,
}

impl Dirty {
    /// The program has closed `open`; what it wrote is still here. Nobody hears what this returns: what went wrong until now is the
    /// next open's to tell as well.
    pub(super) fn close_lazily(&self, cx: &Cx, file: &Arc<File>, open: OpenId) {
        Counters::add(&self.counters.lazy_closes, 1);
        {
            let mut s = file.state.lock();
            s.lazy += 1;
            s.stable = true;
        }
        let (this, cx, file) = (self.this(), Cx::new(cx.cred.clone()), file.clone());
        tokio::spawn(async move {
            this.close_when_sent(&cx, &file, open).await;
            this.end_lazily(&cx, &file, open).await;
        });
    }

    /// What goes wrong now is the next open's to tell.
    async fn end_lazily(&self, cx: &Cx, file: &Arc<File>, open: OpenId) {
        file.state.lock().errors.close(open);
        let closed = self.below.close(cx, &file.fh, open).await;
        {
            let mut s = file.state.lock();
            s.lazy -= 1;
            if let Err(e) = closed {
                tracing::warn!(fh = ?file.fh, error = %e, "a file was closed before it was sent: written data is lost");
                s.errors.record(e);
            }
        }
        file.changed.notify_waiters();
        self.tidy(file);
    }

    async fn close_when_sent(&self, cx: &Cx, file: &Arc<File>, open: OpenId) {
        loop {
            let turn = file
                .when(|s| match s.is_settled() {
                    true => Some(Turn::Sent),
                    false => (s.names != Names::Some && s.errors.opens() <= s.lazy).then_some(Turn::Removed),
                })
                .await;
            match turn {
                Turn::Sent => return,
                Turn::Removed if self.is_nameless(cx, file, open).await => {
                    let unsent = self.abandon(file, open).await;
                    return Counters::add(&self.counters.bytes_unsent, unsent);
                }
                Turn::Removed => {}
            }
        }
    }

    /// Sends everything written until now, of all files, closed or not, and returns when it is on stable storage.
    ///
    /// # Errors
    /// The first reason why something is not, and losses that nobody was told of; the other files are sent all the same.
    pub async fn sync(&self) -> Result<()> {
        let files: Vec<_> = self.files.read().values().cloned().collect();
        let mut running = JoinSet::new();
        for file in files {
            let this = self.this();
            running.spawn(async move { this.sync_file(&file).await });
        }
        running.join_all().await.into_iter().collect()
    }

    async fn sync_file(&self, file: &Arc<File>) -> Result<()> {
        let flushed = self.flush(file, Reason::Commit, true).await;
        let mut committed = Ok(());
        if flushed.is_ok() {
            committed = self.commit_below(file).await;
            if let Err(e) = &committed {
                file.state.lock().errors.record(e.clone());
            }
        }
        // Looked at, not told: whoever has the file open, or opens it next, is to hear of it.
        let known = file.state.lock().errors.untold();
        self.tidy(file);
        flushed.and(committed).and(known)
    }

    /// Makes stable what is below. Asks the layer below in any case: it has nothing to do when there is nothing, and waits
    /// when another commit is under way.
    pub(super) async fn commit_below(&self, file: &Arc<File>) -> Result<()> {
        file.state.lock().unstable = false;
        let committed = self.below.commit(&self.own_cx(), At { fh: &file.fh, open: None }).await;
        if committed.is_err() {
            file.state.lock().unstable = true;
        }
        committed
    }
}
