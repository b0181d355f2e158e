//! `mount.hither` and `umount.hither`, which mount(8) and umount(8) run.
//!
//! Their command lines are those of libmount: `mount.hither SOURCE DIR [-sfnv] [-N NS] [-t TYPE]
//! [-o OPTIONS]`, `umount.hither DIR [-nlfrv] [-N NS] [-t TYPE]`. Flags may be combined and may
//! appear anywhere.

use crate::cli::{LogArgs, MountArgs, UmountArgs};
use crate::exit::Failure;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// A parsed command line.
#[derive(Debug, Default)]
struct Line {
    letters: Vec<char>,
    options: Vec<String>,
    namespace: Option<String>,
    operands: Vec<OsString>,
}

/// Parses a command line. `flags` are the letters without a value.
fn read(args: impl Iterator<Item = OsString>, flags: &str, usage: &str) -> Result<Line, Failure> {
    let mut line = Line::default();
    let mut args = args;
    while let Some(arg) = args.next() {
        let Some(letters) = arg.to_str().and_then(|a| a.strip_prefix('-')).filter(|l| !l.is_empty()) else {
            line.operands.push(arg);
            continue;
        };
        for (at, letter) in letters.char_indices() {
            if flags.contains(letter) {
                line.letters.push(letter);
                continue;
            }
            if !"oNt".contains(letter) {
                return Err(Failure::usage(format!("unknown option -{letter}; usage: {usage}")));
            }
            let rest = &letters[at + 1..];
            let value = if rest.is_empty() {
                args.next().and_then(|value| value.into_string().ok())
            } else {
                Some(rest.to_string())
            };
            let value = value
                .ok_or_else(|| Failure::usage(format!("option -{letter} needs a value; usage: {usage}")))?;
            match letter {
                'o' => line.options.push(value),
                'N' => line.namespace = Some(value),
                _ => {}
            }
            break;
        }
    }
    Ok(line)
}

/// The arguments of `mount.hither`, and the mount name space.
pub fn mount_args(args: impl Iterator<Item = OsString>) -> Result<(MountArgs, Option<String>), Failure> {
    let usage = "mount.hither SERVER:/PATH DIR [-sfnv] [-N NS] [-o OPTIONS]";
    let line = read(args, "sfnv", usage)?;
    let [source, dir] = <[OsString; 2]>::try_from(line.operands)
        .map_err(|_| Failure::usage(format!("a source and a directory are needed; usage: {usage}")))?;
    let source = source.into_string().map_err(|_| Failure::usage("the source is not UTF-8"))?;
    let has = |letter| line.letters.contains(&letter);
    let args = MountArgs {
        source,
        dir: PathBuf::from(dir),
        options: line.options,
        foreground: false,
        log: LogArgs { verbose: has('v'), ..LogArgs::default() },
        daemon: false,
        fake: has('f'),
        sloppy: has('s'),
        dashboard: None,
    };
    Ok((args, line.namespace))
}

/// The arguments of `umount.hither`, and the mount name space.
pub fn umount_args(args: impl Iterator<Item = OsString>) -> Result<(UmountArgs, Option<String>), Failure> {
    let usage = "umount.hither DIR [-nlfrv] [-N NS]";
    let line = read(args, "nlfrv", usage)?;
    let [dir] = <[OsString; 1]>::try_from(line.operands)
        .map_err(|_| Failure::usage(format!("one directory is needed; usage: {usage}")))?;
    let has = |letter| line.letters.contains(&letter);
    let args = UmountArgs {
        dir: PathBuf::from(dir),
        lazy: has('l'),
        force: has('f'),
        timeout: 60,
        verbose: has('v'),
    };
    Ok((args, line.namespace))
}

/// Enters the mount name space of `-N`: a process id or the path of a name space file.
///
/// # Errors
/// The name space does not exist, or entering it is not permitted.
pub fn enter(namespace: &str) -> Result<(), Failure> {
    let path = match namespace.parse::<u32>() {
        Ok(pid) => PathBuf::from(format!("/proc/{pid}/ns/mnt")),
        Err(_) => Path::new(namespace).to_path_buf(),
    };
    let fail = |e: String| Failure::system(format!("mount name space {}: {e}", path.display()));
    let file = std::fs::File::open(&path).map_err(|e| fail(e.to_string()))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Mount)).map_err(|e| fail(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> impl Iterator<Item = OsString> {
        line.split_whitespace().map(OsString::from).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn libmounts_command_lines_are_understood() {
        let (args, ns) =
            mount_args(words("s:/x /mnt -sv -n -o rw,vers=3 -onoexec -N 12 -t fuse.hither")).unwrap();
        assert_eq!((args.source.as_str(), args.dir.as_path()), ("s:/x", Path::new("/mnt")));
        assert_eq!(args.options, ["rw,vers=3", "noexec"]);
        assert!(args.sloppy && args.log.verbose && !args.fake);
        assert_eq!(ns.as_deref(), Some("12"));
        assert!(mount_args(words("-f s:/x /mnt")).unwrap().0.fake);
        let (args, _) = umount_args(words("/mnt -lf -t hither")).unwrap();
        assert!(args.lazy && args.force);
    }

    #[test]
    fn wrong_usage_is_told() {
        for line in ["s:/x", "s:/x /mnt more", "s:/x /mnt -o", "s:/x /mnt -z"] {
            assert_eq!(mount_args(words(line)).unwrap_err().code, 1, "{line}");
        }
        assert!(umount_args(words("")).is_err());
    }
}
