//! Shared tools of the binary's tests: running it, a nfs-ganesha of one's own, and mounts that are
//! removed at the end.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a part; tests")]

pub mod serve;
pub mod wire;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// The binary under test.
pub const HITHER: &str = env!("CARGO_BIN_EXE_hither");

/// The output of a command and its exit status.
#[derive(Debug)]
pub struct Said {
    /// Exit code; -1 for a signal.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Said {
    /// The command succeeded.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// The command failed with this code and exactly this line.
    #[track_caller]
    pub fn fails(self, code: i32, line: &str) {
        assert_eq!((self.code, self.err.as_str()), (code, format!("{line}\n").as_str()));
    }
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Said {
    command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}")).into()
}

/// Runs `hither` with these words.
pub fn hither(words: &[&str]) -> Said {
    run(Command::new(HITHER).args(words))
}

/// Runs a shell script; `$HITHER` is the binary.
pub fn sh(script: &str) -> Said {
    run(Command::new("sh").args(["-ec", script]).env("HITHER", HITHER))
}

/// Waits until `what` holds.
#[track_caller]
pub fn wait_for(what: &str, seconds: u64, mut holds: impl FnMut() -> bool) {
    for _ in 0..seconds * 20 {
        if holds() {
            return;
        }
        pause(50);
    }
    panic!("waited {seconds} s in vain: {what}");
}

/// Waits.
#[expect(clippy::disallowed_methods, reason = "tests of processes wait in real time")]
pub fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// A nfs-ganesha in network, mount and process name spaces of its own; everything ends with it.
pub struct Ganesha {
    /// Its directories: `export`, and others that a test adds.
    pub dir: tempfile::TempDir,
    unshare: Child,
}

impl Ganesha {
    /// Starts one that exports `export` as /export and refuses /denied to all clients.
    pub fn start() -> Self {
        let mut ganesha = Self::prepare();
        ganesha.serve();
        ganesha
    }

    /// The name spaces without the server.
    pub fn prepare() -> Self {
        own_mount_namespace();
        let dir = tempfile::tempdir().unwrap();
        for sub in ["export", "mnt"] {
            std::fs::create_dir(dir.path().join(sub)).unwrap();
        }
        let d = dir.path().display();
        let conf = format!(
            "NFS_CORE_PARAM {{ mount_path_pseudo = true; Protocols = 3,4; MNT_Port = 20048; Enable_NLM = false; \
             Enable_RQUOTA = false; }}\n\
             NFSV4 {{ Graceless = true; Lease_Lifetime = 60; Minor_Versions = 0,1,2; }}\n\
             EXPORT_DEFAULTS {{ Squash = No_Root_Squash; SecType = sys; Transports = TCP; }}\n\
             EXPORT {{ Export_Id = 1; Path = {d}/export; Pseudo = /export; Access_Type = RW; FSAL {{ Name = VFS; }} }}\n\
             EXPORT {{ Export_Id = 2; Path = {d}/mnt; Pseudo = /denied; Access_Type = None; FSAL {{ Name = VFS; }} }}\n\
             LOG {{ Default_Log_Level = WARN; }}\n"
        );
        std::fs::write(dir.path().join("ganesha.conf"), conf).unwrap();
        // The shell is the first process of its name space: when it ends, all end.
        let script = format!(
            "ip link set lo up; mount --make-rprivate /; mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /var/lib/nfs\n\
             mkdir -p /run/ganesha /var/lib/nfs/ganesha; touch {d}/namespaces\n\
             while [ ! -e {d}/go ]; do sleep 0.05; done\n\
             rpcbind -w; ganesha.nfsd -F -f {d}/ganesha.conf -L {d}/ganesha.log -p /run/ganesha/pid"
        );
        let unshare = Command::new("unshare")
            .args([
                "--net",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "sh",
                "-ec",
                &script,
            ])
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(dir.path().join("out")).unwrap())
            .stderr(std::fs::File::create(dir.path().join("err")).unwrap())
            .spawn()
            .unwrap();
        let ready = dir.path().join("namespaces");
        let ganesha = Self { dir, unshare };
        wait_for("name spaces", 20, || ready.exists());
        ganesha
    }

    /// Starts the server and waits until it listens.
    pub fn serve(&mut self) {
        std::fs::write(self.dir.path().join("go"), "").unwrap();
        let path = self.dir.path().to_path_buf();
        wait_for(&format!("ganesha, see {}", path.display()), 60, || {
            // It listens before it registers its programs, and mounts ask rpcbind for both.
            let registered = run(self.inside("rpcinfo").args(["-p", "127.0.0.1"])).out;
            [2049, 20048].iter().all(|port| registered.contains(&format!(" 3   tcp{port:>7} ")))
        });
    }

    /// A command inside the network name space.
    pub fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.unshare.id())).arg("--").arg(program);
        command
    }

    /// Runs `hither mount` with options on the directory, from inside.
    pub fn mount(&self, options: &str, dir: &Path) -> Said {
        let log = self.dir.path().join("log");
        let mut command = self.inside(HITHER);
        command.args(["mount", "--log"]).arg(log).args([
            "-o",
            &format!("retry=0,{options}"),
            "127.0.0.1:/export",
        ]);
        run(command.arg(dir))
    }

    /// The same with a disk cache, which is in use when this returns: a mount waits for its cache's
    /// directory for seconds only, and goes on without it.
    pub fn mount_with_cache(&self, options: &str, dir: &Path) {
        self.mount(options, dir).ok();
        wait_for("the disk cache to be in use", 120, || {
            let said = hither(&["cache", "status", "--json", dir.to_str().unwrap()]);
            let status: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_default();
            status["room"].is_object()
        });
    }

    /// The same with at least so many objects from the beginning that the mount before it
    /// remembered; `learn` makes a mount know them. (The stored state is written and read at the
    /// ends of a mount, and both wait for seconds only. Where the machine was too busy, all of it
    /// is repeated.)
    pub fn mount_with_memory(&self, options: &str, dir: &Path, objects: u64, mut learn: impl FnMut()) {
        for _ in 0..10 {
            self.mount_with_cache(options, dir);
            let said = run(Command::new(HITHER).args(["stat", "--json"]).arg(dir)).ok();
            let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
            if report["layers"]["meta"]["recalled_objects"].as_u64().unwrap() >= objects {
                return;
            }
            learn();
            run(Command::new(HITHER).arg("umount").arg(dir)).ok();
        }
        panic!("{objects} objects are not remembered");
    }

    /// The process of the server, as this name space numbers it.
    pub fn pid(&self) -> u32 {
        let config = format!("{}/ganesha.conf", self.dir.path().display());
        let found = processes().into_iter().find(|pid| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with("ganesha.nfsd") && line.contains(&config)
        });
        found.expect("a running ganesha")
    }

    /// Stops the server as a process (SIGSTOP).
    pub fn freeze(&self) {
        let pid = self.pid();
        run(Command::new("kill").args(["-STOP", &pid.to_string()])).ok();
        wait_for("a stopped server", 60, || has_stopped(pid));
    }

    /// Lets a stopped server go on.
    pub fn thaw(&self) {
        run(Command::new("kill").args(["-CONT", &self.pid().to_string()])).ok();
    }

    /// The usual mount point.
    pub fn mnt(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// A file or directory as the server has it.
    pub fn export(&self, name: &str) -> PathBuf {
        self.dir.path().join("export").join(name)
    }
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        // A mount that a failed test left behind must not keep the directory.
        let mnt = self.mnt();
        let _ = Command::new("umount").arg("-l").arg(&mnt).stderr(Stdio::null()).status();
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

/// Moves this thread, and its child processes, to a mount name space of its own: another test that
/// makes one meanwhile would copy our mounts into it and keep them alive after their unmount.
pub fn own_mount_namespace() {
    own_files();
    let flags = libc::CLONE_FS | libc::CLONE_NEWNS;
    let (none, root) = (std::ptr::null(), c"/".as_ptr());
    // SAFETY: unshare takes no memory, mount a constant string.
    let ok = unsafe {
        libc::unshare(flags) == 0
            && libc::mount(none, root, none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) == 0
    };
    assert!(ok, "a mount name space: {}", std::io::Error::last_os_error());
    // Mounts find their sockets by their device numbers, which are reused: files that other tests
    // leave or make there are not ours.
    run(Command::new("mkdir").args(["-p", "/run/hither"])).ok();
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "mode=755", "hither-tests", "/run/hither"])).ok();
}

/// Gives this thread, and its child processes, open files of its own. A process that another test
/// starts has copies of all files that this one has open until it is another program, and a mount
/// is busy for as long.
pub fn own_files() {
    thread_local!(static DONE: Cell<bool> = const { Cell::new(false) });
    // Once, while it has none yet but the first three.
    if !DONE.replace(true) {
        // SAFETY: it takes numbers; nothing of this thread's is closed, and the table of the others
        // is not touched.
        let done = unsafe { libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_UNSHARE as i32) };
        assert_eq!(done, 0, "files of its own: {}", std::io::Error::last_os_error());
    }
}

/// Moves this thread, and its child processes, to a network of its own: no other test uses its
/// ports.
pub fn own_network_namespace() {
    // SAFETY: unshare takes no memory.
    let ok = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    assert!(ok, "a network name space: {}", std::io::Error::last_os_error());
    run(Command::new("ip").args(["link", "set", "lo", "up"])).ok();
}

/// Numbers of all processes.
pub fn processes() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// Daemons that serve a mount on `dir`.
pub fn daemons(dir: &Path) -> Vec<u32> {
    let dir = dir.to_str().unwrap();
    let mut found = processes();
    found.retain(|pid| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.contains("--daemon\0") && line.split('\0').any(|word| word == dir)
    });
    found
}

/// Whether nothing of a process runs any more. Its first thread may have ended, and its command
/// line with it, while others still hold its files.
pub fn has_ended(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    states(threads).all(|state| matches!(state, None | Some('Z' | 'X')))
}

/// Whether a process was stopped (SIGSTOP), all of it. kill(2) returns before: until one thread has
/// been scheduled to take the signal, the others go on.
pub fn has_stopped(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    states(threads).all(|state| state == Some('T'))
}

fn states(threads: std::fs::ReadDir) -> impl Iterator<Item = Option<char>> {
    threads.flatten().map(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    })
}

/// Whether something is mounted on `dir`.
pub fn is_mounted(dir: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == dir.to_str())
}

/// SplitMix64: a history is its seed.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    /// Any number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// One below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Spreads a number over all bits.
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The bytes of a record: number, writer, place, checksum, and bytes derived from them.
pub fn record(writer: u64, place: u64, number: u64, len: usize) -> Vec<u8> {
    let seed = mix(writer << 48 ^ place << 24 ^ number);
    let head = [number, writer, place, mix(number ^ mix(writer ^ mix(place)))];
    let mut out: Vec<u8> = head.iter().flat_map(|n| n.to_le_bytes()).collect();
    out.extend((0..(len - 32).div_ceil(8) as u64).flat_map(|i| mix(seed ^ i).to_le_bytes()));
    out.truncate(len);
    out
}
