//! Makes an object under a name with one record of the journal. A durable object from the stock
//! gets its owner, permissions, times, and the name.
//!
//! This serves regular files and directories whose parent directory passes no properties on to
//! them. `names` and `open` make and sync all other objects: symbolic links, devices, and objects
//! that inherit an ACL, a group, flags or a project. They also make all objects while the stock is
//! empty, and repeat a call that fails in this module. So the answer is the kernel's.

use super::Inner;
use super::journaled::names::{Became, Change, Done};
use super::journaled::stock::{Kind, Taken, is_plain};
use super::names::{Path, c_name, owned};
use super::object::{Object, os};
use super::pool::Worker;
use hither_vfs::{Create, Fh, Made, Name, OpenHow, Opened, Result, SetAttr, SetTime};
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, Timestamps, Uid};
use smallvec::smallvec;
use std::sync::Arc;

/// The next step for a new object.
pub(super) enum Begun {
    /// No step: the file existed.
    Opened(Box<Opened>),
    /// The object gets its name.
    Ready(Ready),
    /// The object is made in another way.
    Otherwise,
    /// The call begins again on a thread that may wait.
    Waits,
}

/// The result.
pub(super) enum Got {
    Opened(Opened),
    Made(Made, Arc<Object>),
    Otherwise,
    Waits,
}

/// An object that lacks only its name.
pub(super) struct Ready {
    taken: Taken,
    object: Arc<Object>,
    became: Became,
    dir: Arc<Object>,
    name: Name,
}

impl Inner {
    /// Whether new objects may come from the stock.
    pub(super) fn has_stock(&self) -> bool {
        self.stock().is_some()
    }

    /// Begins an open that creates a missing file. `waits`: may wait for the disk and for other
    /// calls.
    pub(super) fn begin_open(
        &self,
        worker: &mut Worker,
        at: &Path,
        how: &OpenHow,
        waits: bool,
    ) -> Result<Begun> {
        if at.path.is_empty() {
            return Ok(Begun::Otherwise);
        }
        let (dir, name) = self.parent(worker, at)?;
        let set = match &how.create {
            Create::No => return Ok(Begun::Otherwise),
            Create::Exclusive(set) => set,
            Create::IfMissing(set) => match self.lookup(worker, &dir, name)? {
                // The truncation of an existing file is synced.
                Some(_) if how.truncate => return Ok(Begun::Otherwise),
                Some(object) => {
                    return Ok(Begun::Opened(Box::new(self.open_existing(worker, &object, how)?)));
                }
                None => set,
            },
        };
        self.room()?;
        self.begin(worker, (dir, name), (Kind::File, set), waits)
    }

    /// Begins to make a file or a directory in `dir`. `waits`: may wait for other calls.
    pub(super) fn begin_in(
        &self,
        worker: &mut Worker,
        (dir, name): (&Fh, &Name),
        what: (Kind, &SetAttr),
        waits: bool,
    ) -> Result<Begun> {
        let dir = self.resolve(worker, dir)?;
        self.begin(worker, (dir, name), what, waits)
    }

    fn begin(
        &self,
        worker: &mut Worker,
        (dir, name): (Arc<Object>, &Name),
        (kind, set): (Kind, &SetAttr),
        waits: bool,
    ) -> Result<Begun> {
        dir.need_dir()?;
        self.need_uncovered(&dir)?;
        self.check_new(worker.cred(), set)?;
        let usual = if kind == Kind::File { 0o666 } else { 0o777 };
        let mode = set.mode.unwrap_or(usual) & 0o7777;
        // The kernel moves a directory only for a caller that may write to it, even for its owner.
        let fixed = kind == Kind::Directory && mode & 0o200 == 0 && worker.cred().uid != 0;
        if fixed || mode & 0o6000 != 0 || set.size_bytes.is_some_and(|size| size > 0) {
            return Ok(Begun::Otherwise);
        }
        if dir.stat()?.stx_mode & 0o2000 != 0 || !self.would_be_made(worker, &dir, name)? {
            return Ok(Begun::Otherwise);
        }
        let Some(stock) = self.stock() else { return Ok(Begun::Otherwise) };
        let taken = if waits { stock.take(kind, mode) } else { stock.take_now(kind, mode) };
        let Some(taken) = taken else {
            return Ok(if waits { Begun::Otherwise } else { Begun::Waits });
        };
        let owner = (set.uid.unwrap_or(worker.cred().uid), set.gid.unwrap_or(worker.cred().gid));
        match self.dress(worker, &taken, owner, mode, set) {
            Ok((object, became)) => {
                let name = name.clone();
                Ok(Begun::Ready(Ready { taken, object, became, dir, name }))
            }
            Err(e) => {
                tracing::debug!("an object of the stock does not get its attributes: {e}");
                Ok(Begun::Otherwise)
            }
        }
    }

    /// Whether the caller may make the name, and the new object inherits nothing. Otherwise an
    /// object from the stock would be taken in vain.
    fn would_be_made(&self, worker: &mut Worker, dir: &Object, name: &Name) -> Result<bool> {
        let name = c_name(name)?;
        let may = worker.caller(|| {
            dir.access(3)?;
            super::sys::name_to_handle(dir.path(), &name).map(drop)
        });
        if !matches!(may, Err(e) if e.errno == libc::ENOENT) {
            return Ok(false);
        }
        worker.root(|| {
            let fd = dir.reopen(self.proc_fd.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
            Ok(is_plain(fd.as_fd()).unwrap_or(false))
        })
    }

    /// Gives an object from the stock all its attributes. It lacks only the name.
    fn dress(
        &self,
        worker: &mut Worker,
        taken: &Taken,
        (uid, gid): (u32, u32),
        mode: u32,
        set: &SetAttr,
    ) -> Result<(Arc<Object>, Became)> {
        worker.root(|| {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(taken.dir().0, taken.name(), flags, Mode::empty()).map_err(os)?;
            let object = self.adopt(fd, None)?;
            let is = object.stat()?;
            if (is.stx_uid, is.stx_gid) != (uid, gid) {
                let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                rustix::fs::chownat(object.path(), c"", owner.0, owner.1, AtFlags::EMPTY_PATH).map_err(os)?;
            }
            if u32::from(is.stx_mode) & 0o7777 != mode {
                self.chmod(&object, mode)?;
            }
            let time = |set: Option<SetTime>| super::set::time(set.or(Some(SetTime::Now)));
            let times = Timestamps { last_access: time(set.atime), last_modification: time(set.mtime) };
            rustix::fs::utimensat(object.path(), c"", &times, AtFlags::EMPTY_PATH).map_err(os)?;
            let became = Became::whole(&object)?;
            Ok((object, became))
        })
    }

    /// Gives an object its name, as the caller.
    pub(super) fn place(&self, worker: &mut Worker, ready: Ready) -> Result<Done<Got>> {
        let Ready { mut taken, object, became, dir, name } = ready;
        let before = self.attributer.before(&dir)?;
        let change = Change::Make {
            from: (taken.dir().1.clone(), taken.name().to_owned().into()),
            to: (dir.fh.clone(), owned(&name)),
            made: object.fh.clone(),
            set: became,
        };
        self.about_to(worker, Some(&change));
        let moved = {
            let _changing = dir.changes.begin();
            let how = RenameFlags::NOREPLACE;
            worker.caller(|| {
                let from = taken.dir().0;
                rustix::fs::renameat_with(from, taken.name(), dir.path(), name.as_bytes(), how).map_err(os)
            })
        };
        if let Err(e) = moved {
            tracing::debug!("an object of the stock does not get its name: {e}");
            drop(taken);
            self.objects.forget_if_gone(&object);
            return Ok(Done { result: Got::Otherwise, object: None, touched: smallvec![], change: None });
        }
        taken.keep();
        let fh = object.fh.clone();
        let made = Made { node: self.new_node(&object)?, dir: self.attributer.change_info(&dir, &before)? };
        let result = Got::Made(made, object.clone());
        Ok(Done { result, object: Some(fh), touched: smallvec![object, dir], change: Some(change) })
    }
}
