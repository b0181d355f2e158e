//! One file with delayed writes: its bytes, opens, errors and visible attributes.
//!
//! The module does not know how bytes are sent. [`View`] decides which attributes are visible while
//! the server lacks some bytes. The layer's documentation gives the reasons.

use super::deferred::DeferredAttrs;
use super::errors::Errors;
use super::extents::{Extents, Rules};
use super::flush::QueueKey;
use super::journal::Tracks;
use super::seen::Seen;
use crate::wal::Wal;
use hither_vfs::{Attrs, Cred, Error, Fh, OpenId, Time, Unsent, Validity};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, RwLock};
use tokio::time::Instant;

/// The origin of written bytes. They are sent under the same open and credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    /// Credential of the writer.
    pub cred: Arc<Cred>,
    /// The open of the write.
    pub open: OpenId,
}

/// A file with opens or bytes in this layer.
#[derive(Debug)]
pub(super) struct File {
    pub fh: Fh,
    pub state: Mutex<State>,
    /// Signals the end of a WRITE and other changes of the state.
    pub changed: Notify,
    /// Held shared during a write, and exclusively by calls that must not be reordered with writes.
    pub gate: Arc<RwLock<()>>,
}

#[derive(Debug)]
pub(super) struct State {
    pub extents: Extents,
    pub errors: Errors,
    pub view: View,
    /// Attributes that the server does not have yet.
    pub deferred: DeferredAttrs,
    /// The writer of the last local bytes.
    pub writer: Option<Origin>,
    /// Local times that a program saw. They are shown until a program changes the file.
    pub seen: Option<Seen>,
    /// The file's part in the journal.
    pub journal: Tracks,
    /// All bytes of this epoch and earlier ones are to be sent.
    pub flush_to: u64,
    /// No bytes from this offset on may be sent, because the file is about to be truncated.
    pub hold_from: u64,
    /// The number of sending tasks.
    pub workers: usize,
    /// The last failure, while another attempt is not due.
    pub failing: Option<Failing>,
    /// The pause after the last failure.
    pub backoff: Option<Duration>,
    /// The errno of the kept bytes, when the opens got that error.
    pub told: Option<i32>,
    /// A flush wants the last bytes on stable storage.
    pub stable: bool,
    /// The layer below may have bytes that are not on stable storage.
    pub unstable: bool,
    /// The file's place in the age queue.
    pub queued: Option<QueueKey>,
    /// Opens that were closed before all bytes were sent.
    pub lazy: usize,
    /// The state of the file's names.
    pub names: Names,
    /// Requests before this number may still find the file by a name that it has lost since.
    pub nameless_since: u64,
    /// Opens by handle in progress.
    pub opening: usize,
    /// The length of the file when its unsent bytes were dropped with its last name. The file
    /// cannot be opened any more.
    pub abandoned_bytes: Option<u64>,
    /// The record stays for [`WriteBack::remember`](super::WriteBack::remember).
    pub is_remembered: bool,
    /// A call that may remove the last name is in progress, and no program uses the file. Meanwhile
    /// no bytes are sent.
    pub losing_name: bool,
    /// A name was removed while a program had the file open. The layer below may keep a hidden name
    /// until it has closed the file.
    pub lost_while_open: bool,
    /// The file left the layer's table. A caller must look it up again.
    pub forgotten: bool,
    /// The last time at which a request for attributes caused bytes to be sent.
    pub asked: Option<Instant>,
    /// The file stays in the layer's table until older requests are answered.
    pub lingers: bool,
    /// The number of own changes when the file was last kept for older requests.
    pub kept: u64,
    /// A flight with filled gaps was refused. Gaps are no longer filled.
    pub keeps_gaps: bool,
}

/// A failure to send that may pass.
#[derive(Debug, Clone)]
pub(super) struct Failing {
    pub error: Error,
    pub retry_at: Instant,
}

impl Failing {
    /// Whether writes fail without another attempt. A ticket that was renewed counts at once.
    pub fn pauses(&self, now: Instant) -> bool {
        now < self.retry_at && !self.error.is_unproven
    }
}

/// The known state of a file's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    /// The file has a name, or is assumed to have one.
    Some,
    /// A name was removed in this mount. It may have been the last one.
    OneLess,
    /// The file has no name. After the last close it cannot be read.
    None,
}

impl File {
    pub fn new(fh: Fh, chunk_bytes: u64, wal: Option<&Arc<Wal>>) -> Self {
        let state = State {
            extents: Extents::new(chunk_bytes),
            errors: Errors::default(),
            view: View::default(),
            deferred: DeferredAttrs::default(),
            writer: None,
            seen: None,
            journal: Tracks::of(wal, &fh),
            flush_to: 0,
            hold_from: u64::MAX,
            workers: 0,
            failing: None,
            backoff: None,
            told: None,
            stable: false,
            unstable: false,
            queued: None,
            lazy: 0,
            names: Names::Some,
            nameless_since: 0,
            opening: 0,
            abandoned_bytes: None,
            is_remembered: false,
            losing_name: false,
            lost_while_open: false,
            forgotten: false,
            asked: None,
            lingers: false,
            kept: 0,
            keeps_gaps: false,
        };
        Self { fh, state: Mutex::new(state), changed: Notify::new(), gate: Arc::new(RwLock::new(())) }
    }

    /// Waits until `found` returns a value. `found` is called after each change of the state.
    pub async fn when<T>(&self, mut found: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(out) = found(&mut self.state.lock()) {
                return out;
            }
            changed.await;
        }
    }
}

impl State {
    /// Every program has closed the file, its opens remain for unsent bytes, and no other open is
    /// in progress.
    pub fn is_left(&self) -> bool {
        self.lazy > 0 && self.opening == 0 && self.errors.opens() <= self.lazy
    }

    /// The state of the file's names, and the request before which it changed.
    pub fn names_seen(&self) -> (Names, u64) {
        (self.names, self.nameless_since)
    }

    /// Like [`State::is_left`], for a file that may have lost its last name.
    pub fn is_leaving(&self) -> bool {
        self.is_left() && self.names != Names::Some
    }

    /// Like [`State::is_left`], for a file that may have a hidden name besides its other names.
    pub fn hides_name(&self) -> bool {
        self.is_left() && self.lost_while_open && self.names == Names::Some
    }

    /// An open was closed below. After the last one there is no hidden name.
    pub fn closed_below(&mut self) {
        self.lost_while_open &= self.errors.opens() > 0;
    }

    /// The rules for bytes to be sent now. `None` after a failure.
    pub fn rules(&self) -> Option<Rules> {
        let rules = Rules { flush_to: self.flush_to, hold_from: self.hold_from, zero_from: u64::MAX };
        self.failing.is_none().then_some(rules)
    }

    /// Like [`State::rules`], under a write delegation. Beyond the length that the server reported
    /// under the delegation the file has no bytes.
    pub fn rules_alone(&self) -> Option<Rules> {
        let size =
            self.view.server.as_ref().filter(|a| a.valid == Validity::Lease).map(|a| a.attr.size_bytes);
        let zero_from = size.filter(|_| !self.keeps_gaps && self.view.through == 0).unwrap_or(u64::MAX);
        Some(Rules { zero_from, ..self.rules()? })
    }

    /// Marks all bytes written until now to be sent, and returns their epoch.
    pub fn seal(&mut self) -> u64 {
        let epoch = self.extents.seal();
        self.flush_to = self.flush_to.max(epoch);
        self.deferred.seal();
        epoch
    }

    /// Delays attributes again after their call failed, merged under newer ones. Bytes written
    /// before the newer ones precede them.
    pub fn deferred_failed(&mut self) {
        self.deferred.failed();
        self.seal();
    }

    /// Whether the server has all bytes and attributes.
    pub fn is_settled(&self) -> bool {
        self.extents.is_clean() && self.deferred.is_none()
    }

    /// Whether the file has no state to keep.
    pub fn is_idle(&self) -> bool {
        self.is_done() && !self.is_remembered
    }

    /// Whether nothing is left to do for the file.
    pub fn is_done(&self) -> bool {
        self.workers == 0
            && self.lazy == 0
            && self.opening == 0
            && self.is_settled()
            && self.errors.is_idle()
            && self.journal.is_empty()
            && self.view.through == 0
    }

    /// Whether the answer to a request at `asked` has the file's present bytes: no own bytes or
    /// changes are local, in flight, or younger than the request.
    pub fn is_plain(&self, asked: Instant) -> bool {
        let settled = self.extents.is_clean() && self.view.through == 0;
        settled && self.abandoned_bytes.is_none() && self.view.own.is_none_or(|own| asked > own.at)
    }

    /// Adjusts attributes to the local state. `fresh` is a new change value. Returns true when the
    /// times are the server's final ones.
    pub fn show(&mut self, attrs: &mut Attrs, fresh: u64) -> bool {
        if !self.view.replace_older(attrs) {
            self.journal.saw(attrs);
        }
        let bytes = Local { clean: self.extents.is_clean(), end_bytes: self.extents.end_bytes() };
        let flying = self.extents.is_flying();
        let theirs = self.view.show(attrs, bytes, flying, fresh);
        self.deferred.dress(attrs);
        if let Some(seen) = &self.seen {
            (attrs.attr.mtime, attrs.attr.ctime) = (seen.mtime, seen.ctime);
            attrs.valid = Validity::Once;
        }
        self.keep_abandoned_length(attrs);
        theirs && self.deferred.is_none()
    }

    /// A file whose unsent bytes were dropped keeps the length that programs saw last.
    fn keep_abandoned_length(&self, attrs: &mut Attrs) {
        if let Some(len_bytes) = self.abandoned_bytes {
            attrs.attr.size_bytes = len_bytes;
            attrs.valid = Validity::Once;
        }
    }

    /// The visible attributes, if enough of them is known.
    pub fn shown(&self) -> Option<Attrs> {
        let mut attrs = self.view.server.clone()?;
        let bytes = Local { clean: self.extents.is_clean(), end_bytes: self.extents.end_bytes() };
        self.view.dress(&mut attrs, bytes, !bytes.clean);
        self.deferred.dress(&mut attrs);
        self.keep_abandoned_length(&mut attrs);
        Some(attrs)
    }

    /// The part of the file that the server lacks, for requests of other clients.
    pub fn unsent(&self) -> Unsent {
        match self.shown() {
            _ if self.deferred.is_for_others() => Unsent::More,
            _ if self.is_settled() => Unsent::Nothing,
            Some(attrs) => Unsent::Bytes { size_bytes: attrs.attr.size_bytes, mtime: None },
            None => Unsent::More,
        }
    }

    /// The attributes after a local write at `now`, if enough of them is known.
    pub fn written(&mut self, writer: &Origin, now: Time, fresh: u64) -> Option<Attrs> {
        self.view.time = Some(now);
        self.view.alias = Some(fresh);
        self.writer = Some(writer.clone());
        self.deferred.modified(Some(now));
        self.seen = None;
        let mut attrs = self.view.server.clone()?;
        let bytes = Local { clean: false, end_bytes: self.extents.end_bytes() };
        self.view.dress(&mut attrs, bytes, true);
        self.deferred.dress(&mut attrs);
        Some(attrs)
    }
}

/// The local bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Local {
    pub clean: bool,
    pub end_bytes: u64,
}

/// The visible attributes of a file.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The newest answer from below. Its size includes own writes that ended since.
    pub server: Option<Attrs>,
    /// The change value that replaces the server's.
    alias: Option<u64>,
    /// The server's change value for the same content. `None` after own writes changed it.
    base: Option<u64>,
    /// Another client may have written between two own writes.
    uncertain: bool,
    /// The last own change.
    own: Option<Own>,
    /// The time of the last write of a program.
    pub time: Option<Time>,
    /// Changes other than delayed writes in flight to the layer below.
    pub through: u32,
    /// The number of own changes that ended.
    pub ended: u64,
}

/// Ended own changes. Answers to earlier requests may lack them.
#[derive(Debug, Clone, Copy)]
struct Own {
    at: Instant,
    /// The smallest size after the changes.
    size_bytes: u64,
    /// A later answer includes the changes.
    met: bool,
}

impl View {
    /// Replaces an answer by a newer one that came earlier. Returns true for a replaced answer.
    fn replace_older(&self, attrs: &mut Attrs) -> bool {
        let Some(newer) = self.server.as_ref().filter(|s| s.asked > attrs.asked) else { return false };
        *attrs = newer.clone();
        true
    }

    /// The smallest size after own changes that the answer to a request at `asked` may lack.
    fn least(&self, asked: Instant) -> u64 {
        self.own.filter(|own| asked <= own.at).map_or(0, |own| own.size_bytes)
    }

    fn show(&mut self, attrs: &mut Attrs, bytes: Local, flying: bool, fresh: u64) -> bool {
        let change = attrs.attr.change;
        let settled = !flying && self.through == 0 && self.own.is_none_or(|own| attrs.asked > own.at);
        if settled {
            self.own.iter_mut().for_each(|own| own.met = true);
            if self.base.is_some_and(|b| b != change) {
                // Another client changed the file.
                self.alias = if bytes.clean { None } else { Some(fresh) };
            }
            self.base = Some(change);
        }
        if self.server.as_ref().is_none_or(|s| s.asked <= attrs.asked) {
            self.learn(attrs);
        }
        // The state in the reply to an own write is at least as new as any other answer.
        let exact = self.base == Some(change);
        let theirs = bytes.clean && (settled || exact);
        self.dress(attrs, bytes, !theirs);
        theirs
    }

    fn learn(&mut self, attrs: &Attrs) {
        let mut attrs = attrs.clone();
        attrs.attr.size_bytes = attrs.attr.size_bytes.max(self.least(attrs.asked));
        self.server = Some(attrs);
    }

    /// Adjusts the server's attributes to the local state.
    fn dress(&self, attrs: &mut Attrs, bytes: Local, local: bool) {
        let least = self.least(attrs.asked);
        let attr = &mut attrs.attr;
        attr.size_bytes = attr.size_bytes.max(least);
        if !bytes.clean {
            attr.size_bytes = attr.size_bytes.max(bytes.end_bytes);
        }
        if let (true, Some(time)) = (local, self.time) {
            attr.mtime = attr.mtime.max(time);
            attr.ctime = attr.ctime.max(time);
            // The server will set other times, so these are valid once.
            attrs.valid = Validity::Once;
        }
        if let Some(alias) = self.alias {
            attrs.attr.change = alias;
        }
    }

    /// An open must not trust pages that were read before an own write, because another client may
    /// have written at the same time.
    pub fn opened(&mut self, clean: bool, fresh: u64) {
        if std::mem::take(&mut self.uncertain) {
            self.alias = if clean { None } else { Some(fresh) };
        }
    }

    /// The content no longer matches the visible change value.
    pub fn broken(&mut self, fresh: u64) {
        self.alias = Some(fresh);
    }

    /// An own change ended at `now` and left at least `size_bytes`. `alone`: no other own change
    /// was in flight meanwhile.
    pub fn changed(&mut self, now: Instant, size_bytes: u64, attrs: Option<&Attrs>, alone: bool) {
        self.ended += 1;
        let leased = |a: &Attrs| a.valid == Validity::Lease;
        let lease = self.server.as_ref().is_some_and(leased) && attrs.is_some_and(leased);
        self.uncertain |= !lease;
        self.base = attrs.filter(|_| alone).map(|a| a.attr.change);
        let before = self.own.filter(|own| !own.met).map_or(0, |own| own.size_bytes);
        let least = before.max(size_bytes);
        self.own = Some(Own { at: now, size_bytes: least, met: false });
        match attrs {
            Some(attrs) if self.server.as_ref().is_none_or(|s| s.asked <= attrs.asked) => self.learn(attrs),
            _ => {
                if let Some(server) = &mut self.server {
                    server.attr.size_bytes = server.attr.size_bytes.max(least);
                }
            }
        }
    }

    /// The file got a new length.
    pub fn resized(&mut self, now: Instant, size_bytes: u64, attrs: Option<&Attrs>) {
        self.ended += 1;
        self.own = Some(Own { at: now, size_bytes, met: false });
        self.uncertain = true;
        self.base = None;
        self.server = attrs.cloned();
        // Bytes that are sent later change the server's times, so the times of unsent bytes are the
        // truncation's, and valid once.
        self.time = attrs.map(|attrs| attrs.attr.mtime);
    }

    /// The server's attributes are no longer valid.
    pub fn forget(&mut self) {
        self.server = None;
    }

    /// The length of the file at the server, if it is certain at `now`.
    pub fn server_size(&self, now: Instant) -> Option<u64> {
        self.server.as_ref().filter(|a| !a.valid.left(now).is_zero()).map(|a| a.attr.size_bytes)
    }
}
