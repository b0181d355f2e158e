//! Actions on cached files by their keys, for programs with their own eviction policy.

use crate::control::{self, Ask, CacheAsk, KeyDo, locate};
use crate::exit::Failure;
use serde_json::json;
use std::io::BufRead;
use std::path::PathBuf;

/// Most keys of one request. A key has 32 digits, and requests are bounded.
const AT_ONCE: usize = 500;
/// Longest line: a key and a CR LF line end.
const LINE_MAX: usize = 64;

/// Reads keys from standard input and applies the action.
///
/// # Errors
/// The paths are not one directory of a mount, a line is not a key, or the daemon reports an error.
pub fn run(places: &[PathBuf], act: KeyDo, json: bool) -> Result<(), Failure> {
    let [place] = places else {
        return Err(Failure::usage("--keys: give one directory of a mount"));
    };
    let daemon = locate::daemon(place)?;
    let name = match act {
        KeyDo::Evict => "evicted",
        KeyDo::Pin => "pinned",
        KeyDo::Unpin => "unpinned",
    };
    let (mut count, mut some) = (0, Vec::with_capacity(AT_ONCE));
    let mut send = |some: &mut Vec<String>| -> Result<(), Failure> {
        let keys = std::mem::take(some);
        if !keys.is_empty() {
            let answer = control::ask(&daemon, Ask::Cache(CacheAsk::Keys(act, keys)))?;
            count += answer[name].as_u64().unwrap_or(0);
        }
        Ok(())
    };
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| Failure::system(format!("standard input: {e}")))?;
        let key = line.trim();
        if key.len() > LINE_MAX {
            return Err(Failure::usage("standard input: a line is not a key"));
        }
        if !key.is_empty() {
            some.push(key.to_string());
        }
        if some.len() == AT_ONCE {
            send(&mut some)?;
        }
    }
    send(&mut some)?;
    super::tell(&json!({ name: count }), json)
}
