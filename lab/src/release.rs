//! Releases of the peers: the installed release, and a newer one from a root of its own.
//!
//! `lab/packages.sh newer` makes that root, a small Debian 13, in a cache directory. Its programs
//! run under chroot(2) in a mount namespace of their own. The repository and the run directory have
//! the same paths there as outside.

use crate::args::Args;
use crate::guest::quote;
use crate::lab::{Fail, Lab, Res};
use crate::process::command;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A release of a peer's software.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Release {
    /// The release that is installed on this machine.
    #[default]
    Installed,
    /// The release in the newer root.
    Newer,
}

/// The names of a software's releases, the installed one first.
#[derive(Clone, Copy)]
pub struct Names([&'static str; 2]);

/// The Linux kernel of the guests.
pub const KERNEL: Names = Names(["6.1", "6.12"]);
/// nfs-ganesha.
pub const GANESHA: Names = Names(["4", "6"]);

impl Names {
    /// The name of a release.
    pub fn of(self, release: Release) -> &'static str {
        match release {
            Release::Installed => self.0[0],
            Release::Newer => self.0[1],
        }
    }

    fn parse(self, option: &str, name: &str) -> Res<Release> {
        [Release::Installed, Release::Newer]
            .into_iter()
            .find(|release| self.of(*release) == name)
            .ok_or_else(|| Fail(format!("{option} {name}: {}", self.0.join(" or "))))
    }
}

/// The releases that the command line chooses. `None` leaves a running peer as it is.
#[derive(Clone, Copy, Default)]
pub struct Releases {
    /// The kernel of the guests.
    pub kernel: Option<Release>,
    /// nfs-ganesha.
    pub ganesha: Option<Release>,
}

impl Releases {
    /// Takes `--kernel 6.1|6.12` and `--ganesha 4|6`.
    pub fn from_args(args: &mut Args) -> Res<Self> {
        let mut take = |option: &str, names: Names| {
            args.value(option)?.map(|name| names.parse(option, &name)).transpose()
        };
        Ok(Self { kernel: take("--kernel", KERNEL)?, ganesha: take("--ganesha", GANESHA)? })
    }

    /// The same with the installed release of everything that the command line leaves open.
    pub fn or_installed(self) -> Self {
        let fixed = |chosen: Option<Release>| Some(chosen.unwrap_or_default());
        Self { kernel: fixed(self.kernel), ganesha: fixed(self.ganesha) }
    }
}

/// The release with which a peer was started last, in a file.
pub struct Record(PathBuf);

impl Record {
    /// The record in `DIR/NAME.release`.
    pub fn at(dir: &Path, name: &str) -> Self {
        Self(dir.join(format!("{name}.release")))
    }

    /// The release of the last start, or the installed one before the first start.
    pub fn last(&self) -> Release {
        if fs::read_to_string(&self.0).is_ok_and(|text| text.trim() == "newer") {
            Release::Newer
        } else {
            Release::Installed
        }
    }

    /// Notes the release of a start.
    pub fn note(&self, release: Release) -> Res<()> {
        let text = match release {
            Release::Installed => "installed\n",
            Release::Newer => "newer\n",
        };
        Ok(fs::write(&self.0, text)?)
    }
}

/// The root with the newer releases: `$HITHER_LAB_NEWER`, or a directory of the user's cache.
pub fn newer_root() -> Res<PathBuf> {
    let cache = || {
        let home =
            || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cache");
        let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from);
        cache.join("hither-lab/trixie")
    };
    let root = std::env::var_os("HITHER_LAB_NEWER").map_or_else(cache, PathBuf::from);
    if !root.join("complete").exists() {
        return Err(Fail(format!("no newer peers in {}; `lab/packages.sh newer` gets them", root.display())));
    }
    Ok(std::path::absolute(root)?)
}

/// Wraps a command, so that it runs in the newer root. `before` are shell lines that run outside of
/// the root in the command's mount namespace. `paths` are further directories with the same path
/// inside.
pub fn in_root(lab: &Lab, root: &Path, before: &str, paths: &[PathBuf], inner: &Command) -> Command {
    let within = |path: &Path| quote(&format!("{}{}", root.display(), path.display()));
    let hither = lab.hither().parent().and_then(|dir| std::path::absolute(dir).ok());
    // The parent of the run directory has the tools of the suites.
    let runs = lab.run.parent().map(Path::to_path_buf);
    let mut same: Vec<PathBuf> = [Some(lab.repo.clone()), runs, hither].into_iter().flatten().collect();
    same.extend_from_slice(paths);
    same.retain(|path| path.is_dir() && !path.starts_with("/dev"));
    same.sort();
    same.dedup();
    let mut script = String::from("umount -l /mnt 2>/dev/null || true\n");
    script += &format!("mount --rbind /dev {}\n", within(Path::new("/dev")));
    script += &format!("mount -t proc proc {}\n", within(Path::new("/proc")));
    for path in same {
        let (outside, inside) = (quote(&path.display().to_string()), within(&path));
        script += &format!("mkdir -p {inside}; mount --bind {outside} {inside}\n");
    }
    script += before;
    script += &format!("\nexec chroot {} \"$@\"", quote(&root.display().to_string()));
    let mut c = command(&["unshare", "--mount", "--propagation", "private", "sh", "-ec", &script, "sh"]);
    c.arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => c.env(name, value),
            None => c.env_remove(name),
        };
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Args {
        Args::new(line.split_whitespace().map(str::to_string).collect())
    }

    /// The options choose a release, their absence none, and unknown releases are refused.
    #[test]
    fn options_choose_releases() {
        let chosen = Releases::from_args(&mut args("suite --kernel 6.12")).unwrap();
        assert_eq!((chosen.kernel, chosen.ganesha), (Some(Release::Newer), None));
        assert_eq!(chosen.or_installed().ganesha, Some(Release::Installed));
        assert!(Releases::from_args(&mut args("suite --ganesha 5")).is_err());
    }

    /// A restart uses the release of the last start.
    #[test]
    fn record_keeps_last_release() {
        let dir = std::env::temp_dir().join(format!("hither-lab-release-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let record = Record::at(&dir, "knfsd");
        assert_eq!(record.last(), Release::Installed);
        record.note(Release::Newer).unwrap();
        assert_eq!(Record::at(&dir, "knfsd").last(), Release::Newer);
        let _ = fs::remove_dir_all(&dir);
    }
}
