//! Names of files that were removed while open on this client (silly rename).
//!
//! The server deletes a file with its last name, even while the file is open. Only NFSv4.1 and
//! later with `OPEN4_RESULT_PRESERVE_UNLINKED` keep an open file. Otherwise the client renames the
//! file and removes it at the last close (RFC 1813 section 4.8). The names have the form of other
//! clients: `.nfs` and hexadecimal digits. Administrators clean up after crashed clients by that
//! pattern.

use hither_vfs::Name;

/// A new name for the file `fileid`. `number` differs for each attempt and file.
pub(crate) fn name(fileid: u64, number: u32) -> Name {
    Name::new(format!(".nfs{fileid:016x}{number:08x}")).expect("28 bytes without a slash are a name")
}

/// Whether a name has the form of a silly rename. The removal of such a file does not rename it
/// again.
pub(crate) fn is_silly(name: &Name) -> bool {
    let digits = name.as_bytes().strip_prefix(b".nfs");
    digits.is_some_and(|d| d.len() == 24 && d.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_recognised() {
        assert_eq!(name(0xab, 2).as_bytes(), b".nfs00000000000000ab00000002");
        assert!(is_silly(&name(u64::MAX, u32::MAX)));
        assert!(!is_silly(&Name::new(".nfsfile").unwrap()));
    }
}
