//! Listings: large directories, unusual cookies, seeks, concurrent changes, and servers with an
//! endless listing.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{eventually, mounted, once_below, seconds};
use rustix::fs::{Dir, Mode, OFlags, open};
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

/// A directory with 100,000 entries is listed in few pages, and its attributes need few lookups.
#[test]
fn large_directory_is_listed_completely() {
    const COUNT: usize = 100_000;
    let Some(m) = mounted(600_000) else { return };
    fs::create_dir(m.path("big")).unwrap();
    let dir = m.fh("big");
    m.rt.block_on(async {
        use hither_vfs::{SetAttr, Special, Vfs};
        for i in 0..COUNT {
            let name = common::name(&format!("file{i}"));
            let regular = &Special::Regular;
            m.model.mknod(&common::root(), &dir, &name, regular, &SetAttr::default()).await.unwrap();
        }
    });
    let mut seen = 0;
    let took = seconds(|| seen = names(&m.path("big")).into_iter().collect::<HashSet<_>>().len());
    assert_eq!(seen, COUNT);
    eprintln!("{COUNT} entries in {took:.2} s, {} pages from below", m.gate.calls("readdir"));
    assert!(m.gate.calls("readdir") < 100, "pages must grow");
    // With attributes, which are in the listing.
    let before = m.gate.calls("walk");
    let entries = fs::read_dir(m.path("big")).unwrap();
    let inodes: HashSet<u64> = entries.map(|e| e.unwrap().metadata().unwrap().ino()).collect();
    assert_eq!(inodes.len(), COUNT);
    let walks = m.gate.calls("walk") - before;
    eprintln!("{walks} look-ups for {COUNT} metadata calls");
    assert!(walks < COUNT / 2);
    m.end();
}

/// Each entry is listed once, also with the cookies 1 and 2.
/// Promise: 11
#[test]
fn each_entry_is_listed_once() {
    // With shift 2 the first entries have the cookies 1 and 2, which are often those of `.` and
    // `..`.
    for shift in [0, 2] {
        let Some(m) = mounted(0) else { return };
        m.gate.shift_cookies(shift);
        let expected: HashSet<String> = (0..3000).map(|i| format!("a rather long name {i}")).collect();
        for name in &expected {
            fs::write(m.path(name), b"").unwrap();
        }
        let seen = names(&m.dir);
        assert_eq!(seen.len(), expected.len());
        assert_eq!(seen.into_iter().collect::<HashSet<_>>(), expected);
        m.end();
    }
}

/// seekdir(3) with an offset of telldir(3) continues after the same entry.
#[test]
fn seekdir_returns_to_telldir_offset() {
    for validity in [0, 600_000] {
        let Some(m) = mounted(validity) else { return };
        m.gate.shift_cookies(2);
        for i in 0..500 {
            fs::write(m.path(&format!("f{i}")), b"").unwrap();
        }
        let fd = open(&m.dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mut dir = Dir::read_from(&fd).unwrap();
        let mut seen = Vec::new();
        while let Some(entry) = dir.read() {
            let entry = entry.unwrap();
            seen.push((entry.offset(), entry.file_name().to_owned()));
        }
        assert_eq!(seen.len(), 502);
        for at in [0, 1, 2, 3, 4, 77, 250, 499, 500] {
            dir.seek(seen[at].0).unwrap();
            let entry = dir.read().unwrap().unwrap();
            assert_eq!(entry.file_name(), &*seen[at + 1].1, "after entry {at}");
        }
        dir.seek(seen[501].0).unwrap();
        assert!(dir.read().is_none());
        drop((dir, fd));
        m.end();
    }
}

/// Removing a tree while listing it removes all entries.
/// Promise: 11
#[test]
fn removal_during_listing_is_complete() {
    let Some(m) = mounted(1000) else { return };
    fs::create_dir(m.path("d")).unwrap();
    for i in 0..2500 {
        fs::write(m.path(&format!("d/f{i}")), b"").unwrap();
    }
    fs::remove_dir_all(m.path("d")).unwrap();
    assert!(names(&m.dir).is_empty());
    // The last written files are still being closed.
    eventually("only the root is left", || m.model.object_count() == 1);
    m.end();
}

/// A name that was removed after its page was read is not cached by the kernel.
#[test]
fn removed_name_stays_absent() {
    let Some(m) = mounted(600_000) else { return };
    for i in 0..2000 {
        fs::write(m.path(&format!("f{i}")), b"").unwrap();
    }
    let mut listing = fs::read_dir(&m.dir).unwrap();
    listing.next();
    // The page has more entries than were taken.
    for i in 1000..2000 {
        fs::remove_file(m.path(&format!("f{i}"))).unwrap();
    }
    assert!(listing.all(|e| e.is_ok()));
    drop(listing);
    let back = (1000..2000).filter(|i| m.path(&format!("f{i}")).exists()).count();
    assert_eq!(back, 0);
    m.end();
}

/// A listing that returns to its start ends with EIO.
#[test]
fn endless_listing_fails() {
    let Some(m) = mounted(0) else { return };
    for i in 0..300 {
        fs::write(m.path(&format!("some longer file name {i}")), b"").unwrap();
    }
    m.gate.circle();
    once_below("seconds until the error", 5.0, || {
        seconds(|| {
            let result: Result<Vec<_>, _> = fs::read_dir(&m.dir).unwrap().collect();
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO));
        })
    });
    m.end();
}

/// The entries `.` and `..` have the right inode numbers.
#[test]
fn dot_entries_have_inode_numbers() {
    let Some(m) = mounted(1000) else { return };
    fs::create_dir_all(m.path("a/b")).unwrap();
    let fd = open(m.path("a/b"), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let entries: Vec<_> = Dir::read_from(&fd).unwrap().map(|e| e.unwrap()).collect();
    let ino = |p: &str| fs::metadata(m.path(p)).unwrap().ino();
    let found: Vec<_> = entries.iter().map(|e| (e.file_name().to_bytes(), e.ino())).collect();
    assert_eq!(found, [(&b"."[..], ino("a/b")), (b"..", ino("a"))]);
    drop(fd);
    m.end();
}

/// A directory stream of the C library.
struct Stream(*mut libc::DIR);

impl Stream {
    fn open(path: &Path) -> Self {
        use std::os::unix::ffi::OsStrExt;
        let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a NUL-terminated string that lives across the call.
        let stream = unsafe { libc::opendir(path.as_ptr()) };
        assert!(!stream.is_null());
        Self(stream)
    }

    fn tell(&self) -> i64 {
        // SAFETY: an open stream.
        unsafe { libc::telldir(self.0) }
    }

    fn seek(&self, place: i64) {
        // SAFETY: an open stream, and an offset from telldir(3).
        unsafe { libc::seekdir(self.0, place) }
    }

    fn next(&self) -> Option<String> {
        // SAFETY: an open stream; the entry lives until the next call.
        unsafe {
            let entry = libc::readdir(self.0);
            let name = (!entry.is_null()).then(|| std::ffi::CStr::from_ptr((*entry).d_name.as_ptr()));
            name.map(|name| name.to_str().unwrap().to_owned())
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: an open stream that is not used any more.
        unsafe { libc::closedir(self.0) };
    }
}

/// A program that calls telldir(3) and seekdir(3) for each entry costs a bounded number of entries
/// each time. That holds for large directories, forwards, backwards, and across pages. Each offset
/// leads to its entry.
#[test]
fn seekdir_cost_is_bounded() {
    for validity in [0, 600_000] {
        let Some(m) = mounted(validity) else { return };
        fs::create_dir(m.path("d")).unwrap();
        let dir = m.fh("d");
        m.rt.block_on(async {
            use hither_vfs::{SetAttr, Special, Vfs};
            for i in 0..3000 {
                let (name, set) = (common::name(&format!("a rather long name {i}")), SetAttr::default());
                m.model.mknod(&common::root(), &dir, &name, &Special::Regular, &set).await.unwrap();
            }
        });
        let mut costs = Vec::new();
        for count in [1000, 3000] {
            let stream = Stream::open(&m.path("d"));
            let (listed, requests) = (m.gate.listed(), m.requests("READDIR") + m.requests("READDIRPLUS"));
            let given = m.mounted().entries_listed();
            let mut places = Vec::new();
            while places.len() < count {
                let place = stream.tell();
                stream.seek(place);
                places.push((place, stream.next().unwrap()));
            }
            let names: HashSet<_> = places.iter().map(|(_, name)| name).collect();
            assert_eq!(names.len(), count);
            for (place, name) in places.iter().rev() {
                stream.seek(*place);
                assert_eq!(stream.next().as_ref(), Some(name));
            }
            let requests = m.requests("READDIR") + m.requests("READDIRPLUS") - requests;
            assert!(requests <= 2 * count as u64 + 10, "{requests} requests");
            // Two seeks per entry, and whole pieces at the start of the directory.
            let given = m.mounted().entries_listed() - given;
            assert!(given <= 8 * count as u64 + 6000, "{given} entries for {count}");
            costs.push((m.gate.listed() - listed) / count);
        }
        eprintln!("entries from below for each seek: {costs:?}");
        assert!(costs[1] <= costs[0] * 3 / 2 + 1, "{costs:?}");
        m.end();
    }
}
