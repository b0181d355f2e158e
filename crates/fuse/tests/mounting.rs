//! Mounting and the system's view of it; every failure has its own line.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Gate, mounted, mounted_with};
use hither_fuse::{Config, MountError, mount};
use std::fs;
use std::path::Path;

fn mountinfo(dir: &Path) -> String {
    let all = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    all.lines().find(|l| l.split(' ').nth(4) == dir.to_str()).unwrap_or_default().to_owned()
}

#[test]
fn the_system_shows_type_source_and_options() {
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

#[test]
fn mistakes_are_named() {
    let Some(m) = mounted(1000) else { return };
    fs::write(m.path("file"), b"").unwrap();
    let attempt = |dir: &str| {
        let gate = Gate::new(m.model.clone());
        m.rt.block_on(mount(&m.path(dir), Config::default(), gate)).unwrap_err()
    };
    let missing = attempt("none");
    assert!(matches!(missing, MountError::NoSuchDirectory(_)));
    assert!(missing.to_string().contains("/none does not exist"), "{missing}");
    let file = attempt("file");
    assert!(matches!(file, MountError::NotDirectory(_)));
    assert!(file.to_string().ends_with("is not a directory"), "{file}");
    m.end();
}

#[test]
fn a_server_without_a_root_is_not_mounted() {
    let Some(m) = mounted(1000) else { return };
    let dir = m.path("inner");
    fs::create_dir(&dir).unwrap();
    let gate = Gate::new(m.model.clone());
    gate.fail("root", libc::EACCES);
    let e = m.rt.block_on(mount(&dir, Config::default(), gate)).unwrap_err();
    assert!(matches!(e, MountError::Root(_)));
    assert_eq!(mountinfo(&dir), "");
    m.end();
}

#[test]
fn a_dropped_mount_is_detached() {
    let Some(mut m) = mounted(1000) else { return };
    drop(m.mounted.take());
    assert_eq!(mountinfo(&m.dir), "");
}

#[test]
fn a_mount_on_a_directory_of_another_mount_works() {
    let Some(m) = mounted(1000) else { return };
    let dir = m.path("inner");
    fs::create_dir(&dir).unwrap();
    let inner = m.rt.block_on(mount(&dir, Config::default(), Gate::new(m.model.clone()))).unwrap();
    fs::write(dir.join("f"), b"seen twice").unwrap();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"seen twice");
    inner.unmount(false).unwrap();
    m.rt.block_on(inner.wait());
    m.end();
}
