//! Objects and their attributes: LOOKUP, GETATTR, SETATTR, ACCESS, READLINK.

use super::V3;
use super::convert;
use super::wire::Patience;
use crate::AttrCache;
use crate::detach::detached;
use crate::error;
use crate::nqnfs::{Leases, Nqnfs};
use hither_proto::nfs3::{
    AccessArgs, Diropargs3, LookupArgs, Name3, Nfsstat3, PostOpAttr, ReadlinkArgs, SetattrArgs, WccData,
};
use hither_vfs::{
    Access, Attr, Attrs, ChangeInfo, Cred, Error, Fh, File, FileKind, Name, Node, RequestContext, Result,
    SetAttr, Validity,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Assumed age of attributes beside the answer of a gateway: the default of `acregmax`.
const BESIDE_AGE: Duration = Duration::from_secs(60);

impl V3 {
    /// An object with attributes. `came` has the attributes of a reply, and the time of its
    /// request. Without them the client requests fresh attributes.
    pub(super) async fn node(
        &self,
        cx: &RequestContext,
        fh: Fh,
        came: Option<(PostOpAttr, Instant)>,
    ) -> Result<Node> {
        let (came, asked) = came.unwrap_or((None, Instant::now()));
        let asked = if came.is_some() { asked } else { Instant::now() };
        let attr = self.caller.attr_or_ask(&cx.cred, &Patience::of(cx), &fh, came).await?;
        let attrs = self.stamp(&fh, attr, asked);
        Ok(Node { fh, attrs })
    }

    /// Adds the validity to attributes, and corrects the attributes for this client's own writes.
    pub(super) fn stamp(&self, fh: &Fh, attr: Attr, asked: Instant) -> Attrs {
        let covered = self.is_leased(fh, &attr);
        let attr = self.as_written(fh, attr);
        let attrs = self.under_lease(covered, self.caller.rules.attrs(fh, attr, asked));
        self.opens.leaving.settle(fh, self.unshared(fh, attrs))
    }

    /// As [`V3::stamp`], for an object found by name.
    pub(super) fn stamp_named(&self, fh: &Fh, attr: Attr, asked: Instant) -> Attrs {
        let covered = self.is_leased(fh, &attr);
        let attr = self.as_written(fh, attr);
        let attrs = self.under_lease(covered, self.caller.rules.named(fh, attr, asked));
        self.opens.leaving.settle(fh, self.unshared(fh, attrs))
    }

    /// The leases of a mount with NQNFS.
    pub(super) fn leases(&self) -> Option<&Arc<Leases>> {
        self.caller.nqnfs.as_ref().and_then(Nqnfs::leases)
    }

    /// Whether the attributes are covered by an NQNFS lease.
    fn is_leased(&self, fh: &Fh, attr: &Attr) -> bool {
        attr.kind == FileKind::Regular && self.leases().is_some_and(|leases| leases.covers(fh, attr))
    }

    /// Gives covered attributes the validity of the lease. Exception: with `lookupcache=none` the
    /// validity stays one call, because a name is valid no longer than its directory.
    fn under_lease(&self, covered: bool, attrs: Attrs) -> Attrs {
        let may_last = attrs.valid != Validity::Once || self.opts.attr_cache == AttrCache::NONE;
        let valid = if covered && may_last { Validity::Lease } else { attrs.valid };
        Attrs { valid, ..attrs }
    }

    /// Limits attributes without a lease to one call when other clients use the file at the same
    /// time.
    fn unshared(&self, fh: &Fh, attrs: Attrs) -> Attrs {
        let shared = attrs.valid != Validity::Lease && self.leases().is_some_and(|l| l.is_noncacheable(fh));
        if shared { Attrs { valid: Validity::Once, ..attrs } } else { attrs }
    }

    fn as_written(&self, fh: &Fh, mut attr: Attr) -> Attr {
        if attr.kind == FileKind::Regular {
            attr.size_bytes = self.writes.size(fh, attr.size_bytes);
            attr.nlink = self.opens.links(fh, attr.nlink);
        }
        self.listing_sizes.note(fh, &attr);
        attr
    }

    /// Records a directory's attributes from the reply of an operation in it.
    pub(super) fn learn(&self, dir: &Fh, came: &PostOpAttr, asked: Instant) -> Option<Attrs> {
        self.own(dir, came, asked).map(|attrs| self.aged(attrs))
    }

    /// As [`V3::learn`], of an operation that changed the directory. The attributes include the
    /// change, also at a gateway.
    fn own(&self, dir: &Fh, came: &PostOpAttr, asked: Instant) -> Option<Attrs> {
        let attr = came.as_ref().and_then(convert::attr)?;
        Some(self.stamp(dir, attr, asked))
    }

    /// Attributes that come beside the answer. Those of a gateway may be older than the call, so an
    /// open asks the server again.
    pub(super) fn aged(&self, attrs: Attrs) -> Attrs {
        match attrs.asked.checked_sub(BESIDE_AGE) {
            Some(asked) if self.old_beside => Attrs { asked, ..attrs },
            _ => attrs,
        }
    }

    /// The change of a directory by an operation in it.
    pub(super) fn dir_change(&self, dir: &Fh, wcc: &WccData, asked: Instant) -> ChangeInfo {
        ChangeInfo { attrs: self.own(dir, &wcc.after, asked), ..convert::change_info(wcc) }
    }

    /// Looks up one name; `None` when it does not exist.
    pub(super) async fn lookup(
        &self,
        cred: &Cred,
        patience: &Patience,
        dir: &Fh,
        name: &Name,
    ) -> Result<Option<Node>> {
        Ok(self.lookup_in(cred, patience, dir, name).await?.0)
    }

    /// As [`V3::lookup`], with the directory's attributes after the lookup, when the reply has
    /// them.
    pub(super) async fn lookup_in(
        &self,
        cred: &Cred,
        patience: &Patience,
        dir: &Fh,
        name: &Name,
    ) -> Result<(Option<Node>, Option<Attrs>)> {
        let asked = Instant::now();
        let args = LookupArgs { what: dirop(dir, name)? };
        let found = self.caller.ask(cred, patience, &args).await.map_err(|e| error::call(&e))?;
        match found {
            Ok(ok) => {
                let dir_attrs = self.learn(dir, &ok.dir_attributes, asked);
                let fh = convert::fh(&ok.object).ok_or_else(empty_handle)?;
                let attr = self.caller.attr_or_ask(cred, patience, &fh, ok.obj_attributes).await?;
                let is_dir = attr.kind == FileKind::Directory;
                let attrs = self.stamp_named(&fh, attr, asked);
                let attrs = if is_dir { self.aged(attrs) } else { attrs };
                Ok((Some(Node { fh, attrs }), dir_attrs))
            }
            Err((Nfsstat3::NOENT, dir_attributes)) => Ok((None, self.learn(dir, &dir_attributes, asked))),
            Err((status, _)) => Err(error::nfs3(status)),
        }
    }

    /// The parent directory of `dir`: LOOKUP of `..` (RFC 1813 section 3.3.3).
    pub(super) async fn directory_above(&self, cx: &RequestContext, dir: &Fh) -> Result<Node> {
        if *dir == self.root {
            return Err(Error::new(libc::ENOENT));
        }
        let (asked, patience) = (Instant::now(), Patience::of(cx));
        let what = Diropargs3 { dir: convert::fh3(dir)?, name: Name3::copy(b"..") };
        let ok = self.caller.expect(&cx.cred, &patience, &LookupArgs { what }).await?;
        let fh = convert::fh(&ok.object).ok_or_else(empty_handle)?;
        self.node(cx, fh, Some((ok.obj_attributes, asked))).await
    }

    /// The rights of `want` that the caller has, and the object's attributes, when the reply has
    /// them.
    pub(super) async fn rights(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        want: Access,
    ) -> Result<(Access, PostOpAttr)> {
        // The bits of the interface are those of RFC 1813 section 3.3.4.
        let args = AccessArgs { object: convert::fh3(fh)?, access: want.bits() };
        let ok = self.caller.expect(&cx.cred, &Patience::of(cx), &args).await?;
        let attr = ok.obj_attributes.filter(|_| !self.old_beside);
        Ok((Access::from_bits_truncate(ok.access) & want, attr))
    }

    pub(super) async fn link_target(&self, cx: &RequestContext, fh: &Fh) -> Result<bytes::Bytes> {
        let args = ReadlinkArgs { symlink: convert::fh3(fh)? };
        let ok = self.caller.expect(&cx.cred, &Patience::of(cx), &args).await?;
        if ok.data.is_empty() || ok.data.contains(&0) {
            return Err(Error::because(libc::EIO, "the server sends a symbolic link that is not a path"));
        }
        Ok(bytes::Bytes::copy_from_slice(&ok.data))
    }

    pub(super) async fn set_attributes(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        set: &SetAttr,
    ) -> Result<Attrs> {
        if set.size_bytes.is_some_and(|s| s > self.caller.sizes.file_max_bytes) {
            return Err(Error::new(libc::EFBIG));
        }
        // A length is set with the credential of the open. Modes and owners need the caller's
        // credential.
        let open = file.open.and_then(|id| self.opens.find(id));
        let cred = match (&open, set.size_bytes) {
            (Some(open), Some(_)) => open.cred.clone(),
            _ => cx.cred.clone(),
        };
        let (this, fh, set) = (self.clone(), file.fh.clone(), set.clone());
        detached(cx, async move { this.apply(&cred, &fh, &set).await }).await
    }

    /// SETATTR, ordered with writes. A new length waits for the writes that it cuts off. Other
    /// attributes wait until all writes are stable, since a second write would need the old mode
    /// and change the time.
    pub(super) async fn apply(&self, cred: &Arc<Cred>, fh: &Fh, set: &SetAttr) -> Result<Attrs> {
        let truncating = match set.size_bytes {
            Some(size) => Some(self.writes.truncating(fh, size).await),
            None => {
                self.writes.settle(fh).await?;
                None
            }
        };
        let (asked, patience) = (Instant::now(), Patience::policy());
        let args =
            SetattrArgs { object: convert::fh3(fh)?, new_attributes: convert::sattr(set), guard: None };
        let wcc = self.caller.expect(cred, &patience, &args).await?;
        if let Some(truncating) = truncating {
            truncating.done();
        }
        let attr = self.caller.attr_or_ask(cred, &patience, fh, wcc.after).await?;
        Ok(self.stamp(fh, attr, asked))
    }
}

pub(super) fn dirop(dir: &Fh, name: &Name) -> Result<Diropargs3> {
    Ok(Diropargs3 { dir: convert::fh3(dir)?, name: name.bytes().clone().into() })
}

pub(super) fn empty_handle() -> Error {
    Error::because(libc::EIO, "the server sends an empty filehandle")
}
