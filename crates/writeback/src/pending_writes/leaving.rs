//! Removals of names while opens of the file begin or end.
//!
//! The module does not know how bytes are sent. A file that every program has closed may wait for
//! its bytes to be sent (`lazy.rs`). The file is then still open at the layer below. When the file
//! loses a name, that layer need not keep it under a hidden name
//! ([`RequestContext::target_unused`](hither_vfs::RequestContext)). An open in progress counts as a
//! use.
//!
//! The bytes of the file are dropped when its last name is removed and no program can reach it. A
//! later use of its handle fails with `ESTALE`.

use super::WriteBack;
use super::file::File;
use super::stats::Reason;
use hither_vfs::{Error, Fh, Name, PathRef, Result};
use std::sync::Arc;
use tokio::sync::OwnedRwLockWriteGuard;

/// The number of files without a name whose records are kept after their bytes were dropped.
pub(super) const ABANDONED_MAX: usize = 1024;

/// An open in progress. Ends when dropped.
pub(super) struct Opening<'a> {
    layer: &'a WriteBack,
    what: What,
}

enum What {
    File(Arc<File>),
    Name(Option<Fh>, Name),
    Nothing,
}

/// The removal of a name of a file that no program uses. Meanwhile no bytes of the file are sent,
/// except for a recall, since the removal may wait for the recall.
pub(super) struct Losing {
    layer: Arc<WriteBack>,
    file: Arc<File>,
    /// The name was removed, or the failure has been handled.
    is_done: bool,
    _gate: OwnedRwLockWriteGuard<()>,
}

impl WriteBack {
    /// Begins an open.
    ///
    /// # Errors
    /// `ESTALE` when the file has lost its last name, and with it bytes that the server never had.
    pub(super) fn opening(&self, at: PathRef<'_>) -> Result<Opening<'_>> {
        let what = match at.path {
            [] => self.opening_file(at.base)?.map_or(What::Nothing, What::File),
            // The directory of a longer path is not known yet.
            [.., name] => {
                let dir = (at.path.len() == 1).then(|| at.base.clone());
                self.opening.lock().push((dir.clone(), name.clone()));
                What::Name(dir, name.clone())
            }
        };
        Ok(Opening { layer: self, what })
    }

    fn opening_file(&self, fh: &Fh) -> Result<Option<Arc<File>>> {
        loop {
            let Some(file) = self.known(fh) else { return Ok(None) };
            let mut s = file.state.lock();
            if s.abandoned_bytes.is_some() {
                return Err(Error::new(libc::ESTALE));
            }
            if !s.forgotten {
                s.opening += 1;
                drop(s);
                return Ok(Some(file));
            }
        }
    }

    /// Keeps the record of a file whose unsent bytes were dropped. The server may have the file,
    /// without these bytes, for a while after the close.
    pub(super) fn remember(&self, file: &Arc<File>) {
        file.state.lock().is_remembered = true;
        let oldest = {
            let mut abandoned = self.abandoned.lock();
            abandoned.push_back(file.clone());
            if abandoned.len() > ABANDONED_MAX { abandoned.pop_front() } else { None }
        };
        if let Some(oldest) = oldest {
            oldest.state.lock().is_remembered = false;
            self.tidy(&oldest);
        }
    }

    /// A new file has this handle. Some servers give it the handle of a removed file.
    pub(super) fn note_new(&self, fh: &Fh) {
        let Some(file) = self.known(fh) else { return };
        let was_remembered = {
            let mut s = file.state.lock();
            s.abandoned_bytes = None;
            std::mem::take(&mut s.is_remembered)
        };
        if was_remembered {
            self.tidy(&file);
        }
    }

    /// Prepares a call that removes `name` from a file. `None` when a program may use the file.
    pub(super) fn losing_name(&self, target: Option<&Fh>, (dir, name): (&Fh, &Name)) -> Option<Losing> {
        let file = self.known(target?)?;
        let gate = file.gate.clone().try_write_owned().ok()?;
        let meant = |(d, n): &(Option<Fh>, Name)| n == name && d.as_ref().is_none_or(|d| d == dir);
        if self.opening.lock().iter().any(meant) {
            return None;
        }
        {
            let mut s = file.state.lock();
            if !s.is_left() || s.extents.is_flying() || s.deferred.is_sent() || s.losing_name {
                return None;
            }
            s.losing_name = true;
        }
        Some(Losing { layer: self.this(), file, is_done: false, _gate: gate })
    }

    /// Whether bytes that waited for the end of a delegation have none any more.
    pub(super) fn has_lost_delegation(&self, file: &File) -> bool {
        self.options.delegated_close && !self.may_wait(&file.fh)
    }
}

impl Losing {
    pub fn fh(&self) -> &Fh {
        &self.file.fh
    }

    /// Ends a successful removal.
    pub fn removed(mut self) {
        self.is_done = true;
    }

    /// Ends a removal that failed. The delegation may have been returned with it, and other clients
    /// may use the file: the bytes that waited for the delegation's end are sent.
    pub async fn fail(mut self) {
        let (layer, file) = (self.layer.clone(), self.file.clone());
        self.is_done = true;
        drop(self);
        if layer.has_lost_delegation(&file) {
            // The file records its errors.
            let _ = layer.flush(&file, Reason::Recall, true).await;
        }
    }
}

impl Drop for Losing {
    fn drop(&mut self) {
        self.file.state.lock().losing_name = false;
        self.file.changed.notify_waiters();
        let in_runtime = tokio::runtime::Handle::try_current().is_ok();
        if !self.is_done && in_runtime && self.layer.has_lost_delegation(&self.file) {
            self.layer.flush_in_background(&self.file, Reason::Recall);
        }
        self.layer.pump(&self.file);
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        match &self.what {
            What::File(file) => {
                file.state.lock().opening -= 1;
                file.changed.notify_waiters();
                self.layer.tidy(file);
            }
            What::Name(dir, name) => {
                let mut opening = self.layer.opening.lock();
                if let Some(at) = opening.iter().position(|(d, n)| (d, n) == (dir, name)) {
                    opening.swap_remove(at);
                }
            }
            What::Nothing => {}
        }
    }
}
