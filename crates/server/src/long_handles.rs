//! Durable names for filehandles of an origin that do not fit into a sealed handle.
//!
//! NFSv3 limits a handle to 64 bytes, and a gateway adds 12 bytes. Each gateway of a chain does so,
//! and NFSv4 origins may use 128 bytes. A longer handle travels as a keyed hash of 16 bytes. This
//! table maps the hash to the handle.
//!
//! The table is a file of records with one size. A record is written before a client sees its hash,
//! so the hash survives the end of the process. A record that cannot be written stays in memory.
//! Records are never removed. `docs/design/disk-formats.md` draws the bytes.

use bytes::Bytes;
use hither_vfs::Fh;
use parking_lot::Mutex;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use twox_hash::XxHash3_64;

/// Bytes of a hash.
pub const HASH_BYTES: usize = 16;
/// First bytes of the file.
const MAGIC: &[u8; 8] = b"hithlfh1";
/// Longest handle in bytes (NFSv4).
const FH_MAX_BYTES: usize = 128;
/// Bytes of a record: checksum, number of the export, length, handle.
const RECORD_BYTES: usize = 8 + 4 + 1 + FH_MAX_BYTES;
/// Number of records that a start reads at once.
const READ_RECORDS: usize = 4096;

type Record = [u8; RECORD_BYTES];

/// The table.
pub struct LongHandles {
    keyed: SipHasher24,
    /// None: the table ends with the process.
    file: Option<File>,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    of_hash: HashMap<[u8; HASH_BYTES], Place>,
    /// Number of records in the file.
    records: u64,
    /// Whether the last record could not be written.
    has_failed: bool,
}

enum Place {
    /// The number of the record in the file.
    File(u64),
    Memory(Box<Record>),
}

impl LongHandles {
    /// Opens the table in the file at `path`, or begins it. A damaged record costs its handle only.
    ///
    /// # Errors
    /// The file cannot be read or written, or has another format.
    pub fn open(path: &Path, key: &[u8; 16]) -> io::Result<Self> {
        let mut how = OpenOptions::new();
        let file = how.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let len_bytes = file.metadata()?.len();
        if len_bytes < MAGIC.len() as u64 {
            file.write_all_at(MAGIC, 0)?;
        }
        let mut magic = [0; MAGIC.len()];
        file.read_exact_at(&mut magic, 0)?;
        if magic != *MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a table of long filehandles"));
        }
        let table = Self { file: Some(file), ..Self::in_memory(key) };
        // A torn last record is overwritten.
        table.load(len_bytes.saturating_sub(MAGIC.len() as u64) / RECORD_BYTES as u64)?;
        Ok(table)
    }

    /// A table that ends with the process.
    pub fn in_memory(key: &[u8; 16]) -> Self {
        Self { keyed: SipHasher24::new_with_key(key), file: None, places: Mutex::default() }
    }

    fn load(&self, records: u64) -> io::Result<()> {
        let mut places = self.places.lock();
        let mut damaged = 0_u64;
        while let (Some(file), true) = (&self.file, places.records < records) {
            let n = (records - places.records).min(READ_RECORDS as u64);
            let mut bytes = vec![0; n as usize * RECORD_BYTES];
            file.read_exact_at(&mut bytes, offset_bytes(places.records))?;
            for record in bytes.as_chunks().0 {
                let place = Place::File(places.records);
                places.records += 1;
                match parse(record) {
                    Some((number, fh)) => drop(places.of_hash.insert(self.hash(number, fh), place)),
                    None => damaged += 1,
                }
            }
        }
        if damaged > 0 {
            tracing::error!(
                "the table of long filehandles: {damaged} damaged records, whose files are stale"
            );
        }
        Ok(())
    }

    fn hash(&self, number: u32, fh: &[u8]) -> [u8; HASH_BYTES] {
        let mut keyed = self.keyed;
        keyed.write(&number.to_le_bytes());
        keyed.write(fh);
        keyed.finish128().as_bytes()
    }

    /// The hash of a handle of export `number`, which the table keeps from now on. `None` for a
    /// handle of more than 128 bytes.
    pub fn name(&self, number: u32, fh: &Fh) -> Option<[u8; HASH_BYTES]> {
        let hash = self.hash(number, &fh.0);
        let mut places = self.places.lock();
        let is_kept = match places.of_hash.get(&hash) {
            Some(Place::File(_)) => true,
            // The disk may take it now.
            Some(Place::Memory(_)) => self.file.is_none(),
            None => false,
        };
        if is_kept {
            return Some(hash);
        }
        let record = record(number, &fh.0)?;
        let written = match &self.file {
            Some(file) => file.write_all_at(&record, offset_bytes(places.records)).map(|()| true),
            None => Ok(false),
        };
        if let (Err(e), false) = (&written, places.has_failed) {
            tracing::error!("the table of long filehandles: {e}: new files are stale after a restart");
        }
        places.has_failed = written.is_err();
        let place = if let Ok(true) = written {
            places.records += 1;
            Place::File(places.records - 1)
        } else {
            Place::Memory(Box::new(record))
        };
        places.of_hash.insert(hash, place);
        Some(hash)
    }

    /// The handle of a hash and the number of its export.
    pub fn find(&self, hash: &[u8; HASH_BYTES]) -> Option<(u32, Fh)> {
        let number = match self.places.lock().of_hash.get(hash)? {
            Place::Memory(record) => return parse(record).map(owned),
            Place::File(number) => *number,
        };
        let mut record = [0; RECORD_BYTES];
        let read = self.file.as_ref()?.read_exact_at(&mut record, offset_bytes(number));
        read.inspect_err(|e| tracing::error!("the table of long filehandles: {e}")).ok()?;
        // A damaged record must not name another file.
        parse(&record).filter(|(number, fh)| self.hash(*number, fh) == *hash).map(owned)
    }
}

fn offset_bytes(record: u64) -> u64 {
    MAGIC.len() as u64 + record * RECORD_BYTES as u64
}

fn owned((number, fh): (u32, &[u8])) -> (u32, Fh) {
    (number, Fh(Bytes::copy_from_slice(fh)))
}

fn record(number: u32, fh: &[u8]) -> Option<Record> {
    let mut record = [0; RECORD_BYTES];
    record[8..12].copy_from_slice(&number.to_le_bytes());
    record[12] = u8::try_from(fh.len()).ok()?;
    record[13..].get_mut(..fh.len())?.copy_from_slice(fh);
    let sum = XxHash3_64::oneshot(&record[8..]);
    record[..8].copy_from_slice(&sum.to_le_bytes());
    Some(record)
}

/// The number of the export and the handle of a record. `None` for a damaged one.
fn parse(record: &Record) -> Option<(u32, &[u8])> {
    let (sum, rest) = record.split_first_chunk()?;
    if XxHash3_64::oneshot(rest) != u64::from_le_bytes(*sum) {
        return None;
    }
    let (number, rest) = rest.split_first_chunk()?;
    let (len_bytes, fh) = rest.split_first()?;
    Some((u32::from_le_bytes(*number), fh.get(..usize::from(*len_bytes))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8; 16] = b"the key of a gat";

    fn fh(n: usize) -> Fh {
        Fh(Bytes::from(vec![n as u8; 65 + n % 64]))
    }

    /// Handles of each length come back from the table of a later process, and of no other key.
    #[test]
    fn long_handles_survive_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("long-handles");
        let mut known = Vec::new();
        for start in 0..3 {
            let table = LongHandles::open(&path, KEY).unwrap();
            for n in 0..start * 64 {
                let hash = table.name(7, &fh(n)).unwrap();
                assert_eq!(table.name(7, &fh(n)), Some(hash));
                known.push((hash, 7, fh(n)));
            }
            let hash = table.name(start as u32, &fh(0)).unwrap();
            known.push((hash, start as u32, fh(0)));
            for (hash, number, fh) in &known {
                assert_eq!(table.find(hash), Some((*number, fh.clone())));
            }
        }
        let other = LongHandles::open(&path, b"another's secret").unwrap();
        assert!(known.iter().all(|(hash, ..)| other.find(hash).is_none()));
    }

    /// A torn end, a damaged record and a record that changes later cost their own handle only.
    #[test]
    fn damage_costs_one_handle() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("long-handles");
        let table = LongHandles::open(&path, KEY).unwrap();
        let hashes: Vec<_> = (0..5).map(|n| table.name(1, &fh(n)).unwrap()).collect();
        let found = |table: &LongHandles| hashes.iter().map(|h| table.find(h).is_some()).collect::<Vec<_>>();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(b"x", offset_bytes(1) + 20).unwrap();
        assert_eq!(found(&table), [true, false, true, true, true]);
        file.set_len(offset_bytes(5) - 1).unwrap();
        let table = LongHandles::open(&path, KEY).unwrap();
        assert_eq!(found(&table), [true, false, true, true, false]);
        assert_eq!(table.name(1, &fh(4)), Some(hashes[4]));
        assert_eq!(table.name(1, &fh(1)), Some(hashes[1]));
        drop(table);
        assert_eq!(found(&LongHandles::open(&path, KEY).unwrap()), [true; 5]);
        file.write_all_at(b"other", 0).unwrap();
        assert!(LongHandles::open(&path, KEY).is_err());
    }

    /// A full disk costs no handle before the end of the process.
    #[test]
    fn full_disk_keeps_handles_in_memory() {
        let full = OpenOptions::new().read(true).write(true).open("/dev/full").unwrap();
        for file in [Some(full), None] {
            let table = LongHandles { file, ..LongHandles::in_memory(KEY) };
            let hash = table.name(1, &fh(3)).unwrap();
            assert_eq!(table.find(&hash), Some((1, fh(3))));
            assert_eq!(table.name(1, &fh(3)), Some(hash));
        }
        assert_eq!(LongHandles::in_memory(KEY).name(1, &Fh(Bytes::from(vec![0; 129]))), None);
    }
}
