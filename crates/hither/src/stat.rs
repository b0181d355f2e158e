//! `hither stat`: shows the counters of a mount's daemon.
//!
//! The command finds the mount in mountinfo and queries the daemon over the control socket. It does
//! not access the directory, so it also works for a mount with a dead server.

mod nfsstat;
pub mod server;
pub mod text;

use crate::cli::{Format, StatArgs};
use crate::control::{self, Ask};
use crate::exit::Failure;
use crate::metrics;
use crate::mountinfo;
use crate::report::Report;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Shows the counters.
///
/// # Errors
/// The path is not in a mount of hither; those of [`control::ask`].
pub fn run(args: &StatArgs) -> Result<(), Failure> {
    let format = if args.json { Format::Json } else { args.format };
    let dir = match (&args.dir, &args.server) {
        (_, Some(server)) => return server::run(server.as_deref(), format, args.watch),
        (Some(dir), None) => dir,
        (None, None) => return Err(Failure::usage("name a directory of a mount, or --server")),
    };
    let (dev, dir) = locate(dir)?;
    show(dev, &dir, format, None)?;
    let Some(every_s) = args.watch else { return Ok(()) };
    let mut last = report(dev, &dir)?;
    loop {
        #[expect(clippy::disallowed_methods, reason = "a command that waits for its terminal, not logic")]
        std::thread::sleep(Duration::from_secs(every_s));
        let now = report(dev, &dir)?;
        match format {
            Format::Text => print(&text::change(&last, &now, every_s))?,
            _ => show(dev, &dir, format, Some(&now))?,
        }
        last = now;
    }
}

/// Device number and mount point of the mount that contains the directory.
///
/// # Errors
/// The path is not in a mount of hither.
pub fn locate(path: &Path) -> Result<((u32, u32), String), Failure> {
    let shown = path.display();
    let mounts = mountinfo::read().map_err(|e| Failure::system(format!("/proc/self/mountinfo: {e}")))?;
    let path = mountinfo::resolve(&mounts, path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Failure::usage(format!("{shown}: no such directory")),
        _ => Failure::usage(format!("{shown}: {e}")),
    })?;
    match mountinfo::ours_holding(&mounts, &path) {
        Some(mount) => Ok((mount.dev, mount.point.display().to_string())),
        None => Err(Failure::usage(format!(
            "{shown} is not in a mount of hither: `findmnt -t {}` lists them",
            mountinfo::FSTYPE
        ))),
    }
}

/// The report of a mount's daemon.
///
/// # Errors
/// Those of [`control::ask`].
pub fn report(dev: (u32, u32), dir: &str) -> Result<Report, Failure> {
    serde_json::from_value(control::ask(dev, dir, Ask::Stat)?)
        .map_err(|e| Failure::system(format!("the daemon of {dir} is of another version: {e}")))
}

fn show(dev: (u32, u32), dir: &str, format: Format, known: Option<&Report>) -> Result<(), Failure> {
    match format {
        Format::Mountstats => match control::ask(dev, dir, Ask::Mountstats)? {
            serde_json::Value::String(record) => print(&record),
            _ => Err(Failure::system(format!("the daemon of {dir} is of another version"))),
        },
        format => {
            let fresh;
            let report = match known {
                Some(report) => report,
                None => {
                    fresh = report(dev, dir)?;
                    &fresh
                }
            };
            match format {
                Format::Json => {
                    let json = serde_json::to_string(report).map_err(|e| Failure::system(e.to_string()))?;
                    print(&format!("{json}\n"))
                }
                Format::Prometheus => print(&metrics::render(report)),
                Format::Nfsstat => print(&nfsstat::record(report)),
                _ => print(&text::whole(report)),
            }
        }
    }
}

/// Writes to standard output; a closed reader (`| head`) is no failure.
///
/// # Errors
/// It cannot be written.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(e) => Err(Failure::system(format!("standard output: {e}"))),
        Ok(()) => Ok(()),
    }
}
