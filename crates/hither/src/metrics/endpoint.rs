//! Where a mount's figures can be fetched over HTTP: `metrics=ADDRESS:PORT` or `metrics=/SOCKET`,
//! and `--dashboard`.
//!
//! It serves a page, `/metrics`, or the pages of a [`Site`], to readers that are as few and as
//! patient as Prometheus: a request of a few lines, one answer, the end. A reader that sends more,
//! or nothing, is cut off. It knows nothing of the pages but the way to ask for them.

use crate::turn::Turn;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

/// Readers at a time; more wait to be accepted.
const READERS_MAX: usize = 16;
/// Longest request, in bytes.
const REQUEST_MAX_BYTES: usize = 8 << 10;
/// For a request to come, and for a page to go.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes the page.
pub type Page = Arc<dyn Fn() -> String + Send + Sync>;

/// Answers GET and HEAD.
pub type Site = Arc<dyn Fn(&Request<'_>) -> Reply + Send + Sync>;

/// The requested path. A path that is not UTF-8 is empty.
pub struct Request<'a> {
    /// Without the part behind a `?`.
    pub path: &'a str,
    /// That.
    pub query: &'a str,
    /// As which host the reader knows us; empty when it does not say.
    pub host: &'a str,
}

/// An answer.
pub struct Reply {
    /// `200 OK`.
    pub status: &'static str,
    /// Its content type.
    pub kind: &'static str,
    /// Further lines of the head, each with its end.
    pub headers: String,
    /// The body.
    pub body: String,
}

/// The content type that Prometheus expects.
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

impl Reply {
    /// Text for people and programs.
    pub fn plain(status: &'static str, body: impl Into<String>) -> Self {
        Self { status, kind: PLAIN, headers: String::new(), body: body.into() }
    }
}

/// Where it is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// On TCP.
    Tcp(SocketAddr),
    /// On a UNIX socket of mode 0600.
    Unix(PathBuf),
}

impl std::str::FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with('/') {
            return Ok(Self::Unix(text.into()));
        }
        let expected =
            || "expected ADDRESS:PORT, such as 127.0.0.1:9310, or the path of a socket".to_string();
        text.parse().map(Self::Tcp).map_err(|_| expected())
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A place that was taken, before there is anything to serve.
pub struct Bound {
    listener: Listener,
    socket: Option<Socket>,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A socket's file, which goes with it.
struct Socket {
    path: PathBuf,
    inode: u64,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if std::fs::metadata(&self.path).is_ok_and(|meta| meta.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Takes a place. A file that a dead daemon left there is replaced, nothing else.
///
/// # Errors
/// It is taken, or not to be had.
pub async fn bind(place: &Place) -> io::Result<Bound> {
    match place {
        Place::Tcp(addr) => {
            Ok(Bound { listener: Listener::Tcp(TcpListener::bind(addr).await?), socket: None })
        }
        Place::Unix(path) => {
            let _turn = Turn::at(path);
            clear(path)?;
            let listener = UnixListener::bind(path)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
            let inode = std::fs::metadata(path)?.ino();
            let socket = Some(Socket { path: path.clone(), inode });
            Ok(Bound { listener: Listener::Unix(listener), socket })
        }
    }
}

fn clear(path: &Path) -> io::Result<()> {
    let socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    let dead = || {
        std::os::unix::net::UnixStream::connect(path)
            .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
    };
    if socket && dead() { std::fs::remove_file(path) } else { Ok(()) }
}

/// Serves until it is dropped.
pub struct Endpoint {
    task: tokio::task::JoinHandle<()>,
    _socket: Option<Socket>,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Bound {
    /// Where it is, on TCP.
    pub fn address(&self) -> io::Result<SocketAddr> {
        match &self.listener {
            Listener::Tcp(listener) => listener.local_addr(),
            Listener::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Begins to serve `page` as `/metrics`.
    pub fn serve(self, page: Page) -> Endpoint {
        self.serve_within(page, PATIENCE)
    }

    /// Begins to serve a site.
    pub fn serve_site(self, site: Site) -> Endpoint {
        self.serve_site_within(site, PATIENCE)
    }

    pub(super) fn serve_within(self, page: Page, patience: Duration) -> Endpoint {
        let site = move |request: &Request<'_>| match request.path {
            "/metrics" => Reply::plain("200 OK", page()),
            "/" => Reply::plain("200 OK", "The figures of hither are at /metrics\n"),
            _ => Reply::plain("404 Not Found", "try /metrics\n"),
        };
        self.serve_site_within(Arc::new(site), patience)
    }

    fn serve_site_within(self, site: Site, patience: Duration) -> Endpoint {
        let task = tokio::spawn(accept(self.listener, site, patience));
        Endpoint { task, _socket: self.socket }
    }
}

async fn accept(listener: Listener, site: Site, patience: Duration) {
    let readers = Arc::new(Semaphore::new(READERS_MAX));
    loop {
        let Ok(permit) = readers.clone().acquire_owned().await else { return };
        let site = site.clone();
        let accepted = match &listener {
            Listener::Tcp(l) => l.accept().await.map(|(stream, _)| {
                tokio::spawn(async move { (answer(stream, site, patience).await, drop(permit)).0 });
            }),
            Listener::Unix(l) => l.accept().await.map(|(stream, _)| {
                tokio::spawn(async move { (answer(stream, site, patience).await, drop(permit)).0 });
            }),
        };
        if let Err(e) = accepted {
            tracing::warn!("metrics: {e}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// One request, one answer. Errors concern the reader only.
async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, site: Site, patience: Duration) {
    let Ok(Ok(head)) = tokio::time::timeout(patience, head(&mut stream)).await else { return };
    let mut lines = head.split(|&b| b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let mut words = lines.next().unwrap_or_default().split(|&b| b == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let target = std::str::from_utf8(target).unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let host = lines.find(|line| line.len() >= 5 && line[..5].eq_ignore_ascii_case(b"host:"));
    let host = host.and_then(|line| std::str::from_utf8(&line[5..]).ok()).unwrap_or_default().trim();
    let reply = match method {
        b"GET" | b"HEAD" => site(&Request { path, query, host }),
        _ => Reply::plain("405 Method Not Allowed", "try GET\n"),
    };
    let mut text = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\n{}Content-Length: {}\r\nConnection: close\r\n\r\n",
        reply.status,
        reply.kind,
        reply.headers,
        reply.body.len()
    );
    if method != b"HEAD" {
        text.push_str(&reply.body);
    }
    let send = async {
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await
    };
    let _ = tokio::time::timeout(patience, send).await;
}

/// The head of a request, after all of it has come.
async fn head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut all = Vec::with_capacity(1024);
    while !all.windows(4).any(|w| w == b"\r\n\r\n") {
        if all.len() >= REQUEST_MAX_BYTES || stream.read_buf(&mut all).await? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(all)
}
