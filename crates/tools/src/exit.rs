//! Results of commands: the exit codes of mount(8) and one line for the user.

use std::io::Write;
use std::process::ExitCode;

/// Wrong usage or permissions.
pub const USAGE: u8 = 1;
/// A fault of this system: out of memory, no /dev/fuse, ...
pub const SYSTEM: u8 = 2;
/// `hither doctor` or `hither config check` found something to change.
pub const FOUND: u8 = 3;
/// The user interrupted the command.
pub const INTERRUPTED: u8 = 8;
/// The mount or unmount failed.
pub const MOUNT: u8 = 32;

/// The failure of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// One of this module's exit codes.
    pub code: u8,
    /// The fault, its place and its remedy, in one line without program name and full stop.
    pub line: String,
}

impl Failure {
    /// Wrong usage or permissions.
    pub fn usage(line: impl Into<String>) -> Self {
        Self { code: USAGE, line: line.into() }
    }

    /// A fault of this system.
    pub fn system(line: impl Into<String>) -> Self {
        Self { code: SYSTEM, line: line.into() }
    }

    /// The user ended the command before it was done.
    pub fn interrupted() -> Self {
        Self { code: INTERRUPTED, line: "interrupted".into() }
    }

    /// A failed mount or unmount.
    pub fn mount(line: impl Into<String>) -> Self {
        Self { code: MOUNT, line: line.into() }
    }
}

/// Prints the line of a failure with the name `program`, and returns the exit code.
pub fn finish(program: &str, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // The line may contain text of a server. Control characters must not move the cursor.
            let line: String = failure.line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            eprintln!("{program}: {line}");
            ExitCode::from(failure.code)
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
