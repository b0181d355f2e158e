//! User-mode Linux guests: a real kernel as an ordinary process.
//!
//! A guest's root is the host's file system (hostfs), so the repository, Python and every tool are
//! present without an image. A guest with the newer kernel has the newer root instead (see
//! [`crate::release`]). Its init starts an agent that runs commands sent over TCP. The guest
//! needs no other access. One guest has the kernel's NFS client. Another guest (see
//! [`crate::server`]) has the kernel's NFS server.

use crate::args::Args;
use crate::clock;
use crate::lab::{Fail, GUEST_IP, Lab, Res};
use crate::process::{Daemon, command, sh};
use crate::release::{Record, Release, in_root, newer_root};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Port of the agent in every guest.
const AGENT_PORT: u16 = 7000;

/// Size of the disk of the client's guest.
const FSCACHE_BYTES: u64 = 1 << 30;

/// The parts of one guest.
pub struct Boot<'a> {
    /// Release of the kernel.
    pub release: Release,
    /// Init script below `lab/guest`.
    pub init: &'a str,
    /// Tap device of the bridge.
    pub tap: &'a str,
    /// Address inside the laboratory's network.
    pub ip: &'a str,
    /// Memory in MiB.
    pub mem_mib: u32,
    /// Disk images, in the order ubda, ubdb and so on.
    pub disks: Vec<PathBuf>,
    /// Variables for the init script, as NAME=VALUE.
    pub env: Vec<(String, String)>,
}

impl Boot<'_> {
    /// The command that boots the guest.
    pub fn command(&self, lab: &Lab) -> Res<Command> {
        let mods = lab.dir("mods/lib")?;
        let uml = Path::new("/usr/lib/uml/modules");
        if self.release == Release::Installed && !uml.exists() {
            return Err(Fail("no kernel for the guests; install user-mode-linux".into()));
        }
        // The path leads to the modules of either release, in the root of that release.
        if fs::symlink_metadata(mods.join("modules")).is_err() {
            std::os::unix::fs::symlink(uml, mods.join("modules"))?;
        }
        let mut c = command(&["linux.uml"]);
        c.env("LD_PRELOAD", shim(lab)?);
        c.arg(format!("mem={}M", self.mem_mib));
        c.args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw", "quiet"]);
        // A periodic timer. With the one-shot timer a guest under load may lose a wake-up, and its
        // clock then stands still. Leases and file times stop with the clock.
        c.args(["nohz=off", "highres=off"]);
        c.arg(format!("init={}", lab.file("guest").join(self.init).display()));
        // The same MAC address at every boot, as on a real machine. The other machines remember the
        // address.
        let last = self.ip.rsplit('.').next().unwrap_or("9");
        c.arg(format!("vec0:transport=tap,ifname={},mac=02:00:00:00:98:0{last},depth=128,gro=1", self.tap));
        for (i, disk) in self.disks.iter().enumerate() {
            c.arg(format!("ubd{i}={}", disk.display()));
        }
        c.args(["con=null", "con0=null,fd:1"]);
        c.arg(format!("LAB={}", lab.repo.join("lab").display()));
        c.arg(format!("RUN={}", lab.run.display()));
        c.arg(format!("MYIP={}", self.ip));
        c.args(self.env.iter().map(|(k, v)| format!("{k}={v}")));
        Ok(match self.release {
            Release::Installed => c,
            Release::Newer => {
                let disks = self.disks.iter().filter_map(|disk| disk.parent());
                let disks: Vec<PathBuf> = disks.map(Path::to_path_buf).collect();
                in_root(lab, &newer_root()?, "", &disks, &c)
            }
        })
    }
}

/// A library that lets the guests run on processors with large register sets. The guest kernel's
/// buffer for ptrace's register sets is smaller than the set that the host's kernel writes.
fn shim(lab: &Lab) -> Res<PathBuf> {
    let so = lab.run.join("xstate_shim.so");
    let source = lab.file("guest/xstate_shim.c");
    let fresh = |p: &PathBuf| fs::metadata(p).and_then(|m| m.modified()).ok();
    if fresh(&so) < fresh(&source) {
        let part = so.with_extension("part");
        sh(&format!("gcc -O2 -shared -fPIC -o '{}' '{}'", part.display(), source.display()))?;
        fs::rename(part, &so)?;
    }
    Ok(so)
}

/// The agent of one guest.
pub struct Agent {
    /// Address of the agent.
    pub ip: &'static str,
}

impl Agent {
    /// Whether the agent answers.
    pub fn alive(&self) -> bool {
        self.run("true", Duration::from_secs(5), |_| ()).is_ok_and(|code| code == 0)
    }

    /// Runs a shell command in the guest. Passes every line of output to `line`. Returns the exit
    /// code.
    pub fn run(&self, script: &str, limit: Duration, mut line: impl FnMut(&str)) -> Res<i32> {
        let addr: SocketAddr = format!("{}:{AGENT_PORT}", self.ip)
            .parse()
            .map_err(|_| Fail(format!("{}: not an address", self.ip)))?;
        let lost = |e: std::io::Error| Fail(format!("the guest at {} does not answer: {e}", self.ip));
        let mut stream = TcpStream::connect_timeout(&addr, Duration::from_secs(2)).map_err(lost)?;
        stream.set_read_timeout(Some(limit + Duration::from_secs(20)))?;
        writeln!(stream, "{}", json!({"script": script, "limit_s": limit.as_secs()}))?;
        for text in BufReader::new(stream).lines() {
            let frame: Value = serde_json::from_str(&text.map_err(lost)?)?;
            if let Some(out) = frame["line"].as_str() {
                line(out);
            }
            if let Some(code) = frame["code"].as_i64() {
                return Ok(code as i32);
            }
        }
        Err(Fail(format!("the guest at {} hung up", self.ip)))
    }
}

/// The agent of the guest with the kernel's NFS client.
pub const CLIENT: Agent = Agent { ip: GUEST_IP };

fn client_daemon(lab: &Lab) -> Daemon {
    Daemon::at(&lab.run, "guest")
}

/// Boots the guest with the kernel's NFS client. Does nothing when the guest runs with the chosen
/// kernel.
pub fn start(lab: &Lab) -> Res<()> {
    let daemon = client_daemon(lab);
    let record = Record::at(&lab.run, "guest");
    let chosen = lab.releases.kernel;
    if daemon.pid().is_some() && chosen.is_none_or(|release| release == record.last()) && CLIENT.alive() {
        return Ok(());
    }
    daemon.stop(Duration::from_millis(100))?;
    let release = chosen.unwrap_or_default();
    // A disk for FS-Cache. `guest/fscache.sh` makes a file system on it, and the disk is sparse
    // until then.
    let disk = lab.run.join("fscache.img");
    fs::OpenOptions::new().create(true).truncate(false).write(true).open(&disk)?.set_len(FSCACHE_BYTES)?;
    let disks = vec![disk];
    let init = "client-init.sh";
    let boot = Boot { release, init, tap: "tapc", ip: GUEST_IP, mem_mib: 2000, disks, env: vec![] };
    let console = lab.run.join("guest.console");
    daemon.start(boot.command(lab)?, &console)?;
    record.note(release)?;
    if !clock::wait_until(Duration::from_secs(300), || daemon.pid().is_none() || CLIENT.alive())
        || daemon.pid().is_none()
    {
        return Err(Fail(format!("the client guest did not come up; see {}", console.display())));
    }
    Ok(())
}

/// Ends the guest.
pub fn stop(lab: &Lab) -> Res<()> {
    let daemon = client_daemon(lab);
    match daemon.pid() {
        // The guest's state is not needed, so its process is killed.
        Some(_) => daemon.kill_group(),
        None => Ok(()),
    }
}

/// `guest start|stop|exec|run`.
pub fn main(lab: &Lab, args: &mut Args) -> Res<ExitCode> {
    match args.word().as_deref() {
        Some("start") => start(lab)?,
        Some("stop") => stop(lab)?,
        Some("exec") => {
            start(lab)?;
            let words: Vec<String> = args.rest().iter().map(|w| quote(w)).collect();
            return run_printing(&words.join(" "));
        }
        Some("run") => {
            let file = args.value("--script")?.ok_or_else(|| Fail("guest run --script FILE".into()))?;
            let file = fs::canonicalize(&file).map_err(|e| Fail(format!("{file}: {e}")))?;
            start(lab)?;
            return run_printing(&format!("bash {}", quote(&file.display().to_string())));
        }
        _ => return Err(Fail("guest start | stop | exec -- CMD | run --script FILE".into())),
    }
    Ok(ExitCode::SUCCESS)
}

fn run_printing(script: &str) -> Res<ExitCode> {
    let code = CLIENT.run(script, Duration::from_secs(3 * 3600), |l| println!("{l}"))?;
    Ok(ExitCode::from(code.clamp(0, 255) as u8))
}

/// Quotes a word for a shell.
pub fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
