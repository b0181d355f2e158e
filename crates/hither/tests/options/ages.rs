//! Lifetimes of answers, and requests that combine several questions.

use crate::common::{pause, wait_for};
use crate::{Bench, Mount};
use std::fs;
use std::time::{Duration, Instant};

/// Options under which no other request concerns attributes or names.
const QUIET: &str = "nocto,prefetch=off";

/// Versions that differ in the expiry of answers.
const VERSIONS: [&str; 2] = ["4.2", "3"];

/// A mount with the short time sees a change at the server, while a mount with the long time still
/// uses its older answer. `change` gets the number of the change.
#[track_caller]
fn ages(b: &Bench<'_>, short: &str, long: &str, look: impl Fn(&Mount) -> u64, change: impl Fn(usize)) {
    for (n, version) in VERSIONS.into_iter().enumerate() {
        let [short, long] = [short, long].map(|age| b.mount(&format!("vers={version},{QUIET},{age}")));
        let before = look(&long);
        assert_eq!(look(&short), before);
        change(n);
        wait_for("the change", 20, || look(&short) != before);
        assert_eq!(look(&long), before, "vers={version}: the answer stays valid for longer");
    }
}

fn links(m: &Mount) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(&fs::metadata(m.at("dir")).unwrap())
}

fn grow(b: &Bench<'_>, n: usize) {
    b.put("file", vec![1; 2 + n]);
}

fn link(b: &Bench<'_>, n: usize) {
    fs::create_dir(b.there(&format!("dir/sub{n}"))).unwrap();
}

pub fn acregmin(b: &Bench<'_>) {
    b.put("file", "1");
    ages(b, "acregmin=1", "acregmin=60", |m| m.len("file"), |n| grow(b, n));
}

pub fn acdirmin(b: &Bench<'_>) {
    fs::create_dir(b.there("dir")).unwrap();
    ages(b, "acdirmin=1", "acdirmin=60", links, |n| link(b, n));
}

pub fn actimeo(b: &Bench<'_>) {
    b.put("file", "1");
    fs::create_dir(b.there("dir")).unwrap();
    ages(b, "actimeo=1", "actimeo=60", |m| m.len("file"), |n| grow(b, n));
    ages(b, "actimeo=1", "actimeo=60", links, |n| link(b, n));
}

/// Number of requests about an unchanged object that is looked at all the time. Where the time may
/// grow, the requests become fewer.
fn questions(b: &Bench<'_>, options: &str, of: &str) -> u64 {
    let m = b.mount(&format!("{QUIET},{options}"));
    assert!(m.has(of));
    let (began, before) = (Instant::now(), m.calls(&["GETATTR", "LOOKUP"]));
    while began.elapsed() < Duration::from_secs(7) {
        assert!(m.has(of));
        pause(50);
    }
    m.calls(&["GETATTR", "LOOKUP"]) - before
}

pub fn acregmax(b: &Bench<'_>) {
    b.put("file", "");
    // The lifetime of the name is not under test.
    let [most, more] = ["acregmax=1", "acregmax=60"]
        .map(|max| questions(b, &format!("acregmin=1,acdirmin=60,{max}"), "file"));
    assert!(most > more, "{most} questions, {more} with a larger maximum");
}

pub fn acdirmax(b: &Bench<'_>) {
    fs::create_dir(b.there("dir")).unwrap();
    let [most, more] =
        ["acdirmax=1", "acdirmax=60"].map(|max| questions(b, &format!("acdirmin=1,{max}"), "dir"));
    assert!(most > more, "{most} questions, {more} with a larger maximum");
}

pub fn lookupcache(b: &Bench<'_>) {
    b.put("file", "");
    let costs = |options: &str, name: &str| {
        let m = b.mount(&format!("{options},{QUIET},actimeo=60"));
        let there = m.has(name);
        let before = m.calls(&["LOOKUP"]);
        (0..5).for_each(|_| assert_eq!(m.has(name), there));
        m.calls(&["LOOKUP"]) - before
    };
    for (mode, present, absent) in [("all", false, false), ("pos", false, true), ("none", true, true)] {
        for version in VERSIONS {
            let options = format!("vers={version},lookupcache={mode}");
            assert_eq!(costs(&options, "file") >= 5, present, "{options}");
            assert_eq!(costs(&options, "nothing") >= 5, absent, "{options}");
        }
    }
}

pub fn rdirplus(b: &Bench<'_>) {
    (0..10).for_each(|n| b.put(&format!("f{n}"), ""));
    for (how, plus, plain) in [("force", true, false), ("none", false, true)] {
        let m = b.mount(&format!("vers=3,nochain,{QUIET},rdirplus={how}"));
        assert_eq!(fs::read_dir(m.at("")).unwrap().count(), 10);
        assert_eq!((m.calls(&["READDIRPLUS"]) > 0, m.calls(&["READDIR"]) > 0), (plus, plain), "{how}");
    }
}

/// Covers a name that was looked up before, and a name whose absence follows from a listing.
pub fn acnegmax(b: &Bench<'_>) {
    for (round, version) in ["vers=4.2", "vers=3"].into_iter().enumerate() {
        let [short, long] = [2, 60].map(|secs| b.mount(&format!("{version},actimeo=60,acnegmax={secs}")));
        for m in [&short, &long] {
            b.put("known", "");
            assert!(m.has("known") && !m.has(&format!("asked{round}")));
            fs::read_dir(m.at("")).unwrap().count();
        }
        let began = Instant::now();
        let names = [format!("asked{round}"), format!("inferred{round}")];
        names.iter().for_each(|name| b.put(name, ""));
        wait_for("new names", 20, || short.has(&names[0]) && short.has(&names[1]));
        let soon = began.elapsed() < Duration::from_secs(30);
        assert!(
            !soon || !long.has(&names[0]) && !long.has(&names[1]),
            "{version}: the answer stays valid for longer"
        );
    }
}

pub fn consistency(b: &Bench<'_>) {
    b.put("file", "1");
    let modes = ["strict", "close-to-open", "bounded=1", "bounded=60", "frozen"];
    let mounts = modes.map(|mode| b.mount(&format!("consistency={mode}")));
    let read = |m: &Mount| fs::read_to_string(m.at("file")).unwrap();
    assert!(mounts.iter().all(|m| read(m) == "1" && m.len("file") == 1));
    b.put("file", "12");
    let [strict, cto, bounded, longer, frozen] = &mounts;
    assert_eq!(strict.len("file"), 2);
    assert_eq!(cto.len("file"), 1, "stat(2) is no open");
    assert_eq!(read(cto), "12");
    wait_for("a bound", 20, || read(bounded) == "12");
    assert_eq!((read(longer), read(frozen)), ("1".into(), "1".into()));
}

pub fn subtree(b: &Bench<'_>) {
    for dir in ["queue", "data"] {
        fs::create_dir(b.there(dir)).unwrap();
        b.put(&format!("{dir}/file"), "1");
    }
    let m = b.mount(&format!("actimeo=60,subtree={0}/queue:strict,subtree={0}/data:frozen", b.name));
    assert_eq!((m.len("queue/file"), m.len("data/file")), (1, 1));
    ["queue/file", "data/file"].iter().for_each(|file| b.put(file, "12"));
    assert_eq!((m.len("queue/file"), m.len("data/file")), (2, 1));
}

pub fn meta_cache_size(b: &Bench<'_>) {
    (0..6_000).for_each(|n| b.put(&format!("a rather long name of a file {n}"), ""));
    let holds = |options: &str| {
        let m = b.mount(&format!("actimeo=60,{options}"));
        assert_eq!(fs::read_dir(m.at("")).unwrap().count(), 6_000);
        m.figure("meta", "memory_bytes")
    };
    let (little, usual) = (holds("meta-cache-size=1M"), holds("meta-cache-size=64M"));
    assert!(little <= 1_200_000 && usual > 1_200_000, "{little} and {usual} bytes");
}

pub fn chain_max(b: &Bench<'_>) {
    fs::create_dir_all(b.there("a/b/c/d/e/f")).unwrap();
    let messages = |options: &str| {
        let m = b.mount(options);
        let before = m.calls(&["LOOKUP"]);
        assert!(m.has("a/b/c/d/e/f"));
        m.calls(&["LOOKUP"]) - before
    };
    let (short, whole) = (messages("chain-max=2"), messages("chain"));
    assert!(short >= 3 && whole == 1, "{short} and {whole} messages");
}

pub fn prefetch(b: &Bench<'_>) {
    (0..10).for_each(|n| b.put(&format!("f{n}"), "a small file"));
    let brought = |options: &str| {
        let m = b.mount(options);
        for n in 0..3 {
            assert_eq!(fs::read(m.at(&format!("f{n}"))).unwrap(), b"a small file");
        }
        wait_for("files ahead", 20, || options.contains("off") || m.figure("meta", "prefetched_files") > 0);
        m.figure("meta", "prefetched_files")
    };
    // Data that may be out of date when it is opened is not prefetched.
    assert_eq!(brought("nocto,prefetch=off"), 0);
    assert!(brought("nocto,prefetch=small") > 0);
}
