//! Errors of delayed writes. Each open reports an error once, as Linux's errseq does.
//!
//! A file counts its errors. Each open has a mark: the count at its last report.

use hither_vfs::{Error, Result, note_loss};
use parking_lot::Mutex;
use std::sync::Arc;

/// The error count that an open has reported. Clones share the mark.
#[derive(Debug, Clone)]
pub struct OpenMark {
    seen: Arc<Mutex<u64>>,
}

/// The errors and opens of one file.
#[derive(Default)]
pub(super) struct Errors {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    opens: u64,
    count: u64,
    last: Option<Error>,
    /// An open or commit has reported the last error.
    told: bool,
}

impl Errors {
    /// Registers an open of the file. The new open reports an error that no open has reported yet.
    pub fn open(&self) -> OpenMark {
        let mut s = self.state.lock();
        s.opens += 1;
        let untold = u64::from(s.last.is_some() && !s.told);
        OpenMark { seen: Arc::new(Mutex::new(s.count - untold)) }
    }

    /// Ends an open. True for the last one.
    pub fn close(&self) -> bool {
        let mut s = self.state.lock();
        s.opens = s.opens.saturating_sub(1);
        s.opens == 0
    }

    /// Records that written data was lost.
    pub fn record(&self, e: Error) {
        note_loss();
        let mut s = self.state.lock();
        s.count += 1;
        s.last = Some(e);
        s.told = false;
    }

    /// Reports the latest error when `open` has not reported it. Without an open: when no open has.
    pub fn report(&self, open: Option<&OpenMark>) -> Result<()> {
        let mut s = self.state.lock();
        let news = match open {
            Some(mark) => std::mem::replace(&mut *mark.seen.lock(), s.count) != s.count,
            None => !s.told,
        };
        match (news, s.last.clone()) {
            (true, Some(e)) => {
                s.told = true;
                Err(e)
            }
            _ => Ok(()),
        }
    }

    /// The file has no opens and no unreported error.
    pub fn is_idle(&self) -> bool {
        let s = self.state.lock();
        s.opens == 0 && (s.last.is_none() || s.told)
    }
}
