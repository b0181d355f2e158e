//! The interface between the tools and the binary.

use crate::exit::Failure;
use crate::report::Report;
use crate::source::Source;
use crate::trace::{TraceAsk, TraceReplay};
use hither_nfs::{Options, Version};
use hither_vfs::Env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

/// Services of the binary. All calls may block.
pub trait Host: Send + Sync {
    /// Prepares this process for a measurement: limits and memory.
    fn prepare(&self);

    /// Makes the runtime.
    ///
    /// # Errors
    /// The system provides no threads.
    fn runtime(&self) -> Result<Runtime, Failure>;

    /// The wall clock and randomness of clients.
    fn env(&self) -> Env;

    /// The daemon whose mount contains the path.
    ///
    /// # Errors
    /// The path is not in a mount of hither.
    fn daemon(&self, path: &Path) -> Result<Box<dyn MountDaemon>, Failure>;

    /// The daemons of all mounts in this name space.
    ///
    /// # Errors
    /// The table of mounts cannot be read.
    fn daemons(&self) -> Result<Vec<Box<dyn MountDaemon>>, Failure>;

    /// The settings of a client for a server.
    ///
    /// # Errors
    /// An option is wrong, a file of TLS is unusable, or the server has no address.
    fn client(&self, request: ClientRequest) -> Result<ClientSettings, Failure>;

    /// Reads the files of a trace into the cache.
    ///
    /// # Errors
    /// The list or some files cannot be read.
    fn replay(&self, args: &TraceReplay) -> Result<(), Failure>;
}

/// The daemon of a mount. All calls ask its control socket and block.
pub trait MountDaemon {
    /// The mount point.
    fn dir(&self) -> &str;

    /// The report of the mount.
    ///
    /// # Errors
    /// The daemon does not answer, or is of another version.
    fn report(&self) -> Result<Report, Failure>;

    /// Starts or ends a recording. Returns a [`crate::trace::Trace`] at its end.
    ///
    /// # Errors
    /// The daemon does not answer or refuses.
    fn trace(&self, ask: TraceAsk) -> Result<serde_json::Value, Failure>;
}

/// A server, and the options of a client for it.
#[derive(Debug, Clone)]
pub struct ClientRequest {
    /// The export.
    pub source: Source,
    /// The directory of messages.
    pub dir: PathBuf,
    /// Mount options.
    pub options: Vec<String>,
    /// The address and port that a mount uses. `None` asks the name service, and leaves the
    /// privileged ports to root.
    pub server: Option<SocketAddr>,
}

/// The settings of a client.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// The server's first address, with the port of NFS.
    pub server: SocketAddr,
    /// The versions to try, the highest first.
    pub versions: Vec<Version>,
    /// The client's options; the version is open.
    pub options: Options,
}
