//! Filehandles on the wire: the number of the export, and the handle of its `Vfs`.
//!
//! The module does not look into the `Vfs` handle. The layer that made the handle protects it
//! against forgery. The first four bytes hold the kind of the handle and the export's number.
//! Handles therefore survive restarts and changes of the exports.
//!
//! ```text
//! 0x11 | number of the export, 3 bytes | handle of the Vfs   an object of an export
//! 0x12 | number of the directory, 3 bytes                    a directory above the exports
//!                                                            (NFSv4's pseudo file system)
//! ```

use bytes::{BufMut, Bytes, BytesMut};
use hither_vfs::Fh;

const OBJECT: u8 = 0x11;
const ABOVE: u8 = 0x12;
/// Bytes in front of the handle of the `Vfs`.
pub const PREFIX_BYTES: usize = 4;
/// Numbers of exports and directories are less than this.
pub const NUMBERS: u32 = 1 << 24;

/// The object that a filehandle names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handle {
    /// An object of an export: the export's number, below [`NUMBERS`], and the `Vfs` handle.
    Object(u32, Fh),
    /// A directory above the exports, by its number.
    Above(u32),
}

impl Handle {
    /// Reads a filehandle. `None` when no server of this kind made it. The `Vfs` handle is a copy
    /// that the caller may keep.
    pub fn read(wire: &[u8]) -> Option<Self> {
        let (prefix, rest) = wire.split_at_checked(PREFIX_BYTES)?;
        let number = u32::from_be_bytes([0, prefix[1], prefix[2], prefix[3]]);
        match (prefix[0], rest) {
            (OBJECT, [_, ..]) => Some(Self::Object(number, Fh(Bytes::copy_from_slice(rest)))),
            (ABOVE, []) => Some(Self::Above(number)),
            _ => None,
        }
    }

    /// The filehandle as bytes on the wire.
    pub fn write(&self) -> Bytes {
        match self {
            Self::Object(number, fh) => object(*number, fh),
            Self::Above(number) => Bytes::copy_from_slice(&(number | u32::from(ABOVE) << 24).to_be_bytes()),
        }
    }
}

/// The wire handle of an object of an export.
pub fn object(number: u32, fh: &Fh) -> Bytes {
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + fh.0.len());
    out.put_u32(number | u32::from(OBJECT) << 24);
    out.put_slice(&fh.0);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_survive_the_wire() {
        for handle in [Handle::Object(0xabcdef, Fh(Bytes::from_static(b"x"))), Handle::Above(3)] {
            assert_eq!(Handle::read(&handle.write()), Some(handle));
        }
    }

    /// Filehandles that no server of this kind made are refused: wrong lengths and unknown kinds.
    #[test]
    fn malformed_handle_is_refused() {
        for wire in [&b""[..], b"\x11\0\0", b"\x11\0\0\x01", b"\x12\0\0\x01x", b"\x13\0\0\x01x"] {
            assert_eq!(Handle::read(wire), None);
        }
    }
}
