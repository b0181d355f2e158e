//! `hither config check`: finds faults of exports, fstab lines and mount options before use.
//!
//! The check uses the parsers of `hither serve` and `hither mount`. It also reports faults that
//! would appear later: missing directories, files that no program reads, and lines that other
//! programs read differently. It contacts no other machine.

mod fstab;
mod served;
#[cfg(test)]
mod tests;

use crate::cli::{ConfigArgs, ConfigCheck, ConfigCommand};
use crate::exit::{self, Failure};
use crate::mountinfo;
use crate::options::Wanted;
use crate::stat::print;
use serde::Serialize;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Version of the field names of `--json`.
const VERSION: u32 = 1;
/// Largest file that is read, in bytes. A larger file is not a configuration.
const FILE_MAX_BYTES: u64 = 4 << 20;

/// A fault or a note.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    /// A note, which prevents nothing.
    note: bool,
    /// The file, or `-o` for options of the command line.
    file: String,
    /// The line number; `None` for the whole file.
    line: Option<usize>,
    /// The fault, and the remedy.
    what: String,
}

/// The checked configuration and the findings.
#[derive(Debug, Default, Serialize)]
struct Checked {
    /// Exported directories.
    exports: usize,
    /// Lines of fstab for hither.
    mounts: usize,
    /// Options of `-o`.
    options: usize,
    /// Number of files and directories that could not be read. `findings` contains them.
    #[serde(skip)]
    unread: usize,
    findings: Vec<Finding>,
}

impl Checked {
    fn fault(&mut self, file: &str, line: impl Into<Option<usize>>, what: impl Into<String>) {
        self.add(false, file, line.into(), what.into());
    }

    /// Reports a file that cannot be read. The other files are still checked. `why` may begin with
    /// the file's name.
    fn unreadable(&mut self, file: &Path, why: &str) {
        let name = file.display().to_string();
        let why = why.strip_prefix(&format!("{name}: ")).unwrap_or(why);
        self.fault(&name, None, format!("cannot be read: {why}"));
        self.unread += 1;
    }

    fn note(&mut self, file: &str, line: impl Into<Option<usize>>, what: impl Into<String>) {
        self.add(true, file, line.into(), what.into());
    }

    fn add(&mut self, note: bool, file: &str, line: Option<usize>, what: String) {
        self.findings.push(Finding { note, file: file.into(), line, what });
    }

    fn faults(&self) -> usize {
        self.findings.iter().filter(|f| !f.note).count()
    }
}

/// Runs the command.
///
/// # Errors
/// A file cannot be read, or the check found faults ([`exit::FOUND`]).
pub fn run(args: &ConfigArgs) -> Result<(), Failure> {
    let ConfigCommand::Check(args) = &args.what;
    let checked = check(args)?;
    if args.json {
        let all = serde_json::json!({ "version": VERSION, "checked": checked });
        print(&format!("{all}\n"))?;
    } else {
        print(&text(&checked))?;
    }
    verdict(&checked)
}

fn verdict(checked: &Checked) -> Result<(), Failure> {
    if checked.unread > 0 {
        let files = if checked.unread == 1 { "file or directory" } else { "files or directories" };
        let line = format!("{} {files} could not be read, so there may be more faults", checked.unread);
        return Err(Failure::usage(line));
    }
    match checked.faults() {
        0 => Ok(()),
        1 => Err(Failure { code: exit::FOUND, line: "1 fault found".into() }),
        n => Err(Failure { code: exit::FOUND, line: format!("{n} faults found") }),
    }
}

fn text(checked: &Checked) -> String {
    let mut out = String::new();
    for f in &checked.findings {
        let at = f.line.map_or(f.file.clone(), |line| format!("{}:{line}", f.file));
        let line = format!("{}{at}: {}", if f.note { "note: " } else { "" }, f.what);
        // Control characters of a file must not move the cursor.
        out.extend(line.chars().map(|c| if c.is_control() { ' ' } else { c }));
        out.push('\n');
    }
    if checked.faults() == 0 {
        let some = |n: usize, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
        let mut all = Vec::new();
        if checked.options > 0 {
            all.push(some(checked.options, "option"));
        }
        if checked.options == 0 || checked.exports + checked.mounts > 0 {
            let (exports, mounts) = (some(checked.exports, "export"), some(checked.mounts, "mount"));
            all.push(format!("{exports} and {mounts}"));
        }
        out.push_str(&format!("no faults in {}\n", all.join(", ")));
    }
    out
}

fn check(args: &ConfigCheck) -> Result<Checked, Failure> {
    let mut checked = Checked::default();
    let no_root = |why: &str| Failure::usage(format!("--root {}: {why}", args.root.display()));
    match std::fs::metadata(&args.root) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return Err(no_root("not a directory")),
        Err(e) => return Err(no_root(&e.to_string())),
    }
    let usual = args.exports.is_empty() && args.fstab.is_empty() && args.options.is_empty();
    checked.options = args.options.iter().map(|list| crate::options::split(list).count()).sum();
    if let Err(wrong) = Wanted::parse_all(&args.options, false) {
        wrong.into_iter().for_each(|what| checked.fault("-o", None, what));
    }
    if usual {
        let etc = below(&args.root, Path::new("/etc/hither"));
        let places = [etc.join("exports"), etc.join("exports.d")];
        let there: Vec<PathBuf> = places.into_iter().filter(|p| present(p, &mut checked)).collect();
        served::check(&there, &args.root, &mut checked);
        served::unit(&etc, &mut checked);
        served::strays(&etc, &mut checked);
        let fstab = below(&args.root, Path::new("/etc/fstab"));
        if present(&fstab, &mut checked) {
            fstab::check(&fstab, &args.root, &mut checked);
        }
        return Ok(checked);
    }
    served::check(&args.exports, &args.root, &mut checked);
    for file in &args.fstab {
        fstab::check(file, &args.root, &mut checked);
    }
    Ok(checked)
}

/// Whether the path exists, or is a dangling link. An inaccessible file is reported, because the
/// unit's user may read it.
fn present(path: &Path, checked: &mut Checked) -> bool {
    match std::fs::symlink_metadata(path) {
        Ok(_) => true,
        Err(e) if e.kind() == ErrorKind::NotFound => false,
        Err(e) => {
            checked.unreadable(path, &e.to_string());
            false
        }
    }
}

/// The path of a file of the checked system, whose root directory is `root`.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Reads a file if it may be a configuration. An unreadable file is reported.
fn read(file: &Path, checked: &mut Checked) -> Option<Vec<u8>> {
    let bytes = std::fs::metadata(file).and_then(|meta| match meta.len() {
        _ if !meta.is_file() => Err(std::io::Error::other("not a file")),
        len if len > FILE_MAX_BYTES => {
            Err(std::io::Error::other(format!("larger than {FILE_MAX_BYTES} bytes")))
        }
        _ => std::fs::read(file),
    });
    bytes.inspect_err(|e| checked.unreadable(file, &e.to_string())).ok()
}

/// The fault of a missing directory.
const MISSING: &str = "does not exist";

/// The fault of [`no_directory`] with its remedy.
fn mended(why: &str, dir: &Path) -> String {
    match why {
        MISSING => format!("{why}: create it (mkdir -p {})", dir.display()),
        _ => format!("{why}: name another one"),
    }
}

/// Whether a path is a mount point or inside a mount of hither. Such a path is not accessed.
fn untouched(mounts: &[mountinfo::Mount], real: &Path) -> bool {
    mountinfo::at(mounts, real).is_some() || mountinfo::ours_holding(mounts, real).is_some()
}

/// The fault that prevents the use of a path as a directory, in the system below `root`. A mount
/// with a dead server is not accessed.
fn no_directory(root: &Path, dir: &Path) -> Option<&'static str> {
    let meta = if root == Path::new("/") {
        let mounts = mountinfo::read().unwrap_or_default();
        match mountinfo::resolve(&mounts, dir) {
            Ok(real) if untouched(&mounts, &real) => return None,
            Ok(real) => std::fs::symlink_metadata(real),
            Err(e) => Err(e),
        }
    } else {
        std::fs::symlink_metadata(below(root, dir))
    };
    match meta {
        Err(e) if e.kind() == ErrorKind::NotFound => Some(MISSING),
        Err(e) if e.kind() == ErrorKind::NotADirectory => Some("has a parent that is not a directory"),
        // The target of a link in another system is unknown. An inaccessible file may be a
        // directory.
        Ok(meta) if !meta.is_dir() && !meta.is_symlink() => Some("is not a directory"),
        _ => None,
    }
}
