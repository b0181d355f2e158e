//! Prints bytes that any program appends to files of a mount, when the mount notices them. It works
//! as `tail -f` without a polling loop.
//!
//!     cargo run --release -p hither-client --example follow -- /mnt/share/log /mnt/share/other

use hither_client::Client;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::time::Duration;

fn main() -> io::Result<()> {
    let paths: Vec<PathBuf> =
        std::env::args_os().skip(1).map(std::path::absolute).collect::<io::Result<_>>()?;
    let first = paths.first().expect("usage: follow FILE...");
    // The file need not exist yet. Its directory leads to the mount.
    let client = Client::connect(first.parent().unwrap_or(first))?;
    // Length of each file when its bytes were last printed.
    let mut seen: Vec<Option<u64>> = vec![None; paths.len()];
    let mut changes = client.watch(&paths)?;
    loop {
        let (i, attr) = match changes.next_within(Duration::from_secs(60)) {
            Err(e) if e.kind() == ErrorKind::TimedOut => continue,
            change => change?,
        };
        let size = match attr {
            Ok(attr) => attr.size,
            Err(e) if e.kind() == ErrorKind::NotFound => 0,
            Err(e) => return Err(e),
        };
        // Existing bytes count as seen. A file that became shorter starts again.
        let from = seen[i].unwrap_or(size);
        let from = if size < from { 0 } else { from };
        if size > from {
            let file = client.open(&paths[i])?;
            let mut bytes = vec![0; (size - from) as usize];
            let n = file.read_at(&mut bytes, from)?;
            io::stdout().write_all(&bytes[..n])?;
            io::stdout().flush()?;
            // The file may have become shorter meanwhile.
            seen[i] = Some(from + n as u64);
        } else {
            seen[i] = Some(size);
        }
    }
}
