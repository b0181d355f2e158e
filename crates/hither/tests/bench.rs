//! `hither bench` in local directories and in mounts, and its messages about wrong arguments.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::{HITHER, run};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn bench(words: &[&str]) -> Command {
    let mut command = Command::new(HITHER);
    command.arg("bench").args(words);
    command
}

fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn wrong_words_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    run(&mut bench(&["run", at, "opendept"])).fails(
        1,
        "hither: no experiment 'opendept', did you mean 'opendepth'? `hither bench list` lists them",
    );
    run(&mut bench(&["run", at, "nhfsstone"]))
        .fails(1, "hither: 'nhfsstone' does not run in a directory: hither bench nhfsstone SERVER:/PATH");
    let listed = run(&mut bench(&["list"])).ok().out;
    for name in ["badros", "opendepth", "pageopen", "postmark", "mab", "nhfsstone", "profiles", "cache-sizes"]
    {
        assert!(listed.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}: {listed}");
    }
}

/// Compares the same experiment on the local disk and on a mount. Only the mount counts calls. A
/// fresh mount has to ask the server.
#[test]
#[ignore = "needs root and Python"]
fn experiment_compares_disk_and_mount() {
    let mut server = Serve::of_directory();
    server.serve();
    let (mnt, dir) = (server.mnt("mnt"), server.dir.path().to_path_buf());
    server.mount("vers=4.2", &mnt).ok();
    let (local, remote) = (dir.join("local.jsonl"), dir.join("remote.jsonl"));
    let plain = dir.join("plain");
    std::fs::create_dir(&plain).unwrap();
    let words = |place: &Path, out: &Path| -> Vec<String> {
        [
            "run",
            place.to_str().unwrap(),
            "opendepth",
            "--quick",
            "--reps",
            "1",
            "--out",
            out.to_str().unwrap(),
        ]
        .map(String::from)
        .to_vec()
    };
    run(Command::new(HITHER).arg("bench").args(words(&plain, &local))).ok();
    let at = mnt.display();
    let fresh = format!(
        "{HITHER} umount {at} && {HITHER} mount -o retry=0,vers=4.2,port={} 127.0.0.1:/ {at}",
        server.port
    );
    run(Command::new(HITHER).arg("bench").args(words(&mnt, &remote)).args(["--fresh", &fresh])).ok();
    for (file, calls) in [(&local, false), (&remote, true)] {
        let all = lines(file);
        assert!(
            all[0]["about"]["kernel"].is_string() && all[0]["about"]["workloads"].is_string(),
            "{}",
            all[0]
        );
        let phases: Vec<&Value> = all[1..].iter().filter(|line| line["phase"] == "open.cold").collect();
        assert_eq!(phases.len(), 8, "depths");
        for line in phases {
            assert!(line["secs"].as_f64().unwrap() > 0.0, "{line}");
            // Each file has its own chain of directories.
            let asked = line["rpc"]["total"].as_u64();
            assert!(if calls { asked >= Some(1) } else { asked.is_none() }, "{line}");
        }
        assert!(!plain.join("hither-bench").exists() && !mnt.join("hither-bench").exists());
    }
    let compared = run(&mut bench(&["compare", local.to_str().unwrap(), remote.to_str().unwrap()])).ok().out;
    assert!(compared.contains("opendepth open.cold, depth 16"), "{compared}");
    let picture = dir.join("p.svg");
    let (local, remote) = (local.to_str().unwrap(), remote.to_str().unwrap());
    run(&mut bench(&["plot", local, remote, "--metric", "secs", "--out", picture.to_str().unwrap()])).ok();
    assert!(std::fs::read_to_string(&picture).unwrap().contains("opendepth open.cold, depth 16"));
    run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
}

/// A server measurement prints a line for each of its results and calls the commands in between. It
/// leaves no file behind.
#[test]
#[ignore = "needs root"]
fn server_measurement_leaves_nothing_behind() {
    let mut server = Serve::of_directory();
    server.serve();
    let (port, pid) = (server.port.to_string(), std::process::id().to_string());
    let files = |dir: &Path| std::fs::read_dir(dir).unwrap().count();
    let (before, after) = (server.dir.path().join("before"), server.dir.path().join("after"));
    let count =
        |file: &Path| format!("find {} -type f | wc -l > {}", server.export("").display(), file.display());
    let hooks = (count(&before), count(&after));
    let measured = |words: &[&str]| -> Vec<Value> {
        let common =
            ["--port", &port, "--json", "--seconds", "1", "--prepared", &hooks.0, "--measured", &hooks.1];
        let said = run(bench(words).args(common).arg("127.0.0.1:/")).ok().out;
        assert_eq!(files(&server.export("")), 0, "{words:?}");
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let number = |file: &Path| std::fs::read_to_string(file).unwrap().trim().parse::<usize>().unwrap();

    let kinds = "write,commit,create,create-write,remove,rename,setattr";
    let lines = measured(&["sync", "--kinds", kinds, "--clients", "1,3"]);
    let told: Vec<(&str, u64)> =
        lines.iter().map(|l| (l["kind"].as_str().unwrap(), l["clients"].as_u64().unwrap())).collect();
    let asked: Vec<(&str, u64)> = kinds.split(',').flat_map(|kind| [(kind, 1), (kind, 3)]).collect();
    assert_eq!(told, asked);
    assert!(lines.iter().all(|l| l["ops_s"].as_f64().unwrap() > 0.0), "{lines:?}");
    // There is a file for each client, and the created files exist until the end.
    assert_eq!(number(&before), 7 * 4);
    assert!(number(&after) > 7 * 4);

    let lines = measured(&["reads", "--clients", "2", "--sizes", "512,65536", "--pid", &pid]);
    let told: Vec<(&str, u64)> =
        lines.iter().map(|l| (l["kind"].as_str().unwrap(), l["size_bytes"].as_u64().unwrap())).collect();
    assert_eq!(told, [("getattr", 0), ("lookup", 0), ("readdirplus", 0), ("read", 512), ("read", 65536)]);
    assert!(lines.iter().all(|l| l["ops_s"].as_f64().unwrap() > 0.0 && l["cpu_s"].is_f64()), "{lines:?}");

    let lines = measured(&["nhfsstone", "--rates", "20", "--modifying", "50", "--clients", "4"]);
    assert_eq!((lines.len(), lines[0]["offered"].as_u64()), (2, Some(20)), "{lines:?}");
    assert!(lines[1]["capacity"].as_f64().unwrap() > 0.0, "{lines:?}");
    // Four connections made all 400 files.
    assert!(number(&before) == 400 && number(&after) >= 400);
}

/// `bench sharing` on two mounts counts stale reads. Strict mounts have none with every kind of
/// sharing. A mount that keeps attributes for a minute shows stale data.
#[test]
#[ignore = "needs root"]
fn sharing_counts_stale_reads() {
    let mut server = Serve::of_directory();
    server.serve();
    let mounts = ["a", "b"].map(|name| server.mnt(name));
    let plain = tempfile::tempdir().unwrap();
    let measured = |a: &Path, b: &Path| -> Vec<Value> {
        let dirs = [a, b].map(|dir| dir.to_str().unwrap());
        let said = run(&mut bench(&["sharing", dirs[0], dirs[1], "--seconds", "2", "--json"])).ok();
        assert_eq!(std::fs::read_dir(a).unwrap().count(), 0, "all made files are gone");
        said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    for (options, is_strict) in
        [("consistency=strict", true), ("acregmin=60,acregmax=60,acdirmin=1,acdirmax=1", false)]
    {
        mounts.iter().for_each(|mnt| drop(server.mount(&format!("vers=4.2,{options}"), mnt).ok()));
        let lines = measured(&mounts[0], &mounts[1]);
        assert_eq!(lines.len(), 3);
        for line in &lines {
            assert!(
                line["reads"].as_u64().unwrap() > 0 && line["calls_op"].as_f64().unwrap() >= 0.0,
                "{line}"
            );
            if is_strict || line["kind"] != "tight" {
                assert_eq!(line["stale"], 0, "{line}");
            } else {
                assert!(
                    line["stale"].as_u64().unwrap() > 0 && line["oldest_ms"].as_f64().unwrap() > 0.0,
                    "{line}"
                );
            }
        }
        mounts.iter().for_each(|mnt| drop(run(Command::new(HITHER).arg("umount").arg(mnt)).ok()));
    }
    // A directory is never stale to itself, and its requests are not counted.
    let lines = measured(plain.path(), plain.path());
    assert!(lines.iter().all(|line| line["stale"] == 0 && line["calls_op"].is_null()), "{lines:?}");
    let other = tempfile::tempdir().unwrap();
    let dirs = [plain.path().to_str().unwrap(), other.path().to_str().unwrap()];
    run(&mut bench(&["sharing", dirs[0], &format!("{}/none", dirs[1])]))
        .fails(1, &format!("hither: {}/none: no such directory", dirs[1]));
}
