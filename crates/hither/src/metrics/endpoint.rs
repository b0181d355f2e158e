//! Serves metrics over HTTP: `metrics=ADDRESS:PORT` or `metrics=/SOCKET`, and `--dashboard`.
//!
//! The endpoint serves the page `/metrics`, or the pages of a [`Site`]. It expects few readers,
//! like Prometheus, with one short request and one answer for each connection. A reader that sends
//! more or nothing is disconnected. This module knows no content of the pages.

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

/// Most readers at a time. Further readers are not accepted yet.
const READERS_MAX: usize = 16;
/// Longest request, in bytes.
const REQUEST_MAX_BYTES: usize = 8 << 10;
/// Longest time for a request to arrive and for an answer to be sent.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes the page.
pub type Page = Arc<dyn Fn() -> String + Send + Sync>;

/// Answers GET and HEAD requests.
pub type Site = Arc<dyn Fn(&Request<'_>) -> Reply + Send + Sync>;

/// A request. A path that is not UTF-8 is empty.
pub struct Request<'a> {
    /// The path up to a `?`.
    pub path: &'a str,
    /// The part after the `?`.
    pub query: &'a str,
    /// The `Host` header; empty if absent.
    pub host: &'a str,
}

/// An answer.
pub struct Reply {
    /// Status, for example `200 OK`.
    pub status: &'static str,
    /// Content type.
    pub kind: &'static str,
    /// Further header lines, each with its line end.
    pub headers: String,
    /// The body.
    pub body: String,
}

/// The content type that Prometheus expects.
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

impl Reply {
    /// A plain-text answer.
    pub fn plain(status: &'static str, body: impl Into<String>) -> Self {
        Self { status, kind: PLAIN, headers: String::new(), body: body.into() }
    }
}

/// The address of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndpointAddr {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A UNIX socket of mode 0600.
    Unix(PathBuf),
}

impl std::str::FromStr for EndpointAddr {
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

impl std::fmt::Display for EndpointAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A bound address that serves nothing yet.
pub struct Bound {
    listener: Listener,
    socket: Option<Socket>,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The file of a socket. Dropping it removes the file.
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

/// Binds an address. The socket of a dead daemon is replaced; any other file is not.
///
/// # Errors
/// The address is in use or not available.
pub async fn bind(place: &EndpointAddr) -> io::Result<Bound> {
    match place {
        EndpointAddr::Tcp(addr) => {
            Ok(Bound { listener: Listener::Tcp(TcpListener::bind(addr).await?), socket: None })
        }
        EndpointAddr::Unix(path) => {
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

/// A serving endpoint. Dropping it ends the service.
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
    /// The address if it is a TCP address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        match &self.listener {
            Listener::Tcp(listener) => listener.local_addr(),
            Listener::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Starts to serve `page` as `/metrics`.
    pub fn serve(self, page: Page) -> Endpoint {
        self.serve_within(page, PATIENCE)
    }

    /// Starts to serve a site.
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

/// Reads one request and sends one answer. Errors concern this reader only.
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

/// Reads the whole head of a request.
async fn head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut all = Vec::with_capacity(1024);
    while !all.windows(4).any(|w| w == b"\r\n\r\n") {
        if all.len() >= REQUEST_MAX_BYTES || stream.read_buf(&mut all).await? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(all)
}
