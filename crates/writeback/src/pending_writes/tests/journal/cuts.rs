//! Tests of truncations and holes: lost bytes are not restored, whether this or another client
//! removed them, even after a power cut of the journal.

use super::*;

/// Two whole chunks that arrive and are not committed.
async fn two_chunks(exclusive: bool) -> (Journaled, (Fh, OpenId)) {
    two_chunks_with(options(exclusive)).await
}

async fn two_chunks_with(options: WriteBackOptions) -> (Journaled, (Fh, OpenId)) {
    let j = Journaled::new(WriteBackOptions { wsize_bytes: 1000, ..options }).await;
    let f = j.s.open("f").await;
    j.s.write(&f, 0, pattern(1, 2000)).await.unwrap();
    j.answered(2).await;
    (j, f)
}

/// Arrived bytes that are missing, or zero, may have been removed by another client that truncated
/// the file or punched a hole.
/// Promise: 6d
#[tokio::test]
async fn foreign_truncation_survives_replay() {
    for (exclusive, cut) in [(false, true), (false, false), (true, true), (true, false)] {
        let (j, f) = two_chunks(exclusive).await;
        let at = At { fh: &f.0, open: None };
        until("both answers in the journal", async || {
            let copy = j.memory.copy();
            let left = crate::wal::tests::left_of(&copy);
            left.files.get(&f.0).is_some_and(|left| left.landed.len() == 2)
        })
        .await;
        if cut {
            let set = SetAttr { size_bytes: Some(1000), ..Default::default() };
            j.s.gate.below().setattr(&cx(), at, &set).await.unwrap();
        } else {
            let zeros = Bytes::from_static(&[0; 1000]).into();
            j.s.gate.below().write(&cx(), at, 1000, zeros, Stability::Stable).await.unwrap();
        }
        let theirs = j.s.below(&f.0).await;
        let (outcome, kept) = j.crash(exclusive, async |_| ()).await;
        assert_eq!(j.s.below(&f.0).await, theirs, "{exclusive} {cut}: {outcome:?}");
        assert_eq!(kept.concat(), pattern(1, 2000), "the bytes are kept as a conflict");
    }
}

/// A power cut does not lose the records of a truncation or hole punched in this mount.
/// Promise: 6d
#[tokio::test]
async fn own_truncation_survives_power_cut() {
    for exclusive in [false, true] {
        let (j, f) = two_chunks(exclusive).await;
        until("the journal is on stable storage", async || j.memory.synced() == j.memory.copy()).await;
        j.s.resize(&f, 1000).await.unwrap();
        let left = j.memory.synced();
        let (outcome, _) = j.crash_with(left, exclusive, async |_| ()).await;
        assert_eq!(j.s.below(&f.0).await, pattern(1, 1000), "{exclusive}: {outcome:?}");

        let (j, f) = two_chunks(exclusive).await;
        until("the journal is on stable storage", async || j.memory.synced() == j.memory.copy()).await;
        let range = FileRange { start_bytes: 1000, end_bytes: 2000 };
        j.s.dirty.deallocate(&cx(), At { fh: &f.0, open: Some(f.1) }, range).await.unwrap();
        let (left, holed) = (j.memory.synced(), j.s.below(&f.0).await);
        assert_eq!(holed[1000..], [0; 1000]);
        let (outcome, _) = j.crash_with(left, exclusive, async |_| ()).await;
        assert_eq!(j.s.below(&f.0).await, holed, "{exclusive}: {outcome:?}");
    }
}

/// The journal has the state after a truncation together with the truncation. Unsent bytes then do
/// not become a conflict.
/// Promise: 6d
#[tokio::test]
async fn recent_truncation_causes_no_conflict() {
    for exclusive in [false, true] {
        let (j, f) = two_chunks(exclusive).await;
        j.s.gate.shut("write");
        j.s.write(&f, 500, pattern(7, 300)).await.unwrap();
        until("the journal is on stable storage", async || j.memory.synced() == j.memory.copy()).await;
        j.s.resize(&f, 1200).await.unwrap();
        let (outcome, _) = j.crash_with(j.memory.synced(), exclusive, async |_| ()).await;
        assert_eq!(outcome.kept, [], "{exclusive}");
        let now = j.s.below(&f.0).await;
        assert_eq!((&now[..500], &now[500..800]), (&pattern(1, 500)[..], &pattern(7, 300)[..]));
    }
}

/// A power cut may lose the retirement of earlier bytes together with a later truncation. The
/// truncation is made durable all the same.
#[tokio::test]
async fn truncation_is_durable_after_retirement() {
    let dirty_age = WriteBackOptions::default().dirty_age;
    let (j, f) = two_chunks_with(WriteBackOptions { dirty_age, ..options(false) }).await;
    until("the journal is on stable storage", async || j.memory.synced() == j.memory.copy()).await;
    // The bytes leave the journal, and no caller waits for that.
    until("an empty journal", async || j.wal.stats().journal_files == 0).await;
    j.s.gate.shut("write");
    j.s.write(&f, 2000, pattern(2, 500)).await.unwrap();
    j.s.resize(&f, 1000).await.unwrap();
    let left = crate::wal::tests::left_of(&j.memory.synced());
    assert!(left.files.is_empty(), "a replay would write no bytes: {:?}", left.files);
}

/// An executed truncation without an answer is an own change. Bytes that it removed do not come
/// back, whether the server had them or not.
/// Promise: 6d
#[tokio::test]
async fn unanswered_truncation_is_own_change() {
    let lengths = [0, 100, 600, 1200, 1700, 3000, 5100];
    for (exclusive, length) in [false, true].into_iter().flat_map(|e| lengths.map(|len| (e, len))) {
        let (j, f) = two_chunks(exclusive).await;
        j.s.gate.shut("write");
        let mut bytes = pattern(1, 2000).to_vec();
        for (at, piece) in [(500, pattern(7, 300)), (1100, pattern(8, 300)), (5000, pattern(9, 300))] {
            bytes.resize(bytes.len().max(at + piece.len()), 0);
            bytes[at..at + piece.len()].copy_from_slice(&piece);
            j.s.write(&f, at as u64, piece).await.unwrap();
        }
        bytes.truncate(length as usize);
        j.s.gate.shut("setattr answer");
        let (dirty, g) = (j.s.dirty.clone(), f.clone());
        let cutting = tokio::spawn(async move {
            let set = SetAttr { size_bytes: Some(length), ..Default::default() };
            dirty.setattr(&cx(), At { fh: &g.0, open: Some(g.1) }, &set).await
        });
        until("the cut at the server", async || j.s.below(&f.0).await.len() as u64 == length).await;
        let (outcome, _) = j.crash(exclusive, async |_| ()).await;
        assert_eq!(outcome.kept, [], "{exclusive} {length}");
        assert!(j.s.below(&f.0).await == bytes, "{exclusive} {length}");
        cutting.abort();
    }
}

/// An answered truncation does not explain a later state. A later truncation to the same length was
/// made by another client.
/// Promise: 6d
#[tokio::test]
async fn answered_truncation_explains_nothing_later() {
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

/// A continuous writer does not keep the journal from stable storage. The journal is synced about
/// once a second.
/// Promise: 6c
#[tokio::test]
async fn steady_writer_is_synced() {
    let j = Journaled::new(options(false)).await;
    let f = j.s.open("log").await;
    j.s.gate.shut("write");
    let began = Instant::now();
    let mut at = 0;
    while j.memory.synced().values().all(Vec::is_empty) {
        j.s.write(&f, at, pattern(1, 10)).await.unwrap();
        at += 10;
        assert!(began.elapsed() < Duration::from_secs(60), "no record is on stable storage");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
