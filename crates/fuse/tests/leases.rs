//! What holds under a lease is not asked for again until it is withdrawn, and not used a moment longer.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Mount, mounted, pause};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;

fn asked(m: &Mount) -> u64 {
    m.requests("GETATTR") + m.requests("LOOKUP")
}

fn withdraw(m: &Mount, path: &str) {
    let fh = m.fh(path);
    m.rt.block_on(m.gate.withdraw(Some(&fh)));
}

#[test]
fn attributes_under_a_lease_hold_until_it_is_withdrawn() {
    let Some(m) = mounted(600_000) else { return };
    m.gate.give_leases();
    m.foreign_write("f", 0, b"old");
    let f = File::open(m.path("f")).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 3);
    let before = asked(&m);
    for _ in 0..10 {
        assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 3);
    }
    assert_eq!(asked(&m), before);
    for text in ["longer", "longer still"] {
        m.foreign_write("f", 0, text.as_bytes());
        withdraw(&m, "f");
        assert_eq!(f.metadata().unwrap().len() as usize, text.len());
    }
    drop(f);
    m.end();
}

#[test]
fn pages_of_an_open_file_go_with_the_lease() {
    let Some(m) = mounted(600_000) else { return };
    m.gate.give_leases();
    m.foreign_write("f", 0, &[b'a'; 10_000]);
    let mut f = File::open(m.path("f")).unwrap();
    let mut seen = Vec::new();
    f.read_to_end(&mut seen).unwrap();
    for byte in *b"bcdefg" {
        m.foreign_write("f", 0, &[byte; 10_000]);
        withdraw(&m, "f");
        let mut buf = [0; 10_000];
        f.read_exact_at(&mut buf, 0).unwrap();
        assert_eq!(buf, [byte; 10_000]);
    }
    drop(f);
    m.end();
}

#[test]
fn a_leases_name_holds_no_longer_than_its_directory() {
    let Some(m) = mounted(300) else { return };
    m.gate.give_leases();
    m.foreign_write("f", 0, b"first");
    assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 5);
    m.foreign_unlink("f");
    m.foreign_write("f", 0, b"second");
    pause(400);
    assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 6);
    m.end();
}

#[test]
fn a_listing_passes_leases_on() {
    let Some(m) = mounted(600_000) else { return };
    m.gate.give_leases();
    for i in 0..20 {
        m.foreign_write(&format!("f{i}"), 0, b"x");
    }
    let sizes = || fs::read_dir(&m.dir).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum::<u64>();
    assert_eq!(sizes(), 20);
    let before = asked(&m);
    assert_eq!(sizes(), 20);
    // The directory itself has no lease.
    assert!(asked(&m) <= before + 1);
    m.foreign_write("f7", 0, b"longer");
    withdraw(&m, "f7");
    assert_eq!(sizes(), 25);
    m.end();
}

#[test]
fn all_leases_go_at_once() {
    let Some(m) = mounted(600_000) else { return };
    m.gate.give_leases();
    let files: Vec<String> = (0..20).map(|i| format!("f{i}")).collect();
    for f in &files {
        m.foreign_write(f, 0, b"x");
    }
    let sizes = || files.iter().map(|f| fs::metadata(m.path(f)).unwrap().len()).sum::<u64>();
    assert_eq!(sizes(), 20);
    for f in &files {
        m.foreign_write(f, 0, b"xyz");
    }
    assert_eq!(sizes(), 20, "under leases nothing is asked");
    m.rt.block_on(m.gate.withdraw(None));
    assert_eq!(sizes(), 60);
    m.end();
}

#[test]
fn a_lease_withdrawn_while_its_answer_is_on_its_way_is_not_believed() {
    let Some(m) = mounted(600_000) else { return };
    m.gate.give_leases();
    m.foreign_write("f", 0, b"old");
    for i in 0..3u64 {
        m.gate.shut("walk");
        let path = m.path("f");
        let stat = std::thread::spawn(move || fs::metadata(path).unwrap().len());
        common::eventually("the look-up waits", || m.gate.waiting("walk") > 0);
        withdraw(&m, "f");
        m.gate.open_all();
        stat.join().unwrap();
        let before = asked(&m);
        m.foreign_write("f", 0, "x".repeat(10 + i as usize).as_bytes());
        assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 10 + i);
        assert!(asked(&m) > before);
        // The next round looks the name up again.
        m.rt.block_on(m.gate.withdraw(None));
    }
    m.end();
}

#[test]
fn withdrawing_what_nobody_knows_is_nothing() {
    let Some(m) = mounted(600_000) else { return };
    m.foreign_write("f", 0, b"x");
    withdraw(&m, "f");
    assert_eq!(fs::read(m.path("f")).unwrap(), b"x");
    withdraw(&m, "f");
    m.rt.block_on(m.gate.withdraw(None));
    m.end();
}
