//! Mounts inside this mount, in any mount namespace.
//!
//! Every invalidation of a name in the kernel detaches the mounts on it and below it, in every
//! namespace. So the mount points are listed before an invalidation. listmount(2) and statmount(2)
//! list them in all namespaces. On a kernel without these calls only the daemon's own namespace is
//! listed.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A mount of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    id: u64,
    parent: u64,
    device: (u32, u32),
    /// Root of the mount, as a path in its file system.
    root: Vec<u8>,
    /// Mount point, as a path in its namespace.
    point: Vec<u8>,
}

/// Mount points inside a file system.
#[derive(Debug, Default)]
pub(crate) struct Inside {
    /// Paths from the root of the file system, with a leading slash.
    points: Vec<Vec<u8>>,
    /// Whether all namespaces were listed.
    complete: bool,
}

impl Inside {
    /// Lists the mount points inside the file system with this device number.
    pub fn of(device: (u32, u32)) -> Self {
        match all_namespaces() {
            Ok(namespaces) => {
                let points = namespaces.iter().flat_map(|mounts| points(mounts, device)).collect();
                Self { points, complete: true }
            }
            Err(error) => {
                tracing::debug!(%error, "mounts of other namespaces cannot be seen");
                let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
                Self { points: points(&parse(&text), device), complete: false }
            }
        }
    }

    /// Whether it is certain that no mount is inside.
    pub fn is_none(&self) -> bool {
        self.complete && self.points.is_empty()
    }

    /// Whether a mount point is at this path or below it.
    pub fn is_at_or_below(&self, path: &[u8]) -> bool {
        let below = |point: &Vec<u8>| {
            point.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        };
        self.points.iter().any(below)
    }
}

/// Mount points of one namespace inside the file system `device`, without its root.
fn points(mounts: &[Mount], device: (u32, u32)) -> Vec<Vec<u8>> {
    let by_id: HashMap<u64, &Mount> = mounts.iter().map(|m| (m.id, m)).collect();
    let place = |mount: &Mount| {
        let parent = by_id.get(&mount.parent).filter(|p| p.device == device && p.id != mount.id)?;
        let rest = match &parent.point[..] {
            b"/" => &mount.point[..],
            point => mount.point.strip_prefix(point)?,
        };
        let root = if parent.root == b"/" { &b""[..] } else { &parent.root };
        let path = [root, rest].concat();
        (!path.is_empty() && path != b"/").then_some(path)
    };
    mounts.iter().filter_map(place).collect()
}

/// Parses `/proc/PID/mountinfo` (proc(5)).
fn parse(text: &[u8]) -> Vec<Mount> {
    let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<u64>().ok();
    let mount = |line: &[u8]| {
        let mut words = line.split(|b| *b == b' ');
        let (id, parent) = (number(words.next()?)?, number(words.next()?)?);
        let device = words.next()?;
        let colon = device.iter().position(|b| *b == b':')?;
        let device = (number(&device[..colon])? as u32, number(&device[colon + 1..])? as u32);
        let (root, point) = (unescape(words.next()?), unescape(words.next()?));
        Some(Mount { id, parent, device, root, point })
    };
    text.split(|b| *b == b'\n').filter_map(mount).collect()
}

/// Decodes octal escapes like `\040`.
fn unescape(word: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(word.len()), word);
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| first == b'\\');
        let code = code.and_then(|c| u8::from_str_radix(std::str::from_utf8(c).ok()?, 8).ok());
        out.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    out
}

/// `struct mnt_id_req`.
#[repr(C)]
struct Request {
    size: u32,
    spare: u32,
    mount: u64,
    param: u64,
    namespace: u64,
}

/// `struct mnt_ns_info`.
#[repr(C)]
#[derive(Default)]
struct NamespaceInfo {
    size: u32,
    mounts: u32,
    id: u64,
}

const NS_MNT_GET_INFO: libc::c_ulong = 0x8010_b70a;
const NS_MNT_GET_NEXT: libc::c_ulong = 0x8010_b70b;
const NS_MNT_GET_PREV: libc::c_ulong = 0x8010_b70c;
const SYS_STATMOUNT: libc::c_long = 457;
const SYS_LISTMOUNT: libc::c_long = 458;
const REQUEST_BYTES: u32 = size_of::<Request>() as u32;

/// The mounts of each namespace.
fn all_namespaces() -> io::Result<Vec<Vec<Mount>>> {
    let mut here = OwnedFd::from(File::open("/proc/self/ns/mnt")?);
    while let Some((before, _)) = neighbour(&here, NS_MNT_GET_PREV)? {
        here = before;
    }
    let mut info = NamespaceInfo { size: size_of::<NamespaceInfo>() as u32, ..Default::default() };
    // SAFETY: the ioctl writes the structure, which lives across the call.
    if unsafe { libc::ioctl(here.as_raw_fd(), NS_MNT_GET_INFO as _, &raw mut info) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut all = vec![mounts_of(info.id)?];
    while let Some((next, id)) = neighbour(&here, NS_MNT_GET_NEXT)? {
        all.push(mounts_of(id)?);
        here = next;
    }
    Ok(all)
}

/// The next or previous namespace, and its number.
fn neighbour(of: &OwnedFd, which: libc::c_ulong) -> io::Result<Option<(OwnedFd, u64)>> {
    let mut info = NamespaceInfo { size: size_of::<NamespaceInfo>() as u32, ..Default::default() };
    // SAFETY: the ioctl writes the structure, which lives across the call.
    let fd = unsafe { libc::ioctl(of.as_raw_fd(), which as _, &raw mut info) };
    if fd >= 0 {
        // SAFETY: the kernel has just created the descriptor for this caller.
        return Ok(Some((unsafe { OwnedFd::from_raw_fd(fd) }, info.id)));
    }
    match io::Error::last_os_error() {
        e if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        e => Err(e),
    }
}

fn mounts_of(namespace: u64) -> io::Result<Vec<Mount>> {
    const ROOT: u64 = u64::MAX;
    let (mut mounts, mut last) = (Vec::new(), 0);
    loop {
        let mut ids = [0u64; 256];
        let request = Request { size: REQUEST_BYTES, spare: 0, mount: ROOT, param: last, namespace };
        // SAFETY: the kernel writes at most the given number of elements; both live across the
        // call.
        let n = unsafe { libc::syscall(SYS_LISTMOUNT, &raw const request, ids.as_mut_ptr(), ids.len(), 0) };
        let n = match usize::try_from(n) {
            Ok(n) => n.min(ids.len()),
            // The namespace has just ended.
            Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT) => return Ok(mounts),
            Err(_) => return Err(io::Error::last_os_error()),
        };
        for &id in &ids[..n] {
            mounts.extend(mount(namespace, id)?);
        }
        match ids[..n].last() {
            Some(id) if n == ids.len() => last = *id,
            _ => return Ok(mounts),
        }
    }
}

/// The mount with this id, from statmount(2); `None` when it has just ended.
fn mount(namespace: u64, id: u64) -> io::Result<Option<Mount>> {
    const SB_BASIC: u64 = 1;
    const MNT_BASIC: u64 = 2;
    const MNT_ROOT: u64 = 8;
    const MNT_POINT: u64 = 16;
    /// Size of `struct statmount` before its strings in bytes.
    const STRINGS: usize = 512;
    let mut buf = vec![0u8; STRINGS + 3 * libc::PATH_MAX as usize];
    let param = SB_BASIC | MNT_BASIC | MNT_ROOT | MNT_POINT;
    let request = Request { size: REQUEST_BYTES, spare: 0, mount: id, param, namespace };
    // SAFETY: the kernel writes at most the given number of bytes; both live across the call.
    let r = unsafe { libc::syscall(SYS_STATMOUNT, &raw const request, buf.as_mut_ptr(), buf.len(), 0) };
    if r < 0 {
        let e = io::Error::last_os_error();
        return if e.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(e) };
    }
    let u32_at =
        |at: usize| buf.get(at..at + 4).map_or(0, |b| b.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b)));
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    let string = |at: usize| {
        let rest = buf.get(STRINGS + u32_at(at) as usize..).unwrap_or_default();
        rest.split(|b| *b == 0).next().unwrap_or_default().to_vec()
    };
    let device = (u32_at(16), u32_at(20));
    Ok(Some(Mount { id: u64_at(40), parent: u64_at(48), device, root: string(104), point: string(108) }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Mount points inside a file system are paths from its root, for binds too.
    #[test]
    fn mount_points_are_relative_to_root() {
        let text = br"20 1 8:1 / / rw - ext4 a rw
30 20 0:50 / /mnt/a\040b rw - fuse.hither s:/ rw
31 30 0:60 / /mnt/a\040b/x/y rw - tmpfs t rw
32 20 0:50 /x /bound rw - fuse.hither s:/ rw
33 32 0:61 / /bound/z rw - tmpfs t rw
34 31 0:62 / /mnt/a\040b/x/y/deep rw - tmpfs t rw
35 30 0:63 / /mnt/a\040b rw - tmpfs t rw
broken line
";
        let mounts = parse(text);
        assert_eq!(mounts.len(), 7);
        assert_eq!(points(&mounts, (0, 50)), [b"/x/y".to_vec(), b"/x/z".to_vec()]);
        let inside = Inside { points: points(&mounts, (0, 50)), complete: true };
        let at = |path: &str| inside.is_at_or_below(path.as_bytes());
        assert_eq!(
            ["/x", "/x/y", "/x/y/deep", "/xx", "/x/", "/q"].map(at),
            [true, true, false, false, false, false]
        );
        assert!(!inside.is_none() && !Inside::default().is_none());
        assert!(points(&mounts, (8, 9)).is_empty());
    }

    /// A kernel that lists namespaces lists this one as `/proc` does.
    #[test]
    fn namespaces_are_listed() {
        let Ok(all) = all_namespaces() else { return };
        let own = parse(&std::fs::read("/proc/self/mountinfo").unwrap());
        let shape = |m: &Mount| (m.device, m.root.clone(), m.point.clone());
        let own: Vec<_> = own.iter().map(shape).collect();
        assert!(all.iter().any(|mounts| mounts.iter().map(shape).all(|m| own.contains(&m))), "{all:?}");
    }
}
