//! Clients: who mounts a server, and where programs run that use the mount.
//!
//! The kernel's client lives in a guest, so its programs run there; every other client is a command
//! that mounts a directory on the host, inside the laboratory's namespaces. hither is the default of
//! those; `--mount` and `--umount` name any other.

use crate::args::Args;
use crate::clock;
use crate::guest::{self, CLIENT, quote};
use crate::lab::{Fail, Lab, Res};
use crate::process::{command, sh};
use crate::server::Endpoint;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How to mount with a command: words in braces are replaced (see [`Client::fill`]).
#[derive(Clone)]
pub struct Recipe {
    /// Name shown in results.
    pub name: String,
    /// `{opts}` are nfs(5) options of this version and port; `{host}`, `{export}`, `{sub}`, `{mp}`,
    /// `{vers}`, `{port}`, `{mountport}` as expected.
    pub mount: String,
    /// `{mp}`.
    pub umount: String,
}

/// A client.
#[derive(Clone)]
pub enum Client {
    /// The Linux kernel's, in the guest.
    Kernel,
    /// A command on the host.
    Command(Recipe),
    /// No client at all: a directory of the local disk, the judge of the suites themselves.
    Local,
}

impl Client {
    /// The clients named by `--client`, with `--hither`, `--mount` and `--umount` taken into account.
    pub fn from_args(lab: &Lab, args: &mut Args, default: &[&str]) -> Res<Vec<Self>> {
        let hither = args.value("--hither")?.map_or_else(|| hither_binary(lab), PathBuf::from);
        let (mount, umount) = (args.value("--mount")?, args.value("--umount")?);
        let named = args.value("--client-name")?.unwrap_or_else(|| "command".into());
        let names = args.list("--client", if mount.is_some() { &["command"] } else { default })?;
        let bin = quote(&hither.display().to_string());
        let ours = Recipe {
            name: "hither".into(),
            mount: format!("{bin} mount -o {{opts}} {{host}}:{{export}}{{sub}} {{mp}}"),
            umount: format!("{bin} umount {{mp}}"),
        };
        let mut all = vec![];
        for name in names {
            all.push(match name.as_str() {
                "kernel" => Self::Kernel,
                "local" => Self::Local,
                "hither" if hither.exists() => Self::Command(ours.clone()),
                "hither" => {
                    return Err(Fail(format!(
                        "{} does not exist; `cargo build --release -p hither` makes it, --hither FILE names another",
                        hither.display()
                    )));
                }
                "command" => Self::Command(Recipe {
                    name: named.clone(),
                    mount: mount.clone().ok_or_else(|| Fail("--client command needs --mount".into()))?,
                    umount: umount.clone().unwrap_or_else(|| "umount {mp}".into()),
                }),
                other => return Err(Fail(format!("no client {other:?}: hither, kernel, command or local"))),
            });
        }
        Ok(all)
    }

    /// Its name in results and in names of expectation lists.
    pub fn name(&self) -> &str {
        match self {
            Self::Kernel => "kernel",
            Self::Command(r) => &r.name,
            Self::Local => "local",
        }
    }

    /// Mounts `sub` (a directory below the export, "" for all of it) of a server.
    pub fn mount(&self, lab: &Lab, at: &Endpoint, vers: &str, sub: &str) -> Res<Mount> {
        let mp = match self {
            Self::Kernel => {
                guest::start(lab)?;
                PathBuf::from("/mnt/nfs")
            }
            Self::Command(r) => lab.dir("mnt")?.join(format!("{}-{}-{vers}", r.name, at.kind.name())),
            Self::Local => lab.dir("local")?,
        };
        let mount = Mount { client: self.clone(), mp, run: lab.run.clone() };
        match self {
            Self::Local => {}
            Self::Kernel => {
                // A mount that an interrupted run left.
                mount.shell("umount -lf /mnt/nfs 2>/dev/null; true", Duration::from_secs(20))?;
                let template =
                    format!("mount.nfs {{host}}:{{export}}{{sub}} {{mp}} -o {}", options(at, vers, true));
                let words = fill(&template, at, vers, sub, &mount.mp);
                mount.shell(&words, Duration::from_secs(120))?;
            }
            Self::Command(r) => {
                std::fs::create_dir_all(&mount.mp)?;
                let _ = sh(&format!("umount -l {} 2>/dev/null", mount.mp.display()));
                mount.shell(&fill(&r.mount, at, vers, sub, &mount.mp), Duration::from_secs(120))?;
                if !clock::wait_until(Duration::from_secs(10), || mounted(&mount.mp)) {
                    return Err(Fail(format!("{}: nothing is mounted there", mount.mp.display())));
                }
            }
        }
        Ok(mount)
    }
}

/// hither as cargo built it.
fn hither_binary(lab: &Lab) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| lab.repo.join("target"), PathBuf::from);
    std::env::var_os("HITHER").map_or_else(|| target.join("release/hither"), PathBuf::from)
}

/// Options in the words of nfs(5). The ports are given, so no client needs rpcbind; NFSv3 locks
/// stay on the client, because the guest runs no lock daemon.
fn options(at: &Endpoint, vers: &str, kernel: bool) -> String {
    let mut o = format!("vers={vers},port={}", at.port);
    if vers == "3" {
        o += &format!(",mountport={},nolock", at.mountport);
    }
    if kernel {
        o += ",proto=tcp";
        if vers == "3" {
            o += ",mountproto=tcp";
        }
    }
    o
}

fn fill(template: &str, at: &Endpoint, vers: &str, sub: &str, mp: &Path) -> String {
    let sub = match (at.export(vers), sub) {
        (_, "") => String::new(),
        ("/", s) => s.trim_start_matches('/').to_string(),
        (_, s) => format!("/{}", s.trim_start_matches('/')),
    };
    template
        .replace("{opts}", &options(at, vers, false))
        .replace("{host}", at.ip)
        .replace("{export}", at.export(vers))
        .replace("{sub}", &sub)
        .replace("{mp}", &mp.display().to_string())
        .replace("{vers}", vers)
        .replace("{port}", &at.port.to_string())
        .replace("{mountport}", &at.mountport.to_string())
}

fn mounted(mp: &Path) -> bool {
    let line = format!(" {} ", mp.display());
    std::fs::read_to_string("/proc/self/mounts").is_ok_and(|t| t.contains(&line))
}

/// A mounted server. Dropping it does not unmount: say how it should end.
pub struct Mount {
    client: Client,
    /// Where, as its programs see it.
    pub mp: PathBuf,
    run: PathBuf,
}

impl Mount {
    /// A directory on a local disk for programs that use this mount; new and empty.
    pub fn scratch(&self, name: &str) -> Res<PathBuf> {
        let dir = match self.client {
            Client::Kernel => PathBuf::from("/run/tmp").join(name),
            _ => self.run.join("scratch").join(name),
        };
        let q = quote(&dir.display().to_string());
        self.shell(&format!("rm -rf {q}; mkdir -p {q}"), Duration::from_secs(60))?;
        Ok(dir)
    }

    /// Runs a shell command where the mount is; each line of output goes to `line`; its exit code,
    /// 124 when it took longer than `limit`.
    pub fn run(&self, script: &str, limit: Duration, mut line: impl FnMut(&str)) -> Res<i32> {
        match self.client {
            Client::Kernel => CLIENT.run(script, limit, line),
            _ => run_here(script, limit, &mut line),
        }
    }

    /// As [`Self::run`]; output is returned, failure is an error.
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

    /// Unmounts, in order.
    pub fn umount(&self) -> Res<()> {
        let limit = Duration::from_secs(60);
        match &self.client {
            Client::Local => Ok(()),
            Client::Kernel => self.shell("cd /; umount /mnt/nfs", limit).map(drop),
            Client::Command(r) => {
                let mp = self.mp.display().to_string();
                self.shell(&r.umount.replace("{mp}", &mp), limit)?;
                match clock::wait_until(Duration::from_secs(10), || !mounted(&self.mp)) {
                    true => Ok(()),
                    false => Err(Fail(format!("{mp} is still mounted"))),
                }
            }
        }
    }

    /// Takes the mount away whatever state it is in.
    pub fn force_umount(&self) {
        let limit = Duration::from_secs(20);
        let _ = match &self.client {
            Client::Local => Ok(0),
            Client::Kernel => self.run("cd /; umount -lf /mnt/nfs", limit, |_| ()),
            Client::Command(_) => self.run(&format!("umount -l {}", self.mp.display()), limit, |_| ()),
        };
    }
}

/// Runs a shell command in a session of its own; kills all of it when the time is up.
fn run_here(script: &str, limit: Duration, line: &mut dyn FnMut(&str)) -> Res<i32> {
    let mut child = command(&["bash", "-c", &format!("exec 2>&1; {script}")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let out = child.stdout.take().ok_or_else(|| Fail("no output".into()))?;
    let (tx, rx) = mpsc::channel();
    thread::spawn(move || {
        for l in BufReader::new(out).split(b'\n').map_while(Result::ok) {
            if tx.send(String::from_utf8_lossy(&l).into_owned()).is_err() {
                break;
            }
        }
    });
    let end = clock::now() + limit;
    // A daemon that the command leaves behind may keep its output open for ever, so the end of the
    // command is what counts, and output only as long as it comes.
    loop {
        match rx.recv_timeout(Duration::from_millis(50)) {
            Ok(l) => line(&l),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                if child.try_wait()?.is_some() {
                    break;
                }
            }
        }
        if clock::now() > end {
            let group = rustix::process::Pid::from_child(&child);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            // Not waited for: a process stuck in a dead mount would hold us, too.
            clock::wait_until(Duration::from_secs(5), || matches!(child.try_wait(), Ok(Some(_))));
            return Ok(124);
        }
    }
    while let Ok(l) = rx.try_recv() {
        line(&l);
    }
    let left = end.saturating_duration_since(clock::now()).max(Duration::from_secs(1));
    let mut status = None;
    clock::wait_until(left, || {
        status = child.try_wait().ok().flatten();
        status.is_some()
    });
    Ok(status.map_or(124, crate::net::exit_code))
}
