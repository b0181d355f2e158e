//! The rules of nfs(5) for `ac*`, `noac` and `lookupcache=`.

use super::*;
use crate::testing::options as test_options;
use bytes::Bytes;
use hither_vfs::Time;

fn fh(n: u64) -> Fh {
    Fh(Bytes::copy_from_slice(&n.to_be_bytes()))
}

pub(crate) fn attr(kind: FileKind, change: u64) -> Attr {
    let t = Time::default();
    Attr {
        kind,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: (0, 0),
        size_bytes: 0,
        used_bytes: 0,
        fsid: (0, 0),
        fileid: 1,
        atime: t,
        mtime: t,
        ctime: t,
        change,
    }
}

/// Rules of a client whose wall clock shows the second 1,000.
fn rules(options: &Options) -> ValidityRules {
    let wall = || SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
    ValidityRules::new(options, &Env { random: std::sync::Arc::new(|| 7), wall: std::sync::Arc::new(wall) })
}

fn secs(v: Validity, asked: Instant) -> u64 {
    v.left(asked).as_secs()
}

/// An unchanged file is revalidated after 3, 6, 12, 24, 48, 60, 60... seconds. A change resets the
/// time to 3 s.
/// Promise: 8
#[test]
fn unchanged_object_doubles_validity() {
    let rules = rules(&test_options());
    let mut now = Instant::now();
    let mut seen = Vec::new();
    for _ in 0..8 {
        let left = secs(rules.attrs(&fh(1), attr(FileKind::Regular, 7), now).valid, now);
        seen.push(left);
        now += Duration::from_secs(left);
    }
    assert_eq!(seen, [3, 6, 12, 24, 48, 60, 60, 60]);
    assert_eq!(secs(rules.attrs(&fh(1), attr(FileKind::Regular, 8), now).valid, now), 3);
}

/// Answers within the validity do not extend the time. 100 GETATTRs in a second count as one.
#[test]
fn early_answers_do_not_double() {
    let rules = rules(&test_options());
    let now = Instant::now();
    for _ in 0..100 {
        assert_eq!(secs(rules.attrs(&fh(1), attr(FileKind::Directory, 7), now).valid, now), 30);
    }
}

/// Promise: 9
#[test]
fn noac_trusts_nothing() {
    let rules = rules(&Options { attr_cache: AttrCache::NONE, ..test_options() });
    let now = Instant::now();
    assert_eq!(rules.attrs(&fh(1), attr(FileKind::Regular, 7), now).valid, Validity::Once);
    assert_eq!(rules.missing(&fh(1), now), Validity::Once);
}

/// `lookupcache=positive` looks up absent names again, `none` looks up all names again.
/// Promise: 8
#[test]
fn lookupcache_limits_names_only() {
    let now = Instant::now();
    let of = |lookup_cache| rules(&Options { lookup_cache, ..test_options() });
    for (rules, named, missing) in
        [(of(LookupCache::All), 3, 30), (of(LookupCache::Positive), 3, 0), (of(LookupCache::None), 0, 0)]
    {
        assert_eq!(secs(rules.named(&fh(1), attr(FileKind::Regular, 7), now).valid, now), named);
        assert_eq!(secs(rules.missing(&fh(2), now), now), missing);
        assert_eq!(secs(rules.attrs(&fh(1), attr(FileKind::Regular, 7), now).valid, now), 3);
    }
}

/// The validity of an absent name is the time of its directory.
#[test]
fn absence_validity_follows_directory() {
    let rules = rules(&test_options());
    let now = Instant::now();
    rules.attrs(&fh(1), attr(FileKind::Directory, 7), now);
    let later = now + Duration::from_secs(30);
    rules.attrs(&fh(1), attr(FileKind::Directory, 7), later);
    assert_eq!(secs(rules.missing(&fh(1), later), later), 60);
}

/// Absent names are not remembered for a server that ignores case, with any `lookupcache`.
#[test]
fn case_insensitive_server_caches_no_absence() {
    let now = Instant::now();
    let of = |lookup_cache| rules(&Options { lookup_cache, ..test_options() });
    let rules = of(LookupCache::All);
    rules.ignore_case();
    assert_eq!(rules.lookup_cache(), LookupCache::Positive);
    assert_eq!(rules.missing(&fh(2), now), Validity::Once);
    assert_eq!(secs(rules.named(&fh(1), attr(FileKind::Regular, 7), now).valid, now), 3);
    let rules = of(LookupCache::None);
    rules.ignore_case();
    assert_eq!(rules.lookup_cache(), LookupCache::None);
}

/// `acnegmax` bounds the validity of an absent name.
#[test]
fn acnegmax_bounds_absence_validity() {
    let now = Instant::now();
    let times = |secs| AttrCache { negative_max: Duration::from_secs(secs), ..AttrCache::default() };
    let of = |secs| rules(&Options { attr_cache: times(secs), ..test_options() });
    assert_eq!(secs(of(5).missing(&fh(2), now), now), 5);
    assert_eq!(of(0).missing(&fh(2), now), Validity::Once);
}

/// A directory is stable when it stayed unchanged for its validity: by its change time, or in the
/// answers of the server. A change, or its announcement, ends that.
/// Promise: 8f
#[test]
fn directory_proves_stable_by_answers_or_age() {
    let start = Instant::now();
    for age in [-5, 0, 1, 29, 30, 31, 1_000] {
        let rules = rules(&test_options());
        let at = |kind, change| Attr { ctime: Time { secs: 1_000 - age, nanos: 0 }, ..attr(kind, change) };
        let stable =
            |by_age, after| rules.has_proved_stable(&fh(1), start + Duration::from_secs(after), by_age);
        assert!(!stable(true, 0), "unknown");
        rules.attrs(&fh(2), at(FileKind::Regular, 7), start);
        assert!(!rules.has_proved_stable(&fh(2), start, true), "no directory");
        rules.attrs(&fh(1), at(FileKind::Directory, 7), start);
        assert_eq!(stable(true, 0), age >= 30, "age {age}");
        assert!(!stable(false, 29) && stable(false, 30));
        rules.doubt(&fh(1), start + Duration::from_secs(10));
        assert!(!stable(true, 39) && stable(true, 40), "announced");
        let changed = Attr { ctime: Time { secs: 1_000, nanos: 0 }, ..attr(FileKind::Directory, 8) };
        rules.attrs(&fh(1), changed, start + Duration::from_secs(50));
        assert!(!stable(true, 79) && stable(true, 80), "changed");
    }
}
