//! Listings: from memory while they hold, otherwise in pages from below, which are stored.

use super::MetadataCache;
use super::moment::{LEASE, Moment};
use super::names::Id;
use super::objects::When;
use super::single_flight::Question;
use super::stats;
use bytes::{Bytes, BytesMut};
use hither_vfs::{Access, DirEntry, DirPage, Fh, Name, RequestContext, Result};
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Assumed size of an entry in a page without its name, in bytes: with filehandle and attributes,
/// and without them.
pub(super) const NODE_ENTRY_BYTES: usize = 160;
const ENTRY_BYTES: usize = 32;
/// Smallest page to request, in bytes, when memory can keep the entries not wanted yet.
const PAGE_BYTES: u32 = 64 << 10;
/// Most readers whose positions in listings are remembered.
const READERS: usize = 64;
/// Bytes of names or filehandles that are allocated together.
const SHARED_BYTES: usize = 8 << 10;

/// Positions of readers of listings: directory, cookie, position.
#[derive(Debug, Default)]
pub(super) struct Readers(Mutex<VecDeque<(Id, u64, usize)>>);

impl Readers {
    fn find(&self, dir: Id, cookie: u64) -> Option<usize> {
        match cookie {
            0 => Some(0),
            _ => self.0.lock().iter().rev().find(|r| r.0 == dir && r.1 == cookie).map(|r| r.2),
        }
    }

    fn note(&self, dir: Id, cookie: u64, at: usize) {
        let mut readers = self.0.lock();
        if readers.len() >= READERS {
            readers.pop_front();
        }
        readers.push_back((dir, cookie, at));
    }
}

/// Memory for the short byte strings of one page, which are allocated together.
#[derive(Default)]
struct Shared(BytesMut);

impl Shared {
    fn copy(&mut self, raw: &[u8]) -> Bytes {
        if self.0.capacity() < raw.len() {
            self.0 = BytesMut::with_capacity(SHARED_BYTES.max(raw.len()));
        }
        self.0.extend_from_slice(raw);
        self.0.split().freeze()
    }
}

/// A listing entry in memory.
pub(super) struct Listed {
    pub at: usize,
    pub name: Bytes,
    pub cookie: u64,
    pub child: Id,
}

impl MetadataCache {
    /// See [`Vfs::readdir`](hither_vfs::Vfs::readdir).
    pub(super) async fn list(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        cookie: u64,
        verifier: [u8; 8],
        max_bytes: u32,
        nodes: bool,
    ) -> Result<DirPage> {
        let when = self.when(cx).beginning();
        let place = self.mark.place(cookie, verifier).filter(|_| cookie != 0);
        if let Some(after) = place {
            let page = self.list_own(cx, dir, Some(after), (max_bytes, nodes), &when);
            return match page {
                Some(page) => Ok(page),
                None => self.list_in_order(cx, dir, after, (max_bytes, nodes), &when).await,
            };
        }
        let mut waits = 0;
        let _flight = loop {
            let now = When { now: self.clock.now(), ..when };
            if let Some(page) = self.list_known(cx, dir, cookie, max_bytes, nodes, &now) {
                stats::add(&self.counters.listing_hits, 1);
                return Ok(page);
            }
            let question = Question::Page(cookie, self.cred(&cx.cred));
            match self.single_flight.register(&(dir.clone(), question), waits) {
                Ok(flight) => break flight,
                Err(waiting) => waiting.wait(cx).await?,
            }
            waits += 1;
        };
        if cookie == 0
            && let Some(page) = self.list_own(cx, dir, None, (max_bytes, nodes), &when)
        {
            return Ok(page);
        }
        if cookie == 0
            && let Some(page) = self.list_remembered(cx, dir, (max_bytes, nodes), &when).await
        {
            return Ok(page);
        }
        stats::add(&self.counters.listing_misses, 1);
        self.because_listed(cx, dir, &when);
        let page = self.ask_page(cx, dir, cookie, verifier, max_bytes, &when).await?;
        let when = When { now: self.clock.now(), ..when };
        match self.list_known(cx, dir, cookie, max_bytes, nodes, &when) {
            Some(known) => Ok(known),
            None => Ok(cut(page, max_bytes, nodes)),
        }
    }

    /// A page from below.
    pub(super) async fn ask_page(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        cookie: u64,
        verifier: [u8; 8],
        max_bytes: u32,
        when: &When,
    ) -> Result<DirPage> {
        let known = self.table.with(dir, |_, o| (o.holds(when), o.asked != 0 && o.until <= o.asked));
        let (holds, once) = known.unwrap_or((false, false));
        let bytes = if once { max_bytes } else { max_bytes.max(PAGE_BYTES) };
        if cookie == 0 && !once {
            let ahead = self.list_ahead_of(cx, dir, when);
            if !ahead.is_empty() {
                let page = self.list_with(cx, dir, ahead, self.options.listing_bytes).await;
                if let Some(page) = page {
                    return Ok(page);
                }
            }
        }
        let ticket = self.ticket();
        if cookie == 0 && !holds {
            // The same request asks for the directory's own attributes: without them the listing
            // would not hold.
            let dirs = std::slice::from_ref(dir);
            let Some(answer) = self.below.list_many(cx, dirs, bytes).await.pop() else {
                return self.below.readdir(cx, dir, cookie, verifier, bytes, true).await;
            };
            let (attrs, page) = answer.map_err(|e| self.failed(dir, e))?;
            self.learn_attrs(dir, &attrs, &ticket);
            self.learn_page(cx, dir, cookie, &page, Some(attrs.attr.change), &ticket);
            return Ok(page);
        }
        let label = self.label(dir);
        let page = self.below.readdir(cx, dir, cookie, verifier, bytes, true).await;
        let page = page.map_err(|e| self.failed(dir, e))?;
        self.learn_page(cx, dir, cookie, &page, label, &ticket);
        Ok(page)
    }

    /// A page from memory, if the caller may list the directory and its names hold.
    pub(super) fn list_known(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        cookie: u64,
        max_bytes: u32,
        nodes: bool,
        when: &When,
    ) -> Option<DirPage> {
        let cred = self.cred(&cx.cred);
        let each = if nodes { NODE_ENTRY_BYTES } else { ENTRY_BYTES };
        let (id, listed, verifier, until, mut eof) = self.table.with(dir, |id, object| {
            let may = object.rights(cred, Access::READ, when) == Some(Access::READ);
            self.note_ahead_use(object);
            let names = object.dir()?;
            let listing = names.listing?;
            if !may || listing.next == u64::MAX || !when.fits(names.until, names.asked) {
                return None;
            }
            let from = self.readers.find(id, cookie)?;
            // The directory may have been listed anew since the reader was there.
            if cookie != 0 && names.names.cookie_before(from) != Some(cookie) {
                return None;
            }
            let (mut bytes, mut listed, mut all) = (0, Vec::new(), true);
            let mut shared = Shared::default();
            for (at, name, bound) in names.names.listed(from) {
                bytes += each + name.len();
                if bytes > max_bytes as usize && !listed.is_empty() {
                    all = false;
                    break;
                }
                let (Some(child), Some(cookie)) = (bound.child, bound.cookie) else { return None };
                listed.push(Listed { at, name: shared.copy(name), cookie, child });
            }
            if all && !listing.eof && listed.is_empty() {
                return None;
            }
            Some((id, listed, listing.verifier, names.until, all && listing.eof))
        })??;
        let entries = self.entries(&listed, nodes, until, when);
        eof &= entries.len() == listed.len();
        if entries.is_empty() && !eof {
            return None;
        }
        let next = entries.len().checked_sub(1).map(|last| (listed[last].cookie, listed[last].at + 1));
        if let Some((cookie, at)) = next.filter(|_| !eof) {
            self.readers.note(id, cookie, at);
        }
        Some(DirPage { entries, verifier, eof, access: None })
    }

    /// Entries of a directory whose names hold until `until`, up to the first one that is unknown.
    ///
    /// Attributes may expire before names under a lease do. A new listing would bring the
    /// attributes of all entries, most of them known. Attributes in a listing never come under a
    /// lease of their own. So a few entries are returned without their objects. A caller that needs
    /// these revalidates them in one batch.
    pub(super) fn entries(
        &self,
        listed: &[Listed],
        nodes: bool,
        until: Moment,
        when: &When,
    ) -> Vec<DirEntry> {
        let few = self.options.worth_listing.saturating_sub(1).min(self.options.batch_objects);
        let most = if until & LEASE == 0 { 0 } else { few };
        let (mut entries, mut bare) = (Vec::with_capacity(listed.len()), Vec::new());
        let mut handles = Shared::default();
        for l in listed {
            let Some(entry) = self.entry(l, nodes.then_some(&mut handles), until, when) else { break };
            if nodes && entry.node.is_none() {
                bare.push((entries.len(), l.child));
            }
            if bare.len() > most {
                entries.truncate(bare[0].0);
                return entries;
            }
            entries.push(entry);
        }
        // The caller will need these objects in this order.
        bare.iter().for_each(|(_, child)| self.note_expired_use(*child));
        entries
    }

    /// An entry of a directory whose names hold until `until`. The object is included if its
    /// filehandle has a place to go, and its attributes have not expired.
    fn entry(
        &self,
        l: &Listed,
        handles: Option<&mut Shared>,
        until: Moment,
        when: &When,
    ) -> Option<DirEntry> {
        let name = Name::new(l.name.clone()).ok()?;
        self.table.with_id(l.child, |object| {
            if object.asked == 0 {
                return None;
            }
            let mut attrs = self.attrs_of(object, when);
            if object.until & LEASE == 0 {
                attrs.valid = self.validity(object.until.min(until), when.now);
            }
            let (fileid, kind) = (attrs.attr.fileid, Some(attrs.attr.kind));
            let handles = handles.filter(|_| object.holds(when));
            let node = handles.map(|h| hither_vfs::Node { fh: Fh(h.copy(object.fh.raw())), attrs });
            Some(DirEntry { name, cookie: l.cookie, fileid, kind, node })
        })?
    }

    /// See [`BatchOps::list_many`](hither_vfs::BatchOps::list_many).
    pub(super) async fn list_each(
        &self,
        cx: &RequestContext,
        dirs: &[Fh],
        max_bytes: u32,
    ) -> Vec<Result<(hither_vfs::Attrs, DirPage)>> {
        let ticket = self.ticket();
        let answers = self.below.list_many(cx, dirs, max_bytes).await;
        for (fh, answer) in dirs.iter().zip(&answers) {
            if let Ok((attrs, page)) = answer {
                self.learn_attrs(fh, attrs, &ticket);
                self.learn_page(cx, fh, 0, page, Some(attrs.attr.change), &ticket);
            }
        }
        answers
    }
}

/// Cuts a larger page to the requested size.
fn cut(mut page: DirPage, max_bytes: u32, nodes: bool) -> DirPage {
    let each = if nodes { NODE_ENTRY_BYTES } else { ENTRY_BYTES };
    let mut bytes = 0;
    let fits = page.entries.iter().take_while(|e| {
        bytes += each + e.name.as_bytes().len();
        bytes <= max_bytes as usize
    });
    let keep = fits.count().max(1);
    if keep < page.entries.len() {
        page.entries.truncate(keep);
        page.eof = false;
    }
    if !nodes {
        page.entries.iter_mut().for_each(|e| e.node = None);
    }
    page
}
