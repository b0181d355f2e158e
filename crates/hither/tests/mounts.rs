//! Real mounts of a real server: nfs-ganesha in its own name spaces.
//!
//! The tests need root, nfs-ganesha and rpcbind: `cargo test -p hither -- --include-ignored`.
//! `make test` installs them and runs the tests.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::{Ganesha, HITHER, Said, daemons, has_ended, is_mounted, run, wait_for};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::Command;

fn umount(words: &[&str], dir: &Path) -> Said {
    run(Command::new(HITHER).arg("umount").args(words).arg(dir))
}

fn stat(words: &[&str], dir: &Path) -> Said {
    run(Command::new(HITHER).arg("stat").args(words).arg(dir))
}

fn json(dir: &Path) -> serde_json::Value {
    serde_json::from_str(&stat(&["--json"], dir).ok().out).unwrap()
}

/// Number of calls of one operation in the report of `hither stat`.
fn calls(report: &serde_json::Value, name: &str) -> u64 {
    let operations = report["operations"].as_array().unwrap();
    operations.iter().find(|op| op["name"] == name).map_or(0, |op| op["calls"].as_u64().unwrap())
}

/// For each version, written data is on the server when umount returns. The counters show it. No
/// daemon and no socket is left.
/// Promise: 27
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn a_mount_from_beginning_to_end() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    let contents: Vec<u8> = (0..3_000_000_u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    for (options, version) in
        [("vers=4.2", "4.2"), ("vers=4.1", "4.1"), ("vers=3", "3"), ("rw", "4.2"), ("vers=4", "4.2")]
    {
        ganesha.mount(options, &mnt).ok();
        assert!(is_mounted(&mnt));
        // Each mount uses its own file name. The server caches names for a while after they were
        // removed locally.
        let file = format!("file with {options}");
        std::fs::write(mnt.join(&file), &contents).unwrap();
        assert!(std::fs::read(mnt.join(&file)).unwrap() == contents);
        let report = json(&mnt);
        assert_eq!(report["mount"]["nfs_version"], version);
        assert!(calls(&report, "WRITE") >= 3, "{report}");
        assert_eq!(report["fuse"]["CREATE"], 1, "{report}");
        umount(&[], &mnt).ok();
        assert!(!is_mounted(&mnt));
        assert!(daemons(&mnt).is_empty());
        assert!(std::fs::read(ganesha.export(&file)).unwrap() == contents);
    }
}

#[test]
#[ignore = "needs root and nfs-ganesha"]
fn server_failures_are_reported() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    std::fs::write(ganesha.export("file"), "").unwrap();
    for version in ["4.2", "4.1", "3"] {
        let attempt = |path: &str| {
            let options = format!("retry=0,vers={version}");
            let mut command = ganesha.inside(HITHER);
            run(command.args(["mount", "-o", &options, &format!("127.0.0.1:{path}")]).arg(&mnt))
        };
        for (path, part) in [
            ("/none", "127.0.0.1:/none: no such export"),
            ("/export/none", "127.0.0.1:/export/none: no such export"),
            ("/export/file", "127.0.0.1:/export/file: not a directory"),
        ] {
            // For every fault below an export, nfs-ganesha's mountd (NFSv3) answers MNT3ERR_ACCES.
            let denied = format!("127.0.0.1:{path}: access denied");
            let part = if version == "3" && path.starts_with("/export/") { &denied } else { part };
            let said = attempt(path);
            assert_eq!(said.code, 32, "vers={version} {path}: {said:?}");
            assert!(said.err.starts_with(&format!("hither: {part}")), "vers={version} {path}: {said:?}");
            assert_eq!(said.err.lines().count(), 1);
        }
        let said = attempt("/denied");
        assert_eq!(said.code, 32, "{said:?}");
        let denied = "hither: 127.0.0.1:/denied: access denied by the server";
        let hidden = "hither: 127.0.0.1:/denied: no such export";
        assert!(said.err.starts_with(denied) || said.err.starts_with(hidden), "vers={version}: {said:?}");
    }
}

#[test]
#[ignore = "needs root and nfs-ganesha"]
fn one_mount_a_directory() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    ganesha.mount("vers=4.2", &mnt).ok();
    let d = mnt.display();
    ganesha.mount("vers=4.2", &mnt).fails(
        32,
        &format!("hither: {d} is already mounted: 127.0.0.1:/export is mounted there (hither umount {d})"),
    );
    // Flags change in place. The message about a busy mount names its users.
    ganesha.mount("remount,ro", &mnt).ok();
    assert_eq!(std::fs::write(mnt.join("x"), "").unwrap_err().raw_os_error(), Some(30));
    let mut user = Command::new("sleep").arg("1000").current_dir(&mnt).spawn().unwrap();
    umount(&[], &mnt)
        .fails(32, &format!("hither: {d} is busy, used by sleep({}): end them, or use --lazy", user.id()));
    umount(&["--lazy"], &mnt).ok();
    assert!(!is_mounted(&mnt));
    user.kill().unwrap();
    user.wait().unwrap();
    wait_for("the daemon ends after its last user", 60, || daemons(&mnt).is_empty());
}

/// The dead mount of a killed daemon does not block the next mount. This holds for repeated kills
/// and while programs are in the dead mount. A served mount stays.
/// Promise: 26
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn mounts_over_a_dead_mount() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    let d = mnt.display().to_string();
    for version in ["4.2", "3"] {
        ganesha.mount(&format!("vers={version}"), &mnt).ok();
        let mut user = Command::new("sleep").arg("1000").current_dir(&mnt).spawn().unwrap();
        for pid in daemons(&mnt) {
            run(Command::new("kill").args(["-9", &pid.to_string()])).ok();
            wait_for("the daemon has ended", 60, || has_ended(pid));
        }
        assert!(is_mounted(&mnt));
        let end = ganesha.mount(&format!("vers={version}"), &mnt).ok();
        assert_eq!(end.err, format!("hither: {d}: detached the mount of a daemon that has gone\n"));
        std::fs::write(mnt.join("file"), version).unwrap();
        ganesha.mount(&format!("vers={version}"), &mnt).fails(
            32,
            &format!(
                "hither: {d} is already mounted: 127.0.0.1:/export is mounted there (hither umount {d})"
            ),
        );
        assert_eq!(std::fs::read_to_string(mnt.join("file")).unwrap(), version);
        umount(&[], &mnt).ok();
        assert!(!is_mounted(&mnt));
        user.kill().unwrap();
        user.wait().unwrap();
    }
}

/// A bind mount of a part of the mount is unmounted at once without a message, and the mount stays.
/// When the mount itself is unmounted before its copy, umount reports the copy.
/// Promise: 27
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn bind_mounts_come_off_alone() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    ganesha.mount("vers=4.2", &mnt).ok();
    for dir in ["part", "inside"] {
        std::fs::create_dir(mnt.join(dir)).unwrap();
    }
    let outside = ganesha.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    for point in [&mnt.join("inside"), &outside] {
        run(Command::new("mount").arg("--bind").arg(mnt.join("part")).arg(point)).ok();
        assert_eq!(umount(&["--timeout=60"], point).ok().err, "");
        assert!(!is_mounted(point) && is_mounted(&mnt));
        std::fs::write(mnt.join("part/file"), "still served").unwrap();
    }
    run(Command::new("mount").arg("--bind").arg(&mnt).arg(&outside)).ok();
    let end = umount(&[], &mnt).ok();
    let (d, o) = (mnt.display(), outside.display());
    assert_eq!(end.err, format!("hither: {d} is unmounted here and still mounted at {o}\n"));
    assert_eq!(umount(&[], &outside).ok().err, "");
    assert!(daemons(&mnt).is_empty());
}

/// umount does not wait for a copy of the mount in another mount name space. The copy stays usable.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn umount_leaves_other_namespace() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    ganesha.mount("vers=4.2", &mnt).ok();
    std::fs::write(mnt.join("file"), "still here").unwrap();
    let script = format!("echo; read line; cat {}/file", mnt.display());
    let mut holder = Command::new("unshare")
        .args(["--mount", "sh", "-ec", &script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 1];
    holder.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    let end = umount(&[], &mnt).ok();
    assert_eq!(
        end.err,
        format!(
            "hither: {} is unmounted here and still mounted in the name space of sh({})\n",
            mnt.display(),
            holder.id()
        )
    );
    assert!(!is_mounted(&mnt));
    holder.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let said = Said::from(holder.wait_with_output().unwrap()).ok();
    assert_eq!(said.out, "still here");
    wait_for("the daemon ends with the last copy", 60, || daemons(&mnt).is_empty());
}

/// mount(8), fstab, findmnt and umount(8) work with the helper links in place.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn mount8_and_fstab() {
    let ganesha = Ganesha::start();
    let d = ganesha.dir.path().display().to_string();
    let fstab = format!("127.0.0.1:/export {d}/mnt hither _netdev,nofail,vers=4.2,x-systemd.automount 0 0\n");
    std::fs::write(ganesha.dir.path().join("fstab"), fstab).unwrap();
    // A private mount name space in which /usr/sbin contains only the four links.
    let script = format!(
        "mount --make-rprivate /; mount -t tmpfs none /usr/sbin
         for name in mount.hither umount.hither mount.fuse.hither umount.fuse.hither; do
             ln -s {HITHER} /usr/sbin/$name; done
         mount -t hither -o ro,vers=3,noexec 127.0.0.1:/export {d}/mnt
         findmnt -n -o SOURCE,FSTYPE {d}/mnt
         findmnt -n -o OPTIONS {d}/mnt | grep -o '^ro,noexec'
         mount -o remount,rw {d}/mnt
         echo after a remount > {d}/mnt/rw
         umount {d}/mnt
         mount --bind {d}/fstab /etc/fstab
         mount {d}/mnt
         echo from fstab > {d}/mnt/file
         mount -a
         grep -c fuse.hither /proc/self/mountinfo
         umount {d}/mnt
         findmnt {d}/mnt && exit 9
         mount -t hither -o harrd 127.0.0.1:/export {d}/mnt || echo status $?
         mount -s -t hither -o harrd,vers=4.1 127.0.0.1:/export {d}/mnt
         mount -f -t hither 127.0.0.1:/export {d}/mnt || echo status $?
         umount -l {d}/mnt
         mount -t fuse.hither 127.0.0.1:/export {d}/mnt
         umount {d}/mnt"
    );
    let said = run(ganesha.inside("unshare").args(["-m", "sh", "-ec", &script])).ok();
    let lines: Vec<String> =
        said.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines[..3], ["127.0.0.1:/export fuse.hither", "ro,noexec", "1"], "{said:?}");
    assert_eq!(lines[3], "status 1", "{said:?}");
    assert!(said.err.contains("mount.hither: unknown option 'harrd', did you mean 'hard'?"), "{said:?}");
    assert_eq!(std::fs::read_to_string(ganesha.export("file")).unwrap(), "from fstab\n");
}

/// Every option reaches its layer, and `hither stat` shows the options in effect.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn options_in_effect() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    let options = "vers=4.1,softerr,timeo=140,retrans=5,nconnect=2,noresvport,rsize=65536,wsize=1000,sync,\
                   acregmin=1,acdirmax=70,lookupcache=pos,nocto,nordirplus,noacl,nosuid,nodev,noexec,noatime,\
                   nosymfollow";
    ganesha.mount(options, &mnt).ok();
    let report = json(&mnt);
    assert_eq!(
        report["mount"]["options"],
        "vers=4.1,rsize=65536,wsize=4096,softerr,proto=tcp,timeo=140,retrans=5,sec=sys,nconnect=2,noresvport,sync,\
         nocto,nordirplus,noacl,lookupcache=pos,acregmin=1,acdirmax=70"
    );
    let ports = report["connections"].as_array().unwrap().iter().map(|c| c["local_port"].as_u64().unwrap());
    assert!(ports.clone().count() == 2 && ports.clone().all(|port| port >= 1024), "{report}");
    let flags = run(Command::new("findmnt").args(["-no", "VFS-OPTIONS"]).arg(&mnt)).ok().out;
    assert_eq!(flags.trim().replace(",nosymfollow", ""), "rw,nosuid,nodev,noexec,noatime");
    std::os::unix::fs::symlink("file", ganesha.export("link")).unwrap();
    std::fs::write(ganesha.export("file"), "text").unwrap();
    assert_eq!(std::fs::read_link(mnt.join("link")).unwrap(), Path::new("file"));
    assert_eq!(std::fs::read(mnt.join("link")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
    assert_eq!(std::fs::read(mnt.join("file")).unwrap(), b"text");
    umount(&[], &mnt).ok();
}

/// The mountstats program of nfs-utils reads the mount's record.
#[test]
#[ignore = "needs root, nfs-ganesha and mountstats"]
fn mountstats_is_read_by_mountstats() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    for (options, version) in [("vers=3", "nfs v3"), ("vers=4.2", "nfs v4")] {
        ganesha.mount(options, &mnt).ok();
        std::fs::write(mnt.join("file"), vec![7; 100_000]).unwrap();
        let record = stat(&["--format", "mountstats"], &mnt).ok().out;
        let file = ganesha.dir.path().join("record");
        std::fs::write(&file, record).unwrap();
        let mountstats =
            |what: &str| run(Command::new("/usr/sbin/mountstats").args([what, "-f"]).arg(&file)).ok().out;
        let text = mountstats("mountstats");
        assert!(
            text.contains(&format!("Stats for 127.0.0.1:/export mounted on {}:", mnt.display())),
            "{text}"
        );
        assert!(text.contains("WRITE:\n\t1 ops"), "{text}");
        let text = mountstats("iostat");
        assert!(text.contains("write:") && text.contains("mounted on"), "{text}");
        assert!(mountstats("nfsstat").contains(&format!("Client {version}")));
        umount(&[], &mnt).ok();
    }
}

/// A silent server blocks neither `hither stat` nor umount.
/// Promise: 25, 26
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn dead_server_blocks_only_callers() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    for options in ["vers=4.2,noac", "vers=3,noac"] {
        ganesha.mount(options, &mnt).ok();
        ganesha.freeze();
        // A waiting program can be killed. The mount is busy until the program has ended.
        let mut waiting = Command::new("ls").arg(&mnt).stdout(std::process::Stdio::null()).spawn().unwrap();
        common::pause(2000);
        assert!(waiting.try_wait().unwrap().is_none(), "the program waits for the server");
        waiting.kill().unwrap();
        wait_for("the end of the killed program", 60, || waiting.try_wait().unwrap().is_some());
        waiting.wait().unwrap();
        assert_eq!(json(&mnt)["mount"]["source"], "127.0.0.1:/export");
        let text = run(Command::new("timeout").args(["60", HITHER, "umount"]).arg(&mnt));
        assert_eq!(text.code, 0, "{text:?}");
        assert!(!is_mounted(&mnt));
        wait_for("the daemon ends", 40, || daemons(&mnt).is_empty());
        ganesha.thaw();
    }
}

/// SIGTERM ends a mount cleanly, even a busy one. After SIGKILL, the dead mount is recognised and
/// removed.
/// Promise: 26
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn the_end_of_a_daemon() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    let kill = |signal: &str| {
        let pid = daemons(&mnt)[0];
        run(Command::new("kill").args([signal, &pid.to_string()])).ok();
        wait_for("the daemon ends", 60, || has_ended(pid) && daemons(&mnt).is_empty());
    };
    ganesha.mount("vers=4.2", &mnt).ok();
    std::fs::write(mnt.join("file"), "written before the signal").unwrap();
    kill("-TERM");
    assert!(!is_mounted(&mnt));
    assert_eq!(std::fs::read_to_string(ganesha.export("file")).unwrap(), "written before the signal");

    ganesha.mount("vers=4.2", &mnt).ok();
    let mut user = Command::new("sleep").arg("1000").current_dir(&mnt).spawn().unwrap();
    kill("-TERM");
    assert!(!is_mounted(&mnt));
    user.kill().unwrap();
    user.wait().unwrap();

    ganesha.mount("vers=4.2", &mnt).ok();
    kill("-KILL");
    let d = mnt.display();
    stat(&[], &mnt).fails(
        2,
        &format!("hither: the daemon of {d} has gone: unmount it (hither umount {d}) and mount it again"),
    );
    umount(&[], &mnt).ok();
    assert!(!is_mounted(&mnt));
}

/// `bg`: the command succeeds at once, and the mount appears when the server does.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn a_background_mount() {
    let mut ganesha = Ganesha::prepare();
    let mnt = ganesha.mnt();
    let said =
        run(ganesha.inside(HITHER).args(["mount", "-o", "bg,vers=4.1", "127.0.0.1:/export"]).arg(&mnt)).ok();
    assert!(said.err.ends_with("; trying again in the background\n"), "{said:?}");
    assert!(!is_mounted(&mnt));
    ganesha.serve();
    wait_for("the mount", 180, || is_mounted(&mnt));
    umount(&[], &mnt).ok();
}

/// `-f`: the mount runs in the foreground until it is interrupted.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn a_foreground_mount() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    let child = ganesha
        .inside(HITHER)
        .args(["mount", "-f", "-o", "vers=4.2", "127.0.0.1:/export"])
        .arg(&mnt)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("the mount", 60, || is_mounted(&mnt) && stat(&[], &mnt).code == 0);
    run(Command::new("kill").args(["-INT", &child.id().to_string()])).ok();
    let said = Said::from(child.wait_with_output().unwrap()).ok();
    assert!(!is_mounted(&mnt));
    assert!(said.err.contains("INFO 127.0.0.1:/export mounted on"), "{said:?}");
    assert!(said.err.contains("INFO 127.0.0.1:/export unmounted from"), "{said:?}");
}

/// `--watch` shows the increase of the counters, and ends with its reader.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn watching() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    ganesha.mount("vers=4.2", &mnt).ok();
    let mut watch = Command::new(HITHER)
        .args(["stat", "--watch", "1"])
        .arg(&mnt)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        assert!(lines.any(|line| line.unwrap().contains("(+1 s)")), "the command ended by itself");
    }
    drop(lines);
    wait_for("the end without a reader", 60, || watch.try_wait().unwrap().is_some());
    umount(&[], &mnt).ok();
}

/// One call looks up a path from the root of the server's name space into an exported file system.
/// Objects of the export have other inode numbers than those above.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn path_across_exports_costs_one_call() {
    use std::os::unix::fs::MetadataExt;
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    std::fs::create_dir_all(ganesha.export("d1/d2")).unwrap();
    std::fs::write(ganesha.export("d1/d2/f"), "there").unwrap();
    // The number of calls on a new mount. The result must be right for any number.
    let cost = |version: &str| {
        let mut command = ganesha.inside(HITHER);
        // No cached state expires during this test.
        command.args(["mount", "-o", &format!("retry=0,vers={version},actimeo=600"), "127.0.0.1:/"]);
        run(command.arg(&mnt)).ok();
        let asked = || {
            let report = json(&mnt);
            let operations = report["operations"].as_array().unwrap().clone();
            operations
                .iter()
                .filter(|o| o["name"] != "SEQUENCE")
                .map(|o| o["calls"].as_u64().unwrap())
                .sum::<u64>()
        };
        let before = asked();
        let file = std::fs::metadata(mnt.join("export/d1/d2/f")).unwrap();
        let cost = asked() - before;
        assert_eq!(file.len(), 5);
        assert_eq!(std::fs::read_to_string(mnt.join("export/d1/d2/f")).unwrap(), "there");
        let inos: Vec<_> = ["", "export", "export/d1", "export/d1/d2", "export/d1/d2/f"]
            .iter()
            .map(|path| std::fs::metadata(mnt.join(path)).unwrap().ino())
            .collect();
        let mut different = inos.clone();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), inos.len(), "{inos:?}");
        umount(&[], &mnt).ok();
        cost
    };
    for version in ["4.2", "4.1"] {
        // On a busy machine the kernel's lookups may come one by one, each with its own call. One
        // of ten attempts must need a single call.
        let costs: Vec<u64> = (0..10).map(|_| cost(version)).take_while(|cost| *cost != 1).collect();
        assert!(costs.len() < 10, "vers={version}: {costs:?} questions");
    }
}
