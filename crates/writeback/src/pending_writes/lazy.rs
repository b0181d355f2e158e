//! Closes that do not wait for the server, and the wait for all files.
//!
//! The module does not know how bytes are sent. A lazily closed file keeps its open below until all
//! of its bytes are sent. The bytes are sent by age, by [`WriteBack::sync`], by the fsync of
//! another open, or at the end of the mount. No caller gets the errors. They are logged, counted,
//! and reported to the next open of the file. Bytes that a full or silent server refuses are kept
//! and sent again until the server takes them. A file that loses its last name meanwhile is no
//! longer sent.
//!
//! At most [`LAZY_MAX`] opens are kept in this way. A further close waits for the server, as
//! without lazy closes. Under `exclusive` such a close returns an error of the server, and the
//! bytes are kept all the same.

use super::WriteBack;
use super::file::{File, Names};
use super::stats::{Counters, Reason};
use super::wait::patient;
use async_trait::async_trait;
use hither_vfs::File as At;
use hither_vfs::{Error, Fh, LeaseAuthority, OpenId, RequestContext, Result, note_loss};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The most opens that are closed by their programs and not at the server.
pub(super) const LAZY_MAX: usize = 4 << 10;

/// Maximum wait of the end of the mount for closes of files whose bytes were sent.
const CLOSES_MAX: Duration = Duration::from_secs(10);

/// The event for a lazily closed file.
enum Turn {
    Sent,
    /// The file may have no name, and no program uses it.
    Removed,
}

/// For the frontend: a file that may not be closed with unsent bytes is not delegated.
#[async_trait]
impl LeaseAuthority for WriteBack {
    fn delegated_bytes(&self, fh: &Fh) -> Option<u64> {
        self.leases.delegated_bytes(fh).filter(|_| self.may_wait(fh))
    }

    fn can_cache_writes(&self, fh: &Fh) -> bool {
        self.leases.can_cache_writes(fh)
    }

    async fn request_write_caching(&self, cx: &RequestContext, fh: &Fh) -> bool {
        self.leases.request_write_caching(cx, fh).await
    }

    fn is_noncacheable(&self, fh: &Fh) -> bool {
        self.leases.is_noncacheable(fh)
    }

    fn delegates_times(&self, fh: &Fh) -> bool {
        self.leases.delegates_times(fh)
    }
}

impl WriteBack {
    /// Whether the bytes of a file may wait while the server delegates the file. The recall of the
    /// delegation sends them first ([`Upcalls::revoke`](hither_vfs::Upcalls)). A file that is
    /// longer than the size that the server promised room for does not wait.
    pub(super) fn may_wait(&self, fh: &Fh) -> bool {
        if !self.options.delegated_close {
            return false;
        }
        let Some(most) = self.leases.delegated_bytes(fh) else { return false };
        self.known(fh).is_none_or(|file| file.state.lock().extents.end_bytes() <= most)
    }

    /// Prepares a call that removes a name of a file. The call returns the delegation, and other
    /// clients may then read the file under its other names. A file with one name is not sent.
    pub(super) async fn flush_delegated(&self, cx: &RequestContext, target: Option<&Fh>) -> Result<()> {
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
        // A refusal of the server is reported to the next open.
        match patient(cx, self.flush(&file, Reason::Recall, true)).await {
            Err(e) if matches!(e.errno, libc::EINTR | libc::ETIMEDOUT) => Err(e),
            _ => Ok(()),
        }
    }

    /// Sends the remaining bytes and closes.
    pub(super) async fn close_dirty(
        self: Arc<Self>,
        cx: RequestContext,
        file: Arc<File>,
        open: OpenId,
    ) -> Result<()> {
        let last = file.state.lock().errors.opens() <= 1;
        let nameless = last && self.is_nameless(&cx, &file, open).await;
        let flushed = if nameless && self.abandon_nameless(&file, open, 1).await {
            Ok(())
        } else {
            self.flush(&file, Reason::Close, true).await
        };
        let promised = self.options.exclusive || self.options.delegated_close && self.wal.is_some();
        if flushed.is_err() && promised && self.close_lazily(&cx, &file, open) {
            // An earlier close found the bytes on the local disk, so they are not given up.
            return flushed;
        }
        if let Err(e) = &flushed {
            note_loss();
            let dropped = self.abandon(&file, open).await;
            Counters::add(&self.counters.bytes_dropped, dropped);
            if dropped > 0 {
                self.report_loss(&file, Some(dropped), e);
            }
        }
        self.close_clean(&cx, &file, open, flushed).await
    }

    /// Closes an open whose bytes are sent as far as possible.
    pub(super) async fn close_clean(
        &self,
        cx: &RequestContext,
        file: &Arc<File>,
        open: OpenId,
        flushed: Result<()>,
    ) -> Result<()> {
        let deaf = self.options.lazy_close || self.options.exclusive || self.options.delegated_close;
        let told = {
            let mut s = file.state.lock();
            // A close(2) that did not wait for the server cannot report the error, which stays for
            // the next open.
            let told = if deaf { Ok(()) } else { s.errors.report(Some(open)) };
            s.errors.close(open);
            told
        };
        file.changed.notify_waiters();
        let closed = self.close_below(cx, file, open).await;
        {
            let mut s = file.state.lock();
            s.closed_below();
            if let (true, Err(e)) = (deaf, &closed) {
                s.errors.record(e.clone());
            }
        }
        self.tidy(file);
        flushed.and(told).and(closed)
    }

    /// Closes `open` for the program while its bytes are still local. No program gets later errors,
    /// so the next open reports errors up to now as well. Returns false, without any effect, when
    /// too many opens are kept.
    pub(super) fn close_lazily(&self, cx: &RequestContext, file: &Arc<File>, open: OpenId) -> bool {
        let more = |lazy| (lazy < LAZY_MAX || self.options.exclusive).then_some(lazy + 1);
        if self.lazy.fetch_update(Relaxed, Relaxed, more).is_err() {
            return false;
        }
        Counters::add(&self.counters.lazy_closes, 1);
        {
            let mut s = file.state.lock();
            s.lazy += 1;
            s.stable = true;
        }
        let (this, cx, file) = (self.this(), RequestContext::new(cx.cred.clone()), file.clone());
        self.lazy_closes.spawn(async move {
            this.close_when_sent(&cx, &file, open).await;
            this.end_lazily(&cx, &file, open).await;
            this.lazy.fetch_sub(1, Relaxed);
        });
        true
    }

    /// Waits until the layer below has closed the lazily closed files, whose bytes were sent.
    pub(super) async fn lazy_closes_end(&self) -> Result<()> {
        self.lazy_closes.close();
        match timeout(CLOSES_MAX, self.lazy_closes.wait()).await {
            Ok(()) => Ok(()),
            Err(_) => Err(Error::new(libc::ETIMEDOUT)),
        }
    }

    /// Closed files that lost a name in this mount. Each may have a hidden name at the server until
    /// its close below.
    pub(super) fn leaving(&self) -> Vec<Arc<File>> {
        if self.lazy.load(Relaxed) == 0 {
            return Vec::new();
        }
        let files: Vec<_> = self.files.read().values().cloned().collect();
        let leaves = |file: &Arc<File>| {
            let s = file.state.lock();
            s.is_leaving() || s.hides_name()
        };
        files.into_iter().filter(leaves).collect()
    }

    /// Waits until these files are closed below. Sends the bytes of those that have another name.
    pub(super) async fn have_left(&self, cx: &RequestContext, files: &[Arc<File>]) -> Result<()> {
        patient(cx, async {
            for file in files {
                file.when(|s| (!s.is_leaving()).then_some(())).await;
                if file.state.lock().hides_name() {
                    self.flush_in_background(file, Reason::Order);
                    file.when(|s| (!s.hides_name()).then_some(())).await;
                }
            }
            Ok(())
        })
        .await
    }

    /// Ends a lazy close. The next open reports its errors.
    async fn end_lazily(&self, cx: &RequestContext, file: &Arc<File>, open: OpenId) {
        file.state.lock().errors.close(open);
        let closed = self.close_below(cx, file, open).await;
        if let Err(e) = &closed {
            self.report_loss(file, None, e);
        }
        {
            let mut s = file.state.lock();
            s.lazy -= 1;
            s.closed_below();
            if let Err(e) = closed {
                s.errors.record(e);
            }
        }
        file.changed.notify_waiters();
        self.tidy(file);
    }

    async fn close_when_sent(&self, cx: &RequestContext, file: &Arc<File>, open: OpenId) {
        loop {
            let turn = file
                .when(|s| {
                    if s.is_settled() {
                        return Some(Turn::Sent);
                    }
                    s.is_leaving().then_some(Turn::Removed)
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
                // The file has another name, and its delegation went with the removed one.
                Turn::Removed if self.has_lost_delegation(file) => {
                    self.flush_in_background(file, Reason::Recall);
                }
                Turn::Removed => {}
            }
        }
    }

    /// Drops the unsent bytes of `open`, if the file has no name and no program can reach it. This
    /// requires that it has no opens beside the `ending` ones, no open in progress, and no
    /// unanswered request that may have found its name. Returns false otherwise.
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
        self.remember(file);
        true
    }

    /// Sends all bytes written until now, of all files, open or closed, and waits until they are on
    /// stable storage.
    ///
    /// # Errors
    /// The first error of the writes, or of data lost without a report. The other files are sent
    /// all the same.
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
        // The error still counts as not reported: the present or next open reports it.
        let known = file.state.lock().errors.untold();
        self.tidy(file);
        flushed.and(committed).and(known)
    }

    /// Commits the bytes below. The layer below is always called: without unstable bytes the call
    /// does nothing, and during another commit it waits.
    pub(super) async fn commit_below(&self, file: &Arc<File>) -> Result<()> {
        file.state.lock().unstable = false;
        let committed = self.commit_journaled(&self.own_cx(), file, None).await;
        let mut s = file.state.lock();
        match &committed {
            // The file was removed with its last name.
            Err(e) if e.errno == libc::ESTALE && s.names == Names::None => Ok(()),
            Err(_) => {
                s.unstable = true;
                committed
            }
            Ok(()) => committed,
        }
    }
}
