//! The journal of a mount's delayed writes (`writeback=journal`): its directory, and its replay
//! after a crash.

use super::cache;
use super::env;
use crate::mount::Job;
use crate::options::JOURNAL_DIR;
use crate::source::Source;
use hither_nfs::Connected;
use hither_vfs::{Cred, Data, Fh, File, Name, RequestContext, Stability, Vfs};
use hither_writeback::wal::{self, Conflicts, Outcome, UnusedJournal, Wal};
use std::fmt::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use twox_hash::XxHash3_64;

/// Room for segments that are being filled and emptied, besides the delayed data.
const SLACK_BYTES: u64 = 64 << 20;
/// Longest time in which a server may execute the last WRITEs of a dead client.
const LATE: Duration = Duration::from_secs(5);
/// Bytes of a conflict that are written at a time.
const STEP_BYTES: u64 = 1 << 20;
/// Most files that a message names.
const NAMED: usize = 3;

/// The parent directory of journals, below the directory of caches. Each journal is one directory.
pub fn journals(dir: &Path) -> PathBuf {
    dir.join("journal")
}

/// The journal of a mount, and the notices about journals for the user.
#[derive(Debug, Default)]
pub struct Journal {
    /// The journal, if one is requested.
    pub wal: Option<Arc<Wal>>,
    /// The results of a replay, or the journals that this mount does not replay.
    pub note: Option<String>,
}

/// Opens the journal of a mount, if one is requested, and replays the writes from before a crash.
///
/// # Errors
/// A message for the user. The mount must not continue without the journal.
pub async fn open(job: &Job, connected: &Connected) -> Result<Journal, String> {
    let Some(dir) = &job.wanted.journal else { return Ok(Journal { wal: None, note: unused(job).await }) };
    // The root's identity selects the journal; without it the wrong journal could be opened.
    let root = cache::root(connected).await;
    let identity = cache::identity_of(job, connected, &root);
    let identity = identity
        .map_err(|e| format!("the journal of this mount cannot be chosen, its root cannot be read: {e}"))?;
    let id = format!(
        "{:016x}{:016x}",
        XxHash3_64::oneshot(&identity),
        XxHash3_64::oneshot_with_seed(1, &identity)
    );
    let (dir, source) = (journals(dir).join(id), job.source.shown());
    let of = root.map(|root| cache::file_system(connected, &root)).unwrap_or_default();
    refuse_another(job, &dir, &of).await?;
    let most = job.wanted.dirty_max_bytes.saturating_mul(2) + SLACK_BYTES;
    let (wal, left) = Wal::open(&dir, (&source, &of), most, &env()).await.map_err(|e| e.to_string())?;
    let mut notes = Vec::new();
    if let Some(damage) = &left.damage {
        notes.push(format!("the journal {} was damaged: {damage}", dir.display()));
    }
    // A killed client may have sent WRITEs that the server has not executed yet. They must not be
    // executed after WRITEs that are sent now. A WRITE without a reply may still be in progress,
    // however long ago it was sent.
    let rest = if left.is_on_its_way() {
        Some(LATE)
    } else {
        left.written_ago.and_then(|ago| LATE.checked_sub(ago))
    };
    if let Some(rest) = rest {
        tokio::time::sleep(rest).await;
    }
    if !left.is_empty() || left.damage.is_some() {
        let below = connected.vfs.clone();
        let outcome = wal.recover(below, left, &source, job.wanted.exclusive, connected.wsize_bytes).await;
        let outcome = outcome.map_err(|e| {
            let dir = dir.display();
            format!(
                "the journal {dir} has delayed writes of an earlier mount that cannot be sent now, and keeps them ({e}): remove the cause \
                 and mount again; meanwhile a mount without writeback=journal uses the server"
            )
        })?;
        notes.extend(told(&outcome, &job.dir));
    }
    let kept = wal.conflicts().count();
    if kept > 0 {
        notes.push(format!("{kept} conflicts are kept: hither conflicts ls {}", job.dir.display()));
    }
    let note = (!notes.is_empty()).then(|| notes.join("; "));
    if let Some(note) = &note {
        tracing::warn!("{source}: {note}");
    }
    Ok(Journal { wal: Some(wal), note })
}

/// The notice of a mount without a journal, when a crash left writes for the same export.
async fn unused(job: &Job) -> Option<String> {
    let dirs = [job.wanted.cache.dir.clone(), Some(JOURNAL_DIR.into())];
    let source = job.source.clone();
    let same =
        move |left: &UnusedJournal| Source::parse(&left.source).is_ok_and(|other| other.is_same_as(&source));
    let found = tokio::task::spawn_blocking(move || {
        dirs.iter().flatten().find_map(|dir| wal::left_in(&journals(dir), &same).into_iter().next())
    });
    let left = found.await.ok()??;
    let note = format!(
        "a crash left writes that the server does not have, in the journal {}: mount with writeback=journal \
         to send them, or move the directory away",
        left.dir.display()
    );
    tracing::warn!("{}: {note}", job.source.shown());
    Some(note)
}

/// Refuses to mount if another journal has unsent writes for the same export. A crashed mount with
/// another name or protocol has another journal. Data written now would then count as older than
/// its writes.
async fn refuse_another(job: &Job, dir: &Path, of: &str) -> Result<(), String> {
    let (dir, source, of) = (dir.to_path_buf(), job.source.clone(), of.to_string());
    let protocol = |of: &str| of.split(' ').next().map(str::to_string);
    let found = tokio::task::spawn_blocking(move || {
        // Both journals existed before, so this mount was accepted already.
        if wal::holds(&dir) {
            return None;
        }
        let same =
            |left: &UnusedJournal| Source::parse(&left.source).ok().filter(|other| other.is_same_as(&source));
        // Within one protocol the file system's identity is comparable.
        let left = wal::left_in(dir.parent()?, |left| {
            left.dir != dir && (left.of == of || protocol(&left.of) != protocol(&of)) && same(left).is_some()
        });
        left.into_iter().find_map(|left| same(&left).map(|other| (left.dir, other)))
    });
    match found.await.map_err(|e| e.to_string())? {
        None => Ok(()),
        Some((path, other)) => Err(format!(
            "a crash left writes of {} that the server does not have, in the journal {}: mount that first, with the same name, vers= and \
             port= as then, or move the directory away",
            other.shown(),
            path.display()
        )),
    }
}

/// The messages about a replay.
fn told(outcome: &Outcome, dir: &Path) -> Vec<String> {
    let mut notes = Vec::new();
    if outcome.files > 0 {
        notes.push(format!(
            "after a crash, {} bytes of {} files were sent to the server",
            outcome.bytes, outcome.files
        ));
    }
    for (name, path, why) in &outcome.kept {
        tracing::error!(conflict = %name, %path, %why, "delayed writes from before a crash are kept, not sent");
    }
    if !outcome.kept.is_empty() {
        let mut line =
            format!("after a crash, the delayed writes of {} files are kept, not sent:", outcome.kept.len());
        for (name, path, why) in outcome.kept.iter().take(NAMED) {
            let shown = if path.is_empty() { name } else { path };
            let _ = write!(line, " {shown} ({why}),");
        }
        let _ = write!(line, " see hither conflicts ls {}", dir.display());
        notes.push(line);
    }
    notes
}

/// Writes the kept data of a conflict over its file, or over another file of the mount, and drops
/// the conflict.
///
/// # Errors
/// A message for the user. The conflict then stays.
pub async fn apply(vfs: Arc<dyn Vfs>, kept: Conflicts, name: &str, to: Option<&str>) -> Result<u64, String> {
    let about = kept.about(name).map_err(|e| format!("conflict {name}: {e}"))?;
    if about.ranges.is_empty() {
        return Err(format!("conflict {name} has no bytes to write ({}); it stays", about.why));
    }
    let data = kept.data(name).map_err(|e| format!("conflict {name}: {e}"))?;
    let data = Arc::new(data);
    let fh = match to {
        Some(path) => {
            let cx = RequestContext::new(Arc::new(Cred::root()));
            let found = async { hither_vfs::resolve(&*vfs, &cx, &Name::of_path(path)?).await };
            found.await.map_err(|e| format!("{path}: {e}"))?
        }
        None => {
            Fh(about.handle().ok_or_else(|| format!("conflict {name}: its description is damaged"))?.into())
        }
    };
    let own = RequestContext::new(Arc::new(Cred::root())).fresh(tokio::time::Instant::now());
    match vfs.getattr(&own, File { fh: &fh, open: None }).await {
        Ok(attrs) if attrs.attr.nlink > 0 => {}
        Ok(_) => {
            return Err(format!("conflict {name}: its file was removed; --to PATH writes to another one"));
        }
        Err(e) => {
            return Err(format!(
                "conflict {name}: its file cannot be found ({e}); --to PATH writes to another one"
            ));
        }
    }
    let mut bytes = 0;
    for range in &about.ranges {
        let groups = range.groups.iter().copied().collect();
        let cred = Arc::new(Cred { uid: range.uid, gid: range.gid, groups });
        let (cx, open) = wal::open_as(&*vfs, cred, &fh).await.map_err(|e| {
            format!("conflict {name}: its file cannot be opened ({e}); --to PATH writes to another one")
        })?;
        let (mut at, end) = (range.start_bytes, range.start_bytes + range.len_bytes);
        let written = async {
            while at < end {
                let data = data.clone();
                let mut step = vec![0; (end - at).min(STEP_BYTES) as usize];
                let read =
                    tokio::task::spawn_blocking(move || data.read_exact_at(&mut step, at).map(|()| step));
                let step = read.await.map_err(std::io::Error::other).flatten();
                let step =
                    step.map_err(|e| hither_vfs::Error::because(libc::EIO, format!("the kept data: {e}")))?;
                let file = File { fh: &fh, open: Some(open) };
                let wrote =
                    vfs.write(&cx, file, at, Data::from(bytes::Bytes::from(step)), Stability::Stable).await?;
                if wrote.bytes == 0 {
                    return Err(hither_vfs::Error::because(libc::EIO, "the server writes no bytes"));
                }
                at += wrote.bytes.min(end - at);
                bytes += wrote.bytes;
            }
            vfs.commit(&cx, File { fh: &fh, open: Some(open) }).await
        };
        let written = written.await;
        let closed = vfs.close(&cx, &fh, open).await;
        written.and(closed).map_err(|e| format!("conflict {name}: {e}; it stays"))?;
    }
    kept.drop(name).map_err(|e| format!("conflict {name} is written, but cannot be dropped: {e}"))?;
    Ok(bytes)
}
