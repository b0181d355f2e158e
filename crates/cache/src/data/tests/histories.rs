//! Random histories: readers and a writer behind one cache, another client directly at the server,
//! power cuts and restarts.
//!
//! Every byte read was in the file at some moment since the open began, because the open asked the
//! server. It also was in the file since the end of this client's last write that ended before the
//! read began.

use super::*;
use parking_lot::Mutex;

const SIZE: u64 = 200_000;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// All contents that a file ever had, with their start, and the limit set by the client's own
/// writes.
struct Truth {
    contents: Vec<(Instant, Vec<u8>)>,
    /// Calls that begin now may not see contents below this index.
    floor: usize,
}

struct World {
    model: Arc<Model>,
    files: Vec<(Fh, Mutex<Truth>)>,
    cx: RequestContext,
}

impl World {
    async fn note(&self, i: usize) -> usize {
        let file = File { fh: &self.files[i].0, open: None };
        let now = self.model.read(&self.cx, file, 0, 1 << 20).await.unwrap().data.into_bytes().to_vec();
        let mut t = self.files[i].1.lock();
        if t.contents.last().is_none_or(|(_, last)| *last != now) {
            t.contents.push((Instant::now(), now));
        }
        t.contents.len() - 1
    }

    /// Every byte was in the file at a moment since `since`, and not before content `floor`.
    fn check(&self, i: usize, since: Instant, floor: usize, at: u64, read: &Read, asked: u32) -> u64 {
        let t = self.files[i].1.lock();
        let end = |k: usize| t.contents.get(k + 1).map_or(Instant::now(), |next| next.0);
        let possible: Vec<_> = (floor..t.contents.len()).filter(|k| end(*k) >= since).collect();
        let bytes = read.data.clone().into_bytes();
        for (k, byte) in bytes.iter().enumerate() {
            let at = at as usize + k;
            assert!(
                possible.iter().any(|v| t.contents[*v].1.get(at) == Some(byte)),
                "file {i}, byte {at}: not so since {since:?}, nor after content {floor}; contents so far: {:?}; now {:?}",
                t.contents.iter().map(|c| (c.0, c.1.len(), c.1.get(at) == Some(byte))).collect::<Vec<_>>(),
                Instant::now()
            );
        }
        let ends = |v: &usize| t.contents[*v].1.len() as u64 <= at + bytes.len() as u64;
        assert!(!(read.eof || bytes.len() < asked as usize) || possible.iter().any(ends), "no end there");
        bytes.len() as u64
    }
}

async fn write(v: &dyn Vfs, w: &World, i: usize, r: (u64, u64, u64)) {
    let how = OpenHow { create: Create::No, ..writing() };
    let fh = &w.files[i].0;
    let Ok(o) = v.open(&w.cx, PathRef::fh(fh), &how).await else { return };
    let file = File { fh, open: Some(o.open) };
    if r.0.is_multiple_of(5) {
        let set = SetAttr { size_bytes: Some(r.1 % SIZE + 1), ..Default::default() };
        v.setattr(&w.cx, file, &set).await.unwrap();
    } else {
        let data = pattern(r.0, r.2 % 90_000 + 1);
        v.write(&w.cx, file, r.1 % SIZE, data.into(), Stability::Stable).await.unwrap();
    }
    v.close(&w.cx, fh, o.open).await.unwrap();
}

/// One open with a few reads, each at the end of the last one or at a random offset.
async fn reader(disk: Arc<DataCache>, w: Arc<World>, mut r: Random) -> u64 {
    let i = r.below(w.files.len() as u64) as usize;
    let fh = w.files[i].0.clone();
    let (since, opened_floor) = (Instant::now(), w.files[i].1.lock().floor);
    let o = disk.open(&w.cx, PathRef::fh(&fh), &READ).await.unwrap();
    let mut all = 0;
    let mut next = 0;
    for _ in 0..r.below(8) + 1 {
        let at = if r.below(2) == 0 { next } else { r.below(SIZE + 50_000) };
        let len = r.below(100_000) as u32 + 1;
        next = at + u64::from(len);
        let floor = w.files[i].1.lock().floor.max(opened_floor);
        let read = disk.read(&w.cx, File { fh: &fh, open: Some(o.open) }, at, len).await.unwrap();
        // A write may have happened although its reply is still on its way.
        w.note(i).await;
        all += w.check(i, since, floor, at, &read, len);
        tokio::time::sleep(Duration::from_millis(r.below(3000))).await;
    }
    disk.close(&w.cx, &fh, o.open).await.unwrap();
    all
}

async fn own_writer(disk: Arc<DataCache>, w: Arc<World>, i: usize, r: (u64, u64, u64)) {
    write(&*disk, &w, i, r).await;
    // A later call sees this write or newer data. Only one writer runs here at a time, and the
    // other client's writes are noted at once. So the present contents are not older than this
    // write.
    let now = w.note(i).await;
    let mut t = w.files[i].1.lock();
    t.floor = t.floor.max(now);
}

/// Another client writes. With leases, the server withdraws this client's lease first, and may
/// grant another at once.
async fn foreign_write(w: &World, wire: &Wire, i: usize, leased: bool, r: (u64, u64, u64)) {
    if leased {
        wire.lease(false);
        wire.upcalls.get().unwrap().revoke(&w.files[i].0).await;
    }
    write(&*w.model, w, i, r).await;
    w.note(i).await;
    wire.lease(leased && !r.0.is_multiple_of(3));
}

async fn history(seed: u64, leased: bool) -> (u64, u64, u64, u64) {
    let mut r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let model = Arc::new(Model::new(env_at(1), VALID, 1 << 40));
    let mut io = Sim::new(seed);
    let options = DataCacheOptions {
        fetch_bytes: 2 * format::BLOCK,
        soft_bytes: MIB,
        hard_bytes: 2 * MIB,
        ..options()
    };
    let stack = |io: &Arc<Sim>, seed| {
        let wire = Wire::slow(model.clone(), Some(seed), Duration::from_millis(300));
        (wire.clone(), DataCache::new(wire, Some(io.clone()), options.clone(), env_at(100_000)))
    };
    let cx = root_cx();
    let top = model.root(&cx).await.unwrap().fh;
    let mut files = Vec::new();
    for i in 0..3u64 {
        let o = model.open(&cx, PathRef::name(&top, &name(&format!("f{i}"))), &writing()).await.unwrap();
        let file = File { fh: &o.node.fh, open: Some(o.open) };
        model.write(&cx, file, 0, pattern(i, SIZE).into(), Stability::Stable).await.unwrap();
        model.close(&cx, &o.node.fh, o.open).await.unwrap();
        files.push((o.node.fh, Mutex::new(Truth { contents: Vec::new(), floor: 0 })));
    }
    let w = Arc::new(World { model: model.clone(), files, cx });
    for i in 0..3 {
        w.note(i).await;
    }
    let (mut bytes, mut hits, mut cuts, mut kept) = (0, 0, 0, 0);
    for life in 0..4 {
        if life > 0 {
            io.cut_after(r.below(400));
        }
        let (wire, disk) = stack(&io, r.below(u64::MAX - 1) + 1);
        wire.lease(leased);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..14 {
            match r.below(8) {
                2 if leased => {
                    let (i, how) = (r.below(3) as usize, (r.below(99), r.below(SIZE), r.below(SIZE)));
                    own_writer(disk.clone(), w.clone(), i, how).await;
                    // Before any request.
                    if r.below(2) == 0 {
                        foreign_write(&w, &wire, i, leased, (r.below(99), r.below(SIZE), r.below(SIZE)))
                            .await;
                    }
                }
                0 => {
                    let (i, how) = (r.below(3) as usize, (r.below(99), r.below(SIZE), r.below(SIZE)));
                    foreign_write(&w, &wire, i, leased, how).await;
                }
                1 => {
                    let (i, how) = (r.below(3) as usize, (r.below(99), r.below(SIZE), r.below(SIZE)));
                    own_writer(disk.clone(), w.clone(), i, how).await;
                }
                _ => drop(tasks.spawn(reader(disk.clone(), w.clone(), Random(r.below(u64::MAX) | 1)))),
            }
            tokio::time::sleep(Duration::from_millis(r.below(2500))).await;
        }
        while let Some(done) = tasks.join_next().await {
            bytes += done.unwrap();
        }
        hits += disk.stats().hit_bytes;
        kept += disk.stats().kept_over_writes;
        cuts += u64::from(io.is_off());
        if r.below(2) == 0 && !io.is_off() {
            disk.drain(Duration::from_secs(10)).await;
        }
        drop(disk);
        io = if r.below(2) == 0 { io.after_power_cut() } else { io.after_kill() };
    }
    (bytes, hits, cuts, kept)
}

/// A history on a clock of its own.
fn alone(seed: u64, leased: bool) -> (u64, u64, u64, u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.unwrap().block_on(history(seed, leased))
}

/// Promise: 11a
#[test]
fn random_histories_give_no_wrong_byte() {
    let (mut bytes, mut hits, mut cuts) = (0, 0, 0);
    for seed in 1..=20 {
        let (b, h, c, _) = alone(seed, false);
        (bytes, hits, cuts) = (bytes + b, hits + h, cuts + c);
    }
    assert!(
        hits * 10 > bytes && cuts > 5,
        "{bytes} bytes, {hits} from the cache, {cuts} power cuts while reading"
    );
}

/// Reads in random histories under leases return right bytes, many of them from the cache.
/// Promise: 11a
#[test]
fn leased_histories_give_no_wrong_byte() {
    let (mut bytes, mut hits, mut kept) = (0, 0, 0);
    for seed in 101..=130 {
        let (b, h, _, k) = alone(seed, true);
        (bytes, hits, kept) = (bytes + b, hits + h, kept + k);
    }
    assert!(
        hits * 10 > bytes && kept > 10,
        "{bytes} bytes, {hits} from the cache, {kept} times over our own writes"
    );
}
