//! Times that a program saw before the server had the bytes.
//!
//! The module does not know how bytes are sent. While no other client uses a file (a write
//! delegation or lease, `exclusive`), or other clients are promised nothing (`close=lazy`), this
//! mount is the authority for the file's size and times. stat(2) is then answered from the local
//! state and sends no bytes.
//!
//! The times that a program saw stay until a program changes the file. The modification time
//! travels with the last bytes, like a time that a program has set (`deferred.rs`). When more bytes
//! are written, it becomes the time of that write, so that it never goes back. The server sets the
//! change time itself, so only this mount shows the seen one ([`crate::shown`]).
//!
//! A server lets the owner of a file set its times. Another writer's file is sent first
//! ([`WriteBack::flush_for_times`]), and so is the file of a user whose own new files the server
//! gives to somebody else. This does not apply where the server delegates the times
//! (`LeaseAuthority::delegates_times`). There a question of the server counts like a stat(2): the
//! answered time stays ([`WriteBack::unsent_of`]).

use super::WriteBack;
use super::file::{File, Names, State};
use super::stats::Reason;
use super::wait::patient;
use hither_vfs::{Attr, Attrs, Cred, Fh, RequestContext, Time, Unsent};
use std::sync::Arc;
use tokio::time::Instant;

/// The local times in the answer to a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub mtime: Time,
    pub ctime: Time,
}

impl State {
    /// Notes that a program saw the times in `attrs`. They stay. Returns whether the journal has a
    /// new record.
    fn see(&mut self, attrs: &Attrs, now: Instant, journaled: bool) -> bool {
        let seen = Seen { mtime: attrs.attr.mtime, ctime: attrs.attr.ctime };
        if self.seen == Some(seen) {
            return false;
        }
        self.seen = Some(seen);
        if !self.extents.is_clean()
            && self.deferred.sets_mtime().is_none()
            && let Some(writer) = self.writer.clone()
        {
            self.deferred.see(writer, seen, now);
            if self.deferred.is_sealed() {
                // A caller waits for the waiting attributes, so bytes written in between are sent
                // first.
                self.seal();
            }
        }
        let owner = self.deferred.sets_mtime().filter(|_| journaled);
        owner.is_some_and(|owner| self.journal.see(owner, seen.mtime, true))
    }
}

impl WriteBack {
    /// Notes the owner of a new file that the server gave to its creator. Later times of the
    /// server's clock are learnt as well.
    pub(super) fn learn_owner(&self, cx: &RequestContext, made: &Attrs) {
        self.clock.heard(made.attr.ctime, made.asked);
        if made.attr.uid == cx.cred.uid && !self.owners.read().contains(&(made.attr.fsid, made.attr.uid)) {
            self.owners.write().insert((made.attr.fsid, made.attr.uid));
        }
    }

    /// The writer of a file, if the server certainly lets that user set the file's times.
    fn owner(&self, s: &State, attr: &Attr) -> Option<Arc<Cred>> {
        let owns = |uid| attr.uid == uid && self.owners.read().contains(&(attr.fsid, uid));
        s.writer.as_ref().map(|writer| writer.cred.clone()).filter(|cred| owns(cred.uid))
    }

    /// Whether the local times of a file may be shown as the final ones, as far as its attributes
    /// are known.
    fn keeps_times(&self, s: &State, fh: &Fh) -> bool {
        if s.extents.is_clean() {
            // Delayed attributes change the change time only, and the server's own stays hidden.
            return true;
        }
        // A time in the future was set by a program, and the write ended it.
        let is_now = |mtime| mtime < self.clock.after(mtime);
        let times = self.leases.delegates_times(fh);
        let may_set =
            |shown: Attrs| is_now(shown.attr.mtime) && (times || self.owner(s, &shown.attr).is_some());
        (s.deferred.sets_mtime().is_some() || s.shown().is_none_or(may_set)) && self.is_authority(fh)
    }

    /// Whether no other client sees the file before its bytes are sent, or the user accepts that
    /// other clients see old bytes.
    fn is_authority(&self, fh: &Fh) -> bool {
        let promised = self.options.exclusive || self.options.lazy_close;
        promised || self.leases.delegated_bytes(fh).is_some()
    }

    /// Notes a change of a file by a program. Times that were seen before end.
    pub(super) fn times_end(&self, fh: &Fh) {
        if let Some(file) = self.known(fh) {
            file.state.lock().seen = None;
        }
        self.shown.lock().forget(fh);
    }

    /// Notes that the server has the bytes and the modification time of a file. `theirs` are its
    /// attributes afterwards.
    pub(super) fn keep_seen(&self, file: &File, s: &mut State, theirs: Option<&Attrs>) {
        if let Some(seen) = s.seen.take() {
            let rounded = theirs.is_some_and(|theirs| theirs.attr.mtime != seen.mtime);
            let mtime = rounded.then_some(seen.mtime);
            self.shown.lock().keep(&file.fh, mtime, seen.ctime, theirs.map(|theirs| theirs.attr.ctime));
        }
    }

    /// Shows the local state in `attrs` to a program. Returns whether its times are final.
    pub(super) async fn show_program(
        &self,
        cx: &RequestContext,
        file: &Arc<File>,
        attrs: &mut Attrs,
    ) -> bool {
        let (now, fresh) = (Instant::now(), self.next_change());
        let noted = {
            let mut s = file.state.lock();
            let theirs = s.show(attrs, fresh);
            self.shown.lock().show(&file.fh, attrs, true);
            if cx.times_unseen || s.is_settled() && s.journal.is_empty() {
                return theirs;
            }
            if theirs {
                // A replay of the journal would change the time.
                self.owner(&s, &attrs.attr)
                    .is_some_and(|owner| s.journal.see(&owner, attrs.attr.mtime, false))
            } else if !s.is_settled() && self.keeps_times(&s, &file.fh) {
                self.look_after(&mut s, file, now);
                // Only an owner can set the time after a crash, which ends the delegation.
                let owns = self.owner(&s, &attrs.attr).is_some();
                s.see(attrs, now, owns)
            } else {
                return false;
            }
        };
        if noted {
            self.noted(file).await;
        }
        true
    }

    /// The part of the file that the server lacks, for requests of other clients. A reported time
    /// stays, like one that a program saw.
    pub(super) fn unsent_of(self: &Arc<Self>, file: &Arc<File>) -> Unsent {
        let now = Instant::now();
        let (unsent, noted) = {
            let mut s = file.state.lock();
            let Unsent::Bytes { size_bytes, .. } = s.unsent() else { return s.unsent() };
            let times = self.leases.delegates_times(&file.fh) && self.keeps_times(&s, &file.fh);
            let Some(mut shown) = s.shown().filter(|_| times) else {
                return Unsent::Bytes { size_bytes, mtime: None };
            };
            if let Some(seen) = &s.seen {
                (shown.attr.mtime, shown.attr.ctime) = (seen.mtime, seen.ctime);
            }
            self.look_after(&mut s, file, now);
            let owns = self.owner(&s, &shown.attr).is_some();
            let noted = s.see(&shown, now, owns);
            (Unsent::Bytes { size_bytes, mtime: Some(shown.attr.mtime) }, noted)
        };
        if noted {
            // The answer does not wait for the journal. A replay without the record sets a later
            // time.
            let (layer, file) = (self.clone(), file.clone());
            tokio::spawn(async move { layer.noted(&file).await });
        }
        unsent
    }

    /// Sends the bytes that affect the answer to a request for attributes. Returns whether they
    /// were sent.
    pub(super) async fn flush_for_times(&self, cx: &RequestContext, file: &Arc<File>) -> bool {
        let (now, limits) = (Instant::now(), &self.options);
        {
            let mut s = file.state.lock();
            let bytes = s.extents.bytes();
            let asked = s.asked.is_some_and(|at| now < at + limits.dirty_age);
            // The times are known when the program has set them.
            let wanted = bytes > 0 && bytes <= limits.stat_flush_bytes && s.deferred.sets_mtime().is_none();
            let vain = asked || s.failing.is_some() || s.names != Names::Some;
            if !wanted || vain || self.keeps_times(&s, &file.fh) {
                return false;
            }
            s.asked = Some(now);
        }
        // Local times are shown when the bytes cannot be sent.
        patient(cx, self.flush(file, Reason::Order, true)).await.is_ok()
    }
}
