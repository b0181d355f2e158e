//! State under a lease is not requested again until its withdrawal, and not used after it.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Mount, mounted, pause};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;

fn asked(m: &Mount) -> u64 {
    m.requests("GETATTR") + m.requests("LOOKUP")
}

fn revoke(m: &Mount, path: &str) {
    let fh = m.fh(path);
    m.rt.block_on(m.gate.revoke(Some(&fh)));
}

/// Attributes under a lease need no request until the withdrawal, and are fresh after it.
/// Promise: 8a
#[test]
fn withdrawal_drops_leased_attributes() {
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
        revoke(&m, "f");
        assert_eq!(f.metadata().unwrap().len() as usize, text.len());
    }
    drop(f);
    m.end();
}

/// Pages of an open file are dropped when its lease is withdrawn.
/// Promise: 8a
#[test]
fn withdrawal_drops_pages() {
    let Some(m) = mounted(600_000) else { return };
    m.gate.give_leases();
    m.foreign_write("f", 0, &[b'a'; 10_000]);
    let mut f = File::open(m.path("f")).unwrap();
    let mut seen = Vec::new();
    f.read_to_end(&mut seen).unwrap();
    for byte in *b"bcdefg" {
        m.foreign_write("f", 0, &[byte; 10_000]);
        revoke(&m, "f");
        let mut buf = [0; 10_000];
        f.read_exact_at(&mut buf, 0).unwrap();
        assert_eq!(buf, [byte; 10_000]);
    }
    drop(f);
    m.end();
}

/// After a lease has expired the attributes are requested again. Pages stay if the file has not
/// changed.
/// Promise: 8a'
#[test]
fn expired_lease_keeps_unchanged_pages() {
    let Some(m) = mounted(600_000) else { return };
    m.gate.give_leases();
    m.foreign_write("f", 0, &[b'a'; 10_000]);
    let expire = || {
        let fh = m.fh("f");
        m.rt.block_on(m.gate.expire(&fh));
    };
    let read = || fs::read(m.path("f")).unwrap();
    assert!(read() == [b'a'; 10_000]);
    let (before, reads) = (asked(&m), m.requests("READ"));
    expire();
    assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 10_000);
    assert!(asked(&m) > before);
    assert!(read() == [b'a'; 10_000]);
    assert_eq!(m.requests("READ"), reads);
    m.foreign_write("f", 0, &[b'b'; 20_000]);
    expire();
    assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 20_000);
    assert!(read() == [b'b'; 20_000]);
    m.end();
}

/// A name of an object under a lease is valid only as long as its directory.
#[test]
fn name_expires_with_directory() {
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

/// Attributes in a listing are under leases.
#[test]
fn listing_passes_on_leases() {
    let Some(m) = mounted(600_000) else { return };
    m.gate.give_leases();
    for i in 0..20 {
        m.foreign_write(&format!("f{i}"), 0, b"x");
    }
    let sizes = || fs::read_dir(&m.dir).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum::<u64>();
    assert_eq!(sizes(), 20);
    let before = asked(&m);
    assert_eq!(sizes(), 20);
    // The directory has no lease.
    assert!(asked(&m) <= before + 1);
    m.foreign_write("f7", 0, b"longer");
    revoke(&m, "f7");
    assert_eq!(sizes(), 25);
    m.end();
}

/// The withdrawal of all leases makes all attributes fresh.
#[test]
fn withdrawal_of_all_leases_works() {
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
    assert_eq!(sizes(), 20, "attributes under leases are not requested");
    m.rt.block_on(m.gate.revoke(None));
    assert_eq!(sizes(), 60);
    m.end();
}

/// An answer that was requested before a withdrawal is not cached under a lease.
#[test]
fn overtaken_lease_is_not_cached() {
    let Some(m) = mounted(600_000) else { return };
    m.gate.give_leases();
    m.foreign_write("f", 0, b"old");
    for i in 0..3u64 {
        m.gate.shut("walk");
        let path = m.path("f");
        let stat = std::thread::spawn(move || fs::metadata(path).unwrap().len());
        common::eventually("the look-up waits", || m.gate.waiting("walk") > 0);
        revoke(&m, "f");
        m.gate.open_all();
        stat.join().unwrap();
        let before = asked(&m);
        m.foreign_write("f", 0, "x".repeat(10 + i as usize).as_bytes());
        assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 10 + i);
        assert!(asked(&m) > before);
        // The next round looks up the name again.
        m.rt.block_on(m.gate.revoke(None));
    }
    m.end();
}

/// A withdrawal of an object that the kernel does not know has no effect.
#[test]
fn withdrawal_of_unknown_object_is_ignored() {
    let Some(m) = mounted(600_000) else { return };
    m.foreign_write("f", 0, b"x");
    revoke(&m, "f");
    assert_eq!(fs::read(m.path("f")).unwrap(), b"x");
    revoke(&m, "f");
    m.rt.block_on(m.gate.revoke(None));
    m.end();
}

/// The kernel reads a page of a listing in pieces, and continues with it a long time after the page
/// was read. Its entries pass on no lease after a withdrawal.
/// Promise: 8a
#[test]
fn old_page_passes_no_lease() {
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
    // Attributes of the listing were used, so the kernel requests them with the next piece too.
    assert_eq!(fs::metadata(m.path(&first)).unwrap().len(), 3);
    let pages = m.gate.calls("readdir");
    for f in &files {
        m.foreign_write(f, 0, b"longer");
        revoke(&m, f);
    }
    let plus = m.requests("READDIRPLUS");
    while let Some(entry) = list.next() {
        entry.unwrap();
    }
    assert_eq!(m.gate.calls("readdir"), pages, "the same page continues");
    assert!(m.requests("READDIRPLUS") > plus);
    for f in &files {
        assert_eq!(fs::metadata(m.path(f)).unwrap().len(), 6);
    }
    drop(dir);
    m.end();
}

/// Attributes in the reply to a write are not cached when their lease was withdrawn before the
/// reply.
/// Promise: 8a
#[test]
fn old_write_reply_is_not_cached() {
    use std::os::unix::fs::OpenOptionsExt;
    let Some(m) = mounted(600_000) else { return };
    m.gate.give_leases();
    // Without pages, because dropping them would wait for the write.
    let mut how = fs::OpenOptions::new();
    let f = how.write(true).create(true).custom_flags(libc::O_DIRECT).open(m.path("f")).unwrap();
    f.write_all_at(b"ours", 0).unwrap();
    m.gate.shut_answers("write");
    let writer = f.try_clone().unwrap();
    let write = std::thread::spawn(move || writer.write_all_at(b"more", 4).unwrap());
    common::eventually("the write is done", || m.gate.answers_waiting("write") > 0);
    m.foreign_write("f", 8, b"theirs");
    revoke(&m, "f");
    m.gate.open_all();
    write.join().unwrap();
    assert_eq!(f.metadata().unwrap().len(), 14);
    drop(f);
    m.end();
}

/// A name that was looked up in advance passes on no lease after a withdrawal.
/// Promise: 8a
#[test]
fn old_prefetch_passes_no_lease() {
    let Some(m) = mounted(600_000) else { return };
    m.gate.give_leases();
    // A caller that is not asleep has no hint, so no name is looked up in advance.
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
        revoke(&m, &name);
        m.gate.open_all();
        stat.join().unwrap();
        assert_eq!(fs::metadata(m.path(&name)).unwrap().len(), 6);
        ahead
    });
    assert!(ahead, "no name was looked up in advance");
    m.end();
}

/// The lease came with a check of the open file, not with an answer to a program. The withdrawal of
/// all leases includes it.
/// Promise: 8a
#[test]
fn full_withdrawal_includes_checked_file() {
    let Some(m) = mounted(200) else { return };
    m.foreign_write("f", 0, b"aaaa");
    let f = File::open(m.path("f")).unwrap();
    let mut buf = [0; 4];
    f.read_exact_at(&mut buf, 0).unwrap();
    m.gate.give_leases();
    pause(1500);
    m.foreign_write("f", 0, b"bbbb");
    m.rt.block_on(m.gate.revoke(None));
    common::eventually("the new contents are read", || {
        f.read_exact_at(&mut buf, 0).unwrap();
        &buf == b"bbbb"
    });
    drop(f);
    m.end();
}
