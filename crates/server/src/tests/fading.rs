//! A file system whose objects vanish or fail while a directory is listed.

use async_trait::async_trait;
use hither_vfs::model::Model;
use hither_vfs::{
    Attrs, BatchOps, DirPage, Error, Extra, Fh, File, FsStat, Name, PathRef, PosixAcls, ReadPiped,
    RequestContext, Result, Stop, Validity, Vfs, WalkRequest, WalkResult,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The names of entries decide their fate:
/// - `gone...`: removed between the reading of the directory and the lookup.
/// - `left...`: removed after the lookup.
/// - `bare...`: listed without attributes.
/// - `hidden...`: not to be looked up.
/// - `broken...`: with an ACL and a file system that cannot be read.
pub struct Fading {
    below: Arc<Model>,
    names: Mutex<HashMap<Fh, Name>>,
}

impl Fading {
    pub fn new(below: Arc<Model>) -> Arc<Self> {
        Arc::new(Self { below, names: Mutex::default() })
    }

    /// Fails as the name of an object demands.
    fn check(&self, fh: &Fh) -> Result<()> {
        let names = self.names.lock();
        match names.get(fh) {
            Some(name) if is(name, "left") => Err(Error::new(libc::ESTALE)),
            Some(name) if is(name, "broken") => Err(Error::new(libc::EIO)),
            _ => Ok(()),
        }
    }
}

fn is(name: &Name, kind: &str) -> bool {
    name.as_bytes().starts_with(kind.as_bytes())
}

#[async_trait]
impl Vfs for Fading {
    hither_vfs::delegate!(self.below;
        root, peek, parent, getattr, setattr, access, readlink, open, close, read, write, finish, commit,
        create_whole, mkdir, mknod, symlink, link, unlink, rmdir, rename, getxattr, setxattr, listxattr,
        removexattr, lock, unlock, test_lock, seek, allocate, deallocate, copy, subscribe, shutdown,
    );

    async fn walk(&self, cx: &RequestContext, at: PathRef<'_>, want: WalkRequest) -> Result<WalkResult> {
        match at.path {
            [name] if is(name, "gone") => Ok(WalkResult::new(vec![], Stop::Missing(Validity::Once))),
            [name] if is(name, "hidden") => {
                Ok(WalkResult::new(vec![], Stop::Failed(Error::new(libc::EACCES))))
            }
            _ => self.below.walk(cx, at, want).await,
        }
    }

    async fn readdir(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        cookie: u64,
        verifier: [u8; 8],
        max_bytes: u32,
        nodes: bool,
    ) -> Result<DirPage> {
        let mut page = self.below.readdir(cx, dir, cookie, verifier, max_bytes, nodes).await?;
        for entry in &mut page.entries {
            if let Some(node) = &entry.node {
                self.names.lock().insert(node.fh.clone(), entry.name.clone());
            }
            entry.node.take_if(|_| ["gone", "bare", "hidden"].iter().any(|kind| is(&entry.name, kind)));
        }
        Ok(page)
    }

    async fn statfs(&self, cx: &RequestContext, fh: &Fh) -> Result<FsStat> {
        self.check(fh)?;
        self.below.statfs(cx, fh).await
    }
}

impl BatchOps for Fading {
    hither_vfs::delegate!(self.below;
        getattr_many, revalidate_many, read_many, list_many, create_many, remove_many,
    );
}

#[async_trait]
impl Extra for Fading {
    fn read_piped(&self, _: &RequestContext, _: File<'_>, _: u64, _: u32) -> Option<ReadPiped> {
        None
    }

    fn clone_block_bytes(&self) -> Option<u32> {
        None
    }

    async fn clone_range(
        &self,
        _cx: &RequestContext,
        _from: File<'_>,
        _from_offset_bytes: u64,
        _to: File<'_>,
        _to_offset_bytes: u64,
        _len_bytes: u64,
    ) -> Result<()> {
        Err(Error::new(libc::EOPNOTSUPP))
    }

    fn has_acls(&self) -> bool {
        true
    }

    async fn acls(&self, _cx: &RequestContext, fh: &Fh) -> Result<PosixAcls> {
        self.check(fh).map(|()| PosixAcls::default())
    }

    /// There is never room for an ACL.
    async fn set_acls(&self, _cx: &RequestContext, _fh: &Fh, _acls: &PosixAcls) -> Result<Attrs> {
        Err(Error::new(libc::ENOSPC))
    }
}
