//! The services of this binary for the tools ([`hither_tools`]).

use crate::control::locate::{self, Daemon};
use crate::control::{self, Ask, TraceAsk};
use crate::daemon::process;
use crate::exit::Failure;
use crate::mount::Job;
use crate::options::{Versions, Wanted};
use crate::report::Report;
use crate::source::NoAddress;
use crate::{cache, mountinfo, stack, stat};
use hither_nfs::Version;
use hither_tools::trace::TraceReplay;
use hither_tools::{ClientRequest, ClientSettings, Host, MountDaemon};
use hither_vfs::Env;
use std::path::Path;
use tokio::runtime::Runtime;

/// The port of NFS (RFC 8881, section 2.9).
const NFS_PORT: u16 = 2049;

/// The services of this binary.
pub struct Binary;

impl Host for Binary {
    fn prepare(&self) {
        process::prepare();
    }

    fn runtime(&self) -> Result<Runtime, Failure> {
        process::runtime()
    }

    fn env(&self) -> Env {
        stack::env()
    }

    fn daemon(&self, path: &Path) -> Result<Box<dyn MountDaemon>, Failure> {
        Ok(Box::new(locate::daemon(path)?))
    }

    fn daemons(&self) -> Result<Vec<Box<dyn MountDaemon>>, Failure> {
        let all = mountinfo::read().map_err(|e| Failure::system(format!("/proc/self/mountinfo: {e}")))?;
        let ours = all.iter().filter(|mount| mount.is_ours());
        let daemons = ours.map(|mount| Daemon::of_mount(mount.dev, &mount.point));
        Ok(daemons.map(|daemon| Box::new(daemon) as Box<dyn MountDaemon>).collect())
    }

    fn client(&self, request: ClientRequest) -> Result<ClientSettings, Failure> {
        let mut wanted = Wanted::parse(&request.options, false).map_err(Failure::usage)?;
        let addrs = match request.server {
            Some(server) => vec![server],
            None => {
                // Only root may use a privileged port.
                wanted.resvport &= rustix::process::geteuid().is_root();
                request.source.resolve(wanted.family).map_err(|e| match e {
                    NoAddress::Never(line) | NoAddress::Now(line) => Failure::mount(line),
                })?
            }
        };
        let Some(mut server) = addrs.first().copied() else {
            return Err(Failure::mount(format!("{}: no address", request.source.host)));
        };
        server.set_port(wanted.port.unwrap_or(NFS_PORT));
        let versions = match wanted.versions {
            Versions::Only(version) => vec![version],
            Versions::Any4 => vec![Version::V42, Version::V41],
            Versions::Any => vec![Version::V42, Version::V41, Version::V3],
        };
        let job = Job { source: request.source, dir: request.dir, wanted, client_name: None };
        let options = stack::client_options(&job, addrs).map_err(Failure::system)?;
        Ok(ClientSettings { server, versions, options })
    }

    fn replay(&self, args: &TraceReplay) -> Result<(), Failure> {
        cache::warm::replay(&args.file, args.root.as_deref(), args.jobs, args.quiet)
    }
}

impl MountDaemon for Daemon {
    fn dir(&self) -> &str {
        &self.dir
    }

    fn report(&self) -> Result<Report, Failure> {
        stat::report(self)
    }

    fn trace(&self, ask: TraceAsk) -> Result<serde_json::Value, Failure> {
        control::ask(self, Ask::Trace(ask))
    }
}
