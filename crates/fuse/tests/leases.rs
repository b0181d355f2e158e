//! State under a lease is not asked for again until it is withdrawn, and not used a moment longer.

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

/// Promise: 8a
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

/// Promise: 8a
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

/// When a lease has ended by itself the attributes are asked for again, and pages stay if the file
/// is the same.
/// Promise: 8a'
#[test]
fn a_lease_that_lapses_keeps_the_pages_of_what_did_not_change() {
    let Some(m) = mounted(600_000) else { return };
    m.gate.give_leases();
    m.foreign_write("f", 0, &[b'a'; 10_000]);
    let lapse = || {
        let fh = m.fh("f");
        m.rt.block_on(m.gate.lapse(&fh));
    };
    let read = || fs::read(m.path("f")).unwrap();
    assert!(read() == [b'a'; 10_000]);
    let (before, reads) = (asked(&m), m.requests("READ"));
    lapse();
    assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 10_000);
    assert!(asked(&m) > before);
    assert!(read() == [b'a'; 10_000]);
    assert_eq!(m.requests("READ"), reads);
    m.foreign_write("f", 0, &[b'b'; 20_000]);
    lapse();
    assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 20_000);
    assert!(read() == [b'b'; 20_000]);
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

/// The kernel takes a page of a listing in pieces, and goes on with it however long ago the page
/// was read.
/// Promise: 8a
#[test]
fn a_page_read_before_a_withdrawal_passes_no_lease_on() {
    use rustix::fs::{Mode, OFlags, RawDir, open};
    let Some(m) = mounted(600_000) else { return };
    m.gate.give_leases();
    let pad = "x".repeat(150);
    let files: Vec<String> = (0..60).map(|i| format!("{i:02}{pad}")).collect();
    for f in &files {
        m.foreign_write(f, 0, b"old");
    }
    let dir = open(&m.dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut buf = [std::mem::MaybeUninit::uninit(); 1024];
    let mut list = RawDir::new(&dir, &mut buf);
    let first = loop {
        let name = list.next().unwrap().unwrap().file_name().to_str().unwrap().to_owned();
        if !name.starts_with('.') {
            break name;
        }
    };
    // Attributes that came with the listing were used: the kernel asks for them with the next piece
    // too.
    assert_eq!(fs::metadata(m.path(&first)).unwrap().len(), 3);
    let pages = m.gate.calls("readdir");
    for f in &files {
        m.foreign_write(f, 0, b"longer");
        withdraw(&m, f);
    }
    let plus = m.requests("READDIRPLUS");
    while let Some(entry) = list.next() {
        entry.unwrap();
    }
    assert_eq!(m.gate.calls("readdir"), pages, "the page goes on");
    assert!(m.requests("READDIRPLUS") > plus);
    for f in &files {
        assert_eq!(fs::metadata(m.path(f)).unwrap().len(), 6);
    }
    drop(dir);
    m.end();
}

/// Promise: 8a
#[test]
fn attributes_that_a_write_brings_from_before_a_withdrawal_are_not_kept() {
    use std::os::unix::fs::OpenOptionsExt;
    let Some(m) = mounted(600_000) else { return };
    m.gate.give_leases();
    // Without pages: dropping them would wait for the write.
    let mut how = fs::OpenOptions::new();
    let f = how.write(true).create(true).custom_flags(libc::O_DIRECT).open(m.path("f")).unwrap();
    f.write_all_at(b"ours", 0).unwrap();
    m.gate.shut_answers("write");
    let writer = f.try_clone().unwrap();
    let write = std::thread::spawn(move || writer.write_all_at(b"more", 4).unwrap());
    common::eventually("the write is done", || m.gate.answers_waiting("write") > 0);
    m.foreign_write("f", 8, b"theirs");
    withdraw(&m, "f");
    m.gate.open_all();
    write.join().unwrap();
    assert_eq!(f.metadata().unwrap().len(), 14);
    drop(f);
    m.end();
}

/// Promise: 8a
#[test]
fn names_found_ahead_before_a_withdrawal_pass_no_lease_on() {
    let Some(m) = mounted(600_000) else { return };
    m.gate.give_leases();
    // (A caller that is not seen to rest, on a machine where it is not scheduled, has nothing found
    // ahead.)
    let mut others = (0..20).map(|n| format!("d{n}"));
    let ahead = others.any(|dir| {
        let name = format!("{dir}/f");
        m.foreign_dirs(&dir);
        m.foreign_write(&name, 0, b"old");
        m.gate.walks();
        m.gate.shut_answers("walk");
        let path = m.path(&name);
        let stat = std::thread::spawn(move || fs::metadata(path).unwrap());
        common::eventually("the look-up waits", || m.gate.answers_waiting("walk") > 0);
        let ahead = m.gate.walks()[0].path == name;
        m.foreign_write(&name, 0, b"longer");
        withdraw(&m, &name);
        m.gate.open_all();
        stat.join().unwrap();
        assert_eq!(fs::metadata(m.path(&name)).unwrap().len(), 6);
        ahead
    });
    assert!(ahead, "nothing is found ahead");
    m.end();
}

/// The lease came with a look of the mount's own, not with an answer to a program.
/// Promise: 8a
#[test]
fn an_open_file_under_a_later_lease_is_found_when_all_go() {
    let Some(m) = mounted(200) else { return };
    m.foreign_write("f", 0, b"aaaa");
    let f = File::open(m.path("f")).unwrap();
    let mut buf = [0; 4];
    f.read_exact_at(&mut buf, 0).unwrap();
    m.gate.give_leases();
    pause(1500);
    m.foreign_write("f", 0, b"bbbb");
    m.rt.block_on(m.gate.withdraw(None));
    common::eventually("the new contents are read", || {
        f.read_exact_at(&mut buf, 0).unwrap();
        &buf == b"bbbb"
    });
    drop(f);
    m.end();
}
