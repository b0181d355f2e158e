//! Pieces of bytes that the layers above keep over a restart; opaque to this module.
//!
//! Each set of pieces is a file `memo/NUMBER.n`. The pieces are written first. When they are on
//! stable storage, the header is written, which makes the file valid. Then the older files are
//! removed. So there is a complete set at any moment after the first one. Every piece has a
//! checksum that includes the file's random id and the piece's position. A damaged piece is left
//! out.

use super::DataCache;
use super::io::Io;
use super::stats::add;
use std::io::{self, ErrorKind};
use twox_hash::XxHash3_64;

/// First bytes of a header; the last one is the version.
const MAGIC: [u8; 8] = *b"hitherN\x01";
/// Length of a header, in bytes: magic, id, number of pieces, total length, checksum.
const HEADER: usize = 40;
/// Length of the frame before each piece, in bytes: length and checksum.
const FRAME: usize = 12;
/// Largest valid file, in bytes.
const FILE_MAX: u64 = 1 << 30;

/// The directory.
const DIR: &str = "memo";

fn name(number: u64) -> String {
    format!("{DIR}/{number:016x}.n")
}

fn number_of(name_: &str) -> Option<u64> {
    let hex = name_.strip_prefix(DIR)?.strip_prefix('/')?.strip_suffix(".n")?;
    let number = u64::from_str_radix(hex, 16).ok()?;
    (name(number) == name_).then_some(number)
}

/// Numbers of the files, newest first.
fn numbers(io: &dyn Io) -> io::Result<Vec<u64>> {
    let mut all: Vec<u64> = io.list_in(DIR)?.iter().filter_map(|name| number_of(name)).collect();
    all.sort_unstable_by_key(|n| std::cmp::Reverse(*n));
    Ok(all)
}

fn sum(piece: &[u8], id: u64, place: usize) -> u64 {
    XxHash3_64::oneshot_with_seed(id ^ (place as u64).rotate_left(32), piece)
}

fn header(id: u64, pieces: usize, len: u64) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(id.to_le_bytes());
    out.extend((pieces as u64).to_le_bytes());
    out.extend(len.to_le_bytes());
    let check = XxHash3_64::oneshot(&out);
    out.extend(check.to_le_bytes());
    out
}

/// Writes a set and removes the older ones.
pub(super) fn write(io: &dyn Io, pieces: &[Vec<u8>], id: u64) -> io::Result<()> {
    let before = numbers(io)?;
    let number = before.first().map_or(1, |n| n.wrapping_add(1));
    let mut body = Vec::new();
    for (place, piece) in pieces.iter().enumerate() {
        let len = u32::try_from(piece.len()).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
        body.extend(len.to_le_bytes());
        body.extend(sum(piece, id, place).to_le_bytes());
        body.extend_from_slice(piece);
    }
    let write = || {
        let file = io.create(&name(number))?;
        file.write_at(&body, HEADER as u64)?;
        file.sync_data()?;
        file.write_at(&header(id, pieces.len(), (HEADER + body.len()) as u64), 0)?;
        file.sync_data()
    };
    let written = write();
    if written.is_err() {
        // The remaining file has no valid header. It is ignored, and removed with the next set.
        let _ = io.remove(&name(number));
        return written;
    }
    for old in before {
        // A file that stays is removed with the next set.
        let _ = io.remove(&name(old));
    }
    Ok(())
}

/// The newest set, and the number of its damaged pieces.
pub(super) fn read(io: &dyn Io) -> io::Result<(Vec<Vec<u8>>, u64)> {
    for number in numbers(io)? {
        let file = io.open(&name(number))?;
        let len = file.len()?;
        if len < HEADER as u64 || len > FILE_MAX {
            continue;
        }
        let mut bytes = vec![0; len as usize];
        file.read_at(&mut bytes, 0)?;
        if let Some(found) = parse(&bytes) {
            return Ok(found);
        }
    }
    Ok((Vec::new(), 0))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

fn parse(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, u64)> {
    let (id, count, len) = (u64_at(bytes, 8)?, u64_at(bytes, 16)?, u64_at(bytes, 24)?);
    if bytes.get(..HEADER)? != header(id, usize::try_from(count).ok()?, len) || len != bytes.len() as u64 {
        return None;
    }
    let (mut pieces, mut damaged, mut rest) = (Vec::new(), 0, &bytes[HEADER..]);
    let mut place = 0;
    while let Some((frame, tail)) = rest.split_at_checked(FRAME) {
        let len = u32::from_le_bytes(frame[..4].try_into().ok()?) as usize;
        let Some((piece, tail)) = tail.split_at_checked(len) else { break };
        if u64_at(frame, 4)? == sum(piece, id, place) {
            pieces.push(piece.to_vec());
        } else {
            damaged += 1;
        }
        (place, rest) = (place + 1, tail);
    }
    damaged += count.saturating_sub(place as u64);
    Some((pieces, damaged))
}

impl DataCache {
    /// The pieces last given to [`DataCache::set_memo`], possibly by an earlier daemon. Damaged
    /// pieces are left out.
    pub async fn memo(&self) -> Vec<Vec<u8>> {
        let Some(shelf) = self.shelf() else { return Vec::new() };
        let found = self.blocking(move || read(&*shelf.io)).await.and_then(|found| found);
        match found {
            Ok((pieces, damaged)) => {
                add(&self.counters.damaged, damaged);
                if damaged > 0 {
                    tracing::warn!(
                        "disk cache: {damaged} pieces of names and attributes were damaged; left out"
                    );
                }
                pieces
            }
            Err(e) => {
                tracing::debug!("disk cache: names and attributes cannot be read: {e}");
                Vec::new()
            }
        }
    }

    /// Stores pieces over a restart, replacing the former ones. Does nothing while the cache takes
    /// no additions.
    pub async fn set_memo(&self, pieces: Vec<Vec<u8>>) {
        let (Some(shelf), true) = (self.shelf(), self.may_add()) else { return };
        let id = (self.env.random)();
        let written = self.blocking(move || write(&*shelf.io, &pieces, id)).await.and_then(|done| done);
        if let Err(e) = written {
            // The next start then begins without them.
            tracing::debug!("disk cache: names and attributes cannot be kept: {e}");
        }
    }

    /// Whether the directory may be written, regardless of its size.
    fn may_add(&self) -> bool {
        !self.options.read_only && self.is_on() && !self.trouble.is_low()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// After a flipped bit the parser skips damaged pieces. It returns no piece that was not
        /// written.
        #[test]
        fn damaged_memo_pieces_are_skipped(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..6),
            id: u64, at: u16, bit in 0..8u32,
        ) {
            let mut body = Vec::new();
            for (place, piece) in pieces.iter().enumerate() {
                body.extend((piece.len() as u32).to_le_bytes());
                body.extend(sum(piece, id, place).to_le_bytes());
                body.extend_from_slice(piece);
            }
            let mut file = header(id, pieces.len(), (HEADER + body.len()) as u64);
            file.extend(body);
            prop_assert_eq!(parse(&file), Some((pieces.clone(), 0)));
            let at = usize::from(at) % file.len();
            file[at] ^= 1 << bit;
            if let Some((found, damaged)) = parse(&file) {
                prop_assert!(damaged > 0);
                // All found pieces were written, in this order.
                let mut all = pieces.iter();
                prop_assert!(found.iter().all(|one| all.any(|p| p == one)));
            }
        }

        /// Random bytes are no memo file, and a random name has no number.
        #[test]
        fn memo_parser_rejects_random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200), name in "\\PC{0,30}") {
            prop_assert_eq!(parse(&bytes), None);
            prop_assert_eq!(number_of(&name), None);
        }
    }
}
