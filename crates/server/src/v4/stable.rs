//! State of NFSv4 that survives restarts: the server's own name, and the names of clients that may
//! reclaim (RFC 8881 section 8.4.2.1).
//!
//! The module knows nothing of sessions. A client's record is a file with the client's own name as
//! its content, and with a checksum of that as its file name. The record is on stable storage
//! before RECLAIM_COMPLETE is answered. Its removal is on stable storage before another client gets
//! conflicting state. Without a directory there are no records, and clients lose their state in a
//! restart.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use twox_hash::XxHash3_64;

/// Longest name of a client, in bytes: `NFS4_OPAQUE_LIMIT`, and its transport.
const OWNER_MAX_BYTES: u64 = 1024 + 512;
/// Most records to read.
const RECORDS_MAX: usize = 65_536;

/// The durable mark that files are delegated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delegated {
    /// The longest time for which clients rely on a delegation without contact to the server.
    pub believed: Duration,
    /// Some clients may delay writes.
    pub writing: bool,
}

/// The records of one server.
#[derive(Debug, Clone)]
pub(crate) struct Stable {
    dir: Option<Arc<Path>>,
}

impl Stable {
    /// Opens the directory, and creates it when it is missing. Also returns the names of the
    /// clients that held state at the end of the last run.
    pub fn open(dir: Option<&Path>) -> io::Result<(Self, HashSet<Bytes>)> {
        let Some(dir) = dir else { return Ok((Self { dir: None }, HashSet::new())) };
        let clients = dir.join("clients");
        fs::create_dir_all(&clients)?;
        let mut owners = HashSet::new();
        for entry in fs::read_dir(&clients)?.take(RECORDS_MAX) {
            let path = entry?.path();
            if path.extension().is_some() {
                // An incomplete file from the end of the last run.
                let _ = fs::remove_file(&path);
                continue;
            }
            let mut owner = Vec::new();
            File::open(&path)?.take(OWNER_MAX_BYTES).read_to_end(&mut owner)?;
            if file_name(&owner)
                == path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
            {
                owners.insert(owner.into());
            } else {
                tracing::warn!("{}: this record of a client is damaged and is ignored", path.display());
            }
        }
        Ok((Self { dir: Some(clients.into()) }, owners))
    }

    /// The server's name. It stays the same after a restart and differs from all other servers'
    /// names.
    pub fn name(dir: Option<&Path>, random: impl Fn() -> u64) -> io::Result<Bytes> {
        let fresh = || format!("hither-{:016x}{:016x}", random(), random());
        let Some(dir) = dir else { return Ok(fresh().into()) };
        fs::create_dir_all(dir)?;
        let path = dir.join("server-name");
        match fs::read(&path) {
            Ok(name) if !name.is_empty() && name.len() <= 128 => Ok(name.into()),
            Ok(_) => {
                write_durably(dir, &path, fresh().as_bytes()).and_then(|()| fs::read(&path)).map(Bytes::from)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                write_durably(dir, &path, fresh().as_bytes()).and_then(|()| fs::read(&path)).map(Bytes::from)
            }
            Err(e) => Err(e),
        }
    }

    /// The mark of the last run.
    pub fn delegated(&self) -> io::Result<Option<Delegated>> {
        let Some(path) = self.marker() else { return Ok(None) };
        match fs::read_to_string(&path) {
            // A mark that cannot be read counts as the worst case.
            Ok(text) => {
                let mut words = text.split_whitespace();
                let seconds = words.next().and_then(|w| w.parse().ok());
                let writing = seconds.is_none() || words.next().is_some();
                Ok(Some(Delegated { believed: Duration::from_secs(seconds.unwrap_or(3600)), writing }))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Writes the mark that files are delegated.
    pub async fn mark_delegated(&self, mark: Delegated) -> io::Result<()> {
        let Some(path) = self.marker() else { return Ok(()) };
        let work = move || {
            let dir = path.parent().unwrap_or(Path::new("/"));
            let how = if mark.writing { " write" } else { "" };
            write_durably(dir, &path, format!("{}{how}", mark.believed.as_secs()).as_bytes())
        };
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
    }

    fn marker(&self) -> Option<PathBuf> {
        self.dir.as_ref().map(|clients| clients.with_file_name("delegations"))
    }

    /// Writes the record of a client that may hold state.
    pub async fn remember(&self, owner: Bytes) -> io::Result<()> {
        let Some(dir) = self.dir.clone() else { return Ok(()) };
        let work = move || {
            let path = dir.join(file_name(&owner));
            if path.exists() { Ok(()) } else { write_durably(&dir, &path, &owner) }
        };
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
    }

    /// Removes the records of clients. The removal is on stable storage when the call returns.
    /// Until then no other client gets state that conflicts with theirs (RFC 8881 section 8.4.2.1):
    /// after a crash they would reclaim over it. If the disk fails, the records may stay.
    pub async fn forget(&self, owners: Vec<Bytes>) {
        if self.dir.is_none() || owners.is_empty() {
            return;
        }
        let stable = self.clone();
        let work = move || {
            owners.iter().for_each(|owner| stable.forget_now(owner));
            stable.sync()
        };
        let done = tokio::task::spawn_blocking(work).await.map_err(io::Error::other);
        if let Err(e) = done.flatten() {
            tracing::error!(
                "records of clients that ended may come back after a crash of this machine; check the disk of the state directory: {e}"
            );
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.dir.as_ref().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    }

    /// Removes the record of a client that has nothing to reclaim. A crash of the machine may undo
    /// this.
    pub fn forget_now(&self, owner: &[u8]) {
        let Some(dir) = &self.dir else { return };
        let path = dir.join(file_name(owner));
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                tracing::error!(
                    "{}: the record of a client cannot be removed, so it may reclaim ended state after the next restart; remove the file: {e}",
                    path.display()
                );
            }
            _ => {}
        }
    }
}

fn file_name(owner: &[u8]) -> String {
    format!("{:016x}{:016x}", XxHash3_64::oneshot(owner), XxHash3_64::oneshot_with_seed(1, owner))
}

/// Writes a file atomically and durably: after a crash or power loss it has the old or the new
/// content. Concurrent writers take turns.
pub(crate) fn write_durably(dir: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    static WRITING: Mutex<()> = Mutex::new(());
    let _writing = WRITING.lock();
    let part: PathBuf = path.with_extension("part");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&part)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&part, path)?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The record of a client survives restarts until the server forgets the client. Damaged and
    /// incomplete records are ignored.
    #[tokio::test]
    async fn client_record_survives_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (stable, old) = Stable::open(Some(dir.path())).unwrap();
        assert!(old.is_empty());
        stable.remember(Bytes::from_static(b"one")).await.unwrap();
        stable.remember(Bytes::from_static(b"two")).await.unwrap();
        let (stable, old) = Stable::open(Some(dir.path())).unwrap();
        assert_eq!(old.len(), 2);
        stable.forget(vec![Bytes::from_static(b"one")]).await;
        assert!(!dir.path().join("clients").join(file_name(b"one")).exists());
        fs::write(dir.path().join("clients/garbage"), b"x").unwrap();
        fs::write(dir.path().join("clients/x.part"), b"x").unwrap();
        let (_, old) = Stable::open(Some(dir.path())).unwrap();
        assert_eq!(old, HashSet::from([Bytes::from_static(b"two")]));
    }

    #[tokio::test]
    async fn marks_of_delegations() {
        let dir = tempfile::tempdir().unwrap();
        let (stable, _) = Stable::open(Some(dir.path())).unwrap();
        assert_eq!(stable.delegated().unwrap(), None);
        for writing in [false, true] {
            let mark = Delegated { believed: Duration::from_secs(90), writing };
            stable.mark_delegated(mark).await.unwrap();
            assert_eq!(stable.delegated().unwrap(), Some(mark));
        }
        fs::write(dir.path().join("delegations"), "?").unwrap();
        assert!(stable.delegated().unwrap().is_some_and(|d| d.writing), "a damaged mark is the worst case");
    }

    /// Several tasks can write the same mark and the same client's record at once.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn concurrent_records_succeed() {
        let dir = tempfile::tempdir().unwrap();
        let (stable, _) = Stable::open(Some(dir.path())).unwrap();
        let mark = Delegated { believed: Duration::from_secs(90), writing: true };
        let all: Vec<_> = (0..64)
            .map(|_| {
                let stable = stable.clone();
                tokio::spawn(async move {
                    stable.mark_delegated(mark).await.unwrap();
                    stable.remember(Bytes::from_static(b"one")).await.unwrap();
                })
            })
            .collect();
        for one in all {
            one.await.unwrap();
        }
        assert_eq!(stable.delegated().unwrap(), Some(mark));
    }

    #[test]
    fn the_name_stays() {
        let dir = tempfile::tempdir().unwrap();
        let name = Stable::name(Some(dir.path()), || 7).unwrap();
        assert_eq!(Stable::name(Some(dir.path()), || 8).unwrap(), name);
        assert_ne!(Stable::name(None, || 8).unwrap(), name);
    }
}
