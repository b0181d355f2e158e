//! Reads all files below a directory of a mount, many in a round trip. Prints the number of bytes
//! for each kind of name.
//!
//!     cargo run --release -p hither-client --example many -- /mnt/share/src

use hither_client::{Client, Kind};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

fn main() -> io::Result<()> {
    let dir = std::env::args_os().nth(1).map(PathBuf::from).expect("usage: many DIR");
    // The client takes paths relative to the mount's root. This program takes them relative to the
    // working directory.
    let dir = std::path::absolute(dir)?;
    let client = Client::connect(&dir)?;

    // The whole tree with attributes: one request, and entries as they arrive.
    let mut files = Vec::new();
    for entry in client.walk(&dir, u32::MAX)? {
        let entry = entry?;
        match entry.attr {
            Ok(attr) if attr.kind == Kind::File => files.push(dir.join(entry.path)),
            Ok(_) => {}
            Err(e) => eprintln!("{}: {e}", entry.path.display()),
        }
    }

    // Reads the files' bytes. Each file has its own result. A request for a thousand files bounds
    // the memory.
    let mut bytes: BTreeMap<String, usize> = BTreeMap::new();
    for some in files.chunks(1000) {
        for (path, read) in some.iter().zip(client.read_many(some)?) {
            let kind = path.extension().map_or("none".into(), |e| e.to_string_lossy().into_owned());
            match read {
                Ok(read) => *bytes.entry(kind).or_default() += read.len(),
                Err(e) => eprintln!("{}: {e}", path.display()),
            }
        }
    }
    for (kind, bytes) in bytes {
        println!("{kind}\t{bytes}");
    }
    Ok(())
}
