//! Listings in an order of this layer. They serve directories with all names known but without a
//! valid listing of the server: directories created here, or changed here since they were listed.
//!
//! The server's cookies of such names are unknown. So the order is that of a hash of the names, and
//! the cookie contains the hash. A reader that continues from such a cookie gets the names after
//! it. They come from memory. If memory has lost them, they come from a new listing by the server,
//! sorted into the same order. So each name that stays in the directory is listed exactly once. A
//! cookie of this layer is recognised by 31 random bits. If the reader still has the verifier, that
//! is compared too.

use super::list::{Listed, NODE_ENTRY_BYTES};
use super::names::Id;
use super::objects::When;
use super::{MetadataCache, stats};
use hither_vfs::{Access, DirEntry, DirPage, Fh, RequestContext, Result};

/// The server lists directories with more names: sorting them here takes time.
const NAMES_MAX: usize = 10_000;
/// Bits of the hash in a cookie.
const HASH_BITS: u32 = 32;

/// Marks of the cookies and verifiers of this layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    high: u64,
    verifier: [u8; 8],
}

impl Mark {
    /// A mark made of random bits.
    pub fn new(random: u64) -> Self {
        // The highest bit is 0, because offsets in directories are signed. The next bit is 1,
        // because small cookies are the server's.
        let high = (random << HASH_BITS & !(1 << 63)) | 1 << 62;
        Self { high, verifier: (random | 1).to_le_bytes() }
    }

    fn cookie(&self, hash: u32) -> u64 {
        self.high | u64::from(hash)
    }

    /// The hash of the last listed name, if the cookie is one of this layer.
    pub fn place(&self, cookie: u64, verifier: [u8; 8]) -> Option<u32> {
        let ours = cookie >> HASH_BITS == self.high >> HASH_BITS;
        (ours && (verifier == self.verifier || verifier == [0; 8])).then_some(cookie as u32)
    }
}

impl MetadataCache {
    fn order(&self, name: &[u8]) -> u32 {
        (self.table.hash(name) >> (u64::BITS - HASH_BITS)) as u32
    }

    /// A page from memory, if all names are known. It begins after the hash `after`; `None`: at the
    /// start.
    pub(super) fn list_own(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        after: Option<u32>,
        (max_bytes, nodes): (u32, bool),
        when: &When,
    ) -> Option<DirPage> {
        let cred = self.cred(&cx.cred);
        let (mut names, until) = self.table.with(dir, |_, object| {
            let may = object.rights(cred, Access::READ, when) == Some(Access::READ);
            let names = object.dir()?;
            let known = names.is_complete() && when.fits(names.until, names.asked);
            if !may || !known || after.is_none() && names.names.len() > NAMES_MAX {
                return None;
            }
            let mut all = Vec::with_capacity(names.names.len());
            for (name, child) in names.names.present() {
                let hash = self.order(name);
                if after.is_none_or(|after| hash > after) {
                    all.push((hash, name.to_vec(), child));
                }
            }
            Some((all, names.until))
        })??;
        names.sort_unstable_by_key(|n| n.0);
        if after.is_none() && names.windows(2).any(|two| two[0].0 == two[1].0) {
            // A reader could not stop between two names with the same hash.
            return None;
        }
        let mut bytes = 0;
        let fits = names.iter().enumerate().take_while(|(i, (_, name, _))| {
            bytes += NODE_ENTRY_BYTES + name.len();
            *i == 0 || bytes <= max_bytes as usize
        });
        let listed = |(_, (hash, name, child)): (usize, &(u32, Vec<u8>, Id))| Listed {
            at: 0,
            name: name.clone().into(),
            cookie: self.mark.cookie(*hash),
            child: *child,
        };
        let listed: Vec<_> = fits.map(listed).collect();
        let entries = self.entries(&listed, nodes, until, when);
        if entries.is_empty() && !names.is_empty() {
            return None;
        }
        stats::add(&self.counters.listing_hits, 1);
        let eof = entries.len() == names.len();
        Some(DirPage { entries, verifier: self.mark.verifier, eof, access: None })
    }

    /// The same from a new listing by the server, when memory has lost the names since the listing
    /// began.
    pub(super) async fn list_in_order(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        after: u32,
        (max_bytes, nodes): (u32, bool),
        when: &When,
    ) -> Result<DirPage> {
        stats::add(&self.counters.listing_misses, 1);
        let most = (max_bytes as usize / NODE_ENTRY_BYTES).max(1);
        let mut found: Vec<(u32, DirEntry)> = Vec::new();
        let (mut cookie, mut verifier, mut eof) = (0, [0; 8], true);
        loop {
            let page = self.ask_page(cx, dir, cookie, verifier, max_bytes, when).await?;
            let last = page.entries.last().map(|e| e.cookie);
            for entry in page.entries {
                let hash = self.order(entry.name.as_bytes());
                if hash > after {
                    let node = entry.node.filter(|_| nodes);
                    found.push((hash, DirEntry { cookie: self.mark.cookie(hash), node, ..entry }));
                }
            }
            if found.len() > 2 * most {
                eof &= first(&mut found, most);
            }
            match last {
                Some(last) if !page.eof => (cookie, verifier) = (last, page.verifier),
                _ => break,
            }
        }
        eof &= first(&mut found, most);
        let entries = found.into_iter().map(|(_, entry)| entry).collect();
        Ok(DirPage { entries, verifier: self.mark.verifier, eof, access: None })
    }
}

/// Keeps about the first `most` entries, with all entries that share the last hash. Returns whether
/// no entry was dropped. If a name was removed and created again between two pages, its later entry
/// stays.
fn first(found: &mut Vec<(u32, DirEntry)>, most: usize) -> bool {
    found.sort_by(|a, b| (a.0, a.1.name.as_bytes()).cmp(&(b.0, b.1.name.as_bytes())));
    found.dedup_by(|later, kept| {
        let same = later.1.name == kept.1.name;
        if same {
            std::mem::swap(later, kept);
        }
        same
    });
    let Some(last) = found.get(most - 1).map(|f| f.0) else { return true };
    let keep = found.partition_point(|f| f.0 <= last);
    let all = keep == found.len();
    found.truncate(keep);
    all
}
