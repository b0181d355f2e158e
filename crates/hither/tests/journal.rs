//! The journal of a server under `hither journal show`, `check`, `adopt` and `flush`, with real
//! kills.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::{HITHER, Said, hither, pause, run};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// A running server with a journal, and a mount of it.
struct Journaled {
    server: Serve,
    path: PathBuf,
    state: String,
    mnt: PathBuf,
}

fn with_journal() -> Journaled {
    let server = Serve::of_directory();
    let journal = server.dir.path().join("journal");
    let state = server.dir.path().join("state").display().to_string();
    let mut server = server.with(&["--journal", journal.to_str().unwrap(), "--journal-size", "8"]);
    server.serve();
    let mnt = server.mnt("mnt");
    server.mount("vers=3,sync", &mnt).ok();
    Journaled { server, path: journal, state, mnt }
}

/// Writes twenty files, with durable writes.
fn fill(mnt: &Path, name: &str) {
    for i in 0..20 {
        fs::write(mnt.join(format!("{name}{i}")), vec![i; 20_000]).unwrap();
    }
}

fn journal(words: &[&str], path: &Path) -> Said {
    run(Command::new(HITHER).arg("journal").args(words).arg(path))
}

fn running(state: &str) -> Value {
    serde_json::from_str(&hither(&["journal", "show", "--json", "--server", state]).ok().out).unwrap()
}

/// A flush settles the records of a running server. `show` and `check` read the journal of a killed
/// server, and report its damage without changing it.
#[test]
#[ignore = "needs root"]
fn journal_is_shown_checked_and_flushed() {
    let Journaled { mut server, path, state, mnt } = with_journal();
    fill(&mnt, "f");
    assert!(!running(&state)["oldest_ms"].is_null());
    assert!(hither(&["journal", "show", "--server", &state]).ok().out.contains("exports     /"));
    let used = journal(&["check"], &path);
    assert!(used.code == 2 && used.err.contains("a running server uses it"), "{used:?}");
    hither(&["journal", "flush", "--server", &state]).ok();
    let after = running(&state);
    assert!(after["oldest_ms"].is_null() && after["checkpoints"].as_u64() >= Some(1), "{after}");
    fill(&mnt, "g");
    server.kill();
    let gone = hither(&["journal", "flush", "--server", &state]);
    assert!(gone.code == 2 && gone.err.contains("has ended: start it again"), "{gone:?}");
    let shown = journal(&["show", "--json", "--state-dir", &state], &path).ok().out;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert!(shown["records"].as_u64() >= Some(20) && !shown["latest_write_s"].is_null(), "{shown}");
    assert_eq!((&shown["is_of_this_machine"], &shown["is_of_state_dir"]), (&true.into(), &true.into()));
    assert!(journal(&["check"], &path).ok().out.contains(" records are whole"));
    // A byte of the first batch that no checkpoint has settled.
    let whole = fs::read(&path).unwrap();
    let word = |at: usize| u64::from_le_bytes(whole[at..at + 8].try_into().unwrap());
    let magic = word(8192);
    let heads = (8192..whole.len()).step_by(4096).filter(|at| word(*at) == magic);
    let last = heads.max_by_key(|at| word(at + 16)).unwrap();
    let before = (8192..last).step_by(4096).rfind(|at| word(*at) == magic).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[!whole[before + 60]], before as u64 + 60).unwrap();
    let damaged = fs::read(&path).unwrap();
    let fault = journal(&["check"], &path);
    assert!(fault.code == 3 && fault.err.contains("1 fault found"), "{fault:?}");
    assert!(fault.out.contains(&format!("at byte {before} is damaged")), "{fault:?}");
    assert!(journal(&["show"], &path).ok().out.contains("fault       batch "));
    assert!(fs::read(&path).unwrap() == damaged, "a check changes nothing");
    file.write_all_at(&whole[before + 60..before + 61], before as u64 + 60).unwrap();
    server.serve();
    assert_eq!(fs::read(mnt.join("g19")).unwrap(), vec![19; 20_000]);
    run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
    assert_eq!(server.stop(), 0);
    assert!(journal(&["show"], &path).ok().out.contains("records     0"));
}

/// A server that is killed in the middle of flushes loses no acknowledged write, and its journal is
/// whole. Checkpoints of the server run meanwhile.
/// Promise: S8
#[test]
#[ignore = "needs root"]
fn killed_flush_loses_nothing() {
    let Journaled { mut server, path, state, mnt } = with_journal();
    let mut flushes = 0;
    for round in 0..8_u64 {
        let stop = AtomicBool::new(false);
        let (done, server_ref) = (&stop, &mut server);
        flushes += std::thread::scope(|scope| {
            // Two flushes at a time.
            let flush = || {
                let mut count = 0;
                while !done.load(Ordering::SeqCst) {
                    count += u64::from(hither(&["journal", "flush", "--server", &state]).code == 0);
                }
                count
            };
            let flushers = [scope.spawn(flush), scope.spawn(flush)];
            for i in 0..40 + round * 7 {
                let file = mnt.join(format!("r{round}-{i}"));
                let mut file = fs::File::create(file).unwrap();
                file.write_all(&i.to_le_bytes().repeat(2_000)).unwrap();
                file.sync_all().unwrap();
            }
            server_ref.kill();
            done.store(true, Ordering::SeqCst);
            flushers.map(|flusher| flusher.join().unwrap()).iter().sum::<u64>()
        });
        journal(&["check"], &path).ok();
        server.serve();
        for i in 0..40 + round * 7 {
            let bytes = fs::read(server.export(&format!("r{round}-{i}"))).unwrap();
            assert!(bytes == i.to_le_bytes().repeat(2_000), "r{round}-{i}");
        }
    }
    assert!(flushes > 8, "{flushes} flushes: not much of a test");
    run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
    assert_eq!(server.stop(), 0, "{}", server.complaints());
}

/// A disk moves to a machine with another machine-id(5). The server refuses the journal until it is
/// adopted. An adoption that is killed can be repeated, and no acknowledged write is lost. A
/// damaged journal and a journal of another state directory are refused and not changed.
/// Promise: S9
#[test]
#[ignore = "needs root"]
fn moved_journal_is_adopted() {
    let Journaled { mut server, path, state, mnt } = with_journal();
    fill(&mnt, "f");
    run(Command::new("umount").arg("-l").arg(&mnt)).ok();
    server.kill();
    let dir = server.dir.path().to_path_buf();
    let id = dir.join("machine-id");
    fs::write(&id, "0123456789abcdef0123456789abcdef\n").unwrap();
    let there = format!("mount --bind {} /etc/machine-id && exec \"$@\"", id.display());
    let elsewhere = ["unshare", "-m", "sh", "-ec", &there, "sh"];
    let adopt = |path: &Path, state: &str| {
        let mut command = Command::new(elsewhere[0]);
        command.args(&elsewhere[1..]).args([HITHER, "journal", "adopt", "--state-dir", state]).arg(path);
        command
    };
    let start = |seconds: &str| {
        let mut command = Command::new("timeout");
        command.arg(seconds).args(elsewhere).args([HITHER, "serve", "--listen", "127.0.0.1:2052"]);
        command.args(["--state-dir", &state, "--journal"]).arg(&path);
        run(command.arg(dir.join("export")))
    };
    let refused = start("60");
    assert!(refused.code == 1 && refused.err.contains("the journal of another machine"), "{refused:?}");
    let before = fs::read(&path).unwrap();
    fs::create_dir(dir.join("state2")).unwrap();
    let other = run(&mut adopt(&path, dir.join("state2").to_str().unwrap()));
    assert!(other.code == 2 && other.err.contains("belongs to another state directory"), "{other:?}");
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[!before[8192 + 60]], 8192 + 60).unwrap();
    let damaged = run(&mut adopt(&path, &state));
    assert!(damaged.code == 2 && damaged.err.contains("is damaged"), "{damaged:?}");
    file.write_all_at(&before[8192 + 60..8192 + 61], 8192 + 60).unwrap();
    assert!(fs::read(&path).unwrap() == before, "refused adoptions change nothing");
    // Kills at growing distances from the start, until an adoption is done.
    let mut killed = 0;
    for round in 0..40 {
        let mut child = adopt(&path, &state).spawn().unwrap();
        pause(round);
        child.kill().unwrap();
        killed += u64::from(!child.wait().unwrap().success());
        journal(&["check"], &path).ok();
    }
    assert!(killed > 0);
    // The journal may also have another path there.
    let moved = dir.join("moved");
    for (from, to) in [(&path, &moved), (&moved, &path)] {
        fs::rename(from, to).unwrap();
        run(&mut adopt(to, &state)).ok();
        assert_eq!(fs::read(dir.join("state/journal-in-use")).unwrap(), to.to_str().unwrap().as_bytes());
    }
    let adopted = start("6");
    assert_eq!(adopted.code, 124, "it serves until timeout(1) ends it: {adopted:?}");
    for i in 0..20 {
        assert!(fs::read(server.export(&format!("f{i}"))).unwrap() == vec![i; 20_000], "f{i}");
    }
    assert!(journal(&["show"], &path).ok().out.contains("records     0"), "it was applied and settled");
}
