//! Creating objects at the server.

use super::Ahead;
use super::table::{Body, Object, Open, Owed, Status};
use crate::dirty::is_final;
use crate::wal::{Attributes, Event, New, Record, What, put, set_directory};
use bytes::Bytes;
use hither_vfs::{BoxFuture, Cx, Error, Fh, File, Node, OpenHow, OpenId, Result, SetAttr, Where};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// First and longest wait before what could not be created is tried again by itself.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MOST: Duration = Duration::from_secs(30);
/// How often it is looked what is old enough.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// What its owner needs to open a file again.
const OWNER_BITS: u32 = 0o600;

/// What one takes of an object to create it.
struct Taken {
    dir: Fh,
    new: New,
}

impl Ahead {
    /// Returns when the server has an object: its handle there.
    ///
    /// # Errors
    /// Why it cannot have it, or not now.
    pub(super) fn send(&self, fh: &Fh) -> BoxFuture<Result<Fh>> {
        let (this, fh) = (self.this(), fh.clone());
        Box::pin(async move {
            let mut begun = false;
            loop {
                let mut ended = {
                    let mut t = this.table();
                    match t.status(&fh) {
                        Status::There(real) => return Ok(real),
                        Status::Refused(errno) => return Err(Error::new(errno)),
                        Status::Sending(ended) => {
                            // The outcome of that try will do.
                            begun = true;
                            ended
                        }
                        Status::Here(object) => {
                            if begun {
                                return Err(object.error.clone().unwrap_or_else(|| Error::new(libc::EIO)));
                            }
                            begun = true;
                            object.sending = true;
                            let ended = object.ended.subscribe();
                            let task = this.clone();
                            let fh = fh.clone();
                            tokio::spawn(async move { task.create(fh).await });
                            ended
                        }
                    }
                };
                // It ends with the object, too.
                let _ = ended.changed().await;
            }
        })
    }

    /// Creates an object that is marked as on its way.
    async fn create(self: Arc<Self>, fh: Fh) {
        let outcome = self.try_to_create(&fh).await;
        match outcome {
            Ok(node) => self.arrived(&fh, node).await,
            Err(e) => self.not_created(&fh, e).await,
        }
        self.room.notify_waiters();
    }

    fn taken(&self, fh: &Fh) -> Option<Taken> {
        let t = self.table();
        let object = t.here.get(fh)?;
        let (what, data) = match &object.body {
            Body::File(data) => (What::File, Bytes::copy_from_slice(data)),
            Body::Directory => (What::Directory, Bytes::new()),
            Body::Link(target) => (What::Link(target.to_vec()), Bytes::new()),
        };
        let file = what == What::File;
        // Who has it open must be able to open it again.
        let mode = object.attr.mode & 0o7777 | if file && object.opens > 0 { OWNER_BITS } else { 0 };
        let times = match file {
            true => (Some(object.attr.atime), Some(object.attr.mtime)),
            false => object.times,
        };
        let new = New { what, cred: object.cred.clone(), mode, times, data };
        Some(Taken { dir: object.dir.clone(), new })
    }

    async fn try_to_create(&self, fh: &Fh) -> Result<Node> {
        let gone = || Error::new(libc::ESTALE);
        let taken = self.taken(fh).ok_or_else(gone)?;
        let dir = self.send(&taken.dir).await?;
        // Never closed.
        let _slot = self.slots.acquire().await.map_err(|_| gone())?;
        let announced = {
            let mut t = self.table();
            let ticket = self.wal.log().append(Record::of(fh, Event::Touched));
            if let Some(object) = t.here.get_mut(fh) {
                object.noted(ticket, false);
            }
            ticket
        };
        // Of a journal that has failed nothing is promised.
        let _ = self.wal.log().written(announced.seq).await;
        let name = self.table().here.get(fh).map(|object| object.name.clone()).ok_or_else(gone)?;
        put(&*self.below, &dir, &name, &taken.new).await
    }

    /// The server has an object.
    async fn arrived(&self, fh: &Fh, node: Node) {
        let opens: Vec<(OpenId, Open)> = {
            let t = self.table();
            t.opens.iter().filter(|(_, open)| open.fh == *fh).map(|(id, open)| (*id, open.clone())).collect()
        };
        let mut again = Vec::new();
        for (id, open) in opens {
            let cx = Cx::new(open.cred.clone());
            let opened = self.below.open(&cx, Where::fh(&node.fh), &OpenHow::existing(open.access)).await;
            again.push((id, opened.map(|opened| opened.open).map_err(|e| e.errno)));
        }
        let mode = self.table().here.get(fh).map(|o| (o.cred.clone(), o.attr.mode, o.opens > 0));
        if let Some((cred, mode, true)) = mode
            && mode & OWNER_BITS != OWNER_BITS
        {
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            let file = File { fh: &node.fh, open: None };
            if let Err(e) = self.below.setattr(&Cx::new(cred), file, &set).await {
                tracing::warn!(error = %e, "the mode of a new file cannot be set");
            }
        }
        let there = self.wal.log().append(Record::of(fh, Event::There(node.fh.clone())));
        // What is done to it at the server from now on must not be undone by making it again.
        let _ = self.wal.log().durable(there.seq).await;
        let settled = {
            let mut t = self.table();
            let Some(object) = t.ended(fh, Ok(&node)) else { return };
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
                self.owes(&mut t, fh, set);
            }
            self.counters.sent.fetch_add(1, Relaxed);
            object.ended.send_modify(|n| *n += 1);
            [fh.clone(), object.dir]
                .into_iter()
                .filter(|dir| t.owed.contains_key(dir) && !t.has_names(dir))
                .collect::<Vec<_>>()
        };
        for dir in settled {
            self.pay(&dir).await;
        }
    }

    /// Its records live no more.
    fn let_go(&self, object: &Object) {
        object.held.iter().for_each(|(segment, records)| self.wal.log().dead(*segment, *records));
    }

    /// Sets the times of a directory in which nothing waits any more.
    async fn pay(&self, dir: &Fh) {
        let (real, owed) = {
            let mut t = self.table();
            let Status::There(real) = t.status(dir) else { return };
            let Some(owed) = t.owed.get(dir).cloned() else { return };
            (real, owed)
        };
        if let Err(e) = set_directory(&*self.below, &real, &owed.set).await {
            tracing::warn!(error = %e, "the times of a directory cannot be set");
        }
        let mut t = self.table();
        if t.owed.get(dir).is_some_and(|now| now.ticket == owed.ticket) {
            let Owed { ticket, .. } = owed;
            t.owed.remove(dir);
            self.wal.log().append(Record::of(&t.as_recorded(dir), Event::Gone));
            self.wal.log().dead(ticket.segment, 1);
        }
    }

    /// An object could not be created.
    async fn not_created(&self, fh: &Fh, e: Error) {
        if !is_final(e.errno) && e.errno != libc::EEXIST {
            let mut t = self.table();
            let Some(object) = t.here.get_mut(fh) else { return };
            let pause = object.retry.map_or(BACKOFF_FIRST, |(_, pause)| (pause * 2).min(BACKOFF_MOST));
            let fresh = object.retry.is_none();
            (object.retry, object.sending) = (Some((Instant::now() + pause, pause)), false);
            object.error = Some(e);
            object.ended.send_modify(|n| *n += 1);
            t.stuck += usize::from(fresh);
            return;
        }
        self.refused(fh, e).await;
    }

    /// The server will not have an object: its bytes are kept as a conflict.
    async fn refused(&self, fh: &Fh, e: Error) {
        let kept = {
            let t = self.table();
            let Some(object) = t.here.get(fh) else { return };
            let path = String::from_utf8_lossy(&self.wal.path(fh)).into_owned();
            tracing::error!(%path, error = %e, "the server refuses a new object that was made here");
            match &object.body {
                Body::File(data) => Some((path, object.cred.clone(), data.clone(), object.attr.mtime.secs)),
                _ => None,
            }
        };
        if let Some((path, cred, data, secs)) = kept {
            let (wal, own, why) = (self.wal.clone(), fh.clone(), format!("it cannot be created: {e}"));
            let keep =
                tokio::task::spawn_blocking(move || wal.keep_new(&own, (&path, secs), &cred, &data, why));
            if let Err(e) = keep.await.map_err(std::io::Error::other).flatten() {
                tracing::error!(
                    "its bytes cannot be kept as a conflict either, they stay in the journal: {e}"
                );
                let mut t = self.table();
                if let Some(object) = t.ended(fh, Err(libc::EIO)) {
                    object.ended.send_modify(|n| *n += 1);
                }
                return;
            }
        }
        let gone = self.wal.log().append(Record::of(fh, Event::Gone));
        let _ = self.wal.log().durable(gone.seq).await;
        let mut t = self.table();
        let Some(object) = t.ended(fh, Err(e.errno)) else { return };
        self.let_go(&object);
        self.owes_nothing(&mut t, fh);
        self.counters.refused.fetch_add(1, Relaxed);
        object.ended.send_modify(|n| *n += 1);
    }

    /// Sends everything that is here.
    ///
    /// # Errors
    /// The first reason why something stays.
    pub async fn sync(&self) -> Result<()> {
        let all: Vec<Fh> = self.table().here.keys().cloned().collect();
        let mut sent = tokio::task::JoinSet::new();
        for fh in all {
            let send = self.send(&fh);
            sent.spawn(async move {
                let outcome = send.await;
                // Whoever refused it has been told of already.
                outcome.map(drop)
            });
        }
        let outcome = sent.join_all().await.into_iter().collect::<Result<()>>();
        let owed: Vec<Fh> = self.table().owed.keys().cloned().collect();
        for dir in owed {
            if !self.is_filled(&dir) {
                self.pay(&dir).await;
            }
        }
        outcome
    }

    /// What is to go now.
    fn due(&self) -> Vec<Fh> {
        let mut t = self.table();
        let (now, age) = (Instant::now(), self.options.age);
        let full = t.here.len() > self.options.most / 2 || t.bytes > self.options.max_bytes / 2;
        let pressed = full || self.wal.is_half_full() || !self.wal.log().works();
        let free = self.slots.available_permits();
        let mut due = Vec::new();
        let mut looked = 0;
        while looked < t.queue.len() && due.len() < 2 * free {
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

/// Sends what is old enough, for as long as the layer lives.
pub(super) async fn look_after_age(layer: Weak<Ahead>) {
    loop {
        let Some(this) = layer.upgrade() else { return };
        for fh in this.due() {
            let send = this.send(&fh);
            tokio::spawn(send);
        }
        let work = this.work.clone();
        drop(this);
        tokio::select! {
            () = work.notified() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}
