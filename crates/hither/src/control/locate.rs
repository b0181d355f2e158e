//! The one lookup of a control socket: by a directory of a mount, by the socket of `hither daemon`,
//! or by a server's state directory.
//!
//! A daemon without a mount has its control socket beside its socket for programs: `PATH.control`.
//! Its files have the names `PATH/NAME`, with names from the export's root. The lookup does not
//! access a mount, so it also works for a mount with a dead server.

use super::{answers, path_of};
use crate::exit::Failure;
use crate::mountinfo;
use crate::serve::SOCKET;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Directory of the usual state directories.
const STATE_DIRS: &str = "/var/lib/hither";
/// The suffix of the control socket of a daemon without a mount.
const SUFFIX: &str = ".control";

/// The daemon of a mount, or a daemon without a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Daemon {
    /// The control socket.
    pub socket: PathBuf,
    /// The mount point, or the path of the socket for programs. Messages name it, and paths of
    /// files start with it.
    pub dir: String,
    /// Whether the daemon serves a mount.
    pub is_mount: bool,
}

impl Daemon {
    /// The daemon of the mount with device number `dev` at `dir`.
    pub fn of_mount(dev: (u32, u32), dir: &Path) -> Self {
        Self { socket: path_of(dev), dir: dir.display().to_string(), is_mount: true }
    }
}

/// The control socket of the daemon without a mount that serves programs at `path`.
pub fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(SUFFIX);
    name.into()
}

/// The daemon that has `path`: a path in a mount, the socket of `hither daemon`, or a file's path
/// below that socket.
///
/// # Errors
/// The path is neither in a mount of hither nor at the socket of a daemon.
pub fn daemon(path: &Path) -> Result<Daemon, Failure> {
    holding(path).map(|(daemon, _)| daemon)
}

/// The daemon that has the file at `path`, and the file's path from the mount point or from the
/// export's root.
///
/// # Errors
/// Those of [`daemon`], and a name that is not UTF-8.
pub fn file(path: &Path) -> Result<(Daemon, String), Failure> {
    let (daemon, whole) = holding(path)?;
    let below = whole.strip_prefix(&daemon.dir).unwrap_or(&whole);
    let Some(below) = below.to_str() else {
        return Err(Failure::usage(format!("{}: only names in UTF-8 can be given", path.display())));
    };
    let below = below.to_string();
    Ok((daemon, below))
}

/// The daemon that has `path`, and the absolute path.
fn holding(path: &Path) -> Result<(Daemon, PathBuf), Failure> {
    let shown = path.display();
    let mounts = mountinfo::read().map_err(|e| Failure::system(format!("/proc/self/mountinfo: {e}")))?;
    let resolved = match mountinfo::resolve(&mounts, path) {
        // A component is a socket, as in paths of files of a daemon without a mount.
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => std::path::absolute(path),
        other => other,
    };
    let resolved = resolved.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Failure::usage(format!("{shown}: no such directory")),
        _ => Failure::usage(format!("{shown}: {e}")),
    })?;
    if let Some(mount) = mountinfo::ours_holding(&mounts, &resolved) {
        return Ok((Daemon::of_mount(mount.dev, &mount.point), resolved));
    }
    if let Some(at) = resolved.ancestors().find(|at| is_socket(at)) {
        let dir = at.display().to_string();
        return Ok((Daemon { socket: beside(at), dir, is_mount: false }, resolved));
    }
    Err(Failure::usage(format!(
        "{shown} is not in a mount of hither: `findmnt -t {}` lists them",
        mountinfo::FSTYPE
    )))
}

/// The control socket of a server: that of a state directory, the socket itself, or that of the
/// only running server.
///
/// # Errors
/// There is no such server, or several servers run.
pub fn server(given: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(given) = given {
        let found = if given.is_dir() { given.join(SOCKET) } else { given.to_path_buf() };
        if is_socket(&found) {
            return Ok(found);
        }
        return Err(Failure::usage(format!(
            "{}: no server has its control socket here; give the server's --state-dir",
            found.display()
        )));
    }
    let entries = std::fs::read_dir(STATE_DIRS).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path().join(SOCKET)).collect();
    found.retain(|path| is_socket(path) && answers(path));
    found.sort();
    match found.as_slice() {
        [only] => Ok(only.clone()),
        [] => Err(Failure::usage(format!(
            "no server runs with a state directory in {STATE_DIRS}; give its --state-dir"
        ))),
        several => {
            let names: Vec<String> = several.iter().map(|path| path.display().to_string()).collect();
            Err(Failure::usage(format!("several servers run, name one: {}", names.join(", "))))
        }
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// The socket of a daemon without a mount names the daemon, and so does a path below it.
    #[test]
    fn socket_path_names_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let dir = std::fs::canonicalize(dir.path()).unwrap();
        let at = dir.join("s");
        assert!(daemon(&at).unwrap_err().line.contains("no such directory"));
        let _listener = UnixListener::bind(&at).unwrap();
        let found = daemon(&at).unwrap();
        assert_eq!(found.socket, dir.join("s.control"));
        assert!(!found.is_mount);
        let (same, below) = file(&at.join("a/b")).unwrap();
        assert_eq!((same, below.as_str()), (found, "a/b"));
        assert!(daemon(&dir).unwrap_err().line.contains("is not in a mount of hither"));
    }

    #[test]
    fn absent_server_is_a_usage_error() {
        let dir = tempfile::tempdir().unwrap();
        let failure = server(Some(dir.path())).unwrap_err();
        assert!(
            failure.line.contains("control.sock: no server has its control socket here"),
            "{}",
            failure.line
        );
    }
}
