//! `hither umount`: removes a mount and waits until its daemon has ended.
//!
//! The command does not access the mount, so a mount with a dead server can be removed too. The
//! mount point comes from mountinfo. The peer of the control socket is the daemon.

use crate::cli::UmountArgs;
use crate::control::{self, Ending};
use crate::exit::Failure;
use crate::mountinfo::{self, Mount};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::PidfdFlags;
use rustix::time::Timespec;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Attempts to remove the mount of a killed daemon after the end of the calls that waited for it.
const STUCK_TRIES: u32 = 20;
/// Pause before each of these attempts.
const STUCK_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Most busy processes that a message names.
const MAX_NAMED: usize = 5;

/// Unmounts a mount.
///
/// # Errors
/// The mount does not exist, the user is not root, or the daemon did not end in time. A busy mount
/// fails with the names of its users.
pub fn run(args: &UmountArgs) -> Result<(), Failure> {
    let mounts = mountinfo::read().map_err(|e| Failure::system(format!("/proc/self/mountinfo: {e}")))?;
    let mount = find(&mounts, &args.dir)?;
    let point = mount.point.display();
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::usage(format!("unmounting {point} needs root: run it with sudo")));
    }
    let daemon = Ending::of(mount.dev).and_then(|daemon| {
        let pidfd = rustix::process::pidfd_open(daemon.pid, PidfdFlags::empty()).ok()?;
        Some((daemon, pidfd))
    });
    let mut flags = UnmountFlags::NOFOLLOW;
    if args.lazy {
        flags |= UnmountFlags::DETACH;
    }
    let stuck = control::is_stuck(mount.dev);
    if args.force || stuck {
        // Ends the calls of programs that wait for the daemon.
        flags |= UnmountFlags::FORCE;
    }
    let copies = copies_of(mount.dev);
    let mut outcome = rustix::mount::unmount(&mount.point, flags);
    for _ in 0..STUCK_TRIES {
        if !stuck || outcome != Err(Errno::BUSY) {
            break;
        }
        // The programs of these calls may end now.
        let _ = rustix::event::poll(&mut [], Some(&STUCK_PAUSE));
        outcome = rustix::mount::unmount(&mount.point, flags);
    }
    outcome.map_err(|e| explain(e, mount))?;
    if args.verbose {
        println!("{point}: unmounted");
    }
    // After a lazy unmount the daemon serves its last users for as long as they stay.
    let Some((daemon, pidfd)) = daemon.filter(|_| !args.lazy) else { return Ok(()) };
    // Remaining mounts of the daemon. Another mount may have reused the device number.
    let mut left: Vec<_> =
        copies_of(mount.dev).into_iter().filter(|(copy, _)| copies.contains_key(copy)).collect();
    left.sort();
    let Some((_, place)) = left.first() else { return wait_for_end(daemon, &pidfd, args.timeout, mount) };
    // A bind mount of a subdirectory ends without a message.
    if mount.root == Path::new("/") {
        eprintln!("hither: {point} is unmounted here and still mounted {place}");
    }
    Ok(())
}

/// All mounts of a device. The daemon serves while one exists, in this mount name space (a bind
/// mount) or in another (a container or a service). The key is name space and number of the mount,
/// the value its place as text.
fn copies_of(dev: (u32, u32)) -> HashMap<(PathBuf, u64), String> {
    let space = |process: &Path| std::fs::read_link(process.join("ns/mnt")).ok();
    let own = PathBuf::from("/proc/self");
    let (mut seen, mut copies) = (HashSet::new(), HashMap::new());
    for process in std::iter::once(own.clone()).chain(processes()) {
        let Some(space) = space(&process).filter(|space| seen.insert(space.clone())) else { continue };
        let mounts = mountinfo::read_of(&process).unwrap_or_default();
        for mount in mounts.iter().filter(|m| m.is_ours() && m.dev == dev) {
            let place = if process == own {
                format!("at {}", mount.point.display())
            } else {
                format!("in the name space of {}", name_of(&process))
            };
            copies.insert((space.clone(), mount.id), place);
        }
    }
    copies
}

/// Finds the mount of a directory or of a source.
fn find<'a>(mounts: &'a [Mount], dir: &Path) -> Result<&'a Mount, Failure> {
    let shown = dir.display();
    let source = mounts.iter().rev().find(|m| m.is_ours() && m.source == dir.as_os_str());
    if let Some(mount) = source {
        return Ok(mount);
    }
    let path: PathBuf = match mountinfo::resolve(mounts, dir) {
        Ok(path) => path,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Failure::mount(format!("{shown}: no such directory")));
        }
        Err(e) => return Err(Failure::mount(format!("{shown}: {e}"))),
    };
    match mountinfo::at(mounts, &path) {
        Some(mount) if mount.is_ours() => Ok(mount),
        Some(mount) => Err(Failure::mount(format!(
            "{shown} is a mount of type {}, not of hither: use umount(8)",
            mount.fstype
        ))),
        None => Err(match mountinfo::ours_holding(mounts, &path) {
            Some(mount) => Failure::mount(format!(
                "{shown} is inside the mount at {}: give that directory",
                mount.point.display()
            )),
            None => Failure::mount(format!("{shown} is not mounted")),
        }),
    }
}

/// The message about a failed umount(2).
fn explain(e: Errno, mount: &Mount) -> Failure {
    let point = mount.point.display();
    match e {
        Errno::BUSY if let Some(inner) = mount_inside(mount) => Failure::mount(format!(
            "{point} is busy: {} is mounted inside it: unmount that first, or use --lazy",
            inner.display()
        )),
        Errno::BUSY => {
            let users = users_of(&mount.point);
            let used = match users.len() {
                0 => String::from(", used by a program that is not visible here"),
                n if n > MAX_NAMED => {
                    format!(", used by {} and {} more", users[..MAX_NAMED].join(", "), n - MAX_NAMED)
                }
                _ => format!(", used by {}", users.join(", ")),
            };
            Failure::mount(format!("{point} is busy{used}: end them, or use --lazy"))
        }
        Errno::PERM => Failure::usage(format!("unmounting {point} is not permitted: run it as root")),
        Errno::INVAL => Failure::mount(format!("{point} is not mounted any more")),
        e => Failure::mount(format!("{point}: {e}")),
    }
}

/// A mount point below this mount.
fn mount_inside(mount: &Mount) -> Option<PathBuf> {
    let mut mounts = mountinfo::read().ok()?.into_iter();
    mounts.find(|m| m.point != mount.point && m.point.starts_with(&mount.point)).map(|m| m.point)
}

/// Processes with their working directory, root, program or open files on the mount, as
/// `name(pid)`. Reading the links does not access the mount.
fn users_of(point: &Path) -> Vec<String> {
    processes().filter(|process| uses(process, point)).map(|process| name_of(&process)).collect()
}

/// `/proc/PID` of every process.
fn processes() -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter(|e| e.file_name().as_encoded_bytes()[0].is_ascii_digit()).map(|e| e.path())
}

/// `name(pid)`.
fn name_of(process: &Path) -> String {
    let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
    let pid = process.file_name().unwrap_or_default().to_string_lossy();
    format!("{}({pid})", name.trim())
}

fn uses(process: &Path, point: &Path) -> bool {
    let on_mount = |link: PathBuf| std::fs::read_link(link).is_ok_and(|target| target.starts_with(point));
    if ["cwd", "root", "exe"].iter().any(|link| on_mount(process.join(link))) {
        return true;
    }
    let open = |dir: &str| {
        std::fs::read_dir(process.join(dir))
            .is_ok_and(|entries| entries.flatten().any(|e| on_mount(e.path())))
    };
    open("fd") || open("map_files")
}

/// Waits until the daemon has written everything and ended.
fn wait_for_end(daemon: Ending, pidfd: &OwnedFd, timeout_s: u64, mount: &Mount) -> Result<(), Failure> {
    let (pid, point) = (daemon.pid.as_raw_nonzero(), mount.point.display());
    let timeout = Timespec { tv_sec: i64::try_from(timeout_s).unwrap_or(i64::MAX), tv_nsec: 0 };
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    match rustix::event::poll(&mut fds, Some(&timeout)) {
        Ok(0) => Err(Failure::system(format!(
            "{point} is unmounted, but its daemon (process {pid}) did not end within {timeout_s} s: the server {} may \
             not have everything; see the log",
            mount.source.to_string_lossy()
        ))),
        Ok(_) => match daemon.unsent() {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(Failure::system(format!("{point} is unmounted, but {why}"))),
            // It was killed, or is stopping a moment later.
            Err(_) => Err(Failure::system(format!(
                "{point} is unmounted, but its daemon (process {pid}) ended without saying whether the server has \
                 everything; see the log"
            ))),
        },
        Err(e) => Err(Failure::system(format!("waiting for process {pid}: {e}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts() -> Vec<Mount> {
        let mount = |point: &str, fstype: &str, source: &str| Mount {
            id: 1,
            dev: (0, 1),
            root: "/".into(),
            point: point.into(),
            options: String::new(),
            fstype: fstype.into(),
            source: source.into(),
        };
        vec![
            mount("/", "ext4", "/dev/vda"),
            mount("/proc", "proc", "proc"),
            mount("/nonexistent-a", mountinfo::FSTYPE, "s:/x"),
        ]
    }

    #[test]
    fn mount_found_by_directory_or_source() {
        let mounts = mounts();
        assert_eq!(find(&mounts, Path::new("/nonexistent-a/")).unwrap().source, "s:/x");
        assert_eq!(find(&mounts, Path::new("s:/x")).unwrap().point, Path::new("/nonexistent-a"));
    }

    #[test]
    fn wrong_directories_have_a_line_each() {
        let mounts = mounts();
        for (dir, line) in [
            ("/nonexistent-b", "/nonexistent-b: no such directory"),
            ("/tmp", "/tmp is not mounted"),
            ("/proc", "/proc is a mount of type proc, not of hither: use umount(8)"),
            (
                "/nonexistent-a/sub",
                "/nonexistent-a/sub is inside the mount at /nonexistent-a: give that directory",
            ),
        ] {
            assert_eq!(find(&mounts, Path::new(dir)).unwrap_err(), Failure::mount(line), "{dir}");
        }
    }

    /// The test process is found by its open file.
    #[test]
    fn users_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let _file = std::fs::File::create(dir.path().join("f")).unwrap();
        let users = users_of(&dir.path().canonicalize().unwrap());
        assert_eq!(users.len(), 1);
        assert!(users[0].ends_with(&format!("({})", std::process::id())), "{users:?}");
    }
}
