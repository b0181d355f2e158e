//! READDIR and READDIRLOOK.
//!
//! Cookies of the protocol have 32 bits, those of a `Vfs` 64. Small cookies are shifted by two,
//! because READDIR begins with `.` and `..`, which have the cookies 1 and 2. Most file systems use
//! large cookies, which are hashes. A large cookie becomes a checksum with the top bit set. The
//! server remembers the cookies behind the numbers of the entries that it sent last. It searches
//! other numbers from the beginning of the directory. An entry whose checksum collides with that of
//! a remembered entry gets the next number.

use super::convert::{fold, stat};
use super::leases::Since;
use super::{At, Caller, Done, Plan};
use crate::v4::delegation::key;
use hither_lease::{Kind, Op};
use hither_proto::nqnfs::{
    Asking, Entry, EntryLook, FH_BYTES, Filename, LeaseReply, ReaddirArgs, ReaddirOk, ReaddirlookArgs,
    ReaddirlookOk, Stat,
};
use hither_proto::xdr::Chain;
use hither_vfs::{DirEntry, DirPage, Node};
use parking_lot::Mutex;
use std::collections::HashMap;
use twox_hash::XxHash3_64;

/// Bytes of a reply besides its entries: status, lease, end of list, end of directory.
const HEAD_BYTES: usize = 4 + 4 + 4 + 4;
/// Bytes of an entry besides its name: marker, number, length of the name, cookie.
const ENTRY_BYTES: usize = 4 + 4 + 4 + 4;
/// Bytes of an entry for lease and attributes.
const LOOK_BYTES: usize = 4 + 4 + 8 + 92;
/// Cookies of `.` and `..`.
const DOT: u32 = 1;
const DOTDOT: u32 = 2;
/// Numbers of large cookies have this bit.
const LARGE: u32 = 1 << 31;
/// Most remembered cookies in each of the two generations.
const COOKIES_MAX: usize = 1 << 16;
/// Most numbers to try for an entry.
const TRIES_MAX: u32 = 8;
/// Size of a page when the server searches a cookie.
const SEARCH_BYTES: u32 = 256 << 10;

/// Cookie and verifier of the `Vfs`.
type ListPosition = (u64, [u8; 8]);

/// Positions from which clients may continue, by directory and wire cookie. The first map has the
/// newer ones, the second the older ones.
#[derive(Default)]
pub(super) struct Cookies {
    inner: Mutex<[HashMap<(u64, u32), ListPosition>; 2]>,
}

impl Cookies {
    /// The wire cookies of entries that are sent. A client may continue after any of them, even
    /// when the entry is gone by then.
    fn remember(&self, dir: u64, entries: &[DirEntry], verifier: [u8; 8]) -> Vec<u32> {
        let mut inner = self.inner.lock();
        entries.iter().map(|e| Self::number(&mut inner, dir, e.cookie, verifier)).collect()
    }

    fn number(
        inner: &mut [HashMap<(u64, u32), ListPosition>; 2],
        dir: u64,
        cookie: u64,
        verifier: [u8; 8],
    ) -> u32 {
        let natural = short(cookie);
        let taken = |n: u32| {
            let known = inner.iter().find_map(|m| m.get(&(dir, n)));
            known.is_some_and(|(other, _)| *other != cookie)
        };
        let others = (0..TRIES_MAX).map(|i| natural.wrapping_add(i) | natural & LARGE);
        let number = others.into_iter().find(|n| natural < LARGE || !taken(*n)).unwrap_or(natural);
        if inner[0].len() >= COOKIES_MAX {
            inner[1] = std::mem::take(&mut inner[0]);
        }
        inner[0].insert((dir, number), (cookie, verifier));
        number
    }

    fn find(&self, dir: u64, short: u32) -> Option<ListPosition> {
        let inner = self.inner.lock();
        inner.iter().find_map(|m| m.get(&(dir, short)).copied())
    }
}

/// The wire cookie of a `Vfs` cookie, before collisions are resolved.
fn short(cookie: u64) -> u32 {
    match u32::try_from(cookie.saturating_add(DOTDOT.into())) {
        Ok(n) if n < LARGE => n,
        _ => LARGE | XxHash3_64::oneshot(&cookie.to_be_bytes()) as u32,
    }
}

/// Sizes of a directory reply, in bytes.
struct Room {
    reply: usize,
    /// Bytes of each entry besides [`ENTRY_BYTES`] and its name.
    more: usize,
}

struct Listing {
    /// The entries with their wire cookies.
    entries: Vec<(DirEntry, u32)>,
    eof: bool,
}

pub(super) async fn readdir(c: &Caller<'_>, a: &Asking<ReaddirArgs>) -> Done<ReaddirOk> {
    let dir = c.at(&a.args.dir).await?;
    let mut reply = a.args.count.min(c.r.server.options.listing_max_bytes) as usize;
    let attr = dir.attr().await?;
    let mut entries = Vec::new();
    if a.args.cookie == 0 {
        entries.push(Entry { fileid: fold(attr.fileid), name: Filename::copy(b"."), cookie: DOT });
    }
    if a.args.cookie <= DOT {
        // A caller may have the right to read a directory without the right to search it.
        let above = super::read::above(&dir).await.map_or(attr.fileid, |node| node.attrs.attr.fileid);
        entries.push(Entry { fileid: fold(above), name: Filename::copy(b".."), cookie: DOTDOT });
    }
    reply = reply.saturating_sub(entries.len() * (ENTRY_BYTES + 4));
    let l = match list(&dir, a.args.cookie, &Room { reply, more: 0 }, false).await {
        Err(Stat::IO) if !entries.is_empty() => Listing { entries: Vec::new(), eof: false },
        l => l?,
    };
    entries.extend(l.entries.into_iter().map(|(e, cookie)| Entry {
        fileid: fold(e.fileid),
        name: Filename::from(e.name.bytes().clone()),
        cookie,
    }));
    Ok((LeaseReply::None, ReaddirOk { entries: Chain(entries), eof: l.eof }))
}

/// The reply omits `.` and `..`: the caller has their handles. A caller without the right to search
/// the directory gets `ACCES`, and may use READDIR.
pub(super) async fn readdirlook(c: &Caller<'_>, a: &Asking<ReaddirlookArgs>) -> Done<ReaddirlookOk> {
    let dir = c.at(&a.args.file).await?;
    let handle_bytes = if c.long { 2 * FH_BYTES } else { FH_BYTES };
    let room = Room {
        reply: a.args.cnt.min(c.r.server.options.listing_max_bytes) as usize,
        more: LOOK_BYTES + handle_bytes,
    };
    let mut cookie = a.args.cookie;
    loop {
        let since = dir.since();
        let l = list(&dir, cookie, &room, true).await?;
        let last = l.entries.last().map(|(_, cookie)| *cookie);
        let entries = looks(&dir, l.entries, a.args.duration, since).await?;
        match last {
            // All entries vanished. A reply without entries would say that the directory ends.
            Some(last) if entries.is_empty() && !l.eof && last != cookie => cookie = last,
            _ => return Ok((LeaseReply::None, ReaddirlookOk { entries: Chain(entries), eof: l.eof })),
        }
    }
}

/// The entries with handles and attributes, without those that have vanished.
async fn looks(
    dir: &At<'_>,
    listed: Vec<(DirEntry, u32)>,
    duration: u32,
    since: Since,
) -> Result<Vec<EntryLook>, Stat> {
    let mut entries = Vec::with_capacity(listed.len());
    for (e, cookie) in listed {
        let name = Filename::from(e.name.bytes().clone());
        let entry = match e.node {
            Some(node) => Ok(node),
            None => super::read::walk(dir, &e.name).await,
        };
        let entry = match entry {
            Ok(node) => look(dir, node, (name, cookie), duration, since).await,
            Err(status) => Err(status),
        };
        match entry {
            Ok(entry) => entries.push(entry),
            // The object is gone.
            Err(Stat::NOENT | Stat::STALE) => {}
            Err(status) => return Err(status),
        }
    }
    Ok(entries)
}

/// An entry with handle and attributes. A lease is granted only if that takes no lease from another
/// client. Without a lease the attributes are those of the server, and another client may have
/// delayed writes to the file.
async fn look(
    dir: &At<'_>,
    node: Node,
    (name, cookie): (Filename, u32),
    duration: u32,
    since: Since,
) -> Result<EntryLook, Stat> {
    let entry_fh = dir.handle(&node.fh)?;
    let at = dir.with(node.fh);
    let mut attr = node.attrs.attr;
    let (mut cachable, mut granted, mut rev) = (0, 0, 0);
    if let Some(mut want) = at.want(&attr, Kind::Read, duration).await {
        want.optional = true;
        let plan = Plan { op: Op::Lease, want: Some(want), delayed: false };
        let begun = at.begin_with((attr.change, since), plan).await.ok();
        if let Some(begun) = begun {
            rev = begun.revision;
            if let LeaseReply::Read(l) | LeaseReply::Write(l) = begun.lease(begun.revision) {
                // The client trusts the name under the lease. The lease is therefore withheld when
                // the name leads to another file now.
                let there = super::read::walk(dir, &super::name(&name)?).await;
                if there.is_ok_and(|node| node.fh == at.fh) {
                    (cachable, granted) = (u32::from(l.cachable), l.duration);
                }
                attr = at.attr().await?;
            }
        }
    }
    if rev == 0 {
        let key = key(&at.fh);
        rev =
            dir.c.leases().act(|inner, now| inner.short.seen(&mut inner.table, now, key, attr.change, since));
    }
    let (entry_attrib, fid) = (at.wire(&attr, rev), fold(attr.fileid));
    Ok(EntryLook { cachable, duration: granted, rev, entry_fh, entry_attrib, fid, name, cookie })
}

async fn list(dir: &At<'_>, cookie: u32, room: &Room, nodes: bool) -> Result<Listing, Stat> {
    let number = key(&dir.fh).0[0];
    let (from, verifier) = match cookie {
        0..=DOTDOT => (0, [0; 8]),
        n if n < LARGE => match dir.c.r.server.nqnfs.cookies.find(number, n) {
            Some(at) => at,
            None => (u64::from(n - DOTDOT), [0; 8]),
        },
        n => match dir.c.r.server.nqnfs.cookies.find(number, n) {
            Some(at) => at,
            None => search(dir, n).await?,
        },
    };
    let most = room.reply.saturating_sub(HEAD_BYTES).clamp(64, u32::MAX as usize) as u32;
    let page = page(dir, from, verifier, most, nodes).await?;
    let (mut bytes, all_of_page) = (HEAD_BYTES, page.eof);
    let mut entries = Vec::with_capacity(page.entries.len());
    let mut eof = true;
    for e in page.entries {
        bytes += ENTRY_BYTES + e.name.bytes().len().next_multiple_of(4) + room.more;
        if bytes > room.reply {
            eof = false;
            break;
        }
        entries.push(e);
    }
    if entries.is_empty() && !eof {
        // Not even one entry fits.
        return Err(Stat::IO);
    }
    let cookies = dir.c.r.server.nqnfs.cookies.remember(number, &entries, page.verifier);
    Ok(Listing { entries: entries.into_iter().zip(cookies).collect(), eof: eof && all_of_page })
}

async fn page(dir: &At<'_>, from: u64, verifier: [u8; 8], most: u32, nodes: bool) -> Result<DirPage, Stat> {
    let page = dir.export.vfs.readdir(&dir.cx, &dir.fh, from, verifier, most, nodes).await;
    page.map_err(|e| stat(&e))
}

/// The position after the entry that has this wire cookie.
async fn search(dir: &At<'_>, wanted: u32) -> Result<ListPosition, Stat> {
    let (mut from, mut verifier) = (0, [0; 8]);
    loop {
        let page = page(dir, from, verifier, SEARCH_BYTES, false).await?;
        verifier = page.verifier;
        if let Some(e) = page.entries.iter().find(|e| short(e.cookie) == wanted) {
            return Ok((e.cookie, verifier));
        }
        match page.entries.last() {
            Some(last) if !page.eof && last.cookie != from => from = last.cookie,
            // The entry is gone, and with it the position in the directory.
            _ => return Err(Stat::STALE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_vfs::Name;

    fn entry(cookie: u64) -> DirEntry {
        DirEntry { name: Name::new("n").unwrap(), cookie, fileid: 1, kind: None, node: None }
    }

    /// Two large cookies with the same checksum.
    fn twins() -> (u64, u64) {
        let mut seen = HashMap::new();
        (1 << 40..).find_map(|c: u64| seen.insert(short(c), c).map(|other| (other, c))).unwrap()
    }

    /// Two entries with the same checksum of their cookies get different numbers. The numbers stay
    /// the same in the next listing, and each directory has its own.
    #[test]
    fn colliding_cookies_get_distinct_numbers() {
        let (a, b) = twins();
        let cookies = Cookies::default();
        let numbers = cookies.remember(1, &[entry(a), entry(b)], [0; 8]);
        assert_ne!(numbers[0], numbers[1]);
        assert!(numbers.iter().all(|n| *n >= LARGE));
        assert_eq!(
            [a, b].map(|c| (c, [0; 8])).to_vec(),
            numbers.iter().map(|n| cookies.find(1, *n).unwrap()).collect::<Vec<_>>()
        );
        // The numbers are the same when the entries are listed again in another order. Another
        // directory has numbers of its own.
        assert_eq!(cookies.remember(1, &[entry(b), entry(a)], [0; 8]), [numbers[1], numbers[0]]);
        assert_eq!(cookies.remember(2, &[entry(b)], [0; 8]), [numbers[0]]);
    }

    /// The server remembers a bounded number of cookies, among them always the newest.
    #[test]
    fn remembered_cookies_are_bounded() {
        let cookies = Cookies::default();
        let many: Vec<DirEntry> = (0..3 * COOKIES_MAX as u64).map(|n| entry(n << 40 | 1 << 63)).collect();
        let numbers = cookies.remember(1, &many, [0; 8]);
        assert!(cookies.inner.lock().iter().all(|m| m.len() <= COOKIES_MAX));
        let newest = numbers.iter().rev().take(COOKIES_MAX / 2);
        assert!(newest.into_iter().all(|n| cookies.find(1, *n).is_some()));
    }
}
