//! After a crash: what the journal holds goes to the server, or is kept as a conflict.
//!
//! It knows nothing of how the journal is read. A file whose attributes are what some reply told
//! while the journal was written is as this client left it, and gets its bytes. Others may differ
//! because of WRITEs that were on their way when the client died: those are in the journal as sent.
//! Then the server's bytes are compared: a file is taken for this client's work alone when a range
//! that was sent, and of which nobody has heard, is there whole, the length is one that such WRITEs
//! make, and every byte where ours belong is one of ours, or lies behind the former end of the
//! file, is zero, and nothing is known to have arrived there. A file that ends where this client
//! was about to cut it off is explained by that. The bytes that an overwrite was to replace are not
//! known here: when some of them are still there, and others not, somebody else may have written
//! them, unless the user has promised that there is nobody (`exclusive`). Whatever cannot be judged
//! is a conflict. Nothing is decided twice: a file's fate is durable in the journal before its
//! records go.

use super::conflict::{About, Conflicts, Range, name_of};
use super::log::Log;
use super::place::open_segment;
use super::record::{Base, Event, Record};
use super::scan::{FileLeft, Landed, Left, Piece, Sent};
use bytes::Bytes;
use hither_vfs::{
    Cred, Cx, Data, Error, Fh, File as At, FileKind, OpenAccess, OpenHow, OpenId, Result, Stability, Vfs,
    Where,
};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::time::Instant;

/// Bytes compared or written at a time.
const STEP_BYTES: u64 = 1 << 20;
/// Files at a time.
const FILES_AT_ONCE: usize = 8;

/// What became of a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Files whose bytes are at the server.
    pub files: u64,
    /// Those bytes.
    pub bytes: u64,
    /// Files whose bytes are kept: name of the conflict, path, reason.
    pub kept: Vec<(String, String, String)>,
}

/// Where things are, and what was promised.
pub struct Replay {
    /// The server.
    pub below: Arc<dyn Vfs>,
    /// The journal's directory.
    pub dir: PathBuf,
    /// The journal, that goes on.
    pub log: Arc<Log>,
    /// Where conflicts go.
    pub conflicts: Conflicts,
    /// What is mounted, for humans.
    pub source: String,
    /// Nobody else writes, says the user.
    pub exclusive: bool,
    /// Bytes of one WRITE.
    pub wsize_bytes: u32,
}

/// Decides about everything that is left, file by file.
///
/// # Errors
/// What could not be put anywhere: it stays in the journal.
pub async fn replay(replay: Replay, left: Left) -> io::Result<Outcome> {
    let this = Arc::new(One { segments: Mutex::default(), last_seq: left.last_seq, r: replay });
    let mut left = left;
    let damage = left.damage.take().map(Arc::new);
    this.remove_all(&mut left, damage.is_some()).await;
    let made = this.make_all(&mut left, damage.as_deref()).await?;
    let (mut running, mut files) = (tokio::task::JoinSet::new(), left.files.into_iter());
    let mut outcome = Outcome { files: made.files, bytes: made.bytes, kept: made.kept };
    let mut failed = None;
    loop {
        while running.len() < FILES_AT_ONCE
            && let Some((fh, file)) = files.next()
        {
            let (this, damage) = (this.clone(), damage.clone());
            running.spawn(async move { this.file(fh, file, damage.as_deref()).await });
        }
        let Some(ended) = running.join_next().await else { break };
        match ended.map_err(io::Error::other).flatten() {
            Ok(Fate::Written(bytes)) => {
                outcome.files += 1;
                outcome.bytes += bytes;
            }
            Ok(Fate::Kept(name, path, why)) => outcome.kept.push((name, path, why)),
            Err(e) => failed = Some(e),
        }
    }
    outcome.kept.sort();
    failed.map_or(Ok(outcome), Err)
}

pub(super) enum Fate {
    Written(u64),
    Kept(String, String, String),
}

/// A replay under way.
pub(super) struct One {
    pub(super) r: Replay,
    segments: Mutex<HashMap<u64, Arc<File>>>,
    pub(super) last_seq: u64,
}

/// A file at the server, as it was opened for this.
struct Target {
    fh: Fh,
    cx: Cx,
    open: OpenId,
}

impl One {
    async fn file(self: Arc<Self>, fh: Fh, file: FileLeft, damage: Option<&String>) -> io::Result<Fate> {
        let decided = match damage {
            Some(damage) => Err(format!("the journal was damaged: {damage}")),
            None => self.write_back(&fh, &file).await,
        };
        let fate = match decided {
            Ok(bytes) => Fate::Written(bytes),
            Err(why) => {
                let (this, fh, file) = (self.clone(), fh.clone(), file.clone());
                tokio::task::spawn_blocking(move || this.keep(&fh, &file, why))
                    .await
                    .map_err(io::Error::other)??
            }
        };
        let done = self.r.log.append(Record::of(&fh, Event::Retire(self.last_seq)));
        if self.r.log.durable(done.seq).await.is_err() {
            // The segments stay: at the next start the file is as it is now, and judged again.
            return Ok(fate);
        }
        let records: HashSet<(u64, u64)> = file.pieces.iter().map(|p| (p.segment, p.seq)).collect();
        records.into_iter().for_each(|(segment, _)| self.r.log.dead(segment, 1));
        Ok(fate)
    }

    /// Writes a file's bytes when that is right.
    async fn write_back(&self, fh: &Fh, file: &FileLeft) -> std::result::Result<u64, String> {
        let cannot = |what: &str, e: &Error| format!("{what}: {e}");
        let own = Cx::new(Arc::new(Cred::root()));
        let found = self.r.below.getattr(&own.fresh(Instant::now()), At { fh, open: None }).await;
        let attrs = match found {
            Ok(attrs) if attrs.attr.kind != FileKind::Regular => return Err("it is no file any more".into()),
            Ok(attrs) if attrs.attr.nlink == 0 => return Err("the file was removed".into()),
            Ok(attrs) => attrs,
            Err(e) if matches!(e.errno, libc::ESTALE | libc::ENOENT) => {
                return Err("the file was removed".into());
            }
            Err(e) => return Err(cannot("its attributes cannot be asked for", &e)),
        };
        let writer = file.pieces.front().map(|p| p.cred.clone()).unwrap_or_else(|| Arc::new(Cred::root()));
        let opened = open_as(&*self.r.below, writer, fh).await;
        let (cx, open) = opened.map_err(|e| cannot("it cannot be opened", &e))?;
        let target = Target { fh: fh.clone(), cx, open };
        let done = async {
            let now = Base::of(&attrs);
            match as_left(file, &now) {
                Some(at) => self.still_there(&target, file, at).await?,
                None => self.judge(&target, file, &now).await?,
            }
            self.write(&target, file).await.map_err(|e| cannot("it cannot be written", &e))
        };
        let done = done.await;
        let closed = self.r.below.close(&target.cx, fh, open).await;
        if let (Ok(_), Err(e)) = (&done, closed) {
            return Err(cannot("it cannot be written", &e));
        }
        done
    }

    /// Whether what had arrived before the file was in the state in which it is, at that record, is
    /// what is there: since then nobody has changed it, but between two replies somebody else may
    /// have.
    async fn still_there(
        &self,
        target: &Target,
        file: &FileLeft,
        at: u64,
    ) -> std::result::Result<(), String> {
        let cannot = |e: Error| format!("it cannot be compared: {e}");
        for (start, end, piece) in file.image() {
            for landed in file.landed.iter().filter(|l| l.seq <= at && piece.seq <= l.upto) {
                let (mut from, until) = (start.max(landed.start_bytes), end.min(landed.end_bytes));
                while from < until {
                    let to = until.min(from + STEP_BYTES);
                    let theirs = self.read(target, from, to).await.map_err(cannot)?;
                    if theirs != self.bytes(piece, from, to).await.map_err(cannot)? {
                        return Err("somebody else has changed the file while it was written here".into());
                    }
                    from = to;
                }
            }
        }
        Ok(())
    }

    /// Whether a file that is not as it was left differs only by what this client had sent.
    async fn judge(&self, target: &Target, file: &FileLeft, now: &Base) -> std::result::Result<(), String> {
        let changed = || "somebody else has changed the file".to_string();
        let unheard = file.unheard();
        // A cut of ours that nobody has heard of, when that is where the file ends now.
        let cut = unheard.iter().any(|s| s.end_bytes == u64::MAX && s.start_bytes == now.size_bytes);
        let cut = cut.then_some(now.size_bytes);
        let seen = self.compare(target, file, (&unheard, cut)).await;
        let seen = seen.map_err(|e| format!("it cannot be compared: {e}"))?;
        if seen.same {
            return Ok(());
        }
        if unheard.is_empty() {
            return Err(changed());
        }
        let sizes = file.states.keys().any(|s| s.size_bytes == now.size_bytes)
            || unheard.iter().any(|s| s.start_bytes < now.size_bytes && now.size_bytes <= s.end_bytes);
        let floor = floor(file).unwrap_or(0);
        // Where nobody else writes, what is not ours may be what a WRITE was to replace, unless
        // that has arrived.
        let ours = if self.r.exclusive { seen.plausible } else { seen.ours };
        let explained = cut.is_some() || (seen.evident && sizes && now.size_bytes >= floor);
        match ours && explained {
            true => Ok(()),
            false => Err("somebody else may have changed the file: what was on its way when this client died does not \
                 explain how it is now"
                .into()),
        }
    }

    async fn compare(
        &self,
        target: &Target,
        file: &FileLeft,
        (unheard, cut): (&[Sent], Option<u64>),
    ) -> Result<Seen> {
        let floor = floor(file);
        // Of what left the journal while this was written, bytes may lie behind the former end.
        let longest = file.states.keys().map(|s| s.size_bytes).max().unwrap_or(0);
        let mut seen = Seen { same: true, ours: true, plausible: true, evident: false };
        // Of each range that was sent, whether all of it is ours so far.
        let mut arrived = vec![None; unheard.len()];
        for (start, end, newest) in file.image() {
            let mut at = start;
            while at < end {
                let to = end.min(at + STEP_BYTES);
                let theirs = self.read(target, at, to).await?;
                let ours = self.bytes(newest, at, to).await?;
                let mut fits: Vec<bool> = (0..ours.len()).map(|i| theirs.get(i) == Some(&ours[i])).collect();
                seen.same &= fits.iter().all(|f| *f);
                for older in &file.pieces {
                    if fits.iter().all(|f| *f) {
                        break;
                    }
                    let (from, until) =
                        (at.max(older.start_bytes), to.min(older.start_bytes + older.len_bytes));
                    if from < until && older.seq != newest.seq {
                        let bytes = self.bytes(older, from, until).await?;
                        for (i, byte) in bytes.iter().enumerate() {
                            let i = (from - at) as usize + i;
                            fits[i] |= theirs.get(i) == Some(byte);
                        }
                    }
                }
                for (sent, arrived) in unheard.iter().zip(&mut arrived) {
                    let (from, until) = (at.max(sent.start_bytes), to.min(sent.end_bytes));
                    if from < until {
                        let all = fits[(from - at) as usize..(until - at) as usize].iter().all(|f| *f);
                        *arrived = Some(arrived.unwrap_or(true) && all);
                    }
                }
                // Of what arrived and is not there any more, somebody else has made something else.
                let near = |l: &&Landed| l.start_bytes < to && at < l.end_bytes;
                let landed: Vec<&Landed> = file.landed.iter().filter(near).collect();
                let arrived = |i: u64, seq: u64| {
                    landed.iter().any(|l| seq <= l.upto && l.start_bytes <= i && i < l.end_bytes)
                };
                let untouched = |i: usize| {
                    let (place, zero) = (at + i as u64, theirs.get(i).is_none_or(|b| *b == 0));
                    let never_there = floor.is_some_and(|floor| place >= floor) && zero && !arrived(place, 0);
                    never_there || cut.is_some_and(|cut| place >= cut)
                };
                seen.ours &= (0..fits.len()).all(|i| fits[i] || untouched(i));
                let old = |i: usize| {
                    let i = at + i as u64;
                    i < longest && !arrived(i, newest.seq)
                };
                seen.plausible &= (0..fits.len()).all(|i| fits[i] || untouched(i) || old(i));
                at = to;
            }
        }
        seen.evident = arrived.contains(&Some(true));
        Ok(seen)
    }

    /// The server's bytes of a range; fewer at the end of the file.
    async fn read(&self, target: &Target, start: u64, end: u64) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let at = At { fh: &target.fh, open: Some(target.open) };
        while start + (out.len() as u64) < end {
            let from = start + out.len() as u64;
            let read = self.r.below.read(&target.cx, at, from, (end - from) as u32).await?;
            read.data.parts().iter().for_each(|part| out.extend_from_slice(part));
            if read.eof || read.data.is_empty() {
                break;
            }
        }
        out.truncate((end - start) as usize);
        Ok(out)
    }

    /// The journal's bytes of a range of a piece.
    pub(super) async fn bytes(&self, piece: &Piece, start: u64, end: u64) -> Result<Vec<u8>> {
        let told = |e: io::Error| Error::because(libc::EIO, format!("the journal cannot be read: {e}"));
        let file = self.segment(piece.segment).map_err(told)?;
        let at = piece.at + (start - piece.start_bytes);
        let read = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; (end - start) as usize];
            file.read_exact_at(&mut bytes, at).map(|()| bytes)
        });
        read.await.map_err(io::Error::other).flatten().map_err(told)
    }

    fn segment(&self, number: u64) -> io::Result<Arc<File>> {
        let mut segments = self.segments.lock();
        if let Some(file) = segments.get(&number) {
            return Ok(file.clone());
        }
        let file = Arc::new(open_segment(&self.r.dir, number)?);
        segments.insert(number, file.clone());
        Ok(file)
    }

    /// Writes everything, stable. It is in the journal as sent before, for the case that this is
    /// cut off, too.
    async fn write(&self, target: &Target, file: &FileLeft) -> Result<u64> {
        let image = file.image();
        let (mut last, mut bytes) = (0, 0);
        let step = u64::from(self.r.wsize_bytes).clamp(4096, STEP_BYTES);
        for (start, end, _) in &image {
            // As they are sent: of a WRITE that arrived everything is there.
            for start_bytes in (*start..*end).step_by(step as usize) {
                let end_bytes = (start_bytes + step).min(*end);
                let event = Event::Sent { start_bytes, end_bytes, upto: self.last_seq };
                last = self.r.log.append(Record::of(&target.fh, event)).seq;
            }
        }
        let _ = self.r.log.written(last).await;
        for (start, end, piece) in image {
            let mut at = start;
            while at < end {
                let to = end.min(at + step);
                let data = Data::from(Bytes::from(self.bytes(piece, at, to).await?));
                let place = At { fh: &target.fh, open: Some(target.open) };
                let wrote = self.r.below.write(&target.cx, place, at, data, Stability::Stable).await?;
                if wrote.bytes == 0 {
                    return Err(Error::because(libc::EIO, "the server writes no bytes"));
                }
                at += wrote.bytes.min(to - at);
            }
            bytes += end - start;
        }
        Ok(bytes)
    }

    pub(super) fn keep(&self, fh: &Fh, file: &FileLeft, why: String) -> io::Result<Fate> {
        let image = file.image();
        let seq = file.pieces.front().map_or(0, |p| p.seq);
        let range = |(start, end, piece): &(u64, u64, &Piece)| Range {
            start_bytes: *start,
            len_bytes: end - start,
            uid: piece.cred.uid,
            gid: piece.cred.gid,
            groups: piece.cred.groups.to_vec(),
        };
        let path = String::from_utf8_lossy(&file.path).into_owned();
        let about = About {
            version: 1,
            source: self.r.source.clone(),
            path: path.clone(),
            fileid: file.fileid,
            filehandle: fh.0.iter().map(|b| format!("{b:02x}")).collect(),
            why: why.clone(),
            first_s: file.wall_s.0,
            last_s: file.wall_s.1,
            ranges: image.iter().map(range).collect(),
        };
        let name = name_of(&file.path, file.fileid, file.wall_s.0, seq);
        let name = self.r.conflicts.keep(&name, &about, |data| {
            for (start, end, piece) in &image {
                let from = self.segment(piece.segment)?;
                let (mut at, mut buf) = (*start, Vec::new());
                while at < *end {
                    let to = (*end).min(at + STEP_BYTES);
                    buf.resize((to - at) as usize, 0);
                    from.read_exact_at(&mut buf, piece.at + (at - piece.start_bytes))?;
                    data.write_all_at(&buf, at)?;
                    at = to;
                }
            }
            Ok(())
        })?;
        Ok(Fate::Kept(name, path, why))
    }
}

/// Opens a file as its writer, or as this machine's superuser where the writer may no longer.
///
/// # Errors
/// The writer's.
pub async fn open_as(vfs: &dyn Vfs, writer: Arc<Cred>, fh: &Fh) -> Result<(Cx, OpenId)> {
    let how = OpenHow::existing(OpenAccess::READ | OpenAccess::WRITE);
    let mut refused = None;
    for cred in [writer, Arc::new(Cred::root())] {
        let cx = Cx::new(cred);
        match vfs.open(&cx, Where::fh(fh), &how).await {
            Ok(opened) => return Ok((cx, opened.open)),
            Err(e) => refused.get_or_insert(e),
        };
    }
    Err(refused.unwrap_or_else(|| Error::new(libc::EACCES)))
}

/// What a comparison found.
struct Seen {
    /// Everything is there already.
    same: bool,
    /// Nothing is there but bytes of ours and zeros behind the former end.
    ours: bool,
    /// The same, or bytes within the former length where nothing of ours is known to have arrived.
    plausible: bool,
    /// Something that was sent is there whole.
    evident: bool,
}

/// The record behind which a reply told the state that the file is in, when one did.
fn as_left(file: &FileLeft, now: &Base) -> Option<u64> {
    let same_bytes = |s: &Base| s.size_bytes == now.size_bytes && s.mtime == now.mtime;
    let touched =
        || file.states.iter().filter(|(s, _)| file.touched && same_bytes(s)).map(|(_, seq)| *seq).max();
    file.states.get(now).copied().or_else(touched)
}

/// Where the file ended before anything of this was written, when that is known.
fn floor(file: &FileLeft) -> Option<u64> {
    file.pieces.iter().map(|p| p.base_size).min().flatten()
}
