//! Parts of a cache directory that no daemon uses: when the directory as a whole has too much, they
//! give way first. Blocks.
//!
//! Whoever cleans one has its lock for that moment, and says so in it: a mount that wants the part
//! meanwhile waits, and so do others that find too much: what they use is not to go for what is on
//! its way out elsewhere.

use super::home::{self, Home, Unused};
use super::io::RealIo;
use super::saved;
use super::shelf::{Limits, Shelf};
use super::stats::Counters;
use super::total::{self, Total};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

/// Entries that leave a part in one turn.
const TURN: u64 = 4096;
/// So often in a row one waits for somebody else who cleans, and may not go on.
const WAITS: u32 = 30;

type Random = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What is known of parts that have nothing to give: what they said, and when they were last used,
/// when that was found.
#[derive(Debug, Default)]
pub(super) struct Emptied {
    parts: Mutex<HashMap<OsString, (u64, SystemTime)>>,
    /// How often in a row it was somebody else's turn.
    waited: AtomicU32,
}

/// What parts that nobody uses have given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Given {
    bytes: u64,
    /// They will give more, here or to somebody else who is at it.
    more: bool,
}

impl Emptied {
    /// Makes room above the soft limit for all, of which our part takes `bytes()`; what is still
    /// too much then, for those to give up who use their parts.
    pub fn make_room(
        &self,
        total: &Total,
        bytes: impl Fn() -> u64,
        counters: &Arc<Counters>,
        random: &Random,
    ) -> u64 {
        let over = || total.settle(bytes()).saturating_sub(total.soft_bytes);
        let first = over();
        if !total.is_limited() {
            return 0;
        }
        measure(total, counters, random);
        if first == 0 {
            return 0;
        }
        match self.clean(total, first, counters, random) {
            // As it is now: somebody else may have been at it in between.
            Given { bytes: 0, more: false } => over(),
            // What gave something may have more when there is too much again.
            _ => 0,
        }
    }

    /// Removes about `over` bytes from parts that nobody uses, as far as they have them. What is
    /// pinned stays.
    fn clean(&self, total: &Total, over: u64, counters: &Arc<Counters>, random: &Random) -> Given {
        let (mut given, mut others) = (Given::default(), false);
        for name in total.others() {
            if given.bytes >= over {
                break;
            }
            let home = match Home::unused(&total.dir, &name) {
                Unused::Yes(home) => home,
                Unused::Cleaned => {
                    others = true;
                    continue;
                }
                Unused::No => continue,
            };
            let used = home.lock.metadata().and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            let said = total::said(&home.lock).map(|(bytes, _)| (bytes, used));
            if said.is_some() && self.parts.lock().get(&name).copied() == said {
                continue;
            }
            let (before, after, more) = clean_one(&home, over - given.bytes, counters, random);
            given.bytes += before - after;
            given.more |= more;
            let mut all = self.parts.lock();
            // What gave something may have more: it is asked again next time.
            if before == after {
                all.insert(name, (after, used))
            } else {
                all.remove(&name)
            };
        }
        given.more &= given.bytes < over;
        match others && given.bytes < over {
            true => given.more |= self.waited.fetch_add(1, Ordering::Relaxed) < WAITS,
            false => self.waited.store(0, Ordering::Relaxed),
        }
        given
    }
}

/// Sizes of parts that say nothing, because nobody has used them since there are sizes.
fn measure(total: &Total, counters: &Arc<Counters>, random: &Random) {
    for name in total.silent() {
        if let Unused::Yes(home) = Home::unused(&total.dir, &name) {
            clean_one(&home, 0, counters, random);
        }
    }
}

/// What a part had, and has, and whether it has more to give.
fn clean_one(home: &Home, over: u64, counters: &Arc<Counters>, random: &Random) -> (u64, u64, bool) {
    let said = total::said(&home.lock).map_or(0, |(bytes, _)| bytes);
    // The order of use is that of these times.
    let used = home.lock.metadata().and_then(|m| m.modified());
    let _ = total::announce(&home.lock, said, true);
    let (before, after, more) = clean_shelf(home, over, counters, random).unwrap_or_else(|e| {
        tracing::debug!("disk cache: cannot look through {}: {e}", home.dir.display());
        (said, said, false)
    });
    // Whoever takes it next takes that back: there is no moment at which it is ours without saying
    // so.
    let _ = total::announce(&home.lock, after, true);
    if let Ok(used) = used {
        let _ = home.lock.set_modified(used);
    }
    (before, after, more)
}

fn clean_shelf(
    home: &Home,
    over: u64,
    counters: &Arc<Counters>,
    random: &Random,
) -> std::io::Result<(u64, u64, bool)> {
    let io = Arc::new(RealIo { dir: home.dir.clone() });
    let limits = Limits {
        soft_bytes: u64::MAX,
        hard_bytes: u64::MAX,
        min_free_bytes: 0,
        policy: saved::policy(&*io).unwrap_or_default(),
        read_only: false,
    };
    let mut shelf = Shelf::open(io, limits, counters.clone(), random.clone())?;
    shelf.set_pins(home::read_pins(&home.dir));
    let before = shelf.size().1;
    shelf.limits.soft_bytes = before.saturating_sub(over);
    let more = shelf.clean(TURN) == TURN;
    shelf.save();
    Ok((before, shelf.size().1, more))
}

#[cfg(test)]
mod tests;
