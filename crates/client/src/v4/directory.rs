//! Delegations of directories: when one is asked for, and what the answer means (RFC 8881 sections
//! 10.9 and 18.39).
//!
//! They are kept, recalled and returned as those of files are (`delegation`). GET_DIR_DELEGATION
//! goes with questions that are asked anyway, before the attributes that it makes a lease of, and
//! only for a directory that has proved to stay as it is: its attributes have held for their time
//! and are asked for again. A server shows at the mount, behind the last operation that is needed,
//! whether it has the operation at all; one that has not, or refuses it later, is asked no more,
//! and one that gives none for long ([`REFUSALS_MAX`]) only now and then. Nothing is asked with
//! `noac`, nor where calls have to see each change of local programs of the server at once: these
//! are told of after the fact.

use super::call::{Answer, Compound};
use super::core::Core;
use super::delegation::Of;
use super::fail::{Answered, Fail};
use super::state::wire_fh;
use crate::AttrCache;
use hither_proto::nfs4::{
    Bitmap4, DirDelegation, GetDirDelegationArgs, GetDirDelegationOk, NfsOpnum4, Nfsstat4, Op, Stateid, Time,
    open,
};
use hither_vfs::{Attrs, Cx, Fh};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Refusals, one after the other, after which it is asked now and then only.
const REFUSALS_MAX: u32 = 64;
/// How often that is.
const RETRY: Duration = Duration::from_secs(300);

/// Whether to ask.
#[derive(Default)]
pub(crate) struct Directories {
    /// The server has the operation.
    offered: AtomicBool,
    /// Refusals, one after the other.
    refusals: AtomicU32,
    /// When the last one came, once there were too many.
    asked: Mutex<Option<Instant>>,
    /// Compounds under way that ask.
    under_way: AtomicUsize,
}

/// A compound that asks is under way.
pub(crate) struct UnderWay(Arc<Core>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.directories.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Directories {
    /// Whether any such compound is under way.
    pub fn are_asked_for(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) > 0
    }

    fn refused(&self) {
        if self.refusals.fetch_add(1, Ordering::Relaxed) + 1 >= REFUSALS_MAX {
            *self.asked.lock() = Some(Instant::now());
        }
    }

    /// Whether it is worth asking now.
    fn are_worth_it(&self) -> bool {
        if !self.offered.load(Ordering::Relaxed) {
            return false;
        }
        let few = self.refusals.load(Ordering::Relaxed) < REFUSALS_MAX;
        few || self.asked.lock().is_none_or(|at| Instant::now() >= at + RETRY)
    }
}

/// Asks for a delegation of the current directory, without notifications.
pub(crate) fn ask_op() -> Op {
    Op::GetDirDelegation(GetDirDelegationArgs {
        signal_deleg_avail: false,
        notification_types: Bitmap4::EMPTY,
        child_attr_delay: Time::default(),
        dir_attr_delay: Time::default(),
        child_attributes: Bitmap4::EMPTY,
        dir_attributes: Bitmap4::EMPTY,
    })
}

impl Core {
    /// Whether delegations of directories are of any use.
    pub fn may_hold_directories(&self) -> bool {
        self.opts.delegations && self.opts.attr_cache != AttrCache::NONE
    }

    /// Whether to ask for the delegation of `fh`, whose attributes are about to be asked for.
    pub fn wants_directory(&self, fh: &Fh) -> bool {
        self.directories.are_worth_it()
            && self.wanted_delegation() != open::WANT_NO_DELEG
            && self.valid.has_proved_stable(fh, Instant::now())
            && !self.delegations.holds(fh)
    }

    /// To be held while a compound asks: a recall may overtake its reply.
    pub fn asking(self: &Arc<Self>) -> UnderWay {
        self.directories.under_way.fetch_add(1, Ordering::SeqCst);
        UnderWay(self.clone())
    }

    /// What the server says at the mount, of the root.
    pub fn directories_offered(self: &Arc<Self>, root: &Fh, answer: &mut Answer) {
        let offered = match answer.results.get_dir_delegation() {
            Ok(ok) => {
                self.directory_answered(root, ok);
                true
            }
            // It knows the operation.
            Err(e) => matches!(e.status(), Some(Nfsstat4::DELAY | Nfsstat4::GRACE)),
        };
        self.directories.offered.store(offered, Ordering::Relaxed);
    }

    /// Takes the result of [`ask_op`], if that stood here in the compound: the delegation, when
    /// there is one. After an error what stood behind it was not executed; it is not asked again.
    pub fn take_directory(self: &Arc<Self>, fh: &Fh, answer: &mut Answer) -> Answered<Option<Stateid>> {
        if answer.results.peek_number() != Some(NfsOpnum4::GET_DIR_DELEGATION) {
            return Ok(None);
        }
        match answer.results.get_dir_delegation() {
            Ok(ok) => Ok(self.directory_answered(fh, ok)),
            Err(e) => {
                tracing::debug!("the server gives no delegations of directories: {e}");
                self.directories.offered.store(false, Ordering::Relaxed);
                answer.unasked = true;
                Err(e.into())
            }
        }
    }

    fn directory_answered(self: &Arc<Self>, fh: &Fh, ok: GetDirDelegationOk) -> Option<Stateid> {
        let GetDirDelegationOk::Granted(DirDelegation { stateid, .. }) = ok else {
            self.directories.refused();
            return None;
        };
        self.directories.refusals.store(0, Ordering::Relaxed);
        self.keep_delegation(fh, stateid, Of::Directory, false);
        Some(stateid)
    }

    /// Attributes of a directory, with a delegation of it where the server gives one; `None`: to be
    /// asked for without.
    pub async fn getattr_held(self: &Arc<Self>, cx: &Cx, fh: &Fh) -> Answered<Option<Attrs>> {
        let _asking = self.asking();
        let ops = [Op::Putfh(wire_fh(fh)), ask_op(), Op::Getattr(super::attrs::NODE_ATTRS)];
        let c = Compound::new("GETATTR", ops).wishes_from(1).uncached();
        let mut answer = self.compound(cx, c).await?;
        answer.results.putfh()?;
        let Ok(granted) = self.take_directory(fh, &mut answer) else { return Ok(None) };
        match answer.results.getattr().map_err(Fail::from) {
            Ok(wire) => {
                let attrs = self.attrs(fh, &wire, answer.asked).await?;
                Ok(Some(self.leased_by(fh, attrs, granted)))
            }
            Err(f) if f.status() == Some(Nfsstat4::DELAY) => Ok(None),
            Err(f) => Err(f),
        }
    }
}
