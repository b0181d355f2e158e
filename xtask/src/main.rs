//! Chores of the workspace: `cargo xtask tidy`.
//!
//! The checks that a compiler does not make: which crate may know which, documentation at the top of each module, no
//! panics on outside data, `unsafe` only where it belongs, files that fit a reader, links that lead somewhere, promises
//! that have a test. Each check is a function from a file's path and text to complaints.

mod tidy;

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => tidy::run(),
        _ => {
            eprintln!("usage: cargo xtask tidy    check what the compiler does not");
            ExitCode::from(2)
        }
    }
}
