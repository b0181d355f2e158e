//! Instructions of calls that the metadata cache answers, and of the eviction order.
//!
//! `cargo xtask instructions` counts them with valgrind and compares them with the recorded
//! numbers. The layer below is a model in memory, which no counted call reaches.
#![allow(clippy::unwrap_used, missing_docs, reason = "measurements")]

use bytes::Bytes;
use gungraun::{library_benchmark, library_benchmark_group, main};
use hither_cache::metadata::{MetadataCache, MetadataCacheOptions, Prefetch};
use hither_cache::policy::{Item, ItemId, Order, Policy};
use hither_vfs::model::Model;
use hither_vfs::{
    Access, Create, Cred, Env, Fh, File, Name, OpenAccess, OpenHow, PathRef, RequestContext, SetAttr,
    Stability, Vfs, WalkRequest,
};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::runtime::{Builder, Runtime};

/// Files of the directory.
const FILES: usize = 100;
/// Items of the eviction order.
const ITEMS: usize = 1000;
/// Number of calls that are counted together. A call now and then also tidies up.
const CALLS: usize = 100;

/// A cache that knows a tree of depth 4 and a directory with [`FILES`] files.
struct Known {
    runtime: Runtime,
    cache: Arc<MetadataCache>,
    cx: RequestContext,
    root: Fh,
    dir: Fh,
    file: Fh,
    path: Vec<Name>,
}

fn name(n: &str) -> Name {
    Name::new(n.as_bytes().to_vec()).unwrap()
}

fn env() -> Env {
    Env { random: Arc::new(|| 4), wall: Arc::new(|| SystemTime::UNIX_EPOCH + Duration::from_secs(1)) }
}

fn cx() -> RequestContext {
    RequestContext::new(Arc::new(Cred::root()))
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..Default::default() }
}

async fn make_file(model: &Model, dir: &Fh, n: &str) -> Fh {
    let access = OpenAccess::READ | OpenAccess::WRITE;
    let how = OpenHow { create: Create::IfMissing(mode(0o644)), ..OpenHow::existing(access) };
    let opened = model.open(&cx(), PathRef::name(dir, &name(n)), &how).await.unwrap();
    let file = File { fh: &opened.node.fh, open: Some(opened.open) };
    model.write(&cx(), file, 0, Bytes::from_static(b"contents").into(), Stability::Stable).await.unwrap();
    model.close(&cx(), &opened.node.fh, opened.open).await.unwrap();
    opened.node.fh
}

fn known() -> Known {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let (cache, root, dir, file, path) = runtime.block_on(async {
        let model = Arc::new(Model::new(env(), Duration::from_secs(3600), 1 << 40));
        let top = model.root(&cx()).await.unwrap().fh;
        let mut dir = top;
        for n in ["a", "b", "c"] {
            dir = model.mkdir(&cx(), &dir, &name(n), &mode(0o755)).await.unwrap().node.fh;
        }
        let mut file = dir.clone();
        for i in 0..FILES {
            file = make_file(&model, &dir, &format!("file{i}")).await;
        }
        let options =
            MetadataCacheOptions { coarse_change: false, prefetch: Prefetch::Off, ..Default::default() };
        let cache = MetadataCache::new(model, options, env());
        let root = cache.root(&cx()).await.unwrap().fh;
        let path: Vec<Name> = ["a", "b", "c", "file99"].map(name).to_vec();
        for _ in 0..2 {
            for at in [PathRef { base: &root, path: &path }, PathRef::name(&dir, &name("absent"))] {
                cache.walk(&cx(), at, WalkRequest::default()).await.unwrap();
            }
            cache.readdir(&cx(), &dir, 0, [0; 8], 1 << 20, true).await.unwrap();
            cache.access(&cx(), &dir, Access::LOOKUP).await.unwrap();
        }
        (cache, root, dir, file, path)
    });
    Known { runtime, cache, cx: cx(), root, dir, file, path }
}

#[library_benchmark]
#[bench::depth_4(known())]
fn walk(k: Known) -> Known {
    let at = PathRef { base: &k.root, path: &k.path };
    for _ in 0..CALLS {
        black_box(k.runtime.block_on(k.cache.walk(&k.cx, at, WalkRequest::default()))).unwrap();
    }
    k
}

#[library_benchmark]
#[bench::absent(known())]
fn walk_to_absent_name(k: Known) -> Known {
    let absent = name("absent");
    let at = PathRef::name(&k.dir, &absent);
    for _ in 0..CALLS {
        black_box(k.runtime.block_on(k.cache.walk(&k.cx, at, WalkRequest::default()))).unwrap();
    }
    k
}

#[library_benchmark]
#[bench::of_a_file(known())]
fn getattr(k: Known) -> Known {
    let file = File { fh: &k.file, open: None };
    for _ in 0..CALLS {
        black_box(k.runtime.block_on(k.cache.getattr(&k.cx, file))).unwrap();
    }
    k
}

#[library_benchmark]
#[bench::of_a_directory(known())]
fn access(k: Known) -> Known {
    for _ in 0..CALLS {
        black_box(k.runtime.block_on(k.cache.access(&k.cx, &k.dir, Access::LOOKUP))).unwrap();
    }
    k
}

#[library_benchmark]
#[bench::of_100_files(known())]
fn readdir(k: Known) -> Known {
    for _ in 0..CALLS {
        black_box(k.runtime.block_on(k.cache.readdir(&k.cx, &k.dir, 0, [0; 8], 1 << 20, true))).unwrap();
    }
    k
}

struct Entry;

impl Item for Entry {
    fn mark(&self) -> u32 {
        0
    }
}

fn order(policy: Policy) -> Order<Entry> {
    Order::new(policy)
}

#[library_benchmark]
#[bench::lru(order(Policy::Lru))]
#[bench::s3_fifo(order(Policy::S3Fifo))]
#[bench::gdsf(order(Policy::Gdsf))]
fn insert_and_use(mut order: Order<Entry>) -> Order<Entry> {
    let ids: Vec<ItemId> = (0..ITEMS).map(|i| order.insert(Entry, 4096 + i as u64)).collect();
    ids.into_iter().for_each(|id| order.used(id));
    black_box(order)
}

library_benchmark_group!(
    name = instructions;
    benchmarks = walk, walk_to_absent_name, getattr, access, readdir, insert_and_use
);
main!(library_benchmark_groups = instructions);
