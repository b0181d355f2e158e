//! Names that were removed locally: after a crash, removes them at the server.

use super::record::{Event, Record};
use super::replay::{One, Refusal};
use super::scan::{Left, RemovedLeft};
use hither_vfs::{Fh, Name, PathRef, RequestContext, Result, Stop, WalkRequest};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use tokio::time::Instant;

/// Names removed at a time.
const AT_ONCE: usize = 16;

impl One {
    /// Removes each name that still leads to the same object. Directories come after files. A
    /// damaged journal removes nothing.
    ///
    /// # Errors
    /// Errors of the server that may pass. All names then stay in the journal.
    pub(super) async fn remove_all(self: &Arc<Self>, left: &mut Left, damaged: bool) -> io::Result<()> {
        let mut all: Vec<(Fh, RemovedLeft)> = left.removed.drain().collect();
        all.sort_by_key(|(_, one)| one.place);
        if damaged && !all.is_empty() {
            let names = all.len();
            tracing::error!(
                names,
                "the journal was damaged: names that were removed before the crash exist again"
            );
        }
        let names: Vec<Fh> = all.iter().map(|(fh, _)| fh.clone()).collect();
        let mut records: HashSet<(u64, u64)> =
            all.iter().map(|(_, one)| (one.place.1, one.place.0)).collect();
        let mut gone = Vec::new();
        if !damaged {
            let (dirs, files): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, one)| one.removed.is_dir);
            let (mut running, mut files) = (tokio::task::JoinSet::new(), files.into_iter());
            loop {
                while running.len() < AT_ONCE
                    && let Some((fh, one)) = files.next()
                {
                    let this = self.clone();
                    running.spawn(async move { Ok(this.remove(&fh, &one).await?.then_some(fh)) });
                }
                let Some(ended) = running.join_next().await else { break };
                gone.extend(ended.map_err(io::Error::other).flatten()?);
            }
            // In journal order, subdirectories precede their parents.
            for (fh, one) in &dirs {
                self.remove(fh, one).await?;
            }
        }
        let mut last = None;
        for fh in &names {
            last = Some(self.r.log.append(Record::of(fh, Event::Settled)));
        }
        for fh in gone {
            // The object is removed, so its bytes are not needed.
            let Some(file) = left.files.remove(&fh) else { continue };
            last = Some(self.r.log.append(Record::of(&fh, Event::Retire(self.last_seq))));
            records.extend(file.pieces.iter().map(|piece| (piece.segment, piece.seq)));
        }
        let Some(last) = last else { return Ok(()) };
        if self.r.log.durable(last.seq).await.is_ok() {
            records.into_iter().for_each(|(segment, _)| self.r.log.dead(segment, 1));
        }
        Ok(())
    }

    /// Removes a name. Returns whether the name no longer leads to the object.
    async fn remove(&self, fh: &Fh, one: &RemovedLeft) -> io::Result<bool> {
        let removed = self.try_to_remove(fh, one).await;
        if let Err(e) = &removed {
            let name = String::from_utf8_lossy(one.name.as_bytes()).into_owned();
            Refusal::of("it cannot be removed", e).for_good(&name)?;
            tracing::error!(%name, error = %e, "a name that was removed before a crash exists again, because it cannot be removed");
        }
        Ok(removed.is_ok())
    }

    async fn try_to_remove(&self, fh: &Fh, one: &RemovedLeft) -> Result<()> {
        let (cx, dir) = (RequestContext::new(one.removed.cred.clone()), &one.removed.dir);
        if self.leads_to(&cx, dir, &one.name).await?.as_ref() != Some(fh) {
            return Ok(());
        }
        let done = if one.removed.is_dir {
            self.r.below.rmdir(&cx, dir, &one.name).await
        } else {
            self.r.below.unlink(&cx, dir, &one.name, Some(fh)).await
        };
        match done {
            Err(e) if matches!(e.errno, libc::ENOENT | libc::ESTALE) => Ok(()),
            done => done.map(drop),
        }
    }

    async fn leads_to(&self, cx: &RequestContext, dir: &Fh, name: &Name) -> Result<Option<Fh>> {
        let fresh = cx.fresh(Instant::now());
        let trail = match self.r.below.walk(&fresh, PathRef::name(dir, name), WalkRequest::default()).await {
            Err(e) if matches!(e.errno, libc::ENOENT | libc::ESTALE) => return Ok(None),
            trail => trail?,
        };
        match trail.stop {
            Stop::Failed(e) if matches!(e.errno, libc::ENOENT | libc::ESTALE) => Ok(None),
            Stop::Failed(e) => Err(e),
            _ => Ok(trail.steps.into_iter().next().map(|node| node.fh)),
        }
    }
}
