//! The caller: supplementary groups and pending signals of the calling thread, from `/proc`.
//!
//! FUSE reports user, group and thread of a caller, but not its supplementary groups. The caller
//! waits in the kernel during its request, so `/proc/TID` describes that call.

use crate::abi::Header;
use hither_vfs::Cred;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time for which the groups of a thread are cached. A path walk or a short-lived compiler sends
/// many requests in that time. Reading the groups costs more than the rest of a request. A process
/// changes its groups as the superuser or together with its user or group id. Both lead to another
/// cache entry.
const REMEMBER: Duration = Duration::from_millis(100);
/// Maximum number of cached identities.
const REMEMBER_MAX: usize = 1024;

/// Identities of callers, by thread, user and group.
#[derive(Debug, Default)]
pub(crate) struct Creds {
    known: Mutex<HashMap<Caller, (Instant, Arc<Cred>)>>,
}

/// Thread, user and group.
type Caller = (u32, u32, u32);

impl Creds {
    /// The caller's identity. Groups are read for all callers except the superuser. A caller in an
    /// invisible process namespace has the groups in the request.
    pub fn of(&self, head: &Header) -> Arc<Cred> {
        if head.uid == 0 || head.tid == 0 {
            let groups = head.groups.iter().copied().collect();
            return Arc::new(Cred { uid: head.uid, gid: head.gid, groups });
        }
        let (key, now) = ((head.tid, head.uid, head.gid), Instant::now());
        let fresh = |at: &Instant| now.duration_since(*at) < REMEMBER;
        if let Some((at, cred)) = self.known.lock().get(&key)
            && fresh(at)
        {
            return cred.clone();
        }
        let groups = match read_proc(head.tid, "status") {
            Some(status) => parse_groups(&status),
            None => head.groups.iter().copied().collect(),
        };
        let cred = Arc::new(Cred { uid: head.uid, gid: head.gid, groups });
        let mut known = self.known.lock();
        if known.len() >= REMEMBER_MAX {
            known.retain(|_, (at, _)| fresh(at));
        }
        if known.len() < REMEMBER_MAX {
            known.insert(key, (now, cred.clone()));
        }
        cred
    }
}

/// Signals of a thread that can end its call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Signals {
    /// The thread is about to die, or gone.
    pub fatal: bool,
    /// The thread does not exist, or is not visible in this process namespace.
    pub gone: bool,
    /// A signal to stop is pending, and the program has a handler for it.
    pub asked_to_stop: bool,
}

/// Reads the pending signals of thread `tid`.
pub(crate) fn signals(tid: u32) -> Signals {
    if tid == 0 {
        return Signals::default();
    }
    let Some(status) = read_proc(tid, "status") else {
        return Signals { fatal: true, gone: true, asked_to_stop: false };
    };
    let mut seen = parse_signals(&status);
    if !seen.fatal && killed_and_exiting(tid) {
        seen.fatal = true;
    }
    seen
}

/// The process of a thread, and its program name.
pub(crate) fn process(tid: u32) -> Option<(u32, String)> {
    let status = read_proc(tid, "status").filter(|_| tid != 0)?;
    let text = |name| field(&status, name).map(|value| String::from_utf8_lossy(value).trim().to_string());
    Some((text(b"Tgid")?.parse().ok()?, text(b"Name")?))
}

/// The parent of a process, or its reaper after the parent has ended.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    let status = read_proc(pid, "status")?;
    std::str::from_utf8(field(&status, b"PPid")?).ok()?.trim().parse().ok()
}

fn read_proc(tid: u32, file: &str) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(2048);
    File::open(format!("/proc/{tid}/{file}")).ok()?.read_to_end(&mut text).ok()?;
    Some(text)
}

fn field<'a>(status: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    status.split(|&b| b == b'\n').find_map(|line| line.strip_prefix(name)?.strip_prefix(b":"))
}

fn parse_groups(status: &[u8]) -> SmallVec<[u32; 8]> {
    let Some(list) = field(status, b"Groups") else { return SmallVec::new() };
    list.split(|b| b.is_ascii_whitespace())
        .filter_map(|n| std::str::from_utf8(n).ok()?.parse().ok())
        .collect()
}

/// A fatal signal arrives at each thread of the process as SIGKILL. A signal to stop with a handler
/// stays pending under its own number.
fn parse_signals(status: &[u8]) -> Signals {
    let mask = |name: &[u8]| -> u64 {
        let hex = field(status, name).unwrap_or_default().trim_ascii();
        std::str::from_utf8(hex).ok().and_then(|s| u64::from_str_radix(s, 16).ok()).unwrap_or(0)
    };
    let bit = |signal: i32| 1u64 << (signal - 1);
    let pending = mask(b"SigPnd") | mask(b"ShdPnd");
    let wanted = [libc::SIGINT, libc::SIGTERM, libc::SIGQUIT, libc::SIGHUP];
    let wanted = wanted.into_iter().fold(0, |set, s| set | bit(s)) & !mask(b"SigBlk");
    Signals {
        fatal: pending & bit(libc::SIGKILL) != 0,
        asked_to_stop: pending & wanted != 0,
        ..Signals::default()
    }
}

/// Whether a killed thread is exiting. It closes its files while exiting, when no signal is pending
/// any more. Its exit code (the last field but none of `/proc/TID/stat`) has the signal then.
fn killed_and_exiting(tid: u32) -> bool {
    const PF_EXITING: u64 = 4;
    let Some(stat) = read_proc(tid, "stat") else { return true };
    // The command name may contain any character. It ends with the last closing parenthesis.
    let Some(end) = stat.iter().rposition(|&b| b == b')') else { return false };
    let rest = String::from_utf8_lossy(&stat[end + 1..]).into_owned();
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // proc(5): the fields start with field 3 (state). flags is field 9, exit_code is field 52.
    let number = |n: usize| fields.get(n - 3).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    number(9) & PF_EXITING != 0 && number(52) & 0x7f != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups and pending signals are parsed from `/proc/TID/status`.
    #[test]
    fn status_file_is_parsed() {
        let status = b"Name:\tx\nGroups:\t4 24 1000 \nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000002\n\
                       SigBlk:\t0000000000000000\n";
        assert_eq!(parse_groups(status)[..], [4, 24, 1000]);
        assert_eq!(parse_signals(status), Signals { asked_to_stop: true, ..Signals::default() });
        let killed = b"SigPnd:\t0000000000000100\nShdPnd:\t0000000000000002\nSigBlk:\t0000000000000002\n";
        assert_eq!(parse_signals(killed), Signals { fatal: true, ..Signals::default() });
        assert_eq!(parse_signals(b""), Signals::default());
    }

    /// A running thread has no pending signals.
    #[test]
    fn live_thread_has_no_signals() {
        assert_eq!(signals(std::process::id()), Signals::default());
    }
}
