//! The grant of delegations, and the conditions for it.
//!
//! The module knows nothing of recalls. The lease is granted in the table first, and then the
//! server searches for existing opens of the file. OPEN uses the opposite order: the open is
//! registered first, and then the table is asked. At least one of the two therefore sees the other.

use super::ask::Asking;
use super::{Delegation, Leases, Life, id, key};
use crate::table::Export;
use crate::v4::clients::Client;
use crate::v4::state::{Registry, State};
use hither_lease::{Access, Decision, Grant, Kind, Op, Term, Want};
use hither_proto::nfs4::open;
use hither_vfs::Fh;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

/// A request for a delegation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    /// For reading, or also for writing.
    pub kind: Kind,
    /// A delegation of a directory.
    pub directory: bool,
    /// The client held the delegation before a restart and reclaims it.
    pub reclaim: bool,
    /// The client wants to maintain the times of a file that is delegated for writing.
    pub times: bool,
    /// The client's minor version.
    pub minor: u32,
    /// [`Leases::removals`] before the file was found.
    pub removals: u64,
}

impl Leases {
    /// Delegates a file that a client has just opened, or a directory that a client requests, if
    /// possible now. A reclaimed delegation may be [recalled](Delegation::is_recalled) at once.
    pub async fn grant(
        self: &Arc<Self>,
        registry: &Registry,
        client: &Arc<Client>,
        (export, fh): (&Arc<Export>, &Fh),
        wish: Wish,
    ) -> Option<Arc<Delegation>> {
        if self.count.load(SeqCst) >= self.most || !export.others.are_seen() {
            return None;
        }
        let session = client.sessions().into_iter().find(|s| s.back_is_up());
        let Some(session) = session else { return refused("the client cannot be called") };
        if !session.back_is_proven() {
            session.prove_back(wish.minor);
            // A reclaim is granted at once. Otherwise the client would have to drop its cached
            // data.
            if !wish.reclaim {
                return refused("the client has not answered a call yet");
            }
        }
        if let Some(own) = self.held_for_reading(client, key(fh)) {
            return match wish.kind {
                Kind::Read => refused("it is delegated to the client already"),
                Kind::Write => self.upgrade(registry, own).await,
            };
        }
        let d = self.reserve(registry.other(), client, export, fh, wish);
        let Some(d) = d else {
            return refused("other clients use it, or it is delegated to the client already");
        };
        // From now on a conflicting OPEN waits for this delegation. Earlier opens are in the
        // registry.
        let file = registry.file(&d.file);
        let used = file.is_some_and(|f| {
            f.opens.lock().iter().any(|o| match wish.kind {
                Kind::Read => o.inner.lock().claims().0 & open::SHARE_ACCESS_WRITE != 0,
                Kind::Write => o.client.id != client.id,
            })
        });
        // A client believes in the name of a delegated file without asking. The name must lead to
        // the file when the delegation begins.
        let renamed = self.naming.load(SeqCst) > 0 || self.removals() != wish.removals;
        if used || renamed || registry.add(State::Delegation(d.clone())).is_err() {
            self.end(registry, &d);
            return refused("it is open, or names are changing");
        }
        if let Some(watch) = export.others.watch() {
            let watched = watch.watch(fh, wish.kind == Kind::Write).await;
            let failed = watched.is_none();
            *d.watched.lock() = watched;
            if failed && wish.reclaim && wish.kind == Kind::Write {
                // A local program has the file open. The delayed writes from before the restart
                // must still arrive, so the delegation is granted and recalled at once.
                self.act(|inner, now| inner.table.recall(now, d.holder(), d.key));
                return Some(d);
            }
            // A delegation that was recalled in the meantime is not granted: its recall would
            // arrive before the grant.
            if failed || d.is_recalled() || d.is_revoked() {
                self.end(registry, &d);
                return refused("it cannot be watched");
            }
        }
        Some(d)
    }

    /// Turns a read delegation into a write delegation when no other client uses the file. The
    /// stateid gets a new sequence number.
    async fn upgrade(self: &Arc<Self>, registry: &Registry, d: Arc<Delegation>) -> Option<Arc<Delegation>> {
        if !d.watch_alone().await {
            return refused("local programs use it");
        }
        let (holder, key) = (d.holder(), d.key);
        let want = Want { kind: Kind::Write, term: Term::Held, optional: true };
        let access =
            Access { client: Some(holder), file: key, op: Op::Lease, lease: Some(want), claim: None };
        let may_write = self.act(|inner, now| {
            if d.is_recalled() || !inner.table.may_write_too(now, holder, key) {
                return false;
            }
            let Decision::Go(go) = inner.table.begin(now, access) else { return false };
            let same = |g: &Grant| g.cachable && g.kind == Kind::Write && g.seq == d.seq;
            let granted = go.grant.is_some_and(|g| same(&g));
            if granted {
                self.uncount(&d);
                d.writes_too.store(true, SeqCst);
                self.count(&d);
                inner.writing.insert(key, d.clone());
                // The first `change` that the holder got is older than its writes, so it cannot be
                // compared with later answers.
                d.asking.ask_never();
            }
            granted
        });
        if !may_write {
            return refused("other clients use it");
        }
        let file = registry.file(&d.file);
        let used = file.is_some_and(|f| f.opens.lock().iter().any(|o| o.client.id != d.client.id));
        if used || self.naming.load(SeqCst) > 0 {
            // The holder does not know of the upgrade, so the delegation is recalled.
            self.act(|inner, now| inner.table.recall(now, holder, key));
            return refused("it is open, or names are changing");
        }
        d.seqid.fetch_add(1, SeqCst);
        Some(d)
    }

    fn reserve(
        self: &Arc<Self>,
        other: [u8; 12],
        client: &Arc<Client>,
        export: &Export,
        fh: &Fh,
        wish: Wish,
    ) -> Option<Arc<Delegation>> {
        let (holder, key) = (id(client), key(fh));
        let lease_ms = self.lease.as_millis() as u32;
        let want = Want { kind: wish.kind, term: Term::Held, optional: true };
        let access =
            Access { client: Some(holder), file: key, op: Op::Lease, lease: Some(want), claim: None };
        self.act(|inner, now| {
            if inner.held.contains_key(&(holder, key)) {
                return None;
            }
            inner.table.renew(now, holder, lease_ms);
            let Decision::Go(go) = inner.table.begin(now, access) else { return None };
            let grant = go.grant.filter(|g| g.cachable)?;
            let d = Arc::new(Delegation {
                other,
                client: client.clone(),
                file: (export.number, fh.clone()),
                granted: wish.kind,
                writes_too: AtomicBool::new(false),
                seqid: AtomicU32::new(1),
                directory: wish.directory,
                key,
                seq: grant.seq,
                minor: wish.minor,
                recalled: AtomicBool::new(false),
                life: Mutex::new(Life::Held),
                calling: AtomicBool::new(false),
                watched: Mutex::new(None),
                watch: export.others.watch().cloned(),
                alone: tokio::sync::Mutex::new(wish.kind == Kind::Write),
                asking: Asking::default(),
                original: Mutex::new(None),
            });
            inner.held.insert((holder, key), d.clone());
            if wish.kind == Kind::Write {
                inner.writing.insert(key, d.clone());
            }
            self.count(&d);
            Some(d)
        })
    }

    /// Number of bytes that each possible holder may write before `free_bytes` are used up.
    pub fn share_of(&self, free_bytes: u64) -> u64 {
        free_bytes / self.most.max(1) as u64
    }
}

fn refused(why: &str) -> Option<Arc<Delegation>> {
    tracing::debug!("a file is not delegated: {why}");
    None
}
