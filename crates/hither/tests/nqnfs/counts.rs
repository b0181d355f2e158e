//! The requests of a mount without other clients. The mount keeps its own writes and new objects
//! cached.

use crate::client::now;
use crate::leases::calls;
use crate::mount::{mounted, umount};
use crate::serve_with;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Term of leases in seconds. Mounts ask for at most 30.
const TERM: u32 = 60;
/// Options under which neither dirty data nor cached attributes expire during a test.
const ALONE: &str = ",dirty-age=3600,actimeo=3600";
/// Pieces in the order in which an assembler writes a small object: not in order, with alignment
/// gaps.
const PIECES: [(usize, usize); 7] =
    [(1768, 122), (64, 889), (960, 280), (1896, 645), (1240, 528), (2544, 104), (0, 64)];

/// Number of calls that look for existing objects.
fn questions(mnt: &Path) -> u64 {
    ["LOOKUP", "READDIRLOOK", "GETATTR", "ACCESS", "READ"].iter().map(|of| calls(mnt, Some(of))).sum()
}

/// A file is written in pieces and read in between, as assemblers do. The client sends one WRITE
/// for it, and reads no byte of it from the server.
#[test]
#[ignore = "needs root"]
fn own_writes_stay_cached() {
    let server = serve_with(TERM);
    let a = mounted(&server, "a", ALONE);
    let path = a.join("u00.o");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let before = questions(&a);
    let mut body = Vec::new();
    for (n, (at, len)) in PIECES.into_iter().enumerate() {
        let piece = vec![n as u8 + 1; len];
        file.write_all_at(&piece, at as u64).unwrap();
        body.resize(body.len().max(at + len), 0);
        body[at..at + len].copy_from_slice(&piece);
        let mut seen = vec![0xff; body.len()];
        file.read_exact_at(&mut seen, 0).unwrap();
        assert!(seen == body, "after piece {n}");
    }
    // The counters are read only after the close. The command that reads them is a child process,
    // and a child closes its copies of open files.
    drop(file);
    assert_eq!((questions(&a) - before, calls(&a, Some("WRITE"))), (0, 1), "gaps and all");
    assert!(fs::read(server.export("u00.o")).unwrap() == body);
    for _ in 0..3 {
        assert!(fs::read(&path).unwrap() == body);
        assert_eq!(fs::metadata(&path).unwrap().len(), body.len() as u64);
    }
    assert_eq!(questions(&a) - before, 0);
    umount(&a);
}

/// Files of a pass.
const FILES: usize = 30;
/// The time of a pass. An inferred absence holds for a second, so a longer pass proves nothing.
const PASS: Duration = Duration::from_millis(800);

/// Makes a directory at the server with files that the mount did not make.
fn fill_with_old(dir: &Path) {
    fs::create_dir(dir).unwrap();
    for i in 0..FILES {
        fs::write(dir.join(format!("old{i}")), "old").unwrap();
    }
}

/// Makes and removes files for the time of a pass, and looks at existing and absent names. Returns
/// the number of files.
fn change_and_look(dir: &Path, has_old: bool, began: Instant) -> usize {
    for i in 0..FILES {
        if began.elapsed() > PASS {
            return i;
        }
        let name = |what: &str| dir.join(format!("{what}{i}"));
        fs::write(name("new"), "new").unwrap();
        fs::write(name("gone"), "gone").unwrap();
        fs::remove_file(name("gone")).unwrap();
        assert!(!name("gone").exists() && !name("absent").exists());
        assert_eq!(fs::metadata(name("new")).unwrap().len(), 3);
        assert_eq!(fs::read(name("new")).unwrap(), b"new");
        if has_old {
            assert_eq!(fs::metadata(name("old")).unwrap().len(), 3);
        }
    }
    FILES
}

/// Numbers of requests and of renames that a mount has sent.
struct Counted {
    asked: u64,
    hidden: u64,
}

impl Counted {
    fn now(mnt: &Path) -> Self {
        Self { asked: questions(mnt), hidden: calls(mnt, Some("RENAME")) }
    }
}

/// Lookups of present and absent names send no request in a directory that the mount made. The same
/// holds for a directory that the mount has listed and goes on changing. A removal keeps the other
/// names cached.
#[test]
#[ignore = "needs root"]
fn changed_directory_stays_cached() {
    const PASSES: usize = 20;
    let server = serve_with(TERM);
    (0..PASSES).for_each(|pass| fill_with_old(&server.export(&format!("theirs{pass}"))));
    let a = mounted(&server, "a", ALONE);
    for (dir, most) in [("ours", 0), ("theirs", 3)] {
        let in_time = (0..PASSES).any(|pass| {
            let dir = a.join(format!("{dir}{pass}"));
            let began = now();
            if most == 0 {
                fs::create_dir(&dir).unwrap();
            }
            let before = Counted::now(&a);
            let files = change_and_look(&dir, most > 0, began);
            // A pass of a slow machine counts with a few files, which ask as seldom.
            let in_time = files > 3 && began.elapsed() < Duration::from_secs(1);
            let Counted { asked, hidden } = Counted::now(&a);
            // The removal of a name that is still being closed renames it to a hidden name, and the
            // hidden name is looked up.
            let (asked, hidden) = (asked - before.asked, hidden - before.hidden);
            assert!(!in_time || asked <= most + hidden, "{asked} questions in {dir:?}, {hidden} hidden");
            in_time
        });
        assert!(in_time, "no pass took less than a second");
    }
    umount(&a);
}
