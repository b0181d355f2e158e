//! Several creations in one compound: their distribution, and the outcome of each when the compound
//! ends early or its session is lost.

use super::*;
use NfsOpnum4 as N;
use hither_vfs::{Creation, NewKind, Removal};

/// Operations of one file after other objects.
const FILE: [N; 6] = [N::PUTFH, N::OPEN, N::WRITE, N::SETATTR, N::CLOSE, N::GETATTR];

fn new(file: &str, bytes: &[u8]) -> Creation {
    let time = hither_vfs::SetTime::To(hither_vfs::Time { secs: 7, nanos: 0 });
    let set = SetAttr { mode: Some(0o640), mtime: Some(time), ..Default::default() };
    let kind = NewKind::File(Data::from(Bytes::copy_from_slice(bytes)));
    Creation { name: name(file), kind, set }
}

fn directory(dir: &str) -> Creation {
    Creation { name: name(dir), kind: NewKind::Directory, set: SetAttr::default() }
}

impl Test {
    async fn make(&self, new: &[Creation]) -> Vec<std::result::Result<u64, i32>> {
        let made = self.v4.create_many(&cx(), &self.root, new).await;
        made.into_iter().map(|made| made.map(|m| m.node.attrs.attr.size_bytes).map_err(|e| e.errno)).collect()
    }

    /// Compounds since the last call of this function, without the test of several WRITEs.
    fn asked(&self) -> Vec<Vec<N>> {
        let all = std::mem::take(&mut self.server.lock().compounds);
        all.into_iter().filter(|ops| !ops.contains(&N::READ)).collect()
    }

    fn stable(&self, file: &str) -> Option<Vec<u8>> {
        self.server.lock().files.get(file).map(|f| f.stable.clone())
    }

    /// Checks that no open and no test file is left, and that no rule was broken.
    async fn is_clean(&self) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(self.server.lock().opens.len(), 0);
        assert!(!self.server.lock().files.keys().any(|name| name.starts_with(".nfs")));
        self.check();
    }
}

/// Files, directories and empty files share a compound. The attributes of their directory are last.
#[tokio::test(start_paused = true)]
async fn several_objects_are_one_message() {
    let t = Test::new().await;
    t.asked();
    let all = [new("a", b"one"), directory("d"), new("b", b"three"), new("empty", b"")];
    assert_eq!(t.make(&all).await, [Ok(3), Ok(0), Ok(5), Ok(0)]);
    let mut ops: Vec<N> = [FILE, FILE].concat();
    ops.extend([N::PUTFH, N::CREATE, N::GETATTR]);
    ops.extend(FILE.into_iter().filter(|op| *op != N::WRITE));
    ops.extend([N::PUTFH, N::GETATTR]);
    assert_eq!(t.asked(), [ops]);
    assert_eq!((t.stable("a").unwrap(), t.stable("b").unwrap()), (b"one".to_vec(), b"three".to_vec()));
    // The result of the test is known, and the test is not repeated.
    let before = t.server.count("READ");
    assert_eq!(t.make(&[new("x", b"x"), new("y", b"y")]).await, [Ok(1), Ok(1)]);
    assert_eq!((t.server.count("READ"), t.asked().len()), (before, 1));
    t.is_clean().await;
}

/// A compound has as many objects as the session allows: operations, request and reply.
/// Promise: 6g
#[tokio::test(start_paused = true)]
async fn batches_respect_session_limits() {
    let names: Vec<String> = (0..20).map(|n| format!("f{n}")).collect();
    let many = |bytes: &[u8]| names.iter().map(|file| new(file, bytes)).collect::<Vec<_>>();
    for (ops, cached, bytes, messages) in [(50, None, 10, 3), (50, None, 20_000, 7), (96, Some(2048), 10, 7)]
    {
        let t = Test::with(options(), Conditions::default(), |server| {
            (server.lock().max_ops, server.lock().max_cached) = (ops, cached);
        });
        let t = t.await;
        t.asked();
        assert!(t.make(&many(&vec![7; bytes])).await.iter().all(|made| *made == Ok(bytes as u64)));
        let asked = t.asked();
        assert_eq!(asked.len(), messages, "{ops} {cached:?} {bytes}: {asked:?}");
        assert!(asked.iter().all(|some| some.len() < ops as usize));
        assert!(names.iter().all(|file| t.stable(file).unwrap() == vec![7; bytes]));
        t.is_clean().await;
    }
    // The server accepts fewer operations than it announces.
    let t = Test::new().await;
    t.server.lock().really_takes = 30;
    assert!(t.make(&many(b"bytes")).await.iter().all(|made| *made == Ok(5) || *made == Err(libc::EEXIST)));
    assert!(names.iter().all(|file| t.server.lock().files.contains_key(file)));
    t.is_clean().await;
}

/// A server that writes wrong bytes of a second WRITE gets one WRITE per compound, beside other
/// objects. No file ever has wrong bytes.
/// Promise: 6g
#[tokio::test(start_paused = true)]
async fn faulty_server_gets_single_writes() {
    let t = Test::with(options(), Conditions::default(), |server| server.lock().one_write = true).await;
    t.asked();
    let all = [directory("d"), new("a", b"one"), new("empty", b""), new("b", b"three"), new("c", b"five")];
    assert_eq!(t.make(&all).await, [Ok(0), Ok(3), Ok(0), Ok(5), Ok(4)]);
    let asked = t.asked();
    assert_eq!(asked.len(), 3, "{asked:?}");
    for ops in &asked {
        assert_eq!(ops.iter().filter(|op| **op == N::WRITE).count(), 1);
        assert!(!ops[..ops.iter().position(|op| *op == N::WRITE).unwrap()].contains(&N::CLOSE), "{asked:?}");
    }
    for (file, bytes) in [("a", &b"one"[..]), ("b", b"three"), ("c", b"five")] {
        assert_eq!(t.stable(file).unwrap(), bytes, "{file}");
    }
    t.is_clean().await;
}

/// The server stops at one object. Earlier objects exist, later ones are sent again, and the object
/// has its own error.
/// Promise: 6g
#[tokio::test(start_paused = true)]
async fn batch_error_affects_one_object() {
    let t = Test::new().await;
    t.create("there").await;
    assert_eq!(t.make(&[new("w", b"w"), new("v", b"v")]).await, [Ok(1), Ok(1)]);
    t.asked();
    let all = [new("a", b"one"), new("there", b"mine"), new("b", b"three")];
    assert_eq!(t.make(&all).await, [Ok(3), Err(libc::EEXIST), Ok(5)]);
    assert_eq!(t.asked().len(), 2);
    assert_eq!(t.stable("there").unwrap(), b"");
    // Failures after OPEN: the file is closed, and the caller writes its bytes.
    for (n, op) in [N::WRITE, N::SETATTR, N::CLOSE].into_iter().enumerate() {
        let files = [format!("x{n}"), format!("y{n}")];
        t.server.lock().fail = vec![(op, Nfsstat4::NOSPC)];
        let all = [new(&files[0], b"bytes"), new(&files[1], b"bytes")];
        assert_eq!(t.make(&all).await, [Err(libc::ENOSPC), Ok(5)], "{op:?}");
        assert_eq!(t.stable(&files[1]).unwrap(), b"bytes");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(t.server.lock().opens.keys().count(), 1, "{op:?}: only what the test has open");
    }
    // A busy object is sent again alone, until the server is ready.
    t.asked();
    t.server.lock().fail = vec![(N::CREATE, Nfsstat4::DELAY); 3];
    assert_eq!(t.make(&[new("c", b"c"), directory("d"), new("e", b"e")]).await, [Ok(1), Ok(0), Ok(1)]);
    t.server.lock().fail = vec![(N::CREATE, Nfsstat4::GRACE); 2];
    assert_eq!(t.make(&[new("f", b"f"), directory("g")]).await, [Ok(1), Ok(0)]);
    t.check();
}

/// A lost reply: the slot of the session has it. The session is lost as well: executed creations
/// exist, and the caller gets EEXIST.
/// Promise: 6g
#[tokio::test(start_paused = true)]
async fn a_lost_reply_makes_nothing_twice() {
    let t = Test::new().await;
    assert_eq!(t.make(&[new("w", b"w"), new("v", b"v")]).await, [Ok(1), Ok(1)]);
    t.server.lock().lose_reply = Some(N::OPEN);
    let making = {
        let (v4, root) = (t.v4.clone(), t.root.clone());
        tokio::spawn(
            async move { v4.create_many(&cx(), &root, &[new("a", b"one"), new("b", b"three")]).await },
        )
    };
    tokio::time::sleep(Duration::from_millis(500)).await;
    t.net.cut(Cut::Reset);
    let made = making.await.unwrap();
    assert!(made.iter().all(|made| made.is_ok()), "{made:?}");
    t.server.lock().lose_session = Some(N::OPEN);
    let making = {
        let (v4, root) = (t.v4.clone(), t.root.clone());
        tokio::spawn(
            async move { v4.create_many(&cx(), &root, &[new("c", b"one"), new("d", b"three")]).await },
        )
    };
    tokio::time::sleep(Duration::from_millis(500)).await;
    t.net.cut(Cut::Reset);
    let made = making.await.unwrap();
    assert!(made.iter().all(|made| made.as_ref().is_err_and(|e| e.errno == libc::EEXIST)), "{made:?}");
    assert_eq!((t.stable("c").unwrap(), t.stable("d").unwrap()), (b"one".to_vec(), b"three".to_vec()));
    t.is_clean().await;
}

fn gone(file: &str) -> Removal {
    Removal { name: name(file), target: None, is_dir: false }
}

impl Test {
    async fn remove(&self, files: &[&str]) -> Vec<std::result::Result<(), i32>> {
        let all: Vec<_> = files.iter().map(|file| gone(file)).collect();
        let removed = self.v4.remove_many(&cx(), &self.root, &all).await;
        removed.into_iter().map(|one| one.map(drop).map_err(|e| e.errno)).collect()
    }
}

/// Removals share a compound as the session allows. An open file is removed alone.
/// Promise: 6g
#[tokio::test(start_paused = true)]
async fn several_names_are_one_message() {
    let t = Test::with(options(), Conditions::default(), |server| server.lock().max_ops = 13).await;
    let names: Vec<String> = (0..25).map(|n| format!("f{n}")).collect();
    let new: Vec<_> = names.iter().map(|file| new(file, b"bytes")).collect();
    t.v4.create_many(&cx(), &t.root, &new).await;
    let open = t.create("open").await;
    t.asked();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    assert!(t.remove(&all).await.iter().all(|one| one.is_ok()));
    let removes = |ops: &[N]| ops.iter().filter(|op| **op == N::REMOVE).count();
    let asked = t.asked();
    assert_eq!(asked.iter().map(|ops| removes(ops)).collect::<Vec<_>>(), [10, 10, 5]);
    assert!(asked.iter().all(|ops| ops.first() == Some(&N::PUTFH) && ops.last() == Some(&N::GETATTR)));
    t.make(&[self::new("x", b"x"), self::new("y", b"y")]).await;
    let target = Some(open.node.fh.clone());
    let all = [gone("x"), Removal { target, ..gone("open") }, gone("y")];
    let removed = t.v4.remove_many(&cx(), &t.root, &all).await;
    assert!(removed.iter().all(|one| one.is_ok()), "{removed:?}");
    assert_eq!(t.server.count("RENAME"), 1, "it is hidden until its last close");
    t.close(&open).await;
    t.is_clean().await;
    assert_eq!(t.server.lock().files.len(), 0);
}

/// The server stops at one name. That name gets its error or waits, and later names are sent again.
/// Promise: 6g
#[tokio::test(start_paused = true)]
async fn batch_removal_reports_each_name() {
    let t = Test::new().await;
    let fill = async || drop(t.make(&["a", "b", "c"].map(|file| new(file, b"x"))).await);
    fill().await;
    assert_eq!(t.remove(&["a", "none", "b", "c"]).await, [Ok(()), Err(libc::ENOENT), Ok(()), Ok(())]);
    for status in [Nfsstat4::DELAY, Nfsstat4::REP_TOO_BIG_TO_CACHE] {
        fill().await;
        t.server.lock().fail = vec![(N::REMOVE, status)];
        assert_eq!(t.remove(&["a", "b", "c"]).await, [Ok(()); 3], "{status:?}");
        assert_eq!(t.server.lock().files.len(), 0);
    }
    // The session is lost with the reply. All names were removed, and no caller gets ENOENT.
    fill().await;
    t.server.lock().lose_session = Some(N::REMOVE);
    let net = t.net.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        net.cut(Cut::Reset);
    });
    assert_eq!(t.remove(&["a", "b", "c"]).await, [Ok(()); 3]);
    t.is_clean().await;
}

/// The ways in which a file loses its last name.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Loss {
    Unlink,
    Rename,
}

impl Test {
    /// Removes the file `a` while it waits for its CLOSE. `fault` is the status of one operation.
    /// `lost`: the session and the reply are lost.
    async fn remove_closing(&self, way: Loss, fault: Option<(N, Nfsstat4)>, lost: bool) {
        let open = self.create("a").await;
        self.make(&[new("b", b"b")]).await;
        let (v4, fh, id) = (self.v4.clone(), open.node.fh.clone(), open.open);
        let closing = tokio::spawn(async move { v4.close(&cx(), &fh, id).await });
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.asked();
        self.server.lock().fail = fault.into_iter().collect();
        let (op, left) = if way == Loss::Rename { (N::RENAME, "a") } else { (N::REMOVE, "b") };
        if lost {
            self.server.lock().lose_session = Some(op);
            let net = self.net.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                net.cut(Cut::Reset);
            });
        }
        let (a, b, target, cx) = (name("a"), name("b"), Some(&open.node.fh), cx());
        let (from, to) = ((&self.root, &b), (&self.root, &a));
        let removed = match way {
            Loss::Unlink => self.v4.unlink(&cx, &self.root, &a, target).await.map(drop),
            Loss::Rename => self.v4.rename(&cx, from, to, target, RenameFlags::empty()).await.map(drop),
        };
        assert!(removed.is_ok(), "{way:?} {fault:?} {lost}: {removed:?}");
        let asked = self.asked();
        if fault.is_none() && !lost {
            assert_eq!(asked.len(), 1, "{asked:?}");
            assert!(asked[0].starts_with(&[N::PUTFH, N::CLOSE, N::PUTFH]) && asked[0].contains(&op));
        }
        closing.await.unwrap().unwrap();
        self.server.lock().fail.clear();
        assert_eq!(self.server.lock().files.keys().collect::<Vec<_>>(), [left]);
        assert_eq!(self.remove(&[left]).await, [Ok(())]);
        self.is_clean().await;
    }
}

/// The removal of a file that waits for its CLOSE takes the CLOSE along. A refused or delayed CLOSE
/// does not refuse the removal, and a lost session does not either.
/// Promise: 13
#[tokio::test(start_paused = true)]
async fn removal_takes_close_along() {
    let t = Test::new().await;
    let refused = [
        (N::CLOSE, Nfsstat4::DELAY),
        (N::CLOSE, Nfsstat4::OLD_STATEID),
        (N::REMOVE, Nfsstat4::DELAY),
        (N::RENAME, Nfsstat4::DELAY),
    ];
    let faults: Vec<_> = std::iter::once(None).chain(refused.map(Some)).collect();
    for way in [Loss::Unlink, Loss::Rename] {
        for &fault in &faults {
            for lost in [false, true] {
                t.remove_closing(way, fault, lost).await;
            }
        }
    }
}
