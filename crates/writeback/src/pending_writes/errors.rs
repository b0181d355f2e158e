//! Errors of delayed writes, reported once to each open, like Linux's errseq.
//!
//! The module knows nothing of writes. A file counts its errors. Each open has a mark: the count
//! that it has seen. The next open reports an error that no open has reported.

use hither_vfs::{Error, OpenAccess, OpenId, Result, note_loss};
use std::collections::HashMap;

/// The opens of one file, each with the errors that it has seen.
#[derive(Debug, Default)]
pub(super) struct Errors {
    opens: HashMap<OpenId, Open>,
    count: u64,
    last: Option<Error>,
    /// The last error was reported.
    told: bool,
    /// Written data was lost since the last report.
    lost: bool,
}

#[derive(Debug)]
struct Open {
    access: OpenAccess,
    seen: u64,
}

impl Errors {
    /// Adds an open of the file.
    pub fn open(&mut self, open: OpenId, access: OpenAccess) {
        let untold = u64::from(self.last.is_some() && !self.told);
        self.opens.insert(open, Open { access, seen: self.count - untold });
    }

    /// Removes an open.
    pub fn close(&mut self, open: OpenId) {
        self.opens.remove(&open);
    }

    /// The access mode of an open. `None` for an unknown open.
    pub fn access(&self, open: OpenId) -> Option<OpenAccess> {
        self.opens.get(&open).map(|o| o.access)
    }

    /// Any open of the file.
    pub fn first_open(&self) -> Option<OpenId> {
        self.opens.keys().next().copied()
    }

    /// The number of opens.
    pub fn opens(&self) -> usize {
        self.opens.len()
    }

    /// Records that written data was lost.
    pub fn record(&mut self, e: Error) {
        note_loss();
        self.record_late(e);
        self.lost = true;
    }

    /// Records that written data could not be sent for now.
    pub fn record_late(&mut self, e: Error) {
        self.count += 1;
        self.last = Some(e);
        self.told = false;
    }

    /// Reports the latest error, if `open` has not seen it. Without an open, reports an error that
    /// was not reported yet.
    ///
    /// # Errors
    /// The latest error.
    pub fn report(&mut self, open: Option<OpenId>) -> Result<()> {
        let news = match open.and_then(|id| self.opens.get_mut(&id)) {
            Some(open) => std::mem::replace(&mut open.seen, self.count) != self.count,
            None => !self.told,
        };
        match (news, self.last.clone()) {
            (true, Some(e)) => {
                (self.told, self.lost) = (true, false);
                Err(e)
            }
            _ => Ok(()),
        }
    }

    /// Checks for lost data that was not reported. The error still counts as not reported.
    ///
    /// # Errors
    /// The last error, if data was lost since the last report.
    pub fn untold(&self) -> Result<()> {
        self.last.clone().filter(|_| self.lost).map_or(Ok(()), Err)
    }

    /// Whether the file has no opens and no error to report.
    pub fn is_idle(&self) -> bool {
        self.opens.is_empty() && (self.last.is_none() || self.told)
    }
}
