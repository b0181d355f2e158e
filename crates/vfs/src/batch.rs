//! Calls about many objects, and their replacement by single calls.

use crate::{
    Access, Attrs, ChangeInfo, Data, DirPage, Fh, File, Made, Name, Node, ReadManyResult, RequestContext,
    Result, SetAttr, Vfs,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;

/// Maximum number of concurrent single calls.
const AT_ONCE: usize = 16;

/// The calls of a [`Vfs`] about many objects. Each sends as few messages as possible.
#[async_trait]
pub trait BatchOps: Send + Sync + 'static {
    /// Attributes of many objects in as few round trips as possible, in order.
    async fn getattr_many(&self, cx: &RequestContext, objects: &[Fh]) -> Vec<Result<Attrs>>;

    /// Attributes of many objects, and the rights in `want` that the caller has on each. They
    /// always come from the server. The layer uses as few round trips as possible. The results are
    /// in the order of `objects`.
    async fn revalidate_many(
        &self,
        cx: &RequestContext,
        objects: &[Fh],
        want: Access,
    ) -> Vec<Result<(Attrs, Access)>>;

    /// At most `max_bytes` from the start of each of many regular files, in the order of `files`.
    /// The layer uses as few round trips as possible. Afterwards it fetches the attributes of
    /// `holder`, a directory that holds all the files. With 0 bytes the call only checks that the
    /// caller may read each file, and returns its attributes. They are under a lease where the
    /// server grants leases.
    async fn read_many(
        &self,
        cx: &RequestContext,
        files: &[Fh],
        holder: Option<&Fh>,
        max_bytes: u32,
    ) -> ReadManyResult;

    /// The first page with nodes of each of many directories, at most about `max_bytes` each. The
    /// directory's own attributes are of the same moment. The layer uses as few round trips as
    /// possible. The results are in the order of `dirs`.
    async fn list_many(
        &self,
        cx: &RequestContext,
        dirs: &[Fh],
        max_bytes: u32,
    ) -> Vec<Result<(Attrs, DirPage)>>;

    /// Creates several objects in a directory in as few round trips as possible, in no particular
    /// order. Each object has the guarantees of [`Vfs::create_whole`], [`Vfs::mkdir`] or
    /// [`Vfs::symlink`], independent of the other outcomes. The results are in the order of `new`.
    async fn create_many(&self, cx: &RequestContext, dir: &Fh, new: &[Creation]) -> Vec<Result<Made>>;

    /// Removes several names of a directory one after the other, in as few round trips as possible.
    /// Each removal has the guarantees of [`Vfs::unlink`] or [`Vfs::rmdir`], independent of the
    /// other outcomes. The results are in the order of `gone`.
    async fn remove_many(&self, cx: &RequestContext, dir: &Fh, gone: &[Removal]) -> Vec<Result<ChangeInfo>>;
}

/// An object to be created by [`BatchOps::create_many`].
#[derive(Debug, Clone)]
pub struct Creation {
    /// Name of the object.
    pub name: Name,
    /// Kind of the object.
    pub kind: NewKind,
    /// Mode and times of a file, mode of a directory, or times of a symbolic link.
    pub set: SetAttr,
}

/// Kind and contents of an object to create.
#[derive(Debug, Clone)]
pub enum NewKind {
    /// A regular file with all its bytes. They fit into one WRITE.
    File(Data),
    /// A directory.
    Directory,
    /// A symbolic link with its target.
    Link(Bytes),
}

/// A name to be removed by [`BatchOps::remove_many`].
#[derive(Debug, Clone)]
pub struct Removal {
    /// The name.
    pub name: Name,
    /// The object, when the caller knows it (see [`Vfs::unlink`]).
    pub target: Option<Fh>,
    /// Whether the name is a directory.
    pub is_dir: bool,
}

impl Creation {
    /// Length of a file in bytes; 0 for other objects.
    pub fn len_bytes(&self) -> usize {
        match &self.kind {
            NewKind::File(data) => data.len(),
            NewKind::Directory | NewKind::Link(_) => 0,
        }
    }
}

/// [`BatchOps::create_many`] by the layer's own calls, some of them concurrent, for layers without
/// a combined request.
pub async fn create_many_in_steps(
    vfs: &(impl Vfs + ?Sized),
    cx: &RequestContext,
    dir: &Fh,
    new: &[Creation],
) -> Vec<Result<Made>> {
    let mut out = Vec::with_capacity(new.len());
    for some in new.chunks(AT_ONCE) {
        out.extend(join_all(some.iter().map(|one| create(vfs, cx, dir, one))).await);
    }
    out
}

async fn create(vfs: &(impl Vfs + ?Sized), cx: &RequestContext, dir: &Fh, one: &Creation) -> Result<Made> {
    let Creation { name, kind, set } = one;
    match kind {
        NewKind::File(data) => vfs.create_whole(cx, dir, name, set, data.clone()).await,
        NewKind::Directory => vfs.mkdir(cx, dir, name, set).await,
        NewKind::Link(target) => {
            let made = vfs.symlink(cx, dir, name, target, &SetAttr::default()).await?;
            if *set == SetAttr::default() {
                return Ok(made);
            }
            let attrs = vfs.setattr(cx, File { fh: &made.node.fh, open: None }, set).await?;
            Ok(Made { node: Node { attrs, ..made.node }, ..made })
        }
    }
}

/// [`BatchOps::remove_many`] by the layer's own calls, for layers without a combined request.
pub async fn remove_many_in_steps(
    vfs: &(impl Vfs + ?Sized),
    cx: &RequestContext,
    dir: &Fh,
    gone: &[Removal],
) -> Vec<Result<ChangeInfo>> {
    let mut out = Vec::with_capacity(gone.len());
    for Removal { name, target, is_dir } in gone {
        out.push(if *is_dir {
            vfs.rmdir(cx, dir, name).await
        } else {
            vfs.unlink(cx, dir, name, target.as_ref()).await
        });
    }
    out
}
