//! Object numbers for file systems without handles (for example overlayfs in containers).
//!
//! An object is identified by its inode number and its birth time. A directory is identified by its
//! inode number alone: overlayfs gives a new birth time to directories above a copied-up file. Each
//! object gets a number that no other object ever has. The table keeps the directories and names
//! where the object was met. A number leads to the object while one of these names does. So the
//! handle of an object becomes stale when a local program moves the object, unless the object is
//! still held. A move through the server keeps the handle valid.
//!
//! Every record is written when it is made, so the table survives the end of this process. The
//! table is synced with new objects and at least every second. So a power cut may lose the handles
//! of objects first met in the last second. A damaged table is kept beside the new one, and the
//! records after the damage are used. The first record repeats the head with a checksum, so a
//! damaged head loses no record. A handle never leads to another object than before.

use hither_vfs::{Env, Error, Result};
use parking_lot::Mutex;
use rustix::fs::{FileType, Statx, StatxFlags};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use twox_hash::XxHash3_64;

/// The first bytes of the file. The number of the table and its root follow.
const MAGIC: &[u8; 8] = b"hithtab1";
/// Length of these three, in bytes.
const HEAD_BYTES: usize = 8 + 16 + 16 + 8;
/// Longest record in bytes: two numbers, an identity and a name.
const RECORD_MAX_BYTES: usize = 512;
/// Shortest record in bytes: a kind and a number.
const RECORD_MIN_BYTES: usize = 9;
/// Length of the length and checksum before a record, in bytes.
const FRAME_BYTES: usize = 12;
/// The number of the served directory itself.
pub(super) const ROOT: u64 = 0;

/// Record: an object has a number and this identity.
const IS: u8 = 1;
/// Record: an object was met under a name.
const MET: u8 = 2;
/// Record: an object is no longer under a name.
const NOT: u8 = 3;
/// Record: an object is gone.
const GONE: u8 = 4;
/// Record: the head of the table again, with a checksum.
const HEAD: u8 = 5;

/// The directory of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Root {
    /// The id that distinguishes its file system from all others.
    pub fs_id: [u8; 16],
    /// Its inode number.
    pub ino: u64,
}

/// Distinguishes an object from all earlier and later ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    ino: u64,
    born: (i64, u32),
}

impl Root {
    fn to_bytes(self) -> [u8; 24] {
        let mut out = [0; 24];
        out[..16].copy_from_slice(&self.fs_id);
        out[16..].copy_from_slice(&self.ino.to_le_bytes());
        out
    }
}

impl Identity {
    /// `None` when the file system has no birth times.
    pub fn of(stat: &Statx) -> Option<Self> {
        let said = StatxFlags::from_bits_retain(stat.stx_mask);
        let born = match FileType::from_raw_mode(stat.stx_mode.into()) {
            FileType::Directory => (0, 0),
            _ => (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec),
        };
        said.contains(StatxFlags::BTIME).then_some(Self { ino: stat.stx_ino, born })
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.ino.to_le_bytes());
        out.extend_from_slice(&self.born.0.to_le_bytes());
        out.extend_from_slice(&self.born.1.to_le_bytes());
    }

    fn take(raw: &[u8]) -> Option<(Self, &[u8])> {
        let (ino, raw) = raw.split_first_chunk::<8>()?;
        let (secs, raw) = raw.split_first_chunk::<8>()?;
        let (nanos, raw) = raw.split_first_chunk::<4>()?;
        let born = (i64::from_le_bytes(*secs), u32::from_le_bytes(*nanos));
        Some((Self { ino: u64::from_le_bytes(*ino), born }, raw))
    }
}

/// The number of a directory, and a name in it.
pub(super) type NameInDir = (u64, Box<[u8]>);

struct Entry {
    identity: Identity,
    places: SmallVec<[NameInDir; 1]>,
}

#[derive(Default)]
struct TableEntries {
    entries: HashMap<u64, Entry>,
    by_ino: HashMap<u64, u64>,
}

impl TableEntries {
    fn apply(&mut self, record: &[u8]) -> Option<()> {
        let (&kind, rest) = record.split_first()?;
        let (number, rest) = rest.split_first_chunk::<8>()?;
        let number = u64::from_le_bytes(*number);
        match kind {
            IS => {
                let (identity, _) = Identity::take(rest)?;
                self.by_ino.insert(identity.ino, number);
                match self.entries.get_mut(&number) {
                    Some(entry) => {
                        let before = std::mem::replace(&mut entry.identity, identity).ino;
                        if before != identity.ino && self.by_ino.get(&before) == Some(&number) {
                            self.by_ino.remove(&before);
                        }
                    }
                    None => {
                        self.entries.insert(number, Entry { identity, places: SmallVec::new() });
                    }
                }
            }
            MET | NOT => {
                let (dir, name) = rest.split_first_chunk::<8>()?;
                let dir = u64::from_le_bytes(*dir);
                let entry = self.entries.get_mut(&number)?;
                entry.places.retain(|(d, n)| (*d, &**n) != (dir, name));
                if kind == MET {
                    entry.places.push((dir, name.into()));
                }
            }
            GONE => {
                let entry = self.entries.remove(&number)?;
                if self.by_ino.get(&entry.identity.ino) == Some(&number) {
                    self.by_ino.remove(&entry.identity.ino);
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn write_all(&self, out: &mut impl Write) -> io::Result<()> {
        for (&number, entry) in &self.entries {
            out.write_all(&framed(&is(number, &entry.identity)))?;
            for (dir, name) in &entry.places {
                out.write_all(&framed(&place(MET, number, *dir, name)))?;
            }
        }
        Ok(())
    }
}

struct State {
    known: TableEntries,
    /// `None`: the table is not kept in a file, or its file failed.
    file: Option<File>,
}

/// The table of an export.
pub(super) struct Table {
    id: [u8; 16],
    root: Root,
    state: Mutex<State>,
    random: std::sync::Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Whether there are unsynced records.
    dirty: AtomicBool,
    /// Held from the look at `dirty` to the end of the sync. A caller that finds no new record
    /// waits for the sync of the last one.
    syncing: Mutex<()>,
}

impl Table {
    /// The table of an export in the state directory. A table of another root is replaced with a
    /// new one. Without a state directory the table ends with the process.
    ///
    /// # Errors
    /// Those of the state directory; `EBUSY` when another server uses the table; `EIO` for a file
    /// that is not a table.
    pub fn open(state: Option<(&Path, u64)>, root: Root, env: &Env) -> Result<Self> {
        let fail = |path: &Path, e: io::Error| {
            let errno = if e.kind() == ErrorKind::ResourceBusy { libc::EBUSY } else { libc::EIO };
            Error::because(e.raw_os_error().unwrap_or(errno), format!("{}: {e}", path.display()))
        };
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(env.random)().to_ne_bytes());
        id[8..].copy_from_slice(&(env.random)().to_ne_bytes());
        let (id, state) = match state {
            None => (id, State { known: TableEntries::default(), file: None }),
            Some((dir, export_id)) => {
                let path = dir.join(format!("handles-{export_id:x}"));
                let lock = lock(&path).map_err(|e| fail(&path, e))?;
                let fresh = Contents { id, known: TableEntries::default(), damaged_at: None };
                let contents = match read(&path, &root).map_err(|e| fail(&path, e))? {
                    Parsed::Table(contents) => contents,
                    Parsed::Empty => fresh,
                    Parsed::Foreign { is_proven } => {
                        report_foreign(&path, is_proven).map_err(|e| fail(&path, e))?;
                        fresh
                    }
                };
                let Contents { id, known, damaged_at } = contents;
                if let Some(at) = damaged_at {
                    let aside = keep_damaged(&path).map_err(|e| fail(&path, e))?;
                    tracing::error!(
                        "{}: the table of filehandles is damaged at byte {at}; some filehandles are stale, and the damaged file is kept as {}",
                        path.display(),
                        aside.display()
                    );
                }
                // The file is rewritten without objects that are gone and without a torn end.
                let file = rewrite(&path, &id, &root, &known).map_err(|e| fail(&path, e))?;
                drop(lock);
                (id, State { known, file: Some(file) })
            }
        };
        let (random, dirty) = (env.random.clone(), AtomicBool::new(false));
        Ok(Self { id, root, state: Mutex::new(state), random, dirty, syncing: Mutex::default() })
    }

    /// A number of this table that no other table has.
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// The number of an object that was met in a place. `now` returns the present identity of the
    /// object with a number, if it is held. After a copy-up by overlayfs the object has another
    /// birth time.
    ///
    /// # Errors
    /// `EIO` when the table cannot be written.
    pub fn number(
        &self,
        identity: Identity,
        met: Option<(u64, &[u8])>,
        now: impl Fn(u64) -> Option<Identity>,
    ) -> Result<u64> {
        if identity.ino == self.root.ino {
            return Ok(ROOT);
        }
        let mut state = self.state.lock();
        let before = state.known.by_ino.get(&identity.ino).copied();
        let same = before.filter(|n| state.known.entries.get(n).is_some_and(|e| e.identity == identity));
        let number = match (same, before) {
            (Some(number), _) => number,
            (None, Some(number)) if now(number) == Some(identity) => {
                self.note(&mut state, &is(number, &identity))?;
                number
            }
            (None, before) => {
                if let Some(gone) = before {
                    self.note(&mut state, &word(GONE, gone))?;
                }
                let number = self.new_number(&state.known);
                self.note(&mut state, &is(number, &identity))?;
                number
            }
        };
        if let Some((dir, name)) = met {
            let places = state.known.entries.get(&number).map(|e| &e.places);
            if places.is_none_or(|all| !all.iter().any(|(d, n)| (*d, &**n) == (dir, name))) {
                self.note(&mut state, &place(MET, number, dir, name))?;
            }
        }
        Ok(number)
    }

    fn new_number(&self, known: &TableEntries) -> u64 {
        loop {
            let number = (self.random)();
            if number != ROOT && !known.entries.contains_key(&number) {
                return number;
            }
        }
    }

    /// The identity of an object and the places where it was met; `None` for an unused number.
    pub fn places(&self, number: u64) -> Option<(Identity, SmallVec<[NameInDir; 1]>)> {
        let state = self.state.lock();
        state.known.entries.get(&number).map(|e| (e.identity, e.places.clone()))
    }

    /// Notes the present identity of a held object: a copy-up by overlayfs may have changed it.
    ///
    /// # Errors
    /// `EIO` when the table cannot be written.
    pub fn renew(&self, number: u64, identity: Identity) -> Result<()> {
        let mut state = self.state.lock();
        if state.known.entries.get(&number).is_none_or(|e| e.identity == identity) {
            return Ok(());
        }
        self.note(&mut state, &is(number, &identity))
    }

    /// Notes that an object is no longer under a name; with `last`, that it is gone.
    ///
    /// # Errors
    /// `EIO` when the table cannot be written.
    pub fn unnamed(&self, number: u64, (dir, name): (u64, &[u8]), last: bool) -> Result<()> {
        let mut state = self.state.lock();
        if !state.known.entries.contains_key(&number) {
            return Ok(());
        }
        let record = if last { word(GONE, number) } else { place(NOT, number, dir, name) };
        self.note(&mut state, &record)
    }

    fn note(&self, state: &mut State, record: &[u8]) -> Result<()> {
        if let Some(file) = &mut state.file
            && let Err(e) = file.write_all(&framed(record))
        {
            // Records after a torn record would not be read again.
            state.file = None;
            tracing::error!("the table of filehandles cannot be written; they end with this server: {e}");
            return Err(Error::because(libc::EIO, format!("the table of filehandles: {e}")));
        }
        self.dirty.store(true, Ordering::Release);
        state.known.apply(record);
        Ok(())
    }

    /// Makes all records durable.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn sync(&self) -> Result<()> {
        let _syncing = self.syncing.lock();
        if !self.dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let file = self.state.lock().file.as_ref().map(File::try_clone).transpose();
        let synced = file.and_then(|file| file.map_or(Ok(()), |file| file.sync_data()));
        synced.map_err(|e| {
            self.dirty.store(true, Ordering::Release);
            Error::because(libc::EIO, format!("the table of filehandles: {e}"))
        })
    }
}

fn word(kind: u8, number: u64) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend_from_slice(&number.to_le_bytes());
    out
}

fn is(number: u64, identity: &Identity) -> Vec<u8> {
    let mut out = word(IS, number);
    identity.put(&mut out);
    out
}

fn place(kind: u8, number: u64, dir: u64, name: &[u8]) -> Vec<u8> {
    let mut out = word(kind, number);
    out.extend_from_slice(&dir.to_le_bytes());
    out.extend_from_slice(name);
    out
}

/// A record with its length and checksum.
fn framed(record: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(FRAME_BYTES + record.len());
    out.extend_from_slice(&(record.len() as u32).to_le_bytes());
    out.extend_from_slice(&XxHash3_64::oneshot(record).to_le_bytes());
    out.extend_from_slice(record);
    out
}

/// Locks the table: two servers with one table would give an object two numbers, and a number two
/// objects.
fn lock(path: &Path) -> io::Result<File> {
    use rustix::fs::{FlockOperation, flock};
    let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| io::Error::new(ErrorKind::ResourceBusy, "another server uses it"))?;
    Ok(file)
}

/// The contents of a table's file.
struct Contents {
    id: [u8; 16],
    known: TableEntries,
    /// Offset of the first damaged byte before whole records.
    damaged_at: Option<usize>,
}

/// A parsed file.
enum Parsed {
    Table(Contents),
    /// The file has no bytes.
    Empty,
    /// A table of another root.
    Foreign {
        /// A checksum covers the root. Otherwise the root may be damaged.
        is_proven: bool,
    },
}

/// The head of a table.
#[derive(PartialEq, Eq)]
struct Head {
    id: [u8; 16],
    root: [u8; 24],
}

impl Head {
    fn take(raw: &[u8]) -> Option<Self> {
        let (id, rest) = raw.split_first_chunk::<16>()?;
        Some(Self { id: *id, root: *rest.first_chunk::<24>()? })
    }

    /// The head at the beginning of a file, which has no checksum.
    fn at_start(raw: &[u8]) -> Option<Self> {
        raw.strip_prefix(MAGIC).and_then(Self::take)
    }

    /// The head in the first record.
    fn in_record(raw: &[u8]) -> Option<Self> {
        let record = raw.get(HEAD_BYTES..).and_then(whole)?;
        record.strip_prefix(&word(HEAD, ROOT)[..]).and_then(Self::take)
    }

    fn to_record(&self) -> Vec<u8> {
        [&word(HEAD, ROOT)[..], &self.id, &self.root].concat()
    }
}

/// Reports a table of another root, which a new one replaces. A table whose root may be damaged is
/// kept.
fn report_foreign(path: &Path, is_proven: bool) -> io::Result<()> {
    let at = path.display();
    if is_proven {
        tracing::warn!(
            "{at}: the table of filehandles is of another directory; earlier filehandles are stale"
        );
        return Ok(());
    }
    let aside = keep_damaged(path)?;
    tracing::error!(
        "{at}: the table of filehandles is of another directory, or its head is damaged; earlier filehandles are stale, \
         and the file is kept as {}",
        aside.display()
    );
    Ok(())
}

/// The contents of a file.
fn read(path: &Path, root: &Root) -> io::Result<Parsed> {
    parse(&std::fs::read(path)?, root)
}

/// The contents of a table without a torn end. A head with a checksum prevails over one without.
///
/// Whole records after a damaged place are found by their checksum. A name cannot forge them: the
/// length of a record has zero bytes.
fn parse(raw: &[u8], root: &Root) -> io::Result<Parsed> {
    if raw.is_empty() {
        return Ok(Parsed::Empty);
    }
    let (start, proven) = (Head::at_start(raw), Head::in_record(raw));
    let (is_proven, is_damaged) = (proven.is_some(), proven.is_some() && proven != start);
    let Some(head) = proven.or(start) else {
        if raw.len() < HEAD_BYTES {
            return Ok(Parsed::Foreign { is_proven });
        }
        let why = "not a table of filehandles; remove it to make all filehandles stale";
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    };
    if head.root != root.to_bytes() {
        return Ok(Parsed::Foreign { is_proven });
    }
    let mut known = TableEntries::default();
    let mut recovery: Option<Recovery> = None;
    let mut bad_at = None;
    let mut at = HEAD_BYTES;
    while at < raw.len() {
        let Some(record) = whole(&raw[at..]) else {
            bad_at = bad_at.or(Some(at));
            at += 1;
            continue;
        };
        if let Some(bad_at) = bad_at.take() {
            recovery = Some(Recovery::after(&known, bad_at, recovery));
        }
        if let Some(recovery) = &mut recovery {
            recovery.see(&mut known, record);
        }
        if known.apply(record).is_none() && record[0] != HEAD && recovery.is_none() {
            // A record of a lost object, or of another version.
            recovery = Some(Recovery::after(&known, at, None));
        }
        at += FRAME_BYTES + record.len();
    }
    let damaged_at = recovery.map(|recovery| recovery.finish(&mut known));
    let damaged_at = if is_damaged { Some(0) } else { damaged_at };
    Ok(Parsed::Table(Contents { id: head.id, known, damaged_at }))
}

/// The record at the beginning of `raw`; `None` unless it is whole.
fn whole(raw: &[u8]) -> Option<&[u8]> {
    let (len, rest) = raw.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<8>()?;
    let len = u32::from_le_bytes(*len) as usize;
    let record = rest.get(..len).filter(|_| (RECORD_MIN_BYTES..=RECORD_MAX_BYTES).contains(&len))?;
    (*sum == XxHash3_64::oneshot(record).to_le_bytes()).then_some(record)
}

/// The entries that a damaged table may lack. A lost [`GONE`] of a file is harmless, because a file
/// is identified by its birth time as well. A directory is not: another directory may have its
/// inode number. So a directory needs a later record that shows it alive.
struct Recovery {
    damaged_at: usize,
    /// The directories that may be gone.
    unproven: HashSet<u64>,
}

impl Recovery {
    fn after(known: &TableEntries, at: usize, earlier: Option<Self>) -> Self {
        let is_directory = |entry: &Entry| entry.identity.born == (0, 0);
        let directories = known.entries.iter().filter(|(_, entry)| is_directory(entry));
        let unproven = directories.map(|(number, _)| *number).collect();
        Self { damaged_at: earlier.map_or(at, |earlier| earlier.damaged_at), unproven }
    }

    /// Notes a record after the damage, before it is applied.
    fn see(&mut self, known: &mut TableEntries, record: &[u8]) {
        let Some((number, rest)) = record.get(1..).and_then(<[u8]>::split_first_chunk::<8>) else { return };
        let number = u64::from_le_bytes(*number);
        self.unproven.remove(&number);
        match record[0] {
            IS => {
                // The earlier object with this inode number is gone.
                let before = Identity::take(rest).and_then(|(identity, _)| known.by_ino.get(&identity.ino));
                if let Some(before) = before.copied().filter(|before| *before != number) {
                    known.apply(&word(GONE, before));
                }
            }
            MET | NOT => {
                if let Some(dir) = rest.first_chunk::<8>() {
                    self.unproven.remove(&u64::from_le_bytes(*dir));
                }
            }
            _ => {}
        }
    }

    /// Drops the directories that may be gone. Returns the offset of the damage.
    fn finish(self, known: &mut TableEntries) -> usize {
        for number in self.unproven {
            known.apply(&word(GONE, number));
        }
        self.damaged_at
    }
}

/// Gives a damaged table a second name, so that the rewrite does not remove it.
fn keep_damaged(path: &Path) -> io::Result<PathBuf> {
    for n in 0..1000 {
        let mut aside = PathBuf::from(path);
        aside.as_mut_os_string().push(format!(".damaged-{n}"));
        match std::fs::hard_link(path, &aside) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            linked => return linked.map(|()| aside),
        }
    }
    Err(io::Error::new(ErrorKind::AlreadyExists, "1,000 damaged tables are kept: remove the .damaged files"))
}

/// Replaces the file with a new one, and locks the new one.
fn rewrite(path: &Path, id: &[u8; 16], root: &Root, known: &TableEntries) -> io::Result<File> {
    let mut new = PathBuf::from(path);
    new.as_mut_os_string().push(".new");
    let file = File::options().append(true).create(true).mode(0o600).open(&new)?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| io::Error::new(ErrorKind::ResourceBusy, "another server uses it"))?;
    file.set_len(0)?;
    let mut out = io::BufWriter::new(&file);
    out.write_all(MAGIC)?;
    out.write_all(id)?;
    out.write_all(&root.to_bytes())?;
    out.write_all(&framed(&Head { id: *id, root: root.to_bytes() }.to_record()))?;
    known.write_all(&mut out)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    std::fs::rename(&new, path)?;
    if let Some(dir) = path.parent() {
        File::open(dir)?.sync_all()?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: Root = Root { fs_id: [3; 16], ino: 2 };

    /// A file's identity has a birth time, and a directory's has none.
    fn identity(ino: u64, born: i64) -> Identity {
        Identity { ino, born: (born, 0) }
    }

    fn written(records: &[Vec<u8>]) -> Vec<u8> {
        let mut raw = [&MAGIC[..], &[7; 16], &OF.to_bytes()].concat();
        records.iter().for_each(|record| raw.extend(framed(record)));
        raw
    }

    fn contents(raw: &[u8]) -> Contents {
        let Parsed::Table(contents) = parse(raw, &OF).unwrap() else { panic!("it is a table") };
        contents
    }

    /// A changed byte in either copy of the head, or a head that is torn off, is reported and costs
    /// no record. Without a second copy, a changed root is not taken for a proven one.
    #[test]
    fn damaged_head_spares_records() {
        let head = Head { id: [7; 16], root: OF.to_bytes() };
        let objects = [is(1, &identity(10, 0)), is(2, &identity(11, 5)), place(MET, 2, 1, b"file")];
        let whole = written(&[&[head.to_record()][..], &objects].concat());
        assert_eq!((contents(&whole).damaged_at, contents(&whole).id), (None, [7; 16]));
        for at in 0..HEAD_BYTES + FRAME_BYTES + head.to_record().len() {
            for flip in [1, 0x80] {
                let mut raw = whole.clone();
                raw[at] ^= flip;
                let damaged = contents(&raw);
                let place = if at < HEAD_BYTES { 0 } else { HEAD_BYTES };
                assert_eq!((damaged.damaged_at, damaged.id), (Some(place), [7; 16]), "byte {at}");
                assert_eq!(damaged.known.entries.len(), 2, "byte {at}");
            }
        }
        let mut old = written(&objects);
        old[8 + 16] ^= 1;
        assert!(matches!(parse(&old, &OF).unwrap(), Parsed::Foreign { is_proven: false }));
        let other = Root { ino: 9, ..OF };
        assert!(matches!(parse(&whole, &other).unwrap(), Parsed::Foreign { is_proven: true }));
        for len in 1..HEAD_BYTES {
            let torn = parse(&whole[..len], &OF).unwrap();
            assert!(matches!(torn, Parsed::Foreign { is_proven: false }), "{len} bytes");
        }
        assert!(matches!(parse(&[], &OF).unwrap(), Parsed::Empty));
    }

    /// A changed byte in any record costs the entries of that record only. A directory whose
    /// removal was lost has no entry, because another one may have its inode number. Names that
    /// look like records are no records.
    #[test]
    fn damaged_record_spares_later_ones() {
        let forged = framed(&is(99, &identity(99, 0)));
        let records = [
            is(1, &identity(10, 0)),
            place(MET, 1, ROOT, b"gone"),
            is(2, &identity(11, 0)),
            place(MET, 2, ROOT, b"dir"),
            is(3, &identity(12, 5)),
            place(MET, 3, ROOT, &forged[4..]),
            word(GONE, 1),
            is(4, &identity(10, 0)),
            place(MET, 4, ROOT, b"gone"),
            is(5, &identity(13, 6)),
            place(MET, 5, 2, b"file"),
            is(6, &identity(14, 7)),
        ];
        let whole = written(&records);
        let sound = contents(&whole);
        assert_eq!((sound.damaged_at, sound.known.entries.len()), (None, 5));
        let mut start = HEAD_BYTES;
        for (n, record) in records.iter().enumerate() {
            let end = start + FRAME_BYTES + record.len();
            for at in start..end {
                let mut raw = whole.clone();
                raw[at] ^= 0x10;
                let damaged = contents(&raw);
                let is_last = n == records.len() - 1;
                assert_eq!(damaged.damaged_at, (!is_last).then_some(start), "byte {at}");
                let entries = &damaged.known.entries;
                assert!(!entries.contains_key(&1) && !entries.contains_key(&99), "byte {at}");
                assert_eq!(entries.contains_key(&6), !is_last, "byte {at}");
                let mut lost = sound.known.entries.keys().filter(|number| !entries.contains_key(number));
                // The record's own object, and the directories that the record may have removed.
                assert!(
                    lost.all(|number| record[1] == *number as u8 || [2, 4].contains(number)),
                    "byte {at}"
                );
            }
            start = end;
        }
        // A torn end is no damage.
        let torn = contents(&whole[..whole.len() - 5]);
        assert_eq!((torn.damaged_at, torn.known.entries.len()), (None, 4));
        // A directory without a later record may have been removed.
        let mut raw = written(&[is(1, &identity(10, 0)), word(GONE, 1), is(3, &identity(12, 5))]);
        raw[HEAD_BYTES + FRAME_BYTES + records[0].len() + 2] ^= 1;
        let damaged = contents(&raw).known.entries;
        assert_eq!(damaged.keys().collect::<Vec<_>>(), [&3]);
    }
}
