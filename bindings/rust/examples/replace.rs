//! Replaces a file of a mount. Every open finds the old bytes or the new ones, also after a crash.
//!
//!     some-program |
//!         cargo run --release -p hither-client --example replace -- /mnt/share/state.json

use hither_client::{Client, OpenOptions};
use std::io::{self, Read};
use std::path::PathBuf;

fn main() -> io::Result<()> {
    let path = std::env::args_os().nth(1).map(PathBuf::from).expect("usage: replace FILE < BYTES");
    let path = std::path::absolute(path)?;
    let client = Client::connect(path.parent().unwrap_or(&path))?;
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes)?;

    let mut name = path.clone().into_os_string();
    name.push(format!(".new-{}", std::process::id()));
    let new = PathBuf::from(name);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&client, &new)?;
    let written = file.write_all_at(&bytes, 0);
    // The close reports errors of delayed writes. After an error the file must not be renamed.
    let stable = written.and(file.close());
    match stable.and_then(|()| client.rename(&new, &path)) {
        Ok(()) => Ok(()),
        Err(e) => {
            let _ = client.remove_file(&new);
            Err(e)
        }
    }
}
