//! `subtree=PATH:MODE`: directories with a consistency mode of their own.
//!
//! Each mode other than the mount's own is a *part*: the options of a mount with that
//! `consistency=`. The layers above a part are therefore built from the same options as those of a
//! whole mount.

use super::{Consistency, Versions, Wanted};
use crate::stack::subtrees::Rules;
use hither_nfs::{AttrCache, LookupCache, Version};
use hither_vfs::Name;
use std::fmt;

/// Most modes besides the mount's own, because each part has its share of the memory.
const PARTS_MAX: usize = 7;

/// One `subtree=` option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subtree {
    /// Path of the directory from the root of the mount.
    pub names: Vec<Name>,
    /// Mode of the directory.
    pub mode: Consistency,
    /// 0 selects the mount's own options, N the options of part N - 1.
    pub part: usize,
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CloseToOpen => f.write_str("close-to-open"),
            Self::Bounded(most) => write!(f, "bounded={}", most.as_secs()),
            Self::Frozen => f.write_str("frozen"),
            Self::Strict => f.write_str("strict"),
        }
    }
}

impl fmt::Display for Subtree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.names.iter().map(|name| String::from_utf8_lossy(name.as_bytes()));
        write!(f, "subtree={}:{}", names.collect::<Vec<_>>().join("/"), self.mode)
    }
}

/// Parses `subtree=`, as the actions of [`apply`](super::apply) do.
pub(super) fn take(w: &mut Wanted, value: &str) -> Result<(), String> {
    // A path with commas is written in double quotes (fstab uses \040 for spaces).
    let bare = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
    let (path, mode) = bare.rsplit_once(':').ok_or("expected PATH:MODE, such as queue:strict")?;
    let mode = super::apply::mode(mode)?;
    let names =
        Name::of_path(path).map_err(|_| "expected a path below the mounted directory, without '..'")?;
    if names.is_empty() {
        return Err(format!("it names the root of the mount: write consistency={mode}"));
    }
    w.subtrees.retain(|other| other.names != names);
    w.subtrees.push(Subtree { names, mode, part: 0 });
    Ok(())
}

impl Wanted {
    /// The rules that assign directories to parts.
    pub fn rules(&self) -> Option<Rules> {
        let rules: Vec<_> = self.subtrees.iter().map(|one| (one.names.clone(), one.part)).collect();
        Rules::new(self.parts.len() + 1, &rules)
    }

    /// The options of each part, the mount's own first.
    pub fn all_parts(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.parts)
    }

    /// The rule for a path below the root, and the options for that path.
    pub fn at(&self, path: &[Name]) -> (Option<&Subtree>, &Self) {
        let rules = self.subtrees.iter().filter(|rule| path.starts_with(&rule.names));
        let rule = rules.max_by_key(|rule| rule.names.len());
        let part = rule.and_then(|rule| self.parts.get(rule.part.checked_sub(1)?));
        (rule, part.unwrap_or(self))
    }

    /// With subtrees: the mount's own mode if nfs(5) has no option for it, and all rules. For the
    /// display of the options in effect.
    pub fn modes(&self) -> Vec<String> {
        let own = self.consistency.filter(|own| matches!(own, Consistency::Bounded(_) | Consistency::Frozen));
        let own = own.filter(|_| !self.subtrees.is_empty()).map(|own| format!("consistency={own}"));
        own.into_iter().chain(self.subtrees.iter().map(Subtree::to_string)).collect()
    }

    /// Validity of the server's answers and names, from the options of nfs(5). If parts differ,
    /// each part applies its own rule later.
    pub fn told(&self) -> (AttrCache, LookupCache) {
        self.told.unwrap_or((self.attr_cache, self.lookup_cache))
    }

    /// Makes the parts. This step precedes the settings of the mount's own mode.
    pub(super) fn join_subtrees(&mut self) -> Result<(), String> {
        let Some(first) = self.subtrees.first() else { return Ok(()) };
        let nqnfs = matches!(self.versions, Versions::Only(Version::Nqnfs));
        let contrary = [
            (self.noac(), "noac"),
            (self.journal.is_some(), "writeback=journal"),
            (self.lazy_close, "close=lazy"),
            (self.delegated_close, "close=delegated"),
            (nqnfs, "vers=nqnfs"),
        ];
        if let Some((_, other)) = contrary.iter().find(|(given, _)| *given) {
            return Err(format!("options '{first}' and '{other}' contradict each other: keep one"));
        }
        let own = self.own_mode();
        let (mut modes, mut rules) = (Vec::new(), std::mem::take(&mut self.subtrees));
        for rule in rules.iter_mut().filter(|rule| Some(rule.mode) != own) {
            let known = modes.iter().position(|mode| *mode == rule.mode);
            rule.part = 1 + known.unwrap_or(modes.len());
            if known.is_none() {
                modes.push(rule.mode);
            }
        }
        if modes.len() > PARTS_MAX {
            return Err(format!("options 'subtree' have {} modes: at most {PARTS_MAX} differ", modes.len()));
        }
        self.parts = modes.iter().map(|mode| self.part(*mode)).collect();
        (self.subtrees, self.told) = (rules, Some((self.attr_cache, self.lookup_cache)));
        match self.rules() {
            Some(_) => Ok(()),
            None => Err("options 'subtree' name too many directories: at most 200".into()),
        }
    }

    /// The options of a part with another mode.
    fn part(&self, mode: Consistency) -> Self {
        let mut part = Self { consistency: Some(mode), close_to_open: true, ..self.clone() };
        part.become_consistent(mode);
        part
    }
}

#[cfg(test)]
mod tests;
