//! A report in the layout of `nfsstat -c`, for users and scripts that know it.
//!
//! The kernel's client counts by procedure. This report counts a message by its purpose (`hither
//! stat`). The columns are the operations that occurred.

use crate::report::Report;
use std::fmt::Write;

/// Most operations in a row.
const COLUMNS: usize = 6;

/// The whole report.
pub fn record(report: &Report) -> String {
    let sum = |of: fn(&crate::report::Operation) -> u64| report.operations.iter().map(of).sum::<u64>();
    let (calls, retrans) = (sum(|op| op.calls), sum(|op| op.retransmissions));
    let mut out = String::from("Client rpc stats:\ncalls      retrans    authrefrsh\n");
    // Credentials are encoded for each user and never refreshed.
    let _ = writeln!(out, "{calls:<10} {retrans:<10} 0");
    let major = report.mount.nfs_version.split('.').next().unwrap_or_default();
    let _ = writeln!(out, "\nClient nfs v{major}:");
    for row in report.operations.chunks(COLUMNS) {
        let names: Vec<String> = row.iter().map(|op| format!("{:<16}", op.name.to_lowercase())).collect();
        let _ = writeln!(out, "{}", names.join(" ").trim_end());
        let percent = |n: u64| (n * 100).checked_div(calls).unwrap_or(0);
        let counts: Vec<String> =
            row.iter().map(|op| format!("{:<8}{:>3}%    ", op.calls, percent(op.calls))).collect();
        let _ = writeln!(out, "{}", counts.join(" ").trim_end());
    }
    out
}
