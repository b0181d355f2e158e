//! When attributes wait, and when they no longer may.
//!
//! It knows nothing of which may wait (`owed.rs`) and of how they are sent (`finish.rs`).

use super::Dirty;
use super::file::{File, State};
use super::stats::{Counters, Reason};
use super::wait::patient;
use hither_vfs::{Attrs, Cx, Fh, Result, SetAttr};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::time::Instant;

/// Files whose permissions may wait. Taken after a file's state.
#[derive(Debug, Default)]
pub(super) struct Debtors {
    files: Mutex<HashSet<Fh>>,
}

impl Debtors {
    fn add(&self, fh: &Fh) {
        self.files.lock().insert(fh.clone());
    }

    /// The file owes none.
    pub fn remove(&self, fh: &Fh) {
        self.files.lock().remove(fh);
    }

    /// All of them.
    pub fn all(&self) -> Vec<Fh> {
        self.files.lock().iter().cloned().collect()
    }
}

impl Dirty {
    /// Keeps a change of attributes for the end of the file, where that may be.
    pub(super) fn owe(&self, cx: &Cx, file: &Arc<File>, set: &SetAttr) -> Option<Attrs> {
        if !self.options.delay_attributes {
            return None;
        }
        let (now, wall) = (Instant::now(), self.wall());
        let mut s = file.state.lock();
        let shown = s.shown()?;
        let set = s.owed.may_wait(&cx.cred, set, &shown)?;
        s.owed.add(&set, now, wall);
        if s.owed.is_sealed() {
            // Others wait for what waits: what was written in between is to be there before.
            s.seal();
        }
        self.look_after(&mut s, file, now);
        let shown = s.shown();
        if s.owed.has_mode() {
            self.owing.add(&file.fh);
        }
        drop(s);
        Counters::add(&self.counters.attributes_merged, 1);
        self.pump(file);
        shown
    }

    /// What is kept of a file is sent after a while.
    pub(super) fn look_after(&self, s: &mut State, file: &Arc<File>, now: Instant) {
        if s.queued.is_none() {
            s.queued = Some(self.ages.push(now + self.options.dirty_age, file));
        }
    }

    /// Sends permissions that wait, before somebody asks what he may do.
    pub(super) async fn pay_modes(&self, cx: &Cx) -> Result<()> {
        for fh in self.owing.all() {
            self.pay_mode(cx, &fh).await?;
            let Some(file) = self.known(&fh) else { continue };
            let s = file.state.lock();
            if !s.owed.has_mode() {
                self.owing.remove(&fh);
            }
        }
        Ok(())
    }

    /// The same for one file.
    pub(super) async fn pay_mode(&self, cx: &Cx, fh: &Fh) -> Result<()> {
        match self.known(fh).filter(|f| f.state.lock().owed.has_mode()) {
            Some(file) => self.send_first(cx, &file).await,
            None => Ok(()),
        }
    }

    /// What cannot be sent is told by fsync or close.
    async fn send_first(&self, cx: &Cx, file: &Arc<File>) -> Result<()> {
        patient(cx, async {
            let _ = self.flush(file, Reason::Order, false).await;
            Ok(())
        })
        .await
    }
}
