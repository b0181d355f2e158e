//! A caller's path as text, and the position of a lookup in it.

use bytes::Bytes;
use hither_vfs::Name;
use std::sync::Arc;

/// Maximum number of names of one walk. Later names are looked up when the kernel requests them.
const NAMES_MAX: usize = 64;

/// A path split at its slashes, without empty parts and `.`. Parts `..` stay.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Path {
    /// Parts in order.
    pub parts: Arc<[Bytes]>,
    /// The path starts at the root directory.
    pub absolute: bool,
}

impl Path {
    /// Splits a path.
    pub fn new(text: Vec<u8>) -> Self {
        let absolute = text.first() == Some(&b'/');
        let text = Bytes::from(text);
        let parts = text.split(|&b| b == b'/').filter(|part| !part.is_empty() && *part != b".");
        Self { parts: parts.map(|part| text.slice_ref(part)).collect(), absolute }
    }

    /// The path after following a symbolic link with this target. The link is the part before
    /// `rest`.
    pub fn through_link(&self, target: &[u8], rest: usize) -> Self {
        let target = Path::new(target.to_vec());
        let behind = self.parts.get(rest..).unwrap_or_default();
        let parts = target.parts.iter().chain(behind).cloned().collect();
        Self { parts, absolute: target.absolute }
    }

    /// Names from part `at` up to the next `..`, and whether they reach the end of the path.
    pub fn ahead(&self, at: usize) -> (Vec<Name>, bool) {
        let parts = self.parts.get(at..).unwrap_or_default();
        let names: Vec<Name> =
            parts.iter().take(NAMES_MAX).map_while(|part| Name::new(part.clone()).ok()).collect();
        let whole = names.len() == parts.len();
        (names, whole)
    }

    /// The index of the part that is being looked up, from part `from` on: a part equal to `name`.
    /// When several are equal, the parts before each are compared with the path of the directory.
    /// `above` returns the number of equal parts, from the last backwards, and whether a part
    /// differs.
    pub fn find(&self, name: &[u8], from: usize, above: impl Fn(&[Bytes]) -> Agreement) -> Option<usize> {
        let parts = self.parts.iter().enumerate().skip(from);
        let mut all = parts.filter(|(_, part)| &part[..] == name).map(|(i, _)| i);
        let first = all.next()?;
        let Some(second) = all.next() else { return Some(first) };
        let all = [first, second].into_iter().chain(all);
        let judged = all.map(|i| (i, above(&self.parts[..i]))).filter(|(_, a)| !a.contradicts);
        // An absolute path contains all directories above this one. A relative path may start in
        // it.
        let best = if self.absolute {
            judged.max_by_key(|(i, a)| (a.parts, std::cmp::Reverse(*i)))
        } else {
            judged.min_by_key(|(i, _)| *i)
        };
        Some(best.map_or(first, |(i, _)| i))
    }
}

/// Comparison of parts of a path with the names of a directory and its parents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Agreement {
    /// Number of equal parts, from the last backwards.
    pub parts: usize,
    /// The next part differs.
    pub contradicts: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Path {
        Path::new(text.as_bytes().to_vec())
    }

    fn shown(names: &[Name]) -> String {
        names.iter().map(|n| String::from_utf8_lossy(n.as_bytes())).collect::<Vec<_>>().join(" ")
    }

    /// The comparison with a directory whose path from the root is `dir`, as in `Inodes`.
    fn in_dir(dir: &'static str) -> impl Fn(&[Bytes]) -> Agreement {
        move |parts| {
            let names: Vec<&str> = dir.split('/').filter(|n| !n.is_empty()).collect();
            let mut a = Agreement::default();
            for (part, name) in parts.iter().rev().zip(names.iter().rev()) {
                if part != name.as_bytes() {
                    a.contradicts = true;
                    break;
                }
                a.parts += 1;
            }
            a
        }
    }

    /// Empty parts and `.` are removed from a path.
    #[test]
    fn path_drops_dots_and_empty_parts() {
        for text in ["/a/b/c", "//a/./b///c/", "/./a/b/c/.", "/a/b/c/./"] {
            assert_eq!(path(text), path("/a/b/c"), "{text}");
        }
        assert!(path("/a").absolute && !path("./a").absolute);
        assert_eq!(path("").parts.len() + path("/").parts.len() + path("./.").parts.len(), 0);
    }

    /// The remaining names end before `..`, at a name that is too long, or at the maximum number of
    /// names.
    #[test]
    fn remaining_names_end_at_parent() {
        let p = path("a/b/../c/d");
        assert_eq!((shown(&p.ahead(0).0), p.ahead(0).1), ("a b".into(), false));
        assert_eq!((shown(&p.ahead(3).0), p.ahead(3).1), ("c d".into(), true));
        assert_eq!(p.ahead(5), (Vec::new(), true));
        let long = path(&"x/".repeat(200));
        assert_eq!((long.ahead(0).0.len(), long.ahead(0).1), (NAMES_MAX, false));
        let too_long = format!("a/{}/c", "n".repeat(256));
        assert_eq!((shown(&path(&too_long).ahead(0).0), path(&too_long).ahead(0).1), ("a".into(), false));
    }

    /// A name that occurs once in the path needs no comparison.
    #[test]
    fn unique_name_needs_no_comparison() {
        let p = path("/mnt/a/b/c");
        assert_eq!(p.find(b"b", 0, |_| Agreement { parts: 0, contradicts: true }), Some(2));
        assert_eq!(p.find(b"x", 0, in_dir("")), None);
        assert_eq!(p.find(b"..", 0, in_dir("")), None);
    }

    /// Of several equal names the one below the looked up directory is chosen.
    #[test]
    fn repeated_name_is_chosen_by_directory() {
        let p = path("/mnt/a/a/b/a");
        assert_eq!(p.find(b"a", 0, in_dir("mnt")), Some(1));
        assert_eq!(p.find(b"a", 0, in_dir("mnt/a")), Some(2));
        assert_eq!(p.find(b"a", 0, in_dir("mnt/a/a/b")), Some(4));
        let p = path("a/a/a");
        assert_eq!(p.find(b"a", 0, in_dir("x")), Some(0));
        assert_eq!(p.find(b"a", 1, in_dir("x/a")), Some(1));
        assert_eq!(p.find(b"a", 2, in_dir("x/a/a")), Some(2));
        // No part is equal: a guess, which costs nothing.
        assert_eq!(path("/q/a/a").find(b"a", 2, in_dir("elsewhere")), Some(2));
        assert_eq!(path("/q/a/a").find(b"a", 0, in_dir("elsewhere")), Some(1));
        // Later parts are looked up later.
        assert_eq!(path("/q/a/a").find(b"a", 3, in_dir("q")), None);
    }

    /// A symbolic link is replaced by its target.
    #[test]
    fn link_is_replaced_by_target() {
        let p = path("/mnt/a/link/c/../d");
        assert_eq!(p.through_link(b"x/./y", 3), path("x/y/c/../d"));
        assert_eq!(p.through_link(b"/z", 3), path("/z/c/../d"));
        assert_eq!(p.through_link(b"x", 99), path("x"));
    }
}
