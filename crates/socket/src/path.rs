//! Resolution of whole paths of programs: names, `.`, `..`, symbolic links.
//!
//! Names are walked in runs. Only a symbolic link or a `..` after a name ends a run. Symbolic links
//! are followed as in the kernel, except when they leave the mount. An absolute target below the
//! mount point is followed. Any other absolute target is `EXDEV`, and so is `..` above the root.

use crate::Shared;
use bytes::Bytes;
use hither_client::wire::PATH_MAX_BYTES;
use hither_vfs::{Error, Fh, File, FileKind, Name, Node, PathRef, RequestContext, Result, Stop, WalkRequest};
use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;

/// Maximum number of symbolic links in one path, as in Linux.
const LINKS_MAX: u32 = 40;
/// Maximum number of names in one walk.
const RUN_MAX: usize = 64;

/// A part of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Name(Name),
    Up,
}

/// The result of a path lookup.
#[derive(Debug)]
pub(crate) enum Found {
    /// An object, and its directory and name (none for the root).
    Object { node: Node, at: Option<(Fh, Name)> },
    /// No object. The directory exists and does not contain the name.
    Missing { dir: Fh, name: Name },
}

impl Found {
    /// The object.
    ///
    /// # Errors
    /// `ENOENT` when there is none.
    pub fn node(self) -> Result<Node> {
        match self {
            Found::Object { node, .. } => Ok(node),
            Found::Missing { .. } => Err(Error::new(libc::ENOENT)),
        }
    }
}

/// A path being followed.
struct Follow<'a> {
    shared: &'a Shared,
    cx: &'a RequestContext,
    /// Walked names with their objects.
    passed: Vec<(Name, Node)>,
    root: Fh,
    rest: VecDeque<Part>,
    links: u32,
    missing: bool,
    /// The path ends like the path of a directory.
    directory: bool,
}

impl Shared {
    /// Resolves a path. `want` has the extras of its last object.
    ///
    /// # Errors
    /// Those of [`fits`], and of lookups.
    pub async fn find(
        &self,
        cx: &RequestContext,
        path: &[u8],
        follow: bool,
        want: WalkRequest,
    ) -> Result<Found> {
        fits(path)?;
        let mut follower = Follow {
            shared: self,
            cx,
            passed: Vec::new(),
            root: self.root(cx).await?,
            rest: parts(path)?,
            links: 0,
            missing: false,
            directory: wants_directory(path),
        };
        follower.run(follow || wants_directory(path), want).await
    }

    /// The directory of a path's last name, and the name, which need not exist. For calls that
    /// change names.
    pub async fn place(&self, cx: &RequestContext, path: &[u8]) -> Result<(Fh, Name)> {
        fits(path)?;
        let end = path.iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
        let (dir, name) = split(&path[..end]);
        let name = Name::new(Bytes::copy_from_slice(name)).map_err(|e| match name {
            b"" | b"." | b".." => Error::new(libc::EBUSY),
            _ => e,
        })?;
        let node = self.find(cx, dir, true, WalkRequest::default()).await?.node()?;
        match node.attrs.attr.kind {
            FileKind::Directory => Ok((node.fh, name)),
            _ => Err(Error::new(libc::ENOTDIR)),
        }
    }
}

/// Checks the bytes of a path or of the target of a symbolic link.
///
/// # Errors
/// `ENAMETOOLONG`, or `EINVAL` for a NUL.
pub(crate) fn fits(path: &[u8]) -> Result<()> {
    if path.len() > PATH_MAX_BYTES {
        return Err(Error::new(libc::ENAMETOOLONG));
    }
    if path.contains(&0) { Err(Error::new(libc::EINVAL)) } else { Ok(()) }
}

/// Whether a path ends like the path of a directory: with `/` or `/.`.
pub(crate) fn wants_directory(path: &[u8]) -> bool {
    path.ends_with(b"/") || path.ends_with(b"/.")
}

/// The path of the directory, and the last name.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

fn parts(path: &[u8]) -> Result<VecDeque<Part>> {
    let parts = path.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".");
    parts
        .map(|part| match part {
            b".." => Ok(Part::Up),
            name => Ok(Part::Name(Name::new(Bytes::copy_from_slice(name))?)),
        })
        .collect()
}

impl Follow<'_> {
    async fn run(&mut self, follow: bool, want: WalkRequest) -> Result<Found> {
        loop {
            while !self.rest.is_empty() && !self.missing {
                self.advance(want).await?;
            }
            let Some((_, last)) = self.passed.last() else { return self.root().await };
            if self.missing {
                return self.absent();
            }
            if !(follow && last.attrs.attr.kind == FileKind::Symlink) {
                break;
            }
            self.follow_link().await?;
        }
        let Some((name, node)) = self.passed.pop() else { return self.root().await };
        if self.directory && node.attrs.attr.kind != FileKind::Directory {
            return Err(Error::new(libc::ENOTDIR));
        }
        let dir = self.here();
        Ok(Found::Object { node, at: Some((dir, name)) })
    }

    /// The result when the last name does not exist.
    fn absent(&mut self) -> Result<Found> {
        match (self.rest.pop_front(), self.rest.is_empty()) {
            (Some(Part::Name(name)), true) => Ok(Found::Missing { dir: self.here(), name }),
            _ => Err(Error::new(libc::ENOENT)),
        }
    }

    async fn root(&self) -> Result<Found> {
        if self.missing {
            if let (Some(Part::Name(name)), 1) = (self.rest.front(), self.rest.len()) {
                return Ok(Found::Missing { dir: self.here(), name: name.clone() });
            }
            return Err(Error::new(libc::ENOENT));
        }
        let fh = self.root.clone();
        let attrs = self.shared.vfs.getattr(self.cx, File { fh: &fh, open: None }).await?;
        Ok(Found::Object { node: Node { fh, attrs }, at: None })
    }

    /// The last walked object; the root at the start.
    fn here(&self) -> Fh {
        self.passed.last().map_or_else(|| self.root.clone(), |(_, node)| node.fh.clone())
    }

    /// Walks one run of names.
    async fn advance(&mut self, want: WalkRequest) -> Result<()> {
        if self.rest.front() == Some(&Part::Up) {
            self.rest.pop_front();
            if let Some((_, node)) = self.passed.last()
                && node.attrs.attr.kind == FileKind::Symlink
            {
                self.rest.push_front(Part::Up);
                return self.follow_link().await;
            }
            return match self.passed.pop() {
                Some((_, node)) if node.attrs.attr.kind != FileKind::Directory => {
                    Err(Error::new(libc::ENOTDIR))
                }
                Some(_) => Ok(()),
                None => Err(out_of_the_mount()),
            };
        }
        if let Some((_, node)) = self.passed.last()
            && node.attrs.attr.kind == FileKind::Symlink
        {
            return self.follow_link().await;
        }
        let names: Vec<Name> = self.rest.iter().map_while(name_of).take(RUN_MAX).cloned().collect();
        let whole = names.len() == self.rest.len();
        let want = if whole { want } else { WalkRequest::default() };
        let base = self.here();
        let trail = self.shared.vfs.walk(self.cx, PathRef { base: &base, path: &names }, want).await?;
        let got = trail.steps.len();
        self.rest.drain(..got.min(self.rest.len()));
        self.passed.extend(names.into_iter().zip(trail.steps));
        match trail.stop {
            Stop::Complete => {}
            Stop::Limit if got > 0 => {}
            Stop::Limit => return Err(Error::because(libc::EIO, "a walk without progress")),
            Stop::Missing(_) => self.missing = true,
            Stop::Symlink => self.follow_link().await?,
            Stop::NotDirectory => return Err(Error::new(libc::ENOTDIR)),
            Stop::Failed(e) => return Err(e),
        }
        Ok(())
    }

    /// Replaces the last object, a symbolic link, by its target.
    async fn follow_link(&mut self) -> Result<()> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Error::new(libc::ELOOP));
        }
        let Some((_, link)) = self.passed.pop() else { return Ok(()) };
        let target = self.shared.vfs.readlink(self.cx, &link.fh).await?;
        let mut target = &target[..];
        if target.starts_with(b"/") {
            target =
                below(target, self.shared.options.dir.as_os_str().as_bytes()).ok_or_else(out_of_the_mount)?;
            self.passed.clear();
        }
        if target.is_empty() && self.passed.is_empty() && self.rest.is_empty() {
            return Ok(());
        }
        for part in parts(target)?.into_iter().rev() {
            self.rest.push_front(part);
        }
        Ok(())
    }
}

fn name_of(part: &Part) -> Option<&Name> {
    match part {
        Part::Name(name) => Some(name),
        Part::Up => None,
    }
}

/// The rest of an absolute path below a directory.
fn below<'a>(path: &'a [u8], dir: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(dir).filter(|_| !dir.is_empty())?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

fn out_of_the_mount() -> Error {
    Error::because(libc::EXDEV, "the path leads out of the mount")
}
