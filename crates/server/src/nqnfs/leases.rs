//! What the lease table needs to serve NQNFS: which files its leases are about, numbers that
//! outlive the server, and revisions that change with what others than this server's clients do.
//!
//! It knows no procedure. Leases of NQNFS are in the one table of all leases
//! ([`crate::v4::delegation`]), so whoever reads or changes a file by NFSv3 or NFSv4 makes them end
//! as another client of NQNFS would.
//!
//! **Numbers.** No lease is stored (section 4.1 of the paper). Stored are where revisions go on and
//! whether leases may be out, for how long; a server that finds that they may be serves nothing but
//! writes until they are over and write slack has passed.
//!
//! **Revisions.** The table numbers what is changed through it. A local program changes files
//! without it, so each answer compares the file's change attribute with the one that was seen under
//! the present revision ([`Held::seen`]), unless the attributes may be older than that revision.

use super::NqnfsOptions;
use super::clients::Clients;
use crate::v4::delegation::Leases;
use hither_lease::{Boot, ClientId, Config, FileKey, Kind, Table, Term};
use hither_vfs::{Fh, Watched};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Name of the file with the numbers in the state directory.
const NUMBERS_FILE: &str = "nqnfs-numbers";
/// What the file starts with.
const NUMBERS_MAGIC: &str = "hither-nqnfs-1";
/// Most files whose change attributes are remembered, twice.
const SEEN_MAX: usize = 1 << 17;
/// A client that has no connection is forgotten so long after all it held has ended.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// Leases that end by themselves.
pub(crate) struct Short {
    pub options: NqnfsOptions,
    pub clients: Clients,
    delayed: Arc<AtomicUsize>,
    recovering: AtomicBool,
}

/// What a server that offers NQNFS begins with.
///
/// # Errors
/// The numbers of its last life cannot be read.
pub(crate) fn begin(options: &crate::Options) -> io::Result<Option<(Short, Numbers)>> {
    let Some(nqnfs) = &options.nqnfs else { return Ok(None) };
    let numbers = Numbers::open(options.state_dir.clone())?;
    let recovering = numbers.term_ms > 0;
    let short = Short {
        options: nqnfs.clone(),
        clients: Clients::new(nqnfs.term * 2 + nqnfs.skew + nqnfs.write_slack + FORGOTTEN_AFTER),
        delayed: Arc::default(),
        recovering: AtomicBool::new(recovering),
    };
    if recovering {
        tracing::info!(
            "clients may hold leases of before the restart: for {} s only delayed writes are served",
            short.recovery(&numbers).as_secs()
        );
    }
    Ok(Some((short, numbers)))
}

fn millis(d: Duration) -> u32 {
    u32::try_from(d.as_millis()).unwrap_or(u32::MAX)
}

impl Short {
    /// The table's settings.
    pub fn config(&self) -> Config {
        let term_ms = millis(self.options.term);
        Config {
            term_ms,
            term_max_ms: term_ms.saturating_mul(2),
            skew_ms: millis(self.options.skew),
            write_slack_ms: millis(self.options.write_slack),
            ..Config::default()
        }
    }

    /// How long leases of before are waited for, when no delayed writes prolong it.
    pub fn recovery(&self, numbers: &Numbers) -> Duration {
        match numbers.term_ms {
            0 => Duration::ZERO,
            ms => Duration::from_millis(ms.into()) + self.options.skew + self.options.write_slack,
        }
    }

    /// Longest lease.
    pub fn term_max(&self) -> Duration {
        self.options.term * 2
    }

    /// How long a lease may be out after a restart that was asked for with this term: the usual
    /// time, or the longest as soon as somebody asks for more than that. (Two numbers, so that no
    /// client makes the server write often.)
    pub fn outstanding_ms(&self, term: Term) -> u32 {
        let config = self.config();
        match term {
            Term::For(ms) if ms <= config.term_ms => config.term_ms,
            _ => config.term_max_ms,
        }
    }

    /// What is to be known of leases in the table.
    pub fn held(&self) -> Held {
        Held { delayed: self.delayed.clone(), ..Held::default() }
    }

    /// Whether a client may have delayed writes to any file.
    pub fn may_be_delayed(&self) -> bool {
        self.delayed.load(SeqCst) > 0 || self.recovering.load(SeqCst)
    }

    /// Time has passed.
    pub fn tend(&self, leases: &Arc<Leases>) {
        let recovering = leases.act(|inner, _| {
            if let Some(numbers) = &mut inner.numbers
                && let Some((end, epoch)) = numbers.owed
                && numbers.reserve(end, epoch)
            {
                inner.table.reserved(end, epoch);
            }
            inner.table.is_recovering()
        });
        if self.recovering.swap(recovering, SeqCst) && !recovering {
            tracing::info!("leases of before the restart have expired");
        }
        self.clients.forget();
    }
}

/// What is known of the leases under which clients may cache.
#[derive(Default)]
pub(crate) struct Held {
    leases: HashMap<(ClientId, FileKey), Lease>,
    /// Write leases in `leases`.
    delayed: Arc<AtomicUsize>,
    /// Whose write lease ended without being given up: what they delayed comes too late.
    late: HashMap<(ClientId, FileKey), ()>,
    /// Revision and change attribute of files, and the same of longer ago.
    seen: HashMap<FileKey, (u64, u64)>,
    seen_before: HashMap<FileKey, (u64, u64)>,
    /// Some that were seen are forgotten.
    forgotten: bool,
}

struct Lease {
    file: (u32, Fh),
    /// `None` as long as it is not granted.
    kind: Option<Kind>,
    /// Calls under way that ask for it. The table may grant it to one that waits while others of
    /// the same client come and go.
    asking: u32,
    /// Its client has been told, or is about to be: it may cache.
    told: bool,
    watched: Option<Watched>,
}

/// What attributes of a file are compared with: the highest modify revision of all before they were
/// read.
#[derive(Clone, Copy)]
pub(crate) struct Since(u64);

impl Since {
    /// Attributes are about to be read.
    pub fn now(table: &Table) -> Self {
        Self(table.last_revision())
    }
}

/// Most clients and files that are remembered as late; then all are forgotten, and what they still
/// write is written.
const LATE_MAX: usize = 1 << 16;

impl Held {
    /// A lease is about to be asked for. [`Held::answered`] follows.
    pub fn asked(&mut self, client: ClientId, key: FileKey, file: (u32, Fh)) {
        let new = || Lease { file, kind: None, asking: 0, told: false, watched: None };
        self.leases.entry((client, key)).or_insert_with(new).asking += 1;
    }

    /// The call that asked is over, or at least the table has answered it. To be followed by
    /// [`Held::settle`].
    pub fn answered(&mut self, client: ClientId, key: FileKey) {
        if let Some(lease) = self.leases.get_mut(&(client, key)) {
            lease.asking = lease.asking.saturating_sub(1);
        }
    }

    /// What the table says now of a lease that was asked for.
    pub fn settle(&mut self, client: ClientId, key: FileKey, held: Option<Kind>) -> Option<Watched> {
        let lease = self.leases.get_mut(&(client, key))?;
        let was = std::mem::replace(&mut lease.kind, held) == Some(Kind::Write);
        let unwatched = match held {
            Some(_) => None,
            None => {
                lease.told = false;
                lease.watched.take()
            }
        };
        if held.is_none() && lease.asking == 0 {
            self.leases.remove(&(client, key));
        }
        self.count(was, held == Some(Kind::Write));
        unwatched
    }

    /// A client is told that it may cache.
    pub fn tell(&mut self, client: ClientId, key: FileKey) {
        if let Some(lease) = self.leases.get_mut(&(client, key)) {
            lease.told = lease.kind.is_some();
        }
    }

    /// Whether a client may know that it may cache.
    pub fn is_told(&self, client: ClientId, key: FileKey) -> bool {
        self.leases.get(&(client, key)).is_some_and(|l| l.told)
    }

    fn count(&self, was: bool, is: bool) {
        match (was, is) {
            (false, true) => drop(self.delayed.fetch_add(1, SeqCst)),
            (true, false) => drop(self.delayed.fetch_sub(1, SeqCst)),
            _ => {}
        }
    }

    /// The table has ended a lease by itself.
    pub fn ended(&mut self, client: ClientId, key: FileKey, kind: Kind) -> Option<Watched> {
        if kind == Kind::Write {
            if self.late.len() >= LATE_MAX {
                self.late.clear();
            }
            self.late.insert((client, key), ());
        }
        self.settle(client, key, None)
    }

    /// A client has got a lease of any kind: what it writes from now on is new.
    pub fn renewed(&mut self, client: ClientId, key: FileKey) {
        self.late.remove(&(client, key));
    }

    /// Whether what a client writes comes after the end of its write lease. `held`: what the table
    /// says now; it may have ended the lease and not told yet.
    pub fn is_late(&self, client: ClientId, key: FileKey, held: Option<Kind>) -> bool {
        let had = self.leases.get(&(client, key)).and_then(|l| l.kind);
        let ends = had == Some(Kind::Write) && held != Some(Kind::Write);
        ends || self.late.contains_key(&(client, key))
    }

    /// The file of a lease.
    pub fn file(&self, client: ClientId, key: FileKey) -> Option<(u32, Fh)> {
        self.leases.get(&(client, key)).map(|l| l.file.clone())
    }

    /// Whether a lease for reading is watched.
    pub fn is_watched(&self, client: ClientId, key: FileKey) -> bool {
        self.leases.get(&(client, key)).is_some_and(|l| l.watched.is_some())
    }

    /// A lease is watched from now on, if it is still there.
    pub fn watch(&mut self, client: ClientId, key: FileKey, watched: Watched) -> Option<Watched> {
        match self.leases.get_mut(&(client, key)).filter(|l| l.kind.is_some()) {
            Some(lease) => lease.watched.replace(watched),
            None => Some(watched),
        }
    }

    /// A client changes what it may cache.
    pub fn unwatch(&mut self, client: ClientId, key: FileKey) -> Option<Watched> {
        self.leases.get_mut(&(client, key)).and_then(|l| l.watched.take())
    }

    /// A file's revision, now that it had this change attribute, read after `since`: another one
    /// than before if somebody changed it unseen.
    pub fn seen(&mut self, table: &mut Table, now: u64, key: FileKey, change: u64, since: Since) -> u64 {
        let revision = table.revision(key);
        // What was read before a change through the table, or during one, is not what belongs to
        // the revision.
        if table.is_changing(key) || revision > since.0 {
            return revision;
        }
        let known = self.seen.get(&key).or_else(|| self.seen_before.get(&key)).copied();
        let unseen = match known {
            Some((r, c)) => r == revision && c != change,
            None => self.forgotten,
        };
        if unseen {
            table.changed(now, key);
            let next = table.revision(key);
            // Otherwise it could not be numbered, and has to be seen again.
            if next != revision {
                self.note(key, next, change);
            }
            return next;
        }
        if self.seen.get(&key) != Some(&(revision, change)) {
            self.note(key, revision, change);
        }
        revision
    }

    /// A change through the table gave a file this revision and change attribute.
    pub fn changed(&mut self, key: FileKey, revision: u64, change: u64) {
        // Whoever was quicker has seen it under this revision before.
        if self.seen.get(&key).is_none_or(|(r, _)| *r < revision) {
            self.note(key, revision, change);
        }
    }

    fn note(&mut self, key: FileKey, revision: u64, change: u64) {
        if self.seen.len() >= SEEN_MAX && !self.seen.contains_key(&key) {
            self.forgotten |= !self.seen_before.is_empty();
            self.seen_before = std::mem::take(&mut self.seen);
        }
        self.seen.insert(key, (revision, change));
    }
}

/// What must not be lost with the server.
pub(crate) struct Numbers {
    /// Where; `None` for files that are lost with the server themselves.
    dir: Option<PathBuf>,
    end: u64,
    epoch: u32,
    /// Leases of at most this term may be out; 0: none.
    term_ms: u32,
    /// Could not be made durable.
    owed: Option<(u64, u32)>,
}

impl Numbers {
    /// Those of the last life.
    fn open(dir: Option<PathBuf>) -> io::Result<Self> {
        let nothing = Self { dir: dir.clone(), end: 0, epoch: 0, term_ms: 0, owed: None };
        let Some(dir) = dir else { return Ok(nothing) };
        let path = dir.join(NUMBERS_FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(nothing),
            Err(e) => return Err(e),
        };
        let mut words = text.split_ascii_whitespace();
        let numbers = (words.next() == Some(NUMBERS_MAGIC)).then(|| {
            let (end, epoch, term_ms) = (words.next()?, words.next()?, words.next()?);
            Some((end.parse().ok()?, epoch.parse().ok()?, term_ms.parse().ok()?))
        });
        match numbers.flatten().filter(|_| words.next().is_none()) {
            Some((end, epoch, term_ms)) => Ok(Self { end, epoch, term_ms, ..nothing }),
            None => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "{} is damaged: remove it when no client was connected for two minutes",
                    path.display()
                ),
            )),
        }
    }

    /// For the table.
    pub fn boot(&self) -> Boot {
        Boot { reserved_end: self.end, epoch: self.epoch, outstanding_ms: self.term_ms }
    }

    /// Whether they can be made durable.
    ///
    /// # Errors
    /// They cannot.
    pub fn check(&mut self) -> io::Result<()> {
        self.write(self.end, self.epoch, self.term_ms)
    }

    /// Makes the table's numbers durable; false when that fails, and then it is to be tried again.
    pub fn reserve(&mut self, end: u64, epoch: u32) -> bool {
        // A new epoch: leases of the last life are over.
        let term_ms = if epoch == self.epoch { self.term_ms } else { 0 };
        let done = self.write(end, epoch, term_ms);
        self.owed = done.is_err().then_some((end, epoch));
        self.told(done)
    }

    /// Makes durable that leases of this term may be out.
    pub fn out(&mut self, term_ms: u32) -> bool {
        if self.term_ms >= term_ms {
            return true;
        }
        let done = self.write(self.end, self.epoch, term_ms);
        self.told(done)
    }

    /// No lease is out, and none will be.
    pub fn vacant(&mut self) {
        if self.term_ms > 0 {
            let done = self.write(self.end, self.epoch, 0);
            self.told(done);
        }
    }

    fn told(&self, done: io::Result<()>) -> bool {
        if let Err(e) = &done {
            tracing::error!("{NUMBERS_FILE} cannot be written; until then no file is leased or written: {e}");
        }
        done.is_ok()
    }

    fn write(&mut self, end: u64, epoch: u32, term_ms: u32) -> io::Result<()> {
        if let Some(dir) = &self.dir {
            let text = format!("{NUMBERS_MAGIC} {end} {epoch} {term_ms}\n");
            crate::v4::write_durably(dir, &dir.join(NUMBERS_FILE), text.as_bytes())?;
        }
        (self.end, self.epoch, self.term_ms) = (end, epoch, term_ms);
        Ok(())
    }
}
