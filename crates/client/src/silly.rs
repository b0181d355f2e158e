//! Names of files that were removed while open on this client (silly rename).
//!
//! The server deletes a file with its last name, even while the file is open. Only NFSv4.1 and
//! later with `OPEN4_RESULT_PRESERVE_UNLINKED` keep an open file. Otherwise the client renames the
//! file and removes it at the last close (RFC 1813 section 4.8). The names have the form of other
//! clients: `.nfs` and hexadecimal digits. Administrators clean up after crashed clients by that
//! pattern.

use hither_vfs::{Attrs, Fh, Name, Validity};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::Instant;

/// Files that are remembered after the removal of their hidden name. Answers that were requested
/// before the removal arrive soon after it.
const REMEMBERED_MAX: usize = 1024;

/// Files whose hidden name is being removed, or was removed recently. The link count in an answer
/// that was requested before the end of the removal may or may not include the hidden name.
#[derive(Default)]
pub(crate) struct Leaving {
    files: Mutex<HashMap<Fh, Leave>>,
    /// Whether there are any, for a check without the lock.
    any: AtomicBool,
}

struct Leave {
    /// Link count without the hidden name, when it is known.
    links: Option<u32>,
    /// `None` while the removal is in progress.
    ended: Option<Instant>,
}

impl Leaving {
    /// The removal of a hidden name begins. `links` is the last link count without it.
    pub fn begin(&self, fh: &Fh, links: Option<u32>) {
        let mut files = self.files.lock();
        if files.len() >= REMEMBERED_MAX {
            files.retain(|_, leave| leave.ended.is_none());
        }
        files.insert(fh.clone(), Leave { links, ended: None });
        self.any.store(true, Ordering::Relaxed);
    }

    /// The removal has ended.
    pub fn end(&self, fh: &Fh) {
        if let Some(leave) = self.files.lock().get_mut(fh) {
            leave.ended = Some(Instant::now());
        }
    }

    /// Corrects the link count of an answer that may include the hidden name. Such an answer counts
    /// for one call.
    pub fn settle(&self, fh: &Fh, mut attrs: Attrs) -> Attrs {
        if self.any.load(Ordering::Relaxed)
            && let Some(leave) = self.files.lock().get(fh)
            && leave.ended.is_none_or(|ended| attrs.asked <= ended)
        {
            attrs.attr.nlink = leave.links.map_or(attrs.attr.nlink, |links| links.min(attrs.attr.nlink));
            attrs.valid = Validity::Once;
        }
        attrs
    }
}

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
    use crate::validity::tests::attr;
    use hither_vfs::{Attr, FileKind};

    /// An answer that was requested before the end of a removal shows the count of before, for one
    /// call. Later answers stay as they are.
    #[tokio::test(start_paused = true)]
    async fn answers_beside_removal_count_once() {
        let (leaving, fh) = (Leaving::default(), Fh(bytes::Bytes::from_static(b"file")));
        let attr = Attr { nlink: 2, ..attr(FileKind::Regular, 1) };
        let answer = |asked| Attrs { attr: attr.clone(), valid: Validity::Lease, asked };
        let seen = |attrs: Attrs| (attrs.attr.nlink, attrs.valid == Validity::Once);
        let before = Instant::now();
        assert_eq!(seen(leaving.settle(&fh, answer(before))), (2, false));
        leaving.begin(&fh, Some(1));
        assert_eq!(seen(leaving.settle(&fh, answer(before))), (1, true));
        leaving.end(&fh);
        assert_eq!(seen(leaving.settle(&fh, answer(before))), (1, true), "it was late");
        tokio::time::advance(std::time::Duration::from_millis(1)).await;
        assert_eq!(seen(leaving.settle(&fh, answer(Instant::now()))), (2, false), "of another client");
        for n in 0..2 * REMEMBERED_MAX {
            let other = Fh(n.to_ne_bytes().to_vec().into());
            leaving.begin(&other, None);
            leaving.end(&other);
        }
        assert!(leaving.files.lock().len() <= REMEMBERED_MAX);
    }

    #[test]
    fn names_are_recognised() {
        assert_eq!(name(0xab, 2).as_bytes(), b".nfs00000000000000ab00000002");
        assert!(is_silly(&name(u64::MAX, u32::MAX)));
        assert!(!is_silly(&Name::new(".nfsfile").unwrap()));
    }
}
