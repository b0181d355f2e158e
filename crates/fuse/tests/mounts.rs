//! Mounts inside a mount stay after any change to the names of their path.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Mount, as_user, eventually, mounted, mounted_with, name, pause};
use hither_vfs::{Fh, SetAttr, Touched};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Child, Command, Stdio};

/// Mount points: a directory, a deeper directory, and a file.
const POINTS: [&str; 3] = ["w/mp", "w/deep/er/mp", "w/file"];

/// An event that invalidates names of the path of the mounts.
type Doubt = fn(&Mount);

fn mode(m: &Mount, path: &str, mode: u32) {
    fs::set_permissions(m.path(path), fs::Permissions::from_mode(mode)).unwrap();
}

fn invalidator(m: &Mount, touched: &[Touched]) {
    let invalidator = m.mounted().invalidator();
    m.rt.block_on(async { invalidator.around(touched, Box::pin(async {})).await });
}

fn touched(m: &Mount, dir: &str, last: &str, object: Option<Fh>) -> Touched {
    Touched::Name(m.fh(dir), name(last), object)
}

/// All events that invalidate names.
const DOUBTS: [(&str, Doubt); 11] = [
    ("a rename that fails", |m| {
        m.gate.fail("rename", libc::EIO);
        assert!(fs::rename(m.path("w/a"), m.path("w/b")).is_err());
        m.gate.fail("rename", 0);
    }),
    ("a rename of a file that another client has replaced", |m| {
        fs::metadata(m.path("w/a")).unwrap();
        m.foreign_unlink("w/a");
        m.foreign_write("w/a", 0, b"new");
        let _ = fs::rename(m.path("w/a"), m.path("w/b"));
    }),
    ("a name that another client has moved", |m| {
        fs::metadata(m.path("f")).unwrap();
        m.foreign_rename("f", "g");
        fs::metadata(m.path("g")).unwrap();
    }),
    ("search rights removed by this client", |m| mode(m, "w", 0o700)),
    ("search rights removed by another client", |m| {
        m.foreign_setattr("w", &SetAttr { mode: Some(0o700), ..Default::default() });
        let fh = m.fh("w");
        m.rt.block_on(m.gate.expire(&fh));
        fs::metadata(m.path("w")).unwrap();
    }),
    ("the withdrawal of a directory's lease", |m| {
        for dir in ["w", "w/deep", "w/mp", ""] {
            let fh = m.fh(dir);
            m.rt.block_on(m.gate.revoke(Some(&fh)));
        }
    }),
    ("the withdrawal of all leases", |m| {
        let fh = m.fh("w/file");
        m.rt.block_on(m.gate.revoke(Some(&fh)));
        m.rt.block_on(m.gate.revoke(None));
    }),
    ("another frontend", |m| {
        let file = m.fh("w/file");
        for (dir, last) in [("w", "mp"), ("w", "deep"), ("w", "file"), ("", "w")] {
            invalidator(m, &[touched(m, dir, last, None)]);
        }
        invalidator(m, &[Touched::Contents(file)]);
    }),
    ("a server that fails", |m| {
        for errno in [libc::EIO, libc::EACCES, libc::ESTALE, libc::ETIMEDOUT] {
            m.gate.fail("walk", errno);
            pause(150);
            POINTS.iter().for_each(|p| drop(fs::metadata(m.path(p))));
            m.gate.fail("walk", 0);
        }
    }),
    ("a user without rights", |m| {
        mode(m, "w", 0o700);
        let out = as_user(&m.dir, 5001, 5001, &[], "stat $M/w/mp $M/w/deep $M/w/deep/er/mp $M/w/file");
        assert!(!out.status.success() && out.stdout.is_empty(), "{out:?}");
    }),
    ("a listing", |m| {
        for dir in ["", "w", "w/deep", "w/deep/er"] {
            fs::read_dir(m.path(dir)).unwrap().for_each(|e| drop(e.unwrap().metadata()));
        }
    }),
];

fn prepare(m: &Mount) {
    for dir in ["w/mp", "w/deep/er/mp"] {
        fs::create_dir_all(m.path(dir)).unwrap();
    }
    for file in ["w/file", "w/a", "f"] {
        fs::write(m.path(file), b"x").unwrap();
    }
}

fn sh(m: &Mount, command: &str) -> Command {
    let mut c = Command::new("sh");
    c.args(["-ec", command]).env("M", &m.dir).current_dir("/");
    c
}

/// Shell commands that mount a file system on each mount point.
fn mount_all() -> String {
    let point = |p: &&str| match *p {
        "w/file" => format!("mount --bind /etc/passwd $M/{p}; "),
        p => format!("mount -t tmpfs t $M/{p}; "),
    };
    POINTS.iter().map(point).collect()
}

/// Mounts inside the mount stay after each event that invalidates names. The names of their path
/// are valid for the rest of their time, and are looked up again after it.
/// Promise: 12a
#[test]
fn inner_mounts_survive_invalidation() {
    for (what, doubt) in DOUBTS {
        let Some(m) = mounted_with(100, |c| c.source = what.into()) else { return };
        prepare(&m);
        let own = fs::metadata(&m.dir).unwrap().dev();
        assert!(sh(&m, &mount_all()).status().unwrap().success());
        doubt(&m);
        for _ in 0..3 {
            pause(60);
            for p in POINTS {
                let there = fs::metadata(m.path(p)).unwrap_or_else(|e| panic!("{what}: {p}: {e}"));
                assert_ne!(there.dev(), own, "{what}: {p} has lost its mount");
            }
        }
        for p in POINTS {
            assert!(Command::new("umount").arg(m.path(p)).status().unwrap().success(), "{what}: {p}");
        }
        m.end();
    }
}

/// A program in its own mount namespace with mounts inside the mount.
fn container(m: &Mount) -> Child {
    let check = POINTS.map(|p| format!("mountpoint -q $M/{p}; ")).concat().replace(
        "mountpoint -q $M/w/file",
        "grep -q \" $M/w/file \" /proc/self/mountinfo; grep -q root $M/w/file",
    );
    let script = format!("{}echo ready; read go; {check}echo there; read go", mount_all());
    let mut c = Command::new("unshare");
    c.args(["-m", "sh", "-ec", &script]).env("M", &m.dir).current_dir("/");
    c.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Mounts in another mount namespace, which are not visible in this one, stay too.
/// Promise: 12a
#[test]
fn mounts_in_other_namespaces_survive() {
    for (what, doubt) in DOUBTS {
        if what == "a user without rights" || what == "a server that fails" {
            continue;
        }
        let Some(m) = mounted(100) else { return };
        prepare(&m);
        let mut container = container(&m);
        let mut out = BufReader::new(container.stdout.take().unwrap()).lines();
        assert_eq!(out.next().unwrap().unwrap(), "ready");
        doubt(&m);
        pause(150);
        let mut go = container.stdin.take().unwrap();
        go.write_all(b"go\n").unwrap();
        assert_eq!(out.next().and_then(Result::ok).as_deref(), Some("there"), "{what}");
        drop(go);
        container.wait().unwrap();
        // The namespace and its copy of the mount end a short time after its last process.
        m.end();
    }
}

/// Without mounts inside, all names are invalidated at once. With a mount, only the names of the
/// directory are.
#[test]
fn withdrawn_names_are_looked_up_again() {
    for inside in [false, true] {
        let Some(m) = mounted(600_000) else { return };
        prepare(&m);
        if inside {
            assert!(sh(&m, "mount -t tmpfs t $M/w/mp").status().unwrap().success());
        }
        let look = || drop((fs::metadata(m.path("w/a")), fs::metadata(m.path("w/none"))));
        look();
        let before = m.requests("LOOKUP");
        look();
        let absent_ones = m.requests("LOOKUP") - before;
        let fh = m.fh("w");
        m.rt.block_on(m.gate.revoke(Some(&fh)));
        eventually("the name is looked up again", || {
            let before = m.requests("LOOKUP");
            look();
            m.requests("LOOKUP") > before + absent_ones || absent_ones > 0
        });
        if inside {
            assert!(sh(&m, "umount $M/w/mp").status().unwrap().success());
        }
        m.end();
    }
}
