//! The NFS servers: nfs-ganesha and hither on the host's end of the bridge, and the kernel's nfsd
//! in a guest.
//!
//! All servers keep the state that must survive a restart (client records, exported data) below the
//! run directory. `kill9` followed by `start` is therefore a real restart.

use crate::args::Args;
use crate::clock;
use crate::guest::{Agent, Boot};
use crate::lab::{Fail, HOST_IP, KNFSD_IP, Lab, Res};
use crate::process::{Daemon, command, sh};
use crate::release::{GANESHA, KERNEL, Record, Release, in_root, newer_root};
use rustix::process::Signal;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Grace period after a restart in seconds. It is short, so that tests are short.
const GRACE_S: u64 = 10;
/// Lease in seconds. Ganesha and knfsd accept a shorter grace period with a warning.
const LEASE_S: u64 = 30;

/// Kinds of servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// nfs-ganesha with FSAL_VFS.
    Ganesha,
    /// The Linux kernel's nfsd over ext4.
    Knfsd,
    /// `hither serve` over a directory of the host.
    Hither,
    /// `hither gateway` before [`Kind::Ganesha`].
    Gateway,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Ganesha, Self::Knfsd, Self::Hither, Self::Gateway];

    /// The server with this name on the command line.
    pub fn parse(name: &str) -> Res<Self> {
        Self::ALL
            .into_iter()
            .find(|k| k.name() == name)
            .ok_or_else(|| Fail(format!("no server {name:?}: ganesha, knfsd, hither or gateway")))
    }

    /// The server's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ganesha => "ganesha",
            Self::Knfsd => "knfsd",
            Self::Hither => "hither",
            Self::Gateway => "gateway",
        }
    }

    /// The address of the server itself.
    pub fn direct(self) -> Endpoint {
        let (ip, port, mountport) = match self {
            Self::Ganesha => (HOST_IP, 2049, 20048),
            Self::Knfsd => (KNFSD_IP, 2049, 20048),
            Self::Hither => (HOST_IP, 5049, 5049),
            Self::Gateway => (HOST_IP, 7049, 7049),
        };
        Endpoint { kind: self, ip, port, mountport }
    }

    /// The address of the relay before the server.
    pub fn relayed(self) -> Endpoint {
        let port = match self {
            Self::Ganesha => 3049,
            Self::Knfsd => 4049,
            Self::Hither => 6049,
            Self::Gateway => 8049,
        };
        Endpoint { kind: self, ip: HOST_IP, port, mountport: port - 1 }
    }
}

/// The way of a client to a server.
#[derive(Clone, Copy, Debug)]
pub struct Endpoint {
    /// The server at this address.
    pub kind: Kind,
    /// Address.
    pub ip: &'static str,
    /// NFS port.
    pub port: u16,
    /// MOUNT port, for NFSv3 and NQNFS.
    pub mountport: u16,
}

impl Endpoint {
    /// The path to mount for a protocol version such as "4.2" or "3".
    pub fn export(&self, vers: &str) -> &'static str {
        match (self.kind, vers) {
            (Kind::Ganesha, _) => "/export",
            (Kind::Knfsd, "3") => "/srv",
            (Kind::Knfsd | Kind::Hither | Kind::Gateway, _) => "/",
        }
    }
}

/// The path of [`Server::export_read_only`] for NFSv4.
pub const READ_ONLY: &str = "/read-only";

/// One server of a laboratory.
pub struct Server<'a> {
    lab: &'a Lab,
    kind: Kind,
}

/// The configuration of a server. `restart` uses that of the last `start`.
#[derive(Clone, PartialEq, Eq)]
pub struct Options {
    /// knfsd: `sync` or `async` export.
    pub mode: String,
    /// Delegations offered: "none", "R", "W", "RW", or "all" for those that a server grants only on
    /// request. knfsd knows only all or none. FSAL_VFS of ganesha 4.3 grants none in any case.
    pub delegations: String,
    /// knfsd: path of an ext4 image or disk to serve instead of its own. Empty for its own.
    pub disk: String,
}

impl Default for Options {
    fn default() -> Self {
        Self { mode: "sync".into(), delegations: "RW".into(), disk: String::new() }
    }
}

impl<'a> Server<'a> {
    /// A handle for the server. Starts nothing.
    pub fn new(lab: &'a Lab, kind: Kind) -> Self {
        Self { lab, kind }
    }

    fn daemon(&self) -> Daemon {
        Daemon::at(&self.lab.run.join(self.kind.name()), self.kind.name())
    }

    /// Whether the server's process lives.
    pub fn running(&self) -> bool {
        self.daemon().pid().is_some()
    }

    /// The release that the command line chooses.
    fn chosen(&self) -> Option<Release> {
        match self.kind {
            Kind::Ganesha => self.lab.releases.ganesha,
            Kind::Knfsd => self.lab.releases.kernel,
            Kind::Hither | Kind::Gateway => None,
        }
    }

    /// The name of the server with the release of its last start, such as "knfsd-6.1".
    pub fn label(&self) -> String {
        let name = self.kind.name();
        match self.kind {
            Kind::Ganesha => format!("{name}-{}", GANESHA.of(self.record().last())),
            Kind::Knfsd => format!("{name}-{}", KERNEL.of(self.record().last())),
            Kind::Hither | Kind::Gateway => name.into(),
        }
    }

    fn record(&self) -> Record {
        Record::at(&self.lab.run.join(self.kind.name()), self.kind.name())
    }

    /// Starts the server. With `settle`, waits until its grace period is over. A server that runs
    /// with another release than the chosen one is stopped before.
    pub fn start(&self, options: &Options, settle: bool) -> Res<()> {
        if self.running() {
            if self.chosen().is_none_or(|release| release == self.record().last()) {
                return Ok(());
            }
            self.stop()?;
        }
        self.start_release(self.chosen().unwrap_or_default(), options, settle)
    }

    fn start_release(&self, release: Release, options: &Options, settle: bool) -> Res<()> {
        let dir = self.lab.dir(self.kind.name())?;
        let c = match self.kind {
            Kind::Ganesha => self.ganesha(release, options)?,
            Kind::Knfsd => self.knfsd(release, options)?,
            Kind::Hither => self.hither(options)?,
            Kind::Gateway => {
                self.origin().start(options, settle)?;
                self.gateway()?
            }
        };
        self.record().note(release)?;
        fs::write(
            dir.join("options"),
            format!("{} {} {}\n", options.mode, options.delegations, options.disk),
        )?;
        let log = dir.join("console");
        self.daemon().start(c, &log)?;
        if self.kind == Kind::Hither {
            self.start_agent()?;
        }
        let at = self.kind.direct();
        let agent = Agent { ip: KNFSD_IP };
        let up = || listens(&at) && (self.kind != Kind::Knfsd || agent.alive());
        let limit = Duration::from_secs(300);
        if !clock::wait_until(limit, || !self.running() || up()) || !self.running() {
            return Err(Fail(format!("{} did not come up; see {}", self.kind.name(), log.display())));
        }
        if settle {
            clock::pause(Duration::from_secs(GRACE_S + 1));
        }
        Ok(())
    }

    /// Ends the server in an orderly way. Succeeds when it does not run.
    pub fn stop(&self) -> Res<()> {
        if !self.running() {
            return self.stop_rpcbind();
        }
        match self.kind {
            Kind::Gateway => {
                self.daemon().stop(Duration::from_secs(30))?;
                self.origin().stop()
            }
            Kind::Ganesha | Kind::Hither => {
                self.daemon().stop(Duration::from_secs(15))?;
                self.agent().stop(Duration::from_secs(1))?;
                self.stop_rpcbind()
            }
            Kind::Knfsd => {
                let agent = Agent { ip: KNFSD_IP };
                let halt = "exportfs -au; rpc.nfsd 0; cd /; umount /srv /var/lib/nfs; sync; setsid sh -c 'sleep 0.5; halt -f' >/dev/null 2>&1 &";
                let _ = agent.run(halt, Duration::from_secs(20), |_| ());
                clock::wait_until(Duration::from_secs(10), || !self.running());
                self.daemon().stop(Duration::from_secs(1))
            }
        }
    }

    /// Kills the server as a power failure would: it writes nothing afterwards.
    pub fn kill9(&self) -> Res<()> {
        self.daemon().kill_group()
    }

    /// Kills the server and starts it again with the same configuration. Returns when it listens.
    pub fn restart(&self) -> Res<()> {
        if self.running() {
            self.kill9()?;
        }
        let release = self.chosen().unwrap_or_else(|| self.record().last());
        self.start_release(release, &self.last_options(), false)
    }

    /// Freezes or thaws the server. A frozen server keeps its connections and answers nothing.
    pub fn freeze(&self, frozen: bool) -> Res<()> {
        let daemon = self.daemon();
        daemon.signal(if frozen { Signal::STOP } else { Signal::CONT })?;
        // The threads go on answering until one of them is scheduled and takes the signal.
        if frozen && !clock::wait_until(Duration::from_secs(60), || daemon.stopped()) {
            return Err(Fail(format!("{} does not stop", self.kind.name())));
        }
        Ok(())
    }

    /// The configuration of the last start.
    pub fn last_options(&self) -> Options {
        let file = self.lab.run.join(self.kind.name()).join("options");
        let text = fs::read_to_string(file).unwrap_or_default();
        let mut words = text.trim().splitn(3, ' ').map(String::from);
        match (words.next(), words.next()) {
            (Some(mode), Some(delegations)) => {
                Options { mode, delegations, disk: words.next().unwrap_or_default() }
            }
            _ => Options::default(),
        }
    }

    /// The directory of the exported files on this machine. knfsd has none.
    pub fn export_dir(&self) -> Res<PathBuf> {
        let kind = if self.kind == Kind::Gateway { Kind::Ganesha } else { self.kind };
        self.lab.dir(&format!("{}/export", kind.name()))
    }

    /// Exports the directory once more, read-only, at [`READ_ONLY`]. Clients may see that a moment
    /// later. ganesha always exports it. Returns whether the server can.
    pub fn export_read_only(&self) -> Res<bool> {
        match self.kind {
            Kind::Hither => {
                let dir = self.export_dir()?;
                let (dir, at) = (dir.display(), format!("{}{READ_ONLY}", dir.display()));
                sh(&format!("mkdir -p '{at}'; mountpoint -q '{at}' || mount --bind '{dir}' '{at}'"))?;
                self.write_exports(&format!("{at} *(ro,no_root_squash)\n"))?;
                self.daemon().signal(Signal::HUP)?;
            }
            Kind::Knfsd => self.in_guest(&format!(
                "set -e; mkdir -p /srv{READ_ONLY}; mountpoint -q /srv{READ_ONLY} || mount --bind /srv /srv{READ_ONLY}
                 exportfs -i -o ro,no_root_squash,no_subtree_check,fsid=1,insecure '*:/srv{READ_ONLY}'"
            ))?,
            Kind::Ganesha | Kind::Gateway => {}
        }
        Ok(self.kind != Kind::Gateway)
    }

    /// Ends [`Self::export_read_only`].
    pub fn unexport_read_only(&self) -> Res<()> {
        match self.kind {
            Kind::Hither => {
                self.write_exports("")?;
                self.daemon().signal(Signal::HUP)?;
                let at = format!("{}{READ_ONLY}", self.export_dir()?.display());
                sh(&format!("umount -l '{at}'; rmdir '{at}'")).map(drop)
            }
            Kind::Knfsd => self.in_guest(&format!(
                "set -e; exportfs -u '*:/srv{READ_ONLY}'; exportfs -f
                 umount -l /srv{READ_ONLY}; rmdir /srv{READ_ONLY}"
            )),
            Kind::Ganesha | Kind::Gateway => Ok(()),
        }
    }

    /// Runs a script in the guest of knfsd.
    fn in_guest(&self, script: &str) -> Res<()> {
        let mut said = String::new();
        match (Agent { ip: KNFSD_IP }).run(script, Duration::from_secs(30), |line| said = line.into())? {
            0 => Ok(()),
            code => Err(Fail(format!("{}: exit code {code}: {said}", self.kind.name()))),
        }
    }

    /// The origin of a gateway.
    fn origin(&self) -> Server<'a> {
        Server::new(self.lab, Kind::Ganesha)
    }

    fn agent(&self) -> Daemon {
        Daemon::at(&self.lab.run.join(self.kind.name()), "agent")
    }

    /// Starts an agent, as guests have one, in the exported directory.
    fn start_agent(&self) -> Res<()> {
        if self.agent().pid().is_some() {
            return Ok(());
        }
        let mut c = command(&["/usr/bin/python3"]);
        c.arg(self.lab.file("guest/agent.py")).arg(HOST_IP).current_dir(self.export_dir()?);
        self.agent().start(c, &self.lab.run.join(self.kind.name()).join("agent.log")).map(drop)
    }

    /// Writes the exports of hither: the directory, and further lines. Returns the file's path.
    fn write_exports(&self, further: &str) -> Res<PathBuf> {
        let (export, exports) = (self.export_dir()?, self.lab.run.join("hither/exports"));
        fs::write(&exports, format!("{} *(rw,no_root_squash,fsid=0)\n{further}", export.display()))?;
        Ok(exports)
    }

    fn hither(&self, options: &Options) -> Res<Command> {
        let (exports, state) = (self.write_exports("")?, self.lab.dir("hither/state")?);
        let at = self.kind.direct();
        let mut c = command(&[&self.lab.hither().display().to_string(), "serve"]);
        c.arg("--config").arg(exports).arg("--listen").arg(format!("{}:{}", at.ip, at.port));
        c.args(["--lease", &LEASE_S.to_string(), "--grace", &GRACE_S.to_string()]);
        c.arg("--state-dir").arg(state).arg("--nqnfs");
        if let Ok(rate) = std::env::var("HITHER_RECOVERY_RATE") {
            c.args(["--recovery-rate", &rate]);
        }
        if options.delegations == "all" {
            c.args(["--max-delegations", "10000"]);
        }
        Ok(c)
    }

    fn gateway(&self) -> Res<Command> {
        let state = self.lab.dir("gateway/state")?;
        let (at, origin) = (self.kind.direct(), Kind::Ganesha.direct());
        let mut c = command(&[&self.lab.hither().display().to_string(), "gateway"]);
        c.arg(format!("{}:{}", origin.ip, origin.export("4.2")));
        c.args(["--mount", "vers=4.2", "--options", "rw,no_root_squash,insecure"]);
        c.arg("--listen").arg(format!("{}:{}", at.ip, at.port)).args(["--rpcbind", "off"]);
        c.args(["--lease", &LEASE_S.to_string(), "--grace", &GRACE_S.to_string()]);
        c.arg("--state-dir").arg(state);
        Ok(c)
    }

    fn ganesha(&self, release: Release, options: &Options) -> Res<Command> {
        let dir = self.lab.dir("ganesha")?;
        let (export, private) = (self.export_dir()?, self.lab.dir("ganesha/run")?);
        let state = self.lab.dir("ganesha/nfs")?;
        fs::create_dir_all(private.join("ganesha"))?;
        fs::create_dir_all(state.join("ganesha"))?;
        let deleg = &options.delegations;
        let on = deleg != "none";
        // Release 6 ends where the machine refuses PR_SET_IO_FLUSHER. Release 4 does not know the
        // option.
        let flusher = match release {
            Release::Installed => "",
            Release::Newer => "allow_set_io_flusher_fail = true;",
        };
        let conf = format!(
            "NFS_CORE_PARAM {{ mount_path_pseudo = true; Protocols = 3,4; Bind_addr = {HOST_IP}; NFS_Port = 2049;\n\
             \x20 MNT_Port = 20048; Enable_NLM = false; Enable_RQUOTA = false; {flusher} }}\n\
             # Delegations need this block and the export's option.\n\
             NFSV4 {{ Grace_Period = {GRACE_S}; Lease_Lifetime = {LEASE_S}; Minor_Versions = 0,1,2; Delegations = {on}; }}\n\
             EXPORT_DEFAULTS {{ Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Transports = TCP;\n\
             \x20 Delegations = {deleg}; }}\n\
             EXPORT {{ Export_Id = 1; Path = {path}; Pseudo = /export; FSAL {{ Name = VFS; }} }}\n\
             EXPORT {{ Export_Id = 2; Path = {path}; Pseudo = {READ_ONLY}; Access_Type = RO;\n\
             \x20 FSAL {{ Name = VFS; }} }}\n\
             LOG {{ Default_Log_Level = WARN; }}\n",
            path = export.display()
        );
        fs::write(dir.join("ganesha.conf"), conf)?;
        self.start_rpcbind()?;
        // Private /run and /var/lib/nfs, so that sockets and recovery records belong to this
        // laboratory.
        let words = format!(
            "ganesha.nfsd -F -f '{d}/ganesha.conf' -L '{d}/ganesha.log' -p /run/ganesha/pid",
            d = dir.display()
        );
        Ok(match release {
            Release::Installed => {
                let script = format!("{}exec {words}", self.private_run("")?);
                command(&["unshare", "--mount", "--propagation", "private", "sh", "-ec", &script])
            }
            Release::Newer => {
                let root = newer_root()?;
                let private = self.private_run(&root.display().to_string())?;
                in_root(self.lab, &root, &private, &[], &command(&["sh", "-c", &format!("exec {words}")]))
            }
        })
    }

    /// Shell lines that replace `/run` and `/var/lib/nfs` below `root`.
    fn private_run(&self, root: &str) -> Res<String> {
        let (run, nfs) = (self.lab.dir("ganesha/run")?, self.lab.dir("ganesha/nfs")?);
        // A copy of a client's mount would keep the client's daemon alive after the unmount.
        Ok(format!(
            "umount -l /mnt 2>/dev/null || true; mount --bind '{}' '{root}/run'; mount --bind '{}' '{root}/var/lib/nfs'; ",
            run.display(),
            nfs.display()
        ))
    }

    /// Starts rpcbind, without which ganesha does not start.
    fn start_rpcbind(&self) -> Res<()> {
        let daemon = self.rpcbind();
        if daemon.pid().is_some() {
            return Ok(());
        }
        let script = format!("{}exec rpcbind -w -f", self.private_run("")?);
        let c = command(&["unshare", "--mount", "--propagation", "private", "sh", "-ec", &script]);
        daemon.start(c, &self.lab.run.join("ganesha/rpcbind.log"))?;
        let socket = self.lab.run.join("ganesha/run/rpcbind.sock");
        clock::wait_until(Duration::from_secs(5), || socket.exists());
        Ok(())
    }

    fn rpcbind(&self) -> Daemon {
        Daemon::at(&self.lab.run.join("ganesha"), "rpcbind")
    }

    fn stop_rpcbind(&self) -> Res<()> {
        match self.kind {
            Kind::Ganesha => self.rpcbind().stop(Duration::from_secs(3)),
            Kind::Knfsd | Kind::Hither | Kind::Gateway => Ok(()),
        }
    }

    fn knfsd(&self, release: Release, options: &Options) -> Res<Command> {
        let dir = self.lab.dir("knfsd")?;
        let own = options.disk.is_empty();
        let disk = if own { dir.join("disk.img") } else { PathBuf::from(&options.disk) };
        let state = dir.join("state.img");
        for (image, size) in [(&disk, "8G"), (&state, "64M")] {
            if !image.exists() {
                let part = image.with_extension("part");
                let p = part.display();
                sh(&format!(
                    "truncate -s {size} '{p}'; mkfs.ext4 -q -F -E lazy_itable_init=1,nodiscard '{p}'"
                ))?;
                fs::rename(&part, image)?;
            }
        }
        let env = [
            ("MODE", options.mode.clone()),
            ("GRACE", GRACE_S.to_string()),
            ("LEASE", LEASE_S.to_string()),
            ("DELEG", u8::from(options.delegations != "none").to_string()),
        ];
        let boot = Boot {
            release,
            init: "knfsd-init.sh",
            tap: "taps",
            ip: KNFSD_IP,
            mem_mib: 1500,
            disks: vec![disk, state],
            env: env.map(|(k, v)| (k.to_string(), v)).to_vec(),
        };
        boot.command(self.lab)
    }
}

/// Whether both NFS and MOUNT accept connections.
fn listens(at: &Endpoint) -> bool {
    [at.port, at.mountport].iter().all(|port| {
        let addr: Result<SocketAddr, _> = format!("{}:{port}", at.ip).parse();
        addr.is_ok_and(|a| TcpStream::connect_timeout(&a, Duration::from_millis(500)).is_ok())
    })
}

/// `server VERB KIND`.
pub fn main(lab: &Lab, args: &mut Args) -> Res<ExitCode> {
    let mut options = Options::default();
    if args.flag("--async") {
        options.mode = "async".into();
    }
    args.flag("--sync");
    options.disk = args.value("--disk")?.unwrap_or_default();
    if let Some(d) = args.value("--deleg")? {
        options.delegations = match d.as_str() {
            "none" | "all" => d,
            "r" | "w" | "rw" => d.to_uppercase(),
            _ => return Err(Fail(format!("--deleg {d}: none, r, w, rw or all"))),
        };
    }
    let no_wait = args.flag("--no-wait");
    args.no_more_options()?;
    let usage =
        || Fail("server start|stop|kill9|restart|sigstop|sigcont|status ganesha|knfsd|hither|gateway".into());
    let verb = args.word().ok_or_else(usage)?;
    let server = Server::new(lab, Kind::parse(&args.word().ok_or_else(usage)?)?);
    match verb.as_str() {
        "start" => server.start(&options, !no_wait)?,
        "stop" => server.stop()?,
        "kill9" => server.kill9()?,
        "restart" => server.restart()?,
        "sigstop" => server.freeze(true)?,
        "sigcont" => server.freeze(false)?,
        "status" if server.running() => println!("running"),
        "status" => {
            println!("stopped");
            return Ok(ExitCode::FAILURE);
        }
        _ => return Err(usage()),
    }
    Ok(ExitCode::SUCCESS)
}
