//! Tests of delayed removals over the model: conditions, visible effects, and crashes. The random
//! histories are in the tests of `pending_creates`.

use super::*;
use crate::pending_creates::tests::{Temporary, copy_journal, cx, env, find, mode, name, read, recover};
use crate::pending_writes::tests::gate::Gate;
use crate::wal::{Event, Record, Write};
use bytes::Bytes;
use hither_vfs::model::Model;
use hither_vfs::{
    Create, Data, File, FileKind, Name, OpenAccess, OpenHow, Opened, PathRef, RenameFlags, Result, SetAttr,
    Stability, Stop, WalkRequest,
};
use std::time::Duration;

/// A layer over gate and model. The server removes nothing until the gate opens.
struct Stack {
    layer: Arc<PendingRemoves>,
    gate: Arc<Gate>,
    root: Fh,
    dir: Temporary,
}

impl Stack {
    async fn new() -> Self {
        let env = env();
        let gate = Gate::new(Arc::new(Model::new(env.clone(), Duration::from_secs(3), u64::MAX)));
        gate.shut("unlink");
        gate.shut("rmdir");
        let dir = Temporary::new();
        let (wal, left) = Wal::open(&dir.0, ("here", "there"), 1 << 30, &env).await.unwrap();
        assert!(left.is_empty());
        let layer = PendingRemoves::new(gate.clone(), env, PendingRemovesOptions::default(), wal);
        let root = layer.root(&cx()).await.unwrap().fh;
        Self { layer, gate, root, dir }
    }

    async fn create(&self, dir: &Fh, file: &str, data: &'static [u8]) -> Opened {
        let how = OpenHow { create: Create::Exclusive(mode(0o644)), ..OpenHow::existing(OpenAccess::WRITE) };
        let opened = self.layer.open(&cx(), PathRef::name(dir, &name(file)), &how).await.unwrap();
        let at = File { fh: &opened.node.fh, open: Some(opened.open) };
        let data = Data::from(Bytes::from_static(data));
        self.layer.write(&cx(), at, 0, data, Stability::Stable).await.unwrap();
        opened
    }

    async fn file(&self, dir: &Fh, file: &str, data: &'static [u8]) -> Fh {
        let opened = self.create(dir, file, data).await;
        self.layer.close(&cx(), &opened.node.fh, opened.open).await.unwrap();
        opened.node.fh
    }

    async fn unlink(&self, dir: &Fh, file: &str) -> Result<()> {
        self.layer.unlink(&cx(), dir, &name(file), None).await.map(drop)
    }

    async fn rmdir(&self, dir: &Fh, file: &str) -> Result<()> {
        self.layer.rmdir(&cx(), dir, &name(file)).await.map(drop)
    }

    async fn is_there(&self, path: &str) -> (bool, bool) {
        let below = find(self.gate.below(), &self.root, path).await.is_some();
        (find(&*self.layer, &self.root, path).await.is_some(), below)
    }

    /// Checks that a call waits until the gate opens and then succeeds.
    async fn waits<T>(&self, call: impl Future<Output = Result<T>>) -> T {
        let mut call = std::pin::pin!(call);
        let early = tokio::time::timeout(Duration::from_millis(50), &mut call).await;
        assert!(early.is_err(), "the call does not wait");
        self.gate.open_all();
        call.await.unwrap()
    }
}

fn errno<T>(result: Result<T>) -> i32 {
    result.map(drop).unwrap_err().errno
}

/// A removed name is gone in this mount at once. The server removes the name later.
/// Promise: 6g
#[tokio::test]
async fn unlink_hides_name_at_once() {
    let s = Stack::new().await;
    s.file(&s.root, "file", b"bytes").await;
    let before = s.layer.getattr(&cx(), File { fh: &s.root, open: None }).await.unwrap().attr;
    s.unlink(&s.root, "file").await.unwrap();
    assert_eq!(s.is_there("file").await, (false, true));
    assert_eq!(errno(s.unlink(&s.root, "file").await), libc::ENOENT);
    let (from, to) = (name("file"), name("b"));
    let renamed = s.layer.rename(&cx(), (&s.root, &from), (&s.root, &to), None, RenameFlags::empty()).await;
    assert_eq!(errno(renamed), libc::ENOENT);
    let path = Name::of_path("file").unwrap();
    let how = OpenHow::existing(OpenAccess::READ);
    let opened = s.layer.open(&cx(), PathRef { base: &s.root, path: &path }, &how).await;
    assert_eq!(errno(opened), libc::ENOENT);
    let after = s.layer.getattr(&cx(), File { fh: &s.root, open: None }).await.unwrap().attr;
    assert!(after.change != before.change && after.mtime > before.mtime);
    assert_eq!((s.layer.stats().removals_waiting, s.layer.stats().removals_noted), (1, 1));

    s.gate.open_all();
    s.layer.sync().await.unwrap();
    assert_eq!(s.is_there("file").await, (false, false));
    assert_eq!(s.layer.stats().removals_waiting, 0);
    assert_eq!(s.layer.wal.log().stats().live_records, 0);
}

/// A file whose removal waits is not opened by its filehandle: the removal would take it away from
/// the open.
/// Promise: 6g
#[tokio::test]
async fn removed_file_is_not_opened() {
    let s = Stack::new().await;
    let fh = s.file(&s.root, "file", b"bytes").await;
    let open = async || s.layer.open(&cx(), PathRef::fh(&fh), &OpenHow::existing(OpenAccess::READ)).await;
    let opened = open().await.unwrap();
    s.layer.close(&cx(), &fh, opened.open).await.unwrap();
    s.unlink(&s.root, "file").await.unwrap();
    assert_eq!(s.is_there("file").await, (false, true));
    assert_eq!(errno(open().await), libc::ESTALE);
    s.gate.open_all();
    s.layer.sync().await.unwrap();
    assert_eq!(errno(open().await), libc::ESTALE);
}

/// The server removes the names of a tree before their directories.
/// Promise: 6g
#[tokio::test]
async fn tree_is_removed_bottom_up() {
    let s = Stack::new().await;
    let top = s.layer.mkdir(&cx(), &s.root, &name("top"), &mode(0o755)).await.unwrap().node.fh;
    let sub = s.layer.mkdir(&cx(), &top, &name("sub"), &mode(0o755)).await.unwrap().node.fh;
    for file in ["a", "b", "c"] {
        s.file(&sub, file, b"bytes").await;
    }
    s.layer.symlink(&cx(), &top, &name("link"), &Bytes::from_static(b"sub"), &mode(0o777)).await.unwrap();
    for file in ["a", "b", "c"] {
        s.unlink(&sub, file).await.unwrap();
    }
    s.unlink(&top, "link").await.unwrap();
    let links = s.layer.getattr(&cx(), File { fh: &top, open: None }).await.unwrap().attr.nlink;
    s.rmdir(&top, "sub").await.unwrap();
    let now = s.layer.getattr(&cx(), File { fh: &top, open: None }).await.unwrap().attr.nlink;
    assert_eq!(now, links - 1);
    s.rmdir(&s.root, "top").await.unwrap();
    assert_eq!(s.is_there("top").await, (false, true));
    assert_eq!((s.layer.stats().removals_waiting, s.gate.waiting("rmdir")), (6, 0));
    s.gate.open_all();
    s.layer.sync().await.unwrap();
    assert_eq!(s.is_there("top").await, (false, false));
    assert_eq!(
        s.layer.stats(),
        PendingRemovesStats { removals_waiting: 0, removals_noted: 6, removals_refused: 0 }
    );
}

/// Removals that need a decision or a record of the server are not delayed. The caller waits for
/// them.
/// Promise: 6g
#[tokio::test]
async fn used_objects_are_removed_directly() {
    let s = Stack::new().await;
    let open = s.create(&s.root, "open", b"bytes").await;
    let linked = s.file(&s.root, "linked", b"bytes").await;
    s.layer.link(&cx(), &linked, &s.root, &name("other")).await.unwrap();
    let full = s.layer.mkdir(&cx(), &s.root, &name("full"), &mode(0o755)).await.unwrap().node.fh;
    s.file(&full, "file", b"bytes").await;
    s.layer.mkdir(&cx(), &s.root, &name("sticky"), &mode(0o1777)).await.unwrap();
    let sticky = find(&*s.layer, &s.root, "sticky").await.unwrap().fh;
    s.file(&sticky, "file", b"bytes").await;

    for (dir, file) in [(&s.root, "open"), (&s.root, "linked"), (&sticky, "file")] {
        s.waits(s.unlink(dir, file)).await;
        s.gate.shut("unlink");
    }
    s.gate.open_all();
    assert_eq!(errno(s.rmdir(&s.root, "full").await), libc::ENOTEMPTY);
    assert_eq!(errno(s.rmdir(&s.root, "other").await), libc::ENOTDIR);
    assert_eq!(errno(s.unlink(&s.root, "full").await), libc::EISDIR);
    assert_eq!(s.layer.stats().removals_noted, 0);

    s.layer.close(&cx(), &open.node.fh, open.open).await.unwrap();
    s.unlink(&s.root, "other").await.unwrap();
    assert_eq!(s.layer.stats().removals_noted, 1, "the file has one name and no open");
}

/// A name is not used again before the server has removed the old object.
/// Promise: 6g
#[tokio::test]
async fn name_reuse_waits_for_removal() {
    let s = Stack::new().await;
    let reopen = |s: &Stack| {
        s.gate.shut("unlink");
        s.gate.shut("rmdir");
    };
    s.file(&s.root, "a", b"old").await;
    s.unlink(&s.root, "a").await.unwrap();
    let (data, set) = (Data::from(Bytes::from_static(b"new")), SetAttr::default());
    let made = s.waits(s.layer.create_whole(&cx(), &s.root, &name("a"), &set, data)).await;
    assert_eq!(read(&*s.layer, &made.node.fh).await, b"new");

    reopen(&s);
    s.unlink(&s.root, "a").await.unwrap();
    s.waits(s.layer.mkdir(&cx(), &s.root, &name("a"), &mode(0o755))).await;
    let dir = find(&*s.layer, &s.root, "a").await.unwrap();
    assert_eq!(dir.attrs.attr.kind, FileKind::Directory);

    reopen(&s);
    s.file(&dir.fh, "in", b"bytes").await;
    s.unlink(&dir.fh, "in").await.unwrap();
    let page = s.waits(s.layer.readdir(&cx(), &dir.fh, 0, [0; 8], 1 << 16, true)).await;
    assert!(page.eof && page.entries.is_empty(), "a listing tells nothing that is gone");

    reopen(&s);
    s.file(&s.root, "b", b"b").await;
    s.rmdir(&s.root, "a").await.unwrap();
    let (from, to) = (name("b"), name("a"));
    s.waits(s.layer.rename(&cx(), (&s.root, &from), (&s.root, &to), None, RenameFlags::empty())).await;
    assert_eq!(s.is_there("a").await, (true, true));
    assert_eq!(s.is_there("b").await, (false, false));
}

/// A removal that the server refuses shows the name again. The layers above drop the removed name.
/// Promise: 6g
#[tokio::test]
async fn refused_removal_restores_name() {
    struct UpcallLog(Mutex<Vec<Fh>>);
    impl Upcalls for UpcallLog {
        fn revoke(&self, fh: &Fh) -> BoxFuture<()> {
            self.0.lock().push(fh.clone());
            Box::pin(std::future::ready(()))
        }
        fn revoke_all(&self) -> BoxFuture<()> {
            Box::pin(std::future::ready(()))
        }
    }
    let s = Stack::new().await;
    let told = Arc::new(UpcallLog(Mutex::default()));
    s.layer.subscribe(told.clone());
    s.file(&s.root, "file", b"bytes").await;
    s.gate.fail("unlink", libc::EACCES);
    s.unlink(&s.root, "file").await.unwrap();
    s.gate.open_all();
    s.layer.sync().await.unwrap();
    assert_eq!(s.is_there("file").await, (true, true));
    assert_eq!(s.layer.stats().removals_refused, 1);
    assert_eq!(*told.0.lock(), std::slice::from_ref(&s.root), "the layers above drop the removed name");
    assert_eq!(s.layer.wal.log().stats().live_records, 0);
}

/// A removal that fails for now is sent again until it succeeds. Meanwhile the name stays hidden,
/// and no further removal is delayed.
/// Promise: 6g
#[tokio::test]
async fn failed_removal_is_retried() {
    let s = Stack::new().await;
    s.file(&s.root, "file", b"bytes").await;
    s.file(&s.root, "next", b"bytes").await;
    s.gate.fail("unlink", libc::ENOSPC);
    s.unlink(&s.root, "file").await.unwrap();
    s.gate.open_all();
    assert_eq!(errno(s.layer.sync().await), libc::ENOSPC);
    assert_eq!(s.is_there("file").await, (false, true), "the name is removed in this mount all the same");
    assert_eq!(errno(s.unlink(&s.root, "next").await), libc::ENOSPC, "no further removal is delayed");
    s.gate.fail("unlink", 0);
    while s.layer.stats().removals_waiting > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(s.is_there("file").await, (false, false));
    assert_eq!(s.layer.stats().removals_refused, 0);
    assert_eq!(s.layer.table().stuck, 0);
}

/// After a crash a name is removed if it still leads to the same object. No other name is removed.
/// Promise: 6g
#[tokio::test]
async fn a_crash_undoes_no_removal() {
    let s = Stack::new().await;
    let dir = s.layer.mkdir(&cx(), &s.root, &name("dir"), &mode(0o755)).await.unwrap().node.fh;
    s.file(&dir, "in", b"bytes").await;
    for file in ["file", "other", "gone"] {
        s.file(&s.root, file, b"bytes").await;
        s.unlink(&s.root, file).await.unwrap();
    }
    s.unlink(&dir, "in").await.unwrap();
    s.rmdir(&s.root, "dir").await.unwrap();
    // Another client changes the directory, against the user's declaration.
    let below = s.gate.another();
    below.unlink(&cx(), &s.root, &name("gone"), None).await.unwrap();
    below.unlink(&cx(), &s.root, &name("other"), None).await.unwrap();
    let data = Data::from(Bytes::from_static(b"theirs"));
    below.create_whole(&cx(), &s.root, &name("other"), &SetAttr::default(), data).await.unwrap();

    let copy = Temporary::new();
    std::fs::create_dir_all(&copy.0).unwrap();
    std::fs::set_permissions(&copy.0, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    copy_journal(&s.dir.0, &copy.0);
    let (outcome, kept) = recover(&copy.0, &below).await;
    assert_eq!((outcome.files, kept.len()), (0, 0));
    for (path, there) in [("file", false), ("gone", false), ("dir", false), ("other", true)] {
        assert_eq!(find(s.gate.below(), &s.root, path).await.is_some(), there, "{path}");
    }
}

/// Unsent bytes are dropped with the removed file. They are sent when the server refuses the
/// removal.
/// Promise: 6g
#[tokio::test]
async fn refused_removal_sends_bytes() {
    for refuses in [false, true] {
        let s = Stack::new().await;
        let fh = s.file(&s.root, "file", b"").await;
        let write = Write {
            fileid: 1,
            path: vec![],
            cred: cx().cred.clone(),
            offset_bytes: 0,
            base: None,
            wall_s: 1,
        };
        let data = Data::from(Bytes::from_static(b"bytes"));
        s.layer.wal.log().append(Record { fh, event: Event::Data(write), data });
        s.unlink(&s.root, "file").await.unwrap();
        let copy = Temporary::new();
        std::fs::create_dir_all(&copy.0).unwrap();
        std::fs::set_permissions(&copy.0, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        copy_journal(&s.dir.0, &copy.0);
        let below = s.gate.another();
        below.fail("unlink", if refuses { libc::EACCES } else { 0 });
        let (outcome, kept) = recover(&copy.0, &below).await;
        assert_eq!(outcome.files + kept.len() as u64, u64::from(refuses), "{outcome:?}");
        assert_eq!(find(s.gate.below(), &s.root, "file").await.is_some(), refuses);
    }
}

/// An answer that was in flight during a removal at the server shows the former state. It does not
/// restore the removed name.
#[tokio::test]
async fn late_reply_does_not_restore_name() {
    let s = Stack::new().await;
    s.file(&s.root, "file", b"bytes").await;
    let path = Name::of_path("file").unwrap();
    let at = PathRef { base: &s.root, path: &path };
    let since = s.layer.table().generation();
    let old = s.gate.below().walk(&cx(), at, WalkRequest::default()).await.unwrap();
    s.unlink(&s.root, "file").await.unwrap();
    assert!(matches!(s.layer.table().put_over(at, old.clone()).stop, Stop::Missing(_)));
    s.gate.open_all();
    s.layer.sync().await.unwrap();
    let t = s.layer.table();
    assert!(t.is_late(since, at, &old) && !t.is_late(t.generation(), at, &old));
    let other = Name::of_path("other").unwrap();
    assert!(
        !t.is_late(since, PathRef { base: &s.root, path: &other }, &old),
        "the walk concerns another name"
    );
}

/// Names that were removed while the server handled the first one are removed in one call. Each
/// name has its own result.
/// Promise: 6g
#[tokio::test(start_paused = true)]
async fn directory_names_are_removed_together() {
    let s = Stack::new().await;
    let files = ["first", "a", "refused", "later", "unheard", "z"];
    for file in files {
        s.file(&s.root, file, b"bytes").await;
    }
    s.layer.mkdir(&cx(), &s.root, &name("dir"), &mode(0o755)).await.unwrap();
    s.gate.fail_name(&name("refused"), libc::EACCES, false);
    s.gate.fail_name(&name("later"), libc::EAGAIN, false);
    s.gate.fail_name(&name("unheard"), libc::EAGAIN, true);
    s.unlink(&s.root, "first").await.unwrap();
    while s.gate.waiting("unlink") == 0 {
        tokio::task::yield_now().await;
    }
    for file in &files[1..] {
        s.unlink(&s.root, file).await.unwrap();
    }
    s.rmdir(&s.root, "dir").await.unwrap();
    s.gate.open_all();
    assert_eq!(errno(s.layer.sync().await), libc::EAGAIN);
    assert_eq!(s.gate.removed()[..2], [1, 6], "failed names are not in these calls yet");
    for file in ["first", "a", "unheard", "z", "dir"] {
        assert_eq!(s.is_there(file).await, (false, false), "{file}");
    }
    assert_eq!(s.is_there("refused").await, (true, true), "the name exists again");
    assert_eq!(s.is_there("later").await, (false, true));
    s.gate.fail_name(&name("later"), 0, false);
    s.gate.fail_name(&name("unheard"), 0, false);
    while s.layer.stats().removals_waiting > 0 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(s.is_there("later").await, (false, false));
    assert_eq!((s.layer.stats().removals_refused, s.layer.wal.log().stats().live_records), (1, 0));
}

/// Delayed removals in a directory precede the directory's own, beside any number of other names.
/// The names of another caller are removed in a separate call.
/// Promise: 6g
#[tokio::test]
async fn entries_are_removed_before_directory() {
    let s = Stack::new().await;
    let top = s.layer.mkdir(&cx(), &s.root, &name("top"), &mode(0o777)).await.unwrap().node.fh;
    let sub = s.layer.mkdir(&cx(), &top, &name("sub"), &mode(0o755)).await.unwrap().node.fh;
    for (dir, file) in [(&top, "a"), (&top, "b"), (&top, "c"), (&sub, "d"), (&sub, "e")] {
        s.file(dir, file, b"bytes").await;
    }
    s.unlink(&top, "a").await.unwrap();
    while s.gate.waiting("unlink") == 0 {
        tokio::task::yield_now().await;
    }
    for (dir, file) in [(&top, "b"), (&sub, "d"), (&sub, "e")] {
        s.unlink(dir, file).await.unwrap();
    }
    s.rmdir(&top, "sub").await.unwrap();
    let other = hither_vfs::RequestContext::new(std::sync::Arc::new(hither_vfs::Cred {
        uid: 7,
        gid: 7,
        groups: Default::default(),
    }));
    s.layer.unlink(&other, &top, &name("c"), None).await.unwrap();
    s.gate.open_all();
    s.layer.sync().await.unwrap();
    for path in ["top/a", "top/b", "top/c", "top/sub"] {
        assert_eq!(s.is_there(path).await, (false, false), "{path}");
    }
    assert!(s.gate.removed().iter().all(|names| *names <= 2), "{:?}", s.gate.removed());
    assert_eq!(s.layer.stats().removals_refused, 0);
}

/// The removal of a directory does not wait here while an open file has lost a name: the client may
/// keep a hidden name in the directory, and no listing shows it.
/// Promise: 6g
#[tokio::test]
async fn directory_with_hidden_name_is_removed_by_server() {
    let s = Stack::new().await;
    s.gate.open_all();
    let dir = s.layer.mkdir(&cx(), &s.root, &name("d"), &SetAttr::default()).await.unwrap().node.fh;
    let opened = s.create(&dir, "file", b"bytes").await;
    let fh = opened.node.fh;
    s.layer.unlink(&cx(), &dir, &name("file"), Some(&fh)).await.unwrap();
    s.gate.fail("rmdir", libc::ENOTEMPTY);
    assert_eq!(errno(s.rmdir(&s.root, "d").await), libc::ENOTEMPTY, "the server's answer");
    s.layer.close(&cx(), &fh, opened.open).await.unwrap();
    s.gate.shut("rmdir");
    s.gate.fail("rmdir", 0);
    s.rmdir(&s.root, "d").await.unwrap();
    assert_eq!(s.is_there("d").await, (false, true), "without hidden names the removal waits");
}

/// A delayed removal of a directory that only the client's own hidden names keep is tried again. It
/// is refused when another client's names keep the directory.
/// Promise: 6g
#[tokio::test(start_paused = true)]
async fn hidden_names_delay_removal() {
    for foreign in [false, true] {
        let s = Stack::new().await;
        s.gate.open_all();
        let dir = s.layer.mkdir(&cx(), &s.root, &name("d"), &SetAttr::default()).await.unwrap().node.fh;
        s.gate.shut("rmdir");
        s.rmdir(&s.root, "d").await.unwrap();
        if foreign {
            s.gate.below().mkdir(&cx(), &dir, &name("other"), &SetAttr::default()).await.unwrap();
        }
        s.gate.fail("rmdir", libc::ENOTEMPTY);
        s.gate.open_all();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(s.layer.stats().removals_refused, u64::from(foreign));
        assert_eq!(s.is_there("d").await, (foreign, true));
        s.gate.fail("rmdir", 0);
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(s.is_there("d").await, (foreign, foreign));
    }
}
