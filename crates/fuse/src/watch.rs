//! The queue of open objects, ordered by the time of their revalidation.
//!
//! The kernel sends no request when it reads from its page cache. It also sends none when it lists
//! a directory from its cache through an earlier descriptor. An open file must show other clients'
//! changes within the validity of its attributes. So each open object is in a queue, ordered by the
//! end of that validity. A file is checked a short time before, and its pages are dropped when it
//! was changed. The cached listing of a directory is dropped at the end of its validity without a
//! request. The next reader from the start sends one. Several objects are checked concurrently, the
//! longest due first. Nothing is checked before it is due.
//!
//! The validity itself is in the inodes ([`crate::inode`]).

use crate::inode::{Inode, LEAD_MAX, Moment};
use crate::session::{Phase, Session};
use hither_vfs::{Attrs, File, FileKind, RequestContext, Result, Validity};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Maximum number of concurrent checks.
const LOOKS_MAX: usize = 64;
/// Maximum wait of a check for the server.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum time between checks.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// The open objects.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    queue: Mutex<Queue>,
    sooner: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    order: BTreeSet<(Instant, u64)>,
    open: HashMap<u64, Entry>,
    /// Time of the next check without a notification.
    wakes: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    inode: Arc<Inode>,
    /// Its open files or directories, by handle.
    handles: BTreeSet<u64>,
    /// Its time in the queue.
    due: Option<Instant>,
    /// It is being checked and not in the queue.
    looking: bool,
}

/// An object to check.
#[derive(Debug)]
pub(crate) struct Due {
    inode: Arc<Inode>,
    /// One of its open files or directories, by handle.
    handle: u64,
}

impl Watch {
    /// Records an open.
    pub fn add(&self, inode: &Arc<Inode>, handle: u64) {
        let mut q = self.queue.lock();
        let new = || Entry { inode: inode.clone(), handles: BTreeSet::new(), due: None, looking: false };
        q.open.entry(inode.id).or_insert_with(new).handles.insert(handle);
        // With the lock of the queue, because the end of the last open resets the plan.
        let wake = planned(inode).is_some_and(|due| q.put(inode.id, due));
        drop(q);
        self.wake(wake);
    }

    /// Records the end of an open.
    pub fn remove(&self, inode: &Inode, handle: u64) {
        let mut q = self.queue.lock();
        let Some(entry) = q.open.get_mut(&inode.id) else { return };
        entry.handles.remove(&handle);
        if entry.handles.is_empty() {
            let due = entry.due;
            q.open.remove(&inode.id);
            if let Some(due) = due {
                q.order.remove(&(due, inode.id));
            }
            inode.plan_nothing();
        }
    }

    /// Moves an object ahead when it is due earlier than planned.
    pub fn hasten(&self, inode: &Inode) {
        let wake = planned(inode).is_some_and(|due| self.queue.lock().put(inode.id, due));
        self.wake(wake);
    }

    /// Records the end of a check.
    fn looked(&self, inode: &Inode) {
        if let Some(entry) = self.queue.lock().open.get_mut(&inode.id) {
            entry.looking = false;
        }
        self.hasten(inode);
    }

    fn wake(&self, wake: bool) {
        if wake {
            self.sooner.notify_one();
        }
    }

    /// Removes the longest due object from the queue.
    fn pop(&self, now: Instant) -> Option<Due> {
        let mut q = self.queue.lock();
        loop {
            let &(due, id) = q.order.first().filter(|(due, _)| *due <= now)?;
            q.order.remove(&(due, id));
            if let Some(entry) = q.open.get_mut(&id) {
                entry.due = None;
                if let Some(&handle) = entry.handles.first() {
                    entry.looking = true;
                    return Some(Due { inode: entry.inode.clone(), handle });
                }
            }
        }
    }

    /// The time of the first object in the queue. From now on an earlier object wakes the sleeping
    /// task.
    fn next(&self, now: Instant) -> Instant {
        let mut q = self.queue.lock();
        let next = q.order.first().map_or(now + SLEEP_MAX, |(due, _)| *due);
        q.wakes = Some(next);
        next
    }
}

impl Queue {
    /// Adds an object to the queue, or moves it ahead. Returns true when it is due before the next
    /// wake-up.
    fn put(&mut self, id: u64, due: Instant) -> bool {
        let Some(entry) = self.open.get_mut(&id) else { return false };
        match entry.due {
            _ if entry.looking => return false,
            Some(before) if before <= due => return false,
            Some(before) => {
                self.order.remove(&(before, id));
            }
            None => {}
        }
        entry.due = Some(due);
        self.order.insert((due, id));
        self.wakes.is_some_and(|wakes| due < wakes)
    }
}

/// The time of the next check of an object.
fn planned(inode: &Inode) -> Option<Instant> {
    match inode.kind {
        FileKind::Directory => inode.entries_until(),
        _ => Some(inode.plan_look()),
    }
}

/// Checks due objects until the mount ends.
pub(crate) async fn run(session: Arc<Session>) {
    let (mut phase, mut looks) = (session.phase(), JoinSet::new());
    loop {
        while looks.len() < LOOKS_MAX
            && let Some(due) = session.watch.pop(Instant::now())
        {
            let session = session.clone();
            looks.spawn(async move { look(&session, &due).await });
        }
        let full = looks.len() >= LOOKS_MAX;
        let next = session.watch.next(Instant::now());
        tokio::select! {
            _ = looks.join_next(), if !looks.is_empty() => {}
            () = tokio::time::sleep_until(next), if !full => {}
            () = session.watch.sooner.notified(), if !full => {}
            _ = phase.wait_for(|p| matches!(p, Phase::Ended | Phase::Refused(_))) => return,
        }
    }
}

async fn look(session: &Session, due: &Due) {
    let (inode, now) = (&due.inode, Instant::now());
    if inode.kind == FileKind::Directory {
        if inode.entries_until().is_some_and(|until| until <= now) {
            inode.entries_hold(None);
            session.drop_pages(inode).await;
        }
    } else if session.authority.is_noncacheable(&inode.fh()) && inode.postpone(now) {
        // The kernel asks before each read(2), and a check would recall the file from its writer.
        // Only mappings need the check.
    } else if inode.is_due(now)
        && let Some(file) = session.files.find(due.handle)
    {
        // Delayed writes keep their age, because a check shows the times to no program.
        let cx = RequestContext {
            deadline: Some(now + PATIENCE),
            times_unseen: true,
            ..RequestContext::new(file.cred.clone())
        };
        let (fh, asked) = (inode.fh(), session.inodes.clock.now());
        let found = ask(session, &cx, File { fh: &fh, open: Some(file.open) }, now);
        if let Ok(Ok(attrs)) = tokio::time::timeout(PATIENCE, found).await {
            saw(session, inode, &attrs, asked).await;
        }
    }
    inode.looked(Instant::now());
    session.watch.looked(inode);
}

/// Attributes with a longer validity than those that are about to end.
async fn ask(session: &Session, cx: &RequestContext, at: File<'_>, now: Instant) -> Result<Attrs> {
    let attrs = session.vfs.getattr(cx, at).await?;
    if attrs.asked < now && attrs.valid.left(now) <= LEAD_MAX {
        session.vfs.getattr(&cx.fresh(now), at).await
    } else {
        Ok(attrs)
    }
}

async fn saw(session: &Session, inode: &Inode, attrs: &Attrs, asked: Moment) {
    if inode.observe(attrs, asked, false).pages_stale && session.drop_pages(inode).await {
        inode.pages_dropped(&attrs.attr, asked);
    }
    if attrs.valid == Validity::Lease {
        // The pages are under the lease from now on, so that a withdrawal must find them.
        match session.leases.grant(asked) {
            Some(_grant) => {
                session.leases.passed_on(inode.id);
                inode.leased();
            }
            None => drop(inode.note_revoked()),
        }
    }
}

#[cfg(test)]
mod tests;
