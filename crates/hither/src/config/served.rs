//! Finds faults in exports(5) files.

use super::{Checked, no_directory, present, read};
use crate::serve::exports_files;
use hither_server::exports::{Entry, Exports};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Checks files and directories of files as one configuration.
pub(super) fn check(places: &[PathBuf], root: &Path, checked: &mut Checked) {
    let mut exports = Exports::default();
    let mut files = Vec::new();
    for place in places {
        match exports_files(place) {
            Ok(found) => files.extend(found),
            Err(failure) => checked.unreadable(place, &failure.line),
        }
    }
    for file in &files {
        let name = file.display().to_string();
        let Some(text) = read(file, checked) else { continue };
        for wrong in exports.add_what_is_right(&name, &text) {
            checked.fault(&name, wrong.at.line, wrong.what);
        }
    }
    if let (true, Some(first)) = (exports.entries.is_empty() && checked.faults() == 0, files.first()) {
        checked.note(
            &first.display().to_string(),
            None,
            "nothing is exported, so `hither serve` does not start: add a line such as /srv/data 192.0.2.0/24(rw)",
        );
    }
    checked.exports = exports.entries.len();
    exports.entries.iter().for_each(|entry| one(entry, root, checked));
    nested(&exports.entries, checked);
}

/// Checks a well-formed export.
fn one(entry: &Entry, root: &Path, checked: &mut Checked) {
    let (file, line) = (&entry.at.file[..], entry.at.line);
    let dir = Path::new(OsStr::from_bytes(&entry.path));
    if let Some(why) = no_directory(root, dir) {
        checked.fault(file, line, format!("{} {}", dir.display(), super::mended(why, dir)));
    }
    for client in &entry.clients {
        let (file, line) = (&client.at.file[..], client.at.line);
        // `host (rw)` with a blank gives the rights to all clients, and the default rights to the
        // host.
        if let Some(word) = &client.alone {
            let what = format!(
                "'{word}' stands alone and admits all clients: write it right behind a client, or *{word}"
            );
            checked.fault(file, line, what);
        }
    }
}

/// Checks the tree of NFSv4: one root, and all other exports inside it.
fn nested(entries: &[Entry], checked: &mut Checked) {
    let mut roots = entries.iter().filter(|e| e.fsid == Some(0) || e.path == b"/");
    let Some(root) = roots.next() else { return };
    let shown = |e: &Entry| e.path.escape_ascii().to_string();
    for entry in roots {
        let what = format!("{} and {} have fsid=0 or the root both: keep one", shown(entry), shown(root));
        checked.fault(&entry.at.file, entry.at.line, what);
    }
    for entry in entries.iter().filter(|entry| !holds(&root.path, &entry.path)) {
        let what = format!(
            "{} is outside of {}, the root of all exports (fsid=0, {}): clients of NFSv4 could not see it; bind it there (mount --bind)",
            shown(entry),
            shown(root),
            root.at
        );
        checked.fault(&entry.at.file, entry.at.line, what);
    }
}

/// Whether `path` equals `outer` or is inside it.
fn holds(outer: &[u8], path: &[u8]) -> bool {
    outer == b"/" || path.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Reports a missing first file, without which the unit of `hither serve` does not start.
pub(super) fn unit(etc: &Path, checked: &mut Checked) {
    let (exports, more) = (etc.join("exports"), etc.join("exports.d"));
    if checked.exports > 0 && !present(&exports, checked) {
        let what = format!(
            "does not exist: the unit hither-serve starts only with it, whatever is in {}: create it, if empty",
            more.display()
        );
        checked.fault(&exports.display().to_string(), None, what);
    }
}

/// Reports files that `hither serve` does not read, although a user may expect it.
pub(super) fn strays(etc: &Path, checked: &mut Checked) {
    let names = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let mut all: Vec<PathBuf> = entries.map(|e| e.path()).filter(|p| !left_over(p)).collect();
        all.sort();
        all
    };
    // The unit of `hither gateway` reads the last two.
    let read = ["exports", "exports.d", "origins", "gateway.d"].map(|name| etc.join(name));
    for file in names(etc) {
        if !read.contains(&file) {
            checked.note(
                &file.display().to_string(),
                None,
                "nothing reads it: exports go to exports or exports.d",
            );
        }
    }
    for file in names(&etc.join("exports.d")) {
        if file.extension() != Some(OsStr::new("exports")) {
            let what = "nothing reads it: exports are in files whose names end in .exports";
            checked.note(&file.display().to_string(), None, what);
        }
    }
}

/// Whether a file is a backup of a person, an editor or a package manager.
fn left_over(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().as_bytes();
    let ends = [&b"~"[..], b"README", b".bak", b".orig", b".rpmnew", b".rpmsave"];
    name.starts_with(b".")
        || ends.iter().any(|end| name.ends_with(end))
        || name.windows(6).any(|part| part == b".dpkg-")
}
