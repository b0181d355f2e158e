//! The offset after an entry is the server's cookie, so seekdir(3) needs no state. Only `.` and
//! `..` use the offsets 1 and 2, which NFSv4 servers never use. The cookies 1 and 2 of an NFSv3
//! server are mapped to the end of the range.

use super::Call;
use crate::abi::{
    DIRENT_BYTES, DIRENTPLUS_BYTES, EntryReply, Out, dirent, direntplus, fopen, open_out, set_times,
};
use crate::call::{Answer, Undo};
use crate::handles::{OpenDir, Page};
use crate::inode::{Inode, Moment};
use crate::lease::LEASE_TIME;
use hither_vfs::{Access, Attr, Attrs, DirEntry, Error, File, FileKind, Name, Result, Validity};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

const AFTER_DOT: u64 = 1;
const AFTER_DOT_DOT: u64 = 2;
/// Start of the mapped cookies 1 and 2.
const LOW_COOKIES: u64 = i64::MAX as u64 - 3;
/// Size of the request for the first page in bytes. It doubles with every page.
const FIRST_PAGE_BYTES: u32 = 32 << 10;
/// Number of entries of the first piece after seekdir(3). It doubles with every piece. The C
/// library drops its read-ahead at each seek. So a program that seeks for each entry would
/// otherwise get the rest of the directory each time.
const SOUGHT_ENTRIES: usize = 4;

/// Maximum validity of a listing without entries, which is valid as long as its directory.
const LISTING_HOLDS_MAX: Duration = Duration::from_secs(24 * 3600);

fn offset_of(cookie: u64) -> u64 {
    if cookie <= AFTER_DOT_DOT { LOW_COOKIES + cookie } else { cookie }
}

/// Cookie for an offset after the dot entries.
fn cookie_at(offset: u64) -> u64 {
    match offset {
        0..=AFTER_DOT_DOT => 0,
        o if o > LOW_COOKIES && o <= LOW_COOKIES + AFTER_DOT_DOT => o - LOW_COOKIES,
        o => o,
    }
}

impl Call {
    pub(super) async fn fsyncdir(&self) -> Result<Answer> {
        if self.session.config.names_wait {
            let fh = self.inode()?.fh();
            self.session.vfs.commit(&self.cx(), File { fh: &fh, open: None }).await?;
        }
        // Otherwise changes of directories are on stable storage before their answer (RFC 1813, RFC
        // 8881).
        Ok(Answer::empty())
    }

    pub(super) async fn opendir(&self) -> Result<Answer> {
        let inode = self.inode()?;
        let (attrs, asked) = self.dir_attrs(&inode).await?;
        let (mut flags, now) = (0, Instant::now());
        let left = self.attr_valid(&inode, &attrs, asked).min(LISTING_HOLDS_MAX);
        let cached = !left.is_zero();
        if cached {
            flags |= fopen::CACHE_DIR;
            let keep = inode.opened(&attrs, asked).keep && inode.listing_holds(now);
            if keep {
                flags |= fopen::KEEP_CACHE;
            }
            // Either the kernel's cached listing is kept, or the kernel reads a new one. A kept
            // listing is not valid for longer than before, because an unchanged directory does not
            // prove its names.
            let until = inode.entries_until().map_or(now + left, |until| until.min(now + left));
            inode.entries_hold(keep.then_some(until));
        }
        Ok(self.opened_dir(inode, attrs.attr, flags, asked))
    }

    /// The answer with a new handle of a directory.
    pub(super) fn opened_dir(&self, inode: Arc<Inode>, attr: Attr, flags: u32, asked: Moment) -> Answer {
        let (cached, now) = (flags & fopen::CACHE_DIR != 0, Instant::now());
        let page = Page {
            from: 0,
            entries: Vec::new(),
            next: 0,
            given: 0,
            piece_max: usize::MAX,
            eof: false,
            filled: false,
            verifier: [0; 8],
            asked,
            hold: None,
            began: asked,
            base: None,
            until: now,
            leased: false,
            ask_bytes: FIRST_PAGE_BYTES,
            pages: 0,
            milestone: None,
        };
        let watched = cached.then(|| inode.clone());
        let dir =
            self.session.dirs.add(OpenDir { inode, attr, cred: self.cred(), cached, page: page.into() });
        if let Some(inode) = watched {
            self.session.watch.add(&inode, dir);
        }
        let mut out = Out::with_capacity(16);
        open_out(&mut out, dir, flags, 0);
        Answer::bytes(out.into_vec()).or(Undo::CloseDir { dir })
    }

    /// Attributes of a directory that the caller may list. The server does not check a listing from
    /// the kernel's cache, so the right is checked here.
    async fn dir_attrs(&self, inode: &Arc<Inode>) -> Result<(Attrs, Moment)> {
        let (vfs, fh, cx, asked) = (&self.session.vfs, inode.fh(), self.cx(), self.asked());
        let known = inode.known(Instant::now());
        let is_public = |a: &&Attrs| self.session.config.trusts_modes && a.attr.mode & 0o444 == 0o444;
        if let Some(attrs) = known.as_ref().filter(is_public) {
            return Ok((attrs.clone(), asked));
        }
        if !vfs.access(&cx, &fh, Access::READ).await?.contains(Access::READ) {
            return Err(Error::new(libc::EACCES));
        }
        if let Some(attrs) = known {
            return Ok((attrs, asked));
        }
        let attrs = vfs.getattr(&cx, File { fh: &fh, open: None }).await?;
        if attrs.attr.kind != FileKind::Directory {
            return Err(Error::new(libc::ENOTDIR));
        }
        self.saw(inode, &attrs, asked).await;
        Ok((attrs, asked))
    }

    pub(super) async fn readdir(&self, fh: u64, offset: u64, size: u32, plus: bool) -> Result<Answer> {
        let dir = self.dir(fh)?;
        let size = size.min(self.session.config.max_io_bytes) as usize;
        let mut list =
            List { out: Out::with_capacity(size), size, plus, remembered: Vec::new(), leased: Vec::new() };
        let own = self.session.ino_of(dir.inode.ident);
        if offset < AFTER_DOT && !list.dot(own, AFTER_DOT, b".") {
            return Err(Error::new(libc::EINVAL));
        }
        if offset < AFTER_DOT_DOT {
            let above = self.session.inodes.parent(dir.inode.id).unwrap_or(dir.inode.ident);
            if !list.dot(self.session.ino_of(above), AFTER_DOT_DOT, b"..") {
                return Ok(self.listed(&dir.inode, list));
            }
        }
        let mut page = dir.page.lock().await;
        let mut cookie = cookie_at(offset);
        if cookie == 0 {
            page.until = Instant::now() + LISTING_HOLDS_MAX;
            (page.hold, page.began, page.base) = (Some(page.until), self.asked(), dir.inode.pages());
        }
        let mut sought = page.comes_to(cookie);
        let mut left = page.piece_max;
        loop {
            if !page.seek(cookie) {
                if std::mem::take(&mut sought) {
                    page.begin_at_seek();
                }
                self.fetch(&dir, &mut page, cookie, plus).await?;
            }
            while let Some(entry) = page.entries.get(page.next) {
                if left == 0 {
                    return Ok(self.piece(&dir, &page, list));
                }
                let Some(hold) = self.add_entry(&mut list, &dir.inode, entry, page.asked).await else {
                    return Ok(self.piece(&dir, &page, list));
                };
                left -= 1;
                self.session.stats.entries.fetch_add(1, Ordering::Relaxed);
                cookie = entry.cookie;
                page.given = cookie;
                page.hold = page.hold.zip(hold).map(|(a, b)| a.min(b));
                page.next += 1;
            }
            // The piece has entries, or the listing is complete.
            if page.eof {
                dir.inode.listed(page.hold, page.began, page.base);
            }
            if page.eof || !list.is_empty() {
                return Ok(self.piece(&dir, &page, list));
            }
        }
    }

    /// The answer with a piece of a page, which the kernel may cache. The kernel uses its cached
    /// listing after an answer without further entries, for any descriptor and after any rewind. So
    /// the cached listing is dropped at the end of its validity.
    fn piece(&self, dir: &OpenDir, page: &Page, list: List) -> Answer {
        if dir.cached {
            let revoked = page.leased && !self.may_pass_on(page.began);
            dir.inode.entries_given(if revoked { Instant::now() } else { page.until });
            if list.is_empty() || revoked {
                self.session.watch.hasten(&dir.inode);
            }
        }
        self.listed(&dir.inode, list)
    }

    /// The answer with a list. Leases are passed on with it.
    fn listed(&self, dir: &Inode, mut list: List) -> Answer {
        for Leased { at, name, inode, attrs, asked } in std::mem::take(&mut list.leased) {
            let (entry_valid, attr_valid) = self.times((dir, &name), &inode, &attrs, asked);
            set_times(&mut list.out, at, entry_valid, attr_valid);
        }
        list.answer()
    }

    /// Reads the page after `cookie`.
    async fn fetch(&self, dir: &OpenDir, page: &mut Page, cookie: u64, nodes: bool) -> Result<()> {
        let asked = self.asked();
        let verifier = if cookie == 0 { [0; 8] } else { page.verifier };
        if cookie == 0 {
            page.ask_bytes = FIRST_PAGE_BYTES;
            (page.pages, page.milestone) = (0, None);
        }
        let cx = self.cx_of(dir.cred.clone());
        let fh = dir.inode.fh();
        let vfs = &self.session.vfs;
        let before = self.dir_valid(&dir.inode);
        let leased = before == Validity::Lease;
        let before = before.left(Instant::now()).min(LEASE_TIME);
        let until = (!before.is_zero()).then(|| Instant::now() + before);
        let new = vfs.readdir(&cx, &fh, cookie, verifier, page.ask_bytes, nodes).await?;
        // An answer from the cache below is valid as long as the directory was known to be before
        // the request. An answer from the server is valid as long as the directory is known to be
        // after it. The answer may be older than a lease that exists now.
        let until = until.unwrap_or_else(|| match self.dir_valid(&dir.inode) {
            Validity::Until(end) => end,
            Validity::Once | Validity::Lease => Instant::now(),
        });
        page.leased = leased && (page.leased || cookie == 0);
        page.until = page.until.min(until);
        let stuck = new.entries.is_empty() && !new.eof
            || new.entries.iter().any(|e| e.cookie == cookie || e.cookie == 0);
        let last = new.entries.last().map(|e| e.cookie);
        if stuck || last.is_some() && last == page.milestone && !new.eof {
            return Err(Error::because(libc::EIO, "the server's directory listing is a loop"));
        }
        page.pages += 1;
        if page.pages.is_power_of_two() {
            page.milestone = last;
        }
        page.ask_bytes = (page.ask_bytes.saturating_mul(2)).min(self.session.config.max_io_bytes);
        (page.from, page.next, page.filled) = (cookie, 0, true);
        (page.entries, page.eof, page.verifier, page.asked) = (new.entries, new.eof, new.verifier, asked);
        Ok(())
    }

    /// Adds an entry; `None` when it does not fit. The entry has its object when the page is still
    /// valid. Then the result is the end of its validity.
    async fn add_entry(
        &self,
        list: &mut List,
        dir: &Inode,
        entry: &DirEntry,
        asked: Moment,
    ) -> Option<Option<Instant>> {
        if !list.fits(entry.name.as_bytes()) {
            return None;
        }
        let offset = offset_of(entry.cookie);
        let name = entry.name.as_bytes();
        let node = entry.node.as_ref();
        let ino = node.map_or_else(
            || self.session.ino_of(dir.ident.sibling(entry.fileid)),
            |n| self.session.ino(&n.attrs.attr),
        );
        let kind = node.map(|n| n.attrs.attr.kind).or(entry.kind);
        if !list.plus {
            dirent(&mut list.out, ino, offset, kind, name);
            return Some(None);
        }
        let left = node.map_or(Duration::ZERO, |n| n.attrs.valid.left(Instant::now()));
        let known = match node {
            Some(node) if !left.is_zero() && !dir.changed_since(asked) => {
                self.doubt_others(dir, &entry.name, node).await;
                self.session.inodes.remember(Some((dir.id, &entry.name, asked)), node).ok()
            }
            _ => None,
        };
        if let (Some(inode), Some(node)) = (&known, node) {
            if inode.changed_since(asked) {
                self.session.forget(inode.id, 1);
            } else {
                self.saw(inode, &node.attrs, asked).await;
                list.remembered.push(inode.id);
                let leased = node.attrs.valid == Validity::Lease;
                // Leases are passed on after the last wait.
                let (entry_valid, attr_valid) = if leased {
                    (Duration::ZERO, Duration::ZERO)
                } else if self.keeps_name(dir, &node.attrs.attr) {
                    (self.name_valid(dir, left), left)
                } else {
                    (Duration::ZERO, left)
                };
                if leased {
                    let (at, name) = (list.out.len(), entry.name.clone());
                    list.leased.push(Leased {
                        at,
                        name,
                        inode: inode.clone(),
                        attrs: node.attrs.clone(),
                        asked,
                    });
                }
                let attr = Some(&node.attrs.attr);
                let entry = EntryReply { nodeid: inode.id, ino, entry_valid, attr_valid, attr };
                direntplus(&mut list.out, &entry, ino, offset, kind, name);
                return Some(Some(Instant::now() + left.min(LISTING_HOLDS_MAX)));
            }
        }
        direntplus(&mut list.out, &NOBODY, ino, offset, kind, name);
        Some(None)
    }
}

/// The part of an entry that has no object.
const NOBODY: EntryReply<'static> =
    EntryReply { nodeid: 0, ino: 0, entry_valid: Duration::ZERO, attr_valid: Duration::ZERO, attr: None };

impl Page {
    /// Records the start of a piece. Returns true after a seek.
    fn comes_to(&mut self, cookie: u64) -> bool {
        let sought = cookie != 0 && cookie != self.given;
        self.piece_max = if sought {
            SOUGHT_ENTRIES
        } else if cookie == 0 {
            usize::MAX
        } else {
            self.piece_max.saturating_mul(2)
        };
        self.given = cookie;
        sought
    }

    /// Continues after a seek. A repeated cookie is no loop then.
    fn begin_at_seek(&mut self) {
        self.ask_bytes = FIRST_PAGE_BYTES;
        (self.pages, self.milestone) = (0, None);
    }

    /// Moves to the entry after `cookie`. Returns false when it must be read.
    fn seek(&mut self, cookie: u64) -> bool {
        if !self.filled {
            return false;
        }
        if cookie == self.from {
            self.next = 0;
        } else if self.next == 0 || self.entries.get(self.next - 1).is_none_or(|e| e.cookie != cookie) {
            match self.entries.iter().position(|e| e.cookie == cookie) {
                Some(at) => self.next = at + 1,
                None => return false,
            }
        }
        // The start is always read again, because rewinddir(3) requests a new listing.
        (cookie != 0 || self.next > 0) && (self.next < self.entries.len() || self.eof)
    }
}

/// A reply under construction.
struct List {
    out: Out,
    size: usize,
    plus: bool,
    remembered: Vec<u64>,
    /// Objects under leases.
    leased: Vec<Leased>,
}

/// An object under a lease in a listing.
struct Leased {
    /// Position of its entry in the reply.
    at: usize,
    name: Name,
    inode: Arc<Inode>,
    attrs: Attrs,
    asked: Moment,
}

impl List {
    fn fits(&self, name: &[u8]) -> bool {
        let head = if self.plus { DIRENTPLUS_BYTES } else { DIRENT_BYTES };
        self.out.len() + (head + name.len()).next_multiple_of(8) <= self.size
    }

    fn is_empty(&self) -> bool {
        self.out.len() == 0
    }

    fn dot(&mut self, ino: u64, offset: u64, name: &[u8]) -> bool {
        if !self.fits(name) {
            return false;
        }
        if self.plus {
            direntplus(&mut self.out, &NOBODY, ino, offset, Some(FileKind::Directory), name);
        } else {
            dirent(&mut self.out, ino, offset, Some(FileKind::Directory), name);
        }
        true
    }

    fn answer(self) -> Answer {
        Answer::bytes(self.out.into_vec()).or(Undo::Forget(self.remembered))
    }
}
