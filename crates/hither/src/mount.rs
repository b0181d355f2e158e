//! `hither mount`: checks the local conditions of a mount, starts the daemon and reports the
//! result.
//!
//! The command starts itself again as the daemon, in a session of its own. It reads from a pipe
//! (the daemon's standard output) until the mount is usable or has failed. If the command is killed
//! before, the daemon ends too. Once the mount is usable, the two processes are independent.

use crate::cli::MountArgs;
use crate::control;
use crate::daemon;
use crate::exit::{self, Failure};
use crate::mountinfo;
use crate::options::Wanted;
use crate::source::Source;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount_remount};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A checked mount request.
#[derive(Debug, Clone)]
pub struct Job {
    /// The export.
    pub source: Source,
    /// The mount point, absolute.
    pub dir: PathBuf,
    /// Its options.
    pub wanted: Wanted,
    /// The name of the client at the server, if a restart keeps it.
    pub client_name: Option<String>,
}

/// Messages of the daemon to the command, one JSON value a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Message {
    /// The mount is usable.
    Ready,
    /// The daemon continues to try in the background (`bg`), for this reason.
    Background(String),
    /// A note for the waiting user.
    Note(String),
    /// The mount failed: exit code and line.
    Failed(u8, String),
}

/// Mounts an export.
///
/// # Errors
/// One line for each possible fault, with the exit codes of mount(8).
pub fn run(args: &MountArgs, program: &str) -> Result<(), Failure> {
    let source = Source::parse(&args.source).map_err(Failure::usage)?;
    let wanted = Wanted::parse(&args.options, args.sloppy).map_err(Failure::usage)?;
    let dir =
        std::path::absolute(&args.dir).map_err(|e| Failure::usage(format!("{}: {e}", args.dir.display())))?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::usage("mounting needs root: run it with sudo"));
    }
    if wanted.remount {
        return remount(&dir, wanted.flags, args.fake);
    }
    check_fuse_device()?;
    if !args.fake {
        detach_dead(&dir);
    }
    let dir = match check_dir(&dir, &source) {
        // nfs(5), `bg`: a missing mount point counts like a server that does not answer.
        Err(NoDir::Missing(_)) if wanted.background => dir,
        other => other.map_err(Failure::from)?,
    };
    if args.fake {
        return Ok(());
    }
    let job = Job { source, dir, wanted, client_name: None };
    if args.foreground || args.daemon { daemon::run(job, args) } else { start_daemon(&job, args, program) }
}

/// Checks for FUSE in the kernel and its device. A fault is reported before the server is
/// contacted.
fn check_fuse_device() -> Result<(), Failure> {
    match std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Ok(()),
        Err(e) => Err(Failure::system(match (e.kind(), e.raw_os_error()) {
            (ErrorKind::NotFound, _) => "there is no /dev/fuse: load the module with `modprobe fuse`, or give the \
                                         container the device (docker run --device /dev/fuse)"
                .into(),
            (ErrorKind::PermissionDenied, _) => "/dev/fuse may not be opened: the container needs the device and \
                                                 CAP_SYS_ADMIN (docker run --device /dev/fuse --cap-add SYS_ADMIN)"
                .into(),
            (_, Some(libc::ENODEV | libc::ENXIO)) => {
                "this kernel has no FUSE: load the module with `modprobe fuse`".into()
            }
            _ => format!("/dev/fuse: {e}"),
        })),
    }
}

/// Why a directory cannot be a mount point.
#[derive(Debug, PartialEq, Eq)]
pub enum NoDir {
    /// It does not exist.
    Missing(String),
    /// Another reason.
    Unfit(String),
}

impl From<NoDir> for Failure {
    fn from(why: NoDir) -> Self {
        match why {
            NoDir::Missing(line) | NoDir::Unfit(line) => Failure::mount(line),
        }
    }
}

/// Detaches mounts of hither on a directory if their daemon has ended, because no program can use
/// them. They would prevent mount(8), and a new daemon, from mounting.
fn detach_dead(dir: &Path) {
    while let Ok(mounts) = mountinfo::read()
        && let Ok(real) = mountinfo::resolve(&mounts, dir)
        && let Some(dead) = mountinfo::at(&mounts, &real).filter(|mount| is_dead(mount))
    {
        // Calls that wait for the daemon end.
        let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH | UnmountFlags::FORCE;
        if rustix::mount::unmount(&real, flags).is_err() {
            return;
        }
        eprintln!("hither: {}: detached the mount of a daemon that has gone", real.display());
        for inner in mounts.iter().filter(|m| m.id != dead.id && m.point.starts_with(&real)) {
            if inner.point != real {
                eprintln!("hither: {} was mounted inside it and is detached as well", inner.point.display());
            }
        }
    }
}

/// Whether the mount is one of hither without a daemon. The check does not wait for a running
/// daemon, because its server may be silent.
fn is_dead(mount: &mountinfo::Mount) -> bool {
    let gone = || std::fs::metadata(&mount.point).is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN));
    mount.is_ours() && (control::is_stuck(mount.dev) || !control::is_served(mount.dev) && gone())
}

/// Checks the mount point. Returns its path without links.
pub fn check_dir(dir: &Path, source: &Source) -> Result<PathBuf, NoDir> {
    let shown = dir.display();
    let mounts = mountinfo::read().map_err(|e| NoDir::Unfit(format!("/proc/self/mountinfo: {e}")))?;
    let missing =
        || NoDir::Missing(format!("mount point {shown} does not exist: create it (mkdir -p {shown})"));
    let real = mountinfo::resolve(&mounts, dir).map_err(|e| match e.kind() {
        ErrorKind::NotFound => missing(),
        ErrorKind::NotADirectory => NoDir::Unfit(format!("mount point {shown} is not a directory")),
        _ => NoDir::Unfit(format!("mount point {shown}: {e}")),
    })?;
    if let Some(mount) = mountinfo::at(&mounts, &real).filter(|mount| mount.is_ours()) {
        let what = if mount.source == source.shown().as_str() { "already mounted" } else { "busy" };
        return Err(NoDir::Unfit(format!(
            "{shown} is {what}: {} is mounted there (hither umount {shown})",
            mount.source.to_string_lossy()
        )));
    }
    match std::fs::metadata(&real) {
        Ok(meta) if meta.is_dir() => Ok(real),
        Ok(_) => Err(NoDir::Unfit(format!("mount point {shown} is not a directory"))),
        Err(e) if e.kind() == ErrorKind::NotFound => Err(missing()),
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => Err(NoDir::Unfit(format!(
            "{shown} is the mount of a daemon that has gone: unmount it first (umount {shown})"
        ))),
        Err(e) => Err(NoDir::Unfit(format!("mount point {shown}: {e}"))),
    }
}

/// Changes the flags of an existing mount.
fn remount(dir: &Path, flags: MountFlags, fake: bool) -> Result<(), Failure> {
    let shown = dir.display();
    let mounts = mountinfo::read().map_err(|e| Failure::system(format!("/proc/self/mountinfo: {e}")))?;
    let real = mountinfo::resolve(&mounts, dir).map_err(|e| Failure::mount(format!("{shown}: {e}")))?;
    match mountinfo::at(&mounts, &real) {
        Some(mount) if mount.is_ours() && fake => Ok(()),
        Some(mount) if mount.is_ours() => mount_remount(&real, flags, c"").map_err(|e| match e {
            Errno::BUSY => Failure::mount(format!("{shown} is busy: files are open for writing")),
            e => Failure::mount(format!("remounting {shown}: {e}")),
        }),
        _ => Err(Failure::mount(format!("{shown} is not a mount of hither: mount it without 'remount'"))),
    }
}

/// Starts the daemon and waits for its message.
fn start_daemon(job: &Job, args: &MountArgs, program: &str) -> Result<(), Failure> {
    let mut child = daemon_command(job, args)?
        .spawn()
        .map_err(|e| Failure::system(format!("the daemon cannot be started: {e}")))?;
    if let Some(pipe) = child.stdout.take() {
        for line in BufReader::new(pipe).lines() {
            let Ok(line) = line else { break };
            match serde_json::from_str(&line) {
                Ok(Message::Ready) => return Ok(()),
                Ok(Message::Background(why)) => {
                    eprintln!("{program}: {why}; trying again in the background");
                    return Ok(());
                }
                Ok(Message::Note(note)) => eprintln!("{program}: {note}"),
                Ok(Message::Failed(code, line)) => return Err(Failure { code, line }),
                Err(_) => {}
            }
        }
    }
    let end = child.wait().map_err(|e| Failure::system(format!("the daemon: {e}")))?;
    let how = match (end.signal(), end.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (_, Some(code)) => format!("ended with status {code}"),
        _ => "ended".to_string(),
    };
    Err(Failure {
        code: exit::SYSTEM,
        line: format!("the daemon {how} before the mount was usable; see the log"),
    })
}

/// The command line of the daemon for the job. `ps` shows the source and the mount point.
fn daemon_command(job: &Job, args: &MountArgs) -> Result<Command, Failure> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("hither").args(["mount", "--daemon"]);
    if args.sloppy {
        command.arg("--sloppy");
    }
    for list in args.options.iter().filter(|list| !list.is_empty()) {
        command.arg("-o").arg(list);
    }
    if let Some(file) = &args.log.file {
        let file = std::path::absolute(file)
            .map_err(|e| Failure::usage(format!("log file {}: {e}", file.display())))?;
        command.arg("--log").arg(file);
    }
    if let Some(level) = &args.log.level {
        command.arg("--log-level").arg(level);
    }
    if args.log.verbose {
        command.arg("--verbose");
    }
    if let Some(addr) = args.dashboard {
        command.arg(format!("--dashboard={addr}"));
    }
    command.arg("--").arg(job.source.shown()).arg(&job.dir);
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> Source {
        Source::parse("s:/x").unwrap()
    }

    #[test]
    fn mount_points_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        assert_eq!(check_dir(dir.path(), &source()), Ok(real.clone()));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(check_dir(&link, &source()), Ok(real));
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        for (path, part) in [
            (dir.path().join("none"), "does not exist: create it"),
            (file.clone(), "is not a directory"),
            (file.join("below"), "is not a directory"),
        ] {
            let line = Failure::from(check_dir(&path, &source()).unwrap_err()).line;
            assert!(line.contains(part), "{line}");
        }
    }

    /// The command line of the daemon has the options of the mount command.
    #[test]
    fn daemon_gets_same_options() {
        let args = MountArgs {
            source: "s:/x".into(),
            dir: "/mnt".into(),
            options: vec!["ro".into(), "vers=3".into()],
            foreground: false,
            log: crate::cli::LogArgs { file: Some("/var/l".into()), level: None, verbose: true },
            daemon: false,
            fake: false,
            sloppy: true,
            dashboard: Some("127.0.0.1:9311".parse().unwrap()),
        };
        let job = Job { source: source(), dir: "/mnt".into(), wanted: Wanted::default(), client_name: None };
        let command = daemon_command(&job, &args).unwrap();
        let words: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        assert_eq!(
            words.join(" "),
            "mount --daemon --sloppy -o ro -o vers=3 --log /var/l --verbose --dashboard=127.0.0.1:9311 -- s:/x /mnt"
        );
    }

    #[test]
    fn messages_survive_the_pipe() {
        let message = Message::Failed(32, "a \"line\"\nwith two".into());
        let text = serde_json::to_string(&message).unwrap();
        assert!(!text.contains('\n'));
        assert_eq!(serde_json::from_str::<Message>(&text).unwrap(), message);
    }
}
