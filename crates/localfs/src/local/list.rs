//! Listings.
//!
//! A cookie is the position of the kernel in the directory (`d_off` of getdents64(2)). File systems
//! keep it stable while other entries are added and removed. NFS reserves the values 0, 1 and 2
//! (RFC 8881 section 18.23.3), so other values represent them.

use super::Inner;
use super::attr::file_kind;
use super::known::{Listed, READ, SEARCH};
use super::object::{Object, os};
use super::pool::Worker;
use hither_vfs::{Attrs, DirEntry, DirPage, Error, Fh, Name, Result};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{OFlags, RawDir, SeekFrom};
use std::sync::Arc;

/// Assumed size of an entry in a page without its name, in bytes.
const ENTRY_BYTES: usize = 32;
/// The same for an entry with handle and attributes.
const NODE_ENTRY_BYTES: usize = 160;
/// Most bytes of a directory that are read at once.
const BUF_MAX_BYTES: usize = 64 << 10;
/// Fewest bytes of a buffer: the longest entry fits.
const BUF_MIN_BYTES: usize = 1 << 10;
/// Represents the cookies 0, 1 and 2. No file system counts positions up to this value; hashes are
/// below it or at the very top.
const RESERVED: u64 = 0x7fff_fff0_0000_0000;

fn cookie_of(d_off: u64) -> u64 {
    if d_off <= 2 { RESERVED | d_off } else { d_off }
}

fn d_off_of(cookie: u64) -> u64 {
    if cookie & !3 == RESERVED { cookie & 3 } else { cookie }
}

/// Whether a whole listing with nodes fits into one page.
pub(super) fn fits(listing: &[Listed], max_bytes: u32) -> bool {
    let bytes: usize = listing.iter().map(|l| NODE_ENTRY_BYTES + l.entry.name.as_bytes().len()).sum();
    bytes <= max_bytes as usize
}

impl Inner {
    pub(super) fn readdir(
        &self,
        worker: &mut Worker,
        dir: &Fh,
        cookie: u64,
        max_bytes: u32,
        nodes: bool,
    ) -> Result<DirPage> {
        let dir = self.resolve(worker, dir)?;
        self.page(worker, &dir, cookie, max_bytes, nodes)
    }

    /// The first page, with attributes that the directory had before it was read.
    pub(super) fn list(&self, worker: &mut Worker, dir: &Fh, max_bytes: u32) -> Result<(Attrs, DirPage)> {
        let dir = self.resolve(worker, dir)?;
        let attrs = self.attrs(&dir)?;
        Ok((attrs, self.page(worker, &dir, 0, max_bytes, true)?))
    }

    /// A page of the entries of a directory that the caller may read.
    pub(super) fn page(
        &self,
        worker: &mut Worker,
        dir: &Arc<Object>,
        cookie: u64,
        max_bytes: u32,
        nodes: bool,
    ) -> Result<DirPage> {
        dir.need_dir()?;
        if self.is_covered(&dir.fh) {
            worker.caller(|| dir.access(4))?;
            return Ok(DirPage { entries: Vec::new(), verifier: [0; 8], eof: true, access: None });
        }
        let known = if nodes && cookie == 0 {
            self.known(worker, dir, self.attrs(dir)?.attr.change, true)
        } else {
            None
        };
        if let Some(known) = &known
            && let Some(listing) = known.listing()
            && known.may(worker.cred(), SEARCH | READ)
            && fits(listing, max_bytes)
        {
            return Ok(self.listed(worker, dir, listing));
        }
        let fd = worker.caller(|| dir.reopen(self.proc_fd.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY))?;
        if cookie != 0 {
            let at = d_off_of(cookie);
            if at > i64::MAX as u64 {
                return Err(Error::new(libc::EINVAL));
            }
            rustix::fs::seek(&fd, SeekFrom::Start(at)).map_err(os)?;
        }
        let nodes = nodes && worker.caller(|| dir.access(1)).is_ok();
        let each = if nodes { NODE_ENTRY_BYTES } else { ENTRY_BYTES };
        let Entries { mut entries, eof } = read_entries(&fd, each, max_bytes)?;
        if nodes {
            self.add_nodes(worker, dir, &mut entries);
        }
        if let Some(known) = known.filter(|_| nodes) {
            known.grant(worker.cred(), SEARCH | READ);
            if eof {
                known.list(entries.iter().map(Listed::of).collect());
            }
        }
        Ok(DirPage { entries, verifier: [0; 8], eof, access: None })
    }

    /// Adds the node of each entry, as far as it exists.
    fn add_nodes(&self, worker: &mut Worker, dir: &Object, entries: &mut [DirEntry]) {
        for entry in entries {
            // The entry may have been removed meanwhile.
            entry.node = self.glance(worker, dir, &entry.name).ok();
            if let Some(node) = &entry.node {
                entry.fileid = node.attrs.attr.fileid;
                entry.kind = Some(node.attrs.attr.kind);
            }
        }
    }

    /// A cached listing, with the present attributes of its objects.
    fn listed(&self, worker: &mut Worker, dir: &Object, listing: &[Listed]) -> DirPage {
        let mut node = |listed: &Listed| match &listed.fh {
            Some(fh) => self.glance_at(worker, dir, &listed.entry.name, fh),
            None => self.glance(worker, dir, &listed.entry.name),
        };
        let entries = listing.iter().map(|listed| match node(listed) {
            Ok(node) => listed.with(node),
            // The entry may have been removed meanwhile.
            Err(_) => listed.entry.clone(),
        });
        DirPage { entries: entries.collect(), verifier: [0; 8], eof: true, access: None }
    }
}

/// Entries of a directory without nodes.
struct Entries {
    entries: Vec<DirEntry>,
    /// Whether the last entry of the directory was read.
    eof: bool,
}

/// Reads one page of entries from the position of `dir`. `each_bytes`: the assumed size of an entry
/// without its name.
fn read_entries(dir: &OwnedFd, each_bytes: usize, max_bytes: u32) -> Result<Entries> {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    let mut buf = Vec::with_capacity((max_bytes as usize).clamp(BUF_MIN_BYTES, BUF_MAX_BYTES));
    let mut raw = RawDir::new(dir, buf.spare_capacity_mut());
    let eof = loop {
        let entry = match raw.next() {
            None => break true,
            Some(Err(rustix::io::Errno::NOENT)) => return Err(Error::new(libc::ESTALE)),
            Some(entry) => entry.map_err(os)?,
        };
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        bytes += each_bytes + name.len();
        if bytes > max_bytes as usize && !entries.is_empty() {
            break false;
        }
        // Leaves out a name that no client could use.
        let Ok(name) = Name::new(name.to_vec()) else { continue };
        entries.push(DirEntry {
            name,
            cookie: cookie_of(entry.next_entry_cookie()),
            fileid: entry.ino(),
            kind: file_kind(entry.file_type()),
            node: None,
        });
    };
    Ok(Entries { entries, eof })
}
