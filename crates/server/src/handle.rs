//! Filehandles on the wire: the number of the export, and the handle of its `Vfs`.
//!
//! The module does not look into the `Vfs` handle. The layer that made the handle protects it
//! against forgery. The first four bytes hold the kind of the handle and the export's number.
//! Handles therefore survive restarts and changes of the exports.
//!
//! The exports of a gateway share the handles of their origin. Its handles have a seal over number
//! and handle ([`seal_handles`]), so a handle of one export is not valid in another. A sealed
//! handle that is too long for NFSv3 travels as a keyed hash ([`LongHandles`]).
//!
//! ```text
//! 0x11 | number of the export, 3 bytes | handle of the Vfs   an object of an export
//! 0x13 | number of the export, 3 bytes | handle of the Vfs | seal, 8 bytes
//! 0x14 | number of the export, 3 bytes | hash of number and handle, 16 bytes
//! 0x12 | number of the directory, 3 bytes                    a directory above the exports
//!                                                            (NFSv4's pseudo file system)
//! ```

use crate::long_handles::{HASH_BYTES, LongHandles};
use bytes::{BufMut, Bytes, BytesMut};
use hither_proto::nfs3::FH_MAX_BYTES;
use hither_vfs::Fh;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use std::sync::OnceLock;

const OBJECT: u8 = 0x11;
const ABOVE: u8 = 0x12;
const SEALED: u8 = 0x13;
const LONG: u8 = 0x14;
/// Bytes in front of the handle of the `Vfs`.
const PREFIX_BYTES: usize = 4;
/// Bytes of a seal: SipHash-2-4 of the bytes in front of it.
const SEAL_BYTES: usize = 8;
/// Numbers of exports and directories are less than this.
pub const NUMBERS: u32 = 1 << 24;

/// The seal of all handles of this process, if they have one.
static SEAL: OnceLock<Seal> = OnceLock::new();

/// The secret of sealed handles, and the handles that are too long for a seal.
struct Seal {
    keyed: SipHasher24,
    long: LongHandles,
}

impl Seal {
    fn of(&self, bytes: &[u8]) -> [u8; SEAL_BYTES] {
        let mut keyed = self.keyed;
        keyed.write(bytes);
        keyed.finish().to_be_bytes()
    }
}

/// Seals the handles of all exports of this process with a secret key. To be called before the
/// first client is served.
pub fn seal_handles(key: &[u8; 16], long: LongHandles) {
    let _ = SEAL.set(Seal { keyed: SipHasher24::new_with_key(key), long });
}

/// The object that a filehandle names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handle {
    /// An object of an export: the export's number, below [`NUMBERS`], and the `Vfs` handle.
    Object(u32, Fh),
    /// A directory above the exports, by its number.
    Above(u32),
    /// An object, in a handle without the seal of this process.
    Foreign,
}

impl Handle {
    /// Reads a filehandle. `None` when no server of this kind made it. The `Vfs` handle is a copy
    /// that the caller may keep.
    pub fn read(wire: &[u8]) -> Option<Self> {
        Self::read_with(SEAL.get(), wire)
    }

    fn read_with(seal: Option<&Seal>, wire: &[u8]) -> Option<Self> {
        let (prefix, rest) = wire.split_at_checked(PREFIX_BYTES)?;
        let number = u32::from_be_bytes([0, prefix[1], prefix[2], prefix[3]]);
        let object =
            |fh: &[u8]| (!fh.is_empty()).then(|| Self::Object(number, Fh(Bytes::copy_from_slice(fh))));
        match (prefix[0], seal) {
            (ABOVE, _) => rest.is_empty().then_some(Self::Above(number)),
            (OBJECT, None) => object(rest),
            (OBJECT, Some(_)) | (SEALED | LONG, None) => Some(Self::Foreign),
            (SEALED, Some(seal)) => {
                let (sealed, found) = wire.split_at(wire.len().saturating_sub(SEAL_BYTES));
                if seal.of(sealed) == found {
                    object(sealed.get(PREFIX_BYTES..)?)
                } else {
                    Some(Self::Foreign)
                }
            }
            (LONG, Some(seal)) => {
                let hash: &[u8; HASH_BYTES] = rest.try_into().ok()?;
                let found = seal.long.find(hash).filter(|(of, _)| *of == number);
                Some(found.map_or(Self::Foreign, |(_, fh)| Self::Object(number, fh)))
            }
            _ => None,
        }
    }

    /// The filehandle as bytes on the wire.
    pub fn write(&self) -> Bytes {
        match self {
            Self::Object(number, fh) => object(*number, fh),
            Self::Above(number) => Bytes::copy_from_slice(&(number | u32::from(ABOVE) << 24).to_be_bytes()),
            Self::Foreign => Bytes::new(),
        }
    }
}

/// The wire handle of an object of an export.
pub fn object(number: u32, fh: &Fh) -> Bytes {
    object_with(SEAL.get(), number, fh)
}

fn object_with(seal: Option<&Seal>, number: u32, fh: &Fh) -> Bytes {
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + fh.0.len() + SEAL_BYTES);
    let prefix = |kind: u8| number | u32::from(kind) << 24;
    let Some(seal) = seal else {
        out.put_u32(prefix(OBJECT));
        out.put_slice(&fh.0);
        return out.freeze();
    };
    let is_long = PREFIX_BYTES + fh.0.len() + SEAL_BYTES > FH_MAX_BYTES;
    if let Some(hash) = is_long.then(|| seal.long.name(number, fh)).flatten() {
        out.put_u32(prefix(LONG));
        out.put_slice(&hash);
    } else {
        out.put_u32(prefix(SEALED));
        out.put_slice(&fh.0);
        let sealed = seal.of(&out);
        out.put_slice(&sealed);
    }
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

    fn sealed_by(key: &[u8; 16]) -> Seal {
        Seal { keyed: SipHasher24::new_with_key(key), long: LongHandles::in_memory(key) }
    }

    /// A sealed handle with any changed bit, of another key, or without its seal is refused. A
    /// handle of each length that NFSv4 permits fits into NFSv3's.
    #[test]
    fn changed_sealed_handle_is_refused() {
        let (seal, other) = (sealed_by(b"the key of a gat"), sealed_by(b"another's secret"));
        for len in [1, 20, 52, 53, 64, 128] {
            let fh = Fh(Bytes::from(vec![7; len]));
            let wire = object_with(Some(&seal), 0x01_02_03, &fh);
            assert!(wire.len() <= FH_MAX_BYTES);
            assert_eq!(Handle::read_with(Some(&seal), &wire), Some(Handle::Object(0x01_02_03, fh.clone())));
            let is_refused =
                |seal, wire: &[u8]| !matches!(Handle::read_with(seal, wire), Some(Handle::Object(..)));
            assert!(is_refused(Some(&other), &wire) && is_refused(None, &wire));
            assert!(is_refused(Some(&seal), &object_with(None, 0x01_02_03, &fh)));
            for bit in 0..wire.len() * 8 {
                let mut changed = wire.to_vec();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(is_refused(Some(&seal), &changed), "{len} bytes, bit {bit}");
            }
            for cut in 0..wire.len() {
                assert!(is_refused(Some(&seal), &wire[..cut]), "{cut} of {len} bytes");
            }
        }
    }

    /// Filehandles that no server of this kind made are refused: wrong lengths and unknown kinds.
    #[test]
    fn malformed_handle_is_refused() {
        for wire in [&b""[..], b"\x11\0\0", b"\x11\0\0\x01", b"\x12\0\0\x01x", b"\x15\0\0\x01x"] {
            assert_eq!(Handle::read(wire), None);
        }
    }
}
