//! Power cuts on a real ext4: all acknowledged changes survive, and no change is made twice.
//!
//! The file system is in an image. At a cut it stops with the state on its disk, and the part of
//! its log in memory is lost. A copy of the image is mounted instead, as after a boot. Several
//! clients change names, attributes and bytes until the cut. One call of each client may be in
//! progress, and may have been made or not.

use super::journaled::mix;
use super::*;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;

/// An ext4 file system in an image.
struct Disk {
    dir: Dir,
    life: u32,
}

impl Disk {
    /// `None` where there are no loop devices.
    fn new() -> Option<Self> {
        if !has_loop_devices() {
            return None;
        }
        let disk = Self { dir: Dir::new(), life: 0 };
        std::fs::File::create(disk.image()).unwrap().set_len(64 << 20).unwrap();
        let image = disk.image().display().to_string();
        assert!(sh("mkfs.ext4", &["-q", "-b", "4096", "-J", "size=8", &image]), "mkfs.ext4");
        disk.mount();
        std::fs::create_dir(disk.root().join("export")).unwrap();
        std::fs::create_dir(disk.root().join("state")).unwrap();
        rustix::fs::syncfs(std::fs::File::open(disk.root()).unwrap()).unwrap();
        Some(disk)
    }

    fn image(&self) -> PathBuf {
        self.dir.path(&format!("image{}", self.life))
    }

    fn root(&self) -> PathBuf {
        self.dir.path(&format!("mnt{}", self.life))
    }

    fn mount(&self) {
        std::fs::create_dir(self.root()).unwrap();
        let (image, root) = (self.image().display().to_string(), self.root().display().to_string());
        assert!(sh("mount", &["-o", "loop,commit=600", &image, &root]), "mount -o loop {image}");
    }

    fn cut(&self) {
        sys::power_off(std::fs::File::open(self.root()).unwrap().as_fd()).unwrap();
    }

    /// Boots after a cut.
    fn boot(&mut self) {
        let (image, root) = (self.image(), self.root().display().to_string());
        self.life += 1;
        std::fs::copy(&image, self.image()).unwrap();
        self.mount();
        assert!(sh("umount", &["-l", &root]));
        // A real machine would have a new boot id.
        let _ = std::fs::remove_file(self.root().join("state").join(super::super::journaled::fresh::FILE));
        std::fs::remove_file(image).unwrap();
    }

    fn serve(&self) -> Local {
        let path = self.dir.path("journal");
        let options = LocalOptions {
            state_dir: Some(self.root().join("state")),
            journal: Some(JournalOptions { path, size_bytes: 4 << 20, discard: false }),
            ..Default::default()
        };
        Local::open(&self.root().join("export"), options, env()).unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        sh("umount", &["-l", self.root().to_str().unwrap()]);
    }
}

#[derive(Debug, Clone)]
enum Op {
    Create(String, u32, Way),
    Mkdir(String),
    Symlink(String),
    Write(String, u64, Vec<u8>),
    Remove(String),
    Rename(String, String),
    Link(String, String),
    Mode(String, u32),
    Time(String, i64),
    Cut(String, u64),
}

/// The call that makes a file.
#[derive(Debug, Clone, Copy)]
enum Way {
    Mknod,
    /// An open that finds no file.
    Open,
    /// An open that must make the file, with a verifier in its times.
    Exclusive(i64),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Thing {
    is_dir: bool,
    is_link: bool,
    bytes: Vec<u8>,
    mode: u32,
    /// The mtime from the last call that set it, unless another change came since.
    mtime: Option<i64>,
    fh: Option<Fh>,
}

/// The objects that a client made, by name.
#[derive(Debug, Clone, Default)]
struct Truth {
    names: BTreeMap<String, usize>,
    things: Vec<Thing>,
}

impl Truth {
    fn at(&mut self, name: &str) -> &mut Thing {
        &mut self.things[self.names[name]]
    }

    fn apply(&mut self, op: &Op) {
        match op.clone() {
            Op::Create(name, mode, way) => {
                let mtime = if let Way::Exclusive(verifier) = way { Some(verifier) } else { None };
                self.add(name, Thing { mode, mtime, ..Thing::default() });
            }
            Op::Symlink(name) => {
                let bytes = name.clone().into_bytes();
                self.add(name, Thing { is_link: true, mode: 0o777, bytes, ..Thing::default() });
            }
            Op::Mkdir(name) => self.add(name, Thing { is_dir: true, mode: 0o755, ..Thing::default() }),
            Op::Write(name, at, bytes) => {
                let (thing, at) = (self.at(&name), at as usize);
                thing.bytes.resize(thing.bytes.len().max(at + bytes.len()), 0);
                thing.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
                thing.mtime = None;
            }
            Op::Remove(name) => drop(self.names.remove(&name)),
            Op::Rename(from, to) => {
                if self.names.get(&from) != self.names.get(&to) {
                    let moved = self.names.remove(&from).unwrap();
                    self.names.insert(to, moved);
                }
            }
            Op::Link(from, to) => drop(self.names.insert(to, self.names[&from])),
            Op::Mode(name, mode) => self.at(&name).mode = mode,
            Op::Time(name, secs) => self.at(&name).mtime = Some(secs),
            Op::Cut(name, size) => {
                let thing = self.at(&name);
                thing.bytes.resize(size as usize, 0);
                thing.mtime = None;
            }
        }
    }

    /// The possible states after a call that was not answered.
    fn after(&self, op: &Op) -> Vec<Self> {
        let mut whole = self.clone();
        whole.apply(op);
        let mut all = vec![whole];
        if let Op::Cut(name, size) = op {
            // ext4 truncates a file in two steps: it zeroes the rest of the last block before it
            // changes the length.
            let (mut half, size) = (self.clone(), *size as usize);
            let bytes = &mut half.at(name).bytes;
            let end = size.next_multiple_of(4096).min(bytes.len());
            bytes[size.min(end)..end].fill(0);
            all.push(half);
        }
        all
    }

    fn add(&mut self, name: String, thing: Thing) {
        self.names.insert(name, self.things.len());
        self.things.push(thing);
    }

    fn next(&self, dice: u64) -> Op {
        let name = |dice: u64| format!("{}/n{}", ["a", "b"][dice as usize % 2], (dice >> 8) % 9);
        let two = name(mix(dice ^ 2));
        let is_new = self.names.len() < 6 || mix(dice ^ 5).is_multiple_of(6);
        let old = self.names.keys().nth((dice >> 20) as usize % self.names.len().max(1)).cloned();
        let one = old.filter(|_| !is_new).unwrap_or_else(|| name(mix(dice ^ 1)));
        let Some(thing) = self.names.get(&one).map(|&id| &self.things[id]) else {
            let mode = 0o600 + dice as u32 % 0o60;
            return match mix(dice ^ 6) % 40 {
                // A change without a record is synced, with all earlier changes. So the test makes
                // few of them.
                0 => Op::Symlink(one),
                1..10 => Op::Mkdir(one),
                10..20 => Op::Create(one, mode, Way::Open),
                20..30 => Op::Create(one, mode, Way::Exclusive((dice % 100_000) as i64)),
                _ => Op::Create(one, mode, Way::Mknod),
            };
        };
        let is_file = !thing.is_dir && !thing.is_link;
        let may_replace = self.names.get(&two).is_none_or(|&id| !self.things[id].is_dir && !thing.is_dir);
        match dice % 24 {
            0..2 => Op::Remove(one),
            2..9 if may_replace => Op::Rename(one, two),
            9..12 if !thing.is_dir && !self.names.contains_key(&two) => Op::Link(one, two),
            12..15 => Op::Time(one, (dice % 100_000) as i64),
            15 if is_file => Op::Cut(one, dice % 9000),
            16..21 if is_file => {
                let (at, len) = (mix(dice ^ 3) % 20_000, 1 + mix(dice ^ 4) % 15_000);
                Op::Write(one, at, (0..len).map(|i| mix(dice).wrapping_add(i) as u8).collect())
            }
            _ if thing.is_link => Op::Remove(one),
            _ => Op::Mode(one, 0o600 + (dice >> 8) as u32 % 0o100),
        }
    }

    /// The visible state: for each name the object, and the first name that leads to the same
    /// object.
    fn seen(&self) -> BTreeMap<String, (Thing, String)> {
        let first = |id| self.names.iter().find(|(_, other)| **other == id).unwrap().0.clone();
        self.names.iter().map(|(name, &id)| (name.clone(), (self.things[id].clone(), first(id)))).collect()
    }
}

async fn dir_of(l: &Local, client: usize, path: &str) -> (Fh, Name) {
    let (dir, last) = path.split_once('/').unwrap();
    (find(l, &root(), &format!("c{client}{dir}")).await.unwrap().fh, name(last))
}

/// The credentials of a client. Client 1 is not the superuser.
fn caller(client: usize) -> RequestContext {
    if client == 1 { cx(1000, 1000, &[]) } else { root() }
}

async fn run(
    l: &Local,
    (client, call): (usize, Bytes),
    truth: &mut Truth,
    dirs: &BTreeMap<String, Fh>,
    op: &Op,
) -> Result<()> {
    let cx = RequestContext { call: Some(call), ..caller(client) };
    let place = |path: &str| {
        let (dir, last) = path.split_once('/').unwrap();
        (dirs[&format!("c{client}{dir}")].clone(), name(last))
    };
    let fh = |truth: &Truth, path: &str| truth.things[truth.names[path]].fh.clone().unwrap();
    let mut made = None;
    match op {
        Op::Create(path, bits, Way::Mknod) => {
            let (dir, last) = place(path);
            made = Some(l.mknod(&cx, &dir, &last, &Special::Regular, &mode(*bits)).await?.node.fh);
        }
        Op::Create(path, bits, way) => {
            let (dir, last) = place(path);
            let create = match way {
                Way::Exclusive(secs) => {
                    let verifier = Some(SetTime::To(Time { secs: *secs, nanos: 7 }));
                    Create::Exclusive(SetAttr { atime: verifier, mtime: verifier, ..mode(*bits) })
                }
                _ => Create::IfMissing(mode(*bits)),
            };
            let opened = l.open(&cx, PathRef::name(&dir, &last), &how(both(), create)).await?;
            assert!(opened.created);
            made = Some(opened.node.fh.clone());
            // The open acknowledges the call. The result of the close does not count.
            let _ = l.close(&cx, &opened.node.fh, opened.open).await;
        }
        Op::Symlink(path) => {
            let (dir, last) = place(path);
            let target = path.clone().into();
            made = Some(l.symlink(&cx, &dir, &last, &target, &SetAttr::default()).await?.node.fh);
        }
        Op::Mkdir(path) => {
            let (dir, last) = place(path);
            made = Some(l.mkdir(&cx, &dir, &last, &mode(0o755)).await?.node.fh);
        }
        Op::Write(path, at, bytes) => {
            let (fh, data) = (fh(truth, path), Bytes::from(bytes.clone()));
            l.write(&cx, File { fh: &fh, open: None }, *at, data.into(), Stability::Stable).await?;
        }
        Op::Remove(path) => {
            let (dir, last) = place(path);
            if truth.at(path).is_dir {
                l.rmdir(&cx, &dir, &last).await?;
            } else {
                l.unlink(&cx, &dir, &last, None).await?;
            }
        }
        Op::Rename(from, to) => {
            let (from, to) = (place(from), place(to));
            l.rename(&cx, (&from.0, &from.1), (&to.0, &to.1), None, RenameFlags::empty()).await?;
        }
        Op::Link(from, to) => {
            let (dir, last) = place(to);
            l.link(&cx, &fh(truth, from), &dir, &last).await?;
        }
        Op::Mode(path, _) | Op::Time(path, _) | Op::Cut(path, _) => {
            let set = match *op {
                Op::Mode(_, bits) => mode(bits),
                Op::Time(_, secs) => {
                    let mtime = Some(SetTime::To(Time { secs, nanos: 5 }));
                    SetAttr { mtime, ..Default::default() }
                }
                Op::Cut(_, size) => SetAttr { size_bytes: Some(size), ..Default::default() },
                _ => unreachable!(),
            };
            l.setattr(&cx, File { fh: &fh(truth, path), open: None }, &set).await?;
        }
    }
    truth.apply(op);
    if let (Some(fh), Op::Create(path, ..) | Op::Mkdir(path) | Op::Symlink(path)) = (made, op) {
        truth.at(path).fh = Some(fh);
    }
    Ok(())
}

/// The name of the `n`th call of a client in a round.
fn call_of(round: u64, client: usize, n: u64) -> Bytes {
    format!("{round} {client} {n}").into_bytes().into()
}

/// The contents of a client's directories, as far as `truth` covers them.
async fn found(l: &Local, client: usize, truth: &Truth, at: &Path) -> BTreeMap<String, (Thing, String)> {
    let (mut out, mut first) = (BTreeMap::new(), BTreeMap::new());
    for dir in ["a", "b"] {
        let mut names: Vec<_> = std::fs::read_dir(at.join(format!("c{client}{dir}")))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        for last in names {
            let path = format!("{dir}/{last}");
            let node = find(l, &root(), &format!("c{client}{path}")).await.unwrap();
            let first = first.entry(node.attrs.attr.fileid).or_insert(path.clone()).clone();
            let (is_dir, is_link) = match node.attrs.attr.kind {
                FileKind::Directory => (true, false),
                FileKind::Symlink => (false, true),
                _ => (false, false),
            };
            let bytes = if is_dir {
                Bytes::new()
            } else if is_link {
                l.readlink(&root(), &node.fh).await.unwrap()
            } else {
                read_all(l, &root(), &node.fh).await.unwrap()
            };
            assert_eq!(node.attrs.attr.uid, if client == 1 { 1000 } else { 0 }, "{path}");
            let expected = truth.names.get(&path).map(|&id| &truth.things[id]);
            let mtime = expected.and_then(|thing| thing.mtime).map(|_| node.attrs.attr.mtime.secs);
            let fh = expected.and_then(|thing| thing.fh.as_ref()).map(|_| node.fh.clone());
            let mode = node.attrs.attr.mode;
            out.insert(path, (Thing { is_dir, is_link, bytes: bytes.to_vec(), mode, mtime, fh }, first));
        }
    }
    out
}

fn differences(a: &BTreeMap<String, (Thing, String)>, b: &BTreeMap<String, (Thing, String)>) -> String {
    let mut out = Vec::new();
    for name in a.keys().chain(b.keys().filter(|name| !a.contains_key(*name))) {
        if a.get(name) != b.get(name) {
            let short = |t: Option<&(Thing, String)>| {
                t.map(|(t, first)| {
                    format!(
                        "dir {} len {} mode {:o} mtime {:?} fh {:?} first {first}",
                        t.is_dir,
                        t.bytes.len(),
                        t.mode,
                        t.mtime,
                        t.fh
                    )
                })
            };
            out.push(format!("{name}: found {:?}, not {:?}", short(a.get(name)), short(b.get(name))));
        }
    }
    out.join("\n")
}

const CLIENTS: usize = 3;

/// Makes checkpoints until the test ends them, or until they fail because of the power cut.
fn settle_all_the_time(l: &Arc<Local>) -> (Arc<AtomicBool>, tokio::task::JoinHandle<()>) {
    let (l, is_over) = (l.clone(), Arc::new(AtomicBool::new(false)));
    let until = is_over.clone();
    let settle = move || {
        let log = &l.inner.journal.as_ref().unwrap().log;
        while !until.load(Ordering::SeqCst) && log.checkpoint().is_ok() {
            std::thread::yield_now();
        }
    };
    (is_over, tokio::task::spawn_blocking(settle))
}

/// Runs of a server. Each ends with a cut or, every fourth, with a kill. The kill keeps the whole
/// file system except the mark.
async fn lives(rounds: u64, seed: u64) {
    let Some(mut disk) = Disk::new() else { return };
    let mut truths: Vec<Truth> = vec![Truth::default(); CLIENTS];
    let mut under_way: Vec<Option<(Op, Bytes)>> = vec![None; CLIENTS];
    let mut answered: Vec<Vec<Bytes>> = vec![Vec::new(); CLIENTS];
    {
        let l = disk.serve();
        let base = top(&l).await;
        for name_of in (0..CLIENTS).flat_map(|c| [format!("c{c}a"), format!("c{c}b")]) {
            l.mkdir(&root(), &base, &name(&name_of), &mode(0o777)).await.unwrap();
        }
    }
    let (mut changes, mut redone, mut known_only, mut made) = (0, 0, 0, 0);
    for round in 0..rounds {
        let l = Arc::new(disk.serve());
        let again = l.inner.journal.as_ref().unwrap().redone;
        assert_eq!(again.1, 0, "seed {seed}, life {round}: changes that could not be made again");
        redone += again.0;
        made += again.2;
        let known: BTreeSet<Bytes> = l.answered().into_iter().map(|a| a.call).collect();
        for call in answered.iter_mut().flat_map(std::mem::take) {
            assert!(known.contains(&call), "seed {seed}, life {round}: {call:?} would be made again");
        }
        let mut dirs = BTreeMap::new();
        for c in 0..CLIENTS {
            for d in ["a", "b"] {
                let (fh, _) = dir_of(&l, c, &format!("{d}/x")).await;
                dirs.insert(format!("c{c}{d}"), fh);
            }
        }
        for (client, truth) in truths.iter_mut().enumerate() {
            let may_be = under_way[client].take();
            let mut why = String::new();
            let is = async |candidate: &Truth, why: &mut String| {
                let there = found(&l, client, candidate, &disk.root().join("export")).await;
                *why = differences(&there, &candidate.seen());
                there == candidate.seen()
            };
            // A call that is known as made is never made again. So its whole change must be there.
            let is_known = may_be.as_ref().is_some_and(|(_, call)| known.contains(call));
            known_only += u64::from(is_known);
            let after: Vec<Truth> = match &may_be {
                Some((op, _)) if is_known => truth.after(op).drain(..1).collect(),
                Some((op, _)) => truth.after(op).into_iter().chain([truth.clone()]).collect(),
                None => vec![truth.clone()],
            };
            let mut now = None;
            for candidate in after {
                if is(&candidate, &mut why).await {
                    now = Some(candidate);
                    break;
                }
            }
            *truth = now
                .unwrap_or_else(|| panic!("seed {seed}, life {round}, client {client}, {may_be:?}:\n{why}"));
            let found = truth.names.iter().filter(|(_, id)| truth.things[**id].fh.is_none());
            let found: Vec<String> = found.map(|(name, _)| name.clone()).collect();
            for path in found {
                truth.at(&path).fh = Some(find(&l, &root(), &format!("c{client}{path}")).await.unwrap().fh);
            }
        }
        let is_cut = round % 4 != 3;
        let count = 5 + mix(seed ^ round) % 60;
        let done = Arc::new(AtomicU64::new(0));
        let enough = Arc::new(tokio::sync::Notify::new());
        let tasks: Vec<_> = std::mem::take(&mut truths)
            .into_iter()
            .enumerate()
            .map(|(client, mut truth)| {
                let (l, dirs, done, enough) = (l.clone(), dirs.clone(), done.clone(), enough.clone());
                tokio::spawn(async move {
                    let mut answered = Vec::new();
                    for n in 0.. {
                        if !is_cut && done.load(Ordering::SeqCst) >= count {
                            break;
                        }
                        let op = truth.next(mix(seed ^ (round << 40) ^ ((client as u64) << 32) ^ n));
                        let call = call_of(round, client, n);
                        match run(&l, (client, call.clone()), &mut truth, &dirs, &op).await {
                            Ok(()) => answered.push(call),
                            Err(e)
                                if matches!(e.errno, libc::EIO | libc::EROFS | libc::EUCLEAN) && is_cut =>
                            {
                                return (truth, answered, Some((op, call)));
                            }
                            Err(e) => panic!("client {client}: {op:?}: {e}"),
                        }
                        if done.fetch_add(1, Ordering::SeqCst) + 1 == count {
                            enough.notify_one();
                        }
                    }
                    (truth, answered, None)
                })
            })
            .collect();
        // In some runs checkpoints follow each other without a pause.
        let settles = (round % 3 == 1).then(|| settle_all_the_time(&l));
        enough.notified().await;
        if is_cut {
            disk.cut();
        }
        for (client, task) in tasks.into_iter().enumerate() {
            let (truth, calls, op) = task.await.unwrap();
            truths.push(truth);
            (answered[client], under_way[client]) = (calls, op);
        }
        if let Some((is_over, settles)) = settles {
            is_over.store(true, Ordering::SeqCst);
            settles.await.unwrap();
        }
        changes += done.load(Ordering::SeqCst);
        if !is_cut && round % 8 == 3 {
            // The file system has the last change, but not its mark.
            let truth = &mut truths[0];
            let last = (0..).map(|n| truth.next(mix(seed ^ (round << 40) ^ (9 << 32) ^ n)));
            let named = |op: &Op| match op {
                Op::Create(..) | Op::Mkdir(_) => true,
                Op::Remove(path) => !truth.things[truth.names[path]].is_dir,
                Op::Rename(a, b) => truth.names.get(a) != truth.names.get(b),
                Op::Link(..) => true,
                _ => false,
            };
            if let Some(op) = last.take(1000).find(named) {
                let call = call_of(round, 9, 0);
                run(&l, (0, call.clone()), truth, &dirs, &op).await.unwrap();
                answered[0].push(call);
            }
            l.inner.journal.as_ref().unwrap().names().unwrap().set_back(1).unwrap();
        }
        drop(l);
        if is_cut {
            disk.boot();
        }
    }
    println!(
        "{rounds} lives, {changes} changes acknowledged, {redone} of them lost by the file system, {made} of these of something new; \
         {known_only} made and not answered"
    );
    assert!(redone > 0 && made > 0, "nothing was lost");
}

/// A counter of the disk's block device: a field of /sys/block/DISK/stat.
fn figure(disk: &Disk, number: usize) -> u64 {
    let minor = rustix::fs::minor(std::fs::metadata(disk.root()).unwrap().dev());
    let stat = std::fs::read_to_string(format!("/sys/block/loop{minor}/stat")).unwrap();
    stat.split_whitespace().nth(number).unwrap().parse().unwrap()
}

/// Makes `count` stable writes of `bytes` bytes, one after the other, to a new file.
async fn append(l: &Local, count: u64, bytes: usize) {
    let file = create(l, &root(), &top(l).await, &format!("f{bytes}"), 0o600).await.unwrap();
    let at = File { fh: &file.node.fh, open: Some(file.open) };
    for i in 0..count {
        let data = Data::from(Bytes::from(vec![7; bytes]));
        l.write(&root(), at, i * bytes as u64, data, Stability::Stable).await.unwrap();
        // Each append has another mtime.
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    l.close(&root(), &file.node.fh, file.open).await.unwrap();
}

/// An append to the journal commits no transaction of the ext4 that the journal is on.
#[tokio::test(flavor = "multi_thread")]
async fn append_commits_no_ext4_transaction() {
    let Some(disk) = Disk::new() else { return };
    let path = disk.root().join("journal");
    let options = LocalOptions {
        state_dir: Some(disk.root().join("state")),
        journal: Some(JournalOptions { path, size_bytes: 4 << 20, discard: false }),
        ..Default::default()
    };
    let l = Local::open(&disk.root().join("export"), options, env()).unwrap();
    append(&l, 1, 512).await;
    let minor = rustix::fs::minor(std::fs::metadata(disk.root()).unwrap().dev());
    let commits = || {
        let info = std::fs::read_to_string(format!("/proc/fs/jbd2/loop{minor}-8/info")).unwrap();
        info.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let (before, count) = (commits(), 40);
    append(&l, count, 4096).await;
    // Some commits come from objects that are made for the stock.
    let made = commits() - before;
    assert!(made < count / 4, "{made} commits for {count} writes");
}

/// A checkpoint hands little data to the disk in each request.
#[tokio::test(flavor = "multi_thread")]
async fn checkpoint_writes_small_pieces() {
    let Some(disk) = Disk::new() else { return };
    let l = disk.serve();
    append(&l, 20, 64 << 10).await;
    let before = figure(&disk, 4);
    l.inner.journal.as_ref().unwrap().log.checkpoint().unwrap();
    let writes = figure(&disk, 4) - before;
    assert!(writes >= 20, "{writes} requests");
}

/// Acknowledged names and bytes survive power cuts of an ext4. `HITHER_CRASHES` is the number of
/// rounds.
/// Promise: S8b, S8c
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root and loop devices"]
async fn ext4_survives_power_cuts() {
    let rounds = std::env::var("HITHER_CRASHES").ok().and_then(|n| n.parse().ok()).unwrap_or(24);
    lives(rounds, 7).await;
}

/// A write that began before a failure of the journal survives a power cut after its reply.
/// Promise: S9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_during_journal_failure_survives() {
    let Some(mut disk) = Disk::new() else { return };
    let cx = root();
    let fh = {
        let l = disk.serve();
        let f = create(&l, &cx, &top(&l).await, "f", 0o644).await.unwrap();
        let file = File { fh: &f.node.fh, open: None };
        let data = |bytes: &'static [u8]| Bytes::from_static(bytes).into();
        l.write(&cx, file, 0, data(b"first."), Stability::Stable).await.unwrap();
        // Simulates a failure of the device. The next write finds it, and the journal is given up.
        l.inner.journal.as_ref().unwrap().log.close(false).unwrap();
        l.write(&cx, file, 0, data(b"second"), Stability::Stable).await.unwrap();
        // This write waited for its thread meanwhile.
        l.write_journaled(&cx, (f.node.fh.clone(), None), 0, data(b"third.")).await.unwrap();
        disk.cut();
        f.node.fh
    };
    disk.boot();
    let l = disk.serve();
    assert_eq!(&read_all(&l, &cx, &fh).await.unwrap()[..], b"third.");
}

/// If a power cut undoes the removal of a file by a local program, the file has its acknowledged
/// bytes.
/// Promise: S8
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_removal_keeps_file_bytes() {
    let Some(mut disk) = Disk::new() else { return };
    let cx = root();
    let fh = {
        let l = disk.serve();
        let f = create(&l, &cx, &top(&l).await, "f", 0o644).await.unwrap();
        l.close(&cx, &f.node.fh, f.open).await.unwrap();
        let settle = || l.inner.journal.as_ref().unwrap().log.checkpoint().unwrap();
        // The first checkpoint syncs everything.
        settle();
        let file = File { fh: &f.node.fh, open: None };
        let data = Bytes::from_static(b"stable");
        l.write(&cx, file, 0, data.into(), Stability::Stable).await.unwrap();
        // A local program removes the file, without a sync.
        std::fs::remove_file(disk.root().join("export/f")).unwrap();
        settle();
        disk.cut();
        f.node.fh
    };
    disk.boot();
    let l = disk.serve();
    match find(&l, &cx, "f").await {
        Ok(node) => assert_eq!((node.fh, &read_all(&l, &cx, &fh).await.unwrap()[..]), (fh, &b"stable"[..])),
        Err(e) => assert_eq!(e.errno, libc::ENOENT),
    }
}

/// Promise: S8b
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_any_user_have_records() {
    let Some(disk) = Disk::new() else { return };
    let (l, user) = (disk.serve(), caller(1));
    let sub = l.mkdir(&root(), &top(&l).await, &name("sub"), &mode(0o777)).await.unwrap().node.fh;
    let f = create(&l, &user, &sub, "a", 0o644).await.unwrap();
    l.close(&user, &f.node.fh, f.open).await.unwrap();
    let used = || l.inner.journal.as_ref().unwrap().log.used().0;
    l.inner.journal.as_ref().unwrap().log.checkpoint().unwrap();
    assert_eq!(used(), 0);
    l.rename(&user, (&sub, &name("a")), (&sub, &name("b")), None, RenameFlags::empty()).await.unwrap();
    assert!(used() > 0, "it was synced");
}
