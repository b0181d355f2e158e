//! `hither serve` with mounts and other exports inside an export, and with clients given by name.
//!
//! The tests need root. The server listens on a loopback address. The tests start no foreign
//! server.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::{sh, wait_for};
use std::fs;
use std::path::Path;

const VERSIONS: [&str; 2] = ["4.2", "3"];

fn names(dir: &Path) -> Vec<String> {
    let mut all: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

#[track_caller]
fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// The error for removing or renaming a mount point. NFSv3 has no status for EBUSY.
fn busy(version: &str) -> i32 {
    if version == "3" { libc::EACCES } else { libc::EBUSY }
}

/// Mounts a tmpfs with a file `inside` on a directory of this machine.
fn mount_tmpfs(at: &Path) {
    sh(&format!("mount -t tmpfs tmpfs {0} && echo inside > {0}/inside", at.display())).ok();
}

fn umount(at: &Path) {
    sh(&format!("umount {}", at.display())).ok();
}

/// Starts a server of `export`. Its directory `m` has a file `below`, with a tmpfs mounted over it.
fn with_a_mount(options: &[&str]) -> Serve {
    let server = Serve::prepare();
    fs::create_dir_all(server.export("m")).unwrap();
    fs::create_dir_all(server.export("deep/late/old")).unwrap();
    fs::write(server.export("deep/late/old/f"), "old").unwrap();
    fs::write(server.export("m/below"), "below").unwrap();
    mount_tmpfs(&server.export("m"));
    let export = server.export("").display().to_string();
    let mut server = server.with(&[export.trim_end_matches('/')]).with(options);
    server.serve();
    server
}

/// With `crossmnt`, clients see mounts: those from before the start and later ones. After an
/// unmount clients see the directory again.
/// Promise: S2a
#[test]
#[ignore = "needs root"]
fn crossmnt_leads_into_mounts() {
    for version in VERSIONS {
        let server = with_a_mount(&["-o", "crossmnt"]);
        let mnt = server.mnt("mnt");
        server.mount(&format!("vers={version},actimeo=1"), &mnt).ok();
        assert_eq!(fs::read_to_string(mnt.join("m/inside")).unwrap(), "inside\n");
        assert_eq!(names(&mnt.join("m")), ["inside"]);
        fs::write(mnt.join("m/new"), "new").unwrap();
        assert_eq!(fs::read_to_string(server.export("m/new")).unwrap(), "new");
        // The mount is its own file system.
        fs::write(mnt.join("f"), "f").unwrap();
        assert_eq!(errno(fs::rename(mnt.join("f"), mnt.join("m/f"))), libc::EXDEV);
        assert_eq!(errno(fs::hard_link(mnt.join("f"), mnt.join("m/f"))), libc::EXDEV);
        assert_eq!(errno(fs::remove_dir(mnt.join("m"))), busy(version));
        // Names in the client's cache do not hide a new mount.
        assert_eq!(fs::read_to_string(mnt.join("deep/late/old/f")).unwrap(), "old");
        mount_tmpfs(&server.export("deep/late"));
        wait_for("the server to see the mount", 60, || server.complaints().contains("have changed"));
        wait_for("the mount to be seen", 60, || {
            fs::read_to_string(mnt.join("deep/late/inside")).is_ok_and(|text| text == "inside\n")
        });
        assert_eq!(names(&mnt.join("deep/late")), ["inside"], "vers={version}");
        umount(&server.export("m"));
        wait_for("the directory below to be seen", 60, || {
            fs::read_to_string(mnt.join("m/below")).is_ok_and(|text| text == "below")
        });
        assert_eq!(names(&mnt.join("m")), ["below"]);
        fs::write(mnt.join("m/again"), "again").unwrap();
        assert_eq!(fs::read_to_string(server.export("m/again")).unwrap(), "again");
        umount(&mnt);
        umount(&server.export("deep/late"));
    }
}

/// Without `crossmnt`, a mount point is an empty directory, and no client writes to the directory
/// below the mount.
/// Promise: S2a
#[test]
#[ignore = "needs root"]
fn mount_points_are_empty_without_crossmnt() {
    for version in VERSIONS {
        let server = with_a_mount(&[]);
        let mnt = server.mnt("mnt");
        server.mount(&format!("vers={version},actimeo=1"), &mnt).ok();
        let m = mnt.join("m");
        assert_eq!(names(&m), [""; 0]);
        assert_eq!(errno(fs::read(m.join("below"))), libc::ENOENT);
        assert_eq!(errno(fs::write(m.join("new"), "x")), libc::EROFS);
        assert_eq!(errno(fs::create_dir(m.join("dir"))), libc::EROFS);
        fs::write(mnt.join("f"), "f").unwrap();
        assert_eq!(errno(fs::rename(mnt.join("f"), m.join("f"))), libc::EROFS);
        assert_eq!(errno(fs::remove_dir(&m)), busy(version));
        assert_eq!(errno(fs::rename(&m, mnt.join("n"))), busy(version));
        umount(&mnt);
        umount(&server.export("m"));
        assert_eq!(names(&server.export("m")), ["below"]);
    }
}

/// Each export inside another export grants its own rights.
/// Promise: S2a
#[test]
#[ignore = "needs root"]
fn nested_exports_have_own_rights() {
    for version in VERSIONS {
        let server = Serve::prepare();
        fs::create_dir_all(server.export("a/sub")).unwrap();
        fs::create_dir(server.export("denied")).unwrap();
        for file in ["a/sub/f", "denied/f"] {
            fs::write(server.export(file), "f").unwrap();
        }
        let (dir, conf) = (server.export(""), server.mnt("conf").join("x.exports"));
        let dir = dir.display().to_string();
        let dir = dir.trim_end_matches('/');
        let lines =
            format!("{dir} *(rw,no_root_squash)\n{dir}/a/sub *(ro,nohide)\n{dir}/denied 192.0.2.1(rw)\n");
        fs::write(&conf, lines).unwrap();
        let mut server = server.with(&["--config", conf.to_str().unwrap()]);
        server.serve();
        let mnt = server.mnt("mnt");
        server.mount_path(&format!("vers={version}"), dir, &mnt).ok();
        assert_eq!(fs::read_to_string(mnt.join("a/sub/f")).unwrap(), "f");
        assert!(matches!(errno(fs::write(mnt.join("a/sub/f"), "g")), libc::EROFS | libc::EACCES));
        fs::write(mnt.join("a/f"), "f").unwrap();
        assert_eq!(names(&mnt.join("denied")), [""; 0]);
        assert_eq!(errno(fs::write(mnt.join("denied/g"), "g")), libc::EROFS);
        umount(&mnt);
    }
}

/// Wildcards and netgroups match the host name that the machine knows for a client's address.
/// Promise: S2b
#[test]
#[ignore = "needs root"]
fn clients_are_known_by_name() {
    for (who, admitted) in
        [("*.lab.example", true), ("*.other.example", false), ("@near", true), ("@far", false)]
    {
        let server = Serve::prepare();
        let etc = server.mnt("etc");
        fs::write(etc.join("hosts"), "127.0.0.1 client.lab.example localhost\n192.0.2.7 away.lab.example\n")
            .unwrap();
        fs::write(etc.join("netgroup"), "near (client.lab.example,,)\nfar (away.lab.example,,)\n").unwrap();
        fs::write(etc.join("nsswitch.conf"), "passwd: files\ngroup: files\nhosts: files\nnetgroup: files\n")
            .unwrap();
        // The change affects only this test's mount name space.
        sh(&format!("cp /etc/passwd /etc/group {0} && mount --bind {0} /etc", etc.display())).ok();
        fs::write(server.export("f"), "f").unwrap();
        let export = server.export("").display().to_string();
        let line = format!("{export} {who}(rw)");
        let mut server = server.with(&["--export", &line]);
        server.serve();
        let mnt = server.mnt("mnt");
        let said = server.mount_path("vers=4.2", export.trim_end_matches('/'), &mnt);
        if admitted {
            said.ok();
            assert_eq!(fs::read_to_string(mnt.join("f")).unwrap(), "f");
            umount(&mnt);
        } else {
            assert_eq!(said.code, 32, "{who}: {said:?}");
        }
        sh("umount -l /etc").ok();
    }
}
