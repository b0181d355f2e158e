//! Revalidates metadata restored after a restart: directories together with their rights, and files
//! by opening them.
//!
//! Restored metadata is used only after the server has returned the same `change` again
//! ([`snapshot`](super::snapshot)). A restored right only selects requests: it is requested with
//! the directory's attributes. A file that is complete on the local disk is opened where the open
//! saves a later request. It does so if it brings a lease, or if opens need no request. One request
//! opens many files. Names under a lease are proven by attributes of their directory, requested
//! after the lease is known.

use super::names::Id;
use super::objects::When;
use super::{MetadataCache, stats};
use hither_vfs::{
    Access, Attrs, DirPage, Error, Fh, FileKind, RequestContext, Result, Validity, bytes_prove_reading,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Files opened in one message: as many as fit into a message to a Linux server with the attributes
/// of a directory.
const FILES: usize = 11;
/// The first requests of a burst open one message of files. Each later request opens twice as many
/// files as the one before, up to so many doublings.
const SINGLE: u64 = 3;
const DOUBLINGS: u64 = 4;
/// Longest time between two requests of one burst, in nanoseconds.
const BURST_NANOS: u64 = 10_000_000_000;

/// A file to open, and the directory that it was seen in.
pub(super) struct Opening {
    pub fh: Fh,
    pub parent: Option<Id>,
}

/// The way to revalidate an object.
pub(super) enum Way {
    /// By its attributes.
    Ask,
    /// By its attributes and rights.
    Revalidate,
    /// By opening it; with the directory that it was seen in.
    Open(Option<Id>),
}

/// Recent requests that opened many files.
#[derive(Debug, Default)]
pub(super) struct Openings {
    count: AtomicU64,
    last: AtomicU64,
}

impl MetadataCache {
    /// Most restored files to open in the next request; 0 when opening saves nothing.
    pub(super) fn opens_at_once(&self, when: &When) -> usize {
        if self.near.get().is_none() {
            return 0;
        }
        let worth = !self.options.fresh_opens || !self.options.stateless_opens && self.may_be_leased();
        let last = self.openings.last.load(Ordering::Relaxed);
        let burst = when.now.saturating_sub(last) < BURST_NANOS;
        let count = if burst { self.openings.count.load(Ordering::Relaxed) } else { 0 };
        if worth { FILES << count.saturating_sub(SINGLE - 1).min(DOUBLINGS) } else { 0 }
    }

    /// The way to revalidate this object.
    pub(super) fn way(&self, id: Id, cred: u32, opens: bool) -> Way {
        let found = self.table.with_id(id, |o| {
            let restored = o.is_restored();
            let kind = o.attr.kind();
            let prove = kind == FileKind::Directory
                && (o.has_restored_right(cred, Access::LOOKUP) || o.has_restored_right(cred, Access::READ));
            let file = restored && opens && kind == FileKind::Regular && o.attr.size_bytes > 0;
            (prove, file.then(|| (super::handle(o), o.attr.size_bytes, o.parent)))
        });
        match found {
            Some((true, _)) => Way::Revalidate,
            Some((_, Some((fh, size, parent)))) if self.is_near_whole(&fh, size) => {
                Way::Open(self.table.with_slot(parent, |id, o| o.dir().is_some().then_some(id)).flatten())
            }
            _ => Way::Ask,
        }
    }

    /// Requests the attributes of objects and the caller's rights on them.
    pub(super) async fn ask_revalidations(
        &self,
        cx: &RequestContext,
        objects: &[Fh],
        want: Access,
    ) -> Vec<Result<(Attrs, Access)>> {
        if objects.is_empty() {
            return Vec::new();
        }
        let ticket = self.ticket();
        let mut answers = self.below.revalidate_many(cx, objects, want).await;
        stats::add(&self.counters.attr_misses, answers.len() as u64);
        for (fh, answer) in objects.iter().zip(&mut answers) {
            match answer {
                Ok((attrs, have)) => {
                    let id = self.learn_attrs(fh, attrs, &ticket);
                    self.learn_rights(&cx.cred, (fh, attrs.attr.change), want, *have, &ticket);
                    self.note_use(id);
                }
                Err(e) => *e = self.failed(fh, std::mem::replace(e, Error::new(libc::EIO))),
            }
        }
        answers
    }

    /// Opens files below. That brings their attributes, may bring leases, and proves their names.
    pub(super) async fn ask_opens(&self, cx: &RequestContext, opens: Vec<Opening>) {
        if opens.is_empty() {
            return;
        }
        let now = self.clock.now();
        let last = self.openings.last.swap(now, Ordering::Relaxed);
        let count = self.openings.count.load(Ordering::Relaxed);
        let burst = now.saturating_sub(last) < BURST_NANOS;
        self.openings.count.store(if burst { count + 1 } else { 1 }, Ordering::Relaxed);
        let files: Vec<Fh> = opens.iter().map(|open| open.fh.clone()).collect();
        let mut parents: Vec<Id> = Vec::new();
        for parent in opens.iter().filter_map(|open| open.parent) {
            if !parents.contains(&parent) {
                parents.push(parent);
            }
        }
        let dirs: Vec<Fh> = parents.into_iter().filter_map(|id| self.fh_of(id)).collect();
        let holder = if let [one] = &dirs[..] { Some(one) } else { None };
        let ticket = self.ticket();
        let answers = self.below.read_many(cx, &files, holder, 0).await;
        stats::add(&self.counters.reopened_files, files.len() as u64);
        let mut leased = false;
        self.hopes_for_leases();
        for (fh, fetched) in files.iter().zip(answers.files) {
            let Ok(fetched) = fetched.map_err(|e| self.failed(fh, e)) else { continue };
            let id = self.learn_attrs(fh, &fetched.attrs, &ticket);
            self.note_use(id);
            leased |= fetched.attrs.valid == Validity::Lease;
            if bytes_prove_reading(fetched.attrs.attr.mode) {
                let under = (fh, fetched.attrs.attr.change);
                self.learn_rights(&cx.cred, under, Access::READ, Access::READ, &ticket);
            }
        }
        match (&answers.holder, holder) {
            (Some(attrs), Some(dir)) => drop(self.learn_attrs(dir, attrs, &ticket)),
            _ if leased => self.revalidate_names(cx, &dirs).await,
            _ => {}
        }
    }

    /// Requests the attributes of directories, after the leases on their files have arrived.
    async fn revalidate_names(&self, cx: &RequestContext, dirs: &[Fh]) {
        let ticket = self.ticket();
        let answers = self.below.getattr_many(cx, dirs).await;
        stats::add(&self.counters.attr_misses, answers.len() as u64);
        for (dir, answer) in dirs.iter().zip(answers) {
            if let Ok(attrs) = answer.map_err(|e| self.failed(dir, e)) {
                self.learn_attrs(dir, &attrs, &ticket);
            }
        }
    }

    /// A page of a directory that was completely known before a restart, if the directory and its
    /// entries turn out to be unchanged.
    pub(super) async fn list_remembered(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        (max_bytes, nodes): (u32, bool),
        when: &When,
    ) -> Option<DirPage> {
        let cred = self.cred(&cx.cred);
        let worth = self.table.with(dir, |_, o| {
            let whole = o.dir().is_some_and(|dir| dir.is_complete());
            o.is_restored() && whole && o.has_restored_right(cred, Access::READ)
        });
        if worth != Some(true) || when.fresh.is_some() {
            return None;
        }
        self.ask_again(cx, std::slice::from_ref(dir), false).await;
        let when = When { now: self.clock.now(), ..*when };
        let page = self.list_known(cx, dir, 0, max_bytes, nodes, &when);
        page.or_else(|| self.list_own(cx, dir, None, (max_bytes, nodes), &when))
    }
}
