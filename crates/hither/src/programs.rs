//! The socket for programs: its path and its permissions.
//!
//! This module does not know the protocol (`hither-socket`). A mount's socket is
//! `/run/hither/MAJOR:MINOR.programs`, after the mount's device, so that a program finds it by the
//! mount point. With `socket=PATH` that name is a symbolic link. The permissions are set before any
//! program can connect.

use crate::exit::Failure;
use crate::options::Socket;
use crate::turn::Turn;
use nix::unistd::Group;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Default directory of the sockets.
const DIR: &str = "/run/hither";
/// Most programs that wait to be accepted.
const BACKLOG: i32 = 128;

/// A bound socket that serves no program yet.
pub struct Bound {
    listener: UnixListener,
    files: Vec<Made>,
}

/// A file of the socket. Dropping it removes the file.
struct Made {
    path: PathBuf,
    identity: [i64; 4],
}

impl Made {
    fn at(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // A newer mount may have taken the name.
        if identity(&self.path).is_ok_and(|there| there == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Distinguishes a socket or symbolic link from a later one, because inode numbers are reused.
fn identity(path: &Path) -> io::Result<[i64; 4]> {
    let meta = std::fs::symlink_metadata(path)?;
    Ok([meta.dev() as i64, meta.ino() as i64, meta.mtime(), meta.mtime_nsec()])
}

/// Makes the socket of the option `socket=PATH`.
///
/// # Errors
/// A message for the user.
pub fn bind(wanted: &Socket) -> Result<Option<Bound>, Failure> {
    let Some(path) = wanted.path.as_ref().filter(|_| wanted.offered) else { return Ok(None) };
    let bound = bind_at(path, wanted)
        .map_err(|e| Failure::usage(format!("option 'socket={}': {e}; give another path", path.display())))?;
    Ok(Some(bound))
}

/// Makes a socket at `path` that only this user and root may use.
///
/// # Errors
/// The path is in use, or the socket cannot be made.
pub fn bind_private(path: &Path) -> io::Result<Bound> {
    bind_at(path, &Socket { mode: 0o600, group: None, ..Socket::default() })
}

impl Bound {
    /// The socket of the mount with this device number: `bound`, or else a new one at the default
    /// path.
    ///
    /// # Errors
    /// A file cannot be created.
    pub fn of_mount(bound: Option<Self>, device: (u32, u32), wanted: &Socket) -> io::Result<Self> {
        Self::of_mount_in(Path::new(DIR), bound, device, wanted)
    }

    fn of_mount_in(dir: &Path, bound: Option<Self>, device: (u32, u32), wanted: &Socket) -> io::Result<Self> {
        let path = dir.join(format!("{}:{}.programs", device.0, device.1));
        let ready = || {
            std::fs::create_dir_all(dir)?;
            // Device numbers are reused, so a killed daemon may have left a socket with this name.
            remove_stale(&path)
        };
        let Some(mut bound) = bound else {
            ready()?;
            return bind_at(&path, wanted);
        };
        let Some(made) = bound.files.first() else { return Ok(bound) };
        let link = || std::os::unix::fs::symlink(&made.path, &path).and_then(|()| Made::at(&path));
        match ready().and_then(|()| link()) {
            Ok(made) => bound.files.push(made),
            // A program that knows the path does not need the link.
            Err(e) => tracing::warn!("no link to the socket for programs at {}: {e}", path.display()),
        }
        Ok(bound)
    }

    /// The listener, and the files that must live as long as it.
    ///
    /// # Errors
    /// Those of the runtime.
    pub fn listen(self) -> io::Result<(tokio::net::UnixListener, impl Send + Sync)> {
        self.listener.set_nonblocking(true)?;
        Ok((tokio::net::UnixListener::from_std(self.listener)?, self.files))
    }
}

fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn bind_at(path: &Path, wanted: &Socket) -> io::Result<Bound> {
    // Held to the end of the function, because a socket without a listener looks dead.
    let _turn = Turn::at(path);
    if let Ok(meta) = std::fs::symlink_metadata(path) {
        let dead = meta.file_type().is_socket()
            && std::os::unix::net::UnixStream::connect(path)
                .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
        if !dead {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists already"));
        }
        remove_stale(path)?;
    }
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // bind(2) creates the file with the permissions of the socket (reduced by the umask). The file
    // never has others.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let made = Made::at(path)?;
    open_to(path, wanted)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(Bound { listener: UnixListener::from(socket), files: vec![made] })
}

/// Gives a new socket the requested group and permissions. In a directory where other users may
/// write, the path may refer to another file by now. The function therefore changes only a socket
/// of this user that no other program can use yet.
fn open_to(path: &Path, wanted: &Socket) -> io::Result<()> {
    let at = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&at)?;
    let ours = FileType::from_raw_mode(stat.st_mode) == FileType::Socket
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_mode & 0o077 == 0
        && stat.st_nlink == 1;
    if !ours {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "another file has taken its place"));
    }
    // The group is set first, so that no user is admitted before.
    if let Some(group) = &wanted.group {
        rustix::fs::chownat(&at, "", None, Some(gid(group)?), AtFlags::EMPTY_PATH)?;
    }
    // fchmod(2) does not accept an `O_PATH` descriptor.
    let path = format!("/proc/self/fd/{}", at.as_raw_fd());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(wanted.mode))
}

fn gid(group: &str) -> io::Result<Gid> {
    if let Ok(gid) = group.parse() {
        return Ok(Gid::from_raw(gid));
    }
    let none = || io::Error::new(io::ErrorKind::NotFound, format!("there is no group '{group}'"));
    Ok(Gid::from_raw(Group::from_name(group)?.ok_or_else(none)?.gid.as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(path: &Path) -> Socket {
        Socket { path: Some(path.into()), mode: 0o660, group: Some("0".into()), ..Socket::default() }
    }

    /// The socket has the requested permissions and is removed with its owner.
    #[tokio::test]
    async fn socket_has_permissions_and_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (listener, files) = bind(&socket(&path)).unwrap().unwrap().listen().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        let taken = bind(&socket(&path)).err().unwrap().line;
        assert!(taken.contains("the path exists already; give another path"), "{taken}");
        drop(files);
        assert!(!path.exists());
        drop(listener);
    }

    /// The socket of a dead daemon is replaced. Other files and links are refused and not changed.
    #[test]
    fn only_dead_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(bind(&socket(&path)).is_ok_and(|bound| bound.is_some()));
        std::fs::write(&path, "a file").unwrap();
        assert!(bind(&socket(&path)).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
        // A link is not a socket, and the permissions of its target stay.
        let (link, far) = (dir.path().join("link"), dir.path().join("far"));
        std::fs::write(&far, "").unwrap();
        std::fs::set_permissions(&far, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&far, &link).unwrap();
        assert!(open_to(&link, &socket(&link)).is_err());
        assert!(open_to(&far, &socket(&far)).is_err());
        assert_eq!(std::fs::metadata(&far).unwrap().mode() & 0o777, 0o600);
        let off = Socket { offered: false, ..socket(&path) };
        assert!(bind(&off).is_ok_and(|bound| bound.is_none()));
    }

    /// Several daemons start at the same time at the path of a killed daemon's socket. Exactly one
    /// binds it.
    #[test]
    fn one_daemon_takes_dead_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        for round in 0..50 {
            drop(UnixListener::bind(&path).unwrap());
            let start = std::sync::Barrier::new(8);
            let bound: Vec<_> = std::thread::scope(|scope| {
                let begin = || {
                    start.wait();
                    bind(&socket(&path))
                };
                let all: Vec<_> = (0..8).map(|_| scope.spawn(begin)).collect();
                all.into_iter().filter_map(|one| one.join().unwrap().ok()).collect()
            });
            assert_eq!(bound.len(), 1, "round {round}");
            assert!(std::os::unix::net::UnixStream::connect(&path).is_ok(), "and it is reached there");
            drop(bound);
            assert!(!path.exists());
        }
    }

    /// The default name belongs to the mount that has the device number now.
    #[test]
    fn device_numbers_are_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let usual = dir.path().join("0:7.programs");
        let wanted = Socket { path: None, ..socket(&usual) };
        let mount = |bound| Bound::of_mount_in(dir.path(), bound, (0, 7), &wanted).unwrap();
        // A killed daemon with `socket=PATH` left a link. The link dangles or leads to a live
        // socket of another mount.
        let elsewhere = dir.path().join("elsewhere");
        let _living = UnixListener::bind(&elsewhere).unwrap();
        for leads in ["nowhere", "elsewhere"] {
            std::os::unix::fs::symlink(dir.path().join(leads), &usual).unwrap();
            let first = mount(None);
            assert!(usual.symlink_metadata().unwrap().file_type().is_socket());
            let second = mount(None);
            drop(first);
            assert!(usual.exists(), "the older one removes its own only");
            drop(second);
            assert!(!usual.exists());
        }
        assert!(elsewhere.exists());
        // A mount with its own path does not need the default directory.
        let own = dir.path().join("own");
        let bound = bind(&socket(&own)).unwrap();
        let bound = Bound::of_mount_in(&elsewhere, bound, (0, 7), &wanted).unwrap();
        assert!(own.exists());
        drop(bound);
        assert!(!own.exists());
    }
}
