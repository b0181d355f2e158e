//! Tests of delayed writes with a journal: its content, crashes, and the replay to the server.

mod cuts;
mod own;
mod refused;

use super::gate::Verdict;
use super::*;
use crate::wal::tests::Memory;
use crate::wal::{Outcome, Wal};
use hither_vfs::{FileRange, NoLeases, RenameFlags, XattrMode};
use std::collections::BTreeMap;
use std::path::PathBuf;
use tokio::time::Instant;

/// A temporary directory of one test, removed at its end.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Self {
        static COUNT: Counter = Counter::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("hither-wal-{}-{n}", std::process::id())))
    }
}

impl Temporary {
    /// A directory that contains a journal.
    fn of(journal: &BTreeMap<u64, Vec<u8>>) -> Self {
        let dir = Self::new();
        std::fs::create_dir_all(&dir.0).unwrap();
        for (number, bytes) in journal {
            std::fs::write(dir.0.join(format!("{number:016x}.wal")), bytes).unwrap();
        }
        let own = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&dir.0, own).unwrap();
        dir
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) struct Journaled {
    pub s: Stack,
    pub memory: Memory,
    wal: Arc<Wal>,
}

/// Options under which no bytes are sent because of their age. The result of a test is then
/// independent of its duration.
fn options(exclusive: bool) -> WriteBackOptions {
    let dirty_age = Duration::from_secs(3600);
    WriteBackOptions { exclusive, delay_attributes: false, dirty_age, ..WriteBackOptions::default() }
}

impl Journaled {
    async fn new(options: WriteBackOptions) -> Self {
        let env = env();
        let model = Arc::new(Model::new(env.clone(), Duration::from_secs(3), u64::MAX));
        Self::over(Gate::new(model), options, env).await
    }

    pub async fn over(gate: Arc<Gate>, options: WriteBackOptions, env: Env) -> Self {
        let memory = Memory::default();
        let wal = Wal::over(Box::new(memory.clone()), 1 << 30);
        let dirty = WriteBack::with_journal(gate.clone(), gate.clone(), env, options, Some(wal.clone()));
        let root = dirty.root(&cx()).await.unwrap().fh;
        Self { s: Stack { dirty, gate, root }, memory, wal }
    }

    /// Waits for answers. The length of a file does not show them: the last chunk can be first.
    async fn answered(&self, writes: u64) {
        until("the answers to WRITEs", async || self.s.dirty.stats().writes_out >= writes).await;
    }

    /// Waits until a kill would keep all records.
    async fn noted(&self) {
        self.wal.log().written(self.wal.log().last()).await.unwrap();
    }

    fn bytes(&self) -> u64 {
        self.wal.stats().journal_bytes
    }

    /// Simulates a kill of the daemon at this moment. `meanwhile` changes the server before the
    /// next daemon replays the present journal.
    async fn crash(&self, exclusive: bool, meanwhile: impl AsyncFnOnce(&Stack)) -> (Outcome, Vec<Vec<u8>>) {
        self.crash_as(self.memory.killed(), exclusive, meanwhile).await
    }

    /// Like [`Self::crash`], with an earlier state of a working journal.
    pub async fn crash_with(
        &self,
        journal: BTreeMap<u64, Vec<u8>>,
        exclusive: bool,
        meanwhile: impl AsyncFnOnce(&Stack),
    ) -> (Outcome, Vec<Vec<u8>>) {
        self.crash_as((journal, false), exclusive, meanwhile).await
    }

    async fn crash_as(
        &self,
        (journal, failed): (BTreeMap<u64, Vec<u8>>, bool),
        exclusive: bool,
        meanwhile: impl AsyncFnOnce(&Stack),
    ) -> (Outcome, Vec<Vec<u8>>) {
        let dir = Temporary::of(&journal);
        if failed {
            std::fs::write(dir.0.join("failed"), "").unwrap();
        }
        meanwhile(&self.s).await;
        let (wal, left) = Wal::open(&dir.0, ("here", "there"), 1 << 30, &env()).await.unwrap();
        let below = self.s.gate.server();
        let outcome = wal.recover(below, left, "here", exclusive, 1 << 20).await.unwrap();
        let kept = wal.conflicts();
        let mut all = Vec::new();
        for (name, about) in kept.list().unwrap() {
            let about = about.unwrap();
            let data = kept.data(&name).unwrap();
            for r in about.ranges {
                let mut bytes = vec![0; r.len_bytes as usize];
                std::os::unix::fs::FileExt::read_exact_at(&data, &mut bytes, r.start_bytes).unwrap();
                all.push(bytes);
            }
        }
        wal.close();
        let left: Vec<_> = std::fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(
            !left.iter().any(|n| n.to_string_lossy().ends_with(".wal")),
            "all records were decided: {left:?}"
        );
        (outcome, all)
    }
}

/// An acknowledged, unsent write survives a crash. An fsync or close empties the journal.
/// Promise: 6c
#[tokio::test]
async fn acknowledged_writes_survive_crash() {
    let j = Journaled::new(options(false)).await;
    let f = j.s.open("f").await;
    j.s.write(&f, 0, pattern(1, 1000)).await.unwrap();
    j.s.write(&f, 500, pattern(9, 1000)).await.unwrap();
    assert_eq!((j.bytes(), j.s.below(&f.0).await.len()), (1500, 0));
    let (outcome, _) = j.crash(false, async |_| ()).await;
    assert_eq!((outcome.files, outcome.bytes, outcome.kept.len()), (1, 1500, 0));
    let mut want = pattern(1, 500).to_vec();
    want.extend_from_slice(&pattern(9, 1000));
    assert_eq!(j.s.below(&f.0).await, want);
    j.s.commit(&f).await.unwrap();
    assert_eq!((j.bytes(), j.wal.stats().journal_files), (0, 0));
    j.s.write(&f, 0, pattern(5, 3 * MIB)).await.unwrap();
    assert!(j.bytes() > 0);
    j.s.close(&f).await.unwrap();
    assert_eq!((j.bytes(), j.wal.stats().journal_files), (0, 0));
    let (outcome, _) = j.crash(false, async |_| ()).await;
    assert_eq!(outcome, Outcome::default());
}

/// Under `exclusive`, fsync, close and O_SYNC wait for the journal only, and their bytes survive a
/// crash right after.
/// Promise: 6e
#[tokio::test]
async fn exclusive_fsync_waits_for_journal() {
    let j = Journaled::new(options(true)).await;
    let f = j.s.open("f").await;
    j.s.gate.shut("write");
    j.s.write(&f, 0, pattern(1, 100)).await.unwrap();
    j.s.commit(&f).await.unwrap();
    let at = At { fh: &f.0, open: Some(f.1) };
    j.s.dirty.write(&cx(), at, 100, Data::from(pattern(2, 100)), Stability::Stable).await.unwrap();
    assert_eq!(j.wal.stats().journal_local_commits, 2);
    j.s.close(&f).await.unwrap();
    let (outcome, _) = j.crash(true, async |_| ()).await;
    assert_eq!((outcome.files, outcome.bytes), (1, 200));
    assert_eq!(j.s.below(&f.0).await, [pattern(1, 100), pattern(2, 100)].concat());
    j.s.gate.open_all();
    j.s.dirty.sync().await.unwrap();
    until("the bytes leave the journal when the server has them", async || j.bytes() == 0).await;
}

/// Under `close=delegated`, the same holds for delegated files, and for no others.
/// Promise: 6a'
#[tokio::test(start_paused = true)]
async fn delegated_fsync_waits_for_journal() {
    let j = Journaled::new(WriteBackOptions { delegated_close: true, ..options(false) }).await;
    j.s.dirty.subscribe(Arc::new(histories::Nobody));
    let f = j.s.open("f").await;
    j.s.write(&f, 0, pattern(1, 100)).await.unwrap();
    j.s.commit(&f).await.unwrap();
    assert_eq!((j.wal.stats().journal_local_commits, j.s.below(&f.0).await.len()), (0, 100));
    j.s.gate.delegate(true);
    j.s.gate.shut("write");
    j.s.write(&f, 100, pattern(2, 100)).await.unwrap();
    j.s.commit(&f).await.unwrap();
    let at = At { fh: &f.0, open: Some(f.1) };
    j.s.dirty.write(&cx(), at, 200, Data::from(pattern(3, 100)), Stability::Stable).await.unwrap();
    assert_eq!(j.wal.stats().journal_local_commits, 2);
    j.s.close(&f).await.unwrap();
    let (outcome, kept) = j.crash(false, async |_| ()).await;
    assert_eq!((outcome.files, outcome.bytes, kept.len()), (1, 200, 0));
    let all = [pattern(1, 100), pattern(2, 100), pattern(3, 100)].concat();
    assert_eq!(j.s.below(&f.0).await, all);
    // Promised bytes are kept when the delegation is lost and the server is full.
    j.s.gate.delegate(false);
    j.s.gate.fail("write", libc::ENOSPC);
    j.s.gate.open_all();
    j.s.gate.upcalls().revoke(&f.0).await;
    let next = j.s.open("f").await;
    let _ = j.s.close(&next).await;
    assert!(j.bytes() > 0);
    j.s.gate.fail("write", 0);
    j.s.dirty.sync().await.unwrap();
    until("the bytes leave the journal when the server has them", async || j.bytes() == 0).await;
}

/// An executed WRITE without an answer explains its changes. The rest of the file is written.
/// Promise: 6d
#[tokio::test]
async fn unanswered_write_explains_change() {
    for arrived in [0, 1, 2] {
        let j = Journaled::new(WriteBackOptions { wsize_bytes: 1000, ..options(false) }).await;
        let f = j.s.open("f").await;
        j.s.gate.shut("write");
        j.s.write(&f, 0, pattern(1, 2500)).await.unwrap();
        until("two chunks are on their way", async || j.s.gate.writes().len() == 2).await;
        let (outcome, kept) = j
            .crash(false, async |s| {
                for n in 0..arrived {
                    let at = At { fh: &f.0, open: None };
                    let data = pattern(1, 2500).slice(n * 1000..(n + 1) * 1000);
                    s.gate
                        .below()
                        .write(&cx(), at, n as u64 * 1000, data.into(), Stability::Stable)
                        .await
                        .unwrap();
                }
            })
            .await;
        assert_eq!((outcome.files, kept.len()), (1, 0), "{arrived}: {outcome:?}");
        assert_eq!(j.s.below(&f.0).await, pattern(1, 2500));
    }
}

/// A replay does not overwrite another client's bytes: before and after the own writes arrived,
/// within their range, and after a truncation or removal of the file.
/// Promise: 6d, 6e
#[tokio::test]
async fn replay_spares_foreign_changes() {
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Theirs {
        Write,
        WriteOverSent,
        Cut,
        Remove,
    }
    let all = [Theirs::Write, Theirs::WriteOverSent, Theirs::Cut, Theirs::Remove];
    for (theirs, exclusive) in all.into_iter().flat_map(|theirs| [(theirs, false), (theirs, true)]) {
        let j = Journaled::new(WriteBackOptions { wsize_bytes: 1000, ..options(exclusive) }).await;
        let f = j.s.open("f").await;
        j.s.write(&f, 0, pattern(7, 4000)).await.unwrap();
        j.s.dirty.sync().await.unwrap();
        j.s.gate.shut("write");
        j.s.write(&f, 1000, pattern(1, 2500)).await.unwrap();
        writes_under_way(&j, 2).await;
        let root = j.s.root.clone();
        let (outcome, kept) = j
            .crash(exclusive, async |s| {
                let (below, at) = (s.gate.below(), At { fh: &f.0, open: None });
                let write = async |start: u64, data: Bytes| {
                    below.write(&cx(), at, start, data.into(), Stability::Stable).await.unwrap();
                };
                match theirs {
                    Theirs::Write => write(3200, pattern(200, 10)).await,
                    Theirs::WriteOverSent => {
                        write(1000, pattern(1, 1000)).await;
                        write(1100, pattern(200, 10)).await;
                    }
                    Theirs::Cut => {
                        let set = SetAttr { size_bytes: Some(10), ..Default::default() };
                        below.setattr(&cx(), at, &set).await.unwrap();
                    }
                    Theirs::Remove => {
                        below.unlink(&cx(), &root, &name("f"), Some(&f.0)).await.unwrap();
                    }
                }
            })
            .await;
        assert_eq!((outcome.files, outcome.kept.len()), (0, 1), "{theirs:?}: {outcome:?}");
        assert_eq!(outcome.kept[0].1, "f");
        assert_eq!(kept.concat(), pattern(1, 2500), "{theirs:?}: the bytes are kept as written");
        match theirs {
            Theirs::Write => assert_eq!(j.s.below(&f.0).await[3200..3210], pattern(200, 10)),
            Theirs::WriteOverSent => assert_eq!(j.s.below(&f.0).await[1100..1110], pattern(200, 10)),
            Theirs::Cut => assert_eq!(j.s.below(&f.0).await.len(), 10),
            Theirs::Remove => {}
        }
    }
}

/// Own bytes that arrived and were overwritten by another client stay overwritten. This holds even
/// if this client saw the change, and under every promise of the user.
/// Promise: 6d, 6e
#[tokio::test]
async fn replay_spares_overwritten_bytes() {
    for exclusive in [false, true] {
        let j = Journaled::new(WriteBackOptions { wsize_bytes: 1000, ..options(exclusive) }).await;
        let f = j.s.open("f").await;
        j.s.write(&f, 0, pattern(1, 1500)).await.unwrap();
        until("a chunk arrives without a commit", async || j.s.below(&f.0).await.len() == 1000).await;
        let at = At { fh: &f.0, open: None };
        j.s.gate.below().write(&cx(), at, 100, pattern(200, 10).into(), Stability::Stable).await.unwrap();
        j.s.dirty.getattr(&cx().fresh(Instant::now()), At { fh: &f.0, open: Some(f.1) }).await.unwrap();
        let (outcome, _) = j.crash(exclusive, async |_| ()).await;
        assert_eq!(j.s.below(&f.0).await[100..110], pattern(200, 10), "{exclusive}: {outcome:?}");
    }
}

/// A close does not give up bytes that an fsync found on the local disk. This holds on a full
/// server and with any number of waiting closes.
/// Promise: 6e
#[tokio::test]
async fn close_keeps_journaled_bytes() {
    let j = Journaled::new(options(true)).await;
    j.s.gate.fail("write", libc::ENOSPC);
    let (early, late) = (j.s.open("early").await, j.s.open("late").await);
    j.s.write(&early, 0, pattern(1, 100)).await.unwrap();
    j.s.commit(&early).await.unwrap();
    j.s.dirty.lazy.store(super::super::lazy::LAZY_MAX, Ordering::Relaxed);
    assert_eq!(j.s.close(&early).await.map_err(|e| e.errno), Err(libc::ENOSPC));
    j.s.write(&late, 0, pattern(2, 100)).await.unwrap();
    assert_eq!(
        j.s.commit(&late).await.map_err(|e| e.errno),
        Err(libc::ENOSPC),
        "the caller gets the server's error"
    );
    assert_eq!(j.s.close(&late).await.map_err(|e| e.errno), Err(libc::ENOSPC));
    let again = j.s.open("early").await;
    assert_eq!(j.s.read(&again, 0, 200).await, pattern(1, 100));
    let (outcome, _) = j.crash(true, async |_| ()).await;
    assert_eq!((outcome.files, outcome.kept), (2, vec![]));
    assert_eq!(j.s.below(&early.0).await, pattern(1, 100));
    assert_eq!(j.s.below(&late.0).await, pattern(2, 100));
}

/// Waits until a condition holds. The threads of a journal take real time.
pub(super) async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    for _ in 0..60_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("timed out: {what}");
}

/// Waits for WRITEs that the gate holds back. The thread of the journal has then stored that they
/// were sent.
async fn writes_under_way(j: &Journaled, number: usize) {
    until("WRITEs are under way", async || j.s.gate.waiting("write") >= number).await;
}

/// A server may still execute a WRITE of the dead daemon while the next daemon looks at the file. A
/// file with a part of the WRITE is no conflict.
/// Promise: 6d
#[tokio::test]
async fn late_write_causes_no_conflict() {
    for exclusive in [false, true] {
        let j = Journaled::new(WriteBackOptions { wsize_bytes: 1000, ..options(exclusive) }).await;
        let f = j.s.open("f").await;
        j.s.gate.shut("write");
        j.s.write(&f, 0, pattern(1, 2000)).await.unwrap();
        writes_under_way(&j, 2).await;
        let (server, fh) = (j.s.gate.server(), f.0.clone());
        let write = async move |len: usize| {
            let (data, at) = (Bytes::from(pattern(1, 2000)[..len].to_vec()), At { fh: &fh, open: None });
            server.write(&cx(), at, 0, data.into(), Stability::Unstable).await.unwrap();
        };
        write(500).await;
        let late = async |_: &Stack| {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                write(1000).await;
            });
        };
        let (outcome, kept) = j.crash(exclusive, late).await;
        assert!(kept.is_empty(), "{exclusive}: {outcome:?}");
        assert_eq!(j.s.below(&f.0).await, pattern(1, 2000), "{exclusive}");
    }
}

/// A failed journal lacks later writes. Its bytes do not overwrite newer bytes that were fsynced.
/// Promise: 6d
#[tokio::test]
async fn failed_journal_overwrites_no_newer_bytes() {
    let j = Journaled::new(WriteBackOptions { wsize_bytes: 1000, ..options(true) }).await;
    let f = j.s.open("f").await;
    j.s.write(&f, 0, pattern(7, 4000)).await.unwrap();
    j.s.dirty.sync().await.unwrap();
    j.s.gate.shut("write");
    j.s.write(&f, 0, pattern(1, 2000)).await.unwrap();
    writes_under_way(&j, 2).await;
    j.memory.full.store(true, Ordering::Relaxed);
    j.s.gate.open_all();
    j.s.write(&f, 1000, pattern(9, 1000)).await.unwrap();
    j.s.commit(&f).await.unwrap();
    let now = j.s.below(&f.0).await;
    assert_eq!(now[1000..2000], pattern(9, 1000), "fsync reported the bytes as stable");
    let (outcome, kept) = j.crash(true, async |_| ()).await;
    assert_eq!(j.s.below(&f.0).await, now, "{outcome:?}");
    // The journal may have restarted already. Bytes that had left it are not kept.
    let (kept, written) = (kept.concat(), pattern(1, 2000));
    assert!(kept.is_empty() || written.windows(kept.len()).any(|part| part == kept), "{outcome:?}");
}

/// A WRITE in the middle of written bytes fails and is repeated. All records then leave the
/// journal.
/// Promise: 6f
#[tokio::test]
async fn failed_write_leaves_no_records() {
    let j = Journaled::new(WriteBackOptions { wsize_bytes: 1000, ..options(false) }).await;
    let f = j.s.open("f").await;
    let mut full = true;
    j.s.gate.decide(Box::new(move |at, _| match at {
        1000 if std::mem::take(&mut full) => Verdict::Fail(Duration::ZERO, libc::ENOSPC),
        1000 => Verdict::Pass(Duration::ZERO),
        _ => Verdict::Pass(Duration::from_millis(20)),
    }));
    j.s.write(&f, 0, pattern(1, 2500)).await.unwrap();
    for _ in 0..100 {
        settle().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut done = j.s.commit(&f).await;
    for _ in 0..200 {
        if done.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        done = j.s.commit(&f).await;
    }
    done.unwrap();
    assert_eq!(j.s.below(&f.0).await, pattern(1, 2500));
    assert_eq!((j.bytes(), j.wal.stats().journal_files), (0, 0));
}

/// A conflict stays until the user decides. A conflict of the same file after another crash gets
/// another name, and the same conflict is kept once.
/// Promise: 6d
#[tokio::test]
async fn conflict_is_never_replaced() {
    let dir = Temporary::new();
    let j = Journaled::new(options(false)).await;
    let f = j.s.open("f").await;
    let mut kept = Vec::new();
    for (n, again) in [(1, false), (2, false), (2, true)] {
        if !again {
            // After a clean end the numbers of records start again at 1.
            let (wal, left) = Wal::open(&dir.0, ("here", "there"), 1 << 30, &env()).await.unwrap();
            assert!(left.files.is_empty());
            let below = j.s.gate.server();
            let dirty =
                WriteBack::with_journal(below, Arc::new(NoLeases), env(), options(false), Some(wal.clone()));
            dirty.root(&cx()).await.unwrap();
            wal.close();
        }
        let journal = Journaled::over(j.s.gate.clone(), options(false), env()).await;
        let f = journal.s.open("f").await;
        journal.s.write(&f, 0, pattern(n, 100)).await.unwrap();
        for (number, bytes) in journal.memory.copy() {
            std::fs::write(dir.0.join(format!("{number:016x}.wal")), bytes).unwrap();
        }
        let at = At { fh: &f.0, open: None };
        j.s.gate.below().write(&cx(), at, 500, pattern(n + 10, 10).into(), Stability::Stable).await.unwrap();
        let (wal, left) = Wal::open(&dir.0, ("here", "there"), 1 << 30, &env()).await.unwrap();
        let below = j.s.gate.server();
        let outcome = wal.recover(below, left, "here", false, 1 << 20).await.unwrap();
        assert_eq!((outcome.files, outcome.kept.len()), (0, 1));
        kept.push(outcome.kept[0].0.clone());
        wal.close();
        let conflicts = wal.conflicts();
        let first = conflicts.data(&kept[0]).unwrap();
        let mut bytes = [0; 100];
        std::os::unix::fs::FileExt::read_exact_at(&first, &mut bytes, 0).unwrap();
        assert_eq!(bytes[..], pattern(1, 100)[..], "the first conflict still exists");
    }
    assert_ne!(kept[0], kept[1]);
    assert_eq!(kept[1], kept[2], "found again");
    drop(f);
}

/// A file is kept when its known name is removed in this mount and it has another, unknown name.
/// Promise: 6c
#[tokio::test]
async fn hard_linked_file_stays_journaled() {
    let j = Journaled::new(options(false)).await;
    let f = j.s.open("f").await;
    j.s.write(&f, 0, pattern(1, 100)).await.unwrap();
    j.s.gate.below().link(&cx(), &f.0, &j.s.root, &name("theirs")).await.unwrap();
    j.s.dirty.unlink(&cx(), &j.s.root, &name("f"), Some(&f.0)).await.unwrap();
    assert_eq!(j.bytes(), 100);
    j.s.write(&f, 100, pattern(2, 100)).await.unwrap();
    assert_eq!(j.bytes(), 200);
}

/// Under `exclusive`, fsync waits for the server when the journal lacks bytes.
/// Promise: 6e
#[tokio::test]
async fn unjournaled_bytes_need_server_fsync() {
    let j = Journaled::new(options(true)).await;
    let f = j.s.open("f").await;
    j.s.write(&f, 0, pattern(1, 100)).await.unwrap();
    j.s.dirty.unlink(&cx(), &j.s.root, &name("f"), Some(&f.0)).await.unwrap();
    j.s.write(&f, 100, pattern(2, 100)).await.unwrap();
    let before = j.wal.stats().journal_local_commits;
    j.s.commit(&f).await.unwrap();
    assert_eq!(j.wal.stats().journal_local_commits, before);
}

/// A damaged journal stays in place until all its whole records are kept. A mount that fails before
/// finds the journal again.
/// Promise: 6d
#[tokio::test]
async fn damaged_journal_is_set_aside_last() {
    let j = Journaled::new(options(true)).await;
    let f = j.s.open("f").await;
    j.s.gate.shut("write");
    for n in 0..3 {
        j.s.write(&f, u64::from(n) * 1000, pattern(n, 1000)).await.unwrap();
        j.s.commit(&f).await.unwrap();
    }
    let dir = Temporary::new();
    let mut copy = j.memory.copy();
    copy.get_mut(&1).unwrap()[500] ^= 1;
    let (wal, _) = Wal::open(&dir.0, ("here", "there"), 1 << 30, &env()).await.unwrap();
    wal.close();
    drop(wal);
    copy.iter().for_each(|(n, b)| std::fs::write(dir.0.join(format!("{n:016x}.wal")), b).unwrap());
    for _ in 0..2 {
        let (wal, left) = Wal::open(&dir.0, ("here", "there"), 1 << 30, &env()).await.unwrap();
        assert!(left.damage.is_some() && !left.files.is_empty(), "found again: {left:?}");
        wal.close();
    }
    let (wal, left) = Wal::open(&dir.0, ("here", "there"), 1 << 30, &env()).await.unwrap();
    let below = j.s.gate.server();
    let outcome = wal.recover(below, left, "here", true, 1 << 20).await.unwrap();
    assert_eq!((outcome.files, outcome.kept.len(), wal.conflicts().count()), (0, 1, 1));
    wal.close();
    drop(wal);
    let (wal, left) = Wal::open(&dir.0, ("here", "there"), 1 << 30, &env()).await.unwrap();
    assert!(left.damage.is_none() && left.files.is_empty(), "{left:?}");
    wal.close();
    let aside = |e: std::io::Result<std::fs::DirEntry>| {
        e.unwrap().file_name().to_string_lossy().starts_with("aside-")
    };
    assert_eq!(std::fs::read_dir(&dir.0).unwrap().map(aside).filter(|is| *is).count(), 1);
}

/// Truncated, removed and bypassed bytes do not come back.
/// Promise: 6d
#[tokio::test]
async fn void_bytes_stay_void() {
    let j = Journaled::new(options(false)).await;
    let f = j.s.open("f").await;
    j.s.write(&f, 0, pattern(1, 1000)).await.unwrap();
    j.s.resize(&f, 300).await.unwrap();
    j.s.write(&f, 600, pattern(2, 10)).await.unwrap();
    let mut want = pattern(1, 300).to_vec();
    want.resize(600, 0);
    want.extend_from_slice(&pattern(2, 10));
    let (outcome, _) = j.crash(false, async |_| ()).await;
    assert_eq!(outcome.kept, []);
    assert_eq!(j.s.below(&f.0).await, want);
    j.s.commit(&f).await.unwrap();

    let range = FileRange { start_bytes: 100, end_bytes: 200 };
    j.s.write(&f, 0, pattern(3, 400)).await.unwrap();
    j.s.dirty.deallocate(&cx(), At { fh: &f.0, open: Some(f.1) }, range).await.unwrap();
    let holed = j.s.below(&f.0).await;
    let (outcome, _) = j.crash(false, async |_| ()).await;
    assert_eq!((outcome, j.s.below(&f.0).await), (Outcome::default(), holed));

    let gone = j.s.open("gone").await;
    j.s.write(&gone, 0, pattern(4, 400)).await.unwrap();
    j.s.dirty.unlink(&cx(), &j.s.root, &name("gone"), Some(&gone.0)).await.unwrap();
    j.s.write(&gone, 400, pattern(4, 400)).await.unwrap();
    assert_eq!(j.s.read(&gone, 0, 800).await, [pattern(4, 400), pattern(4, 400)].concat());
    let (outcome, _) = j.crash(false, async |_| ()).await;
    assert_eq!(outcome, Outcome::default(), "a file removed in this mount is no conflict");
}

/// While the local disk is full, writes wait for the server. Afterwards the journal is used again.
/// Promise: 6f
#[tokio::test]
async fn full_local_disk_writes_through() {
    let j = Journaled::new(options(true)).await;
    let f = j.s.open("f").await;
    j.s.write(&f, 0, pattern(1, 100)).await.unwrap();
    j.memory.full.store(true, Ordering::Relaxed);
    j.s.write(&f, 100, pattern(2, 100)).await.unwrap();
    assert_eq!(j.s.below(&f.0).await, [pattern(1, 100), pattern(2, 100)].concat(), "both are at the server");
    j.s.write(&f, 200, pattern(3, 100)).await.unwrap();
    assert_eq!(j.s.below(&f.0).await.len(), 300);
    let stats = j.wal.stats();
    assert!(stats.journal_writes_through >= 2, "{stats:?}");
    j.s.commit(&f).await.unwrap();
    j.memory.full.store(false, Ordering::Relaxed);
    until("the journal is used again", async || j.wal.stats().journal_failed == 0).await;
    assert_eq!(j.wal.trouble(), None);
    j.s.write(&f, 300, pattern(4, 100)).await.unwrap();
    assert_eq!((j.bytes(), j.s.below(&f.0).await.len()), (100, 300));
}

/// Bytes that were refused for good, or given up by a close, leave the journal, because the program
/// got the error.
/// Promise: 6f
#[tokio::test]
async fn dropped_bytes_leave_journal() {
    let j = Journaled::new(options(false)).await;
    let f = j.s.open("f").await;
    j.s.write(&f, 0, pattern(1, 100)).await.unwrap();
    j.s.gate.fail("write", libc::EACCES);
    assert_eq!(j.s.commit(&f).await.unwrap_err().errno, libc::EACCES);
    assert_eq!(j.bytes(), 0);
    j.s.gate.fail("write", libc::ENOSPC);
    j.s.write(&f, 0, pattern(1, 100)).await.unwrap();
    assert_eq!(j.s.commit(&f).await.unwrap_err().errno, libc::ENOSPC);
    assert_eq!(j.bytes(), 100, "a full server may have room again");
    assert!(j.s.close(&f).await.is_err());
    assert_eq!(j.bytes(), 0);
}

/// After an acknowledged truncation the length is known as an own change, at any moment of a kill.
#[tokio::test]
async fn truncated_file_bytes_are_sent() {
    for round in 0..300 {
        let j = Journaled::new(options(false)).await;
        let f = j.s.open("f").await;
        j.s.write(&f, 0, vec![b'.'; 1000]).await.unwrap();
        j.s.commit(&f).await.unwrap();
        j.s.gate.shut("write");
        j.s.write(&f, 10, vec![b'o'; 4]).await.unwrap();
        j.s.resize(&f, 12).await.unwrap();
        let (outcome, _) = j.crash(false, async |_| {}).await;
        assert_eq!(outcome.kept, [], "round {round}");
        assert_eq!(j.s.below(&f.0).await, b"..........oo");
    }
}

/// A replay judges a truncated file by its new end, and not by its earlier length or by WRITEs that
/// had arrived beyond the new end. Another client's bytes beyond it are still spared.
/// Promise: 6c, 6d
#[tokio::test]
async fn replay_starts_at_truncation() {
    let cases = [(false, false), (false, true), (true, false), (true, true)];
    for (exclusive, foreign) in cases {
        let j = Journaled::new(WriteBackOptions { wsize_bytes: 1000, ..options(exclusive) }).await;
        let f = j.s.open("f").await;
        j.s.write(&f, 0, pattern(1, 3500)).await.unwrap();
        j.answered(3).await;
        j.s.resize(&f, 500).await.unwrap();
        j.s.gate.shut("write");
        j.s.write(&f, 500, pattern(9, 2500)).await.unwrap();
        writes_under_way(&j, 2).await;
        let (outcome, _) = j
            .crash(exclusive, async |s| {
                let (below, at) = (s.gate.below(), At { fh: &f.0, open: None });
                let write = async |start: u64, data: Bytes| {
                    below.write(&cx(), at, start, data.into(), Stability::Stable).await.unwrap();
                };
                write(500, pattern(9, 2500).slice(..500)).await;
                if foreign {
                    write(1900, pattern(200, 10)).await;
                }
            })
            .await;
        let server = j.s.below(&f.0).await;
        if foreign {
            assert_eq!((outcome.kept.len(), &server[1900..]), (1, &pattern(200, 10)[..]), "{exclusive}");
        } else {
            assert_eq!(outcome.kept, [], "{exclusive}");
            assert_eq!(server, [&pattern(1, 500)[..], &pattern(9, 2500)].concat());
        }
    }
}

/// Overwritten bytes of a truncated file are sent although not all WRITEs had arrived.
/// Promise: 6e
#[tokio::test]
async fn replay_overwrites_truncated_file() {
    let j = Journaled::new(WriteBackOptions { wsize_bytes: 1000, ..options(true) }).await;
    let f = j.s.open("f").await;
    j.s.write(&f, 0, pattern(7, 4000)).await.unwrap();
    j.s.dirty.sync().await.unwrap();
    j.s.gate.shut("write");
    j.s.write(&f, 0, pattern(1, 2000)).await.unwrap();
    writes_under_way(&j, 2).await;
    j.s.resize(&f, 2000).await.unwrap();
    let (outcome, _) = j
        .crash(true, async |s| {
            let at = At { fh: &f.0, open: None };
            let data = pattern(1, 2000).slice(..1000);
            s.gate.below().write(&cx(), at, 0, data.into(), Stability::Stable).await.unwrap();
        })
        .await;
    assert_eq!(outcome.kept, []);
    assert_eq!(j.s.below(&f.0).await, pattern(1, 2000));
}

/// Random programs are killed at random moments, and random WRITEs in flight arrive. The server
/// then has all acknowledged bytes, or they are kept. No byte is there that was not written.
/// Promise: 6c
#[tokio::test]
async fn random_crashes_lose_nothing() {
    let (mut conflicts, mut unjudged) = (0, 0);
    for seed in 0..300_u64 {
        let exclusive = seed % 2 == 0;
        let j = Journaled::new(WriteBackOptions { wsize_bytes: 4096, ..options(exclusive) }).await;
        let mut rng = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |n: u64| {
            rng ^= rng << 13;
            rng ^= rng >> 7;
            rng ^= rng << 17;
            rng % n
        };
        let f = j.s.open("f").await;
        let mut truth: Vec<u8> = Vec::new();
        if below(2) == 0 {
            truth = vec![1; 20_000];
            j.s.write(&f, 0, truth.clone()).await.unwrap();
            j.s.commit(&f).await.unwrap();
        }
        for step in 0..below(12) {
            if below(3) == 0 {
                j.s.gate.shut("write");
            }
            match below(8) {
                0..=4 => {
                    let (at, len) = (below(20_000) as usize, 1 + below(9000) as usize);
                    let bytes = vec![2 + step as u8; len];
                    truth.resize(truth.len().max(at + len), 0);
                    truth[at..at + len].copy_from_slice(&bytes);
                    j.s.write(&f, at as u64, bytes).await.unwrap();
                }
                5 => {
                    j.s.gate.open_all();
                    j.s.commit(&f).await.unwrap();
                }
                6 => {
                    j.s.gate.open_all();
                    let size = below(25_000);
                    truth.resize(size as usize, 0);
                    j.s.resize(&f, size).await.unwrap();
                }
                _ => settle().await,
            }
        }
        // A killed daemon sends nothing more.
        j.s.gate.shut("write");
        settle().await;
        let copy = j.memory.copy();
        let numbers: Vec<u64> = copy.keys().copied().collect();
        let left = crate::wal::scan_for_tests(&numbers, |n| copy[&n].clone());
        let mut arrive: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (start, bytes) in left {
            if below(2) == 0 {
                arrive.insert(start, bytes);
            }
        }
        // This copy of the journal names the WRITEs in flight. The journal's thread may have
        // written more since.
        let (outcome, kept) = j
            .crash_with(copy, exclusive, async |s| {
                for (start, bytes) in arrive {
                    let at = At { fh: &f.0, open: None };
                    s.gate
                        .below()
                        .write(&cx(), at, start, Bytes::from(bytes).into(), Stability::Stable)
                        .await
                        .unwrap();
                }
            })
            .await;
        let is = j.s.below(&f.0).await;
        match outcome.kept.len() {
            0 => assert!(is == truth, "seed {seed}: {outcome:?}"),
            _ => {
                unjudged += u32::from(exclusive);
                assert!(!kept.is_empty());
                conflicts += 1;
            }
        }
    }
    assert!(unjudged < 5, "without other clients nearly all cases can be judged: {unjudged}");
    assert!(conflicts < 100, "only partly arrived overwrites cannot be judged: {conflicts}");
}
