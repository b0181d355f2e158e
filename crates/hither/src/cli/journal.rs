//! The command line of `hither journal`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `hither journal`.
#[derive(Debug, Args, Clone)]
pub struct JournalArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub what: JournalCommand,
}

/// Commands on the journal of a server.
#[derive(Debug, Subcommand, Clone)]
pub enum JournalCommand {
    /// Show size, use, age and owner of a journal
    Show(JournalShow),
    /// Read each record of a journal and its checksum, and print a line for each fault. Changes
    /// nothing
    Check(JournalCheck),
    /// Take over a journal that came with its state directory from another machine or path
    Adopt(JournalAdopt),
    /// Settle all records of a running server's journal in the file system below
    Flush(JournalFlush),
}

/// `hither journal show`.
#[derive(Debug, Args, Clone)]
pub struct JournalShow {
    /// The journal of a server that does not run
    #[arg(required_unless_present = "server")]
    pub journal: Option<PathBuf>,
    /// Show the journal of a running server, by its state directory or control socket; default: the
    /// only one with a state directory in /var/lib/hither
    #[arg(long, value_name = "STATE-DIR|SOCKET", num_args = 0..=1, conflicts_with = "journal")]
    pub server: Option<Option<PathBuf>>,
    /// Also show whether the journal belongs to this state directory
    #[arg(long, value_name = "DIR", conflicts_with = "server")]
    pub state_dir: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `hither journal check`.
#[derive(Debug, Args, Clone)]
#[command(
    after_help = "Exit status: 0 no fault, 3 faults, 2 the journal cannot be read or a server uses it. Damage of the last \
                        batch looks like a write that a power cut tore, and is no fault. While the check runs, no server can start with the journal."
)]
pub struct JournalCheck {
    /// The journal of a server that does not run
    pub journal: PathBuf,
}

/// `hither journal adopt`.
#[derive(Debug, Args, Clone)]
#[command(
    after_help = "For a disk that moves to a spare machine with the served directory, the journal and the state directory. \
                        The next start of the server applies the records. A damaged journal, a journal in use and a journal of \
                        another state directory are refused. After a kill, repeat the command."
)]
pub struct JournalAdopt {
    /// The journal, at its present path
    pub journal: PathBuf,
    /// The state directory of the server that began the journal, at its present path
    #[arg(long, value_name = "DIR")]
    pub state_dir: PathBuf,
}

/// `hither journal flush`.
#[derive(Debug, Args, Clone)]
#[command(
    after_help = "When the command succeeds, the file system below has every change that was acknowledged before. The server \
                        continues to use the journal. An orderly end of the server settles the journal as well."
)]
pub struct JournalFlush {
    /// The server's state directory or control socket; default: the only one with a state directory
    /// in /var/lib/hither
    #[arg(long, value_name = "STATE-DIR|SOCKET")]
    pub server: Option<PathBuf>,
}
