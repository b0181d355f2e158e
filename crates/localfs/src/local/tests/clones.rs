//! Clones on file systems that share blocks: a real xfs and a real btrfs, in images.

use super::*;
use hither_vfs::Extra;

/// A mounted file system in an image.
pub(super) struct Disk {
    kind: String,
    dir: Dir,
    lives: Vec<PathBuf>,
}

impl Disk {
    /// `None` where there are no loop devices.
    pub(super) fn new(kind: &str, options: &[&str]) -> Option<Self> {
        if !has_loop_devices() {
            return None;
        }
        let mut disk = Self { kind: kind.to_string(), dir: Dir::new(), lives: Vec::new() };
        std::fs::File::create(disk.image()).unwrap().set_len(320 << 20).unwrap();
        let (mkfs, image) = (format!("mkfs.{kind}"), disk.image().display().to_string());
        let words: Vec<&str> = options.iter().copied().chain([&*image]).collect();
        assert!(sh(&mkfs, &words), "{mkfs}: it is in the package {kind}progs (xfsprogs, btrfs-progs)");
        disk.mount();
        std::fs::create_dir(disk.path("export")).unwrap();
        std::fs::create_dir(disk.path("state")).unwrap();
        rustix::fs::syncfs(std::fs::File::open(disk.path("")).unwrap()).unwrap();
        Some(disk)
    }

    fn image(&self) -> PathBuf {
        self.dir.path(&format!("image{}", self.lives.len()))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.lives.last().unwrap().join(name)
    }

    fn mount(&mut self) {
        let at = self.dir.path(&format!("mnt{}", self.lives.len()));
        let (image, root) = (self.image().display().to_string(), at.display().to_string());
        std::fs::create_dir(&at).unwrap();
        // With xfs both images have the same UUID.
        let nouuid = if self.kind == "xfs" { "loop,nouuid" } else { "loop" };
        assert!(sh("mount", &["-o", nouuid, &image, &root]), "mount -o {nouuid} {image}");
        self.lives.push(at);
    }

    /// Cuts the power and restores it: changes only in memory are lost (xfs, ext4).
    pub(super) fn cut(&mut self) {
        sys::power_off(std::fs::File::open(self.path("")).unwrap().as_fd()).unwrap();
        let old = self.dir.path(&format!("image{}", self.lives.len() - 1)).display().to_string();
        assert!(sh("cp", &["--sparse=always", &old, &self.image().display().to_string()]), "cp {old}");
        self.mount();
    }

    pub(super) fn serve(&self) -> Local {
        let path = self.dir.path("journal");
        let options = LocalOptions {
            state_dir: Some(self.path("state")),
            journal: Some(JournalOptions { path, size_bytes: 4 << 20, discard: false }),
            ..Default::default()
        };
        Local::open(&self.path("export"), options, env()).unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for at in &self.lives {
            sh("umount", &["-l", at.to_str().unwrap()]);
        }
    }
}

async fn new_file(l: &Local, name: &str) -> Fh {
    let f = create(l, &root(), &top(l).await, name, 0o644).await.unwrap();
    l.close(&root(), &f.node.fh, f.open).await.unwrap();
    f.node.fh
}

async fn stable(l: &Local, fh: &Fh, at: u64, bytes: Vec<u8>) {
    let (file, len) = (File { fh, open: None }, bytes.len() as u64);
    let wrote = l.write(&root(), file, at, Bytes::from(bytes).into(), Stability::Stable).await.unwrap();
    assert_eq!(wrote.bytes, len);
}

async fn clone(l: &Local, from: (&Fh, u64), to: (&Fh, u64), len: u64) -> Result<()> {
    let file = |fh| File { fh, open: None };
    l.clone_range(&root(), file(from.0), from.1, file(to.0), to.1, len).await
}

async fn free_bytes(l: &Local) -> u64 {
    rustix::fs::syncfs(l.inner.top.as_fd()).unwrap();
    l.statfs(&root(), &top(l).await).await.unwrap().free_bytes
}

async fn shares_blocks_and_bytes(disk: &Disk) {
    let l = disk.serve();
    assert_eq!(l.clone_block_bytes(), Some(4096));
    let (a, b) = (new_file(&l, "a").await, new_file(&l, "b").await);
    let bytes: Vec<u8> = (0..16 << 20).map(|i: u32| (i / 4096) as u8 ^ 0x5a).collect();
    for (i, part) in bytes.chunks(1 << 20).enumerate() {
        stable(&l, &a, (i as u64) << 20, part.to_vec()).await;
    }
    let free = free_bytes(&l).await;
    clone(&l, (&a, 0), (&b, 0), 0).await.unwrap();
    assert!(free.saturating_sub(free_bytes(&l).await) < 1 << 20, "the blocks were copied");
    let read = std::fs::read(disk.path("export/b")).unwrap();
    assert!(read == bytes);
    // A write to one file does not show in the other.
    stable(&l, &b, 5, b"other".to_vec()).await;
    assert_eq!(std::fs::read(disk.path("export/a")).unwrap()[..10], bytes[..10]);
    // Clones a part to another place in the same file, then tries impossible clones.
    let change = |l: &Local| l.inner.attrs(&l.inner.objects.find(&b).unwrap()).unwrap().attr.change;
    let before = change(&l);
    clone(&l, (&b, 8192), (&b, 1 << 20), 4096).await.unwrap();
    assert_ne!(change(&l), before, "caches would not notice");
    let read = std::fs::read(disk.path("export/b")).unwrap();
    assert!(read[1 << 20..][..4096] == bytes[8192..12288] && read.len() == bytes.len());
    for (from, to, len) in [(1, 0, 4096), (0, 1, 4096), (0, 0, 4095), (1 << 30, 0, 4096), (0, 0, 32 << 20)] {
        assert_eq!(errno(clone(&l, (&a, from), (&b, to), len).await), libc::EINVAL, "{from} {to} {len}");
    }
    assert_eq!(errno(clone(&l, (&b, 0), (&b, 4096), 8192).await), libc::EINVAL, "they overlap");
    let (nobody, file) = (cx(12345, 12345, &[]), |fh| File { fh, open: None });
    assert_eq!(errno(l.clone_range(&nobody, file(&a), 0, file(&b), 0, 0).await), libc::EACCES);
}

#[tokio::test]
async fn a_clone_on_xfs_shares_blocks() {
    let Some(disk) = Disk::new("xfs", &["-q", "-m", "reflink=1"]) else { return };
    shares_blocks_and_bytes(&disk).await;
}

/// Promise: S8d
#[tokio::test]
async fn a_clone_on_btrfs_shares_blocks() {
    let Some(disk) = Disk::new("btrfs", &["-q", "-s", "4096"]) else { return };
    shares_blocks_and_bytes(&disk).await;
}

/// On a file system that cannot share blocks, CLONE fails with EOPNOTSUPP and no block size is
/// offered.
/// Promise: S8d
#[tokio::test]
async fn clone_needs_shared_blocks() {
    let dir = Dir::on("/dev/shm");
    let l = local(&dir);
    let (a, b) = (new_file(&l, "a").await, new_file(&l, "b").await);
    assert_eq!(l.clone_block_bytes(), None);
    assert_eq!(errno(clone(&l, (&a, 0), (&b, 0), 0).await), libc::EOPNOTSUPP);
    let Some(disk) = Disk::new("xfs", &["-q", "-m", "reflink=0"]) else { return };
    assert_eq!(disk.serve().clone_block_bytes(), None);
}

/// After a power cut the clone has the source bytes that only the journal held. Older journaled
/// bytes of the target do not overwrite the clone, and later writes are there.
/// Promise: S8d
#[tokio::test]
async fn power_cut_keeps_clones() {
    let Some(mut disk) = Disk::new("xfs", &["-q", "-m", "reflink=1"]) else { return };
    for round in 0..6_u8 {
        let l = disk.serve();
        let names = [format!("a{round}"), format!("b{round}")];
        let (a, b) = (new_file(&l, &names[0]).await, new_file(&l, &names[1]).await);
        stable(&l, &a, 0, vec![round | 0x80; 10_000]).await;
        stable(&l, &b, 0, vec![1; 30_000]).await;
        clone(&l, (&a, 0), (&b, 8192), 8192).await.unwrap();
        stable(&l, &b, 8292, b"later".to_vec()).await;
        if round % 2 == 1 {
            // The source is written after the clone.
            stable(&l, &a, 0, vec![9; 5_000]).await;
        }
        disk.cut();
        drop(l);
        drop(disk.serve());
        let mut source = vec![round | 0x80; 10_000];
        let mut target = vec![1; 30_000];
        target[8192..16384].fill(round | 0x80);
        target[8292..8297].copy_from_slice(b"later");
        if round % 2 == 1 {
            source[..5_000].fill(9);
        }
        for (name, bytes) in names.iter().zip([source, target]) {
            let read = std::fs::read(disk.path("export").join(name)).unwrap();
            let differs = read.iter().zip(&bytes).position(|(a, b)| a != b);
            assert_eq!((read.len(), differs), (bytes.len(), None), "round {round}, {name}");
        }
    }
}
