//! Errors of delayed writes, told once to each open: Linux's errseq.
//!
//! It knows nothing of writes. A file counts its errors; each open has a mark, the count that it
//! has seen.

use hither_vfs::{Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;

/// What an open has seen of its file's write errors. Clones share it.
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
    /// Somebody was told of the last one.
    told: bool,
}

impl Errors {
    /// The file is opened. An error that nobody has been told of yet is this open's to report.
    pub fn open(&self) -> OpenMark {
        let mut s = self.state.lock();
        s.opens += 1;
        let untold = u64::from(s.last.is_some() && !s.told);
        OpenMark { seen: Arc::new(Mutex::new(s.count - untold)) }
    }

    /// An open ends; true when it was the last one.
    pub fn close(&self) -> bool {
        let mut s = self.state.lock();
        s.opens = s.opens.saturating_sub(1);
        s.opens == 0
    }

    /// Written data was lost.
    pub fn record(&self, e: Error) {
        let mut s = self.state.lock();
        s.count += 1;
        s.last = Some(e);
        s.told = false;
    }

    /// The latest error when `open` has not seen it; without an open, when nobody has.
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

    /// Nobody has the file open, and there is nothing to tell.
    pub fn is_idle(&self) -> bool {
        let s = self.state.lock();
        s.opens == 0 && (s.last.is_none() || s.told)
    }
}
