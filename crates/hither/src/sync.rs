//! `hither sync`: waits until the server has all data written on a mount, closed or not.
//!
//! The daemon sends the data on a request over the control socket. The command does not access the
//! mount.

use crate::cli::MountSyncArgs;
use crate::control::{self, Ask, locate};
use crate::exit::Failure;

/// Runs the command.
///
/// # Errors
/// There is no mount of hither, the daemon does not answer, or some data is not at the server. That
/// data is kept and sent again.
pub fn run(args: &MountSyncArgs) -> Result<(), Failure> {
    let daemon = locate::daemon(&args.dir)?;
    let answer = control::ask(&daemon, Ask::Sync { within_s: args.timeout })?;
    match answer.get("unsent").and_then(|why| why.as_str()) {
        None => Ok(()),
        Some(why) => {
            Err(Failure::system(format!("not everything of {} is at the server: {why}", daemon.dir)))
        }
    }
}
