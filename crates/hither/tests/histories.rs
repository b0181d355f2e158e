//! Random histories of two clients of a real server, checked against what close-to-open promises: whoever opens a file
//! reads what the last one to close it left, under the name that it has at the server.
//!
//! It needs root and nfs-ganesha: `cargo test -p hither -- --include-ignored` (`make test` does). `HITHER_SEED` repeats a history,
//! `HITHER_STEPS` makes it longer.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::{Ganesha, HITHER, run};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// SplitMix64: a history is its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % n
    }
}

struct World {
    mounts: [PathBuf; 2],
    /// What each file holds.
    files: BTreeMap<String, Vec<u8>>,
    random: Random,
    /// Every write leaves another length: a server that stamps changes by a slow clock shows them at least so.
    written: usize,
    log: Vec<String>,
}

impl Drop for World {
    /// After a failed test: nothing of the fixture can be removed while its mounts wait for its server.
    fn drop(&mut self) {
        for mnt in &self.mounts {
            let _ = Command::new("umount").arg("-l").arg(mnt).stderr(std::process::Stdio::null()).status();
        }
    }
}

impl World {
    fn some_file(&mut self) -> String {
        let n = self.random.below(self.files.len() as u64) as usize;
        self.files.keys().nth(n).unwrap().clone()
    }

    fn fresh(&mut self) -> Vec<u8> {
        self.written += 1;
        let len = 1 + self.written + 4096 * self.random.below(4) as usize;
        vec![b'a' + (self.written % 26) as u8; len]
    }

    fn step(&mut self) {
        let who = self.random.below(2) as usize;
        let mnt = self.mounts[who].clone();
        let name = self.some_file();
        let path = mnt.join(&name);
        let what = self.random.below(12);
        self.log.push(format!("{what} {name} by {who}"));
        match what {
            0 | 1 => {
                let data = self.fresh();
                std::fs::write(&path, &data).unwrap();
                self.files.insert(name, data);
            }
            2 => {
                let data = self.fresh();
                OpenOptions::new().append(true).open(&path).unwrap().write_all(&data).unwrap();
                self.files.get_mut(&name).unwrap().extend(data);
            }
            3 => self.overwrite(&path, &name),
            4 => {
                let to = self.files[&name].len() / 2;
                OpenOptions::new().write(true).open(&path).unwrap().set_len(to as u64).unwrap();
                self.files.get_mut(&name).unwrap().truncate(to);
            }
            5 => {
                // As editors save.
                let (data, new) = (self.fresh(), mnt.join("new"));
                std::fs::write(&new, &data).unwrap();
                std::fs::rename(&new, &path).unwrap();
                self.files.insert(name, data);
            }
            6 => {
                // As logs rotate: two names change places.
                let other = self.some_file();
                let spare = mnt.join("spare");
                if other != name {
                    std::fs::rename(&path, &spare).unwrap();
                    std::fs::rename(mnt.join(&other), &path).unwrap();
                    std::fs::rename(&spare, mnt.join(&other)).unwrap();
                    let (a, b) = (self.files[&name].clone(), self.files[&other].clone());
                    self.files.insert(name, b);
                    self.files.insert(other, a);
                }
            }
            _ => self.check(who, &name),
        }
    }

    fn overwrite(&mut self, path: &Path, name: &str) {
        let data = self.fresh();
        let at = self.random.below(self.files[name].len() as u64 + 1) as usize;
        let mut file = OpenOptions::new().write(true).open(path).unwrap();
        file.seek(SeekFrom::Start(at as u64)).unwrap();
        file.write_all(&data).unwrap();
        let held = self.files.get_mut(name).unwrap();
        held.resize(held.len().max(at + data.len()), 0);
        held[at..at + data.len()].copy_from_slice(&data);
    }

    fn check(&mut self, who: usize, name: &str) {
        let mut got = Vec::new();
        let read = File::open(self.mounts[who].join(name)).and_then(|mut f| f.read_to_end(&mut got));
        let want = &self.files[name];
        let right = read.is_ok() && got == *want;
        assert!(
            right,
            "{name} by {who}: {read:?}, {} bytes {:?} instead of {} bytes {:?}, after {:#?}",
            got.len(),
            got.first().map(|b| *b as char),
            want.len(),
            want.first().map(|b| *b as char),
            &self.log[self.log.len().saturating_sub(20)..]
        );
    }
}

#[test]
#[ignore = "needs root and nfs-ganesha"]
fn whoever_opens_sees_what_was_closed() {
    let ganesha = Ganesha::start();
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let seed = number("HITHER_SEED").unwrap_or_else(rand::random);
    let steps = number("HITHER_STEPS").unwrap_or(800);
    println!("HITHER_SEED={seed}");
    for (version, cached) in [("4.2", false), ("3", false), ("4.2", true), ("3", true)] {
        let mounts = [ganesha.mnt(), ganesha.dir.path().join("mnt2")];
        let _ = std::fs::create_dir(&mounts[1]);
        for (i, mnt) in mounts.iter().enumerate() {
            let cache = ganesha.dir.path().join(format!("cache{i}"));
            let cache = format!(",cache={},cache-age=0", cache.display());
            ganesha.mount(&format!("vers={version}{}", if cached { &cache } else { "" }), mnt).ok();
        }
        let mut world =
            World { mounts, files: BTreeMap::new(), random: Random(seed), written: 0, log: Vec::new() };
        for n in 0..6 {
            let (name, data) = (format!("f{n}"), world.fresh());
            std::fs::write(world.mounts[0].join(&name), &data).unwrap();
            world.files.insert(name, data);
        }
        for _ in 0..steps {
            world.step();
        }
        for mnt in &world.mounts {
            run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
        }
    }
}
