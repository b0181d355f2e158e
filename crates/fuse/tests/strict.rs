//! Strict mounts: reads, lengths, names and links are not answered from the kernel's caches.
//! Written data has reached the layer below when the call returns.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Mount, eventually, mounted_with};
use hither_vfs::SetAttr;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

fn strict() -> Option<Mount> {
    mounted_with(0, |config| {
        (config.strict, config.close_to_open, config.hints, config.first_bytes) = (true, false, false, 0);
    })
}

/// A mapping of the first page of a file.
struct Mapping(*mut u8);

impl Mapping {
    fn of(file: &File, flags: MapFlags) -> Self {
        // SAFETY: a fresh mapping, which ends with this value.
        let at = unsafe { mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, flags, file, 0) }.unwrap();
        Self(at.cast())
    }

    fn first(&self) -> u8 {
        // SAFETY: inside the mapping of a file that is longer.
        unsafe { self.0.read_volatile() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made above.
        unsafe { munmap(self.0.cast(), 4096) }.unwrap();
    }
}

/// Each read of an open file shows other clients' writes.
/// Promise: 8d
#[test]
fn strict_read_bypasses_pages() {
    let Some(m) = strict() else { return };
    m.foreign_write("f", 0, b"0000");
    let mut f = File::open(m.path("f")).unwrap();
    let mut by_name = File::open(m.path("f")).unwrap();
    for round in b'1'..=b'9' {
        m.foreign_write("f", 0, &[round; 4]);
        let mut seen = [0; 4];
        f.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(seen, [round; 4]);
        by_name.rewind().unwrap();
        by_name.read_exact(&mut seen).unwrap();
        assert_eq!(seen, [round; 4]);
        m.foreign_write("f", 4, &vec![round; usize::from(round)]);
        assert_eq!(f.metadata().unwrap().len(), 4 + u64::from(round));
        assert_eq!(f.seek(SeekFrom::End(0)).unwrap(), 4 + u64::from(round));
    }
    drop((f, by_name));
    m.end();
}

/// An append writes at the current end of the file.
/// Promise: 8d
#[test]
fn strict_append_uses_current_end() {
    let Some(m) = strict() else { return };
    m.foreign_write("log", 0, b"begin\n");
    let mut f = OpenOptions::new().append(true).open(m.path("log")).unwrap();
    let mut wanted = b"begin\n".to_vec();
    for i in 0..5 {
        m.foreign_write("log", wanted.len() as u64, b"theirs\n");
        let ours = format!("ours {i}\n");
        f.write_all(ours.as_bytes()).unwrap();
        wanted.extend(b"theirs\n");
        wanted.extend(ours.as_bytes());
        assert_eq!(m.foreign_read("log"), wanted, "written when the call has returned");
    }
    m.foreign_setattr("log", &SetAttr { size_bytes: Some(3), ..Default::default() });
    f.write_all(b"!").unwrap();
    assert_eq!(m.foreign_read("log"), b"beg!");
    drop(f);
    m.end();
}

/// A new mapping shows the current bytes. An earlier mapping shows a change a short time later.
/// Reads are right meanwhile.
/// Promise: 8d
#[test]
fn new_mapping_shows_current_bytes() {
    let Some(m) = strict() else { return };
    m.foreign_write("f", 0, &[b'0'; 8192]);
    let f = File::open(m.path("f")).unwrap();
    for flags in [MapFlags::SHARED, MapFlags::PRIVATE] {
        for round in b'1'..=b'5' {
            m.foreign_write("f", 0, &[round; 8192]);
            let mapping = Mapping::of(&f, flags);
            assert_eq!(mapping.first(), round, "{flags:?}");
            let mut byte = [0];
            m.foreign_write("f", 0, b"x");
            f.read_exact_at(&mut byte, 0).unwrap();
            assert_eq!(byte, *b"x");
        }
    }
    let kept = Mapping::of(&f, MapFlags::SHARED);
    assert_eq!(kept.first(), b'x');
    m.foreign_write("f", 0, b"y");
    eventually("the mapping shows it", || kept.first() == b'y');
    drop(kept);
    drop(f);
    m.end();
}

/// Each call looks up its names and reads its links.
/// Promise: 8d
#[test]
fn strict_call_looks_up_names() {
    let Some(m) = strict() else { return };
    for _ in 0..5 {
        assert!(!m.path("f").exists());
        m.foreign_write("f", 0, b"text");
        assert!(m.path("f").exists());
        m.foreign_unlink("f");
    }
    std::os::unix::fs::symlink("target", m.path("link")).unwrap();
    let before = m.requests("READLINK");
    (0..3).for_each(|_| assert_eq!(fs::read_link(m.path("link")).unwrap().to_str(), Some("target")));
    assert_eq!(m.requests("READLINK"), before + 3);
    m.end();
}
