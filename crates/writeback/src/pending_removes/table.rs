//! The names that are removed in this mount and not yet at the server.
//!
//! The module knows nothing of the journal and of the server.

use crate::shown::ShownTimes;
use crate::wal::Ticket;
use hither_vfs::{
    Along, Attrs, ChangeInfo, Cred, Error, Fh, FileKind, Name, PathRef, Result, Stop, Time, Validity,
    WalkResult,
};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use tokio::sync::watch;

/// The most ended removals that are remembered. They detect answers from before the removal.
const ENDED_MAX: usize = 4096;

/// A delayed removal.
#[derive(Debug, Clone)]
pub(super) struct Gone {
    /// The removed object.
    pub fh: Fh,
    pub is_dir: bool,
    /// The file system of the object.
    pub fsid: (u64, u64),
    pub cred: Arc<Cred>,
    pub ticket: Ticket,
    /// The error of the last attempt.
    pub error: Option<Error>,
    /// Changes after each attempt and at the end.
    pub tried: watch::Sender<u32>,
}

#[derive(Debug, Default)]
struct Opens {
    count: u32,
    /// See [`Table::hiding`].
    hides_name: bool,
}

/// A name in a directory.
pub(super) type RemovedName = (Fh, Name);

#[derive(Debug)]
pub(super) struct Table {
    gone: HashMap<Fh, HashMap<Name, Gone>>,
    /// Names without an attempt at the server since they were queued, by directory. A directory has
    /// an entry as long as a task works on it.
    queues: HashMap<Fh, VecDeque<Name>>,
    count: usize,
    /// Names whose last attempt failed.
    pub stuck: usize,
    /// The opens of each file.
    opens: HashMap<Fh, Opens>,
    /// Number of open files that lost a name at the server while they were open. The client keeps
    /// a hidden name of each, which no listing shows.
    hiding: usize,
    /// Files whose last name has a delayed removal.
    nameless: HashSet<Fh>,
    /// Names whose removal at the server ended, with ascending generations.
    ended: VecDeque<(u64, RemovedName)>,
    generation: u64,
    /// Times of directories that programs saw before the server had executed the removals.
    shown: RefCell<ShownTimes>,
    change: u64,
}

impl Table {
    pub fn new(random: u64) -> Self {
        Self {
            gone: HashMap::new(),
            queues: HashMap::new(),
            count: 0,
            stuck: 0,
            opens: HashMap::new(),
            hiding: 0,
            nameless: HashSet::new(),
            ended: VecDeque::new(),
            generation: 0,
            shown: RefCell::default(),
            change: random,
        }
    }

    /// The number of delayed removals.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The present generation, for [`Table::is_late`].
    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn get(&self, dir: &Fh, name: &Name) -> Option<&Gone> {
        self.gone.get(dir)?.get(name)
    }

    pub fn get_mut(&mut self, dir: &Fh, name: &Name) -> Option<&mut Gone> {
        self.gone.get_mut(dir)?.get_mut(name)
    }

    /// The removed names of a directory.
    pub fn names_in(&self, dir: &Fh) -> Vec<Name> {
        self.gone.get(dir).map(|names| names.keys().cloned().collect()).unwrap_or_default()
    }

    pub fn has_names(&self, dir: &Fh) -> bool {
        self.gone.contains_key(dir)
    }

    /// Whether the same caller has a delayed removal in the directory, of an object of that file
    /// system.
    pub fn has_removed(&self, dir: &Fh, cred: &Cred, fsid: (u64, u64)) -> bool {
        let is = |gone: &Gone| *gone.cred == *cred && gone.fsid == fsid;
        self.gone.get(dir).is_some_and(|names| names.values().any(is))
    }

    pub fn places(&self) -> Vec<RemovedName> {
        let all = self.gone.iter();
        all.flat_map(|(dir, names)| names.keys().map(move |name| (dir.clone(), name.clone()))).collect()
    }

    /// Queues a name of a directory. Returns whether a task must be started for the directory.
    pub fn enqueue(&mut self, dir: &Fh, name: Name) -> bool {
        let fresh = !self.queues.contains_key(dir);
        self.queues.entry(dir.clone()).or_default().push_back(name);
        fresh
    }

    /// Takes the next names that one caller removed from the queue, at most `most`. A directory
    /// with delayed removals is taken only as the first name. An empty result ends the work on the
    /// directory, unless `kept` is set.
    pub fn dequeue(&mut self, dir: &Fh, most: usize, kept: bool) -> Vec<(Name, Gone)> {
        let mut next: Vec<(Name, Gone)> = Vec::new();
        let Some(queue) = self.queues.get_mut(dir) else { return next };
        while let Some(name) = queue.front() {
            let Some(gone) = self.gone.get(dir).and_then(|names| names.get(name)) else {
                queue.pop_front();
                continue;
            };
            let goes_with = |(_, first): &(Name, Gone)| {
                *first.cred == *gone.cred && !(gone.is_dir && self.gone.contains_key(&gone.fh))
            };
            if next.len() == most || !next.first().is_none_or(goes_with) {
                break;
            }
            next.push((name.clone(), gone.clone()));
            queue.pop_front();
        }
        if next.is_empty() && !kept {
            self.queues.remove(dir);
        }
        next
    }

    /// Adds a delayed removal. Returns the change of the directory for the caller.
    pub fn insert(&mut self, dir: &Fh, name: &Name, gone: Gone, now: Time) -> ChangeInfo {
        self.count += 1;
        if !gone.is_dir {
            self.nameless.insert(gone.fh.clone());
        }
        self.gone.entry(dir.clone()).or_default().insert(name.clone(), gone);
        let before = self.change;
        self.names_changed(dir, now);
        ChangeInfo { atomic: false, before, after: self.change, attrs: None }
    }

    /// Notes that the layers above changed names of a directory.
    pub fn names_changed(&mut self, dir: &Fh, now: Time) {
        if self.has_names(dir) {
            self.change = self.change.wrapping_add(1);
            self.shown.get_mut().touch(dir, now, self.change);
        } else {
            self.shown.get_mut().forget(dir);
        }
    }

    /// Notes a change of attributes of an object without delayed removals. To be called before and
    /// after the change: replies in between may have either change time.
    pub fn attributes_change(&mut self, fh: &Fh, times: bool) {
        if times {
            self.shown.get_mut().forget(fh);
        } else {
            self.shown.get_mut().set_attributes(fh);
        }
    }

    /// Ends a delayed removal: the server has removed the name (`removed`), or refuses to.
    pub fn end(&mut self, dir: &Fh, name: &Name, removed: bool) -> Option<Gone> {
        let names = self.gone.get_mut(dir)?;
        let gone = names.remove(name)?;
        if names.is_empty() {
            self.gone.remove(dir);
            self.shown.get_mut().settle(dir);
        }
        self.count -= 1;
        self.nameless.remove(&gone.fh);
        self.stuck -= usize::from(gone.error.is_some());
        if removed {
            self.generation += 1;
            if self.ended.len() == ENDED_MAX {
                self.ended.pop_front();
            }
            self.ended.push_back((self.generation, (dir.clone(), name.clone())));
        }
        Some(gone)
    }

    /// Whether the result of a walk that began at generation `since` may be older than the removal
    /// of one of its names.
    pub fn is_late(&self, since: u64, at: PathRef<'_>, trail: &WalkResult) -> bool {
        if since == self.generation {
            return false;
        }
        if self.ended.front().is_none_or(|(first, _)| *first > since + 1) {
            return true;
        }
        let found =
            |place: &RemovedName| steps(at, trail).any(|(_, dir, name)| (dir, name) == (&place.0, &place.1));
        self.ended
            .iter()
            .rev()
            .take_while(|(generation, _)| *generation > since)
            .any(|(_, place)| found(place))
    }

    /// Hides removed names from the result of a walk below.
    pub fn put_over(&self, at: PathRef<'_>, mut trail: WalkResult) -> WalkResult {
        if self.gone.is_empty() {
            return trail;
        }
        let is_gone = |(_, dir, name): &(usize, &Fh, &Name)| self.get(dir, name).is_some();
        let cut = steps(at, &trail).find(is_gone).map(|(i, _, _)| i);
        if let Some(i) = cut {
            trail.steps.truncate(i);
            trail.stop = Stop::Missing(Validity::Once);
            trail.along = Along { base: trail.along.base, ..Along::default() };
        }
        // The listing may contain removed names.
        trail.along.listing = None;
        trail.steps.iter_mut().for_each(|node| self.show(&node.fh, &mut node.attrs));
        if let Some(base) = &mut trail.along.base {
            self.show(at.base, base);
        }
        trail
    }

    /// Adjusts the attributes of a directory to its delayed removals.
    pub fn show(&self, fh: &Fh, attrs: &mut Attrs) {
        if attrs.attr.kind != FileKind::Directory {
            return;
        }
        let gone = self.gone.get(fh);
        let dirs = gone.map_or(0, |names| names.values().filter(|gone| gone.is_dir).count());
        attrs.attr.nlink = attrs.attr.nlink.saturating_sub(dirs as u32);
        self.shown.borrow_mut().show(fh, attrs, gone.is_none());
    }

    /// Counts an open of a file.
    ///
    /// # Errors
    ///
    /// `ESTALE` when the last name of the file has a delayed removal, which takes the file away.
    pub fn opened(&mut self, fh: &Fh) -> Result<()> {
        if self.nameless.contains(fh) {
            return Err(Error::new(libc::ESTALE));
        }
        self.opens.entry(fh.clone()).or_default().count += 1;
        Ok(())
    }

    /// The server removes a name of a file.
    pub fn loses_name(&mut self, fh: &Fh) {
        if let Some(opens) = self.opens.get_mut(fh).filter(|opens| !opens.hides_name) {
            opens.hides_name = true;
            self.hiding += 1;
        }
    }

    /// Whether a directory may have a hidden name.
    pub fn may_hide_names(&self) -> bool {
        self.hiding > 0
    }

    pub fn closed(&mut self, fh: &Fh) {
        if let Some(opens) = self.opens.get_mut(fh) {
            opens.count -= 1;
            if opens.count == 0 {
                self.hiding -= usize::from(opens.hides_name);
                self.opens.remove(fh);
            }
        }
    }

    pub fn is_open(&self, fh: &Fh) -> bool {
        self.opens.contains_key(fh)
    }
}

/// The steps of a walk: number, directory and name.
fn steps<'a>(at: PathRef<'a>, trail: &'a WalkResult) -> impl Iterator<Item = (usize, &'a Fh, &'a Name)> {
    at.path.iter().take(trail.steps.len()).enumerate().map(move |(i, name)| {
        let dir = if i == 0 { at.base } else { &trail.steps[i - 1].fh };
        (i, dir, name)
    })
}
