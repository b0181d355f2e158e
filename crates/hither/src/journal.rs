//! `hither journal`: shows, checks, adopts and flushes the journal of a server.
//!
//! A running server is asked over its control socket. The journal of a server that does not run is
//! read directly. Only `adopt` writes to it.

use crate::cli::{JournalCommand, JournalShow};
use crate::control::{self, Ask, locate};
use crate::exit::{self, Failure};
use crate::serve::report::ServerReport;
use crate::stat::{self, print};
use hither_localfs::local::{JournalInspection, adopt_journal, inspect_journal};
use hither_tools::units::{bytes, duration};
use serde_json::json;
use std::path::Path;

/// Runs a command.
///
/// # Errors
/// There is no such journal or server, the journal cannot be read or settled, or the check found
/// faults ([`exit::FOUND`]).
pub fn run(what: &JournalCommand) -> Result<(), Failure> {
    match what {
        JournalCommand::Show(args) => match &args.server {
            Some(server) => show_running(server.as_deref(), args.json),
            None => show(args),
        },
        JournalCommand::Check(args) => {
            let found = inspect(&args.journal, None)?;
            print(&found.faults.iter().map(|fault| format!("{fault}\n")).collect::<String>())?;
            match found.faults.len() {
                0 => print(&format!("{} records are whole\n", found.records)),
                1 => Err(Failure { code: exit::FOUND, line: "1 fault found".into() }),
                n => Err(Failure { code: exit::FOUND, line: format!("{n} faults found") }),
            }
        }
        JournalCommand::Adopt(args) => {
            adopt_journal(&args.journal, &args.state_dir).map_err(|e| Failure::system(e.to_string()))
        }
        JournalCommand::Flush(args) => {
            let socket = locate::server(args.server.as_deref())?;
            control::ask_at(&socket, &format!("the server at {}", socket.display()), Ask::Flush).map(drop)
        }
    }
}

fn inspect(path: &Path, state_dir: Option<&Path>) -> Result<JournalInspection, Failure> {
    inspect_journal(path, state_dir).map_err(|e| Failure::system(e.to_string()))
}

/// Shows the journal of a running server.
fn show_running(server: Option<&Path>, json: bool) -> Result<(), Failure> {
    let report: ServerReport = stat::server::report(&locate::server(server)?)?;
    let Some(journal) = &report.journal else {
        return Err(Failure::usage("the server has no journal (--journal)"));
    };
    if json {
        let json = serde_json::to_string(journal).map_err(|e| Failure::system(e.to_string()))?;
        return print(&format!("{json}\n"));
    }
    let oldest = journal.oldest_ms.map_or_else(|| "none".into(), |ms| duration(ms * 1000));
    let mut out = format!(
        "exports     {}\nsize        {}\nused        {}\noldest      {oldest}\ncheckpoints {}, {} failed, the last took {}\n",
        report.exports.join(", "),
        bytes(journal.room_bytes),
        bytes(journal.used_bytes),
        journal.checkpoints,
        journal.checkpoint_failures,
        duration(journal.last_checkpoint_ms * 1000)
    );
    for trouble in report.troubles() {
        out.push_str(&format!("trouble     {trouble}\n"));
    }
    print(&out)
}

/// Shows the journal of a server that does not run.
fn show(args: &JournalShow) -> Result<(), Failure> {
    let Some(path) = &args.journal else { return Err(Failure::usage("name a journal, or --server")) };
    let found = inspect(path, args.state_dir.as_deref())?;
    if args.json {
        let all = json!({
            "epoch": format!("{:016x}", found.epoch),
            "size_bytes": found.size_bytes,
            "used_bytes": found.used_bytes,
            "records": found.records,
            "latest_write_s": found.latest_write_s,
            "is_of_this_machine": found.is_of_this_machine,
            "is_of_state_dir": found.is_of_state_dir,
            "is_void": found.is_void,
            "faults": found.faults,
        });
        return print(&format!("{all}\n"));
    }
    let machine = if found.is_of_this_machine { "this machine" } else { "another machine" };
    let dir = match found.is_of_state_dir {
        Some(true) => ", this state directory",
        Some(false) => ", another state directory",
        None => "",
    };
    let void = if found.is_void { ", void" } else { "" };
    let mut out = format!(
        "size        {}\nused        {}\nrecords     {}{void}\nowner       {machine}{dir}\n",
        bytes(found.size_bytes),
        bytes(found.used_bytes),
        found.records
    );
    if let Some(at) = found.latest_write_s {
        out.push_str(&format!("latest      write at {at} s since 1970\n"));
    }
    for fault in &found.faults {
        out.push_str(&format!("fault       {fault}\n"));
    }
    print(&out)
}
