//! Closes that do not wait, and waiting for everything.
//!
//! It knows nothing of how bytes are sent. A file that is closed lazily keeps its open below until
//! all of it is sent: because of its age, by [`Dirty::sync`], by the fsync of another open or at
//! the end of the mount. Nobody is there to be told of errors: they are logged, counted, and told
//! to the next open of the file. What a full or silent server does not take is kept and tried again
//! until it does. A file that loses its last name meanwhile is not sent any more. At most
//! [`LAZY_MOST`] opens are kept like that: who closes one more waits, as without lazy closes; with
//! `exclusive` he is told then that it did not work, and what he wrote is kept all the same.

use super::Dirty;
use super::file::{File, Names};
use super::stats::{Counters, Reason};
use super::wait::patient;
use hither_vfs::File as At;
use hither_vfs::{Cx, Fh, OpenId, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::task::JoinSet;

/// Most opens that are closed here and not at the server.
pub(super) const LAZY_MOST: usize = 4 << 10;

/// What a file that was closed lazily waits for.
enum Turn {
    Sent,
    /// It may have no name any more, and nobody uses it.
    Removed,
}

impl Dirty {
    /// Whether nobody misses what a file was written for as long as the server has delegated it:
    /// its recall sends it first ([`Upcalls::withdraw`](hither_vfs::Upcalls)). What is longer than
    /// the server has promised room for does not wait.
    pub(super) fn may_wait(&self, fh: &Fh) -> bool {
        if !self.options.delegated_close {
            return false;
        }
        let Some(most) = self.below.delegated_bytes(fh) else { return false };
        self.known(fh).is_none_or(|file| file.state.lock().extents.end_bytes() <= most)
    }

    /// Before a call that takes a name of a file: its delegation goes back with that, and by its
    /// other names others may look at the file then. What has no other is not sent.
    pub(super) async fn flush_delegated(&self, cx: &Cx, target: Option<&Fh>) -> Result<()> {
        let Some(file) = target.filter(|fh| self.may_wait(fh)).and_then(|fh| self.known(fh)) else {
            return Ok(());
        };
        if file.state.lock().lazy == 0 {
            return Ok(());
        }
        let attrs = self.below.getattr(cx, At { fh: &file.fh, open: None }).await?;
        if attrs.attr.nlink < 2 {
            return Ok(());
        }
        // What the server refuses is the next open's to tell.
        match patient(cx, self.flush(&file, Reason::Recall, true)).await {
            Err(e) if matches!(e.errno, libc::EINTR | libc::ETIMEDOUT) => Err(e),
            _ => Ok(()),
        }
    }

    /// Sends what is left and closes.
    pub(super) async fn close_dirty(self: Arc<Self>, cx: Cx, file: Arc<File>, open: OpenId) -> Result<()> {
        let last = file.state.lock().errors.opens() <= 1;
        let nameless = last && self.is_nameless(&cx, &file, open).await;
        let flushed = if nameless && self.abandon_nameless(&file, open, 1).await {
            Ok(())
        } else {
            self.flush(&file, Reason::Close, true).await
        };
        let promised = self.options.exclusive || self.options.delegated_close && self.wal.is_some();
        if flushed.is_err() && promised && self.close_lazily(&cx, &file, open) {
            // What a close before has found on the local disk is not given up.
            return flushed;
        }
        if flushed.is_err() {
            let dropped = self.abandon(&file, open).await;
            Counters::add(&self.counters.bytes_dropped, dropped);
            tracing::warn!(fh = ?file.fh, bytes = dropped, "the file is closed: written data is lost");
        }
        self.close_clean(&cx, &file, open, flushed).await
    }

    /// Closes what is sent, as far as it is.
    pub(super) async fn close_clean(
        &self,
        cx: &Cx,
        file: &Arc<File>,
        open: OpenId,
        flushed: Result<()>,
    ) -> Result<()> {
        let deaf = self.options.lazy_close || self.options.exclusive || self.options.delegated_close;
        let told = {
            let mut s = file.state.lock();
            // Where close(2) has not waited for the server nobody hears it: it is left to the next
            // open.
            let told = if deaf { Ok(()) } else { s.errors.report(Some(open)) };
            s.errors.close(open);
            told
        };
        file.changed.notify_waiters();
        let closed = self.close_below(cx, file, open).await;
        if let (true, Err(e)) = (deaf, &closed) {
            file.state.lock().errors.record(e.clone());
        }
        self.tidy(file);
        flushed.and(told).and(closed)
    }

    /// The program has closed `open`; what it wrote is still here. Nobody hears what this returns:
    /// what went wrong until now is the next open's to tell as well. False when there are too many
    /// already, and nothing was done.
    pub(super) fn close_lazily(&self, cx: &Cx, file: &Arc<File>, open: OpenId) -> bool {
        let more = |lazy| (lazy < LAZY_MOST || self.options.exclusive).then_some(lazy + 1);
        if self.lazy.fetch_update(Relaxed, Relaxed, more).is_err() {
            return false;
        }
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
            this.lazy.fetch_sub(1, Relaxed);
        });
        true
    }

    /// Files that have no name here any more and are closed; below there may be a hidden name of
    /// each until it is closed there, too.
    pub(super) fn leaving(&self) -> Vec<Arc<File>> {
        if self.lazy.load(Relaxed) == 0 {
            return Vec::new();
        }
        let files: Vec<_> = self.files.read().values().cloned().collect();
        files.into_iter().filter(|file| file.state.lock().is_leaving()).collect()
    }

    /// Waits until they are closed below, or have a name after all.
    pub(super) async fn have_left(&self, cx: &Cx, files: &[Arc<File>]) -> Result<()> {
        patient(cx, async {
            for file in files {
                file.when(|s| (!s.is_leaving()).then_some(())).await;
            }
            Ok(())
        })
        .await
    }

    /// What goes wrong now is the next open's to tell.
    async fn end_lazily(&self, cx: &Cx, file: &Arc<File>, open: OpenId) {
        file.state.lock().errors.close(open);
        let closed = self.close_below(cx, file, open).await;
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
                    false => s.is_leaving().then_some(Turn::Removed),
                })
                .await;
            match turn {
                Turn::Sent => return,
                Turn::Removed if self.is_nameless(cx, file, open).await => {
                    let (since, lazy) = {
                        let s = file.state.lock();
                        (s.nameless_since, s.lazy)
                    };
                    self.questions.answered(since).await;
                    if self.abandon_nameless(file, open, lazy).await {
                        return;
                    }
                }
                Turn::Removed => {}
            }
        }
    }

    /// Drops the unsent bytes of `open`, when the file has no name left and no program can come to
    /// it: it has no more opens than the `ending` ones, none is under way, and every question that
    /// may have found it by its name has its answer. False when that is not so.
    async fn abandon_nameless(&self, file: &Arc<File>, open: OpenId, ending: usize) -> bool {
        file.when(|s| (!s.extents.is_flying_of(open)).then_some(())).await;
        {
            let mut s = file.state.lock();
            let reachable = s.names != Names::None || s.opening > 0 || s.errors.opens() > ending;
            if reachable || !self.questions.are_answered(s.nameless_since) {
                return false;
            }
            if s.abandoned_bytes.is_none() {
                let shown = s.shown().map_or(0, |attrs| attrs.attr.size_bytes);
                s.abandoned_bytes = Some(shown.max(s.extents.end_bytes()));
            }
        }
        let unsent = self.abandon(file, open).await;
        Counters::add(&self.counters.bytes_unsent, unsent);
        true
    }

    /// Sends everything written until now, of all files, closed or not, and returns when it is on
    /// stable storage.
    ///
    /// # Errors
    /// The first reason why something is not, and losses that nobody was told of; the other files
    /// are sent all the same.
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

    /// Makes stable what is below. Asks the layer below in any case: it has nothing to do when
    /// there is nothing, and waits when another commit is under way.
    pub(super) async fn commit_below(&self, file: &Arc<File>) -> Result<()> {
        file.state.lock().unstable = false;
        let committed = self.commit_journaled(&self.own_cx(), file, None).await;
        let mut s = file.state.lock();
        match &committed {
            // It went with its last name.
            Err(e) if e.errno == libc::ESTALE && s.names == Names::None => Ok(()),
            Err(_) => {
                s.unstable = true;
                committed
            }
            Ok(()) => committed,
        }
    }
}
