//! One laboratory: its name, its directory, its addresses, and the entry into its namespaces.

use crate::process::{Daemon, command};
use crate::release::Releases;
use std::fmt;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The reason why a command of the laboratory failed, as one line for the user.
#[derive(Debug)]
pub struct Fail(pub String);

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<std::io::Error> for Fail {
    fn from(e: std::io::Error) -> Self {
        Fail(e.to_string())
    }
}

impl From<rustix::io::Errno> for Fail {
    fn from(e: rustix::io::Errno) -> Self {
        Fail(std::io::Error::from(e).to_string())
    }
}

impl From<serde_json::Error> for Fail {
    fn from(e: serde_json::Error) -> Self {
        Fail(e.to_string())
    }
}

/// Result of the laboratory's functions.
pub type Res<T> = Result<T, Fail>;

/// Address of the host's end of the bridge, used by ganesha and the relay.
pub const HOST_IP: &str = "10.98.0.1";
/// Address of the guest with the kernel's NFS client.
pub const GUEST_IP: &str = "10.98.0.2";
/// Address of the guest with the kernel's NFS server.
pub const KNFSD_IP: &str = "10.98.0.3";
/// Control port of the relay, on [`HOST_IP`].
pub const CTL_PORT: u16 = 7777;

/// Carries the working directory across the entry into the namespaces.
const WD: &str = "HITHER_LAB_WD";

/// A laboratory.
pub struct Lab {
    /// The name. Laboratories with different names share nothing.
    pub name: String,
    /// State of this run: images, logs, pid files, exports. The laboratory writes nothing outside
    /// of it.
    pub run: PathBuf,
    /// The repository. The guests see it as well, because their root is the host's.
    pub repo: PathBuf,
    /// The releases of the peers that the command line chooses.
    pub releases: Releases,
    hither: OnceLock<PathBuf>,
}

impl Lab {
    /// The laboratory called `name`. Creates its run directory.
    pub fn new(name: &str) -> Res<Self> {
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            return Err(Fail(format!("--name {name:?}: letters, digits and '-' only")));
        }
        let repo = repository()?;
        let base = std::env::var_os("HITHER_LAB_RUN").map_or_else(|| repo.join("lab/run"), PathBuf::from);
        let run = std::path::absolute(base)?.join(name);
        fs::create_dir_all(&run)?;
        Ok(Self { name: name.into(), run, repo, releases: Releases::default(), hither: OnceLock::new() })
    }

    /// A directory below the run directory, created if missing.
    pub fn dir(&self, name: &str) -> Res<PathBuf> {
        let d = self.run.join(name);
        fs::create_dir_all(&d)?;
        Ok(d)
    }

    /// A file of the laboratory in the repository.
    pub fn file(&self, name: &str) -> PathBuf {
        self.repo.join("lab").join(name)
    }

    /// Sets the hither under test, instead of the one that cargo built.
    pub fn set_hither(&self, file: PathBuf) {
        let _ = self.hither.set(file);
    }

    /// The hither under test: `--hither`, `$HITHER`, or the result of `cargo build --release`.
    pub fn hither(&self) -> PathBuf {
        let built = || {
            let target =
                std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| self.repo.join("target"), PathBuf::from);
            std::env::var_os("HITHER").map_or_else(|| target.join("release/hither"), PathBuf::from)
        };
        self.hither.get().cloned().unwrap_or_else(built)
    }

    /// The process that holds the laboratory's namespaces open.
    pub fn holder(&self) -> Daemon {
        Daemon::at(&self.run, "holder")
    }

    /// Moves this process into the laboratory's namespaces, and starts them when needed. The
    /// process executes itself again through nsenter(1), so this must come before any other work.
    pub fn enter(&self) -> Res<()> {
        if self.holder().pid().is_none() {
            crate::net::up(self)?;
        }
        let pid = self.holder().pid().ok_or_else(|| Fail("the laboratory is down".into()))?;
        if self.inside(pid) {
            // A new mount namespace begins at its root, so the working directory is restored.
            if let Some(wd) = std::env::var_os(WD) {
                std::env::set_current_dir(wd)?;
            }
            return Ok(());
        }
        let me = std::env::current_exe()?;
        let net = format!("--net=/proc/{pid}/ns/net");
        let mount = format!("--mount=/proc/{pid}/ns/mnt");
        let mut c = command(&["nsenter", &net, &mount]);
        c.arg("--").arg(me).args(std::env::args_os().skip(1)).env(WD, std::env::current_dir()?);
        Err(Fail(format!("cannot enter the laboratory: {}", c.exec())))
    }

    /// Whether this process is in the namespaces of the holder.
    fn inside(&self, holder: i32) -> bool {
        let same = |ns: &str| {
            let theirs = fs::read_link(format!("/proc/{holder}/ns/{ns}")).ok();
            theirs.is_some() && theirs == fs::read_link(format!("/proc/self/ns/{ns}")).ok()
        };
        same("net") && same("mnt")
    }
}

/// The repository from which this program was built, or that of the working directory.
fn repository() -> Res<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf);
    // A new mount namespace begins at its root, so the caller's directory counts.
    let here = std::env::var_os(WD).map_or_else(std::env::current_dir, |wd| Ok(PathBuf::from(wd)))?;
    here.ancestors()
        .map(Path::to_path_buf)
        .chain(built)
        .find(|d| d.join("lab/guest/client-init.sh").exists())
        .ok_or_else(|| Fail("run it inside hither's source tree (lab/guest is not here)".into()))
}
