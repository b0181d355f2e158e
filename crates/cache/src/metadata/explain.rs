//! Explains the cache to people: the known facts about a path with their validity, and the reason
//! of a request.
//!
//! This module sends no requests and changes nothing. A reason is found after the decision to send
//! a request, from the memory at that moment, and only for calls that keep an account.

use super::MetadataCache;
use super::contents::Version;
use super::moment::{FIRST, LEASE, Moment};
use super::objects::{Dir, When};
use hither_vfs::{Access, Fh, FileKind, Name, PathRef, RequestContext, WalkRequest, Why};
use std::time::Duration;

/// Most entries of a listing that are searched for an expired one.
const LOOKED_AT: usize = 256;

/// Age and remaining validity of a cached fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct FactValidity {
    /// Age of the request, in milliseconds; `None`: a local change expired the fact.
    pub asked_ms_ago: Option<u64>,
    /// Remaining validity, in milliseconds; 0: expired. `None`: valid until the server recalls the
    /// lease.
    pub left_ms: Option<u64>,
}

impl FactValidity {
    /// Whether a call without freshness may use the fact now.
    pub fn holds(&self) -> bool {
        self.left_ms != Some(0)
    }
}

/// The cached facts about one object on a path.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct KnownObject {
    /// The name, for people; empty for the start of the path.
    pub name: String,
    /// Validity of the binding or absence of the name; `None` for the start of the path, or when
    /// the name is unknown.
    pub binding: Option<FactValidity>,
    /// The name is known to be absent.
    pub absent: bool,
    /// Filehandle.
    #[serde(skip)]
    pub fh: Option<Fh>,
    /// Validity of the attributes.
    pub attributes: Option<FactValidity>,
    /// File type.
    pub kind: Option<&'static str>,
    /// Size, in bytes.
    pub size_bytes: u64,
    /// The change attribute.
    pub change: u64,
    /// Known names in the directory, absent ones included.
    pub names: u64,
    /// All names of the directory are known, so that any other name is absent.
    pub complete: bool,
    /// All bytes of the file are in memory, in the version of its attributes.
    pub contents: bool,
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::BlockDevice => "block device",
        FileKind::CharDevice => "character device",
        FileKind::Socket => "socket",
        FileKind::Fifo => "named pipe",
    }
}

impl MetadataCache {
    /// The cached facts about `root` and each name below it, of any age, as far as the path is
    /// known.
    pub fn explain(&self, root: &Fh, path: &[Name]) -> Vec<KnownObject> {
        let when = self.when(&RequestContext::new(std::sync::Arc::new(hither_vfs::Cred::root())));
        let mut out = vec![self.explain_object(root, &when)];
        let mut dir = root.clone();
        for name in path {
            let hash = self.table.hash(name.as_bytes());
            let said = |d: &Dir| d.answer(hash, name.as_bytes(), self.limits);
            let answer = self.table.with(&dir, |_, o| o.dir().and_then(said));
            let mut next = KnownObject::default();
            let answer = answer.flatten();
            let child = answer.and_then(|a| a.child).and_then(|id| self.fh_of(id));
            if let Some(fh) = &child {
                next = self.explain_object(fh, &when);
            }
            next.name = String::from_utf8_lossy(name.as_bytes()).into_owned();
            // A name is unknown when its object was dropped from memory.
            let answer = answer.filter(|a| a.child.is_none() || child.is_some());
            next.binding = answer.map(|a| known(a.asked, a.until, &when));
            next.absent = answer.is_some_and(|a| a.child.is_none());
            out.push(next);
            match child {
                Some(fh) => dir = fh,
                None => break,
            }
        }
        out
    }

    fn explain_object(&self, fh: &Fh, when: &When) -> KnownObject {
        let about = self.table.with(fh, |_, o| {
            let mut about = KnownObject { fh: Some(fh.clone()), ..KnownObject::default() };
            if let Some(dir) = o.dir() {
                about.names = dir.names.len() as u64;
                about.complete = dir.is_complete();
            }
            if o.asked != 0 {
                let until = if o.asked < when.fence { 0 } else { o.until };
                about.attributes = Some(known(o.asked, until, when));
                about.kind = Some(kind_name(o.attr.kind()));
                (about.size_bytes, about.change) = (o.attr.size_bytes, o.attr.change);
            }
            (about, o.version())
        });
        let Some((mut about, version)) = about else {
            return KnownObject { fh: Some(fh.clone()), ..KnownObject::default() };
        };
        about.contents = self.contents.has(fh, version);
        about
    }

    /// Records the reason of a walk below.
    pub(super) fn because(&self, cx: &RequestContext, at: PathRef<'_>, want: WalkRequest) {
        cx.because(|| self.why(cx, at, want));
    }

    /// Records the reason of a listing request: the listing or one of its entries is too old.
    /// Otherwise the reason is not recorded.
    pub(super) fn because_listed(&self, cx: &RequestContext, dir: &Fh, when: &When) {
        cx.because(|| {
            let known = self.table.with(dir, |_, o| {
                let dir = o.dir().filter(|dir| dir.is_complete())?;
                let some: Vec<_> = dir.names.present().map(|(_, child)| child).take(LOOKED_AT).collect();
                Some((dir.asked, dir.until, some))
            });
            let Some((asked, until, children)) = known.flatten() else { return Why::Unsaid };
            if !when.fits(until, asked) {
                return too_old(asked, until, when);
            }
            let old =
                |id| self.table.with_id(id, |o| (!o.holds(when)).then_some((o.asked, o.until))).flatten();
            let old = children.into_iter().find_map(old);
            old.map_or(Why::Unsaid, |(asked, until)| too_old(asked, until, when))
        });
    }

    fn why(&self, cx: &RequestContext, at: PathRef<'_>, want: WalkRequest) -> Why {
        let when = self.when(cx);
        let mut here = at.base.clone();
        for name in at.path {
            let hash = self.table.hash(name.as_bytes());
            let answer = self.table.with(&here, |_, o| {
                let known = o.dir().and_then(|d| d.answer(hash, name.as_bytes(), self.limits));
                known.map(|a| (a.child, a.asked, a.until))
            });
            let Some((child, asked, until)) = answer.flatten() else { return Why::Unknown };
            if !when.fits(until, asked) {
                return too_old(asked, until, &when);
            }
            match child.and_then(|id| self.fh_of(id)) {
                Some(fh) => here = fh,
                None => return Why::Unknown,
            }
        }
        let cred = self.cred(&cx.cred);
        let about = self.table.with(&here, |_, o| {
            let rights = o.rights(cred, want.access & (Access::READ | Access::EXECUTE), &when.any_age());
            (o.asked, o.until, o.holds(&when), rights.is_some(), o.version())
        });
        let Some((asked, until, holds, rights, version)) = about else { return Why::Unknown };
        match asked {
            0 => Why::Unknown,
            _ if asked < when.fence => Why::Changed,
            _ if !holds => too_old(asked, until, &when),
            _ if !want.access.is_empty() && !rights => Why::Rights,
            _ if want.read_bytes > 0 && !self.has_contents(&here, version) => Why::Contents,
            _ => Why::Unsaid,
        }
    }

    fn has_contents(&self, fh: &Fh, version: Version) -> bool {
        self.contents.has(fh, version)
    }
}

/// The reason for which a known answer cannot be used.
fn too_old(asked: Moment, until: Moment, when: &When) -> Why {
    let ago = Duration::from_nanos(when.now.saturating_sub(asked));
    match until {
        0 => Why::Changed,
        _ if when.valid(until) => Why::Fresh(ago),
        _ => Why::Expired(ago),
    }
}

fn known(asked: Moment, until: Moment, when: &When) -> FactValidity {
    const MS: u64 = 1_000_000;
    let left_ms = match until & LEASE {
        0 => Some(until.saturating_sub(when.now) / MS),
        _ if when.valid(until) => None,
        _ => Some(0),
    };
    let ours = until == 0 && asked < FIRST;
    FactValidity { asked_ms_ago: (!ours).then(|| when.now.saturating_sub(asked) / MS), left_ms }
}
