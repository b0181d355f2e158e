//! Extended attributes (RFC 8276) and ACLs.
//!
//! The server's extended attributes are Linux's `user.*`, without the prefix. The ACL is the value
//! of `system.nfs4_acl`: the XDR of `fattr4_acl` as on the wire. nfs4-acl-tools expect the same
//! from the Linux client.

use super::attrs::NODE_ATTRS;
use super::call::Compound;
use super::core::Core;
use super::fail::{Answered, Fail};
use super::state::wire_fh;
use bytes::Bytes;
use hither_proto::nfs4::{Acl, Attrs, Bitmap4, Nfsstat4, Op, RareAttrs, SetxattrOption, Stateid, attr};
use hither_proto::xdr::{Dec, Enc};
use hither_vfs::{Error, Fh, RequestContext, XattrMode};
use std::sync::Arc;

const ACL_NAME: &[u8] = b"system.nfs4_acl";
const USER: &[u8] = b"user.";
/// Longest list of names, as in Linux.
const LIST_MAX_BYTES: usize = 64 << 10;

/// Longest name, as in Linux.
const NAME_MAX_BYTES: usize = 255;

/// Kind of an attribute name.
enum Which<'a> {
    User(&'a [u8]),
    Acl,
}

impl Core {
    fn which<'a>(&self, name: &'a [u8]) -> Answered<Which<'a>> {
        let unsupported = || Err(Error::new(libc::EOPNOTSUPP).into());
        match name.strip_prefix(USER) {
            Some(_) if self.minor < 2 || !self.facts().xattrs => unsupported(),
            Some(key) if !key.is_empty() => Ok(Which::User(key)),
            None if name == ACL_NAME && self.opts.acl && self.facts().acls => Ok(Which::Acl),
            _ => unsupported(),
        }
    }

    /// Value of an attribute.
    pub async fn getxattr(self: &Arc<Self>, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Answered<Bytes> {
        match self.which(name)? {
            Which::User(key) => {
                let ops = [putfh(fh), Op::getxattr(key)];
                let mut answer = self.compound(cx, Compound::new("GETXATTR", ops)).await?;
                answer.results.putfh()?;
                Ok(Bytes::copy_from_slice(&answer.results.getxattr().map_err(|e| xattr_fail(e.into()))?))
            }
            Which::Acl => {
                let mut answer = self.compound(cx, Compound::new("GETACL", [putfh(fh), acl()])).await?;
                answer.results.putfh()?;
                match answer.results.getattr()?.acl() {
                    Some(acl) => Ok(Enc::of(acl).to_bytes()),
                    None => Err(Error::new(libc::EOPNOTSUPP).into()),
                }
            }
        }
    }

    /// Sets an attribute.
    pub async fn setxattr(
        self: &Arc<Self>,
        cx: &RequestContext,
        fh: &Fh,
        name: &[u8],
        value: &Bytes,
        mode: XattrMode,
    ) -> Answered<()> {
        match self.which(name)? {
            Which::User(key) => {
                let option = match mode {
                    XattrMode::Either => SetxattrOption::EITHER,
                    XattrMode::Create => SetxattrOption::CREATE,
                    XattrMode::Replace => SetxattrOption::REPLACE,
                };
                let ops = [putfh(fh), Op::setxattr(option, key, value.clone())];
                let mut answer = self.compound(cx, Compound::new("SETXATTR", ops)).await?;
                answer.results.putfh()?;
                answer.results.setxattr().map_err(|e| xattr_fail(e.into()))?;
            }
            Which::Acl => {
                let acl: Acl = Dec::all(value).map_err(|_| Error::new(libc::EINVAL))?;
                let rare = RareAttrs { acl: Some(acl), ..RareAttrs::default() };
                let set = Attrs { rare: Some(Box::new(rare)), ..Attrs::default() };
                let ops = [putfh(fh), Op::setattr(Stateid::ANONYMOUS, set), Op::Getattr(NODE_ATTRS)];
                let mut answer = self.compound(cx, Compound::new("SETACL", ops)).await?;
                answer.results.putfh()?;
                answer.results.setattr()?;
            }
        }
        Ok(())
    }

    /// Names of all attributes that [`Core::getxattr`] can read. A server with ACLs need not have
    /// one for each file (nfs-ganesha announces ACLs and returns none). A copy of a file would fail
    /// at a name without a value (overlayfs).
    pub async fn listxattr(self: &Arc<Self>, cx: &RequestContext, fh: &Fh) -> Answered<Vec<Bytes>> {
        let acls = self.opts.acl && self.facts().acls;
        let mut names = Vec::new();
        if self.minor < 2 || !self.facts().xattrs {
            names.extend(self.acl_name(cx, fh, acls).await?);
            return Ok(names);
        }
        let (mut cookie, mut total) = (0, 0);
        loop {
            let first = cookie == 0;
            let mut ops = vec![putfh(fh), Op::listxattrs(cookie, 16 << 10)];
            ops.extend((first && acls).then(acl));
            let mut answer = self.compound(cx, Compound::new("LISTXATTRS", ops)).await?;
            answer.results.putfh()?;
            let page = match answer.results.listxattrs() {
                Ok(page) => page,
                Err(e) if e.status() == Some(Nfsstat4::NOTSUPP) => {
                    names.extend(self.acl_name(cx, fh, acls && first).await?);
                    return Ok(names);
                }
                Err(e) => return Err(e.into()),
            };
            if first && acls && answer.results.getattr().is_ok_and(|attrs| attrs.acl().is_some()) {
                names.push(Bytes::from_static(ACL_NAME));
            }
            for name in page.names.iter().filter(|name| is_readable(name)) {
                total += USER.len() + name.len() + 1;
                names.push([USER, name].concat().into());
            }
            if total > LIST_MAX_BYTES {
                return Err(Error::new(libc::E2BIG).into());
            }
            if page.eof {
                return Ok(names);
            }
            if page.names.is_empty() || page.cookie == cookie {
                let why = "the server's list of extended attributes does not advance";
                return Err(Error::because(libc::EIO, why).into());
            }
            cookie = page.cookie;
        }
    }

    /// The name of a file's ACL, when `wanted` and the caller can read it.
    async fn acl_name(
        self: &Arc<Self>,
        cx: &RequestContext,
        fh: &Fh,
        wanted: bool,
    ) -> Answered<Option<Bytes>> {
        if !wanted {
            return Ok(None);
        }
        match self.getxattr(cx, fh, ACL_NAME).await {
            Ok(_) => Ok(Some(Bytes::from_static(ACL_NAME))),
            // Errors that also affect other calls than for the ACL are returned.
            Err(Fail::Nfs(Nfsstat4::ACCESS | Nfsstat4::PERM | Nfsstat4::NOTSUPP | Nfsstat4::ATTRNOTSUPP)) => {
                Ok(None)
            }
            Err(Fail::Final(e)) if e.errno == libc::EOPNOTSUPP => Ok(None),
            Err(f) => Err(f),
        }
    }

    /// Removes an attribute.
    pub async fn removexattr(self: &Arc<Self>, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Answered<()> {
        let Which::User(key) = self.which(name)? else { return Err(Error::new(libc::EOPNOTSUPP).into()) };
        let ops = [putfh(fh), Op::removexattr(key)];
        let mut answer = self.compound(cx, Compound::new("REMOVEXATTR", ops)).await?;
        answer.results.putfh()?;
        answer.results.removexattr().map_err(|e| xattr_fail(e.into()))?;
        Ok(())
    }
}

fn putfh(fh: &Fh) -> Op {
    Op::Putfh(wire_fh(fh))
}

/// The GETATTR of the ACL.
fn acl() -> Op {
    Op::Getattr(Bitmap4::of(&[attr::ACL]))
}

/// Whether getxattr(2) can name an attribute of the server. Linux accepts names of 1 to 255 bytes,
/// which end at a NUL.
fn is_readable(name: &[u8]) -> bool {
    !name.is_empty() && USER.len() + name.len() <= NAME_MAX_BYTES && !name.contains(&0)
}

/// For these operations NOENT means a missing attribute, not a missing file.
fn xattr_fail(f: Fail) -> Fail {
    match f.status() {
        Some(Nfsstat4::NOXATTR | Nfsstat4::NOENT) => Error::new(libc::ENODATA).into(),
        _ => f,
    }
}
