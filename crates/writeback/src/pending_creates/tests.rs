//! Tests of pending creates over the model: delay, sending, crashes, and random histories that are
//! compared with a server alone.

use super::*;
use crate::pending_removes::{PendingRemoves, PendingRemovesOptions};
use crate::pending_writes::tests::gate::Gate;
use crate::wal::{Attributes, Event, Outcome, Record, Write};
use bytes::Bytes;
use hither_vfs::model::Model;
use hither_vfs::{
    Access, Create, Cred, Data, DirEntry, Error, File, FileKind, Name, Node, OpenAccess, OpenHow, OpenId,
    Opened, PathRef, RenameFlags, RequestContext, Result, SetAttr, SetTime, Stability, Stop, Time,
    WalkRequest,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

mod histories;
mod times;
mod together;

/// A temporary directory of one test, removed at its end.
pub(crate) struct Temporary(pub PathBuf);

impl Temporary {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Relaxed);
        let dir = std::env::temp_dir().join(format!("hither-ahead-{}-{n}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Self(dir)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An environment whose wall clock advances by one second at each call.
pub(crate) fn env() -> Env {
    let (random, wall) = (AtomicU64::new(1 << 40), AtomicU64::new(1_000_000));
    Env {
        random: Arc::new(move || random.fetch_add(1 << 33 | 1, Relaxed)),
        wall: Arc::new(move || {
            std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(wall.fetch_add(1, Relaxed))
        }),
    }
}

pub(crate) fn cx() -> RequestContext {
    RequestContext::new(Arc::new(Cred::root()))
}

pub(crate) fn name(name: &str) -> Name {
    Name::new(name.as_bytes().to_vec()).unwrap()
}

pub(crate) fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

/// Options under which no object is sent because of its age.
fn options() -> PendingCreatesOptions {
    PendingCreatesOptions { age: Duration::from_secs(3600), ..PendingCreatesOptions::default() }
}

/// A layer over gate and model. Its creator is trusted.
struct Stack {
    ahead: Arc<PendingCreates>,
    removals: Arc<PendingRemoves>,
    gate: Arc<Gate>,
    root: Fh,
    dir: Temporary,
}

impl Stack {
    async fn new() -> Self {
        Self::with(options()).await
    }

    async fn with(options: PendingCreatesOptions) -> Self {
        let env = env();
        let model = Arc::new(Model::new(env.clone(), Duration::from_secs(3), u64::MAX));
        Self::over(Gate::new(model), env, options).await
    }

    async fn over(gate: Arc<Gate>, env: Env, options: PendingCreatesOptions) -> Self {
        let dir = Temporary::new();
        let (wal, left) = Wal::open(&dir.0, ("here", "there"), 1 << 30, &env).await.unwrap();
        assert!(left.is_empty());
        let removals =
            PendingRemoves::new(gate.clone(), env.clone(), PendingRemovesOptions::default(), wal.clone());
        let ahead = PendingCreates::new(removals.clone(), env, options, wal);
        let root = ahead.root(&cx()).await.unwrap().fh;
        let this = Self { ahead, removals, gate, root, dir };
        // The first creation teaches the layer the owner of new objects.
        let first = this.create(&this.root, "first").await.unwrap();
        this.ahead.close(&cx(), &first.node.fh, first.open).await.unwrap();
        this.ahead.unlink(&cx(), &this.root, &name("first"), None).await.unwrap();
        this.removals.sync().await.unwrap();
        assert_eq!(this.ahead.stats(), PendingCreatesStats::default());
        this
    }

    async fn create(&self, dir: &Fh, file: &str) -> Result<Opened> {
        self.create_as(&cx(), dir, file).await
    }

    async fn create_as(&self, cx: &RequestContext, dir: &Fh, file: &str) -> Result<Opened> {
        let access = OpenAccess::READ | OpenAccess::WRITE;
        let how = OpenHow { create: Create::Exclusive(mode(0o644)), ..OpenHow::existing(access) };
        self.ahead.open(cx, PathRef::name(dir, &name(file)), &how).await
    }

    async fn write(&self, opened: &Opened, at: u64, data: &[u8]) -> Result<u64> {
        let file = File { fh: &opened.node.fh, open: Some(opened.open) };
        let data = Data::from(Bytes::copy_from_slice(data));
        self.ahead.write(&cx(), file, at, data, Stability::Unstable).await.map(|w| w.bytes)
    }

    /// A closed file with these bytes.
    async fn file(&self, dir: &Fh, file: &str, data: &[u8]) -> Node {
        let opened = self.create(dir, file).await.unwrap();
        self.write(&opened, 0, data).await.unwrap();
        self.ahead.close(&cx(), &opened.node.fh, opened.open).await.unwrap();
        let attrs = self.ahead.getattr(&cx(), File { fh: &opened.node.fh, open: None }).await.unwrap();
        Node { attrs, ..opened.node }
    }

    async fn mkdir(&self, dir: &Fh, new: &str) -> Fh {
        self.ahead.mkdir(&cx(), dir, &name(new), &mode(0o755)).await.unwrap().node.fh
    }

    async fn find(&self, path: &str) -> Option<Node> {
        find(&*self.ahead, &self.root, path).await
    }

    async fn read(&self, fh: &Fh) -> Vec<u8> {
        read(&*self.ahead, fh).await
    }

    /// Simulates a kill of the daemon. Returns the outcome of the next daemon's replay and the
    /// bytes of conflicts.
    async fn crash(&self) -> (Outcome, Vec<Vec<u8>>) {
        let dir = self.kill();
        recover(&dir.0, &self.gate.another()).await
    }

    /// Simulates a kill of the daemon. Returns a copy of the journal.
    fn kill(&self) -> Temporary {
        let dir = Temporary::new();
        std::fs::create_dir_all(&dir.0).unwrap();
        copy_journal(&self.dir.0, &dir.0);
        let own = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&dir.0, own).unwrap();
        // The killed daemon sends nothing more.
        self.gate.shut("unlink");
        self.gate.shut("rmdir");
        dir
    }
}

pub(crate) fn copy_journal(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().ends_with(".wal") {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

pub(crate) async fn recover(dir: &Path, gate: &Arc<Gate>) -> (Outcome, Vec<Vec<u8>>) {
    let (wal, left) = Wal::open(dir, ("here", "there"), 1 << 30, &env()).await.unwrap();
    let outcome = wal.recover(gate.clone(), left, "here", true, 1 << 20).await.unwrap();
    let (kept, mut all) = (wal.conflicts(), Vec::new());
    for (name, about) in kept.list().unwrap() {
        let about = about.unwrap();
        let data = kept.data(&name).unwrap();
        let mut bytes = vec![0; about.bytes() as usize];
        std::os::unix::fs::FileExt::read_exact_at(&data, &mut bytes, 0).unwrap();
        all.push(bytes);
    }
    assert_eq!(wal.log().stats().live_records, 0, "nothing keeps the room");
    wal.close();
    drop(wal);
    let (again, left) = Wal::open(dir, ("here", "there"), 1 << 30, &env()).await.unwrap();
    assert!(left.is_empty(), "everything was decided: {left:?}");
    again.close();
    (outcome, all)
}

pub(crate) async fn find(vfs: &dyn Vfs, root: &Fh, path: &str) -> Option<Node> {
    let path = Name::of_path(path).unwrap();
    let trail = vfs.walk(&cx(), PathRef { base: root, path: &path }, WalkRequest::default()).await.unwrap();
    match trail.stop {
        Stop::Complete => trail.steps.into_iter().last(),
        _ => None,
    }
}

pub(crate) async fn read(vfs: &dyn Vfs, fh: &Fh) -> Vec<u8> {
    let opened = vfs.open(&cx(), PathRef::fh(fh), &OpenHow::existing(OpenAccess::READ)).await.unwrap();
    let file = File { fh, open: Some(opened.open) };
    let read = vfs.read(&cx(), file, 0, 1 << 30).await.unwrap();
    vfs.close(&cx(), fh, opened.open).await.unwrap();
    read.data.into_bytes().to_vec()
}

/// The content of a tree by path: kind, mode, and bytes.
async fn tree(vfs: &dyn Vfs, root: &Fh) -> BTreeMap<String, (FileKind, u32, Vec<u8>)> {
    let (mut out, mut dirs) = (BTreeMap::new(), vec![(String::new(), root.clone())]);
    while let Some((path, dir)) = dirs.pop() {
        let page = vfs.readdir(&cx(), &dir, 0, [0; 8], 1 << 20, true).await.unwrap();
        assert!(page.eof);
        for DirEntry { name, .. } in page.entries {
            let path = format!("{path}/{}", String::from_utf8_lossy(name.as_bytes()));
            let node = find(vfs, root, &path).await.unwrap();
            let attr = &node.attrs.attr;
            let contents = match attr.kind {
                FileKind::Regular => read(vfs, &node.fh).await,
                FileKind::Symlink => vfs.readlink(&cx(), &node.fh).await.unwrap().to_vec(),
                _ => {
                    dirs.push((path.clone(), node.fh.clone()));
                    Vec::new()
                }
            };
            out.insert(path, (attr.kind, attr.mode, contents));
        }
    }
    out
}

/// New objects exist only in this mount until a sync sends them. Each file then costs one call.
/// Promise: 6g
#[tokio::test]
async fn new_objects_are_sent_whole() {
    let s = Stack::new().await;
    let dir = s.mkdir(&s.root, "dir").await;
    let file = s.file(&dir, "file", b"twelve bytes").await;
    s.ahead.symlink(&cx(), &dir, &name("link"), &Bytes::from_static(b"file"), &mode(0o777)).await.unwrap();
    assert_eq!(s.ahead.stats().ahead_objects, 3);
    assert!(find(s.gate.below(), &s.root, "dir").await.is_none(), "nothing is at the server");

    let seen = s.find("dir/file").await.unwrap();
    assert_eq!((&seen.fh, seen.attrs.attr.size_bytes), (&file.fh, 12));
    assert_eq!(s.read(&file.fh).await, b"twelve bytes");
    let link = s.find("dir/link").await.unwrap();
    assert_eq!(s.ahead.readlink(&cx(), &link.fh).await.unwrap()[..], b"file"[..]);
    assert!(s.find("dir/none").await.is_none());
    let again = s.create(&dir, "file").await.map(drop).map_err(|e| e.errno);
    assert_eq!(again, Err(libc::EEXIST));

    s.ahead.sync().await.unwrap();
    let below = find(s.gate.below(), &s.root, "dir/file").await.unwrap();
    assert_eq!(read(s.gate.below(), &below.fh).await, b"twelve bytes");
    assert_eq!((below.attrs.attr.mode, below.attrs.attr.mtime), (0o644, file.attrs.attr.mtime));
    assert!(find(s.gate.below(), &s.root, "dir/link").await.is_some());
    assert_eq!(s.gate.calls("create_whole"), 1);
    assert_eq!((s.gate.calls("mkdir"), s.gate.calls("symlink")), (1, 1));

    // Handle and file number stay the same.
    let now = s.find("dir/file").await.unwrap();
    assert_eq!((&now.fh, now.attrs.attr.fileid), (&file.fh, file.attrs.attr.fileid));
    let page = s.ahead.readdir(&cx(), &dir, 0, [0; 8], 1 << 20, true).await.unwrap();
    let listed = page.entries.iter().find(|e| e.name == name("file")).unwrap();
    assert_eq!((listed.fileid, &listed.node.as_ref().unwrap().fh), (file.attrs.attr.fileid, &file.fh));
    assert_eq!(s.read(&file.fh).await, b"twelve bytes");
}

/// Objects that are removed before they are sent never reach the server.
/// Promise: 6g
#[tokio::test]
async fn short_lived_objects_are_not_sent() {
    let s = Stack::new().await;
    let dir = s.mkdir(&s.root, "dir").await;
    s.file(&dir, "a", b"a").await;
    let busy = s.ahead.rmdir(&cx(), &s.root, &name("dir")).await.map(drop).map_err(|e| e.errno);
    assert_eq!(busy, Err(libc::ENOTEMPTY));
    let before = s.gate.total_calls();
    s.ahead.unlink(&cx(), &dir, &name("a"), None).await.unwrap();
    s.ahead.rmdir(&cx(), &s.root, &name("dir")).await.unwrap();
    s.ahead.sync().await.unwrap();
    assert_eq!((s.gate.calls("create_whole"), s.gate.calls("mkdir"), s.gate.calls("unlink")), (0, 0, 1));
    assert!(s.gate.total_calls() <= before + 4, "rights are asked for");
    assert_eq!(
        s.ahead.stats(),
        PendingCreatesStats { ahead_made: 2, ahead_dropped: 2, ..PendingCreatesStats::default() }
    );
    let (outcome, _) = s.crash().await;
    assert_eq!(outcome, Outcome::default());
    assert!(tree(s.gate.below(), &s.root).await.is_empty());
}

/// Pending objects are renamed in this mount, without a RENAME at the server.
/// Promise: 6g
#[tokio::test]
async fn pending_objects_are_renamed_locally() {
    let s = Stack::new().await;
    let (a, b) = (s.mkdir(&s.root, "a").await, s.mkdir(&s.root, "b").await);
    s.file(&a, "old", b"old").await;
    s.file(&a, "tmp", b"new").await;
    let rename = |from: (Fh, &'static str), to: (Fh, &'static str)| {
        let ahead = s.ahead.clone();
        async move {
            let (f, t) = (name(from.1), name(to.1));
            let flags = RenameFlags::empty();
            ahead.rename(&cx(), (&from.0, &f), (&to.0, &t), None, flags).await.map(drop).map_err(|e| e.errno)
        }
    };
    rename((a.clone(), "tmp"), (a.clone(), "old")).await.unwrap();
    rename((s.root.clone(), "a"), (b.clone(), "c")).await.unwrap();
    assert_eq!(rename((s.root.clone(), "b"), (a.clone(), "d")).await, Err(libc::EINVAL), "not into itself");
    assert_eq!(s.gate.calls("rename"), 0);
    let file = s.find("b/c/old").await.unwrap();
    assert_eq!(s.read(&file.fh).await, b"new");
    assert!(s.find("a").await.is_none());
    let (outcome, _) = s.crash().await;
    assert_eq!((outcome.files, outcome.kept), (1, vec![]));
    let all: Vec<_> = tree(s.gate.below(), &s.root).await.into_keys().collect();
    assert_eq!(all, ["/b", "/b/c", "/b/c/old"]);
}

/// A listing shows all objects. A call of a user other than the creator sends the object first.
/// Promise: 6g
#[tokio::test]
async fn lists_and_other_users_send_first() {
    let s = Stack::new().await;
    let dir = s.mkdir(&s.root, "dir").await;
    let file = s.file(&dir, "file", b"bytes").await;
    s.file(&s.root, "beside", b"bytes").await;
    let other = RequestContext::new(Arc::new(Cred { uid: 7, gid: 7, groups: Default::default() }));
    let have = s.ahead.access(&other, &file.fh, Access::READ | Access::MODIFY).await.unwrap();
    assert_eq!(have, Access::READ);
    assert!(find(s.gate.below(), &s.root, "dir/file").await.is_some());
    assert!(find(s.gate.below(), &s.root, "beside").await.is_none(), "no call needed this file");
    let page = s.ahead.readdir(&cx(), &s.root, 0, [0; 8], 1 << 20, false).await.unwrap();
    assert_eq!(page.entries.len(), 2);
    let refused = s.create_as(&other, &dir, "theirs").await.map(drop).map_err(|e| e.errno);
    assert_eq!(refused, Err(libc::EACCES));
}

/// A file that exceeds one WRITE is sent, and its opens continue at the server.
#[tokio::test]
async fn large_pending_file_is_sent_early() {
    let s = Stack::with(PendingCreatesOptions { file_max_bytes: 1000, ..options() }).await;
    let how = OpenHow { create: Create::Exclusive(mode(0o444)), ..OpenHow::existing(OpenAccess::WRITE) };
    let opened = s.ahead.open(&cx(), PathRef::name(&s.root, &name("big")), &how).await.unwrap();
    s.write(&opened, 0, &[1; 900]).await.unwrap();
    assert!(find(s.gate.below(), &s.root, "big").await.is_none());
    s.write(&opened, 900, &[2; 900]).await.unwrap();
    let below = find(s.gate.below(), &s.root, "big").await.unwrap();
    assert_eq!((below.attrs.attr.size_bytes, below.attrs.attr.mode), (1800, 0o444));
    s.ahead.close(&cx(), &opened.node.fh, opened.open).await.unwrap();
    assert_eq!(read(s.gate.below(), &below.fh).await, [[1; 900], [2; 900]].concat());
}

/// Times that a program sets on a directory survive the later creations in it at the server.
/// Promise: 6g
#[tokio::test]
async fn directory_times_are_set_last() {
    let s = Stack::new().await;
    let (new, there) = (s.mkdir(&s.root, "new").await, s.mkdir(&s.root, "there").await);
    s.ahead.send(&there).await.unwrap();
    let long_ago = hither_vfs::Time { secs: 77, nanos: 0 };
    for dir in [&new, &there] {
        s.file(dir, "file", b"x").await;
        let set = SetAttr { mtime: Some(SetTime::To(long_ago)), ..SetAttr::default() };
        let attrs = s.ahead.setattr(&cx(), File { fh: dir, open: None }, &set).await.unwrap();
        assert_eq!(attrs.attr.mtime, long_ago);
    }
    let crashed = s.crash().await;
    assert_eq!(crashed.0.kept, []);
    for dir in ["new", "there"] {
        assert_eq!(find(s.gate.below(), &s.root, dir).await.unwrap().attrs.attr.mtime, long_ago, "{dir}");
    }
    s.ahead.sync().await.unwrap();
    for dir in ["new", "there"] {
        assert_eq!(find(s.gate.below(), &s.root, dir).await.unwrap().attrs.attr.mtime, long_ago, "{dir}");
        assert_eq!(s.find(dir).await.unwrap().attrs.attr.mtime, long_ago, "{dir}");
    }
}

/// The visible times of an object stay the same when it is sent. They change when a program changes
/// the object.
/// Promise: 6g
#[tokio::test]
async fn sending_moves_no_times() {
    let s = Stack::new().await;
    let dir = s.mkdir(&s.root, "dir").await;
    s.file(&dir, "file", b"bytes").await;
    s.ahead.symlink(&cx(), &dir, &name("link"), &Bytes::from_static(b"file"), &mode(0o777)).await.unwrap();
    let times = async |path: &str| {
        let attr = s.find(path).await.unwrap().attrs.attr;
        (attr.mtime, attr.ctime)
    };
    let all = ["dir", "dir/file", "dir/link"];
    let root = async || s.ahead.getattr(&cx(), File { fh: &s.root, open: None }).await.unwrap().attr;
    let before = [times(all[0]).await, times(all[1]).await, times(all[2]).await];
    let root_before = root().await;
    s.ahead.sync().await.unwrap();
    for _ in 0..2 {
        assert_eq!([times(all[0]).await, times(all[1]).await, times(all[2]).await], before);
        let page = s.ahead.readdir(&cx(), &dir, 0, [0; 8], 1 << 20, true).await.unwrap();
        let listed = |path: &str| page.entries.iter().find(|e| e.name == name(path)).unwrap().node.clone();
        assert_eq!(listed("file").unwrap().attrs.attr.ctime, before[1].1);
        assert_eq!((root().await.mtime, root().await.ctime), (root_before.mtime, root_before.ctime));
    }
    let file = s.find("dir/file").await.unwrap();
    let at = File { fh: &file.fh, open: None };
    assert!(s.ahead.setattr(&cx(), at, &mode(0o600)).await.unwrap().attr.ctime > before[1].1);
    assert!(times("dir/file").await.1 > before[1].1);
    s.file(&dir, "more", b"bytes").await;
    assert!(times("dir").await.0 > before[0].0);
    assert_eq!(times("dir/link").await, before[2]);
}

/// The modification time that programs saw survives a crash, whatever changed it last.
/// Promise: 6g
#[tokio::test]
async fn shown_mtime_survives_crash() {
    let size = |size| SetAttr { size_bytes: Some(size), ..SetAttr::default() };
    let explicit =
        || SetAttr { mtime: Some(SetTime::To(Time { secs: 1_000, nanos: 5 })), ..SetAttr::default() };
    let histories: [&[SetAttr]; 5] =
        [&[size(3)], &[explicit(), size(3)], &[size(9), explicit()], &[explicit()], &[size(9), size(0)]];
    let s = Stack::new().await;
    for (n, sets) in histories.iter().enumerate() {
        let file = s.file(&s.root, &format!("f{n}"), b"bytes").await;
        for set in *sets {
            tokio::time::sleep(Duration::from_millis(20)).await;
            s.ahead.setattr(&cx(), File { fh: &file.fh, open: None }, set).await.unwrap();
        }
    }
    let mut shown = Vec::new();
    for n in 0..histories.len() {
        shown.push(s.find(&format!("f{n}")).await.unwrap().attrs.attr.mtime);
    }
    assert_eq!(s.crash().await.0.kept, vec![]);
    for (n, shown) in shown.into_iter().enumerate() {
        let there = find(s.gate.below(), &s.root, &format!("f{n}")).await.unwrap().attrs.attr.mtime;
        assert_eq!(there, shown, "history {n}");
    }
}

/// A full server receives the object later. Meanwhile the server must create new objects itself,
/// and a sync returns the error.
/// Promise: 6g
#[tokio::test]
async fn full_server_receives_objects_later() {
    let s = Stack::new().await;
    let file = s.file(&s.root, "file", b"bytes").await;
    s.gate.fail("create_whole", libc::ENOSPC);
    assert_eq!(s.ahead.sync().await.map_err(|e| e.errno), Err(libc::ENOSPC));
    let told = s.ahead.commit(&cx(), File { fh: &file.fh, open: None }).await.map_err(|e| e.errno);
    assert_eq!(told, Err(libc::ENOSPC));
    s.gate.fail("open", libc::ENOSPC);
    assert_eq!(s.create(&s.root, "more").await.map(drop).map_err(|e| e.errno), Err(libc::ENOSPC));
    assert_eq!(s.read(&file.fh).await, b"bytes", "the file is still pending");
    // The server may have a part of the object, so nothing of it changes in this mount.
    let set = SetAttr { size_bytes: Some(1), ..SetAttr::default() };
    let cut = s.ahead.setattr(&cx(), File { fh: &file.fh, open: None }, &set).await;
    assert_eq!(cut.map(drop).map_err(|e| e.errno), Err(libc::ENOSPC));
    let (old, new) = (name("file"), name("other"));
    let flags = RenameFlags::empty();
    let moved = s.ahead.rename(&cx(), (&s.root, &old), (&s.root, &new), None, flags).await;
    assert_eq!(moved.map(drop).map_err(|e| e.errno), Err(libc::ENOSPC));
    s.gate.fail("create_whole", 0);
    s.gate.fail("open", 0);
    s.ahead.sync().await.unwrap();
    let below = find(s.gate.below(), &s.root, "file").await.unwrap();
    assert_eq!(read(s.gate.below(), &below.fh).await, b"bytes");
    let opened = s.create(&s.root, "more").await.unwrap();
    assert_eq!(s.ahead.stats().ahead_objects, 1, "new objects are pending again");
    s.ahead.close(&cx(), &opened.node.fh, opened.open).await.unwrap();
}

/// An error that may pass loses no object and no removal, and makes no conflict, at whichever call
/// of a replay. The replay fails, and a later one completes it.
/// Promise: 6c, 6g
#[tokio::test]
async fn passing_error_at_replay_loses_nothing() {
    const CALLS: [&str; 6] = ["unlink", "rmdir", "mkdir", "symlink", "create_whole", "setattr"];
    for errno in [libc::ENOSPC, libc::EIO, libc::ETIMEDOUT, libc::EREMOTEIO, libc::EDQUOT] {
        let s = Stack::new().await;
        s.mkdir(&s.root, "old-dir").await;
        s.file(&s.root, "old", b"old bytes").await;
        s.ahead.sync().await.unwrap();
        s.gate.shut("unlink");
        s.gate.shut("rmdir");
        s.ahead.unlink(&cx(), &s.root, &name("old"), None).await.unwrap();
        s.ahead.rmdir(&cx(), &s.root, &name("old-dir")).await.unwrap();
        let dir = s.mkdir(&s.root, "dir").await;
        s.file(&dir, "file", b"bytes").await;
        s.file(&s.root, "file", b"more bytes").await;
        let to = Bytes::from_static(b"target");
        s.ahead.symlink(&cx(), &dir, &name("link"), &to, &mode(0o777)).await.unwrap();
        let times =
            SetAttr { mtime: Some(SetTime::To(Time { secs: 1_000, nanos: 0 })), ..SetAttr::default() };
        s.ahead.setattr(&cx(), File { fh: &dir, open: None }, &times).await.unwrap();
        let (journal, server) = (s.kill(), s.gate.another());
        // In the order of a replay: each one comes further.
        for call in CALLS {
            server.fail(call, errno);
            let (wal, left) = Wal::open(&journal.0, ("here", "there"), 1 << 30, &env()).await.unwrap();
            assert!(!left.is_empty());
            let outcome = wal.recover(server.clone(), left, "here", true, 1 << 20).await;
            assert!(outcome.is_err(), "{call}: {outcome:?}");
            assert!(wal.conflicts().list().unwrap().is_empty(), "{call}");
            wal.close();
            drop(wal);
            server.fail(call, 0);
        }
        let (outcome, kept) = recover(&journal.0, &server).await;
        assert_eq!((outcome.kept, kept), (vec![], Vec::<Vec<u8>>::new()));
        let there = tree(s.gate.below(), &s.root).await;
        let contents: Vec<_> = there.iter().map(|(path, (_, _, bytes))| (&path[..], &bytes[..])).collect();
        let expected: [(&str, &[u8]); 4] =
            [("/dir", b""), ("/dir/file", b"bytes"), ("/dir/link", b"target"), ("/file", b"more bytes")];
        assert_eq!(contents, expected, "error {errno}");
        let mtime = find(s.gate.below(), &s.root, "dir").await.unwrap().attrs.attr.mtime;
        assert_eq!(mtime.secs, 1_000);
    }
}

/// The part of a file that a full server took is removed with the file.
/// Promise: 6g
#[tokio::test]
async fn partly_sent_file_is_removed() {
    let s = Stack::new().await;
    s.file(&s.root, "file", b"bytes").await;
    let how = OpenHow { create: Create::Exclusive(mode(0o644)), ..OpenHow::existing(OpenAccess::WRITE) };
    s.gate.fail("create_whole", libc::ENOSPC);
    assert!(s.ahead.sync().await.is_err());
    s.gate.below().open(&cx(), PathRef::name(&s.root, &name("file")), &how).await.unwrap();
    s.ahead.unlink(&cx(), &s.root, &name("file"), None).await.unwrap();
    s.removals.sync().await.unwrap();
    assert!(find(s.gate.below(), &s.root, "file").await.is_none());
    assert_eq!(s.ahead.stats().ahead_objects, 0);
    s.gate.fail("create_whole", 0);
    assert_eq!(s.crash().await.0, Outcome::default());
    s.file(&s.root, "file", b"other").await;
    assert_eq!(s.ahead.stats().ahead_objects, 1, "new objects are pending again");
}

/// An object that the server refuses for good is kept as a conflict, reported, and removed from
/// this mount.
/// Promise: 6g
#[tokio::test]
async fn refused_object_becomes_conflict() {
    let s = Stack::new().await;
    let file = s.file(&s.root, "file", b"bytes").await;
    // Another client creates the name, against the user's declaration.
    let how = OpenHow { create: Create::Exclusive(mode(0o644)), ..OpenHow::existing(OpenAccess::WRITE) };
    let theirs = s.gate.below().open(&cx(), PathRef::name(&s.root, &name("file")), &how).await.unwrap();
    let at = File { fh: &theirs.node.fh, open: Some(theirs.open) };
    let data = Data::from(Bytes::from_static(b"other"));
    s.gate.below().write(&cx(), at, 0, data, Stability::Stable).await.unwrap();
    assert_eq!(s.ahead.sync().await.map_err(|e| e.errno), Err(libc::EEXIST));
    let kept = s.ahead.wal.conflicts().list().unwrap();
    let about = kept[0].1.as_ref().unwrap();
    assert_eq!((kept.len(), about.path.as_str(), about.bytes()), (1, "file", 5));
    assert_eq!(read(s.gate.below(), &theirs.node.fh).await, b"other", "the other client's file is unchanged");
    let gone = s.ahead.getattr(&cx(), File { fh: &file.fh, open: None }).await.map_err(|e| e.errno);
    assert_eq!(gone.map(drop), Err(libc::EEXIST));
    assert_eq!(s.find("file").await.unwrap().fh, theirs.node.fh);
    s.ahead.sync().await.unwrap();
    assert_eq!(s.ahead.stats().ahead_refused, 1);
}

/// Another user's object that takes the name of a pending object gets no bytes, and the pending
/// object becomes a conflict. The same holds for a directory with other permissions.
/// Promise: 6g
#[tokio::test]
async fn foreign_object_is_not_adopted() {
    let s = Stack::new().await;
    s.file(&s.root, "file", b"bytes").await;
    s.file(&s.mkdir(&s.root, "dir").await, "in", b"private").await;
    let to = Bytes::from_static(b"target");
    s.ahead.symlink(&cx(), &s.root, &name("link"), &to, &mode(0o777)).await.unwrap();
    let below = s.gate.below();
    below.create_whole(&cx(), &s.root, &name("file"), &mode(0o600), Data::default()).await.unwrap();
    below.symlink(&cx(), &s.root, &name("link"), &to, &mode(0o777)).await.unwrap();
    for file in ["file", "link"] {
        let theirs = SetAttr { uid: Some(2000), ..SetAttr::default() };
        let node = find(below, &s.root, file).await.unwrap();
        below.setattr(&cx(), File { fh: &node.fh, open: None }, &theirs).await.unwrap();
    }
    below.mkdir(&cx(), &s.root, &name("dir"), &mode(0o777)).await.unwrap();
    let before = tree(below, &s.root).await;
    assert_eq!(s.ahead.sync().await.map_err(|e| e.errno), Err(libc::EEXIST));
    assert_eq!(tree(below, &s.root).await, before);
    let kept = s.ahead.wal.conflicts().list().unwrap();
    let mut paths: Vec<String> = kept.into_iter().map(|(_, about)| about.unwrap().path).collect();
    paths.sort();
    assert_eq!(paths, ["dir", "dir/in", "file", "link"]);
}

/// A file that the server created without a received reply is recognised, and is complete in the
/// end.
/// Promise: 6g
#[tokio::test]
async fn unanswered_create_is_recognised() {
    let s = Stack::new().await;
    for (file, there) in [("empty", &b""[..]), ("part", b"by\0\0"), ("all", b"bytes")] {
        s.file(&s.root, file, b"bytes").await;
        let how = OpenHow { create: Create::Exclusive(mode(0o644)), ..OpenHow::existing(OpenAccess::WRITE) };
        let made = s.gate.below().open(&cx(), PathRef::name(&s.root, &name(file)), &how).await.unwrap();
        if !there.is_empty() {
            let at = File { fh: &made.node.fh, open: Some(made.open) };
            let data = Data::from(Bytes::from_static(there));
            s.gate.below().write(&cx(), at, 0, data, Stability::Stable).await.unwrap();
        }
    }
    let (outcome, _) = s.crash().await;
    assert_eq!((outcome.files, outcome.bytes, outcome.kept), (3, 15, vec![]));
    for file in ["empty", "part", "all"] {
        let below = find(s.gate.below(), &s.root, file).await.unwrap();
        assert_eq!(read(s.gate.below(), &below.fh).await, b"bytes", "{file}");
    }
}

/// fsync(2) of a directory: the changes of names are on the local disk.
/// Promise: 6g
#[tokio::test]
async fn directory_fsync_waits_for_journal() {
    let s = Stack::new().await;
    let dir = s.mkdir(&s.root, "dir").await;
    for at in [&s.root, &dir] {
        s.file(at, "old", b"bytes").await;
        s.ahead
            .rename(&cx(), (at, &name("old")), (at, &name("new")), None, RenameFlags::empty())
            .await
            .unwrap();
        let last = s.ahead.wal.log().last();
        s.ahead.commit(&cx(), File { fh: at, open: None }).await.unwrap();
        assert!(s.ahead.wal.log().durable_upto() >= last);
    }
    assert_eq!((s.ahead.stats().ahead_objects, s.gate.calls("commit")), (3, 0), "the server gets no request");
}

/// The journal has the rename before the end of the replaced object. A crash between the two leaves
/// one of the objects.
/// Promise: 6g
#[tokio::test]
async fn replacing_rename_survives_crash() {
    let s = Stack::new().await;
    s.file(&s.root, "file", b"old").await;
    let moved = s.file(&s.root, "new", b"new").await;
    let (log, data) = (s.ahead.wal.log(), Data::from(Bytes::from_static(b"file")));
    let event = Event::Moved(s.root.clone());
    let last = log.append(Record { fh: moved.fh, event, data });
    log.written(last.seq).await.unwrap();
    let (outcome, kept) = s.crash().await;
    assert_eq!((outcome.files, outcome.bytes, kept.len()), (1, 3, 0));
    let there = find(s.gate.below(), &s.root, "file").await.unwrap();
    assert_eq!(read(s.gate.below(), &there.fh).await, b"new");
    assert!(find(s.gate.below(), &s.root, "new").await.is_none());
}

/// Two records may leave the journal early: the server's handle of a directory, before a creation
/// in it, and the creation of an object, before its bytes.
/// Promise: 6g
#[tokio::test]
async fn replay_tolerates_retired_records() {
    let s = Stack::new().await;
    let dir = s.mkdir(&s.root, "dir").await;
    let real = s.ahead.send(&dir).await.unwrap();
    assert_ne!(real, dir);
    s.file(&dir, "new", b"bytes").await;
    s.file(&s.root, "old", b"bytes").await;
    s.ahead
        .rename(&cx(), (&s.root, &name("old")), (&dir, &name("moved")), None, RenameFlags::empty())
        .await
        .unwrap();
    let copy = Temporary::new();
    std::fs::create_dir_all(&copy.0).unwrap();
    std::fs::set_permissions(&copy.0, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    copy_journal(&s.dir.0, &copy.0);
    let (wal, left) = Wal::open(&copy.0, ("here", "there"), 1 << 30, &env()).await.unwrap();
    assert_eq!(left.made.len(), 2);
    assert!(left.made.values().all(|made| made.new.dir == real), "{left:?}");
    wal.close();
    drop(wal);

    let bare = Temporary::new();
    let (wal, _) = Wal::open(&bare.0, ("here", "there"), 1 << 30, &env()).await.unwrap();
    for (n, end) in [(1, Event::Gone), (2, Event::There(real))] {
        let fh = Fh(Bytes::copy_from_slice(&[n; 24]));
        let cred = Arc::new(Cred::root());
        let write =
            Write { fileid: 1, path: vec![], cred: cred.clone(), offset_bytes: 0, base: None, wall_s: 1 };
        let data = Data::from(Bytes::from_static(b"bytes"));
        wal.log().append(Record { fh: fh.clone(), event: Event::Data(write), data });
        let set =
            Attributes { cred, mode: None, size_bytes: None, atime: None, mtime: Some(Default::default()) };
        wal.log().append(Record::of(&fh, Event::Set(set)));
        wal.log().append(Record::of(&fh, end));
    }
    wal.close();
    drop(wal);
    let (wal, left) = Wal::open(&bare.0, ("here", "there"), 1 << 30, &env()).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
    wal.close();
}
