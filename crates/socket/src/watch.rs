//! Watches paths for changes that the layers below notice.
//!
//! NFS reports no changes. Its answers hold for a time, or under a lease until it is withdrawn. A
//! watched path is checked when the validity of its last answer is over. The program is notified
//! when the answer has changed. While the stack answers from its cache, a check costs no request to
//! the server.

use crate::conn::{Connection, told};
use crate::frames::{Collected, Reply};
use crate::path::fits;
use hither_client::wire::{self, Stated};
use hither_vfs::{Error, Node, RequestContext, Result, Validity, WalkRequest};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of watched paths per connection.
const PATHS_MAX: usize = 1024;
/// Minimum and maximum interval of checks.
const LOOK_FLOOR: Duration = Duration::from_millis(500);
const LOOK_CEILING: Duration = Duration::from_secs(60);

/// Watches paths until the request ends.
///
/// # Errors
/// Those of [`fits`] and [`Counted::take`], before the first check.
pub(crate) async fn watch(
    conn: &Arc<Connection>,
    cx: &RequestContext,
    reply: &Reply,
    paths: &[&[u8]],
) -> Result<()> {
    paths.iter().try_for_each(|path| fits(path))?;
    let _counted = Counted::take(&conn.watched, paths.len())?;
    let mut seen: Vec<Option<Result<wire::Attr>>> = paths.iter().map(|_| None).collect();
    let mut queue: BTreeSet<(Instant, usize)> = (0..paths.len()).map(|i| (Instant::now(), i)).collect();
    while let Some((due, i)) = queue.pop_first() {
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            () = reply.over.cancelled() => return Ok(()),
        }
        let found = conn.shared.find(cx, paths[i], true, WalkRequest::default()).await;
        let found = found.and_then(|found| found.node());
        let now = Instant::now();
        queue.insert((now + pause(&found, now), i));
        let attr = found.map(|node| told(&node.attrs.attr));
        // An error of the connection to the server is no news about the file.
        if matches!(&attr, Err(e) if !tells(e)) {
            continue;
        }
        if seen[i].as_ref().is_none_or(|before| differs(before, &attr)) {
            let told = attr.as_ref().copied().map_err(|e| e.errno);
            let mut out = Collected::new(reply);
            out.add(|body| Stated { index: i as u32, attr: told }.encode(body)).await?;
            out.flush().await?;
            seen[i] = Some(attr);
        }
    }
    Ok(())
}

/// The time until the next check.
fn pause(found: &Result<Node>, now: Instant) -> Duration {
    match found.as_ref().map(|node| node.attrs.valid) {
        // A check costs nothing until the lease is withdrawn.
        Ok(Validity::Lease) => LOOK_FLOOR,
        Ok(valid) => valid.left(now).clamp(LOOK_FLOOR, LOOK_CEILING),
        Err(_) => LOOK_FLOOR * 4,
    }
}

fn tells(e: &Error) -> bool {
    const ALWAYS: [i32; 6] =
        [libc::ENOENT, libc::ENOTDIR, libc::ELOOP, libc::EACCES, libc::EXDEV, libc::ENAMETOOLONG];
    ALWAYS.contains(&e.errno)
}

fn differs(before: &Result<wire::Attr>, now: &Result<wire::Attr>) -> bool {
    match (before, now) {
        (Ok(a), Ok(b)) => {
            let of = |a: &wire::Attr| (a.fsid, a.fileid, a.change, a.size, a.mtime);
            of(a) != of(b)
        }
        (Err(a), Err(b)) => a.errno != b.errno,
        _ => true,
    }
}

/// A number of watched paths of the connection.
struct Counted<'a>(&'a AtomicUsize, usize);

impl<'a> Counted<'a> {
    /// # Errors
    /// `EAGAIN` when the connection watches too many paths, `E2BIG` when the request alone has too
    /// many.
    fn take(watched: &'a AtomicUsize, n: usize) -> Result<Self> {
        if n > PATHS_MAX {
            let why = format!("more than {PATHS_MAX} paths to watch");
            return Err(Error::because(libc::E2BIG, why));
        }
        let fits = |now: usize| (now + n <= PATHS_MAX).then_some(now + n);
        match watched.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Self(watched, n)),
            Err(_) => Err(Error::because(libc::EAGAIN, "too many watched paths")),
        }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}
