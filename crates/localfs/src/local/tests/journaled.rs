//! Stable writes survive a crash, whichever of them the file system had kept.

use super::*;
use crate::journal::{BLOCK_BYTES, Found, RealDevice};
use crate::local::journaled::live_writes;
use std::collections::HashMap;

const JOURNAL_BYTES: u64 = 4 << 20;

fn with_journal(dir: &Dir, state: &Dir, export_id: u64, discard: bool) -> Result<Local> {
    with_journal_of(dir, (state, state), export_id, discard)
}

/// A directory with the state directory of one and the journal of another.
fn with_journal_of(
    dir: &Dir,
    (state, journal): (&Dir, &Dir),
    export_id: u64,
    discard: bool,
) -> Result<Local> {
    let journal = JournalOptions { path: journal.path("journal"), size_bytes: JOURNAL_BYTES, discard };
    let options = LocalOptions {
        state_dir: Some(state.path("state")),
        export_id,
        journal: Some(journal),
        known_max: 64,
        ..Default::default()
    };
    Local::open(&dir.0, options, env())
}

/// A directory with a journal.
pub(super) fn over(dir: &Dir, state: &Dir) -> Local {
    with_journal(dir, state, 1, false).unwrap()
}

pub(super) fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n ^ (n >> 32)
}

/// The expected contents of a file.
#[derive(Default)]
struct Expected {
    fh: Option<Fh>,
    bytes: Vec<u8>,
}

async fn one(l: &Local, cx: &RequestContext, expected: &mut Expected, dice: u64) {
    let Some(fh) = &expected.fh else { panic!("it was made") };
    let file = File { fh, open: None };
    let (at, len) = (mix(dice ^ 1) % 30_000, 1 + mix(dice ^ 2) % 20_000);
    let end = (at + len) as usize;
    let bytes: Vec<u8> = (0..len).map(|i| mix(dice).wrapping_add(i) as u8).collect();
    match dice % 16 {
        0 => {
            let set = SetAttr { size_bytes: Some(at), ..Default::default() };
            l.setattr(cx, file, &set).await.unwrap();
            expected.bytes.resize(at as usize, 0);
            return;
        }
        1 => {
            let range = FileRange { start_bytes: at, end_bytes: at + len };
            l.deallocate(cx, file, range).await.unwrap();
            let size = expected.bytes.len();
            expected.bytes[size.min(at as usize)..size.min(end)].fill(0);
            return;
        }
        2..5 => {
            l.write(cx, file, at, Bytes::from(bytes.clone()).into(), Stability::Unstable).await.unwrap();
            l.commit(cx, file).await.unwrap();
        }
        _ => {
            let wrote = l.write(cx, file, at, Bytes::from(bytes.clone()).into(), Stability::Stable).await;
            assert_eq!(wrote.unwrap().bytes, len);
        }
    }
    if expected.bytes.len() < end {
        expected.bytes.resize(end, 0);
    }
    expected.bytes[at as usize..end].copy_from_slice(&bytes);
}

/// Simulates a power cut: damages some of the file bytes that the journal holds.
fn damage(dir: &Dir, state: &Dir, l: Local, names: &HashMap<Fh, String>, seed: u64) -> usize {
    let owner = l.inner.journal.as_ref().unwrap().owner();
    drop(l);
    let device = Arc::new(RealDevice::open(&state.path("journal"), None).unwrap());
    let found = Found::open(device, Some(owner)).unwrap();
    let mut count = 0;
    for (i, (fh, at, len)) in live_writes(&found).unwrap().into_iter().enumerate() {
        let out = std::fs::File::options().write(true).open(dir.path(&names[&fh])).unwrap();
        if !mix(seed ^ i as u64).is_multiple_of(3) {
            out.write_all_at(&vec![0xdd; len], at).unwrap();
            count += 1;
        }
    }
    count
}

/// Acknowledged stable writes survive any loss of bytes that were not synced to the file system.
/// Promise: S8
#[tokio::test]
async fn stable_writes_survive_unsynced_loss() {
    let (dir, state) = (Dir::new(), Dir::new());
    let cx = root();
    let mut files: Vec<Expected> = (0..6).map(|_| Expected::default()).collect();
    let mut names = HashMap::new();
    let mut damaged = 0;
    for round in 0..48_u64 {
        let l = with_journal(&dir, &state, 1, false).unwrap();
        let base = top(&l).await;
        for (i, file) in files.iter_mut().enumerate() {
            if file.fh.is_none() {
                let f = create(&l, &cx, &base, &format!("f{i}"), 0o644).await.unwrap();
                l.close(&cx, &f.node.fh, f.open).await.unwrap();
                names.insert(f.node.fh.clone(), format!("f{i}"));
                file.fh = Some(f.node.fh);
            }
            let fh = file.fh.clone().unwrap();
            let found = read_all(&l, &cx, &fh).await.unwrap();
            assert!(found[..] == file.bytes[..], "round {round}, file {i}: not what was acknowledged");
        }
        for n in 0..mix(round) % 40 {
            let dice = mix(round * 1000 + n);
            one(&l, &cx, &mut files[(dice >> 8) as usize % 6], dice).await;
        }
        if round % 8 == 7 {
            // Replay does not need a removed file.
            let i = (round / 8) as usize;
            l.unlink(&cx, &base, &name(&format!("f{i}")), None).await.unwrap();
            let f = create(&l, &cx, &base, &format!("f{i}"), 0o644).await.unwrap();
            l.close(&cx, &f.node.fh, f.open).await.unwrap();
            let gone = files[i].fh.replace(f.node.fh.clone()).unwrap();
            names.insert(f.node.fh, format!("f{i}"));
            names.insert(gone, "removed".into());
            std::fs::write(dir.path("removed"), b"").unwrap();
            files[i].bytes.clear();
        }
        damaged += damage(&dir, &state, l, &names, round);
    }
    assert!(damaged > 100, "{damaged}: not much was lost");
}

/// A call that measures its waits gets those for the journal apart from those for the files. The
/// sum is no longer than the call.
#[tokio::test]
async fn journal_wait_is_measured_apart() {
    let (dir, state) = (Dir::new(), Dir::new());
    let l = over(&dir, &state);
    let cx = || RequestContext { spent: Some(Arc::default()), ..root() };
    let spent = |cx: &RequestContext| {
        let spent = cx.spent.as_ref().unwrap();
        (spent.store(), spent.journal())
    };
    let top = l.root(&root()).await.unwrap().fh;
    let fh =
        l.mknod(&root(), &top, &name("f"), &Special::Regular, &SetAttr::default()).await.unwrap().node.fh;
    let file = File { fh: &fh, open: None };
    for stability in [Stability::Stable, Stability::Unstable] {
        let cx = cx();
        let began = tokio::time::Instant::now();
        l.write(&cx, file, 0, Bytes::from(vec![1; 5000]).into(), stability).await.unwrap();
        let (store, journal) = spent(&cx);
        assert!(store > Duration::ZERO && store + journal <= began.elapsed(), "{store:?} {journal:?}");
        assert_eq!(journal > Duration::ZERO, stability == Stability::Stable, "{journal:?}");
    }
    let cx = cx();
    l.unlink(&cx, &top, &name("f"), None).await.unwrap();
    assert!(spent(&cx).0 > Duration::ZERO);
}

/// The replay of a write restores its modification time.
#[tokio::test]
async fn replay_restores_modification_time() {
    let (dir, state) = (Dir::new(), Dir::new());
    let (l, cx) = (with_journal(&dir, &state, 1, false).unwrap(), root());
    let base = top(&l).await;
    let f = create(&l, &cx, &base, "f", 0o644).await.unwrap();
    let file = File { fh: &f.node.fh, open: None };
    let data = Bytes::from_static(b"stable");
    let wrote = l.write(&cx, file, 0, data.into(), Stability::Stable).await.unwrap();
    let mtime = wrote.attrs.unwrap().attr.mtime;
    let names = HashMap::from([(f.node.fh.clone(), "f".to_string())]);
    damage(&dir, &state, l, &names, 1);
    // The disk has the state from before the write.
    std::fs::write(dir.path("f"), b"garbage").unwrap();
    let before = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000);
    std::fs::File::open(dir.path("f")).unwrap().set_modified(before).unwrap();
    let l = with_journal(&dir, &state, 1, false).unwrap();
    assert_eq!(l.getattr(&cx, file).await.unwrap().attr.mtime, mtime);
    assert_eq!(&read_all(&l, &cx, &f.node.fh).await.unwrap()[..], b"stablee");
}

/// After a kill of the server, replay leaves later changes by local programs as they are.
/// Promise: S8
#[tokio::test]
async fn replay_keeps_local_changes() {
    type Change = fn(&std::fs::File);
    let changes: [(&str, Change); 6] = [
        ("nothing", |_| {}),
        ("old time", |f| f.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(7)).unwrap()),
        ("new time", |f| f.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(4_000_000_000)).unwrap()),
        ("append", |f| f.write_all_at(b"local", 5000).unwrap()),
        ("longer", |f| f.set_len(9000).unwrap()),
        ("mode", |f| f.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap()),
    ];
    let (dir, state) = (Dir::new(), Dir::new());
    let (l, cx) = (with_journal(&dir, &state, 1, false).unwrap(), root());
    let base = top(&l).await;
    for (at, _) in &changes {
        let f = create(&l, &cx, &base, at, 0o644).await.unwrap();
        for part in 0..5 {
            let data = Bytes::from(vec![part; 1000]).into();
            let file = File { fh: &f.node.fh, open: None };
            l.write(&cx, file, u64::from(part) * 1000, data, Stability::Stable).await.unwrap();
        }
        l.close(&cx, &f.node.fh, f.open).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    let look = |at: &str| {
        let stat = std::fs::metadata(dir.path(at)).unwrap();
        (stat.modified().unwrap(), stat.permissions(), std::fs::read(dir.path(at)).unwrap())
    };
    let before = changes.map(|(at, change)| {
        change(&std::fs::File::options().read(true).write(true).open(dir.path(at)).unwrap());
        look(at)
    });
    drop(l);
    let l = with_journal(&dir, &state, 1, false).unwrap();
    for ((at, _), before) in changes.iter().zip(before) {
        assert!(look(at) == before, "{at}");
    }
    drop(l);
}

/// After a failure of the journal its records are void, and writes are stable in the file system.
/// The next start uses a new journal.
/// Promise: S9
#[tokio::test]
async fn failed_journal_is_never_replayed() {
    let (dir, state) = (Dir::new(), Dir::new());
    let (l, cx) = (with_journal(&dir, &state, 1, false).unwrap(), root());
    let base = top(&l).await;
    let f = create(&l, &cx, &base, "f", 0o644).await.unwrap();
    let file = File { fh: &f.node.fh, open: None };
    let write = async |l: &Local, data: &'static [u8]| {
        l.write(&cx, file, 0, Bytes::from_static(data).into(), Stability::Stable).await.unwrap().bytes
    };
    assert_eq!(write(&l, b"old").await, 3);
    // Simulates a failure of the device.
    l.inner.journal.as_ref().unwrap().log.close(false).unwrap();
    assert_eq!(write(&l, b"new").await, 3);
    assert!(state.path("state/journal-void").exists());
    assert_eq!(write(&l, b"newer").await, 5);
    drop(l);
    let l = with_journal(&dir, &state, 1, false).unwrap();
    assert_eq!(&read_all(&l, &cx, &f.node.fh).await.unwrap()[..], b"newer", "an old record was applied");
    assert_eq!(write(&l, b"again").await, 5);
    drop(l);
    std::fs::write(dir.path("f"), b"lost!").unwrap();
    let l = with_journal(&dir, &state, 1, false).unwrap();
    assert_eq!(&read_all(&l, &cx, &f.node.fh).await.unwrap()[..], b"again", "the new journal is used");
}

/// After an error of the disk the journal keeps its records, and calls that would free them fail.
/// The next start replays the records.
/// Promise: S8
#[tokio::test]
async fn disk_error_keeps_journal_records() {
    let (dir, state, cx) = (Dir::new(), Dir::new(), root());
    let l = with_journal(&dir, &state, 1, false).unwrap();
    let base = top(&l).await;
    let f = create(&l, &cx, &base, "f", 0o644).await.unwrap();
    let file = File { fh: &f.node.fh, open: None };
    let write = async |l: &Local, data: &'static [u8]| {
        l.write(&cx, file, 0, Bytes::from_static(data).into(), Stability::Stable).await.map(|w| w.bytes)
    };
    assert_eq!(write(&l, b"stable").await.unwrap(), 6);
    // Another descriptor got an error of the disk. The next sync may succeed although the bytes are
    // lost.
    let journal = l.inner.journal.as_ref().unwrap();
    journal.break_disk();
    l.inner.disk_failed(&Error::new(libc::EIO));
    assert!(journal.log.checkpoint().is_err(), "the room would be given back");
    assert_eq!(errno(l.commit(&cx, file).await), libc::EIO, "the record would be void");
    let cut = SetAttr { size_bytes: Some(1), ..Default::default() };
    assert_eq!(errno(l.setattr(&cx, file, &cut).await), libc::EIO);
    // Without the journal there is no record of the bytes.
    journal.log.close(false).unwrap();
    assert_eq!(errno(write(&l, b"newer").await), libc::EIO);
    assert!(!state.path("state/journal-void").exists());
    drop(l);
    std::fs::write(dir.path("f"), b"lost??").unwrap();
    let l = with_journal(&dir, &state, 1, false).unwrap();
    assert_eq!(&read_all(&l, &cx, &f.node.fh).await.unwrap()[..], b"stable");
    assert_eq!(write(&l, b"again!").await.unwrap(), 6);
}

/// A journal of another export, or a file that is no journal, is refused.
/// Promise: S9
#[tokio::test]
async fn foreign_journal_file_is_refused() {
    let (dir, state) = (Dir::new(), Dir::new());
    drop(with_journal(&dir, &state, 1, false).unwrap());
    let foreign = with_journal(&dir, &state, 2, false).unwrap_err().to_string();
    assert!(foreign.contains("another machine or file system"), "{foreign}");
    drop(with_journal(&dir, &state, 2, true).unwrap());
    drop(with_journal(&dir, &state, 2, false).unwrap());
    std::fs::write(state.path("journal"), vec![7; 4 << 20]).unwrap();
    assert!(with_journal(&dir, &state, 2, false).unwrap_err().to_string().contains("no journal"));
}

/// A journal with a damaged batch before whole ones, and a blank one that was in use, are refused
/// and left as they are. The error names the place and the option.
/// Promise: S8
#[tokio::test]
async fn damaged_journal_is_refused() {
    let (dir, state, cx) = (Dir::new(), Dir::new(), root());
    let l = with_journal(&dir, &state, 1, false).unwrap();
    let f = create(&l, &cx, &top(&l).await, "f", 0o644).await.unwrap();
    let file = File { fh: &f.node.fh, open: None };
    for (at, word) in [(0, "first"), (5, "other"), (10, "third")] {
        l.write(&cx, file, at, Bytes::from(word).into(), Stability::Stable).await.unwrap();
    }
    drop(l);
    let path = state.path("journal");
    let sound = std::fs::read(&path).unwrap();
    let place = sound.windows(5).position(|bytes| bytes == b"other").unwrap();
    let mut damaged = sound.clone();
    damaged[place] ^= 1;
    let mut blank = sound.clone();
    blank[..2 * BLOCK_BYTES].fill(0);
    for (bytes, reason) in [
        (damaged, format!(" at byte {} is damaged", place / BLOCK_BYTES * BLOCK_BYTES)),
        (blank, "it is blank, but was in use".into()),
    ] {
        std::fs::write(&path, &bytes).unwrap();
        let error = with_journal(&dir, &state, 1, false).unwrap_err().to_string();
        assert!(error.contains(&reason) && error.contains("--journal-discard"), "{error}");
        assert!(std::fs::read(&path).unwrap() == bytes, "the refused journal was changed");
    }
    std::fs::write(&path, &sound).unwrap();
    std::fs::write(dir.path("f"), b"").unwrap();
    drop(with_journal(&dir, &state, 1, false).unwrap());
    assert_eq!(std::fs::read(dir.path("f")).unwrap(), b"firstotherthird");
}

/// Records are applied only with the state directory that they were written with: its secret opens
/// their handles.
/// Promise: S9
#[tokio::test]
async fn journal_records_need_state_directory() {
    let (dir, state, other, cx) = (Dir::new(), Dir::new(), Dir::new(), root());
    let l = with_journal(&dir, &state, 1, false).unwrap();
    let f = create(&l, &cx, &top(&l).await, "f", 0o644).await.unwrap();
    let file = File { fh: &f.node.fh, open: None };
    l.write(&cx, file, 0, Bytes::from_static(b"stable").into(), Stability::Stable).await.unwrap();
    drop(l);
    std::fs::write(dir.path("f"), b"").unwrap();
    let foreign = with_journal_of(&dir, (&other, &state), 1, false).unwrap_err().to_string();
    assert!(foreign.contains("another state directory"), "{foreign}");
    let l = with_journal(&dir, &state, 1, false).unwrap();
    assert_eq!(std::fs::read(dir.path("f")).unwrap(), b"stable");
    l.shutdown(&cx).await.unwrap();
    drop(l);
    // An empty journal may be used with any state directory, which formats it again.
    let l = with_journal_of(&dir, (&other, &state), 1, false).unwrap();
    let fh =
        l.walk(&cx, PathRef::name(&top(&l).await, &name("f")), WalkRequest::default()).await.unwrap().steps
            [0]
        .fh
        .clone();
    let file = File { fh: &fh, open: None };
    l.write(&cx, file, 0, Bytes::from_static(b"newer").into(), Stability::Stable).await.unwrap();
    drop(l);
    let foreign = with_journal(&dir, &state, 1, false).unwrap_err().to_string();
    assert!(foreign.contains("another state directory"), "{foreign}");
    drop(with_journal_of(&dir, (&other, &state), 1, false).unwrap());
}

/// The replay of a removal spares the file that a later rename put under the same name.
/// Promise: S8b
#[tokio::test]
async fn replayed_removal_spares_moved_file() {
    let (dir, state, cx) = (Dir::new(), Dir::new(), root());
    let l = with_journal(&dir, &state, 1, false).unwrap();
    let base = top(&l).await;
    let f = create(&l, &cx, &base, "a", 0o644).await.unwrap();
    l.close(&cx, &f.node.fh, f.open).await.unwrap();
    l.link(&cx, &f.node.fh, &base, &name("b")).await.unwrap();
    l.unlink(&cx, &base, &name("a"), None).await.unwrap();
    l.rename(&cx, (&base, &name("b")), (&base, &name("a")), None, RenameFlags::empty()).await.unwrap();
    l.setattr(&cx, File { fh: &f.node.fh, open: None }, &mode(0o600)).await.unwrap();
    drop(l);
    for _ in 0..2 {
        drop(with_journal(&dir, &state, 1, false).unwrap());
    }
    let found = std::fs::metadata(dir.path("a")).unwrap();
    assert_eq!((found.nlink(), found.mode() & 0o7777), (1, 0o600));
    assert!(!dir.path("b").exists());
}

/// A write clears set-id bits, and a replay of its record would not. So such a write has no record.
/// A replay leaves its file unchanged.
/// Promise: S8b
#[tokio::test]
async fn replay_restores_no_setid_bits() {
    let (dir, state, cx) = (Dir::new(), Dir::new(), root());
    std::fs::set_permissions(&dir.0, std::fs::Permissions::from_mode(0o777)).unwrap();
    let l = with_journal(&dir, &state, 1, false).unwrap();
    let theirs = RequestContext::new(Arc::new(Cred { uid: 1000, gid: 1000, groups: Default::default() }));
    let f = create(&l, &theirs, &top(&l).await, "f", 0o755).await.unwrap();
    let file = File { fh: &f.node.fh, open: Some(f.open) };
    let write = async |cx: &RequestContext, at: u64| {
        let wrote = l.write(cx, file, at, Bytes::from_static(b"bytes").into(), Stability::Stable).await;
        assert_eq!(wrote.unwrap().bytes, 5);
        std::fs::metadata(dir.path("f")).unwrap().mode() & 0o7777
    };
    write(&theirs, 0).await;
    l.setattr(&theirs, file, &mode(0o6755)).await.unwrap();
    assert_eq!(write(&theirs, 5).await, 0o755, "the kernel takes them away");
    assert_eq!(write(&theirs, 10).await, 0o755);
    let owner = l.inner.journal.as_ref().unwrap().owner();
    drop(l);
    let found =
        Found::open(Arc::new(RealDevice::open(&state.path("journal"), None).unwrap()), Some(owner)).unwrap();
    let live: Vec<_> = live_writes(&found).unwrap().into_iter().map(|(_, at, _)| at).collect();
    assert_eq!(live, [10], "what came before is where it belongs, with its permissions");
    drop(found);
    let l = with_journal(&dir, &state, 1, false).unwrap();
    assert_eq!(std::fs::metadata(dir.path("f")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(&read_all(&l, &cx, &f.node.fh).await.unwrap()[..], b"bytesbytesbytes");
}

/// If a file does not accept bytes at the replay, they are kept in another file. The server starts
/// all the same.
/// Promise: S8
#[tokio::test]
async fn unappliable_bytes_are_kept_aside() {
    let (dir, state, cx) = (Dir::new(), Dir::new(), root());
    let sleep = std::fs::read("/bin/sleep").unwrap();
    let end = sleep.len() as u64;
    let fh = {
        let l = with_journal(&dir, &state, 1, false).unwrap();
        let f = create(&l, &cx, &top(&l).await, "f", 0o755).await.unwrap();
        l.close(&cx, &f.node.fh, f.open).await.unwrap();
        f.node.fh
    };
    std::fs::write(dir.path("f"), &sleep).unwrap();
    let write = async |l: &Local, data: &'static [u8]| {
        let file = File { fh: &fh, open: None };
        l.write(&cx, file, end, Bytes::from_static(data).into(), Stability::Stable).await.unwrap();
    };
    let kept = || {
        let names = std::fs::read_dir(state.path("state")).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.display().to_string().contains("journal-kept-")).collect::<Vec<_>>()
    };
    // The file is executed at the next start, once with all its bytes and once without.
    for (is_lost, expected) in [(false, &b"newer!"[..]), (true, b"lost!!")] {
        let l = with_journal(&dir, &state, 1, false).unwrap();
        write(&l, b"stable").await;
        write(&l, b"newer!").await;
        drop(l);
        if is_lost {
            let file = std::fs::File::options().write(true).open(dir.path("f")).unwrap();
            file.write_all_at(b"lost!!", end).unwrap();
        }
        // A thread of the dropped server may have the file open for a moment.
        let mut busy = loop {
            match std::process::Command::new(dir.path("f")).arg("1000").spawn() {
                Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                started => break started.unwrap(),
            }
        };
        let l = with_journal(&dir, &state, 1, false);
        busy.kill().unwrap();
        busy.wait().unwrap();
        let found = read_all(&l.unwrap(), &cx, &fh).await.unwrap();
        assert_eq!(&found[end as usize..], expected);
        assert_eq!(kept().len(), usize::from(is_lost));
    }
    let kept = std::fs::read(&kept()[0]).unwrap();
    assert_eq!(&kept[end as usize..], b"newer!");
    // The log reported it once. Later starts do not write old bytes over newer ones.
    let l = with_journal(&dir, &state, 1, false).unwrap();
    assert_eq!(&read_all(&l, &cx, &fh).await.unwrap()[end as usize..], b"lost!!");
}

/// Answered calls are known after a restart, from the journal or from the file beside it. Failed
/// calls are not.
/// Promise: S8c
#[tokio::test]
async fn answered_calls_survive_restart() {
    let (dir, state) = (Dir::new(), Dir::new());
    let l = with_journal(&dir, &state, 1, false).unwrap();
    let base = top(&l).await;
    let as_call = |n: u8| RequestContext { call: Some(vec![n].into()), ..root() };
    let file =
        l.mknod(&as_call(1), &base, &name("f"), &Special::Regular, &mode(0o644)).await.unwrap().node.fh;
    let sub = l.mkdir(&as_call(2), &base, &name("d"), &mode(0o755)).await.unwrap().node.fh;
    let target = Bytes::from_static(b"f");
    let link = l.symlink(&as_call(3), &base, &name("s"), &target, &SetAttr::default()).await.unwrap().node.fh;
    let at = File { fh: &file, open: None };
    let data = Bytes::from_static(b"stable");
    l.write(&as_call(4), at, 0, data.into(), Stability::Stable).await.unwrap();
    l.link(&as_call(5), &file, &sub, &name("g")).await.unwrap();
    l.rename(&as_call(6), (&base, &name("f")), (&base, &name("h")), None, RenameFlags::empty())
        .await
        .unwrap();
    l.setattr(&as_call(7), at, &mode(0o600)).await.unwrap();
    let cut = SetAttr { size_bytes: Some(3), ..Default::default() };
    l.setattr(&as_call(8), at, &cut).await.unwrap();
    l.unlink(&as_call(9), &base, &name("s"), None).await.unwrap();
    // A failed call and a call without a name are not remembered.
    assert_eq!(errno(l.unlink(&as_call(10), &base, &name("s"), None).await), libc::ENOENT);
    // The bytes of a write to a file with set-id bits become stable without a record of their own.
    l.setattr(&root(), at, &mode(0o4755)).await.unwrap();
    l.write(&as_call(11), at, 0, Bytes::from_static(b"set-id").into(), Stability::Stable).await.unwrap();
    let all = [(1, &file, 0), (2, &sub, 0), (3, &link, 0), (4, &file, 6), (5, &file, 0)];
    let all = all.into_iter().chain([(6, &file, 0), (7, &file, 0), (8, &file, 0), (9, &link, 0)]);
    let all = all.chain([(11, &file, 6)]);
    let all: Vec<Answered> =
        all.map(|(n, fh, bytes)| Answered { call: vec![n].into(), fh: fh.clone(), bytes }).collect();
    assert_eq!(l.answered(), all);
    drop(l);
    // The calls come from the journal, then from the file beside it, then from the file after an
    // orderly end.
    for n in 0..3 {
        let l = with_journal(&dir, &state, 1, false).unwrap();
        assert_eq!(l.answered(), all, "start {n}");
        if n == 1 {
            l.shutdown(&root()).await.unwrap();
        }
    }
    assert!(with_journal(&dir, &state, 1, true).unwrap().answered().is_empty(), "they were discarded");
}

/// Changes of names are not replayed if it is unknown which of them were made. Only on ext4: the
/// other file systems have no records of names and attributes.
/// Promise: S8b
#[tokio::test]
async fn replay_needs_journal_position() {
    let (dir, state, cx) = (Dir::new(), Dir::new(), root());
    let l = with_journal(&dir, &state, 1, false).unwrap();
    if l.inner.journal.as_ref().unwrap().names().is_none() {
        return;
    }
    let base = top(&l).await;
    let f = create(&l, &cx, &base, "a", 0o644).await.unwrap();
    l.close(&cx, &f.node.fh, f.open).await.unwrap();
    l.rename(&cx, (&base, &name("a")), (&base, &name("b")), None, RenameFlags::empty()).await.unwrap();
    drop(l);
    let mark = state.path("state/journal-position");
    let kept = std::fs::read(&mark).unwrap();
    std::fs::remove_file(&mark).unwrap();
    let missing = with_journal(&dir, &state, 1, false).unwrap_err().to_string();
    assert!(
        missing.contains("journal-position is missing; it is unknown which changes of the journal were made"),
        "{missing}"
    );
    std::fs::write(&mark, kept).unwrap();
    let touched = with_journal(&dir, &state, 1, false).unwrap_err().to_string();
    assert!(touched.contains("another program changed the time of journal-position"), "{touched}");
    drop(with_journal(&dir, &state, 1, true).unwrap());
    drop(with_journal(&dir, &state, 1, false).unwrap());
}

/// Not a test: prints the cost of stable writes of 8 KiB with and without a journal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn measure_stable_writes() {
    for journaled in [false, true] {
        for clients in [1_usize, 8, 64] {
            let (dir, state) = (Dir::new(), Dir::new());
            let size_bytes = 256 << 20;
            let journal = JournalOptions { path: state.path("journal"), size_bytes, discard: false };
            let options = LocalOptions { journal: journaled.then_some(journal), ..Default::default() };
            let l = Arc::new(Local::open(&dir.0, options, env()).unwrap());
            let (base, cx) = (top(&l).await, root());
            let each = 4000 / clients;
            let mut files = Vec::new();
            for i in 0..clients {
                files.push(create(&l, &cx, &base, &format!("f{i}"), 0o644).await.unwrap());
            }
            let began = tokio::time::Instant::now();
            let tasks: Vec<_> = files
                .into_iter()
                .map(|f| {
                    let (l, cx, data) = (l.clone(), cx.clone(), Bytes::from(vec![5; 8192]));
                    tokio::spawn(async move {
                        let file = File { fh: &f.node.fh, open: Some(f.open) };
                        for i in 0..each as u64 {
                            let at = (mix(i) % 512) * 8192;
                            l.write(&cx, file, at, data.clone().into(), Stability::Stable).await.unwrap();
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            let rate = (each * clients) as f64 / began.elapsed().as_secs_f64();
            println!("journal {journaled}, {clients} clients: {rate:.0} writes/s");
        }
    }
}
