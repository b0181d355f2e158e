//! Notifications of the kernel about changes that open no file: of attributes, of names, and of the
//! removal of a file.
//!
//! fanotify(7) names the thread that made each change, so changes by the pool are left out. The
//! server has recalled the conflicting leases before it makes those. fanotify needs CAP_SYS_ADMIN,
//! and a file system with handles. Otherwise inotify(7) is used. It also reports changes by this
//! process, so a lease is sometimes released for nothing.

use super::super::object::os;
use super::super::sys;
use super::{Listener, Target};
use hither_vfs::Result;
use parking_lot::Mutex;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::inotify;
use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Bytes of notifications that are read at once.
const EVENTS_BYTES: usize = 16 << 10;
/// Length of struct fanotify_event_metadata, in bytes. Its first field is the length of the event.
const METADATA_BYTES: usize = 24;
/// Bytes of a struct fanotify_event_info_fid before the id of the file system.
const INFO_HEADER_BYTES: usize = 4;
/// Bytes of the id of the file system, and of length and type in struct file_handle.
const KEY_BYTES_MIN: usize = 8 + 8;

/// The marked objects. Each served directory that the object belongs to has its own target, and its
/// own number of watches that need the mark.
type Marks<K> = Mutex<HashMap<K, Vec<(Target, u32)>>>;

/// The source of notifications.
pub(super) enum Notes {
    /// Changes by a directory's own threads are not reported to that directory.
    Fanotify { fd: OwnedFd, marks: Marks<Box<[u8]>> },
    /// Changes by each thread are reported.
    Inotify { fd: OwnedFd, marks: Marks<i32> },
}

/// A mark that [`Notes::remove`] removes.
pub(super) enum Mark {
    Fanotify(Box<[u8]>, u64),
    Inotify(i32),
}

/// The reported changes, besides those of attributes and of the object's own names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// No others.
    Attributes,
    /// Changes of the bytes of a file.
    Bytes,
    /// Changes of the names in a directory.
    Names,
}

impl Of {
    fn fanotify(self) -> u64 {
        let itself = libc::FAN_ATTRIB | libc::FAN_MOVE_SELF | libc::FAN_DELETE_SELF;
        let entries =
            libc::FAN_CREATE | libc::FAN_DELETE | libc::FAN_MOVED_FROM | libc::FAN_MOVED_TO | libc::FAN_ONDIR;
        match self {
            Self::Attributes => itself,
            Self::Bytes => itself | libc::FAN_MODIFY,
            Self::Names => itself | entries,
        }
    }

    fn inotify(self) -> inotify::WatchFlags {
        use inotify::WatchFlags;
        let itself = WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
        match self {
            Self::Attributes => itself,
            Self::Bytes => itself | WatchFlags::MODIFY,
            Self::Names => itself | WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE,
        }
    }
}

/// A notification.
pub(super) enum Note {
    /// This file was changed.
    File(Target),
    /// Too many notifications: any file may have been changed.
    Any,
}

impl Notes {
    /// A queue of fanotify.
    pub fn fanotify() -> Result<Self> {
        Ok(Self::Fanotify { fd: sys::fanotify()?, marks: Marks::default() })
    }

    /// A queue of inotify.
    pub fn inotify() -> Result<Self> {
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        Ok(Self::Inotify { fd: inotify::init(flags).map_err(os)?, marks: Marks::default() })
    }

    /// Fails when the queue cannot report changes below `top`: not every file system supports
    /// fanotify.
    pub fn supports(&self, top: BorrowedFd<'_>) -> Result<()> {
        if let Self::Fanotify { fd, .. } = self {
            sys::file_key(top)?;
            // With this event on the directory itself, which no watch needs.
            sys::fanotify_mark(fd.as_fd(), top, libc::FAN_ACCESS, true)?;
            sys::fanotify_mark(fd.as_fd(), top, libc::FAN_ACCESS, false)?;
        }
        Ok(())
    }

    /// Marks the object of a descriptor. `None` when the kernel refuses.
    pub fn add(&self, on: BorrowedFd<'_>, target: &Target, of: Of) -> Option<Mark> {
        match self {
            Self::Fanotify { fd, marks } => {
                let key = sys::file_key(on).ok()?;
                let what = of.fanotify();
                let mut marks = marks.lock();
                sys::fanotify_mark(fd.as_fd(), on, what, true).ok()?;
                one_more(&mut marks, key.clone(), target);
                Some(Mark::Fanotify(key, what))
            }
            Self::Inotify { fd, marks } => {
                let mut marks = marks.lock();
                let path = format!("/proc/self/fd/{}", on.as_raw_fd());
                let add = of.inotify() | inotify::WatchFlags::MASK_ADD;
                let watch = inotify::add_watch(fd, path, add).ok()?;
                one_more(&mut marks, watch, target);
                Some(Mark::Inotify(watch))
            }
        }
    }

    /// Removes a directory's mark from the object of a descriptor. The kernel may refuse: the mark
    /// ends with the file.
    pub fn remove(&self, on: BorrowedFd<'_>, listener: &Arc<Listener>, mark: &Mark) {
        match (self, mark) {
            (Self::Fanotify { fd, marks }, Mark::Fanotify(key, what)) => {
                let mut marks = marks.lock();
                if one_less(&mut marks, key, listener) {
                    // Other watches may have added more events to the mark.
                    let _ = sys::fanotify_mark(fd.as_fd(), on, what | Of::Bytes.fanotify(), false);
                }
            }
            (Self::Inotify { fd, marks }, Mark::Inotify(watch)) => {
                let mut marks = marks.lock();
                if one_less(&mut marks, watch, listener) {
                    let _ = inotify::remove_watch(fd, *watch);
                }
            }
            _ => {}
        }
    }

    /// Takes all waiting notifications.
    pub fn take(&self, mut each: impl FnMut(Note)) {
        match self {
            Self::Fanotify { fd, marks } => {
                let mut buffer = vec![0; EVENTS_BYTES];
                while let Ok(len) = rustix::io::read(fd, &mut buffer) {
                    let read = buffer.get(..len).unwrap_or_default();
                    if read.is_empty() {
                        break;
                    }
                    for event in events(read) {
                        if event.overflow {
                            each(Note::Any);
                        } else if let Some(key) = event.key {
                            let mut targets = targets(marks, key);
                            targets.retain(|target| !target.listener.own.has(event.thread));
                            targets.into_iter().for_each(|target| each(Note::File(target)));
                        }
                    }
                }
            }
            Self::Inotify { fd, marks } => {
                let mut buffer = [MaybeUninit::uninit(); EVENTS_BYTES];
                let mut reader = inotify::Reader::new(fd, &mut buffer);
                while let Ok(event) = reader.next() {
                    if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) {
                        each(Note::Any);
                        continue;
                    }
                    // inotify also reports attribute changes of the entries of a directory. The
                    // attributes of the directory itself are unchanged.
                    if event.file_name().is_some() && event.events().contains(inotify::ReadFlags::ATTRIB) {
                        continue;
                    }
                    targets(marks, &event.wd()).into_iter().for_each(|target| each(Note::File(target)));
                }
            }
        }
    }
}

impl AsFd for Notes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Fanotify { fd, .. } | Self::Inotify { fd, .. } => fd.as_fd(),
        }
    }
}

/// The targets of a mark. An object without a mark belongs to no watch.
fn targets<K: Eq + Hash + Borrow<Q>, Q: Eq + Hash + ?Sized>(marks: &Marks<K>, key: &Q) -> Vec<Target> {
    let marks = marks.lock();
    marks.get(key).into_iter().flatten().map(|(target, _)| target.clone()).collect()
}

fn one_more<K: Eq + Hash>(marks: &mut HashMap<K, Vec<(Target, u32)>>, key: K, target: &Target) {
    let targets = marks.entry(key).or_default();
    match targets.iter_mut().find(|(known, _)| Arc::ptr_eq(&known.listener, &target.listener)) {
        Some((_, watches)) => *watches += 1,
        None => targets.push((target.clone(), 1)),
    }
}

/// Removes one use of a mark. Returns whether it was the last.
fn one_less<K: Eq + Hash>(
    marks: &mut HashMap<K, Vec<(Target, u32)>>,
    key: &K,
    listener: &Arc<Listener>,
) -> bool {
    let Some(targets) = marks.get_mut(key) else { return false };
    targets.retain_mut(|(target, watches)| {
        *watches -= u32::from(Arc::ptr_eq(&target.listener, listener));
        *watches > 0
    });
    let last = targets.is_empty();
    if last {
        marks.remove(key);
    }
    last
}

/// A notification of fanotify.
#[derive(Debug, PartialEq, Eq)]
struct Event<'a> {
    overflow: bool,
    thread: libc::pid_t,
    /// The file, in the format of [`sys::file_key`].
    key: Option<&'a [u8]>,
}

/// The notifications in a buffer. Each begins with its length, and ends with the id of the file
/// (fanotify(7)).
fn events(mut read: &[u8]) -> impl Iterator<Item = Event<'_>> {
    std::iter::from_fn(move || {
        let bytes = |at: usize| read.get(at..at + 4).and_then(|b| b.try_into().ok());
        let word = |at: usize| bytes(at).map(u32::from_ne_bytes);
        let len = word(0)? as usize;
        let (mask, thread) = (word(8)?, word(20)?.cast_signed());
        let info = read.get(METADATA_BYTES..len)?;
        read = read.get(len..)?;
        let key = info.get(INFO_HEADER_BYTES..).and_then(|key| {
            let handle = key.get(8..12)?.try_into().ok().map(u32::from_ne_bytes)?;
            key.get(..KEY_BYTES_MIN.checked_add(handle as usize)?)
        });
        Some(Event { overflow: u64::from(mask) & libc::FAN_Q_OVERFLOW != 0, thread, key })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(mask: u32, thread: i32, info: &[u8]) -> Vec<u8> {
        let len = (METADATA_BYTES + info.len()) as u32;
        let words = [len, 0, mask, 0, u32::MAX, thread.cast_unsigned()];
        words.iter().flat_map(|w| w.to_ne_bytes()).chain(info.iter().copied()).collect()
    }

    /// The parser separates the events of one read. A truncated buffer yields no false event.
    #[test]
    fn parser_separates_events() {
        let handle = |bytes: &[u8]| {
            let mut key = b"fsid....".to_vec();
            key.extend((bytes.len() as u32).to_ne_bytes());
            key.extend(1u32.to_ne_bytes());
            key.extend(bytes);
            key
        };
        let (one, two) = (handle(b"inodegen"), handle(b"another file"));
        let info = |key: &[u8]| [b"\x01\0\0\0", key, b"\0\0\0"].concat();
        let read = [event(4, 7, &info(&one)), event(0x4000, 0, &[]), event(0x804, -1, &info(&two))].concat();
        let told: Vec<_> = events(&read).collect();
        let want = [(false, 7, Some(&one[..])), (true, 0, None), (false, -1, Some(&two[..]))];
        let want = want.map(|(overflow, thread, key)| Event { overflow, thread, key });
        assert_eq!(told, want);
        // A buffer that is cut anywhere yields no false event.
        for end in 0..read.len() {
            let told: Vec<_> = events(&read[..end]).collect();
            assert_eq!(told, &want[..told.len()]);
        }
    }
}
