//! System calls under way whose look-ups come one after another.

use super::caller::SystemCall;
use super::path::Path;
use super::{Hint, Intent, PAUSE_MAX};
use crate::handles::First;
use crate::inode::{Inode, Moment};
use hither_vfs::{Attrs, Cred, Name, Node, Stop, Trail, Validity};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::time::Instant;

/// The object that a walk found under a name.
#[derive(Debug, Clone)]
pub(crate) enum Known {
    /// This object.
    Node(Node),
    /// Nothing.
    Missing(Validity),
}

/// A thread's call.
#[derive(Debug)]
pub(crate) struct Record {
    /// The call.
    pub call: SystemCall,
    /// The paths that it was made with.
    pub text: SmallVec<[Path; 2]>,
    /// On whose behalf the walk was.
    pub cred: Arc<Cred>,
    /// When its first look-up came.
    pub began: Instant,
    /// When the last was answered.
    pub last: Instant,
    /// Its purpose.
    pub intent: Intent,
    /// Its paths.
    pub tracks: SmallVec<[Track; 2]>,
    /// Names were asked for ahead, and none has been looked up yet.
    pub unused: bool,
}

impl Record {
    /// Whether the call of a hint, read `now`, may be this one.
    pub fn is_made_of(&self, hint: &Hint, now: Instant) -> bool {
        self.call == hint.call && self.is_live(now) && self.text == hint.text
    }

    /// Whether the next request of the thread may belong to the call.
    pub fn is_live(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) < PAUSE_MAX
    }
}

/// How far one path of a call is.
#[derive(Debug, Default)]
pub(crate) struct Track {
    /// The path, with symbolic links replaced as they are met.
    pub path: Path,
    /// The part that comes next.
    pub at: usize,
    /// The object that was found last: the next part is looked up in it. 0: none yet.
    here: u64,
    /// The directory in which that was found.
    above: u64,
    /// The known next parts.
    pub ahead: VecDeque<Known>,
    /// Entries of `ahead` that were asked for before they were looked up.
    early: usize,
    /// When that was asked for.
    pub asked: Moment,
    /// First bytes of the last object.
    pub first: Option<First>,
}

impl Track {
    /// A walk from part `at` in directory `dir`.
    pub fn begin(&mut self, at: usize, dir: u64, trail: &Trail, asked: Moment) {
        (self.at, self.here, self.above, self.asked) = (at, dir, 0, asked);
        // A lease could be withdrawn until a step is used: it holds for this call, as any answer
        // does.
        let once = |valid| if valid == Validity::Lease { Validity::Once } else { valid };
        let known = |node: &Node| {
            let attrs = Attrs { valid: once(node.attrs.valid), ..node.attrs.clone() };
            Known::Node(Node { attrs, ..node.clone() })
        };
        self.ahead = trail.steps.iter().map(known).collect();
        if let Stop::Missing(valid) = trail.stop {
            self.ahead.push_back(Known::Missing(valid));
        }
        self.early = self.ahead.len().saturating_sub(1);
        let change = trail.steps.last().map(|node| node.attrs.attr.change);
        let first = change.zip(trail.along.first.clone());
        self.first = first.map(|(change, read)| First { change, asked, read });
    }

    /// Whether a look-up of `name` in `dir` is the next step.
    pub fn expects(&self, dir: u64, name: &Name) -> bool {
        self.here == dir && self.path.parts.get(self.at).is_some_and(|part| part == name.bytes())
    }

    /// Goes one step on, to inode `found`; true when it had been asked for ahead.
    pub fn advance(&mut self, found: u64) -> bool {
        (self.above, self.here) = (self.here, found);
        self.at += 1;
        let early = self.is_early();
        self.ahead.pop_front();
        self.early = self.early.min(self.ahead.len());
        early
    }

    /// Whether the next part was asked for before it was looked up.
    pub fn is_early(&self) -> bool {
        !self.ahead.is_empty() && self.ahead.len() <= self.early
    }

    /// Whether `inode` is where the path has come to.
    pub fn is_at(&self, inode: u64) -> bool {
        self.here == inode && self.here != 0
    }

    /// Whether the path ends at `inode`: it has come there, or the next part is known. (The kernel
    /// does not look up names that it has cached.)
    pub fn ends_at(&self, inode: &Inode) -> bool {
        let left = self.path.parts.len().saturating_sub(self.at);
        match self.ahead.back() {
            Some(Known::Node(node)) => left == self.ahead.len() && inode.ident.is_of(&node.attrs.attr),
            Some(Known::Missing(_)) => false,
            None => left == 0 && self.is_at(inode.id),
        }
    }

    /// The path goes on in the target of the symbolic link it has come to.
    pub fn through_link(&mut self, target: &[u8]) {
        self.path = self.path.through_link(target, self.at);
        self.at = 0;
        // An absolute target begins at the caller's root.
        self.here = if self.path.absolute { 0 } else { self.above };
        self.ahead.clear();
        self.early = 0;
        self.first = None;
    }
}
