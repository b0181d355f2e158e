//! What a file lost is not put back: cuts and holes, ours and others', and what of the journal
//! survives a power cut.

use super::*;

/// Two whole chunks arrive, and are not committed.
async fn two_chunks(exclusive: bool) -> (Journaled, (Fh, OpenId)) {
    two_chunks_with(options(exclusive)).await
}

async fn two_chunks_with(options: DirtyOptions) -> (Journaled, (Fh, OpenId)) {
    let j = Journaled::new(DirtyOptions { wsize_bytes: 1000, ..options }).await;
    let f = j.s.open("f").await;
    j.s.write(&f, 0, pattern(1, 2000)).await.unwrap();
    until("two chunks at the server", async || j.s.below(&f.0).await.len() == 2000).await;
    (j, f)
}

/// Bytes that arrived and are missing, or zero, are no proof that they never arrived: somebody else
/// has cut the file, or made a hole.
/// Promise: 6d
#[tokio::test]
async fn what_somebody_else_cut_stays_cut() {
    for (exclusive, cut) in [(false, true), (false, false), (true, true), (true, false)] {
        let (j, f) = two_chunks(exclusive).await;
        let at = At { fh: &f.0, open: None };
        until("both answers in the journal", async || {
            let copy = j.memory.copy();
            let left = crate::wal::tests::left_of(&copy);
            left.files.get(&f.0).is_some_and(|left| left.landed.len() == 2)
        })
        .await;
        match cut {
            true => {
                let set = SetAttr { size_bytes: Some(1000), ..Default::default() };
                j.s.gate.below().setattr(&cx(), at, &set).await.unwrap();
            }
            false => {
                let zeros = Bytes::from_static(&[0; 1000]).into();
                j.s.gate.below().write(&cx(), at, 1000, zeros, Stability::Stable).await.unwrap();
            }
        }
        let theirs = j.s.below(&f.0).await;
        let (outcome, kept) = j.crash(exclusive, async |_| ()).await;
        assert_eq!(j.s.below(&f.0).await, theirs, "{exclusive} {cut}: {outcome:?}");
        assert_eq!(kept.concat(), pattern(1, 2000), "it is kept");
    }
}

/// The end of the journal that a power cut takes is not what says that bytes were cut off here.
/// Promise: 6d
#[tokio::test]
async fn what_was_cut_here_stays_cut_after_a_power_cut() {
    for exclusive in [false, true] {
        let (j, f) = two_chunks(exclusive).await;
        until("all of it on stable storage", async || j.memory.synced() == j.memory.copy()).await;
        j.s.resize(&f, 1000).await.unwrap();
        let left = j.memory.synced();
        let (outcome, _) = j.crash_with(left, exclusive, async |_| ()).await;
        assert_eq!(j.s.below(&f.0).await, pattern(1, 1000), "{exclusive}: {outcome:?}");

        let (j, f) = two_chunks(exclusive).await;
        until("all of it on stable storage", async || j.memory.synced() == j.memory.copy()).await;
        let range = FileRange { start_bytes: 1000, end_bytes: 2000 };
        j.s.dirty.deallocate(&cx(), At { fh: &f.0, open: Some(f.1) }, range).await.unwrap();
        let (left, holed) = (j.memory.synced(), j.s.below(&f.0).await);
        assert_eq!(holed[1000..], [0; 1000]);
        let (outcome, _) = j.crash_with(left, exclusive, async |_| ()).await;
        assert_eq!(j.s.below(&f.0).await, holed, "{exclusive}: {outcome:?}");
    }
}

/// What the answer to a cut told of the file is in the journal as soon as that it was cut: bytes
/// that wait are not a conflict then.
/// Promise: 6d
#[tokio::test]
async fn a_file_that_was_just_cut_is_nobody_elses() {
    for exclusive in [false, true] {
        let (j, f) = two_chunks(exclusive).await;
        j.s.gate.shut("write");
        j.s.write(&f, 500, pattern(7, 300)).await.unwrap();
        until("all of it on stable storage", async || j.memory.synced() == j.memory.copy()).await;
        j.s.resize(&f, 1200).await.unwrap();
        let (outcome, _) = j.crash_with(j.memory.synced(), exclusive, async |_| ()).await;
        assert_eq!(outcome.kept, [], "{exclusive}");
        let now = j.s.below(&f.0).await;
        assert_eq!((&now[..500], &now[500..800]), (&pattern(1, 500)[..], &pattern(7, 300)[..]));
    }
}

/// What the retirement of earlier bytes said may be lost together with a later cut: the cut is made
/// durable all the same.
#[tokio::test]
async fn a_cut_is_durable_when_what_came_before_was() {
    let dirty_age = DirtyOptions::default().dirty_age;
    let (j, f) = two_chunks_with(DirtyOptions { dirty_age, ..options(false) }).await;
    until("all of it on stable storage", async || j.memory.synced() == j.memory.copy()).await;
    // It leaves the journal, and nobody waits for that.
    until("an empty journal", async || j.wal.stats().journal_files == 0).await;
    j.s.gate.shut("write");
    j.s.write(&f, 2000, pattern(2, 500)).await.unwrap();
    j.s.resize(&f, 1000).await.unwrap();
    let left = crate::wal::tests::left_of(&j.memory.synced());
    assert!(left.files.is_empty(), "nothing of it would be written again: {:?}", left.files);
}

/// A cut that was done and not answered yet is nobody else's.
#[tokio::test]
async fn a_cut_that_nobody_has_heard_of_is_ours() {
    for exclusive in [false, true] {
        let (j, f) = two_chunks(exclusive).await;
        j.s.gate.shut("write");
        j.s.write(&f, 500, pattern(7, 300)).await.unwrap();
        j.s.gate.shut("setattr answer");
        let (dirty, g) = (j.s.dirty.clone(), f.clone());
        let cutting = tokio::spawn(async move {
            let set = SetAttr { size_bytes: Some(1200), ..Default::default() };
            dirty.setattr(&cx(), At { fh: &g.0, open: Some(g.1) }, &set).await
        });
        until("the cut at the server", async || j.s.below(&f.0).await.len() == 1200).await;
        let (outcome, _) = j.crash(exclusive, async |_| ()).await;
        assert_eq!(outcome.kept, [], "{exclusive}");
        let now = j.s.below(&f.0).await;
        assert_eq!((&now[..500], &now[500..800]), (&pattern(1, 500)[..], &pattern(7, 300)[..]));
        cutting.abort();
    }
}

/// A cut of ours that was answered is over: somebody else who cuts the file to the same length
/// later has done that himself.
/// Promise: 6d
#[tokio::test]
async fn a_cut_that_was_answered_explains_nothing_later() {
    for (exclusive, length) in [(false, 0), (false, 1000), (true, 0), (true, 1000)] {
        let (j, f) = two_chunks(exclusive).await;
        j.s.resize(&f, length).await.unwrap();
        j.s.write(&f, length, pattern(2, 2000)).await.unwrap();
        until("two chunks at the server", async || j.s.below(&f.0).await.len() as u64 == length + 2000).await;
        until("both answers in the journal", async || {
            let left = crate::wal::tests::left_of(&j.memory.copy());
            left.files.get(&f.0).is_some_and(|left| left.unheard().is_empty())
        })
        .await;
        let set = SetAttr { size_bytes: Some(length), ..Default::default() };
        j.s.gate.below().setattr(&cx(), At { fh: &f.0, open: None }, &set).await.unwrap();
        let (outcome, _) = j.crash(exclusive, async |_| ()).await;
        assert_eq!(outcome.kept.len(), 1, "{exclusive} {length}: {outcome:?}");
        assert_eq!(j.s.below(&f.0).await.len() as u64, length);
    }
}

/// Somebody who writes all the time does not keep the journal from stable storage.
/// Promise: 6c
#[tokio::test]
async fn a_steady_writer_is_synced_about_once_a_second() {
    let j = Journaled::new(options(false)).await;
    let f = j.s.open("log").await;
    j.s.gate.shut("write");
    let began = Instant::now();
    let mut at = 0;
    while j.memory.synced().values().all(Vec::is_empty) {
        j.s.write(&f, at, pattern(1, 10)).await.unwrap();
        at += 10;
        assert!(began.elapsed() < Duration::from_secs(60), "nothing is on stable storage");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
