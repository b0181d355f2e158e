//! Maps local user and group numbers to NFSv4 owner strings and back (RFC 8881 section 5.9).
//!
//! A decimal string maps to its number. Any other string is `name@domain`. A name of the local
//! domain is looked up in the machine's user database. A string without a mapping becomes
//! [`NOBODY`]. Look-ups may block for seconds (LDAP, NIS) and therefore run on blocking threads.
//! Answers are kept for a time, absences too.
//!
//! Numbers are sent as decimal strings, as the Linux client does with AUTH_SYS
//! (`nfs4_disable_idmapping=Y`). After the server refuses a number with BADOWNER, names are sent
//! instead.

mod domain;
#[cfg(test)]
mod tests;

pub use domain::local_domain;

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Number of an owner that this machine does not know (`nobody`, `nogroup` on Debian).
pub const NOBODY: u32 = 65_534;

/// Time for which the answer of a look-up is used, as in idmapd by default.
const TTL: Duration = Duration::from_secs(600);
/// Most entries of each of the two maps. A full map is cleared.
const NAMES_MAX: usize = 16_384;

/// Kind of owner: user or group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Who {
    /// `owner`.
    User,
    /// `owner_group`.
    Group,
}

/// The machine's user database.
pub trait Directory: Send + Sync + 'static {
    /// Number of a local name. May block.
    fn id(&self, who: Who, name: &str) -> Option<u32>;
    /// Local name of a number. May block.
    fn name(&self, who: Who, id: u32) -> Option<String>;
}

/// `getpwnam_r` and relatives, through the C library's name service switch.
#[derive(Debug, Clone, Copy, Default)]
pub struct System;

impl Directory for System {
    fn id(&self, who: Who, name: &str) -> Option<u32> {
        match who {
            Who::User => nix::unistd::User::from_name(name).ok()?.map(|u| u.uid.as_raw()),
            Who::Group => nix::unistd::Group::from_name(name).ok()?.map(|g| g.gid.as_raw()),
        }
    }

    fn name(&self, who: Who, id: u32) -> Option<String> {
        match who {
            Who::User => nix::unistd::User::from_uid(id.into()).ok()?.map(|u| u.name),
            Who::Group => nix::unistd::Group::from_gid(id.into()).ok()?.map(|g| g.name),
        }
    }
}

/// The mapping of one mount.
pub struct IdMap {
    domain: String,
    directory: Arc<dyn Directory>,
    send_names: AtomicBool,
    ids: Memory<(Who, Bytes), Option<u32>>,
    names: Memory<(Who, u32), Option<String>>,
}

impl IdMap {
    /// A mapping for `domain`, with the machine's user database.
    pub fn new(domain: String) -> Self {
        Self::with_directory(domain, Arc::new(System))
    }

    /// A mapping with another user database.
    pub fn with_directory(domain: String, directory: Arc<dyn Directory>) -> Self {
        Self {
            domain,
            directory,
            send_names: AtomicBool::new(false),
            ids: Memory::default(),
            names: Memory::default(),
        }
    }

    /// The number of an owner string, when no look-up is needed. The string is a number, foreign,
    /// or remembered.
    pub fn known_id(&self, who: Who, owner: &Bytes) -> Option<u32> {
        match parse(owner, &self.domain) {
            Owner::Number(n) => Some(n),
            Owner::Foreign => Some(NOBODY),
            Owner::Local(_) => self.ids.recall(&(who, owner.clone())).map(|id| id.unwrap_or(NOBODY)),
        }
    }

    /// The number of an owner string; [`NOBODY`] without a mapping.
    pub async fn id(&self, who: Who, owner: &Bytes) -> u32 {
        if let Some(id) = self.known_id(who, owner) {
            return id;
        }
        let Owner::Local(name) = parse(owner, &self.domain) else { return NOBODY };
        let (directory, name) = (self.directory.clone(), name.to_owned());
        let id = tokio::task::spawn_blocking(move || directory.id(who, &name)).await.ok().flatten();
        // A copy: the owner is usually a slice of a whole received message.
        self.ids.remember((who, Bytes::copy_from_slice(owner)), id);
        id.unwrap_or(NOBODY)
    }

    /// The owner string to send for a number.
    pub async fn owner(&self, who: Who, id: u32) -> Bytes {
        if !self.send_names.load(Ordering::Relaxed) {
            return id.to_string().into();
        }
        let name = match self.names.recall(&(who, id)) {
            Some(name) => name,
            None => {
                let directory = self.directory.clone();
                let name = tokio::task::spawn_blocking(move || directory.name(who, id)).await.ok().flatten();
                self.names.remember((who, id), name.clone());
                name
            }
        };
        match name {
            Some(name) => format!("{name}@{}", self.domain).into(),
            None => id.to_string().into(),
        }
    }

    /// Sends names from now on, because the server answered BADOWNER. True at the first call, when
    /// a retry may succeed.
    pub fn bad_owner(&self) -> bool {
        !self.send_names.swap(true, Ordering::Relaxed)
    }
}

impl std::fmt::Debug for IdMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdMap").field("domain", &self.domain).finish_non_exhaustive()
    }
}

/// Kind of an owner string.
#[derive(Debug, PartialEq, Eq)]
enum Owner<'a> {
    Number(u32),
    /// A name of the local domain.
    Local(&'a str),
    /// An owner of another domain, unknown to this machine.
    Foreign,
}

fn parse<'a>(owner: &'a [u8], domain: &str) -> Owner<'a> {
    // A number does not begin with 0 (RFC 7530 section 5.9). The number -1 is refused, because
    // chown(2) leaves the owner unchanged for -1.
    let is_number =
        owner.iter().all(u8::is_ascii_digit) && (owner.len() == 1 || owner.first() != Some(&b'0'));
    let Ok(owner) = std::str::from_utf8(owner) else { return Owner::Foreign };
    if is_number {
        return owner.parse().ok().filter(|n| *n != u32::MAX).map_or(Owner::Foreign, Owner::Number);
    }
    match owner.rsplit_once('@') {
        Some((name, d)) if d.eq_ignore_ascii_case(domain) && !name.is_empty() && !name.contains('\0') => {
            Owner::Local(name)
        }
        _ => Owner::Foreign,
    }
}

/// A bounded map whose entries expire after [`TTL`].
struct Memory<K, V> {
    entries: Mutex<HashMap<K, (V, Instant)>>,
}

impl<K, V> Default for Memory<K, V> {
    fn default() -> Self {
        Self { entries: Mutex::default() }
    }
}

impl<K: Eq + Hash, V: Clone> Memory<K, V> {
    fn recall(&self, key: &K) -> Option<V> {
        let entries = self.entries.lock();
        entries.get(key).filter(|(_, since)| since.elapsed() < TTL).map(|(v, _)| v.clone())
    }

    fn remember(&self, key: K, value: V) {
        let mut entries = self.entries.lock();
        if entries.len() >= NAMES_MAX {
            entries.clear();
        }
        entries.insert(key, (value, Instant::now()));
    }
}
