//! Several changes of one directory in one call, and their replacement by single calls.

use crate::{ChangeInfo, Data, Fh, File, Made, Name, Node, RequestContext, Result, SetAttr, Vfs};
use bytes::Bytes;
use futures_util::future::join_all;

/// Maximum number of concurrent single calls.
const AT_ONCE: usize = 16;

/// An object to be created by [`Vfs::create_many`].
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

/// A name to be removed by [`Vfs::remove_many`].
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

/// [`Vfs::create_many`] by the layer's own calls, some of them concurrent, for layers without a
/// combined request.
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

/// [`Vfs::remove_many`] by the layer's own calls, for layers without a combined request.
pub async fn remove_many_in_steps(
    vfs: &(impl Vfs + ?Sized),
    cx: &RequestContext,
    dir: &Fh,
    gone: &[Removal],
) -> Vec<Result<ChangeInfo>> {
    let mut out = Vec::with_capacity(gone.len());
    for Removal { name, target, is_dir } in gone {
        out.push(match is_dir {
            true => vfs.rmdir(cx, dir, name).await,
            false => vfs.unlink(cx, dir, name, target.as_ref()).await,
        });
    }
    out
}
