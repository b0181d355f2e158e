//! Selection of a path's rule, and refusals.

use super::*;
use crate::options::Promise;
use std::time::Duration;

fn parse(list: &str) -> Result<Wanted, String> {
    Wanted::parse(&[list.to_string()], false)
}

fn refusal(list: &str) -> String {
    parse(list).map(|_| ()).unwrap_err()
}

fn promise(w: &Wanted, path: &str) -> Promise {
    w.at(&Name::of_path(path).unwrap()).1.promise()
}

#[test]
fn the_longest_path_counts() {
    let w =
        parse("subtree=/data:frozen,subtree=data/live/queue:strict,subtree=data/live:close-to-open").unwrap();
    assert_eq!(promise(&w, "data/v1/x"), Promise::Frozen);
    assert_eq!(promise(&w, "data"), Promise::Frozen);
    assert_eq!(promise(&w, "database"), Promise::CloseToOpen);
    assert_eq!(promise(&w, "data/live/x"), Promise::CloseToOpen);
    assert_eq!(promise(&w, "data/live/queue/x/y"), Promise::Strict);
    assert_eq!(promise(&w, ""), Promise::CloseToOpen);
    // A subtree with the mount's own mode adds no part.
    assert_eq!(w.all_parts().count(), 3);
    assert_eq!(w.subtrees[2].part, 0);
}

/// Of two modes for one directory the last one counts.
#[test]
fn last_subtree_mode_counts() {
    let w = parse("subtree=a:strict,subtree=a/:bounded=7").unwrap();
    assert_eq!(w.subtrees.len(), 1);
    assert_eq!(promise(&w, "a"), Promise::Bounded(7));
    assert_eq!(w.subtrees[0].to_string(), "subtree=a:bounded=7");
}

/// A part has the same options as a mount with that mode. The server's answers are valid as nfs(5)
/// defines.
#[test]
fn part_equals_mount_with_mode() {
    let w = parse("consistency=frozen,subtree=q:strict,subtree=c:cto,subtree=b:bounded=3").unwrap();
    let whole = |mode: &str| parse(&format!("consistency={mode}")).unwrap();
    let details = |w: &Wanted| (w.attr_cache, w.lookup_cache, w.close_to_open, w.prefetch, w.is_strict());
    for (path, mode) in [("", "frozen"), ("q", "strict"), ("c", "close-to-open"), ("b", "bounded=3")] {
        assert_eq!(details(w.at(&Name::of_path(path).unwrap()).1), details(&whole(mode)), "{mode}");
    }
    assert_eq!(w.told(), (AttrCache::default(), LookupCache::All));
}

/// Times that are given as options of nfs(5) apply to the close-to-open parts.
#[test]
fn nfs5_times_apply_to_parts() {
    let w = parse("actimeo=5,nocto,subtree=c:cto,subtree=f:frozen").unwrap();
    assert_eq!(promise(&w, ""), Promise::NoCloseToOpen);
    let (_, part) = w.at(&Name::of_path("c").unwrap());
    assert_eq!((part.close_to_open, part.attr_cache.regular_max), (true, Duration::from_secs(5)));
    assert_eq!(promise(&w, "f"), Promise::Frozen);
}

#[test]
fn paths_may_have_commas_and_colons() {
    let w = parse("ro,subtree=\"a,b:c/d:frozen\",soft").unwrap();
    assert_eq!(promise(&w, "a,b:c/d"), Promise::Frozen);
    assert_eq!(w.subtrees[0].names.len(), 2);
}

/// Each invalid `subtree=` and each contradiction is refused in one line.
#[test]
fn invalid_subtrees_are_refused() {
    assert_eq!(refusal("subtree=queue"), "option 'subtree=queue': expected PATH:MODE, such as queue:strict");
    assert_eq!(
        refusal("subtree=queue:lax"),
        "option 'subtree=queue:lax': expected close-to-open, bounded=SECONDS, frozen or strict"
    );
    assert_eq!(
        refusal("subtree=../x:strict"),
        "option 'subtree=../x:strict': expected a path below the mounted directory, without '..'"
    );
    assert_eq!(
        refusal("subtree=/:strict"),
        "option 'subtree=/:strict': it names the root of the mount: write consistency=strict"
    );
    for other in ["noac", "writeback=journal", "close=lazy", "close=delegated", "vers=nqnfs"] {
        let line = format!("options 'subtree=q:frozen' and '{other}' contradict each other: keep one");
        assert_eq!(refusal(&format!("{other},subtree=q:frozen")), line);
    }
    // A strict part does not use the disk cache.
    parse("cache,subtree=d:frozen,subtree=q:strict").unwrap();
    let many: Vec<String> = (0..8).map(|n| format!("subtree=d{n}:bounded={n}")).collect();
    assert_eq!(refusal(&many.join(",")), "options 'subtree' have 8 modes: at most 7 differ");
    let deep: Vec<String> = (0..300).map(|n| format!("subtree=d{n}/e:strict")).collect();
    assert_eq!(refusal(&deep.join(",")), "options 'subtree' name too many directories: at most 200");
}
