//! Whole paths: a LOOKUP for each name, and further requested data of the last name.
//!
//! NFSv3 has no compounds, so each name costs a round trip. Calls for further data are concurrent.
//! A listing of the last name's directory can replace the LOOKUP of that name. It does so when it
//! is likely to be whole ([`super::listing_sizes`]) and proves the name present or absent.
//! Otherwise both calls are sent at once. A gateway is not asked for such a listing, because it
//! answers from its cache. READ or ACCESS follow as soon as the filehandle is known. Returned bytes
//! prove the right to read. ACCESS is only needed for other rights, and for files without a READ.
//!
//! The data must belong to the attributes returned with it. A server reads attributes *after* data
//! or entries. New attributes could then hide a change by another client in between. First bytes
//! are therefore kept only when the attributes of READ equal those of the earlier LOOKUP. A
//! directory keeps its attributes from before the listing. The next comparison detects data newer
//! than its attributes, but never data older than its attributes.

use super::V3;
use super::convert;
use super::wire::Patience;
use hither_proto::nfs3::{PostOpAttr, ReadArgs};
use hither_vfs::{
    Access, Along, Attr, Attrs, Cred, Data, Error, Fh, FileKind, Name, Node, PathRef, Read, RequestContext,
    Result, Stop, WalkRequest, WalkResult, bytes_prove_reading,
};
use tokio::time::Instant;

/// Most names of one walk. The interface allows a walk to stop early and continue.
const WALK_MAX: usize = 64;

/// Result for the last name.
struct Last {
    found: Result<Option<Node>>,
    along: Along,
    /// Attributes of the directory after the lookup.
    dir: Option<Attrs>,
}

impl Last {
    fn missing() -> Self {
        Self { found: Ok(None), along: Along::default(), dir: None }
    }
}

/// Whether a READ proves all the wanted rights of a file with this mode. It proves the right to
/// read, and the mode may exclude execution by every user.
fn bytes_tell(want: Access, mode: u32) -> bool {
    let more = want - Access::READ;
    want.contains(Access::READ)
        && bytes_prove_reading(mode)
        && (more.is_empty() || more == Access::EXECUTE && mode & 0o111 == 0)
}

/// The start of a file with the attributes of the same reply.
pub(super) struct Start {
    pub attr: Option<Attr>,
    pub read: Read,
}

impl V3 {
    pub(super) async fn walk_path(
        &self,
        cx: &RequestContext,
        at: PathRef<'_>,
        want: WalkRequest,
    ) -> Result<WalkResult> {
        let want = if self.opts.chains { want } else { WalkRequest::default() };
        let most = if self.opts.chains {
            self.opts.chain_max.map_or(WALK_MAX, |n| (n as usize).clamp(1, WALK_MAX))
        } else {
            1
        };
        let mut trail = WalkResult::new(Vec::new(), Stop::Complete);
        let before = self.caller.rules.known_change(at.base);
        let mut base = None;
        for (i, name) in at.path.iter().enumerate() {
            if i == most {
                trail.stop = Stop::Limit;
                return Ok(trail);
            }
            match trail.steps.last().map(|n| n.attrs.attr.kind) {
                None | Some(FileKind::Directory) => {}
                Some(kind) => {
                    let symlink = kind == FileKind::Symlink;
                    trail.stop = if symlink { Stop::Symlink } else { Stop::NotDirectory };
                    return Ok(trail);
                }
            }
            let asked = Instant::now();
            let dir = trail.steps.last().map_or(at.base, |n| &n.fh);
            let want = if i + 1 == at.path.len() { want } else { WalkRequest::default() };
            let Last { found, along, dir: after } = self.last_name(cx, dir, name, want).await;
            if i == 0 {
                // Attributes from after the lookup are valid for the name when they equal those
                // known before.
                base = after.filter(|attrs| before == Some(attrs.attr.change));
            }
            trail.along = Along { base: base.clone(), ..along };
            match found {
                Ok(Some(node)) => trail.steps.push(node),
                Ok(None) => {
                    trail.stop = Stop::Missing(self.caller.rules.missing(dir, asked));
                    return Ok(trail);
                }
                Err(e) if trail.steps.is_empty() && trail.along.listing.is_none() => return Err(e),
                Err(e) => {
                    trail.stop = Stop::Failed(e);
                    return Ok(trail);
                }
            }
        }
        Ok(trail)
    }

    async fn last_name(&self, cx: &RequestContext, dir: &Fh, name: &Name, want: WalkRequest) -> Last {
        // The listing of a gateway may be older than the call, unlike its answer to a LOOKUP.
        if want.listing_bytes == 0 || !self.lists_nodes() || self.old_beside {
            return self.look_up_with(cx, dir, name, want).await;
        }
        let bytes = want.listing_bytes;
        if !self.listing_sizes.likely_whole(dir, bytes) || !self.listed_if_present(name) {
            let (listed, mut last) =
                tokio::join!(self.list_from_start(cx, dir, bytes), self.look_up_with(cx, dir, name, want));
            last.along.listing = listed.ok().map(|l| l.page);
            return last;
        }
        let Ok(listed) = self.list_from_start(cx, dir, bytes).await else {
            return self.look_up_with(cx, dir, name, want).await;
        };
        let entry = listed.page.entries.iter().find(|e| e.name == *name);
        let same_fs = listed.dir.as_ref().is_some_and(|dir| dir.attr.fsid == self.root_fsid);
        let mut last = match entry.map(|e| e.node.clone()) {
            Some(Some(node)) => self.bring(cx, node, want).await,
            None if listed.page.eof && same_fs => Last::missing(),
            _ => self.look_up_with(cx, dir, name, want).await,
        };
        last.dir = listed.dir;
        last.along.listing = Some(listed.page);
        last
    }

    /// Whether a whole listing without this name proves that a LOOKUP would fail. Not when other
    /// spellings also find a file. A file system may ignore case, as PATHCONF reports for the
    /// root's file system. It may also match another normal form, which only concerns names beyond
    /// ASCII.
    fn listed_if_present(&self, name: &Name) -> bool {
        self.exact_names && !name.may_be_unlisted()
    }

    async fn look_up_with(&self, cx: &RequestContext, dir: &Fh, name: &Name, want: WalkRequest) -> Last {
        match self.lookup_in(&cx.cred, &Patience::of(cx), dir, name).await {
            Ok((Some(node), dir)) => Last { dir, ..self.bring(cx, node, want).await },
            Ok((None, dir)) => Last { dir, ..Last::missing() },
            Err(e) => Last { found: Err(e), ..Last::missing() },
        }
    }

    /// Fetches the further requested data of a found object. A failure does no harm.
    async fn bring(&self, cx: &RequestContext, mut node: Node, want: WalkRequest) -> Last {
        let (fh, known) = (&node.fh, &node.attrs.attr);
        let regular = known.kind == FileKind::Regular && want.read_bytes > 0;
        let most_bytes = if regular && known.size_bytes > 0 { want.read_bytes } else { 0 };
        let (rights, start) = self.rights_and_start(cx, fh, (want.access, known.mode), most_bytes).await;
        let (access, came) = match rights {
            Some(Ok((access, came))) => (Some(access), came.as_ref().and_then(convert::attr)),
            _ => (None, None),
        };
        let mut along = Along { access, ..Along::default() };
        let newest = newest([came, start.as_ref().and_then(|s| s.attr.clone())]);
        let changed = newest.filter(|attr| attr.change != known.change);
        if regular && changed.is_none() {
            along.first = match start {
                Some(start) => start.attr.is_some().then_some(start.read),
                // An empty file needs no READ, but the right to read.
                None if known.size_bytes == 0 && access.is_some_and(|a| a.contains(Access::READ)) => {
                    Some(Read { data: Data::default(), eof: true })
                }
                None => None,
            };
        }
        if let Some(attr) = changed {
            // The name was found at the time of LOOKUP. The newer attributes do not extend the
            // validity of the name.
            let Attrs { attr, .. } = self.stamp(&node.fh, attr, node.attrs.asked);
            node.attrs.attr = attr;
        }
        Last { found: Ok(Some(node)), along, ..Last::missing() }
    }

    /// Rights and first bytes of a file with this mode, concurrently. No READ when `most_bytes` is
    /// 0. ACCESS is omitted when READ proves all the wanted rights. ACCESS follows when READ did
    /// not prove them.
    pub(super) async fn rights_and_start(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        (want, mode): (Access, u32),
        most_bytes: u32,
    ) -> (Option<Result<(Access, PostOpAttr)>>, Option<Start>) {
        let tells = most_bytes > 0 && bytes_tell(want, mode);
        let (rights, start) = tokio::join!(
            async { if want.is_empty() || tells { None } else { Some(self.rights(cx, fh, want).await) } },
            async {
                match most_bytes {
                    0 => None,
                    most => self.start(&cx.cred, &Patience::of(cx), fh, most).await.ok(),
                }
            }
        );
        let told = start.as_ref().and_then(|s| s.attr.as_ref()).is_some_and(|a| bytes_tell(want, a.mode));
        if tells && !told { (Some(self.rights(cx, fh, want).await), start) } else { (rights, start) }
    }

    /// One READ of at most `most_bytes` from the start of a file, with the attributes of the reply.
    pub(super) async fn start(
        &self,
        cred: &Cred,
        patience: &Patience,
        fh: &Fh,
        most_bytes: u32,
    ) -> Result<Start> {
        let count = most_bytes.min(self.caller.sizes.rsize_bytes);
        let args = ReadArgs { file: convert::fh3(fh)?, offset: 0, count };
        let ok = self.caller.expect(cred, patience, &args).await?;
        if ok.data.len() > count as usize {
            return Err(Error::because(libc::EIO, "the server sends more bytes than requested"));
        }
        let attr = ok.file_attributes.as_ref().filter(|_| !self.old_beside).and_then(convert::attr);
        let eof = ok.eof || ok.data.is_empty();
        let read = self.writes.overlay(fh, 0, count, Read { data: ok.data.0.into(), eof });
        Ok(Start { attr, read })
    }

    /// The directory of the last name of a path.
    pub(super) async fn parent_of(&self, cx: &RequestContext, at: PathRef<'_>) -> Result<Fh> {
        let Some((_, parents)) = at.path.split_last() else { return Err(Error::new(libc::EINVAL)) };
        let mut base = at.base.clone();
        let mut path = parents;
        while !path.is_empty() {
            let trail = self.walk_path(cx, PathRef { base: &base, path }, WalkRequest::default()).await?;
            let errno = match trail.stop {
                Stop::Complete | Stop::Limit => 0,
                Stop::Missing(_) => libc::ENOENT,
                Stop::NotDirectory => libc::ENOTDIR,
                // The caller follows links inside the path.
                Stop::Symlink => libc::ELOOP,
                Stop::Failed(e) => return Err(e),
            };
            if errno != 0 {
                return Err(Error::new(errno));
            }
            path = &path[trail.steps.len()..];
            base = trail.steps.last().map_or(base, |n| n.fh.clone());
        }
        Ok(base)
    }
}

/// The newest of several answers about one object. `change` is made of ctime in this module, so
/// values can be compared.
pub(super) fn newest<const N: usize>(answers: [Option<Attr>; N]) -> Option<Attr> {
    answers.into_iter().flatten().max_by_key(|attr| attr.change)
}
