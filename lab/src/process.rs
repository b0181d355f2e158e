//! Processes of the laboratory, identified by pid and start time. A recycled pid is therefore never
//! signalled. Each process is ended separately.

use crate::clock;
use crate::lab::{Fail, Res};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A background process. A later `hither-lab` finds the process through its pid file.
pub struct Daemon {
    file: PathBuf,
}

impl Daemon {
    /// The daemon recorded in `DIR/NAME.pid`.
    pub fn at(dir: &Path, name: &str) -> Self {
        Self { file: dir.join(format!("{name}.pid")) }
    }

    /// Starts `command` in its own process group, with its output in `log`.
    pub fn start(&self, mut command: Command, log: &Path) -> Res<i32> {
        if let Some(dir) = self.file.parent() {
            fs::create_dir_all(dir)?;
        }
        let out = File::create(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .process_group(0)
            .spawn()
            .map_err(|e| Fail(format!("cannot start {:?}: {e}", command.get_program())))?;
        let pid = child.id() as i32;
        let born = start_time(pid).unwrap_or_default();
        fs::write(&self.file, format!("{pid} {born}\n"))?;
        Ok(pid)
    }

    /// The pid, while the process lives.
    pub fn pid(&self) -> Option<i32> {
        let text = fs::read_to_string(&self.file).ok()?;
        let (pid, born) = text.trim().split_once(' ')?;
        let pid: i32 = pid.parse().ok()?;
        (start_time(pid)? == born.parse::<u64>().ok()?).then_some(pid)
    }

    /// Sends a signal to the process only.
    pub fn signal(&self, signal: Signal) -> Res<()> {
        let pid = self.pid().ok_or_else(|| Fail(format!("{}: not running", self.label())))?;
        Ok(kill_process(to_pid(pid)?, signal)?)
    }

    /// Whether all threads of the process are stopped by SIGSTOP.
    pub fn stopped(&self) -> bool {
        let Some(pid) = self.pid() else { return false };
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
        threads.flatten().all(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
        })
    }

    /// Kills the whole process group at once, as a power cut would.
    pub fn kill_group(&self) -> Res<()> {
        let pid = self.pid().ok_or_else(|| Fail(format!("{}: not running", self.label())))?;
        kill_process_group(to_pid(pid)?, Signal::KILL)?;
        if !clock::wait_until(Duration::from_secs(5), || self.pid().is_none()) {
            return Err(Fail(format!("{} survives SIGKILL", self.label())));
        }
        let _ = fs::remove_file(&self.file);
        Ok(())
    }

    /// Sends SIGTERM, and SIGKILL after `patience`. Succeeds when no process runs.
    pub fn stop(&self, patience: Duration) -> Res<()> {
        if self.pid().is_some() {
            // A stopped process does not handle SIGTERM.
            let _ = self.signal(Signal::CONT);
            let _ = self.signal(Signal::TERM);
            if !clock::wait_until(patience, || self.pid().is_none()) {
                return self.kill_group();
            }
        }
        let _ = fs::remove_file(&self.file);
        Ok(())
    }

    fn label(&self) -> String {
        self.file.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

fn to_pid(pid: i32) -> Res<Pid> {
    Pid::from_raw(pid).ok_or_else(|| Fail("pid 0".into()))
}

/// The start time in clock ticks since boot, the 22nd field of `/proc/PID/stat`. `None` for a
/// zombie, which may never be reaped after its parent has ended.
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything, so fields count from the last parenthesis.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Runs a command to its end. Returns its output, or an error that contains the output.
pub fn output(command: &mut Command) -> Res<String> {
    let out = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Fail(format!("cannot start {:?}: {e}", command.get_program())))?;
    if !out.status.success() {
        let err = String::from_utf8_lossy(&out.stderr);
        let std = String::from_utf8_lossy(&out.stdout);
        return Err(Fail(format!("{command:?}: {}: {}{}", out.status, std.trim(), err.trim())));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// `sh -c SCRIPT`, as [`output`].
pub fn sh(script: &str) -> Res<String> {
    output(Command::new("sh").arg("-ec").arg(script))
}

/// The command of these words.
pub fn command<S: AsRef<std::ffi::OsStr>>(words: &[S]) -> Command {
    let mut c = Command::new(&words[0]);
    c.args(&words[1..]);
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon is found through its pid file, also while it is stopped, and is gone after `stop`.
    #[test]
    fn daemon_is_found_by_pid_file() {
        let dir = std::env::temp_dir().join(format!("hither-lab-test-{}", std::process::id()));
        let d = Daemon::at(&dir, "sleeper");
        let pid = d.start(command(&["sleep", "60"]), &dir.with_extension("log")).unwrap();
        assert_eq!(Daemon::at(&dir, "sleeper").pid(), Some(pid));
        assert!(!d.stopped());
        d.signal(Signal::STOP).unwrap();
        assert!(clock::wait_until(Duration::from_secs(60), || d.stopped()));
        d.stop(Duration::from_secs(5)).unwrap();
        assert_eq!(d.pid(), None);
        let _ = fs::remove_dir_all(&dir);
        let _ = fs::remove_file(dir.with_extension("log"));
    }

    #[test]
    fn a_recycled_pid_is_not_ours() {
        let dir = std::env::temp_dir().join(format!("hither-lab-pid-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        // This process's pid with a wrong start time.
        fs::write(dir.join("x.pid"), format!("{} 1\n", std::process::id())).unwrap();
        assert_eq!(Daemon::at(&dir, "x").pid(), None);
        assert!(Daemon::at(&dir, "x").signal(Signal::TERM).is_err());
        let _ = fs::remove_dir_all(&dir);
    }
}
