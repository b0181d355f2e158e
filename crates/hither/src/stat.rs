//! `hither stat`: shows the counters of a mount's daemon.
//!
//! The command queries the daemon over its control socket ([`locate`]). It does not access the
//! directory, so it also works for a mount with a dead server.

mod nfsstat;
pub mod server;
pub mod text;

use crate::cli::{Format, StatArgs};
use crate::control::locate::{self, Daemon};
use crate::control::{self, Ask};
use crate::exit::Failure;
use crate::metrics;
use crate::report::Report;
pub use hither_tools::exit::print;
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
    let daemon = locate::daemon(dir)?;
    show(&daemon, format, None)?;
    let Some(every_s) = args.watch else { return Ok(()) };
    let mut last = report(&daemon)?;
    loop {
        #[expect(clippy::disallowed_methods, reason = "a command that waits for its terminal, not logic")]
        std::thread::sleep(Duration::from_secs(every_s));
        let now = report(&daemon)?;
        match format {
            Format::Text => print(&text::change(&last, &now, every_s))?,
            _ => show(&daemon, format, Some(&now))?,
        }
        last = now;
    }
}

/// The report of a mount's daemon.
///
/// # Errors
/// Those of [`control::ask`].
pub fn report(daemon: &Daemon) -> Result<Report, Failure> {
    serde_json::from_value(control::ask(daemon, Ask::Stat)?)
        .map_err(|e| Failure::system(format!("the daemon of {} is of another version: {e}", daemon.dir)))
}

fn show(daemon: &Daemon, format: Format, known: Option<&Report>) -> Result<(), Failure> {
    match format {
        Format::Mountstats => match control::ask(daemon, Ask::Mountstats)? {
            serde_json::Value::String(record) => print(&record),
            _ => Err(Failure::system(format!("the daemon of {} is of another version", daemon.dir))),
        },
        format => {
            let fresh;
            let report = match known {
                Some(report) => report,
                None => {
                    fresh = report(daemon)?;
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
