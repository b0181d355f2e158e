//! The server decides rights by the caller's user, group and supplementary groups. That also holds
//! for names in the kernel's cache.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Mount, as_user, eventually, mounted, mounted_with, user_can};
use hither_vfs::SetAttr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::sync::atomic::{AtomicU32, Ordering};

const A: u32 = 5001;
const B: u32 = 5002;

fn mode(m: &Mount, path: &str, mode: u32) {
    fs::set_permissions(m.path(path), fs::Permissions::from_mode(mode)).unwrap();
}

/// The server gets the caller's supplementary groups.
/// Promise: 19
#[test]
fn supplementary_groups_reach_server() {
    let Some(m) = mounted(1000) else { return };
    fs::write(m.path("f"), b"secret").unwrap();
    chown(m.path("f"), Some(A), Some(7007)).unwrap();
    mode(&m, "f", 0o640);
    assert!(user_can(&m.dir, A, A, &[], "cat $M/f"));
    assert!(!user_can(&m.dir, B, B, &[], "cat $M/f"));
    assert!(user_can(&m.dir, B, B, &[10, 12, 7007], "cat $M/f"));
    let cred = m.gate.last_cred();
    assert_eq!((cred.uid, cred.gid, &cred.groups[..]), (B, B, &[10, 12, 7007][..]));
    assert!(user_can(&m.dir, B, 7007, &[], "cat $M/f"));
    assert!(!user_can(&m.dir, B, B, &[7007], "echo > $M/f"));
    m.end();
}

/// Names that the owner of a private directory has looked up are not answered to other users.
/// Promise: 20
#[test]
fn private_names_stay_private() {
    let Some(m) = mounted(600_000) else { return };
    fs::create_dir_all(m.path("d/sub")).unwrap();
    fs::write(m.path("d/sub/f"), b"x").unwrap();
    chown(m.path("d"), Some(A), Some(A)).unwrap();
    mode(&m, "d", 0o700);
    // The owner's lookups leave existing and absent names in the kernel.
    assert!(user_can(&m.dir, A, A, &[], "stat $M/d/sub/f && ! stat $M/d/none"));
    let denied = as_user(&m.dir, B, B, &[], "stat $M/d/sub/f; stat $M/d/none; stat $M/d/sub; ls $M/d");
    let text = String::from_utf8_lossy(&denied.stderr).into_owned();
    assert_eq!(text.matches("Permission denied").count(), 4, "{text}");
    m.end();
}

/// A name that moves into a private directory is not answered to other users, whether its own
/// directory was searchable by them or not.
/// Promise: 20
#[test]
fn moved_names_become_private() {
    let Some(m) = mounted(600_000) else { return };
    fs::create_dir(m.path("private")).unwrap();
    chown(m.path("private"), Some(A), Some(A)).unwrap();
    mode(&m, "private", 0o700);
    for (name, exchanged) in [("file", false), ("dir", false), ("file2", true), ("dir2", true)] {
        let make = |path: &str| {
            if path.contains("dir") {
                fs::create_dir(m.path(path)).unwrap();
                fs::write(m.path(&format!("{path}/f")), b"x").unwrap();
            } else {
                fs::write(m.path(path), b"x").unwrap();
            }
        };
        make(name);
        let (moved, below) = (format!("private/{name}"), if name.contains("dir") { "/f" } else { "" });
        assert!(user_can(&m.dir, B, B, &[], &format!("cat $M/{name}{below}")));
        if exchanged {
            make(&moved);
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            renameat_with(CWD, m.path(name), CWD, m.path(&moved), RenameFlags::EXCHANGE).unwrap();
            assert!(user_can(&m.dir, B, B, &[], &format!("cat $M/{name}{below}")));
        } else {
            fs::rename(m.path(name), m.path(&moved)).unwrap();
        }
        for call in ["stat", "cat", "ls"] {
            let command = format!("{call} $M/{moved}{below}");
            assert!(!user_can(&m.dir, B, B, &[], &command), "{command}, exchanged: {exchanged}");
        }
    }
    m.end();
}

/// chmod(2) that removes search rights takes effect at once for cached names.
/// Promise: 20
#[test]
fn lost_search_right_applies_at_once() {
    let Some(m) = mounted(600_000) else { return };
    fs::create_dir_all(m.path("d/sub")).unwrap();
    fs::write(m.path("d/sub/f"), b"x").unwrap();
    chown(m.path("d"), Some(A), Some(A)).unwrap();
    mode(&m, "d", 0o755);
    assert!(user_can(&m.dir, B, B, &[], "stat $M/d/sub/f && ! stat $M/d/none"));
    let before = m.requests("LOOKUP");
    assert!(user_can(&m.dir, B, B, &[], "stat $M/d/sub/f && ! stat $M/d/none"));
    assert_eq!(m.requests("LOOKUP"), before, "names that all users may look up are cached");
    mode(&m, "d", 0o700);
    assert!(!user_can(&m.dir, B, B, &[], "stat $M/d/sub/f"));
    let none = as_user(&m.dir, B, B, &[], "stat $M/d/none");
    assert!(String::from_utf8_lossy(&none.stderr).contains("Permission denied"));
    mode(&m, "d", 0o755);
    assert!(user_can(&m.dir, B, B, &[], "stat $M/d/sub/f"));
    m.end();
}

/// Another client's chmod(2) takes effect when the attributes expire.
#[test]
fn foreign_chmod_applies_after_expiry() {
    let Some(m) = mounted(300) else { return };
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d/f"), b"x").unwrap();
    mode(&m, "d", 0o755);
    assert!(user_can(&m.dir, B, B, &[], "cat $M/d/f"));
    m.foreign_setattr("d", &SetAttr { mode: Some(0o700), ..Default::default() });
    eventually("the mode is seen", || !user_can(&m.dir, B, B, &[], "cat $M/d/f"));
    m.end();
}

/// access(2), chdir(2) and opendir(3) ask the server for the rights.
#[test]
fn access_and_chdir_ask_server() {
    let Some(m) = mounted(60_000) else { return };
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("f"), b"x").unwrap();
    mode(&m, "d", 0o711);
    mode(&m, "f", 0o604);
    assert!(user_can(&m.dir, B, B, &[], "cd $M/d && test -r $M/f && ! test -w $M/f && ! test -x $M/f"));
    assert!(!user_can(&m.dir, B, B, &[], "ls $M/d"));
    mode(&m, "d", 0o744);
    assert!(user_can(&m.dir, B, B, &[], "ls $M/d && ! cd $M/d"));
    m.end();
}

/// An open file keeps the identity of its opener in another user's process.
/// Promise: 20
#[test]
fn open_file_keeps_opener_rights() {
    let Some(m) = mounted(1000) else { return };
    fs::write(m.path("f"), b"before\n").unwrap();
    mode(&m, "f", 0o600);
    let f = fs::OpenOptions::new().append(true).open(m.path("f")).unwrap();
    let mut child = std::process::Command::new("setpriv");
    child.args(["--reuid=5002", "--regid=5002", "--clear-groups", "--", "echo", "after"]).stdout(f);
    assert!(child.status().unwrap().success());
    drop(child);
    assert!(fs::read_to_string(m.path("f")).unwrap().ends_with("after\n"));
    m.end();
}

/// Executing a file needs only the right to execute.
#[test]
fn exec_needs_only_execute_right() {
    let Some(m) = mounted(1000) else { return };
    // Not written by this process, because a child of another test would have the file open for
    // writing until its exec.
    m.foreign_write("true", 0, &fs::read("/bin/true").unwrap());
    mode(&m, "true", 0o644);
    assert!(!user_can(&m.dir, B, B, &[], "$M/true"));
    mode(&m, "true", 0o711);
    assert!(user_can(&m.dir, B, B, &[], "$M/true"));
    assert!(!user_can(&m.dir, B, B, &[], "cat $M/true > /dev/null"));
    m.end();
}

/// A server may let the owner of a file set its length independent of the mode. So a caller without
/// the right to write must be refused before the request.
/// Promise: 19
#[test]
fn read_only_owner_cannot_truncate() {
    let Some(m) = mounted(1000) else { return };
    fs::write(m.path("f"), b"text").unwrap();
    chown(m.path("f"), Some(A), Some(A)).unwrap();
    mode(&m, "f", 0o444);
    let before = m.gate.calls("setattr");
    assert!(!user_can(&m.dir, A, A, &[], "perl -e 'truncate(\"$ENV{M}/f\", 0) or exit 1'"));
    assert!(!user_can(&m.dir, A, A, &[], "perl -e 'sysopen(F, \"$ENV{M}/f\", 01000) or exit 1'"));
    assert_eq!(m.gate.calls("setattr"), before, "no SETATTR was sent");
    assert_eq!(m.foreign_read("f"), b"text");
    mode(&m, "f", 0o644);
    assert!(user_can(&m.dir, A, A, &[], "perl -e 'truncate(\"$ENV{M}/f\", 2) or exit 1'"));
    assert_eq!(m.foreign_read("f"), b"te");
    // A caller that has just opened the file for writing needs no check.
    let before = m.gate.calls("access");
    assert!(user_can(&m.dir, A, A, &[], "echo text > $M/f"));
    assert_eq!((m.gate.calls("access"), &m.foreign_read("f")[..]), (before, &b"text\n"[..]));
    // A descriptor that was opened for writing is sufficient.
    assert!(user_can(
        &m.dir,
        A,
        A,
        &[],
        "perl -e 'open(F, \"+<\", \"$ENV{M}/f\") or exit 1; chmod(0444, F); truncate(F, 1) or exit 1'"
    ));
    assert_eq!(m.foreign_read("f"), b"t");
    m.end();
}

/// A write or truncation by another user clears set-id bits.
#[test]
fn foreign_write_clears_set_id() {
    let Some(m) = mounted(60_000) else { return };
    fs::write(m.path("f"), b"x").unwrap();
    chown(m.path("f"), Some(A), Some(A)).unwrap();
    mode(&m, "f", 0o6777);
    assert!(user_can(&m.dir, B, B, &[], "echo y >> $M/f"));
    let seen = fs::metadata(m.path("f")).unwrap().permissions().mode() & 0o7777;
    assert_eq!(seen, 0o777);
    mode(&m, "f", 0o6777);
    assert!(user_can(&m.dir, B, B, &[], "truncate -s 0 $M/f"));
    assert_eq!(fs::metadata(m.path("f")).unwrap().permissions().mode() & 0o7777, 0o777);
    m.end();
}

/// A program that prints its user. It is set-user-ID of the superuser and writable for group `B`.
fn set_id_program(m: &Mount) {
    // Not written by this process, because a child of another test would have the file open for
    // writing until its exec.
    m.foreign_write("id", 0, &fs::read("/usr/bin/id").unwrap());
    chown(m.path("id"), Some(0), Some(B)).unwrap();
    mode(m, "id", 0o4775);
}

/// The user of the program when user `B` starts it.
fn runs_as(m: &Mount, how: &str) -> String {
    let out = as_user(&m.dir, B, B, &[], how);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if out.status.success() { text(&out.stdout) } else { text(&out.stderr) }
}

/// The kernel takes the identity of a program from cached attributes. They are as fresh as the
/// open, for every kind of change and of start.
/// Promise: 19a
#[test]
fn set_id_program_has_fresh_rights() {
    let (user, other) = (B.to_string(), A.to_string());
    let set = SetAttr::default;
    let foreign = [
        (SetAttr { mode: Some(0o775), ..set() }, user.clone()),
        (SetAttr { uid: Some(A), mode: Some(0o4775), ..set() }, other),
        (SetAttr { mode: Some(0o4770), ..set() }, "0".to_owned()),
    ];
    for how in ["$M/id -u", "exec 3<$M/id; exec /proc/self/fd/3 -u"] {
        for (change, runs) in &foreign {
            let Some(m) = mounted(600_000) else { return };
            set_id_program(&m);
            assert_eq!(runs_as(&m, how), "0", "{how}");
            m.foreign_setattr("id", change);
            assert_eq!(runs_as(&m, how), *runs, "{how} after {change:?}");
            assert_eq!(runs_as(&m, how), *runs, "{how} after {change:?}");
            m.foreign_setattr("id", &SetAttr { uid: Some(0), mode: Some(0o4775), ..set() });
            assert_eq!(runs_as(&m, how), "0", "{how} after {change:?}");
            m.end();
        }
    }
}

/// A write by a user that may write the file and does not own it clears set-id bits for the next
/// start.
/// Promise: 19a
#[test]
fn local_write_clears_set_id() {
    let write =
        ["printf x >> $M/id", "truncate -s +1 $M/id", "dd if=/dev/zero of=$M/id bs=1 seek=90000 count=1"];
    for close_to_open in [true, false] {
        for write in write {
            let Some(m) = common::mounted_with(600_000, |c| c.close_to_open = close_to_open) else { return };
            set_id_program(&m);
            assert_eq!(runs_as(&m, "$M/id -u"), "0");
            assert!(user_can(&m.dir, B, B, &[], write), "{write}");
            assert_eq!(runs_as(&m, "$M/id -u"), B.to_string(), "{write}");
            m.end();
        }
    }
}

/// Programs without set-id bits are not checked again, and programs with such bits only after a
/// change.
/// Promise: 19a
#[test]
fn unchanged_programs_are_opened_once() {
    let Some(m) = mounted(600_000) else { return };
    set_id_program(&m);
    m.foreign_write("plain", 0, &fs::read("/usr/bin/id").unwrap());
    mode(&m, "plain", 0o755);
    for program in ["id", "plain"] {
        let run = || runs_as(&m, &format!("$M/{program} -u"));
        run();
        let count = || ["getattr", "walk", "open"].map(|call| m.gate.calls(call));
        let [getattr, walk, open] = count();
        run();
        assert_eq!(count(), [getattr, walk, open + 1], "{program}");
    }
    m.foreign_setattr("plain", &SetAttr { mode: Some(0o750), gid: Some(B), ..Default::default() });
    let before = m.gate.calls("open");
    runs_as(&m, "$M/plain -u");
    assert_eq!(m.gate.calls("open"), before + 1);
    m.end();
}

/// Switches on a protection of the machine for the mounts of this thread, by a bind mount over the
/// setting.
fn protect(name: &str, value: &str) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("hither-fuse-{}-{name}-{number}", std::process::id()));
    fs::write(&file, value).unwrap();
    let setting = format!("/proc/sys/fs/protected_{name}");
    let ok = std::process::Command::new("mount").arg("--bind").arg(&file).arg(setting).status().unwrap();
    assert!(ok.success());
    fs::remove_file(&file).unwrap();
}

/// In sticky directories that all users may write to, names of other users are protected. The
/// owners of link and directory are allowed. All names can be listed, read and removed as usual.
/// Promise: 19b
#[test]
fn sticky_directory_refuses_foreign_links() {
    let Some(m) = mounted(600_000) else { return };
    for name in ["symlinks", "regular", "fifos"] {
        protect(name, "1");
    }
    for (dir, bits) in [("tmp", 0o1777), ("open", 0o777), ("group", 0o1775)] {
        fs::create_dir(m.path(dir)).unwrap();
        chown(m.path(dir), Some(0), Some(A)).unwrap();
        mode(&m, dir, bits);
    }
    fs::write(m.path("target"), b"text").unwrap();
    for dir in ["tmp", "open", "group"] {
        let make = format!(
            "cd $M/{dir}; umask 0; ln -s ../target link; echo > file; mkfifo fifo; ln -s . dir; echo > file2"
        );
        assert!(user_can(&m.dir, A, A, &[], &make), "{dir}");
    }
    let uses = [
        "cat $M/tmp/link",
        "stat -L $M/tmp/link",
        "echo >> $M/tmp/file",
        "echo 1<>$M/tmp/fifo",
        "cd $M/tmp/dir",
    ];
    for used in uses {
        for again in 0..2 {
            assert!(!user_can(&m.dir, B, B, &[], used), "{used}");
            // These protections also hold for the superuser.
            assert!(!user_can(&m.dir, 0, 0, &[], used) || used.contains("1<>"), "{used}, {again}");
        }
        assert!(user_can(&m.dir, A, A, &[], used), "{used}");
        assert!(user_can(&m.dir, B, B, &[], &used.replace("tmp", "open")), "{used}");
        assert!(
            user_can(&m.dir, B, B, &[], &used.replace("tmp", "group")) || used.contains("echo"),
            "{used}"
        );
    }
    for free in [
        "stat $M/tmp/link $M/tmp/file $M/tmp/fifo",
        "readlink $M/tmp/link",
        "cat $M/tmp/file",
        "cat $M/tmp/dir/file",
        "ls -l $M/tmp",
    ] {
        assert!(user_can(&m.dir, B, B, &[], free), "{free}");
    }
    assert!(user_can(&m.dir, A, A, &[], "rm $M/tmp/link $M/tmp/file $M/tmp/fifo"));
    m.end();
}

/// The kernel does not check rights before it opens a FIFO or a device, or connects to a socket. So
/// the mount checks them.
/// Promise: 19b
#[test]
fn special_files_check_access() {
    let Some(m) = mounted(600_000) else { return };
    let mut server = std::process::Command::new("perl");
    server.args(["-e", "use IO::Socket::UNIX; chdir $ENV{M}; $s = IO::Socket::UNIX->new(Local => 'sock', Listen => 5) or die; sleep 1000"]);
    let mut server = server.env("M", &m.dir).spawn().unwrap();
    assert!(user_can(&m.dir, 0, 0, &[], "cd $M; mkfifo fifo; mknod null c 1 3"));
    eventually("the socket is there", || m.path("sock").symlink_metadata().is_ok());
    let connect =
        "perl -e 'use IO::Socket::UNIX; chdir $ENV{M}; IO::Socket::UNIX->new(Peer => \"sock\") or exit 1'";
    let uses =
        [("fifo", "exec 3<>$M/fifo"), ("null", "echo > $M/null"), ("null", "cat $M/null"), ("sock", connect)];
    for (file, used) in uses {
        for bits in [0o600, 0o644, 0o666] {
            mode(&m, file, bits);
            let can = bits == 0o666 || bits == 0o644 && used.starts_with("cat");
            assert_eq!(user_can(&m.dir, B, B, &[], used), can, "{used} {bits:o}");
            assert!(user_can(&m.dir, B, B, &[], &format!("stat $M/{file}; ls -l $M")), "{file}");
            assert!(user_can(&m.dir, 0, 0, &[], used), "{used}");
        }
    }
    server.kill().unwrap();
    server.wait().unwrap();
    m.end();
}

/// The protections hold for each of many calls side by side, with and without predicted lookups,
/// and on strict mounts. They hold from the chmod(2) on that makes the directory sticky, also for
/// cached names.
/// Promise: 19b
#[test]
fn protections_hold_for_each_call() {
    const TRIES: &str = r#"
        use Fcntl; my $n = 0;
        for (1..40) {
            $n++ if open(my $f, '<', "$ENV{M}/tmp/link");
            $n++ if sysopen(my $f, "$ENV{M}/tmp/file", O_WRONLY | O_CREAT);
            $n++ if sysopen(my $f, "$ENV{M}/fifo", O_RDWR);
            $n++ if sysopen(my $f, "$ENV{M}/null", O_WRONLY);
        }
        print "$n allowed\n"; exit($n > 0)"#;
    let modes = [(true, false), (false, false), (false, true)];
    for (number, (hints, strict)) in modes.into_iter().enumerate() {
        let validity_ms = if strict { 0 } else { 600_000 };
        let Some(m) = mounted_with(validity_ms, |config| {
            (config.hints, config.strict, config.close_to_open) = (hints, strict, !strict);
        }) else {
            return;
        };
        if number == 0 {
            ["symlinks", "regular", "fifos"].into_iter().for_each(|name| protect(name, "1"));
        }
        fs::create_dir(m.path("tmp")).unwrap();
        chown(m.path("tmp"), Some(0), Some(A)).unwrap();
        mode(&m, "tmp", 0o777);
        fs::write(m.path("target"), b"text").unwrap();
        let make = "cd $M/tmp; umask 0; ln -s ../target link; echo > file";
        assert!(user_can(&m.dir, A, A, &[], make));
        assert!(user_can(&m.dir, 0, 0, &[], "cd $M; mkfifo -m 644 fifo; mknod -m 644 null c 1 3"));
        let cached = "cat $M/tmp/link && echo >> $M/tmp/file";
        assert!(user_can(&m.dir, B, B, &[], cached), "before the directory is sticky");
        mode(&m, "tmp", 0o1777);
        let script = m.dir.join("tries.pl");
        fs::write(&script, TRIES).unwrap();
        std::thread::scope(|s| {
            for _ in 0..16 {
                s.spawn(|| {
                    let tried = as_user(&m.dir, B, B, &[], "perl $M/tries.pl");
                    assert!(tried.status.success(), "hints: {hints}, strict: {strict}: {tried:?}");
                });
            }
        });
        m.end();
    }
}

/// With protected hard links, a user without the right to read and write another user's file cannot
/// link it.
/// Promise: 19b
#[test]
fn unwritable_file_refuses_hard_link() {
    let Some(m) = mounted(600_000) else { return };
    if fs::read_to_string("/proc/sys/fs/protected_hardlinks").unwrap().trim() == "0" {
        return;
    }
    fs::create_dir(m.path("d")).unwrap();
    mode(&m, "d", 0o777);
    for (file, bits, can) in [("secret", 0o600, false), ("read", 0o644, false), ("open", 0o666, true)] {
        fs::write(m.path(file), b"x").unwrap();
        mode(&m, file, bits);
        assert_eq!(user_can(&m.dir, B, B, &[], &format!("ln $M/{file} $M/d/{file}")), can, "{file}");
        chown(m.path(file), Some(B), None).unwrap();
        assert!(user_can(&m.dir, B, B, &[], &format!("ln $M/{file} $M/d/own-{file}")), "{file}");
    }
    assert_eq!(m.gate.calls("link"), 4);
    m.end();
}

/// New files get the umask, and the group of a set-group-ID directory.
#[test]
fn new_file_follows_umask_and_group() {
    let Some(m) = mounted(1000) else { return };
    fs::create_dir(m.path("d")).unwrap();
    chown(m.path("d"), Some(A), Some(7007)).unwrap();
    mode(&m, "d", 0o2777);
    assert!(user_can(&m.dir, B, B, &[], "umask 027 && echo > $M/d/f && mkdir $M/d/e"));
    use std::os::unix::fs::MetadataExt;
    let (f, e) = (fs::metadata(m.path("d/f")).unwrap(), fs::metadata(m.path("d/e")).unwrap());
    assert_eq!((f.uid(), f.gid(), f.mode() & 0o7777), (B, 7007, 0o640));
    assert_eq!((e.gid(), e.mode() & 0o7777), (7007, 0o2750));
    m.end();
}

/// Only the owner of an entry in a sticky directory may remove or rename it.
#[test]
fn sticky_directories_protect_their_entries() {
    let Some(m) = mounted(1000) else { return };
    fs::create_dir(m.path("tmp")).unwrap();
    mode(&m, "tmp", 0o1777);
    assert!(user_can(&m.dir, A, A, &[], "echo > $M/tmp/a"));
    assert!(!user_can(&m.dir, B, B, &[], "rm -f $M/tmp/a"));
    assert!(!user_can(&m.dir, B, B, &[], "mv $M/tmp/a $M/tmp/b"));
    assert!(user_can(&m.dir, A, A, &[], "rm $M/tmp/a"));
    m.end();
}
