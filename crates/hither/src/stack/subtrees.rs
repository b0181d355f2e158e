//! Parts of a mount with a consistency of their own: each mode has a stack of its own layers, as if
//! it were a mount of its own, over one connection to the server.
//!
//! It knows nothing of modes and NFS. The rules (`rules`) give directories by their paths to
//! stacks. The layer above sees one file system. Each handle ends in a byte that says how the
//! object was reached (its *place*), and each call goes to the stack of its handle (`vfs`). So
//! nothing has to be remembered about an object, and no call is answered by the knowledge of
//! another stack than its own. The same file with names in two subtrees is two objects here, as if
//! there were two mounts. A change through one stack is told to the others before it is answered.
//! Each stack has its own rule for how long the server's answers hold (`branch`).
//!
//! The name of a subtree belongs to the directory that it is in, and the object behind the name
//! belongs to the subtree, as with a mount point. A walk stops there
//! ([`Stop::Limit`](hither_vfs::Stop::Limit)), so that each stack is asked about its own only.
//! Renames and hard links from one place to another fail with `EXDEV`: what the kernel keeps of a
//! name would go along.

mod branch;
mod rules;
#[cfg(test)]
mod tests;
mod vfs;

pub use branch::{Keep, Trunk};
pub use rules::Rules;

use hither_vfs::{
    Asks, BoxFuture, Error, Fh, File, FileKind, Made, Name, Node, Result, Upcalls, Validity, Vfs,
};
use rules::Place;
use std::sync::Arc;

/// The layers of one mode.
#[derive(Clone)]
pub struct Stack {
    /// The uppermost.
    pub vfs: Arc<dyn Vfs>,
    /// When the server is asked.
    pub asks: Asks,
}

/// All stacks as one.
pub struct Subtrees {
    rules: Arc<Rules>,
    stacks: Vec<Stack>,
}

/// A handle from above, taken apart.
struct At<'a> {
    place: Place,
    stack: &'a Stack,
    fh: Fh,
}

impl At<'_> {
    /// A file of its stack.
    fn file<'b>(&'b self, file: File<'_>) -> File<'b> {
        File { fh: &self.fh, open: file.open }
    }
}

impl Subtrees {
    /// `stacks` in the order that `rules` count them in; the first is the root's.
    pub fn new(rules: Rules, stacks: Vec<Stack>) -> Arc<Self> {
        Arc::new(Self { rules: Arc::new(rules), stacks })
    }

    /// Which stack answers about an object, and its handle there.
    ///
    /// # Errors
    /// `ESTALE`: it is no handle of this layer.
    pub fn below(&self, fh: &Fh) -> Result<(usize, Fh)> {
        let at = self.at(fh)?;
        Ok((self.rules.stack(at.place), at.fh))
    }

    /// The handle, as this layer shows it, of an object that was reached by these names from the
    /// root.
    pub fn shown(&self, path: &[Name], fh: &Fh, is_directory: bool) -> Fh {
        let place = match path.split_last() {
            Some((_, dirs)) if !is_directory => self.rules.plain(self.place(dirs)),
            _ => self.place(path),
        };
        tagged(place, fh)
    }

    /// How many names of a path from the root, after the first `done`, one stack is asked about,
    /// and which stack the last of them may lead to.
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

    fn place(&self, path: &[Name]) -> Place {
        path.iter().fold(Place::ROOT, |place, name| self.rules.child(place, name))
    }

    fn at(&self, fh: &Fh) -> Result<At<'_>> {
        let stale = || Error::new(libc::ESTALE);
        let (&place, raw) = fh.0.split_last().ok_or_else(stale)?;
        let place = self.rules.place(place).ok_or_else(stale)?;
        let stack = self.stacks.get(self.rules.stack(place)).ok_or_else(stale)?;
        Ok(At { place, stack, fh: Fh(fh.0.slice(..raw.len())) })
    }

    /// The object in the same stack as `at`, when it is; for calls that take it as a hint.
    fn hint(&self, at: &At<'_>, fh: Option<&Fh>) -> Option<Fh> {
        let other = self.at(fh?).ok()?;
        (self.rules.stack(other.place) == self.rules.stack(at.place)).then_some(other.fh)
    }

    /// The place of the object that was found as `name` in `dir`: only directories are subtrees.
    fn child(&self, dir: Place, name: &Name, kind: FileKind) -> Place {
        match kind {
            FileKind::Directory => self.rules.child(dir, name),
            _ => self.rules.plain(dir),
        }
    }

    fn same_stack(&self, a: Place, b: Place) -> bool {
        self.rules.stack(a) == self.rules.stack(b)
    }

    /// Shows the object that the stack of `dir` found as `name` in it. Its attributes of a subtree
    /// of another stack hold for no caller.
    fn show(&self, dir: Place, name: &Name, node: &mut Node) -> Place {
        let place = self.child(dir, name, node.attrs.attr.kind);
        if !self.same_stack(dir, place) {
            node.attrs.valid = Validity::Once;
        }
        node.fh = tagged(place, &node.fh);
        place
    }

    fn made(&self, dir: Place, name: &Name, mut made: Made) -> Made {
        self.show(dir, name, &mut made.node);
        made
    }
}

impl std::fmt::Debug for Subtrees {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subtrees").field("rules", &self.rules).finish_non_exhaustive()
    }
}

fn tagged(place: Place, fh: &Fh) -> Fh {
    let mut raw = Vec::with_capacity(fh.0.len() + 1);
    raw.extend_from_slice(&fh.0);
    raw.push(place.number());
    Fh(raw.into())
}

/// Hears one stack and tells who stands above, with the handles that he knows.
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
    fn withdraw(&self, fh: &Fh) -> BoxFuture<()> {
        branch::all(self.shown(fh).map(|fh| self.above.withdraw(&fh)).collect())
    }

    fn lapse(&self, files: &[Fh]) -> BoxFuture<()> {
        self.above.lapse(&files.iter().flat_map(|fh| self.shown(fh)).collect::<Vec<_>>())
    }

    fn settle(&self, fh: &Fh) -> BoxFuture<()> {
        branch::all(self.shown(fh).map(|fh| self.above.settle(&fh)).collect())
    }

    fn withdraw_all(&self) -> BoxFuture<()> {
        self.above.withdraw_all()
    }
}
