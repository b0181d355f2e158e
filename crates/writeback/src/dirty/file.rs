//! One file with delayed writes: its bytes, opens, errors, and what is shown of it.
//!
//! It knows nothing of how bytes are sent. [`View`] decides which attributes are shown while the
//! server does not have everything; see the layer's documentation for the reasons.

use super::errors::Errors;
use super::extents::{Extents, Rules};
use super::flush::Place;
use super::journal::Tracks;
use super::owed::Owing;
use crate::wal::Wal;
use hither_vfs::{Attrs, Cred, Error, Fh, OpenId, Time, Unsent, Validity};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, RwLock};
use tokio::time::Instant;

/// On whose behalf bytes were written: they are sent under the same open and credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    /// Credential of the writer.
    pub cred: Arc<Cred>,
    /// The open written through.
    pub open: OpenId,
}

/// A file that is open here, or has bytes here.
#[derive(Debug)]
pub(super) struct File {
    pub fh: Fh,
    pub state: Mutex<State>,
    /// A WRITE ended, or room was made in some other way.
    pub changed: Notify,
    /// Held shared while bytes are written, alone by calls that no write may overtake or fall
    /// behind.
    pub gate: Arc<RwLock<()>>,
}

#[derive(Debug)]
pub(super) struct State {
    pub extents: Extents,
    pub errors: Errors,
    pub view: View,
    /// Attributes that the server does not have yet.
    pub owed: Owing,
    /// What of it is in the journal.
    pub journal: Tracks,
    /// Everything of this epoch and those before is to be sent.
    pub flush_to: u64,
    /// Nothing from here on may be sent: the file is about to be cut.
    pub hold_from: u64,
    /// Tasks that send.
    pub workers: usize,
    /// Sending is of no use for now.
    pub failing: Option<Failing>,
    /// How long the next failure keeps from trying.
    pub backoff: Option<Duration>,
    /// Error of the bytes that are kept, when the opens were told of it.
    pub told: Option<i32>,
    /// Whoever flushes wants the last bytes on stable storage.
    pub stable: bool,
    /// The layer below may have bytes that are not on stable storage.
    pub unstable: bool,
    /// Place in the queue that looks after age.
    pub queued: Option<Place>,
    /// Opens that were closed before everything was sent.
    pub lazy: usize,
    /// What became of its names.
    pub names: Names,
    /// Questions before this number may still find it by a name that it has lost since.
    pub nameless_since: u64,
    /// Opens by handle under way.
    pub opening: usize,
    /// Length of the file when its unsent bytes were dropped with its last name. Nothing opens it
    /// any more.
    pub abandoned_bytes: Option<u64>,
    /// A call that may take its last name is under way, and no program uses it: nothing is sent
    /// meanwhile.
    pub losing_name: bool,
    /// No longer in the layer's table: look it up again.
    pub forgotten: bool,
    /// When a question for attributes last made bytes be sent.
    pub asked: Option<Instant>,
    /// It stays in the layer's table until older questions are answered.
    pub lingers: bool,
    /// Number of own changes when it was last kept for that.
    pub kept: u64,
    /// A flight with filled gaps was refused: gaps stay gaps.
    pub keeps_gaps: bool,
}

/// Sending failed in a way that may pass.
#[derive(Debug, Clone)]
pub(super) struct Failing {
    pub error: Error,
    pub retry_at: Instant,
}

/// What is known of a file's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    /// It has some, or is taken to have.
    Some,
    /// One was removed here; it may have been the last.
    OneLess,
    /// There is none left: after the last close nobody can read the file.
    None,
}

impl File {
    pub fn new(fh: Fh, chunk_bytes: u64, wal: Option<&Arc<Wal>>) -> Self {
        let state = State {
            extents: Extents::new(chunk_bytes),
            errors: Errors::default(),
            view: View::default(),
            owed: Owing::default(),
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
            losing_name: false,
            forgotten: false,
            asked: None,
            lingers: false,
            kept: 0,
            keeps_gaps: false,
        };
        Self { fh, state: Mutex::new(state), changed: Notify::new(), gate: Arc::new(RwLock::new(())) }
    }

    /// Waits until `found` finds something in the state; it is asked after each change.
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
    /// Every open was closed by its program and waits here for its bytes; no other one is under
    /// way.
    pub fn is_left(&self) -> bool {
        self.lazy > 0 && self.opening == 0 && self.errors.opens() <= self.lazy
    }

    /// The same of a file whose last name may be gone.
    pub fn is_leaving(&self) -> bool {
        self.is_left() && self.names != Names::Some
    }

    /// What may be sent now.
    pub fn rules(&self) -> Option<Rules> {
        let rules = Rules { flush_to: self.flush_to, hold_from: self.hold_from, zero_from: u64::MAX };
        self.failing.is_none().then_some(rules)
    }

    /// The same for who holds the right that keeps others from the file: beyond the length that the
    /// server told under it there is nothing.
    pub fn rules_alone(&self) -> Option<Rules> {
        let size =
            self.view.server.as_ref().filter(|a| a.valid == Validity::Lease).map(|a| a.attr.size_bytes);
        let zero_from = size.filter(|_| !self.keeps_gaps && self.view.through == 0).unwrap_or(u64::MAX);
        Some(Rules { zero_from, ..self.rules()? })
    }

    /// Everything written until now is to be sent; returns its epoch.
    pub fn seal(&mut self) -> u64 {
        let epoch = self.extents.seal();
        self.flush_to = self.flush_to.max(epoch);
        self.owed.seal();
        epoch
    }

    /// Attributes that were on their way wait again, under newer ones: what was written before
    /// those goes before them.
    pub fn owed_failed(&mut self) {
        self.owed.failed();
        self.seal();
    }

    /// The server has everything.
    pub fn is_settled(&self) -> bool {
        self.extents.is_clean() && self.owed.is_none()
    }

    /// There is nothing to remember about the file.
    pub fn is_idle(&self) -> bool {
        self.workers == 0
            && self.lazy == 0
            && self.opening == 0
            && self.is_settled()
            && self.errors.is_idle()
            && self.journal.is_empty()
            && self.view.through == 0
    }

    /// Whether bytes that were asked for then are the file's: nothing of ours is here, under way,
    /// or younger than the question.
    pub fn is_plain(&self, asked: Instant) -> bool {
        let settled = self.extents.is_clean() && self.view.through == 0;
        settled && self.abandoned_bytes.is_none() && self.view.own.is_none_or(|own| asked > own.at)
    }

    /// Attributes as they are shown; `fresh` is a change value never shown before. True when the
    /// times are the server's and stay.
    pub fn show(&mut self, attrs: &mut Attrs, fresh: u64) -> bool {
        if !self.view.replace_older(attrs) {
            self.journal.saw(attrs);
        }
        let bytes = Local { clean: self.extents.is_clean(), end_bytes: self.extents.end_bytes() };
        let flying = self.extents.is_flying();
        let theirs = self.view.show(attrs, bytes, flying, fresh);
        self.owed.dress(attrs);
        self.keep_abandoned_length(attrs);
        theirs && self.owed.is_none()
    }

    /// The file that lost its bytes with its last name is as long as programs last saw it.
    fn keep_abandoned_length(&self, attrs: &mut Attrs) {
        if let Some(len_bytes) = self.abandoned_bytes {
            attrs.attr.size_bytes = len_bytes;
            attrs.valid = Validity::Once;
        }
    }

    /// The attributes as they are shown, when enough is known.
    pub fn shown(&self) -> Option<Attrs> {
        let mut attrs = self.view.server.clone()?;
        let bytes = Local { clean: self.extents.is_clean(), end_bytes: self.extents.end_bytes() };
        self.view.dress(&mut attrs, bytes, !bytes.clean);
        self.owed.dress(&mut attrs);
        self.keep_abandoned_length(&mut attrs);
        Some(attrs)
    }

    /// What the server does not have, when others ask it.
    pub fn unsent(&self) -> Unsent {
        match self.shown() {
            _ if !self.owed.is_none() => Unsent::More,
            _ if self.extents.is_clean() => Unsent::Nothing,
            Some(attrs) => Unsent::Bytes { size_bytes: attrs.attr.size_bytes },
            None => Unsent::More,
        }
    }

    /// The attributes after a local write at `now`, when enough is known.
    pub fn written(&mut self, now: Time, fresh: u64) -> Option<Attrs> {
        self.view.time = Some(now);
        self.view.alias = Some(fresh);
        self.owed.modified();
        let mut attrs = self.view.server.clone()?;
        let bytes = Local { clean: false, end_bytes: self.extents.end_bytes() };
        self.view.dress(&mut attrs, bytes, true);
        self.owed.dress(&mut attrs);
        Some(attrs)
    }
}

/// The bytes kept here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Local {
    pub clean: bool,
    pub end_bytes: u64,
}

/// What is shown of a file's attributes.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The newest answer from below; its size counts own writes that ended since.
    pub server: Option<Attrs>,
    /// Change value shown in place of the server's.
    alias: Option<u64>,
    /// The server's change value that stands for the same contents; `None` when own writes moved
    /// it.
    base: Option<u64>,
    /// Somebody else may have written between two writes of ours.
    uncertain: bool,
    /// The last of our own changes.
    own: Option<Own>,
    /// When a program last wrote.
    pub time: Option<Time>,
    /// Changes on their way to the layer below that are no delayed writes.
    pub through: u32,
    /// Number of changes of ours that ended.
    pub ended: u64,
}

/// Own changes that ended: answers to questions from before may lack them.
#[derive(Debug, Clone, Copy)]
struct Own {
    at: Instant,
    /// The least they left.
    size_bytes: u64,
    /// A later answer has told what became of them.
    met: bool,
}

impl View {
    /// Of two answers the newer one is shown, also when the older one comes last; true if this was
    /// the older one.
    fn replace_older(&self, attrs: &mut Attrs) -> bool {
        let Some(newer) = self.server.as_ref().filter(|s| s.asked > attrs.asked) else { return false };
        *attrs = newer.clone();
        true
    }

    /// The least that own changes left which an answer to a question from then may lack.
    fn least(&self, asked: Instant) -> u64 {
        self.own.filter(|own| asked <= own.at).map_or(0, |own| own.size_bytes)
    }

    fn show(&mut self, attrs: &mut Attrs, bytes: Local, flying: bool, fresh: u64) -> bool {
        let change = attrs.attr.change;
        let settled = !flying && self.through == 0 && self.own.is_none_or(|own| attrs.asked > own.at);
        if settled {
            self.own.iter_mut().for_each(|own| own.met = true);
            if self.base.is_some_and(|b| b != change) {
                // Somebody else's change.
                self.alias = if bytes.clean { None } else { Some(fresh) };
            }
            self.base = Some(change);
        }
        if self.server.as_ref().is_none_or(|s| s.asked <= attrs.asked) {
            self.learn(attrs);
        }
        // The state that a write of ours left, as its own reply told, is no older than any other
        // answer.
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

    /// Puts what is known here over the server's attributes.
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
            // The server will have other times: nobody may keep these.
            attrs.valid = Validity::Once;
        }
        if let Some(alias) = self.alias {
            attrs.attr.change = alias;
        }
    }

    /// The file is opened: who opens must not take pages for right that were read before a write of
    /// ours beside which somebody else may have written.
    pub fn opened(&mut self, clean: bool, fresh: u64) {
        if std::mem::take(&mut self.uncertain) {
            self.alias = if clean { None } else { Some(fresh) };
        }
    }

    /// What was shown is not what the file has any more.
    pub fn broken(&mut self, fresh: u64) {
        self.alias = Some(fresh);
    }

    /// A write or other change of ours ended at `now` and left at least `size_bytes`. `alone`: no
    /// other one of ours was under way meanwhile.
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

    /// The file was given a length.
    pub fn resized(&mut self, now: Instant, size_bytes: u64, attrs: Option<&Attrs>) {
        self.ended += 1;
        self.own = Some(Own { at: now, size_bytes, met: false });
        self.uncertain = true;
        self.base = None;
        self.server = attrs.cloned();
        self.time = None;
    }

    /// Nothing that the server said holds any more.
    pub fn forget(&mut self) {
        self.server = None;
    }

    /// Length of the file at the server when it is known for certain at `now`.
    pub fn server_size(&self, now: Instant) -> Option<u64> {
        self.server.as_ref().filter(|a| !a.valid.left(now).is_zero()).map(|a| a.attr.size_bytes)
    }
}
