//! The origins of a gateway: words of the command line, and lines in the syntax of fstab(5).
//!
//! This module connects to nothing. A line names an origin's export, the path at which clients find
//! it, and mount options for the origin. A path with `*`, `?` or `[` stands for all exports of the
//! origin that match.

use super::refuse_mount_options;
use crate::cli::GatewayArgs;
use crate::exit::Failure;
use crate::mountinfo::unescape;
use crate::options::{Wanted, split};
use crate::source::Source;
use hither_server::pattern::matches_pattern;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Largest file of origins, in bytes.
const FILE_MAX_BYTES: u64 = 4 << 20;

/// A line of the configuration.
#[derive(Debug, Clone)]
pub struct OriginLine {
    /// Host, and path or pattern of paths.
    pub source: Source,
    /// Path at which clients find the export, or under which they find all matching exports.
    pub path: String,
    /// Mount options for the origin.
    pub wanted: Wanted,
    /// `stale-ok=`: how long cached answers hold beyond their time while the origin is away.
    pub stale_ok: Option<Duration>,
    /// Patterns of exports that are left out.
    exclude: Vec<String>,
    /// Source, path and options as text. It identifies the line across reloads.
    pub text: String,
}

impl OriginLine {
    /// Whether the line stands for all matching exports of the origin.
    pub fn is_pattern(&self) -> bool {
        is_pattern(&self.source.path)
    }

    /// Whether the pattern includes an export of the origin.
    pub fn includes(&self, export: &str) -> bool {
        let fits = |pattern: &str| matches_pattern(pattern.as_bytes(), export.as_bytes());
        fits(&self.source.path) && !self.exclude.iter().any(|pattern| fits(pattern))
    }

    /// The path for clients of an export that the pattern includes.
    pub fn path_of(&self, export: &str) -> String {
        let below = export.trim_matches('/');
        match (self.path.trim_end_matches('/'), below) {
            ("", "") => "/".to_owned(),
            (prefix, "") => prefix.to_owned(),
            (prefix, below) => format!("{prefix}/{below}"),
        }
    }

    fn new(source: &str, path: Option<&str>, lists: &[String]) -> Result<Self, String> {
        let source = Source::parse(source)?;
        let (mut exclude, mut stale_ok, mut options) = (Vec::new(), None, Vec::new());
        for word in lists.iter().flat_map(|list| split(list)) {
            match word.split_once('=') {
                Some(("exclude", pattern)) if pattern.starts_with('/') => exclude.push(pattern.to_owned()),
                Some(("exclude", _)) => return Err(format!("'{word}': a path must follow the =")),
                Some(("stale-ok", time)) => stale_ok = Some(duration(word, time)?),
                _ => options.push(word.to_owned()),
            }
        }
        let usual = if is_pattern(&source.path) { "/" } else { &source.path };
        let path = clean(path.unwrap_or(usual))?;
        if !exclude.is_empty() && !is_pattern(&source.path) {
            return Err(format!("'exclude=' needs a pattern such as {}:/*", source.host));
        }
        let wanted = Wanted::parse(&options, false)?;
        refuse_mount_options(&wanted)?;
        let (mount, left_out) = (options.join(","), exclude.join(","));
        let text = format!("{} {path} {mount} {left_out} {stale_ok:?}", source.shown());
        Ok(Self { source, path, wanted, stale_ok, exclude, text })
    }
}

fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?', '['])
}

/// Reads a number of seconds, or of minutes, hours or days with `m`, `h` or `d`.
fn duration(word: &str, text: &str) -> Result<Duration, String> {
    let (digits, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let factor = match unit {
        "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3_600),
        "d" => Some(86_400),
        _ => None,
    };
    let seconds = digits.parse::<u32>().ok().zip(factor).map(|(number, factor)| u64::from(number) * factor);
    let seconds = seconds.filter(|seconds| *seconds > 0);
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| format!("'{word}': a time such as 90, 15m, 2h or 1d must follow the ="))
}

/// An absolute path without repeated or trailing slashes.
fn clean(path: &str) -> Result<String, String> {
    if !path.starts_with('/') {
        return Err(format!("'{path}': the path for clients must begin with /"));
    }
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    Ok(format!("/{}", names.join("/")))
}

/// Reads all origins.
///
/// # Errors
/// The first fault, with its place.
pub fn read(args: &GatewayArgs) -> Result<Vec<OriginLine>, Failure> {
    let words: Vec<String> = args.serve.dir.iter().map(|dir| dir.to_string_lossy().into_owned()).collect();
    let words: Vec<String> = words.into_iter().chain(args.more.iter().cloned()).collect();
    let mut all = Vec::new();
    for word in &words {
        // The only origin is the root for clients.
        let root = (words.len() == 1 && args.origins.is_empty() && !is_pattern(word)).then_some("/");
        all.push(OriginLine::new(word, root, &args.mount).map_err(Failure::usage)?);
    }
    for file in &args.origins {
        read_file(file, &args.mount, &mut all)?;
    }
    if all.is_empty() {
        return Err(Failure::usage("nothing to serve: name SERVER:/PATH, or --origins FILE"));
    }
    for (i, line) in all.iter().enumerate().filter(|(_, line)| !line.is_pattern()) {
        if let Some(other) = all[..i].iter().find(|other| !other.is_pattern() && other.path == line.path) {
            return Err(Failure::usage(format!(
                "{} and {} have the path {} both: give each a path of its own in a file (--origins)",
                other.source.shown(),
                line.source.shown(),
                line.path
            )));
        }
    }
    Ok(all)
}

fn read_file(file: &Path, defaults: &[String], all: &mut Vec<OriginLine>) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::usage(format!("{}: {e}", file.display()));
    if fs::metadata(file).map_err(failed)?.len() > FILE_MAX_BYTES {
        return Err(Failure::usage(format!("{}: larger than {FILE_MAX_BYTES} bytes", file.display())));
    }
    let text = fs::read(file).map_err(failed)?;
    for (i, line) in text.split(|b| *b == b'\n').enumerate() {
        let fields: Vec<String> = line
            .split(|b| b.is_ascii_whitespace())
            .filter(|field| !field.is_empty())
            .map(|field| unescape(field).to_string_lossy().into_owned())
            .collect();
        if fields.first().is_none_or(|first| first.starts_with('#')) {
            continue;
        }
        let wrong = |what: String| Failure::usage(format!("{}:{}: {what}", file.display(), i + 1));
        all.push(of_fields(&fields, defaults).map_err(wrong)?);
    }
    Ok(())
}

/// A line of fstab(5): source, path, type, options and two numbers without an effect.
fn of_fields(fields: &[String], defaults: &[String]) -> Result<OriginLine, String> {
    let (source, path) = match fields {
        [source, path, kind, ..] if kind == "hither" => (source, path),
        [_, _, kind, ..] => return Err(format!("the third field is '{kind}': write hither")),
        _ => return Err("write SERVER:/PATH /PATH-FOR-CLIENTS hither OPTIONS".into()),
    };
    if fields.len() > 6 {
        return Err("more than six fields: write a blank in a path as \\040".into());
    }
    let lists: Vec<String> = defaults.iter().cloned().chain(fields.get(3).cloned()).collect();
    OriginLine::new(source, Some(path), &lists)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn lines(words: &[&str]) -> Result<Vec<OriginLine>, String> {
        let words = [&["hither", "gateway"], words].concat();
        let Command::Gateway(args) = Cli::parse_from(words).command else { panic!("it is gateway") };
        read(&args).map_err(|failure| failure.line)
    }

    fn shown(words: &[&str]) -> Vec<(String, String)> {
        lines(words).unwrap().iter().map(|line| (line.source.shown(), line.path.clone())).collect()
    }

    /// The only origin is the root. Several origins keep their paths.
    #[test]
    fn origins_have_paths() {
        let pair = |source: &str, path: &str| (source.to_owned(), path.to_owned());
        assert_eq!(shown(&["a:/x"]), [pair("a:/x", "/")]);
        assert_eq!(shown(&["a:/x", "b:/y/"]), [pair("a:/x", "/x"), pair("b:/y/", "/y")]);
        assert_eq!(shown(&["a:/*"]), [pair("a:/*", "/")]);
        let line = lines(&["a:/x", "b:/x"]).unwrap_err();
        assert!(line.contains("a:/x and b:/x have the path /x both"), "{line}");
    }

    /// Lines of a file have a path and options of their own. `--mount` has the defaults of all.
    #[test]
    fn file_has_paths_and_options() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("origins");
        let read = |text: &str| {
            fs::write(&file, text).unwrap();
            lines(&["--origins", file.to_str().unwrap(), "--mount", "vers=3"])
        };
        let all = read(
            "# comment\n\na:/x /p\\040q hither vers=4.2 0 0\nb:/h* / hither exclude=/home/x*,soft,stale-ok=2h\n",
        );
        let all = all.unwrap();
        assert_eq!((all[0].stale_ok, all[1].stale_ok), (None, Some(Duration::from_secs(7_200))));
        assert_eq!((all[0].path.as_str(), all[1].path.as_str()), ("/p q", "/"));
        assert!(!all[0].is_pattern() && all[1].is_pattern());
        assert!(all[1].includes("/home/a") && !all[1].includes("/home/xy") && !all[1].includes("/srv"));
        for (text, part) in [
            ("a:/x\n", "origins:1: write SERVER:/PATH /PATH-FOR-CLIENTS hither OPTIONS"),
            ("\na:/x /x nfs vers=3\n", "origins:2: the third field is 'nfs': write hither"),
            ("a:/x x hither\n", "the path for clients must begin with /"),
            ("a:/x /x hither bg\n", "'bg' is not for a gateway"),
            ("a:/x /x hither exclude=/y\n", "needs a pattern such as a:/*"),
            ("a:/* / hither exclude=y\n", "a path must follow"),
            ("a:/x /x hither stale-ok=1y\n", "a time such as 90, 15m, 2h or 1d must follow"),
            ("a:/x /x hither stale-ok=0\n", "a time such as"),
            ("# nothing\n", "nothing to serve"),
            ("a:/x /x hither rw 0 0 0\n", "more than six fields"),
        ] {
            let line = read(text).unwrap_err();
            assert!(line.contains(part), "{line}");
        }
    }
}
