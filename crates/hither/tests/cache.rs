//! The disk cache in a mount of a real server, and the commands for the cache.
//!
//! The tests need root and nfs-ganesha.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::{Ganesha, Said, hither, run, wait_for};
use serde_json::Value;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

fn json(said: Said) -> Value {
    serde_json::from_str(&said.ok().out).unwrap()
}

fn cache(words: &[&str]) -> Said {
    hither(&[&["cache"], words].concat())
}

/// Value of a counter of the disk layer.
fn counter(mnt: &str, name: &str) -> u64 {
    json(cache(&["status", "--json", mnt]))["counters"][name].as_u64().unwrap()
}

/// Bytes received from the server. Compounds may carry file data under several operation names, so
/// the test counts bytes.
fn received(mnt: &str) -> u64 {
    let report = json(hither(&["stat", "--json", mnt]));
    report["connections"].as_array().unwrap().iter().map(|c| c["bytes_received"].as_u64().unwrap()).sum()
}

fn umount(mnt: &str) {
    hither(&["umount", mnt]).ok();
}

fn pattern(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + n) as u8).collect()
}

/// Data read before an unmount is not fetched again after the next mount. Changes by another client
/// are seen.
/// Promise: 11a
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn remount_reuses_cached_data() {
    let ganesha = Ganesha::start();
    let (mnt, dir) = (ganesha.mnt(), ganesha.dir.path().join("cache"));
    let shown = mnt.to_str().unwrap();
    for n in 0..20 {
        std::fs::write(ganesha.export(&format!("f{n}")), pattern(n, 100_000 + n * 10_000)).unwrap();
    }
    for version in ["4.2", "3"] {
        let options = format!("vers={version},cache={},cache-age=0", dir.display());
        let read = |n: usize| std::fs::read(mnt.join(format!("f{n}"))).unwrap();
        let mut came = 0;
        ganesha.mount_with_memory(&options, &mnt, 20, || {
            assert!((0..20).all(|n| read(n) == pattern(n, 100_000 + n * 10_000)));
            came += received(shown);
            // The unmount waits for the disk, but only for a limited time.
            wait_for("files in the cache", 60, || {
                counter(shown, "entries") == 20 && counter(shown, "queue_bytes") == 0
            });
        });
        assert!(came > 2_000_000, "they came from the server");
        assert!((0..20).all(|n| read(n) == pattern(n, 100_000 + n * 10_000)));
        let again = received(shown);
        assert!(again < 200_000, "vers={version}: {again} bytes were fetched again");
        assert_eq!(counter(shown, "fetches"), 0);
        // Another client changes the files.
        let other = ganesha.dir.path().join("mnt2");
        let _ = std::fs::create_dir(&other);
        ganesha.mount(&format!("vers={version}"), &other).ok();
        std::fs::write(other.join("f7"), pattern(7, 170_000)).unwrap();
        std::fs::write(other.join("f8"), b"short").unwrap();
        umount(other.to_str().unwrap());
        assert_eq!(read(8), b"short");
        // Restores the file for the next round.
        std::fs::write(mnt.join("f8"), pattern(8, 180_000)).unwrap();
        assert_eq!(read(8), pattern(8, 180_000));
        umount(shown);
    }
}

/// Calls sent so far, without lease renewals.
fn calls(mnt: &str) -> u64 {
    let report = json(hither(&["stat", "--json", mnt]));
    let counted = report["operations"].as_array().unwrap().iter().filter(|o| o["name"] != "SEQUENCE");
    counted.map(|o| o["calls"].as_u64().unwrap()).sum()
}

/// After a remount, names and attributes come from the disk cache. The mount revalidates many of
/// them in one request. Changes by another client between the two mounts are seen.
/// Promise: 11b
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn remount_revalidates_metadata_in_batches() {
    let ganesha = Ganesha::start();
    let (mnt, dir) = (ganesha.mnt(), ganesha.dir.path().join("cache"));
    let shown = mnt.to_str().unwrap();
    for d in 0..10 {
        std::fs::create_dir(ganesha.export(&format!("d{d}"))).unwrap();
        for f in 0..60 {
            std::fs::write(ganesha.export(&format!("d{d}/f{f}")), pattern(f, 100 + f)).unwrap();
        }
    }
    // A file that changed a moment ago may change again without a new time stamp, so its stamp
    // proves nothing.
    let settled = || {
        let began = std::time::Instant::now();
        wait_for("changes are old enough", 10, || began.elapsed().as_secs() >= 6);
    };
    settled();
    for version in ["4.2", "3"] {
        // Attributes stay valid for longer than the test takes, so the mount asks for nothing
        // twice.
        let options = format!("vers={version},actimeo=3600,cache={},cache-age=0", dir.display());
        let len = |d: usize, f: usize| std::fs::metadata(mnt.join(format!("d{d}/f{f}"))).map(|m| m.len());
        let all = || (0..10).flat_map(|d| (0..60).map(move |f| (d, f)));
        ganesha.mount_with_memory(&options, &mnt, 600, || {
            assert!(all().all(|(d, f)| len(d, f).unwrap() == 100 + f as u64));
            assert!(len(3, 60).is_err());
        });
        let before = calls(shown);
        assert!(all().all(|(d, f)| len(d, f).unwrap() == 100 + f as u64));
        assert!(len(3, 60).is_err());
        let asked = calls(shown) - before;
        println!("vers={version}: {asked} calls for 600 files");
        let most = if version == "3" { 120 } else { 40 };
        assert!(asked <= most, "vers={version}: {asked} calls for 600 files");
        umount(shown);
        // Changes by other clients between two mounts are seen.
        let other = ganesha.dir.path().join("mnt2");
        let _ = std::fs::create_dir(&other);
        ganesha.mount(&format!("vers={version}"), &other).ok();
        std::fs::write(other.join("d3/f60"), b"new").unwrap();
        std::fs::write(other.join("d4/f4"), b"changed").unwrap();
        std::fs::rename(other.join("d5/f5"), other.join("d5/moved")).unwrap();
        std::fs::remove_file(other.join("d6/f6")).unwrap();
        ganesha.mount(&options, &mnt).ok();
        assert_eq!(len(3, 60).unwrap(), 3);
        assert_eq!(std::fs::read(mnt.join("d4/f4")).unwrap(), b"changed");
        assert!(len(5, 5).is_err() && len(6, 6).is_err());
        assert_eq!(std::fs::read(mnt.join("d5/moved")).unwrap(), pattern(5, 105));
        let listed = std::fs::read_dir(mnt.join("d3")).unwrap().count();
        assert_eq!(listed, 61);
        umount(shown);
        // Restores the files for the next round.
        std::fs::remove_file(other.join("d3/f60")).unwrap();
        std::fs::write(other.join("d4/f4"), pattern(4, 104)).unwrap();
        std::fs::rename(other.join("d5/moved"), other.join("d5/f5")).unwrap();
        std::fs::write(other.join("d6/f6"), pattern(6, 106)).unwrap();
        umount(other.to_str().unwrap());
        settled();
    }
}

/// `cache warm` fetches many small files in a message and stores all of them on the disk. It reads
/// larger files one by one.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn warming_small_files_takes_few_calls() {
    let ganesha = Ganesha::start();
    let (mnt, dir) = (ganesha.mnt(), ganesha.dir.path().join("cache"));
    let shown = mnt.to_str().unwrap();
    let len = |d: usize, f: usize| 1000 + d * 3000 + f * 100;
    for d in 0..5 {
        std::fs::create_dir(ganesha.export(&format!("d{d}"))).unwrap();
        for f in 0..80 {
            std::fs::write(ganesha.export(&format!("d{d}/f{f}")), pattern(d * f, len(d, f))).unwrap();
        }
    }
    std::fs::write(ganesha.export("d1/a \"quoted\" name"), pattern(1, 500)).unwrap();
    std::fs::write(ganesha.export("d1/large"), pattern(2, 300_000)).unwrap();
    std::fs::write(ganesha.export("d1/empty"), b"").unwrap();
    std::os::unix::fs::symlink("f1", ganesha.export("d1/link")).unwrap();
    for version in ["4.2", "3"] {
        // Attributes stay valid for longer than the test takes, so the mount asks for nothing
        // twice.
        let options = format!("vers={version},actimeo=3600,cache={},cache-age=0", dir.display());
        ganesha.mount_with_cache(&options, &mnt);
        let before = calls(shown);
        let said = cache(&["warm", shown]).ok().out;
        let asked = calls(shown) - before;
        assert!(said.starts_with("403 files read, "), "{said}");
        println!("vers={version}: {asked} calls for 403 files");
        // NFSv3 needs a call for each READ.
        let most = if version == "3" { 900 } else { 60 };
        assert!(asked <= most, "vers={version}: {asked} calls for 403 files");
        wait_for("files in the cache", 60, || {
            counter(shown, "entries") == 402 && counter(shown, "queue_bytes") == 0
        });
        let before = counter(shown, "fetched_bytes");
        for d in 0..5 {
            for f in 0..80 {
                assert_eq!(std::fs::read(mnt.join(format!("d{d}/f{f}"))).unwrap(), pattern(d * f, len(d, f)));
            }
        }
        assert_eq!(std::fs::read(mnt.join("d1/large")).unwrap(), pattern(2, 300_000));
        assert_eq!(counter(shown, "fetched_bytes"), before);
        // All files are cached, so a second warming fetches no bytes.
        let before = received(shown);
        cache(&["warm", "--quiet", shown]).ok();
        let again = received(shown) - before;
        assert!(again < 300_000, "vers={version}: {again} bytes came again");
        umount(shown);
    }
    // Files that are read and not kept are reported.
    let d2 = mnt.join("d2").to_str().unwrap().to_string();
    ganesha.mount("vers=4.2", &mnt).ok();
    let said = cache(&["warm", &d2]).ok();
    let why = format!("{shown} has no disk cache in use (mount -o cache)");
    assert_eq!(said.err, format!("hither: 80 of them are not kept on disk: {why}\n"));
    umount(shown);
    std::fs::write(ganesha.export("d2/f0"), b"changed").unwrap();
    ganesha.mount_with_cache(&format!("vers=4.2,cache={},cache-age=3600", dir.display()), &mnt);
    let said = cache(&["warm", &d2]).ok();
    assert_eq!(
        said.err,
        "hither: 80 of them are not kept on disk: changed within the last 3600 s (cache-age)\n"
    );
    umount(shown);
}

#[test]
#[ignore = "needs root and nfs-ganesha"]
fn commands_about_a_cache() {
    let ganesha = Ganesha::start();
    let (mnt, dir) = (ganesha.mnt(), ganesha.dir.path().join("cache"));
    let (shown, dir) = (mnt.to_str().unwrap(), dir.to_str().unwrap());
    std::fs::create_dir(ganesha.export("d")).unwrap();
    for n in 0..5 {
        std::fs::write(ganesha.export(&format!("d/f{n}")), pattern(n, 200_000)).unwrap();
    }
    let options = format!("vers=4.2,cache={dir},cache-age=0");
    ganesha.mount_with_cache(&options, &mnt);
    let file = |n: usize| mnt.join(format!("d/f{n}")).to_str().unwrap().to_string();
    assert_eq!(cache(&["warm", &format!("{shown}/d")]).ok().out, "5 files read, 977 KiB\n");
    wait_for("files in the cache", 60, || {
        counter(shown, "entries") == 5 && counter(shown, "queue_bytes") == 0
    });
    assert_eq!(json(cache(&["ls", "--json", shown])).as_array().unwrap().len(), 5);
    assert_eq!(json(cache(&["check", "--json", shown]))["damaged"], 0);
    let verified = json(cache(&["verify", "--against-server", "--json", shown]));
    assert_eq!((&verified["bytes"], &verified["wrong"]), (&Value::from(1_000_000), &Value::from(0)));
    cache(&["pin", &file(1)]).ok();
    cache(&["evict", &file(2)]).ok();
    assert_eq!(counter(shown, "entries"), 4);
    assert_eq!(cache(&["evict", "--all", shown]).ok().out, "evicted 3\n");
    let left = json(cache(&["ls", "--json", shown]));
    assert_eq!((left.as_array().unwrap().len(), &left[0]["pinned"]), (1, &Value::Bool(true)));
    cache(&["evict", &format!("{shown}/none")]).fails(
        2,
        &format!("hither: the daemon of {shown} refuses: none: No such file or directory (os error 2)"),
    );
    assert_eq!(json(cache(&["status", "--json", dir]))[0]["in_use"], Value::Bool(true));
    umount(shown);
    let idle = json(cache(&["ls", "--json", dir]));
    assert_eq!((idle.as_array().unwrap().len(), &idle[0]["pinned"]), (1, &Value::Bool(true)));
    damage(Path::new(dir));
    cache(&["check", dir]).fails(2, "hither: 1 entries were damaged and dropped");
    assert!(json(cache(&["ls", "--json", dir])).as_array().unwrap().is_empty());
}

/// Changes one byte of every data file.
fn damage(dir: &Path) {
    let script = "find \"$0\" -name '*.d' -exec sh -c 'printf X | dd of=\"$0\" bs=1 seek=100 conv=notrunc status=none' {} \\;";
    run(Command::new("sh").args(["-c", script]).arg(dir)).ok();
}

/// A mount works without a cache when its cache directory cannot be used.
/// Promise: 11a
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn mount_works_without_cache() {
    let ganesha = Ganesha::start();
    std::fs::write(ganesha.export("f"), "hello").unwrap();
    let mnt = ganesha.mnt();
    let shown = mnt.to_str().unwrap();
    let foreign = ganesha.dir.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("letter"), "dear").unwrap();
    run(Command::new("chmod").arg("700").arg(&foreign)).ok();
    let below_a_file = foreign.join("letter/cache");
    for (dir, why) in [
        (&foreign, "holds other files"),
        (&below_a_file, "Not a directory"),
        (&"/proc/none".into(), "/proc/none"),
    ] {
        ganesha.mount(&format!("vers=4.2,cache={}", dir.display()), &mnt).ok();
        assert_eq!(std::fs::read(mnt.join("f")).unwrap(), b"hello");
        // The mount may be ready before the cache knows this reason.
        wait_for(why, 60, || json(cache(&["status", "--json", shown]))["trouble"].to_string().contains(why));
        assert!(hither(&["stat", shown]).ok().out.contains("; off: cache directory"));
        umount(shown);
    }
    assert_eq!(std::fs::read_dir(&foreign).unwrap().count(), 1, "nothing was touched");
    // Two mounts of one export. The second mount works without the cache and takes the directory
    // when the first mount ends.
    let (cache_dir, other) = (ganesha.dir.path().join("cache"), ganesha.dir.path().join("mnt2"));
    std::fs::create_dir(&other).unwrap();
    let options = format!("vers=4.2,cache={}", cache_dir.display());
    ganesha.mount_with_cache(&options, &mnt);
    ganesha.mount(&options, &other).ok();
    let trouble = |mnt: &str| json(cache(&["status", "--json", mnt]))["trouble"].clone();
    assert_eq!(trouble(shown), Value::Null);
    wait_for("the reason of the second mount", 60, || {
        trouble(other.to_str().unwrap()).to_string().contains("in use by another mount")
    });
    assert_eq!(std::fs::read(other.join("f")).unwrap(), b"hello");
    umount(shown);
    wait_for("the second mount to have the cache", 120, || trouble(other.to_str().unwrap()) == Value::Null);
    umount(other.to_str().unwrap());
}

/// Two exports share a cache directory with one size limit. The limit holds. Data of an unmounted
/// export is evicted first, then a share of each mounted export.
/// Promise: 11a
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn shared_cache_directory_keeps_limit() {
    const MIB: usize = 1 << 20;
    let ganesha = Ganesha::start();
    let (mnt, dir) = (ganesha.mnt(), ganesha.dir.path().join("cache"));
    let (a, other) = (mnt.to_str().unwrap(), ganesha.dir.path().join("mnt2"));
    let b = other.to_str().unwrap();
    std::fs::create_dir(&other).unwrap();
    std::fs::create_dir(ganesha.export("d")).unwrap();
    for n in 0..24 {
        std::fs::write(ganesha.export(&format!("f{n}")), pattern(n, MIB)).unwrap();
        std::fs::write(ganesha.export(&format!("d/f{n}")), pattern(50 + n, MIB)).unwrap();
    }
    let options = format!("vers=4.2,cache={},cache-age=0,cache-dir-size=10M,cache-soft=80", dir.display());
    let mount = |what: &str, on: &Path| {
        let mut command = ganesha.inside(common::HITHER);
        command.args(["mount", "-o", &format!("retry=0,{options}"), what]);
        run(command.arg(on)).ok();
    };
    let read = |of: &Path, from: usize, range: std::ops::Range<usize>| {
        for n in range {
            let mut file = std::fs::File::open(of.join(format!("f{n}"))).unwrap();
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            assert!(bytes == pattern(from + n, MIB), "f{n}");
            // The kernel drops its pages, so that the next reader asks the cache again.
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            let shown = of.to_str().unwrap();
            wait_for("the file to be on the disk", 60, || counter(shown, "queue_bytes") == 0);
        }
    };
    let has = |mnt: &str| counter(mnt, "entry_bytes") as usize;
    let room =
        |mnt: &str, name: &str| json(cache(&["status", "--json", mnt]))["room"][name].as_u64().unwrap();
    mount("127.0.0.1:/export", &mnt);
    mount("127.0.0.1:/export/d", &other);
    for of in [a, b] {
        wait_for("a cache in use", 120, || json(cache(&["status", "--json", of]))["room"].is_object());
    }
    assert_eq!((room(a, "dir_hard_bytes"), room(a, "dir_soft_bytes")), (10 << 20, (10 << 20) / 100 * 80));
    read(&mnt, 0, 0..4);
    let before = has(a);
    assert!(before >= 4 * MIB && cache(&["status", a]).ok().out.contains("all mounts"));
    // A single mount could use the whole directory.
    read(&other, 50, 0..12);
    assert!(has(a) + has(b) <= 10 * MIB, "{} and {}", has(a), has(b));
    // A mount whose daemon was not scheduled meanwhile evicts when the other mount stores more.
    wait_for("each to give something up", 60, || {
        let less = has(a) < before;
        if !less {
            read(&other, 50, 0..12);
            assert!(has(a) + has(b) <= 10 * MIB, "{} and {}", has(a), has(b));
        }
        less
    });
    wait_for("less than the limit", 60, || room(b, "dir_bytes") <= room(b, "dir_soft_bytes"));
    // Data of an unmounted export is evicted in favour of a mounted export.
    umount(a);
    let unused = || {
        let parts = json(cache(&["status", "--json", dir.to_str().unwrap()]));
        let part =
            parts.as_array().unwrap().iter().find(|part| part["in_use"] == Value::Bool(false)).cloned();
        part.and_then(|part| part["cached_bytes"].as_u64())
    };
    // The part counts as used while the other mount cleans it.
    let mut left = None;
    wait_for("the unused part", 60, || {
        left = unused();
        left.is_some()
    });
    let left = left.unwrap();
    read(&other, 50, 12..24);
    wait_for("the unused part to give way", 60, || unused().is_some_and(|bytes| bytes < left.max(1)));
    assert!(has(b) <= 10 * MIB);
    umount(b);
    assert_eq!(json(cache(&["check", "--json", dir.to_str().unwrap()]))["damaged"], 0);
}

/// Whether the kernel is Linux 6.9 or later, which has FUSE passthrough.
fn knows_passthrough() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0_u32));
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (6, 9)
}

/// The kernel itself reads frozen files that are completely cached. Files that were opened before
/// are still read through the daemon.
/// Promise: 11a
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn kernel_reads_frozen_files() {
    if !knows_passthrough() {
        eprintln!("this kernel has no FUSE passthrough");
        return;
    }
    let ganesha = Ganesha::start();
    let (mnt, dir) = (ganesha.mnt(), ganesha.dir.path().join("cache"));
    let shown = mnt.to_str().unwrap();
    let data = pattern(3, 3_000_001);
    std::fs::write(ganesha.export("f"), &data).unwrap();
    let options = format!("ro,consistency=frozen,cache={},cache-age=0", dir.display());
    let reads = || json(hither(&["stat", "--json", shown]))["fuse"]["READ"].as_u64().unwrap_or(0);
    let lent =
        || json(hither(&["stat", "--json", shown]))["layers"]["passthrough"]["opens"].as_u64().unwrap();
    ganesha.mount_with_cache(&options, &mnt);
    let early = std::fs::File::open(mnt.join("f")).unwrap();
    assert_eq!(std::fs::read(mnt.join("f")).unwrap(), data);
    wait_for("the file in the cache", 60, || {
        counter(shown, "entry_bytes") >= 3_000_001 && counter(shown, "queue_bytes") == 0
    });
    assert_eq!(std::fs::read(mnt.join("f")).unwrap(), data);
    assert_eq!(lent(), 0, "one that was open before reads through the daemon");
    drop(early);
    wait_for("passthrough", 60, || {
        assert_eq!(std::fs::read(mnt.join("f")).unwrap(), data);
        lent() > 0
    });
    // A closed file is treated like a file that was never open. The kernel reports the close after
    // close(2) has returned.
    let still_open = || {
        let fuse = json(hither(&["stat", "--json", shown]))["fuse"].clone();
        fuse["OPEN"].as_u64() != fuse["RELEASE"].as_u64()
    };
    for round in 0..10 {
        wait_for("the end of the open files", 60, || !still_open());
        let before = lent();
        assert_eq!(std::fs::read(mnt.join("f")).unwrap(), data);
        assert_eq!(lent(), before + 1, "round {round}");
    }
    // A user makes the mount writable. A lent file does not change under its readers, not even in
    // part.
    let remount = |how: &str| {
        let done = std::process::Command::new("mount").args(["-i", "-o", how, shown]).status().unwrap();
        assert!(done.success());
    };
    let cut = || std::fs::OpenOptions::new().write(true).truncate(true).open(mnt.join("f")).map(drop);
    let perl = |script: &str| {
        let path = mnt.join("f");
        let run = std::process::Command::new("perl").args(["-e", script]).arg(path).status();
        run.unwrap().code()
    };
    let open = std::fs::File::open(mnt.join("f")).unwrap();
    remount("remount,rw");
    assert_eq!(cut().unwrap_err().raw_os_error(), Some(libc::ETXTBSY));
    assert_eq!(perl("exit(truncate($ARGV[0], 0) ? 0 : $!)"), Some(libc::ETXTBSY));
    assert_eq!(perl("exit(sysopen(F, $ARGV[0], 01000) ? 0 : $!)"), Some(libc::ETXTBSY));
    assert_eq!(std::fs::read(ganesha.export("f")).unwrap(), data, "the file was not truncated");
    assert_eq!(std::fs::read(mnt.join("f")).unwrap(), data);
    remount("remount,ro");
    drop(open);
    // The cache evicts the file while it is open. Its readers read on, and the next open fetches
    // the file again.
    let open = std::fs::File::open(mnt.join("f")).unwrap();
    let before = (reads(), lent());
    assert_eq!(std::fs::read(mnt.join("f")).unwrap(), data);
    assert_eq!((reads(), lent() > before.1), (before.0, true));
    assert_eq!(cache(&["evict", "--all", shown]).ok().out, "evicted 1\n");
    let mut all = vec![0; data.len()];
    std::os::unix::fs::FileExt::read_exact_at(&open, &mut all, 0).unwrap();
    assert_eq!(all, data);
    assert_eq!(std::fs::read(mnt.join("f")).unwrap(), data);
    drop(open);
    assert_eq!(std::fs::read(mnt.join("f")).unwrap(), data);
    umount(shown);
    // Only a mount that is both frozen and read-only lends files.
    for options in ["consistency=frozen", "ro"] {
        ganesha.mount(&format!("{options},cache={},cache-age=0", dir.display()), &mnt).ok();
        for _ in 0..3 {
            assert_eq!(std::fs::read(mnt.join("f")).unwrap(), data);
        }
        assert_eq!(lent(), 0);
        umount(shown);
    }
}

/// A cache directory to which others have access is not used. The mount command says so.
/// Promise: 11a
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn unused_cache_directory_is_told() {
    let ganesha = Ganesha::start();
    let (mnt, dir) = (ganesha.mnt(), ganesha.dir.path().join("cache"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).unwrap();
    let options = format!("vers=4.2,cache={}", dir.display());
    let said = ganesha.mount(&options, &mnt);
    let line = format!(
        "the disk cache is off: cache directory {0}: others have access; chmod 700 {0}",
        dir.display()
    );
    assert!(said.code == 0 && said.err.contains(&line), "{said:?}");
    umount(mnt.to_str().unwrap());
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
    assert_eq!(ganesha.mount(&options, &mnt).ok().err, "");
    umount(mnt.to_str().unwrap());
}
