//! Programs that write, each in its own directory. Each program records the answers that it got.

use crate::common::{Random, pause, record};
use crate::truth::{Body, Event, FOREIGN, Promise};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A file that reaches this size is truncated.
const LARGE_BYTES: u64 = 1 << 21;

/// The main work of a writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// Appends to files.
    Appends,
    /// Overwrites old places.
    Overwrites,
    /// Makes many files of few records, and writes, closes, renames and removes them.
    Files,
}

/// A change of names without an answer.
#[derive(Clone, Debug)]
enum Pending {
    Create(String),
    Rename(String, String),
    Unlink(String),
}

/// The settings of all writers at a point.
pub struct Orders {
    /// The writer has to end: fsync, close and return.
    pub stop: AtomicBool,
    /// A close does not wait, so its return promises nothing.
    pub lazy: bool,
    /// A repeated removal or rename may find its work done.
    pub forgetful: bool,
    /// Set while the server's disk is full. ENOSPC is a valid answer then.
    pub full: AtomicBool,
}

/// One writer.
pub struct Writer {
    pub id: u64,
    pub style: Style,
    pub len: usize,
    /// The writer's directory in the mount.
    pub dir: PathBuf,
    pub files: BTreeMap<String, Body>,
    /// The present call, for the diagnosis of a hang.
    pub doing: Arc<Mutex<String>>,
    /// Number of successful write(2) calls. `written_bytes` is their size. `synced` counts
    /// successful fsync and close calls.
    pub written: u64,
    pub written_bytes: u64,
    pub synced: u64,
    /// Number of "disk full" answers.
    pub refused: u64,
    /// An answer that no fault explains.
    pub surprise: Option<String>,
    number: u64,
    pending: Option<Pending>,
    random: Random,
}

/// A record that another client wrote, and its place.
pub struct Meddled {
    pub at: PathBuf,
    from: u64,
    bytes: Vec<u8>,
}

impl Meddled {
    /// Whether the record is still there.
    pub fn holds(&self) -> bool {
        let mut is = vec![0; self.bytes.len()];
        File::open(&self.at).and_then(|f| f.read_exact_at(&mut is, self.from)).is_ok() && is == self.bytes
    }
}

/// The report about a file after a crash.
pub enum CrashReport<'a> {
    Nothing,
    /// Some data is missing at the server, and kept.
    Conflict,
    /// Kept data of a failed journal was applied over these bytes.
    Applied(&'a [u8]),
}

/// The writer cannot go on: the mount is gone, or an answer was wrong.
struct Over;

type Step<T> = Result<T, Over>;

struct Opened {
    file: File,
    name: String,
    append: bool,
}

impl Writer {
    pub fn new(id: u64, style: Style, len: usize, mnt: &Path) -> Self {
        Self {
            id,
            style,
            len,
            dir: mnt.join(format!("w{id}")),
            files: BTreeMap::new(),
            doing: Arc::default(),
            written: 0,
            written_bytes: 0,
            synced: 0,
            refused: 0,
            surprise: None,
            number: 0,
            pending: None,
            random: Random(0),
        }
    }

    /// Writes until the orders say stop or the mount is gone.
    pub fn live(&mut self, seed: u64, orders: &Orders) {
        self.random = Random(seed);
        let mut open = None;
        while !orders.stop.load(Ordering::Relaxed) {
            if self.step(&mut open, orders).is_err() {
                self.say("over");
                return;
            }
        }
        if let Some(opened) = open {
            // The server accepts refused data when its disk has space again.
            for _ in 0..600 {
                match self.sync(&opened, orders) {
                    Err(Over) => return,
                    Ok(true) => break,
                    Ok(false) => pause(100),
                }
            }
            let _ = self.close(opened, orders);
        }
        self.say("done");
    }

    fn say(&self, what: impl Into<String>) {
        *self.doing.lock().unwrap() = what.into();
    }

    fn step(&mut self, open: &mut Option<Opened>, orders: &Orders) -> Step<()> {
        let Some(opened) = open else {
            *open = self.open(orders)?;
            return Ok(());
        };
        let dice = self.random.below(120);
        let (closes, names) = match self.style {
            Style::Files => (30, 45),
            _ => (4, 6),
        };
        match dice {
            _ if dice < closes => {
                let opened = open.take().unwrap();
                self.close(opened, orders)
            }
            _ if dice < names => self.change_names(open, orders),
            _ if dice < names + 3 => self.sync(opened, orders).map(drop),
            _ if dice < names + 5 && self.style != Style::Appends => self.cut(opened, None, orders),
            _ if dice < names + 9 => {
                pause(self.random.below(20));
                Ok(())
            }
            _ => self.write(opened, orders),
        }
    }

    /// Judges an error. `Ok` means that the writer goes on without the call.
    fn judge(&mut self, what: &str, e: &io::Error, orders: &Orders) -> Step<()> {
        match e.raw_os_error() {
            Some(libc::ENOTCONN | libc::ECONNABORTED) => Err(Over),
            Some(libc::ENOSPC | libc::EDQUOT) if orders.full.load(Ordering::Relaxed) => {
                self.refused += 1;
                pause(self.random.below(20));
                Ok(())
            }
            _ if e.kind() == ErrorKind::WriteZero && orders.full.load(Ordering::Relaxed) => Ok(()),
            _ => {
                self.surprise.get_or_insert(format!("w{}: {what}: {e}", self.id));
                Err(Over)
            }
        }
    }

    fn name(&mut self) -> String {
        let names = if self.style == Style::Files { 12 } else { 3 };
        format!("n{}", self.random.below(names))
    }

    fn body(&mut self, name: &str) -> &mut Body {
        self.files.entry(name.into()).or_default()
    }

    fn open(&mut self, orders: &Orders) -> Step<Option<Opened>> {
        let name = self.name();
        let body = self.files.get(&name);
        let cut = body.is_some() && self.random.below(4) == 0;
        let append =
            body.is_none_or(|b| !b.odd) && self.random.below(3) == 0 && self.style != Style::Overwrites;
        self.say(format!("open of {name}, cut {cut}"));
        if body.is_none() {
            self.pending = Some(Pending::Create(name.clone()));
        }
        if cut {
            self.body(&name).log.push(Event::Cut { keep: 0, told: false });
        }
        let mut how = OpenOptions::new();
        how.read(true).write(true).create(true).truncate(cut);
        let done = how.custom_flags(if append { libc::O_APPEND } else { 0 }).open(self.dir.join(&name));
        let file = match done {
            Ok(file) => file,
            Err(e) => {
                if cut {
                    self.body(&name).odd = true;
                }
                self.judge(&format!("open of {name}"), &e, orders)?;
                // A full server may still have created the file.
                if self.dir.join(&name).exists() {
                    self.pending = None;
                    self.body(&name);
                }
                return Ok(None);
            }
        };
        self.pending = None;
        let body = self.body(&name);
        if cut {
            body.log.pop();
            body.log.push(Event::Cut { keep: 0, told: true });
            (body.places, body.odd) = (0, false);
        }
        Ok(Some(Opened { file, name, append }))
    }

    fn write(&mut self, opened: &Opened, orders: &Orders) -> Step<()> {
        let len = self.len;
        let body = &self.files[&opened.name];
        let (end, odd) = (body.places, body.odd);
        if opened.append && odd {
            // The end of the file is not certain.
            return Ok(());
        }
        let most = if self.style == Style::Files { 6 } else { LARGE_BYTES / len as u64 };
        if end >= most.max(6) {
            let keep = self.random.below(end / 2 + 1);
            return self.cut(opened, Some(keep), orders);
        }
        let back = self.style == Style::Overwrites && end > 4 && !opened.append;
        let place = if back { self.random.below(end + 2) } else { end };
        self.number += 1;
        let number = self.number;
        self.say(format!("write of number {number} at place {place} of {}", opened.name));
        let bytes = record(self.id, place, number, len);
        let done = opened.file.write_all_at(&bytes, place * len as u64);
        let body = self.body(&opened.name);
        body.log.push(Event::Wrote { place, number, told: done.is_ok() });
        body.places = body.places.max(place + 1);
        match done {
            Ok(()) => {
                self.written += 1;
                self.written_bytes += len as u64;
                Ok(())
            }
            Err(e) => {
                body.odd = true;
                self.judge(&format!("write to {}", opened.name), &e, orders)
            }
        }
    }

    /// Calls fsync. Returns whether fsync succeeded.
    fn sync(&mut self, opened: &Opened, orders: &Orders) -> Step<bool> {
        self.say(format!("fsync of {}", opened.name));
        match opened.file.sync_all() {
            Ok(()) => {
                self.body(&opened.name).log.push(Event::Synced);
                self.synced += 1;
                Ok(true)
            }
            Err(e) => self.judge(&format!("fsync of {}", opened.name), &e, orders).map(|()| false),
        }
    }

    fn close(&mut self, opened: Opened, orders: &Orders) -> Step<()> {
        self.say(format!("close of {}", opened.name));
        let done = close(opened.file);
        let body = self.body(&opened.name);
        match done {
            Ok(()) => {
                if !orders.lazy {
                    body.log.push(Event::Synced);
                    self.synced += 1;
                }
                Ok(())
            }
            Err(e) => {
                body.log.push(Event::GivenUp);
                body.odd = true;
                self.judge(&format!("close of {}", opened.name), &e, orders)
            }
        }
    }

    fn cut(&mut self, opened: &Opened, keep: Option<u64>, orders: &Orders) -> Step<()> {
        let end = self.files[&opened.name].places;
        let keep = keep.unwrap_or_else(|| end / 2 + self.random.below(end / 2 + 1));
        self.say(format!("cut of {} to {keep}", opened.name));
        let done = opened.file.set_len(keep * self.len as u64);
        let body = self.body(&opened.name);
        body.log.push(Event::Cut { keep, told: done.is_ok() });
        match done {
            Ok(()) => {
                (body.places, body.odd) = (keep, false);
                Ok(())
            }
            Err(e) => {
                body.odd = true;
                self.judge(&format!("cut of {}", opened.name), &e, orders)
            }
        }
    }

    fn change_names(&mut self, open: &mut Option<Opened>, orders: &Orders) -> Step<()> {
        let name = self.name();
        if !self.files.contains_key(&name) {
            return Ok(());
        }
        let is_open = |name: &str, open: &Option<Opened>| open.as_ref().is_some_and(|o| o.name == name);
        if self.random.below(2) == 0 {
            let to = self.name();
            if to == name {
                return Ok(());
            }
            if is_open(&to, open) {
                let opened = open.take().unwrap();
                self.close(opened, orders)?;
            }
            self.say(format!("rename of {name} to {to}"));
            self.pending = Some(Pending::Rename(name.clone(), to.clone()));
            let done = std::fs::rename(self.dir.join(&name), self.dir.join(&to));
            if self.changed(done, "rename", orders)? {
                let body = self.files.remove(&name).unwrap();
                self.files.insert(to.clone(), body);
                if let Some(opened) = open.as_mut().filter(|o| o.name == name) {
                    opened.name = to;
                }
            }
            self.pending = None;
            return Ok(());
        }
        let early = self.random.below(2) == 0;
        if is_open(&name, open) && early {
            let opened = open.take().unwrap();
            self.close(opened, orders)?;
        }
        self.say(format!("removal of {name}"));
        self.pending = Some(Pending::Unlink(name.clone()));
        let done = std::fs::remove_file(self.dir.join(&name));
        if self.changed(done, "removal", orders)? {
            self.files.remove(&name);
            if is_open(&name, open) {
                self.say(format!("close of {name}, which is removed"));
                // The bytes of a removed file need no further check.
                let _ = close(open.take().unwrap().file);
            }
        }
        self.pending = None;
        Ok(())
    }

    /// Whether a change of names succeeded.
    fn changed(&mut self, done: io::Result<()>, what: &str, orders: &Orders) -> Step<bool> {
        match done {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound && orders.forgetful => Ok(true),
            Err(e) => self.judge(what, &e, orders).map(|()| false),
        }
    }

    /// Compares the server's data with the promised data and returns the first fault. `dir` is the
    /// writer's directory at the server. `told` gives the report about a file by its fileid.
    pub fn wrong<'a>(
        &self,
        dir: &Path,
        promise: Promise,
        told: impl Fn(u64) -> CrashReport<'a>,
    ) -> Option<String> {
        use std::os::unix::fs::MetadataExt;
        let there = match names(dir) {
            Ok(there) => there,
            Err(e) => return Some(format!("w{}: {e}", self.id)),
        };
        let files = self.resolved(&there);
        for name in &there {
            if !files.contains_key(name.as_str()) {
                return Some(format!("w{}/{name} is there and should not", self.id));
            }
        }
        for (name, body) in &files {
            let at = dir.join(name);
            let read = std::fs::read(&at).and_then(|bytes| Ok((bytes, std::fs::metadata(&at)?.ino())));
            let bytes = match read.map(|(bytes, fileid)| (told(fileid), bytes)) {
                Ok((CrashReport::Nothing, bytes)) => bytes,
                Ok((CrashReport::Conflict, _)) => continue,
                Ok((CrashReport::Applied(before), after)) => {
                    body.either(self.id, self.len, (before, &after), promise)
                }
                Err(e) => return Some(format!("w{}/{name} is lost: {e}", self.id)),
            };
            if let Some(wrong) = body.wrong(self.id, self.len, &bytes, promise) {
                return Some(format!("w{}/{name}: {wrong}", self.id));
            }
        }
        None
    }

    /// Files by their names at the server. `there` decides about a change without an answer.
    fn resolved(&self, there: &[String]) -> BTreeMap<String, Body> {
        let mut files = self.files.clone();
        let has = |name: &String| there.contains(name);
        match &self.pending {
            Some(Pending::Create(name)) if has(name) => {
                files.entry(name.clone()).or_default();
            }
            Some(Pending::Rename(from, to)) if !has(from) => {
                if let Some(body) = files.remove(from) {
                    files.insert(to.clone(), body);
                }
            }
            Some(Pending::Unlink(name)) if !has(name) => {
                files.remove(name);
            }
            _ => {}
        }
        files
    }

    /// Another client overwrites one place of one of the files, at the server.
    pub fn meddle(&mut self, dir: &Path, r: &mut Random) -> Option<Meddled> {
        // The names must be certain, so no change may be pending.
        let names: Vec<String> = self.files.keys().filter(|_| self.pending.is_none()).cloned().collect();
        let name = names.get(r.below(names.len().max(1) as u64) as usize)?;
        let file = OpenOptions::new().write(true).open(dir.join(name)).unwrap();
        let places = file.metadata().unwrap().len() / self.len as u64;
        if places == 0 {
            return None;
        }
        let (place, number) = (r.below(places), r.next());
        let bytes = record(FOREIGN, place, number, self.len);
        file.write_all_at(&bytes, place * self.len as u64).unwrap();
        self.body(name).log.push(Event::Foreign { place, number, holds: true });
        Some(Meddled { at: dir.join(name), from: place * self.len as u64, bytes })
    }

    /// Notes that conflicts were applied and overwrote another client's data.
    pub fn applied(&mut self) {
        for event in self.files.values_mut().flat_map(|body| &mut body.log) {
            if let Event::Foreign { holds, .. } = event {
                *holds = false;
            }
        }
    }

    /// Makes the server's data the known state.
    pub fn settle(&mut self, dir: &Path) {
        let there = names(dir).unwrap();
        self.files = self.resolved(&there);
        self.pending = None;
        for (name, body) in &mut self.files {
            body.settle(std::fs::read(dir.join(name)).unwrap(), self.len);
        }
    }
}

/// Names in a directory, without the hidden names of removed open files.
fn names(dir: &Path) -> io::Result<Vec<String>> {
    let all = std::fs::read_dir(dir)?.map(|e| e.map(|e| e.file_name().to_string_lossy().into_owned()));
    all.filter(|name| !matches!(name, Ok(name) if name.starts_with(".nfs"))).collect()
}

/// Closes a file and returns the result of close(2).
fn close(file: File) -> io::Result<()> {
    // SAFETY: only this function owns the descriptor.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
