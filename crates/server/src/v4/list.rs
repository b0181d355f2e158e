//! READDIR.
//!
//! Cookies 1 and 2 are reserved in NFSv4 (RFC 8881 section 18.23.3). Cookies of the `Vfs` are
//! therefore shifted by two.

use super::attrs::{OF_ENTRY, SET_ONLY, bare_entry};
use super::delegation::{HolderAnswer, Look, PATIENCE_V4};
use super::exec::{Exec, Here, Object, handle_if};
use crate::error::stat4;
use crate::table::Export;
use futures_util::future::join_all;
use hither_proto::nfs4::{
    Attrs as Wire, Bitmap4, Entry, Nfsstat4, READDIR_MAX_ENTRIES, ReaddirArgs, ReaddirOk, attr,
};
use hither_proto::xdr::{Chain, Enc};
use hither_vfs::{DirEntry, DirPage, Fh, FileKind, Node, PathRef, Stop, WalkRequest};
use std::collections::HashMap;
use std::sync::Arc;

/// Number of reserved cookies.
const RESERVED: u64 = 2;
/// Bytes of the result besides entries: verifier, end of list, end of directory.
const HEAD_BYTES: usize = 8 + 4 + 4;
/// A listing may have this many bytes behind a long reply of earlier operations.
const LISTING_MIN_BYTES: usize = 4 << 10;
/// Up to this many files with delayed writes, the holders are asked one after the other. Of more
/// files, all delegations are recalled at once.
const ASKED_MAX: usize = 8;
/// Number of exports that are asked for their roots at once.
const ROOTS_AT_ONCE: usize = 32;
/// Smallest page to request from the `Vfs`, in bytes.
const PAGE_MIN_BYTES: u32 = 256;

impl Exec<'_> {
    pub(super) async fn readdir(&mut self, a: &ReaddirArgs) -> Result<ReaddirOk, Nfsstat4> {
        let max = self.room_bytes.min(self.listing_room_bytes.max(LISTING_MIN_BYTES));
        let max = (a.maxcount as usize).min(max);
        if a.cookie == 1 || a.cookie == 2 {
            return Err(Nfsstat4::BAD_COOKIE);
        }
        if !a.attr_request.intersection(SET_ONLY).is_empty() {
            return Err(Nfsstat4::INVAL);
        }
        match self.here()?.clone() {
            Here::Above(at) => self.readdir_above(at, a, max).await,
            Here::Object(dir) => self.readdir_object(&dir, a, max).await,
        }
    }

    /// Lists a directory of an export. An entry that vanishes during the listing is left out. A
    /// listing without entries would say that the directory ends, so the server reads on then.
    async fn readdir_object(&self, dir: &Object, a: &ReaddirArgs, max: usize) -> Result<ReaddirOk, Nfsstat4> {
        let from = a.cookie.saturating_sub(RESERVED);
        let mut at = (from, if from == 0 { [0; 8] } else { a.cookieverf });
        let mut list = List::new(max);
        loop {
            let mut told = HashMap::new();
            let mut page = self.page(dir, at, a.attr_request, max).await?;
            if self.of_files_delayed(&page.entries, &mut told).await? {
                page = self.page(dir, at, a.attr_request, max).await?;
            }
            let (verifier, eof) = (page.verifier, page.eof);
            let last = page.entries.last().map(|entry| entry.cookie);
            self.add_entries(&mut list, dir, page, a.attr_request, &told).await?;
            match last {
                Some(last) if list.is_empty() && !eof && last != at.0 => at = (last, verifier),
                _ => return list.finish(verifier, eof),
            }
        }
    }

    /// A part of a directory. Entries have nodes if the attributes need them.
    async fn page(
        &self,
        dir: &Object,
        (from, verifier): (u64, [u8; 8]),
        wanted: Bitmap4,
        max: usize,
    ) -> Result<Page, Nfsstat4> {
        let nodes = !wanted.is_subset(OF_ENTRY) || self.r.table.has_crossings(&dir.export);
        let bytes = (max.saturating_sub(HEAD_BYTES) as u32).max(PAGE_MIN_BYTES);
        let page = dir.export.vfs.readdir(&dir.cx, &dir.fh, from, verifier, bytes, nodes).await;
        let DirPage { mut entries, verifier, eof, .. } = page.map_err(|e| stat4(&e))?;
        let mut failed = HashMap::new();
        if !wanted.is_subset(OF_ENTRY) {
            failed = self.look_up_missing(dir, &mut entries).await;
        }
        Ok(Page { entries, failed, verifier, eof })
    }

    /// Looks up the entries without nodes, and returns those that fail. The layer below had no
    /// attributes of them, or they vanished, or the caller may not search the directory. In the
    /// last case all fail.
    async fn look_up_missing(&self, dir: &Object, entries: &mut [DirEntry]) -> HashMap<u64, Nfsstat4> {
        let (mut failed, mut forbidden) = (HashMap::new(), false);
        for entry in entries.iter_mut().filter(|entry| entry.node.is_none()) {
            let found = if forbidden { Err(Nfsstat4::ACCESS) } else { self.look_up(dir, entry).await };
            forbidden = found.as_ref().err() == Some(&Nfsstat4::ACCESS);
            match found {
                Ok(node) => entry.node = Some(node),
                Err(status) => drop(failed.insert(entry.cookie, status)),
            }
        }
        failed
    }

    async fn look_up(&self, dir: &Object, entry: &DirEntry) -> Result<Node, Nfsstat4> {
        let at = PathRef::name(&dir.fh, &entry.name);
        let found = dir.export.vfs.walk(&dir.cx, at, WalkRequest::default()).await.map_err(|e| stat4(&e))?;
        match (found.steps.into_iter().next(), found.stop) {
            (Some(node), _) => Ok(node),
            (None, Stop::Failed(e)) => Err(stat4(&e)),
            (None, _) => Err(Nfsstat4::NOENT),
        }
    }

    /// Adds entries to a listing. Without `rdattr_error` in the request, the failure of an entry is
    /// the failure of the listing (RFC 8881 section 18.23.3).
    async fn add_entries(
        &self,
        list: &mut List,
        dir: &Object,
        page: Page,
        wanted: Bitmap4,
        told: &HashMap<Fh, HolderAnswer>,
    ) -> Result<(), Nfsstat4> {
        for mut entry in page.entries {
            if let Some(node) = &mut entry.node
                && let Some(told) = told.get(&node.fh)
            {
                self.nfs.leases.tell(*told, &mut node.attrs.attr);
            }
            let attrs = match page.failed.get(&entry.cookie) {
                Some(status) => Err(*status),
                None => self.entry_attrs(dir, &entry, wanted).await,
            };
            let attrs = match attrs {
                Ok(attrs) => attrs,
                Err(Nfsstat4::NOENT | Nfsstat4::STALE) => continue,
                Err(status) if wanted.has(attr::RDATTR_ERROR) => bare_entry(entry.fileid, wanted, status),
                Err(status) => return Err(status),
            };
            let cookie = entry.cookie.saturating_add(RESERVED);
            if !list.add(Entry { cookie, name: entry.name.bytes().clone().into(), attrs }) {
                break;
            }
        }
        Ok(())
    }

    /// Waits until no other client has delayed writes to files in a listing with attributes. For a
    /// few files, the holders' answers are in `told` instead. Returns true when there were delayed
    /// writes: the directory must be read again.
    async fn of_files_delayed(
        &self,
        entries: &[DirEntry],
        told: &mut HashMap<Fh, HolderAnswer>,
    ) -> Result<bool, Nfsstat4> {
        let leases = &self.nfs.leases;
        let files = || {
            let nodes = entries.iter().filter_map(|e| e.node.as_ref());
            nodes.filter(|n| n.attrs.attr.kind == FileKind::Regular)
        };
        if self.nfs.may_be_dirty() && files().next().is_some() {
            return Err(Nfsstat4::DELAY);
        }
        if !leases.may_be_delayed() {
            return Ok(false);
        }
        let delayed: Vec<_> = files().filter(|n| leases.is_delayed(self.client.as_ref(), &n.fh)).collect();
        let client = self.client.as_ref();
        let (asked, recalled) = delayed.split_at(if delayed.len() > ASKED_MAX { 0 } else { delayed.len() });
        for (i, n) in asked.iter().enumerate() {
            match leases.look(client, &n.fh, PATIENCE_V4).await {
                Ok(Look::Told(known)) => drop(told.insert(n.fh.clone(), known)),
                Ok(_) => {}
                Err(status) => {
                    // The client repeats the READDIR. All other recalls start now, so that the
                    // repetition finds them done.
                    asked[i + 1..].iter().for_each(|n| leases.want(client, &n.fh));
                    return Err(status);
                }
            }
        }
        // All recalls start before the first wait.
        recalled.iter().for_each(|n| leases.want(client, &n.fh));
        for n in recalled {
            leases.read(client, &n.fh, PATIENCE_V4).await?;
        }
        Ok(!delayed.is_empty())
    }

    async fn entry_attrs(&self, dir: &Object, entry: &DirEntry, wanted: Bitmap4) -> Result<Wire, Nfsstat4> {
        if let Some(node) = &entry.node {
            if let Some(inside) = self.r.crossing(&dir.export, &node.fh) {
                return self.root_attrs(inside, node.attrs.attr.fileid, wanted).await;
            }
            if super::attrs::cost_more(wanted) {
                return self.object_attrs(&dir.with(node.clone()), &node.attrs.attr, wanted).await;
            }
            let mut source = self.source(&dir.export, &node.attrs.attr, &node.fh, wanted);
            let handle = handle_if(wanted, &dir.export, &node.fh);
            source.handle = &handle;
            return Ok(source.wire(wanted));
        }
        Ok(bare_entry(entry.fileid, wanted, Nfsstat4::OK))
    }

    /// Attributes of the root of an export that covers an entry.
    async fn root_attrs(&self, inside: &Arc<Export>, entry: u64, wanted: Bitmap4) -> Result<Wire, Nfsstat4> {
        let attrs = async {
            let root = self.root_of(inside).await?;
            if !self.r.accepts(inside, &root.rights) {
                return Err(Nfsstat4::WRONGSEC);
            }
            let attrs = self.attrs(&root).await?;
            self.object_attrs(&root, &attrs.attr, wanted).await
        };
        match attrs.await {
            Err(status) if wanted.has(attr::RDATTR_ERROR) => Ok(bare_entry(entry, wanted, status)),
            attrs => attrs,
        }
    }

    /// Lists directories above the exports, and the roots of exports among them. The origins of a
    /// gateway are asked for several roots at once.
    async fn readdir_above(&self, at: usize, a: &ReaddirArgs, max: usize) -> Result<ReaddirOk, Nfsstat4> {
        let table = &self.r.table;
        let mut list = List::new(max);
        let from = a.cookie.saturating_sub(RESERVED) as usize;
        let children = table.place(at).children.iter().enumerate().skip(from);
        let mut visible = children.filter(|(_, (_, at))| table.is_visible(**at, &self.r.peer));
        loop {
            let some: Vec<_> = visible.by_ref().take(ROOTS_AT_ONCE).collect();
            if some.is_empty() {
                break;
            }
            let attrs = some.iter().map(|(_, (_, at))| self.place_attrs(**at, a.attr_request));
            for ((i, (name, _)), attrs) in some.iter().zip(join_all(attrs).await) {
                let cookie = *i as u64 + 1 + RESERVED;
                let name = bytes::Bytes::copy_from_slice(name).into();
                if !list.add(Entry { cookie, name, attrs: attrs? }) {
                    return list.finish([0; 8], true);
                }
            }
        }
        list.finish([0; 8], true)
    }

    /// Attributes of an entry of a directory above the exports.
    async fn place_attrs(&self, at: usize, wanted: Bitmap4) -> Result<Wire, Nfsstat4> {
        let attrs = match self.at_place(at).await {
            Ok(Here::Above(at)) => Ok(self.above_attrs(at, wanted)),
            Ok(here) if !self.is_accepted(&here) => Err(Nfsstat4::WRONGSEC),
            Ok(Here::Object(o)) => match self.attrs(&o).await {
                Ok(attrs) => self.object_attrs(&o, &attrs.attr, wanted).await,
                Err(status) => Err(status),
            },
            Err(status) => Err(status),
        };
        match attrs {
            Err(status) if wanted.has(attr::RDATTR_ERROR) => {
                Ok(bare_entry(u64::from(self.r.table.place(at).number), wanted, status))
            }
            attrs => attrs,
        }
    }
}

/// A part of a directory.
struct Page {
    entries: Vec<DirEntry>,
    /// Entries that cannot be looked up, by their cookies.
    failed: HashMap<u64, Nfsstat4>,
    verifier: [u8; 8],
    eof: bool,
}

/// Entries that fit into the reply.
struct List {
    entries: Vec<Entry>,
    bytes: usize,
    max: usize,
    full: bool,
}

impl List {
    fn new(max: usize) -> Self {
        Self { entries: Vec::new(), bytes: HEAD_BYTES, max, full: false }
    }

    /// Whether no entry was added.
    fn is_empty(&self) -> bool {
        self.entries.is_empty() && !self.full
    }

    /// Adds an entry; false when there is no room.
    fn add(&mut self, entry: Entry) -> bool {
        self.bytes += 4 + Enc::of(&entry).len();
        self.full = self.bytes > self.max || self.entries.len() >= READDIR_MAX_ENTRIES;
        if !self.full {
            self.entries.push(entry);
        }
        !self.full
    }

    fn finish(self, cookieverf: [u8; 8], eof: bool) -> Result<ReaddirOk, Nfsstat4> {
        if self.full && self.entries.is_empty() {
            return Err(Nfsstat4::TOOSMALL);
        }
        Ok(ReaddirOk { cookieverf, entries: Chain(self.entries), eof: eof && !self.full })
    }
}
