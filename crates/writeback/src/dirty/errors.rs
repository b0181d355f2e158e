//! Errors of delayed writes, told once to each open: Linux's errseq.
//!
//! It knows nothing of writes. A file counts its errors; each open has a mark, the count that it
//! has seen. An error that nobody was told of is the next open's to report.

use hither_vfs::{Error, OpenAccess, OpenId, Result};
use std::collections::HashMap;

/// The opens of one file and what each has seen of its errors.
#[derive(Debug, Default)]
pub(super) struct Errors {
    opens: HashMap<OpenId, Open>,
    count: u64,
    last: Option<Error>,
    /// Somebody was told of the last one.
    told: bool,
    /// Written data was lost since somebody was told.
    lost: bool,
}

#[derive(Debug)]
struct Open {
    access: OpenAccess,
    seen: u64,
}

impl Errors {
    /// The file is opened.
    pub fn open(&mut self, open: OpenId, access: OpenAccess) {
        let untold = u64::from(self.last.is_some() && !self.told);
        self.opens.insert(open, Open { access, seen: self.count - untold });
    }

    /// An open ends.
    pub fn close(&mut self, open: OpenId) {
        self.opens.remove(&open);
    }

    /// What an open may be used for; `None` for one that is not known here.
    pub fn access(&self, open: OpenId) -> Option<OpenAccess> {
        self.opens.get(&open).map(|o| o.access)
    }

    /// Any of them.
    pub fn first_open(&self) -> Option<OpenId> {
        self.opens.keys().next().copied()
    }

    /// Number of opens.
    pub fn opens(&self) -> usize {
        self.opens.len()
    }

    /// Written data was lost.
    pub fn record(&mut self, e: Error) {
        self.record_late(e);
        self.lost = true;
    }

    /// Written data could not be sent for now.
    pub fn record_late(&mut self, e: Error) {
        self.count += 1;
        self.last = Some(e);
        self.told = false;
    }

    /// The latest error when `open` has not seen it; without an open, when nobody has.
    ///
    /// # Errors
    /// That one.
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

    /// The last error, if something was lost of which nobody was told.
    ///
    /// # Errors
    /// That one.
    pub fn untold(&self) -> Result<()> {
        self.last.clone().filter(|_| self.lost).map_or(Ok(()), Err)
    }

    /// Nobody has the file open, and there is nothing to tell.
    pub fn is_idle(&self) -> bool {
        self.opens.is_empty() && (self.last.is_none() || self.told)
    }
}
