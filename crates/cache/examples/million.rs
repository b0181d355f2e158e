//! Many cached names: memory per name, and the time of a lookup.
//!
//! `cargo run --release -p hither-cache --example million [NAMES]`. Directories hold a thousand
//! names each, and one of them holds a tenth of all names. The memory is the growth of the
//! process's resident pages, and beside it the cache's own count. An earlier part looks the same
//! names up one by one with room for few of them, and times each lookup.

use hither_cache::metadata::{MetadataCache, MetadataCacheOptions};
use hither_vfs::model::Model;
use hither_vfs::{Cred, Env, Fh, Name, PathRef, RequestContext, SetAttr, Special, Stop, Vfs, WalkRequest};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

const PER_DIRECTORY: usize = 1000;

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

/// Makes names of a length that is common in source trees.
fn file_name(i: usize) -> Name {
    Name::new(format!("some-file-{i:06}.c")).expect("a name")
}

struct Run {
    meta: Arc<MetadataCache>,
    cx: RequestContext,
    dirs: Vec<(Fh, usize)>,
}

impl Run {
    /// Lists a directory. Returns the time of the longest call.
    async fn list(&self, dir: &Fh) -> Duration {
        let (mut cookie, mut verifier, mut slowest) = (0, [0; 8], Duration::ZERO);
        loop {
            let began = Instant::now();
            let page = self.meta.readdir(&self.cx, dir, cookie, verifier, 64 << 10, true).await;
            slowest = slowest.max(began.elapsed());
            let page = page.expect("the model lists");
            if let Some(last) = page.entries.last() {
                (cookie, verifier) = (last.cookie, page.verifier);
            }
            if page.eof {
                return slowest;
            }
        }
    }

    /// Nanoseconds per lookup of a known name, and the number of known names.
    fn look_up(&self, rounds: usize) -> (u128, usize) {
        let (mut known, began) = (0, Instant::now());
        for round in 0..rounds {
            let (dir, len) = &self.dirs[round * 7919 % self.dirs.len()];
            let name = file_name(round * 104_729 % len);
            let trail = self.meta.peek(&self.cx, PathRef::name(dir, &name));
            known += usize::from(trail.is_some_and(|t| matches!(t.stop, Stop::Complete)));
        }
        (began.elapsed().as_nanos() / rounds.max(1) as u128, known)
    }
}

/// Looks up all names with room for a tenth of them. Measures the time of a lookup that has to
/// evict another name.
async fn evict(model: Arc<Model>, env: Env, cx: RequestContext, dirs: &[(Fh, usize)]) {
    let all: usize = dirs.iter().map(|(_, len)| len).sum();
    let options = MetadataCacheOptions {
        memory_bytes: all * 25,
        listing_bytes: 0,
        coarse_change: false,
        ..Default::default()
    };
    let meta = MetadataCache::new(model, options, env);
    let mut nanos = Vec::with_capacity(all);
    for (dir, len) in dirs {
        for f in 0..*len {
            let name = file_name(f);
            let began = Instant::now();
            let walk = meta.walk(&cx, PathRef::name(dir, &name), WalkRequest::default());
            walk.await.expect("the model answers");
            nanos.push(began.elapsed().as_nanos());
        }
    }
    nanos.sort_unstable();
    let at = |share: f64| nanos[(nanos.len() as f64 * share) as usize] / 1000;
    println!(
        "a look-up that evicts: median {} µs, 99 % {} µs, 99.9 % {} µs, longest {} µs; {} evicted",
        at(0.5),
        at(0.99),
        at(0.999),
        at(0.999_999),
        meta.stats().evictions
    );
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let names = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    #[expect(clippy::disallowed_methods, reason = "a measurement on the machine's clock")]
    let wall = || SystemTime::now();
    let env = Env { random: Arc::new(|| 4), wall: Arc::new(wall) };
    let model = Arc::new(Model::new(env.clone(), Duration::from_secs(3600), u64::MAX));
    let cx = RequestContext::new(Arc::new(Cred::root()));
    let top = model.root(&cx).await.expect("a root").fh;
    let big = (names / 10).max(1);
    let mut sizes = vec![big];
    sizes.extend((0..(names - big) / PER_DIRECTORY).map(|_| PER_DIRECTORY));
    let mut dirs = Vec::new();
    for (d, &len) in sizes.iter().enumerate() {
        let name = Name::new(format!("d{d}")).expect("a name");
        let dir = model.mkdir(&cx, &top, &name, &SetAttr::default()).await.expect("room").node.fh;
        for f in 0..len {
            let (name, set) = (file_name(f), SetAttr::default());
            model.mknod(&cx, &dir, &name, &Special::Regular, &set).await.expect("room");
        }
        dirs.push((dir, len));
    }
    evict(model.clone(), env.clone(), cx.clone(), &dirs).await;
    // Each directory has just changed. With `coarse_change` the cache would not trust such a
    // directory.
    let options = MetadataCacheOptions {
        memory_bytes: 1 << 30,
        coarse_change: false,
        ..MetadataCacheOptions::default()
    };
    let run = Run { meta: MetadataCache::new(model, options, env), cx, dirs };
    run.meta.root(&run.cx).await.expect("a root");
    let before = resident_bytes();
    let began = Instant::now();
    let mut slowest = Duration::ZERO;
    for (dir, _) in &run.dirs {
        slowest = slowest.max(run.list(dir).await);
    }
    let filled = began.elapsed();
    // Caches the permission to search each directory.
    for (dir, _) in &run.dirs {
        let name = file_name(0);
        let walk = run.meta.walk(&run.cx, PathRef::name(dir, &name), WalkRequest::default());
        walk.await.expect("the model answers");
    }
    let all: usize = run.dirs.iter().map(|(_, len)| len).sum();
    let taken = resident_bytes().saturating_sub(before);
    let stats = run.meta.stats();
    let rounds = 2_000_000;
    let (nanos, known) = run.look_up(rounds);
    println!(
        "{all} names in {} directories, listed in {filled:.1?}, slowest page {slowest:.1?}",
        run.dirs.len()
    );
    println!("{} bytes per name by the cache's count", stats.memory_bytes as usize / all);
    println!("{} bytes per name of resident memory", taken / all);
    println!(
        "{nanos} ns per look-up, {known} of {rounds} known; {} objects, {} evicted",
        stats.objects, stats.evictions
    );
}
