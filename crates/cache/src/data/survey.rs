//! Surveys a cache directory, for tools that run beside the daemons. All calls block.

use super::home::{self, DataCacheError, Home};
use super::io;
use super::saved;
use super::shelf::{Limits, Shelf};
use super::stats::Counters;
use super::tools::{DataCacheCheck, DataCacheEntry, check_one, told};
use super::total;
use hither_vfs::Env;
use std::path::Path;
use std::sync::Arc;

/// A part of a cache directory: the files of one identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataCachePart {
    /// The identity given by its mounts.
    pub identity: Vec<u8>,
    /// A daemon uses the part; the other fields must be requested from that daemon.
    pub in_use: bool,
    /// The cached files.
    pub entries: Vec<DataCacheEntry>,
    /// Result of the comparison with the checksums, when it was requested.
    pub check: Option<DataCacheCheck>,
}

/// Surveys a cache directory. With `check`, compares all blocks with their checksums and drops
/// entries that differ; otherwise changes nothing.
///
/// # Errors
/// The directory is no cache directory, or cannot be read: a line for the user.
pub fn survey(dir: &Path, check: bool, env: &Env) -> Result<Vec<DataCachePart>, DataCacheError> {
    let mut parts = Vec::new();
    for identity in home::identities(dir)? {
        let mut part = DataCachePart { identity, in_use: false, entries: Vec::new(), check: None };
        match Home::open(dir, &part.identity, env)? {
            None => part.in_use = true,
            Some(home) => look(dir, &home, check, env, &mut part)?,
        }
        parts.push(part);
    }
    Ok(parts)
}

/// Announces the size of the part to the daemons that share the directory.
fn say(home: &Home, shelf: &Shelf) {
    if !shelf.limits.read_only {
        let _ = total::announce(&home.lock, shelf.size().1, false);
    }
}

/// Limits without eviction. The policy is that of the saved index, so that its records of use
/// survive.
fn limits(io: &dyn io::Io, read_only: bool) -> Limits {
    let (soft_bytes, hard_bytes, min_free_bytes) = (u64::MAX, u64::MAX, 0);
    Limits {
        soft_bytes,
        hard_bytes,
        min_free_bytes,
        policy: saved::policy(io).unwrap_or_default(),
        read_only,
    }
}

fn look(
    dir: &Path,
    home: &Home,
    check: bool,
    env: &Env,
    part: &mut DataCachePart,
) -> Result<(), DataCacheError> {
    let io = Arc::new(io::RealIo { dir: home.dir.clone() });
    let limits = limits(&*io, !check);
    if check {
        // The check scans all files instead of the saved index.
        saved::invalidate(&*io).map_err(|e| DataCacheError::unusable(dir, &e))?;
    }
    let shelf = Shelf::open(io, limits, Arc::new(Counters::default()), env.random.clone());
    let shelf = shelf.map_err(|e| DataCacheError::unusable(dir, &e))?;
    shelf.set_pins(home::read_pins(&home.dir));
    if check {
        let mut report = DataCacheCheck::default();
        shelf.keys().into_iter().for_each(|key| report.add(check_one(&shelf, key)));
        part.check = Some(report);
    }
    part.entries = shelf
        .keys()
        .into_iter()
        .filter_map(|key| shelf.look(key))
        .map(|(e, _, t)| told(&shelf, &e, t))
        .collect();
    shelf.save();
    say(home, &shelf);
    Ok(())
}

/// Drops all entries that are not pinned, from the parts without a daemon. Returns the number of
/// dropped entries, and of parts in use.
///
/// # Errors
/// The directory is no cache directory, or cannot be read: a line for the user.
pub fn evict_all(dir: &Path, env: &Env) -> Result<(u64, u64), DataCacheError> {
    let (mut gone, mut in_use) = (0, 0);
    for identity in home::identities(dir)? {
        let Some(home) = Home::open(dir, &identity, env)? else {
            in_use += 1;
            continue;
        };
        let io = Arc::new(io::RealIo { dir: home.dir.clone() });
        let limits = limits(&*io, false);
        let shelf = Shelf::open(io, limits, Arc::new(Counters::default()), env.random.clone());
        let shelf = shelf.map_err(|e| DataCacheError::unusable(dir, &e))?;
        shelf.set_pins(home::read_pins(&home.dir));
        let keys = shelf.keys().into_iter();
        gone += keys.filter(|key| !shelf.is_pinned(*key) && shelf.forget(*key, None)).count() as u64;
        shelf.save();
        say(&home, &shelf);
    }
    Ok((gone, in_use))
}
