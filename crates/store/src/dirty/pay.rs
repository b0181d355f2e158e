//! When attributes wait, and when they no longer may.
//!
//! It knows nothing of which may wait (`owed.rs`) and of how they are sent (`finish.rs`).

use super::Dirty;
use super::file::File;
use super::stats::{Counters, Reason};
use super::wait::patient;
use hither_vfs::{Attrs, Cx, Fh, Result, SetAttr};
use std::sync::Arc;
use tokio::time::Instant;

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
        if s.queued.is_none() {
            s.queued = Some(self.ages.push(now + self.options.dirty_age, file));
        }
        Counters::add(&self.counters.attributes_merged, 1);
        s.shown()
    }

    /// Sends permissions that wait, before somebody asks what he may do.
    pub(super) async fn pay_modes(&self, cx: &Cx) -> Result<()> {
        let owes = |file: &&Arc<File>| file.state.lock().owed.has_mode();
        let files: Vec<_> = self.files.read().values().filter(owes).cloned().collect();
        for file in files {
            self.send_first(cx, &file).await?;
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
