//! Inodes: identity, validity and permissions, without a kernel.

use super::*;
use hither_vfs::{Name, OpenAccess, Time};

pub(crate) fn node(fh: &str, fileid: u64, kind: FileKind) -> Node {
    let attr = Attr {
        kind,
        mode: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: (0, 0),
        size_bytes: 10,
        used_bytes: 0,
        fsid: (1, 1),
        fileid,
        atime: Time::default(),
        mtime: Time::default(),
        ctime: Time::default(),
        change: 1,
    };
    Node {
        fh: Fh(Bytes::copy_from_slice(fh.as_bytes())),
        attrs: Attrs { attr, valid: Validity::Once, asked: Instant::now() },
    }
}

pub(crate) fn inodes() -> Inodes {
    Inodes::new(&node("root", 1, FileKind::Directory), None)
}

fn name(n: &str) -> Name {
    Name::new(n.as_bytes().to_vec()).unwrap()
}

fn changed(node: &Node, change: u64, size_bytes: u64) -> Attrs {
    Attrs {
        attr: Attr { change, size_bytes, ..node.attrs.attr.clone() },
        valid: Validity::Once,
        asked: Instant::now(),
    }
}

/// A forgotten file with a handle keeps its inode for its own filehandle. A new object may have its
/// identity at once.
#[test]
fn forgotten_file_with_handle_keeps_inode() {
    let t = inodes();
    let (old, new) = (node("old", 5, FileKind::Regular), node("new", 5, FileKind::Regular));
    let first = t.remember(Some((1, &name("a"), Moment::default())), &old).unwrap();
    let handle = first.in_use.opened(OpenAccess::READ, true);
    assert!(!t.forget(first.id, 1), "a handle is open");
    assert_eq!(t.remember(None, &old).unwrap().id, first.id);
    assert!(t.remember(None, &new).is_err(), "the kernel knows the first");
    assert!(!t.forget(first.id, 1));
    let second = t.remember(None, &new).unwrap();
    assert_ne!(second.id, first.id);
    assert_eq!(t.by_fh(&old.fh).unwrap().id, first.id);
    first.in_use.released(&handle);
    assert!(!t.forget(first.id, 0), "the close has not ended");
    first.in_use.closed_alone();
    assert!(t.forget(first.id, 0) && t.by_fh(&old.fh).is_none());
    assert_eq!(t.remember(None, &new).unwrap().id, second.id);
}

/// Hard links share one number, and a number is not reused after the inode was forgotten.
#[test]
fn inode_number_is_never_reused() {
    let t = inodes();
    let f = node("f", 5, FileKind::Regular);
    let a = t.remember(Some((1, &name("a"), Moment::default())), &f).unwrap();
    let b = t.remember(Some((1, &name("b"), Moment::default())), &f).unwrap();
    assert_eq!(a.id, b.id);
    assert_eq!(t.child(1, &name("b")).unwrap().id, a.id);
    t.forget(a.id, 1);
    assert!(t.find(a.id).is_some());
    t.forget(a.id, 1);
    assert!(t.find(a.id).is_none() && t.child(1, &name("a")).is_none());
    let again = t.remember(None, &f).unwrap();
    assert_ne!(again.id, a.id, "numbers are not used twice");
    // A count that is too large is the kernel's mistake and must not panic.
    t.forget(again.id, 100);
    t.forget(777, 1);
    t.forget(1, 1);
    assert_eq!(t.len(), 1);
}

/// Another filehandle of a known identity is an alias, or a new object after the old one is gone.
#[test]
fn filehandle_is_alias_or_new_object() {
    let t = inodes();
    let old = t.remember(None, &node("f", 5, FileKind::Regular)).unwrap();
    let alias = node("g", 5, FileKind::Regular);
    let Err(Ambiguous(known)) = t.remember(None, &alias) else { panic!() };
    t.add_alias(&known, &alias.fh);
    assert_eq!(t.remember(None, &alias).unwrap().id, old.id);
    // The old object is gone. Its number belongs to the new object, while the old inode keeps its
    // filehandle.
    let reborn = node("h", 5, FileKind::Regular);
    assert!(t.remember(None, &reborn).is_err());
    t.retire(&old);
    let new = t.remember(None, &reborn).unwrap();
    assert_ne!(new.id, old.id);
    assert_eq!(t.find(old.id).unwrap().fh(), node("f", 5, FileKind::Regular).fh);
    // Removing the old inode does not change the new one's identity.
    t.forget(old.id, 2);
    assert_eq!(t.remember(None, &reborn).unwrap().id, new.id);
    // An object of another type is always new.
    assert_ne!(t.remember(None, &node("d", 5, FileKind::Directory)).unwrap().id, new.id);
}

#[test]
fn names_follow_renames() {
    let t = inodes();
    let (a, b) = (node("a", 5, FileKind::Regular), node("b", 6, FileKind::Regular));
    let (na, nb) = (name("a"), name("b"));
    let ia = t.remember(Some((1, &na, Moment::default())), &a).unwrap();
    let ib = t.remember(Some((1, &nb, Moment::default())), &b).unwrap();
    t.rename((1, &na), (1, &nb), (Some(ia.id), Some(ib.id)), true);
    assert_eq!((t.child(1, &na).unwrap().id, t.child(1, &nb).unwrap().id), (ib.id, ia.id));
    t.rename((1, &na), (1, &nb), (Some(ib.id), Some(ia.id)), false);
    assert!(t.child(1, &na).is_none());
    assert_eq!(t.child(1, &nb).unwrap().id, ib.id);
    t.unbind(1, &nb);
    assert!(t.children(1).is_empty());
}

/// The answer to a lookup from before a rename, which arrives after it, does not restore the
/// replaced file.
#[test]
fn belated_lookup_binds_no_name() {
    let t = inodes();
    let (old, new) = (node("a", 5, FileKind::Regular), node("b", 6, FileKind::Regular));
    let (from, to) = (name("t"), name("c"));
    let replaced = t.remember(Some((1, &to, t.clock.now())), &old).unwrap().id;
    let id = t.remember(Some((1, &from, t.clock.now())), &new).unwrap().id;
    let asked = t.clock.tick();
    // A lookup of the new name before the rename's own answer.
    t.remember(Some((1, &to, asked)), &new).unwrap();
    t.unbind(1, &from);
    t.rename((1, &from), (1, &to), (Some(id), Some(replaced)), false);
    t.remember(Some((1, &to, asked)), &old).unwrap();
    t.unbind_absent(1, &to, asked);
    assert_eq!(t.child(1, &to).unwrap().id, id);
    let later = t.remember(Some((1, &to, t.clock.now())), &old).unwrap();
    assert_eq!(t.child(1, &to).unwrap().id, later.id);
}

/// An answer takes a name from an object, and the kernel may still have that name. For ten seconds
/// an open by it is checked. Changes of the mount itself leave no such names.
#[tokio::test(start_paused = true)]
async fn taken_name_is_checked() {
    let t = inodes();
    let (old, new) = (node("a", 5, FileKind::Regular), node("b", 6, FileKind::Regular));
    let (at, link) = (name("v"), name("l"));
    let look = |name: &Name, node: &Node| t.remember(Some((1, name, t.clock.tick())), node).unwrap().id;
    let named = |id, last: &Name| t.named(id, || Some(last.bytes().clone()));
    let by = |name: &Name| Named::By(t.root(), name.clone());

    let id = look(&at, &old);
    look(&at, &new);
    assert_eq!(named(id, &at), by(&at), "another object has the name");
    look(&link, &old);
    assert_eq!((named(id, &at), named(id, &link)), (by(&at), by(&link)), "another name is left");
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(named(id, &at), by(&link), "the kernel has processed the answer");

    t.unbind_absent(1, &link, t.clock.tick());
    assert_eq!(named(id, &link), by(&link), "no object has the name");
    look(&link, &old);
    t.unbind(1, &link);
    assert_eq!(named(id, &link), Named::No, "this mount has removed the name");
    look(&link, &old);
    t.rename((1, &link), (1, &at), (Some(id), None), false);
    assert_eq!(named(id, &link), by(&at), "this mount has moved the name");
    t.unbind_believed(1, &at);
    assert_eq!(named(id, &at), by(&at));
    t.forget(id, 9);
    assert_eq!(named(id, &at), Named::No);
}

/// Opens a file, and reads it when `reads`. Returns whether the kernel keeps its pages.
fn open(i: &Inode, attrs: &Attrs, asked: Moment, reads: bool) -> bool {
    let keep = i.opened(attrs, asked).keep;
    if !keep {
        i.drops_by(1, attrs.attr.change, asked);
    }
    if reads {
        i.read_by(1);
    }
    keep
}

/// Pages are kept only for the change attribute of an open with a read, and not after a
/// modification.
#[test]
fn open_keeps_pages_of_same_change() {
    let t = inodes();
    let f = node("f", 5, FileKind::Regular);
    let i = t.remember(None, &f).unwrap();
    assert!(!open(&i, &f.attrs, t.clock.now(), false));
    assert!(!open(&i, &f.attrs, t.clock.now(), true), "the first open may be running");
    assert!(open(&i, &f.attrs, t.clock.now(), true));
    let theirs = changed(&f, 2, 10);
    let on_open = i.opened(&theirs, t.clock.now());
    assert!(!on_open.keep && on_open.attrs_stale && !on_open.length_differs);
    assert!(!open(&i, &theirs, t.clock.now(), true));
    assert!(open(&i, &theirs, t.clock.now(), true));
    // The contents are doubted between an open and its first read.
    let third = changed(&f, 3, 10);
    for revoked in [true, false] {
        assert!(!open(&i, &third, t.clock.now(), false));
        if revoked {
            i.note_revoked();
        } else {
            assert!(i.observe(&changed(&f, 4, 10), t.clock.now(), true).pages_stale);
        }
        i.read_by(1);
        assert!(!i.holds(3, t.clock.now()) && !i.opened(&third, t.clock.now()).keep);
    }
    assert!(!open(&i, &theirs, t.clock.now(), true));
    // A write by the mount makes the pages unknown for every change attribute. A concurrent write
    // does too.
    drop(i.modify(&t.clock));
    assert!(!open(&i, &theirs, t.clock.now(), true));
    let asked = t.clock.now();
    drop(i.modify(&t.clock));
    assert!(!open(&i, &theirs, asked, true));
    assert!(!open(&i, &theirs, t.clock.now(), true));
    assert!(open(&i, &theirs, t.clock.now(), true));
}

/// The kernel's length is unknown after attributes that it may ignore, and after a read that it may
/// take for the end.
#[tokio::test(start_paused = true)]
async fn length_is_unknown_after_doubt() {
    let t = inodes();
    let f = node("f", 5, FileKind::Regular);
    let i = t.remember(None, &f).unwrap();
    let later = || tokio::time::advance(Duration::from_millis(1));
    let differs = |attrs: &Attrs| i.opened(attrs, t.clock.now()).length_differs;
    let longer = changed(&f, 2, 90);
    assert!(!differs(&f.attrs) && differs(&longer), "an open tells the kernel no length");

    let sent = Instant::now();
    drop(i.telling(90, sent));
    assert!(i.is_length(90) && !differs(&longer));
    drop(i.telling(50, sent));
    assert!(!i.is_length(50), "the request was older than the other answer");
    later().await;
    drop(i.telling(50, Instant::now()));
    assert!(i.is_length(50));

    later().await;
    let sent = Instant::now();
    let running = i.telling(50, sent);
    later().await;
    drop(i.telling(60, Instant::now()));
    assert!(!i.is_length(60) && !i.is_length(50), "the other answer may be written later");
    later().await;
    drop(running);
    drop(i.telling(60, sent));
    assert!(!i.is_length(60));
    later().await;
    let (one, other) = (i.telling(60, Instant::now()), i.telling(60, Instant::now()));
    assert!(!i.is_length(60), "not processed");
    drop(one);
    assert!(i.is_length(60), "equal answers");
    drop(other);

    assert!(i.shortening(60).is_none(), "the known end");
    drop(i.shortening(59));
    assert!(!i.is_length(60));
    later().await;
    let running = i.invalidating();
    later().await;
    drop(i.telling(70, Instant::now()));
    assert!(!i.is_length(70));
    let sent = Instant::now();
    drop(running);
    drop(i.telling(70, sent));
    assert!(!i.is_length(70), "the request was older than the end of the invalidation");
    i.has_length(70);
    assert!(i.is_length(70));

    // The kernel extends its length after a write. It may take an earlier answer before that.
    later().await;
    let running = i.telling(80, Instant::now());
    i.wrote(100, false);
    drop(running);
    assert!(!i.is_length(80), "shorter than the write");
    i.has_length(100);
    later().await;
    let sent = Instant::now();
    i.wrote(120, false);
    drop(i.telling(100, sent));
    assert!(!i.is_length(100), "the request was older than the write");
}

/// A different change attribute is another client's change, unless the mount modified the file.
#[test]
fn foreign_change_makes_pages_stale() {
    let t = inodes();
    let f = node("f", 5, FileKind::Regular);
    let i = t.remember(None, &f).unwrap();
    i.opened(&f.attrs, t.clock.now());
    assert!(!i.observe(&f.attrs, t.clock.now(), true).pages_stale);
    assert!(i.observe(&changed(&f, 2, 10), t.clock.now(), true).pages_stale);
    i.pages_dropped(&changed(&f, 2, 10).attr, t.clock.now());
    assert!(!i.observe(&changed(&f, 2, 10), t.clock.now(), true).pages_stale);
    // A write by the mount up to byte 20. The answer to an earlier request shows no foreign change.
    let asked = t.clock.now();
    let m = i.modify(&t.clock);
    assert!(!i.observe(&changed(&f, 3, 15), t.clock.now(), true).pages_stale);
    i.wrote(20, false);
    drop(m);
    assert!(!i.observe(&changed(&f, 3, 15), asked, true).pages_stale);
    assert!(!i.observe(&changed(&f, 3, 20), t.clock.now(), true).pages_stale);
    // Longer than after the mount's write: another client's change.
    drop(i.modify(&t.clock));
    assert!(i.observe(&changed(&f, 4, 21), t.clock.now(), true).pages_stale);
}

/// Attributes are known until their validity ends or the mount modifies the file.
#[test]
fn modification_forgets_attributes() {
    let t = inodes();
    let f = node("f", 5, FileKind::Regular);
    let i = t.remember(None, &f).unwrap();
    let now = Instant::now();
    assert!(i.known(now).is_none(), "good for one call only");
    let later = Attrs { valid: Validity::Until(now + Duration::from_secs(9)), ..changed(&f, 7, 10) };
    let mut m = i.modify(&t.clock);
    m.brought(later.clone());
    assert!(i.known(now).is_none());
    drop(m);
    assert_eq!(i.known(now), Some(later.clone()));
    assert!(i.known(now + Duration::from_secs(10)).is_none());
    // After two concurrent writes no attributes are known.
    let (mut a, mut b) = (i.modify(&t.clock), i.modify(&t.clock));
    a.brought(later.clone());
    b.brought(later);
    drop(a);
    drop(b);
    assert!(i.known(now).is_none());
}

/// A lease counts only after it was passed on to the kernel.
#[test]
fn lease_counts_after_passing_on() {
    let t = inodes();
    let leased = Node {
        attrs: Attrs { valid: Validity::Lease, ..node("f", 5, FileKind::Regular).attrs },
        ..node("f", 5, FileKind::Regular)
    };
    let (i, now) = (t.remember(None, &leased).unwrap(), Instant::now());
    let nothing = |i: &Inode| i.known(now).is_none() && i.valid() == Validity::Once;
    assert!(nothing(&i), "made from it");
    i.observe(&leased.attrs, t.clock.now(), true);
    assert!(nothing(&i), "seen");
    i.opened(&leased.attrs, t.clock.now());
    assert!(nothing(&i), "opened");
    let mut m = i.modify(&t.clock);
    m.brought(leased.attrs.clone());
    drop(m);
    assert!(nothing(&i), "brought by a write");
    i.leased();
    i.observe(&leased.attrs, t.clock.now(), true);
    assert_eq!(i.valid(), Validity::Lease);
    i.note_revoked();
    assert!(nothing(&i));
}

/// A directory that loses search rights for all users is reported once.
#[test]
fn lost_search_right_is_reported() {
    let t = inodes();
    let d = node("d", 5, FileKind::Directory);
    let i = t.remember(None, &d).unwrap();
    assert!(i.world_searchable());
    let private = Attrs { attr: Attr { mode: 0o700, ..d.attrs.attr.clone() }, ..d.attrs };
    assert!(i.observe(&private, t.clock.now(), true).distrusts_names);
    assert!(!i.world_searchable());
    assert!(!i.observe(&private, t.clock.now(), true).distrusts_names);
}

/// Inode numbers of other file systems differ from those of the root's file system.
#[test]
fn inode_numbers_mix_in_fsid() {
    let root = Ident { fsid: (1, 1), fileid: 2, domain: 0 };
    assert_eq!(Ident { fsid: (1, 1), fileid: 77, domain: 0 }.ino(root), 77);
    let other = Ident { fsid: (1, 2), fileid: 77, domain: 0 }.ino(root);
    assert_ne!(other, 77);
    assert_ne!(other, Ident { fsid: (2, 1), fileid: 77, domain: 0 }.ino(root));
    assert_eq!(Ident { fsid: (1, 1), fileid: 0, domain: 0 }.ino(root), 1, "0 would hide the entry");
}

/// With a coarse server clock, a write of this mount can keep the change attribute. Bytes of an
/// earlier request are not valid after it. Otherwise an empty file would stay empty.
#[test]
fn first_bytes_end_with_a_write() {
    let t = inodes();
    let clock = &t.clock;
    let empty = node("f", 5, FileKind::Regular);
    let file = t.remember(None, &empty).unwrap();
    let asked = clock.now();
    open(&file, &changed(&empty, 7, 0), asked, true);
    assert!(file.holds(7, asked));
    drop(file.modify(clock));
    let asked_after = clock.now();
    open(&file, &changed(&empty, 7, 4000), asked_after, true);
    assert!(!file.holds(7, asked));
    assert!(file.holds(7, asked_after));
}
