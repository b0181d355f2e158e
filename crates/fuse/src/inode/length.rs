//! The length that the kernel has of a file.
//!
//! The kernel ends reads, and begins appends, at this length. It takes the length of the attributes
//! in an answer, unless something has invalidated the file's pages or attributes, or shortened the
//! file, since it sent the request. Other attributes do so too. The thread that sent the request
//! processes the answer, so the next request of the thread shows that it has
//! ([`crate::unprocessed`]).

use super::Inode;
use super::extending::Extending;
use hither_vfs::FileKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum time that a request of the kernel waits until a thread of the daemon reads it.
pub(crate) const QUEUED_MAX: Duration = Duration::from_secs(1);

/// The length that the kernel has.
#[derive(Debug)]
pub(super) struct Length {
    /// The length; `None` when unknown.
    known: Option<u64>,
    /// The file has another length, and the kernel's pages were dropped for it.
    outdated: bool,
    /// The length as soon as the kernel has processed an answer.
    next: Option<u64>,
    /// Number of running invalidations.
    invalidating: u32,
    /// End of the last one.
    invalidated: Option<Instant>,
    /// Time of the last write of the mount.
    written: Option<Instant>,
    /// Length in the last answers.
    told: u64,
    /// Number of running answers with this length.
    telling: u32,
    /// End of the last one.
    ended: Option<Instant>,
    /// Running calls that may extend the file.
    pub extending: Extending,
}

impl Length {
    pub fn new(size: u64) -> Self {
        Self {
            known: Some(size),
            outdated: false,
            next: None,
            invalidating: 0,
            invalidated: None,
            written: None,
            told: size,
            telling: 0,
            ended: None,
            extending: Extending::default(),
        }
    }

    /// The length, unless the kernel's pages were dropped for another one.
    pub fn known(&self) -> Option<u64> {
        self.known.filter(|_| !self.outdated)
    }

    /// Records that the kernel's pages were dropped for another length.
    pub fn outdate(&mut self) {
        (self.outdated, self.next) = (true, None);
    }

    /// Records the length after a change by the mount.
    pub fn set(&mut self, size: u64) {
        (self.known, self.next, self.outdated) = (Some(size), None, false);
        self.extending.set(size);
    }

    /// Records that the length is unknown.
    pub fn forget(&mut self) {
        (self.known, self.next) = (None, None);
    }

    /// Starts an event that makes the kernel ignore attributes.
    fn invalidate(&mut self) {
        self.invalidating += 1;
        self.next = None;
    }

    /// Records a write up to `end`. The kernel extends its length after the write. It may take an
    /// earlier answer before that, and ignores it later.
    pub fn extend(&mut self, end: u64) {
        self.written = Some(Instant::now());
        self.known = self.known.map(|size| size.max(end));
        self.next = self.next.map(|size| size.max(end));
    }

    /// Starts an answer with `size` to a request that the kernel did not send before `sent`. Each
    /// accepted answer makes the kernel ignore the answers to requests before it.
    fn tell(&mut self, size: u64, sent: Instant) -> Effect {
        let since = |end: Option<Instant>| end.is_some_and(|end| end >= sent);
        let invalid = self.invalidating > 0 || since(self.invalidated) || since(self.written);
        let other = self.told != size && (self.telling > 0 || since(self.ended));
        if self.known == Some(size) {
            self.outdated = false;
        } else {
            self.known = None;
            self.next = Some(size).filter(|_| !invalid && !other);
        }
        if other {
            self.invalidate();
            return Effect::Invalidates;
        }
        self.told = size;
        self.telling += 1;
        Effect::Tells
    }
}

#[derive(Debug, Clone, Copy)]
enum Effect {
    /// The kernel ignores attributes that it requested before.
    Invalidates,
    /// As before, but the other answers have the same length.
    Tells,
}

/// A running event that may make the kernel ignore attributes. It ends when dropped.
#[derive(Debug)]
pub(crate) struct Running<I: AsRef<Inode>> {
    inode: I,
    effect: Effect,
}

/// A running invalidation of the kernel's pages or attributes.
pub(crate) type Invalidating<'a> = Running<&'a Inode>;

/// An answer with attributes, until the kernel has processed it.
pub(crate) type Telling = Running<Arc<Inode>>;

impl<I: AsRef<Inode>> Drop for Running<I> {
    fn drop(&mut self) {
        let (mut s, now) = (self.inode.as_ref().state.lock(), Instant::now());
        let length = &mut s.length;
        match self.effect {
            Effect::Invalidates => {
                length.invalidating -= 1;
                length.invalidated = Some(now);
            }
            Effect::Tells => {
                length.telling -= 1;
                length.ended = Some(now);
                if let Some(next) = length.next.take() {
                    (length.known, length.outdated) = (Some(next), false);
                }
            }
        }
    }
}

impl AsRef<Inode> for Inode {
    fn as_ref(&self) -> &Inode {
        self
    }
}

impl Inode {
    /// Starts an invalidation of the kernel's pages or attributes.
    pub fn invalidating(&self) -> Invalidating<'_> {
        self.state.lock().length.invalidate();
        Running { inode: self, effect: Effect::Invalidates }
    }

    /// Starts the answer with attributes of `size` to a request that the kernel did not send before
    /// `sent`.
    pub fn telling(self: &Arc<Self>, size: u64, sent: Instant) -> Telling {
        let effect = self.state.lock().length.tell(size, sent);
        Running { inode: self.clone(), effect }
    }

    /// Starts an answer to a read that ends at `end`. The kernel shortens the file to that length
    /// when it has a larger one, and may ignore it.
    pub fn shortening(&self, end: u64) -> Option<Invalidating<'_>> {
        let mut s = self.state.lock();
        let shortens = s.length.known.is_none_or(|size| end < size);
        shortens.then(|| {
            s.length.forget();
            s.length.invalidate();
            Running { inode: self, effect: Effect::Invalidates }
        })
    }

    /// Whether attributes of `size` would show a length before the pages of a running change are
    /// dropped. The kernel takes attributes during a write past its pages.
    pub fn shows_early(&self, size: u64) -> bool {
        let s = self.state.lock();
        s.modifying > 0 && self.kind == FileKind::Regular && s.length.known != Some(size)
    }

    /// The length that the kernel certainly has, outdated or not.
    pub fn known_length(&self) -> Option<u64> {
        self.state.lock().length.known
    }

    /// Whether the kernel certainly has this length.
    pub fn is_length(&self, size: u64) -> bool {
        self.state.lock().length.known() == Some(size)
    }

    /// Records that the kernel's length is unknown until its next request for attributes.
    pub fn forget_length(&self) {
        self.state.lock().length.forget();
    }

    /// Records the length after a change of attributes or a truncation by the mount.
    pub fn has_length(&self, size: u64) {
        self.state.lock().length.set(size);
    }
}
