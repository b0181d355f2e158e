//! The prose checks of `cargo xtask tidy`: line width, sentence length and banned constructions.
//!
//! The checks read Markdown files and the comments of Rust files. Code, tables and headings are not
//! prose. Only the files and directories of [`PLAIN`] must follow the rules. Each rewritten part of
//! the project joins that list and stays in it.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use regex::Regex;
use std::path::Path;
use std::sync::LazyLock;

/// Files and directories whose prose follows the rules.
const PLAIN: &[&str] = &[
    "ARCHITECTURE.md",
    "bench/README.md",
    "bindings",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "crates",
    "docs",
    "fuzz",
    "lab",
    "packaging",
    "README.md",
    "xtask",
];

/// Columns of a line of prose.
const MAX_COLUMNS: usize = 100;
/// Words of a sentence, on average over a file.
const MAX_MEAN_WORDS: f64 = 20.0;
/// A sentence with more words is long.
const LONG_WORDS: usize = 40;
/// Most long sentences of a file, in percent.
const MAX_LONG_PERCENT: usize = 3;

/// Subjects and objects that replace a noun of the field.
static BANNED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"(?i)\b(whoever|whatever is|that which|who (is|has|had|may|wants|reads|writes|opens|asks|looks|only)|what (is|was|were|had|has|it|they|this|that|others|somebody|a [a-z]+) [a-z]+)",
    )
    .expect("the pattern is a constant")
});

/// The complaints about the prose of one file.
pub fn check(path: &Path, text: &str) -> Vec<String> {
    let name = path.to_string_lossy();
    // PROMISES.md is generated.
    if name == "docs/PROMISES.md"
        || !PLAIN.iter().any(|plain| name == *plain || name.starts_with(&format!("{plain}/")))
    {
        return Vec::new();
    }
    let markdown = if name.ends_with(".md") {
        text.to_string()
    } else if name.ends_with(".rs") {
        comments(text)
    } else {
        return Vec::new();
    };
    let mut complaints = wide_lines(&markdown, &name);
    let sentences = sentences(&markdown);
    complaints.extend(banned(&sentences, &name));
    complaints.extend(lengths(&sentences, &name));
    complaints
}

/// The text of a Rust file's comments. A run of comment lines becomes a paragraph.
fn comments(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let line = line.trim_start();
        let body = ["//!", "///", "//"].iter().find_map(|mark| line.strip_prefix(mark));
        out.push_str(body.map_or("", |body| body.strip_prefix(' ').unwrap_or(body)));
        out.push('\n');
    }
    out
}

fn wide_lines(markdown: &str, name: &str) -> Vec<String> {
    let mut fenced = false;
    let mut complaints = Vec::new();
    for (i, line) in markdown.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        let prose = !fenced && !line.starts_with('|') && !line.contains("://");
        if prose && line.chars().count() > MAX_COLUMNS {
            complaints.push(format!("{name}:{}: wrap prose at {MAX_COLUMNS} columns", i + 1));
        }
    }
    complaints
}

/// The sentences of all paragraphs and list items. Inline code counts as one word.
fn sentences(markdown: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut paragraph = String::new();
    let mut skipped = 0;
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::CodeBlock(_) | Tag::Table(_) | Tag::Heading { .. }) => skipped += 1,
            Event::End(TagEnd::CodeBlock | TagEnd::Table | TagEnd::Heading(_)) => skipped -= 1,
            Event::End(TagEnd::Paragraph | TagEnd::Item) => split(&mut paragraph, &mut all),
            Event::Text(text) if skipped == 0 => paragraph.push_str(&text),
            Event::Code(_) if skipped == 0 => paragraph.push_str("CODE"),
            Event::SoftBreak | Event::HardBreak if skipped == 0 => paragraph.push(' '),
            _ => {}
        }
    }
    split(&mut paragraph, &mut all);
    all
}

/// Moves the sentences of a paragraph to `all`.
fn split(paragraph: &mut String, all: &mut Vec<String>) {
    static END: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"[.!?:;]\s+").expect("the pattern is a constant"));
    all.extend(END.split(paragraph).map(str::trim).filter(|s| !s.is_empty()).map(String::from));
    paragraph.clear();
}

fn banned(sentences: &[String], name: &str) -> Vec<String> {
    let found = sentences.iter().filter_map(|sentence| Some((BANNED.find(sentence)?, sentence)));
    found
        .map(|(m, sentence)| format!("{name}: name the noun instead of '{}': {sentence}", m.as_str()))
        .collect()
}

fn lengths(sentences: &[String], name: &str) -> Vec<String> {
    if sentences.is_empty() {
        return Vec::new();
    }
    let words: Vec<usize> = sentences.iter().map(|s| s.split_whitespace().count()).collect();
    let mean = words.iter().sum::<usize>() as f64 / words.len() as f64;
    let long: Vec<_> = sentences.iter().zip(&words).filter(|(_, n)| **n > LONG_WORDS).collect();
    let mut complaints = Vec::new();
    if mean > MAX_MEAN_WORDS {
        complaints
            .push(format!("{name}: a sentence has {mean:.1} words on average ({MAX_MEAN_WORDS} at most)"));
    }
    if long.len() * 100 > MAX_LONG_PERCENT * words.len() {
        complaints.extend(long.iter().map(|(s, n)| format!("{name}: a sentence of {n} words: {s}")));
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_faults_are_found() {
        let path = Path::new("README.md");
        let long = format!("{}end.\n", "word ".repeat(45));
        let wide: Vec<_> = check(path, &long);
        assert_eq!(wide.len(), 3, "{wide:?}");
        let who = check(path, "Who has the file open sees it.\n");
        assert_eq!(who.len(), 1, "{who:?}");
        assert!(check(path, "The client that has the file open sees the change.\n").is_empty());
    }

    #[test]
    fn code_and_tables_are_spared() {
        let code = format!("    {}\n\n```\n{}\n```\n", "word ".repeat(60), "what is said ".repeat(30));
        assert_eq!(check(Path::new("docs/INSTALL.md"), &code).len(), 1, "only the wide indented line");
        let table = format!("| a | b |\n|---|---|\n| {} | x |\n", "word ".repeat(60));
        assert!(check(Path::new("docs/INSTALL.md"), &table).is_empty());
    }

    #[test]
    fn only_listed_files_are_checked() {
        let text = format!("//! {}\nfn f() {{}}\n", "Whoever reads this. ".repeat(3));
        assert_eq!(check(Path::new("xtask/src/prose.rs"), &text).len(), 3);
        assert!(check(Path::new("examples/lib.rs"), &text).is_empty());
    }
}
