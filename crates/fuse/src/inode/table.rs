//! The table of inodes: the kernel's numbers, the server's numbers, and the last seen names.

use super::{Clock, Ident, Inode, Moment};
use crate::hint::path::Agreement;
use bytes::Bytes;
use hither_vfs::{Attr, ConsistencyDomain, ConsistencyDomains, Fh, Name, Node};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of names per object. They are hints. The attributes of an object with more names
/// are requested each time.
const NAMES_MAX: usize = 16;

/// Maximum number of taken names per object, and the time for which they are kept.
const TAKEN_MAX: usize = 4;
const TAKEN_FOR: Duration = Duration::from_secs(10);
/// Number of objects with taken names from which old ones are removed.
const TAKEN_SWEEP: usize = 1024;

/// Maximum number of names of a displayed path.
const PATH_MAX: usize = 64;

/// All inodes of a mount.
pub(crate) struct Inodes {
    table: Mutex<Table>,
    root: Arc<Inode>,
    /// The consistency domains; `None`: all objects are in one.
    domains: Option<Arc<dyn ConsistencyDomains>>,
    /// The clock of the mount's own modifications.
    pub clock: Clock,
}

#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<u64, Entry>,
    by_ident: HashMap<Ident, u64>,
    by_fh: HashMap<Fh, u64>,
    /// The last seen objects of names, with the moment of the request, or of the mount's own
    /// change.
    children: HashMap<u64, HashMap<Name, (u64, Moment)>>,
    /// Names that an answer has given to another object, or to none, by the object that had them
    /// before. An open through such a name may be under way: its thread has found the object in the
    /// kernel, which had not processed the answer.
    taken: HashMap<u64, Vec<(u64, Name, Instant)>>,
    next: u64,
    /// The moment of the mount's last change of an object that was forgotten since.
    lost: Moment,
}

#[derive(Debug)]
struct Entry {
    inode: Arc<Inode>,
    lookups: u64,
    names: SmallVec<[(u64, Name); 1]>,
}

/// The name through which the kernel found an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    /// This name, in the directory with this filehandle.
    By(Fh, Name),
    /// One of several names, without knowing which.
    ByOneOf,
    /// The object was not found by a name, or the name is gone.
    No,
}

/// Another filehandle has the identity of a known object. It is the same object, or a new object
/// with a reused number. Only the server can decide.
#[derive(Debug)]
pub(crate) struct Ambiguous(pub Arc<Inode>);

impl std::fmt::Debug for Inodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inodes").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Inodes {
    /// A table with the root. `domains` knows the consistency domains of filehandles.
    pub fn new(root: &Node, domains: Option<Arc<dyn ConsistencyDomains>>) -> Self {
        let id = crate::abi::ROOT_ID;
        let domain =
            domains.as_ref().map_or_else(ConsistencyDomain::default, |all| all.consistency_domain(&root.fh));
        let root = Arc::new(Inode::new(id, root, domain));
        let mut table = Table { next: id + 1, ..Default::default() };
        table.by_ident.insert(root.ident, id);
        table.by_fh.insert(root.fh(), id);
        table.by_id.insert(id, Entry { inode: root.clone(), lookups: 1, names: SmallVec::new() });
        Self { table: Mutex::new(table), root, domains, clock: Clock::default() }
    }

    fn consistency_domain(&self, fh: &Fh) -> ConsistencyDomain {
        self.domains.as_ref().map_or_else(ConsistencyDomain::default, |all| all.consistency_domain(fh))
    }

    /// The identity of an object in this mount.
    pub fn ident(&self, fh: &Fh, attr: &Attr) -> Ident {
        Ident::of(attr, self.consistency_domain(fh))
    }

    /// The filehandle of the root directory.
    pub fn root(&self) -> Fh {
        self.root.fh()
    }

    /// The inode with this number; `None` for an unknown number.
    pub fn find(&self, id: u64) -> Option<Arc<Inode>> {
        if id == self.root.id {
            return Some(self.root.clone());
        }
        self.table.lock().by_id.get(&id).map(|e| e.inode.clone())
    }

    /// Returns the inode of an object, created if new, and adds one lookup. `at` is the name of the
    /// object, and the moment of the request. A name from a request before a change by the mount
    /// does not replace newer names.
    pub fn remember(&self, at: Option<(u64, &Name, Moment)>, node: &Node) -> Result<Arc<Inode>, Ambiguous> {
        let domain = self.consistency_domain(&node.fh);
        let mut table = self.table.lock();
        let t = &mut *table;
        let ident = Ident::of(&node.attrs.attr, domain);
        // A file that the kernel has forgotten, and whose close has not ended, is known by its
        // filehandle only.
        let known = t.by_ident.get(&ident).or_else(|| t.by_fh.get(&node.fh));
        let known = known.and_then(|id| t.by_id.get(id)).map(|e| e.inode.clone());
        let inode = match known {
            Some(inode) if inode.kind == node.attrs.attr.kind => {
                if !inode.knows(&node.fh) {
                    return Err(Ambiguous(inode));
                }
                t.by_ident.entry(ident).or_insert(inode.id);
                inode
            }
            _ => {
                let inode = Arc::new(Inode::new(t.next, node, domain));
                t.by_ident.insert(ident, t.next);
                t.by_fh.insert(inode.fh(), t.next);
                let entry = Entry { inode: inode.clone(), lookups: 0, names: SmallVec::new() };
                t.by_id.insert(t.next, entry);
                t.next += 1;
                inode
            }
        };
        if let Some(entry) = t.by_id.get_mut(&inode.id) {
            entry.lookups += 1;
        }
        if let Some((dir, name, asked)) = at {
            t.bind(dir, name, (inode.id, asked));
        }
        Ok(inode)
    }

    /// The inode of a filehandle.
    pub fn by_fh(&self, fh: &Fh) -> Option<Arc<Inode>> {
        let t = self.table.lock();
        t.by_fh.get(fh).and_then(|id| t.by_id.get(id)).map(|e| e.inode.clone())
    }

    /// Adds another filehandle of the same object.
    pub fn add_alias(&self, inode: &Inode, fh: &Fh) {
        let mut t = self.table.lock();
        let (alias, gone) = inode.add_alias(fh);
        t.by_fh.insert(alias, inode.id);
        if let Some(gone) = gone {
            t.drop_fh(&gone, inode.id);
        }
    }

    /// Removes the identity of an inode whose object is gone, so that a new object may have it.
    pub fn retire(&self, inode: &Inode) {
        let mut t = self.table.lock();
        if t.by_ident.get(&inode.ident) == Some(&inode.id) {
            t.by_ident.remove(&inode.ident);
        }
    }

    /// Notes that `node` is a new object: an inode with its identity and another handle belongs to
    /// a removed object.
    pub fn note_new(&self, node: &Node) {
        let ident = self.ident(&node.fh, &node.attrs.attr);
        let mut t = self.table.lock();
        let former = t.by_ident.get(&ident).and_then(|id| t.by_id.get(id));
        if former.is_some_and(|entry| !entry.inode.knows(&node.fh)) {
            t.by_ident.remove(&ident);
        }
    }

    /// Subtracts `count` lookups. Returns true when the inode was removed with the last one. An
    /// inode with handles stays, because the kernel may find its object again before a close ends.
    /// A call with the `count` 0 then removes it. Meanwhile another object may have its identity.
    pub fn forget(&self, id: u64, count: u64) -> bool {
        if id == self.root.id {
            return false;
        }
        let mut table = self.table.lock();
        let t = &mut *table;
        let Some(entry) = t.by_id.get_mut(&id) else { return false };
        entry.lookups = entry.lookups.saturating_sub(count);
        if entry.lookups > 0 {
            return false;
        }
        t.lost = t.lost.max(entry.inode.last_changed());
        if t.by_ident.get(&entry.inode.ident) == Some(&id) {
            t.by_ident.remove(&entry.inode.ident);
        }
        if entry.inode.in_use.is_held() {
            return false;
        }
        let Some(entry) = t.by_id.remove(&id) else { return false };
        for fh in entry.inode.handles() {
            t.drop_fh(&fh, id);
        }
        for (dir, name) in &entry.names {
            t.unbind(*dir, name, id);
        }
        t.children.remove(&id);
        t.taken.remove(&id);
        true
    }

    /// The last seen names from the root to an object.
    pub fn path_of(&self, fh: &Fh) -> Option<Vec<Name>> {
        let t = self.table.lock();
        let mut here = *t.by_fh.get(fh)?;
        let mut path = Vec::new();
        // Renamed names could form a loop.
        while here != self.root.id && path.len() < PATH_MAX {
            let (above, name) = t.by_id.get(&here)?.names.last()?;
            path.push(name.clone());
            here = *above;
        }
        path.reverse();
        (here == self.root.id).then_some(path)
    }

    /// The last seen object of a name.
    pub fn child(&self, dir: u64, name: &Name) -> Option<Arc<Inode>> {
        let t = self.table.lock();
        let (child, _) = t.children.get(&dir)?.get(name)?;
        t.by_id.get(child).map(|e| e.inode.clone())
    }

    /// Whether the mount may have changed the object since `asked`.
    pub fn changed_since(&self, ident: Ident, asked: Moment) -> bool {
        let t = self.table.lock();
        let inode = t.by_ident.get(&ident).and_then(|id| t.by_id.get(id)).map(|e| &e.inode);
        inode.map_or(t.lost > asked, |inode| inode.changed_since(asked))
    }

    /// Compares the last parts of a path with the names of directory `dir` and its parents up to
    /// the root. Above the root they are compared with `mount`, the parts of the mount point's
    /// path. There a different part is no contradiction, because the path above the root may have
    /// another name for a program.
    pub fn agreement(&self, dir: u64, parts: &[Bytes], mount: &[Bytes]) -> Agreement {
        let t = self.table.lock();
        let mut agreement = Agreement::default();
        let (mut here, mut mount) = (dir, mount.iter().rev());
        for part in parts.iter().rev() {
            let agrees = if here == self.root.id {
                mount.next() == Some(part)
            } else {
                let names = t.by_id.get(&here).map(|e| &e.names[..]).unwrap_or_default();
                let above = names.iter().find(|(_, name)| name.bytes() == part).map(|(above, _)| *above);
                agreement.contradicts = above.is_none() && !names.is_empty() && &part[..] != b"..";
                here = above.unwrap_or(here);
                above.is_some()
            };
            if !agrees {
                break;
            }
            agreement.parts += 1;
        }
        agreement
    }

    /// Identity of the last seen parent of a directory.
    pub fn parent(&self, id: u64) -> Option<Ident> {
        let t = self.table.lock();
        let (above, _) = t.by_id.get(&id)?.names.last()?;
        t.by_id.get(above).map(|e| e.inode.ident)
    }

    /// Identity of the root.
    pub fn root_ident(&self) -> Ident {
        self.root.ident
    }

    /// Last seen names in a directory.
    pub fn children(&self, dir: u64) -> Vec<Name> {
        self.table.lock().children.get(&dir).map(|c| c.keys().cloned().collect()).unwrap_or_default()
    }

    /// Removes a name.
    pub fn unbind(&self, dir: u64, name: &Name) {
        let mut t = self.table.lock();
        if let Some((child, _)) = t.children.get(&dir).and_then(|c| c.get(name)).copied() {
            t.drop_name(dir, name, child);
        }
    }

    /// Removes a name that the kernel may still have.
    pub fn unbind_believed(&self, dir: u64, name: &Name) {
        self.unbind_absent(dir, name, self.clock.now());
    }

    /// Removes a name that was absent at `asked`, unless it was seen later. The kernel may still
    /// have it.
    pub fn unbind_absent(&self, dir: u64, name: &Name, asked: Moment) {
        let mut t = self.table.lock();
        if let Some((child, known)) = t.children.get(&dir).and_then(|c| c.get(name)).copied()
            && known <= asked
        {
            t.take_name(dir, name, child);
        }
    }

    /// Moves names after a rename. `moved` and `replaced` are the objects of the old and the new
    /// name at its start. Lookups of the new name may have already moved the object.
    pub fn rename(
        &self,
        from: (u64, &Name),
        to: (u64, &Name),
        (moved, replaced): (Option<u64>, Option<u64>),
        exchange: bool,
    ) {
        let mut t = self.table.lock();
        // Later than all requests before the end of this rename.
        let now = self.clock.tick();
        for at in [from, to] {
            if let Some((id, _)) = t.children.get(&at.0).and_then(|c| c.get(at.1)).copied() {
                t.drop_name(at.0, at.1, id);
            }
        }
        if let Some(id) = moved {
            t.bind(to.0, to.1, (id, now));
        }
        if let (true, Some(id)) = (exchange, replaced) {
            t.bind(from.0, from.1, (id, now));
        }
    }

    /// The name through which the kernel found an inode. Of several names it is the only one equal
    /// to `last`, the last part of the caller's path.
    pub fn named(&self, id: u64, last: impl FnOnce() -> Option<Bytes>) -> Named {
        let names = self.table.lock().believed_names(id);
        let (dir, name) = match &names[..] {
            [] => return Named::No,
            [only] => only,
            several => {
                let Some(last) = last() else { return Named::ByOneOf };
                let mut same = several.iter().filter(|(_, name)| *name.bytes() == last);
                match (same.next(), same.next()) {
                    (Some(only), None) => only,
                    _ => return Named::ByOneOf,
                }
            }
        };
        match self.find(*dir) {
            Some(dir) => Named::By(dir.fh(), name.clone()),
            None => Named::No,
        }
    }

    /// Last seen names of an object, except one.
    pub fn other_names(&self, fh: &Fh, but: (u64, &Name)) -> SmallVec<[(u64, Name); 1]> {
        let t = self.table.lock();
        let entry = t.by_fh.get(fh).and_then(|id| t.by_id.get(id));
        let names = entry.into_iter().flat_map(|e| &e.names);
        names.filter(|(dir, name)| (*dir, name) != but).cloned().collect()
    }

    /// Number of inodes.
    pub fn len(&self) -> usize {
        self.table.lock().by_id.len()
    }
}

/// A copy that does not keep the message buffer of the name alive.
pub(super) fn own_name(name: &Name) -> Name {
    Name::new(Bytes::copy_from_slice(name.as_bytes())).unwrap_or_else(|_| name.clone())
}

impl Table {
    fn drop_fh(&mut self, fh: &Fh, id: u64) {
        if self.by_fh.get(fh) == Some(&id) {
            self.by_fh.remove(fh);
        }
    }

    fn bind(&mut self, dir: u64, name: &Name, (id, asked): (u64, Moment)) {
        if !self.by_id.contains_key(&id) {
            return;
        }
        let names = self.children.entry(dir).or_default();
        match names.get_mut(name) {
            Some((_, known)) if *known > asked => return,
            Some((same, known)) if *same == id => return *known = asked,
            _ => {}
        }
        let name = &own_name(name);
        if let Some((old, _)) = names.insert(name.clone(), (id, asked)) {
            self.take_name(dir, name, old);
        }
        if let Some(taken) = self.taken.get_mut(&id) {
            taken.retain(|(d, n, _)| (*d, n) != (dir, name));
        }
        if let Some(entry) = self.by_id.get_mut(&id) {
            entry.names.push((dir, name.clone()));
            if entry.names.len() > NAMES_MAX {
                let (dir, name) = entry.names.remove(0);
                entry.inode.forget_names();
                self.unbind(dir, &name, id);
            }
        }
    }

    fn drop_name(&mut self, dir: u64, name: &Name, id: u64) {
        self.unbind(dir, name, id);
        if let Some(entry) = self.by_id.get_mut(&id) {
            entry.names.retain(|(d, n)| (*d, &*n) != (dir, name));
        }
    }

    /// As [`Table::drop_name`], for a name that the kernel may still have.
    fn take_name(&mut self, dir: u64, name: &Name, id: u64) {
        self.drop_name(dir, name, id);
        if self.taken.len() >= TAKEN_SWEEP {
            self.taken.retain(|_, taken| taken.iter().any(|(_, _, at)| at.elapsed() < TAKEN_FOR));
        }
        if self.by_id.contains_key(&id) {
            let taken = self.taken.entry(id).or_default();
            taken.retain(|(d, n, at)| (*d, n) != (dir, name) && at.elapsed() < TAKEN_FOR);
            if taken.len() == TAKEN_MAX {
                taken.remove(0);
            }
            taken.push((dir, own_name(name), Instant::now()));
        }
    }

    /// The names under which the kernel may have an object.
    fn believed_names(&self, id: u64) -> SmallVec<[(u64, Name); 1]> {
        let names = self.by_id.get(&id).into_iter().flat_map(|entry| entry.names.iter().cloned());
        let taken = self.taken.get(&id).into_iter().flatten();
        let taken = taken.filter(|(_, _, at)| at.elapsed() < TAKEN_FOR);
        names.chain(taken.map(|(dir, name, _)| (*dir, name.clone()))).collect()
    }

    fn unbind(&mut self, dir: u64, name: &Name, id: u64) {
        if let Some(names) = self.children.get_mut(&dir)
            && names.get(name).is_some_and(|(bound, _)| *bound == id)
        {
            names.remove(name);
            if names.is_empty() {
                self.children.remove(&dir);
            }
        }
    }
}
