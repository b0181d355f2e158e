//! Records of running system calls with a sequence of lookups.

use super::caller::SystemCall;
use super::path::Path;
use super::{Hint, Intent, PAUSE_MAX};
use crate::handles::First;
use crate::inode::{Inode, Moment};
use hither_vfs::{Attrs, Cred, Name, Node, Stop, Validity, WalkResult};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::time::Instant;

/// The object that a walk found under a name.
#[derive(Debug, Clone)]
pub(crate) enum WalkedObject {
    /// A found object.
    Node(Node),
    /// No object; the validity of the absence.
    Missing(Validity),
}

/// The system call of a thread.
#[derive(Debug)]
pub(crate) struct Record {
    /// The call.
    pub call: SystemCall,
    /// The paths of the call.
    pub text: SmallVec<[Path; 2]>,
    /// The identity of the walk.
    pub cred: Arc<Cred>,
    /// Time of the first lookup.
    pub began: Instant,
    /// Time of the last answer.
    pub last: Instant,
    /// The purpose of the call.
    pub intent: Intent,
    /// The progress of each path.
    pub tracks: SmallVec<[Track; 2]>,
    /// Names were looked up in advance, and none of them has been used.
    pub unused: bool,
}

impl Record {
    /// Whether the call of a hint, read at `now`, may be this one.
    pub fn is_made_of(&self, hint: &Hint, now: Instant) -> bool {
        self.call == hint.call && self.is_live(now) && self.text == hint.text
    }

    /// Whether the next request of the thread may belong to the call.
    pub fn is_live(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) < PAUSE_MAX
    }
}

/// The progress of one path of a call.
#[derive(Debug, Default)]
pub(crate) struct Track {
    /// The path, after replacing known symbolic links.
    pub path: Path,
    /// The index of the next part.
    pub at: usize,
    /// The inode of the last found object, in which the next part is looked up. 0: none yet.
    here: u64,
    /// The directory of that object.
    above: u64,
    /// The results for the next parts.
    pub ahead: VecDeque<WalkedObject>,
    /// Number of entries of `ahead` that were looked up in advance.
    early: usize,
    /// Time of the request for `ahead`.
    pub asked: Moment,
    /// First bytes of the last object.
    pub first: Option<First>,
}

impl Track {
    /// Records a walk from part `at` in directory `dir`.
    pub fn begin(&mut self, at: usize, dir: u64, trail: &WalkResult, asked: Moment) {
        (self.at, self.here, self.above, self.asked) = (at, dir, 0, asked);
        // A lease may be withdrawn before a step is used. So the step is valid for this call only.
        let once = |valid| if valid == Validity::Lease { Validity::Once } else { valid };
        let known = |node: &Node| {
            let attrs = Attrs { valid: once(node.attrs.valid), ..node.attrs.clone() };
            WalkedObject::Node(Node { attrs, ..node.clone() })
        };
        self.ahead = trail.steps.iter().map(known).collect();
        if let Stop::Missing(valid) = trail.stop {
            self.ahead.push_back(WalkedObject::Missing(valid));
        }
        self.early = self.ahead.len().saturating_sub(1);
        let change = trail.steps.last().map(|node| node.attrs.attr.change);
        let first = change.zip(trail.along.first.clone());
        self.first = first.map(|(change, read)| First { change, asked, read });
    }

    /// Whether the next lookup of the path is `name` in `dir`.
    pub fn expects(&self, dir: u64, name: &Name) -> bool {
        self.here == dir && self.path.parts.get(self.at).is_some_and(|part| part == name.bytes())
    }

    /// Moves to inode `found`. Returns true when it was looked up in advance.
    pub fn advance(&mut self, found: u64) -> bool {
        (self.above, self.here) = (self.here, found);
        self.at += 1;
        let early = self.is_early();
        self.ahead.pop_front();
        self.early = self.early.min(self.ahead.len());
        early
    }

    /// Whether the next part was looked up in advance.
    pub fn is_early(&self) -> bool {
        !self.ahead.is_empty() && self.ahead.len() <= self.early
    }

    /// Whether `inode` is the last found object of the path.
    pub fn is_at(&self, inode: u64) -> bool {
        self.here == inode && self.here != 0
    }

    /// Whether the path ends at `inode`: it is the last found object, or the result for the last
    /// part. The kernel does not look up names that it has cached.
    pub fn ends_at(&self, inode: &Inode) -> bool {
        let left = self.path.parts.len().saturating_sub(self.at);
        match self.ahead.back() {
            Some(WalkedObject::Node(node)) => left == self.ahead.len() && inode.ident.is_of(&node.attrs.attr),
            Some(WalkedObject::Missing(_)) => false,
            None => left == 0 && self.is_at(inode.id),
        }
    }

    /// The path continues in the target of its last found object, a symbolic link.
    pub fn through_link(&mut self, target: &[u8]) {
        self.path = self.path.through_link(target, self.at);
        self.at = 0;
        // An absolute target starts at the caller's root.
        self.here = if self.path.absolute { 0 } else { self.above };
        self.ahead.clear();
        self.early = 0;
        self.first = None;
    }
}
