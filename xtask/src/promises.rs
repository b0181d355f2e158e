//! The promises of docs/SEMANTICS.md and their tests: `cargo xtask promises` writes
//! docs/PROMISES.md.
//!
//! A test names its promises in its doc comment: `/// Promise: 6c, 6d`. docs/PROMISES.md lists the
//! tests of each promise. `cargo xtask tidy` complains when the page is out of date, when a test
//! names an unknown promise, and when a promise has no test.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

const SEMANTICS: &str = "docs/SEMANTICS.md";
const PAGE: &str = "docs/PROMISES.md";
/// The prefixes of a test's list of promises, in Rust and in Python.
const MARKS: [&str; 2] = ["/// Promise: ", "# Promise: "];
/// Stands for the number in a mark that does not begin its line.
const MISPLACED: &str = "with a number after other words: begin the line with `Promise:`";

/// A promise: its number (`6c`) and its first words.
#[derive(Debug, PartialEq, Eq)]
struct Promise {
    id: String,
    title: String,
}

/// The tests of each promise, as `path::name`.
type Tests = BTreeMap<String, Vec<String>>;

/// Writes the page.
pub fn write(files: &[PathBuf]) -> std::io::Result<()> {
    let promises = promises(&fs::read_to_string(SEMANTICS)?);
    fs::write(PAGE, page(&promises, &tests(files)))
}

/// The complaints about promises, their tests and the page.
pub fn check(files: &[PathBuf]) -> Vec<String> {
    let Ok(semantics) = fs::read_to_string(SEMANTICS) else {
        return vec![format!("{SEMANTICS}: missing")];
    };
    let (promises, tests) = (promises(&semantics), tests(files));
    let mut complaints = unmatched(&promises, &tests);
    if fs::read_to_string(PAGE).unwrap_or_default() != page(&promises, &tests) {
        complaints.push(format!("{PAGE}: out of date: run `cargo xtask promises`"));
    }
    complaints
}

/// The promises of the text: paragraphs that begin with `**NUMBER. TITLE**`.
fn promises(semantics: &str) -> Vec<Promise> {
    let paragraphs = semantics.split("\n\n");
    paragraphs
        .filter_map(|paragraph| {
            let bold = paragraph.trim_start().strip_prefix("**")?;
            let (id, rest) = bold.split_once(". ")?;
            let numbered = id.chars().any(|c| c.is_ascii_digit()) && !id.contains(' ');
            let title = rest.split("**").next()?.split_whitespace().collect::<Vec<_>>().join(" ");
            let title = title.trim_end_matches(['.', ',', ':']).to_string();
            numbered.then(|| Promise { id: id.into(), title })
        })
        .collect()
}

fn tests(files: &[PathBuf]) -> Tests {
    let mut all = Tests::new();
    for path in files {
        // This file contains the marks itself.
        let source = path.extension().is_some_and(|e| e == "rs" || e == "py");
        if !source || path.starts_with("xtask") {
            continue;
        }
        let Ok(text) = fs::read_to_string(path) else { continue };
        for (id, name) in marked(&text) {
            all.entry(id).or_default().push(format!("{}::{name}", path.display()));
        }
    }
    all.values_mut().for_each(|tests| tests.sort());
    all
}

/// Pairs of a promise's number and the function whose doc comment lists the number.
fn marked(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut waiting: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim_start) {
        if let Some(ids) = MARKS.iter().find_map(|mark| line.strip_prefix(mark)) {
            waiting.extend(ids.split(',').map(|id| id.trim().trim_end_matches('.').to_string()));
        } else if line.starts_with(['/', '#']) && line.contains(" Promise:") {
            waiting.push(MISPLACED.into());
        } else if let Some(name) = function(line) {
            found.extend(waiting.drain(..).map(|id| (id, name.to_string())));
        }
    }
    found
}

/// The name of the function that begins on a line.
fn function(line: &str) -> Option<&str> {
    let after = line.split_once("fn ").or_else(|| line.split_once("def ")).map(|(_, after)| after)?;
    let comment = line.starts_with("//") || line.starts_with('#');
    (!comment).then(|| after.split(['(', '<']).next())?
}

fn unmatched(promises: &[Promise], tests: &Tests) -> Vec<String> {
    let untested = promises.iter().filter(|p| !tests.contains_key(&p.id));
    let unknown = tests.iter().filter(|(id, _)| promises.iter().all(|p| p.id != **id));
    untested
        .map(|p| format!("{SEMANTICS}: promise {} has no test", p.id))
        .chain(unknown.map(|(id, t)| format!("{}: {SEMANTICS} has no promise {id}", t.join(", "))))
        .collect()
}

fn page(promises: &[Promise], tests: &Tests) -> String {
    let mut out = String::from(
        "# The tests of each promise\n\n`cargo xtask promises` generates this page from the doc comments of \
         the tests.\nTests in `lab/` need real kernels and run with `make test-lab`. The others run with \
         `make test`.\n",
    );
    for promise in promises {
        write!(out, "\n## {}. {}\n\n", promise.id, promise.title).expect("writing to a string");
        for test in tests.get(&promise.id).into_iter().flatten() {
            writeln!(out, "- `{test}`").expect("writing to a string");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_read() {
        let text = "# S\n\n**1. Close means\nstorage.** When it\n\n**6a'. `x`: y,** z\n\n**Bold. No.** x\n";
        let found = promises(text);
        let expected = [("1", "Close means storage"), ("6a'", "`x`: y")]
            .map(|(id, title)| Promise { id: id.into(), title: title.into() });
        assert_eq!(found, expected);
    }

    #[test]
    fn tests_name_their_promises() {
        let text = "/// A story.\n/// Promise: 6c, 6d\n#[test]\nfn one() {}\nfn two() {}\n\
                    # Promise: 7.\ndef three(self):\n/// A story. Promise:\n/// 8\nfn four() {}\n";
        let found = marked(text);
        let expected = [("6c", "one"), ("6d", "one"), ("7", "three"), (MISPLACED, "four")];
        assert_eq!(found, expected.map(|(id, name)| (id.to_string(), name.to_string())));
    }

    #[test]
    fn missing_and_unknown_are_found() {
        let promises = [Promise { id: "1".into(), title: "t".into() }];
        let tests = Tests::from([("2".into(), vec!["a.rs::b".into()])]);
        let found = unmatched(&promises, &tests);
        assert_eq!(
            found,
            ["docs/SEMANTICS.md: promise 1 has no test", "a.rs::b: docs/SEMANTICS.md has no promise 2"]
        );
        assert!(page(&promises, &Tests::new()).ends_with("## 1. t\n\n"));
    }
}
