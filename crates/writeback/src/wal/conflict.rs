//! Bytes that this client could not write to the server, kept under a name until the user decides.
//!
//! The module does not know why the bytes were refused. A conflict is a directory with the files
//! `about.json` and `data`. `data` has the bytes at their offsets and holes elsewhere. A rename
//! makes the complete, durable conflict visible.

use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

/// Bytes compared at a time.
const STEP_BYTES: u64 = 1 << 20;
/// The most conflicts that may share a name. A number tells them apart.
const NAMES_TRIED: u32 = 1 << 16;

/// The description of a conflict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Version of this description: 1.
    pub version: u32,
    /// The mounted source.
    pub source: String,
    /// Last known path below the mount. Empty when the path was never known.
    pub path: String,
    /// Number of the file at the server.
    pub fileid: u64,
    /// The filehandle, hexadecimal.
    pub filehandle: String,
    /// Why the bytes were not written.
    pub why: String,
    /// The time at which the first of the bytes were written, in seconds since 1970.
    pub first_s: i64,
    /// The time of the last write, in seconds since 1970.
    pub last_s: i64,
    /// The kept ranges, in ascending order, without overlap.
    pub ranges: Vec<Range>,
}

/// A range of kept bytes, with the credentials of its writer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// First byte.
    pub start_bytes: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl About {
    /// The sum of all ranges, in bytes.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|r| r.len_bytes).sum()
    }

    /// The filehandle as bytes. `None` when the text is not hexadecimal.
    pub fn handle(&self) -> Option<Vec<u8>> {
        let digits = self.filehandle.as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        if !digits.len().is_multiple_of(2) {
            return None;
        }
        digits.chunks_exact(2).map(byte).collect()
    }
}

/// A directory of conflicts.
#[derive(Debug, Clone)]
pub struct Conflicts {
    dir: PathBuf,
}

impl Conflicts {
    /// The conflicts in a journal's directory. The directory need not exist.
    pub fn of(journal: &Path) -> Self {
        Self { dir: journal.join("conflicts") }
    }

    /// Keeps bytes under `name` and returns the name that was used. When another conflict has that
    /// name, a number is added. `fill` writes the bytes to the file that it receives. A conflict
    /// with the same bytes of the same file, from an earlier crash, is kept once.
    pub fn keep(
        &self,
        name: &str,
        about: &About,
        fill: impl FnOnce(&File) -> io::Result<()>,
    ) -> io::Result<String> {
        let private = |dir: &Path| DirBuilder::new().recursive(true).mode(0o700).create(dir);
        private(&self.dir)?;
        let new = self.dir.join(format!(".new-{name}"));
        remove_tree(&new)?;
        private(&new)?;
        let data = File::options().create_new(true).read(true).write(true).open(new.join("data"))?;
        fill(&data)?;
        data.sync_all()?;
        let text = serde_json::to_vec_pretty(about).map_err(io::Error::other)?;
        let file = File::options().create_new(true).write(true).open(new.join("about.json"))?;
        file.write_all_at(&text, 0)?;
        file.sync_all()?;
        File::open(&new)?.sync_all()?;
        for n in 0..NAMES_TRIED {
            let name = if n == 0 { name.to_string() } else { format!("{name}-{n}") };
            let place = self.dir.join(&name);
            match std::fs::symlink_metadata(&place) {
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    std::fs::rename(&new, &place)?;
                    File::open(&self.dir)?.sync_all()?;
                    return Ok(name);
                }
                Err(e) => return Err(e),
                Ok(_) if self.is_same(&name, about, &data) => {
                    remove_tree(&new)?;
                    File::open(&self.dir)?.sync_all()?;
                    return Ok(name);
                }
                Ok(_) => {}
            }
        }
        Err(io::Error::other(format!("too many conflicts have the name {name}")))
    }

    /// Whether the conflict `name` has the same bytes of the same file.
    fn is_same(&self, name: &str, about: &About, data: &File) -> bool {
        let Ok(other) = self.about(name) else { return false };
        let of = |a: &About| (a.filehandle.clone(), a.first_s, a.last_s, a.ranges.clone());
        let Ok(there) = self.data(name) else { return false };
        of(&other) == of(about) && about.ranges.iter().all(|r| same_bytes(&there, data, r).unwrap_or(false))
    }

    /// All conflicts, sorted by name. A conflict may have an unreadable description.
    ///
    /// # Errors
    /// Those of reading the directory.
    pub fn list(&self) -> io::Result<Vec<(String, io::Result<About>)>> {
        let mut all = Vec::new();
        let entries = match std::fs::read_dir(&self.dir) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(all),
            entries => entries?,
        };
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') {
                let about = self.about(&name);
                all.push((name, about));
            }
        }
        all.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(all)
    }

    /// The number of conflicts.
    pub fn count(&self) -> u64 {
        let shown = |e: &io::Result<std::fs::DirEntry>| {
            e.as_ref().is_ok_and(|e| !e.file_name().to_string_lossy().starts_with('.'))
        };
        std::fs::read_dir(&self.dir).map_or(0, |all| all.filter(shown).count() as u64)
    }

    /// The description of a conflict.
    pub fn about(&self, name: &str) -> io::Result<About> {
        let text = std::fs::read(self.place(name)?.join("about.json"))?;
        serde_json::from_slice(&text).map_err(|e| io::Error::new(ErrorKind::InvalidData, e))
    }

    /// The directory of a conflict.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Whether there is a conflict of this name.
    pub fn has(&self, name: &str) -> bool {
        self.place(name).is_ok_and(|place| place.is_dir())
    }

    /// The bytes of a conflict, at their offsets.
    pub fn data(&self, name: &str) -> io::Result<File> {
        File::open(self.place(name)?.join("data"))
    }

    /// Removes a conflict.
    pub fn drop(&self, name: &str) -> io::Result<()> {
        let place = self.place(name)?;
        // The rename hides the conflict first, so that an interrupted removal leaves no partial
        // conflict.
        let going = self.dir.join(format!(".new-{name}"));
        remove_tree(&going)?;
        std::fs::rename(&place, &going)?;
        remove_tree(&going)?;
        File::open(&self.dir)?.sync_all()
    }

    fn place(&self, name: &str) -> io::Result<PathBuf> {
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            return Err(io::Error::new(ErrorKind::NotFound, "this is not the name of a conflict"));
        }
        Ok(self.dir.join(name))
    }
}

fn same_bytes(one: &File, other: &File, range: &Range) -> io::Result<bool> {
    let (mut at, end) = (range.start_bytes, range.start_bytes + range.len_bytes);
    while at < end {
        let step = (end - at).min(STEP_BYTES);
        let (mut a, mut b) = (vec![0; step as usize], vec![0; step as usize]);
        one.read_exact_at(&mut a, at)?;
        other.read_exact_at(&mut b, at)?;
        if a != b {
            return Ok(false);
        }
        at += step;
    }
    Ok(true)
}

fn remove_tree(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// A name of a path's last component and numbers that distinguish it from most other names.
pub fn name_of(path: &[u8], fileid: u64, first_s: i64, seq: u64) -> String {
    let last = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    let plain = |b: &u8| match b {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => char::from(*b),
        b'.' => '.',
        _ => '_',
    };
    let word: String = last.iter().take(64).map(plain).collect();
    let word = word.trim_start_matches('.');
    format!("{}-{fileid:x}-{first_s:x}-{seq:x}", if word.is_empty() { "file" } else { word })
}
