//! How a command ends: the exit codes of mount(8) and one line for the user.

use std::process::ExitCode;

/// Wrong usage or permissions.
pub const USAGE: u8 = 1;
/// This system's trouble: out of memory, no /dev/fuse, ...
pub const SYSTEM: u8 = 2;
/// `hither doctor` or `hither config check` found something that should be changed.
pub const FOUND: u8 = 3;
/// The user interrupted.
pub const INTERRUPTED: u8 = 8;
/// The mount or unmount failed.
pub const MOUNT: u8 = 32;

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// One of the codes above.
    pub code: u8,
    /// The fault, its place and its remedy: one line without full stop and program name.
    pub line: String,
}

impl Failure {
    /// Wrong usage or permissions.
    pub fn usage(line: impl Into<String>) -> Self {
        Self { code: USAGE, line: line.into() }
    }

    /// This system's trouble.
    pub fn system(line: impl Into<String>) -> Self {
        Self { code: SYSTEM, line: line.into() }
    }

    /// A mount or unmount that failed.
    pub fn mount(line: impl Into<String>) -> Self {
        Self { code: MOUNT, line: line.into() }
    }
}

/// Prints the line of a failure, as `program`, and makes the exit code.
pub fn finish(program: &str, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // The line may contain text of a server; it does not get to move the cursor.
            let line: String = failure.line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            eprintln!("{program}: {line}");
            ExitCode::from(failure.code)
        }
    }
}
