//! The disk below the journal fails: an ext4 in an image on a full tmpfs, with no space for some
//! blocks.
//!
//! A hole punched into the image reads as zeros and cannot be written while the tmpfs is full. The
//! kernel reports that as a failed write-back. The tests drop pages after each write-back, as under
//! memory pressure, so that reads reach the disk.

use super::journaled::mix;
use super::*;
use hither_vfs::BatchOps;
use std::os::fd::AsFd;

const BLOCK: usize = 4096;
const BLOCKS: usize = 8;
const FILES: usize = 3;

/// An ext4 file system on a loop device. Tests can make its blocks fail.
struct Disk(Dir);

impl Disk {
    /// `None` where there are no loop devices.
    fn new() -> Option<Self> {
        if !has_loop_devices() {
            return None;
        }
        let disk = Self(Dir::new());
        let [ram, root, image] =
            ["ram", "mnt", "ram/image"].map(|name| disk.0.path(name).display().to_string());
        std::fs::create_dir(&ram).unwrap();
        std::fs::create_dir(&root).unwrap();
        assert!(sh("mount", &["-t", "tmpfs", "-o", "size=32m", "none", &ram]));
        let allocate = || {
            let file =
                std::fs::File::options().write(true).create(true).truncate(false).open(&image).unwrap();
            rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, 24 << 20).unwrap();
        };
        allocate();
        let how = ["-q", "-b", "4096", "-J", "size=4", "-E", "nodiscard,lazy_itable_init=0", &image];
        assert!(sh("mkfs.ext4", &how), "mkfs.ext4");
        assert!(sh("mount", &["-o", "loop,commit=600", &image, &root]), "mount -o loop {image}");
        std::fs::create_dir(disk.0.path("mnt/export")).unwrap();
        std::fs::create_dir(disk.0.path("mnt/state")).unwrap();
        rustix::fs::syncfs(std::fs::File::open(&root).unwrap()).unwrap();
        allocate();
        Some(disk)
    }

    fn serve(&self) -> Local {
        let journal = JournalOptions { path: self.0.path("journal"), size_bytes: 4 << 20, discard: false };
        self.serve_with(Some(journal))
    }

    fn serve_with(&self, journal: Option<JournalOptions>) -> Local {
        let options =
            LocalOptions { state_dir: Some(self.0.path("mnt/state")), journal, ..Default::default() };
        Local::open(&self.0.path("mnt/export"), options, env()).unwrap()
    }

    fn file(&self, file: usize) -> std::fs::File {
        std::fs::File::open(self.0.path(&format!("mnt/export/f{file}"))).unwrap()
    }

    fn image(&self) -> std::fs::File {
        std::fs::File::options().read(true).write(true).open(self.0.path("ram/image")).unwrap()
    }

    /// The offsets of blocks that have these contents now.
    fn find(&self, contents: &[Vec<u8>]) -> Vec<u64> {
        let (image, mut block) = (self.image(), [0; BLOCK]);
        let mut is_one = |at: &u64| {
            image.read_exact_at(&mut block, *at).unwrap();
            contents.iter().any(|content| content[..] == block[..])
        };
        let found: Vec<u64> = (0..24 << 20).step_by(BLOCK).filter(|at| is_one(at)).collect();
        assert!(found.len() >= contents.len(), "{found:?}");
        found
    }

    /// Makes these blocks fail; they become zeros.
    fn fail(&self, places: &[u64]) {
        use rustix::fs::FallocateFlags;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for at in places {
            rustix::fs::fallocate(self.image(), flags, *at, BLOCK as u64).unwrap();
        }
        let filler = std::fs::File::create(self.0.path("ram/filler")).unwrap();
        let mut all = (0..).map(|i| filler.write_all_at(&[7; BLOCK], i * BLOCK as u64));
        let full = all.find_map(std::result::Result::err);
        assert_eq!(full.unwrap().raw_os_error(), Some(libc::ENOSPC));
    }

    fn mend(&self) {
        std::fs::remove_file(self.0.path("ram/filler")).unwrap();
    }

    /// Writes pages back, and drops clean ones. The kernel may do both at any time.
    fn write_back_and_forget(&self) {
        for file in (0..FILES).map(|file| self.file(file)) {
            let _ = sys::write_back(file.as_fd(), 0, 0);
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for mounted in ["mnt", "ram"] {
            sh("umount", &["-l", self.0.path(mounted).to_str().unwrap()]);
        }
    }
}

/// Files and their expected contents.
struct Files {
    fhs: Vec<Fh>,
    bytes: Vec<Vec<u8>>,
}

impl Files {
    async fn new(l: &Local) -> Self {
        let mut files = Self { fhs: Vec::new(), bytes: Vec::new() };
        for file in 0..FILES {
            let made = create(l, &root(), &top(l).await, &format!("f{file}"), 0o644).await.unwrap();
            l.close(&root(), &made.node.fh, made.open).await.unwrap();
            files.fhs.push(made.node.fh);
            files.bytes.push(Vec::new());
            let bytes = pattern(file as u64, BLOCKS * BLOCK);
            files.write(l, file, 0, bytes, Stability::Stable).await.unwrap();
        }
        files
    }

    async fn write(&mut self, l: &Local, file: usize, at: usize, new: Vec<u8>, how: Stability) -> Result<()> {
        let place = File { fh: &self.fhs[file], open: None };
        l.write(&root(), place, at as u64, Bytes::from(new.clone()).into(), how).await?;
        let bytes = &mut self.bytes[file];
        bytes.resize(bytes.len().max(at + new.len()), 0);
        bytes[at..at + new.len()].copy_from_slice(&new);
        Ok(())
    }

    async fn write_some(&mut self, l: &Local, seed: u64, how: Stability) {
        for dice in (0..12).map(|n| mix(seed * 100 + n)) {
            let (at, len) = (dice as usize % (BLOCKS * BLOCK), 1 + (dice >> 20) as usize % (2 * BLOCK));
            let file = (dice >> 40) as usize % FILES;
            self.write(l, file, at, pattern(dice, len), how).await.unwrap();
        }
    }

    /// Reads whole files and parts, with each call that reads. Each read returns the right bytes or
    /// EIO. Returns the numbers of right and of failed reads.
    async fn check(&self, l: &Local, when: &str) -> (usize, usize) {
        let (mut right, mut failed) = (0, 0);
        for (fh, bytes) in self.fhs.iter().zip(&self.bytes) {
            let mut ranges = vec![(0, 1 << 20)];
            ranges.extend((0..bytes.len()).step_by(1777).map(|at| (at, 3000)));
            for (at, len) in ranges {
                let place = File { fh, open: None };
                match l.read(&root(), place, at as u64, len as u32).await {
                    Ok(read) => {
                        let end = bytes.len().min(at + len);
                        assert!(read.data.into_bytes()[..] == bytes[at..end], "{when}: wrong bytes at {at}");
                        right += 1;
                    }
                    Err(e) => {
                        assert_eq!(e.errno, libc::EIO, "{when}");
                        failed += 1;
                    }
                }
            }
            if let Some(piped) = l.inner.read_piped(&root().cred, &(fh.clone(), None), 0, 32 << 10) {
                let mut found = vec![0; piped.data.len()];
                assert_eq!(rustix::io::read(piped.data.fd(), &mut found[..]).unwrap(), found.len());
                assert!(found == bytes[..found.len()], "{when}: wrong pages");
            }
            let many = l.read_many(&root(), std::slice::from_ref(fh), None, 1 << 20).await;
            if let Some(Ok(first)) = many.files.into_iter().next() {
                assert!(first.read.data.into_bytes()[..] == bytes[..], "{when}: wrong first bytes");
            }
            if let Ok(at) = l.seek(&root(), File { fh, open: None }, 0, Seek::Hole).await {
                assert_eq!(at, bytes.len() as u64, "{when}: a hole that there is not");
            }
        }
        (right, failed)
    }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64 / 8 + 1).flat_map(|i| mix(seed << 20 ^ i).to_le_bytes()).take(len).collect()
}

/// Files of zeros whose records are settled. Half of their blocks fail from now on.
async fn on_failing(disk: &Disk, l: &Local, seed: u64) -> Files {
    let log = &l.inner.journal.as_ref().unwrap().log;
    let mut files = Files::new(l).await;
    log.checkpoint().unwrap();
    let blocks = files.bytes.iter().flat_map(|bytes| bytes.chunks(BLOCK));
    let chosen = blocks.enumerate().filter(|(i, _)| mix(seed ^ *i as u64).is_multiple_of(2));
    let places = disk.find(&chosen.map(|(_, block)| block.to_vec()).collect::<Vec<_>>());
    for file in 0..FILES {
        files.write(l, file, 0, vec![0; BLOCKS * BLOCK], Stability::Stable).await.unwrap();
    }
    log.checkpoint().unwrap();
    disk.fail(&places);
    files
}

/// Every read returns the acknowledged bytes, even if the disk lacks some of them. When the disk
/// works again, all of them reach it without a restart.
/// Promise: S8
#[tokio::test]
async fn failing_disk_never_gives_wrong_bytes() {
    let Some(disk) = Disk::new() else { return };
    for seed in 0..3 {
        let when = format!("seed {seed}");
        let l = disk.serve();
        let journal = l.inner.journal.as_ref().unwrap();
        let mut files = on_failing(&disk, &l, seed).await;
        assert_eq!(files.check(&l, &when).await.1, 0);
        files.write_some(&l, seed * 10, Stability::Stable).await;
        disk.write_back_and_forget();
        let (right, failed) = files.check(&l, &format!("{when}, failing")).await;
        assert!(right > 0 && failed == 0, "{when}: {right} right, {failed} failed");
        let stats = l.journal_stats().unwrap();
        assert!(stats.disk_fails && !stats.has_failed && stats.reads > 0, "{stats:?}");
        // The failure continues.
        for round in 1..4 {
            assert!(journal.log.checkpoint().is_err(), "{when}: nothing may be given back");
            files.write_some(&l, seed * 10 + round, Stability::Stable).await;
            disk.write_back_and_forget();
            assert_eq!(files.check(&l, &when).await.1, 0, "{when}, round {round}");
        }
        let epoch = l.write_epoch();
        disk.mend();
        journal.log.checkpoint().unwrap();
        assert_ne!(l.write_epoch(), epoch, "uncommitted bytes may be older now");
        let stats = l.journal_stats().unwrap();
        assert!(!stats.disk_fails && stats.rewritten_bytes > 0, "{stats:?}");
        disk.write_back_and_forget();
        assert_eq!(files.check(&l, &format!("{when}, mended")).await.1, 0);
        drop(l);
        let l = disk.serve();
        assert_eq!(files.check(&l, &when).await.1, 0, "{when}, restarted");
        for file in 0..FILES {
            l.unlink(&root(), &top(&l).await, &name(&format!("f{file}")), None).await.unwrap();
        }
        l.shutdown(&root()).await.unwrap();
    }
}

/// UNSTABLE writes over journaled bytes are newer than the record. A read returns the newer bytes
/// or fails.
/// Promise: S8
#[tokio::test]
async fn failing_disk_never_gives_older_bytes() {
    let Some(disk) = Disk::new() else { return };
    let l = disk.serve();
    let journal = l.inner.journal.as_ref().unwrap();
    let mut files = on_failing(&disk, &l, 7).await;
    files.write_some(&l, 1, Stability::Stable).await;
    files.write_some(&l, 2, Stability::Unstable).await;
    // The pages are not dropped: the kernel has the bytes.
    let (right, failed) = files.check(&l, "before").await;
    assert!(right > 0 && failed == 0);
    for file in (0..FILES).map(|file| disk.file(file)) {
        let _ = sys::write_back(file.as_fd(), 0, 0);
    }
    assert!(files.check(&l, "after").await.1 > 0, "there are none to give");
    let file = File { fh: &files.fhs[0], open: None };
    assert_eq!(errno(l.commit(&root(), file).await), libc::EIO);
    disk.mend();
    journal.log.checkpoint().unwrap();
    // Clients send the bytes again because the verifier changed.
    files.write_some(&l, 2, Stability::Unstable).await;
    for fh in &files.fhs {
        l.commit(&root(), File { fh, open: None }).await.unwrap();
    }
    disk.write_back_and_forget();
    assert_eq!(files.check(&l, "mended").await.1, 0);
}

/// Lost UNSTABLE bytes of one client show in its COMMIT or in the write verifier, whichever call of
/// another client met the error of the disk first.
/// Promise: S5
#[tokio::test]
async fn lost_bytes_are_told_to_their_writer() {
    let Some(disk) = Disk::new() else { return };
    for call in ["stable write", "stable write with names", "commit", "chmod", "finish", "close", "none"] {
        let l = disk.serve_with(None);
        let mut files = Files::new(&l).await;
        let place = disk.find(&[files.bytes[0][..BLOCK].to_vec()]);
        disk.fail(&place);
        let epoch = l.write_epoch();
        files.write(&l, 0, 0, pattern(9, BLOCK), Stability::Unstable).await.unwrap();
        // The kernel writes back at any time.
        let _ = sys::write_back(disk.file(0).as_fd(), 0, 0);
        let (cx, fh) = (root(), files.fhs[0].clone());
        let file = File { fh: &fh, open: None };
        let (block, at) = (Bytes::from(pattern(8, BLOCK)), 3 * BLOCK as u64);
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let answered = match call {
            "stable write" => l.write(&cx, file, at, block.into(), Stability::Stable).await.map(drop),
            "stable write with names" => {
                let made = create(&l, &cx, &top(&l).await, "new", 0o644).await.unwrap();
                l.unlink(&cx, &top(&l).await, &name("new"), Some(&made.node.fh)).await.unwrap();
                l.write(&cx, file, at, block.into(), Stability::Stable).await.map(drop)
            }
            "commit" => l.commit(&cx, file).await,
            "chmod" => l.setattr(&cx, file, &mode).await.map(drop),
            "finish" => l.finish(&cx, file, Some((at, block.into())), &mode).await.map(drop),
            "close" => {
                let how = OpenHow::existing(OpenAccess::WRITE);
                let opened = l.open(&cx, PathRef::fh(&fh), &how).await.unwrap();
                l.close(&cx, &fh, opened.open).await
            }
            _ => Ok(()),
        };
        disk.mend();
        let committed = l.commit(&cx, file).await;
        assert!(
            committed.is_err() || l.write_epoch() != epoch,
            "after {call} ({answered:?}) the bytes count as stable"
        );
        // Sent again, they arrive.
        files.write(&l, 0, 0, pattern(9, BLOCK), Stability::Unstable).await.unwrap();
        l.commit(&cx, file).await.unwrap();
        for file in 0..FILES {
            l.unlink(&cx, &top(&l).await, &name(&format!("f{file}")), None).await.unwrap();
        }
        // syncfs(2) reports the failed write-back once more.
        let _ = l.shutdown(&cx).await;
    }
}
