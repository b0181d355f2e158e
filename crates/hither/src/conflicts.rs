//! `hither conflicts`: actions on delayed writes that could not be sent after a crash.
//!
//! Conflicts are files next to the journal (`hither_writeback::wal`). This command lists and drops
//! them itself. Only the daemon can apply them: it finds a renamed file by its filehandle, and
//! writes with the credentials of the original writer.

use crate::cli::ConflictsCommand;
use crate::control::{self, Ask, locate};
use crate::exit::Failure;
use crate::stack::journal::journals;
use crate::stat::{self, print};
use hither_tools::units::bytes;
use hither_writeback::wal::{About, Conflicts};
use serde_json::json;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes copied at a time.
const STEP_BYTES: u64 = 1 << 20;

/// Runs a command.
///
/// # Errors
/// A message for the user.
pub fn run(what: &ConflictsCommand) -> Result<(), Failure> {
    match what {
        ConflictsCommand::Ls { place, json } => ls(place, *json),
        ConflictsCommand::Show { place, name, merged, output, json } => {
            show(place, name, *merged, output.as_deref(), *json)
        }
        ConflictsCommand::Apply { place, name, to, json } => {
            let daemon = locate::daemon(place)?;
            let answer = control::ask(&daemon, Ask::Apply(name.clone(), to.clone()))?;
            let count = answer["applied_bytes"].as_u64().unwrap_or(0);
            if *json {
                print(&format!("{answer}\n"))
            } else {
                print(&format!("{} of {name} are written\n", bytes(count)))
            }
        }
        ConflictsCommand::Drop { place, name } => {
            let (kept, _) = find(place, name)?;
            kept.drop(name).map_err(|e| Failure::system(format!("conflict {name}: {e}")))
        }
    }
}

/// The conflicts of a mount, or of all journals in a directory. The mount point is returned for a
/// mount.
fn places(place: &Path) -> Result<(Vec<Conflicts>, Option<PathBuf>), Failure> {
    let all = journals(place);
    if all.is_dir() {
        let failed = |e: io::Error| Failure::system(format!("{}: {e}", all.display()));
        let dirs = std::fs::read_dir(&all).map_err(failed)?;
        let dirs = dirs.map(|dir| dir.map(|dir| Conflicts::of(&dir.path())));
        return Ok((dirs.collect::<io::Result<_>>().map_err(failed)?, None));
    }
    let daemon = locate::daemon(place).map_err(|e| Failure {
        line: format!("{} is neither in a mount of hither nor a directory with journals", place.display()),
        ..e
    })?;
    let dir = &daemon.dir;
    match stat::report(&daemon)?.mount.journal {
        Some(journal) => Ok((vec![Conflicts::of(Path::new(&journal))], Some(dir.into()))),
        None => Err(Failure::usage(format!("{dir} is mounted without a journal (writeback=journal)"))),
    }
}

fn listed(kept: &Conflicts) -> Result<Vec<(String, io::Result<About>)>, Failure> {
    kept.list().map_err(|e| Failure::system(format!("conflicts: {e}")))
}

fn find(place: &Path, name: &str) -> Result<(Conflicts, Option<PathBuf>), Failure> {
    let (all, mount) = places(place)?;
    let found = all.into_iter().find(|kept| kept.has(name));
    found.map(|kept| (kept, mount)).ok_or_else(|| {
        let shown = place.display();
        Failure::usage(format!("there is no conflict '{name}': hither conflicts ls {shown} lists them"))
    })
}

fn ls(place: &Path, as_json: bool) -> Result<(), Failure> {
    let (mut out, now) = (String::new(), now_s());
    let mut lines = Vec::new();
    let mut unreadable = Vec::new();
    for kept in places(place)?.0 {
        for (name, about) in listed(&kept)? {
            let about = match about {
                Ok(about) => about,
                Err(e) => {
                    let _ = writeln!(out, "{name}  (unreadable: {e})");
                    lines.push(json!({ "name": name, "error": e.to_string() }));
                    unreadable.push(format!("{}: {e}", kept.path(&name).join("about.json").display()));
                    continue;
                }
            };
            let age_s = (now - about.last_s).max(0);
            lines.push(json!({
                "name": name, "path": about.path, "source": about.source, "fileid": about.fileid,
                "bytes": about.bytes(), "ranges": about.ranges.len(), "age_s": age_s, "why": about.why,
            }));
            let path = if about.path.is_empty() { "(path not known)" } else { &about.path };
            let _ = writeln!(
                out,
                "{name}  {path}  {}  written {age_s} s ago  {}",
                bytes(about.bytes()),
                about.why
            );
        }
    }
    if as_json {
        print(&format!("{}\n", json!({ "version": 1, "conflicts": lines })))?;
    } else {
        print(&out)?;
    }
    match unreadable.as_slice() {
        [] => Ok(()),
        all => {
            Err(Failure::system(format!("{}; the kept bytes are in the file data beside it", all.join("; "))))
        }
    }
}

/// Present time in seconds since 1970.
fn now_s() -> i64 {
    let now = (crate::stack::env().wall)().duration_since(std::time::SystemTime::UNIX_EPOCH);
    now.map_or(0, |d| d.as_secs() as i64)
}

fn show(place: &Path, name: &str, merged: bool, output: Option<&Path>, as_json: bool) -> Result<(), Failure> {
    let (kept, mount) = find(place, name)?;
    let failed = |e: io::Error| Failure::system(format!("conflict {name}: {e}"));
    let about = kept.about(name).map_err(failed)?;
    if !merged && output.is_none() {
        if as_json {
            return print(&format!("{}\n", json!(about)));
        }
        let mut out = format!("{} of {}: {}\n", about.path, about.source, about.why);
        for r in &about.ranges {
            let _ = writeln!(out, "{:>16} {:>12} bytes, uid {}", r.start_bytes, r.len_bytes, r.uid);
        }
        return print(&out);
    }
    let data = kept.data(name).map_err(failed)?;
    let base = match (merged, mount) {
        (false, _) => None,
        (true, Some(mount)) => {
            let path = mount.join(&about.path);
            Some(File::open(&path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?)
        }
        (true, None) => {
            return Err(Failure::usage("the file is at the server: --merged needs a directory of the mount"));
        }
    };
    match output {
        Some(path) => {
            let out = File::create(path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?;
            write_to(&out, base, &data, &about).map_err(failed)
        }
        None => {
            let mut out = tempfile(name)?;
            write_to(&out, base, &data, &about).map_err(failed)?;
            io::Seek::rewind(&mut out).map_err(failed)?;
            io::copy(&mut out, &mut io::stdout().lock()).map(drop).map_err(failed)
        }
    }
}

/// A file without a name.
fn tempfile(name: &str) -> Result<File, Failure> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR);
    file.map(File::from)
        .map_err(|e| Failure::system(format!("conflict {name}: temporary file: {e}; use -o FILE")))
}

fn write_to(out: &File, base: Option<File>, data: &File, about: &About) -> io::Result<()> {
    if let Some(mut base) = base {
        let (mut buf, mut out) = (vec![0; STEP_BYTES as usize], out);
        loop {
            match base.read(&mut buf)? {
                0 => break,
                n => out.write_all(&buf[..n])?,
            }
        }
    }
    for range in &about.ranges {
        let (mut at, end) = (range.start_bytes, range.start_bytes + range.len_bytes);
        while at < end {
            let mut buf = vec![0; (end - at).min(STEP_BYTES) as usize];
            data.read_exact_at(&mut buf, at)?;
            out.write_all_at(&buf, at)?;
            at += buf.len() as u64;
        }
    }
    Ok(())
}
