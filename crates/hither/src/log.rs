//! The destination of a mount's log: the system's log, a file, or the terminal.
//!
//! A line to the system's log is one datagram to /dev/log, which syslogd, rsyslog and journald all
//! read. A library would add time stamps and host names for remote servers, and would use a
//! blocking socket. A blocked log must not stop a file system, so this module drops lines instead.

use crate::cli::LogArgs;
use crate::exit::Failure;
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Socket of the system's log.
const DEV_LOG: &str = "/dev/log";
/// Longest line for the system's log. journald and rsyslog accept at least this length.
const MAX_LINE_BYTES: usize = 4096;
/// Facility `daemon` of syslog(3).
const FACILITY_DAEMON: u8 = 3 << 3;

/// The log's destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogDestination {
    /// The file of `--log`, otherwise the terminal.
    Foreground,
    /// The file of `--log`, otherwise the system's log.
    Background,
}

/// Handle of the process's log.
pub struct Log {
    file: Option<Arc<LogFile>>,
}

impl Log {
    /// Opens the log file again, after logrotate(8) moved it.
    pub fn reopen(&self) {
        if let Some(file) = &self.file
            && let Err(e) = file.reopen()
        {
            tracing::warn!("the log file {} cannot be opened again: {e}", file.path.display());
        }
    }
}

/// The filter of a level, or of a list with levels of parts. A word alone is a level: as the name
/// of a part, it would silence all others.
fn filter(level: &str) -> Option<EnvFilter> {
    let is_named = |level: &str| !level.is_empty() && level.parse::<LevelFilter>().is_ok();
    let is_level = |word: &str| word.rsplit('=').next().is_some_and(is_named);
    level.split(',').all(is_level).then(|| EnvFilter::try_new(level).ok()).flatten()
}

/// Sets up logging for the whole process.
///
/// # Errors
/// The level is invalid, or the file cannot be opened.
pub fn init(args: &LogArgs, place: LogDestination) -> Result<Log, Failure> {
    let usual = if args.verbose { "debug" } else { "info" };
    // An empty variable of the environment counts as none.
    let level = args.level.as_deref().filter(|level| !level.is_empty()).unwrap_or(usual);
    let filter = filter(level).ok_or_else(|| {
        Failure::usage(format!(
            "--log-level '{level}' is no level: use error, warn, info, debug or trace, or PART=LEVEL,..."
        ))
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    let mut file = None;
    // Fails only when a log already exists, as in tests. That log stays in use.
    let _ = match (&args.file, place) {
        (Some(path), _) => {
            let opened = LogFile::open(path)
                .map_err(|e| Failure::usage(format!("log file {}: {e}", path.display())))?;
            let opened = Arc::new(opened);
            file = Some(opened.clone());
            builder.with_ansi(false).with_writer(opened).try_init()
        }
        (None, LogDestination::Foreground) => builder.with_ansi(false).with_writer(io::stderr).try_init(),
        (None, LogDestination::Background) => {
            let syslog =
                Syslog::new(DEV_LOG).map_err(|e| Failure::system(format!("no socket for the log: {e}")))?;
            builder.with_ansi(false).without_time().with_level(false).with_writer(syslog).try_init()
        }
    };
    Ok(Log { file })
}

/// A log file that can be reopened by its name.
struct LogFile {
    path: PathBuf,
    file: Mutex<File>,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_path_buf(), file: Mutex::new(append(path)?) })
    }

    fn reopen(&self) -> io::Result<()> {
        *self.file.lock() = append(&self.path)?;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

impl Write for &LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The system's log.
struct Syslog {
    socket: UnixDatagram,
    path: &'static str,
    tag: String,
}

impl Syslog {
    fn new(path: &'static str) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path, tag: format!("hither[{}]: ", std::process::id()) })
    }
}

/// Writes one event.
struct Line<'a> {
    log: &'a Syslog,
    priority: u8,
}

impl<'a> MakeWriter<'a> for Syslog {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { log: self, priority: priority(Level::INFO) }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line<'a> {
        Line { log: self, priority: priority(*meta.level()) }
    }
}

/// Facility and severity of syslog(3).
fn priority(level: Level) -> u8 {
    FACILITY_DAEMON
        | match level {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        }
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut line = format!("<{}>{}", self.priority, self.log.tag).into_bytes();
        line.extend(bytes.iter().take(MAX_LINE_BYTES).map(|&b| if b < b' ' { b' ' } else { b }));
        // Without a reader, or with a blocked reader, the line is lost. The mount continues.
        let _ = self.log.socket.send_to(line.trim_ascii_end(), self.log.path);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs a panic before it unwinds. The code that started the work (the runtime, a FUSE thread)
/// answers the request with an error and continues.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current().name().unwrap_or("?").to_string();
        let trace = std::backtrace::Backtrace::force_capture();
        tracing::error!("bug: {info} (thread {thread}); please report it: {trace}");
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each event is one datagram with its priority, and a missing reader is no error.
    #[test]
    fn the_system_log_gets_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path: &'static str =
            Box::leak(dir.path().join("log").to_str().unwrap().to_string().into_boxed_str());
        let syslog = Syslog::new(path).unwrap();
        let mut line = Line { log: &syslog, priority: priority(Level::WARN) };
        line.write_all(b"nobody listens").unwrap();
        let reader = UnixDatagram::bind(path).unwrap();
        line.write_all(b"not\nresponding\n").unwrap();
        let mut buf = [0; 200];
        let n = reader.recv(&mut buf).unwrap();
        let got = String::from_utf8_lossy(&buf[..n]).into_owned();
        assert_eq!(got, format!("<28>hither[{}]: not responding", std::process::id()));
    }

    /// After a rotation `reopen` writes to a new file with the old name.
    #[test]
    fn moved_log_file_is_reopened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = LogFile::open(&path).unwrap();
        (&log).write_all(b"1").unwrap();
        std::fs::rename(&path, dir.path().join("old")).unwrap();
        log.reopen().unwrap();
        (&log).write_all(b"2").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"2");
    }

    #[test]
    fn a_wrong_level_is_refused() {
        for level in ["hither=loud", "loud", "wran", "info,loud", "info,", "="] {
            let args = LogArgs { level: Some(level.into()), ..LogArgs::default() };
            let refused = init(&args, LogDestination::Foreground).map(|_| ()).unwrap_err();
            assert_eq!(refused.code, 1, "{level}");
        }
        for level in ["error", "WARN", "off", "info,hither_rpc=debug", "hither=trace"] {
            assert!(filter(level).is_some(), "{level}");
        }
    }
}
