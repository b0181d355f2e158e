//! Every option of a mount that takes a value has its effect on a real mount. [`CHECKS`] has an
//! entry for each option. `cargo xtask tidy` and [`every_valued_option_has_a_check`] refuse an
//! option without an entry.
//!
//! The checks need root and nfs-ganesha:
//! `cargo test -p hither --test options -- --include-ignored`. `HITHER_OPTION` selects one option.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod ages;
#[path = "../common/mod.rs"]
mod common;
mod disk;
mod reach;
mod security;
mod writing;

use common::serve::Serve;
use common::{Said, hither, is_mounted, own_files};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Groups of checks that share a server and run side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    /// The check works with any server.
    Plain,
    /// The server grants delegations.
    Delegating,
    /// The check stops the server, so the checks of this group run one after the other.
    Silent,
    /// The check puts stunnel before the server, on one port.
    Tls,
    /// The check has its own server.
    Alone,
}

use Group::{Alone, Delegating, Plain, Silent, Tls};

/// An option, its group, and a check of its effect.
type Check = (&'static str, Group, fn(&Bench<'_>));

const CHECKS: &[Check] = &[
    ("vers", Plain, reach::vers),
    ("minorversion", Plain, reach::minorversion),
    ("proto", Plain, reach::proto),
    ("port", Plain, reach::port),
    ("mountport", Plain, reach::mountport),
    ("nconnect", Plain, reach::nconnect),
    ("timeo", Silent, reach::timeo),
    ("retrans", Silent, reach::retrans),
    ("rsize", Plain, reach::rsize),
    ("wsize", Plain, reach::wsize),
    ("acregmin", Plain, ages::acregmin),
    ("acregmax", Plain, ages::acregmax),
    ("acdirmin", Plain, ages::acdirmin),
    ("acdirmax", Plain, ages::acdirmax),
    ("actimeo", Plain, ages::actimeo),
    ("lookupcache", Plain, ages::lookupcache),
    ("rdirplus", Plain, ages::rdirplus),
    ("acnegmax", Plain, ages::acnegmax),
    ("consistency", Plain, ages::consistency),
    ("subtree", Plain, ages::subtree),
    ("meta-cache-size", Plain, ages::meta_cache_size),
    ("chain-max", Plain, ages::chain_max),
    ("prefetch", Plain, ages::prefetch),
    ("dirty-max", Silent, writing::dirty_max),
    ("dirty-age", Plain, writing::dirty_age),
    ("durability", Delegating, writing::durability),
    ("close", Delegating, writing::close),
    ("writeback", Plain, writing::writeback),
    ("creates", Plain, writing::creates),
    ("journal-dir", Plain, writing::journal_dir),
    ("cache", Plain, disk::cache),
    ("fsc", Plain, disk::fsc),
    ("cache-size", Plain, disk::cache_size),
    ("cache-dir-size", Plain, disk::cache_dir_size),
    ("cache-soft", Plain, disk::cache_soft),
    ("cache-policy", Plain, disk::cache_policy),
    ("cache-min-free", Plain, disk::cache_min_free),
    ("cache-min-file", Plain, disk::cache_min_file),
    ("cache-max-file", Plain, disk::cache_max_file),
    ("cache-age", Plain, disk::cache_age),
    ("fill", Plain, disk::fill),
    ("sec", Plain, reach::sec),
    ("idmap_domain", Alone, reach::idmap_domain),
    ("retry", Plain, reach::retry),
    ("metrics", Plain, reach::metrics),
    ("socket", Plain, reach::socket),
    ("socket-mode", Plain, reach::socket_mode),
    ("socket-group", Plain, reach::socket_group),
    ("mountproto", Plain, reach::mountproto),
    ("mountvers", Plain, reach::mountvers),
    ("max_connect", Plain, reach::max_connect),
    ("xprtsec", Tls, security::xprtsec),
    ("tls-ca", Tls, security::tls_ca),
    ("tls-cert", Tls, security::tls_cert),
    // The key of another certificate is part of the same check.
    ("tls-key", Tls, security::tls_cert),
    ("tls-server-name", Tls, security::tls_server_name),
    ("tls-crl", Tls, security::tls_crl),
    ("local_lock", Plain, reach::local_lock),
];

/// The table of options and the checks name the same options. The help text comes from the table:
/// `  name=VALUE` or `  name[=VALUE]` begins an entry. Options without effect are not in the help.
/// `cargo xtask tidy` checks those.
#[test]
fn every_valued_option_has_a_check() {
    let help = hither(&["mount", "--help"]).ok().out;
    let (_, list) = help.split_once("Options of -o").unwrap();
    let entry = |line: &str| {
        let words = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' '))?.to_string();
        let (name, _) = words.split_once('=')?;
        let name = name.trim_end_matches('[');
        (!name.contains([' ', ','])).then(|| name.to_string())
    };
    let options: BTreeSet<String> = list.lines().filter_map(entry).collect();
    let checked: BTreeSet<String> = CHECKS.iter().map(|check| check.0.to_string()).collect();
    assert!(options.len() > 40, "{options:?}");
    let without: Vec<_> = options.difference(&checked).collect();
    assert!(without.is_empty(), "options without a check of their effect on a real mount: {without:?}");
    let gone: Vec<_> = checked.iter().filter(|name| !list.contains(name.as_str())).collect();
    assert!(gone.is_empty(), "checks of options that are not in the table: {gone:?}");
}

#[test]
#[ignore = "needs root"]
fn plain_options_take_effect() {
    play(Plain, || started(Serve::of_directory().with(&["--nqnfs"])), 5);
}

#[test]
#[ignore = "needs root"]
fn delegation_options_take_effect() {
    play(Delegating, || started(Serve::of_directory().with(&["--max-delegations", "1000"])), 1);
}

#[test]
#[ignore = "needs root"]
fn silent_server_options_take_effect() {
    play(Silent, || started(Serve::of_directory()), 1);
}

#[test]
#[ignore = "needs root and stunnel"]
fn tls_options_take_effect() {
    // stunnel has no privileged source port.
    play(Tls, || started(Serve::of_directory().with(&["-o", "insecure"])), 1);
}

#[test]
#[ignore = "needs root and nfs-ganesha"]
fn other_server_options_take_effect() {
    play(Alone, Serve::prepare, 1);
}

fn started(mut server: Serve) -> Serve {
    server.serve();
    server
}

/// Runs the checks of a group.
fn play(group: Group, server: impl Fn() -> Serve, side_by_side: usize) {
    let only = std::env::var("HITHER_OPTION").ok();
    let wanted = |check: &&Check| check.1 == group && only.as_ref().is_none_or(|only| only == check.0);
    let checks: Vec<&Check> = CHECKS.iter().filter(wanted).collect();
    if checks.is_empty() {
        return;
    }
    let server = server();
    // This test has private default directories for caches and journals.
    for dir in ["/var/cache", "/var/lib"].into_iter().filter(|_| group == Plain) {
        let words = ["-t", "tmpfs", "-o", "mode=755", "hither-tests", dir];
        common::run(std::process::Command::new("mount").args(words)).ok();
    }
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..side_by_side {
            scope.spawn(|| {
                own_files();
                while let Some(&&(name, _, check)) = checks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (bench, began) = (Bench::new(&server, name), Instant::now());
                    let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&bench)));
                    println!("{name}: {:.1} s", began.elapsed().as_secs_f64());
                    if played.is_err() {
                        failed.lock().unwrap().push(name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "these have not the effect that they should have: {failed:?}");
}

/// The tools of a check: a server, and the check's own directory there.
struct Bench<'a> {
    server: &'a Serve,
    name: &'static str,
}

impl<'a> Bench<'a> {
    fn new(server: &'a Serve, name: &'static str) -> Self {
        let bench = Self { server, name };
        fs::create_dir_all(bench.there("")).unwrap();
        bench
    }

    /// Path of a file of the check's directory, at the server.
    fn there(&self, file: &str) -> PathBuf {
        self.server.export(self.name).join(file)
    }

    /// Writes a file at the server.
    fn put(&self, file: &str, data: impl AsRef<[u8]>) {
        fs::write(self.there(file), data).unwrap();
    }

    /// A path on the local disk.
    fn near(&self, what: &str) -> PathBuf {
        self.server.dir.path().join(format!("{}-{what}", self.name))
    }

    /// Mounts with these options.
    #[track_caller]
    fn mount(&self, options: &str) -> Mount {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let mnt = self.server.mnt(&format!("mnt-{}-{number}", self.name));
        self.server.mount(options, &mnt).ok();
        Mount { mnt, dir: self.name }
    }

    /// Tries to mount with these options.
    fn attempt(&self, options: &str) -> Said {
        self.server.mount(options, &self.server.mnt(&format!("mnt-{}-attempt", self.name)))
    }

    /// Asserts that a mount with these options is refused, in a line that contains these words.
    #[track_caller]
    fn refuses(&self, options: &str, words: &str) {
        let said = self.attempt(options);
        assert!(said.code != 0 && said.err.contains(words), "{options}: {said:?}");
    }
}

/// A mount, until it is dropped.
struct Mount {
    mnt: PathBuf,
    dir: &'static str,
}

impl Mount {
    /// Path of a file of the check's directory, in the mount.
    fn at(&self, file: &str) -> PathBuf {
        self.mnt.join(self.dir).join(file)
    }

    fn report(&self) -> Value {
        let said = hither(&["stat", "--json", self.shown()]).ok();
        serde_json::from_str(&said.out).unwrap()
    }

    fn shown(&self) -> &str {
        self.mnt.to_str().unwrap()
    }

    /// Number of messages of these kinds since the mount.
    fn calls(&self, operations: &[&str]) -> u64 {
        let report = self.report();
        let all = report["operations"].as_array().unwrap().iter();
        let of = all.filter(|op| operations.contains(&op["name"].as_str().unwrap()));
        of.map(|op| op["calls"].as_u64().unwrap()).sum()
    }

    /// A figure of a layer.
    fn figure(&self, layer: &str, name: &str) -> u64 {
        self.report()["layers"][layer][name].as_u64().unwrap()
    }

    fn len(&self, file: &str) -> u64 {
        fs::metadata(self.at(file)).unwrap().len()
    }

    fn has(&self, file: &str) -> bool {
        fs::metadata(self.at(file)).is_ok()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = std::process::Command::new("umount").arg("-l").arg(&self.mnt).status();
        } else if is_mounted(&self.mnt) {
            hither(&["umount", self.shown()]).ok();
        }
    }
}

/// Names in a directory.
fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    entries.collect()
}
