//! Times of directories while some of their changes wait.

use super::histories::Random;
use super::*;
use hither_vfs::{Special, XattrMode};

/// The effect of a call on the times of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Nothing,
    /// Names change: both times.
    Names,
    /// Attributes change: the change time.
    Attributes,
    /// A program sets the modification time.
    Set(Time),
}

/// A random history of one directory.
struct History {
    s: Stack,
    dir: Fh,
    random: Random,
    /// Names in the directory, with the kind of each object.
    names: BTreeMap<String, FileKind>,
    next: u32,
}

impl History {
    async fn times(&self) -> (Time, Time) {
        let attr = self.s.ahead.getattr(&cx(), File { fh: &self.dir, open: None }).await.unwrap().attr;
        (attr.mtime, attr.ctime)
    }

    fn fresh(&mut self, kind: FileKind) -> Name {
        self.next += 1;
        let new = format!("n{}", self.next);
        self.names.insert(new.clone(), kind);
        name(&new)
    }

    /// A random existing name of this kind.
    fn one(&mut self, kind: FileKind) -> Option<String> {
        let all: Vec<_> = self.names.iter().filter(|(_, k)| **k == kind).map(|(n, _)| n.clone()).collect();
        (!all.is_empty()).then(|| all[self.random.below(all.len() as u64) as usize].clone())
    }

    async fn set(&self, set: SetAttr) -> Effect {
        let at = File { fh: &self.dir, open: None };
        self.s.ahead.setattr(&cx(), at, &set).await.unwrap();
        match set.mtime {
            Some(SetTime::To(time)) => Effect::Set(time),
            _ => Effect::Attributes,
        }
    }

    /// Removes a directory or another object.
    async fn remove(&mut self, directory: bool) -> Effect {
        let kinds = [FileKind::Regular, FileKind::Symlink, FileKind::Fifo];
        let kind = if directory { FileKind::Directory } else { kinds[self.random.below(3) as usize] };
        let Some(old) = self.one(kind) else { return Effect::Nothing };
        self.names.remove(&old);
        if directory {
            self.s.ahead.rmdir(&cx(), &self.dir, &name(&old)).await.unwrap();
        } else {
            self.s.ahead.unlink(&cx(), &self.dir, &name(&old), None).await.unwrap();
        }
        Effect::Names
    }

    /// Renames a file, to a new name or over another file.
    async fn rename(&mut self, replace: bool) -> Effect {
        let Some(old) = self.one(FileKind::Regular) else { return Effect::Nothing };
        let to = match self.one(FileKind::Regular).filter(|to| replace && *to != old) {
            Some(to) => to,
            None => String::from_utf8(self.fresh(FileKind::Regular).as_bytes().to_vec()).unwrap(),
        };
        let (ahead, dir) = (self.s.ahead.clone(), self.dir.clone());
        let file = async |name: &str| find(&*ahead, &dir, name).await.map(|node| node.fh);
        // Two names of one file stay (rename(2)).
        let stays = file(&to).await == file(&old).await;
        let (from, into) = (name(&old), name(&to));
        ahead.rename(&cx(), (&dir, &from), (&dir, &into), None, RenameFlags::empty()).await.unwrap();
        if stays {
            return Effect::Nothing;
        }
        self.names.remove(&old);
        Effect::Names
    }

    /// One call of a program.
    async fn step(&mut self) -> (&'static str, Effect) {
        let (s, dir) = (&self.s, self.dir.clone());
        let what = [
            "file",
            "mkdir",
            "symlink",
            "link",
            "fifo",
            "chmod",
            "chgrp",
            "xattr",
            "utimes",
            "utimes and mode",
            "open",
            "unlink",
            "rmdir",
            "rename",
            "replace",
            "send",
        ];
        let what = what[self.random.below(what.len() as u64) as usize];
        let ahead = s.ahead.clone();
        let effect = match what {
            "file" => {
                let new = self.fresh(FileKind::Regular);
                let text = String::from_utf8(new.as_bytes().to_vec()).unwrap();
                self.s.file(&dir, &text, b"bytes").await;
                Effect::Names
            }
            "mkdir" => {
                let new = self.fresh(FileKind::Directory);
                ahead.mkdir(&cx(), &dir, &new, &mode(0o755)).await.unwrap();
                Effect::Names
            }
            "symlink" => {
                let new = self.fresh(FileKind::Symlink);
                ahead.symlink(&cx(), &dir, &new, &Bytes::from_static(b"to"), &mode(0o777)).await.unwrap();
                Effect::Names
            }
            "link" => {
                let Some(old) = self.one(FileKind::Regular) else { return (what, Effect::Nothing) };
                let old = find(&*ahead, &dir, &old).await.unwrap();
                let new = self.fresh(FileKind::Regular);
                ahead.link(&cx(), &old.fh, &dir, &new).await.unwrap();
                Effect::Names
            }
            "fifo" => {
                let new = self.fresh(FileKind::Fifo);
                ahead.mknod(&cx(), &dir, &new, &Special::Fifo, &mode(0o644)).await.unwrap();
                Effect::Names
            }
            "chmod" => self.set(mode(0o700)).await,
            "chgrp" => self.set(SetAttr { gid: Some(self.next), ..SetAttr::default() }).await,
            "xattr" => {
                let value = Bytes::from_static(b"value");
                ahead.setxattr(&cx(), &dir, b"user.x", &value, XattrMode::Either).await.unwrap();
                Effect::Attributes
            }
            "utimes" | "utimes and mode" => {
                let time = Time { secs: 10 + i64::from(self.next), nanos: 5 };
                let set = SetAttr { mtime: Some(SetTime::To(time)), ..SetAttr::default() };
                let mode = (what != "utimes").then_some(0o711);
                self.set(SetAttr { mode, ..set }).await
            }
            "open" => {
                let Some(old) = self.one(FileKind::Regular) else { return (what, Effect::Nothing) };
                let how = OpenHow {
                    create: Create::IfMissing(mode(0o644)),
                    ..OpenHow::existing(OpenAccess::WRITE)
                };
                let opened = ahead.open(&cx(), PathRef::name(&dir, &name(&old)), &how).await.unwrap();
                ahead.close(&cx(), &opened.node.fh, opened.open).await.unwrap();
                Effect::Nothing
            }
            "unlink" | "rmdir" => self.remove(what == "rmdir").await,
            "rename" | "replace" => self.rename(what == "replace").await,
            _ => {
                let some = self.one(FileKind::Regular).or(self.one(FileKind::Directory));
                if let Some(some) = some {
                    let node = find(&*ahead, &dir, &some).await.unwrap();
                    ahead.send(&node.fh).await.unwrap();
                }
                Effect::Nothing
            }
        };
        (what, effect)
    }
}

/// The times of a directory change by the calls of programs alone. Sending the waiting objects and
/// removals moves no time.
/// Promise: 6g
#[tokio::test]
async fn only_programs_move_times() {
    for seed in 0..60 {
        let s = Stack::new().await;
        let dir = s.mkdir(&s.root, "dir").await;
        if seed % 2 == 0 {
            s.ahead.send(&dir).await.unwrap();
        }
        let random = Random(seed + 1);
        let mut h = History { s, dir, random, names: BTreeMap::new(), next: 0 };
        let mut last = h.times().await;
        let mut history = Vec::new();
        for _ in 0..40 {
            let (call, effect) = h.step().await;
            history.push(call);
            let case = || format!("seed {seed}, after {history:?}");
            let now = h.times().await;
            match effect {
                Effect::Nothing => assert_eq!(now, last, "{}", case()),
                Effect::Names => assert!(now.0 > last.0 && now.1 > last.1, "{now:?} {last:?} {}", case()),
                Effect::Attributes => {
                    assert!(now.0 == last.0 && now.1 > last.1, "{now:?} {last:?} {}", case())
                }
                Effect::Set(time) => assert!(now.0 == time && now.1 > last.1, "{now:?} {last:?} {}", case()),
            }
            if h.random.below(4) == 0 {
                h.s.ahead.sync().await.unwrap();
                h.s.removals.sync().await.unwrap();
                assert_eq!(h.times().await, now, "sent; {}", case());
            }
            last = now;
        }
        h.s.ahead.sync().await.unwrap();
        h.s.removals.sync().await.unwrap();
        assert_eq!(h.times().await, last, "sent; seed {seed}, after {history:?}");
    }
}
