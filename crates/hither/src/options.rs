//! The `-o` options of a mount: from one string to the settings of the client and the mount point.
//!
//! This module does not mount. [`table`] defines each option once (name, default, help, action).
//! This module splits the string, finds each option in the table and applies its action to
//! [`Wanted`]. [`render`] makes the help text and the table of docs/CONFIGURATION.md from the same
//! definitions. An unknown option is refused with the nearest known name. Two options that exclude
//! each other are refused with both names.

mod apply;
mod render;
mod security;
mod subtrees;
mod table;
#[cfg(test)]
mod tests;

pub use apply::JOURNAL_DIR;
pub use render::help;
#[cfg(test)]
pub use render::markdown;
pub use security::Security;
pub use subtrees::Subtree;
pub use table::{Act, Arg, Def, GROUPS, Group, OPTIONS};

use crate::metrics::endpoint::EndpointAddr;
use hither_cache::data::Fill;
use hither_cache::metadata::INFERRED_MAX;
use hither_cache::policy::Policy;
use hither_nfs::{AttrCache, LookupCache, Recovery, Version};
use hither_rpc::Flavor;
use hither_tools::nearest;
pub use hither_tools::source::Family;
use rustix::mount::MountFlags;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Duration of the attempts of a foreground mount (nfs(5), `retry`).
const RETRY_FOREGROUND: Duration = Duration::from_secs(2 * 60);
/// A time without end for a mount: 100 years.
const FROZEN: Duration = Duration::from_secs(100 * 365 * 86400);
/// Duration of the attempts of a background mount: 10,000 minutes (nfs(5), `retry`).
const RETRY_BACKGROUND: Duration = Duration::from_secs(10_000 * 60);

/// The versions that `vers=` and `minorversion=` allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Versions {
    /// 4.2, then 4.1, then 3.
    Any,
    /// 4.2, then 4.1.
    Any4,
    /// Only this version.
    Only(Version),
}

/// `consistency=`: the promise about other clients' changes. Other options refine it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// An open sees all data that was closed before.
    CloseToOpen,
    /// No data is older than this duration.
    Bounded(Duration),
    /// The export never changes.
    Frozen,
    /// No data is older than the call that returns it, except under a delegation.
    Strict,
}

/// Which cached state is valid without revalidation, and for how long. The variants are the
/// promises of docs/SEMANTICS.md that result from the options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Promise 7: an open revalidates; otherwise attributes are valid for a time.
    CloseToOpen,
    /// `nocto`: attributes are valid for a time, also for opens.
    NoCloseToOpen,
    /// Promise 8b: no data is older than this number of seconds.
    Bounded(u64),
    /// Promise 8c.
    Frozen,
    /// Promise 8d.
    Strict,
    /// Promise 9: `noac`.
    Nothing,
}

/// `cache` and the options that begin with `cache-`.
#[derive(Debug, Clone)]
pub struct Cache {
    /// The directory; `None`: no data is kept on a disk.
    pub dir: Option<PathBuf>,
    /// `cache-size=`.
    pub size_bytes: u64,
    /// `cache-dir-size=`; `None`: no limit.
    pub dir_size_bytes: Option<u64>,
    /// `cache-soft=`.
    pub soft_percent: u64,
    /// `cache-policy=`.
    pub policy: Policy,
    /// `cache-min-free=`.
    pub min_free_bytes: u64,
    /// `cache-min-file=`.
    pub min_file_bytes: u64,
    /// `cache-max-file=`.
    pub max_file_bytes: Option<u64>,
    /// `cache-age=`.
    pub age: Duration,
    /// `fill=`.
    pub fill: Fill,
    /// `cache-read-only`.
    pub read_only: bool,
    /// The first option about a cache. It requires `cache`.
    said: Option<&'static str>,
}

impl Cache {
    fn detail(&mut self, name: &'static str) -> Result<(), String> {
        self.said.get_or_insert(name);
        Ok(())
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            dir: None,
            size_bytes: 10 << 30,
            dir_size_bytes: None,
            soft_percent: 90,
            policy: Policy::default(),
            min_free_bytes: 1 << 30,
            min_file_bytes: 1,
            max_file_bytes: None,
            age: Duration::from_secs(30),
            fill: Fill::Idle,
            read_only: false,
            said: None,
        }
    }
}

/// `socket=` and related options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    /// False with `nosocket`.
    pub offered: bool,
    /// `socket=`; `None`: the default path.
    pub path: Option<PathBuf>,
    /// `socket-mode=`.
    pub mode: u32,
    /// `socket-group=`.
    pub group: Option<String>,
}

impl Default for Socket {
    fn default() -> Self {
        Self { offered: true, path: None, mode: 0o600, group: None }
    }
}

/// A mount's options, checked individually and against each other. The server's name is not yet
/// resolved.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Longest time for the layers above to drop data of a recalled file. No option sets it: for
    /// the kernel it is short, and for clients of a gateway as long as their leases.
    pub withdraw_max: Duration,
    /// Attributes that a program sets on its new file wait for the file's bytes. No option sets it:
    /// clients of a gateway count them as set at the origin.
    pub delay_attributes: bool,
    /// `vers=`.
    pub versions: Versions,
    /// `minorversion=`, until it is joined with `vers=`.
    minor: Option<u32>,
    /// `port=`.
    pub port: Option<u16>,
    /// `mountport=`.
    pub mount_port: Option<u16>,
    /// `proto=`.
    pub family: Option<Family>,
    /// `hard`, `soft`, `softerr`.
    pub recovery: Recovery,
    /// `timeo=`.
    pub timeo: Duration,
    /// `retrans=`.
    pub retrans: u32,
    /// `nconnect=`.
    pub nconnect: usize,
    /// `resvport`.
    pub resvport: bool,
    /// `sec=`: the flavors, the preferred one first.
    pub flavors: Vec<Flavor>,
    /// `xprtsec=` and related options.
    pub security: Security,
    /// `rsize=`.
    pub rsize_bytes: Option<u32>,
    /// `wsize=`.
    pub wsize_bytes: Option<u32>,
    /// `acregmin=` and related options.
    pub attr_cache: AttrCache,
    /// `acnegmax=`. Names that were never looked up have another default.
    absent_max: Option<Duration>,
    /// `noac`.
    noac: bool,
    /// `lookupcache=`.
    pub lookup_cache: LookupCache,
    /// `cto`.
    pub close_to_open: bool,
    /// `sync`.
    pub sync: bool,
    /// `consistency=`.
    consistency: Option<Consistency>,
    /// `subtree=`.
    pub subtrees: Vec<Subtree>,
    /// Options for subtrees with another mode than the mount's.
    parts: Vec<Wanted>,
    /// With subtrees: validity of attributes and names from the options of nfs(5).
    told: Option<(AttrCache, LookupCache)>,
    /// `chain`.
    pub chains: bool,
    /// `chain-max=`.
    pub chain_max: Option<u32>,
    /// `prefetch=small`.
    pub prefetch: bool,
    /// `meta-cache-size=`.
    pub meta_cache_bytes: u64,
    /// `dirty-max=`.
    pub dirty_max_bytes: u64,
    /// `dirty-age=`.
    pub dirty_age: Duration,
    /// `close=lazy`.
    pub lazy_close: bool,
    /// `close=delegated`.
    pub delegated_close: bool,
    /// `writeback=journal`: the parent directory of journals.
    pub journal: Option<PathBuf>,
    /// `journal-dir=`.
    journal_dir: Option<PathBuf>,
    /// `creates=here`.
    pub creates_here: bool,
    /// `exclusive`.
    pub exclusive: bool,
    /// `cache` and its details.
    pub cache: Cache,
    /// `rdirplus`.
    pub readdirplus: bool,
    /// `metrics=`.
    pub metrics: Option<EndpointAddr>,
    /// `socket=` and related options.
    pub socket: Socket,
    /// `acl`.
    pub acl: bool,
    /// `idmap_domain=`.
    pub idmap_domain: Option<String>,
    /// `retry=`.
    retry: Option<Duration>,
    /// `bg`.
    pub background: bool,
    /// Flags of mount(2): `ro`, `nosuid`, ...
    pub flags: MountFlags,
    /// `remount`.
    pub remount: bool,
    /// `sloppy`.
    pub sloppy: bool,
    /// Each given option with an effect, as written, in order; for `hither stat`.
    pub given: Vec<String>,
    /// The given option of each set of exclusive options (`soft` of `hard`, `soft`, ...).
    chosen: BTreeMap<&'static str, &'static str>,
    /// Messages about exclusive options that were given together.
    contradictions: Vec<String>,
    /// Given options of the attribute cache, which contradict `noac`.
    times: Vec<String>,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            withdraw_max: Duration::from_secs(2),
            delay_attributes: true,
            versions: Versions::Any,
            minor: None,
            port: None,
            mount_port: None,
            family: None,
            recovery: Recovery::Hard,
            timeo: Duration::from_secs(60),
            retrans: 2,
            nconnect: 1,
            resvport: true,
            flavors: vec![Flavor::Sys],
            security: Security::default(),
            rsize_bytes: None,
            wsize_bytes: None,
            attr_cache: AttrCache::default(),
            absent_max: None,
            noac: false,
            lookup_cache: LookupCache::All,
            close_to_open: true,
            sync: false,
            consistency: None,
            subtrees: Vec::new(),
            parts: Vec::new(),
            told: None,
            chains: true,
            chain_max: None,
            prefetch: true,
            meta_cache_bytes: 256 << 20,
            dirty_max_bytes: 256 << 20,
            dirty_age: Duration::from_secs(5),
            lazy_close: false,
            delegated_close: false,
            journal: None,
            journal_dir: None,
            creates_here: false,
            exclusive: false,
            cache: Cache::default(),
            readdirplus: true,
            metrics: None,
            socket: Socket::default(),
            acl: true,
            idmap_domain: None,
            retry: None,
            background: false,
            flags: MountFlags::empty(),
            remount: false,
            sloppy: false,
            given: Vec::new(),
            chosen: BTreeMap::new(),
            contradictions: Vec::new(),
            times: Vec::new(),
        }
    }
}

/// Checks options against each other.
type Check = fn(&mut Wanted) -> Result<(), String>;

impl Wanted {
    /// Parses comma-separated lists of options (one per `-o`). The last value of a repeated option
    /// counts, as in mount(8). Two options that exclude each other are refused.
    ///
    /// # Errors
    /// One line that names the wrong option and the remedy.
    pub fn parse(lists: &[String], sloppy: bool) -> Result<Self, String> {
        Self::parse_all(lists, sloppy).map_err(|wrong| wrong.into_iter().next().unwrap_or_default())
    }

    /// Like [`Self::parse`], but returns all faults. Options are compared with each other only if
    /// each of them is valid, because an invalid option could cause false comparisons.
    ///
    /// # Errors
    /// One line for each fault, at least one.
    pub fn parse_all(lists: &[String], sloppy: bool) -> Result<Self, Vec<String>> {
        let words: Vec<&str> = lists.iter().flat_map(|list| split(list)).collect();
        let mut wanted = Self { sloppy: sloppy || words.contains(&"sloppy"), ..Self::default() };
        let mut wrong: Vec<String> = words.into_iter().filter_map(|word| wanted.take(word).err()).collect();
        if wrong.is_empty() {
            wrong = wanted.agree().into_iter().map(|why| wanted.with_source(why)).collect();
        }
        if wrong.is_empty() { Ok(wanted) } else { Err(wrong) }
    }

    /// A message that names an option which only `durability=` has set names that as well.
    fn with_source(&self, why: String) -> String {
        let durability = self.given.iter().rfind(|word| word.starts_with("durability="));
        let is_given = |name: &str| self.given.iter().any(|word| word == name);
        let names = ["close=lazy", "close=delegated", "writeback=journal", "exclusive", "creates=here"];
        match durability {
            Some(word) if names.iter().any(|n| why.contains(&format!("'{n}'")) && !is_given(n)) => {
                format!("{why} ('{word}' sets some of these)")
            }
            _ => why,
        }
    }

    /// Whether the files never change, neither at the server nor through this mount.
    pub fn is_frozen(&self) -> bool {
        let everywhere = self.consistency == Some(Consistency::Frozen) && self.parts.is_empty();
        everywhere && self.flags.contains(MountFlags::RDONLY)
    }

    /// The mode of `consistency=` that results from the options, if any.
    fn own_mode(&self) -> Option<Consistency> {
        let default = (!self.noac && self.close_to_open).then_some(Consistency::CloseToOpen);
        self.consistency.or(default)
    }

    fn noac(&self) -> bool {
        self.noac
    }

    /// Whether the caches answer only under a delegation, and no write is delayed.
    pub fn is_strict(&self) -> bool {
        self.consistency == Some(Consistency::Strict)
    }

    /// Whether delegations are useful.
    pub fn delegations(&self) -> bool {
        !self.noac
    }

    /// Validity of an inferred absence: the directory is known completely and the name was never
    /// looked up.
    pub fn inferred_max(&self) -> Duration {
        match (self.absent_max, self.consistency) {
            (Some(most), _) => most,
            (None, Some(Consistency::Bounded(_) | Consistency::Frozen)) => self.attr_cache.negative_max,
            // No other client creates names.
            (None, _) if self.exclusive => Duration::MAX,
            (None, _) => INFERRED_MAX,
        }
    }

    /// The promise for answers from the caches.
    pub fn promise(&self) -> Promise {
        match self.consistency {
            Some(Consistency::Bounded(most)) => Promise::Bounded(most.as_secs()),
            Some(Consistency::Frozen) => Promise::Frozen,
            Some(Consistency::Strict) => Promise::Strict,
            _ if self.noac => Promise::Nothing,
            _ if self.close_to_open => Promise::CloseToOpen,
            _ => Promise::NoCloseToOpen,
        }
    }

    /// Duration of the attempts to mount while the server is unreachable (`retry=`, `bg`).
    pub fn retry(&self) -> Duration {
        self.retry.unwrap_or(if self.background { RETRY_BACKGROUND } else { RETRY_FOREGROUND })
    }

    /// Applies one option as written.
    fn take(&mut self, word: &str) -> Result<(), String> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        let Some(def) = find(name) else {
            return if self.sloppy { Ok(()) } else { Err(unknown(name)) };
        };
        if let Act::Refuse(instead) = def.act {
            return Err(format!("option '{word}' is not supported: {instead}"));
        }
        let value = match (value, def.arg) {
            (None | Some(""), Arg::Needed(arg)) => {
                return Err(format!("option '{name}' needs a value: {name}={arg}"));
            }
            (Some(_), Arg::None) => {
                return Err(format!("option '{name}' takes no value: write '{name}' alone"));
            }
            (value, _) => value.unwrap_or(""),
        };
        if let Some(set) = def.rivals {
            let name = def.name;
            match self.chosen.insert(set, name) {
                Some(other) if other != name => {
                    let what = format!("options '{other}' and '{name}' contradict each other: keep one");
                    self.contradictions.push(what);
                }
                _ => {}
            }
        }
        if let Act::Set(set) = def.act {
            set(self, value).map_err(|why| format!("option '{word}': {why}"))?;
            self.given.push(word.to_string());
        }
        Ok(())
    }

    /// Checks the options against each other. Returns all faults.
    fn agree(&mut self) -> Vec<String> {
        let mut wrong = std::mem::take(&mut self.contradictions);
        let checks: [Check; 10] = [
            Self::join_versions,
            Self::join_noac,
            Self::join_subtrees,
            Self::join_consistency,
            Self::check_times,
            Self::join_journal,
            Self::check_cache,
            Self::check_flavors,
            Self::check_locks,
            Self::check_security,
        ];
        wrong.extend(checks.into_iter().filter_map(|check| check(self).err()));
        wrong
    }

    /// `noac` sets all times to 0 and implies `sync`.
    fn join_noac(&mut self) -> Result<(), String> {
        if !self.noac {
            return Ok(());
        }
        if let Some(time) = self.times.first() {
            return Err(format!("options 'noac' and '{time}' contradict each other: keep one"));
        }
        self.attr_cache = AttrCache::NONE;
        self.sync = true;
        Ok(())
    }

    fn check_times(&mut self) -> Result<(), String> {
        let a = &self.attr_cache;
        for (min, max, what) in
            [(a.regular_min, a.regular_max, "acreg"), (a.directory_min, a.directory_max, "acdir")]
        {
            if min > max {
                let (min, max) = (min.as_secs(), max.as_secs());
                return Err(format!("{what}min={min} exceeds {what}max={max}: give a larger {what}max"));
            }
        }
        Ok(())
    }

    fn check_cache(&mut self) -> Result<(), String> {
        match (&self.cache.dir, self.cache.said) {
            (None, Some(name)) => Err(format!("option '{name}' concerns a disk cache: give 'cache' as well")),
            _ => Ok(()),
        }
    }

    fn check_flavors(&mut self) -> Result<(), String> {
        let kerberos = self.flavors.iter().find(|flavor| flavor.service().is_some());
        match (self.versions, kerberos) {
            (Versions::Only(Version::Nqnfs), Some(flavor)) => Err(format!(
                "options 'vers=nqnfs' and 'sec={flavor}' contradict each other: NQNFS has no Kerberos"
            )),
            _ => Ok(()),
        }
    }

    fn check_locks(&mut self) -> Result<(), String> {
        if let Versions::Only(version) = self.versions
            && version.is_stateless()
            && self.chosen.get("lock") == Some(&"lock")
        {
            let version = version.name();
            return Err(format!(
                "option 'lock' is not supported with vers={version}, where locks are local to this machine: \
                 use 'nolock', or vers=4.2 for locks at the server"
            ));
        }
        Ok(())
    }

    /// The default directory of the journal is that of the disk cache.
    fn join_journal(&mut self) -> Result<(), String> {
        let Some(journal) = &mut self.journal else {
            let said = [
                (self.creates_here, "creates=here"),
                (self.exclusive, "exclusive"),
                (self.journal_dir.is_some(), "journal-dir"),
            ];
            return match said.iter().find(|(said, _)| *said) {
                Some((_, name)) => {
                    Err(format!("option '{name}' concerns a journal: give 'writeback=journal' as well"))
                }
                None => Ok(()),
            };
        };
        if self.creates_here && !self.exclusive {
            return Err(
                "option 'creates=here' needs an export without other clients: give 'exclusive' as well"
                    .into(),
            );
        }
        if self.sync {
            return Err(
                "options 'writeback=journal' and 'sync' (or 'noac') contradict each other: keep one".into()
            );
        }
        if self.lazy_close {
            return Err("options 'writeback=journal' and 'close=lazy' contradict each other: 'exclusive' makes close \
                        wait for the journal only"
                .into());
        }
        if let Some(dir) = self.journal_dir.as_ref().or(self.cache.dir.as_ref()) {
            journal.clone_from(dir);
        }
        Ok(())
    }

    /// `consistency=` sets several options of nfs(5), so it excludes them.
    fn join_consistency(&mut self) -> Result<(), String> {
        let Some(consistency) = self.consistency else { return Ok(()) };
        let other = self.times.first().map(String::as_str);
        let other = other.or_else(|| self.noac.then_some("noac"));
        let other = other.or_else(|| self.chosen.get("cto").copied());
        if let Some(other) = other {
            return Err(format!("options 'consistency' and '{other}' contradict each other: keep one"));
        }
        if consistency == Consistency::Strict {
            self.check_strict()?;
        }
        self.become_consistent(consistency);
        Ok(())
    }

    /// Sets the options of a mode.
    fn become_consistent(&mut self, consistency: Consistency) {
        let (least, most) = match consistency {
            Consistency::CloseToOpen => return,
            Consistency::Bounded(most) => (most, most),
            Consistency::Frozen => (FROZEN, FROZEN),
            Consistency::Strict => {
                self.attr_cache = AttrCache::NONE;
                self.lookup_cache = LookupCache::None;
                self.prefetch = false;
                return;
            }
        };
        self.close_to_open = false;
        self.attr_cache = AttrCache {
            regular_min: least,
            regular_max: most,
            directory_min: least,
            directory_max: most,
            negative_max: self.absent_max.unwrap_or(most).min(most),
        };
    }

    /// `consistency=strict` caches nothing and delays nothing. It excludes options for lifetimes,
    /// prefetching and delays.
    fn check_strict(&self) -> Result<(), String> {
        let given = |name: &str| {
            let mut words = self.given.iter().map(String::as_str);
            words.find(|word| word.split('=').next() == Some(name))
        };
        let contrary = [
            self.cache.dir.is_some().then_some("cache"),
            self.journal.is_some().then_some("writeback=journal"),
            self.lazy_close.then_some("close=lazy"),
            self.delegated_close.then_some("close=delegated"),
            given("lookupcache").filter(|_| self.lookup_cache != LookupCache::None),
            given("acnegmax"),
            given("prefetch").filter(|_| self.prefetch),
            self.chosen.get("chain").copied().filter(|chain| *chain == "chain"),
        ];
        if let Some(other) = contrary.into_iter().flatten().next() {
            return Err(format!(
                "options 'consistency=strict' and '{other}' contradict each other: keep one"
            ));
        }
        Ok(())
    }

    /// `vers=4,minorversion=1` is `vers=4.1`.
    fn join_versions(&mut self) -> Result<(), String> {
        let Some(minor) = self.minor else { return Ok(()) };
        let wanted = match minor {
            1 => Version::V41,
            2 => Version::V42,
            _ => return Err(apply::version_refused(&format!("4.{minor}"))),
        };
        match self.versions {
            Versions::Any | Versions::Any4 => self.versions = Versions::Only(wanted),
            Versions::Only(version) if version == wanted => {}
            Versions::Only(version) => {
                return Err(format!(
                    "options 'vers={}' and 'minorversion={minor}' contradict each other: keep 'vers'",
                    version.name()
                ));
            }
        }
        Ok(())
    }
}

/// The definition of an option. Names that begin with `x-` or `X-` are comments for other programs.
pub fn find(name: &str) -> Option<&'static Def> {
    let name = if name.starts_with("x-") || name.starts_with("X-") { "x-*" } else { name };
    OPTIONS.iter().find(|def| def.name == name || def.also.contains(&name))
}

/// Splits a list at commas outside double quotes. Empty parts are dropped.
pub(crate) fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    list.split(move |c| {
        quoted ^= c == '"';
        c == ',' && !quoted
    })
    .filter(|word| !word.is_empty())
}

/// The message about an unknown option.
fn unknown(name: &str) -> String {
    let names = OPTIONS.iter().filter(|def| !matches!(def.act, Act::Refuse(_)));
    let names = names.flat_map(|def| std::iter::once(&def.name).chain(def.also));
    match nearest(name, names.copied()) {
        Some(near) => format!("unknown option '{name}', did you mean '{near}'?"),
        None => format!("unknown option '{name}': `hither mount --help` lists the options"),
    }
}
