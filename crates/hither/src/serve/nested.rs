//! Finds exports inside exports, and mounts of this machine inside exports.
//!
//! This module opens no files and has no protocol. It makes a plan from entries of exports(5) and
//! the table of mounts. With `crossmnt` a mount below an exported directory is a separate export
//! with the rights of the export above. [`Changes`] reports changes of the table of mounts.

use hither_server::exports::Entry;
use hither_vfs::Name;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The table of mounts, as this process sees it (proc_pid_mountinfo(5)).
const MOUNTINFO: &str = "/proc/self/mountinfo";
/// Served file-system types without a block device.
const WITHOUT_DEVICE: [&str; 6] = ["tmpfs", "overlay", "btrfs", "zfs", "bcachefs", "ramfs"];

/// A mount of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Number of the mount, unique among the present mounts.
    pub id: u64,
    /// Mount point.
    pub point: PathBuf,
    /// Type of its file system.
    pub kind: String,
    /// Device number of the file system.
    device: String,
    /// Directory of the file system that is mounted.
    root: PathBuf,
}

impl Mount {
    /// Whether `crossmnt` exports the mount. It does not export proc, sysfs and similar file
    /// systems, or file systems of other servers.
    fn holds_files(&self) -> bool {
        !self.device.starts_with("0:") || WITHOUT_DEVICE.contains(&self.kind.as_str())
    }
}

/// All visible mounts. Of several mounts at one point only the top one is visible. A directory that
/// is bound to itself covers nothing and is omitted; systemd units have many.
pub fn mounts() -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read(MOUNTINFO)?))
}

fn parse(table: &[u8]) -> Vec<Mount> {
    let lines: Vec<(u64, Mount)> = table.split(|b| *b == b'\n').filter_map(parse_line).collect();
    let mut all: Vec<Mount> = Vec::new();
    for (parent, mount) in &lines {
        let below = lines.iter().find(|(_, other)| other.id == *parent).map(|(_, below)| below);
        if below.is_some_and(|below| mount.shows_the_same(below)) {
            continue;
        }
        all.retain(|other| other.point != mount.point);
        all.push(mount.clone());
    }
    all
}

impl Mount {
    /// Whether a mount shows the directory that it covers.
    fn shows_the_same(&self, below: &Mount) -> bool {
        let under = self.point.strip_prefix(&below.point).map(|path| below.root.join(path));
        self.device == below.device && under.is_ok_and(|under| under == self.root)
    }
}

/// Parses a mount and the number of its parent mount.
fn parse_line(line: &[u8]) -> Option<(u64, Mount)> {
    let words: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let dash = words.iter().position(|word| *word == b"-")?;
    let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse().ok();
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let path = |word: &[u8]| PathBuf::from(OsString::from_vec(unquoted(word)));
    let mount = Mount {
        id: number(words.first()?)?,
        device: text(words.get(2)?),
        root: path(words.get(3)?),
        point: path(words.get(4)?),
        kind: text(words.get(dash + 1)?),
    };
    Some((number(words.get(1)?)?, mount))
}

/// Decodes a backslash with three octal digits, the form of blanks and backslashes.
fn unquoted(word: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(word.len()), word);
    while let Some((&first, after)) = rest.split_first() {
        let octal =
            after.first_chunk::<3>().filter(|d| first == b'\\' && d.iter().all(|b| (b'0'..b'8').contains(b)));
        match octal {
            Some(d) => {
                out.push(d.iter().fold(0_u8, |n, b| n.wrapping_mul(8).wrapping_add(b - b'0')));
                rest = &after[3..];
            }
            None => {
                out.push(first);
                rest = after;
            }
        }
    }
    out
}

/// A planned export.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// Directory on this machine.
    pub dir: PathBuf,
    /// Its line of exports(5), or that of the export above.
    pub entry: Entry,
    /// Path of the export for clients.
    pub name: String,
    /// The number of its mount, if no line of exports(5) names it.
    pub mount: Option<u64>,
    /// Index of the export above in the plan.
    pub above: Option<usize>,
    /// True if NFSv3 clients do not cross into this export from the export above (exports(5),
    /// `hide`).
    pub hidden: bool,
}

/// The exports of `entries`, and with `crossmnt` the mounts below them.
pub fn plan(entries: Vec<(PathBuf, Entry)>, mounts: &[Mount]) -> Vec<Planned> {
    let planned = |(dir, entry): (PathBuf, Entry)| Planned {
        name: name_of(&entry),
        dir,
        entry,
        mount: None,
        above: None,
        hidden: false,
    };
    let mut all: Vec<Planned> = entries.into_iter().map(planned).collect();
    let mut dirs = Dirs::of(&all);
    let mut mounts: Vec<&Mount> = mounts.iter().collect();
    mounts.sort_by_key(|mount| mount.point.components().count());
    for mount in mounts {
        if dirs.0.contains_key(&mount.point) || !mount.holds_files() {
            continue;
        }
        let Some(above) = dirs.around(&mount.point).filter(|above| all[*above].entry.crossmnt) else {
            continue;
        };
        let path = mount.point.as_os_str().as_bytes().to_vec();
        let entry = Entry { path, fsid: None, ..all[above].entry.clone() };
        dirs.0.insert(mount.point.clone(), all.len());
        all.push(Planned { mount: Some(mount.id), ..planned((mount.point.clone(), entry)) });
    }
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|i| all[*i].dir.components().count());
    for i in order {
        let Some(above) = dirs.around(&all[i].dir).filter(|_| all[i].entry.fsid != Some(0)) else {
            continue;
        };
        let (holder, own) = (&all[above], &all[i]);
        let below = own.dir.strip_prefix(&holder.dir).unwrap_or(&own.dir).to_string_lossy();
        let name = format!("{}/{below}", holder.name.trim_end_matches('/'));
        let hidden = own.mount.is_none() && !own.entry.nohide && !holder.entry.crossmnt;
        all[i] = Planned { name, above: Some(above), hidden, ..own.clone() };
    }
    all
}

/// Exports by their directories.
struct Dirs(HashMap<PathBuf, usize>);

impl Dirs {
    fn of(all: &[Planned]) -> Self {
        Self(all.iter().enumerate().map(|(i, planned)| (planned.dir.clone(), i)).collect())
    }

    /// The innermost export around a path.
    fn around(&self, path: &Path) -> Option<usize> {
        path.ancestors().skip(1).find_map(|dir| self.0.get(dir).copied())
    }
}

/// Directories of each export that other mounts or exports cover, with their names below the
/// export.
pub fn covered(all: &[Planned], mounts: &[Mount]) -> Vec<Vec<(PathBuf, Vec<Name>)>> {
    let dirs = Dirs::of(all);
    let exports = all.iter().map(|other| &other.dir);
    let points: BTreeSet<&PathBuf> = mounts.iter().map(|mount| &mount.point).chain(exports).collect();
    let mut covered = vec![Vec::new(); all.len()];
    for point in points {
        let Some(of) = dirs.around(point) else { continue };
        if let Some(names) = point.strip_prefix(&all[of].dir).ok().and_then(names) {
            covered[of].push((point.clone(), names));
        }
    }
    covered
}

fn names(path: &Path) -> Option<Vec<Name>> {
    path.components().map(|part| Name::new(part.as_os_str().as_bytes().to_vec()).ok()).collect()
}

/// Path of an export for clients, from its line only.
fn name_of(entry: &Entry) -> String {
    match entry.fsid {
        Some(0) => "/".into(),
        _ => String::from_utf8_lossy(&entry.path).into_owned(),
    }
}

/// Reports mounts and unmounts.
pub struct Changes(AsyncFd<File>);

impl Changes {
    /// Watches from now on.
    ///
    /// # Errors
    /// /proc is not available.
    #[expect(deprecated, reason = "a File has one descriptor, which stays open as long as it lives")]
    pub fn new() -> io::Result<Self> {
        AsyncFd::with_interest(File::open(MOUNTINFO)?, Interest::PRIORITY).map(Self)
    }

    /// Waits for a change.
    pub async fn next(&self) {
        match self.0.ready(Interest::PRIORITY).await {
            Ok(mut ready) => ready.clear_ready(),
            Err(e) => {
                tracing::warn!("mounts are not watched any more: {e}");
                std::future::pending().await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_server::exports::Exports;

    fn entries(text: &str) -> Vec<(PathBuf, Entry)> {
        let mut exports = Exports::default();
        exports.add("exports", text.as_bytes()).unwrap();
        exports.entries.into_iter().map(|e| (PathBuf::from(OsString::from_vec(e.path.clone())), e)).collect()
    }

    fn mount(id: u64, point: &str, kind: &str) -> Mount {
        let device = if kind == "ext4" { format!("252:{id}") } else { format!("0:{id}") };
        Mount { id, point: point.into(), kind: kind.into(), device, root: "/".into() }
    }

    /// Names, exports above, and whether they are hidden from NFSv3.
    fn planned(text: &str, mounts: &[Mount]) -> Vec<(String, Option<String>, bool)> {
        let all = plan(entries(text), mounts);
        let above = |p: &Planned| p.above.map(|i| all[i].name.clone());
        all.iter().map(|p| (p.name.clone(), above(p), p.hidden)).collect()
    }

    #[test]
    fn table_of_mounts_is_read() {
        let table = b"22 1 252:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\
            30 22 0:5 / /proc rw - proc proc rw\n\
            41 22 0:44 /sub /srv/with\\040blank\\134 rw master:1 propagate_from:2 - tmpfs none rw\n\
            42 41 252:2 / /srv/with\\040blank\\134 rw - xfs /dev/vdb rw\n\
            50 22 252:1 /srv/own /srv/own rw - ext4 /dev/vda1 rw\n\
            51 22 252:1 /other /srv/bound rw - ext4 /dev/vda1 rw\n\
            torn line\n";
        let all = parse(table);
        let seen: Vec<_> = all.iter().map(|m| (m.id, m.point.to_str().unwrap(), &m.kind[..])).collect();
        // A directory that is bound to itself does not count as a mount.
        assert_eq!(
            seen,
            [
                (22, "/", "ext4"),
                (30, "/proc", "proc"),
                (42, "/srv/with blank\\", "xfs"),
                (51, "/srv/bound", "ext4"),
            ]
        );
        assert_eq!(all.iter().map(Mount::holds_files).collect::<Vec<_>>(), [true, false, true, true]);
    }

    #[test]
    fn crossmnt_exports_mounts_below() {
        let mounts = [
            mount(1, "/", "ext4"),
            mount(5, "/srv/a/deep", "ext4"),
            mount(4, "/srv/a", "tmpfs"),
            mount(6, "/srv/proc", "proc"),
            mount(7, "/other/b", "ext4"),
        ];
        let named = |name: &str, above: &str| (name.to_owned(), Some(above.to_owned()), false);
        let lone = |name: &str| (name.to_owned(), None, false);
        assert_eq!(
            planned("/srv *(rw,crossmnt)\n/other *(rw)\n", &mounts),
            [lone("/srv"), lone("/other"), named("/srv/a", "/srv"), named("/srv/a/deep", "/srv/a")]
        );
        assert_eq!(
            planned("/srv *(fsid=0,crossmnt)\n", &mounts),
            [lone("/"), named("/a", "/"), named("/a/deep", "/a")]
        );
    }

    /// An export inside another export is hidden from NFSv3, except with `nohide` or `crossmnt`.
    #[test]
    fn nested_exports_are_hidden_from_nfs3() {
        let hidden = |text| planned(text, &[]).iter().map(|p| p.2).collect::<Vec<_>>();
        assert_eq!(hidden("/srv *(rw)\n/srv/a *(ro)\n"), [false, true]);
        assert_eq!(hidden("/srv *(rw)\n/srv/a *(ro,nohide)\n"), [false, false]);
        assert_eq!(hidden("/srv *(rw,crossmnt)\n/srv/a *(ro)\n"), [false, false]);
    }

    /// Mounts and exports below an export cover its directories.
    #[test]
    fn mounts_and_exports_cover_directories() {
        let mounts =
            [mount(4, "/srv/a", "tmpfs"), mount(5, "/srv/a/x", "tmpfs"), mount(6, "/srv/proc", "proc")];
        let covers = |text, of| {
            let all = plan(entries(text), &mounts);
            let points = covered(&all, &mounts).swap_remove(of).into_iter();
            points.map(|(point, _)| point.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(covers("/srv *(rw)\n", 0), ["/srv/a", "/srv/a/x", "/srv/proc"]);
        assert_eq!(covers("/srv *(rw,crossmnt)\n", 0), ["/srv/a", "/srv/proc"]);
        assert_eq!(covers("/srv *(rw,crossmnt)\n", 1), ["/srv/a/x"]);
        assert_eq!(
            covers("/srv *(rw)\n/srv/sub *(rw)\n", 0),
            ["/srv/a", "/srv/a/x", "/srv/proc", "/srv/sub"]
        );
    }
}
