//! Tests of delayed writes over the model: counts, order, errors, room, and random histories that
//! are compared with plain files.

mod deferred;
mod failures;
mod finish;
mod gaps;
pub(crate) mod gate;
mod histories;
mod journal;
mod lazy;
mod leaving;
mod order;
mod registers;
mod seen;

use super::*;
use bytes::Bytes;
use gate::Gate;
use hither_vfs::model::Model;
use hither_vfs::{
    Create, Cred, Data, File as At, Name, OpenAccess, OpenHow, OpenId, PathRef, SetAttr, SetTime, Stability,
    Time,
};
use std::sync::atomic::AtomicU64 as Counter;
use std::time::SystemTime;

const MIB: u64 = 1 << 20;

/// A stack of layer, gate and model.
struct Stack {
    dirty: Arc<WriteBack>,
    gate: Arc<Gate>,
    root: Fh,
}

/// An environment whose wall clock advances by one second at each call.
fn env() -> Env {
    let (random, wall) = (Counter::new(1 << 40), Counter::new(1_000_000));
    Env {
        random: Arc::new(move || random.fetch_add(1, Ordering::Relaxed)),
        wall: Arc::new(move || {
            SystemTime::UNIX_EPOCH + Duration::from_secs(wall.fetch_add(1, Ordering::Relaxed))
        }),
    }
}

fn cx() -> RequestContext {
    RequestContext::new(Arc::new(Cred::root()))
}

fn name(name: &str) -> Name {
    Name::new(name.as_bytes().to_vec()).unwrap()
}

fn how(truncate: bool) -> OpenHow {
    OpenHow {
        access: OpenAccess::READ | OpenAccess::WRITE,
        create: Create::IfMissing(SetAttr { mode: Some(0o644), ..Default::default() }),
        truncate,
        execute: false,
        first_bytes: 0,
        known: None,
    }
}

fn pattern(seed: u8, len: u64) -> Bytes {
    (0..len).map(|i| seed.wrapping_add((i % 251) as u8)).collect::<Vec<_>>().into()
}

impl Stack {
    async fn new(options: WriteBackOptions) -> Self {
        Self::with_capacity(options, u64::MAX).await
    }

    async fn with_capacity(options: WriteBackOptions, capacity_bytes: u64) -> Self {
        Self::with_clock(options, capacity_bytes, 0).await
    }

    /// The local clock is `ahead_s` seconds ahead of the server's.
    async fn with_clock(options: WriteBackOptions, capacity_bytes: u64, ahead_s: i64) -> Self {
        let env = env();
        let model = Arc::new(Model::new(env.clone(), Duration::from_secs(3), capacity_bytes));
        let gate = Gate::new(model);
        let (wall, ahead) = (env.wall.clone(), Duration::from_secs(ahead_s.unsigned_abs()));
        let here = move || if ahead_s < 0 { wall() - ahead } else { wall() + ahead };
        let dirty = WriteBack::new(gate.clone(), gate.clone(), Env { wall: Arc::new(here), ..env }, options);
        let root = dirty.root(&cx()).await.unwrap().fh;
        Self { dirty, gate, root }
    }

    async fn open(&self, file: &str) -> (Fh, OpenId) {
        let opened =
            self.dirty.open(&cx(), PathRef::name(&self.root, &name(file)), &how(false)).await.unwrap();
        (opened.node.fh, opened.open)
    }

    async fn write(&self, (fh, open): &(Fh, OpenId), at: u64, data: impl Into<Bytes>) -> Result<u64> {
        let file = At { fh, open: Some(*open) };
        let data = Data::from(data.into());
        self.dirty.write(&cx(), file, at, data, Stability::Unstable).await.map(|w| w.bytes)
    }

    async fn read(&self, (fh, open): &(Fh, OpenId), at: u64, len: u32) -> Vec<u8> {
        let file = At { fh, open: Some(*open) };
        self.dirty.read(&cx(), file, at, len).await.unwrap().data.into_bytes().to_vec()
    }

    async fn commit(&self, (fh, open): &(Fh, OpenId)) -> Result<()> {
        self.dirty.commit(&cx(), At { fh, open: Some(*open) }).await
    }

    async fn close(&self, (fh, open): &(Fh, OpenId)) -> Result<()> {
        self.dirty.close(&cx(), fh, *open).await
    }

    async fn size(&self, (fh, open): &(Fh, OpenId)) -> u64 {
        self.dirty.getattr(&cx(), At { fh, open: Some(*open) }).await.unwrap().attr.size_bytes
    }

    async fn resize(&self, (fh, open): &(Fh, OpenId), size: u64) -> Result<Attrs> {
        let set = SetAttr { size_bytes: Some(size), ..Default::default() };
        self.dirty.setattr(&cx(), At { fh, open: Some(*open) }, &set).await
    }

    /// The server's bytes.
    async fn below(&self, fh: &Fh) -> Vec<u8> {
        let read = self.gate.below().read(&cx(), At { fh, open: None }, 0, 1 << 30).await;
        read.unwrap().data.into_bytes().to_vec()
    }
}

/// Lets all runnable tasks run.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn appends_become_one_write() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("log").await;
    let before = s.gate.total_calls();
    for i in 0..2000 {
        assert_eq!(s.write(&f, i * 100, pattern(i as u8, 100)).await.unwrap(), 100);
    }
    assert_eq!(s.gate.total_calls(), before);
    s.commit(&f).await.unwrap();
    assert_eq!((s.gate.calls("write"), s.gate.calls("commit")), (1, 1));
    assert!(s.gate.total_calls() - before <= 2);
    s.close(&f).await.unwrap();
    assert_eq!(s.gate.calls("write"), 1);
    let stats = s.dirty.stats();
    assert_eq!((stats.writes_in, stats.writes_out, stats.bytes_out), (2000, 1, 200_000));
    assert_eq!((stats.writes_merged, stats.dirty_bytes), (1999, 0));
    let all = s.below(&f.0).await;
    assert!((0..2000).all(|i| all[i * 100..][..100] == pattern(i as u8, 100)[..]));
}

/// A single stable WRITE needs no COMMIT.
#[tokio::test(start_paused = true)]
async fn single_write_is_stable() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("small").await;
    s.write(&f, 0, pattern(1, 10)).await.unwrap();
    s.commit(&f).await.unwrap();
    assert_eq!(s.gate.stable_writes(), 1);
    s.write(&f, 0, pattern(1, 3 * MIB)).await.unwrap();
    s.commit(&f).await.unwrap();
    assert_eq!((s.gate.calls("write"), s.gate.stable_writes()), (4, 1));
}

/// A sequential writer has eight whole WRITEs in flight.
#[tokio::test(start_paused = true)]
async fn stream_keeps_writes_in_flight() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("stream").await;
    s.gate.shut("write");
    for i in 0..16 {
        s.write(&f, i * MIB, pattern(i as u8, MIB)).await.unwrap();
    }
    settle().await;
    assert_eq!(s.gate.waiting("write"), 8);
    assert!(s.gate.writes().iter().all(|w| w.1 == MIB && w.0 % MIB == 0));
    assert_eq!(s.size(&f).await, 16 * MIB);
    s.gate.open_all();
    s.commit(&f).await.unwrap();
    assert_eq!(s.gate.calls("write"), 16);
    assert_eq!(s.gate.most_waiting("write"), 8);
    assert_eq!(s.below(&f.0).await.len() as u64, 16 * MIB);
}

/// The buffers of a program are sent without a copy.
#[tokio::test(start_paused = true)]
async fn big_writes_are_not_copied() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("stream").await;
    let data = pattern(7, MIB);
    s.write(&f, 0, data.clone()).await.unwrap();
    assert_eq!(s.read(&f, 5, 10).await, data[5..15]);
    s.commit(&f).await.unwrap();
    assert_eq!(s.gate.last_write().unwrap().parts()[0].as_ptr(), data.as_ptr());
}

/// Dirty bytes, and the holes and end around them, are read without a call.
#[tokio::test(start_paused = true)]
async fn dirty_bytes_are_read_locally() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    s.write(&f, 10, pattern(1, 90)).await.unwrap();
    assert_eq!(s.read(&f, 10, 90).await, pattern(1, 90));
    // The server's length is known, so the hole before the bytes and the end after them need no
    // call.
    assert_eq!(s.read(&f, 0, 10).await, [0; 10]);
    assert_eq!(s.read(&f, 0, 4096).await.len(), 100);
    assert_eq!(s.read(&f, 100, 4096).await.len(), 0);
    assert_eq!(s.gate.calls("read"), 1, "only the read that starts at the end asks");
    assert_eq!(s.size(&f).await, 100);
}

/// Dirty bytes are sent when they reach their age, without a call of a program.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn dirty_age_sends_bytes() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    s.write(&f, 0, pattern(1, 100)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(4900)).await;
    assert_eq!(s.gate.calls("write"), 0);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(s.gate.calls("write"), 1);
    assert_eq!(s.dirty.stats().flushes_age, 1);
    // Later bytes have their own age.
    s.write(&f, 0, pattern(2, 100)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5100)).await;
    assert_eq!(s.gate.calls("write"), 2);
}

/// The unsent bytes of a file are dropped with its last name and last open.
/// Promise: 13
#[tokio::test(start_paused = true)]
async fn removed_files_are_not_sent() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("temporary").await;
    s.write(&f, 0, pattern(1, 1000)).await.unwrap();
    s.dirty.unlink(&cx(), &s.root, &name("temporary"), Some(&f.0)).await.unwrap();
    s.write(&f, 1000, pattern(2, 1000)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(s.read(&f, 0, 5000).await.len(), 2000);
    s.commit(&f).await.unwrap();
    s.close(&f).await.unwrap();
    assert_eq!(s.gate.calls("write"), 0);
    assert_eq!((s.dirty.stats().bytes_unsent, s.dirty.stats().dirty_bytes), (2000, 0));
}

/// A file with another name left is sent like any other.
#[tokio::test(start_paused = true)]
async fn remaining_link_keeps_dirty_bytes() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("one").await;
    s.dirty.link(&cx(), &f.0, &s.root, &name("two")).await.unwrap();
    s.write(&f, 0, pattern(1, 1000)).await.unwrap();
    s.dirty.unlink(&cx(), &s.root, &name("one"), Some(&f.0)).await.unwrap();
    s.close(&f).await.unwrap();
    assert_eq!(s.below(&f.0).await, pattern(1, 1000));
}

/// Promise: 4
#[tokio::test(start_paused = true)]
async fn write_through_delays_nothing() {
    let s = Stack::new(WriteBackOptions { write_through: true, ..Default::default() }).await;
    let f = s.open("f").await;
    s.write(&f, 0, pattern(1, 100)).await.unwrap();
    assert_eq!(s.gate.calls("write"), 1);
    assert_eq!(s.dirty.stats().writes_in, 0);
}

/// A closed file leaves no state.
#[tokio::test(start_paused = true)]
async fn closed_files_are_forgotten() {
    let s = Stack::new(WriteBackOptions::default()).await;
    for i in 0..10 {
        let f = s.open(&format!("f{i}")).await;
        s.write(&f, 0, pattern(1, 3 * MIB)).await.unwrap();
        s.close(&f).await.unwrap();
    }
    settle().await;
    assert!(s.dirty.holds_no_file());
    assert_eq!(s.dirty.stats().dirty_bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn shutdown_sends_everything() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let (f, g) = (s.open("f").await, s.open("g").await);
    s.write(&f, 0, pattern(1, 100)).await.unwrap();
    s.write(&g, 0, pattern(2, 3 * MIB)).await.unwrap();
    s.dirty.shutdown(&cx()).await.unwrap();
    assert_eq!((s.below(&f.0).await.len() as u64, s.below(&g.0).await.len() as u64), (100, 3 * MIB));
}

/// Separate bytes are sent when the file has too many pieces, however few bytes they have.
#[tokio::test(start_paused = true)]
async fn the_number_of_pieces_is_bounded() {
    let s = Stack::new(WriteBackOptions { most_pieces: 64, ..Default::default() }).await;
    let f = s.open("f").await;
    for i in 0..1000 {
        s.write(&f, i * 10, pattern(1, 1)).await.unwrap();
        assert!(s.dirty.stats().dirty_bytes <= 64);
    }
    s.close(&f).await.unwrap();
    assert_eq!(s.below(&f.0).await.iter().filter(|b| **b == pattern(1, 1)[0]).count(), 1000);
}
