//! What is known of a path and how long that holds, for people; and why a question has to be asked.
//!
//! Nothing is asked and nothing changes here. A reason is found after it is decided to ask, from
//! what memory says at that moment, and only for calls that keep an account.

use super::Meta;
use super::contents::Version;
use super::moment::{FIRST, LEASE, Moment};
use super::objects::{Dir, When};
use hither_vfs::{Access, Cx, Fh, FileKind, Name, Want, Where, Why};
use std::time::Duration;

/// Entries of a listing in which the one is looked for that is too old.
const LOOKED_AT: usize = 256;

/// How long something that is known may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Known {
    /// When it was asked for, in milliseconds before now; `None`: a change of this client's own
    /// made it unknown.
    pub asked_ms_ago: Option<u64>,
    /// For how long it may still be used, in milliseconds; 0: it has to be asked again. `None`:
    /// until the server recalls it.
    pub left_ms: Option<u64>,
}

impl Known {
    /// Whether it may be used now, by a call that takes what holds.
    pub fn holds(&self) -> bool {
        self.left_ms != Some(0)
    }
}

/// What is known of one object on a path.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct KnownObject {
    /// Its name, for people; empty for the start of the path.
    pub name: String,
    /// That the name leads here, or that it is absent; `None` for the start of the path, or when
    /// nothing is known of it.
    pub binding: Option<Known>,
    /// The name is known to be absent.
    pub absent: bool,
    /// Its handle.
    #[serde(skip)]
    pub fh: Option<Fh>,
    /// Its attributes.
    pub attributes: Option<Known>,
    /// Type.
    pub kind: Option<&'static str>,
    /// Length.
    pub size_bytes: u64,
    /// Version.
    pub change: u64,
    /// Names that are known in it, absent ones included.
    pub names: u64,
    /// All of its names are known, so that any other is absent.
    pub complete: bool,
    /// All of its bytes are held in memory, as of its attributes.
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

impl Meta {
    /// What is known of `root` and of each name below it, as far as memory leads, whatever its age.
    pub fn explain(&self, root: &Fh, path: &[Name]) -> Vec<KnownObject> {
        let when = self.when(&Cx::new(std::sync::Arc::new(hither_vfs::Cred::root())));
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
            // A name whose object was dropped from memory is not known.
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

    /// Notes why a walk below is needed.
    pub(super) fn because(&self, cx: &Cx, at: Where<'_>, want: Want) {
        cx.because(|| self.why(cx, at, want));
    }

    /// Notes why a listing is asked for: because it is too old, or what one of its entries is;
    /// otherwise it is not known.
    pub(super) fn because_listed(&self, cx: &Cx, dir: &Fh, when: &When) {
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

    fn why(&self, cx: &Cx, at: Where<'_>, want: Want) -> Why {
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

/// Why an answer that is known will not do.
fn too_old(asked: Moment, until: Moment, when: &When) -> Why {
    let ago = Duration::from_nanos(when.now.saturating_sub(asked));
    match until {
        0 => Why::Changed,
        _ if when.valid(until) => Why::Fresh(ago),
        _ => Why::Expired(ago),
    }
}

fn known(asked: Moment, until: Moment, when: &When) -> Known {
    const MS: u64 = 1_000_000;
    let left_ms = match until & LEASE {
        0 => Some(until.saturating_sub(when.now) / MS),
        _ if when.valid(until) => None,
        _ => Some(0),
    };
    let ours = until == 0 && asked < FIRST;
    Known { asked_ms_ago: (!ours).then(|| when.now.saturating_sub(asked) / MS), left_ms }
}
