//! The numbers of exports in filehandles.
//!
//! A number is computed from the path. Two paths can have the same computed number, and the second
//! one gets the next free number. The state directory keeps all numbers, so that they do not depend
//! on the order in which exports appear, and no number is ever given to another path.
//!
//! Each line of the file has a number in hexadecimal digits, a space and a path. In the path, a
//! backslash stands before control characters and backslashes, which are escaped as in Rust.

use crate::handle::NUMBERS;
use crate::v4::stable::write_durably;
use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use twox_hash::XxHash3_64;

/// Name of the file in the state directory.
const FILE: &str = "export-numbers";
const CURE: &str = "restore the file, or remove it, after which clients must mount again";

/// A number computed from a path. The same path always gives the same number.
pub fn number_of(path: &[u8]) -> u64 {
    XxHash3_64::oneshot(path)
}

/// The numbers given so far.
#[derive(Debug, Default)]
pub struct Numbers {
    by_path: HashMap<String, u32>,
    taken: HashSet<u32>,
    /// The state directory.
    dir: Option<PathBuf>,
    /// New numbers are not in the file.
    is_changed: bool,
}

impl Numbers {
    /// Reads the numbers in a state directory. Without a directory they last as long as the result.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn open(dir: Option<&Path>) -> io::Result<Self> {
        let mut numbers = Self { dir: dir.map(Path::to_path_buf), ..Self::default() };
        let Some(path) = dir.map(|dir| dir.join(FILE)) else { return Ok(numbers) };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(numbers),
            Err(e) => return Err(io::Error::new(e.kind(), format!("{}: {e}; {CURE}", path.display()))),
        };
        for line in text.lines() {
            let entry = line.split_once(' ').and_then(|(number, path)| {
                let number = u32::from_str_radix(number, 16).ok()?;
                Some((unescaped(path)?, number))
            });
            let is_new = |path: &str, number: &u32| {
                *number < NUMBERS && !numbers.taken.contains(number) && !numbers.by_path.contains_key(path)
            };
            let Some((path, number)) = entry.filter(|(path, number)| is_new(path, number)) else {
                let why = format!("{}: damaged line '{line}'; {CURE}", path.display());
                return Err(io::Error::new(ErrorKind::InvalidData, why));
            };
            numbers.add(&path, number);
        }
        Ok(numbers)
    }

    fn add(&mut self, path: &str, number: u32) {
        self.by_path.insert(path.into(), number);
        self.taken.insert(number);
    }

    /// The number of a path.
    pub(crate) fn of(&mut self, path: &str) -> u32 {
        if let Some(number) = self.by_path.get(path) {
            return *number;
        }
        let mut number = number_of(path.as_bytes()) as u32 % NUMBERS;
        while self.taken.contains(&number) {
            number = (number + 1) % NUMBERS;
        }
        self.add(path, number);
        self.is_changed = true;
        number
    }

    /// Writes new numbers to the state directory, durably.
    pub(crate) fn keep(&mut self) -> io::Result<()> {
        let Some(dir) = self.dir.as_ref().filter(|_| self.is_changed) else { return Ok(()) };
        let mut lines: Vec<String> =
            self.by_path.iter().map(|(path, number)| format!("{number:06x} {}\n", escaped(path))).collect();
        lines.sort();
        write_durably(dir, &dir.join(FILE), lines.concat().as_bytes())?;
        self.is_changed = false;
        Ok(())
    }
}

/// The path on one line.
fn escaped(path: &str) -> String {
    let escape = |c: char| match c {
        '\\' => "\\\\".into(),
        c if c.is_control() => format!("\\u{{{:x}}}", c as u32),
        c => c.to_string(),
    };
    path.chars().map(escape).collect()
}

/// The path that [`escaped`] made a line of.
fn unescaped(line: &str) -> Option<String> {
    let mut parts = line.split('\\');
    let mut path = parts.next()?.to_string();
    while let Some(part) = parts.next() {
        match part.strip_prefix("u{").and_then(|rest| rest.split_once('}')) {
            Some((code, rest)) => {
                path.push(char::from_u32(u32::from_str_radix(code, 16).ok()?)?);
                path.push_str(rest);
            }
            // Two backslashes.
            None if part.is_empty() => {
                path.push('\\');
                path.push_str(parts.next()?);
            }
            None => return None,
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paths with the same computed number.
    const SAME: [&str; 2] = ["/v0641", "/v3469"];

    /// Paths with the same computed number keep their numbers, in whatever order they appear after
    /// a restart, and after one of them is gone.
    #[test]
    fn numbers_do_not_depend_on_order() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            number_of(SAME[0].as_bytes()) as u32 % NUMBERS,
            number_of(SAME[1].as_bytes()) as u32 % NUMBERS
        );
        let open = || Numbers::open(Some(dir.path())).unwrap();
        let mut numbers = open();
        let given = SAME.map(|path| numbers.of(path));
        assert_ne!(given[0], given[1]);
        numbers.keep().unwrap();
        let mut numbers = open();
        assert_eq!([numbers.of(SAME[1]), numbers.of(SAME[0])], [given[1], given[0]]);
        let third = (0..).map(|n| format!("/x{n}")).find(|path| {
            let number = number_of(path.as_bytes()) as u32 % NUMBERS;
            number == given[1]
        });
        assert_ne!(open().of(&third.unwrap()), given[1], "the number belongs to another path");
    }

    /// Paths with any characters are read as they were written. None of them changes the number of
    /// another path.
    #[test]
    fn strange_paths_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["/a", "/a\n000001 /a", "/b\r", "/b", "/\\", "/\\\\u{a}", "/\u{85}x", "/ ", "/\\n", "/ü"];
        let mut numbers = Numbers::open(Some(dir.path())).unwrap();
        let given = paths.map(|path| numbers.of(path));
        numbers.keep().unwrap();
        let mut numbers = Numbers::open(Some(dir.path())).unwrap();
        assert_eq!(numbers.by_path.len(), paths.len());
        assert_eq!(paths.map(|path| numbers.of(path)), given);
    }

    #[test]
    fn damaged_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let twice = ["000001 /a\n000001 /b\n", "000001 /a\n000002 /a\n"];
        for text in ["x /a\n", "01000000 /a\n", "000001\n", "000001 /\\x\n"].into_iter().chain(twice) {
            std::fs::write(dir.path().join(FILE), text).unwrap();
            assert!(Numbers::open(Some(dir.path())).is_err(), "{text}");
        }
    }
}
