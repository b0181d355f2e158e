//! Parts of a cache directory that no daemon uses: when the directory as a whole has too much, they give way first. Blocks.
//!
//! Whoever cleans one has its lock for that moment, and says so in it: a mount that wants the part meanwhile waits.

use super::home::{self, Home};
use super::io::RealIo;
use super::saved;
use super::shelf::{Limits, Shelf};
use super::stats::Counters;
use super::total::{self, Total};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;

/// Entries that leave a part in one turn.
const TURN: u64 = 4096;

type Random = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What is known of parts that have nothing to give: what they said when that was found.
#[derive(Debug, Default)]
pub(super) struct Emptied(Mutex<HashMap<OsString, u64>>);

impl Emptied {
    /// Removes about `over` bytes from parts that nobody uses, as far as they have them; what went. What is pinned stays.
    pub fn clean(&self, total: &Total, over: u64, counters: &Arc<Counters>, random: &Random) -> u64 {
        let mut freed = 0;
        for name in total.others() {
            if freed >= over {
                break;
            }
            let Some(home) = Home::unused(&total.dir, &name) else { continue };
            let said = total::said(&home.lock).map(|(bytes, _)| bytes);
            if said.is_some() && self.0.lock().get(&name).copied() == said {
                continue;
            }
            let (before, after) = clean_one(&home, over - freed, counters, random);
            freed += before - after;
            let mut all = self.0.lock();
            // What gave something may have more: it is asked again next time.
            if before == after {
                all.insert(name, after)
            } else {
                all.remove(&name)
            };
        }
        freed
    }
}

/// Sizes of parts that say nothing, because nobody has used them since there are sizes.
pub(super) fn measure(total: &Total, counters: &Arc<Counters>, random: &Random) {
    for name in total.silent() {
        if let Some(home) = Home::unused(&total.dir, &name) {
            clean_one(&home, 0, counters, random);
        }
    }
}

/// What a part had, and has.
fn clean_one(home: &Home, over: u64, counters: &Arc<Counters>, random: &Random) -> (u64, u64) {
    let said = total::said(&home.lock).map_or(0, |(bytes, _)| bytes);
    // The order of use is that of these times.
    let used = home.lock.metadata().and_then(|m| m.modified());
    let _ = total::announce(&home.lock, said, true);
    let (before, after) = clean_shelf(home, over, counters, random).unwrap_or_else(|e| {
        tracing::debug!("disk cache: cannot look through {}: {e}", home.dir.display());
        (said, said)
    });
    // Whoever takes it next takes that back: there is no moment at which it is ours without saying so.
    let _ = total::announce(&home.lock, after, true);
    if let Ok(used) = used {
        let _ = home.lock.set_modified(used);
    }
    (before, after)
}

fn clean_shelf(
    home: &Home,
    over: u64,
    counters: &Arc<Counters>,
    random: &Random,
) -> std::io::Result<(u64, u64)> {
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
    shelf.clean(TURN);
    shelf.save();
    Ok((before, shelf.size().1))
}
