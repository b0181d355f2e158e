//! After a crash: sends the journal's bytes to the server, or keeps them as conflicts.
//!
//! The module does not know how the journal is read. A file is unchanged when its attributes equal
//! those of a journaled reply. An unchanged file gets its bytes. Another file may differ because of
//! WRITEs in flight when the client died. The journal has a record of each such WRITE. The server's
//! bytes are then compared with the journal's.
//!
//! The difference is this client's work alone when three conditions hold:
//!
//! - One range that was sent and not acknowledged is there completely.
//! - The length of the file is one that such WRITEs produce.
//! - Each byte in the journal's ranges is one of the journal's versions of that byte. A zero also
//!   counts beyond the former end of the file, where no byte is known to have arrived.
//!
//! A file that ends where this client was about to truncate it is explained by that truncation. The
//! journal's bytes beyond the end from before the truncation are dropped.
//!
//! The journal lacks the bytes that an overwrite was to replace. A file that still has some of them
//! may have been written by another client. Under the option `exclusive` the user excludes other
//! clients, and such bytes are accepted. All other cases are conflicts. The decision about a file
//! is durable before its records are released, so that no decision is made twice.

use super::conflict::{About, Conflicts, Range, name_of};
use super::log::Log;
use super::record::{Base, Event, Record};
use super::scan::{FileLeft, Landed, Left, Piece, Sent};
use super::storage::open_segment;
use bytes::Bytes;
use hither_vfs::{
    Cred, Data, Error, Fh, File as At, FileKind, OpenAccess, OpenHow, OpenId, PathRef, RequestContext,
    Result, SetAttr, SetTime, Stability, Vfs, is_given_once,
};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Bytes compared or written at a time.
const STEP_BYTES: u64 = 1 << 20;
/// Time after which a refused state is checked again, and most checks of a file.
const LATE_WRITES: Duration = Duration::from_millis(300);
const CHECKS_MAX: usize = 3;
/// Files replayed at a time.
const FILES_AT_ONCE: usize = 8;

/// The result of a replay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Files whose bytes were written to the server.
    pub files: u64,
    /// The bytes of these files.
    pub bytes: u64,
    /// Files whose bytes are kept: name of the conflict, path, reason.
    pub kept: Vec<(String, String, String)>,
}

/// The parts and options of a replay.
pub struct Replay {
    /// The server.
    pub below: Arc<dyn Vfs>,
    /// The journal's directory.
    pub dir: PathBuf,
    /// The journal, which continues after the replay.
    pub log: Arc<Log>,
    /// The directory for conflicts.
    pub conflicts: Conflicts,
    /// The mounted source, for humans.
    pub source: String,
    /// The user promises that no other client writes (`exclusive`).
    pub exclusive: bool,
    /// Bytes of one WRITE.
    pub wsize_bytes: u32,
}

/// Decides about each remaining file, and writes or keeps its bytes.
///
/// # Errors
/// Local input and output. Bytes that were neither written nor kept stay in the journal.
pub async fn replay(replay: Replay, left: Left) -> io::Result<Outcome> {
    let this = Arc::new(One { segments: Mutex::default(), last_seq: left.last_seq, r: replay });
    let mut left = left;
    let damage = left.damage.take().map(Arc::new);
    this.remove_all(&mut left, damage.is_some()).await?;
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

/// Why the server does not take an object.
#[derive(Debug)]
pub(super) enum Refusal {
    /// For good. The object becomes a conflict.
    Final(String),
    /// The server cannot take it now: it is full, or does not answer. The journal keeps everything.
    Passing(String),
}

impl Refusal {
    /// The refusal with this error of the server.
    pub(super) fn of(what: &str, e: &Error) -> Self {
        let why = format!("{what}: {e}");
        if passes(e) { Self::Passing(why) } else { Self::Final(why) }
    }

    /// The reason of a final refusal.
    ///
    /// # Errors
    /// A passing refusal ends the replay.
    pub(super) fn for_good(self, path: &str) -> io::Result<String> {
        match self {
            Self::Final(why) => Ok(why),
            Self::Passing(why) => Err(io::Error::other(format!("{path}: {why}"))),
        }
    }
}

/// Whether an error of the server may be another one later. An unknown error is final here, because
/// the mount must come up one day. During a mount it is not (`is_final`).
pub(crate) fn passes(e: &Error) -> bool {
    e.is_unproven
        || matches!(
            e.errno,
            libc::EAGAIN
                | libc::ECONNABORTED
                | libc::ECONNREFUSED
                | libc::ECONNRESET
                | libc::EDQUOT
                | libc::EHOSTDOWN
                | libc::EHOSTUNREACH
                | libc::EINTR
                | libc::EIO
                | libc::EKEYEXPIRED
                | libc::EKEYREVOKED
                | libc::ENETDOWN
                | libc::ENETUNREACH
                | libc::ENOKEY
                | libc::ENOMEM
                | libc::ENOSPC
                | libc::ENOTCONN
                | libc::EPIPE
                | libc::EREMOTEIO
                | libc::ESHUTDOWN
                | libc::ETIMEDOUT
        )
}

pub(super) enum Fate {
    Written(u64),
    Kept(String, String, String),
}

/// A replay in progress.
pub(super) struct One {
    pub(super) r: Replay,
    segments: Mutex<HashMap<u64, Arc<File>>>,
    pub(super) last_seq: u64,
}

/// An opened file at the server.
struct Target {
    fh: Fh,
    cx: RequestContext,
    open: OpenId,
}

impl One {
    async fn file(self: Arc<Self>, fh: Fh, file: FileLeft, damage: Option<&String>) -> io::Result<Fate> {
        let decided = match damage {
            Some(damage) => Err(Refusal::Final(format!("the journal was damaged: {damage}"))),
            None => self.write_back(&fh, &file).await,
        };
        let fate = match decided {
            Ok(bytes) => Fate::Written(bytes),
            Err(refusal) => {
                let why = refusal.for_good(&String::from_utf8_lossy(&file.path))?;
                let (this, fh, file) = (self.clone(), fh.clone(), file.clone());
                tokio::task::spawn_blocking(move || this.keep(&fh, &file, None, why))
                    .await
                    .map_err(io::Error::other)??
            }
        };
        let done = self.r.log.append(Record::of(&fh, Event::Retire(self.last_seq)));
        if self.r.log.durable(done.seq).await.is_err() {
            // The segments stay. The next start finds the file as it is now and judges it again.
            return Ok(fate);
        }
        let records: HashSet<(u64, u64)> = file.pieces.iter().map(|p| (p.segment, p.seq)).collect();
        records.into_iter().for_each(|(segment, _)| self.r.log.dead(segment, 1));
        Ok(fate)
    }

    /// Writes a file's bytes, if the state of the file at the server permits that. Otherwise
    /// returns the reason.
    async fn write_back(&self, fh: &Fh, file: &FileLeft) -> std::result::Result<u64, Refusal> {
        let cannot = Refusal::of;
        let refused = |why: &str| Err(Refusal::Final(why.into()));
        let own = RequestContext::new(Arc::new(Cred::root()));
        let found = self.r.below.getattr(&own.fresh(Instant::now()), At { fh, open: None }).await;
        let attrs = match found {
            Ok(attrs) if attrs.attr.kind != FileKind::Regular => return refused("it is no regular file"),
            Ok(attrs) if attrs.attr.nlink == 0 => return refused("the file was removed"),
            Ok(attrs) => attrs,
            Err(e) if matches!(e.errno, libc::ESTALE | libc::ENOENT) => {
                return refused("the file was removed");
            }
            Err(e) => return Err(cannot("its attributes cannot be read", &e)),
        };
        let writer = file.pieces.front().map(|p| p.cred.clone()).unwrap_or_else(|| Arc::new(Cred::root()));
        let opened = open_as(&*self.r.below, writer, fh).await;
        let (cx, open) = opened.map_err(|e| cannot("it cannot be opened", &e))?;
        let target = Target { fh: fh.clone(), cx, open };
        let done = async {
            let cut = self.check(&target, file, Base::of(&attrs)).await?;
            // Bytes that a program had removed do not come back.
            let left = cut.map_or_else(|| Cow::Borrowed(file), |cut| Cow::Owned(file.after_cut(&cut)));
            let written = self.write(&target, &left).await;
            if written.as_ref().is_err_and(|e| matches!(e.errno, libc::ENOSPC | libc::EDQUOT)) {
                self.note_state(fh).await;
            }
            written.map_err(|e| cannot("it cannot be written", &e))
        };
        let done = done.await;
        let closed = self.r.below.close(&target.cx, fh, open).await;
        if let (Ok(_), Err(e)) = (&done, closed) {
            return Err(cannot("it cannot be written", &e));
        }
        done
    }

    /// Records the state of a file after a full server refused a WRITE. The refused WRITE may have
    /// set the times of the file, and the next replay must not take that for another client's work.
    async fn note_state(&self, fh: &Fh) {
        let own = RequestContext::new(Arc::new(Cred::root())).fresh(Instant::now());
        if let Ok(attrs) = self.r.below.getattr(&own, At { fh, open: None }).await {
            let noted = self.r.log.append(Record::of(fh, Event::State(Base::of(&attrs))));
            let _ = self.r.log.durable(noted.seq).await;
        }
    }

    /// Checks that the file's state permits writing. A server may still execute WRITEs that the
    /// dead daemon sent, so a refused state is checked again. Returns the truncation without an
    /// answer that explains the state.
    async fn check(
        &self,
        target: &Target,
        file: &FileLeft,
        mut now: Base,
    ) -> std::result::Result<Option<Sent>, Refusal> {
        let own = RequestContext::new(Arc::new(Cred::root()));
        let mut checks = 0;
        loop {
            let checked = match as_left(file, &now) {
                Some(at) => self.still_there(target, file, at).await.map(|()| None),
                None => self.judge(target, file, &now).await,
            };
            let why = match checked {
                Ok(cut) => return Ok(cut),
                Err(why) => why,
            };
            checks += 1;
            if checks == CHECKS_MAX {
                return Err(why);
            }
            tokio::time::sleep(LATE_WRITES).await;
            let at = At { fh: &target.fh, open: None };
            let Ok(attrs) = self.r.below.getattr(&own.fresh(Instant::now()), at).await else {
                return Err(why);
            };
            now = Base::of(&attrs);
        }
    }

    /// Compares the bytes that had arrived when a reply reported the present state, at record `at`.
    /// No client has changed the file since that reply. Another client may have changed it between
    /// two earlier replies.
    async fn still_there(
        &self,
        target: &Target,
        file: &FileLeft,
        at: u64,
    ) -> std::result::Result<(), Refusal> {
        let cannot = |e: Error| Refusal::of("it cannot be compared", &e);
        for (start, end, piece) in file.image() {
            for landed in file.landed.iter().filter(|l| l.seq <= at && piece.seq <= l.upto) {
                let (mut from, until) = (start.max(landed.start_bytes), end.min(landed.end_bytes));
                while from < until {
                    let to = until.min(from + STEP_BYTES);
                    let theirs = self.read(target, from, to).await.map_err(cannot)?;
                    if theirs != self.bytes(piece, from, to).await.map_err(cannot)? {
                        let why = "another client changed the file while this client wrote to it";
                        return Err(Refusal::Final(why.into()));
                    }
                    from = to;
                }
            }
        }
        Ok(())
    }

    /// Checks that a changed file differs only by WRITEs of this client, and by a truncation, which
    /// is returned.
    async fn judge(
        &self,
        target: &Target,
        file: &FileLeft,
        now: &Base,
    ) -> std::result::Result<Option<Sent>, Refusal> {
        let changed = || Refusal::Final("another client changed the file".into());
        let unheard = file.unheard();
        // An unacknowledged truncation of this client, if the file now ends there.
        let ends_here = |s: &&Sent| s.end_bytes == u64::MAX && s.start_bytes == now.size_bytes;
        let cut = unheard.iter().rfind(ends_here).copied();
        let seen = self.compare(target, file, (&unheard, cut.map(|cut| cut.start_bytes))).await;
        let seen = seen.map_err(|e| Refusal::of("it cannot be compared", &e))?;
        if seen.same {
            return Ok(cut);
        }
        if unheard.is_empty() {
            return Err(changed());
        }
        let sizes = file.states.keys().any(|s| s.size_bytes == now.size_bytes)
            || unheard.iter().any(|s| s.start_bytes < now.size_bytes && now.size_bytes <= s.end_bytes);
        let floor = floor(file).unwrap_or(0);
        // Without other writers, a foreign byte may be one that a WRITE was to replace, unless that
        // WRITE has arrived.
        let ours = if self.r.exclusive { seen.plausible } else { seen.ours };
        let explained = cut.is_some() || (seen.evident && sizes && now.size_bytes >= floor);
        if ours && explained {
            Ok(cut)
        } else {
            let why = "another client may have changed the file: the WRITEs in flight when this client died do \
                       not explain its present state";
            Err(Refusal::Final(why.into()))
        }
    }

    async fn compare(
        &self,
        target: &Target,
        file: &FileLeft,
        (unheard, cut): (&[Sent], Option<u64>),
    ) -> Result<Seen> {
        let floor = floor(file);
        // Records that were retired earlier may have extended the file beyond its former end.
        let longest = file.states.keys().map(|s| s.size_bytes).max().unwrap_or(0);
        let mut seen = Seen { same: true, ours: true, plausible: true, evident: false };
        // For each sent range: whether all its bytes so far are the journal's.
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
                // A byte that arrived and is no longer there was changed by another client.
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

    /// The server's bytes of a range. Fewer bytes at the end of the file.
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

    /// Writes all bytes, stable. Records of the WRITEs precede them in the journal, in case this
    /// replay is interrupted too.
    async fn write(&self, target: &Target, file: &FileLeft) -> Result<u64> {
        let image = file.image();
        let (mut last, mut bytes) = (0, 0);
        let step = u64::from(self.r.wsize_bytes).clamp(4096, STEP_BYTES);
        for (start, end, _) in &image {
            // Each record has the range of one WRITE, because a WRITE that arrived is there
            // completely.
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
        if let Some((owner, mtime)) = &file.seen {
            let set = SetAttr { mtime: Some(SetTime::To(*mtime)), ..SetAttr::default() };
            let place = At { fh: &target.fh, open: None };
            // The bytes matter more than the time.
            if let Err(e) = self.r.below.setattr(&RequestContext::new(owner.clone()), place, &set).await {
                tracing::warn!(fh = ?target.fh, error = %e, "the modification time of a file is lost");
            }
        }
        Ok(bytes)
    }

    /// Keeps the bytes of a file as a conflict. `size_bytes` is the length of a new file, which may
    /// have a hole at its end.
    pub(super) fn keep(
        &self,
        fh: &Fh,
        file: &FileLeft,
        size_bytes: Option<u64>,
        why: String,
    ) -> io::Result<Fate> {
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
            size_bytes.map_or(Ok(()), |size| data.set_len(size))
        })?;
        Ok(Fate::Kept(name, path, why))
    }
}

/// Opens a file with the credentials of its writer. When the writer no longer has access, opens as
/// this machine's superuser.
///
/// # Errors
/// The error of the writer's open.
pub async fn open_as(vfs: &dyn Vfs, writer: Arc<Cred>, fh: &Fh) -> Result<(RequestContext, OpenId)> {
    let how = OpenHow::existing(OpenAccess::READ | OpenAccess::WRITE);
    let mut refused = None;
    for cred in [writer, Arc::new(Cred::root())] {
        let cx = RequestContext::new(cred);
        match vfs.open(&cx, PathRef::fh(fh), &how).await {
            Ok(opened) => return Ok((cx, opened.open)),
            Err(e) => refused.get_or_insert(e),
        };
    }
    Err(refused.unwrap_or_else(|| Error::new(libc::EACCES)))
}

/// The result of a comparison.
struct Seen {
    /// All of the journal's bytes are there.
    same: bool,
    /// Only the journal's bytes are there, and zeros beyond the former end or bytes beyond a
    /// truncation.
    ours: bool,
    /// Like `ours`, and bytes within the former length where no WRITE is known to have arrived.
    plausible: bool,
    /// One sent range is there completely.
    evident: bool,
}

/// The record of the reply that reported the present state, if one did.
///
/// A server with coarse times gives the state of a recent change a number of its own, and later the
/// time of the change. Then the length and the modification time are compared, and the last change
/// must be that modification.
fn as_left(file: &FileLeft, now: &Base) -> Option<u64> {
    let same_bytes = |s: &Base| s.size_bytes == now.size_bytes && s.mtime == now.mtime;
    let is_written = i128::from(now.change) == now.mtime.as_nanos();
    let same = |s: &Base| same_bytes(s) && (file.touched || is_written && is_given_once(s.change));
    let alike = || file.states.iter().filter(|(s, _)| same(s)).map(|(_, seq)| *seq).max();
    file.states.get(now).copied().or_else(alike)
}

/// The end of the file before the journal's writes, if it is known.
fn floor(file: &FileLeft) -> Option<u64> {
    file.pieces.iter().map(|p| p.base_size).min().flatten()
}
