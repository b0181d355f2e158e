//! The uncommitted writes of one file: a pure state machine.
//!
//! Extents never overlap: a later write replaces the covered part of an earlier one. Each extent
//! has the verifier of its WRITE and a sequence number that grows with every write. A COMMIT
//! therefore counts only for writes answered before it was sent. When the extent's verifier differs
//! from that of COMMIT, the server lost the extent in a restart (RFC 1813 section 3.3.21, RFC 8881
//! section 18.3). The extent then stays until it is written again.

use super::{Origin, Verifier};
use bytes::Bytes;
use hither_vfs::Data;
use std::collections::BTreeMap;

/// Pieces shorter than this are copied. An uncopied piece would keep its whole buffer alive. A
/// frontend's buffer holds a request of the largest size, usually 1 MiB. Kept data therefore takes
/// at most four times the counted memory. Streams write in full buffers and are not copied.
const COPY_BELOW_BYTES: usize = 256 << 10;

/// Approximate memory of an entry beside its bytes, for the bound on memory.
const ENTRY_OVERHEAD_BYTES: u64 = 192;

/// The epoch of no connection.
const BEFORE: u64 = u64::MAX;
/// The verifier of no server: RFC 8881 section 18.3.3 lets servers use the time of their start.
const NEVER: Verifier = [0xff; 8];

/// Bytes of a file that the server may still lose.
#[derive(Debug, Clone)]
pub(super) struct UncommittedWrite {
    data: Bytes,
    verifier: Verifier,
    seq: u64,
    /// Value of the connection's reconnection counter before the write was sent.
    epoch: u64,
    origin: Origin,
}

/// A piece to write again.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub offset_bytes: u64,
    pub data: Data,
    pub origin: Origin,
}

/// A COMMIT about to be sent: it covers the writes up to `through`.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub through: u64,
    pub origin: Origin,
}

/// The uncommitted writes of one file; see the module.
#[derive(Debug, Default)]
pub(super) struct Log {
    kept: BTreeMap<u64, UncommittedWrite>,
    /// Number of entries of each epoch. Usually there is one epoch. Then `doubtful_end_bytes` does
    /// not read the entries.
    epochs: BTreeMap<u64, usize>,
    bytes: u64,
    seq: u64,
}

impl Log {
    /// Memory taken, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Sequence number of the latest write.
    pub fn latest(&self) -> u64 {
        self.seq
    }

    /// Records a WRITE that was answered as not yet stable.
    pub fn wrote(&mut self, offset_bytes: u64, data: &Data, verifier: Verifier, epoch: u64, origin: &Origin) {
        self.remove(offset_bytes, offset_bytes.saturating_add(data.len() as u64));
        self.seq += 1;
        let mut at = offset_bytes;
        for part in data.parts() {
            let len = part.len() as u64;
            let kept = UncommittedWrite {
                data: compact(part.clone()),
                verifier,
                seq: self.seq,
                epoch,
                origin: origin.clone(),
            };
            self.insert(at, kept);
            at += len;
        }
    }

    /// Records a WRITE that was answered as stable. Older data in the range is forgotten.
    pub fn wrote_stable(&mut self, start_bytes: u64, end_bytes: u64) {
        self.remove(start_bytes, end_bytes);
    }

    /// Records that a lost piece was written again and may be lost again. In contrast to
    /// [`Log::wrote`], the piece keeps its place in the order of writes. The caller holds the range
    /// lock, so the kept data equals the sent data.
    pub fn resent(&mut self, start_bytes: u64, end_bytes: u64, verifier: Verifier, epoch: u64) {
        self.split_at(start_bytes);
        self.split_at(end_bytes);
        for (_, kept) in self.kept.range_mut(start_bytes..end_bytes) {
            uncount(&mut self.epochs, kept.epoch);
            *self.epochs.entry(epoch).or_default() += 1;
            kept.verifier = verifier;
            kept.epoch = epoch;
        }
    }

    /// Records that the file was cut to `size_bytes`.
    pub fn truncated(&mut self, size_bytes: u64) {
        self.remove(size_bytes, u64::MAX);
    }

    /// The extent of a COMMIT sent now; `None` when there is nothing to commit.
    pub fn plan(&self) -> Option<Plan> {
        let first = self.kept.values().next()?;
        Some(Plan { through: self.seq, origin: first.origin.clone() })
    }

    /// Records that COMMIT returned `verifier`. Forgets the stable extents. Returns the ranges that
    /// the server lost. They stay kept.
    pub fn committed(&mut self, plan: &Plan, verifier: Verifier) -> Vec<(u64, u64)> {
        let stable = |k: &UncommittedWrite| k.seq <= plan.through && k.verifier == verifier;
        self.retain(|k| !stable(k));
        self.ranges(|k| k.seq <= plan.through)
    }

    /// Records that the server refused a COMMIT for now. It may have lost the writes up to
    /// `through`, so they are written again, whatever verifier the next COMMIT returns.
    pub fn uncertain(&mut self, through: u64) {
        for kept in self.kept.values_mut().filter(|k| k.seq <= through) {
            uncount(&mut self.epochs, kept.epoch);
            *self.epochs.entry(BEFORE).or_default() += 1;
            (kept.verifier, kept.epoch) = (NEVER, BEFORE);
        }
    }

    /// Forgets the writes of refused COMMITs. Returns whether there were any.
    pub fn drop_uncertain(&mut self) -> bool {
        let before = self.kept.len();
        self.retain(|k| k.epoch != BEFORE);
        self.kept.len() < before
    }

    /// Forgets all writes up to `through`.
    pub fn abandon(&mut self, through: u64) {
        self.retain(|k| k.seq > through);
    }

    /// Whether a write up to `through` is still uncommitted.
    pub fn has_through(&self, through: u64) -> bool {
        self.kept.values().any(|k| k.seq <= through)
    }

    /// The parts of a range that were written up to `through` under a verifier other than
    /// `verifier`. The pieces have at most `max_bytes`. Adjacent pieces are joined.
    pub fn lost_in(&self, range: (u64, u64), through: u64, verifier: Verifier, max_bytes: u64) -> Vec<Piece> {
        let mut out: Vec<Piece> = Vec::new();
        let lost = |k: &UncommittedWrite| k.seq <= through && k.verifier != verifier;
        for (&at, kept) in self.kept.range(range.0..range.1).filter(|(_, k)| lost(k)) {
            let mut start = 0;
            while start < kept.data.len() {
                let offset_bytes = at + start as u64;
                let room = match out.last() {
                    Some(p)
                        if p.offset_bytes + p.data.len() as u64 == offset_bytes
                            && p.origin == kept.origin =>
                    {
                        max_bytes - p.data.len() as u64
                    }
                    _ => 0,
                };
                if room == 0 {
                    out.push(Piece { offset_bytes, data: Data::default(), origin: kept.origin.clone() });
                }
                let room = if room == 0 { max_bytes } else { room };
                let end = kept.data.len().min(start + room as usize);
                if let Some(piece) = out.last_mut() {
                    piece.data.push(kept.data.slice(start..end));
                }
                start = end;
            }
        }
        out
    }

    /// Kept bytes of a range from an epoch other than `epoch`, with their offsets. The server may
    /// have lost them since.
    pub fn doubtful(&self, start_bytes: u64, end_bytes: u64, epoch: u64) -> Vec<(u64, Bytes)> {
        let before = self.kept.range(..start_bytes).next_back();
        before
            .into_iter()
            .chain(self.kept.range(start_bytes..end_bytes))
            .filter(|(_, k)| k.epoch != epoch)
            .filter_map(|(&at, k)| {
                let (from, to) = (at.max(start_bytes), (at + k.data.len() as u64).min(end_bytes));
                (from < to).then(|| (from, k.data.slice((from - at) as usize..(to - at) as usize)))
            })
            .collect()
    }

    /// End of the last extent from an epoch other than `epoch`; 0 without one.
    pub fn doubtful_end_bytes(&self, epoch: u64) -> u64 {
        if self.epochs.keys().all(|&e| e == epoch) {
            return 0;
        }
        let last = self.kept.iter().rev().find(|(_, k)| k.epoch != epoch);
        last.map_or(0, |(&at, k)| at + k.data.len() as u64)
    }

    fn ranges(&self, wanted: impl Fn(&UncommittedWrite) -> bool) -> Vec<(u64, u64)> {
        let mut out: Vec<(u64, u64)> = Vec::new();
        for (&at, kept) in self.kept.iter().filter(|(_, k)| wanted(k)) {
            let end = at + kept.data.len() as u64;
            match out.last_mut() {
                Some(last) if last.1 == at => last.1 = end,
                _ => out.push((at, end)),
            }
        }
        out
    }

    fn insert(&mut self, at: u64, kept: UncommittedWrite) {
        self.bytes += kept.data.len() as u64 + ENTRY_OVERHEAD_BYTES;
        *self.epochs.entry(kept.epoch).or_default() += 1;
        self.kept.insert(at, kept);
    }

    fn retain(&mut self, mut keep: impl FnMut(&UncommittedWrite) -> bool) {
        let (bytes, epochs) = (&mut self.bytes, &mut self.epochs);
        self.kept.retain(|_, k| {
            let stays = keep(k);
            if !stays {
                *bytes -= k.data.len() as u64 + ENTRY_OVERHEAD_BYTES;
                uncount(epochs, k.epoch);
            }
            stays
        });
    }

    /// Removes a range; extents that reach beyond it are cut.
    fn remove(&mut self, start_bytes: u64, end_bytes: u64) {
        self.split_at(start_bytes);
        self.split_at(end_bytes);
        let gone: Vec<u64> = self.kept.range(start_bytes..end_bytes).map(|(&at, _)| at).collect();
        for at in gone {
            if let Some(k) = self.kept.remove(&at) {
                self.bytes -= k.data.len() as u64 + ENTRY_OVERHEAD_BYTES;
                uncount(&mut self.epochs, k.epoch);
            }
        }
    }

    /// Splits the extent that covers `at` at this offset.
    fn split_at(&mut self, at: u64) {
        let Some((&start, kept)) = self.kept.range_mut(..at).next_back() else { return };
        let head_bytes = at - start;
        if head_bytes >= kept.data.len() as u64 {
            return;
        }
        let mut tail = kept.clone();
        tail.data = compact(kept.data.slice(head_bytes as usize..));
        kept.data = compact(kept.data.slice(..head_bytes as usize));
        self.bytes -= tail.data.len() as u64;
        self.insert(at, tail);
    }
}

/// Decrements the number of entries of `epoch`.
fn uncount(epochs: &mut BTreeMap<u64, usize>, epoch: u64) {
    if let Some(n) = epochs.get_mut(&epoch) {
        *n -= 1;
        if *n == 0 {
            epochs.remove(&epoch);
        }
    }
}

/// Copies a piece shorter than [`COPY_BELOW_BYTES`] into its own buffer.
fn compact(b: Bytes) -> Bytes {
    if b.len() < COPY_BELOW_BYTES { Bytes::copy_from_slice(&b) } else { b }
}
