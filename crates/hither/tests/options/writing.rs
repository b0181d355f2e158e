//! Data and names that wait on the client.

use crate::common::{pause, wait_for};
use crate::{Bench, names};
use std::fs::{self, File};
use std::io::Write;
use std::time::Duration;

/// Writers wait when this much data waits to be sent.
pub fn dirty_max(b: &Bench<'_>) {
    for (max, waits) in [("1M", true), ("64M", false)] {
        let m = b.mount(&format!("dirty-max={max}"));
        let mut file = File::create(m.at(max)).unwrap();
        b.server.freeze();
        let (tell, told) = std::sync::mpsc::channel();
        let writer = std::thread::spawn(move || {
            (0..8).for_each(|_| file.write_all(&vec![7; 1 << 20]).unwrap());
            let _ = tell.send(());
            drop(file);
        });
        let within = if waits { Duration::from_secs(3) } else { Duration::from_secs(30) };
        let waited = told.recv_timeout(within).is_err();
        b.server.signal(libc::SIGCONT);
        writer.join().unwrap();
        assert_eq!(waited, waits, "dirty-max={max}");
        assert_eq!(fs::metadata(b.there(max)).unwrap().len(), 8 << 20);
    }
}

pub fn dirty_age(b: &Bench<'_>) {
    let at_server = |name: &str| fs::metadata(b.there(name)).unwrap().len();
    // The expiry of an open file's attributes sends no data.
    let [soon, late] = [1, 600].map(|age| b.mount(&format!("dirty-age={age},actimeo=1")));
    let mut files = [soon.at("soon"), late.at("late")].map(|path| File::create(path).unwrap());
    files.iter_mut().for_each(|file| file.write_all(b"bytes").unwrap());
    wait_for("bytes by themselves", 20, || at_server("soon") == 5);
    pause(1500);
    assert_eq!(at_server("late"), 0);
}

pub fn durability(b: &Bench<'_>) {
    let held = |value: &str| {
        let journal = b.near(value);
        let m =
            b.mount(&format!("vers=4.2,dirty-age=600,journal-dir={},durability={value}", journal.display()));
        // The server makes the first object of a user, and so tells its owner.
        fs::write(m.at(&format!("{value}-first")), "bytes").unwrap();
        fs::write(m.at(value), "bytes").unwrap();
        pause(200);
        let at_server = fs::metadata(b.there(value)).map(|m| m.len()).ok();
        (at_server, journaled(&journal) > 0)
    };
    let without = |value: &str| {
        let m = b.mount(&format!("vers=4.2,dirty-age=600,durability={value}"));
        fs::write(m.at(value), "bytes").unwrap();
        fs::metadata(b.there(value)).unwrap().len()
    };
    assert_eq!(without("server"), 5);
    assert_eq!(without("lazy"), 0);
    assert_eq!(held("local"), (Some(0), true));
    assert_eq!(held("local-names"), (None, true));
    for value in ["local", "local-names"] {
        assert_eq!(fs::read(b.there(value)).unwrap(), b"bytes");
    }
    wait_for("a close that does not wait", 60, || {
        fs::remove_file(b.there("delegated")).ok();
        without("delegated") == 0
    });
}

pub fn close(b: &Bench<'_>) {
    let at_server = |name: &str| fs::metadata(b.there(name)).map_or(0, |m| m.len());
    let late = "vers=4.2,dirty-age=600";
    let m = b.mount(&format!("{late},close=wait"));
    fs::write(m.at("wait"), "bytes").unwrap();
    assert_eq!(at_server("wait"), 5);
    let m = b.mount(&format!("{late},close=lazy"));
    fs::write(m.at("lazy"), "bytes").unwrap();
    assert_eq!(at_server("lazy"), 0);
    // For the first files the server does not know yet whether it can call its client.
    let m = b.mount(&format!("{late},close=delegated"));
    let mut n = 0;
    wait_for("a close that does not wait", 60, || {
        n += 1;
        fs::write(m.at(&format!("delegated{n}")), "bytes").unwrap();
        at_server(&format!("delegated{n}")) == 0
    });
    let m = b.mount(&format!("{late},close=wait"));
    for n in 0..10 {
        fs::write(m.at(&format!("waits{n}")), "bytes").unwrap();
        assert_eq!(at_server(&format!("waits{n}")), 5);
    }
}

/// The number of bytes that the journal holds on the local disk.
fn journaled(dir: &std::path::Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let size = |e: fs::DirEntry| match e.metadata().unwrap() {
        m if m.is_dir() => journaled(&e.path()),
        m => m.len(),
    };
    entries.map(|e| size(e.unwrap())).sum()
}

pub fn writeback(b: &Bench<'_>) {
    let place = std::path::Path::new("/var/lib/hither");
    let m = b.mount("writeback=memory,dirty-age=600");
    File::create(m.at("memory")).unwrap().write_all(&[7; 100_000]).unwrap();
    assert_eq!(journaled(place), 0);
    let m = b.mount("writeback=journal,dirty-age=600");
    let mut file = File::create(m.at("journal")).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    assert!(journaled(place) >= 100_000);
    drop(file);
}

pub fn journal_dir(b: &Bench<'_>) {
    let place = b.near("journal");
    let m = b.mount(&format!("writeback=journal,dirty-age=600,journal-dir={}", place.display()));
    let mut file = File::create(m.at("file")).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    assert!(journaled(&place) >= 100_000);
    drop(file);
}

pub fn creates(b: &Bench<'_>) {
    let options = |place: &str, how: &str| {
        let place = b.near(place);
        format!("writeback=journal,exclusive,dirty-age=600,journal-dir={},creates={how}", place.display())
    };
    let m = b.mount(&options("a", "server"));
    fs::create_dir(m.at("server")).unwrap();
    assert!(names(&b.there("")).contains("server"));
    let m = b.mount(&options("b", "here"));
    // The server makes the first object of a user, and so tells its owner.
    fs::create_dir(m.at("first")).unwrap();
    fs::create_dir(m.at("here")).unwrap();
    pause(200);
    assert!(!names(&b.there("")).contains("here"));
    drop(m);
    assert!(names(&b.there("")).contains("here"));
}
