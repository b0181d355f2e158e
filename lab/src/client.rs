//! Clients: the software that mounts a server, and the machine on which programs use the mount.
//!
//! The kernel's client is in a guest, so its programs run there. Every other client is a command
//! that mounts a directory on the host, inside the laboratory's namespaces. hither is the default
//! client. `--mount` and `--umount` name any other.

use crate::args::Args;
use crate::clock;
use crate::guest::{self, CLIENT, quote};
use crate::lab::{Fail, Lab, Res};
use crate::process::command;
use crate::server::Endpoint;
use std::io::{ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// The commands that mount and unmount. Words in braces are replaced.
#[derive(Clone)]
pub struct Recipe {
    /// Name shown in results.
    pub name: String,
    /// Command that mounts. `{opts}` are nfs(5) options of this version and port. Further words are
    /// `{host}`, `{export}`, `{sub}`, `{mp}`, `{vers}`, `{port}` and `{mountport}`.
    pub mount: String,
    /// Command that unmounts `{mp}`.
    pub umount: String,
}

/// The kernel's client in the form of a [`Recipe`].
const KERNEL_MOUNT: &str = "mount.nfs {host}:{export}{sub} {mp} -o {opts}";

/// The completed templates that [`Client::commands`] returns.
pub struct Commands {
    /// Command that mounts.
    pub mount: String,
    /// Command that unmounts.
    pub umount: String,
}

/// A client.
#[derive(Clone)]
pub enum Client {
    /// The Linux kernel's, in the guest.
    Kernel,
    /// A command on the host.
    Command(Recipe),
    /// A command in the guest, whose kernel is older than the host's.
    GuestCommand(Recipe),
    /// No client: a directory of the local disk, which tests the suites themselves.
    Local,
}

impl Client {
    /// The clients named by `--client`, with `--hither`, `--mount` and `--umount` applied.
    pub fn from_args(lab: &Lab, args: &mut Args, default: &[&str]) -> Res<Vec<Self>> {
        if let Some(binary) = args.value("--hither")? {
            lab.set_hither(PathBuf::from(binary));
        }
        let (mount, umount) = (args.value("--mount")?, args.value("--umount")?);
        let named = args.value("--client-name")?.unwrap_or_else(|| "command".into());
        let names = args.list("--client", if mount.is_some() { &["command"] } else { default })?;
        let mut all = vec![];
        for name in names {
            all.push(match name.as_str() {
                "kernel" => Self::Kernel,
                "local" => Self::Local,
                "hither" => Self::hither(lab, false)?,
                "hither-guest" => Self::hither(lab, true)?,
                "command" => Self::Command(Recipe {
                    name: named.clone(),
                    mount: mount.clone().ok_or_else(|| Fail("--client command needs --mount".into()))?,
                    umount: umount.clone().unwrap_or_else(|| "umount {mp}".into()),
                }),
                other => {
                    return Err(Fail(format!(
                        "no client {other:?}: hither, hither-guest, kernel, command or local"
                    )));
                }
            });
        }
        Ok(all)
    }

    /// hither, on the host or in the guest.
    pub fn hither(lab: &Lab, guest: bool) -> Res<Self> {
        let file = lab.hither();
        if !file.exists() {
            return Err(Fail(format!(
                "{} does not exist; `cargo build --release -p hither` makes it, --hither FILE names another",
                file.display()
            )));
        }
        let bin = quote(&file.display().to_string());
        // All mounts of hither append to one log.
        let log = quote(&lab.dir("logs")?.join("hither.log").display().to_string());
        let recipe = Recipe {
            name: if guest { "hither-guest" } else { "hither" }.into(),
            mount: format!("{bin} mount --log {log} -o {{opts}} {{host}}:{{export}}{{sub}} {{mp}}"),
            umount: format!("{bin} umount {{mp}}"),
        };
        Ok(if guest { Self::GuestCommand(recipe) } else { Self::Command(recipe) })
    }

    /// The client's name in results and in names of expectation lists.
    pub fn name(&self) -> &str {
        match self {
            Self::Kernel => "kernel",
            Self::Command(r) | Self::GuestCommand(r) => &r.name,
            Self::Local => "local",
        }
    }

    /// Whether the client's programs run in the guest.
    fn in_guest(&self) -> bool {
        matches!(self, Self::Kernel | Self::GuestCommand(_))
    }

    /// The commands that mount and unmount, for a program that does so itself, and the place where
    /// such a program runs. Mounts nothing.
    pub fn commands(&self, lab: &Lab, ask: &Ask<'_>) -> Res<(Commands, Mount)> {
        let mp = self.mount_point(lab, ask)?;
        let commands = match self {
            Self::Local => return Err(Fail("a local directory is not mounted".into())),
            Self::Kernel => {
                guest::start(lab)?;
                Commands {
                    mount: ask.fill(KERNEL_MOUNT, true, &mp),
                    umount: format!("umount {}", mp.display()),
                }
            }
            Self::Command(r) | Self::GuestCommand(r) => Commands {
                mount: ask.fill(&r.mount, false, &mp),
                umount: r.umount.replace("{mp}", &mp.display().to_string()),
            },
        };
        Ok((commands, Mount { client: self.clone(), mp, run: lab.run.clone() }))
    }

    fn mount_point(&self, lab: &Lab, ask: &Ask<'_>) -> Res<PathBuf> {
        let nth = if ask.nth == 0 { String::new() } else { (ask.nth + 1).to_string() };
        Ok(match self {
            Self::Kernel => PathBuf::from(format!("/mnt/nfs{nth}")),
            // A short path, because the whole path of a socket below it has at most 108 bytes. /mnt
            // is private to the laboratory.
            Self::Command(r) | Self::GuestCommand(r) => {
                PathBuf::from(format!("/mnt/{}-{}-{}{nth}", r.name, ask.at.kind.name(), ask.vers))
            }
            Self::Local => lab.dir("local")?,
        })
    }

    /// Mounts a server.
    pub fn mount(&self, lab: &Lab, ask: &Ask<'_>) -> Res<Mount> {
        let mp = self.mount_point(lab, ask)?;
        if self.in_guest() {
            guest::start(lab)?;
        }
        let mount = Mount { client: self.clone(), mp, run: lab.run.clone() };
        let here = mount.mp.display();
        let limit = Duration::from_secs(120);
        // Removes a mount that an interrupted run left.
        let clear = format!("mkdir -p {here}; umount -l {here} 2>/dev/null; true");
        match self {
            Self::Local => {}
            Self::Kernel => {
                mount.shell(&clear, limit)?;
                mount.shell(
                    &ask.fill("mount.nfs {host}:{export}{sub} {mp} -o {opts}", true, &mount.mp),
                    limit,
                )?;
            }
            Self::GuestCommand(r) => {
                mount.shell("[ -e /dev/fuse ] || mknod /dev/fuse c 10 229", limit)?;
                mount.shell(&clear, limit)?;
                mount.shell(&ask.fill(&r.mount, false, &mount.mp), limit)?;
            }
            Self::Command(r) => {
                mount.shell(&clear, limit)?;
                if r.name == "hither" {
                    install_helpers(lab)?;
                }
                mount.shell(&ask.fill(&r.mount, false, &mount.mp), limit)?;
                if !clock::wait_until(Duration::from_secs(10), || mounted(&mount.mp)) {
                    return Err(Fail(format!("{here}: nothing is mounted there")));
                }
            }
        }
        Ok(mount)
    }
}

/// The export to mount, and the way to reach it.
pub struct Ask<'a> {
    /// The server, direct or through the relay.
    pub at: Endpoint,
    /// "4.2", "4.1", "4.0", "3" or "nqnfs".
    pub vers: &'a str,
    /// A directory below the export. Empty for the whole export.
    pub sub: &'a str,
    /// More options of nfs(5). Empty for none.
    pub opts: &'a str,
    /// Number of the mount among several mounts of this client.
    pub nth: usize,
}

impl<'a> Ask<'a> {
    /// Asks for one mount of the whole export.
    pub fn new(at: Endpoint, vers: &'a str) -> Self {
        Self { at, vers, sub: "", opts: "", nth: 0 }
    }

    /// The mount options. The ports are given, so no client needs rpcbind. NFSv3 locks stay on the
    /// client, because the guest runs no lock daemon.
    fn options(&self, kernel: bool) -> String {
        let mut o = format!("vers={},port={}", self.vers, self.at.port);
        if self.vers == "3" {
            o += &format!(",mountport={},nolock", self.at.mountport);
        }
        if self.vers == "nqnfs" {
            o += &format!(",mountport={}", self.at.mountport);
        }
        if kernel {
            o += if self.vers == "3" { ",proto=tcp,mountproto=tcp" } else { ",proto=tcp" };
        }
        if !self.opts.is_empty() {
            o += &format!(",{}", self.opts);
        }
        o
    }

    fn fill(&self, template: &str, kernel: bool, mp: &Path) -> String {
        let export = self.at.export(self.vers);
        let sub = match (export, self.sub.trim_start_matches('/')) {
            (_, "") => String::new(),
            ("/", s) => s.to_string(),
            (_, s) => format!("/{s}"),
        };
        template
            .replace("{opts}", &self.options(kernel))
            .replace("{host}", self.at.ip)
            .replace("{export}", export)
            .replace("{sub}", &sub)
            .replace("{mp}", &mp.display().to_string())
            .replace("{vers}", self.vers)
            .replace("{port}", &self.at.port.to_string())
            .replace("{mountport}", &self.at.mountport.to_string())
    }
}

/// The names by which mount(8) calls hither (for example for a remount), in the laboratory's own
/// `/sbin`. They refer to the hither that is mounted, not to the one at the start of the namespace.
fn install_helpers(lab: &Lab) -> Res<()> {
    let sbin = std::fs::canonicalize("/sbin")?;
    let ours = format!("overlay {} overlay", sbin.display());
    // In the machine's own `/sbin`, helpers belong to the administrator.
    if !std::fs::read_to_string("/proc/self/mounts")?.contains(&ours) {
        return Ok(());
    }
    let hither = std::path::absolute(lab.hither())?;
    for name in ["mount.hither", "mount.fuse.hither", "umount.hither", "umount.fuse.hither"] {
        let link = sbin.join(name);
        if std::fs::read_link(&link).ok().as_ref() != Some(&hither) {
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(&hither, &link)?;
        }
    }
    Ok(())
}

fn mounted(mp: &Path) -> bool {
    let line = format!(" {} ", mp.display());
    std::fs::read_to_string("/proc/self/mounts").is_ok_and(|t| t.contains(&line))
}

/// A mounted server, shared by the threads that run programs on it. A drop does not unmount. The
/// caller chooses how the mount ends.
pub struct Mount {
    client: Client,
    /// The mount point, as its programs see it.
    pub mp: PathBuf,
    /// The run directory of the laboratory.
    run: PathBuf,
}

impl Mount {
    /// A new, empty directory on a local disk for programs that use this mount.
    pub fn scratch(&self, name: &str) -> Res<PathBuf> {
        let dir = match self.client {
            Client::Kernel | Client::GuestCommand(_) => PathBuf::from("/run/tmp").join(name),
            _ => self.run.join("scratch").join(name),
        };
        let q = quote(&dir.display().to_string());
        self.shell(&format!("rm -rf {q}; mkdir -p {q}"), Duration::from_secs(60))?;
        Ok(dir)
    }

    /// Whether the mount belongs to the Linux kernel's client.
    pub fn is_kernel(&self) -> bool {
        matches!(self.client, Client::Kernel)
    }

    /// Runs a shell command on the mount's machine. Passes each line of output to `line`. Returns
    /// the exit code, or 124 after `limit`.
    pub fn run(&self, script: &str, limit: Duration, mut line: impl FnMut(&str)) -> Res<i32> {
        match self.client {
            Client::Kernel | Client::GuestCommand(_) => CLIENT.run(script, limit, line),
            _ => run_here(script, limit, &mut line),
        }
    }

    /// As [`Self::run`]. Returns the output. A failure is an error.
    pub fn shell(&self, script: &str, limit: Duration) -> Res<String> {
        let mut all = String::new();
        let code = self.run(script, limit, |l| {
            all.push_str(l);
            all.push('\n');
        })?;
        if code != 0 {
            return Err(Fail(format!("{script}: code {code}: {}", all.trim())));
        }
        Ok(all)
    }

    /// Unmounts in an orderly way.
    pub fn umount(&self) -> Res<()> {
        let limit = Duration::from_secs(60);
        match &self.client {
            Client::Local => Ok(()),
            Client::Kernel => self.shell(&format!("cd /; umount {}", self.mp.display()), limit).map(drop),
            Client::GuestCommand(r) => {
                self.shell(&r.umount.replace("{mp}", &self.mp.display().to_string()), limit).map(drop)
            }
            Client::Command(r) => {
                let mp = self.mp.display().to_string();
                self.shell(&r.umount.replace("{mp}", &mp), limit)?;
                if clock::wait_until(Duration::from_secs(10), || !mounted(&self.mp)) {
                    Ok(())
                } else {
                    Err(Fail(format!("{mp} is still mounted")))
                }
            }
        }
    }

    /// Removes the mount in every state.
    pub fn force_umount(&self) {
        let limit = Duration::from_secs(20);
        let _ = match &self.client {
            Client::Local => Ok(0),
            Client::Kernel => self.run(&format!("umount -lf {}", self.mp.display()), limit, |_| ()),
            Client::Command(_) | Client::GuestCommand(_) => {
                self.run(&format!("umount -l {}", self.mp.display()), limit, |_| ())
            }
        };
    }
}

/// Passes on the complete lines in a pipe and keeps the beginning of the next one. Returns false at
/// the end of the pipe.
fn drain(out: &mut impl Read, rest: &mut Vec<u8>, line: &mut dyn FnMut(&str)) -> Res<bool> {
    let mut buffer = [0; 1 << 16];
    loop {
        match out.read(&mut buffer) {
            Ok(0) => return Ok(false),
            Ok(n) => rest.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e.into()),
        }
        while let Some(end) = rest.iter().position(|b| *b == b'\n') {
            let mut whole: Vec<u8> = rest.drain(..=end).collect();
            whole.pop();
            line(&String::from_utf8_lossy(&whole));
        }
    }
}

/// Runs a shell command in its own session. Kills the whole session when the time is up.
fn run_here(script: &str, limit: Duration, line: &mut dyn FnMut(&str)) -> Res<i32> {
    let mut child = command(&["bash", "-c", &format!("exec 2>&1; {script}")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let mut out = child.stdout.take().ok_or_else(|| Fail("no output".into()))?;
    rustix::io::ioctl_fionbio(&out, true)?;
    let mut rest = vec![];
    let end = clock::now() + limit;
    // A daemon that the command leaves may keep the output open. The end of the command therefore
    // counts. The pipe contains all output of the command by then.
    loop {
        let ended = child.try_wait()?.is_some();
        if !drain(&mut out, &mut rest, line)? || ended {
            break;
        }
        let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let mut fds = [rustix::event::PollFd::new(&out, rustix::event::PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, Some(&wait));
        if clock::now() > end {
            let group = rustix::process::Pid::from_child(&child);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            // The wait is bounded, because a process stuck in a dead mount would block this one.
            clock::wait_until(Duration::from_secs(5), || matches!(child.try_wait(), Ok(Some(_))));
            return Ok(124);
        }
    }
    if !rest.is_empty() {
        line(&String::from_utf8_lossy(&rest));
    }
    let left = end.saturating_duration_since(clock::now()).max(Duration::from_secs(1));
    let mut status = None;
    clock::wait_until(left, || {
        status = child.try_wait().ok().flatten();
        status.is_some()
    });
    Ok(status.map_or(124, crate::net::exit_code))
}
