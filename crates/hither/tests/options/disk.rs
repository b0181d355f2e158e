//! The disk cache.

use crate::common::{hither, pause, wait_for};
use crate::{Bench, Mount};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;

const FILE_BYTES: usize = 200_000;

fn status(m: &Mount) -> Value {
    serde_json::from_str(&hither(&["cache", "status", "--json", m.shown()]).ok().out).unwrap()
}

fn counter(m: &Mount, name: &str) -> u64 {
    status(m)["counters"][name].as_u64().unwrap()
}

fn room(m: &Mount, name: &str) -> u64 {
    status(m)["room"][name].as_u64().unwrap()
}

/// A mount with a disk cache in use. The cache is in the check's own directory.
fn cached(b: &Bench<'_>, place: &str, options: &str) -> Mount {
    let dir = b.near(place);
    if fs::create_dir(&dir).is_ok() {
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
    }
    in_use(b.mount(&format!("vers=4.2,cache={},{options}", dir.display())))
}

fn in_use(m: Mount) -> Mount {
    wait_for("the disk cache to be in use", 60, || status(&m)["room"].is_object());
    m
}

fn files(b: &Bench<'_>, count: usize) {
    (0..count).for_each(|n| b.put(&format!("f{n}"), vec![n as u8; FILE_BYTES]));
}

/// Reads a file. Returns when the cache has its data, if the cache is to keep it.
fn read(m: &Mount, n: usize) {
    assert_eq!(fs::read(m.at(&format!("f{n}"))).unwrap(), vec![n as u8; FILE_BYTES]);
    wait_for("a quiet cache", 60, || counter(m, "queue_bytes") == 0);
}

pub fn cache(b: &Bench<'_>) {
    files(b, 1);
    let m = cached(b, "cache", "cache-age=0");
    read(&m, 0);
    assert_eq!(counter(&m, "entries"), 1);
    drop(m);
    let m = cached(b, "cache", "cache-age=0");
    read(&m, 0);
    assert_eq!(counter(&m, "fetched_bytes"), 0);
    drop(m);
    assert!(b.mount("nocache").report()["mount"]["cache"].is_null());
}

/// As `cache`, in the default directory.
pub fn fsc(b: &Bench<'_>) {
    files(b, 1);
    let m = in_use(b.mount("vers=4.2,fsc=tag,cache-age=0"));
    read(&m, 0);
    assert_eq!((counter(&m, "entries"), status(&m)["directory"].as_str()), (1, Some("/var/cache/hither")));
}

pub fn cache_size(b: &Bench<'_>) {
    files(b, 20);
    let m = cached(b, "cache", "cache-age=0,fill=off,cache-size=2M");
    (0..20).for_each(|n| read(&m, n));
    wait_for("the cleaner", 60, || counter(&m, "evictions") > 0 && room(&m, "entry_bytes") <= 2 << 20);
}

pub fn cache_dir_size(b: &Bench<'_>) {
    files(b, 20);
    let m = cached(b, "cache", "cache-age=0,fill=off,cache-dir-size=2M");
    (0..20).for_each(|n| read(&m, n));
    wait_for("the cleaner", 60, || counter(&m, "evictions") > 0 && room(&m, "entry_bytes") <= 2 << 20);
}

/// Eviction starts at `cache-soft` percent: a fifth of 10 MB is full before 20 files are stored.
pub fn cache_soft(b: &Bench<'_>) {
    files(b, 20);
    for (soft, evicts) in [("20", true), ("95", false)] {
        let m = cached(b, soft, &format!("cache-age=0,fill=off,cache-size=10M,cache-soft={soft}"));
        (0..20).for_each(|n| read(&m, n));
        if evicts {
            wait_for("the cleaner", 60, || {
                counter(&m, "evictions") > 0 && room(&m, "entry_bytes") <= 2 << 20
            });
        }
        assert_eq!(counter(&m, "evictions") > 0, evicts, "cache-soft={soft}");
    }
}

/// The policy in use. The test `policies_keep_hot_and_pinned_data` in steering.rs shows the
/// evictions of each.
pub fn cache_policy(b: &Bench<'_>) {
    for policy in ["lru", "s3-fifo", "gdsf"] {
        let m = cached(b, policy, &format!("cache-policy={policy}"));
        assert_eq!(status(&m)["room"]["policy"], policy);
        let listed = hither(&["cache", "status", m.shown()]).ok().out;
        assert!(listed.contains(policy), "{listed}");
    }
}

/// The cache keeps nothing when the disk has less free space than this.
pub fn cache_min_free(b: &Bench<'_>) {
    files(b, 1);
    let keeps = |free: &str| {
        let m = cached(b, free, &format!("cache-age=0,cache-min-free={free}"));
        read(&m, 0);
        pause(200);
        counter(&m, "entry_bytes") > 0
    };
    assert!(keeps("0") && !keeps("1000T"));
}

/// Whether a small and a large file are kept.
fn kept(b: &Bench<'_>, options: &str) -> [bool; 2] {
    b.put("small", vec![1; 10_000]);
    b.put("large", vec![1; 100_000]);
    ["small", "large"].map(|file| {
        let m = cached(b, &format!("{file}{options}"), &format!("cache-age=0,{options}"));
        fs::read(m.at(file)).unwrap();
        wait_for("a quiet cache", 60, || counter(&m, "queue_bytes") == 0);
        pause(200);
        counter(&m, "entry_bytes") > 0
    })
}

pub fn cache_min_file(b: &Bench<'_>) {
    assert_eq!((kept(b, "cache-min-file=1"), kept(b, "cache-min-file=50000")), ([true, true], [false, true]));
}

pub fn cache_max_file(b: &Bench<'_>) {
    assert_eq!(
        (kept(b, "cache-max-file=1T"), kept(b, "cache-max-file=50000")),
        ([true, true], [true, false])
    );
}

pub fn cache_age(b: &Bench<'_>) {
    files(b, 1);
    let keeps = |age: &str| {
        let m = cached(b, age, &format!("cache-age={age}"));
        read(&m, 0);
        pause(200);
        counter(&m, "entry_bytes") > 0
    };
    assert!(keeps("0") && !keeps("3600"));
}

/// Whether the cache completes a file of which an eighth is read.
pub fn fill(b: &Bench<'_>) {
    const ALL: u64 = 48 << 20;
    b.put("file", vec![1; ALL as usize]);
    for (how, whole) in [("off", false), ("100M/s", true), ("idle", true)] {
        let m = cached(b, &how.replace('/', ""), &format!("cache-age=0,cache-min-free=0,fill={how}"));
        let mut bytes = vec![0; 6 << 20];
        let mut file = fs::File::open(m.at("file")).unwrap();
        std::io::Read::read_exact(&mut file, &mut bytes).unwrap();
        drop(file);
        if whole {
            wait_for("the rest", 60, || counter(&m, "entry_bytes") >= ALL);
        } else {
            pause(1_500);
        }
        assert_eq!(counter(&m, "entry_bytes") >= ALL, whole, "fill={how}");
    }
}
