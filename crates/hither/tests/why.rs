//! `hither why` with a real server: the cached state, its promise, and the cost and reasons of
//! calls.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::{Ganesha, HITHER, hither, run, wait_for};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn why(path: &Path) -> Value {
    let said = run(Command::new(HITHER).args(["why", "--json"]).arg(path)).ok();
    serde_json::from_str(&said.out).unwrap()
}

/// The cost of a call: whether it asks the server, and the reason.
#[track_caller]
fn cost(why: &Value, call: &str) -> (bool, String) {
    let costs = why["costs"].as_array().unwrap();
    let cost = costs.iter().find(|c| c["call"] == call).unwrap_or_else(|| panic!("{call} in {why}"));
    (cost["asks"].as_bool().unwrap(), cost["why"].as_str().unwrap().to_string())
}

/// The reasons of all requests of this kind, newest first.
fn reasons(why: &Value, request: &str) -> Vec<String> {
    let calls = why["calls"].as_array().unwrap().iter().filter(|c| c["request"] == request);
    let asked = calls.flat_map(|c| c["asked"].as_array().unwrap());
    asked.map(|a| a["why"].as_str().unwrap().to_string()).collect()
}

fn cat(path: &Path) {
    run(Command::new("cat").arg(path)).ok();
}

/// RPCs that the mount has sent, without lease renewals.
fn rpcs(dir: &Path) -> u64 {
    let report: Value =
        serde_json::from_str(&run(Command::new(HITHER).args(["stat", "--json"]).arg(dir)).ok().out).unwrap();
    let counted = report["operations"].as_array().unwrap().iter().filter(|op| op["name"] != "SEQUENCE");
    counted.map(|op| op["calls"].as_u64().unwrap()).sum()
}

/// `hither why` sends no request. It shows the cached state, the callers, and the reason of each
/// round trip.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn why_shows_state_and_costs() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    std::fs::create_dir(ganesha.export("dir")).unwrap();
    std::fs::write(ganesha.export("dir/file"), "contents\n").unwrap();
    let file = mnt.join("dir/file");
    for version in ["4.2", "3"] {
        ganesha.mount(&format!("vers={version},actimeo=2"), &mnt).ok();
        let before = rpcs(&mnt);
        let unknown = why(&file);
        assert!(cost(&unknown, "stat").0, "{unknown}");
        assert_eq!(unknown["calls"].as_array().unwrap().len(), 0, "{unknown}");
        assert_eq!(rpcs(&mnt), before, "`hither why` sends no request");

        // Repeats until a look happens within the two seconds, also on a busy machine. When the two
        // seconds end between open and fstat, the bytes of a file younger than five seconds are not
        // trusted any more.
        let mut known = Value::Null;
        wait_for("cached attributes and bytes", 60, || {
            cat(&file);
            known = why(&file);
            let left = known["objects"][2]["attributes"]["left_ms"].as_u64();
            left > Some(0) && !cost(&known, "stat").0 && !cost(&known, "read").0
        });
        assert!(known["promise"].as_str().unwrap().starts_with("close-to-open"), "{known}");
        let object = &known["objects"][2];
        assert_eq!((&object["name"], &object["kind"]), (&"file".into(), &"regular file".into()), "{known}");
        assert_eq!(object["size_bytes"], 9);
        let left = object["attributes"]["left_ms"].as_u64().unwrap();
        assert!(left > 0 && left <= 2000, "{known}");
        assert!(!cost(&known, "stat").0, "{known}");
        assert!(cost(&known, "open").1.contains("close-to-open"), "{known}");
        assert_eq!(cost(&known, "read"), (false, "all bytes are in memory".into()), "{known}");
        let calls = known["calls"].as_array().unwrap();
        // The record of the walk is at the first name that was not cached, where the kernel began.
        let call = calls.last().unwrap();
        assert_eq!((&call["program"], &call["name"]), (&"cat".into(), &"dir".into()), "{known}");
        assert!(call["pid"].as_u64().unwrap() > 1 && call["took_us"].as_u64().unwrap() > 0);
        assert!(reasons(&known, "LOOKUP").iter().any(|r| r == "it was not cached"), "{known}");

        // A second open asks because of close-to-open and names that reason, unless the two seconds
        // are over.
        wait_for("an open that asks because of close-to-open", 60, || {
            cat(&file);
            let again = why(&file);
            let mut all = ["OPEN", "LOOKUP"].iter().flat_map(|r| reasons(&again, r));
            all.any(|r| r.starts_with("close-to-open: an open needs"))
        });

        // A stat after the attributes have expired names that reason.
        wait_for("attributes that run out", 60, || cost(&why(&file), "stat").0);
        let over = why(&file);
        assert!(cost(&over, "stat").1.contains("expired"), "{over}");
        // The kernel may believe its own copy for a moment longer.
        wait_for("a stat of expired attributes", 60, || {
            std::fs::metadata(&file).unwrap();
            let all = [why(&file), why(&mnt.join("dir")), why(&mnt)];
            let mut all =
                all.iter().flat_map(|w| ["LOOKUP", "GETATTR"].map(|request| reasons(w, request))).flatten();
            all.any(|r| r.ends_with("had expired"))
        });

        // The absence of an absent name is cached.
        wait_for("a cached absence", 60, || {
            std::fs::metadata(mnt.join("dir/none")).unwrap_err();
            why(&mnt.join("dir/none"))["objects"][2]["absent"] == true
        });

        // The directory is younger than five seconds. Its next confirmation drops the name of the
        // file, and the kernel looks the name up again within two seconds.
        let begins = format!("{}: regular file, 9 B, version ", file.display());
        let mut text = String::new();
        wait_for("the file's state in words", 60, || {
            cat(&file);
            text = run(Command::new(HITHER).arg("why").arg(&file)).ok().out;
            text.starts_with(&begins)
        });
        assert!(text.contains("\n  promise ") && text.contains("\n  open now "), "{text}");
        run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
    }
    hither(&["why", "/proc"])
        .fails(1, "hither: /proc is not in a mount of hither: `findmnt -t fuse.hither` lists them");
}

/// The other promises, and the ranges in a disk cache.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn promises_and_the_local_disk() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000);
    let large = std::fs::File::create(ganesha.export("large")).unwrap();
    large.set_len(20 << 20).unwrap();
    large.set_modified(old).unwrap();
    let cache = ganesha.dir.path().join("cache");
    let mount = |options: &str| {
        let options = format!("cache={},cache-age=0,fill=off,{options}", cache.display());
        ganesha.mount_with_cache(&options, &mnt);
    };
    let umount = || run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
    mount("consistency=bounded=30");
    let dd = "if=/LARGE of=/dev/null bs=1M count=1 skip=10 iflag=direct";
    let dd = dd.replace("/LARGE", mnt.join("large").to_str().unwrap());
    let mut known = Value::Null;
    wait_for("the bytes on the disk, and attributes", 60, || {
        known = why(&mnt.join("large"));
        let ranges = known["disk"]["ranges"].as_array().into_iter().flatten();
        let mut all = ranges.filter(|r| r[0].as_u64() <= Some(10 << 20) && r[1].as_u64() >= Some(11 << 20));
        let here = all.next().is_some() && !cost(&known, "open").0;
        if !here {
            run(Command::new("dd").args(dd.split(' '))).ok();
        }
        here
    });
    let ranges: Vec<(u64, u64)> = serde_json::from_value(known["disk"]["ranges"].clone()).unwrap();
    assert!(ranges.iter().any(|(from, to)| *from <= 10 << 20 && 11 << 20 <= *to), "{known}");
    assert!(known["promise"].as_str().unwrap().contains("no data is older than 30 s"), "{known}");
    assert_eq!((cost(&known, "open").0, cost(&known, "read").0), (false, true), "{known}");
    let text = run(Command::new(HITHER).arg("why").arg(mnt.join("large"))).ok().out;
    assert!(text.contains("\n  local disk ") && text.contains("of this version"), "{text}");
    umount();
    mount("consistency=frozen,ro");
    std::fs::metadata(mnt.join("large")).unwrap();
    let known = why(&mnt.join("large"));
    assert!(known["promise"].as_str().unwrap().contains("frozen"), "{known}");
    assert!(!cost(&known, "stat").0 && !cost(&known, "open").0, "{known}");
    umount();
    mount("noac");
    assert!(why(&mnt)["promise"].as_str().unwrap().starts_with("noac"));
    umount();
}
