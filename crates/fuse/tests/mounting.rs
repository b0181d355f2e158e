//! Mounting, and its display by the system. Every failure has its own message.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Gate, mounted, mounted_with};
use hither_fuse::{Config, Layers, MountError, mount};
use std::fs;
use std::path::Path;

fn mountinfo(dir: &Path) -> String {
    let all = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    all.lines().find(|l| l.split(' ').nth(4) == dir.to_str()).unwrap_or_default().to_owned()
}

/// mountinfo shows type, source, options and device number of a mount.
#[test]
fn mountinfo_shows_options() {
    let change = |c: &mut Config| {
        c.source = "server.example:/export with space".into();
        c.mount_flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOATIME;
        c.read_ahead_kb = Some(1536);
    };
    let Some(m) = mounted_with(1000, change) else { return };
    let line = mountinfo(&m.dir);
    assert!(line.contains("nosuid,nodev,noatime"), "{line}");
    assert!(line.contains(" - fuse.hither server.example:/export\\040with\\040space "), "{line}");
    let (major, minor) = m.mounted().device();
    assert!(line.contains(&format!(" {major}:{minor} ")), "{line}");
    let kb = fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).unwrap();
    assert_eq!(kb.trim(), "1536");
    m.end();
}

/// A missing mount point and a file as mount point have their own errors.
#[test]
fn wrong_mount_points_are_refused() {
    let Some(m) = mounted(1000) else { return };
    fs::write(m.path("file"), b"").unwrap();
    let attempt = |dir: &str| {
        let gate = Gate::new(m.model.clone());
        m.rt.block_on(mount(&m.path(dir), Config::default(), Layers::alone(gate))).unwrap_err()
    };
    let missing = attempt("none");
    assert!(matches!(missing, MountError::NoSuchDirectory(_)));
    assert!(missing.to_string().contains("/none does not exist"), "{missing}");
    let file = attempt("file");
    assert!(matches!(file, MountError::NotDirectory(_)));
    assert!(file.to_string().ends_with("is not a directory"), "{file}");
    m.end();
}

/// An error for the root directory fails the mount.
#[test]
fn failing_root_is_not_mounted() {
    let Some(m) = mounted(1000) else { return };
    let dir = m.path("inner");
    fs::create_dir(&dir).unwrap();
    let gate = Gate::new(m.model.clone());
    gate.fail("root", libc::EACCES);
    let e = m.rt.block_on(mount(&dir, Config::default(), Layers::alone(gate))).unwrap_err();
    assert!(matches!(e, MountError::Root(_)));
    assert_eq!(mountinfo(&dir), "");
    m.end();
}

/// Dropping a mount detaches it.
#[test]
fn a_dropped_mount_is_detached() {
    let Some(mut m) = mounted(1000) else { return };
    drop(m.mounted.take());
    assert_eq!(mountinfo(&m.dir), "");
}

/// A mount on a directory of another mount works.
#[test]
fn nested_mount_works() {
    let Some(m) = mounted(1000) else { return };
    let dir = m.path("inner");
    fs::create_dir(&dir).unwrap();
    let inner =
        m.rt.block_on(mount(&dir, Config::default(), Layers::alone(Gate::new(m.model.clone())))).unwrap();
    fs::write(dir.join("f"), b"seen twice").unwrap();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"seen twice");
    inner.unmount(false).unwrap();
    m.rt.block_on(inner.wait());
    m.end();
}
