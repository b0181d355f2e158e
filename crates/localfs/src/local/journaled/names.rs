//! Changes of names and attributes through the journal.
//!
//! Each change takes three steps, and one change at a time takes them:
//!
//! 1. The change is made in the file system, without a sync.
//! 2. The mark, a small file on the same file system, gets the number of the change as its mtime.
//! 3. A record of the change goes to the journal. The answer waits for the record.
//!
//! The log of ext4 keeps the order of changes of names and inodes. So after a power cut the file
//! system has all changes up to one of them, and the mark says up to which. Changes up to the mark
//! are not made again: a second removal could remove a file that was moved to the name later.
//! Changes after the mark were lost and are made again in their order. Only for the first of these
//! it is unknown whether it was lost. A look at its names answers that: a file that is no longer at
//! the name was removed or moved.
//!
//! Every object in a record has a durable inode already, because new objects come from `stock`.
//! Changes that make other objects, and changes without a record, are synced as without a journal.
//! The sync also makes all earlier changes durable. While such a change is in progress, other
//! changes are synced as well. So no acknowledged change depends on a change that may be lost.
//!
//! One gap remains. A power cut can lose a name made by a local program that has not reached the
//! disk. Later changes by clients to that name cannot be made again; the log reports them.

use super::super::handle::Sealer;
use super::super::object::{Object, os};
use super::super::pool::{Answer, Worker};
use super::super::{Inner, sys};
use super::answered::named;
use super::fresh::Fresh;
use super::stock::Stock;
use super::{Journaled, plain};
use bytes::Bytes;
use hither_vfs::{Answered, Error, Fh, FileKind, Result, Time};
use parking_lot::Mutex;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, RenameFlags, StatxFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
};
use smallvec::SmallVec;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Kinds of records. 1 and 2 are records of bytes, 7 and 8 those of calls.
const REMOVE: u8 = 3;
const RENAME: u8 = 4;
const LINK: u8 = 5;
const ATTRS: u8 = 6;
const MAKE: u8 = 9;
/// Name of the mark in its directory.
const MARK_FILE: &str = "journal-position";
/// The first bytes of the mark. The epoch of the journal follows.
const MARK_MAGIC: &[u8; 8] = b"hithpos1";
/// Numbers are below this limit. A larger one is an mtime that another program set.
const NUMBER_MAX: u64 = 1 << 56;
/// A number is stored as seconds and nanoseconds.
const NANOS: u64 = 1_000_000_000;

/// A change, with all facts to make it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::local) enum Change {
    /// `victim` was removed from `name` in `dir`.
    Remove { dir: Fh, name: Bytes, victim: Fh, is_dir: bool },
    /// `moved` was moved from one name to another and replaced `replaced`.
    Rename { from: (Fh, Bytes), to: (Fh, Bytes), moved: Fh, replaced: Option<Fh> },
    /// `fh` got another name.
    Link { fh: Fh, dir: Fh, name: Bytes },
    /// `fh` got these attributes.
    Attrs { fh: Fh, set: Became },
    /// `made` got these attributes and was moved from the stock (`stock`) to a free name.
    Make { from: (Fh, Bytes), to: (Fh, Bytes), made: Fh, set: Became },
}

/// Attributes after a change. Attributes that the change did not set are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::local) struct Became {
    /// uid, gid, permissions.
    pub owner: Option<(u32, u32, u32)>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
}

/// A change that was made and is not stable yet.
pub(in crate::local) struct Done<T> {
    pub result: T,
    /// The object that was changed, moved or removed.
    pub object: Option<Fh>,
    /// The objects to sync, the last one touched last.
    pub touched: SmallVec<[Arc<Object>; 2]>,
    /// `None`: the change has no record.
    pub change: Option<Change>,
}

/// The mark and the numbers of changes.
pub(in crate::local) struct Names {
    mark: OwnedFd,
    numbers: Mutex<Numbers>,
}

struct Numbers {
    /// Number of the next change with a record.
    next: u64,
    /// Changes without a record that are in progress.
    unsynced: u32,
}

/// The result of a change that should have a record.
pub(in crate::local) enum Recorded<T, A> {
    /// The change was made and has a record. `false`: the journal failed.
    Made(T, bool),
    /// The change was not made, because changes without a record are in progress. It is to be made
    /// and synced.
    Not(A),
    /// The change was made without a record, and is to be synced.
    Unsynced(Box<Done<T>>, Unsynced),
}

/// A change without a record that is in progress.
pub(in crate::local) struct Unsynced {
    names: Arc<Names>,
    /// The change was made and not synced.
    pub dirty: bool,
}

impl Drop for Unsynced {
    fn drop(&mut self) {
        // The change failed half-way. Its finished part must be durable before other changes build
        // on it.
        if self.dirty
            && let Err(e) = self.names.settle()
        {
            tracing::error!("the disk below the served directory fails: {e}");
        }
        self.names.numbers.lock().unsynced -= 1;
    }
}

impl Names {
    /// The mark of a journal in the first of `places` that is on the file system `dev` and has one.
    /// Returns the mark and its number; `None` unless a mark of this epoch exists.
    pub fn find(places: &[PathBuf], dev: u64, epoch: u64) -> io::Result<Option<(OwnedFd, u64)>> {
        for place in places.iter().filter(|place| is_on(place, dev)) {
            let mut file = match File::open(place.join(MARK_FILE)) {
                Ok(file) => file,
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            };
            let mut raw = Vec::new();
            (&mut file).take(32).read_to_end(&mut raw)?;
            if raw.strip_prefix(MARK_MAGIC) != Some(&epoch.to_le_bytes()[..]) {
                continue;
            }
            let number = number_of(file.as_fd())?;
            return Ok(Some((file.into(), number)));
        }
        Ok(None)
    }

    /// A new mark with the number 0 in the first of `places` that is on the file system `dev`.
    /// `None` when there is none, or its times are not exact.
    pub fn make(places: &[PathBuf], dev: u64, epoch: u64) -> io::Result<Option<OwnedFd>> {
        let Some(place) = places.iter().find(|place| is_on(place, dev)) else { return Ok(None) };
        super::state_files::keep(place, MARK_FILE, &[&MARK_MAGIC[..], &epoch.to_le_bytes()].concat())?;
        let mark = OwnedFd::from(File::open(place.join(MARK_FILE))?);
        // The file system must store times exactly.
        for number in [NANOS + 123_456_789, 0] {
            set_number(mark.as_fd(), number)?;
            if number_of(mark.as_fd())? != number {
                return Ok(None);
            }
        }
        rustix::fs::fsync(&mark)?;
        Ok(Some(mark))
    }

    /// `next` is the number of the next change.
    pub fn new(mark: OwnedFd, next: u64) -> Self {
        Self { mark, numbers: Mutex::new(Numbers { next, unsynced: 0 }) }
    }

    /// Makes all earlier changes durable, including those of other programs.
    pub fn settle(&self) -> io::Result<()> {
        // A new atime makes the inode of the mark newer than all these changes. The number, its
        // mtime, stays.
        let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let last_modification = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        match rustix::fs::futimens(&self.mark, &Timestamps { last_access, last_modification }) {
            Ok(()) => sys::fsync(self.mark.as_fd()).map_err(plain),
            // A thread with the identity of a caller may not set times.
            Err(_) => sys::syncfs(self.mark.as_fd()).map_err(plain),
        }
    }

    fn begin_unsynced(self: &Arc<Self>) -> Unsynced {
        self.numbers.lock().unsynced += 1;
        Unsynced { names: self.clone(), dirty: false }
    }

    /// Decreases the number of the mark by `by`, as if the file system had kept a change and lost
    /// the mark.
    #[cfg(test)]
    pub fn set_back(&self, by: u64) -> io::Result<()> {
        set_number(self.mark.as_fd(), number_of(self.mark.as_fd())? - by)
    }
}

pub(super) fn is_on(place: &Path, dev: u64) -> bool {
    std::fs::metadata(place).is_ok_and(|m| m.dev() == dev)
}

fn number_of(mark: BorrowedFd<'_>) -> io::Result<u64> {
    let mtime = rustix::fs::statx(mark, c"", AtFlags::EMPTY_PATH, StatxFlags::MTIME)?.stx_mtime;
    Ok((mtime.tv_sec as u64).saturating_mul(NANOS).saturating_add(mtime.tv_nsec.into()))
}

fn set_number(mark: BorrowedFd<'_>, number: u64) -> io::Result<()> {
    let last_modification = Timespec { tv_sec: (number / NANOS) as i64, tv_nsec: (number % NANOS) as i64 };
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    Ok(rustix::fs::futimens(mark, &Timestamps { last_access, last_modification })?)
}

impl Inner {
    fn names_journal(&self) -> Option<(&Journaled, &Arc<Names>)> {
        let journal = self.journal.as_ref().filter(|j| self.options.stable && j.is_on())?;
        Some((journal, journal.names.as_ref()?))
    }

    /// Whether changes of names and attributes have records.
    pub(in crate::local) fn has_records(&self) -> bool {
        self.names_journal().is_some()
    }

    /// Durable objects without a name, where their use has a record.
    pub(in crate::local) fn stock(&self) -> Option<&Stock> {
        self.names_journal()?.0.stock.as_ref()
    }

    /// Begins a change without a record. The change ends, durable, when the result is dropped.
    /// `None` where changes have no records.
    pub(in crate::local) fn unsynced(&self) -> Option<Unsynced> {
        self.names_journal().map(|(_, names)| names.begin_unsynced())
    }

    fn fresh(&self) -> Option<&Fresh> {
        self.journal.as_ref().filter(|j| self.options.stable && j.is_on())?.calls.fresh()
    }

    /// Notes that a change, if known, is about to be made for the worker's call.
    pub(in crate::local) fn about_to(&self, worker: &Worker, change: Option<&Change>) {
        if let (Some(call), Some(change), Some(fresh)) = (&worker.call, change, self.fresh()) {
            fresh.begun(call, change);
        }
    }

    /// Notes that the worker's call has changed this object; `None`: it has changed nothing.
    pub(in crate::local) fn just_made(&self, worker: &Worker, object: Option<&Fh>) {
        match (&worker.call, self.fresh(), object) {
            (Some(call), Some(fresh), Some(object)) => fresh.made(call, object),
            (Some(call), Some(fresh), None) => fresh.failed(call),
            _ => {}
        }
    }

    /// Makes a change, and notes the facts that a restart needs until the call has a record.
    fn act<T>(
        &self,
        worker: &mut Worker,
        call: Option<&Bytes>,
        act: impl FnOnce(&Self, &mut Worker) -> Result<Done<T>>,
    ) -> Result<Done<T>> {
        worker.call = call.cloned();
        let done = act(self, worker);
        self.just_made(worker, done.as_ref().ok().and_then(|done| done.object.as_ref()));
        worker.call = None;
        done
    }

    /// Makes a change for `call`, and its record. `then` is called when the record is durable.
    pub(in crate::local) fn recorded<T, A>(
        &self,
        worker: &mut Worker,
        call: Option<Bytes>,
        act: A,
        then: Answer<Recorded<T, A>>,
    ) where
        T: Send + 'static,
        A: FnOnce(&Self, &mut Worker) -> Result<Done<T>> + Send + 'static,
    {
        let Some((journal, names)) = self.names_journal() else { return then(Ok(Recorded::Not(act))) };
        journal.log.admit();
        let mut numbers = names.numbers.lock();
        if numbers.unsynced > 0 {
            drop(numbers);
            return then(Ok(Recorded::Not(act)));
        }
        let done = match self.act(worker, call.as_ref(), act) {
            Ok(done) => done,
            Err(e) => {
                drop(numbers);
                return then(Err(e));
            }
        };
        let number = numbers.next;
        // The mark belongs to the superuser, not to the caller.
        let mut mark = || worker.root(|| Ok(set_number(names.mark.as_fd(), number).is_ok()));
        let record = done.change.as_ref().filter(|_| matches!(mark(), Ok(true)));
        let record = record.map(|change| change.encode(number));
        let Some(record) = record else {
            numbers.unsynced += 1;
            drop(numbers);
            // The caller may have been cancelled. Then the drop of `Unsynced` syncs the change.
            let dirty = !done.touched.is_empty();
            return then(Ok(Recorded::Unsynced(Box::new(done), Unsynced { names: names.clone(), dirty })));
        };
        numbers.next += 1;
        let result = done.result;
        let call = done.object.and_then(|fh| named(call, &fh, 0));
        let then = Box::new(move |durable| then(Ok(Recorded::Made(result, durable))));
        journal.append_for(call, &[&record], then);
    }

    /// Makes a change for `call` and syncs it, without a record.
    pub(in crate::local) fn unrecorded<T: Send + 'static>(
        &self,
        worker: &mut Worker,
        call: Option<Bytes>,
        act: impl FnOnce(&Self, &mut Worker) -> Result<Done<T>>,
        then: Answer<T>,
    ) {
        let unsynced = self.unsynced();
        match self.act(worker, call.as_ref(), act) {
            Ok(done) => self.sync_done(worker, call, (done, unsynced), then),
            Err(e) => {
                drop(unsynced);
                then(Err(e));
            }
        }
    }

    /// Syncs a change that has no record.
    pub(in crate::local) fn sync_done<T: Send + 'static>(
        &self,
        worker: &mut Worker,
        call: Option<Bytes>,
        (done, mut unsynced): (Done<T>, Option<Unsynced>),
        then: Answer<T>,
    ) {
        let done = self.synced(worker, call, done);
        if let Some(unsynced) = &mut unsynced {
            unsynced.dirty = false;
        }
        drop(unsynced);
        match done {
            Ok((result, call)) => self.answer_known(call, result, then),
            Err(e) => then(Err(e)),
        }
    }

    fn synced<T>(
        &self,
        worker: &mut Worker,
        call: Option<Bytes>,
        done: Done<T>,
    ) -> Result<(T, Option<Answered>)> {
        let touched: SmallVec<[&Object; 2]> = done.touched.iter().map(|object| &**object).collect();
        self.sync(worker, &touched)?;
        Ok((done.result, done.object.and_then(|fh| named(call, &fh, 0))))
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_time(out: &mut Vec<u8>, time: Option<Time>) {
    out.push(time.is_some().into());
    let time = time.unwrap_or_default();
    out.extend_from_slice(&time.secs.to_le_bytes());
    out.extend_from_slice(&time.nanos.to_le_bytes());
}

/// The rest of a record.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn bytes(&mut self) -> Option<Bytes> {
        let len = u16::from_le_bytes(self.array()?);
        let (bytes, rest) = self.0.split_at_checked(len.into())?;
        self.0 = rest;
        Some(Bytes::copy_from_slice(bytes))
    }

    fn fh(&mut self) -> Option<Fh> {
        self.bytes().map(Fh)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.array()? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    fn time(&mut self) -> Option<Option<Time>> {
        let is_set = self.flag()?;
        let time = Time { secs: i64::from_le_bytes(self.array()?), nanos: u32::from_le_bytes(self.array()?) };
        Some(is_set.then_some(time))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.array()?))
    }
}

impl Change {
    /// The names that the change uses.
    pub fn names(&self) -> SmallVec<[(Fh, Bytes); 2]> {
        match self {
            Self::Remove { dir, name, .. } | Self::Link { dir, name, .. } => {
                smallvec::smallvec![(dir.clone(), name.clone())]
            }
            Self::Rename { from, to, .. } => smallvec::smallvec![from.clone(), to.clone()],
            Self::Make { to, .. } => smallvec::smallvec![to.clone()],
            Self::Attrs { .. } => SmallVec::new(),
        }
    }

    /// The object that was changed, moved or removed.
    pub fn object(&self) -> &Fh {
        match self {
            Self::Remove { victim: fh, .. }
            | Self::Rename { moved: fh, .. }
            | Self::Link { fh, .. }
            | Self::Attrs { fh, .. }
            | Self::Make { made: fh, .. } => fh,
        }
    }

    /// The record of the change with this number.
    pub fn encode(&self, number: u64) -> Vec<u8> {
        let mut out = vec![match self {
            Self::Remove { .. } => REMOVE,
            Self::Rename { .. } => RENAME,
            Self::Link { .. } => LINK,
            Self::Attrs { .. } => ATTRS,
            Self::Make { .. } => MAKE,
        }];
        out.extend_from_slice(&number.to_le_bytes());
        match self {
            Self::Remove { dir, name, victim, is_dir } => {
                put(&mut out, &dir.0);
                put(&mut out, name);
                put(&mut out, &victim.0);
                out.push((*is_dir).into());
            }
            Self::Rename { from, to, moved, replaced } => {
                for part in [&from.0.0, &from.1, &to.0.0, &to.1, &moved.0] {
                    put(&mut out, part);
                }
                put(&mut out, replaced.as_ref().map_or(&[], |fh| &fh.0));
            }
            Self::Link { fh, dir, name } => {
                [&fh.0, &dir.0, name].into_iter().for_each(|part| put(&mut out, part));
            }
            Self::Attrs { fh, set } => {
                put(&mut out, &fh.0);
                set.put(&mut out);
            }
            Self::Make { from, to, made, set } => {
                for part in [&from.0.0, &from.1, &to.0.0, &to.1, &made.0] {
                    put(&mut out, part);
                }
                set.put(&mut out);
            }
        }
        out
    }

    /// The change in a record, and its number; `None` for a record of another kind.
    pub fn parse(raw: &[u8]) -> Option<(u64, Self)> {
        let (&kind, rest) = raw.split_first()?;
        let mut rest = Rest(rest);
        let number = u64::from_le_bytes(rest.array()?);
        let change = match kind {
            REMOVE => Self::Remove {
                dir: rest.fh()?,
                name: rest.bytes()?,
                victim: rest.fh()?,
                is_dir: rest.flag()?,
            },
            RENAME => Self::Rename {
                from: (rest.fh()?, rest.bytes()?),
                to: (rest.fh()?, rest.bytes()?),
                moved: rest.fh()?,
                replaced: rest.fh().map(|fh| (!fh.0.is_empty()).then_some(fh))?,
            },
            LINK => Self::Link { fh: rest.fh()?, dir: rest.fh()?, name: rest.bytes()? },
            ATTRS => Self::Attrs { fh: rest.fh()?, set: Became::take(&mut rest)? },
            MAKE => Self::Make {
                from: (rest.fh()?, rest.bytes()?),
                to: (rest.fh()?, rest.bytes()?),
                made: rest.fh()?,
                set: Became::take(&mut rest)?,
            },
            _ => return None,
        };
        rest.0.is_empty().then_some((number, change))
    }
}

/// Access to the objects of changes.
#[derive(Clone, Copy)]
pub(in crate::local) struct Look<'a> {
    pub sealer: &'a Sealer,
    pub top: BorrowedFd<'a>,
}

/// Makes changes again.
pub(super) struct Redo<'a> {
    pub look: Look<'a>,
    pub names: &'a Names,
    /// The file system has the changes up to this number.
    pub kept: u64,
    /// Counts of changes made again and of changes that could not be made. The third counts the new
    /// objects among the first.
    pub count: (u64, u64, u64),
}

impl Redo<'_> {
    /// Makes a change again that the file system lost. Does nothing for a change that it kept.
    pub fn again(&mut self, number: u64, change: &Change) -> io::Result<()> {
        if number <= self.kept {
            return Ok(());
        }
        if self.make(change).map_err(plain)? {
            self.count.0 += 1;
            self.count.2 += u64::from(matches!(change, Change::Make { .. }));
        } else {
            self.count.1 += 1;
            tracing::warn!(
                "journal: a change cannot be made again, because another program changed its objects: {change:?}"
            );
        }
        self.kept = number;
        // After a second crash, the mark shows how far this replay came.
        set_number(self.names.mark.as_fd(), number)
    }

    /// `false`: the change cannot be made.
    fn make(&self, change: &Change) -> Result<bool> {
        self.look.make(change)
    }
}

impl Look<'_> {
    fn open(&self, fh: &Fh, flags: OFlags) -> Result<Option<OwnedFd>> {
        let handle = self.sealer.open(fh)?;
        let flags = (OFlags::PATH | OFlags::NOFOLLOW | flags).bits() as i32;
        match sys::open_by_handle(self.top, &handle, flags) {
            Ok(fd) => Ok(Some(fd)),
            Err(e) if matches!(e.errno, libc::ESTALE | libc::ENOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The object at a name.
    fn at(&self, dir: &OwnedFd, name: &Bytes) -> Result<Option<Fh>> {
        let name = CString::new(&name[..]).map_err(|_| Error::new(libc::EINVAL))?;
        match sys::name_to_handle(dir.as_fd(), &name) {
            Ok((handle, _)) => Ok(self.sealer.seal(&handle)),
            Err(e) if e.errno == libc::ENOENT => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether a begun change was made, according to its names. Only for a change whose names no
    /// other call used.
    pub fn was_made(&self, change: &Change) -> Result<bool> {
        let at = |(dir, name): (&Fh, &Bytes)| match self.open(dir, OFlags::DIRECTORY)? {
            Some(dir) => self.at(&dir, name),
            None => Ok(None),
        };
        Ok(match change {
            Change::Remove { dir, name, victim, .. } => at((dir, name))?.as_ref() != Some(victim),
            Change::Rename { from, to, moved, .. } => {
                at((&to.0, &to.1))?.as_ref() == Some(moved) && at((&from.0, &from.1))?.as_ref() != Some(moved)
            }
            Change::Link { fh, dir, name } => at((dir, name))?.as_ref() == Some(fh),
            Change::Make { to, made, .. } => at((&to.0, &to.1))?.as_ref() == Some(made),
            // The change can be made again without harm.
            Change::Attrs { .. } => false,
        })
    }

    /// `false`: the change cannot be made.
    fn make(&self, change: &Change) -> Result<bool> {
        let dir = |fh: &Fh| self.open(fh, OFlags::DIRECTORY);
        match change {
            Change::Remove { dir: fh, name, victim, is_dir } => {
                let Some(dir) = dir(fh)? else { return Ok(true) };
                if self.at(&dir, name)?.as_ref() != Some(victim) {
                    return Ok(true);
                }
                let flags = if *is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                made(rustix::fs::unlinkat(&dir, &name[..], flags))
            }
            Change::Rename { from, to, moved, replaced } => {
                let (Some(old), Some(new)) = (dir(&from.0)?, dir(&to.0)?) else { return Ok(false) };
                let there = self.at(&new, &to.1)?;
                if self.at(&old, &from.1)?.as_ref() != Some(moved) {
                    return Ok(there.as_ref() == Some(moved));
                }
                if there != *replaced {
                    return Ok(false);
                }
                let how = RenameFlags::empty();
                made(rustix::fs::renameat_with(&old, &from.1[..], &new, &to.1[..], how))
            }
            Change::Link { fh, dir: into, name } => {
                let (Some(file), Some(dir)) = (self.open(fh, OFlags::empty())?, dir(into)?) else {
                    return Ok(false);
                };
                match self.at(&dir, name)? {
                    Some(there) => Ok(there == *fh),
                    None => made(rustix::fs::linkat(&file, c"", &dir, &name[..], AtFlags::EMPTY_PATH)),
                }
            }
            Change::Attrs { fh, set } => match self.open(fh, OFlags::empty())? {
                Some(file) => match set.apply(file.as_fd()) {
                    Ok(()) => Ok(true),
                    Err(e) if matches!(e.errno, libc::EPERM | libc::EACCES) => Ok(false),
                    Err(e) => Err(e),
                },
                // The object is gone.
                None => Ok(true),
            },
            Change::Make { from, to, made: object, set } => {
                let (Some(old), Some(new)) = (dir(&from.0)?, dir(&to.0)?) else { return Ok(false) };
                if self.at(&new, &to.1)?.as_ref() == Some(object) {
                    // The object had its attributes before it got the name.
                    return Ok(true);
                }
                let (waits, there) = (self.at(&old, &from.1)?, self.open(object, OFlags::empty())?);
                let Some(file) = there.filter(|_| waits.as_ref() == Some(object)) else { return Ok(false) };
                set.apply(file.as_fd())?;
                made(rustix::fs::renameat_with(&old, &from.1[..], &new, &to.1[..], RenameFlags::NOREPLACE))
            }
        }
    }
}

/// Whether the operation succeeded. Errors of names that other programs changed are not errors of
/// the disk.
fn made(done: rustix::io::Result<()>) -> Result<bool> {
    use rustix::io::Errno;
    match done {
        Ok(()) => Ok(true),
        Err(Errno::NOENT | Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR | Errno::INVAL) => {
            Ok(false)
        }
        // Another program made the object or its directory immutable since.
        Err(Errno::PERM | Errno::ACCESS) => Ok(false),
        Err(e) => Err(os(e)),
    }
}

impl Became {
    /// The attributes of an object after `set` was applied.
    pub fn of(object: &Object, set: &hither_vfs::SetAttr) -> Result<Self> {
        let stat = object.stat()?;
        let time = |t: rustix::fs::StatxTimestamp| Time { secs: t.tv_sec, nanos: t.tv_nsec };
        // A change of the owner clears permission bits.
        let owner = set.uid.is_some() || set.gid.is_some() || set.mode.is_some();
        Ok(Self {
            owner: owner.then_some((stat.stx_uid, stat.stx_gid, u32::from(stat.stx_mode) & 0o7777)),
            atime: set.atime.map(|_| time(stat.stx_atime)),
            mtime: set.mtime.map(|_| time(stat.stx_mtime)),
        })
    }

    /// All recorded attributes of a new object.
    pub fn whole(object: &Object) -> Result<Self> {
        let to = Some(hither_vfs::SetTime::Now);
        Self::of(object, &hither_vfs::SetAttr { mode: Some(0), atime: to, mtime: to, ..Default::default() })
    }

    fn put(&self, out: &mut Vec<u8>) {
        let (uid, gid, mode) = self.owner.unwrap_or_default();
        out.push(self.owner.is_some().into());
        [uid, gid, mode].into_iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        put_time(out, self.atime);
        put_time(out, self.mtime);
    }

    fn take(rest: &mut Rest<'_>) -> Option<Self> {
        let has_owner = rest.flag()?;
        let owner = (rest.u32()?, rest.u32()?, rest.u32()?);
        Some(Self { owner: has_owner.then_some(owner), atime: rest.time()?, mtime: rest.time()? })
    }

    fn apply(&self, file: BorrowedFd<'_>) -> Result<()> {
        if let Some((uid, gid, mode)) = self.owner {
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            rustix::fs::chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH).map_err(os)?;
            let is_link = super::super::attr::kind(&super::super::object::stat(file)?)? == FileKind::Symlink;
            if !is_link {
                let name = format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(&file));
                rustix::fs::chmod(name, Mode::from_raw_mode(mode)).map_err(os)?;
            }
        }
        let spec = |t: Option<Time>| match t {
            Some(t) => Timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() },
            None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        };
        if self.atime.is_some() || self.mtime.is_some() {
            let times = Timestamps { last_access: spec(self.atime), last_modification: spec(self.mtime) };
            rustix::fs::utimensat(file, c"", &times, AtFlags::EMPTY_PATH).map_err(os)?;
        }
        Ok(())
    }
}

/// The mark, if it is valid. Otherwise an error if the journal has changes; `last` is the number of
/// the last one (0: none).
pub(super) fn checked(mark: Option<(OwnedFd, u64)>, last: u64) -> io::Result<Option<(OwnedFd, u64)>> {
    match mark {
        Some((mark, number)) if number < NUMBER_MAX => Ok(Some((mark, number))),
        // The journal has no change, so any number is valid.
        _ if last == 0 => Ok(None),
        Some(_) => Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("another program changed the time of {MARK_FILE}; it is unknown which changes were made"),
        )),
        None => Err(io::Error::new(
            ErrorKind::NotFound,
            format!("{MARK_FILE} is missing; it is unknown which changes of the journal were made"),
        )),
    }
}
