//! Distinguishes a damaged journal from a torn one.
//!
//! A batch is written after the previous batch is durable. Therefore only the last batch can be
//! torn, and its records were never acknowledged. When a batch with a later number exists, the
//! missing batch was durable and is damaged. Damage of the last batch looks like a torn write.
//!
//! A header is shorter than a sector, so a power cut leaves the old header or the new one. A block
//! without header is damaged. The other block may then name a tail that was freed, so its records
//! would be applied over later changes. Only a journal that was not yet formatted wholly has one
//! header: generation 1.

use super::{BATCH_MAGIC, BLOCK_BYTES, Found, Position, RING_AT};
use std::io;

/// Bytes read at a time in the search for later batches.
const PIECE_BYTES: u64 = 1 << 20;

/// Damage of a journal whose records were acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A header is damaged. The field is its offset in bytes.
    #[error("its header at byte {0} is damaged")]
    Head(u64),
    /// A batch is damaged, and later ones are whole.
    #[error("batch {number} at byte {offset} is damaged, and batch {later} follows it at byte {later_at}")]
    Batch {
        /// Number of the damaged batch.
        number: u64,
        /// Offset of the damaged batch, in bytes.
        offset: u64,
        /// The last whole batch.
        later: u64,
        /// Offset of the last whole batch, in bytes.
        later_at: u64,
    },
}

impl Found {
    /// Looks for damage that would make a start lose acknowledged records. Changes nothing.
    ///
    /// # Errors
    /// Those of the device; `InvalidData` for a record that exceeds its batch.
    pub fn check(&self) -> io::Result<Option<Damage>> {
        if let Some(at) = self.headless_at.filter(|_| self.head.generation > 1) {
            return Ok(Some(Damage::Head(at)));
        }
        let end = self.read_all(|_, _, _| Ok(()))?;
        let later = self.last_after(end.batch)?;
        Ok(later.map(|later| Damage::Batch {
            number: end.batch,
            offset: end.offset,
            later: later.batch,
            later_at: later.offset,
        }))
    }

    /// The last whole batch with a number above `number`.
    fn last_after(&self, number: u64) -> io::Result<Option<Position>> {
        let mut last: Option<Position> = None;
        let mut piece = vec![0; PIECE_BYTES as usize];
        let mut piece_at = RING_AT;
        while piece_at < self.head.size {
            let len = PIECE_BYTES.min(self.head.size - piece_at) as usize / BLOCK_BYTES * BLOCK_BYTES;
            if len == 0 {
                break;
            }
            self.device.read_at(&mut piece[..len], piece_at)?;
            for (block, offset) in piece[..len].chunks(BLOCK_BYTES).zip((piece_at..).step_by(BLOCK_BYTES)) {
                let mut words = block.chunks_exact(8).map(|w| w.try_into().map_or(0, u64::from_le_bytes));
                let is_batch = words.next() == Some(BATCH_MAGIC) && words.next() == Some(self.head.epoch);
                let batch = words.next().filter(|_| is_batch).unwrap_or_default();
                let here = Position { batch, offset, seq: 0 };
                if batch > last.map_or(number, |last| last.batch) && self.batch_at(here)?.is_some() {
                    last = Some(here);
                }
            }
            piece_at += len as u64;
        }
        Ok(last)
    }
}
