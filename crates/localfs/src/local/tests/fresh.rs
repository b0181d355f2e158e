//! Changes that a killed server had made and not recorded.

use super::journaled::over;
use super::*;
use crate::local::journaled::fresh::{ENTRIES, ENTRY_BYTES, FILE, Fresh};
use crate::local::journaled::names::{Change, Look};
use rustix::fd::AsFd;

fn call(n: u8) -> Bytes {
    vec![n].into()
}

/// The numbers of the calls that count as made.
fn numbers(made: &[hither_vfs::Answered]) -> Vec<u8> {
    let mut all: Vec<u8> = made.iter().map(|one| one.call[0]).collect();
    all.sort_unstable();
    all
}

fn open(state: &Dir, l: &Local, epoch: u64, boot: &[u8]) -> (Fresh, Vec<hither_vfs::Answered>) {
    let look = Look { sealer: &l.inner.sealer, top: l.inner.top.as_fd() };
    Fresh::open(&state.0, epoch, boot, &look).unwrap().unwrap()
}

/// After a kill the names in the directory show which begun calls were executed. Calls of another
/// journal or another boot are ignored.
/// Promise: S8c
#[tokio::test]
async fn names_prove_begun_calls() {
    let (dir, state, here) = (Dir::new(), Dir::new(), Dir::new());
    let l = over(&dir, &state);
    let base = top(&l).await;
    let mut fh = HashMap::new();
    for one in ["a", "b", "c", "d", "e", "f"] {
        fh.insert(one, create(&l, &root(), &base, one, 0o644).await.unwrap().node.fh);
    }
    let at = |one: &str| (base.clone(), Bytes::copy_from_slice(one.as_bytes()));
    let remove = |one: &str| Change::Remove {
        dir: base.clone(),
        name: at(one).1,
        victim: fh[one].clone(),
        is_dir: false,
    };
    let rename = |one: &str, to: &str| Change::Rename {
        from: at(one),
        to: at(to),
        moved: fh[one].clone(),
        replaced: None,
    };
    let link = |one: &str, to: &str| Change::Link { fh: fh[one].clone(), dir: base.clone(), name: at(to).1 };
    let (fresh, made) = open(&here, &l, 7, b"boot");
    assert!(made.is_empty());
    fresh.begun(&call(1), &remove("a"));
    fresh.begun(&call(2), &remove("b"));
    fresh.begun(&call(3), &rename("c", "c2"));
    fresh.begun(&call(4), &rename("d", "d2"));
    fresh.begun(&call(5), &link("d", "l"));
    fresh.begun(&call(6), &link("d", "l2"));
    fresh.made(&call(7), &fh["b"]);
    fresh.begun(&call(8), &remove("f"));
    fresh.failed(&call(8));
    // It is unknown which of the two calls made the change.
    fresh.begun(&call(9), &remove("e"));
    fresh.begun(&call(10), &rename("e", "e2"));
    let path = |one: &str| dir.path(one);
    std::fs::remove_file(path("a")).unwrap();
    std::fs::rename(path("c"), path("c2")).unwrap();
    std::fs::hard_link(path("d"), path("l")).unwrap();
    std::fs::rename(path("e"), path("e2")).unwrap();
    drop(fresh);
    let before = std::fs::read(here.path(FILE)).unwrap();
    assert_eq!(open(&here, &l, 7, b"another").1, []);
    std::fs::write(here.path(FILE), &before).unwrap();
    assert_eq!(open(&here, &l, 8, b"boot").1, []);
    std::fs::write(here.path(FILE), &before).unwrap();
    let (fresh, made) = open(&here, &l, 7, b"boot");
    assert_eq!(numbers(&made), [1, 3, 5, 7]);
    let fh_of = |n| made.iter().find(|one| one.call[0] == n).unwrap().fh.clone();
    assert_eq!((fh_of(1), fh_of(7)), (fh["a"].clone(), fh["b"].clone()));
    drop(fresh);
    // The names are checked at the open only. Later changes to them do not count.
    std::fs::remove_file(path("b")).unwrap();
    std::fs::remove_file(path("l")).unwrap();
    assert_eq!(numbers(&open(&here, &l, 7, b"boot").1), [1, 3, 5, 7]);
}

/// A damaged entry is ignored, and a truncated file has no entries. New entries replace the oldest
/// ones.
/// Promise: S8c
#[tokio::test]
async fn damaged_fresh_entries_are_ignored() {
    let (dir, state, here) = (Dir::new(), Dir::new(), Dir::new());
    let l = over(&dir, &state);
    let base = top(&l).await;
    let (fresh, _) = open(&here, &l, 7, b"boot");
    (1..=3).for_each(|n| fresh.made(&call(n), &base));
    let raw = std::fs::read(here.path(FILE)).unwrap();
    for at in 0..40 {
        let mut flipped = raw.clone();
        flipped[ENTRY_BYTES + at] ^= 1;
        std::fs::write(here.path(FILE), &flipped).unwrap();
        let left = numbers(&open(&here, &l, 7, b"boot").1);
        let unused = raw[ENTRY_BYTES + at..2 * ENTRY_BYTES].iter().all(|b| *b == 0);
        assert!(left == [1, 3] || unused && left == [1, 2, 3], "byte {at}: {left:?}");
    }
    std::fs::write(here.path(FILE), &raw[..raw.len() - 1]).unwrap();
    assert_eq!(open(&here, &l, 7, b"boot").1, []);
    // A name that is too long for an entry is not written, and does no harm.
    let (fresh, _) = open(&here, &l, 7, b"boot");
    let long = (base.clone(), Bytes::from(vec![b'x'; 600]));
    let change = Change::Rename { from: long.clone(), to: long, moved: base.clone(), replaced: None };
    fresh.begun(&call(1), &change);
    (0..ENTRIES + 2).for_each(|n| fresh.made(&n.to_le_bytes().to_vec().into(), &base));
    let made = open(&here, &l, 7, b"boot").1;
    assert_eq!(made.len(), ENTRIES as usize);
    assert!(!made.iter().any(|one| one.call[..] == 1_u64.to_le_bytes()));
}

/// The calls of a server that was killed before a record was durable are known, even if the journal
/// lost the records. After a power cut they are unknown.
/// Promise: S8c
#[tokio::test]
async fn fresh_calls_survive_kill() {
    for cut in [false, true] {
        let (dir, state) = (Dir::new(), Dir::new());
        let l = over(&dir, &state);
        let base = top(&l).await;
        let as_call = |n: u8| RequestContext { call: Some(call(n)), ..root() };
        let blank = std::fs::read(state.path("journal")).unwrap();
        l.mkdir(&as_call(1), &base, &name("d"), &mode(0o755)).await.unwrap();
        create(&l, &as_call(2), &base, "f", 0o644).await.unwrap();
        l.rename(&as_call(3), (&base, &name("f")), (&base, &name("g")), None, RenameFlags::empty())
            .await
            .unwrap();
        l.unlink(&as_call(4), &base, &name("g"), None).await.unwrap();
        assert_eq!(errno(l.unlink(&as_call(5), &base, &name("g"), None).await), libc::ENOENT);
        assert_eq!(numbers(&l.answered()), [1, 2, 3, 4]);
        drop(l);
        std::fs::write(state.path("journal"), &blank).unwrap();
        if cut {
            std::fs::remove_file(state.path("state").join(FILE)).unwrap();
        }
        for start in 0..2 {
            let expected: &[u8] = if cut { &[] } else { &[1, 2, 3, 4] };
            assert_eq!(numbers(&over(&dir, &state).answered()), expected, "start {start}");
            // These calls come from the file of calls whose records were freed.
            let _ = std::fs::remove_file(state.path("state").join(FILE));
        }
    }
}
