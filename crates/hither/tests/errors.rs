//! Every failure of a mount has its own clear line and the right exit code.
//!
//! Tests that need root run with `cargo test -p hither -- --include-ignored`, as in `make test`.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::{HITHER, hither, run, sh};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

/// A conflict with an unreadable description is named with its error, and the others are listed.
#[test]
fn unreadable_conflict_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("journal/0123/conflicts");
    let good = r#"{"version":1,"source":"s:/x","path":"a/b","fileid":1,"filehandle":"00","why":"it changed",
                   "first_s":1,"last_s":2,"ranges":[]}"#;
    for (name, about) in [("broken", "{"), ("good", good)] {
        std::fs::create_dir_all(kept.join(name)).unwrap();
        std::fs::write(kept.join(name).join("about.json"), about).unwrap();
        std::fs::write(kept.join(name).join("data"), "x").unwrap();
    }
    let place = dir.path().to_str().unwrap();
    let said = hither(&["conflicts", "ls", place]);
    assert!(
        said.code == 2 && said.out.contains("good  a/b") && said.out.contains("broken  (unreadable: "),
        "{said:?}"
    );
    assert!(said.err.contains("conflicts/broken/about.json: "), "{said:?}");
    let said = hither(&["conflicts", "ls", "--json", place]);
    let all: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert!(said.code == 2 && all["conflicts"][0]["error"].is_string(), "{said:?}");
    assert_eq!(all["conflicts"][1]["path"], "a/b");
    hither(&["conflicts", "drop", place, "broken"]).ok();
    assert!(!kept.join("broken").exists());
    hither(&["conflicts", "ls", place]).ok();
}

#[test]
fn wrong_usage() {
    for (words, line) in [
        (
            &["mount", "-o", "acregmn=3", "s:/x", "/mnt"][..],
            "hither: unknown option 'acregmn', did you mean 'acregmin'?",
        ),
        (
            &["mount", "-o", "soft", "-o", "ro,hard", "s:/x", "/mnt"],
            "hither: options 'soft' and 'hard' contradict each other: keep one",
        ),
        (
            &["mount", "-o", "vers=4.0", "s:/x", "/mnt"],
            "hither: option 'vers=4.0': NFSv4.0 is not supported: use vers=4.1 or vers=4.2",
        ),
        (
            &["mount", "server", "/mnt"],
            "hither: 'server' names no server: write SERVER:/PATH, for example files.example.org:/export",
        ),
        (&["mount", "s:x", "/mnt"], "hither: the exported path 'x' is not absolute: write s:/x"),
        (
            &["mount", "::1:/x", "/mnt"],
            "hither: '::1:/x' looks like an IPv6 address: write it in brackets, [ADDRESS]:/PATH",
        ),
        (
            &["mount", "s:/x"],
            "hither: the following required arguments were not provided: <DIR>; see `hither --help`",
        ),
        (
            &["mont"],
            "hither: unrecognized subcommand 'mont'; some similar subcommands exist: 'man', 'umount', 'mount'; see `hither --help`",
        ),
        (
            &["stat", "/proc"],
            "hither: /proc is not in a mount of hither: `findmnt -t fuse.hither` lists them",
        ),
        (&["stat", "/none"], "hither: /none: no such directory"),
    ] {
        hither(words).fails(1, line);
    }
    hither(&["umount", "/proc"])
        .fails(32, "hither: /proc is a mount of type proc, not of hither: use umount(8)");
    hither(&["umount", "/none"]).fails(32, "hither: /none: no such directory");
}

/// The mount helpers print messages under their own names.
#[test]
fn mount_helpers_report_faults() {
    let dir = tempfile::tempdir().unwrap();
    let script =
        format!("cd {}; ln -sf $HITHER mount.hither; ln -sf $HITHER umount.hither;", dir.path().display());
    sh(&format!("{script} ./mount.hither s:/x /mnt -o harrd"))
        .fails(1, "mount.hither: unknown option 'harrd', did you mean 'hard'?");
    sh(&format!("{script} ./mount.hither s:/x")).fails(1, "mount.hither: a source and a directory are needed; usage: mount.hither SERVER:/PATH DIR [-sfnv] [-N NS] [-o OPTIONS]");
    sh(&format!("{script} ./umount.hither /none")).fails(32, "umount.hither: /none: no such directory");
}

/// Standard output has a line for each fault, and standard error their number. The exit status
/// serves scripts.
#[test]
fn faults_of_configuration() {
    let said = hither(&["config", "check", "-o", "vers=4.2,sofft"]);
    assert_eq!(said.out, "-o: unknown option 'sofft', did you mean 'soft'?\n");
    said.fails(3, "hither: 1 fault found");
    let said = hither(&["config", "check", "-o", "vers=4.2,soft"]).ok();
    assert_eq!(said.out, "no faults in 2 options\n");
    let json = hither(&["config", "check", "--json", "-o", "vers=4.2,sofft"]).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["checked"]["findings"][0]["what"], "unknown option 'sofft', did you mean 'soft'?");
    let said = hither(&["config", "check", "--fstab", "/proc/none"]);
    assert_eq!(said.out, "/proc/none: cannot be read: No such file or directory (os error 2)\n");
    said.fails(1, "hither: 1 file or directory could not be read, so there may be more faults");
}

#[test]
fn help_and_version() {
    assert!(hither(&["--version"]).ok().out.starts_with("hither 0."));
    let help = hither(&["mount", "--help"]).ok().out;
    for part in ["When the server does not answer:", "timeo=TENTHS", "[default: 600]", "--log <FILE>"] {
        assert!(help.contains(part), "{part}: {help}");
    }
    assert_eq!(hither(&["help", "mount"]).ok().out, help);
}

/// A user other than root gets a message that root is needed, after the check of the options.
#[test]
#[ignore = "becomes nobody, which needs root"]
fn not_root() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path().display();
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups --";
    let script = format!("chmod 755 {d}; cp $HITHER {d}/hither; exec {nobody} {d}/hither");
    sh(&format!("{script} mount s:/x /mnt")).fails(1, "hither: mounting needs root: run it with sudo");
    sh(&format!("{script} mount -o harrd s:/x /mnt"))
        .fails(1, "hither: unknown option 'harrd', did you mean 'hard'?");
}

#[test]
#[ignore = "needs root"]
fn no_fuse_device() {
    let line = "hither: there is no /dev/fuse: load the module with `modprobe fuse`, or give the container the \
                device (docker run --device /dev/fuse)";
    sh("exec unshare -m sh -c 'mount -t tmpfs none /dev; exec $HITHER mount s:/x /mnt'").fails(2, line);
}

#[test]
#[ignore = "needs root"]
fn wrong_mount_points() {
    let dir = tempfile::tempdir().unwrap();
    let none = dir.path().join("none");
    let n = none.display();
    run(Command::new(HITHER).args(["mount", "s:/x"]).arg(&none))
        .fails(32, &format!("hither: mount point {n} does not exist: create it (mkdir -p {n})"));
    std::fs::write(&none, "").unwrap();
    run(Command::new(HITHER).args(["mount", "s:/x"]).arg(&none))
        .fails(32, &format!("hither: mount point {n} is not a directory"));
}

/// Runs `mount -o retry=0,...` of 127.0.0.1:/x. The mount point is a new directory.
fn attempt(options: &str) -> common::Said {
    let dir = tempfile::tempdir().unwrap();
    let options = format!("retry=0,{options}");
    run(Command::new(HITHER).args(["mount", "-o", &options, "127.0.0.1:/x"]).arg(dir.path()))
}

#[test]
#[ignore = "needs root"]
fn no_such_host() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path().display();
    // The script has no name server, so the lookup fails at once.
    let script = format!(
        "echo 'hosts: files' > {d}/nss; mkdir {d}/mnt; \
         exec unshare -m sh -c 'mount --bind {d}/nss /etc/nsswitch.conf; exec $HITHER mount no.invalid:/x {d}/mnt'"
    );
    sh(&script).fails(32, "hither: no such host 'no.invalid'");
}

/// A port where no process listens. It is in a private network, so no other process can take it.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
#[ignore = "needs root"]
fn refused() {
    common::own_network_namespace();
    let port = free_port();
    attempt(&format!("vers=4.2,port={port}")).fails(
        32,
        &format!("hither: 127.0.0.1: NFS at 127.0.0.1:{port} refuses connections; is it running, and is the port right (port=)?"),
    );
    attempt(&format!("vers=3,mountport={port},port={port}")).fails(
        32,
        &format!("hither: 127.0.0.1: mountd (MOUNT v3) at 127.0.0.1:{port} refuses connections; is it running, and is the port right (mountport=)?"),
    );
}

/// With the default `retry`, the user gets the message at once, and the command goes on trying.
#[test]
#[ignore = "needs root"]
fn waiting_is_told() {
    common::own_network_namespace();
    let dir = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut mount = Command::new(HITHER)
        .args(["mount", "-o", &format!("vers=4.1,port={port}"), "127.0.0.1:/x"])
        .arg(dir.path())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let (mut said, mut line) = (BufReader::new(mount.stderr.take().unwrap()), String::new());
    said.read_line(&mut line).unwrap();
    assert!(line.ends_with("; trying again for 2 minutes (retry=0 tries once)\n"), "{line}");
    common::pause(2000);
    assert!(mount.try_wait().unwrap().is_none(), "the command goes on trying");
    run(Command::new("kill").args(["-TERM", &mount.id().to_string()])).ok();
    mount.wait().unwrap();
    common::wait_for("the daemon ends with its command", 60, || common::daemons(dir.path()).is_empty());
    line.clear();
    said.read_to_string(&mut line).unwrap();
    assert_eq!(line, "", "the message appears once");
}

/// Serves connections and answers each call with `reply(xid)`.
fn peer(reply: impl Fn([u8; 4]) -> Vec<u8> + Send + Clone + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, reply) = (stream.unwrap(), reply.clone());
            std::thread::spawn(move || {
                let mut call = [0; 4096];
                while let Ok(n) = stream.read(&mut call) {
                    if n < 8 || stream.write_all(&reply([call[4], call[5], call[6], call[7]])).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// An RPC reply of these words after the xid, as one record.
fn record(xid: [u8; 4], words: &[u32]) -> Vec<u8> {
    let len = 4 + 4 * words.len() as u32;
    let mut out = (0x8000_0000 | len).to_be_bytes().to_vec();
    out.extend(xid);
    out.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    out
}

#[test]
#[ignore = "needs root"]
fn wrong_version() {
    // Accepted, PROG_MISMATCH, 2 to 3 (RFC 5531 section 9).
    let port = peer(|xid| record(xid, &[1, 0, 0, 0, 2, 2, 3]));
    attempt(&format!("vers=4.2,port={port}")).fails(
        32,
        "hither: 127.0.0.1: the server does not offer NFS version 4.2 (it offers 2 to 3); try another vers=, or none to negotiate",
    );
    // vers=4 tries both minor versions and names the version that was refused last.
    let said = attempt(&format!("vers=4,port={port}"));
    assert!(said.err.contains("does not offer NFS version 4.1"), "{}", said.err);
}

#[test]
#[ignore = "needs root"]
fn no_nfs_there() {
    // Accepted, PROG_UNAVAIL.
    let port = peer(|xid| record(xid, &[1, 0, 0, 0, 1]));
    attempt(&format!("vers=4.1,port={port}")).fails(
        32,
        "hither: 127.0.0.1: the server does not offer NFS version 4.1; try another vers=, or none to negotiate",
    );
}

#[test]
#[ignore = "needs root"]
fn rejected_credential() {
    // Denied, AUTH_ERROR, AUTH_TOOWEAK.
    let port = peer(|xid| record(xid, &[1, 1, 1, 5]));
    attempt(&format!("vers=4.2,port={port}")).fails(
        32,
        "hither: 127.0.0.1:/x: access denied by the server; the server requires stronger authentication (sec=), or a privileged source port (resvport)",
    );
}

/// The peer is no NFS server. The mount fails in bounded time with one line, and leaves nothing
/// behind.
#[test]
#[ignore = "needs root"]
fn garbage() {
    let port = peer(|_| b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec());
    let said = attempt(&format!("vers=3,mountport={port},port={port}"));
    assert_eq!(said.code, 32, "{said:?}");
    assert_eq!(said.err.lines().count(), 1, "{said:?}");
    assert!(
        said.err.starts_with(&format!("hither: 127.0.0.1: mountd (MOUNT v3) at 127.0.0.1:{port} does not")),
        "{said:?}"
    );
}

/// The command reports a log file that cannot be opened. The message is not lost with the daemon.
#[test]
#[ignore = "needs root"]
fn wrong_log() {
    let dir = tempfile::tempdir().unwrap();
    let log: PathBuf = dir.path().join("none/log");
    let said =
        run(Command::new(HITHER).args(["mount", "--log"]).arg(&log).arg("127.0.0.1:/x").arg(dir.path()));
    said.fails(1, &format!("hither: log file {}: No such file or directory (os error 2)", log.display()));
}
