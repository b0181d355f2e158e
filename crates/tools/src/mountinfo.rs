//! The mounts of this machine, read without accessing them.
//!
//! A mount with a dead server must not block the command that removes or examines it. Paths are
//! resolved with /proc/self/mountinfo, one component at a time. No system call has a mount point as
//! its last component.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// File-system type of hither's mounts in mountinfo.
pub const FSTYPE: &str = "fuse.hither";

/// Most symbolic links followed in one path, like in the kernel.
const MAX_LINKS: usize = 40;

/// One line of mountinfo (proc_pid_mountinfo(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Number of the mount. The kernel reuses numbers.
    pub id: u64,
    /// Device number: (major, minor).
    pub dev: (u32, u32),
    /// Directory of the file system that is mounted.
    pub root: PathBuf,
    /// Mount point.
    pub point: PathBuf,
    /// Options of the mount: `rw,nosuid,...`.
    pub options: String,
    /// File-system type.
    pub fstype: String,
    /// Source.
    pub source: OsString,
}

impl Mount {
    /// Whether this is a mount of hither.
    pub fn is_ours(&self) -> bool {
        self.fstype == FSTYPE
    }
}

/// All mounts in the order of mounting. Of two mounts at one point the later one is on top.
pub fn read() -> io::Result<Vec<Mount>> {
    read_of(Path::new("/proc/self"))
}

/// All mounts in the name space of another process (`/proc/PID`).
pub fn read_of(process: &Path) -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read(process.join("mountinfo"))?))
}

fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|&b| b == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&b| b == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let dev = std::str::from_utf8(fields.nth(1)?).ok()?;
    let (major, minor) = dev.split_once(':')?;
    let root = unescape(fields.next()?);
    let point = unescape(fields.next()?);
    let options = fields.next()?;
    let mut after = fields.skip_while(|field| *field != b"-").skip(1);
    let fstype = after.next()?;
    let source = unescape(after.next()?);
    Some(Mount {
        id,
        dev: (major.parse().ok()?, minor.parse().ok()?),
        root: PathBuf::from(root),
        point: PathBuf::from(point),
        options: String::from_utf8_lossy(options).into_owned(),
        fstype: String::from_utf8_lossy(fstype).into_owned(),
        source,
    })
}

/// Decodes the kernel's octal escapes (`\040`) of blanks, tabs, newlines and backslashes.
pub fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let code = rest.get(1..4).filter(|_| first == b'\\').and_then(|d| std::str::from_utf8(d).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &rest[4..];
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

/// The topmost mount at `point`.
pub fn at<'a>(mounts: &'a [Mount], point: &Path) -> Option<&'a Mount> {
    mounts.iter().rev().find(|mount| mount.point == point)
}

/// The mount of hither that contains `path` (a result of [`resolve`]).
pub fn ours_holding<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let deepest =
        mounts.iter().filter(|m| path.starts_with(&m.point)).map(|m| m.point.as_os_str().len()).max()?;
    let holding =
        mounts.iter().rev().find(|m| path.starts_with(&m.point) && m.point.as_os_str().len() == deepest);
    holding.filter(|mount| mount.is_ours())
}

/// The absolute path without links, `.` and `..`. Components at and below a mount of hither are not
/// resolved, so that the mount is not accessed.
///
/// # Errors
/// Those of readlink(2) outside these mounts; `ELOOP`.
pub fn resolve(mounts: &[Mount], path: &Path) -> io::Result<PathBuf> {
    resolve_with(mounts, path, &mut |p| match std::fs::read_link(p) {
        Ok(target) => Ok(Some(target)),
        // EINVAL: the path exists and is not a link.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(None),
        Err(e) => Err(e),
    })
}

fn resolve_with(
    mounts: &[Mount],
    path: &Path,
    readlink: &mut dyn FnMut(&Path) -> io::Result<Option<PathBuf>>,
) -> io::Result<PathBuf> {
    let mut done = if path.is_absolute() { PathBuf::from("/") } else { std::env::current_dir()? };
    let mut left: VecDeque<OsString> = components(path);
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if name == ".." {
            done.pop();
            continue;
        }
        done.push(&name);
        if mounts.iter().any(|m| m.is_ours() && done.starts_with(&m.point)) {
            continue;
        }
        if let Some(target) = readlink(&done)? {
            links += 1;
            if links > MAX_LINKS {
                return Err(io::Error::from_raw_os_error(libc::ELOOP));
            }
            done.pop();
            if target.is_absolute() {
                done = PathBuf::from("/");
            }
            for name in components(&target).into_iter().rev() {
                left.push_front(name);
            }
        }
    }
    Ok(done)
}

fn components(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|c| match c {
            Component::Normal(name) => Some(name.to_os_string()),
            Component::ParentDir => Some(OsStr::from_bytes(b"..").to_os_string()),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
        30 22 0:50 / /mnt/a\\040b rw,nosuid shared:1 - fuse.hither server:/ex\\040port rw,user_id=0\n\
        31 22 0:51 / /mnt/a\\040b rw - tmpfs tmpfs rw\n\
        32 22 0:52 / /srv rw,relatime master:2 propagate_from:3 - fuse.hither s:/ rw\n\
        broken line\n";

    #[test]
    fn lines_are_read() {
        let mounts = parse(TEXT);
        assert_eq!(mounts.len(), 4);
        assert_eq!(mounts[1].dev, (0, 50));
        assert_eq!(mounts[1].point, Path::new("/mnt/a b"));
        assert_eq!(mounts[1].source, "server:/ex port");
        assert!(mounts[1].is_ours() && !mounts[2].is_ours());
        assert_eq!(mounts[3].fstype, FSTYPE);
    }

    #[test]
    fn the_topmost_mount_counts() {
        let mounts = parse(TEXT);
        assert_eq!(at(&mounts, Path::new("/mnt/a b")).unwrap().fstype, "tmpfs");
        assert!(ours_holding(&mounts, Path::new("/mnt/a b/c")).is_none());
        assert_eq!(ours_holding(&mounts, Path::new("/srv/x/y")).unwrap().dev, (0, 52));
        assert!(ours_holding(&mounts, Path::new("/srvx")).is_none());
    }

    /// A path at or below a mount of hither is not accessed, whichever links lead to it.
    #[test]
    fn our_mounts_are_never_touched() {
        let mounts = parse(TEXT);
        let mut asked = Vec::new();
        let mut readlink = |p: &Path| {
            asked.push(p.to_path_buf());
            Ok((p == Path::new("/home/link")).then(|| PathBuf::from("../srv/deep")))
        };
        let path = resolve_with(&mounts, Path::new("/home/./link/x/.."), &mut readlink).unwrap();
        assert_eq!(path, Path::new("/srv/deep"));
        assert_eq!(asked, [Path::new("/home"), Path::new("/home/link")]);
    }

    #[test]
    fn circles_of_links_end() {
        let e = resolve_with(&[], Path::new("/l"), &mut |_| Ok(Some("/l".into()))).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::ELOOP));
    }
}
