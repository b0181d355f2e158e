//! The defences of docs/SECURITY.md and their tests.
//!
//! A list item that begins with `Defended:` names at least one test as `path::name`. Each named
//! test must exist.

use std::fs;

const PAGE: &str = "docs/SECURITY.md";
const MARK: &str = "- Defended:";

/// The complaints about the page.
pub fn check() -> Vec<String> {
    match fs::read_to_string(PAGE) {
        Ok(text) => complaints(&text, &|path| fs::read_to_string(path).ok()),
        Err(e) => vec![format!("{PAGE}: {e}")],
    }
}

/// `read` returns the text of a source file.
fn complaints(text: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let items = items(text);
    let without = items.iter().filter(|item| named(item).next().is_none());
    let missing = items.iter().flat_map(|item| named(item)).filter(|(path, name)| !exists(read(path), name));
    without
        .map(|item| format!("{PAGE}: no test: {item}"))
        .chain(missing.map(|(path, name)| format!("{PAGE}: no such test: {path}::{name}")))
        .chain(items.is_empty().then(|| format!("{PAGE}: no item begins with `{MARK}`")))
        .collect()
}

/// The items that state a defence, each in one line.
fn items(text: &str) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with(MARK) {
            items.push(line.to_owned());
            inside = true;
        } else if let (true, Some(more), Some(item)) = (inside, line.strip_prefix("  "), items.last_mut()) {
            item.push(' ');
            item.push_str(more);
        } else {
            inside = false;
        }
    }
    items
}

/// Pairs of a file and a function that an item names.
fn named(item: &str) -> impl Iterator<Item = (&str, &str)> {
    item.split('`').skip(1).step_by(2).filter_map(|word| {
        let (path, name) = word.rsplit_once("::")?;
        path.contains('/').then_some((path, name))
    })
}

/// Whether a source file has a test of this name, a function below the attribute of a test.
fn exists(source: Option<String>, name: &str) -> bool {
    let Some(source) = source else { return false };
    let mut is_test = false;
    for line in source.lines().map(str::trim_start) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some((_, after)) = line.split_once("fn ") {
            if line.starts_with("//") {
                continue;
            }
            if is_test && after.strip_prefix(name).is_some_and(|rest| rest.starts_with('(')) {
                return true;
            }
            is_test = false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An item without a test, a missing file, and a function that is no test are found.
    #[test]
    fn untested_defences_are_found() {
        let read =
            |path: &str| (path == "a/b.rs").then(|| "#[test]\nfn one() {}\nfn helper() {}\n".to_owned());
        let text = "- Defended: x\n  (`a/b.rs::one`).\n- Defended: y (`a/b.rs::helper`,\n  `c/d.rs::one`).\n\
                    - Not defended: z\n- Defended: w\n";
        assert_eq!(
            complaints(text, &read),
            [
                "docs/SECURITY.md: no test: - Defended: w",
                "docs/SECURITY.md: no such test: a/b.rs::helper",
                "docs/SECURITY.md: no such test: c/d.rs::one",
            ]
        );
        assert_eq!(complaints("- Defended: x (`a/b.rs::one`).", &read), Vec::<String>::new());
        assert_eq!(complaints("", &read).len(), 1);
    }
}
