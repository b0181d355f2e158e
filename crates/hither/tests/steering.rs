//! Control of a disk cache from outside: policies, programs that choose evictions, traces, and
//! disks that are full, read-only or broken.
//!
//! The tests need root, nfs-ganesha, python3, and mkfs.ext4 with loop devices.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::{Ganesha, HITHER, Said, hither, run, sh, wait_for};
use serde_json::Value;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

fn json(said: Said) -> Value {
    serde_json::from_str(&said.ok().out).unwrap()
}

fn cache(words: &[&str]) -> Said {
    hither(&[&["cache"], words].concat())
}

fn status(mnt: &str) -> Value {
    json(cache(&["status", "--json", mnt]))
}

fn counter(mnt: &str, name: &str) -> u64 {
    status(mnt)["counters"][name].as_u64().unwrap()
}

fn umount(mnt: &str) {
    hither(&["umount", mnt]).ok();
}

fn pattern(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + n) as u8).collect()
}

/// A server with `count` files of `len` bytes, named f0 and so on.
fn with_files(count: usize, len: usize) -> Ganesha {
    let ganesha = Ganesha::start();
    for n in 0..count {
        std::fs::write(ganesha.export(&format!("f{n}")), pattern(n, len)).unwrap();
    }
    ganesha
}

fn settled(mnt: &str) {
    wait_for("a quiet cache", 60, || counter(mnt, "queue_bytes") == 0);
}

/// During a scan, s3-fifo keeps often read data, also over a remount, and lru does not. Pinned data
/// stays with both. The size limit holds, and no read is wrong.
/// Promise: 11a
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn policies_keep_hot_and_pinned_data() {
    let ganesha = with_files(60, 200_000);
    let (mnt, dir) = (ganesha.mnt(), ganesha.dir.path().join("cache"));
    let shown = mnt.to_str().unwrap();
    let read = |n: usize| right(&mnt, n..n + 1, 200_000);
    for (policy, stays) in [("lru", false), ("s3-fifo", true)] {
        let options = format!(
            "vers=4.2,cache={},cache-age=0,cache-size=4M,fill=off,cache-policy={policy}",
            dir.display()
        );
        ganesha.mount_with_cache(&options, &mnt);
        assert_eq!(status(shown)["room"]["policy"], policy);
        // Six files that are read again and again, and one that is pinned. Reads that follow each
        // other closely count as one use.
        wait_for("all to have been used", 60, || {
            (0..7).for_each(read);
            settled(shown);
            let slots = json(cache(&["ls", "--index", "--json", shown]));
            let used = slots.as_array().unwrap().iter().filter(|slot| slot["uses"].as_u64() > Some(1));
            used.count() == 7
        });
        cache(&["pin", mnt.join("f6").to_str().unwrap()]).ok();
        umount(shown);
        assert!(saved_index(&dir).is_some(), "an orderly end writes the index down");
        ganesha.mount_with_cache(&options, &mnt);
        assert_eq!(saved_index(&dir), None, "a used index is not valid any more");
        assert_eq!(counter(shown, "entries"), 7);
        for n in 7..60 {
            read(n);
            settled(shown);
            // The cleaner must make room first. The cache would not keep data that arrives before.
            wait_for("the cleaner", 60, || {
                let room = &status(shown)["room"];
                assert!(room["entry_bytes"].as_u64() <= room["hard_bytes"].as_u64(), "{room}");
                room["entry_bytes"].as_u64() <= room["soft_bytes"].as_u64()
            });
        }
        assert!(counter(shown, "evictions") > 20);
        let before = counter(shown, "fetches");
        read(6);
        assert_eq!(counter(shown, "fetches"), before, "{policy}: pinned");
        let index = cache(&["ls", "--index", shown]).ok().out;
        (0..6).for_each(read);
        assert_eq!(counter(shown, "fetches") == before, stays, "{policy}: {}\n{index}", status(shown));
        cache(&["evict", "--all", shown]).ok();
        cache(&["unpin", mnt.join("f6").to_str().unwrap()]).ok();
        assert_eq!(
            cache(&["evict", "--json", mnt.join("f6").to_str().unwrap()]).ok().out,
            "{\"evicted\":1}\n"
        );
        umount(shown);
    }
}

/// A sequential read of a file three times as large as the cache keeps the used files in the cache.
/// It fetches each byte once. A part of the large file stays, and the next read finds it.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn a_large_scan_leaves_hot_files() {
    const MIB: u64 = 1 << 20;
    let ganesha = with_files(100, 200_000);
    std::fs::File::create(ganesha.export("large")).unwrap().set_len(200 * MIB).unwrap();
    let (mnt, dir) = (ganesha.mnt(), ganesha.dir.path().join("cache"));
    let shown = mnt.to_str().unwrap();
    let options = format!("vers=4.2,cache={},cache-age=0,cache-size=64M,fill=off", dir.display());
    for policy in ["s3-fifo", "gdsf"] {
        ganesha.mount_with_cache(&format!("{options},cache-policy={policy}"), &mnt);
        for _ in 0..3 {
            right(&mnt, 0..100, 200_000);
            settled(shown);
        }
        let scan = || {
            let before = counter(shown, "fetched_bytes");
            let mut large = std::fs::File::open(mnt.join("large")).unwrap();
            assert_eq!(std::io::copy(&mut large, &mut std::io::sink()).unwrap(), 200 * MIB);
            // The kernel must drop its pages.
            // SAFETY: the descriptor is open, and all other arguments are numbers.
            assert_eq!(unsafe { libc::posix_fadvise(large.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
            settled(shown);
            counter(shown, "fetched_bytes") - before
        };
        // Each byte is fetched once, except those that come with the open.
        let fetched = scan();
        assert!((199 * MIB..=200 * MIB).contains(&fetched), "{policy}: each byte once: {fetched}");
        let files = |least: u64| {
            let slots = json(cache(&["ls", "--json", shown]));
            let is_whole = |slot: &&Value| slot["cached_bytes"].as_u64() >= Some(least);
            slots.as_array().unwrap().iter().filter(is_whole).count()
        };
        assert!(files(200_000) >= 91, "{policy}: {} files", files(200_000));
        assert_eq!(files(20 * MIB), 1, "{policy}: a part of the large one");
        assert!(scan() <= 180 * MIB, "{policy}: its part is found");
        cache(&["evict", "--all", shown]).ok();
        umount(shown);
    }
}

/// The saved index of the only part of a cache directory, if the index is valid.
fn saved_index(dir: &Path) -> Option<PathBuf> {
    let parts = std::fs::read_dir(dir).unwrap().flatten().map(|e| e.path().join("memo/index.x"));
    parts.filter(|file| std::fs::read(file).is_ok_and(|bytes| bytes.starts_with(b"hitherX"))).last()
}

/// A program with its own policy lists files, chooses among them and evicts. Pinned files stay.
#[test]
#[ignore = "needs root, nfs-ganesha and python3"]
fn program_chooses_evictions() {
    let ganesha = with_files(20, 150_000);
    let (mnt, dir) = (ganesha.mnt(), ganesha.dir.path().join("cache"));
    let shown = mnt.to_str().unwrap();
    ganesha.mount_with_cache(&format!("vers=4.2,cache={},cache-age=0,fill=off", dir.display()), &mnt);
    cache(&["warm", "--quiet", shown]).ok();
    settled(shown);
    let all = json(cache(&["ls", "--json", shown]));
    assert_eq!(all.as_array().unwrap().len(), 20);
    // Three files are named by their keys, and stay.
    let keys: Vec<&str> = all.as_array().unwrap()[..3].iter().map(|e| e["key"].as_str().unwrap()).collect();
    let with_keys = |what: &str| {
        sh(&format!("printf '{}' | $HITHER cache {what} --keys --json {shown}", keys.join("\\n")))
    };
    assert_eq!(json(with_keys("pin"))["pinned"], 3);
    assert_eq!(json(with_keys("evict"))["evicted"], 0, "pinned files stay");
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/cache-policy.py");
    let choose = |high: &str, low: &str| {
        run(Command::new("python3").args([program, shown, "--hither", HITHER, "--high", high, "--low", low]))
            .ok()
            .out
    };
    assert_eq!(choose("100M", "1M"), "0 files went\n");
    let before = status(shown)["room"]["entry_bytes"].as_u64().unwrap();
    choose("2M", "1M");
    let after = status(shown)["room"]["entry_bytes"].as_u64().unwrap();
    assert!(before > 2 << 20 && after <= 1 << 20, "{before} {after}");
    choose("1", "0");
    let left = json(cache(&["ls", "--index", "--json", shown]));
    let mut left: Vec<&str> = left.as_array().unwrap().iter().map(|e| e["key"].as_str().unwrap()).collect();
    left.sort_unstable();
    let mut pinned = keys.clone();
    pinned.sort_unstable();
    assert_eq!(left, pinned);
    assert_eq!(json(with_keys("unpin"))["unpinned"], 3);
    choose("1", "0");
    assert_eq!(counter(shown, "entries"), 0);
    sh(&format!("echo nonsense | $HITHER cache evict --keys {shown}"))
        .fails(2, &format!("hither: the daemon of {shown} refuses: 'nonsense' is not a key"));
    umount(shown);
}

/// A trace records the opens of a program and its children in order, without those of other
/// programs. The replay reads the files on another mount.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn a_trace_is_recorded_and_replayed() {
    let ganesha = with_files(9, 100_000);
    std::fs::create_dir(ganesha.export("d")).unwrap();
    std::fs::write(ganesha.export("d/in a directory"), pattern(1, 70_000)).unwrap();
    let (mnt, dir) = (ganesha.mnt(), ganesha.dir.path().join("cache"));
    let (shown, trace) = (mnt.to_str().unwrap(), ganesha.dir.path().join("trace"));
    let list = trace.to_str().unwrap();
    let options = |name: &str| format!("vers=4.2,cache={},cache-age=0,fill=off", dir.join(name).display());
    let made = std::fs::create_dir(&dir);
    made.unwrap();
    ganesha.mount(&options("one"), &mnt).ok();
    let script = format!(
        "cd {shown}; cat f3 f1 f3 >/dev/null; (sh -c 'sleep 0.3; cat f5; : >{seen}' >/dev/null &); \
         while [ ! -e {seen} ]; do sleep 0.1; done; cat 'd/in a directory' >/dev/null; echo new >made; cat nothing; exit 7",
        seen = ganesha.dir.path().join("seen").display()
    );
    let stranger = std::thread::spawn({
        let mnt = mnt.clone();
        move || (0..20).for_each(|_| drop(std::fs::read(mnt.join("f8")).unwrap()))
    });
    let said = hither(&["trace", "record", "-m", shown, list, "--", "sh", "-c", &script]);
    stranger.join().unwrap();
    assert_eq!(said.code, 7, "{said:?}");
    let names = ["f3", "f1", "f5", "d/in a directory"];
    let expected: String = names.iter().map(|name| format!("{shown}/./{name}\n")).collect();
    assert_eq!(std::fs::read_to_string(&trace).unwrap(), expected);
    // Without a program, the trace records all programs until it is interrupted.
    let all = ganesha.dir.path().join("all");
    // The trace records from the moment when it handles SIGINT.
    let script = format!(
        "$HITHER trace record -m {shown} {} & \
         until grep -q '^SigCgt:.*[2367abef]$' /proc/$!/status; do sleep 0.1; done; \
         cat {shown}/f8 >/dev/null; kill -INT $!; wait $!",
        all.display()
    );
    sh(&script).ok();
    assert_eq!(std::fs::read_to_string(&all).unwrap(), format!("{shown}/./f8\n"));
    umount(shown);
    // Another mount point and an empty cache.
    let other = ganesha.dir.path().join("mnt2");
    std::fs::create_dir(&other).unwrap();
    let elsewhere = other.to_str().unwrap();
    ganesha.mount_with_cache(&options("two"), &other);
    assert_eq!(hither(&["trace", "replay", list, "--root", elsewhere]).ok().out, "4 files read, 361 KiB\n");
    settled(elsewhere);
    assert_eq!(counter(elsewhere, "entries"), 4);
    umount(elsewhere);
    // `cache warm` also takes a trace as its list.
    ganesha.mount_with_cache(&options("three"), &mnt);
    sh(&format!("$HITHER cache warm --quiet - < {list}")).ok();
    settled(shown);
    assert_eq!(counter(shown, "entries"), 4);
    umount(shown);
    hither(&["trace", "record", list, "--", "no-such-program"])
        .fails(1, "hither: there is no mount of hither");
}

/// Number of READs that a mount has sent.
fn reads(mnt: &str) -> u64 {
    let report: serde_json::Value = serde_json::from_str(&hither(&["stat", "--json", mnt]).ok().out).unwrap();
    let all = report["operations"].as_array().unwrap();
    all.iter().filter(|op| op["name"] == "READ").map(|op| op["calls"].as_u64().unwrap()).sum()
}

/// A trace of calls predicts the savings of a disk cache.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn calls_are_traced_and_played() {
    let ganesha = with_files(4, 300_000);
    let (mnt, dir) = (ganesha.mnt(), ganesha.dir.path());
    let (shown, trace) = (mnt.to_str().unwrap(), dir.join("trace"));
    let list = trace.to_str().unwrap();
    // The reads bypass the kernel's pages, so that each reaches the daemon.
    let script = format!(
        "for round in 1 2 3; do for f in f0 f1 f2 f3; do dd if={shown}/$f iflag=direct bs=1M status=none | wc -c; sleep 0.2; done; done"
    );
    ganesha.mount("vers=4.2", &mnt).ok();
    let said = hither(&["trace", "record", "--calls", "-m", shown, list, "--", "sh", "-c", &script]).ok();
    assert_eq!(said.out, "300000\n".repeat(12));
    let without = reads(shown);
    umount(shown);
    let play = |more: &[&str]| {
        let said = hither(&[&["trace", "what-if", list, "--json", "--rtt", "100,200"], more].concat()).ok();
        let lines = said.out.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<serde_json::Value>>()
    };
    let played = play(&["--cache-size", "1M,16M", "--cache-policy", "lru"]);
    let (recorded, small, large) = (&played[0], &played[1], &played[2]);
    assert_eq!((&recorded["reads"], &recorded["files"]), (&12.into(), &4.into()), "{recorded}");
    assert!(recorded["asked_for_reads"].as_u64().unwrap() >= 12, "{recorded}");
    // The small cache holds three of the four files. The fourth file evicts the next one to be
    // read.
    assert_eq!(
        (&small["hits"], &large["hits"], &large["calls"]),
        (&0.into(), &8.into(), &4.into()),
        "{played:?}"
    );
    // The time of the server depends on the load of the machine. The number of round trips is the
    // difference between two lengths of a round trip.
    let waited = |line: &serde_json::Value, at: usize| line["at"][at]["waited_us"].as_f64().unwrap();
    let rounds = |line: &serde_json::Value| (waited(line, 1) - waited(line, 0)) / 100_000.0;
    let spared = rounds(small) - rounds(large);
    assert!((7.9..8.1).contains(&spared), "eight round trips: {spared}, {played:?}");
    assert!(waited(small, 0) > waited(large, 0), "{played:?}");
    // By default the prediction covers all policies, with one megabyte and with enough for all
    // files. Without `--json` it prints a table.
    assert_eq!(play(&[]).len(), 1 + 2 * 3);
    let told = hither(&["trace", "what-if", list]).ok().out;
    assert!(told.contains("s3-fifo") && told.contains("at 200 ms"), "{told}");
    // The real cache confirms the prediction.
    ganesha.mount_with_cache(&format!("vers=4.2,cache={},cache-age=0", dir.join("cache").display()), &mnt);
    sh(&script).ok();
    let with = reads(shown);
    assert!(without >= 12 && with < 12, "{with} of {without}");
    umount(shown);
    // A list of files is not a trace of calls.
    std::fs::write(&trace, "/mnt/./a\n").unwrap();
    let refused = hither(&["trace", "what-if", list]);
    assert!(
        refused.code == 1 && refused.err.starts_with(&format!("hither: {list}: line 1: ")),
        "{refused:?}"
    );
    let refused = hither(&["trace", "what-if", list, "--cache-size", "7"]);
    assert!(refused.code == 1 && refused.err.contains("expected a size such as 64M"), "{refused:?}");
}

fn trouble(mnt: &str) -> String {
    status(mnt)["trouble"].as_str().unwrap_or_default().to_string()
}

/// Asserts that the daemons' log reports a failing disk once each time. Between two such reports
/// comes a report of a working disk. The retry of a failing disk may cause that report.
#[track_caller]
fn told_once(ganesha: &Ganesha) {
    let log = std::fs::read_to_string(ganesha.dir.path().join("log")).unwrap();
    let words = ["continuing without adding to it", "the disk works again"];
    let told = log.lines().filter_map(|line| words.iter().position(|words| line.contains(words)));
    let told: Vec<usize> = told.collect();
    assert!(!told.is_empty() && told.iter().enumerate().all(|(i, what)| *what == i % 2), "{log}");
}

/// Waits until the cache reports this failure of its disk. The report stays for half a minute after
/// each attempt. `hither stat` shows the same report.
#[track_caller]
fn tells(mnt: &str, words: &str, mut attempt: impl FnMut()) {
    wait_for(words, 60, || {
        let told = trouble(mnt).contains(words) && hither(&["stat", mnt]).ok().out.contains(words);
        if !told {
            attempt();
        }
        told
    });
}

/// Reads the files `0..count` of `len` bytes until a whole round fetches nothing, because all files
/// are cached.
#[track_caller]
fn all_here(mnt: &Path, count: usize, len: usize) {
    let shown = mnt.to_str().unwrap();
    again(shown, || {
        let asked = || counter(shown, "fetches") + counter(shown, "passed_reads");
        // The disk must work during the whole round. Data read before the disk is in use again is
        // not kept, and a later round fetches it.
        let (well, before) = (trouble(shown).is_empty(), asked());
        right(mnt, 0..count, len);
        settled(shown);
        well && trouble(shown).is_empty() && counter(shown, "entries") == count as u64 && asked() == before
    });
}

/// Asserts that the files have the right contents. The kernel drops their pages, so that the next
/// reader asks the cache again.
#[track_caller]
fn right(mnt: &Path, files: std::ops::Range<usize>, len: usize) {
    for n in files {
        let mut file = std::fs::File::open(mnt.join(format!("f{n}"))).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert!(bytes == pattern(n, len), "f{n}");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

/// Waits until the cache uses its disk again. The cache tries every half minute.
#[track_caller]
fn again(mnt: &str, mut is: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !is() {
        assert!(began.elapsed().as_secs() < 300, "the cache is not in use again: {}", status(mnt));
        std::thread::sleep(std::time::Duration::from_secs(2));
    }
}

/// A disk that other data fills: the mount works without the disk, reports that once and in
/// `hither stat`, and uses the disk again when it has space.
/// Promise: 11a
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn a_full_disk() {
    let ganesha = with_files(40, 300_000);
    let (mnt, small) = (ganesha.mnt(), ganesha.dir.path().join("small"));
    let (shown, at) = (mnt.to_str().unwrap(), small.display());
    std::fs::create_dir(&small).unwrap();
    sh(&format!("mount -t tmpfs -o size=4m,mode=700 none {at}")).ok();
    // With this option the cache does not know that space is short. It learns it from a failed
    // write.
    let options = format!("vers=4.2,cache={at}/cache,cache-age=0,cache-min-free=0,fill=off");
    ganesha.mount_with_cache(&options, &mnt);
    right(&mnt, 0..40, 300_000);
    settled(shown);
    right(&mnt, 0..40, 300_000);
    tells(shown, "No space left on device", || right(&mnt, 0..40, 300_000));
    told_once(&ganesha);
    assert!(counter(shown, "errors") > 0);
    sh(&format!("mount -o remount,size=64m {at}")).ok();
    all_here(&mnt, 40, 300_000);
    let before = counter(shown, "fetches");
    right(&mnt, 0..40, 300_000);
    assert_eq!(counter(shown, "fetches"), before);
    umount(shown);
    // Less free space than `cache-min-free`: no call fails, and data is evicted.
    let options = format!("vers=4.2,cache={at}/cache,cache-age=0,cache-min-free=60M,fill=off");
    ganesha.mount_with_cache(&options, &mnt);
    wait_for("the cleaner", 60, || counter(shown, "entry_bytes") < 5 << 20);
    right(&mnt, 0..40, 300_000);
    settled(shown);
    // The last file of the queue reaches the disk before the cleaner has made room for it.
    wait_for("the cleaner", 60, || status(shown)["room"]["free_bytes"].as_u64().unwrap() > 55 << 20);
    assert_eq!(counter(shown, "errors"), 0);
    umount(shown);
    sh(&format!("umount {at}")).ok();
}

/// A file system that becomes read-only under the cache, as ext4 does after an error. The cache
/// uses the existing data and adds none. After a new mount of the file system, the cache uses it
/// fully again.
/// Promise: 11a
#[test]
#[ignore = "needs root, nfs-ganesha and loop devices"]
fn a_disk_that_becomes_read_only() {
    let ganesha = with_files(20, 300_000);
    let (mnt, small) = (ganesha.mnt(), ganesha.dir.path().join("small"));
    let (shown, at) = (mnt.to_str().unwrap(), small.display());
    std::fs::create_dir(&small).unwrap();
    let image = ganesha.dir.path().join("image");
    sh(&format!(
        "truncate -s 64M {0}; mkfs.ext4 -qF {0}; mount -o loop {0} {at}; chmod 700 {at}",
        image.display()
    ))
    .ok();
    let options = format!("vers=4.2,cache={at}/cache,cache-age=0,cache-min-free=0,fill=off");
    ganesha.mount_with_cache(&options, &mnt);
    right(&mnt, 0..10, 300_000);
    settled(shown);
    assert_eq!((counter(shown, "entries"), counter(shown, "errors")), (10, 0));
    sh(&format!("sync -f {at}; mount -o remount,abort {at}")).ok();
    let before = counter(shown, "fetched_bytes");
    right(&mnt, 0..20, 300_000);
    settled(shown);
    right(&mnt, 0..20, 300_000);
    assert!(counter(shown, "fetched_bytes") - before <= 6_000_000, "cached files are used");
    tells(shown, "Read-only file system", || right(&mnt, 0..20, 300_000));
    told_once(&ganesha);
    // Repairs a copy of the image and mounts it below the same mount of the server. The broken file
    // system exists as long as it is in use.
    let mended = ganesha.dir.path().join("mended");
    sh(&format!(
        "umount -l {at}; cp {0} {1}; e2fsck -fy {1} >/dev/null || [ $? -le 2 ]",
        image.display(),
        mended.display()
    ))
    .ok();
    sh(&format!("mount -o loop {} {at}", mended.display())).ok();
    all_here(&mnt, 20, 300_000);
    let before = counter(shown, "fetches");
    right(&mnt, 0..20, 300_000);
    assert_eq!(counter(shown, "fetches"), before);
    umount(shown);
    // A file system that is read-only from the beginning.
    sh(&format!("umount {at}; mount -o loop,ro {} {at}", mended.display())).ok();
    ganesha.mount(&options, &mnt).ok();
    right(&mnt, 0..20, 300_000);
    tells(shown, "Read-only file system", || right(&mnt, 0..20, 300_000));
    umount(shown);
    sh(&format!("umount {at}")).ok();
}
