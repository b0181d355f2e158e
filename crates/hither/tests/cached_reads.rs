//! Random histories of a mount with a disk cache: programs read through new and old descriptors,
//! maps and executions. This mount and another client change the files, and the cache evicts them.
//! Every byte is compared with the versions that close-to-open allows.
//!
//! It needs root and nfs-ganesha. `HITHER_SEED` repeats a history, `HITHER_STEPS` makes it longer.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::{Ganesha, HITHER, Random, hither, mix, run, wait_for};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const FILES: usize = 5;
const LEN_MAX: u64 = 400_000;
const PAGE: usize = 4096;

/// A map of a whole file, shared.
struct Map {
    at: *mut libc::c_void,
    len: usize,
}

impl Map {
    fn new(file: &File, len: usize, how: i32) -> Self {
        let none = std::ptr::null_mut();
        // SAFETY: a new map at an address that the kernel chooses.
        let at = unsafe { libc::mmap(none, len, how, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Self { at, len }
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        let mut bytes = vec![0; len];
        // SAFETY: the range is in the map, and the file is not shorter.
        unsafe { std::ptr::copy_nonoverlapping(self.at.cast::<u8>().add(at), bytes.as_mut_ptr(), len) };
        bytes
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: as for `read`, of a map that may be written.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.cast::<u8>().add(at), bytes.len());
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this map, which nobody uses any more.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

/// A descriptor that stays open.
struct Kept {
    file: File,
    map: Map,
    nth: usize,
}

/// The versions of a file since the mount's last open of it, the oldest first.
type Versions = Vec<Vec<u8>>;

/// The two mounts. After a failed test nothing of the fixture can be removed while its mounts wait
/// for its server.
struct Mounts([PathBuf; 2]);

impl Drop for Mounts {
    fn drop(&mut self) {
        for mnt in &self.0 {
            let _ = Command::new("umount").arg("-l").arg(mnt).stderr(std::process::Stdio::null()).status();
        }
    }
}

struct World {
    mnt: PathBuf,
    other: PathBuf,
    files: Vec<Versions>,
    /// Number that the program prints.
    program: u64,
    kept: Vec<Kept>,
    random: Random,
    /// Every change leaves another length, as a server's clock may be slow.
    changes: u64,
    log: Vec<String>,
}

impl World {
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.changes += 1;
        let seed = mix(self.changes);
        (0..len.div_ceil(8) as u64).flat_map(|i| mix(seed ^ i).to_le_bytes()).take(len).collect()
    }

    fn some_len(&mut self) -> usize {
        let most = [100, 5000, 70_000, LEN_MAX][self.random.below(4) as usize];
        1 + self.random.below(most) as usize
    }

    fn now(&self, nth: usize) -> &Vec<u8> {
        self.files[nth].last().unwrap()
    }

    /// The mount has opened a file: older versions must not show any more.
    fn opened(&mut self, nth: usize) {
        let versions = &mut self.files[nth];
        versions.drain(..versions.len() - 1);
    }

    /// One change of a file by opening and closing it below `mnt`; returns the new contents.
    fn change(&mut self, mnt: &Path, nth: usize) -> Vec<u8> {
        let path = mnt.join(format!("f{nth}"));
        let mut new = self.now(nth).clone();
        let how = self.random.below(4);
        let len = self.some_len();
        let data = self.bytes(len);
        self.log.push(format!("change {how} of f{nth}, {len} bytes, below {}", mnt.display()));
        match how {
            0 => {
                std::fs::write(&path, &data).unwrap();
                new = data;
            }
            1 => {
                std::io::Write::write_all(&mut OpenOptions::new().append(true).open(path).unwrap(), &data)
                    .unwrap();
                new.extend(data);
            }
            2 => {
                let len = self.random.below(new.len() as u64 + 1) as usize;
                OpenOptions::new().write(true).open(path).unwrap().set_len(len as u64).unwrap();
                new.truncate(len);
            }
            _ => {
                let at = self.random.below(new.len() as u64 + 1) as usize;
                let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
                file.write_all_at(&data, at as u64).unwrap();
                new.resize(new.len().max(at + data.len()), 0);
                new[at..at + data.len()].copy_from_slice(&data);
            }
        }
        new
    }

    /// Stores into a shared map.
    fn store(&mut self, nth: usize) {
        let len = self.now(nth).len();
        let data = self.bytes(len.min(9000));
        let at = self.random.below((len - data.len()) as u64 + 1) as usize;
        let file = OpenOptions::new().read(true).write(true).open(self.mnt.join(format!("f{nth}"))).unwrap();
        // As programs do: the kernel learns the length here.
        assert_eq!(file.metadata().unwrap().len(), len as u64);
        Map::new(&file, len, libc::PROT_READ | libc::PROT_WRITE).write(at, &data);
        self.opened(nth);
        self.files[nth][0][at..at + data.len()].copy_from_slice(&data);
        self.log.push(format!("{} bytes stored at {at} of f{nth}", data.len()));
    }

    /// Reads a file through a new descriptor, in pieces of some size and order.
    fn read(&mut self, nth: usize) -> File {
        let file = File::open(self.mnt.join(format!("f{nth}"))).unwrap();
        self.opened(nth);
        let piece = [4096, 10_000, 1 << 20][self.random.below(3) as usize];
        let len = self.now(nth).len();
        let mut got = vec![0; len];
        let mut starts: Vec<usize> = (0..len).step_by(piece).collect();
        if self.random.below(2) == 0 {
            starts.sort_by_key(|at| mix(*at as u64));
        }
        for at in starts {
            let end = (at + piece).min(len);
            file.read_exact_at(&mut got[at..end], at as u64).unwrap();
        }
        // The kernel may not know that another client cut the file before it asks for the length.
        assert_eq!(file.metadata().unwrap().len(), len as u64);
        assert_eq!(file.read_at(&mut [0; 10], len as u64).unwrap(), 0);
        self.compare(nth, 0, &got);
        file
    }

    /// Compares bytes with the versions that may show, page by page.
    fn compare(&self, nth: usize, at: usize, got: &[u8]) {
        let versions = &self.files[nth];
        let mut from = 0;
        while from < got.len() {
            let to = got.len().min((at + from) / PAGE * PAGE + PAGE - at);
            let is = |v: &&Vec<u8>| v.get(at + from..at + to) == Some(&got[from..to]);
            assert!(
                versions.iter().any(|v| is(&v)),
                "f{nth} at {}: none of {} versions, after {:#?}",
                at + from,
                versions.len(),
                &self.log[self.log.len().saturating_sub(20)..]
            );
            from = to;
        }
    }

    /// Reads through an old descriptor, or its map. The last page is left out: a version may end
    /// there.
    fn read_kept(&mut self) {
        if self.kept.is_empty() {
            return;
        }
        let i = self.random.below(self.kept.len() as u64) as usize;
        let (nth, mapped) = (self.kept[i].nth, self.random.below(2) == 0);
        let shortest = self.files[nth].iter().map(Vec::len).min().unwrap().min(self.kept[i].map.len);
        let pages = shortest / PAGE;
        if pages == 0 {
            return;
        }
        let first = self.random.below(pages as u64) as usize;
        let count = 1 + self.random.below((pages - first) as u64) as usize;
        self.log.push(format!("{count} pages from {first} of f{nth} by an old descriptor, mapped {mapped}"));
        let mut got = vec![0; count * PAGE];
        if mapped {
            got = self.kept[i].map.read(first * PAGE, got.len());
        } else {
            self.kept[i].file.read_exact_at(&mut got, (first * PAGE) as u64).unwrap();
        }
        self.compare(nth, first * PAGE, &got);
    }

    fn keep(&mut self, nth: usize) {
        let file = self.read(nth);
        let len = self.now(nth).len();
        if len > 0 {
            let map = Map::new(&file, len, libc::PROT_READ);
            self.kept.push(Kept { file, map, nth });
        }
        if self.kept.len() > 6 {
            self.kept.remove(0);
        }
    }

    fn new_program(&mut self, mnt: &Path) {
        self.program += 1;
        let script =
            format!("#!/bin/sh\necho {}\nexit 0\n{}\n", self.program, "#".repeat(self.program as usize));
        std::fs::write(mnt.join("program"), script).unwrap();
    }

    fn execute(&mut self) {
        let said = run(&mut Command::new(self.mnt.join("program"))).ok();
        assert_eq!(said.out.trim(), self.program.to_string());
    }

    fn drop_pages(&mut self, nth: usize) {
        let file = File::open(self.mnt.join(format!("f{nth}"))).unwrap();
        self.opened(nth);
        // SAFETY: a call about an open descriptor.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }

    fn evict(&mut self, nth: usize) {
        let file = self.mnt.join(format!("f{nth}"));
        self.log.push(format!("f{nth} evicted"));
        let _ = hither(&["cache", "evict", file.to_str().unwrap()]);
    }

    fn step(&mut self) {
        let nth = self.random.below(FILES as u64) as usize;
        let (mnt, other) = (self.mnt.clone(), self.other.clone());
        match self.random.below(20) {
            0 => {
                let new = self.change(&mnt, nth);
                self.files[nth] = vec![new];
            }
            1 => {
                let new = self.change(&other, nth);
                self.files[nth].push(new);
            }
            2 if !self.now(nth).is_empty() => self.store(nth),
            3 => self.new_program(&mnt),
            4 => self.new_program(&other),
            5 | 6 => self.execute(),
            7 | 8 => self.keep(nth),
            9 => self.evict(nth),
            10 | 11 => self.drop_pages(nth),
            12..=15 => self.read_kept(),
            _ => drop(self.read(nth)),
        }
    }
}

/// Promise: 5, 7, 11a
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn cached_reads_follow_close_to_open() {
    let ganesha = Ganesha::start();
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let seed = number("HITHER_SEED").unwrap_or_else(rand::random);
    let steps = number("HITHER_STEPS").unwrap_or(600);
    println!("HITHER_SEED={seed}");
    for version in ["4.2", "3"] {
        let (mnt, other) = (ganesha.mnt(), ganesha.dir.path().join("other"));
        let _ = std::fs::create_dir(&other);
        let _mounts = Mounts([mnt.clone(), other.clone()]);
        let shown = mnt.to_str().unwrap();
        let cache = ganesha.dir.path().join(format!("cache{version}"));
        ganesha.mount_with_cache(&format!("vers={version},cache={},cache-age=0", cache.display()), &mnt);
        ganesha.mount(&format!("vers={version}"), &other).ok();
        let mut world = World {
            mnt: mnt.clone(),
            other: other.clone(),
            files: Vec::new(),
            program: 0,
            kept: Vec::new(),
            random: Random(seed),
            changes: 0,
            log: Vec::new(),
        };
        for nth in 0..FILES {
            let len = world.some_len();
            let data = world.bytes(len);
            std::fs::write(mnt.join(format!("f{nth}")), &data).unwrap();
            world.files.push(vec![data]);
        }
        world.new_program(&mnt);
        std::fs::set_permissions(mnt.join("program"), std::fs::Permissions::from_mode(0o755)).unwrap();
        for _ in 0..steps {
            world.step();
        }
        let slices = || {
            let said = hither(&["cache", "status", "--json", shown]).ok();
            let status: serde_json::Value = serde_json::from_str(&said.out).unwrap();
            status["counters"]["slices"].as_u64().unwrap()
        };
        // The history may have evicted every file before it was read again. The bytes of a small
        // file come with its open, so all files are tried.
        let before = slices();
        wait_for("a read from the data file", 60, || {
            (0..FILES).for_each(|nth| {
                world.drop_pages(nth);
                drop(world.read(nth));
            });
            slices() > before
        });
        println!("vers={version}: {} reads from data files", slices());
        world.kept.clear();
        readers_see_whole_versions(&mut world);
        for mnt in [&mnt, &other] {
            run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
        }
    }
}

/// While files are read by several programs, and their pages dropped, this mount writes and the
/// cache evicts: a reader finds bytes of the versions from the one before its open to the newest.
fn readers_see_whole_versions(world: &mut World) {
    const LEN: usize = 300_000;
    let contents = |number: u64| -> Vec<u8> {
        (0..LEN as u64 / 8).flat_map(|i| (number << 32 | mix(i) & 0xffff_ffff).to_le_bytes()).collect()
    };
    let path = world.mnt.join("f0");
    std::fs::write(&path, contents(1)).unwrap();
    let over = AtomicBool::new(false);
    let newest = std::sync::atomic::AtomicU64::new(1);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut got = vec![0; LEN / 8 * 8];
                while !over.load(Relaxed) {
                    let before = newest.load(Relaxed);
                    let file = File::open(&path).unwrap();
                    // SAFETY: a call about an open descriptor.
                    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
                    file.read_exact_at(&mut got, 0).unwrap();
                    // The write that is under way may show.
                    let after = newest.load(Relaxed) + 1;
                    for (i, word) in got.chunks(8).enumerate() {
                        let word = u64::from_le_bytes(word.try_into().unwrap());
                        let number = word >> 32;
                        assert_eq!(word & 0xffff_ffff, mix(i as u64) & 0xffff_ffff, "word {i}");
                        assert!((before..=after).contains(&number), "{number}, not {before} to {after}");
                    }
                }
            });
        }
        for number in 2..60 {
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&contents(number), 0).unwrap();
            drop(file);
            newest.store(number, Relaxed);
            if number % 5 == 0 {
                world.evict(0);
            }
            common::pause(50);
        }
        over.store(true, Relaxed);
    });
}
