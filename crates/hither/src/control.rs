//! The control socket of a daemon. A mount's socket is `/run/hither/MAJOR:MINOR.sock`, named after
//! the mount's device. A daemon without a mount has one beside its socket for programs, and a
//! server in its state directory. [`locate`] finds them.
//!
//! Through this socket `hither stat` and `hither umount` reach the daemon without accessing the
//! mount. A request is one line of JSON, and so is a reply. Only root may connect. The socket's
//! peer credentials identify the listening process, even if it does not answer.

pub mod locate;

use crate::exit::Failure;
pub use hither_tools::trace::TraceAsk;
use hither_vfs::BoxFuture;
use locate::Daemon;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Directory of the sockets.
const DIR: &str = "/run/hither";
/// Version of requests and replies.
const VERSION: u32 = 1;
/// Longest request in bytes: an escaped path and some further fields.
const MAX_REQUEST_BYTES: u64 = 32 << 10;
/// Longest reply in bytes: a list of a million cached files.
const MAX_REPLY_BYTES: u64 = 512 << 20;
/// Longest wait for an answer. A working daemon answers from memory.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Time for a mount to show that it has no daemon.
const PROBE_WITHIN: Duration = Duration::from_secs(1);
/// Longest wait for a client that reads its reply.
const SEND_WITHIN: Duration = Duration::from_secs(60);

/// The requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ask {
    /// Returns a [`crate::report::Report`].
    Stat,
    /// Returns the statvers=1.1 record as a string.
    Mountstats,
    /// Returns the cached state of a path (relative to the mount point), and the cost of its last
    /// calls.
    Why(String),
    /// Returns the calls to the server since the given position.
    Calls(u64),
    /// A request about the disk cache.
    Cache(CacheAsk),
    /// A request about recording.
    Trace(TraceAsk),
    /// Writes the kept data of a conflict over its file, or over another file (relative to the
    /// mount point).
    Apply(String, Option<String>),
    /// Settles the journal of a server. Returns a [`crate::serve::report::ServerReport`].
    Flush,
    /// Sends all written data to the server. The reply is `{}`, or `unsent` with the reason.
    Sync {
        /// Longest wait in seconds.
        within_s: u64,
    },
    /// Waits for the end of the mount. The reply is `{}`, or `unsent` with the reason why the
    /// server does not have everything.
    End,
}

/// Requests about a disk cache. Paths are relative to the mount point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheAsk {
    /// Lists the entries.
    List,
    /// Compares the entries with their checksums.
    Check,
    /// Compares the entries with the server's files.
    Verify,
    /// Drops the cached data of a file, or of all unpinned files.
    Evict(Option<String>),
    /// Pins a file.
    Pin(String),
    /// Unpins a file.
    Unpin(String),
    /// Lists the entries from the index in memory.
    Slots,
    /// Returns the limits.
    Room,
    /// Applies an action to the entries with these keys.
    Keys(KeyDo, Vec<String>),
    /// Fetches small files that are not cached, many in one message. The reply has the bytes of
    /// each file, or null for a file that must be read through the mount.
    Warm {
        /// The files.
        paths: Vec<String>,
        /// Length of the longest file in bytes.
        longest_bytes: u32,
    },
}

/// Actions on entries by key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyDo {
    /// Evicts the entry.
    Evict,
    /// Pins the entry.
    Pin,
    /// Unpins the entry.
    Unpin,
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    version: u32,
    ask: Ask,
}

/// Answers requests: a value, or an error message.
pub type Answer = Arc<dyn Fn(Ask) -> BoxFuture<Result<serde_json::Value, String>> + Send + Sync>;

#[derive(Debug, Serialize, Deserialize)]
struct Reply {
    version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn path_of(dev: (u32, u32)) -> PathBuf {
    PathBuf::from(format!("{DIR}/{}:{}.sock", dev.0, dev.1))
}

/// The listening socket. It is removed when dropped.
pub struct Control {
    /// The socket's path and inode; `None`: another owner removes the socket.
    made: Option<(PathBuf, u64)>,
    task: tokio::task::JoinHandle<()>,
    ending: CancellationToken,
}

impl Control {
    /// Starts to answer requests about the mount with device number `dev`.
    ///
    /// # Errors
    /// The directory or the socket cannot be created.
    pub fn start(dev: (u32, u32), answer: Answer) -> io::Result<Self> {
        std::fs::create_dir_all(DIR)?;
        Self::start_at(path_of(dev), answer)
    }

    /// Starts to answer requests on a socket at `path`. Replaces a file at this path.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn start_at(path: PathBuf, answer: Answer) -> io::Result<Self> {
        // Device numbers are reused, so a killed daemon may have left a socket with this name.
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        let inode = std::fs::metadata(&path)?.ino();
        let mut control = Self::on(listener, answer);
        control.made = Some((path, inode));
        Ok(control)
    }

    /// Starts to answer requests on a socket whose file belongs to the caller.
    pub fn on(listener: UnixListener, answer: Answer) -> Self {
        let ending = CancellationToken::new();
        let task = tokio::spawn(serve(listener, answer, ending.clone()));
        Self { made: None, task, ending }
    }

    /// Answers the requests that were sent until now, for `within` at most, and ends.
    pub async fn end(mut self, within: Duration) {
        self.ending.cancel();
        let _ = tokio::time::timeout(within, &mut self.task).await;
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.task.abort();
        let Some((path, inode)) = &self.made else { return };
        // A newer mount may have reused the device number and the name.
        if std::fs::metadata(path).is_ok_and(|meta| meta.ino() == *inode) {
            let _ = std::fs::remove_file(path);
        }
    }
}

async fn serve(listener: UnixListener, answer: Answer, ending: CancellationToken) {
    let conversations = TaskTracker::new();
    let begin = |stream| {
        let answer = answer.clone();
        conversations.spawn(async move {
            // A slow or disconnected client gets no answer.
            let _ = converse(stream, answer).await;
        });
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ending.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => begin(stream),
            Err(e) => {
                tracing::warn!("control socket: {e}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
    // Connections that the kernel has accepted.
    if let Ok(listener) = listener.into_std() {
        while let Ok((stream, _)) = listener.accept() {
            let _ = stream.set_nonblocking(true).and_then(|()| stream.try_into()).map(begin);
        }
    }
    conversations.close();
    conversations.wait().await;
}

async fn converse(mut stream: tokio::net::UnixStream, answer: Answer) -> io::Result<()> {
    let (read, mut write) = stream.split();
    let mut line = String::new();
    let mut request = tokio::io::BufReader::new(read).take(MAX_REQUEST_BYTES);
    tokio::time::timeout(ANSWER_WITHIN, request.read_line(&mut line)).await??;
    let reply = match serde_json::from_str::<Request>(&line) {
        Ok(Request { version: VERSION, ask: Ask::End }) => tokio::select! {
            reply = answer(Ask::End) => reply,
            // The unmount has failed.
            _ = request.read_u8() => return Ok(()),
        },
        Ok(request) if request.version == VERSION => answer(request.ask).await,
        Ok(request) => Err(format!("request version {} is not {VERSION}", request.version)),
        Err(e) => Err(format!("request not understood ({e}); it is of another version")),
    };
    let reply = match reply {
        Ok(answer) => Reply { version: VERSION, answer: Some(answer), error: None },
        Err(error) => Reply { version: VERSION, answer: None, error: Some(error) },
    };
    let mut text = serde_json::to_vec(&reply)?;
    text.push(b'\n');
    tokio::time::timeout(SEND_WITHIN, write.write_all(&text)).await?
}

/// Sends a request to a daemon. Errors name its mount or its socket.
///
/// # Errors
/// The user is not root, there is no daemon, it does not answer in time, or the answer is
/// malformed.
pub fn ask(daemon: &Daemon, what: Ask) -> Result<serde_json::Value, Failure> {
    let dir = &daemon.dir;
    let stream = connect(&daemon.socket, dir, || {
        if daemon.is_mount && has_daemon(dir) {
            format!(
                "the mount {dir} works, but its control socket {} is missing here: ask from the system \
                 where it was mounted, or mount it again",
                daemon.socket.display()
            )
        } else if daemon.is_mount {
            format!("the daemon of {dir} has gone: unmount it (hither umount {dir}) and mount it again")
        } else {
            format!("no daemon answers questions about {dir}: start it again (hither daemon)")
        }
    })?;
    let process = rustix::net::sockopt::socket_peercred(&stream).map(|peer| peer.pid).ok();
    let reply = exchange(stream, what).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Failure::system(late(dir, process)),
        _ => Failure::system(format!("the daemon of {dir}: {e}")),
    })?;
    answer_of(reply, || format!("the daemon of {dir}"))
}

/// Sends a request to the server with the control socket at `path`. Errors name `server`.
///
/// # Errors
/// The user is not root, no server has the socket, it does not answer in time, or the answer is
/// malformed.
pub fn ask_at(path: &Path, server: &str, what: Ask) -> Result<serde_json::Value, Failure> {
    let stream = connect(path, server, || format!("{server} has ended: start it again"))?;
    let reply = exchange(stream, what).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Failure::system(format!(
            "{server} does not answer within {} s: it is stopped or overloaded; try again",
            ANSWER_WITHIN.as_secs()
        )),
        _ => Failure::system(format!("{server}: {e}")),
    })?;
    answer_of(reply, || server.into())
}

/// Whether a process listens on the socket at `path`, as far as the user may know.
pub fn answers(path: &Path) -> bool {
    UnixStream::connect(path).map_or_else(|e| e.kind() == io::ErrorKind::PermissionDenied, |_| true)
}

/// Whether a daemon serves the mount at `dir`. A daemon whose server is silent does not answer.
fn has_daemon(dir: &str) -> bool {
    let (dir, (answer, answered)) = (PathBuf::from(dir), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        let gone = std::fs::metadata(dir).is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN));
        answer.send(gone)
    });
    answered.recv_timeout(PROBE_WITHIN) != Ok(true)
}

fn connect(path: &Path, whose: &str, gone: impl FnOnce() -> String) -> Result<UnixStream, Failure> {
    UnixStream::connect(path).map_err(|e| match e.kind() {
        io::ErrorKind::PermissionDenied => {
            Failure::usage(format!("asking about {whose} needs root: run it with sudo"))
        }
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Failure::system(gone()),
        _ => Failure::system(format!("control socket of {whose}: {e}")),
    })
}

fn answer_of(reply: Reply, whose: impl FnOnce() -> String) -> Result<serde_json::Value, Failure> {
    match reply {
        Reply { answer: Some(answer), .. } => Ok(answer),
        Reply { error, .. } => {
            let error = error.unwrap_or_else(|| "empty answer".into());
            Err(Failure::system(format!("{} refuses: {error}", whose())))
        }
    }
}

/// The message about a running daemon that does not answer.
fn late(dir: &str, process: Option<Pid>) -> String {
    let process = process.map_or_else(String::new, |pid| format!(" (process {pid})"));
    format!(
        "the daemon of {dir}{process} does not answer within {} s: it is stopped or overloaded; the mount may still \
         work: try again",
        ANSWER_WITHIN.as_secs()
    )
}

fn exchange(stream: UnixStream, what: Ask) -> io::Result<Reply> {
    read_reply(send(stream, what)?)
}

fn send(mut stream: UnixStream, what: Ask) -> io::Result<UnixStream> {
    // Requests about the cache, recordings, conflicts and the journal have no time limit.
    stream.set_read_timeout(match what {
        Ask::Cache(_) | Ask::Trace(_) | Ask::Apply(..) | Ask::Flush | Ask::End => None,
        Ask::Sync { within_s } => Some(Duration::from_secs(within_s) + ANSWER_WITHIN),
        Ask::Stat | Ask::Mountstats | Ask::Why(_) | Ask::Calls(_) => Some(ANSWER_WITHIN),
    })?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    let mut request = serde_json::to_vec(&Request { version: VERSION, ask: what })?;
    request.push(b'\n');
    stream.write_all(&request)?;
    Ok(stream)
}

fn read_reply(stream: UnixStream) -> io::Result<Reply> {
    let mut line = String::new();
    BufReader::new(stream.take(MAX_REPLY_BYTES)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Whether a daemon serves the mount of a device.
pub fn is_served(dev: (u32, u32)) -> bool {
    answers(&path_of(dev))
}

/// Whether the daemon of the mount of a device was killed and cannot end. One of its threads waits
/// in the kernel for a program (the lock of a directory, or of a page), and the program waits for
/// an answer of the daemon.
pub fn is_stuck(dev: (u32, u32)) -> bool {
    let Ok(stream) = UnixStream::connect(path_of(dev)) else { return false };
    let Ok(peer) = rustix::net::sockopt::socket_peercred(&stream) else { return false };
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", peer.pid.as_raw_nonzero()));
    // The name of the program is in parentheses, and may contain some.
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
}

/// The daemon of a mount that is about to end.
pub struct Ending {
    /// Its process.
    pub pid: Pid,
    stream: UnixStream,
}

impl Ending {
    /// The daemon of the mount of a device, if its socket accepts connections.
    pub fn of(dev: (u32, u32)) -> Option<Self> {
        let stream = UnixStream::connect(path_of(dev)).ok()?;
        let pid = rustix::net::sockopt::socket_peercred(&stream).ok()?.pid;
        Some(Self { pid, stream: send(stream, Ask::End).ok()? })
    }

    /// The reason why the server does not have everything, after the end of the daemon.
    ///
    /// # Errors
    /// The daemon ended without a message.
    pub fn unsent(self) -> io::Result<Option<String>> {
        let reply = read_reply(self.stream)?;
        let unsent = reply.answer.as_ref().and_then(|answer| answer.get("unsent")?.as_str());
        Ok(unsent.map(String::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Answer {
        Arc::new(|ask| {
            Box::pin(async move {
                match ask {
                    Ask::Stat => Ok(serde_json::json!({ "n": 1 })),
                    _ => Err("not now".into()),
                }
            })
        })
    }

    async fn request(path: PathBuf, what: Ask) -> Reply {
        tokio::task::spawn_blocking(move || exchange(UnixStream::connect(path).unwrap(), what).unwrap())
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn requests_are_answered_until_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0:1.sock");
        let control = Control::start_at(path.clone(), answer()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let reply = request(path.clone(), Ask::Stat).await;
        assert_eq!(reply.answer, Some(serde_json::json!({ "n": 1 })));
        let reply = request(path.clone(), Ask::Mountstats).await;
        assert_eq!(reply.error.as_deref(), Some("not now"));
        drop(control);
        assert!(!path.exists());
    }

    /// A request that was sent before the end is answered, even if it was not accepted yet. A
    /// silent connection does not delay the end beyond the limit.
    #[tokio::test]
    async fn sent_requests_are_answered_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        for silent in [false, true] {
            let control = Control::start_at(path.clone(), answer()).unwrap();
            let _silent = silent.then(|| UnixStream::connect(&path).unwrap());
            let sent = send(UnixStream::connect(&path).unwrap(), Ask::Stat).unwrap();
            let begun = tokio::time::Instant::now();
            control.end(Duration::from_millis(200)).await;
            assert!(silent || begun.elapsed() < Duration::from_millis(200));
            assert_eq!(read_reply(sent).unwrap().answer, Some(serde_json::json!({ "n": 1 })));
            assert!(!path.exists());
        }
    }

    /// Malformed requests and requests of another version get an error.
    #[tokio::test]
    async fn strange_requests_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _control = Control::start_at(path.clone(), answer()).unwrap();
        for text in ["\n", "{}\n", "{\"version\":2,\"ask\":\"stat\"}\n", &format!("{}\n", "x".repeat(10_000))]
        {
            let (path, text) = (path.clone(), text.to_string());
            let reply = tokio::task::spawn_blocking(move || {
                let mut stream = UnixStream::connect(path).unwrap();
                let _ = stream.write_all(text.as_bytes());
                let mut line = String::new();
                BufReader::new(stream).read_line(&mut line).unwrap();
                serde_json::from_str::<Reply>(&line).unwrap()
            });
            assert!(reply.await.unwrap().error.is_some());
        }
    }

    #[test]
    fn silent_daemon_is_named() {
        let line = late("/mnt", Pid::from_raw(42));
        assert!(line.starts_with("the daemon of /mnt (process 42) does not answer within 10 s: "), "{line}");
        assert!(line.ends_with("try again"), "{line}");
    }

    /// A socket of a killed daemon is replaced. A socket of a newer mount is not removed.
    #[tokio::test]
    async fn device_numbers_are_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let old = Control::start_at(path.clone(), answer()).unwrap();
        let _new = Control::start_at(path.clone(), answer()).unwrap();
        drop(old);
        assert!(path.exists());
        assert!(request(path, Ask::Stat).await.answer.is_some());
    }
}
