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

use super::scan::each_record;
use super::{BATCH_MAGIC, BLOCK_BYTES, Found, Owner, Position, RING_AT};
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

/// The state of a journal that no server uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// The owner.
    pub owner: Owner,
    /// The number of the journal.
    pub epoch: u64,
    /// Bytes of the journal, with its headers.
    pub size_bytes: u64,
    /// Bytes that the whole batches take.
    pub used_bytes: u64,
    /// Records in the whole batches that no checkpoint has settled.
    pub records: u64,
    /// Each damage.
    pub damage: Vec<Damage>,
}

impl Found {
    /// Reads all whole batches since the last checkpoint, also those behind damage, and hands their
    /// records to `each`. Changes nothing. Damage of the last batch looks like a torn write, so it
    /// is not reported.
    ///
    /// # Errors
    /// Those of the device and of `each`; `InvalidData` for a record that exceeds its batch.
    pub fn survey(&self, mut each: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<Survey> {
        let headless = self.headless_at.filter(|_| self.head.generation > 1);
        let mut survey = Survey {
            owner: self.head.owner,
            epoch: self.head.epoch,
            size_bytes: self.head.size,
            used_bytes: 0,
            records: 0,
            damage: headless.map(Damage::Head).into_iter().collect(),
        };
        let mut due = self.head.tail;
        for here in self.whole_from(due.batch)? {
            let Some(batch) = self.batch_at(here)? else { continue };
            if here.batch > due.batch {
                survey.damage.push(Damage::Batch {
                    number: due.batch,
                    offset: due.offset,
                    later: here.batch,
                    later_at: here.offset,
                });
            }
            let records = &mut survey.records;
            each_record(&batch.payload, batch.first_seq, |seq, _, record| {
                if seq < self.head.tail.seq {
                    return Ok(());
                }
                *records += 1;
                each(seq, record)
            })?;
            survey.used_bytes += batch.room;
            due = Position { batch: here.batch + 1, offset: here.offset + batch.room, seq: 0 };
        }
        Ok(survey)
    }

    /// Makes this machine's id the owner's. The other header stays until the next checkpoint.
    ///
    /// # Errors
    /// Those of the device.
    pub fn move_to(mut self, host: [u8; 16]) -> io::Result<()> {
        self.head.owner.host = host;
        self.head.generation += 1;
        self.head.write(&*self.device)
    }

    /// The whole batches with the number `number` and above, in order of their numbers.
    fn whole_from(&self, number: u64) -> io::Result<Vec<Position>> {
        let mut found = Vec::new();
        self.each_head(|here| {
            if here.batch >= number && self.batch_at(here)?.is_some() {
                found.push(here);
            }
            Ok(())
        })?;
        found.sort_by_key(|here| here.batch);
        found.dedup_by_key(|here| here.batch);
        Ok(found)
    }

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
        self.each_head(|here| {
            if here.batch > last.map_or(number, |last| last.batch) && self.batch_at(here)?.is_some() {
                last = Some(here);
            }
            Ok(())
        })?;
        Ok(last)
    }

    /// Hands each block to `each` that begins like a batch of this journal.
    fn each_head(&self, mut each: impl FnMut(Position) -> io::Result<()>) -> io::Result<()> {
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
                if let Some(batch) = words.next().filter(|_| is_batch) {
                    each(Position { batch, offset, seq: 0 })?;
                }
            }
            piece_at += len as u64;
        }
        Ok(())
    }
}
