//! One cached version of one remote file: a data file and its map.
//!
//! A block is readable as soon as its bytes are in the data file. Its record enters the map after
//! they are on stable storage (`sync`). A present block is never written again, so a reader needs
//! no lock while reading. A block known only from the map is compared with its checksum before its
//! first use. Files are never truncated. A dropped entry is removed by name, and readers that have
//! it open may continue.

use super::format::{BLOCK, HEADER, Header, Key, RECORD, Record, Version, names, records, sum};
use super::io::{Io, IoFile};
use bytes::Bytes;
use hither_vfs::{Fh, Slice};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a block is present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Have {
    /// No.
    No,
    /// Yes, if its checksum matches.
    Unverified,
    /// Yes.
    Verified,
}

pub(super) struct Entry {
    pub key: Key,
    pub id: u64,
    pub fh: Fh,
    pub version: Version,
    io: Arc<dyn Io>,
    data: Arc<dyn IoFile>,
    state: Mutex<State>,
    /// End of the map. One caller at a time appends.
    syncing: Mutex<u64>,
    /// Held while a block is put. When the entry is dead and this lock is free, no put is running.
    putting: Mutex<()>,
    /// No further block is taken.
    dead: AtomicBool,
    /// Some bytes could not be made durable.
    broken: AtomicBool,
    /// After a power cut, the map of the entry before may describe the data file.
    inherits: AtomicBool,
}

#[derive(Default)]
struct State {
    blocks: HashMap<u64, Block>,
    verified: u64,
    unsynced: Vec<Record>,
}

#[derive(Clone, Copy)]
struct Block {
    sum: u64,
    verified: bool,
}

fn damaged(what: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

impl Entry {
    /// Creates the files of a new entry.
    pub fn create(io: &Arc<dyn Io>, id: u64, fh: &Fh, version: Version) -> io::Result<Self> {
        let key = Key::of(fh);
        let header = Header { id, fh: fh.clone(), version };
        let header = header.encode().ok_or_else(|| damaged("a filehandle of more than 128 bytes"))?;
        let (data_name, map_name) = names(key, id);
        let data = io.create(&data_name)?;
        let made = data.set_len(version.size).and_then(|()| io.create(&map_name));
        let made = made.and_then(|map| map.write_at(&header, 0));
        if let Err(e) = made {
            // The next start finds and removes any file that cannot be removed now.
            let _ = io.remove(&data_name);
            let _ = io.remove(&map_name);
            return Err(e);
        }
        Ok(Self::new(io, id, (fh.clone(), version), data, HEADER as u64, State::default()))
    }

    /// Reads the files of an entry; `InvalidData` when they are damaged. `mend`: cuts off a torn
    /// end of the map.
    pub fn load(io: &Arc<dyn Io>, key: Key, id: u64, mend: bool) -> io::Result<Self> {
        let (data_name, map_name) = names(key, id);
        let (data, map) = (io.open(&data_name)?, io.open(&map_name)?);
        let len = map.len()?;
        if len < HEADER as u64 {
            // The header was not on the disk when the power failed: the entry is empty, not
            // damaged.
            return Err(io::Error::new(ErrorKind::NotFound, "a map with an incomplete header"));
        }
        let mut header = [0; HEADER];
        map.read_at(&mut header, 0)?;
        let header = Header::decode(&header).ok_or_else(|| damaged("a map with a damaged header"))?;
        if header.id != id || Key::of(&header.fh) != key {
            return Err(damaged("a map of another entry"));
        }
        let version = header.version;
        if data.len()? != version.size {
            return Err(damaged("a data file with another length than in the map"));
        }
        // Each block is recorded once, so a longer log is damaged.
        let most = version.blocks().saturating_mul(RECORD as u64);
        let mut log = vec![0; len.saturating_sub(HEADER as u64).min(most) as usize];
        map.read_at(&mut log, HEADER as u64)?;
        let known = records(&log, id, version);
        let end = (HEADER + known.len() * RECORD) as u64;
        if end != len && mend {
            // A torn end: later records must follow the last whole one.
            map.set_len(end)?;
        }
        let blocks = known.iter().map(|r| (r.block, Block { sum: r.sum, verified: false })).collect();
        let state = State { blocks, verified: 0, unsynced: Vec::new() };
        Ok(Self::new(io, id, (header.fh, version), data, end, state))
    }

    fn new(
        io: &Arc<dyn Io>,
        id: u64,
        what: (Fh, Version),
        data: Arc<dyn IoFile>,
        end: u64,
        state: State,
    ) -> Self {
        Self {
            key: Key::of(&what.0),
            id,
            fh: what.0,
            version: what.1,
            io: io.clone(),
            data,
            state: Mutex::new(state),
            syncing: Mutex::new(end),
            putting: Mutex::default(),
            dead: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            inherits: AtomicBool::new(false),
        }
    }

    /// Stops taking blocks.
    pub fn kill(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Whether the entry was dropped.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Whether a block is present.
    pub fn have(&self, block: u64) -> Have {
        match self.state.lock().blocks.get(&block) {
            None => Have::No,
            Some(b) if b.verified => Have::Verified,
            Some(_) => Have::Unverified,
        }
    }

    /// The first of at most `count` blocks from `first` on that is not present and verified.
    pub fn verified_until(&self, first: u64, count: u64) -> u64 {
        let s = self.state.lock();
        (first..first + count).find(|b| !s.blocks.get(b).is_some_and(|b| b.verified)).unwrap_or(first + count)
    }

    /// Number of present blocks.
    pub fn block_count(&self) -> u64 {
        self.state.lock().blocks.len() as u64
    }

    /// Whether all blocks are present.
    pub fn is_complete(&self) -> bool {
        self.block_count() == self.version.blocks()
    }

    /// Whether some present blocks have no record in the map.
    pub fn is_unsynced(&self) -> bool {
        !self.state.lock().unsynced.is_empty()
    }

    /// Bytes of the present blocks.
    pub fn bytes(&self) -> u64 {
        let s = self.state.lock();
        s.blocks.keys().map(|b| self.version.extent(*b).1 as u64).sum()
    }

    /// Stores a block; returns whether it was new. One caller at a time.
    pub fn put(&self, block: u64, data: &[u8]) -> io::Result<bool> {
        let _putting = self.putting.lock();
        let (at, len) = self.version.extent(block);
        if self.is_dead() || data.len() != len || len == 0 || self.have(block) != Have::No {
            return Ok(false);
        }
        if self.inherits.load(Ordering::Acquire) {
            self.io.sync_names(&names(self.key, self.id).0)?;
            self.inherits.store(false, Ordering::Release);
        }
        let sum = sum(data);
        self.data.write_at(data, at)?;
        let mut s = self.state.lock();
        // The entry was dropped meanwhile. The call that dropped it (a write that withholds the
        // entry) has read the present blocks under this lock, or will. So no block may be added
        // later.
        if self.is_dead() {
            return Ok(false);
        }
        s.blocks.insert(block, Block { sum, verified: true });
        s.verified += 1;
        s.unsynced.push(Record { block, sum });
        Ok(true)
    }

    /// The entry of a later version that takes over this entry's data file. The version may differ
    /// only in `touched` blocks and beyond the end. This entry must be dead, and its map already
    /// removed.
    pub fn heir(&self, id: u64, version: Version, touched: &BTreeSet<u64>) -> io::Result<Self> {
        let _no_puts = self.putting.lock();
        let _no_syncs = self.syncing.lock();
        if self.broken.load(Ordering::Acquire) {
            return Err(damaged("data that could not be made durable"));
        }
        let (mut state, mut durable) = (State::default(), Vec::new());
        {
            let s = self.state.lock();
            let unsynced: BTreeSet<u64> = s.unsynced.iter().map(|r| r.block).collect();
            let same = |b: &u64| !touched.contains(b) && self.version.extent(*b) == version.extent(*b);
            for (block, known) in s.blocks.iter().filter(|(b, _)| same(b)) {
                state.blocks.insert(*block, *known);
                state.verified += u64::from(known.verified);
                let record = Record { block: *block, sum: known.sum };
                if unsynced.contains(block) { &mut state.unsynced } else { &mut durable }.push(record);
            }
        }
        let header = Header { id, fh: self.fh.clone(), version };
        let mut map = header.encode().ok_or_else(|| damaged("a filehandle of more than 128 bytes"))?;
        durable.iter().for_each(|r| map.extend(r.encode(id)));
        let (data_name, map_name) = names(self.key, id);
        self.io.rename(&names(self.key, self.id).0, &data_name)?;
        let made = self.data.set_len(version.size).and_then(|()| self.io.create(&map_name));
        if let Err(e) = made.and_then(|file| file.write_at(&map, 0)) {
            let _ = self.io.remove(&data_name);
            let _ = self.io.remove(&map_name);
            return Err(e);
        }
        let end = map.len() as u64;
        let heir = Self::new(&self.io, id, (self.fh.clone(), version), self.data.clone(), end, state);
        heir.inherits.store(true, Ordering::Release);
        Ok(heir)
    }

    /// Makes the present blocks durable: first the bytes, then the records. After an error the
    /// entry is useless.
    pub fn sync(&self) -> io::Result<()> {
        let mut end = self.syncing.lock();
        if self.is_dead() {
            return Ok(());
        }
        let unsynced = std::mem::take(&mut self.state.lock().unsynced);
        if unsynced.is_empty() {
            return Ok(());
        }
        if let Err(e) = self.data.sync_data() {
            // The bytes may be durable or not.
            self.broken.store(true, Ordering::Release);
            return Err(e);
        }
        let mut log = Vec::with_capacity(unsynced.len() * RECORD);
        unsynced.iter().for_each(|r| log.extend(r.encode(self.id)));
        // The map is opened for each sync: one descriptor per entry is enough.
        match self.io.open(&names(self.key, self.id).1) {
            Ok(map) => {
                map.write_at(&log, *end)?;
                map.write_soon();
            }
            // The cleaner removed the entry.
            Err(e) if e.kind() == ErrorKind::NotFound && self.is_dead() => return Ok(()),
            Err(e) => return Err(e),
        }
        *end += log.len() as u64;
        Ok(())
    }

    /// The place of verified blocks in the data file; `None` when the disk is simulated.
    pub fn slice(&self, at: u64, len: usize) -> Option<Slice> {
        self.data.backing().map(|file| Slice { file, offset_bytes: at, len })
    }

    /// Bytes of verified blocks.
    pub fn read(&self, at: u64, len: usize) -> io::Result<Bytes> {
        let mut buf = vec![0; len];
        self.data.read_at(&mut buf, at)?;
        Ok(buf.into())
    }

    /// The same from memory; `None` when the read needs the disk.
    pub fn read_now(&self, at: u64, len: usize) -> Option<Bytes> {
        let mut buf = vec![0; len];
        self.data.read_at_now(&mut buf, at).ok()?;
        Some(buf.into())
    }

    /// A block, compared with its checksum; `InvalidData` when it differs.
    pub fn read_verified(&self, block: u64) -> io::Result<Bytes> {
        let expected = self.state.lock().blocks.get(&block).map(|b| b.sum);
        let expected = expected.ok_or_else(|| damaged("a block that is not in the entry"))?;
        let (at, len) = self.version.extent(block);
        let bytes = self.read(at, len)?;
        if sum(&bytes) != expected {
            return Err(damaged("a block that differs from its checksum"));
        }
        let mut s = self.state.lock();
        if let Some(b) = s.blocks.get_mut(&block)
            && !b.verified
        {
            b.verified = true;
            s.verified += 1;
        }
        Ok(bytes)
    }

    /// The present blocks, in order.
    pub fn blocks(&self) -> Vec<u64> {
        let mut all: Vec<_> = self.state.lock().blocks.keys().copied().collect();
        all.sort_unstable();
        all
    }

    /// Whether all blocks are present and verified.
    pub fn is_whole(&self) -> bool {
        let verified = self.state.lock().verified;
        verified == self.version.blocks() && verified > 0
    }

    /// Marks all blocks as verified: they were compared before.
    pub fn trust(&self) {
        let mut s = self.state.lock();
        s.blocks.values_mut().for_each(|b| b.verified = true);
        s.verified = s.blocks.len() as u64;
    }

    /// The data file, when all blocks are present and verified.
    pub fn backing(&self) -> Option<Arc<std::fs::File>> {
        self.is_whole().then(|| self.data.backing()).flatten()
    }
}

/// The block that contains an offset.
pub(super) fn block_of(at: u64) -> u64 {
    at / BLOCK
}
