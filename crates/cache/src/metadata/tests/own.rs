//! Listings of directories that were made or changed here.

use super::*;
use std::collections::BTreeMap;

/// Continues a listing like a reader; returns how often each name came.
async fn rest(l: &Lab, dir: &Fh, mut at: (u64, [u8; 8]), most_bytes: u32) -> BTreeMap<String, usize> {
    let mut seen = BTreeMap::new();
    loop {
        let page = l.meta.readdir(&l.cx, dir, at.0, at.1, most_bytes, true).await.unwrap();
        for e in &page.entries {
            *seen.entry(String::from_utf8(e.name.as_bytes().to_vec()).unwrap()).or_default() += 1;
            assert!(e.node.is_some());
        }
        if page.eof {
            return seen;
        }
        at = (page.entries.last().unwrap().cookie, page.verifier);
    }
}

async fn made(l: &Lab, count: usize) -> Fh {
    let d = make_dir(&*l.meta, &l.cx, &l.top, "made").await;
    for i in 0..count {
        make_file(&*l.meta, &l.cx, &d, &format!("f{i:03}"), "text").await;
    }
    l.wire.take();
    d
}

/// A directory whose entries this client created or changed is listed from memory, without a
/// request.
/// Promise: 8
#[tokio::test(start_paused = true)]
async fn own_entries_are_listed_locally() {
    let l = lab().await;
    let d = made(&l, 100).await;
    for most_bytes in [1 << 20, 2000, 1] {
        let seen = rest(&l, &d, (0, [0; 8]), most_bytes).await;
        assert_eq!((seen.len(), seen.values().max()), (100, Some(&1)), "{most_bytes}");
    }
    // A directory that was listed and then changed here is also listed from memory.
    assert_eq!(l.wire.take(), "");
    tokio::time::advance(VALID).await;
    rest(&l, &d, (0, [0; 8]), 1 << 20).await;
    assert_eq!(l.wire.take(), "list_many 1");
    make_file(&*l.meta, &l.cx, &d, "new", "text").await;
    l.meta.unlink(&l.cx, &d, &name("f000"), None).await.unwrap();
    l.wire.take();
    let seen = rest(&l, &d, (0, [0; 8]), 2000).await;
    assert!(seen.len() == 100 && seen.contains_key("new") && !seen.contains_key("f000"));
    assert_eq!(l.wire.take(), "");
}

/// A reader in the middle of a listing from memory gets each name exactly once. This holds when
/// memory loses the directory, the verifier is lost or names change.
/// Promise: 8
#[tokio::test(start_paused = true)]
async fn interrupted_listing_returns_names_once() {
    for how in 0..4 {
        let l = lab().await;
        let d = made(&l, 60).await;
        let mut seen = BTreeMap::new();
        let page = l.meta.readdir(&l.cx, &d, 0, [0; 8], 3000, true).await.unwrap();
        assert!(!page.eof && page.entries.len() > 5);
        for e in &page.entries {
            seen.insert(String::from_utf8(e.name.as_bytes().to_vec()).unwrap(), 1);
        }
        let mut at = (page.entries.last().unwrap().cookie, page.verifier);
        match how {
            // Memory has lost the directory.
            0 => l.meta.table.forget(&d, l.meta.next_seq()),
            // Another client adds a name, and the directory expires.
            1 => {
                make_file(&*l.model, &l.cx, &d, "theirs", "").await;
                tokio::time::advance(VALID).await;
            }
            // The reader has lost the verifier.
            2 => at.1 = [0; 8],
            // The listed names are removed meanwhile, and new ones are added.
            _ => {
                for (i, n) in seen.keys().enumerate() {
                    l.meta.unlink(&l.cx, &d, &name(n), None).await.unwrap();
                    make_file(&*l.meta, &l.cx, &d, &format!("more{i}"), "").await;
                }
            }
        }
        for (n, count) in rest(&l, &d, at, 3000).await {
            *seen.entry(n).or_default() += count;
        }
        for i in 0..60 {
            assert_eq!(seen.get(&format!("f{i:03}")), Some(&1), "{how}");
        }
        assert!(seen.values().all(|&n| n == 1), "{how}");
    }
}

/// After a local change a reader continues with the server's cookies and gets each name once.
#[tokio::test(start_paused = true)]
async fn server_cookies_stay_valid() {
    let l = lab().await;
    let d = make_dir(&*l.model, &l.cx, &l.top, "theirs").await;
    for i in 0..40 {
        make_file(&*l.model, &l.cx, &d, &format!("f{i:03}"), "").await;
    }
    let page = l.meta.readdir(&l.cx, &d, 0, [0; 8], 2000, true).await.unwrap();
    let mut seen: Vec<_> = page.entries.iter().map(|e| e.name.clone()).collect();
    // A local change adds a name between two pages. Memory loses the order; the reader has the
    // cookies of the server.
    make_file(&*l.meta, &l.cx, &d, "zzz", "").await;
    let rest = rest(&l, &d, (page.entries.last().unwrap().cookie, page.verifier), 2000).await;
    seen.extend(rest.keys().map(|n| name(n)));
    let all: std::collections::BTreeSet<_> = seen.iter().collect();
    assert_eq!((all.len(), seen.len()), (41, 41));
}

/// A reader continues at its position after another caller has listed the changed directory again.
#[tokio::test(start_paused = true)]
async fn reader_continues_after_new_listing() {
    for removed in ["f000", "f004"] {
        let l = lab().await;
        let d = make_dir(&*l.model, &l.cx, &l.top, "theirs").await;
        for i in 0..20 {
            make_file(&*l.model, &l.cx, &d, &format!("f{i:03}"), "").await;
        }
        let page = l.meta.readdir(&l.cx, &d, 0, [0; 8], 900, true).await.unwrap();
        let mut seen: Vec<_> = page.entries.iter().map(|e| e.name.clone()).collect();
        assert_eq!(seen.len(), 5);
        // One listed name is removed, a new one is added, and the directory is listed from below in
        // its new order.
        l.meta.unlink(&l.cx, &d, &name(removed), None).await.unwrap();
        make_file(&*l.meta, &l.cx, &d, "new", "").await;
        tokio::time::advance(VALID).await;
        l.meta.readdir(&l.cx, &d, 0, [0; 8], 4000, true).await.unwrap();
        let rest = rest(&l, &d, (page.entries[4].cookie, page.verifier), 900).await;
        assert!(rest.values().all(|&n| n == 1));
        seen.extend(rest.keys().map(|n| name(n)));
        let all: std::collections::BTreeSet<_> = seen.iter().collect();
        assert_eq!((all.len(), seen.len()), (21, 21), "{removed}");
    }
}

/// The open and read of a file written by this client send one request, if its attributes are
/// unknown.
#[tokio::test(start_paused = true)]
async fn own_file_reads_with_one_walk() {
    let l = lab().await;
    let d = make_dir(&*l.meta, &l.cx, &l.top, "made").await;
    let fh = make_file(&*l.meta, &l.cx, &d, "f", "text").await;
    // The attributes are unknown, as after overlapping changes.
    l.meta.let_go(&fh, None);
    tokio::time::advance(Duration::from_secs(1)).await;
    l.wire.take();
    // The kernel has pages and wants no bytes. Then it finds its pages outdated.
    let how = OpenHow { first_bytes: 0, ..READ };
    let fresh = l.cx.fresh(Instant::now());
    let opened = l.meta.open(&fresh, PathRef::name(&d, &name("f")), &how).await.unwrap();
    let file = File { fh: &fh, open: Some(opened.open) };
    let read = l.meta.read(&l.cx, file, 0, 4096).await.unwrap();
    assert_eq!(read.data.into_bytes(), "text");
    l.meta.close(&l.cx, &fh, opened.open).await.unwrap();
    assert_eq!(l.wire.take(), "walk 1");
}

/// A batched GETATTR leaves out removed files, except those with another name. A request for a
/// removed file itself gets the server's answer.
#[tokio::test(start_paused = true)]
async fn removed_files_leave_batched_getattr() {
    let l = lab().await;
    let d = make_dir(&*l.model, &l.cx, &l.top, "d").await;
    let mut files = Vec::new();
    for i in 0..20 {
        files.push(make_file(&*l.model, &l.cx, &d, &format!("f{i}"), "").await);
    }
    // One of the files keeps a second name.
    l.model.link(&l.cx, &files[3], &l.top, &name("other")).await.unwrap();
    for fh in &files {
        l.meta.getattr(&l.cx, File { fh, open: None }).await.unwrap();
    }
    for (i, fh) in files[..15].iter().enumerate() {
        l.meta.unlink(&l.cx, &d, &name(&format!("f{i}")), Some(fh)).await.unwrap();
    }
    tokio::time::advance(VALID).await;
    l.wire.take();
    let before = l.meta.stats().batched_objects;
    l.meta.getattr(&l.cx, File { fh: &files[15], open: None }).await.unwrap();
    assert_eq!(l.wire.take(), "getattr_many 1");
    assert_eq!(
        l.meta.stats().batched_objects - before,
        6,
        "five that have their names and the one with another"
    );
    // A request for a removed file gets the true answer.
    let gone = l.meta.getattr(&l.cx, File { fh: &files[0], open: None }).await.unwrap_err();
    assert_eq!(gone.errno, libc::ESTALE);
    let linked = l.meta.getattr(&l.cx, File { fh: &files[3], open: None }).await.unwrap();
    assert_eq!(linked.attr.nlink, 1);
}

/// The server does not report the directory's `change` when a name in it changes. The other names
/// keep their validity, and nothing renews them.
#[tokio::test(start_paused = true)]
async fn unreported_change_keeps_name_validity() {
    let l = lab().await;
    *l.wire.silent.lock() = true;
    let d = make_dir(&*l.meta, &l.cx, &l.top, "d").await;
    let new = |n: &str| {
        let n = n.to_string();
        async { l.meta.open(&l.cx, PathRef::name(&d, &name(&n)), &creating(0o644)).await.map(|o| (n, o)) }
    };
    let look = |n: &str| l.meta.peek(&l.cx, PathRef::name(&d, &name(n))).map(|t| t.steps.len());
    for n in ["a", "b", "c"] {
        new(n).await.unwrap();
    }
    l.wire.take();
    assert_eq!((look("a"), look("c"), look("absent")), (Some(1), Some(1), Some(0)));
    l.meta.unlink(&l.cx, &d, &name("b"), None).await.unwrap();
    assert_eq!(look("b"), Some(0));
    assert_eq!(l.wire.take(), "unlink 1");
    // The directory's new `change` counts as the result of the local changes, and proves nothing.
    l.meta.getattr(&l.cx, File { fh: &d, open: None }).await.unwrap();
    l.wire.take();
    // The caller's right to search is requested once more.
    walk(&*l.meta, &l.cx, &l.top, "d/a").await;
    assert_eq!((l.wire.take(), look("absent")), ("walk 1".into(), Some(0)));
    make_file(&*l.model, &l.cx, &d, "theirs", "").await;
    l.model.unlink(&l.cx, &d, &name("c"), None).await.unwrap();
    tokio::time::advance(VALID).await;
    assert_eq!((look("absent"), look("c")), (None, None), "their time is over");
    assert!(walk(&*l.meta, &l.cx, &l.top, "d/c").await.steps.len() < 2);
    // A name believed present is dropped, if the listing lacks it.
    new("e").await.unwrap();
    l.model.unlink(&l.cx, &d, &name("a"), None).await.unwrap();
    tokio::time::advance(Duration::from_millis(1)).await;
    let listed = |l: &Lab| {
        let (meta, cx, d) = (l.meta.clone(), l.cx.fresh(Instant::now()), d.clone());
        async move {
            let page = meta.readdir(&cx, &d, 0, [0; 8], 1 << 20, true).await.unwrap();
            let mut names: Vec<_> =
                page.entries.iter().map(|e| String::from_utf8(e.name.as_bytes().to_vec()).unwrap()).collect();
            names.sort();
            names
        }
    };
    assert_eq!(listed(&l).await, ["e", "theirs"]);
    new("f").await.unwrap();
    walk(&*l.meta, &l.cx, &l.top, "d/e").await;
    assert_eq!((look("a"), look("e")), (Some(0), Some(1)));
}

/// The first page of a large directory, brought by a look-up, drops none of the other names. A
/// complete listing does, also in several pages.
#[tokio::test(start_paused = true)]
async fn partial_listing_keeps_other_names() {
    let l = lab_with(MetadataCacheOptions { listing_bytes: 4096, ..options() }, VALID).await;
    *l.wire.silent.lock() = true;
    let d = make_dir(&*l.meta, &l.cx, &l.top, "d").await;
    for i in 0..300 {
        let how = creating(0o644);
        let new = l.meta.open(&l.cx, PathRef::name(&d, &name(&format!("{i}"))), &how).await.unwrap();
        l.meta.close(&l.cx, &new.node.fh, new.open).await.unwrap();
    }
    let known = || {
        let look = |i: &i32| l.meta.peek(&l.cx, PathRef::name(&d, &name(&format!("{i}")))).is_some();
        (0..300).filter(look).count()
    };
    l.meta.getattr(&l.cx, File { fh: &d, open: None }).await.unwrap();
    walk(&*l.meta, &l.cx, &l.top, "d/7").await;
    assert_eq!(known(), 300);
    let ask = WalkRequest { listing_bytes: 4096, ..WalkRequest::default() };
    let path = ["d", "7"].map(name);
    let ticket = l.meta.ticket();
    let trail = l.model.walk(&l.cx, PathRef { base: &l.top, path: &path }, ask).await.unwrap();
    let page = trail.along.listing.expect("the first page");
    assert!(!page.eof && page.entries.len() < 100);
    l.meta.learn_page(&l.cx, &d, 0, &page, l.meta.label(&d), &ticket);
    assert_eq!(known(), 300, "after a part of the listing");
    // A complete listing lacks a name that another client removed. The directory's `change` is the
    // same as before.
    l.model.unlink(&l.cx, &d, &name("150"), None).await.unwrap();
    let (mut cookie, mut pages) = (0, 0);
    loop {
        let ticket = l.meta.ticket();
        let page = l.model.readdir(&l.cx, &d, cookie, page.verifier, 4096, true).await.unwrap();
        l.meta.learn_page(&l.cx, &d, cookie, &page, l.meta.label(&d), &ticket);
        pages += 1;
        if page.eof {
            break;
        }
        cookie = page.entries.last().unwrap().cookie;
    }
    assert!(pages > 2);
    let gone = l.meta.peek(&l.cx, PathRef::name(&d, &name("150"))).expect("all names are known");
    assert!(matches!(gone.stop, Stop::Missing(_)), "{:?}", gone.stop);
    assert_eq!(known(), 300);
}

/// The removal of a name proven by a lease expires no other object. The removal of any other name
/// expires all, because the object that lost it is unknown.
#[tokio::test(start_paused = true)]
async fn leased_removal_keeps_other_attributes() {
    for leased in [true, false] {
        let l = lab().await;
        *l.wire.silent.lock() = true;
        let d = make_dir(&*l.meta, &l.cx, &l.top, "d").await;
        l.wire.lease(leased);
        for n in ["gone", "kept"] {
            let how = creating(0o644);
            let opened = l.meta.open(&l.cx, PathRef::name(&d, &name(n)), &how).await.unwrap();
            l.meta.close(&l.cx, &opened.node.fh, opened.open).await.unwrap();
        }
        let kept = walk(&*l.meta, &l.cx, &l.top, "d/kept").await.steps.pop().unwrap().fh;
        l.wire.take();
        tokio::time::advance(Duration::from_millis(1)).await;
        l.meta.unlink(&l.cx, &d, &name("gone"), None).await.unwrap();
        assert_eq!(l.wire.take(), "unlink 1");
        l.meta.getattr(&l.cx, File { fh: &kept, open: None }).await.unwrap();
        assert_eq!(l.wire.take().is_empty(), leased);
    }
}

/// Look-ups of new names in a directory that is too long for one listing bring its listing once in
/// ten seconds, however the directory changes: by creates here, by creates of another client, and
/// with removals between.
#[tokio::test(start_paused = true)]
async fn long_directory_is_listed_rarely() {
    for (theirs, silent) in [(false, false), (false, true), (true, false), (true, true)] {
        let l = lab_with(MetadataCacheOptions { listing_bytes: 4096, ..options() }, VALID).await;
        *l.wire.silent.lock() = silent;
        let d = make_dir(&*l.meta, &l.cx, &l.top, "d").await;
        for i in 0..200 {
            make_file(&*l.model, &l.cx, &d, &format!("old{i}"), "").await;
        }
        for second in 0..25 {
            for i in 0..20 {
                let new = format!("{second}.{i}");
                assert!(walk(&*l.meta, &l.cx, &d, &new).await.steps.is_empty());
                // A path that is looked up from the root.
                assert!(walk(&*l.meta, &l.cx, &l.top, &format!("d/{new}")).await.steps.len() < 2);
                let maker: &dyn Vfs = if theirs { &*l.model } else { &*l.meta };
                make_file(maker, &l.cx, &d, &new, "").await;
                if i % 7 == 0 {
                    let old = name(&format!("old{}", second * 3 + i / 7));
                    l.meta.unlink(&l.cx, &d, &old, None).await.unwrap();
                }
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let listings = *l.wire.listings.lock();
        assert!((1..=4).contains(&listings), "{listings} with {theirs} {silent}");
    }
}
