//! Format of an entry's two files.
//!
//! `KEY-ID.d` holds the bytes of the remote file at their own offsets, with holes for missing
//! blocks; its length is the remote file's. `KEY-ID.m` is its map: a header with the file and
//! version, then a log of records. Each block on stable storage has one record, with its checksum.
//! Every part has a checksum that includes the entry's random id. So neither a torn write nor a
//! piece of another file passes for a record. The log ends at the first incomplete record. Integers
//! are little-endian.

use hither_vfs::Fh;
use twox_hash::XxHash3_64;

/// Bytes of a block: the unit of validity and of checksums.
pub(super) const BLOCK: u64 = 64 << 10;
/// First bytes of a map; the last one is the version.
const MAGIC: [u8; 8] = *b"hitherM\x01";
/// Length of a map's header, in bytes.
pub(super) const HEADER: usize = 256;
/// Length of a record, in bytes.
pub(super) const RECORD: usize = 32;
/// Longest filehandle, in bytes (RFC 8881 section 3.2).
const FH_MAX: usize = 128;

/// Key of an entry: a hash of the filehandle. The filehandle itself is compared too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key(pub u64, pub u64);

impl Key {
    /// The key as 32 hexadecimal digits.
    pub fn hex(self) -> String {
        format!("{:016x}{:016x}", self.0, self.1)
    }

    /// The key of 32 hexadecimal digits; `None` for other strings.
    pub fn of_hex(digits: &str) -> Option<Self> {
        let part = |s: Option<&str>| u64::from_str_radix(s?, 16).ok();
        let is_hex = digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        is_hex.then(|| Some(Self(part(digits.get(..16))?, part(digits.get(16..))?)))?
    }

    pub fn of(fh: &Fh) -> Self {
        Self(XxHash3_64::oneshot(&fh.0), XxHash3_64::oneshot_with_seed(1, &fh.0))
    }
}

/// A version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Version {
    /// The change attribute.
    pub change: u64,
    /// Length in bytes.
    pub size: u64,
}

impl Version {
    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(BLOCK)
    }

    /// Offset and length of a block.
    pub fn extent(&self, block: u64) -> (u64, usize) {
        let at = block.saturating_mul(BLOCK);
        (at, self.size.saturating_sub(at).min(BLOCK) as usize)
    }
}

/// Header of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub id: u64,
    pub fh: Fh,
    pub version: Version,
}

/// Record of a block on stable storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub block: u64,
    pub sum: u64,
}

/// Checksum of a block's bytes.
pub(super) fn sum(data: &[u8]) -> u64 {
    XxHash3_64::oneshot(data)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

impl Header {
    /// `None` when the filehandle is too long.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let fh = &self.fh.0;
        if fh.len() > FH_MAX {
            return None;
        }
        let mut out = Vec::with_capacity(HEADER);
        out.extend(MAGIC);
        out.extend(self.id.to_le_bytes());
        out.extend((BLOCK as u32).to_le_bytes());
        out.extend((fh.len() as u32).to_le_bytes());
        out.extend(self.version.change.to_le_bytes());
        out.extend(self.version.size.to_le_bytes());
        out.extend_from_slice(fh);
        out.resize(HEADER - 8, 0);
        let check = XxHash3_64::oneshot(&out);
        out.extend(check.to_le_bytes());
        Some(out)
    }

    /// `None` when the header is damaged or of another format.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..HEADER)?;
        let check = XxHash3_64::oneshot(&bytes[..HEADER - 8]);
        if bytes[..8] != MAGIC || u64_at(bytes, HEADER - 8)? != check {
            return None;
        }
        let fh_len = u32_at(bytes, 20)? as usize;
        if u64::from(u32_at(bytes, 16)?) != BLOCK || fh_len > FH_MAX {
            return None;
        }
        Some(Self {
            id: u64_at(bytes, 8)?,
            version: Version { change: u64_at(bytes, 24)?, size: u64_at(bytes, 32)? },
            fh: Fh(bytes::Bytes::copy_from_slice(&bytes[40..40 + fh_len])),
        })
    }
}

impl Record {
    pub fn encode(&self, id: u64) -> [u8; RECORD] {
        let mut out = [0; RECORD];
        out[..8].copy_from_slice(&self.block.to_le_bytes());
        out[8..16].copy_from_slice(&self.sum.to_le_bytes());
        let check = XxHash3_64::oneshot_with_seed(id, &out[..24]);
        out[24..].copy_from_slice(&check.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8], id: u64) -> Option<Self> {
        let check = XxHash3_64::oneshot_with_seed(id, bytes.get(..24)?);
        (u64_at(bytes, 24)? == check).then_some(())?;
        Some(Self { block: u64_at(bytes, 0)?, sum: u64_at(bytes, 8)? })
    }
}

/// The records of a log up to the first one that is incomplete or beyond the end of the file.
pub(super) fn records(log: &[u8], id: u64, version: Version) -> Vec<Record> {
    let whole = log.chunks_exact(RECORD).map_while(|r| Record::decode(r, id));
    whole.take_while(|r| r.block < version.blocks()).collect()
}

/// Names of an entry's files: data and map.
pub(super) fn names(key: Key, id: u64) -> (String, String) {
    let stem = format!("{:02x}/{:016x}{:016x}-{id:016x}", key.0 >> 56, key.0, key.1);
    (format!("{stem}.d"), format!("{stem}.m"))
}

/// Key and id of a file name, and whether it is a map; `None` for other names.
pub(super) fn parse_name(name: &str) -> Option<(Key, u64, bool)> {
    let (_, file) = name.split_once('/')?;
    let (stem, suffix) = file.rsplit_once('.')?;
    let (key, id) = stem.split_once('-')?;
    if key.len() != 32 || id.len() != 16 || !key.is_ascii() {
        return None;
    }
    let hex = |s: &str| u64::from_str_radix(s, 16).ok();
    let key = Key(hex(&key[..16])?, hex(&key[16..])?);
    let id = hex(id)?;
    let (data, map) = names(key, id);
    match suffix {
        "d" if data == name => Some((key, id, false)),
        "m" if map == name => Some((key, id, true)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(fh: Vec<u8>, id: u64, change: u64, size: u64) -> Header {
        Header { id, fh: Fh(fh.into()), version: Version { change, size } }
    }

    proptest! {
        /// A header decodes to the written values. A header with one flipped bit does not decode.
        #[test]
        fn header_detects_flipped_bit(
            fh in proptest::collection::vec(any::<u8>(), 0..=128),
            id: u64, change: u64, size: u64, bit in 0..HEADER * 8,
        ) {
            let h = header(fh, id, change, size);
            let mut bytes = h.encode().unwrap();
            prop_assert_eq!(bytes.len(), HEADER);
            prop_assert_eq!(Header::decode(&bytes), Some(h));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Header::decode(&bytes), None);
        }

        /// The log ends at the first record that is incomplete, damaged or of another entry.
        #[test]
        fn torn_record_ends_log(blocks in proptest::collection::vec(0..50u64, 0..20), id: u64, cut: u16, other: u64) {
            let version = Version { change: 1, size: 50 * BLOCK };
            let all: Vec<_> = blocks.iter().map(|b| Record { block: *b, sum: b ^ id }).collect();
            let mut log: Vec<u8> = all.iter().flat_map(|r| r.encode(id)).collect();
            prop_assert_eq!(&records(&log, id, version), &all);
            if other != id {
                prop_assert_eq!(records(&log, other, version), vec![]);
            }
            log.truncate(usize::from(cut) % (log.len() + 1));
            prop_assert_eq!(&records(&log, id, version), &all[..log.len() / RECORD]);
            if let Some(last) = log.last_mut() {
                *last ^= 1;
                let whole = (log.len() - 1) / RECORD;
                prop_assert_eq!(&records(&log, id, version), &all[..whole]);
            }
        }

        /// The parsers of headers and records return on any input. No random name is a file name of
        /// the cache.
        #[test]
        fn entry_parser_survives_random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..600), name in "\\PC{0,60}") {
            let _ = Header::decode(&bytes);
            let _ = records(&bytes, 1, Version { change: 1, size: u64::MAX });
            prop_assert_eq!(parse_name(&name), None);
        }
    }

    /// The parser returns the key of a file name that the cache made. It rejects a changed name.
    #[test]
    fn file_names_parse_back() {
        let key = Key(0x12ab << 48, 7);
        let (data, map) = names(key, 0xfeed);
        assert_eq!(parse_name(&data), Some((key, 0xfeed, false)));
        assert_eq!(parse_name(&map), Some((key, 0xfeed, true)));
        assert_eq!(parse_name(&data.replace("12/", "13/")), None);
        assert_eq!(parse_name(&map.replace(".m", ".x")), None);
    }

    #[test]
    fn keys_are_read_as_written() {
        let key = Key(7, u64::MAX);
        assert_eq!(Key::of_hex(&key.hex()), Some(key));
        for bad in ["", "7", &key.hex()[1..], &format!("+{}", &key.hex()[1..]), &"é".repeat(16)] {
            assert_eq!(Key::of_hex(bad), None, "{bad}");
        }
    }

    /// A record of a block beyond the file's end ends the log.
    #[test]
    fn record_beyond_end_ends_log() {
        let v = Version { change: 1, size: 2 * BLOCK };
        let log: Vec<u8> = [0, 1, 2, 1].iter().flat_map(|b| Record { block: *b, sum: 0 }.encode(9)).collect();
        assert_eq!(records(&log, 9, v).len(), 2);
    }
}
