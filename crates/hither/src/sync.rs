//! `hither sync`: everything that was written on a mount, closed or not, is at the server.
//!
//! The daemon is asked over the control socket, and sends it; the mount is not touched.

use crate::cli::MountSyncArgs;
use crate::control::{self, Ask};
use crate::exit::Failure;
use crate::stat;

/// Runs the command.
///
/// # Errors
/// No mount of hither, no answer, or something is not at the server: it is kept and tried again.
pub fn run(args: &MountSyncArgs) -> Result<(), Failure> {
    let (dev, dir) = stat::locate(&args.dir)?;
    let answer = control::ask(dev, &dir, Ask::Sync { within_s: args.timeout })?;
    match answer.get("unsent").and_then(|why| why.as_str()) {
        None => Ok(()),
        Some(why) => Err(Failure::system(format!("not everything of {dir} is at the server: {why}"))),
    }
}
