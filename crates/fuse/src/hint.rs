//! Path hints: the caller's whole path, for a kernel that looks up one name after another.
//!
//! The kernel looks up names singly, and each lookup could cost a round trip. But the caller waits
//! in its system call. Another process can read the call, its arguments and the path that they
//! point to ([`caller`], [`calls`]). So an uncached lookup becomes one walk of all remaining names
//! of the path ([`path`]). The walk also fetches the objects that the call needs at its end. The
//! next lookups of the same call are answered from the layer below. When that caches nothing, they
//! are answered from the record of the thread ([`record`]).
//!
//! A hint is not trusted. It only selects the names to look up in advance, with the caller's own
//! identity, below the directory in the kernel's request. A missing, wrong or forged hint leads to
//! the same answers. A read of another program's memory can block, because its pages may be on a
//! file system that does not respond. So at any time at least one of the threads that read requests
//! reads no hint. A thread that blocks in such a read is replaced.
//!
//! The module depends on the kernel's calls and paths, and not on the layers that answer them.

#[allow(unsafe_code)]
pub(crate) mod caller;
pub(crate) mod calls;
pub(crate) mod path;
pub(crate) mod record;
pub(crate) mod uses;

use crate::handles::First;
use crate::inode::{Inode, Inodes, Moment};
use bytes::Bytes;
use caller::{Caller, SystemCall};
use calls::Purpose;
use hither_vfs::{Access, Cred, Name, WalkRequest, WalkResult};
use parking_lot::Mutex;
use path::Path;
use record::{Record, Track, WalkedObject};
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::ThreadId;
use std::time::Duration;
use tokio::time::Instant;
use uses::Use;

/// Maximum number of recorded threads.
const RECORDS_MAX: usize = 1024;
/// Maximum time from an answer to the next request of its thread. After that the request counts as
/// part of another call.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Most hints that are read at a time.
pub(crate) const READERS_MAX: usize = 15;

/// Time after which the read of a hint counts as blocked.
const STUCK: Duration = Duration::from_millis(500);

/// The reason why there was no hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missed {
    /// The caller is in a process namespace that is not visible to the daemon.
    Unseen,
    /// The caller is gone, or must not be inspected.
    Unreadable,
    /// The caller did not go to sleep.
    Running,
    /// The call has no path (io_uring workers, connect(2)), or is of a 32-bit program.
    OtherCall,
    /// The path is unreadable or invalid.
    NoPath,
    /// The name is not in the path. It comes from a symbolic link or from the interpreter of a
    /// script.
    NoMatch,
    /// The caller was in another call after the path was read.
    MovedOn,
    /// Too many hints are being read.
    Busy,
}

const MISSED: [&str; 8] =
    ["unseen", "unreadable", "running", "other-call", "no-path", "no-match", "moved-on", "busy"];

/// The outcomes of path hints since the start of the mount.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct HintStats {
    /// Uncached lookups with a hint.
    pub used: u64,
    /// Names that were looked up in advance, in the request of another lookup.
    pub ahead: u64,
    /// Lookups that were answered from names looked up in advance.
    pub answered: u64,
    /// Hints without a use of their names: the kernel had cached them, or the hint was wrong.
    pub wrong: u64,
    /// Uncached lookups without a hint, by reason.
    pub missed: std::collections::BTreeMap<&'static str, u64>,
}

/// The needs of a call at its last name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Intent {
    /// The call reads the contents of a file.
    pub reads: bool,
    /// A read-only open follows.
    pub opens: bool,
    /// Rights that the call checks.
    pub rights: Access,
    /// The call reads the target of a symbolic link.
    pub target: bool,
    /// The call creates the last name of its last path when it is absent.
    pub makes_last: bool,
}

/// A path walk instead of the lookup of one name.
#[derive(Debug, Clone)]
pub(crate) struct Hint {
    /// The call.
    pub call: SystemCall,
    /// Time of its first lookup.
    pub began: Instant,
    /// The paths of the call.
    text: SmallVec<[Path; 2]>,
    /// The paths after replacing the known symbolic links, and the part of one that is being looked
    /// up.
    paths: SmallVec<[Path; 2]>,
    which: usize,
    at: usize,
    /// The purpose of the call.
    pub intent: Intent,
    /// The looked up name and the following names.
    pub names: Vec<Name>,
    /// The names reach the end of the path.
    pub whole: bool,
    /// The object that an earlier walk of the same call found under the name, and the time of that
    /// request.
    pub known: Option<(WalkedObject, Moment)>,
}

impl Hint {
    /// The hint with the remaining names.
    fn ahead(self) -> Self {
        let (names, whole) = self.paths.get(self.which).map(|p| p.ahead(self.at)).unwrap_or_default();
        Self { names, whole, ..self }
    }

    /// Whether the walk ends with the name that the call creates.
    pub fn makes_last(&self) -> bool {
        self.whole && self.intent.makes_last && self.which + 1 == self.paths.len()
    }

    /// The extras to fetch at the end of the walk.
    pub fn want(&self, first_bytes: u32) -> WalkRequest {
        if !self.whole {
            return WalkRequest::default();
        }
        WalkRequest {
            listing_bytes: 0,
            read_bytes: if self.intent.reads { first_bytes } else { 0 },
            access: self.intent.rights,
            target: self.intent.target,
        }
    }
}

/// An open that ends a call with recorded lookups.
#[derive(Debug)]
pub(crate) struct Opening {
    /// Time of the call's first lookup.
    pub began: Instant,
    /// First bytes of the file from the lookup of its name.
    pub first: Option<First>,
}

/// Threads that are remembered for [`Hints::made_name`], and for how long.
const NO_MAKERS: usize = 64;
const NO_MAKER_MS: u32 = 2;

/// Reads hints and records their calls.
#[derive(Debug)]
pub(crate) struct Hints {
    predicts: bool,
    readers_max: usize,
    reading: Mutex<SmallVec<[Under; 8]>>,
    /// Parts of the mount point's path.
    mount: Arc<[Bytes]>,
    records: Mutex<HashMap<u32, Record>>,
    recorded: AtomicUsize,
    used: AtomicU64,
    ahead: AtomicU64,
    answered: AtomicU64,
    wrong: AtomicU64,
    missed: [AtomicU64; MISSED.len()],
    /// Threads whose call was seen to make no name: thread and milliseconds since `began`.
    no_makers: [AtomicU64; NO_MAKERS],
    began: Instant,
}

impl Hints {
    /// Hints of a mount on `mount`. At most `readers_max` callers are inspected at a time.
    /// `predicts`: the next lookups of a call are predicted.
    pub fn new(predicts: bool, readers_max: usize, mount: &std::path::Path) -> Self {
        use std::os::unix::ffi::OsStrExt;
        Self {
            predicts,
            readers_max,
            reading: Mutex::default(),
            mount: Path::new(mount.as_os_str().as_bytes().to_vec()).parts,
            records: Mutex::default(),
            recorded: AtomicUsize::new(0),
            used: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            missed: [const { AtomicU64::new(0) }; _],
            no_makers: [const { AtomicU64::new(0) }; NO_MAKERS],
            began: Instant::now(),
        }
    }

    /// The hint for a lookup of `name` in `dir`, when it is the next lookup of a recorded call.
    pub fn expected(&self, tid: u32, dir: u64, name: &Name, cred: &Cred) -> Option<Hint> {
        if self.recorded.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let hint = {
            let records = self.records.lock();
            let record = records.get(&tid).filter(|r| r.is_live(Instant::now()) && *r.cred == *cred)?;
            let which = record.tracks.iter().position(|t| t.expects(dir, name))?;
            let track = &record.tracks[which];
            let hint = Hint {
                call: record.call,
                began: record.began,
                text: record.text.clone(),
                paths: record.tracks.iter().map(|t| t.path.clone()).collect(),
                which,
                at: track.at,
                intent: record.intent,
                names: Vec::new(),
                whole: false,
                known: track.ahead.front().cloned().map(|known| (known, track.asked)),
            };
            hint.ahead()
        };
        (SystemCall::of(tid) == Ok(hint.call)).then_some(hint)
    }

    /// Reads the hint for a lookup of `name` in `dir`, which arrived at `now`.
    pub fn read(&self, tid: u32, dir: u64, name: &Name, inodes: &Inodes, now: Instant) -> Option<Hint> {
        if !self.predicts {
            return None;
        }
        let found = self.read_or_why(tid, dir, name, inodes, now);
        match &found {
            Ok(_) => self.used.fetch_add(1, Ordering::Relaxed),
            Err(why) => self.missed[*why as usize].fetch_add(1, Ordering::Relaxed),
        };
        found.ok()
    }

    fn read_or_why(
        &self,
        tid: u32,
        dir: u64,
        name: &Name,
        inodes: &Inodes,
        now: Instant,
    ) -> Result<Hint, Missed> {
        let _reading = self.reading()?;
        let caller = Caller::open(tid)?;
        let call = caller.call()?;
        let (text, intent) = read_paths(tid, &call)?;
        if caller.call()? != call {
            return Err(Missed::MovedOn);
        }
        let above = |parts: &[Bytes]| inodes.agreement(dir, parts, &self.mount);
        let place = |path: &Path, from| path.find(name.as_bytes(), from, above);
        let mut hint = Hint {
            call,
            began: now,
            paths: text.clone(),
            text,
            which: 0,
            at: 0,
            intent,
            names: Vec::new(),
            whole: false,
            known: None,
        };
        // A recorded call continues, possibly after symbolic links. A repetition of the same call
        // starts again.
        if let Some(record) = self.records.lock().get(&tid).filter(|r| r.is_made_of(&hint, now)) {
            let mut tracks = record.tracks.iter().enumerate();
            if let Some((which, at)) = tracks.find_map(|(i, t)| Some((i, place(&t.path, t.at)?))) {
                let paths = record.tracks.iter().map(|t| t.path.clone()).collect();
                hint = Hint { began: record.began, paths, which, at, ..hint };
                return Ok(hint.ahead());
            }
        }
        let mut paths = hint.paths.iter().enumerate();
        (hint.which, hint.at) = paths.find_map(|(i, p)| Some((i, place(p, 0)?))).ok_or(Missed::NoMatch)?;
        Ok(hint.ahead())
    }

    fn reading(&self) -> Result<Reading<'_>, Missed> {
        let mut reading = self.reading.lock();
        if reading.len() >= self.readers_max {
            return Err(Missed::Busy);
        }
        let replaceable = READS_REQUESTS.get().then(Instant::now);
        reading.push(Under { thread: std::thread::current().id(), replaceable, written_off: false });
        Ok(Reading(&self.reading))
    }

    /// Marks the threads that are blocked in the read of a hint as written off. Returns the number
    /// of newly marked threads.
    pub fn write_off(&self) -> usize {
        let (mut reading, now) = (self.reading.lock(), Instant::now());
        let since = |u: &Under| u.replaceable.map(|since| now.saturating_duration_since(since));
        let stuck = |u: &&mut Under| !u.written_off && since(u).is_some_and(|time| time > STUCK);
        reading.iter_mut().filter(stuck).map(|u| u.written_off = true).count()
    }

    /// The last parts of the paths of the thread's call: one for an open, two for a rename.
    pub fn last_parts(&self, tid: u32) -> SmallVec<[Bytes; 2]> {
        self.last_parts_if(tid, |_| true).unwrap_or_default()
    }

    /// The last parts of both paths, when the thread's call is rename(2).
    pub fn renamed_parts(&self, tid: u32) -> Option<(Bytes, Bytes)> {
        let [old, new] = self.last_parts_if(tid, calls::renames).ok()?.into_inner().ok()?;
        Some((old, new))
    }

    /// The use of the thread's call.
    ///
    /// # Errors
    /// The reason why the call is not visible, perhaps for a moment only.
    pub fn purpose(&self, tid: u32) -> Result<Use, Missed> {
        let _reading = self.reading()?;
        uses::of(tid)
    }

    /// The name that the thread's call makes, when the call fails if the name exists. A thread that
    /// was seen in another call is not looked at again within [`NO_MAKER_MS`].
    ///
    /// # Errors
    /// As [`Hints::purpose`].
    pub fn made_name(&self, tid: u32) -> Result<Option<Bytes>, Missed> {
        let place = &self.no_makers[tid as usize % NO_MAKERS];
        let now_ms = self.began.elapsed().as_millis() as u32;
        let seen = place.load(Ordering::Relaxed);
        if seen >> 32 == u64::from(tid) && now_ms.wrapping_sub(seen as u32) < NO_MAKER_MS {
            return Ok(None);
        }
        if !self.purpose(tid)?.makes {
            place.store(u64::from(tid) << 32 | u64::from(now_ms), Ordering::Relaxed);
            return Ok(None);
        }
        self.last_parts_if(tid, |_| true).map(|mut parts| parts.pop())
    }

    fn last_parts_if(&self, tid: u32, fits: impl Fn(u64) -> bool) -> Result<SmallVec<[Bytes; 2]>, Missed> {
        let _reading = self.reading()?;
        let caller = Caller::open(tid)?;
        let call = caller.call()?;
        if !fits(call.number) {
            return Err(Missed::OtherCall);
        }
        let (paths, _) = read_paths(tid, &call)?;
        if caller.call()? != call {
            return Err(Missed::MovedOn);
        }
        paths.iter().map(|path| path.parts.last().cloned().ok_or(Missed::NoPath)).collect()
    }

    /// Records the results of a hint's walk, requested at `asked`. Must be called before its lookup
    /// is answered.
    pub fn walked(
        &self,
        tid: u32,
        dir: u64,
        cred: &Arc<Cred>,
        hint: Hint,
        trail: &WalkResult,
        asked: Moment,
    ) {
        self.ahead.fetch_add(hint.names.len() as u64 - 1, Ordering::Relaxed);
        let now = Instant::now();
        let mut records = self.records.lock();
        if records.len() >= RECORDS_MAX && !records.contains_key(&tid) {
            self.forget_old(&mut records, now);
            if records.len() >= RECORDS_MAX {
                return;
            }
        }
        let same = |r: &Record| r.call == hint.call && r.began == hint.began;
        let mut tracks = match records.remove(&tid) {
            Some(old) if same(&old) => old.tracks,
            Some(old) => {
                self.ended(&old);
                SmallVec::new()
            }
            None => SmallVec::new(),
        };
        tracks.resize_with(hint.paths.len(), Track::default);
        for (track, path) in tracks.iter_mut().zip(&hint.paths) {
            track.path = path.clone();
        }
        if let Some(track) = tracks.get_mut(hint.which) {
            track.begin(hint.at, dir, trail, asked);
        }
        let record = Record {
            call: hint.call,
            text: hint.text,
            cred: cred.clone(),
            began: hint.began,
            last: now,
            intent: hint.intent,
            tracks,
            unused: hint.names.len() > 1,
        };
        records.insert(tid, record);
        self.recorded.store(records.len(), Ordering::Relaxed);
    }

    /// A lookup is about to be answered with inode `found`. The record moves to the next name.
    pub fn advance(&self, tid: u32, dir: u64, name: &Name, found: u64) {
        self.with(tid, |record| {
            let Some(track) = record.tracks.iter_mut().find(|t| t.expects(dir, name)) else { return true };
            if track.advance(found) {
                record.unused = false;
                self.answered.fetch_add(1, Ordering::Relaxed);
            }
            record.last = Instant::now();
            true
        });
    }

    /// The target of a symbolic link is about to be answered. The path continues in the target.
    pub fn through_link(&self, tid: u32, link: u64, target: &[u8]) {
        self.with(tid, |record| {
            if let Some(track) = record.tracks.iter_mut().find(|t| t.is_at(link)) {
                track.through_link(target);
                record.last = Instant::now();
            }
            true
        });
    }

    /// A lookup is about to be answered with ENOENT, which ends the call.
    pub fn missing(&self, tid: u32, dir: u64, name: &Name) {
        self.with(tid, |record| {
            if record.tracks.iter().any(|t| t.expects(dir, name) && t.is_early()) {
                record.unused = false;
                self.answered.fetch_add(1, Ordering::Relaxed);
            }
            false
        });
    }

    /// The thread is in another call, or the call has ended.
    pub fn over(&self, tid: u32) {
        self.with(tid, |_| false);
    }

    /// Ends the record of the thread's call with an open of `inode`. Returns the call's data.
    pub fn opening(&self, tid: u32, inode: &Inode, cred: &Cred) -> Option<Opening> {
        if self.recorded.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut record = {
            let mut records = self.records.lock();
            let record = records.remove(&tid)?;
            self.recorded.store(records.len(), Ordering::Relaxed);
            record
        };
        let first = record.tracks.iter_mut().find(|t| t.ends_at(inode)).map(|t| t.first.take());
        self.ended(&record);
        let belongs = record.intent.opens && *record.cred == *cred && record.is_live(Instant::now());
        let first = first.filter(|_| belongs && SystemCall::of(tid) == Ok(record.call))?;
        Some(Opening { began: record.began, first })
    }

    /// Runs `act` on a thread's record. The record ends when `act` returns false.
    fn with(&self, tid: u32, act: impl FnOnce(&mut Record) -> bool) {
        if self.recorded.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut records = self.records.lock();
        let Some(record) = records.get_mut(&tid) else { return };
        if !act(record)
            && let Some(record) = records.remove(&tid)
        {
            self.ended(&record);
            self.recorded.store(records.len(), Ordering::Relaxed);
        }
    }

    /// Removes the records of calls that must have ended.
    pub fn expire(&self) {
        if self.recorded.load(Ordering::Relaxed) > 0 {
            self.forget_old(&mut self.records.lock(), Instant::now());
        }
    }

    fn forget_old(&self, records: &mut HashMap<u32, Record>, now: Instant) {
        records.retain(|_, record| {
            let live = record.is_live(now);
            if !live {
                self.ended(record);
            }
            live
        });
        self.recorded.store(records.len(), Ordering::Relaxed);
    }

    fn ended(&self, record: &Record) {
        if record.unused {
            self.wrong.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The counters.
    pub fn stats(&self) -> HintStats {
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
        HintStats {
            used: count(&self.used),
            ahead: count(&self.ahead),
            answered: count(&self.answered),
            wrong: count(&self.wrong),
            missed: MISSED.into_iter().zip(self.missed.iter().map(count)).collect(),
        }
    }
}

/// A thread that reads a hint.
#[derive(Debug)]
struct Under {
    thread: ThreadId,
    /// Since when a thread that reads requests reads the hint. Only such a thread needs another one
    /// in its place.
    replaceable: Option<Instant>,
    written_off: bool,
}

/// The read of a hint.
struct Reading<'a>(&'a Mutex<SmallVec<[Under; 8]>>);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let (me, mut reading) = (std::thread::current().id(), self.0.lock());
        if let Some(at) = reading.iter().position(|u| u.thread == me) {
            WRITTEN_OFF.set(reading.swap_remove(at).written_off);
        }
    }
}

thread_local! {
    static READS_REQUESTS: Cell<bool> = const { Cell::new(false) };
    static WRITTEN_OFF: Cell<bool> = const { Cell::new(false) };
}

/// Records that this thread reads requests from the kernel.
pub(crate) fn reads_requests() {
    READS_REQUESTS.set(true);
}

/// Whether this thread was written off while it read a hint. Another thread has replaced it.
pub(crate) fn written_off() -> bool {
    WRITTEN_OFF.take()
}

/// Reads the paths of a call, and its purpose.
fn read_paths(tid: u32, call: &SystemCall) -> Result<(SmallVec<[Path; 2]>, Intent), Missed> {
    let shape = calls::shape(call.number).filter(|_| !call.is_narrow()).ok_or(Missed::OtherCall)?;
    let arg = |i: usize| call.args.get(i).copied().unwrap_or(0);
    let read = |i: usize| caller::string(tid, arg(i)).map(Path::new);
    let mut paths = SmallVec::new();
    paths.push(read(shape.paths.0).ok_or(Missed::NoPath)?);
    if let Some(second) = shape.paths.1 {
        paths.push(read(second).ok_or(Missed::NoPath)?);
    }
    let intent = match shape.purpose {
        Purpose::Open(flags) => Intent::of_open(arg(flags)),
        Purpose::OpenHow(how) => caller::number(tid, arg(how)).map(Intent::of_open).unwrap_or_default(),
        Purpose::Execute => Intent { reads: true, opens: true, ..Intent::default() },
        Purpose::Access(mask) => Intent { rights: Intent::rights(arg(mask)), ..Intent::default() },
        Purpose::Enter => Intent { rights: Access::LOOKUP, ..Intent::default() },
        Purpose::ReadLink => Intent { target: true, ..Intent::default() },
        Purpose::Other => Intent { makes_last: calls::makes_last(call.number), ..Intent::default() },
    };
    Ok((paths, intent))
}

impl Intent {
    /// The needs of open(2) with these flags.
    fn of_open(flags: u64) -> Self {
        let flags = flags as i32;
        let has = |bits: i32| flags & bits != 0;
        if has(libc::O_PATH) {
            return Self::default();
        }
        let opens = flags & libc::O_ACCMODE == libc::O_RDONLY && !has(libc::O_TRUNC | libc::O_DIRECTORY);
        let exclusive = libc::O_CREAT | libc::O_EXCL;
        let reads = opens && !has(libc::O_DIRECT) && flags & exclusive != exclusive;
        // __O_TMPFILE includes O_DIRECTORY.
        let lists = has(libc::O_DIRECTORY) && flags & libc::O_TMPFILE != libc::O_TMPFILE;
        let rights = if lists { Access::READ } else { Access::empty() };
        Self { reads, opens, rights, target: false, makes_last: has(libc::O_CREAT) }
    }

    /// The rights for access(2). Before the type of the object is known, the right to execute may
    /// be the right to search.
    fn rights(mask: u64) -> Access {
        let has = |bit: i32| mask as i32 & bit != 0;
        let mut rights = Access::empty();
        rights.set(Access::READ, has(libc::R_OK));
        rights.set(Access::MODIFY | Access::EXTEND, has(libc::W_OK));
        rights.set(Access::LOOKUP | Access::EXECUTE, has(libc::X_OK));
        rights
    }
}

#[cfg(test)]
mod tests;
