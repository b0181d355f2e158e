//! The state that the lease table needs for NQNFS: the files of its leases, numbers that outlive
//! the server, and revisions that also cover changes by local programs.
//!
//! The module knows no procedure. Leases of NQNFS are in the one table of all leases
//! ([`crate::v4::delegation`]). An NFSv3 or NFSv4 client that reads or changes a file therefore
//! ends leases just like another NQNFS client.
//!
//! **Numbers.** No lease is stored (section 4.1 of the paper). The server stores the next revision,
//! and the longest term of leases that may be out. A server that finds leases may be out serves
//! only writes until they have expired and write slack has passed.
//!
//! **Revisions.** The table numbers the changes that pass through it. Local programs change files
//! without the table. Each reply therefore compares the file's change attribute with the one
//! recorded for the current revision ([`GrantedLeases::seen`]). The comparison is skipped when the
//! attributes may be older than the revision.

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
/// First word of the file.
const NUMBERS_MAGIC: &str = "hither-nqnfs-1";
/// Most files with a remembered change attribute, in each of two generations.
const SEEN_MAX: usize = 1 << 17;
/// A disconnected client is forgotten this long after all its leases have ended.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// Leases that end by themselves (NQNFS).
pub(crate) struct Short {
    pub options: NqnfsOptions,
    pub clients: Clients,
    delayed: Arc<AtomicUsize>,
    recovering: AtomicBool,
}

/// The initial state of a server that offers NQNFS. `None` when the server does not offer it.
///
/// # Errors
/// The stored numbers of the last run cannot be read.
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
            "clients may hold leases from before the restart: only delayed writes are served for {} s",
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

    /// For how long the server waits for leases from before a restart. Delayed writes can prolong
    /// the wait.
    pub fn recovery(&self, numbers: &Numbers) -> Duration {
        match numbers.term_ms {
            0 => Duration::ZERO,
            ms => Duration::from_millis(ms.into()) + self.options.skew + self.options.write_slack,
        }
    }

    /// Longest term of a lease.
    pub fn term_max(&self) -> Duration {
        self.options.term * 2
    }

    /// The longest remaining term after a restart of a lease that is requested with this term. The
    /// default term, or the longest term when a client requests more than the default. (Only two
    /// values exist, so that clients cannot make the server write often.)
    pub fn outstanding_ms(&self, term: Term) -> u32 {
        let config = self.config();
        match term {
            Term::For(ms) if ms <= config.term_ms => config.term_ms,
            _ => config.term_max_ms,
        }
    }

    /// The empty record of leases in the table.
    pub fn held(&self) -> GrantedLeases {
        GrantedLeases { delayed: self.delayed.clone(), ..GrantedLeases::default() }
    }

    /// Whether any client may have delayed writes to any file.
    pub fn may_be_delayed(&self) -> bool {
        self.delayed.load(SeqCst) > 0 || self.recovering.load(SeqCst)
    }

    /// Periodic work: stores numbers that could not be stored, and forgets clients.
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
            tracing::info!("leases from before the restart have expired");
        }
        self.clients.forget();
    }
}

/// The leases under which clients may cache.
#[derive(Default)]
pub(crate) struct GrantedLeases {
    leases: HashMap<(ClientId, FileKey), Lease>,
    /// Number of write leases in `leases`.
    delayed: Arc<AtomicUsize>,
    /// Clients whose write lease expired. Their delayed writes come too late.
    late: HashMap<(ClientId, FileKey), ()>,
    /// Revision and change attribute of files: the newer generation, then the older one.
    seen: HashMap<FileKey, (u64, u64)>,
    seen_before: HashMap<FileKey, (u64, u64)>,
    /// Some files have been dropped from both generations.
    forgotten: bool,
}

struct Lease {
    file: (u32, Fh),
    /// `None` until the lease is granted.
    kind: Option<Kind>,
    /// Calls in progress that request the lease. The table may grant it to a waiting call while
    /// other calls of the same client come and go.
    asking: u32,
    /// The client has the grant or is about to get it, and may cache.
    told: bool,
    watched: Option<Watched>,
}

/// The highest modify revision of all files before attributes were read. Attributes are compared
/// with it.
#[derive(Clone, Copy)]
pub(crate) struct Since(u64);

impl Since {
    /// To be called before attributes are read.
    pub fn now(table: &Table) -> Self {
        Self(table.last_revision())
    }
}

/// Most entries of clients and files in `late`. At this limit all entries are forgotten, and later
/// writes of those clients are accepted.
const LATE_MAX: usize = 1 << 16;

impl GrantedLeases {
    /// Numbers of leases, and of write leases among them.
    pub fn counts(&self) -> (usize, usize) {
        let granted = self.leases.values().filter(|lease| lease.kind.is_some()).count();
        (granted, self.delayed.load(SeqCst))
    }

    /// Records a request for a lease. [`GrantedLeases::answered`] follows.
    pub fn asked(&mut self, client: ClientId, key: FileKey, file: (u32, Fh)) {
        let new = || Lease { file, kind: None, asking: 0, told: false, watched: None };
        self.leases.entry((client, key)).or_insert_with(new).asking += 1;
    }

    /// Records that the table has answered a request. [`GrantedLeases::settle`] follows.
    pub fn answered(&mut self, client: ClientId, key: FileKey) {
        if let Some(lease) = self.leases.get_mut(&(client, key)) {
            lease.asking = lease.asking.saturating_sub(1);
        }
    }

    /// Records the state of a requested lease in the table. Returns the watch of an ended lease.
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

    /// Records that a client gets the grant in a reply.
    pub fn tell(&mut self, client: ClientId, key: FileKey) {
        if let Some(lease) = self.leases.get_mut(&(client, key)) {
            lease.told = lease.kind.is_some();
        }
    }

    /// Whether a client may have received the grant.
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

    /// Records that the table has ended a lease by itself.
    pub fn ended(&mut self, client: ClientId, key: FileKey, kind: Kind) -> Option<Watched> {
        if kind == Kind::Write {
            if self.late.len() >= LATE_MAX {
                self.late.clear();
            }
            self.late.insert((client, key), ());
        }
        self.settle(client, key, None)
    }

    /// Records a new lease of any kind: later writes of the client are not late.
    pub fn renewed(&mut self, client: ClientId, key: FileKey) {
        self.late.remove(&(client, key));
    }

    /// Whether a client's write comes after the end of its write lease. `held` is the kind of the
    /// lease in the table. The table may have ended the lease without an action yet.
    pub fn is_late(&self, client: ClientId, key: FileKey, held: Option<Kind>) -> bool {
        let had = self.leases.get(&(client, key)).and_then(|l| l.kind);
        let ends = had == Some(Kind::Write) && held != Some(Kind::Write);
        ends || self.late.contains_key(&(client, key))
    }

    /// The file of a lease.
    pub fn file(&self, client: ClientId, key: FileKey) -> Option<(u32, Fh)> {
        self.leases.get(&(client, key)).map(|l| l.file.clone())
    }

    /// Whether the file of a read lease is watched.
    pub fn is_watched(&self, client: ClientId, key: FileKey) -> bool {
        self.leases.get(&(client, key)).is_some_and(|l| l.watched.is_some())
    }

    /// Stores the watch of a lease. Returns the watch that is not needed.
    pub fn watch(&mut self, client: ClientId, key: FileKey, watched: Watched) -> Option<Watched> {
        match self.leases.get_mut(&(client, key)).filter(|l| l.kind.is_some()) {
            Some(lease) => lease.watched.replace(watched),
            None => Some(watched),
        }
    }

    /// Removes the watch of a lease before the client itself changes the file.
    pub fn unwatch(&mut self, client: ClientId, key: FileKey) -> Option<Watched> {
        self.leases.get_mut(&(client, key)).and_then(|l| l.watched.take())
    }

    /// The revision of a file whose change attribute, read after `since`, is `change`. The revision
    /// is a new one if the file was changed without the table.
    pub fn seen(&mut self, table: &mut Table, now: u64, key: FileKey, change: u64, since: Since) -> u64 {
        let revision = table.revision(key);
        // Attributes read before or during a change through the table do not belong to the current
        // revision.
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
            // The same revision means that the table could not assign a number. The next look tries
            // again.
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

    /// Records the revision and change attribute after a change through the table.
    pub fn changed(&mut self, key: FileKey, revision: u64, change: u64) {
        // A concurrent look may have recorded this revision already.
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

/// The numbers that must survive a restart.
pub(crate) struct Numbers {
    /// Directory of the numbers. `None`: the files themselves are lost with the server.
    dir: Option<PathBuf>,
    end: u64,
    epoch: u32,
    /// Longest term of leases that may be out. 0: none.
    term_ms: u32,
    /// Numbers that could not be made durable.
    owed: Option<(u64, u32)>,
}

impl Numbers {
    /// Reads the numbers of the last run.
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
                    "{} is damaged: remove it after two minutes without a connected client",
                    path.display()
                ),
            )),
        }
    }

    /// The initial state of the table.
    pub fn boot(&self) -> Boot {
        Boot { reserved_end: self.end, epoch: self.epoch, outstanding_ms: self.term_ms }
    }

    /// Checks that the numbers can be made durable.
    ///
    /// # Errors
    /// The numbers cannot be written.
    pub fn check(&mut self) -> io::Result<()> {
        self.write(self.end, self.epoch, self.term_ms)
    }

    /// Makes the table's numbers durable. False when that fails; the caller tries again.
    pub fn reserve(&mut self, end: u64, epoch: u32) -> bool {
        // In a new epoch the leases of the last run are over.
        let term_ms = if epoch == self.epoch { self.term_ms } else { 0 };
        let done = self.write(end, epoch, term_ms);
        self.owed = done.is_err().then_some((end, epoch));
        self.told(done)
    }

    /// Makes durable that leases of this term may be out. False when that fails.
    pub fn out(&mut self, term_ms: u32) -> bool {
        if self.term_ms >= term_ms {
            return true;
        }
        let done = self.write(self.end, self.epoch, term_ms);
        self.told(done)
    }

    /// Records that no lease is out, at the end of service.
    pub fn vacant(&mut self) {
        if self.term_ms > 0 {
            let done = self.write(self.end, self.epoch, 0);
            self.told(done);
        }
    }

    fn told(&self, done: io::Result<()>) -> bool {
        if let Err(e) = &done {
            tracing::error!("{NUMBERS_FILE} cannot be written; no file can be leased or written now: {e}");
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
