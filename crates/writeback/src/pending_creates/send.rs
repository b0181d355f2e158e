//! Creation of pending objects at the server.

use super::PendingCreates;
use super::table::{Body, Deferred, Object, Open, Status};
use crate::pending_writes::is_final;
use crate::wal::{Attributes, Event, New, Record, What, passes, put, set_directory};
use bytes::Bytes;
use futures_util::future::join_all;
use hither_vfs::{
    BoxFuture, Cred, Error, Fh, File, FileKind, Name, Node, OpenHow, OpenId, PathRef, RequestContext, Result,
    SetAttr,
};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// First and longest pause before a failed creation is repeated.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// The interval of the check for old objects.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The permission bits that an owner needs to open a file again.
const OWNER_BITS: u32 = 0o600;
/// The most objects and bytes in one call to the server. A limit is needed because a caller may
/// wait for one of the objects.
pub(super) const BATCH_OBJECTS: usize = 32;
pub(super) const BATCH_BYTES: usize = 256 << 10;

impl PendingCreates {
    /// Waits until the server has an object, and returns the server's handle.
    ///
    /// # Errors
    /// The error of the attempt, final or not.
    pub(super) fn send(&self, fh: &Fh) -> BoxFuture<Result<Fh>> {
        self.follow(fh.clone(), None)
    }

    /// Like [`Self::send`]. `tried` is the signal of an attempt that was started already.
    pub(super) fn follow(&self, fh: Fh, tried: Option<watch::Receiver<u32>>) -> BoxFuture<Result<Fh>> {
        let this = self.this();
        Box::pin(async move {
            let mut begun = tried.is_some();
            if let Some(mut ended) = tried {
                let _ = ended.changed().await;
            }
            loop {
                let mut ended = {
                    let mut t = this.table();
                    match t.status(&fh) {
                        Status::There(real) => return Ok(real),
                        Status::Refused(errno) => return Err(Error::new(errno)),
                        Status::Sending(ended) => {
                            // The result of that attempt is used.
                            begun = true;
                            ended
                        }
                        Status::Here(object) => {
                            if begun {
                                return Err(object.error.clone().unwrap_or_else(|| Error::new(libc::EIO)));
                            }
                            begun = true;
                            object.sending = true;
                            // The object is sent alone, so that the caller does not wait for other
                            // objects.
                            let (dir, ended) = (object.dir.clone(), object.ended.subscribe());
                            tokio::spawn(this.clone().create(dir, vec![fh.clone()]));
                            ended
                        }
                    }
                };
                // The signal also ends when the object is dropped.
                let _ = ended.changed().await;
            }
        })
    }

    /// Starts to send pending objects, several of a directory in one call. Returns the objects that
    /// are being sent, each with a signal of the end.
    pub(super) fn start(&self, objects: &[Fh]) -> Vec<(Fh, watch::Receiver<u32>)> {
        let mut batches: Vec<(Fh, Vec<Fh>)> = Vec::new();
        let mut going = Vec::with_capacity(objects.len());
        {
            let mut t = self.table();
            // The last batch of each directory and creator, and its bytes.
            let mut last: HashMap<(Fh, Arc<Cred>), (usize, usize)> = HashMap::new();
            for fh in objects {
                let object = match t.status(fh) {
                    Status::Here(object) => object,
                    Status::Sending(ended) => {
                        going.push((fh.clone(), ended));
                        continue;
                    }
                    Status::There(_) | Status::Refused(_) => continue,
                };
                object.sending = true;
                going.push((fh.clone(), object.ended.subscribe()));
                let len = object.len_bytes() as usize;
                let key = (object.dir.clone(), object.cred.clone());
                let fits = |(at, bytes): &&mut (usize, usize)| {
                    batches[*at].1.len() < BATCH_OBJECTS && *bytes + len <= BATCH_BYTES
                };
                match last.get_mut(&key).filter(fits) {
                    Some((at, bytes)) => {
                        batches[*at].1.push(fh.clone());
                        *bytes += len;
                    }
                    None => {
                        batches.push((object.dir.clone(), vec![fh.clone()]));
                        last.insert(key, (batches.len() - 1, len));
                    }
                }
            }
        }
        for (dir, objects) in batches {
            tokio::spawn(self.this().create(dir, objects));
        }
        going
    }

    /// Creates objects of one creator in a directory. The objects are marked as being sent.
    async fn create(self: Arc<Self>, dir: Fh, objects: Vec<Fh>) {
        let outcomes = match self.try_to_create(&dir, &objects).await {
            Ok(outcomes) => outcomes,
            Err(e) => objects.into_iter().map(|fh| (fh, Err(e.clone()))).collect(),
        };
        // The results are handled concurrently, so that one sync of the journal covers all of them.
        let ended = outcomes.into_iter().map(async |(fh, outcome)| match outcome {
            Ok(node) => self.arrived(&fh, node).await,
            Err(e) => self.not_created(&fh, e).await,
        });
        join_all(ended).await;
        self.room.notify_waiters();
    }

    /// The name and content of the object for the server.
    fn taken(object: &Object) -> (Name, New) {
        let (what, data) = match &object.body {
            Body::File(data) => (What::File, Bytes::copy_from_slice(data)),
            Body::Directory => (What::Directory, Bytes::new()),
            Body::Link(target) => (What::Link(target.to_vec()), Bytes::new()),
        };
        let file = what == What::File;
        // An open file needs these bits, because the open is repeated at the server.
        let mode = object.attr.mode & 0o7777 | if file && object.opens > 0 { OWNER_BITS } else { 0 };
        let times = if file { (Some(object.attr.atime), Some(object.attr.mtime)) } else { object.times };
        (object.name.clone(), New { what, cred: object.cred.clone(), mode, times, data })
    }

    async fn try_to_create(&self, dir: &Fh, objects: &[Fh]) -> Result<Vec<(Fh, Result<Node>)>> {
        let real = self.send(dir).await?;
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await.map_err(|_| Error::new(libc::ESTALE))?;
        let (mut here, mut taken, mut announced) = (Vec::new(), Vec::new(), None);
        {
            let mut t = self.table();
            for fh in objects {
                let Some(object) = t.here.get_mut(fh) else { continue };
                let ticket = self.wal.log().append(Record::of(fh, Event::Touched));
                object.noted(ticket, false);
                announced = Some(ticket.seq);
                taken.push(Self::taken(object));
                here.push(fh.clone());
            }
        }
        if let Some(seq) = announced {
            // A failure is ignored, because a failed journal promises nothing.
            let _ = self.wal.log().written(seq).await;
        }
        let made = put(&*self.below, &real, &taken).await;
        Ok(here.into_iter().zip(made).collect())
    }

    /// Handles an object that the server has created.
    async fn arrived(&self, fh: &Fh, node: Node) {
        let opens: Vec<(OpenId, Open)> = {
            let t = self.table();
            t.opens.iter().filter(|(_, open)| open.fh == *fh).map(|(id, open)| (*id, open.clone())).collect()
        };
        let mut again = Vec::new();
        for (id, open) in opens {
            let cx = RequestContext::new(open.cred.clone());
            let opened = self.below.open(&cx, PathRef::fh(&node.fh), &OpenHow::existing(open.access)).await;
            again.push((id, opened.map(|opened| opened.open).map_err(|e| e.errno)));
        }
        let mut as_made = node.attrs.attr.kind != FileKind::Directory;
        let mode = self.table().here.get(fh).map(|o| (o.cred.clone(), o.attr.mode, o.opens > 0));
        if let Some((cred, mode, true)) = mode
            && mode & OWNER_BITS != OWNER_BITS
        {
            as_made = false;
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            let file = File { fh: &node.fh, open: None };
            if let Err(e) = self.below.setattr(&RequestContext::new(cred), file, &set).await {
                tracing::warn!(error = %e, "the mode of a new file cannot be set");
            }
        }
        let there = self.wal.log().append(Record::of(fh, Event::There(node.fh.clone())));
        // The record must be durable before later calls: a replay of the creation would undo these.
        let _ = self.wal.log().durable(there.seq).await;
        let settled = {
            let mut t = self.table();
            let Some(object) = t.ended(fh, Ok(&node), as_made) else { return };
            for (id, below) in again {
                if let Some(open) = t.opens.get_mut(&id) {
                    open.below = Some(below);
                }
            }
            self.let_go(&object);
            if matches!(object.body, Body::Directory) && object.times != (None, None) {
                let (atime, mtime) = object.times;
                let set =
                    Attributes { cred: object.cred.clone(), mode: None, size_bytes: None, atime, mtime };
                self.defer(&mut t, fh, set);
            }
            self.counters.sent.fetch_add(1, Relaxed);
            object.ended.send_modify(|n| *n += 1);
            [fh.clone(), object.dir]
                .into_iter()
                .filter(|dir| t.deferred.contains_key(dir) && !t.has_names(dir))
                .collect::<Vec<_>>()
        };
        for dir in settled {
            self.pay(&dir).await;
        }
    }

    /// Ends the life of an object's records.
    fn let_go(&self, object: &Object) {
        object.held.iter().for_each(|(segment, records)| self.wal.log().dead(*segment, *records));
    }

    /// Sets the delayed times of a directory without pending objects.
    async fn pay(&self, dir: &Fh) {
        let (real, deferred) = {
            let mut t = self.table();
            let Status::There(real) = t.status(dir) else { return };
            let Some(deferred) = t.deferred.get(dir).cloned() else { return };
            (real, deferred)
        };
        if let Err(e) = set_directory(&*self.below, &real, &deferred.set).await {
            tracing::warn!(error = %e, "the times of a directory cannot be set");
            if passes(&e) {
                // The journal keeps them for the next sync, or the next mount.
                return;
            }
        }
        let mut t = self.table();
        t.times_are_there(dir, &deferred.set);
        if t.deferred.get(dir).is_some_and(|now| now.ticket == deferred.ticket) {
            let Deferred { ticket, .. } = deferred;
            t.deferred.remove(dir);
            self.wal.log().append(Record::of(&t.as_recorded(dir), Event::Gone));
            self.wal.log().dead(ticket.segment, 1);
        }
    }

    /// Handles a failed creation.
    async fn not_created(&self, fh: &Fh, e: Error) {
        if !is_final(&e) && e.errno != libc::EEXIST {
            let mut t = self.table();
            let Some(object) = t.here.get_mut(fh) else { return };
            let pause = object.retry.map_or(BACKOFF_FIRST, |(_, pause)| (pause * 2).min(BACKOFF_MAX));
            let fresh = object.retry.is_none();
            (object.retry, object.sending) = (Some((Instant::now() + pause, pause)), false);
            object.error = Some(e);
            object.ended.send_modify(|n| *n += 1);
            t.stuck += usize::from(fresh);
            return;
        }
        self.refused(fh, e).await;
    }

    /// Handles an object that the server refuses for good. It is kept as a conflict: a file with
    /// its bytes, another object as a description.
    async fn refused(&self, fh: &Fh, e: Error) {
        let kept = {
            let t = self.table();
            let Some(object) = t.here.get(fh) else { return };
            let path = String::from_utf8_lossy(&self.wal.path(fh)).into_owned();
            tracing::error!(%path, error = %e, "the server refuses a pending new object");
            let why = format!("it cannot be created: {e}");
            let (data, why) = match &object.body {
                Body::File(data) => (data.clone(), why),
                Body::Directory => (Default::default(), format!("a directory: {why}")),
                Body::Link(target) => {
                    let target = String::from_utf8_lossy(target).into_owned();
                    (Default::default(), format!("a symbolic link to {target}: {why}"))
                }
            };
            (path, why, object.cred.clone(), data, object.attr.mtime.secs)
        };
        let ((path, why, cred, data, secs), wal, own) = (kept, self.wal.clone(), fh.clone());
        let keep = tokio::task::spawn_blocking(move || wal.keep_new(&own, (&path, secs), &cred, &data, why));
        if let Err(e) = keep.await.map_err(std::io::Error::other).flatten() {
            tracing::error!("a refused object cannot be kept as a conflict and stays in the journal: {e}");
            let mut t = self.table();
            if let Some(object) = t.ended(fh, Err(libc::EIO), false) {
                object.ended.send_modify(|n| *n += 1);
            }
            return;
        }
        let gone = self.wal.log().append(Record::of(fh, Event::Gone));
        let _ = self.wal.log().durable(gone.seq).await;
        let mut t = self.table();
        let Some(object) = t.ended(fh, Err(e.errno), false) else { return };
        self.let_go(&object);
        self.drop_deferred(&mut t, fh);
        self.counters.refused.fetch_add(1, Relaxed);
        object.ended.send_modify(|n| *n += 1);
    }

    /// Sends all pending objects.
    ///
    /// # Errors
    /// The first error of an object that stays pending or was refused.
    pub async fn sync(&self) -> Result<()> {
        let all: Vec<Fh> = {
            let t = self.table();
            t.queue.iter().filter(|fh| t.here.contains_key(*fh)).cloned().collect()
        };
        let mut sent = tokio::task::JoinSet::new();
        for (fh, ended) in self.start(&all) {
            let follow = self.follow(fh, Some(ended));
            sent.spawn(async move { follow.await.map(drop) });
        }
        let outcome = sent.join_all().await.into_iter().collect::<Result<()>>();
        let deferred: Vec<Fh> = self.table().deferred.keys().cloned().collect();
        for dir in deferred {
            if !self.is_filled(&dir) {
                self.pay(&dir).await;
            }
        }
        outcome
    }

    /// The objects to be sent now.
    fn due(&self) -> Vec<Fh> {
        let mut t = self.table();
        let (now, age) = (Instant::now(), self.options.age);
        let full = t.here.len() > self.options.most / 2 || t.bytes > self.options.max_bytes / 2;
        let pressed = full || self.wal.is_half_full() || !self.wal.log().works();
        let free = self.slots.available_permits();
        let mut due = Vec::new();
        let mut looked = 0;
        while looked < t.queue.len() && due.len() < BATCH_OBJECTS * free {
            let fh = t.queue[looked].clone();
            let Some(object) = t.here.get(&fh) else {
                t.queue.remove(looked);
                continue;
            };
            looked += 1;
            let old = now.duration_since(object.born);
            let waited = if object.opens > 0 { old >= age * 2 } else { old >= age };
            if !pressed && old < age {
                break;
            }
            let may = object.retry.is_none_or(|(at, _)| at <= now) && !object.sending;
            if may && (pressed || waited) {
                due.push(fh);
            }
        }
        due
    }
}

/// Sends old objects during the life of the layer.
pub(super) async fn look_after_age(layer: Weak<PendingCreates>) {
    loop {
        let Some(this) = layer.upgrade() else { return };
        let _ = this.start(&this.due());
        let work = this.work.clone();
        drop(this);
        tokio::select! {
            () = work.notified() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}
