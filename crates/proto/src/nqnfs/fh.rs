//! Filehandles: 32 bytes that are opaque to the client, and an extension for longer handles.
//!
//! RFC 1094 allows 32 bytes. A server with shorter handles sends the handle, zeros, and the length
//! in the last byte ([`Fh::pack`]). A server with longer handles may send two such fields in
//! sequence, to clients that announced support in HELLO. The first field ends in [`MORE`], which
//! tells the reader that a second field follows. A handle of a server without this extension ends
//! like that by chance once in 2^40.

use super::FH_BYTES;
use crate::xdr::{Dec, Enc, Result, Xdr};

/// The end of a long handle's first field.
const MORE: [u8; 5] = *b"+more";
/// Bytes of a long handle in its first field.
const HEAD_BYTES: usize = FH_BYTES - MORE.len();
/// Longest server handle in one field.
pub const SHORT_MAX_BYTES: usize = FH_BYTES - 1;
/// Longest server handle in two fields.
pub const LONG_MAX_BYTES: usize = HEAD_BYTES + SHORT_MAX_BYTES;

/// File handle (`fhandle`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fh {
    first: [u8; FH_BYTES],
    /// `Some` exactly when `first` ends in [`MORE`].
    second: Option<[u8; FH_BYTES]>,
}

impl Fh {
    /// The wire form of a server's handle. `None` when the handle is longer than
    /// [`LONG_MAX_BYTES`].
    pub fn pack(own: &[u8]) -> Option<Self> {
        let field = |part: &[u8]| {
            let mut field = [0; FH_BYTES];
            field.get_mut(..part.len())?.copy_from_slice(part);
            field[SHORT_MAX_BYTES] = u8::try_from(own.len()).ok()?;
            Some(field)
        };
        if own.len() <= SHORT_MAX_BYTES {
            return Some(Self { first: field(own)?, second: None });
        }
        let (head, tail) = own.split_at(HEAD_BYTES);
        let mut first = [0; FH_BYTES];
        first[..HEAD_BYTES].copy_from_slice(head);
        first[HEAD_BYTES..].copy_from_slice(&MORE);
        let second = (tail.len() <= SHORT_MAX_BYTES).then(|| field(tail)).flatten()?;
        Some(Self { first, second: Some(second) })
    }

    /// The server's handle. `None` when this value is not a result of [`Fh::pack`].
    pub fn unpack(&self) -> Option<Vec<u8>> {
        let mut own = Vec::with_capacity(LONG_MAX_BYTES);
        let field = match &self.second {
            None => &self.first,
            Some(second) => {
                own.extend_from_slice(&self.first[..HEAD_BYTES]);
                second
            }
        };
        let len = usize::from(field[SHORT_MAX_BYTES]).checked_sub(own.len())?;
        own.extend_from_slice(field[..SHORT_MAX_BYTES].get(..len)?);
        // Each handle has exactly one wire form.
        (Self::pack(&own).as_ref() == Some(self)).then_some(own)
    }

    /// Whether the handle is longer than RFC 1094 allows.
    pub fn is_long(&self) -> bool {
        self.second.is_some()
    }

    /// Length on the wire in bytes.
    pub fn wire_bytes(&self) -> usize {
        if self.is_long() { 2 * FH_BYTES } else { FH_BYTES }
    }

    /// All bytes of the handle, for callers that treat it as opaque.
    pub fn bytes(&self) -> Vec<u8> {
        [&self.first[..], self.second.as_ref().map_or(&[], |s| &s[..])].concat()
    }

    /// The inverse of [`Fh::bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (first, rest) = bytes.split_first_chunk()?;
        match (first.ends_with(&MORE), rest) {
            (false, []) => Some(Self { first: *first, second: None }),
            (true, rest) => Some(Self { first: *first, second: Some(rest.try_into().ok()?) }),
            _ => None,
        }
    }
}

impl std::fmt::Debug for Fh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.bytes().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl Xdr for Fh {
    fn enc(&self, e: &mut Enc) {
        self.first.enc(e);
        if let Some(second) = &self.second {
            second.enc(e);
        }
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        let first: [u8; FH_BYTES] = d.fixed()?;
        let second = if first.ends_with(&MORE) { Some(d.fixed()?) } else { None };
        Ok(Self { first, second })
    }
}

#[cfg(any(test, feature = "sample"))]
impl crate::sample::Sample for Fh {
    fn sample(s: &mut crate::sample::Source<'_>) -> Self {
        let second = (s.byte() & 1 == 1).then(|| std::array::from_fn(|_| s.byte()));
        let mut first: [u8; FH_BYTES] = std::array::from_fn(|_| s.byte());
        if second.is_some() {
            first[HEAD_BYTES..].copy_from_slice(&MORE);
        } else if first.ends_with(&MORE) {
            first[SHORT_MAX_BYTES] = 0;
        }
        Self { first, second }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_every_length_survive() {
        for len in 0..=LONG_MAX_BYTES {
            let own: Vec<u8> = (1..=len as u8).collect();
            let fh = Fh::pack(&own).unwrap();
            assert_eq!(fh.is_long(), len > SHORT_MAX_BYTES);
            assert_eq!(fh.unpack().unwrap(), own);
            assert_eq!(Fh::from_bytes(&fh.bytes()), Some(fh));
            let wire = Enc::of(&fh).to_bytes();
            assert_eq!(wire.len(), fh.wire_bytes());
            assert_eq!(Dec::all::<Fh>(&wire).unwrap(), fh);
        }
        assert_eq!(Fh::pack(&[1; LONG_MAX_BYTES + 1]), None);
    }

    /// `unpack` refuses bytes that `pack` did not produce.
    #[test]
    fn unpack_refuses_foreign_handles() {
        for wire in [[0xaa; FH_BYTES], [0; FH_BYTES].map(|_| 31u8), {
            // A byte after the end of the handle.
            let mut fh = [0; FH_BYTES];
            (fh[5], fh[31]) = (1, 3);
            fh
        }] {
            let fh = Fh::from_bytes(&wire).unwrap();
            assert!(wire == [31; FH_BYTES] || fh.unpack().is_none(), "{fh:?}");
        }
        assert_eq!(Fh::from_bytes(&[1; 31]), None);
        assert_eq!(Fh::from_bytes(&[1; 64]), None, "a second field without a first that says so");
    }
}
