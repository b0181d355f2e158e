//! A private `hither serve`.

use super::{HITHER, Said, has_stopped, own_mount_namespace, own_network_namespace, run, wait_for};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;

/// A server on a loopback port of its own network, with its own directory. Mounts, server and files
/// end with this value.
pub struct Serve {
    /// Directory of the fixture: `export`, `state`, and mount points.
    pub dir: tempfile::TempDir,
    /// Port on which the server listens.
    pub port: u16,
    command: &'static str,
    words: Vec<String>,
    through: Vec<String>,
    keeper: Option<Keeper>,
}

impl Serve {
    /// A server of a new, empty directory.
    pub fn of_directory() -> Self {
        let server = Self::prepare();
        let export = server.export("").display().to_string();
        server.with(&[export.trim_end_matches('/')])
    }

    /// A further server of a new, empty directory, in the name spaces of the first one.
    pub fn beside(port: u16) -> Self {
        let mut server = Self::new();
        server.port = port;
        let export = server.export("").display().to_string();
        server.with(&[export.trim_end_matches('/')])
    }

    /// A gateway to another server of this fixture. `options` are the mount options for it.
    pub fn gateway(origin: &Self, options: &str) -> Self {
        let mut gateway = Self::new();
        (gateway.port, gateway.command) = (origin.port + 1000, "gateway");
        let port = origin.port;
        let version = if options.contains("vers=3") { format!("mountport={port},") } else { String::new() };
        let options = format!("retry=0,port={port},{version}{options}");
        gateway.with(&["127.0.0.1:/", "--mount", &options, "--rpcbind", "off"])
    }

    /// A gateway on a port, with these words.
    pub fn gateway_at(port: u16, words: &[&str]) -> Self {
        let mut gateway = Self::new();
        (gateway.port, gateway.command) = (port, "gateway");
        gateway.with(&["--rpcbind", "off"]).with(words)
    }

    /// Makes the directory and the name spaces, without a server.
    pub fn prepare() -> Self {
        own_mount_namespace();
        own_network_namespace();
        Self::new()
    }

    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("export")).unwrap();
        // Squashed users need access as well.
        for path in [dir.path(), &dir.path().join("export")] {
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        Self { dir, port: 2049, command: "serve", words: Vec::new(), through: Vec::new(), keeper: None }
    }

    /// Adds options for the next start.
    pub fn with(mut self, words: &[&str]) -> Self {
        self.words.extend(words.iter().map(|w| w.to_string()));
        self
    }

    /// Sets a command that starts the server.
    pub fn through(mut self, words: &[&str]) -> Self {
        self.through = words.iter().map(|w| w.to_string()).collect();
        self
    }

    /// Starts the server and returns when it listens.
    pub fn serve(&mut self) {
        let state = self.dir.path().join("state");
        let is_first = !state.exists();
        let keeper = self.keeper.get_or_insert_with(|| {
            Keeper::start(self.dir.path(), self.port, (&self.through, self.command, &self.words))
        });
        keeper.begin();
        wait_for(&format!("hither serve, see {}", self.dir.path().display()), 60, || {
            assert!(keeper.is_alive(), "the server ended: {}", complaints(self.dir.path()));
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
        if is_first {
            let mode = std::fs::metadata(state).unwrap().mode();
            assert_eq!(mode & 0o077, 0, "other users can read the state directory");
        }
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.keeper.as_mut().unwrap().end();
    }

    /// Ends the server in an orderly way and returns its exit code.
    pub fn stop(&mut self) -> i32 {
        self.signal(libc::SIGTERM);
        self.keeper.as_mut().unwrap().end()
    }

    /// Sends a signal to the server.
    pub fn signal(&self, signal: i32) {
        let pid = self.pid() as libc::pid_t;
        // SAFETY: kill takes numbers. The process is a child of the keeper, which waits for the
        // process only after its end.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Process id of the server.
    pub fn pid(&self) -> u32 {
        self.keeper.as_ref().unwrap().pid
    }

    /// Stops the server's process with SIGSTOP.
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
        let pid = self.keeper.as_ref().unwrap().pid;
        wait_for("a stopped server", 60, || has_stopped(pid));
    }

    /// The server's standard output over all its lives.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("out")).unwrap()
    }

    /// The server's standard error over all its lives.
    pub fn complaints(&self) -> String {
        complaints(self.dir.path())
    }

    /// Peak memory of the server, in KiB.
    pub fn memory_peak_kib(&self) -> u64 {
        let pid = self.keeper.as_ref().unwrap().pid;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// A mount point.
    pub fn mnt(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        let _ = std::fs::create_dir(&path);
        path
    }

    /// Path of a served file or directory, in the server's own file system.
    pub fn export(&self, name: &str) -> PathBuf {
        self.dir.path().join("export").join(name)
    }

    /// Mounts `/`.
    pub fn mount(&self, options: &str, mnt: &Path) -> Said {
        self.mount_path(options, "/", mnt)
    }

    /// Mounts a path.
    pub fn mount_path(&self, options: &str, path: &str, mnt: &Path) -> Said {
        let port = self.port;
        let ports = if options.contains("vers=3") {
            format!("port={port},mountport={port}")
        } else {
            format!("port={port}")
        };
        let mut command = Command::new(HITHER);
        command.arg("mount").arg("--log").arg(self.dir.path().join("log"));
        run(command
            .args(["-o", &format!("retry=0,{ports},{options}")])
            .arg(format!("127.0.0.1:{path}"))
            .arg(mnt))
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        // A mount that a failed test left must not keep the directory busy.
        let entries = std::fs::read_dir(self.dir.path()).into_iter().flatten().flatten();
        for path in entries.map(|e| e.path()).filter(|path| super::is_mounted(path)) {
            let _ = Command::new("umount").arg("-l").arg(path).stderr(Stdio::null()).status();
        }
        if let Some(keeper) = &mut self.keeper {
            keeper.kill();
        }
        if std::thread::panicking() {
            let mounts = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            for (speaker, said) in [("server", complaints(self.dir.path())), ("mounts", mounts)] {
                let last: Vec<&str> = said.lines().rev().take(40).collect();
                println!("last lines of the {speaker}, newest first:\n{}", last.join("\n"));
            }
        }
    }
}

fn complaints(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("err")).unwrap_or_default()
}

/// Starts the server and waits for its end, in a process made before the first mount. A child of a
/// process with open files in a mount closes those files before its exec. That close would call the
/// server that the child is about to start.
struct Keeper {
    child: Child,
    orders: ChildStdin,
    news: BufReader<ChildStdout>,
    pid: u32,
}

impl Keeper {
    fn start(dir: &Path, port: u16, (through, name, words): (&[String], &str, &[String])) -> Self {
        let script = "while read -r _; do \"$@\" >>out 2>>err </dev/null & echo $!; wait $!; echo $?; done";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).args(through).args([HITHER, name]).args(words).current_dir(dir);
        // For the report of a failed test.
        command
            .env("HITHER_LOG", "info,hither_server::v4::delegation=debug,hither_server::v4::callback=debug");
        command.args(["--lease", "10", "--grace", "20", "--listen", &format!("127.0.0.1:{port}")]);
        command.args(["--state-dir", "state"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let (orders, news) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, orders, news: BufReader::new(news), pid: 0 }
    }

    fn begin(&mut self) {
        writeln!(self.orders, "start").unwrap();
        self.pid = self.line();
    }

    /// Waits for the server's end and returns its exit code.
    fn end(&mut self) -> i32 {
        self.pid = 0;
        self.line()
    }

    fn line<T: FromStr<Err: std::fmt::Debug>>(&mut self) -> T {
        let mut line = String::new();
        self.news.read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    }

    fn is_alive(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
    }

    fn kill(&mut self) {
        if self.pid != 0 && self.is_alive() {
            // SAFETY: as in `signal`.
            unsafe { libc::kill(self.pid as libc::pid_t, libc::SIGKILL) };
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
