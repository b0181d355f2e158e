//! Finds faults in fstab(5).

use super::{Checked, MISSING, no_directory, read};
use crate::mountinfo::{FSTYPE, unescape};
use crate::options::Wanted;
use crate::source::Source;
use nix::unistd::Group;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Names of hither's file-system type in fstab: `mount.hither` and `mount.fuse.hither` are the same
/// program.
const TYPES: [&str; 2] = ["hither", FSTYPE];

/// Checks the lines for hither.
pub(super) fn check(file: &Path, root: &Path, checked: &mut Checked) {
    let name = file.display().to_string();
    let Some(text) = read(file, checked) else { return };
    let mut points = BTreeMap::new();
    for (i, line) in text.split(|b| *b == b'\n').enumerate() {
        let fields: Vec<&[u8]> =
            line.split(|b| b.is_ascii_whitespace()).filter(|field| !field.is_empty()).collect();
        if fields.first().is_none_or(|first| first.starts_with(b"#")) {
            continue;
        }
        let line = Line { file: &name, number: i + 1, root };
        line.check(&fields, &mut points, checked);
    }
}

struct Line<'a> {
    file: &'a str,
    number: usize,
    root: &'a Path,
}

impl Line<'_> {
    fn check(&self, fields: &[&[u8]], points: &mut BTreeMap<PathBuf, usize>, checked: &mut Checked) {
        let ours = |i: usize| fields.get(i).is_some_and(|f| TYPES.iter().any(|name| name.as_bytes() == *f));
        if !ours(2) {
            // The word `hither` may occur in any line. Only a line that could be for hither is
            // reported.
            if ours(3) && fields[0].contains(&b':') {
                let what =
                    "the type 'hither' is the fourth field, not the third: write a blank in a path as \\040";
                checked.fault(self.file, self.number, what);
            }
            return;
        }
        checked.mounts += 1;
        let field = |i: usize| fields.get(i).map(|f| unescape(f).to_string_lossy().into_owned());
        if let Err(what) = Source::parse(&field(0).unwrap_or_default()) {
            checked.fault(self.file, self.number, what);
        }
        let list = field(3).unwrap_or_default();
        self.check_point(Path::new(&unescape(fields[1])), &list, points, checked);
        self.check_options(list, checked);
        self.check_numbers(fields, checked);
    }

    /// Checks the fifth and the sixth field. mount(8) ignores a line in which they are not numbers.
    fn check_numbers(&self, fields: &[&[u8]], checked: &mut Checked) {
        let number = |i: usize| {
            let text = fields.get(i).map_or("0", |f| std::str::from_utf8(f).unwrap_or_default());
            text.parse::<i32>().ok()
        };
        let what = if fields.iter().skip(3).take(3).any(|f| f.starts_with(b"#")) {
            "a comment needs a line of its own: mount(8) takes it for the next field"
        } else if fields.len() > 6 && !fields[6].starts_with(b"#") {
            "more than six fields: write options with commas and without blanks, a blank in a path as \\040"
        } else if number(4).is_none() || number(5).is_none() {
            "the fifth and the sixth field are numbers: write 0 0, options with commas and without blanks"
        } else if number(5) != Some(0) {
            "the sixth field lets fsck(8) check it, which it cannot: write 0"
        } else {
            return;
        };
        checked.fault(self.file, self.number, what);
    }

    fn check_point(
        &self,
        point: &Path,
        list: &str,
        points: &mut BTreeMap<PathBuf, usize>,
        checked: &mut Checked,
    ) {
        // The mounting program creates the mount point, or retries until it exists.
        let made = |option: &str| {
            option == "bg"
                || option.split('=').next().is_some_and(|o| o.eq_ignore_ascii_case("x-mount.mkdir"))
        };
        let made = list.split(',').any(made);
        let shown = point.display();
        if !point.is_absolute() {
            let what = format!("the mount point '{shown}' is not absolute: write it from / on");
            checked.fault(self.file, self.number, what);
            return;
        }
        if let Some(why) = no_directory(self.root, point).filter(|why| !(made && *why == MISSING)) {
            let what = format!("the mount point {shown} {}", super::mended(why, point));
            checked.fault(self.file, self.number, what);
        }
        // Lines with `noauto` may share a mount point.
        let by_hand = list.split(',').any(|option| option == "noauto");
        if !by_hand && let Some(other) = points.insert(point.components().collect(), self.number) {
            let what = format!("line {other} has the mount point {shown} too: keep one, or mount elsewhere");
            checked.fault(self.file, self.number, what);
        }
    }

    fn check_options(&self, list: String, checked: &mut Checked) {
        let has = |word: &str| list.split(',').any(|option| option == word);
        let starts = |word: &str| list.split(',').any(|option| option.starts_with(word));
        if !has("_netdev") && !has("noauto") && !starts("x-systemd.automount") {
            let what =
                "without the option _netdev it may be mounted at boot before there is a network: add it";
            checked.note(self.file, self.number, what);
        }
        let wanted = match Wanted::parse_all(&[list], false) {
            Ok(wanted) => wanted,
            Err(wrong) => {
                return wrong.into_iter().for_each(|what| checked.fault(self.file, self.number, what));
            }
        };
        if wanted.remount {
            let what = "option 'remount' has no place here: remove it";
            checked.fault(self.file, self.number, what);
        }
        if let Some(group) = wanted.socket.group.filter(|_| self.root == Path::new("/"))
            && group.parse::<u32>().is_err()
            && matches!(Group::from_name(&group), Ok(None))
        {
            let what = format!(
                "option 'socket-group={group}': there is no such group: create it (groupadd {group})"
            );
            checked.fault(self.file, self.number, what);
        }
        for dir in [&wanted.cache.dir, &wanted.journal].into_iter().flatten() {
            // A missing directory is created. Any other file with its name is a fault.
            if no_directory(self.root, dir).is_some_and(|why| why == "is not a directory") {
                let what = format!("{} is not a directory: name another one", dir.display());
                checked.fault(self.file, self.number, what);
            }
        }
    }
}
