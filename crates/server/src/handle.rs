//! Filehandles on the wire: which export, and the handle of its `Vfs`.
//!
//! It knows nothing of what is in the latter; that it cannot be forged is the business of the layer
//! that made it. In front stand four bytes: what kind of handle this is and the export's number, so
//! that handles outlive restarts and changes of the exports.
//!
//! ```text
//! 0x11 | number of the export, 3 bytes | handle of the Vfs        an object of an export
//! 0x12 | number of the directory, 3 bytes                         a directory above the exports (NFSv4's pseudo file system)
//! ```

use bytes::{BufMut, Bytes, BytesMut};
use hither_vfs::Fh;

const OBJECT: u8 = 0x11;
const ABOVE: u8 = 0x12;
/// Bytes in front of the handle of the `Vfs`.
pub const PREFIX_BYTES: usize = 4;
/// Numbers of exports and directories are below this.
pub const NUMBERS: u32 = 1 << 24;

/// What a filehandle names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handle {
    /// An object of an export, whose number is below [`NUMBERS`].
    Object(u32, Fh),
    /// A directory above the exports.
    Above(u32),
}

impl Handle {
    /// Reads a filehandle; `None` when no server of this kind made it. The `Vfs` handle is a copy,
    /// which may be kept.
    pub fn read(wire: &[u8]) -> Option<Self> {
        let (prefix, rest) = wire.split_at_checked(PREFIX_BYTES)?;
        let number = u32::from_be_bytes([0, prefix[1], prefix[2], prefix[3]]);
        match (prefix[0], rest) {
            (OBJECT, [_, ..]) => Some(Self::Object(number, Fh(Bytes::copy_from_slice(rest)))),
            (ABOVE, []) => Some(Self::Above(number)),
            _ => None,
        }
    }

    /// The bytes on the wire.
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

    #[test]
    fn what_no_server_made_is_none() {
        for wire in [&b""[..], b"\x11\0\0", b"\x11\0\0\x01", b"\x12\0\0\x01x", b"\x13\0\0\x01x"] {
            assert_eq!(Handle::read(wire), None);
        }
    }
}
