//! Exclusive creation. The new file's times hold the client's verifier until the client sets the
//! times. The server recognises a repeated creation by the verifier, even after a server restart
//! (RFC 1813 section 3.3.8, RFC 8881 section 18.16.3).

use hither_vfs::{Attr, FileKind, Time, VERIFIER_NANOS};

/// Every file system stores at least 31 bits of seconds.
const BITS: u32 = 0x7fff_ffff;

/// Access and modification time that hold a verifier.
pub(crate) fn verifier_times(verf: &[u8; 8]) -> (Time, Time) {
    let half = |b: &[u8]| {
        let word = b.iter().fold(0u32, |w, b| w << 8 | u32::from(*b));
        Time { secs: i64::from(word & BITS), nanos: VERIFIER_NANOS }
    };
    (half(&verf[..4]), half(&verf[4..]))
}

/// Whether an exclusive creation with this verifier made the file and no client has changed it
/// since.
pub(crate) fn is_of_verifier(attr: &Attr, verf: &[u8; 8]) -> bool {
    let (atime, mtime) = verifier_times(verf);
    // Not every file system stores nanoseconds.
    let same = attr.atime.secs == atime.secs && attr.mtime.secs == mtime.secs;
    attr.kind == FileKind::Regular && attr.size_bytes == 0 && same
}
