//! Shared tools of the binary's tests: runs of the binary, a private nfs-ganesha, and mounts that
//! are removed at the end.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a part; tests")]

pub mod kdc;
pub mod messages;
pub mod serve;
pub mod stunnel;
pub mod wire;

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// The binary under test.
pub const HITHER: &str = env!("CARGO_BIN_EXE_hither");

/// The output and exit status of a command.
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
    /// Asserts that the command succeeded.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// Asserts that the command failed with this code and exactly this line.
    #[track_caller]
    pub fn fails(self, code: i32, line: &str) {
        assert_eq!((self.code, self.err.as_str()), (code, format!("{line}\n").as_str()));
    }
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Said {
    command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}")).into()
}

/// Runs `hither` with these arguments.
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

/// Sleeps for `ms` milliseconds.
#[expect(clippy::disallowed_methods, reason = "tests of processes wait in real time")]
pub fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Whether the output of `rpcinfo -p` has version 3 of a program at a TCP port.
pub fn lists_port(listing: &str, port: u16) -> bool {
    listing.contains(&format!(" 3   tcp{port:>7} "))
}

/// A nfs-ganesha in its own network, mount and process name spaces. The name spaces end with this
/// value.
pub struct Ganesha {
    /// Directory of the fixture: `export`, and directories that a test adds.
    pub dir: tempfile::TempDir,
    unshare: Child,
}

impl Ganesha {
    /// Starts a server that exports `export` as /export and refuses /denied to all clients.
    pub fn start() -> Self {
        let mut ganesha = Self::prepare();
        ganesha.serve();
        ganesha
    }

    /// Makes the name spaces without starting the server.
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
        // The shell is the first process of its name space. When the shell ends, all processes end.
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
            lists_port(&registered, 2049) && lists_port(&registered, 20048)
        });
    }

    /// A command to be run inside the network name space.
    pub fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.unshare.id())).arg("--").arg(program);
        command
    }

    /// Runs `hither mount` with options on the directory, inside the network name space.
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

    /// As [`Ganesha::mount`], with a disk cache. Returns when the cache is in use. A mount waits
    /// only seconds for its cache directory, and then works without the cache.
    pub fn mount_with_cache(&self, options: &str, dir: &Path) {
        self.mount(options, dir).ok();
        wait_for("the disk cache to be in use", 120, || {
            let said = hither(&["cache", "status", "--json", dir.to_str().unwrap()]);
            let status: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_default();
            status["room"].is_object()
        });
    }

    /// As [`Ganesha::mount_with_cache`]. The mount starts with at least `objects` objects that the
    /// previous mount stored. `learn` makes a mount know the objects.
    ///
    /// The daemon stores and loads the state at the ends of a mount, and waits only seconds for
    /// either. On a busy machine this may be too short, so the sequence is repeated.
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

    /// The server's process id in this process name space.
    pub fn pid(&self) -> u32 {
        let config = format!("{}/ganesha.conf", self.dir.path().display());
        let found = processes().into_iter().find(|pid| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with("ganesha.nfsd") && line.contains(&config)
        });
        found.expect("a running ganesha")
    }

    /// Stops the server's process with SIGSTOP.
    pub fn freeze(&self) {
        let pid = self.pid();
        run(Command::new("kill").args(["-STOP", &pid.to_string()])).ok();
        wait_for("a stopped server", 60, || has_stopped(pid));
    }

    /// Continues a stopped server with SIGCONT.
    pub fn thaw(&self) {
        run(Command::new("kill").args(["-CONT", &self.pid().to_string()])).ok();
    }

    /// The default mount point.
    pub fn mnt(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// Path of an exported file or directory, in the server's own file system.
    pub fn export(&self, name: &str) -> PathBuf {
        self.dir.path().join("export").join(name)
    }
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        // A mount that a failed test left must not keep the directory busy.
        let mnt = self.mnt();
        let _ = Command::new("umount").arg("-l").arg(&mnt).stderr(Stdio::null()).status();
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

/// Moves this thread and its child processes to their own mount name space. Another test that makes
/// a mount name space would otherwise copy these mounts. The copies would keep the mounts alive
/// after their unmount.
pub fn own_mount_namespace() {
    own_files();
    let flags = libc::CLONE_FS | libc::CLONE_NEWNS;
    let (none, root) = (std::ptr::null(), c"/".as_ptr());
    // SAFETY: unshare takes no memory, and mount takes a constant string.
    let ok = unsafe {
        libc::unshare(flags) == 0
            && libc::mount(none, root, none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) == 0
    };
    assert!(ok, "a mount name space: {}", std::io::Error::last_os_error());
    // Mounts find their sockets by device numbers, and device numbers are reused. The private
    // directory hides the sockets of other tests.
    run(Command::new("mkdir").args(["-p", "/run/hither"])).ok();
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "mode=755", "hither-tests", "/run/hither"])).ok();
}

/// Gives this thread and its child processes their own table of open files. A process that another
/// test starts would otherwise hold copies of this thread's files until its exec. A mount would be
/// busy for that time.
pub fn own_files() {
    thread_local!(static DONE: Cell<bool> = const { Cell::new(false) });
    // Only the first call unshares the table, while it has only the three standard files.
    if !DONE.replace(true) {
        // SAFETY: close_range takes numbers. This thread has no files from 3 on, and the table of
        // the other threads stays unchanged.
        let done = unsafe { libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_UNSHARE as i32) };
        assert_eq!(done, 0, "private open files: {}", std::io::Error::last_os_error());
    }
}

/// Moves this thread and its child processes to their own network. No other test uses the ports of
/// that network.
pub fn own_network_namespace() {
    // SAFETY: unshare takes no memory.
    let ok = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    assert!(ok, "a network name space: {}", std::io::Error::last_os_error());
    run(Command::new("ip").args(["link", "set", "lo", "up"])).ok();
}

/// Process ids of all processes.
pub fn processes() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// Process ids of the daemons that serve a mount on `dir`.
pub fn daemons(dir: &Path) -> Vec<u32> {
    let dir = dir.to_str().unwrap();
    let mut found = processes();
    found.retain(|pid| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.contains("--daemon\0") && line.split('\0').any(|word| word == dir)
    });
    found
}

/// Whether all threads of a process have ended. The first thread may have ended, and its command
/// line with it, while other threads still hold its files.
pub fn has_ended(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    states(threads).all(|state| matches!(state, None | Some('Z' | 'X')))
}

/// Whether all threads of a process are stopped (SIGSTOP). kill(2) returns earlier. Threads go on
/// until one of them is scheduled and takes the signal.
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

/// The SplitMix64 generator. The seed determines a history.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    /// A random 64-bit number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A random number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Mixes all bits of a number.
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

/// The bytes of a file through a mapping. A page that cannot be read is an error and raises no
/// signal.
pub fn map(file: &File, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    if len == 0 {
        return Ok(bytes);
    }
    // SAFETY: the kernel chooses the address, and the read-only mapping is used only through that
    // address.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    let read = File::open("/proc/self/mem").and_then(|memory| memory.read_exact_at(&mut bytes, at as u64));
    // SAFETY: nothing refers to the mapping any more.
    unsafe { libc::munmap(at, len) };
    read.map(|()| bytes)
}
