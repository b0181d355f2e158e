//! The exports of `hither serve` and their clients. They come from a directory with options of the
//! command line, or from the lines of exports(5) files.
//!
//! This module has no protocol. The result is a [`Table`]. Directories that were open before a
//! reload stay open.

use super::hosts;
use super::nested::{self, Mount, Planned};
use super::{FAREWELL, RECALL_MAX};
use crate::cli::ServeArgs;
use crate::exit::Failure;
use crate::gateway::{Branch, Gateway};
use crate::stack;
use hither_localfs::local::{
    CoveredDir, Descriptors, JournalOptions, Local, LocalOptions, Watchers, give_up_journal,
};
use hither_server::access::{Admit, ClientNames, Flavors, Rights, Squash, Transports};
use hither_server::exports::{Entry, Exports, ExportsError, LookUps, Who};
use hither_server::numbers::Numbers;
use hither_server::table::{Covers, Epoch, ExportSpec, Others, Table};
use hither_vfs::model::Model;
use hither_vfs::{Answered, Extra, RequestContext, Vfs};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Most bytes of files in a file system in memory.
const MEMORY_MAX_BYTES: u64 = 8 << 30;
/// Name of the command line in messages about exports.
pub(super) const COMMAND_LINE: &str = "command line";

/// The files of one export.
#[derive(Clone)]
pub(super) struct Files {
    pub vfs: Arc<dyn Vfs>,
    pub extra: Option<Arc<dyn Extra>>,
    pub epoch: Option<Arc<Epoch>>,
    pub others: Others,
    /// The local directory, if the export has one.
    pub local: Option<Arc<Local>>,
    /// The export of an origin, if the files are on another server.
    pub branch: Option<Arc<Branch>>,
    /// The number of the opened mount, if no line of exports(5) names it.
    pub mount: Option<u64>,
}

/// The present exports and their files.
pub struct Served {
    pub(super) args: ServeArgs,
    state_dir: Option<PathBuf>,
    /// The other servers that have the files.
    pub(super) gateway: Option<Gateway>,
    pub(super) open: BTreeMap<PathBuf, Files>,
    /// The exports as last read.
    exports: Exports,
    /// The mounts inside those exports.
    inside: Vec<Mount>,
    /// Client names, for exports that use them.
    pub names: Arc<ClientNames>,
    /// The descriptor limit of all exports together.
    descriptors: Arc<Descriptors>,
    /// The numbers of exports in filehandles.
    pub numbers: Numbers,
    /// The watchers of local changes in all exports.
    watchers: Arc<Watchers>,
    /// Calls that an earlier server process answered, from the journals, by export.
    pub made_before: Vec<(String, Vec<Answered>)>,
    /// Lines for the user: the exports and their options.
    pub lines: Vec<String>,
    /// The path to mount: the only export, or the root above all exports.
    pub mounted: String,
}

impl Served {
    /// Starts without exports.
    ///
    /// # Errors
    /// The state directory cannot be read.
    pub fn new(
        args: &ServeArgs,
        state_dir: Option<PathBuf>,
        gateway: Option<Gateway>,
    ) -> Result<Self, Failure> {
        let numbers = Numbers::open(state_dir.as_deref()).map_err(|e| Failure::system(e.to_string()))?;
        Ok(Self {
            args: args.clone(),
            numbers,
            state_dir,
            gateway,
            open: BTreeMap::new(),
            exports: Exports::default(),
            inside: Vec::new(),
            names: ClientNames::new(Arc::new(hosts::names_of)),
            descriptors: Descriptors::new(descriptors_max()),
            watchers: Arc::default(),
            made_before: Vec::new(),
            lines: Vec::new(),
            mounted: "/".into(),
        })
    }

    /// Reads and opens the exports. Blocks.
    ///
    /// # Errors
    /// A message for the user. The earlier exports stay.
    pub fn load(&mut self) -> Result<Table, Failure> {
        if self.gateway.is_some() {
            return self.load_branches();
        }
        let exports = self.exports()?;
        self.check_journal(&exports)?;
        let table = self.open_all(&exports)?;
        self.exports = exports;
        Ok(table)
    }

    /// Opens the same exports after a mount or an unmount. Returns `None` if the change does not
    /// affect them. Blocks.
    ///
    /// # Errors
    /// Those of [`Served::load`].
    pub fn mounts_changed(&mut self) -> Option<Result<Table, Failure>> {
        if self.gateway.is_some() {
            return None;
        }
        let exports = self.exports.clone();
        (self.mounts_inside(&exports) != self.inside).then(|| self.open_all(&exports))
    }

    fn mounts_inside(&self, exports: &Exports) -> Vec<Mount> {
        if self.args.memory {
            return Vec::new();
        }
        let mut mounts = nested::mounts().unwrap_or_else(|e| {
            tracing::warn!("mounts below exported directories are not seen: {e}");
            Vec::new()
        });
        let dirs: Vec<PathBuf> = exports.entries.iter().map(|entry| self.real_directory(entry)).collect();
        mounts.retain(|mount| dirs.iter().any(|dir| mount.point.starts_with(dir) && mount.point != *dir));
        mounts
    }

    fn open_all(&mut self, exports: &Exports) -> Result<Table, Failure> {
        let mounts = self.mounts_inside(exports);
        let entries = exports.entries.iter().map(|entry| (self.real_directory(entry), entry.clone()));
        let plan = nested::plan(entries.collect(), &mounts);
        let mut made_before = Vec::new();
        let files = plan.iter().map(|planned| self.files_for(planned, &mut made_before));
        let files = files.collect::<Result<Vec<Option<Files>>, Failure>>()?;
        let covered = cover(&plan, &files, &mounts);
        let (mut specs, mut open, mut lines) = (Vec::new(), BTreeMap::new(), Vec::new());
        for (planned, files) in plan.iter().zip(files) {
            let Some(files) = files else { continue };
            let covers = planned.above.zip(covered.get(&planned.dir)).map(|(above, dir)| Covers {
                export: plan[above].name.clone(),
                dir: dir.fh.clone(),
                fileid: dir.fileid,
                hidden: planned.hidden,
            });
            if planned.mount.is_some() && covers.is_none() {
                continue;
            }
            open.insert(planned.dir.clone(), files.clone());
            lines.push(format!("{} {}", planned.dir.display(), describe(&planned.entry)));
            let admit = admit_of(&planned.entry, &self.names);
            specs.push(spec(planned, files, covers, admit));
        }
        let mounted = match exports.entries.as_slice() {
            [_] => specs.first().map_or_else(|| "/".into(), |only| only.path.clone()),
            _ => "/".into(),
        };
        let table = Table::numbered(specs, &mut self.numbers).map_err(|e| Failure::usage(e.to_string()))?;
        (self.open, self.lines, self.mounted, self.made_before) = (open, lines, mounted, made_before);
        self.inside = mounts;
        self.names.want(exports.entries.iter().any(Entry::needs_names));
        Ok(table)
    }

    /// The files of a planned export: the open ones or new ones. `None` for a mount that cannot be
    /// served.
    fn files_for(
        &self,
        planned: &Planned,
        made_before: &mut Vec<(String, Vec<Answered>)>,
    ) -> Result<Option<Files>, Failure> {
        match self.open.get(&planned.dir) {
            Some(files) if files.mount == planned.mount => return Ok(Some(files.clone())),
            _ => {}
        }
        let Some(mount) = planned.mount else {
            let (files, calls) = self.open_files(&self.directory(&planned.entry), &planned.entry)?;
            made_before.push((planned.name.clone(), calls));
            return Ok(Some(files));
        };
        if self.journal().is_some() || !rustix::process::geteuid().is_root() {
            tracing::warn!(
                "{}: clients see an empty directory: crossmnt needs root, and no --journal",
                planned.dir.display()
            );
            return Ok(None);
        }
        match self.open_files(&planned.dir, &planned.entry) {
            Ok((files, _)) => Ok(Some(Files { mount: Some(mount), ..files })),
            Err(e) => {
                tracing::warn!("clients see an empty directory: {}", e.line);
                Ok(None)
            }
        }
    }

    /// Reads the present exports.
    fn exports(&self) -> Result<Exports, Failure> {
        let mut exports = Exports::default();
        if self.args.dir.is_some() || self.args.memory {
            let wrong = |e: ExportsError| Failure::usage(e.to_string());
            exports.add(COMMAND_LINE, self.own_line().as_bytes()).map_err(wrong)?;
        }
        exports.entries.extend(self.listed()?.entries);
        if exports.entries.is_empty() {
            return Err(Failure::usage("nothing to serve: name a directory, or --export or --config"));
        }
        self.args.tls.check(&exports)?;
        self.args.kerberos.check(&exports)?;
        Ok(exports)
    }

    /// Reads the lines of `--export` and `--config`.
    pub(super) fn listed(&self) -> Result<Exports, Failure> {
        let mut exports = Exports::default();
        let wrong = |e: ExportsError| Failure::usage(e.to_string());
        for line in &self.args.export {
            exports.add(COMMAND_LINE, line.as_bytes()).map_err(wrong)?;
        }
        for file in &self.args.config {
            for file in files_of(file)? {
                let text = fs::read(&file).map_err(|e| Failure::usage(format!("{}: {e}", file.display())))?;
                exports.add(&file.display().to_string(), &text).map_err(wrong)?;
            }
        }
        Ok(exports)
    }

    /// The line of exports(5) that is equivalent to DIR and its options.
    pub(super) fn own_line(&self) -> String {
        let near = self.args.listen.iter().all(|a| a.ip().is_loopback());
        // On this machine, users with privileged ports have the superuser's rights anyway.
        let usual = if near { "rw,no_root_squash" } else { "rw,root_squash" };
        let options = std::iter::once(usual).chain(self.args.options.iter().map(String::as_str));
        let options = options.collect::<Vec<_>>().join(",");
        let everybody = ["*".to_string()];
        let clients = if self.args.allow.is_empty() { &everybody[..] } else { &self.args.allow[..] };
        let clients: Vec<String> = clients.iter().map(|c| format!("{c}({options})")).collect();
        format!("/ {}", clients.join(" "))
    }

    /// The directory of an export.
    fn directory(&self, entry: &Entry) -> PathBuf {
        match &self.args.dir {
            Some(dir) if entry.at.file == COMMAND_LINE && entry.path == b"/" => {
                fs::canonicalize(dir).unwrap_or_else(|_| dir.clone())
            }
            _ => PathBuf::from(OsStr::from_bytes(&entry.path)),
        }
    }

    /// The directory of an export without symbolic links, as in the table of mounts.
    fn real_directory(&self, entry: &Entry) -> PathBuf {
        let dir = self.directory(entry);
        fs::canonicalize(&dir).unwrap_or(dir)
    }

    /// Checks that there is one exported directory, and that the journal is outside of it.
    fn check_journal(&self, exports: &Exports) -> Result<(), Failure> {
        let Some(journal) = self.journal() else { return Ok(()) };
        let [entry] = &exports.entries[..] else {
            return Err(Failure::usage(
                "--journal is for one exported directory: serve each with a journal of its own, on ports of their own",
            ));
        };
        let place = journal.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (place, dir) = (fs::canonicalize(place), fs::canonicalize(self.directory(entry)));
        match (place, dir) {
            (Ok(place), Ok(dir)) if place.starts_with(&dir) => Err(Failure::usage(format!(
                "{}: the journal is in the directory that is served, where clients could change it: name a file elsewhere",
                journal.path.display()
            ))),
            _ => Ok(()),
        }
    }

    /// The options of the journal in which stable writes become durable first.
    fn journal(&self) -> Option<JournalOptions> {
        let path = (self.args.journal != Path::new("none")).then(|| self.args.journal.clone())?;
        let (size_bytes, discard) = (self.args.journal_size << 20, self.args.journal_discard);
        Some(JournalOptions { path, size_bytes, discard })
    }

    /// The files of an export, and the calls that an earlier server process answered, from the
    /// journal.
    fn open_files(&self, dir: &Path, entry: &Entry) -> Result<(Files, Vec<Answered>), Failure> {
        if self.args.memory {
            let vfs = Arc::new(Model::new(stack::env(), Duration::ZERO, MEMORY_MAX_BYTES));
            let extra: Option<Arc<dyn Extra>> = Some(vfs.clone());
            let others = Others::Nobody;
            let files = Files { vfs, extra, epoch: None, others, local: None, branch: None, mount: None };
            return Ok((files, Vec::new()));
        }
        if let Some(state_dir) = self.state_dir.as_ref().filter(|_| self.args.journal_discard)
            && self.journal().is_none()
        {
            give_up_journal(state_dir).map_err(|e| Failure::usage(e.to_string()))?;
        }
        let options = LocalOptions {
            state_dir: self.state_dir.clone(),
            journal: self.journal(),
            export_id: hither_server::numbers::number_of(&entry.path),
            fsid: entry.fsid.filter(|n| *n != 0).map(|n| (n, 0)),
            as_this_process: !rustix::process::geteuid().is_root(),
            descriptors: self.descriptors.clone(),
            watchers: self.watchers.clone(),
            ..LocalOptions::default()
        };
        let local = Local::open(dir, options, stack::env()).map_err(|e| Failure::usage(e.to_string()))?;
        let local = Arc::new(local);
        let epoch = local.clone();
        let others = Others::Watched(local.clone());
        let calls = local.answered();
        Ok((
            Files {
                vfs: local.clone(),
                extra: Some(local.clone()),
                epoch: Some(Arc::new(move || epoch.write_epoch())),
                others,
                local: Some(local),
                branch: None,
                mount: None,
            },
            calls,
        ))
    }

    /// The directory with a journal.
    pub fn journaled(&self) -> Option<Arc<Local>> {
        let mut locals = self.open.values().filter_map(|files| files.local.clone());
        locals.find(|local| local.journal_stats().is_some())
    }

    /// Recalls delegations that rest on those of an origin.
    pub async fn recall(&self) {
        if let Some(gateway) = &self.gateway {
            gateway.recall(RECALL_MAX).await;
        }
    }

    /// Writes unstable data to stable storage.
    pub async fn shutdown(&self, cx: &RequestContext) {
        if let Some(gateway) = &self.gateway {
            return gateway.end(FAREWELL).await;
        }
        for (dir, files) in &self.open {
            if let Err(e) = files.vfs.shutdown(cx).await {
                tracing::error!("{}: at the end, not everything could be made stable: {e}", dir.display());
            }
        }
    }
}

/// Most descriptors for files. The rest is for connections, the journal, and calls in progress.
pub fn descriptors_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    limit - (limit / 8).max(512).min(limit / 2)
}

/// Marks directories that other mounts or exports cover. The result is by path on this machine.
fn cover(plan: &[Planned], files: &[Option<Files>], mounts: &[Mount]) -> BTreeMap<PathBuf, CoveredDir> {
    let mut all = BTreeMap::new();
    for (files, covered) in files.iter().zip(nested::covered(plan, mounts)) {
        let Some(local) = files.as_ref().and_then(|files| files.local.as_ref()) else { continue };
        let (points, paths): (Vec<_>, Vec<_>) = covered.into_iter().unzip();
        for (point, found) in points.into_iter().zip(local.cover(&paths)) {
            match found {
                Ok(dir) => drop(all.insert(point, dir)),
                // The directory is inside a mount that is not exported, or the covered object is a
                // file.
                Err(e) => tracing::debug!("{}: {e}", point.display()),
            }
        }
    }
    all
}

/// Decides about the clients of an entry. Unknown hosts are logged.
pub(super) fn admit_of(entry: &Entry, names: &Arc<ClientNames>) -> Arc<Admit> {
    let names = names.clone();
    let (admit, unknown) = entry.admit(&LookUps {
        addresses_of: &hosts::addresses_of,
        hosts_of: &hosts::hosts_of,
        names_of: Arc::new(move |client| names.known(client)),
    });
    for host in unknown {
        tracing::warn!(
            "{}: {host} is no host with an address, and no netgroup: it is not admitted",
            entry.at
        );
    }
    admit
}

pub(super) fn spec(planned: &Planned, files: Files, covers: Option<Covers>, admit: Arc<Admit>) -> ExportSpec {
    let path = String::from_utf8_lossy(&planned.entry.path).into_owned();
    let alias = if path == "/" { planned.dir.display().to_string() } else { path };
    let Files { vfs, extra, epoch, others, .. } = files;
    ExportSpec { path: planned.name.clone(), aliases: vec![alias], vfs, extra, admit, epoch, others, covers }
}

/// A file, or the files `*.exports` of a directory, as in exports(5).
pub fn files_of(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let failed = |e: std::io::Error| Failure::usage(format!("{}: {e}", path.display()));
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let hidden = file.file_name().is_some_and(|n| n.as_bytes().starts_with(b"."));
        if !hidden && file.extension() == Some(OsStr::new("exports")) {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// The rights of clients as text.
pub(super) fn describe(entry: &Entry) -> String {
    let words = |r: &Rights| {
        let access = if r.read_only { "ro" } else { "rw" };
        let squash = match r.squash {
            Squash::None => "no_root_squash",
            Squash::Root => "root_squash",
            Squash::All => "all_squash",
        };
        let port = if r.secure { "secure" } else { "insecure" };
        let transports = match r.transports {
            Transports::ALL => String::new(),
            some => format!(",xprtsec={some}"),
        };
        let flavors = match &r.flavors {
            usual if *usual == Flavors::default() => String::new(),
            some => format!(",sec={some}"),
        };
        format!("{access},{squash},{port}{flavors}{transports}")
    };
    let who = |w: &Who| match w {
        Who::Everybody => "*".to_string(),
        Who::Pattern(text) | Who::Host(text) => text.clone(),
        Who::Netgroup(name) => format!("@{name}"),
        Who::Network(n) => format!("{}/{}", n.addr, n.bits),
        Who::Address(addr) => addr.to_string(),
        Who::Subject(name) => format!("subject:{name}"),
    };
    let clients: Vec<String> =
        entry.clients.iter().map(|c| format!("{}({})", who(&c.who), words(&c.rights))).collect();
    clients.join(" ")
}

/// The groups of a user, for `manage-gids`.
pub fn groups_of(uid: u32) -> Option<Vec<u32>> {
    let user = nix::unistd::User::from_uid(uid.into()).ok()??;
    let name = std::ffi::CString::new(user.name).ok()?;
    let mut groups = vec![user.gid.as_raw()];
    let all = nix::unistd::getgrouplist(&name, user.gid).ok()?;
    groups.extend(all.into_iter().map(|g| g.as_raw()).filter(|g| *g != user.gid.as_raw()));
    Some(groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn served(args: &[&str]) -> Served {
        let Command::Serve(args) = Cli::parse_from([&["hither", "serve"], args].concat()).command else {
            panic!("it is serve")
        };
        Served::new(&args, None, None).unwrap()
    }

    fn described(args: &[&str]) -> String {
        let exports = served(args).exports().unwrap();
        exports.entries.iter().map(describe).collect::<Vec<_>>().join("; ")
    }

    /// The default rights depend on the listening address: no squashing on loopback only.
    #[test]
    fn default_rights_depend_on_address() {
        assert_eq!(described(&["/srv"]), "*(rw,no_root_squash,secure)");
        assert_eq!(described(&["/srv", "-l", "192.0.2.1:2049"]), "*(rw,root_squash,secure)");
        assert_eq!(described(&["/srv", "-o", "ro,insecure"]), "*(ro,no_root_squash,insecure)");
        let tls = "*(rw,no_root_squash,secure,xprtsec=none:tls)";
        assert_eq!(described(&["/srv", "-o", "xprtsec=tls:none"]), tls);
        let two = ["/srv", "--allow", "192.0.2.0/24", "--allow", "2001:db8::1"];
        assert_eq!(
            described(&two),
            "192.0.2.0/24(rw,no_root_squash,secure) 2001:db8::1(rw,no_root_squash,secure)"
        );
    }

    /// An invalid option or a missing file is refused by name.
    #[test]
    fn invalid_export_options_are_named() {
        for (args, word) in
            [(&["/srv", "-o", "rot"][..], "rot"), (&["--config", "/does/not/exist"], "/does/not/exist")]
        {
            let line = served(args).exports().unwrap_err().line;
            assert!(line.contains(word), "{line}");
        }
    }

    /// A journal is refused with several exports, and inside the exported directory.
    #[test]
    fn journal_serves_one_outside_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (at, inside) = (dir.path().to_str().unwrap(), dir.path().join("journal"));
        let wrong = |args: &[&str]| {
            let served = served(args);
            served.check_journal(&served.exports().unwrap()).map_err(|e| e.line)
        };
        let line = wrong(&[at, "--journal", inside.to_str().unwrap()]).unwrap_err();
        assert!(line.contains("in the directory that is served"), "{line}");
        let two = ["--export", "/a *(rw)", "--export", "/b *(rw)", "--journal", "/var/tmp/j"];
        assert!(wrong(&two).unwrap_err().contains("one exported directory"));
        assert_eq!(wrong(&[at, "--journal", "/no-such-place/j"]), Ok(()));
        assert_eq!(wrong(&[at]), Ok(()));
    }

    /// A reload keeps the entries of unchanged exports.
    #[test]
    fn reload_keeps_unchanged_exports() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.exports");
        let write = |text: &str| fs::write(&file, text).unwrap();
        write("/one *(rw)\n/two *(ro)\n");
        let mut served = served(&["--config", dir.path().to_str().unwrap()]);
        // Only root can open directories, so the test uses files in memory.
        served.args.memory = true;
        served.args.config = vec![dir.path().to_path_buf()];
        assert!(served.load().is_err(), "/ and what is inside it");
        served.args.memory = false;
        let before = served.exports().unwrap();
        write("/one *(rw)\n");
        assert_eq!(served.exports().unwrap().entries[..], before.entries[..1]);
    }
}
