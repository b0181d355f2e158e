//! Random histories: the same calls on a mount with pending objects and on a server alone, with
//! kills in between.

use super::*;

/// A small deterministic generator, so that histories repeat.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// One call, by path, on any file system.
#[derive(Debug, Clone)]
enum Call {
    Create(String, Vec<u8>),
    Write(String, u64, Vec<u8>),
    Cut(String, u64),
    Mkdir(String),
    Link(String, String),
    Hard(String, String),
    Mode(String, u32),
    Remove(String),
    Rmdir(String),
    Rename(String, String),
}

fn split(path: &str) -> (&str, Name) {
    let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
    (dir, name(last))
}

async fn dir_of(vfs: &dyn Vfs, root: &Fh, path: &str) -> Result<(Fh, Name)> {
    let (dir, last) = split(path);
    if dir.is_empty() {
        return Ok((root.clone(), last));
    }
    let node = find(vfs, root, dir).await.ok_or_else(|| Error::new(libc::ENOENT))?;
    match node.attrs.attr.kind {
        FileKind::Directory => Ok((node.fh, last)),
        _ => Err(Error::new(libc::ENOTDIR)),
    }
}

async fn file_of(vfs: &dyn Vfs, root: &Fh, path: &str) -> Result<Fh> {
    let node = find(vfs, root, path).await.ok_or_else(|| Error::new(libc::ENOENT))?;
    match node.attrs.attr.kind {
        FileKind::Regular => Ok(node.fh),
        _ => Err(Error::new(libc::EISDIR)),
    }
}

async fn put(vfs: &dyn Vfs, fh: &Fh, open: OpenId, at: u64, data: &[u8]) -> Result<()> {
    if !data.is_empty() {
        let bytes = Data::from(Bytes::copy_from_slice(data));
        let wrote = vfs.write(&cx(), File { fh, open: Some(open) }, at, bytes, Stability::Unstable).await?;
        assert_eq!(wrote.bytes, data.len() as u64);
    }
    vfs.close(&cx(), fh, open).await
}

async fn make(vfs: &dyn Vfs, root: &Fh, call: &Call) -> Result<()> {
    match call {
        Call::Create(path, data) => {
            let (dir, last) = dir_of(vfs, root, path).await?;
            let how =
                OpenHow { create: Create::Exclusive(mode(0o640)), ..OpenHow::existing(OpenAccess::WRITE) };
            let opened = vfs.open(&cx(), PathRef::name(&dir, &last), &how).await?;
            put(vfs, &opened.node.fh, opened.open, 0, data).await
        }
        Call::Write(path, at, data) => {
            let fh = file_of(vfs, root, path).await?;
            let opened = vfs.open(&cx(), PathRef::fh(&fh), &OpenHow::existing(OpenAccess::WRITE)).await?;
            put(vfs, &fh, opened.open, *at, data).await
        }
        Call::Cut(path, size) => {
            let fh = file_of(vfs, root, path).await?;
            let set = SetAttr { size_bytes: Some(*size), ..SetAttr::default() };
            vfs.setattr(&cx(), File { fh: &fh, open: None }, &set).await.map(drop)
        }
        Call::Mkdir(path) => {
            let (dir, last) = dir_of(vfs, root, path).await?;
            vfs.mkdir(&cx(), &dir, &last, &mode(0o755)).await.map(drop)
        }
        Call::Link(path, target) => {
            let (dir, last) = dir_of(vfs, root, path).await?;
            let target = Bytes::from(target.clone().into_bytes());
            vfs.symlink(&cx(), &dir, &last, &target, &mode(0o777)).await.map(drop)
        }
        Call::Hard(old, new) => {
            let fh = file_of(vfs, root, old).await?;
            let (dir, last) = dir_of(vfs, root, new).await?;
            vfs.link(&cx(), &fh, &dir, &last).await.map(drop)
        }
        Call::Mode(path, bits) => {
            let fh = file_of(vfs, root, path).await?;
            vfs.setattr(&cx(), File { fh: &fh, open: None }, &mode(*bits)).await.map(drop)
        }
        Call::Remove(path) => {
            let (dir, last) = dir_of(vfs, root, path).await?;
            vfs.unlink(&cx(), &dir, &last, None).await.map(drop)
        }
        Call::Rmdir(path) => {
            let (dir, last) = dir_of(vfs, root, path).await?;
            vfs.rmdir(&cx(), &dir, &last).await.map(drop)
        }
        Call::Rename(from, to) => {
            let (a, b) = (dir_of(vfs, root, from).await?, dir_of(vfs, root, to).await?);
            let target = find(vfs, root, to).await.map(|node| node.fh);
            let flags = RenameFlags::empty();
            vfs.rename(&cx(), (&a.0, &a.1), (&b.0, &b.1), target.as_ref(), flags).await.map(drop)
        }
    }
}

fn any(random: &mut Random) -> Call {
    const PATHS: [&str; 12] = ["a", "b", "c", "d", "d/a", "d/b", "d/e", "d/e/a", "d/e/b", "f", "f/a", "f/d"];
    let path = |random: &mut Random| PATHS[random.below(PATHS.len() as u64) as usize].to_string();
    let data = |random: &mut Random| {
        let (len, seed) = (random.below(400), random.below(250) as u8);
        (0..len).map(|i| seed.wrapping_add(i as u8)).collect::<Vec<u8>>()
    };
    match random.below(16) {
        0..4 => Call::Create(path(random), data(random)),
        4..6 => Call::Write(path(random), random.below(900), data(random)),
        6 => Call::Cut(path(random), random.below(1200)),
        7..10 => Call::Mkdir(["d", "d/e", "f", "f/d"][random.below(4) as usize].to_string()),
        10 => Call::Link(path(random), path(random)),
        11 => Call::Hard(path(random), path(random)),
        12 => Call::Mode(path(random), [0o600, 0o644, 0o755][random.below(3) as usize]),
        13 => Call::Remove(path(random)),
        14 => Call::Rmdir(path(random)),
        _ => Call::Rename(path(random), path(random)),
    }
}

/// Whether all file systems agree on a call. The callers of the layer check the other renames.
fn is_plain(call: &Call) -> bool {
    match call {
        Call::Rename(from, to) => {
            from != to && !to.starts_with(&format!("{from}/")) && !from.starts_with(&format!("{to}/"))
        }
        _ => true,
    }
}

/// Random histories with syncs and kills end in the same tree as the same calls at a server without
/// this layer.
/// Promise: 6g
#[tokio::test]
async fn random_histories_match_plain_server() {
    for seed in 0..60 {
        let mut random = Random(seed * 7919 + 1);
        let options = PendingCreatesOptions { file_max_bytes: 1000, ..options() };
        let mut s = Stack::with(options.clone()).await;
        let alone = Model::new(env(), Duration::from_secs(3), u64::MAX);
        let alone_root = alone.root(&cx()).await.unwrap().fh;
        let mut history = Vec::new();
        let mut opening = tokio::spawn(async {});
        for _ in 0..60 {
            match random.below(12) {
                0 => {
                    history.push("sync".to_string());
                    s.ahead.sync().await.unwrap();
                    s.removals.sync().await.unwrap();
                }
                2..4 => {
                    // Removals are in flight for a while.
                    s.gate.shut("unlink");
                    s.gate.shut("rmdir");
                    let (gate, pause) = (s.gate.clone(), Duration::from_millis(random.below(6)));
                    // An earlier task would open the gate of a killed mount.
                    opening.abort();
                    opening = tokio::spawn(async move {
                        tokio::time::sleep(pause).await;
                        gate.open_all();
                    });
                }
                1 => {
                    // The daemon is killed and the file system mounted again.
                    history.push("kill".to_string());
                    opening.abort();
                    let (outcome, kept) = s.crash().await;
                    assert!(outcome.kept.is_empty() && kept.is_empty(), "{seed}: {outcome:?} {history:#?}");
                    s.ahead.wal.close();
                    let gate = s.gate.another();
                    s = Stack::over(gate, env(), options.clone()).await;
                }
                _ => {
                    let call = any(&mut random);
                    if !is_plain(&call) {
                        continue;
                    }
                    let theirs = make(&alone, &alone_root, &call).await.map_err(|e| e.errno);
                    let ours = make(&*s.ahead, &s.root, &call).await.map_err(|e| e.errno);
                    history.push(format!("{call:?}: {ours:?}"));
                    assert_eq!(ours, theirs, "{seed}: {history:#?}");
                }
            }
        }
        let expected = tree(&alone, &alone_root).await;
        assert_eq!(tree(&*s.ahead, &s.root).await, expected, "{seed}: {history:#?}");
        s.ahead.sync().await.unwrap();
        s.removals.sync().await.unwrap();
        assert_eq!(s.ahead.wal.log().stats().live_records, 0, "{seed}: {history:#?}");
        assert_eq!(tree(s.gate.below(), &s.root).await, expected, "{seed}: {history:#?}");
    }
}
