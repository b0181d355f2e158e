//! Creation of names: MKDIR, MKNOD, SYMLINK, LINK.

use super::V3;
use super::convert;
use super::lookup::dirop;
use super::wire::Patience;
use crate::detach::detached;
use crate::error;
use bytes::Bytes;
use hither_proto::nfs3::{
    Createhow3, Devicedata3, LinkArgs, MkdirArgs, MknodArgs, Mknoddata3, PATH_MAX_BYTES, Specdata3,
    SymlinkArgs,
};
use hither_vfs::{Error, Fh, Made, Name, Node, RequestContext, Result, SetAttr, Special};
use tokio::time::Instant;

impl V3 {
    pub(super) async fn make_directory(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        set: &SetAttr,
    ) -> Result<Made> {
        let args = MkdirArgs { r#where: dirop(dir, name)?, attributes: convert::sattr(set) };
        let (this, cred, dir, name) = (self.clone(), cx.cred.clone(), dir.clone(), name.clone());
        detached(cx, async move {
            let asked = Instant::now();
            let ok = this.caller.expect(&cred, &Patience::policy(), &args).await?;
            let (node, change) = this.made(&cred, &dir, &name, ok, asked).await?;
            Ok(Made { node, dir: change })
        })
        .await
    }

    pub(super) async fn make_special(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        what: &Special,
        set: &SetAttr,
    ) -> Result<Made> {
        let attributes = convert::sattr(set);
        let device = |major, minor| Devicedata3 {
            dev_attributes: attributes,
            spec: Specdata3 { specdata1: major, specdata2: minor },
        };
        let what = match *what {
            Special::Fifo => Some(Mknoddata3::Fifo(attributes)),
            Special::Socket => Some(Mknoddata3::Sock(attributes)),
            Special::CharDevice(major, minor) => Some(Mknoddata3::Chr(device(major, minor))),
            Special::BlockDevice(major, minor) => Some(Mknoddata3::Blk(device(major, minor))),
            // MKNOD cannot create regular files (RFC 1813 section 3.3.11).
            Special::Regular => None,
        };
        let (this, cred, dir, name) = (self.clone(), cx.cred.clone(), dir.clone(), name.clone());
        detached(cx, async move {
            let (node, change) = match what {
                Some(what) => {
                    let asked = Instant::now();
                    let args = MknodArgs { r#where: dirop(&dir, &name)?, what };
                    let ok = this.caller.expect(&cred, &Patience::policy(), &args).await?;
                    this.made(&cred, &dir, &name, ok, asked).await?
                }
                None => this.create(&cred, &dir, &name, Createhow3::Guarded(attributes)).await?,
            };
            Ok(Made { node, dir: change })
        })
        .await
    }

    pub(super) async fn make_symlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: &Bytes,
        set: &SetAttr,
    ) -> Result<Made> {
        if target.len() > PATH_MAX_BYTES {
            return Err(Error::new(libc::ENAMETOOLONG));
        }
        let args = SymlinkArgs {
            r#where: dirop(dir, name)?,
            symlink_attributes: convert::sattr(set),
            symlink_data: target.clone().into(),
        };
        let (this, cred, dir, name) = (self.clone(), cx.cred.clone(), dir.clone(), name.clone());
        detached(cx, async move {
            let asked = Instant::now();
            let ok = this.caller.expect(&cred, &Patience::policy(), &args).await?;
            let (node, change) = this.made(&cred, &dir, &name, ok, asked).await?;
            Ok(Made { node, dir: change })
        })
        .await
    }

    pub(super) async fn make_link(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        dir: &Fh,
        name: &Name,
    ) -> Result<Made> {
        let args = LinkArgs { file: convert::fh3(fh)?, link: dirop(dir, name)? };
        let (this, cred, fh, dir) = (self.clone(), cx.cred.clone(), fh.clone(), dir.clone());
        detached(cx, async move {
            let (asked, policy) = (Instant::now(), Patience::policy());
            let linked = this.caller.ask(&cred, &policy, &args).await.map_err(|e| error::call(&e))?;
            let wcc = linked.map_err(|(status, _)| error::nfs3(status))?;
            let change = this.dir_change(&dir, &wcc.linkdir_wcc, asked);
            let attr = this.caller.attr_or_ask(&cred, &policy, &fh, wcc.file_attributes).await?;
            let attrs = this.stamp_named(&fh, attr, asked);
            Ok(Made { node: Node { fh, attrs }, dir: change })
        })
        .await
    }
}
