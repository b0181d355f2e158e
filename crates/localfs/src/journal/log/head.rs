//! The header of a journal file: the owner of the journal, and the place where the records begin.
//!
//! The header knows nothing of records. The two headers are written in turn, so one of them is
//! always whole.

use super::{BLOCK_BYTES, Position, RING_AT};
use crate::journal::device::Device;
use std::io;
use twox_hash::XxHash3_64;

/// The first bytes of a header.
const MAGIC: &[u8; 8] = b"hithjrn1";
/// Length of a header without its checksum, in bytes.
const HEAD_BYTES: usize = 96;

/// The owner of a journal. A journal of another owner is not touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The machine (machine-id(5)).
    pub host: [u8; 16],
    /// The file system and export.
    pub fs: [u8; 16],
}

/// The place where the journal begins, according to its newest header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub owner: Owner,
    pub epoch: u64,
    pub size: u64,
    /// Counts headers.
    pub generation: u64,
    pub tail: Position,
}

impl Head {
    /// Writes this header over the older of the two headers.
    pub fn write(&self, device: &dyn Device) -> io::Result<()> {
        let mut out = Vec::with_capacity(BLOCK_BYTES);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.owner.host);
        out.extend_from_slice(&self.owner.fs);
        for n in [self.epoch, self.size, self.generation, self.tail.batch, self.tail.offset, self.tail.seq] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.resize(HEAD_BYTES, 0);
        out.extend_from_slice(&XxHash3_64::oneshot(&out).to_le_bytes());
        out.resize(BLOCK_BYTES, 0);
        device.write_at(&out, self.generation % 2 * BLOCK_BYTES as u64)
    }

    /// Whether a block has the magic number of another format version.
    pub fn has_other_version(block: &[u8; BLOCK_BYTES]) -> bool {
        let (name, version) = MAGIC.split_at(MAGIC.len() - 1);
        block.strip_prefix(name).is_some_and(|rest| !rest.starts_with(version))
    }

    /// The header in a block; `None` unless the block holds a whole header.
    pub fn parse(block: &[u8; BLOCK_BYTES]) -> Option<Self> {
        let (head, rest) = block.split_at(HEAD_BYTES);
        let sum = u64::from_le_bytes(*rest.first_chunk::<8>()?);
        let rest = head.strip_prefix(MAGIC).filter(|_| XxHash3_64::oneshot(head) == sum)?;
        let (host, rest) = rest.split_first_chunk::<16>()?;
        let (fs, rest) = rest.split_first_chunk::<16>()?;
        let mut words = rest.chunks_exact(8).map(|w| w.try_into().map_or(0, u64::from_le_bytes));
        let mut next = || words.next();
        let (epoch, size, generation) = (next()?, next()?, next()?);
        let tail = Position { batch: next()?, offset: next()?, seq: next()? };
        let sound = tail.offset >= RING_AT && tail.offset < size;
        sound.then_some(Self { owner: Owner { host: *host, fs: *fs }, epoch, size, generation, tail })
    }
}
