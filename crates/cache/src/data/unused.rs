//! Parts of a cache directory without a daemon. They are reduced first when the directory exceeds
//! its soft limit. All calls block.
//!
//! The daemon that cleans a part holds its lock for that moment, and announces it in the lock file.
//! A mount that needs the part waits meanwhile. So do other daemons that find an excess: they must
//! not give up files for an excess that is being removed elsewhere.

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

/// Most entries evicted from a part in one turn.
const TURN: u64 = 4096;
/// Most consecutive waits for another daemon that cleans, because that daemon may hang.
const WAITS: u32 = 30;

type Random = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Parts that have nothing to give: their announcement and their last use, at that time.
#[derive(Debug, Default)]
pub(super) struct Emptied {
    parts: Mutex<HashMap<OsString, (u64, SystemTime)>>,
    /// Consecutive waits for another daemon.
    waited: AtomicU32,
}

/// The reduction of unused parts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Given {
    bytes: u64,
    /// More will follow, by this daemon or another one that is cleaning.
    more: bool,
}

impl Emptied {
    /// Reduces unused parts while the total exceeds the soft limit; this daemon's part has a size
    /// of `bytes()`. Returns the excess that remains for the daemons to give up in their own parts.
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
            // Measured again: another daemon may have reduced parts meanwhile.
            Given { bytes: 0, more: false } => over(),
            // A part that was reduced may have more when there is an excess again.
            _ => 0,
        }
    }

    /// Evicts about `over` bytes from unused parts, as far as they have them. Pinned files stay.
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
            let Cleaned { before_bytes, after_bytes, more } =
                clean_one(&home, over - given.bytes, counters, random);
            given.bytes += before_bytes - after_bytes;
            given.more |= more;
            let mut all = self.parts.lock();
            // A part that was reduced may have more: it is examined again next time.
            if before_bytes == after_bytes {
                all.insert(name, (after_bytes, used))
            } else {
                all.remove(&name)
            };
        }
        given.more &= given.bytes < over;
        if others && given.bytes < over {
            given.more |= self.waited.fetch_add(1, Ordering::Relaxed) < WAITS;
        } else {
            self.waited.store(0, Ordering::Relaxed);
        }
        given
    }
}

/// Announces the sizes of parts without an announcement, left by a version without announcements.
fn measure(total: &Total, counters: &Arc<Counters>, random: &Random) {
    for name in total.silent() {
        if let Unused::Yes(home) = Home::unused(&total.dir, &name) {
            clean_one(&home, 0, counters, random);
        }
    }
}

/// The effect of one cleaning of a part.
struct Cleaned {
    before_bytes: u64,
    after_bytes: u64,
    /// Whether the part can be reduced further.
    more: bool,
}

/// Cleans a part.
fn clean_one(home: &Home, over: u64, counters: &Arc<Counters>, random: &Random) -> Cleaned {
    let said = total::said(&home.lock).map_or(0, |(bytes, _)| bytes);
    // These times order the parts by their use.
    let used = home.lock.metadata().and_then(|m| m.modified());
    let _ = total::announce(&home.lock, said, true);
    let cleaned = clean_shelf(home, over, counters, random).unwrap_or_else(|e| {
        tracing::debug!("disk cache: cannot clean {}: {e}", home.dir.display());
        Cleaned { before_bytes: said, after_bytes: said, more: false }
    });
    // The next owner resets the cleaning flag. So the part is never locked by a cleaner without the
    // flag.
    let _ = total::announce(&home.lock, cleaned.after_bytes, true);
    if let Ok(used) = used {
        let _ = home.lock.set_modified(used);
    }
    cleaned
}

fn clean_shelf(
    home: &Home,
    over: u64,
    counters: &Arc<Counters>,
    random: &Random,
) -> std::io::Result<Cleaned> {
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
    let before_bytes = shelf.size().1;
    shelf.limits.soft_bytes = before_bytes.saturating_sub(over);
    let more = shelf.clean(TURN) == TURN;
    shelf.save();
    Ok(Cleaned { before_bytes, after_bytes: shelf.size().1, more })
}

#[cfg(test)]
mod tests;
