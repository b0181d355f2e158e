//! Chores of the workspace: `cargo xtask tidy`, `cargo xtask test`, `cargo xtask instructions`.
//!
//! `tidy` makes the checks that a compiler does not make: dependencies between crates,
//! documentation of each module, panics on outside data, places of `unsafe`, lengths of files,
//! plain prose, links, and promises without a test. Each check is a function from a file's path and
//! text to complaints.

mod instructions;
mod promises;
mod prose;
mod security;
mod test;
mod tidy;
mod trend;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("tidy") => tidy::run(),
        Some("promises") => tidy::promises(),
        Some("instructions") => instructions::run(&args[1..]),
        Some("trend") => trend::run(&args[1..]),
        Some("test") => test::run(&args[1..]),
        _ => {
            eprintln!("usage: cargo xtask tidy           check what the compiler does not");
            eprintln!("       cargo xtask instructions   count instructions of hot paths (--renew records)");
            eprintln!("       cargo xtask trend LABEL    add the recorded numbers to bench/TREND.md");
            eprintln!("       cargo xtask promises       write docs/PROMISES.md");
            eprintln!(
                "       cargo xtask test ARGS...   cargo test, side by side, and a second look at failures"
            );
            ExitCode::from(2)
        }
    }
}
