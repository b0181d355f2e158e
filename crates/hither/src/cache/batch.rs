//! Groups small files for `hither cache warm`, so that the daemon fetches many in one message.
//!
//! This module knows the mount of a file, its path below the mount point, and the mount's rules for
//! cached files. Files that the daemon does not fetch are returned, to be read through the mount.

use crate::control::locate::{self, Daemon};
use crate::control::{self, Ask, CacheAsk};
use std::collections::{BTreeMap, HashMap};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Longest file of a batch, in bytes. Longer files are read through the mount, with read-ahead.
const SMALL: u64 = 64 << 10;
/// Most files and most bytes of a batch.
const FILES: usize = 64;
const BYTES: u64 = 1 << 20;
/// Most bytes of the names in a batch. They are one request of the control socket.
const NAME_BYTES: usize = 16 << 10;

/// Small files of one mount.
#[derive(Debug)]
pub struct Batch {
    mount: Daemon,
    files: Vec<(PathBuf, String, u64)>,
    name_bytes: usize,
}

impl Batch {
    fn is_full_with(&self, name: &str, size: u64) -> bool {
        let bytes: u64 = self.files.iter().map(|(.., size)| size).sum();
        self.files.len() >= FILES || bytes + size > BYTES || self.name_bytes + name.len() > NAME_BYTES
    }

    /// Makes the daemon fetch the files. Returns the bytes of fetched files, and the files that
    /// were not fetched.
    pub fn bring(self) -> (Vec<u64>, Vec<PathBuf>) {
        let longest = self.files.iter().map(|(.., size)| *size).max().unwrap_or(0);
        let paths = self.files.iter().map(|(_, name, _)| name.clone()).collect();
        let ask = CacheAsk::Warm { paths, longest_bytes: u32::try_from(longest).unwrap_or(u32::MAX) };
        let answer = control::ask(&self.mount, Ask::Cache(ask)).unwrap_or_default();
        let (mut came, mut left) = (Vec::new(), Vec::new());
        for (i, (path, ..)) in self.files.into_iter().enumerate() {
            match answer[i].as_u64() {
                Some(bytes) => came.push(bytes),
                None => left.push(path),
            }
        }
        (came, left)
    }
}

/// Which files the disk cache of a mount keeps.
#[derive(Debug, Clone, Copy)]
struct Rules {
    age_s: u64,
    min_bytes: u64,
    max_bytes: u64,
}

/// A mount with its incomplete batch.
#[derive(Debug)]
struct Home {
    /// `None` without a disk cache in use.
    rules: Option<Rules>,
    batch: Batch,
}

impl Home {
    fn of(path: &Path) -> Option<Self> {
        let mount = locate::daemon(path).ok()?;
        let room = control::ask(&mount, Ask::Cache(CacheAsk::Room)).ok();
        let rules = room.and_then(|room| {
            let n = |name: &str| room[name].as_u64();
            Some(Rules {
                age_s: n("age_s")?,
                min_bytes: n("min_file_bytes")?,
                max_bytes: n("max_file_bytes")?,
            })
        });
        let batch = Batch { mount, files: Vec::new(), name_bytes: 0 };
        Some(Self { rules, batch })
    }
}

/// Incomplete batches, and files that the cache does not keep.
#[derive(Debug, Default)]
pub struct Batches {
    /// Mounts by device number; `None` if the device is not a mount of hither.
    homes: HashMap<u64, Option<Home>>,
    /// Number of files that are only read, by reason.
    unkept: BTreeMap<String, u64>,
}

impl Batches {
    /// Adds a small file. Returns a batch that became full. `Err` returns a file that must be read
    /// individually.
    pub fn add(&mut self, path: PathBuf, meta: &Metadata, now_s: i64) -> Result<Option<Batch>, PathBuf> {
        let home = self.homes.entry(meta.dev()).or_insert_with(|| Home::of(&path));
        let Some(Home { rules, batch }) = home else { return Err(path) };
        let size = meta.size();
        let why = match rules {
            _ if size == 0 => None,
            None => Some(format!("{} has no disk cache in use (mount -o cache)", batch.mount.dir)),
            Some(r) if now_s.saturating_sub(meta.ctime()) < i64::try_from(r.age_s).unwrap_or(i64::MAX) => {
                Some(format!("changed within the last {} s (cache-age)", r.age_s))
            }
            Some(r) if size < r.min_bytes || size > r.max_bytes => {
                Some("shorter or longer than the cache keeps (cache-min-file, cache-max-file)".into())
            }
            Some(_) => None,
        };
        if let Some(why) = why {
            *self.unkept.entry(why).or_default() += 1;
            return Err(path);
        }
        if !(1..=SMALL).contains(&size) {
            return Err(path);
        }
        let Some(name) = below(&path, &batch.mount.dir) else { return Err(path) };
        let mut full = None;
        if batch.is_full_with(&name, size) {
            let next = Batch { mount: batch.mount.clone(), files: Vec::new(), name_bytes: 0 };
            full = Some(std::mem::replace(batch, next));
        }
        batch.name_bytes += name.len();
        batch.files.push((path, name, size));
        Ok(full.filter(|batch| !batch.files.is_empty()))
    }

    /// The remaining batches, and the number of files that are only read, by reason.
    pub fn rest(self) -> (Vec<Batch>, BTreeMap<String, u64>) {
        let left = self.homes.into_values().flatten().map(|home| home.batch);
        (left.filter(|batch| !batch.files.is_empty()).collect(), self.unkept)
    }
}

/// The path below a mount point. A request can hold only UTF-8 names without control characters.
fn below(path: &Path, dir: &str) -> Option<String> {
    let whole = path.is_absolute().then(|| path.to_path_buf());
    let whole = whole.or_else(|| std::path::absolute(path).ok())?;
    let name = whole.strip_prefix(dir).ok()?.to_str()?;
    let plain = !name.chars().any(|c| c.is_control() || c == '"' || c == '\\');
    (plain && !name.split('/').any(|part| part == "..")).then(|| name.to_string())
}
