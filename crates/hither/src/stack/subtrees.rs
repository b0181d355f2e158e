//! Parts of a mount with a consistency mode of their own. Each mode has a stack of its own layers,
//! like a separate mount, over one connection to the server.
//!
//! This module has no modes and no NFS. The rules (`rules`) assign directories to stacks by path.
//! The layer above sees one file system. The last byte of each handle is the *place* of the object:
//! the way in which it was reached. Each call uses the stack of its handle (`vfs`). The layer
//! therefore stores nothing about objects, and no call is answered from another stack's caches. A
//! file with names in two subtrees is two objects, as with two mounts. A change through one stack
//! is reported to the others before the call is answered. Each stack has its own rule for the
//! validity of the server's answers (`branch`).
//!
//! The name of a subtree belongs to its parent directory, and the object behind the name belongs to
//! the subtree, as with a mount point. A walk stops at a subtree
//! ([`Stop::Limit`](hither_vfs::Stop::Limit)), so that each stack resolves only its own names.
//! Renames and hard links between places fail with `EXDEV`, because the kernel would keep its
//! cached state of the moved name.

mod branch;
mod rules;
#[cfg(test)]
mod tests;
mod vfs;

pub use branch::{Keep, Trunk};
pub use rules::Rules;

use hither_vfs::{
    Asks, BoxFuture, Error, Fh, File, FileKind, LeaseAuthority, Made, Name, Node, Result, Upcalls, Validity,
    Vfs,
};
use rules::SubtreeId;
use std::sync::Arc;

/// The layers of one mode.
#[derive(Clone)]
pub struct Stack {
    /// The top layer.
    pub vfs: Arc<dyn Vfs>,
    /// Which data of the stack's files may be cached.
    pub leases: Arc<dyn LeaseAuthority>,
    /// When the stack sends requests to the server.
    pub asks: Asks,
}

/// All stacks as one file system.
pub struct Subtrees {
    rules: Arc<Rules>,
    stacks: Vec<Stack>,
}

/// A handle from the layer above: its place, its stack and the stack's handle.
struct At<'a> {
    place: SubtreeId,
    stack: &'a Stack,
    fh: Fh,
}

impl At<'_> {
    /// The same open file with the stack's handle.
    fn file<'b>(&'b self, file: File<'_>) -> File<'b> {
        File { fh: &self.fh, open: file.open }
    }
}

impl Subtrees {
    /// Combines `stacks`, in the order of the numbers in `rules`. The first stack has the root.
    pub fn new(rules: Rules, stacks: Vec<Stack>) -> Arc<Self> {
        Arc::new(Self { rules: Arc::new(rules), stacks })
    }

    /// The stack of an object and the object's handle in it.
    ///
    /// # Errors
    /// `ESTALE`: the bytes are not a handle of this layer.
    pub fn below(&self, fh: &Fh) -> Result<(usize, Fh)> {
        let at = self.at(fh)?;
        Ok((self.rules.stack(at.place), at.fh))
    }

    /// This layer's handle of the object that these names lead to from the root.
    pub fn shown(&self, path: &[Name], fh: &Fh, is_directory: bool) -> Fh {
        let place = match path.split_last() {
            Some((_, dirs)) if !is_directory => self.rules.plain(self.place(dirs)),
            _ => self.place(path),
        };
        tagged(place, fh)
    }

    /// How many names of a path from the root, after the first `done`, belong to one stack. The
    /// second value is the stack to which the last of these names may lead, if it is another one.
    pub fn names_of_stack(&self, path: &[Name], done: usize) -> (usize, Option<usize>) {
        let (done, left) = path.split_at(done.min(path.len()));
        let mut place = self.place(done);
        for (i, name) in left.iter().enumerate() {
            let child = self.rules.child(place, name);
            if !self.same_stack(place, child) {
                return (i + 1, Some(self.rules.stack(child)));
            }
            place = child;
        }
        (left.len(), None)
    }

    fn place(&self, path: &[Name]) -> SubtreeId {
        path.iter().fold(SubtreeId::ROOT, |place, name| self.rules.child(place, name))
    }

    fn at(&self, fh: &Fh) -> Result<At<'_>> {
        let stale = || Error::new(libc::ESTALE);
        let (&place, raw) = fh.0.split_last().ok_or_else(stale)?;
        let place = self.rules.place(place).ok_or_else(stale)?;
        let stack = self.stacks.get(self.rules.stack(place)).ok_or_else(stale)?;
        Ok(At { place, stack, fh: Fh(fh.0.slice(..raw.len())) })
    }

    /// The handle of a hint object, if the object is in the same stack as `at`.
    fn hint(&self, at: &At<'_>, fh: Option<&Fh>) -> Option<Fh> {
        let other = self.at(fh?).ok()?;
        (self.rules.stack(other.place) == self.rules.stack(at.place)).then_some(other.fh)
    }

    /// The place of the object `name` in `dir`. Only directories can be subtrees.
    fn child(&self, dir: SubtreeId, name: &Name, kind: FileKind) -> SubtreeId {
        match kind {
            FileKind::Directory => self.rules.child(dir, name),
            _ => self.rules.plain(dir),
        }
    }

    fn same_stack(&self, a: SubtreeId, b: SubtreeId) -> bool {
        self.rules.stack(a) == self.rules.stack(b)
    }

    /// Gives this layer's handle to the object `name` in `dir`. If the object is a subtree of
    /// another stack, its attributes are valid for this call only.
    fn show(&self, dir: SubtreeId, name: &Name, node: &mut Node) -> SubtreeId {
        let place = self.child(dir, name, node.attrs.attr.kind);
        if !self.same_stack(dir, place) {
            node.attrs.valid = Validity::Once;
        }
        node.fh = tagged(place, &node.fh);
        place
    }

    fn made(&self, dir: SubtreeId, name: &Name, mut made: Made) -> Made {
        self.show(dir, name, &mut made.node);
        made
    }
}

impl std::fmt::Debug for Subtrees {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subtrees").field("rules", &self.rules).finish_non_exhaustive()
    }
}

fn tagged(place: SubtreeId, fh: &Fh) -> Fh {
    let mut raw = Vec::with_capacity(fh.0.len() + 1);
    raw.extend_from_slice(&fh.0);
    raw.push(place.number());
    Fh(raw.into())
}

/// Forwards the upcalls of one stack to the layer above, with this layer's handles.
struct Hearer {
    rules: Arc<Rules>,
    stack: usize,
    above: Arc<dyn Upcalls>,
}

impl Hearer {
    fn shown(&self, fh: &Fh) -> impl Iterator<Item = Fh> {
        self.rules.places(self.stack).map(|place| tagged(place, fh)).collect::<Vec<_>>().into_iter()
    }
}

impl Upcalls for Hearer {
    fn revoke(&self, fh: &Fh) -> BoxFuture<()> {
        branch::all(self.shown(fh).map(|fh| self.above.revoke(&fh)).collect())
    }

    fn expire(&self, files: &[Fh]) -> BoxFuture<()> {
        self.above.expire(&files.iter().flat_map(|fh| self.shown(fh)).collect::<Vec<_>>())
    }

    fn flush(&self, fh: &Fh) -> BoxFuture<()> {
        branch::all(self.shown(fh).map(|fh| self.above.flush(&fh)).collect())
    }

    fn path(&self, fh: &Fh) -> Option<String> {
        self.shown(fh).find_map(|fh| self.above.path(&fh))
    }

    fn revoke_all(&self) -> BoxFuture<()> {
        self.above.revoke_all()
    }
}
