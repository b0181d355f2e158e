//! Unused parts are reduced before parts in use, regardless of the daemon that cleans them.

use super::super::format::Version;
use super::super::tests::env_at;
use super::*;
use hither_vfs::{Env, Fh};
use std::fs::File;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("hither-unused-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Self(dir)
    }

    /// A part that a mount has used, with so many files.
    fn part(&self, identity: &[u8], files: u32) -> PathBuf {
        let home = Home::open(&self.0, identity, &env()).unwrap().unwrap();
        let limits = Limits {
            soft_bytes: u64::MAX,
            hard_bytes: u64::MAX,
            min_free_bytes: 0,
            policy: Default::default(),
            read_only: false,
        };
        let io = Arc::new(RealIo { dir: home.dir.clone() });
        let shelf = Shelf::open(io, limits, Arc::default(), random()).unwrap();
        for n in 0..files {
            let fh = Fh(n.to_be_bytes().to_vec().into());
            shelf.create(&fh, Version { change: 1, size: 10 }, u64::from(n)).unwrap();
        }
        shelf.save();
        total::announce(&home.lock, shelf.size().1, false).unwrap();
        home.lock_path
    }

    /// The daemon's own part: `bytes` in a directory with a soft limit of 1 MiB.
    fn own(&self, bytes: u64) -> Total {
        let path = self.0.join("own.lock");
        let lock = File::options().create(true).truncate(false).read(true).write(true).open(&path).unwrap();
        Total::new(Arc::new(lock), &path, (MIB, u64::MAX - 1), bytes)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn env() -> Env {
    env_at(0)
}

fn random() -> Random {
    env().random
}

fn make_room(emptied: &Emptied, total: &Total, bytes: u64) -> u64 {
    emptied.make_room(total, || bytes, &Arc::default(), &random())
}

/// While another daemon cleans an unused part, parts in use are not reduced. The wait is limited.
#[test]
fn eviction_waits_for_cleaning_daemon() {
    let dir = Dir::new("else");
    let lock_path = dir.part(b"unused", 8);
    let (emptied, total) = (Emptied::default(), dir.own(2 * MIB));
    let name = lock_path.file_name().unwrap();
    let Unused::Yes(other) = Home::unused(&dir.0, name) else { panic!("nobody has it") };
    assert!(make_room(&emptied, &total, 2 * MIB) > MIB, "a mount that uses it gives nothing");
    total::announce(&other.lock, 8 * MIB, true).unwrap();
    for turn in 0..WAITS {
        assert_eq!(make_room(&emptied, &total, 2 * MIB), 0, "turn {turn}");
    }
    assert!(make_room(&emptied, &total, 2 * MIB) > MIB, "it hangs");
    drop(other);
    assert_eq!(make_room(&emptied, &total, 2 * MIB), 0, "it gives something");
    let over = make_room(&emptied, &total, 2 * MIB);
    assert_eq!(over, MIB, "all of it went, and the rest is what is used");
    let Unused::Yes(other) = Home::unused(&dir.0, name) else { panic!("nobody has it") };
    assert_eq!(total::said(&other.lock), Some((0, true)));
}

/// A part may have more than is evicted in one turn. It gives all of that before parts in use are
/// reduced.
#[test]
fn unused_part_shrinks_in_turns() {
    let dir = Dir::new("turns");
    let lock_path = dir.part(b"unused", TURN as u32 + 10);
    let (emptied, total) = (Emptied::default(), dir.own(100 * MIB));
    let left = || total::said(&File::open(&lock_path).unwrap()).unwrap().0;
    let each = left() / (TURN + 10);
    assert_eq!(make_room(&emptied, &total, 100 * MIB), 0, "there is more in it");
    assert_eq!(left(), 10 * each);
    assert_eq!((make_room(&emptied, &total, 100 * MIB), left()), (0, 0));
    assert_eq!(make_room(&emptied, &total, 100 * MIB), 99 * MIB, "there is no more");
}

/// A part with only pinned files is examined again if it was used since, even if its size is the
/// same.
#[test]
fn unpinned_part_is_examined_again() {
    let dir = Dir::new("pins");
    let lock_path = dir.part(b"unused", 1);
    let key = super::super::format::Key::of(&Fh(0_u32.to_be_bytes().to_vec().into()));
    home::write_pins(&lock_path.with_extension(""), &[key]).unwrap();
    let (emptied, total) = (Emptied::default(), dir.own(2 * MIB));
    let before = total::said(&File::open(&lock_path).unwrap()).unwrap().0;
    assert_eq!(make_room(&emptied, &total, 2 * MIB), MIB + before);
    let home = Home::open(&dir.0, b"unused", &env()).unwrap().unwrap();
    home::write_pins(&home.dir, &[]).unwrap();
    home.lock.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(5)).unwrap();
    drop(home);
    assert_eq!(make_room(&emptied, &total, 2 * MIB), 0);
    assert_eq!(make_room(&emptied, &total, 2 * MIB), MIB);
}
