//! The setting of a part of the campaign: a server in its own network, a router in between, disks
//! that can be filled, and a mount. Cutting the cable stops the forwarding in the router, so both
//! ends see silence.

use crate::common::{
    HITHER, Said, daemons, lists_port, own_mount_namespace, own_network_namespace, pause, run, wait_for,
};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The lease in seconds: the time after which a silent client loses its state. It is also the grace
/// period of the server after a restart.
const LEASE_S: u32 = 5;
const SERVER: &str = "10.77.2.1";
const ROUTER: [&str; 2] = ["10.77.1.2", "10.77.2.2"];

/// Kinds of servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Ganesha,
    Hither,
    HitherJournal,
}

/// Modes of delayed writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    CloseToOpen,
    Lazy,
    Journal,
    Exclusive,
}

/// Properties of a world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Made {
    pub kind: Kind,
    pub version: &'static str,
    pub mode: Mode,
    /// Whether the mount has a disk cache.
    pub cache: bool,
    /// Whether the server's disk is an ext4 instead of a tmpfs. `near_ext4` is the same for the
    /// client's disk.
    pub far_ext4: bool,
    pub near_ext4: bool,
}

/// Network, server, disks and mount. All of them end when the world is dropped.
pub struct World {
    pub made: Made,
    pub dir: tempfile::TempDir,
    /// Keeps the directory after a failed point.
    pub keep: bool,
    router: Child,
    house: Child,
    rpcbind: Option<Child>,
    server: Option<Child>,
}

/// Starts a process that ends with this thread.
fn start(words: &[&str], log: &Path) -> Child {
    let log = File::options().create(true).append(true).open(log).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).args(words).stdin(Stdio::null());
    command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn sh(script: &str) {
    run(Command::new("sh").args(["-ec", script])).ok();
}

/// Runs a command with a time limit. A command that exceeds the limit counts as hanging.
#[track_caller]
pub fn within(seconds: u32, what: &str, command: &[&str]) -> Said {
    let said = run(Command::new("timeout").args(["-s", "KILL", &seconds.to_string()]).args(command));
    assert!(!matches!(said.code, 137 | -1), "{what} has not ended within {seconds} s: {said:?}");
    said
}

/// Whether new files also wait on the client (`HITHER_CREATES=here`), in the mode that allows this.
pub fn here() -> bool {
    std::env::var("HITHER_CREATES").is_ok_and(|how| how == "here")
}

impl World {
    pub fn start(made: Made) -> Self {
        own_mount_namespace();
        own_network_namespace();
        let dir = tempfile::Builder::new().prefix("campaign").tempdir().unwrap();
        let d = dir.path();
        std::os::unix::fs::chown(d, Some(0), Some(0)).unwrap();
        for sub in ["far", "near", "mnt", "state"] {
            std::fs::create_dir(d.join(sub)).unwrap();
        }
        let log = d.join("out");
        disk(d, "far", 160, made.far_ext4);
        disk(d, "near", 160, made.near_ext4);
        std::fs::create_dir(d.join("far/export")).unwrap();
        let hold = "exec sleep 1000000";
        let router = start(&["unshare", "--net", "sh", "-c", hold], &log);
        let script = format!(
            "ip link set lo up; mount --make-rprivate /; mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /var/lib/nfs\n\
             mkdir -p /run/ganesha /var/lib/nfs/ganesha; touch {}/house\n{hold}",
            d.display()
        );
        let house = start(&["unshare", "--net", "--mount", "sh", "-ec", &script], &log);
        wait_for("the house of the server", 30, || d.join("house").exists());
        let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        wait_for("a network of the router", 30, || {
            let its = std::fs::read_link(format!("/proc/{}/ns/net", router.id()));
            its.is_ok_and(|its| its != own)
                && std::fs::read_to_string(format!("/proc/{}/comm", router.id()))
                    .is_ok_and(|c| c == "sleep\n")
        });
        let (r, h) = (router.id(), house.id());
        sh(&format!(
            "ip link add c0 type veth peer name r0 netns {r}\n\
             ip addr add 10.77.1.1/24 dev c0; ip link set c0 up; ip route add 10.77.2.0/24 via {r0}\n\
             in_r='nsenter --net=/proc/{r}/ns/net'; in_h='nsenter --net=/proc/{h}/ns/net'\n\
             $in_r ip link set lo up; $in_r ip addr add {r0}/24 dev r0; $in_r ip link set r0 up\n\
             $in_r ip link add r1 type veth peer name s0 netns {h}\n\
             $in_r ip addr add {r1}/24 dev r1; $in_r ip link set r1 up\n\
             $in_h ip addr add {SERVER}/24 dev s0; $in_h ip link set s0 up; $in_h ip route add 10.77.1.0/24 via {r1}",
            r0 = ROUTER[0],
            r1 = ROUTER[1],
        ));
        let mut world = Self { made, dir, keep: true, router, house, rpcbind: None, server: None };
        world.plug();
        world.serve();
        world
    }

    pub fn path(&self, sub: &str) -> PathBuf {
        self.dir.path().join(sub)
    }

    pub fn mnt(&self) -> PathBuf {
        self.path("mnt")
    }

    /// A path of the server's directory, read without the server.
    pub fn export(&self, sub: &str) -> PathBuf {
        self.path("far/export").join(sub)
    }

    fn inside(&self) -> [String; 2] {
        let h = self.house.id();
        [format!("--net=/proc/{h}/ns/net"), format!("--mount=/proc/{h}/ns/mnt")]
    }

    /// Starts the server and waits until it listens.
    pub fn serve(&mut self) {
        let (d, [net, mount]) = (self.dir.path().display().to_string(), self.inside());
        let mut words: Vec<&str> = vec!["nsenter", &net, &mount, "--"];
        let conf = format!("{d}/ganesha.conf");
        let (lease, listen) = (LEASE_S.to_string(), format!("{SERVER}:2049"));
        let (export, state, journal) =
            (format!("{d}/far/export"), format!("{d}/state"), format!("{d}/server-journal"));
        if self.made.kind == Kind::Ganesha {
            std::fs::write(
                &conf,
                format!(
                    "NFS_CORE_PARAM {{ mount_path_pseudo = true; Protocols = 3,4; MNT_Port = 20048; Enable_NLM = false; \
                     Enable_RQUOTA = false; }}\n\
                     NFSV4 {{ Grace_Period = {LEASE_S}; Lease_Lifetime = {LEASE_S}; Minor_Versions = 0,1,2; }}\n\
                     EXPORT_DEFAULTS {{ Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Transports = TCP; }}\n\
                     EXPORT {{ Export_Id = 1; Path = {export}; Pseudo = /export; FSAL {{ Name = VFS; }} }}\n\
                     LOG {{ Default_Log_Level = WARN; }}\n"
                ),
            )
            .unwrap();
            if self.rpcbind.is_none() {
                let rpcbind = ["nsenter", &net, &mount, "--", "rpcbind", "-w", "-f"];
                self.rpcbind = Some(start(&rpcbind, &self.path("out")));
                let socket = format!("/proc/{}/root/run/rpcbind.sock", self.house.id());
                wait_for("rpcbind", 30, || Path::new(&socket).exists());
            }
            words.extend(["ganesha.nfsd", "-F", "-f", &conf, "-L"]);
        } else {
            words.extend([HITHER, "serve", &export, "-o", "rw,no_root_squash", "--listen", &listen]);
            words.extend(["--lease", &lease, "--grace", &lease, "--state-dir", &state]);
        }
        let ganesha_log = format!("{d}/ganesha.log");
        match self.made.kind {
            Kind::Ganesha => words.extend([ganesha_log.as_str(), "-p", "/run/ganesha/pid"]),
            Kind::HitherJournal => words.extend(["--journal", &journal, "--journal-size", "16"]),
            Kind::Hither => {}
        }
        let mut server = start(&words, &self.path("server.log"));
        wait_for(&format!("the server, see {d}"), 60, || {
            let ended = server.try_wait().unwrap();
            let said = || std::fs::read_to_string(self.path("server.log")).unwrap_or_default();
            assert!(ended.is_none(), "the server has ended: {ended:?} {}", said());
            let listening = run(Command::new("nsenter").args([&net, "--", "ss", "-ltnH"])).out;
            // nfs-ganesha listens before it registers its programs.
            let registers = self.made.kind == Kind::Ganesha;
            listening.contains(":2049 ") && (!registers || self.is_registered(&net))
        });
        self.server = Some(server);
    }

    /// Whether rpcbind in the network namespace gives the port of mountd.
    fn is_registered(&self, net: &str) -> bool {
        let out = run(Command::new("nsenter").args([net, "--", "rpcinfo", "-p", "127.0.0.1"])).out;
        lists_port(&out, 20048)
    }

    /// Kills the server with SIGKILL.
    pub fn kill_server(&mut self) {
        end(self.server.as_mut().unwrap());
        self.server = None;
    }

    pub fn server_runs(&self) -> bool {
        self.server.is_some()
    }

    fn forward(&self, on: bool) {
        let net = format!("--net=/proc/{}/ns/net", self.router.id());
        let script = format!("echo {} > /proc/sys/net/ipv4/ip_forward", u8::from(on));
        run(Command::new("nsenter").args([&net, "--", "sh", "-c", &script])).ok();
    }

    /// Lets the router forward.
    pub fn plug(&self) {
        self.forward(true);
    }

    /// Stops the forwarding of the router.
    pub fn cut(&self) {
        self.forward(false);
    }

    /// Fills a disk to its last block. [`World::free`] gives the space back.
    pub fn fill(&self, disk: &str) {
        let ballast = File::options().create(true).append(true).open(self.ballast(disk)).unwrap();
        let mut step = 16 << 20;
        let mut at = ballast.metadata().unwrap().len() as libc::off_t;
        while step >= 4096 {
            // SAFETY: fallocate takes numbers.
            if unsafe { libc::fallocate(ballast.as_raw_fd(), 0, at, step) } == 0 {
                at += step;
            } else {
                step /= 2;
            }
        }
    }

    /// Frees the space that [`World::fill`] took.
    pub fn free(&self, disk: &str) {
        let _ = std::fs::remove_file(self.ballast(disk));
    }

    fn ballast(&self, disk: &str) -> PathBuf {
        self.path(disk).join("ballast")
    }

    /// Mounts and returns the command's output.
    pub fn mount(&self) -> Said {
        let Made { kind, version, mode, cache, .. } = self.made;
        let near = self.path("near").display().to_string();
        let how = match mode {
            Mode::CloseToOpen => String::new(),
            Mode::Lazy => ",close=lazy".into(),
            Mode::Journal => format!(",writeback=journal,journal-dir={near}"),
            Mode::Exclusive if here() => {
                format!(",writeback=journal,exclusive,creates=here,journal-dir={near}")
            }
            Mode::Exclusive => format!(",writeback=journal,exclusive,journal-dir={near}"),
        };
        let ports = match (version, kind) {
            ("3", Kind::Ganesha) => ",mountport=20048",
            ("3", _) => ",mountport=2049",
            _ => "",
        };
        let cache =
            if cache { format!(",cache={near}/cache,cache-min-free=0,cache-age=1") } else { String::new() };
        let options =
            format!("retry=0,port=2049,vers={version}{ports}{how}{cache},dirty-age=2,dirty-max=8M,timeo=50");
        let source = format!("{SERVER}:{}", if kind == Kind::Ganesha { "/export" } else { "/" });
        let (log, mnt) = (self.path("log").display().to_string(), self.mnt().display().to_string());
        within(120, "mount", &[HITHER, "mount", "--log", &log, "-o", &options, &source, &mnt])
    }

    /// Kills the daemon from this process. A child process would hold copies of open files.
    pub fn kill_client(&self) {
        for pid in daemons(&self.mnt()) {
            // SAFETY: kill takes numbers.
            unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
        }
    }

    /// Unmounts a dead mount.
    pub fn bury(&self) {
        let mnt = self.mnt();
        within(60, "umount -l", &["umount", "-l", mnt.to_str().unwrap()]).ok();
        wait_for("the end of the daemon", 60, || daemons(&mnt).is_empty());
    }
}

/// Mounts a small file system at `dir/name`.
fn disk(dir: &Path, name: &str, mib: u64, ext4: bool) {
    let (d, at) = (dir.display(), dir.join(name));
    let at = at.display();
    if ext4 {
        sh(&format!(
            "truncate -s {mib}M {d}/{name}.img; mkfs.ext4 -q -F -m 0 -E lazy_itable_init=0 {d}/{name}.img\n\
             mount -o loop {d}/{name}.img {at}"
        ))
    } else {
        sh(&format!("mount -t tmpfs -o size={mib}M,mode=755 campaign {at}"))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.kill_client();
        let mnt = self.mnt();
        let quiet = |words: &[&str]| {
            let _ = Command::new(words[0]).args(&words[1..]).stderr(Stdio::null()).status();
        };
        quiet(&["umount", "-l", mnt.to_str().unwrap()]);
        pause(100);
        let children =
            [self.server.as_mut(), self.rpcbind.as_mut(), Some(&mut self.house), Some(&mut self.router)];
        children.into_iter().flatten().for_each(end);
        if self.keep {
            let kept = self.path("kept");
            let _ = std::fs::create_dir(&kept);
            let (far, near) = (self.path("far/export"), self.path("near"));
            quiet(&["cp", "-a", far.to_str().unwrap(), near.to_str().unwrap(), kept.to_str().unwrap()]);
            self.dir.disable_cleanup(true);
            println!("its files are in {}", self.dir.path().display());
        }
        for disk in ["far", "near"] {
            quiet(&["umount", "-l", self.path(disk).to_str().unwrap()]);
        }
    }
}
