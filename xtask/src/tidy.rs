//! The checks of `cargo xtask tidy`.

use crate::{promises, prose, security, trend};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Longest source file, in lines.
const FILE_MAX_LINES: usize = 800;

/// The workspace crates on which each crate may depend.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("crates/proto", &[]),
    ("crates/vfs", &[]),
    ("crates/lease", &[]),
    ("crates/rpc", &["hither-proto"]),
    ("crates/krb5", &["hither-rpc"]),
    ("crates/client", &["hither-lease", "hither-proto", "hither-rpc", "hither-vfs"]),
    ("crates/fuse", &["hither-vfs"]),
    ("crates/socket", &["hither-client", "hither-vfs"]),
    ("crates/cache", &["hither-vfs"]),
    ("crates/localfs", &["hither-vfs"]),
    ("crates/writeback", &["hither-vfs"]),
    ("crates/server", &["hither-lease", "hither-proto", "hither-rpc", "hither-vfs"]),
    (
        "crates/tools",
        &["hither-cache", "hither-fuse", "hither-nfs", "hither-proto", "hither-rpc", "hither-vfs"],
    ),
    (
        "crates/hither",
        &[
            "hither-cache",
            "hither-localfs",
            "hither-nfs",
            "hither-proto",
            "hither-fuse",
            "hither-krb5",
            "hither-rpc",
            "hither-client",
            "hither-server",
            "hither-socket",
            "hither-tools",
            "hither-vfs",
            "hither-writeback",
        ],
    ),
    ("bindings/c", &["hither-client"]),
    ("bindings/rust", &[]),
    ("lab", &["hither-proto"]),
    ("xtask", &[]),
];

/// Crates that may contain `unsafe`. The other crates forbid it in their first lines.
const UNSAFE_IN: &[&str] = &[
    "bindings/c/",
    "crates/fuse/",
    "crates/hither/",
    "lab/",
    "crates/client/src/idmap",
    "crates/krb5/src/tickets.rs",
    "bindings/rust/src/descriptor.rs",
    "crates/socket/src/sys.rs",
    "crates/localfs/src/local/sys.rs",
];

/// Columns of a comment line.
const COMMENT_MAX_COLUMNS: usize = 100;

/// The table of mount options, and the test that checks the effect of each option.
const OPTIONS: &str = "crates/hither/src/options/table.rs";
const OPTION_CHECKS: &str = "crates/hither/tests/options/main.rs";

/// Writes docs/PROMISES.md.
pub fn promises() -> ExitCode {
    match promises::write(&tracked()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask promises: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all checks on the files that git tracks.
pub fn run() -> ExitCode {
    let mut complaints = Vec::new();
    let files = tracked();
    for path in &files {
        let Ok(text) = fs::read_to_string(path) else { continue };
        complaints.extend(check(path, &text));
        complaints.extend(prose::check(path, &text));
        if path.extension().is_some_and(|e| e == "md") {
            complaints.extend(links(path, &text, &|p| p.exists()));
        }
    }
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    complaints.extend(unchecked_options(&read(OPTIONS), &read(OPTION_CHECKS)));
    complaints.extend(promises::check(&files));
    complaints.extend(security::check());
    complaints.extend(trend::complaints());
    for c in &complaints {
        eprintln!("tidy: {c}");
    }
    println!("tidy: {} files, {} complaints", files.len(), complaints.len());
    if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tracked() -> Vec<PathBuf> {
    let out = Command::new("git").args(["ls-files", "-co", "--exclude-standard"]).output();
    let out = out.expect("tidy runs in a git checkout");
    String::from_utf8_lossy(&out.stdout).lines().map(PathBuf::from).filter(|p| p.is_file()).collect()
}

fn check(path: &Path, text: &str) -> Vec<String> {
    let name = path.to_string_lossy();
    let mut out = Vec::new();
    if path.ends_with("Cargo.toml") {
        out.extend(direction(&name, text));
    }
    if !name.ends_with(".rs") {
        return out;
    }
    let lines = text.lines().count();
    if lines > FILE_MAX_LINES {
        out.push(format!("{name}: {lines} lines; split it ({FILE_MAX_LINES} at most)"));
    }
    if !text.starts_with("//!") && !text.starts_with("#!") {
        out.push(format!("{name}: the first line says what the module is (//!)"));
    }
    for (i, line) in text.lines().enumerate() {
        if line.ends_with([' ', '\t']) {
            out.push(format!("{name}:{}: trailing space", i + 1));
        }
    }
    out.extend(wide_comments(&name, text));
    if is_test(&name) || name.starts_with("xtask/") {
        return out; // The words searched for stand in this very file.
    }
    for (i, line) in code_before_tests(text) {
        if line.contains(".unwrap()") {
            out.push(format!(
                "{name}:{i}: unwrap() outside tests; return an error or expect() with the reason"
            ));
        }
        let unsafe_here =
            line.contains("unsafe {") || line.contains("unsafe fn") || line.contains("unsafe impl");
        if unsafe_here && !UNSAFE_IN.iter().any(|p| name.starts_with(p)) {
            out.push(format!("{name}:{i}: unsafe does not belong here ({})", UNSAFE_IN.join(", ")));
        }
    }
    out
}

/// Comment lines that are too long. A line with an address or of a table cannot be broken.
fn wide_comments(name: &str, text: &str) -> Vec<String> {
    let unbroken = |line: &str| line.contains("://") || line.contains(" | ");
    let lines = text.lines().enumerate();
    let comments = lines.filter(|(_, line)| line.trim_start().starts_with("//") && !unbroken(line));
    let wide = comments.filter(|(_, line)| line.chars().count() > COMMENT_MAX_COLUMNS);
    wide.map(|(i, _)| format!("{name}:{}: wrap the comment at {COMMENT_MAX_COLUMNS} columns", i + 1))
        .collect()
}

fn is_test(name: &str) -> bool {
    name.contains("/tests/")
        || name.contains("/benches/")
        || name.ends_with("/tests.rs")
        || name.contains("/examples/")
        || name.starts_with("fuzz/")
}

/// Numbered lines of code, without comments, up to the unit tests.
fn code_before_tests(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .take_while(|(_, l)| !l.starts_with("#[cfg(test)]"))
        .filter(|(_, l)| !l.trim_start().starts_with("//"))
        .map(|(i, l)| (i + 1, l))
}

fn direction(name: &str, text: &str) -> Vec<String> {
    let dir = name.trim_end_matches("/Cargo.toml");
    let Some((_, may)) = MAY_KNOW.iter().find(|(d, _)| *d == dir) else {
        return if name.starts_with("crates/") {
            vec![format!("{name}: say in xtask/src/tidy.rs which crates this one may know")]
        } else {
            Vec::new()
        };
    };
    let deps = text.split("\n[dev-dependencies]").next().unwrap_or(text);
    deps.lines()
        .filter_map(|l| l.split(['.', ' ', '=']).next())
        .filter(|d| d.starts_with("hither-") && !may.contains(d))
        .map(|d| format!("{name}: must not know {d} (ARCHITECTURE.md)"))
        .collect()
}

/// Relative links in Markdown without a target.
fn links(path: &Path, text: &str, exists: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let dir = path.parent().unwrap_or(Path::new(""));
    let mut out = Vec::new();
    for part in text.split("](").skip(1) {
        let Some(target) = part.split(')').next() else { continue };
        let file = target.split('#').next().unwrap_or("");
        if file.is_empty() || file.contains("://") || file.starts_with("mailto:") {
            continue;
        }
        if !exists(&dir.join(file)) {
            out.push(format!("{}: link to {file} leads nowhere", path.display()));
        }
    }
    out
}

/// Options with a value whose effect on a real mount is not checked.
fn unchecked_options(table: &str, checks: &str) -> Vec<String> {
    let valued = valued_options(table);
    let unchecked = valued.iter().filter(|name| !checks.contains(&format!("(\"{name}\", ")));
    let mut out: Vec<_> = unchecked
        .map(|name| format!("{OPTION_CHECKS}: no check of the effect of the mount option {name}="))
        .collect();
    if valued.is_empty() {
        out.push(format!("{OPTIONS}: no options with a value are found"));
    }
    out
}

/// Names of the options that take a value: `valued("name", ...)`, and
/// `keyword("name", ...).optional(...)`.
fn valued_options(table: &str) -> Vec<&str> {
    let starts = ["valued(", "keyword(", "harmless(", "refused("];
    let mut begins: Vec<_> = starts.iter().flat_map(|s| table.match_indices(s)).map(|(at, _)| at).collect();
    begins.sort_unstable();
    let ends = begins.iter().skip(1).copied().chain([table.len()]);
    let pieces = begins.iter().zip(ends).map(|(begin, end)| &table[*begin..end]);
    let valued = pieces.filter(|piece| piece.starts_with("valued(") || piece.contains(".optional("));
    valued.filter_map(first_string).collect()
}

/// The string that is the first argument of a call.
fn first_string(call: &str) -> Option<&str> {
    let (_, arguments) = call.split_once('(')?;
    arguments.trim_start().strip_prefix('"')?.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_complaints_spare_tests() {
        let bad = "fn f() { g().unwrap(); }\nunsafe { h() }\n";
        let found = check(Path::new("crates/vfs/src/x.rs"), bad);
        assert_eq!(found.len(), 3, "{found:?}");
        let fine = "//! Doc.\nfn f() {}\n#[cfg(test)]\nmod tests { fn t() { g().unwrap(); } }\n";
        assert!(check(Path::new("crates/vfs/src/x.rs"), fine).is_empty());
        assert!(
            check(Path::new("crates/vfs/src/x/tests.rs"), "//! T.\nfn t() { g().unwrap(); }\n").is_empty()
        );
        assert_eq!(check(Path::new("crates/fuse/src/x.rs"), &"//! x\n".repeat(801)).len(), 1);
    }

    #[test]
    fn wide_comments_are_found() {
        let word = "word ".repeat(20);
        let text = format!("//! Doc.\n    // {word}end\nlet x = \"{word}{word}\";\n// https://{word}x\n");
        let found = check(Path::new("crates/vfs/src/x.rs"), &text);
        assert_eq!(found, ["crates/vfs/src/x.rs:2: wrap the comment at 100 columns"]);
    }

    #[test]
    fn direction_is_kept() {
        assert!(
            direction("crates/rpc/Cargo.toml", "[dependencies]\nhither-proto.workspace = true\n").is_empty()
        );
        assert_eq!(
            direction("crates/fuse/Cargo.toml", "[dependencies]\nhither-nfs.workspace = true\n").len(),
            1
        );
        let dev = "[dependencies]\n\n[dev-dependencies]\nhither-nfs.workspace = true\n";
        assert!(direction("crates/fuse/Cargo.toml", dev).is_empty());
        assert_eq!(direction("crates/new/Cargo.toml", "").len(), 1);
    }

    #[test]
    fn options_without_a_check_are_found() {
        let table = "const fn valued(\n name: &str) valued(\n \"a\", \"N\") keyword(\"b\", x) keyword(\"c\").optional(\"M\")";
        assert_eq!(valued_options(table), ["a", "c"]);
        let found = unchecked_options(table, "(\"a\", Plain, f)");
        assert_eq!(found, [format!("{OPTION_CHECKS}: no check of the effect of the mount option c=")]);
        assert_eq!(unchecked_options("", "").len(), 1);
    }

    #[test]
    fn dead_links_are_found() {
        let text = "[a](there.md) [b](gone.md#x) [c](https://example.org) [d](#here)";
        let found = links(Path::new("docs/X.md"), text, &|p| p == Path::new("docs/there.md"));
        assert_eq!(found, ["docs/X.md: link to gone.md leads nowhere"]);
    }
}
