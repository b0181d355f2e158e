//! Finds the exports of an origin: the list of its mountd (`showmount -e`), or else the file
//! systems below the root of an NFSv4 server.
//!
//! The root of an NFSv4 server and the directories that lead to its exports are a file system of
//! their own (RFC 8881 section 7.3). Another fsid below them is an export.

use super::origin::{Live, Origin, RootAt};
use crate::daemon::{self, Missed};
use crate::mount::Job;
use crate::options::Versions;
use crate::source::{NoAddress, Source};
use crate::stack;
use hither_nfs::Version;
use hither_vfs::{Cred, Error, Fh, FileKind, Name, RequestContext, Result, Vfs};
use std::net::SocketAddr;
use std::sync::Arc;

/// Most directories above the exports of an NFSv4 server that are listed.
const DIRECTORIES_MAX: usize = 1024;
/// Most exports of an origin.
const EXPORTS_MAX: usize = 65_536;
/// Bytes of a page of a listing.
const PAGE_BYTES: u32 = 64 << 10;

/// An export of an origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Path at the origin.
    pub path: String,
    pub at: RootAt,
}

/// Connects if needed, and looks for the exports that `includes` selects.
///
/// # Errors
/// The reason as one line.
pub async fn exports(
    origin: &Origin,
    includes: &(impl Fn(&str) -> bool + Sync),
) -> std::result::Result<Vec<Found>, String> {
    let listed = listed(&origin.job).await;
    let live = match origin.live() {
        Some(live) => live,
        None => connect(origin, listed.as_deref().unwrap_or_default(), includes).await?,
    };
    let mut paths = match listed {
        Ok(paths) => paths,
        Err(line) if live.client.is_stateless() => return Err(line),
        Err(_) => below_root(&live).await.map_err(|e| format!("the root of the server: {e}"))?,
    };
    paths.retain(|path| includes(path));
    paths.sort();
    paths.dedup();
    paths.truncate(EXPORTS_MAX);
    let is_stateless = live.client.is_stateless();
    let root_at = |path: &str| {
        if is_stateless {
            Some(RootAt::Exported(path.to_owned()))
        } else {
            Name::of_path(path).ok().map(RootAt::Names)
        }
    };
    Ok(paths.into_iter().filter_map(|path| Some(Found { at: root_at(&path)?, path })).collect())
}

/// Connects to the root of an NFSv4 server, or to an export of an NFSv3 server.
async fn connect(
    origin: &Origin,
    listed: &[String],
    includes: &impl Fn(&str) -> bool,
) -> std::result::Result<Arc<Live>, String> {
    let line = |missed| match missed {
        Missed::Never(failure) | Missed::Now(failure) => failure.line,
    };
    let root = at(&origin.job, "/");
    let versions = origin.job.wanted.versions;
    let is_third = matches!(versions, Versions::Only(version) if version.is_stateless());
    if !is_third {
        match daemon::attempt(&root).await {
            Ok(client) => return Ok(origin.set_live(client)),
            Err(Missed::Now(failure)) => return Err(failure.line),
            Err(missed) if versions != Versions::Any => return Err(line(missed)),
            Err(Missed::Never(_)) => {}
        }
    }
    let Some(first) = listed.iter().find(|path| includes(path)) else {
        return Err("no export matches".into());
    };
    let mut job = at(&origin.job, first);
    job.wanted.versions = Versions::Only(Version::V3);
    Ok(origin.set_live(daemon::attempt(&job).await.map_err(line)?))
}

/// The same mount of another path.
fn at(job: &Job, path: &str) -> Job {
    Job { source: Source { host: job.source.host.clone(), path: path.to_owned() }, ..job.clone() }
}

async fn addresses(job: &Job) -> std::result::Result<Vec<SocketAddr>, String> {
    let (source, family) = (job.source.clone(), job.wanted.family);
    match tokio::task::spawn_blocking(move || source.resolve(family)).await {
        Ok(Ok(addrs)) => Ok(addrs),
        Ok(Err(NoAddress::Never(line) | NoAddress::Now(line))) => Err(line),
        Err(e) => Err(e.to_string()),
    }
}

/// The list of the origin's mountd.
async fn listed(job: &Job) -> std::result::Result<Vec<String>, String> {
    let options = stack::client_options(&at(job, "/"), addresses(job).await?)?;
    hither_nfs::exports(&options).await.map_err(|e| e.to_string())
}

/// The root filehandle of an export of an NFSv3 server.
///
/// # Errors
/// `EACCES` if mountd refuses, otherwise `EIO`.
pub async fn mounted_root(job: &Job, path: &str) -> Result<Fh> {
    let failed = |line: String| Error::because(libc::EIO, line);
    let options =
        stack::client_options(&at(job, path), addresses(job).await.map_err(failed)?).map_err(failed)?;
    let refused = |e: hither_nfs::MountError| {
        let errno = if e.is_transient() { libc::EAGAIN } else { libc::EACCES };
        Error::because(errno, e.to_string())
    };
    hither_nfs::exported_root(&options).await.map_err(refused)
}

/// The exports below the root of an NFSv4 server.
async fn below_root(live: &Live) -> Result<Vec<String>> {
    let cx = RequestContext::new(Arc::new(Cred::root()));
    let root = live.files.root(&cx).await?;
    let above = root.attrs.attr.fsid;
    let (mut exports, mut dirs) = (Vec::new(), vec![(String::new(), root.fh)]);
    let mut listed = 0;
    while let Some((path, dir)) = dirs.pop() {
        listed += 1;
        if listed > DIRECTORIES_MAX || exports.len() > EXPORTS_MAX {
            tracing::warn!(
                "the root of the server has more directories than {DIRECTORIES_MAX}: name its exports"
            );
            break;
        }
        for (name, fh, fsid) in directories(&*live.files, &cx, &dir).await? {
            let path = format!("{path}/{name}");
            if fsid == above { dirs.push((path, fh)) } else { exports.push(path) }
        }
    }
    Ok(exports)
}

/// The directories in a directory: name, handle and fsid.
async fn directories(
    files: &dyn Vfs,
    cx: &RequestContext,
    dir: &Fh,
) -> Result<Vec<(String, Fh, (u64, u64))>> {
    let (mut found, mut cookie, mut verifier) = (Vec::new(), 0, [0; 8]);
    loop {
        let page = files.readdir(cx, dir, cookie, verifier, PAGE_BYTES, true).await?;
        verifier = page.verifier;
        for entry in &page.entries {
            cookie = entry.cookie;
            let Ok(name) = std::str::from_utf8(entry.name.as_bytes()) else { continue };
            let node = match &entry.node {
                Some(node) => node.clone(),
                None => {
                    let at = hither_vfs::PathRef::name(dir, &entry.name);
                    let walked = files.walk(cx, at, hither_vfs::WalkRequest::default()).await?;
                    let Some(node) = walked.steps.into_iter().next() else { continue };
                    node
                }
            };
            if node.attrs.attr.kind == FileKind::Directory {
                found.push((name.to_owned(), node.fh, node.attrs.attr.fsid));
            }
        }
        if page.eof || page.entries.is_empty() {
            return Ok(found);
        }
    }
}
