//! Listings ahead: their number, their age, and their limits.

use super::*;

/// Directories of a tree below the root: 5, and 5 in each of them, with two files each.
const WIDTH: usize = 5;

async fn wide_tree(l: &Lab, bits: u32) {
    for a in 0..WIDTH {
        let a = make_dir(&*l.model, &l.cx, &l.top, &format!("a{a}")).await;
        for b in 0..WIDTH {
            let b = make_dir(&*l.model, &l.cx, &a, &format!("b{b}")).await;
            make_file(&*l.model, &l.cx, &b, "f", "one").await;
            make_file(&*l.model, &l.cx, &b, "g", "two").await;
            l.model.setattr(&l.cx, File { fh: &b, open: None }, &mode(bits)).await.unwrap();
        }
    }
    tokio::time::advance(Duration::from_secs(100)).await;
}

/// Lists all directories depth first; returns the number of entries.
async fn list_all(l: &Lab, cx: &RequestContext) -> usize {
    let (mut todo, mut entries) = (vec![l.top.clone()], 0);
    while let Some(dir) = todo.pop() {
        let Ok(page) = l.meta.readdir(cx, &dir, 0, [0; 8], 1 << 20, true).await else { continue };
        assert!(page.eof);
        entries += page.entries.len();
        let nodes = page.entries.into_iter().map(|e| e.node.unwrap());
        let dirs = nodes.filter(|node| node.attrs.attr.kind == FileKind::Directory);
        let mut dirs: Vec<Fh> = dirs.map(|node| node.fh).collect();
        dirs.reverse();
        todo.extend(dirs);
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    entries
}

/// Looks at all files, as `git status` does: each directory of the path, then the file.
async fn look_at_all(l: &Lab) {
    for a in 0..WIDTH {
        for b in 0..WIDTH {
            for path in
                [format!("a{a}"), format!("a{a}/b{b}"), format!("a{a}/b{b}/f"), format!("a{a}/b{b}/g")]
            {
                let trail = walk(&*l.meta, &l.cx, &l.top, &path).await;
                assert!(matches!(trail.stop, Stop::Complete), "{path}: {:?}", trail.stop);
            }
        }
    }
}

const ENTRIES: usize = WIDTH + WIDTH * WIDTH * 3;

/// A traversal of 31 directories costs few requests, cold and after all answers expired.
#[tokio::test(start_paused = true)]
async fn traversal_lists_ahead() {
    let l = lab().await;
    wide_tree(&l, 0o755).await;
    for (requests, what) in [(8, "cold"), (5, "expired"), (5, "expired again")] {
        l.wire.take();
        assert_eq!(list_all(&l, &l.cx).await, ENTRIES);
        let sent = l.wire.total();
        assert!(sent <= requests, "{what}: {sent} requests");
        assert_eq!(list_all(&l, &l.cx).await, ENTRIES);
        assert_eq!(l.wire.take(), "", "{what}: again");
        tokio::time::advance(VALID).await;
    }
    let stats = l.meta.stats();
    assert_eq!(stats.listed_ahead, stats.listed_ahead_used, "no guess was wrong");
}

/// Look-ups of one file after the other are answered from listings ahead. The request brings the
/// right to search, which a listing does not prove.
#[tokio::test(start_paused = true)]
async fn lookups_list_ahead() {
    let l = lab().await;
    wide_tree(&l, 0o755).await;
    look_at_all(&l).await;
    let sent = l.wire.total();
    assert!(sent <= 10, "{sent} requests");
    look_at_all(&l).await;
    assert_eq!(l.wire.take(), "");
}

/// Names and attributes that were listed ahead end with the validity of their own request.
/// Promise: 8
#[tokio::test(start_paused = true)]
async fn listings_ahead_expire() {
    let l = lab().await;
    wide_tree(&l, 0o755).await;
    list_all(&l, &l.cx).await;
    let last = walk(&*l.model, &l.cx, &l.top, "a4/b4/f").await;
    let [b4, f] = [1, 2].map(|i| last.steps[i].fh.clone());
    make_file(&*l.model, &l.cx, &b4, "new", "").await;
    l.model.setattr(&l.cx, File { fh: &f, open: None }, &mode(0o600)).await.unwrap();
    tokio::time::advance(VALID).await;
    assert_eq!(list_all(&l, &l.cx).await, ENTRIES + 1);
    let trail = walk(&*l.meta, &l.cx, &l.top, "a4/b4/f").await;
    assert_eq!(trail.steps[2].attrs.attr.mode, 0o600);
}

/// A call that asks for freshness uses no earlier listing ahead, and causes none.
/// Promise: 7
#[tokio::test(start_paused = true)]
async fn fresh_calls_list_nothing_ahead() {
    let l = lab().await;
    wide_tree(&l, 0o755).await;
    list_all(&l, &l.cx).await;
    let ahead = l.meta.stats().listed_ahead;
    let trail = walk(&*l.model, &l.cx, &l.top, "a4/b4/f").await;
    l.model.setattr(&l.cx, File { fh: &trail.steps[2].fh, open: None }, &mode(0o600)).await.unwrap();
    let fresh = l.cx.fresh(Instant::now());
    let trail = walk(&*l.meta, &fresh, &l.top, "a4/b4/f").await;
    assert_eq!(trail.steps[2].attrs.attr.mode, 0o600);
    for a in &trail.steps[..2] {
        l.meta.readdir(&fresh, &a.fh, 0, [0; 8], 1 << 20, true).await.unwrap();
    }
    assert_eq!(l.meta.stats().listed_ahead, ahead);
}

/// Directories that the caller may not list are left out. A listing by one user gives another user
/// no right.
/// Promise: 20
#[tokio::test(start_paused = true)]
async fn listings_ahead_give_no_rights() {
    let l = lab().await;
    wide_tree(&l, 0o700).await;
    list_all(&l, &user(7)).await;
    assert_eq!(l.meta.stats().listed_ahead, WIDTH as u64 - 1, "only directories that all may list");
    list_all(&l, &l.cx).await;
    assert!(l.meta.stats().listed_ahead > WIDTH as u64);
    let b4 = walk(&*l.model, &l.cx, &l.top, "a4/b4").await.steps[1].fh.clone();
    let page = l.meta.readdir(&user(7), &b4, 0, [0; 8], 1 << 20, true).await;
    assert_eq!(page.unwrap_err().errno, libc::EACCES);
    let path = names("a4/b4/f");
    let trail = l.meta.walk(&user(7), PathRef { base: &l.top, path: &path }, WalkRequest::default()).await;
    assert!(matches!(trail.unwrap().stop, Stop::Failed(e) if e.errno == libc::EACCES));
}

/// Two directories in different places are no traversal, and one directory is none.
#[tokio::test(start_paused = true)]
async fn single_listings_bring_nothing_else() {
    let l = lab().await;
    wide_tree(&l, 0o755).await;
    for path in ["a0", "a1/b1", "a3/b2"] {
        let dir = walk(&*l.model, &l.cx, &l.top, path).await.steps.pop().unwrap().fh;
        l.meta.readdir(&l.cx, &dir, 0, [0; 8], 1 << 20, true).await.unwrap();
        tokio::time::advance(Duration::from_secs(11)).await;
    }
    assert_eq!(l.meta.stats().listed_ahead, 0);
}

/// A directory that a program lists again and again is no traversal.
#[tokio::test(start_paused = true)]
async fn polled_directory_brings_nothing_else() {
    let l = lab_with(options(), Duration::from_secs(3)).await;
    wide_tree(&l, 0o755).await;
    l.meta.readdir(&l.cx, &l.top, 0, [0; 8], 1 << 20, true).await.unwrap();
    let a0 = walk(&*l.model, &l.cx, &l.top, "a0").await.steps.pop().unwrap().fh;
    for _ in 0..5 {
        l.meta.readdir(&l.cx, &a0, 0, [0; 8], 1 << 20, true).await.unwrap();
        tokio::time::advance(Duration::from_secs(4)).await;
    }
    assert_eq!(l.meta.stats().listed_ahead, 0);
}
