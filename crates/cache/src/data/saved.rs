//! The saved index of a shelf, from an orderly shutdown to the next start.
//!
//! `memo/index.x` has a header, then one record per entry in the order of the cleaner's policy, all
//! under one checksum. It is written when no more entries are added. A start makes it invalid,
//! durably, before any other change. So the file never describes an earlier state. Without it, all
//! files of the directory are scanned. It has the entries and their order of eviction. Only each
//! entry's own map tells which blocks are valid.

use super::format::Key;
use super::index::{Index, Slot};
use super::io::Io;
use crate::policy::{Policy, SavedUse};
use std::io::{self, ErrorKind};
use std::sync::Weak;
use twox_hash::XxHash3_64;

/// Name of the file.
pub(super) const NAME: &str = "memo/index.x";
/// First bytes; the last one is the version.
const MAGIC: [u8; 8] = *b"hitherX\x01";
/// Length of the header, in bytes: magic, policy, number of entries, checksum.
const HEADER: usize = 32;
/// Length of a record, in bytes.
const RECORD: usize = 64;
/// Largest valid file, in bytes.
const FILE_MAX: u64 = 8 << 30;

fn encode(slot: &Slot, bytes: u64, kept: SavedUse) -> [u8; RECORD] {
    let mut out = [0; RECORD];
    let words =
        [slot.key.0, slot.key.1, slot.id, bytes, slot.data_bytes, slot.used_s, kept.younger.to_bits()];
    for (to, word) in out.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    (out[56], out[57]) = (kept.uses, u8::from(kept.main));
    out
}

fn decode(record: &[u8]) -> Option<(Slot, u64, SavedUse)> {
    let word = |i: usize| record.get(i * 8..i * 8 + 8)?.try_into().ok().map(u64::from_le_bytes);
    let slot = Slot {
        key: Key(word(0)?, word(1)?),
        id: word(2)?,
        data_bytes: word(4)?,
        used_s: word(5)?,
        entry: Weak::new(),
    };
    let kept = SavedUse { uses: record[56], main: record[57] != 0, younger: f64::from_bits(word(6)?) };
    Some((slot, word(3)?, kept))
}

fn header(policy: Policy, count: u64, body: &[u8]) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..8].copy_from_slice(&MAGIC);
    out[8] = Policy::ALL.iter().position(|p| *p == policy).unwrap_or(0) as u8;
    out[16..24].copy_from_slice(&count.to_le_bytes());
    let check = XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(&out[..24]), body);
    out[24..].copy_from_slice(&check.to_le_bytes());
    out
}

/// Writes the index, replacing the former one.
pub(super) fn write(io: &dyn Io, index: &Index) -> io::Result<()> {
    let mut body = Vec::with_capacity(index.len() * RECORD);
    index.iter().for_each(|(slot, bytes, kept)| body.extend(encode(slot, bytes, kept)));
    match io.remove(NAME) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = io.create(NAME)?;
    file.write_at(&body, HEADER as u64)?;
    file.sync_data()?;
    file.write_at(&header(index.policy(), index.len() as u64, &body), 0)?;
    file.sync_data()
}

/// Makes the saved index invalid, durably.
pub(super) fn invalidate(io: &dyn Io) -> io::Result<()> {
    let file = match io.open(NAME) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    file.write_at(&[0; HEADER], 0)?;
    file.sync_data()
}

/// The policy of the mount that saved the index.
pub(super) fn policy(io: &dyn Io) -> Option<Policy> {
    let mut head = [0; HEADER];
    io.open(NAME).ok()?.read_at(&mut head, 0).ok()?;
    Policy::ALL.get(usize::from(head[8])).copied().filter(|_| head.starts_with(&MAGIC))
}

/// The saved index, if it is complete: entries with their space, and their recorded use if the
/// policy was `policy`.
pub(super) fn read(io: &dyn Io, policy: Policy) -> Option<Vec<(Slot, u64, Option<SavedUse>)>> {
    let file = io.open(NAME).ok()?;
    let len = file.len().ok().filter(|len| (HEADER as u64..FILE_MAX).contains(len))?;
    let mut bytes = vec![0; len as usize];
    file.read_at(&mut bytes, 0).ok()?;
    parse(&bytes, policy)
}

fn parse(bytes: &[u8], policy: Policy) -> Option<Vec<(Slot, u64, Option<SavedUse>)>> {
    let (head, body) = bytes.split_at_checked(HEADER)?;
    let written = Policy::ALL.get(usize::from(head[8])).copied()?;
    if head != header(written, (body.len() / RECORD) as u64, body) || !body.len().is_multiple_of(RECORD) {
        return None;
    }
    let all = body.chunks_exact(RECORD).map(decode);
    let mut all: Vec<_> = all.map(|one| one.map(|(s, b, k)| (s, b, Some(k)))).collect::<Option<_>>()?;
    if written != policy {
        all.sort_by_key(|(slot, ..)| slot.used_s);
        all.iter_mut().for_each(|(.., kept)| *kept = None);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn index(policy: Policy, count: u64) -> Index {
        let mut index = Index::new(policy, 7);
        for i in 0..count {
            let slot =
                Slot { key: Key(i, !i), id: i * 3, data_bytes: i * 10, used_s: 1000 - i, entry: Weak::new() };
            index.insert(slot, i * 10 + 8192);
            if i % 3 == 0 {
                index.used(Key(i, !i), 2000 + i);
            }
        }
        index
    }

    fn file(index: &Index) -> Vec<u8> {
        let mut body = Vec::new();
        index.iter().for_each(|(slot, bytes, kept)| body.extend(encode(slot, bytes, kept)));
        [&header(index.policy(), index.len() as u64, &body)[..], &body].concat()
    }

    proptest! {
        /// A saved index restores the same entries, bytes and order of eviction. A changed or
        /// truncated file is rejected.
        #[test]
        fn saved_index_keeps_eviction_order(which in 0..3usize, count in 0..50u64, bit in 0..8u8, at: u16) {
            let policy = Policy::ALL[which];
            let mut before = index(policy, count);
            let mut bytes = file(&before);
            let mut after = Index::new(policy, 8);
            for (slot, bytes, kept) in parse(&bytes, policy).unwrap() {
                after.restore(slot, bytes, kept);
            }
            prop_assert_eq!((after.len(), after.bytes()), (before.len(), before.bytes()));
            loop {
                let (a, b) = (before.evict(), after.evict());
                prop_assert_eq!(a.as_ref().map(|(s, b)| (s.key, s.id, s.used_s, *b)), b.as_ref().map(|(s, b)| (s.key, s.id, s.used_s, *b)));
                if a.is_none() {
                    break;
                }
            }
            let at = usize::from(at) % bytes.len();
            bytes[at] ^= 1 << bit;
            prop_assert!(parse(&bytes, policy).is_none());
            bytes.truncate(at);
            prop_assert!(parse(&bytes, policy).is_none());
        }

        /// Random bytes are no saved index.
        #[test]
        fn index_parser_rejects_random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(parse(&bytes, Policy::Lru).is_none());
        }
    }

    /// An index saved under another policy is restored in the order of last use.
    #[test]
    fn changed_policy_orders_by_last_use() {
        let bytes = file(&index(Policy::Gdsf, 30));
        let all = parse(&bytes, Policy::Lru).unwrap();
        assert!(
            all.is_sorted_by_key(|(slot, ..)| slot.used_s) && all.iter().all(|(.., kept)| kept.is_none())
        );
    }
}
