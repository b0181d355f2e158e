//! Addresses: filehandles, names and paths.

use crate::{Error, Result};
use bytes::Bytes;
use std::fmt;

/// Opaque filehandle of the layer below: at most 128 bytes, cheap to clone. Two filehandles are
/// equal when their bytes are equal. Different filehandles may name one file (RFC 8881 section
/// 4.1). A layer that needs to know compares `(fsid, fileid)`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fh(pub Bytes);

impl fmt::Debug for Fh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fh:")?;
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// One name in a directory: 1 to 255 bytes in any encoding, without `/` and NUL, and neither `.`
/// nor `..`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Bytes);

impl Name {
    /// Longest name, in bytes (`NAME_MAX`).
    pub const MAX_BYTES: usize = 255;

    /// Checks and wraps a name.
    ///
    /// # Errors
    /// `ENAMETOOLONG` above 255 bytes; `EINVAL` for an empty name, `.`, `..`, `/` or NUL.
    pub fn new(name: impl Into<Bytes>) -> Result<Self> {
        let name = name.into();
        if name.len() > Self::MAX_BYTES {
            return Err(Error::new(libc::ENAMETOOLONG));
        }
        if name.is_empty() || &name[..] == b"." || &name[..] == b".." {
            return Err(Error::new(libc::EINVAL));
        }
        if name.iter().any(|&b| b == b'/' || b == 0) {
            return Err(Error::new(libc::EINVAL));
        }
        Ok(Self(name))
    }

    /// The names of a path below a directory. Empty names and `.` are skipped.
    ///
    /// # Errors
    /// Those of [`Self::new`].
    pub fn of_path(path: &str) -> Result<Vec<Self>> {
        let names = path.split('/').filter(|name| !name.is_empty() && *name != ".");
        names.map(|name| Self::new(name.as_bytes().to_vec())).collect()
    }

    /// Whether servers may find an object under this name although no listing shows it. Several
    /// file systems hide their snapshot directories. Names beyond ASCII may be found in another
    /// normal form. The absence of such a name is known only after a lookup. File systems that
    /// ignore case are not covered.
    pub fn may_be_unlisted(&self) -> bool {
        const HIDDEN: [&[u8]; 7] =
            [b".snapshot", b".snapshots", b"~snapshot", b".zfs", b".snap", b".snaps", b".ckpt"];
        !self.0.is_ascii() || HIDDEN.contains(&&self.0[..])
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, reference-counted.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// Address of an object: a filehandle, and the names below it. With an empty `path` the object is
/// `base`.
#[derive(Debug, Clone, Copy)]
pub struct PathRef<'a> {
    /// The starting point.
    pub base: &'a Fh,
    /// Names below the starting point, outermost first; may be empty.
    pub path: &'a [Name],
}

impl<'a> PathRef<'a> {
    /// The object `fh` itself.
    pub fn fh(fh: &'a Fh) -> Self {
        Self { base: fh, path: &[] }
    }

    /// `name` in directory `dir`.
    pub fn name(dir: &'a Fh, name: &'a Name) -> Self {
        Self { base: dir, path: std::slice::from_ref(name) }
    }
}
