//! Cached ranges of a file, for people.

use super::format::{BLOCK, Key};
use super::tools::told;
use super::{DataCache, DataCacheEntry};
use hither_vfs::Fh;

/// A cached file with its cached ranges.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct DataCacheRanges {
    /// The entry.
    #[serde(flatten)]
    pub entry: DataCacheEntry,
    /// Start and end of each range, in bytes; sorted and not adjacent.
    pub ranges: Vec<(u64, u64)>,
}

impl DataCache {
    /// The cached ranges of a file; does not count as a use of the entry.
    pub async fn kept(&self, fh: &Fh) -> Option<DataCacheRanges> {
        let (shelf, key) = (self.shelf()?, Key::of(fh));
        let look = move || {
            let (entry, _, used_s) = shelf.look(key)?;
            let size = entry.version.size;
            let mut ranges: Vec<(u64, u64)> = Vec::new();
            for block in entry.blocks() {
                let (start, end) = (block * BLOCK, ((block + 1) * BLOCK).min(size));
                match ranges.last_mut().filter(|last| last.1 == start) {
                    Some(last) => last.1 = end,
                    None => ranges.push((start, end)),
                }
            }
            Some(DataCacheRanges { entry: told(&shelf, &entry, used_s), ranges })
        };
        self.blocking(look).await.ok().flatten()
    }
}
