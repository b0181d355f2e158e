//! A limit kept by several daemons.

use super::*;

const MIB: u64 = 1 << 20;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("hither-total-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    fn part(&self, n: usize, soft: u64, hard: u64, bytes: u64) -> Total {
        let path = self.0.join(format!("{n}.lock"));
        let lock = File::options().create(true).truncate(false).read(true).write(true).open(&path).unwrap();
        Total::new(Arc::new(lock), &path, (soft, hard), bytes)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An announced size is read back. A damaged or truncated announcement counts as none.
#[test]
fn damaged_announcement_is_ignored() {
    let dir = Dir::new("said");
    let file = File::options().create_new(true).read(true).write(true).open(dir.0.join("x.lock")).unwrap();
    assert_eq!(said(&file), None);
    announce(&file, 12_345_678, true).unwrap();
    assert_eq!(said(&file), Some((12_345_678, true)));
    announce(&file, 0, false).unwrap();
    assert_eq!(said(&file), Some((0, false)));
    for at in 0..SAID as u64 {
        announce(&file, 77, false).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
        assert_eq!(said(&file), None, "byte {at}");
    }
    file.set_len(SAID as u64 - 1).unwrap();
    assert_eq!(said(&file), None);
}

/// Two parts share a limit. Each sees a part that was added later. Each gives up space in
/// proportion to its size.
#[test]
fn parts_share_directory_limit() {
    let dir = Dir::new("two");
    let a = dir.part(1, 8 * MIB, 10 * MIB, 0);
    assert!(a.admit(6 * MIB));
    let b = dir.part(2, 8 * MIB, 10 * MIB, 0);
    assert!(b.admit(3 * MIB + 7), "a step is announced");
    assert!(!b.admit(4 * MIB + 1) && b.is_full(4 * MIB));
    assert!(!a.admit(6 * MIB + 1), "the other one is seen though nobody looked for it");
    assert!(a.admit(6 * MIB), "what was admitted stays so");
    // 2 MiB above the soft limit, shared by size.
    assert_eq!((a.settle(6 * MIB), b.settle(4 * MIB)), (10 * MIB, 10 * MIB));
    a.set_over(2 * MIB);
    b.set_over(2 * MIB);
    assert_eq!((a.take_short(6 * MIB), b.take_short(4 * MIB)), (12 * MIB / 10 + 1, 8 * MIB / 10 + 1));
    assert_eq!(a.take_short(6 * MIB), 0, "once");
    // One part shrinks and checks the directory. Then the other part may have that space, except
    // the step that the first may be adding.
    assert_eq!(a.settle(2 * MIB), 6 * MIB);
    assert!(b.admit(7 * MIB) && !b.admit(7 * MIB + 1));
    assert_eq!(said(&a.lock), Some((3 * MIB, false)));
    assert_eq!((b.settle(7 * MIB - 1), b.is_full(7 * MIB - 1)), (10 * MIB - 1, false));
    a.leave(5);
    assert_eq!(b.settle(7 * MIB), 7 * MIB + 5);
}

/// A part without a limit announces its size, and other parts count it. Other parts are listed by
/// last use.
#[test]
fn unlimited_part_announces_its_size() {
    let dir = Dir::new("none");
    let (a, b) = (dir.part(1, u64::MAX, u64::MAX, 0), dir.part(2, 8 * MIB, 10 * MIB, 0));
    assert!(a.admit(50 * MIB) && !a.is_full(50 * MIB));
    assert!(!b.admit(1));
    assert_eq!((a.settle(50 * MIB), b.settle(0)), (50 * MIB, 50 * MIB));
    // A part without an announcement counts as empty until it is measured.
    let old = File::create(dir.0.join("3.lock")).unwrap();
    b.settle(0);
    assert_eq!(b.silent(), ["3.lock"]);
    announce(&File::options().write(true).open(dir.0.join("3.lock")).unwrap(), 9, false).unwrap();
    assert_eq!((b.settle(0), b.silent().len()), (50 * MIB + 9, 0));
    drop(old);
    // The least recently used parts come first.
    let at = |name: &str, s: u64| {
        let file = File::options().write(true).open(dir.0.join(name)).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(s)).unwrap();
    };
    at("1.lock", 900);
    at("3.lock", 800);
    assert_eq!(b.others(), ["3.lock", "1.lock"]);
}

/// The parts that grow at the same time never exceed the limit together.
/// Promise: 11a
#[test]
fn concurrent_growth_keeps_limit() {
    let dir = Dir::new("race");
    let hard = 40 * MIB;
    let parts: Vec<_> = (0..4).map(|n| Arc::new(dir.part(n, hard, hard, 0))).collect();
    let has: Arc<Vec<AtomicU64>> = Arc::new((0..4).map(|_| AtomicU64::new(0)).collect());
    let most = Arc::new(AtomicU64::new(0));
    let grow = |n: usize| {
        let (part, has, most) = (parts[n].clone(), has.clone(), most.clone());
        std::thread::spawn(move || {
            let mut own = 0;
            for _ in 0..2000 {
                if part.admit(own + 65536) {
                    own += 65536;
                    has[n].store(own, Ordering::SeqCst);
                    most.fetch_max(has.iter().map(|h| h.load(Ordering::SeqCst)).sum(), Ordering::SeqCst);
                }
            }
        })
    };
    let all: Vec<_> = (0..4).map(grow).collect();
    all.into_iter().for_each(|thread| thread.join().unwrap());
    let most = most.load(Ordering::SeqCst);
    assert!(most <= hard && most > hard / 2, "{most} of {hard}");
}
