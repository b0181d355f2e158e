//! Exports that accept only some transports (exports(5), `xprtsec`), and NFS4ERR_WRONGSEC.
//!
//! RFC 8881 section 2.6.3.1 defines the operation that fails. An operation that sets the current
//! filehandle fails if the next one uses the filehandle. It does not fail before an operation that
//! may report the error itself, or that asks for the security of an export. SECINFO never fails for
//! this reason.

use super::exec::{Exec, Here};
use hither_proto::nfs4::{Nfsstat4, Op, OpenClaim};

impl Exec<'_> {
    /// Whether the export of a filehandle accepts the connection. Directories above the exports
    /// accept all.
    pub(super) fn is_accepted(&self, here: &Here) -> bool {
        match here {
            Here::Above(_) => true,
            Here::Object(o) => self.r.accepts(&o.export, &o.rights),
        }
    }

    /// Fails if an operation would use a filehandle of an export that refuses the connection.
    pub(super) fn may_use(&self, op: &Op) -> Result<(), Nfsstat4> {
        let current = (!sets_filehandle(op) && !is_for_any(op)).then_some(&self.current);
        let saved = uses_saved(op).then_some(&self.saved);
        let used = [current, saved].into_iter().flatten().flatten();
        self.need_accepted(used)
    }

    /// Runs after an operation that succeeded. Fails if the new current filehandle is of an export
    /// that refuses the connection, unless the next operation may have it.
    pub(super) fn may_follow(&self, op: &Op, rest: &[Op]) -> Result<(), Nfsstat4> {
        let is_deferred = match op {
            Op::Lookup(_) | Op::Lookupp => false,
            _ if sets_filehandle(op) => rest.first().is_none_or(|next| {
                sets_filehandle(next) || matches!(next, Op::Savefh) || reports_itself(next)
            }),
            _ => true,
        };
        if is_deferred { Ok(()) } else { self.need_accepted(self.current.iter()) }
    }

    fn need_accepted<'h>(&self, mut used: impl Iterator<Item = &'h Here>) -> Result<(), Nfsstat4> {
        if used.all(|here| self.is_accepted(here)) { Ok(()) } else { Err(Nfsstat4::WRONGSEC) }
    }
}

/// Whether an operation puts a filehandle in the place of the current one.
fn sets_filehandle(op: &Op) -> bool {
    matches!(op, Op::Putfh(_) | Op::Putrootfh | Op::Putpubfh | Op::Restorefh)
}

/// Whether an operation reports the security error of the object that it looks up, or reports no
/// such error.
fn reports_itself(op: &Op) -> bool {
    let by_name = |claim: &OpenClaim| {
        matches!(claim, OpenClaim::Null(_) | OpenClaim::DelegateCur(_) | OpenClaim::DelegatePrev(_))
    };
    match op {
        Op::Lookup(_) | Op::Lookupp | Op::Secinfo(_) | Op::SecinfoNoName(_) => true,
        Op::Open(a) => by_name(&a.claim),
        _ => false,
    }
}

/// Whether an operation works with any current filehandle, or needs none.
fn is_for_any(op: &Op) -> bool {
    matches!(
        op,
        Op::Savefh
            | Op::Secinfo(_)
            | Op::SecinfoNoName(_)
            | Op::Sequence(_)
            | Op::ExchangeId(_)
            | Op::CreateSession(_)
            | Op::DestroySession(_)
            | Op::BindConnToSession(_)
            | Op::BackchannelCtl(_)
            | Op::DestroyClientid(_)
            | Op::ReclaimComplete(_)
            | Op::TestStateid(_)
            | Op::FreeStateid(_)
            | Op::Illegal(_)
    )
}

/// Whether an operation uses the saved filehandle.
fn uses_saved(op: &Op) -> bool {
    matches!(op, Op::Rename(_) | Op::Link(_) | Op::Copy(_) | Op::Clone(_))
}
