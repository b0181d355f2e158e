//! Directory delegations: when one is requested, and the handling of the answer (RFC 8881 sections
//! 10.9 and 18.39).
//!
//! They are kept, recalled and returned like file delegations (`delegation`). GET_DIR_DELEGATION
//! joins a compound that is sent in any case, before the GETATTR that the delegation covers. It is
//! sent only for a stable directory. Such a directory was unchanged for the validity of its
//! attributes, and is now revalidated. Or its change time is as old when the client first sees it,
//! and the client has room for a further delegation. At mount time the operation follows the last
//! needed operation, which shows whether the server supports it. A server without it, or that fails
//! it later, gets no further requests. A server that grants none for long ([`REFUSALS_MAX`]) gets
//! few requests. There are no requests with `noac`. There are also none when calls must see each
//! change by local programs of the server at once. The server reports such changes afterwards.

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
use hither_vfs::{Attrs, Fh, RequestContext};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Consecutive refusals after which requests are rare.
const REFUSALS_MAX: u32 = 64;
/// Interval of the rare requests.
const RETRY: Duration = Duration::from_secs(300);

/// Whether to request directory delegations.
#[derive(Default)]
pub(crate) struct Directories {
    /// The server supports the operation.
    offered: AtomicBool,
    /// Consecutive refusals.
    refusals: AtomicU32,
    /// Time of the last refusal, after [`REFUSALS_MAX`].
    asked: Mutex<Option<Instant>>,
    /// Number of compounds in progress with a request.
    under_way: AtomicUsize,
}

/// A compound with a request, in progress.
pub(crate) struct UnderWay(Arc<Core>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.directories.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Directories {
    /// Whether a compound with a request is in progress.
    pub fn are_asked_for(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) > 0
    }

    fn refused(&self) {
        if self.refusals.fetch_add(1, Ordering::Relaxed) + 1 >= REFUSALS_MAX {
            *self.asked.lock() = Some(Instant::now());
        }
    }

    /// Whether a request is useful now.
    fn are_worth_it(&self) -> bool {
        if !self.offered.load(Ordering::Relaxed) {
            return false;
        }
        let few = self.refusals.load(Ordering::Relaxed) < REFUSALS_MAX;
        few || self.asked.lock().is_none_or(|at| Instant::now() >= at + RETRY)
    }
}

/// Requests a delegation of the current directory, without notifications.
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
    /// Whether directory delegations are useful for this mount.
    pub fn may_hold_directories(&self) -> bool {
        self.opts.delegations && self.opts.attr_cache != AttrCache::NONE
    }

    /// Whether to request a delegation of `fh` together with its attributes.
    pub fn wants_directory(&self, fh: &Fh) -> bool {
        self.directories.are_worth_it()
            && self.wanted_delegation() != open::WANT_NO_DELEG
            && self.valid.has_proved_stable(fh, Instant::now(), self.delegations.has_room())
            && !self.delegations.holds(fh)
    }

    /// Marks a request as in progress until the drop of the result. A recall may overtake its
    /// reply.
    pub fn asking(self: &Arc<Self>) -> UnderWay {
        self.directories.under_way.fetch_add(1, Ordering::SeqCst);
        UnderWay(self.clone())
    }

    /// Reads the server's answer for the root at mount time.
    pub fn directories_offered(self: &Arc<Self>, root: &Fh, answer: &mut Answer) {
        let offered = match answer.results.get_dir_delegation() {
            Ok(ok) => {
                self.directory_answered(root, ok);
                true
            }
            // The server supports the operation.
            Err(e) => matches!(e.status(), Some(Nfsstat4::DELAY | Nfsstat4::GRACE)),
        };
        self.directories.offered.store(offered, Ordering::Relaxed);
    }

    /// Reads the result of [`ask_op`], if it is next in the compound. Returns the granted
    /// delegation. After an error the later operations were not executed, and the delegation is not
    /// requested again.
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

    /// Attributes of a directory, with a request for a delegation of it. `None`: the caller must
    /// send a GETATTR without the request.
    pub async fn getattr_held(self: &Arc<Self>, cx: &RequestContext, fh: &Fh) -> Answered<Option<Attrs>> {
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
