//! The kernel answers rename(2) by itself when both names are one object to it. That knowledge must
//! not be outdated.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{mounted, mounted_with};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

/// Validity that does not end during a test.
const LONG: u64 = 600_000;

/// Another client renames `old` to `new` and creates another `old`.
fn moved_elsewhere(m: &common::Mount, old: &str, new: &str) {
    m.foreign_rename(old, new);
    m.foreign_write(old, 0, b"another");
}

/// A rename moves the current object of the old name, also when the kernel has cached both names as
/// one file.
/// Promise: 12
#[test]
fn rename_moves_current_file() {
    let Some(m) = mounted(LONG) else { return };
    // The cached state of the new name, and its use before the rename.
    let before: [fn(&common::Mount, &str); 6] = [
        |_, _| (),
        |m, new| drop(fs::metadata(m.path(new)).unwrap_err()),
        |m, new| fs::write(m.path(new), b"a third").unwrap(),
        |m, new| assert_eq!(fs::read(m.path(new)).unwrap(), b"first"),
        |m, new| drop(File::options().append(true).create(true).open(m.path(new)).unwrap()),
        |m, _| assert!(fs::read_dir(m.path("")).unwrap().count() > 5),
    ];
    for (i, look) in before.into_iter().enumerate() {
        let (old, new) = (format!("old{i}"), format!("new{i}"));
        // An earlier rename of the thread, whose old name is gone.
        let (gone, moved) = (format!("gone{i}"), format!("moved{i}"));
        m.foreign_write(&gone, 0, b"gone");
        fs::read(m.path(&gone)).unwrap();
        m.foreign_rename(&gone, &moved);
        let failed = fs::rename(m.path(&gone), m.path(&moved)).unwrap_err();
        assert_eq!(failed.kind(), std::io::ErrorKind::NotFound);
        m.foreign_write(&old, 0, b"first");
        assert_eq!(fs::read(m.path(&old)).unwrap(), b"first");
        if i < 3 {
            look(&m, &new);
        }
        moved_elsewhere(&m, &old, &new);
        if i >= 3 {
            look(&m, &new);
        }
        fs::rename(m.path(&old), m.path(&new)).unwrap();
        assert_eq!(m.foreign_read(&new), b"another", "{i}");
        assert_eq!(fs::read(m.path(&new)).unwrap(), b"another", "{i}");
        assert!(!m.path(&old).exists(), "{i}");
    }
    m.end();
}

/// A rename of a directory moves the current object of the old name.
#[test]
fn rename_moves_current_directory() {
    let Some(m) = mounted(LONG) else { return };
    m.foreign_dirs("old");
    let first = fs::metadata(m.path("old")).unwrap().ino();
    m.foreign_rename("old", "new");
    m.foreign_dirs("old");
    fs::rename(m.path("old"), m.path("new")).unwrap();
    assert_ne!(fs::metadata(m.path("new")).unwrap().ino(), first);
    assert!(!m.path("old").exists());
    m.end();
}

/// A rename between two names of one file changes nothing (POSIX), and no program gets ESTALE.
/// Promise: 12
#[test]
fn rename_keeps_links_of_file() {
    let Some(m) = mounted(LONG) else { return };
    fs::write(m.path("a"), b"one").unwrap();
    fs::create_dir(m.path("d")).unwrap();
    fs::hard_link(m.path("a"), m.path("b")).unwrap();
    fs::hard_link(m.path("a"), m.path("d/a")).unwrap();
    for _ in 0..2 {
        for (old, new) in [("a", "b"), ("b", "a"), ("a", "a"), ("a", "d/a"), ("d/a", "a"), ("d/a", "b")] {
            fs::rename(m.path(old), m.path(new)).unwrap();
        }
        // Then without cached names.
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    }
    for name in ["a", "b", "d/a"] {
        assert_eq!(fs::metadata(m.path(name)).unwrap().nlink(), 3, "{name}");
    }
    // From one of the names to a new name, and over another file.
    fs::rename(m.path("a"), m.path("c")).unwrap();
    fs::write(m.path("e"), b"other").unwrap();
    fs::rename(m.path("b"), m.path("e")).unwrap();
    assert_eq!(
        (fs::read(m.path("c")).unwrap(), fs::read(m.path("e")).unwrap()),
        (b"one".into(), b"one".into())
    );
    m.end();
}

/// Without cached names in the kernel each call looks up its names.
/// Promise: 8
#[test]
fn uncached_names_are_looked_up() {
    for keeps_names in [true, false] {
        let Some(m) = mounted_with(LONG, |c| c.keeps_names = keeps_names) else { return };
        m.foreign_write("f", 0, b"x");
        m.foreign_dirs("d");
        for look in ["first", "again"] {
            let before = m.requests("LOOKUP");
            File::open(m.path("f")).unwrap();
            fs::metadata(m.path("d")).unwrap();
            fs::metadata(m.path("absent")).unwrap_err();
            let asked = m.requests("LOOKUP") - before;
            assert_eq!(asked, if keeps_names && look == "again" { 0 } else { 3 }, "{keeps_names} {look}");
        }
        // Names of a listing are not cached either.
        assert_eq!(fs::read_dir(m.path("")).unwrap().count(), 2);
        m.foreign_rename("f", "g");
        assert_eq!(fs::metadata(m.path("f")).is_ok(), keeps_names);
        m.end();
    }
}

/// The link count of a file with many names shows each removal, and the open file stays readable.
#[test]
fn link_count_follows_many_names() {
    let Some(m) = mounted(LONG) else { return };
    const NAMES: u64 = 40;
    let path = |n: u64| m.path(&format!("name{n}"));
    fs::write(path(1), b"bytes").unwrap();
    for n in 2..=NAMES {
        fs::hard_link(path(1), path(n)).unwrap();
        assert_eq!(fs::metadata(path(1)).unwrap().nlink(), n, "linked");
    }
    let file = File::open(path(1)).unwrap();
    // The newest and the oldest names alternate, and so do removal and replacement.
    for left in (1..NAMES).rev() {
        let gone = if left % 2 == 0 { left / 2 + 1 } else { NAMES - left / 2 };
        match left % 3 {
            0 => {
                fs::write(m.path("new"), b"new").unwrap();
                fs::rename(m.path("new"), path(gone)).unwrap();
            }
            _ => fs::remove_file(path(gone)).unwrap(),
        }
        assert_eq!(file.metadata().unwrap().nlink(), left, "name{gone} is gone");
    }
    drop(file);
    m.end();
}

/// The file has so many names that the old name was forgotten. A rename must not take it for
/// another name of the file.
#[test]
fn forgotten_name_is_looked_up_again() {
    let Some(m) = mounted(LONG) else { return };
    fs::write(m.path("old"), b"first").unwrap();
    for n in 1..40 {
        fs::hard_link(m.path("old"), m.path(&format!("name{n}"))).unwrap();
    }
    moved_elsewhere(&m, "old", "new");
    fs::rename(m.path("old"), m.path("new")).unwrap();
    assert_eq!(m.foreign_read("new"), b"another");
    assert_eq!(fs::read(m.path("new")).unwrap(), b"another");
    m.end();
}
