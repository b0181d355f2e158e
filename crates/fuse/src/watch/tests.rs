//! The queue of open objects.

use super::*;
use hither_vfs::Node;

fn inode(table: &crate::inode::Inodes, fileid: u64, kind: FileKind, valid: Validity) -> Arc<Inode> {
    let inode = table.remember(None, &node(fileid, kind, valid)).unwrap();
    inode.opened(&node(fileid, kind, valid).attrs, table.clock.now());
    inode
}

fn node(fileid: u64, kind: FileKind, valid: Validity) -> Node {
    let mut node = crate::inode::tests::node(&fileid.to_string(), fileid, kind);
    node.attrs.valid = valid;
    node
}

fn table() -> crate::inode::Inodes {
    crate::inode::Inodes::new(&node(1, FileKind::Directory, Validity::Once), None)
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Removes the due objects, as after checks without a change.
fn take(w: &Watch) -> Vec<u64> {
    let mut taken = Vec::new();
    while let Some(due) = w.pop(Instant::now()) {
        due.inode.looked(Instant::now());
        w.looked(&due.inode);
        taken.push(due.inode.id);
    }
    taken
}

/// The longest due object is checked first, each object once, and failed checks are repeated.
/// Promise: 10
#[tokio::test(start_paused = true)]
async fn longest_due_file_comes_first() {
    let (t, w, now) = (table(), Watch::default(), Instant::now());
    let until = |i: u64| Validity::Until(now + secs(200 - i));
    let files: Vec<_> = (2..102).map(|i| inode(&t, i, FileKind::Regular, until(i))).collect();
    files.iter().for_each(|f| w.add(f, f.id));
    tokio::time::advance(secs(90)).await;
    assert_eq!(take(&w), [0; 0], "nothing is due");
    tokio::time::advance(secs(300)).await;
    let mut expected: Vec<u64> = files.iter().rev().map(|f| f.id).collect();
    assert_eq!(take(&w), expected);
    assert_eq!(take(&w), [0; 0], "each once");
    tokio::time::advance(secs(2)).await;
    expected.sort_unstable();
    let mut again = take(&w);
    again.sort_unstable();
    assert_eq!(again, expected, "failed checks are repeated");
    files.iter().for_each(|f| w.remove(f, f.id));
    assert!(w.queue.lock().order.is_empty() && w.queue.lock().open.is_empty());
}

/// A check comes a short time before the end of validity, and earlier when the validity becomes
/// shorter.
/// Promise: 10
#[tokio::test(start_paused = true)]
async fn check_precedes_end_of_validity() {
    let (t, w, now) = (table(), Watch::default(), Instant::now());
    let f = inode(&t, 2, FileKind::Regular, Validity::Until(now + secs(60)));
    w.add(&f, 7);
    let due = w.next(now);
    assert!(due < now + secs(60) && due > now + secs(59));
    // The sleeping task is woken.
    let sooner = node(2, FileKind::Regular, Validity::Until(now + secs(2))).attrs;
    assert!(f.observe(&sooner, t.clock.now(), true).sooner);
    w.hasten(&f);
    w.sooner.notified().await;
    assert!(w.next(now) < now + secs(2));
    // A longer validity is found at the check.
    let later = node(2, FileKind::Regular, Validity::Until(now + secs(90))).attrs;
    assert!(!f.observe(&later, t.clock.now(), true).sooner);
    tokio::time::advance(secs(2)).await;
    assert_eq!(take(&w), [f.id]);
    assert!(!f.is_due(Instant::now()) && w.next(Instant::now()) > now + secs(80));
    // Repeated attributes without validity do not postpone the check.
    let once = node(2, FileKind::Regular, Validity::Once).attrs;
    for _ in 0..8 {
        f.observe(&once, t.clock.now(), true);
        w.hasten(&f);
        tokio::time::advance(Duration::from_millis(200)).await;
    }
    assert!(f.is_due(Instant::now()));
    assert_eq!(take(&w), [f.id]);
}

/// The cached listing of an open directory is dropped at the end of its shortest entry.
#[tokio::test(start_paused = true)]
async fn cached_listing_of_directory_expires() {
    let (t, w, now) = (table(), Watch::default(), Instant::now());
    let d = inode(&t, 2, FileKind::Directory, Validity::Until(now + secs(9)));
    w.add(&d, 1);
    assert!(w.queue.lock().order.is_empty(), "the kernel has nothing");
    d.entries_given(now + secs(9));
    d.entries_given(now + secs(5));
    d.entries_given(now + secs(7));
    w.hasten(&d);
    assert_eq!(w.next(now), now + secs(5));
}
