//! The cached state of a path, collected from the layers: names, attributes, and bytes in memory
//! and on disk. It also has the last calls to the server.

use super::parts::Parts;
use crate::options::{Promise, Subtree, Wanted};
use crate::top::Since;
use crate::why::{Asked, Cost, Explained, PastCall};
use hither_cache::data::{DataCache, DataCacheRanges};
use hither_cache::metadata::KnownObject;
use hither_fuse::{Mounted, RecentCall, RecentCalls};
use hither_vfs::{Fh, Name, Question, Why};
use std::time::Duration;

/// Most calls to show, newest first.
const CALLS_MAX: usize = 100;

/// The layers to examine.
pub struct Layers<'a> {
    pub mounted: Option<&'a Mounted>,
    pub root: &'a Fh,
    pub parts: &'a Parts,
    pub disk: Option<&'a DataCache>,
    pub wanted: &'a Wanted,
}

impl Layers<'_> {
    /// Explains a path below the mount point.
    ///
    /// # Errors
    /// The path has invalid names: a message for the user.
    pub async fn explain(&self, path: &str) -> Result<Explained, String> {
        let names = Name::of_path(path).map_err(|e| format!("'{path}': {e}"))?;
        let objects = self.parts.explain(self.root, &names);
        let whole = objects.len() == names.len() + 1;
        let last = objects.last().filter(|_| whole);
        let fh = last.and_then(|object| object.fh.clone());
        // A walk is recorded at the name with which the kernel started. That name may be in a
        // directory above.
        let named =
            objects.iter().zip(&names).filter_map(|(dir, name)| Some((dir.fh.clone()?, name.clone())));
        let named: Vec<_> = named.collect();
        let calls = self.mounted.map_or_else(Vec::new, |mounted| mounted.recent(fh.as_ref(), &named));
        let disk = match (self.disk, &fh) {
            (Some(disk), Some(fh)) => disk.kept(&self.parts.below(fh)).await,
            _ => None,
        };
        let (rule, part) = self.wanted.at(&names);
        let costs = costs(&objects, whole, disk.as_ref(), part.promise());
        Ok(Explained {
            promise: promise(part.promise(), rule, last),
            costs,
            calls: calls.iter().take(CALLS_MAX).map(past).collect(),
            objects: serde_json::to_value(&objects).map_err(|e| e.to_string())?,
            disk: serde_json::to_value(&disk).map_err(|e| e.to_string())?,
        })
    }
}

/// The calls to the server since `from`, with their paths.
pub fn since(mounted: &Mounted, from: u64) -> Since {
    let RecentCalls { next, lost, calls } = mounted.calls_since(from);
    let told = |(path, call): &(Option<Vec<Name>>, RecentCall)| {
        let shown = |path: &Vec<Name>| {
            let names = path.iter().map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned());
            format!("/{}", names.collect::<Vec<_>>().join("/"))
        };
        PastCall { path: path.as_ref().map(shown), ..past(call) }
    };
    Since { next, lost, calls: calls.iter().map(told).collect() }
}

/// The promise for the cached state, as text.
fn promise(promise: Promise, rule: Option<&Subtree>, object: Option<&KnownObject>) -> String {
    let attributes = object.and_then(|object| object.attributes);
    if attributes.is_some_and(|known| known.left_ms.is_none()) {
        return "delegation: it does not change until the server recalls it; no call asks".into();
    }
    let words: String = match promise {
        Promise::CloseToOpen => "close-to-open: an open asks the server whether it changed; other calls rely on cached attributes (ac* of nfs(5))".into(),
        Promise::NoCloseToOpen => "nocto: all calls rely on cached attributes (ac* of nfs(5)), opens do not ask".into(),
        Promise::Bounded(seconds) => format!("consistency=bounded={seconds}: no data is older than {seconds} s, opens do not ask"),
        Promise::Frozen => "consistency=frozen: the export does not change, nothing is asked twice".into(),
        Promise::Strict => "consistency=strict: every call asks unless a delegation covers the file".into(),
        Promise::Nothing => "noac: nothing is cached, every call asks".into(),
    };
    match rule {
        Some(rule) => format!("{words} ({rule})"),
        None => words,
    }
}

/// The present cost of stat, open and read.
fn costs(
    objects: &[KnownObject],
    whole: bool,
    disk: Option<&DataCacheRanges>,
    promise: Promise,
) -> Vec<Cost> {
    let Some(last) = objects.last() else { return Vec::new() };
    let cost = |call: &str, asks: bool, why: String| Cost { call: call.into(), asks, why };
    let (missing, left) = on_the_way(objects, whole);
    let held = || format!("the cached state holds {left}");
    let mut out = vec![match &missing {
        Some(why) => cost("stat", true, why.clone()),
        None => cost("stat", false, held()),
    }];
    if !whole || last.kind != Some("regular file") {
        return out;
    }
    let leased = last.attributes.is_some_and(|known| known.left_ms.is_none());
    out.push(match (leased, promise, &missing) {
        (true, ..) => cost("open", false, "under a delegation no open asks".into()),
        (_, Promise::CloseToOpen, _) => {
            cost("open", true, "close-to-open: the server tells whether it changed".into())
        }
        (_, _, Some(why)) => cost("open", true, why.clone()),
        (_, _, None) => cost("open", false, held()),
    });
    let same = |disk: &&DataCacheRanges| {
        disk.entry.change == last.change && disk.entry.size_bytes == last.size_bytes
    };
    let on_disk = disk.filter(same).map_or(0, |disk| disk.entry.cached_bytes);
    let (asks, why) = match last.size_bytes {
        0 => (false, "it is empty".into()),
        _ if last.contents => (false, "all bytes are in memory".into()),
        size if on_disk >= size => (false, "all bytes are on the local disk".into()),
        size if on_disk > 0 => (true, format!("{on_disk} of {size} bytes are on the local disk")),
        _ => (true, "the daemon caches no bytes of it; the kernel reads those in its page cache".into()),
    };
    out.push(cost("read", asks, why));
    out
}

/// The first cached entry on a path that is not valid, and how long the valid ones remain valid.
fn on_the_way(objects: &[KnownObject], whole: bool) -> (Option<String>, String) {
    let (mut missing, mut least) = (None, None::<u64>);
    for object in objects {
        let (root, of) = (object.name.is_empty(), format!("'{}'", object.name));
        let of = if root { "the root directory" } else { &of };
        let name = (!root).then_some((format!("the name {of}"), object.binding));
        let attributes = (!object.absent).then_some((format!("the attributes of {of}"), object.attributes));
        for (what, known) in name.into_iter().chain(attributes) {
            let why = match known {
                None => format!("{what}: not cached"),
                Some(known) if known.holds() => {
                    least = known.left_ms.map_or(least, |ms| Some(least.map_or(ms, |l| l.min(ms))));
                    continue;
                }
                Some(known) => match known.asked_ms_ago {
                    Some(ms) => format!("{what}: expired, asked {} ago", seconds(ms)),
                    None => format!("{what}: invalidated by this client's own change"),
                },
            };
            missing.get_or_insert(why);
        }
    }
    if !whole && !objects.last().is_some_and(|last| last.absent) {
        missing.get_or_insert("the rest of the path: not cached".into());
    }
    let left =
        least.map_or_else(|| "until the server recalls it".into(), |ms| format!("for {} more", seconds(ms)));
    (missing, left)
}

fn seconds(ms: u64) -> String {
    hither_tools::units::duration(ms * 1000)
}

fn past(call: &RecentCall) -> PastCall {
    PastCall {
        ago_ms: millis(call.ago),
        request: call.op.to_string(),
        name: call.name.as_ref().map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned()),
        path: None,
        pid: call.process.0,
        program: call.process.1.to_string(),
        uid: call.uid,
        took_us: micros(call.took),
        errno: call.errno,
        asked: call.questions.iter().map(asked).collect(),
        more: call.more,
    }
}

fn asked(question: &Question) -> Asked {
    Asked { operation: question.op.to_string(), took_us: micros(question.took), why: reason(question) }
}

/// Why a request was needed.
fn reason(question: &Question) -> String {
    let ms = |ago: Duration| seconds(millis(ago));
    match question.why {
        Why::Unknown => "it was not cached".into(),
        Why::Expired(ago) => {
            format!("the cached state was {} old and had expired", ms(ago))
        }
        Why::Fresh(ago) => {
            format!("close-to-open: an open needs a fresh answer; the cached state was {} old", ms(ago))
        }
        Why::Changed => "this client's own change had invalidated it".into(),
        Why::Rights => "the rights of this user were not cached".into(),
        Why::Contents => "the bytes were not cached".into(),
        Why::Ahead => "to prefetch files that are likely to be opened next".into(),
        Why::Unsaid => of_itself(question.op).into(),
    }
}

/// The default reason of a request by its operation.
fn of_itself(op: &str) -> &'static str {
    match op {
        "READ" => "the bytes were not cached",
        "WRITE" | "COMMIT" => "written bytes had to be at the server",
        "OPEN" => "the server keeps track of this open",
        "CLOSE" | "OPEN_DOWNGRADE" => "the server kept track of the open",
        "LOOKUP" | "LOOKUP_ROOT" => "the name was not cached",
        "GETATTR" => "the attributes were not cached",
        "ACCESS" => "the rights of this user were not cached",
        "READLINK" => "the target was not cached",
        "READDIR" | "READDIRPLUS" => "the listing was not cached",
        "STATFS" | "FSSTAT" | "FSINFO" | "PATHCONF" => "free space is not cached",
        "GETXATTR" | "LISTXATTRS" | "GETACL" => "extended attributes are not cached",
        "LOCK" | "LOCKT" | "LOCKU" => "the server decides locks",
        "DELEGRETURN" => "a delegation was returned",
        "VACATED" => "a lease was given up",
        "GETLEASE" => "a lease was about to expire",
        _ => "it changes something at the server",
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}
