//! Finds the socket of a mount.

use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Directory of the daemons' sockets.
const DIR: &str = "/run/hither";

/// The socket of the mount that contains a path, or the path itself when it is a socket.
pub(crate) fn socket(path: &Path) -> io::Result<PathBuf> {
    let meta = std::fs::metadata(path)?;
    if meta.file_type().is_socket() {
        return Ok(path.to_owned());
    }
    let (major, minor) = split(meta.dev());
    let socket = PathBuf::from(format!("{DIR}/{major}:{minor}.programs"));
    match std::fs::symlink_metadata(&socket) {
        Ok(_) => Ok(socket),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let why = format!("{} is not in a mount of hither that has a socket", path.display());
            Err(io::Error::new(ErrorKind::NotFound, why))
        }
        Err(e) => Err(e),
    }
}

/// Major and minor number of a device, in the C library's encoding.
fn split(dev: u64) -> (u64, u64) {
    let major = ((dev & 0x000f_ff00) >> 8) | ((dev & 0xffff_f000_0000_0000) >> 32);
    (major, (dev & 0xff) | ((dev & 0x0000_0fff_fff0_0000) >> 12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_split_like_libc() {
        assert_eq!(split(0x0000_0000_0000_002d), (0, 45));
        assert_eq!(split(0x0000_0000_0010_0801), (8, 257));
        assert_eq!(split(0x0000_1000_0000_0003), (0x1000, 3));
    }

    #[test]
    fn path_outside_mounts_is_reported() {
        let e = socket(Path::new("/proc")).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound);
        assert!(e.to_string().contains("/proc is not in a mount of hither"), "{e}");
    }
}
