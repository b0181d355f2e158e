//! Exclusive creation: the client's verifier is kept in the new file's times until the client sets
//! its own, so that a creation that is sent again, even to a server that was restarted, is
//! recognised (RFC 1813 section 3.3.8, RFC 8881 section 18.16.3).

use hither_vfs::{Attr, FileKind, Time};

/// Times hold 31 bits of seconds on every file system.
const BITS: u32 = 0x7fff_ffff;

/// Access and modification time that keep a verifier.
pub(crate) fn verifier_times(verf: &[u8; 8]) -> (Time, Time) {
    let half = |b: &[u8]| {
        let word = b.iter().fold(0u32, |w, b| w << 8 | u32::from(*b));
        Time { secs: i64::from(word & BITS), nanos: 0 }
    };
    (half(&verf[..4]), half(&verf[4..]))
}

/// Whether a file is what an exclusive creation with this verifier made, and nobody has used since.
pub(crate) fn is_of_verifier(attr: &Attr, verf: &[u8; 8]) -> bool {
    let (atime, mtime) = verifier_times(verf);
    attr.kind == FileKind::Regular && attr.size_bytes == 0 && attr.atime == atime && attr.mtime == mtime
}
