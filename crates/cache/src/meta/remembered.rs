//! Asking about what is remembered from before a restart: directories with the rights on them, and
//! files by opening them.
//!
//! Nothing that is remembered is answered before the server has told the same `change` again
//! ([`recall`](super::recall)). A right is worth a question, no more: it is asked for with the
//! directory's attributes. A file that is whole on the local disk is opened where that spares a
//! question later, because it brings a lease, or because opens do not ask: many in one question.
//! Names under a lease are proven by attributes of their directory that were asked for after the
//! lease was known here.

use super::names::Id;
use super::objects::When;
use super::{Meta, stats};
use hither_vfs::{Access, Attrs, Cx, DirPage, Error, Fh, FileKind, Result, Validity, bytes_prove_reading};
use std::sync::atomic::{AtomicU64, Ordering};

/// Files that are opened in one question: as many as one message to a Linux server holds with the
/// attributes of a directory.
const FILES: usize = 11;
/// So many questions are of one message; those that follow at once are twice as large each, up to
/// so many doublings.
const SINGLE: u64 = 3;
const DOUBLINGS: u64 = 4;
/// Questions this close are of one burst.
const BURST_NANOS: u64 = 10_000_000_000;

/// A file to open, and the directory that it was seen in.
pub(super) struct Opening {
    pub fh: Fh,
    pub parent: Option<Id>,
}

/// How to ask about an object.
pub(super) enum Way {
    /// For its attributes.
    Ask,
    /// And for rights.
    Prove,
    /// By opening it.
    Open(Option<Id>),
}

/// How often many files were opened lately.
#[derive(Debug, Default)]
pub(super) struct Openings {
    count: AtomicU64,
    last: AtomicU64,
}

impl Meta {
    /// How many remembered files may be opened in the next question; 0 when that is worth nothing.
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

    /// How an object is to be asked about.
    pub(super) fn way(&self, id: Id, cred: u32, opens: bool) -> Way {
        let found = self.table.with_id(id, |o| {
            let remembered = o.is_remembered();
            let kind = o.attr.kind();
            let prove = kind == FileKind::Directory
                && (o.remembers(cred, Access::LOOKUP) || o.remembers(cred, Access::READ));
            let file = remembered && opens && kind == FileKind::Regular && o.attr.size_bytes > 0;
            (prove, file.then(|| (super::handle(o), o.attr.size_bytes, o.parent)))
        });
        match found {
            Some((true, _)) => Way::Prove,
            Some((_, Some((fh, size, parent)))) if self.is_near_whole(&fh, size) => {
                Way::Open(self.table.with_slot(parent, |id, o| o.dir().is_some().then_some(id)).flatten())
            }
            _ => Way::Ask,
        }
    }

    /// Attributes of objects and the caller's rights on them, from below.
    pub(super) async fn ask_proofs(
        &self,
        cx: &Cx,
        objects: &[Fh],
        want: Access,
    ) -> Vec<Result<(Attrs, Access)>> {
        if objects.is_empty() {
            return Vec::new();
        }
        let ticket = self.ticket();
        let mut answers = self.below.prove_many(cx, objects, want).await;
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

    /// Opens files, which says what they are and may bring leases, and proves their names.
    pub(super) async fn ask_opens(&self, cx: &Cx, opens: Vec<Opening>) {
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
            _ if leased => self.prove_names(cx, &dirs).await,
            _ => {}
        }
    }

    /// Attributes of directories: newer than leases that came before.
    async fn prove_names(&self, cx: &Cx, dirs: &[Fh]) {
        let ticket = self.ticket();
        let answers = self.below.getattr_many(cx, dirs).await;
        stats::add(&self.counters.attr_misses, answers.len() as u64);
        for (dir, answer) in dirs.iter().zip(answers) {
            if let Ok(attrs) = answer.map_err(|e| self.failed(dir, e)) {
                self.learn_attrs(dir, &attrs, &ticket);
            }
        }
    }

    /// A page of a directory that was known as a whole before a restart, when it and its entries
    /// turn out to be as they were.
    pub(super) async fn list_remembered(
        &self,
        cx: &Cx,
        dir: &Fh,
        (max_bytes, nodes): (u32, bool),
        when: &When,
    ) -> Option<DirPage> {
        let cred = self.cred(&cx.cred);
        let worth = self.table.with(dir, |_, o| {
            let whole = o.dir().is_some_and(|dir| dir.is_complete());
            o.is_remembered() && whole && o.remembers(cred, Access::READ)
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
