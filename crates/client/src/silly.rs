//! Names for files that were removed while open here.
//!
//! NFS before v4.1 with `OPEN4_RESULT_PRESERVE_UNLINKED` loses a file with its last name, open or
//! not, so the client renames it instead and removes it at the last close (RFC 1813 section 4.8).
//! The names have the form of other clients', `.nfs` and hexadecimal digits, because administrators
//! clean up after crashed clients by that pattern.

use hither_vfs::Name;

/// A fresh name for the file `fileid`; `number` tells attempts and files apart.
pub(crate) fn name(fileid: u64, number: u32) -> Name {
    Name::new(format!(".nfs{fileid:016x}{number:08x}")).expect("28 bytes without a slash are a name")
}

/// Whether a name has that form: such a file is not renamed again when it is removed.
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
