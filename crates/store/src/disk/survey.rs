//! What is in a cache directory, for tools that run beside the daemons. Blocks.

use super::home::{self, DiskError, Home};
use super::shelf::{Limits, Shelf};
use super::stats::Counters;
use super::{DiskCheck, DiskEntry, check_one, entry_told, io};
use hither_vfs::Env;
use std::path::Path;
use std::sync::Arc;

/// A part of a cache directory: what is kept of one identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskPart {
    /// The identity that its mounts gave.
    pub identity: Vec<u8>,
    /// A daemon uses it: it has to be asked for the rest.
    pub in_use: bool,
    /// What is kept.
    pub entries: Vec<DiskEntry>,
    /// What the checksums say, when that was asked for.
    pub check: Option<DiskCheck>,
}

/// Looks through a cache directory. With `check`, everything is compared with its checksum and what differs is dropped; otherwise
/// nothing is changed.
///
/// # Errors
/// It is no cache directory, or cannot be read: a line for the user.
pub fn survey(dir: &Path, check: bool, env: &Env) -> Result<Vec<DiskPart>, DiskError> {
    let mut parts = Vec::new();
    for identity in home::identities(dir)? {
        let mut part = DiskPart { identity, in_use: false, entries: Vec::new(), check: None };
        match Home::open(dir, &part.identity, env)? {
            None => part.in_use = true,
            Some(home) => look(dir, &home, check, env, &mut part)?,
        }
        parts.push(part);
    }
    Ok(parts)
}

fn look(dir: &Path, home: &Home, check: bool, env: &Env, part: &mut DiskPart) -> Result<(), DiskError> {
    let limits = Limits { soft_bytes: u64::MAX, hard_bytes: u64::MAX, min_free_bytes: 0, read_only: !check };
    let io = Arc::new(io::RealIo { dir: home.dir.clone() });
    let shelf = Shelf::open(io, limits, Arc::new(Counters::default()), env.random.clone());
    let shelf = shelf.map_err(|e| DiskError::unusable(dir, &e))?;
    if check {
        let mut report = DiskCheck::default();
        shelf.keys().into_iter().for_each(|key| report.add(check_one(&shelf, key)));
        shelf.empty_trash();
        part.check = Some(report);
    }
    part.entries = shelf
        .keys()
        .into_iter()
        .filter_map(|key| shelf.look(key))
        .map(|(e, _, t)| entry_told(&e, t))
        .collect();
    Ok(())
}
