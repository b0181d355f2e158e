//! Calls that were made, by the names that their senders gave them. A restarted server does not
//! make them again.
//!
//! The record of a change follows the name of its call ([`hither_vfs::RequestContext::call`]); both
//! become durable together. A call that was made stable in another way has a record of its own.
//! When a checkpoint frees records, their calls are first written to a small file in the state
//! directory. The file holds only the newest calls, and old calls are dropped (`AGE_MAX`). The file
//! belongs to one epoch of the journal. A journal that was discarded or given up answers no calls.

use super::fresh::{self, Fresh};
use super::names::Look;
use super::state_files::keep;
use super::{Record, parse};
use crate::journal::Found;
use bytes::Bytes;
use hither_vfs::{Answered, CALL_MAX_BYTES, Fh};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;
use twox_hash::XxHash3_64;

/// Name of the file.
const FILE: &str = "journal-replies";
/// The first bytes of the file. The epoch of the journal follows.
const MAGIC: &[u8; 8] = b"hithrpl1";
/// Most calls that are kept. A client sends a call again when it got no answer. A few thousand
/// calls are in flight at a time.
pub(in crate::local) const CALLS_MAX: usize = 16_384;
/// Longest time between a call and a crash. A client sends a call again about every minute.
const AGE_MAX: Duration = Duration::from_secs(600);
/// Longest file in bytes: each call takes less than 256 bytes.
const FILE_MAX_BYTES: u64 = 256 * CALLS_MAX as u64;

/// Recent calls.
pub(in crate::local) struct Calls {
    /// The directory of the file; `None`: calls are not kept.
    dir: Option<PathBuf>,
    epoch: u64,
    inner: Mutex<Inner>,
    /// Calls whose records are not durable yet.
    fresh: Option<Fresh>,
}

#[derive(Default)]
struct Inner {
    /// Calls with the number of the record (0: a previous run) and the time of the call; oldest
    /// first.
    all: VecDeque<(u64, Instant, Answered)>,
    /// The file holds all calls up to this record.
    kept: u64,
}

impl Calls {
    /// The calls in a journal and in the files beside it. All changes by a killed server must have
    /// been applied, and are synced.
    pub fn of(found: &Found, dir: Option<&Path>, look: &Look<'_>) -> io::Result<Self> {
        let epoch = found.epoch();
        let now = Instant::now();
        let mut all = VecDeque::new();
        let before = dir.map_or_else(|| Ok(Vec::new()), |dir| read(dir, epoch))?;
        before.into_iter().for_each(|call| push(&mut all, (0, now, call)));
        found.read(|seq, raw| {
            let (call, record) = parse(raw)?;
            if let Some(answered) = call.and_then(|call| record.answered(call)) {
                push(&mut all, (seq, now, answered));
            }
            Ok(())
        })?;
        let mut fresh = None;
        let found = match (dir, fresh::boot()) {
            (Some(dir), Some(boot)) => Fresh::open(dir, epoch, &boot, look),
            _ => Ok(None),
        };
        if let (Some(dir), Some((file, made))) = (dir, found?) {
            let made = fresh::unknown(all.iter().map(|(.., call)| call), made);
            if !made.is_empty() {
                tracing::info!("journal: {} calls were made and had no record", made.len());
                rustix::fs::syncfs(look.top)?;
                made.into_iter().for_each(|call| push(&mut all, (0, now, call)));
                // These calls have no record, so a later start would not find them.
                if let Err(e) = keep(dir, FILE, &encode(epoch, all.iter().map(|(.., call)| call))) {
                    tracing::warn!("{FILE}: {e}; a call that is repeated after a restart may be made again");
                }
            }
            fresh = Some(file);
        }
        let inner = Mutex::new(Inner { all, kept: 0 });
        Ok(Self { dir: dir.map(Path::to_path_buf), epoch, inner, fresh })
    }

    /// Calls whose records are not durable yet.
    pub fn fresh(&self) -> Option<&Fresh> {
        self.fresh.as_ref()
    }

    /// All of them, oldest first.
    pub fn all(&self) -> Vec<Answered> {
        self.inner.lock().all.iter().map(|(.., call)| call.clone()).collect()
    }

    /// Adds a call with the number of its record.
    pub fn add(&self, seq: u64, call: Answered) {
        push(&mut self.inner.lock().all, (seq, Instant::now(), call));
    }

    /// Writes calls with records up to `upto` to the file: those records are about to be freed. A
    /// full disk is only logged, because no file depends on the calls.
    pub fn keep(&self, upto: u64) -> io::Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let (raw, last) = {
            let mut inner = self.inner.lock();
            while inner.all.front().is_some_and(|(_, at, _)| at.elapsed() > AGE_MAX) {
                inner.all.pop_front();
            }
            let given_back = inner.all.iter().take_while(|(seq, ..)| *seq <= upto);
            let last = given_back.clone().last().map_or(0, |(seq, ..)| *seq);
            if last <= inner.kept {
                return Ok(());
            }
            (encode(self.epoch, given_back.map(|(.., call)| call)), last)
        };
        match keep(dir, FILE, &raw) {
            Ok(()) => {
                self.inner.lock().kept = last;
                Ok(())
            }
            Err(e) if matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                tracing::warn!("{FILE}: {e}; a call that is repeated after a restart may be made again");
                Ok(())
            }
            Err(e) => Err(e),
        }
    }
}

fn push(all: &mut VecDeque<(u64, Instant, Answered)>, call: (u64, Instant, Answered)) {
    all.push_back(call);
    if all.len() > CALLS_MAX {
        all.pop_front();
    }
}

fn encode<'a>(epoch: u64, calls: impl Iterator<Item = &'a Answered>) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&epoch.to_le_bytes());
    for call in calls {
        put(&mut out, &call.call);
        put(&mut out, &call.fh.0);
        out.extend_from_slice(&call.bytes.to_le_bytes());
    }
    let sum = XxHash3_64::oneshot(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

/// The calls in the file. None when the file is missing, of another epoch or damaged: the file is a
/// help and no promise.
fn read(dir: &Path, epoch: u64) -> io::Result<Vec<Answered>> {
    let mut raw = Vec::new();
    match File::open(dir.join(FILE)) {
        Ok(file) => file.take(FILE_MAX_BYTES).read_to_end(&mut raw)?,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let calls = decode(&raw, epoch);
    if calls.is_none() {
        tracing::info!("{FILE} is of another journal, or damaged: it is not used");
    }
    Ok(calls.unwrap_or_default())
}

fn decode(raw: &[u8], epoch: u64) -> Option<Vec<Answered>> {
    let (raw, sum) = raw.split_last_chunk::<8>()?;
    let rest = raw.strip_prefix(MAGIC).filter(|_| XxHash3_64::oneshot(raw) == u64::from_le_bytes(*sum))?;
    let (of, mut rest) = rest.split_first_chunk::<8>()?;
    if u64::from_le_bytes(*of) != epoch {
        return None;
    }
    let mut calls = Vec::new();
    while !rest.is_empty() {
        let (call, fh) = (take(&mut rest)?, Fh(take(&mut rest)?));
        let (bytes, tail) = rest.split_first_chunk::<4>()?;
        rest = tail;
        calls.push(Answered { call, fh, bytes: u32::from_le_bytes(*bytes) });
    }
    Some(calls)
}

/// The prefix of the record of a call; empty for a call without a name.
pub(super) fn head(call: Option<&Answered>) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some(call) = call {
        out.push(super::CALLED);
        put(&mut out, &call.call);
    }
    out
}

/// The name of the call before a record, and the record.
pub(super) fn split(raw: &[u8]) -> Option<(Option<Bytes>, &[u8])> {
    match raw.split_first()? {
        (&super::CALLED, mut rest) => Some((Some(take(&mut rest)?), rest)),
        _ => Some((None, raw)),
    }
}

/// The record of a call that was made stable in another way.
pub(super) fn done(call: &Answered) -> Vec<u8> {
    let mut out = vec![super::DONE];
    put(&mut out, &call.fh.0);
    out.extend_from_slice(&u64::from(call.bytes).to_le_bytes());
    out
}

pub(super) fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    debug_assert!(bytes.len() <= usize::from(u8::MAX), "names of calls and handles are short");
    out.push(bytes.len() as u8);
    out.extend_from_slice(bytes);
}

pub(super) fn take(rest: &mut &[u8]) -> Option<Bytes> {
    let (&len, tail) = rest.split_first()?;
    let (bytes, tail) = tail.split_at_checked(len.into())?;
    *rest = tail;
    Some(Bytes::copy_from_slice(bytes))
}

/// A call with a name that can be kept.
pub(in crate::local) fn named(call: Option<Bytes>, fh: &Fh, bytes: u32) -> Option<Answered> {
    let call = call.filter(|call| call.len() <= CALL_MAX_BYTES)?;
    // The handle is copied: it may be a part of a message.
    Some(Answered { call, fh: Fh(Bytes::copy_from_slice(&fh.0)), bytes })
}

impl Record {
    fn answered(self, call: Bytes) -> Option<Answered> {
        let (fh, bytes) = match self {
            Self::Write { fh, data, .. } => (fh, data.len() as u32),
            Self::Changed { change, .. } => (change.object().clone(), 0),
            Self::Done { fh, bytes } => (fh, bytes),
            Self::Settled { .. } => return None,
        };
        Some(Answered { call, fh, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::tests::Dir;

    fn call(n: u32) -> Answered {
        let call = Bytes::copy_from_slice(&n.to_le_bytes());
        Answered { call, fh: Fh(Bytes::from_static(b"handle")), bytes: n }
    }

    /// A file of calls is ignored if it is damaged, truncated or of another journal.
    #[test]
    fn damaged_call_file_is_ignored() {
        let all: Vec<_> = (0..3).map(call).collect();
        let raw = encode(7, all.iter());
        assert_eq!(decode(&raw, 7), Some(all));
        assert_eq!(decode(&raw, 8), None);
        for at in 0..raw.len() {
            let mut flipped = raw.clone();
            flipped[at] ^= 1;
            assert_eq!(decode(&flipped, 7), None, "byte {at}");
            assert_eq!(decode(&raw[..at], 7), None, "cut at {at}");
        }
    }

    /// The file keeps the newest calls among those whose records leave the journal. The call of a
    /// record that stays is not in the file.
    #[test]
    fn call_file_keeps_newest_calls() {
        let dir = Dir::new();
        let dir = &dir.0;
        let calls = Calls { dir: Some(dir.clone()), epoch: 7, inner: Mutex::default(), fresh: None };
        let count = CALLS_MAX as u32 + 10;
        (1..=count).for_each(|n| calls.add(n.into(), call(n)));
        // The last record stays in the journal, and may not be durable there.
        calls.keep(u64::from(count) - 1).unwrap();
        let kept = read(dir, 7).unwrap();
        assert_eq!((kept.len(), kept[0].bytes, kept.last().unwrap().bytes), (CALLS_MAX - 1, 11, count - 1));
        assert!(read(dir, 8).unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_long_ago_are_forgotten() {
        let dir = Dir::new();
        let calls = Calls { dir: Some(dir.0.clone()), epoch: 7, inner: Mutex::default(), fresh: None };
        calls.add(1, call(1));
        tokio::time::advance(AGE_MAX).await;
        calls.add(2, call(2));
        tokio::time::advance(Duration::from_secs(1)).await;
        calls.add(3, call(3));
        calls.keep(3).unwrap();
        assert_eq!(read(&dir.0, 7).unwrap(), [call(2), call(3)]);
    }
}
