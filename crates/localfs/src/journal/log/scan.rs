//! Reads a journal in use: finds the bytes of records while the disk below fails.

use super::{BATCH_HEAD_BYTES, BLOCK_BYTES, Found, Head, Log, Position};
use std::io::{self, ErrorKind};

/// Records with their numbers.
pub type Records = Vec<(u64, Vec<u8>)>;

impl Found {
    /// Whether the journal has no record since the last checkpoint.
    pub fn is_empty(&self) -> io::Result<bool> {
        let mut count = 0;
        self.read_all(|_, _, _| {
            count += 1;
            Ok(())
        })?;
        Ok(count == 0)
    }
}

impl Log {
    /// The disk below fails. The journal frees no space until a checkpoint succeeds that begins
    /// after this call.
    pub fn keep_all(&self) {
        let mut state = self.shared.state.lock();
        state.stuck = true;
        state.kept_all += 1;
    }

    /// Hands all durable records to `each`, in order, with the number and the offset on the device.
    /// Starts at `from`, which an earlier call returned, or at the last checkpoint. Call
    /// [`Log::keep_all`] first. Otherwise the journal may use the space again meanwhile. Returns
    /// the position for the next call, and the records that are not durable yet.
    ///
    /// # Errors
    /// Those of the device; `InvalidData` when a durable record cannot be read.
    pub fn scan(
        &self,
        from: Option<Position>,
        each: impl FnMut(u64, u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<(Position, Records)> {
        let shared = &*self.shared;
        let (found, durable, pending_seq, pending) = {
            let mut state = shared.state.lock();
            // A batch in flight to the device is neither pending nor durable.
            while *self.durable.borrow() + 1 < state.pending_seq && !self.failed() {
                shared.done.wait(&mut state);
            }
            let tail = from.filter(|from| from.seq >= state.head.tail.seq).unwrap_or(state.head.tail);
            let head = Head { tail, ..state.head };
            let found = Found { device: shared.device.clone(), head, headless_at: None };
            let pending = if self.failed() { &[][..] } else { &state.pending[BATCH_HEAD_BYTES..] };
            (found, *self.durable.borrow(), state.pending_seq, pending.to_vec())
        };
        let end = found.read_all(each)?;
        if end.seq <= durable {
            return Err(io::Error::new(ErrorKind::InvalidData, "a durable record cannot be read"));
        }
        let mut left = Vec::new();
        each_record(&pending, pending_seq, |seq, _, record| {
            if seq >= end.seq {
                left.push((seq, record.to_vec()));
            }
            Ok(())
        })?;
        Ok((end, left))
    }

    /// `len` bytes of a record at `at`, an offset on the device that [`Log::scan`] handed out.
    ///
    /// # Errors
    /// Those of the device.
    pub fn bytes_at(&self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let block = BLOCK_BYTES as u64;
        let start = at / block * block;
        let skip = (at - start) as usize;
        let mut buf = vec![0; (skip + len).next_multiple_of(BLOCK_BYTES)];
        self.shared.device.read_at(&mut buf, start)?;
        buf.truncate(skip + len);
        buf.drain(..skip);
        Ok(buf)
    }
}

/// Hands the records of a batch to `each`, with the number of the record and its offset in the
/// payload. Returns the number of the next record.
pub(super) fn each_record(
    payload: &[u8],
    first_seq: u64,
    mut each: impl FnMut(u64, u64, &[u8]) -> io::Result<()>,
) -> io::Result<u64> {
    let (mut rest, mut seq) = (payload, first_seq);
    while let Some((len, tail)) = rest.split_first_chunk::<4>() {
        let len = u32::from_le_bytes(*len) as usize;
        let damaged = || io::Error::new(ErrorKind::InvalidData, "a record is longer than its batch");
        let (record, after) = tail.split_at_checked(len).ok_or_else(damaged)?;
        each(seq, (payload.len() - tail.len()) as u64, record)?;
        seq += 1;
        rest = after;
    }
    Ok(seq)
}
